"""The pools that run tasks: worker processes, workers on other machines, or this process."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from wds_tools import stages
from wds_tools.errors import LoaderError
from wds_tools.images import native
from wds_tools.loading.pipeline.autoscale import Autoscaler
from wds_tools.loading.pipeline.tasks import BatchRunner, BatchTask, LayoutTask, TaskResult
from wds_tools.loading.workers.pool import CLOSED, WorkerPool
from wds_tools.loading.workers.ray_workers import RayWorkers

if TYPE_CHECKING:
    from wds_tools.loading.workers.remote_pool import RemotePool

_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of `make_loader` about workers and devices. They are documented there."""

    batch_size: int
    device: torch.device
    device_prefetch: int
    start_method: str
    stall_seconds: float
    read_ahead_bytes: int
    elsewhere: RayWorkers | None = None


def start_pool(
    runner: BatchRunner, autoscaler: Autoscaler, options: PipelineOptions
) -> WorkerPool | RemotePool | InlinePool:
    """Start the workers, or return the pool of this process if there are none."""
    if autoscaler.workers == 0:
        _log.debug("no workers: this process makes the batches; JPEGs are decoded by %s", native.description())
        return InlinePool(runner)
    if options.elsewhere is not None:
        _log.debug("starting %s; JPEGs are decoded by %s", options.elsewhere, native.description())
        # Other loaders do not need these modules.
        from wds_tools.loading.workers.ray_placement import RayPlacement  # noqa: PLC0415
        from wds_tools.loading.workers.remote_pool import RemotePool  # noqa: PLC0415

        placement = RayPlacement(options.elsewhere, runner.elsewhere(), runner.local_files)
        return RemotePool(
            runner, placement, stall_seconds=options.stall_seconds, tasks_per_worker=autoscaler.tasks_per_worker
        )
    if multiprocessing.current_process().daemon:
        raise LoaderError(
            "this process is itself a worker, which cannot start its own workers: a loader that is used "
            "here, such as inside a transform, needs num_workers=0"
        )
    _log.debug(
        "starting worker processes: %d, start method %s; JPEGs are decoded by %s",
        *(autoscaler.max_workers, options.start_method, native.description()),
    )
    context = multiprocessing.get_context(options.start_method)
    if options.start_method == "forkserver":  # the workers then share torch, which takes 290 MB
        context.set_forkserver_preload(["__main__", BatchRunner.__module__])
    return WorkerPool(
        runner,
        tasks_per_worker=autoscaler.tasks_per_worker,
        num_workers=autoscaler.max_workers,  # all now: it is best to fork before training starts
        active=autoscaler.workers,
        context=context,
        stall_seconds=options.stall_seconds,
    )


class InlinePool:
    """The pool of ``num_workers=0``: it runs a task in this process when its result is requested."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner
        self._tasks: dict[int, BatchTask | LayoutTask] = {}
        self._interrupted = False
        self._next = 0

    def submit(self, task: BatchTask | LayoutTask) -> int:
        """Add a task; return its number for `result`."""
        if self._interrupted:
            raise LoaderError(CLOSED)
        self._next += 1
        self._tasks[self._next] = task
        return self._next

    def result(self, number: int) -> TaskResult:
        """Run a task and return its result. torch uses one thread, as in a worker.

        Images are too small for more: two threads took 2 to 6 times the CPU time of one, waiting for each other.
        """
        threads = torch.get_num_threads()  # of the user; restored below
        torch.set_num_threads(1)
        try:
            with stages.WAIT, torch.device("cpu"):  # not on the user's default device, as in a worker
                return self._runner.run(self._tasks.pop(number))
        finally:
            torch.set_num_threads(threads)

    def awaited_stage(self) -> int:
        """Return the stage of the task that runs. Callable by any thread."""
        return self._runner.stage

    def are_done(self, numbers: Sequence[int]) -> bool:
        """Return whether `result` returns at once for these tasks; never, as it runs them."""
        return not numbers

    def discard(self, numbers: Sequence[int], *, seconds: float) -> bool:  # noqa: ARG002 - as in WorkerPool
        """Remove tasks whose results are no longer needed."""
        for number in numbers:
            del self._tasks[number]
        return True

    def interrupt(self) -> None:
        """Make `submit` raise LoaderError from now on."""
        self._interrupted = True

    def close(self) -> None:
        """Remove all tasks."""
        self._tasks.clear()
