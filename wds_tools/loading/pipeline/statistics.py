"""How a training loop spends its time, and what it waits for: the figures of `Loader.stats`.

A loop alternates between its own work, the training step, and waiting in ``next()``. The time in ``next()`` is measured
by the stages of `wds_tools.stages`. While the loop waits for a worker, the cause is inside the worker: each result
has the times of the stages of its task, and the time that the loop waited for it is divided in proportion to them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from operator import add
from time import perf_counter_ns
from typing import Any, Protocol

from wds_tools import stages
from wds_tools.loading.pipeline.autoscale import Autoscaler
from wds_tools.loading.pipeline.tasks import TaskResult
from wds_tools.reading.shardset import ShardSet
from wds_tools.stages import CAUSES, STEP
from wds_tools.storage import FetchStatistics

MIN_WAIT_SHARE = 0.05  # a loop that waits for a smaller share of its time does not wait; `autoscale` has the same limit

_MAX_REQUESTS = 512  # remembered, to count the batches that were ready; more than the batches in progress
_HAND_OVER, _COPY, _START = map(CAUSES.index, ("hand_over", "copy", "start"))
_CAUSE_BY_STAGE = [None if cause is None else CAUSES.index(cause) for cause in stages.CAUSE_BY_STAGE]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodStats:
    """How a training loop spent a period of time, such as an epoch.

    Attributes:
        epoch: Zero-based epoch of the last batch.
        batches: Number of batches that the loop received on this rank.
        samples: Number of samples in these batches, including padding.
        seconds: Duration of the period in seconds, ``waited_seconds`` plus ``step_seconds``. The time between two
            iterations is not included.
        waited_seconds: Time in seconds that the loop waited in ``next()``.
        step_seconds: Time in seconds that the loop did not wait: the training steps. A step is counted when it has
            ended, which is when the next batch is requested. On CUDA it includes the time in which the loader waited
            for the device to finish earlier steps, unless these waited for a copy.
        waits: ``waited_seconds`` by cause. ``storage``: bytes are read and verified. ``decoding``: images and other
            fields are decoded, cropped and resized. ``transform``: ``transform=``. ``hand_over``: the parts of a batch
            are sent by workers and joined, and ``batch_transform=``. ``copy``: copies to the device, including
            copies that earlier steps waited for on a GPU. ``start``: workers are started. ``packing``: the
            next samples are being packed (``pack_to=``).
        stage_seconds: Time in seconds by stage. ``read``, ``verify``, ``slice``, ``decode``, ``resize``, ``write``,
            ``transform`` and ``other`` are the work on the batches, summed over all workers. The others are time of the
            training process: ``wait`` for workers, ``start`` of workers, ``packing``, ``copy``, ``device`` (waiting for
            earlier training steps), ``batch_transform`` and ``hand_over``. Without workers, ``wait`` is the work
            itself.
        workers: Number of workers at the end of the period.
        ready_batches: Average number of complete batches when the loop requested one, including the requested one.
            It is below 1 if the loop waits.
        parts_in_progress: Average number of parts of batches that workers had yet to finish when the loop requested a
            batch. A batch has one part per worker at most.
        bytes_read: Bytes of the fields that were read, from any storage or cache.
        fetched: Requests, bytes, and hits of the cache of a remote dataset; zeros for a local one. All processes of
            this machine that read the dataset are included.
    """

    epoch: int
    batches: int
    samples: int
    seconds: float
    waited_seconds: float
    step_seconds: float
    waits: dict[str, float]
    stage_seconds: dict[str, float]
    workers: int
    ready_batches: float
    parts_in_progress: float
    bytes_read: int
    fetched: FetchStatistics

    @property
    def images_per_second(self) -> float:
        """Samples per second of the loop, with its training steps; 0.0 before the first batch."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time in which the loop waited, 0 to 1."""
        return self.share(self.waited_seconds)

    @property
    def main_cause(self) -> str:
        """The cause of ``waits`` with the most time, or ``"step"`` if the loop waited for less than 5 % of the time."""
        return STEP if self.wait_share < MIN_WAIT_SHARE else max(self.waits, key=lambda cause: self.waits[cause])

    def share(self, seconds: float) -> float:
        """Return a time as a share of the period, 0 to 1."""
        return seconds / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values, for JSON."""
        values = {**asdict(self), "images_per_second": self.images_per_second, "wait_share": self.wait_share}
        values["fetched"]["hit_rate"] = self.fetched.hit_rate
        return {**values, "main_cause": self.main_cause}


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Return value of `Loader.stats`.

    Attributes:
        epoch: The current epoch up to now, or the last one if none is running. The figures of an epoch that is
            resumed, or that is left early, are for the part that was read.
        since_last_call: Since the last call of `Loader.stats`.
    """

    epoch: PeriodStats
    since_last_call: PeriodStats

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values, for JSON."""
        return {"epoch": self.epoch.to_dict(), "since_last_call": self.since_last_call.to_dict()}


@dataclass(slots=True)
class _Totals:
    """Sums since the loader was created. Times are in nanoseconds."""

    batches: int = 0
    samples: int = 0
    steps: int = 0  # time
    bytes_read: int = 0
    requests: int = 0  # of batches, by the pipeline
    ready_batches: int = 0  # summed over all requests, as are the parts
    sent_parts: int = 0
    finished_parts: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * len(CAUSES))
    stages: list[int] = field(default_factory=lambda: [0] * len(stages.NAMES))
    fetched: FetchStatistics = field(default_factory=FetchStatistics)

    def since(self, before: _Totals) -> _Totals:
        """Return the difference to earlier sums."""
        now, then = asdict(self), asdict(before)
        return _Totals(**{field_.name: _difference(now[field_.name], then[field_.name]) for field_ in fields(self)})


def _difference(now: Any, then: Any) -> Any:
    if isinstance(now, dict):  # of a fetcher, which starts at zero again if its process was replaced
        return FetchStatistics(**{name: max(0, value - then[name]) for name, value in now.items()})
    return [a - b for a, b in zip(now, then, strict=True)] if isinstance(now, list) else now - then


def _by_cause(times: Sequence[int]) -> list[int]:
    """Sum up times by stage to times by cause; the times of `WAIT` and `DEVICE` are left out."""
    sums = [0] * len(CAUSES)
    for time, cause in zip(times, _CAUSE_BY_STAGE, strict=True):  # twice per batch, so generators would be noticed
        if time and cause is not None:
            sums[cause] += time
    return sums


class TaskPool(Protocol):
    """The part of a pool of workers that a meter reads."""

    def awaited_stage(self) -> int:
        """Return the index of the stage of the task that the loop waits for, or `stages.IDLE`."""


class Meter:
    """Measures a loader and the loop that uses it. In ``with meter:`` the loop waits."""

    def __init__(self, autoscaler: Autoscaler, shards: ShardSet) -> None:
        self.epoch = 0
        self.pool: TaskPool | None = None
        self._autoscaler = autoscaler
        self._shards = shards
        self._fetched_before: FetchStatistics | None = None  # by other loaders, before this one began
        self._recorder = stages.Recorder()
        self._totals = _Totals()
        self._epoch_begin = _Totals()
        self._step_since = 0  # time at which the current training step began, 0 if there is none
        self._wait_since = 0  # time at which the current wait began, 0 if there is none
        self._requests: list[int] = []  # times of the latest requests for a batch
        self._ended_ns = 0  # time at which the last part of the current batch was finished
        self._copying_ns = 0  # for which the GPU waited for copies, reported in the current request

    def begin(self, epoch: int) -> None:
        """Start an epoch, or the rest of a resumed one."""
        self.epoch, self._step_since = epoch, 0
        if self._shards.is_remote and self._fetched_before is None:
            self._fetched_before = self._shards.statistics
        self._epoch_begin = self._sums()

    def __enter__(self) -> None:
        """Begin to measure time in which the loop waits, in ``with meter:``."""
        if self._step_since:
            self._totals.steps += perf_counter_ns() - self._step_since
            self._step_since = 0
        self._wait_since = perf_counter_ns()
        self._recorder.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._wait_since = 0
        self._recorder.__exit__()
        self._add_wait(self._recorder.take().nanoseconds)

    def received(self, samples: int) -> None:
        """Count a batch. The training step begins now."""
        self._totals.batches += 1
        self._totals.samples += samples
        self._step_since = perf_counter_ns()

    def waited_for_worker(self) -> int:
        """Return for how long the loop has waited for workers in the current request, in nanoseconds."""
        return self._recorder.elapsed(stages.WAIT)

    def gpu_waited_for_copy(self, seconds: float) -> None:
        """Add a time for which the GPU waited for the copy of an earlier batch, in the current request.

        The loop waits for earlier steps. The time in which these waited for their copies counts as copying.
        """
        self._copying_ns += round(seconds * 1e9)

    def request(self, parts: int) -> None:
        """Count a request for a batch, while this number of parts has been sent to the workers."""
        self._requests.append(perf_counter_ns())
        if len(self._requests) > _MAX_REQUESTS:
            del self._requests[: _MAX_REQUESTS // 2]
        self._totals.requests += 1
        self._totals.sent_parts += parts
        self._ended_ns = 0

    def add_result(self, result: TaskResult, waited: int) -> None:
        """Add the times of a task, whose result was received now, to the causes.

        ::

            the loop begins to wait      the task begins        the task ends      now
            |-- start of a new worker ---|-- by stage of the task --|-- hand-over --|

        Args:
            result: The result.
            waited: For how long the loop waited for it, in nanoseconds.
        """
        totals, times = self._totals, result.nanoseconds
        totals.bytes_read += result.bytes_read
        totals.stages = list(map(add, totals.stages, times))
        totals.finished_parts += self._requests_since(result.ended_ns)
        self._ended_ns = max(self._ended_ns, result.ended_ns)
        if not waited:
            return
        now = perf_counter_ns()
        sending = min(waited, max(0, now - result.ended_ns))
        starting = min(waited - sending, max(0, result.begun_ns - (now - waited))) if result.is_first else 0
        totals.waits[_START] += starting
        totals.waits[_HAND_OVER] += sending
        working, task = waited - sending - starting, max(1, sum(times))
        for cause, time in enumerate(_by_cause(times)):
            totals.waits[cause] += working * time // task

    def batch_is_complete(self) -> None:
        """Report that all parts of the requested batch were added."""
        self._totals.ready_batches += self._requests_since(self._ended_ns)

    def current_wait(self) -> tuple[str, float] | None:
        """Return the cause of the wait in progress and its duration in seconds. Callable by any thread.

        None if the loop does not wait, if it waits for the device, or if the cause is not known.
        """
        since, pool, stage = self._wait_since, self.pool, self._recorder.shown[0]
        if stage == stages.WAIT.index and pool is not None:
            stage = pool.awaited_stage()
        cause = None if stage == stages.IDLE else stages.CAUSE_BY_STAGE[stage]
        return (cause, (perf_counter_ns() - since) / 1e9) if since and cause else None

    def reader(self) -> StatsReader:
        """Return a reader of the figures, with its own "since the last call"."""
        return StatsReader(self)

    def period(self, begin: _Totals) -> tuple[PeriodStats, _Totals]:
        """Return the figures since ``begin``, and the sums now."""
        now = self._sums()
        return self._stats(now.since(begin)), now

    def current_epoch(self) -> PeriodStats:
        """Return the figures of the current epoch. Callable by any thread."""
        while True:
            begin = self._epoch_begin
            stats = self.period(begin)[0]
            if begin is self._epoch_begin:  # otherwise the next epoch has begun meanwhile
                return stats

    def _requests_since(self, time: int) -> int:
        return len(self._requests) - bisect_left(self._requests, time)

    def _add_wait(self, times: tuple[int, ...]) -> None:
        """Add the stages of the training process to the causes; the waits for workers were added before."""
        totals, device, other = self._totals, times[stages.DEVICE.index], times[stages.OTHER.index]
        totals.stages = list(map(add, totals.stages, times))
        totals.stages[stages.OTHER.index] -= other
        totals.stages[stages.HAND_OVER.index] += other
        totals.waits = list(map(add, totals.waits, _by_cause(times)))
        copying, self._copying_ns = min(device, self._copying_ns), 0
        totals.waits[_COPY] += copying
        totals.steps += device - copying

    def _sums(self) -> _Totals:
        totals = deepcopy(self._totals)
        if self._fetched_before is not None:
            totals.fetched = _difference(asdict(self._shards.statistics), asdict(self._fetched_before))
        return totals

    def _stats(self, sums: _Totals) -> PeriodStats:
        waits = {cause: time / 1e9 for cause, time in zip(CAUSES, sums.waits, strict=True)}
        waited, steps = sum(waits.values()), sums.steps / 1e9
        requests = max(1, sums.requests)
        return PeriodStats(
            epoch=self.epoch,
            batches=sums.batches,
            samples=sums.samples,
            seconds=waited + steps,
            waited_seconds=waited,
            step_seconds=steps,
            waits=waits,
            stage_seconds={name: time / 1e9 for name, time in zip(stages.NAMES, sums.stages, strict=True)},
            workers=self._autoscaler.workers,
            ready_batches=sums.ready_batches / requests,
            parts_in_progress=max(0, sums.sent_parts - sums.finished_parts) / requests,
            bytes_read=sums.bytes_read,
            fetched=sums.fetched,
        )


class StatsReader:
    """Returns the figures of a loader for one user of them, such as the progress line."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last = _Totals()

    def read(self) -> LoaderStats:
        """Return the figures of the epoch, and those since the last call."""
        since, self._last = self._meter.period(self._last)
        return LoaderStats(self._meter.current_epoch(), since)

    def current_wait(self) -> PeriodStats | None:
        """Return the figures of the wait in progress, as a period without batches; None as for `Meter.current_wait`."""
        wait = self._meter.current_wait()
        if wait is None:
            return None
        stats = self._meter.period(self._last)[0]
        cause, seconds = wait
        waits = {name: seconds * (name == cause) for name in CAUSES}
        return replace(
            stats, batches=0, samples=0, seconds=seconds, waited_seconds=seconds, step_seconds=0.0, waits=waits
        )
