"""The reports of several numbers of workers together: as text and as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.registry import OURS
from wds_tools.bench.report import BenchReport, Spread


@dataclass(frozen=True, slots=True)
class BenchReports:
    """Results of `bench`.

    Attributes:
        reports: One per number of workers, in ascending order.
    """

    reports: Sequence[BenchReport]

    def scaling(self, name: str) -> dict[int, Spread]:
        """Return the speed of a loader by number of workers, divided by its speed with the fewest.

        Linear scaling means that the speed grows as fast as the number of workers.
        """
        fewest = self.reports[0].rounds.get(name, [])
        found = {}
        for report in self.reports:
            pairs = zip(report.rounds.get(name, []), fewest, strict=False)  # a loader that failed has fewer rounds
            if speedups := [one.speed / base.speed for one, base in pairs]:
                found[report.workers] = Spread.of(speedups)
        return found

    def to_text(self) -> str:
        """Return the tables, followed by all notes once."""
        tables = [report.to_text() for report in self.reports]
        stages = [report.stages_to_text() for report in self.reports if report.stages]
        scaling = ["\n".join(self._scaling_lines())] if len(self.reports) > 1 else []
        notes = list(dict.fromkeys(note for report in self.reports for note in report.notes()))
        return "\n\n".join([*tables, *scaling, *stages, "\n".join(notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain values, for JSON."""
        scaling = {
            name: {str(workers): asdict(speedup) for workers, speedup in self.scaling(name).items()}
            for name in self._names()
        }
        return {"reports": [report.to_dict() for report in self.reports], "scaling": scaling}

    def _scaling_lines(self) -> Iterator[str]:
        fewest = self.reports[0].workers
        for name in self._names():
            speedups = [f"{count}: {x.show('.2f')} x" for count, x in self.scaling(name).items() if count != fewest]
            yield f"{name}: images/s by workers, {fewest}: 1 x, {', '.join(speedups)}"

    def _names(self) -> list[str]:
        """Return the loaders that were measured, ours first."""
        names = dict.fromkeys([OURS, *(name for report in self.reports for name in report.rounds)])
        return [name for name in names if any(name in report.rounds for report in self.reports)]
