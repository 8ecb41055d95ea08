"""Batch slots in shared memory, allocated once and used again.

A worker writes pixels straight into its rows of a slot; only the slot's number travels back. The memory is
anonymous (a memfd where there is one): it has no name in ``/dev/shm``, is not limited by that mount's size, and is
gone when the last process is, however it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch

from wds_tools.assemble import Layout


class Ring:
    """``slots`` slots of ``rows`` images each.

    A slot is either free, or taken by whoever holds its number. `lend` hands a slot to the user as a tensor; it
    becomes free when the last view of that tensor is gone.
    """

    def __init__(self, *, slots: int, rows: int, layout: Layout) -> None:
        self.slots = slots
        self.rows = rows
        self.layout = layout
        self._slot_bytes = -(-rows * layout.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._open(_anonymous_file(slots * self._slot_bytes))
        self._free = deque(range(slots))

    def __getstate__(self) -> dict[str, Any]:
        return {"slots": self.slots, "rows": self.rows, "layout": self.layout, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.slots, self.rows, self.layout = state["slots"], state["rows"], state["layout"]
        self._slot_bytes = -(-self.rows * self.layout.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._open(state["fd"].detach())
        self._free = deque()  # only the process that made the ring hands out slots

    def _open(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, self.slots * self._slot_bytes)
        weakref.finalize(self, os.close, fd)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """Take the slot that was freed last, which is still in the cache; there must be one."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Give a slot back. May be called from any thread, and by the garbage collector."""
        self._free.append(slot)

    def images(self, slot: int, rows: int | None = None) -> torch.Tensor:
        """Return a slot's images, ``[rows, *layout.shape]``; valid as long as the slot is not released."""
        return self._tensor(self._bytes(slot, self.rows if rows is None else rows))

    def lend(self, slot: int) -> torch.Tensor:
        """Return a slot's images; the slot is released when the tensor and all its views are gone."""
        raw = self._bytes(slot, self.rows)
        weakref.finalize(raw, self.release, slot).atexit = False  # the tensor's storage keeps `raw` alive
        return self._tensor(raw)

    def pin(self) -> torch.Tensor:
        """Return all memory as one tensor of bytes, for whoever registers it with a device."""
        return torch.from_numpy(np.frombuffer(self._map, np.uint8))

    def _bytes(self, slot: int, rows: int) -> Any:
        count = rows * self.layout.bytes
        return np.frombuffer(self._map, np.uint8, count=count, offset=slot * self._slot_bytes)

    def _tensor(self, raw: Any) -> torch.Tensor:
        return torch.from_numpy(raw).view(self.layout.dtype).view(-1, *self.layout.shape)


def _anonymous_file(size: int) -> int:
    """Return a descriptor of ``size`` bytes of memory without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("wds_tools", os.MFD_CLOEXEC)
    else:  # macOS has none: a file that is deleted at once serves
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
