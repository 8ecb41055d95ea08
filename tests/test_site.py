"""The documentation site: it builds without network, all links resolve, and it has every public name."""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import wds_tools

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "docs", "examples", "shards", "wds_tools")
PROXY = "http://127.0.0.1:9"  # nothing listens there

pytestmark = pytest.mark.frameworks  # zensical is in the extra `docs`


def build(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": PROXY, "https_proxy": PROXY}
    words = [sys.executable, str(ROOT / "docs" / "build_site.py"), "--root", str(root)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_every_guide_is_in_the_menu_and_every_public_name_on_a_page() -> None:
    """In `make test` instead of a build, which takes 17 CPU-s. Links are tested with the README."""
    menu = re.findall(r'"(docs/[\w-]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert {Path(page).stem for page in menu} == {path.stem for path in (ROOT / "docs").glob("*.md")} | {"command-line"}
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    entries = re.findall(r"^::: (\S+)", pages, re.MULTILINE) + re.findall(r'<a id="([\w.]+)">', pages)
    assert {f"wds_tools.{name}" for name in wds_tools.__all__} <= {*entries}
    for entry in entries:
        assert pkgutil.resolve_name(entry) is not None


@pytest.mark.torture
def test_the_site_builds_and_has_every_page(tmp_path: Path) -> None:
    shutil.copy(ROOT / "zensical.toml", tmp_path)  # not a link: zensical would use the folder of its target
    for name in PAGES:
        (tmp_path / name).symlink_to(ROOT / name)
    done = build(tmp_path)
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
[a file](../examples/99_nope.py) ![an image](pictures/nope.svg) <script src="https://example.com/script.js"></script>
"""
FEW_PAGES = {
    **dict.fromkeys(("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "shards/README.md"), "# A page\n"),
    **dict.fromkeys(("wds_tools/README.md", "docs/packing.md", "docs/decisions/0001-one.md"), "# A page\n"),
    "docs/format.md": f"# Format\n{BROKEN}",
    "docs/api/packing.md": '# A name\n\n<a id="wds_tools.pack"></a>\n',
    "examples/one.py": "print(1)\n",
}


def test_broken_links_scripts_of_other_servers_and_missing_public_names_fail_the_build(tmp_path: Path) -> None:
    for name, text in FEW_PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    settings = (ROOT / "zensical.toml").read_text()
    (tmp_path / "zensical.toml").write_text(
        re.sub(r"^nav = \[\n.*?^\]\n", "", settings, flags=re.DOTALL | re.MULTILINE)
    )
    (tmp_path / "docs" / "build_site.py").symlink_to(ROOT / "docs" / "build_site.py")
    done = build(tmp_path)
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
    assert "wds_tools.pack is on no page: add it to docs/api/" not in found
