"""How often samples of each class and dataset are promised and drawn between changes of weights. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from wds_tools.order.epoch import EpochOrder
from wds_tools.order.shares import Ints
from wds_tools.order.tally import Count, Segment

_ROWS = 1 << 20  # rows of an epoch that are computed at a time


def segments_of(order: EpochOrder, start: int, stop: int, labels: Ints, classes: Sequence[str]) -> tuple[Segment, ...]:
    """Return the segments of a part of an epoch; none if all its rows are of a plain epoch.

    Args:
        order: Order of the epoch.
        start: Position of the first row.
        stop: Position after the last row.
        labels: int64 [stored], class number of each sample; negative for none.
        classes: Names of the classes.
    """
    if not order.is_weighted:
        return ()
    edges = [start, *(position for position in order.starts_of_weights if start < position < stop), stop]
    return tuple(_segment(order, *edge, labels, classes) for edge in pairwise(edges) if edge[0] < edge[1])


def _segment(order: EpochOrder, start: int, stop: int, labels: Ints, classes: Sequence[str]) -> Segment:
    found = np.zeros(len(labels), np.int64)
    for first in range(start, stop, _ROWS):
        last = min(first + _ROWS, stop)
        found += np.bincount(order.ids(first, last)[order.valid(first, last)], minlength=len(labels))
    total, piece = int(found.sum()), order.piece_at(start)
    groups, firsts = int(labels.max(initial=-1)) + 2, order.run.first_ids
    shares, rates = piece.regime.draws if piece else (order.run.shares, [None] * len(order.run.scans))
    by_class, sources, drawn = np.zeros((2, groups)), [], np.zeros(len(labels), np.bool_)
    for number, (scan, rate) in enumerate(zip(order.run.scans, rates, strict=True)):
        part = slice(*firsts[number : number + 2])
        weight = np.zeros(part.stop - part.start)
        own = np.arange(len(weight)) if scan.selection is None else scan.selection.selected_ids
        weight[own] = 1 if rate is None else rate.of(own)
        if piece is None and (balance := order.run.parts[number].balance) is not None:
            weight[own] *= balance.factors[labels[part][own]]
        promised = total * shares[number] / sum(shares)
        drawn[part] = (weight > 0) & (shares[number] > 0)
        by_class[0] += promised * np.bincount(labels[part] + 1, weight, groups) / max(weight.sum(), 1e-300)
        by_class[1] += np.bincount(labels[part] + 1, found[part], groups)
        sources.append(Count(promised, int(found[part].sum())))
    names = ["without a class", *classes, *map(str, range(len(classes), groups))]
    counts = {
        names[group]: Count(float(promised), int(delivered))
        for group, (promised, delivered) in enumerate(by_class.T.tolist())
        if promised or delivered
    }
    least = int(found[drawn].min(initial=stop)) if drawn.any() else 0
    entries = piece.change.entries if piece else None
    return Segment(start, stop, entries, counts, tuple(sources), least, int(found.max(initial=0)))
