"""Batches to the device: pinned slots, a side stream, and an event before a slot is used again."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from wds_tools.errors import DeviceError
from wds_tools.loading.collate import map_tensors
from wds_tools.loading.ring import Ring


def find_device(device: str | int | torch.device | None) -> torch.device:
    """Return the device that is meant; None means the CPU.

    Raises:
        DeviceError: There is no such device.
    """
    if device is None:
        return torch.device("cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device={device!r} is no device of torch: {error}") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise DeviceError(
                f"device={str(found)!r} was asked for, but torch {torch.__version__} sees {count} CUDA devices: "
                "use device=None for tensors in memory, or install a driver and a torch build with CUDA"
            )
        return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    return found


class CudaCopier:
    """Copies slots to a CUDA device on a stream of its own.

    The ring's memory is registered as pinned, so that the copy needs neither a pinning thread nor a second copy. A
    slot is released once the event behind its copy has passed.
    """

    def __init__(self, device: torch.device, ring: Ring | None) -> None:
        self._device = device
        self._ring = ring
        self._stream = torch.cuda.Stream(device)
        self._busy: deque[tuple[torch.cuda.Event, int]] = deque()
        self._memory = ring.pin() if ring else None
        if self._memory is not None:
            status = torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)
            if int(status) != 0:
                raise DeviceError(
                    f"CUDA cannot pin {self._memory.numel() / 1e6:.0f} MB of batch slots (error {status})"
                )

    def start(self, values: list[Any], slot: int | None) -> tuple[list[Any], torch.cuda.Event]:
        """Start copying the tensors among ``values``; the slot is released when that is done."""
        with torch.cuda.stream(self._stream):
            moved = [_to(value, self._device) for value in values]
            done = torch.cuda.Event()
            done.record(self._stream)
        if slot is not None:
            self._busy.append((done, slot))
        return moved, done

    def finish(self, values: list[Any], done: torch.cuda.Event) -> list[Any]:
        """Make the consumer's stream wait for the copy, and keep the memory until that stream has used it."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for tensor in _tensors(values):
            tensor.record_stream(current)
        return values

    def reclaim(self, *, at_least_one: bool) -> None:
        """Release the slots whose copy is done; wait for the oldest one if one is needed now."""
        assert self._ring is not None
        while self._busy and (at_least_one or self._busy[0][0].query()):
            done, slot = self._busy.popleft()
            done.synchronize()
            self._ring.release(slot)
            at_least_one = False

    def close(self) -> None:
        """Wait for all copies and give the pinned memory back."""
        if self._memory is None:
            return
        self._stream.synchronize()
        while self._busy:
            self.reclaim(at_least_one=True)
        torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self._memory = None


def _to(value: Any, device: torch.device) -> Any:
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    flat: list[torch.Tensor] = []
    map_tensors(flat.append, values)
    return flat


def move(values: list[Any], device: torch.device) -> list[Any]:
    """Copy the tensors among ``values`` to a device without streams."""
    return [_to(value, device) for value in values]
