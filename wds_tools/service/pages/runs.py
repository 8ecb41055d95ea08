"""Routes of the runs of the past: ``/runs/``, ``/runs/ID`` and ``/api/runs/ID``; and the lines of their charts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from aiohttp import web

from wds_tools.errors import StoreError
from wds_tools.service.access import ANY_TOKEN, GRANT, Route
from wds_tools.service.history import POINT_SECONDS, Event, PastRun, Point, RunHistory
from wds_tools.service.pages.views import State, part_of
from wds_tools.service.responses import error_response, json_response
from wds_tools.stages import CAUSES
from wds_tools.wording import counted

RUNS_PER_PAGE = 100
_MAX_COMPARED = 200  # runs in the list of those to compare with
_COLUMNS = 300  # of a chart: points of longer runs are joined
_MAX_GAP = 3  # columns without a report over which a line goes on
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 592.0, 10.0, 130.0  # of the plot, in user units
_NO_RUN = "no such run: /runs/ lists those that your token may see"


class RunRoutes:
    """Routes of the runs of the past.

    Args:
        render: Returns a page from the name of a template and its values.
    """

    def __init__(self, history: RunHistory, render: Callable[..., web.Response]) -> None:
        self._history = history
        self._render = render

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/runs/", self.get_runs, "runs_page", ANY_TOKEN),
            Route("GET", "/runs/{id:[0-9a-f]{32}}", self.get_run, "run_page", ANY_TOKEN),
            Route("GET", "/api/runs/{id:[0-9a-f]{32}}", self.get_points, "run", ANY_TOKEN),
        ]

    async def get_runs(self, request: web.Request) -> web.Response:
        """List the runs that a token may see."""
        owner = _owner(request)
        try:
            total = await asyncio.to_thread(self._history.count, owner)
            page, last, part = part_of(total, RUNS_PER_PAGE, State.of(request.query).page)
            runs = await asyncio.to_thread(self._history.runs, owner, limit=RUNS_PER_PAGE, skip=part.start)
        except StoreError as error:
            return self._error(500, str(error))
        return self._render("runs.html", runs=runs, total=total, page=page, last=last)

    async def get_run(self, request: web.Request) -> web.Response:
        """Show the curves of a run, with the curves of another run over them."""
        owner = _owner(request)
        try:
            run = await asyncio.to_thread(self._history.find, request.match_info["id"], owner)
            if run is None:
                return self._error(404, _NO_RUN)
            compared = await asyncio.to_thread(self._history.find, request.query.get("with", "")[:32], owner)
            shown = [await self._curves(past) for past in (run, compared) if past]
            others = await asyncio.to_thread(self._history.runs, owner, limit=_MAX_COMPARED)
        except StoreError as error:
            return self._error(500, str(error))
        return self._render(
            "run.html",
            run=run,
            compared=compared,
            others=[past for past in others if past.id != run.id],
            events=shown[0].events,
            charts=charts(shown),
            point_seconds=POINT_SECONDS,
        )

    async def get_points(self, request: web.Request) -> web.Response:
        """Return the points and events of a run."""
        try:
            run = await asyncio.to_thread(self._history.find, request.match_info["id"], _owner(request))
            if run is None:
                return error_response(404, _NO_RUN)
            curves = await self._curves(run)
        except StoreError as error:
            return error_response(500, str(error))
        points, events = [point._asdict() for point in curves.points], [asdict(event) for event in curves.events]
        return json_response({"run": asdict(run), "points": points, "events": events})

    async def _curves(self, run: PastRun) -> Curves:
        return await asyncio.to_thread(lambda: Curves(run, self._history.points(run), self._history.events(run)))

    def _error(self, status: int, message: str) -> web.Response:
        return self._render("error.html", status=status, message=message)


@dataclass(frozen=True, slots=True)
class Curves:
    """What is drawn of a run."""

    run: PastRun
    points: list[Point]
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Line:
    """A line or an area of a chart.

    Attributes:
        kind: Its CSS class.
        parts: Parts between gaps, as points of an SVG polyline or polygon.
    """

    kind: str
    parts: list[str]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart over the time since the start of a run.

    Attributes:
        title: What it shows, with the unit.
        text: The same as a sentence with figures, for screen readers.
        top: Label of the upper end of the y axis; the lower end is 0.
        right: Label of the right end of the x axis.
        areas: Areas, from below.
        lines: Lines.
        marks: Positions and names of events.
    """

    title: str
    text: str
    top: str
    right: str
    areas: list[Line]
    lines: list[Line]
    marks: list[tuple[float, str]]


def charts(shown: Sequence[Curves]) -> list[Chart]:
    """Return the charts of one run, or of two over each other, each from its own start."""
    seconds = max(float(POINT_SECONDS), *(curves.run.seen - curves.run.began for curves in shown))
    parts = [_parts(curves, seconds) for curves in shown]
    speeds = [point.images_per_second for row in parts for part in row for _, point in part]
    fastest = max(speeds, default=0.0) or 1.0
    right = _length(seconds)
    marks = [
        (_LEFT + (_RIGHT - _LEFT) * min(max(0.0, event.time - shown[0].run.began), seconds) / seconds, event.name)
        for event in shown[0].events
    ]

    def lines(value: Callable[[Point], float], most: float) -> list[Line]:
        return [
            Line(kind, [" ".join(f"{x:.1f},{_y(value(point), most):.1f}" for x, point in part) for part in row])
            for kind, row in zip(("first", "second"), parts, strict=False)
        ]

    def share(what: str, value: Callable[[Point], float], areas: list[Line]) -> Chart:
        text = _sentence(shown, f"of the time {what}", lambda point: f"{100 * value(point):.0f} %")
        return Chart(f"{what}, % of the time", text, "100", right, areas, lines(value, 1.0), marks)

    text = _sentence(shown, "images/s", lambda point: f"{point.images_per_second:,.0f}")
    rates = lines(lambda point: point.images_per_second, fastest)
    return [
        Chart("images/s", text, f"{fastest:,.0f}", right, [], rates, marks),
        share("waiting for data", lambda point: point.wait_share, _areas(parts[0])),
        share("waiting for the GPU", lambda point: point.device_wait, []),
    ]


_Column = tuple[float, Point]  # its x, and the mean of its points


def _parts(curves: Curves, seconds: float) -> list[list[_Column]]:
    """Join the points of a run to at most `_COLUMNS` columns; split them where it did not report for three of them.

    Each part is drawn to the end of its last column, so that one with a single column is visible.
    """
    width = max(float(POINT_SECONDS), seconds / _COLUMNS)
    groups: dict[int, list[Point]] = {}
    for point in curves.points:
        groups.setdefault(int(max(0.0, point.time - curves.run.began) // width), []).append(point)
    step = width * (_RIGHT - _LEFT) / seconds
    parts: list[list[_Column]] = []
    before = -math.inf
    for column, group in sorted(groups.items()):
        if column - before > _MAX_GAP:
            parts.append([])
        parts[-1].append((min(_RIGHT, _LEFT + column * step), _joined(group)))
        before = column
    return [[*part, (min(_RIGHT, part[-1][0] + step), part[-1][1])] for part in parts]


def _joined(points: Sequence[Point]) -> Point:
    last, count = points[-1], len(points)

    def mean(values: Iterable[float]) -> float:
        return sum(values) / count

    return Point(
        last.time,
        last.epoch,
        last.step,
        mean(point.images_per_second for point in points),
        mean(point.wait_share for point in points),
        {cause: mean(point.waits.get(cause, 0.0) for point in points) for cause in CAUSES},
        mean(point.device_wait for point in points),
        last.errors,
    )


def _areas(parts: Sequence[Sequence[_Column]]) -> list[Line]:
    """Return an area for each cause of waiting, on top of the areas of those before it."""
    below = [[0.0] * len(part) for part in parts]
    areas = []
    for cause in CAUSES:
        above = [
            [low + point.waits.get(cause, 0.0) for low, (_, point) in zip(lows, part, strict=True)]
            for lows, part in zip(below, parts, strict=True)
        ]
        if above != below:
            areas.append(Line(f"cause-{cause}", list(map(_area, parts, above, below))))
        below = above
    return areas


def _area(part: Sequence[_Column], above: Sequence[float], below: Sequence[float]) -> str:
    xs = [x for x, _ in part]
    around = [*zip(xs, above, strict=True), *reversed(list(zip(xs, below, strict=True)))]
    return " ".join(f"{x:.1f},{_y(share, 1.0):.1f}" for x, share in around)


def _y(value: float, most: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * min(max(0.0, value / most), 1.0)


def _length(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _sentence(shown: Sequence[Curves], unit: str, value: Callable[[Point], str]) -> str:
    """Return the means of a chart as a sentence."""
    means = [f"{curves.run.name}: {value(_joined(curves.points)) if curves.points else '-'}" for curves in shown]
    length = counted(len(shown[0].points), "point")
    return f"{'; '.join(means)} {unit} on average, {length} of {POINT_SECONDS} s"


def _owner(request: web.Request) -> str | None:
    """Return whose runs a request may see: those of its token, or all."""
    grant = request[GRANT]
    return None if grant.allows_all else grant.owner
