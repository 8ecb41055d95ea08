"""`wds-tools doctor`: checks of this machine, as functions of the facts that `machine` collects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from wds_tools.inspection.machine import NATIVE, Imports, Machine, Package, Torch, decoder_text
from wds_tools.wording import NOT_ON_SERVERS, counted, human_bytes

Status = Literal["ok", "note", "problem"]

MIN_PYTHON = (3, 11)

OPEN_SHARDS_PER_PROCESS = 2048
"""Shards that a process may have open at the same time: the value of `storage.local.MAX_OPEN_MAPS`."""

_FILES_PER_WORKER = 5  # descriptors in the main process; 4.3 were counted with 8 workers
_OTHER_FILES = 64
_MIN_MEMORY = 2_000_000_000  # main process with torch, 600 MB, and workers, 12 to 200 MB each, were measured
_DOCKER_SHM = 64 << 20  # the default of Docker
_NAME_WIDTH, _STATUS_WIDTH = 9, 9


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        status: ``problem`` if something does not work, ``note`` if it could be better.
        remedy: What to do; empty if nothing needs to be done.
        details: Further values for JSON, by their names.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        values = {"name": self.name, "status": self.status, "found": self.found, "remedy": self.remedy}
        return {**values, **self.details}


def examine(machine: Machine) -> list[Finding]:
    """Return the findings of all checks."""
    return [
        check_python(machine.python),
        check_packages(machine.packages, machine.imports, source_tree=machine.source_tree),
        check_fast_path(machine.imports, native=machine.native, source_tree=machine.source_tree),
        check_cores(machine.cores, machine.usable_cores, machine.quota),
        check_memory(machine.memory_bytes, machine.memory_limit),
        check_shm(machine.shm_bytes),
        check_open_files(*machine.open_files, machine.usable_cores),
        check_gpu(machine.imports.torch, gpus=machine.gpus, driver=machine.driver, hidden=machine.hidden),
        check_cache(
            machine.remote.cache_folder,
            writable=machine.cache_writable,
            free=machine.cache_free,
            limit=machine.remote.cache_bytes,
        ),
    ]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons.

    >>> version_numbers("2.15.0+cu132"), version_numbers("13.0.0rc1") >= version_numbers("13.0")
    ((2, 15, 0), True)
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def check_python(version: tuple[int, ...]) -> Finding:
    """Check the version of Python."""
    text = ".".join(map(str, version))
    if version < MIN_PYTHON:
        minimum = ".".join(map(str, MIN_PYTHON))
        return Finding("python", "problem", text, f"install Python {minimum} or newer")
    return Finding("python", "ok", text)


def check_packages(packages: Sequence[Package], imports: Imports, *, source_tree: str | None = None) -> Finding:
    """Check that the required packages are installed, new enough, and can be imported."""
    if not packages:
        text = "wds-tools is not installed, so the versions that it requires are not known"
        remedy = _install(source_tree) if source_tree else "install wds-tools with pip"
        return Finding("packages", "note", text, remedy) if not _broken_packages(imports) else _import_finding(imports)
    problems = {package: problem for package in packages if (problem := _version_problem(package))}
    if problems:
        remedy = " ".join(f"'{package.name}>={package.min_version}'" for package in problems)
        text = ", ".join(f"{package.name} {problem}" for package, problem in problems.items())
        if _is_without_loader(problems, imports):
            text = f"{text}: packing, verifying and serving work, loaders do not"
            return Finding("packages", "note", text, f"if you need them: pip install {remedy}")
        return Finding("packages", "problem", text, f"pip install {remedy}")
    if _broken_packages(imports):
        return _import_finding(imports)
    shown = ", ".join(f"{p.name} {p.installed}" for p in packages if p.name in ("torch", "pillow", "numpy", "pyarrow"))
    return Finding("packages", "ok", shown)


def _is_without_loader(problems: Mapping[Package, str], imports: Imports) -> bool:
    """Return whether torch is left out on purpose, as on a server that only packs and serves."""
    missing = {package.name for package in problems if package.installed is None}
    others = set(_broken_packages(imports)) | {package.name for package in problems}
    return "torch" in missing and others <= set(NOT_ON_SERVERS) and len(missing) == len(problems)


def _version_problem(package: Package) -> str:
    """Return what is wrong with the installed version; empty if nothing is."""
    if package.installed is None:
        return "is missing"
    if version_numbers(package.installed) < version_numbers(package.min_version):
        return f"{package.installed} is too old"
    return ""


def _broken_packages(imports: Imports) -> dict[str, str]:
    return {name: reason for name, reason in imports.broken.items() if name != NATIVE}


def _import_finding(imports: Imports) -> Finding:
    broken = _broken_packages(imports)
    text = "; ".join(f"{name} cannot be imported: {_one_line(reason)}" for name, reason in broken.items())
    remedy = f"install again: pip install --force-reinstall {' '.join(map(_distribution, broken))}"
    return Finding("packages", "problem", text, remedy)


def _distribution(module: str) -> str:
    """Return the name of the package for pip that contains a module."""
    name = module.partition(".")[0]
    return "pillow" if name == "PIL" else name


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def check_fast_path(imports: Imports, *, native: bool, source_tree: str | None = None) -> Finding:
    """Check that the compiled decoder is used."""
    text = f"{decoder_text(imports, allowed=native)}: loading is slower"
    if NATIVE in imports.broken:
        remedy = "install a C compiler, then wds-tools again"
        if NATIVE not in imports.missing:
            text, remedy = f"{text} ({_one_line(imports.broken[NATIVE])})", "install wds-tools again"
        if source_tree:
            text, remedy = f"{text}; Python imports the source tree {source_tree}", _install(source_tree)
        return Finding("fast path", "note", text, remedy)
    if not native:
        return Finding("fast path", "note", text, "unset WDS_TOOLS_NATIVE")
    return Finding("fast path", "ok", decoder_text(imports, allowed=native))


def _install(source_tree: str) -> str:
    """Return the command that installs wds_tools from a source tree, and compiles its module there."""
    return f"pip install --editable {quote(source_tree)}"


def check_cores(cores: int, usable: int, quota: int | None) -> Finding:
    """Check how many cores workers can use."""
    if usable == cores:
        text = f"{counted(cores, 'core')}"
    else:
        reason = f"CPU quota of {quota}" if quota == usable else "CPU affinity"
        text = f"{usable} of the machine's {counted(cores, 'core')} ({reason}); num_workers='auto' uses this number"
    if usable == 1:
        return Finding("cores", "note", text, "provide two or more: workers decode while the training loop runs")
    return Finding("cores", "ok", text)


def check_memory(total: int, limit: int | None) -> Finding:
    """Check whether the container limits the memory, and that there is enough for torch."""
    size = min(total, limit or total)
    text = human_bytes(size)
    if size < total:
        text += f", the limit of the container; the machine has {human_bytes(total)}"
    if size < _MIN_MEMORY:
        remedy = f"provide {human_bytes(_MIN_MEMORY)} or more, or use few workers: num_workers=1"
        return Finding("memory", "problem", text, remedy)
    return Finding("memory", "ok", text)


def check_shm(size: int | None) -> Finding:
    """Check the shared memory that torch's DataLoader needs; make_loader does not need any."""
    if size is None or size <= _DOCKER_SHM:
        text = f"{'none' if size is None else human_bytes(size)}; make_loader needs none, torch's DataLoader does"
        return Finding("shm", "note", text, "with Docker: --shm-size=8g, or --ipc=host")
    return Finding("shm", "ok", f"{human_bytes(size)} in /dev/shm")


def check_open_files(soft: int, hard: int, cores: int) -> Finding:
    """Check the limit of open files, which loaders raise to ``hard``, for `OPEN_SHARDS_PER_PROCESS` maps."""
    needed = OPEN_SHARDS_PER_PROCESS + _FILES_PER_WORKER * cores + _OTHER_FILES
    if soft < 0 or soft >= needed:
        return Finding("files", "ok", "no limit" if soft < 0 else f"{soft:,} may be open")
    if hard < 0 or hard >= needed:
        raised = "any number" if hard < 0 else f"{hard:,}"
        return Finding("files", "ok", f"{soft:,} may be open; loaders raise that to {raised}")
    text = f"{hard:,} may be open; datasets of many shards or blocks need {needed:,}, with fewer they are slower"
    return Finding("files", "problem", text, "raise the limit in /etc/security/limits.conf")


def check_gpu(torch: Torch | None, *, gpus: int, driver: str | None, hidden: str | None) -> Finding:
    """Check that torch can use the GPU, if there is one."""
    devices = f"{counted(gpus, 'NVIDIA device')}, driver {driver or 'not loaded'}"
    if torch is None:
        text = f"{devices if gpus else 'not known'}: torch cannot be imported"
        return Finding("gpu", "note", text, "see packages")
    if not torch.devices:
        return _no_device(torch, devices, gpus=gpus, driver=driver, hidden=hidden)
    if torch.error:
        remedy = "check with nvidia-smi whether another process uses the GPU or its memory"
        return Finding("gpu", "problem", f"{devices}: {_one_line(torch.error)}", remedy)
    version = f", driver {driver}" if driver else ""
    return Finding("gpu", "ok", f"{', '.join(torch.names)} ({_built_for(torch)}{version})")


def _no_device(torch: Torch, devices: str, *, gpus: int, driver: str | None, hidden: str | None) -> Finding:
    """Explain why torch has no device."""
    if not gpus and driver is None:
        return Finding("gpu", "ok", "none: batches stay in memory")
    if not gpus:
        return Finding("gpu", "note", f"driver {driver}, but no device in this container", "docker run --gpus all")
    if hidden is not None and hidden.strip() in ("", "-1"):
        text = f"{devices}, hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Finding("gpu", "note", text, "unset CUDA_VISIBLE_DEVICES")
    if torch.cuda is None and torch.hip is None:
        text = f"{devices}, but torch {torch.version} is built without CUDA"
        return Finding("gpu", "problem", text, "install torch for CUDA: https://pytorch.org/get-started")
    reason = _one_line(torch.error) or "no reason given"
    text = f"{devices}, but torch {torch.version} ({_built_for(torch)}) cannot use it: {reason}"
    return Finding("gpu", "problem", text, "update the driver, or install torch for an older CUDA")


def _built_for(torch: Torch) -> str:
    return f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "no CUDA"


def check_cache(folder: Path, *, writable: bool, free: int, limit: int) -> Finding:
    """Check the folder for blocks of remote shards, and for shards that are being uploaded."""
    remedy = "set WDS_TOOLS_CACHE_DIR to a writable folder"
    if not writable:
        return Finding("cache", "problem", f"{folder} cannot be written to", remedy)
    text = f"{folder}, {human_bytes(free)} free; the limit of the cache is {human_bytes(limit)}"
    if free < limit:
        remedy = "free disk space, or set WDS_TOOLS_CACHE_BYTES or WDS_TOOLS_CACHE_DIR"
        return Finding("cache", "note", text, remedy)
    return Finding("cache", "ok", text)


def format_findings(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, followed by the numbers of problems and notes."""
    return "\n".join([*(line for finding in findings for line in _lines(finding)), "", _summary(findings)])


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.name:{_NAME_WIDTH}}  {finding.status:{_STATUS_WIDTH}}{finding.found}"
    if finding.remedy:
        yield f"{'':{_NAME_WIDTH + _STATUS_WIDTH + 2}}-> {finding.remedy}"


def _summary(findings: Sequence[Finding]) -> str:
    problems = sum(finding.status == "problem" for finding in findings)
    notes = sum(finding.status == "note" for finding in findings)
    if not problems and not notes:
        return "no problems"
    return f"{counted(problems, 'problem')}, {counted(notes, 'note')}"
