"""Memory for large tensors that the training loop may keep. It is used again when they are deleted.

The system maps new memory page by page, at the first write to each page. For batches of padded images this took three
quarters of the time of padding.
"""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
import torch
from numpy.typing import NDArray

LEAST_BYTES = 1 << 20
"""Smaller tensors are allocated by torch; the C library reuses their memory."""

MAX_FREE_BYTES = 512 << 20
"""Most memory that is kept for later tensors."""

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
        found = None
        with contextlib.suppress(IndexError):  # another thread took the last one
            for _ in range(len(self._free)):
                block = self._free.pop(0)
                if found is None and size <= block.nbytes <= 2 * size:
                    found = block
                else:
                    self._free.append(block)
            while len(self._free) > MAX_FREE_BLOCKS or self._free_bytes() > MAX_FREE_BYTES:
                self._free.pop(0)
        return found

    def _free_bytes(self) -> int:
        return sum(block.nbytes for block in self._free.copy())


process_memory = ReusedMemory()
"""The memory of this process."""
