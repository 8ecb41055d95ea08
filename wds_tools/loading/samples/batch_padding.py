"""Padding of the fields of a batch, and the masks that are False for padding; joined values, and their offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from wds_tools.errors import OptionError
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.collate import (
    Columns,
    as_array,
    stack_values,
    tensors_in,
    unstacked_values,
    values_of_samples,
)
from wds_tools.loading.fields.padding import (
    Padded,
    Padding,
    fits_padded,
    fitted,
    join_tensors,
    mask_of,
    positions_of,
    sizes_of,
    write_padded,
)
from wds_tools.loading.fields.part import Part
from wds_tools.loading.samples.columns import padding_names

_PADDED_WITH_0 = ("attention_mask", "token_type_ids")  # of tokenizers, whatever the value of other padding is


class BatchPadding:
    """Pads values of samples, and makes the masks of a batch."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        paddings = [(column.name, column.padding) for column in columns]
        self._sources = [i for i, (name, padding) in enumerate(paddings) if padding and padding.source == name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the masks, and of the indices and offsets of joined values."""
        return tuple(name for i in self._sources for name in padding_names(self._columns[i]))

    def stacked(self, values: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Return the values of n samples by field, stacked or padded, and then the sizes of the padded ones.

        Returns:
            For each field what `stack_values` returns, with `Padded` for arrays; None if it was written to ``out``. For
            each mask int64 [n, dimensions].
        """
        if not self._sources:
            return [_stacked(column, value) for column, value in zip(self._columns, values, strict=True)]
        sizes = {column.name: _sizes(column, value) for column, value in zip(self._columns, values, strict=True)}
        for column in self._columns:
            _check_sizes(column, sizes)
        outputs = out or [None] * len(values)
        padded = [
            _stacked(column, value) if column.padding is None else _padded(value, column.padding, output)
            for column, value, output in zip(self._columns, values, outputs, strict=True)
        ]
        return [*padded, *(sizes[self._columns[i].name] for i in self._sources)]

    def with_masks(self, values: list[Any]) -> list[Any]:
        """Replace the sizes in the values of a batch by masks, or by indices and offsets of joined values."""
        fields, sizes = values[: len(self._columns)], values[len(self._columns) :]
        further: list[Any] = []
        for size, i in zip(sizes, self._sources, strict=False):
            padding = self._columns[i].padding
            further += _positions(size, fields[i]) if padding and padding.is_flat else [_masks(size, fields[i])]
        return [*fields, *further, *sizes[len(self._sources) :]]


def fit_values(part: Part, column: Column, values: list[Any]) -> list[Any]:
    """Return the values of n samples as tensors, not larger than the size after padding."""
    padding = column.padding
    assert padding is not None

    def error(i: int, reason: str) -> OptionError:
        shard, key = part.rows.shard_and_key(i)
        return OptionError(f"field {column.name!r} {reason}", shard=shard, key=key)

    def fit(i: int, value: Any) -> Any:
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if isinstance(value, torch.Tensor) and value.ndim >= padding.axes:
            return fitted(value, padding, lambda reason: error(i, reason))
        actual = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise error(i, f"is {actual}; pad= allows arrays and lists of numbers")

    return [_map_elements(lambda element: fit(i, element), value) for i, value in enumerate(values)]  # noqa: B023 - called here


def padded_values(column: Column, values: list[Any]) -> list[Any]:
    """Return the values of n samples as they are after padding: tensors, or lists of them for several crops."""
    if column.padding is None:
        return values
    return values_of_samples(_padded(values, column.padding, None))


def _map_elements(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each element of a list of crops or a dictionary."""
    if isinstance(value, dict):
        return {key: function(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [function(element) for element in value]
    return function(value)


class _Containers(NamedTuple):
    """The containers that n samples have, such as a list of crops or the dictionary of a tokenizer."""

    kind: type
    keys: tuple[Any, ...] | None
    elements: list[list[Any]]


def _containers(values: list[Any]) -> _Containers | None:
    """Return the containers of n samples, or None if they have tensors."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        return None
    keys = tuple(first) if isinstance(first, dict) else None
    if any(type(value) is not type(first) or len(value) != len(first) for value in values):
        raise OptionError("pad= needs the same number of tensors in all samples of a batch")
    rows = [[value[key] for key in keys] for value in values] if keys is not None else values
    return _Containers(type(first), keys, [list(element) for element in zip(*rows, strict=True)])


def _stacked(column: Column, values: Any) -> Any:
    return stack_values(values) if column.spec.stacks else unstacked_values(values)


def _padded(values: list[Any], padding: Padding, out: Any) -> Any:
    """Return the values of n samples as `Padded`, or None if they were written to ``out``."""
    containers = _containers(values)
    elements = [values] if containers is None else containers.elements
    if out is not None and _are_written(elements, padding, out if isinstance(out, list) else [out]):
        return None
    if containers is None:
        return _payload(values, padding)
    with_0 = dataclasses.replace(padding, value=0)
    padded = [
        _payload(element, with_0 if key in _PADDED_WITH_0 else padding)
        for key, element in zip(containers.keys or range(len(elements)), elements, strict=True)
    ]
    return Columns(containers.kind, containers.keys, padded)


def _payload(values: list[Any], padding: Padding) -> Padded:
    """Return what is sent to the training process; joined already if the values will be."""
    parts = [join_tensors(values, padding)] if padding.is_flat else values
    return Padded([as_array(part) for part in parts], padding)


def _are_written(elements: list[list[Any]], padding: Padding, outputs: list[Any]) -> bool:
    """Write the elements of all samples to tensors, if all of them fit; return whether they do."""
    if len(outputs) != len(elements):
        return False
    pairs = list(zip(elements, outputs, strict=True))
    if not all(fits_padded(value, tensor, padding) for element, tensor in pairs for value in element):
        return False
    for element, tensor in pairs:
        write_padded(element, tensor, padding)
    return True


def _sizes(column: Column, values: list[Any]) -> Any:
    """Return the sizes of padded values of n samples, int64 [n, axes]; for several crops as `Columns`."""
    if column.padding is None:
        return None
    containers = _containers(values)
    if containers is None:
        return sizes_of(values, column.padding).numpy()
    sizes = [sizes_of(element, column.padding).numpy() for element in containers.elements]
    if containers.keys is None:
        return Columns(containers.kind, None, sizes)
    if any(not np.array_equal(size, sizes[0]) for size in sizes):
        raise OptionError(f"pad= of field {column.name!r}: the entries {', '.join(containers.keys)} differ in length")
    return sizes[0]


def _check_sizes(column: Column, sizes: Mapping[str, Any]) -> None:
    """Check that a field has the size of the field with which it shares a mask."""
    padding = column.padding
    if padding is None or padding.source == column.name:
        return
    own, source = sizes[column.name], sizes[padding.source]
    if not all(map(np.array_equal, _arrays(own), _arrays(source))):
        raise OptionError(
            f"field {column.name!r} is padded like {padding.source!r}, but their sizes differ after their transforms: "
            "use a transform that changes both, or a pad= for a field without like="
        )


def _arrays(sizes: Any) -> list[Any]:
    return sizes.columns if isinstance(sizes, Columns) else [sizes]


def _masks(sizes: Any, padded: Any) -> Any:
    """Return the mask of a field from the sizes of its values; a list of masks for several crops."""
    if isinstance(sizes, torch.Tensor):
        return mask_of(sizes, tensors_in(padded)[0])
    return [mask_of(size, tensor) for size, tensor in zip(sizes, padded, strict=True)]


def _positions(sizes: Any, joined: Any) -> list[Any]:
    """Return indices and offsets of a field from the sizes of its values; lists of them for several crops."""
    if isinstance(sizes, torch.Tensor):
        return list(positions_of(sizes, tensors_in(joined)[0]))
    pairs = [positions_of(size, tensor) for size, tensor in zip(sizes, joined, strict=True)]
    return [list(tensors) for tensors in zip(*pairs, strict=True)]
