"""Views that zoom in or out at random, as trainers of detection do: `LargeScaleJitter`, `ZoomOut`, `RandomIoUCrop`."""

from __future__ import annotations

from collections.abc import Sequence
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
from wds_tools.images.views import OfOneSize, Regions, check_flip, height_and_width, is_range


@dataclass(frozen=True)
class LargeScaleJitter(OfOneSize):
    """The image, resized by a random factor, then cropped at random or padded, as in Detectron2 and torchvision.

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

    draws = 5  # the factor, two for the corner, and the flips

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_scale(self.scale)
        check_flips(self.flip, self.flip_vertical)
        check_fill(self.fill)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.int64)
        factor = self.scale[0] + u[:, :1] * (self.scale[1] - self.scale[0])
        resized = np.maximum((sides * (frame / sides).min(axis=1, keepdims=True) * factor).astype(np.int64), 1)
        offset = -np.floor(np.maximum(resized - frame, 0) * u[:, 1:3]).astype(np.int64)
        flips = are_flipped(u[:, 3:], self.flip, self.flip_vertical)
        return place(sides, resized, offset, self.shape, fill=int(self.fill), flips=flips)


@dataclass(frozen=True)
class ZoomOut(OfOneSize):
    """The image at a random position on a larger canvas, which is resized: as for SSD, RT-DETR and D-FINE.

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

    draws = 6  # whether, the factor, two for the place, and the flips

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_scale(self.scale)
        if self.scale[0] < 1:
            raise OptionError(f"scale={self.scale}; allowed are factors of at least 1: the canvas holds the image")
        check_number("p", self.p, 1)
        check_flips(self.flip, self.flip_vertical)
        check_fill(self.fill)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.int64)
        factor = self.scale[0] + u[:, 1:2] * (self.scale[1] - self.scale[0])
        canvas = np.where(u[:, :1] < self.p, (sides * factor).astype(np.int64), sides)
        offset = np.floor((canvas - sides) * u[:, 2:4])
        flips = are_flipped(u[:, 4:], self.flip, self.flip_vertical)
        scale = frame / canvas
        return place(sides, sides * scale, offset * scale, self.shape, fill=int(self.fill), flips=flips)


_OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_ROUNDS, _TRIALS = 4, 40  # minimum overlaps that are drawn, and crops that are tried for each


@dataclass(frozen=True)
class RandomIoUCrop(OfOneSize):
    """A random crop that overlaps a box, resized: as for SSD, RT-DETR and D-FINE, by the rules of torchvision.

    One of the minimum overlaps 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1 is drawn; 1 keeps the whole image. Up to 40 random
    crops are tried. The first one is used that contains the centre of a box and overlaps such a box by at least this
    much (intersection over union). If there is none, another overlap is drawn, up to four; after that the whole image
    is kept. Boxes whose centre is outside the crop are kept if they are visible; torchvision drops them.

    Attributes:
        size: Height and width of the result in pixels, or one number for both. The result is distorted like that of a
            `Resize`.
        boxes: Name of the `Boxes` in the batch that belong to the image.
        scale: Smallest and largest share of the sides of the image, at most 1.
        ratio: Smallest and largest aspect ratio of the crop, width divided by height.
        p: Probability of a crop. Otherwise the whole image is kept.
        flip: Probability of mirroring left to right; True means 0.5.

    Raises:
        OptionError: An attribute is invalid.

    >>> RandomIoUCrop(640).shape
    (640, 640)
    """

    size: int | tuple[int, int]
    boxes: str = "boxes"
    scale: tuple[float, float] = (0.3, 1.0)
    ratio: tuple[float, float] = (0.5, 2.0)
    p: float = 0.8
    flip: bool | float = False

    draws = 2 + _ROUNDS * (1 + 4 * _TRIALS)  # whether, the flip, and an overlap and the crops for each round

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_scale(self.scale)
        if not isinstance(self.boxes, str) or not self.boxes:
            raise OptionError(f"boxes={self.boxes!r}; allowed is the name of a wds_tools.Boxes in the batch")
        if self.scale[1] > 1:
            raise OptionError(f"scale={self.scale}; allowed are shares of the sides of the image, at most 1")
        if not is_range(self.ratio):
            raise OptionError(f"ratio={self.ratio}; allowed are 0 < smallest <= largest: width divided by height")
        check_number("p", self.p, 1)
        check_flip(self.flip)

    @property
    def by(self) -> tuple[str, str]:
        """Kind and name of the field by which the region is chosen."""
        return "Boxes", self.boxes

    def regions(self, width: Ints, height: Ints, u: Floats, boxes: Sequence[Floats] = ()) -> Regions:
        """Return the region of each image, see `View.regions`.

        Args:
            width: int64 [n].
            height: int64 [n].
            u: float64 [n, draws].
            boxes: For each image float64 [k, 4], left, top, right and bottom in pixels.
        """
        whole = np.stack([np.zeros_like(width), np.zeros_like(width), width, height], axis=1)
        crops = [self._crop(of_image, box[2:], draws) for of_image, box, draws in zip(boxes, whole, u, strict=True)]
        box = np.array([full if crop is None else crop for crop, full in zip(crops, whole, strict=True)], np.int64)
        size = np.broadcast_to(np.array(self.shape, np.int64), (len(u), 2))
        probability = 0.5 if self.flip is True else float(self.flip)
        return Regions(box.reshape(-1, 4), size, np.zeros_like(size), size, u[:, 1] < probability)

    def _crop(self, boxes: Floats, sides: Ints, u: Floats) -> Ints | None:
        """Return left, top, width and height of a crop of one image; None for the whole image."""
        if u[0] >= self.p or not len(boxes):
            return None
        for draws in u[2:].reshape(_ROUNDS, -1):
            overlap = _OVERLAPS[int(draws[0] * len(_OVERLAPS))]
            if overlap >= 1:
                return None
            crop = self._first(boxes, sides, overlap, draws[1:].reshape(_TRIALS, 4))
            if crop is not None:
                return crop
        return None

    def _first(self, boxes: Floats, sides: Ints, overlap: float, u: Floats) -> Ints | None:
        """Return the first crop of several random ones that overlaps a box enough, or None."""
        size = ((self.scale[0] + u[:, :2] * (self.scale[1] - self.scale[0])) * sides).astype(np.int64)  # [trials, 2]
        start = ((sides - size) * u[:, 2:]).astype(np.int64)
        aspect = size[:, 0] / np.maximum(size[:, 1], 1)
        is_valid = (size > 0).all(axis=1) & (self.ratio[0] <= aspect) & (aspect <= self.ratio[1])
        low, high = start[:, None], (start + size)[:, None]  # [trials, 1, x and y]
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2
        is_inside = ((centre > low) & (centre < high)).all(axis=2)  # [trials, boxes]
        shared = np.maximum(np.minimum(high, boxes[:, 2:]) - np.maximum(low, boxes[:, :2]), 0).prod(axis=2)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        union = np.maximum(size.prod(axis=1)[:, None] + area - shared, 1e-16)
        overlaps = np.where(is_inside, shared / union, -1)
        good = np.flatnonzero(is_valid & (overlaps.max(axis=1) >= overlap))
        return np.concatenate([start[good[0]], size[good[0]]]) if len(good) else None
