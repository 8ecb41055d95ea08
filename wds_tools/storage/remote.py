"""A store for any URL that fsspec supports, with a local cache of blocks."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec.asyn

from wds_tools.errors import StoreError, TruncatedShardError
from wds_tools.options import RemoteOptions
from wds_tools.storage.base import MAX_FILE_BYTES, Range, too_large
from wds_tools.storage.cache import BlockCache
from wds_tools.storage.schemes import options_for
from wds_tools.storage_options import cause_without_secrets, redacted

os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)  # newer versions of fsspec do this themselves

_log = logging.getLogger("wds_tools")
MAX_REQUEST_BYTES = 16 << 20  # of several blocks in one request; AWS recommends requests of 8 to 16 MiB


class RemoteStore:
    """Files below a URL.

    The version of a shard is determined when it is first read. A shard must not change during a run.
    """

    def __init__(self, folder: str, *, remote: RemoteOptions) -> None:
        self.folder = folder
        self._options = remote
        self._cache = BlockCache(remote)
        self._versions: dict[str, str] = {}
        self._read: Counter[str] = Counter()  # blocks that were read, by shard
        self._fetched: Counter[str] = Counter()  # those of them that were not in the cache
        self._system: Any = None
        self._pid = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "remote": self._options, "versions": self._versions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], remote=state["remote"])  # type: ignore[misc]
        self._versions = state["versions"]

    def read(self, name: str) -> bytes:
        """Return a whole file: a manifest or an index. The cache is not used."""
        data: bytes = self._request(name, lambda system, path: system.cat_file(path, start=0, end=MAX_FILE_BYTES + 1))
        if len(data) > MAX_FILE_BYTES:
            raise too_large(f"{self.folder}/{name}".partition("?")[0])
        return data

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return byte ranges of a shard from the cache; fetch missing blocks with few requests."""
        version = self._version(name, total_bytes)
        blocks = {span: self._cache.get(self._block_name(name, version, span)) for span in set(ranges)}
        missing = sorted(span for span, block in blocks.items() if block is None)
        self._read[name] += len(blocks)
        self._fetched[name] += len(missing)
        for request in _join_neighbours(missing):
            start, stop = request[0][0], request[-1][1]
            data = self._get_range(name, start, stop)
            for span in request:
                block = data[span[0] - start : span[1] - start]
                blocks[span] = block
                self._cache.put(self._block_name(name, version, span), block)
        return [memoryview(blocks[span] or b"") for span in ranges]

    def read_ahead(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> None:
        """Do nothing: reading ahead is not implemented for remote files."""

    def drop_cached(self, name: str, ranges: Sequence[Range]) -> bool:
        """Remove blocks from the cache; return True, because another fetch reads the source."""
        version = self._versions.get(name, "")
        for span in ranges:
            self._cache.drop(self._block_name(name, version, span))
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
        """Return the sorted names of the files below the URL."""
        entries: list[str] = self._request("", lambda system, path: system.ls(path, detail=False))
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in entries)

    def _block_name(self, name: str, version: str, span: Range) -> str:
        return f"{self.folder}\0{name}\0{version}\0{span[0]}-{span[1]}"

    def _version(self, name: str, total_bytes: int) -> str:
        """Check the length of a shard, and return what identifies its content at the source."""
        if name not in self._versions:
            info = self._request(name, lambda system, path: system.info(path))
            size = info.get("size")
            if size is not None and size != total_bytes:
                raise TruncatedShardError(
                    f"{self.folder}/{name} has {size:,} bytes, but its manifest records {total_bytes:,}: "
                    "it was truncated or replaced; upload it again",
                    shard=name,
                    offset=min(size, total_bytes),
                )
            tag = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("created") or ""
            self._versions[name] = f"{tag} {total_bytes}"
        return self._versions[name]

    def _get_range(self, name: str, start: int, stop: int) -> bytes:
        data: bytes = self._request(name, lambda system, path: system.cat_file(path, start=start, end=stop))
        if len(data) != stop - start:
            raise StoreError(
                f"{self.folder}/{name}: requested {stop - start:,} bytes at {start:,}, received {len(data):,}; "
                "check that the server supports range requests",
                shard=name,
                offset=start,
            )
        return data

    def _request(self, name: str, request: Any) -> Any:
        """Call ``request(file system, path)``; raise FileNotFoundError, or StoreError for other failures."""
        path = f"{self.folder.rstrip('/')}/{name}" if name else self.folder
        try:
            return request(self._connect(), path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist") from None
        except ImportError as error:
            scheme = self.folder.partition("://")[0]
            raise StoreError(
                f"{scheme}:// needs a package that is not installed: {error}; try `pip install 'wds-tools[{scheme}]'`"
            ) from error
        except Exception as error:  # each backend of fsspec has its own errors
            options = self._options.storage_options
            reason = redacted(f"{path}: {type(error).__name__}: {error}".partition("?")[0], options)
            raise StoreError(reason) from cause_without_secrets(error, options)

    def _connect(self) -> Any:
        """Return the file system; each process creates its own, because clients do not survive a fork."""
        if self._system is None or self._pid != os.getpid():
            self._system, _ = fsspec.core.url_to_fs(
                self.folder,
                skip_instance_cache=self._pid != -1,
                **options_for(self.folder, self._options.storage_options),
            )
            self._pid = os.getpid()
        return self._system


def _join_neighbours(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Group sorted, adjacent ranges into requests of at most `MAX_REQUEST_BYTES`.

    >>> list(_join_neighbours([(0, 10), (10, 20), (30, 40)]))
    [[(0, 10), (10, 20)], [(30, 40)]]
    """
    request: list[Range] = []
    for span in ranges:
        if request and (span[0] != request[-1][1] or span[1] - request[0][0] > MAX_REQUEST_BYTES):
            yield request
            request = []
        request.append(span)
    if request:
        yield request
