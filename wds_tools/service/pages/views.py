"""The state of a page, and what the templates show, as plain values: bands of causes, class bars, code to copy."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
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
MAX_FIND = 100
PROBLEMS = {
    "copies": "Same bytes",
    "similar": "Similar images",
    "labels": "Different labels",
    "blank": "Of one colour",
    "blurred": "Blurred",
    "tiny": "Tiny",
    "narrow": "Narrow",
    "classes": "Classes with one sample",
}
"""Titles of the problems that `find_problems` names."""
_QUERY_NAMES = {"label": "class"}  # of the attributes of a state that have another name in the URL
TABS = {
    "samples": "Samples",
    "batches": "Batches",
    "glance": "At a glance",
    "problems": "Problems",
    "health": "Health",
}
"""The tabs of a dataset and their titles, the default first."""
SORTS = {"size": "size", "name": "name"}
"""The orders of the class list, the default first."""
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
        find: Part of the class names that are listed; "" for all.
        sort: One of `SORTS`.
    """

    tab: str = "samples"
    label: int | None = None
    where: str = ""
    page: int = 1
    classes: int = 1
    find: str = ""
    sort: str = "size"

    @classmethod
    def of(cls, query: Mapping[str, str]) -> State:
        """Read the query of a URL."""
        tab, sort = query.get("tab", ""), query.get("sort", "")
        return cls(
            tab=tab if tab in TABS else "samples",
            label=_number(query.get("class", ""), 0),
            where=query.get("where", "").strip()[:MAX_WHERE],
            page=_number(query.get("page", ""), 1) or 1,
            classes=_number(query.get("classes", ""), 1) or 1,
            find=query.get("find", "").strip()[:MAX_FIND],
            sort=sort if sort in SORTS else "size",
        )

    @property
    def filter(self) -> Filter:
        """Which samples are shown."""
        return Filter(self.label, self.where)

    @property
    def query(self) -> str:
        """The query of the URL, with ``?``; "" for the defaults."""
        given = self.values()
        return f"?{urlencode(given)}" if given else ""

    def values(self, *omitted: str) -> dict[str, str | int]:
        """Return the values of the query that are not the defaults, without some: what a form sends unchanged."""
        given = {_QUERY_NAMES.get(item.name, item.name): getattr(self, item.name) for item in fields(self)}
        defaults = {_QUERY_NAMES.get(item.name, item.name): item.default for item in fields(self)}
        return {name: value for name, value in given.items() if value != defaults[name] and name not in omitted}

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


def class_bars(opened: Opened, state: State) -> dict[str, Any]:
    """Return a page of the matching classes, by size or by name; by number until all samples are counted."""
    names, counts = opened.manifest.classes, opened.class_counts()
    order = _matching(list(counts), names, state.find)
    if state.sort == "name":
        order.sort(key=lambda label: (names[label].casefold() if label < len(names) else str(label), label))
    elif opened.is_counted:
        order.sort(key=lambda label: (-counts[label], label))
    page, pages, part = part_of(len(order), CLASSES_PER_PAGE, state.classes)
    most = max((counts[label] for label in order), default=0) or 1
    shown = [
        {
            "number": label,
            "name": class_name(names, label),
            "count": counts[label],
            "width": _BARS * counts[label] / most,
            "is_chosen": label == state.label,
            "url": state.url(opened.name, label=None if label == state.label else label, page=1, tab="samples"),
        }
        for label in order[part]
    ]
    result = {"shown": shown, "matching": len(order), "total": len(counts), "unlabelled": opened.summary.labels[None]}
    return {**result, "page": page, "pages": pages}


def problem_view(dataset: str, problem: dict[str, Any], state: State) -> dict[str, Any]:
    """Return a problem with a link to its samples; to the first ones, if they are too many for a condition."""
    where, ids = problem["where"], problem["first"]
    is_listed = not where or len(where) > MAX_WHERE
    if is_listed:
        while len(where := f"id in ({', '.join(map(str, ids))})") > MAX_WHERE:
            ids = ids[:-1]
    url = state.url(dataset, tab="samples", where=where, label=None, page=1)
    return {
        **problem,
        "title": PROBLEMS.get(problem["name"], problem["name"]),
        "url": url,
        "listed": len(ids) if is_listed else 0,
    }


def _matching(numbers: list[int], names: tuple[str, ...], find: str) -> list[int]:
    """Return the classes whose name has a text, in upper or lower case, or that have this number."""
    if not find:
        return numbers
    folded = find.casefold()
    return [n for n in numbers if str(n) == find or (n < len(names) and folded in names[n].casefold())]


def class_name(names: tuple[str, ...], label: int | None) -> str:
    """Return the name of a class, or its number if it has no name."""
    if label is None:
        return ""
    return shown(names[label]) if 0 <= label < len(names) else str(label)


def page_links(page: Page, size: int) -> dict[str, int]:
    """Return the number of the page, and of the last one."""
    current, last, _ = part_of(page.total, size, page.first // size + 1)
    return {"page": current, "last": last}


def part_of(total: int, size: int, page: int) -> tuple[int, int, slice]:
    """Return a page of a list: its number, which is the last one at most, the number of the last one, and its items.

    >>> part_of(250, 100, 9)
    (3, 3, slice(200, 300, None))
    """
    last = max(1, math.ceil(total / size))
    page = min(page, last)
    return page, last, slice((page - 1) * size, page * size)


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
    url: str,
    opened: Opened,
    mapping: Mapping[str, str],
    *,
    sample: int | None = None,
    state: State | None = None,
    samples: int = 1,
) -> str:
    """Return code that loads a sample, or the samples of a filter, which are at least as many as ``samples``.

    Args:
        url: Where a loader finds the dataset.
        opened: The dataset.
        mapping: Fields as Python by name; empty for the image and its class.
        sample: Number of the sample.
        state: State of the page, with the filter.
        samples: Number of samples.
    """
    fields = opened.manifest.fields
    image = next((name for name in IMAGE_FIELDS if name in fields), None)
    names = (["image"] if image else []) + (["label"] if opened.manifest.has_labels else [])
    chosen = tuple(names) or tuple(fields)
    options = ", fields=fields" if mapping else "" if chosen == ("image", "label") else f", fields={chosen!r}"
    start = "import wds_tools as wt\n\n"
    if mapping:
        start += "".join(["fields = {\n", *(f'    "{name}": {kind},\n' for name, kind in mapping.items()), "}\n"])
    if sample is not None:
        return (
            f"{start}with wt.make_loader({url!r}, batch_size=1, num_workers=0,\n"
            f"                    subset=[{sample}]{options}) as loader:\n    batch = next(iter(loader))\n"
        )
    condition = condition_of(state or State())
    where = f", where={condition!r}" if condition else ""
    view = "view=wt.CenterCrop(224, resize=256)" if image and not mapping else "shuffle=False"
    return (
        f"{start}loader = wt.make_loader({url!r}, batch_size={min(256, max(1, samples))},\n"
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
