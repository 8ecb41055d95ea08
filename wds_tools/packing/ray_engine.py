"""Pack each shard as a task of Ray Core, on all machines of a Ray cluster.

The destination must be a folder that all machines share.
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

_RETRIES = 3  # retries of a task whose process or machine was lost; it writes the same bytes again
_POLL_SECONDS = 0.5


def run_on_ray(
    tasks: Iterator[ShardTask], *, advance: Callable[[int, int], None]
) -> Generator[ShardReport, None, None]:
    """Pack shards as Ray tasks, and yield their reports in the order of completion. Close the generator to cancel.

    Args:
        tasks: One task per shard.
        advance: Called with the samples and bytes of each finished shard.

    Raises:
        OptionError: Ray is not installed.
        DestinationError: A shard cannot be written.
        WorkerError: The process or machine of a task was lost on every retry.
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


def _collect(
    ray: Any, tasks: Iterator[ShardTask], running: dict[Any, ShardTask], advance: Callable[[int, int], None]
) -> Iterator[ShardReport]:
    remote_pack = ray.remote(max_retries=_RETRIES)(pack_shard)
    # A task holds thousands of paths, so not all are created at once.
    max_pending = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    while True:
        for task in islice(tasks, max_pending - len(running)):
            running[remote_pack.remote(task)] = task
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
            "run the same command again to continue"
        ) from error
