"""Pool of worker processes. Failures of workers are always reported.

Each worker has its own pipe, and shares no lock or queue with other workers. So a worker that is killed at any moment
cannot block the others. A worker that dies is reported at once, with its signal. A worker that stalls is reported after
a time limit, with its stack. Workers exit when their pipe is closed, so they never outlive the process that started
them. `docs/decisions/0002-own-worker-pool.md` explains why this is not torch's DataLoader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from wds_tools import stages
from wds_tools.errors import LoaderError, OptionError, WdsToolsError, WorkerError
from wds_tools.loading.workers.memory import SharedPage
from wds_tools.loading.workers.messages import Failure, as_exception, receive_message
from wds_tools.loading.workers.worker_process import READY, TaskRunner, run_worker

CLOSED = "the loader was closed while a batch was in progress: create a new iterator with iter(loader)"
"""Message for a batch that is requested after the loader was closed."""

NO_STACK = "(no stack: the process does not react; it may be stopped or waiting for storage)"

STALL_SECONDS = 300.0
_CLOSE_SECONDS = 1.0
_MOST_SECONDS = 1e6  # of one wait: the system call takes no more milliseconds than fit into 31 bits
_STACK_BYTES = 65_536


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    stack: Connection  # receives the stack that faulthandler writes on SIGUSR1
    tasks: deque[int]
    stage: SharedPage  # its first byte is the current stage of its task
    is_ready: bool = False


class WorkerPool:
    """Runs tasks in worker processes. Only one thread at a time may use it; `interrupt` may be called by any thread.

    Args:
        runner: Runs the tasks; a copy is sent to each worker.
        num_workers: Number of worker processes.
        active: Number of workers that get tasks; all by default. The attribute may be changed at any time.
        context: multiprocessing context that starts the workers.
        stall_seconds: Longest time in seconds that a worker may send nothing while the pool waits for its result.
        tasks_per_worker: Maximum number of tasks that a worker has at a time. Further tasks wait for the first worker
            that is free, so that none waits behind a slow one.

    Raises:
        OptionError: The runner cannot be pickled, and the workers are not forked.
        WorkerError: A worker cannot be started.
    """

    def __init__(
        self,
        runner: TaskRunner,
        *,
        num_workers: int,
        context: BaseContext,
        stall_seconds: float,
        tasks_per_worker: int,
        active: int | None = None,
    ) -> None:
        self.active = num_workers if active is None else active
        self.when_idle: Callable[[], None] | None = None  # called while the pool waits, if a worker has no task
        self._stall_seconds = stall_seconds
        self._tasks_per_worker = tasks_per_worker
        self._pending: deque[tuple[int, Any]] = deque()  # tasks that no worker has yet, with their ids
        self._workers: list[_Worker] = []
        self._owner: dict[int, _Worker] = {}
        self._done: dict[int, Any] = {}
        self._next = 0
        self._awaited: int | None = None  # task whose result was requested last
        self._interrupted = False
        self._start_method = context.get_start_method()
        self._finalizer = weakref.finalize(self, _stop_workers, self._workers, os.getpid())  # also at interpreter exit
        try:
            with _named_start_errors(self._start_method):
                self._wake_receiver, self._wake_sender = context.Pipe(duplex=False)
                for index in range(num_workers):
                    self._workers.append(_start(runner, index, context))
        except BaseException:
            self.close()
            raise
        self._by_descriptor = {worker.pipe.fileno(): worker for worker in self._workers}
        self._poll = select.poll()  # made once: the loop waits several times for each batch
        for descriptor in (self._wake_receiver.fileno(), *self._by_descriptor):
            self._poll.register(descriptor, select.POLLIN)

    def submit(self, task: Any) -> int:
        """Send a task to the least busy active worker, as soon as one is free; return its id for `result`."""
        self._check()
        task_id = self._next
        self._next += 1
        self._pending.append((task_id, task))
        self._send_pending()
        return task_id

    def _send_pending(self) -> None:
        while self._pending:
            worker = min(self._workers[: self.active], key=lambda w: len(w.tasks))
            if len(worker.tasks) >= self._tasks_per_worker:
                return
            task_id, task = self._pending.popleft()
            worker.tasks.append(task_id)
            self._owner[task_id] = worker
            try:
                # Not send(): its pickler, which can also send connections, takes a fourth longer.
                worker.pipe.send_bytes(pickle.dumps((task_id, task), pickle.HIGHEST_PROTOCOL))
            except OSError:
                self._died(worker)

    def result(self, task_id: int) -> Any:
        """Wait for the result of a task and return it.

        Raises:
            WorkerError: The worker died or stalled. The pool is closed.
            LoaderError: The pool was interrupted or closed.
            Exception: The exception of the task, with the traceback of the worker as a note.
        """
        self._awaited = task_id
        if not self._wait_for(task_id, self._stall_seconds):
            self._raise_stalled(self._owner_of(task_id))
        value = self._done.pop(task_id)
        if isinstance(value, Failure):
            raise as_exception(value)
        return value

    def awaited_stage(self) -> int:
        """Return the stage of the task whose result was requested last, or `stages.IDLE`. Callable by any thread."""
        worker = self._owner.get(self._awaited) if self._awaited is not None else None
        if worker is None:
            return stages.IDLE
        return worker.stage.memory[0] if worker.is_ready else stages.START.index

    def are_done(self, task_ids: Sequence[int]) -> bool:
        """Return, without waiting, whether the results of these tasks have arrived.

        Raises:
            WorkerError: A worker has died. The pool is closed.
            LoaderError: The pool was interrupted or closed.
        """
        while not all(task_id in self._done for task_id in task_ids):
            if not self._receive_some(0.0):
                return False
        return True

    def discard(self, task_ids: Sequence[int], *, seconds: float) -> bool:
        """Wait for tasks whose results are no longer needed, and drop the results.

        Returns:
            Whether all tasks were done within ``seconds``.

        Raises:
            WorkerError: A worker has died. The pool is closed.
        """
        deadline = time.monotonic() + seconds
        unneeded = set(task_ids)
        unsent = {task_id for task_id, _ in self._pending if task_id in unneeded}
        self._pending = deque(entry for entry in self._pending if entry[0] not in unsent)
        while self._receive_some(0.0):  # also notices workers that died in the meantime
            pass
        for task_id in task_ids:
            if task_id in unsent:
                continue
            if not self._wait_for(task_id, max(0.0, deadline - time.monotonic())):
                return False
            del self._done[task_id]
        return True

    def interrupt(self) -> None:
        """Make the thread that uses the pool raise LoaderError, now or at its next call. Callable by any thread."""
        self._interrupted = True
        with contextlib.suppress(OSError):
            self._wake_sender.send_bytes(b"!")

    def close(self) -> None:
        """Stop all workers within about a second, even in the middle of a task."""
        self._interrupted = True
        self._finalizer()

    def _check(self) -> None:
        if self._interrupted:
            raise LoaderError(CLOSED)

    def _wait_for(self, task_id: int, seconds: float) -> bool:
        """Wait for a result; return False if its worker sends nothing for ``seconds`` seconds."""
        deadline = time.monotonic() + seconds
        while task_id not in self._done:
            if self.when_idle and not all(worker.tasks for worker in self._workers[: self.active]):
                self.when_idle()
            worker = self._owner_of(task_id)
            senders = self._receive_some(max(0.0, deadline - time.monotonic()))
            if worker in senders:
                deadline = time.monotonic() + seconds
            if not senders and time.monotonic() >= deadline:
                return False
        return True

    def _owner_of(self, task_id: int) -> _Worker:
        """Return the worker that has a task, or the one that has worked longest if the task is pending."""
        return self._owner.get(task_id) or min(
            (worker for worker in self._workers if worker.tasks), key=lambda worker: worker.tasks[0]
        )

    def _receive_some(self, seconds: float) -> list[_Worker]:
        """Wait for messages, and receive one from each worker that has sent one; return these workers."""
        self._check()
        with stages.WAIT:
            ready = self._poll.poll(1000 * min(seconds, _MOST_SECONDS))
        self._check()
        senders = [self._by_descriptor[descriptor] for descriptor, _ in ready if descriptor in self._by_descriptor]
        for sender in senders:
            self._receive(sender)
        return senders

    def _receive(self, worker: _Worker) -> None:
        try:
            task_id, value = receive_message(worker.pipe)
        except (EOFError, OSError):
            self._died(worker)
        if task_id == READY:
            worker.is_ready = True
            return
        worker.tasks.remove(task_id)
        del self._owner[task_id]
        self._done[task_id] = value
        self._send_pending()

    def _died(self, worker: _Worker) -> None:
        with contextlib.suppress(EOFError, OSError):
            while worker.pipe.poll():  # the message that it was ready may still be in the pipe
                worker.is_ready |= receive_message(worker.pipe)[0] == READY
        worker.process.join(_CLOSE_SECONDS)
        name, how = _name(self._workers, worker), _describe_exit(worker.process.exitcode)
        self.close()
        if not worker.is_ready:
            raise WorkerError(f"{name} {how} while it was starting{_START_HINTS.get(self._start_method, '')}")
        raise WorkerError(f"{name} {how}; the loader state before this batch is still valid: resume from it")

    def _raise_stalled(self, worker: _Worker) -> None:
        name, stack = _name(self._workers, worker), _stack_of(worker)
        self.close()
        raise WorkerError(
            f"{name} sent nothing for {self._stall_seconds:.0f} s (stall_seconds=) and was stopped. "
            f"Its stack was:\n{stack}"
        )


_MAIN_GUARD_HINT = (
    ". A worker that is not forked imports the main script: put the code that iterates over the loader under "
    '`if __name__ == "__main__":`, so that the workers do not run it too. If it is there already, the output of the '
    "worker above contains the cause"
)
_START_HINTS = {"spawn": _MAIN_GUARD_HINT, "forkserver": _MAIN_GUARD_HINT}  # start method → text for the error message
_LIMIT_HINTS = {
    errno.EMFILE: ": raise the limit of open files with `ulimit -n`, or use fewer workers",
    errno.EAGAIN: ": raise the limit of processes with `ulimit -u`, or use fewer workers",
    errno.ENOMEM: ": there is not enough memory; use fewer workers",
}  # errno → text for the error message


@contextlib.contextmanager
def _named_start_errors(start_method: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        if isinstance(error, WdsToolsError):
            raise
        hint = _LIMIT_HINTS.get(getattr(error, "errno", 0), _START_HINTS.get(start_method, ""))
        raise WorkerError(f"a worker process could not be started ({type(error).__name__} {error}){hint}") from error


def _start(runner: TaskRunner, index: int, context: BaseContext) -> _Worker:
    pipe, worker_pipe = context.Pipe(duplex=True)
    stack, worker_stack = context.Pipe(duplex=False)
    _parent_connections.update((pipe, stack))
    stage = SharedPage()
    stage.memory[0] = stages.IDLE
    process = context.Process(  # type: ignore[attr-defined]
        target=run_worker,
        args=(runner, worker_pipe, worker_stack, stage),
        name=f"wds-tools-worker-{index}",
        daemon=True,
    )
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # all of them are raised by pickle
        raise OptionError(
            f"an option cannot be pickled for the workers ({error}): with multiprocessing_context="
            f"{context.get_start_method()!r}, transform= and view= must be importable, such as a function defined with "
            "`def` at the top level of a module, not a lambda; or use multiprocessing_context='fork'"
        ) from error
    finally:
        worker_pipe.close()
        worker_stack.close()
    return _Worker(process, pipe, stack, deque(), stage)


# A forked process inherits the main process's ends of all pipes, and closes them. Otherwise, the workers would not
# notice that the main process ended or that their pool was closed.
_parent_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_inherited() -> None:
    for connection in _parent_connections:
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def _stop_workers(workers: list[_Worker], owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # this is a fork of the main process, which does not own the workers
    for worker in workers:
        worker.pipe.close()  # the worker exits when it notices this
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.stack.close()
    workers.clear()


def _name(workers: Sequence[_Worker], worker: _Worker) -> str:
    return f"worker {workers.index(worker)} of {len(workers)} (pid {worker.process.pid})"


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "closed its pipe but is still running"
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name
    hint = "; if you did not do this, the system was probably out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _stack_of(worker: _Worker) -> str:
    """Return the Python stack of a worker, or a text without it if the process does not react."""
    with contextlib.suppress(OSError):
        os.kill(worker.process.pid or 0, signal.SIGUSR1)
        if worker.stack.poll(1.0):
            stack = b""
            while worker.stack.poll(0.3):  # it is written line by line
                stack += os.read(worker.stack.fileno(), _STACK_BYTES)
            return stack.decode(errors="replace")
    return NO_STACK
