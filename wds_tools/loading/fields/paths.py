"""What is at a path in a stored field: what boxes, points, text and other values from JSON have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import MissingFieldError, OptionError, SampleError
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column, FieldSpec
from wds_tools.loading.fields.collate import number_array
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.user_functions import call_for_sample, seeded
from wds_tools.order.keyed_random import key_of
from wds_tools.wording import counted

Floats = NDArray[np.float64]


class AtPath(FieldSpec):
    """Base of kinds whose values are at a path in a stored field.

    Attributes:
        path: Names that lead to the value in JSON, separated by dots; empty for the whole value.
    """

    path: str

    def _check(self, examples: str) -> None:
        super()._check(examples)
        if not isinstance(self.path, str):
            name = f"wds_tools.{type(self).__name__}"
            raise OptionError(f"{name}(path={self.path!r}); allowed is text such as 'objects.bbox'")

    @property
    def is_optional(self) -> bool:
        """Whether objects without the last name of the path have an empty list there."""
        return False

    def values(self, part: Part) -> list[Any]:
        """Return what is at the path in each sample.

        Raises:
            MissingFieldError: A sample has nothing there.
        """
        values = list(part.values(self.field))
        if not self.path:
            return values
        for i, value in enumerate(values):
            try:
                values[i] = _at(value, self.path.split("."), optional=self.is_optional)
            except _MissingError as error:
                shard, key = part.rows.shard_and_key(i)
                raise MissingFieldError(
                    f"field {self.field!r} has no {self.path!r}: {error}", shard=shard, key=key
                ) from error
        return values

    def results(
        self, part: Part, column: Column, option: str, function: Callable[[Any], Any], values: list[Any]
    ) -> list[Any]:
        """Return the results of the user's function of the value of each sample, with seeded random numbers."""

        def call(value: Any, position: int) -> Any:
            with seeded(key_of(option, part.seed, part.epoch, position, column.name)):
                return as_tensor(function(value))

        with stages.TRANSFORM:
            return [
                call_for_sample(f"{option}=", part.rows, i, partial(call, value, position))
                for i, (value, position) in enumerate(zip(values, part.positions.tolist(), strict=True))
            ]

    def as_array(self, part: Part, i: int, value: Any) -> Floats:
        """Return a value of sample ``i`` as an array.

        Raises:
            SampleError: It is not made of numbers.
        """
        try:
            return np.array(value, np.float64)
        except (TypeError, ValueError) as error:
            raise self.invalid(part, i, f"{str(value)[:80]!r}", "numbers in lists of equal length") from error

    def invalid(self, part: Part, i: int, found: str, allowed: str) -> SampleError:
        """Return the error for a value of sample ``i``."""
        shard, key = part.rows.shard_and_key(i)
        where = f" at path {self.path!r}" if self.path else ""
        return SampleError(f"field {self.field!r}{where} has {found}; allowed are {allowed}", shard=shard, key=key)


class _MissingError(LookupError):
    """A name of a path was not found. The message states what is there instead."""


def _at(value: Any, names: list[str], start: int = 0, *, optional: bool = False) -> Any:
    """Follow names into dictionaries; in a list, a number is an index, and a name is looked up in each element.

    Elements of a list that lack the last name have an empty list there if it is ``optional``.
    """
    for number, name in enumerate(names[start:], start):
        if isinstance(value, list) and not name.isdecimal():
            if number == len(names) - 1 and all(type(element) is dict for element in value):
                if optional:
                    return [element.get(name, []) for element in value]
                if all(name in element for element in value):
                    return [element[name] for element in value]
            return [_at(element, names, number, optional=optional) for element in value]
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError) as error:
            there = counted(len(value), "value") if isinstance(value, list) else "no names"
            if isinstance(value, dict):
                there = f"the names {', '.join(map(repr, value))[:500]}"
            raise _MissingError(f"{repr('.'.join(names[:number])) if number else 'it'} has {there}") from error
    return value


def move_points(points: Floats, regions: Regions, rows: int | NDArray[np.int64], *, mirror_at: int = -1) -> Floats:
    """Return points of images as points of what a view shows of them; the arguments are those of `place_points`."""
    placed, frame = place_points(points, regions, rows, mirror_at=mirror_at), regions.frame
    return placed if frame is None or frame.warp is None else frame.warp.move(placed, rows // frame.tiles, mirror_at)


def place_points(points: Floats, regions: Regions, rows: int | NDArray[np.int64], *, mirror_at: int) -> Floats:
    """Return points of images as points of their frames, before these are warped.

    Args:
        points: float64 [..., 2], x and y in pixels of the image; the first dimension is k if ``rows`` is an array.
        regions: Regions of a batch.
        rows: Index of the image in the batch: one, or int64 [k].
        mirror_at: If the region is mirrored, x becomes its width plus this number, minus x. It is -1 for positions of
            pixels, such as torchvision's key points, and 0 for edges between pixels, such as boxes.

    Returns:
        float64 [..., 2], in pixels of the frame.
    """

    def of_rows(values: NDArray[Any]) -> NDArray[Any]:
        """Return an attribute of the regions, [..., 1 or 2], for the points of each row."""
        return values[rows] if isinstance(rows, int) else values[rows].reshape(-1, *[1] * (points.ndim - 2), 2)

    frame, scale = regions.frame, regions.resize[:, ::-1] / regions.box[:, 2:]
    moved: Floats = (points - of_rows(regions.box[:, :2])) * of_rows(scale) - of_rows(regions.corner[:, ::-1])
    flips = regions.flips
    if flips.any():
        moved = np.where(of_rows(flips), of_rows(regions.size[:, ::-1]) + mirror_at - moved, moved)
    return moved if frame is None else moved + of_rows(frame.place[:, ::-1])


def image_edges(regions: Regions, rows: int | NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return where images are in their frames, before these are warped, cut off where objects are.

    Returns:
        Left and top, and right and bottom: float64 [2] each, or [k, 2] if ``rows`` is an array.
    """
    index = np.atleast_1d(rows)
    box = regions.box[index].astype(np.float64).reshape(-1, 2, 2)
    box[:, 1] += box[:, 0]
    edges = np.sort(place_points(box, regions, index, mirror_at=0), axis=1)
    if regions.frame is not None and regions.frame.canvas is not None:
        start, stop = np.split(regions.frame.canvas[index, None], 2, axis=2)
        edges = np.clip(edges, start, stop)
    return (edges[0, 0], edges[0, 1]) if isinstance(rows, int) else (edges[:, 0], edges[:, 1])


def kept_entries(spec: AtPath, part: Part, column: Column, number: int, values: Sequence[Any]) -> list[list[Any]]:
    """Return the entries of lists that remain where boxes are dropped; all of them if ``like`` does not give entries.

    Args:
        spec: What the values are.
        part: The samples.
        column: The column of the values.
        number: Index of the view.
        values: The value of each of the sources of the part.

    Raises:
        SampleError: A value does not have one entry for each box.
    """
    boxes, found = column.has_entries_of, []
    if boxes is None:
        return list(values)
    for i, (value, kept) in enumerate(zip(values, boxes.spec.kept(part, boxes)[number], strict=True)):
        is_list = isinstance(value, list | np.ndarray | torch.Tensor)
        if not is_list or len(value) != len(kept):
            has = f"{len(value)} entries" if is_list else type(value).__name__
            allowed = f"lists with one entry for each of the {len(kept)} boxes"
            raise spec.invalid(column.sources(part), i, has, allowed)
        found.append([value[j] for j in np.flatnonzero(kept).tolist()])
    return found


def chained(lists: list[list[Any]]) -> list[Any]:
    """Return the entries of all lists."""
    return list(chain.from_iterable(lists))


def as_tensor(value: Any) -> Any:
    """Return a list of numbers as a tensor, even inside a mapping, and any other value unchanged."""
    if isinstance(value, Mapping):
        return {key: as_tensor(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    try:
        array = number_array(value) if value else np.empty(0, np.int64)
    except ValueError:  # lists of different lengths
        return value
    return value if array is None else torch.from_numpy(array)
