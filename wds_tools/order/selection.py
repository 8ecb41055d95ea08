"""Which samples an epoch has, and how often each: a choice of ids, and a balance between classes. Arithmetic.

A balance repeats or leaves out samples so that each class has a fixed share of every epoch: the share that
``torch.utils.data.WeightedRandomSampler`` gives it on average. Each sample of a class comes equally often, give or
take one, and who comes once more rotates from epoch to epoch, so that in the long run nobody is favoured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.keyed_random import hashes, key_of, permute

_NOISE = 1e-9  # of floating point, so that 2.9999999999 counts as 3


@dataclass(frozen=True, slots=True)
class Balance:
    """How often the classes come.

    Attributes:
        label: int64 [n], class number of each chosen sample.
        samples: int64 [classes], chosen samples of each class.
        targets: int64 [classes], places in an epoch that each class gets.
    """

    label: NDArray[np.int64]
    samples: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def factors(self) -> NDArray[np.float64]:
        """How often a sample of each class comes in an epoch, on average: float64 [classes], 0 for no samples."""
        return self.targets / np.maximum(self.samples, 1)


def balance(label: NDArray[np.int64], weights: NDArray[np.float64]) -> Balance:
    """Give each class its share of an epoch of as many samples as there are.

    Args:
        label: int64 [n], class number of each sample.
        weights: float64 [classes], weight of a sample of each class, as for ``WeightedRandomSampler``.

    Raises:
        OptionError: A weight is negative, not finite, or all samples have weight 0.
    """
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise OptionError(f"class_weights={weights.tolist()}; allowed are finite numbers from 0 on")
    samples = np.bincount(label, minlength=len(weights))
    shares = samples * weights
    if not shares.sum() > 0:
        raise OptionError("class_weights leaves no sample: every class that has samples has weight 0")
    return Balance(label, samples, apportion(len(label), shares))


def apportion(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide a whole number in proportion to shares, by largest remainder: int64 [shares], which sums to ``total``.

    >>> apportion(10, np.array([1.0, 1.0, 1.0])).tolist()
    [4, 3, 3]
    """
    exact = total * (shares / shares.sum())
    whole: NDArray[np.int64] = np.floor(exact + _NOISE).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


class Selection:
    """The samples of an epoch: int64 ids, some perhaps several times.

    Args:
        ids: int64 [n], the samples chosen, in their stored order. A sample may be there several times: see `in_rounds`.
        balance: Of their classes; None takes each as often as it is among the ids.
        seed: Of who comes once more in which epoch.

    Raises:
        OptionError: Nothing was chosen.
    """

    def __init__(self, ids: NDArray[np.int64], *, balance: Balance | None = None, seed: int = 0) -> None:
        if not len(ids):
            raise OptionError("where= and subset= leave no sample of the dataset: loosen them")
        self.chosen = ids
        self.balance = balance
        self.samples = int(balance.targets.sum()) if balance else len(ids)
        self._key = key_of("balance", seed)
        digest = xxhash.xxh3_64(np.ascontiguousarray(ids, "<i8").tobytes())
        if balance:
            digest.update(np.ascontiguousarray(balance.targets, "<i8").tobytes())
        self.digest = digest.hexdigest()
        """Identity of the choice: 16 hexadecimal digits."""
        self.once = balance is None and bool((np.diff(ids) > 0).all())
        """Whether no sample comes twice in an epoch."""

    def ids(self, epoch: int) -> NDArray[np.int64]:
        """Return the samples of an epoch: int64 [samples]."""
        return self.chosen if self.balance is None else np.repeat(self.chosen, self.repeats(epoch))

    def repeats(self, epoch: int) -> NDArray[np.int64]:
        """Return how often each chosen sample comes in an epoch: int64 [n]."""
        balance = self.balance
        if balance is None:
            return np.ones(len(self.chosen), np.int64)
        repeats = np.zeros(len(self.chosen), np.int64)
        by_class = np.argsort(balance.label, kind="stable")
        edges = np.concatenate([[0], np.cumsum(balance.samples)])
        for number in np.flatnonzero(balance.targets).tolist():
            members = by_class[edges[number] : edges[number + 1]]
            every, more = divmod(int(balance.targets[number]), len(members))
            turn = permute(self._key, len(members), np.arange(len(members)))
            repeats[members] = every + ((turn - epoch * more) % len(members) < more)
        return repeats


def in_rounds(ids: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Repeat ids: all of them once, then those that come again, and so on, so that copies lie far from each other.

    >>> in_rounds(np.array([3, 5, 8]), np.array([1, 3, 2])).tolist()
    [3, 5, 8, 5, 8, 5]
    """
    starts = np.cumsum(counts) - counts
    rounds = np.arange(counts.sum()) - np.repeat(starts, counts)  # 0 0 1 2 0 1 in the example
    return np.repeat(ids, counts)[np.argsort(rounds, kind="stable")]


def draw(ids: NDArray[np.int64], count: int, *, seed: int, purpose: str) -> NDArray[np.int64]:
    """Return ``count`` of the ids, drawn by ``seed``, in their order."""
    drawn = np.argsort(hashes(key_of(purpose, seed), ids), kind="stable")[:count]
    return ids[np.sort(drawn)]


def split_by_class(
    ids: NDArray[np.int64], label: NDArray[np.int64] | None, count: int, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide ids in two, ``count`` of them second, each class in the same proportion, to within one sample.

    Args:
        ids: int64 [n], ascending.
        label: int64 [n], class numbers; None draws from all alike.
        count: Samples of the second part.
        seed: Of the draw.
    """
    groups: Sequence[NDArray[np.int64]] = [ids]
    if label is not None:
        numbers = np.unique(label, return_inverse=True)[1]
        groups = np.split(ids[np.argsort(numbers, kind="stable")], np.cumsum(np.bincount(numbers))[:-1])
    counts = apportion(count, np.array([len(group) for group in groups], np.float64))
    parts = [draw(group, size, seed=seed, purpose="split") for group, size in zip(groups, counts.tolist(), strict=True)]
    second = np.sort(np.concatenate(parts))
    return ids[~np.isin(ids, second, assume_unique=True)], second
