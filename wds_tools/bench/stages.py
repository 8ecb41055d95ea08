"""How our loader spends its time, by the stages that `wds_tools.stages` measures."""

from __future__ import annotations

import time

import torch

from wds_tools.bench.ours import open_loader
from wds_tools.bench.workloads import MAIN_PROCESS_STAGES, WORKER_STAGES, Setup
from wds_tools.loading.pipeline.statistics import PeriodStats


def measure_stages(setup: Setup, seconds: float) -> dict[str, float]:
    """Return the microseconds per sample of each stage; 0 for a stage that the workload does not have.

    The stages of a worker are measured in this process, without workers, and the stages of the main process
    with workers.
    """
    torch.set_num_threads(1)  # as in a worker
    stats, elapsed = _run(setup, seconds, num_workers=0)
    times = {stage: stats.stage_seconds[stage] for stage in WORKER_STAGES[:-1]}
    times["other"] = elapsed - sum(times.values())
    result = {stage: 1e6 * times[stage] / stats.samples for stage in WORKER_STAGES}
    stats, elapsed = _run(setup, seconds, num_workers=setup.workers)
    wait = stats.stage_seconds["wait"]
    times = {"hand-over": elapsed - wait, "wait": wait}
    return {**result, **{stage: 1e6 * times[stage] / stats.samples for stage in MAIN_PROCESS_STAGES}}


def _run(setup: Setup, seconds: float, *, num_workers: int) -> tuple[PeriodStats, float]:
    """Run the loader; return the statistics, and the elapsed seconds."""
    with open_loader(setup, 0, num_workers=num_workers) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)  # epoch after epoch
        for _ in range(2 * num_workers + 1):
            next(batches)
        loader.stats()
        begun = time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < seconds:
            next(batches)
        return loader.stats().since_last_call, elapsed
