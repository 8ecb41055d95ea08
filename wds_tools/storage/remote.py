"""Any URL that fsspec knows, read by ranges of whole blocks into a bounded local cache."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec.asyn

from wds_tools.errors import StoreError, TruncatedShardError
from wds_tools.options import CacheOptions
from wds_tools.storage.base import Range
from wds_tools.storage.cache import BlockCache

os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)  # later versions of fsspec do this themselves

_log = logging.getLogger("wds_tools")
MAX_REQUEST_BYTES = 16 << 20  # neighbours are joined into requests of at most this; 8 to 16 MiB is AWS's advice


class RemoteStore:
    """Files below a URL. A shard's version is pinned when it is first read: it may not change in mid-run."""

    def __init__(self, folder: str, *, cache: CacheOptions) -> None:
        self.folder = folder
        self._cache_options = cache
        self._cache = BlockCache(cache)
        self._versions: dict[str, str] = {}
        self._read: Counter[str] = Counter()  # blocks that were read, by shard
        self._fetched: Counter[str] = Counter()  # those of them that were not in the cache
        self._system: Any = None
        self._pid = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "cache": self._cache_options, "versions": self._versions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], cache=state["cache"])  # type: ignore[misc]
        self._versions = state["versions"]

    def read(self, name: str) -> bytes:
        """Return a whole file, not from the cache."""
        return self._ask(name, lambda system, path: system.cat_file(path))  # type: ignore[no-any-return]

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return ranges of a shard: from the cache, and what is missing in few requests."""
        version = self._version(name, total_bytes)
        blocks = {part: self._cache.get(self._block_name(name, version, part)) for part in set(ranges)}
        missing = sorted(part for part, block in blocks.items() if block is None)
        self._read[name] += len(blocks)
        self._fetched[name] += len(missing)
        for request in _join_neighbours(missing):
            start, stop = request[0][0], request[-1][1]
            data = self._get_range(name, start, stop)
            for part in request:
                block = data[part[0] - start : part[1] - start]
                blocks[part] = block
                self._cache.put(self._block_name(name, version, part), block)
        return [memoryview(blocks[part] or b"") for part in ranges]

    def expect(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> None:
        """Do nothing yet: reading ahead of object storage comes with the work on its speed."""

    def forget(self, name: str, ranges: Sequence[Range]) -> bool:
        """Drop blocks from the cache."""
        version = self._versions.get(name, "")
        for part in ranges:
            self._cache.drop(self._block_name(name, version, part))
        return True

    def log_cache_use(self) -> None:
        """Log how many blocks of each shard came from the cache since the last call, at level DEBUG."""
        for name, blocks in sorted(self._read.items()):
            hits = blocks - self._fetched[name]
            where = f"{self.folder}/{name}".partition("?")[0]  # what follows may be a signature
            _log.debug("%s: %d of %d blocks came from the cache", where, hits, blocks)
        self._read.clear()
        self._fetched.clear()

    def list(self) -> list[str]:
        """Return the names of the files below the URL."""
        entries: list[str] = self._ask("", lambda system, path: system.ls(path, detail=False))
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in entries)

    def _block_name(self, name: str, version: str, part: Range) -> str:
        return f"{self.folder}\0{name}\0{version}\0{part[0]}-{part[1]}"

    def _version(self, name: str, total_bytes: int) -> str:
        """Return what identifies the shard's content at its source, and check its length."""
        if name not in self._versions:
            info = self._ask(name, lambda system, path: system.info(path))
            size = info.get("size")
            if size is not None and size != total_bytes:
                raise TruncatedShardError(
                    f"{self.folder}/{name} has {size:,} bytes, its manifest says {total_bytes:,}: "
                    "it was cut or replaced; upload it again",
                    shard=name,
                    offset=min(size, total_bytes),
                )
            tag = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("created") or ""
            self._versions[name] = f"{tag} {total_bytes}"
        return self._versions[name]

    def _get_range(self, name: str, start: int, stop: int) -> bytes:
        data: bytes = self._ask(name, lambda system, path: system.cat_file(path, start=start, end=stop))
        if len(data) != stop - start:
            raise StoreError(
                f"{self.folder}/{name}: {stop - start:,} bytes asked for at {start:,}, {len(data):,} received; "
                "does the server answer range requests?",
                shard=name,
                offset=start,
            )
        return data

    def _ask(self, name: str, request: Any) -> Any:
        """Run one request, its failure as our own error; FileNotFoundError stays itself for whole files."""
        path = f"{self.folder.rstrip('/')}/{name}" if name else self.folder
        try:
            return request(self._connect(), path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is not there") from None
        except ImportError as error:
            scheme = self.folder.partition("://")[0]
            raise StoreError(
                f"{scheme}:// needs a package that is not installed: {error}; try `pip install 'wds-tools[{scheme}]'`"
            ) from error
        except Exception as error:  # each of fsspec's many backends has its own errors
            raise StoreError(f"{path}: {type(error).__name__}: {error}".partition("?")[0]) from error

    def _connect(self) -> Any:
        """Return the file system, a new one in each process: clients and their threads do not survive a fork."""
        if self._system is None or self._pid != os.getpid():
            self._system, _ = fsspec.core.url_to_fs(self.folder, skip_instance_cache=self._pid != -1)
            self._pid = os.getpid()
        return self._system


def _join_neighbours(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Group sorted ranges that touch each other into requests of at most `MAX_REQUEST_BYTES`.

    >>> list(_join_neighbours([(0, 10), (10, 20), (30, 40)]))
    [[(0, 10), (10, 20)], [(30, 40)]]
    """
    request: list[Range] = []
    for part in ranges:
        if request and (part[0] != request[-1][1] or part[1] - request[0][0] > MAX_REQUEST_BYTES):
            yield request
            request = []
        request.append(part)
    if request:
        yield request
