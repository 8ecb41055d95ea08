"""`Mixture(epoch_length=N)`: epochs of N samples; the datasets continue from epoch to epoch."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.errors import ResumeError
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.sequence import Order


@st.composite
def endless(draw):
    shares = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    lanes = draw(st.integers(1, 3))
    parts = [
        Order(
            fingerprint=str(number),
            shard_samples=draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)),
            seed=1,
            window=draw(st.integers(1, 40)),
            block=draw(st.integers(1, 8)),
            lanes=lanes,
        )
        for number in range(len(shares))
    ]
    return MixtureOrder(parts, shares, "first_exhausted", draw(st.integers(1, 60)))


def first_epochs(order, epochs):
    return np.concatenate([order.ids(epoch, 0, order.samples) for epoch in range(epochs)])


@given(endless())
def test_each_sample_of_a_dataset_comes_once_before_one_repeats_and_shares_hold_over_epochs(order):
    ids = first_epochs(order, 6)
    assert len(ids) == 6 * order.epoch_length
    edges = np.cumsum([0, *(part.identity.stored for part in order.parts)])
    for number, part in enumerate(order.parts):
        own = ids[(ids >= edges[number]) & (ids < edges[number + 1])] - edges[number]
        assert abs(len(own) - len(ids) * order.shares[number] / sum(order.shares)) < 1
        passes = [own[start : start + part.samples] for start in range(0, len(own), part.samples)]
        for sequence, one in enumerate(passes):
            assert len(set(one.tolist())) == len(one)
            assert one.tolist() == part.ids(sequence, 0, len(one)).tolist()  # in a new order each time


@given(endless(), st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_state_continues_on_any_number_of_ranks(order, world, batch, data):
    cursor = Cursor(data.draw(st.integers(0, 5)), data.draw(st.integers(0, order.samples - 1)))
    state = json.loads(json.dumps(state_dict(order, cursor)))
    fresh = order.like(window=[3] * len(order.parts), block=[2] * len(order.parts), lanes=1)
    orders, found = resume(state, fresh)
    plans = [EpochPlan(orders.of(cursor.epoch), found, World(rank, world), batch, "mask") for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    steps = [plan.step(number) for plan in plans for number in range(len(plan))]
    rows = [row for one in steps for row in zip(one.positions, one.ids, one.valid, strict=True) if row[2]]
    assert [i for _, i, _ in sorted(rows)] == order.ids(cursor.epoch, cursor.position, order.samples).tolist()


def test_a_loader_has_epochs_of_this_length_and_continues_its_datasets(packed, few):
    def make(length=60, **options):
        mixture = wt.Mixture([packed, few], weights=[2, 1], epoch_length=length)
        return wt.make_loader(mixture, batch_size=10, shuffle=True, fields="__key__", **options)

    with make(num_workers=1) as loader:
        assert (len(loader), loader.samples) == (6, 60)
        epochs = [[key for batch in loader for key in batch] for _ in range(4)]
        assert loader.epoch_proof().ok
    with make(num_workers=0) as loader:
        ids = [sample.id for step in range(24) for sample in loader.explain(step).samples]
    large, small = [one for one in ids if one < 400], [one for one in ids if one >= 400]
    assert len(set(large)) == len(large) == 160
    assert sorted(small) == sorted([*range(400, 440), *range(400, 440)])
    assert len(set(small[:40])) == 40
    with make(num_workers=0) as loader:
        got = [key for _ in range(2) for batch in loader for key in batch]
        got += [key for batch in islice(loader, 3) for key in batch]
        state = json.loads(json.dumps(loader.state_dict()))
    with make(num_workers=0, rank=0, world_size=1) as loader:
        loader.load_state_dict(state)
        got += [key for _ in range(2) for batch in loader for key in batch]
    assert got == [key for epoch in epochs for key in epoch]
    with make(length=80, num_workers=0) as loader, pytest.raises(ResumeError, match="fingerprint"):
        loader.load_state_dict(state)


def test_one_dataset_can_have_an_epoch_length_of_its_own_with_all_options(few):
    mixture = wt.Mixture([few], weights=[1], epoch_length=15)
    options = {"batch_size": 5, "shuffle": True, "fields": ("image", "label"), "num_workers": 0, "seed": 3}
    with wt.make_loader(mixture, view=wt.CenterCrop(16, resize=20), class_weights={"cat": 4}, **options) as loader:
        assert len(loader) == 3
        assert loader.class_factors["cat"] > 2
        labels = [label for _ in range(8) for _, batch in zip(range(3), loader, strict=True) for label in batch[1]]
    with wt.make_loader(few, class_weights={"cat": 4}, **{**options, "fields": ("label",)}) as loader:
        passes = [label for _ in range(3) for batch in loader for label in batch.label]
    assert [int(label) for label in labels] == [int(label) for label in passes]


def test_a_mixture_with_an_epoch_length_can_leave_out_samples(packed, few):
    mixture = wt.Mixture([packed, few], weights=[1, 1], epoch_length=50)
    options = {"batch_size": 5, "shuffle": True, "fields": ("__key__",), "num_workers": 0}
    with wt.make_loader(mixture, **options) as loader:
        full = [sample.id for step in range(20) for sample in loader.explain(step).samples]
    with wt.make_loader(mixture, ban=full[10:13], tail="mask", **options) as loader:
        got = [one.id for step in range(20) for one in loader.explain(step).samples if not one.is_padding]
    assert got == [one for one in full if one not in full[10:13]]
