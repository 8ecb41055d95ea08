"""Several datasets in fixed proportions: one canonical sequence made of theirs. Arithmetic.

Which dataset a position takes its sample from is a pattern of whole numbers that repeats: weights 0.7 and 0.3 have a
pattern of ten places. After any number of positions each dataset has had its share to within one sample (Tijdeman:
The chairman assignment problem, Discrete Mathematics 32, 1980), so a batch in which the shares are whole numbers has
exactly these.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.selection import apportion
from wds_tools.order.sequence import Order
from wds_tools.order.tally import Tally

MAX_PERIOD = 10_000
Stop = Literal["first_exhausted", "all_exhausted"]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several datasets, to be given to `make_loader` or `StreamingDataset` in place of one.

    Attributes:
        datasets: Folders, URLs, manifests or patterns.
        weights: Share of each in every batch; they need not sum to 1.
        stop: When an epoch ends: ``"first_exhausted"``, before any sample comes twice, or ``"all_exhausted"``, when
            each dataset has been seen whole; smaller ones start over in the meantime.

    Raises:
        OptionError: Weights that are not one positive number for each dataset, or another stop rule.

    Example::

        loader = make_loader(Mixture(["shards/a", "shards/b"], weights=[0.7, 0.3]), batch_size=100)
    """

    datasets: Sequence[str | os.PathLike[str]]
    weights: Sequence[float]
    stop: Stop = "first_exhausted"

    def __post_init__(self) -> None:
        good = [math.isfinite(weight) and weight > 0 for weight in self.weights]
        if isinstance(self.datasets, str | os.PathLike) or not good or len(good) != len(self.datasets) or not all(good):
            raise OptionError(
                f"Mixture of {self.datasets!r} with weights={self.weights!r}; "
                "expected a list of datasets, and a number above 0 for each"
            )
        if self.stop not in ("first_exhausted", "all_exhausted"):
            raise OptionError(f"stop={self.stop!r}; allowed are 'first_exhausted' and 'all_exhausted'")


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in the proportion of the weights, as far as `MAX_PERIOD` allows.

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
    if not shares.all():
        raise OptionError(f"weights={list(weights)!r}; allowed are shares of 1 in {MAX_PERIOD:,} and more")
    return [int(share) for share in shares // math.gcd(*shares.tolist())]


def pattern_of(shares: Sequence[int]) -> NDArray[np.int64]:
    """Return which part each place of a period takes: int64 [sum of shares], by Tijdeman's rule."""
    period, slack = sum(shares), max(1, 2 * len(shares) - 2)
    taken = [0] * len(shares)
    pattern = []
    for place in range(1, period + 1):
        # In units of 1 / (period * slack): how far each part is behind its share if it is passed over now.
        behind = [slack * (place * share - period * count) for share, count in zip(shares, taken, strict=True)]
        ready = [part for part, lag in enumerate(behind) if lag >= period] or [int(np.argmax(behind))]
        # The one whose share runs furthest ahead of it soonest.
        chosen = min(ready, key=lambda part: Fraction(period * slack - period - behind[part], shares[part]))
        taken[chosen] += 1
        pattern.append(chosen)
    return np.array(pattern, np.int64)


class MixtureOrder:
    """The canonical sequences of a mixture; to the planner it is an `Order`.

    Args:
        parts: The orders of the datasets.
        shares: Whole numbers, one for each.
        stop: When an epoch ends.
    """

    selection = None

    def __init__(self, parts: Sequence[Order], shares: Sequence[int], stop: Stop) -> None:
        self.parts = tuple(parts)
        self.shares = tuple(shares)
        self.stop: Stop = stop
        self.seed = parts[0].seed
        self.lanes = parts[0].lanes
        self.window = [part.window for part in parts]
        self.block = [part.block for part in parts]
        self.stored = sum(part.stored for part in parts)
        self.shards = sum(part.shards for part in parts)
        self.fingerprint = _fingerprint(parts, shares, stop)
        self._first_id = np.concatenate([[0], np.cumsum([part.stored for part in parts])]).astype(np.int64)
        self._period = sum(shares)
        self._pattern = pattern_of(shares)
        taken = [np.cumsum(self._pattern == number) for number in range(len(parts))]
        self._taken = np.stack([np.concatenate([[0], counts]) for counts in taken])  # [parts, period + 1]
        if stop == "first_exhausted":
            self.samples = min(self._place(number, part.samples) for number, part in enumerate(parts))
        else:
            self.samples = max(self._place(number, part.samples - 1) + 1 for number, part in enumerate(parts))
        if not self.samples:
            raise OptionError("the mixture has no samples")

    @property
    def once(self) -> bool:
        """Whether no sample comes twice in an epoch."""
        return self.stop == "first_exhausted" and all(part.once for part in self.parts)

    @property
    def shuffles(self) -> bool:
        """Whether the order is not the stored one."""
        return any(self.window)

    def like(self, *, window: Sequence[int], block: Sequence[int], lanes: int) -> MixtureOrder:
        """Return the order of the same mixture with other windows, blocks and number of lanes."""
        parts = [
            part.like(window=its_window, block=its_block, lanes=lanes)
            for part, its_window, its_block in zip(self.parts, window, block, strict=True)
        ]
        return MixtureOrder(parts, self.shares, self.stop)

    def ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``start`` to ``stop`` of an epoch; ids count through all datasets."""
        return self.slice(epoch, start, stop)[0]

    def slice(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the ids at positions ``start`` to ``stop`` of an epoch, and the lane of each."""
        whose = self._pattern[np.arange(start, stop) % self._period]
        ids, lanes = np.empty(len(whose), np.int64), np.empty(len(whose), np.int16)
        for number in range(len(self.parts)):
            mine = whose == number
            ids[mine], lanes[mine] = self._part(number, epoch, self._before(number, start), self._before(number, stop))
        return ids, lanes

    def tally(self, epoch: int) -> Tally | None:  # noqa: ARG002 - an Order's answer depends on it
        """Return None: which samples an epoch holds cannot be told without computing it."""
        return None

    def _part(self, number: int, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return samples ``start`` to ``stop`` of a dataset in an epoch of the mixture: several passes, perhaps."""
        part = self.parts[number]
        passes = -(-self._before(number, self.samples) // part.samples)
        ids, lanes = [np.empty(0, np.int64)], [np.empty(0, np.int16)]
        while start < stop:
            turn, first = divmod(start, part.samples)
            last = min(part.samples, first + stop - start)
            its_ids, its_lanes = part.slice(epoch * passes + turn, first, last)
            ids.append(its_ids + self._first_id[number])
            lanes.append(its_lanes)
            start += last - first
        return np.concatenate(ids), np.concatenate(lanes)

    def _before(self, number: int, position: int) -> int:
        """Return how many samples a dataset has given before a position."""
        periods, rest = divmod(position, self._period)
        return periods * self.shares[number] + int(self._taken[number][rest])

    def _place(self, number: int, count: int) -> int:
        """Return the position at which a dataset gives its sample ``count``, counted from 0."""
        periods, rest = divmod(count, self.shares[number])
        return periods * self._period + int(np.flatnonzero(self._pattern == number)[rest])


def _fingerprint(parts: Sequence[Order], shares: Sequence[int], stop: str) -> str:
    digest = xxhash.xxh3_128(stop.encode())
    for part, share in zip(parts, shares, strict=True):
        digest.update(f"{part.fingerprint} {part.selection.digest if part.selection else ''} {share}\n".encode())
    return digest.hexdigest()
