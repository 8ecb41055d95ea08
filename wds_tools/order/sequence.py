"""The canonical sequence: the order of all samples in an epoch. Arithmetic on counts; no I/O, no torch.

The sequence is a pure function of (fingerprint, selection, seed, epoch, lanes, window, block). It
does not depend on the number of ranks or workers, so a state to resume from is a position in it.

A **block** is a run of consecutive samples of one shard, and the unit of reading. Blocks are
permuted and dealt to **lanes**, which are independent streams, so that each machine reads only its
own blocks. Within a lane, samples are shuffled in a sliding **window**: the sort key of a sample is
the start of its block in the lane plus a random offset below the window. So blocks are read at a
constant rate, and the first batch needs only the first blocks. The sequence takes one sample from
each lane in turn.

With a selection, a block is a run of consecutive selected samples. Everything else is the same.

A long epoch is computed in segments of about a million samples, each ordered independently, so that
the cost of starting at any position does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.keyed_random import hashes, key_of, permute, unpermute
from wds_tools.order.selection import Selection
from wds_tools.order.tally import Tally, tally, tally_of_range

BLOCK_BYTES = 2 << 20
SEGMENT_SAMPLES = 1 << 20
MAX_WINDOW = 1 << 30  # sort keys are 64-bit integers with 20 fractional bits
MAX_LANES = 4096
_KEPT_SEGMENTS = 2


def default_block(samples: int, total_bytes: int) -> int:
    """Return the number of samples of a block of about 2 MiB.

    Args:
        samples: Number of samples of the dataset.
        total_bytes: Length of all shards in bytes.

    >>> default_block(1_281_167, 1_281_167 * 110_000)
    19
    """
    return max(1, min(65_536, round(BLOCK_BYTES * samples / max(1, total_bytes))))


@dataclass(slots=True)
class _Epoch:
    """Values that depend only on the permutation of blocks in an epoch.

    A short block has fewer samples than the others. A block position is the index of a block in the
    permuted order.
    """

    key: int
    short_positions: NDArray[np.int64]  # [short blocks], block positions of the short blocks, ascending
    missing_before: NDArray[np.int64]  # [short blocks + 1], samples that the short blocks before each one lack
    segment_starts: NDArray[np.int64]  # [segments + 1], sample positions


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of an epoch, in its final order."""

    items: NDArray[np.int64]  # [samples]
    lanes: NDArray[np.int16]  # [samples]


class Order:
    """The canonical sequences of a dataset, one per epoch.

    Args:
        fingerprint: Fingerprint of the dataset.
        shard_samples: Number of samples of each shard.
        seed: Seed of the shuffle, 0 to 2**63 - 1.
        window: Shuffle window in samples, over all lanes; 0 keeps the stored order.
        block: Samples per block.
        lanes: Number of independent streams.
        selection: Selected samples, with repetitions; None takes each sample once.

    Attributes:
        samples: Number of positions in an epoch.
        shards: Number of shards.

    Raises:
        OptionError: A number is out of range.
    """

    def __init__(
        self,
        *,
        fingerprint: str,
        shard_samples: Sequence[int],
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
        self._shard_samples = shard_samples
        self.shards = len(shard_samples)
        self.stored = int(np.sum(shard_samples, dtype=np.int64))
        """Number of samples of the dataset, selected or not; all ids are smaller."""
        # An item is a sample id, or with a selection an index into its ids. A run is a sequence of
        # consecutive items that is divided into blocks: a shard, or the whole selection.
        counts = np.asarray([selection.samples] if selection else shard_samples, np.int64)
        self._first_item = np.concatenate([[0], np.cumsum(counts)])  # [runs + 1]
        self.samples = int(self._first_item[-1])
        blocks = -(-counts // block)
        self._first_block = np.concatenate([[0], np.cumsum(blocks)])  # [runs + 1]
        self._blocks = int(self._first_block[-1])
        # Only the last block of a run may have fewer samples than `block`.
        missing = blocks * block - counts
        self._short_blocks = (self._first_block[1:] - 1)[missing > 0]
        self._missing = missing[missing > 0]
        # A multiple of the lanes, so that each segment can be dealt to the lanes independently.
        self._segment_blocks = max(1, SEGMENT_SAMPLES // block // lanes) * lanes
        self._full_tally: Tally | None = None
        self._selected_ids: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))  # (epoch, ids)
        self._epochs = LRUCache[int, _Epoch](max_items=_KEPT_SEGMENTS)
        self._segments = LRUCache[tuple[int, int], _Segment](max_items=_KEPT_SEGMENTS)

    @property
    def once(self) -> bool:
        """Whether no sample repeats within an epoch."""
        return self.selection is None or self.selection.once

    @property
    def shuffles(self) -> bool:
        """Whether the order is not the stored one."""
        return self.window > 0

    def like(self, *, window: int, block: int, lanes: int) -> Order:
        """Return the order of the same dataset and seed with another window, block and number of lanes."""
        return Order(
            fingerprint=self.fingerprint,
            shard_samples=self._shard_samples,
            seed=self.seed,
            window=window,
            block=block,
            lanes=lanes,
            selection=self.selection,
        )

    def ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``start`` to ``stop`` of an epoch: int64 [stop - start]."""
        return self.slice(epoch, start, stop)[0]

    def slice(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start]."""
        items, lanes = self._slice_items(epoch, start, stop)
        return (self._ids_of_selection(epoch)[items] if self.selection else items), lanes

    def _slice_items(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the items and lanes at positions ``start`` to ``stop`` of an epoch."""
        if self.window == 0 and self.lanes == 1:
            return np.arange(start, stop, dtype=np.int64), np.zeros(stop - start, np.int16)
        bounds = self._epoch(epoch).segment_starts
        items, lanes = [np.empty(0, np.int64)], [np.empty(0, np.int16)]
        number = int(np.searchsorted(bounds, start, side="right")) - 1
        while start < stop:
            first, last = int(bounds[number]), int(bounds[number + 1])
            segment, part = self._segment(epoch, number), slice(start - first, min(stop, last) - first)
            items.append(segment.items[part])
            lanes.append(segment.lanes[part])
            start += len(items[-1])
            number += 1
        return np.concatenate(items), np.concatenate(lanes)

    def tally(self, epoch: int) -> Tally | None:
        """Return the tally of all samples of an epoch, without computing the order."""
        if self.selection:
            return tally(self._ids_of_selection(epoch))
        if self._full_tally is None:
            self._full_tally = tally_of_range(self.samples)
        return self._full_tally

    def block_of(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return shard number and block number of each id: int64 [n] each, counted over the whole dataset."""
        counts = np.asarray(self._shard_samples, np.int64)
        first_id = np.concatenate([[0], np.cumsum(counts)])
        first_block = np.concatenate([[0], np.cumsum(-(-counts // self.block))])
        shards = np.searchsorted(first_id, ids, side="right") - 1
        return shards, first_block[shards] + (ids - first_id[shards]) // self.block

    def _ids_of_selection(self, epoch: int) -> NDArray[np.int64]:
        """Return the ids of the selection in an epoch: int64 [samples]."""
        assert self.selection is not None
        if self._selected_ids[0] != epoch:
            self._selected_ids = epoch, self.selection.ids(epoch)
        return self._selected_ids[1]

    def _epoch(self, epoch: int) -> _Epoch:
        known = self._epochs.get(epoch)
        if known is not None:
            return known
        key = key_of("order", self.fingerprint, self.seed, epoch)
        positions = self._positions_of_blocks(key, self._short_blocks)
        by_position = np.argsort(positions)
        result = _Epoch(
            key=key,
            short_positions=positions[by_position],
            missing_before=np.concatenate([[0], np.cumsum(self._missing[by_position])]),
            segment_starts=np.empty(0, np.int64),
        )
        edges = np.arange(0, self._blocks + self._segment_blocks, self._segment_blocks)
        result.segment_starts = self._samples_before(result, np.minimum(edges, self._blocks))
        self._epochs.put(epoch, result)
        return result

    def _positions_of_blocks(self, key: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return unpermute(key, self._blocks, blocks) if self.window else blocks

    def _blocks_at(self, key: int, block_positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return permute(key, self._blocks, block_positions) if self.window else block_positions

    def _samples_before(self, epoch: _Epoch, block_positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of samples before each block position."""
        before = np.searchsorted(epoch.short_positions, block_positions, side="left")
        return block_positions * self.block - epoch.missing_before[before]

    def _segment(self, epoch_number: int, number: int) -> _Segment:
        """Return segment ``number`` of an epoch."""
        known = self._segments.get((epoch_number, number))
        if known is not None:
            return known
        epoch = self._epoch(epoch_number)
        first = number * self._segment_blocks
        positions = np.arange(first, min(first + self._segment_blocks, self._blocks))  # [blocks of the segment]
        counts = np.diff(self._samples_before(epoch, np.append(positions, positions[-1] + 1)))
        blocks = self._blocks_at(epoch.key, positions)
        runs = np.searchsorted(self._first_block, blocks, side="right") - 1
        first_items = self._first_item[runs] + (blocks - self._first_block[runs]) * self.block
        items = np.repeat(first_items, counts) + _count_within(counts)
        lanes = (positions % self.lanes).astype(np.int16)
        keys = np.repeat(_starts_in_lanes(counts, lanes) << 20, counts) + self._offsets(epoch.key, items)
        result = _interleave(items, keys, np.repeat(lanes, counts), self.lanes)
        self._segments.put((epoch_number, number), result)
        return result

    def _offsets(self, key: int, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a random offset per item, below the window of a lane, in units of 2**-20 samples."""
        window = np.uint64(max(1, self.window // self.lanes) if self.window else 0)
        return (((hashes(key, items) >> np.uint64(32)) * window) >> np.uint64(12)).astype(np.int64)


def _count_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count from 0 within each block: [2, 3] gives 0 1 0 1 2."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _starts_in_lanes(counts: NDArray[np.int64], lanes: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return, for each block, the number of samples before it in its own lane."""
    by_lane = np.argsort(lanes, kind="stable")
    before = np.cumsum(counts[by_lane]) - counts[by_lane]
    is_first = np.append(True, np.diff(lanes[by_lane]) != 0)
    starts = np.empty_like(counts)
    starts[by_lane] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return starts


def _interleave(items: NDArray[np.int64], keys: NDArray[np.int64], lanes: NDArray[np.int16], count: int) -> _Segment:
    """Sort each of ``count`` lanes by keys, then take one item from each lane in turn; skip empty lanes."""
    if count == 1:
        return _Segment(items[np.argsort(keys, kind="stable")], lanes)
    by_lane = np.lexsort((keys, lanes))
    turns = _count_within(np.bincount(lanes, minlength=count))  # in the order of `by_lane`
    in_turn = by_lane[np.lexsort((lanes[by_lane], turns))]
    return _Segment(items[in_turn], lanes[in_turn])
