"""The build backend: setuptools, one call of a C compiler for the compiled module, and the README for package indexes.

The compiler is the first that works on this machine, or ziglang if there is none. `pyproject.toml` names this file as
the build backend. pip runs it before any dependency is installed, so it imports only setuptools and the standard
library. It is not installed with the package. See docs/decisions/0013.

The platform tag of the wheel selects the system to compile for: ziglang builds the wheel of another system with
``--config-settings=--build-option=--plat-name=TAG``, where TAG is one of `TARGETS` (`make wheels`).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
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
from setuptools.command.egg_info import egg_info
from setuptools.errors import CompileError

CSRC = Path(__file__).parent

ZIGLANG = "ziglang>=0.17,<0.18"
"""A C compiler in a wheel. Only tested versions: a later one may behave differently, or have no C compiler."""

TARGETS = {
    "manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""The target of zig for each platform tag of a wheel."""

LIMITED_API = "0x030B0000"
"""Version of the stable ABI: that of Python 3.11, the oldest version that `pyproject.toml` allows."""

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Whether this interpreter is free-threaded.

It then has no stable ABI before 3.15: the module is built for its version, with its own Python.h.
"""

_NO_COMPILER = "no working C compiler found: install gcc, clang or ziglang, or set CC"
_PROBE = "#include <Python.h>\n#include <math.h>\n#include <stdlib.h>\nint probe(void) { return abs((int)sin(1.0)); }\n"
_TIMEOUT = 1800  # seconds; zig compiles a part of a C library on its first call, which can take minutes

build_sdist = build_meta.build_sdist
build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what pip must install before it builds a wheel, including ziglang if no C compiler works."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *required_compilers()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return what pip must install before an editable install, including ziglang if no C compiler works."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *required_compilers()]


def required_compilers() -> list[str]:
    """Return ziglang if no C compiler works.

    On a machine for which there is no ziglang wheel, nothing is returned: pip would end the install.
    """
    if not is_compiling_enabled() or not has_zig_wheel() or find_compiler() is not None:
        return []
    return [ZIGLANG]


def is_compiling_enabled() -> bool:
    """Return whether to compile the module: ``WDS_TOOLS_COMPILE=0`` installs without it, and without ziglang."""
    return os.environ.get("WDS_TOOLS_COMPILE", "1") != "0"


def has_zig_wheel() -> bool:
    """Return whether there is a ziglang wheel for this machine, and the C sources support the machine."""
    machine, system = platform.machine().lower(), platform.system()
    return system in ("Linux", "Darwin") and machine in ("x86_64", "aarch64", "arm64") and sys.maxsize > 1 << 32


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler."""

    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path) -> str:
        """Run the compiler.

        Returns:
            What it wrote to standard error: warnings.

        Raises:
            CompileError: It failed or could not be started.
        """
        command = [*self.command, *map(str, arguments)]
        try:
            done = subprocess.run(  # noqa: S603 - a compiler of this machine, or ziglang's
                command,
                env={**os.environ, **self.variables},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(str(error)) from error
        if done.returncode:
            raise CompileError(f"{shlex.join(command)}\n{done.stderr[-8000:]}")
        return done.stderr

    def works(self) -> bool:
        """Return whether it compiles a small module: a compiler may be installed without the C library's headers."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(_PROBE)
            try:
                self.run(*python_flags(), *shared_library_flags(), source, "-o", Path(folder, "probe.so"), "-lm")
            except CompileError:
                return False
            return Path(folder, "probe.so").exists()


def find_compiler() -> Compiler | None:
    """Return the first C compiler of this machine that works, or None."""
    return next((compiler for compiler in _compilers() if compiler.works()), None)


def _compilers() -> Iterator[Compiler]:
    seen = set()
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        words = tuple(shlex.split(command or ""))
        if words and words not in seen and shutil.which(words[0]):
            seen.add(words)
            yield Compiler(words)


def zig_compiler(target: str, cache: Path) -> Compiler | None:
    """Return ziglang's C compiler, or None if it is not installed.

    Args:
        target: The system to compile for, as zig names it. By default, zig compiles for the exact processor on which it
            runs.
        cache: A folder for zig's cache, unless environment variables name one. By default, zig uses the home directory,
            which may not exist.
    """
    if importlib.util.find_spec("ziglang") is None:
        return None
    names = (f"ZIG_{kind}_CACHE_DIR" for kind in ("GLOBAL", "LOCAL"))
    variables = {name: os.environ.get(name, str(cache.absolute())) for name in names}
    return Compiler((sys.executable, "-m", "ziglang", "cc", "-target", target), variables)


def native_target() -> str:
    """Return zig's target for this machine: baseline processor, and the oldest glibc that the wheels support."""
    machine = "aarch64" if platform.machine().lower() in ("aarch64", "arm64") else "x86_64"
    if platform.system() == "Darwin":
        return f"{machine}-macos.11.0"
    return f"{machine}-linux-{'musl' if 'musl' in (sysconfig.get_config_var('EXT_SUFFIX') or '') else 'gnu.2.17'}"


def python_flags() -> list[str]:
    """Return the flags for Python.h: the one in abi3/, or that of the interpreter if it is free-threaded."""
    if FREE_THREADED:
        return ["-I" + sysconfig.get_path("include")]
    return [f"-I{CSRC / 'abi3'}", f"-DPy_LIMITED_API={LIMITED_API}"]


def shared_library_flags(target: str = "") -> list[str]:
    """Return the flags for a module that finds Python's functions in the process that loads it."""
    darwin = "macos" in (target or sys.platform.replace("darwin", "macos"))
    return ["-fPIC", "-fvisibility=hidden", "-shared", *(["-Wl,-undefined,dynamic_lookup"] if darwin else [])]


def compile_program(target: str, sources: Sequence[str | Path], output: Path, options: Sequence[str]) -> None:
    """Compile a C program that does not use Python.

    With musl it is linked statically, so that an emulator can run it without the other system's libraries.
    """
    with tempfile.TemporaryDirectory() as cache:
        zig = zig_compiler(target or native_target(), Path(cache))
        compiler = zig if target else find_compiler() or zig
        if compiler is None:
            raise CompileError(_NO_COMPILER)
        compiler.run(*(["-static"] if "musl" in target else []), f"-I{CSRC}", *sources, "-o", output, *options)


def compile_module(sources: Sequence[str | Path], output: Path, options: Sequence[str], platform_tag: str = "") -> str:
    """Compile the Python module.

    Args:
        sources: The C files.
        output: Path of the module.
        options: More options for the compiler, including libraries.
        platform_tag: The system to compile for, one of `TARGETS`. Any other value compiles for this machine.

    Returns:
        The warnings of the compiler.
    """
    target = TARGETS.get(platform_tag, "")
    with tempfile.TemporaryDirectory() as cache:
        zig = zig_compiler(target or native_target(), Path(cache)) if target or has_zig_wheel() else None
        compiler = zig if target else find_compiler() or zig
        if compiler is None:
            raise CompileError(f"compiling for {target} requires {ZIGLANG}: install it" if target else _NO_COMPILER)
        strip = ["-s"] if compiler is zig else []  # zig's run-time library has 840 kB of symbols
        user_flags = [*shlex.split(os.environ.get("CFLAGS", "")), *shlex.split(os.environ.get("LDFLAGS", ""))]
        return compiler.run(
            *python_flags(), *shared_library_flags(target), *strip, *sources, "-o", output, *options, *user_flags
        )


class BuildExt(build_ext):
    """Compiles the C sources with one compiler call. If that fails, the package is installed without the module.

    setuptools would add the flags with which this Python was compiled. They are for another compiler, and -fwrapv,
    which is among them, prevents the vectorization of loops (docs/decisions/0009).
    """

    def finalize_options(self) -> None:
        """Expand the patterns of file names, and choose the ABI."""
        super().finalize_options()
        for module in self.extensions or []:
            module.sources, module.depends = _expand(module.sources), _expand(module.depends)
            module.py_limited_api = not FREE_THREADED

    def run(self) -> None:
        """Compile the module, and copy it into the source tree, unless it is for another system.

        In the folder of the sources, Python imports the package from there and not the one that was installed.
        setuptools copies only for an editable install.
        """
        super().run()
        if not self.inplace and self._platform_tag() not in TARGETS:
            self.copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        """Compile the module."""
        options = ["-DNDEBUG", *ext.extra_compile_args, *(f"-l{name}" for name in ext.libraries)]
        output, tag = Path(self.get_ext_fullpath(ext.name)), self._platform_tag()
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)  # setuptools would use the file of an earlier build
        try:
            if not is_compiling_enabled():
                raise CompileError("WDS_TOOLS_COMPILE=0")
            print(compile_module(ext.sources, output, options, tag), end="", file=sys.stderr)  # noqa: T201
        except CompileError as error:
            ext.optional = tag not in TARGETS  # a wheel for another system must have the module
            print(f"wds_tools is installed without its compiled path: {error}", file=sys.stderr)  # noqa: T201
            if ext.optional:  # a module of older sources must not be used
                for old in Path(*ext.name.split(".")[:-1]).glob(ext.name.rpartition(".")[2] + ".*so"):
                    old.unlink()
            raise

    def _platform_tag(self) -> str:
        wheel = self.distribution.command_obj.get("bdist_wheel")
        return getattr(wheel, "plat_name", None) or ""


def _expand(patterns: Sequence[str]) -> list[str]:
    return [str(path) for pattern in patterns for path in sorted(Path().glob(pattern))]


class BdistWheel(bdist_wheel):
    """Names the wheel after the ABI of its module: a free-threaded interpreter has no stable ABI."""

    def finalize_options(self) -> None:
        """Choose the ABI."""
        if FREE_THREADED:
            self.py_limited_api = False
        super().finalize_options()


class EggInfo(egg_info):
    """Writes the metadata, with a README whose links work on the page of a package index."""

    def run(self) -> None:
        """Write the files of the metadata."""
        metadata = self.distribution.metadata
        source = (metadata.project_urls or {}).get("Source")
        metadata.long_description = index_page(metadata.long_description or "", source)
        super().run()


_CODE_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")


def index_page(readme: str, source: str | None) -> str:
    """Return the README without relative links, which lead nowhere on a package index.

    Args:
        readme: Markdown. Blocks of code are not changed.
        source: Address of the repository, ``Source`` of ``[project.urls]`` in pyproject.toml. Its files must be at
            ``SOURCE/blob/HEAD/PATH``, as on GitHub and GitLab. Without it, links become text that names the file.

    >>> index_page("See [packing](docs/packing.md#splits).", "https://example.org/code/")
    'See [packing](https://example.org/code/blob/HEAD/docs/packing.md#splits).'
    >>> index_page("See [packing](docs/packing.md#splits).", None)
    'See packing (`docs/packing.md`).'
    """
    parts = _CODE_BLOCK.split(readme)
    parts[::2] = [_RELATIVE_LINK.sub(lambda link: _index_link(link[1], link[2], source), text) for text in parts[::2]]
    return "".join(parts)


def _index_link(text: str, target: str, source: str | None) -> str:
    if source:
        return f"[{text}]({source.rstrip('/')}/blob/HEAD/{target})"
    path = target.partition("#")[0]
    return text if path in text else f"{text} (`{path}`)"
