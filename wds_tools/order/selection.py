"""The samples of an epoch and their repetitions: a selection of ids, and a balance of classes. No I/O.

A balance repeats or omits samples so that each class has a fixed share of every epoch, equal to its
mean share with ``torch.utils.data.WeightedRandomSampler``. Within a class, the numbers of repetitions
differ by at most one. Which samples occur once more changes from epoch to epoch, so that over many
epochs all samples of a class occur equally often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.keyed_random import hashes, key_of, permute

_ROUNDING_ERROR = 1e-9  # of floating point: 2.9999999999 counts as 3


@dataclass(frozen=True, slots=True)
class Balance:
    """How often each class occurs in an epoch.

    Attributes:
        label: int64 [n], class number of each selected sample.
        samples: int64 [classes], number of selected samples of each class.
        targets: int64 [classes], number of positions in an epoch for each class.
    """

    label: NDArray[np.int64]
    samples: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def factors(self) -> NDArray[np.float64]:
        """Mean number of times that a sample of each class occurs in an epoch: float64 [classes]."""
        return self.targets / np.maximum(self.samples, 1)


def balance(label: NDArray[np.int64], weights: NDArray[np.float64]) -> Balance:
    """Return the balance of an epoch of n positions in which each class has its weighted share.

    Args:
        label: int64 [n], class number of each sample.
        weights: float64 [classes], weight per sample of a class, as for ``WeightedRandomSampler``.
    """
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise OptionError(f"class_weights={weights.tolist()}; allowed are finite numbers of at least 0")
    samples = np.bincount(label, minlength=len(weights))
    shares = samples * weights
    if not shares.sum() > 0:
        raise OptionError("class_weights leaves no sample: every class with samples has weight 0; change a weight")
    return Balance(label, samples, apportion(len(label), shares))


def apportion(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide a whole number in proportion to shares, by the largest remainder method.

    Returns:
        int64 [shares], whose sum is ``total``.

    >>> apportion(10, np.array([1.0, 1.0, 1.0])).tolist()
    [4, 3, 3]
    """
    exact = total * (shares / shares.sum())
    parts: NDArray[np.int64] = np.floor(exact + _ROUNDING_ERROR).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - int(parts.sum())]] += 1
    return parts


class Selection:
    """The selected samples of a dataset, with repetitions.

    Args:
        ids: int64 [n], ids of the selected samples in stored order. An id that occurs several times
            is delivered that often, see `in_rounds`.
        balance: Balance of the classes; None delivers each sample as often as its id occurs.
        seed: Determines which samples occur once more in which epoch.

    Attributes:
        samples: Number of positions in an epoch.

    Raises:
        OptionError: No sample is selected.
    """

    def __init__(self, ids: NDArray[np.int64], *, balance: Balance | None = None, seed: int = 0) -> None:
        if not len(ids):
            raise OptionError("where= and subset= leave no sample of the dataset: relax them")
        self.selected_ids = ids
        self.balance = balance
        self.samples = int(balance.targets.sum()) if balance else len(ids)
        self._key = key_of("balance", seed)
        digest = xxhash.xxh3_64(np.ascontiguousarray(ids, "<i8").tobytes())
        if balance:
            digest.update(np.ascontiguousarray(balance.targets, "<i8").tobytes())
        self.digest = digest.hexdigest()
        """Identity of the selection: 16 hexadecimal digits."""
        self.once = balance is None and bool((np.diff(ids) > 0).all())
        """Whether no sample repeats within an epoch."""

    def ids(self, epoch: int) -> NDArray[np.int64]:
        """Return the sample ids of an epoch in stored order: int64 [samples]."""
        return self.selected_ids if self.balance is None else np.repeat(self.selected_ids, self.repeats(epoch))

    def repeats(self, epoch: int) -> NDArray[np.int64]:
        """Return how often each selected id occurs in an epoch: int64 [n]."""
        balance = self.balance
        if balance is None:
            return np.ones(len(self.selected_ids), np.int64)
        repeats = np.zeros(len(self.selected_ids), np.int64)
        by_class = np.argsort(balance.label, kind="stable")
        edges = np.concatenate([[0], np.cumsum(balance.samples)])
        for number in np.flatnonzero(balance.targets).tolist():
            members = by_class[edges[number] : edges[number + 1]]
            base, extra = divmod(int(balance.targets[number]), len(members))
            turn = permute(self._key, len(members), np.arange(len(members)))
            repeats[members] = base + ((turn - epoch * extra) % len(members) < extra)
        return repeats


def in_rounds(ids: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Repeat ids in rounds, so that repetitions of an id are far apart.

    The first round has all ids, the second one those that occur at least twice, and so on.

    Args:
        ids: int64 [n], sample ids.
        counts: int64 [n], number of repetitions of each id.

    Returns:
        int64 [sum of counts].

    >>> in_rounds(np.array([3, 5, 8]), np.array([1, 3, 2])).tolist()
    [3, 5, 8, 5, 8, 5]
    """
    starts = np.cumsum(counts) - counts
    rounds = np.arange(counts.sum()) - np.repeat(starts, counts)  # 0 0 1 2 0 1 in the example
    return np.repeat(ids, counts)[np.argsort(rounds, kind="stable")]


def draw(ids: NDArray[np.int64], count: int, *, seed: int, purpose: str) -> NDArray[np.int64]:
    """Draw ``count`` of the ids at random, and return them in their original order.

    Args:
        ids: int64 [n], sample ids.
        count: Number of ids to draw.
        seed: Seed of the draw.
        purpose: Name of the draw; draws for different purposes are independent.
    """
    drawn = np.argsort(hashes(key_of(purpose, seed), ids), kind="stable")[:count]
    return ids[np.sort(drawn)]


def split_by_class(
    ids: NDArray[np.int64], label: NDArray[np.int64] | None, count: int, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide ids into two parts at random, with equal proportions of each class to within one sample.

    Args:
        ids: int64 [n], ascending.
        label: int64 [n], class numbers; None ignores classes.
        count: Number of ids in the second part.
        seed: Seed of the draw.

    Returns:
        The ids of both parts: int64, ascending.
    """
    groups: Sequence[NDArray[np.int64]] = [ids]
    if label is not None:
        numbers = np.unique(label, return_inverse=True)[1]
        groups = np.split(ids[np.argsort(numbers, kind="stable")], np.cumsum(np.bincount(numbers))[:-1])
    counts = apportion(count, np.array([len(group) for group in groups], np.float64))
    parts = [draw(group, size, seed=seed, purpose="split") for group, size in zip(groups, counts.tolist(), strict=True)]
    second = np.sort(np.concatenate(parts))
    return ids[~np.isin(ids, second, assume_unique=True)], second
