"""`tune`: measures how a dataset is best loaded on this machine.

Each measurement has a loader of its own, in this one process, and is over when its last worker has ended. A process
each would spend two seconds importing torch, and what could be carried over from one loader to the next, the page
cache, processes share anyhow. Against that each measurement has an order of its own, so that none finds in memory what
the one before has read; against everything else, the numbers are measured in turn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial

from wds_tools.bench import procfs
from wds_tools.bench.report import Round
from wds_tools.bench.run import machine
from wds_tools.bench.session import Progress
from wds_tools.bench.timing import time_batches
from wds_tools.bench.tune_report import Proposal, Task, between, ladder, smallest
from wds_tools.bench.workloads import WORKS
from wds_tools.errors import OptionError
from wds_tools.format.manifest import Manifest
from wds_tools.images.views import Resize, View
from wds_tools.loading.loader import Loader, make_loader
from wds_tools.options import available_cores, check_counts, check_seconds
from wds_tools.reading.shardset import open_shards

VIEWS = ("train", "eval", "small", "raw")
_PREFETCH = (1, 2, 4)
_USUAL_PREFETCH = 2


def tune(
    dataset: str | os.PathLike[str],
    *,
    view: str = "train",
    batch_size: int | None = None,
    device: str | None = None,
    rounds: int = 3,
    seconds: float = 3.0,
    progress: Progress | None = None,
) -> Proposal:
    """Measure the loader on a dataset with different numbers of workers, then with different ``prefetch_factor``.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        view: ``train``, ``eval`` or ``small``, as in `bench`, or ``raw``: pictures that have one size, as they are.
        batch_size: Samples per batch; by default what the work says.
        device: Where batches go, such as ``cuda``; None is memory.
        rounds: How often each number is measured.
        seconds: Least duration of a measurement.
        progress: Called with a line of text after each step.

    Returns:
        The figures, and what to do with them: ``render()``.

    Raises:
        OptionError: An argument that cannot be, or no Linux.
        NotADatasetError: There is no dataset.
        DeviceError: The device is not there.

    Example::

        print(tune("shards/photos", seconds=5).call())
    """
    _check(view, batch_size, rounds, seconds)
    task, load = _task(os.fspath(dataset), view, batch_size, device), os.getloadavg()[0]
    gauge = _Gauge(task, seconds, progress or (lambda _line: None))
    gauge.warm_up()
    counts = ladder(task.cores)
    if len(counts) <= task.cores:  # not each number is on it
        counts = sorted({*counts, *between(counts, smallest(gauge.in_turn(1, _with_workers(counts))))})
    workers = gauge.in_turn(rounds, _with_workers(counts))
    chosen = smallest(workers)
    prefetch = gauge.in_turn(rounds, {factor: (chosen, factor) for factor in _PREFETCH})
    return Proposal(task, workers, prefetch, load, machine())


class _Gauge:
    """Measures loaders one after another, each with an order of its own."""

    def __init__(self, task: Task, seconds: float, tell: Progress) -> None:
        self._task = task
        self._seconds = seconds
        self._tell = tell
        self._measured = 0

    def warm_up(self) -> None:
        """Measure once for nothing: files, libraries and the device are then no longer new."""
        self._tell("warming up")
        self._measure(self._task.cores, _USUAL_PREFETCH)

    def in_turn(self, rounds: int, settings: Mapping[int, tuple[int, int]]) -> dict[int, list[Round]]:
        """Measure settings in turn, round by round; they are workers and prefetch_factor, by a number to call them."""
        found: dict[int, list[Round]] = {number: [] for number in settings}
        for turn in range(rounds):
            for number, (workers, prefetch) in settings.items():
                found[number].append(self._measure(workers, prefetch))
                self._tell(
                    f"round {turn + 1} of {rounds}: num_workers={workers}, prefetch_factor={prefetch}: "
                    f"{found[number][-1].speed:,.0f} images/s"
                )
        return found

    def _measure(self, workers: int, prefetch: int) -> Round:
        self._measured += 1
        start = partial(_batches, self._task, workers, prefetch, self._measured)
        return Round(**time_batches(start, workers=max(1, workers), seconds=self._seconds))  # type: ignore[arg-type]


def _with_workers(counts: Iterable[int]) -> dict[int, tuple[int, int]]:
    return {count: (count, _USUAL_PREFETCH) for count in counts}


def _batches(task: Task, workers: int, prefetch: int, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch, epoch after epoch."""
    with _loader(task, workers, prefetch, seed) as loader:
        while True:
            for batch in loader:
                yield len(batch[0])


def _loader(task: Task, workers: int, prefetch: int, seed: int) -> Loader:
    return make_loader(
        task.dataset,
        batch_size=task.batch_size,
        view=task.view,
        fields=task.fields,
        shuffle=True,
        seed=seed,
        num_workers=workers,
        prefetch_factor=prefetch,
        device=task.device,
    )


def _task(dataset: str, work: str, batch_size: int | None, device: str | None) -> Task:
    """Find the dataset and the device, and say what is measured; a loader that is never run checks all of it."""
    manifest = open_shards(dataset).manifest
    view = _view(work, manifest)
    task = Task(
        dataset=dataset,
        work=work,
        view=view,
        fields=("image", "label") if "cls" in manifest.fields else ("image",),
        batch_size=WORKS[work].batch_size if batch_size is None else batch_size,
        device=None if device in (None, "cpu") else device,
        image_bytes=3 * math.prod(view.shape or (0, 0)),
        steps=0,
        cores=available_cores(),
    )
    return replace(task, steps=len(_loader(task, 0, 1, 0)))


def _view(work: str, manifest: Manifest) -> View:
    view = WORKS[work].view
    if view is not None:
        return view
    images = manifest.images
    if images is None or (images.min_width, images.min_height) != (images.max_width, images.max_height):
        sizes = (
            f"{images.min_width}x{images.min_height} to {images.max_width}x{images.max_height}" if images else "none"
        )
        raise OptionError(
            f"view={work!r} is for pictures of one size, taken as they are; here they are {sizes} pixels: take another "
            "view, or pack with --images raw --resize WIDTHxHEIGHT"
        )
    return Resize((images.max_height, images.max_width))


def _check(view: str, batch_size: int | None, rounds: int, seconds: float) -> None:
    if view not in VIEWS:
        raise OptionError(f"view={view!r}; allowed are {', '.join(VIEWS)}")
    check_counts({"batch_size": batch_size, "rounds": rounds})
    check_seconds("seconds", seconds)
    procfs.check_available()
