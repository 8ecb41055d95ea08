"""How a loader is timed: started, warmed up, measured between two batches, and gone before the next one starts.

This module is imported in environments that may have nothing but numpy.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing

from wds_tools.bench import procfs

_ENDING_SECONDS = 10.0


def time_batches(start: Callable[[], Generator[int]], *, workers: int, seconds: float) -> dict[str, float]:
    """Start a loader, warm it up, and measure it between two batches at least ``seconds`` apart.

    Args:
        start: Returns what yields the number of samples of each batch; closing it ends all workers.
        workers: Processes or threads that decode, 1 if there are none beside this process.
        seconds: Least duration.

    Returns:
        The fields of a `report.Round`.
    """
    started = time.perf_counter()
    with closing(start()) as batches:
        next(batches)
        first = time.perf_counter() - started
        for _ in range(2 * workers):
            next(batches)
        measured = _measure(batches, seconds, workers)
    wait_for_workers()
    return {**measured, "first_batch_seconds": first}


def _measure(batches: Generator[int], seconds: float, workers: int) -> dict[str, float]:
    """Count images, time, CPU time and memory.

    Workers in step deliver in bursts of one batch each; so the count ends at a whole number of bursts.
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
        "cpu_seconds": max(used, procfs.TICK_SECONDS),  # ratios need more than nothing
        "memory_bytes": procfs.memory_bytes(os.getpid()),
    }


def wait_for_workers() -> None:
    """Return when all workers have ended, so that they take nothing from the next contender."""
    gc.collect()  # a DataLoader ends its workers when its iterator goes
    patience = time.monotonic() + _ENDING_SECONDS
    while procfs.workers(os.getpid()):
        if time.monotonic() > patience:
            raise RuntimeError(f"worker processes were still there {_ENDING_SECONDS:.0f} s after the round")
        time.sleep(0.02)
