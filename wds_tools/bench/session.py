"""One benchmark: sends each command to all loaders in turn and collects the results in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.bench.dataset import BenchDataset
from wds_tools.bench.process import LoaderProcess
from wds_tools.bench.registry import LIMIT, OURS
from wds_tools.bench.report import BenchReport, Prepared, Round, Spread
from wds_tools.bench.workloads import Setup
from wds_tools.errors import WorkerError
from wds_tools.terminal import phase_bar
from wds_tools.wording import counted

_FIRST_BATCH_SECONDS = 120.0  # allowed to a slow loader
_PREPARE_SECONDS = 1800.0  # allowed to a slow writer of the largest dataset

Progress = Callable[[str], None]


class Session:
    """Measures loaders in turn. A peer that fails is excluded from the rest; the limit and ours must not fail."""

    def __init__(self, processes: Sequence[LoaderProcess], setup: Setup, progress: Progress) -> None:
        self._processes = list(processes)
        self._setup = setup
        self._progress = progress
        self._rounds: dict[str, list[Round]] = {}
        self._missing: dict[str, str] = {}
        self._pixels: dict[str, float] = {}
        self._boxes: dict[str, Spread] = {}
        self._prepared: dict[str, Prepared] = {}
        self._stages: dict[str, float] = {}
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
            lambda p: p.call("prepare", self._values(p), timeout=_PREPARE_SECONDS), "writing their own formats"
        ):
            if result is not None:
                self._prepared[process.name] = prepared = Prepared(**result)
                self._progress(f"{process.name}: its own format written in {prepared.seconds:.1f} s")

    def compare(self) -> None:
        """Compare the pixels and boxes of the probes from each loader with those from ours."""
        pixels, boxes = self._probes()
        for name in [name for name in pixels if name != OURS]:
            differences = np.abs(pixels[name] - pixels[OURS]).mean(axis=(1, 2, 3))  # [probes]
            # The median, because peers do not apply the EXIF orientation.
            self._pixels[name] = float(np.median(differences))
            self._progress(f"{name}: pixels differ from ours by {self._pixels[name]:.2f} of 255")
        for name in [name for name in boxes if name != OURS]:
            if len(boxes[name]) != len(boxes[OURS]):
                self._processes = [process for process in self._processes if process.name != name]
                theirs, ours = (counted(len(boxes[loader]), "box", "boxes") for loader in (name, OURS))
                self._exclude(name, f"{theirs} of the compared images, but {ours} of ours")
                continue
            self._boxes[name] = Spread.of(np.abs(boxes[name] - boxes[OURS]).max(axis=1).tolist())
            self._progress(f"{name}: boxes differ from ours by {self._boxes[name].show('.2f')} pixels")

    def _probes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the pixels and the boxes of the probes by loader, of those that have them."""
        pixels: dict[str, Any] = {}
        boxes: dict[str, Any] = {}
        for process, _ in self._each(
            lambda p: p.call("probe", {**self._values(p), "file": self._probe_file(p)}), "comparing with ours"
        ):
            with np.load(self._probe_file(process), allow_pickle=False) as arrays:
                if "pixels" in arrays:
                    pixels[process.name] = arrays["pixels"].astype(np.int64)
                if "boxes" in arrays:
                    boxes[process.name] = arrays["boxes"].astype(np.float64)
        return pixels, boxes

    def measure(self, rounds: int, seconds: float) -> None:
        """Measure each loader once per round."""
        timeout = _FIRST_BATCH_SECONDS + 3 * seconds
        with phase_bar("measuring", rounds * len(self._processes)) as bar:
            for index in range(rounds):
                call = partial(self._measure_once, {"seed": index, "seconds": seconds}, timeout)
                for process, result in self._each(call, bar):
                    measured = Round(**result)
                    self._rounds.setdefault(process.name, []).append(measured)
                    self._progress(f"round {index + 1} of {rounds}: {process.name}: {measured.speed:,.0f} images/s")

    def _measure_once(self, values: dict[str, Any], timeout: float, process: LoaderProcess) -> Any:
        return process.call("measure_round", {**self._values(process), **values}, timeout=timeout)

    def measure_stages(self, seconds: float) -> None:
        """Measure the stages of our loader."""
        ours = next(process for process in self._processes if process.name == OURS)
        values = {**self._values(ours), "seconds": seconds}
        with phase_bar("measuring stages", 1) as bar:
            self._stages = ours.call("measure_stages", values, timeout=_FIRST_BATCH_SECONDS + 6 * seconds)
            bar.update(1)
        self._progress("stages of our loader: measured")

    def report(self, dataset: BenchDataset, load: float, machine: dict[str, str]) -> BenchReport:
        """Return the results."""
        return BenchReport(
            work=self._setup.workload,
            pictures=dataset.images,
            copies=dataset.copies,
            mean_bytes=dataset.bytes // (dataset.images * dataset.copies),
            workers=self._setup.workers,
            batch_size=self._setup.batch_size,
            rounds=self._rounds,
            missing=self._missing,
            pixels=self._pixels,
            boxes=self._boxes,
            prepared=self._prepared,
            crop_ready=dataset.crop_ready,
            stages=self._stages,
            load=load,
            machine={**machine, **self._versions},
        )

    def _each(self, call: Callable[[LoaderProcess], Any], bar: Any) -> Iterator[tuple[LoaderProcess, Any]]:
        """Call a function for each loader, and exclude a peer for which it fails."""
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

    def _values(self, process: LoaderProcess) -> dict[str, Any]:
        """Return the setup as one loader gets it."""
        return {"setup": replace(self._setup, name=process.name).to_json()}

    def _probe_file(self, process: LoaderProcess) -> str:
        return str(Path(self._setup.folder) / f"{process.name}.npz")
