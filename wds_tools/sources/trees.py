"""Trees of files: a folder at a URL, tar archives, zip archives, and what they share with local folders.

Each lists its files with their lengths, once, and reads them one at a time. What the files are is decided elsewhere, in
`wds_tools.sources.layouts`, by the same rules for all trees.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import xxhash

from wds_tools.errors import ShardError, SourceError, StoreError
from wds_tools.format import tar
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    FileState,
    FileTimes,
    SourceStoreError,
    as_source_error,
    check_size,
    stamp_files,
)
from wds_tools.sources.file_list import FileList, Sorter, further_fields
from wds_tools.sources.file_names import hidden_root, may_have_hidden, shown_path
from wds_tools.sources.files import (
    CODECS,
    MappedFiles,
    TarFiles,
    content_of,
    find_files,
    is_tar,
    locate,
    stamp_of,
    states_of,
    tar_stem,
)
from wds_tools.sources.inputs import File, path_bytes, with_same
from wds_tools.sources.layouts import folder_of, folders_of_archives, image_endings, is_image_name
from wds_tools.sources.masks import may_have_masks, pairs
from wds_tools.storage import is_url
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.requests.clients import Client, open_client
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.listing import RemoteFile, check_not_empty, each_object
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.wording import counted

_LINK = "is a link and has no content: write the archive with `tar --dereference --hard-dereference`"
# gzip, bzip2, xz, zstd. A tar archive begins with the name of its first member, such as BZ/1.jpg.
_COMPRESSED = re.compile(rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd")
_LEADS_OUT = "has a path that leads out of the archive"
_LOCAL_HEADER = 30
_ENCRYPTED = 1
_PART_FILES = 1 << 16  # of a listing at a URL
_UTF8 = 0x800  # flag of a zip member: its name is UTF-8; Python decodes other names as cp437


_clients = LRUCache[str, Client](max_items=16)
"""Clients of recently used folders in this process, so that their connections are used again."""


class _Tally:
    """A checksum of parts of a tree in any order: the sum of their hashes."""

    def __init__(self) -> None:
        self._sum = self._count = 0

    def add(self, files: Sequence[File]) -> None:
        """Add the files of a part."""
        texts = [file.path for file in files]
        texts += [
            f"{index}\0{file.version}\0{file.reason}" for index, file in enumerate(files) if file.reason or file.version
        ]
        digest = xxhash.xxh3_128(path_bytes("\0".join(texts)))
        digest.update(array("q", [file.size for file in files]).tobytes())
        self._sum += digest.intdigest()
        self._count += len(files)

    def __str__(self) -> str:
        return f"{self._count}-{self._sum % 2**128:032x}"


class Tree:
    """Files below a root. It is pickled for worker processes: attributes that start with ``_`` are not.

    Attributes:
        name: Name of the root, for messages.
        stamp: After listing: changes with what paths and lengths do not show.
        states: After listing: the local files that contain the files.
        hidden: After listing: folders and images that are hidden, and names of other hidden files; see `hidden_root`.
        empty_folders: After listing: folders without files, of a local folder.
        times: After listing: modification times of the files of a local folder.
        notes: After listing: what a user should know about the names.
        checksum: After listing: a checksum of the paths, lengths and versions of all files.
    """

    name: str
    stamp: str = ""
    states: tuple[FileState, ...] = ()
    hidden: frozenset[str] = frozenset()
    empty_folders: tuple[str, ...] = ()
    times: FileTimes | None = None
    notes: tuple[str, ...] = ()
    checksum: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def list(self) -> FileList:
        """Return all files that are not hidden, in the order of the bytes of their paths.

        Raises:
            SourceError: There is no such tree, or it is damaged.
            StoreError: The storage fails.
        """
        sorter = Sorter()
        hidden, tally = set[str](), _Tally()
        self.notes = ()
        for files in self._parts():
            tally.add(files)
            if not may_have_hidden([file.path for file in files]):
                sorter.add(files)
                continue
            for file in files:
                if (root := hidden_root(file.path)) is None:
                    sorter.add([file])
                elif root != file.path or is_image_name(root):
                    hidden.add(root)
                else:
                    hidden.add(root.rpartition("/")[2])  # a .DS_Store in each folder is stated once
        self.hidden = frozenset(hidden)
        self.checksum = self._checksum(tally)
        return sorter.result()

    def listed_again(self, is_stopped: Callable[[], bool]) -> str | None:
        """List all files without keeping them, and return their checksum; None if ``is_stopped`` returned True."""
        tally = _Tally()
        for files in self._parts():
            tally.add(files)
            if is_stopped():
                return None
        return self._checksum(tally)

    def _checksum(self, tally: _Tally) -> str:
        return str(tally)

    def read(self, path: str, size: int, location: tuple[int, ...]) -> bytes:
        """Return the content of a file, given as in `File`.

        Raises:
            SourceError: It is damaged.
            SourceStoreError: It is missing, or the storage fails.
            SourceChangedError: It has changed since it was listed.
        """
        raise NotImplementedError

    def group(self, location: tuple[int, ...]) -> int:  # noqa: ARG002 - used by trees whose files are read in groups
        """Return the number of a group of files that are cheap to read together; -1 if any file is cheap to read."""
        return -1

    def _parts(self) -> Iterator[Sequence[File]]:
        """Yield the files in parts, which are the same at each call."""
        raise NotImplementedError

    def _with_slashes(self, archive: str, files: dict[str, File], *, always: bool = False) -> dict[str, File]:
        """Return the files of an archive with slashes in their paths: programs on Windows may write backslashes.

        ``always``: backslashes separate folders even if another name has a slash.
        """
        separated = next((name for name in files if "\\" in name), None)
        if separated is not None and (always or not any("/" in name for name in files)):
            renamed: dict[str, File] = {}
            for name, file in files.items():
                path = _inside(name.replace("\\", "/"))
                if path in renamed:
                    raise SourceError(f"{archive} has {name!r} and {path!r}, which are one path: rename one of them")
                if not path.endswith("/"):
                    renamed[path] = file._replace(path=path)
            files = renamed
            self.notes += (f"backslashes in names such as {separated!r} of {archive} are read as slashes",)
        return {
            name: File(name, 0, (), _LEADS_OUT) if ".." in name.split("/") else file for name, file in files.items()
        }


class RemoteTree(Tree):
    """A folder at a URL: listed with one request per 1,000 objects, and read with one request per file."""

    _listed: FileList | None = None

    def __init__(self, url: str, remote: RemoteOptions) -> None:
        self.url = url.rstrip("/")
        self.name = clean_url(self.url)
        self.remote = remote

    def read(self, path: str, size: int, location: tuple[int, ...]) -> bytes:  # noqa: ARG002 - found by its path
        """Read an object."""
        shown = clean_url(f"{self.url}/{path}")
        try:
            data = client_of(RemoteFolder.of(self.url, self.remote)).read(path, most_bytes=MAX_FILE_BYTES)
        except FileNotFoundError as error:
            raise SourceStoreError(f"{shown} was removed while it was packed") from error
        except StoreError as error:
            raise SourceStoreError(str(error)) from error
        check_size(shown, len(data), size)
        return data

    def take(self, objects: FileList) -> None:
        """Use what `objects_below` returned, once."""
        self._listed = objects

    def _parts(self) -> Iterator[Sequence[File]]:
        listed, self._listed = self._listed, None
        listed = objects_below(self.url, self.remote) if listed is None else listed
        check_not_empty(listed, self.url, self.remote)
        objects = (next(same) for _, same in groupby(listed, attrgetter("path")))
        stamp = xxhash.xxh3_128()
        while part := list(islice(objects, _PART_FILES)):
            shown = (file for file in part if hidden_root(file.path) is None)
            stamp.update("".join([f"{file.size} {file.version}\n" for file in shown]).encode())
            # Some tools create an object for each folder.
            yield [file for file in part if not file.path.endswith("/")]
        self.stamp = stamp.hexdigest()


def objects_below(url: str, remote: RemoteOptions) -> FileList:
    """Return all objects below a URL in the order of their paths, some of them twice."""
    sorter = Sorter()
    listed = each_object(url, remote)
    while part := [File(entry.path, entry.size, version=entry.version) for entry in islice(listed, _PART_FILES)]:
        sorter.add(part)
    return sorter.result()


class Archives(Tree):
    """Archives with the files of a tree."""

    paths: tuple[Any, ...]  # Path or RemoteFile
    have_labels = True  # False if the user wants none

    def listed_again(self, is_stopped: Callable[[], bool]) -> str:  # noqa: ARG002 - this is quick
        """Return the checksum of the archives, without looking into them."""
        self.states = states_of(self.paths)
        return self._checksum()

    def _checksum(self, tally: _Tally | None = None) -> str:  # noqa: ARG002 - the tally of members
        return content_of(self.paths, self.states)

    def _note_repeated(self, archive: str, names: Sequence[str]) -> None:
        """Note the names that several members of an archive have."""
        if names:
            more = f", and {counted(len(names) - 1, 'other name')} several times" if len(names) > 1 else ""
            self.notes += (f"{archive} has {names[0]!r} several times{more}: only the last one is read",)

    def _joined(self, stems: Sequence[str], archives: Sequence[Mapping[str, File]]) -> Iterator[list[File]]:
        """Yield the files of each archive, in its folder if archives are folders, see `folders_of_archives`."""
        paths = [path.url if isinstance(path, RemoteFile) else str(path) for path in self.paths]
        above = posixpath.commonpath(map(posixpath.dirname, paths))
        places = [posixpath.dirname(posixpath.relpath(path, above)) for path in paths]
        folders, note = folders_of_archives(places, stems, archives, where=self.name)
        self.notes += (note,) if note and self.have_labels else ()
        names = [folder + name for folder, files in zip(folders, archives, strict=True) for name in files]
        same = [*with_same(names, str)] if len(archives) > 1 else []
        masks = pairs(same).pairs if may_have_masks(same, map(folder_of, same)) else []
        of_images = {mask for _, fields in masks for mask in fields.values()}
        if parts := sorted({*of_images, *further_fields(same, image_endings(same))}):
            raise SourceError(
                f"{self.name} has {parts[0]!r} and its image in several archives, so it is not certain which belong "
                "together: unpack each archive into a folder of its own"
            )
        if images := list(filter(is_image_name, same)):
            first = min(images)
            self.notes += (f"{counted(len(images), 'path')} in several archives, such as {first!r}: all are packed",)
        for folder, files in zip(folders, archives, strict=True):
            yield [file._replace(path=folder + name) for name, file in files.items()]


class TarTree(Archives):
    """Tar archives, plain or compressed: an archive, a pattern, a folder of archives, or a URL of these.

    Several archives without folders inside are each a folder with the name of the archive, as ImageNet is distributed,
    unless their names differ only in numbers. Members are read from the archive, which is not unpacked to disk; a
    compressed one is decompressed as a stream.
    """

    def __init__(self, src: str | Path, remote: RemoteOptions) -> None:
        self.name = shown_path(str(src))
        self.remote = remote if is_url(str(src)) else None
        self.paths = locate(src, is_tar, "tar", self.remote)

    def read(self, path: str, size: int, location: tuple[int, ...]) -> bytes:  # noqa: ARG002 - found by its location
        """Read a member."""
        index, offset = location
        return bytes(self._mapped.slice(index, offset, offset + size))

    def group(self, location: tuple[int, ...]) -> int:
        """Return the number of a window of the archive."""
        return self._mapped.group(*location)

    def _parts(self) -> Iterator[Sequence[File]]:
        self.states = states_of(self.paths)
        archives = [self._members(index, path) for index, path in enumerate(self.paths)]
        yield from self._joined([tar_stem(path.name) for path in self.paths], archives)
        self.stamp = stamp_of(self.paths)

    def _members(self, index: int, path: Path | RemoteFile) -> dict[str, File]:
        """Return the files of an archive by path. A name may occur again after `tar -r`: the last one counts."""
        data = self._mapped[index]
        if _COMPRESSED.match(bytes(data[:10])):
            raise SourceError(
                f"{path} is compressed, but its name does not end in {', '.join(CODECS)}: rename it, or decompress it"
            )
        files: dict[str, File] = {}
        repeated: list[str] = []
        try:
            for member in tar.walk(data, shard=path.name):
                name = _inside(member.name)
                if member.is_folder:
                    continue
                target = files.get(_inside(member.link)) if member.link else None
                if member.is_file:
                    file = File(name, member.size, (index, member.offset))
                elif target is not None:
                    file = target._replace(path=name)
                else:
                    file = File(name, 0, (), _LINK)
                repeated += [name] if files.pop(name, None) is not None else []
                files[name] = file
        except ShardError as error:
            raise SourceError(f"{path} cannot be packed: {error}") from error
        self._note_repeated(path.name, repeated)
        texts = _texts_of([path_bytes(name) for name in files], path)
        files = {text: file._replace(path=text) for text, file in zip(texts, files.values(), strict=True)}
        return self._with_slashes(path.name, files)

    @cached_property
    def _mapped(self) -> TarFiles:
        return TarFiles(self.paths, self.remote)


class ZipTree(Archives):
    """Zip archives: an archive, a pattern, or a folder of archives.

    Members are read at their offset, without the central directory, and decompressed in memory, up to their stated
    size.
    """

    def __init__(self, src: str | Path) -> None:
        self.name = str(src)
        self.paths = find_files(Path(src), is_zip, "zip")

    def read(self, path: str, size: int, location: tuple[int, ...]) -> bytes:  # noqa: ARG002 - found by its location
        """Read a member."""
        index, offset, packed_size, method, checksum = location
        head = self._mapped.slice(index, offset, offset + _LOCAL_HEADER)
        if bytes(head[:4]) != b"PK\x03\x04":
            raise SourceError("is damaged: there is no local header at the offset in the central directory")
        start = offset + _LOCAL_HEADER + sum(struct.unpack_from("<HH", head, 26))
        data = bytes(self._mapped.slice(index, start, start + packed_size))
        if method == zipfile.ZIP_DEFLATED:
            with as_source_error("is damaged", zlib.error):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        if len(data) != size or zlib.crc32(data) != checksum:
            raise SourceError("is damaged: its length or checksum differs from the central directory")
        return data

    def _parts(self) -> Iterator[Sequence[File]]:
        self.states = states_of(self.paths)
        archives = []
        for index, path in enumerate(self.paths):
            bad = (zipfile.BadZipFile, ValueError, NotImplementedError)
            with as_source_error(f"{path} cannot be read as zip", *bad), zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            unmarked = [info for info in members if not info.filename.isascii() and not info.flag_bits & _UTF8]
            texts = _texts_of([info.filename.encode("cp437") for info in unmarked], path)
            text_of = dict(zip(map(id, unmarked), texts, strict=True))
            files: dict[str, File] = {}  # of members with the same name, the last one counts
            repeated: list[str] = []
            for info in members:
                name = _inside(text_of.get(id(info), info.filename))
                if not name.endswith("/"):
                    repeated += [name] if name in files else []
                    location = (index, info.header_offset, info.compress_size, info.compress_type, info.CRC)
                    files[name] = File(name, info.file_size, location, _why_unreadable(info))
            self._note_repeated(path.name, repeated)
            archives.append(self._with_slashes(path.name, files, always=True))
        yield from self._joined([path.stem for path in self.paths], archives)
        self.stamp = stamp_files(self.paths)

    @cached_property
    def _mapped(self) -> MappedFiles:
        return MappedFiles(self.paths)


def client_of(folder: RemoteFolder) -> Client:
    """Return the client of this process for a folder at a URL."""
    key = f"{os.getpid()} {folder.url} {folder.policy} {sorted(folder.options.items(), key=str)}"
    return _clients.load(key, lambda: open_client(folder), lambda _: 0)


def is_zip(name: str) -> bool:
    """Return whether a file name is the name of a zip archive."""
    return name.lower().endswith(".zip")


def _texts_of(names: Sequence[bytes], archive: Any) -> list[str]:
    """Return names of an archive as text."""
    try:
        return [name.decode() for name in names]
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{archive} has names that are not UTF-8, such as {error.object!r}: unpack it with a program that converts "
            "them, such as `unzip -O gbk` on Linux, and pack the folder"
        ) from None


def _inside(name: str) -> str:
    """Return the path of a member below the root of its archive."""
    return name.removeprefix("./").lstrip("/")


def _why_unreadable(info: zipfile.ZipInfo) -> str:
    """Return why a member cannot be read; empty if it can."""
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted, and is not read: unpack the archive, and pack the folder"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed with method {info.compress_type}; allowed are stored and deflated members"
    if info.file_size > MAX_RECORD_BYTES:
        return f"states {info.file_size:,} bytes; allowed are {MAX_RECORD_BYTES:,}"
    return ""
