"""Atomic writes, also if the process is killed or the disk is full."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from wds_tools.storage.commit import CommitFile, commit_bytes, final_name

REPOSITORY = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(script: str, folder: Path) -> int:
    """Run a script in another process and return its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, check=False).returncode


def test_the_file_contains_the_written_bytes(tmp_path: Path) -> None:
    with CommitFile(tmp_path / "a.tar") as file:
        for part in (b"one", bytes(3 << 20), b"", b"two"):
            file.write(part)
    assert (tmp_path / "a.tar").read_bytes() == b"one" + bytes(3 << 20) + b"two"


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    commit_bytes(tmp_path / "a.json", b"{}")
    assert names(tmp_path) == ["a.json"]


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    commit_bytes(path, b"old")
    with CommitFile(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_an_exception_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    commit_bytes(tmp_path / "a.json", b"old")

    def write_half() -> None:
        with CommitFile(tmp_path / "a.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"old"


def test_patterns_do_not_match_an_unfinished_file(tmp_path: Path) -> None:
    with CommitFile(tmp_path / "a.tar") as file:
        file.write(b"half")
        assert list(tmp_path.glob("[!.]*.tar*")) == []
        assert [final_name(name) for name in names(tmp_path)] == ["a.tar"]


def test_two_writers_of_the_same_file_do_not_mix_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with CommitFile(path) as first, CommitFile(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"  # the first writer is the last one to finish
    assert names(tmp_path) == ["a.tar"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        commit_bytes(tmp_path / "no" / "a.json", b"{}")


def test_new_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        commit_bytes(tmp_path / "a.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


def test_only_names_of_temporary_files_are_recognized() -> None:
    assert final_name(".a.tar.0123456789abcdef.tmp") == "a.tar"
    assert final_name(".a.tar.0123456789abcdeg.tmp") is None
    assert final_name(".a.tar.tmp") is None
    assert final_name("a.tar.0123456789abcdef.tmp") is None


def test_a_killed_writer_leaves_no_file_with_the_final_name(tmp_path: Path) -> None:
    script = (
        "import os; from wds_tools.storage.commit import CommitFile\n"
        "with CommitFile('a.tar') as file:\n"
        "    file.write(bytes(1 << 20)); file.flush(); os.kill(os.getpid(), 9)"
    )
    assert run(script, tmp_path) == -signal.SIGKILL
    assert [final_name(name) for name in names(tmp_path)] == ["a.tar"]


@pytest.mark.parametrize("event", ["fsync", "replace"])
def test_a_kill_just_before_the_rename_leaves_the_old_file(tmp_path: Path, event: str) -> None:
    commit_bytes(tmp_path / "a.json", b"old")
    script = (
        "import os, pathlib; from wds_tools.storage.commit import commit_bytes\n"
        "def kill(*_): os.kill(os.getpid(), 9)\n"
        f"os.fsync, pathlib.Path.replace = (kill, None) if {event!r} == 'fsync' else (os.fsync, kill)\n"
        "commit_bytes('a.json', b'new')"
    )
    assert run(script, tmp_path) == -signal.SIGKILL
    assert (tmp_path / "a.json").read_bytes() == b"old"


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    script = (
        "import resource; from wds_tools.storage.commit import commit_bytes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: commit_bytes('a.tar', bytes(3 << 20))\n"
        "except OSError as error: raise SystemExit(error.errno)"
    )
    assert run(script, tmp_path) > 0
    assert names(tmp_path) == []


def test_file_and_folder_are_synced_around_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def record_rename(self: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_rename)
    commit_bytes(tmp_path / "a.json", b"{}")
    assert calls == ["file", "rename", "folder"]
