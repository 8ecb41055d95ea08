"""The shards of a large manifest as columns, which processes can map instead of having an object for each shard.

An entry is made when it is used. About 110 bytes are stored per shard; JSON has 220, and Python objects take 800.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.format.manifest import KnownShards, ShardEntry, ShardTotals, fingerprint_of
from wds_tools.lazy_sequence import JoinedSequence

_COUNTS = ("samples", "bytes", "index_bytes")
_CHECKSUMS = ("xxh3", "index_xxh3")
_NAMES = ("name", "index")
_BEFORE = "before."  # prefix of the columns of the entries that shards had before they were rewritten
_REWRITTEN = "rewritten"  # numbers of the shards that were rewritten


class ShardTable(KnownShards):
    """The entries of all shards of a manifest."""

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        totals: ShardTotals,
        reopen: Callable[[], ShardTable] | None = None,
    ) -> None:
        self._columns, self._reopen = columns, reopen
        self.samples, self.totals = columns["samples"], totals
        self._before: ShardTable | None = None
        if _REWRITTEN in columns:
            before = {name[len(_BEFORE) :]: column for name, column in columns.items() if name.startswith(_BEFORE)}
            self._before = ShardTable(before, totals)

    @property
    def index_checksums(self) -> NDArray[np.uint8]:
        """The XXH3-128 of each index: uint8 [shards, 16]."""
        return self._columns["index_xxh3"]

    def total(self, what: Literal["samples", "bytes", "order_bytes"]) -> int:
        """Return a total."""
        return int(getattr(self.totals, what))

    def fingerprint(self) -> str:
        """Return the fingerprint."""
        return self.totals.fingerprint

    def order_fingerprint(self) -> str:
        """Return the fingerprint that determines the order of samples."""
        return self.totals.order_fingerprint

    def __len__(self) -> int:
        return len(self.samples)

    def has_names(self, names: Sequence[str]) -> bool:
        """Return whether its shards have these names, in this order."""
        return len(self) == len(names) and all(self._name("name", index) == name for index, name in enumerate(names))

    def has_names_of(self, other: ShardTable) -> bool:
        """Return whether its shards have the names, in this order, that those of another table had at first."""
        if len(self) != len(other):
            return False
        if other._before is not None:
            return self.has_names([entry.first.name for entry in other])
        return all(np.array_equal(self._columns[part], other._columns[part]) for part in ("name.ends", "name.text"))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.by_value() if self._reopen is None else (_reopened, (self._reopen,))

    def by_value(self) -> tuple[Any, ...]:
        """Return how to pickle it for another machine, which has not the file of its columns."""
        return ShardTable, (dict(self._columns), self.totals)

    def make(self, index: int) -> ShardEntry:
        """Return the entry of a shard."""
        columns = self._columns
        return ShardEntry(
            self._name("name", index),
            int(columns["samples"][index]),
            int(columns["bytes"][index]),
            columns["xxh3"][index].tobytes().hex(),
            self._name("index", index),
            int(columns["index_bytes"][index]),
            columns["index_xxh3"][index].tobytes().hex(),
            self._entry_before(index),
        )

    def _entry_before(self, index: int) -> ShardEntry | None:
        if self._before is None:
            return None
        rewritten = self._columns[_REWRITTEN]
        position = int(np.searchsorted(rewritten, index))
        is_rewritten = position < len(rewritten) and rewritten[position] == index
        return self._before[position] if is_rewritten else None

    def _name(self, column: str, index: int) -> str:
        ends = self._columns[f"{column}.ends"]
        start = int(ends[index - 1]) if index else 0
        return self._columns[f"{column}.text"][start : int(ends[index])].tobytes().decode()


class JoinedShards(JoinedSequence[ShardEntry], KnownShards):
    """The shards of several manifests as those of one."""

    def __init__(self, parts: Sequence[Sequence[ShardEntry]]) -> None:
        super().__init__(parts)
        self.samples = np.concatenate([_samples_of(part) for part in parts])

    @property
    def index_checksums(self) -> NDArray[np.uint8]:
        """The XXH3-128 of each index: uint8 [shards, 16]."""
        return np.concatenate([_index_checksums_of(part) for part in self.parts])

    def total(self, what: Literal["samples", "bytes", "order_bytes"]) -> int:
        """Return a total."""
        if what == "samples":
            return int(self.samples.sum())
        known = [part.total(what) for part in self.parts if isinstance(part, KnownShards)]
        others = (entry for part in self.parts if not isinstance(part, KnownShards) for entry in part)
        return sum(known) + sum((entry.first if what == "order_bytes" else entry).bytes for entry in others)

    def fingerprint(self) -> str:
        """Return the fingerprint, for which each entry is made."""
        return fingerprint_of(self)

    def order_fingerprint(self) -> str:
        """Return the fingerprint that determines the order of samples, for which each entry is made."""
        return fingerprint_of(entry.first for entry in self)

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedShards, (self.parts,)


def joined(parts: Sequence[Sequence[ShardEntry]]) -> Sequence[ShardEntry]:
    """Return the shards of several manifests as those of one; without entries, if any of them is a table."""
    if any(isinstance(part, KnownShards) for part in parts):
        return JoinedShards(parts)
    return tuple(entry for part in parts for entry in part)


def _samples_of(shards: Sequence[ShardEntry]) -> NDArray[np.int64]:
    if isinstance(shards, KnownShards):
        return shards.samples
    return np.array([entry.samples for entry in shards], np.int64)


def _index_checksums_of(shards: Sequence[ShardEntry]) -> NDArray[np.uint8]:
    if isinstance(shards, KnownShards):
        return shards.index_checksums
    return _from_hexadecimal(shard.index_xxh3 for shard in shards)


def _from_hexadecimal(checksums: Iterable[str]) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex("".join(checksums)), np.uint8).reshape(-1, 16)


def _reopened(reopen: Callable[[], ShardTable]) -> ShardTable:
    return reopen()


def columns_of(shards: Sequence[ShardEntry]) -> dict[str, NDArray[Any]]:
    """Return the columns of a `ShardTable`.

    Counts are int64 [shards], checksums uint8 [shards, 16]; of names there are the UTF-8 bytes and where each one ends.
    """
    columns: dict[str, NDArray[Any]] = {}
    for name in _COUNTS:
        columns[name] = np.array([getattr(shard, name) for shard in shards], np.int64)
    for name in _CHECKSUMS:
        columns[name] = _from_hexadecimal(getattr(shard, name) for shard in shards)
    for name in _NAMES:
        texts = [getattr(shard, name).encode() for shard in shards]
        columns[f"{name}.text"] = np.frombuffer(b"".join(texts), np.uint8)
        columns[f"{name}.ends"] = np.cumsum(np.array(list(map(len, texts)), np.int64))
    if rewritten := [index for index, shard in enumerate(shards) if shard.before]:
        before = [before for shard in shards if (before := shard.before)]
        columns[_REWRITTEN] = np.array(rewritten)
        columns |= {f"{_BEFORE}{name}": column for name, column in columns_of(before).items()}
    return columns
