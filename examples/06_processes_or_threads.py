"""Compare worker processes with threads: the measurements of docs/performance.md under "Processes or threads".

    python examples/01_pack_folder.py                      # writes shards/photos
    python examples/06_processes_or_threads.py shards/photos

The loader is the same in all cases. Only the work on a batch is replaced: each thread of a worker makes a part of it.
Decoding and resizing release Python's lock. This is the best case for threads: they run in another process than the
training loop, which therefore does not compete for their lock. Cases are measured in turn.
"""

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wds_tools as wt
from wds_tools.bench.report import Round, Spread, table
from wds_tools.bench.timing import time_batches
from wds_tools.loading.fields.collate import join_parts
from wds_tools.loading.pipeline import pipeline as pipeline_module
from wds_tools.loading.pipeline.ring import Ring
from wds_tools.loading.pipeline.tasks import BatchRunner, BatchTask, TaskResult
from wds_tools.loading.samples.assemble import Recipe
from wds_tools.stages import Shown

VIEW = wt.RandomResizedCrop(224, flip=True)
CASES = [(cores, workers, threads) for cores in (1, 2) for workers, threads in ((1, 1), (1, 2), (2, 1), (2, 2))]
ROOT = Path(__file__).resolve().parent.parent


class ThreadedRunner:
    """Replaces `wds_tools.loading.pipeline.tasks.BatchRunner` in a worker: each thread loads a part."""

    def __init__(self, recipe: Recipe, ring: Ring, threads: int) -> None:
        self.runners = [BatchRunner(recipe, ring) for _ in range(threads)]
        self.pool: ThreadPoolExecutor | None = None

    def show_stage_in(self, shown: Shown) -> None:
        """Show the stage of the first thread."""
        self.runners[0].show_stage_in(shown)

    def read_ahead(self, task: BatchTask) -> None:
        """Start reading for a task."""
        self.runners[0].read_ahead(task)

    def run(self, task: BatchTask) -> TaskResult:
        """Make samples: their images in the task's slot, the labels as the result. The times are those of one part."""
        if self.pool is None:  # only here, in the worker
            self.pool = ThreadPoolExecutor(len(self.runners), initializer=torch.set_num_threads, initargs=(1,))
        edges = np.linspace(0, len(task.ids), len(self.runners) + 1).astype(int).tolist()
        parts = [
            replace(task, start=task.start + start, positions=task.positions[start:stop], ids=task.ids[start:stop])
            for start, stop in pairwise(edges)
        ]
        results = list(self.pool.map(BatchRunner.run, self.runners, parts))
        return results[0]._replace(value=join_parts([result.value for result in results]))


@contextmanager
def loading(data: str, batch_size: int, workers: int, threads: int, seed: int) -> Iterator[Any]:
    pipeline_module.BatchRunner = BatchRunner if threads == 1 else partial(ThreadedRunner, threads=threads)
    with wt.make_loader(data, batch_size=batch_size, view=VIEW, shuffle=True, seed=seed, num_workers=workers) as loader:
        yield loader


def batches(*setting: Any) -> Iterator[int]:
    with loading(*setting) as loader:
        while True:
            for images, _labels in loader:
                yield len(images)


def measure(data: str, batch_size: int, case: tuple[int, int, int], seed: int, seconds: float) -> Round:
    cores, workers, threads = case
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])  # inherited by the workers
    try:
        start = partial(batches, data, batch_size, workers, threads, seed)
        return Round(**time_batches(start, workers=workers, seconds=seconds))
    finally:
        os.sched_setaffinity(0, before)


def check_pixels(data: str, batch_size: int) -> None:
    """Check that a batch is the same with one and with two threads."""
    made = []
    for threads in (1, 2):
        with loading(data, batch_size, 1, threads, 0) as loader:
            images, labels = next(iter(loader))
            made.append((images.clone(), labels))
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True)), "threads changed the batch"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare worker processes with threads.")
    parser.add_argument("data", nargs="?", default=str(ROOT / "shards/photos"), help="a packed dataset with labels")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="minimum duration of each measurement")
    args = parser.parse_args()

    check_pixels(args.data, args.batch_size)
    cases = [case for case in CASES if case[0] <= len(os.sched_getaffinity(0))]
    measured: dict[tuple[int, int, int], list[Round]] = {case: [] for case in cases}
    for number in range(args.rounds):
        for case in cases:
            measured[case].append(measure(args.data, args.batch_size, case, number, args.seconds))
            print(f"round {number + 1}: {case}: {measured[case][-1].speed:,.0f} images/s", flush=True)

    rows = [("cores", "processes", "threads each", "images/s", "ratio to 1 thread", "CPU-s per 1,000", "memory")]
    for (cores, workers, threads), rounds in measured.items():
        one_thread = measured[cores, workers, 1]
        rows.append(
            (
                *map(str, (cores, workers, threads)),
                Spread.of([r.speed for r in rounds]).show(",.0f"),
                Spread.of([r.speed / other.speed for r, other in zip(rounds, one_thread, strict=True)]).show(".2f"),
                Spread.of([r.cpu_per_1000 for r in rounds]).show(".2f"),
                f"{max(r.memory_bytes for r in rounds) / 1e6:,.0f} MB",
            )
        )
    print("\n" + "\n".join(table(rows)))


if __name__ == "__main__":
    main()
