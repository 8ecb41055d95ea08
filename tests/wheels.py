"""Build a wheel for each platform and check it (`make wheels`), in an environment without torch.

The wheels are built from the source distribution. Its metadata and its README are checked by twine.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "wds_tools" / "images" / "csrc"))
from build_backend import TARGETS  # noqa: E402 - not part of the package

MODULE = "wds_tools/images/_native.abi3.so"
LIBRARIES = {"manylinux": {"libc.so.6", "libm.so.6"}, "musllinux": {"libc.so"}}
"""The libraries with which a module may be linked; a wheel would have to contain any other."""

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
MACHO = {"x86_64": bytes.fromhex("cffaedfe 07000001"), "arm64": bytes.fromhex("cffaedfe 0c000001")}
GLIBC = (2, 17)
"""The latest version of glibc symbols that manylinux2014 allows."""


def run(*command: str | Path, **variables: str) -> str:
    """Run a program and return its output. If it fails, print the output and exit."""
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def pip_wheel(source: Path, out: Path, *options: str) -> Path:
    """Build a wheel in this environment, without build isolation."""
    arguments = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    before = set(out.glob("*.whl"))
    run(sys.executable, *arguments, "-w", out, *options, source, SOURCE_DATE_EPOCH=commit_time())
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def commit_time() -> str:
    """Return the time stamp of files in a wheel. With it, the same sources give the same wheel."""
    found = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "1700000000"


def check(wheel: Path, tag: str) -> str:
    """Check a wheel; return a text with the size of its module and the libraries that it requires.

    Raises:
        AssertionError: The contents do not match the name.
    """
    assert re.fullmatch(rf"wds_tools-[\d.]+-cp311-abi3-{tag}\.whl", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert f"Tag: cp311-abi3-{tag}\n" in archive.read(metadata).decode()
        assert not [name for name in names if "csrc" in name or "bench/peers" in name]
        assert MODULE in names, "the wheel has no compiled module"
        with tempfile.TemporaryDirectory() as folder:
            module = Path(archive.extract(MODULE, folder))
            size = f"{module.stat().st_size / 1000:.0f} kB"
            return f"{size}, {check_macho(module, tag) if tag.startswith('macosx') else check_elf(module, tag)}"


def check_macho(module: Path, tag: str) -> str:
    """Check that a module is in the format of macOS, for the processor of the tag."""
    assert module.read_bytes()[:8] == MACHO[tag.removeprefix("macosx_11_0_")]
    return "not run: no macOS here"


def check_elf(module: Path, tag: str) -> str:
    """Check the processor of a Linux module, its libraries, and the versions of the symbols that it requires."""
    with module.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == MACHINES[machine_of(tag)]
        needed = {entry.needed for entry in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
        versions = elf.get_section_by_name(".gnu.version_r")
        required = {aux.name for _, auxes in versions.iter_versions() for aux in auxes} if versions else set()
    assert needed <= LIBRARIES[tag.partition("linux")[0] + "linux"], needed
    numbers = [tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in required]
    assert all(number <= GLIBC for number in numbers), required
    return (
        f"requires {', '.join(sorted(needed)) or 'no library'}; {', '.join(sorted(required)) or 'no versioned symbols'}"
    )


def machine_of(tag: str) -> str:
    """Return the processor in a platform tag."""
    return next(name for name in MACHINES if tag.endswith(name))


def check_by_tools(wheel: Path, tag: str) -> None:
    """Check a Linux wheel with auditwheel and abi3audit."""
    with tempfile.TemporaryDirectory() as empty:  # otherwise it searches the libraries of this system
        audit = " ".join(run(sys.executable, "-m", "auditwheel", "show", "--ldpaths", empty, wheel).split())
    if tag.startswith("manylinux"):
        assert re.search(rf'following platform tag: "manylinux_2_(5|12|17)_{machine_of(tag)}"', audit), audit
    else:  # musl accepts any libc.* as itself; auditwheel knows only the name in Alpine
        assert 'shared libraries are required by the wheel: { "libc.so": null }' in audit, audit
    run(sys.executable, "-m", "abi3audit", "--strict", wheel)


def check_here(wheel: Path) -> str:
    """Install a wheel without its dependencies into a new environment, and call the module."""
    code = (
        "import wds_tools.images._native as n; out = bytearray(12);"
        "n.copy_pixels([bytes(range(12))], 0, out, 2, 2); print(list(out))"
    )
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
        output = run(python, "-I", "-c", code)  # -I: do not import from the working directory
    assert output.strip() == "[0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]", output
    return "loaded and called here"


def main(out: Path) -> None:
    """Build all wheels into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
        (source,) = Path(folder).glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", source)  # a package index can show the README
        for tag in TARGETS:
            wheel = pip_wheel(source, Path(folder), f"--config-settings=--build-option=--plat-name={tag}")
            results = [check(wheel, tag)]
            if "linux" in tag:
                check_by_tools(wheel, tag)
            if tag == f"manylinux2014_{platform.machine()}":
                results.append(check_here(wheel))
            sys.stdout.write(f"{wheel.name}: {'; '.join(results)}\n")
            sys.stdout.flush()
            shutil.move(wheel, out / wheel.name)
        shutil.move(source, out / source.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
