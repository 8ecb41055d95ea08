"""`make gpu-wheels`: the wheels that `make gpu` needs on a machine without network, in build/gpu-wheels.

    python tests/gpu_wheels.py [VERSION OF PYTHON]

They are for Linux on x86-64. This package's own wheel is among them, for its compiled module. torch, torchvision, NumPy
and Pillow are not: they are large, and a machine with a GPU has them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from gpu_run import ON_THE_MACHINE, ROOT, WHEELS, name_of, requirements

LIMIT = 60 << 20
"""Maximum size in bytes. With the repository, which has 10 MiB, it stays below limits of 64 MiB for what is copied."""

SMALLER = {"pyarrow": "pyarrow>=18,<21"}  # later wheels are 12 MB larger
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
OWN_PLATFORM = "--config-settings=--build-option=--plat-name=manylinux2014_x86_64"


def pip(*words: str) -> None:
    """Run pip. If it fails, exit."""
    command = [sys.executable, "-m", "pip", *words, "-q", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"make gpu-wheels: pip {words[0]} failed")


def main() -> None:
    version = sys.argv[1] if len(sys.argv) > 1 else "{}.{}".format(*sys.version_info)
    shutil.rmtree(WHEELS, ignore_errors=True)
    names = {name_of(one): one for one in requirements() if name_of(one) not in ON_THE_MACHINE}
    wanted = {**names, **SMALLER}.values()
    tags = [f"--abi=cp{version.replace('.', '')}", "--abi=abi3", "--abi=none"]
    tags += [f"--platform={platform}" for platform in PLATFORMS]
    python = ["--implementation=cp", f"--python-version={version}", "--only-binary=:all:"]
    pip("download", f"--dest={WHEELS}", *python, *tags, *wanted)
    pip("wheel", f"--wheel-dir={WHEELS}", "--no-build-isolation", OWN_PLATFORM, ".")
    wheels = sorted(WHEELS.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.1f} MB  {wheel.name}")
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{len(wheels)} wheels for Python {version}, {size / (1 << 20):.1f} MiB, in {WHEELS}")
    if size > LIMIT:
        sys.exit(f"make gpu-wheels: more than {LIMIT >> 20} MiB")


if __name__ == "__main__":
    main()
