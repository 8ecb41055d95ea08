"""Texts of samples for the grid: read when a page is shown, for a short time, and kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from wds_tools.errors import printable
from wds_tools.lru_cache import LRUCache
from wds_tools.service.pages.background import Tasks
from wds_tools.service.pages.browse import MAX_VALUES, BrowseError, Browser, Opened
from wds_tools.service.pages.helpers import BusyError, HelperError, HelperPool

_KEPT_BYTES = 16 << 20
_SHOWN = 300  # characters
_WAIT_SECONDS = 0.3  # for which a page waits for its texts


class TextCache:
    """The texts of samples; the least recently used are evicted first.

    Args:
        helpers: Processes that parse JSON.
    """

    def __init__(self, browser: Browser, helpers: HelperPool) -> None:
        self._browser = browser
        self._helpers = helpers
        self._working = asyncio.Semaphore(MAX_VALUES)
        self._tasks = Tasks()
        self._kept = LRUCache[str, str](max_items=50_000, max_bytes=_KEPT_BYTES)

    async def close(self) -> None:
        """End what runs in the background."""
        await self._tasks.close()

    async def texts(self, opened: Opened, rows: Sequence[dict[str, Any]]) -> list[str | None]:
        """Return the beginning of the text of each sample; "" without a text, None if it has not been read yet."""
        tasks = [asyncio.ensure_future(self._text(opened, row)) for row in rows]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_WAIT_SECONDS)
            for task in late:
                task.cancel()
        return [task.result() if task.done() and not task.cancelled() else None for task in tasks]

    async def _text(self, opened: Opened, row: dict[str, Any]) -> str | None:
        stored = row["text"]
        if stored is None:
            return ""
        key = f"{stored['xxh3']}-{stored['size']}-{stored['name'].rpartition('.')[2]}-{row['has_image']}"
        cached = self._kept.get(key)
        if cached is not None:
            return cached
        shard = opened.manifest.shards[opened.locate(row["id"])[0]]
        async with self._working:
            try:
                data = await self._browser.value(opened, shard, stored)
            except BrowseError:
                return ""
            text: str | None = ""
            if stored["name"].endswith("json"):
                text = await asyncio.shield(
                    self._tasks.start(self._caption(data))
                )  # a helper that is cancelled would be ended
                if text == "" and row["has_image"]:
                    data = b""
        if text is None:
            return None
        text = (text or data.decode(errors="replace")).strip()
        beginning = printable(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
        self._kept.put(key, beginning, 4 * len(beginning) + 200)
        return beginning

    async def _caption(self, data: bytes) -> str | None:
        """Return the caption in a JSON; "" if there is none, None if no helper can be asked."""
        try:
            answer, _ = await self._helpers.ask({"question": "caption"}, data)
        except BusyError:
            return None
        except HelperError:
            return ""
        return str(answer["text"])
