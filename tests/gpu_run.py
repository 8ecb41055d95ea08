"""`make gpu`: the tests and the benchmark that need a GPU, on a machine that may have no network.

    python tests/gpu_run.py [--wheels FOLDER] [ARGUMENTS OF PYTEST]

The machine needs Python, torch, torchvision, NumPy and Pillow. Everything else may come from a folder of wheels, which
`make gpu-wheels` makes on another machine. They are unpacked next to it: pip is not needed, and nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "build" / "gpu-wheels"
ON_THE_MACHINE = ("torch", "torchvision", "numpy", "pillow")
FOR_THE_TESTS = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")
IMPORTED_BY_PACKAGES = ("pyyaml",)  # by webdataset
MODULES = {"pillow": "PIL", "pyyaml": "yaml"}
"""Module of a package, if it has another name."""

REMEDY = "run `make gpu-wheels` on a machine with network, and copy build/gpu-wheels to this one"
TESTS_SECONDS, BENCHMARK_SECONDS = 240, 280


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests and the benchmark that need a GPU.")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of wheels that are used")
    args, words = parser.parse_known_args()
    site = unpacked(args.wheels)
    sys.path[:0] = [str(site), str(ROOT)]
    problems = problems_of_wheels(args.wheels) or problems_of_packages()
    if not problems:
        take_compiled_module(args.wheels)
        problems = problems_of_module() or problems_of_device()
    if problems:
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"make gpu: {sys.executable} (Python {version}) cannot run it", *problems, sep="\n", file=sys.stderr)
        return 1
    commands = {"tests": (tests(*words), TESTS_SECONDS), "benchmark": (benchmark(), BENCHMARK_SECONDS)}
    return max([run(name, *command, environment(site)) for name, command in commands.items()])


def requirements() -> list[str]:
    """Return the requirements of the package and of the tests, such as ``click>=8.2``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *FOR_THE_TESTS, *IMPORTED_BY_PACKAGES]


def name_of(requirement: str) -> str:
    """Return the name of the package in a requirement."""
    return re.match(r"[\w-]+", requirement)[0]


def unpacked(wheels: Path) -> Path:
    """Unpack the wheels, except that of this package, into a new folder and return it."""
    site = wheels.with_name("gpu-site")
    shutil.rmtree(site, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        if not wheel.name.startswith("wds_tools-"):
            zipfile.ZipFile(wheel).extractall(site)
    return site


def problems_of_wheels(wheels: Path) -> list[str]:
    """Return what is wrong if the wheels are for another version of Python."""
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    others = {wheel.name.split("-")[-3] for wheel in wheels.glob("*-cp3*-cp3*-*.whl")} - {here}
    if not others:
        return []
    version = "{}.{}".format(*sys.version_info)
    return [
        f"{wheels} has wheels for {', '.join(others)}: make gpu-wheels GPU_PYTHON={version}, or name another PYTHON="
    ]


def problems_of_packages() -> list[str]:
    """Return which packages are missing or too old, and what to do about it."""
    found = {name_of(one): problem_of(one) for one in requirements()}
    problems = [f"  {problem}" for problem in found.values() if problem]
    if any(found[name] for name in ON_THE_MACHINE):
        problems.append(f"install {', '.join(ON_THE_MACHINE)}, or name a Python that has them: make gpu PYTHON=...")
    if any(problem for name, problem in found.items() if name not in ON_THE_MACHINE):
        problems.append(REMEDY)
    return problems


def problem_of(requirement: str) -> str:
    """Import a package. Return why it cannot be used, or ""."""
    name = name_of(requirement)
    try:
        importlib.import_module(MODULES.get(name, name))
        version = importlib.metadata.version(name)
    except Exception as error:  # also OSError, of a library that is missing
        return f"{requirement}: {error}"
    least = re.search(r">=([\d.]+)", requirement)
    return f"{requirement}: this is {version}" if least and numbers(version) < numbers(least[1]) else ""


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, to compare it."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def take_compiled_module(wheels: Path) -> None:
    """If the compiled module is missing, take it from the wheel of this package, or build it."""
    if list((ROOT / "wds_tools" / "images").glob("_native*.so")):
        return
    for wheel in wheels.glob("wds_tools-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(ROOT, [name for name in archive.namelist() if name.endswith(".so")])
        return
    command = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_ext", "--inplace"]
    backend = str(ROOT / "wds_tools" / "images" / "csrc")
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": backend}, check=False)


def problems_of_module() -> list[str]:
    """Return what is wrong with the compiled module."""
    try:
        importlib.import_module("wds_tools.images._native")
    except ImportError as error:
        return [f"the compiled module is missing ({error})", f"{REMEDY}, or install a C compiler and setuptools"]
    return []


def problems_of_device() -> list[str]:
    """Return what is missing if torch has no CUDA device."""
    import torch

    if torch.cuda.is_available():
        return []
    return [f"it needs a CUDA device: torch {torch.__version__} sees none (see `wds-tools doctor`)"]


def environment(site: Path) -> dict[str, str]:
    """Return the environment of the tests and the benchmark."""
    path = os.pathsep.join(map(str, (site, ROOT, ROOT / "tests")))
    return {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}


def tests(*words: str) -> list[str]:
    """Return the command that runs the tests, without the configuration of the suite.

    That makes warnings errors, and another version of torch may warn. And its fixtures need more packages.
    """
    options = ["-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider", "--noconftest", "-p", "photo_fixtures"]
    marker = "markers=gpu: needs a CUDA device"
    return [sys.executable, "-m", "pytest", *options, "-o", marker, "-rfEs", *words, "tests/loading/test_cuda.py"]


def benchmark() -> list[str]:
    """Return the command that runs the benchmark."""
    return [sys.executable, "tests/gpu_benchmark.py"]


def run(name: str, command: list[str], seconds: int, variables: dict[str, str]) -> int:
    """Run a command and return its exit status."""
    try:
        return abs(subprocess.run(command, cwd=ROOT, env=variables, timeout=seconds, check=False).returncode)
    except subprocess.TimeoutExpired:
        print(f"make gpu: the {name} did not end within {seconds} s", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
