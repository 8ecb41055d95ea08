"""A local folder, memory-mapped: the page cache is shared by all workers, and the shuffle window costs no memory."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from wds_tools.errors import ManifestError, StoreError, TruncatedShardError
from wds_tools.storage.base import Range

MOST_BYTES = 1 << 30  # of a manifest or an index, read as a whole; usual are some megabytes
MAX_OPEN_MAPS = 512  # Linux allows 65,530 maps in a process; a window needs far fewer shards than this at a time


class LocalStore:
    """Files of a local folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        # A map that is evicted is closed when its last view is gone.
        self._map = lru_cache(maxsize=MAX_OPEN_MAPS)(partial(self._open, folder))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}  # maps cannot travel to another process; it opens its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        path = Path(self.folder) / name
        try:
            with _open_file(path) as file:
                if (length := os.fstat(file.fileno()).st_size) > MOST_BYTES:
                    raise ManifestError(
                        f"{path} has {length:,} bytes; a manifest or an index has {MOST_BYTES:,} at most: "
                        "it was damaged or replaced; copy it again"
                    )
                return file.read(length)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:
        """Return views of the mapped file; no bytes are copied."""
        view = memoryview(self._map(name, total_bytes))
        return [view[start:stop] for start, stop in ranges]

    def expect(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> None:
        """Ask the kernel to read these ranges into the page cache now."""
        mapped = self._map(name, total_bytes)
        for start, stop in ranges:
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, page, stop - page)

    def forget(self, name: str, ranges: Sequence[Range]) -> bool:  # noqa: ARG002 - the file itself is the only copy
        """Do nothing: there is no other copy of a local file."""
        return False

    def log_cache_use(self) -> None:
        """Do nothing: the kernel caches local files."""

    def list(self) -> list[str]:
        """Return the names of the files in the folder."""
        return sorted(path.name for path in Path(self.folder).iterdir() if path.is_file())

    @staticmethod  # so that the cache of maps has no reference to the store, and both are freed at once
    def _open(folder: str, name: str, total_bytes: int) -> mmap.mmap:
        path = Path(folder) / name
        try:
            with _open_file(path) as file:
                length = file.seek(0, 2)
                if length != total_bytes or length == 0:  # nothing cannot be mapped, and is no shard
                    raise TruncatedShardError(
                        f"{path} has {length:,} bytes, its manifest says {total_bytes:,}: "
                        "it was cut or replaced; copy or pack it again",
                        shard=name,
                        offset=min(length, total_bytes),
                    )
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise StoreError(f"{path} is missing, but its manifest names it: copy or pack it again") from error
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def _open_file(path: Path) -> BinaryIO:
    """Open a file; a pipe is refused, as reading it would wait for a writer, and so is a device without an end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device")
    return os.fdopen(handle, "rb")
