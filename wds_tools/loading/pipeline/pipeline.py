"""The running part of a loader: workers, batch slots, and copies to the device."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import LoaderError, WorkerError, run_after, run_all
from wds_tools.loading.fields.collate import as_tensors, join_parts, reordered, values_of_samples
from wds_tools.loading.fields.slots import SlotLayout, samples_of_tensors
from wds_tools.loading.pipeline.autoscale import LENT_SLOTS, Autoscaler
from wds_tools.loading.pipeline.copier import CudaCopier, StartedCopy, is_capturing
from wds_tools.loading.pipeline.cuda import CudaDriver, copy_to_device, device_of_process
from wds_tools.loading.pipeline.pacing import StepPacer
from wds_tools.loading.pipeline.pools import InlinePool, PipelineOptions, start_pool
from wds_tools.loading.pipeline.ring import Ring
from wds_tools.loading.pipeline.statistics import Meter
from wds_tools.loading.pipeline.tasks import (
    BatchRunner,
    BatchTask,
    LayoutTask,
    SampleResults,
    TaskResult,
    split_into_tasks,
)
from wds_tools.loading.samples.bad_samples import ErrorLog, Unreadable, replace_unreadable
from wds_tools.loading.samples.recipe import Recipe
from wds_tools.loading.workers.pool import CLOSED, WorkerPool
from wds_tools.order.planner import EpochPlan, Step
from wds_tools.reading.read_ahead import ReadAhead, end_of_step
from wds_tools.reading.reader import Reader

Collate: TypeAlias = Callable[[list[list[Any]], int, Step], Any]

_DRAIN_SECONDS = 5.0  # to finish the batches of an iteration that was left early; slower workers are replaced
_log = logging.getLogger("wds_tools")


class Packing(Protocol):
    """The packer of a dataset that is trained on meanwhile."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until a function returns True; raise an error if the packer has failed."""

    def look(self) -> bool:
        """Look for shards that were finished since; return whether there are any."""


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that workers are loading."""

    tasks: list[BatchTask]
    task_numbers: list[int]  # of the tasks in the pool
    plan: EpochPlan
    step: Step
    slot: int | None


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch that is ready.

    Attributes:
        replaced: bool [batch], True for samples that were replaced because they are unreadable.
    """

    step: Step
    values: list[Any]
    replaced: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The CUDA device of a pipeline."""

    driver: CudaDriver
    copier: CudaCopier
    pacer: StepPacer


class Pipeline:
    """Loads batches with workers. It closes at the first error; a loader then creates a new pipeline."""

    def __init__(
        self,
        recipe: Recipe,
        autoscaler: Autoscaler,
        options: PipelineOptions,
        errors: ErrorLog,
        meter: Meter,
        collate: Collate | None = None,
        packing: Packing | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.is_closed = False
        self.device = options.device  # with its index, as soon as a batch has been requested
        self._recipe = recipe
        self._autoscaler = autoscaler
        self._options = options
        self._errors = errors
        self._meter = meter
        self._collate = collate
        self._packing = packing
        self._is_interrupted = False
        self._lock = threading.RLock()  # held while the next batch is awaited, so that another thread may call close()
        self._is_in_next = False
        self._sent: deque[_PendingBatch] = deque()
        self._unsent: Iterator[tuple[EpochPlan, Step] | None] = iter(())
        self._ring: Ring | None = None
        # What slots hold, if the workers do not know it from their start.
        self._late_layouts: tuple[SlotLayout, ...] | None = None
        if recipe.has_slots:
            self._ring = Ring(
                slots=autoscaler.slots,
                # A slow sample delays its batch. Meanwhile the workers may work on the same number of later batches.
                spare_slots=autoscaler.slots - LENT_SLOTS if autoscaler.workers else 0,
                rows=options.batch_size,
                layouts=recipe.layouts or (),
            )
        self.pool = meter.pool = start_pool(BatchRunner(recipe, self._ring), autoscaler, options)
        if not isinstance(self.pool, InlinePool):
            self.pool.when_idle = self._send_spare
        self._reader = Reader(recipe.shards, block=recipe.block)
        self._read_ahead = ReadAhead(self._reader, options.read_ahead_bytes, recipe.partners)
        # Values that a worker joins cannot be put into another order.
        is_joined = any(column.padding and column.padding.is_flat for column in recipe.columns)
        self._is_elsewhere = not isinstance(self.pool, InlinePool | WorkerPool)
        self._divides_by_block = self._is_elsewhere and not is_joined
        self._gpu: _Gpu | None = None

    def prepare(self, plan: EpochPlan | None) -> bool:
        """Drop the batches in progress, except the first ones of a plan, if these were sent ahead.

        Returns:
            Whether the pipeline can be used again.
        """
        with self._lock:
            self._read_ahead.stop()
            self._unsent = iter(())  # nothing of an earlier plan is sent any more
            try:
                if self.is_closed:
                    return False
                is_ahead = plan is not None and all(sent.plan.has_same_steps(plan) for sent in self._sent)
                if is_ahead and self._sent and self._sent[0].step.number == 0:
                    return self.pool.discard([], seconds=0)  # notices workers that have died
                task_numbers = [task_number for sent in self._sent for task_number in sent.task_numbers]
                if not self.pool.discard(task_numbers, seconds=_DRAIN_SECONDS):
                    _log.debug("workers are busy after %.0f s with batches that nobody needs", _DRAIN_SECONDS)
                    return False
            except WorkerError as error:
                _log.warning("the workers are restarted: %s", error)
                return False
            while self._sent:
                self._release(self._sent.popleft().slot)
            return True

    def batches(self, plan: EpochPlan, following: Callable[[], EpochPlan | None]) -> Iterator[FinishedBatch | None]:
        """Yield the batches of an epoch. On CUDA, the next batch is copied while the loop uses one.

        When the workers have all tasks of the epoch, they get tasks of the next one.

        Args:
            plan: The epoch. `prepare` has been called for it.
            following: Returns the plan of the next epoch, if it is known.

        The generator never yields inside a lock or an exception handler, so it may be abandoned at any time.
        """
        with self._lock:
            self._check_open()
            self._unsent = self._steps_to_send(plan, following, first=len(self._sent))
            gpu = self._gpu = self._gpu or (self._new_gpu() if self.device.type == "cuda" else None)
        batches = self._copy_to_cuda(plan, gpu) if gpu else self._copy_to_user(plan)
        while True:
            if gpu and is_capturing(gpu.driver):
                raise LoaderError(
                    "a batch was requested while a CUDA graph is captured: request it before, and copy it to the "
                    "memory that the graph reads"
                )
            ready = [self._next(batches)]
            if ready[0] is None:
                return
            yield ready.pop()  # so that this frame does not keep the batch while the user has it

    def close(self) -> None:
        """Stop the workers and free the slots; callable from any thread."""
        self._is_interrupted = True
        self.pool.interrupt()  # a thread that waits for a batch gets a LoaderError
        with self._lock:
            if not self.is_closed:
                self._read_ahead.log_use()
            self.is_closed = True
            self._sent.clear()
            # Without references to itself the pipeline is deleted at once, and with it the connection to the fetcher.
            self._unsent = iter(())
            if not isinstance(self.pool, InlinePool):
                self.pool.when_idle = None
            # The workers stop first, whatever fails after that.
            run_all(self.pool.close, self._read_ahead.stop, *([self._gpu.copier.close] if self._gpu else []))

    def _next(self, batches: Iterator[FinishedBatch]) -> FinishedBatch | None:
        """Return the next batch, or None at the end. Any exception closes the pipeline."""
        with self._lock:
            self._check_open()
            if self._is_in_next:
                raise LoaderError("the loader is used inside its own transform: create another loader there")
            self._is_in_next = True
            try:
                return next(batches, None)
            except BaseException as error:
                run_after(error, self.close)
                raise
            finally:
                self._is_in_next = False

    def _check_open(self) -> None:
        """Check, with the lock, that no other thread has closed the pipeline since the last batch."""
        if self.is_closed:
            raise LoaderError("the loader was closed: create a new iterator with iter(loader)")

    def _new_gpu(self) -> _Gpu:
        """Return the CUDA device. The workers were started before, so they do not inherit an initialized CUDA."""
        self.device = device_of_process(self.device)
        driver = CudaDriver(self.device)
        return _Gpu(driver, CudaCopier(driver, self._ring), StepPacer(driver))

    def _copy_to_cuda(self, plan: EpochPlan, gpu: _Gpu) -> Iterator[FinishedBatch]:
        """Yield batches on CUDA.

        Copies of the next batches are started before a batch is yielded, if the workers have finished them already.
        """
        loaded = self._load(plan)
        waiting: deque[tuple[FinishedBatch, int | None]] = deque()  # one batch at most, for which there was no memory
        ahead: deque[tuple[FinishedBatch, StartedCopy]] = deque()
        left = len(plan)
        gpu.pacer.begin_epoch()
        while True:
            with stages.DEVICE:
                timings = gpu.pacer.batch_requested()
            for timing in timings:
                self._add_timing(timing.requested, timing.received)
                self._meter.gpu_waited_for_copy(timing.copied)
            while left and len(ahead) <= self._options.device_prefetch:
                if not waiting:
                    if ahead and not self._is_next_ready():
                        break
                    waiting.append(next(loaded))
                batch, slot = waiting[0]
                try:
                    with stages.COPY:
                        ahead.append((batch, gpu.copier.start(batch.values, slot)))
                except torch.OutOfMemoryError:
                    if not ahead:
                        raise
                    break  # the loop may free memory before it requests this batch
                waiting.clear()
                left -= 1
                self._send_ahead()
            if not ahead:
                return
            yield _handed_over(gpu, *ahead.popleft())

    def _copy_to_user(self, plan: EpochPlan) -> Iterator[FinishedBatch]:
        """Yield batches in CPU memory, or on a device other than CUDA."""
        for batch, slot in self._load(plan):
            yield FinishedBatch(batch.step, self._for_user(batch.values, slot), batch.replaced)

    def _load(self, plan: EpochPlan) -> Iterator[tuple[FinishedBatch, int | None]]:
        """Yield batches and their slots in order, while the workers load the following batches.

        Tensors in the slot are None in the values.
        """
        self._autoscaler.begin_epoch()
        total = len(plan)
        if total:
            self._await_packed(plan, 0)
            if not self._is_elsewhere:  # other machines read ahead for themselves
                with stages.READ:
                    self._read_ahead.begin(plan, range(total))
            self._find_layout(plan)
        for index in range(total):
            self._read_ahead.advance(index)
            self._send_ahead()
            if not self._sent:
                self._await_packed(plan, index)
                self._send_ahead()
            sent, requested = self._sent[0], time.perf_counter()
            self._meter.request(sum(len(batch.tasks) for batch in self._sent))
            results = [self._result(task_number) for task_number in sent.task_numbers]
            self._meter.batch_is_complete()
            if self.device.type != "cuda":
                self._add_timing(requested, time.perf_counter())
            self._sent.popleft()
            replaced = np.zeros(len(sent.step.ids), np.bool_)
            parts = [
                self._replace_unreadable(result, task, plan, replaced) if isinstance(result, SampleResults) else result
                for result, task in zip(results, sent.tasks, strict=True)
            ]
            rows = [task.rows for task in sent.tasks]
            joined = self._joined(parts, rows, sent.slot)
            if sent.tasks[0].scattered is not None:
                joined = [reordered(value, np.argsort(np.concatenate(rows))) for value in joined]
            if plan.tail == "mask":
                joined.append(sent.step.valid)
            if self._collate is None:
                yield FinishedBatch(sent.step, [as_tensors(value) for value in joined], replaced), sent.slot
            else:
                batch = self._collate(self._by_sample(joined, sent.slot), plan.cursor.epoch, sent.step)
                yield FinishedBatch(sent.step, [batch], replaced), None

    def _result(self, task_number: int) -> Any:
        """Wait for the result of a task and return its value."""
        before = self._meter.waited_for_worker()
        result: TaskResult = self.pool.result(task_number)
        self._meter.add_result(result, self._meter.waited_for_worker() - before)
        return result.value

    def _add_timing(self, requested: float, received: float) -> None:
        """Record when the loop was ready for a batch and when it had it. Add workers if it waits too long."""
        if self._autoscaler.add_batch(requested, received) and isinstance(self.pool, WorkerPool):
            self.pool.active = self._autoscaler.workers
            _log.debug("the loop waits for batches: %d workers from now on", self._autoscaler.workers)

    def _is_next_ready(self) -> bool:
        """Return whether the workers have finished the next batch."""
        return bool(self._sent) and self.pool.are_done(self._sent[0].task_numbers)

    def _joined(self, parts: list[list[Any]], rows: Sequence[Sequence[int]], slot: int | None) -> list[Any]:
        """Join the values of parts of a batch, which have these rows of the slot."""
        if self._ring is None or slot is None or len(parts) == 1:
            return join_parts(parts)
        return self._ring.layout_of(slot).join(parts, rows, partial(self._ring.tensors, slot))

    def _find_layout(self, plan: EpochPlan) -> None:
        """Let a worker find out what slots hold, if it depends on stored types or on the user's transform."""
        if self._ring is None or self._ring.is_open:
            return
        task = LayoutTask(self._recipe.first_samples(plan))
        layouts: tuple[SlotLayout, ...] | None = self._result(self.pool.submit(task))
        if layouts:
            self._ring.open(*layouts)
            self._late_layouts = layouts
        else:
            self._ring = None
            _log.debug("transform= returns no tensors: images are pickled instead of written to shared memory")

    def _steps_to_send(
        self, plan: EpochPlan, following: Callable[[], EpochPlan | None], *, first: int
    ) -> Iterator[tuple[EpochPlan, Step] | None]:
        """Yield the steps of a plan from step ``first`` on, then the steps of the next plan.

        While the next step is not packed, None is yielded.
        """
        for index in range(first, len(plan)):
            while not self._is_packed(plan, index):
                yield None
            yield plan, plan.step(index)
        if not isinstance(self.pool, InlinePool) and (later := following()):
            for index in range(len(later)):
                yield later, later.step(index)

    def _is_packed(self, plan: EpochPlan, index: int) -> bool:
        """Return whether all samples of a step are packed, and its partners, which come earlier or at the start."""
        if self._packing is None:
            return True
        stop = end_of_step(plan, index, self._recipe.partners)
        return plan.order.is_packed(stop) or (self._packing.look() and plan.order.is_packed(stop))

    def _await_packed(self, plan: EpochPlan, index: int) -> None:
        """Wait until a step is packed."""
        if self._packing is None or self._is_packed(plan, index):
            return
        with stages.PACKING:
            self._packing.wait(lambda: self._is_interrupted or self._is_packed(plan, index))
        if self._is_interrupted:
            raise LoaderError(CLOSED)

    def _send_ahead(self) -> None:
        """Send tasks to the workers until enough batches are in progress."""
        while len(self._sent) < self._autoscaler.in_progress and (unsent := next(self._unsent, None)):
            self._send(*unsent)

    def _send_spare(self) -> None:
        """Send one more batch, because a worker has nothing to do while a slow sample delays the next batch."""
        if not self._sent or not self._ring or not self._ring.free:
            return
        most = self._autoscaler.in_progress + self._ring.spare_slots
        if len(self._sent) < most and (unsent := next(self._unsent, None)):
            self._send(*unsent)

    def _parts(self, index: int) -> int:
        """Return the number of tasks for a step. All workers share the first one, so that it is ready early."""
        first = min(self._autoscaler.workers, self._options.batch_size)
        return max(1, first) if index == 0 else self._autoscaler.parts

    def _send(self, plan: EpochPlan, step: Step) -> None:
        """Send the tasks of a batch to the workers."""
        epoch, parts = plan.cursor.epoch, self._parts(step.number)
        if (bucket := self._recipe.bucket_of(plan, step)) != step.bucket:
            step = replace(step, bucket=bucket)
        slot = self._take_slot(self._recipe.variant_at(epoch, step.bucket))
        partners = self._recipe.partners(plan.order, step.positions)
        blocks = self._reader.block_numbers(step.ids) if self._divides_by_block and parts > 1 else None
        tasks = split_into_tasks(
            step, partners, slot=slot, layouts=self._late_layouts, epoch=epoch, parts=parts, blocks=blocks
        )
        self._sent.append(_PendingBatch(tasks, [self.pool.submit(task) for task in tasks], plan, step, slot))

    def _replace_unreadable(
        self, result: SampleResults, task: BatchTask, plan: EpochPlan, replaced: NDArray[np.bool_]
    ) -> list[Any]:
        """Replace unreadable samples, set their rows of ``replaced``, and return the values of each field."""

        def load(row: int, sources: NDArray[np.int64]) -> list[Any] | Unreadable:
            substitute = task._replace(
                start=task.rows[row],
                scattered=None,
                positions=task.positions[row : row + 1],
                ids=sources[:, 0],
                partners=sources[:, 1:],
            )
            values = self._result(self.pool.submit(substitute))
            return values.samples[0] if isinstance(values, SampleResults) else list(values)

        samples = result.samples
        rows = replace_unreadable(
            samples,
            load,
            self._errors,
            order=plan.order,
            epoch=task.epoch,
            positions=task.positions,
            sources=np.column_stack([task.ids, task.partners]),
        )
        replaced[[task.rows[row] for row in rows]] = True
        loaded = [values for values in samples if isinstance(values, list)]
        return self._joined(loaded, [range(row, row + 1) for row in task.rows], task.slot)

    def _take_slot(self, variant: int) -> int | None:
        if self._ring is None:
            return None
        if self._gpu:
            with stages.COPY:
                self._gpu.copier.release_copied(at_least_one=not self._ring.free)
        slot = self._ring.take()
        self._ring.set_variant(slot, variant)
        return slot

    def _release(self, slot: int | None) -> None:
        if self._ring and slot is not None:
            self._ring.release(slot)

    def _for_user(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with the tensors of their slot, on the device.

        On the CPU the slot is lent without a copy, unless the user holds many batches already.
        """
        is_cpu = self.device.type == "cpu"
        values = self._filled(values, slot, is_lent=is_cpu)
        if is_cpu:
            return values
        with stages.COPY:
            return copy_to_device(values, self.device)

    def _filled(self, values: list[Any], slot: int | None, *, is_lent: bool) -> list[Any]:
        """Return the values with the tensors of their slot, which is lent if the user does not hold many already."""
        if self._ring is None or slot is None:
            return values
        lent = self._ring.slots - self._ring.free - len(self._sent) - 1  # except the slots of `_sent` and of this batch
        return self._ring.fill(values, slot, is_lent=is_lent and lent < LENT_SLOTS)

    def _by_sample(self, values: list[Any], slot: int | None) -> list[list[Any]]:
        """Return for each field the values of the samples, from stacked values; those in the slot are views of it."""
        filled = self._filled(values, slot, is_lent=True)
        return [
            values_of_samples(value) if value is not None else samples_of_tensors(tensors)
            for value, tensors in zip(values, filled, strict=True)
        ]


def _handed_over(gpu: _Gpu, batch: FinishedBatch, copy: StartedCopy) -> FinishedBatch:
    """Return a batch for the training loop. Not part of its generator, which would keep the batch."""
    with stages.COPY:
        values = gpu.copier.finish(copy)
    gpu.pacer.batch_handed_over(copy)
    return FinishedBatch(batch.step, values, batch.replaced)
