"""Option objects, and the only place that reads ``WDS_TOOLS_*`` variables."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from wds_tools.errors import OptionError

_GROUP_1 = "sys/fs/cgroup/cpu"
DEFAULT_CACHE_BYTES = 20 * 10**9
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_bytes(value: int | float | str, *, what: str = "size") -> int:
    """Turn a size into bytes: a number, or text with a decimal (MB) or binary (MiB) unit.

    >>> parse_bytes("1GB"), parse_bytes("4 MiB"), parse_bytes("1.5k"), parse_bytes(512)
    (1000000000, 4194304, 1500, 512)

    Raises:
        OptionError: No such size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmgt]?i?)b?\s*", str(value).lower())
    # Decimal, because 2.01 * 10**9 as a float is a byte short
    number = Decimal(match[1]) * _UNITS.get(match[2], 0) if match else Decimal(0)
    if not 1 <= number < 2**63:
        raise OptionError(f"{what}={value!r} is no size; allowed are bytes, or text such as '4MB', '1GB', '256MiB'")
    return int(number)


def check_counts(counts: Mapping[str, int | None], *, least: int = 1) -> None:
    """Check whole numbers by the name of their argument; None is what was not given.

    Raises:
        OptionError: One is too small.
    """
    for name, count in counts.items():
        if count is not None and count < least:
            raise OptionError(f"{name}={count}; allowed are whole numbers of {least} and more")


def check_seconds(name: str, seconds: float | None) -> None:
    """Check a time.

    Raises:
        OptionError: It is not above 0.
    """
    if seconds is not None and not seconds > 0:
        raise OptionError(f"{name}={seconds}; allowed are numbers above 0")


def available_cores() -> int:
    """Return the cores that this process may use: by its affinity, and by the CPU time that its container is given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota_cores() or cores)


def quota_cores(root: Path = Path("/")) -> int | None:
    """Return the cores whose time this process's control group may use, rounded up; None where it has no limit.

    ``cpu.max`` of the group and of those above it says ``<microseconds> <period>`` or ``max <period>``
    (https://docs.kernel.org/admin-guide/cgroup-v2.html); a container sees its own group as the topmost one. Version 1
    has a file for each number, and -1 for no limit.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    texts = group_files("cpu.max", root)
    with contextlib.suppress(OSError):
        texts.append(" ".join((root / _GROUP_1 / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period")))
    quotas = []
    for text in texts:
        with contextlib.suppress(ValueError):  # "max"
            allowed, period = map(int, text.split())
            quotas.append(math.ceil(allowed / period))
    return min((quota for quota in quotas if quota > 0), default=None)


def group_files(name: str, root: Path = Path("/")) -> list[str]:
    """Return the texts of a file of this process's control group (version 2), and of the groups above it.

    Args:
        name: Of the file, such as ``memory.max``.
        root: Where ``proc`` and ``sys`` are.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((Path(line[3:]) for line in groups if line.startswith("0::/")), Path("/"))
    files = [root / "sys/fs/cgroup" / group.relative_to("/") / name for group in (own, *own.parents)]
    texts = []
    for file in files:
        with contextlib.suppress(OSError):  # there is none
            texts.append(file.read_text())
    return texts


def use_native() -> bool:
    """Return whether compiled code may be used: unless ``WDS_TOOLS_NATIVE`` is 0."""
    return os.environ.get("WDS_TOOLS_NATIVE", "1") != "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Where blocks of remote shards are kept.

    Attributes:
        folder: Local folder; safe to share between datasets and processes, and to delete at any time.
        limit_bytes: About how much it may hold.
    """

    folder: Path
    limit_bytes: int = DEFAULT_CACHE_BYTES

    @classmethod
    def of(cls, folder: str | os.PathLike[str] | None = None, limit_bytes: int | str | None = None) -> CacheOptions:
        """Fill in what is not given from ``WDS_TOOLS_CACHE_DIR`` and ``WDS_TOOLS_CACHE_BYTES``, else from defaults."""
        folder = folder or os.environ.get("WDS_TOOLS_CACHE_DIR")
        if not folder:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wds_tools"
        if limit_bytes is None:
            limit_bytes = os.environ.get("WDS_TOOLS_CACHE_BYTES") or DEFAULT_CACHE_BYTES
        return cls(folder=Path(folder).expanduser(), limit_bytes=parse_bytes(limit_bytes, what="cache_bytes"))
