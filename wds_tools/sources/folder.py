"""A folder of images: ``<class>/**/*.{jpg,jpeg,png,webp}``, or the images alone, without labels.

Class numbers are those of torchvision's ``ImageFolder``: the sorted names of the class folders. Names are taken
as bytes and kept as UTF-8 with surrogate escapes, so that a name that is no text survives, whatever the locale.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from wds_tools.errors import SourceError
from wds_tools.sources.base import Input, Listing, Record, Skip
from wds_tools.sources.image_tree import NO_IMAGE, is_image_name, list_tree, raw, text

_Found = tuple[bytes, int]  # (relative path, size)
_Identity = tuple[int, int]  # (device, inode)


class FolderSource:
    """Image files below a folder.

    Args:
        root: The folder; links are followed, names that start with a dot are ignored.
        classes: Names of the class folders, by number; None numbers the sorted names of those that hold images.
    """

    kind = "folder"
    in_process = False

    def __init__(self, root: str | Path, classes: tuple[str, ...] | None = None) -> None:
        self.root = Path(root)
        self._prefix = os.fsencode(self.root) + b"/"
        self.classes = classes

    def scan(self) -> Listing:
        """List everything there is to pack, with its size.

        Raises:
            SourceError: No such folder, no image in it, or a class folder that ``classes`` does not name.
        """
        skipped: list[Skip] = []
        found = [(path, size, ()) for path, size in _walk(_root_bytes(self.root), skipped)]
        return list_tree(str(self.root), found, skipped, self.classes)

    def read(self, entry: Input) -> Record:
        """Return a file's bytes.

        Raises:
            SourceError: It is gone, cannot be read, or its size is not the one that was listed.
        """
        try:
            data = _read_all(self._prefix + raw(entry.path), entry.size)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror or error}") from error
        if len(data) != entry.size:
            more = "more than" if len(data) > entry.size else f"{len(data):,} of"
            raise SourceError(f"changed while it was packed: it has {more} the {entry.size:,} bytes that were listed")
        return Record(data)


def _root_bytes(root: Path) -> bytes:
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except OSError as error:
        raise SourceError(f"{root} cannot be read: {error.strerror}; expected a folder of images") from error
    if not is_folder:
        raise SourceError(f"{root} is not a folder; expected a folder of images")
    return os.fsencode(root)


def _walk(root: bytes, skipped: list[Skip]) -> Iterator[_Found]:
    """Yield every file with an image's extension; other files go to ``skipped``."""
    folders: list[tuple[bytes, tuple[_Identity, ...]]] = [(b"", ())]  # path, identities of its parents
    while folders:
        folder, parents = folders.pop()
        try:
            identity = _identity(root + b"/" + folder)
            entries = list(os.scandir(root + b"/" + folder))
        except OSError as error:
            if not folder:
                raise SourceError(f"{os.fsdecode(root)} cannot be read: {error.strerror}") from error
            skipped.append(Skip(text(folder), f"folder cannot be read: {error.strerror}"))
            continue
        if identity in parents:
            skipped.append(Skip(text(folder), "is a link to a folder that holds it"))
            continue
        for entry in entries:
            path = folder + b"/" + entry.name if folder else entry.name
            if entry.name.startswith(b"."):
                continue
            if _is_folder(entry):
                folders.append((path, (*parents, identity)))
            elif (size := _file_size(entry, path, skipped)) is not None:
                yield path, size


def _identity(folder: bytes) -> _Identity:
    status = os.stat(folder)  # noqa: PTH116 - Path holds no bytes
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link to itself; reading it as a file says what is wrong


def _file_size(entry: os.DirEntry[bytes], path: bytes, skipped: list[Skip]) -> int | None:
    """Return the size of a file that may be an image, else say in ``skipped`` what it is."""
    reason = None
    if not is_image_name(entry.name):
        reason = NO_IMAGE
    else:
        try:
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                return status.st_size
            reason = "is no regular file"
        except OSError as error:
            reason = "is a broken link" if entry.is_symlink() else f"cannot be read: {error.strerror}"
    skipped.append(Skip(text(path), reason))
    return None


def _read_all(path: bytes, size: int) -> bytes:
    """Read a file in one go; one byte more is asked for, so that a file that has grown is noticed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place must not block
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
