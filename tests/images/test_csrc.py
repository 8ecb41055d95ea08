"""The C sources: warnings, the declarations of Python's ABI, results on other compilers and processors, fuzzing."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
import tomllib
from pathlib import Path

import build_backend
import oracle
import pytest
from build_backend import Compiler
from native_helpers import needs_native

from wds_tools.images import native

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "wds_tools" / "images" / "csrc"
SOURCES = sorted(CSRC.glob("*.c"))
FUZZER = Path(__file__).parents[1] / "csrc"
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
    VALUE(Py_mod_exec)
    /* without the reference count, which is 1 up to Python 3.11, and later marks an immortal object */
    for (size_t i = sizeof(Py_ssize_t); i < offsetof(PyModuleDef, m_name); i++)
        printf("%d ", ((unsigned char *)&definition)[i]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def zig(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    compiler = build_backend.zig_compiler(build_backend.native_target(), tmp_path_factory.mktemp("zig"))
    assert compiler is not None, "ziglang is missing: it is in the extra `test`"
    return compiler


def test_the_module_is_compiled() -> None:
    assert native.is_available(), "wds_tools.images._native is not compiled: install again (pip install --editable .)"


@needs_native
def test_the_written_codes_are_as_long_as_the_lookup_of_the_decoder() -> None:
    assert native.compiled.AC_LOOKUP_BITS == native.LONGEST_CODE


def test_the_patterns_in_pyproject_match_every_source() -> None:
    matched = {path for pattern in MODULE["sources"] + MODULE["depends"] for path in ROOT.glob(pattern)}
    assert matched == {path for path in CSRC.rglob("*") if path.suffix in (".c", ".h", ".py")}


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("system", "-fsyntax-only"),
        *(
            pytest.param(*one, marks=pytest.mark.torture)
            for one in (("system", "-O1"), ("system", "-O3"), ("zig", "-O0"))
        ),
    ],
)
def test_the_sources_compile_without_a_warning(zig: Compiler, tmp_path: Path, name: str, level: str) -> None:
    """Warnings of Clang do not depend on how it optimizes; some of GCC's do, and most need none of it."""
    compiler = zig if name == "zig" else build_backend.find_compiler() or zig
    for source in SOURCES:
        compiler.run(*build_backend.python_flags(), *STRICT, level, "-c", source, "-o", tmp_path / "object.o")


def test_our_python_h_agrees_with_that_of_the_interpreter(zig: Compiler, tmp_path: Path) -> None:
    original = Path(sysconfig.get_path("include"), "Python.h")
    if build_backend.FREE_THREADED or not original.exists():
        return  # nothing to compare with: no stable ABI, or Python without its headers
    compiler = build_backend.find_compiler() or zig
    limited = f"-DPy_LIMITED_API={build_backend.LIMITED_API}"
    both = f'#include "{original}"\n#include "{CSRC / "abi3" / "Python.h"}"\n'
    (tmp_path / "both.c").write_text("#define PY_SSIZE_T_CLEAN\n" + both)
    compiler.run(limited, "-Werror", f"-I{original.parent}", "-c", tmp_path / "both.c", "-o", tmp_path / "both.o")
    sizes = []
    for header in (original, CSRC / "abi3" / "Python.h"):
        folder = tmp_path / str(len(sizes))
        folder.mkdir()
        (folder / "sizes.c").write_text(f'#define PY_SSIZE_T_CLEAN\n#include "{header}"\n{SIZES}')
        compiler.run(limited, f"-I{header.parent}", folder / "sizes.c", "-o", folder / "sizes")
        sizes.append(subprocess.check_output([folder / "sizes"], text=True))
    assert sizes[0] == sizes[1]


def checksums(program: Path, photos: Path, *emulator: str) -> list[str]:
    """Return the lines that the program of csrc/checksums.c prints for all sample photographs."""
    files = sorted(map(str, photos.glob("*/*.jpg")))
    return subprocess.check_output([*emulator, str(program), *files], text=True).splitlines()


def checksum_program(folder: Path, target: str = "", *options: str) -> Path:
    """Compile csrc/checksums.c."""
    sources = [ROOT / "tests" / "csrc" / "checksums.c", *(path for path in SOURCES if path.name != "module.c")]
    output = folder / "checksums"
    build_backend.compile_program(target, sources, output, [*OPTIONS, *options])
    return output


@pytest.mark.torture
@pytest.mark.timeout(600)  # ziglang first compiles a part of the C library
def test_results_do_not_depend_on_the_compiler(photos: Path, tmp_path: Path) -> None:
    ours = checksums(checksum_program(tmp_path), photos)
    assert len(ours) > 1000
    assert not [line for line in ours if "rendered 0" in line or "not decoded" in line]
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
def test_results_do_not_depend_on_the_processor(target: str, emulator: list[str], photos: Path, tmp_path: Path) -> None:
    emulator[0] = shutil.which(emulator[0]) or emulator[0] + "-static"
    emulated = checksums(checksum_program(tmp_path, target), photos, *emulator)
    assert emulated == checksums(checksum_program(tmp_path), photos)


@pytest.fixture(scope="module")
def fuzzer(zig: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the fuzzer of csrc/fuzz_loop.c, with sanitizers and the coverage of the decoder."""
    compiler, sanitizers = build_backend.find_compiler(), "address,undefined"
    if compiler is None or "Free Software" not in subprocess.getoutput(f"{compiler.command[0]} --version"):
        compiler, sanitizers = zig, "undefined"  # ziglang has no AddressSanitizer
    folder = tmp_path_factory.mktemp("fuzzer")
    common = ["-O1", "-g1", "-Werror", "-Wall", "-Wextra", f"-I{CSRC}", f"-I{FUZZER}"]
    checks = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    decoder = [source for source in SOURCES if source.stem not in ("module", "grow_buffer")]
    parts = {source: [*checks, "-fsanitize-coverage=trace-pc"] for source in decoder}
    parts |= {FUZZER / "fuzz_target.c": checks, FUZZER / "exact_buffer.c": checks, FUZZER / "fuzz_loop.c": []}
    for source, options in parts.items():
        compiler.run(*common, *options, "-c", source, "-o", folder / f"{source.stem}.o")
    compiler.run(*checks, *folder.glob("*.o"), "-lm", "-o", folder / "fuzzer")
    return folder / "fuzzer"


@pytest.fixture(scope="module")
def seeds(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write small JPEGs of every kind, as inputs of the fuzzer."""
    folder = tmp_path_factory.mktemp("seeds")
    oracle.write_seeds(folder, oracle.read_photos(photos), 200)
    return sorted(folder.iterdir())


def fuzz(fuzzer: Path, seeds: list[Path], runs: int, number: int) -> None:
    """Test the seeds and `runs` inputs derived from them. One that fails is kept in the temporary folder."""
    finding = Path(tempfile.gettempdir()) / f"wds-tools-finding-{number}"
    command = [fuzzer, finding, str(runs), str(number), *seeds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the input is {finding}:\n{done.stderr[:6000]}"
    assert done.stdout.startswith(f"{runs} runs, ")


@pytest.mark.timeout(400)  # mostly for compiling
@pytest.mark.parametrize("runs", [1_000, pytest.param(10_000, marks=pytest.mark.torture)])
@pytest.mark.torture
def test_fuzzing_finds_nothing(fuzzer: Path, seeds: list[Path], runs: int) -> None:
    fuzz(fuzzer, seeds, runs, 0)


@pytest.mark.torture
@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(1, 11))
def test_fuzzing_with_another_million_inputs_finds_nothing(number: int, fuzzer: Path, seeds: list[Path]) -> None:
    fuzz(fuzzer, seeds, 1_000_000, number)
