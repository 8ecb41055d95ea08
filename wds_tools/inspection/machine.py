"""Facts about this machine for `doctor`: versions, limits, cores, memory, GPU.

This module must work if packages are missing or broken. So it imports only the standard library and
`options`, and tests the import of packages in another process.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wds_tools.options import RemoteOptions, available_cores, group_files, quota_cores, source_tree, use_native

IMPORTED = ("numpy", "PIL.Image", "pyarrow.parquet", "simplejpeg", "xxhash", "fsspec", "braceexpand", "tqdm", "torch")
NATIVE = "wds_tools.images._native"
SIMD = {"avx2": "AVX2", "neon": "NEON", "none": "no SIMD"}
"""What ``simd()`` of the compiled module returns -> text."""

_PROBE_SECONDS = 120
_PROBE = """
import importlib, json, sys

def cuda(torch):
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    facts["devices"] = count = torch.cuda.device_count()
    try:
        facts["names"] = [torch.cuda.get_device_name(number) for number in range(count)]
        if torch.version.cuda or torch.version.hip:
            torch.cuda.init()  # raises an error that explains why there is no device
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
        found["missing"] = isinstance(error, ModuleNotFoundError) and error.name == name
    print(json.dumps({"name": name, **found}), flush=True)
"""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that wds_tools requires."""

    name: str
    installed: str | None
    min_version: str = ""


@dataclass(frozen=True, slots=True)
class Torch:
    """Facts reported by torch.

    Attributes:
        cuda: Version of CUDA that torch was built for; None if it was built without CUDA.
        hip: The same for AMD's ROCm.
        error: Why no device can be used or no memory can be pinned; "" without an error.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    devices: int = 0
    names: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Imports:
    """The result of importing the packages.

    Attributes:
        broken: Module -> reason why it cannot be imported.
        torch: Facts reported by torch; None if it cannot be imported.
        simd: Instructions that the compiled module uses, a key of `SIMD`; "" if not known.
    """

    broken: dict[str, str] = field(default_factory=dict)
    torch: Torch | None = None
    simd: str = ""
    missing: frozenset[str] = frozenset()


def packages(distribution: str = "wds-tools") -> list[Package]:
    """Return the packages that a distribution requires without extras; none if it is not installed."""
    try:
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        Package(name, _installed(name), min_version)
        for name, min_version, extra in map(parse_requirement, required)
        if not extra
    ]


def parse_requirement(text: str) -> tuple[str, str, str]:
    """Split a requirement into name, minimum version and extra.

    >>> parse_requirement("numpy>=2.0"), parse_requirement("s3fs>=2025.5; extra == 's3'")
    (('numpy', '2.0', ''), ('s3fs', '2025.5', 's3'))
    """
    match = _REQUIREMENT.match(text)
    assert match is not None, text
    name, versions, extra = match.groups()
    minimum = re.search(r">=\s*([\w.]+)", versions)
    return name, minimum[1] if minimum else "", extra or ""


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def imports(*names: str) -> Imports:
    """Import modules in another process, which a broken one may kill, and collect facts about torch."""
    command = [sys.executable, "-c", _PROBE, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)  # noqa: S603
        lines, end = done.stdout.splitlines(), _end_text(done.returncode)
    except subprocess.TimeoutExpired as error:
        lines, end = _text(error.stdout).splitlines(), f"takes more than {_PROBE_SECONDS} s"
    return read_probe([json.loads(line) for line in lines if line.startswith("{")], end)


def _end_text(code: int) -> str:
    return f"ends the process with signal {-code}" if code < 0 else f"ends the process with exit code {code}"


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def read_probe(lines: list[dict[str, Any]], end: str) -> Imports:
    """Read the output of the other process."""
    broken: dict[str, str] = {}
    missing: set[str] = set()
    facts: dict[str, Any] = {}
    for line in lines:
        if "begins" in line:
            broken[line["begins"]] = end
            continue
        del broken[line["name"]]
        if "error" in line:
            broken[line["name"]] = line["error"]
        if line.get("missing"):
            missing.add(line["name"])
        facts |= line
    torch = facts.get("torch")
    torch_facts = Torch(**{**torch, "names": tuple(torch.get("names", ()))}) if torch else None
    return Imports(broken, torch_facts, facts.get("simd", ""), frozenset(missing))


def active_decoder() -> str:
    """Return whether the compiled decoder is used, and with which instructions, for ``wds-tools --version``."""
    try:
        module = importlib.import_module(NATIVE)
        result = Imports(simd=module.simd() if hasattr(module, "simd") else "")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == NATIVE
        result = Imports({NATIVE: str(error)}, missing=frozenset([NATIVE] if missing else []))
    return decoder_text(result, allowed=use_native())


def decoder_text(imports: Imports, *, allowed: bool) -> str:
    """Return as text which decoder is used: the compiled one, or Python only and why.

    >>> decoder_text(Imports(simd="avx2"), allowed=True), decoder_text(Imports(simd="avx2"), allowed=False)
    ('compiled, AVX2', 'Python only: WDS_TOOLS_NATIVE=0')
    """
    if NATIVE in imports.missing:
        return "Python only: not compiled"
    if NATIVE in imports.broken:
        return "Python only: the compiled module cannot be loaded"
    if not allowed:
        return "Python only: WDS_TOOLS_NATIVE=0"
    return ", ".join(filter(None, ["compiled", SIMD.get(imports.simd, imports.simd)]))


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about this machine.

    Attributes:
        native: Whether compiled code may be used (``WDS_TOOLS_NATIVE``).
        source_tree: The source tree that wds_tools is imported from; None if it is installed without it.
        quota: CPU quota of the control group, in cores; None without a quota.
        memory_limit: Memory limit of the control group in bytes; None without a limit.
        shm_bytes: Size of ``/dev/shm``; None if it does not exist.
        open_files: (soft limit, hard limit) of open files for this process.
        gpus: Number of NVIDIA devices in ``/dev``.
        driver: Version of NVIDIA's driver; None if it is not loaded.
        hidden: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        cache_writable: Whether the cache folder can be written to, or created.
        cache_free: Free bytes on the disk of the cache.
    """

    python: tuple[int, int, int]
    packages: list[Package]
    imports: Imports
    native: bool
    source_tree: str | None
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
    remote: RemoteOptions
    cache_writable: bool
    cache_free: int


def inspect_machine() -> Machine:
    """Collect the facts about this machine."""
    remote = RemoteOptions.of()
    existing = next(
        folder for folder in (remote.cache_folder, *remote.cache_folder.absolute().parents) if folder.exists()
    )
    return Machine(
        python=sys.version_info[:3],
        packages=packages(),
        imports=imports(*IMPORTED, NATIVE),
        native=use_native(),
        source_tree=source_tree(),
        cores=os.cpu_count() or 1,
        usable_cores=available_cores(),
        quota=quota_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_limit=memory_limit(),
        shm_bytes=_size_of("/dev/shm"),  # noqa: S108 - only the size is read
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        driver=driver_version(),
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
        remote=remote,
        cache_writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        cache_free=shutil.disk_usage(existing).free,
    )


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit of this process's control group in bytes; None without a limit."""
    texts = group_files("memory.max", root)
    with contextlib.suppress(OSError):  # cgroup version 1, where a container sees its own group here
        texts.append((root / "sys/fs/cgroup/memory/memory.limit_in_bytes").read_text())
    limits = [int(text) for text in texts if text.strip().isdigit()]
    return min((limit for limit in limits if limit < 1 << 60), default=None)  # larger: "no limit" in version 1


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of NVIDIA's driver; None if it is not loaded."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else "of unknown version"


def _size_of(folder: str) -> int | None:
    """Return the size of a file system; None if the folder does not exist."""
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None
