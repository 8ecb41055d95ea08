"""Shuffle quality: predictions agree with measurements, and a requested quality is reached."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.order.quality import TYPICAL_BATCH, measured_quality, predicted, window_for, window_of
from wds_tools.order.sequence import Order, default_block

CLASSES, PER_CLASS = 200, 600
SORTED = np.repeat(np.arange(CLASSES), PER_CLASS)  # stored class by class


def order_of(window, block):
    shards = [1_000] * (CLASSES * PER_CLASS // 1_000)
    return Order(fingerprint="q", shard_samples=shards, seed=0, window=window, block=block)


@pytest.mark.parametrize(
    ("block", "window", "batch"),
    [(8, 4_000, 128), (8, 20_000, 512), (20, 4_000, 512), (20, 20_000, 128), (60, 4_000, 128), (60, 20_000, 512)],
)
def test_the_prediction_is_within_a_fifth_of_the_measurement_on_sorted_data(block, window, batch):
    expected = predicted(batch=batch, block=block, window=window, shuffled=False)
    assert 0.8 < measured_quality(order_of(window, block), SORTED, batch=batch) / expected < 1.25


def test_a_requested_quality_is_reached_on_data_sorted_by_class():
    for wanted in (0.5, 0.8):
        window = window_for(wanted, batch=128, block=8)
        assert measured_quality(order_of(window, 8), SORTED, batch=128) > 0.9 * wanted


def test_shuffled_data_has_full_quality_with_its_default_window():
    labels = np.random.default_rng(0).permutation(SORTED)
    order = order_of(window_of(True, block=20, samples=400_000, shuffled=True), 20)
    assert measured_quality(order, labels, batch=256) > 0.95


def test_sorted_data_without_a_shuffle_has_almost_no_quality():
    assert measured_quality(order_of(0, 20), SORTED, batch=128) < 0.05
    assert predicted(batch=128, block=20, window=0, shuffled=False) == 0


@given(st.floats(0.01, 0.99), st.integers(2, 4096), st.integers(1, 500))
def test_window_for_inverts_the_prediction(quality, batch, block):
    window = window_for(quality, batch=batch, block=block)
    if window > 100:
        assert predicted(batch=batch, block=block, window=window, shuffled=False) == pytest.approx(quality, abs=0.01)


@pytest.mark.parametrize("shuffle", [0, -5, 1.5, "much", 1.0, 0.0])
def test_a_value_that_is_neither_a_window_nor_a_quality_is_refused(shuffle):
    with pytest.raises(OptionError, match=r"allowed|above 0"):
        window_of(shuffle, block=10, samples=400_000, shuffled=False)


def test_the_default_window_does_not_depend_on_the_batch_size():
    assert window_of(True, block=19, samples=400_000, shuffled=False, batch=64) == window_of(
        True, block=19, samples=400_000, shuffled=False, batch=4096
    )
    assert window_of(0.9, block=19, samples=400_000, shuffled=False, batch=64) < window_of(
        0.9, block=19, samples=400_000, shuffled=False, batch=4096
    )


def test_measuring_more_epochs_reduces_the_variance_of_the_quality_of_few_batches():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(8), 50))
    orders = [
        Order(fingerprint="few", shard_samples=[400], seed=seed, window=4096, block=20, lanes=1) for seed in range(8)
    ]
    one_epoch, many_epochs = ([measured_quality(o, labels, batch=32, epochs=n) for o in orders] for n in (1, 10))
    assert np.std(many_epochs) < np.std(one_epoch) / 2
    assert np.mean(many_epochs) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("lanes", [1, 8])
def test_the_default_window_has_quality_095_on_shuffled_data_and_09_on_sorted_data(lanes):
    samples, block = 400_000, default_block(400_000, 400_000 * 110_000)
    by_class = np.arange(samples) * 1000 // samples
    for labels, shuffled, least in (
        (np.random.default_rng(1).permutation(by_class), True, 0.95),
        (by_class, False, 0.9),
    ):
        window = window_of(True, block=block, samples=400_000, shuffled=shuffled)
        order = Order(fingerprint="d", shard_samples=[8_000] * 50, seed=0, window=window, block=block, lanes=lanes)
        assert measured_quality(order, labels, batch=TYPICAL_BATCH) >= least


def repeated_pairs(first, second, batch):
    """Return the number of pairs of samples that share a batch in both of two epochs."""
    steps = np.arange(len(first)) // batch
    later = np.empty(len(first), np.int64)
    later[second] = steps
    together = np.unique(steps * len(first) + later[first], return_counts=True)[1]
    return (together * (together - 1) // 2).sum()


@pytest.mark.parametrize(("window", "block"), [(4_096, 19), (4_096, 100), (20_000, 100)])
def test_the_number_of_repeated_pairs_follows_from_window_and_block(window, block):
    samples, batch = 500_000, 256
    order = Order(fingerprint="m", shard_samples=[10_000] * 50, seed=0, window=window, block=block)
    full = (batch - 1) / 2 * batch  # repeated pairs with full shuffles: steps x pairs x batch / samples
    relative = repeated_pairs(order.ids(0, 0, samples), order.ids(1, 0, samples), batch) / full
    assert relative == pytest.approx(1 + (block - 1) * samples / window**2, rel=0.1)
