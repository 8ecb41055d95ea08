"""Who takes which samples of the canonical sequence, and where an epoch stands. Arithmetic; no files, no torch.

Global step g takes the next ``world_size * batch_size`` samples of the sequence, and the ranks divide them so that each
keeps its lanes. All ranks take the same number of steps, and the set of samples of a step does not depend on the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.order import Order

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
        positions: int64 [batch], places in the canonical sequence; those beyond its end are padding.
        ids: int64 [batch], sample ids.
        valid: bool [batch], False for padding.
    """

    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The steps of one rank from a cursor to the end of its epoch.

    Global step g takes the ``world_size * batch_size`` samples from ``cursor.position + g * world_size * batch_size``
    on, and each rank its part of them: all ranks take the same number of steps.
    """

    order: Order
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
        while len(ids) < size:  # padding repeats the sequence from its start
            more, its_lanes = self.order.slice(epoch, 0, min(size - len(ids), samples))
            ids, lanes = np.concatenate([ids, more]), np.concatenate([lanes, its_lanes])
        positions = np.arange(start, start + size)
        mine = self._mine(lanes)
        return Step(positions[mine], ids[mine], positions[mine] < samples)

    def _mine(self, lanes: NDArray[np.int16]) -> NDArray[np.int64]:
        """Return which samples of a global step are this rank's: lane by lane, in equal parts."""
        by_lane = np.argsort(lanes, kind="stable")
        first = self.world.rank * self.batch_size
        return np.sort(by_lane[first : first + self.batch_size])

    def cursor_after(self, number: int) -> Cursor:
        """Return where the epoch stands once all ranks have consumed step ``number``."""
        position = self.cursor.position + (number + 1) * self.global_batch
        if number + 1 >= len(self):
            return Cursor(self.cursor.epoch + 1, 0)
        return Cursor(self.cursor.epoch, position)


def state_dict(order: Order, cursor: Cursor) -> dict[str, Any]:
    """Return a state: a few plain values, with no rank and no worker in it."""
    return {
        "version": STATE_VERSION,
        "fingerprint": order.fingerprint,
        "seed": order.seed,
        "epoch": cursor.epoch,
        "position": cursor.position,
        "lanes": order.lanes,
        "window": order.window,
        "block": order.block,
    }


def resume(state: dict[str, Any], order: Order) -> tuple[Order, Cursor]:
    """Return the order and the cursor of a state that belongs to this dataset and seed.

    Window, block and lanes are the state's, whatever the loader's own are, so that the rest of the epoch is what it
    would have been.

    Raises:
        ResumeError: It is no state, or of another version, dataset or seed, with both values named.
    """
    try:
        numbers = {word: int(state[word]) for word in ("epoch", "position", "lanes", "window", "block", "seed")}
        version, fingerprint = state["version"], state["fingerprint"]
    except (KeyError, TypeError, ValueError) as error:
        raise ResumeError(
            f"this is no loader state ({type(error).__name__}: {error}): give what loader.state_dict() returned"
        ) from error
    for what, theirs, ours in (
        ("format version", version, STATE_VERSION),
        ("dataset fingerprint", fingerprint, order.fingerprint),
        ("seed", numbers["seed"], order.seed),
    ):
        if theirs != ours:
            raise ResumeError(
                f"the state is for {what} {theirs}, the loader has {ours}: "
                "make the loader for the dataset and seed of the state, or start an epoch with set_epoch()"
            )
    if not (0 <= numbers["position"] < order.samples and numbers["epoch"] >= 0):
        raise ResumeError(
            f"the state stands at epoch {numbers['epoch']}, position {numbers['position']:,} "
            f"of {order.samples:,} samples: it was damaged"
        )
    if (order.window == 0) != (numbers["window"] == 0):
        raise ResumeError(
            f"the state is for a window of {numbers['window']}, the loader has {order.window} (0 is shuffle=False): "
            "make the loader with the shuffle of the state"
        )
    order = order.like(window=numbers["window"], block=numbers["block"], lanes=numbers["lanes"])
    return order, Cursor(numbers["epoch"], numbers["position"])
