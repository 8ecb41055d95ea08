"""A folder for restored files. No file is written outside it, and none is overwritten by default.

Each folder of a path is opened relative to the descriptor of its parent, without following links.
So neither a path such as ``../x`` nor a link in the folder can lead outside. A file is first
written in ``.unpacking/``, under a short name because its own may have the maximum of 255 bytes.
When it is complete, it is linked to its path. An interrupted run leaves ``.unpacking/`` with its plan: a folder
with it is not finished, and only a run with the same plan continues.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wds_tools.errors import DestinationError, OptionError
from wds_tools.storage.commit import commit_bytes
from wds_tools.storage.lock import PLAN_NAME, UNPACK_NAME, lock_file, unlock

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_COMPARE_BYTES = 1 << 20


class RestoreFolder:
    """The folder, locked by this process during a ``with`` block."""

    def __init__(self, root: Path, *, plan: bytes = b"{}", overwrite: bool = False) -> None:
        self.root = root
        self.plan = plan
        self.overwrite = overwrite
        # Device and inode of every file of this run, as one number: two paths may be one file, for
        # example if the file system ignores case.
        self._restored: set[int] = set()
        self._created_root = not root.exists()

    def __enter__(self) -> RestoreFolder:
        work = self.root / UNPACK_NAME
        try:
            self._lock = lock_file(work / "lock")
        except BlockingIOError as error:
            raise DestinationError(f"another program is writing to {self.root}; wait for it to end") from error
        try:
            self._continues = self._start(work)
        except BaseException:
            unlock(self._lock)
            raise
        self._root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._work = os.open(work, _FOLDER_FLAGS)
        return self

    def _start(self, work: Path) -> bool:
        """Write the plan and remove temporary files of a run that was killed; return whether there was such a run."""
        plan = work / PLAN_NAME
        left = plan.read_bytes() if plan.exists() else None
        if left not in (None, self.plan) and not self.overwrite:
            raise DestinationError(
                f"{self.root} holds an unfinished unpack or export of another dataset or with other options: run that "
                "command again to continue, or choose another, empty folder"
            )
        for path in work.iterdir():
            if path.name not in ("lock", PLAN_NAME):
                path.unlink()
        if left != self.plan:
            commit_bytes(plan, self.plan)
        return left is not None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        work = self.root / UNPACK_NAME
        # An unfinished run leaves lock and plan, and the next run continues. Ctrl-C may come right after a link.
        is_error = isinstance(error, Exception)
        is_unfinished = kind is not None and (not is_error or self._continues or bool(self._restored))
        for path in sorted(work.iterdir(), key=lambda path: path.name == "lock"):
            if path.name not in ("lock", PLAN_NAME) or not is_unfinished:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty, or another process has locked it
            work.rmdir()
        if self._created_root:
            with suppress(OSError):  # fails if it is not empty
                self.root.rmdir()
        for descriptor in (self._work, self._root):
            os.close(descriptor)
        unlock(self._lock)

    def put(self, path: str, data: bytes | memoryview, *, overwrite: bool = False) -> bool:
        """Restore one file.

        Returns:
            Whether the file was written; False if it existed with the same content.

        Raises:
            DestinationError: The path leads outside, or there is another file at this path.
            OptionError: This run has already restored a file there.
            OSError: The file cannot be written, for example because the disk is full.
        """
        *folders, name = check_path(path)
        with self._folder(path, folders) as folder:
            try:
                existing = _open_file(folder, name)
            except OSError as error:
                raise _file_error(path, f"cannot be written: {error.strerror}") from error
            overwrite = overwrite or self.overwrite
            if existing is not None and self._has_content(path, existing, data, overwrite=overwrite):
                return False
            self._write(path, folder, name, data, overwrite=overwrite)
        return True

    def _has_content(self, path: str, existing: int, data: bytes | memoryview, *, overwrite: bool) -> bool:
        """Return whether an open file has this content, and close it; check that it may be replaced."""
        try:
            status = os.fstat(existing)
            self._check_not_restored(path, status)
            is_file = stat.S_ISREG(status.st_mode)
            if is_file and _contains(existing, status.st_size, data):
                self._restored.add(_identity(status))
                return True
        finally:
            os.close(existing)
        if not overwrite or not is_file:
            raise _file_error(
                path,
                "already exists with other content; move it away, choose another folder, or pass --overwrite "
                "(overwrite=True)",
            )
        return False

    def _check_not_restored(self, path: str, status: os.stat_result) -> None:
        if _identity(status) in self._restored:
            raise written_twice(path)

    @contextmanager
    def _folder(self, path: str, names: list[bytes]) -> Iterator[int]:
        """Open the folder of a file; create missing folders."""
        descriptor = os.dup(self._root)
        try:
            for name in names:
                try:
                    child = _open_folder(descriptor, name)
                except OSError as error:
                    raise _file_error(path, f"needs a folder {os.fsdecode(name)!r}: {error.strerror}") from error
                os.close(descriptor)
                descriptor = child
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, path: str, folder: int, name: bytes, data: bytes | memoryview, *, overwrite: bool) -> None:
        temporary = secrets.token_hex(8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o666, dir_fd=self._work), "wb") as file:  # noqa: PTH123
                file.write(data)
                status = os.fstat(file.fileno())
            self._link(temporary, folder, name, overwrite=overwrite)
        except FileExistsError as error:
            raise _file_error(path, "has just been created by another program") from error
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._work)
        self._restored.add(_identity(status))

    def _link(self, temporary: str, folder: int, name: bytes, *, overwrite: bool) -> None:
        """Give a file its final name by a link, which never replaces a file, or by a rename if links are impossible."""
        if not overwrite:
            try:
                os.link(temporary, name, src_dir_fd=self._work, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
            else:
                return
        os.rename(temporary, name, src_dir_fd=self._work, dst_dir_fd=folder)


def check_path(path: str) -> list[bytes]:
    """Return the components of a path.

    >>> check_path("cat/1.jpg")
    [b'cat', b'1.jpg']
    """
    try:
        parts = path.encode("utf-8", "surrogateescape").split(b"/")
    except UnicodeEncodeError:
        parts = [b""]
    if any(part in (b"", b".", b"..") or b"\0" in part for part in parts) or parts[0] == os.fsencode(UNPACK_NAME):
        raise _file_error(
            path, "is not a relative path inside a folder, so it is not written; try --layout keys (layout='keys')"
        )
    return parts


def written_twice(path: str) -> OptionError:
    """Return the error for a file that two samples have."""
    return OptionError(
        f"file {_shown(path)} would be written for two samples; unpack into an empty folder with --layout shards "
        "(layout='shards'), which creates a folder per shard"
    )


def _file_error(path: str, problem: str) -> DestinationError:
    return DestinationError(f"file {_shown(path)} {problem}")


def _shown(path: str) -> str:
    return repr(path if len(path) <= 300 else f"{path[:300]}...")


def _open_folder(parent: int, name: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent)


def _open_file(folder: int, name: bytes) -> int | None:
    """Open an existing file; None if there is none. A link is an error, and a pipe does not block."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result) -> int:
    """Return device and inode as one number."""
    return status.st_dev << 64 | status.st_ino


def _contains(file: int, size: int, data: bytes | memoryview) -> bool:
    """Return whether an open file has exactly this content."""
    if size != len(data):
        return False
    view = memoryview(data)
    starts = range(0, size, _COMPARE_BYTES)
    return all(os.pread(file, _COMPARE_BYTES, start) == view[start : start + _COMPARE_BYTES] for start in starts)
