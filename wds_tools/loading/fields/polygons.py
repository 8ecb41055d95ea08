"""`Polygons`: outlines of objects, moved and mirrored like their image, and clipped to what a view shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch

from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, Floats, chained, image_edges, kept_entries, place_points


@dataclass(frozen=True)
class Polygons(AtPath):
    """Outlines of objects: for each sample a list of objects, each a list of float32 tensors [points, 2], x and y.

    With ``like``, outlines are moved and mirrored like the image, and cut off at its edges. A part of which nothing is
    left is dropped; an object keeps its entry, so that entries correspond to those of other fields. With the name of
    `Boxes`, the entries of boxes that are dropped are dropped too. ``sample_transform=`` does not move them.

    Attributes:
        field: Stored field: JSON.
        path: Names that lead to the outlines in JSON, see `Boxes`. Each object has a list of outlines, and an outline
            is a list of numbers x, y, x, y, ..., as in the JSON of annotations (docs/annotations.md). With the default,
            objects without an outline, such as those with run lengths, have an empty list.
        like: Name of the `Image` whose view is used, or of the `Boxes` whose entries remain. None (the default) keeps
            all stored positions.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = "objects.polygons"
    like: str | None = None

    takes = ("region", "entries")
    stacks = False

    def __post_init__(self) -> None:
        self._check("'json'")

    @property
    def is_optional(self) -> bool:
        """Whether objects without the last name of the path have an empty list there."""
        return self.path == type(self).path  # objects may have run lengths instead, or a box only

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the outlines of each object of each sample; by view if there is a list."""
        sources = column.sources(part)
        stored = [self._stored(sources, i, value) for i, value in enumerate(self.values(sources))]
        views = []
        for number, regions in enumerate(column.regions(part)):
            shown = [_shown(objects, regions, i) for i, objects in enumerate(stored)] if regions else stored
            kept = kept_entries(self, part, column, number, shown)
            outlines = [[[_tensor(one) for one in outlines] for outlines in objects] for objects in kept]
            views.append(column.joined(part, outlines, chained))
        return column.by_sample(views)

    def _stored(self, part: Part, i: int, value: Any) -> list[list[Floats]]:
        """Return the outlines of each object of sample ``i``: float64 [points, 2] each."""
        if not isinstance(value, list) or not all(isinstance(outlines, list) for outlines in value):
            raise self.invalid(part, i, f"{str(value)[:80]!r}", "a list of outlines for each object")
        objects = []
        for outlines in value:
            arrays = [self.as_array(part, i, outline) for outline in outlines]
            for array in arrays:
                if array.ndim != 1 or array.size % 2 or not np.isfinite(array).all():
                    raise self.invalid(part, i, f"an outline of shape {array.shape}", "finite numbers x, y, x, y, ...")
            objects.append([array.reshape(-1, 2) for array in arrays])
        return objects


def _tensor(points: Floats) -> torch.Tensor:
    return torch.from_numpy(points.astype(np.float32))


def _shown(objects: list[list[Floats]], regions: Regions, i: int) -> list[list[Floats]]:
    """Return the outlines of an image as outlines of what a view shows of it."""
    height, width = regions.output_size[i].tolist()
    frame = regions.frame
    limits = None if frame is None else image_edges(regions, i)

    def of(outline: Floats) -> Floats:
        moved = place_points(outline, regions, i, mirror_at=0)
        if frame is not None and limits is not None:
            moved = clipped_outline(moved, *limits)
            if frame.warp is not None and len(moved):
                moved = frame.warp.move(moved, i // frame.tiles, 0)
        return clipped_outline(moved, (0, 0), (width, height))

    return [[cut for cut in map(of, outlines) if len(cut)] for outlines in objects]


def clipped_outline(points: Floats, start: Sequence[float] | Floats, stop: Sequence[float] | Floats) -> Floats:
    """Return an outline cut off at the edges of a rectangle from x, y to x, y, one edge after the other: [k, 2].

    What is left of an outline that leaves and enters again is joined along the edge, as by Sutherland and Hodgman.
    """
    for axis, limit, sign in ((0, start[0], 1), (0, stop[0], -1), (1, start[1], 1), (1, stop[1], -1)):
        if not len(points):
            break
        depth = sign * (points[:, axis] - limit)  # inside: 0 and more
        if (depth >= 0).all():
            continue
        after, next_depth = np.roll(points, -1, axis=0), np.roll(depth, -1)
        crosses = (depth >= 0) != (next_depth >= 0)
        share = np.divide(depth, depth - next_depth, out=np.zeros_like(depth), where=crosses)
        crossing = points + share[:, None] * (after - points)
        crossing[:, axis] = limit
        both = np.stack([points, crossing], axis=1)  # each point, and where the line to the next one crosses
        points = both[np.stack([depth >= 0, crosses], axis=1)]
    return points
