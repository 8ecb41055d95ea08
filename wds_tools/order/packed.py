"""The first epoch of a dataset that is packed meanwhile: the stored order, known before anything is packed. No I/O.

The packer has shuffled the inputs before it reads any of them, so the stored order is a shuffle. Position p of the
epoch is input p of the plan. An input that proved unreadable leaves a gap, and a sample before it fills the gap. Such
rows are not valid: they repeat a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import LoaderError
from wds_tools.order.epoch import EpochOrder, PlainOrder
from wds_tools.order.identity import Identity
from wds_tools.order.keyed_random import hashes, key_of
from wds_tools.order.selection import Balance
from wds_tools.order.shares import Ints, Part
from wds_tools.order.tally import Tally
from wds_tools.order.weights import Scan, SourcePosition

Packed = Callable[[], tuple[int, Ints]]
"""Returns how many inputs have been packed, counted from the first one without a break, and the gaps among them."""


class PackedOrder(PlainOrder):
    """The stored order of a dataset, by the positions of its plan."""

    balance: Balance | None = None
    varies = False

    def __init__(self, plan: str, *, samples: int, seed: int, packed: Packed) -> None:
        self.identity = Identity(
            fingerprint=plan,
            seed=seed,
            shards=samples,  # of the plan there may be fewer; so no state of it is one of a dataset that has grown
            stored=samples,
            selection=None,
            once=True,
            lanes=1,
            window=0,
            block=1,
        )
        self.samples = samples
        self.segment_starts = np.array([0, samples])
        self._packed = packed

    def like(self, **_: object) -> PackedOrder:
        """Return this order: the stored order has no window, blocks and lanes."""
        return self

    def whole(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return PackedEpoch(self, epoch)

    @property
    def parts(self) -> Sequence[PackedOrder]:
        """This order."""
        return (self,)

    @property
    def scans(self) -> Sequence[Scan]:
        """None: weights hold from the next epoch on."""
        return ()

    def source_positions(self, epoch: int, position: int) -> tuple[SourcePosition, ...]:  # noqa: ARG002 - of the protocol
        """Return nothing, as there are no scans."""
        return ()

    @property
    def shares(self) -> tuple[int, ...]:
        """The share of the dataset."""
        return (1,)

    @property
    def first_ids(self) -> Sequence[int]:
        """Id of the first sample, and the number of inputs."""
        return (0, self.samples)

    def is_packed(self, stop: int) -> bool:
        """Return whether the rows before ``stop`` are known."""
        done, gaps = self._packed()
        return done >= stop and done > len(gaps)

    def is_gap(self, rows: Ints) -> NDArray[np.bool_]:
        """Return which rows have an input that could not be packed: bool [n]."""
        return np.isin(rows, self._packed()[1])

    def slice(self, epoch: int, start: int, stop: int) -> Part:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start]."""
        done, gaps = self._packed()
        if stop > start and (done < stop or done <= len(gaps)):
            raise LoaderError(
                f"the samples at positions {start:,} to {stop:,} of epoch {epoch} are not packed yet: {done:,} of "
                f"{self.samples:,} are; try again later, or iterate over the loader, which waits for them"
            )
        rows = np.arange(start, stop)
        ids = rows - np.searchsorted(gaps, rows)
        filled = np.isin(rows, gaps)
        if filled.any():  # by one of the samples before, which are packed; by the first one if there are none
            numbers = hashes(key_of("gap", self.identity.seed, epoch), rows[filled])
            ids[filled] = (numbers % np.maximum(ids[filled], 1).astype(np.uint64)).astype(np.int64)
        return ids, np.zeros(len(rows), np.int16)

    def find(self, epoch: int, ids: Ints) -> tuple[Ints, Ints]:
        """Return the id and the index of the segment of each occurrence of samples: there is only one segment."""
        order = self.ids(epoch, 0, self.samples)
        order = order[np.isin(order, ids)]
        return order, np.zeros(len(order), np.int64)

    def tally(self, epoch: int) -> Tally | None:  # noqa: ARG002 - of the protocol
        """Return None: the gaps are known only after packing."""
        return None


class PackedEpoch(EpochOrder):
    """An epoch in the order of a plan."""

    run: PackedOrder

    def valid(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which rows from ``start`` to ``stop`` do not fill a gap: bool [stop - start]."""
        return ~self.run.is_gap(np.arange(start, stop))

    def is_packed(self, stop: int) -> bool:
        """Return whether the rows before ``stop`` are known."""
        return self.run.is_packed(stop)

    def gaps(self, rows: Ints) -> Ints:
        """Return those of some rows whose input could not be packed."""
        return rows[self.run.is_gap(rows)]

    def stored_ids(self) -> Ints:
        """Return the ids of all rows in stored order: int64 [samples]."""
        return np.sort(self.ids(0, self.samples))

    def substitute(self, position: int, attempt: int) -> int:
        """Return a sample that can take the place of the one in a row: one before it, as the rest may not be packed."""
        row = attempt % max(1, min(position, self.samples))
        return int(self.ids(row, row + 1)[0])
