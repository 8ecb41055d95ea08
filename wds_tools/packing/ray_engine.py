"""Pure functions of shards as tasks of Ray Core, on all machines of a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import pickle
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from wds_tools.errors import WorkerError
from wds_tools.packing.ray_cluster import Machine, RemoteFunction, connect, load_ray, machine_named

Advance = Callable[[int, int], object]
"""Called with (samples, bytes) as they are finished. It can raise an error to stop the work."""

ShardFunction = Callable[[Any, Any, Advance], Any]
"""A function of a module: called with what all shards have in common, what one shard has, and `Advance`."""

_RETRIES = 3  # retries of a task whose process or machine was lost; it writes the same bytes again
_LEAST_PENDING = 16  # tasks in flight, even on a cluster without CPUs: they make an autoscaler add machines
_POLL_SECONDS = 0.5
_log = logging.getLogger("wds_tools")
_commons: dict[str, Any] = {}  # in a process of Ray: what the run has in common for which it works, by the run's id


def call(
    run: str, machine: bytes, reference: list[Any], function: tuple[str, str], argument: bytes
) -> tuple[Any, tuple[int, int]]:
    """Call a function for a shard in a process of Ray. Errors name the machine.

    Args:
        run: The id of the run.
        machine: A `Machine`, pickled.
        reference: Ray's reference to what all shards have in common. The process keeps it for the next call.
        function: Its module and name.
        argument: What this shard has, pickled.

    Returns:
        Its result, and the samples and bytes that it has finished.
    """
    done = [0, 0]

    def advance(samples: int, size: int) -> None:
        done[0] += samples
        done[1] += size

    with machine_named():
        if run not in _commons:
            pickle.loads(machine).check()  # noqa: S301 - sent by the driver
            common = importlib.import_module("ray").get(reference[0])
            _commons.clear()
            _commons[run] = common
        called: ShardFunction = getattr(importlib.import_module(function[0]), function[1])
        result = called(_commons[run], pickle.loads(argument), advance)  # noqa: S301 - sent by the driver
    return result, (done[0], done[1])


def run_on_ray(
    function: ShardFunction,
    common: Any,
    parts: Iterator[tuple[int, Any]],
    *,
    advance: Advance,
    num_cpus: int = 1,
    shared: Sequence[Path] = (),
    after_loss: str = "run the same command again",
) -> Generator[tuple[int, Any], None, None]:
    """Call a function for many shards, each as a task of Ray. Close the generator to cancel.

    Args:
        function: A function of a module, without side effects that a repetition would not replace.
        common: Its first argument. It is sent to each process once.
        parts: Number and second argument of each call.
        advance: Called with the samples and bytes of each shard when it is finished.
        num_cpus: CPUs that Ray reserves for a task.
        shared: Local files or folders that all machines must have.
        after_loss: What to do after a task was lost, for the error.

    Yields:
        Number and result of each call, in the order of completion.

    Raises:
        OptionError: Ray is not installed.
        WorkerError: The process or machine of a task was lost on every retry, or a machine lacks this package, has
            another version of it, or lacks its compiled module or a shared file.
        WdsToolsError: As the function raises.
    """
    ray = load_ray("engine='ray'")
    started_here = connect(ray)
    tasks = _Tasks(ray, function, common, num_cpus, Machine(tuple(path.absolute() for path in shared)))
    try:
        yield from tasks.collect(parts, advance)
    except ray.exceptions.RayError as error:
        raise WorkerError(f"a Ray task was lost ({' '.join(str(error).split())[:200]}): {after_loss}") from error
    finally:
        if started_here:
            ray.shutdown()  # its tasks end with it
        else:
            tasks.cancel()


class _Tasks:
    """The tasks of a run that are in flight."""

    def __init__(self, ray: Any, function: ShardFunction, common: Any, num_cpus: int, machine: Machine) -> None:
        self._ray = ray
        self._num_cpus = num_cpus
        self._remote = RemoteFunction(ray, (__name__, call.__name__), num_cpus=num_cpus, max_retries=_RETRIES)
        # In a list, because Ray would replace a reference by its value, again for each task.
        self._given = (secrets.token_hex(8), pickle.dumps(machine), [ray.put(common)])
        self._function = (function.__module__, function.__qualname__)
        self._running: dict[Any, int] = {}
        self._is_warned = False

    def collect(self, parts: Iterator[tuple[int, Any]], advance: Advance) -> Iterator[tuple[int, Any]]:
        """Submit parts, and yield their results."""
        while True:
            cpus = int(self._ray.cluster_resources().get("CPU", 0))  # machines join and leave
            pending = max(_LEAST_PENDING, 2 * cpus // self._num_cpus)
            # A part may hold thousands of paths, so not all are created at once.
            for number, argument in islice(parts, max(0, pending - len(self._running))):
                self._running[self._remote.submit(*self._given, self._function, pickle.dumps(argument))] = number
            if not self._running:
                return
            finished, _ = self._ray.wait(list(self._running), timeout=_POLL_SECONDS)
            if not finished and not self._is_warned:
                self._warn_of_few_cpus()
            for reference in finished:
                result, done = self._remote.result(reference)
                advance(*done)
                yield self._running.pop(reference), result

    def cancel(self) -> None:
        """Cancel what is in flight. With ``force``, Ray 2.60 may end this process if a task has just finished."""
        for reference in self._running:
            self._ray.cancel(reference)

    def _warn_of_few_cpus(self) -> None:
        most = max((node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]), default=0)
        if most < self._num_cpus:
            self._is_warned = True
            _log.warning(
                "no machine of the Ray cluster has %d CPUs for a task, the largest has %d: waiting until one joins",
                self._num_cpus,
                most,
            )
