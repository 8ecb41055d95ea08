"""Problems with the images of a dataset, for the page: found in a helper process, and kept for this version of it.

The helper for indexes gives the columns of each shard. Those of all shards go to another helper, so that the pages do
not wait for a search that takes seconds.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Any

from wds_tools.lru_cache import LRUCache
from wds_tools.service.pages.background import Tasks
from wds_tools.service.pages.browse import BrowseError, Browser, Opened
from wds_tools.service.pages.helpers import HelperError, HelperPool
from wds_tools.service.pages.kept_results import KeptResults

MAX_SAMPLES = 5_000_000
"""Samples of the largest dataset that is searched: their columns are in memory."""

_MAX_KEPT = 64
_SEARCHES = 1  # at a time
_WAIT_SECONDS = 0.3  # of a page for a search
_MEMORY_BYTES = 4 << 30
_SECONDS = 60.0
_REPEAT_SECONDS = 60.0


@dataclass(slots=True)
class Search:
    """A search for the problems of a dataset.

    Attributes:
        shards: Shards whose columns have been read.
        problems: What was found, see `problems_of`; None until the search is complete.
        unsigned: Number of images without a signature.
        error: Why there is no result.
        repeat_at: Time of the monotonic clock from which on a search that failed is repeated.
    """

    shards: int = 0
    problems: list[dict[str, Any]] | None = None
    unsigned: int = 0
    error: str = ""
    repeat_at: float = math.inf
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        """Whether the page will not change."""
        return self.problems is not None or bool(self.error)


class ProblemSearch:
    """Searches datasets for problems, one at a time.

    Args:
        kept: Results that outlive the service.
    """

    def __init__(self, browser: Browser, kept: KeptResults) -> None:
        self._browser = browser
        self._kept = kept
        self._helpers = HelperPool("problems", 1, _MEMORY_BYTES, _SECONDS)
        self._searches = LRUCache[str, Search](max_items=_MAX_KEPT)
        self._tasks = Tasks()
        self._free = asyncio.Semaphore(_SEARCHES)

    async def close(self) -> None:
        """End what runs in the background."""
        await self._tasks.close()
        await self._helpers.close()

    async def find(self, opened: Opened) -> Search:
        """Return the search of a dataset, which is started if there is none, after a short time."""
        search = self._searches.get(opened.version)
        if search is None or time.monotonic() >= search.repeat_at:
            search = Search()
            self._searches.put(opened.version, search)
            search.task = self._tasks.start(self._run(opened, search))
        if search.task is not None and not search.is_done:
            await asyncio.wait([search.task], timeout=_WAIT_SECONDS)
        return search

    async def _run(self, opened: Opened, search: Search) -> None:
        if opened.manifest.samples > MAX_SAMPLES:
            search.error = f"the dataset has more than {MAX_SAMPLES:,} samples: `wds-tools doctor DATASET` searches it"
            return
        try:
            if (stored := await self._kept.find("problems", opened.version)) is not None:
                search.unsigned, search.problems = stored["unsigned"], stored["problems"]
                return
            async with self._free:
                parts = []
                for shard in range(len(opened.manifest.shards)):
                    parts.append(await self._browser.image_columns(opened, shard))
                    search.shards = shard + 1
                sizes = [entry.samples for entry in opened.manifest.shards]
                message = {"samples": sizes, "classes": list(opened.manifest.classes)}
                answer, _ = await self._helpers.ask(message, b"".join(parts))
            search.unsigned, search.problems = answer["unsigned"], answer["problems"]
            await self._kept.put("problems", opened.version, answer)
        except (BrowseError, HelperError) as error:
            search.error, search.repeat_at = str(error), time.monotonic() + _REPEAT_SECONDS
