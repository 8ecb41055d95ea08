"""Thumbnails of samples: encoded by helper processes, kept in memory, with a placeholder for those that fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wds_tools.format.sample import IMAGE_FIELDS, shows_mask
from wds_tools.lru_cache import LRUCache
from wds_tools.service.pages.browse import MAX_VALUES, BrowseError, Browser, Opened
from wds_tools.service.pages.helpers import BusyError, HelperError, HelperPool

SECONDS = 5.0
PROCESSES = 2
MEMORY_BYTES = 1 << 30
_KEPT_BYTES = 64 << 20
PLACEHOLDER = (Path(__file__).parent / "static" / "placeholder.svg").read_bytes()
_TYPES = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png"}


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A thumbnail as it is sent.

    Attributes:
        data: The encoded image.
        content_type: Its type.
        etag: Changes with its content.
        facts: Of a mask, see `wds_tools.service.pages.thumbnails.mask`.
    """

    data: bytes
    content_type: str
    etag: str
    facts: dict[str, Any] = field(default_factory=dict)


class ThumbnailCache:
    """The thumbnails of samples; the least recently used are evicted first.

    Args:
        helpers: Processes that decode images.
    """

    def __init__(self, browser: Browser, helpers: HelperPool) -> None:
        self._browser = browser
        self._helpers = helpers
        self._working = asyncio.Semaphore(MAX_VALUES)
        self._kept = LRUCache[str, Thumbnail](max_items=20_000, max_bytes=_KEPT_BYTES)

    async def thumbnail(self, opened: Opened, sample: int, *, size: int, field: str) -> Thumbnail:
        """Return a thumbnail of a sample, or a placeholder if the sample has no image or it cannot be decoded.

        Masks are in the colours of a palette.

        Args:
            opened: The dataset.
            sample: Number of the sample.
            size: Longest side in pixels.
            field: The field; "" for its image.
        """
        try:
            _, fields, shard = await self._browser.sample(opened, sample)
        except BrowseError:
            return _placeholder("unknown")
        stored = image_field_of(fields) if not field else next((item for item in fields if item["name"] == field), None)
        if stored is None or not may_hold_image(stored["name"]):
            return _placeholder("none")
        is_mask = shows_mask(stored["name"])
        key = f"{stored['xxh3']}-{stored['size']}-{size}{'-mask' if is_mask else ''}"
        cached = self._kept.get(key)
        if cached is not None:
            return cached
        try:
            async with self._working:
                data = await self._browser.value(opened, shard, stored)
                question = {"field": stored["name"], "size": size, "is_mask": is_mask}
                facts, made = await self._helpers.ask(question, data)
            kind = _TYPES.get(made[:2])
            result = Thumbnail(made, kind, key, facts) if kind else _placeholder(key)
        except (BrowseError, BusyError):
            return _placeholder("unknown")  # it may be shown later
        except HelperError:
            result = _placeholder(key)
        self._kept.put(key, result, len(result.data) + 200)
        return result


def may_hold_image(field: str) -> bool:
    """Return whether a field may hold an image.

    >>> may_hold_image("jpg"), may_hold_image("mask.png"), may_hold_image("json")
    (True, True, False)
    """
    return field.rpartition(".")[2] in IMAGE_FIELDS


def image_field_of(fields: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the field with the image of a sample, or another one with an image, or None."""
    by_name = {field["name"]: field for field in fields}
    names = [*(name for name in IMAGE_FIELDS if name in by_name), *filter(may_hold_image, by_name)]
    return by_name[names[0]] if names else None


def _placeholder(key: str) -> Thumbnail:
    return Thumbnail(PLACEHOLDER, "image/svg+xml", f"placeholder-{key}")
