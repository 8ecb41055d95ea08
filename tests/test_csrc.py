"""The C sources: compiled wherever they can be, without a warning, and without a finding of the sanitizers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import mutants
import pytest
from natively import NOT_BUILT
from PIL import Image

from wds_tools import native

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "wds_tools" / "csrc"
SOURCES = sorted(CSRC.glob("*.c"))
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


def sanitized(folder: Path) -> tuple[Path, str]:
    """Build the module with sanitizers; return it, and the libraries that must be loaded first."""
    if compiled("--version") is None or "Free Software" not in subprocess.getoutput(f"{COMPILER} --version"):
        pytest.skip("GCC builds with its sanitizers here")
    checks = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1"]
    done = compiled(*checks, *SOURCES, "-o", folder / "_native.so", *LIBRARIES)
    assert done is not None
    if done.returncode:
        pytest.skip(f"the sanitizers cannot be linked: {done.stderr[-200:]}")
    libraries = [subprocess.getoutput(f"{COMPILER} -print-file-name={name}.so") for name in ("libasan", "libubsan")]
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
