"""A store for a URL: blocks come from a local cache, and a fetcher puts them there."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import fsspec.asyn
from fsspec.registry import known_implementations

from wds_tools.options import RemoteOptions
from wds_tools.storage.base import Block, Extent, FetchStatistics, Range, StoredFile, whole_file
from wds_tools.storage.cache.blocks import BlockCache
from wds_tools.storage.cache.fetcher import Fetcher
from wds_tools.storage.cache.fetcher_process import FetcherConnection, FetcherGoneError, open_fetcher

os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)  # newer versions of fsspec do this themselves

_log = logging.getLogger("wds_tools")
_OWN_THREADS = 4  # requests at a time of a process that fetches blocks itself


class RemoteStore:
    """Files below a URL.

    Args:
        folder: URL of the folder.
        remote: How URLs are read.
        for_training: Use the fetcher process, which processes that read the same folder share.
    """

    is_remote = True

    def __init__(self, folder: str, *, remote: RemoteOptions, for_training: bool = False) -> None:
        self.folder = folder
        self._remote = remote
        self._for_training = for_training and is_known_elsewhere(folder)
        self._cache = BlockCache(remote.cache_folder, remote.cache_bytes, url=folder)
        self._fetcher: Fetcher | FetcherConnection | None = None
        self._pid = -1  # of the process that opened the fetcher

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "remote": self._remote, "for_training": self._for_training}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, name: str, *, file: StoredFile | None = None, fresh: bool = False) -> bytes:
        """Return a whole file: a manifest or an index."""
        if file and (cached := self._cache.get(whole_file(file).key, file.bytes)) is not None:
            return bytes(cached)
        return bytes(self._call("read", name, file, fresh=fresh))

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return byte ranges of a shard, read from the source."""
        file = StoredFile(name, total_bytes, "")
        spans = [span for span in ranges if span[0] < span[1]] or [(0, 1)]  # one byte, to check the length
        extents = [Extent(Block(file, start, stop), start, stop) for start, stop in spans]
        parts = iter(self._call("fetch", extents, inline=True))
        return [memoryview(next(parts)) if start < stop else memoryview(b"") for start, stop in ranges]

    def fetch_extents(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return parts of blocks: views of mapped blocks of the cache, if they are there."""
        parts = [self._find_cached(extent) for extent in extents]
        for inline in (False, True):  # the second time for blocks that were evicted at once
            missing = [position for position, data in enumerate(parts) if data is None]
            if not missing:
                break
            results = self._call("fetch", [extents[position] for position in missing], inline=inline)
            for position, data in zip(missing, results, strict=True):
                parts[position] = self._find_cached(extents[position]) if data is None else memoryview(data)
        return [data for data in parts if data is not None]

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """Let the fetcher read these blocks into the cache, in this order."""
        self._call("read_ahead", blocks)

    def read_samples_ahead(self, extents: Sequence[Extent], *, dataset_bytes: int) -> None:
        """Let the fetcher read these samples before all blocks."""
        self._call("fetch_samples", extents, dataset_bytes=dataset_bytes)

    def read_files_ahead(self, files: Sequence[StoredFile], *, wait: bool) -> None:
        """Read indexes into the cache, many at a time. Without the fetcher process, a hint is ignored."""
        missing = [file for file in files if self._cache.get(whole_file(file).key, file.bytes) is None]
        if missing and (wait or self._for_training):
            self._call("read_many", missing, wait=wait)

    def release(self, blocks: Sequence[Block]) -> None:
        """Let the cache evict these blocks first."""
        self._cache.release(block.key for block in blocks)

    def drop_cached(self, blocks: Iterable[Block]) -> bool:
        """Remove blocks from the cache; return True, because another fetch reads the source."""
        for block in blocks:
            self._cache.drop(block.key)
            self._cache.drop(whole_file(block.file).key)
        return True

    def list(self) -> list[str]:
        """Return the sorted names of the files below the URL."""
        return list(self._call("list_files"))

    @property
    def statistics(self) -> FetchStatistics:
        """What has been read so far, by all processes that share the fetcher."""
        try:
            return self._get_fetcher().statistics
        except FetcherGoneError:
            return FetchStatistics()

    def log_use(self) -> None:
        """Log what has been read since the fetcher was started, at level DEBUG."""
        if self._fetcher is None or self._pid != os.getpid() or not _log.isEnabledFor(logging.DEBUG):
            return
        used = self.statistics
        _log.debug(
            "%s: %d of %d blocks came from the cache; %d requests fetched %d bytes; readers waited %.1f s",
            self.folder.partition("?")[0],  # what follows may be a signature
            *(used.cached_blocks, used.blocks, used.requests, used.fetched_bytes, used.waiting_seconds),
        )

    def _find_cached(self, extent: Extent) -> memoryview | None:
        block, start, stop = extent
        data = self._cache.find(block)
        return None if data is None else data[start - block.start : stop - block.start]

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the fetcher; if its process has ended, of a fetcher in this process."""
        try:
            return getattr(self._get_fetcher(), method)(*args, **options)
        except FetcherGoneError as error:
            _log.warning("%s: %s; this process fetches the blocks itself", self.folder.partition("?")[0], error)
            self._use(open_fetcher(self.folder, self._remote, threads=_OWN_THREADS))
            return getattr(self._fetcher, method)(*args, **options)

    def _get_fetcher(self) -> Fetcher | FetcherConnection:
        """Return the fetcher of this process: a forked process cannot use the connection of its parent."""
        if self._fetcher is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._fetcher = None  # if the next line fails
            open_ = FetcherConnection if self._for_training else open_fetcher
            self._use(open_(self.folder, self._remote))
        assert self._fetcher is not None
        return self._fetcher

    def _use(self, fetcher: Fetcher | FetcherConnection) -> None:
        self._fetcher = fetcher
        weakref.finalize(self, _close, fetcher, os.getpid()).atexit = False


def _close(fetcher: Fetcher | FetcherConnection, pid: int) -> None:
    """Close a fetcher, but not in a process that was forked later: its threads and locks belong to its parent."""
    if os.getpid() == pid:
        fetcher.close()


def is_known_elsewhere(url: str) -> bool:
    """Return whether another program can read a URL. It cannot for memory:// and for schemes registered in this one."""
    scheme = url.partition("://")[0]
    return scheme in known_implementations and scheme != "memory"
