"""`Mosaic`: an image made of several samples, each drawn once, straight into its place.

The documented steps are those of YOLO: each image is resized to fit into the size of the result, the tiles are placed
on a canvas of twice that size, and a random affine map shows a part of the canvas. Here the steps are one factor and
one shift for each tile, so nothing is drawn that is not visible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.images.framed import Floats, Ints, RandomAffine, centred, check_number, fitted
from wds_tools.images.views import Regions

_CORNERS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
"""Of four tiles, whether each is below and to the right of the point at which they meet."""


@dataclass(frozen=True)
class Mosaic(RandomAffine):
    """Several samples side by side; zoomed, shifted and optionally rotated as by `RandomAffine`.

    The first tile is the sample itself; each sample is the first tile once per epoch. The others are its partners:
    samples shortly before it in the shuffled order, chosen by the seed, the epoch and the position.

    Attributes:
        p: Probability of a mosaic. Otherwise the sample is alone, as in a `RandomAffine`.
        tiles: 4 (the default): four samples meet at a random point. Or 9: the first sample is in the middle, and the
            others are around it, clockwise from the top.

    Raises:
        OptionError: An attribute is invalid.

    >>> Mosaic(640).shape, Mosaic(640).tiles
    ((640, 640), 4)
    """

    p: float = 1.0
    tiles: int = 4

    draws = RandomAffine.draws + 3  # two for the centre, and one for p

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("p", self.p, 1)
        if self.tiles not in (4, 9):
            raise OptionError(f"Mosaic(tiles={self.tiles!r}); allowed are 4 and 9")

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each tile.

        Args:
            width: int64 [tiles * n], of the samples of each result, one result after the other.
            height: int64 [tiles * n].
            u: float64 [n, draws].
        """
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.float64)
        resized = fitted(sides, frame).reshape(-1, self.tiles, 2)
        if self.tiles == 4:
            centre = np.floor((0.5 + u[:, None, 10:12]) * frame)  # [n, 1, 2], of the canvas
            offset = np.where(_CORNERS, centre, centre - resized)
        else:
            offset = frame // 2 + _around_the_first(resized)
        canvas = np.tile([0.0, 0.0, *(2 * frame)], (len(u), 1))
        alone = u[:, 12] >= self.p  # on a canvas of the size of the result, and the other tiles beyond it
        offset[alone, 0], offset[alone, 1:] = centred(frame, resized[alone, 0]), 2 * frame
        canvas[alone] = [0.0, 0.0, *frame]
        return self.shown(sides, resized.reshape(-1, 2), offset.reshape(-1, 2), canvas, u, tiles=self.tiles)


def _around_the_first(resized: Floats) -> Floats:
    """Return top and left of nine tiles, where the first one begins at 0: float64 [n, 9, 2].

    Clockwise, two tiles each are above the first one, to the right of it, below it, and to the left of it, and each of
    these pairs is in a row or a column of its own. So no tile covers another one.
    """
    height, width = resized[..., 0].T, resized[..., 1].T
    zero, right, bottom = np.zeros(len(resized)), width[0], height[0]
    bottom_of_8 = bottom - height[7]
    top = [zero, -height[1], -height[2], zero, height[3], bottom, bottom, bottom_of_8, bottom_of_8 - height[8]]
    left = [zero, zero, width[1], right, right, right - width[5], right - width[5] - width[6], -width[7], -width[8]]
    return np.stack([top, left], axis=-1).swapaxes(0, 1)
