"""What a batch slot holds: the tensors of the columns whose values have one shape and dtype in all samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.loading.fields.collate import join_parts, map_tensors, stack_values

_ALIGNMENT = 64  # bytes; start of each tensor in a slot


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of the value of one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False

    @property
    def bytes(self) -> int:
        """Size of the value in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self, memory: NDArray[np.uint8]) -> torch.Tensor:
        """Return memory as the tensor of as many samples as it has: [n, ...], a view."""
        values = torch.from_numpy(memory).view(self.dtype)
        if not self.channels_last:
            return values.view(-1, *self.shape)
        channels, height, width = self.shape
        return values.view(-1, height, width, channels).permute(0, 3, 1, 2)


ColumnSpec: TypeAlias = TensorSpec | tuple[TensorSpec, ...] | None
"""What slots hold for a column: a tensor, a list of tensors, or nothing."""


def column_spec(value: Any, *, channels_last: bool = False) -> ColumnSpec:
    """Return what slots hold for a column, from the value of one sample."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), value.dtype, channels_last)
    if isinstance(value, list) and value and all(isinstance(item, torch.Tensor) for item in value):
        return tuple(TensorSpec(tuple(item.shape), item.dtype, channels_last) for item in value)
    return None


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The tensors of a slot, one after the other."""

    columns: tuple[ColumnSpec, ...]

    @property
    def specs(self) -> list[TensorSpec]:
        """Specifications of the tensors."""
        return [spec for column in self.columns for spec in _listed(column)]

    def offsets(self, rows: int) -> list[int]:
        """Return where each tensor of ``rows`` samples starts, and then where the last one ends, in bytes."""
        sizes = [-(-rows * spec.bytes // _ALIGNMENT) * _ALIGNMENT for spec in self.specs]
        return list(accumulate(sizes, initial=0))

    def by_column(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | list[torch.Tensor] | None]:
        """Return the tensor or tensors of each column, None for a column that is not in slots."""
        remaining = iter(tensors)
        return [
            [next(remaining) for _ in column] if isinstance(column, tuple) else next(remaining) if column else None
            for column in self.columns
        ]

    def fill(self, values: list[Any], tensors: Sequence[torch.Tensor], function: Callable[..., Any]) -> list[Any]:
        """Return the values of a batch, where ``function`` replaces each None by the result for its tensors."""
        of_column = [*self.by_column(tensors), *[None] * len(values)]
        return [
            map_tensors(function, in_slot) if value is None else value
            for value, in_slot in zip(values, of_column, strict=False)
        ]

    def join(
        self, parts: list[list[Any]], rows: Sequence[Sequence[int]], tensors: Callable[[], Sequence[torch.Tensor]]
    ) -> list[Any]:
        """Join the values of the parts of a batch.

        If only some parts of a column are in the slot, because values of the others have another shape or dtype, all
        are returned.
        """
        mixed = [
            index
            for index, column in enumerate(self.columns)
            if column is not None and len({part[index] is None for part in parts}) > 1
        ]
        by_column = self.by_column(tensors()) if mixed else []
        for index in mixed:
            in_slot = by_column[index]
            for part, part_rows in zip(parts, rows, strict=True):
                if part[index] is None:
                    copied = map_tensors(lambda tensor: tensor[[*part_rows]], in_slot)  # noqa: B023
                    part[index] = stack_values(samples_of_tensors(copied))
        return join_parts(parts)


def write_values(values: list[Any], out: torch.Tensor | list[torch.Tensor] | None) -> bool:
    """Write the values of n samples to tensors [n, ...], if all have the shapes and dtypes of their rows."""
    if out is None:
        return False
    if isinstance(out, torch.Tensor):
        values, out = [[value] for value in values], [out]
    for sample in values:
        if not isinstance(sample, list) or len(sample) != len(out) or not all(map(_fits, sample, out)):
            return False
    for row, sample in enumerate(values):
        for value, tensor in zip(sample, out, strict=True):
            tensor[row].copy_(value)
    return True


def _fits(value: Any, out: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == out.shape[1:] and value.dtype == out.dtype


def _listed(column: ColumnSpec) -> tuple[TensorSpec, ...]:
    return column if isinstance(column, tuple) else (column,) if column else ()


def samples_of_tensors(tensors: torch.Tensor | list[torch.Tensor]) -> list[Any]:
    """Return the value of each sample: a row of the tensor, or a list with a row of each tensor."""
    return list(tensors) if isinstance(tensors, torch.Tensor) else [list(rows) for rows in zip(*tensors, strict=True)]
