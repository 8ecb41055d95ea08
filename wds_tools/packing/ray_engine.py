"""Pure functions of shards as tasks of Ray Core, on all machines of a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import platform
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import PIL

from wds_tools.errors import OptionError, WdsToolsError, WorkerError
from wds_tools.images import native

_RETRIES = 3  # retries of a task whose process or machine was lost; it writes the same bytes again
_LEAST_PENDING = 16  # tasks in flight, even on a cluster without CPUs: they make an autoscaler add machines
_POLL_SECONDS = 0.5
_log = logging.getLogger("wds_tools")


def _versions() -> dict[str, str]:
    """Return what must be the same on all machines, so that they write the same bytes."""
    package = importlib.import_module("wds_tools")
    return {"wds_tools": package.__version__, "Pillow": PIL.__version__}


@dataclass(frozen=True)
class _Run:
    """What all tasks of a run have: it is sent to each process once, which keeps open what ``common`` has opened.

    Attributes:
        function: A function of a module, called with ``common`` and the argument of a task.
        common: Its first argument.
        folder: The working directory, to which relative paths refer.
        compiled: Whether the starting process has the compiled module.
        versions: Those of the starting process.
    """

    function: Callable[[Any, Any], Any]
    common: Any
    folder: str = field(default_factory=os.getcwd)
    compiled: bool = field(default_factory=native.is_available)
    versions: dict[str, str] = field(default_factory=_versions)

    def begin(self) -> None:
        """Check the installation of this machine, and go to the working directory if there is one of its name."""
        native.check_worker(compiled_in_parent=self.compiled)
        if (found := _versions()) != self.versions:
            raise WorkerError(f"the versions {found} are installed, but the starting process has {self.versions}")
        with suppress(OSError):
            os.chdir(self.folder)


_runs: dict[str, _Run] = {}  # in a process of Ray: the run that it works for, by its id


def call(run: str, reference: list[Any], argument: bytes) -> Any:
    """Call the function of a run in a process of Ray. Errors name the machine."""
    try:
        if run not in _runs:
            begun = importlib.import_module("ray").get(reference[0])
            begun.begin()
            _runs.clear()
            _runs[run] = begun
        return _runs[run].function(_runs[run].common, pickle.loads(argument))  # noqa: S301 - sent by the driver
    except WdsToolsError as error:
        message = f"on {platform.node()}: {error.args[0]}"
        raise type(error)(message, shard=error.shard, key=error.key, offset=error.offset) from error


def run_on_ray(
    function: Callable[[Any, Any], Any], common: Any, parts: Iterator[tuple[int, Any]]
) -> Generator[tuple[int, Any], None, None]:
    """Call a function as Ray tasks of one CPU each. Close the generator to cancel.

    Args:
        function: A function of a module, without side effects that a repetition would not replace.
        common: Its first argument. It is sent to each process once.
        parts: Number and second argument of each call.

    Yields:
        Number and result of each call, in the order of completion.

    Raises:
        OptionError: Ray is not installed.
        WorkerError: The process or machine of a task was lost on every retry, or a machine lacks this package, has
            another version of it, or lacks its compiled module.
        WdsToolsError: As the function raises.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise OptionError("engine='ray' needs Ray: pip install 'wds-tools[ray]'") from error
    started_here = not ray.is_initialized()
    if started_here:
        _start(ray)
    running: dict[Any, int] = {}
    try:
        yield from _collect(ray, _Run(function, common), parts, running)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started_here:
            ray.shutdown()


def _start(ray: Any) -> None:
    """Connect to the cluster at RAY_ADDRESS, or start one on this machine only.

    Without an address, Ray would connect to the cluster that a file in its temporary folder names, and wait for minutes
    if that cluster has ended.
    """
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def _remote_function(ray: Any) -> Any:
    def task(run: str, reference: list[Any], argument: bytes) -> Any:
        # Ray sends the code of a nested function, and imports others, which fails where this package is missing.
        try:
            engine = importlib.import_module("wds_tools.packing.ray_engine")
        except ImportError as error:
            return platform.node(), str(error), None
        return "", "", engine.call(run, reference, argument)

    return ray.remote(num_cpus=1, max_retries=_RETRIES)(task)


def _collect(
    ray: Any, run: _Run, parts: Iterator[tuple[int, Any]], running: dict[Any, int]
) -> Iterator[tuple[int, Any]]:
    task, run_id, sent = _remote_function(ray), secrets.token_hex(8), ray.put(run)
    is_warned = False
    while True:
        cpus = int(ray.cluster_resources().get("CPU", 0))  # machines join and leave
        # A part may hold thousands of paths, so not all are created at once.
        for number, argument in islice(parts, max(0, max(_LEAST_PENDING, 2 * cpus) - len(running))):
            # In a list, because Ray would replace a reference by its value, again for each task.
            running[task.remote(run_id, [sent], pickle.dumps(argument))] = number
        if not running:
            return
        if not cpus and not is_warned:
            _log.warning("the Ray cluster has no CPUs: waiting until a machine joins it")
            is_warned = True
        finished, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
        for reference in finished:
            machine, problem, result = _result(ray, reference)
            if machine:
                raise WorkerError(
                    f"{machine} cannot import wds_tools ({problem}): install the same version on all machines of the "
                    "Ray cluster"
                )
            yield running.pop(reference), result


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):  # an error that cannot be sent
            raise WorkerError(f"a Ray task failed: {error.cause}") from error
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"a Ray task was lost ({' '.join(str(error).split())[:200]}): finished shards are kept, "
            "run the same command again to continue"
        ) from error
