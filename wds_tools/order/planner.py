"""Who takes which samples of the canonical sequence, and where an epoch stands. Arithmetic; no files, no torch.

Global step g takes the next ``world_size * batch_size`` samples of the sequence, and the ranks divide them so that each
keeps its lanes. All ranks take the same number of steps, and the set of samples of a step does not depend on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.sequence import Order
from wds_tools.order.tally import Tally, tally

AnyOrder = Order | MixtureOrder
Tail = Literal["drop", "pad", "mask"]

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class World:
    """Which data-parallel rank of how many this process is."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise OptionError(
                f"rank={self.rank} of world_size={self.world_size}: "
                "allowed are world_size of 1 and more, and ranks from 0 to world_size - 1"
            )


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where reading stands: the first ``position`` samples of ``epoch`` have been consumed."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of one global step.

    Attributes:
        number: Of the step, counted from where its plan starts.
        positions: int64 [batch], places in the canonical sequence; those beyond its end are padding.
        ids: int64 [batch], sample ids.
        valid: bool [batch], False for padding.
        whole: Tally of the samples of the step over all ranks, padding left out.
    """

    number: int
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    whole: Tally


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The steps of one rank from a cursor to the end of its epoch.

    Global step g takes the ``world_size * batch_size`` samples from ``cursor.position + g * world_size * batch_size``
    on, and each rank its part of them: all ranks take the same number of steps.
    """

    order: AnyOrder
    cursor: Cursor
    world: World
    batch_size: int
    tail: Tail

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world.world_size

    def __len__(self) -> int:
        left = self.order.samples - self.cursor.position
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def step(self, number: int) -> Step:
        """Return step ``number`` of this rank."""
        epoch, samples, size = self.cursor.epoch, self.order.samples, self.global_batch
        start = self.cursor.position + number * size
        ids, lanes = self.order.slice(epoch, start, min(start + size, samples))
        whole = tally(ids)
        while len(ids) < size:  # padding repeats the sequence from its start
            more, its_lanes = self.order.slice(epoch, 0, min(size - len(ids), samples))
            ids, lanes = np.concatenate([ids, more]), np.concatenate([lanes, its_lanes])
        positions = np.arange(start, start + size)
        mine = self._mine(lanes)
        return Step(number, positions[mine], ids[mine], positions[mine] < samples, whole)

    def _mine(self, lanes: NDArray[np.int16]) -> NDArray[np.int64]:
        """Return which samples of a global step are this rank's: lane by lane, in equal parts."""
        by_lane = np.argsort(lanes, kind="stable")
        first = self.world.rank * self.batch_size
        return np.sort(by_lane[first : first + self.batch_size])

    def expected(self) -> Tally | None:
        """Return what all ranks together deliver from the start of the epoch on, from the counts of the dataset alone.

        None where the plan starts later, or the order cannot tell: then the steps' own tallies have to do.
        """
        if self.cursor.position:
            return None
        whole = self.order.tally(self.cursor.epoch)
        end = min(len(self) * self.global_batch, self.order.samples)
        return whole - tally(self.order.ids(self.cursor.epoch, end, self.order.samples)) if whole else None

    def cursor_after(self, number: int) -> Cursor:
        """Return where the epoch stands once all ranks have consumed step ``number``."""
        position = self.cursor.position + (number + 1) * self.global_batch
        if number + 1 >= len(self):
            return Cursor(self.cursor.epoch + 1, 0)
        return Cursor(self.cursor.epoch, position)


@dataclass(frozen=True, slots=True)
class Course:
    """The orders of a run: that of a dataset as it was, until the epoch in which it was left is over, then as it is.

    Attributes:
        order: Of all epochs but one.
        earlier: (epoch, order) of the epoch that was left before the dataset grew.
    """

    order: AnyOrder
    earlier: tuple[int, AnyOrder] | None = None

    def of(self, epoch: int) -> AnyOrder:
        """Return the order of an epoch."""
        return self.earlier[1] if self.earlier and self.earlier[0] == epoch else self.order


def state_dict(order: AnyOrder, cursor: Cursor) -> dict[str, Any]:
    """Return a state: a few plain values, with no rank and no worker in it."""
    return {
        "version": STATE_VERSION,
        "fingerprint": order.fingerprint,
        "shards": order.shards,
        "selection": order.selection.digest if order.selection else None,
        "seed": order.seed,
        "epoch": cursor.epoch,
        "position": cursor.position,
        "lanes": order.lanes,
        "window": order.window,
        "block": order.block,
    }


def resume(
    state: dict[str, Any],
    order: AnyOrder,
    *,
    prefix: Callable[[int], AnyOrder] | None = None,
    force: bool = False,
) -> tuple[Course, Cursor]:
    """Return the orders and the cursor of a state that belongs to this dataset and seed.

    Window, block and lanes are the state's, whatever the loader's own are, so that the rest of the epoch is what it
    would have been.

    Args:
        state: What `state_dict` returned.
        order: The loader's own.
        prefix: Returns the order of the first shards of the dataset alone: by it a dataset that only grew is
            recognised. The epoch that the state stands in ends without the new samples.
        force: Take over epoch and position even of another dataset, selection, seed or version.

    Raises:
        ResumeError: It is no state, or of another version, dataset, selection or seed, with both values named.
    """
    try:
        numbers = {word: int(state[word]) for word in ("epoch", "position", "shards", "seed")}
        shape: dict[str, Any] = {word: _whole(state[word]) for word in ("lanes", "window", "block")}
        cursor = Cursor(numbers["epoch"], numbers["position"])
        version, fingerprint, selection = state["version"], state["fingerprint"], state["selection"]
    except (KeyError, TypeError, ValueError) as error:
        raise ResumeError(
            f"this is no loader state ({type(error).__name__}: {error}): give what loader.state_dict() returned"
        ) from error
    then: AnyOrder = order
    if fingerprint != order.fingerprint and prefix and 0 < numbers["shards"] < order.shards:
        then = prefix(numbers["shards"])
        then = then if then.fingerprint == fingerprint else order
    if not force:
        _refuse("format version", version, STATE_VERSION)
        _refuse("dataset fingerprint", fingerprint, then.fingerprint)
        _refuse("selection", selection, then.selection.digest if then.selection else None)
        _refuse("seed", numbers["seed"], order.seed)
        if order.shuffles != bool(np.any(shape["window"])):
            raise ResumeError(
                f"the state is for a window of {shape['window']}, the loader has {order.window} (0 is shuffle=False): "
                "make the loader with the shuffle of the state, or load it with force=True"
            )
    if not (0 <= cursor.position < then.samples and cursor.epoch >= 0):
        raise ResumeError(
            f"the state stands at epoch {cursor.epoch}, position {cursor.position:,} of {then.samples:,} samples: "
            f"it {'does not fit this dataset' if force else 'was damaged'}"
        )
    grown = then is not order and cursor.position
    try:
        return Course(order.like(**shape), (cursor.epoch, then.like(**shape)) if grown else None), cursor
    except (TypeError, ValueError) as error:
        raise ResumeError(f"the state's window, block and lanes do not fit this dataset: {error}") from error


def _whole(value: Any) -> int | list[int]:
    return [int(part) for part in value] if isinstance(value, list) else int(value)


def _refuse(what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise ResumeError(
            f"the state is for {what} {theirs}, the loader has {ours}: make the loader for what the state is of, "
            "start an epoch with set_epoch(), or go on regardless with load_state_dict(state, force=True)"
        )
