"""Keys that come more than once in a dataset: allowed here, where samples have numbers, and refused by some readers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.reading.shardset import ShardSet

MOST_KEYS = 50_000_000
"""Keys that are looked at, from the first one on: 8 bytes each."""


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that comes twice.

    Attributes:
        key: The key.
        shards: Names of the two shards that it is in.
    """

    key: str
    shards: tuple[str, str]

    def __str__(self) -> str:
        one, other = self.shards
        return (
            f"key {self.key!r} comes in {one} and in {other}, and others may come twice too. wds_tools reads such a "
            "dataset, but readers that find samples by key, such as Energon, refuse it: `wds-tools reshard` writes the "
            "same samples with keys of their own"
        )


def find_repeated_key(shards: ShardSet) -> RepeatedKey | None:
    """Return the first key that comes twice, None if there is none among the first `MOST_KEYS`; reads every index."""
    parts, total = [], 0
    for number in range(len(shards.places)):
        if total >= MOST_KEYS:
            break
        parts.append(_hashes(shards, number))
        total += len(parts[-1])
    hashes = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    order = np.argsort(hashes, kind="stable")
    again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]  # places whose hash comes earlier, too
    if not len(again):
        return None
    second = int(again.min())
    first = int(np.flatnonzero(hashes == hashes[second])[0])
    edges = np.cumsum([len(part) for part in parts])
    one, other = (int(np.searchsorted(edges, place, side="right")) for place in (first, second))
    row = second - (int(edges[other - 1]) if other else 0)
    return RepeatedKey(shards.index(other, keep=False).keys[row], (shards.shard_name(one), shards.shard_name(other)))


def _hashes(shards: ShardSet, number: int) -> NDArray[np.uint64]:
    keys = shards.index(number, keep=False).keys
    return np.fromiter((xxhash.xxh3_64_intdigest(key.encode()) for key in keys), np.uint64, len(keys))
