"""Worker processes: tasks go out, results come back in order, and no process dies in silence.

Each worker has one pipe of its own and shares no lock or queue with another, so that a worker killed at any moment
cannot block the rest. A worker that dies is reported with its signal at once, one that stalls after a bounded time,
with its stack; and workers end when their pipe does, so they never outlive the process that made them.
Why not torch's DataLoader: `docs/decisions/0002-own-worker-pool.md`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from wds_tools.errors import LoaderError, OptionError, WorkerError
from wds_tools.loading.worker_process import READY, Failure, Job, read_message, work

STALL_SECONDS = 300.0
_CLOSE_SECONDS = 1.0
_STACK_BYTES = 65_536


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    stack: Connection  # where faulthandler writes when it is asked to
    tasks: deque[int]
    is_ready: bool = False


class WorkerPool:
    """Runs tasks in processes. One thread at a time may use it; `interrupt` may be called from any.

    Args:
        job: What to do.
        num_workers: Number of processes.
        active: How many of them get tasks; the attribute may be changed at any time. The others have done nothing yet.
        context: How to start them.
        stall_seconds: A worker that is silent for so long while its result is waited for is reported.

    Raises:
        OptionError: The job cannot be sent to a process that is not forked.
        WorkerError: A process cannot be started.
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
        self._interrupted = False
        self._wakes, self._wake = context.Pipe(duplex=False)
        self._start_method = context.get_start_method()
        self._finalizer = weakref.finalize(self, _end, self._workers, os.getpid())  # also at interpreter exit
        try:
            for number in range(num_workers):
                self._workers.append(_start(job, number, context))
        except BaseException:
            self.close()
            raise

    def submit(self, task: Any) -> int:
        """Send a task to the least busy active worker; return its number for `result`."""
        self._check()
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
            LoaderError: The pool was interrupted or closed.
            Exception: Whatever the task raised, with the worker's traceback as a note.
        """
        if not self._arrives(number, self._stall_seconds):
            self._stalled(self._owner[number])
        value = self._done.pop(number)
        if isinstance(value, Failure):
            raise _as_exception(value)
        return value

    def settle(self, numbers: Sequence[int], *, seconds: float) -> bool:
        """Wait until tasks are done that nobody needs any more; return whether all are, and all workers alive.

        Raises:
            WorkerError: A worker has died. The pool is closed.
        """
        patience = time.monotonic() + seconds
        while self._receive_some(0.0):  # of those that died in the meantime
            pass
        for number in numbers:
            if not self._arrives(number, max(0.0, patience - time.monotonic())):
                return False
            del self._done[number]
        return True

    def interrupt(self) -> None:
        """Make the thread that waits for a result, or asks for one later, raise LoaderError; callable by any thread."""
        self._interrupted = True
        with contextlib.suppress(OSError):
            self._wake.send_bytes(b"!")

    def close(self) -> None:
        """End all workers, within about a second, whatever they are doing."""
        self._interrupted = True
        self._finalizer()

    def _check(self) -> None:
        if self._interrupted:
            raise LoaderError("the loader was closed while a batch was being made: take a new iterator from it")

    def _arrives(self, number: int, seconds: float) -> bool:
        """Wait for a result; return False if its worker is silent for so long."""
        patience = time.monotonic() + seconds
        while number not in self._done:
            worker = self._owner[number]
            senders = self._receive_some(max(0.0, patience - time.monotonic()))
            if worker in senders:
                patience = time.monotonic() + seconds
            if not senders and time.monotonic() >= patience:
                return False
        return True

    def _receive_some(self, seconds: float) -> list[_Worker]:
        """Wait for messages, and take one from each worker that has one."""
        self._check()
        ready = wait([self._wakes, *(w.pipe for w in self._workers)], timeout=seconds)
        self._check()
        senders = [worker for worker in self._workers if worker.pipe in ready]
        for sender in senders:
            self._receive(sender)
        return senders

    def _receive(self, worker: _Worker) -> None:
        try:
            number, value = read_message(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            self._died(worker)
        if number == READY:
            worker.is_ready = True
            return
        worker.tasks.remove(number)
        del self._owner[number]
        self._done[number] = value

    def _died(self, worker: _Worker) -> None:
        with contextlib.suppress(EOFError, OSError):
            while worker.pipe.poll():  # it may have told that it was ready
                worker.is_ready |= read_message(worker.pipe.recv_bytes())[0] == READY
        worker.process.join(_CLOSE_SECONDS)
        name, how = _name(self._workers, worker), _ending(worker.process.exitcode)
        self.close()
        if not worker.is_ready:
            raise WorkerError(f"{name} {how} while it was starting{_WHY_NOT_STARTED.get(self._start_method, '')}")
        raise WorkerError(f"{name} {how}; the state before this batch is still good: start again from it")

    def _stalled(self, worker: _Worker) -> None:
        name, stack = _name(self._workers, worker), _stack_of(worker)
        self.close()
        raise WorkerError(
            f"{name} has been silent for {self._stall_seconds:.0f} s (stall_seconds=); it was stopped. "
            f"Its stack was:\n{stack}"
        )


_GUARD = (
    ". A worker that is not forked imports the main script: put the code that iterates over the loader under "
    '`if __name__ == "__main__":`, so that the workers do not run it too. Otherwise, the output of the worker above '
    "says why"
)
_WHY_NOT_STARTED = {"spawn": _GUARD, "forkserver": _GUARD}


def _start(job: Job, number: int, context: BaseContext) -> _Worker:
    ours, theirs = context.Pipe(duplex=True)
    stack, stack_out = context.Pipe(duplex=False)
    _our_ends.update((ours, stack))
    process = context.Process(  # type: ignore[attr-defined]
        target=work, args=(job, theirs, stack_out), name=f"wds-tools-worker-{number}", daemon=True
    )
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # what pickle raises
        raise OptionError(
            f"what the workers need cannot be pickled ({error}): with multiprocessing_context="
            f"{context.get_start_method()!r}, transform= and view= must be importable, such as a function defined with "
            "`def` at the top level of a module, not a lambda; or use multiprocessing_context='fork'"
        ) from error
    except (EOFError, OSError) as error:
        why = _WHY_NOT_STARTED.get(context.get_start_method(), "")
        raise WorkerError(f"a worker process could not be started ({type(error).__name__} {error}){why}") from error
    finally:
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


def _as_exception(failure: Failure) -> BaseException:
    error = failure.error
    if error is None:
        return WorkerError(f"a worker failed with an exception that cannot be passed on:\n{failure.text}")
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        # Raised here, it would end the iteration or the program without a word of where it came from.
        wrapped = WorkerError(f"{type(error).__name__} was raised in a worker:\n{failure.text}")
        wrapped.__cause__ = error
        return wrapped
    error.__cause__ = failure.cause
    error.add_note(f"raised in a worker:\n{failure.text}")
    return error
