"""The running part of a loader: workers, batch slots, and copies to the device."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import LoaderError, WdsToolsError, WorkerError
from wds_tools.images import native
from wds_tools.loading.assemble import ImageSpec, Recipe
from wds_tools.loading.autoscale import LENT_SLOTS, Autoscaler
from wds_tools.loading.bad_samples import ErrorLog, replace_unreadable
from wds_tools.loading.collate import as_tensors, join_parts
from wds_tools.loading.cuda import CudaCopier, copy_to_device
from wds_tools.loading.ring import Ring
from wds_tools.loading.statistics import Meter
from wds_tools.loading.tasks import (
    BatchRunner,
    BatchTask,
    ImageSpecTask,
    InlinePool,
    SampleResults,
    TaskResult,
    split_into_tasks,
)
from wds_tools.loading.workers import WorkerPool
from wds_tools.order.planner import EpochPlan, Step
from wds_tools.reading.read_ahead import ReadAhead
from wds_tools.reading.reader import Reader

_DRAIN_SECONDS = 5.0  # to finish the batches of an iteration that was left early; slower workers are replaced
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that workers are loading."""

    tasks: list[BatchTask]
    task_numbers: list[int]  # of the tasks in the pool
    step: Step
    slot: int | None


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch that is ready.

    Attributes:
        step: The samples of the batch, and their positions.
        values: One value per field, on the device.
        replaced: bool [batch], True for samples that were replaced because they are unreadable.
    """

    step: Step
    values: list[Any]
    replaced: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of `make_loader` about workers and devices. They are documented there."""

    batch_size: int
    device: torch.device
    start_method: str
    stall_seconds: float
    read_ahead_bytes: int


class Pipeline:
    """Loads batches with workers. It closes at the first error; a loader then creates a new pipeline.

    Args:
        recipe: Options that determine the content of a batch.
        autoscaler: Number of workers, of tasks per batch, and of slots.
        options: Batch size, device, and start method of the workers.
        errors: Log of the replaced samples.
        meter: Measures what the training loop waits for.

    Raises:
        LoaderError: This process is itself a worker, which cannot start workers.
        OptionError: The recipe cannot be pickled for the workers.
        WorkerError: A worker cannot be started.
    """

    def __init__(
        self, recipe: Recipe, autoscaler: Autoscaler, options: PipelineOptions, errors: ErrorLog, meter: Meter
    ) -> None:
        self.pid = os.getpid()
        self.is_closed = False
        self._recipe = recipe
        self._autoscaler = autoscaler
        self._options = options
        self._errors = errors
        self._meter = meter
        self._lock = threading.RLock()  # held while the next batch is awaited, so that another thread may call close()
        self._is_in_next = False
        self._sent: deque[_PendingBatch] = deque()
        self._ring: Ring | None = None
        if recipe.has_slots:
            self._ring = Ring(slots=autoscaler.slots, rows=options.batch_size, image_spec=recipe.image_spec)
        self.pool = self._start_pool(BatchRunner(recipe, self._ring))
        self._read_ahead = ReadAhead(Reader(recipe.shards, block=recipe.block).reopened(), options.read_ahead_bytes)
        self._copier: CudaCopier | None = None

    def _start_pool(self, runner: BatchRunner) -> WorkerPool | InlinePool:
        if self._autoscaler.workers == 0:
            _log.debug("no workers: this process makes the batches; JPEGs are decoded by %s", native.description())
            return InlinePool(runner)
        if multiprocessing.current_process().daemon:
            raise LoaderError(
                "this process is itself a worker, which cannot start its own workers: a loader that is used "
                "here, such as inside a transform, needs num_workers=0"
            )
        _log.debug(
            "starting worker processes: %d, start method %s; JPEGs are decoded by %s",
            *(self._autoscaler.max_workers, self._options.start_method, native.description()),
        )
        context = multiprocessing.get_context(self._options.start_method)
        if self._options.start_method == "forkserver":  # the workers then share torch, which takes 290 MB
            context.set_forkserver_preload(["__main__", BatchRunner.__module__])
        return WorkerPool(
            runner,
            num_workers=self._autoscaler.max_workers,  # all now: it is best to fork before training starts
            active=self._autoscaler.workers,
            context=context,
            stall_seconds=self._options.stall_seconds,
        )

    def drain(self) -> bool:
        """Drop the batches that an earlier iteration left; return whether the pipeline can be used again."""
        with self._lock:
            self._read_ahead.stop()
            try:
                task_numbers = [task_number for sent in self._sent for task_number in sent.task_numbers]
                if self.is_closed:
                    return False
                if not self.pool.discard(task_numbers, seconds=_DRAIN_SECONDS):
                    _log.debug("workers are busy after %.0f s with batches that nobody needs", _DRAIN_SECONDS)
                    return False
            except WorkerError as error:
                _log.warning("the workers are restarted: %s", error)
                return False
            while self._sent:
                self._release(self._sent.popleft().slot)
            return True

    def batches(self, plan: EpochPlan) -> Iterator[FinishedBatch]:
        """Yield the batches of an epoch; on CUDA, each one while the next one is copied.

        The generator never yields inside a lock or an exception handler, so it may be abandoned at any time.
        """
        batches = self._copy_to_cuda(plan) if self._options.device.type == "cuda" else self._copy_to_user(plan)
        while (batch := self._next(batches)) is not None:
            yield batch

    def close(self) -> None:
        """Stop the workers and free the slots; callable from any thread."""
        self.pool.interrupt()  # a thread that waits for a batch gets a LoaderError
        with self._lock:
            if not self.is_closed:
                self._read_ahead.log_use()
            self.is_closed = True
            self._read_ahead.stop()
            self._sent.clear()
            if self._copier:
                self._copier.close()
            self.pool.close()

    def _next(self, batches: Iterator[FinishedBatch]) -> FinishedBatch | None:
        """Return the next batch, or None at the end. Any exception closes the pipeline."""
        with self._lock:
            if self._is_in_next:
                raise LoaderError("the loader is used inside its own transform: create another loader there")
            self._is_in_next = True
            try:
                return next(batches, None)
            except BaseException:
                self.close()
                raise
            finally:
                self._is_in_next = False

    def _copy_to_cuda(self, plan: EpochPlan) -> Iterator[FinishedBatch]:
        """Yield batches on CUDA. The copy of the next batch is started before a batch is yielded."""
        ahead: tuple[FinishedBatch, torch.cuda.Event] | None = None
        for batch, slot in self._load(plan):
            if self._copier is None:  # only after the workers were started, so that they do not inherit pinned memory
                with stages.START:
                    self._copier = CudaCopier(self._options.device, self._ring)
            with stages.COPY:
                copies, done = self._copier.start(self._with_slot_images(batch.values, slot), slot)
            if ahead:
                yield self._finish_copy(*ahead)
            ahead = FinishedBatch(batch.step, copies, batch.replaced), done
        if ahead:
            yield self._finish_copy(*ahead)

    def _finish_copy(self, batch: FinishedBatch, done: torch.cuda.Event) -> FinishedBatch:
        assert self._copier is not None
        with stages.COPY:
            return FinishedBatch(batch.step, self._copier.finish(batch.values, done), batch.replaced)

    def _copy_to_user(self, plan: EpochPlan) -> Iterator[FinishedBatch]:
        """Yield batches in CPU memory, or on a device other than CUDA."""
        for batch, slot in self._load(plan):
            values = self._with_lent_images(batch.values, slot)
            if self._options.device.type != "cpu":
                with stages.COPY:
                    values = copy_to_device(values, self._options.device)
            yield FinishedBatch(batch.step, values, batch.replaced)

    def _load(self, plan: EpochPlan) -> Iterator[tuple[FinishedBatch, int | None]]:
        """Yield batches and their slots in order, while the workers load the following batches.

        Images in a slot are None in the values.
        """
        self._autoscaler.begin_epoch()
        sent_steps, total = 0, len(plan)
        if total:
            with stages.READ:
                self._read_ahead.begin(plan, range(total))
            self._find_image_spec(plan)
        for number in range(total):
            self._read_ahead.advance(number)
            while sent_steps < min(total, number + self._autoscaler.in_progress):
                self._send(plan.step(sent_steps), plan.cursor.epoch, parts=self._parts(sent_steps))
                sent_steps += 1
            sent, requested = self._sent[0], time.perf_counter()
            self._meter.request(sum(len(batch.tasks) for batch in self._sent))
            results = [self._result(task_number) for task_number in sent.task_numbers]
            self._meter.batch_is_complete()
            if self._autoscaler.add_batch(requested, time.perf_counter()) and isinstance(self.pool, WorkerPool):
                self.pool.active = self._autoscaler.workers
                _log.debug("the loop waits for batches: %d workers from now on", self._autoscaler.workers)
            self._sent.popleft()
            replaced = np.zeros(len(sent.step.ids), np.bool_)
            parts = [
                self._replace_unreadable(result, task, plan, replaced) if isinstance(result, SampleResults) else result
                for result, task in zip(results, sent.tasks, strict=True)
            ]
            values = [as_tensors(value) for value in join_parts(parts)]
            if plan.tail == "mask":
                values.append(torch.from_numpy(sent.step.valid))
            yield FinishedBatch(sent.step, values, replaced), sent.slot

    def _result(self, task_number: int) -> Any:
        """Wait for the result of a task and return its value."""
        before = self._meter.waited_for_worker()
        result: TaskResult = self.pool.result(task_number)
        self._meter.add_result(result, self._meter.waited_for_worker() - before)
        return result.value

    def _find_image_spec(self, plan: EpochPlan) -> None:
        """Let a worker find the shape and dtype of images, if they depend on the user's transform."""
        if self._ring is None or self._ring.image_spec:
            return
        step = plan.step(0)
        image_spec: ImageSpec | None = self._result(
            self.pool.submit(ImageSpecTask(plan.cursor.epoch, step.positions, step.ids))
        )
        if image_spec:
            self._ring.open(image_spec)
        else:
            self._ring = None
            _log.debug("transform= returns no tensors: images are pickled instead of written to shared memory")

    def _parts(self, number: int) -> int:
        """Return the number of tasks for a step. All workers share the first one, so that it is ready early."""
        first = min(self._autoscaler.workers, self._options.batch_size)
        return max(1, first) if number == 0 else self._autoscaler.parts

    def _send(self, step: Step, epoch: int, parts: int) -> None:
        """Send the tasks of a batch to the workers."""
        slot = self._take_slot()
        image_spec = self._ring.image_spec if self._ring else None
        tasks = split_into_tasks(step, slot=slot, image_spec=image_spec, epoch=epoch, parts=parts)
        self._sent.append(_PendingBatch(tasks, [self.pool.submit(task) for task in tasks], step, slot))

    def _replace_unreadable(
        self, result: SampleResults, task: BatchTask, plan: EpochPlan, replaced: NDArray[np.bool_]
    ) -> list[Any]:
        """Replace unreadable samples, set their rows of ``replaced``, and return the values of each field."""

        def load(row: int, sample: int) -> list[Any] | WdsToolsError:
            one = slice(row, row + 1)
            start, ids = task.start + row, np.array([sample])
            substitute = BatchTask(task.slot, task.image_spec, start, task.epoch, task.positions[one], ids)
            values = self._result(self.pool.submit(substitute))
            return values.samples[0] if isinstance(values, SampleResults) else list(values)

        samples = result.samples
        rows = replace_unreadable(
            samples, load, self._errors, order=plan.order, epoch=task.epoch, positions=task.positions
        )
        replaced[[task.start + row for row in rows]] = True
        return join_parts([values for values in samples if isinstance(values, list)])

    def _take_slot(self) -> int | None:
        if self._ring is None:
            return None
        if self._copier:
            with stages.COPY:
                self._copier.release_copied(at_least_one=not self._ring.free)
        return self._ring.take()

    def _release(self, slot: int | None) -> None:
        if self._ring and slot is not None:
            self._ring.release(slot)

    def _with_slot_images(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with the images of the slot instead of None."""
        if self._ring is None or slot is None:
            return values
        return [self._ring.images(slot) if value is None else value for value in values]

    def _with_lent_images(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with images that the user may keep.

        The slot is lent without a copy, unless the user holds many batches already.
        """
        if self._ring is None or slot is None:
            return values
        lent = self._ring.slots - self._ring.free - len(self._sent) - 1  # used slots, except of `_sent` and this batch
        if lent < LENT_SLOTS and self._options.device.type == "cpu":
            return [self._ring.lend(slot) if value is None else value for value in values]
        copied = [self._ring.images(slot).clone() if value is None else value for value in values]
        self._ring.release(slot)
        return copied
