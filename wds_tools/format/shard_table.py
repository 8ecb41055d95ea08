"""The shards of a large manifest as columns, which processes can map instead of having an object for each shard.

An entry is made when it is used. About 110 bytes are stored per shard; JSON has 220, and Python objects take 800.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from wds_tools.format.manifest import KnownShards, ShardEntry, ShardTotals

_COUNTS = ("samples", "bytes", "index_bytes")
_CHECKSUMS = ("xxh3", "index_xxh3")
_NAMES = ("name", "index")
_BEFORE = "before."  # prefix of the columns of the entries that shards had before they were rewritten
_REWRITTEN = "rewritten"  # numbers of the shards that were rewritten


class ShardTable(KnownShards):
    """The entries of all shards of a manifest.

    Args:
        columns: Arrays with one row for each shard, see `columns_of`.
        totals: The totals of all entries.
        reopen: Returns the same table in another process; None pickles the columns.
    """

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
            before = {name.removeprefix(_BEFORE): one for name, one in columns.items() if name.startswith(_BEFORE)}
            self._before = ShardTable(before, totals)

    @property
    def index_checksums(self) -> NDArray[np.uint8]:
        """The XXH3-128 of each index: uint8 [shards, 16]."""
        return self._columns["index_xxh3"]

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, item: int) -> ShardEntry: ...

    @overload
    def __getitem__(self, item: slice) -> Sequence[ShardEntry]: ...

    def __getitem__(self, item: int | slice) -> ShardEntry | Sequence[ShardEntry]:
        if isinstance(item, slice):
            numbers = range(len(self))[item]
            return self if numbers == range(len(self)) else tuple(map(self._entry, numbers))
        return self._entry(range(len(self))[item])

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self._entry, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or (
            len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is not None:
            return _reopened, (self._reopen,)
        return ShardTable, (dict(self._columns), self.totals)

    def _entry(self, number: int) -> ShardEntry:
        columns = self._columns
        return ShardEntry(
            self._name("name", number),
            int(columns["samples"][number]),
            int(columns["bytes"][number]),
            columns["xxh3"][number].tobytes().hex(),
            self._name("index", number),
            int(columns["index_bytes"][number]),
            columns["index_xxh3"][number].tobytes().hex(),
            self._entry_before(number),
        )

    def _entry_before(self, number: int) -> ShardEntry | None:
        if self._before is None:
            return None
        rewritten = self._columns[_REWRITTEN]
        position = int(np.searchsorted(rewritten, number))
        found = position < len(rewritten) and rewritten[position] == number
        return self._before[position] if found else None

    def _name(self, column: str, number: int) -> str:
        ends = self._columns[f"{column}.ends"]
        start = int(ends[number - 1]) if number else 0
        return self._columns[f"{column}.text"][start : int(ends[number])].tobytes().decode()


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
        digits = "".join(getattr(shard, name) for shard in shards)
        columns[name] = np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(-1, 16)
    for name in _NAMES:
        texts = [getattr(shard, name).encode() for shard in shards]
        columns[f"{name}.text"] = np.frombuffer(b"".join(texts), np.uint8)
        columns[f"{name}.ends"] = np.cumsum(np.array(list(map(len, texts)), np.int64))
    if rewritten := [number for number, shard in enumerate(shards) if shard.before]:
        before = [before for shard in shards if (before := shard.before)]
        columns[_REWRITTEN] = np.array(rewritten)
        columns |= {f"{_BEFORE}{name}": column for name, column in columns_of(before).items()}
    return columns
