"""The timers of the stages of loading."""

import threading

import pytest

from wds_tools import stages
from wds_tools.stages import DECODE, READ, RESIZE, Recorder


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now

    def sleep(self, nanoseconds):
        self.now += nanoseconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stages, "perf_counter_ns", clock)
    return clock


def test_a_stage_inside_another_one_stops_its_time_and_all_times_add_up(clock):
    recorder = Recorder()
    with recorder:
        clock.sleep(1)
        with DECODE:
            clock.sleep(10)
            with RESIZE:
                clock.sleep(100)
            clock.sleep(20)
        with READ:
            clock.sleep(1000)
    clock.sleep(5000)
    times = dict(zip(stages.NAMES, recorder.take().nanoseconds, strict=True))
    assert {name: time for name, time in times.items() if time} == {
        "other": 1,
        "decode": 30,
        "resize": 100,
        "read": 1000,
    }


def test_take_starts_again_at_zero_and_a_recorder_may_be_used_again(clock):
    recorder = Recorder()
    for _ in range(2):
        with recorder, READ:
            recorder.add_bytes(3)
            clock.sleep(1)
    first, second = recorder.take(), recorder.take()
    assert first.bytes_read == 6
    assert first.nanoseconds[READ.index] == 2
    assert second.bytes_read == sum(second.nanoseconds) == 0


def test_a_recorder_inside_another_one_measures_alone_and_the_outer_stage_continues(clock):
    outer, inner = Recorder(), Recorder()
    with outer, READ, inner, DECODE:
        clock.sleep(10)
        assert stages.active_recorder() is inner
    assert stages.active_recorder() is None
    assert inner.take().nanoseconds[DECODE.index] == 10
    times = outer.take().nanoseconds
    assert times[READ.index] == 10
    assert times[DECODE.index] == 0


def test_threads_are_measured_separately_and_nothing_is_measured_without_a_recorder(clock):
    recorder = Recorder()

    def work():
        with DECODE:
            clock.sleep(10)
            assert stages.active_recorder() is None

    with recorder:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert recorder.take().nanoseconds[DECODE.index] == 0


def test_an_exception_ends_the_stage(clock):
    recorder = Recorder()
    try:
        with recorder, DECODE, RESIZE:
            raise ValueError
    except ValueError:
        pass
    assert stages.active_recorder() is None
    recorder.take()
    with recorder:
        clock.sleep(1)
    assert recorder.take().nanoseconds[stages.OTHER.index] == 1


def test_time_that_compiled_code_measured_is_moved_to_its_stage(clock):
    recorder = Recorder()
    with recorder:
        clock.sleep(30)
        recorder.move(DECODE, 10)
    times = recorder.take().nanoseconds
    assert times[DECODE.index] == 10
    assert times[stages.OTHER.index] == 20
