"""What part of a picture is shown, and at what size: pure geometry, a batch at a time.

The parameters mean what they mean in ``torchvision.transforms.v2`` with ``antialias=True``; the geometry follows
its documentation (https://docs.pytorch.org/vision/stable/transforms.html). Random draws come in as numbers, so that
a sample's crop depends on its place in the epoch alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError

_ATTEMPTS = 10  # torchvision's number of tries before it takes the centre


@dataclass(frozen=True, slots=True)
class Regions:
    """For each of n pictures: cut ``box``, resize it to ``resize``, cut ``size`` from that at ``corner``, flip.

    Attributes:
        box: int64 [n, 4], left, top, width, height in pixels as shown.
        resize: int64 [n, 2], height and width that the box becomes.
        corner: int64 [n, 2], top and left in the resized box.
        size: int64 [n, 2], height and width of the result.
        flip: bool [n], mirrored left to right.
    """

    box: NDArray[np.int64]
    resize: NDArray[np.int64]
    corner: NDArray[np.int64]
    size: NDArray[np.int64]
    flip: NDArray[np.bool_]

    def needed(self) -> NDArray[np.int64]:
        """Return the part of each box that the result depends on: int64 [n, 4], left, top, width, height.

        The filter that resizes with antialiasing reaches one output pixel to either side, at least one input pixel.
        """
        start, stop = self.corner, self.corner + self.size  # [n, 2], rows and columns of the resized box
        length = self.box[:, [3, 2]]  # [n, 2], height and width
        scale = length / self.resize
        reach = np.maximum(scale, 1.0) + 1.5  # half a pixel for the centres, one for rounding
        first = np.clip(np.floor(scale * (start + 0.5) - reach), 0, length).astype(np.int64)
        last = np.clip(np.ceil(scale * (stop - 0.5) + reach), 0, length).astype(np.int64)
        same = (self.resize == length).all(axis=1, keepdims=True)  # nothing is resized: a plain cut
        first, last = np.where(same, start, first), np.where(same, stop, last)
        place = self.box[:, [1, 0]] + first
        return np.concatenate([place[:, ::-1], (last - first)[:, ::-1]], axis=1)


class View(Protocol):
    """What every view tells."""

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the result, or None where it differs from picture to picture."""

    @property
    def draws(self) -> int:
        """Random numbers per picture."""

    @property
    def least(self) -> tuple[int, int]:
        """Smallest height and width that a picture may have."""

    def regions(self, width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]) -> Regions:
        """Return the regions of n pictures from their sizes and ``u``, float64 [n, draws] in [0, 1)."""


def _is_side(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(1 <= value <= 65_535)


def _pair(size: Any, what: str) -> tuple[int, int]:
    """Return (height, width), as torchvision reads a size."""
    pair = (size, size) if _is_side(size) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(_is_side, pair)):
        raise OptionError(f"{what}={size!r}; allowed are a number of pixels, or (height, width)")
    return int(pair[0]), int(pair[1])


def _is_range(value: Any) -> bool:
    """Return whether this is two numbers above 0, the second no smaller."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    return is_pair and all(isinstance(end, int | float | np.number) for end in value) and 0 < value[0] <= value[1]


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the picture, of random size and shape, resized: the usual view for training.

    Attributes:
        size: Height and width of the result, or one number for both.
        scale: Smallest and largest part of the picture's area.
        ratio: Narrowest and widest shape, width by height.
        flip: Mirror left to right: True with probability 0.5, or the probability.

    >>> RandomResizedCrop(224, flip=True).shape
    (224, 224)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool | float = False

    def __post_init__(self) -> None:
        _pair(self.size, "size")
        if not _is_range(self.scale) or self.scale[1] > 1:
            raise OptionError(f"scale={self.scale}; allowed are 0 < smallest <= largest <= 1: parts of the area")
        if not _is_range(self.ratio):
            raise OptionError(f"ratio={self.ratio}; allowed are 0 < narrowest <= widest")
        if not isinstance(self.flip, int | float | np.number | np.bool_) or not 0 <= self.flip <= 1:
            raise OptionError(f"flip={self.flip!r}; allowed are True, False, or a probability")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return _pair(self.size, "size")

    @property
    def draws(self) -> int:
        """Two numbers for each attempt, two for the place, one for the flip."""
        return 2 * _ATTEMPTS + 3

    @property
    def least(self) -> tuple[int, int]:
        """Any picture will do."""
        return (1, 1)

    def regions(self, width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]) -> Regions:
        """Return one random region per picture."""
        n = len(width)
        area = (width * height)[:, None] * (self.scale[0] + u[:, :_ATTEMPTS] * (self.scale[1] - self.scale[0]))
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        aspect = np.exp(low + u[:, _ATTEMPTS : 2 * _ATTEMPTS] * (high - low))
        w = np.round(np.sqrt(area * aspect)).astype(np.int64)  # [n, attempts]
        h = np.round(np.sqrt(area / aspect)).astype(np.int64)
        fits = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
        first = fits.argmax(axis=1)
        rows = np.arange(n)
        centre_w, centre_h = self._centre(width, height)
        found = fits[rows, first]
        w = np.where(found, w[rows, first], centre_w)
        h = np.where(found, h[rows, first], centre_h)
        left = np.where(found, np.floor(u[:, -3] * (width - w + 1)).astype(np.int64), (width - w) // 2)
        top = np.where(found, np.floor(u[:, -2] * (height - h + 1)).astype(np.int64), (height - h) // 2)
        probability = 0.5 if self.flip is True else float(self.flip)
        size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        return Regions(
            box=np.stack([left, top, w, h], axis=1),
            resize=size,
            corner=np.zeros((n, 2), np.int64),
            size=size,
            flip=u[:, -1] < probability,
        )

    def _centre(
        self, width: NDArray[np.int64], height: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the largest part of an allowed shape, for pictures where no attempt fitted."""
        shape = width / height
        narrow, wide = shape < self.ratio[0], shape > self.ratio[1]
        w = np.where(wide, np.round(height * self.ratio[1]), width).astype(np.int64)
        h = np.where(narrow, np.round(width / self.ratio[0]), height).astype(np.int64)
        return w, h


@dataclass(frozen=True)
class CenterCrop:
    """The middle of the picture, resized before: the usual view for evaluation.

    Attributes:
        size: Height and width of the result, or one number for both.
        resize: First resize the picture so that its shorter side is this; None takes it as it is, and then every
            picture must be at least as large as the result.

    >>> CenterCrop(224, resize=256).shape
    (224, 224)
    """

    size: int | tuple[int, int]
    resize: int | None = None

    def __post_init__(self) -> None:
        size = _pair(self.size, "size")
        if self.resize is not None and not _is_side(self.resize):
            raise OptionError(f"resize={self.resize!r}; allowed are a number of pixels, for the shorter side, and None")
        if self.resize is not None and max(size) > self.resize:
            raise OptionError(
                f"CenterCrop({self.size}, resize={self.resize}): the crop is larger than the resized picture may be; "
                f"allowed are resize={max(size)} and more, or a smaller crop"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return _pair(self.size, "size")

    @property
    def draws(self) -> int:
        """Nothing is random."""
        return 0

    @property
    def least(self) -> tuple[int, int]:
        """Without a resize, the picture must hold the crop."""
        return (1, 1) if self.resize else self.shape

    def regions(
        self,
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        u: NDArray[np.float64],  # noqa: ARG002 - the protocol's
    ) -> Regions:
        """Return the middle of each picture."""
        n = len(width)
        resized = _short_side(width, height, self.resize) if self.resize else np.stack([height, width], axis=1)
        size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        corner = np.round((resized - size) / 2.0).astype(np.int64)
        return Regions(_whole(width, height), resized, corner, size, np.zeros(n, np.bool_))


@dataclass(frozen=True)
class Resize:
    """The whole picture, resized.

    Attributes:
        size: (height, width), or one number for the shorter side: then the longer side differs from picture to
            picture, and a batch is a list of tensors unless they agree.

    >>> Resize((128, 128)).shape, Resize(128).shape
    ((128, 128), None)
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        _pair(self.size, "size")

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the result, None where it keeps its shape."""
        return None if _is_side(self.size) else _pair(self.size, "size")

    @property
    def draws(self) -> int:
        """Nothing is random."""
        return 0

    @property
    def least(self) -> tuple[int, int]:
        """Any picture will do."""
        return (1, 1)

    def regions(
        self,
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        u: NDArray[np.float64],  # noqa: ARG002 - the protocol's
    ) -> Regions:
        """Return the whole of each picture."""
        n = len(width)
        if self.shape is None:
            size = _short_side(width, height, _pair(self.size, "size")[0])
        else:
            size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        return Regions(_whole(width, height), size, np.zeros((n, 2), np.int64), size, np.zeros(n, np.bool_))


def _whole(width: NDArray[np.int64], height: NDArray[np.int64]) -> NDArray[np.int64]:
    zero = np.zeros_like(width)
    return np.stack([zero, zero, width, height], axis=1)


def _short_side(width: NDArray[np.int64], height: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """Return (height, width) with the shorter side ``side``, the longer one cut to whole pixels as torchvision does."""
    short = np.minimum(width, height)
    resized = np.stack([height, width], axis=1) * side // short[:, None]
    return np.asarray(resized, np.int64)
