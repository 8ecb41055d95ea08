"""Memory that the main process shares with its workers, and memory for large tensors that is used again.

Shared memory is anonymous: it has no name in ``/dev/shm``, is not limited by the size of that mount, and is freed when
the last process ends.

The training loop may keep large tensors; when they are deleted, their memory is used again. The system maps new memory
page by page, at the first write to each page. For batches of padded images this took three quarters of the time of
padding.
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

import numpy as np
import torch
from numpy.typing import NDArray

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
            f"the loader cannot get {amount}shared memory for its batches ({error.strerror or error}): {remedy}"
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


LEAST_BYTES = 1 << 20
"""Smaller tensors are allocated by torch; the C library reuses their memory."""

MAX_FREE_BYTES = 512 << 20
"""Maximum memory that is kept for later tensors."""

MAX_FREE_BLOCKS = 8

_SPARE = 1.25  # size of new memory relative to the tensor, because a later batch may be larger


class ReusedMemory:
    """Allocates tensors, if possible in the memory of deleted ones. All threads may use it."""

    def __init__(self) -> None:
        # Least recently freed first. Without a lock: a process could be forked, or the garbage collector could append
        # to it, while the lock is held.
        self._free: list[NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor. Its memory is used again when it and all its views are deleted."""
        size = int(np.prod(shape)) * dtype.itemsize
        if size < LEAST_BYTES:
            return torch.empty(shape, dtype=dtype, device="cpu")
        block = self._take(size)
        if block is None:
            block = np.empty(int(size * _SPARE), np.uint8)
        raw = np.frombuffer(block, np.uint8, count=size)  # the storage of the tensor keeps `raw` alive
        weakref.finalize(raw, self._free.append, block).atexit = False
        return torch.from_numpy(raw).view(dtype).view(shape)

    def _take(self, size: int) -> NDArray[np.uint8] | None:
        """Return a free block for a tensor, at most twice as large, or None. Drop blocks above the limits."""
        match = None
        with contextlib.suppress(IndexError):  # another thread took the last one
            for _ in range(len(self._free)):
                block = self._free.pop(0)
                if match is None and size <= block.nbytes <= 2 * size:
                    match = block
                else:
                    self._free.append(block)
            while len(self._free) > MAX_FREE_BLOCKS or self._free_bytes() > MAX_FREE_BYTES:
                self._free.pop(0)
        return match

    def _free_bytes(self) -> int:
        return sum(block.nbytes for block in self._free.copy())


process_memory = ReusedMemory()
"""The memory of this process."""
