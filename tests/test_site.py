"""The documentation site: it builds without network, all links resolve, and it has every public name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "docs", "examples", "shards", "wds_tools")
PROXY = "http://127.0.0.1:9"  # nothing listens there

pytestmark = pytest.mark.frameworks  # zensical is in the extra `docs`


def link_repository(folder: Path) -> Path:
    """Create a folder with the files of the repository, for a separate build."""
    shutil.copy(ROOT / "zensical.toml", folder)  # not a link: zensical would use the folder of its target
    for name in PAGES:
        (folder / name).symlink_to(ROOT / name)
    return folder


def build(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": PROXY, "https_proxy": PROXY}
    words = [sys.executable, str(ROOT / "docs" / "build_site.py"), "--root", str(root)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)


def with_page(root: Path, name: str, text: str) -> Path:
    """Replace a link of the copy of the repository by a page with this text."""
    for folder in reversed(Path(name).parents[:-1]):
        if (root / folder).is_symlink():
            original = (root / folder).resolve()
            (root / folder).unlink()
            (root / folder).mkdir()
            for path in original.iterdir():
                (root / folder / path.name).symlink_to(path)
    (root / name).unlink()
    (root / name).write_text(text)
    return root


def test_the_site_builds_and_has_every_page(tmp_path: Path) -> None:
    done = build(link_repository(tmp_path))
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build" / "docs"
    decisions = {path.stem for path in (ROOT / "docs" / "decisions").glob("*.md")}
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in (site / "docs" / "decisions").glob("*.html")} == decisions | {"index"}
    assert {path.stem for path in (site / "docs").glob("*.html")} == guides | {"command-line"}
    assert 'id="wds_tools.make_loader"' in (site / "docs" / "api" / "loading.html").read_text()
    assert "--shard-bytes" in (site / "docs" / "command-line.html").read_text()
    assert "02_train.py" in (site / "examples" / "index.html").read_text()


BROKEN = """
[a page](nope.md), [an anchor](packing.md#nope), [a folder](../nope/), [a name][wds_tools.nope]
"""
BROKEN_FILES = """
[a file](../examples/99_nope.py) ![an image](pictures/nope.svg) <script src="https://example.com/script.js"></script>
"""


def test_broken_links_scripts_of_other_servers_and_missing_public_names_fail_the_build(tmp_path: Path) -> None:
    root = link_repository(tmp_path)
    with_page(root, "docs/format.md", (ROOT / "docs" / "format.md").read_text() + BROKEN + BROKEN_FILES)
    packing = (ROOT / "docs" / "api" / "packing.md").read_text()
    with_page(root, "docs/api/packing.md", packing.replace("::: wds_tools.pack_splits\n", ""))
    done = build(root)
    assert done.returncode == 1
    assert done.stderr.count("Warning: page does not exist") == 2
    assert done.stderr.count("Warning: anchor does not exist") == 1
    assert done.stderr.count("Warning: unresolved autoref") == 1
    found = done.stderr.splitlines()
    assert {
        "docs/format.html loads https://example.com/script.js from another server",
        "docs/format.html links to ../examples/99_nope.py, which does not exist",
        "docs/format.html links to pictures/nope.svg, which does not exist",
        "wds_tools.pack_splits is on no page: add it to docs/api/",
    } <= {*found}, done.stderr
