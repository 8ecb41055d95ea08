"""Charts as SVG text: lines and points with axes. Needs no plotting library.

A chart is a column of panels on a white background, which is readable on dark pages too. Equal
panels give equal bytes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wds_tools.errors import OptionError
from wds_tools.storage.commit import commit_bytes, write_errors

# The palette of Okabe and Ito, which people with colour blindness can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
_TEXT_COLOUR, _GRID_COLOUR = "#24292f", "#d8dee4"
# Sizes in pixels.
_WIDTH, _LEFT, _PLOT_WIDTH, _PLOT_HEIGHT = 880, 70, 560, 260
_TITLE_HEIGHT, _X_AXIS_HEIGHT = 56, 50  # above and below the area of a plot
_ROW_HEIGHT = 24  # of a line of the legend
_MAX_TICKS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """Values drawn as one line or as points. Values outside the axes are omitted."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A panel with two axes.

    Attributes:
        series: Series in the order of `COLOURS`; those without a label are not in the legend.
        marks: Vertical lines: x and a label.
        x_range: Minimum and maximum of the x axis; None takes the range of the values.
        y_range: The same for the y axis.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[tuple[float, str]] = ()
    log_x: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float  # values at the ends
    high: float
    start: float  # pixels at the ends
    stop: float
    log: bool = False

    def pixel(self, value: float) -> float:
        low, high, value = (map(math.log10, (self.low, self.high, value))) if self.log else (self.low, self.high, value)
        return self.start + (self.stop - self.start) * (value - low) / (high - low)

    def shows(self, value: float) -> bool:
        if not math.isfinite(value) or (self.log and value <= 0):
            return False
        return min(self.start, self.stop) - 1 < self.pixel(value) < max(self.start, self.stop) + 1

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)


def short_number(value: float) -> str:
    """Return a number as text of at most 10 characters, with the suffix k, M or G if it is large.

    >>> [short_number(value) for value in (0.25, 4096, 20_000, 1_280_000, 0, 1e9)]
    ['0.25', '4,096', '20 k', '1.28 M', '0', '1 G']
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def draw(panels: Sequence[Plot], *, title: str, description: str) -> str:
    """Return a chart as the text of an SVG file."""
    body, top = [], 16.0
    for panel in panels:
        parts, height = _plot(panel, top)
        body += parts
        top += height
    size = f'width="{_WIDTH}" height="{top:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top:.0f}" {size} '
        f'font-family="sans-serif" font-size="13" fill="{_TEXT_COLOUR}" role="img">'
    )
    metadata = f"<title>{_escape(title)}</title>\n<desc>{_escape(description)}</desc>"
    return "\n".join([head, metadata, f'<rect {size} fill="#ffffff"/>', *body, "</svg>\n"])


def check_svg_name(path: Path) -> None:
    """Check the extension of an SVG file, before long work is done for it."""
    if path.suffix.lower() != ".svg":
        raise OptionError(f"cannot draw {path}: charts are written as SVG only, so the name must end in .svg")


def write_svg(path: Path, chart: str) -> None:
    """Write a chart to a file, which appears only when it is complete."""
    check_svg_name(path)
    with write_errors(path, "choose an existing folder that is writable"):
        commit_bytes(path, chart.encode())


def _plot(plot: Plot, top: float) -> tuple[list[str], float]:
    x, y = _axes(plot, top)
    parts = [_text(_LEFT - 46, top + 16, plot.title, title=True), _text(_LEFT - 46, top + 40, plot.y_label)]
    for value in x.ticks():
        parts += [
            _line(x.pixel(value), y.start, x.pixel(value), y.stop),
            _text(x.pixel(value), y.start + 18, short_number(value), "middle"),
        ]
    for value in y.ticks():
        parts += [
            _line(x.start, y.pixel(value), x.stop, y.pixel(value)),
            _text(x.start - 8, y.pixel(value) + 4, short_number(value), "end"),
        ]
    parts.append(_text((x.start + x.stop) / 2, y.start + 38, plot.x_label, "middle"))
    for value, label in plot.marks:
        parts.append(_line(x.pixel(value), y.start, x.pixel(value), y.stop, _TEXT_COLOUR, dashed=True))
        parts.append(_text(x.pixel(value), y.stop - 5, label, "middle"))
    legend_rows = 0
    for index, series in enumerate(plot.series):
        colour = COLOURS[index % len(COLOURS)]
        parts += _series(series, x, y, colour)
        if series.label:
            parts += _legend(series, colour, y.stop + 10 + _ROW_HEIGHT * legend_rows)
            legend_rows += 1
    return parts, _TITLE_HEIGHT + max(_PLOT_HEIGHT, _ROW_HEIGHT * legend_rows) + _X_AXIS_HEIGHT + 10


def _axes(plot: Plot, top: float) -> tuple[_Axis, _Axis]:
    marks = [value for value, _ in plot.marks]
    low, high = plot.x_range or _range([*marks, *(v for s in plot.series for v in s.x if v > 0 or not plot.log_x)])
    x = _Axis(low, high, _LEFT, _LEFT + _PLOT_WIDTH, plot.log_x)
    low, high = plot.y_range or _range([v for s in plot.series for v in s.y])
    return x, _Axis(low, high, top + _TITLE_HEIGHT + _PLOT_HEIGHT, top + _TITLE_HEIGHT)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return minimum and maximum of the finite values; a wider range if there is only one value."""
    finite = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = min(finite), max(finite)
    return (low, high) if low < high else (low / 2, high * 2) if low > 0 else (low - 1, high + 1)


def _series(series: Series, x: _Axis, y: _Axis, colour: str) -> Iterator[str]:
    shown = [(x.pixel(a), y.pixel(b)) for a, b in zip(series.x, series.y, strict=True) if x.shows(a) and y.shows(b)]
    if series.points:
        yield f'<g fill="{colour}" fill-opacity="0.8">'
        yield from (f'<circle cx="{a:.2f}" cy="{b:.2f}" r="{3.5 if len(shown) < 100 else 2}"/>' for a, b in shown)
        yield "</g>"
    elif shown:
        path = " ".join(f"{a:.2f},{b:.2f}" for a, b in shown)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{_dashes(series.dashed)}/>'


def _legend(series: Series, colour: str, y: float) -> list[str]:
    left = _LEFT + _PLOT_WIDTH + 20
    symbol = (
        f'<circle cx="{left + 10}" cy="{y}" r="3.5" fill="{colour}"/>'
        if series.points
        else _line(left, y, left + 20, y, colour, dashed=series.dashed)
    )
    return [symbol, _text(left + 28, y + 4, series.label)]


def _ticks(low: float, high: float) -> list[float]:
    """Return at most `_MAX_TICKS` + 1 multiples of a step, which is 1, 2 or 5 times a power of ten."""
    least_step = (high - low) / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_step * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten; over many decades, only some powers of ten."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [f * 10.0**d for d in decades for f in (1, 2, 5) if low * (1 - 1e-9) <= f * 10.0**d <= high * (1 + 1e-9)]
    if len(fine) < 2:
        return _ticks(low, high)
    if len(fine) <= _MAX_TICKS + 4:
        return fine
    powers = [value for value in fine if math.log10(value).is_integer()]
    return powers[:: math.ceil(len(powers) / _MAX_TICKS)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _GRID_COLOUR, *, dashed: bool = False) -> str:
    ends = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
    return f'<line {ends} stroke="{colour}"{_dashes(dashed)} stroke-width="{1 if colour == _GRID_COLOUR else 1.5}"/>'


def _dashes(dashed: bool) -> str:
    return ' stroke-dasharray="5 4"' if dashed else ""


def _text(x: float, y: float, text: str, anchor: str = "start", *, title: bool = False) -> str:
    style = ' font-weight="600" font-size="15"' if title else ""
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}"{style}>{_escape(text)}</text>'


def _escape(text: str) -> str:
    """Escape text for XML, which allows neither control characters nor lone surrogates."""
    return html.escape("".join(char if char.isprintable() else "\ufffd" for char in text))
