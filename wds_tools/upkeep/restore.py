"""A folder that files are restored into: none gets outside it, none replaces another unless that is asked for.

Every folder on the way is opened by its descriptor, links refused, so that neither a path such as ``../x`` nor a link
that lies in the folder leads elsewhere. A file is written in ``.unpacking/`` under a short name (its own may have all
of the 255 bytes that a file system allows), and linked to its place when it is whole.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from wds_tools.errors import DestinationError
from wds_tools.storage.lock import lock_file

WORK_NAME = ".unpacking"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_COMPARE_BYTES = 1 << 20


class Tree:
    """The folder, held by one process for the length of a ``with`` block.

    Args:
        root: Made if it is not there.
        overwrite: Replace files that are there and have other bytes.
    """

    def __init__(self, root: Path, *, overwrite: bool = False) -> None:
        self.root = root
        self.overwrite = overwrite
        # Device and inode of every file of this run, one number each: two paths may be one name to the file system.
        self._own: set[int] = set()
        self._made_root = not root.exists()

    def __enter__(self) -> Tree:
        work = self.root / WORK_NAME
        try:
            self._lock = lock_file(work / "lock")
        except BlockingIOError as error:
            raise DestinationError(f"another program is unpacking into {self.root}; wait for it to end") from error
        for path in work.iterdir():
            if path.name != "lock":
                path.unlink()  # of a run that was killed
        self._top = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._work = os.open(work, _FOLDER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        work = self.root / WORK_NAME
        for path in sorted(work.iterdir(), key=lambda path: path.name == "lock"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # another process waits for it
            work.rmdir()
        if self._made_root:
            with suppress(OSError):  # it holds something
                self.root.rmdir()
        for descriptor in (self._work, self._top, self._lock):
            os.close(descriptor)

    def put(self, path: str, data: bytes | memoryview) -> bool:
        """Restore one file.

        Args:
            path: Below the root, with ``/`` between folders; bytes that are no UTF-8 as surrogate escapes.
            data: Its content.

        Returns:
            False if it was there already, byte for byte.

        Raises:
            DestinationError: A path that would lead outside, or a file that is there with other bytes or came before.
            OSError: The disk is full.
        """
        *folders, name = check_path(path)
        with self._folder(path, folders) as folder:
            try:
                there = _open_file(folder, name)
            except OSError as error:
                raise _refused(path, f"cannot be written: {error.strerror}") from error
            if there is not None and self._is_kept(path, there, data):
                return False
            self._write(path, folder, name, data)
        return True

    def _is_kept(self, path: str, there: int, data: bytes | memoryview) -> bool:
        """Tell whether the file that is open as ``there`` has these bytes already; if not, it may be replaced."""
        try:
            status = os.fstat(there)
            self._check_own(path, status)
            is_file = stat.S_ISREG(status.st_mode)
            if is_file and _same(there, status.st_size, data):
                self._own.add(_identity(status))
                return True
        finally:
            os.close(there)
        if not self.overwrite or not is_file:
            raise _refused(
                path,
                "is there already and is something else; move it away, choose another folder, or unpack with "
                "--overwrite (overwrite=True)",
            )
        return False

    def _check_own(self, path: str, status: os.stat_result) -> None:
        if _identity(status) in self._own:
            raise _refused(
                path,
                "comes from two samples, and a file holds one; unpack with --layout shards (layout='shards'), which "
                "gives each shard a folder",
            )

    @contextmanager
    def _folder(self, path: str, names: list[bytes]) -> Iterator[int]:
        """Open the folder of a file, made with those above it."""
        descriptor = os.dup(self._top)
        try:
            for name in names:
                try:
                    deeper = _enter(descriptor, name)
                except OSError as error:
                    raise _refused(path, f"needs a folder {os.fsdecode(name)!r}: {error.strerror}") from error
                os.close(descriptor)
                descriptor = deeper
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, path: str, folder: int, name: bytes, data: bytes | memoryview) -> None:
        temporary = secrets.token_hex(8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o666, dir_fd=self._work), "wb") as file:  # noqa: PTH123
                file.write(data)
                status = os.fstat(file.fileno())
            self._place(temporary, folder, name)
        except FileExistsError as error:
            raise _refused(path, "has just been made by another program") from error
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._work)
        self._own.add(_identity(status))

    def _place(self, temporary: str, folder: int, name: bytes) -> None:
        """Give a file its name: a link fails if something is there, where a rename would replace it."""
        if not self.overwrite:
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

    Raises:
        DestinationError: It is absolute, goes up, or is no path at all.
    """
    try:
        parts = path.encode("utf-8", "surrogateescape").split(b"/")
    except UnicodeEncodeError:
        parts = [b""]
    if any(part in (b"", b".", b"..") or b"\0" in part for part in parts) or parts[0] == os.fsencode(WORK_NAME):
        raise _refused(
            path, "is no path inside a folder, so nothing is written there; try --layout keys (layout='keys')"
        )
    return parts


def _refused(path: str, why: str) -> DestinationError:
    shown = path if len(path) <= 300 else f"{path[:300]}..."
    return DestinationError(f"file {shown!r} {why}")


def _enter(folder: int, name: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _open_file(folder: int, name: bytes) -> int | None:
    """Open what has this name; a link to elsewhere is refused, and a pipe does not block."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result) -> int:
    return status.st_dev << 64 | status.st_ino


def _same(file: int, size: int, data: bytes | memoryview) -> bool:
    if size != len(data):
        return False
    view = memoryview(data)
    starts = range(0, size, _COMPARE_BYTES)
    return all(os.pread(file, _COMPARE_BYTES, start) == view[start : start + _COMPARE_BYTES] for start in starts)
