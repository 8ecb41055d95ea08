"""`wds-tools plan --plot`: a chart of the quality of a shuffle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wds_tools.inspection.forecast import Forecast, epochs_to_measure, labels_to_measure, order_of
from wds_tools.inspection.svg import Plot, Series, draw, short_number
from wds_tools.order.quality import MIN_WINDOW, measured_quality, predicted
from wds_tools.order.sequence import SEGMENT_SAMPLES, Order
from wds_tools.reading.select import Choice
from wds_tools.reading.shardset import ShardSet

_CURVE_POINTS = 60
_MAX_BLOCKS = 24  # blocks whose samples are drawn
_MAX_POINTS = 50  # samples drawn per block


def forecast_chart(shards: ShardSet, plan: Forecast, *, seed: int = 0, choice: Choice | None = None) -> str:
    """Draw the quality against the window, and the positions of neighbours."""
    order = order_of(shards, choice, seed=seed, window=plan.window_samples, block=plan.block_samples, lanes=plan.lanes)
    ids = order.ids(0, 0, min(order.samples, SEGMENT_SAMPLES))
    window = f"a window of {plan.window_samples:,} samples" if plan.window_samples else "the stored order"
    return draw(
        [
            _quality_panel(shards, plan, order),
            block_positions(f"Positions of neighbours with {window}: each row of points is one block", order, ids),
        ],
        title=f"Shuffle of {shards.name}",
        description=f"Batches of {plan.global_batch:,}, blocks of {plan.block_samples:,} samples, {window}: "
        f"{_quality_text(plan)}. First panel: quality against window. Second: positions of the samples of some "
        "blocks in an epoch.",
    )


def quality_curves(blocks: Iterable[int], windows: tuple[float, float], *, batch: int) -> list[Series]:
    """Return curves of the predicted quality against the window, for data sorted by class."""
    sizes = np.geomspace(*windows, _CURVE_POINTS)
    return [
        Series(
            f"sorted, blocks of {block:,}",
            sizes.tolist(),
            [predicted(batch=batch, block=block, window=round(window), shuffled=False) for window in sizes],
            dashed=index > 0,
        )
        for index, block in enumerate(blocks)
    ]


def block_positions(title: str, order: Order, ids: NDArray[np.int64]) -> Plot:
    """Plot the positions in an epoch of the samples of some blocks, evenly spaced in the dataset."""
    blocks = order.block_of(ids)[1]
    distinct = np.unique(blocks)
    drawn = distinct[np.linspace(0, len(distinct) - 1, min(_MAX_BLOCKS, len(distinct))).astype(int)]
    positions = [_thinned(np.flatnonzero(blocks == block)) for block in drawn]
    shown = np.concatenate(positions)
    first = f" (the first {short_number(len(ids))})" if len(ids) < order.samples else ""
    return Plot(
        title=title,
        x_label=f"position in the epoch{first}",
        y_label="position in the dataset",
        series=[Series("", shown.tolist(), ids[shown].tolist(), points=True)],
        x_range=(0, len(ids)),
        y_range=(0, order.identity.stored),
    )


def _thinned(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions[:: math.ceil(len(positions) / _MAX_POINTS)]


def _quality_panel(shards: ShardSet, plan: Forecast, order: Order) -> Plot:
    chosen = plan.window_samples or MIN_WINDOW
    ends = (max(1.0, min(chosen / 64, plan.global_batch)), max(chosen * 16.0, 4.0 * (plan.sufficient_window or 0)))
    blocks = (plan.block_samples, max(1, plan.block_samples // 2), 2 * plan.block_samples, 4 * plan.block_samples)
    series = quality_curves(dict.fromkeys(blocks), ends, batch=plan.global_batch)
    if shards.manifest.shuffled:
        series.append(Series("shuffled when packed", ends, (1.0, 1.0)))
    windows, qualities = _measured_points(shards, plan, order, chosen)
    series.append(Series("measured on the labels", windows, qualities, points=True))
    return Plot(
        title=f"Shuffle quality: {_quality_text(plan)}",
        x_label=f"window in samples (batch of {plan.global_batch:,})",
        y_label="quality: 1 is a full shuffle",
        series=series if windows else series[:-1],
        marks=[(plan.window_samples, "this window")] if plan.window_samples else (),
        log_x=True,
        x_range=ends,
        y_range=(0, max([1.1, *qualities])),
    )


def _quality_text(plan: Forecast) -> str:
    return f"{plan.quality:.2f} expected" + (
        f", {plan.measured_quality:.2f} measured" if plan.measured_quality is not None else ""
    )


def _measured_points(
    shards: ShardSet, plan: Forecast, order: Order, chosen: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return some windows around the chosen one and their measured qualities; empty without labels."""
    labels = labels_to_measure(shards, order, plan.global_batch)
    if labels is None:
        return (), ()
    windows = [max(1, round(chosen * factor)) for factor in (1 / 16, 1 / 4, 1, 4)]
    orders = [order.like(window=window, block=order.block, lanes=order.lanes) for window in windows]
    epochs = epochs_to_measure(orders[0])
    return windows, [measured_quality(other, labels, batch=plan.global_batch, epochs=epochs) for other in orders]
