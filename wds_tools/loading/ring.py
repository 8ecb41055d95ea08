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

from wds_tools.loading.assemble import Layout


class Ring:
    """``slots`` slots of ``rows`` images each.

    The layout may be told later, by `open`: only the user's transform may know it, and that runs in the workers.

    A slot is either free, or taken by whoever holds its number. `lend` hands a slot to the user as a tensor; it
    becomes free when the last view of that tensor is gone.
    """

    def __init__(self, *, slots: int, rows: int, layout: Layout | None = None) -> None:
        self.slots = slots
        self.rows = rows
        self.layout: Layout | None = None
        self._free = deque(range(slots))
        self._take_descriptor(_anonymous_file())
        if layout:
            self.open(layout)

    def __getstate__(self) -> dict[str, Any]:
        return {"slots": self.slots, "rows": self.rows, "layout": self.layout, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.slots, self.rows, self.layout = state["slots"], state["rows"], None
        self._free = deque()  # only the process that made the ring hands out slots
        self._take_descriptor(state["fd"].detach())
        if state["layout"]:
            self.open(state["layout"])

    def _take_descriptor(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)

    def open(self, layout: Layout) -> None:
        """Map the memory for images of this layout; done once, in each process."""
        if self.layout:
            return
        self.layout = layout
        self._slot_bytes = -(-self.rows * layout.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = self.slots * self._slot_bytes
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)

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
        assert self.layout is not None
        count = rows * self.layout.bytes
        return np.frombuffer(self._map, np.uint8, count=count, offset=slot * self._slot_bytes)

    def _tensor(self, raw: Any) -> torch.Tensor:
        assert self.layout is not None
        return torch.from_numpy(raw).view(self.layout.dtype).view(-1, *self.layout.shape)


def _anonymous_file() -> int:
    """Return a descriptor of memory without a name, of no bytes yet."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wds_tools", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # macOS has none: a file that is deleted at once serves
        return os.dup(file.fileno())
