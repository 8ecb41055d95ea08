"""What is at a path in a stored field: what boxes, points, text and other values from JSON have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import MissingFieldError, OptionError, SampleError
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
    def place(self) -> str:
        """The place of the values, as in `Manifest.field_classes`."""
        return f"{self.field}:{self.path}" if self.path else self.field

    @property
    def is_optional(self) -> bool:
        """Whether objects without the last name of the path have an empty list there."""
        return False

    def values(self, part: Part) -> list[Any]:
        """Return what is at the path in each sample."""
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
        """Return a value of sample ``i`` as an array."""
        try:
            return np.array(value, np.float64)
        except (TypeError, ValueError) as error:
            raise self.invalid(part, i, f"{str(value)[:80]!r}", "numbers in lists of equal length") from error

    def invalid(self, part: Part, i: int, actual: str, allowed: str) -> SampleError:
        """Return the error for a value of sample ``i``."""
        shard, key = part.rows.shard_and_key(i)
        where = f" at path {self.path!r}" if self.path else ""
        return SampleError(f"field {self.field!r}{where} has {actual}; allowed are {allowed}", shard=shard, key=key)


class _MissingError(LookupError):
    """A name of a path was not found. The message states what is there instead."""


def _at(value: Any, names: list[str], start: int = 0, *, optional: bool = False) -> Any:
    """Follow names into dictionaries; in a list, a number is an index, and a name is looked up in each element.

    Elements of a list that lack the last name have an empty list there if it is ``optional``.
    """
    for depth, name in enumerate(names[start:], start):
        if isinstance(value, list) and not name.isdecimal():
            if depth == len(names) - 1:
                with contextlib.suppress(AttributeError, KeyError, TypeError):  # found below, with what there is
                    return [element.get(name, []) for element in value] if optional else [*map(itemgetter(name), value)]
            return [_at(element, names, depth, optional=optional) for element in value]
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError) as error:
            there = counted(len(value), "value") if isinstance(value, list) else "no names"
            if isinstance(value, dict):
                there = f"the names {', '.join(map(repr, value))[:500]}"
            raise _MissingError(f"{repr('.'.join(names[:depth])) if depth else 'it'} has {there}") from error
    return value


def image_field(column: Column) -> str:
    """Return the stored field of the image of objects, which need not have a view; empty if there is none."""
    if column.geometry:
        return column.geometry.field
    source = column
    while source.like is not None:
        source = source.like
    return "" if source is column else source.spec.field


def kept_entries(spec: AtPath, part: Part, column: Column, view: int, values: Sequence[Any]) -> list[list[Any]]:
    """Return the entries of lists that remain where boxes are dropped; all if ``like`` does not give entries."""
    boxes, remaining = column.has_entries_of, []
    if boxes is None:
        return list(values)
    for i, (value, kept) in enumerate(zip(values, boxes.spec.kept(part, boxes)[view], strict=True)):
        is_list = isinstance(value, list | np.ndarray | torch.Tensor)
        if not is_list or len(value) != len(kept):
            has = f"{len(value)} entries" if is_list else type(value).__name__
            allowed = f"lists with one entry for each of the {len(kept)} boxes"
            raise spec.invalid(column.sources(part), i, has, allowed)
        remaining.append([value[j] for j in np.flatnonzero(kept).tolist()])
    return remaining


def chained(lists: list[list[Any]]) -> list[Any]:
    """Return the entries of all lists."""
    return list(chain.from_iterable(lists))


def as_tensor(value: Any) -> Any:
    """Return a list of numbers as a tensor, even inside a mapping, and any other value unchanged."""
    if isinstance(value, Mapping):
        return {key: as_tensor(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    try:
        array = number_array(value) if value else np.empty(0, np.int64)
    except ValueError:  # lists of different lengths
        return value
    return value if array is None else torch.from_numpy(array)
