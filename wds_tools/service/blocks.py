"""How a shard is divided into blocks for the cache: between fields, so that each block can be verified. No I/O."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.format.index import ABSENT, Index

BLOCK_BYTES = 3 << 20  # a range of 1 MiB may need two blocks and an index of 1 MB
MAX_BLOCK_BYTES = 64 << 20
"""A longer field is divided too. Its parts are not verified when they are cached, but by the reader."""


class ShardBlocks:
    """The blocks of one shard, and the checksums of the fields in them.

    Args:
        index: The index of the shard.

    Attributes:
        bounds: int64 [blocks + 1], offsets of the blocks, from 0 to the length of the shard.
    """

    def __init__(self, index: Index) -> None:
        parts = [_present(index, name) for name in index.fields]
        starts, stops, sums, rows, fields = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(starts, kind="stable")
        self._starts, self._stops, self._sums = starts[order], stops[order], sums[order]
        self._rows, self._fields = rows[order], fields[order]
        self._keys, self._names = index.keys, list(index.fields)
        self.bounds = _bounds(self._starts, self._stops, index.shard_bytes)

    @property
    def memory_bytes(self) -> int:
        """Size in memory, about."""
        return 40 * len(self._starts) + 100 * len(self._keys)

    def damage(self, start: int, data: memoryview) -> str:
        """Return which field of a block is damaged, as text; "" if none is."""
        first, last = np.searchsorted(self._starts, [start, start + len(data)]).tolist()
        for i in range(first, last):
            begin, end = int(self._starts[i]) - start, int(self._stops[i]) - start
            if end <= len(data) and xxhash.xxh3_64_intdigest(data[begin:end]) != int(self._sums[i]):
                key, name = self._keys[int(self._rows[i])], self._names[int(self._fields[i])]
                place = f"field {name!r} of sample {key!r} at byte {begin + start:,}"
                return f"{place} does not match the checksum in its index"
        return ""


def _present(index: Index, name: str) -> tuple[NDArray[np.int64], ...]:
    columns = index.fields[name]
    rows = np.flatnonzero(columns.offset != ABSENT)
    offset = columns.offset[rows]
    field = np.full(len(rows), list(index.fields).index(name), np.int64)
    return offset, offset + columns.size[rows], columns.xxh3[rows].view(np.uint64), rows, field


def _bounds(starts: NDArray[np.int64], stops: NDArray[np.int64], shard_bytes: int) -> NDArray[np.int64]:
    """Return offsets between fields, `BLOCK_BYTES` apart where the fields allow it."""
    reached = np.maximum.accumulate(stops)[:-1] if len(stops) else stops
    cuts = starts[1:][starts[1:] >= reached]  # where one field begins, and all before it have ended
    bounds = [0]
    while shard_bytes - bounds[-1] > BLOCK_BYTES:
        position = int(np.searchsorted(cuts, bounds[-1] + BLOCK_BYTES, side="right")) - 1
        cut = int(cuts[position]) if position >= 0 else 0
        if cut <= bounds[-1]:  # a field that is longer than a block
            cut = int(cuts[position + 1]) if position + 1 < len(cuts) else shard_bytes
        bounds.append(cut if cut - bounds[-1] <= MAX_BLOCK_BYTES else bounds[-1] + BLOCK_BYTES)
    if bounds[-1] < shard_bytes:
        bounds.append(shard_bytes)
    return np.array(bounds, np.int64)
