"""The listener for workers on other machines, and the workers, over sockets of this machine and without Ray."""

import contextlib
import hashlib
import hmac
import logging
import os
import pickle
import socket
import struct
import sys
import threading
import time
from functools import partial

import pytest

from wds_tools import (
    LoaderError,
    OptionError,
    RayWorkers,
    StoreError,
    StreamingDataset,
    WorkerError,
    make_loader,
    stages,
)
from wds_tools.loading.workers import remote_hub, remote_pool
from wds_tools.loading.workers.remote_pool import RemotePool
from wds_tools.loading.workers.remote_worker import run_remote_worker

SIZE = 100_000  # bytes that a task writes


class Worker:
    """Runs tasks, which are numbers: the memory of a task is filled with its number."""

    def __init__(self, before=lambda _: None):
        self.before = before

    def show_stage_in(self, shown):
        pass

    def read_ahead(self, task):
        pass

    def run(self, task):
        self.before(task)
        return f"task {task}"

    def memory(self, task):
        return [memoryview(bytes([task]) * SIZE)]


class Host:
    """The memory of the host, in pieces."""

    def __init__(self):
        self.slots = [bytearray(SIZE) for _ in range(100)]

    def memory(self, task):
        view = memoryview(self.slots[task])
        return [view[:10], view[10 : SIZE // 2], view[SIZE // 2 :]]

    def share(self, task):
        return task / 100

    def received(self, value, _):
        return value


class Placement:
    """Starts no workers; the tests do."""

    host = "127.0.0.1"
    is_stopped = False

    def start(self, address, token):
        self.address, self.token = address, token

    def check(self):
        pass

    def stop(self):
        self.is_stopped = True

    def missing(self):
        return "start one"

    def add_worker(self, before=lambda _: None, node="node"):
        arguments = (Worker(before), self.address, self.token)
        threading.Thread(target=run_remote_worker, args=arguments, kwargs={"node": node}, daemon=True).start()

    def connect(self):
        return contextlib.closing(socket.create_connection(self.address, timeout=5))

    def proven(self):
        """Return a connection that has proved itself with code of its own, and reports that it is ready."""
        connection = socket.create_connection(self.address, timeout=5)
        own = os.urandom(32)
        both = connection.recv(32) + own
        connection.sendall(own + digest(self.token, b"worker", both))
        assert connection.recv(32) == digest(self.token, b"host", both)
        send(connection, -1, remote_hub.WorkerName("machine", 1, "node"))
        return contextlib.closing(connection)


def send(connection, task_id, value, memory=b"", announced=None):
    head = struct.pack("<qI", task_id, 0) + pickle.dumps(value)
    length = len(memory) if announced is None else announced
    connection.sendall(struct.pack("<QQ", len(head), length) + head + memory)


def is_disconnected(connection):
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


OPENED = []


class Opened:
    """Is noted in `OPENED` when it is unpickled."""

    def __reduce__(self):
        return OPENED.append, ("unpickled",)


def digest(token, role, challenges):
    return hmac.new(token, role + challenges, hashlib.sha256).digest()


@pytest.fixture
def placement():
    return Placement()


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def pool(placement, host):
    pool = RemotePool(host, placement, stall_seconds=5, tasks_per_worker=2)
    yield pool
    pool.close()


def results(pool, tasks):
    return [pool.result(task_id) for task_id in [pool.submit(task) for task in tasks]]


def test_results_are_received_into_the_memory_of_their_tasks(pool, placement, host):
    for node in ("a", "b"):
        placement.add_worker(node=node)
    tasks = range(1, 20)
    assert results(pool, tasks) == [f"task {task}" for task in tasks]
    assert all(host.slots[task] == bytes([task]) * SIZE for task in tasks)
    pool.close()
    assert placement.is_stopped
    with pytest.raises(LoaderError, match="was closed"):
        pool.submit(1)


def test_a_pool_that_is_deleted_stops_its_workers(placement, host):
    pool = RemotePool(host, placement, stall_seconds=5, tasks_per_worker=2)
    with placement.proven() as worker:
        pool.submit(1)
        worker.recv(1)
        del pool
        assert is_disconnected(worker)
    assert placement.is_stopped


def test_tasks_of_a_share_go_to_one_node(placement, host):
    ran, both = {"a": [], "b": []}, threading.Barrier(2)

    def run(node, task):
        both.wait(5)
        ran[node].append(task)

    with contextlib.closing(RemotePool(host, placement, stall_seconds=5, tasks_per_worker=1)) as pool:
        for node in ran:
            placement.add_worker(partial(run, node), node=node)
        results(pool, [1, 99])  # both workers are ready
        results(pool, [10, 60, 70, 20, 30, 80])
    assert {10, 20, 30} - {*ran["a"]} == {60, 70, 80} - {*ran["b"]} == set()


@pytest.mark.usefixtures("pool")
def test_the_listener_is_bound_to_one_address(placement):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", placement.address[1]), timeout=5)
    with placement.connect():
        pass


def test_a_peer_without_the_token_is_disconnected_before_anything_is_unpickled(pool, placement, caplog):
    with placement.connect() as peer:
        challenge = peer.recv(32)
        own = bytes(32)
        peer.sendall(own + digest(b"another token", b"worker", challenge + own))
        with contextlib.suppress(OSError):
            send(peer, -1, Opened())
        assert is_disconnected(peer)
    with placement.connect() as peer:  # what the host itself would send is no proof
        challenge = peer.recv(32)
        peer.sendall(challenge + digest(placement.token, b"host", challenge + challenge))
        assert is_disconnected(peer)
    placement.add_worker()
    assert results(pool, [1]) == ["task 1"]
    assert not OPENED
    assert "does not know the token" in caplog.text


def test_a_worker_unpickles_nothing_of_a_host_without_the_token(placement):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.sendall(bytes(32))
                connection.recv(64)
                data = pickle.dumps((1, Opened()))
                connection.sendall(bytes(32) + struct.pack("<Q", len(data)) + data)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(WorkerError, match="does not know the token"):
            run_remote_worker(Worker(), server.getsockname(), b"token", node="node")
    assert not OPENED


def test_silent_peers_are_disconnected(placement, host, monkeypatch):
    monkeypatch.setattr(remote_hub, "SECONDS", 0.3)
    monkeypatch.setattr(remote_hub, "_TICK_SECONDS", 0.05)
    with contextlib.closing(RemotePool(host, placement, stall_seconds=5, tasks_per_worker=2)) as pool:
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(placement.connect()) for _ in range(3)]
            peers[2].sendall(bytes(20))  # a part of a proof
            assert all(is_disconnected(peer) for peer in peers)
        placement.add_worker()
        assert results(pool, [1]) == ["task 1"]


def test_of_too_many_peers_without_a_proof_the_oldest_make_way(pool, placement, monkeypatch):
    monkeypatch.setattr(remote_hub, "MOST_UNPROVEN", 3)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(placement.connect()) for _ in range(5)]
        assert all(is_disconnected(peer) for peer in peers[:2])
        peers[2].setblocking(False)
        assert len(peers[2].recv(100)) == 32
        placement.add_worker()
        assert results(pool, [1]) == ["task 1"]


@pytest.mark.parametrize(
    "send_wrong",
    [
        lambda peer, _: peer.sendall(struct.pack("<QQ", 1 << 50, 0)),
        lambda peer, _: peer.sendall(struct.pack("<QQ", 4, 0) + b"head"),
        lambda peer, _: peer.sendall(struct.pack("<QQqIQ", 20, 0, -1, 1, 1 << 50)),
        lambda peer, _: peer.sendall(struct.pack("<QQqI", 12, 0, -1, 1 << 30)),
        lambda peer, task_id: send(peer, task_id, "x", bytes(SIZE + 1)),
        lambda peer, task_id: send(peer, task_id, "x", b"", announced=1 << 50),
        lambda peer, task_id: send(peer, task_id + 1, "x", bytes(SIZE)),
    ],
    ids=["length", "head", "arrays", "count", "memory", "announced", "task"],
)
def test_a_worker_that_sends_what_its_task_does_not_allow_is_disconnected(pool, placement, host, send_wrong):
    with placement.proven() as peer:
        task_id = pool.submit(1)
        peer.recv(1)
        send_wrong(peer, task_id)
        assert is_disconnected(peer)
    placement.add_worker()
    assert pool.result(task_id) == "task 1"
    assert host.slots[1] == bytes([1]) * SIZE


def test_tasks_of_a_lost_worker_are_repeated_three_times(pool, placement, host, caplog):
    task_ids = [pool.submit(task) for task in (1, 2)]
    with placement.proven() as peer:
        peer.recv(1)
        send(peer, task_ids[0], "x", bytes(SIZE // 2), announced=SIZE)  # and it is lost then
    with placement.proven() as peer:
        peer.recv(1)
    assert "is lost" in caplog.text
    with placement.proven() as peer:
        peer.recv(1)
    with pytest.raises(WorkerError, match="3 workers were lost with one task, the last was the worker on machine"):
        pool.result(task_ids[0])


def test_an_error_of_a_task_is_raised_as_with_local_workers(pool, placement):
    def fail(task):
        raise KeyError(f"no {task}")

    placement.add_worker(fail)
    with pytest.raises(KeyError, match="no 3") as caught:
        results(pool, [3])
    assert "raised in a worker" in caught.value.__notes__[0]


def test_an_error_of_the_storage_names_the_machine(pool, placement):
    def fail(_):
        raise StoreError("no access to s3://bucket")

    placement.add_worker(fail)
    with pytest.raises(StoreError, match=f"^on {os.uname().nodename}: no access to s3://bucket\n"):
        results(pool, [3])


def test_no_worker_and_a_stalled_worker_are_errors(placement, host, monkeypatch):
    monkeypatch.setattr(remote_pool, "_STACK_SECONDS", 0.1)
    with contextlib.closing(RemotePool(host, placement, stall_seconds=0.3, tasks_per_worker=2)) as pool:
        assert pool.awaited_stage() == stages.START.index
        with pytest.raises(WorkerError, match=r"there was no worker for 0 s \(stall_seconds=\): start one"):
            results(pool, [1])
    with contextlib.closing(RemotePool(host, placement, stall_seconds=0.3, tasks_per_worker=2)) as pool:
        with (
            placement.proven(),
            pytest.raises(WorkerError, match=r"the worker on machine \(pid 1\) sent nothing for 0 s.*\n\(no stack: "),
        ):
            results(pool, [1])
        assert placement.is_stopped


@pytest.mark.parametrize("task_count", [1, 3], ids=["of its own", "that no worker has"])
def test_the_error_about_a_stalled_worker_has_the_stack_of_its_task(placement, host, task_count):
    end = threading.Event()

    def hang(_):
        end.wait(9)  # the line that the stack shows

    with contextlib.closing(RemotePool(host, placement, stall_seconds=0.3, tasks_per_worker=2)) as pool:
        placement.add_worker(hang)
        *_, last = (pool.submit(task) for task in range(task_count))
        with pytest.raises(WorkerError, match=r"(?s)sent nothing for 0 s.*in run_caught\n.*in hang\n *end\.wait\(9\)"):
            pool.result(last)
        end.set()


def test_tasks_that_are_not_needed_are_dropped(pool, placement, host):
    started = threading.Event()
    placement.add_worker(lambda _: (started.set(), time.sleep(0.2)))
    task_ids = [pool.submit(task) for task in range(1, 9)]
    started.wait()
    assert not pool.discard(task_ids, seconds=0.01)
    assert pool.discard(task_ids[:2], seconds=5)
    assert results(pool, [9]) == ["task 9"]
    assert host.slots[5] == bytes(SIZE)


def test_another_thread_ends_the_wait(pool):
    threading.Timer(0.1, pool.interrupt).start()
    began = time.monotonic()
    with pytest.raises(LoaderError, match="was closed"):
        results(pool, [1])
    assert time.monotonic() - began < 4  # before the limit for stalled workers


def test_an_error_of_the_placement_is_raised(pool, placement, caplog):
    def check():
        raise WorkerError("on node-7: there is no package")

    placement.check = check
    with caplog.at_level(logging.ERROR), pytest.raises(WorkerError, match="on node-7"):
        results(pool, [1])


def test_options_that_cannot_be_used(packed, tmp_path, monkeypatch):
    for options in ({"count": 0}, {"count": 2.5}, {"count": 1, "num_cpus": 0}):
        with pytest.raises(OptionError, match="allowed are 1 worker and more, and a num_cpus above 0"):
            RayWorkers(**options)
    with pytest.raises(OptionError, match=r"pack first, then use num_workers=RayWorkers"):
        make_loader(tmp_path, batch_size=1, num_workers=RayWorkers(1), pack_to=tmp_path / "packed")
    monkeypatch.setitem(sys.modules, "ray", None)
    needs = r"num_workers=RayWorkers\(count=1, num_cpus=1\) needs Ray: pip install 'wds-tools\[ray\]'"
    with pytest.raises(OptionError, match=needs):
        make_loader(packed, batch_size=1, num_workers=RayWorkers(1))
    with pytest.raises(TypeError, match=r"RayWorkers are for make_loader\(\)"):
        StreamingDataset(packed, num_workers=RayWorkers(1))
