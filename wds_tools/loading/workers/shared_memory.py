"""Anonymous memory that the main process shares with its workers.

It has no name in ``/dev/shm``, is not limited by the size of that mount, and is freed when the last process ends.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from multiprocessing.reduction import DupFd
from typing import Any

from wds_tools.errors import LoaderError
from wds_tools.wording import human_bytes

_REMEDIES = {
    errno.EFBIG: "the limit of the size of files (`ulimit -f`) applies to shared memory too: raise it, or use smaller "
    "batches",
    errno.EMFILE: "raise the limit of open files with `ulimit -n`",
    errno.ENOMEM: "use smaller batches or fewer workers, or raise the limit of virtual memory with `ulimit -v`",
}


def anonymous_file() -> int:
    """Return the file descriptor of empty anonymous memory.

    Raises:
        LoaderError: There is no descriptor for it.
    """
    with _named(0):
        if hasattr(os, "memfd_create"):
            return os.memfd_create("wds_tools", os.MFD_CLOEXEC)
        with tempfile.TemporaryFile() as file:  # macOS has no memfd: use a file that is deleted at once
            return os.dup(file.fileno())


def map_shared(fd: int, size: int) -> mmap.mmap:
    """Map anonymous memory, and make it as large as that before.

    Raises:
        LoaderError: The system does not allow it.
    """
    with _named(size):
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        return mmap.mmap(fd, size)


@contextlib.contextmanager
def _named(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        amount = f"{human_bytes(size)} of " if size else ""
        remedy = _REMEDIES.get(error.errno or 0, "use smaller batches or fewer workers")
        raise LoaderError(
            f"the loader cannot have {amount}shared memory for its batches ({error.strerror or error}): {remedy}"
        ) from error


class SharedPage:
    """A page of memory that this process shares with workers. It can be pickled while a worker is started.

    Attributes:
        memory: The page, at first zeros.
    """

    def __init__(self) -> None:
        self._take_descriptor(anonymous_file())

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._take_descriptor(state["fd"].detach())

    def _take_descriptor(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        self.memory = map_shared(fd, mmap.PAGESIZE)
