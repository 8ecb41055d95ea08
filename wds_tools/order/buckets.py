"""Batches whose samples belong to one bucket, such as one aspect ratio: the order of complete groups. No I/O.

The order of an epoch without buckets is divided: within each lane, each bucket collects its samples in their order. A
bucket that has ``group`` samples becomes a **group**, which is never divided by bucket again. Groups follow each other
in the order in which they are complete, one of each lane in turn. At the end of the epoch, the remaining samples of all
lanes are combined by bucket. The last groups, at most one per bucket, are incomplete: their free rows repeat samples of
the bucket and are not valid. With ``tail="drop"`` they are left out.

``group`` is the batch size, so the order does not depend on the number of ranks: a step takes one group for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.ban import Ban
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.selection import Balance, Selection
from wds_tools.order.sequence import Order
from wds_tools.order.tally import Tally, tally

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an epoch, or of a part of it.

    Attributes:
        sources: int64 [rows], position in the order without buckets.
        valid: bool [rows], False for rows that repeat a sample.
        complete: Number of rows in complete groups, which come first.
    """

    sources: Ints
    valid: NDArray[np.bool_]
    complete: int


class BucketOrder:
    """The orders of a dataset whose batches have samples of one bucket. `at` returns the order of an epoch.

    Args:
        base: The order without buckets.
        labels: [stored], bucket of each sample of the dataset.
        sizes: Height and width of each bucket.
        group: Samples of a group; the batch size must divide it.
    """

    def __init__(
        self, base: Order | MixtureOrder, labels: NDArray[np.integer], sizes: Sequence[tuple[int, int]], group: int
    ) -> None:
        self.base = base
        self.labels = labels
        self.sizes = tuple(sizes)
        self.group = group
        self.fingerprint: str = base.fingerprint
        self.seed: int = base.seed
        self.selection: Selection | None = base.selection
        self.balance: Balance | None = base.balance
        self.lanes: int = base.lanes
        self.window: int | list[int] = base.window
        self.block: int | list[int] = base.block
        self.stored: int = base.stored
        self.shards: int = base.shards
        self.samples: int = base.samples
        self.once: bool = base.once
        self.shuffles: bool = base.shuffles
        self._last: BucketedEpoch | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketOrder, (self.base, self.labels, self.sizes, self.group)

    def like(
        self, *, window: int | list[int], block: int | list[int], lanes: int, group: int | None = None
    ) -> BucketOrder:
        """Return the order of the same dataset and buckets with another window, block, lanes and group size."""
        base = self.base.like(window=window, block=block, lanes=lanes)  # type: ignore[arg-type]
        return BucketOrder(base, self.labels, self.sizes, group or self.group)

    def at(self, epoch: int, bans: Sequence[Ban] = ()) -> BucketedEpoch:
        """Return the order of an epoch, without the samples of ``bans`` from their positions on."""
        if bans:
            return BucketedEpoch(self, epoch, bans)
        if self._last is None or self._last.epoch != epoch:
            self._last = BucketedEpoch(self, epoch, ())
        return self._last

    def ids(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the sample ids at positions ``start`` to ``stop`` of an epoch: int64 [stop - start]."""
        return self.at(epoch).ids(epoch, start, stop)

    @cached_property
    def constant_counts(self) -> tuple[int, int] | None:
        """Rows in complete groups and rows of an epoch, if these numbers are the same in all epochs."""
        is_constant = isinstance(self.base, Order) and self.base.balance is None
        return self.at(0).computed_counts if is_constant else None


class BucketedEpoch:
    """The order of one epoch in groups. Computed completely when a position is first needed.

    Args:
        order: The orders of all epochs.
        epoch: The epoch.
        bans: Samples that are left out from a position of this epoch on; a position of 0 for those of earlier epochs.
    """

    def __init__(self, order: BucketOrder, epoch: int, bans: Sequence[Ban]) -> None:
        self.order = order
        self.epoch = epoch
        self._bans = tuple(bans)
        self.fingerprint, self.seed, self.selection = order.fingerprint, order.seed, order.selection
        self.lanes, self.window, self.block = order.lanes, order.window, order.block
        self.group, self.sizes = order.group, order.sizes
        self.stored, self.shards, self.once, self.shuffles = order.stored, order.shards, order.once, order.shuffles

    @cached_property
    def computed_counts(self) -> tuple[int, int]:
        """Rows in complete groups, and rows of the epoch."""
        return self._rows.complete, len(self._rows.sources)

    @property
    def complete(self) -> int:
        """Number of rows in complete groups."""
        return self._counts[0]

    @property
    def samples(self) -> int:
        """Number of rows, including those that repeat a sample."""
        return self._counts[1]

    @property
    def distinct(self) -> int:
        """Number of samples of the epoch."""
        return int(self._rows.valid.sum()) if self._bans else self.order.samples

    @property
    def _counts(self) -> tuple[int, int]:
        constant = None if self._bans else self.order.constant_counts
        return constant or self.computed_counts

    def ids(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the sample ids in rows ``start`` to ``stop``: int64 [stop - start]."""
        return self.slice(epoch, start, stop)[0]

    def slice(self, epoch: int, start: int, stop: int) -> tuple[Ints, NDArray[np.int16]]:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        assert epoch == self.epoch
        ids, lanes = self._base
        sources = self._rows.sources[start:stop]
        return ids[sources], lanes[sources]

    def valid(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of the rows ``start`` to ``stop`` do not repeat a sample: bool [stop - start]."""
        return self._rows.valid[start:stop]

    def bucket_of(self, ids: Ints) -> int:
        """Return the bucket of samples that all belong to the same one."""
        return int(self.order.labels[ids[0]])

    def same_bucket(self, position: int) -> Ints:
        """Return the ids of all samples of the epoch in the bucket of a row: int64."""
        ids = self._base[0][self._rows.sources[self._rows.valid]]
        bucket = self.bucket_of(self.ids(self.epoch, position % self.samples, position % self.samples + 1))
        found: Ints = ids[self.order.labels[ids] == bucket]
        return found

    def tally(self, epoch: int) -> Tally | None:
        """Return the tally of all samples of the epoch, without computing the groups; None if the base has none."""
        total = self.order.base.tally(epoch)
        return total - tally(self._base[0][self._removed]) if total else None

    @cached_property
    def _base(self) -> tuple[Ints, NDArray[np.int16]]:
        """Ids and lanes of the order without buckets."""
        return self.order.base.slice(self.epoch, 0, self.order.base.samples)

    @cached_property
    def _plan(self) -> tuple[_Rows, Ints]:
        """The rows, and the positions in the order without buckets of samples that are left out."""
        ids, _ = self._base
        left = np.ones(len(ids), np.bool_)
        removed = [np.empty(0, np.int64)]
        rows = self._grouped(np.flatnonzero(left))
        for ban in self._bans:
            head = rows.sources[: ban.position][rows.valid[: ban.position]]
            is_free = left.copy()
            is_free[head] = False
            banned = np.flatnonzero(is_free & np.isin(ids, ban.ids))
            left[banned] = is_free[banned] = False
            removed.append(banned)
            rest = self._grouped(np.flatnonzero(is_free))
            rows = _Rows(
                np.concatenate([rows.sources[: ban.position], rest.sources]),
                np.concatenate([rows.valid[: ban.position], rest.valid]),
                ban.position + rest.complete,
            )
        if not len(rows.sources):
            raise OptionError(f"ban= leaves no sample: it has all {len(ids):,} samples of the epoch; ban fewer")
        return rows, np.concatenate(removed)

    @property
    def _rows(self) -> _Rows:
        return self._plan[0]

    @property
    def _removed(self) -> Ints:
        return self._plan[1] if self._bans else np.empty(0, np.int64)

    def _grouped(self, sources: Ints) -> _Rows:
        """Divide positions of the order without buckets into groups."""
        ids, lanes = self._base
        labels, own_lanes = self.order.labels[ids[sources]].astype(np.int64), lanes[sources].astype(np.int64)
        first, rest = self._complete_groups(sources, own_lanes * len(self.sizes) + labels, own_lanes)
        rest.sort()
        labels_of_rest = self.order.labels[ids[rest]].astype(np.int64)
        second, last = self._complete_groups(rest, labels_of_rest, np.zeros_like(labels_of_rest))
        complete = np.concatenate([first, second])
        padded, valid = self._padded(last, sources)
        return _Rows(
            np.concatenate([complete, padded]),
            np.concatenate([np.ones(len(complete), np.bool_), valid]),
            len(complete),
        )

    def _complete_groups(self, sources: Ints, streams: Ints, lanes: Ints) -> tuple[Ints, Ints]:
        """Return the members of all complete groups, group by group, and the positions that are left.

        Args:
            sources: int64 [n], ascending positions.
            streams: int64 [n], groups have members of one stream.
            lanes: int64 [n], lane of each position, which follows from its stream.
        """
        by_stream = np.argsort(streams, kind="stable")
        counts = np.bincount(streams, minlength=1)
        counts = counts[counts > 0]
        within = np.arange(len(streams)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_complete = within < np.repeat(counts // self.group * self.group, counts)
        groups = by_stream[is_complete].reshape(-1, self.group)
        ends = sources[groups[:, -1]]  # where each group is complete
        lane = lanes[groups[:, 0]]
        by_lane = np.lexsort((ends, lane))
        per_lane = np.bincount(lane, minlength=1)
        turn = np.empty(len(groups), np.int64)
        turn[by_lane] = np.arange(len(groups)) - np.repeat(np.cumsum(per_lane) - per_lane, per_lane)
        in_turn = np.lexsort((lane, turn))
        return sources[groups[in_turn].ravel()], sources[by_stream[~is_complete]]

    def _padded(self, last: Ints, sources: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the rows of the incomplete groups, filled with other samples of their bucket, and which are valid."""
        ids = self._base[0]
        labels = self.order.labels[ids[last]]
        rows, valid = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
        for bucket in np.unique(labels).tolist():
            members = last[labels == bucket]
            others = sources[self.order.labels[ids[sources]] == bucket]
            filling = np.resize(others, self.group - len(members))
            rows += [members, filling]
            valid.append(np.arange(self.group) < len(members))
        return np.concatenate(rows), np.concatenate(valid)
