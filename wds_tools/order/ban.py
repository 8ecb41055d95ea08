"""Samples that are left out of the order from a position on: ``ban=``. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.saved_state import MAX_EPOCH, entries_of, whole_number
from wds_tools.order.selection import Selection
from wds_tools.order.sequence import Order
from wds_tools.order.tally import Tally, tally

_KEPT_SEGMENTS = 2


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


class BannedOrder:
    """The order of one epoch without some samples. The planner uses it like an `Order`.

    The other samples keep their order. A segment of the order is computed only when positions in it are needed. The
    numbers of banned samples in the segments before it are known without that, from the blocks of these samples.

    Args:
        base: The order from which samples are left out. It may itself be a `BannedOrder`.
        epoch: The epoch. No other one is computed.
        position: The samples are left out from this position on.
        ids: Their ids.

    Raises:
        OptionError: No sample is left.
    """

    def __init__(self, base: Order | MixtureOrder | BannedOrder, epoch: int, position: int, ids: Sequence[int]) -> None:
        self.base = base
        self._epoch = epoch
        self._position = position
        self._banned = np.array(sorted(ids), np.int64)
        found, segments = base.find(epoch, self._banned)
        starts = base.segment_starts
        # Only the segment of the position has to be computed here, and none if it is 0.
        number = int(np.searchsorted(starts, position, side="right")) - 1 if position else -1
        end = int(starts[min(number + 1, len(starts) - 1)])
        rest = base.ids(epoch, position, end) if position else np.empty(0, np.int64)
        is_later = segments > number
        self._removed = np.concatenate([found[is_later], rest[np.isin(rest, self._banned)]])
        counts = np.bincount(segments[is_later], minlength=len(starts))[: len(starts) - 1]
        counts[number : number + 1] += len(self._removed) - int(is_later.sum())
        self.segment_starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(np.diff(starts) - counts)])
        self.samples = int(self.segment_starts[-1])
        if not self.samples:
            raise OptionError(f"ban= leaves no sample: it has all {base.samples:,} samples of the epoch; ban fewer")
        self.fingerprint: str = base.fingerprint
        self.seed: int = base.seed
        self.selection: Selection | None = base.selection
        self.lanes: int = base.lanes
        self.window: int | list[int] = base.window
        self.block: int | list[int] = base.block
        self.stored: int = base.stored
        self.shards: int = base.shards
        self.once: bool = base.once
        self.shuffles: bool = base.shuffles
        self._segments = LRUCache[int, tuple[NDArray[np.int64], NDArray[np.int16]]](max_items=_KEPT_SEGMENTS)

    def ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``start`` to ``stop`` of the epoch: int64 [stop - start]."""
        return self.slice(epoch, start, stop)[0]

    def slice(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start]."""
        assert epoch == self._epoch
        ids, lanes = [np.empty(0, np.int64)], [np.empty(0, np.int16)]
        number = int(np.searchsorted(self.segment_starts, start, side="right")) - 1
        while start < stop:
            first, last = int(self.segment_starts[number]), int(self.segment_starts[number + 1])
            part = slice(start - first, min(stop, last) - first)
            segment_ids, segment_lanes = self._segment(number)
            ids.append(segment_ids[part])
            lanes.append(segment_lanes[part])
            start += len(ids[-1])
            number += 1
        return np.concatenate(ids), np.concatenate(lanes)

    def find(self, epoch: int, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the id and the segment of each occurrence of samples; none of them is left out by this order."""
        return self.base.find(epoch, ids)

    def tally(self, epoch: int) -> Tally | None:
        """Return the tally of all samples of the epoch, without computing the order; None if the base has none."""
        total = self.base.tally(epoch)
        return total - tally(self._removed) if total else None

    def _segment(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the ids and lanes of a segment."""
        known = self._segments.get(number)
        if known is not None:
            return known
        start, stop = self.base.segment_starts[number : number + 2].tolist()
        ids, lanes = self.base.slice(self._epoch, start, stop)
        keeps = ~np.isin(ids, self._banned) | (np.arange(start, stop) < self._position)
        self._segments.put(number, (ids[keeps], lanes[keeps]))
        return ids[keeps], lanes[keeps]
