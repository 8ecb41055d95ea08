"""Memory of the workers, and cleanup after any end of the main process."""

from pathlib import Path

import pytest
from piped import piped
from waiting import wait_for

PRIVATE_LIMIT = 300e6  # per worker, without the memory that it shares with others


def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def workers_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def largest_private_memory(pids):
    pids = pids.split()
    assert len(pids) == 2
    return max(private_bytes(pid) for pid in pids)


EPOCHS = """
import multiprocessing, sys
import wds_tools as wt
view = wt.RandomResizedCrop(224, flip=True)
options = {"batch_size": 20, "num_workers": 2, "view": view, "shuffle": True}
with wt.make_loader(sys.argv[1], **options, multiprocessing_context=sys.argv[2]) as loader:
    for epochs in (3, 9):
        for _ in range(epochs):
            list(loader)
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        input()
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.parametrize("dataset", ["few", pytest.param("packed", marks=pytest.mark.torture)])
@pytest.mark.torture_except("few-fork")
def test_workers_stay_below_their_memory_limit_and_do_not_grow_after_the_third_epoch(request, dataset, context):
    # In its own process: a forkserver that packing has started in this one has not imported torch.
    words = ["-c", EPOCHS, request.getfixturevalue(dataset), context]
    with piped(words) as (process, stdin, stdout):
        after_three = largest_private_memory(stdout.readline())
        stdin.write("go on\n")
        after_twelve = largest_private_memory(stdout.readline())
        stdin.write("go on\n")
        assert process.wait() == 0
    assert after_twelve <= PRIVATE_LIMIT
    assert after_twelve - after_three < 10e6


SCRIPT = """
import os, signal, sys, time
import wds_tools as wt
loader = wt.make_loader(sys.argv[1], batch_size=16, num_workers=2, view=wt.CenterCrop(32, resize=40), shuffle=True)
batches = iter(loader)
kept = next(batches)
print("ready", flush=True)
input()
{end}
"""

ENDS = {
    "returns": "",
    "closes": "loader.close()",
    "raises": "raise RuntimeError('of the user')",
    "exits at once": "os._exit(3)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "is interrupted": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "is terminated": "os.kill(os.getpid(), signal.SIGTERM)",
}


def named_memory(pid):
    """Return the files in /dev/shm that a process has mapped. They would remain if it were killed."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]


def alive(pids):
    """Return the processes that are still running. Zombies do not count."""
    stats = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [
        pid for pid, stat in stats.items() if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    ]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.torture_except("returns", "raises", "is killed")
def test_no_process_or_shared_memory_is_left_after_any_end_of_the_main_process(packed, end):
    with piped(["-c", SCRIPT.format(end=ENDS[end]), packed]) as (process, stdin, stdout):
        assert stdout.readline() == "ready\n"
        workers = workers_of(process.pid)
        assert len(workers) == 2
        assert not [line for pid in (process.pid, *workers) for line in named_memory(pid)]
        stdin.write("go on\n")
    wait_for(lambda: not alive(workers))
