"""The values of samples become those of a batch: stacked where they agree, a list where they do not.

A worker packs what it made, as arrays: torch would send each tensor through a file descriptor of its own, and these run
out. The training process joins the parts of a batch and makes tensors of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Columns:
    """Values that are containers of tensors, as of a transform that returns two crops: packed element by element.

    Attributes:
        kind: Type of the containers: a tuple, a named tuple, a list, or a dictionary.
        keys: Of dictionaries.
        columns: Packed values, one for each element.
    """

    kind: type
    keys: tuple[Any, ...] | None
    columns: list[Any]

    def container(self, values: list[Any] | tuple[Any, ...]) -> Any:
        """Return a container of these values, one for each column."""
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        return self.kind(*values) if hasattr(self.kind, "_fields") else self.kind(values)


def packed(values: Any) -> Any:
    """Return the values of a field, one for each sample, as they are sent to the training process.

    >>> packed([torch.zeros(2, 3), torch.zeros(2, 3)]).shape, len(packed([torch.zeros(2, 3), torch.zeros(5, 3)]))
    ((2, 2, 3), 2)
    >>> packed([1, 2.5]).tolist(), packed(["a", "b"])
    ([1.0, 2.5], ['a', 'b'])
    """
    if not isinstance(values, list) or not values:
        return values
    values = [_as_array(value) for value in values]
    first = values[0]
    if len({_kind(value) for value in values}) > 1:
        return values
    if isinstance(first, np.ndarray):
        return np.stack(values)
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if isinstance(first, int | float):
        numbers = np.array(values)
        return values if numbers.dtype == object else numbers  # 2**70 has no dtype
    return _columns(values) if _holds_tensors(first) else values


def joined(parts: list[list[Any]]) -> list[Any]:
    """Put the fields of a batch together from those of its parts."""
    return parts[0] if len(parts) == 1 else [_joined(values) for values in zip(*parts, strict=True)]


def as_tensors(value: Any) -> Any:
    """Return what the training loop gets for packed values."""
    if isinstance(value, Columns):
        return value.container([as_tensors(column) for column in value.columns])
    if isinstance(value, list):
        return [as_tensors(item) for item in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return a value with each tensor in it replaced by a function of it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if not _holds_tensors(value):
        return value
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    items = [map_tensors(function, item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _as_array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16 else value


def _kind(value: Any) -> Any:
    """Return what must be equal in values that are packed as one."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return type(value), value.shape, value.dtype
    if isinstance(value, dict):
        return dict, tuple(value)
    if isinstance(value, tuple | list):
        return type(value), len(value)
    return float if isinstance(value, int | float) else type(value)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return any(map(_holds_tensors, value))
    return isinstance(value, np.ndarray | torch.Tensor)


def _columns(values: list[Any]) -> Columns:
    first = values[0]
    keys = tuple(first) if isinstance(first, dict) else None
    rows = [tuple(value.values()) for value in values] if keys is not None else values
    return Columns(type(first), keys, [packed(list(column)) for column in zip(*rows, strict=True)])


def _joined(values: tuple[Any, ...]) -> Any:
    first = values[0]
    if first is None:  # in its slot
        return None
    if all(isinstance(value, np.ndarray) for value in values):
        numbers = first.ndim == 1  # of any types: 1 and 2.5 are both numbers
        if len({value.ndim if numbers else (value.shape[1:], value.dtype) for value in values}) == 1:
            return np.concatenate(values)
    if all(isinstance(value, torch.Tensor) for value in values) and len({_kind(value[0]) for value in values}) == 1:
        return torch.cat(values)
    if len({_structure(value) for value in values}) == 1 and isinstance(first, Columns):
        return Columns(first.kind, first.keys, joined([value.columns for value in values]))
    return [item for value in values for item in _items(value)]


def _structure(value: Any) -> Any:
    return (value.kind, value.keys, len(value.columns)) if isinstance(value, Columns) else None


def _items(value: Any) -> list[Any]:
    """Return the values of the samples that were packed."""
    if isinstance(value, Columns):
        return [value.container(row) for row in zip(*map(_items, value.columns), strict=True)]
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else list(value)
