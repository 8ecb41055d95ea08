"""An advisory file lock. Some file systems have no locks, so no data may depend on it."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_ATTEMPTS = 20  # an attempt fails only if another process removes the file at the same moment


def lock_file(path: Path, *, shared: bool = False) -> int:
    """Create a file and its folder if needed, and lock the file.

    A process that holds the lock may remove the file and its folder before it releases the lock.

    Args:
        path: Path of the file.
        shared: Allow other shared locks; by default the lock is exclusive.

    Returns:
        The file descriptor. Closing it releases the lock.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The file cannot be created.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):  # another process has just removed the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            return _try_lock(path, shared)
    path.parent.mkdir(parents=True, exist_ok=True)
    return _try_lock(path, shared)


def _try_lock(path: Path, shared: bool) -> int:
    """Open and lock a file, and check that ``path`` still refers to the locked file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        return descriptor  # the file system has no locks
    if not _same_file(descriptor, path):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return descriptor


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
