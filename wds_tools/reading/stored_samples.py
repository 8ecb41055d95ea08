"""Sequential reading of the samples of a shard, verified, with a few megabytes in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash

from wds_tools.errors import ChecksumError
from wds_tools.format.index import ABSENT, Index
from wds_tools.reading.shardset import ShardSet

READ_BYTES = 8 << 20  # per read; only a single larger sample exceeds it


class StoredSample(NamedTuple):
    """One sample. Its fields are views, which are valid until the next sample is requested."""

    shard: str
    key: str
    fields: dict[str, memoryview]


def stored_samples(shards: ShardSet, shard: int) -> Iterator[StoredSample]:
    """Yield every sample of a shard, in order, with the fields that were added to it later.

    Raises:
        ChecksumError: Bytes, or the index, have changed since they were packed.
        ManifestError: The index is invalid.
        TruncatedShardError: The length of the shard is not the one that its manifest records.
        StoreError: The shard or its index cannot be read.
    """
    added = [_Added(stored_samples(shards, added_shard)) for added_shard, _ in shards.added(shard)]
    for sample in _own_samples(shards, shard):
        for part in added:
            sample.fields.update(part.fields_of(sample.key))
        yield sample


class _Added:
    """The samples of a shard with added fields, in the order of the shard that they belong to; some may be missing."""

    def __init__(self, samples: Iterator[StoredSample]) -> None:
        self._samples = samples
        self._next = next(samples, None)

    def fields_of(self, key: str) -> dict[str, memoryview]:
        """Return the fields of a sample; none if it has none. Keys are requested in the order of the shard."""
        if self._next is None or self._next.key != key:
            return {}
        # Copied, because the views are valid only until the next sample is requested, which is below.
        fields = {name: memoryview(bytes(data)) for name, data in self._next.fields.items()}
        self._next = next(self._samples, None)
        return fields


def _own_samples(shards: ShardSet, shard: int) -> Iterator[StoredSample]:
    index = shards.index(shard)
    stream = shards.stream(shard)
    for rows in _row_ranges(index):
        start, stop = index.span(rows.start, rows.stop)
        data = stream[start:stop]
        for row in rows:
            yield _sample(shards, shard, index, row, data, start)


def _row_ranges(index: Index) -> Iterator[range]:
    """Divide the rows of a shard into ranges of at most `READ_BYTES`."""
    first, last = np.full(len(index), index.shard_bytes), np.zeros(len(index), np.int64)  # [n], bytes of each row
    for columns in index.fields.values():
        present = columns.offset != ABSENT
        first = np.where(present, np.minimum(first, columns.offset), first)
        last = np.where(present, np.maximum(last, columns.offset + columns.size), last)
    begin, low, high = 0, index.shard_bytes, 0
    for row, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if row > begin and max(high, stop) - min(low, start) > READ_BYTES:
            yield range(begin, row)
            begin, low, high = row, index.shard_bytes, 0
        low, high = min(low, start), max(high, stop)
    if len(index):
        yield range(begin, len(index))


def _sample(shards: ShardSet, shard: int, index: Index, row: int, data: memoryview, base: int) -> StoredSample:
    """Return one row as a sample; ``data`` starts at byte ``base`` of the shard."""
    fields = {}
    for name, columns in index.fields.items():
        offset, size = int(columns.offset[row]), int(columns.size[row])
        if offset == ABSENT:
            continue
        value = data[offset - base : offset - base + size]
        if xxhash.xxh3_64_intdigest(value) != int(columns.xxh3[row]):
            raise ChecksumError(
                f"field {name!r} ({size:,} bytes) has changed since it was packed: copy {shards.shard_url(shard)} "
                "again; `wds-tools verify` lists all damage",
                shard=shards.shard_name(shard),
                key=index.keys[row],
                offset=offset,
            )
        fields[name] = value
    return StoredSample(shards.shard_name(shard), index.keys[row], fields)
