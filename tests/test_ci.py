""".ci/run: the programs on its PATH, the reasons for skips that it allows, and its output and exit status."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLOSING = "3 passed, 1 skipped in 0.10s"


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that runs .ci/run in a repository whose `make test` is the given command."""
    (tmp_path / "programs").mkdir()
    for name in ("cc", "gcc", "as", "ld", "git", "jpegtran"):
        (tmp_path / "programs" / name).touch(mode=0o755)
    (tmp_path / "repository" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "repository" / ".ci")
    path = f"{tmp_path / 'programs'}:{os.environ['PATH']}"

    def run(*lines: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        recipe = "".join(f"\t@echo '{line}'\n" for line in lines)
        (tmp_path / "repository" / "Makefile").write_text(
            f"test:\n\t@echo programs: `ls $(PATH)`\n{recipe}\t@exit {status}\n"
        )
        return subprocess.run(
            ["bash", tmp_path / "repository" / ".ci" / "run"],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    "reason", ["no CUDA device", "no second CUDA device", "missing kernel feature: seccomp_unotify"]
)
def test_a_skip_for_an_allowed_reason_passes_and_the_summary_is_the_last_line(run, reason: str) -> None:
    done = run(f"SKIPPED [1] tests/test_x.py:13: {reason}", CLOSING, "make: nothing else to do")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == CLOSING


@pytest.mark.parametrize("reason", ["strace is not installed", "the compiled path is not built"])
def test_a_skip_for_any_other_reason_fails_and_is_printed(run, reason: str) -> None:
    done = run(f"SKIPPED [2] tests/test_x.py:13: {reason}", CLOSING)
    assert done.returncode == 1
    assert "not allowed" in done.stdout
    assert done.stdout.count(reason) == 2
    assert done.stdout.splitlines()[-1] == CLOSING


def test_a_failed_test_run_fails(run) -> None:
    assert run("1 failed, 2 passed in 3.00s", status=3).returncode != 0


def test_only_programs_that_the_readme_names_are_on_the_path(run) -> None:
    (line,) = [line for line in run(CLOSING).stdout.splitlines() if line.startswith("programs: ")]
    found = set(line.split()[1:])
    assert {"make", "python3", "cc"} <= found
    assert not found & {"jpegtran", "cjpeg", "strace", "unshare", "curl", "pip"}
    development = (ROOT / "README.md").read_text().partition("## Development")[2]
    (listed,) = re.findall(r'^programs="(.*)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [name for name in listed.split() if not re.search(rf"`{name}`", development)] == []
