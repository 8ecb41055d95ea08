"""Worker processes: results in order, and every kind of failure reported in bounded time."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import time
from pathlib import Path

import preloaded
import pytest
from waiting import wait_for
from worker_processes import worker_processes

from wds_tools.errors import DecodeError, WorkerError
from wds_tools.loading.workers.pool import WorkerPool


class NamedTasks:
    """Task runner for tests. A task is the name of a method and its argument."""

    def show_stage_in(self, shown):
        pass

    def read_ahead(self, task):
        pass

    def run(self, task):
        name, value = task
        return getattr(self, name)(value)

    def square(self, value):
        return value * value

    def slow_if_even(self, value):
        time.sleep(0.05 * (value % 2 == 0))
        return value

    def pid(self, _):
        return os.getpid()

    def wait_for(self, path):
        while not path.exists():
            time.sleep(0.01)
        return os.getpid()

    def touch(self, path):
        path.touch()

    def kill(self, number):
        faulthandler.disable()  # its output on SIGSEGV would look like a crash of the test suite
        os.kill(os.getpid(), number)
        time.sleep(60)

    def exit(self, code):
        os._exit(code)

    def hang(self, seconds):
        time.sleep(seconds)

    def big(self, size):
        return bytes(size)

    def echo(self, value):
        return value

    def fail(self, kind):
        if kind == "ours":
            raise DecodeError("bad", shard="s.tar", key="k", offset=7)
        if kind == "unpicklable":
            raise type("Local", (Exception,), {})("the text")
        raise ZeroDivisionError("by zero")


def make(num_workers=2, method="fork", stall_seconds=60.0, active=None, tasks_per_worker=100):
    return WorkerPool(
        NamedTasks(),
        num_workers=num_workers,
        context=multiprocessing.get_context(method),
        stall_seconds=stall_seconds,
        active=active,
        tasks_per_worker=tasks_per_worker,
    )


@pytest.fixture
def pool(no_leftovers):
    pool = make()
    yield pool
    pool.close()


def test_a_task_waits_for_the_first_free_worker_and_not_behind_a_slow_one(no_leftovers, tmp_path):
    pool = make(tasks_per_worker=1)
    slow = pool.submit(("wait_for", tmp_path / "go"))
    fast = [pool.submit(("pid", None)) for _ in range(5)]
    assert len({pool.result(number) for number in fast}) == 1
    (tmp_path / "go").touch()
    assert pool.result(slow) != 0
    pool.close()


def test_pending_tasks_are_discarded_without_running_them(no_leftovers, tmp_path):
    pool = make(num_workers=1, tasks_per_worker=1)
    first = pool.submit(("square", 3))
    pending = [pool.submit(("touch", tmp_path / str(number))) for number in range(3)]
    assert pool.discard([*pending, first], seconds=20)
    assert pool.result(pool.submit(("square", 4))) == 16
    assert list(tmp_path.iterdir()) == []
    pool.close()


def test_results_are_returned_by_number_in_any_order_of_completion(pool):
    task_numbers = [pool.submit(("slow_if_even", n)) for n in range(12)]
    assert [pool.result(task_number) for task_number in task_numbers] == list(range(12))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.torture_except("fork", "forkserver")
def test_workers_run_tasks_with_any_start_method(method):
    pool = make(num_workers=1, method=method)
    assert [pool.result(pool.submit(("square", n))) for n in range(5)] == [0, 1, 4, 9, 16]
    pool.close()


def test_tasks_go_to_all_workers(pool):
    task_numbers = [pool.submit(("pid", 0)) for _ in range(8)]
    assert len({pool.result(task_number) for task_number in task_numbers}) == 2


def test_only_active_workers_get_tasks_and_their_number_can_be_increased(no_leftovers):
    pool = make(num_workers=3, active=1)

    def pids_of_six_tasks():
        task_numbers = [pool.submit(("pid", 0)) for _ in range(6)]
        return {pool.result(task_number) for task_number in task_numbers}

    assert len(pids_of_six_tasks()) == 1
    pool.active = 3
    assert len(pids_of_six_tasks()) == 3
    pool.close()


def test_large_tasks_and_results_do_not_block_each_other(pool):
    task_numbers = [pool.submit(("big", 5_000_000)) for _ in range(4)]
    task_numbers += [pool.submit(("echo", bytes(1_000_000))) for _ in range(4)]
    assert [len(pool.result(task_number)) for task_number in task_numbers] == [5_000_000] * 4 + [1_000_000] * 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_worker_is_reported_at_once_with_its_signal(number, no_leftovers):
    pool = make()
    task_number = pool.submit(("kill", number))
    with pytest.raises(WorkerError, match=rf"worker \d of 2 \(pid \d+\) was killed by {number.name}"):
        pool.result(task_number)  # a worker that stalls is reported otherwise, after 60 s


def test_a_worker_that_exits_is_reported_with_its_exit_code(no_leftovers):
    pool = make()
    with pytest.raises(WorkerError, match="exited with code 3"):
        pool.result(pool.submit(("exit", 3)))


def test_a_stalled_worker_is_reported_with_its_stack(no_leftovers):
    pool = make(stall_seconds=1.0)
    with pytest.raises(WorkerError, match=r"sent nothing for 1 s[\s\S]*in hang"):
        pool.result(pool.submit(("hang", 1000)))


@pytest.mark.torture
def test_a_worker_stopped_by_sigstop_is_reported(no_leftovers):
    pool = make(stall_seconds=1.0)
    os.kill(worker_processes()[0].pid, signal.SIGSTOP)
    task_numbers = [pool.submit(("pid", 0)) for _ in range(2)]  # one for each worker
    with pytest.raises(WorkerError, match="sent nothing for 1 s"):
        _ = [pool.result(task_number) for task_number in task_numbers]


def test_an_exception_keeps_its_type_and_has_the_traceback_of_the_worker(pool):
    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        pool.result(pool.submit(("fail", "")))
    assert "in fail" in caught.value.__notes__[0]
    assert pool.result(pool.submit(("square", 3))) == 9  # the worker is still alive


def test_our_errors_keep_shard_key_and_offset(pool):
    with pytest.raises(DecodeError) as caught:
        pool.result(pool.submit(("fail", "ours")))
    assert (caught.value.shard, caught.value.key, caught.value.offset) == ("s.tar", "k", 7)


def test_an_exception_that_cannot_be_pickled_is_reported_with_its_text(pool):
    with pytest.raises(WorkerError, match="the text"):
        pool.result(pool.submit(("fail", "unpicklable")))


def test_close_stops_workers_in_the_middle_of_a_task(no_leftovers):
    pool = make()
    pool.submit(("hang", 1000))
    pool.close()
    pool.close()  # a second call has no effect


def test_a_deleted_pool_stops_its_workers(no_leftovers):
    pool = make()
    pool.submit(("hang", 1000))
    del pool
    gc.collect()


SCRIPT = """
import multiprocessing, os, sys, time
sys.path[:0] = {paths!r}
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
@pytest.mark.torture_except("os.kill(os.getpid(), 9)", "raise RuntimeError")
def test_workers_exit_after_any_end_of_the_main_process(ending):
    script = SCRIPT.format(paths=[str(folder) for folder in Path(__file__).parents[:2]], ending=ending)
    done = preloaded.run(["-c", script])
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    wait_for(lambda: not any(_is_running(pid) for pid in pids))


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
