"""What `tune` proposes: which numbers are measured, and what follows from the figures, as text, JSON and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.report import Round, Spread, table
from wds_tools.inspection.stats import bar
from wds_tools.inspection.svg import Plot, Series, draw
from wds_tools.loading.autoscale import slots_for
from wds_tools.packing.snippet import IMPORT, spell, spell_call, spell_fields
from wds_tools.wording import counted, human_bytes

GOOD_ENOUGH = 0.95
"""Share of the best speed that a proposal must reach."""
_EACH_UP_TO = 8  # cores: on more, not every number is measured
_FACTOR = 1.4  # between numbers on a ladder
_REFINED = 3  # numbers at most that are tried between two rungs
_CURVE_WIDTH = 24  # characters of the text curve
_FEW_STEPS = 10  # times the batches in the making: shorter epochs spend much of their time at their start

Rounds = Mapping[int, Sequence[Round]]


def ladder(cores: int) -> list[int]:
    """Return the numbers of workers to measure: each one on a few cores, on many ever wider steps up to all of them.

    >>> ladder(2), ladder(16), ladder(96)
    ([0, 1, 2], [0, 1, 2, 3, 4, 6, 8, 11, 16], [0, 1, 2, 3, 4, 6, 8, 11, 15, 22, 30, 42, 59, 83, 96])
    """
    if cores <= _EACH_UP_TO:
        return list(range(cores + 1))
    rungs, rung = [0, 1, 2, 3, 4], 4.0
    while (rung := rung * _FACTOR) < cores / 1.1:  # none just below the last
        rungs.append(round(rung))
    return [*rungs, cores]


def between(rungs: Sequence[int], chosen: int) -> list[int]:
    """Return numbers between a rung and the one below it, evenly spread: the least that will do may be there.

    >>> between([0, 4, 8, 16], 16), between([0, 4, 6], 6), between([0, 1], 1)
    ([10, 12, 14], [5], [])
    """
    lower = max((rung for rung in rungs if rung < chosen), default=chosen)
    count = min(_REFINED, max(0, chosen - lower - 1))
    return sorted({lower + round((chosen - lower) * part / (count + 1)) for part in range(1, count + 1)})


def shares(rounds: Rounds) -> dict[int, Spread]:
    """Return the speed of each number divided by that of the best, taken within each round."""
    best = max(rounds, key=lambda number: _speed(rounds[number]).median)
    return {
        number: Spread.of([one.speed / top.speed for one, top in zip(found, rounds[best], strict=True)])
        for number, found in rounds.items()
    }


def smallest(rounds: Rounds) -> int:
    """Return the smallest number, from 1 on, that is good enough.

    No workers at all are measured for comparison alone: they would decode in the training loop, which then waits.
    """
    able = {number: found for number, found in rounds.items() if number > 0}
    return min(number for number, share in shares(able).items() if share.median >= GOOD_ENOUGH)


@dataclass(frozen=True, slots=True)
class Task:
    """What was measured.

    Attributes:
        dataset: As the user names it.
        work: The kind of work, by name.
        view: Its view.
        fields: Of a sample.
        batch_size: Samples per batch.
        device: Where batches go; None is memory.
        image_bytes: Of one image in a batch.
        steps: Of an epoch.
        cores: That this process may use.
    """

    dataset: str
    work: str
    view: Any
    fields: tuple[str, ...]
    batch_size: int
    device: str | None
    image_bytes: int
    steps: int
    cores: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What `tune` found.

    Attributes:
        task: What was measured.
        workers: Rounds by number of workers, with two batches in the making for each of them.
        prefetch: Rounds by ``prefetch_factor``, with the proposed number of workers.
        load: What the machine had to do before the start, as ``os.getloadavg`` has it.
        machine: Processor, cores and versions.
    """

    task: Task
    workers: Rounds
    prefetch: Rounds
    load: float
    machine: dict[str, str]

    @property
    def num_workers(self) -> int:
        """The smallest number of workers that is good enough."""
        return smallest(self.workers)

    @property
    def prefetch_factor(self) -> int:
        """The smallest number of batches in the making per worker that is good enough."""
        return smallest(self.prefetch)

    @property
    def slots(self) -> int:
        """Batch slots that the loader then has."""
        return slots_for(self.task.batch_size, self.num_workers, self.prefetch_factor)

    def call(self) -> str:
        """Return the call to paste."""
        task = self.task
        options = {
            "batch_size": f"{task.batch_size}",
            "view": f"wds_tools.{spell(task.view)}",
            "fields": spell_fields(task.fields),
            "shuffle": "True",
            "num_workers": f"{self.num_workers}",
            "prefetch_factor": f"{self.prefetch_factor}",
            "device": f"{task.device!r}" if task.device else "",
        }
        return spell_call(task.dataset, options)

    def reason(self) -> str:
        """Return why it is this number of workers, in a sentence."""
        able = {number: found for number, found in self.workers.items() if number}
        told, chosen = shares(able), self.num_workers
        best = max(able, key=lambda number: _speed(able[number]).median)
        fewer = max((number for number in able if number < chosen), default=None)
        rest = "" if fewer is None else f"; {counted(fewer, 'worker')} would reach {told[fewer].median:.0%}"
        speed = f"{_speed(self.workers[best]).median:,.0f} images/s"
        place = (
            f"the fastest, at {speed}" if chosen == best else f"the fewest within 5 % of the best, {speed} with {best}"
        )
        return f"{counted(chosen, 'worker')}: {place}{rest}"

    def render(self) -> str:
        """Return tables, reason and call."""
        return "\n".join([*self._title(), "", *self._tables(), "", *self._conclusion(), "", *self._call_lines()])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        proposed = {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor, "slots": self.slots}
        return {
            **{name: value for name, value in asdict(self.task).items() if name != "view"},
            "view": spell(self.task.view),
            "workers": {str(number): _summary(found) for number, found in self.workers.items()},
            "prefetch": {str(number): _summary(found) for number, found in self.prefetch.items()},
            "proposed": proposed,
            "reason": self.reason(),
            "call": self.call(),
            "load": self.load,
            "machine": self.machine,
        }

    def picture(self) -> str:
        """Return a chart as the text of an SVG file: speed and CPU time by number of workers, speed by prefetch."""
        panels = [
            _curve("images/s", "workers", self.workers, lambda r: r.speed, self.num_workers),
            _curve("CPU-s per 1,000 images", "workers", self.workers, lambda r: r.cpu_per_1000, self.num_workers),
            _curve("images/s", "prefetch_factor", self.prefetch, lambda r: r.speed, self.prefetch_factor),
        ]
        return draw(panels, title=f"wds-tools tune {self.task.dataset}", description=f"{self.reason()}.")

    def _title(self) -> list[str]:
        task, turns = self.task, max(map(len, self.workers.values()))
        place = f" to {task.device}" if task.device else ""
        how = f"batches of {task.batch_size}{place}, {counted(task.steps, 'step')} an epoch"
        return [
            f"{task.dataset}: {spell(task.view)}, {how}; {counted(task.cores, 'core')}",
            "1 round" if turns == 1 else f"{turns} rounds, alternating; median [lowest-highest]",
        ]

    def _tables(self) -> list[str]:
        return [*_table("workers", self.workers), "", *_table("prefetch_factor", self.prefetch)]

    def _conclusion(self) -> Iterator[str]:
        memory = human_bytes(self.slots * self.task.batch_size * self.task.image_bytes)
        few = " (2 for a loop that takes batches unevenly)" if self.prefetch_factor == 1 else ""
        yield f"{self.reason()}."
        yield f"prefetch_factor={self.prefetch_factor}{few}: {self.slots} slots, {memory} of shared memory."
        yield "A worker is a process with one thread: docs/performance.md, Processes or threads, says why."
        if self.task.steps < _FEW_STEPS * self.num_workers * self.prefetch_factor:
            yield f"An epoch is over in {counted(self.task.steps, 'step')}: much of the time goes into its start."
        if self.load > 1:
            yield f"The machine was busy before the start, load {self.load:.1f}: measure again when it is not."
        yield ", ".join(f"{name} {value}" for name, value in self.machine.items())

    def _call_lines(self) -> list[str]:
        return [IMPORT, "", self.call()]


def _table(name: str, rounds: Rounds) -> list[str]:
    told = shares(rounds)
    rows = [(name, "images/s", "of the best", "CPU-s/1,000", "memory", "first batch", "")]
    for number, found in rounds.items():
        rows.append(
            (
                str(number),
                _speed(found).show(",.0f"),
                told[number].show(".2f"),
                Spread.of([r.cpu_per_1000 for r in found]).show(".2f"),
                human_bytes(max(r.memory_bytes for r in found)),
                f"{Spread.of([r.first_batch_seconds for r in found]).median:.2f} s",
                bar(min(1.0, told[number].median), _CURVE_WIDTH),
            )
        )
    return table(rows)


def _summary(rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        "images_per_second": asdict(_speed(rounds)),
        "cpu_seconds_per_1000": asdict(Spread.of([r.cpu_per_1000 for r in rounds])),
        "memory_bytes": max(r.memory_bytes for r in rounds),
        "first_batch_seconds": asdict(Spread.of([r.first_batch_seconds for r in rounds])),
        "rounds": [asdict(r) for r in rounds],
    }


def _curve(what: str, by: str, rounds: Rounds, figure: Callable[[Round], float], chosen: int) -> Plot:
    numbers = list(rounds)
    medians = [Spread.of([figure(r) for r in found]).median for found in rounds.values()]
    each = [(number, figure(r)) for number, found in rounds.items() for r in found]
    dots = Series("each round", [number for number, _ in each], [value for _, value in each], points=True)
    top = max(value for _, value in each)
    return Plot(
        f"{what} by {by}",
        by,
        "",  # the title says it, and a mark on the left would be written over it
        [Series("median", numbers, medians), dots],
        marks=[(chosen, "proposed")],
        x_range=(0, max(numbers) + 0.5),
        y_range=(0, top * 1.1),
    )


def _speed(rounds: Sequence[Round]) -> Spread:
    return Spread.of([measured.speed for measured in rounds])
