"""The code of the README runs unchanged, also in a clone that was installed as the README says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import preloaded
import pytest
from clones import copy_tracked_files

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


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository with a virtual environment that shares the packages of this one."""
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    copy_tracked_files(folder)
    for compiled in (ROOT / "wds_tools").rglob("__pycache__"):
        shutil.copytree(compiled, folder / compiled.relative_to(ROOT))
    venv.create(folder / ".venv", symlinks=True)
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text("\n".join(shared))
    pip = folder / ".venv" / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {folder}/.venv/bin/python -m pip "$@"\n')
    pip.chmod(0o755)
    return folder


# Python blocks run in one process, like those that a reader pastes one by one; the shell blocks between them in bash.
SESSION = """
import json, subprocess, sys
names = {"__name__": "__main__"}
for block in json.load(sys.stdin):
    if block["language"] == "bash":
        subprocess.run(["bash", "-ec", block["text"]], check=True)
    else:  # the empty lines give tracebacks the line number of the README
        exec(compile("\\n" * block["line"] + block["text"], "README.md", "exec"), names)
for value in names.values():
    if hasattr(value, "close"):
        value.close()
print("imported from", names["wt"].__file__)
subprocess.run(["wds-tools", "--version"], check=True)
"""


def assert_ran(printed: str) -> None:
    assert "epoch 2: loss" in printed
    assert "400 images in 7 shards; 0 skipped" in printed
    assert "indexed 400 samples in 7 shards" in printed
    assert "on 400 images" in printed


@pytest.mark.long
def test_all_code_on_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "sample").symlink_to(ROOT / "shards" / "sample")
    page = [block for block in blocks() if "make test" not in block.text and "pip install" not in block.text]
    assert len([block for block in page if block.language == "bash"]) == 2
    (tmp_path / "page.json").write_text(json.dumps([asdict(block) for block in page]))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "page.json").open() as text:
        done = preloaded.run(["-c", SESSION], stdin=text.fileno(), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert_ran(done.stdout)


@pytest.mark.torture
def test_all_code_on_the_page_runs_in_a_clone_that_is_installed_as_the_page_says(clone: Path) -> None:
    programs = clone / ".venv" / "bin"
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of --build-isolation
        "CFLAGS": "-O0",  # compiles in a fifth of the time
    }
    environment.pop("PYTHONPATH", None)
    page = [block for block in blocks() if "make test" not in block.text]
    done = subprocess.run(
        [programs / "python", "-c", SESSION],
        input=json.dumps([asdict(block) for block in page]),
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compiled module" not in done.stderr
    assert "(compiled" in done.stdout
    assert len([block for block in page if block.language == "bash"]) == 3
    assert_ran(done.stdout)
    assert f"imported from {clone}" in done.stdout


PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "shards" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_target_of_every_link_exists() -> None:
    links = {page: re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()) for page in PAGES}
    assert len(links[README]) > 5
    missing = []
    for page, named in links.items():
        for path, anchor in named:
            target = page.parent / path if path else page
            if "://" not in path and not (target.exists() and (not anchor or anchor in headings(target.resolve()))):
                missing.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not missing


@cache
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


def test_each_file_of_a_change_has_a_type_that_towncrier_knows() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = [entry["directory"] for entry in options["type"]]
    folder = ROOT / options["directory"]
    assert re.findall(r"^\| `(\w+)` \|", (folder / "README.md").read_text(), re.MULTILINE) == types
    strangers = [path.name for path in folder.iterdir() if not re.fullmatch(r"\+[\w-]+\.(\w+)\.md", path.name)]
    assert strangers == ["README.md"]
    assert {path.name.split(".")[1] for path in folder.glob("+*")} <= {*types}
    assert options["start_string"] in (ROOT / options["filename"]).read_text()
