"""`Polygons`: outlines of objects, moved and mirrored like their image, and clipped to what a view shows."""

from __future__ import annotations

import contextlib
from dataclasses import KW_ONLY, dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from wds_tools.images.outlines import shown_outlines, split_outlines
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, Floats, chained, image_field, kept_entries


@dataclass(frozen=True)
class Polygons(AtPath):
    """Outlines of objects: for each sample a list of objects, each a list of float32 tensors [points, 2], x and y.

    With ``like``, outlines are moved and mirrored like the image, and clipped at its edges. A part of which nothing is
    left is dropped, but each object keeps its entry, so that the entries correspond to other fields. With the name of
    `Boxes`, the entries of dropped boxes are dropped too. ``sample_transform=`` does not move them.

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

    def in_images(self, part: Part, field: str) -> list[list[list[Floats]]]:
        """Return the outlines of each object of each sample: float64 [points, 2] each."""
        return [stored_outlines(self, part, i, value) for i, value in enumerate(self.values(part))]

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the outlines of each object of each sample; by view if there is a list."""
        sources = column.sources(part)
        stored = self.in_images(sources, image_field(column))
        views = []
        for view, regions in enumerate(column.regions(part)):
            shown = [shown_outlines(objects, regions, i) for i, objects in enumerate(stored)]
            kept = kept_entries(self, part, column, view, shown)
            outlines = [[[_tensor(outline) for outline in outlines] for outlines in objects] for objects in kept]
            views.append(column.joined(part, outlines, chained))
        return column.by_sample(views)


def stored_outlines(spec: AtPath, part: Part, i: int, value: Any) -> list[list[Floats]]:
    """Return the outlines of each object of sample ``i``: float64 [points, 2] each."""
    if not isinstance(value, list) or not all(isinstance(outlines, list) for outlines in value):
        raise spec.invalid(part, i, f"{str(value)[:80]!r}", "a list of outlines for each object")
    flat = [*chain.from_iterable(value)]
    if all(isinstance(outline, list) for outline in flat):
        with contextlib.suppress(TypeError, ValueError):  # found below, with the sample
            numbers = np.array([*chain.from_iterable(flat)], np.float64)
            counts = np.array([len(outline) for outline in flat], np.int64)
            if numbers.ndim == 1 and not (counts % 2).any() and np.isfinite(numbers).all():
                remaining = iter(split_outlines(numbers.reshape(-1, 2), np.cumsum(counts // 2)))
                return [[*islice(remaining, len(outlines))] for outlines in value]
    objects = []
    for outlines in value:
        arrays = [spec.as_array(part, i, outline) for outline in outlines]
        for array in arrays:
            if array.ndim != 1 or array.size % 2 or not np.isfinite(array).all():
                raise spec.invalid(part, i, f"an outline of shape {array.shape}", "finite numbers x, y, x, y, ...")
        objects.append([array.reshape(-1, 2) for array in arrays])
    return objects


def _tensor(points: Floats) -> torch.Tensor:
    return torch.from_numpy(points.astype(np.float32))
