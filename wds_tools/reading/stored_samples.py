"""The samples of a shard as they are stored, in order, verified, with a few megabytes in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash

from wds_tools.errors import ChecksumError
from wds_tools.format.index import ABSENT, Index
from wds_tools.reading.shardset import ShardSet

READ_BYTES = 8 << 20  # asked for at a time; exceeded only by a sample that is larger alone


class StoredSample(NamedTuple):
    """One sample; its fields are views, to be used before the next sample is asked for.

    Attributes:
        shard: Name of its shard, for messages.
        key: As it is stored.
        fields: Field name to bytes, in the order of the index.
    """

    shard: str
    key: str
    fields: dict[str, memoryview]


def stored_samples(shards: ShardSet, number: int) -> Iterator[StoredSample]:
    """Yield every sample of one shard.

    Raises:
        ChecksumError: Bytes, or the index, have changed since they were packed.
        ShardError: The shard does not have its length.
        StoreError: It cannot be read.
    """
    index = shards.index(number)
    for rows in _steps(index):
        span = index.span(rows.start, rows.stop)
        (data,) = shards.fetch(number, [span])
        for row in rows:
            yield _cut(shards, number, index, row, data, span[0])


def _steps(index: Index) -> Iterator[range]:
    """Cut the rows of a shard into runs whose bytes are few enough to hold."""
    first, last = np.full(len(index), index.shard_bytes), np.zeros(len(index), np.int64)  # [n] span of each sample
    for columns in index.fields.values():
        there = columns.offset != ABSENT
        first = np.where(there, np.minimum(first, columns.offset), first)
        last = np.where(there, np.maximum(last, columns.offset + columns.size), last)
    begin, low, high = 0, index.shard_bytes, 0
    for row, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if row > begin and max(high, stop) - min(low, start) > READ_BYTES:
            yield range(begin, row)
            begin, low, high = row, index.shard_bytes, 0
        low, high = min(low, start), max(high, stop)
    if len(index):
        yield range(begin, len(index))


def _cut(shards: ShardSet, number: int, index: Index, row: int, data: memoryview, base: int) -> StoredSample:
    fields = {}
    for name, columns in index.fields.items():
        offset, size = int(columns.offset[row]), int(columns.size[row])
        if offset == ABSENT:
            continue
        part = data[offset - base : offset - base + size]
        if xxhash.xxh3_64_intdigest(part) != int(columns.xxh3[row]):
            raise ChecksumError(
                f"field {name!r} ({size:,} bytes) has changed since it was packed: copy {shards.shard_url(number)} "
                "again, `wds-tools verify` lists all damage",
                shard=shards.shard_name(number),
                key=index.keys[row],
                offset=offset,
            )
        fields[name] = part
    return StoredSample(shards.shard_name(number), index.keys[row], fields)
