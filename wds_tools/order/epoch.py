"""What all orders have in common: the orders of a run, and the order of one epoch. No I/O.

A `RunOrder` has the orders of all epochs: of one dataset, of a mixture, or of either in buckets. `RunOrder.at` returns
the order of one epoch, an `EpochOrder`, in which changes have been made at some positions. The planner knows only
these two.

A change is a ban, samples that are left out from a position on, or weights by which samples are drawn from a position
on. Each class of `EpochOrder` knows what a change means for it (`without`, `reweighted`), so changes combine with all
orders.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.changes import Ban, Change, Progress, Reweight, Weights
from wds_tools.order.identity import Identity
from wds_tools.order.selection import Balance
from wds_tools.order.shares import Ints, Part, Pattern
from wds_tools.order.tally import Tally, tally
from wds_tools.order.weights import Chain, Draws, Marks, Rates, Regime, Scan, SourcePosition

_KEPT_SEGMENTS = 2
Regimes = Callable[[Reweight], Regime]
"""Returns what a change of weights draws; it is computed when rows of it are first needed."""
AreDrawn = Callable[[Ints], NDArray[np.bool_]]


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

    @property
    @abstractmethod
    def plain(self) -> PlainOrder:
        """The orders without buckets."""

    def at(
        self,
        epoch: int,
        changes: Sequence[Change] = (),
        regimes: Regimes | None = None,
        made: LRUCache[tuple[int, Reweight], EpochOrder] | None = None,
    ) -> EpochOrder:
        """Return the order of an epoch, with the changes of a run.

        Args:
            epoch: Zero-based epoch.
            changes: The changes in the order in which they were made; changes of later epochs are ignored.
            regimes: Returns what a change of weights draws; None if there are none.
            made: Orders of epochs up to some changes of weights within them, which are used and added.

        Raises:
            OptionError: All its samples are banned.
        """
        within = [change for change in changes if change.epoch == epoch and change.position]
        order, done = None, len(within)
        while order is None and done:
            last = within[done - 1]
            order = made.get((epoch, last)) if made is not None and isinstance(last, Reweight) else None
            done -= order is None
        left_out = [sample for change in within[:done] if isinstance(change, Ban) for sample in change.ids]
        order = order or self._from_start(epoch, changes, regimes)
        for change in within[done:]:
            before = order
            if isinstance(change, Ban):
                left_out = [*left_out, *change.ids]
                if order.is_weighted:
                    continue  # weights without these samples follow
                order = order.without(change.position, change.ids)
            else:
                assert regimes is not None
                order = order.reweighted(change.position, change, regimes)
            order.before, order.left_out = (change.position, before), left_out
            if made is not None and isinstance(change, Reweight):
                made.put((epoch, change), order)
        return order

    def _from_start(self, epoch: int, changes: Sequence[Change], regimes: Regimes | None) -> EpochOrder:
        """Return the order of an epoch with the changes up to its start."""
        order = self.whole(epoch)
        passed = [change for change in changes if change.start <= (epoch, 0)]
        banned = [sample for change in passed if isinstance(change, Ban) for sample in change.ids]
        weights = next((change for change in reversed(passed) if isinstance(change, Reweight)), None)
        if weights and weights.entries is not None:
            assert regimes is not None
            return order.reweighted(0, weights, regimes)
        return order.without(0, banned) if banned else order


class PlainOrder(RunOrder):
    """The orders of all epochs without buckets.

    Attributes:
        segment_starts: int64 [segments + 1], positions of the first sample of each segment, which is the part of an
            epoch that is computed at a time, and the number of samples.
        reach: Maximum distance between two positions of one block; None if it is not known.
        varies: Whether epochs have different samples.
        epoch_length: Samples that an epoch has at any position of a run; None if it follows from the dataset.
    """

    segment_starts: Ints
    reach: int | None = None
    varies: bool
    epoch_length: int | None = None

    @abstractmethod
    def slice(self, epoch: int, start: int, stop: int) -> Part:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start]."""

    @property
    def plain(self) -> PlainOrder:
        """These orders."""
        return self

    @property
    @abstractmethod
    def parts(self) -> Sequence[PlainOrder]:
        """The orders of each dataset."""

    @property
    @abstractmethod
    def scans(self) -> Sequence[Scan]:
        """The plain orders of each dataset that weights go through: without repetitions by ``class_weights=``."""

    @abstractmethod
    def source_positions(self, epoch: int, position: int) -> tuple[SourcePosition, ...]:
        """Return where the `scans` of each dataset have its next sample at a position of an epoch, and its lag."""

    @property
    def pattern(self) -> Pattern | None:
        """Which dataset has each row, if each batch has samples of one dataset; None if there is no such rule."""
        return None

    @property
    @abstractmethod
    def shares(self) -> tuple[int, ...]:
        """Share of each dataset as a whole number."""

    @property
    @abstractmethod
    def first_ids(self) -> Sequence[int]:
        """Id of the first sample of each dataset, and the number of all samples."""

    def draws(self, weights: Weights, banned: Sequence[int]) -> Draws:
        """Return how samples are drawn by weights, without banned samples."""
        shares = weights.shares or self.shares
        ids = np.array(banned, np.int64)
        rates: list[Rates | None] = []
        for dataset, share in enumerate(shares):
            first, last = self.first_ids[dataset : dataset + 2]
            own = ids[(ids >= first) & (ids < last)] - first
            factors = weights.datasets[dataset] if weights.datasets else None
            if share and factors:
                name = f"dataset {dataset} of the Mixture" if len(shares) > 1 else "the dataset"
                rates.append(Rates(factors.phases, factors.by_group, factors.by_sample, own, name))
            else:
                rates.append(Rates.without(own, last - first) if share and len(own) else None)
        return shares, tuple(rates)

    def bucket_of(self, ids: Ints) -> int | None:  # noqa: ARG002 - mixtures need it
        """Return the dataset of samples that all are of one dataset; None if batches are mixed."""
        return None

    def regime(self, draws: Draws, progress: Progress) -> Regime:
        """Return the sequence of the samples that are drawn from a change on."""
        shares, rates = draws
        if not len(shares) == len(self.scans) == len(progress.sources):
            raise ResumeError(
                f"the state has weights of {len(progress.sources)} dataset(s), the loader has {len(self.scans)}: "
                "create the loader with the datasets of the state"
            )
        chains = [
            Chain(scan, rate, (turn, first))
            for scan, rate, (turn, first, _) in zip(self.scans, rates, progress.sources, strict=True)
        ]
        lags = [lag for _, _, lag in progress.sources]
        return Regime(draws, chains, self.first_ids, self.identity.lanes, progress.drawn, lags, self.identity.group)

    @abstractmethod
    def find(self, epoch: int, ids: Ints) -> tuple[Ints, Ints]:
        """Return the id and the index of the segment of each occurrence of samples in an epoch: int64 each."""

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


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of an epoch that are drawn by the same weights, from ``position`` on."""

    epoch: int
    position: int
    change: Reweight
    regimes: Regimes

    @property
    def regime(self) -> Regime:
        """The samples that are drawn."""
        return self.regimes(self.change)

    @property
    def drawn_before(self) -> int:
        """Samples of the epoch that were drawn before."""
        return self.regime.drawn_before if self.epoch == self.change.epoch else 0

    def row(self, position: int) -> int:
        """Return the row of the sequence that is at a row of the epoch."""
        return (self.epoch - self.change.epoch) * self.change.length + position - self.regime.drawn_before


class EpochOrder:
    """The order of one epoch: a sequence of rows, each of which has a sample. This class has all samples.

    Attributes:
        reach: Maximum distance between two rows of one block in one pass through the dataset; None if it is not known.
        before: Row from which the last change holds, and the order before it; None without changes in this epoch.
        left_out: Samples that changes in this epoch leave out after rows that may have them.
    """

    is_weighted = False
    before: tuple[int, EpochOrder] | None = None
    left_out: Sequence[int] = ()

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
        if self.distinct == self.run.samples and not self.is_weighted:
            return self.run.stored_ids(self.epoch)
        return np.sort(self.ids(0, self.samples)[self.valid(0, self.samples)])

    def tally(self) -> Tally | None:
        """Return the tally of all samples without computing the order; None if that is not possible."""
        return self.run.tally(self.epoch)

    def as_of(self, position: int) -> EpochOrder:
        """Return the order when a row was delivered, without the changes from later rows on."""
        order = self
        while order.before is not None and order.before[0] > position:
            order = order.before[1]
        return order

    def without(self, position: int, ids: Sequence[int]) -> EpochOrder:
        """Return the order in which some samples are left out from a row on."""
        return BannedEpoch(self, position, ids)

    def reweighted(self, position: int, change: Reweight, regimes: Regimes) -> EpochOrder:
        """Return the order in which the samples from a row on are drawn by weights."""
        return WeightedEpoch(self, (Piece(self.epoch, position, change, regimes),))

    def source_positions(self, position: int) -> tuple[SourcePosition, ...]:
        """Return where the plain orders of each dataset have its next sample at a row, and its lag."""
        return self.run.source_positions(self.epoch, position)

    def progress_at(self, position: int, are_drawn: AreDrawn) -> Progress:  # noqa: ARG002 - buckets need it
        """Return how far the run is at a row."""
        return Progress(position, self.source_positions(position))

    @property
    def inner(self) -> EpochOrder:
        """The order without buckets."""
        return self

    def passes(self, start: int, stop: int) -> Ints:
        """Return in which pass through its dataset the rows ``start`` to ``stop`` are: int64 [stop - start]."""
        return np.full(stop - start, self.epoch)

    def marks(self, position: int) -> Marks:
        """Return marks with which the rows from one on are computed faster; none if they are not drawn by weights."""
        piece = self.piece_at(position)
        return piece.regime.marks(piece.row(position)) if piece else ()

    @property
    def starts_of_weights(self) -> list[int]:
        """Rows at which other weights begin to hold, ascending."""
        return []

    def piece_at(self, position: int) -> Piece | None:  # noqa: ARG002 - weights need it
        """Return the rows drawn by the same weights that have a row; None if it is not drawn by weights."""
        return None

    def bucket_of(self, ids: Ints) -> int | None:
        """Return the bucket or dataset that all samples of a batch belong to; None if there is no such rule."""
        return self.run.bucket_of(ids)

    def largest_batch(self, position: int) -> int | None:
        """Return the largest batch size with which batches from a row on do not mix groups; None allows any size.

        The size must divide this number.
        """
        return None if self.identity.group == 1 else math.gcd(self.identity.group, position)

    def is_packed(self, stop: int) -> bool:  # noqa: ARG002 - an epoch of a dataset that is being packed needs it
        """Return whether the rows before ``stop`` are known."""
        return True

    def gaps(self, rows: Ints) -> Ints:
        """Return those of some rows whose input could not be packed; other samples are in their place."""
        return rows[:0]

    def rows_like(self, position: int) -> tuple[int, int]:
        """Return the rows drawn by the same weights that have a row: the first one, and the one after the last."""
        starts = [0, *self.starts_of_weights, self.samples]
        index = bisect_right(starts, position % self.samples)
        return starts[index - 1], starts[index]

    def substitute(self, position: int, attempt: int) -> int:
        """Return a sample that can take the place of the one in a row, chosen by a random number."""
        first, stop = self.rows_like(position)
        pattern, row = self.run.pattern, first + attempt % (stop - first)
        if pattern is not None:
            piece = self.piece_at(position)
            before = piece.row(0) if piece else self.epoch * (self.run.epoch_length or 0)
            pattern = piece.regime.pattern if piece else pattern
            row = pattern.row_like(position + before, first + before, stop + before, attempt) - before
        return int(self.ids(row, row + 1)[0])


class BannedEpoch(EpochOrder):
    """An epoch without some samples. The others keep their order.

    A segment of the order is computed only when positions in it are needed. How many samples are banned in the
    segments before it is known without that, from the blocks of these samples.
    """

    def __init__(self, base: EpochOrder, position: int, ids: Sequence[int]) -> None:
        super().__init__(base.run, base.epoch)
        self._base = base
        self._position = position
        self._banned = np.unique(np.array(ids, np.int64))
        ids_there, segments = self.run.find(self.epoch, self._banned)
        starts = base.segment_starts
        # Only the segment of the position has to be computed here, and none if it is 0.
        first = int(np.searchsorted(starts, position, side="right")) if position else 0  # of the later segments
        here = base.ids(position, int(starts[min(first, len(starts) - 1)])) if position else ids_there[:0]
        here = here[np.isin(here, self._banned)]
        is_later = segments >= first
        self._removed = np.concatenate([ids_there[is_later], here])
        counts = np.bincount(segments[is_later], minlength=len(starts))[: len(starts) - 1]
        counts[max(first - 1, 0) : first] += len(here)
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
        cached = self._segments.get(index)
        if cached is not None:
            return cached
        (ids, lanes), keeps = self._kept(index)
        self._segments.put(index, (ids[keeps], lanes[keeps]))
        return ids[keeps], lanes[keeps]

    def _kept(self, index: int) -> tuple[Part, NDArray[np.bool_]]:
        """Return a segment of the base, and which of its samples are not left out."""
        start, stop = self._base.segment_starts[index : index + 2].tolist()
        ids, lanes = self._base.slice(start, stop)
        return (ids, lanes), ~np.isin(ids, self._banned) | (np.arange(start, stop) < self._position)

    def source_positions(self, position: int) -> tuple[SourcePosition, ...]:
        """Return where the plain orders of each dataset have its next sample at a row, and its lag."""
        index = int(np.searchsorted(self.segment_starts, position, side="right")) - 1
        within = np.flatnonzero(self._kept(index)[1])[position - int(self.segment_starts[index])]
        return self._base.source_positions(int(self._base.segment_starts[index]) + int(within))


class WeightedEpoch(EpochOrder):
    """An epoch in which samples are drawn by weights from a row on. It keeps its length."""

    is_weighted = True

    def __init__(self, base: EpochOrder, pieces: tuple[Piece, ...]) -> None:
        super().__init__(base.run, base.epoch)
        self._base, self._pieces = base, pieces
        self.identity = replace(base.identity, once=False)
        self.segment_starts = np.array([0, pieces[0].change.length])

    def slice(self, start: int, stop: int) -> Part:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        head = (start, min(stop, self._pieces[0].position))
        parts = [self._base.slice(*head)] if head[0] < head[1] else []
        parts += [regime.slice(*rows) for regime, *rows in self._rows_of_pieces(start, stop)]
        ids, lanes = zip(*parts, strict=True) if parts else ((np.empty(0, np.int64),), (np.empty(0, np.int16),))
        return np.concatenate(ids), np.concatenate(lanes)

    def passes(self, start: int, stop: int) -> Ints:
        """Return in which pass through its dataset the rows ``start`` to ``stop`` are: int64 [stop - start]."""
        head = self._base.passes(start, max(start, min(stop, self._pieces[0].position)))
        return np.concatenate([head, *(regime.passes(*rows) for regime, *rows in self._rows_of_pieces(start, stop))])

    def _rows_of_pieces(self, start: int, stop: int) -> Iterator[tuple[Regime, int, int]]:
        """Yield the regimes of the rows ``start`` to ``stop``, and the rows of each that they are."""
        ends = [*(piece.position for piece in self._pieces[1:]), self.samples]
        for piece, end in zip(self._pieces, ends, strict=True):
            first, last = max(start, piece.position), min(stop, end)
            if first < last:
                yield piece.regime, piece.row(first), piece.row(last)

    def tally(self) -> Tally | None:
        """Return None: the samples of the epoch are known only after its order is computed."""
        return None

    def reweighted(self, position: int, change: Reweight, regimes: Regimes) -> EpochOrder:
        """Return the order in which the samples from a row on are drawn by other weights."""
        kept = tuple(piece for piece in self._pieces if piece.position < position)
        return WeightedEpoch(self._base, (*kept, Piece(self.epoch, position, change, regimes)))

    def source_positions(self, position: int) -> tuple[SourcePosition, ...]:
        """Return where the plain orders of each dataset have its next sample at a row, and its lag."""
        piece = self.piece_at(position)
        if piece is None:
            return self._base.source_positions(position)
        return piece.regime.source_positions(piece.row(position))

    def largest_batch(self, position: int) -> int | None:
        """Return the largest batch size with which batches from a row on do not mix groups; None allows any size."""
        piece = self.piece_at(position) if self.identity.group > 1 else None
        return super().largest_batch(piece.row(position) if piece else position)

    @property
    def starts_of_weights(self) -> list[int]:
        """Rows at which other weights begin to hold, ascending."""
        return [piece.position for piece in self._pieces]

    def piece_at(self, position: int) -> Piece | None:
        """Return the rows drawn by the same weights that have a row; None if it is not drawn by weights."""
        return next((piece for piece in reversed(self._pieces) if piece.position <= position), None)
