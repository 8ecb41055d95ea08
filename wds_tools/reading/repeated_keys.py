"""Keys that occur at least twice in a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.reading.shardset import ShardSet

MAX_KEYS = 50_000_000
"""Maximum number of keys that are compared, in the order of the samples; each takes 8 bytes of memory."""


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that occurs at least twice.

    Attributes:
        shards: Names of the shards with its first and second occurrence.
    """

    key: str
    shards: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.shards
        return (
            f"key {self.key!r} occurs in {first} and in {second}, and other keys may be repeated too. wds_tools reads "
            "such a dataset, but readers that find samples by key, such as Energon, refuse it: `wds-tools reshard` "
            "writes the same samples with unique keys"
        )


def find_repeated_key(shards: ShardSet) -> RepeatedKey | None:
    """Return the first repeated key, or None if there is none among the first `MAX_KEYS`.

    Reads every index.
    """
    parts, total = [], 0
    for index in range(len(shards.locations)):
        if total >= MAX_KEYS:
            break
        parts.append(_hashes(shards, index))
        total += len(parts[-1])
    hashes = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    order = np.argsort(hashes, kind="stable")
    repeated = order[1:][hashes[order[1:]] == hashes[order[:-1]]]  # sample ids whose key has occurred before
    if not len(repeated):
        return None
    second = int(repeated.min())
    first = int(np.flatnonzero(hashes == hashes[second])[0])
    edges = np.cumsum([len(part) for part in parts])
    first_shard, second_shard = (int(np.searchsorted(edges, sample, side="right")) for sample in (first, second))
    row = second - (int(edges[second_shard - 1]) if second_shard else 0)
    return RepeatedKey(
        shards.index(second_shard, keep=False).keys[row],
        (shards.shard_name(first_shard), shards.shard_name(second_shard)),
    )


def _hashes(shards: ShardSet, shard: int) -> NDArray[np.uint64]:
    keys = shards.index(shard, keep=False).keys
    return np.fromiter((xxhash.xxh3_64_intdigest(key.encode()) for key in keys), np.uint64, len(keys))
