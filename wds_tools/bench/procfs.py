"""CPU time and memory of a process and all its descendants, from ``/proc`` (proc(5)); Linux only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from wds_tools.errors import OptionError

_PROC = Path("/proc")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
"""CPU time is counted in these."""


def check_available() -> None:
    """Refuse to begin where there is not what the other functions read.

    Raises:
        OptionError: It is no Linux.
    """
    if not (_PROC / "self" / "smaps_rollup").exists():
        raise OptionError("CPU time and memory are read from /proc, which this system does not have; run it on Linux")


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:  # grows while it is walked
        found += children.get(parent, ())
    return found


def workers(pid: int) -> list[int]:
    """Return the descendants of a process that can do work.

    Those that have ended and were not waited for cannot, and those that multiprocessing keeps beside it do not.
    """
    return [member for member in family(pid)[1:] if _stat(member)[:1] not in ([], ["Z"]) and not _keeps_books(member)]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a family has used, of members that have ended too."""
    # utime, stime, and those of children that were waited for; fields 14 to 17 of stat, 11 to 14 behind the name
    ticks = [sum(int(field) for field in fields[11:15]) for member in family(pid) if (fields := _stat(member))]
    return sum(ticks) * TICK_SECONDS


def memory_bytes(pid: int) -> int:
    """Return a family's memory, pages shared among it counted once: heap and shared memory, but not the page cache.

    Mapped files are left out: the kernel drops their pages when it needs them.
    """
    return sum(_smaps(member, "Pss_Anon") + _smaps(member, "Pss_Shmem") for member in family(pid))


def _stat(pid: int) -> list[str]:
    """Return the fields behind the name (which may hold anything), or none if the process is gone."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _keeps_books(pid: int) -> bool:
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
