"""`tune()`: measures a dataset with different numbers of workers.

All loaders are measured in this process, one after another: a process for each would import torch
for two seconds every time, and the page cache is shared between processes anyway. Each measurement
has its own order of samples, so that it does not profit from what the one before has read into the
page cache. Rounds alternate, so that other work on the machine disturbs all settings alike.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

from wds_tools.bench import procfs
from wds_tools.bench.report import Round
from wds_tools.bench.run import machine
from wds_tools.bench.session import Progress
from wds_tools.bench.timing import time_batches
from wds_tools.bench.tune_report import TuneReport, TuneSetup, counts_below, smallest_sufficient, worker_counts
from wds_tools.bench.workloads import WORKLOADS
from wds_tools.errors import OptionError
from wds_tools.format.manifest import Manifest
from wds_tools.images.views import Resize, View
from wds_tools.loading.factory import make_loader
from wds_tools.loading.loader import Loader
from wds_tools.options import RemoteOptions, available_cores, check_counts, check_seconds
from wds_tools.reading.opening import open_shards
from wds_tools.terminal import phase_bar

VIEWS = ("train", "eval", "small", "raw")


def tune(
    dataset: str | os.PathLike[str],
    *,
    view: str = "train",
    batch_size: int | None = None,
    device: str | None = None,
    rounds: int = 3,
    seconds: float = 3.0,
    progress: Progress | None = None,
    remote: RemoteOptions | None = None,
) -> TuneReport:
    """Measure our loader with different numbers of workers.

    If stderr is a terminal, it shows a progress bar.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        view: ``train``, ``eval`` or ``small``, as in `bench`, or ``raw``: stored images, all of one
            size.
        batch_size: Samples per batch; by default that of the workload.
        device: Device that batches are copied to, such as ``cuda``; None leaves them in memory.
        rounds: How often each setting is measured.
        seconds: Minimum duration of a measurement.
        progress: Called with a line of text after each step.
        remote: How URLs are read; None uses the defaults.

    Raises:
        OptionError: An invalid argument, or the system is not Linux.
        NotADatasetError: ``dataset`` is not a dataset.
        DeviceError: The device is not available.

    Example::

        print(tune("shards/photos", seconds=5).call())
    """
    _check(view, batch_size, rounds, seconds)
    setup, load = _setup(os.fspath(dataset), view, batch_size, device, remote), os.getloadavg()[0]
    meter = _Meter(setup, seconds, progress or (lambda _line: None), remote)
    meter.warm_up()
    counts = worker_counts(setup.cores)
    if len(counts) <= setup.cores:  # some numbers are left out
        first = meter.measure(1, counts)
        counts = sorted({*counts, *counts_below(counts, smallest_sufficient(first))})
    return TuneReport(setup, meter.measure(rounds, counts), load, machine())


class _Meter:
    """Measures loaders one after another, each with its own order of samples."""

    def __init__(self, setup: TuneSetup, seconds: float, progress: Progress, remote: RemoteOptions | None) -> None:
        self._setup = setup
        self._remote = remote  # not in the setup, which is part of the report
        self._seconds = seconds
        self._progress = progress
        self._measured = 0

    def warm_up(self) -> None:
        """Measure once and drop the result: the first use of files, libraries and device takes longer."""
        self._progress("warming up")
        self._measure_once(self._setup.cores)

    def measure(self, rounds: int, counts: Sequence[int]) -> dict[int, list[Round]]:
        """Measure numbers of workers in alternating rounds, and return the rounds of each."""
        results: dict[int, list[Round]] = {workers: [] for workers in counts}
        with phase_bar("measuring", rounds * len(counts)) as bar:
            for index in range(rounds):
                for workers in counts:
                    measured = self._measure_once(workers)
                    results[workers].append(measured)
                    self._progress(
                        f"round {index + 1} of {rounds}: num_workers={workers}: {measured.speed:,.0f} images/s"
                    )
                    bar.update(1)
        return results

    def _measure_once(self, workers: int) -> Round:
        self._measured += 1
        start = partial(_batch_sizes, self._setup, workers, self._measured, self._remote)
        return Round(**time_batches(start, workers=max(1, workers), seconds=self._seconds))  # type: ignore[arg-type]


def _batch_sizes(setup: TuneSetup, workers: int, seed: int, remote: RemoteOptions | None) -> Generator[int]:
    """Yield the number of samples of each batch, epoch after epoch."""
    with _open_loader(setup, workers, seed, remote) as loader:
        while True:
            for batch in loader:
                yield len(batch[0])


def _open_loader(setup: TuneSetup, workers: int, seed: int, remote: RemoteOptions | None) -> Loader:
    return make_loader(
        setup.dataset,
        batch_size=setup.batch_size,
        view=setup.view,
        fields=setup.fields,
        shuffle=True,
        seed=seed,
        num_workers=workers,
        device=setup.device,
        storage_options=remote.storage_options if remote else None,
    )


def _setup(
    dataset: str,
    workload: str,
    batch_size: int | None,
    device: str | None,
    remote: RemoteOptions | None,
) -> TuneSetup:
    """Return what is measured; a loader that does not run checks dataset, device and batch size."""
    manifest = open_shards(dataset, remote=remote).manifest
    view = _view(workload, manifest)
    setup = TuneSetup(
        dataset=dataset,
        work=workload,
        view=view,
        fields=("image", "label") if manifest.has_labels else ("image",),
        batch_size=WORKLOADS[workload].batch_size if batch_size is None else batch_size,
        device=None if device in (None, "cpu") else device,
        image_bytes=3 * math.prod(view.shape or (0, 0)),
        steps=0,
        cores=available_cores(),
    )
    return replace(setup, steps=len(_open_loader(setup, 0, 0, remote)))


def _view(workload: str, manifest: Manifest) -> View:
    view = WORKLOADS[workload].view
    if view is not None:
        return view
    images = manifest.images
    if images is None or (images.min_width, images.min_height) != (images.max_width, images.max_height):
        sizes = (
            f"its images have {images.min_width}x{images.min_height} to {images.max_width}x{images.max_height} pixels"
            if images
            else "it has no images"
        )
        raise OptionError(
            f"view={workload!r} requires a dataset with images of one size, but {sizes}: choose another view, or pack "
            "with --images raw --resize WIDTHxHEIGHT"
        )
    return Resize((images.max_height, images.max_width))


def _check(view: str, batch_size: int | None, rounds: int, seconds: float) -> None:
    if view not in VIEWS:
        raise OptionError(f"view={view!r}; allowed are {', '.join(VIEWS)}")
    check_counts({"batch_size": batch_size, "rounds": rounds})
    check_seconds("seconds", seconds)
    procfs.check_available()
