"""A file that one process at a time may hold. A courtesy: no data depends on it, as some file systems have no locks."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_ATTEMPTS = 20  # each is lost only if another holder ends in that very moment


def lock_file(path: Path, *, shared: bool = False) -> int:
    """Return the descriptor of an open, locked file, which is made with its folder; closing it lets it go.

    A holder that is done may remove the file, and the folder with it, before it lets go.

    Raises:
        BlockingIOError: Another process holds it.
        OSError: It cannot be made.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):  # a holder that has just ended took the folder away
            path.parent.mkdir(parents=True, exist_ok=True)
            return _try_lock(path, shared)
    path.parent.mkdir(parents=True, exist_ok=True)
    return _try_lock(path, shared)


def _try_lock(path: Path, shared: bool) -> int:
    """Open and lock a file; the one locked must still be the one of that name."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        return descriptor  # a file system without locks
    if not _same_file(descriptor, path):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return descriptor


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
