"""`Buckets`: a view whose size is one of several, chosen by the aspect ratio of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images.views import Regions, check_flip, height_and_width

CropPosition = Literal["center", "random"]


@dataclass(frozen=True)
class Buckets:
    """Several sizes, chosen by aspect ratio: all images of a batch have the same size.

    Each image gets the size whose aspect ratio is nearest to its own. The largest region with that aspect ratio
    is cut out and resized. Each batch has images of one size: see docs/fields.md.

    Attributes:
        sizes: List of (height, width) in pixels.
        crop: Position of the region in the image: ``"center"`` or ``"random"``.
        flip: Probability of mirroring left to right; True means 0.5.

    Raises:
        OptionError: An attribute is invalid.

    >>> Buckets([(224, 224), (192, 256)]).bucket_of(np.array([500, 640]), np.array([480, 480])).tolist()
    [0, 1]
    """

    sizes: Sequence[tuple[int, int]]
    crop: CropPosition = "center"
    flip: bool | float = False

    draws = 3  # left, top and flip
    least = (1, 1)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, list | tuple) or not self.sizes:
            raise OptionError(f"Buckets({self.sizes!r}); allowed is a list of sizes, such as [(224, 224), (192, 256)]")
        sizes = tuple(height_and_width(size) for size in self.sizes)
        if len(set(sizes)) < len(sizes):
            raise OptionError(f"Buckets({self.sizes!r}) has a size twice: list each size once")
        if self.crop not in ("center", "random"):
            raise OptionError(f"Buckets(crop={self.crop!r}); allowed are 'center' and 'random'")
        check_flip(self.flip)
        object.__setattr__(self, "sizes", sizes)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the result in pixels, if there is only one size."""
        return self.sizes[0] if len(self.sizes) == 1 else None

    def bucket_of(self, width: NDArray[np.int64], height: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the size of each image: int64 [n]."""
        sizes = np.array(self.sizes, np.float64)  # [sizes, 2]
        image = np.log(np.maximum(width, 1) / np.maximum(height, 1))
        distance = np.abs(image[:, None] - np.log(sizes[:, 1] / sizes[:, 0]))
        return np.asarray(distance.round(9).argmin(axis=1), np.int64)  # the first of equal ones, on any machine

    def regions(self, width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]) -> Regions:
        """Return the region of each image, see `View.regions`."""
        return self.regions_in(self.bucket_of(width, height), width, height, u)

    def regions_in(
        self, bucket: NDArray[np.int64], width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]
    ) -> Regions:
        """Return the region of each image for given sizes.

        Args:
            bucket: int64 [n], index of the size of each image.
            width: int64 [n], see `View.regions`.
            height: int64 [n].
            u: float64 [n, draws].
        """
        size = np.array(self.sizes, np.int64)[bucket]  # [n, 2]
        ratio = size[:, 1] / size[:, 0]
        w = np.clip(np.round(np.minimum(width, height * ratio)), 1, width).astype(np.int64)
        h = np.clip(np.round(np.minimum(height, width / ratio)), 1, height).astype(np.int64)
        if self.crop == "random":
            left, top = (
                np.floor(u[:, n] * (margin + 1)).astype(np.int64) for n, margin in enumerate((width - w, height - h))
            )
        else:
            left, top = (width - w) // 2, (height - h) // 2
        probability = 0.5 if self.flip is True else float(self.flip)
        return Regions(
            box=np.stack([left, top, w, h], axis=1),
            resize=size,
            corner=np.zeros_like(size),
            size=size,
            flip=u[:, 2] < probability,
        )


@dataclass(frozen=True)
class OneBucket:
    """The view of a batch of one size of `Buckets`."""

    buckets: Buckets
    number: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return self.buckets.sizes[self.number]

    @property
    def draws(self) -> int:
        """Number of random numbers per image."""
        return self.buckets.draws

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image."""
        return self.buckets.least

    def regions(self, width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]) -> Regions:
        """Return the region of each image, see `View.regions`."""
        return self.buckets.regions_in(np.full(len(width), self.number), width, height, u)


def buckets_in(views: Sequence[Any]) -> Buckets | None:
    """Return the `Buckets` among the views of a call, or None."""
    distinct = {view for view in views if isinstance(view, Buckets)}
    if len(distinct) > 1:
        raise OptionError("fields= has several different Buckets: all images of a batch must belong to the same ones")
    return distinct.pop() if distinct else None
