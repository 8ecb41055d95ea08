"""Partners: chosen near the sample, in its lane, whatever the batch and the number of ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.order.buckets import BucketOrder
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.partners import partners_of, reach_of
from wds_tools.order.sequence import Order


def order_of(samples=5000, lanes=1, window=600, seed=3, block=40):
    return Order(fingerprint="f", shard_samples=[samples], seed=seed, window=window, block=block, lanes=lanes)


@given(
    st.integers(1, 3000), st.sampled_from([1, 2, 8]), st.sampled_from([0, 1, 50, 5000]), st.integers(0, 5), st.data()
)
def test_partners_are_near_in_the_lane_and_depend_on_the_position_alone(samples, lanes, window, epoch, data):
    order = order_of(samples, lanes, window).at(epoch)
    ids, of_lane = order.slice(0, order.samples)
    reach = reach_of(order.identity)
    row_of = {sample: row for row, sample in enumerate(ids.tolist())}
    start = data.draw(st.integers(0, samples - 1))
    positions = np.arange(start, min(start + data.draw(st.integers(1, 40)), samples))
    found = partners_of(order, positions, 3)
    for position, partners in zip(positions.tolist(), found.tolist(), strict=True):
        rows = np.array([row_of[partner] for partner in partners])
        assert (of_lane[rows] == of_lane[position]).all()
        low, high = (0, min(reach, samples)) if position < reach else (position - reach, position)
        others = [row for row in range(low, high) if of_lane[row] == of_lane[position] and row != position]
        assert (rows == position).all() if not others else np.isin(rows, others).all()
    alone = [partners_of(order, positions[i : i + 1], 3) for i in range(len(positions))]
    assert (np.concatenate(alone) == found).all()
    assert (partners_of(order, positions[::-1], 3) == found[::-1]).all()


def test_partners_differ_between_samples_epochs_and_seeds():
    positions = np.arange(2000, 2500)
    found = partners_of(order_of().at(0), positions, 3)
    assert len(np.unique(found)) > 700  # of 1,100
    assert (found[:, 0] != found[:, 1]).mean() > 0.99
    for other in (order_of().at(1), order_of(seed=4).at(0)):
        assert (partners_of(other, positions, 3) != found).mean() > 0.99


def test_partners_in_a_mixture_and_in_buckets_are_samples_of_the_epoch():
    mixture = MixtureOrder([order_of(700), order_of(300, seed=9)], [3, 1], "first", None)
    labels = np.arange(5000) % 3
    for run in (mixture, BucketOrder(order_of(), labels, [(8, 8), (8, 9), (9, 8)], 16)):
        order = run.at(1).without(100, [5, 6, 7])
        positions = np.arange(90, 130)
        found = partners_of(order, positions, 8)
        assert np.isin(found, order.ids(0, order.samples)).all()
        assert (partners_of(order, positions[7:9], 8) == found[7:9]).all()


def test_padding_after_the_end_has_partners():
    order = order_of(50).at(0)
    assert np.isin(partners_of(order, np.arange(48, 64), 3), np.arange(50)).all()


def test_the_only_sample_is_its_own_partner():
    assert partners_of(order_of(1, block=1).at(0), np.array([0]), 3).tolist() == [[0, 0, 0]]
