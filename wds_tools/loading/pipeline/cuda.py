"""Devices, and the calls of CUDA that the loader makes.

`CudaDriver` has all of them, and no logic: tests replace it with a model of a GPU on machines that have none
(``tests/fake_cuda.py``).

The main process may start workers by fork, and a forked process must not inherit an initialized CUDA. So nothing in
this module initializes CUDA before a `CudaDriver` is used, which happens after the workers have started.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from wds_tools.errors import DeviceError
from wds_tools.loading.fields.collate import map_tensors

_NAMES = {"cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}


def check_device(device: str | int | torch.device | None) -> torch.device:
    """Return a torch.device; None means the CPU. A CUDA device without index stays without one."""
    if device is None:
        return torch.device("cpu")
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device={device!r} is not a torch device: {error}") from error
    if checked.type in _NAMES:
        # CUDA counts with NVML. torch.cuda.is_available() would initialize the driver.
        name, count = _NAMES[checked.type], getattr(torch, checked.type).device_count()
        if (checked.index or 0) >= count:
            raise DeviceError(
                f"device={str(checked)!r} is not available: torch {torch.__version__} sees {count} {name} devices; "
                f"use device=None for tensors in CPU memory, or install a driver and a torch build with {name}"
            )
    return checked


def device_of_process(device: torch.device) -> torch.device:
    """Return the device with an index, if it is a CUDA device.

    ``cuda`` without index is the device of ``torch.cuda.set_device``, and if that was not called, the device with the
    number in ``LOCAL_RANK`` where several are visible, otherwise device 0. This does not initialize CUDA.
    """
    if device.type != "cuda" or device.index is not None:
        return device
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    local_rank, count = os.environ.get("LOCAL_RANK", ""), torch.cuda.device_count()
    if current or count < 2 or not local_rank.isdecimal():
        return torch.device("cuda", current)
    if int(local_rank) >= count:
        raise DeviceError(
            f"device='cuda' with LOCAL_RANK={local_rank}, but torch sees {count} CUDA devices: start at most {count} "
            "processes on this machine, or pass device= with an index"
        )
    return torch.device("cuda", int(local_rank))


@dataclass(frozen=True)
class CudaDriver:
    """The calls of CUDA on one device. Streams and events have the methods of torch."""

    device: torch.device

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which the device is the current one."""
        return torch.cuda.device(self.device)

    def stream(self) -> torch.cuda.Stream:
        """Return a new stream."""
        return torch.cuda.Stream(self.device)

    def using(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Return a context in which the stream and the device are the current ones."""
        return torch.cuda.stream(stream)

    def current_stream(self) -> torch.cuda.Stream:
        """Return the current stream of the device: the one that the training loop uses."""
        return torch.cuda.current_stream(self.device)

    def event(self, *, is_timed: bool = False) -> torch.cuda.Event:
        """Return an event. A thread that waits for it sleeps; by default it would keep a core busy."""
        return torch.cuda.Event(enable_timing=is_timed, blocking=True)

    def is_initialized(self) -> bool:
        """Return whether this process has used CUDA."""
        return bool(torch.cuda.is_initialized())

    def is_capturing(self) -> bool:
        """Return whether the current stream of the current device is being captured into a CUDA graph."""
        return bool(torch.cuda.is_current_stream_capturing())

    def register(self, memory: torch.Tensor) -> int:
        """Register CPU memory as pinned memory; return the error number of CUDA, 0 for success."""
        status = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if status == 0:
            return 0
        # CUDA also keeps the error as the last error of this thread, where the next kernel of the user would find and
        # raise it. torch reads and clears the last error after each kernel that it starts.
        with suppress(RuntimeError):
            torch.ones(1, device=self.device)
        return status

    def error_text(self, status: int) -> str:
        """Return an error number of CUDA with its meaning."""
        cudart = torch.cuda.cudart()
        return f"error {status}, {cudart.cudaGetErrorString(cudart.cudaError(status))}"

    def unregister(self, memory: torch.Tensor) -> None:
        """Undo `register`. No copy may be in progress."""
        status = int(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()))
        if status != 0:
            size = f"{memory.numel() / 1e6:.0f} MB"
            raise DeviceError(f"CUDA cannot unregister {size} of batch slots ({self.error_text(status)})")

    def pinned(self, size: int) -> torch.Tensor:
        """Return new pinned memory, uint8 [size]. When it is deleted, it is used again after the copies from it."""
        # The user's default device may be another one, on which no memory can be pinned.
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start copying a tensor to the device on the current stream; return the tensor there."""
        return tensor.to(self.device, non_blocking=True)

    def move(self, value: Any) -> Any:
        """Call the method ``to`` of an object, which may wait for the work of the current stream."""
        return value.to(self.device)

    def record_stream(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keep the memory of a deleted tensor until a stream has executed the work that it has by then."""
        tensor.record_stream(stream)


def copy_to_device(values: list[Any], device: torch.device) -> list[Any]:
    """Copy the tensors in ``values`` to a device other than CUDA.

    The process waits for the copies. Only XPU keeps a copy of memory from which it has not copied yet; MPS reads it
    later, when it may have been freed.
    """

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=device.type == "xpu")

    return [map_tensors(copy, value, others=lambda item: item.to(device)) for value in values]
