"""The files of a source: one, those of a pattern, or all of a kind below a folder; and their bytes, mapped."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path

from wds_tools.errors import SourceError
from wds_tools.sources.base import refusing
from wds_tools.storage.patterns import expand_pattern, has_pattern

_SPLIT = re.compile(r"(train|training|test|validation|valid|val|dev)(?![a-z])", re.IGNORECASE)


def find_files(root: Path, is_one: Callable[[str], bool], what: str) -> tuple[Path, ...]:
    """Return the files of a source, sorted.

    Args:
        root: A file, a folder, or a pattern with braces or globs.
        is_one: Tells by its name whether a file of a folder is one.
        what: Name of the kind, for error messages.

    Raises:
        SourceError: None, or a folder with those of several splits, which must not be mixed by accident.
    """
    if not root.exists() and has_pattern(str(root)):
        return tuple(Path(name) for name in expand_pattern(str(root)))
    if not root.is_dir():
        with refusing(f"{root} cannot be read"):
            root.stat()
        return (root,)
    paths = [path for path in sorted(root.rglob("*")) if is_one(path.name) and path.name[0] not in "._"]
    if not paths:
        raise SourceError(f"{root} holds no {what} files: check the path, or the format if you gave it")
    splits = sorted({match[0].lower() for path in paths if (match := _SPLIT.match(_split_word(root, path)))})
    if len(splits) > 1:
        raise SourceError(
            f"{root} holds several splits ({', '.join(splits)}): pack one at a time, by its folder or by "
            f"a pattern such as '{paths[0].parent}/{splits[0]}*{paths[0].suffix}'"
        )
    return tuple(paths)


def _split_word(root: Path, path: Path) -> str:
    """Return where a split's name stands: a folder below the root, else the file's name."""
    folders = path.relative_to(root).parts[:-1]
    return next((name for name in folders if _SPLIT.fullmatch(name)), path.name)


def map_file(path: Path) -> memoryview:
    """Return a file's bytes without reading them; an empty file has none."""
    with refusing(f"{path} cannot be read"), path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class Maps:
    """The mapped files of a source, each when it is first needed."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._maps: dict[int, memoryview] = {}

    def __getitem__(self, number: int) -> memoryview:
        if number not in self._maps:
            self._maps[number] = map_file(self.paths[number])
        return self._maps[number]

    def cut(self, number: int, start: int, stop: int) -> memoryview:
        """Return a part of a file.

        Raises:
            SourceError: The file has become shorter.
        """
        part = self[number][start:stop]
        if len(part) < stop - start:
            raise SourceError(f"{self.paths[number].name} changed while it was packed: it ends before byte {stop:,}")
        return part
