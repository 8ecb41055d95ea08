"""What every store can do: six verbs on the files of one folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Range = tuple[int, int]
"""Bytes ``start`` to ``stop`` of a file, half-open."""


class Store(Protocol):
    """The files of one folder. A store may be pickled, and used in a forked process."""

    folder: str

    def read(self, name: str) -> bytes:
        """Return a whole small file: a manifest or an index.

        Raises:
            FileNotFoundError: There is no such file.
            ManifestError: It is too large to be one of them.
            StoreError: The storage does not answer.
        """

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return ranges of a shard whose length is known.

        Raises:
            TruncatedShardError: The shard does not have ``total_bytes`` bytes.
            StoreError: The storage does not answer, or the shard is not there.
        """

    def expect(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> None:
        """Say that these ranges will be fetched soon, so that reading may start now."""

    def forget(self, name: str, ranges: Sequence[Range]) -> bool:
        """Drop what is cached of these ranges, because it is damaged; return whether a fresh copy may differ."""

    def log_cache_use(self) -> None:
        """Log how many blocks of each shard came from the cache since the last call, at level DEBUG."""

    def list(self) -> list[str]:
        """Return the names of the files in the folder."""
