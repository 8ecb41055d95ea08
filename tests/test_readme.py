"""What the README shows runs as it stands, from a folder that looks like the root of the repository."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import webdataset

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@dataclass(frozen=True)
class Block:
    """A block of code in the README: its language, the line before its first one, and its text."""

    language: str
    line: int
    text: str


def blocks() -> Iterator[Block]:
    """Yield the blocks that can run: those after a comment that begins with "not run" cannot."""
    text = README.read_text()
    for match in re.finditer(r"^(<!-- not run[^\n]*\n)?```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] is None:
            yield Block(match[2], text[: match.start(3)].count("\n"), match[3])


def run_commands(text: str) -> int:
    """Run the commands of wds-tools in a block for the shell; return how many there are."""
    ours = [line for line in text.splitlines() if line.startswith("wds-tools ")]
    for line in ours:
        code = "from wds_tools.cli import main; main()"
        words = [sys.executable, "-c", code, *shlex.split(line, comments=True)[1:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    return len(ours)


def write_old_shards(folder: Path) -> None:
    """Write what the README takes for shards that the reader has."""
    folder.mkdir(parents=True)
    photos = sorted((ROOT / "shards" / "sample" / "images").glob("*/*.jpg"))[::4]
    with webdataset.ShardWriter(f"{folder}/train-%06d.tar", maxcount=24, verbose=0) as writer:
        for number, path in enumerate(photos):
            writer.write({"__key__": f"{number:06}", "jpg": path.read_bytes(), "cls": number % 8})


@pytest.fixture
def namespace() -> Iterator[dict[str, Any]]:
    """Yield what the blocks define, and close the loaders among it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    yield names
    for value in names.values():
        if hasattr(value, "close"):
            value.close()


def test_everything_on_the_page_runs_from_top_to_bottom(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    namespace: dict[str, Any],
) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "sample").symlink_to(ROOT / "shards" / "sample")
    write_old_shards(tmp_path / "shards" / "old")
    monkeypatch.chdir(tmp_path)
    commands = 0
    for block in blocks():
        if block.language == "bash":
            commands += run_commands(block.text)
        else:  # the empty lines make a traceback tell the README's line
            exec(compile("\n" * block.line + block.text, str(README), "exec"), namespace)
    assert commands == 2
    out = capsys.readouterr().out
    assert "epoch 2: loss" in out
    assert "400 images in 7 shards; 0 skipped" in out
    assert "on 400 images" in out


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert len(targets) > 5
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_every_target_of_make_that_is_named_exists() -> None:
    named = set(re.findall(r"make (test|demo|help|lint|torture|bench|clean|format|wheels)\b", README.read_text()))
    there = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "demo"} <= named <= there


def test_every_command_that_is_named_exists() -> None:
    from wds_tools import cli

    named = set(re.findall(r"wds-tools ([a-z]+)", README.read_text()))
    assert named == set(cli.cli.commands)


def test_the_page_stays_short() -> None:
    assert len(README.read_text().splitlines()) < 230
