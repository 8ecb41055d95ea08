"""The body of a worker process: tasks come in through a pipe, results go out, and every exception is reported."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
import signal
import struct
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch

READY = -1
"""Number of the first message: the worker has started."""
_NUMBER = struct.Struct("<q")


class Job(Protocol):
    """What a worker does. It is copied to each worker before the first task."""

    def expect(self, task: Any) -> None:
        """A task that will come up soon: reading for it may start."""

    def run(self, task: Any) -> Any:
        """Do a task; the result is pickled."""

    def close(self) -> None:
        """Log what is known at the end; called from another thread than the others."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way to the main process.

    Attributes:
        error: None if it cannot be pickled and unpickled.
        cause: Its ``__cause__``, which pickle leaves out.
        text: The traceback.
    """

    error: BaseException | None
    cause: BaseException | None
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        return cls(_if_it_travels(error), _if_it_travels(error.__cause__), "".join(traceback.format_exception(error)))


def _if_it_travels(error: BaseException | None) -> BaseException | None:
    """Return an exception that comes out of pickle as it went in; many with an ``__init__`` of their own do not."""
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else None  # noqa: S301 - just made
    except Exception:  # whatever its own code raises
        return None


def message(number: int, value: Any) -> bytes:
    """Return a message: the number of a task, and its result."""
    return _NUMBER.pack(number) + bytes(ForkingPickler.dumps(value))


def read_message(data: bytes) -> tuple[int, Any]:
    """Undo `message`. A result that cannot be unpickled here becomes a `Failure`."""
    number = _NUMBER.unpack_from(data)[0]
    try:
        return number, ForkingPickler.loads(memoryview(data)[_NUMBER.size :])
    except Exception as error:  # whatever the code of the result's type raises
        return number, Failure(None, None, f"the result cannot be unpickled: {type(error).__name__}: {error}")


def work(job: Job, pipe: Connection, stack: Connection) -> None:
    """Do tasks until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends us
    faulthandler.register(signal.SIGUSR1, file=stack.fileno(), all_threads=False)
    torch.set_num_threads(1)  # one worker, one core; OpenMP's threads do not survive a fork either
    tasks: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks, job), daemon=True).start()
    _send(pipe, message(READY, None))
    waiting: deque[tuple[int, Any]] = deque()
    while True:
        while not waiting or not tasks.empty():
            number, task = tasks.get()
            with contextlib.suppress(Exception):  # run() meets the same trouble, and reports it
                job.expect(task)
            waiting.append((number, task))
        number, task = waiting.popleft()
        _send(pipe, _answer(number, _run(job, task)))


def _listen(pipe: Connection, tasks: queue.SimpleQueue[tuple[int, Any]], job: Job) -> None:
    """Take tasks as they come, so that the main process never waits to send one, and end with it."""
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        with contextlib.suppress(Exception):
            job.close()
        os._exit(0)  # even if the job hangs


def _run(job: Job, task: Any) -> Any:
    try:
        return job.run(task)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the user must see where they came from
        return Failure.of(error)


def _answer(number: int, value: Any) -> bytes:
    try:
        return message(number, value)
    except Exception as error:  # not to be pickled: tell at least what it was
        return message(number, Failure(None, None, "".join(traceback.format_exception(error))))


def _send(pipe: Connection, data: bytes) -> None:
    try:
        pipe.send_bytes(data)
    except OSError:
        os._exit(0)
