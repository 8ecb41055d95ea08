"""Views that place the image in a frame, which may show less or more than the image: `Letterbox`.

An image is mapped to its frame by one factor and one shift per axis, however many steps a view is described by. So a
view decides where the edges of the image are in the frame, and `place` returns the pixels inside both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images.views import Frame, Regions, check_flip, height_and_width

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GREY = 114  # the usual value around an image in detection, that of YOLO


def check_fill(fill: Any) -> None:
    """Check the value around an image.

    Raises:
        OptionError: It is not a whole number from 0 to 255.
    """
    if not isinstance(fill, int | np.integer) or isinstance(fill, bool) or not 0 <= fill <= 255:
        raise OptionError(f"fill={fill!r}; allowed are whole numbers from 0 to 255")


def check_flips(flip: Any, flip_vertical: Any) -> None:
    """Check the probabilities of both flips.

    Raises:
        OptionError: One of them is neither a probability nor True or False.
    """
    check_flip(flip)
    try:
        check_flip(flip_vertical)
    except OptionError as error:
        raise OptionError(f"flip_vertical={flip_vertical!r}; allowed are True, False, or a probability") from error


def are_flipped(u: Floats, flip: bool | float, flip_vertical: bool | float) -> NDArray[np.bool_]:
    """Return whether results are mirrored left to right, and top to bottom: bool [n, 2].

    Args:
        u: float64 [n, 2], random numbers.
        flip: Probability; True means 0.5.
        flip_vertical: Probability; True means 0.5.
    """
    return u < [0.5 if one is True else float(one) for one in (flip, flip_vertical)]


def place(
    sides: Ints,
    resized: Ints | Floats,
    offset: Ints | Floats,
    size: tuple[int, int],
    *,
    fill: int,
    flips: NDArray[np.bool_],
    tiles: int = 1,
    window: Floats | None = None,
    canvas: Floats | None = None,
) -> Regions:
    """Return the regions of n images that are resized and placed in frames.

    A pixel of the frame shows the image if its centre is between the edges of the image.

    Args:
        sides: int64 [n, 2], height and width of each image.
        resized: [n, 2], height and width of the resized image.
        offset: [n, 2], top and left edge of the resized image in the frame.
        size: Height and width of the frame.
        fill: Value around the image.
        flips: bool [n, 2], whether the frame is mirrored at last, left to right and top to bottom.
        tiles: Images in a frame.
        window: float64 [n, 4], top, left, bottom and right of the part of the frame in which the image is shown; None
            for the whole frame.
        canvas: float64 [n, 4], see `Frame`, before the frame is mirrored.
    """
    frame = np.array(size, np.int64)
    start, stop = np.ceil(offset - 0.5), np.ceil(offset + resized - 0.5)
    low, high = np.zeros_like(start), np.broadcast_to(frame, start.shape)
    if window is not None:
        low, high = np.clip(np.ceil(window[:, :2] - 0.5), 0, frame), np.clip(np.ceil(window[:, 2:] - 0.5), 0, frame)
    start = np.clip(start, low, high).astype(np.int64)
    stop = np.clip(stop, start, np.maximum(high, start)).astype(np.int64)
    length, corner = stop - start, start - offset
    length[(length == 0).any(axis=1)] = 0
    flip_columns, flip_rows = flips.T
    mirrored = np.stack([flip_rows, flip_columns], axis=1)
    if canvas is not None:
        edges = canvas.reshape(-1, 2, 2)  # [n, start and stop, x and y]
        canvas = np.where(flips[:, None], frame[::-1] - edges[:, ::-1], edges).reshape(-1, 4)
    return Regions(
        box=np.concatenate([np.zeros_like(sides), sides[:, ::-1]], axis=1),
        resize=resized,
        corner=corner,
        size=length,
        flip=flip_columns,
        frame=Frame(size, np.where(mirrored, frame - start - length, start), fill, flip_rows, tiles, canvas),
    )


@dataclass(frozen=True)
class Letterbox:
    """The whole image, resized to fit into a rectangle without a change of its aspect ratio; the rest is filled.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        fill: Value of all channels around the image, 0 to 255; 114 by default, as for YOLO.
        center: Whether the image is at the centre. False places it at the top left.
        enlarge: Whether images that are smaller than the result are enlarged.
        flip: Probability of mirroring left to right; True means 0.5.
        flip_vertical: Probability of mirroring top to bottom; True means 0.5.

    Raises:
        OptionError: An attribute is invalid.

    >>> Letterbox(640).shape
    (640, 640)
    """

    size: int | tuple[int, int]
    fill: int = GREY
    center: bool = True
    enlarge: bool = True
    flip: bool | float = False
    flip_vertical: bool | float = False

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_fill(self.fill)
        check_flips(self.flip, self.flip_vertical)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return height_and_width(self.size)

    @property
    def draws(self) -> int:
        """Number of random numbers per image: one for each flip."""
        return 2

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image: (1, 1)."""
        return (1, 1)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.int64)
        ratio = (frame / sides).min(axis=1, keepdims=True)
        ratio = ratio if self.enlarge else np.minimum(ratio, 1)
        resized = np.clip(np.round(sides * ratio), 1, frame).astype(np.int64)
        # Half a pixel more is below and to the right.
        offset = np.round((frame - resized) / 2 - 0.1).astype(np.int64) * self.center
        flips = are_flipped(u, self.flip, self.flip_vertical)
        return place(sides, resized, offset, self.shape, fill=int(self.fill), flips=flips)
