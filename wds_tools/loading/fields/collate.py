"""Collation: values of samples are stacked if they have equal shape and type; otherwise they are a list.

A worker stacks its values as NumPy arrays. Tensors would be sent through one file descriptor each, and these are
limited. The training process joins the parts of a batch and converts the arrays to tensors.
"""

from __future__ import annotations

from collections import UserDict, UserList, deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.loading.fields.padding import Padded, join_padded


@dataclass(frozen=True, slots=True)
class Columns:
    """Containers of tensors, stacked element by element, for a transform that returns two crops for example."""

    kind: type
    keys: tuple[Any, ...] | None
    columns: list[Any]

    def container(self, values: list[Any] | tuple[Any, ...]) -> Any:
        """Return a container with one value per column."""
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        return self.kind(*values) if hasattr(self.kind, "_fields") else self.kind(values)


def stack_values(values: Any) -> Any:
    """Stack the values of a field for sending to the training process.

    Returns:
        An array [n, ...] (a tensor for bfloat16), `Columns`, or the list if the values cannot be stacked.

    >>> stack_values([torch.zeros(2, 3), torch.zeros(2, 3)]).shape
    (2, 2, 3)
    >>> len(stack_values([torch.zeros(2, 3), torch.zeros(5, 3)]))
    2
    >>> stack_values([1, 2.5]).tolist(), stack_values(["a", "b"])
    ([1.0, 2.5], ['a', 'b'])
    """
    if not isinstance(values, list) or not values:
        return values
    values = [as_array(value) for value in values]
    first = values[0]
    if len({_stack_key(value) for value in values}) > 1:
        return values
    if isinstance(first, np.ndarray):
        return np.stack(values)
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if isinstance(first, int | float):
        numbers = number_array(values)
        return values if numbers is None else numbers
    return _stack_containers(values) if _holds_tensors(first) else values


def unstacked_values(values: Any) -> Any:
    """Return the values of a field for sending to the training process, without stacking them."""
    return [unstacked_values(value) for value in values] if isinstance(values, list) else as_array(values)


def number_array(values: list[Any]) -> NDArray[Any] | None:
    """Return numbers, in lists of any depth, as an array; None if they have no common dtype.

    NumPy would convert integers beyond int64 to floating point, and round them, if there are other numbers among them.
    """
    array = np.array(values)
    if array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind in "uf" and (np.abs(array) >= 2.0**63).any():
        items = np.array(values, dtype=object).flat
        if any(isinstance(item, int) and not -(2**63) <= item < 2**63 for item in items):
            return None
    return array


def join_parts(parts: list[list[Any]]) -> list[Any]:
    """Join the parts of a batch; each part is a list with the stacked values of each field."""
    return parts[0] if len(parts) == 1 else [_join_values(values) for values in zip(*parts, strict=True)]


def reordered(value: Any, order: NDArray[np.int64]) -> Any:
    """Return stacked or padded values of samples in another order; None for values that are in a slot."""
    if value is None:
        return None
    if isinstance(value, Columns):
        return Columns(value.kind, value.keys, [reordered(column, order) for column in value.columns])
    if isinstance(value, Padded):
        return Padded([value.values[i] for i in order.tolist()], value.padding)
    return value[order] if isinstance(value, np.ndarray | torch.Tensor) else [value[i] for i in order.tolist()]


def as_tensors(value: Any) -> Any:
    """Convert the arrays in stacked values to tensors."""
    if isinstance(value, Columns):
        return value.container([as_tensors(column) for column in value.columns])
    if isinstance(value, list):
        return [as_tensors(item) for item in value]
    if isinstance(value, Padded):
        return value.tensor()
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def values_of_samples(values: Any) -> list[Any]:
    """Return one value per sample, undoing `stack_values`: numbers as Python's, arrays as tensors.

    >>> values_of_samples(stack_values([[torch.zeros(1), torch.zeros(2)], [torch.ones(1), torch.ones(2)]]))[1]
    [tensor([1.]), tensor([1., 1.])]
    """
    return [as_tensors(value) for value in _unstack(values)]


def map_tensors(
    function: Callable[[torch.Tensor], Any], value: Any, *, others: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Apply a function to each tensor in nested containers, and return them with the results.

    Containers are mappings, sequences, named tuples and dataclasses. Their classes are kept, and those in which nothing
    changes are returned unchanged.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, str | bytes | np.ndarray | type):
        return value
    # Its method moves an object better than we would: a PackedSequence has a tensor that must stay on the CPU. But that
    # of a UserDict, as the tokenizers of transformers return, only moves the values.
    if callable(getattr(value, "to", None)) and not isinstance(value, dict | UserDict):
        return others(value)
    items = _items_of(value)
    changed = {key: map_tensors(function, item, others=others) for key, item in items.items()}
    if all(changed[key] is item for key, item in items.items()):
        return value
    return _with_items(value, changed)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested containers, in the order in which `map_tensors` visits them."""
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(collect, value)
    return tensors


def as_array(value: Any) -> Any:
    """Return a tensor as an array, if NumPy has its dtype; other values are returned unchanged."""
    return value.numpy() if isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16 else value


def _stack_key(value: Any) -> Any:
    """Return what must be equal in values to stack them: type, and shape and dtype or structure."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return type(value), value.shape, value.dtype
    if isinstance(value, dict):
        return dict, tuple(value)
    if isinstance(value, tuple | list):
        return type(value), len(value)
    return float if isinstance(value, int | float) else type(value)


def _items_of(value: Any) -> Mapping[Any, Any]:
    """Return the items of a container by key, index or name; nothing for other objects."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple | list | UserList | deque):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)}
    return {}


def _with_items(value: Any, items: dict[Any, Any]) -> Any:
    """Return a container like ``value`` with other items under the same keys."""
    if isinstance(value, dict | UserDict | UserList | deque):
        same = copy(value)  # including its attributes, and the default of a defaultdict
        for key, item in items.items():
            same[key] = item
        return same
    if isinstance(value, Mapping):
        try:
            return type(value)(items)  # type: ignore[call-arg] # most mappings are created from one
        except TypeError:
            return items
    if isinstance(value, tuple | list):
        return type(value)(*items.values()) if hasattr(value, "_fields") else type(value)(items.values())
    same = copy(value)  # not by its constructor, which may check or convert the values
    for name, item in items.items():
        object.__setattr__(same, name, item)  # it may be frozen
    return same


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return any(map(_holds_tensors, value))
    return isinstance(value, np.ndarray | torch.Tensor)


def _stack_containers(values: list[Any]) -> Columns:
    first = values[0]
    keys = tuple(first) if isinstance(first, dict) else None
    rows = [tuple(value.values()) for value in values] if keys is not None else values
    return Columns(type(first), keys, [stack_values(list(column)) for column in zip(*rows, strict=True)])


def _join_values(values: tuple[Any, ...]) -> Any:
    first = values[0]
    if first is None:  # the values are in a slot, in shared memory
        return None
    if any(isinstance(value, Padded) for value in values):
        return join_padded(values)
    if len({_join_key(value) for value in values}) == 1:
        if isinstance(first, np.ndarray):
            return np.concatenate(values)
        if isinstance(first, torch.Tensor):
            return torch.cat(values)
        if isinstance(first, Columns):
            return Columns(first.kind, first.keys, join_parts([value.columns for value in values]))
    return [item for value in values for item in _unstack(value)]


def _join_key(value: Any) -> Any:
    """Return what must be equal in the values of all parts to join them without taking them apart."""
    if isinstance(value, np.ndarray) and value.ndim == 1:  # one number per sample; their dtypes may differ
        return np.ndarray
    if isinstance(value, np.ndarray):
        return np.ndarray, value.shape[1:], value.dtype
    if isinstance(value, torch.Tensor):
        return _stack_key(value[0])
    return (value.kind, value.keys, len(value.columns)) if isinstance(value, Columns) else type(value)


def _unstack(value: Any) -> list[Any]:
    """Undo `stack_values`: return one value per sample."""
    if isinstance(value, Columns):
        return [value.container(row) for row in zip(*map(_unstack, value.columns), strict=True)]
    if isinstance(value, Padded):
        return list(value.tensor())
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else list(value)
