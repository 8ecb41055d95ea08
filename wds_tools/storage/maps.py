"""Limits of open and of memory-mapped files: how many stay mapped, and what to do if no further one can be.

Before Python 3.13 each map keeps a file descriptor, so the limit of open files (`ulimit -n`) is a limit of maps too.
"""

from __future__ import annotations

import contextlib
import errno
import resource

_REMEDIES = {
    errno.EMFILE: "raise the limit of open files with `ulimit -n`, or use smaller batches",
    errno.ENFILE: "the limit of open files of the whole system is reached: raise fs.file-max, or close programs",
    errno.ENOMEM: "raise the limit of virtual memory with `ulimit -v`, or the limit of maps with sysctl "
    "vm.max_map_count",
}


def most_maps(limit: int) -> int:
    """Return how many files a store keeps mapped: at most ``limit``, and half of the descriptors of a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if soft < 0 else max(1, min(limit, soft // 2))


def is_short(error: OSError) -> bool:
    """Return whether descriptors or memory are used up, so that it helps to close other maps."""
    return error.errno in _REMEDIES


def reason(error: OSError) -> str:
    """Return the text of an error, with the remedy if descriptors or memory are used up."""
    text = error.strerror or str(error)
    return f"{text}: {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else text


def raise_file_limit() -> None:
    """Allow as many descriptors as the system permits: connections and shards need one each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
