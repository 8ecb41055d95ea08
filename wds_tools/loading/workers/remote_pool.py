"""A pool whose workers are on other machines."""

from __future__ import annotations

import atexit
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from wds_tools import stages
from wds_tools.errors import LoaderError, WorkerError
from wds_tools.loading.workers.messages import Failure, as_exception
from wds_tools.loading.workers.pool import CLOSED, NO_STACK
from wds_tools.loading.workers.proof import TOKEN_BYTES
from wds_tools.loading.workers.remote_hub import HostRunner, Hub, Placement

_STACK_SECONDS = 2.0  # in which a stalled worker sends its stack


class RemotePool:
    """Runs tasks on other machines, with the methods of `WorkerPool`. Tasks of a worker that is lost are repeated.

    Args:
        stall_seconds: How long there may be no worker while a result is awaited, and how long the worker that has the
            task may send nothing.
    """

    def __init__(
        self, runner: HostRunner, placement: Placement, *, stall_seconds: float, tasks_per_worker: int
    ) -> None:
        self.when_idle: Callable[[], None] | None = None  # called while the pool waits, if a worker has no task
        self._placement = placement
        self._stall_seconds = stall_seconds
        self._next = 0
        self._is_interrupted = False
        self._hub = Hub(runner, placement, secrets.token_bytes(TOKEN_BYTES), tasks_per_worker)
        self._finalizer = weakref.finalize(self, self._hub.stop)
        atexit.register(self._finalizer)  # now, so that it is called before Ray ends
        try:
            self._hub.start()
        except BaseException:
            self.close()
            raise

    def submit(self, task: Any) -> int:
        """Add a task; return its id for `result`."""
        self._check()
        self._next += 1
        with self._hub.condition:
            self._hub.add(self._next, task)
        return self._next

    def result(self, task_id: int) -> Any:
        """Wait for the result of a task and return it.

        Raises:
            WorkerError: There is no worker, the worker stalled, or several workers were lost with the task. The pool is
                closed.
            LoaderError: The pool was interrupted or closed.
            Exception: The exception of the task, with the traceback of the worker as a note.
        """
        if not self._wait_for(task_id, None):
            reason = self._why_none(task_id)
            self.close()
            raise WorkerError(reason)
        with self._hub.condition:
            value = self._hub.done.pop(task_id)
        if isinstance(value, Failure):
            raise as_exception(value)
        return value

    def awaited_stage(self) -> int:
        """Return `stages.START` while no worker is ready, otherwise `stages.IDLE`. Callable by any thread."""
        return stages.IDLE if self._hub.workers else stages.START.index

    def are_done(self, task_ids: Sequence[int]) -> bool:
        """Return, without waiting, whether the results of these tasks have arrived; raises as `result` does."""
        self._check()
        return all(task_id in self._hub.done for task_id in task_ids)

    def discard(self, task_ids: Sequence[int], *, seconds: float) -> bool:
        """Wait for tasks whose results are no longer needed, and drop the results; return whether all were done."""
        self._check()
        deadline = time.monotonic() + seconds
        with self._hub.condition:
            dropped = self._hub.drop_pending(task_ids)
        for task_id in task_ids:
            if task_id in dropped:
                continue
            if not self._wait_for(task_id, max(0.0, deadline - time.monotonic())):
                return False
            with self._hub.condition:
                del self._hub.done[task_id]
        return True

    def interrupt(self) -> None:
        """Make the thread that uses the pool raise LoaderError, now or at its next call. Callable by any thread."""
        self._is_interrupted = True
        with self._hub.condition:
            self._hub.condition.notify_all()

    def close(self) -> None:
        """Disconnect and stop all workers."""
        self._is_interrupted = True
        atexit.unregister(self._finalizer)
        self._finalizer()

    def _check(self) -> None:
        if self._is_interrupted:
            raise LoaderError(CLOSED)
        if (error := self._hub.error) is not None:
            self.close()
            raise error

    def _wait_for(self, task_id: int, seconds: float | None) -> bool:
        """Wait for a result; return False after ``seconds``, or if None, when nothing was heard for too long."""
        hub, began = self._hub, time.monotonic()
        while task_id not in hub.done:
            self._check()
            if self.when_idle and not all(worker.tasks for worker in list(hub.workers)):
                self.when_idle()
            with hub.condition, stages.WAIT:
                since = began if seconds is not None else max(began, self._heard_at(task_id))
                left = since + (self._stall_seconds if seconds is None else seconds) - time.monotonic()
                if task_id not in hub.done:
                    if left <= 0:
                        return False
                    if hub.error is None and not self._is_interrupted:
                        hub.condition.wait(min(left, threading.TIMEOUT_MAX))
        return True

    def _heard_at(self, task_id: int) -> float:
        """Return when something was heard that means that a task is worked on, or that a worker may get it."""
        if (owner := self._hub.owner(task_id)) is not None:
            return owner.heard_at
        return max((worker.heard_at for worker in self._hub.workers), default=self._hub.alone_since)

    def _why_none(self, task_id: int) -> str:
        with self._hub.condition:
            owner = self._hub.owner(task_id)
            asked = owner or min(self._hub.workers, key=lambda worker: worker.heard_at, default=None)
        limit = f"for {self._stall_seconds:.0f} s (stall_seconds=)"
        if asked is None:
            return f"there was no worker {limit}: {self._placement.missing()}"
        stack = self._hub.stack_of(asked, _STACK_SECONDS) or NO_STACK
        silent = f"{owner or 'every worker'} sent nothing {limit}; all workers were stopped"
        return f"{silent}. The stack of {asked} was:\n{stack}"
