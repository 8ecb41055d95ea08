"""`Blend`: two results of a view, one shown through the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.images.framed import Floats, Ints, Letterbox, RandomAffine, check_number
from wds_tools.images.jitter import LargeScaleJitter, ZoomOut
from wds_tools.images.views import Regions, tiles_of

_Framed = Letterbox | RandomAffine | LargeScaleJitter | ZoomOut


@dataclass(frozen=True)
class Blend:
    """Two results of a view, blended with the objects of both: MixUp for detection.

    The second one shows partners, like the other tiles of a `Mosaic`. The share of the first one is drawn from
    Beta(alpha, alpha).

    Attributes:
        view: A `Letterbox`, `RandomAffine`, `Mosaic`, `LargeScaleJitter` or `ZoomOut`.
        p: Probability of two results. Otherwise there is only the first one.
        alpha: Whole number from 1 to 64; the share is seldom far from one half if it is large.

    Raises:
        OptionError: An attribute is invalid.

    >>> Blend(Letterbox(640)).shape, Blend(Letterbox(640)).tiles
    ((640, 640), 2)
    """

    view: _Framed
    p: float = 0.15
    alpha: int = 32

    def __post_init__(self) -> None:
        if not isinstance(self.view, _Framed):
            raise OptionError(
                f"Blend({self.view!r}); allowed are Letterbox, RandomAffine, Mosaic, LargeScaleJitter and ZoomOut"
            )
        check_number("p", self.p, 1)
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | np.integer) or not 1 <= self.alpha <= 64:
            raise OptionError(f"Blend(alpha={self.alpha!r}); allowed are whole numbers from 1 to 64")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return self.view.shape

    @property
    def tiles(self) -> int:
        """Number of samples that both results show."""
        return 2 * tiles_of(self.view)

    @property
    def draws(self) -> int:
        """Number of random numbers per result: those of both views, one for ``p``, and those of the share."""
        return 2 * self.view.draws + 2 * self.alpha

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image."""
        return self.view.least

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each sample in its result, both results one after the other.

        Args:
            width: int64 [tiles * n], of the samples of each pair of results, one pair after the other.
            height: int64 [tiles * n].
            u: float64 [n, draws].
        """
        own = 2 * self.view.draws
        regions = self.view.regions(width, height, u[:, :own].reshape(-1, self.view.draws))
        frame = regions.frame
        assert frame is not None
        # Of 2 k - 1 random numbers, the one in the middle has the distribution Beta(k, k).
        shares = np.median(u[:, own + 1 :], axis=1)
        alone = u[:, own] >= self.p
        hidden = np.repeat(np.stack([np.zeros_like(alone), alone], axis=1).ravel(), frame.tiles)
        far = max(frame.size) + (0 if frame.canvas is None else np.abs(frame.canvas).max(initial=0))
        return replace(
            regions,
            corner=np.where(hidden[:, None], -far, regions.corner),
            size=np.where(hidden[:, None], 0, regions.size),
            frame=replace(frame, place=np.where(hidden[:, None], 0, frame.place), shares=np.where(alone, 1.0, shares)),
        )
