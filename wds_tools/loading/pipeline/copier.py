"""Copies of batches to a CUDA device, on a separate stream and from pinned memory.

Each slot of the ring is registered as pinned memory at its first copy, so images are copied from their slot. Everything
else (labels, lists of images, most other fields) is first written to a pinned staging buffer, because CUDA copies from
other memory block the process. If a slot cannot be registered, its images go through the staging buffer too.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from wds_tools.errors import run_all
from wds_tools.loading.fields.collate import map_tensors, tensors_in
from wds_tools.loading.pipeline.cuda import CudaDriver
from wds_tools.loading.pipeline.ring import Ring

_ALIGNMENT = 64  # bytes; start of each tensor in a staging buffer
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_ADVICE = {
    _OUT_OF_MEMORY: "batch slots count as memory of the container: raise its limit, or use fewer workers or a smaller "
    "prefetch_factor=",
    801: "this system does not support pinned memory (WSL, gVisor and confidential computing may not)",
}
_OTHER_ADVICE = "an earlier error of CUDA in this process can be the cause"
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class StartedCopy:
    """Values of a batch that are being copied.

    Attributes:
        values: One value per field. Their tensors are on the device; objects that move themselves are not yet.
        copied: The tensors that are being copied.
        has_others: Whether there are objects that move themselves.
    """

    values: list[Any]
    copied: list[torch.Tensor]
    has_others: bool
    begun: torch.cuda.Event
    done: torch.cuda.Event


class CudaCopier:
    """Copies batches to a CUDA device.

    A slot is released when the event recorded after its copy has completed. The tensors on the device are new ones in
    each batch, so the user may keep them; the allocator of torch uses their memory again.
    """

    def __init__(self, driver: CudaDriver, ring: Ring | None) -> None:
        self._driver = driver
        self._ring = ring
        self._copying: deque[tuple[torch.cuda.Event, int]] = deque()
        self._can_register = True
        self._has_warned = False
        _release_kept_memory()
        self._registered = _Registered(driver, {}, os.getpid())
        # Called when a copier is deleted without `close`. It holds the slots, which must stay mapped until then.
        self._finalizer = weakref.finalize(self, _unregister_quietly, self._registered)

    def start(self, values: list[Any], slot: int | None) -> StartedCopy:
        """Start copying a batch.

        Args:
            values: One value per field; None for tensors that are in the slot.
            slot: Slot of the batch, or None. It is released after the copy, but not if this method raises an error:
                the batch may be copied again.
        """
        with self._driver.current():
            stream = _copy_stream(self._driver)
            begun, done = self._driver.event(is_timed=True), self._driver.event(is_timed=True)
            begun.record(stream)
            with self._driver.using(stream):
                moved, copied, has_others = self._copies(values, slot)
            done.record(stream)
        if slot is not None:
            self._copying.append((done, slot))
        return StartedCopy(moved, copied, has_others, begun, done)

    def finish(self, copy: StartedCopy) -> list[Any]:
        """Make the current stream wait for the copy, and keep the memory until that stream has used it."""
        with self._driver.current():
            current = self._driver.current_stream()
            current.wait_event(copy.done)
            for tensor in copy.copied:
                self._driver.record_stream(tensor, current)
            if not copy.has_others:
                return copy.values
            # On this stream, as we do not know their tensors to record them.
            return [map_tensors(lambda tensor: tensor, value, others=self._driver.move) for value in copy.values]

    def release_copied(self, *, at_least_one: bool) -> None:
        """Release the slots whose copy is complete; with ``at_least_one``, wait for the oldest copy."""
        assert self._ring is not None
        with self._driver.current():
            while self._copying and (at_least_one or self._copying[0][0].query()):
                done, slot = self._copying.popleft()
                done.synchronize()
                self._ring.release(slot)
                at_least_one = False

    def close(self) -> None:
        """Wait for all copies, and unregister the pinned memory.

        Raises:
            RuntimeError: CUDA reports an error. The memory is released nevertheless.
        """
        self._copying.clear()  # the ring is not used after this
        if self._finalizer.detach():
            _unregister(self._registered)

    def _copies(self, values: list[Any], slot: int | None) -> tuple[list[Any], list[torch.Tensor], bool]:
        """Start the copies; return the fields of a `StartedCopy`."""
        layout = self._ring.layout_of(slot) if self._ring and slot is not None else None
        tensors = self._ring.tensors(slot) if self._ring and slot is not None else []
        if layout and slot is not None and not self._is_pinned(slot):
            values = layout.fill(values, tensors, lambda tensor: tensor)
        staged = iter(self._staged([tensor for tensor in tensors_in(values) if _is_copied(tensor)]))
        copied: list[torch.Tensor] = []
        others: list[Any] = []

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            copied.append(self._driver.copy(tensor))
            return copied[-1]

        def copy_staged(tensor: torch.Tensor) -> torch.Tensor:
            return _like(copy(next(staged)), tensor) if _is_copied(tensor) else tensor

        def keep(other: Any) -> Any:
            others.append(other)
            return other

        moved = [map_tensors(copy_staged, value, others=keep) for value in values]
        return layout.fill(moved, tensors, copy) if layout else moved, copied, bool(others)

    def _is_pinned(self, slot: int) -> bool:
        """Return whether a slot is pinned memory. It is registered at its first use, so spare slots rarely are."""
        assert self._ring is not None
        if slot not in self._registered.slots and self._can_register:
            memory = self._ring.memory(slot)
            status = self._driver.register(memory)
            if status:
                self._can_register = False
                text = self._driver.error_text(status)
                self._warn(f"CUDA cannot pin {memory.numel() / 1e6:.0f} MB of batch slots ({text})", status)
            else:
                self._registered.slots[slot] = memory
        return slot in self._registered.slots

    def _staged(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors in pinned memory."""
        if not tensors:
            return []
        starts, size = [], 0
        for tensor in tensors:
            starts.append(size)
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        try:
            buffer = self._driver.pinned(size)
        except RuntimeError as error:
            self._warn(f"CUDA cannot allocate {size / 1e6:.1f} MB of pinned memory ({error})", _OUT_OF_MEMORY)
            return tensors
        staged = [
            buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(starts, tensors, strict=True)
        ]
        for pinned, tensor in zip(staged, tensors, strict=True):
            pinned.copy_(tensor)
        return staged

    def _warn(self, problem: str, status: int) -> None:
        if not self._has_warned:
            _log.warning(
                "%s: batches are copied once more in memory before they are copied to the GPU, which takes time of "
                "this process; %s",
                *(problem, _ADVICE.get(status, _OTHER_ADVICE)),
            )
        self._has_warned = True


def _is_copied(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is copied; the user's ``collate_fn=`` may have put it on a device itself."""
    return tensor.device.type == "cpu"


def _like(copied: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the class and the attributes of another one, such as the boxes of torchvision."""
    if type(tensor) is torch.Tensor:
        return copied
    same = copied.as_subclass(type(tensor))
    same.__dict__.update(tensor.__dict__)
    return same


_streams: dict[tuple[int, CudaDriver], torch.cuda.Stream] = {}


def _copy_stream(driver: CudaDriver) -> torch.cuda.Stream:
    """Return the stream for copies of this process to a device.

    All loaders share it: the allocator of torch keeps free memory for each stream, and another stream cannot use it.
    """
    key = os.getpid(), driver
    return _streams.get(key) or _streams.setdefault(key, driver.stream())


def is_capturing(driver: CudaDriver) -> bool:
    """Return whether a CUDA graph is captured on the current stream of the current device, or on that of ``driver``.

    Memory must not be allocated meanwhile on any device. This does not initialize CUDA.
    """
    if not driver.is_initialized():
        return False
    if driver.is_capturing():
        return True
    with driver.current():
        return driver.is_capturing()


@dataclass(frozen=True, slots=True)
class _Registered:
    """Slots that are registered as pinned memory, and what is needed to unregister them."""

    driver: CudaDriver
    slots: dict[int, torch.Tensor]
    pid: int


_kept: list[_Registered] = []  # slots that were to be unregistered while a CUDA graph was captured


def _unregister(registered: _Registered) -> None:
    """Unregister slots after the copies from them. A forked process does nothing: it has no CUDA."""
    if os.getpid() != registered.pid or not registered.slots:
        return
    driver = registered.driver
    if is_capturing(driver):  # waiting for a stream would end the capture with an error
        _kept.append(registered)
        return
    with driver.current():
        steps = [partial(driver.unregister, memory) for memory in registered.slots.values()]
        run_all(_copy_stream(driver).synchronize, *steps)


def _unregister_quietly(registered: _Registered) -> None:
    """Unregister slots where nobody could handle an error: in the garbage collector, or when the interpreter exits."""
    try:
        _unregister(registered)
    except Exception as error:
        _log.debug("the pinned memory of a deleted loader was not unregistered: %s", error)


def _release_kept_memory() -> None:
    kept = _kept.copy()
    _kept.clear()
    for registered in kept:
        _unregister(registered)
