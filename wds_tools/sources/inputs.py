"""What a source lists: one row for each image, in columns of Arrow. Millions of rows take about 50 bytes each."""

from __future__ import annotations

import json
import mmap
import tempfile
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import pairwise, repeat
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wds_tools.format.index import number_array
from wds_tools.format.tar import BLOCK, MAX_OCTAL_SIZE, member_bytes, padded
from wds_tools.lru_cache import LRUCache

BATCH_ROWS = 1 << 16
"""Number of rows of a batch; only these are Python objects at the same time."""

_ROWS_IN_MEMORY = 1 << 20  # further ones are in temporary files without a name, and mapped
_MOST_MAPS = 64  # roughly
_WINDOW_ROWS = 1 << 21  # batches of a larger listing in another order, which are in memory together
_Place = tuple[int, int, pa.Schema]  # start, length and schema of rows in a file
_KINDS = (np.int8, np.int16, np.int32, np.int64)


class File(NamedTuple):
    """A file of a tree: of a folder, or in an archive.

    Attributes:
        path: Path below the root, with slashes; bytes that are not UTF-8 are surrogate escapes.
        size: Length in bytes.
        location: Numbers with which the tree finds the file again.
        reason: Why it cannot be read; empty if it can.
        version: Text that changes with the content, if the storage has one.
    """

    path: str
    size: int
    location: tuple[int, ...] = ()
    reason: str = ""
    version: str = ""


class Input(NamedTuple):
    """One image to pack, without its bytes.

    Attributes:
        path: Name in the source: a path, UTF-8 with surrogate escapes, or ``file#row``.
        size: Length of the image in bytes: exact, an upper bound, or an estimate where the docstring of
            the source states that.
        label: Class number; None in a source without labels.
        location: Numbers with which the source finds the record again.
        group: Index of a chunk or row group, whose records are cheap to read together; -1 without
            groups.
        extra: Bytes that the other fields take in a shard, as exact as ``size``.
        parts: Field -> further file of this sample, if the source is a tree of files.
        facts: Entries for the ``json`` field that are known from the listing, as compressed JSON; empty without any.
        labels: Class numbers, in a source whose samples may have several labels; otherwise None.
    """

    path: str
    size: int
    label: int | None
    location: tuple[int, ...] = ()
    group: int = -1
    extra: int = 0
    parts: tuple[tuple[str, File], ...] = ()
    facts: bytes = b""
    labels: tuple[int, ...] | None = None


_NO_LABEL = -1  # in the column ``label``
_DEFAULTS: dict[str, Any] = dict(Input._field_defaults)
_TYPES: dict[str, pa.DataType] = {
    "path": pa.large_binary(),
    "size": pa.int64(),
    "label": pa.int64(),
    "location": pa.large_list(pa.int64()),
    "group": pa.int64(),
    "extra": pa.int64(),
    "parts": pa.large_binary(),
    "facts": pa.large_binary(),
    "labels": pa.large_list(pa.int64()),
}
"""Columns of a batch. A column is missing if all its rows have the default of the field."""


class InputRows(Sequence[Input]):
    """Inputs as rows of Arrow batches. A slice is a list."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield these rows as batches of at most `BATCH_ROWS`."""

    @overload
    def __getitem__(self, index: int) -> Input: ...
    @overload
    def __getitem__(self, index: slice) -> list[Input]: ...
    def __getitem__(self, index: int | slice) -> Input | list[Input]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[position] for position in range(start, stop, step)]
            return [entry for batch in self.rows(start, max(start, stop)) for entry in to_inputs(batch)]
        position = range(len(self))[index]
        return next(to_inputs(next(self.rows(position, position + 1))))

    def __iter__(self) -> Iterator[Input]:
        for batch in self.rows(0, len(self)):
            yield from to_inputs(batch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it can grow

    def numbers(self, column: str) -> NDArray[np.int64]:
        """Return a column of numbers: int64 [n], -1 where a row has none."""
        parts = [numbers_of(batch, column) for batch in self.rows(0, len(self))]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def different(self, column: str) -> set[int]:
        """Return the different numbers of a column, -1 for a row that has none."""
        return set[int]().union(*(np.unique(numbers_of(batch, column)).tolist() for batch in self.rows(0, len(self))))

    @property
    def columns(self) -> list[str]:
        """Names of the columns in which any input has a value other than the default."""
        names = {name for batch in self.rows(0, len(self)) for name in batch.schema.names}
        return [name for name in _TYPES if name in names]

    @property
    def have_labels(self) -> bool:
        """Whether any input has one label."""
        return any((numbers_of(batch, "label") != _NO_LABEL).any() for batch in self.rows(0, len(self)))

    @property
    def have_groups(self) -> bool:
        """Whether any input is in a group."""
        return any((numbers_of(batch, "group") >= 0).any() for batch in self.rows(0, len(self)))

    @property
    def bytes(self) -> int:
        """Length of all images in bytes."""
        return sum(int(numbers_of(batch, "size").sum()) for batch in self.rows(0, len(self)))

    @property
    def have_several_labels(self) -> bool:
        """Whether any input may have several labels."""
        return any("labels" in batch.schema.names for batch in self.rows(0, len(self)))


class Inputs(InputRows):
    """Inputs in the order in which they are appended. The inputs of a large source are in temporary files.

    Args:
        inputs: The first inputs.
    """

    def __init__(self, inputs: Iterable[Input] = ()) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._starts = [0]
        self._last: list[Input] = []  # they are not in a batch yet
        self._mapped = 0  # batches, the first ones
        for entry in inputs:
            self.append(entry)

    @classmethod
    def of(cls, inputs: Sequence[Input]) -> Inputs:
        """Return inputs as such a sequence."""
        return inputs if isinstance(inputs, Inputs) else cls(inputs)

    @classmethod
    def of_batches(cls, batches: Iterable[pa.RecordBatch]) -> Inputs:
        """Return the rows of batches."""
        inputs = cls()
        for batch in batches:
            inputs.add_batch(batch)
        return inputs

    def __len__(self) -> int:
        return self._starts[-1] + len(self._last)

    def append(self, entry: Input) -> None:
        """Add an input."""
        self._last.append(entry)
        if len(self._last) == BATCH_ROWS:
            self._flush()

    def append_images(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        """Add inputs that have only a path and a size."""
        for start in range(0, len(paths), BATCH_ROWS):
            part = paths[start : start + BATCH_ROWS]
            no_labels = number_array(np.full(len(part), _NO_LABEL, np.int64))
            self.add_batch(
                _batch_of(
                    {"path": _paths(part), "size": _numbers(sizes[start : start + BATCH_ROWS]), "label": no_labels}
                )
            )

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._flush()
        self._append(batch)
        # The more there are already, the more are written together: each mapped file needs a descriptor.
        if self._starts[-1] - self._starts[self._mapped] > max(_ROWS_IN_MEMORY, self._starts[-1] // _MOST_MAPS):
            self._join_last(_stored)
            self._mapped = len(self._batches)

    def _join_last(self, join: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch]) -> None:
        """Make one batch of those that are in memory."""
        self._batches[self._mapped :] = [join(self._batches[self._mapped :])]
        self._starts[self._mapped + 1 :] = self._starts[-1:]

    def _append(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._starts.append(self._starts[-1] + len(batch))

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield these rows as batches."""
        self._flush()
        batch_index = bisect_right(self._starts, start) - 1
        while start < stop:
            first, end = self._starts[batch_index], min(stop, self._starts[batch_index + 1], start + BATCH_ROWS)
            yield self.batch(batch_index).slice(start - first, end - start)
            start, batch_index = end, batch_index + (end == self._starts[batch_index + 1])

    def batch(self, batch_index: int) -> pa.RecordBatch:
        """Return a batch."""
        return self._batches[batch_index]

    def with_labels(self, numbers: NDArray[np.int64], several: Sequence[tuple[int, ...] | None] | None) -> Inputs:
        """Return inputs with other labels.

        Args:
            numbers: Class number of each, int64 [n]; -1 for none.
            several: Class numbers of each, where samples may have several labels.
        """
        self._flush()
        result = Inputs()
        for batch, start, stop in zip(self._batches, self._starts[:-1], self._starts[1:], strict=True):
            columns = {name: batch.column(name) for name in batch.schema.names if name not in ("label", "labels")}
            columns["label"] = _smallest(number_array(numbers[start:stop]))
            if several is not None:
                columns["labels"] = _lists(several[start:stop])
            result._append(_batch_of(columns))  # the other columns are those of this batch
        result._mapped = self._mapped
        return result

    def chosen(self, positions: NDArray[np.signedinteger]) -> Inputs:
        """Return some inputs, by their positions: whole numbers [n]."""
        ordered = Ordered(self, positions)
        return Inputs.of_batches(
            ordered.taken(positions[start : start + BATCH_ROWS]) for start in range(0, len(positions), BATCH_ROWS)
        )

    def parts(self) -> Sequence[pa.RecordBatch]:
        """Return all rows as few batches, from which rows are taken in any order."""
        self._flush()
        if len(self._batches) - self._mapped > 1:
            self._join_last(_joined)
        return self._batches

    def _flush(self) -> None:
        if self._last:
            last, self._last = self._last, []
            self.add_batch(to_batch(last))


class Ordered(InputRows):
    """Inputs in another order.

    If there are many, the first pass writes them to a temporary file, divided into windows of the new order. Each pass
    reads one window at a time. Reading rows from everywhere would be slow if the memory is smaller than the listing.

    Args:
        inputs: The inputs.
        order: Positions of inputs, each at most once: whole numbers [n].
    """

    def __init__(self, inputs: Inputs, order: NDArray[np.signedinteger]) -> None:
        self._parts, self._order = tuple(inputs.parts()), order
        self._ends = np.cumsum([len(part) for part in self._parts])
        self._windows: list[list[_Place]] | None = None
        self._file = memoryview(b"")
        self._recent = LRUCache[int, pa.RecordBatch](max_items=1)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def columns(self) -> list[str]:
        return _names(self._parts)

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield these rows as batches."""
        if self._windows is None and stop - start > _WINDOW_ROWS:
            self._windows = self._divided()
        while start < stop:
            window, first = divmod(start, _WINDOW_ROWS)
            end = min(stop, start + BATCH_ROWS, (window + 1) * _WINDOW_ROWS)
            if self._windows:
                yield self._window(window, self._windows[window]).slice(first, end - start)
            else:
                yield self.taken(self._order[start:end])
            start = end

    def taken(self, positions: NDArray[np.signedinteger]) -> pa.RecordBatch:
        """Return inputs by their positions before they were ordered: whole numbers [n]."""
        if len(self._parts) == 1:
            return self._parts[0].take(number_array(positions))
        part_of = np.searchsorted(self._ends, positions, side="right").astype(np.int16)  # which is sorted fast
        by_part = np.argsort(part_of, kind="stable")
        counts = np.bincount(part_of, minlength=len(self._parts))
        stops = np.cumsum(counts)
        taken = [
            part.take(number_array(positions[by_part[stop - count : stop]] - (end - len(part))))
            for part, stop, count, end in zip(self._parts, stops, counts, self._ends, strict=True)
            if count
        ]
        return _joined(taken).take(number_array(_inverse(by_part)))

    def _window(self, window: int, places: Iterable[_Place]) -> pa.RecordBatch:
        """Return the rows of a window."""
        if (batch := self._recent.get(window)) is not None:
            return batch
        parts = [
            pa.ipc.read_record_batch(pa.py_buffer(self._file[start : start + length]), schema)
            for start, length, schema in places
        ]
        order = self._order[window * _WINDOW_ROWS : (window + 1) * _WINDOW_ROWS]
        batch = _joined(parts).take(number_array(_inverse(np.argsort(order))))
        self._recent.put(window, batch)
        return batch

    def _divided(self) -> list[list[_Place]]:
        """Write the rows to a file by window, and return where their parts are; nothing if that is impossible."""
        starts = range(0, len(self._order), _WINDOW_ROWS)
        windows: list[list[_Place]] = [[] for _ in starts]
        window_of = np.full(self._ends[-1], -1, np.int16)
        for window, start in enumerate(starts):
            window_of[self._order[start : start + _WINDOW_ROWS]] = window
        try:
            with tempfile.TemporaryFile() as file:
                for part, end in zip(self._parts, self._ends.tolist(), strict=True):
                    for first in range(0, len(part), _ROWS_IN_MEMORY):
                        rows = part.slice(first, _ROWS_IN_MEMORY)
                        windows_of = window_of[end - len(part) + first :][: len(rows)]
                        by_window = rows.take(number_array(np.argsort(windows_of, kind="stable")))
                        stops = np.searchsorted(np.sort(windows_of), np.arange(-1, len(windows)), side="right").tolist()
                        for window, (start, stop) in enumerate(pairwise(stops)):
                            if start < stop:
                                length = file.write(by_window.slice(start, stop - start).serialize())
                                windows[window].append((file.tell() - length, length, rows.schema))
                file.flush()
                self._file = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError:
            return []
        return windows


def _inverse(order: NDArray[np.signedinteger]) -> NDArray[np.int64]:
    """Return the position of each number in a permutation: int64 [n]."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one."""
    return _batch_of(
        {name: _concatenated([_column(batch, name) for batch in batches], name) for name in _names(batches)}
    )


def _names(batches: Sequence[pa.RecordBatch]) -> list[str]:
    """Return the names of the columns that any batch has."""
    return [name for name in _TYPES if any(name in batch.schema.names for batch in batches)]


def _concatenated(arrays: Sequence[pa.Array], name: str) -> pa.Array:
    are_same = all(array.type == arrays[0].type for array in arrays)
    return pa.concat_arrays(arrays if are_same else [_as_stated(array, name) for array in arrays])


def _stored(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one with the smallest types, which is in a file, if that can be written."""
    columns = {}
    for name in _names(batches):  # one after the other, so that only one is in memory twice
        columns[name] = _smallest(_concatenated([_column(batch, name) for batch in batches], name))
    batch = _batch_of(columns)
    try:
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
            file.flush()
            mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError:
        return batch
    return pa.ipc.open_stream(mapped).read_next_batch()


def _smallest(array: pa.Array) -> pa.Array:
    """Return numbers, or the places of texts, in the fewest bytes."""
    if array.type == pa.int64() and not array.null_count:
        values = np.from_dlpack(array)
        least, most = values.min(initial=0), values.max(initial=0)
        return number_array(
            values.astype(next(k for k in _KINDS if np.iinfo(k).min <= least and most <= np.iinfo(k).max))
        )
    if array.type == pa.large_binary() and (offsets := offsets_of(array))[-1] <= np.iinfo(np.int32).max:
        return pa.Array.from_buffers(
            pa.binary(), len(array), [None, pa.py_buffer(offsets.astype(np.int32)), array.buffers()[2]]
        )
    return array


def _as_stated(array: pa.Array, name: str) -> pa.Array:
    """Return a column in the type of `_TYPES`."""
    if array.type == _TYPES[name]:
        return array
    if array.type == pa.binary():
        buffers = [None, pa.py_buffer(offsets_of(array).astype(np.int64)), array.buffers()[2]]
        return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)
    return number_array(np.asarray(np.from_dlpack(array), np.int64))


def offsets_of(texts: pa.Array) -> NDArray[np.signedinteger]:
    """Return where each text starts in its buffer, and where the last one ends: int32 or int64 [n + 1]."""
    kind: type[np.signedinteger] = np.int32 if texts.type == pa.binary() else np.int64
    offsets: NDArray[np.signedinteger] = np.frombuffer(texts.buffers()[1], kind)
    return offsets[texts.offset : texts.offset + len(texts) + 1]


def to_batch(inputs: Sequence[Input]) -> pa.RecordBatch:
    """Return inputs as rows. Columns in which all have the default are missing."""
    columns = {}
    for name, values in zip(Input._fields, zip(*inputs, strict=True), strict=True):
        if name not in _DEFAULTS or values.count(_DEFAULTS[name]) < len(values):
            columns[name] = _ENCODED[name](values)
    return _batch_of(columns)


def to_inputs(batch: pa.RecordBatch) -> Iterator[Input]:
    """Yield the inputs of rows."""
    columns: list[Iterable[Any]] = []
    for name in Input._fields:
        if name in batch.schema.names:
            values = batch.column(name).to_pylist()
            columns.append(map(_DECODED[name], values) if name in _DECODED else values)
        else:
            columns.append(repeat(_DEFAULTS[name], batch.num_rows))
    return map(Input._make, zip(*columns, strict=True))


def numbers_of(batch: pa.RecordBatch, column: str) -> NDArray[np.int64]:
    """Return a column of numbers: int64 [n], -1 where a row has no label."""
    return np.asarray(np.from_dlpack(_column(batch, column)), np.int64)


def path_text(data: bytes) -> str:
    """Return a path as text; bytes that are not UTF-8 become surrogate escapes."""
    return data.decode("utf-8", "surrogateescape")


def path_bytes(path: str) -> bytes:
    """Return the bytes of a path: the inverse of `path_text`."""
    return path.encode("utf-8", "surrogateescape")


def with_same(paths: Sequence[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    """Return the paths that have the same key as another one, by their key. Hashes take less memory than texts."""
    hashes = np.fromiter((hash(key(path)) for path in paths), np.int64, len(paths))
    hashes.sort()
    twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    groups: dict[str, list[str]] = {}
    for path in paths if twice else ():
        if hash(text := key(path)) in twice:
            groups.setdefault(text, []).append(path)
    return {text: same for text, same in groups.items() if len(same) > 1}


def lists_of(batch: pa.RecordBatch) -> Iterable[tuple[int, ...] | None]:
    """Return the several labels of rows."""
    if "labels" not in batch.schema.names:
        return repeat(None, len(batch))
    return map(_DECODED["labels"], batch.column("labels").to_pylist())


def field_bytes(size: int) -> int:
    """Return the bytes that a field of ``size`` bytes takes in a shard."""
    # The packer's member names are short and ASCII, so the header is one block unless the size
    # needs a pax record.
    return BLOCK + padded(size) if size <= MAX_OCTAL_SIZE else member_bytes("000000000.jpg", size)


def same_columns(batches: Iterable[pa.RecordBatch], names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches that all have these columns."""
    names = list(names)
    for batch in batches:
        yield _batch_of({name: _as_stated(_column(batch, name), name) for name in names})


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Return the schema of batches with these columns."""
    return pa.schema([(name, _TYPES[name]) for name in names])


def _batch_of(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column, with the default in each row if the batch lacks it."""
    return batch.column(name) if name in batch.schema.names else _ENCODED[name]([_DEFAULTS[name]] * len(batch))


# pa.array() would import pandas if it is installed, which takes 0.2 s in every process that packs.
def _numbers(values: Sequence[int]) -> pa.Array:
    return number_array(np.fromiter(values, np.int64, len(values)))


def _label_numbers(labels: Sequence[int | None]) -> pa.Array:
    return _numbers([_NO_LABEL if label is None else label for label in labels])


def _paths(paths: Sequence[str]) -> pa.Array:
    text = "".join(paths)
    if not text.isascii():
        return _texts(list(map(path_bytes, paths)))
    buffers = [None, _ends(paths), pa.py_buffer(text.encode())]
    return pa.Array.from_buffers(pa.large_binary(), len(paths), buffers)


def _texts(data: Sequence[bytes]) -> pa.Array:
    buffers = [None, _ends(data), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(data), buffers)


def _all_parts(values: Sequence[tuple[tuple[str, File], ...]]) -> pa.Array:
    return _texts([json.dumps(parts).encode() if parts else b"" for parts in values])


def _lists(values: Sequence[tuple[int, ...] | None]) -> pa.Array:
    present = np.array([value is not None for value in values], np.bool_)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    lists = [value or () for value in values]
    numbers = _numbers([class_number for numbers in lists for class_number in numbers])
    buffers = [valid, _ends(lists)]
    return pa.Array.from_buffers(_TYPES["labels"], len(lists), buffers, children=[numbers])


def _ends(values: Sequence[Sized]) -> pa.Buffer:
    return pa.py_buffer(np.cumsum([0, *map(len, values)], dtype=np.int64))


_ENCODED: dict[str, Callable[[Any], pa.Array]] = {
    "path": _paths,
    "size": _numbers,
    "label": _label_numbers,
    "location": _lists,
    "group": _numbers,
    "extra": _numbers,
    "parts": _all_parts,
    "facts": _texts,
    "labels": _lists,
}


def _label(class_number: int) -> int | None:
    return None if class_number == _NO_LABEL else class_number


def _parts(data: bytes) -> tuple[tuple[str, File], ...]:
    if not data:
        return ()
    return tuple(
        (field, File(path, size, tuple(location), *more)) for field, (path, size, location, *more) in json.loads(data)
    )


def _tuple(numbers: list[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)


_DECODED: dict[str, Callable[[Any], Any]] = {
    "path": path_text,
    "label": _label,
    "location": _tuple,
    "parts": _parts,
    "labels": _tuple,
}
