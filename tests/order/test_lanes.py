"""Lanes: each machine reads the same blocks in every epoch, and takes samples of other lanes only at the end."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.order import sequence as order_module
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.quality import measure_reading
from wds_tools.order.selection import Selection, balance
from wds_tools.order.sequence import Order


@st.composite
def orders(draw, least_window=0):
    shards = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda counts: sum(counts) > 0))
    selection = None
    if draw(st.booleans()):
        keep = draw(st.integers(1, sum(shards)))
        selection = Selection(np.sort(np.random.default_rng(keep).permutation(sum(shards))[:keep]))
    return Order(
        fingerprint=draw(st.sampled_from(["aa", "bb"])),
        shard_samples=shards,
        seed=draw(st.integers(0, 5)),
        window=draw(st.integers(least_window, 200)),
        block=draw(st.integers(1, 20)),
        lanes=draw(st.integers(1, 9)),
        selection=selection,
    )


@pytest.fixture(params=[7, 40], ids=lambda n: f"segments-of-{n}")
def segment_samples(request, monkeypatch):
    monkeypatch.setattr(order_module, "SEGMENT_SAMPLES", request.param)


def lane_of_each_id(order, epoch):
    """Return the lane of each selected id in ascending order of the ids."""
    ids, lanes = order.slice(epoch, 0, order.samples)
    return lanes[np.argsort(ids)]


@pytest.mark.usefixtures("segment_samples")
@given(orders(), st.integers(1, 1000))
def test_a_sample_belongs_to_the_same_lane_in_all_epochs(order, epoch):
    assert (lane_of_each_id(order, 0) == lane_of_each_id(order, epoch)).all()


@given(orders())
def test_all_samples_of_a_block_belong_to_one_lane(order):
    lane = lane_of_each_id(order, 0)
    ids = np.arange(order.samples)
    block = ids // order.block if order.selection else order.block_of(ids)[1]
    assert len(np.unique(np.stack([block, lane]), axis=1).T) == len(np.unique(block))


@given(orders(least_window=1))
def test_lanes_have_equal_numbers_of_blocks_and_their_samples_differ_by_at_most_a_block(order):
    lane = lane_of_each_id(order, 0)
    samples = np.bincount(lane, minlength=order.lanes)
    assert np.ptp(samples) <= order.block
    if order.selection is None:
        block = order.block_of(np.arange(order.samples))[1]
        blocks = np.bincount(lane[np.unique(block, return_index=True)[1]], minlength=order.lanes)
        assert np.ptp(blocks) <= 1


@pytest.mark.usefixtures("segment_samples")
@given(orders())
def test_the_sequence_takes_one_sample_of_each_lane_in_turn_and_skips_those_that_have_ended(order):
    lanes = order.slice(2, 0, order.samples)[1]
    left = np.bincount(lanes, minlength=order.lanes)
    expected = [lane for turn in range(int(left.max())) for lane in range(order.lanes) if left[lane] > turn]
    assert lanes.tolist() == expected


def test_each_lane_is_a_random_mix_of_all_shards():
    order = Order(fingerprint="x", shard_samples=[1_010] * 50, seed=0, window=500, block=10, lanes=4)
    ids, lanes = order.slice(0, 0, order.samples)
    blocks, first = np.unique(order.block_of(ids)[1], return_index=True)
    lane = lanes[first]
    counts = np.zeros((50, 4))
    np.add.at(counts, (blocks // 101, lane), 1)
    expected = 101 / 4
    assert 0.5 < ((counts - expected) ** 2 / expected).sum() / (49 * 3) < 1.5  # chi-square per degree of freedom
    same = (lane[:-1] == lane[1:]).mean()  # neighbours
    assert 0.2 < same < 0.3


def test_blocks_of_a_lane_come_in_another_order_in_each_epoch_and_beside_other_blocks():
    order = Order(fingerprint="x", shard_samples=[20_000], seed=0, window=1, block=10, lanes=2)
    rows = [order.ids(epoch, 0, 20_000).reshape(-1, 2) // 10 for epoch in (0, 1)]
    for lane in (0, 1):
        assert (rows[0][:, lane] == rows[1][:, lane]).mean() < 0.05
    beside = [dict(each.tolist()) for each in rows]
    assert np.mean([beside[0][block] == beside[1][block] for block in beside[0]]) < 0.05


def test_a_dataset_on_twice_the_machines_has_lanes_that_are_halves_of_the_earlier_ones():
    four, eight = (
        Order(fingerprint="x", shard_samples=[5_000] * 4, seed=0, window=100, block=10, lanes=n) for n in (4, 8)
    )
    assert (lane_of_each_id(eight, 0) % 4 == lane_of_each_id(four, 0)).all()


@given(orders(), st.integers(1, 12), st.integers(1, 9), st.sampled_from(["drop", "pad", "mask"]))
def test_a_rank_takes_samples_of_other_lanes_only_if_its_own_have_too_few(order, world, batch, tail):
    plans = [EpochPlan(order.at(1), Cursor(1), World(rank, world), batch, tail) for rank in range(world)]
    groups = np.gcd(order.lanes, world)
    lane = dict(zip(*(part.tolist() for part in order.slice(1, 0, order.samples)), strict=True))
    for number in range(len(plans[0])):
        group = [[lane[i] * groups // order.lanes for i in plan.step(number).ids.tolist()] for plan in plans]
        counts = np.bincount(np.concatenate(group), minlength=groups)
        own = sum(part.count(rank * groups // world) for rank, part in enumerate(group))
        assert own == np.minimum(counts, batch * world // groups).sum()


LARGE, SMALL = [9_000] * 142 + [3_167], [600] * 666  # ImageNet in shards of 1 GB, and a third of it in ones of 65 MB


# One rank with a large batch stands for all ranks of a machine.
@pytest.mark.parametrize(
    ("shards", "nodes", "tail"), [(LARGE, 2, "drop"), (SMALL, 3, "mask"), (LARGE, 4, "mask"), (SMALL, 8, "drop")]
)
@pytest.mark.torture_except("shards1-3-mask", "shards3-8-drop")
def test_in_its_second_epoch_a_machine_reads_at_most_one_percent_of_blocks_that_it_did_not_read_in_the_first(
    shards, nodes, tail
):
    order = Order(fingerprint="x", shard_samples=shards, seed=0, window=43_605, block=19, lanes=nodes)
    reading = measure_reading(order, nodes=nodes, node_batch=512, tail=tail)
    assert reading.new < 0.001
    assert reading.read_twice < 0.002
    assert reading.share == pytest.approx(1 / nodes, rel=0.01)


@pytest.mark.parametrize(("nodes", "lanes"), [(3, 4), (6, 4), (7, 8)])
def test_the_blocks_of_machines_stay_the_same_if_the_number_of_lanes_is_another_one(nodes, lanes):
    order = Order(fingerprint="x", shard_samples=[9_000] * 20, seed=0, window=17_442, block=19, lanes=lanes)
    assert measure_reading(order, nodes=nodes, node_batch=512).new < 0.01


def test_the_blocks_of_machines_are_the_same_for_any_number_of_ranks_on_them():
    order = Order(fingerprint="x", shard_samples=[1_000] * 20, seed=0, window=2_000, block=10, lanes=2)
    read = []
    for ranks in (2, 4, 8):  # half of them on each machine
        plans = [
            EpochPlan(order.at(0), Cursor(), World(rank, ranks), 64 // ranks, "drop") for rank in range(ranks // 2)
        ]
        read.append({i for plan in plans for number in range(len(plan)) for i in plan.step(number).ids.tolist()})
    assert read[0] == read[1] == read[2]


@pytest.mark.parametrize(("shares", "batch"), [((7, 3), 64), ((1, 1), 100)])
@pytest.mark.torture_except("shares1-100")
def test_machines_read_the_same_blocks_of_a_mixture_of_two_datasets_in_each_epoch(shares, batch):
    parts = [
        Order(fingerprint=str(n), shard_samples=[9_000] * 4, seed=0, window=6_400, block=19, lanes=4) for n in (0, 1)
    ]
    order = MixtureOrder(parts, shares, "all_exhausted")
    whole = Order(fingerprint="both", shard_samples=[9_000] * 8, seed=0, window=0, block=19)
    for node in range(4):
        read = []
        for epoch in (0, 1):
            plan = EpochPlan(order.at(epoch), Cursor(epoch), World(node, 4), batch, "drop")
            ids = np.concatenate([plan.step(number).ids for number in range(len(plan))])
            read.append(np.unique(whole.block_of(ids)[1]))
        assert len(np.setdiff1d(read[1], read[0])) < 0.01 * len(read[1])


def test_class_weights_change_the_samples_of_a_block_so_machines_read_other_blocks_in_each_epoch():
    label = np.arange(100_000) % 10
    weights = np.linspace(1, 2, 10)
    selection = Selection(np.arange(100_000), balance=balance(label, weights), seed=0)
    order = Order(
        fingerprint="x", shard_samples=[10_000] * 10, seed=0, window=4_096, block=19, lanes=4, selection=selection
    )
    assert measure_reading(order, nodes=4, node_batch=64).new > 0.05
    assert sorted(order.ids(1, 0, order.samples)) == selection.ids(1).tolist()


@pytest.mark.parametrize("lanes", [1, 4096])
@pytest.mark.torture_except("1")
def test_the_cost_of_starting_at_any_position_does_not_grow_with_the_dataset(lanes):
    seconds = []
    for shards in (1_000, 100_000):  # 10 million and a billion samples
        order = Order(fingerprint="x", shard_samples=[10_000] * shards, seed=0, window=50_000, block=19, lanes=lanes)
        order.ids(5, 0, 10)
        start = time.process_time()
        ids = order.ids(5, order.samples * 3 // 4, order.samples * 3 // 4 + 1000)
        seconds.append(time.process_time() - start)
        assert len(set(ids.tolist())) == 1000
    assert seconds[1] < 3 * seconds[0] + 0.2
