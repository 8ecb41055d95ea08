"""`Mosaic`: an image made of several samples, each drawn once, straight into its place.

The documented steps are those of YOLO: each image is resized to fit into the size of the result, four of them meet at a
random point of a canvas of twice that size, and a random affine map shows a part of the canvas. Here the steps are one
factor and one shift for each tile, so nothing is drawn that is not visible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wds_tools.images.framed import Floats, Ints, RandomAffine, centred, check_number
from wds_tools.images.views import Regions

_CORNERS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
"""Of four tiles, whether each is below and to the right of the point at which they meet."""


@dataclass(frozen=True)
class Mosaic(RandomAffine):
    """Four samples that meet at a random point; zoomed, shifted and optionally rotated as by `RandomAffine`.

    The first tile is the sample itself, each once per epoch. The others are its partners: samples shortly before it in
    the shuffled order, chosen by the seed, the epoch and the position.

    Attributes:
        p: Probability of a mosaic. Otherwise the sample is alone, as in a `RandomAffine`.

    Raises:
        OptionError: An attribute is invalid.

    >>> Mosaic(640).shape, Mosaic(640).tiles
    ((640, 640), 4)
    """

    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("p", self.p, 1)

    @property
    def tiles(self) -> int:
        """Number of samples that a result shows: 4."""
        return 4

    @property
    def draws(self) -> int:
        """Number of random numbers per result: those of `RandomAffine`, two for the centre, and one for ``p``."""
        return super().draws + 3

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each tile.

        Args:
            width: int64 [4 n], of the samples of each result, one result after the other.
            height: int64 [4 n].
            u: float64 [n, draws].
        """
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.float64)
        fitted = self.fitted(sides).reshape(-1, 4, 2)
        centre = np.floor((0.5 + u[:, None, 10:12]) * frame)  # [n, 1, 2], of the canvas
        offset = np.where(_CORNERS, centre, centre - fitted)
        canvas = np.tile([0.0, 0.0, *(2 * frame)], (len(u), 1))
        alone = u[:, 12] >= self.p  # on a canvas of the size of the result, and the other tiles beyond it
        offset[alone, 0], offset[alone, 1:] = centred(frame, fitted[alone, 0]), 2 * frame
        canvas[alone] = [0.0, 0.0, *frame]
        return self.shown(sides, fitted.reshape(-1, 2), offset.reshape(-1, 2), canvas, u, tiles=4)
