"""Which file of a tree a row of a table or a COCO file names, and which split a name is about. No I/O."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import SPLIT_OF, is_image_name, is_split_name

_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*")
_ABOVE = re.compile(r"^(\.{1,2}/)+")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


def split_of(path: str) -> str:
    """Return the split that a file belongs to, by its folders: "train", "val", "test", or the name of the folder.

    >>> split_of("photos/train_images/1.jpg"), split_of("valid/a/1.jpg"), split_of("images/1.jpg")
    ('train', 'val', '')
    """
    folder = split_folder(path)
    return split_in(folder) or folder


def split_folder(path: str) -> str:
    """Return the folder of a file that is named like a split; empty without one."""
    return next(filter(is_split_name, path.split("/")[:-1]), "")


def split_of_table(path: str) -> str:
    """Return the split that a table is about: by its folders, or by a word in its name.

    >>> split_of_table("train/labels.csv"), split_of_table("ISIC_Training_Truth.csv"), split_of_table("valLabels.csv")
    ('train', 'train', 'val')
    >>> split_of_table("labels.csv"), split_of_table("train_test_split.csv")
    ('', '')
    """
    return split_of(path) or split_in(posixpath.splitext(posixpath.basename(path))[0])


def split_in(text: str) -> str:
    """Return the split that is a word of a text; empty if none is, or several are."""
    found = {SPLIT_OF[word.lower()] for word in _WORD.findall(text) if word.lower() in SPLIT_OF}
    return found.pop() if len(found) == 1 else ""


class RowNames:
    """Files by the names that others may have for them: a path, the end of a path, or these without extension."""

    def __init__(self, files: Iterable[File]) -> None:
        self._by_name: dict[str, list[File]] = {}
        self._by_stem: dict[str, list[File]] = {}
        for file in files:
            name = posixpath.basename(file.path)
            self._by_name.setdefault(name, []).append(file)
            self._by_stem.setdefault(posixpath.splitext(name)[0], []).append(file)

    def has(self, value: Any) -> bool:
        """Return whether a value names one or more files."""
        return bool(self._candidates(_text(value)))

    def all_of(self, values: Iterable[Any]) -> list[File]:
        """Return the first file that each value can mean, without values that name none."""
        return [found[0] for value in values if (found := self._candidates(_text(value)))]

    def find(self, value: Any, *, table: str, folder: str = "") -> File | None:
        """Return the file that a value names; None if there is none.

        Of several, it is the one at this path below the folder of the table, or else in a folder of the given name, or
        else in the split of the table, or else below the folder of the table.

        Args:
            value: A text, or a number that is an id.
            table: Path of the file with the value.
            folder: Name of a folder, such as that of a split.

        Raises:
            SourceError: Several files have this name.
        """
        name = _text(value)
        found = self._candidates(name)
        if len(found) > 1:
            above, split = posixpath.dirname(table), split_of_table(table)
            path = posixpath.join(above, name)
            for test in (
                lambda file: path in (file.path, posixpath.splitext(file.path)[0]),
                lambda file: folder in file.path.split("/")[:-1],
                lambda file: bool(split) and split_of(file.path) == split,
                lambda file: bool(above) and file.path.startswith(f"{above}/"),
            ):
                found = list(filter(test, found)) or found
        if len(found) > 1:
            raise SourceError(
                f"{table} names {name!r}, which can be {quoted(file.path for file in found[:2])}: write paths into "
                "it, or keep one of the files"
            )
        return found[0] if found else None

    def _candidates(self, name: str) -> list[File]:
        last = posixpath.basename(name)
        if not last:
            return []
        exact = [file for file in self._by_name.get(last, ()) if _fits(file.path, name)]
        return exact or [file for file in self._by_stem.get(last, ()) if _fits(posixpath.splitext(file.path)[0], name)]


def _text(value: Any) -> str:
    """Return a name as a path with slashes, without ``./`` and ``../`` before it; empty for any other value."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return _ABOVE.sub("", str(value).strip().replace("\\", "/"))


def _fits(path: str, name: str) -> bool:
    """Return whether a path ends with a name; or the name, as a path on another machine, with the path."""
    is_longer = name.endswith(f"/{path}") and ("/" in path or _ABSOLUTE.match(name) is not None)
    return is_longer or f"/{path}".endswith(f"/{name}")


def are_most(named: Sequence[File], images: Sequence[File]) -> bool:
    """Return whether half of the images are named, of those of the same splits."""
    splits = {split_of(file.path) for file in named}
    return 2 * len(named) >= sum(split_of(file.path) in splits for file in images)


def first_folders(paths: Iterable[str]) -> list[str]:
    """Return the first folders in which images differ, without those that are splits; none if there is one at most.

    >>> first_folders(["a/train/cat/1.jpg", "a/train/dog/1.jpg"])
    ['cat', 'dog']
    >>> first_folders(["a/train/1.jpg", "a/test/1.jpg"])
    []
    """
    folders = {tuple(name for name in path.split("/")[:-1] if not is_split_name(name)) for path in paths}
    while folders and all(folders) and len({folder[0] for folder in folders}) == 1:
        folders = {folder[1:] for folder in folders}
    names = sorted({folder[0] for folder in folders if folder})
    return names if len(names) > 1 else []


def names_a_file(value: Any) -> bool:
    """Return whether a value has the extension of an image."""
    return isinstance(value, str) and is_image_name(value.strip())
