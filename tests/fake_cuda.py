"""A model of CUDA on the CPU, for tests of the loader on machines without a GPU.

It is as lazy as CUDA may be: the operations of a stream are executed only when something waits for them. So a copy
reads its memory late, and a slot that is used again too early gives wrong pixels. Time is simulated: `Gpu.seconds` is
the clock of the process, and each stream has its own.

`Gpu.mistakes` lists what CUDA would not forgive: memory that is unmapped while it is registered or copied, calls for a
device that is not the current one, calls while a graph is captured, and calls in a forked process.
`Gpu.blocking_copies` are those for which the process waited, and `Gpu.reserved` is the memory that the allocator took
from the device: what is free can be used again only on the stream that had it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
import weakref
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass

import torch

ERRORS = {2: "out of memory", 712: "memory is already registered", 801: "operation not supported"}


class Gpu:
    """The GPUs of a machine, and what the tests set and read.

    Attributes:
        mistakes: What was done wrong, as text.
        registered: Start address → size of registered memory.
        seconds: Simulated time of the process.
        copy_seconds: Simulated time of a copy.
        blocking_copies: Sizes of the copies for which the process waited for its stream.
        reserved: Stream → bytes that the allocator has for it.
        register_error: Error number that `FakeDriver.register` returns.
        memory: Bytes of memory of a device, for tensors that exist.
        refused: Number of the copies for which there was no memory.
        can_pin: Whether pinned memory can be allocated.
        fail_copies: Number of the next copies that raise an error.
        sync_error: Text of the error that streams raise when they are waited for, once.
        sticky_error: Text of the error that all calls raise, as after an illegal memory access.
        capturing: Devices on whose current stream a graph is captured.
    """

    def __init__(self, count=1, copy_seconds=0.0):
        self.count = count
        self.pid = os.getpid()
        self.mistakes = []
        self.registered = {}
        self.pinned = []
        self.copying = []  # start addresses of the memory that copies will read
        self.registrations = 0
        self.seconds = 0.0
        self.copy_seconds = copy_seconds
        self.blocking_copies = []
        self.reserved = Counter()
        self.free = Counter()  # (stream, size) → free blocks
        self.memory = math.inf
        self.used = self.refused = 0
        self.register_error = 0
        self.sync_error = self.sticky_error = ""
        self.can_pin = True
        self.fail_copies = 0
        self.capturing = set()
        self.is_initialized = False
        self.current = 0
        self.default_streams = [Stream(self, number) for number in range(count)]
        self.current_streams = list(self.default_streams)
        self.streams = list(self.default_streams)

    def launch(self, function, seconds=0.0, device=None):
        """Launch work on the current stream, as a training step does."""
        self.current_streams[self.current if device is None else device].launch(function, seconds)

    def synchronize(self):
        for stream in self.streams:
            stream.run()

    def check(self, device, what):
        if os.getpid() != self.pid:
            self.mistakes.append(f"{what} in a forked process")
            raise RuntimeError("CUDA error: initialization error")
        if self.sticky_error:
            raise RuntimeError(self.sticky_error)
        if self.capturing:
            self.mistakes.append(f"{what} while a graph is captured")
        if self.current != device:
            self.mistakes.append(f"{what} for device {device} while device {self.current} is current")

    def is_registered(self, address, size):
        return any(start <= address and address + size <= start + n for start, n in self.registered.items())

    def allocate(self, tensor, stream):
        """Take memory for a tensor on the device, which is free when the tensor is deleted."""
        block = stream, tensor.nbytes
        if self.free[block]:
            self.free[block] -= 1
        else:
            self.reserved[stream] += tensor.nbytes
        self.used += tensor.nbytes
        weakref.finalize(tensor, self._delete, block).atexit = False

    def _delete(self, block):
        self.free[block] += 1
        self.used -= block[1]

    def holds(self, address, size):
        """Return the pinned buffer that contains the memory, or None."""
        for buffer in self.pinned:
            if buffer.data_ptr() <= address and address + size <= buffer.data_ptr() + buffer.numel():
                return buffer
        return None


def is_mapped(address):
    """Return whether this process has memory there: mincore() fails where it has none."""
    page = address - address % mmap.PAGESIZE
    return not ctypes.CDLL(None).mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.create_string_buffer(1))


class Stream:
    def __init__(self, gpu, device):
        self.gpu, self.device = gpu, device
        self.waiting = deque()  # operations: (function, seconds, time of the launch)
        self.seconds = 0.0

    def launch(self, function, seconds=0.0):
        self.waiting.append((function, seconds, self.gpu.seconds))

    def run(self, until=lambda: False):
        while self.waiting and not until():
            function, seconds, launched = self.waiting.popleft()
            self.seconds = max(self.seconds, launched)
            function()
            self.seconds += seconds

    def wait_event(self, event):
        self.gpu.check(self.device, "wait_event")
        mark = event.mark

        def wait():
            if mark:
                mark.run()
                self.seconds = max(self.seconds, mark.seconds)

        self.launch(wait)

    def synchronize(self):
        self.gpu.check(self.device, "stream.synchronize")
        self.run()
        self.gpu.seconds = max(self.gpu.seconds, self.seconds)
        if self.gpu.sync_error:
            error, self.gpu.sync_error = self.gpu.sync_error, ""
            raise RuntimeError(error)


class Mark:
    """A point in a stream, which an event refers to."""

    def __init__(self, stream):
        self.stream, self.is_passed, self.seconds = stream, False, 0.0
        stream.launch(self._passed)

    def _passed(self):
        self.is_passed, self.seconds = True, self.stream.seconds

    def run(self):
        self.stream.run(lambda: self.is_passed)


class Event:
    def __init__(self, gpu, device, is_timed):
        self.gpu, self.device, self.is_timed, self.mark = gpu, device, is_timed, None

    def record(self, stream):
        self.gpu.check(self.device, "event.record")
        self.mark = Mark(stream)

    def query(self):
        self.gpu.check(self.device, "event.query")
        return self.mark is None or self.mark.is_passed

    def synchronize(self):
        self.gpu.check(self.device, "event.synchronize")
        if self.mark:
            self.mark.run()
            self.gpu.seconds = max(self.gpu.seconds, self.mark.seconds)

    def elapsed_time(self, end):
        assert self.is_timed
        assert end.is_timed
        assert self.mark.is_passed
        assert end.mark.is_passed
        return 1000 * (end.mark.seconds - self.mark.seconds)


@dataclass(frozen=True)
class FakeDriver:
    """What `wds_tools.loading.pipeline.cuda.CudaDriver` is on a machine with a GPU."""

    gpu: Gpu
    device: torch.device

    @property
    def index(self):
        assert self.device.index is not None
        return self.device.index

    @contextmanager
    def current(self):
        before, self.gpu.current = self.gpu.current, self.index
        self.gpu.is_initialized = True
        try:
            yield
        finally:
            self.gpu.current = before

    def stream(self):
        self.gpu.check(self.index, "stream")
        self.gpu.streams.append(Stream(self.gpu, self.index))
        return self.gpu.streams[-1]

    @contextmanager
    def using(self, stream):
        with self.current():
            before, self.gpu.current_streams[self.index] = self.gpu.current_streams[self.index], stream
            try:
                yield
            finally:
                self.gpu.current_streams[self.index] = before

    def current_stream(self):
        return self.gpu.current_streams[self.index]

    def event(self, *, is_timed=False):
        return Event(self.gpu, self.index, is_timed)

    def is_initialized(self):
        return self.gpu.is_initialized

    def is_capturing(self):
        return self.gpu.current in self.gpu.capturing

    def register(self, memory):
        gpu, address = self.gpu, memory.data_ptr()
        gpu.check(self.index, "register")
        gpu.registrations += 1
        if gpu.register_error:
            return gpu.register_error
        for start, size in gpu.registered.items():
            if start < address + memory.numel() and address < start + size:
                return 712
        gpu.registered[address] = memory.numel()
        return 0

    def error_text(self, status):
        return f"error {status}, {ERRORS[status]}"

    def unregister(self, memory):
        gpu, address = self.gpu, memory.data_ptr()
        gpu.check(self.index, "unregister")
        if any(address <= source < address + memory.numel() for source in gpu.copying):
            gpu.mistakes.append("unregister while a copy is in progress")
        if not is_mapped(address):
            gpu.mistakes.append("unregister after the memory was unmapped")
        del gpu.registered[address]

    def pinned(self, size):
        self.gpu.check(self.index, "pinned")
        if not self.gpu.can_pin:
            raise RuntimeError("CUDA error: out of memory")
        self.gpu.pinned.append(torch.empty(size, dtype=torch.uint8, device="cpu"))
        return self.gpu.pinned[-1]

    def copy(self, tensor):
        gpu, address, size = self.gpu, tensor.data_ptr(), tensor.nbytes
        gpu.check(self.index, "copy")
        if gpu.fail_copies or gpu.used + size > gpu.memory:
            gpu.fail_copies = max(0, gpu.fail_copies - 1)
            gpu.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        on_device = torch.full_like(tensor, 1)  # what it has before the copy
        on_device.fake_device, on_device.fake_streams = self.index, set()
        if not size:  # nothing is copied, from any memory
            return on_device
        gpu.allocate(on_device, gpu.current_streams[self.index])
        buffer = gpu.holds(address, size)
        if buffer is None and not gpu.is_registered(address, size):
            self._copy_and_wait(tensor, on_device)
            return on_device
        gpu.copying.append(address)
        gpu.current_streams[self.index].launch(
            lambda: _copy(gpu, on_device, address, size, buffer), gpu.copy_seconds if size > 1000 else 0.0
        )
        return on_device

    def _copy_and_wait(self, tensor, on_device):
        """Copy from memory that is not pinned: before CUDA returns, and after all that is launched on the stream."""
        stream = self.gpu.current_streams[self.index]
        stream.run()
        self.gpu.seconds = max(self.gpu.seconds, stream.seconds)
        self.gpu.blocking_copies.append(tensor.nbytes)
        on_device.copy_(tensor)

    def move(self, value):
        self.gpu.check(self.index, "move")
        self.gpu.current_streams[self.index].run()
        self.gpu.blocking_copies.append(None)  # of unknown size
        return value.to(self.device)

    def record_stream(self, tensor, stream):
        tensor.fake_streams.add(stream)


class SlowCopyDriver(FakeDriver):
    """A GPU whose copies take `Gpu.copy_seconds` of real time too. The process only waits if it waits for their end."""

    def copy(self, tensor):
        copied = super().copy(tensor)
        if tensor.nbytes > 1000:
            self.gpu.current_streams[self.index].launch(lambda: time.sleep(self.gpu.copy_seconds))
        return copied


def _copy(gpu, on_device, address, size, buffer):
    gpu.copying.remove(address)
    if buffer is None and not (gpu.is_registered(address, size) and is_mapped(address)):
        gpu.mistakes.append("copy from memory that is not registered or not mapped any more")
        return
    data = (ctypes.c_ubyte * size).from_address(address)
    on_device.copy_(torch.frombuffer(data, dtype=torch.uint8).view(on_device.dtype).view(on_device.shape))
