"""One contest: what all contenders are asked, in turn, and what is kept of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.bench.dataset import Material
from wds_tools.bench.process import Contestant
from wds_tools.bench.registry import CONTENDERS, LIMIT, OURS
from wds_tools.bench.report import BenchReport, Prepared, Round
from wds_tools.bench.scaling import BenchReports
from wds_tools.bench.workloads import Setup
from wds_tools.errors import WorkerError

_START_SECONDS = 120.0  # for the first batch of a slow contender
_PREPARE_SECONDS = 1800.0  # for a slow writer, of the largest material

Progress = Callable[[str], None]


class Contest:
    """The contenders that are still in it, and what has been found."""

    def __init__(self, field: Sequence[Contestant], setup: Setup, tell: Progress) -> None:
        self._field = list(field)
        self._setup = setup
        self._tell = tell
        self._rounds: dict[int, dict[str, list[Round]]] = {}
        self._missing: dict[str, str] = {}
        self._pixels: dict[str, float] = {}
        self._prepared: dict[str, Prepared] = {}
        self._stages: dict[int, dict[str, float]] = {}
        self._versions: dict[str, str] = {}

    def refuse(self, names: Sequence[str]) -> None:
        """Leave out peers that do not do this work."""
        for name in names:
            self._leave_out(name, f"does not do {self._setup.work!r}; it does {', '.join(CONTENDERS[name].works)}")

    def load(self) -> None:
        """Wait until every contender is imported."""
        for contestant, _ in self._each(lambda c: c.wait_until_loaded()):
            place = f"{contestant.name}: " if contestant.python else ""
            self._versions.update({place + package: version for package, version in contestant.versions.items()})

    def prepare(self) -> None:
        """Have those with a format of their own write it."""
        for contestant, made in self._each(lambda c: c.ask("prepare", self._said(c), patience=_PREPARE_SECONDS)):
            if made is not None:
                self._prepared[contestant.name] = prepared = Prepared(**made)
                self._tell(f"{contestant.name}: its own format written in {prepared.seconds:.1f} s")

    def compare_pixels(self) -> None:
        """Have each contender make the same pictures, and compare them with ours."""
        shown: dict[str, Any] = {}
        for contestant, there in self._each(lambda c: c.ask("pictures", {**self._said(c), "file": self._file(c)})):
            if there:
                shown[contestant.name] = np.load(self._file(contestant), allow_pickle=False).astype(np.int64)
        for name in [name for name in shown if name != OURS]:
            apart = np.abs(shown[name] - shown[OURS]).mean(axis=(1, 2, 3))  # [pictures]
            # The median, because peers do not turn pictures as their EXIF orientation says.
            self._pixels[name] = float(np.median(apart))
            self._tell(f"{name}: pixels differ from ours by {self._pixels[name]:.2f} of 255")

    def round(self, workers: int, number: int, rounds: int, seconds: float) -> None:
        """Measure each contender once."""
        found = self._rounds.setdefault(workers, {})
        rest = {"seed": number, "seconds": seconds}
        patience = _START_SECONDS + 3 * seconds
        for contestant, answer in self._each(
            lambda c: c.ask("round", {**self._said(c, workers), **rest}, patience=patience)
        ):
            measured = Round(**answer)
            found.setdefault(contestant.name, []).append(measured)
            with_workers = f" with {workers}" if workers != self._setup.workers or len(self._rounds) > 1 else ""
            self._tell(
                f"round {number + 1} of {rounds}: {contestant.name}{with_workers} {measured.speed:,.0f} images/s"
            )

    def stages(self, counts: Sequence[int], seconds: float) -> None:
        """Measure the stages of our own path."""
        ours = next(contestant for contestant in self._field if contestant.name == OURS)
        for workers in counts:
            values = {**self._said(ours, workers), "seconds": seconds}
            self._stages[workers] = ours.ask("stages", values, patience=_START_SECONDS + 6 * seconds)
            self._tell(f"stages of our own path measured, workers: {workers}")

    def reports(self, material: Material, load: float, machine: dict[str, str]) -> BenchReports:
        """Return what has been found."""
        reports = [
            BenchReport(
                work=self._setup.work,
                pictures=material.pictures,
                copies=material.copies,
                mean_bytes=material.bytes // (material.pictures * material.copies),
                workers=workers,
                batch_size=self._setup.batch_size,
                rounds=rounds,
                missing=self._missing,
                pixels=self._pixels,
                prepared=self._prepared,
                crop_ready=material.crop_ready,
                stages=self._stages.get(workers, {}),
                load=load,
                machine={**machine, **self._versions},
            )
            for workers, rounds in self._rounds.items()
        ]
        return BenchReports(tuple(reports))

    def _each(self, job: Callable[[Contestant], Any]) -> Iterator[tuple[Contestant, Any]]:
        """Do something with each contender; one that fails is out."""
        for contestant in list(self._field):
            try:
                yield contestant, job(contestant)
            except WorkerError as error:
                if contestant.name in (LIMIT, OURS):
                    raise
                self._field.remove(contestant)
                self._leave_out(contestant.name, str(error))

    def _leave_out(self, name: str, reason: str) -> None:
        self._missing[name] = reason
        self._tell(f"{name}: {reason}")

    def _said(self, contestant: Contestant, workers: int | None = None) -> dict[str, Any]:
        """Return the setup as a contender is told it."""
        own = replace(self._setup, name=contestant.name, workers=workers or self._setup.workers)
        return {"setup": own.to_json()}

    def _file(self, contestant: Contestant) -> str:
        return str(Path(self._setup.folder) / f"{contestant.name}.npy")
