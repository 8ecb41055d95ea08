"""Workers on the machines of a Ray cluster. Ray starts them, and is used for nothing else."""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError, WorkerError
from wds_tools.format.shard_table import ShardTable
from wds_tools.loading.workers.ray_workers import RayWorkers
from wds_tools.loading.workers.remote_worker import RemoteRunner, run_remote_worker
from wds_tools.packing.ray_cluster import Machine, RemoteFunction, connect, load_ray, machine_named


class RayPlacement:
    """Keeps workers running on the machines of a Ray cluster.

    Args:
        runner: Runs their tasks. It is pickled once, functions of the main script by value.
        shared: Local files that all machines must have.
    """

    def __init__(self, workers: RayWorkers, runner: RemoteRunner, shared: Sequence[Path]) -> None:
        self._workers = workers
        self._ray = load_ray(f"num_workers={workers}")
        connect(self._ray)
        if importlib.import_module("ray.util.client").ray.is_connected():
            raise OptionError(
                "num_workers=RayWorkers(...) needs a process on a machine of the cluster, because the workers connect "
                "to it: use an address such as head:6379 instead of ray://..."
            )
        self.host = str(self._ray.util.get_node_ip_address())
        try:
            pickled = _pickled(runner)
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # all of them are raised by pickle
            raise OptionError(f"an option cannot be pickled for the workers ({error})") from error
        self._given = (pickle.dumps(Machine(tuple(path.absolute() for path in shared))), self._ray.put(pickled))
        self._function = RemoteFunction(
            self._ray,
            (__name__, work.__name__),
            num_cpus=workers.num_cpus,
            max_retries=-1,  # when its process or machine is lost, Ray starts it again, also on a machine that joins
            max_calls=1,  # its process ends with it
            scheduling_strategy="SPREAD",
        )
        self._submit: Callable[[], Any] | None = None
        self._running: list[Any] = []

    def start(self, address: tuple[str, int], token: bytes) -> None:
        """Start the workers, which connect to an address."""
        self._submit = lambda: self._function.submit(*self._given, address, token)
        self._running = [self._submit() for _ in range(self._workers.count)]

    def check(self) -> None:
        """Start workers again that have ended; raise an error if a machine lacks what it needs, or cannot connect."""
        if self._submit is None or not self._ray.is_initialized():  # it would be started again
            return
        ended, self._running = self._ray.wait(self._running, num_returns=len(self._running), timeout=0)
        for reference in ended:
            self._running.append(self._submit())
            try:
                self._function.result(reference)
            except self._ray.exceptions.RayError as error:
                raise WorkerError(f"Ray cannot run a worker: {' '.join(str(error).split())[:300]}") from error

    def stop(self) -> None:
        """Stop all workers."""
        running, self._running, self._submit = self._running, [], None
        with contextlib.suppress(Exception):  # when the interpreter exits, Ray may have stopped them already
            for reference in running if self._ray.is_initialized() else []:
                self._ray.cancel(reference)

    def missing(self) -> str:
        """Return why there may be no workers, and what to do."""
        free = self._ray.available_resources().get("CPU", 0)
        total = self._ray.cluster_resources().get("CPU", 0)
        return (
            f"{self._workers} needs {self._workers.num_cpus:g} CPUs for each worker, and {free:g} of {total:g} CPUs of "
            "the Ray cluster are free. Add machines with `ray start --address=...`, or see what uses the CPUs with "
            f"`ray status`. All machines must be able to connect to {self.host}"
        )


def _pickled(value: Any) -> bytes:
    """Pickle a value for other machines: without references to files of this one, functions of `__main__` by value."""

    class Pickler(importlib.import_module("ray.cloudpickle").Pickler):  # type: ignore[misc]
        def reducer_override(self, given: Any) -> Any:
            return given.by_value() if isinstance(given, ShardTable) else super().reducer_override(given)

    out = io.BytesIO()
    Pickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def work(machine: bytes, runner: bytes, address: tuple[str, int], token: bytes) -> None:
    """Run a worker in a process of Ray, from a pickled `Machine` and `RemoteRunner`. Errors name the machine."""
    with machine_named():
        pickle.loads(machine).check()  # noqa: S301 - sent by the driver
        try:
            loaded = pickle.loads(runner)  # noqa: S301 - sent by the driver
        except ImportError as error:
            raise WorkerError(
                f"the options of the loader cannot be unpickled ({error}): install the module on all machines, or "
                "define transform= in the main script, whose functions are sent to them"
            ) from error
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        run_remote_worker(loaded, address, token, node=node)
