"""Tasks of workers. A task is a part of a batch; its result is the values of the fields."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import WdsToolsError
from wds_tools.loading.fields.slots import SlotLayout
from wds_tools.loading.pipeline.ring import Ring
from wds_tools.loading.samples.assemble import Assembler, rows_of
from wds_tools.loading.samples.bad_samples import Unreadable, is_sample_error
from wds_tools.loading.samples.batch_padding import BatchPadding
from wds_tools.loading.samples.recipe import Recipe, Samples
from wds_tools.order.keyed_random import hashes, key_of
from wds_tools.order.planner import Step


class BatchTask(NamedTuple):
    """Samples of a batch for one worker to load.

    Attributes:
        slot: Slot of the ring for the batch; None if nothing is written to shared memory.
        layouts: What a slot holds in each variant of a batch, if that was not known when the workers were started.
        start: Row of the first sample in the slot.
        partners: int64 [n, k], ids of further samples that the images show.
        scattered: int64 [n], rows of the samples in the slot, if they are not consecutive.
        share: Which blocks the samples are of, as a part of all blocks, 0 to 1; None if they are of any blocks.
    """

    slot: int | None
    layouts: tuple[SlotLayout, ...] | None
    start: int
    epoch: int
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    partners: NDArray[np.int64]
    bucket: int | None = None
    scattered: NDArray[np.int64] | None = None
    share: float | None = None

    @property
    def rows(self) -> Sequence[int]:
        """Rows of the samples in the slot."""
        return range(self.start, self.start + len(self.ids)) if self.scattered is None else self.scattered.tolist()


@dataclass(frozen=True, slots=True)
class LayoutTask:
    """Find out what slots hold by loading one of some samples, see `Recipe.first_samples`."""

    samples: tuple[Samples, ...]


@dataclass(frozen=True, slots=True)
class SampleResults:
    """The result of a task with unreadable samples."""

    samples: list[list[Any] | Unreadable]


class TaskResult(NamedTuple):
    """The result of a task, and how long it took.

    Times are from `time.perf_counter_ns`, one clock for all processes of a machine. Of a task on another machine only
    the duration counts, see `BatchRunner.received`.

    A named tuple is pickled and unpickled in 6 us, a dataclass in 10.

    Attributes:
        value: What `BatchRunner.run` documents.
        nanoseconds: Time of each stage, in the order of `stages.NAMES`, including the start of reading for the task.
        bytes_read: Bytes of samples that were read.
        begun_ns: When the worker began the task.
        ended_ns: When it had the result.
        is_first: Whether it was the first task of the worker, which had to start before.
    """

    value: list[Any] | SampleResults | tuple[SlotLayout, ...] | None
    nanoseconds: tuple[int, ...]
    bytes_read: int
    begun_ns: int
    ended_ns: int
    is_first: bool


def split_into_tasks(
    step: Step,
    partners: NDArray[np.int64],
    *,
    slot: int | None,
    layouts: tuple[SlotLayout, ...] | None,
    epoch: int,
    parts: int,
    blocks: NDArray[np.int64] | None = None,
) -> list[BatchTask]:
    """Divide a batch into ``parts`` tasks for several workers.

    With ``blocks``, int64 [n], the block of each sample, tasks of the same share have samples of about the same blocks
    in all batches. Otherwise a task has consecutive samples.
    """
    edges = [len(step.ids) * index // parts for index in range(parts + 1)]
    parts_of = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    if blocks is None:
        return [
            BatchTask(
                slot, layouts, rows.start, epoch, step.positions[rows], step.ids[rows], partners[rows], step.bucket
            )
            for rows in parts_of
        ]
    by_block = np.argsort(hashes(_BLOCK_KEY, blocks), kind="stable")  # each part of the hashes is a part of all blocks
    tasks = []
    for index, part in enumerate(parts_of):
        rows = np.sort(by_block[part])
        sources = step.positions[rows], step.ids[rows], partners[rows]
        tasks.append(BatchTask(slot, layouts, 0, epoch, *sources, step.bucket, rows, (index + 0.5) / parts))
    return tasks


_BLOCK_KEY = key_of("blocks of tasks")


class BatchRunner:
    """Runs tasks. It opens the dataset at the first task."""

    def __init__(self, recipe: Recipe, ring: Ring | None) -> None:
        self._recipe = recipe
        self._paddings = list(map(BatchPadding, recipe.columns_by_dataset))
        self._ring = ring
        self._assembler: Assembler | None = None
        self._recorder = stages.Recorder()
        self._has_run = False

    def show_stage_in(self, shown: stages.Shown) -> None:
        """Write the index of the current stage to element 0 from now on."""
        self._recorder.shown = shown

    @property
    def stage(self) -> int:
        """The index of the current stage, `stages.IDLE` between tasks."""
        return self._recorder.shown[0]

    def read_ahead(self, task: BatchTask | LayoutTask, *, announced: bool = True) -> None:
        """Start reading the samples of a task; not remote blocks that the main process has announced."""
        if isinstance(task, BatchTask) and not (announced and self._recipe.shards.is_remote):
            with self._recorder, stages.READ:  # it waits if the queue of the disk is full
                self._get_assembler().read_ahead(np.append(task.ids, task.partners))

    def run(self, task: BatchTask | LayoutTask) -> TaskResult:
        """Run a task.

        Returns:
            For a `BatchTask` the stacked values of each field (None for values written to the slot), or
            `SampleResults` if samples are unreadable and will be replaced. For a `LayoutTask` what slots hold.
        """
        is_first, self._has_run = not self._has_run, True
        begun = perf_counter_ns()
        with self._recorder:
            value = self._run(task)
        return TaskResult(value, *self._recorder.take(), begun, perf_counter_ns(), is_first)

    def _run(self, task: BatchTask | LayoutTask) -> list[Any] | SampleResults | tuple[SlotLayout, ...] | None:
        assembler = self._get_assembler()
        if isinstance(task, LayoutTask):
            return assembler.layouts(task.samples)
        samples: Any = {"epoch": task.epoch, "positions": task.positions, "ids": task.ids, "partners": task.partners}
        samples["bucket"] = task.bucket
        out = None
        if self._ring and task.slot is not None:
            if task.layouts:
                self._ring.open(*task.layouts)
            self._ring.set_variant(task.slot, self._recipe.variant_at(task.epoch, task.bucket))
            tensors = [tensor[task.start : task.start + len(task.ids)] for tensor in self._ring.tensors(task.slot)]
            out = self._ring.layout_of(task.slot).by_column(tensors)
        # Padded values are written after the batch is complete, by `stacked`.
        columns, padding = self._recipe.columns_of(task.bucket), self._paddings[self._recipe.number_of(task.bucket)]
        direct = out and [None if item.padding else target for item, target in zip(columns, out, strict=True)]
        try:
            return padding.stacked(assembler.batch(**samples, out=direct), out)
        except WdsToolsError as error:
            if not self._recipe.replaces or not is_sample_error(error):
                raise
        results = assembler.samples_or_errors(**samples, out=direct)
        return SampleResults(
            [
                item if isinstance(item, Unreadable) else padding.stacked(item, rows_of(out, slice(i, i + 1)))
                for i, item in enumerate(results)
            ]
        )

    def memory(self, task: BatchTask | LayoutTask) -> list[memoryview]:
        """Return the memory of the slot that a task writes to, one part after the other."""
        if self._ring is None or not isinstance(task, BatchTask) or task.slot is None:
            return []
        return self._ring.memory_of_rows(task.slot, task.rows)

    def share(self, task: BatchTask | LayoutTask) -> float | None:
        """Return which blocks a task reads, as a part of all blocks; None if it is not known."""
        return task.share if isinstance(task, BatchTask) else None

    def received(self, result: TaskResult, ended_ns: int) -> TaskResult:
        """Return the result of a task on another machine as if it had ended at a time of this machine's clock."""
        return result._replace(begun_ns=ended_ns - (result.ended_ns - result.begun_ns), ended_ns=ended_ns)

    @property
    def local_files(self) -> list[Path]:
        """A file of each local folder with shards."""
        return self._recipe.shards.local_files

    def elsewhere(self) -> RemoteRunner:
        """Return what runs the same tasks on another machine."""
        return RemoteRunner(self._recipe, None if self._ring is None else self._ring.rows)

    def _get_assembler(self) -> Assembler:
        if self._assembler is None:
            self._assembler = Assembler(self._recipe)
        return self._assembler


class RemoteRunner:
    """Runs tasks on another machine, with a slot of its own, which is sent to the host. It is pickled to that machine.

    Args:
        rows: Samples per slot; None if there are no slots.
    """

    def __init__(self, recipe: Recipe, rows: int | None) -> None:
        self._recipe, self._rows = recipe, rows

    @cached_property
    def _runner(self) -> BatchRunner:
        ring = None if self._rows is None else Ring(slots=1, rows=self._rows, layouts=self._recipe.layouts or ())
        return BatchRunner(self._recipe, ring)

    def show_stage_in(self, shown: stages.Shown) -> None:
        """Write the index of the current stage to element 0 from now on."""
        self._runner.show_stage_in(shown)

    def read_ahead(self, task: BatchTask | LayoutTask) -> None:
        """Start reading the samples of a task, also remote blocks."""
        self._runner.read_ahead(task, announced=False)

    def run(self, task: BatchTask | LayoutTask) -> TaskResult:
        """Run a task, see `BatchRunner.run`."""
        return self._runner.run(_in_own_slot(task))

    def memory(self, task: BatchTask | LayoutTask) -> list[memoryview]:
        """Return the memory of the slot that the last task has written to."""
        return self._runner.memory(_in_own_slot(task))


def _in_own_slot(task: BatchTask | LayoutTask) -> BatchTask | LayoutTask:
    if isinstance(task, LayoutTask):
        return task
    return task._replace(slot=None if task.slot is None else 0, start=0, scattered=None)
