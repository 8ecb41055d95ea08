"""The protocol of a store: read access to the files of one folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

from wds_tools.errors import ManifestError

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
        """Text that identifies the bytes of the block in a cache."""
        return f"{self.file.checksum} {self.start}-{self.stop}"


def whole_file(file: StoredFile) -> Block:
    """Return a file as one block."""
    return Block(file, 0, file.bytes)


class Extent(NamedTuple):
    """Bytes to read: a range of a block. ``start`` and ``stop`` count from the start of the file."""

    block: Block
    start: int
    stop: int


@dataclass(slots=True)
class FetchStatistics:
    """What was read from URLs, and what the cache saved.

    Attributes:
        requests: Requests for ranges and files that succeeded.
        fetched_bytes: Bytes that these requests returned.
        blocks: Blocks that were needed.
        cached_blocks: Blocks among them that were already in the cache.
        waiting_seconds: Time that readers waited for bytes, summed over all readers.
    """

    requests: int = 0
    fetched_bytes: int = 0
    blocks: int = 0
    cached_blocks: int = 0
    waiting_seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the needed blocks that were in the cache already; 0.0 if no block was needed."""
        return self.cached_blocks / max(1, self.blocks)

    def __add__(self, other: FetchStatistics) -> FetchStatistics:
        return FetchStatistics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Store(Protocol):
    """The files of one folder. A store can be pickled, and can be used in a forked process.

    Attributes:
        folder: Local path or URL of the folder.
        is_remote: Whether reading takes network requests.
    """

    folder: str
    is_remote: bool

    @property
    def statistics(self) -> FetchStatistics:
        """What has been read so far, by all processes that share the store's fetcher; zeros for local files."""

    def read(self, name: str, *, file: StoredFile | None = None, fresh: bool = False) -> bytes:
        """Return a whole file: a manifest or an index.

        Args:
            name: File name.
            file: Length and checksum of the file, if known. Its content may then come from a cache; it is not verified.
            fresh: Read it now, even if another process of this machine has just read it.

        Raises:
            FileNotFoundError: The file does not exist.
            ManifestError: The file is too large for a manifest or an index.
            StoreError: The storage fails.
        """

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return byte ranges of a shard that are read once: they are not cached.

        Args:
            name: File name of the shard.
            ranges: The ranges, or none to check only the length of the shard.
            total_bytes: Expected length of the shard in bytes.

        Returns:
            The bytes of each range, in the order of ``ranges``.

        Raises:
            TruncatedShardError: The length of the shard is not ``total_bytes``.
            StoreError: The storage fails, or the shard does not exist.
        """

    def fetch_extents(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return parts of blocks, in the order of ``extents``; the blocks are cached. Raises as `fetch` does."""

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """Start reading blocks that will be fetched soon, if the store can; raises as `fetch` does."""

    def read_samples_ahead(self, extents: Sequence[Extent], *, dataset_bytes: int) -> None:
        """Start reading the samples of the first batch, if that is faster than reading their blocks.

        Args:
            extents: The samples.
            dataset_bytes: Size of the part of the dataset that this machine reads, in bytes.
        """

    def read_files_ahead(self, files: Sequence[StoredFile], *, wait: bool) -> None:
        """Read indexes into the cache, many at a time.

        Args:
            files: The indexes.
            wait: Return when they are in the cache. Otherwise this is a hint, and errors are not raised.
        """

    def release(self, blocks: Sequence[Block]) -> None:
        """Mark blocks that will not be fetched again in this epoch, so that a cache evicts them first."""

    def drop_cached(self, blocks: Iterable[Block]) -> bool:
        """Remove damaged blocks from the cache; return whether another fetch may return different bytes."""

    def list(self) -> list[str]:
        """Return the sorted names of the files in the folder."""

    def log_use(self) -> None:
        """Log what was read, at level DEBUG."""


def too_large(path: str, length: int | None = None) -> ManifestError:
    """Return the error for a manifest or an index of more than `MAX_FILE_BYTES`."""
    size = f"{length:,} bytes" if length is not None else "more bytes than allowed"
    return ManifestError(
        f"{path} has {size}; a manifest or an index has at most {MAX_FILE_BYTES:,}: "
        "it was damaged or replaced; copy it again"
    )
