"""A worker on another machine: it connects to the host of a run, receives tasks, and sends their results."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from wds_tools.errors import StoreError, WorkerError
from wds_tools.loading.workers.messages import Failure, Message, pack_message, transfer
from wds_tools.loading.workers.proof import ProofFailedError, connect_and_prove, receive_exactly
from wds_tools.loading.workers.remote_hub import LENGTH, PREFIX, STACK, WorkerName
from wds_tools.loading.workers.worker_process import READY, TaskRunner, pack_result, read_ahead, run_caught
from wds_tools.packing.ray_cluster import on_this_machine

_CONNECT_SECONDS = 30.0
_END_SECONDS = 10.0  # that a task may go on after the host has closed the connection


class RemoteRunner(TaskRunner, Protocol):
    """Runs the tasks of a worker on another machine."""

    def memory(self, task: Any) -> list[memoryview]:
        """Return the memory that the last task has written."""


def run_remote_worker(runner: RemoteRunner, address: tuple[str, int], token: bytes, *, node: str) -> None:
    """Run tasks until the host closes the connection. See `WorkerName` for the node."""
    torch.set_num_threads(1)  # one core per worker
    tasks: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
    has_ended = threading.Event()
    with _connected(address, token) as connection:
        runner.show_stage_in(bytearray(1))
        send, thread = partial(_send, connection, threading.Lock()), threading.get_ident()

        def send_stack() -> None:
            frame = sys._current_frames()[thread]  # noqa: SLF001 - no other function returns frames of a thread
            send(pack_message(STACK, "".join(traceback.format_stack(frame))), [])

        threading.Thread(target=_receive_tasks, args=(connection, tasks, send_stack, has_ended), daemon=True).start()
        with contextlib.suppress(OSError):  # the host has closed the connection
            send(pack_message(READY, WorkerName(platform.node(), os.getpid(), node)), [])
            for task_id, task in read_ahead(runner, tasks):
                value = _named(run_caught(runner, task))
                memory = [] if isinstance(value, Failure) else runner.memory(task)
                send(pack_result(task_id, value), memory)
    has_ended.set()


def _connected(address: tuple[str, int], token: bytes) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return connect_and_prove(address, token)
        except ProofFailedError as error:
            raise WorkerError(f"{address[0]}:{address[1]} does not know the token of this run") from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"no connection to the training process at {address[0]}:{address[1]} ({error}): let the machines "
                    "of the Ray cluster connect to all ports of each other"
                ) from error
        time.sleep(1)


def _receive_tasks(
    connection: socket.socket,
    tasks: queue.SimpleQueue[tuple[int, Any] | None],
    send_stack: Callable[[], None],
    has_ended: threading.Event,
) -> None:
    with contextlib.suppress(OSError):
        while True:
            (length,) = LENGTH.unpack(receive_exactly(connection, LENGTH.size))
            task_id, task = pickle.loads(receive_exactly(connection, length))  # noqa: S301 - the host has proved itself
            if task_id == STACK:
                send_stack()
            else:
                tasks.put((task_id, task))
    tasks.put(None)
    if not has_ended.wait(_END_SECONDS):
        os._exit(0)  # a task hangs


def _send(connection: socket.socket, lock: threading.Lock, message: Message, memory: list[memoryview]) -> None:
    prefix = PREFIX.pack(len(message.head), sum(map(len, memory)))
    views = [memoryview(prefix), memoryview(message.head), *message.arrays, *memory]
    with lock:
        transfer(os.writev, connection.fileno(), [view for view in views if len(view)])


def _named(value: Any) -> Any:
    """Name this machine in errors that are about it: its storage and its installation."""
    error = value.error if isinstance(value, Failure) else None
    if isinstance(error, StoreError | WorkerError):
        return Failure(on_this_machine(error), value.cause, value.text)
    return value
