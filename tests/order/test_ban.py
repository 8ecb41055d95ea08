"""Banned samples are left out from a position on; all others keep their order."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError, ResumeError
from wds_tools.order import mixture as mixture_module
from wds_tools.order import sequence as order_module
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.selection import Selection, balance
from wds_tools.order.sequence import Order
from wds_tools.order.tally import tally


@pytest.fixture(autouse=True, params=[9, 1 << 20], ids=lambda n: f"segments-of-{n}")
def segment_samples(request, monkeypatch):
    monkeypatch.setattr(order_module, "SEGMENT_SAMPLES", request.param)
    monkeypatch.setattr(mixture_module, "_SEGMENT_SAMPLES", request.param)


def single(shards, seed, window, block, lanes, selection=None):
    return Order(
        fingerprint="x",
        shard_samples=shards,
        seed=seed,
        window=window,
        block=block,
        lanes=lanes,
        selection=selection,
    )


@st.composite
def orders(draw):
    shards = draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    shape = draw(st.integers(0, 5)), draw(st.integers(0, 60)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["all", "selection", "balance", "mixture"]))
    total = sum(shards)
    if kind == "mixture":
        parts = [single(shards, *shape), single([7, 5], *shape)]
        return MixtureOrder(parts, [2, 1], draw(st.sampled_from(["first_exhausted", "all_exhausted"])))
    if kind == "selection":
        return single(shards, *shape, Selection(np.arange(0, total, 2)))
    if kind == "balance":
        label = np.arange(total) % 7 // 5
        return single(shards, *shape, Selection(np.arange(total), balance=balance(label, np.array([1.0, 2.0]))))
    return single(shards, *shape)


@given(orders(), st.data())
@pytest.mark.torture_except("segments-of-1048576")
def test_the_order_is_that_with_all_samples_without_the_banned_ones(order, data):
    epoch = data.draw(st.integers(0, 3))
    full = order.ids(epoch, 0, order.samples).tolist()
    expected, orders_of_run, position = full, EpochOrders(order), 0
    for _ in range(2):  # two bans in the same epoch
        if position == len(expected):
            break  # the first ban has left nothing after its position, and a run does not go back
        position = data.draw(st.integers(position, len(expected) - 1))
        banned = data.draw(st.sets(st.integers(0, order.identity.stored - 1), max_size=order.identity.stored // 3))
        rest = [sample for sample in expected[position:] if sample not in banned]
        if not expected[:position] + rest:
            return
        expected = expected[:position] + rest
        orders_of_run = orders_of_run.banning(sorted(banned), Cursor(epoch, position))
    found = orders_of_run.of(epoch)
    assert found.samples == len(expected)
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert found.ids(start, stop).tolist() == expected[start:stop]
    assert found.ids(0, found.samples).tolist() == expected
    if order.tally(epoch):
        assert found.tally() == tally(np.array(expected))
    before = orders_of_run.of(epoch - 1) if epoch else None
    assert before is None or before.ids(0, before.samples).tolist() == order.ids(epoch - 1, 0, order.samples).tolist()
    banned = {sample for ban in orders_of_run.bans for sample in ban.ids}
    later = [sample for sample in order.ids(epoch + 1, 0, order.samples).tolist() if sample not in banned]
    if later:
        assert orders_of_run.of(epoch + 1).ids(0, len(later)).tolist() == later


@given(orders(), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["drop", "pad", "mask"]), st.data())
def test_every_rank_has_the_same_number_of_steps_and_all_others_come_once(order, world, batch, tail, data):
    banned = data.draw(st.sets(st.integers(0, order.identity.stored - 1), max_size=order.identity.stored // 3))
    if set(order.ids(0, 0, order.samples).tolist()) <= banned:
        return
    found = EpochOrders(order).banning(sorted(banned), Cursor()).of(0)
    plans = [EpochPlan(found, Cursor(), World(rank, world), batch, tail) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    steps = [plan.step(number) for plan in plans for number in range(len(plan))]
    got = sorted(sample for step in steps for sample in step.ids[step.valid].tolist())
    wanted = [sample for sample in order.ids(0, 0, order.samples).tolist() if sample not in banned]
    if tail == "drop":
        assert got == sorted(wanted[: len(got)])
        assert len(wanted) - len(got) < batch * world
    else:
        assert got == sorted(wanted)
    if order.tally(0):
        assert plans[0].expected() == tally(np.array(got))


def test_a_state_continues_with_the_bans_that_it_records():
    order = single([40, 30], 1, 20, 4, 2)
    orders = EpochOrders(order).banning([3, 8, 60], Cursor(2, 30))
    cursor = Cursor(2, 50)
    state = {**state_dict(orders.of(2), cursor), "bans": [ban.to_dict() for ban in orders.bans]}
    again, found = resume(json.loads(json.dumps(state)), order)
    assert found == cursor
    for epoch in (2, 3):
        samples = orders.of(epoch).samples
        assert (again.of(epoch).ids(0, samples) == orders.of(epoch).ids(0, samples)).all()
    assert again.banning([8], cursor) is again
    for damaged in ([{}], [3], [{"epoch": 0, "position": 0, "ids": ["x"]}], 5):
        with pytest.raises(ResumeError, match=r"of a ban=|'bans' of the state is damaged"):
            resume({**state, "bans": damaged}, order)


def test_a_ban_of_all_samples_is_an_error():
    order = single([5], 0, 10, 2, 1)
    with pytest.raises(OptionError, match="ban= leaves no sample: it bans all 5"):
        EpochOrders(order).banning(range(5), Cursor()).of(0)


@pytest.mark.torture_except("segments-of-9")
def test_a_ban_in_a_billion_samples_computes_only_the_segments_that_are_needed(monkeypatch):
    order = Order(fingerprint="x", shard_samples=[10_000] * 100_000, seed=0, window=60_000, block=21, lanes=8)
    banned = np.arange(0, 10**9, 10**5 + 3).tolist()
    computed = []
    segment = Order._segment  # noqa: SLF001 - counts the expensive calls

    def counted(self, epoch, number):
        computed.append(number)
        return segment(self, epoch, number)

    monkeypatch.setattr(Order, "_segment", counted)
    if order_module.SEGMENT_SAMPLES > 9:
        found = EpochOrders(order).banning(banned, Cursor(3, 700_000_000)).of(3)
        assert not set(found.ids(899_000_000, 899_000_100).tolist()) & set(banned)
        assert found.samples < 10**9
        assert len(set(computed)) <= 3
