"""Sequences whose items are made when they are used, so that millions of them take no memory."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Generic, TypeVar, overload

Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """A sequence whose items are made when they are used. A slice is a list, or the sequence itself if it has all."""

    @abstractmethod
    def make(self, index: int) -> Item:
        """Return the item at a position from 0 on."""

    @overload
    def __getitem__(self, item: int) -> Item: ...

    @overload
    def __getitem__(self, item: slice) -> Sequence[Item]: ...

    def __getitem__(self, item: int | slice) -> Item | Sequence[Item]:
        if isinstance(item, slice):
            numbers = range(len(self))[item]
            return self if numbers == range(len(self)) else list(map(self.make, numbers))
        return self.make(range(len(self))[item])

    def __iter__(self) -> Iterator[Item]:
        return map(self.make, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or (
            len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]


class JoinedSequence(LazySequence[Item], Generic[Item]):
    """Several sequences as one.

    Args:
        parts: The sequences, which do not change.
    """

    def __init__(self, parts: Sequence[Sequence[Item]]) -> None:
        self.parts = parts
        self._starts = [0, *accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._starts[-1]

    def make(self, index: int) -> Item:
        """Return the item at a position."""
        part = bisect_right(self._starts, index) - 1
        return self.parts[part][index - self._starts[part]]

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self.parts)
