"""A part of a batch is a task: what a worker is told, what it does, and what it sends back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import LoaderError, WdsToolsError
from wds_tools.loading.assemble import Assembler, Layout, Recipe
from wds_tools.loading.bad_samples import is_about_data
from wds_tools.loading.collate import packed
from wds_tools.loading.ring import Ring
from wds_tools.order.planner import Step


@dataclass(frozen=True, slots=True)
class Task:
    """Samples to be made.

    Attributes:
        slot: Where their images go in the ring, if there is one.
        layout: Of the images in the ring.
        start: Row of the first in that slot.
        epoch: Number of the epoch.
        positions: int64 [n], places in the canonical sequence.
        ids: int64 [n], samples.
    """

    slot: int | None
    layout: Layout | None
    start: int
    epoch: int
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayoutTask:
    """The question how images lie in a batch, answered by making one of these samples; `Task` says what they are."""

    epoch: int
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The result of a task with samples that cannot be read.

    Attributes:
        each: The values of each sample, as of a batch of one, or its error.
    """

    each: list[list[Any] | WdsToolsError]


def tasks_of(step: Step, *, slot: int | None, layout: Layout | None, epoch: int, parts: int) -> list[Task]:
    """Divide a batch into tasks for several workers."""
    edges = np.linspace(0, len(step.ids), parts + 1).astype(np.int64).tolist()
    return [
        Task(slot, layout, start, epoch, step.positions[start:stop], step.ids[start:stop])
        for start, stop in itertools.pairwise(edges)
    ]


class Job:
    """What a worker does with a task; it opens the dataset when the first one comes."""

    def __init__(self, recipe: Recipe, ring: Ring | None) -> None:
        self._recipe = recipe
        self._ring = ring
        self._assembler: Assembler | None = None

    def expect(self, task: Task | LayoutTask) -> None:
        """Start reading for a task."""
        self._ready().expect(task.ids)

    def run(self, task: Task | LayoutTask) -> list[Any] | Pieces | Layout | None:
        """Make samples: their images in the task's slot, the other fields as the result."""
        assembler = self._ready()
        about: Any = {"epoch": task.epoch, "positions": task.positions, "ids": task.ids}
        if isinstance(task, LayoutTask):
            layout: Layout | None = assembler.layout(**about)
            return layout
        out = None
        if self._ring and task.layout and task.slot is not None:
            self._ring.open(task.layout)
            out = self._ring.images(task.slot)[task.start : task.start + len(task.ids)]
        try:
            return [packed(value) for value in assembler.batch(**about, out=out)]
        except WdsToolsError as error:
            if not self._recipe.replaces or not is_about_data(error):
                raise
        each = assembler.pieces(**about, out=out)
        return Pieces(
            [piece if isinstance(piece, WdsToolsError) else [packed(value) for value in piece] for piece in each]
        )

    def close(self) -> None:
        """Log what is known at the end."""
        self._recipe.shards.log_cache_use()

    def _ready(self) -> Assembler:
        if self._assembler is None:
            self._assembler = Assembler(self._recipe)
        return self._assembler


class Inline:
    """The pool of ``num_workers=0``: a task is done when its result is asked for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tasks: dict[int, Task | LayoutTask] = {}
        self._interrupted = False
        self._next = 0

    def submit(self, task: Task | LayoutTask) -> int:
        """Take a task; return its number."""
        if self._interrupted:
            raise LoaderError("the loader was closed while a batch was being made: take a new iterator from it")
        self._next += 1
        self._tasks[self._next] = task
        return self._next

    def result(self, number: int) -> Any:
        """Do a task and return what came of it, with one thread, as a worker does.

        Pictures are too small for more: two threads took 2 to 6 times the CPU time of one, waiting for each other.
        """
        threads = torch.get_num_threads()  # the user's own
        torch.set_num_threads(1)
        try:
            return self._job.run(self._tasks.pop(number))
        finally:
            torch.set_num_threads(threads)

    def settle(self, numbers: Sequence[int], *, seconds: float) -> bool:  # noqa: ARG002 - as that of WorkerPool
        """Forget tasks that nobody needs any more."""
        for number in numbers:
            del self._tasks[number]
        return True

    def interrupt(self) -> None:
        """Refuse more tasks."""
        self._interrupted = True

    def close(self) -> None:
        """Forget what was not asked for."""
        self._tasks.clear()
        self._job.close()
