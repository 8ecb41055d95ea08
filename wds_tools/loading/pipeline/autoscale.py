"""Number of workers: as given, one per core, or (``"auto"``) as many as keep the training loop from waiting.

There is no input or output here: times come in as numbers, and a number of workers comes out. The only measurement is
how long the loop waited for each batch. A loop that never waits needs no more workers, however fast the machine is.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from typing import Literal

from wds_tools.loading.workers.ray_workers import RayWorkers
from wds_tools.options import available_cores, launcher_number

MIN_PART_SAMPLES = 64
"""Minimum number of samples in a part of a batch. Parts cost the main process 1 to 2 us more per sample than whole
batches; decoding a photograph costs a worker 700 us."""
_REMOTE_PART_SAMPLES = 16  # of workers on other machines: a task for each machine, so that it reads its own blocks
LENT_SLOTS = 4  # batches that the user may hold without a copy: the current one, the previous one, and two more
NumWorkers = int | Literal["auto"] | RayWorkers | None
_log = logging.getLogger("wds_tools")
_MAX_DEFAULT_WORKERS = 16
_MAX_WAIT_SHARE = 0.05  # if the loop waits for a larger share of its time, workers are added
_MIN_GAIN_SHARE = 0.25  # share of the ideal speedup that added workers must bring to count as useful
_MIN_SECONDS = 0.5  # shorter measurements are mostly noise
_RETRY_SECONDS = 60.0  # time until another worker is tried after added workers were useless; doubles each time
_MIN_ROUNDS = 4  # workers often deliver in step, one batch each at about the same time: only full rounds are measured


def cores_per_rank() -> int:
    """Return the number of usable cores, divided among the ranks of this machine; at least 1."""
    return max(1, available_cores() // (launcher_number("LOCAL_WORLD_SIZE") or 1))


def workers_per_rank() -> int:
    """Return the default number of workers: one per core, with the cores shared among the ranks of this machine."""
    return min(_MAX_DEFAULT_WORKERS, cores_per_rank())


def parts_per_batch(batch_size: int, num_workers: int, part_samples: int = MIN_PART_SAMPLES) -> int:
    """Return the number of tasks per batch: one per worker, so that a batch is ready early and few are in progress."""
    return max(1, min(num_workers, batch_size // part_samples))


def batches_in_progress(
    batch_size: int, num_workers: int, prefetch_factor: int, part_samples: int = MIN_PART_SAMPLES
) -> int:
    """Return how many batches are in progress: ``prefetch_factor`` tasks per worker, rounded up to whole batches."""
    return max(1, -(-num_workers * prefetch_factor // parts_per_batch(batch_size, num_workers, part_samples)))


def slots_for(batch_size: int, num_workers: int, prefetch_factor: int, part_samples: int = MIN_PART_SAMPLES) -> int:
    """Return the number of batch slots of a loader: one per batch in progress, plus those that the loop holds."""
    return batches_in_progress(batch_size, num_workers, prefetch_factor, part_samples) + LENT_SLOTS


@dataclass(frozen=True, slots=True)
class LoopTiming:
    """Timing of consecutive batches in the training loop.

    Attributes:
        workers: Number of workers in that time.
        seconds: Total time of the loop, waiting and working.
        seconds_waited: The part of it in which the loop waited for a batch.
    """

    workers: int
    batches: int = 0
    seconds: float = 0.0
    seconds_waited: float = 0.0

    def with_batch(self, seconds: float, seconds_waited: float) -> LoopTiming:
        """Return the timing with one more batch."""
        return LoopTiming(self.workers, self.batches + 1, self.seconds + seconds, self.seconds_waited + seconds_waited)

    @property
    def is_long_enough(self) -> bool:
        """Whether it covers enough full rounds of all workers and enough time."""
        full_rounds = self.batches % self.workers == 0 and self.batches >= _MIN_ROUNDS * self.workers
        return full_rounds and self.seconds >= _MIN_SECONDS

    @property
    def wait_share(self) -> float:
        """Share of the time in which the loop waited, 0 to 1."""
        return self.seconds_waited / self.seconds

    @property
    def batches_per_second(self) -> float:
        """Throughput of the loop."""
        return self.batches / self.seconds


def workers_needed(timing: LoopTiming, max_workers: int) -> int:
    """Return how many workers a loop needs: at least the current number, and at most twice as many.

    If throughput is proportional to the number of workers, a loop needs ``workers / (1 - wait_share)`` of them. This is
    an assumption, so the number is at most doubled at once.
    """
    if timing.wait_share <= _MAX_WAIT_SHARE:
        return timing.workers
    return min(max_workers, math.ceil(timing.workers / max(1 - timing.wait_share, 0.5)))


def is_faster(timing: LoopTiming, previous: LoopTiming) -> bool:
    """Return whether the workers added after ``previous`` made the loop faster; if not, something else limits it."""
    speedup = timing.batches_per_second / previous.batches_per_second
    return speedup - 1 >= _MIN_GAIN_SHARE * (timing.workers / previous.workers - 1)


class Autoscaler:
    """The current number of workers of a loader. It grows while the training loop waits, unless it is fixed.

    Workers are never removed: one too many costs memory, one too few costs training time. If added workers did not make
    the loop faster, a single worker is tried after one minute, then after two, four, and so on. The loop may have been
    slow only at the start of training, when other ranks start and kernels are compiled.
    """

    def __init__(
        self,
        workers: int,
        *,
        max_workers: int,
        batch_size: int,
        prefetch_factor: int,
        part_samples: int = MIN_PART_SAMPLES,
    ) -> None:
        self.workers = workers
        self.max_workers = max_workers
        self.prefetch_factor = prefetch_factor
        self._batch_size, self._part_samples = batch_size, part_samples
        self._previous: LoopTiming | None = None  # timing before workers were last added; None if they were useless
        self._retry_seconds, self._retry_at = _RETRY_SECONDS, -math.inf
        self._timing = LoopTiming(workers)
        self._last_received = 0.0  # time at which the loop received its last batch
        self._batches_to_skip = workers  # their waiting times do not show whether workers are missing

    @classmethod
    def from_options(cls, num_workers: NumWorkers, *, batch_size: int, prefetch_factor: int) -> Autoscaler:
        """Return the autoscaler for the options of `make_loader`."""
        if isinstance(num_workers, RayWorkers):
            workers = max_workers = num_workers.count
        elif num_workers == "auto":
            workers, max_workers = 1, workers_per_rank()
        else:
            workers = max_workers = workers_per_rank() if num_workers is None else num_workers
        _log.debug(
            "workers: %d now, at most %d (num_workers=%r, usable cores: %d, LOCAL_WORLD_SIZE: %s)",
            *(workers, max_workers, num_workers, available_cores(), os.environ.get("LOCAL_WORLD_SIZE", "not set")),
        )
        part_samples = _REMOTE_PART_SAMPLES if isinstance(num_workers, RayWorkers) else MIN_PART_SAMPLES
        return cls(
            workers,
            max_workers=max_workers,
            batch_size=batch_size,
            prefetch_factor=prefetch_factor,
            part_samples=part_samples,
        )

    @property
    def parts(self) -> int:
        """Number of tasks per batch."""
        return parts_per_batch(self._batch_size, self.workers, self._part_samples)

    @property
    def in_progress(self) -> int:
        """Number of batches in progress."""
        return batches_in_progress(self._batch_size, self.workers, self.prefetch_factor, self._part_samples)

    @property
    def tasks_per_worker(self) -> int:
        """Maximum number of tasks that a worker has at a time."""
        parts = parts_per_batch(self._batch_size, self.max_workers, self._part_samples)
        in_progress = batches_in_progress(self._batch_size, self.max_workers, self.prefetch_factor, self._part_samples)
        return max(1, -(-in_progress * parts // max(1, self.max_workers)))

    @property
    def slots(self) -> int:
        """Number of batch slots that the maximum number of workers requires."""
        return slots_for(self._batch_size, self.max_workers, self.prefetch_factor, self._part_samples)

    def begin_epoch(self) -> None:
        """Start an epoch. No batch is in progress then, so the loop waits for the first batch of each worker anyway."""
        self._batches_to_skip = self.workers

    def add_batch(self, requested: float, received: float) -> bool:
        """Record when the loop requested a batch and when it received it, in seconds of any monotonic clock.

        Returns:
            Whether the number of workers has grown.
        """
        since, self._last_received = self._last_received, received
        if self.workers == self.max_workers or received < self._retry_at:
            return False
        if self._batches_to_skip:
            self._batches_to_skip -= 1
            return False
        self._timing = self._timing.with_batch(received - since, received - requested)
        return self._timing.is_long_enough and self._update_workers(self._timing, received)

    def _update_workers(self, timing: LoopTiming, time: float) -> bool:
        self.workers = self._next_workers(timing, time)
        self._timing = LoopTiming(self.workers)
        has_grown = self.workers > timing.workers
        # The batches already assigned to the old workers, and the first batch of each new worker.
        self._batches_to_skip = self.in_progress if has_grown else 0
        return has_grown

    def _next_workers(self, timing: LoopTiming, time: float) -> int:
        if timing.wait_share <= _MAX_WAIT_SHARE:
            return timing.workers
        if self._previous and not is_faster(timing, self._previous):
            self._previous, self._retry_at = None, time + self._retry_seconds
            self._retry_seconds *= 2
            return timing.workers
        is_retry = self._previous is None and self._retry_seconds > _RETRY_SECONDS
        self._previous = timing
        return timing.workers + 1 if is_retry else workers_needed(timing, self.max_workers)
