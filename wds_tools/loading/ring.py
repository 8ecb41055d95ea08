"""Batch slots in shared memory, allocated once and reused.

A worker writes pixels directly into its rows of a slot, so they are not sent through a pipe. The memory is anonymous (a
memfd if the system has it): it has no name in ``/dev/shm``, is not limited by the size of that mount, and is freed
when the last process ends, even if that process is killed.
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

from wds_tools.loading.assemble import ImageSpec

SPARE_BYTES = 256 << 20
"""Most memory of slots that are used only while a slow sample delays its batch."""


class Ring:
    """Batch slots in shared memory.

    A slot is either free or taken. `lend` returns a taken slot as a tensor, and frees the slot when the last view of
    that tensor is deleted. A ring can be pickled to a worker; only the process that created it takes slots.

    Args:
        slots: Number of slots.
        rows: Images per slot.
        spare_slots: Number of further slots, as far as they need at most `SPARE_BYTES`.
        image_spec: Shape and dtype of an image. It may be set later with `open`, if it depends on a transform that
            runs in the workers.
    """

    def __init__(self, *, slots: int, rows: int, spare_slots: int = 0, image_spec: ImageSpec | None = None) -> None:
        self.slots = slots
        self.spare_slots = 0  # of `slots`
        self._wanted_spare_slots = spare_slots
        self.rows = rows
        self.image_spec: ImageSpec | None = None
        self._free = deque(range(slots))
        self._take_descriptor(_anonymous_file())
        if image_spec:
            self.open(image_spec)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "slots": self.slots - self.spare_slots,
            "spare_slots": self._wanted_spare_slots,
            "rows": self.rows,
            "image_spec": self.image_spec,
            "fd": DupFd(self._fd),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.slots, self.rows, self.image_spec = state["slots"], state["rows"], None
        self.spare_slots, self._wanted_spare_slots = 0, state["spare_slots"]
        self._free = deque()  # only the process that created the ring takes slots
        self._take_descriptor(state["fd"].detach())
        if state["image_spec"]:
            self.open(state["image_spec"])

    def _take_descriptor(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)

    def open(self, image_spec: ImageSpec) -> None:
        """Map the memory for images of this shape and dtype, once per process."""
        if self.image_spec:
            return
        self.image_spec = image_spec
        self._slot_bytes = -(-self.rows * image_spec.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.spare_slots = min(self._wanted_spare_slots, SPARE_BYTES // self._slot_bytes)
        self._free.extendleft(range(self.slots, self.slots + self.spare_slots))  # taken last
        self.slots += self.spare_slots
        size = self.slots * self._slot_bytes
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """Take the slot that was freed last, as it may still be in the CPU cache. At least one slot must be free."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Free a slot. May be called from any thread, and by the garbage collector."""
        self._free.append(slot)

    def images(self, slot: int, rows: int | None = None) -> torch.Tensor:
        """Return the images of a slot, [rows, *image_spec.shape]. The tensor is valid until the slot is released."""
        return self._tensor(self._bytes(slot, self.rows if rows is None else rows))

    def lend(self, slot: int) -> torch.Tensor:
        """Return the images of a slot. The slot is released when the tensor and all its views are deleted."""
        raw = self._bytes(slot, self.rows)
        weakref.finalize(raw, self.release, slot).atexit = False  # the tensor's storage keeps `raw` alive
        return self._tensor(raw)

    def memory(self) -> torch.Tensor:
        """Return the memory of all slots as a uint8 tensor [bytes], to register it as pinned memory."""
        return torch.from_numpy(np.frombuffer(self._map, np.uint8))

    def _bytes(self, slot: int, rows: int) -> Any:
        assert self.image_spec is not None
        count = rows * self.image_spec.bytes
        return np.frombuffer(self._map, np.uint8, count=count, offset=slot * self._slot_bytes)

    def _tensor(self, raw: Any) -> torch.Tensor:
        assert self.image_spec is not None
        return torch.from_numpy(raw).view(self.image_spec.dtype).view(-1, *self.image_spec.shape)


def _anonymous_file() -> int:
    """Return the file descriptor of empty anonymous memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wds_tools", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # macOS has no memfd: use a file that is deleted at once
        return os.dup(file.fileno())
