"""How good a shuffle is: predicted before training, and measured on the labels.

Samples of one block are neighbours of the input. If the input is sorted they are of one class, and then a batch
holds fewer classes than it would after a full shuffle. For a batch of B, blocks of b samples and a window of W, the
variance of a batch's class counts is ``1 + (B - 1) b / W`` times that of a full shuffle. Quality is the inverse of
that factor: 1 is as good as a full shuffle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.sequence import MAX_WINDOW, Order

LEAST_WINDOW = 4096
MOST_PACKED_WINDOW = 65_536  # of photographs 7 GB of page cache
REUNIONS = 1.1  # of samples that shared a batch, times those that a full shuffle would bring together again
WANTED_QUALITY = 0.9
USUAL_BATCH = 256


def predicted(*, batch: int, block: int, window: int, shuffled: bool) -> float:
    """Return the quality that a window gives: for input sorted by class, or 1.0 for input that was shuffled.

    >>> round(predicted(batch=256, block=19, window=43_605, shuffled=False), 2)
    0.9
    """
    if shuffled:
        return 1.0
    return 1 / (1 + (batch - 1) * block / window) if window else 0.0


def window_for(quality: float, *, batch: int, block: int) -> int:
    """Return the window, in samples, that gives a quality on input sorted by class.

    Raises:
        OptionError: No window gives that.
    """
    if not 0 < quality < 1:
        raise OptionError(f"shuffle={quality}: a quality is above 0 and below 1; a window is a whole number of samples")
    return min(MAX_WINDOW, max(1, round(block * (batch - 1) * quality / (1 - quality))))


def packed_window(*, block: int, samples: int) -> int:
    """Return the window for data that was shuffled when it was packed, in samples.

    Its quality is that of a full shuffle with any window, which only changes who meets whom: of small batches,
    ``1 + (block - 1) * samples / window**2`` times as many pairs meet again as after a full shuffle.

    >>> packed_window(block=19, samples=1_281_167), packed_window(block=200, samples=1_281_167)
    (15186, 50493)
    """
    wanted = math.ceil(math.sqrt((block - 1) * samples / (REUNIONS - 1)))
    return min(max(wanted, LEAST_WINDOW), MOST_PACKED_WINDOW)


def window_of(
    shuffle: bool | int | float, *, block: int, samples: int, shuffled: bool, batch: int = USUAL_BATCH
) -> int:
    """Return the window, in samples, that a ``shuffle=`` means.

    Args:
        shuffle: False; True; a window in samples; or a quality, a fraction such as 0.95.
        block: Samples of a block.
        samples: Of the dataset.
        shuffled: The dataset was shuffled when it was packed.
        batch: Samples of a step over all ranks; only a quality depends on it.

    Raises:
        OptionError: It means nothing.

    >>> window_of(True, block=19, samples=1_281_167, shuffled=False)
    43605
    >>> window_of(20_000, block=19, samples=1_281_167, shuffled=True)
    20000
    """
    if isinstance(shuffle, bool):
        if not shuffle:
            return 0
        # The default does not depend on the batch, so that the order does not either.
        wanted = window_for(WANTED_QUALITY, batch=USUAL_BATCH, block=block)
        return packed_window(block=block, samples=samples) if shuffled else max(LEAST_WINDOW, wanted)
    if isinstance(shuffle, float) and shuffle < 1:
        return (
            packed_window(block=block, samples=samples) if shuffled else window_for(shuffle, batch=batch, block=block)
        )
    if not isinstance(shuffle, int) or shuffle < 1:
        raise OptionError(
            f"shuffle={shuffle!r}; allowed are True, False, a window in samples such as 20_000, "
            "or a quality such as 0.95"
        )
    return shuffle


@dataclass(frozen=True, slots=True)
class Measured:
    """What an order does to a dataset, against a full shuffle.

    Attributes:
        quality: Variance of class counts per batch of a full shuffle, by that of this order; about 1 is best.
        shards_per_batch: Distinct shards in a batch, mean.
        shards_full: The same after a full shuffle.
        blocks_per_batch: Distinct blocks in a batch, mean.
        blocks_full: The same after a full shuffle.
        travel: Mean distance, in samples, between the places of two neighbours of the input.
        travel_full: The same after a full shuffle: a third of the dataset.
    """

    quality: float
    shards_per_batch: float
    shards_full: float
    blocks_per_batch: float
    blocks_full: float
    travel: float
    travel_full: float


def measure(order: Order, labels: NDArray[np.int64], *, batch: int, epochs: int = 1) -> Measured:
    """Measure an order on the labels of its samples, beside a full shuffle of the same.

    Args:
        order: The order.
        labels: int64 [samples], class number of each id.
        batch: Samples of a step over all ranks.
        epochs: Over how many of them quality is taken: of a few batches it is uncertain.

    Raises:
        OptionError: There is not a single whole batch.
    """
    quality = measured_quality(order, labels, batch=batch, epochs=epochs)
    ours = order.ids(0, 0, order.samples)
    full = np.random.default_rng(order.seed).permutation(ours)
    shards, blocks = _distinct(order, ours, batch)
    shards_full, blocks_full = _distinct(order, full, batch)
    return Measured(
        quality=quality,
        shards_per_batch=shards,
        shards_full=shards_full,
        blocks_per_batch=blocks,
        blocks_full=blocks_full,
        travel=_travel(ours),
        travel_full=_travel(full),
    )


def measured_quality(order: Order, labels: NDArray[np.int64], *, batch: int, epochs: int = 1) -> float:
    """Return the quality that `measure` finds, alone.

    Raises:
        OptionError: There is not a single whole batch.
    """
    if batch > order.samples:
        raise OptionError(f"batch={batch} is larger than the dataset of {order.samples:,} samples")
    whole = order.samples // batch * batch
    used = [labels[order.ids(epoch, 0, whole)] for epoch in range(epochs)]
    spread = sum(_class_variance(some, batch) for some in used)
    return sum(_full_class_variance(some, batch) for some in used) / spread if spread else 1.0


def _class_variance(labels: NDArray[np.int64], batch: int) -> float:
    """Return the variance of class counts over whole batches, summed over classes."""
    steps = len(labels) // batch
    classes, numbers = np.unique(labels, return_inverse=True)
    cells = np.repeat(np.arange(steps), batch) * len(classes) + numbers  # [samples], (step, class) as one number
    counts = np.unique(cells, return_counts=True)[1]
    mean = np.bincount(numbers) / steps  # [classes]
    # Sum over all (step, class) of (count - mean)^2; cells without samples have count 0.
    return (float((counts.astype(np.float64) ** 2).sum()) - steps * float((mean**2).sum())) / steps


def _full_class_variance(labels: NDArray[np.int64], batch: int) -> float:
    """Return what a full shuffle of the same labels would have on average: counts are hypergeometric then."""
    parts = np.unique(labels, return_counts=True)[1] / len(labels)  # [classes]
    return float(batch * (parts * (1 - parts)).sum() * (len(labels) - batch) / max(1, len(labels) - 1))


def _distinct(order: Order, ids: NDArray[np.int64], batch: int) -> tuple[float, float]:
    steps = len(ids) // batch
    step = np.repeat(np.arange(steps), batch)
    shards, blocks = order.block_of(ids[: steps * batch])
    return tuple(  # type: ignore[return-value]
        len(np.unique(step * (int(which.max()) + 1) + which)) / steps for which in (shards, blocks)
    )


def _travel(ids: NDArray[np.int64]) -> float:
    places = np.argsort(ids)
    return float(np.abs(np.diff(places)).mean()) if len(ids) > 1 else 0.0
