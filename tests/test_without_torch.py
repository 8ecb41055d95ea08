"""Packing, verifying, exporting, copying and serving without torch, torchvision and webdataset, as on a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from servers import program, request

from wds_tools.wording import NOT_ON_SERVERS

ROOT = Path(__file__).parents[1]
# Python imports sitecustomize at its start, in worker processes too. The import of a module that is None fails.
BLOCK = f"import sys\nfor name in {NOT_ON_SERVERS!r}: sys.modules[name] = None\n"
# Every command in one process. It ends with the packages of the loader that were imported: none.
COMMANDS = f"""
import sys
from wds_tools.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split("|"))
    except SystemExit as end:
        assert not end.code, (line, end.code)
print("imported:", [name for name in {NOT_ON_SERVERS!r} if sys.modules.get(name)])
"""


@pytest.fixture
def server_environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of programs that cannot import the packages of the loader."""
    folder = tmp_path / "block"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCK)
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def run(code: str, environment: dict[str, str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, input=text, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def run_commands(commands: list[str], environment: dict[str, str], folder: Path) -> str:
    """Run commands, whose words are separated by spaces; return their output."""
    done = run(COMMANDS, environment, folder, "\n".join("|".join(line.split()) for line in commands))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "imported: []" in done.stdout
    return done.stdout


def test_datasets_are_packed_verified_served_copied_and_exported(
    server_environment: dict[str, str], six_photos: Path, few: Path, tmp_path: Path
) -> None:
    with program(few, env=server_environment) as server:
        url = f"{server.url}/data/packed"
        assert b"packed" in request(server.url, "/").body
        assert request(server.url, "/thumbnails/packed/0").headers["Content-Type"].startswith("image/")
        out = run_commands(
            [
                "pack six_photos photos --workers 2 --shard-bytes 100kB",
                "pack six_photos raw --images raw --resize 64x64",
                "verify photos",
                "verify raw",
                "info raw",
                "plan photos --batch-size 2",
                "reshard photos resharded --shard-bytes 1MB",
                "merge resharded raw -o merged",
                "unpack resharded files",
                "export raw --to dali,energon,hf,timm,wids",
                f"copy {url} copied",
                f"verify {url}",
                "verify copied",
            ],
            server_environment,
            tmp_path,
        )
    assert server.errors == ""
    assert out.count("is undamaged: 6 samples") == out.count("is undamaged: 40 samples") == 2
    assert len(list((tmp_path / "files").rglob("*.jpg"))) == 6


@pytest.mark.torture
def test_shards_of_other_tools_are_indexed(server_environment: dict[str, str], packed_copy: Path) -> None:
    for path in packed_copy.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    out = run_commands([f"index {packed_copy}/*.tar", f"verify {packed_copy}"], server_environment, packed_copy)
    assert "is undamaged: 400 samples" in out


@pytest.mark.parametrize("command", ["sample packed --out grid.png", "tune packed"])
@pytest.mark.torture_except("sample packed --out grid.png")
def test_a_command_that_needs_torch_names_it(
    server_environment: dict[str, str], packed: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "packed").symlink_to(packed)
    code = f"from wds_tools.cli import main; main({command.split()!r})"
    done = run(code, server_environment, tmp_path)
    assert done.returncode not in (0, 70)
    assert done.stderr == "error: this command requires torch, which is not installed: pip install torch torchvision\n"


def test_the_loader_names_the_missing_package(server_environment: dict[str, str], tmp_path: Path) -> None:
    done = run("import wds_tools as wt; wt.pack; wt.make_loader", server_environment, tmp_path)
    assert done.stderr.endswith(
        "wds_tools.make_loader requires torch, which is not installed: pip install torch torchvision\n"
    )


def test_the_documented_packages_are_all_that_are_required_without_the_loader() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = names_of(project["dependencies"]) - set(NOT_ON_SERVERS)
    assert documented("packing.md") == required
    assert documented("serve.md") == required | names_of(project["optional-dependencies"]["serve"])


def names_of(requirements: list[str]) -> set[str]:
    return set(re.findall(r"^[\w-]+", "\n".join(requirements), re.MULTILINE))


def documented(page: str) -> set[str]:
    """Return the packages that a page installs after wds_tools itself."""
    text = (ROOT / "docs" / page).read_text()
    found = re.search(r"^pip install --no-deps \..*\npip install ([\w -]+)$", text, re.MULTILINE)
    assert found
    return set(found[1].split())
