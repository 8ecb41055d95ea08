"""A dataset at a glance, as plain values for the template: histograms whose bars are conditions, and the fields."""

from __future__ import annotations

import ast
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from wds_tools.service.pages.browse import Opened
from wds_tools.service.pages.summary import EDGES, HEIGHT, RATIO, WIDTH
from wds_tools.service.pages.views import CLASSES_PER_PAGE, MAX_WHERE, State, shown
from wds_tools.wording import counted, human_bytes

CHART_WIDTH, CHART_HEIGHT = 300.0, 100.0
"""Size of a histogram in user units."""

_MAX_BARS = 24
_MORE_BARS = 6  # that the longest values may take; if they do not fit, they share one bar without an end
_TAIL = 0.01  # share of the samples at each end that does not determine the scale
_LEAST_BARS = 6  # for whose number the bars of a histogram are narrow enough
_MAX_FIELD_CHARTS = 6
_LEAST_HEIGHT = 1.5  # of a bar that is not empty


@dataclass(frozen=True, slots=True)
class Bar:
    """A range of values and how often they occur. ``low`` or ``high`` is None if the range has no end there."""

    low: float | None
    high: float | None
    count: int


def bars_of(bins: Counter[int], *, whole: bool) -> list[Bar]:
    """Return a histogram with bars of one width, which is 1, 2 or 5 times a power of ten.

    Args:
        bins: Values by bin, see `summary.EDGES`.
        whole: Whether the values are whole numbers.

    >>> from wds_tools.service.pages.summary import EDGES
    >>> bars_of(Counter({EDGES.index(500.0): 3, EDGES.index(510.0): 1}), whole=True)
    [Bar(low=500.0, high=510.0, count=3), Bar(low=510.0, high=520.0, count=1)]
    """
    used = sorted(index for index, count in bins.items() if count)
    if not used:
        return []
    ends = list(accumulate(bins[index] for index in used))
    low = EDGES[used[bisect_right(ends, _TAIL * ends[-1])]]
    high = EDGES[used[min(len(used) - 1, bisect_right(ends, (1 - _TAIL) * ends[-1]))]]
    least = 10.0 ** (math.floor(math.log10(high)) - 1) if high else 1.0  # a bin is not divided
    step = _step((high - low) / _MAX_BARS, max(1.0, least) if whole else least)
    first, last = _place(low, step), _place(high, step)
    start, stop = _place(EDGES[used[0]], step), _place(EDGES[used[-1]], step)
    first = start if last - start < _MAX_BARS + _MORE_BARS else first
    last = stop if stop - first < _MAX_BARS + _MORE_BARS else last
    counts: Counter[int] = Counter()
    for index in used:
        counts[min(max(_place(EDGES[index], step), first - 1), last + 1)] += bins[index]
    bars = []
    for place in range(first - (first > start), last + 1 + (stop > last)):
        ends_at = (place * step, (place + 1) * step)
        low_end = None if place < first else _round(ends_at[0])
        bars.append(Bar(low_end, None if place > last else _round(ends_at[1]), counts[place]))
    return bars


def glance(opened: Opened, state: State) -> dict[str, Any]:
    """Return the histograms and the fields of a dataset, of the shards counted so far."""
    summary = opened.summary

    def link(name: str) -> Callable[[Bar], str]:
        return lambda bar: (
            state.url(opened.name, tab="samples", where=condition(name, bar), label=None, page=1)
            if is_column(name)
            else ""
        )

    charts = []
    for name, title, whole in ((WIDTH, "Width", True), (HEIGHT, "Height", True), (RATIO, "Aspect ratio", False)):
        bars = bars_of(summary.images.get(name, Counter()), whole=whole)
        unit = " pixels" if whole else ""
        charts.append(_chart(title, bars, _number if whole else _ratio, unit, "sample", link(name)))
    largest = sorted(summary.fields.items(), key=lambda item: -item[1].bytes)
    for name, field in largest[:_MAX_FIELD_CHARTS]:
        title = f"Bytes of {shown(name)}"
        charts.append(_chart(title, bars_of(field.sizes, whole=True), _size, "", "sample", link(f"{name}.size")))
    charts.append(_class_chart(opened, state))
    return {
        "charts": [chart for chart in charts if chart["bars"]],
        "fields": largest,
        "hidden_fields": max(0, len(opened.manifest.fields) - len(largest)) if opened.is_counted else 0,
        "imageless": summary.labels.total() - sum(summary.images.get(WIDTH, Counter()).values()),
        "imageless_url": state.url(opened.name, tab="samples", where="width == 0", label=None, page=1),
    }


def condition(name: str, bar: Bar) -> str:
    """Return the condition that the samples of a bar meet.

    >>> condition("width", Bar(500.0, 510.0, 3)), condition("width", Bar(None, 80.0, 1))
    ('width >= 500 and width < 510', 'width > 0 and width < 80')
    """
    parts = [f"{name} >= {bar.low:.12g}"] if bar.low is not None else []
    if not bar.low and name in (WIDTH, HEIGHT, RATIO):
        parts = [f"{name} > 0"]  # 0: no image
    if bar.high is not None:
        parts.append(f"{name} < {bar.high:.12g}")
    return " and ".join(parts)


def is_column(name: str) -> bool:
    """Return whether a condition can name this column, or is this expression: not ``my-field.size``."""
    try:
        tree = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return name == RATIO or (isinstance(tree, ast.Name | ast.Attribute) and ast.unparse(tree) == name)


def _class_chart(opened: Opened, state: State) -> dict[str, Any]:
    """Return the histogram of the samples per class: a bar is a condition, or the place of its classes in the list."""
    counts = opened.class_counts()
    bins = Counter(bisect_right(EDGES, count) - 1 for count in counts.values())
    bars = bars_of(bins, whole=True)

    def link(bar: Bar) -> str:
        low, high = bar.low or 0, math.inf if bar.high is None else bar.high
        labels = [label for label, count in counts.items() if low <= count < high]
        where = f"label == {labels[0]}" if len(labels) == 1 else f"label in ({', '.join(map(str, labels))})"
        if len(where) <= MAX_WHERE:
            return state.url(opened.name, tab="samples", where=where, label=None, page=1)
        before = sum(count >= high for count in counts.values())
        page = before // CLASSES_PER_PAGE + 1
        return state.url(opened.name, tab="samples", classes=page, find="", sort="size", page=1) + "#classes"

    return _chart("Samples per class", bars, _number, " samples", "class", link)


def _chart(
    title: str, bars: list[Bar], text: Callable[[float], str], unit: str, noun: str, link: Callable[[Bar], str]
) -> dict[str, Any]:
    """Return a histogram: its bars with their places in user units, and the ends of its scale."""
    most = max((bar.count for bar in bars), default=0) or 1
    width = CHART_WIDTH / max(_LEAST_BARS, len(bars))
    plural = "classes" if noun == "class" else f"{noun}s"
    drawn = []
    for place, bar in enumerate(bars):
        height = max(CHART_HEIGHT * bar.count / most, _LEAST_HEIGHT if bar.count else 0)
        name = f"{_range(bar, text)}{unit}: {counted(bar.count, noun, plural)}"
        drawn.append(
            {
                "x": place * width,
                "width": width,
                "drawn": width - min(2.0, width * 0.1),
                "y": CHART_HEIGHT - height,
                "height": height,
                "name": name,
                "url": link(bar) if bar.count else "",
            }
        )
    if not bars:
        return {"title": title, "bars": []}
    first, last = bars[0], bars[-1]
    low = text(first.low) if first.low is not None else f"below {text(first.high or 0)}"
    high = text(last.high) if last.high is not None else f"{text(last.low or 0)} and more"
    if len(bars) < _LEAST_BARS:  # the scale ends with the last bar
        low, high = _range(Bar(first.low, last.high, 0), text), ""
    return {"title": title, "bars": drawn, "low": low, "high": high, "most": f"{most:,} {plural}"}


def _range(bar: Bar, text: Callable[[float], str]) -> str:
    if bar.low is None:
        return f"below {text(bar.high or 0)}"
    return f"{text(bar.low)} and more" if bar.high is None else f"{text(bar.low)} to {text(bar.high)}"


def _step(least_step: float, least: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least both."""
    minimum = max(least_step, least)
    power = math.floor(math.log10(minimum) + 1e-9)
    steps = (float(f"{digit}e{power}") for digit in (1, 2, 5, 10))
    return next(step for step in steps if step >= minimum * (1 - 1e-9))


def _place(value: float, step: float) -> int:
    return math.floor(value / step + 1e-6)


def _round(value: float) -> float:
    return float(f"{value:.10g}")


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:g}"


def _size(value: float) -> str:
    return human_bytes(round(value))
