"""Shuffle quality: the prediction agrees with what is measured, and a wanted quality is reached."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.order import Order
from wds_tools.quality import measure, predicted, window_for, window_of

CLASSES, PER_CLASS = 200, 600
SORTED = np.repeat(np.arange(CLASSES), PER_CLASS)  # stored class by class


def order_of(window, block):
    shards = [1_000] * (CLASSES * PER_CLASS // 1_000)
    return Order(fingerprint="q", shard_samples=shards, seed=0, window=window, block=block)


@pytest.mark.parametrize("block", [8, 20, 60])
@pytest.mark.parametrize("window", [4_000, 20_000])
@pytest.mark.parametrize("batch", [128, 512])
def test_the_prediction_is_within_a_fifth_of_what_is_measured_on_sorted_data(block, window, batch):
    expected = predicted(batch=batch, block=block, window=window, shuffled=False)
    assert 0.8 < measure(order_of(window, block), SORTED, batch=batch).quality / expected < 1.25


def test_a_wanted_quality_is_reached_on_data_sorted_by_class():
    for wanted in (0.5, 0.8):
        window = window_for(wanted, batch=128, block=8)
        assert measure(order_of(window, 8), SORTED, batch=128).quality > 0.9 * wanted


def test_shuffled_data_needs_no_window_for_its_quality():
    labels = np.random.default_rng(0).permutation(SORTED)
    assert measure(order_of(window_of(True, block=20, shuffled=True), 20), labels, batch=256).quality > 0.95


def test_without_a_shuffle_sorted_data_has_almost_no_quality():
    assert measure(order_of(0, 20), SORTED, batch=128).quality < 0.05
    assert predicted(batch=128, block=20, window=0, shuffled=False) == 0


def test_a_larger_window_spreads_a_batch_over_more_blocks_and_neighbours_further():
    small, large = (measure(order_of(window, 20), SORTED, batch=128) for window in (500, 20_000))
    assert small.blocks_per_batch < large.blocks_per_batch <= large.blocks_full * 1.01
    assert small.shards_per_batch < large.shards_per_batch <= large.shards_full * 1.01
    assert small.travel < large.travel < large.travel_full


@given(st.floats(0.01, 0.99), st.integers(2, 4096), st.integers(1, 500))
def test_window_for_inverts_the_prediction(quality, batch, block):
    window = window_for(quality, batch=batch, block=block)
    if window > 100:
        assert predicted(batch=batch, block=block, window=window, shuffled=False) == pytest.approx(quality, abs=0.01)


@pytest.mark.parametrize("shuffle", [0, -5, 1.5, "much", 1.0, 0.0])
def test_what_is_neither_a_window_nor_a_quality_is_refused(shuffle):
    with pytest.raises(OptionError, match=r"allowed|above 0"):
        window_of(shuffle, block=10, shuffled=False)


def test_the_default_window_does_not_depend_on_the_batch_so_that_the_order_does_not():
    assert window_of(True, block=19, shuffled=False, batch=64) == window_of(True, block=19, shuffled=False, batch=4096)
    assert window_of(0.9, block=19, shuffled=False, batch=64) < window_of(0.9, block=19, shuffled=False, batch=4096)
