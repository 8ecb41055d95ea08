"""What all orders have in common: the identity that a state records, and the order of one epoch. No I/O.

A `RunOrder` has the orders of all epochs: of one dataset, of a mixture, or of either in buckets. `RunOrder.at` returns
the order of one epoch, an `EpochOrder`, in which changes have been made at some positions. The planner knows only
these two.

The only change today is a ban: samples that are left out from a position on. Each class of `EpochOrder` knows what a
change means for it (`without`), so changes combine with all orders. Another kind of change is another method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.saved_state import MAX_EPOCH, entries_of, whole_number
from wds_tools.order.selection import Balance
from wds_tools.order.tally import Tally, tally


@dataclass(frozen=True, slots=True)
class Ban:
    """Samples that are left out from a position of an epoch on, and in all later epochs.

    Attributes:
        epoch: Zero-based epoch.
        position: Position in that epoch, counted without the samples of earlier bans.
        ids: Sample ids, ascending; none of them is in an earlier ban.
    """

    epoch: int
    position: int
    ids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a state."""
        return {"epoch": self.epoch, "position": self.position, "ids": list(self.ids)}


def bans_of(state: Any, stored: int) -> tuple[Ban, ...]:
    """Return the bans of a state, see `Ban.to_dict`.

    Args:
        state: The entry of the state.
        stored: Number of samples of the dataset.

    Raises:
        ResumeError: They are damaged.
    """
    try:
        return tuple(
            Ban(
                whole_number(one["epoch"], "epoch of a ban", most=MAX_EPOCH),
                whole_number(one["position"], "position of a ban"),
                tuple(
                    whole_number(sample, "id of a ban", most=stored - 1) for sample in entries_of(one["ids"], "bans")
                ),
            )
            for one in entries_of(state, "bans")
        )
    except (LookupError, TypeError) as error:
        raise ResumeError(f"the entry 'bans' of the state is damaged ({type(error).__name__}: {error})") from error


Ints = NDArray[np.int64]
Part = tuple[Ints, NDArray[np.int16]]
"""Sample ids and lanes of consecutive positions."""

_KEPT_SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What determines the orders of a run, with the shuffle. States and messages take it from here.

    Attributes:
        fingerprint: Fingerprint of the dataset, or of the mixture.
        seed: Seed of the shuffle.
        shards: Number of shards.
        stored: Number of samples of the dataset, selected or not; all ids are smaller.
        selection: Digest of the selection; None if there is none, and for mixtures, whose fingerprint has it.
        once: Whether no sample repeats within an epoch.
        lanes: Number of independent streams.
        window: Shuffle window in samples, 0 for the stored order; for mixtures a list.
        block: Samples per block; for mixtures a list.
        buckets: Height and width of each bucket; empty without buckets.
        group: Consecutive rows that belong to one bucket; 1 without buckets.
    """

    fingerprint: str
    seed: int
    shards: int
    stored: int
    selection: str | None
    once: bool
    lanes: int
    window: int | list[int]
    block: int | list[int]
    buckets: tuple[tuple[int, int], ...] = ()
    group: int = 1

    @property
    def shuffles(self) -> bool:
        """Whether the order is not the stored one."""
        return bool(np.any(self.window))

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments of `RunOrder.like`, and entries of a state."""
        shape = {"lanes": self.lanes, "window": self.window, "block": self.block}
        return {**shape, "group": self.group} if self.buckets else shape

    @property
    def sizes(self) -> list[list[int]] | None:
        """The buckets as an entry of a state; None without buckets."""
        return list(map(list, self.buckets)) or None


def in_segments(starts: Ints, segment: Callable[[int], Part], start: int, stop: int) -> Part:
    """Return a part of an order that is computed in segments, ``segment`` returns a segment by its index."""
    ids, lanes = [], []
    index = int(np.searchsorted(starts, start, side="right")) - 1
    while start < stop:
        first, last = starts[index : index + 2].tolist()
        part = slice(start - first, min(stop, last) - first)
        segment_ids, segment_lanes = segment(index)
        ids.append(segment_ids[part])
        lanes.append(segment_lanes[part])
        start += len(ids[-1])
        index += 1
    if len(ids) == 1:
        return ids[0], lanes[0]
    return (np.concatenate(ids), np.concatenate(lanes)) if ids else (np.empty(0, np.int64), np.empty(0, np.int16))


def nothing_left(samples: int) -> OptionError:
    """Return the error of a ban of all samples of an epoch."""
    return OptionError(f"ban= leaves no sample: it bans all {samples:,} samples of the epoch; ban fewer")


class RunOrder(ABC):
    """The orders of all epochs of a run.

    Attributes:
        identity: What determines them.
        samples: Number of samples of an epoch.
        balance: How often each class occurs; None if all samples occur equally often, and for several datasets.
    """

    identity: Identity
    samples: int
    balance: Balance | None

    @abstractmethod
    def like(self, *args: Any, **shape: Any) -> Self:
        """Return the orders of the same dataset and seed with another `Identity.shape`."""

    @abstractmethod
    def whole(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch with all its samples."""

    def at(self, epoch: int, bans: Sequence[Ban] = ()) -> EpochOrder:
        """Return the order of an epoch, without banned samples.

        Args:
            epoch: Zero-based epoch.
            bans: Bans of the run, in the order in which they were made; bans of later epochs are ignored.

        Raises:
            OptionError: All its samples are banned.
        """
        order = self.whole(epoch)
        from_start = [sample for ban in bans if (ban.epoch, ban.position) <= (epoch, 0) for sample in ban.ids]
        if from_start:
            order = order.without(0, from_start)
        for ban in bans:
            if ban.epoch == epoch and ban.position:
                order = order.without(ban.position, ban.ids)
        return order


class PlainOrder(RunOrder):
    """The orders of all epochs without buckets.

    Attributes:
        segment_starts: int64 [segments + 1], positions of the first sample of each segment, which is the part of an
            epoch that is computed at a time, and the number of samples.
        reach: Maximum distance between two positions of one block; None if it is not known.
        varies: Whether epochs have different samples.
    """

    segment_starts: Ints
    reach: int | None = None
    varies: bool

    @abstractmethod
    def slice(self, epoch: int, start: int, stop: int) -> Part:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start]."""

    @abstractmethod
    def find(self, epoch: int, ids: Ints) -> tuple[Ints, Ints]:
        """Return the id and the index of the segment of each occurrence of samples in an epoch: int64 each.

        Args:
            epoch: Zero-based epoch.
            ids: int64 [n], sample ids; those that the dataset does not have are ignored.
        """

    @abstractmethod
    def tally(self, epoch: int) -> Tally | None:
        """Return the tally of all samples of an epoch without computing the order; None if that is not possible."""

    def ids(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the sample ids at positions ``start`` to ``stop`` of an epoch: int64 [stop - start]."""
        return self.slice(epoch, start, stop)[0]

    def stored_ids(self, epoch: int) -> Ints:
        """Return the ids of all samples of an epoch in stored order: int64 [samples]."""
        return np.sort(self.ids(epoch, 0, self.samples))

    def whole(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch with all its samples."""
        return EpochOrder(self, epoch)


class EpochOrder:
    """The order of one epoch: a sequence of rows, each of which has a sample. This class has all samples.

    Args:
        run: The orders of all epochs, without buckets.
        epoch: Zero-based epoch.

    Attributes:
        identity: What determines the order.
        segment_starts: See `PlainOrder`.
        reach: Maximum distance between two rows of one block; None if it is not known.
    """

    def __init__(self, run: PlainOrder, epoch: int) -> None:
        self.run = run
        self.epoch = epoch
        self.identity = run.identity
        self.segment_starts = run.segment_starts
        self.reach = run.reach

    @cached_property
    def samples(self) -> int:
        """Number of rows."""
        return int(self.segment_starts[-1])

    @property
    def complete(self) -> int:
        """Number of rows in complete groups."""
        return self.samples

    @property
    def distinct(self) -> int:
        """Number of rows that do not repeat a sample to fill a group."""
        return self.samples

    def slice(self, start: int, stop: int) -> Part:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        return self.run.slice(self.epoch, start, stop)

    def ids(self, start: int, stop: int) -> Ints:
        """Return the sample ids in rows ``start`` to ``stop``: int64 [stop - start]."""
        return self.slice(start, stop)[0]

    def valid(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which rows from ``start`` to ``stop`` do not repeat a sample to fill a group: bool [stop - start]."""
        return np.ones(stop - start, np.bool_)

    def stored_ids(self) -> Ints:
        """Return the ids of all samples in stored order: int64 [distinct]."""
        if self.distinct == self.run.samples:
            return self.run.stored_ids(self.epoch)
        return np.sort(self.ids(0, self.samples)[self.valid(0, self.samples)])

    def tally(self) -> Tally | None:
        """Return the tally of all samples without computing the order; None if that is not possible."""
        return self.run.tally(self.epoch)

    def without(self, position: int, ids: Sequence[int]) -> EpochOrder:
        """Return the order in which some samples are left out from a row on.

        Raises:
            OptionError: No sample is left.
        """
        return BannedEpoch(self, position, ids)

    def bucket_of(self, ids: Ints) -> int | None:  # noqa: ARG002 - buckets need it
        """Return the bucket of samples that all belong to the same one; None without buckets."""
        return None

    def largest_batch(self, position: int) -> int | None:  # noqa: ARG002 - buckets need it
        """Return the largest batch size with which batches from a row on do not mix buckets; None allows any size.

        The size must divide this number.
        """
        return None

    def substitute(self, position: int, number: int) -> int:  # noqa: ARG002 - buckets need it
        """Return a sample that can take the place of the one in a row, chosen by a random number."""
        row = number % self.samples
        return int(self.ids(row, row + 1)[0])


class BannedEpoch(EpochOrder):
    """An epoch without some samples. The others keep their order.

    A segment of the order is computed only when positions in it are needed. How many samples are banned in the
    segments before it is known without that, from the blocks of these samples.

    Args:
        base: The order from which samples are left out.
        position: The samples are left out from this position on.
        ids: Their ids.

    Raises:
        OptionError: No sample is left.
    """

    def __init__(self, base: EpochOrder, position: int, ids: Sequence[int]) -> None:
        super().__init__(base.run, base.epoch)
        self._base = base
        self._position = position
        self._banned = np.unique(np.array(ids, np.int64))
        found, segments = self.run.find(self.epoch, self._banned)
        starts = base.segment_starts
        # Only the segment of the position has to be computed here, and none if it is 0.
        first = int(np.searchsorted(starts, position, side="right")) if position else 0  # of the later segments
        rest = base.ids(position, int(starts[min(first, len(starts) - 1)])) if position else found[:0]
        rest = rest[np.isin(rest, self._banned)]
        is_later = segments >= first
        self._removed = np.concatenate([found[is_later], rest])
        counts = np.bincount(segments[is_later], minlength=len(starts))[: len(starts) - 1]
        counts[max(first - 1, 0) : first] += len(rest)
        self.segment_starts = np.concatenate([[0], np.cumsum(np.diff(starts) - counts)])
        if not self.samples:
            raise nothing_left(base.samples)
        self._segments = LRUCache[int, Part](max_items=_KEPT_SEGMENTS)

    def slice(self, start: int, stop: int) -> Part:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        return in_segments(self.segment_starts, self._segment, start, stop)

    def tally(self) -> Tally | None:
        """Return the tally of all samples without computing the order; None if that is not possible."""
        total = self._base.tally()
        return total - tally(self._removed) if total else None

    def _segment(self, index: int) -> Part:
        """Return the ids and lanes of a segment."""
        known = self._segments.get(index)
        if known is not None:
            return known
        start, stop = self._base.segment_starts[index : index + 2].tolist()
        ids, lanes = self._base.slice(start, stop)
        keeps = ~np.isin(ids, self._banned) | (np.arange(start, stop) < self._position)
        self._segments.put(index, (ids[keeps], lanes[keeps]))
        return ids[keeps], lanes[keeps]
