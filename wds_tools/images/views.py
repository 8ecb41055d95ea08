"""Views: the region of an image that is shown, and its size. Geometry for a batch at a time, no pixels.

The parameters mean the same as in ``torchvision.transforms.v2`` with ``antialias=True``, and the
geometry follows its documentation (https://docs.pytorch.org/vision/stable/transforms.html). Random
numbers are passed in, so that the crop of a sample depends only on its position in the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError

_ATTEMPTS = 10  # random crops that torchvision tries before it takes the centre


@dataclass(frozen=True, slots=True)
class Warp:
    """A map of m frames to outputs, for rotation, shear and perspective.

    Attributes:
        matrix: float64 [m, 3, 3], maps (x, y, 1) in pixels of the frame to pixels of the output, up to a factor.
        size: Height and width of each output in pixels.
        flips: bool [m, 2], whether each output is mirrored in the end, left to right and top to bottom.
        margin: int64 [m, 2], how far outputs show their frames above and below the rectangle of the size of an output
            in the middle, and to the left and right of it.
    """

    matrix: NDArray[np.float64]
    size: tuple[int, int]
    flips: NDArray[np.bool_]
    margin: NDArray[np.int64]

    def move(self, points: NDArray[np.float64], rows: NDArray[np.int64] | int, mirror_at: int) -> NDArray[np.float64]:
        """Return points of frames as points of the outputs.

        Args:
            points: float64 [..., 2], x and y; the first dimension is k if ``rows`` is an array.
            rows: Index of the frame: one, or int64 [k].
            mirror_at: As for `place_points`.
        """
        shape, matrix = points.shape, self.matrix[rows]
        flat = points.reshape(*matrix.shape[:-2], -1, 2)
        moved = np.concatenate([flat, np.ones_like(flat[..., :1])], axis=-1) @ np.swapaxes(matrix, -1, -2)
        moved = moved[..., :2] / np.maximum(moved[..., 2:], 1e-6)  # far away, where perspective would mirror a point
        flips = self.flips[rows][..., None, :]
        return np.where(flips, np.array(self.size[::-1]) + mirror_at - moved, moved).reshape(shape)


@dataclass(frozen=True, slots=True)
class Pasted:
    """What of the second one of each two outputs is pasted on the first one.

    Attributes:
        masks: For each two outputs bool [height, width], the pixels that show the second one; None if none do.
        objects: For each region the outlines of its objects in the output, [points, 2] each; None for rectangles.
        chosen: For each region which of its objects are shown, bool [objects]; None for all.
    """

    masks: Sequence[NDArray[np.bool_] | None]
    objects: Sequence[Sequence[Sequence[NDArray[np.float64]]]] | None = None
    chosen: Sequence[NDArray[np.bool_] | None] | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """Outputs that are larger than the results of n regions: where each result is, and what surrounds it.

    Attributes:
        size: Height and width of each output in pixels.
        offset: int64 [n, 2], top and left of each result in its output.
        fill: Value of all channels where no result is, 0 to 255.
        flip_rows: bool [n], whether each result is mirrored top to bottom.
        tiles: Number of results in an output. Those of one output follow each other.
        canvas: float64 [n, 4], left, top, right and bottom in pixels of the output: objects are cut off there before it
            is computed how much of them is visible. None if they are not.
        warp: How frames become outputs, one for each frame; None if they are outputs.
        shares: float64, for each two outputs that are blended the share of the first one; None if none are.
        pasted: How the second one of each two outputs is pasted on the first one; then shares are 0, or 1 if it is not.
    """

    size: tuple[int, int]
    offset: NDArray[np.int64]
    fill: int
    flip_rows: NDArray[np.bool_]
    tiles: int = 1
    canvas: NDArray[np.float64] | None = None
    warp: Warp | None = None
    shares: NDArray[np.float64] | None = None
    pasted: Pasted | None = None


@dataclass(frozen=True, slots=True)
class Regions:
    """Instructions for n images: crop ``box``, resize it to ``resize``, crop ``size`` at ``corner``, flip, place.

    Attributes:
        box: int64 [n, 4], left, top, width, height in pixels after the EXIF orientation is applied.
        resize: int64 or float64 [n, 2], height and width of the resized box.
        corner: int64 or float64 [n, 2], top and left of the result in the resized box. Numbers that are not whole are
            for a result whose edges are between two pixels of the resized box, and up to half a pixel outside of it.
        size: int64 [n, 2], height and width of the result; 0 if nothing of the image is visible.
        flip: bool [n], whether the result is mirrored left to right.
        frame: Where the results are in larger outputs; None if each is an output.
    """

    box: NDArray[np.int64]
    resize: NDArray[np.int64] | NDArray[np.float64]
    corner: NDArray[np.int64] | NDArray[np.float64]
    size: NDArray[np.int64]
    flip: NDArray[np.bool_]
    frame: Frame | None = None

    @property
    def are_resized(self) -> NDArray[np.bool_]:
        """Whether a box is resized, and not only cropped: bool [n]."""
        return np.asarray((self.resize != self.box[:, [3, 2]]).any(axis=1))

    @property
    def flips(self) -> NDArray[np.bool_]:
        """Whether a result is mirrored left to right, and top to bottom: bool [n, 2]."""
        rows = np.zeros_like(self.flip) if self.frame is None else self.frame.flip_rows
        return np.stack([self.flip, rows], axis=1)

    @property
    def are_mirrored(self) -> NDArray[np.bool_]:
        """Whether an output shows the mirror image of a result, after an odd number of flips: bool [n]."""
        odd = np.asarray(self.flips.sum(axis=1) % 2)
        if self.frame is not None and self.frame.warp is not None:
            odd = odd + np.repeat(self.frame.warp.flips.sum(axis=1), self.frame.tiles)
        return np.asarray(odd % 2 == 1)

    @property
    def output_size(self) -> NDArray[np.int64]:
        """Height and width of the output that each result belongs to: int64 [n, 2]."""
        if self.frame is None:
            return self.size
        size = self.frame.warp.size if self.frame.warp else self.frame.size
        return np.broadcast_to(np.array(size), self.size.shape)

    @property
    def are_visible(self) -> NDArray[np.bool_]:
        """Whether a result has any pixels: bool [n]."""
        return np.asarray((self.size > 0).all(axis=1))

    def repeated(self, counts: NDArray[np.int64]) -> Regions:
        """Return the region of each image as often as ``counts``, int64 [n], states; an output has one result."""
        rows, frame = np.repeat(np.arange(len(self.box)), counts), self.frame
        if frame is not None:
            if (warp := frame.warp) is not None:
                warp = Warp(warp.matrix[rows], warp.size, warp.flips[rows], warp.margin[rows])
            frame = Frame(frame.size, frame.offset[rows], frame.fill, frame.flip_rows[rows], warp=warp)
        return Regions(self.box[rows], self.resize[rows], self.corner[rows], self.size[rows], self.flip[rows], frame)

    def shows(self, i: int) -> NDArray[np.bool_] | None:
        """Return which pixels of the output show the one of two outputs to which region ``i`` belongs."""
        if self.frame is None or self.frame.pasted is None:
            return None
        pair, is_second = divmod(i // self.frame.tiles, 2)
        mask = self.frame.pasted.masks[pair]
        return mask if mask is None or is_second else ~mask

    def needed(self) -> NDArray[np.int64]:
        """Return the part of each box that the result depends on.

        An output pixel depends on input pixels at a distance of up to one output pixel, and of at
        least one input pixel.
        """
        start, stop = self.corner, self.corner + self.size  # [n, 2], rows and columns of the resized box
        length = self.box[:, [3, 2]]  # [n, 2], height and width
        scale = length / self.resize
        reach = np.maximum(scale, 1.0) + 1.5  # half a pixel for the centres, one for rounding
        first = np.clip(np.floor(scale * (start + 0.5) - reach), 0, length).astype(np.int64)
        last = np.clip(np.ceil(scale * (stop - 0.5) + reach), 0, length).astype(np.int64)
        if self.frame is None:
            same = ~self.are_resized[:, None]
            first, last = np.where(same, start, first).astype(np.int64), np.where(same, stop, last).astype(np.int64)
        corner = self.box[:, [1, 0]] + first
        return np.concatenate([corner[:, ::-1], (last - first)[:, ::-1]], axis=1)


class View(Protocol):
    """The protocol of a view."""

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the result in pixels, or None if they differ from image to image."""

    @property
    def draws(self) -> int:
        """Number of random numbers per image."""

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image in pixels."""

    def regions(self, width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]) -> Regions:
        """Return the regions of n images.

        Args:
            width: int64 [n], in pixels after the EXIF orientation is applied.
            height: int64 [n], in pixels after the EXIF orientation is applied.
            u: float64 [n, draws], random numbers in [0, 1).
        """


def tiles_of(view: View) -> int:
    """Return how many images a result of a view shows."""
    return getattr(view, "tiles", 1)


def chosen_by(view: View) -> tuple[str, str] | None:
    """Return the kind and the name of the field by which a view chooses its regions; None if it chooses by size."""
    return getattr(view, "by", None)


def _is_side(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(1 <= value <= 65_535)


def height_and_width(size: Any) -> tuple[int, int]:
    """Return (height, width) for a value of the parameter ``size``, as torchvision does."""
    pair = (size, size) if _is_side(size) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(_is_side, pair)):
        raise OptionError(f"size={size!r}; allowed are a number of pixels, or (height, width)")
    return int(pair[0]), int(pair[1])


class OfOneSize:
    """Base of views whose results have one size, and which take images of any size."""

    size: int | tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return height_and_width(self.size)

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image: (1, 1)."""
        return (1, 1)


def check_flip(flip: Any) -> None:
    """Check that a value is a probability, True or False."""
    if not isinstance(flip, int | float | np.number | np.bool_) or not 0 <= flip <= 1:
        raise OptionError(f"flip={flip!r}; allowed are True, False, or a probability")


def is_range(value: Any) -> bool:
    """Return whether this is a pair of numbers above 0 in ascending order."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    return is_pair and all(isinstance(end, int | float | np.number) for end in value) and 0 < value[0] <= value[1]


@dataclass(frozen=True)
class RandomResizedCrop(OfOneSize):
    """A crop of random area and aspect ratio, resized: the usual view for training.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        scale: Smallest and largest area of the crop, as a fraction of the image.
        ratio: Smallest and largest aspect ratio of the crop, width divided by height.
        flip: Probability of mirroring left to right; True means 0.5.

    Raises:
        OptionError: An attribute is invalid.

    >>> RandomResizedCrop(224, flip=True).shape
    (224, 224)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool | float = False

    draws = 2 * _ATTEMPTS + 3  # two per attempt, two for left and top, one for the flip

    def __post_init__(self) -> None:
        height_and_width(self.size)
        if not is_range(self.scale) or self.scale[1] > 1:
            raise OptionError(f"scale={self.scale}; allowed are 0 < smallest <= largest <= 1: fractions of the area")
        if not is_range(self.ratio):
            raise OptionError(f"ratio={self.ratio}; allowed are 0 < smallest <= largest: width divided by height")
        check_flip(self.flip)

    def regions(self, width: NDArray[np.int64], height: NDArray[np.int64], u: NDArray[np.float64]) -> Regions:
        """Return a random region for each image, see `View.regions`."""
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
        has_fit = fits[rows, first]
        w = np.where(has_fit, w[rows, first], centre_w)
        h = np.where(has_fit, h[rows, first], centre_h)
        left = np.where(has_fit, np.floor(u[:, -3] * (width - w + 1)).astype(np.int64), (width - w) // 2)
        top = np.where(has_fit, np.floor(u[:, -2] * (height - h + 1)).astype(np.int64), (height - h) // 2)
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
        """Return width and height of the largest crop of an allowed aspect ratio, at least 1: two int64 [n]."""
        aspect = width / height
        narrow, wide = aspect < self.ratio[0], aspect > self.ratio[1]
        w = np.where(wide, np.round(height * self.ratio[1]), width).astype(np.int64)
        h = np.where(narrow, np.round(width / self.ratio[0]), height).astype(np.int64)
        return np.maximum(w, 1), np.maximum(h, 1)  # in thin images, no crop may have an allowed ratio


@dataclass(frozen=True)
class CenterCrop(OfOneSize):
    """The centre of the image, optionally after a resize: the usual view for evaluation.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        resize: Length in pixels to which the shorter side of the image is resized first. With None
            the image is not resized, and must be at least as large as the result.

    Raises:
        OptionError: An attribute is invalid, or the crop is larger than ``resize``.

    >>> CenterCrop(224, resize=256).shape
    (224, 224)
    """

    size: int | tuple[int, int]
    resize: int | None = None

    draws = 0

    def __post_init__(self) -> None:
        size = height_and_width(self.size)
        if self.resize is not None and not _is_side(self.resize):
            raise OptionError(f"resize={self.resize!r}; allowed are a number of pixels, for the shorter side, and None")
        if self.resize is not None and max(size) > self.resize:
            raise OptionError(
                f"CenterCrop({self.size}, resize={self.resize}): the crop may be larger than the resized image; "
                f"allowed are resize={max(size)} and more, or a smaller crop"
            )

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image: the size of the crop, unless the image is resized."""
        return (1, 1) if self.resize else self.shape

    def regions(
        self,
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        u: NDArray[np.float64],  # noqa: ARG002 - required by the protocol
    ) -> Regions:
        """Return the central region of each image, see `View.regions`; ``u`` is not used."""
        n = len(width)
        full = np.stack([height, width], axis=1)
        resized = _resize_shorter_side(width, height, self.resize) if self.resize else full
        size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        corner = np.round((resized - size) / 2.0).astype(np.int64)
        return Regions(_full_box(width, height), resized, corner, size, np.zeros(n, np.bool_))


@dataclass(frozen=True)
class Resize:
    """The whole image, resized.

    Attributes:
        size: (height, width) in pixels, or one number for the shorter side. With one number the
            longer side differs from image to image, and a batch is a list of tensors unless all
            have the same size.

    Raises:
        OptionError: ``size`` is invalid.

    >>> Resize((128, 128)).shape, Resize(128).shape
    ((128, 128), None)
    """

    size: int | tuple[int, int]

    draws = 0
    least = (1, 1)

    def __post_init__(self) -> None:
        height_and_width(self.size)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the result in pixels, or None if they differ from image to image."""
        return None if _is_side(self.size) else height_and_width(self.size)

    def regions(
        self,
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        u: NDArray[np.float64],  # noqa: ARG002 - required by the protocol
    ) -> Regions:
        """Return the whole area of each image as its region, see `View.regions`; ``u`` is not used."""
        n = len(width)
        if self.shape is None:
            size = _resize_shorter_side(width, height, height_and_width(self.size)[0])
        else:
            size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        return Regions(_full_box(width, height), size, np.zeros((n, 2), np.int64), size, np.zeros(n, np.bool_))


def _full_box(width: NDArray[np.int64], height: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the box of each whole image: int64 [n, 4], left, top, width and height."""
    zero = np.zeros_like(width)
    return np.stack([zero, zero, width, height], axis=1)


def _resize_shorter_side(width: NDArray[np.int64], height: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """Return the image sizes after the shorter side is resized to ``side`` pixels.

    The longer side is rounded down, as in torchvision.
    """
    short = np.minimum(width, height)
    resized = np.stack([height, width], axis=1) * side // short[:, None]
    return np.asarray(resized, np.int64)
