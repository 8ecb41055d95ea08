"""The canonical sequence: the order of all samples in an epoch. Arithmetic on counts; no I/O, no torch.

The sequence is a pure function of (fingerprint, selection, seed, epoch, lanes, window, block). It
does not depend on the number of ranks or workers, so a state to resume from is a position in it.

A **block** is a run of consecutive samples of one shard, and the unit of reading. Blocks are dealt at
random to **lanes**, which are independent streams, so that each machine reads only its own blocks. A
block belongs to the same lane in all epochs, so that a machine whose cache holds the blocks of its
lane fetches nothing after the first epoch. Lanes have equal numbers of blocks to within one. Short
blocks, those at the ends of shards, are dealt by length, so that the numbers of samples of any two
lanes differ by at most one block.

In each epoch the blocks of each lane are permuted. Within a lane, samples are then shuffled in a
sliding **window**: the sort key of a sample is the start of its block in the lane plus a random
offset below the window. So blocks are read at a constant rate, and the first batch needs only the
first blocks. The sequence takes one sample from each lane in turn; at the end of the epoch it skips
lanes that have no more samples.

With a selection, a block is a run of consecutive selected samples. Everything else is the same. If
the selection changes from epoch to epoch (``class_weights=``), so do the samples of its blocks, and
a lane reads other parts of the shards in each epoch.

A long epoch is computed in segments of about a million samples, each shuffled independently, so that
the cost of starting at any position does not grow with the dataset. A segment has the same number
of samples of each lane; a block on its edge is divided.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.epoch import PlainOrder, in_segments
from wds_tools.order.identity import Identity
from wds_tools.order.keyed_random import Streams, hashes, key_of, permute, unpermute
from wds_tools.order.selection import Selection
from wds_tools.order.shares import Part
from wds_tools.order.tally import Tally, tally, tally_of_range
from wds_tools.order.weights import SourcePosition

BLOCK_BYTES = 2 << 20
SEGMENT_SAMPLES = 1 << 20
MAX_WINDOW = 1 << 30  # sort keys are 64-bit integers with 20 fractional bits
MAX_LANES = 4096
_KEPT_SEGMENTS = 2


def default_block(samples: int, total_bytes: int) -> int:
    """Return the number of samples of a block of about 2 MiB.

    >>> default_block(1_281_167, 1_281_167 * 110_000)
    19
    """
    return max(1, min(65_536, round(BLOCK_BYTES * samples / max(1, total_bytes))))


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Values that depend only on the permutations of blocks in an epoch.

    A short block has fewer samples than the others. The short blocks are ordered by lane and row,
    where a row is the index of a block in the permuted order of its lane. A sorted key is the index
    of the lane times a constant plus a row or a sample, so that one search serves all lanes.
    """

    key: int
    short_rows: NDArray[np.int64]  # [short blocks], sorted keys of the rows of the short blocks
    short_ends: NDArray[np.int64]  # [short blocks], sorted keys of the samples of a lane up to the end of each one
    missing_before: NDArray[np.int64]  # [short blocks + 1], samples that all short blocks before each one lack


class Order(PlainOrder):
    """The canonical sequences of a dataset, one per epoch.

    Args:
        fingerprint: Fingerprint of the dataset.
        shard_samples: Number of samples of each shard.
        seed: Seed of the shuffle, 0 to 2**63 - 1.
        window: Shuffle window in samples, over all lanes; 0 keeps the stored order.
        block: Samples per block.
        lanes: Number of independent streams.
        selection: Selected samples, with repetitions; None takes each sample once.

    Raises:
        OptionError: A number is out of range.
    """

    def __init__(
        self,
        *,
        fingerprint: str,
        shard_samples: Sequence[int] | NDArray[np.int64],
        seed: int,
        window: int,
        block: int,
        lanes: int = 1,
        selection: Selection | None = None,
    ) -> None:
        if not 0 <= window <= MAX_WINDOW or block < 1 or not 1 <= lanes <= MAX_LANES:
            raise OptionError(
                f"window={window}, block={block}, lanes={lanes}: allowed are a window of 0 to {MAX_WINDOW:,}, "
                f"a block of at least 1, and 1 to {MAX_LANES:,} lanes"
            )
        if not 0 <= seed < 2**63:
            raise OptionError(f"seed={seed} is out of range; allowed are 0 to 2**63 - 1")
        self.fingerprint = fingerprint
        self.seed = seed
        self.window = window
        self.block = block
        self.lanes = lanes
        self.selection = selection
        self._shard_samples = np.asarray(shard_samples, np.int64)
        self.identity = Identity(
            fingerprint=fingerprint,
            seed=seed,
            shards=len(shard_samples),
            stored=int(self._shard_samples.sum()),
            selection=selection.digest if selection else None,
            once=selection is None or selection.once,
            lanes=lanes,
            window=window,
            block=block,
        )
        # An item is a sample id, or with a selection an index into its ids. A run is a sequence of
        # consecutive items that is divided into blocks: a shard, or the whole selection.
        counts = np.array([selection.samples]) if selection else self._shard_samples
        self._first_item = np.concatenate([[0], np.cumsum(counts)])  # [runs + 1]
        self.samples = int(self._first_item[-1])
        blocks = -(-counts // block)
        self._first_block = np.concatenate([[0], np.cumsum(blocks)])  # [runs + 1]
        self._blocks = int(self._first_block[-1])
        # Only the last block of a run may have fewer samples than `block`.
        missing = blocks * block - counts
        self._short_blocks = (self._first_block[1:] - 1)[missing > 0]
        self._missing = missing[missing > 0]
        self._deal_key = key_of("deal", fingerprint, seed)
        self._deal_blocks()
        self.segment_starts = self._find_segment_starts()
        self.balance = selection.balance if selection else None
        self.varies = self.balance is not None
        if selection is None:
            self.reach = window + 2 * min(block, int(counts.max(initial=0))) * lanes
        self._full_tally: Tally | None = None
        self._epochs = LRUCache[int, _Epoch](max_items=_KEPT_SEGMENTS)
        self._segments = LRUCache[tuple[int, int], Part](max_items=_KEPT_SEGMENTS)

    def _deal_blocks(self) -> None:
        """Compute the values that depend only on the fixed assignment of blocks to lanes.

        Each block has a slot, the slot modulo the lanes is its lane, and the quotient its row in that
        lane before the permutation. In the stored order the slot is the index of the block.
        Otherwise the short blocks have the first slots, from the shortest to the longest one, so that
        all lanes lack about the same number of samples. The other blocks have the slots after them,
        at random.
        """
        self._short_order = np.arange(len(self._short_blocks))
        if self.window:  # blocks of equal length are dealt at random
            self._short_order = np.lexsort((hashes(self._deal_key, self._short_blocks), -self._missing))
        slots = np.arange(len(self._short_blocks)) if self.window else self._short_blocks
        self._short_lanes, self._short_rows = slots % self.lanes, slots // self.lanes
        # [lanes]: blocks, samples, and short blocks of all lanes before each one
        lanes = np.arange(self.lanes)
        self._lane_blocks = (self._blocks - lanes + self.lanes - 1) // self.lanes
        lane_missing = np.zeros(self.lanes, np.int64)
        np.add.at(lane_missing, self._short_lanes, self._missing[self._short_order])
        self._lane_samples = self._lane_blocks * self.block - lane_missing
        lane_shorts = np.bincount(self._short_lanes, minlength=self.lanes)
        self._shorts_before = np.cumsum(lane_shorts) - lane_shorts
        # Constants of the sorted keys of an epoch: above all rows and all samples of a lane.
        self._max_rows = int(self._lane_blocks[0])
        self._row_span, self._sample_span = self._max_rows + 1, int(self._lane_samples.max()) + 1
        # Samples of a lane in a segment. Segments end at the same sample of each lane.
        self._segment_turns = max(self.block, SEGMENT_SAMPLES // self.lanes)

    def _find_segment_starts(self) -> NDArray[np.int64]:
        segments = -(-int(self._lane_samples.max()) // self._segment_turns)
        edges = np.arange(segments + 1) * self._segment_turns  # samples of each lane
        by_length = np.sort(self._lane_samples)
        ended = np.searchsorted(by_length, edges, side="right")  # lanes that have no samples after the edge
        samples_of_ended = np.concatenate([[0], np.cumsum(by_length)])[ended]
        starts: NDArray[np.int64] = samples_of_ended + (self.lanes - ended) * edges
        return starts

    def like(self, *, window: int, block: int, lanes: int) -> Order:
        """Return the order of the same dataset and seed with another window, block and number of lanes."""
        return self._with(window=window, block=block, lanes=lanes, selection=self.selection)

    def selecting(self, selection: Selection) -> Order:
        """Return the order of another selection of the same dataset."""
        return self._with(window=self.window, block=self.block, lanes=self.lanes, selection=selection)

    def _with(self, *, window: int, block: int, lanes: int, selection: Selection | None) -> Order:
        return Order(
            fingerprint=self.fingerprint,
            shard_samples=self._shard_samples,
            seed=self.seed,
            window=window,
            block=block,
            lanes=lanes,
            selection=selection,
        )

    def slice(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start]."""
        items, lanes = self._slice_items(epoch, start, stop)
        return (self.selection.at(epoch, items) if self.selection else items), lanes

    def _slice_items(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the items and lanes at positions ``start`` to ``stop`` of an epoch."""
        if self.window == 0 and self.lanes == 1:
            return np.arange(start, stop, dtype=np.int64), np.zeros(stop - start, np.int16)
        return in_segments(self.segment_starts, partial(self._segment, epoch), start, stop)

    @property
    def parts(self) -> tuple[Order, ...]:
        """This order."""
        return (self,)

    @cached_property
    def scans(self) -> tuple[Order, ...]:
        """The orders that weights go through: without repetitions by ``class_weights=``."""
        if self.selection is None or self.balance is None:
            return (self,)
        return (self.selecting(self.selection.without_balance),)

    def source_positions(self, epoch: int, position: int) -> tuple[SourcePosition, ...]:
        """Return the epoch and the position at which `scans` continue. There is no lag."""
        return ((epoch, position * self.scans[0].samples // self.samples, 0),)

    @property
    def shares(self) -> tuple[int, ...]:
        """The share of the dataset."""
        return (1,)

    @property
    def first_ids(self) -> Sequence[int]:
        """Id of the first sample, and the number of samples."""
        return (0, self.identity.stored)

    def find(self, epoch: int, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where some samples occur in an epoch, without computing the order; see `PlainOrder.find`."""
        if self.selection:
            items, ids = self.selection.find(epoch, ids)
        else:
            items = ids = ids[ids < self.samples]
        _, samples = self._indices_in_lanes(epoch, items)
        return ids, samples // self._segment_turns

    def _indices_in_lanes(
        self, epoch_number: int, items: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lane of each item, and its index in that lane before the shuffle in the window: int64 each."""
        epoch = self._epoch(epoch_number)
        runs = np.searchsorted(self._first_item, items, side="right") - 1
        within = items - self._first_item[runs]
        slots = self._slots_of(self._first_block[runs] + within // self.block)
        lanes, rows = slots % self.lanes, slots // self.lanes
        if self.window:
            rows = unpermute(epoch.key, self._max_rows, rows, Streams(lanes, self._lane_blocks[lanes]))
        return lanes, self._samples_before(epoch, lanes, rows) + within % self.block

    def _slots_of(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of each block: the inverse of the assignment in `_deal_blocks`."""
        if not self.window:
            return blocks
        shorts = len(self._short_blocks)
        before = np.searchsorted(self._short_blocks, blocks, side="left")
        is_short = np.isin(blocks, self._short_blocks)
        slots = np.empty_like(blocks)
        slots[is_short] = np.argsort(self._short_order, kind="stable")[before[is_short]]
        full = (blocks - before)[~is_short]
        slots[~is_short] = unpermute(self._deal_key, max(1, self._blocks - shorts), full) + shorts
        return slots

    def tally(self, epoch: int) -> Tally | None:
        """Return the tally of all samples of an epoch, without computing the order."""
        if self.selection:
            return sum(map(tally, self.selection.parts(epoch)), start=Tally())
        if self._full_tally is None:
            self._full_tally = tally_of_range(self.samples)
        return self._full_tally

    def block_of(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return shard number and block number of each id: int64 [n] each, counted over the whole dataset."""
        counts = self._shard_samples
        first_id = np.concatenate([[0], np.cumsum(counts)])
        first_block = np.concatenate([[0], np.cumsum(-(-counts // self.block))])
        shards = np.searchsorted(first_id, ids, side="right") - 1
        return shards, first_block[shards] + (ids - first_id[shards]) // self.block

    def stored_ids(self, epoch: int) -> NDArray[np.int64]:
        """Return the ids of all samples of an epoch in stored order: int64 [samples]."""
        return self.selection.ids(epoch) if self.selection else np.arange(self.samples)

    def _epoch(self, epoch: int) -> _Epoch:
        cached = self._epochs.get(epoch)
        if cached is not None:
            return cached
        key = key_of("order", self.fingerprint, self.seed, epoch)
        lanes, rows = self._short_lanes, self._short_rows
        if self.window:
            rows = unpermute(key, self._max_rows, rows, Streams(lanes, self._lane_blocks[lanes]))
        by_row = np.lexsort((rows, lanes))
        lanes, rows, missing = lanes[by_row], rows[by_row], self._missing[self._short_order][by_row]
        missing_before = np.concatenate([[0], np.cumsum(missing)])
        missing_in_lane = missing_before[1:] - missing_before[self._shorts_before[lanes]]
        ends = (rows + 1) * self.block - missing_in_lane
        result = _Epoch(
            key=key,
            short_rows=lanes * self._row_span + rows,
            short_ends=lanes * self._sample_span + ends,
            missing_before=missing_before,
        )
        self._epochs.put(epoch, result)
        return result

    def _blocks_at(self, key: int, lanes: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block in each row of a lane in an epoch."""
        if not self.window:
            return rows * self.lanes + lanes
        slots = permute(key, self._max_rows, rows, Streams(lanes, self._lane_blocks[lanes])) * self.lanes + lanes
        shorts = len(self._short_blocks)
        is_full = slots >= shorts
        # Index of the block among those that are not short; the short blocks before it are added to it.
        full = permute(self._deal_key, max(1, self._blocks - shorts), slots[is_full] - shorts)
        blocks = np.empty_like(slots)
        blocks[is_full] = full + np.searchsorted(self._short_blocks - np.arange(shorts), full, side="right")
        blocks[~is_full] = self._short_blocks[self._short_order[slots[~is_full]]]
        return blocks

    def _samples_before(self, epoch: _Epoch, lanes: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of samples of a lane before each row."""
        shorts = np.searchsorted(epoch.short_rows, lanes * self._row_span + rows, side="left")
        missing = epoch.missing_before[shorts] - epoch.missing_before[self._shorts_before[lanes]]
        before: NDArray[np.int64] = rows * self.block - missing
        return before

    def _rows_of(self, epoch: _Epoch, lanes: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the block that contains a sample of a lane; samples count from 0 in each lane."""
        shorts = np.searchsorted(epoch.short_ends, lanes * self._sample_span + samples, side="right")
        missing = epoch.missing_before[shorts] - epoch.missing_before[self._shorts_before[lanes]]
        rows: NDArray[np.int64] = (samples + missing) // self.block
        return rows

    def _segment(self, epoch_number: int, index: int) -> Part:
        """Return a segment of an epoch."""
        cached = self._segments.get((epoch_number, index))
        if cached is not None:
            return cached
        epoch = self._epoch(epoch_number)
        first = index * self._segment_turns  # sample of each lane
        active = np.flatnonzero(self._lane_samples > first)  # lanes with samples in the segment
        last = np.minimum(self._lane_samples[active], first + self._segment_turns) - 1
        first_rows = self._rows_of(epoch, active, np.full(len(active), first))
        row_counts = self._rows_of(epoch, active, last) + 1 - first_rows
        lanes = np.repeat(active, row_counts)  # [blocks of the segment]
        rows = np.repeat(first_rows, row_counts) + _count_within(row_counts)
        starts, ends = self._samples_before(epoch, lanes, rows), self._samples_before(epoch, lanes, rows + 1)
        cut_starts = np.maximum(starts, first)  # blocks on the edges are divided
        counts = np.minimum(ends, np.repeat(last, row_counts) + 1) - cut_starts
        blocks = self._blocks_at(epoch.key, lanes, rows)
        runs = np.searchsorted(self._first_block, blocks, side="right") - 1
        first_items = self._first_item[runs] + (blocks - self._first_block[runs]) * self.block + cut_starts - starts
        items = np.repeat(first_items, counts) + _count_within(counts)
        keys = np.repeat((cut_starts - first) << 20, counts) + self._offsets(epoch.key, items)
        result = _interleave(items, keys, np.repeat(lanes.astype(np.int16), counts), self.lanes)
        self._segments.put((epoch_number, index), result)
        return result

    def _offsets(self, key: int, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a random offset per item, below the window of a lane, in units of 2**-20 samples."""
        window = np.uint64(max(1, self.window // self.lanes) if self.window else 0)
        return (((hashes(key, items) >> np.uint64(32)) * window) >> np.uint64(12)).astype(np.int64)


def _count_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count from 0 within each block: [2, 3] gives 0 1 0 1 2."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _interleave(items: NDArray[np.int64], keys: NDArray[np.int64], lanes: NDArray[np.int16], count: int) -> Part:
    """Sort each of ``count`` lanes by keys, then take one item from each lane in turn; skip empty lanes.

    ``lanes`` ascends.
    """
    if count == 1:
        return items[np.argsort(keys, kind="stable")], lanes
    counts = np.bincount(lanes, minlength=count)
    edges = np.concatenate([[0], np.cumsum(counts)]).tolist()
    by_lane = np.concatenate(
        [start + np.argsort(keys[start:stop], kind="stable") for start, stop in itertools.pairwise(edges)]
    )
    if (counts == counts[0]).all():
        in_turn = by_lane.reshape(count, -1).T.ravel()
    else:
        in_turn = by_lane[np.lexsort((lanes, _count_within(counts)))]
    return items[in_turn], lanes[in_turn]
