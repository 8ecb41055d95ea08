"""`Mosaic`: an image made of several samples, each drawn once, straight into its place.

The documented steps are those of YOLO: each image is resized to fit into the size of the result, four of them meet at a
random point of a canvas of twice that size, and a random affine map shows a part of the canvas. Here the steps are one
factor and one shift for each tile, so nothing is drawn that is not visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.images.framed import GREY, Floats, Ints, are_flipped, check_fill, check_flips, place
from wds_tools.images.views import Regions, height_and_width

_CORNERS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
"""Of four tiles, whether each is below and to the right of the point at which they meet."""


def check_zoom(scale: Any, translate: Any) -> None:
    """Check the range of a zoom and of a shift.

    Raises:
        OptionError: One of them is invalid.
    """
    if not isinstance(scale, tuple | list) or len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 100:
        raise OptionError(f"scale={scale!r}; allowed are 0 < smallest <= largest <= 100: factors of the size")
    if isinstance(translate, bool) or not isinstance(translate, int | float | np.number) or not 0 <= translate <= 1:
        raise OptionError(f"translate={translate!r}; allowed are 0 to 1: a fraction of the size, in both directions")


@dataclass(frozen=True)
class Mosaic:
    """Four samples that meet at a random point, zoomed and shifted at random.

    The first tile is the sample itself, each once per epoch. The others are its partners: samples shortly before it in
    the shuffled order, chosen by the seed, the epoch and the position.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        scale: Smallest and largest factor by which the mosaic is zoomed. With 1, each image is as large as in a
            `Letterbox` of this size.
        translate: Largest shift, as a fraction of the size, in both directions.
        flip: Probability of mirroring the mosaic left to right; True means 0.5.
        flip_vertical: Probability of mirroring it top to bottom; True means 0.5.
        fill: Value of all channels where no image is, 0 to 255; 114 by default, as for YOLO.
        p: Probability of a mosaic. Otherwise the sample is alone, at the centre, zoomed and shifted.

    Raises:
        OptionError: An attribute is invalid.

    >>> Mosaic(640).shape, Mosaic(640).tiles
    ((640, 640), 4)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.5, 1.5)
    translate: float = 0.1
    flip: bool | float = 0.5
    flip_vertical: bool | float = False
    fill: int = GREY
    p: float = 1.0

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_zoom(self.scale, self.translate)
        check_flips(self.flip, self.flip_vertical)
        check_fill(self.fill)
        if isinstance(self.p, bool) or not isinstance(self.p, int | float | np.number) or not 0 <= self.p <= 1:
            raise OptionError(f"p={self.p!r}; allowed are 0 to 1: the probability of a mosaic")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return height_and_width(self.size)

    @property
    def tiles(self) -> int:
        """Number of samples that a result shows: 4."""
        return 4

    @property
    def draws(self) -> int:
        """Number of random numbers per result: centre, zoom, shift, flips, and whether it is a mosaic."""
        return 8

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image: (1, 1)."""
        return (1, 1)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each tile.

        Args:
            width: int64 [4 n], of the samples of each result, one result after the other.
            height: int64 [4 n].
            u: float64 [n, draws].
        """
        sides = np.stack([height, width], axis=1)  # [4 n, height and width]
        frame = np.array(self.shape, np.float64)
        # As YOLO resizes an image: rounded up.
        fitted = np.minimum(np.ceil(sides * (frame / sides).min(axis=1, keepdims=True)), frame).reshape(-1, 4, 2)
        centre = np.floor((0.5 + u[:, None, :2]) * frame)  # [n, 1, 2], of the canvas
        offset = np.where(_CORNERS, centre, centre - fitted)
        canvas = np.tile([0.0, 0.0, *(2 * frame)], (len(u), 1))
        alone = (u[:, 7] >= self.p)[:, None]
        middle = np.round((frame - fitted[:, 0]) / 2 - 0.1) + frame / 2  # so that the middle of the canvas is the same
        offset[:, 0] = np.where(alone, middle, offset[:, 0])
        offset[:, 1:] = np.where(alone[:, None], 2 * frame + 1, offset[:, 1:])  # beyond the canvas
        canvas[alone[:, 0]] = np.concatenate([frame / 2, frame * 1.5])
        zoom = self.scale[0] + u[:, 2, None] * (self.scale[1] - self.scale[0])  # [n, 1]
        shift = (0.5 + self.translate * (2 * u[:, 3:5] - 1)) * frame - zoom * frame  # [n, 2]
        edges = (zoom[:, :, None] * canvas.reshape(-1, 2, 2) + shift[:, None]).reshape(
            -1, 4
        )  # top, left, bottom, right
        moved = zoom[:, :, None] * offset + shift[:, None]
        flips = are_flipped(u[:, 5:7], self.flip, self.flip_vertical)
        return place(
            sides,
            (zoom[:, :, None] * fitted).reshape(-1, 2),
            moved.reshape(-1, 2),
            self.shape,
            fill=int(self.fill),
            flips=np.repeat(flips, 4, axis=0),
            tiles=4,
            window=np.repeat(edges, 4, axis=0),
            canvas=np.repeat(edges[:, [1, 0, 3, 2]], 4, axis=0),
        )
