"""Copies of batches to a device. For CUDA: pinned batch slots, a separate stream, and events to reuse the slots."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from wds_tools.errors import DeviceError
from wds_tools.loading.collate import map_tensors
from wds_tools.loading.ring import Ring


def resolve_device(device: str | int | torch.device | None) -> torch.device:
    """Return a torch.device; None means the CPU, and a CUDA device without index the current one.

    Raises:
        DeviceError: The device is not available.
    """
    if device is None:
        return torch.device("cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device={device!r} is not a torch device: {error}") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise DeviceError(
                f"device={str(found)!r} is not available: torch {torch.__version__} sees {count} CUDA devices; "
                "use device=None for tensors in CPU memory, or install a driver and a torch build with CUDA"
            )
        return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    return found


class CudaCopier:
    """Copies batches to a CUDA device on its own stream.

    The memory of the ring is registered with CUDA as pinned memory. The copy is then asynchronous and needs neither a
    pinning thread nor a second copy. A slot is released when the event recorded after its copy has completed.

    Args:
        device: CUDA device.
        ring: Batch slots, or None.

    Raises:
        DeviceError: CUDA cannot pin the memory of the ring.
    """

    def __init__(self, device: torch.device, ring: Ring | None) -> None:
        self._device = device
        self._ring = ring
        self._stream = torch.cuda.Stream(device)
        self._copying: deque[tuple[torch.cuda.Event, int]] = deque()
        self._memory = ring.memory() if ring else None
        if self._memory is not None:
            status = torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)
            if int(status) != 0:
                raise DeviceError(
                    f"CUDA cannot pin {self._memory.numel() / 1e6:.0f} MB of batch slots (error {status})"
                )

    def start(self, values: list[Any], slot: int | None) -> tuple[list[Any], torch.cuda.Event]:
        """Start to copy the tensors in ``values``. The slot is released by `release_copied` after the copy.

        Returns:
            The values on the device, and an event that completes with the copy.
        """
        with torch.cuda.stream(self._stream):
            copies = [_to(value, self._device) for value in values]
            done = torch.cuda.Event()
            done.record(self._stream)
        if slot is not None:
            self._copying.append((done, slot))
        return copies, done

    def finish(self, values: list[Any], done: torch.cuda.Event) -> list[Any]:
        """Make the current stream wait for the copy, and keep the memory until that stream has used it."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for tensor in _tensors(values):
            tensor.record_stream(current)
        return values

    def release_copied(self, *, at_least_one: bool) -> None:
        """Release the slots whose copy is complete; with ``at_least_one``, wait for the oldest copy."""
        assert self._ring is not None
        while self._copying and (at_least_one or self._copying[0][0].query()):
            done, slot = self._copying.popleft()
            done.synchronize()
            self._ring.release(slot)
            at_least_one = False

    def close(self) -> None:
        """Wait for all copies, and unregister the pinned memory."""
        if self._memory is None:
            return
        self._stream.synchronize()
        while self._copying:
            self.release_copied(at_least_one=True)
        torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self._memory = None


def _to(value: Any, device: torch.device) -> Any:
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    flat: list[torch.Tensor] = []
    map_tensors(flat.append, values)
    return flat


def copy_to_device(values: list[Any], device: torch.device) -> list[Any]:
    """Copy the tensors in ``values`` to a device without a separate stream."""
    return [_to(value, device) for value in values]
