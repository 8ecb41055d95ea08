"""Ray clusters of several nodes, in processes of this machine: nodes are killed, added, and lack something."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from buckets import empty_s3
from folders import contents
from waiting import wait_for

import wds_tools as wt

pytestmark = [pytest.mark.frameworks, pytest.mark.long]
REPOSITORY = Path(__file__).parents[2]
SMALL = ("--shard-bytes", "500kB", "--images", "keep")


@pytest.fixture
def cluster(monkeypatch):
    """Return a cluster whose first node has no CPUs. Ray needs short paths for its files."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    from ray import cluster_utils

    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        for name, value in {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}.items():
            monkeypatch.setenv(name, value)
        started = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        monkeypatch.setenv("RAY_ADDRESS", started.address)
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        yield started
        started.shutdown()
        for number, handler in handlers.items():  # Ray replaces them
            signal.signal(number, handler)


def start(folder, *words):
    """Start a command; its folder is not that of the repository, which Ray would add to the path of all nodes."""
    return subprocess.Popen(
        [sys.executable, "-m", "wds_tools", *map(str, words), "--engine", "ray"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process):
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    return output


def test_a_node_is_killed_and_one_is_added_between_buckets(cluster, photos, moto, monkeypatch, tmp_path):
    settings = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    s3 = empty_s3(moto)
    for photo in photos.rglob("*.jpg"):
        s3.put_file(str(photo), f"bucket/raw/{photo.parent.name}/{photo.name}")
    whole = wt.pack("s3://bucket/raw", tmp_path / "whole", shard_bytes="500kB", images="keep", workers=1)
    assert len(whole.manifest.shards) > 8
    first, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    process = start(tmp_path, "pack", "s3://bucket/raw", "s3://bucket/train", *SMALL)

    def arrived(count):
        assert process.poll() is None or count == 1, process.communicate()
        return len(s3.glob("bucket/train/*.tar")) >= count

    wait_for(lambda: arrived(2))
    cluster.remove_node(first, allow_graceful=False)
    wait_for(lambda: arrived(4))
    cluster.add_node(num_cpus=1)
    output_of(process)
    s3.invalidate_cache()
    assert {path.removeprefix("bucket/train/"): s3.cat_file(path) for path in s3.find("bucket/train")} == contents(
        tmp_path / "whole"
    )


def test_verify_reshard_index_and_add_fields_write_what_one_machine_writes(cluster, packed, tmp_path):
    cluster.add_node(num_cpus=2)
    assert "is undamaged" in output_of(start(tmp_path, "verify", packed))
    wt.reshard(packed, tmp_path / "whole", shard_bytes="500kB")
    output_of(start(tmp_path, "reshard", packed, tmp_path / "dst", "--shard-bytes", "500kB", "--num-cpus", "2"))
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")
    from wds_tools.reading.opening import open_shards

    keys = [key for shard in range(3) for key in open_shards(packed).index(shard).keys]
    captions = tmp_path / "captions.csv"
    captions.write_text("key,txt\n" + "".join(f"{key},a photo of {key}\n" for key in keys))
    one, ours = tmp_path / "one", tmp_path / "ours"
    for folder in (one, ours):
        folder.mkdir()
        for shard in packed.glob("*.tar"):
            shutil.copy(shard, folder)
    wt.index_shards(f"{one}/*.tar")
    wt.add_fields(one, captions)
    output_of(start(tmp_path, "index", f"{ours}/*.tar"))
    output_of(start(tmp_path, "add-fields", ours, "--from", captions))
    assert contents(ours) == contents(one)


def test_what_a_node_lacks_is_named_with_the_node(cluster, packed, tmp_path):
    package = REPOSITORY / "wds_tools"
    missing, other, not_compiled = tmp_path / "missing", tmp_path / "other", tmp_path / "not_compiled"
    (missing / "wds_tools").mkdir(parents=True)
    (missing / "wds_tools/__init__.py").write_text("raise ImportError('No module named wds_tools')\n")
    shutil.copytree(package, other / "wds_tools")
    init = other / "wds_tools/__init__.py"
    init.write_text(f"{init.read_text()}\n__version__ = '9.9'\n")
    shutil.copytree(package, not_compiled / "wds_tools", ignore=shutil.ignore_patterns("*.so"))
    name = os.uname().nodename
    for path, expected in {
        missing: f"error: {name} cannot import wds_tools (No module named wds_tools): install the same version on all",
        other: f"error: {name} has wds_tools 9.9, and the starting process {wt.__version__}: install the same",
        not_compiled: f"error: on {name}: a worker process on {name} differs from the process that started it",
    }.items():
        node = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(path)})
        output, _ = (process := start(tmp_path, "verify", packed)).communicate(timeout=400)
        assert (process.returncode, expected in output) == (2, True), output
        cluster.remove_node(node, allow_graceful=False)
