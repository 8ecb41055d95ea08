"""The quality of a shuffle: predicted from the window, or measured on the labels.

The samples of a block were neighbours in the input. If the input is sorted by class, they belong to
one class, and a batch has fewer classes than after a full shuffle. The variance of the class counts
of a batch is ``1 + (B - 1) b / W`` times that of a full shuffle, for batches of B samples, blocks of
b samples and a window of W samples. Quality is the inverse of this factor: 1 is a full shuffle.

`measure_reading` counts the blocks that each machine reads, in one epoch and in the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.planner import Cursor, EpochPlan, Tail, World, divide
from wds_tools.order.sequence import MAX_WINDOW, Order

MIN_WINDOW = 4096
MAX_PACKED_WINDOW = 65_536  # about 7 GB of page cache for photographs
MAX_REPEATED_PAIRS = 1.1  # pairs that share a batch in two epochs, relative to a full shuffle
DEFAULT_QUALITY = 0.9
TYPICAL_BATCH = 256


def predicted(*, batch: int, block: int, window: int, shuffled: bool) -> float:
    """Return the predicted quality of a window: for input sorted by class, or 1.0 for shuffled input.

    >>> round(predicted(batch=256, block=19, window=43_605, shuffled=False), 2)
    0.9
    """
    if shuffled:
        return 1.0
    return 1 / (1 + (batch - 1) * block / window) if window else 0.0


def window_for(quality: float, *, batch: int, block: int) -> int:
    """Return the window, in samples, that has the requested quality on input sorted by class."""
    if not 0 < quality < 1:
        raise OptionError(
            f"shuffle={quality}; allowed are a quality above 0 and below 1, and a window as a whole number of samples"
        )
    return min(MAX_WINDOW, max(1, round(block * (batch - 1) * quality / (1 - quality))))


def packed_window(*, block: int, samples: int) -> int:
    """Return the default window, in samples, for a dataset that packing has shuffled.

    Such a dataset has full quality with any window. The window only determines how often the same
    samples share a batch in several epochs. For small batches, ``1 + (block - 1) * samples /
    window**2`` times as many pairs as with a full shuffle share a batch in two epochs.

    >>> packed_window(block=19, samples=1_281_167), packed_window(block=200, samples=1_281_167)
    (15186, 50493)
    """
    enough = math.ceil(math.sqrt((block - 1) * samples / (MAX_REPEATED_PAIRS - 1)))
    return min(max(enough, MIN_WINDOW), MAX_PACKED_WINDOW)


def window_of(
    shuffle: bool | int | float, *, block: int, samples: int, shuffled: bool, batch: int = TYPICAL_BATCH
) -> int:
    """Return the window, in samples, for a value of the option ``shuffle=``.

    Args:
        shuffle: False, True, a window in samples, or a quality: a fraction such as 0.95.
        block: Samples per block.
        samples: Samples of the dataset.
        shuffled: Whether packing shuffled the dataset.
        batch: Samples of a step over all ranks; used only if ``shuffle`` is a quality.

    Raises:
        OptionError: ``shuffle`` is none of these.

    >>> window_of(True, block=19, samples=1_281_167, shuffled=False)
    43605
    >>> window_of(20_000, block=19, samples=1_281_167, shuffled=True)
    20000
    """
    if isinstance(shuffle, bool):
        if not shuffle:
            return 0
        # The default does not depend on the batch size, so that the order of samples does not either.
        enough = window_for(DEFAULT_QUALITY, batch=TYPICAL_BATCH, block=block)
        return packed_window(block=block, samples=samples) if shuffled else max(MIN_WINDOW, enough)
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


def measured_quality(order: Order, labels: NDArray[np.int64], *, batch: int, epochs: int = 1) -> float:
    """Measure an order on the labels of its samples, and compare it with a full shuffle.

    Returns:
        Variance of the class counts of a batch after a full shuffle, divided by the variance with this order; about 1
        is best.
    """
    if batch > order.samples:
        raise OptionError(f"batch={batch} is larger than the dataset of {order.samples:,} samples")
    used = order.samples // batch * batch  # samples in complete batches
    epoch_labels = [labels[order.ids(epoch, 0, used)] for epoch in range(epochs)]
    variance = sum(_class_variance(each, batch) for each in epoch_labels)
    return sum(_full_class_variance(each, batch) for each in epoch_labels) / variance if variance else 1.0


def _class_variance(labels: NDArray[np.int64], batch: int) -> float:
    """Return the variance of the class counts of a batch, summed over classes; all batches are complete."""
    steps = len(labels) // batch
    classes, codes = np.unique(labels, return_inverse=True)
    # [samples], step and class of each sample as one number
    cells = np.repeat(np.arange(steps), batch) * len(classes) + codes
    counts = np.unique(cells, return_counts=True)[1]
    mean = np.bincount(codes) / steps  # [classes]
    # Sum over all (step, class) of (count - mean)^2; cells without samples have count 0.
    return (float((counts.astype(np.float64) ** 2).sum()) - steps * float((mean**2).sum())) / steps


def _full_class_variance(labels: NDArray[np.int64], batch: int) -> float:
    """Return the expected `_class_variance` of a full shuffle, where class counts are hypergeometric."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)  # [classes]
    return float(batch * (shares * (1 - shares)).sum() * (len(labels) - batch) / max(1, len(labels) - 1))


@dataclass(frozen=True, slots=True)
class MeasuredReading:
    """Blocks that machines read in the same steps of an epoch and of the next one.

    Attributes:
        share: Mean fraction of the blocks of the epoch that one machine reads.
        read_twice: Fraction of the blocks of the epoch that more than one machine reads.
        new: Mean fraction of the blocks of a machine in the next epoch that it did not read in the
            epoch before. A machine with a large cache fetches this part. None if not all steps were
            counted.
    """

    share: float
    read_twice: float
    new: float | None


def measure_reading(
    order: Order,
    *,
    nodes: int,
    node_batch: int,
    tail: Tail = "drop",
    max_steps: int | None = None,
) -> MeasuredReading:
    """Count the distinct blocks that each machine reads in the first epoch and in the second one."""
    first = _blocks_of_nodes(order, 0, nodes, node_batch, tail, max_steps)
    blocks, times = np.unique(np.concatenate(first), return_counts=True)
    new = None
    if max_steps is None:
        later = _blocks_of_nodes(order, 1, nodes, node_batch, tail, None)
        parts = [len(np.setdiff1d(now, before)) / max(1, len(now)) for before, now in zip(first, later, strict=True)]
        new = float(np.mean(parts))
    return MeasuredReading(
        share=float(np.mean([len(part) for part in first]) / max(1, len(blocks))),
        read_twice=float((times > 1).mean()) if len(times) else 0.0,
        new=new,
    )


def _blocks_of_nodes(
    order: Order, epoch: int, nodes: int, node_batch: int, tail: Tail, max_steps: int | None
) -> list[NDArray[np.int64]]:
    """Return the distinct blocks that each machine reads in an epoch, ascending."""
    # All ranks of a machine together read the samples that one rank with a larger batch would read.
    plan = EpochPlan(order.at(epoch), Cursor(epoch), World(0, nodes), node_batch, tail)
    steps = len(plan) if max_steps is None else min(len(plan), max_steps)
    positions = np.arange(steps * plan.global_batch) % order.samples  # padding repeats the start
    ids, lanes = order.slice(epoch, 0, min(len(positions), order.samples))
    ids, lanes = ids[positions].reshape(steps, -1), lanes[positions].reshape(steps, -1)
    read = np.empty((steps, nodes, node_batch), np.int64)
    for step in range(steps):
        read[step] = ids[step][divide(lanes[step], order.lanes, nodes)]
    return [np.unique(order.block_of(read[:, node].ravel())[1]) for node in range(nodes)]
