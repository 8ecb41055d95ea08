"""Imports between the modules: no cycles, and each imports only its own folder and those before it."""

import ast
import functools
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import preloaded

import wds_tools

PACKAGE = Path(wds_tools.__file__).parent
# In reading order: a module imports only modules of its own folder and of earlier ones. "" is the top level.
FOLDERS = [
    *("", "format", "storage.requests", "storage", "storage.cache", "sources", "order", "images", "reading", "packing"),
    *("loading.workers", "loading.fields", "loading.samples", "loading.pipeline", "loading"),
    *("upkeep", "webdataset", "inspection", "service", "bench", "cli"),
]
LOADS_TORCH_WHEN_USED = {
    "sources.arrays",
    "images.resize",
    "inspection.contact_sheet",
    "inspection.saved_step",
    "service.pages.loaded",
    "bench.stages",
}
MAY_IMPORT_TORCH = {"loading", "bench"}
NO_INPUT_OR_OUTPUT = {"format", "order", "images"}
MAX_LINES = 600
CSRC = PACKAGE / "images" / "csrc"
NATIVE = "images._native"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if CSRC not in path.parents)


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def folder_of(name):
    """Return where a module stands in the reading order; ``webdataset`` is a module of the top level."""
    folder = name
    while folder not in FOLDERS:
        folder = folder.rpartition(".")[0]
    return FOLDERS.index(folder)


MODULES = [
    name for path in FILES if not path.name.startswith("__") and not (name := name_of(path)).startswith("bench.peers.")
]


def statements(node):
    """Yield the statements in a module, a statement or a part of one. All nodes would take ten times as long."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


@functools.cache
def imports(path):
    """Return the modules of the package that a file imports, also in functions, and the top-level names of others."""
    ours, others = set(), set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, rest = node.module.partition(".")
            if package == "wds_tools":
                inside = {f"{rest}.{alias.name}".strip(".") for alias in node.names}
                ours |= inside & {*MODULES, NATIVE} or {rest}
            else:
                others.add(package)
        elif isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
    return ours - {""}, others


def test_modules_import_only_their_own_folder_and_earlier_ones():
    found = [(name, other) for name in MODULES for other in imports_of(name) if folder_of(other) > folder_of(name)]
    assert not found


def test_no_modules_import_each_other():
    TopologicalSorter({name: imports_of(name) & {*MODULES} for name in MODULES}).prepare()  # raises a CycleError


def imports_of(name):
    return imports(PACKAGE / f"{name.replace('.', '/')}.py")[0] - {NATIVE}


def test_only_loading_and_bench_import_torch_at_the_top_level():
    """The exceptions import it in a function; test_imports_without_a_loader_do_not_load_torch checks this."""
    found = [name_of(path) for path in FILES if imports(path)[1] & {"torch", "torchvision"}]
    assert not {name for name in found if name.partition(".")[0] not in MAY_IMPORT_TORCH} - LOADS_TORCH_WHEN_USED


def test_no_module_is_longer_than_the_limit():
    lines = {name_of(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: number for name, number in lines.items() if number > MAX_LINES}, "split by nouns, not by length"


def test_the_format_the_order_and_the_images_do_no_input_or_output():
    modules = {"os", "pathlib", "shutil", "socket", "fsspec", "time", "threading", "multiprocessing"}
    found = {
        name: used
        for name in MODULES
        if name.partition(".")[0] in NO_INPUT_OR_OUTPUT
        and (used := imports(PACKAGE / f"{name.replace('.', '/')}.py")[1] & modules)
    }
    assert not found


def test_imports_without_a_loader_do_not_load_torch():
    """One process makes all imports, in an order in which each statement imports something new."""
    statements = [
        "import wds_tools",
        "from wds_tools import pack, RandomResizedCrop",
        "import wds_tools.cli",
        "import wds_tools.packing.packer, wds_tools.sources.arrays, wds_tools.inspection.stats",
        "import wds_tools.upkeep.indexer, wds_tools.upkeep.verifier",
        "import wds_tools.packing.shard_writer, wds_tools.upkeep.merger, wds_tools.upkeep.unpacker",
    ]
    check = "; print([name for name in ('torch', 'torchvision') if name in sys.modules])"
    program = "\n".join(["import sys", *(f"{statement}{check}" for statement in statements)])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert dict(zip(statements, done.stdout.splitlines(), strict=True)) == dict.fromkeys(statements, "[]")


def test_the_command_line_starts_without_the_heavy_libraries():
    check = (
        "import sys, wds_tools.cli; "
        "print([n for n in ('torch', 'pyarrow', 'numpy', 'PIL', 'fsspec') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_loads_few_modules():
    check = "import sys; before = set(sys.modules); import wds_tools; print(len(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 40  # 34 with Python 3.11: two of the package, and the standard library


def test_a_loader_of_local_jpegs_imports_only_what_it_needs(six_photos: Path, tmp_path: Path):
    """Until its first batch: no packer, no clients of storage, and not the slowest parts of pyarrow and Pillow."""
    wds_tools.pack(six_photos, tmp_path / "data", workers=1, progress=False)
    program = (  # in a process that has imported torch, torchvision and the module of the loader
        "import sys; import wds_tools as wt\n"
        f"loader = wt.make_loader({str(tmp_path / 'data')!r}, batch_size=2, num_workers=0, view=wt.CenterCrop(64))\n"
        "next(iter(loader)); loader.close()\n"
        "print(*sys.modules)"
    )
    done = preloaded.run(["-c", program])
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert not imported & {"pandas", "fsspec", "pyarrow.compute", "pyarrow.dataset", "aiohttp", "obstore", "ray"}
    assert not {name for name in imported if name.startswith(("wds_tools.sources", "wds_tools.packing"))}
    assert not imported & {"wds_tools.loading.packing", "wds_tools.storage.cache.remote"}
    assert sum(name.startswith("wds_tools") for name in imported) <= 150  # 146; with packer and storage clients 240


def test_the_map_beside_the_code_names_every_module():
    text = (PACKAGE / "README.md").read_text()
    missing = [name for name in MODULES if f"`{name.rpartition('.')[2]}`" not in text]
    assert not missing


def test_the_tests_mirror_the_folders():
    folders = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    assert folders == {name.partition(".")[0] for name in FOLDERS} - {"", "webdataset"}


def test_test_files_have_different_names():
    """pytest imports them as top-level modules, so a second file of the same name cannot be collected."""
    names = [path.name for path in Path(__file__).parent.glob("**/test_*.py")]
    assert len(names) == len(set(names))


def test_the_links_of_the_map_lead_to_files():
    links = re.findall(r"\]\(([^)#:]+)\)", (PACKAGE / "README.md").read_text())
    assert links
    assert not [link for link in links if not (PACKAGE / link).exists()]


def test_the_map_names_each_module_of_a_folder_once_and_no_other():
    text = (PACKAGE / "README.md").read_text()
    for folder, table in re.findall(r"\*\*`(\w+)/`.*?\n\n(\| module .*?)\n\n", text, re.DOTALL):
        rows = [line.split("|")[1] for line in table.splitlines()[2:]]
        named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
        known = {path.stem for path in (PACKAGE / folder).rglob("*.py")} | {
            path.name for path in (PACKAGE / folder).iterdir()
        }
        assert len(named) == len(set(named)), f"{folder}: named twice"
        assert {name.rpartition(".")[2] for name in named} <= known, f"{folder}: a module is gone"
