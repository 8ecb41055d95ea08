"""One batch is one task: what a worker is told, what it does, and what it sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wds_tools.assemble import Assembler, Recipe
from wds_tools.planner import Step
from wds_tools.ring import Ring


@dataclass(frozen=True, slots=True)
class Task:
    """One batch to make."""

    slot: int | None
    epoch: int
    step: Step


class Job:
    """What a worker does with a task; it opens the dataset when the first one comes."""

    def __init__(self, recipe: Recipe, ring: Ring | None) -> None:
        self._recipe = recipe
        self._ring = ring
        self._assembler: Assembler | None = None

    def expect(self, task: Task) -> None:
        """Start reading for a task."""
        self._ready().expect(task.step.ids)

    def run(self, task: Task) -> list[Any]:
        """Make a batch: its images in the task's slot, the other fields as the result."""
        out = self._ring.images(task.slot) if self._ring and task.slot is not None else None
        values = self._ready().batch(epoch=task.epoch, positions=task.step.positions, ids=task.step.ids, out=out)
        return [_as_arrays(value) for value in values]

    def _ready(self) -> Assembler:
        if self._assembler is None:
            self._assembler = Assembler(self._recipe)
        return self._assembler


def _as_arrays(value: Any) -> Any:
    """Turn tensors into arrays: torch would send each through a file descriptor of its own, which run out."""
    if isinstance(value, list):
        return [_as_arrays(item) for item in value]
    return value.numpy() if isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16 else value


def as_tensors(value: Any) -> Any:
    """Undo `_as_arrays`."""
    if isinstance(value, list):
        return [as_tensors(item) for item in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class Inline:
    """The pool of ``num_workers=0``: a task is done when its result is asked for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tasks: dict[int, Task] = {}
        self._next = 0

    def submit(self, task: Task) -> int:
        """Take a task; return its number."""
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

    def close(self) -> None:
        """Forget what was not asked for."""
        self._tasks.clear()
