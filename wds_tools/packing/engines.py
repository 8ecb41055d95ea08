"""Pure functions of shards, called in this process, in worker processes, or on the machines of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from wds_tools.errors import OptionError, WorkerError
from wds_tools.options import available_cores, check_counts
from wds_tools.packing.ray_engine import Advance, ShardFunction, run_on_ray

EngineName = Literal["local", "ray"]

_BYTES_PER_PROCESS = 500_000_000  # of shards, which one process reads in the time in which another one starts
_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_log = logging.getLogger("wds_tools")
_COUNTERS = 1024  # one per process, by its process id; a lock would stay locked if its holder is killed


@dataclass(frozen=True)
class Engine:
    """Where functions of shards are called.

    Attributes:
        name: ``local`` for processes of this machine, ``ray`` for tasks of Ray Core.
        processes: Maximum number of local processes; 1 calls the function in this process.
        num_cpus: CPUs that Ray reserves for a task.
        bounded: Whether at most ``processes`` shards are in progress locally. The next one starts only when the result
            of an earlier one has been taken.
        after_loss: What to do after a process was lost, for the error.
    """

    name: EngineName = "local"
    processes: int = 1
    num_cpus: int = 1
    bounded: bool = False
    after_loss: str = "run the same command again"

    def run(
        self,
        function: ShardFunction,
        common: Any,
        parts: Iterable[tuple[int, Any]],
        *,
        advance: Advance,
        shared: Sequence[Path] = (),
    ) -> Generator[tuple[int, Any], None, None]:
        """Call a function for many shards. Close the generator to stop.

        Args:
            function: A function of a module, called with ``common``, the argument of a part, and ``advance``. It may be
                called again for the same part after its process or machine was lost.
            common: What all calls share. Each process gets it once, and keeps what it has opened.
            parts: Number and argument of each call. They are taken as they are needed.
            advance: Called in this process with finished samples and bytes.
            shared: Local files or folders that the machines of a Ray cluster must have.

        Yields:
            Number and result of each call, in the order of completion.

        Raises:
            OptionError: Ray is not installed.
            WorkerError: A worker process died; or a machine of the Ray cluster was lost on every retry, or its
                installation or files differ.
            WdsToolsError: As the function raises.
        """
        if self.name == "ray":
            return self._run_on_ray(function, common, iter(parts), advance=advance, shared=shared)
        if self.processes <= 1:
            return ((number, function(common, argument, advance)) for number, argument in parts)
        return _run_pool(self, function, common, iter(parts), advance)

    def _run_on_ray(
        self,
        function: ShardFunction,
        common: Any,
        parts: Iterator[tuple[int, Any]],
        *,
        advance: Advance,
        shared: Sequence[Path],
    ) -> Generator[tuple[int, Any], None, None]:
        is_over = threading.Event()
        threading.Thread(target=_watch_ray, args=(is_over, self.after_loss), daemon=True).start()
        try:
            yield from run_on_ray(
                function,
                common,
                parts,
                advance=advance,
                num_cpus=self.num_cpus,
                shared=shared,
                after_loss=self.after_loss,
            )
        finally:
            is_over.set()


def _watch_ray(is_over: threading.Event, after_loss: str) -> None:
    """Log an error if Ray ends on this machine: some seconds later, it ends this process without an exception."""
    address: tuple[str, int] | None = None
    while not is_over.wait(_WATCH_SECONDS):
        ray: Any = sys.modules.get("ray")
        if address is None and ray is not None and ray.is_initialized():
            own = ray.get_runtime_context().get_node_id()
            node = next(node for node in ray.nodes() if node["NodeID"] == own)
            address = node["NodeManagerAddress"], node["NodeManagerPort"]
        try:
            if address is not None:
                socket.create_connection(address, timeout=_WATCH_SECONDS).close()
        except ConnectionRefusedError:
            if not is_over.is_set():
                _log.error(
                    "Ray has ended on this machine (its process raylet), and will end this process: start "
                    "Ray again; %s",
                    after_loss,
                )
            return
        except OSError:  # a busy machine
            pass


def check_engine(name: str) -> None:
    """Raise an `OptionError` if there is no engine of this name."""
    if name not in get_args(EngineName):
        raise OptionError(f"engine={name!r}; allowed are {', '.join(map(repr, get_args(EngineName)))}")


def engine_for(name: EngineName, workers: int | None, *, size: int, shards: int) -> Engine:
    """Return the engine for shards that are read once.

    Args:
        name: As the user gives it.
        workers: Number of local processes; None chooses it.
        size: Length of all shards in bytes.
        shards: Their number.

    Raises:
        OptionError: An unknown name, or an invalid number.
    """
    check_engine(name)
    check_counts({"workers": workers})
    usual = min(available_cores(), 1 + size // _BYTES_PER_PROCESS)
    return Engine(name, processes=min(shards, usual if workers is None else workers))


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield results by their numbers, which are 0, 1, 2 and so on."""
    early: dict[int, Any] = {}
    following = 0
    for number, result in results:
        early[number] = result
        while following in early:
            yield following, early.pop(following)
            following += 1


def _run_pool(
    engine: Engine, function: ShardFunction, common: Any, parts: Iterator[tuple[int, Any]], advance: Advance
) -> Generator[tuple[int, Any], None, None]:
    # Forked workers would inherit the locks of this process's threads; workers of a fork server do not.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])  # imported once, not by each worker: 0.4 s to start, not 0.6
    counters, stop = context.RawArray("q", 2 * _COUNTERS), context.Value("b", 0, lock=False)
    with ProcessPoolExecutor(
        engine.processes,
        mp_context=context,
        initializer=_start_worker,
        initargs=(_Worker(function, common, counters, stop),),
    ) as pool:
        try:
            yield from _collect(pool, parts, engine, _SharedProgress(counters, advance))
        except BrokenProcessPool as error:
            raise WorkerError(
                f"a worker process died; it was killed or ran out of memory: {engine.after_loss}, with fewer workers "
                "if memory ran out"
            ) from error
        finally:
            stop.value = 1
            pool.shutdown(cancel_futures=True)


def _collect(
    pool: ProcessPoolExecutor, parts: Iterator[tuple[int, Any]], engine: Engine, poll: _SharedProgress
) -> Iterator[tuple[int, Any]]:
    max_pending = engine.processes if engine.bounded else 2 * engine.processes
    running: set[Future[tuple[int, Any]]] = set()
    while True:
        # At most one part waits per worker. A part may hold thousands of paths, so not all are created at once.
        running |= _submit(pool, list(islice(parts, max_pending - len(running))))
        if not running:
            return
        finished, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        poll.report()
        for future in finished:
            yield future.result()


def _submit(pool: ProcessPoolExecutor, parts: list[tuple[int, Any]]) -> set[Future[tuple[int, Any]]]:
    with _main_module_hidden():  # the first submission starts the processes
        try:
            return {pool.submit(_call, number, argument) for number, argument in parts}
        except (EOFError, ConnectionError) as error:
            raise BrokenProcessPool("the fork server died") from error


class _SharedProgress:
    """Progress of all workers, from counters in shared memory."""

    def __init__(self, counters: Any, advance: Advance) -> None:
        self._counters = counters
        self._advance = advance
        self._reported = (0, 0)

    def report(self) -> None:
        """Report what was finished since the last call."""
        samples, size = sum(self._counters[::2]), sum(self._counters[1::2])
        self._advance(samples - self._reported[0], size - self._reported[1])
        self._reported = (samples, size)


class _StopError(Exception):
    """The main process has set the stop flag."""


@dataclass(frozen=True)
class _Worker:
    """What a worker process gets once: the function, its first argument, and the shared memory."""

    function: ShardFunction
    common: Any
    counters: Any
    stop: Any

    def advance(self, samples: int, size: int) -> None:
        """Count finished samples and bytes."""
        if self.stop.value:
            raise _StopError
        slot = 2 * (os.getpid() % _COUNTERS)
        self.counters[slot] += samples
        self.counters[slot + 1] += size


_worker: _Worker | None = None  # in a worker process


def _start_worker(worker: _Worker) -> None:
    global _worker  # noqa: PLW0603 - a pool passes shared memory to its processes only through the initializer
    _worker = worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the main process
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the main process is gone; otherwise the worker would wait forever for its next part."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(number: int, argument: Any) -> tuple[int, Any]:
    assert _worker is not None, "called only in a worker process"
    return number, _worker.function(_worker.common, argument, _worker.advance)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Hide the main module from processes that start inside this block.

    Otherwise each of them would import it. A script that packs without an ``if __name__ == "__main__"`` guard would
    then pack again, and a script that imports torch would make every worker import it too. Parts contain no classes of
    the main module, so workers do not need it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
