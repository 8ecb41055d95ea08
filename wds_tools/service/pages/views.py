"""The state of a page, and what the templates show, as plain values: bands of causes, class bars, code to copy."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from wds_tools.errors import printable, shortened
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.service.pages.browse import Filter, Opened, Page
from wds_tools.stages import CAUSES, STEP, cause_name

SAMPLES_PER_PAGE = 60
CLASSES_PER_PAGE = 24
ROWS_PER_PAGE = 100
MAX_RUNS = 50
MAX_RANKS = 16
_MIN_SHARE = 0.01
_MAX_VALUE_CHARACTERS = 4000
_BARS = 100.0  # width of bars in user units
MAX_WHERE = 1000
TABS = ("samples", "health")
_MAX_NUMBER = 10**15


@dataclass(frozen=True, slots=True)
class State:
    """What a page of a dataset shows.

    Attributes:
        tab: One of `TABS`.
        label: Class number; None for all.
        where: Condition.
        page: Page of samples or shards, from 1.
        classes: Page of classes, from 1.
    """

    tab: str = "samples"
    label: int | None = None
    where: str = ""
    page: int = 1
    classes: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> State:
        """Read the query of a URL."""
        tab = query.get("tab", "")
        return cls(
            tab=tab if tab in TABS else TABS[0],
            label=_number(query.get("class", ""), 0),
            where=query.get("where", "").strip()[:MAX_WHERE],
            page=_number(query.get("page", ""), 1) or 1,
            classes=_number(query.get("classes", ""), 1) or 1,
        )

    @property
    def filter(self) -> Filter:
        """Which samples are shown."""
        return Filter(self.label, self.where)

    @property
    def query(self) -> str:
        """The query of the URL, with ``?``; "" for the defaults."""
        values = {"tab": self.tab, "class": self.label, "where": self.where, "page": self.page, "classes": self.classes}
        defaults = {"tab": "samples", "class": None, "where": "", "page": 1, "classes": 1}
        given = {name: value for name, value in values.items() if value != defaults[name]}
        return f"?{urlencode(given)}" if given else ""

    def url(self, dataset: str, **changes: Any) -> str:
        """Return the URL of the page with some values changed."""
        return f"/datasets/{quote(dataset)}{replace(self, **changes).query}"


def _number(text: str, least: int) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        return None
    return min(max(least, int(text)), _MAX_NUMBER)


def band(waits: dict[str, float]) -> list[dict[str, Any]]:
    """Return the parts of a band: what a loop waits for, then the training step, from left to right."""
    shares = [(cause, waits[cause]) for cause in CAUSES if waits[cause] >= _MIN_SHARE]
    waited = sum(share for _, share in shares)
    parts, at = [], 0.0
    scale = 1 / max(1.0, waited)
    for cause, share in [*shares, (STEP, max(0.0, 1 - sum(waits.values())))]:
        width = share * scale * _BARS
        if width > 0:
            parts.append({"cause": cause, "name": cause_name(cause), "at": at, "width": width, "share": share})
        at += width
    return parts


def run_view(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run with the bands of its ranks."""
    ranks = [{**rank, "band": band(rank["waits"])} for rank in run["ranks"][:MAX_RANKS]]
    return {
        **run,
        "ranks": ranks,
        "hidden": len(run["ranks"]) - len(ranks),
        "is_fed": run["main_cause"] == STEP,
        "cause": cause_name(run["main_cause"]),
    }


def class_bars(opened: Opened, labels: Counter[int | None], state: State) -> dict[str, Any]:
    """Return the classes of a page, the largest first, or in their order until all samples are counted."""
    names = opened.manifest.classes
    numbers = {*range(len(names)), *(label for label in labels if label is not None and 0 <= label < 10**12)}
    order = sorted(numbers, key=lambda number: (-labels[number] if opened.is_counted else 0, number))
    pages = max(1, math.ceil(len(order) / CLASSES_PER_PAGE))
    page = min(state.classes, pages)
    most = max((labels[number] for number in order), default=0) or 1
    shown = [
        {
            "number": number,
            "name": class_name(names, number),
            "count": labels[number],
            "width": _BARS * labels[number] / most,
            "is_chosen": number == state.label,
            "url": state.url(opened.name, label=None if number == state.label else number, page=1, tab="samples"),
        }
        for number in order[(page - 1) * CLASSES_PER_PAGE : page * CLASSES_PER_PAGE]
    ]
    return {"shown": shown, "total": len(order), "page": page, "pages": pages, "unlabelled": labels[None]}


def class_name(names: tuple[str, ...], label: int | None) -> str:
    """Return the name of a class, or its number if it has no name."""
    if label is None:
        return ""
    return shown(names[label]) if 0 <= label < len(names) else str(label)


def page_links(page: Page, size: int) -> dict[str, int]:
    """Return the number of the page, and of the last one."""
    return {"number": page.first // size + 1, "last": max(1, math.ceil(page.total / size))}


def mistake_view(where: str, mistake: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a mistake in a condition: the text before it, itself and after it, and the message."""
    if mistake is None:
        return None
    message = mistake["message"]
    if mistake["span"] is None:
        return {"before": where, "wrong": "", "after": "", "message": message}
    start, stop = mistake["span"]
    wrong = where[start:stop] or " "
    return {"before": where[:start], "wrong": wrong, "after": where[stop:], "message": message, "column": start + 1}


def python_of(
    url: str, opened: Opened, *, sample: int | None = None, state: State | None = None, samples: int = 1
) -> str:
    """Return code that loads a sample, or the samples of a filter, which are at least as many as ``samples``."""
    fields = opened.manifest.fields
    image = next((name for name in IMAGE_FIELDS if name in fields), None)
    names = (["image"] if image else []) + (["label"] if opened.manifest.has_labels else [])
    chosen = tuple(names) or tuple(fields)
    options = "" if chosen == ("image", "label") else f", fields={chosen!r}"
    if sample is not None:
        return (
            f"import wds_tools as wt\n\nwith wt.make_loader({url!r}, batch_size=1, num_workers=0,\n"
            f"                    subset=[{sample}]{options}) as loader:\n    batch = next(iter(loader))\n"
        )
    condition = condition_of(state or State())
    where = f", where={condition!r}" if condition else ""
    view = "view=wt.CenterCrop(224, resize=256)" if image else "shuffle=False"
    return (
        f"import wds_tools as wt\n\nloader = wt.make_loader({url!r}, batch_size={min(256, max(1, samples))},\n"
        f"                        {view}{where}{options})\n"
    )


def condition_of(state: State) -> str:
    """Return the class and the condition of a page as one condition."""
    parts = [] if state.label is None else [f"label == {state.label}"]
    if state.where:
        parts.append(f"({state.where})" if parts else state.where)
    return " and ".join(parts)


def text_of(data: bytes) -> str | None:
    """Return the text of a field, cut off; None if it is not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    more = len(text) - _MAX_VALUE_CHARACTERS
    text = printable(text[:_MAX_VALUE_CHARACTERS])
    return f"{text} … and {more:,} more characters" if more > 0 else text


def shown(text: str) -> str:
    """Return a name from a dataset as it is shown: without control characters, and not too long."""
    return shortened(printable(text), 300)


def duration(seconds: float | None) -> str:
    """Return a duration in words.

    >>> duration(42), duration(150), duration(9000), duration(None)
    ('42 s', '2 min 30 s', '2 h 30 min', 'unknown')
    """
    if seconds is None:
        return "unknown"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"


def day(seconds: float) -> str:
    """Return a time in seconds since 1970 as date and time in UTC.

    >>> day(0)
    '1970-01-01 00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
