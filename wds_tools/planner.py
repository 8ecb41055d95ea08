"""Which samples are read, by whom and in what order: arithmetic on counts. No files, no clock, no torch.

For each epoch there is one canonical sequence of all samples, a pure function of (fingerprint, seed, epoch, lanes,
window, block): not of the number of ranks or workers. So a state is a position in it, and nothing else.

A **block** is a run of consecutive samples of one shard, the unit of reading. Blocks are permuted; then samples are
shuffled in a sliding **window**: each sample's sort key is the place of its block plus a random offset below the
window. So reading is steady, and the first batch needs only the first blocks.

Long epochs are computed in segments of about a million samples, each sorted by itself, so that the cost of
starting anywhere does not grow with the dataset.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.prng import hashes, key_of, permute, unpermute

Tail = Literal["drop", "pad", "mask"]

STATE_VERSION = 1
BLOCK_BYTES = 2 << 20
SEGMENT_SAMPLES = 1 << 20
PACKED_WINDOW = 4096  # the packer has mixed the classes already; this only changes who meets whom in each epoch
MAX_WINDOW = 1 << 30  # the sort keys are 64-bit integers with 20 bits of fraction
_WANTED_QUALITY = 0.9
_USUAL_BATCH = 256
_KEPT_SEGMENTS = 2


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


def default_block(samples: int, total_bytes: int) -> int:
    """Return the samples of a block of about 2 MiB.

    >>> default_block(1_281_167, 1_281_167 * 110_000)
    19
    """
    return max(1, min(65_536, round(BLOCK_BYTES * samples / max(1, total_bytes))))


def default_window(block: int, *, shuffled: bool) -> int:
    """Return the window, in samples, that ``shuffle=True`` means.

    A dataset that was shuffled when it was packed needs little. Of another, neighbours may be of one class: then a
    quality of 0.9 at a batch of 256 takes ``block * 255 * 9`` (see `docs/how-it-works.md`).
    """
    wanted = round(block * (_USUAL_BATCH - 1) * _WANTED_QUALITY / (1 - _WANTED_QUALITY))
    return PACKED_WINDOW if shuffled else max(PACKED_WINDOW, wanted)


class Order:
    """The canonical sequences of a dataset, one per epoch.

    Args:
        fingerprint: The dataset's.
        shard_samples: Samples of each shard.
        seed: Orders of different seeds have nothing in common.
        window: Shuffle window in samples; 0 keeps the stored order.
        block: Samples of a block.
    """

    def __init__(self, *, fingerprint: str, shard_samples: Sequence[int], seed: int, window: int, block: int) -> None:
        if not 0 <= window <= MAX_WINDOW or block < 1:
            raise OptionError(f"window={window}, block={block}: allowed are 0 to {MAX_WINDOW:,}, and 1 and more")
        if not 0 <= seed < 2**63:
            raise OptionError(f"seed={seed} is out of range; allowed are 0 to 2**63 - 1")
        self.fingerprint = fingerprint
        self.seed = seed
        self.window = window
        self.block = block
        self._shard_samples = shard_samples
        counts = np.asarray(shard_samples, np.int64)
        self.first_id = np.concatenate([[0], np.cumsum(counts)])  # [shards + 1]
        self.samples = int(self.first_id[-1])
        blocks = -(-counts // block)
        self._first_block = np.concatenate([[0], np.cumsum(blocks)])  # [shards + 1]
        self._blocks = int(self._first_block[-1])
        # All blocks have `block` samples but the last of each shard, which may lack some.
        lacking = blocks * block - counts
        self._short_blocks = (self._first_block[1:] - 1)[lacking > 0]
        self._lacking = lacking[lacking > 0]
        self._segment_blocks = max(1, SEGMENT_SAMPLES // block)
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._segments: OrderedDict[tuple[int, int], NDArray[np.int64]] = OrderedDict()

    def ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``start`` to ``stop`` of an epoch: int64 [stop - start]."""
        if self.window == 0:
            return np.arange(start, stop, dtype=np.int64)
        bounds = self._epoch(epoch).segment_starts
        parts = [np.empty(0, np.int64)]
        number = int(np.searchsorted(bounds, start, side="right")) - 1
        while start < stop:
            first, last = int(bounds[number]), int(bounds[number + 1])
            part = self._segment(epoch, number)[start - first : min(stop, last) - first]
            parts.append(part)
            start += len(part)
            number += 1
        return np.concatenate(parts)

    def with_window(self, *, window: int, block: int) -> Order:
        """Return the order of the same dataset and seed with another window and block."""
        return Order(
            fingerprint=self.fingerprint,
            shard_samples=self._shard_samples,
            seed=self.seed,
            window=window,
            block=block,
        )

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._epochs:
            key = key_of("order", self.fingerprint, self.seed, epoch)
            places = unpermute(key, self._blocks, self._short_blocks)
            by_place = np.argsort(places)
            self._epochs[epoch] = made = _Epoch(
                key=key,
                short_places=places[by_place],
                lacking_before=np.concatenate([[0], np.cumsum(self._lacking[by_place])]),
                segment_starts=np.empty(0, np.int64),
            )
            edges = np.arange(0, self._blocks + self._segment_blocks, self._segment_blocks)
            made.segment_starts = self._starts(made, np.minimum(edges, self._blocks))
            if len(self._epochs) > _KEPT_SEGMENTS:
                self._epochs.popitem(last=False)
        return self._epochs[epoch]

    def _starts(self, epoch: _Epoch, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples lie before each place of the permuted blocks."""
        before = np.searchsorted(epoch.short_places, places, side="left")
        return places * self.block - epoch.lacking_before[before]

    def _segment(self, epoch_number: int, number: int) -> NDArray[np.int64]:
        """Return the ids of one segment, in order."""
        known = self._segments.get((epoch_number, number))
        if known is not None:
            return known
        epoch = self._epoch(epoch_number)
        places = np.arange(number * self._segment_blocks, min((number + 1) * self._segment_blocks, self._blocks))
        starts = self._starts(epoch, np.append(places, places[-1] + 1))  # [blocks of the segment + 1]
        counts = np.diff(starts)
        blocks = permute(epoch.key, self._blocks, places)
        shards = np.searchsorted(self._first_block, blocks, side="right") - 1
        first_ids = self.first_id[shards] + (blocks - self._first_block[shards]) * self.block
        # Within its block, sample k has id first_ids + k.
        within = np.arange(starts[-1] - starts[0]) - np.repeat(starts[:-1] - starts[0], counts)
        ids = np.repeat(first_ids, counts) + within
        offsets = ((hashes(epoch.key, ids) >> np.uint64(32)) * np.uint64(self.window)) >> np.uint64(12)
        keys = (np.repeat(starts[:-1] - starts[0], counts) << 20) + offsets.astype(np.int64)
        ordered: NDArray[np.int64] = ids[np.argsort(keys, kind="stable")]
        self._segments[epoch_number, number] = ordered
        if len(self._segments) > _KEPT_SEGMENTS:
            self._segments.popitem(last=False)
        return ordered


@dataclass(slots=True)
class _Epoch:
    """What an epoch's permutation of blocks gives, computed once."""

    key: int
    short_places: NDArray[np.int64]  # places of the short blocks, ascending
    lacking_before: NDArray[np.int64]  # [short blocks + 1] samples lacking before each of them
    segment_starts: NDArray[np.int64]  # [segments + 1] positions


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
        start = self.cursor.position + number * self.global_batch + self.world.rank * self.batch_size
        positions = np.arange(start, start + self.batch_size)
        inside = int(np.clip(self.order.samples - start, 0, self.batch_size))
        ids = self.order.ids(self.cursor.epoch, start, start + inside)
        if inside < self.batch_size:  # padding repeats the sequence from its start
            wrapped = positions[inside:] % self.order.samples
            ids = np.concatenate([ids, [self.order.ids(self.cursor.epoch, p, p + 1)[0] for p in wrapped.tolist()]])
        return Step(positions, ids.astype(np.int64, copy=False), positions < self.order.samples)

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
        "lanes": 1,
        "window": order.window,
        "block": order.block,
    }


def resume(state: dict[str, Any], order: Order) -> tuple[Order, Cursor]:
    """Return the order and the cursor of a state that belongs to this dataset and seed.

    Window and block are the state's, whatever the loader's own are, so that the rest of the epoch is what it
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
        ("lanes", numbers["lanes"], 1),
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
    return order.with_window(window=numbers["window"], block=numbers["block"]), Cursor(
        numbers["epoch"], numbers["position"]
    )
