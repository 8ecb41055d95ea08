"""Reading of samples by id, with verified checksums.

Local shards and cached blocks of remote shards are memory-mapped, and fields are views of them: no byte
is copied. The checksum of every field is verified before the field is returned.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import ChecksumError, MissingFieldError
from wds_tools.format.index import ABSENT, FieldColumns, Index, image_field
from wds_tools.format.sample import IMAGE_FIELDS, numbered_names
from wds_tools.lru_cache import LRUCache
from wds_tools.order.sequence import default_block
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import Block, Extent, is_url

_log = logging.getLogger("wds_tools")
_MAX_SHARDS = 1024
_MAX_READ_AHEAD = 8192  # blocks remembered, about 16 GB; older ones may no longer be in the page cache


@dataclass(frozen=True, slots=True)
class _Shard:
    """The index of a shard, and values derived from it that every batch needs."""

    number: int
    name: str
    index: Index
    image: FieldColumns  # columns of the image field, which may differ from sample to sample
    kind: NDArray[np.int8]  # [samples], index of that field in IMAGE_FIELDS, -1 for a sample without an image
    block: int  # samples per block
    spans: NDArray[np.int64]  # [blocks, 2], byte range of each block


_Group = tuple[_Shard, NDArray[np.int64], NDArray[np.int64]]
"""Samples of one shard: the shard, their positions among all samples, their rows in the shard."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One field of some samples of a shard."""

    shard: _Shard
    name: str
    columns: FieldColumns
    rows: NDArray[np.int64]  # [samples]


class Rows:
    """Samples of a dataset, in the requested order. Their bytes are read by the methods that return them.

    Attributes:
        ids: int64 [n], sample ids.
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
        return self._reader.rows(ids)

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
        """Return for each sample the names of its fields that match a pattern, in the order of their numbers.

        Args:
            pattern: A name with ``*`` for a number, such as ``frame*.jpg``.
        """
        out: list[list[str]] = [[] for _ in range(len(self))]
        for shard, group, rows in self._groups:
            added = [name for _, names in self._reader.shards.added(shard.number) for name in names]
            for name in numbered_names((*shard.index.fields, *added), pattern):
                present = self._find(name, shard, rows)[3]
                for position in group[present].tolist():
                    out[position].append(name)
        return out

    def several_fields(self, names: Sequence[Sequence[str]]) -> list[list[memoryview]]:
        """Return the verified bytes of several fields of each sample.

        Args:
            names: For each sample the names of its fields.

        Raises:
            MissingFieldError, ChecksumError, StoreError, TruncatedShardError: As for `images`.
        """
        wanted: list[tuple[_Column, str, list[int]]] = []
        for shard, group, rows in self._groups:
            by_name: dict[str, list[int]] = {}
            for i, position in enumerate(group.tolist()):
                for name in names[position]:
                    by_name.setdefault(name, []).append(i)
            wanted += [
                (self._column(name, shard, rows[chosen]), name, group[chosen].tolist())
                for name, chosen in by_name.items()
            ]
        found: dict[tuple[int, str], memoryview] = {}
        columns = self._reader.values([column for column, _, _ in wanted])
        with stages.VERIFY:
            for (_, name, positions), values in zip(wanted, columns, strict=True):
                found.update(((position, name), data) for position, data in zip(positions, values, strict=True))
        return [[found[i, name] for name in chosen] for i, chosen in enumerate(names)]

    def stored(self) -> Iterator[dict[str, Any]]:
        """Yield each sample as ``__key__``, ``__url__`` of its shard, and its verified fields as bytes.

        Samples are copied one at a time, right after their checksum is computed, while their bytes
        are in the CPU cache, and into memory that the previous sample has just freed. That takes a
        third of the time of copying a batch at once.

        Raises:
            ChecksumError: Bytes have changed since they were packed.
            StoreError: A shard cannot be read.
            TruncatedShardError: A shard does not have the length that its manifest records.
        """
        groups = [self._columns(group) for group in self._groups]
        values = iter(self._reader.values([column for columns in groups for column, _ in columns]))
        samples = [
            self._stored(group, [(column.name, present, next(values)) for column, present in columns])
            for group, columns in zip(self._groups, groups, strict=True)
        ]
        group_of = np.empty(len(self), np.int64)
        for number, (_, group, _) in enumerate(self._groups):
            group_of[group] = number
        for number in group_of.tolist():
            yield next(samples[number])

    def _columns(self, group: _Group) -> list[tuple[_Column, list[bool]]]:
        """Return every field of the samples of one shard, and which of the samples have it."""
        shard, _, rows = group
        found = []
        for name, columns in shard.index.fields.items():
            present = columns.offset[rows] != ABSENT
            found.append((_Column(shard, name, columns, rows[present]), present.tolist()))
        for number, _ in self._reader.shards.added(shard.number):
            added, rows_of = self._reader.added(shard, number)
            for name, columns in added.index.fields.items():
                present = _is_present(columns, rows_of[rows])
                found.append((_Column(added, name, columns, rows_of[rows][present]), present.tolist()))
        return found

    def _stored(
        self, group: _Group, fields: list[tuple[str, list[bool], Iterator[memoryview]]]
    ) -> Iterator[dict[str, Any]]:
        """Yield samples of one shard in their stored form."""
        shard, _, rows = group
        url, keys = self._reader.shards.shard_url(shard.number), shard.index.keys
        for position, row in enumerate(rows.tolist()):
            sample: dict[str, Any] = {"__key__": keys[row], "__url__": url}
            for name, present, values in fields:
                if present[position]:
                    sample[name] = bytes(next(values))
            yield sample

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

    def _column(self, name: str, shard: _Shard, rows: NDArray[np.int64]) -> _Column:
        """Return one field of some samples of a shard; raise MissingFieldError if one of them lacks it."""
        columns, source, source_rows, present = self._find(name, shard, rows)
        if columns is None or not present.all():
            row = int(rows[np.flatnonzero(~present)[0]])
            raise MissingFieldError(
                f"the sample has no field {name!r}; it has {_fields_of(shard.index, row)}",
                shard=shard.name,
                key=shard.index.keys[row],
            )
        return _Column(source, name, columns, source_rows)

    def _find(
        self, name: str, shard: _Shard, rows: NDArray[np.int64]
    ) -> tuple[FieldColumns | None, _Shard, NDArray[np.int64], NDArray[np.bool_]]:
        """Return the columns of a field, the shard and rows that have them, and which samples have the field."""
        columns, source, source_rows = shard.image if name == "image" else shard.index.fields.get(name), shard, rows
        if columns is None:
            for number, fields in self._reader.shards.added(shard.number):
                if name in fields:
                    source, rows_of = self._reader.added(shard, number)
                    columns, source_rows = source.index.fields.get(name), rows_of[rows]
        present = np.zeros(len(rows), bool) if columns is None else _is_present(columns, source_rows)
        return columns, source, source_rows, present


class Reader:
    """Reads samples of a dataset by id.

    Args:
        shards: The dataset.
        block: Samples per block, as in the order: a number, or int64 [shards].
    """

    def __init__(self, shards: ShardSet, *, block: int | NDArray[np.int64]) -> None:
        self.shards = shards
        added = [default_block(entry.samples, entry.bytes) for entry in shards.added_entries]
        self._block = block
        self._blocks = np.concatenate([np.broadcast_to(block, len(shards.locations)), added]).astype(np.int64)
        counts = [entry.samples for entry in shards.manifest.shards]
        self._first_id = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])
        self._shard = lru_cache(maxsize=_MAX_SHARDS)(partial(_open_shard, shards, self._blocks))
        self._added = lru_cache(maxsize=_MAX_SHARDS)(partial(_rows_of_added, self._shard))
        self._read_ahead = LRUCache[tuple[int, int], None](max_items=_MAX_READ_AHEAD)  # recent ones, as (shard, block)

    def reopened(self) -> Reader:
        """Return a reader of the same dataset for another thread."""
        return Reader(self.shards.reopened(), block=self._block)

    def rows(self, ids: NDArray[np.int64]) -> Rows:
        """Return the samples with these ids, int64 [n]; no bytes of them are read yet."""
        return Rows(self, ids)

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard number and the row in that shard of each id: int64 [n] each."""
        shard = np.searchsorted(self._first_id, ids, side="right") - 1
        return shard, ids - self._first_id[shard]

    def read_ahead(self, ids: NDArray[np.int64]) -> None:
        """Start reading the blocks of samples, int64 [n], that will be needed soon."""
        wanted = self.blocks_of(ids)
        missing = self._read_ahead.missing(wanted)
        for key in missing:
            self._read_ahead.put(key, None)
        self.shards.read_ahead([number for number, _ in missing], [self.block(*key) for key in missing])

    def blocks_of(self, ids: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return (shard number, block number in the shard) of the blocks of samples, each once, in their order.

        The blocks of fields that were added later come after the others.
        """
        shards, rows = self.locate(ids)
        found = dict.fromkeys(zip(shards.tolist(), (rows // self._blocks[shards]).tolist(), strict=True))
        if self.shards.has_added:
            for shard in dict.fromkeys(shards.tolist()):
                for number, _ in self.shards.added(shard):
                    added_rows = self.added(self.shard(shard), number)[1][rows[shards == shard]]
                    blocks = added_rows[added_rows >= 0] // self._blocks[number]
                    found.update(dict.fromkeys((number, block) for block in blocks.tolist()))
        return list(found)

    def added(self, shard: _Shard, number: int) -> tuple[_Shard, NDArray[np.int64]]:
        """Return a shard with fields that were added to another one, and the row there of each sample, -1 for none.

        Args:
            shard: The shard of the samples.
            number: Index of the shard with the added fields.
        """
        return self.shard(number), self._added(shard.number, number)

    def block(self, number: int, block: int) -> Block:
        """Return block ``block`` of shard ``number``."""
        start, stop = self.shard(number).spans[block].tolist()
        return self.shards.block(number, (start, stop))

    def read_samples_ahead(self, ids: NDArray[np.int64], *, machines: int) -> None:
        """Start reading samples, int64 [n], before their blocks, on one of several machines."""
        shards, rows = self.locate(ids)
        extents = []
        for number, row in zip(shards.tolist(), rows.tolist(), strict=True):
            block = self.block(number, row // self._blocks[number])
            extents.append(Extent(block, *self.shard(number).index.span(row, row + 1)))
        self.shards.read_samples_ahead(shards.tolist(), extents, machines=machines)

    def shard(self, number: int) -> _Shard:
        """Return a shard; its index is read and verified when it is first needed."""
        return self._shard(number)

    def values(self, columns: Sequence[_Column]) -> list[Iterator[memoryview]]:
        """Return iterators over the verified bytes of each column. The bytes of all columns are fetched together.

        They are verified when they are taken from the iterator, which raises as `Rows.images` does.
        """
        extents = [self._extents(column) for column in columns]
        numbers = [column.shard.number for column, part in zip(columns, extents, strict=True) for _ in part]
        with stages.READ:
            data = iter(self.shards.fetch_extents(numbers, [extent for part in extents for extent in part]))
        recorder = stages.active_recorder()
        if recorder:
            recorder.add_bytes(sum(int(column.columns.size[column.rows].sum()) for column in columns))
        fetched = [list(itertools.islice(data, len(part))) for part in extents]
        return [self._verified(*column) for column in zip(columns, extents, fetched, strict=True)]

    def _extents(self, column: _Column) -> list[Extent]:
        shard, rows = column.shard, column.rows
        block_of_row = rows // shard.block
        numbers, block_index = np.unique(block_of_row, return_inverse=True)
        blocks = [self.shards.block(shard.number, (start, stop)) for start, stop in shard.spans[numbers].tolist()]
        starts = column.columns.offset[rows]
        stops = starts + column.columns.size[rows]
        positions = zip(block_index.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [Extent(blocks[block], start, stop) for block, start, stop in positions]

    def _verified(self, column: _Column, extents: list[Extent], data: list[memoryview]) -> Iterator[memoryview]:
        expected = column.columns.xxh3[column.rows].tolist()
        for i, (value, checksum) in enumerate(zip(data, expected, strict=True)):
            if xxhash.xxh3_64_intdigest(value) == checksum:
                yield value
            else:
                yield self._fetch_again(column, int(column.rows[i]), extents[i], checksum)

    def _fetch_again(self, column: _Column, row: int, extent: Extent, expected: int) -> memoryview:
        """Fetch a damaged sample from the source if it came from a cache; otherwise report the damage."""
        shard, block = column.shard, extent.block
        if self.shards.drop_cached(shard.number, [block]):
            with stages.READ:
                (value,) = self.shards.fetch_extents([shard.number], [extent])
            if xxhash.xxh3_64_intdigest(value) == expected:
                _log.debug("shard %s: the block at byte %d was damaged and was fetched again", shard.name, block.start)
                return value
        url = self.shards.shard_url(shard.number)
        remedy = f"{url} was replaced or damaged: upload it again" if is_url(url) else f"copy {url} again"
        with self.shards.replacement_reported([shard.number]):
            raise ChecksumError(
                f"field {column.name!r} ({extent.stop - extent.start:,} bytes) has changed since it was packed: its "
                f"checksum is not {expected:016x}; {remedy}; `wds-tools verify` lists all damage",
                shard=shard.name,
                key=shard.index.keys[row],
                offset=extent.start,
            )


def _open_shard(shards: ShardSet, blocks: NDArray[np.int64], number: int) -> _Shard:
    with stages.READ:
        index = shards.index(number)
    block = int(blocks[number])
    return _Shard(number, shards.shard_name(number), index, *_image_columns(index), block, _spans(index, block))


def _rows_of_added(open_shard: Callable[[int], _Shard], shard: int, number: int) -> NDArray[np.int64]:
    """Return for each sample of a shard its row in a shard with added fields, -1 for none: int64 [samples]."""
    keys = {key: row for row, key in enumerate(open_shard(number).index.keys)}
    return np.array([keys.get(key, -1) for key in open_shard(shard).index.keys], np.int64)


def _is_present(columns: FieldColumns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows have a field: bool [n]; a row of -1 has none."""
    present: NDArray[np.bool_] = (rows >= 0) & (columns.offset[rows] != ABSENT)
    return present


def _fields_of(index: Index, row: int) -> str:
    return ", ".join(name for name, columns in index.fields.items() if columns.offset[row] != ABSENT) or "none"


def _image_columns(index: Index) -> tuple[FieldColumns, NDArray[np.int8]]:
    """Return the columns and the kind of the image field that each sample prefers, see `_Shard`."""
    n = len(index)
    kind = np.full(n, -1, np.int8)
    merged = FieldColumns(np.full(n, ABSENT, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint64))
    for name in image_field(index):
        columns = index.fields[name]
        mask = (kind < 0) & (columns.offset != ABSENT)
        kind[mask] = IMAGE_FIELDS.index(name)
        merged.offset[mask] = columns.offset[mask]
        merged.size[mask] = columns.size[mask]
        merged.xxh3[mask] = columns.xxh3[mask]
    return merged, kind


def _spans(index: Index, block: int) -> NDArray[np.int64]:
    """Return the byte range of every block of a shard: int64 [blocks, 2]."""
    if not len(index):
        return np.zeros((0, 2), np.int64)
    edges = np.arange(0, len(index), block)
    start = np.full(len(edges), index.shard_bytes, np.int64)
    stop = np.zeros(len(edges), np.int64)
    for columns in index.fields.values():
        present = columns.offset != ABSENT
        first = np.where(present, columns.offset, index.shard_bytes)
        last = np.where(present, columns.offset + columns.size, 0)
        start = np.minimum(start, np.minimum.reduceat(first, edges))
        stop = np.maximum(stop, np.maximum.reduceat(last, edges))
    return np.stack([np.minimum(start, stop), stop], axis=1)
