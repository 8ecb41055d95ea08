"""Timers: how long the stages of loading take. `Loader.stats` and ``wds-tools bench --stages`` both read them.

The code that does the work of a stage runs in ``with stages.DECODE:``. While a `Recorder` is active in the thread, the
time is added to that stage; otherwise nothing is measured. A stage inside another one stops the time of the outer one,
so the times of all stages add up to the time in which the recorder was active. Entering and leaving a stage takes about
half a microsecond, so stages enclose work on many samples or on one image, never work on single values.
"""

from __future__ import annotations

import threading
from mmap import mmap
from time import perf_counter_ns
from typing import NamedTuple, TypeAlias

CAUSES = ("storage", "decoding", "transform", "hand_over", "copy", "start", "packing")
"""What a training loop can wait for, in figures and reports. `PeriodStats.waits` documents them."""
STEP = "step"
"""The main cause if the loop hardly waits: the time goes into the training step."""


def cause_name(cause: str) -> str:
    """Return a cause, or `STEP`, in words.

    >>> cause_name("hand_over"), cause_name("step")
    ('hand-over', 'training step')
    """
    return {"hand_over": "hand-over", "start": "start of the workers", STEP: "training step"}.get(cause, cause)


class Stage:
    """A stage of loading, as a context manager. It has no state, so it may be used by several threads, and nested.

    Args:
        name: Name of the stage in statistics.
        cause: What a loop waits for if it waits for this stage; None if that depends on something else.
    """

    __slots__ = ("index", "name")

    def __init__(self, name: str, cause: str | None) -> None:
        self.name = name
        self.index = len(NAMES)
        NAMES.append(name)
        CAUSE_BY_STAGE.append(cause)

    def __enter__(self) -> None:
        recorder = _thread.recorder
        if recorder is not None:
            recorder.push(self.index)

    def __exit__(self, *exc: object) -> None:
        recorder = _thread.recorder
        if recorder is not None:
            recorder.pop()


Shown: TypeAlias = bytearray | mmap
"""Memory to whose first byte a recorder writes the index of its current stage."""
NAMES: list[str] = []
"""Names of all stages by index."""
CAUSE_BY_STAGE: list[str | None] = []
"""What a loop waits for, by the index of the stage."""
IDLE = 255
"""Shown instead of the index of a stage while nothing is measured."""

OTHER = Stage("other", "hand_over")
"""Time of a recorder in which no other stage runs."""
READ = Stage("read", "storage")
"""Bytes are looked up, or fetched from remote storage."""
VERIFY = Stage("verify", "storage")
"""Checksums. The bytes of a local file are loaded from the disk when they are first used, which is here."""
SLICE = Stage("slice", "decoding")
"""The part of a JPEG that a crop needs is found."""
DECODE = Stage("decode", "decoding")
RESIZE = Stage("resize", "decoding")
WRITE = Stage("write", "decoding")
"""Pixels are written to the batch."""
TRANSFORM = Stage("transform", "transform")
WAIT = Stage("wait", None)
"""The training process waits for a worker; without workers, it does the work itself."""
COPY = Stage("copy", "copy")
"""The training process copies to the device, or waits for copies."""
HAND_OVER = Stage("hand_over", "hand_over")
"""Other work of the training process on a batch."""
BATCH_TRANSFORM = Stage("batch_transform", "hand_over")
START = Stage("start", "start")
"""Workers are started."""
PACKING = Stage("packing", "packing")
"""The training process waits until the next samples are packed (``pack_to=``)."""
DEVICE = Stage("device", None)
"""The training process waits until the device has finished earlier training steps."""


class StageTimes(NamedTuple):
    """What a recorder has measured.

    Attributes:
        nanoseconds: Time of each stage, in the order of `NAMES`.
        bytes_read: Bytes of samples that were read.
    """

    nanoseconds: tuple[int, ...]
    bytes_read: int


class Recorder:
    """Measures the stages of its thread, in ``with recorder:``. It may be used again; the times are then added.

    Attributes:
        shown: The index of the current stage is written to its element 0, `IDLE` outside of ``with recorder:``. It may
            be shared with another process.
    """

    __slots__ = ("_bytes_read", "_outer_recorders", "_outer_stages", "_running", "_since", "_times", "shown")

    def __init__(self) -> None:
        self._times = [0] * len(NAMES)
        self._bytes_read = 0
        self._running = OTHER.index
        self._outer_stages: list[int] = []
        self._outer_recorders: list[Recorder | None] = []  # active before this one, in the same thread
        self._since = 0  # time up to which `_times` is complete
        self.shown: Shown = bytearray([IDLE])

    def __enter__(self) -> None:
        if not self._outer_recorders:
            self._since = perf_counter_ns()
        self._outer_recorders.append(_thread.recorder)
        _thread.recorder = self
        self.shown[0] = self._running

    def __exit__(self, *exc: object) -> None:
        now = perf_counter_ns()
        self._times[self._running] += now - self._since
        self._since = now
        _thread.recorder = self._outer_recorders.pop()
        self.shown[0] = IDLE

    def push(self, stage: int) -> None:
        """Begin a stage, which stops the time of the current one."""
        now, running = perf_counter_ns(), self._running
        self._times[running] += now - self._since
        self._since, self._running = now, stage
        self._outer_stages.append(running)
        self.shown[0] = stage

    def pop(self) -> None:
        """End the current stage, and continue the one around it."""
        now = perf_counter_ns()
        self._times[self._running] += now - self._since
        self._since, self._running = now, self._outer_stages.pop()
        self.shown[0] = self._running

    def elapsed(self, stage: Stage) -> int:
        """Return the nanoseconds of a stage that does not run now."""
        return self._times[stage.index]

    def move(self, stage: Stage, nanoseconds: int) -> None:
        """Add to a stage time that is part of the current stage, because compiled code measured it."""
        self._times[stage.index] += nanoseconds
        self._times[self._running] -= nanoseconds

    def add_bytes(self, count: int) -> None:
        """Add bytes that were read."""
        self._bytes_read += count

    def take(self) -> StageTimes:
        """Return the times since the last call, and start again at zero."""
        taken = StageTimes(tuple(self._times), self._bytes_read)
        self._times, self._bytes_read = [0] * len(NAMES), 0
        return taken


class _Thread(threading.local):
    recorder: Recorder | None = None


_thread = _Thread()


def active_recorder() -> Recorder | None:
    """Return the recorder that measures this thread, or None."""
    return _thread.recorder
