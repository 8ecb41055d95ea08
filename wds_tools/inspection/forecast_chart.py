"""A forecast as a picture, so that one sees whether the shuffle is good: `wds-tools plan --plot`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wds_tools.inspection.forecast import Forecast, epochs_to_measure, labels_to_measure, order_of
from wds_tools.inspection.svg import Bars, Plot, Series, draw, human
from wds_tools.order.quality import MIN_WINDOW, measured_quality, predicted
from wds_tools.order.sequence import SEGMENT_SAMPLES, Order
from wds_tools.reading.select import Choice
from wds_tools.reading.shardset import ShardSet

_CURVE_POINTS = 60
_STREAKS = 24  # blocks that are followed through the epoch
_STREAK_POINTS = 50  # samples of each of them, at most
_COUNTED_BATCHES = 50


def picture_of(shards: ShardSet, told: Forecast, *, seed: int = 0, choice: Choice | None = None) -> str:
    """Draw a forecast: quality against window, where neighbours go, and what a batch is made of.

    Args:
        shards: The dataset.
        told: What `forecast` said about it.
        seed: Of the order.
        choice: As for the forecast.

    Returns:
        The text of an SVG file.
    """
    order = order_of(shards, choice, seed=seed, window=told.window_samples, block=told.block_samples, lanes=told.lanes)
    ids = order.ids(0, 0, min(order.samples, SEGMENT_SAMPLES))
    window = f"a window of {told.window_samples:,} samples" if told.window_samples else "the stored order"
    return draw(
        [
            _quality_panel(shards, told, order),
            streaks(f"Where neighbours go with {window}: each row of points is one block", order, ids),
            Bars(f"What a batch of {told.global_batch:,} comes from", _sources(order, ids, told.global_batch)),
        ],
        title=f"Shuffle of {shards.name}",
        description=f"Batches of {told.global_batch:,}, blocks of {told.block_samples:,} samples, {window}: "
        f"{_verdict(told)}. Above: quality against window. Below: places of the samples of some blocks in an "
        "epoch, and how many blocks and shards a batch comes from.",
    )


def quality_curves(blocks: Iterable[int], windows: tuple[float, float], *, batch: int) -> list[Series]:
    """Return the predicted quality against the window, a curve for each block size, for input sorted by class."""
    tried = np.geomspace(*windows, _CURVE_POINTS)
    return [
        Series(
            f"sorted, blocks of {block:,}",
            tried.tolist(),
            [predicted(batch=batch, block=block, window=round(window), shuffled=False) for window in tried],
            dashed=number > 0,
        )
        for number, block in enumerate(blocks)
    ]


def streaks(title: str, order: Order, ids: NDArray[np.int64]) -> Plot:
    """Show where an epoch puts the samples of some blocks that are far from each other in the input.

    Args:
        title: Of the panel.
        order: The order.
        ids: Its first samples, int64 [positions].
    """
    blocks = order.block_of(ids)[1]
    known = np.unique(blocks)
    followed = known[np.linspace(0, len(known) - 1, min(_STREAKS, len(known))).astype(int)]
    places = [_thinned(np.flatnonzero(blocks == block)) for block in followed]
    shown = np.concatenate(places)
    return Plot(
        title=title,
        x_label="place in the epoch" + (f" (its first {human(len(ids))})" if len(ids) < order.samples else ""),
        y_label="place in the input",
        series=[Series("", shown.tolist(), ids[shown].tolist(), points=True)],
        x_range=(0, len(ids)),
        y_range=(0, order.stored),
    )


def _thinned(places: NDArray[np.int64]) -> NDArray[np.int64]:
    return places[:: math.ceil(len(places) / _STREAK_POINTS)]


def _quality_panel(shards: ShardSet, told: Forecast, order: Order) -> Plot:
    chosen = told.window_samples or MIN_WINDOW
    ends = (max(1.0, min(chosen / 64, told.global_batch)), max(chosen * 16.0, 4.0 * (told.window_for_wanted or 0)))
    halves = (told.block_samples, max(1, told.block_samples // 2), 2 * told.block_samples, 4 * told.block_samples)
    series = quality_curves(dict.fromkeys(halves), ends, batch=told.global_batch)
    if shards.manifest.shuffled:
        series.append(Series("shuffled when packed", ends, (1.0, 1.0)))
    windows, qualities = _points(shards, told, order, chosen)
    series.append(Series("measured on the labels", windows, qualities, points=True))
    return Plot(
        title=f"Shuffle quality: {_verdict(told)}",
        x_label=f"window in samples (batch of {told.global_batch:,})",
        y_label="quality: 1 is a full shuffle",
        series=series if windows else series[:-1],
        marks=[(told.window_samples, "this window")] if told.window_samples else (),
        log_x=True,
        x_range=ends,
        y_range=(0, max([1.1, *qualities])),
    )


def _verdict(told: Forecast) -> str:
    return f"{told.quality:.2f} expected" + (f", {told.measured.quality:.2f} measured" if told.measured else "")


def _points(shards: ShardSet, told: Forecast, order: Order, chosen: int) -> tuple[Sequence[int], Sequence[float]]:
    """Measure some windows around the chosen one, if labels can be read."""
    labels = labels_to_measure(shards, order, told.global_batch)
    if labels is None:
        return (), ()
    windows = [max(1, round(chosen * factor)) for factor in (1 / 16, 1 / 4, 1, 4)]
    orders = [order.like(window=window, block=order.block, lanes=order.lanes) for window in windows]
    epochs = epochs_to_measure(orders[0])
    return windows, [measured_quality(tried, labels, batch=told.global_batch, epochs=epochs) for tried in orders]


def _sources(order: Order, ids: NDArray[np.int64], batch: int) -> list[tuple[str, float, str]]:
    """Count distinct blocks and shards of batches in the middle of what is given, and of a full shuffle."""
    batch = min(batch, len(ids))  # it may be padded
    count = min(_COUNTED_BATCHES, len(ids) // batch)
    first = (len(ids) // batch - count) // 2 * batch
    full = np.random.default_rng(order.seed).choice(ids, count * batch, replace=False)
    rows = []
    for number, word in ((1, "blocks"), (0, "shards")):
        for whose, some in (("this shuffle", ids[first : first + count * batch]), ("full shuffle", full)):
            parts = order.block_of(some)[number].reshape(count, batch)
            mean = float(np.mean([len(np.unique(part)) for part in parts]))
            rows.append((f"{word}, {whose}", mean, f"{mean:,.1f}"))
    return rows
