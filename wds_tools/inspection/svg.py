"""Charts as SVG text: lines, points and bars, with axes that people can read. No torch, no plotting library.

Panels are stacked in one picture, on white, so that it looks the same in a dark page. The same panels always give
the same bytes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wds_tools.errors import DestinationError, OptionError
from wds_tools.storage.commit import commit_bytes

# Okabe and Ito: told apart by the colour-blind too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
_INK, _FAINT = "#24292f", "#d8dee4"
_WIDTH, _LEFT, _PLOT_WIDTH, _PLOT_HEIGHT = 880, 70, 560, 260
_TITLE, _FOOT, _ROW = 56, 50, 24  # above the axes; below them; a bar or a line of the legend
_BAR_WIDTH = 420  # of the longest bar
_MAX_TICKS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """Values drawn as one line, or as points. What the axes cannot show is left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A panel with two axes.

    Attributes:
        title: Above it.
        x_label: Below the x axis.
        y_label: Above the y axis.
        series: In the order of their colours; those without a label are not in the legend.
        marks: Upright lines: x and a word beside each.
        log_x: Whether x has a log scale.
        x_range: Lowest and highest; that of the values, if not given.
        y_range: The same for y.
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
class Bars:
    """A panel of horizontal bars.

    Attributes:
        title: Above it.
        rows: A label, a value from 0 on, and what to write behind it.
        ranges: Lowest and highest value of each row, drawn over its bar; none, if not given.
    """

    title: str
    rows: Sequence[tuple[str, float, str]]
    ranges: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float  # pixels
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (map(math.log10, (self.low, self.high, value))) if self.log else (self.low, self.high, value)
        return self.start + (self.stop - self.start) * (value - low) / (high - low)

    def shows(self, value: float) -> bool:
        if not math.isfinite(value) or (self.log and value <= 0):
            return False
        return min(self.start, self.stop) - 1 < self.at(value) < max(self.start, self.stop) + 1

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)


def human(value: float) -> str:
    """Return a number as people write it on an axis.

    >>> human(0.25), human(4096), human(20_000), human(1_280_000), human(0), human(1e9)
    ('0.25', '4,096', '20 k', '1.28 M', '0', '1 G')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def draw(panels: Sequence[Plot | Bars], *, title: str, description: str) -> str:
    """Return a picture of some panels, one below the other, as the text of an SVG file.

    Args:
        panels: From top to bottom.
        title: Of the whole; browsers show it, screen readers read it.
        description: What the picture shows, for those who do not see it.
    """
    body, top = [], 16.0
    for panel in panels:
        parts, height = _plot(panel, top) if isinstance(panel, Plot) else _bars(panel, top)
        body += parts
        top += height
    size = f'width="{_WIDTH}" height="{top:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top:.0f}" {size} '
        f'font-family="sans-serif" font-size="13" fill="{_INK}" role="img">'
    )
    words = f"<title>{_escape(title)}</title>\n<desc>{_escape(description)}</desc>"
    return "\n".join([head, words, f'<rect {size} fill="#ffffff"/>', *body, "</svg>\n"])


def check_svg_name(path: Path) -> None:
    """Refuse a name that is not that of an SVG file, before any long work.

    Raises:
        OptionError: It has another extension.
    """
    if path.suffix.lower() != ".svg":
        raise OptionError(f"cannot draw {path}: allowed is a file name that ends in .svg, which browsers show")


def write_svg(path: Path, picture: str) -> None:
    """Write a picture whole, or not at all.

    Raises:
        OptionError: Its name has another extension.
        DestinationError: It cannot be written.
    """
    check_svg_name(path)
    try:
        commit_bytes(path, picture.encode())
    except OSError as error:
        raise DestinationError(
            f"cannot write {path}: {error.strerror or error}; give a folder that is there"
        ) from error


def _plot(plot: Plot, top: float) -> tuple[list[str], float]:
    x, y = _axes(plot, top)
    parts = [_text(_LEFT - 46, top + 16, plot.title, weight=True), _text(_LEFT - 46, top + 40, plot.y_label)]
    for value in x.ticks():
        parts += [
            _line(x.at(value), y.start, x.at(value), y.stop),
            _text(x.at(value), y.start + 18, human(value), "middle"),
        ]
    for value in y.ticks():
        parts += [
            _line(x.start, y.at(value), x.stop, y.at(value)),
            _text(x.start - 8, y.at(value) + 4, human(value), "end"),
        ]
    parts.append(_text((x.start + x.stop) / 2, y.start + 38, plot.x_label, "middle"))
    for value, word in plot.marks:
        parts.append(_line(x.at(value), y.start, x.at(value), y.stop, _INK, dashed=True))
        parts.append(_text(x.at(value), y.stop - 5, word, "middle"))
    labelled = 0
    for number, series in enumerate(plot.series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _series(series, x, y, colour)
        if series.label:
            parts += _legend(series, colour, y.stop + 10 + _ROW * labelled)
            labelled += 1
    return parts, _TITLE + max(_PLOT_HEIGHT, _ROW * labelled) + _FOOT + 10


def _axes(plot: Plot, top: float) -> tuple[_Axis, _Axis]:
    marks = [value for value, _ in plot.marks]
    low, high = plot.x_range or _range([*marks, *(v for s in plot.series for v in s.x if v > 0 or not plot.log_x)])
    x = _Axis(low, high, _LEFT, _LEFT + _PLOT_WIDTH, plot.log_x)
    low, high = plot.y_range or _range([v for s in plot.series for v in s.y])
    return x, _Axis(low, high, top + _TITLE + _PLOT_HEIGHT, top + _TITLE)


def _range(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = min(finite), max(finite)
    return (low, high) if low < high else (low / 2, high * 2) if low > 0 else (low - 1, high + 1)


def _series(series: Series, x: _Axis, y: _Axis, colour: str) -> Iterator[str]:
    shown = [(x.at(a), y.at(b)) for a, b in zip(series.x, series.y, strict=True) if x.shows(a) and y.shows(b)]
    if series.points:
        yield f'<g fill="{colour}" fill-opacity="0.8">'
        yield from (f'<circle cx="{a:.2f}" cy="{b:.2f}" r="{3.5 if len(shown) < 100 else 2}"/>' for a, b in shown)
        yield "</g>"
    elif shown:
        path = " ".join(f"{a:.2f},{b:.2f}" for a, b in shown)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{_dashes(series.dashed)}/>'


def _legend(series: Series, colour: str, at: float) -> list[str]:
    left = _LEFT + _PLOT_WIDTH + 20
    sign = (
        f'<circle cx="{left + 10}" cy="{at}" r="3.5" fill="{colour}"/>'
        if series.points
        else _line(left, at, left + 20, at, colour, dashed=series.dashed)
    )
    return [sign, _text(left + 28, at + 4, series.label)]


def _bars(bars: Bars, top: float) -> tuple[list[str], float]:
    ranges = bars.ranges or [(value, value) for _, value, _ in bars.rows]
    longest = max((high for _, high in ranges), default=0) or 1
    left, parts = _LEFT + 170, [_text(_LEFT - 46, top + 16, bars.title, weight=True)]
    for number, ((label, value, said), (low, high)) in enumerate(zip(bars.rows, ranges, strict=True)):
        at, unit = top + 32 + _ROW * number, _BAR_WIDTH / longest
        parts.append(_text(left - 8, at + 13, label, "end"))
        parts.append(
            f'<rect x="{left}" y="{at:.2f}" width="{unit * value:.2f}" height="{_ROW - 6}" fill="{COLOURS[0]}"/>'
        )
        if low < high:
            parts += _whisker(left + unit * low, left + unit * high, at + (_ROW - 6) / 2)
        parts.append(_text(left + unit * high + 8, at + 13, said))
    return parts, 32 + _ROW * len(bars.rows) + 24


def _whisker(start: float, stop: float, at: float) -> list[str]:
    ends = [_line(x, at - 4, x, at + 4, _INK) for x in (start, stop)]
    return [_line(start, at, stop, at, _INK), *ends]


def _ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [f * 10.0**d for d in decades for f in (1, 2, 5) if low * (1 - 1e-9) <= f * 10.0**d <= high * (1 + 1e-9)]
    if len(fine) < 2:
        return _ticks(low, high)
    if len(fine) <= _MAX_TICKS + 4:
        return fine
    powers = [value for value in fine if math.log10(value).is_integer()]
    return powers[:: math.ceil(len(powers) / _MAX_TICKS)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _FAINT, *, dashed: bool = False) -> str:
    ends = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
    return f'<line {ends} stroke="{colour}"{_dashes(dashed)} stroke-width="{1 if colour == _FAINT else 1.5}"/>'


def _dashes(dashed: bool) -> str:
    return ' stroke-dasharray="5 4"' if dashed else ""


def _text(x: float, y: float, words: str, anchor: str = "start", *, weight: bool = False) -> str:
    bold = ' font-weight="600" font-size="15"' if weight else ""
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}"{bold}>{_escape(words)}</text>'


def _escape(words: str) -> str:
    """Make text fit for XML, which allows neither control characters nor halves of surrogate pairs."""
    return html.escape("".join(char if char.isprintable() else "\ufffd" for char in words))
