"""The samples of an epoch and their repetitions: a selection of ids, and a balance of classes. No I/O.

A balance repeats or omits samples so that each class has a fixed share of every epoch, equal to its
mean share with ``torch.utils.data.WeightedRandomSampler``. Within a class, the numbers of repetitions
differ by at most one. Which samples occur once more changes from epoch to epoch, so that over many
epochs all samples of a class occur equally often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.keyed_random import hashes, key_of, permute_each

PART = 1 << 18
"""Samples that are computed at a time: they stay in the cache of a core."""

_ROUNDING_ERROR = 1e-9  # of floating point: 2.9999999999 counts as 3
_GROUP = 64  # samples whose repetitions are added up, so that a position is found without all of them


@dataclass(frozen=True, slots=True)
class Balance:
    """How often each class occurs in an epoch.

    Attributes:
        label: Whole numbers [n], class number of each selected sample.
        samples: int64 [classes], number of selected samples of each class.
        targets: int64 [classes], number of positions in an epoch for each class.
    """

    label: NDArray[np.signedinteger]
    samples: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def factors(self) -> NDArray[np.float64]:
        """Mean number of times that a sample of each class occurs in an epoch: float64 [classes]."""
        return self.targets / np.maximum(self.samples, 1)

    def turns(self, seed: int) -> NDArray[np.unsignedinteger]:
        """Return the turn of each sample among those of its class: uint32 or uint64 [n].

        The samples of a class take turns in occurring once more: with k of them in an epoch, those with the first k
        turns in epoch 0, and those with the next ones in epoch 1. The turns are a keyed permutation, and do not depend
        on the epoch, so they are computed once.
        """
        key, seen = key_of("balance", seed), np.zeros(len(self.samples), np.int64)
        kind = np.uint32 if self.samples.max(initial=0) < 1 << 31 else np.uint64
        turns: NDArray[np.unsignedinteger] = np.empty(len(self.label), kind)
        for start in range(0, len(self.label), PART):
            label = self.label[start : start + PART]
            turns[start : start + len(label)] = permute_each(key, self.samples[label], within_class(label, seen))
        return turns


def within_class(label: NDArray[np.signedinteger], seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each sample among those of its class: int64 [n]."""
    by_class = np.argsort(label, kind="stable")  # fast for numbers of 8 and 16 bits
    counts = np.bincount(label, minlength=len(seen))
    index = np.empty(len(label), np.int64)
    index[by_class] = np.arange(len(label)) + np.repeat(seen - np.cumsum(counts) + counts, counts)
    seen += counts
    return index


def balance(label: NDArray[np.signedinteger], weights: NDArray[np.float64]) -> Balance:
    """Return the balance of an epoch of n positions in which each class has its weighted share."""
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise OptionError(f"class_weights={weights.tolist()}; allowed are finite numbers of at least 0")
    samples = count_labels(label, len(weights))
    shares = samples * weights
    if not shares.sum() > 0:
        raise OptionError("class_weights leaves no sample: every class with samples has weight 0; change a weight")
    return Balance(label, samples, apportion(len(label), shares))


def count_labels(label: NDArray[np.signedinteger], classes: int) -> NDArray[np.int64]:
    """Return the number of samples of each class: int64 [classes]. Part by part, as ``bincount`` copies its input."""
    counts = np.zeros(classes, np.int64)
    for start in range(0, len(label), PART):
        counts += np.bincount(label[start : start + PART], minlength=classes)
    return counts


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
    """The selected samples of a dataset, with repetitions. Its arrays may be mapped, and are read part by part.

    Args:
        ids: Whole numbers [n], ids of the selected samples in stored order, or the range of all samples. An id that
            occurs several times is delivered that often, see `in_rounds`.
        balance: Balance of the classes; None delivers each sample as often as its id occurs.
        seed: Determines which samples occur once more in which epoch.
        turns: The result of `Balance.turns`; None computes it.
        known: `digest` and `once` of the selection; None computes them.

    Attributes:
        samples: Number of positions in an epoch.

    Raises:
        OptionError: No sample is selected.
    """

    def __init__(
        self,
        ids: NDArray[np.signedinteger] | range,
        *,
        balance: Balance | None = None,
        seed: int = 0,
        turns: NDArray[np.unsignedinteger] | None = None,
        known: tuple[str, bool] | None = None,
    ) -> None:
        if not len(ids):
            raise OptionError("where= and subset= leave no sample of the dataset: relax them")
        self._ids = ids
        self.balance = balance
        self.samples = int(balance.targets.sum()) if balance else len(ids)
        self.turns = balance.turns(seed) if balance and turns is None else turns
        """The turns of the samples, see `Balance.turns`; None without a balance."""
        digest, once = known or (_digest(ids, balance), balance is None and _ascends(ids))
        self.digest = digest
        """Identity of the selection: 16 hexadecimal digits."""
        self.once = once
        """Whether no sample repeats within an epoch."""
        self._starts = LRUCache[int, NDArray[np.int64]](max_items=2)
        self._extras = LRUCache[int, tuple[NDArray[Any], ...]](max_items=2)

    @property
    def without_balance(self) -> Selection:
        """The same samples, each as often as its id occurs."""
        return Selection(self._ids)

    @property
    def has_all(self) -> bool:
        """Whether all samples are selected."""
        return isinstance(self._ids, range)

    @property
    def selected_ids(self) -> NDArray[np.int64]:
        """The ids of the selected samples in stored order: int64 [n]."""
        return _taken(self._ids, slice(None))

    def at(self, epoch: int, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids at some positions of an epoch in stored order: int64, in the shape of ``items``."""
        if self.balance is None:
            return _taken(self._ids, items)
        starts = self._starts_of(epoch)
        groups = np.unique(np.searchsorted(starts, items, side="right") - 1)
        rows = groups[:, None] * _GROUP + np.arange(_GROUP)  # [groups, samples]
        exists = rows < len(self._ids)
        repeats = np.where(exists, self._repeats_of(epoch, np.where(exists, rows, 0)), 0)
        stops = starts[groups][:, None] + np.cumsum(repeats, axis=1)
        indexes = np.searchsorted(stops.ravel(), items, side="right")
        return _taken(self._ids, rows.ravel()[indexes])

    def find(self, epoch: int, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where some ids occur in an epoch in stored order: the positions and their ids, int64 each."""
        positions, selected, start = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for part in self.parts(epoch):
            rows = np.flatnonzero(np.isin(part, ids))
            positions.append(start + rows)
            selected.append(part[rows])
            start += len(part)
        return np.concatenate(positions), np.concatenate(selected)

    def parts(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the sample ids of an epoch in stored order, part by part."""
        for start in range(0, len(self._ids), PART):
            part = slice(start, min(start + PART, len(self._ids)))
            ids = _taken(self._ids, part)
            yield ids if self.balance is None else np.repeat(ids, self._repeats_of(epoch, part))

    def ids(self, epoch: int) -> NDArray[np.int64]:
        """Return the sample ids of an epoch in stored order: int64 [samples]."""
        return np.concatenate(list(self.parts(epoch)))

    def repeats(self, epoch: int) -> NDArray[np.int64]:
        """Return how often each selected id occurs in an epoch: int64 [n]."""
        return np.ones(len(self._ids), np.int64) if self.balance is None else self._repeats_of(epoch, slice(None))

    def _repeats_of(self, epoch: int, rows: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return how often some selected samples occur in an epoch, with a balance: int64 [rows]."""
        assert self.balance is not None
        assert self.turns is not None
        base, extra, first, again = self._extras.load(epoch, partial(self._extras_of, epoch), lambda _: 0)
        label, turns = self.balance.label[rows], self.turns[rows]
        # A turn before the first one becomes a number above all others, as the numbers have no sign.
        repeats: NDArray[np.int64] = base[label] + ((turns - first[label] < extra[label]) | (turns < again[label]))
        return repeats

    def _extras_of(self, epoch: int) -> tuple[NDArray[Any], ...]:
        """Return how often samples of each class occur, how many occur once more, and which: [classes] each.

        These have the turns from the third array on, and after the last turn of the class, those below the fourth one.
        """
        assert self.balance is not None
        assert self.turns is not None
        samples, kind = self.balance.samples, self.turns.dtype
        base, extra = np.divmod(self.balance.targets, np.maximum(samples, 1))
        pairs = zip(extra.tolist(), np.maximum(samples, 1).tolist(), strict=True)
        first = np.array([epoch * more % count for more, count in pairs])
        again = np.maximum(first + extra - samples, 0)
        return base, extra.astype(kind), first.astype(kind), again.astype(kind)

    def _starts_of(self, epoch: int) -> NDArray[np.int64]:
        """Return the first position of each group of samples in an epoch in stored order: int64 [groups]."""
        starts = self._starts.get(epoch)
        if starts is None:
            counts = [np.empty(0, np.int64)]
            for start in range(0, len(self._ids), PART):
                repeats = self._repeats_of(epoch, slice(start, start + PART))
                counts.append(np.add.reduceat(repeats, np.arange(0, len(repeats), _GROUP)))
            per_round = np.concatenate(counts)
            starts = np.cumsum(per_round) - per_round
            self._starts.put(epoch, starts)
        return starts


def _taken(ids: NDArray[np.signedinteger] | range, rows: NDArray[np.int64] | slice) -> NDArray[np.int64]:
    """Return some ids: int64 [rows]."""
    if isinstance(ids, range):
        return np.arange(*rows.indices(len(ids))) if isinstance(rows, slice) else rows
    return ids[rows].astype(np.int64, copy=False)


def _digest(ids: NDArray[np.signedinteger] | range, balance: Balance | None) -> str:
    digest = xxhash.xxh3_64()
    for start in range(0, len(ids), PART):
        digest.update(_taken(ids, slice(start, start + PART)).astype("<i8", copy=False).data)
    if balance:
        digest.update(np.ascontiguousarray(balance.targets, "<i8").tobytes())
    return digest.hexdigest()


def _ascends(ids: NDArray[np.signedinteger] | range) -> bool:
    """Return whether each id is above the one before it."""
    if isinstance(ids, range):
        return True
    starts = range(0, len(ids), PART)
    return all((np.diff(ids[max(0, start - 1) : start + PART]) > 0).all() for start in starts)


def in_rounds(ids: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Repeat ids in rounds, so that repetitions of an id are far apart.

    The first round has all ids, the second one those that occur at least twice, and so on.

    >>> in_rounds(np.array([3, 5, 8]), np.array([1, 3, 2])).tolist()
    [3, 5, 8, 5, 8, 5]
    """
    starts = np.cumsum(counts) - counts
    rounds = np.arange(counts.sum()) - np.repeat(starts, counts)  # 0 0 1 2 0 1 in the example
    return np.repeat(ids, counts)[np.argsort(rounds, kind="stable")]


def draw(ids: NDArray[np.signedinteger] | range, count: int, *, seed: int, purpose: str) -> NDArray[np.signedinteger]:
    """Draw ``count`` of the ids at random, and return them in their original order: int32 of a short range, or int64.

    Those with the smallest hashes are drawn. Counts of their first 16 bits tell which bits the last drawn one has, so
    that only samples with these bits are sorted.
    """
    key = key_of(purpose, seed)
    if count >= len(ids):
        return _taken(ids, slice(None))

    def parts() -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint64]]]:
        for start in range(0, len(ids), PART):
            part = _taken(ids, slice(start, start + PART))
            yield start, part, hashes(key, part)

    counts = np.zeros(1 << 16, np.int64)
    for _, _, values in parts():
        counts += np.bincount((values >> np.uint64(48)).astype(np.int64), minlength=len(counts))
    last = int(np.searchsorted(np.cumsum(counts), count, side="left"))  # the bits of the last drawn one
    kind: type[np.signedinteger] = np.int32 if len(ids) <= 1 << 31 else np.int64
    rows, ties, tie_hashes = [np.empty(0, kind)], [np.empty(0, kind)], [np.empty(0, np.uint64)]
    for start, _, values in parts():
        bits = (values >> np.uint64(48)).astype(np.int64)
        rows.append((start + np.flatnonzero(bits < last)).astype(kind))
        own = np.flatnonzero(bits == last)
        ties.append((start + own).astype(kind))
        tie_hashes.append(values[own])
    missing = count - int(counts[:last].sum())
    tied = np.concatenate(ties)[np.argsort(np.concatenate(tie_hashes), kind="stable")[:missing]]
    drawn = np.concatenate([*rows, tied])
    drawn.sort()
    return drawn if isinstance(ids, range) else _taken(ids, drawn)


def split_by_class(
    ids: NDArray[np.int64], label: NDArray[np.signedinteger] | None, count: int, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide ids into two parts at random, with equal proportions of each class to within one sample.

    Returns:
        The ids of both parts: int64, ascending.
    """
    groups: Sequence[NDArray[np.int64]] = [ids]
    if label is not None:
        lowest = int(label.min(initial=0))
        numbers = label if lowest >= 0 else label - lowest
        counts = count_labels(numbers, int(numbers.max(initial=0)) + 1)
        groups = np.split(ids[np.argsort(numbers, kind="stable")], np.cumsum(counts[counts > 0])[:-1])
    sizes = apportion(count, np.array([len(group) for group in groups], np.float64))
    parts = [draw(group, size, seed=seed, purpose="split") for group, size in zip(groups, sizes.tolist(), strict=True)]
    second = np.sort(np.concatenate(parts))
    is_first = np.ones(len(ids), np.bool_)
    is_first[np.searchsorted(ids, second)] = False
    return ids[is_first], second
