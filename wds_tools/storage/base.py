"""The protocol of a store: read access to the files of one folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

Range = tuple[int, int]
"""Byte range (start, stop) of a file, without the byte at ``stop``."""

MAX_FILE_BYTES = 1 << 30
"""Largest manifest or index that is read; a few megabytes are typical."""


class StoredFile(NamedTuple):
    """A file whose content is known from a manifest.

    Attributes:
        name: File name in its folder.
        bytes: Length in bytes.
        checksum: XXH3-128 of the content. It identifies the content in a cache.
    """

    name: str
    bytes: int
    checksum: str


class Block(NamedTuple):
    """A range of a shard that is read and cached as a unit."""

    file: StoredFile
    start: int
    stop: int

    @property
    def key(self) -> str:
        """Text that identifies the bytes of the block."""
        return f"{self.file.checksum} {self.start}-{self.stop}"


class Extent(NamedTuple):
    """Bytes to read: a range of a block. ``start`` and ``stop`` count from the start of the file."""

    block: Block
    start: int
    stop: int


class Store(Protocol):
    """The files of one folder. A store can be pickled, and can be used in a forked process.

    Attributes:
        folder: Local path or URL of the folder.
        is_remote: Whether reading takes network requests.
    """

    folder: str
    is_remote: bool

    def read(self, name: str, *, file: StoredFile | None = None) -> bytes:
        """Return a whole file: a manifest or an index.

        Args:
            name: File name.
            file: What is known about the file; its content may then come from a cache. It is not verified.

        Raises:
            FileNotFoundError: The file does not exist.
            ManifestError: The file is too large for a manifest or an index.
            StoreError: The storage fails.
        """

    def fetch(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return ranges of shards, in the order of ``extents``. They are not verified.

        Raises:
            TruncatedShardError: The length of a shard is not the expected one.
            StoreError: The storage fails, or a shard does not exist.
        """

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """Start reading blocks that will be fetched soon, if the store can; raises as `fetch` does."""

    def release(self, blocks: Sequence[Block]) -> None:
        """Mark blocks that will not be fetched again in this epoch, so that a cache evicts them first."""

    def drop_cached(self, blocks: Iterable[Block]) -> bool:
        """Remove damaged blocks from the cache; return whether another fetch may return different bytes."""

    def list(self) -> list[str]:
        """Return the sorted names of the files in the folder."""

    def log_use(self) -> None:
        """Log what was read since the last call, at level DEBUG."""
