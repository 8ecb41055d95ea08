"""Builds the package with setuptools, and its C sources with whatever C compiler works: ziglang's where there is none.

`pyproject.toml` names this file as the build backend, so pip runs it before anything is installed: it imports
setuptools and the standard library only, and it is no part of the package. See docs/decisions/0013.

A platform tag is also what is compiled for: with ``--config-settings=--build-option=--plat-name=TAG``, where TAG is one
of `TARGETS`, ziglang makes the wheel of another system (`make wheels`).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from setuptools import Extension, build_meta
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CSRC = Path(__file__).parent

ZIGLANG = "ziglang>=0.17,<0.18"
"""A C compiler in a wheel. What was tested: a later one may compile otherwise, or no C at all."""

TARGETS = {
    "manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""Platform tag of a wheel to what zig calls the system."""

LIMITED_API = "0x030B0000"
"""The stable ABI since Python 3.11, the oldest that `pyproject.toml` allows."""

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""This interpreter has no stable ABI before 3.15: the module is built for its version, with its own Python.h."""

_PROBE = "#include <Python.h>\n#include <math.h>\n#include <stdlib.h>\nint probe(void) { return abs((int)sin(1.0)); }\n"
_SECONDS = 1800  # zig compiles a part of a C library when it is first called: minutes on a busy machine

build_sdist = build_meta.build_sdist
build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what pip has to install before it builds a wheel: ziglang where no C compiler works."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed_compiler()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return the same for an editable install."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *needed_compiler()]


def needed_compiler() -> list[str]:
    """Return ziglang where no compiler works and ziglang is to be had: pip ends the install where it is not."""
    if not is_wanted() or not zig_is_offered() or find_compiler() is not None:
        return []
    return [ZIGLANG]


def is_wanted() -> bool:
    """Return whether a compiled module is wanted: ``WDS_TOOLS_COMPILE=0`` installs without one, and without ziglang."""
    return os.environ.get("WDS_TOOLS_COMPILE", "1") != "0"


def zig_is_offered() -> bool:
    """Return whether there is a ziglang wheel for this machine, and our sources compile on it."""
    machine, system = platform.machine().lower(), platform.system()
    return system in ("Linux", "Darwin") and machine in ("x86_64", "aarch64", "arm64") and sys.maxsize > 1 << 32


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler.

    Attributes:
        command: Its program and the arguments that it always gets.
        variables: Of the environment, where it needs some.
    """

    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path) -> str:
        """Compile.

        Returns:
            What it says.

        Raises:
            CompileError: It failed, or cannot be started.
        """
        command = [*self.command, *map(str, arguments)]
        try:
            done = subprocess.run(  # noqa: S603 - a compiler that the user has, or ziglang's
                command,
                env={**os.environ, **self.variables},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(str(error)) from error
        if done.returncode:
            raise CompileError(f"{shlex.join(command)}\n{done.stderr[-8000:]}")
        return done.stderr

    def works(self) -> bool:
        """Return whether it makes a module of a few lines: a compiler may be there without the headers of C."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(_PROBE)
            try:
                self.run(*arguments_for_python(), *shared(), source, "-o", Path(folder, "probe.so"), "-lm")
            except CompileError:
                return False
            return Path(folder, "probe.so").exists()


def find_compiler() -> Compiler | None:
    """Return the first C compiler of this machine that works; None if there is none."""
    return next((compiler for compiler in _compilers() if compiler.works()), None)


def _compilers() -> Iterator[Compiler]:
    seen = set()
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        words = tuple(shlex.split(command or ""))
        if words and words not in seen and shutil.which(words[0]):
            seen.add(words)
            yield Compiler(words)


def zig_compiler(target: str, cache: Path) -> Compiler | None:
    """Return ziglang's C compiler; None if it is not installed.

    Args:
        target: What it compiles for, in zig's words. Without it, it would compile for the very processor it runs on.
        cache: A folder for what it keeps, unless the environment names one: there may be no home directory, which is
            its own choice.
    """
    if importlib.util.find_spec("ziglang") is None:
        return None
    names = (f"ZIG_{kind}_CACHE_DIR" for kind in ("GLOBAL", "LOCAL"))
    variables = {name: os.environ.get(name, str(cache.absolute())) for name in names}
    return Compiler((sys.executable, "-m", "ziglang", "cc", "-target", target), variables)


def native_target() -> str:
    """Return what zig calls this machine: with the oldest glibc that wheels are made for, and no processor's extras."""
    machine = "aarch64" if platform.machine().lower() in ("aarch64", "arm64") else "x86_64"
    if platform.system() == "Darwin":
        return f"{machine}-macos.11.0"
    return f"{machine}-linux-{'musl' if 'musl' in (sysconfig.get_config_var('EXT_SUFFIX') or '') else 'gnu.2.17'}"


def arguments_for_python() -> list[str]:
    """Return what tells a compiler about Python: the stable ABI by our header, else by that of this interpreter."""
    if FREE_THREADED:
        return ["-I" + sysconfig.get_path("include")]
    return [f"-I{CSRC / 'abi3'}", f"-DPy_LIMITED_API={LIMITED_API}"]


def shared(target: str = "") -> list[str]:
    """Return what makes a module that finds Python's functions in the process that loads it."""
    darwin = "macos" in (target or sys.platform.replace("darwin", "macos"))
    return ["-fPIC", "-fvisibility=hidden", "-shared", *(["-Wl,-undefined,dynamic_lookup"] if darwin else [])]


def compile_program(target: str, sources: Sequence[str | Path], output: Path, options: Sequence[str]) -> None:
    """Compile a program without Python: with musl a static one, which an emulator runs without another system's files.

    Args:
        target: What ziglang compiles for, in its words; "" is this machine and the compiler that it has.
        sources: The C files; headers are found beside ours.
        output: The program.
        options: For the compiler; libraries are among them.

    Raises:
        CompileError: There is no compiler, or it refuses the sources.
    """
    with tempfile.TemporaryDirectory() as cache:
        zig = zig_compiler(target or native_target(), Path(cache))
        compiler = zig if target else find_compiler() or zig
        if compiler is None:
            raise CompileError("no C compiler works here")
        compiler.run(*(["-static"] if "musl" in target else []), f"-I{CSRC}", *sources, "-o", output, *options)


def compile_module(sources: Sequence[str | Path], output: Path, options: Sequence[str], platform_tag: str = "") -> str:
    """Compile the module.

    Args:
        sources: The C files.
        output: The module.
        options: For the compiler; libraries are among them.
        platform_tag: One of `TARGETS`; any other is this machine.

    Returns:
        What the compiler says.

    Raises:
        CompileError: There is no compiler that works, or it refuses the sources.
    """
    target = TARGETS.get(platform_tag, "")
    with tempfile.TemporaryDirectory() as cache:
        zig = zig_compiler(target or native_target(), Path(cache)) if target or zig_is_offered() else None
        compiler = zig if target else find_compiler() or zig
        if compiler is None:
            raise CompileError("no C compiler works here" if not target else f"only {ZIGLANG} compiles for {target}")
        strip = ["-s"] if compiler is zig else []  # else it adds its run-time library's symbols: 840 kB of them
        own = [*shlex.split(os.environ.get("CFLAGS", "")), *shlex.split(os.environ.get("LDFLAGS", ""))]
        return compiler.run(*arguments_for_python(), *shared(target), *strip, *sources, "-o", output, *options, *own)


class BuildExt(build_ext):
    """Compiles the C sources with one call of one compiler; leaves the module out where that fails.

    setuptools would add the flags that this Python was compiled with: they are meant for another compiler, and
    -fwrapv, which is among them, keeps loops from being vectorised (docs/decisions/0009).
    """

    def finalize_options(self) -> None:
        """Put files in the place of patterns, and choose the ABI."""
        super().finalize_options()
        for module in self.extensions or []:
            module.sources, module.depends = _files(module.sources), _files(module.depends)
            module.py_limited_api = not FREE_THREADED

    def build_extension(self, ext: Extension) -> None:
        """Compile the module.

        Raises:
            CompileError: It cannot be; setuptools goes on without it.
        """
        options = ["-DNDEBUG", *ext.extra_compile_args, *(f"-l{name}" for name in ext.libraries)]
        output, tag = Path(self.get_ext_fullpath(ext.name)), self._platform_tag()
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)  # setuptools would take one of an earlier build
        try:
            if not is_wanted():
                raise CompileError("WDS_TOOLS_COMPILE=0")
            print(compile_module(ext.sources, output, options, tag), end="", file=sys.stderr)  # noqa: T201
        except CompileError as error:
            ext.optional = tag not in TARGETS  # a wheel for others is no use without
            print(f"wds_tools is installed without its compiled path: {error}", file=sys.stderr)  # noqa: T201
            if self.editable_mode:  # one of older sources would be worse than none
                for old in Path(*ext.name.split(".")[:-1]).glob(ext.name.rpartition(".")[2] + ".*so"):
                    old.unlink()
            raise

    def _platform_tag(self) -> str:
        wheel = self.distribution.command_obj.get("bdist_wheel")
        return getattr(wheel, "plat_name", None) or ""


def _files(patterns: Sequence[str]) -> list[str]:
    return [str(path) for pattern in patterns for path in sorted(Path().glob(pattern))]


class BdistWheel(bdist_wheel):
    """Names the wheel by what is in it: a free-threaded interpreter has no stable ABI."""

    def finalize_options(self) -> None:
        """Choose the ABI."""
        if FREE_THREADED:
            self.py_limited_api = False
        super().finalize_options()
