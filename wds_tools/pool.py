"""Worker processes: tasks go out, results come back in order, and no process dies in silence.

Each worker has one pipe of its own and shares no lock or queue with another, so that a worker killed at any moment
cannot block the rest. A worker that dies is reported with its signal at once, one that stalls after a bounded time,
with its stack; and workers end when their pipe does, so they never outlive the process that made them.
Why not torch's DataLoader: `docs/decisions/0002-own-worker-pool.md`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from wds_tools.errors import WorkerError

STALL_SECONDS = 300.0
_CLOSE_SECONDS = 1.0
_STACK_BYTES = 65_536


class Job(Protocol):
    """What a worker does. It is copied to each worker before the first task."""

    def expect(self, task: Any) -> None:
        """A task that will come up soon: reading for it may start."""

    def run(self, task: Any) -> Any:
        """Do a task; the result is pickled."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception on its way to the main process."""

    error: BaseException | None  # None if it cannot be pickled
    text: str


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    stack: Connection  # where faulthandler writes when it is asked to
    tasks: deque[int]


class WorkerPool:
    """Runs tasks in processes.

    Args:
        job: What to do.
        num_workers: Number of processes.
        active: How many of them get tasks; the attribute may be changed at any time. The others have done nothing yet.
        context: How to start them.
        stall_seconds: A worker that is silent for so long while its result is waited for is reported.
    """

    def __init__(
        self, job: Job, *, num_workers: int, context: BaseContext, stall_seconds: float, active: int | None = None
    ) -> None:
        self.active = num_workers if active is None else active
        self._stall_seconds = stall_seconds
        self._workers: list[_Worker] = []
        self._owner: dict[int, _Worker] = {}
        self._done: dict[int, Any] = {}
        self._next = 0
        self._finalizer = weakref.finalize(self, _end, self._workers, os.getpid())  # also at interpreter exit
        for number in range(num_workers):
            self._workers.append(_start(job, number, context))

    def submit(self, task: Any) -> int:
        """Send a task to the least busy active worker; return its number for `result`."""
        number = self._next
        self._next += 1
        worker = min(self._workers[: self.active], key=lambda w: len(w.tasks))
        worker.tasks.append(number)
        self._owner[number] = worker
        try:
            worker.pipe.send((number, task))
        except OSError:
            self._died(worker)
        return number

    def result(self, number: int) -> Any:
        """Wait for a task's result.

        Raises:
            WorkerError: The worker died or stalled. The pool is closed.
            Exception: Whatever the task raised, with the worker's traceback as a note.
        """
        patience = time.monotonic() + self._stall_seconds
        while number not in self._done:
            worker = self._owner[number]
            ready = wait([w.pipe for w in self._workers], timeout=max(0.0, patience - time.monotonic()))
            for pipe in ready:
                sender = next(w for w in self._workers if w.pipe is pipe)
                self._receive(sender)
                if sender is worker:
                    patience = time.monotonic() + self._stall_seconds
            if not ready and time.monotonic() >= patience:
                self._stalled(worker)
        value = self._done.pop(number)
        if isinstance(value, _Failure):
            raise _as_exception(value)
        return value

    def close(self) -> None:
        """End all workers, within about a second, whatever they are doing."""
        self._finalizer()

    def _receive(self, worker: _Worker) -> None:
        try:
            number, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._died(worker)
        worker.tasks.remove(number)
        del self._owner[number]
        self._done[number] = value

    def _died(self, worker: _Worker) -> None:
        worker.process.join(_CLOSE_SECONDS)
        name, how = _name(self._workers, worker), _ending(worker.process.exitcode)
        self.close()
        raise WorkerError(f"{name} {how}; the state before this batch is still good: start again from it")

    def _stalled(self, worker: _Worker) -> None:
        name, stack = _name(self._workers, worker), _stack_of(worker)
        self.close()
        raise WorkerError(
            f"{name} has been silent for {self._stall_seconds:.0f} s (stall_seconds=); it was stopped. "
            f"Its stack was:\n{stack}"
        )


def _start(job: Job, number: int, context: BaseContext) -> _Worker:
    ours, theirs = context.Pipe(duplex=True)
    stack, stack_out = context.Pipe(duplex=False)
    _our_ends.update((ours, stack))
    process = context.Process(  # type: ignore[attr-defined]
        target=_work, args=(job, theirs, stack_out), name=f"wds-tools-worker-{number}", daemon=True
    )
    process.start()
    theirs.close()
    stack_out.close()
    return _Worker(process, ours, stack, deque())


# A forked process inherits our ends of all pipes. Unless it closes them, workers would not see the end of the main
# process, nor that their pool was closed.
_our_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_inherited() -> None:
    for connection in _our_ends:
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def _end(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the main process does not own its workers
    for worker in workers:
        worker.pipe.close()  # a worker ends when it sees this
    patience = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, patience - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.stack.close()
    workers.clear()


def _name(workers: Sequence[_Worker], worker: _Worker) -> str:
    return f"worker {workers.index(worker)} of {len(workers)} (pid {worker.process.pid})"


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its pipe but goes on running"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    name = signal.Signals(-code).name
    hint = "; if you did not do that, the system was probably out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _stack_of(worker: _Worker) -> str:
    """Ask a worker for its Python stack; one that is stopped altogether cannot answer."""
    with contextlib.suppress(OSError):
        os.kill(worker.process.pid or 0, signal.SIGUSR1)
        if worker.stack.poll(1.0):
            time.sleep(0.1)  # it is written line by line
            return os.read(worker.stack.fileno(), _STACK_BYTES).decode(errors="replace")
    return "(none: the process does not react, it may be stopped or waiting for storage)"


def _as_exception(failure: _Failure) -> BaseException:
    if failure.error is None:
        return WorkerError(f"a worker failed with an exception that cannot be passed on:\n{failure.text}")
    failure.error.add_note(f"raised in a worker:\n{failure.text}")
    return failure.error


def _work(job: Job, pipe: Connection, stack: Connection) -> None:
    """Body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends us
    faulthandler.register(signal.SIGUSR1, file=stack.fileno(), all_threads=False)
    torch.set_num_threads(1)  # one worker, one core; OpenMP's threads do not survive a fork either
    tasks: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    waiting: deque[tuple[int, Any]] = deque()
    while True:
        while not waiting or not tasks.empty():
            number, task = tasks.get()
            with contextlib.suppress(Exception):  # run() meets the same trouble, and reports it
                job.expect(task)
            waiting.append((number, task))
        number, task = waiting.popleft()
        _answer(pipe, number, _run(job, task))


def _listen(pipe: Connection, tasks: queue.SimpleQueue[tuple[int, Any]]) -> None:
    """Take tasks as they come, so that the main process never waits to send one, and end with it."""
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)  # even if the job hangs


def _run(job: Job, task: Any) -> Any:
    try:
        return job.run(task)
    except Exception as error:  # every exception is the user's to see
        return _Failure(error, traceback.format_exc())


def _answer(pipe: Connection, number: int, value: Any) -> None:
    try:
        pipe.send((number, value))
    except OSError:
        os._exit(0)
    except Exception:  # not to be pickled: tell at least what it was
        text = value.text if isinstance(value, _Failure) else traceback.format_exc()
        pipe.send((number, _Failure(None, text)))
