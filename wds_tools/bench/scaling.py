"""Reports of several numbers of workers side by side: text, plain values, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.bench.registry import OURS
from wds_tools.bench.report import BenchReport, Round, Spread
from wds_tools.inspection.svg import Bars, Plot, Series, draw


@dataclass(frozen=True, slots=True)
class BenchReports:
    """What `bench` found.

    Attributes:
        reports: One for each number of workers, which grows.
    """

    reports: Sequence[BenchReport]

    def scaling(self, name: str) -> dict[int, Spread]:
        """Return the speed of a contender with each number of workers, divided by that with the least.

        Divided once more by how many times more workers that are, 1.0 is linear.
        """
        least = self.reports[0].rounds.get(name, [])
        found = {}
        for report in self.reports:
            pairs = zip(report.rounds.get(name, []), least, strict=False)  # one that failed has fewer
            if gains := [one.speed / base.speed for one, base in pairs]:
                found[report.workers] = Spread.of(gains)
        return found

    def render(self) -> str:
        """Return the tables, with what has to be known beside them once at the end."""
        tables = [report.render() for report in self.reports]
        stages = [report.render_stages() for report in self.reports if report.stages]
        scaling = ["\n".join(self._scaling_lines())] if len(self.reports) > 1 else []
        notes = list(dict.fromkeys(note for report in self.reports for note in report.notes()))
        return "\n\n".join([*tables, *scaling, *stages, "\n".join(notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        scaling = {
            name: {str(workers): asdict(gain) for workers, gain in self.scaling(name).items()} for name in self._names()
        }
        return {"reports": [report.to_dict() for report in self.reports], "scaling": scaling}

    def picture(self) -> str:
        """Return a chart as the text of an SVG file: speeds with their ranges and, of several counts, their growth."""
        panels: list[Plot | Bars] = [_bars(report) for report in self.reports]
        if len(self.reports) > 1:
            panels.append(self._growth())
        work = self.reports[0].work
        said = "; ".join(
            f"{name} {report.spread(name, _speed).show(',.0f')} with {report.workers}"
            for report in self.reports
            for name in report.rounds
        )
        return draw(panels, title=f"wds-tools bench: {work}", description=f"Images per second by workers: {said}.")

    def _growth(self) -> Plot:
        counts = [report.workers for report in self.reports]
        gains = {name: self.scaling(name) for name in self._names()}
        lines = [Series(name, list(gain), [spread.median for spread in gain.values()]) for name, gain in gains.items()]
        linear = Series("linear", counts, [count / counts[0] for count in counts], dashed=True)
        title = f"images/s, divided by those with {counts[0]}"
        return Plot(title, "workers", "times", [*lines, linear], y_range=(0, counts[-1] / counts[0]))

    def _scaling_lines(self) -> Iterator[str]:
        least = self.reports[0].workers
        for name in self._names():
            gains = [f"{count}: {gain.show('.2f')} x" for count, gain in self.scaling(name).items() if count != least]
            yield f"{name}: images/s by workers, {least}: 1 x, {', '.join(gains)}"

    def _names(self) -> list[str]:
        """Return those who were measured, ours first."""
        names = dict.fromkeys([OURS, *(name for report in self.reports for name in report.rounds)])
        return [name for name in names if any(name in report.rounds for report in self.reports)]


def _bars(report: BenchReport) -> Bars:
    speeds = {name: report.spread(name, _speed) for name in report.rounds}
    rows = [
        (name, speed.median, f"{speed.show(',.0f')}; {report.of_limit(name).median:.2f}")
        for name, speed in speeds.items()
    ]
    return Bars(
        f"{report.work}, workers: {report.workers}: images/s, median and range; share of the limit",
        rows,
        ranges=[(speed.lowest, speed.highest) for speed in speeds.values()],
    )


def _speed(measured: Round) -> float:
    return measured.speed
