"""Worker processes: results in order, and every way of dying reported in bounded time."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wds_tools.errors import DecodeError, WorkerError
from wds_tools.loading.workers import WorkerPool


class Work:
    """Does what its task says."""

    def expect(self, task):
        pass

    def run(self, task):
        word, value = task
        return getattr(self, word)(value)

    def square(self, value):
        return value * value

    def slow_if_even(self, value):
        time.sleep(0.05 * (value % 2 == 0))
        return value

    def pid(self, _):
        return os.getpid()

    def kill(self, number):
        faulthandler.disable()  # its report of SIGSEGV would look like a crash of the suite
        os.kill(os.getpid(), number)
        time.sleep(60)

    def leave(self, code):
        os._exit(code)

    def hang(self, seconds):
        time.sleep(seconds)

    def big(self, size):
        return bytes(size)

    def echo(self, value):
        return value

    def fail(self, word):
        if word == "ours":
            raise DecodeError("bad", shard="s.tar", key="k", offset=7)
        if word == "unpicklable":
            raise type("Local", (Exception,), {})("cannot travel")
        raise ZeroDivisionError("theirs")


def make(num_workers=2, method="fork", stall_seconds=60.0, active=None):
    context = multiprocessing.get_context(method)
    return WorkerPool(Work(), num_workers=num_workers, context=context, stall_seconds=stall_seconds, active=active)


@pytest.fixture
def pool(no_leftovers):
    made = make()
    yield made
    made.close()


def test_results_come_by_number_whatever_the_order_of_work(pool):
    task_numbers = [pool.submit(("slow_if_even", n)) for n in range(12)]
    assert [pool.result(task_number) for task_number in task_numbers] == list(range(12))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_work_however_they_are_started(method):
    pool = make(method=method)
    assert [pool.result(pool.submit(("square", n))) for n in range(5)] == [0, 1, 4, 9, 16]
    pool.close()


def test_tasks_go_to_all_workers(pool):
    task_numbers = [pool.submit(("pid", 0)) for _ in range(8)]
    assert len({pool.result(task_number) for task_number in task_numbers}) == 2


def test_only_active_workers_get_tasks_and_there_may_be_more_at_any_time(no_leftovers):
    pool = make(num_workers=3, active=1)

    def at_work():
        task_numbers = [pool.submit(("pid", 0)) for _ in range(6)]
        return {pool.result(task_number) for task_number in task_numbers}

    assert len(at_work()) == 1
    pool.active = 3
    assert len(at_work()) == 3
    pool.close()


def test_large_tasks_and_results_do_not_block_each_other(pool):
    task_numbers = [pool.submit(("big", 5_000_000)) for _ in range(4)]
    task_numbers += [pool.submit(("echo", bytes(1_000_000))) for _ in range(4)]
    assert [len(pool.result(task_number)) for task_number in task_numbers] == [5_000_000] * 4 + [1_000_000] * 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_worker_is_named_with_its_signal_at_once(number, no_leftovers):
    pool = make()
    task_number = pool.submit(("kill", number))
    start = time.monotonic()
    with pytest.raises(WorkerError, match=rf"worker \d of 2 \(pid \d+\) was killed by {number.name}"):
        pool.result(task_number)
    assert time.monotonic() - start < 10  # bounded, with room for a busy machine; it takes 0.1 s


def test_a_worker_that_leaves_is_named_with_its_exit_code(no_leftovers):
    pool = make()
    with pytest.raises(WorkerError, match="exited with code 3"):
        pool.result(pool.submit(("leave", 3)))


def test_a_stalled_worker_is_reported_with_its_stack(no_leftovers):
    pool = make(stall_seconds=1.0)
    with pytest.raises(WorkerError, match=r"sent nothing for 1 s[\s\S]*in hang"):
        pool.result(pool.submit(("hang", 1000)))


def test_a_stopped_worker_does_not_stop_us(no_leftovers):
    pool = make(stall_seconds=1.0)
    pid = pool.result(pool.submit(("pid", 0)))
    os.kill(pid, signal.SIGSTOP)
    task_numbers = [pool.submit(("pid", 0)) for _ in range(2)]  # one for each worker
    with pytest.raises(WorkerError, match="sent nothing for 1 s"):
        _ = [pool.result(task_number) for task_number in task_numbers]


def test_an_exception_keeps_its_type_and_brings_the_workers_traceback(pool):
    with pytest.raises(ZeroDivisionError, match="theirs") as caught:
        pool.result(pool.submit(("fail", "")))
    assert "in fail" in caught.value.__notes__[0]
    assert pool.result(pool.submit(("square", 3))) == 9  # the worker lives on


def test_our_errors_keep_their_place(pool):
    with pytest.raises(DecodeError) as caught:
        pool.result(pool.submit(("fail", "ours")))
    assert (caught.value.shard, caught.value.key, caught.value.offset) == ("s.tar", "k", 7)


def test_an_exception_that_cannot_travel_is_told_all_the_same(pool):
    with pytest.raises(WorkerError, match="cannot travel"):
        pool.result(pool.submit(("fail", "unpicklable")))


def test_close_ends_workers_in_the_middle_of_a_task(no_leftovers):
    pool = make()
    pool.submit(("hang", 1000))
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 10
    pool.close()  # twice is fine


def test_a_forgotten_pool_ends_its_workers(no_leftovers):
    pool = make()
    pool.submit(("hang", 1000))
    del pool
    gc.collect()


SCRIPT = """
import multiprocessing, os, sys, time
sys.path.insert(0, {tests!r})
from test_workers import make
pool = make()
pids = {{pool.result(pool.submit(("pid", 0))) for _ in range(1)}} | {{w.process.pid for w in pool._workers}}
pool.submit(("hang", 1000)), pool.submit(("hang", 1000))
print(*pids, flush=True)
{ending}
"""


@pytest.mark.parametrize(
    "ending",
    ["os.kill(os.getpid(), 9)", "sys.exit(0)", "raise RuntimeError", "os.kill(os.getpid(), 2); time.sleep(60)"],
)
def test_workers_end_with_the_main_process_however_it_ends(ending):
    script = SCRIPT.format(tests=str(Path(__file__).parent), ending=ending)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its main process"
        time.sleep(0.05)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
