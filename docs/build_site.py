"""Build the documentation site into build/docs, without network; fail on a broken link or an unresolved reference.

    make docs

The pages are copied to build/docs-source at the paths that they have in the repository, so that each link works on the
site, in an editor and where the repository is hosted. Three pages are generated: the command line, from the help
texts; the examples, from their sources; and the list of decisions. The API reference comes from the docstrings
(`docs/api/`). `zensical build --strict` fails on a page, an anchor or an object that does not exist; `problems` finds
what it does not look at.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import griffe

import wds_tools
from wds_tools.cli import cli

ROOT = Path(__file__).parents[1]
COPIED = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "shards/README.md", "wds_tools/README.md")
COPIED_FOLDERS = ("docs", "examples")
LINK_TO_CODE = re.compile(r"\[([^\]]+)\]\([\w/]+\.py\)")
LINK_TO_FOLDER = re.compile(r"(\]\([\w./-]+)/\)")
COLUMNS = 100
TAKES = ("wds_tools.signatures.takes", "wds_tools.signatures.method_takes")
LOADED = {"audio", "embed", "iframe", "img", "link", "script", "source", "video"}  # elements that load what they name
REPORTED = re.compile(r"^[\w.]+: |warning|error", re.IGNORECASE | re.MULTILINE)  # "griffe: packer.py:76: ..." is one


class Signatures(griffe.Extension):
    """Shows functions with `takes` with the fields of their options as parameters, as Python does.

    griffe reads sources without running them, so it knows nothing of the decorator. `zensical.toml` names this class.
    """

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Give each such function the parameters of the class that its decorator names."""
        modules = [pkg]
        for module in modules:
            modules += [member for member in module.modules.values() if not member.is_alias]
            for function in [*module.functions.values(), *(one["__init__"] for one in classes_with_init(module))]:
                for decorator in () if function.is_alias else function.decorators:
                    if decorator.callable_path in TAKES:
                        options = pkg.modules_collection[decorator.value.arguments[0].canonical_path]
                        own = [parameter for parameter in function.parameters if parameter.name == "self"]
                        function.parameters = griffe.Parameters(*own, *list(options.parameters)[1:])


def classes_with_init(module: griffe.Module) -> list[griffe.Class]:
    """Return the classes of a module that define ``__init__``."""
    return [one for one in module.classes.values() if not one.is_alias and "__init__" in one.members]


def main() -> None:
    """Build the site and report what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of zensical.toml and the pages")
    root = parser.parse_args().root
    site = root / "build" / "docs"
    stage(root, root / "build" / "docs-source")
    shutil.rmtree(site, ignore_errors=True)
    found = run_zensical(root)
    for page in site.rglob("docs/api/*.html"):  # in our docstrings two colons begin a block of code; not in Markdown
        page.write_text(page.read_text().replace("Example::</p>", "Example:</p>"))
    found += problems(site)
    if found:
        sys.exit("\n".join(["the documentation site has problems:", *found]))
    print(f"{len(list(site.rglob('*.html')))} pages: {os.path.relpath(site / 'index.html')}")


def stage(root: Path, folder: Path) -> None:
    """Copy the pages of a repository into a folder, and generate the others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    for name in COPIED_FOLDERS:
        shutil.copytree(
            root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "build_site.py", "+*.md")
        )
    (folder / "docs" / "command-line.md").write_text(command_line())
    (folder / "docs" / "decisions" / "README.md").write_text(list_of_decisions(folder / "docs" / "decisions"))
    (folder / "examples" / "README.md").write_text(list_of_examples(folder / "examples"))
    code_map = folder / "wds_tools" / "README.md"  # the site has no code
    code_map.write_text(LINK_TO_CODE.sub(r"\1", code_map.read_text()))
    for page in folder.rglob("*.md"):  # a server shows the index of a folder, a file system does not
        page.write_text(LINK_TO_FOLDER.sub(r"\1/README.md)", page.read_text()))


def command_line() -> str:
    """Return the help texts of all commands as a page."""
    width = {"terminal_width": COLUMNS, "max_content_width": COLUMNS}
    top = cli.make_context("wds-tools", [], resilient_parsing=True, **width)
    parts = ["# Command line", fenced(top.get_help(), "text")]
    for name in cli.list_commands(top):
        context = cli.commands[name].make_context(name, [], parent=top, resilient_parsing=True, **width)
        parts += [f"## {name}", fenced(context.get_help(), "text")]
    return "\n\n".join(parts) + "\n"


def list_of_decisions(folder: Path) -> str:
    """Return links to the decisions as a page."""
    titles = ((path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in folder.glob("[0-9]*.md"))
    lines = [f"* [{title}]({name})" for name, title in sorted(titles)]
    return "\n".join(["# Decisions", "", "Choices that were made, with reasons and figures.", "", *lines, ""])


def list_of_examples(folder: Path) -> str:
    """Return the sources of the examples as a page."""
    parts = ["# Examples", "The files of `examples/`."]
    for path in sorted(folder.glob("*.py")):
        parts += [f"## {path.name}", fenced(path.read_text(), "python")]
    return "\n\n".join(parts) + "\n"


def fenced(text: str, language: str) -> str:
    """Return a block of code."""
    return f"````{language}\n{text.rstrip()}\n````"


def run_zensical(root: Path) -> list[str]:
    """Run zensical; return what it reports. It exits with 0 after some warnings of mkdocstrings."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return text.splitlines() if done.returncode or REPORTED.search(text) else []


class Page(HTMLParser):
    """What a page of the site links to, what it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element refers to, and its anchor."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        addresses = [values[name] for name in ("href", "src", "data") if name in values]
        self.links += addresses
        if tag in LOADED and values.get("rel") != "canonical":
            self.loads += addresses


def problems(site: Path) -> Iterator[str]:
    """Yield links that lead nowhere, files of other servers that a page loads, and public names without an entry."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    for path, page in pages.items():
        name = path.relative_to(site)
        yield from (f"{name} loads {address} from another server" for address in page.loads if is_elsewhere(address))
        for link in page.links:
            if not is_elsewhere(link) and not leads_somewhere(path, link, pages):
                yield f"{name} links to {link}, which does not exist"
    anchors = set[str]().union(*(page.anchors for page in pages.values()))
    for name in wds_tools.__all__:
        if f"wds_tools.{name}" not in anchors:
            yield f"wds_tools.{name} is on no page: add it to docs/api/"


def is_elsewhere(address: str) -> bool:
    """Return whether an address is not of this site."""
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def leads_somewhere(page: Path, link: str, pages: Mapping[Path, Page]) -> bool:
    """Return whether the file that a link names exists, and the anchor in it."""
    address = urlsplit(link)
    target = Path(os.path.normpath(page.parent / unquote(address.path))) if address.path else page
    if target not in pages:
        return target.is_file()
    return not address.fragment or unquote(address.fragment) in pages[target].anchors


if __name__ == "__main__":
    main()
