"""Distribution of the canonical sequence over ranks, and the state to resume from. No I/O, no torch.

Each global step takes the next ``world_size * batch_size`` samples of the sequence. The ranks
divide them so that each rank reads from the same lanes in every step. All ranks take the same
number of steps, and the samples of a step do not depend on the number of ranks, only on their
product with the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.changes import Ban, Change, Entries, FindWeights, Reweight, Weights, bans_of, reweights_of
from wds_tools.order.epoch import EpochOrder, Identity, RunOrder
from wds_tools.order.saved_state import MAX_EPOCH, plain, whole_number
from wds_tools.order.sequence import MAX_LANES, MAX_WINDOW
from wds_tools.order.tally import Tally, tally
from wds_tools.order.weights import Regime

PrefixOrder = Callable[[int], RunOrder]
"""Returns the order of the first n shards of a dataset."""
Tail = Literal["drop", "pad", "mask"]

STATE_VERSION = 2
_KEPT_ORDERS = 3  # orders of epochs that are not computed again
_KEPT_REGIMES = 4
_KEPT_CHANGES = 8  # changes of weights that a state has even if they no longer matter, to explain earlier steps
_MAX_BLOCK = 1 << 20  # samples; `default_block` gives at most 65,536
_EARLIER_VERSION = 1  # same keys; another order of samples, in which lanes had other blocks in each epoch


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
        ids: int64 [batch], sample ids.
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

    Attributes:
        order: Order of the samples.
        cursor: Start of the plan.
        world: Rank and number of ranks.
        batch_size: Samples per step and rank.
        tail: Treatment of an incomplete last step: ``drop``, ``pad`` or ``mask``.
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

    def position_of(self, number: int) -> int:
        """Return the position at which step ``number`` begins."""
        return self.cursor.position + number * self.global_batch

    def step(self, number: int) -> Step:
        """Return step ``number`` of this rank, counted from the start of the plan."""
        size, start = self.global_batch, self.position_of(number)
        stop = min(start + size, self.end)
        ids, lanes = self.order.slice(start, stop)
        valid = self.order.valid(start, stop)
        global_tally = tally(ids if valid.all() else ids[valid])
        while len(ids) < size:  # padding repeats the order
            first = self._first_repeated
            more_ids, more_lanes = self.order.slice(first, min(first + size - len(ids), self.order.samples))
            ids, lanes = np.concatenate([ids, more_ids]), np.concatenate([lanes, more_lanes])
            valid = np.concatenate([valid, np.zeros(len(more_ids), np.bool_)])
        unit = math.gcd(self.order.identity.group, self.batch_size)  # rows that belong to one rank: samples, or batches
        units = np.sort(divide(lanes[::unit], self.order.identity.lanes, self.world.world_size)[self.world.rank])
        own = units if unit == 1 else (units[:, None] * unit + np.arange(unit)).ravel()
        own_ids = ids[own]
        return Step(number, start + own, own_ids, valid[own], global_tally, self.order.bucket_of(own_ids))

    @property
    def _first_repeated(self) -> int:
        """Row from which padding repeats the order: the first one, unless batches from there would mix buckets."""
        largest = self.order.largest_batch(0)
        return 0 if largest is None or largest % self.batch_size == 0 else self.cursor.position

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

    def cursor_after(self, number: int) -> Cursor:
        """Return the cursor after all ranks have consumed step ``number``."""
        position = self.cursor.position + (number + 1) * self.global_batch
        if number + 1 >= len(self):
            return Cursor(self.cursor.epoch + 1, 0)
        return Cursor(self.cursor.epoch, position)


def divide(lanes: NDArray[np.int16], lane_count: int, ranks: int) -> NDArray[np.int64]:
    """Divide a global step into equal parts, so that each rank reads the same lanes in every step.

    Ranks and lanes are divided into the same number of groups, as many as possible: one per lane if
    the lanes divide the ranks. The ranks of a group take the samples of its lanes, lane by lane. If a
    group has too many samples, as at the end of an epoch when some lanes are empty, the last ones go
    to groups that have too few.

    Args:
        lanes: int16 [samples], lane of each sample of the step; the ranks must divide their number.
        lane_count: Number of lanes.
        ranks: Number of ranks.

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
    dataset as it was, and later epochs use the order of the dataset as it is.

    Args:
        order: Order of all epochs but the interrupted one.
        earlier: (epoch, order) of the epoch that was interrupted before the dataset grew, or None.
        changes: Bans and changes of weights, in the order in which they were made.
        find_weights: Returns the weights of the entries of a change.
        first_epoch: The first epoch whose changes of weights are known, see `for_state`.
        regimes: What was computed for the changes already.
    """

    def __init__(
        self,
        order: RunOrder,
        earlier: tuple[int, RunOrder] | None = None,
        changes: Sequence[Change] = (),
        find_weights: FindWeights | None = None,
        first_epoch: int = 0,
        regimes: LRUCache[Reweight, Regime] | None = None,
    ) -> None:
        self.order = order
        self.changes = tuple(changes)
        self.first_epoch = first_epoch
        self._earlier, self._find_weights = earlier, find_weights
        self._regimes = LRUCache(max_items=_KEPT_REGIMES) if regimes is None else regimes
        self._kept = LRUCache[int, EpochOrder](max_items=_KEPT_ORDERS)
        self._in_use = WeakValueDictionary[int, EpochOrder]()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.order, self._earlier, self.changes, self._find_weights, self.first_epoch

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # each process computes the orders that it needs

    def of(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch: the same object while it is in use.

        Raises:
            OptionError: All its samples are banned, or its weights are not known.
        """
        if epoch < self.first_epoch:
            raise OptionError(
                f"epoch={epoch}; the state that was loaded has the weights from epoch {self.first_epoch} on: begin at "
                "that one, or load an earlier state"
            )
        order = self._in_use.get(epoch)
        if order is None:
            run = self._earlier[1] if self._earlier and self._earlier[0] == epoch else self.order
            order = self._in_use[epoch] = run.at(epoch, self.changes, self.regime)
        self._kept.put(epoch, order)
        return order

    def regime(self, change: Reweight) -> Regime:
        """Return the samples that a change of weights draws.

        Raises:
            OptionError: The weights do not fit the dataset, or leave no sample.
            ResumeError: A file with weights of samples is missing or has changed.
        """
        known = self._regimes.get(change)
        if known is None:
            before = self.changes[: self.changes.index(change)]
            banned = [sample for ban in before if isinstance(ban, Ban) for sample in ban.ids]
            weights = self._find_weights(change.entries) if self._find_weights and change.entries else Weights()
            known = self.order.plain.regime(change, weights, banned)
            self._regimes.put(change, known)
        return known

    def _with(self, changes: Sequence[Change], first_epoch: int | None = None) -> EpochOrders:
        """Return the orders with other changes."""
        first = self.first_epoch if first_epoch is None else first_epoch
        return EpochOrders(self.order, self._earlier, changes, self._find_weights, first, self._regimes)

    @property
    def bans(self) -> tuple[Ban, ...]:
        """Samples that are left out, in the order in which they were banned."""
        return tuple(change for change in self.changes if isinstance(change, Ban))

    @property
    def reweights(self) -> tuple[Reweight, ...]:
        """Changes of weights, in the order in which they were made."""
        return tuple(change for change in self.changes if isinstance(change, Reweight))

    def weights_at(self, cursor: Cursor) -> Entries | None:
        """Return the weights that hold at a cursor; None in a plain epoch."""
        before = [change for change in self.reweights if change.place <= astuple(cursor)]
        return before[-1].entries if before else None

    def banning(self, ids: Sequence[int], cursor: Cursor) -> EpochOrders:
        """Return the orders without further samples from a cursor on; those that are banned already are ignored."""
        new = set(ids).difference(*(ban.ids for ban in self.bans))
        if not new:
            return self
        ban = Ban(cursor.epoch, cursor.position, tuple(sorted(new)))
        changes: list[Change] = [ban]
        order = self.of(cursor.epoch)
        if order.is_weighted:
            last = self.reweights[-1]
            changes.append(_reweight(order, cursor, last.entries))
        shared = (self.order, self._earlier, (*self.changes, *changes), self._find_weights, self.first_epoch)
        return EpochOrders(*shared)  # what later changes draw is computed again

    def reweighting(self, entries: Entries | None, cursor: Cursor) -> EpochOrders:
        """Return the orders in which samples are drawn by weights from a cursor on.

        Args:
            entries: The weights; None returns to the plain epochs.
            cursor: The cursor.

        Raises:
            OptionError: The weights do not fit the dataset, or leave no sample.
        """
        kept = [change for change in self.changes if isinstance(change, Ban) or change.place != astuple(cursor)]
        before = self._with(kept)
        order = before.of(cursor.epoch)
        if entries is None and not order.is_weighted:
            return before
        change = _reweight(order, cursor, entries)
        changed = self._with((*kept, change))
        changed.regime(change)
        return changed

    def for_state(self, cursor: Cursor) -> EpochOrders:
        """Return the orders without the changes of weights that a run from a cursor on does not need.

        Kept are the last changes before the cursor, and all changes of its epoch, so the state does not grow with the
        run. The orders of the epochs before the first kept change are then not known.
        """
        passed = [change for change in self.reweights if change.place <= astuple(cursor)]
        in_epoch = [change for change in passed if change.place > (cursor.epoch, 0)]
        dropped = passed[: -max(len(in_epoch) + 1, _KEPT_CHANGES)]
        if not dropped:
            return self
        first = passed[len(dropped)]
        kept = [change for change in self.changes if change not in dropped]
        return self._with(kept, first.epoch + (first.position > 0))

    def with_order(self, order: RunOrder) -> EpochOrders:
        """Return the orders for other shards, with the window, blocks and lanes of this one."""
        shape = self.order.identity.shape
        return EpochOrders(order.like(**shape), None, self.changes, self._find_weights, self.first_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the changes as entries of a state."""
        return {
            **({"bans": [ban.to_dict() for ban in self.bans]} if self.bans else {}),
            **({"weights": [change.to_list() for change in self.reweights]} if self.reweights else {}),
            **({"first_epoch": self.first_epoch} if self.first_epoch else {}),
        }


def _reweight(order: EpochOrder, cursor: Cursor, entries: Entries | None) -> Reweight:
    return Reweight(cursor.epoch, cursor.position, entries, order.distinct, order.scan_positions(cursor.position))


def state_dict(order: EpochOrder | RunOrder, cursor: Cursor) -> dict[str, Any]:
    """Return a state that can be saved as JSON. It does not depend on the number of ranks or workers."""
    identity = order.identity
    piece = order.piece_at(cursor.position) if isinstance(order, EpochOrder) else None
    return {
        "version": STATE_VERSION,
        "fingerprint": identity.fingerprint,
        "shards": identity.shards,
        "selection": identity.selection,
        "seed": identity.seed,
        "epoch": cursor.epoch,
        "position": cursor.position,
        **identity.shape,
        **({"buckets": identity.sizes} if identity.buckets else {}),
        **({"marks": piece.regime.marks(piece.row(cursor.position))} if piece else {}),
    }


def resume(
    state: dict[str, Any],
    order: RunOrder,
    *,
    prefix: PrefixOrder | None = None,
    force: bool = False,
    find_weights: FindWeights | None = None,
) -> tuple[EpochOrders, Cursor]:
    """Return the orders and the cursor of a state.

    Window, block and lanes come from the state, so that the rest of the epoch is the same as
    without the interruption. States of version 1 are for an earlier order of samples. They are
    accepted if the rest of the epoch does not depend on it: at the start of an epoch, and in the
    stored order.

    Args:
        state: The return value of `state_dict`.
        order: The order of the loader.
        prefix: Returns the order of the first n shards of the dataset. It serves to recognise a
            dataset that has only grown; the interrupted epoch then ends without the new samples.
        force: Accept a state of another dataset, selection, seed or version.
        find_weights: Returns the weights of the entries of the state; None refuses a state with weights.

    Raises:
        ResumeError: ``state`` is not a loader state, or belongs to another version, dataset,
            selection or seed. The message gives both values.
    """
    saved = _read(state, has_buckets=bool(order.identity.buckets))
    cursor, saved_order = saved.cursor, _order_of_smaller(saved, order, prefix) or order
    if not force:
        _check_same_run(saved, saved_order.identity, order.identity)
    has_grown = saved_order is not order and cursor.position
    try:
        earlier = (cursor.epoch, saved_order.like(**saved.shape)) if has_grown else None
        first_epoch = whole_number(state.get("first_epoch", 0), "first_epoch", most=cursor.epoch)
        changes = _changes_of(state, order, saved, find_weights)
        orders = EpochOrders(order.like(**saved.shape), earlier, changes, find_weights, first_epoch)
        _check_weights(orders, cursor)
        interrupted = orders.of(cursor.epoch)
        samples = interrupted.samples
        if (piece := interrupted.piece_at(cursor.position)) and "marks" in state:
            piece.regime.set_marks(
                [(whole_number(chunk, "mark"), whole_number(row, "mark")) for chunk, row in state["marks"]]
            )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ResumeError):
            raise
        raise ResumeError(f"window, block and lanes of the state do not fit this dataset: {error}") from error
    if cursor.position >= samples:
        raise ResumeError(
            f"the state is at epoch {cursor.epoch}, position {cursor.position:,} of {samples:,} samples: "
            f"it {'does not fit this dataset' if force else 'was damaged'}"
        )
    return orders, cursor


def _changes_of(
    state: dict[str, Any], order: RunOrder, saved: _Saved, find_weights: FindWeights | None
) -> list[Change]:
    """Return the bans and changes of weights of a state, in the order in which they were made."""
    changes: list[Change] = list(bans_of(state.get("bans", ()), order.identity.stored))
    if not state.get("weights"):
        return changes
    if find_weights is None:
        raise ResumeError("the state has weights of loader.reweight(), which only make_loader resumes")
    if saved.fingerprint != order.identity.fingerprint:
        raise ResumeError(
            f"the state has weights for the dataset {saved.fingerprint}, and the loader has "
            f"{order.identity.fingerprint}: resume with the dataset of the state"
        )
    changes += reweights_of(state["weights"])
    return sorted(changes, key=lambda change: (change.epoch, change.position))  # stable: a ban comes first


def _check_weights(orders: EpochOrders, cursor: Cursor) -> None:
    """Check that the weights at a cursor and after it fit the dataset. Files of earlier ones may be gone."""
    place = astuple(cursor)
    passed = [change for change in orders.reweights if change.place <= place]
    for change in [*reversed([change for change in orders.reweights if change.place > place]), *passed[-1:]]:
        try:
            orders.regime(change)
        except OptionError as error:
            raise ResumeError(f"the weights of the state do not fit this dataset: {error}") from error


@dataclass(frozen=True, slots=True)
class _Saved:
    """The entries of a loader state, with values of the right types.

    Attributes:
        shape: Window, block and lanes, and the group if there are buckets, as `RunOrder.like` takes them.
    """

    version: int
    fingerprint: Any
    shards: int
    seed: int
    selection: Any
    buckets: Any
    cursor: Cursor
    shape: dict[str, Any]


def _read(state: dict[str, Any], *, has_buckets: bool) -> _Saved:
    """Read a loader state, except its bans."""
    try:
        shards, seed = (whole_number(state[key], key) for key in ("shards", "seed"))
        limits = (("lanes", MAX_LANES), ("window", MAX_WINDOW), ("block", _MAX_BLOCK))
        shape: dict[str, Any] = {key: _whole_numbers(state[key], key, most) for key, most in limits}
        if has_buckets and "group" in state:
            shape["group"] = whole_number(state["group"], "group", least=1, most=MAX_WINDOW)
        epoch, position = (
            whole_number(state["epoch"], "epoch", most=MAX_EPOCH),
            whole_number(state["position"], "position"),
        )
        return _Saved(
            whole_number(state["version"], "version"),
            *(state["fingerprint"], shards, seed, state["selection"], plain(state.get("buckets"))),
            Cursor(epoch, position),
            shape,
        )
    except (LookupError, TypeError) as error:
        reason = f"it has no entry {error}" if isinstance(error, KeyError) else str(error)
        raise ResumeError(f"this is not a loader state ({reason}): pass the result of loader.state_dict()") from error


def _order_of_smaller(saved: _Saved, order: RunOrder, prefix: PrefixOrder | None) -> RunOrder | None:
    """Return the order of the dataset as it was when the state was saved, if it has only grown since; else None."""
    if (
        prefix is None
        or saved.fingerprint == order.identity.fingerprint
        or not 0 < saved.shards < order.identity.shards
    ):
        return None
    smaller = prefix(saved.shards)
    return smaller if smaller.identity.fingerprint == saved.fingerprint else None


def _check_same_run(saved: _Saved, then: Identity, now: Identity) -> None:
    """Check that a state is for this run; ``then`` is the identity of the order of the dataset as it was."""
    _check_version(saved.version, saved.cursor, saved.shape)
    _check_equal("dataset fingerprint", saved.fingerprint, then.fingerprint)
    _check_equal("selection", saved.selection, then.selection)
    _check_equal("seed", saved.seed, now.seed)
    _check_equal("buckets", saved.buckets, now.sizes)
    if now.shuffles != bool(np.any(saved.shape["window"])):
        raise ResumeError(
            f"the state is for a window of {saved.shape['window']}, the loader has {now.window} (0 is shuffle=False): "
            "create the loader with the same shuffle=, or load the state with force=True"
        )


def _whole_numbers(value: Any, name: str, most: int) -> int | list[int]:
    """Return an entry that is a whole number, or a list of them for the datasets of a mixture."""
    if isinstance(value, list | tuple):
        return [whole_number(part, name, most=most) for part in value]
    return whole_number(value, name, most=most)


def _check_version(version: int, cursor: Cursor, shape: dict[str, Any]) -> None:
    """Check the version of a state; ``shape`` has its lanes, window and block."""
    if version != _EARLIER_VERSION:
        _check_equal("format version", version, STATE_VERSION)
    elif cursor.position and (np.any(shape["window"]) or shape["lanes"] > 1):
        raise ResumeError(
            f"the state has format version {version}, this version of wds_tools writes {STATE_VERSION} and orders the "
            f"samples of an epoch differently, so the rest of epoch {cursor.epoch} after position {cursor.position:,} "
            "is not the same: finish the epoch with the version of wds_tools that saved the state, repeat it with "
            f"set_epoch({cursor.epoch}), or load the state with force=True, which repeats some samples in this epoch "
            "and omits others"
        )


def _shown(value: Any) -> Any:
    return "none" if value is None else value


def _check_equal(what: str, in_state: Any, in_loader: Any) -> None:
    if in_state != in_loader:
        raise ResumeError(
            f"the state is for {what} {_shown(in_state)}, the loader has {_shown(in_loader)}: create the loader with "
            "the settings of the state, start an epoch with set_epoch(), or ignore the difference with "
            "load_state_dict(state, force=True)"
        )
