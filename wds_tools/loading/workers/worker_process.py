"""Main function of a worker process: it receives tasks through a pipe, and sends results and exceptions back."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch

from wds_tools import stages
from wds_tools.loading.workers.memory import SharedPage
from wds_tools.loading.workers.messages import Failure, Message, pack_message, send_message

READY = -1
"""In place of the id of a task in the first message, which reports that the worker has started."""


class TaskRunner(Protocol):
    """Runs the tasks of a worker. A copy is sent to each worker when it starts."""

    def show_stage_in(self, shown: stages.Shown) -> None:
        """Write the index of the current stage of a task to element 0, or `wds_tools.stages.IDLE`, from now on."""

    def read_ahead(self, task: Any) -> None:
        """Start reading for a task that will be run soon."""

    def run(self, task: Any) -> Any:
        """Run a task and return its result, which must be picklable."""


def run_worker(runner: TaskRunner, pipe: Connection, stack: Connection, stage: SharedPage) -> None:
    """Run tasks until the other end of the pipe is closed.

    Args:
        runner: Runs the tasks.
        pipe: Receives (task_id, task), sends messages.
        stack: Receives the Python stack of this process on SIGUSR1.
        stage: Shared memory; its first byte is the current stage.
    """
    # The garbage collector of a forked worker must not delete objects of the main process, such as CUDA tensors.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and stops the workers
    faulthandler.register(signal.SIGUSR1, file=stack.fileno(), all_threads=False)
    if torch.get_default_device().type != "cpu":  # inherited by fork; transforms make tensors in CPU memory
        torch.set_default_device(None)
    torch.set_num_threads(1)  # one core per worker; OpenMP threads do not survive a fork either
    tasks: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
    runner.show_stage_in(stage.memory)
    _send(pipe, pack_message(READY, None))
    for task_id, task in read_ahead(runner, tasks):
        _send(pipe, pack_result(task_id, run_caught(runner, task)))


def read_ahead(runner: TaskRunner, tasks: queue.SimpleQueue[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
    """Yield tasks and their ids, and start reading for the later ones. End at a None in the queue."""
    waiting: deque[tuple[int, Any]] = deque()
    while True:
        while not waiting or not tasks.empty():
            given = tasks.get()
            if given is None:
                return
            with contextlib.suppress(Exception):  # run() raises the same exception, and it is reported then
                runner.read_ahead(given[1])
            waiting.append(given)
        yield waiting.popleft()


def _receive_tasks(pipe: Connection, tasks: queue.SimpleQueue[tuple[int, Any] | None]) -> None:
    """Receive tasks at once, so that the main process never blocks on a full pipe. Exit when it closes the pipe."""
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)  # even if a task hangs


def run_caught(runner: TaskRunner, task: Any) -> Any:
    """Run a task and return its result, or a `Failure`."""
    try:
        return runner.run(task)
    except BaseException as error:  # including SystemExit and KeyboardInterrupt, to report where they were raised
        return Failure.of(error)


def pack_result(task_id: int, value: Any) -> Message:
    """Return a message with the result of a task, or with the error that it cannot be pickled."""
    try:
        return pack_message(task_id, value)
    except Exception as error:  # the result cannot be pickled
        return pack_message(task_id, Failure(None, None, "".join(traceback.format_exception(error))))


def _send(pipe: Connection, message: Message) -> None:
    try:
        send_message(pipe, message)
    except OSError:
        os._exit(0)
