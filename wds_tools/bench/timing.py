"""How a loader is timed: started, warmed up, measured between two batches, and ended before the next one starts.

This module is also imported in environments that have only numpy.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Collection, Generator
from contextlib import closing

from wds_tools.bench import procfs

_WORKER_EXIT_SECONDS = 60.0


def time_batches(start: Callable[[], Generator[int]], *, workers: int, seconds: float) -> dict[str, float]:
    """Start a loader, warm it up, and measure it between two batches that are at least ``seconds`` apart.

    Returns:
        The fields of a `report.Round`.
    """
    others = set(procfs.workers(os.getpid()))  # processes of the program that has called `tune`
    started = time.perf_counter()
    with closing(start()) as batches:
        next(batches)
        first = time.perf_counter() - started
        for _ in range(2 * workers):
            next(batches)
        measured = _measure(batches, seconds, workers)
    wait_for_workers(others)
    return {**measured, "first_batch_seconds": first}


def _measure(batches: Generator[int], seconds: float, workers: int) -> dict[str, float]:
    """Measure images, time, CPU time and memory.

    Workers that run in step deliver one batch each at about the same time, so a multiple of their
    number is measured.
    """
    images = count = 0
    cpu = procfs.cpu_seconds(os.getpid())
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds or count % workers:
        images += next(batches)
        count += 1
    used = procfs.cpu_seconds(os.getpid()) - cpu
    return {
        "images": images,
        "seconds": elapsed,
        "cpu_seconds": max(used, procfs.TICK_SECONDS),  # ratios need more than 0
        "memory_bytes": procfs.memory_bytes(os.getpid()),
    }


def wait_for_workers(others: Collection[int] = ()) -> None:
    """Wait until all workers have ended, so that they do not disturb the next loader."""
    gc.collect()  # a DataLoader ends its workers when its iterator is deleted
    deadline = time.monotonic() + _WORKER_EXIT_SECONDS
    while set(procfs.workers(os.getpid())).difference(others):
        if time.monotonic() > deadline:
            raise RuntimeError(f"worker processes were still running {_WORKER_EXIT_SECONDS:.0f} s after the round")
        time.sleep(0.02)
