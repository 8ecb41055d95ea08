"""The code of the README runs unchanged, in a folder that looks like the root of the repository."""

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
    """A block of code in the README: its language, the number of lines before it, and its text."""

    language: str
    line: int
    text: str


def blocks() -> Iterator[Block]:
    """Yield the blocks, except those after a comment that begins with "not run"."""
    text = README.read_text()
    for match in re.finditer(r"^(<!-- not run[^\n]*\n)?```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] is None:
            yield Block(match[2], text[: match.start(3)].count("\n"), match[3])


def run_commands(text: str) -> int:
    """Run the wds-tools commands of a shell block; return their number."""
    commands = [line for line in text.splitlines() if line.startswith("wds-tools ")]
    for line in commands:
        code = "from wds_tools.cli import main; main()"
        words = [sys.executable, "-c", code, *shlex.split(line, comments=True)[1:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    return len(commands)


def write_old_shards(folder: Path) -> None:
    """Write the existing shards that the README mentions."""
    folder.mkdir(parents=True)
    photos = sorted((ROOT / "shards" / "sample" / "images").glob("*/*.jpg"))[::4]
    with webdataset.ShardWriter(f"{folder}/train-%06d.tar", maxcount=24, verbose=0) as writer:
        for number, path in enumerate(photos):
            writer.write({"__key__": f"{number:06}", "jpg": path.read_bytes(), "cls": number % 8})


@pytest.fixture
def namespace() -> Iterator[dict[str, Any]]:
    """Yield the names that the blocks define; then close the loaders among them."""
    names: dict[str, Any] = {"__name__": "__main__"}
    yield names
    for value in names.values():
        if hasattr(value, "close"):
            value.close()


def test_all_code_on_the_page_runs_from_top_to_bottom(
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
        else:  # the empty lines give tracebacks the line number of the README
            exec(compile("\n" * block.line + block.text, str(README), "exec"), namespace)
    assert commands == 2
    out = capsys.readouterr().out
    assert "epoch 2: loss" in out
    assert "400 images in 7 shards; 0 skipped" in out
    assert "on 400 images" in out


PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "shards" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_target_of_every_link_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    assert len(links) > 5 or page != README
    for path, anchor in links:
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in headings(target), f"{path}#{anchor}"


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub forms them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_make_target_on_the_page_exists() -> None:
    named = set(re.findall(r"make (test|demo|help|lint|torture|bench|clean|format|wheels)\b", README.read_text()))
    existing = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "demo"} <= named <= existing


def test_the_page_names_every_command_and_no_other() -> None:
    from wds_tools import cli

    named = set(re.findall(r"wds-tools ([a-z]+(?:-[a-z]+)?)", README.read_text()))
    assert named == set(cli.cli.commands)


def test_the_page_has_fewer_than_230_lines() -> None:
    assert len(README.read_text().splitlines()) < 230
