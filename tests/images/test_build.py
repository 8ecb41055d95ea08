"""The build backend: which compiler it uses, when it requires ziglang, and what happens if compiling fails."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import build_backend
import pytest
from build_backend import ZIGLANG
from setuptools import build_meta
from setuptools.errors import CompileError

# ziglang first compiles a part of the C library, which can take minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
PROBE = "#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return Py_NewRef(Py_None); }\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the only one on the PATH, remove the compilers of Python and the environment; return it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "CFLAGS", "LDFLAGS", "WDS_TOOLS_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    known = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None if name == "CC" else known(name))
    return folder


def write_working_compiler(path: Path) -> Path:
    """Write a program that passes for a C compiler: it creates its output file."""
    path.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\nexit 0\n')
    path.chmod(0o755)
    return path


def write_broken_compiler(path: Path) -> Path:
    """Write a program that fails, like a compiler without linker or headers."""
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


def test_ziglang_is_required_without_a_compiler(programs: Path) -> None:
    assert build_backend.find_compiler() is None
    assert build_backend.required_compilers() == [ZIGLANG]


def test_ziglang_is_required_if_no_compiler_works(programs: Path) -> None:
    for name in ("cc", "gcc", "clang"):
        write_broken_compiler(programs / name)
    assert build_backend.required_compilers() == [ZIGLANG]


def test_the_first_working_compiler_is_used(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_broken_compiler(programs / "cc")
    write_working_compiler(programs / "gcc")
    found = build_backend.find_compiler()
    assert found is not None
    assert found.command == ("gcc",)
    assert build_backend.required_compilers() == []
    own = write_working_compiler(programs / "own")
    monkeypatch.setenv("CC", f"{own} -g")
    found = build_backend.find_compiler()
    assert found is not None
    assert found.command == (str(own), "-g")


def test_the_compiler_that_python_was_built_with_is_preferred(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_working_compiler(programs / "own")
    write_broken_compiler(programs / "cc")
    known = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "own -pthread" if name == "CC" else known(name))
    found = build_backend.find_compiler()
    assert found is not None
    assert found.command == ("own", "-pthread")


def test_ziglang_is_not_required_if_it_has_no_wheel_or_compiling_is_disabled(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    assert build_backend.required_compilers() == []
    monkeypatch.undo()
    monkeypatch.setenv("WDS_TOOLS_COMPILE", "0")
    assert build_backend.required_compilers() == []


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_build_requirements_include_ziglang_only_without_a_compiler(
    programs: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    hook = f"get_requires_for_build_{kind}"
    monkeypatch.setattr(build_meta, hook, lambda _settings: ["setuptools"])
    assert getattr(build_backend, hook)() == ["setuptools", ZIGLANG]
    write_working_compiler(programs / "cc")
    assert getattr(build_backend, hook)() == ["setuptools"]


def test_compiling_without_a_compiler_is_an_error(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe.c").write_text(PROBE)
    monkeypatch.setattr(build_backend, "zig_compiler", lambda *_: None)
    with pytest.raises(CompileError, match="no working C compiler found"):
        build_backend.compile_module([tmp_path / "probe.c"], tmp_path / "probe.so", [])
    with pytest.raises(CompileError, match=r"compiling for aarch64-linux-musl requires ziglang"):
        build_backend.compile_module([tmp_path / "probe.c"], tmp_path / "probe.so", [], "musllinux_1_2_aarch64")


def test_the_error_quotes_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "probe.c").write_text("int 1;")
    with pytest.raises(CompileError, match="expected identifier"):
        build_backend.compile_module([tmp_path / "probe.c"], tmp_path / "probe.so", [])


@pytest.mark.torture
def test_ziglang_compiles_for_another_processor(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "probe.c").write_text(PROBE)
    build_backend.compile_module([tmp_path / "probe.c"], tmp_path / "probe.so", [], "musllinux_1_2_aarch64")
    data = (tmp_path / "probe.so").read_bytes()
    assert (data[:4], data[18]) == (b"\x7fELF", 183)  # EM_AARCH64; `make wheels` tests the other systems


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of the files of a source distribution."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "wds_tools", folder / "wds_tools", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def build_wheel(sources: Path, out: Path) -> Path:
    arguments = ["-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, *arguments, "-w", str(out), str(sources)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    (out / "log").write_text(done.stdout + done.stderr)
    return wheel


@pytest.mark.torture
def test_pip_builds_the_package_with_only_ziglang(sources: Path, programs: Path, tmp_path: Path) -> None:
    wheel = build_wheel(sources, tmp_path / "out")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    (module,) = (name for name in names if name.startswith("wds_tools/images/_native.") and name.endswith(".so"))
    assert not [name for name in names if "csrc" in name]
    code = (
        "import wds_tools.images._native as n; out = bytearray(12); n.copy_pixels([bytes(range(12))], 0, out, 2, 2);"
        "print(n.__file__, *out)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=tmp_path, text=True)
    assert output.split() == [str(tmp_path / "site" / module), *map(str, (0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11))]


@pytest.mark.parametrize("kind", ["wheel", "editable"])
@pytest.mark.torture
def test_every_install_leaves_its_module_in_the_source_tree_and_removes_an_older_one(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    module = sources / "wds_tools" / "images" / "_native.abi3.so"
    code = "import sys; sys.path.insert(0, 'wds_tools/images/csrc'); import build_backend as b;"
    words = [sys.executable, "-c", f"{code} b.build_{kind}(sys.argv[1])", tmp_path / "out"]
    monkeypatch.setenv("CC", str(write_working_compiler(tmp_path / "cc")))
    subprocess.run(words, cwd=sources, check=True, capture_output=True)
    assert module.exists()
    (tmp_path / "cc").unlink()
    monkeypatch.setenv("WDS_TOOLS_COMPILE", "0")
    subprocess.run(words, cwd=sources, check=True, capture_output=True)
    assert not module.exists()


BENCH = """
import wds_tools.bench.dataset as dataset
from wds_tools.cli import main
dataset.EPOCH_IMAGES = 40
main()
"""


@pytest.mark.torture
def test_the_benchmark_of_a_wheel_measures_only_our_loader_and_the_limit(
    sources: Path, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_COMPILE", "0")
    with zipfile.ZipFile(build_wheel(sources, tmp_path / "out")) as archive:
        archive.extractall(tmp_path / "site")
    words = ["bench", few, "--rounds", "1", "--seconds", "0.1", "--workers", "1", "--batch-size", "8"]
    done = subprocess.run(
        [sys.executable, "-c", BENCH, *words],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "imagefolder, webdataset: not part of this installation" in done.stdout
    assert "in the source repository only" in done.stdout
    rows = [line.split()[0] for line in done.stdout.partition("images/s")[2].split("\n\n")[0].splitlines()[1:]]
    assert rows == ["limit", "ours"]  # crop-ready is packed by the compiled module


@pytest.mark.torture
def test_the_source_distribution_has_the_peers_of_the_benchmark(sources: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'wds_tools/images/csrc'); import build_backend as b; b.build_sdist(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "out"], cwd=sources, check=True, capture_output=True)
    (path,) = (tmp_path / "out").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    folder = sources / "wds_tools" / "bench" / "peers"
    peers = {path.relative_to(sources).as_posix() for path in folder.glob("*.py")}
    assert len(peers) > 10
    assert peers <= packed


@pytest.mark.torture
def test_an_editable_install_has_the_peers_of_the_benchmark(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_COMPILE", "0")
    words = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, *words, "--editable", str(sources)], check=True, capture_output=True)
    code = (
        "import importlib.util, site, sys; site.addsitedir(sys.argv[1]);"
        "print(*importlib.util.find_spec('wds_tools').submodule_search_locations)"
    )
    # Without this environment's site-packages, in which wds_tools is installed too.
    command = [sys.executable, "-IS", "-c", code, str(tmp_path / "site")]
    found = subprocess.check_output(command, cwd=tmp_path, text=True).strip()
    assert Path(found) == sources / "wds_tools"
    assert (Path(found) / "bench" / "peers" / "webdataset.py").is_file()


@pytest.mark.torture
def test_the_package_is_installed_without_the_module_if_it_does_not_compile_and_without_the_peers_of_the_benchmark(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = write_working_compiler(tmp_path / "cc")
    fails = 'case "$*" in *batch.c*) echo "batch.c does not compile" >&2; exit 1;; esac\n'
    compiler.write_text(compiler.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{fails}"))
    monkeypatch.setenv("CC", str(compiler))
    names = zipfile.ZipFile(build_wheel(sources, tmp_path / "out")).namelist()
    assert not [name for name in names if name.endswith(".so")]
    assert "wds_tools/bench/registry.py" in names
    assert not [name for name in names if "peers" in name]
    log = (tmp_path / "out" / "log").read_text()
    assert log.count("wds_tools is installed without its compiled path") == 1
    assert "does not compile" in log
