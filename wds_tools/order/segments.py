"""What weights draw: how often samples of each class and dataset, and of how many blocks. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wds_tools.order.epoch import EpochOrder
from wds_tools.order.shares import Ints
from wds_tools.order.tally import Count, Segment

_ROWS = 1 << 20  # rows of an epoch that are computed at a time
_MAX_COUNTED = 2 << 20  # rows of an epoch whose blocks are counted


@dataclass(frozen=True, slots=True)
class BlockReading:
    """Blocks that an epoch reads.

    Attributes:
        share: Mean share of the samples of a block that are used, which is that of its bytes if samples are alike.
    """

    blocks: int
    share: float

    def __str__(self) -> str:
        return f"its epoch reads {self.blocks:,} blocks and uses {self.share:.0%} of each"


def blocks_of(order: EpochOrder) -> BlockReading:
    """Return the blocks that an epoch reads; of a long epoch, estimated from its first rows."""
    order = order.inner
    rows = min(order.samples, _MAX_COUNTED)
    ids, passes = order.ids(0, rows), order.passes(0, rows)
    reads, samples = 0, 0.0
    for dataset, scan in enumerate(order.run.scans):
        first, last = order.run.first_ids[dataset : dataset + 2]
        is_own = (ids >= first) & (ids < last)
        last_block = int(scan.block_of(np.array([last - first - 1]))[1][0])
        blocks = scan.block_of(ids[is_own] - first)[1]
        count = len(np.unique(blocks + (passes[is_own] + 1) * (last_block + 1)))
        reads += count
        samples += count * (last - first) / (last_block + 1)
    return BlockReading(round(reads * order.samples / max(rows, 1)), rows / max(samples, 1))


def segments_of(order: EpochOrder, start: int, stop: int, labels: Ints, classes: Sequence[str]) -> tuple[Segment, ...]:
    """Return the segments of a part of an epoch; none if all its rows are of a plain epoch."""
    if not order.is_weighted:
        return ()
    edges = [start, *(position for position in order.starts_of_weights if start < position < stop), stop]
    return tuple(_segment(order, *edge, labels, classes) for edge in pairwise(edges) if edge[0] < edge[1])


def _segment(order: EpochOrder, start: int, stop: int, labels: Ints, classes: Sequence[str]) -> Segment:
    occurrences = np.zeros(len(labels), np.int64)
    for first in range(start, stop, _ROWS):
        last = min(first + _ROWS, stop)
        occurrences += np.bincount(order.ids(first, last)[order.valid(first, last)], minlength=len(labels))
    total, piece = int(occurrences.sum()), order.piece_at(start)
    groups, firsts = int(labels.max(initial=-1)) + 2, order.run.first_ids
    shares, rates = piece.regime.draws if piece else (order.run.shares, [None] * len(order.run.scans))
    by_class, sources, drawn = np.zeros((2, groups)), [], np.zeros(len(labels), np.bool_)
    for dataset, (scan, rate) in enumerate(zip(order.run.scans, rates, strict=True)):
        part = slice(*firsts[dataset : dataset + 2])
        weight = np.zeros(part.stop - part.start)
        own = np.arange(len(weight)) if scan.selection is None else scan.selection.selected_ids
        weight[own] = 1 if rate is None else rate.of(own)
        if piece is None and (balance := order.run.parts[dataset].balance) is not None:
            weight[own] *= balance.factors[labels[part][own]]
        promised = total * shares[dataset] / sum(shares)
        drawn[part] = (weight > 0) & (shares[dataset] > 0)
        by_class[0] += promised * np.bincount(labels[part] + 1, weight, groups) / max(weight.sum(), 1e-300)
        by_class[1] += np.bincount(labels[part] + 1, occurrences[part], groups)
        sources.append(Count(promised, int(occurrences[part].sum())))
    names = ["without a class", *classes, *map(str, range(len(classes), groups))]
    counts = {
        names[group]: Count(float(promised), int(delivered))
        for group, (promised, delivered) in enumerate(by_class.T.tolist())
        if promised or delivered
    }
    least = int(occurrences[drawn].min(initial=stop)) if drawn.any() else 0
    entries = piece.change.entries if piece else None
    return Segment(start, stop, entries, counts, tuple(sources), least, int(occurrences.max(initial=0)))
