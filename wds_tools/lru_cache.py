"""A cache that evicts the least recently used values first.

Use `functools.lru_cache` where the key is the arguments of one function and values are only counted. This class is for
values with a size in bytes, for objects that are pickled, and where the caller decides what is kept.
"""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Values by key, within two limits; the value that was put last is kept even if it alone exceeds them.

    Args:
        max_items: Limit of the number of values.
        max_bytes: Limit of the sum of their sizes.
    """

    def __init__(self, *, max_items: int = sys.maxsize, max_bytes: int = sys.maxsize) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.bytes = 0
        """Sum of the sizes of the values."""
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()  # (value, size), least recently used first

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def evict(self, items: int) -> None:
        """Remove the values that were used least recently."""
        for key in list(itertools.islice(self._items, items)):
            self.pop(key)

    def missing(self, keys: Iterable[K]) -> list[K]:
        """Return the keys that have no value, in the given order; this does not count as a use of the others."""
        return [key for key in keys if key not in self._items]

    def get(self, key: K) -> V | None:
        """Return a value, which becomes the most recently used one; None if there is none."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def load(self, key: K, read: Callable[[], V], size: Callable[[V], int]) -> V:
        """Return a value; a missing one is read, and kept with its size in bytes."""
        value = self.get(key)
        if value is None:
            value = read()
            self.put(key, value, size(value))
        return value

    def pop(self, key: K) -> None:
        """Remove a value, if there is one."""
        _, size = self._items.pop(key, (None, 0))
        self.bytes -= size

    def clear(self) -> None:
        """Remove all values."""
        self._items.clear()
        self.bytes = 0

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Add or replace a value of ``size`` bytes, then evict values until both limits are kept."""
        _, replaced = self._items.pop(key, (None, 0))
        self._items[key] = value, size
        self.bytes += size - replaced
        while len(self._items) > 1 and (len(self._items) > self.max_items or self.bytes > self.max_bytes):
            _, (_, evicted) = self._items.popitem(last=False)
            self.bytes -= evicted
