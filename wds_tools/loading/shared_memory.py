"""Anonymous memory that the main process shares with its workers.

It has no name in ``/dev/shm``, is not limited by the size of that mount, and is freed when the last process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any


def anonymous_file() -> int:
    """Return the file descriptor of empty anonymous memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wds_tools", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # macOS has no memfd: use a file that is deleted at once
        return os.dup(file.fileno())


class SharedPage:
    """A page of memory that this process shares with workers. It can be pickled while a worker is started.

    Attributes:
        memory: The page, at first zeros.
    """

    def __init__(self) -> None:
        fd = anonymous_file()
        os.ftruncate(fd, mmap.PAGESIZE)
        self._take_descriptor(fd)

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._take_descriptor(state["fd"].detach())

    def _take_descriptor(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        self.memory = mmap.mmap(fd, mmap.PAGESIZE)
