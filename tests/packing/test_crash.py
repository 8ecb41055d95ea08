"""kill -9, or a failing call, at every write, fsync and rename during packing. A rerun gives the same bytes.

Shards are written by `writev`.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import faults
import mounts
import pytest
from folders import contents

import wds_tools as wt
from wds_tools.packing.shard_file import CHUNK_BYTES

OPTIONS = {"shard_bytes": "60kB", "workers": 1, "images": "keep"}
COMMAND = ["wds_tools", "pack", "--shard-bytes=60kB", "--workers=1", "--images=keep"]


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    """Skip the test if the kernel does not support intercepting calls."""
    if reason := faults.missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def few(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of four images, enough for two shards."""
    folder = tmp_path_factory.mktemp("few")
    for name, count in (("cat", 2), ("fig", 2)):
        (folder / name).mkdir()
        for path in sorted((photos / name).glob("*.jpg"))[:count]:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def whole(few: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a run without faults."""
    folder = tmp_path_factory.mktemp("whole") / "dst"
    wt.pack(few, folder, **OPTIONS)
    found = contents(folder)
    assert len([name for name in found if name.endswith(".tar")]) == 2
    return found


def pack_with(fault: str, call: str, number: int, few: Path, dst: Path) -> subprocess.CompletedProcess[str]:
    """Pack with a fault at the n-th call."""
    return faults.run_with_fault([*COMMAND, few, dst], call, number, fault)


def fault_and_rerun(fault: str, call: str, number: int, few: Path, whole: dict[str, bytes], dst: Path) -> int:
    """Let a call fail, check what is there, and pack again; return the exit status of the failing run."""
    done = pack_with(fault, call, number, few, dst)
    found = contents(dst)
    if not done.returncode:
        assert found == whole
    elif fault != "KILL":
        assert done.stderr.splitlines()[-1].startswith("error: "), done.stderr
        assert "Traceback" not in done.stderr
        if "manifest.json" not in found and (dst / ".packing").exists():
            assert "run the same command again" in done.stderr
    if "manifest.json" in found:  # a dataset with a manifest is complete, whatever happened afterwards
        assert {name: data for name, data in found.items() if name in whole} == whole
    wt.pack(few, dst, **OPTIONS)
    assert contents(dst) == whole, f"{fault} at {call} number {number}"
    return done.returncode


def try_every_call(fault: str, call: str, few: Path, whole: dict[str, bytes], folder: Path) -> int:
    """Let each call fail in turn, until a run completes; return the number of calls."""
    for number in range(1, 200):
        status = fault_and_rerun(fault, call, number, few, whole, folder / f"{call}-{number}")
        if not status and (fault == "KILL" or number > 40):
            return number - 1
    raise AssertionError("a pack of four images makes fewer calls")


@pytest.fixture(scope="module")
def long(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three images, each of several chunks, which a thread writes."""
    folder = tmp_path_factory.mktemp("long")
    for path in sorted((photos / "cat").glob("*.jpg"))[:3]:
        (folder / path.name).write_bytes(path.read_bytes() + bytes(2 * CHUNK_BYTES))
    return folder


def test_a_rerun_recovers_from_a_fault_in_the_writing_thread(long, tmp_path):
    wt.pack(long, tmp_path / "whole", **OPTIONS)
    for fault, number in (("KILL", 2), ("EIO", 2)):
        dst = tmp_path / fault
        done = pack_with(fault, "writev", number, long, dst)
        assert done.returncode in (1, -signal.SIGKILL)
        assert ("run the same command again" in done.stderr) == (fault != "KILL")
        assert not list(dst.glob("*.json"))
        wt.pack(long, dst, **OPTIONS)
        assert contents(dst) == contents(tmp_path / "whole"), fault


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("write", 1),
        ("write", 6),
        ("writev", 1),
        ("writev", 2),
        ("fsync", 3),
        ("fsync", 14),
        ("rename", 2),
        ("rename", 7),
    ],
)
@pytest.mark.torture_except("writev-2", "fsync-14", "rename-7")
def test_a_rerun_recovers_from_a_kill_at_a_write_fsync_or_rename(call, number, few, whole, tmp_path):
    assert fault_and_rerun("KILL", call, number, few, whole, tmp_path / "dst") == -signal.SIGKILL


@pytest.mark.torture
@pytest.mark.parametrize("call", ["write", "writev", "fsync", "rename"])
def test_a_rerun_recovers_from_a_kill_at_any_write_fsync_or_rename(call, few, whole, tmp_path):
    calls = try_every_call("KILL", call, few, whole, tmp_path)
    assert calls >= {"write": 6, "writev": 2, "fsync": 14, "rename": 7}[call]  # or calls have other names here


@pytest.mark.torture
@pytest.mark.parametrize("call", ["unlink", "mkdir", "rmdir", "link"])
def test_a_rerun_recovers_from_a_kill_at_any_other_change_of_the_folder(call, few, whole, tmp_path):
    assert try_every_call("KILL", call, few, whole, tmp_path) >= 1


@pytest.mark.torture
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("call", ["write", "writev", "fsync", "rename"])
def test_a_failing_write_fsync_or_rename_is_a_one_line_error_and_a_rerun_recovers(call, error, few, whole, tmp_path):
    try_every_call(error, call, few, whole, tmp_path)


@pytest.mark.parametrize(("call", "number"), [("write", 4), ("writev", 2), ("fsync", 5), ("fsync", 9), ("rename", 3)])
@pytest.mark.torture_except("write-4", "writev-2", "rename-3")
def test_other_failing_calls_are_one_line_errors_and_a_rerun_recovers(call, number, few, whole, tmp_path):
    done = pack_with("ENOSPC", call, number, few, tmp_path / "dst")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "run the same command again" in done.stderr
    wt.pack(few, tmp_path / "dst", **OPTIONS)
    assert contents(tmp_path / "dst") == whole


FULL_DISKS = """
import json, pathlib, sys, mounts
mounts.enter()
import wds_tools as wt
from wds_tools.errors import DestinationError
src, disk, sizes = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
reference = json.loads(sys.argv[4])
for size in sizes:
    mounts.make_small(disk, size)
    try:
        wt.pack(src, disk / "dst", shard_bytes="1MB", workers=1, images="keep")
        said = ""
    except DestinationError as error:
        said = str(error)
        assert "No space left on device" in said and "finished and kept" in said and "free some space" in said, said
    if (disk / "dst" / "manifest.json").exists():
        assert not said
    mounts.resize(disk, 40_000)
    wt.pack(src, disk / "dst", shard_bytes="1MB", workers=1, images="keep")
    found = {path.name: path.stat().st_size for path in (disk / "dst").rglob("*") if path.is_file()}
    assert found == reference, (size, found)
    assert not wt.verify(disk / "dst").damage_count
    mounts.unmount(disk)
    sys.stdout.write(f"{size} {bool(said)}\\n")
"""


@pytest.mark.torture
def test_a_full_disk_of_any_size_is_a_clear_error_and_a_rerun_continues(photos, packed, tmp_path, can_mount):
    sizes = [4, 8, 16, 40, 100, *range(300, 7300, 333), 7400]
    reference = {path.name: path.stat().st_size for path in packed.iterdir()}
    (tmp_path / "disk").mkdir()
    words = photos, tmp_path / "disk", json.dumps(sizes), json.dumps(reference)
    done = mounts.run(FULL_DISKS, *words)
    assert done.returncode == 0, done.stderr
    full = dict(line.split() for line in done.stdout.splitlines())
    assert len(full) == len(sizes)
    assert full["300"] == "True"
    assert full["7400"] == "False"
