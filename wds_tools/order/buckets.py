"""Batches whose samples belong to one bucket, such as one aspect ratio: the order of complete groups. No I/O.

The order of an epoch without buckets is divided: within each lane, each bucket collects its samples in their order. A
bucket that has ``group`` samples becomes a **group**, which is never divided by bucket again. Groups follow each other
in the order in which they are complete, one of each lane in turn. At the end of the epoch, the remaining samples of all
lanes are combined by bucket. The last groups, at most one per bucket, are incomplete: their free rows repeat samples of
the bucket and are not valid. With ``tail="drop"`` they are left out.

``group`` is the batch size, so the order does not depend on the number of ranks: a step takes one group for each.

At a change, samples that are not in a complete group yet **wait**. They come first when the samples from there on are
grouped again, without those that the change leaves out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wds_tools.order.changes import Progress, Reweight
from wds_tools.order.epoch import AreDrawn, EpochOrder, Piece, PlainOrder, Regimes, RunOrder, nothing_left
from wds_tools.order.selection import count_labels
from wds_tools.order.shares import Ints, Part
from wds_tools.order.tally import Tally, tally
from wds_tools.order.weights import Marks

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""The ids and lanes of the rows of an epoch, the number of those in complete groups, and which others are valid."""

Stored: TypeAlias = Callable[[str, Callable[[], Columns]], Columns]
"""Returns columns by what they depend on besides the dataset, and computes those that no process has stored."""

_PART = 1 << 20  # samples that are grouped at a time


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an epoch, or of a part of it.

    Attributes:
        sources: int64 [rows], position in the order without buckets.
        valid: bool [rows], False for rows that repeat a sample.
    """

    sources: Ints
    valid: NDArray[np.bool_]
    complete: int


class BucketOrder(RunOrder):
    """The orders of a dataset whose batches have samples of one bucket.

    Args:
        base: The orders without buckets.
        labels: [stored], bucket of each sample of the dataset.
        sizes: Height and width of each bucket.
        group: Samples of a group; the batch size must divide it.
        stored: Where whole epochs are stored; None computes them in each process.
    """

    def __init__(
        self,
        base: PlainOrder,
        labels: NDArray[np.signedinteger],
        sizes: Sequence[tuple[int, int]],
        group: int,
        stored: Stored | None = None,
    ) -> None:
        self.base = base
        self.labels = labels
        self.stored = stored
        self.samples, self.balance = base.samples, base.balance
        self.identity = replace(base.identity, buckets=tuple(sizes), group=group)

    def like(self, *, group: int | None = None, **shape: Any) -> BucketOrder:
        """Return the orders of the same dataset and buckets with another window, block, lanes and group size."""
        base, identity = self.base.like(**shape), self.identity
        return BucketOrder(base, self.labels, identity.buckets, group or identity.group, self.stored)

    @property
    def plain(self) -> PlainOrder:
        """The orders without buckets."""
        return self.base

    def whole(self, epoch: int) -> BucketedEpoch:
        """Return the order of an epoch with all its samples."""
        return BucketedEpoch(self, epoch)

    @cached_property
    def constant_counts(self) -> tuple[int, int] | None:
        """Rows in complete groups and rows of an epoch, if these numbers are the same in all epochs."""
        return None if self.base.varies else self.whole(0).computed_counts


class BucketedEpoch(EpochOrder):
    """The order of one epoch in groups. Computed completely when a position is first needed, or mapped."""

    def __init__(
        self,
        order: BucketOrder,
        epoch: int,
        bans: tuple[tuple[int, Sequence[int]], ...] = (),
        head: BucketedEpoch | None = None,
        piece: Piece | None = None,
    ) -> None:
        super().__init__(order.base, epoch)
        self.order, self.identity, self.reach = order, order.identity, None
        self._bans, self._head, self._piece = bans, head, piece
        if piece:
            self.is_weighted = True
            self.identity = replace(self.identity, once=False)
        self._members: dict[tuple[int, int], Ints] = {}

    @cached_property
    def computed_counts(self) -> tuple[int, int]:
        """Rows in complete groups, and rows of the epoch."""
        if self._stored is None:
            return self._rows.complete, len(self._rows.sources)
        return int(self._stored["complete"][0]), len(self._stored["ids"])

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
        """Number of rows that do not repeat a sample to fill a group."""
        return self.run.samples if self._is_whole else int(self._rows.valid.sum())

    @property
    def _counts(self) -> tuple[int, int]:
        constant = self.order.constant_counts if self._is_whole else None
        return constant or self.computed_counts

    def slice(self, start: int, stop: int) -> Part:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        if self._stored is not None:
            part = slice(start, stop)
            return self._stored["ids"][part].astype(np.int64), self._stored["lanes"][part].astype(np.int16)
        ids, lanes = self._base
        sources = self._rows.sources[start:stop]
        return ids[sources], lanes[sources]

    def valid(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which rows from ``start`` to ``stop`` do not repeat a sample to fill a group: bool [stop - start]."""
        if self._stored is None:
            return self._rows.valid[start:stop]
        rows = np.arange(start, min(stop, self.computed_counts[1])) - self.computed_counts[0]
        valid = np.ones(len(rows), np.bool_)
        valid[rows >= 0] = self._stored["valid"][rows[rows >= 0]]
        return valid

    def bucket_of(self, ids: Ints) -> int:
        """Return the bucket of samples that all belong to the same one."""
        return int(self.order.labels[ids[0]])

    def largest_batch(self, position: int) -> int:
        """Return the largest batch size with which batches from a row on do not mix buckets; others must divide it."""
        starts = self.starts
        first = max(start for start in starts if start <= position)
        return math.gcd(self.identity.group, *(start - position for start in starts if start >= first))

    @property
    def starts(self) -> list[int]:
        """Rows at which the parts begin that were grouped on their own."""
        starts = self._head.starts if self._head else [0]
        for position in [self._piece.position] if self._piece else [ban for ban, _ in self._bans]:
            starts = [*(start for start in starts if start < position), position]
        return starts

    @property
    def starts_of_weights(self) -> list[int]:
        """Rows at which other weights begin to hold, ascending."""
        if self._head is None or self._piece is None:
            return []
        first = self._piece.position
        return [*(start for start in self._head.starts_of_weights if start < first), first]

    def piece_at(self, position: int) -> Piece | None:
        """Return the rows drawn by the same weights that have a row; None if it is not drawn by weights."""
        if self._head is None or self._piece is None or self._piece.position <= position:
            return self._piece
        return self._head.piece_at(position)

    def marks(self, position: int) -> Marks:
        """Return marks with which the order is computed faster; none if a row is not drawn by weights."""
        piece = self.piece_at(position)
        return piece.regime.marks(piece.row(piece.drawn_before)) if piece else ()

    def substitute(self, position: int, attempt: int) -> int:
        """Return a sample of the bucket of a row, chosen by a random number."""
        row, rows = position % self.samples, slice(*self.rows_like(position))
        bucket = self.bucket_of(self.ids(row, row + 1))
        if (rows.start, bucket) not in self._members:
            ids = self.ids(rows.start, rows.stop)[self.valid(rows.start, rows.stop)]
            self._members[rows.start, bucket] = ids[self.order.labels[ids] == bucket]
        members = self._members[rows.start, bucket]
        return int(members[attempt % len(members)])

    def tally(self) -> Tally | None:
        """Return the tally of all samples without computing the groups; None if that is not possible."""
        total = None if self._piece else super().tally()
        return total - tally(self._base[0][self._removed]) if total and self._bans else total

    def without(self, position: int, ids: Sequence[int]) -> BucketedEpoch:
        """Return the order in which the samples from a row on are grouped again, without some of them."""
        return BucketedEpoch(self.order, self.epoch, (*self._bans, (position, ids)))

    def reweighted(self, position: int, change: Reweight, regimes: Regimes) -> BucketedEpoch:
        """Return the order in which the samples from a row on are drawn by weights, and grouped again."""
        return BucketedEpoch(self.order, self.epoch, head=self, piece=Piece(self.epoch, position, change, regimes))

    def progress_at(self, position: int, are_drawn: AreDrawn) -> Progress:
        """Return how far the run is at a row: samples that wait for their bucket are kept if they are drawn."""
        (ids, _), following = self._waiting_at(position)
        delivered = int(self._rows.valid[:position].sum()) if position else 0
        return Progress(delivered + int(are_drawn(ids).sum()), self.inner.source_positions(following))

    def _waiting_at(self, position: int) -> tuple[Part, int]:
        """Return ids and lanes of the samples that wait at a row, and the row of `inner` that comes next."""
        if not position:  # no sample waits; the order is not computed
            return (np.empty(0, np.int64), np.empty(0, np.int16)), 0
        ids, lanes = self._base
        taken = self._rows.sources[:position][self._rows.valid[:position]]
        # From the source `first` on, sources are the rows of `inner` from `row` on.
        row = self._piece.drawn_before if self._piece else 0
        first = len(ids) - (self.inner.samples - row)
        waits = np.ones(max(first, int(taken.max(initial=-1)) + 1), np.bool_)
        waits[: self._piece.position if self._piece else 0] = False
        waits[taken] = False
        waits[self._removed[self._removed < len(waits)]] = False
        waiting = np.flatnonzero(waits)
        return (ids[waiting], lanes[waiting]), row + len(waits) - first

    @cached_property
    def inner(self) -> EpochOrder:
        """The order without buckets."""
        if self._head is None or self._piece is None:
            return EpochOrder(self.run, self.epoch)
        return self._head.inner.reweighted(self._piece.drawn_before, self._piece.change, self._piece.regimes)

    @property
    def _is_whole(self) -> bool:
        """Whether no change has been made."""
        return not self._bans and self._piece is None

    @cached_property
    def _stored(self) -> Columns | None:
        """The rows, if they are stored: about 5 bytes for each."""
        if self.order.stored is None or not self._is_whole:
            return None
        return self.order.stored(f"{self.identity!r} {self.epoch}", self._columns)

    def _columns(self) -> Columns:
        groups = self._no_groups(
            ids=np.int32 if self.identity.stored <= 1 << 31 else np.int64,
            lanes=np.int8 if self.identity.lanes <= 1 << 7 else np.int16,
        )
        for start in range(0, self.run.samples, groups.part):
            ids, lanes = super().slice(start, min(start + groups.part, self.run.samples))
            groups.add({"ids": ids, "lanes": lanes})
        columns, valid, complete = groups.result()
        return {**columns, "valid": valid, "complete": np.array([complete])}

    def _no_groups(self, **kinds: type[np.signedinteger]) -> _Groups:
        identity = self.identity
        return _Groups(self.order.labels, len(identity.buckets), identity.lanes, identity.group, kinds)

    @cached_property
    def _base(self) -> Part:
        """Ids and lanes of the order without buckets.

        After a change of weights: of the rows before it, of the samples that wait, and of the rows of `inner` from it
        on.
        """
        if self._head is None or self._piece is None:
            return super().slice(0, self.run.samples)
        position = self._piece.position
        (waiting, lanes_of_waiting), _ = self._head._waiting_at(position)  # noqa: SLF001 - of this class
        keeps = self._piece.regime.are_drawn(waiting)
        parts = [
            self._head.slice(0, position) if position else (waiting[:0], lanes_of_waiting[:0]),
            (waiting[keeps], lanes_of_waiting[keeps]),
            self.inner.slice(self._piece.drawn_before, self.inner.samples),
        ]
        ids, lanes = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(lanes)

    @cached_property
    def _plan(self) -> tuple[_Rows, Ints]:
        """The rows, and the positions in the order without buckets of samples that are left out."""
        ids, _ = self._base
        if self._head and self._piece:
            position = self._piece.position
            remaining = self._grouped(np.arange(position, len(ids)))
            sources = np.concatenate([np.arange(position), remaining.sources])
            before = self._head.valid(0, position) if position else remaining.valid[:0]
            valid = np.concatenate([before, remaining.valid])
            return _Rows(sources, valid, position + remaining.complete), np.empty(0, np.int64)
        left = np.ones(len(ids), np.bool_)
        removed = [np.empty(0, np.int64)]
        rows = self._grouped(np.flatnonzero(left))
        for position, banned_ids in self._bans:
            taken, is_valid = rows.sources[:position], rows.valid[:position]
            is_free = left.copy()
            is_free[taken[is_valid]] = False
            banned = np.flatnonzero(is_free & np.isin(ids, banned_ids))
            left[banned] = is_free[banned] = False
            removed.append(banned)
            remaining = self._grouped(np.flatnonzero(is_free))
            rows = _Rows(
                np.concatenate([taken, remaining.sources]),
                np.concatenate([is_valid, remaining.valid]),
                position + remaining.complete,
            )
        if not len(rows.sources):
            raise nothing_left(len(ids))
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
        groups = self._no_groups(sources=np.int64)
        for start in range(0, max(1, len(sources)), groups.part):
            part = sources[start : start + groups.part]
            groups.add({"sources": part, "ids": ids[part], "lanes": lanes[part]})
        columns, valid, complete = groups.result()
        return _Rows(columns["sources"], np.concatenate([np.ones(complete, np.bool_), valid]), complete)


class _Groups:
    """Groups of samples. Samples are added part by part, so that the memory holds little besides the groups.

    Args:
        labels: [stored], bucket of each sample of the dataset.
        buckets: Number of buckets.
        lanes: Number of lanes.
        size: Samples of a group.
        kinds: Which columns of the samples are kept, in which types.

    Attributes:
        part: How many samples to add at a time.
    """

    def __init__(
        self,
        labels: NDArray[np.signedinteger],
        buckets: int,
        lanes: int,
        size: int,
        kinds: Mapping[str, type[np.signedinteger]],
    ) -> None:
        self._labels, self._buckets, self._size, self._kinds = labels, buckets, size, kinds
        # Each lane has a stream of samples for each bucket.
        self._stream_kind: type[np.signedinteger] = np.int16 if buckets * lanes < 1 << 15 else np.int64
        self.part = max(_PART, 2 * buckets * lanes * size)  # up to half of these are samples that wait
        self._waiting: Columns = {}
        self._first: dict[int, Columns] = {}  # bucket -> its first samples, at most as many as a group has
        self._groups: deque[Columns] = deque()  # [groups, size] each, in the order in which they are complete
        self._lanes = [np.empty(0, np.int64)]  # of each group

    def add(self, samples: Columns) -> None:
        """Add samples by their columns, which include ids and lanes."""
        for bucket in range(self._buckets):
            first = self._first.get(bucket, {})
            missing = self._size - len(first.get("ids", ()))
            if missing:
                rows = np.flatnonzero(self._labels[samples["ids"]] == bucket)[:missing]
                self._first[bucket] = _joined(first, _taken(samples, rows))
        samples = _joined(self._waiting, samples)
        lanes = samples["lanes"].astype(self._stream_kind)
        streams = lanes * self._stream_kind(self._buckets) + self._labels[samples["ids"]].astype(self._stream_kind)
        groups, waiting = self._complete_groups(streams)
        self._lanes.append(samples["lanes"][groups[:, 0]].astype(np.int64))
        self._groups.append(self._kept(samples, groups))
        self._waiting = _taken(samples, waiting)

    def result(self) -> tuple[Columns, NDArray[np.bool_], int]:
        """Return the columns of all rows, which rows after the complete groups are valid, and where the groups end."""
        lane = np.concatenate(self._lanes)
        by_lane = np.argsort(lane, kind="stable")
        per_lane = np.bincount(lane, minlength=1)
        turn = np.empty(len(lane), np.int64)
        turn[by_lane] = np.arange(len(lane)) - np.repeat(np.cumsum(per_lane) - per_lane, per_lane)
        place = np.empty(len(lane), np.int64)
        place[np.lexsort((lane, turn))] = np.arange(len(lane))
        of_all_lanes, last = self._complete_groups(self._labels[self._waiting["ids"]])
        padded, valid = self._padded(_taken(self._waiting, last))
        groups = len(place) + len(of_all_lanes)
        columns = {name: np.empty(groups * self._size + len(valid), kind) for name, kind in self._kinds.items()}
        rows = {name: column[: groups * self._size].reshape(-1, self._size) for name, column in columns.items()}
        start = 0
        while self._groups:
            part = self._groups.popleft()
            for name, members in part.items():
                rows[name][place[start : start + len(members)]] = members
            start += len(members)
        for name, column in columns.items():
            rows[name][start:] = self._waiting[name][of_all_lanes]
            column[groups * self._size :] = padded[name]
        return columns, valid, groups * self._size

    def _complete_groups(self, streams: NDArray[np.signedinteger]) -> tuple[Ints, Ints]:
        """Return the members of complete groups, in the order in which they become complete, and the samples that wait.

        Args:
            streams: Whole numbers [n]; groups have members of one stream.
        """
        by_stream = np.argsort(streams, kind="stable")  # fast for numbers of 8 and 16 bits
        counts = count_labels(streams, int(streams.max(initial=0)) + 1)
        is_complete = np.zeros(len(streams), np.bool_)
        for start, count in zip((np.cumsum(counts) - counts).tolist(), counts.tolist(), strict=True):
            is_complete[start : start + count // self._size * self._size] = True
        groups = by_stream[is_complete].reshape(-1, self._size)
        return groups[np.argsort(groups[:, -1])], np.sort(by_stream[~is_complete])

    def _padded(self, last: Columns) -> tuple[Columns, NDArray[np.bool_]]:
        """Return the rows of the incomplete groups, filled with other samples of their bucket, and which are valid."""
        parts, valid = [_taken(last, slice(0))], [np.empty(0, np.bool_)]
        labels = self._labels[last["ids"]]
        for bucket in np.unique(labels).tolist():
            members, first = np.flatnonzero(labels == bucket), self._first[bucket]
            filling = np.resize(np.arange(len(first["ids"])), self._size - len(members))
            parts += [_taken(last, members), _taken(first, filling)]
            valid.append(np.arange(self._size) < len(members))
        return _joined(*parts), np.concatenate(valid)

    def _kept(self, samples: Columns, rows: Ints) -> Columns:
        return {name: samples[name].astype(kind)[rows] for name, kind in self._kinds.items()}


def _taken(columns: Columns, rows: Ints | slice) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _joined(*parts: Columns) -> Columns:
    parts = tuple(filter(None, parts))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
