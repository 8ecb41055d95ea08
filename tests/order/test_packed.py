"""The first epoch of a dataset that is packed meanwhile: positions of the plan, whatever was packed when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import LoaderError, OptionError, ResumeError
from wds_tools.order.packed import PackedOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.sequence import Order


def order_of(samples, gaps=(), done=None, plan="plan", seed=3):
    known = np.array(sorted(gap for gap in gaps if gap < (samples if done is None else done)), np.int64)
    packed = (samples if done is None else done, known)
    return PackedOrder(plan, samples=samples, seed=seed, packed=lambda: packed)


@given(st.integers(2, 300), st.data())
def test_each_sample_comes_once_and_earlier_samples_fill_gaps(samples, data):
    gaps = data.draw(st.sets(st.integers(0, samples - 1), max_size=samples - 1))
    epoch = EpochOrders(order_of(samples, gaps)).of(0)
    ids, valid = epoch.ids(0, samples), epoch.valid(0, samples)
    assert np.flatnonzero(~valid).tolist() == sorted(gaps) == epoch.gaps(np.arange(samples)).tolist()
    assert ids[valid].tolist() == list(range(samples - len(gaps)))
    before = np.maximum(np.cumsum(valid), 1)
    assert (ids[~valid] < before[~valid]).all()


@given(st.integers(2, 300), st.data())
def test_rows_do_not_depend_on_how_far_the_packer_is(samples, data):
    gaps = data.draw(st.sets(st.integers(0, samples - 1), max_size=samples // 2))
    done = data.draw(st.integers(1, samples))
    whole, part = EpochOrders(order_of(samples, gaps)).of(0), EpochOrders(order_of(samples, gaps, done)).of(0)
    stop = data.draw(st.integers(1, done))
    if part.is_packed(stop):
        assert part.ids(0, stop).tolist() == whole.ids(0, stop).tolist()
    else:
        assert len([gap for gap in gaps if gap < done]) == done
    assert not part.is_packed(done + 1)
    with pytest.raises(LoaderError, match="are not packed yet"):
        part.ids(done, done + 1)


def test_ranks_divide_the_steps_of_the_stored_order():
    orders = EpochOrders(order_of(100, [7, 50]))
    plans = [EpochPlan(orders.of(0), Cursor(), World(rank, 3), 5, "drop") for rank in range(3)]
    assert {len(plan) for plan in plans} == {6}
    steps = [np.concatenate([plan.step(number).positions for plan in plans]) for number in range(6)]
    assert np.concatenate(steps).tolist() == list(range(90))
    expected = plans[0].step(0).global_tally
    assert expected.samples == 14  # one row of the step fills a gap


def plain():
    return Order(fingerprint="finished", shard_samples=[40, 58], seed=3, window=20, block=4, lanes=1)


def test_a_state_of_the_first_epoch_continues_in_the_finished_dataset():
    packed = order_of(100, [7, 50])
    running = EpochOrders(packed, {0: packed})
    cursor = Cursor(0, 35)
    state = {**state_dict(running.of(0), cursor), **running.state_dict(cursor)}
    orders, found = resume(state, plain(), packed=order_of(100, [7, 50]))
    assert found == cursor
    assert orders.of(0).ids(35, 100).tolist() == packed.ids(0, 35, 100).tolist()
    assert orders.of(1).ids(0, 98).tolist() == plain().ids(1, 0, 98).tolist()
    later = {**state_dict(orders.of(1), Cursor(1, 10)), **orders.state_dict(Cursor(1, 10))}
    again, _ = resume(later, plain(), packed=order_of(100, [7, 50]))
    assert again.of(0).ids(0, 100).tolist() == packed.ids(0, 0, 100).tolist()
    assert again.of(1).ids(10, 98).tolist() == plain().ids(1, 10, 98).tolist()


def test_a_state_of_another_plan_or_seed_is_refused():
    packed = order_of(100)
    orders = EpochOrders(packed, {0: packed})
    state = {**state_dict(orders.of(0), Cursor(0, 5)), **orders.state_dict(Cursor(0, 5))}
    with pytest.raises(ResumeError, match="plan of the packer plan, the loader has other"):
        resume(state, plain(), packed=order_of(100, plan="other"))
    with pytest.raises(ResumeError, match="without where="):
        resume(state, plain())
    with pytest.raises(ResumeError, match="seed 3, the loader has 4"):
        resume(state, plain(), packed=order_of(100, seed=4))


def test_weights_begin_after_the_first_epoch_and_bans_within_it():
    orders = EpochOrders(plain(), {0: order_of(100, [7])}, find_weights=lambda _: None)
    with pytest.raises(OptionError, match="order in which the dataset was packed: weights can change from epoch 1 on"):
        orders.reweighting({"classes": {"cat": 2.0}}, Cursor(0, 10))
    banned = orders.banning([20, 30], Cursor(0, 10)).of(0)
    left = banned.ids(0, banned.samples).tolist()
    assert left[:10] == orders.of(0).ids(0, 10).tolist()
    assert not {20, 30} & set(left[10:])
