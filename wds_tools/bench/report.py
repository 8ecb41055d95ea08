"""What was measured: rounds in, a table or plain values out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.registry import CONTENDERS, LIMIT, OURS
from wds_tools.bench.workloads import IN_A_WORKER, IN_THE_MAIN_PROCESS, WORKS

_SAME_LEVELS = 2.0  # of 255, on average: beyond, pixels count as different


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one contender.

    Attributes:
        images: Made between the first and the last batch that count.
        seconds: Between them, by the clock.
        cpu_seconds: Of the process and its workers in that time.
        memory_bytes: Of all of them at the end, without the page cache.
        first_batch_seconds: From the making of the loader to its first batch.
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
        """CPU-seconds per 1,000 images."""
        return 1000 * self.cpu_seconds / self.images


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest of some rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up values, at least one."""
        return cls(statistics.median(values), min(values), max(values))

    def show(self, pattern: str) -> str:
        """Return ``median [lowest-highest]``, each by a format such as ``,.0f``."""
        if self.lowest == self.highest:
            return format(self.median, pattern)
        return f"{self.median:{pattern}} [{self.lowest:{pattern}}-{self.highest:{pattern}}]"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a contender did before the rounds, which counts in none of them.

    Attributes:
        seconds: To write the material in its own format.
        bytes: Of that.
    """

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What `bench` found with one number of workers.

    Attributes:
        work: Name of the work.
        pictures: Different pictures.
        copies: How often each one is in an epoch.
        mean_bytes: Of a file that the work reads.
        workers: Processes that decode, of each contender.
        batch_size: Images per batch.
        rounds: Of each contender, in order; round i of all of them took place one after another.
        missing: Contenders that did not take part or did not finish, with the reason.
        pixels: Difference to our pixels of a fixed part of the first pictures, in levels of 255: the mean over a
            picture, the median over pictures.
        prepared: Of each contender with a format of its own.
        crop_ready: Whether the dataset's pictures are, so that all contenders decode files with restart markers.
        stages: Microseconds per picture of each stage of our path; empty if that was not asked for.
        load: What the machine had to do before the start, as ``os.getloadavg`` has it.
        machine: Processor, cores and versions.
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
    prepared: dict[str, Prepared]
    crop_ready: bool
    stages: dict[str, float]
    load: float
    machine: dict[str, str]

    def spread(self, name: str, figure: Callable[[Round], float]) -> Spread:
        """Return a figure of a contender over its rounds."""
        return Spread.of([figure(measured) for measured in self.rounds[name]])

    def ratio(self, name: str, other: str, figure: Callable[[Round], float]) -> Spread:
        """Return a figure of a contender divided by that of another, round by round."""
        pairs = zip(self.rounds[name], self.rounds[other], strict=False)  # one that failed has fewer
        return Spread.of([figure(one) / figure(two) for one, two in pairs])

    def of_limit(self, name: str) -> Spread:
        """Return the speed of a contender divided by that of the limit."""
        return self.ratio(name, LIMIT, _speed)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**asdict(self), "summary": {name: self._summary(name) for name in self.rounds}}

    def render(self) -> str:
        """Return the table."""
        return "\n".join([*self._title(), "", *table([_HEAD, *(self._row(name) for name in self.rounds)])])

    def render_stages(self) -> str:
        """Return the table of our own path."""
        worker = sum(self.stages[stage] for stage in IN_A_WORKER)
        main = sum(self.stages[stage] for stage in IN_THE_MAIN_PROCESS)
        rows = [("our own path", "us per image", "share")]
        rows += [(stage, f"{self.stages[stage]:,.1f}", f"{self.stages[stage] / worker:.0%}") for stage in IN_A_WORKER]
        rows.append(("one process, no workers", f"{worker:,.1f}", f"{1e6 / worker:,.0f} images/s"))
        for stage in IN_THE_MAIN_PROCESS:
            rows.append((stage, f"{self.stages[stage]:,.1f}", f"{self.stages[stage] / main:.0%}"))
        rows.append((f"main process, {_workers(self.workers)}", f"{main:,.1f}", f"{1e6 / main:,.0f} images/s"))
        return "\n".join(table(rows))

    def _summary(self, name: str) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "images_per_second": asdict(self.spread(name, _speed)),
            "cpu_seconds_per_1000": asdict(self.spread(name, _cpu)),
            "memory_bytes": asdict(self.spread(name, lambda r: r.memory_bytes)),
            "first_batch_seconds": asdict(self.spread(name, lambda r: r.first_batch_seconds)),
        }
        return {
            **figures,
            "of_limit": asdict(self.of_limit(name)),
            "ours_is": asdict(self.ratio(OURS, name, _speed)),
            "ours_is_by_cpu": asdict(self.ratio(name, OURS, _cpu)),
        }

    def _row(self, name: str) -> tuple[str, ...]:
        return (
            name,
            self.spread(name, _speed).show(",.0f"),
            self.of_limit(name).show(".2f"),
            f"{self.ratio(OURS, name, _speed).show('.2f')} x" if name != OURS else "-",
            self._cpu_cell(name),
            f"{self.ratio(name, OURS, _cpu).show('.2f')} x" if name != OURS else "-",
            f"{self.spread(name, lambda r: r.memory_bytes).highest / 1e6:,.0f} MB",
            f"{self.spread(name, lambda r: r.first_batch_seconds).median:.2f} s",
            f"{self.pixels[name]:.2f}" if name in self.pixels else "-",
        )

    def _cpu_cell(self, name: str) -> str:
        spread = self.spread(name, _cpu)
        return spread.show(".2f" if spread.median >= 0.1 else ".4f")

    def _title(self) -> list[str]:
        rounds = max((len(found) for found in self.rounds.values()), default=0)
        times = f" x {self.copies}" if self.copies > 1 else ""
        pictures = f"{self.pictures:,} pictures{times}, {self.mean_bytes / 1000:,.0f} kB each"
        turns = "1 round" if rounds == 1 else f"{rounds} rounds, alternating; median [lowest-highest]"
        return [
            f"{self.work}: {WORKS[self.work].says}; batches of {self.batch_size}, {_workers(self.workers)}",
            f"{pictures}; {turns}",
        ]

    def notes(self) -> list[str]:
        """Return what has to be known beside the table."""
        notes = [f"{name}: {reason}" for name, reason in self.missing.items()]
        notes += [f"{name}: {CONTENDERS[name].says(self.work)}{self._own_format(name)}" for name in self.rounds]
        notes += [
            f"{name}: its pixels differ from ours by {levels:.1f} of 255 on average, so it does other work"
            for name, levels in self.pixels.items()
            if levels > _SAME_LEVELS
        ]
        if self.crop_ready:
            notes.append(
                "the dataset is crop-ready, so 'ours' is too, and all decode files with restart markers; pack with "
                "--images keep to compare on the files as they were"
            )
        if self.load > 1:
            notes.append(f"the machine was busy before the start: load {self.load:.1f}")
        notes.append(
            "by CPU: as 'ours is', from CPU time, which other work on the machine disturbs less; memory: of all "
            "processes, without the page cache; pixels: mean difference to ours, of 255"
        )
        if self.stages:
            notes.append(_STAGES_NOTE)
        return [*notes, ", ".join(f"{name} {value}" for name, value in self.machine.items())]

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


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the first row of which is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


_STAGES_NOTE = (
    "stages: read is finding the bytes; of a local shard they come from the disk when verify touches them first. "
    "other: index, crops and the Python around; hand-over: sending tasks, taking results, making tensors"
)
_HEAD = ("", "images/s", "of limit", "ours is", "CPU-s/1,000", "by CPU", "memory", "first batch", "pixels")
