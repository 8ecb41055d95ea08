"""How far the training loop runs ahead of the GPU, and how long the GPU waits for batches.

A training loop only launches the work of a step. Without a limit it would launch the steps of many batches, whose
memory is free only after the GPU has executed them. And its own waiting time would not show whether batches come too
late: while it waits for a batch, the GPU may still have work. So both are taken from events on the stream of the loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from wds_tools.loading.pipeline.copier import StartedCopy
from wds_tools.loading.pipeline.cuda import CudaDriver

MAX_STEPS_AHEAD = 2
"""Steps that may be launched and not finished when the loop requests the next batch."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The work of the training loop on one batch.

    Attributes:
        start: Event on the stream of the loop after the copy of the batch.
        end: Event on that stream after the work on the batch.
    """

    copy_begun: torch.cuda.Event
    copy_done: torch.cuda.Event
    start: torch.cuda.Event
    end: torch.cuda.Event


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """What the GPU waited for.

    Attributes:
        requested: When the GPU was ready for the batch, in seconds of a clock that starts at 0.
        received: When it had the batch.
        copied: For how many seconds of this time the batch was being copied.
    """

    requested: float
    received: float
    copied: float


class StepPacer:
    """Limits the number of unfinished steps, and measures how long the GPU waited for batches."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._begun: tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event] | None = None  # of the current step
        self._launched: deque[_Step] = deque()
        self._previous: _Step | None = None  # the last finished step; None: the next step is not timed
        self._untimed = 0  # launched steps of an earlier epoch
        self._clock = 0.0

    def begin_epoch(self) -> None:
        """Start an epoch. The time between two epochs is not waiting time."""
        self._end_step()
        self._previous, self._untimed = None, len(self._launched)

    def batch_requested(self) -> list[BatchTiming]:
        """Record that the loop has launched its work on the last batch. Wait until few enough steps are unfinished.

        Returns:
            The timing of earlier batches, each batch once.
        """
        self._end_step()
        timings = []
        while len(self._launched) > MAX_STEPS_AHEAD:
            step = self._launched.popleft()
            with self._driver.current():
                step.end.synchronize()
                step.start.synchronize()  # on another stream, if the loop has changed its stream
            if self._untimed:
                self._untimed -= 1
                continue
            if self._previous:
                timings.append(self._timing(self._previous, step))
            self._previous = step
        return timings

    def batch_handed_over(self, copy: StartedCopy) -> None:
        """Record that the loop has received a batch, which has been copied or is being copied."""
        self._begun = copy.begun, copy.done, self._recorded_event()

    def _end_step(self) -> None:
        if self._begun:
            self._launched.append(_Step(*self._begun, self._recorded_event()))
            self._begun = None

    def _recorded_event(self) -> torch.cuda.Event:
        with self._driver.current():
            event = self._driver.event(is_timed=True)
            event.record(self._driver.current_stream())
        return event

    def _timing(self, previous: _Step, step: _Step) -> BatchTiming:
        with self._driver.current():
            self._clock += previous.start.elapsed_time(step.start) / 1000
            waited = max(0.0, previous.end.elapsed_time(step.start) / 1000)
            copied = min(event.elapsed_time(step.copy_done) / 1000 for event in (previous.end, step.copy_begun))
        return BatchTiming(self._clock - waited, self._clock, max(0.0, copied))
