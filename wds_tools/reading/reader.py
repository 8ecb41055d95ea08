"""Reading of samples by id, with verified checksums.

Local shards and cached blocks of remote shards are memory-mapped, and fields are views of them: no byte
is copied. The checksum of every field is verified before the field is returned.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import ChecksumError
from wds_tools.format.index import ABSENT, FieldColumns, Index, image_field
from wds_tools.format.manifest import ShardEntry
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.lru_cache import LRUCache
from wds_tools.order.sequence import default_block
from wds_tools.reading.locations import RewrittenError
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import Block, Extent, StoredFile, is_url

_log = logging.getLogger("wds_tools")
_MAX_SHARDS = 1024
_Result = TypeVar("_Result")
_MAX_READ_AHEAD = 8192  # blocks remembered, about 16 GB; older ones may no longer be in the page cache


@dataclass(frozen=True, slots=True)
class OpenShard:
    """The index of a shard, and values derived from it that every batch needs.

    Attributes:
        number: Position of the shard in its dataset.
        image: Columns of the image field, which may differ from sample to sample.
        kind: int8 [samples], position of that field in `IMAGE_FIELDS`; -1 for a sample without an image.
        block: Number of samples in a block.
        blocks: The blocks as units of reading; every sample that is read refers to one.
    """

    number: int
    name: str
    entry: ShardEntry
    index: Index
    image: FieldColumns
    kind: NDArray[np.int8]
    block: int
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One field of some samples of a shard.

    Attributes:
        rows: int64 [n], rows of the samples in this shard.
    """

    shard: OpenShard
    name: str
    columns: FieldColumns
    rows: NDArray[np.int64]


Blocks: TypeAlias = int | tuple[tuple[int, int], ...]
"""Samples per block; of a mixture, (samples per block, number of shards) of each dataset."""


class Reader:
    """Reads samples of a dataset by id.

    Args:
        shards: The dataset.
        block: Samples per block, as in the order.
    """

    def __init__(self, shards: ShardSet, *, block: Blocks) -> None:
        self.shards = shards
        self._block = block
        self._epoch: int | None = None
        self._read_ahead = LRUCache[tuple[int, int], None](max_items=_MAX_READ_AHEAD)  # recent ones, as (shard, block)
        self._find_shards()

    def _find_shards(self) -> None:
        """Compute what depends on the shards that there are."""
        shards, block = self.shards, self._block
        added = [default_block(entry.samples, entry.bytes) for entry in shards.added_entries]
        parts = block if isinstance(block, tuple) else ((block, len(shards.locations)),)
        self._blocks = np.concatenate([np.repeat(*map(np.array, zip(*parts, strict=True))), added]).astype(np.int64)
        self._first_id = np.concatenate([[0], np.cumsum(shards.manifest.shard_samples)])
        self._shard = lru_cache(maxsize=_MAX_SHARDS)(partial(_open_shard, shards, self._blocks))
        self._added = lru_cache(maxsize=_MAX_SHARDS)(partial(_rows_of_added, shards))

    def begin(self, epoch: int) -> None:
        """Report the epoch of the next samples: at its start, shards that were rewritten in place are followed."""
        if self._epoch not in (None, epoch):
            self.shards.refresh()
        self._epoch = epoch

    def reopened(self) -> Reader:
        """Return a reader of the same dataset for another thread."""
        return Reader(self.shards.reopened(), block=self._block)

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard number and the row in that shard of each id: int64 [n] each."""
        if len(ids) and int(ids.max()) >= self._first_id[-1]:
            self.shards.grow()
            if len(self.shards.locations) >= len(self._first_id):  # this reader knows fewer
                self._find_shards()
        shard = np.searchsorted(self._first_id, ids, side="right") - 1
        return shard, ids - self._first_id[shard]

    def block_numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each id a number of its block, int64 [n], which no other block has."""
        shards, rows = self.locate(ids)
        return (shards << 32) + rows // self._blocks[shards]

    def read_ahead(self, ids: NDArray[np.int64]) -> None:
        """Start reading the blocks of samples, int64 [n], that will be needed soon."""
        keys = self.blocks_of(ids)
        missing = self._read_ahead.missing(keys)
        for key in missing:
            self._read_ahead.put(key, None)
        shards = [shard for shard, _ in missing]
        self._following(lambda: self.shards.read_ahead(shards, [self.block(*key) for key in missing]))

    def blocks_of(self, ids: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return (shard number, block number in the shard) of the blocks of samples, each once, in their order.

        The blocks of fields that were added later come after the others.
        """
        shards, rows = self.locate(ids)
        keys = dict.fromkeys(zip(shards.tolist(), (rows // self._blocks[shards]).tolist(), strict=True))
        if self.shards.has_added:
            for shard in dict.fromkeys(shards.tolist()):
                for added_shard, _ in self.shards.added(shard):
                    added_rows = self.added(self.shard(shard), added_shard)[1][rows[shards == shard]]
                    blocks = added_rows[added_rows >= 0] // self._blocks[added_shard]
                    keys.update(dict.fromkeys((added_shard, block) for block in blocks.tolist()))
        return list(keys)

    def added(self, shard: OpenShard, added: int) -> tuple[OpenShard, NDArray[np.int64]]:
        """Return a shard with fields that were added to another one, and the row there of each sample, -1 for none."""
        return self.shard(added), self._added(shard.number, added)

    def block(self, shard: int, block: int) -> Block:
        """Return a block of a shard."""
        return self.shard(shard).blocks[block]

    def read_samples_ahead(self, ids: NDArray[np.int64], *, machines: int) -> None:
        """Start reading samples, int64 [n], before their blocks, on one of several machines."""
        shards, rows = self.locate(ids)
        extents = []
        for shard, row in zip(shards.tolist(), rows.tolist(), strict=True):
            block = self.block(shard, row // self._blocks[shard])
            extents.append(Extent(block, *self.shard(shard).index.span(row, row + 1)))
        self.shards.read_samples_ahead(shards.tolist(), extents, machines=machines)

    def shard(self, shard: int) -> OpenShard:
        """Return a shard; its index is read and verified when it is first needed."""
        return self._shard(shard, self.shards.entry(shard).before is not None)

    def values(self, columns: Sequence[StoredColumn]) -> list[Iterator[memoryview]]:
        """Return iterators over the verified bytes of each column. The bytes of all columns are fetched together.

        They are verified when they are taken from the iterator, which raises ChecksumError.
        """
        columns, extents, data = self._following(lambda: self._fetched([self._current(stored) for stored in columns]))
        recorder = stages.active_recorder()
        if recorder:
            recorder.add_bytes(sum(int(column.columns.size[column.rows].sum()) for column in columns))
        contents = iter(data)
        fetched = [list(itertools.islice(contents, len(part))) for part in extents]
        return [self._verified(*column) for column in zip(columns, extents, fetched, strict=True)]

    def _fetched(
        self, columns: Sequence[StoredColumn]
    ) -> tuple[Sequence[StoredColumn], list[list[Extent]], list[memoryview]]:
        """Return columns, their extents, and the bytes of all extents."""
        extents = [self._extents(column) for column in columns]
        shards = [column.shard.number for column, part in zip(columns, extents, strict=True) for _ in part]
        with stages.READ:
            data = self.shards.fetch_extents(shards, [extent for part in extents for extent in part])
        return columns, extents, data

    def _current(self, column: StoredColumn) -> StoredColumn:
        """Return a column of a shard as it is now: in another file, if its images were rewritten in place."""
        shard = self.shard(column.shard.number)
        if shard.entry is column.shard.entry:
            return column
        return replace(
            column, shard=shard, columns=shard.image if column.name == "image" else shard.index.fields[column.name]
        )

    def _following(self, read: Callable[[], _Result]) -> _Result:
        """Read, and again if images of a shard were rewritten in place since it was opened."""
        while True:
            try:
                return read()
            except RewrittenError as error:  # each shard is rewritten once
                self.shards.follow(error)

    def _extents(self, column: StoredColumn) -> list[Extent]:
        shard, rows = column.shard, column.rows
        starts = column.columns.offset[rows]
        stops = starts + column.columns.size[rows]
        blocks = map(shard.blocks.__getitem__, (rows // shard.block).tolist())
        return list(map(Extent, blocks, starts.tolist(), stops.tolist()))

    def _verified(self, column: StoredColumn, extents: list[Extent], data: list[memoryview]) -> Iterator[memoryview]:
        expected = column.columns.xxh3[column.rows].tolist()
        for i, (value, checksum) in enumerate(zip(data, expected, strict=True)):
            if xxhash.xxh3_64_intdigest(value) == checksum:
                yield value
            else:
                yield self._fetch_again(column, int(column.rows[i]), extents[i], checksum)

    def _fetch_again(self, column: StoredColumn, row: int, extent: Extent, expected: int) -> memoryview:
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


def _open_shard(shards: ShardSet, blocks: NDArray[np.int64], shard: int, _is_rewritten: bool) -> OpenShard:
    """Open a shard; whether its images were rewritten in place is a part of the key in the cache."""
    with stages.READ:
        index = shards.index(shard)
    block, entry = int(blocks[shard]), shards.entry(shard)
    file = StoredFile(entry.name, entry.bytes, entry.xxh3)
    parts = [Block(file, start, stop) for start, stop in _spans(index, block).tolist()]
    return OpenShard(shard, shards.shard_name(shard), entry, index, *image_columns(index), block, parts)


def _rows_of_added(shards: ShardSet, shard: int, added: int) -> NDArray[np.int64]:
    """Return for each sample of a shard its row in a shard with added fields, -1 for none: int64 [samples]."""
    keys = {key: row for row, key in enumerate(shards.index(added).keys)}
    return np.array([keys.get(key, -1) for key in shards.index(shard).keys], np.int64)


def is_present(columns: FieldColumns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows have a field: bool [n]; a row of -1 has none."""
    present: NDArray[np.bool_] = (rows >= 0) & (columns.offset[rows] != ABSENT)
    return present


def image_columns(index: Index) -> tuple[FieldColumns, NDArray[np.int8]]:
    """Return the columns and the kind of the image field that each sample prefers, see `OpenShard`."""
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
