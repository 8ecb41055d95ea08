"""A folder that one process writes to: its lock, and whether a command was interrupted there.

The lock is advisory. Some file systems have no locks, so no data may depend on it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from wds_tools.format.manifest import MANIFEST_NAME

_WAIT_SECONDS = 0.2
_ATTEMPTS = 20  # an attempt fails only if another process removes the file at the same moment


def lock_file(path: Path, *, shared: bool = False) -> int:
    """Create a file and its folder if needed, and lock the file.

    A process that holds the lock may remove the file and its folder before it releases the lock.

    Args:
        path: Path of the file.
        shared: Allow other shared locks; by default the lock is exclusive.

    Returns:
        The file descriptor, for `unlock`.

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


def wait_for_lock(path: Path) -> int:
    """Lock a file as `lock_file` does, but wait for a process that holds the lock."""
    while True:
        try:
            return lock_file(path)
        except BlockingIOError:
            time.sleep(_WAIT_SECONDS)


def unlock(descriptor: int) -> None:
    """Release a lock and close its file.

    Closing alone is not enough: a process that was forked meanwhile, such as a worker of a loader, has the file open
    too.
    """
    with suppress(OSError):  # the file system has no locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


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


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False if there is no such file, or no locks."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return True
    except OSError:
        pass
    unlock(descriptor)
    return False


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


WORK_NAME = ".packing"
PLAN_NAME = "plan.json"
PLANNING_NAME = "planning.lock"
COPY_NAME = ".copying"
UNPACK_NAME = ".unpacking"
"""The work areas of a packer, of `copy` and of `unpack`; the first and the last have a plan."""

WRITER_LOCK_NAME = ".{}.writing"
"""Name of the lock file of a `ShardWriter`, by that of its manifest."""

_COMMANDS = {
    "merge": "`wds-tools merge`",
    "webdataset": "`wds-tools reshard`, `pack` or `append`",
    "added fields": "`wds-tools add-fields`",
}
_PACKERS = "`wds-tools pack` or `append`"


def unfinished_append(folder: str, read: Callable[[str], bytes | None]) -> str | None:
    """Return a message if a dataset has an unfinished append, with what to do; otherwise None. Arguments: as below."""
    plan = _read(f"{WORK_NAME}/{PLAN_NAME}", read)
    if plan is None or "onto" not in parse_plan(plan):
        return None
    return (
        f"{folder} has an unfinished append: run the same `wds-tools append` command again to continue, or with "
        "--fresh to start again; until then its shards are not part of the dataset"
    )


def why_unfinished(folder: str, read: Callable[[str], bytes | None]) -> str | None:
    """Return a message if a folder is unfinished, with what to do; None if it has no work area.

    Args:
        folder: Path or URL, for the text.
        read: Returns a file of the folder; None or an OSError if it does not exist.
    """
    plan = _read(f"{WORK_NAME}/{PLAN_NAME}", read)
    if plan is not None:
        command = _COMMANDS.get(str(parse_plan(plan).get("kind")), _PACKERS)
    elif _read(f"{COPY_NAME}/manifest.json", read) is not None:
        command = "`wds-tools copy`"
    elif _read(f"{UNPACK_NAME}/{PLAN_NAME}", read) is not None:
        command = "`wds-tools unpack`"
    elif _read(WRITER_LOCK_NAME.format(MANIFEST_NAME), read) is not None:
        return (
            f"{folder} is unfinished: a ShardWriter is writing it or was interrupted; wait for it, or run the program "
            "again with fresh=True, which replaces the samples so far"
        )
    else:
        return None
    return f"{folder} is unfinished: run the same {command} command again to continue"


def _read(name: str, read: Callable[[str], bytes | None]) -> bytes | None:
    try:
        return read(name)
    except OSError:
        return None


def parse_plan(data: bytes) -> dict[str, Any]:
    """Return the source in a plan file. For a damaged file it is empty, and so equals no real source."""
    try:
        plan = json.loads(data)
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) else {}
