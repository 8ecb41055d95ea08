"""What a worker holds of a source that is read in groups: chunks, row groups. Bounded, last used last dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class GroupCache:
    """Decoded groups.

    Args:
        limit_bytes: About how much it holds; one group at least.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, group: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Return a group; ``load`` gives one that is not held, and its bytes."""
        if group in self._held:
            self._held.move_to_end(group)
            return self._held[group][0]
        value, size = load()
        self._held[group] = value, size
        self._bytes += size
        while self._bytes > self.limit_bytes and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1][1]
        return value
