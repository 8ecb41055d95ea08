"""Atomic writes: a file appears under its final name complete and synced to disk, or not at all.

The steps are: write under a temporary name in the same folder, fsync, rename, fsync the folder. The
temporary name starts with a dot, so patterns such as ``*.tar`` do not match an unfinished file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from wds_tools.errors import DestinationError, WdsToolsError

BUFFER_BYTES = 1 << 18  # joins headers and labels into large writes; 64 KiB to 1 MiB were equally fast

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)  # some network and FUSE file systems cannot sync a folder


class CommitFile:
    """A file that gets its final name when the ``with`` block ends without an error.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with CommitFile(folder / "a.txt") as file:
    ...     _ = file.write(b"hello")
    ...     (folder / "a.txt").exists()
    False
    >>> (folder / "a.txt").read_bytes()
    b'hello'

    Args:
        path: Final path; an existing file is replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")

    def __enter__(self) -> BinaryIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._file = open(os.open(self._temporary, flags, 0o666), "wb", buffering=BUFFER_BYTES)  # noqa: PTH123 - opens a descriptor
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._discard()
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        except BaseException:
            self._discard()
            raise
        sync_folder(self.path.parent)

    def _discard(self) -> None:
        # close() flushes the buffer, which fails again if the disk is full.
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def commit_bytes(path: str | Path, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        OSError: The folder does not exist or is not writable, or the disk is full.
    """
    with CommitFile(path) as file:
        file.write(data)


def sync_folder(folder: Path) -> None:
    """Flush renames and removals in ``folder`` to disk, so that they survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def final_name(name: str) -> str | None:
    """Return the final name for the name of a temporary file, or None for any other name.

    >>> final_name(".shard-000000.tar.0123456789abcdef.tmp"), final_name("shard-000000.tar")
    ('shard-000000.tar', None)
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None


@contextlib.contextmanager
def write_errors(where: Path | str, advice: str) -> Iterator[None]:
    """Let an error of the system, such as a full disk, state what cannot be written and what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WdsToolsError | ConnectionError):
            raise
        raise DestinationError(f"cannot write to {where}: {error.strerror or error}; {advice}") from error
