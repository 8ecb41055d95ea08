"""Selections: exact counts per class, rotation of repeated samples, splits, and their order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.order.keyed_random import hashes, key_of, permute
from wds_tools.order.selection import Selection, apportion, balance, draw, split_by_class
from wds_tools.order.sequence import Order

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(lambda values: np.array(values, np.int64))
WEIGHTS = st.lists(st.sampled_from([0.1, 0.5, 1.0, 3.0, 100.0]), min_size=5, max_size=5).map(np.array)


@given(st.integers(0, 1000), st.lists(st.floats(0, 100), min_size=1, max_size=9).filter(lambda s: sum(s) > 1e-3))
def test_apportioned_shares_add_up_and_differ_by_less_than_one_from_the_exact_ones(total, shares):
    parts = apportion(total, np.array(shares))
    assert parts.sum() == total
    assert (abs(parts - total * np.array(shares) / sum(shares)) < 1 + 1e-6).all()


@given(LABELS, WEIGHTS, st.integers(0, 5))
def test_each_class_has_its_share_of_each_epoch_and_its_samples_repeat_equally_often(label, weights, epoch):
    selection = Selection(np.arange(len(label)) * 3, balance=balance(label, weights), seed=1)
    ids = selection.ids(epoch)
    assert len(ids) == selection.samples == len(label)
    assert (np.diff(ids) >= 0).all()
    share = weights[label]  # as for WeightedRandomSampler
    for number in np.unique(label):
        repeats = selection.repeats(epoch)[label == number]
        expected = len(label) * share[label == number].sum() / share.sum()
        assert abs(repeats.sum() - expected) < 1 + 1e-6
        assert repeats.max() - repeats.min() <= 1


def test_extra_repetitions_rotate_over_all_samples_of_a_class():
    label = np.array([0] * 30 + [1] * 10)
    selection = Selection(np.arange(40), balance=balance(label, np.array([1 / 30, 1 / 10])), seed=0)
    assert selection.balance.factors.tolist() == [20 / 30, 2.0]
    counts = sum(selection.repeats(epoch) for epoch in range(3))
    assert (counts[:30] == 2).all()  # 20 of 30 samples in each of three epochs
    assert (counts[30:] == 6).all()
    assert (selection.repeats(0) != selection.repeats(1)).any()


def test_the_counts_are_those_of_a_weighted_random_sampler():
    import torch

    label = np.repeat([0, 1, 2], [700, 200, 100])
    weights = np.array([1.0, 2.0, 10.0])
    torch.manual_seed(0)
    drawn = list(torch.utils.data.WeightedRandomSampler(weights[label].tolist(), 200_000))
    theirs = np.bincount(label[drawn]) / 200
    ours = balance(label, weights).targets
    assert abs(theirs - ours).max() < 10


@pytest.mark.parametrize("weights", [[-1, 1], [np.nan, 1], [np.inf, 1], [0, 0]])
def test_invalid_weights_are_refused(weights):
    with pytest.raises(OptionError, match="class_weights"):
        balance(np.array([0, 1]), np.array(weights, np.float64))


def test_an_empty_selection_is_refused():
    with pytest.raises(OptionError, match="leave no sample"):
        Selection(np.empty(0, np.int64))


@given(LABELS, st.data())
def test_a_split_is_disjoint_complete_and_stratified(label, data):
    ids = np.arange(len(label)) * 2
    count = data.draw(st.integers(0, len(label)))
    first, second = split_by_class(ids, label, count, seed=3)
    assert len(second) == count
    assert sorted([*first, *second]) == ids.tolist()
    for number in np.unique(label):
        class_ids = ids[label == number]
        assert abs(np.isin(second, class_ids).sum() - len(class_ids) * count / len(ids)) < 1 + 1e-6


def test_another_seed_draws_other_samples():
    ids = np.arange(1000)
    one, two = (draw(ids, 100, seed=seed, purpose="subset") for seed in (0, 1))
    assert len(one) == 100
    assert (one == draw(ids, 100, seed=0, purpose="subset")).all()
    assert len(np.intersect1d(one, two)) < 40


@given(LABELS, WEIGHTS, st.integers(0, 50), st.integers(1, 7), st.integers(1, 3), st.integers(0, 4))
def test_an_order_of_a_selection_contains_exactly_its_samples(label, weights, window, block, lanes, epoch):
    selection = Selection(np.arange(len(label)) * 3, balance=balance(label, weights), seed=1)
    shards = [3 * len(label) - 5, 5] if len(label) > 2 else [3 * len(label)]
    order = Order(
        fingerprint="x", shard_samples=shards, seed=0, window=window, block=block, lanes=lanes, selection=selection
    )
    ids = order.ids(epoch, 0, order.samples)
    assert sorted(ids.tolist()) == selection.ids(epoch).tolist()
    middle = order.samples // 2
    again = order.like(window=window, block=block, lanes=lanes)
    assert again.ids(epoch, middle, order.samples).tolist() == ids[middle:].tolist()


def test_repetitions_of_a_sample_stay_within_the_window_of_their_block():
    label = np.array([0] * 900 + [1] * 100)
    selection = Selection(np.arange(1000), balance=balance(label, np.array([1 / 900, 1 / 100])), seed=0)
    order = Order(fingerprint="x", shard_samples=[1000], seed=0, window=50, block=10, selection=selection)
    ids = order.ids(0, 0, 1000)
    for sample in (905, 950):
        positions = np.flatnonzero(ids == sample)
        assert len(positions) == 5
        assert np.ptp(positions) <= 2 * (50 + 10)


def repeats_of_all(label, found, seed, epoch):
    """Return how often each sample occurs, class by class."""
    repeats = np.zeros(len(label), np.int64)
    for number in np.flatnonzero(found.targets):
        members = np.flatnonzero(label == number)
        base, extra = divmod(int(found.targets[number]), len(members))
        turn = permute(key_of("balance", seed), len(members), np.arange(len(members)))
        repeats[members] = base + ((turn - epoch * extra) % len(members) < extra)
    return repeats


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_samples_of_an_epoch_are_found_without_all_of_them(epoch):
    label = np.minimum(np.random.default_rng(0).geometric(0.2, 300_000), 40).astype(np.int8)
    found = balance(label, np.arange(41.0))
    selection = Selection(range(len(label)), balance=found, seed=4)
    repeats = repeats_of_all(label, found, 4, epoch)
    assert (selection.repeats(epoch) == repeats).all()
    expected = np.repeat(np.arange(len(label)), repeats)
    assert (selection.ids(epoch) == expected).all()
    items = np.random.default_rng(1).integers(0, len(expected), 10_000)
    assert (selection.at(epoch, items) == expected[items]).all()
    positions, ids = selection.find(epoch, np.array([5, 299_998]))
    assert positions.tolist() == np.flatnonzero(np.isin(expected, [5, 299_998])).tolist()
    assert ids.tolist() == expected[positions].tolist()


def test_turns_and_digests_of_narrow_numbers_are_those_of_wide_ones():
    label = np.arange(1000) % 7
    weights = np.arange(1, 8.0)
    wide = Selection(np.arange(1000), balance=balance(label, weights), seed=2)
    narrow = Selection(range(1000), balance=balance(label.astype(np.int8), weights), seed=2)
    assert wide.digest == narrow.digest
    assert (wide.ids(5) == narrow.ids(5)).all()
    assert Selection(np.arange(1000)).digest == Selection(np.arange(1000, dtype=np.int32)).digest


@pytest.mark.parametrize("count", [1, 999, 70_000, 300_000])
def test_those_with_the_smallest_hashes_are_drawn(count):
    ids = np.arange(0, 900_000, 3)
    by_hash = np.argsort(hashes(key_of("subset", 7), ids), kind="stable")
    assert (draw(ids, count, seed=7, purpose="subset") == ids[np.sort(by_hash[:count])]).all()
