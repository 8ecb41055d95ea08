"""How many workers: the arithmetic of ``num_workers="auto"``, on loops whose timing is made up."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wds_tools.loading import autoscale
from wds_tools.loading.autoscale import LENT_SLOTS, Feeding, Span, paid_off, wanted, workers_per_rank

COUNTS = st.integers(1, 64)
SECONDS = st.floats(0.001, 10)


def simulate(found, *, work, busy, cores=1000, batches=2000, epochs=1):
    """Run a loop that is ``busy`` seconds with each batch; a worker takes ``work`` seconds for one, a core each."""
    now, history = 0.0, []
    for _ in range(epochs):
        found.begin()
        for _ in range(batches):
            asked = now + busy
            now = max(asked, now + work / min(found.workers, cores))
            found.took(asked, now)
            history.append(found.workers)
    return history


def auto(most=16, workers=1, batch_size=32):
    return Feeding(workers, most=most, batch_size=batch_size, prefetch_factor=2)


@given(work=SECONDS, busy=SECONDS, most=COUNTS)
def test_it_ends_with_the_smallest_number_that_keeps_the_loop_fed(work, busy, most):
    history = simulate(auto(most), work=work, busy=busy, batches=5000)
    needed = min(most, math.ceil(0.95 * work / busy - 1e-6))  # a loop that waits for a twentieth of its time is fed
    assert needed <= history[-1] <= min(most, max(1, math.ceil(work / busy + 1e-6)))


@given(
    times=st.lists(st.tuples(SECONDS, SECONDS), max_size=200),
    most=COUNTS,
    start=st.integers(1, 8),
    batch_size=st.integers(1, 4096),
)
def test_whatever_happens_workers_only_grow_and_never_beyond_the_most_nor_the_slots(times, most, start, batch_size):
    found, now, seen = auto(max(most, start), start, batch_size), 0.0, [start]
    for number, (busy, waited) in enumerate(times):
        if number % 50 == 0:
            found.begin()
        grown = found.took(now + busy, now + busy + waited)
        now += busy + waited
        assert grown == (found.workers > seen[-1])
        assert found.ahead + LENT_SLOTS <= found.slots
        seen.append(found.workers)
    assert seen == sorted(seen)
    assert seen[-1] <= found.most


@given(work=st.floats(0.001, 0.1), cores=st.integers(1, 8))
def test_it_stops_when_more_workers_are_of_no_use(work, cores):
    batches = int(30 * cores / work)
    history = simulate(auto(most=64), work=work, busy=work / 1000, cores=cores, batches=batches)  # half a minute
    assert cores <= history[-1] < 4 * cores  # 4 workers on 3 cores still paid off, the next 4 did not


def test_where_workers_are_of_no_use_one_is_tried_after_a_minute_then_after_two_then_after_four():
    history = simulate(auto(most=64), work=0.1, busy=0.0001, cores=1, batches=6000)  # ten minutes
    grown = [(round(number * 0.1 / 60), to) for number, (of, to) in enumerate(pairwise(history)) if of != to]
    assert grown == [(0, 2), (1, 3), (3, 4), (7, 5)]


def test_workers_that_were_of_no_use_only_at_the_start_of_training_come_later():
    found = auto(most=16)
    simulate(found, work=0.1, busy=0.0105, cores=1, batches=100)  # ten seconds in which others have the cores
    assert found.workers == 2
    assert simulate(found, work=0.1, busy=0.0105, batches=5000)[-1] == 10


@given(workers=st.integers(0, 64), work=SECONDS, busy=SECONDS)
def test_a_number_that_was_given_does_not_change(workers, work, busy):
    found = Feeding.of(workers, batch_size=32, prefetch_factor=2)
    assert found.most == workers
    assert set(simulate(found, work=work, busy=busy, batches=50, cores=1) if workers else [0]) == {workers}


def test_the_first_batches_of_an_epoch_are_waited_for_and_tell_nothing():
    found = auto()
    for _ in range(20):  # epochs of one batch
        found.begin()
        found.took(0.0, 100.0)
    assert found.workers == 1


def test_what_is_learned_lasts_over_short_epochs():
    assert simulate(auto(), work=0.1, busy=0.0105, batches=20, epochs=50)[-1] == 10


def test_a_pause_of_the_loop_is_no_hunger():
    found, now = auto(), 0.0
    for number in range(100):
        pause = 30.0 if number % 5 == 0 else 0.01
        found.took(now + pause, now + pause + 0.05)
        now += pause + 0.05
    assert found.workers == 1


@given(now=st.builds(Span, COUNTS, COUNTS, SECONDS, st.just(0.0)), most=COUNTS)
def test_a_loop_that_does_not_wait_gets_no_more(now, most):
    assert wanted(now, most) == now.workers


@given(workers=st.integers(1, 64), hunger=st.floats(0.06, 1))
def test_a_hungry_loop_gets_more_but_at_most_twice_as_many(workers, hunger):
    more = wanted(Span(workers, 10, 1.0, hunger), 1000)
    assert workers < more <= 2 * workers


def test_workers_paid_off_when_the_rate_rose_by_a_quarter_of_the_ideal():
    before = Span(4, 100, 10.0, 9.0)
    assert paid_off(Span(8, 126, 10.0, 9.0), before)
    assert not paid_off(Span(8, 124, 10.0, 9.0), before)
    assert paid_off(Span(5, 107, 10.0, 9.0), before)


def test_cores_are_shared_among_the_ranks_of_a_machine(monkeypatch):
    monkeypatch.setattr(autoscale, "available_cores", lambda: 24)
    assert workers_per_rank() == 16
    for ranks, workers in (("2", 12), ("8", 3), ("48", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert workers_per_rank() == workers
        assert Feeding.of(None, batch_size=32, prefetch_factor=2).workers == workers
        found = Feeding.of("auto", batch_size=32, prefetch_factor=3)
        assert (found.workers, found.ahead, found.most, found.slots) == (1, 3, workers, 3 * workers + LENT_SLOTS)
