"""The checksums of a shard and of its fields, computed while the bytes of the shard are read once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xxhash

from wds_tools.format.index import ABSENT, Index

_STEP_BYTES = 1 << 20  # bytes that are hashed for the shard and for fields while they are in the CPU cache


class ChangedField(NamedTuple):
    """A field whose bytes do not have the checksum that the index states."""

    key: str
    name: str
    offset: int
    size: int
    actual: int
    stated: int


class ShardChecksums:
    """Checksums of a shard and its fields."""

    def __init__(self, index: Index | None) -> None:
        self._index = index
        self._shard = xxhash.xxh3_128()
        columns = list(index.fields.items()) if index is not None else []
        parts = [np.flatnonzero(column.offset != ABSENT) for _, column in columns]
        self._names = [name for (name, _), rows in zip(columns, parts, strict=True) for _ in range(len(rows))]
        self._rows = np.concatenate([np.empty(0, np.int64), *parts])
        offsets, sizes, stated = (
            np.concatenate([np.empty(0, kind), *(values[rows] for values, rows in zip(arrays, parts, strict=True))])
            for kind, arrays in (
                (np.int64, [column.offset for _, column in columns]),
                (np.int64, [column.size for _, column in columns]),
                (np.uint64, [column.xxh3 for _, column in columns]),
            )
        )
        self._order = np.argsort(offsets, kind="stable").tolist()  # fields by offset
        self._offsets, self._sizes, self._stated = offsets.tolist(), sizes.tolist(), stated.tolist()
        self._next = 0  # position in the order
        self._unfinished: list[tuple[int, Any]] = []  # fields that end after the bytes so far, and their hash
        self._changed: list[tuple[int, int]] = []  # field, and the checksum that was found

    def add(self, offset: int, data: memoryview) -> None:
        """Add the bytes at ``offset``, which follow the bytes of the call before."""
        for start in range(0, len(data), _STEP_BYTES):
            self._add_step(offset + start, data[start : start + _STEP_BYTES])

    def shard_checksum(self) -> str:
        """Return the XXH3-128 of all bytes."""
        return self._shard.hexdigest()

    def changed_fields(self) -> Iterator[ChangedField]:
        """Yield the fields that have changed, in the order of the index. Call it after the last byte."""
        for field in self._order[self._next :]:  # fields at the end of the shard, which have no bytes
            self._compare(field, xxhash.xxh3_64_intdigest(b""))
        for field, state in self._unfinished:
            self._compare(field, state.intdigest())
        for field, actual in sorted(self._changed):
            assert self._index is not None
            key = self._index.keys[int(self._rows[field])]
            yield ChangedField(
                key, self._names[field], self._offsets[field], self._sizes[field], actual, self._stated[field]
            )

    def _add_step(self, offset: int, data: memoryview) -> None:
        self._shard.update(data)
        stop, unfinished = offset + len(data), []
        for field, state in self._unfinished:
            end = self._offsets[field] + self._sizes[field]
            state.update(data[: end - offset])
            if end <= stop:
                self._compare(field, state.intdigest())
            else:
                unfinished.append((field, state))
        self._unfinished = unfinished
        while self._next < len(self._order) and self._offsets[self._order[self._next]] < stop:
            field = self._order[self._next]
            self._next += 1
            begin, end = self._offsets[field] - offset, self._offsets[field] + self._sizes[field]
            if end <= stop:
                self._compare(field, xxhash.xxh3_64_intdigest(data[begin : end - offset]))
            else:
                self._unfinished.append((field, xxhash.xxh3_64(data[begin:])))

    def _compare(self, field: int, actual: int) -> None:
        if actual != self._stated[field]:
            self._changed.append((field, actual))
