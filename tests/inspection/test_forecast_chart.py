"""The chart of a forecast shows the positions and the quality of the order."""

from xml.etree import ElementTree

import numpy as np
import pytest

from wds_tools.format.manifest import Manifest, ShardEntry
from wds_tools.inspection.forecast import forecast
from wds_tools.inspection.forecast_chart import block_positions, forecast_chart, quality_curves
from wds_tools.order.quality import predicted
from wds_tools.order.sequence import Order
from wds_tools.reading.shardset import ShardSet


def order_of(window, samples=20_000):
    return Order(fingerprint="p", shard_samples=[1_000] * (samples // 1_000), seed=0, window=window, block=20)


def lengths(plot):
    """Return the length of each row of points; a row is a block of 20 samples."""
    x, y = (np.asarray(values) for values in (plot.series[0].x, plot.series[0].y))
    return [np.ptp(x[y // 20 == block]) for block in np.unique(y // 20)]


def test_a_row_of_points_is_a_block_and_about_as_long_as_the_window():
    for window in (500, 4_000):
        order = order_of(window)
        rows = lengths(block_positions("", order, order.ids(0, 0, order.samples)))
        assert len(rows) == 24
        assert 0.5 * window < np.mean(rows) <= window


def test_points_are_positions_of_samples_in_the_epoch_and_the_dataset():
    order = order_of(2_000)
    ids = order.ids(0, 0, order.samples)
    (series,) = block_positions("", order, ids).series
    assert ids[list(series.x)].tolist() == list(series.y)


def test_the_stored_order_is_a_rising_line():
    order = order_of(0)
    (series,) = block_positions("", order, order.ids(0, 0, order.samples)).series
    assert list(series.x) == list(series.y)


def test_the_curves_are_the_predicted_quality():
    (curve,) = quality_curves([19], (100, 100_000), batch=256)
    assert [curve.x[0], curve.x[-1]] == pytest.approx([100, 100_000])
    assert curve.y[-1] == predicted(batch=256, block=19, window=100_000, shuffled=False)


@pytest.mark.parametrize("shuffle", [True, False, 300])
@pytest.mark.torture_except("300")
def test_a_large_dataset_without_labels_is_drawn_without_measured_points(shuffle):
    entries = tuple(
        ShardEntry(f"{n}.tar", 10_000, 10_000 * 110_000, "0" * 32, f"{n}.parquet", 1, "") for n in range(10_000)
    )
    shards = ShardSet(Manifest(entries, {"jpg": 10**8}), [], name="<large> & hostile")
    drawn = forecast_chart(shards, forecast(shards, batch_size=256, shuffle=shuffle))
    assert "measured" not in drawn
    assert "the first 1.049 M" in drawn
    assert ElementTree.fromstring(drawn)[0].text == "Shuffle of <large> & hostile"
