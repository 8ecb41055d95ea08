"""CPU time and memory of a process and all its descendants, from ``/proc`` (proc(5)); Linux only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from wds_tools.errors import OptionError

_PROC = Path("/proc")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of CPU time."""


def check_available() -> None:
    """Check that this system has the files that the other functions read."""
    if not (_PROC / "self" / "smaps_rollup").exists():
        raise OptionError("CPU time and memory are read from /proc, which this system does not have; run it on Linux")


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [pid]
    for parent in tree:  # grows during the loop
        tree += children.get(parent, ())
    return tree


def workers(pid: int) -> list[int]:
    """Return the running descendants of a process, without zombies and the helper processes of multiprocessing."""
    return [
        member
        for member in process_tree(pid)[1:]
        if _stat(member)[:1] not in ([], ["Z"]) and not _is_multiprocessing_helper(member)
    ]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all its descendants, including those that have ended."""
    # utime, stime, cutime and cstime (of ended children): indexes 11 to 14 after the name
    ticks = [sum(int(field) for field in fields[11:15]) for member in process_tree(pid) if (fields := _stat(member))]
    return sum(ticks) * TICK_SECONDS


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and all its descendants: heap and shared memory; shared pages count once.

    Mapped files are not counted: the kernel can drop their pages.
    """
    return sum(_smaps(member, "Pss_Anon") + _smaps(member, "Pss_Shmem") for member in process_tree(pid))


def _stat(pid: int) -> list[str]:
    """Return the fields after the process name, which may contain any character; [] if the process has ended."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _is_multiprocessing_helper(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = (_PROC / str(pid) / "cmdline").read_bytes()
        return any(word in command for word in (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver"))
    return False


def _smaps(pid: int, field: str) -> int:
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0
