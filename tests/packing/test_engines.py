"""Packing by several independent processes: task arrays, and Ray."""

import os
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import preloaded
import pytest
from folders import contents
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import DestinationError, OptionError, WorkerError
from wds_tools.packing import engines

REPOSITORY = Path(__file__).parents[2]
OPTIONS = {"shard_bytes": "500kB", "images": "keep", "workers": 1}


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """Return the files that one process packs."""
    folder = tmp_path_factory.mktemp("whole") / "dst"
    wt.pack(photos, folder, **OPTIONS)
    return contents(folder)


def start_task(photos, dst, index, count):
    words = ["pack", photos, dst, "--shard-bytes", "500kB", "--images", "keep", "--workers", "1"]
    words += ["--task-index", str(index), "--task-count", str(count)]
    return preloaded.Process(["-m", "wds_tools", *words], imports=preloaded.COMMANDS)


def test_concurrent_tasks_and_a_finish_write_the_same_bytes_as_one_process(photos, whole, tmp_path):
    dst = tmp_path / "dst"
    tasks = [start_task(photos, dst, index, 3) for index in range(3)]
    assert [task.wait() for task in tasks] == [0, 0, 0], [task.stderr for task in tasks]
    assert "run the same command with --finish" in tasks[0].stdout
    assert not (dst / "manifest.json").exists()
    report = wt.pack(photos, dst, finish=True, **OPTIONS)
    assert report.kept == len(report.manifest.shards)
    assert contents(dst) == whole


def test_finishing_too_early_names_a_missing_shard_and_pack_without_tasks_writes_it(photos, whole, tmp_path):
    dst = tmp_path / "dst"
    part = wt.pack(photos, dst, task=(1, 4), **OPTIONS)
    assert not part.complete
    with pytest.raises(DestinationError, match=r"shards are missing in .*, such as shard-000000\.tar: run the tasks"):
        wt.pack(photos, dst, finish=True, **OPTIONS)
    assert not (dst / "manifest.json").exists()
    again = wt.pack(photos, dst, task=(1, 4), **OPTIONS)
    assert again.kept == len(again.manifest.shards)  # nothing is packed twice
    assert wt.pack(photos, dst, **OPTIONS).kept == again.kept
    assert contents(dst) == whole


@pytest.mark.torture
def test_a_killed_task_can_be_run_again(photos, whole, tmp_path):
    dst = tmp_path / "dst"
    task = start_task(photos, dst, 0, 2)
    wait_for(lambda: task.poll() is not None or list(dst.glob(".packing/shard-*.json")), poll_seconds=0.001)
    task.kill()
    task.wait()
    for index in (1, 0):
        wt.pack(photos, dst, task=(index, 2), **OPTIONS)
    wt.pack(photos, dst, finish=True, **OPTIONS)
    assert contents(dst) == whole


def test_the_same_task_twice_and_a_packer_beside_tasks_are_refused(photos, tmp_path):
    from wds_tools.packing.destination import FolderDestination

    with FolderDestination(tmp_path / "dst", task=(0, 2)), FolderDestination(tmp_path / "dst", task=(1, 2)):
        for task in ((0, 2), None):
            with (
                pytest.raises(DestinationError, match="another packer"),
                FolderDestination(tmp_path / "dst", task=task),
            ):
                pass
    with (
        FolderDestination(tmp_path / "other"),
        pytest.raises(DestinationError, match="another packer"),
        FolderDestination(tmp_path / "other", task=(0, 2)),
    ):
        pass


@pytest.mark.parametrize("wrong", [{"task": (2, 2)}, {"task": (-1, 2)}, {"task": (0, 2), "finish": True}])
def test_an_invalid_task_is_refused(photos, tmp_path, wrong):
    with pytest.raises(OptionError, match="task"):
        wt.pack(photos, tmp_path / "dst", **OPTIONS, **wrong)


def test_an_unknown_engine_and_a_missing_ray_are_errors(photos, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="allowed are 'local', 'ray'"):
        wt.pack(photos, tmp_path / "dst", engine="steam", **OPTIONS)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'wds-tools\[ray\]'"):
        wt.pack(photos, tmp_path / "dst", engine="ray", **OPTIONS)


@pytest.fixture
def dead_cluster():
    """Return a folder of temporary files of Ray that names a cluster which has ended. Ray needs short paths."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:  # Ray may still write
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
        yield folder


def test_a_ray_cluster_that_does_not_answer_is_named(photos, tmp_path, monkeypatch):
    def init(**_options: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at head:6379")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with pytest.raises(WorkerError, match=r"^no connection to .* at RAY_ADDRESS=head:6379: .*RAY_AUTH_MODE"):
        wt.pack(photos, tmp_path / "dst", engine="ray", **OPTIONS)


def test_a_raylet_that_ends_on_this_machine_is_reported_before_ray_ends_the_process(monkeypatch, caplog):
    raylet = socket.create_server(("127.0.0.1", 0))
    own, other = (
        {"NodeID": name, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        for name, port in [("own", raylet.getsockname()[1]), ("other", 1)]
    )
    context = SimpleNamespace(get_node_id=lambda: "own")
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: [other, own], get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(engines, "_WATCH_SECONDS", 0.05)

    def run_on_ray(*_arguments, **_options):
        raylet.accept()[0].close()
        assert not caplog.records
        raylet.close()
        yield 0, wait_for(lambda: caplog.text)

    monkeypatch.setattr(engines, "run_on_ray", run_on_ray)
    ((_, text),) = engines.Engine("ray", after_loss="continue").run(print, None, [], advance=print)
    assert "Ray has ended on this machine" in text
    assert text.endswith("start Ray again; continue\n")


@pytest.mark.frameworks
@pytest.mark.torture
def test_ray_packs_on_this_machine_and_continues_an_interrupted_run(photos, whole, dead_cluster, tmp_path):
    script = (
        "import sys, wds_tools as wt\n"
        "dst = sys.argv[2]\n"
        "wt.pack(sys.argv[1], dst, shard_bytes='500kB', images='keep', workers=1, task=(0, 3))\n"
        "report = wt.pack(sys.argv[1], dst, shard_bytes='500kB', images='keep', engine='ray')\n"
        "assert 0 < report.kept < len(report.manifest.shards), report.kept\n"
    )
    done = preloaded.run(  # in a separate process, with which everything that Ray starts must end
        ["-c", script, photos, tmp_path / "dst"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "RAY_TMPDIR": dead_cluster},
        imports=("ray", *preloaded.COMMANDS),
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "dst") == whole
