"""A folder of images: ``<class>/**/*.{jpg,jpeg,png,webp,tif,tiff,gif,avif}``, or a flat folder without labels.

Class numbers are those of torchvision's ``ImageFolder``: the class folders in sorted order. Names
are read as bytes and kept as UTF-8 with surrogate escapes, so names that are not UTF-8 are
preserved under any locale.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from wds_tools.errors import SourceError
from wds_tools.sources.base import (
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    SourceStoreError,
    as_read_error,
    check_size,
)
from wds_tools.sources.image_tree import NOT_AN_IMAGE, collect_tree, is_image_name, path_bytes, path_text

_NOT_LISTED = (errno.EACCES, errno.EPERM, errno.ELOOP)  # of a folder or link, for this user and until it is changed
_File = tuple[bytes, int]  # (relative path, size)
_Identity = tuple[int, int]  # (device, inode)


class FolderSource(Source):
    """Image files below a folder; links are followed, names that start with a dot are ignored.

    With ``classes``, all class folders must be among them; by default those with images are numbered in sorted order.
    """

    kind = "folder"
    unit = "file"
    roles = ()

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.root = Path(src)
        self.prefix = os.fsencode(self.root) + b"/"

    def collect(self, found: Collector) -> None:
        """Add all images and their sizes.

        Raises:
            SourceError: There is no such folder, or it has no images.
        """
        files = [(path, size, ()) for path, size in _walk(_root_bytes(self.root), found)]
        collect_tree(found, files)

    def read(self, entry: Input) -> Record:
        """Read a file.

        Raises:
            SourceStoreError: The file is missing or cannot be read.
            SourceChangedError: It has changed its size since it was listed.
        """
        path = self.prefix + path_bytes(entry.path)
        with as_read_error(f"{path_text(path)} cannot be read"):
            data = _read_all(path, entry.size)
        check_size(path_text(path), len(data), entry.size)
        return Record(data)


def _root_bytes(root: Path) -> bytes:
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except OSError as error:
        raise SourceError(f"{root} cannot be read: {error.strerror}; expected a folder of images") from error
    if not is_folder:
        raise SourceError(f"{root} is not a folder; expected a folder of images")
    return os.fsencode(root)


def _walk(root: bytes, found: Collector) -> Iterator[_File]:
    """Yield every file with the extension of an image; skip other files."""
    folders: list[tuple[bytes, tuple[_Identity, ...]]] = [(b"", ())]  # path, identities of its parents
    while folders:
        folder, parents = folders.pop()
        try:
            identity = _identity(root + b"/" + folder)
            entries = list(os.scandir(root + b"/" + folder))
        except OSError as error:
            if not folder:
                raise SourceError(f"{os.fsdecode(root)} cannot be read: {error.strerror}") from error
            _raise_failure(error, root + b"/" + folder)
            _skip(found, folder, f"folder cannot be read: {error.strerror}")
            continue
        if identity in parents:
            _skip(found, folder, "is a link to a folder that contains it")
            continue
        for entry in entries:
            path = folder + b"/" + entry.name if folder else entry.name
            if entry.name.startswith(b"."):
                continue
            if _is_folder(entry):
                folders.append((path, (*parents, identity)))
            elif (size := _file_size(entry, path, found)) is not None:
                yield path, size


def _skip(found: Collector, path: bytes, reason: str) -> None:
    found.account.given += 1
    found.skip(path_text(path), reason)


def _identity(folder: bytes) -> _Identity:
    status = os.stat(folder)  # noqa: PTH116 - Path does not accept bytes
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        _raise_failure(error, entry.path)
        return False  # a link to itself, which `_file_size` reports


def _raise_failure(error: OSError, path: bytes) -> None:
    """Raise an error if storage fails. A file that cannot be listed for another reason is skipped."""
    if error.errno not in _NOT_LISTED:
        raise SourceStoreError(f"{path_text(path)} cannot be listed: {error.strerror or error}") from error


def _file_size(entry: os.DirEntry[bytes], path: bytes, found: Collector) -> int | None:
    """Return the size of an image file; if it is not one, skip it and return None."""
    reason = None
    if not is_image_name(entry.name):
        reason = NOT_AN_IMAGE
    else:
        try:
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                return status.st_size
            reason = "is not a regular file"
        except OSError as error:
            if not (entry.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR)):
                _raise_failure(error, entry.path)
            reason = "is a broken link" if entry.is_symlink() else f"cannot be read: {error.strerror}"
    _skip(found, path, reason)
    return None


def _read_all(path: bytes, size: int) -> bytes:
    """Read a file with one call. One byte more than ``size`` is requested, to notice a file that has grown."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of this name must not block
    try:
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        parts = [data]
        while sum(map(len, parts)) <= size and (data := os.read(descriptor, size + 1)):
            parts.append(data)  # one read returns 2 GiB at most
        return b"".join(parts)
    finally:
        os.close(descriptor)
