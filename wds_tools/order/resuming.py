"""The state to resume a run from: what it records of orders, and the orders and position that it has. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from wds_tools.errors import OptionError, ResumeError
from wds_tools.order.changes import Change, FindWeights, ReadIds, bans_of, reweights_of
from wds_tools.order.epoch import EpochOrder, RunOrder
from wds_tools.order.identity import Identity
from wds_tools.order.planner import Cursor, EpochOrders, PrefixOrder
from wds_tools.order.saved_state import MAX_EPOCH, plain, whole_number
from wds_tools.order.sequence import MAX_LANES, MAX_WINDOW

STATE_VERSION = 2
_MAX_BLOCK = 1 << 20  # samples; `default_block` gives at most 65,536
_EARLIER_VERSION = 1  # same keys; another order of samples, in which lanes had other blocks in each epoch


def state_dict(order: EpochOrder | RunOrder, cursor: Cursor) -> dict[str, Any]:
    """Return a state that can be saved as JSON. It does not depend on the number of ranks or workers."""
    identity = order.identity
    marks = order.marks(cursor.position) if isinstance(order, EpochOrder) else ()
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
        **({"marks": marks} if marks else {}),
    }


def resume(
    state: dict[str, Any],
    order: RunOrder,
    *,
    prefix: PrefixOrder | None = None,
    force: bool = False,
    find_weights: FindWeights | None = None,
    read_ids: ReadIds | None = None,
    packed: RunOrder | None = None,
    has_partners: bool = False,
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
        read_ids: Returns the ids of bans that are in files; None refuses a state with such files.
        packed: The order in which the dataset was packed, which the first epoch of a run has that began then; None
            refuses a state of such a run.
        has_partners: Whether images show samples from before the cursor, see `partners_of`.
    """
    saved = _read(state, order.identity.shape)
    cursor, saved_order = saved.cursor, _order_of_smaller(saved, order, prefix) or order
    earlier = _first_epoch(state, packed, force=force)
    is_first = cursor.epoch in earlier
    if is_first:
        saved_order = earlier[cursor.epoch]
    if not force:
        _check_same_run(saved, saved_order.identity, saved_order.identity if is_first else order.identity)
    has_grown = saved_order is not order and cursor.position
    try:
        earlier |= {cursor.epoch: saved_order.like(**saved.shape)} if has_grown else {}
        first_epoch = whole_number(state.get("first_epoch", 0), "first_epoch", most=cursor.epoch)
        changes = _changes_of(state, order, saved, find_weights, read_ids)
        later = order if is_first else order.like(**saved.shape)
        orders = EpochOrders(later, earlier, changes, find_weights, first_epoch)
        _check_weights(orders, cursor, has_partners=has_partners)
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
    if cursor.position >= samples + interrupted.is_weighted:  # in buckets, a change of weights may end an epoch
        raise ResumeError(
            f"the state is at epoch {cursor.epoch}, position {cursor.position:,} of {samples:,} samples: "
            f"it {'does not fit this dataset' if force else 'was damaged'}"
        )
    return orders, cursor


def _first_epoch(state: dict[str, Any], packed: RunOrder | None, *, force: bool) -> dict[int, RunOrder]:
    """Return the order of the first epoch, by its number, if the run began while its dataset was packed."""
    plan = state.get("plan")
    if packed is None and plan is not None and not force:
        raise ResumeError(
            "the state is of a run that began while its dataset was packed: resume with that dataset alone, without "
            "where=, subset=, class_weights= and Buckets"
        )
    if packed is None or plan is None or (force and plan != packed.identity.fingerprint):
        return {}
    _check_equal("plan of the packer", plan, packed.identity.fingerprint)
    return {0: packed}


def _changes_of(
    state: dict[str, Any],
    order: RunOrder,
    saved: _Saved,
    find_weights: FindWeights | None,
    read_ids: ReadIds | None,
) -> list[Change]:
    """Return the bans and changes of weights of a state, in the order in which they were made."""
    changes: list[Change] = list(bans_of(state.get("bans", ()), order.identity.stored, read_ids))
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


def _check_weights(orders: EpochOrders, cursor: Cursor, *, has_partners: bool) -> None:
    """Check that the weights that a run from a cursor on needs fit the dataset. Files of others may be gone."""
    for change in reversed(orders.needed(cursor, has_partners=has_partners)):  # the first one stays in memory
        try:
            orders.check(change)
        except OptionError as error:
            raise ResumeError(f"the weights of the state do not fit this dataset: {error}") from error


@dataclass(frozen=True, slots=True)
class _Saved:
    """The entries of a loader state, with values of the right types.

    Attributes:
        shape: Window, block and lanes, and the group and the step if the order has them, as `RunOrder.like` takes them.
    """

    version: int
    fingerprint: Any
    shards: int
    seed: int
    selection: Any
    buckets: Any
    cursor: Cursor
    shape: dict[str, Any]


def _read(state: dict[str, Any], entries: Collection[str]) -> _Saved:
    """Read a loader state, except its bans; ``entries`` are those of the shape that the loader has."""
    try:
        shards, seed = (whole_number(state[key], key) for key in ("shards", "seed"))
        limits = (("lanes", MAX_LANES), ("window", MAX_WINDOW), ("block", _MAX_BLOCK))
        shape: dict[str, Any] = {key: _whole_numbers(state[key], key, most) for key, most in limits}
        for name in {"group", "epoch_step"}.intersection(entries, state):
            shape[name] = whole_number(state[name], name, least=1, most=MAX_WINDOW)
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
            f"the state has format version {version}; this wds_tools writes {STATE_VERSION} and orders the samples of "
            f"an epoch differently after position {cursor.position:,} of epoch {cursor.epoch}: finish the epoch with "
            f"the wds_tools that saved the state, repeat it with set_epoch({cursor.epoch}), or load the state with "
            "force=True, which repeats some samples in this epoch and omits others"
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
