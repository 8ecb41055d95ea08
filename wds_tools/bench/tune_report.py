"""Results of `tune`: the numbers to measure, the proposed one, and the report as text and JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.report import Round, Spread, table
from wds_tools.inspection.stats import bar
from wds_tools.loading.pipeline.autoscale import slots_for
from wds_tools.packing.snippet import IMPORT, spell, spell_call, spell_fields
from wds_tools.wording import counted, human_bytes

SUFFICIENT = 0.95
"""Share of the best speed that a proposed setting must reach."""
_ALL_COUNTS_UP_TO = 8  # cores; with more, some numbers of workers are left out
_FACTOR = 1.4  # between one number of workers and the next
_MAX_BETWEEN = 3  # numbers tried between two of them
_BAR_WIDTH = 24  # characters
_PREFETCH_FACTOR = 2  # the default of `make_loader`
_MIN_STEPS = 10  # per prefetched batch; a shorter epoch spends much of its time starting

Rounds = Mapping[int, Sequence[Round]]


def worker_counts(cores: int) -> list[int]:
    """Return the numbers of workers to measure: with few cores all, with many cores increasing steps.

    >>> worker_counts(2), worker_counts(16)
    ([0, 1, 2], [0, 1, 2, 3, 4, 6, 8, 11, 16])
    >>> worker_counts(96)
    [0, 1, 2, 3, 4, 6, 8, 11, 15, 22, 30, 42, 59, 83, 96]
    """
    if cores <= _ALL_COUNTS_UP_TO:
        return list(range(cores + 1))
    counts, count = [0, 1, 2, 3, 4], 4.0
    while (count := count * _FACTOR) < cores / 1.1:  # not just below the last
        counts.append(round(count))
    return [*counts, cores]


def counts_below(counts: Sequence[int], chosen: int) -> list[int]:
    """Return evenly spaced numbers between ``chosen`` and the next lower count: fewer workers may be sufficient.

    >>> counts_below([0, 4, 8, 16], 16), counts_below([0, 4, 6], 6), counts_below([0, 1], 1)
    ([10, 12, 14], [5], [])
    """
    lower = max((count for count in counts if count < chosen), default=chosen)
    between = min(_MAX_BETWEEN, max(0, chosen - lower - 1))
    return sorted({lower + round((chosen - lower) * part / (between + 1)) for part in range(1, between + 1)})


def shares(rounds: Rounds) -> dict[int, Spread]:
    """Return the speed of each setting divided by that of the best, round by round."""
    best = max(rounds, key=lambda key: _speed(rounds[key]).median)
    return {
        key: Spread.of([round_.speed / top.speed for round_, top in zip(measured, rounds[best], strict=True)])
        for key, measured in rounds.items()
    }


def smallest_sufficient(rounds: Rounds) -> int:
    """Return the smallest setting of at least 1 whose speed is sufficient.

    0 workers are measured only for comparison: they would decode in the training loop, which waits
    meanwhile.
    """
    allowed = {key: measured for key, measured in rounds.items() if key > 0}
    return min(key for key, share in shares(allowed).items() if share.median >= SUFFICIENT)


@dataclass(frozen=True, slots=True)
class TuneSetup:
    """What was measured."""

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
class TuneReport:
    """Results of `tune`."""

    setup: TuneSetup
    workers: Rounds
    load: float
    machine: dict[str, str]

    @property
    def num_workers(self) -> int:
        """The smallest sufficient number of workers."""
        return smallest_sufficient(self.workers)

    @property
    def slots(self) -> int:
        """Number of batch slots that the loader then has."""
        return slots_for(self.setup.batch_size, self.num_workers, _PREFETCH_FACTOR)

    def call(self) -> str:
        """Return the call of `make_loader` with the proposed settings, to paste."""
        setup = self.setup
        options = {
            "batch_size": f"{setup.batch_size}",
            "view": f"wds_tools.{spell(setup.view)}",
            "fields": spell_fields(setup.fields),
            "shuffle": "True",
            "num_workers": f"{self.num_workers}",
            "device": f"{setup.device!r}" if setup.device else "",
        }
        return spell_call(setup.dataset, options)

    def reason(self) -> str:
        """Return in one sentence why this number of workers is proposed."""
        allowed = {key: measured for key, measured in self.workers.items() if key}
        share, chosen = shares(allowed), self.num_workers
        best = max(allowed, key=lambda key: _speed(allowed[key]).median)
        fewer = max((key for key in allowed if key < chosen), default=None)
        comparison = "" if fewer is None else f"; {counted(fewer, 'worker')} would reach {share[fewer].median:.0%}"
        speed = f"{_speed(self.workers[best]).median:,.0f} images/s"
        rank = (
            f"the fastest, at {speed}" if chosen == best else f"the fewest within 5 % of the best, {speed} with {best}"
        )
        return f"{counted(chosen, 'worker')}: {rank}{comparison}"

    def to_text(self) -> str:
        """Return tables, reason and call."""
        lines = [*self._title(), "", *_table(self.workers), "", *self._conclusion(), "", IMPORT, "", self.call()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain values, for JSON."""
        proposed = {"num_workers": self.num_workers, "slots": self.slots}
        return {
            **{name: value for name, value in asdict(self.setup).items() if name != "view"},
            "view": spell(self.setup.view),
            "workers": {str(key): _summary(measured) for key, measured in self.workers.items()},
            "proposed": proposed,
            "reason": self.reason(),
            "call": self.call(),
            "load": self.load,
            "machine": self.machine,
        }

    def _title(self) -> list[str]:
        setup, rounds = self.setup, max(map(len, self.workers.values()))
        device = f" to {setup.device}" if setup.device else ""
        batches = f"batches of {setup.batch_size}{device}, {counted(setup.steps, 'step')} per epoch"
        return [
            f"{setup.dataset}: {spell(setup.view)}, {batches}; {counted(setup.cores, 'core')}",
            "1 round" if rounds == 1 else f"{rounds} alternating rounds; median [lowest-highest]",
        ]

    def _conclusion(self) -> Iterator[str]:
        setup = self.setup
        memory = human_bytes(self.slots * setup.batch_size * setup.image_bytes)
        yield f"{self.reason()}."
        yield f"{self.slots} slots, {memory} of shared memory."
        yield "A worker is a process with one thread; docs/performance.md, Processes or threads, explains why."
        if setup.steps < _MIN_STEPS * self.num_workers * _PREFETCH_FACTOR:
            yield f"An epoch has only {counted(setup.steps, 'step')}: starting it takes a large part of the time."
        if self.load > 1:
            yield f"The machine was busy before the start, load {self.load:.1f}: measure again when it is idle."
        yield ", ".join(f"{name} {value}" for name, value in self.machine.items())


def _table(rounds: Rounds) -> list[str]:
    share = shares(rounds)
    rows = [("workers", "images/s", "of the best", "CPU-s/1,000", "memory", "first batch", "")]
    for key, measured in rounds.items():
        rows.append(
            (
                str(key),
                _speed(measured).show(",.0f"),
                share[key].show(".2f"),
                Spread.of([r.cpu_per_1000 for r in measured]).show(".2f"),
                human_bytes(max(r.memory_bytes for r in measured)),
                f"{Spread.of([r.first_batch_seconds for r in measured]).median:.2f} s",
                bar(min(1.0, share[key].median), _BAR_WIDTH),
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


def _speed(rounds: Sequence[Round]) -> Spread:
    return Spread.of([measured.speed for measured in rounds])
