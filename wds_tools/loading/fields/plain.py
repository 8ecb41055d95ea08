"""`Field`, `Label` and `Key`: any stored field, the class number and the key of a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import LabelError
from wds_tools.format.field_classes import first_difference
from wds_tools.loading.fields.base import Column, FieldSpec, check_field, check_function, check_like, check_pad
from wds_tools.loading.fields.padding import Pad
from wds_tools.loading.fields.paths import AtPath, as_tensor
from wds_tools.loading.part import Part
from wds_tools.reading.shardset import ShardSet


@dataclass(frozen=True)
class Label(FieldSpec):
    """The class number of a sample, as its index has it: an int64 tensor [batch]."""

    field = "label"

    def opened(self, shards: ShardSet) -> Label:
        """Check that class numbers mean the same in all datasets.

        Raises:
            LabelError: They do not.
        """
        labels = {classes.label for classes in shards.class_lists}
        if len(labels) > 1:
            raise LabelError(
                f"{shards.name}: these datasets have different classes ({first_difference(labels)}), so a label would "
                "mean different things: join them with `wds-tools merge`, pack them with the same --classes, or remove "
                "'label' from fields="
            )
        return self

    def load(self, part: Part, column: Column) -> NDArray[np.int64]:
        """Return the class numbers, int64 [n]."""
        return part.labels()


@dataclass(frozen=True)
class Key(FieldSpec):
    """The key of a sample: a list of strings."""

    field = "__key__"

    def load(self, part: Part, column: Column) -> list[str]:
        """Return the keys."""
        return part.rows.keys()


@dataclass(frozen=True)
class Field(AtPath):
    """Any stored field, decoded by its extension, as in the short form of ``fields=``.

    Types that this package does not decode, such as video (``"mp4"``) and audio (``"flac"``), are bytes.

    Attributes:
        field: Stored field, such as ``"json"``, ``"npy"``, ``"png"`` or ``"mp4"``.
        path: Names that lead to a value in JSON, see `Boxes`. Lists of numbers become tensors.
        decode: Function of the value, such as a decoder of audio files, called in the worker. Arrays and tensors of
            equal shape are stacked. Random number generators are seeded for each sample.
        like: Name of a `Boxes` field: the value is a list with one entry per stored box, and the entries of boxes that
            are dropped are dropped too.
        pad: Value of the padding, or a `Pad`, for arrays and lists of numbers: a batch is one tensor
            [batch, length, ...]. If the boxes of ``like`` have a ``pad``, a number is required here: the padded length
            is that of the boxes.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    path: str = ""
    decode: Callable[[Any], Any] | None = None
    like: str | None = None
    pad: float | Pad | None = None

    takes = "entries"

    def __post_init__(self) -> None:
        check_field(self, "'json'")
        self.check_path()
        check_function(self, "decode")
        check_like(self)
        check_pad(self)

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the field or what is at its path; if it has the entries of another field, only those that remain."""
        values = self.values(part)
        if self.decode is not None:
            values = self.results(part, column, "decode", self.decode, values)
        if column.like is None:
            return [as_tensor(value) for value in values] if self.path else values
        views = [
            [as_tensor(self._entries(part, i, values[i], kept)) for i, kept in enumerate(view)]
            for view in column.like.spec.kept(part, column.like)
        ]
        return column.by_sample(views)

    def _entries(self, part: Part, i: int, value: Any, kept: NDArray[np.bool_]) -> list[Any]:
        """Return the entries of a value of sample ``i`` that remain."""
        is_list = isinstance(value, list | np.ndarray | torch.Tensor)
        if not is_list or len(value) != len(kept):
            found = f"{len(value)} entries" if is_list else type(value).__name__
            raise self.invalid(part, i, found, f"lists with one entry for each of the {len(kept)} boxes")
        return [value[j] for j in np.flatnonzero(kept).tolist()]
