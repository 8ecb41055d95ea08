"""Samples of a dataset: their columns of the index, and their verified bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import MissingFieldError
from wds_tools.format.index import ABSENT, FieldColumns, Index
from wds_tools.format.sample import IMAGE_FIELDS, numbered_names
from wds_tools.reading.reader import OpenShard, Reader, StoredColumn, is_present

_Group = tuple[OpenShard, NDArray[np.int64], NDArray[np.int64]]
"""Samples of one shard: the shard, their positions among all samples, their rows in the shard."""


class Rows:
    """Samples of a dataset, in the requested order. Their bytes are read by the methods that return them.

    Attributes:
        shard: int64 [n], index of the shard of each sample.
        row: int64 [n], index of each sample in its shard.
    """

    def __init__(self, reader: Reader, ids: NDArray[np.int64]) -> None:
        self._reader = reader
        self.ids = ids
        self.shard, self.row = reader.locate(ids)
        order = np.argsort(self.shard, kind="stable")
        edges = np.flatnonzero(np.diff(self.shard[order])) + 1
        self._groups: list[_Group] = [
            (reader.shard(int(self.shard[group[0]])), group, self.row[group])
            for group in np.split(order, edges)
            if len(group)
        ]

    def __len__(self) -> int:
        return len(self.ids)

    def others(self, ids: NDArray[np.int64]) -> Rows:
        """Return other samples of the same dataset; no bytes of them are read yet."""
        return Rows(self._reader, ids)

    def gather(self, column: str) -> NDArray[np.int64]:
        """Return a column of the index, such as ``label``, ``width`` or ``orientation``: int64 [n]."""
        out = np.empty(len(self), np.int64)
        for shard, group, rows in self._groups:
            out[group] = getattr(shard.index, column)[rows]
        return out

    def keys(self) -> list[str]:
        """Return the keys of the n samples."""
        return self._strings("keys")

    def modes(self) -> list[str]:
        """Return the Pillow modes of the n images, ``""`` for a sample without an image."""
        return self._strings("mode")

    def kinds(self) -> list[str]:
        """Return the names of the n image fields, ``""`` for a sample without an image."""
        out = np.empty(len(self), np.int64)
        for shard, group, rows in self._groups:
            out[group] = shard.kind[rows]
        return [IMAGE_FIELDS[kind] if kind >= 0 else "" for kind in out.tolist()]

    def shard_and_key(self, position: int) -> tuple[str, str]:
        """Return (shard name, key) of the sample at ``position``, for error messages."""
        shard = self._reader.shard(int(self.shard[position]))
        return shard.name, shard.index.keys[int(self.row[position])]

    def images(self) -> list[memoryview]:
        """Return the verified bytes of the image of each sample.

        Raises:
            MissingFieldError: A sample has no image.
            ChecksumError: Bytes have changed since they were packed.
            StoreError: A shard cannot be read.
            TruncatedShardError: A shard does not have the length that its manifest records.
        """
        return self._read("image")

    def field(self, name: str) -> list[memoryview]:
        """Return the verified bytes of one field of each sample; raises as `images` does."""
        return self._read(name)

    def numbered_fields(self, pattern: str) -> list[list[str]]:
        """Return for each sample the names of its fields that match a pattern, in the order of their numbers."""
        out: list[list[str]] = [[] for _ in range(len(self))]
        for shard, group, rows in self._groups:
            added = [name for _, names in self._reader.shards.added(shard.number) for name in names]
            for name in numbered_names((*shard.index.fields, *added), pattern):
                present = self._find(name, shard, rows)[3]
                for position in group[present].tolist():
                    out[position].append(name)
        return out

    def several_fields(self, names: Sequence[Sequence[str]]) -> list[list[memoryview]]:
        """Return the verified bytes of several fields of each sample."""
        requested: list[tuple[StoredColumn, str, list[int]]] = []
        for shard, group, rows in self._groups:
            by_name: dict[str, list[int]] = {}
            for i, position in enumerate(group.tolist()):
                for name in names[position]:
                    by_name.setdefault(name, []).append(i)
            requested += [
                (self._column(name, shard, rows[chosen]), name, group[chosen].tolist())
                for name, chosen in by_name.items()
            ]
        contents: dict[tuple[int, str], memoryview] = {}
        columns = self._reader.values([column for column, _, _ in requested])
        with stages.VERIFY:
            for (_, name, positions), values in zip(requested, columns, strict=True):
                contents.update(((position, name), data) for position, data in zip(positions, values, strict=True))
        return [[contents[i, name] for name in chosen] for i, chosen in enumerate(names)]

    def stored(self) -> Iterator[dict[str, Any]]:
        """Yield each sample as ``__key__``, ``__url__`` of its shard, and its verified fields as bytes.

        Samples are copied one at a time, right after their checksum is computed, while their bytes
        are in the CPU cache, and into memory that the previous sample has just freed. That takes a
        third of the time of copying a batch at once.
        """
        groups = [self._columns(group) for group in self._groups]
        values = iter(self._reader.values([column for columns in groups for column, _ in columns]))
        url_of, index = self._reader.shards.shard_url, np.empty(len(self), np.int64)
        samples = []
        for number, ((shard, group, rows), columns) in enumerate(zip(self._groups, groups, strict=True)):
            index[group] = number
            keys = map(shard.index.keys.__getitem__, rows.tolist())
            fields = [(column.name, iter(present), next(values)) for column, present in columns]
            samples.append((keys, url_of(shard.number), fields))
        for number in index.tolist():
            keys, url, fields = samples[number]
            sample: dict[str, Any] = {"__key__": next(keys), "__url__": url}
            for name, present, contents in fields:
                if next(present):
                    sample[name] = bytes(next(contents))
            yield sample

    def _columns(self, group: _Group) -> list[tuple[StoredColumn, list[bool]]]:
        """Return every field of the samples of one shard, and which of the samples have it."""
        shard, _, rows = group
        result = []
        for name, columns in shard.index.fields.items():
            present = columns.offset[rows] != ABSENT
            result.append((StoredColumn(shard, name, columns, rows[present]), present.tolist()))
        for added_shard, _ in self._reader.shards.added(shard.number):
            added, rows_of = self._reader.added(shard, added_shard)
            for name, columns in added.index.fields.items():
                present = is_present(columns, rows_of[rows])
                result.append((StoredColumn(added, name, columns, rows_of[rows][present]), present.tolist()))
        return result

    def _strings(self, column: str) -> list[str]:
        out = [""] * len(self)
        for shard, group, rows in self._groups:
            values = getattr(shard.index, column)
            for position, row in zip(group.tolist(), rows.tolist(), strict=True):
                out[position] = values[row]
        return out

    def _read(self, name: str) -> list[memoryview]:
        columns = [self._column(name, shard, rows) for shard, _, rows in self._groups]
        out: list[memoryview] = [memoryview(b"")] * len(self)
        groups = zip(self._groups, self._reader.values(columns), strict=True)
        with stages.VERIFY:
            for (_, group, _), values in groups:
                for position, data in zip(group.tolist(), values, strict=True):
                    out[position] = data
        return out

    def _column(self, name: str, shard: OpenShard, rows: NDArray[np.int64]) -> StoredColumn:
        """Return one field of some samples of a shard; raise MissingFieldError if one of them lacks it."""
        columns, source, source_rows, present = self._find(name, shard, rows)
        if columns is None or not present.all():
            row = int(rows[np.flatnonzero(~present)[0]])
            raise MissingFieldError(
                f"the sample has no field {name!r}; it has {_fields_of(shard.index, row)}",
                shard=shard.name,
                key=shard.index.keys[row],
            )
        return StoredColumn(source, name, columns, source_rows)

    def _find(
        self, name: str, shard: OpenShard, rows: NDArray[np.int64]
    ) -> tuple[FieldColumns | None, OpenShard, NDArray[np.int64], NDArray[np.bool_]]:
        """Return the columns of a field, the shard and rows that have them, and which samples have the field."""
        columns, source, source_rows = shard.image if name == "image" else shard.index.fields.get(name), shard, rows
        if columns is None:
            for added_shard, fields in self._reader.shards.added(shard.number):
                if name in fields:
                    source, rows_of = self._reader.added(shard, added_shard)
                    columns, source_rows = source.index.fields.get(name), rows_of[rows]
        present = np.zeros(len(rows), bool) if columns is None else is_present(columns, source_rows)
        return columns, source, source_rows, present


def _fields_of(index: Index, row: int) -> str:
    return ", ".join(name for name, columns in index.fields.items() if columns.offset[row] != ABSENT) or "none"
