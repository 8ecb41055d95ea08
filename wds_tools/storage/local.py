"""A store for a local folder. Files are memory-mapped, so all processes share the kernel's page cache.

Before Python 3.13 each map keeps a file descriptor, so the limit of open files (`ulimit -n`) is a limit of maps too.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import resource
import stat
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from wds_tools.errors import MissingFileError, StoreError, TruncatedShardError
from wds_tools.lru_cache import LRUCache
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


MAX_OPEN_MAPS = 2048  # Linux allows 65,530 maps per process; a shuffle window spans far fewer shards


class OpenMaps:
    """The files that a process keeps mapped, for all its stores: they share one limit.

    A map that is evicted is closed when its last view is gone. At the first map the process raises its limit of open
    files as far as the system permits.
    """

    def __init__(self) -> None:
        self._kept = LRUCache[tuple[object, Hashable], mmap.mmap]()
        self._open = weakref.WeakSet[mmap.mmap]()  # those that are kept, and those that were evicted but have views
        self._freed: list[object] = []  # owners that were freed while the lock was held
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        self._lock = threading.Lock()  # a thread that held it does not exist in a forked process

    @cached_property
    def most(self) -> int:
        """How many files are mapped at the same time."""
        raise_file_limit()
        return most_maps(MAX_OPEN_MAPS)

    def get(self, owner: object, key: Hashable, open_map: Callable[[], mmap.mmap | None]) -> mmap.mmap | None:
        """Return a map; None if ``open_map`` returns None, or if the limit is reached and all maps have views.

        Args:
            owner: The object that the map is dropped with, see `drop_with`.
            key: Key of the map, unique for its owner.
            open_map: Maps the file. If it finds no descriptors or no memory, it is called again without other maps.

        Raises:
            OSError: The file cannot be mapped.
        """
        with self._lock:
            while self._freed:
                self._remove(self._freed.pop())
            opened = self._kept.get((owner, key))
            if opened is not None:
                return opened
            self._kept.max_items = self.most
            if len(self._open) >= self.most:
                self._kept.evict(len(self._open) - self.most + 1)
                if len(self._open) >= self.most:
                    self._kept.clear()
            if len(self._open) >= self.most:
                return None
            try:
                opened = open_map()
            except OSError as error:
                if not is_short(error):
                    raise
                self._kept.clear()
                gc.collect()  # views in reference cycles keep their maps open
                opened = open_map()
            if opened is not None:
                self._open.add(opened)
                self._kept.put((owner, key), opened)
            return opened

    def drop(self, owner: object, key: Hashable = None) -> None:
        """Drop one map of an owner; all of them without a key."""
        with self._lock:
            if key is None:
                self._remove(owner)
            else:
                self._kept.pop((owner, key))

    def owner(self, store: object) -> object:
        """Return an owner of maps that are dropped when a store is freed."""
        owner = object()  # not the store: its maps would keep it
        weakref.finalize(store, self._drop_freed, owner).atexit = False
        return owner

    def _drop_freed(self, owner: object) -> None:
        """Drop the maps of a freed store. The garbage collector calls this at any time, also within `get`."""
        if self._lock.acquire(blocking=False):
            try:
                self._remove(owner)
            finally:
                self._lock.release()
        else:
            self._freed.append(owner)

    def _remove(self, owner: object) -> None:
        for entry in [entry for entry in self._kept if entry[0] is owner]:
            self._kept.pop(entry)


maps = OpenMaps()
"""The maps of this process."""


class LocalStore:
    """Files of a local folder."""

    is_remote = False
    statistics = FetchStatistics()

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._owner = maps.owner(self)

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

    def view(self, name: str) -> bytes | memoryview:
        """Return a whole file as `read` does, but mapped: its pages are not memory of this process."""
        path = Path(self.folder) / name
        try:
            with _open_file(path) as opened:
                if (length := os.fstat(opened.fileno()).st_size) > MAX_FILE_BYTES:
                    raise too_large(str(path), length)
                return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)) if length else b""
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
        mapped = self._map(name, total_bytes)
        if mapped is None:  # too many files are mapped
            return [self._read_range(name, total_bytes, start, stop) for start, stop in ranges]
        view = memoryview(mapped)
        return [view[start:stop] for start, stop in ranges]

    def fetch_extents(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return byte ranges of shards as views of the mapped files, without a copy."""
        views: dict[StoredFile, memoryview | None] = {}  # of a batch; each file is looked up once
        data = []
        for block, start, stop in extents:
            file = block.file
            if file not in views:
                mapped = self._map(file.name, file.bytes)
                views[file] = None if mapped is None else memoryview(mapped)
            view = views[file]
            data.append(self._read_range(file.name, file.bytes, start, stop) if view is None else view[start:stop])
        return data

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """Let the kernel read these blocks into the page cache in the background."""
        for file, start, stop in blocks:
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            if (mapped := self._map(file.name, file.bytes)) is not None:
                mapped.madvise(mmap.MADV_WILLNEED, page, stop - page)

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
        maps.drop(self._owner)

    def list(self) -> list[str]:
        """Return the sorted names of the files in the folder."""
        return sorted(path.name for path in Path(self.folder).iterdir() if path.is_file())

    def _map(self, name: str, total_bytes: int) -> mmap.mmap | None:
        """Return a mapped shard; None if too many files are mapped."""

        def open_map() -> mmap.mmap:
            with self._opened(name, total_bytes) as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

        with self._named(name):
            return maps.get(self._owner, (name, total_bytes), open_map)

    def _read_range(self, name: str, total_bytes: int, start: int, stop: int) -> memoryview:
        with self._named(name), self._opened(name, total_bytes) as file:
            file.seek(start)
            return memoryview(file.read(stop - start))

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Let errors of the system name the shard."""
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(
                f"{self.folder}/{name} is missing, but its manifest lists it: copy or pack it again", shard=name
            ) from error
        except OSError as error:
            raise StoreError(f"cannot read {self.folder}/{name}: {reason(error)}") from error

    @contextlib.contextmanager
    def _opened(self, name: str, total_bytes: int) -> Iterator[BinaryIO]:
        path = Path(self.folder) / name
        with _open_file(path) as file:
            length = file.seek(0, 2)
            if length != total_bytes or length == 0:  # an empty file cannot be mapped, and is not a shard
                raise TruncatedShardError(
                    f"{path} has {length:,} bytes, but its manifest records {total_bytes:,}: "
                    "it was truncated or replaced; copy or pack it again",
                    shard=name,
                    offset=min(length, total_bytes),
                )
            yield file


def _open_file(path: Path) -> BinaryIO:
    """Open a regular file. Pipes and devices are refused: reading them could block or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device")
    return os.fdopen(handle, "rb")
