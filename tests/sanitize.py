"""Run the tests of the compiled module with AddressSanitizer and UBSan in it: the second half of `make sanitize`.

A copy of the package is made in build/sanitize, so that the installed module stays as it is. The interpreter has no
AddressSanitizer, so the library of the compiler is loaded into it with LD_PRELOAD; with it that of C++, or the process
ends without a word at the first C++ exception, such as one of torch's packages. Leaks are not looked for: Python
and torch keep memory until the process ends. The fuzzer of `tests/csrc`, which has all sanitizers too, is run by
`tests/images/test_csrc.py`.

    python tests/sanitize.py [arguments of pytest]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "wds_tools" / "images" / "csrc"
sys.path.insert(0, str(CSRC))
import build_backend  # noqa: E402 - it is not part of the package

FOLDER = ROOT / "build" / "sanitize"
MODULE = FOLDER / "wds_tools" / "images" / "_native.abi3.so"
OPTIONS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-lm"]
CLANG_LIBRARY = f"libclang_rt.asan-{os.uname().machine}.so"
TESTS = [ROOT / "tests" / "images" / f"test_{name}.py" for name in ("native", "native_hostile", "jpeg_oracle", "color")]
SETTINGS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # so that each bytes object has red zones of its own
}
IMPORTED = "from wds_tools.images import _native; print(_native.__file__)"


def main() -> None:
    """Compile the module, and run its tests."""
    compiler = build_backend.find_compiler()
    library = compiler and find_library(compiler)
    if compiler is None or library is None:
        sys.exit("no C compiler with AddressSanitizer was found: install gcc, or name one with CC=")
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "wds_tools", FOLDER / "wds_tools", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shared = ["-shared-libasan"] if library.name == CLANG_LIBRARY else []
    flags = [*build_backend.python_flags(), *build_backend.shared_library_flags(), *OPTIONS, *shared]
    compiler.run(*flags, *sorted(CSRC.glob("*.c")), "-o", MODULE)
    preloaded = " ".join(map(str, filter(None, [library, find_file(compiler, "libstdc++.so.6")])))
    environment = {**os.environ, **SETTINGS, "LD_PRELOAD": preloaded}
    # From FOLDER, so that Python imports the package there.
    imported = subprocess.check_output([sys.executable, "-c", IMPORTED], cwd=FOLDER, env=environment, text=True)
    assert Path(imported.strip()) == MODULE, f"{imported} was imported in place of {MODULE}"
    words = ["-m", "pytest", "-p", "no:cacheprovider", *TESTS, *sys.argv[1:]]
    sys.exit(subprocess.run([sys.executable, *words], cwd=FOLDER, env=environment, check=False).returncode)


def find_library(compiler: build_backend.Compiler) -> Path | None:
    """Return the shared library of AddressSanitizer that belongs to gcc or clang."""
    version = subprocess.run([*compiler.command, "--version"], capture_output=True, text=True, check=False).stdout
    return find_file(compiler, CLANG_LIBRARY if "clang" in version else "libasan.so")


def find_file(compiler: build_backend.Compiler, name: str) -> Path | None:
    """Return a library that the compiler links with."""
    words = [*compiler.command, f"-print-file-name={name}"]
    found = Path(subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip())
    return found.resolve() if found.is_absolute() and found.exists() else None


if __name__ == "__main__":
    main()
