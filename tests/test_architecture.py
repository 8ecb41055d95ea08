"""The package reads like a book: a module may import only modules that come before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wds_tools

PACKAGE = Path(wds_tools.__file__).parent
READING_ORDER = """errors wording sample options prng tarfmt jpeg codecs decode pages index dots manifest totals views
snippet storage card shardset keys
sources native transcode encode writer claim shardwriter packing packplan packstate packwork packprobe
publish rayengine packjob packer splits appender merger indexer
selection proof order mixture planner quality bad_samples where choose arguments reader render assemble
collate ring worker pool ranks opened advice epochs witness device job dataset feeding pipeline handover bridge loader
verifier resealer stored tree unpacker stats chart forecast picture sheet bench
proposal tune machine doctor datacheck cli""".split()  # noqa: SIM905 - read as a book
LOADS_TORCH_WHEN_USED = {"sources/tensors.py"}
MAY_IMPORT_TORCH = """advice arguments render assemble collate ring worker ranks opened dataset device job pipeline
handover bridge loader sheet bench""".split()  # noqa: SIM905
MAX_LINES = 450
BUILDS_THE_PACKAGE = PACKAGE / "csrc" / "build_backend.py"  # and is no part of it
FILES = sorted(set(PACKAGE.rglob("*.py")) - {BUILDS_THE_PACKAGE})


def imports(path):
    """Return every `wds_tools.<name>` and top-level package that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            own = node.module == "wds_tools"
            names.update(f"wds_tools.{alias.name}" if own else node.module for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] if name.startswith("wds_tools.") else name.split(".")[0] for name in names if name}


def chapter_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_reading_order_names_exactly_the_modules_there_are():
    assert {chapter_of(path) for path in FILES} - {"__init__", "__main__"} == set(READING_ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    chapter = chapter_of(path)
    if chapter.startswith("__"):
        return
    later = imports(path) & set(READING_ORDER[READING_ORDER.index(chapter) + 1 :])
    assert not later, f"{chapter} imports {sorted(later)}, which come later in READING_ORDER"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_reading_side_imports_torch(path):
    if str(path.relative_to(PACKAGE)) in LOADS_TORCH_WHEN_USED:
        return  # inside a function: see the test of what does not load it
    assert not imports(path) & {"torch", "torchvision"} or chapter_of(path) in MAY_IMPORT_TORCH


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_has_one_job(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES, "one file, one job: split it"


def test_the_format_modules_do_no_io():
    for name in ("tarfmt", "index", "manifest", "jpeg", "planner", "views", "prng", "sample"):
        assert not imports(PACKAGE / f"{name}.py") & {"os", "pathlib", "shutil", "socket", "fsspec", "time"}, name


@pytest.mark.parametrize(
    "statement",
    [
        "import wds_tools",
        "import wds_tools.packer, wds_tools.sources.tensors, wds_tools.indexer, wds_tools.verifier, wds_tools.stats",
        "import wds_tools.shardwriter, wds_tools.merger, wds_tools.unpacker",
        "import wds_tools.cli",
        "from wds_tools import pack, RandomResizedCrop",
    ],
)
def test_what_needs_no_torch_does_not_load_it(statement):
    check = f"import sys; {statement}; sys.exit(any(name in sys.modules for name in ('torch', 'torchvision')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_command_line_starts_without_the_heavy_libraries():
    check = (
        "import sys, wds_tools.cli; "
        "print([n for n in ('torch', 'pyarrow', 'numpy', 'PIL', 'fsspec') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_map_beside_the_code_names_every_module():
    text = (PACKAGE / "README.md").read_text()
    missing = [name for name in READING_ORDER if f"`{name}" not in text]
    assert not missing
