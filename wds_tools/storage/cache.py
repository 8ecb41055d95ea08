"""A cache of remote blocks in a local folder, with a size limit, that several processes may share.

The file name of a block is a hash of everything that identifies its bytes (URL, version, range), so
shards with equal names do not collide. A block is written under a unique temporary name, ends with
a checksum, and is renamed when it is complete. So readers need no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

import xxhash

from wds_tools.options import RemoteOptions

_log = logging.getLogger("wds_tools")
_CHECKSUM_BYTES = 16
_STALE_SECONDS = 3600.0


class BlockCache:
    """Cached blocks by name.

    The cache may exceed its limit by a sixteenth: a process checks the size of the folder each time
    it has added that much.
    """

    def __init__(self, options: RemoteOptions) -> None:
        self.folder = options.cache_folder
        self.limit_bytes = options.cache_bytes
        self._added_bytes = self.limit_bytes  # so that the first put() checks the size of the folder

    def get(self, name: str) -> bytes | None:
        """Return a block, or None if it is missing or damaged."""
        path = self._path(name)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        block = stored[:-_CHECKSUM_BYTES]
        if len(stored) < _CHECKSUM_BYTES or xxhash.xxh3_128_digest(block) != stored[-_CHECKSUM_BYTES:]:
            _log.debug("%s is damaged: its block is fetched again", path)
            self.drop(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the modification time records the last use, for eviction
        return block

    def put(self, name: str, block: bytes) -> None:
        """Store a block, unless it takes more than half of the limit; errors of the disk are ignored."""
        if len(block) + _CHECKSUM_BYTES > self.limit_bytes // 2:
            return
        path = self._path(name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(block)
                file.write(xxhash.xxh3_128_digest(block))
            temporary.replace(path)
        except OSError as error:
            _log.debug("%s: a block cannot be cached: %s", self.folder, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._added_bytes += len(block)
        if self._added_bytes > self.limit_bytes // 16:
            self._added_bytes = 0
            self._evict()

    def drop(self, name: str) -> None:
        """Remove a block."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        digest = xxhash.xxh3_128_hexdigest(name.encode())
        return self.folder / digest[:2] / digest

    def _evict(self) -> None:
        """Remove least recently used blocks until an eighth of the limit is free, and old temporary files."""
        files = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):  # another process may have removed the file
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        newest = max((mtime for mtime, _, _ in files), default=0.0)
        total = sum(size for _, size, _ in files)
        for mtime, size, path in sorted(files):
            if path.name.startswith("."):
                if mtime < newest - _STALE_SECONDS:
                    path.unlink(missing_ok=True)
                continue
            if total <= self.limit_bytes * 7 // 8:
                continue
            path.unlink(missing_ok=True)
            total -= size
