"""The running part of a loader: workers, batch slots, and copies to the device, until something fails."""

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

from wds_tools.errors import LoaderError, WdsToolsError, WorkerError
from wds_tools.images import native
from wds_tools.loading.assemble import Layout, Recipe
from wds_tools.loading.autoscale import LENT_SLOTS, Feeding
from wds_tools.loading.bad_samples import ErrorLog, fill_in
from wds_tools.loading.collate import as_tensors, joined
from wds_tools.loading.cuda import CudaCopier, move
from wds_tools.loading.ring import Ring
from wds_tools.loading.tasks import Inline, Job, LayoutTask, Pieces, Task, tasks_of
from wds_tools.loading.workers import WorkerPool
from wds_tools.order.planner import EpochPlan, Step

_SETTLE_SECONDS = 5.0  # for what an iteration that was left early has ordered; workers that take longer are replaced
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch that is being made."""

    tasks: list[Task]
    tickets: list[int]  # of the tasks
    step: Step
    slot: int | None


@dataclass(frozen=True, slots=True)
class Made:
    """A batch that has been made.

    Attributes:
        step: What it consists of.
        values: One for each field, on the device.
        replaced: bool [batch], True where another sample took the place of an unreadable one.
    """

    step: Step
    values: list[Any]
    replaced: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What `make_loader` was asked for about workers and devices; it documents it."""

    batch_size: int
    device: torch.device
    start_method: str
    stall_seconds: float


class Pipeline:
    """Makes batches. It ends with the first error: a loader then makes a new one.

    Args:
        recipe: What makes a batch out of ids.
        feeding: How many workers, parts and slots.
        options: Batch size, device, processes.
        errors: What to do about unreadable samples.

    Raises:
        LoaderError: This process may not start workers.
        OptionError: The recipe cannot be sent to workers.
        WorkerError: A worker cannot be started.
    """

    def __init__(self, recipe: Recipe, feeding: Feeding, options: PipelineOptions, errors: ErrorLog) -> None:
        self.pid = os.getpid()
        self.is_closed = False
        self._recipe = recipe
        self._feeding = feeding
        self._options = options
        self._errors = errors
        self._lock = threading.RLock()  # held while a batch is made, so that another thread may close the loader
        self._is_making = False
        self._sent: deque[_Sent] = deque()
        self._ring: Ring | None = None
        if recipe.has_slots:
            self._ring = Ring(slots=feeding.slots, rows=options.batch_size, layout=recipe.layout)
        self.pool = self._start_pool(Job(recipe, self._ring))
        self._copier: CudaCopier | None = None

    def _start_pool(self, job: Job) -> WorkerPool | Inline:
        if self._feeding.workers == 0:
            _log.debug("no workers: this process makes the batches; JPEGs are decoded by %s", native.description())
            return Inline(job)
        if multiprocessing.current_process().daemon:
            raise LoaderError(
                "this process is itself a worker, which may not start workers of its own: a loader used here, such as "
                "inside a transform, needs num_workers=0"
            )
        _log.debug(
            "starting worker processes: %d, start method %s; JPEGs are decoded by %s",
            *(self._feeding.most, self._options.start_method, native.description()),
        )
        context = multiprocessing.get_context(self._options.start_method)
        if self._options.start_method == "forkserver":  # torch is 290 MB that workers then share
            context.set_forkserver_preload(["__main__", Job.__module__])
        return WorkerPool(
            job,
            num_workers=self._feeding.most,  # all of them: a fork later would copy a process in full training
            active=self._feeding.workers,
            context=context,
            stall_seconds=self._options.stall_seconds,
        )

    def is_ready(self) -> bool:
        """Wait a little for batches that nobody needs any more; return whether the pipeline can go on."""
        with self._lock:
            try:
                tickets = [ticket for sent in self._sent for ticket in sent.tickets]
                if self.is_closed:
                    return False
                if not self.pool.settle(tickets, seconds=_SETTLE_SECONDS):
                    _log.debug("workers are busy after %.0f s with batches that nobody needs", _SETTLE_SECONDS)
                    return False
            except WorkerError as error:
                _log.warning("new workers are started: %s", error)
                return False
            while self._sent:
                self._release(self._sent.popleft().slot)
            return True

    def batches(self, plan: EpochPlan) -> Iterator[Made]:
        """Yield the batches of an epoch; on CUDA, each while the next one is being copied.

        The generator stands still inside no lock and no handler, so that it may be left at any time.
        """
        made = self._copied(plan) if self._options.device.type == "cuda" else self._handed_over(plan)
        while (batch := self._next(made)) is not None:
            yield batch

    def close(self) -> None:
        """End the workers and free the slots; callable from any thread."""
        self.pool.interrupt()  # a thread that waits for a batch leaves with an error
        with self._lock:
            self.is_closed = True
            self._sent.clear()
            if self._copier:
                self._copier.close()
            self.pool.close()

    def _next(self, made: Iterator[Made]) -> Made | None:
        """Take the next batch; whatever fails closes the pipeline."""
        with self._lock:
            if self._is_making:
                raise LoaderError("the loader is used inside its own transform: make another loader there")
            self._is_making = True
            try:
                return next(made, None)
            except BaseException:
                self.close()
                raise
            finally:
                self._is_making = False

    def _copied(self, plan: EpochPlan) -> Iterator[Made]:
        """Yield batches on CUDA, copied one ahead."""
        ahead: tuple[Made, Any] | None = None
        for made, slot in self._made(plan):
            if self._copier is None:  # after the workers have started: what they inherit is then plain memory
                self._copier = CudaCopier(self._options.device, self._ring)
            moved, done = self._copier.start(self._in_place(made.values, slot), slot)
            if ahead:
                yield self._arrived(*ahead)
            ahead = Made(made.step, moved, made.replaced), done
        if ahead:
            yield self._arrived(*ahead)

    def _arrived(self, made: Made, done: torch.cuda.Event) -> Made:
        assert self._copier is not None
        return Made(made.step, self._copier.finish(made.values, done), made.replaced)

    def _handed_over(self, plan: EpochPlan) -> Iterator[Made]:
        """Yield batches in memory, or moved to a device that is not CUDA."""
        for made, slot in self._made(plan):
            values = self._own(made.values, slot)
            if self._options.device.type != "cpu":
                values = move(values, self._options.device)
            yield Made(made.step, values, made.replaced)

    def _made(self, plan: EpochPlan) -> Iterator[tuple[Made, int | None]]:
        """Yield batches and their slots in order, keeping the workers busy ahead of them."""
        self._feeding.begin()
        steps, total = 0, len(plan)
        if total:
            self._find_layout(plan)
        for number in range(total):
            while steps < min(total, number + self._feeding.ahead):
                self._send(plan.step(steps), plan.cursor.epoch)
                steps += 1
            sent, asked = self._sent[0], time.perf_counter()
            results = [self.pool.result(ticket) for ticket in sent.tickets]
            if self._feeding.took(asked, time.perf_counter()) and isinstance(self.pool, WorkerPool):
                self.pool.active = self._feeding.workers
                _log.debug("the loop waits for batches: %d workers from now on", self._feeding.workers)
            self._sent.popleft()
            replaced = np.zeros(len(sent.step.ids), np.bool_)
            parts = [
                self._repaired(result, task, plan, replaced) if isinstance(result, Pieces) else result
                for result, task in zip(results, sent.tasks, strict=True)
            ]
            values = [as_tensors(value) for value in joined(parts)]
            if plan.tail == "mask":
                values.append(torch.from_numpy(sent.step.valid))
            yield Made(sent.step, values, replaced), sent.slot

    def _find_layout(self, plan: EpochPlan) -> None:
        """Ask a worker how images lie in a batch, where only the user's transform knows."""
        if self._ring is None or self._ring.layout:
            return
        step = plan.step(0)
        layout: Layout | None = self.pool.result(
            self.pool.submit(LayoutTask(plan.cursor.epoch, step.positions, step.ids))
        )
        if layout:
            self._ring.open(layout)
        else:
            self._ring = None
            _log.debug("transform= returns no tensors: images are pickled instead of written to shared memory")

    def _send(self, step: Step, epoch: int) -> None:
        """Give a batch to the workers."""
        slot = self._take_slot()
        layout = self._ring.layout if self._ring else None
        tasks = tasks_of(step, slot=slot, layout=layout, epoch=epoch, parts=self._feeding.parts)
        self._sent.append(_Sent(tasks, [self.pool.submit(task) for task in tasks], step, slot))

    def _repaired(self, result: Pieces, task: Task, plan: EpochPlan, replaced: NDArray[np.bool_]) -> list[Any]:
        """Replace unreadable samples, and mark them."""

        def make(row: int, sample: int) -> list[Any] | WdsToolsError:
            one = slice(row, row + 1)
            start, ids = task.start + row, np.array([sample])
            made = self.pool.result(
                self.pool.submit(Task(task.slot, task.layout, start, task.epoch, task.positions[one], ids))
            )
            return made.each[0] if isinstance(made, Pieces) else list(made)

        rows = fill_in(result.each, make, self._errors, order=plan.order, epoch=task.epoch, positions=task.positions)
        replaced[[task.start + row for row in rows]] = True
        return joined([piece for piece in result.each if isinstance(piece, list)])

    def _take_slot(self) -> int | None:
        if self._ring is None:
            return None
        if self._copier:
            self._copier.reclaim(at_least_one=not self._ring.free)
        return self._ring.take()

    def _release(self, slot: int | None) -> None:
        if self._ring and slot is not None:
            self._ring.release(slot)

    def _in_place(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with the slot's images among them."""
        if self._ring is None or slot is None:
            return values
        return [self._ring.images(slot) if value is None else value for value in values]

    def _own(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with images that belong to the user.

        The slot is lent, without a copy; a user who keeps many batches gets copies.
        """
        if self._ring is None or slot is None:
            return values
        lent = self._ring.slots - self._ring.free - len(self._sent) - 1  # neither free, nor being made, nor this
        if lent < LENT_SLOTS and self._options.device.type == "cpu":
            return [self._ring.lend(slot) if value is None else value for value in values]
        owned = [self._ring.images(slot).clone() if value is None else value for value in values]
        self._ring.release(slot)
        return owned
