"""The canonical sequence: properties over random datasets and topologies."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError, ResumeError
from wds_tools.order import sequence as order_module
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.sequence import Order, default_block

SHARDS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda counts: sum(counts) > 0)


@st.composite
def orders(draw):
    return Order(
        fingerprint=draw(st.sampled_from(["aa", "bb"])),
        shard_samples=draw(SHARDS),
        seed=draw(st.integers(0, 5)),
        window=draw(st.integers(0, 200)),
        block=draw(st.integers(1, 20)),
        lanes=draw(st.integers(1, 5)),
    )


@pytest.fixture(autouse=True)
def segment_samples(request, monkeypatch):
    """Make the segments of the order as small as a test that is marked with `SEGMENTS` requires."""
    monkeypatch.setattr(order_module, "SEGMENT_SAMPLES", getattr(request, "param", order_module.SEGMENT_SAMPLES))


SEGMENTS = pytest.mark.parametrize("segment_samples", [7, 40], indirect=True, ids=lambda n: f"segments-of-{n}")


@SEGMENTS
@given(orders(), st.integers(0, 3))
def test_each_epoch_contains_every_sample_exactly_once(order, epoch):
    assert sorted(order.ids(epoch, 0, order.samples).tolist()) == list(range(order.samples))


@SEGMENTS
@given(orders(), st.data())
def test_any_slice_of_the_sequence_equals_that_part_of_the_full_sequence(order, data):
    start = data.draw(st.integers(0, order.samples))
    stop = data.draw(st.integers(start, order.samples))
    full = order.ids(1, 0, order.samples)
    fresh = order.like(window=order.window, block=order.block, lanes=order.lanes)
    assert (fresh.ids(1, start, stop) == full[start:stop]).all()


@SEGMENTS
@given(SHARDS, st.integers(1, 20), st.integers(1, 100))
def test_no_sample_is_further_from_its_block_than_the_window_and_a_block(shards, block, window):
    order = Order(fingerprint="x", shard_samples=shards, seed=0, window=window, block=block)
    only_blocks = Order(fingerprint="x", shard_samples=shards, seed=0, window=1, block=block)
    position = np.argsort(only_blocks.ids(0, 0, order.samples))  # of each sample if only blocks are permuted
    moved = np.argsort(order.ids(0, 0, order.samples)) - position
    assert abs(moved).max() <= window + block


@SEGMENTS
@given(SHARDS, st.integers(1, 12), st.integers(2, 4), st.integers(0, 60), st.integers(1, 8))
def test_lanes_have_disjoint_blocks_and_take_turns(shards, block, lanes, window, batch):
    order = Order(fingerprint="x", shard_samples=shards, seed=0, window=window, block=block, lanes=lanes)
    ids, lane = order.slice(0, 0, order.samples)
    blocks = order.block_of(ids)[1]
    owner = dict(zip(blocks.tolist(), lane.tolist(), strict=True))
    assert [owner[b] for b in blocks.tolist()] == lane.tolist()
    shortest = np.bincount(lane, minlength=lanes).min()
    assert lane[: shortest * lanes].tolist() == list(range(lanes)) * shortest  # while all lanes have samples
    # With one rank per lane, each rank reads only blocks of its own lane while all lanes have samples.
    for rank in range(lanes):
        plan = EpochPlan(order.at(0), Cursor(), World(rank, lanes), batch, "drop")
        for number in range(min(len(plan), shortest // batch)):
            assert {owner[b] for b in order.block_of(plan.step(number).ids)[1].tolist()} == {rank}


def test_a_shuffled_epoch_differs_from_the_stored_order_and_from_other_epochs_seeds_and_datasets():
    def ids(fingerprint="x", seed=0, epoch=0):
        order = Order(fingerprint=fingerprint, shard_samples=[500, 500], seed=seed, window=300, block=10)
        return order.ids(epoch, 0, 1000)

    first = ids()
    assert (first == ids()).all()
    for other in (np.arange(1000), ids(seed=1), ids(epoch=1), ids(fingerprint="y")):
        assert (first == other).mean() < 0.05


def test_the_pinned_order_has_not_changed():
    for lanes, expected in PINNED.items():
        order = Order(fingerprint="pinned", shard_samples=[6, 4, 5], seed=3, window=8, block=2, lanes=lanes)
        assert order.ids(2, 0, 15).tolist() == expected


PINNED = {  # by number of lanes
    1: [10, 11, 9, 5, 14, 8, 12, 4, 13, 6, 2, 1, 3, 7, 0],
    3: [12, 10, 9, 13, 11, 8, 14, 6, 2, 5, 7, 3, 4, 1, 0],
}


@SEGMENTS
@given(orders(), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["drop", "pad", "mask"]), st.data())
def test_the_samples_of_each_step_do_not_depend_on_the_number_of_ranks(order, world, batch, tail, data):
    cursor = Cursor(1, data.draw(st.integers(0, order.samples)))
    many = [EpochPlan(order.at(cursor.epoch), cursor, World(rank, world), batch, tail) for rank in range(world)]
    one = EpochPlan(order.at(cursor.epoch), cursor, World(), batch * world, tail)
    assert {len(plan) for plan in many} == {len(one)}
    for number in range(len(one)):
        steps = [plan.step(number) for plan in many]
        expected = one.step(number)
        rows = [row for step in steps for row in zip(step.positions, step.ids, step.valid, strict=True)]
        assert sorted(rows) == list(zip(expected.positions, expected.ids, expected.valid, strict=True))


@SEGMENTS
@given(orders(), st.integers(1, 50), st.sampled_from(["drop", "pad", "mask"]))
def test_an_epoch_delivers_each_sample_once_except_a_dropped_tail(order, batch, tail):
    plan = EpochPlan(order.at(0), Cursor(0), World(), batch, tail)
    steps = [plan.step(number) for number in range(len(plan))]
    valid = [int(i) for step in steps for i, ok in zip(step.ids, step.valid, strict=True) if ok]
    assert len(set(valid)) == len(valid)
    if tail == "drop":
        assert all(step.valid.all() for step in steps)
        assert order.samples - len(valid) < batch
    else:
        assert sorted(valid) == list(range(order.samples))
    assert all(len(step.ids) == batch and ((step.ids >= 0) & (step.ids < order.samples)).all() for step in steps)


@SEGMENTS
@given(orders(), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.data())
def test_resuming_with_any_ranks_and_batch_size_gives_the_rest_of_the_sequence(
    order, world, batch, world2, batch2, data
):
    plan = EpochPlan(order.at(2), Cursor(2), World(0, world), batch, "mask")
    number = data.draw(st.integers(0, len(plan) - 1))
    state = json.loads(json.dumps(state_dict(order, plan.cursor_after(number))))
    fresh = order.like(window=99 if order.window else 0, block=3, lanes=2)  # ignored: those of the state are used
    orders, cursor = resume(state, fresh)
    order2 = orders.of(2)
    if number == len(plan) - 1:
        assert cursor == Cursor(3, 0)
        return
    rest = []
    for rank in range(world2):
        plan2 = EpochPlan(order2, cursor, World(rank, world2), batch2, "mask")
        for step in (plan2.step(n) for n in range(len(plan2))):
            rest += [(int(p), int(i)) for p, i, ok in zip(step.positions, step.ids, step.valid, strict=True) if ok]
    done = (number + 1) * world * batch
    expected = order.ids(2, done, order.samples)
    assert [i for _, i in sorted(rest)] == expected.tolist()


def test_a_state_is_a_few_hundred_bytes_of_json():
    order = Order(fingerprint="f" * 32, shard_samples=[10**7] * 100, seed=1, window=5000, block=19)
    assert len(json.dumps(state_dict(order, Cursor(12, 10**9 - 1)))) < 300


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"fingerprint": "other"}, ["other", "mine"]),
        ({"seed": 5}, ["5", "0"]),
        ({"version": 99}, ["99", "2"]),
        ({"version": 1}, ["format version 1", "writes 2", "set_epoch(0)", "position 10"]),
        ({"position": 10**9}, ["1,000,000,000"]),
        ({"position": -1}, ["-1"]),
        ({"epoch": "x"}, ["state"]),
        ({"window": 0}, ["window of 0", "50"]),
    ],
)
def test_a_state_that_does_not_match_the_order_is_refused_with_both_values(change, values):
    order = Order(fingerprint="mine", shard_samples=[100], seed=0, window=50, block=5)
    with pytest.raises(ResumeError) as caught:
        resume({**state_dict(order, Cursor(0, 10)), **change}, order)
    assert all(value in str(caught.value) for value in values)


def test_a_state_of_version_1_is_accepted_where_the_order_is_still_the_same():
    shuffled = Order(fingerprint="mine", shard_samples=[100], seed=0, window=50, block=5)
    stored = shuffled.like(window=0, block=5, lanes=1)
    for order, cursor in ((shuffled, Cursor(3, 0)), (stored, Cursor(3, 17))):
        orders, found = resume({**state_dict(order, cursor), "version": 1}, order)
        assert found == cursor
        assert orders.of(3).ids(0, 100).tolist() == order.ids(3, 0, 100).tolist()
    for order in (shuffled, stored.like(window=0, block=5, lanes=2)):
        state = {**state_dict(order, Cursor(3, 17)), "version": 1}
        with pytest.raises(ResumeError, match="orders the samples of an epoch differently"):
            resume(state, order)
        assert resume(state, order, force=True)[1] == Cursor(3, 17)


def test_an_object_that_is_not_a_state_is_refused():
    order = Order(fingerprint="mine", shard_samples=[100], seed=0, window=50, block=5)
    for nonsense in ({}, {"version": 1}, [], None):
        with pytest.raises(ResumeError, match="this is not a loader state"):
            resume(nonsense, order)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_an_invalid_rank_is_refused(rank, world_size):
    with pytest.raises(OptionError, match="allowed"):
        World(rank, world_size)


def test_a_slice_of_a_billion_samples_is_computed_without_the_full_order():
    order = Order(fingerprint="x", shard_samples=[10_000] * 100_000, seed=0, window=50_000, block=19)
    ids = order.ids(3, 777_777_777, 777_778_277)
    assert len(set(ids.tolist())) == 500
    assert ids.max() > 9e8  # the ids are spread over the whole dataset
    assert ids.min() < 1e8


@given(st.integers(1, 10**9), st.integers(1, 10**14))
def test_default_block_is_about_two_mebibytes(samples, total):
    block = default_block(samples, total)
    assert 1 <= block <= 65_536
    if 1 < block < 65_536:
        assert 0.5 < block * total / samples / (2 << 20) < 2
