"""Copies of batches to a CUDA device, on a separate stream and from pinned memory.

The memory of the ring is registered as pinned memory, so images are copied from their slot. Everything else (labels,
lists of images, most other fields) is first written to a pinned staging buffer, because CUDA copies from other memory
block the process. If the ring cannot be registered, images go through the staging buffer too.
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

from wds_tools.loading.cleanup import run_all
from wds_tools.loading.collate import map_tensors
from wds_tools.loading.cuda import CudaDriver
from wds_tools.loading.ring import Ring

_ALIGNMENT = 64  # bytes; start of each tensor in a staging buffer
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class StartedCopy:
    """Values of a batch that are being copied.

    Attributes:
        values: One value per field, on the device.
        begun: Event that completes when the copy begins.
        done: Event that completes with the copy.
    """

    values: list[Any]
    begun: torch.cuda.Event
    done: torch.cuda.Event


class CudaCopier:
    """Copies batches to a CUDA device on its own stream.

    A slot is released when the event recorded after its copy has completed. The tensors on the device are new ones in
    each batch, so the user may keep them; the allocator of torch uses their memory again.

    Args:
        driver: CUDA device.
        ring: Batch slots, or None.
    """

    def __init__(self, driver: CudaDriver, ring: Ring | None) -> None:
        self._driver = driver
        self._ring = ring
        self._copying: deque[tuple[torch.cuda.Event, int]] = deque()
        self._has_warned = False
        _release_kept_memory()
        with driver.current():
            self._stream = driver.stream()
            self._unregister = self._register(ring.memory()) if ring else None

    def _register(self, memory: torch.Tensor) -> weakref.finalize[..., Any] | None:
        """Register the slots as pinned memory; return the function that undoes it, None if they are not registered.

        The function is also called when a copier is deleted without `close`. It holds the memory, which must stay
        mapped until it is unregistered.
        """
        if error := self._driver.register(memory):
            self._warn(f"CUDA cannot pin {memory.numel() / 1e6:.0f} MB of batch slots ({error})")
            return None
        return weakref.finalize(self, _unregister, self._driver, self._stream, memory, os.getpid())

    def start(self, values: list[Any], slot: int | None) -> StartedCopy:
        """Start to copy a batch.

        Args:
            values: One value per field; None for tensors that are in the slot.
            slot: Slot of the batch, or None. It is released after the copy, also if this method raises an error.
        """
        with self._driver.current():
            begun, done = self._driver.event(is_timed=True), self._driver.event(is_timed=True)
            begun.record(self._stream)
            try:
                with self._driver.using(self._stream):
                    return StartedCopy(self._copies(values, slot), begun, done)
            finally:  # after an error too: a copy that was started may still read the slot
                if slot is not None:
                    self._copying.append((done, slot))
                done.record(self._stream)

    def finish(self, copy: StartedCopy) -> list[Any]:
        """Make the current stream wait for the copy, and keep the memory until that stream has used it."""
        with self._driver.current():
            current = self._driver.current_stream()
            current.wait_event(copy.done)
            for tensor in _tensors(copy.values):
                self._driver.record_stream(tensor, current)
        return copy.values

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
        if self._unregister:
            self._unregister()

    def _copies(self, values: list[Any], slot: int | None) -> list[Any]:
        layout = self._ring.layout_of(slot) if self._ring and slot is not None else None
        tensors = self._ring.tensors(slot) if self._ring and slot is not None else []
        if layout and not self._unregister:  # the slots are not pinned
            values = layout.fill(values, tensors, lambda tensor: tensor)
        staged = iter(self._staged(_tensors(values)))
        copied = [map_tensors(lambda _: self._driver.copy(next(staged)), value) for value in values]
        return layout.fill(copied, tensors, self._driver.copy) if layout else copied

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
            self._warn(f"CUDA cannot allocate {size / 1e6:.1f} MB of pinned memory ({error})")
            return tensors
        staged = [
            buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(starts, tensors, strict=True)
        ]
        for pinned, tensor in zip(staged, tensors, strict=True):
            pinned.copy_(tensor)
        return staged

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            _log.warning(
                "%s: batches are copied once more in memory before they are copied to the GPU, which takes time of "
                "this process; increase the limit of locked memory (`ulimit -l`)",
                problem,
            )
        self._has_warned = True


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    flat: list[torch.Tensor] = []
    map_tensors(flat.append, values)
    return flat


_Registered = tuple[CudaDriver, torch.cuda.Stream, torch.Tensor, int]
_kept: list[_Registered] = []  # memory that was to be unregistered while a CUDA graph was captured


def _unregister(driver: CudaDriver, stream: torch.cuda.Stream, memory: torch.Tensor, pid: int) -> None:
    """Unregister memory after the copies from it. A forked process does nothing: it has no CUDA."""
    if os.getpid() != pid:
        return
    with driver.current():
        if driver.is_capturing():  # waiting for a stream would end the capture with an error
            _kept.append((driver, stream, memory, pid))
            return
        run_all(stream.synchronize, partial(driver.unregister, memory))


def _release_kept_memory() -> None:
    kept = _kept.copy()
    _kept.clear()
    for memory in kept:
        _unregister(*memory)
