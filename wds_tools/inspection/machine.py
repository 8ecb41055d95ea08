"""What this machine has, for `doctor`: versions, limits, cores, memory, GPU. Facts only, and nothing but the library.

Everything here must work where packages are missing or broken: those are imported by another process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wds_tools.options import CacheOptions, available_cores, group_files, quota_cores, use_native

IMPORTED = ("numpy", "PIL.Image", "pyarrow.parquet", "simplejpeg", "xxhash", "fsspec", "braceexpand", "tqdm", "torch")
NATIVE = "wds_tools.images._native"
SIMD = {"avx2": "AVX2", "neon": "NEON", "none": "no SIMD"}
"""Which instructions the compiled path says it uses, and how that is written."""

_PROBE_SECONDS = 120
_PROBE = """
import importlib, json, sys

def cuda(torch):
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    facts["devices"] = count = torch.cuda.device_count()
    try:
        facts["names"] = [torch.cuda.get_device_name(number) for number in range(count)]
        if torch.version.cuda or torch.version.hip:
            torch.cuda.init()  # says why there is no device
        if count:
            torch.empty(1 << 20, pin_memory=True)
    except Exception as error:
        facts["error"] = str(error)
    return facts

for name in sys.argv[1:]:
    print(json.dumps({"begins": name}), flush=True)
    try:
        module, found = importlib.import_module(name), {}
        if name == "torch":
            found["torch"] = cuda(module)
        if name.endswith("._native") and hasattr(module, "simd"):
            found["simd"] = module.simd()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps({"name": name, **found}), flush=True)
"""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that wds_tools asks for.

    Attributes:
        name: As pip knows it.
        installed: Its version, None if it is not there.
        least: The oldest version that will do, "" for any.
        extra: The extra that it belongs to; "" for those that are always needed.
    """

    name: str
    installed: str | None
    least: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Torch:
    """What torch sees.

    Attributes:
        version: Of torch.
        cuda: The version of CUDA that it was built for, None if it was not.
        hip: The same for AMD's ROCm.
        devices: How many it can use.
        names: Of the devices.
        error: Why no device can be used, or no memory be pinned; "" if all went well.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    devices: int = 0
    names: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Imports:
    """What became of importing the packages.

    Attributes:
        broken: Name of a module to the reason why it cannot be imported.
        torch: None if it cannot be imported.
        simd: What the compiled path says of itself: one of `SIMD`; "" if it says nothing.
    """

    broken: dict[str, str] = field(default_factory=dict)
    torch: Torch | None = None
    simd: str = ""


def packages(distribution: str = "wds-tools") -> list[Package]:
    """Return what a distribution asks for, without the extras for its tests; nothing if it is not installed itself."""
    try:
        wanted = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        Package(name, _installed(name), least, extra)
        for name, least, extra in map(parse_requirement, wanted)
        if not extra.startswith("test")
    ]


def parse_requirement(text: str) -> tuple[str, str, str]:
    """Split a requirement into name, oldest version and extra.

    >>> parse_requirement("numpy>=2.0"), parse_requirement("s3fs>=2025.5; extra == 's3'")
    (('numpy', '2.0', ''), ('s3fs', '2025.5', 's3'))
    """
    match = _REQUIREMENT.match(text)
    assert match is not None, text
    name, versions, extra = match.groups()
    least = re.search(r">=\s*([\w.]+)", versions)
    return name, least[1] if least else "", extra or ""


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def imports(*names: str) -> Imports:
    """Import modules in a process of their own, which a broken one may end, and look at what torch sees."""
    command = [sys.executable, "-c", _PROBE, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)  # noqa: S603
        lines, end = done.stdout.splitlines(), _how_it_ended(done.returncode)
    except subprocess.TimeoutExpired as error:
        lines, end = _text(error.stdout).splitlines(), f"takes more than {_PROBE_SECONDS} s"
    return read_probe([json.loads(line) for line in lines if line.startswith("{")], end)


def _how_it_ended(code: int) -> str:
    return f"ends the process with signal {-code}" if code < 0 else f"ends the process with exit code {code}"


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def read_probe(told: list[dict[str, Any]], end: str) -> Imports:
    """Return what the other process has told; a module that it began and never finished has ended it so."""
    broken: dict[str, str] = {}
    found: dict[str, Any] = {}
    for line in told:
        if "begins" in line:
            broken[line["begins"]] = end
            continue
        del broken[line["name"]]
        if "error" in line:
            broken[line["name"]] = line["error"]
        found |= line
    torch = found.get("torch")
    seen = Torch(**{**torch, "names": tuple(torch.get("names", ()))}) if torch else None
    return Imports(broken, seen, found.get("simd", ""))


def compiled_path() -> str:
    """Return which path decodes here, and with which instructions, for ``wds-tools --version``."""
    broken: dict[str, str] = {}
    simd = ""
    try:
        module = importlib.import_module(NATIVE)
        simd = module.simd() if hasattr(module, "simd") else ""
    except ImportError as error:
        broken[NATIVE] = f"{type(error).__name__}: {error}"
    return describe_path(broken, simd, allowed=use_native())


def describe_path(broken: Mapping[str, str], simd: str, *, allowed: bool) -> str:
    """Say in a few words which path decodes.

    >>> describe_path({}, "avx2", allowed=True), describe_path({}, "avx2", allowed=False)
    ('compiled, AVX2', 'Python only: WDS_TOOLS_NATIVE=0')

    Args:
        broken: `Imports.broken`.
        simd: `Imports.simd`.
        allowed: Compiled code may be used.
    """
    if NATIVE in broken:
        there = not broken[NATIVE].startswith("ModuleNotFoundError")
        return "Python only: the compiled module cannot be loaded" if there else "Python only: not compiled"
    if not allowed:
        return "Python only: WDS_TOOLS_NATIVE=0"
    return ", ".join(filter(None, ["compiled", SIMD.get(simd, simd)]))


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found.

    Attributes:
        python: Its version.
        packages: Those that wds_tools asks for.
        imports: What became of importing them, and of the compiled path.
        native: Compiled code may be used (``WDS_TOOLS_NATIVE``).
        cores: That the machine has.
        usable_cores: That this process may use.
        quota: Cores whose time its control group may use; None without a limit.
        memory_bytes: Of the machine.
        memory_limit: Bytes that its control group may use; None without a limit.
        shm_bytes: Size of ``/dev/shm``; None where there is none.
        open_files: (now, at most) for this process.
        gpus: Devices of NVIDIA that this machine, or container, shows.
        driver: Version of NVIDIA's driver; None if it is not loaded.
        hidden: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        cache: Where blocks of remote shards go, and how many bytes.
        cache_writable: That folder can be written to, or made.
        cache_free: Free bytes there.
    """

    python: tuple[int, int, int]
    packages: list[Package]
    imports: Imports
    native: bool
    cores: int
    usable_cores: int
    quota: int | None
    memory_bytes: int
    memory_limit: int | None
    shm_bytes: int | None
    open_files: tuple[int, int]
    gpus: int
    driver: str | None
    hidden: str | None
    cache: CacheOptions
    cache_writable: bool
    cache_free: int

    @property
    def memory(self) -> int:
        """Bytes that this process may use."""
        return min(self.memory_bytes, self.memory_limit or self.memory_bytes)


def look() -> Machine:
    """Return what this machine has."""
    cache = CacheOptions.of()
    there = next(folder for folder in (cache.folder, *cache.folder.absolute().parents) if folder.exists())
    return Machine(
        python=sys.version_info[:3],
        packages=packages(),
        imports=imports(*IMPORTED, NATIVE),
        native=use_native(),
        cores=os.cpu_count() or 1,
        usable_cores=available_cores(),
        quota=quota_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_limit=memory_limit(),
        shm_bytes=_size_of("/dev/shm"),  # noqa: S108 - its size is asked, nothing is written
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        driver=driver_version(),
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cache=cache,
        cache_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        cache_free=shutil.disk_usage(there).free,
    )


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process's control group may use; None where it has no limit.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    texts = group_files("memory.max", root)
    with contextlib.suppress(OSError):  # version 1; in a container that is its own group
        texts.append((root / "sys/fs/cgroup/memory/memory.limit_in_bytes").read_text())
    limits = [int(text) for text in texts if text.strip().isdigit()]
    return min((limit for limit in limits if limit < 1 << 60), default=None)  # version 1 writes "no limit" so


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of NVIDIA's driver, None if it is not loaded.

    Args:
        root: Where ``proc`` is.
    """
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else "of unknown version"


def _size_of(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None
