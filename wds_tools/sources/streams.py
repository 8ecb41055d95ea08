"""Streams of Hugging Face's ``datasets``: what ``load_dataset(..., streaming=True)`` returns.

A stream has no length and no positions, so it is read twice: once to list the samples, and once to pack them. While it
is listed, its state is kept every `WINDOW_BYTES`, so that the second pass can begin there. It is packed in this
process, because the stream may use functions of the user's script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.label import quoted
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.base import (
    WINDOW_BYTES,
    Collector,
    SourceOptions,
)
from wds_tools.sources.inputs import Input
from wds_tools.sources.label_choice import class_lists_of
from wds_tools.sources.objects import digest_of, stored_values
from wds_tools.sources.records import Item, RecordSource
from wds_tools.wording import one_line

_Row = dict[str, Any]


def is_stream(value: Any) -> bool:
    """Return whether an object is a stream that can be continued from a state, as those of ``datasets`` can."""
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
        self.class_lists = class_lists_of(stream.features)
        self._starts: list[tuple[int, Any]] = []  # of each group: first row, and state there; None at the start
        self._rows: Iterator[_Row] | None = None
        self._next = -1  # the group that `_rows` continues with

    def collect(self, found: Collector) -> None:
        super().collect(found)
        found.stamp = str(digest_of({entry.path: entry.location for entry in found.inputs}))
        if found.inputs:
            self._check_state(found.inputs[-1])

    def items(self) -> Iterator[Item]:
        """Yield the rows, keeping the state of the stream at the start of each group."""
        filled, state = 0, None
        self._starts = [(0, None)]
        for row, cells in enumerate(self._all()):
            values = stored_values(cells)
            size = _bytes_in([values])
            if filled and filled + size > WINDOW_BYTES:
                self._starts.append((row, state))
                filled = 0
            filled += size
            state = self._stream.state_dict()
            yield Item(f"{self.name}#{row}", (row, digest_of(values)), values, len(self._starts) - 1)

    def values(self, entry: Input) -> Mapping[str, Any]:
        row, number = entry.location
        start, _ = self._starts[entry.group]
        rows = self._group(entry.group)
        if row - start >= len(rows) or digest_of(rows[row - start]) != number:
            raise self._differs(row)
        return rows[row - start]

    def _all(self) -> Iterator[_Row]:
        try:
            yield from self._stream
        except ValueError as error:
            names = (getattr(error, name, None) for name in ("table_column_names", "requested_column_names"))
            found, expected = (set(one or ()) for one in names)  # of a CastError
            if isinstance(error, pa.ArrowInvalid):
                raise SourceError(
                    f"a file of {self.name} has a column with a different type from the features of the stream: "
                    f"{one_line(error)}: write all files with one type, or pack the files by their path"
                ) from error
            if not found ^ expected:
                raise
            raise SourceError(
                f"a file of {self.name} has columns that differ from the features of the stream; only one of them has "
                f"{quoted(sorted(found ^ expected))}: pass features= with the columns of all files to load_dataset(), "
                "or pack the files by their path"
            ) from error

    @cached_property
    def _cache(self) -> LRUCache[int, list[_Row]]:
        return LRUCache(max_bytes=2 * WINDOW_BYTES)  # a window can have parts of two groups

    def _group(self, number: int) -> list[_Row]:
        return self._cache.load(number, lambda: self._read_group(number), _bytes_in)

    def _read_group(self, number: int) -> list[_Row]:
        """Return the rows of a group. If it follows the last one read, the stream is continued, not opened again."""
        if number != self._next or self._rows is None:
            self._rows = self._from(number)
        start = self._starts[number][0]
        count = self._starts[number + 1][0] - start if number + 1 < len(self._starts) else None
        self._next = number + 1
        return [stored_values(values) for values in islice(self._rows, count)]

    def _from(self, group: int) -> Iterator[_Row]:
        """Return the rows of the stream, beginning with those of a group."""
        stream, state = self._stream.decode(False), self._starts[group][1]  # decode() returns a new stream
        if state is not None:
            stream.load_state_dict(state)
        return iter(stream)

    def _check_state(self, last: Input) -> None:
        """Read the last row again from a state: a stream with a shuffle buffer would continue with other rows."""
        row, number = last.location
        start, state = self._starts[last.group]
        if state is None or not row:
            return
        rows = self._from(last.group)
        for _ in range(row - start):
            next(rows, None)
        if digest_of(stored_values(next(rows, {}))) != number:
            raise self._differs(row)

    def _differs(self, row: int) -> OptionError:
        return OptionError(
            f"row {row} of {self.name} differs when it is read again: pass the stream without shuffle() and without "
            "random functions; pack shuffles the samples itself"
        )


def _bytes_in(rows: list[_Row]) -> int:
    return sum(len(value) for row in rows for value in row.values() if isinstance(value, bytes))
