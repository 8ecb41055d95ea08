"""The timers of the stages of loading."""

import threading
import time

from wds_tools import stages
from wds_tools.stages import DECODE, READ, RESIZE, Recorder


def test_a_stage_inside_another_one_stops_its_time_and_all_times_add_up():
    recorder = Recorder()
    begun = time.perf_counter_ns()
    with recorder:
        with DECODE:
            with RESIZE:
                time.sleep(0.02)
            time.sleep(0.005)
        with READ:
            pass
    elapsed = time.perf_counter_ns() - begun
    times = dict(zip(stages.NAMES, recorder.take().nanoseconds, strict=True))
    assert times["resize"] >= 20e6
    assert times["decode"] >= 5e6
    assert 0 < times["read"] < times["decode"]
    assert 0.9 * elapsed < sum(times.values()) <= elapsed
    assert times["decode"] + times["resize"] + times["read"] + times["other"] == sum(times.values())


def test_take_starts_again_at_zero_and_a_recorder_may_be_used_again():
    recorder = Recorder()
    for _ in range(2):
        with recorder, READ:
            recorder.add_bytes(3)
    first, second = recorder.take(), recorder.take()
    assert first.bytes_read == 6
    assert first.nanoseconds[READ.index] > 0
    assert second.bytes_read == sum(second.nanoseconds) == 0


def test_a_recorder_inside_another_one_measures_alone_and_the_outer_stage_continues():
    outer, inner = Recorder(), Recorder()
    with outer, READ, inner, DECODE:
        time.sleep(0.01)
        assert stages.active_recorder() is inner
    assert stages.active_recorder() is None
    assert inner.take().nanoseconds[DECODE.index] >= 10e6
    times = outer.take().nanoseconds
    assert times[READ.index] >= 10e6
    assert times[DECODE.index] == 0


def test_threads_are_measured_separately_and_nothing_is_measured_without_a_recorder():
    recorder = Recorder()

    def work():
        with DECODE:
            time.sleep(0.01)
            assert stages.active_recorder() is None

    with recorder:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert recorder.take().nanoseconds[DECODE.index] == 0


def test_an_exception_ends_the_stage():
    recorder = Recorder()
    try:
        with recorder, DECODE, RESIZE:
            raise ValueError
    except ValueError:
        pass
    assert stages.active_recorder() is None
    recorder.take()
    with recorder:
        time.sleep(0.001)
    assert recorder.take().nanoseconds[stages.OTHER.index] >= 1e6


def test_time_that_compiled_code_measured_is_moved_to_its_stage():
    recorder = Recorder()
    with recorder:
        time.sleep(0.002)
        recorder.move(DECODE, 1_000_000)
    times = recorder.take().nanoseconds
    assert times[DECODE.index] == 1_000_000
    assert times[stages.OTHER.index] >= 1_000_000
