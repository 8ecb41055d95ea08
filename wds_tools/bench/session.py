"""One benchmark: sends each command to all loaders in turn and collects the results in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.bench.dataset import BenchDataset
from wds_tools.bench.process import LoaderProcess
from wds_tools.bench.registry import LIMIT, OURS
from wds_tools.bench.report import BenchReport, Prepared, Round
from wds_tools.bench.scaling import BenchReports
from wds_tools.bench.workloads import Setup
from wds_tools.errors import WorkerError
from wds_tools.terminal import phase_bar
from wds_tools.wording import counted

_FIRST_BATCH_SECONDS = 120.0  # allowed to a slow loader
_PREPARE_SECONDS = 1800.0  # allowed to a slow writer of the largest dataset

Progress = Callable[[str], None]


class Session:
    """Measures loaders in turn. A peer that fails is excluded from the rest; the limit and ours must not fail.

    Args:
        processes: One process per loader, started.
        setup: What all loaders get; name and number of workers are replaced for each.
        progress: Called with a line of text after each step.
    """

    def __init__(self, processes: Sequence[LoaderProcess], setup: Setup, progress: Progress) -> None:
        self._processes = list(processes)
        self._setup = setup
        self._progress = progress
        self._rounds: dict[int, dict[str, list[Round]]] = {}
        self._missing: dict[str, str] = {}
        self._pixels: dict[str, float] = {}
        self._prepared: dict[str, Prepared] = {}
        self._stages: dict[int, dict[str, float]] = {}
        self._versions: dict[str, str] = {}

    def exclude(self, reasons: Mapping[str, str]) -> None:
        """Report peers that are not measured, with the reasons."""
        for name, reason in reasons.items():
            self._exclude(name, reason)

    def load(self) -> None:
        """Wait until every loader is imported."""
        for process, _ in self._each(lambda p: p.wait_until_loaded(), "starting the loaders"):
            prefix = f"{process.name}: " if process.python else ""
            self._versions.update({prefix + package: version for package, version in process.versions.items()})

    def prepare(self) -> None:
        """Let the loaders that have a format of their own write it."""
        for process, result in self._each(
            lambda p: p.call("prepare", self._values(p), timeout=_PREPARE_SECONDS), "writing formats of their own"
        ):
            if result is not None:
                self._prepared[process.name] = prepared = Prepared(**result)
                self._progress(f"{process.name}: its own format written in {prepared.seconds:.1f} s")

    def compare_pixels(self) -> None:
        """Compare the pixels of the probes from each loader with those from ours."""
        pixels: dict[str, Any] = {}
        for process, supported in self._each(
            lambda p: p.call("probe_pixels", {**self._values(p), "file": self._pixel_file(p)}), "comparing pixels"
        ):
            if supported:
                pixels[process.name] = np.load(self._pixel_file(process), allow_pickle=False).astype(np.int64)
        for name in [name for name in pixels if name != OURS]:
            differences = np.abs(pixels[name] - pixels[OURS]).mean(axis=(1, 2, 3))  # [probes]
            # The median, because peers do not apply the EXIF orientation.
            self._pixels[name] = float(np.median(differences))
            self._progress(f"{name}: pixels differ from ours by {self._pixels[name]:.2f} of 255")

    def measure(self, counts: Sequence[int], rounds: int, seconds: float) -> None:
        """Measure each loader once per round with each number of workers."""
        with phase_bar("measuring", rounds * len(counts) * len(self._processes)) as bar:
            for number in range(rounds):
                for workers in counts:
                    self._measure_round(workers, number, rounds, seconds, bar)

    def _measure_round(self, workers: int, number: int, rounds: int, seconds: float, bar: Any) -> None:
        results = self._rounds.setdefault(workers, {})
        values = {"seed": number, "seconds": seconds}
        timeout = _FIRST_BATCH_SECONDS + 3 * seconds
        for process, result in self._each(
            lambda p: p.call("measure_round", {**self._values(p, workers), **values}, timeout=timeout), bar
        ):
            measured = Round(**result)
            results.setdefault(process.name, []).append(measured)
            self._progress(
                f"round {number + 1} of {rounds}: {process.name}, {counted(workers, 'worker')}: "
                f"{measured.speed:,.0f} images/s"
            )

    def measure_stages(self, counts: Sequence[int], seconds: float) -> None:
        """Measure the stages of our loader with each number of workers."""
        ours = next(process for process in self._processes if process.name == OURS)
        for workers in phase_bar("measuring stages", counts):
            values = {**self._values(ours, workers), "seconds": seconds}
            self._stages[workers] = ours.call("measure_stages", values, timeout=_FIRST_BATCH_SECONDS + 6 * seconds)
            self._progress(f"stages of our loader, {counted(workers, 'worker')}: measured")

    def reports(self, dataset: BenchDataset, load: float, machine: dict[str, str]) -> BenchReports:
        """Return the results.

        Args:
            dataset: The dataset that was read.
            load: Load average of the machine before the start.
            machine: Processor, cores and versions.
        """
        reports = [
            BenchReport(
                work=self._setup.workload,
                pictures=dataset.images,
                copies=dataset.copies,
                mean_bytes=dataset.bytes // (dataset.images * dataset.copies),
                workers=workers,
                batch_size=self._setup.batch_size,
                rounds=rounds,
                missing=self._missing,
                pixels=self._pixels,
                prepared=self._prepared,
                crop_ready=dataset.crop_ready,
                stages=self._stages.get(workers, {}),
                load=load,
                machine={**machine, **self._versions},
            )
            for workers, rounds in self._rounds.items()
        ]
        return BenchReports(tuple(reports))

    def _each(self, call: Callable[[LoaderProcess], Any], bar: Any) -> Iterator[tuple[LoaderProcess, Any]]:
        """Call a function for each loader, and exclude a peer for which it fails.

        Args:
            call: The function.
            bar: Progress bar, which advances by 1 for each loader; or the description of a new one.
        """
        if isinstance(bar, str):
            with phase_bar(bar, len(self._processes)) as own:
                yield from self._each(call, own)
            return
        for process in list(self._processes):
            try:
                yield process, call(process)
            except WorkerError as error:
                if process.name in (LIMIT, OURS):
                    raise
                self._processes.remove(process)
                self._exclude(process.name, str(error))
            bar.update(1)

    def _exclude(self, name: str, reason: str) -> None:
        self._missing[name] = reason
        self._progress(f"{name}: {reason}")

    def _values(self, process: LoaderProcess, workers: int | None = None) -> dict[str, Any]:
        """Return the setup as one loader gets it."""
        own = replace(self._setup, name=process.name, workers=workers or self._setup.workers)
        return {"setup": own.to_json()}

    def _pixel_file(self, process: LoaderProcess) -> str:
        return str(Path(self._setup.folder) / f"{process.name}.npy")
