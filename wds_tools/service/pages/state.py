"""The state of a page, which its URL holds: tab, class, condition, page. Invalid values become the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from wds_tools.service.pages.browse import Filter

MAX_WHERE = 1000
TABS = ("samples", "health", "shuffle")
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
