"""Measurements of several rounds as a table and as plain values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.registry import LIMIT, LOADERS, OURS
from wds_tools.bench.workloads import MAIN_PROCESS_STAGES, WORKER_STAGES, WORKLOADS
from wds_tools.wording import counted

_SAME_LEVELS = 2.0  # of 255, mean difference: above, pixels count as different
_SAME_EDGES = 1.0  # pixels


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of one loader.

    Attributes:
        cpu_seconds: CPU time of the process and its workers.
        memory_bytes: Memory of all of them at the end, without the page cache.
        first_batch_seconds: From the creation of the loader to its first batch, before the
            measurement.
    """

    images: int
    seconds: float
    cpu_seconds: float
    memory_bytes: int
    first_batch_seconds: float

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def cpu_per_1000(self) -> float:
        """CPU seconds per 1,000 images."""
        return 1000 * self.cpu_seconds / self.images


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest value of several rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def show(self, pattern: str) -> str:
        """Return ``median [lowest-highest]``, each with a format such as ``,.0f``."""
        if self.lowest == self.highest:
            return format(self.median, pattern)
        return f"{self.median:{pattern}} [{self.lowest:{pattern}}-{self.highest:{pattern}}]"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The dataset in a loader's own format, written before the rounds."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Results of `bench`.

    Attributes:
        mean_bytes: Mean size of a file that the workload reads.
        rounds: Measurements by loader; round i of all loaders took place one after another.
        missing: Loaders that were not measured, or failed, with the reason.
        pixels: Difference from our pixels in a fixed crop of the first images, of 255 levels: mean
            over an image, median over the images.
        boxes: Difference from our boxes in these images, in pixels: of each box the edge that differs most.
        prepared: By loader, for those that have a format of their own.
        crop_ready: Whether the dataset is crop-ready, so that all loaders decode files with restart
            markers.
        stages: Microseconds per image of each stage of our loader; empty unless measured.
        load: Load average of the machine before the start, as in ``os.getloadavg``.
    """

    work: str
    pictures: int
    copies: int
    mean_bytes: int
    workers: int
    batch_size: int
    rounds: dict[str, list[Round]]
    missing: dict[str, str]
    pixels: dict[str, float]
    boxes: dict[str, Spread]
    prepared: dict[str, Prepared]
    crop_ready: bool
    stages: dict[str, float]
    load: float
    machine: dict[str, str]

    def spread(self, name: str, value: Callable[[Round], float]) -> Spread:
        """Return the spread of a value over the rounds of a loader."""
        return Spread.of([value(measured) for measured in self.rounds[name]])

    def ratio(self, name: str, other: str, value: Callable[[Round], float]) -> Spread:
        """Return the spread of a loader's value divided by another loader's, round by round."""
        pairs = zip(self.rounds[name], self.rounds[other], strict=False)  # a loader that failed has fewer rounds
        return Spread.of([value(measured) / value(compared) for measured, compared in pairs])

    def speed(self, name: str) -> Spread:
        """Return the spread of a loader's images per second."""
        return self.spread(name, _speed)

    def of_limit(self, name: str) -> Spread:
        """Return the speed of a loader divided by that of the limit."""
        return self.ratio(name, LIMIT, _speed)

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain values, for JSON."""
        return {**asdict(self), "summary": {name: self._summary(name) for name in self.rounds}}

    def to_text(self) -> str:
        """Return the results as tables, followed by the notes."""
        measured = "\n".join(
            [*self._title(), "", *table([self._headings(), *(self._row(name) for name in self.rounds)])]
        )
        return "\n\n".join(filter(None, [measured, self._stages_text(), "\n".join(self._notes())]))

    def _stages_text(self) -> str:
        """Return the stages of our loader as a table, if they were measured."""
        if not self.stages:
            return ""
        worker = sum(self.stages[stage] for stage in WORKER_STAGES)
        main = sum(self.stages[stage] for stage in MAIN_PROCESS_STAGES)
        rows = [("stages of our loader", "us per image", "share")]
        rows += [(stage, f"{self.stages[stage]:,.1f}", f"{self.stages[stage] / worker:.0%}") for stage in WORKER_STAGES]
        rows.append(("one process, no workers", f"{worker:,.1f}", f"{1e6 / worker:,.0f} images/s"))
        for stage in MAIN_PROCESS_STAGES:
            rows.append((stage, f"{self.stages[stage]:,.1f}", f"{self.stages[stage] / main:.0%}"))
        rows.append((f"main process, {counted(self.workers, 'worker')}", f"{main:,.1f}", f"{1e6 / main:,.0f} images/s"))
        return "\n".join(table(rows))

    def _notes(self) -> list[str]:
        """Return the remarks that belong to the table."""
        notes = [f"{', '.join(names)}: {reason}" for reason, names in self._names_by_reason().items()]
        notes += [f"{name}: {LOADERS[name].note_for(self.work)}{self._own_format(name)}" for name in self.rounds]
        notes += [
            f"{name}: its pixels differ from ours by {levels:.1f} of 255 on average, so the work is not the same"
            for name, levels in self.pixels.items()
            if levels > _SAME_LEVELS
        ]
        notes += [
            f"{name}: an edge of its boxes differs from ours by {edges.median:.1f} pixels, so the work is not the same"
            for name, edges in self.boxes.items()
            if edges.median > _SAME_EDGES
        ]
        if self.crop_ready:
            notes.append(
                "the dataset is crop-ready: all loaders, 'ours' included, decode files with restart markers; pack with "
                "--images keep to compare on the original files"
            )
        if self.load > 1:
            notes.append(f"the machine was busy before the start: load {self.load:.1f}")
        notes.append(_COLUMNS_NOTE + (_BOXES_NOTE if self.boxes else ""))
        if self.stages:
            notes.append(_STAGES_NOTE)
        return [*notes, ", ".join(f"{name} {value}" for name, value in self.machine.items())]

    def _names_by_reason(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for name, reason in self.missing.items():
            names.setdefault(reason, []).append(name)
        return names

    def _summary(self, name: str) -> dict[str, Any]:
        return {
            "images_per_second": asdict(self.speed(name)),
            "cpu_seconds_per_1000": asdict(self.spread(name, _cpu)),
            "memory_bytes": asdict(self.spread(name, lambda r: r.memory_bytes)),
            "first_batch_seconds": asdict(self.spread(name, lambda r: r.first_batch_seconds)),
            "of_limit": asdict(self.of_limit(name)),
            "ours_is": asdict(self.ratio(OURS, name, _speed)),
            "ours_is_by_cpu": asdict(self.ratio(name, OURS, _cpu)),
        }

    def _row(self, name: str) -> tuple[str, ...]:
        return (
            name,
            self.speed(name).show(",.0f"),
            self.of_limit(name).show(".2f"),
            f"{self.ratio(OURS, name, _speed).show('.2f')} x" if name != OURS else "-",
            self._cpu_cell(name),
            f"{self.ratio(name, OURS, _cpu).show('.2f')} x" if name != OURS else "-",
            f"{self.spread(name, lambda r: r.memory_bytes).highest / 1e6:,.0f} MB",
            f"{self.spread(name, lambda r: r.first_batch_seconds).median:.2f} s",
            f"{self.pixels[name]:.2f}" if name in self.pixels else "-",
            *([self.boxes[name].show(".2f") if name in self.boxes else "-"] if self.boxes else []),
        )

    def _headings(self) -> tuple[str, ...]:
        return (*_HEADINGS, "boxes") if self.boxes else _HEADINGS

    def _cpu_cell(self, name: str) -> str:
        spread = self.spread(name, _cpu)
        return spread.show(".2f" if spread.median >= 0.1 else ".4f")

    def _title(self) -> list[str]:
        rounds = max((len(measured) for measured in self.rounds.values()), default=0)
        times = f" x {self.copies}" if self.copies > 1 else ""
        images = f"{self.pictures:,} images{times}, {self.mean_bytes / 1000:,.0f} kB each"
        how = "1 round" if rounds == 1 else f"{rounds} alternating rounds; median [lowest-highest]"
        workers = counted(self.workers, "worker")
        return [
            f"{self.work}: {WORKLOADS[self.work].title}; batches of {self.batch_size}, {workers}",
            f"{images}; {how}",
        ]

    def _own_format(self, name: str) -> str:
        prepared = self.prepared.get(name)
        if prepared is None:
            return ""
        share = prepared.bytes / (self.mean_bytes * self.pictures * self.copies)
        return f"; its own format took {prepared.seconds:.1f} s to write and has {share:.0%} of the bytes"


def _speed(measured: Round) -> float:
    return measured.speed


def _cpu(measured: Round) -> float:
    return measured.cpu_per_1000


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, headings first, as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


_HEADINGS = (
    "",
    "images/s",
    "of limit",
    "our speedup",
    "CPU-s/1,000",
    "by CPU time",
    "memory",
    "first batch",
    "pixels",
)
_COLUMNS_NOTE = (
    "our speedup: images/s of 'ours' divided by the images/s of the loader in this row, round by round; by CPU time: "
    "the same from CPU time, which other work on the machine disturbs less; memory: of all processes, without the page "
    "cache; pixels: mean difference from ours, of 255"
)
_BOXES_NOTE = "; boxes: of the edge of a box that differs most from ours, in pixels"
_STAGES_NOTE = (
    "stages: read looks up the bytes; a local shard is loaded from the disk when verify first touches the bytes. "
    "other: index, crops and remaining Python code; hand-over: sending tasks, receiving results, making tensors"
)
