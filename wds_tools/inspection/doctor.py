"""`wds-tools doctor`: is this machine fit for it? Each check is a function of facts, which `machine` gathers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from wds_tools.inspection.machine import NATIVE, Imports, Machine, Package, Torch, describe_path
from wds_tools.wording import counted, human_bytes

Status = Literal["ok", "note", "problem"]

LEAST_PYTHON = (3, 11)
HOLES = (
    # https://pillow.readthedocs.io/en/stable/releasenotes/13.0.0.html
    ("pillow", "13.0.0", "problem", "a damaged JPEG can run code (heap overflow in the decoder, CVE-2026-112403)"),
    # https://github.com/aio-libs/aiohttp/security/advisories/GHSA-h4cc-hm5h-fmm9
    ("aiohttp", "3.14.4", "note", "a malicious server can block its readers (CVE-2026-128131)"),
)
"""Package, first version without the hole, how bad it is here, and what it is."""

MAPS_OF_A_WORKER = 512
"""Shards that a process may have open at a time: `storage.local.MAX_OPEN_MAPS`."""

_FILES_PER_WORKER = 5  # descriptors in the main process; 4.3 were counted with 8 workers
_OTHER_FILES = 64
_MAIN_BYTES = 1_000_000_000  # the main process with torch: 600 MB were measured
_WORKER_BYTES = 200_000_000  # what a worker has of its own: 12 to 200 MB were measured
_BATCH_BYTES = 256 * 3 * 224 * 224
_BATCHES_PER_WORKER = 2
_NAME_WIDTH, _STATUS_WIDTH = 9, 9


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        name: Of the check.
        status: ``problem`` if something does not work or is not safe, ``note`` if it could be better.
        found: What there is.
        remedy: What to do; "" if nothing is.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON can hold it."""
        return asdict(self)


def examine(machine: Machine) -> list[Finding]:
    """Return what every check finds."""
    return [
        check_python(machine.python),
        check_packages(machine.packages, machine.imports),
        check_security(machine.packages),
        check_fast_path(machine.imports, native=machine.native),
        check_cores(machine.cores, machine.usable_cores, machine.quota),
        check_memory(machine.memory_bytes, machine.memory_limit, machine.usable_cores),
        check_shm(machine.shm_bytes, machine.usable_cores),
        check_open_files(*machine.open_files, machine.usable_cores),
        check_gpu(machine.imports.torch, gpus=machine.gpus, driver=machine.driver, hidden=machine.hidden),
        check_cache(
            machine.cache.folder,
            writable=machine.cache_writable,
            free=machine.cache_free,
            limit=machine.cache.limit_bytes,
        ),
        check_extras(machine.packages),
    ]


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared.

    >>> numbers("2.15.0+cu132"), numbers("13.0.0rc1") >= numbers("13.0")
    ((2, 15, 0), True)
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def check_python(version: tuple[int, ...]) -> Finding:
    """Check the version of Python."""
    found = ".".join(map(str, version))
    if version < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        return Finding("python", "problem", found, f"install Python {least} or newer")
    return Finding("python", "ok", found)


def check_packages(packages: Sequence[Package], imports: Imports) -> Finding:
    """Check that the packages that are always needed are there, new enough, and can be imported."""
    needed = [package for package in packages if not package.extra]
    if not needed:
        found, remedy = "wds-tools itself is not installed, so the versions it needs are not known", "pip install ."
        return Finding("packages", "note", found, remedy) if not _broken(imports) else _cannot_import(imports)
    bad = [(package, f"{package.name} {_how_bad(package)}") for package in needed if _how_bad(package)]
    if bad:
        remedy = " ".join(f"'{package.name}>={package.least}'" for package, _ in bad)
        return Finding("packages", "problem", ", ".join(words for _, words in bad), f"pip install {remedy}")
    if _broken(imports):
        return _cannot_import(imports)
    shown = ", ".join(f"{p.name} {p.installed}" for p in needed if p.name in ("torch", "pillow", "numpy", "pyarrow"))
    return Finding("packages", "ok", shown)


def _how_bad(package: Package) -> str:
    if package.installed is None:
        return "is missing"
    if numbers(package.installed) < numbers(package.least):
        return f"{package.installed} is too old"
    return ""


def _broken(imports: Imports) -> dict[str, str]:
    return {name: reason for name, reason in imports.broken.items() if name != NATIVE}


def _cannot_import(imports: Imports) -> Finding:
    broken = _broken(imports)
    found = "; ".join(f"{name} cannot be imported: {_one_line(reason)}" for name, reason in broken.items())
    remedy = f"install again: pip install --force-reinstall {' '.join(map(_distribution, broken))}"
    return Finding("packages", "problem", found, remedy)


def _distribution(module: str) -> str:
    name = module.partition(".")[0]
    return "pillow" if name == "PIL" else name


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def check_security(packages: Sequence[Package]) -> Finding:
    """Check for versions with holes that matter here."""
    there = {package.name: package.installed for package in packages if package.installed}
    holes = [hole for hole in HOLES if hole[0] in there and numbers(there[hole[0]]) < numbers(hole[1])]
    if not holes:
        return Finding("security", "ok", "no version with a hole that is known here")
    status: Status = "problem" if any(bad == "problem" for _, _, bad, _ in holes) else "note"
    found = "; ".join(f"{name} {there[name]}: {what}" for name, _, _, what in holes)
    good = " ".join(f"'{name}>={version}'" for name, version, _, _ in holes)
    return Finding("security", status, found, f"pip install {good}")


def check_fast_path(imports: Imports, *, native: bool) -> Finding:
    """Check what makes decoding and packing fast."""
    path = describe_path(imports.broken, imports.simd, allowed=native)
    if NATIVE in imports.broken or not native:
        reason = _one_line(imports.broken.get(NATIVE, ""))
        found = f"{path}: batches take longer"
        if reason and "ModuleNotFoundError" not in reason:
            found = f"{found} ({reason})"
        remedy = "install a C compiler, then wds-tools again" if NATIVE in imports.broken else "unset WDS_TOOLS_NATIVE"
        return Finding("fast path", "note", found, remedy)
    return Finding("fast path", "ok", path)


def check_cores(cores: int, usable: int, quota: int | None) -> Finding:
    """Check how many cores there are for workers."""
    if usable == cores:
        found = f"{counted(cores, 'core')}"
    else:
        why = f"CPU quota of {quota}" if quota == usable else "CPU affinity"
        found = f"{usable} of the machine's {counted(cores, 'core')} ({why}); num_workers is chosen by these"
    if usable == 1:
        return Finding("cores", "note", found, "give it two or more: workers decode while the training loop runs")
    return Finding("cores", "ok", found)


def check_memory(total: int, limit: int | None, cores: int) -> Finding:
    """Check the memory for the main process and a worker for each core."""
    size, needed = min(total, limit or total), _MAIN_BYTES + cores * _WORKER_BYTES
    found = human_bytes(size)
    if size < total:
        found += f", the limit of the container; the machine has {human_bytes(total)}"
    if size < needed:
        remedy = f"give it {human_bytes(needed)} or more, or use fewer workers: num_workers=1"
        found += f"; {counted(cores, 'worker')} and the main process may take {human_bytes(needed)}"
        return Finding("memory", "problem", found, remedy)
    return Finding("memory", "ok", found)


def check_shm(size: int | None, cores: int) -> Finding:
    """Check the room that torch's DataLoader needs; make_loader needs none of it."""
    needed = _BATCH_BYTES * (_BATCHES_PER_WORKER * cores + 1)
    there = "none" if size is None else human_bytes(size)
    if size is None or size < needed:
        found = f"{there}; make_loader needs none, StreamingDataset in torch's DataLoader about {human_bytes(needed)}"
        return Finding("shm", "note", found, "with Docker: --shm-size=8g, or --ipc=host")
    return Finding("shm", "ok", f"{there} in /dev/shm")


def check_open_files(soft: int, hard: int, cores: int) -> Finding:
    """Check the limit of open files against what workers need: each keeps up to `MAPS_OF_A_WORKER` shards open."""
    needed = MAPS_OF_A_WORKER + _FILES_PER_WORKER * cores + _OTHER_FILES
    if soft < 0 or soft >= needed:
        return Finding("files", "ok", "no limit" if soft < 0 else f"{soft:,} may be open")
    found = f"{soft:,} may be open; datasets of many shards need {needed:,}"
    remedy = f"ulimit -n {needed}" if hard < 0 or hard >= needed else "raise the limit in /etc/security/limits.conf"
    return Finding("files", "problem", found, remedy)


def check_gpu(torch: Torch | None, *, gpus: int, driver: str | None, hidden: str | None) -> Finding:
    """Check that torch can use the GPU, if there is one."""
    there = f"{counted(gpus, 'NVIDIA device')}, driver {driver or 'not loaded'}"
    if torch is None:
        return Finding("gpu", "note", f"{there if gpus else 'not known'}: torch cannot be imported", "see packages")
    if not torch.devices:
        return _no_device(torch, there, gpus=gpus, driver=driver, hidden=hidden)
    if torch.error:
        remedy = "is it in use by another process, or the locked memory limited (ulimit -l unlimited)?"
        return Finding("gpu", "problem", f"{there}: {_one_line(torch.error)}", remedy)
    version = f", driver {driver}" if driver else ""
    return Finding("gpu", "ok", f"{', '.join(torch.names)} ({_built_for(torch)}{version})")


def _no_device(torch: Torch, there: str, *, gpus: int, driver: str | None, hidden: str | None) -> Finding:
    if not gpus and driver is None:
        return Finding("gpu", "ok", "none: batches stay in memory")
    if not gpus:
        return Finding("gpu", "note", f"driver {driver}, but no device in this container", "docker run --gpus all")
    if hidden is not None and hidden.strip() in ("", "-1"):
        found = f"{there}, hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Finding("gpu", "note", found, "unset CUDA_VISIBLE_DEVICES")
    if torch.cuda is None and torch.hip is None:
        found = f"{there}, but torch {torch.version} is built without CUDA"
        return Finding("gpu", "problem", found, "install torch for CUDA: https://pytorch.org/get-started")
    reason = _one_line(torch.error) or "no reason given"
    found = f"{there}, but torch {torch.version} ({_built_for(torch)}) cannot use it: {reason}"
    return Finding("gpu", "problem", found, "update the driver, or install torch for an older CUDA")


def _built_for(torch: Torch) -> str:
    return f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "no CUDA"


def check_cache(folder: Path, *, writable: bool, free: int, limit: int) -> Finding:
    """Check the place for blocks of remote shards, and for shards on their way to a URL."""
    remedy = "set WDS_TOOLS_CACHE_DIR to a folder that is writable"
    if not writable:
        return Finding("cache", "problem", f"{folder} cannot be written to", remedy)
    found = f"{folder}, {human_bytes(free)} free; it takes up to {human_bytes(limit)}"
    if free < limit:
        return Finding("cache", "note", found, "make room, or set WDS_TOOLS_CACHE_BYTES or WDS_TOOLS_CACHE_DIR")
    return Finding("cache", "ok", found)


def check_extras(packages: Sequence[Package]) -> Finding:
    """Tell which optional parts are there."""
    parts: dict[str, list[Package]] = {}
    for package in packages:
        if package.extra:
            parts.setdefault(package.extra, []).append(package)
    lacking = {extra: [package for package in some if _how_bad(package)] for extra, some in parts.items()}
    found = ", ".join(extra for extra, bad in lacking.items() if not bad) or "none"
    missing = ",".join(extra for extra, bad in lacking.items() if bad)
    if not missing:
        return Finding("extras", "ok", found)
    remedy = f"if you need them: pip install 'wds-tools[{missing}]'"
    old = [f"{p.name} {_how_bad(p)}" for bad in lacking.values() for p in bad if p.installed]
    return Finding("extras", "note" if old else "ok", "; ".join([found, f"not there: {missing}", *old]), remedy)


def render(findings: Sequence[Finding]) -> str:
    """Write the findings as a table, and how many ask for something."""
    return "\n".join([*(line for finding in findings for line in _lines(finding)), "", _summary(findings)])


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.name:{_NAME_WIDTH}}  {finding.status:{_STATUS_WIDTH}}{finding.found}"
    if finding.remedy:
        yield f"{'':{_NAME_WIDTH + _STATUS_WIDTH + 2}}-> {finding.remedy}"


def _summary(findings: Sequence[Finding]) -> str:
    problems = sum(finding.status == "problem" for finding in findings)
    notes = sum(finding.status == "note" for finding in findings)
    if not problems and not notes:
        return "all is well"
    return f"{counted(problems, 'problem')}, {counted(notes, 'note')}"
