"""Selections, mixtures, buckets, bans, other ranks and other batch sizes in one run, against a plain oracle."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.order import mixture as mixture_module
from wds_tools.order import sequence as order_module
from wds_tools.order.buckets import BucketOrder
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.selection import Selection, balance
from wds_tools.order.sequence import Order


@pytest.fixture(autouse=True, params=[9, 1 << 20], ids=lambda n: f"segments-of-{n}")
def segment_samples(request, monkeypatch):
    monkeypatch.setattr(order_module, "SEGMENT_SAMPLES", request.param)
    monkeypatch.setattr(mixture_module, "_SEGMENT_SAMPLES", request.param)


@st.composite
def plain_orders(draw):
    lanes, window, block = draw(st.integers(1, 3)), draw(st.integers(0, 40)), draw(st.integers(1, 6))

    def part(name):
        shards = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
        total, selection = sum(shards), None
        chosen = draw(st.sampled_from(["all", "every second", "balanced"]))
        if chosen == "every second":
            selection = Selection(np.arange(0, total, 2))
        if chosen == "balanced":
            selection = Selection(np.arange(total), balance=balance(np.arange(total) % 7 // 5, np.array([1.0, 2.0])))
        return Order(
            fingerprint=name,
            shard_samples=shards,
            seed=1,
            window=window,
            block=block,
            lanes=lanes,
            selection=selection,
        )

    kind = draw(st.sampled_from(["one", "first_exhausted", "all_exhausted", "length"]))
    if kind == "one":
        return part("x")
    parts = [part("x"), part("y")]
    if kind == "length":
        return MixtureOrder(parts, [2, 1], "first_exhausted", draw(st.integers(5, 80)))
    return MixtureOrder(parts, [2, 1], kind)


def delivered(orders, cursor, world, batch, steps):
    """Return the valid ids of some steps over all ranks by position, the cursor after them, and the batches."""
    plans = [EpochPlan(orders.of(cursor.epoch), cursor, World(rank, world), batch, "mask") for rank in range(world)]
    steps = min(steps, len(plans[0]))
    parts = [plan.step(number) for number in range(steps) for plan in plans]
    rows = sorted(row for one in parts for row in zip(one.positions.tolist(), one.ids.tolist(), one.valid, strict=True))
    return [sample for _, sample, valid in rows if valid], plans[0].cursor_after(steps - 1), parts


def divisors(number):
    return [size for size in range(1, number + 1) if number % size == 0]


@given(plain_orders(), st.booleans(), st.data())
@pytest.mark.torture_except("segments-of-9")
def test_bans_in_any_order_leave_out_only_their_samples_from_their_position_on(base, has_buckets, data):
    order, labels = base, np.arange(base.identity.stored, dtype=np.int16) % 5 // 2
    if has_buckets:
        order = BucketOrder(base, labels, [(1, 1), (2, 1), (3, 1)], data.draw(st.sampled_from([1, 4, 6])))
    orders, cursor = EpochOrders(order), Cursor(data.draw(st.integers(0, 1)))
    epoch = cursor.epoch
    left, banned = base.ids(epoch, 0, base.samples).tolist(), set()
    while True:
        ban = data.draw(st.sets(st.integers(0, base.identity.stored - 1), max_size=4))
        if {*left} <= banned | ban:
            return  # the epoch would be empty, or has only banned samples left
        orders, banned = orders.banning(ban, cursor), banned | ban
        left = [sample for sample in left if sample not in banned]
        world, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
        largest = orders.of(epoch).largest_batch(cursor.position)
        batch = data.draw(st.sampled_from(divisors(largest)) if has_buckets else st.integers(1, 9))
        got, cursor, parts = delivered(orders, cursor, world, batch, steps)
        if has_buckets:
            assert all({*labels[one.ids].tolist()} == {one.bucket} for one in parts)
            left = Counter(left)
            left.subtract(got)
            assert min(left.values(), default=0) >= 0
            left = list(left.elements())
        else:
            assert got == left[: len(got)]
            left = left[len(got) :]
        if cursor.epoch != epoch:
            break
        bans = [one.to_dict() for one in orders.bans]
        state = json.loads(json.dumps({**state_dict(orders.of(epoch), cursor), "bans": bans}))
        orders, cursor = resume(state, order)
    assert not left
    following = [sample for sample in base.ids(epoch + 1, 0, base.samples).tolist() if sample not in banned]
    if following:
        found = orders.of(epoch + 1)
        valid = found.ids(0, found.samples)[found.valid(0, found.samples)]
        assert sorted(valid.tolist()) == sorted(following)
        assert found.distinct == len(following)
        assert found.stored_ids().tolist() == sorted(following)
