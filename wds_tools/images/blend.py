"""`Blend` and `CopyPaste`: two results of a view, one shown through the other, or parts of one pasted on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images.framed import Floats, Ints, Letterbox, RandomAffine, check_number
from wds_tools.images.jitter import LargeScaleJitter, ZoomOut
from wds_tools.images.outlines import filled, shown_outlines
from wds_tools.images.views import Frame, Pasted, Regions, tiles_of

_Framed = Letterbox | RandomAffine | LargeScaleJitter | ZoomOut
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class _TwoResults:
    """Base of views that show two results of a view in one; the second one shows partners."""

    view: _Framed
    p: float

    def __post_init__(self) -> None:
        if not isinstance(self.view, _Framed):
            raise OptionError(
                f"{type(self).__name__}({self.view!r}); allowed are Letterbox, RandomAffine, Mosaic, LargeScaleJitter "
                "and ZoomOut"
            )
        check_number("p", self.p, 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return self.view.shape

    @property
    def tiles(self) -> int:
        """Number of samples that both results show."""
        return 2 * tiles_of(self.view)

    @property
    def least(self) -> tuple[int, int]:
        """Smallest allowed height and width of an image."""
        return self.view.least

    def _both(self, width: Ints, height: Ints, u: Floats) -> tuple[Regions, Frame, NDArray[np.bool_], Floats]:
        """Return the regions of both results, their frame, which results are alone, and the further random numbers."""
        own = 2 * self.view.draws
        regions = self.view.regions(width, height, u[:, :own].reshape(-1, self.view.draws))
        assert regions.frame is not None
        return regions, regions.frame, u[:, own] >= self.p, u[:, own + 1 :]


def _without(regions: Regions, hidden: NDArray[np.bool_], **frame: Any) -> Regions:
    """Return regions of which some show nothing, and whose frame has further attributes."""
    old = regions.frame
    assert old is not None
    far = max(old.size) + (0 if old.canvas is None else np.abs(old.canvas).max(initial=0))
    return replace(
        regions,
        corner=np.where(hidden[:, None], -far, regions.corner),
        size=np.where(hidden[:, None], 0, regions.size),
        frame=replace(old, offset=np.where(hidden[:, None], 0, old.offset), **frame),
    )


def _hidden(alone: NDArray[np.bool_], tiles: int) -> NDArray[np.bool_]:
    """Return which regions belong to the second result of one that is alone."""
    return np.repeat(np.stack([np.zeros_like(alone), alone], axis=1).ravel(), tiles)


@dataclass(frozen=True)
class Blend(_TwoResults):
    """Two results of a view, blended with the objects of both: MixUp for detection.

    The second result shows partners, like the other tiles of a `Mosaic`. The weight of the first result is drawn from
    Beta(alpha, alpha).

    Attributes:
        view: A `Letterbox`, `RandomAffine`, `Mosaic`, `LargeScaleJitter` or `ZoomOut`.
        p: Probability of a blend. Otherwise there is only the first result.
        alpha: Whole number from 1 to 64. The larger it is, the closer the weight is to one half.

    Raises:
        OptionError: An attribute is invalid.

    >>> Blend(Letterbox(640)).shape, Blend(Letterbox(640)).tiles
    ((640, 640), 2)
    """

    p: float = 0.15
    alpha: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | np.integer) or not 1 <= self.alpha <= 64:
            raise OptionError(f"Blend(alpha={self.alpha!r}); allowed are whole numbers from 1 to 64")

    @property
    def draws(self) -> int:
        """Number of random numbers per result: those of both views, one for ``p``, and those of the share."""
        return 2 * self.view.draws + 2 * self.alpha

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each sample in its result, both results one after the other.

        Args:
            width: int64 [tiles * n], of the samples of each pair of results, one pair after the other.
            height: int64 [tiles * n].
            u: float64 [n, draws].
        """
        regions, frame, alone, draws = self._both(width, height, u)
        # Of 2 k - 1 random numbers, the one in the middle has the distribution Beta(k, k).
        shares = np.where(alone, 1.0, np.median(draws, axis=1))
        return _without(regions, _hidden(alone, frame.tiles), shares=shares)


@dataclass(frozen=True)
class CopyPaste(_TwoResults):
    """Objects of a second result of a view, cut out along their outlines and pasted on the first result.

    The second result shows partners, like the other tiles of a `Mosaic`. Pixels outside the outlines come from the
    first result. Boxes of partly covered objects become smaller, and the rules of `Boxes` drop those of which
    too little is left. `ObjectMasks` lose the covered pixels; `Polygons` keep the whole outline.

    Attributes:
        view: A `Letterbox`, `RandomAffine`, `Mosaic`, `LargeScaleJitter` or `ZoomOut`.
        polygons: Name of the `Polygons` in the batch that belong to the image, one entry for each box. None pastes a
            rectangle with everything in it, as CutMix does: its area is uniformly distributed.
        p: Probability that objects are pasted.
        share: If so, the probability that an object of the second result is pasted. Only objects with an outline are.

    Raises:
        OptionError: An attribute is invalid.

    >>> CopyPaste(Letterbox(640)).shape, CopyPaste(Letterbox(640), polygons=None).tiles
    ((640, 640), 2)
    """

    polygons: str | None = "polygons"
    p: float = 0.5
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("share", self.share, 1)
        if self.polygons is not None and (not isinstance(self.polygons, str) or not self.polygons):
            raise OptionError(f"polygons={self.polygons!r}; allowed are the name of a wds_tools.Polygons, and None")

    @property
    def by(self) -> tuple[str, str] | None:
        """Kind and name of the field by which the regions are chosen; None for rectangles."""
        return None if self.polygons is None else ("Polygons", self.polygons)

    @property
    def draws(self) -> int:
        """Number of random numbers per result: those of both views, one for ``p``, and three for what is pasted."""
        return 2 * self.view.draws + 4

    def regions(
        self, width: Ints, height: Ints, u: Floats, polygons: Sequence[Sequence[Sequence[Floats]]] = ()
    ) -> Regions:
        """Return the place of each sample in its result, both results one after the other.

        Args:
            width: int64 [tiles * n], of the samples of each pair of results, one pair after the other.
            height: int64 [tiles * n].
            u: float64 [n, draws].
            polygons: For each sample and object its outlines, float64 [points, 2], in pixels of the sample.
        """
        regions, frame, alone, numbers = self._both(width, height, u)
        if self.polygons is None:
            rectangles = [
                None if is_alone else self._rectangle(draw) for is_alone, draw in zip(alone, numbers, strict=True)
            ]
            return _without(regions, _hidden(alone, frame.tiles), shares=alone.astype(float), pasted=Pasted(rectangles))
        shown = [shown_outlines([*map(list, objects)], regions, i) for i, objects in enumerate(polygons)]
        chosen: list[NDArray[np.bool_] | None] = []
        masks: list[NDArray[np.bool_] | None] = []
        for pair, (is_alone, draws) in enumerate(zip(alone, numbers, strict=True)):
            first = (2 * pair + 1) * frame.tiles
            of_second = shown[first : first + frame.tiles]
            picked = self._picked(of_second, 0 if is_alone else self.share, draws[0])
            pairs = (pair for of_sample in zip(of_second, picked, strict=True) for pair in zip(*of_sample, strict=True))
            parts = [part for outlines, is_picked in pairs if is_picked for part in outlines]
            chosen += [*[None] * frame.tiles, *picked]
            masks.append(filled(parts, *self.shape) if parts else None)
        hidden = np.array([which is not None and not which.any() for which in chosen])
        shares = np.array([float(mask is None) for mask in masks])
        return _without(regions, hidden, shares=shares, pasted=Pasted(masks, shown, chosen))

    def _picked(
        self, objects: Sequence[Sequence[Sequence[Floats]]], share: float, draw: float
    ) -> list[NDArray[np.bool_]]:
        """Return which objects of each sample are pasted: about a share of those with an outline of 3 points or more.

        Multiples of the golden ratio are spread evenly, so one random number suffices for any number of objects.
        """
        spread = (draw + _GOLDEN * np.arange(sum(map(len, objects)))) % 1
        are_outlined = [
            np.array([any(len(outline) > 2 for outline in outlines) for outlines in of_sample], np.bool_)
            for of_sample in objects
        ]
        stops = np.cumsum([len(of_sample) for of_sample in objects])[:-1]
        return [are & (part < share) for are, part in zip(are_outlined, np.split(spread, stops), strict=True)]

    def _rectangle(self, u: Floats) -> NDArray[np.bool_]:
        """Return a rectangle at a random place, cut off at the edges of the result."""
        height, width = self.shape
        sides = np.array([height, width]) * np.sqrt(u[0])
        middle = u[1:3] * [height, width]
        (top, left), (bottom, right) = (np.round(middle + sign * sides / 2).astype(np.int64) for sign in (-1, 1))
        mask = np.zeros((height, width), np.bool_)
        mask[max(top, 0) : bottom, max(left, 0) : right] = True
        return mask
