"""The reports of several numbers of workers together: as text, as plain values, as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.registry import OURS
from wds_tools.bench.report import BenchReport, Spread
from wds_tools.inspection.svg import Bars, Plot, Series, draw


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

    def to_svg(self) -> str:
        """Return a chart as SVG: speeds with their ranges and, with several numbers of workers, the scaling."""
        panels: list[Plot | Bars] = [_bars(report) for report in self.reports]
        if len(self.reports) > 1:
            panels.append(self._scaling_plot())
        workload = self.reports[0].work
        speeds = "; ".join(
            f"{name} {report.speed(name).show(',.0f')} with {report.workers}"
            for report in self.reports
            for name in report.rounds
        )
        description = f"Images per second by workers: {speeds}."
        return draw(panels, title=f"wds-tools bench: {workload}", description=description)

    def _scaling_plot(self) -> Plot:
        counts = [report.workers for report in self.reports]
        speedups = {name: self.scaling(name) for name in self._names()}
        lines = [
            Series(name, list(spreads), [spread.median for spread in spreads.values()])
            for name, spreads in speedups.items()
        ]
        linear = Series("linear", counts, [count / counts[0] for count in counts], dashed=True)
        title = f"images/s, divided by those with {counts[0]}"
        return Plot(title, "workers", "times", [*lines, linear], y_range=(0, counts[-1] / counts[0]))

    def _scaling_lines(self) -> Iterator[str]:
        fewest = self.reports[0].workers
        for name in self._names():
            speedups = [f"{count}: {x.show('.2f')} x" for count, x in self.scaling(name).items() if count != fewest]
            yield f"{name}: images/s by workers, {fewest}: 1 x, {', '.join(speedups)}"

    def _names(self) -> list[str]:
        """Return the loaders that were measured, ours first."""
        names = dict.fromkeys([OURS, *(name for report in self.reports for name in report.rounds)])
        return [name for name in names if any(name in report.rounds for report in self.reports)]


def _bars(report: BenchReport) -> Bars:
    speeds = {name: report.speed(name) for name in report.rounds}
    rows = [
        (name, speed.median, f"{speed.show(',.0f')}; {report.of_limit(name).median:.2f}")
        for name, speed in speeds.items()
    ]
    return Bars(
        f"{report.work}, workers: {report.workers}: images/s, median and range; share of the limit",
        rows,
        ranges=[(speed.lowest, speed.highest) for speed in speeds.values()],
    )
