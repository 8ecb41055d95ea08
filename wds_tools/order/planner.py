"""Distribution of the canonical sequence over ranks. No I/O, no torch.

Each global step takes the next ``world_size * batch_size`` samples of the sequence. The ranks
divide them so that each rank reads from the same lanes in every step. All ranks take the same
number of steps, and the samples of a step do not depend on the number of ranks, only on their
product with the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.changes import Ban, Change, Entries, FindWeights, Progress, Reweight, Weights
from wds_tools.order.epoch import EpochOrder, RunOrder
from wds_tools.order.keyed_random import key_of, permute
from wds_tools.order.packed import PackedOrder
from wds_tools.order.partners import reach_of
from wds_tools.order.shares import Ints
from wds_tools.order.tally import Tally, tally
from wds_tools.order.weights import Draws, Regime, are_drawn

PrefixOrder = Callable[[int], RunOrder]
"""Returns the order of the first n shards of a dataset."""
Tail = Literal["drop", "pad", "mask"]

_KEPT_ORDERS = 3  # orders of epochs that are not computed again
_KEPT_REGIMES, _KEPT_BYTES = 4, 64 << 20  # changes of weights, and the weights of samples that they have
_KEPT_CHANGES = 8  # changes of weights that a state has even if they no longer matter, to explain earlier steps


@dataclass(frozen=True, slots=True)
class World:
    """The data-parallel rank of this process, and the number of ranks.

    Raises:
        OptionError: ``rank`` is not in the range 0 to ``world_size - 1``.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise OptionError(
                f"rank={self.rank} of world_size={self.world_size}: "
                "allowed are a world_size of at least 1, and ranks from 0 to world_size - 1"
            )


@dataclass(frozen=True, slots=True)
class Cursor:
    """Progress of training: the first ``position`` samples of ``epoch`` have been consumed."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The part of one rank in one global step.

    Attributes:
        number: Number of the step, counted from the start of its plan.
        positions: int64 [batch], positions in the canonical sequence; padding lies beyond its end.
        valid: bool [batch], False for padding.
        global_tally: Tally of the samples of the step over all ranks, without padding.
        bucket: Bucket of the samples of this rank; None if the order has no buckets.
    """

    number: int
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    global_tally: Tally
    bucket: int | None = None


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The steps of one rank from a cursor to the end of its epoch.

    Global step g takes ``world_size * batch_size`` samples, the first one at position
    ``cursor.position + g * world_size * batch_size``. Each rank takes an equal part of them.
    """

    order: EpochOrder
    cursor: Cursor
    world: World
    batch_size: int
    tail: Tail

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world.world_size

    @property
    def end(self) -> int:
        """Position where the epoch ends, before padding and before an incomplete step is dropped."""
        return self.order.complete if self.tail == "drop" else self.order.samples

    def __len__(self) -> int:
        left = max(0, self.end - self.cursor.position)
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def position_of(self, index: int) -> int:
        """Return the position at which step ``index`` begins."""
        return self.cursor.position + index * self.global_batch

    def step(self, index: int) -> Step:
        """Return step ``index`` of this rank, counted from the start of the plan."""
        size, start = self.global_batch, self.position_of(index)
        stop = min(start + size, self.end)
        ids, lanes = self.order.slice(start, stop)
        valid = self.order.valid(start, stop)
        global_tally = tally(ids if valid.all() else ids[valid])
        while len(ids) < size:  # padding repeats the order
            first, last = self._repeated
            more_ids, more_lanes = self.order.slice(first, min(first + size - len(ids), last))
            ids, lanes = np.concatenate([ids, more_ids]), np.concatenate([lanes, more_lanes])
            valid = np.concatenate([valid, np.zeros(len(more_ids), np.bool_)])
        if self.world.world_size == 1:  # the division below would return all rows
            return Step(index, start + np.arange(size), ids, valid, global_tally, self.order.bucket_of(ids))
        identity = self.order.identity  # rows that belong to one rank are samples, or batches
        unit = math.gcd(identity.group, self.batch_size) if identity.group_is_of_rank else 1
        if unit == 1 or identity.buckets:
            parts = divide(lanes[::unit], identity.lanes, self.world.world_size)
        else:  # each batch is of one dataset and has samples of all lanes: no rank has always the same dataset
            key = key_of("ranks", identity.seed, self.cursor.epoch, start)
            parts = permute(key, size // unit, np.arange(size // unit)).reshape(self.world.world_size, -1)
        units = np.sort(parts[self.world.rank])
        own = units if unit == 1 else (units[:, None] * unit + np.arange(unit)).ravel()
        own_ids = ids[own]
        return Step(index, start + own, own_ids, valid[own], global_tally, self.order.bucket_of(own_ids))

    @property
    def _repeated(self) -> tuple[int, int]:
        """Rows that padding repeats: those drawn by the last weights, unless batches from there would mix buckets."""
        first, last = self.order.rows_like(self.end - 1)
        largest = self.order.largest_batch(first)
        return (first if largest is None or largest % self.batch_size == 0 else self.cursor.position), last

    def expected(self) -> Tally | None:
        """Return the tally of the samples that all ranks together must deliver.

        The order is not computed for this. None if the plan does not start at the start of the
        epoch, or if the order has no such tally. The caller then adds up the tallies of the steps.
        """
        total = None if self.cursor.position else self.order.tally()
        if total is None:
            return None
        end = min(len(self) * self.global_batch, self.order.samples)
        left_out = self.order.ids(end, self.order.samples)
        return total - tally(left_out[self.order.valid(end, self.order.samples)])

    def has_same_steps(self, other: EpochPlan) -> bool:
        """Return whether another plan has the same steps. Their orders must be the same object."""
        return self.order is other.order and (
            (self.cursor, self.world, self.batch_size, self.tail)
            == (other.cursor, other.world, other.batch_size, other.tail)
        )

    def cursor_after(self, index: int) -> Cursor:
        """Return the cursor after all ranks have consumed step ``index``."""
        position = self.cursor.position + (index + 1) * self.global_batch
        if index + 1 >= len(self):
            return Cursor(self.cursor.epoch + 1, 0)
        return Cursor(self.cursor.epoch, position)


def divide(lanes: NDArray[np.int16], lane_count: int, ranks: int) -> NDArray[np.int64]:
    """Divide a global step into equal parts, so that each rank reads the same lanes in every step.

    Ranks and lanes are divided into the same number of groups, as many as possible: one per lane if
    the lanes divide the ranks. The ranks of a group take the samples of its lanes, lane by lane. If a
    group has too many samples, as at the end of an epoch when some lanes are empty, the last ones go
    to groups that have too few.

    Returns:
        int64 [ranks, samples / ranks], indices into ``lanes``.
    """
    groups = math.gcd(lane_count, ranks)
    quota = len(lanes) // groups  # samples of a group
    by_lane = np.argsort(lanes, kind="stable")
    group = (np.arange(lane_count) * groups // lane_count)[lanes[by_lane]]
    counts = np.bincount(group, minlength=groups)
    if (counts == quota).all():
        return by_lane.reshape(ranks, -1)
    within = np.arange(len(lanes)) - (np.cumsum(counts) - counts)[group]
    is_own, slots = within < quota, group * quota + within
    parts = np.empty(len(lanes), np.int64)
    is_free = np.ones(len(lanes), np.bool_)
    is_free[slots[is_own]] = False
    parts[slots[is_own]], parts[is_free] = by_lane[is_own], by_lane[~is_own]
    return parts.reshape(ranks, -1)


class EpochOrders:
    """The order of each epoch of a run.

    If the dataset has grown since the state was saved, the interrupted epoch ends in the order of the
    dataset as it was, and later epochs use the order of the dataset as it is. The first epoch of a
    dataset that was packed meanwhile has a `PackedOrder`.

    Args:
        order: Order of all other epochs.
        earlier: Orders of these epochs, by epoch.
        changes: Bans and changes of weights, in the order of their positions.
        find_weights: Returns the weights of the entries of a change.
        first_epoch: The first epoch whose changes of weights are known, see `for_state`.
        known: What was computed for the changes already.
    """

    def __init__(
        self,
        order: RunOrder,
        earlier: Mapping[int, RunOrder] | None = None,
        changes: Sequence[Change] = (),
        find_weights: FindWeights | None = None,
        first_epoch: int = 0,
        known: _Known | None = None,
    ) -> None:
        self.order = order
        self.changes = tuple(changes)
        self.first_epoch = first_epoch
        self._earlier, self._find_weights = earlier or {}, find_weights
        self._known = known or _Known()
        self._kept = LRUCache[int, EpochOrder](max_items=_KEPT_ORDERS)
        self._in_use = WeakValueDictionary[int, EpochOrder]()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.order, self._earlier, self.changes, self._find_weights, self.first_epoch

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # each process computes the orders that it needs

    def of(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch: the same object while it is in use."""
        if epoch < self.first_epoch:
            raise OptionError(
                f"epoch={epoch}; the state that was loaded has the weights from epoch {self.first_epoch} on: begin at "
                "that one, or load an earlier state"
            )
        order = self._in_use.get(epoch)
        if order is None:
            run = self._earlier.get(epoch, self.order)
            order = self._in_use[epoch] = run.at(epoch, self.changes, self._regime, self._known.orders)
        self._kept.put(epoch, order)
        return order

    @property
    def bans(self) -> tuple[Ban, ...]:
        """Samples that are left out, in the order in which they were banned."""
        return tuple(change for change in self.changes if isinstance(change, Ban))

    @property
    def reweights(self) -> tuple[Reweight, ...]:
        """Changes of weights, in the order of their positions."""
        return tuple(change for change in self.changes if isinstance(change, Reweight))

    def weights_at(self, cursor: Cursor) -> Entries | None:
        """Return the weights that hold at a cursor; None in a plain epoch."""
        last = self._last(cursor)
        return last.entries if last else None

    def needed(self, cursor: Cursor, *, has_partners: bool) -> list[Reweight]:
        """Return the changes of weights that the steps from a cursor on depend on."""
        identity = self.order.identity
        before = cursor.position if identity.buckets else reach_of(identity) if has_partners else 0
        first = cursor.epoch, max(0, cursor.position - before)  # the groups of an epoch are computed from its start
        passed = [change for change in self.reweights if change.start <= first]
        return [*passed[-1:], *(change for change in self.reweights if change.start > first)]

    def banning(self, ids: Sequence[int], cursor: Cursor) -> EpochOrders:
        """Return the orders without further samples from a cursor on; those that are banned already are ignored."""
        new = set(ids).difference(*(ban.ids for ban in self.bans))
        if not new:
            return self
        now, last = astuple(cursor), self._last(cursor)
        changes: list[Change] = [Ban(cursor.epoch, cursor.position, tuple(sorted(new)))]
        if last or self._needs_weights:
            entries, length = (last.entries, last.length) if last else (None, self._length(cursor))
            if entries is None and self._needs_weights:
                entries = self._plain_weights
            changes.append(Reweight(cursor.epoch, cursor.position, entries, length))
        passed = [change for change in self.changes if change.start <= now]
        later = [change for change in self.changes if change.start > now]
        return self._with((*passed, *changes, *later), known=self._known.until(passed))

    def reweighting(self, entries: Entries | None, cursor: Cursor, *, check: bool = True) -> EpochOrders:
        """Return the orders in which samples are drawn by weights from a cursor on."""
        if cursor.epoch in self._earlier:
            reason = (
                f"epoch {cursor.epoch} has the order in which the dataset was packed"
                if isinstance(self._earlier[cursor.epoch], PackedOrder)
                else f"the dataset has grown since the state that was loaded, and epoch {cursor.epoch} ends without "
                "the new samples"
            )
            raise OptionError(f"{reason}: weights can change from epoch {cursor.epoch + 1} on")
        before = self.until(cursor, inclusive=False)
        if entries is None and self.bans and self._needs_weights:
            entries = self._plain_weights
        last = before._last(cursor)  # noqa: SLF001 - of this class
        if entries is None and last is None:
            return before
        length = last.length if last else before._length(cursor)  # noqa: SLF001 - of this class
        change = Reweight(cursor.epoch, cursor.position, entries, length)
        changed = self._with((*before.changes, change))
        if check:
            changed.check(change)
        return changed

    @property
    def _needs_weights(self) -> bool:
        """Whether bans are changes of weights: without some rows of the plain epochs, groups would mix datasets."""
        return self.order.plain.pattern is not None

    @property
    def _plain_weights(self) -> Entries:
        """Weights that draw all samples of a dataset equally often."""
        return {"sources": list(map(float, self.order.plain.shares))}

    def _length(self, cursor: Cursor) -> int:
        """Return the samples of an epoch if weights begin to hold at a cursor."""
        return self.order.plain.epoch_length or self.of(cursor.epoch).distinct

    def until(self, cursor: Cursor, *, inclusive: bool = True) -> EpochOrders:
        """Return the orders without the changes of weights after a cursor, or without those at it either."""
        now = astuple(cursor)
        passed = {change for change in self.reweights if change.start < now or (inclusive and change.start == now)}
        return self._with([change for change in self.changes if isinstance(change, Ban) or change in passed])

    def check(self, change: Reweight) -> None:
        """Check the weights of a change."""
        self._draws(change)

    def release_weights(self) -> None:
        """Find the weights again when they are needed next: they are in a file now, which the ranks share."""
        self._known.draws.clear()

    def has_changes_of(self, other: EpochOrders) -> bool:
        """Return whether the weights change at the same positions to the same ones as in other orders."""
        pairs = ([(change.start, change.entries) for change in orders.reweights] for orders in (self, other))
        return next(pairs) == next(pairs)

    def _last(self, cursor: Cursor) -> Reweight | None:
        """Return the change whose samples are drawn at a cursor; None in a plain epoch."""
        passed = [change for change in self.reweights if change.start <= astuple(cursor)]
        return passed[-1] if passed and (passed[-1].entries or passed[-1].epoch == cursor.epoch) else None

    def _draws(self, change: Reweight) -> Draws:
        draws = self._known.draws.get(change)
        if draws is None:
            before = self.changes[: self.changes.index(change)]
            banned = [sample for ban in before if isinstance(ban, Ban) for sample in ban.ids]
            weights = self._find_weights(change.entries) if self._find_weights and change.entries else Weights()
            draws = self.order.plain.draws(weights, banned)
            self._known.draws.put(change, draws, sum(rates.bytes for rates in draws[1] if rates))
        return draws

    def _regime(self, change: Reweight) -> Regime:
        """Return the samples that a change of weights draws."""
        regime = self._known.regimes.get(change)
        if regime is None:
            regime = self.order.plain.regime(self._draws(change), self._progress(change))
            self._known.regimes.put(change, regime, regime.bytes)
        return regime

    def _progress(self, change: Reweight) -> Progress:
        """Return how far the run is at a change."""
        progress = self._known.progress
        for index, earlier in enumerate(self.changes):
            if isinstance(earlier, Reweight) and earlier not in progress:
                before = self._with(self.changes[:index])
                progress[earlier] = earlier.progress or before.of(earlier.epoch).progress_at(
                    earlier.position, partial(self._are_drawn, earlier)
                )
            if earlier is change:
                break
        return progress[change]

    def _are_drawn(self, change: Reweight, ids: Ints) -> NDArray[np.bool_]:
        return are_drawn(self._draws(change), ids, self.order.plain.first_ids)

    def _with(
        self, changes: Sequence[Change], first_epoch: int | None = None, known: _Known | None = None
    ) -> EpochOrders:
        """Return the orders with other changes."""
        first = self.first_epoch if first_epoch is None else first_epoch
        return EpochOrders(self.order, self._earlier, changes, self._find_weights, first, known or self._known)

    def for_state(self, cursor: Cursor) -> EpochOrders:
        """Return the orders without the changes of weights that a run from a cursor on does not need.

        Kept are the last changes before the cursor, and all changes of its epoch, so the state does not grow with the
        run. The orders of the epochs before the first kept change are then not known.
        """
        passed = [change for change in self.reweights if change.start <= astuple(cursor)]
        in_epoch = [change for change in passed if change.start > (cursor.epoch, 0)]
        kept = passed[-max(len(in_epoch) + 1, _KEPT_CHANGES) :]
        if len(kept) == len(passed):
            return self
        self._progress(passed[-1])  # the dropped ones are needed for it
        first, dropped = kept[0], set(passed).difference(kept)
        changes = [change for change in self.changes if isinstance(change, Ban) or change not in dropped]
        return self._with(changes, first.epoch + (first.position > 0))

    def with_files_of_bans(self, save: Callable[[Sequence[int]], tuple[str, str]]) -> EpochOrders:
        """Return the orders with the ids of all bans in files; ``save`` writes one and returns its path and hash."""
        changes = [
            replace(change, file=save(change.ids)) if isinstance(change, Ban) else change for change in self.changes
        ]
        return self._with(changes)

    def with_order(self, order: RunOrder) -> EpochOrders:
        """Return the orders for other shards, with the window, blocks and lanes of this one."""
        shape = self.order.identity.shape
        return EpochOrders(order.like(**shape), self._packed, self.changes, self._find_weights, self.first_epoch)

    @property
    def _packed(self) -> dict[int, RunOrder]:
        """The order in which the dataset was packed, of the epochs that have it."""
        return {epoch: order for epoch, order in self._earlier.items() if isinstance(order, PackedOrder)}

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Return the changes as entries of a state whose next sample is at a cursor."""
        now = astuple(cursor)
        weights = [
            reweight.to_list(self._progress(reweight) if reweight.start <= now else None) for reweight in self.reweights
        ]
        return {
            **({"bans": [ban.to_dict() for ban in self.bans]} if self.bans else {}),
            **({"weights": weights} if weights else {}),
            **({"first_epoch": self.first_epoch} if self.first_epoch else {}),
            **({"plan": self._packed[0].identity.fingerprint} if self._packed else {}),
        }


class _Known:
    """What was computed for changes of weights. Orders share it if their changes differ only at the end."""

    def __init__(self) -> None:
        self.draws = LRUCache[Reweight, Draws](max_items=_KEPT_REGIMES, max_bytes=_KEPT_BYTES)
        self.regimes = LRUCache[Reweight, Regime](max_items=_KEPT_REGIMES, max_bytes=_KEPT_BYTES)
        self.orders = LRUCache[tuple[int, Reweight], EpochOrder](max_items=_KEPT_ORDERS)
        self.progress: dict[Reweight, Progress] = {}

    def until(self, changes: Sequence[Change]) -> _Known:
        """Return what does not depend on changes after some."""
        result = _Known()
        kept = {change for change in changes if isinstance(change, Reweight)}
        result.progress = {change: progress for change, progress in self.progress.items() if change in kept}
        return result
