"""The files of a tree, listed once: up to a million are objects; if there are more, blocks are in a temporary file.

Iterating makes objects of one block after another. So a question about all files should be asked while iterating.
`RowNames` has the rule for which image a name in another file means: for tables, COCO files and all others.
"""

from __future__ import annotations

import marshal
import os
import posixpath
import re
import tempfile
import unicodedata
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from heapq import merge
from itertools import chain, islice, pairwise, repeat
from typing import Any, NamedTuple, overload

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources import layouts, masks
from wds_tools.sources.inputs import File, path_bytes
from wds_tools.sources.layouts import EXTENSIONS, FIELDS, file_stem, folder_of, split_of, split_of_table
from wds_tools.sources.refused import About, why_not_packed

_MOST_OBJECTS = 1 << 20
_BLOCK_FILES = 1 << 12
_COPY = re.compile(r".*\(\d+\)\.")  # 1.jpg.supplemental-metadata(2).json of Google Takeout is about 1(2).jpg
_PIXEL_FIELD = re.compile(r"(mask|seg|segmentation|depth|normals?|edges?|alpha|matte|labels?|instances?|panoptic)\d*")
_ABOVE = re.compile(r"^(\.{1,2}/)+|^/data/local-files/\?d=")  # the latter in Label Studio
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


class FileList(Sequence[File]):
    """Files in the order in which they are added. A slice is a list.

    Args:
        files: The first of them.
        storage: Where blocks are written, if there are too many for objects.
    """

    def __init__(self, files: Iterable[File] = (), storage: _Storage | None = None) -> None:
        self._storage = storage or _Storage()
        self._blocks: list[_Block] = []
        self._starts = [0]  # indexes of the first file of each block, and of the objects after them
        self._last: list[File] = []
        self.extend(files)

    @classmethod
    def of(cls, files: Iterable[File]) -> FileList:
        """Return files as such a list."""
        return files if isinstance(files, FileList) else cls(files)

    def extend(self, files: Iterable[File]) -> None:
        """Add files."""
        following = iter(files)
        while part := list(islice(following, _MOST_OBJECTS)):
            self._last += part
            if len(self._last) > (_BLOCK_FILES if self._blocks else _MOST_OBJECTS):
                self.store()

    def store(self) -> None:
        """Write the files that are objects."""
        for start in range(0, len(self._last), _BLOCK_FILES):
            part = self._last[start : start + _BLOCK_FILES]
            self._blocks.append(self._storage.write(part))
            self._starts.append(self._starts[-1] + len(part))
        self._last = []

    def take(self, run: FileList) -> None:
        """Add files of a list with the same storage, all of which are stored."""
        self.store()
        self._blocks += run._blocks
        self._starts += [self._starts[-1] + start for start in run._starts[1:]]

    def blocks(self) -> Iterator[list[File]]:
        """Yield the files in parts."""
        yield from map(self._storage.files, self._blocks)
        if self._last:
            yield self._last

    @property
    def paths(self) -> Paths:
        """Their paths."""
        return Paths(self)

    def path_blocks(self) -> Iterator[list[str]]:
        """Yield the paths in parts."""
        yield from map(self._storage.paths, self._blocks)
        if self._last:
            yield [file.path for file in self._last]

    def __len__(self) -> int:
        return self._starts[-1] + len(self._last)

    def __iter__(self) -> Iterator[File]:
        return chain.from_iterable(self.blocks())

    @overload
    def __getitem__(self, index: int) -> File: ...
    @overload
    def __getitem__(self, index: slice) -> list[File]: ...
    def __getitem__(self, index: int | slice) -> File | list[File]:
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        position = range(len(self))[index]
        if position >= self._starts[-1]:
            return self._last[position - self._starts[-1]]
        block = bisect_right(self._starts, position) - 1
        return self._storage.files(self._blocks[block])[position - self._starts[block]]


class Paths(Sequence[str]):
    """The paths of a `FileList`. A slice is a list."""

    def __init__(self, files: FileList) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._files.path_blocks())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        return self._files[index].path


class Sorter:
    """Sorts files by the bytes of their paths: a million at a time as objects, then merged from blocks."""

    def __init__(self) -> None:
        self._storage = _Storage()
        self._runs: list[FileList] = []
        self._last: list[File] = []

    def add(self, files: Iterable[File]) -> None:
        """Add files."""
        self._last += files
        if len(self._last) > _MOST_OBJECTS:
            self._end_run()

    def result(self) -> FileList:
        """Return all files in order."""
        if not self._runs:
            return FileList(_in_order(self._last))
        self._end_run()
        runs = sorted(self._runs, key=lambda run: path_bytes(run[0].path))
        if any(path_bytes(run[-1].path) > path_bytes(following[0].path) for run, following in pairwise(runs)):
            return FileList(merge(*runs, key=lambda file: path_bytes(file.path)))  # each reads a block at a time
        files = FileList(storage=self._storage)  # files are listed almost in order
        for run in runs:
            files.take(run)
        return files

    def _end_run(self) -> None:
        if self._last:
            run = FileList(storage=self._storage)
            run.extend(_in_order(self._last))
            run.store()
            self._runs.append(run)
            self._last = []


class Files:
    """The files of a tree or of one split, listed once.

    Args:
        files: In the order of the bytes of their paths.
        read: Returns the content of a file.
        where: Name of the tree, for messages.
        in_archive: Whether the tree is one or more archives.
        empty_folders: Folders without files.

    Attributes:
        images: Files with the extension of an image.
        others: All other files.
        about: What files that are not packed have to do with the images, by path.
    """

    def __init__(
        self,
        files: Sequence[File],
        read: Callable[[File], bytes],
        where: str,
        *,
        in_archive: bool = False,
        empty_folders: Sequence[str] = (),
    ) -> None:
        self.files = FileList.of(files)
        self.read = read
        self.where = where
        self.in_archive = in_archive
        self.empty_folders = empty_folders
        self.about: Mapping[str, About] = {}
        self._endings = endings = layouts.image_endings(self.files.paths)
        are_images = all(path.endswith(endings) for path in self.files.paths)
        self.images = self.files if are_images else FileList(f for f in self.files if f.path.endswith(endings))
        self.others = [] if are_images else [file for file in self.files if not file.path.endswith(endings)]

    @cached_property
    def by_path(self) -> dict[str, File]:
        """Path -> file."""
        return {file.path: file for file in self.files}

    @cached_property
    def folders(self) -> Counter[str]:
        """Number of images in each folder, by `layouts.folder_of`: there may be millions of images in few folders."""
        return Counter(path[: path.rfind("/") + 1] for path in self.images.paths)

    @cached_property
    def further_fields(self) -> dict[str, tuple[str, str]]:
        """Path of a further file of an image -> path of the image, field."""
        return further_fields(self.files.paths, self._endings)

    @cached_property
    def pairing(self) -> masks.Pairs:
        """Which mask belongs to which image."""
        paths = self.images.paths
        return masks.pairs(paths if masks.may_have_masks(paths, self.folders) else ())

    @cached_property
    def without_masks(self) -> tuple[Sequence[File], dict[str, dict[str, File]]]:
        """The images that are not masks of others, and path of an image -> field -> mask."""
        parts = self.named(self.pairing.pairs)
        taken = {mask.path for fields in parts.values() for mask in fields.values()}
        further = self.further_fields
        for path, (image, field) in further.items():
            if path not in taken and image not in taken:
                parts.setdefault(image, {}).setdefault(field, self.by_path[path])
        if not taken and not further:
            return self.images, parts
        return [file for file in self.images if file.path not in taken and file.path not in further], parts

    @cached_property
    def have_json(self) -> bool:
        """Whether images have JSON files. Then img2dataset's table of a folder has nothing more."""
        return any(field == "json" for _, field in self.further_fields.values())

    def check_fields(self) -> None:
        """Check that no two files are the same field of an image, such as ``1.json`` and ``1.jpg.json``."""
        fields = self.further_fields
        first: dict[tuple[str, str], str] = {}
        for path, key in fields.items() if len({*fields.values()}) < len(fields) else ():
            if (same := first.setdefault(key, path)) != path:
                image, field = key
                raise SourceError(
                    f"{self.where} has {same!r} and {path!r}, and both would be the field {field!r} of {image!r}: "
                    "rename or remove one of them"
                )

    def named(self, parts: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, dict[str, File]]:
        """Return further files of images: path of the image -> field -> file, from the paths of the files."""
        return {image: {name: self.by_path[path] for name, path in fields.items()} for image, fields in parts}

    def only(self, files: Iterable[File]) -> Files:
        """Return a part of these files."""
        part = Files(
            FileList.of(files), self.read, self.where, in_archive=self.in_archive, empty_folders=self.empty_folders
        )
        part.about = {path: about for path, about in self.about.items() if path in part.by_path}
        return part

    def why_not_packed(self, path: str) -> str:
        """Return why a file that is not an image is not packed."""
        return self.about[path].reason if path in self.about else why_not_packed(path)

    def divided(self, claimed: Mapping[str, Set[str]]) -> dict[str, list[File]]:
        """Return the files of each split by its name. Files of no split are in the first."""
        everywhere = set[str]().union(*claimed.values())
        first = next(iter(claimed))
        return {
            name: [file for file in self.files if file.path in paths or (name == first and file.path not in everywhere)]
            for name, paths in claimed.items()
        }


def further_fields(paths: Sequence[str], endings: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return the files that are further fields of an image: path -> (path of the image, field).

    Their names are the name of the image, with or without its extension, and another extension.

    >>> further_fields(["a/1.jpg", "a/1.txt", "a/1.jpg.json", "a/1.mask.png", "a/readme.txt"], (".jpg", ".png"))
    {'a/1.txt': ('a/1.jpg', 'txt'), 'a/1.jpg.json': ('a/1.jpg', 'json'), 'a/1.mask.png': ('a/1.jpg', 'mask.png')}
    >>> further_fields(["1.jpg", "1.jpg.hint.png", "1.front.png"], (".jpg", ".png"))
    {'1.jpg.hint.png': ('1.jpg', 'hint.png')}
    """
    candidates = [
        path
        for path in paths
        if not path.endswith(endings) or (path.count(".") > 1 and "." in path[path.rfind("/") + 1 : path.rfind(".")])
    ]
    images: dict[str, list[str]] = {start: [] for path in candidates for start, _ in _divisions(path)}
    for path in paths if images else ():
        if path.endswith(endings):
            for start in {path, path[: path.rfind(".")]}:
                if start in images:
                    images[start].append(path)
    fields = {}
    for path in candidates:
        for start, field in _divisions(path):
            owners = [image for image in images[start] if image != path]
            if owners and _is_field(field, start):
                if len(owners) == 1:
                    fields[path] = (owners[0], field)
                break
    return {path: (image, field) for path, (image, field) in fields.items() if image not in fields}


def _divisions(path: str) -> list[tuple[str, str]]:
    """Return how a path can be divided into the path of an image and a field, the shortest field first."""
    folder, words = folder_of(path), path[path.rfind("/") + 1 :].split(".")
    counts = range(len(words) - 1, 0, -1)
    return [(folder + ".".join(words[:count]), ".".join(words[count:]).lower()) for count in counts]


def _is_field(field: str, start: str) -> bool:
    """Return whether the end of a file name is a field, and not a part of the name of another image."""
    word, _, extension = field.rpartition(".")
    if _COPY.match(field):
        return False
    if f".{extension}" in EXTENSIONS:
        is_of_file = word.isidentifier() and start.lower().endswith(EXTENSIONS)
        return is_of_file or _PIXEL_FIELD.fullmatch(word.rpartition(".")[2]) is not None
    return extension in FIELDS


class RowNames:
    """Files by the names that other files may use for them: a path, the end of a path, or these without extension."""

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
        return [files[0] for value in values if (files := self._candidates(_text(value)))]

    def find(self, value: Any, *, table: str, folder: str = "") -> File | None:
        """Return the file that a value names; None if there is none.

        Of several, it is the one at this path below the folder of the table, or else in a folder of the given name, or
        else in the split of the table, or else below the folder of the table.

        Args:
            value: A text, or a number that is an id.
            table: Path of the file with the value.
            folder: Name of a folder, such as the folder of a split.
        """
        name = _text(value)
        candidates = self._candidates(name)
        if len(candidates) > 1:
            above, split = posixpath.dirname(table), split_of_table(table)
            path = posixpath.join(above, name)
            for test in (
                lambda file: path in (file.path, posixpath.splitext(file.path)[0]),
                lambda file: folder in file.path.split("/")[:-1],
                lambda file: bool(split) and split_of(file.path) == split,
                lambda file: bool(above) and file.path.startswith(f"{above}/"),
            ):
                candidates = list(filter(test, candidates)) or candidates
        if len(candidates) > 1:
            raise SourceError(
                f"{table} names {name!r}, which can be {quoted(file.path for file in candidates[:2])}: write paths "
                "into it, or keep one of the files"
            )
        return candidates[0] if candidates else None

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
    """Return whether at least half of the images are named; only images in the splits of the named ones count."""
    splits = {split_of(file.path) for file in named}
    return 2 * len(named) >= sum(split_of(file.path) in splits for file in images)


def in_other_letters(paths: Iterable[str], images: Iterable[str]) -> dict[str, str]:
    """Return path -> image whose name differs from it only in case or in how accents are encoded, without extensions.

    >>> in_other_letters(["labels/img_1.txt", "labels/IMG_2.txt"], ["images/IMG_1.jpg", "images/IMG_2.jpg"])
    {'labels/img_1.txt': 'images/IMG_1.jpg'}
    """
    path_of = {file_stem(path): path for path in paths}
    stem_of = {_letters(stem): stem for stem in path_of}
    pairs = [(stem_of.get(_letters(file_stem(image))), image) for image in images] if path_of else []
    return {path_of[stem]: image for stem, image in pairs if stem is not None and stem != file_stem(image)}


def _letters(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


class _Block(NamedTuple):
    """A place in the file of a `_Storage`, or the data itself if it could not be written."""

    start: int
    length: int
    data: bytes = b""


class _Storage:
    """Blocks of files in a temporary file without a name, or in memory if its disk is full."""

    _descriptor: int | None = None
    _end = 0

    def write(self, files: Sequence[File]) -> _Block:
        """Write files."""
        paths, sizes, *others = map(list, zip(*files, strict=True))
        are_plain = all(values.count(values[0]) == len(values) and not values[0] for values in others)
        data = marshal.dumps((paths, sizes, None if are_plain else others))
        try:
            if self._descriptor is None:
                with tempfile.TemporaryFile() as file:
                    self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
            is_written = os.pwrite(self._descriptor, data, self._end) == len(data)
        except OSError:
            is_written = False
        if not is_written:
            return _Block(0, 0, data)
        self._end += len(data)
        return _Block(self._end - len(data), len(data))

    def files(self, block: _Block) -> list[File]:
        """Return the files of a block."""
        paths, sizes, others = self._content(block)
        columns = others or [repeat(File._field_defaults[name]) for name in File._fields[2:]]
        return list(map(File, paths, sizes, *columns))

    def paths(self, block: _Block) -> list[str]:
        """Return their paths."""
        paths: list[str] = self._content(block)[0]
        return paths

    def _content(self, block: _Block) -> Any:
        data = block.data
        if self._descriptor is not None and not data:
            data = os.pread(self._descriptor, block.length, block.start)
        return marshal.loads(data)  # noqa: S302 - written by this process


def _in_order(files: list[File]) -> list[File]:
    """Return files in the order of the bytes of their paths, which is the order of characters if all are UTF-8."""
    try:
        "".join([file.path for file in files]).encode()
    except UnicodeEncodeError:
        return sorted(files, key=lambda file: path_bytes(file.path))
    return sorted(files, key=lambda file: file.path)
