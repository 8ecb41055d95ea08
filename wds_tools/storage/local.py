"""A store for a local folder. Files are memory-mapped, so all processes share the kernel's page cache.

Before Python 3.13 each map keeps a file descriptor, so the limit of open files (`ulimit -n`) is a limit of maps too.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import stat
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from wds_tools.errors import MissingFileError, StoreError, TruncatedShardError
from wds_tools.storage.base import MAX_FILE_BYTES, Block, Extent, FetchStatistics, Range, StoredFile, too_large

_REMEDIES = {
    errno.EMFILE: "raise the limit of open files with `ulimit -n`, or use smaller batches",
    errno.ENFILE: "the limit of open files of the whole system is reached: raise fs.file-max, or close programs",
    errno.ENOMEM: "raise the limit of virtual memory with `ulimit -v`, or the limit of maps with sysctl "
    "vm.max_map_count",
}


def most_maps(limit: int) -> int:
    """Return how many files a store keeps mapped: at most ``limit``, and half of the descriptors of a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if soft < 0 else max(1, min(limit, soft // 2))


def is_short(error: OSError) -> bool:
    """Return whether descriptors or memory are used up, so that it helps to close other maps."""
    return error.errno in _REMEDIES


def reason(error: OSError) -> str:
    """Return the text of an error, with the remedy if descriptors or memory are used up."""
    text = error.strerror or str(error)
    return f"{text}: {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else text


def raise_file_limit() -> None:
    """Allow as many descriptors as the system permits: connections and shards need one each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


MAX_OPEN_MAPS = 512  # Linux allows 65,530 maps per process; a shuffle window spans far fewer shards than 512


class LocalStore:
    """Files of a local folder."""

    is_remote = False
    statistics = FetchStatistics()

    def __init__(self, folder: str) -> None:
        self.folder = folder
        # A map that is evicted is closed when its last view is gone.
        self._maps = lru_cache(maxsize=most_maps(MAX_OPEN_MAPS))(partial(self._open, folder))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}  # maps cannot be pickled; each process opens its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]

    def read(
        self,
        name: str,
        *,
        file: StoredFile | None = None,  # noqa: ARG002 - of the protocol
        fresh: bool = False,  # noqa: ARG002 - of the protocol
    ) -> bytes:
        """Return a whole file: a manifest or an index."""
        path = Path(self.folder) / name
        try:
            with _open_file(path) as opened:
                if (length := os.fstat(opened.fileno()).st_size) > MAX_FILE_BYTES:
                    raise too_large(str(path), length)
                return opened.read(length)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise StoreError(f"cannot read {path}: {reason(error)}") from error

    def stamp(self, name: str) -> object:
        """Return what changes when a file is replaced; None without the file."""
        try:
            status = (Path(self.folder) / name).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return byte ranges of a shard as views of the mapped file, without a copy."""
        view = memoryview(self._map(name, total_bytes))
        return [view[start:stop] for start, stop in ranges]

    def fetch_extents(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return byte ranges of shards as views of the mapped files, without a copy."""
        return [memoryview(self._map(block.file.name, block.file.bytes))[start:stop] for block, start, stop in extents]

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """Let the kernel read these blocks into the page cache in the background."""
        for file, start, stop in blocks:
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map(file.name, file.bytes).madvise(mmap.MADV_WILLNEED, page, stop - page)

    def read_samples_ahead(self, extents: Sequence[Extent], *, dataset_bytes: int) -> None:
        """Do nothing: the blocks of local files are read fast enough."""

    def read_files_ahead(self, files: Sequence[StoredFile], *, wait: bool) -> None:
        """Do nothing: local files are read when they are needed."""

    def release(self, blocks: Sequence[Block]) -> None:
        """Do nothing: the kernel caches local files."""

    def drop_cached(self, blocks: Iterable[Block]) -> bool:  # noqa: ARG002 - required by the protocol
        """Return False: local files are not cached, so another fetch would return the same bytes."""
        return False

    def log_use(self) -> None:
        """Do nothing: the kernel caches local files."""

    def close_files(self) -> None:
        """Close all maps; those with views are closed when their last view is gone."""
        self._maps.cache_clear()

    def list(self) -> list[str]:
        """Return the sorted names of the files in the folder."""
        return sorted(path.name for path in Path(self.folder).iterdir() if path.is_file())

    def _map(self, name: str, total_bytes: int) -> mmap.mmap:
        """Return a mapped shard; if there are no descriptors or no memory for it, close all other maps first."""
        for is_second in (False, True):
            try:
                return self._maps(name, total_bytes)
            except FileNotFoundError as error:
                raise MissingFileError(
                    f"{self.folder}/{name} is missing, but its manifest lists it: copy or pack it again", shard=name
                ) from error
            except OSError as error:
                if is_second or not is_short(error):
                    raise StoreError(f"cannot read {self.folder}/{name}: {reason(error)}") from error
                self._maps.cache_clear()
        raise AssertionError

    @staticmethod  # so that the cache of maps has no reference to the store, and both are freed at once
    def _open(folder: str, name: str, total_bytes: int) -> mmap.mmap:
        path = Path(folder) / name
        with _open_file(path) as file:
            length = file.seek(0, 2)
            if length != total_bytes or length == 0:  # an empty file cannot be mapped, and is not a shard
                raise TruncatedShardError(
                    f"{path} has {length:,} bytes, but its manifest records {total_bytes:,}: "
                    "it was truncated or replaced; copy or pack it again",
                    shard=name,
                    offset=min(length, total_bytes),
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _open_file(path: Path) -> BinaryIO:
    """Open a regular file. Pipes and devices are refused: reading them could block or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device")
    return os.fdopen(handle, "rb")
