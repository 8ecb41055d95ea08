"""The protocol of a store: read access to the files of one folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wds_tools.errors import ManifestError

MAX_FILE_BYTES = 1 << 30
"""Limit for a manifest or an index; a few megabytes are typical."""

Range = tuple[int, int]
"""Byte range (start, stop) of a file, without the byte at ``stop``."""


class Store(Protocol):
    """The files of one folder. A store can be pickled, and can be used in a forked process.

    Attributes:
        folder: Local path or URL of the folder.
    """

    folder: str

    def read(self, name: str) -> bytes:
        """Return a whole file: a manifest or an index.

        Raises:
            FileNotFoundError: The file does not exist.
            ManifestError: The file is too large for a manifest or an index.
            StoreError: The storage fails.
        """

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return byte ranges of a shard.

        Args:
            name: File name of the shard.
            ranges: The ranges to read.
            total_bytes: Expected length of the shard in bytes.

        Returns:
            The bytes of each range, in the order of ``ranges``.

        Raises:
            TruncatedShardError: The length of the shard is not ``total_bytes``.
            StoreError: The storage fails, or the shard does not exist.
        """

    def read_ahead(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> None:
        """Start reading ranges that will be fetched soon, if the store can; arguments as for `fetch`."""

    def drop_cached(self, name: str, ranges: Sequence[Range]) -> bool:
        """Remove damaged ranges from the cache; return whether another fetch may return different bytes."""

    def log_cache_use(self) -> None:
        """Log how many blocks of each shard came from the cache since the last call, at level DEBUG."""

    def list(self) -> list[str]:
        """Return the sorted names of the files in the folder."""


def too_large(path: str, length: int | None = None) -> ManifestError:
    """Return the error for a manifest or an index of more than `MAX_FILE_BYTES`."""
    found = f"{length:,} bytes" if length is not None else "more bytes than allowed"
    return ManifestError(
        f"{path} has {found}; a manifest or an index has at most {MAX_FILE_BYTES:,}: "
        "it was damaged or replaced; copy it again"
    )
