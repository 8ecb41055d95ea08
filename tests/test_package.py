"""The package: the source distribution is complete, and its page on a package index has no relative links."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
from email.message import Message
from pathlib import Path

import pytest
from clones import copy_tracked_files

ROOT = Path(__file__).parents[1]
BACKEND = "import sys; sys.path.insert(0, 'wds_tools/images/csrc'); import build_backend as b; "
RELATIVE_LINK = re.compile(r"\]\((?!https://)")


def run_backend(root: Path, call: str, *words: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BACKEND + call, *words], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def build_sdist(root: Path, out: Path) -> Path:
    run_backend(root, "b.build_sdist(sys.argv[1])", out)
    (path,) = out.glob("*.tar.gz")
    return path


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: git lists the files")
@pytest.mark.torture
def test_the_source_distribution_has_every_tracked_file_and_nothing_else(tmp_path: Path) -> None:
    tracked = copy_tracked_files(tmp_path / "clone")
    for ignored in ("wds_tools/images/_native.abi3.so", "shards/photos/shard-000000.tar", "build/lib/a.py"):
        (tmp_path / "clone" / ignored).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / ignored).touch()
    with tarfile.open(build_sdist(tmp_path / "clone", tmp_path)) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    generated = {"PKG-INFO", "setup.cfg"} | {name for name in packed if name.startswith("wds_tools.egg-info/")}
    assert packed - generated == tracked


@pytest.mark.torture
def test_tests_run_from_the_source_distribution(tmp_path: Path) -> None:
    copy_tracked_files(tmp_path / "clone")
    with tarfile.open(build_sdist(tmp_path / "clone", tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (root,) = (tmp_path / "unpacked").iterdir()
    # An editable install compiles the module in the folder of the sources.
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", tmp_path / "site", "--editable", root], check=True, capture_output=True)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/format", "tests/test_package.py"]
    done = subprocess.run(
        [*words, "tests/test_readme.py"],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def metadata_of(folder: Path, *, urls: str = "") -> Message:
    """Return the metadata that the build backend writes for the package, with a table of URLs added."""
    (folder / "wds_tools" / "images").mkdir(parents=True)
    for name in ("README.md", "LICENSE", "wds_tools/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "wds_tools" / "images" / "csrc", folder / "wds_tools" / "images" / "csrc")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + urls)
    (folder / "out").mkdir()
    run_backend(folder, "b.prepare_metadata_for_build_wheel(sys.argv[1])", folder / "out")
    (path,) = (folder / "out").glob("*.dist-info/METADATA")
    return email.message_from_string(path.read_text())


def test_the_page_on_a_package_index_has_no_relative_links(tmp_path: Path) -> None:
    assert RELATIVE_LINK.search((ROOT / "README.md").read_text())
    page = metadata_of(tmp_path).get_payload()
    assert not RELATIVE_LINK.search(page)
    assert "# wds_tools\n" in page
    assert "Packing (`docs/packing.md`)" in page


def test_links_on_the_page_are_absolute_if_the_address_of_the_repository_is_known(tmp_path: Path) -> None:
    urls = '\n[project.urls]\nSource = "https://example.org/team/wds_tools"\n'
    metadata = metadata_of(tmp_path, urls=urls)
    assert metadata["Project-URL"] == "Source, https://example.org/team/wds_tools"
    page = metadata.get_payload()
    assert not RELATIVE_LINK.search(page)
    links = re.findall(r"\(https://example\.org/team/wds_tools/blob/HEAD/([^)#]+)", page)
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).exists()]
