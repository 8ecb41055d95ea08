"""Objects of Python, packed in this process: with ``len()`` and ``[]``, such as a torch ``Dataset``; or streams.

All items are read while the object is listed, and again when they are packed: labels, class names and what is skipped
are known before the first shard is written (decision 0052).

No worker processes are used: a spawned process may be unable to import a class of the user's
script, and a fork of a process with threads, which torch starts, may hang. torch is not imported: a
tensor is recognized by its methods.

A stream of Hugging Face's ``datasets``, which ``load_dataset(..., streaming=True)`` returns, has no length and no
positions. While it is listed, its state is kept every `WINDOW_BYTES`, so that the second pass can begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import xxhash
from PIL import Image

from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.format.label import parse, quoted
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.arrow_types import class_lists_of, named_lists, renumbered
from wds_tools.sources.base import (
    WINDOW_BYTES,
    Collector,
    SourceChangedError,
    SourceOptions,
    SourceStoreError,
    is_system_error,
)
from wds_tools.sources.class_file import CLASS_LISTS, MAYBE_LISTS, likely_names, may_name_classes, names_in
from wds_tools.sources.columns import IMAGE, LABEL
from wds_tools.sources.inputs import Input
from wds_tools.sources.record_roles import Roles
from wds_tools.sources.records import Item, RecordSource, attempt
from wds_tools.sources.values import Excluded, plain
from wds_tools.wording import counted, one_line

_TABLES = ("pandas", "polars", "pyarrow")  # whose [] gives columns
_DIGEST_BITS = (1 << 62) - 1
_FOLLOWS = Excluded("an entry that follows the label")


class ObjectSource(RecordSource):
    """Items ``(image, label)``, dictionaries, dataclasses, or images alone, of an object with ``len()`` and ``[]``.

    An item must be the same each time it is read: all are read once to be listed, and again to be packed. An image is a
    PIL image, encoded bytes, an array [H, W] or [H, W, C], or a tensor [C, H, W]; pixels are uint8. Class names
    come from the attribute ``classes``, which torchvision's datasets have, or from a `ClassLabel`.
    """

    kind = "object"
    unit = "item"
    in_process = True

    def __init__(self, items: Any, options: SourceOptions | None = None) -> None:
        if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
            raise OptionError(
                f"src is a {type(items).__name__}; allowed are paths, objects with len() and [], and streams of "
                "Hugging Face's datasets: put the items of an iterator into a list, or write them to files"
            )
        if any(base.__module__.partition(".")[0] in _TABLES for base in type(items).__mro__):
            raise OptionError(
                f"src is a {type(items).__name__} in memory: write it to Parquet or CSV, and pass the path of that file"
            )
        super().__init__(type(items).__name__, options)
        self._rows = _undecoded(items)
        self._items = list(zip(*items, strict=True)) if _is_pair(items) else items
        self._digests: dict[int, int] = {}  # of the items that were read
        self._decoded: set[str] = set()  # entries that are PIL images
        self._lists = _class_lists(items, CLASS_LISTS)
        features = getattr(items, "features", None)
        self._features: Mapping[str, Any] = features if isinstance(features, Mapping) else MappingProxyType({})
        given = self.options.classes if self._rows is not None else None
        self.class_lists, self._changes = named_lists(class_lists_of(self._features), given)

    def collect(self, collector: Collector) -> None:
        if not len(self._items):
            raise SourceError(f"the {self.name} has no items")
        super().collect(collector)
        if self.record_roles and self.record_roles.image in self._decoded:
            collector.account.notes.append(
                f"{self.record_roles.image!r} has PIL images: their pixels are packed, by default as PNG. To keep the "
                "original files, pass items with their bytes, or pack the files by their path"
            )
        collector.stamp = xxhash.xxh3_128(repr(sorted(self._digests.items())).encode()).hexdigest()

    def class_names(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        return {("", name): names for name, names in (self._lists | _class_lists(self._items, MAYBE_LISTS)).items()}

    def name_classes(self, collector: Collector, roles: Roles, labels: Mapping[int, Any]) -> None:
        """Add the class names of the object, unless its attributes show that labels mean others."""
        super().name_classes(collector, roles, labels)
        if collector.classes and self.class_lists.get(roles.label or "") is None and self._have_other_numbers(labels):
            collector.classes = ()
        if roles.label is not None and not collector.classes and not self.options.classes:
            values = {name: getattr(self._items, name, None) for name in (*CLASS_LISTS, *MAYBE_LISTS)}
            collector.account.notes += [
                f"the attribute {name!r} of the {self.name} is a {type(value).__name__}, and not a list with a name "
                f"for each class number{may_name_classes(value)}: if labels are numbers, pass classes=[...]"
                for name, value in values.items()
                if value is not None
                and (callable(value) or not hasattr(value, "__len__") or len(value))
                and (name in CLASS_LISTS or (likely_names(value) and len(value) != len(self._items)))
            ]

    def _have_other_numbers(self, labels: Mapping[int, Any]) -> bool:
        """Return whether labels differ from the numbers of the dataset, if the user names the classes."""
        targets, is_transformed = _targets_of(self._items)
        numbers = {index: number for index, label in labels.items() if (number := _number_of(label)) is not None}
        if not numbers or (targets is None and not is_transformed):
            return False
        for index, number in numbers.items():
            target = plain(targets[index]) if targets is not None else None
            is_unlike = not isinstance(target, np.ndarray) and parse(target).number not in (None, number)
            if (targets is None or is_unlike) and not self.options.classes:
                has = f", and its dataset has {parse(target).number} as its target" if is_unlike else ""
                raise LabelError(
                    f"item {index} of the {self.name} has label {number}{has}, as with a target_transform: the class "
                    "names of the object may not belong to the labels, pass classes=[...]"
                )
            if targets is None or is_unlike:
                return True
        return False

    def items(self) -> Iterator[Item]:
        for index in range(len(self._items)):
            values = attempt(self._values, index)
            digest = digest_of(values)
            if self._digests.setdefault(index, digest) != digest:
                raise SourceError(self._differs(index))
            yield Item(f"{self.name}#{index}", (index, digest), values)

    def values(self, entry: Input) -> Mapping[str, Any]:
        index, digest = entry.location
        values = self._values(index)
        if digest_of(values) != digest:
            raise SourceChangedError(self._differs(index))
        return values

    def _differs(self, index: int) -> str:
        return (
            f"item {index} of the {self.name} differs each time it is read: remove random transforms before "
            "packing, and apply them in training"
        )

    def _values(self, index: int) -> dict[str, Any]:
        """Return the entries of an item; of a tuple, these are the image and the label."""
        if self._rows is not None:
            row = stored_values(renumbered(self._rows[index].to_pylist()[0], self._changes))
            return {name: self._value(name, value) for name, value in row.items()}
        item = self._item(index)
        if isinstance(item, Mapping):
            return {str(name): self._value(str(name), value) for name, value in item.items()}
        if not isinstance(item, (tuple, list)):
            return {IMAGE: self._value(IMAGE, item)}
        if not item:
            raise SourceError("is empty")
        values = {IMAGE: self._value(IMAGE, item[0])}
        if len(item) > 1:
            if self._lists or self.options.classes:  # otherwise it may be an id or a caption
                self.columns.setdefault(LABEL, LABEL)
            values[LABEL] = self._tuple_label(item[1], index)
        return values | {str(position): _FOLLOWS for position in range(2, len(item))}

    def _item(self, index: int) -> Any:
        """Return an item; a dataclass or named tuple as a dictionary."""
        try:
            item = self._items[index]
        except (OSError, ValueError, SyntaxError) as error:  # of image decoders; others are bugs of the dataset
            if is_system_error(error):
                raise SourceStoreError(
                    f"{self.name}#{index} cannot be read: {type(error).__name__}: {error}"
                ) from error
            raise SourceError(f"cannot be read: {type(error).__name__}: {error}") from error
        if is_dataclass(item) and not isinstance(item, type):
            return {field.name: getattr(item, field.name) for field in fields_of(item)}
        return item._asdict() if isinstance(item, tuple) and hasattr(item, "_asdict") else item

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, Image.Image):
            self._decoded.add(name)
        feature: Any = self._features.get(name)
        if type(feature).__name__.startswith("Array") and isinstance(value, list):  # such as Array3D
            return np.asarray(value, feature.dtype)
        return plain(value)

    def _tuple_label(self, value: Any, index: int) -> Any:
        label = plain(value)
        if isinstance(value, (Mapping, Image.Image)) or (isinstance(label, np.ndarray) and label.size > label.shape[0]):
            raise LabelError(
                f"{self.name}#{index}: the label, which is the second entry of a tuple, has the type "
                f"{type(value).__name__}; allowed are numbers and names: let items be dictionaries, such as "
                "{'image': ..., 'label': ..., 'mask': ...}, whose other entries are kept; for objects, "
                "{'image': ..., 'objects': [{'box': [left, top, right, bottom], 'category': 1}]}"
            )
        return label


def _undecoded(items: Any) -> Any:
    """Return a ``Dataset`` of ``datasets`` whose items are Arrow tables, as they are stored; None for other objects.

    One with a transform of the user gives what that function returns.
    """
    if type(items).__module__.partition(".")[0] != "datasets" or items.format["type"] == "custom":
        return None
    return items.with_format("arrow", columns=items.format["columns"])


def _is_pair(items: Any) -> bool:
    """Return whether an object is ``(X, y)``: an array of several images or a list of images, and their labels."""
    if type(items) is not tuple or len(items) != 2 or not all(hasattr(part, "__len__") for part in items):
        return False
    images, labels = items
    are_arrays = isinstance(images, list) and images and all(map(_is_image, images))
    is_pair = (are_arrays or getattr(images, "ndim", 0) >= 3) and getattr(labels, "ndim", 1) in (1, 2)
    is_pair = is_pair and not (are_arrays and any(getattr(label, "ndim", 0) for label in labels))
    if is_pair and getattr(images, "ndim", 4) > 3 and len(images) != len(labels):
        raise SourceError(
            f"the first array has {counted(len(images), 'image')}, and there are {counted(len(labels), 'label')}; "
            "allowed is one label per image: pass as many labels as images"
        )
    return is_pair and len(images) == len(labels)


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or getattr(value, "ndim", 0) > 1


def stored_values(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row of ``datasets`` that is not decoded; images that it names only by path are read."""
    values: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for name, cell in cells.items():
        path = cell.get("path") if isinstance(cell, dict) and {"bytes", "path"} <= cell.keys() else None
        names |= {"file_name": path} if path and not names else {}
        values[name] = _fetched(path) if path and cell["bytes"] is None else plain(cell)
    return names | values


def _fetched(path: str) -> Any:
    try:
        with fsspec.open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        if is_system_error(error) and not isinstance(error, FileNotFoundError):
            raise SourceStoreError(f"{path} cannot be read: {error}") from error
        return Excluded(f"the path of an unreadable file ({path})")


def digest_of(values: Mapping[str, Any] | str) -> int:
    """Return a hash of values."""
    digest = xxhash.xxh3_64()
    pairs: list[tuple[str, Any]] = [("", values)] if isinstance(values, str) else list(values.items())
    for name, value in pairs:
        is_array = isinstance(value, np.ndarray)
        digest.update(f"{name}\0{value.dtype}{value.shape}".encode() if is_array else name.encode())
        digest.update(np.ascontiguousarray(value).data if is_array else repr(value).encode())
    return digest.intdigest() & _DIGEST_BITS


def _class_lists(items: Any, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return attribute -> class names, for the first group of usual names that the object has.

    A part of a dataset, such as torch's ``Subset``, has the names of the dataset; several datasets in
    one, as in ``ConcatDataset``, must have the same names.
    """
    info = getattr(items, "info", None)  # MedMNIST has the names in its entry ``label``
    values = {name: getattr(items, name, None) for name in names}
    values |= {"info['label']": info.get("label")} if isinstance(info, Mapping) else {}
    lists = {name: listed for name, value in values.items() if (listed := names_in(value))}
    if lists := {name: listed for name, listed in lists.items() if not _are_of_items(listed, items)}:
        return lists
    if hasattr(items, "dataset") and hasattr(items, "indices"):
        return _class_lists(items.dataset, names)
    parts = getattr(items, "datasets", None)
    if isinstance(parts, (list, tuple)) and parts and hasattr(items, "cumulative_sizes"):
        first, *others = (_class_lists(part, names) for part in parts)
        for lists in others:
            if (ours := [*first.values()][:1]) != (theirs := [*lists.values()][:1]):
                raise LabelError(
                    f"the {type(items).__name__} has datasets with different classes "
                    f"({'; '.join(quoted(*lists) if lists else 'none' for lists in (ours, theirs))}), whose numbers "
                    "differ: pack them one at a time, and merge the results"
                )
        return first
    return {}


def _are_of_items(names: tuple[str, ...], items: Any) -> bool:
    """Return whether names are the class of each item: then a name occurs several times."""
    return len({*names}) < len(names) == len(items)


def _number_of(label: Any) -> int | None:
    """Return the class number that a label is, also as a list with a single 1; None for names and several labels."""
    if not isinstance(label, (list, tuple)):
        return parse(label).number
    return label.index(1) if len(label) > 1 and label.count(1) == 1 and {*label} == {0, 1} else None


def _targets_of(items: Any) -> tuple[Sequence[Any] | None, bool]:
    """Return the labels that class names belong to, if an attribute has them, and whether a function changes them.

    The labels are from the dataset that has the class names, see `_class_lists`. Only ``targets`` are compared without
    a ``target_transform``: other attributes may have other labels.
    """
    is_transformed = getattr(items, "target_transform", None) is not None
    for name in ("targets", "labels", "_labels", "y") if is_transformed else ("targets",):
        values: Any = getattr(items, name, None)
        if hasattr(values, "__getitem__") and hasattr(values, "__len__") and len(values) == len(items):
            return values, is_transformed
    if is_transformed or any(names_in(getattr(items, name, None)) for name in (*CLASS_LISTS, *MAYBE_LISTS)):
        return None, is_transformed
    if hasattr(items, "dataset") and hasattr(items, "indices"):
        values, is_transformed = _targets_of(items.dataset)
        return None if values is None else [values[int(index)] for index in items.indices], is_transformed
    parts = getattr(items, "datasets", None)
    if isinstance(parts, (list, tuple)) and hasattr(items, "cumulative_sizes"):
        targets = [_targets_of(part) for part in parts]
        lists = [values for values, _ in targets if values is not None]
        is_transformed = any(is_changed for _, is_changed in targets)
        return None if len(lists) < len(targets) else [target for values in lists for target in values], is_transformed
    return None, False


_Row = dict[str, Any]


def is_stream(value: Any) -> bool:
    """Return whether an object is a stream that can be continued from a state, as streams of ``datasets`` can."""
    methods = ("__iter__", "state_dict", "load_state_dict", "decode")
    return not hasattr(value, "__len__") and all(hasattr(value, name) for name in methods)


class StreamSource(RecordSource):
    """An ``IterableDataset`` of ``datasets`` with known features.

    It has no ``shuffle()`` and no random functions: it must yield the same each time.
    """

    kind = "stream"
    unit = "row"
    part = "column"
    in_process = True

    def __init__(self, stream: Any, options: SourceOptions | None = None) -> None:
        super().__init__("stream", options)
        if stream.features is None:
            raise OptionError(
                "the features of the stream are not known, as after map(): give them with stream.cast(features)"
            )
        self._stream = stream.decode(False)  # bytes of images, as they are stored
        self.name = "/".join(map(str, filter(None, (stream.info.dataset_name, stream.split)))) or "stream"
        self.class_lists, self._changes = named_lists(class_lists_of(stream.features), self.options.classes)
        self._starts: list[tuple[int, Any]] = []  # of each group: first row, and state there; None at the start
        self._rows: Iterator[_Row] | None = None
        self._next = -1  # the group that `_rows` continues with

    def collect(self, collector: Collector) -> None:
        super().collect(collector)
        collector.stamp = str(digest_of({entry.path: entry.location for entry in collector.inputs}))
        if collector.inputs:
            self._check_state(collector.inputs[-1])

    def items(self) -> Iterator[Item]:
        """Yield the rows, keeping the state of the stream at the start of each group."""
        filled, state = 0, None
        self._starts = [(0, None)]
        for row, cells in enumerate(self._all()):
            values = self._stored(cells)
            size = _bytes_in([values])
            if filled and filled + size > WINDOW_BYTES:
                self._starts.append((row, state))
                filled = 0
            filled += size
            state = self._stream.state_dict()
            yield Item(f"{self.name}#{row}", (row, digest_of(values)), values, len(self._starts) - 1)

    def values(self, entry: Input) -> Mapping[str, Any]:
        row, digest = entry.location
        start, _ = self._starts[entry.group]
        rows = self._group(entry.group)
        if row - start >= len(rows) or digest_of(rows[row - start]) != digest:
            raise self._differs(row)
        return rows[row - start]

    def _stored(self, cells: _Row) -> dict[str, Any]:
        return stored_values(renumbered(cells, self._changes))

    def _all(self) -> Iterator[_Row]:
        try:
            yield from self._stream
        except ValueError as error:
            names = (getattr(error, name, None) for name in ("table_column_names", "requested_column_names"))
            file_columns, expected = (set(columns or ()) for columns in names)  # of a CastError
            if isinstance(error, pa.ArrowInvalid):
                raise SourceError(
                    f"a file of {self.name} has a column with a different type from the features of the stream: "
                    f"{one_line(error)}: write all files with one type, or pack the files by their path"
                ) from error
            if not file_columns ^ expected:
                raise
            raise SourceError(
                f"a file of {self.name} has columns that differ from the features of the stream; only one of them has "
                f"{quoted(sorted(file_columns ^ expected))}: pass features= with the columns of all files to "
                "load_dataset(), or pack the files by their path"
            ) from error

    @cached_property
    def _cache(self) -> LRUCache[int, list[_Row]]:
        return LRUCache(max_bytes=2 * WINDOW_BYTES)  # a window can have parts of two groups

    def _group(self, group: int) -> list[_Row]:
        return self._cache.load(group, lambda: self._read_group(group), _bytes_in)

    def _read_group(self, group: int) -> list[_Row]:
        """Return the rows of a group. If it follows the last one read, the stream is continued, not opened again."""
        if group != self._next or self._rows is None:
            self._rows = self._from(group)
        start = self._starts[group][0]
        count = self._starts[group + 1][0] - start if group + 1 < len(self._starts) else None
        self._next = group + 1
        return [self._stored(cells) for cells in islice(self._rows, count)]

    def _from(self, group: int) -> Iterator[_Row]:
        """Return the rows of the stream from the start of a group."""
        stream, state = self._stream.decode(False), self._starts[group][1]  # decode() returns a new stream
        if state is not None:
            stream.load_state_dict(state)
        return iter(stream)

    def _check_state(self, last: Input) -> None:
        """Read the last row again from a state: a stream with a shuffle buffer would continue with other rows."""
        row, digest = last.location
        start, state = self._starts[last.group]
        if state is None or not row:
            return
        rows = self._from(last.group)
        for _ in range(row - start):
            next(rows, None)
        if digest_of(self._stored(next(rows, {}))) != digest:
            raise self._differs(row)

    def _differs(self, row: int) -> OptionError:
        return OptionError(
            f"row {row} of {self.name} differs when it is read again: pass the stream without shuffle() and without "
            "random functions; pack shuffles the samples itself"
        )


def _bytes_in(rows: list[_Row]) -> int:
    return sum(len(value) for row in rows for value in row.values() if isinstance(value, bytes))
