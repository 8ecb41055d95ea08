"""Exact proportions: which of several datasets has each row of a sequence. No I/O.

A repeating pattern assigns a dataset to each position. Weights 0.7 and 0.3 have a pattern of length
ten. Up to any position, the number of samples from each dataset differs from its exact share by less
than one (Tijdeman: The chairman assignment problem, Discrete Mathematics 32, 1980). So a batch whose
size is a multiple of the pattern's length has exactly the requested proportions.

When the shares change, each dataset is ahead of or behind the share that it was promised so far. The new pattern begins
with these lags. So the shares also hold over any number of changes, however few rows are between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.selection import apportion

Ints = NDArray[np.int64]
Part = tuple[Ints, NDArray[np.int16]]
"""Sample ids and lanes of consecutive positions."""

MAX_PERIOD = 10_000
LAG = 1 << 24
"""The lag of a dataset that is one unit of rows behind its share. Lags are whole numbers, the same on any machine."""


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in the proportion of the weights.

    If their sum would exceed `MAX_PERIOD`, the proportion is approximated by shares of `MAX_PERIOD`.

    >>> whole_shares([0.7, 0.3]), whole_shares([1, 1, 2])
    ([7, 3], [1, 1, 2])
    """
    total = sum(weights)
    parts = [Fraction(weight / total).limit_denominator(1000) for weight in weights]
    period = math.lcm(*(part.denominator for part in parts))
    exact = all(math.isclose(part, weight / total, rel_tol=1e-9) for part, weight in zip(parts, weights, strict=True))
    if exact and period <= MAX_PERIOD and sum(parts) == 1:
        return [int(part * period) for part in parts]
    shares = apportion(MAX_PERIOD, np.array(weights, np.float64))
    if not all(share for share, weight in zip(shares, weights, strict=True) if weight):
        raise OptionError(f"weights={list(weights)!r}; allowed are shares of at least 1 in {MAX_PERIOD:,}")
    return [int(share) for share in shares // math.gcd(*shares.tolist())]


def pattern_of(shares: Sequence[int], lags: Sequence[int] = ()) -> Ints:
    """Return the index of the dataset at each position of a period, by Tijdeman's algorithm.

    Returns:
        int64 [sum of shares].
    """
    occurring = [index for index, share in enumerate(shares) if share]
    period, slack = sum(shares), max(1, 2 * len(occurring) - 2)
    # How far each dataset is behind if it is not chosen now, in units of 1 / (period * slack * LAG).
    behind = [slack * period * lag for lag in lags or [0] * len(shares)]
    unit, limit = slack * period * LAG, period * LAG
    left = list(shares)  # so that the pattern can repeat
    pattern = []
    for _ in range(period):
        largest, urgent, spare = -1, -1, 0
        for index in occurring:
            behind[index] += slack * LAG * shares[index]
            if not left[index]:
                continue
            if largest < 0 or behind[index] > behind[largest]:
                largest = index
            if behind[index] < limit:
                continue
            # The dataset with the earliest deadline: the one that would be the first to fall too far behind.
            own = unit - limit - behind[index]
            if urgent < 0 or own * shares[urgent] < spare * shares[index]:
                urgent, spare = index, own
        chosen = largest if urgent < 0 else urgent
        behind[chosen] -= unit
        left[chosen] -= 1
        pattern.append(chosen)
    return np.array(pattern, np.int64)


class Pattern:
    """Which dataset has each row of an endless sequence."""

    def __init__(self, shares: Sequence[int], unit: int = 1, lags: Sequence[int] = ()) -> None:
        self.shares, self.unit = tuple(shares), unit
        self._period, self._lags = sum(shares), tuple(lags) or (0,) * len(shares)
        self._pattern = pattern_of(shares, self._lags)
        counts = [np.cumsum(self._pattern == index) for index in range(len(shares))]
        # [datasets, period + 1], samples of each dataset before each position of the pattern
        self._counts = np.stack([np.concatenate([[0], part_counts]) for part_counts in counts])

    def count_before(self, dataset: int, position: int) -> int:
        """Return the number of samples from one dataset before a position."""
        units, rows = divmod(position, self.unit)
        periods, remainder = divmod(units, self._period)
        before = periods * self.shares[dataset] + int(self._counts[dataset][remainder])
        return before * self.unit + (rows if self._pattern[remainder] == dataset else 0)

    def lag(self, dataset: int, position: int) -> int:
        """Return how far a dataset is behind its share at a position: units of rows, in 1 / `LAG`."""
        rows = position * self.shares[dataset] - self.count_before(dataset, position) * self._period
        return self._lags[dataset] + round(Fraction(LAG * rows, self.unit * self._period))

    def position_of(self, dataset: int, count: int) -> int:
        """Return the position of a dataset's sample ``count``, counted from 0."""
        units, rows = divmod(count, self.unit)
        periods, remainder = divmod(units, self.shares[dataset])
        return (periods * self._period + int(np.flatnonzero(self._pattern == dataset)[remainder])) * self.unit + rows

    def row_like(self, position: int, start: int, stop: int, dataset: int) -> int:
        """Return a row from ``start`` to ``stop`` of the dataset that a position has, chosen by a random number."""
        source = int(self._pattern[position // self.unit % self._period])
        first, last = (self.count_before(source, edge) for edge in (start, stop))
        return self.position_of(source, first + dataset % (last - first))

    def merged(self, start: int, stop: int, lanes: int, part_slice: Callable[[int, int, int], Part]) -> Part:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start].

        Args:
            start: First position.
            stop: Position after the last one.
            lanes: Number of lanes.
            part_slice: Function of the number of a dataset, and of the first sample and the one after the last that
                are wanted from it.
        """
        if len(self.shares) == 1:
            return part_slice(0, start, stop)
        part_of = self._pattern[np.arange(start, stop) // self.unit % self._period]
        ids, all_lanes = np.empty(len(part_of), np.int64), np.empty(len(part_of), np.int16)
        for index in range(len(self.shares)):
            mask = part_of == index
            ids[mask], part_lanes = part_slice(index, self.count_before(index, start), self.count_before(index, stop))
            # Every other dataset counts its lanes downwards. So a step of two datasets, neither of
            # which has a multiple of the lanes in it, still has equal numbers of samples of all lanes.
            all_lanes[mask] = lanes - 1 - part_lanes if index % 2 else part_lanes
        return ids, all_lanes
