"""Tab completion, in a real bash in a pseudo-terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import click
import pytest
from terminals import shell_in_terminal

from wds_tools.bench.tune import VIEWS as TUNE_VIEWS
from wds_tools.bench.workloads import WORKLOADS
from wds_tools.cli import cli
from wds_tools.inspection.contact_sheet import VIEWS as SHEET_VIEWS
from wds_tools.order.planner import Tail
from wds_tools.packing.engines import EngineName
from wds_tools.packing.transcode import Images
from wds_tools.upkeep.unpacker import UnpackLayout

ROOT = Path(__file__).parents[2]
# Prints its arguments instead of running a command.
PROGRAM = f"""#!/bin/sh
[ -z "$_WDS_TOOLS_COMPLETE" ] || exec {sys.executable} -m wds_tools.cli
printf 'got:'; printf ' <%s>' "$@"; echo
"""

Type = Callable[[str], list[str]]


@pytest.fixture
def typed(tmp_path: Path) -> Type:
    """Return a function that types a line into bash, ``\\t`` being Tab, and returns the completed words."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "wds-tools"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for name in ("my-photos", "shards", "it"):
        (tmp_path / name).mkdir()

    def run(line: str) -> list[str]:
        lines = ['eval "$(_WDS_TOOLS_COMPLETE=bash_source wds-tools)"', line, "exit"]
        shell = [shutil.which("bash"), "--norc", "--noprofile", "-i"]
        code, out = shell_in_terminal(shell, "\n".join(lines) + "\n", tmp_path, environment_of(tmp_path))
        assert code == 0, out
        (result,) = [part for part in out.replace("\r", "").splitlines() if part.startswith("got:")]
        return result.removeprefix("got: <").removesuffix(">").split("> <")

    return run


def environment_of(folder: Path) -> dict[str, str]:
    """Return an environment in which bash finds the program and no completions of other programs."""
    return {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "INPUTRC": os.devnull,
        "TERM": "dumb",
        "PS1": "$ ",
        "LC_ALL": "C.UTF-8",
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("wds-tools reind\tx", ["reindx"]),  # no match
        ("wds-tools verif\tshar\t", ["verify", "shards/"]),
        ("wds-tools pac\tmy-\t a --stri\t--im\tkee\t", ["pack", "my-photos/", "a", "--strict", "--images", "keep"]),
        ("wds-tools pack --from parq\tx y", ["pack", "--from", "parquet", "x", "y"]),
        ("wds-tools merge shards/ my-\t -o it\t", ["merge", "shards/", "my-photos/", "-o", "it/"]),
        ("wds-tools --ver\t", ["--version"]),
    ],
)  # fmt: skip
@pytest.mark.torture_except("wds-tools reind\\tx-words0", "wds-tools pac\\tmy-\\t a --stri\\t--im\\tkee\\t-words2")
def test_bash_completes_commands_options_values_and_paths(typed: Type, line: str, words: list[str]) -> None:
    assert typed(line) == words


@pytest.mark.parametrize(
    ("shell", "start"), [("bash", "complete -o"), ("zsh", "#compdef wds-tools"), ("fish", "complete ")]
)
def test_each_shell_gets_its_script(shell: str, start: str) -> None:
    done = complete(f"{shell}_source")
    assert (done.returncode, done.stderr) == (0, "")
    assert start in done.stdout
    assert "Usage:" not in done.stdout


def test_an_unknown_shell_is_an_error_that_lists_the_known_ones() -> None:
    done = complete("csh_source")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: _WDS_TOOLS_COMPLETE='csh_source'; allowed are bash_source, zsh_source and fish_source\n"
    )


def complete(instruction: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wds_tools.cli"]
    environment = {**os.environ, "_WDS_TOOLS_COMPLETE": instruction}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("command", "option", "allowed"),
    [
        ("pack", "images", get_args(Images)),
        ("append", "images", get_args(Images)),
        ("reshard", "images", get_args(Images)),
        ("pack", "engine", get_args(EngineName)),
        ("plan", "tail", get_args(Tail)),
        ("sample", "view", SHEET_VIEWS),
        ("tune", "view", TUNE_VIEWS),
        ("bench", "view", tuple(WORKLOADS)),
        ("unpack", "layout", get_args(UnpackLayout)),
    ],
)
def test_the_choices_of_an_option_are_the_allowed_values(command: str, option: str, allowed: tuple[str, ...]) -> None:
    (found,) = [one for one in cli.commands[command].params if one.name == option]
    assert isinstance(found.type, click.Choice)
    assert tuple(found.type.choices) == allowed
