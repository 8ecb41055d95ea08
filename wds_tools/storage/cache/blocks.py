"""A cache of remote blocks in a local folder, with a size limit, that all processes of a machine may share.

::

    cache folder/
      usage                 bytes of all blocks, as text; the cache's locks are record locks on this file
      3f2a…/                one folder per dataset
        url                 where its blocks come from, for `wds-tools cache list`
        9c41…               one block, or a whole shard: its bytes, then their checksum

A block is written to a temporary file of its final size, and renamed when it is complete. Readers map
the file, so they need no lock, and a block that is evicted stays valid for processes that have it mapped.
A block is never received into a mapping, so a full disk makes a write fail, and does not cause a SIGBUS.

Byte 0 of the file `usage` is locked while the file is changed. While a block is fetched, one byte far
beyond the end of the file is locked. Record locks belong to a process and end with it, so a killed process
blocks nobody. Where a file system has no locks, two processes may fetch the same block, and both write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from wds_tools.storage.base import Block, whole_file
from wds_tools.storage.local import maps
from wds_tools.storage.requests.failures import clean_url

_log = logging.getLogger("wds_tools")
CHECKSUM_BYTES = 16
_USAGE_DIGITS = 20
_USAGE_LOCK = 0  # offset of a byte; blocks lock bytes from 2**32
_ABANDONED_SECONDS = 600.0  # since the last write to a temporary file
_WRITE_BYTES = 512 << 10  # Linux sometimes takes 10 times the CPU time for a write of 2 MiB, to find large pages
_RELEASED_BASE = 4e9  # seconds; see `BlockCache.release`
_usage_files: dict[tuple[int, Path], int] = {}  # never closed: closing one would release all locks of the process
_usage_mutex = threading.Lock()  # record locks do not exclude threads of the same process


@dataclass(frozen=True, slots=True)
class CachedDataset:
    """The cached blocks of one dataset.

    Attributes:
        url: URL of its folder; "" if unknown.
        folder: Local folder of the blocks.
        blocks: Number of blocks.
        bytes: Size of the blocks in bytes.
        last_use: Time of the last use of a block, in seconds since 1970.
    """

    url: str
    folder: Path
    blocks: int
    bytes: int
    last_use: float


class BlockCache:
    """Cached blocks of one dataset, by name.

    Args:
        folder: Folder of the cache, which several datasets share.
        limit_bytes: Size limit of that folder in bytes.
        url: URL of the dataset's folder.
        without: What happens if blocks cannot be stored, for the warning.
    """

    def __init__(
        self, folder: Path, limit_bytes: int, *, url: str, without: str = "samples are fetched one by one"
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.url = clean_url(url).rstrip("/")
        self._own_folder = folder / xxhash.xxh3_128_hexdigest(self.url.encode())
        self._owner = maps.owner(self)
        self._without = without
        self._has_warned = False

    def get(self, name: str, size: int | None = None) -> memoryview | None:
        """Return a block of ``size`` bytes, or of any size, or None if it is missing. It is mapped, not copied.

        Its checksum is not compared: the reader verifies each sample.
        """
        path, stored = self._path(name), None if size is None else size + CHECKSUM_BYTES
        try:
            mapped = maps.get(self._owner, name, lambda: _mapped(path, stored))
            content = memoryview(_content(path, stored) if mapped is None else mapped)
        except OSError:
            return None
        return content[: len(content) - CHECKSUM_BYTES] if content else None

    def find(self, block: Block) -> memoryview | None:
        """Return a block of a shard, which may be stored as a part of the whole shard; otherwise as `get` does."""
        data = self.get(block.key, block.stop - block.start)
        if data is None and (whole := self.get(whole_file(block.file).key, block.file.bytes)) is not None:
            return whole[block.start : block.stop]
        return data

    def has(self, block: Block) -> bool:
        """Return whether a block of a shard is cached, or the whole shard, and mark it as used now."""
        return self.contains(block.key) or self.contains(whole_file(block.file).key)

    def open(self, name: str, size: int) -> int | None:
        """Return a descriptor of a block of ``size`` bytes, or None if it is missing; mark it as used now.

        The block remains readable when it is evicted. In the file, a checksum follows it.
        """
        path = self._path(name)
        try:
            os.utime(path)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if os.fstat(file).st_size == size + CHECKSUM_BYTES:
            return file
        os.close(file)
        path.unlink(missing_ok=True)  # truncated by someone
        return None

    def contains(self, name: str) -> bool:
        """Return whether a block is cached, and mark it as used now."""
        try:
            os.utime(self._path(name))
        except OSError:
            return False
        return True

    def get_verified(self, name: str) -> memoryview | None:
        """Return a block of any size as `get` does, if it matches its checksum; a damaged one is removed."""
        block = self.get(name)
        if block is not None and xxhash.xxh3_128_digest(block) != bytes(memoryview(block.obj)[len(block) :]):
            self.drop(name)
            return None
        return block

    def put(self, name: str, *parts: memoryview | bytes) -> bool:
        """Store a block that consists of some parts; return False if the disk or the limit does not allow it."""
        size = sum(map(len, parts)) + CHECKSUM_BYTES
        if size > self.limit_bytes:
            if self.limit_bytes > 1:  # 1 means no cache
                self._warn(f"cache_bytes={self.limit_bytes:,} is too small for a block of {size:,} bytes")
            return False
        path = self._path(name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            if not self._reserve(temporary, size):
                self._warn("all of it is in use")
                return False
            file = os.open(temporary, os.O_WRONLY | os.O_CLOEXEC)
            try:
                digest, offset = xxhash.xxh3_128(), 0
                for part in parts:
                    _write(file, part, offset)
                    digest.update(part)
                    offset += len(part)
                _write(file, digest.digest(), offset)
            finally:
                os.close(file)
            self._publish(temporary, path)
        except OSError as error:
            self._discard(temporary, size)
            self._warn(f"{error.strerror or error}")
            return False
        return True

    def drop(self, name: str) -> None:
        """Remove a block."""
        maps.drop(self._owner, name)
        path = self._path(name)
        with contextlib.suppress(OSError):
            self._discard(path, path.stat().st_size)

    def release(self, names: Iterable[str]) -> None:
        """Mark blocks that nobody needs in this epoch: they are evicted first.

        Their modification time is set to a time before that of all used blocks. A block that is released later gets
        an earlier time, so it is evicted before the others: on average, the next epoch needs it last.
        """
        seconds = (_RELEASED_BASE - time.time()) / 2
        for name in names:
            with contextlib.suppress(OSError):
                os.utime(self._path(name), (seconds, seconds))

    @contextlib.contextmanager
    def claim(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Hold the lock of a block, so that only one process fetches it.

        Args:
            name: Name of the block.
            wait: Wait for a process that has the lock.

        Returns:
            A context manager; its value is False if another process has the lock and ``wait`` is False. It is True
            where the file system has no locks.
        """
        position = (1 << 32) + int(_digest(name)[:15], 16)
        is_claimed = self._lock(position, wait=wait)
        try:
            yield is_claimed
        finally:
            if is_claimed:
                self._unlock(position)

    def _path(self, name: str) -> Path:
        return self._own_folder / _digest(name)

    def _reserve(self, temporary: Path, size: int) -> bool:
        """Create a temporary file of ``size`` bytes and count it; evict other blocks if the cache is full."""
        with self._usage_locked():
            used = self._usage()
            if used + size > self.limit_bytes:
                used = self._evict(size)
            if used + size > self.limit_bytes:
                self._set_usage(used)
                return False
            if not self._own_folder.is_dir():
                self._own_folder.mkdir(parents=True)
                (self._own_folder / "url").write_text(self.url)
            self._set_usage(used + size)  # before the file exists: a process that is killed here leaves it too high
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _allocate(file, size)  # so that a recount includes it
            finally:
                os.close(file)
        return True

    def _publish(self, temporary: Path, path: Path) -> None:
        """Give a complete block its name; locked, because a recount could miss a file that is renamed meanwhile."""
        with self._usage_locked():
            with contextlib.suppress(FileNotFoundError):
                self._set_usage(max(0, self._usage() - path.stat().st_size))  # it is replaced
            temporary.replace(path)

    def _discard(self, path: Path, size: int) -> None:
        """Remove a file and subtract its size."""
        with contextlib.suppress(OSError), self._usage_locked():
            path.unlink()
            self._set_usage(max(0, self._usage() - size))

    def _usage(self) -> int:
        """Return the bytes of all blocks, from the file that counts them, or counted again if that is unreadable."""
        try:
            return int(os.pread(self._usage_file(), _USAGE_DIGITS, 0))
        except ValueError:
            return sum(size for _, size, _ in _files(self.folder))

    def _set_usage(self, used: int) -> None:
        os.pwrite(self._usage_file(), f"{used:{_USAGE_DIGITS}}".encode(), 0)

    def _evict(self, size: int) -> int:
        """Remove blocks until ``size`` bytes and a sixteenth of the limit are free; return the bytes left.

        Released blocks are removed first, then those that were used least recently.
        """
        files = sorted(_files(self.folder))
        used = sum(file_bytes for _, file_bytes, _ in files)
        target = self.limit_bytes * 15 // 16 - size
        for last_use, file_bytes, path in files:
            is_temporary = path.name.startswith(".")
            if is_temporary and time.time() - last_use < _ABANDONED_SECONDS:  # another process is writing it
                continue
            if not is_temporary and used <= target:
                continue
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                used -= file_bytes
        return used

    @contextlib.contextmanager
    def _usage_locked(self) -> Iterator[None]:
        with _usage_mutex:
            is_locked = self._lock(_USAGE_LOCK, wait=True)
            try:
                yield
            finally:
                if is_locked:
                    self._unlock(_USAGE_LOCK)

    def _lock(self, position: int, *, wait: bool) -> bool:
        try:
            file = self._usage_file()
        except OSError:  # the folder cannot be written to, so nothing is stored: `put` reports it
            return True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, position)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:  # a file system without locks
            _log.debug("%s: no record locks: %s", self.folder, error)
        return True

    def _unlock(self, position: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._usage_file(), fcntl.LOCK_UN, 1, position)

    def _usage_file(self) -> int:
        """Return the descriptor of this process for the file `usage`, opened again if the cache was deleted."""
        key = os.getpid(), self.folder
        file = _usage_files.get(key)
        if file is None or not os.fstat(file).st_nlink:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = _usage_files[key] = os.open(self.folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return file

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s: blocks cannot be cached: %s; %s", self.folder, reason, self._without)


def cached_datasets(folder: Path) -> list[CachedDataset]:
    """Return the datasets in a cache folder, sorted by URL."""
    datasets = []
    for path in folder.glob("*/url"):
        files = list(_files_of(path.parent))
        newest = max((time for time, _, _ in files), default=0.0)
        datasets.append(
            CachedDataset(path.read_text(), path.parent, len(files), sum(size for _, size, _ in files), newest)
        )
    return sorted(datasets, key=lambda dataset: dataset.url)


def damaged_blocks(dataset: CachedDataset) -> Iterator[tuple[Path, bool]]:
    """Yield (path, whether it is damaged) for each cached block of a dataset."""
    for path in sorted(_blocks_in(dataset.folder)):
        with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
            stored = path.read_bytes()
            block = memoryview(stored)[:-CHECKSUM_BYTES]
            yield path, xxhash.xxh3_128_digest(block) != stored[-CHECKSUM_BYTES:]


def remove_cached(folder: Path, datasets: Iterable[CachedDataset]) -> None:
    """Remove datasets from a cache folder. Loaders may use it meanwhile."""
    for dataset in datasets:
        shutil.rmtree(dataset.folder, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.truncate(folder / "usage", 0)  # the next process that stores a block counts again


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield (time of last use, size, path) of the blocks in a cache folder, and of temporary files."""
    for url in folder.glob("*/url"):
        yield from _files_of(url.parent)


def _files_of(dataset: Path) -> Iterator[tuple[float, int, Path]]:
    for path in dataset.iterdir():
        if path.name != "url":
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                yield status.st_mtime, status.st_size, path


def _blocks_in(dataset: Path) -> Iterator[Path]:
    return (path for path in dataset.iterdir() if path.name != "url" and not path.name.startswith("."))


def _mapped(path: Path, size: int | None) -> mmap.mmap | None:
    """Map a file of ``size`` bytes. A file of another size was truncated by someone, and is removed."""
    with _opened(path, size) as file:
        return None if file is None else mmap.mmap(file, 0, access=mmap.ACCESS_READ)


def _content(path: Path, size: int | None) -> bytes:
    """Return the content of a file as `_mapped` does, for when too many files are mapped; empty if it is removed."""
    with _opened(path, size) as file:
        return b"" if file is None else os.pread(file, os.fstat(file).st_size, 0)


@contextlib.contextmanager
def _opened(path: Path, size: int | None) -> Iterator[int | None]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(file).st_size
        is_complete = length == size or (size is None and length >= CHECKSUM_BYTES)
        yield file if is_complete else None
    finally:
        os.close(file)
    if not is_complete:
        path.unlink(missing_ok=True)


def _digest(name: str) -> str:
    return xxhash.xxh3_128_hexdigest(name.encode())


def _allocate(file: int, size: int) -> None:
    """Give a file its final size, and its space on the disk where the file system can reserve it."""
    try:
        os.posix_fallocate(file, 0, size)
    except (AttributeError, OSError) as error:  # macOS lacks it, and so do some file systems
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        os.ftruncate(file, size)


def _write(file: int, data: memoryview | bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view[:_WRITE_BYTES], offset)
        view, offset = view[written:], offset + written
