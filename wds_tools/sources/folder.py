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
from wds_tools.sources.base import Input, Listing, Skip

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")

_Found = tuple[bytes, int]  # (relative path, size)
_Identity = tuple[int, int]  # (device, inode)


class FolderSource:
    """Image files below a folder.

    Args:
        root: The folder; links are followed, names that start with a dot are ignored.
        classes: Names of the class folders, by number; None numbers the sorted names of those that hold images.
    """

    def __init__(self, root: str | Path, classes: tuple[str, ...] | None = None) -> None:
        self.root = Path(root)
        self.classes = classes

    def scan(self) -> Listing:
        """List everything there is to pack, with its size.

        Raises:
            SourceError: No such folder, no image in it, or a class folder that ``classes`` does not name.
        """
        skipped: list[Skip] = []
        found = sorted(_walk(_root_bytes(self.root), skipped))
        names = sorted({path.partition(b"/")[0] for path, _ in found if b"/" in path})
        labels = self._number(names)
        inputs: list[Input] = []
        for path, size in found:
            folder, slash, _ = path.partition(b"/")
            if labels and not slash:
                skipped.append(Skip(_text(path), "lies outside the class folders"))
            elif size == 0:
                skipped.append(Skip(_text(path), "is empty"))
            else:
                inputs.append(Input(_text(path), size, labels[_text(folder)] if labels else None))
        skipped.sort(key=lambda skip: _raw(skip.path))
        if not inputs:
            raise SourceError(self._nothing(skipped))
        return Listing(inputs, skipped, tuple(labels))

    def read(self, entry: Input) -> bytes:
        """Return a file's bytes.

        Raises:
            SourceError: It is gone, cannot be read, or its size is not the one that was listed.
        """
        try:
            data = _read_all(os.fsencode(self.root) + b"/" + _raw(entry.path), entry.size)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror or error}") from error
        if len(data) != entry.size:
            more = "more than" if len(data) > entry.size else f"{len(data):,} of"
            raise SourceError(f"changed while it was packed: it has {more} the {entry.size:,} bytes that were listed")
        return data

    def _number(self, folders: list[bytes]) -> dict[str, int]:
        """Return class name to number: of the names given, else of the folders found."""
        names = [_text(name) for name in folders]
        if self.classes is None:
            return {name: number for number, name in enumerate(names)}
        strangers = [name for name in names if name not in self.classes]
        if strangers:
            raise SourceError(
                f"class folder {strangers[0]!r} in {self.root} is not among the classes given "
                f"({_shortened(self.classes)}): add it to them, or move the folder away"
            )
        return {name: number for number, name in enumerate(self.classes)}

    def _nothing(self, skipped: list[Skip]) -> str:
        if not skipped:
            return f"{self.root} is empty; expected class folders with images, or images ({', '.join(EXTENSIONS)})"
        first = skipped[0]
        return (
            f"{self.root} holds no image that can be packed, but {len(skipped):,} other files "
            f"({first.path!r} {first.reason}); expected <class>/**/*{{{','.join(EXTENSIONS)}}}"
        )


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
            skipped.append(Skip(_text(folder), f"folder cannot be read: {error.strerror}"))
            continue
        if identity in parents:
            skipped.append(Skip(_text(folder), "is a link to a folder that holds it"))
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
    if not entry.name.lower().endswith(tuple(os.fsencode(word) for word in EXTENSIONS)):
        reason = f"is no image by its name; packed are {', '.join(EXTENSIONS)}"
    else:
        try:
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                return status.st_size
            reason = "is no regular file"
        except OSError as error:
            reason = "is a broken link" if entry.is_symlink() else f"cannot be read: {error.strerror}"
    skipped.append(Skip(_text(path), reason))
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


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _shortened(names: tuple[str, ...], most: int = 10) -> str:
    return ", ".join(map(repr, names[:most])) + (f", ... {len(names):,} in all" if len(names) > most else "")
