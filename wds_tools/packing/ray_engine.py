"""The shards of a pack as tasks of Ray core: the same pure function, on as many machines as Ray has.

The destination must be a folder that all of them share.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any

from wds_tools.errors import OptionError, WorkerError
from wds_tools.packing.work_folder import ShardReport
from wds_tools.packing.worker import ShardTask, pack_shard

_RETRIES = 3  # of a task whose process or machine was lost; it writes the same bytes again
_POLL_SECONDS = 0.5


def run_on_ray(
    tasks: Iterator[ShardTask], *, advance: Callable[[int, int], None]
) -> Generator[ShardReport, None, None]:
    """Pack shards as Ray tasks; yields their reports as they come. Close it to cancel the others.

    Args:
        tasks: What to do.
        advance: Told of the samples and bytes of each finished shard.

    Raises:
        OptionError: Ray is not installed.
        DestinationError: A shard cannot be written.
        WorkerError: A process was lost again and again.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise OptionError("engine='ray' needs Ray: pip install 'wds-tools[ray]'") from error
    started_here = not ray.is_initialized()
    if started_here:
        _start(ray)
    running: dict[Any, ShardTask] = {}
    try:
        yield from _collect(ray, tasks, running, advance)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started_here:
            ray.shutdown()


def _start(ray: Any) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine alone."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def _collect(
    ray: Any, tasks: Iterator[ShardTask], running: dict[Any, ShardTask], advance: Callable[[int, int], None]
) -> Iterator[ShardReport]:
    work = ray.remote(max_retries=_RETRIES)(pack_shard)
    most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # tasks hold thousands of paths: not all at once
    while True:
        for task in islice(tasks, most - len(running)):
            running[work.remote(task)] = task
        if not running:
            return
        finished, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
        for reference in finished:
            report = _result(ray, reference)
            task = running.pop(reference)
            advance(len(task.inputs), sum(entry.size for entry in task.inputs))
            yield report


def _result(ray: Any, reference: Any) -> ShardReport:
    try:
        return ray.get(reference)  # type: ignore[no-any-return]
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"a Ray task was lost ({' '.join(str(error).split())[:200]}): finished shards are kept, "
            "run the same command again to go on"
        ) from error
