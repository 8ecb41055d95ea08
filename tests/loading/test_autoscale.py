"""The number of workers of ``num_workers="auto"``, for simulated training loops."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wds_tools.loading.pipeline import autoscale
from wds_tools.loading.pipeline.autoscale import (
    LENT_SLOTS,
    Autoscaler,
    LoopTiming,
    is_faster,
    workers_needed,
    workers_per_rank,
)

COUNTS = st.integers(1, 64)
SECONDS = st.floats(0.001, 10)


def simulate(scaler, *, work, busy, cores=1000, batches=2000, epochs=1):
    """Simulate a loop that works ``busy`` seconds on a batch; a worker needs ``work`` seconds and a core for one."""
    now, history = 0.0, []
    for _ in range(epochs):
        scaler.begin_epoch()
        for _ in range(batches):
            requested = now + busy
            now = max(requested, now + work / min(scaler.workers, cores))
            scaler.add_batch(requested, now)
            history.append(scaler.workers)
    return history


def auto(max_workers=16, workers=1, batch_size=32):
    return Autoscaler(workers, max_workers=max_workers, batch_size=batch_size, prefetch_factor=2)


@given(work=SECONDS, busy=SECONDS, max_workers=COUNTS)
def test_the_final_number_is_the_smallest_that_keeps_the_loop_from_waiting(work, busy, max_workers):
    history = simulate(auto(max_workers), work=work, busy=busy, batches=5000)
    needed = min(max_workers, math.ceil(0.95 * work / busy - 1e-6))  # waiting for a twentieth of the time is accepted
    assert needed <= history[-1] <= min(max_workers, max(1, math.ceil(work / busy + 1e-6)))


@given(
    times=st.lists(st.tuples(SECONDS, SECONDS), max_size=200),
    max_workers=COUNTS,
    start=st.integers(1, 8),
    batch_size=st.integers(1, 4096),
)
def test_workers_only_grow_and_stay_within_the_maximum_and_the_slots(times, max_workers, start, batch_size):
    scaler, now, seen = auto(max(max_workers, start), start, batch_size), 0.0, [start]
    for number, (busy, waited) in enumerate(times):
        if number % 50 == 0:
            scaler.begin_epoch()
        grown = scaler.add_batch(now + busy, now + busy + waited)
        now += busy + waited
        assert grown == (scaler.workers > seen[-1])
        assert scaler.in_progress + LENT_SLOTS <= scaler.slots
        seen.append(scaler.workers)
    assert seen == sorted(seen)
    assert seen[-1] <= scaler.max_workers


@given(work=st.floats(0.001, 0.1), cores=st.integers(1, 8))
def test_no_workers_are_added_if_they_do_not_help(work, cores):
    batches = int(30 * cores / work)
    history = simulate(auto(max_workers=64), work=work, busy=work / 1000, cores=cores, batches=batches)  # half a minute
    assert cores <= history[-1] < 4 * cores  # 4 workers on 3 cores still paid off, the next 4 did not


def test_after_useless_workers_one_more_is_tried_after_one_two_and_four_minutes():
    history = simulate(auto(max_workers=64), work=0.1, busy=0.0001, cores=1, batches=6000)  # ten minutes
    grown = [(round(number * 0.1 / 60), to) for number, (of, to) in enumerate(pairwise(history)) if of != to]
    assert grown == [(0, 2), (1, 3), (3, 4), (7, 5)]


def test_workers_are_added_later_if_they_were_useless_only_at_the_start():
    scaler = auto(max_workers=16)
    simulate(scaler, work=0.1, busy=0.0105, cores=1, batches=100)  # ten seconds in which others have the cores
    assert scaler.workers == 2
    assert simulate(scaler, work=0.1, busy=0.0105, batches=5000)[-1] == 10


@given(workers=st.integers(0, 64), work=SECONDS, busy=SECONDS)
def test_a_given_number_of_workers_does_not_change(workers, work, busy):
    scaler = Autoscaler.from_options(workers, batch_size=32, prefetch_factor=2)
    assert scaler.max_workers == workers
    assert set(simulate(scaler, work=work, busy=busy, batches=50, cores=1) if workers else [0]) == {workers}


def test_waiting_for_the_first_batches_of_an_epoch_adds_no_workers():
    scaler = auto()
    for _ in range(20):  # epochs of one batch
        scaler.begin_epoch()
        scaler.add_batch(0.0, 100.0)
    assert scaler.workers == 1


def test_measurements_continue_over_short_epochs():
    assert simulate(auto(), work=0.1, busy=0.0105, batches=20, epochs=50)[-1] == 10


def test_a_pause_of_the_loop_adds_no_workers():
    scaler, now = auto(), 0.0
    for number in range(100):
        pause = 30.0 if number % 5 == 0 else 0.01
        scaler.add_batch(now + pause, now + pause + 0.05)
        now += pause + 0.05
    assert scaler.workers == 1


@given(timing=st.builds(LoopTiming, COUNTS, COUNTS, SECONDS, st.just(0.0)), max_workers=COUNTS)
def test_a_loop_that_does_not_wait_gets_no_more_workers(timing, max_workers):
    assert workers_needed(timing, max_workers) == timing.workers


@given(workers=st.integers(1, 64), wait_share=st.floats(0.06, 1))
def test_a_loop_that_waits_gets_more_workers_but_at_most_twice_as_many(workers, wait_share):
    more = workers_needed(LoopTiming(workers, 10, 1.0, wait_share), 1000)
    assert workers < more <= 2 * workers


def test_added_workers_are_useful_if_they_bring_a_quarter_of_the_ideal_speedup():
    before = LoopTiming(4, 100, 10.0, 9.0)
    assert is_faster(LoopTiming(8, 126, 10.0, 9.0), before)
    assert not is_faster(LoopTiming(8, 124, 10.0, 9.0), before)
    assert is_faster(LoopTiming(5, 107, 10.0, 9.0), before)


def test_the_ranks_of_a_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(autoscale, "available_cores", lambda: 24)
    assert workers_per_rank() == 16
    for ranks, workers in (("2", 12), ("8", 3), ("48", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert workers_per_rank() == workers
        assert Autoscaler.from_options(None, batch_size=32, prefetch_factor=2).workers == workers
        scaler = Autoscaler.from_options("auto", batch_size=32, prefetch_factor=3)
        assert (scaler.workers, scaler.in_progress, scaler.max_workers, scaler.slots) == (
            1,
            3,
            workers,
            3 * workers + LENT_SLOTS,
        )
