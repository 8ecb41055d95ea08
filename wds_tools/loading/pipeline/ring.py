"""Batch slots in shared memory, allocated once and reused.

A worker writes pixels directly into its rows of a slot, so they are not sent through a pipe. The memory is anonymous (a
memfd if the system has it): it has no name in ``/dev/shm``, is not limited by the size of that mount, and is freed
when the last process ends, even if that process is killed.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.loading.fields.slots import SlotLayout, TensorSpec
from wds_tools.loading.workers.memory import anonymous_file, map_shared

SPARE_BYTES = 256 << 20
"""Maximum memory of the slots that are used only while a slow sample delays its batch."""


class Ring:
    """Batch slots in shared memory.

    A slot is either free or taken. `lend` returns the tensors of a taken slot, and frees the slot when the last view of
    them is deleted. A ring can be pickled to a worker; only the process that created it takes slots.

    Args:
        slots: Number of slots.
        rows: Samples per slot.
        spare_slots: Maximum number of further slots, which need at most `SPARE_BYTES`.
        layouts: What a slot holds in each variant of a batch; a slot has the size of the largest one. They may be set
            later with `open`, if a worker finds them out.
    """

    def __init__(
        self,
        *,
        slots: int,
        rows: int,
        spare_slots: int = 0,
        layouts: Sequence[SlotLayout] = (),
    ) -> None:
        self.slots = slots
        self.spare_slots = 0  # of `slots`
        self._wanted_spare_slots = spare_slots
        self.rows = rows
        self._layouts: tuple[SlotLayout, ...] = ()
        self._places: list[
            list[tuple[TensorSpec, slice]]
        ] = []  # of each layout: its tensors, and their bytes in a slot
        self._variants: dict[int, int] = {}  # of slots that do not hold the first variant
        self._free = deque(range(slots))
        self._take_descriptor(anonymous_file())
        if layouts:
            self.open(*layouts)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "slots": self.slots - self.spare_slots,
            "spare_slots": self._wanted_spare_slots,
            "rows": self.rows,
            "layouts": self._layouts,
            "fd": DupFd(self._fd),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.slots, self.rows, self._layouts, self._variants = state["slots"], state["rows"], (), {}
        self._places = []
        self.spare_slots, self._wanted_spare_slots = 0, state["spare_slots"]
        self._free = deque()  # only the process that created the ring takes slots
        self._take_descriptor(state["fd"].detach())
        if state["layouts"]:
            self.open(*state["layouts"])

    def _take_descriptor(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)

    @property
    def is_open(self) -> bool:
        """Whether it is known what slots hold."""
        return bool(self._layouts)

    def set_variant(self, slot: int, variant: int) -> None:
        """Set which variant of a batch a slot holds from now on."""
        self._variants[slot] = variant

    def layout_of(self, slot: int) -> SlotLayout:
        """Return what a slot holds."""
        return self._layouts[self._variants.get(slot, 0)]

    def open(self, *layouts: SlotLayout) -> None:
        """Map the memory for slots of these layouts, once per process."""
        if self._layouts:
            return
        self._layouts = layouts
        self._places = [_places(layout, self.rows) for layout in layouts]
        used = max(1, *(layout.offsets(self.rows)[-1] for layout in layouts))
        self._slot_bytes = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
        self.spare_slots = min(self._wanted_spare_slots, SPARE_BYTES // self._slot_bytes)
        self._free.extendleft(range(self.slots, self.slots + self.spare_slots))  # taken last
        self.slots += self.spare_slots
        self._map = map_shared(self._fd, self.slots * self._slot_bytes)

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

    def tensors(self, slot: int) -> list[torch.Tensor]:
        """Return the tensors of a slot, [rows, ...] each, in the order of the layout.

        They are valid until the slot is released.
        """
        return self._tensors(slot, self._bytes(slot))

    def lend(self, slot: int) -> list[torch.Tensor]:
        """Return the tensors of a slot. The slot is released when all of them and all their views are deleted."""
        raw = self._bytes(slot)
        weakref.finalize(raw, self.release, slot).atexit = False  # the storage of each tensor keeps `raw` alive
        return self._tensors(slot, raw)

    def fill(self, values: list[Any], slot: int, *, is_lent: bool) -> list[Any]:
        """Return the values of a batch with the tensors of its slot, which the user may keep.

        Args:
            values: One value per field; None for tensors that are in the slot.
            slot: The slot.
            is_lent: Whether to lend the slot. Otherwise the tensors are copied, and the slot is released.
        """
        layout = self.layout_of(slot)
        if is_lent:
            return layout.fill(values, self.lend(slot), lambda tensor: tensor)
        copied = layout.fill(values, self.tensors(slot), torch.Tensor.clone)
        self.release(slot)
        return copied

    def memory(self, slot: int) -> torch.Tensor:
        """Return the memory of a slot as a uint8 tensor [bytes], to register it as pinned memory."""
        return torch.from_numpy(self._bytes(slot))

    def memory_of_rows(self, slot: int, rows: Sequence[int]) -> list[memoryview]:
        """Return the memory of some rows, ascending: of each tensor, one view for each run of consecutive rows."""
        memory, found = self._bytes(slot).data, []
        edges = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1] if rows else []
        runs = [(rows[start], rows[stop - 1] + 1) for start, stop in itertools.pairwise([0, *edges, len(rows)])]
        for spec, place in self._places[self._variants.get(slot, 0)]:
            parts = [slice(place.start + spec.bytes * first, place.start + spec.bytes * end) for first, end in runs]
            found += [memory[part] for part in parts if spec.bytes]
        return found

    def _bytes(self, slot: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._map, np.uint8, count=self._slot_bytes, offset=slot * self._slot_bytes)

    def _tensors(self, slot: int, raw: NDArray[np.uint8]) -> list[torch.Tensor]:
        return [spec.tensor(raw[place]) for spec, place in self._places[self._variants.get(slot, 0)]]


def _places(layout: SlotLayout, rows: int) -> list[tuple[TensorSpec, slice]]:
    """Return the tensors of a layout, and where the bytes of each are in a slot."""
    starts = zip(layout.specs, layout.offsets(rows), strict=False)
    return [(spec, slice(start, start + rows * spec.bytes)) for spec, start in starts]
