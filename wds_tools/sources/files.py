"""The files of a source: one file, those of a pattern, or all files of a format below a folder."""

from __future__ import annotations

import mmap
import os
import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.sources.base import SourceChangedError, as_read_error
from wds_tools.sources.layouts import SPLIT_WORDS, is_split_name
from wds_tools.storage.patterns import expand_pattern, has_pattern

_SPLIT = re.compile(rf"(?:^|.*?[-_.])({SPLIT_WORDS})(?![a-z])", re.IGNORECASE)


def find_files(root: Path, matches: Callable[[str], bool], what: str) -> tuple[Path, ...]:
    """Return the files of a source, sorted.

    Args:
        root: A file, a folder, or a pattern with braces or globs.
        matches: Returns for a file name whether the file belongs to the source. Used for folders only.
        what: Name of the format, for error messages.

    Raises:
        SourceError: There is no file, or the folder contains several splits, which must not be
            mixed by accident.
    """
    if not root.exists() and has_pattern(str(root)):
        matched = tuple(Path(name) for name in expand_pattern(str(root)))
        _check_splits(root, matched, given=str(root))
        return matched
    if not root.is_dir():
        try:
            root.stat()
        except OSError as error:
            raise SourceError(f"{root} cannot be read: {error.strerror}") from error
        return (root,)
    # Spark writes a folder images.parquet/ with the files in it.
    found = (path for path in root.rglob("*") if matches(path.name) and path.name[0] not in "._")
    paths = sorted(path for path in found if not path.is_dir())
    if not paths:
        raise MissingSourceError(f"{root} contains no {what} files: check the path, and the format if you gave one")
    _check_splits(root, paths)
    return tuple(paths)


def _check_splits(root: Path, paths: Sequence[Path], *, given: str = "") -> None:
    """Check that files are not those of several splits, unless the user named all of these.

    Raises:
        SourceError: They are.
    """
    names = [_name_with_split(root, path) if not given else path.name for path in paths]
    splits = sorted({match[1].lower() for name in names if (match := _SPLIT.match(name))})
    if len(splits) > 1 and not all(split in given.lower() for split in splits):
        raise SourceError(
            f"{root} contains several splits ({', '.join(splits)}): pack with --split folders (pack_splits) if each is "
            f"a folder, or one at a time, by a pattern such as '*{splits[0]}*'; a pattern that names all, such as "
            f"'{{{','.join(splits)}}}*', packs them together"
        )


def _name_with_split(root: Path, path: Path) -> str:
    """Return the name that may begin with a split: that of a folder below the root, otherwise that of the file."""
    folders = path.relative_to(root).parts[:-1]
    names = (folder.rpartition("=")[2] for folder in folders)  # also of split=train
    return next(filter(is_split_name, names), path.name)


def map_file(path: Path) -> memoryview:
    """Map a file into memory. An empty file, which cannot be mapped, gives an empty view."""
    with as_read_error(f"{path} cannot be read"), path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class MappedFiles:
    """The files of a source, each opened at first use: mapped to be listed, and read record by record.

    A mapped record would end the process if its storage failed, or if the file became shorter.
    """

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._mapped: dict[int, memoryview] = {}
        self._open: dict[int, int] = {}  # descriptors

    def __getitem__(self, number: int) -> memoryview:
        if number not in self._mapped:
            self._mapped[number] = map_file(self.paths[number])
        return self._mapped[number]

    def group(self, number: int, offset: int) -> int:  # noqa: ARG002 - same arguments as `RemoteFiles.group`
        """Return -1: any record is cheap to read."""
        return -1

    def slice(self, number: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of file ``number``.

        Raises:
            SourceStoreError: The file cannot be read.
            SourceChangedError: It has become shorter.
        """
        path = self.paths[number]
        with as_read_error(f"{path} cannot be read"):
            if number not in self._open:
                self._open[number] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._open[number])
            part = os.pread(self._open[number], stop - start, start)
        if len(part) < stop - start:
            raise SourceChangedError(f"{path} changed while it was packed: it ends before byte {stop:,}")
        return memoryview(part)
