"""Parsing and checking of options. Only this module reads ``WDS_TOOLS_*`` environment variables."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError
from wds_tools.storage_options import check_storage_options

_CGROUP_V1_CPU = "sys/fs/cgroup/cpu"
DEFAULT_CACHE_BYTES = 20 * 10**9
DEFAULT_RETRY_SECONDS = 300.0
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
    """Convert a size to bytes. It is a number, or text with a decimal (MB) or binary (MiB) unit.

    Args:
        value: The size. Fractions of a byte are cut off.
        what: Name of the option, for the error message.

    >>> parse_bytes("1GB"), parse_bytes("4 MiB"), parse_bytes("1.5k"), parse_bytes(512)
    (1000000000, 4194304, 1500, 512)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmgt]?i?)b?\s*", str(value).lower())
    # Decimal, because int(2.01 * 10**9) in floating point is one byte too small
    size = Decimal(match[1]) * _UNITS.get(match[2], 0) if match else Decimal(0)
    if not 1 <= size < 2**63:
        raise OptionError(f"{what}={value!r} is not a size; allowed are bytes, or text such as '4MB', '1GB', '256MiB'")
    return int(size)


def parse_shuffle(text: str) -> bool | int | float:
    """Parse the value of ``--shuffle``.

    >>> parse_shuffle("yes"), parse_shuffle("20_000"), parse_shuffle("0.95")
    (True, 20000, 0.95)
    """
    words: dict[str, bool] = {"yes": True, "true": True, "no": False, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise OptionError(
        f"shuffle={text!r}; allowed are yes, no, a window in samples such as 20000, and a quality such as 0.95"
    )


def check_counts(counts: Mapping[str, int | None], *, least: int = 1) -> None:
    """Check that integers are large enough.

    Args:
        counts: Name of the option → its value; None (not given) is allowed.
        least: Smallest allowed value.
    """
    for name, count in counts.items():
        if count is not None and (not isinstance(count, Integral) or count < least):
            raise OptionError(f"{name}={count!r}; allowed are whole numbers of {least} and more")


def check_seconds(name: str, seconds: float | None) -> None:
    """Check a duration in seconds; None (not given) is allowed."""
    if seconds is not None and not seconds > 0:
        raise OptionError(f"{name}={seconds}; allowed are numbers above 0")


def available_cores() -> int:
    """Return the number of cores that this process may use, from its CPU affinity and the CPU quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota_cores() or cores)


def quota_cores(root: Path = Path("/")) -> int | None:
    """Return the CPU quota of this process's control group in cores, rounded up; None if it has no quota.

    In version 2, ``cpu.max`` of the group and of its ancestors contains ``<microseconds> <period>`` or
    ``max <period>`` (https://docs.kernel.org/admin-guide/cgroup-v2.html). A container sees its own group as the root.
    Version 1 has one file per number; a quota of -1 means no limit.

    Args:
        root: Folder that contains ``proc`` and ``sys``.
    """
    texts = group_files("cpu.max", root)
    with contextlib.suppress(OSError):
        paths = (root / _CGROUP_V1_CPU / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
        texts.append(" ".join(path.read_text() for path in paths))
    quotas = []
    for text in texts:
        with contextlib.suppress(ValueError):  # "max" instead of a number
            quota, period = map(int, text.split())
            quotas.append(math.ceil(quota / period))
    return min((quota for quota in quotas if quota > 0), default=None)


def group_files(name: str, root: Path = Path("/")) -> list[str]:
    """Return the contents of a file of this process's control group (version 2) and of its ancestors.

    Args:
        name: File name, such as ``memory.max``.
        root: Folder that contains ``proc`` and ``sys``.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((Path(line[3:]) for line in groups if line.startswith("0::/")), Path("/"))
    files = [root / "sys/fs/cgroup" / group.relative_to("/") / name for group in (own, *own.parents)]
    texts = []
    for file in files:
        with contextlib.suppress(OSError):  # the root group has no such file
            texts.append(file.read_text())
    return texts


def use_native() -> bool:
    """Return whether compiled code may be used: True unless ``WDS_TOOLS_NATIVE`` is 0."""
    return os.environ.get("WDS_TOOLS_NATIVE", "1") != "0"


def source_tree() -> str | None:
    """Return the source tree that Python imports this package from; None if it is installed without its C sources."""
    folder = Path(__file__).parent
    return str(folder.parent) if (folder / "images" / "csrc").is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How URLs are read.

    Attributes:
        cache_folder: Local folder for blocks of remote shards. Datasets and processes may share it, and it may be
            deleted at any time.
        cache_bytes: Approximate size limit of that folder.
        read_ahead_bytes: Bytes to read before they are needed; None: chosen automatically.
        retry_seconds: For how long a failed request is repeated.
        storage_options: Options of the file system, by the names of fsspec. They may contain secrets, so they are not
            in the ``repr``.
    """

    cache_folder: Path
    cache_bytes: int = DEFAULT_CACHE_BYTES
    read_ahead_bytes: int | None = None
    retry_seconds: float = DEFAULT_RETRY_SECONDS
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def of(
        cls,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        *,
        read_ahead_bytes: int | str | None = None,
        retry_seconds: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> RemoteOptions:
        """Return the options as given, otherwise from the environment, otherwise the defaults.

        Args:
            cache_dir: Default: ``WDS_TOOLS_CACHE_DIR``, or ``wds_tools`` in the cache folder of the user.
            cache_bytes: Default: ``WDS_TOOLS_CACHE_BYTES``, or 20 GB.
            read_ahead_bytes: Default: ``WDS_TOOLS_READ_AHEAD_BYTES``, or chosen automatically.
            retry_seconds: Default: ``WDS_TOOLS_RETRY_SECONDS``, or 300.
            storage_options: Default: none.

        Raises:
            OptionError: An invalid option.
        """
        environment = os.environ.get
        folder = cache_dir or environment("WDS_TOOLS_CACHE_DIR")
        if not folder:
            folder = Path(environment("XDG_CACHE_HOME") or Path.home() / ".cache") / "wds_tools"
        if cache_bytes is None:
            cache_bytes = _parse_environment_bytes("WDS_TOOLS_CACHE_BYTES") or DEFAULT_CACHE_BYTES
        if read_ahead_bytes is None:
            read_ahead_bytes = _parse_environment_bytes("WDS_TOOLS_READ_AHEAD_BYTES")
        if retry_seconds is None:
            retry_seconds = _parse_seconds("WDS_TOOLS_RETRY_SECONDS", DEFAULT_RETRY_SECONDS)
        check_seconds("retry_seconds", retry_seconds)
        return cls(
            cache_folder=Path(folder).expanduser(),
            cache_bytes=parse_bytes(cache_bytes, what="cache_bytes"),
            read_ahead_bytes=None
            if read_ahead_bytes is None
            else parse_bytes(read_ahead_bytes, what="read_ahead_bytes"),
            retry_seconds=float(retry_seconds),
            storage_options=check_storage_options(storage_options),
        )


TOKEN_REALM = 'realm="wds_tools"'  # noqa: S105 - not a secret
"""Value of the header ``WWW-Authenticate`` of a `wds-tools serve` that requires a token."""


def server_token(scheme: str, authority: str) -> str | None:
    """Return the token for an HTTP server, from the environment variable ``WDS_TOOLS_TOKEN``; None if it has none.

    The variable has a word ``ORIGIN=TOKEN`` for each server, such as ``http://node1:8080=wdst_...``. A token is sent
    only to the server that it is for, whatever other URLs a program reads.
    """
    for word in os.environ.get("WDS_TOOLS_TOKEN", "").split():
        match = re.fullmatch(r"(https?)://([^/=@?#]+)/?=([!-~]+)", word, re.IGNORECASE)
        if not match:
            raise OptionError(
                "WDS_TOOLS_TOKEN is not of the form ORIGIN=TOKEN, such as http://node1:8080=wdst_..., which names the "
                "server that the token is sent to; several are separated by spaces"
            )
        if (match[1].lower(), match[2].lower()) == (scheme.lower(), authority.lower()):
            return match[3]
    return None


def token_remedy(scheme: str, authority: str) -> str:
    """Return what to do if a `wds-tools serve` refuses the token of a request, or its absence. Arguments as above."""
    origin = f"{scheme}://{authority}"
    words = os.environ.get("WDS_TOOLS_TOKEN", "").split()
    others = ", ".join(word.partition("=")[0] for word in words)
    fact = f"WDS_TOOLS_TOKEN has one for {others} only: " if others and server_token(scheme, authority) is None else ""
    return f"{fact}set WDS_TOOLS_TOKEN={origin}=TOKEN"


def report_url() -> str | None:
    """Return the server that loaders and packers report to, from ``WDS_TOOLS_REPORT_TO``; None if it is not set."""
    return os.environ.get("WDS_TOOLS_REPORT_TO") or None


def run_name() -> str | None:
    """Return the name of this job for reports: ``WDS_TOOLS_RUN``, or the id of torchrun or Slurm, or None."""
    for variable in ("WDS_TOOLS_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(variable)
        if value and value != "none":  # torchrun's default id
            return value
    return None


def launcher_number(variable: str) -> int | None:
    """Return the number in an environment variable that torchrun sets, such as RANK; None if it is not set or empty."""
    text = os.environ.get(variable)
    if text and not text.isdecimal():
        raise OptionError(f"the environment variable {variable}={text!r} is not a number; torchrun sets it")
    return int(text) if text else None


def _parse_environment_bytes(variable: str) -> int | None:
    """Return the number of bytes in an environment variable; None if it is not set or empty."""
    text = os.environ.get(variable)
    return parse_bytes(text, what=variable) if text else None


def _parse_seconds(variable: str, default: float) -> float:
    """Return the number in an environment variable, or ``default`` if it is not set."""
    text = os.environ.get(variable) or str(default)
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{variable}={text!r} is not a number of seconds, such as {default:g}") from None
