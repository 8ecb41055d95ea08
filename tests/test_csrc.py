"""The C sources: compiled wherever they can be, without a warning, and without a finding of the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import build_backend
import mutants
import pytest
from build_backend import Compiler
from PIL import Image
from setuptools.errors import CompileError

from wds_tools import native

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "wds_tools" / "csrc"
SOURCES = sorted(CSRC.glob("*.c"))
STRICT = ["-Wall", "-Wextra", "-Werror", "-O3", "-fPIC"]

(MODULE,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
OPTIONS = [*MODULE["extra-compile-args"], *(f"-l{name}" for name in MODULE["libraries"])]


SIZES = """
#include <stddef.h>
#include <stdio.h>
#define FIELD(type, name) printf(#type "." #name " %zu %zu\\n", offsetof(type, name), sizeof ((type *)0)->name);
#define VALUE(name) printf(#name " %lld\\n", (long long)(name));
PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "name"};
int main(void)
{
    VALUE(sizeof(PyObject)) VALUE(sizeof(Py_buffer)) VALUE(sizeof(PyModuleDef)) VALUE(sizeof(PyMethodDef))
    VALUE(sizeof(PyModuleDef_Slot)) VALUE(sizeof(Py_ssize_t))
    FIELD(Py_buffer, buf) FIELD(Py_buffer, obj) FIELD(Py_buffer, len) FIELD(Py_buffer, itemsize)
    FIELD(Py_buffer, readonly) FIELD(Py_buffer, ndim) FIELD(Py_buffer, format) FIELD(Py_buffer, shape)
    FIELD(Py_buffer, strides) FIELD(Py_buffer, suboffsets) FIELD(Py_buffer, internal)
    FIELD(PyMethodDef, ml_name) FIELD(PyMethodDef, ml_meth) FIELD(PyMethodDef, ml_flags) FIELD(PyMethodDef, ml_doc)
    FIELD(PyModuleDef_Slot, slot) FIELD(PyModuleDef_Slot, value)
    FIELD(PyModuleDef, m_base) FIELD(PyModuleDef, m_name) FIELD(PyModuleDef, m_doc) FIELD(PyModuleDef, m_size)
    FIELD(PyModuleDef, m_methods) FIELD(PyModuleDef, m_slots) FIELD(PyModuleDef, m_traverse)
    FIELD(PyModuleDef, m_clear) FIELD(PyModuleDef, m_free)
    VALUE(PyBUF_SIMPLE) VALUE(PyBUF_WRITABLE) VALUE(METH_VARARGS) VALUE(METH_NOARGS) VALUE(METH_O)
    /* not the count of references: it is 1 up to Python 3.11, and then one that is never counted down */
    for (size_t i = sizeof(Py_ssize_t); i < offsetof(PyModuleDef, m_name); i++)
        printf("%d ", ((unsigned char *)&definition)[i]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def zig(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    compiler = build_backend.zig_compiler(build_backend.native_target(), tmp_path_factory.mktemp("zig"))
    assert compiler is not None, "the extra `test` has ziglang"
    return compiler


def test_the_module_is_there() -> None:
    assert native._native is not None, "wds_tools._native is not compiled: install again (pip install --editable .)"


def test_the_patterns_of_the_project_file_name_every_source() -> None:
    named = {path for pattern in MODULE["sources"] + MODULE["depends"] for path in ROOT.glob(pattern)}
    assert named == {path for path in CSRC.rglob("*") if path.suffix in (".c", ".h", ".py")}


def test_the_sources_compile_without_a_warning(zig: Compiler, tmp_path: Path) -> None:
    for compiler in filter(None, (build_backend.find_compiler(), zig)):
        for source in SOURCES:
            compiler.run(*build_backend.arguments_for_python(), *STRICT, "-c", source, "-o", tmp_path / "object.o")


def test_our_header_says_what_that_of_the_interpreter_says(zig: Compiler, tmp_path: Path) -> None:
    theirs = Path(sysconfig.get_path("include"), "Python.h")
    if build_backend.FREE_THREADED or not theirs.exists():
        return  # there is nothing to compare with: no such ABI, or a Python without its headers
    compiler = build_backend.find_compiler() or zig
    limited = f"-DPy_LIMITED_API={build_backend.LIMITED_API}"
    both = f'#include "{theirs}"\n#include "{CSRC / "abi3" / "Python.h"}"\n'
    (tmp_path / "both.c").write_text("#define PY_SSIZE_T_CLEAN\n" + both)
    compiler.run(limited, "-Werror", f"-I{theirs.parent}", "-c", tmp_path / "both.c", "-o", tmp_path / "both.o")
    sizes = []
    for header in (theirs, CSRC / "abi3" / "Python.h"):
        folder = tmp_path / str(len(sizes))
        folder.mkdir()
        (folder / "sizes.c").write_text(f'#define PY_SSIZE_T_CLEAN\n#include "{header}"\n{SIZES}')
        compiler.run(limited, f"-I{header.parent}", folder / "sizes.c", "-o", folder / "sizes")
        sizes.append(subprocess.check_output([folder / "sizes"], text=True))
    assert sizes[0] == sizes[1]


def checksums(program: Path, photos: Path, *before: str) -> list[str]:
    files = sorted(map(str, photos.glob("*/*.jpg")))
    return subprocess.check_output([*before, str(program), *files], text=True).splitlines()


def checksum_program(folder: Path, target: str = "", *options: str) -> Path:
    """Compile the program that prints checksums of what is decoded."""
    sources = [ROOT / "tests" / "csrc" / "checksums.c", *(path for path in SOURCES if path.name != "module.c")]
    output = folder / "checksums"
    build_backend.compile_program(target, sources, output, [*OPTIONS, *options])
    return output


@pytest.mark.timeout(600)  # ziglang compiles a part of the C library first, which takes long on a busy machine
def test_two_compilers_make_programs_that_decode_alike(photos: Path, tmp_path: Path) -> None:
    ours = checksums(checksum_program(tmp_path), photos)
    assert len(ours) > 1000
    assert not [line for line in ours if "made 0" in line or "refused" in line]
    by_ziglang = checksum_program(tmp_path, build_backend.native_target())
    assert checksums(by_ziglang, photos) == ours


@pytest.mark.emulated
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "emulator"),
    [
        ("aarch64-linux-musl", ["qemu-aarch64"]),
        ("x86_64-linux-musl", ["qemu-x86_64", "-cpu", "Nehalem"]),  # has no AVX2
        ("x86_64-linux-musl", ["qemu-x86_64", "-cpu", "max"]),
    ],
)
def test_other_processors_decode_alike(target: str, emulator: list[str], photos: Path, tmp_path: Path) -> None:
    emulator[0] = shutil.which(emulator[0]) or emulator[0] + "-static"
    there = checksums(checksum_program(tmp_path, target), photos, *emulator)
    assert there == checksums(checksum_program(tmp_path), photos)


def sanitized(folder: Path) -> tuple[Path, str]:
    """Build the module with sanitizers; return it, and the libraries that must be loaded first."""
    compiler = build_backend.find_compiler()
    program = compiler.command[0] if compiler else "false"
    if "Free Software" not in subprocess.getoutput(f"{program} --version"):
        pytest.skip("GCC builds with its sanitizers here")
    checks = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
    try:
        build_backend.compile_module(SOURCES, folder / "_native.so", [*OPTIONS, *checks, "-O1"])
    except CompileError as error:
        pytest.skip(f"the sanitizers cannot be linked: {str(error)[-200:]}")
    libraries = [subprocess.getoutput(f"{program} -print-file-name={name}.so") for name in ("libasan", "libubsan")]
    return folder / "_native.so", " ".join(libraries)


def write_seeds(folder: Path, photos: Path) -> None:
    """Write small JPEGs of many codings."""
    folder.mkdir()
    photo = Image.open(sorted((photos / "coffee").glob("*.jpg"))[0])
    codings = [{}, {"progressive": True}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1}, {"subsampling": 0}]
    for size in ((200, 150), (64, 48), (17, 9), (1, 1), (8, 300)):
        for mode in ("L", "RGB", "CMYK"):
            for number, options in enumerate(codings):
                path = folder / f"{size[0]}-{mode}-{number}.jpg"
                photo.resize(size).convert(mode).save(path, **options)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_three_hundred_thousand_batches_of_mutants_give_the_sanitizers_nothing_to_say(tmp_path, photos) -> None:
    module, libraries = sanitized(tmp_path)
    write_seeds(tmp_path / "seeds", photos)
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    environment = {**os.environ, **options, "LD_PRELOAD": libraries, "PYTHONMALLOC": "malloc"}
    for first in range(0, 300_000, 20_000):
        command = [sys.executable, "-S", mutants.__file__, str(module), str(tmp_path / "seeds"), str(first), "20000"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"from case {first} on: {done.stderr[:6000]}"
        made, _, total, *_ = done.stdout.split()
        assert int(made) > int(total) / 20
