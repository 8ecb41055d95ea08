"""Streams of Hugging Face's ``datasets``: what ``load_dataset(..., streaming=True)`` returns.

A stream has no length and no positions, so it is read twice: once to list the samples, and once to pack them. While it
is listed, its state is kept every `WINDOW_BYTES`, so that the second pass can begin there. It is packed in this
process, because the stream may use functions of the user's script.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import fsspec
import pyarrow as pa
import xxhash

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.label import quoted
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.arrow_columns import Columns, image_of, to_facts, to_record
from wds_tools.sources.base import (
    WINDOW_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    SourceStoreError,
    field_bytes,
    is_system_error,
)
from wds_tools.sources.columns import facts_bytes
from wds_tools.sources.roles import Roles, add_rows
from wds_tools.wording import one_line

_DIGEST_BITS = (1 << 62) - 1
_HEAD_ROWS = 8
_Row = dict[str, Any]


def is_stream(value: Any) -> bool:
    """Return whether an object is a stream that can be continued from a state, as those of ``datasets`` can."""
    methods = ("__iter__", "state_dict", "load_state_dict", "decode")
    return not hasattr(value, "__len__") and all(hasattr(value, name) for name in methods)


class StreamSource(Source):
    """An ``IterableDataset`` of ``datasets`` with known features.

    It has no ``shuffle()`` and no random functions: it must yield the same each time.
    """

    kind = "stream"
    unit = "row"
    in_process = True

    def __init__(self, stream: Any, options: SourceOptions | None = None) -> None:
        super().__init__("stream", options)
        if stream.features is None:
            raise OptionError(
                "the features of the stream are not known, as after map(): give them with stream.cast(features)"
            )
        self._stream = stream.decode(False)  # bytes of images, as they are stored
        self.name = "/".join(map(str, filter(None, (stream.info.dataset_name, stream.split)))) or "stream"
        self._starts: list[
            tuple[int, Any]
        ] = []  # of each group: first row, and state of the stream there; None at its start
        self._rows: Iterator[_Row] | None = None
        self._next = -1  # the group that `_rows` continues with
        self._roles = Roles("")

    def collect(self, found: Collector) -> None:
        """Add the rows, reading the whole stream.

        Raises:
            SourceError: There is not exactly one column of images and of labels, or no image.
            OptionError: The stream cannot be continued in the middle.
        """
        digest, filled, last = xxhash.xxh3_128(), 0, (0, 0)
        state: Any = None
        columns = Columns.of([self._stream.features.arrow_schema], [self.name], self.name)
        roles = self._roles = columns.roles(self.columns, self._head)
        labels = columns.labels(roles, self.options)
        entries: list[Input | None] = []
        self._starts = [(0, None)]
        for row, values in enumerate(self._all()):
            found.account.given += 1
            path, content = f"{self.name}#{row}", self._with_bytes(values)
            number = _digest(content)
            digest.update(number.to_bytes(8, "little"))
            size, extra = _sizes(content, roles)
            labels.add(values)
            if filled and filled + size > WINDOW_BYTES:
                self._starts.append((row, state))
                filled = 0
            filled += size
            state, last = self._stream.state_dict(), (row, number)
            entries.append(Input(path, size, None, (row, number), len(self._starts) - 1, extra) if size else None)
            if not size:
                file = image_of(values.get(roles.image))[1]
                found.skip(path, f"{file} cannot be read" if file else "has no image")
        self._check_state(last)
        add_rows(found, roles, entries, labels.choose(), declared=columns.types)
        columns.collect_classes(found, roles)
        found.stamp = digest.hexdigest()

    def read(self, entry: Input) -> Record:
        """Read a row.

        Raises:
            SourceError: The row contains no image.
            OptionError: The row is another one than was listed.
        """
        row, number = entry.location
        start, _ = self._starts[entry.group]
        rows = self._group(entry.group)
        if row - start >= len(rows) or _digest(rows[row - start]) != number:
            raise self._differs(row)
        return to_record(rows[row - start], self._roles)

    def _all(self) -> Iterator[_Row]:
        """Yield all rows.

        Raises:
            SourceError: A file of the stream has other columns, or other types of columns, than its features.
        """
        try:
            yield from self._stream
        except ValueError as error:
            names = (getattr(error, name, None) for name in ("table_column_names", "requested_column_names"))
            found, expected = (set(one or ()) for one in names)  # of a CastError
            if isinstance(error, pa.ArrowInvalid):
                raise SourceError(
                    f"a file of {self.name} has a column of another type than the features of the stream: "
                    f"{one_line(error)}: write all files with one type, or pack the files by their path"
                ) from error
            if not found ^ expected:
                raise
            raise SourceError(
                f"a file of {self.name} has other columns than the features of the stream; only one of both has "
                f"{quoted(sorted(found ^ expected))}: pass features= with the columns of all files to load_dataset(), "
                "or pack the files by their path"
            ) from error

    def _head(self, name: str) -> list[Any]:
        """Return the first values of a column."""
        return [row.get(name) for row in islice(self._all(), _HEAD_ROWS)]

    @cached_property
    def _loaded(self) -> LRUCache[int, list[_Row]]:
        return LRUCache(max_bytes=2 * WINDOW_BYTES)

    def _group(self, number: int) -> list[_Row]:
        """Return the rows of a group. If it follows the last one read, the stream is continued, not opened again."""
        rows = self._loaded.get(number)
        if rows is not None:
            return rows
        if number != self._next or self._rows is None:
            self._rows = self._from(number)
        start = self._starts[number][0]
        count = self._starts[number + 1][0] - start if number + 1 < len(self._starts) else None
        rows = []
        for values in self._rows:
            rows.append(self._with_bytes(values))
            if len(rows) == count:
                break
        self._next = number + 1
        self._loaded.put(number, rows, sum(_sizes(row, self._roles)[0] for row in rows))
        return rows

    def _from(self, group: int) -> Iterator[_Row]:
        """Return the rows of the stream, beginning with those of a group."""
        stream, state = self._stream.decode(False), self._starts[group][1]  # decode() returns a new stream
        if state is not None:
            stream.load_state_dict(state)
        return iter(stream)

    def _check_state(self, last: tuple[int, int]) -> None:
        """Read the last row again from a state: a stream with a shuffle buffer would continue with other rows."""
        row, number = last
        start = self._starts[-1][0]
        if self._starts[-1][1] is None or not row:
            return
        rows = self._from(len(self._starts) - 1)
        for _ in range(row - start):
            next(rows, None)
        if _digest(self._with_bytes(next(rows, {}))) != number:
            raise self._differs(row)

    def _differs(self, row: int) -> OptionError:
        return OptionError(
            f"row {row} of {self.name} differs when it is read again: pass the stream without shuffle() and without "
            "random functions; pack shuffles the samples itself"
        )

    def _with_bytes(self, values: _Row) -> _Row:
        """Return a row with the bytes of images that it names by path or URL only."""
        row = dict(values)
        for name in (self._roles.image, *self._roles.more_images):
            cell = row.get(name)
            if isinstance(cell, dict) and cell.get("bytes") is None and cell.get("path"):
                try:
                    with fsspec.open(cell["path"], "rb") as file:
                        row[name] = {**cell, "bytes": file.read()}
                except (OSError, ValueError) as error:
                    if is_system_error(error) and not isinstance(error, FileNotFoundError):
                        raise SourceStoreError(f"{cell['path']} cannot be read: {error}") from error
                    continue  # the sample is skipped, with the path as the reason
        return row


def _digest(row: _Row) -> int:
    """Return a hash of the values of a row."""
    digest = xxhash.xxh3_64()
    for name, value in sorted(row.items()):
        data = value.get("bytes") if isinstance(value, dict) else None
        digest.update(f"{name}\0".encode())
        digest.update(data if isinstance(data, bytes) else repr(value).encode())
    return digest.intdigest() & _DIGEST_BITS


def _sizes(row: _Row, roles: Roles) -> tuple[int, int]:
    """Return the bytes of the image, 0 without one, and those that its other fields take in a shard."""
    data, path = image_of(row.get(roles.image))
    others = [image_of(row.get(name))[0] or b"" for name in roles.more_images]
    extra = sum(field_bytes(len(other)) for other in others)
    extra += sum(field_bytes(len(str(row[name]).encode())) for name in roles.fields if row.get(name) is not None)
    return len(data or b""), extra + facts_bytes(to_facts(row, roles, path))
