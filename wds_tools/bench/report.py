"""What was measured: rounds in, a table or plain values out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.works import CONTENDERS, LIMIT, OURS

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
class BenchReport:
    """What `bench` found.

    Attributes:
        work: Name of the work.
        view: What it is.
        pictures: Different pictures.
        copies: How often each one is in an epoch.
        mean_bytes: Of a picture's file.
        workers: Processes that decode, of each contender.
        batch_size: Images per batch.
        rounds: Of each contender, in order; round i of all of them took place one after another.
        missing: Contenders that did not take part or did not finish, with the reason.
        pixels: Difference to our pixels of a fixed part of the first pictures, in levels of 255: the mean over a
            picture, the median over pictures.
        load: What the machine had to do before the start, as ``os.getloadavg`` has it.
        machine: Processor, cores and versions.
    """

    work: str
    view: str
    pictures: int
    copies: int
    mean_bytes: int
    workers: int
    batch_size: int
    rounds: dict[str, list[Round]]
    missing: dict[str, str]
    pixels: dict[str, float]
    load: float
    machine: dict[str, str]

    def spread(self, name: str, figure: Callable[[Round], float]) -> Spread:
        """Return a figure of a contender over its rounds."""
        return Spread.of([figure(measured) for measured in self.rounds[name]])

    def ratio(self, name: str, other: str, figure: Callable[[Round], float]) -> Spread:
        """Return a figure of a contender divided by that of another, round by round."""
        pairs = zip(self.rounds[name], self.rounds[other], strict=False)  # one that failed has fewer
        return Spread.of([figure(one) / figure(two) for one, two in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**asdict(self), "summary": {name: self._summary(name) for name in self.rounds}}

    def render(self) -> str:
        """Return the table, with its notes."""
        rows = [_HEAD, *(self._row(name) for name in self.rounds)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*self._title(), "", *(line.rstrip() for line in lines), "", *self._notes()])

    def _summary(self, name: str) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "images_per_second": asdict(self.spread(name, _speed)),
            "cpu_seconds_per_1000": asdict(self.spread(name, _cpu)),
            "memory_bytes": asdict(self.spread(name, lambda r: r.memory_bytes)),
            "first_batch_seconds": asdict(self.spread(name, lambda r: r.first_batch_seconds)),
        }
        return {
            **figures,
            "of_limit": asdict(self.ratio(name, LIMIT, _speed)),
            "ours_is": asdict(self.ratio(OURS, name, _speed)),
            "ours_is_by_cpu": asdict(self.ratio(name, OURS, _cpu)),
        }

    def _row(self, name: str) -> tuple[str, ...]:
        return (
            name,
            self.spread(name, _speed).show(",.0f"),
            self.ratio(name, LIMIT, _speed).show(".2f"),
            f"{self.ratio(OURS, name, _speed).show('.2f')} x" if name != OURS else "-",
            self.spread(name, _cpu).show(".2f"),
            f"{self.ratio(name, OURS, _cpu).show('.2f')} x" if name != OURS else "-",
            f"{self.spread(name, lambda r: r.memory_bytes).highest / 1e6:,.0f} MB",
            f"{self.spread(name, lambda r: r.first_batch_seconds).median:.2f} s",
            f"{self.pixels[name]:.2f}" if name in self.pixels else "-",
        )

    def _title(self) -> list[str]:
        rounds = max((len(found) for found in self.rounds.values()), default=0)
        times = f" x {self.copies}" if self.copies > 1 else ""
        pictures = f"{self.pictures:,} pictures{times}, {self.mean_bytes / 1000:,.0f} kB each"
        turns = "1 round" if rounds == 1 else f"{rounds} rounds, alternating; median [lowest-highest]"
        return [
            f"{self.work}: {self.view}, uint8 batches of {self.batch_size}, {self.workers} workers",
            f"{pictures}; {turns}",
        ]

    def _notes(self) -> list[str]:
        notes = [f"{name}: {reason}" for name, reason in self.missing.items()]
        notes += [f"{name}: {CONTENDERS[name].note}" for name in self.rounds]
        notes += [
            f"{name}: its pixels differ from ours by {levels:.1f} of 255 on average, so it does other work"
            for name, levels in self.pixels.items()
            if levels > _SAME_LEVELS
        ]
        if self.load > 1:
            notes.append(f"the machine was busy before the start: load {self.load:.1f}")
        notes.append(
            "by CPU: as 'ours is', from CPU time, which other work on the machine disturbs less; memory: of all "
            "processes, without the page cache; pixels: mean difference to ours, of 255"
        )
        return [*notes, ", ".join(f"{name} {value}" for name, value in self.machine.items())]


def _speed(measured: Round) -> float:
    return measured.speed


def _cpu(measured: Round) -> float:
    return measured.cpu_per_1000


_HEAD = ("", "images/s", "of limit", "ours is", "CPU-s/1,000", "by CPU", "memory", "first batch", "pixels")
