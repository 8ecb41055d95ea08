"""A cache for sources that are read in groups of records, such as chunks or row groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class GroupCache:
    """Decoded groups of one worker; the least recently used are evicted first.

    Args:
        limit_bytes: Limit for the sum of the sizes of all groups. One group is kept even if it is
            larger.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._cached: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, group: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Return a group; ``load`` returns a group that is not cached, and its size in bytes."""
        if group in self._cached:
            self._cached.move_to_end(group)
            return self._cached[group][0]
        value, size = load()
        self._cached[group] = value, size
        self._bytes += size
        while self._bytes > self.limit_bytes and len(self._cached) > 1:
            self._bytes -= self._cached.popitem(last=False)[1][1]
        return value
