"""The canonical sequence: for each epoch, one order of all samples. Arithmetic on counts; no files, no clock, no torch.

It is a pure function of (fingerprint, selection, seed, epoch, lanes, window, block): not of the number of ranks or
workers. So a state is a position in it, and nothing else.

A **block** is a run of consecutive samples of one shard, the unit of reading. Blocks are permuted and dealt to
**lanes**, streams of their own, so that each machine can read only its own blocks. Inside a lane, samples are
shuffled in a sliding **window**: each sample's sort key is the place of its block plus a random offset below the
window. So reading is steady, and the first batch needs only the first blocks. The sequence takes one sample from
each lane in turn.

With a selection, blocks are runs of consecutive chosen samples, and all the rest is the same.

Long epochs are computed in segments of about a million samples, each ordered by itself, so that the cost of
starting anywhere does not grow with the dataset.
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
MAX_WINDOW = 1 << 30  # the sort keys are 64-bit integers with 20 bits of fraction
MAX_LANES = 4096
_KEPT_SEGMENTS = 2


def default_block(samples: int, total_bytes: int) -> int:
    """Return the samples of a block of about 2 MiB.

    >>> default_block(1_281_167, 1_281_167 * 110_000)
    19
    """
    return max(1, min(65_536, round(BLOCK_BYTES * samples / max(1, total_bytes))))


@dataclass(slots=True)
class _Epoch:
    """What an epoch's permutation of blocks gives, computed once."""

    key: int
    short_places: NDArray[np.int64]  # places of the short blocks, ascending
    lacking_before: NDArray[np.int64]  # [short blocks + 1] samples lacking before each of them
    segment_starts: NDArray[np.int64]  # [segments + 1] positions


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of an epoch, in order."""

    ids: NDArray[np.int64]
    lanes: NDArray[np.int16]


class Order:
    """The canonical sequences of a dataset, one per epoch.

    Args:
        fingerprint: The dataset's.
        shard_samples: Samples of each shard.
        seed: Orders of different seeds have nothing in common.
        window: Shuffle window in samples, over all lanes; 0 keeps the stored order.
        block: Samples of a block.
        lanes: Independent streams.
        selection: Which samples, and how often; None takes each once.
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
                f"window={window}, block={block}, lanes={lanes}: "
                f"allowed are 0 to {MAX_WINDOW:,}, 1 and more, and 1 to {MAX_LANES:,}"
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
        """Samples of the dataset, chosen or not: ids are below."""
        # A selection is one run of places; the ids at these places are looked up at the end.
        counts = np.asarray([selection.samples] if selection else shard_samples, np.int64)
        self._first_place = np.concatenate([[0], np.cumsum(counts)])  # [runs + 1]
        self.samples = int(self._first_place[-1])
        blocks = -(-counts // block)
        self._first_block = np.concatenate([[0], np.cumsum(blocks)])  # [runs + 1]
        self._blocks = int(self._first_block[-1])
        # All blocks have `block` samples but the last of each shard, which may lack some.
        lacking = blocks * block - counts
        self._short_blocks = (self._first_block[1:] - 1)[lacking > 0]
        self._lacking = lacking[lacking > 0]
        # A whole number of rounds of dealing, so that each segment can be dealt by itself.
        self._segment_blocks = max(1, SEGMENT_SAMPLES // block // lanes) * lanes
        self._whole: Tally | None = None
        self._chosen: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))
        self._epochs = LRUCache[int, _Epoch](max_items=_KEPT_SEGMENTS)
        self._segments = LRUCache[tuple[int, int], _Segment](max_items=_KEPT_SEGMENTS)

    @property
    def once(self) -> bool:
        """Whether no sample comes twice in an epoch."""
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
        """Return the ids at positions ``start`` to ``stop`` of an epoch, and the lane of each."""
        places, lanes = self._places(epoch, start, stop)
        return (self._ids_of(epoch)[places] if self.selection else places), lanes

    def _places(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the places at positions ``start`` to ``stop``: ids, or numbers within the selection."""
        if self.window == 0 and self.lanes == 1:
            return np.arange(start, stop, dtype=np.int64), np.zeros(stop - start, np.int16)
        bounds = self._epoch(epoch).segment_starts
        ids, lanes = [np.empty(0, np.int64)], [np.empty(0, np.int16)]
        number = int(np.searchsorted(bounds, start, side="right")) - 1
        while start < stop:
            first, last = int(bounds[number]), int(bounds[number + 1])
            segment, part = self._segment(epoch, number), slice(start - first, min(stop, last) - first)
            ids.append(segment.ids[part])
            lanes.append(segment.lanes[part])
            start += len(ids[-1])
            number += 1
        return np.concatenate(ids), np.concatenate(lanes)

    def tally(self, epoch: int) -> Tally | None:
        """Return what an epoch holds, from the counts of the dataset alone: it does not compute the order."""
        if self.selection:
            return tally(self._ids_of(epoch))
        if self._whole is None:
            self._whole = tally_of_range(self.samples)
        return self._whole

    def block_of(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard and the block of stored samples (numbered over the dataset) of each id."""
        counts = np.asarray(self._shard_samples, np.int64)
        first_id = np.concatenate([[0], np.cumsum(counts)])
        first_block = np.concatenate([[0], np.cumsum(-(-counts // self.block))])
        shards = np.searchsorted(first_id, ids, side="right") - 1
        return shards, first_block[shards] + (ids - first_id[shards]) // self.block

    def _ids_of(self, epoch: int) -> NDArray[np.int64]:
        """Return the ids of the selection in an epoch."""
        assert self.selection is not None
        if self._chosen[0] != epoch:
            self._chosen = epoch, self.selection.ids(epoch)
        return self._chosen[1]

    def _epoch(self, epoch: int) -> _Epoch:
        known = self._epochs.get(epoch)
        if known is not None:
            return known
        key = key_of("order", self.fingerprint, self.seed, epoch)
        places = self._places_of(key, self._short_blocks)
        by_place = np.argsort(places)
        made = _Epoch(
            key=key,
            short_places=places[by_place],
            lacking_before=np.concatenate([[0], np.cumsum(self._lacking[by_place])]),
            segment_starts=np.empty(0, np.int64),
        )
        edges = np.arange(0, self._blocks + self._segment_blocks, self._segment_blocks)
        made.segment_starts = self._starts(made, np.minimum(edges, self._blocks))
        self._epochs.put(epoch, made)
        return made

    def _places_of(self, key: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return unpermute(key, self._blocks, blocks) if self.window else blocks

    def _blocks_at(self, key: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return permute(key, self._blocks, places) if self.window else places

    def _starts(self, epoch: _Epoch, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples lie before each place of the permuted blocks."""
        before = np.searchsorted(epoch.short_places, places, side="left")
        return places * self.block - epoch.lacking_before[before]

    def _segment(self, epoch_number: int, number: int) -> _Segment:
        """Return one segment, in order."""
        known = self._segments.get((epoch_number, number))
        if known is not None:
            return known
        epoch = self._epoch(epoch_number)
        places = np.arange(number * self._segment_blocks, min((number + 1) * self._segment_blocks, self._blocks))
        counts = np.diff(self._starts(epoch, np.append(places, places[-1] + 1)))  # [blocks of the segment]
        blocks = self._blocks_at(epoch.key, places)
        runs = np.searchsorted(self._first_block, blocks, side="right") - 1
        first_ids = self._first_place[runs] + (blocks - self._first_block[runs]) * self.block
        # Within its block, sample k has id first_ids + k.
        ids = np.repeat(first_ids, counts) + _within(counts)
        lanes = (places % self.lanes).astype(np.int16)
        keys = np.repeat(_starts_in_lanes(counts, lanes) << 20, counts) + self._offsets(epoch.key, ids)
        made = _deal(ids, keys, np.repeat(lanes, counts), self.lanes)
        self._segments.put((epoch_number, number), made)
        return made

    def _offsets(self, key: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each sample's random offset: a lane's part of the window, in units of 2**-20 samples."""
        window = np.uint64(max(1, self.window // self.lanes) if self.window else 0)
        return (((hashes(key, ids) >> np.uint64(32)) * window) >> np.uint64(12)).astype(np.int64)


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the samples of each block: [2, 3] gives 0 1 0 1 2."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _starts_in_lanes(counts: NDArray[np.int64], lanes: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return how many samples of its own lane lie before each block."""
    by_lane = np.argsort(lanes, kind="stable")
    before = np.cumsum(counts[by_lane]) - counts[by_lane]
    is_first = np.append(True, np.diff(lanes[by_lane]) != 0)
    starts = np.empty_like(counts)
    starts[by_lane] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return starts


def _deal(ids: NDArray[np.int64], keys: NDArray[np.int64], lanes: NDArray[np.int16], count: int) -> _Segment:
    """Sort each lane by its keys, then take one sample from each lane in turn; lanes that have run out are passed."""
    if count == 1:
        return _Segment(ids[np.argsort(keys, kind="stable")], lanes)
    by_lane = np.lexsort((keys, lanes))
    turns = _within(np.bincount(lanes, minlength=count))  # of the samples in `by_lane`, which come lane by lane
    in_turn = by_lane[np.lexsort((lanes[by_lane], turns))]
    return _Segment(ids[in_turn], lanes[in_turn])
