"""Local datasets as a library: descriptors that stay open, and ranges that are read into memory before they are sent.

A page that is not in memory would block the event loop, and with it all clients, for as long as the disk takes. So
threads read such ranges first. A few reads that do not wait show whether a range is in memory already.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from wds_tools.lru_cache import LRUCache
from wds_tools.service.catalogue import Catalogue, Located
from wds_tools.service.contents import Content, DamagedFileError, FilePiece, Piece, Summary
from wds_tools.storage.base import StoredFile

PIECE_BYTES = 4 << 20
MAX_OPEN_FILES = 512
_MAX_TABLE_BYTES = 64 << 20  # of lists of files that are kept
_FILE_ENTRY_BYTES = 400  # of one file in such a list, about
_READ_BYTES = 1 << 20
_PROBE_BYTES = 256 << 10  # twice the default read-ahead of Linux: what was read from a disk is in long runs
_THREADS = 16
_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_Result = TypeVar("_Result")


class OpenFile:
    """A descriptor that is closed when nothing refers to it any more, such as a response in progress."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._descriptor

    def read(self, size: int) -> bytes:
        """Return the first bytes."""
        return os.pread(self._descriptor, size, 0)

    def __del__(self) -> None:
        os.close(self._descriptor)


class LocalLibrary:
    """The datasets of a catalogue.

    Args:
        catalogue: The catalogue; it has been scanned.
        on_cold_read: Called for each piece that was not in memory.
    """

    def __init__(self, catalogue: Catalogue, *, on_cold_read: Callable[[], object] = lambda: None) -> None:
        self._catalogue = catalogue
        self._on_cold_read = on_cold_read
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="read")
        self._tables = LRUCache[tuple[str, str], dict[str, StoredFile]](max_items=10_000, max_bytes=_MAX_TABLE_BYTES)
        self._open: dict[tuple[str, str, str], LocalContent] = {}  # the least recently used first

    def summaries(self) -> list[Summary]:
        """Return all datasets, sorted by name."""
        return [located.summary for located in self._catalogue.datasets.values()]

    def problems(self) -> dict[str, str]:
        """Return the names of datasets with errors, and the error of each."""
        return self._catalogue.problems

    def find(self, dataset: str) -> Summary | None:
        """Return a dataset by its name."""
        located = self._catalogue.datasets.get(dataset)
        return located.summary if located else None

    async def scan(self) -> None:
        """Look for new, changed and removed datasets and files; close the files of the latter two."""
        await self._in_thread(self._catalogue.scan)
        opened = dict(self._open)
        for key in await self._in_thread(lambda: self._outdated(opened)):
            if self._open.get(key) is opened[key]:
                del self._open[key]

    async def files(self, dataset: str) -> Mapping[str, int]:
        """Return the names and lengths of the files of a dataset."""
        located = self._catalogue.datasets.get(dataset)
        if located is None:
            return {}
        return {name: file.bytes for name, file in (await self._table(located)).items()}

    async def open(self, dataset: str, name: str) -> Content | None:
        """Return a file of a dataset."""
        located = self._catalogue.datasets.get(dataset)
        if located is None:
            return None
        key = (dataset, located.summary.version, name)
        content = self._open.pop(key, None)
        if content is None:
            try:
                content = await self._open_file(located, name)
            except DamagedFileError:
                await self.scan()  # the dataset may have been packed again since the last scan
                located = self._catalogue.datasets.get(dataset)
                content = await self._open_file(located, name) if located else None
            if content is None or located is None:
                return None
            key = (dataset, located.summary.version, name)
        self._open[key] = content
        if len(self._open) > MAX_OPEN_FILES:
            del self._open[next(iter(self._open))]
        return content

    def close(self) -> None:
        """Close all files."""
        self._open.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._catalogue.close()

    def _outdated(self, opened: Mapping[tuple[str, str, str], LocalContent]) -> list[tuple[str, str, str]]:
        """Return the open files whose dataset has changed, and those that were removed, replaced or truncated."""
        outdated = []
        for key, content in opened.items():
            located = self._catalogue.datasets.get(key[0])
            status = os.fstat(content.file.fileno())
            is_current = located is not None and located.summary.version == key[1] and status.st_size == content.size
            if located is None or not is_current or not self._catalogue.has_file(located, key[2], status):
                outdated.append(key)
        return outdated

    async def _table(self, located: Located) -> dict[str, StoredFile]:
        key = (located.summary.name, located.summary.version)
        table = self._tables.get(key)
        if table is None:
            table = await self._in_thread(lambda: self._catalogue.files(located))
            self._tables.put(key, table, len(table) * _FILE_ENTRY_BYTES)
        return table

    async def _open_file(self, located: Located, name: str) -> LocalContent | None:
        file = (await self._table(located)).get(name)
        if file is None:
            return None
        descriptor = await self._in_thread(lambda: self._catalogue.open(located, file))
        return LocalContent(OpenFile(descriptor), file, self._executor, self._on_cold_read)

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


class LocalContent:
    """A local file."""

    def __init__(
        self, file: OpenFile, stored: StoredFile, executor: ThreadPoolExecutor, on_cold_read: Callable[[], object]
    ) -> None:
        self.size = stored.bytes
        self.checksum = stored.checksum
        self.file = file
        self._executor = executor
        self._on_cold_read = on_cold_read

    def at_once(self, start: int, stop: int) -> FilePiece | None:
        """Return a range that is in memory and not longer than a piece."""
        if 0 < stop - start <= PIECE_BYTES and is_in_memory(self.file.fileno(), start, stop):
            return FilePiece(self.file, start, stop - start)
        return None

    async def pieces(self, start: int, stop: int) -> AsyncGenerator[Piece, None]:
        """Return the bytes ``start`` to ``stop``; while one piece is sent, the next is read."""
        reading = self._start_reading(start, stop)
        while start < stop:
            end = min(start + PIECE_BYTES, stop)
            if reading is not None:
                await reading
            reading = self._start_reading(end, stop)
            yield FilePiece(self.file, start, end - start)
            start = end

    def _start_reading(self, start: int, stop: int) -> asyncio.Future[None] | None:
        """Start reading a piece in a thread; return None if it is in memory already."""
        end = min(start + PIECE_BYTES, stop)
        if start >= end or is_in_memory(self.file.fileno(), start, end):
            return None
        self._on_cold_read()
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, read_into_memory, self.file, start, end, stop)


def is_in_memory(descriptor: int, start: int, stop: int) -> bool:
    """Return whether a range of a file can probably be read without waiting for a disk."""
    if _NOWAIT is None:
        return False
    buffer = [bytearray(1)]
    try:
        for offset in (*range(start, stop, _PROBE_BYTES), stop - 1):
            if os.preadv(descriptor, buffer, offset, _NOWAIT) != 1:
                return False
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise
        return False
    return True


def read_into_memory(file: OpenFile, start: int, stop: int, end: int) -> None:
    """Read a range of a file, so that it is in the page cache. Called in a thread.

    Args:
        file: The file.
        start: First byte.
        stop: End of the range.
        end: End of what will be read soon: the kernel starts to read it too.
    """
    descriptor = file.fileno()
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, start, min(end, stop + PIECE_BYTES) - start, os.POSIX_FADV_WILLNEED)
    with Path(os.devnull).open("wb", buffering=0) as null:
        while start < stop:
            if sys.platform == "linux":  # waits for the pages, and copies nothing
                count = os.sendfile(null.fileno(), descriptor, start, stop - start)
            else:
                count = len(os.pread(descriptor, min(_READ_BYTES, stop - start), start))
            if not count:
                raise OSError(errno.EIO, "the file was truncated while it was being read")
            start += count
