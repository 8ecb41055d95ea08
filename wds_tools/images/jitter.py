"""Views that zoom an image in or out at random, as trainers of detection do: `LargeScaleJitter`, `ZoomOut`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.images.framed import (
    GREY,
    Floats,
    Ints,
    are_flipped,
    check_fill,
    check_flips,
    check_number,
    check_scale,
    place,
)
from wds_tools.images.views import Regions, height_and_width


@dataclass(frozen=True)
class LargeScaleJitter:
    """The image, resized by a random factor, and cropped at random or filled, as in Detectron2 and torchvision.

    With a factor of 1, the image fits into the result. A smaller image is at the top left.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        scale: Smallest and largest factor.
        flip: Probability of mirroring left to right; True means 0.5.
        flip_vertical: Probability of mirroring top to bottom; True means 0.5.
        fill: Value of all channels where no image is, 0 to 255.

    Raises:
        OptionError: An attribute is invalid.

    >>> LargeScaleJitter(1024).shape
    (1024, 1024)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.1, 2.0)
    flip: bool | float = False
    flip_vertical: bool | float = False
    fill: int = GREY

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_scale(self.scale)
        check_flips(self.flip, self.flip_vertical)
        check_fill(self.fill)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return height_and_width(self.size)

    @property
    def draws(self) -> int:
        """Number of random numbers per image: the factor, two for the corner, and the flips."""
        return 5

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image: (1, 1)."""
        return (1, 1)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.int64)
        factor = self.scale[0] + u[:, :1] * (self.scale[1] - self.scale[0])
        resized = np.maximum((sides * (frame / sides).min(axis=1, keepdims=True) * factor).astype(np.int64), 1)
        offset = -np.floor(np.maximum(resized - frame, 0) * u[:, 1:3]).astype(np.int64)
        flips = are_flipped(u[:, 3:], self.flip, self.flip_vertical)
        return place(sides, resized, offset, self.shape, fill=int(self.fill), flips=flips)


@dataclass(frozen=True)
class ZoomOut:
    """The image at a random place of a larger canvas, which is resized: as for SSD, RT-DETR and D-FINE.

    Attributes:
        size: Height and width of the result in pixels, or one number for both. The canvas has the aspect ratio of the
            image, so the result is distorted like that of a `Resize`.
        scale: Smallest and largest factor from the sides of the image to those of the canvas, at least 1.
        p: Probability of a larger canvas. Otherwise the image fills the result.
        flip: Probability of mirroring left to right; True means 0.5.
        flip_vertical: Probability of mirroring top to bottom; True means 0.5.
        fill: Value of all channels around the image, 0 to 255.

    Raises:
        OptionError: An attribute is invalid.

    >>> ZoomOut(640).shape
    (640, 640)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5
    flip: bool | float = False
    flip_vertical: bool | float = False
    fill: int = 0

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_scale(self.scale)
        if self.scale[0] < 1:
            raise OptionError(f"scale={self.scale}; allowed are factors of at least 1: the canvas holds the image")
        check_number("p", self.p, 1)
        check_flips(self.flip, self.flip_vertical)
        check_fill(self.fill)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return height_and_width(self.size)

    @property
    def draws(self) -> int:
        """Number of random numbers per image: whether, the factor, two for the place, and the flips."""
        return 6

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image: (1, 1)."""
        return (1, 1)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.int64)
        factor = self.scale[0] + u[:, 1:2] * (self.scale[1] - self.scale[0])
        canvas = np.where(u[:, :1] < self.p, (sides * factor).astype(np.int64), sides)
        offset = np.floor((canvas - sides) * u[:, 2:4])
        flips = are_flipped(u[:, 4:], self.flip, self.flip_vertical)
        scale = frame / canvas
        return place(sides, sides * scale, offset * scale, self.shape, fill=int(self.fill), flips=flips)
