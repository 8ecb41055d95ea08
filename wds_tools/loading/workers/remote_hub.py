"""The host's end of the connections to workers on other machines: a thread that sends tasks and receives results.

A result is received directly into the memory that its task is for. A peer that does not prove itself in time, or
sends what its tasks do not allow, is disconnected; nothing is unpickled before the proof. The tasks of a worker that is
lost are given to others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from wds_tools.errors import WorkerError
from wds_tools.loading.workers.messages import Failure, open_message
from wds_tools.loading.workers.proof import SECONDS, ProofFailedError, configure, prove_as_host
from wds_tools.loading.workers.worker_process import READY
from wds_tools.wording import human_bytes

PREFIX = struct.Struct("<QQ")
"""Begins a result: lengths of the head of the message, and of the memory that the task wrote."""
LENGTH = struct.Struct("<Q")
"""Begins a task: the length of its pickle."""
STACK = -2
"""In place of the id of a task, to request the Python stack of the thread that runs tasks, and in the reply."""
MAX_MESSAGE_BYTES = 4 << 30
"""Maximum length of what a result has besides the memory that its task is for."""
MOST_UNPROVEN = 256
"""Maximum number of peers that have not proved themselves; the oldest one makes way."""

_TICK_SECONDS = 0.5  # between two looks at deadlines and at what places the workers
_MOST_LOSSES = 3  # workers that a task may lose: its own code may have ended them
_MAX_VIEWS = 512  # of one system call; Linux allows 1,024
_log = logging.getLogger("wds_tools")


class HostRunner(Protocol):
    """What the host knows of tasks that other machines run."""

    def memory(self, task: Any) -> list[memoryview]:
        """Return the memory that the task is for, which a worker fills."""

    def share(self, task: Any) -> float | None:
        """Return which part of the dataset a task reads, 0 to 1; None if it is not known."""

    def received(self, value: Any, ended_ns: int) -> Any:
        """Return a result as if its task had ended at a time of this machine's clock."""


class Placement(Protocol):
    """What starts workers on other machines, and replaces those that have ended."""

    host: str
    """Address of this machine at which the workers can reach it."""

    def start(self, address: tuple[str, int], token: bytes) -> None:
        """Start the workers, which connect to an address."""

    def check(self) -> None:
        """Start workers again that have ended; raise an error if a machine cannot have workers."""

    def stop(self) -> None:
        """Stop all workers."""

    def missing(self) -> str:
        """Return why there may be no workers, and what to do."""


class WorkerName(NamedTuple):
    """What a worker reports of itself.

    Attributes:
        machine: Name of its machine.
        pid: Id of its process.
        node: What workers with the same caches have in common.
    """

    machine: str
    pid: int
    node: str


class Peer:
    """A connection.

    Attributes:
        worker: What the worker has reported of itself when it was ready.
        tasks: The tasks that the worker has, by their ids.
        stack: Its Python stack, if it was requested and has arrived.
        heard_at: When something was received last, in seconds of `time.monotonic`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.worker: WorkerName | None = None
        self.is_proven = False
        self.tasks: dict[int, Any] = {}
        self.stack: str | None = None
        self.outgoing = bytearray()
        self.heard_at = self.since = time.monotonic()
        self.expected: deque[memoryview] = deque()
        self.steps: Generator[list[memoryview], None, None]

    def __str__(self) -> str:
        return f"the worker on {self.worker.machine} (pid {self.worker.pid})" if self.worker else "a worker"


class Hub:
    """Gives tasks to workers and collects results. All attributes are used with ``condition``, which is notified.

    Attributes:
        pending: Ids of the tasks that no worker has yet.
        done: Results by the ids of their tasks.
        workers: The workers that are ready.
        alone_since: When the last worker was lost, in seconds of `time.monotonic`.
        error: Why no further result will come; None while the hub runs.
    """

    def __init__(self, runner: HostRunner, placement: Placement, token: bytes, tasks_per_worker: int) -> None:
        self.condition = threading.Condition()
        self.pending: deque[int] = deque()
        self.done: dict[int, Any] = {}
        self.workers: list[Peer] = []
        self.alone_since = time.monotonic()
        self.error: BaseException | None = None
        self._runner, self._placement, self._token = runner, placement, token
        self._tasks_per_worker = tasks_per_worker
        self._tasks: dict[int, Any] = {}  # pending
        self._losses: Counter[int] = Counter()
        self._peers: list[Peer] = []
        self._checked_at = 0.0
        self._pid = os.getpid()
        self._is_stopped = threading.Event()
        family = socket.AF_INET6 if ":" in placement.host else socket.AF_INET
        self._listener = socket.create_server((placement.host, 0), family=family, backlog=1024)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._asked: list[Peer] = []  # workers whose stack is requested
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for endpoint in (self._listener, self._woken):
            endpoint.setblocking(False)
            self._selector.register(endpoint, selectors.EVENT_READ)
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="wds-tools-remote-workers", daemon=True)

    def start(self) -> None:
        """Start the workers and the thread."""
        self._placement.start(self.address, self._token)
        self._thread.start()

    def add(self, task_id: int, task: Any) -> None:
        """Add a task. Called with ``condition``."""
        self.pending.append(task_id)
        self._tasks[task_id] = task
        self._wake()

    def drop_pending(self, task_ids: Iterable[int]) -> set[int]:
        """Forget those of some tasks that no worker has; return them. Called with ``condition``."""
        dropped = {task_id for task_id in task_ids if self._tasks.pop(task_id, None) is not None}
        self.pending = deque(task_id for task_id in self.pending if task_id not in dropped)
        return dropped

    def owner(self, task_id: int) -> Peer | None:
        """Return the worker that has a task. Called with ``condition``."""
        return next((worker for worker in self.workers if task_id in worker.tasks), None)

    def stack_of(self, worker: Peer, seconds: float) -> str | None:
        """Return the Python stack of a worker; None if it does not send it within some seconds."""
        with self.condition:
            self._asked.append(worker)
            self._wake()
            self.condition.wait_for(lambda: worker.stack is not None, seconds)
            return worker.stack

    def stop(self) -> None:
        """Disconnect and stop all workers. Afterwards no memory of a task is written to."""
        if os.getpid() != self._pid:
            return  # this is a fork, which has no thread; the workers belong to its parent
        self._is_stopped.set()
        self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self.condition:
            for peer in self._peers:
                with contextlib.suppress(OSError):  # it is closed already
                    peer.connection.shutdown(socket.SHUT_RDWR)  # even if a fork of this process has it open
            for endpoint in (self._listener, self._waker, self._woken, *(peer.connection for peer in self._peers)):
                endpoint.close()
            self._selector.close()
            self._peers.clear()
            self.workers.clear()
        self._placement.stop()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full, so it will wake; or closed
            self._waker.send(b"!")

    def _run(self) -> None:
        try:
            while not self._is_stopped.is_set():
                events = self._selector.select(_TICK_SECONDS)
                if self._is_stopped.is_set():
                    return
                for key, _ in events:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(4096)
                    else:
                        self._receive(key.data)
                self._look()
                with self.condition:
                    self._assign()
                    while self._asked:
                        self._post(self._asked.pop(), STACK, None)
                for peer in list(self._peers):
                    self._send(peer)
        except BaseException as error:  # the loop that waits for a batch raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self.condition:
            self.error = self.error or error
            self.condition.notify_all()

    def _look(self) -> None:
        """Disconnect peers without a proof, and replace workers that have ended, from time to time."""
        now = time.monotonic()
        if now - self._checked_at < _TICK_SECONDS:
            return
        self._checked_at = now
        for peer in list(self._peers):
            if not peer.is_proven and now - peer.since > SECONDS:
                self._disconnect(peer, "it did not prove itself in time")
        self._placement.check()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone already, or there are no descriptors
            return
        unproven = [peer for peer in self._peers if not peer.is_proven]
        if len(unproven) >= MOST_UNPROVEN:
            self._disconnect(unproven[0], "too many peers have not proved themselves")
        connection.setblocking(False)
        configure(connection)
        peer = Peer(connection)
        peer.steps = self._protocol(peer)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        peer.expected.extend(next(peer.steps))
        self._send(peer)

    def _receive(self, peer: Peer) -> None:
        """Receive what has arrived into the memory that is expected, and continue when it is full."""
        try:
            received = os.readv(peer.connection.fileno(), [*peer.expected][:_MAX_VIEWS])
            if not received:
                raise ConnectionError("it closed the connection")
            peer.heard_at = time.monotonic()
            while received:
                first = peer.expected[0]
                if received < len(first):
                    peer.expected[0] = first[received:]
                    break
                received -= len(peer.expected.popleft())
            while not peer.expected:
                peer.expected.extend(view for view in next(peer.steps) if len(view))
        except BlockingIOError:
            pass
        except ProofFailedError:
            self._disconnect(peer, "it does not know the token of this run")
        except (OSError, ValueError) as error:
            self._disconnect(peer, str(error))

    def _protocol(self, peer: Peer) -> Generator[list[memoryview], None, None]:
        """Handle a connection. Yield memory that is to be filled with what the peer sends."""
        for view in prove_as_host(self._token, peer.outgoing):
            yield [view]
        peer.is_proven = True
        while True:
            prefix = bytearray(PREFIX.size)
            yield [memoryview(prefix)]
            ended_ns = perf_counter_ns()
            head_bytes, memory_bytes = PREFIX.unpack(prefix)
            if head_bytes > MAX_MESSAGE_BYTES:
                raise ValueError(f"it announced a message of {human_bytes(head_bytes)}")
            head = bytearray(head_bytes)
            yield [memoryview(head)]
            message = open_message(head, most_bytes=MAX_MESSAGE_BYTES)
            is_ready, is_stack = message.task_id == READY and peer.worker is None, message.task_id == STACK
            if not (is_ready or is_stack) and message.task_id not in peer.tasks:
                raise ValueError("it sent a result of a task that it does not have")
            task = peer.tasks.get(message.task_id)
            memory = self._runner.memory(task) if memory_bytes and task is not None else []
            if sum(map(len, memory)) != memory_bytes:
                raise ValueError(f"it announced {memory_bytes:,} bytes for memory of {sum(map(len, memory)):,}")
            yield [*message.arrays, *memory]
            value = message.value()
            with self.condition:
                if is_ready:
                    peer.worker = value
                    self.workers.append(peer)
                elif is_stack:
                    peer.stack = str(value)
                else:
                    del peer.tasks[message.task_id]
                    is_failure = isinstance(value, Failure)
                    self.done[message.task_id] = value if is_failure else self._runner.received(value, ended_ns)
                self.condition.notify_all()

    def _assign(self) -> None:
        """Give pending tasks to workers, those of the same share to the same node if it has room.

        A worker without tasks takes any task, so that no task waits for a slow machine.
        """
        nodes = sorted({peer.worker.node for peer in self.workers if peer.worker})
        for takes_any in (False, True):
            for task_id in list(self.pending):
                share = self._runner.share(self._tasks[task_id])
                home = None if share is None or not nodes else nodes[int(share * len(nodes))]
                workers = [peer for peer in self.workers if home is None or (peer.worker and peer.worker.node == home)]
                if takes_any:
                    workers = [peer for peer in self.workers if not peer.tasks]
                worker = min(workers, key=lambda peer: len(peer.tasks), default=None)
                if worker is not None and len(worker.tasks) < self._tasks_per_worker:
                    self._give(task_id, worker)

    def _give(self, task_id: int, worker: Peer) -> None:
        self.pending.remove(task_id)
        worker.tasks[task_id] = task = self._tasks.pop(task_id)
        self._post(worker, task_id, task)

    def _post(self, worker: Peer, task_id: int, task: Any) -> None:
        data = pickle.dumps((task_id, task), pickle.HIGHEST_PROTOCOL)
        worker.outgoing += LENGTH.pack(len(data)) + data

    def _send(self, peer: Peer) -> None:
        """Send what the socket takes now; the rest when it takes more."""
        try:
            while peer.outgoing:
                del peer.outgoing[: peer.connection.send(peer.outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._disconnect(peer, str(error))
            return
        if peer in self._peers:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
            if self._selector.get_key(peer.connection).events != events:
                self._selector.modify(peer.connection, events, peer)

    def _disconnect(self, peer: Peer, why: str) -> None:
        """End a connection; the tasks of its worker are given to others, first of all."""
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._selector.unregister(peer.connection)
        peer.connection.close()
        peer.steps.close()
        if not peer.is_proven:
            _log.warning("a peer was disconnected from %s:%d: %s", *self.address, why)
            return
        _log.warning("%s is lost (%s); other workers repeat its tasks", peer, why)
        with self.condition:
            if peer in self.workers:
                self.workers.remove(peer)
                self.alone_since = time.monotonic()
            for task_id, task in sorted(peer.tasks.items(), reverse=True):
                self.pending.appendleft(task_id)
                self._tasks[task_id] = task
                self._losses[task_id] += 1
                if self._losses[task_id] >= _MOST_LOSSES:
                    self._fail(
                        WorkerError(
                            f"{_MOST_LOSSES} workers were lost with one task, the last was {peer} ({why}): its own "
                            "code may end them, such as transform=, or the machines lack memory; `ray logs` has their "
                            "output"
                        )
                    )
            self.condition.notify_all()
