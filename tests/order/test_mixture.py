"""Mixtures: exact proportions at every position, one sequence, one state."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, ResumeError
from wds_tools.order.changes import Weights
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.sequence import Order
from wds_tools.order.shares import pattern_of, whole_shares

SHARES = st.lists(st.integers(1, 12), min_size=2, max_size=5)


@st.composite
def mixtures(draw):
    shares = draw(SHARES)
    lanes, seed = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    parts = [
        Order(
            fingerprint=str(number),
            shard_samples=draw(st.lists(st.integers(1, 30), min_size=1, max_size=4)),
            seed=seed,
            window=draw(st.integers(1, 40)),
            block=draw(st.integers(1, 8)),
            lanes=lanes,
        )
        for number in range(len(shares))
    ]
    return MixtureOrder(parts, shares, draw(st.sampled_from(["first_exhausted", "all_exhausted"])))


def part_of(order, ids):
    """Return the number of the dataset of each id."""
    return np.searchsorted(np.cumsum([part.identity.stored for part in order.parts]), ids, side="right")


@given(SHARES)
def test_up_to_any_position_each_dataset_has_its_share_to_within_one_sample(shares):
    pattern = np.tile(pattern_of(shares), 2)
    for number, share in enumerate(shares):
        counts = np.cumsum(pattern == number)
        assert (abs(counts - np.arange(1, len(pattern) + 1) * share / sum(shares)) < 1).all()


@given(mixtures(), st.integers(1, 3), st.integers(0, 2))
def test_batches_of_whole_periods_have_exact_proportions(order, times, epoch):
    size = times * sum(order.shares)
    for start in range(0, order.samples - size + 1, size):
        ids = order.ids(epoch, start, start + size)
        assert np.bincount(part_of(order, ids), minlength=len(order.shares)).tolist() == [
            times * share for share in order.shares
        ]


@given(mixtures(), st.integers(0, 2), st.data())
def test_any_slice_of_the_sequence_equals_that_part_of_the_full_sequence(order, epoch, data):
    full = order.ids(epoch, 0, order.samples)
    start = data.draw(st.integers(0, order.samples))
    stop = data.draw(st.integers(start, order.samples))
    again = order.like(window=order.identity.window, block=order.identity.block, lanes=order.identity.lanes)
    assert (again.ids(epoch, start, stop) == full[start:stop]).all()


@given(mixtures(), st.integers(0, 2))
def test_an_epoch_ends_by_its_stop_rule(order, epoch):
    ids = order.ids(epoch, 0, order.samples)
    counts = np.bincount(part_of(order, ids), minlength=len(order.parts))
    sizes = np.array([part.samples for part in order.parts])
    if order.stop == "first_exhausted":
        assert len(set(ids.tolist())) == len(ids)  # no repetition
        after = pattern_of(order.shares)[order.samples % sum(order.shares)]
        assert counts[after] == sizes[after]  # the next position would need a sample that does not exist
    else:
        assert (counts >= sizes).all()
        assert set(ids.tolist()) == set(range(order.identity.stored))  # each sample at least once
        assert len(set(ids[:-1].tolist())) < order.identity.stored  # but not without the last position
        for number, size in enumerate(sizes.tolist()):
            part_ids = ids[part_of(order, ids) == number]
            assert len(set(part_ids[:size].tolist())) == size  # a pass is complete before the next one


@pytest.mark.parametrize("changes", [8, pytest.param(30, marks=pytest.mark.torture)])
@given(st.sampled_from([None, 1, 4]), st.booleans(), st.data())
def test_the_shares_of_datasets_hold_over_all_changes_however_frequent(changes, unit, is_resumed, data):
    parts = [Order(fingerprint=name, shard_samples=[30, 31], seed=0, window=9, block=3) for name in "xyz"]
    base = MixtureOrder(parts, [2, 1, 1], "first_exhausted", 40, unit)
    shares = st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any)
    some, made, rows = data.draw(st.lists(shares, min_size=1, max_size=3)), [Weights((2, 1, 1))], unit or 1
    orders = EpochOrders(base, find_weights=lambda entries: made[entries["number"]])
    promised, drawn, cursor = np.zeros(3), np.zeros(3), Cursor()
    for number in range(changes):
        for _ in range(data.draw(st.integers(1, 3))):
            row = orders.of(cursor.epoch).ids(cursor.position, cursor.position + rows)
            source = {*np.searchsorted(base.first_ids, row, side="right").tolist()}
            assert len(source) == 1
            drawn[source.pop() - 1] += 1
            promised += np.array(made[-1].shares) / sum(made[-1].shares)
            assert abs(promised - drawn).max() < 2
            following = cursor.position + rows
            cursor = Cursor(cursor.epoch + following // 40, following % 40)
        made.append(Weights(tuple(some[number % len(some)])))
        orders = orders.reweighting({"number": len(made) - 1}, cursor)
        if is_resumed:
            state = {**state_dict(orders.of(cursor.epoch), cursor), **orders.for_state(cursor).state_dict(cursor)}
            state = json.loads(json.dumps(state))
            orders, cursor = resume(state, base, find_weights=lambda entries: made[entries["number"]])


def test_every_pass_and_every_epoch_has_another_order():
    small = Order(fingerprint="s", shard_samples=[40], seed=0, window=40, block=2)
    large = Order(fingerprint="l", shard_samples=[200], seed=0, window=40, block=2)
    order = MixtureOrder([small, large], [1, 1], "all_exhausted")
    passes = [order.ids(epoch, 0, 400)[::2][k * 40 : k * 40 + 40].tolist() for epoch in range(2) for k in range(5)]
    assert all(sorted(one) == list(range(40)) for one in passes)
    assert len(set(map(tuple, passes))) == 10


@given(mixtures(), st.integers(1, 3), st.integers(1, 7), st.data())
def test_resuming_with_any_number_of_ranks_gives_the_rest_of_the_sequence(order, world, batch, data):
    plan = EpochPlan(order.at(1), Cursor(1), World(), data.draw(st.integers(1, 9)), "mask")
    number = data.draw(st.integers(0, len(plan) - 1))
    cursor = plan.cursor_after(number)
    state = json.loads(json.dumps(state_dict(order, cursor)))
    orders, found = resume(state, order.like(window=[3] * len(order.parts), block=[2] * len(order.parts), lanes=1))
    assert found == cursor
    rest = []
    plans = [EpochPlan(orders.of(cursor.epoch), cursor, World(rank, world), batch, "mask") for rank in range(world)]
    for step in (plan.step(k) for plan in plans for k in range(len(plan))):
        rest += [row for row in zip(step.positions.tolist(), step.ids.tolist(), step.valid, strict=True) if row[2]]
    assert [i for _, i, _ in sorted(rest)] == order.ids(cursor.epoch, cursor.position, order.samples).tolist()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [([0.7, 0.3], [7, 3]), ([1, 1], [1, 1]), ([2, 4, 6], [1, 2, 3]), ([1 / 3, 2 / 3], [1, 2]), ([0.125, 1], [1, 8])],
)
def test_weights_become_the_smallest_whole_numbers(weights, shares):
    assert whole_shares(weights) == shares


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
def test_shares_approximate_any_weights_to_two_ten_thousandths(weights):
    shares = np.array(whole_shares(weights))
    assert abs(shares / shares.sum() - np.array(weights) / sum(weights)).max() < 2e-4
    assert shares.sum() <= 10_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"datasets": ["a", "b"], "weights": [1]},
        {"datasets": ["a"], "weights": [-1]},
        {"datasets": [], "weights": []},
        {"datasets": "a", "weights": [1]},
        {"datasets": None, "weights": [1]},
        {"datasets": ["a"], "weights": None},
        {"datasets": ["a"], "weights": ["1"]},
        {"datasets": ["a"], "weights": [1], "stop": "sometime"},
        {"datasets": ["a"], "weights": [float("nan")]},
        {"datasets": ["a"], "weights": [1], "epoch_length": 0},
        {"datasets": ["a"], "weights": [1], "epoch_length": True},
        {"datasets": ["a"], "weights": [1], "epoch_length": 5, "stop": "all_exhausted"},
    ],
)
def test_an_invalid_mixture_is_refused(wrong):
    with pytest.raises(OptionError, match=r"Mixture|stop=|epoch_length="):
        wt.Mixture(**wrong)


@pytest.fixture(scope="module")
def two(photos, tmp_path_factory):
    """Return two datasets with the same class names: one of cats, one of all other classes."""
    folder = tmp_path_factory.mktemp("mixture")
    classes = sorted(path.name for path in photos.iterdir() if path.is_dir())
    for name, wanted in (("cats", classes[:1]), ("others", classes[1:])):
        (folder / f"{name}-in").mkdir()
        for class_name in wanted:
            (folder / f"{name}-in" / class_name).symlink_to(photos / class_name)
        wt.pack(folder / f"{name}-in", folder / name, shard_bytes="500kB", classes=classes, workers=1, images="keep")
    return folder / "cats", folder / "others"


def test_a_loader_of_a_mixture_has_exact_proportions_and_resumes(two):
    def make(**options):
        mixture = wt.Mixture(two, weights=[0.3, 0.7], stop="all_exhausted")
        return wt.make_loader(
            mixture, batch_size=20, shuffle=True, view=wt.RandomResizedCrop(16), fields=("image", "label"), **options
        )

    with make(num_workers=1) as loader:
        batches = [(images.clone(), labels) for images, labels in loader]
        assert len(batches) == len(loader) > 20
        assert all(int((labels == 0).sum()) == 6 for _, labels in batches)
        assert loader.epoch_proof().ok
    with make(num_workers=0) as loader:
        seen = iter(loader)
        for images, labels in batches[:7]:
            got_images, got_labels = next(seen)
            assert (got_images == images).all()
            assert (got_labels == labels).all()
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 400
    with make(num_workers=1) as loader:
        loader.load_state_dict(state)
        assert all(
            (got[0] == want[0]).all() and (got[1] == want[1]).all()
            for got, want in zip(islice(loader, 6), batches[7:13], strict=True)
        )


def test_a_mixture_with_other_weights_refuses_the_state(two):
    def make(weights):
        return wt.make_loader(wt.Mixture(two, weights=weights), batch_size=10, fields=("label",), shuffle=True)

    with make([1, 1]) as one, make([1, 2]) as other, pytest.raises(ResumeError, match="fingerprint"):
        other.load_state_dict(one.state_dict())


def test_datasets_with_different_class_numbers_cannot_be_mixed(two, packed, few_photos, tmp_path):
    classes = sorted(path.name for path in few_photos.iterdir())[::-1]
    wt.pack(few_photos, tmp_path / "flat", workers=1, classes=classes)
    with pytest.raises(LabelError, match="have different classes"):
        wt.make_loader(wt.Mixture([two[0], tmp_path / "flat"], weights=[1, 1]), batch_size=4, fields=("label",))
