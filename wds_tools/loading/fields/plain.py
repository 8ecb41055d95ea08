"""Kinds that do not depend on an image: `Label`, `Key`, `Field`, `Text` and `MultiHot`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import LabelError, OptionError
from wds_tools.format.field_classes import first_difference
from wds_tools.format.label_lists import LABELS
from wds_tools.format.objects import CATEGORY_PATH, name_of
from wds_tools.loading.fields.base import Column, FieldSpec
from wds_tools.loading.fields.padding import AnyPad, is_length
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, as_tensor, chained, kept_entries
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
                + ("" if all(labels) else "; shards in no manifest have no names, until `wds-tools index` lists them")
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
    """Any stored field, decoded by its extension, as if its name were in a list ``fields=``.

    Types that this package does not decode, such as video (``"mp4"``) and audio (``"flac"``), are bytes.

    Attributes:
        field: Stored field, such as ``"json"``, ``"npy"``, ``"png"`` or ``"mp4"``.
        path: Names that lead to a value in JSON, see `Boxes`. Lists of numbers become tensors. If the dataset has a
            class list for them, as for ``objects.category`` of packed annotations, a number that is not in it is an
            error.
        decode: Function of the value, such as a decoder of audio files, called in the worker. Arrays and tensors of
            equal shape are stacked. Random number generators are seeded for each sample.
        like: Name of a `Boxes` field: the value is a list with one entry per stored box, and the entries of boxes that
            are dropped are dropped too.
        pad: Value of the padding, or a `Pad`, for arrays and lists of numbers: a batch is one tensor
            [batch, length, ...]. ``"flat"`` joins them, [all entries, ...]. If the boxes of ``like`` have a ``pad``, a
            number is required here, or ``"flat"`` if they have ``"flat"``: the padded length is that of the boxes.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    path: str = ""
    decode: Callable[[Any], Any] | None = None
    like: str | None = None
    pad: AnyPad = None

    takes = ("entries",)
    _classes: ClassVar[int | None] = None  # of the dataset

    def __post_init__(self) -> None:
        self._check("'json'")
        self._check_function("decode")

    def opened(self, shards: ShardSet) -> Field:
        """Return it with the number of classes that the dataset has for its numbers."""
        if (classes := shards.manifest.field_classes.get(self.place)) is None:
            return self
        spec = replace(self)
        object.__setattr__(spec, "_classes", len(classes.names))
        return spec

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the field or what is at its path; if it has the entries of another field, only those that remain."""
        sources = column.sources(part)
        values = self.values(sources)
        if self._classes is not None:
            self._check_classes(sources, values, self._classes)
        if self.decode is not None:
            values = self.results(sources, column, "decode", self.decode, values)
        if column.like is None:
            return [as_tensor(value) for value in values] if self.path else values
        views = []
        for view in range(len(column.regions(part))):
            entries = kept_entries(self, part, column, view, values)
            views.append([as_tensor(entry) for entry in column.joined(part, entries, chained)])
        return column.by_sample(views)

    def _check_classes(self, part: Part, values: list[Any], count: int) -> None:
        """Check that class numbers are in the class list of the dataset.

        Raises:
            SampleError: One is not.
        """
        for i, value in enumerate(values):
            for j, number in enumerate(_flattened(value)):
                if type(number) is int and not 0 <= number < count:
                    actual = f"class {number}"
                    facts = part.values(self.field)[i]
                    if self.place == CATEGORY_PATH and isinstance(facts["objects"], list):
                        image = f" of {facts['path']!r}" if "path" in facts else ""
                        actual += f" ({name_of(facts['objects'][j], j)}{image})"
                    raise self.invalid(part, i, actual, f"0 to {count - 1}, those of the class list of the dataset")


@dataclass(frozen=True)
class Text(AtPath):
    """Text: a list of strings, or the results of a function of each string.

    Attributes:
        field: Stored field: text, or JSON with ``path``.
        path: Names that lead to the text in JSON, see `Boxes`.
        encode: Function of one string, such as a tokenizer, called in the worker. Arrays and tensors of equal shape are
            stacked. Random number generators are seeded for each sample.
        pad: Value of the padding, or a `Pad`, so that a batch is one tensor [batch, length]; ``"flat"`` joins the
            results. It requires ``encode``. If ``encode`` returns a dictionary, as tokenizers of transformers do, each
            entry is padded with this value, but ``attention_mask`` and ``token_type_ids`` with 0.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "txt"
    _: KW_ONLY
    path: str = ""
    encode: Callable[[str], Any] | None = None
    pad: AnyPad = None

    def __post_init__(self) -> None:
        self._check("'txt'")
        self._check_function("encode")
        if self.pad is not None and self.encode is None:
            raise OptionError("wds_tools.Text(pad=...) requires encode=, a function that returns numbers")

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the texts, or the results of the user's function of each text.

        Raises:
            SampleError: A value is not text.
        """
        texts = []
        for i, value in enumerate(self.values(part)):
            try:
                text = value.decode().removeprefix("\ufeff") if isinstance(value, bytes) else value
            except UnicodeDecodeError as error:
                actual = f"bytes that are not UTF-8 ({error})"
                raise self.invalid(part, i, actual, "text: read it with Field") from error
            if not isinstance(text, str):
                raise self.invalid(part, i, f"{type(value).__name__}", "text: use path=, such as 'captions.0'")
            texts.append(text)
        return texts if self.encode is None else self.results(part, column, "encode", self.encode, texts)


@dataclass(frozen=True)
class MultiHot(AtPath):
    """Several class numbers of a sample: a float32 tensor [batch, classes], 1 for each of its classes, otherwise 0.

    ``torch.nn.BCEWithLogitsLoss`` expects labels in this form.

    Attributes:
        field: Stored field with a list of class numbers or names: ``"labels.json"`` (the default), as `pack` writes it,
            or other JSON.
        path: Names that lead to the list in JSON, see `Boxes`. Lists in lists are joined, so that
            ``MultiHot("json", path="objects.category")`` has the classes of all objects.
        classes: Number of classes, or their names by number. None (the default) takes the class list of the dataset.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = LABELS
    _: KW_ONLY
    path: str = ""
    classes: int | Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._check("'labels.json' or 'json'")
        is_names = not isinstance(self.classes, (int, str, type(None)))
        if self.classes is not None and not (is_length(self.classes) or (is_names and len(self.classes) > 0)):  # type: ignore[arg-type]
            raise OptionError(
                f"wds_tools.MultiHot(classes={self.classes!r}); allowed are whole numbers of 1 and more, lists of "
                "class names, and None for the class list of the dataset"
            )

    def opened(self, shards: ShardSet) -> MultiHot:
        """Return it with the classes of the dataset, if it has none.

        Raises:
            OptionError: The dataset has no class list for it.
        """
        classes: Any = self.classes
        if classes is None:
            if self.place not in shards.manifest.field_classes:
                raise OptionError(
                    f"wds_tools.MultiHot({self.field!r}{f', path={self.path!r}' if self.path else ''}): {shards.name} "
                    f"has no class list for {self.place!r}: give the number of classes or their names, as classes=20"
                )
            classes = shards.manifest.field_classes[self.place].names
        return replace(self, classes=classes if isinstance(classes, int) else tuple(classes))

    def load(self, part: Part, column: Column) -> list[torch.Tensor]:
        """Return for each sample 1 for each of its classes: float32 [classes].

        Raises:
            SampleError: A value is neither the number nor the name of a class.
        """
        names = self.classes if isinstance(self.classes, tuple) else ()
        count = len(names) if names else self.classes
        numbers = {name: number for number, name in enumerate(names)}
        assert isinstance(count, int), "open_dataset() has set the classes"
        rows = []
        for i, value in enumerate(self.values(part)):
            row = torch.zeros(count)
            for label in _flattened(value):
                number = numbers.get(label) if isinstance(label, str) else label
                if type(number) is not int or not 0 <= number < count:
                    allowed = f"class numbers from 0 to {count - 1}{', and class names' if names else ''}"
                    raise self.invalid(part, i, f"the label {str(label)[:40]!r}", allowed)
                row[number] = 1
            rows.append(row)
        return rows


def _flattened(value: Any) -> list[Any]:
    """Return the elements of a list and of the lists in it; a single value is a list of one."""
    return [item for part in value for item in _flattened(part)] if isinstance(value, list) else [value]
