"""The C sources: compiled wherever they can be, without a warning, and without a finding of the sanitizers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import tomllib
from pathlib import Path

import oracle
import pytest
from natively import NOT_BUILT

from wds_tools import native

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "wds_tools" / "csrc"
SOURCES = sorted(CSRC.glob("*.c"))
FUZZER = Path(__file__).parent / "csrc"
COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
HEADERS = "#include <Python.h>\n"


LIBRARIES = ["-shared", "-lm"]


def compiled(*arguments: object, code: str | None = None) -> subprocess.CompletedProcess[str] | None:
    """Run the C compiler that setuptools would run; None if there is none."""
    if shutil.which(COMPILER) is None:
        return None
    command = [COMPILER, "-I" + sysconfig.get_path("include"), "-Wall", "-Wextra", "-fPIC", *map(str, arguments)]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def can_compile(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether there are a C compiler and Python's headers."""
    output = tmp_path_factory.mktemp("probe") / "probe.so"
    done = compiled("-x", "c", "-", "-x", "none", "-o", output, *LIBRARIES, code=HEADERS)
    return done is not None and done.returncode == 0


def test_the_module_is_there_wherever_it_can_be_compiled(can_compile: bool) -> None:
    assert native._native is not None or not can_compile, (
        "wds_tools._native is not compiled, though all that it takes is here: install the package again "
        "(pip install --editable .)"
    )


def test_every_source_is_named_in_the_project_file() -> None:
    (module,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    files = sorted(path for path in CSRC.iterdir() if path.suffix in (".c", ".h"))
    assert sorted(ROOT / name for name in module["sources"] + module["depends"]) == files


def test_the_sources_compile_without_a_warning(can_compile: bool, tmp_path: Path) -> None:
    if not can_compile:
        pytest.skip(NOT_BUILT)
    for source in SOURCES:
        done = compiled("-Werror", "-O3", "-c", source, "-o", tmp_path / "object.o")
        assert done is not None
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the fuzzer of csrc/fuzz_loop.c: what it tries is checked by sanitizers, and says which ways it takes."""
    if compiled("--version") is None:
        pytest.skip(NOT_BUILT)
    folder = tmp_path_factory.mktemp("fuzzer")
    includes = [f"-I{CSRC}", f"-I{FUZZER}", "-g"]
    checks = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    parts = [(source, [*checks, "-fsanitize-coverage=trace-pc"]) for source in SOURCES if source.stem != "module"]
    parts += [(FUZZER / "fuzz_target.c", checks), (FUZZER / "fuzz_loop.c", ["-O2"])]
    for source, options in parts:
        done = compiled("-Werror", *includes, *options, "-c", source, "-o", folder / f"{source.stem}.o")
        assert done is not None
        assert done.returncode == 0, done.stderr
    done = compiled(*checks, *folder.glob("*.o"), "-lm", "-o", folder / "fuzzer")
    assert done is not None
    assert done.returncode == 0, done.stderr
    return folder / "fuzzer"


@pytest.fixture(scope="module")
def seeds(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write small JPEGs of every coding."""
    folder = tmp_path_factory.mktemp("seeds")
    oracle.write_seeds(folder, oracle.read_photos(photos), 200)
    return sorted(folder.iterdir())


def fuzz(fuzzer: Path, seeds: list[Path], runs: int, number: int) -> None:
    """Try seeds and inputs that are made of them; a finding is kept, and said where."""
    finding = Path(tempfile.gettempdir()) / f"finding-{number}"
    command = [fuzzer, finding, str(runs), str(number), *seeds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the input is {finding}:\n{done.stderr[:6000]}"
    assert done.stdout.startswith(f"{runs} runs, ")


def test_the_sanitizers_have_nothing_to_say_about_twenty_thousand_inputs(fuzzer: Path, seeds: list[Path]) -> None:
    fuzz(fuzzer, seeds, 20_000, 0)


@pytest.mark.torture
@pytest.mark.timeout(4 * 3600)
def test_the_sanitizers_have_nothing_to_say_about_ten_million_inputs(fuzzer: Path, seeds: list[Path]) -> None:
    for number in range(1, 11):
        fuzz(fuzzer, seeds, 1_000_000, number)
