"""Batches of one bucket: each sample once, equal steps, any number of ranks, resume, bans."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import ResumeError
from wds_tools.order.buckets import BucketOrder
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.selection import Selection, balance
from wds_tools.order.sequence import Order
from wds_tools.order.tally import tally


@st.composite
def orders(draw):
    shards = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    total, kind = sum(shards), draw(st.sampled_from(["all", "selection", "balance", "mixture"]))
    selection = None
    if kind == "selection":
        selection = Selection(np.arange(0, total, 2))
    if kind == "balance":
        selection = Selection(np.arange(total), balance=balance(np.arange(total) % 7 // 5, np.array([1.0, 2.0])))
    options = {
        "shard_samples": shards,
        "seed": draw(st.integers(0, 3)),
        "window": draw(st.integers(0, 60)),
        "block": draw(st.integers(1, 9)),
        "lanes": draw(st.integers(1, 4)),
    }
    base = Order(fingerprint="x", selection=selection, **options)
    if kind == "mixture":
        base = MixtureOrder(
            [base, Order(fingerprint="y", **{**options, "shard_samples": [9]})], [2, 1], "all_exhausted"
        )
    buckets = draw(st.integers(1, 5))
    labels = np.array(
        draw(st.lists(st.integers(0, buckets - 1), min_size=base.identity.stored, max_size=base.identity.stored)),
        np.int16,
    )
    return BucketOrder(base, labels, [(n + 1, 1) for n in range(buckets)], draw(st.integers(1, 9)))


def delivered(orders, epoch, cursor, batch, world, tail):
    """Return the valid ids and positions of all steps of all ranks, in order, and check what holds for each batch."""
    plans = [EpochPlan(orders.of(epoch), cursor, World(rank, world), batch, tail) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    rows = []
    for number in range(len(plans[0])):
        steps = [plan.step(number) for plan in plans]
        for step in steps:
            assert len(step.ids) == batch
            assert set(orders.order.labels[step.ids].tolist()) == {step.bucket}
        assert (
            sum((tally(step.ids[step.valid]) for step in steps), tally(np.empty(0, np.int64))) == steps[0].global_tally
        )
        parts = [(step.positions, step.ids, step.valid) for step in steps]
        rows += sorted(row for part in parts for row in zip(*(column.tolist() for column in part), strict=True))
    return plans, [(position, sample) for position, sample, valid in rows if valid]


@given(orders(), st.integers(0, 2), st.integers(1, 4), st.sampled_from(["drop", "pad", "mask"]))
def test_every_batch_has_one_bucket_and_every_sample_comes_once(order, epoch, world, tail):
    orders = EpochOrders(order)
    plans, got = delivered(orders, epoch, Cursor(epoch), order.identity.group, world, tail)
    wanted = sorted(order.base.ids(epoch, 0, order.base.samples).tolist())
    found = sorted(sample for _, sample in got)
    assert len({position for position, _ in got}) == len(got)
    if tail == "drop":
        missing = list(wanted)
        for sample in found:
            missing.remove(sample)
        counts = np.bincount(order.labels[np.array(missing, np.int64)], minlength=1)
        full = counts // order.identity.group
        assert full.sum() < world  # complete batches that do not fill a step
        assert (
            counts - full * order.identity.group < order.identity.group
        ).all()  # and less than a batch of each bucket
    else:
        assert found == wanted
    if plans[0].expected():
        assert plans[0].expected() == tally(np.array(found, np.int64))


@given(orders(), st.integers(0, 2))
def test_an_epoch_that_is_grouped_in_parts_has_the_same_rows(order, epoch):
    def rows_of(order):
        rows = EpochOrders(order).of(epoch)
        return [column.tolist() for column in (*rows.slice(0, rows.samples), rows.valid(0, rows.samples))]

    expected = rows_of(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wds_tools.order.buckets._PART", 1)
        for stored in (None, lambda _, compute: compute()):
            parts = BucketOrder(order.base, order.labels, order.identity.buckets, order.identity.group, stored)
            assert rows_of(parts) == expected


@given(orders(), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["drop", "mask"]), st.data())
def test_a_resume_on_other_ranks_and_with_a_smaller_batch_gives_the_rest(order, world, world2, tail, data):
    orders = EpochOrders(order)
    plan = EpochPlan(orders.of(1), Cursor(1), World(0, world), order.identity.group, tail)
    if not len(plan):
        return
    _, got = delivered(orders, 1, Cursor(1), order.identity.group, world, tail)
    number = data.draw(st.integers(0, len(plan) - 1))
    cursor = plan.cursor_after(number)
    state = json.loads(json.dumps(state_dict(orders.of(cursor.epoch), cursor)))
    fresh = BucketOrder(
        order.base.like(**other_shape(order.base)), order.labels, order.identity.buckets, order.identity.group + 3
    )
    again, found = resume(state, fresh)
    assert found == cursor
    if cursor.epoch == 2:
        return
    divisors = [n for n in range(1, order.identity.group + 1) if order.identity.group % n == 0]
    batch = data.draw(st.sampled_from(divisors))
    _, rest = delivered(again, 1, cursor, batch, world2, tail)
    expected = [row for row in got if row[0] >= cursor.position]
    if tail == "mask":
        assert rest == expected
    else:  # other numbers of batches fill a step
        shorter = min(len(rest), len(expected))
        assert rest[:shorter] == expected[:shorter]
        assert abs(len(rest) - len(expected)) < max(world, world2) * order.identity.group


def other_shape(base):
    if isinstance(base, MixtureOrder):
        return {
            "window": [3 * bool(window) for window in base.identity.window],
            "block": [2] * len(base.parts),
            "lanes": 1,
        }
    return {"window": 3 * bool(base.identity.window), "block": 2, "lanes": 1}


@given(orders(), st.integers(1, 3), st.data())
def test_banned_samples_are_left_out_and_earlier_rows_do_not_change(order, world, data):
    plain = EpochOrders(order)
    size = order.identity.group * world
    position = size * data.draw(st.integers(0, max(0, plain.of(1).samples // size - 1)))
    banned = data.draw(st.sets(st.integers(0, order.identity.stored - 1), max_size=order.identity.stored // 3))
    orders = plain.banning(sorted(banned), Cursor(1, position))
    _, full = delivered(plain, 1, Cursor(1), order.identity.group, world, "mask")
    head = [row for row in full if row[0] < position]
    kept = [sample for row, sample in full if row >= position and sample not in banned]
    if not head and not kept:
        return
    plans, got = delivered(orders, 1, Cursor(1), order.identity.group, world, "mask")
    assert [row for row in got if row[0] < position] == head
    assert sorted(sample for row, sample in got if row >= position) == sorted(kept)
    if plans[0].expected():
        assert plans[0].expected() == tally(np.array([sample for _, sample in got], np.int64))


def test_padding_has_one_bucket_even_if_a_ban_made_groups_begin_at_an_odd_row():
    base = Order(fingerprint="x", shard_samples=[40], seed=0, window=30, block=5)
    labels = (np.arange(40) % 3).astype(np.int16)
    orders = EpochOrders(BucketOrder(base, labels, [(1, 1), (2, 1), (3, 1)], 4)).banning([7, 8], Cursor(0, 1))
    assert orders.of(0).largest_batch(1) == 4
    assert orders.of(0).largest_batch(3) == 2
    for world in (2, 3, 5):
        plans, _ = delivered(orders, 0, Cursor(0, 3), 2, world, "pad")
        assert any(not plan.step(len(plan) - 1).valid.all() for plan in plans)


def test_groups_take_turns_by_lane_so_that_each_rank_reads_its_own_lanes():
    base = Order(fingerprint="x", shard_samples=[2000], seed=0, window=300, block=10, lanes=4)
    labels = (np.arange(2000) % 3).astype(np.int16)
    order = BucketOrder(base, labels, [(1, 1), (2, 1), (3, 1)], 16)
    lane_of = dict(zip(*(part.tolist() for part in base.slice(0, 0, 2000)), strict=True))
    for rank in range(4):
        plan = EpochPlan(EpochOrders(order).of(0), Cursor(), World(rank, 4), 16, "drop")
        lanes = [{lane_of[sample] for sample in plan.step(number).ids.tolist()} for number in range(len(plan))]
        assert lanes[:24] == [{rank}] * 24


def test_a_state_of_other_buckets_is_refused():
    base = Order(fingerprint="x", shard_samples=[100], seed=0, window=30, block=10)
    labels = (np.arange(100) % 2).astype(np.int16)
    order = BucketOrder(base, labels, [(1, 1), (2, 1)], 10)
    state = state_dict(EpochOrders(order).of(0), Cursor(0, 20))
    assert state["buckets"] == [[1, 1], [2, 1]]
    assert state["group"] == 10
    for other in (BucketOrder(base, labels, [(1, 1), (3, 1)], 10), base):
        with pytest.raises(ResumeError, match="buckets"):
            resume(state, other)
    with pytest.raises(ResumeError, match="buckets"):
        resume(state_dict(base, Cursor(0, 20)), order)
