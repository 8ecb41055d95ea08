"""The files of a source, local or at a URL: one file, the files of a pattern, or all files of a format below a folder.

Local files are mapped to be listed, and read record by record. Files at URLs are read in chunks; the chunks that were
used last are kept in memory.

Compressed archives, such as ``.tar.gz`` and ``.tar.zst``, are decompressed as a stream. Positions are positions in the
decompressed archive. No member can be found without decompressing everything before it, so records are cheap to read
only in order, or window by window.
"""

from __future__ import annotations

import filecmp
import glob
import lzma
import mmap
import os
import posixpath
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import xxhash

from wds_tools.errors import MissingSourceError, ShardError, SourceError, StoreError
from wds_tools.format.tar import Bytes
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    WINDOW_BYTES,
    FileState,
    SourceChangedError,
    SourceStoreError,
    as_read_error,
    as_source_error,
    file_states,
    stamp_files,
)
from wds_tools.sources.file_names import COPY, check_set, is_meant
from wds_tools.storage import Store, open_store, split_folder
from wds_tools.storage.lock import why_unfinished
from wds_tools.storage.patterns import expand_pattern, has_pattern
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.listing import RemoteFile, check_bucket, find_object, list_objects
from wds_tools.storage.stream import CHUNK_BYTES, ObjectStream

_LOGS = {  # what is in a folder if not all of its Parquet files count -> the format, and what can write plain Parquet
    "_delta_log": ("a Delta Lake table", "deltalake.DeltaTable(PATH).to_pyarrow_table()"),
    "metadata/*.metadata.json": ("an Iceberg table", "pyiceberg's scan().to_arrow()"),
    ".hoodie": ("a Hudi table", "Spark"),
}
_ENDS_BYTES = 1 << 16


def find_files(root: Path, matches: Callable[[str], bool], what: str) -> tuple[Path, ...]:
    """Return the files of a source, sorted.

    ``matches`` tests the names of files in a folder; ``what`` is the name of the format, for messages.
    """
    if not root.exists() and has_pattern(str(root)):
        matched = expand_pattern(str(root))
        check_set("", matched, given=str(root))
        return tuple(map(Path, matched))
    if not root.is_dir():
        with as_source_error(f"{root} cannot be read"):
            root.stat()
        return (root,)
    # Spark writes a folder images.parquet/ with the files in it.
    matching = (path for path in root.rglob("*") if matches(path.name))
    paths = sorted(path for path in matching if is_meant(path.relative_to(root).as_posix()) and not path.is_dir())
    if not paths:
        raise MissingSourceError(f"{root} contains no {what} files: check the path, and the format if you gave one")
    _check_no_log(root, paths)
    check_set(str(root), [path.relative_to(root).as_posix() for path in paths])
    return tuple(paths)


def _check_no_log(root: Path, paths: Iterable[Path]) -> None:
    """Check that all files count: a table with a log also keeps files that were deleted or replaced."""
    above = {folder for path in paths for folder in path.parents}
    for folder in sorted(folder for folder in above if folder == root.parent or folder.is_relative_to(root)):
        for pattern, (name, program) in _LOGS.items():
            if any(folder.glob(pattern)):
                raise SourceError(
                    f"{folder} is {name}: only its log, which is not read, states which files count. Write it as "
                    f"Parquet with {program}, or give a pattern of files to pack these as they are"
                )


def notes_on_copies(files: Sequence[tuple[Path, int]]) -> list[str]:
    """Return a note for each local file that is named like a copy of another one, or has the content of another one.

    Raises:
        SourceError: A file is named like a copy of another one and has its content: its samples would be packed twice.
    """
    sizes, notes = dict(files), list[str]()
    counts, by_size = Counter(sizes.values()), defaultdict[int, dict[bytes, Path]](dict)
    above = posixpath.commonpath([path.parent.as_posix() for path in sizes]) if sizes else ""
    names = {path: posixpath.relpath(path.as_posix(), above) for path in sizes}
    for path, size in files:
        original = path.with_name(COPY.without(path.name))
        if original != path and original in sizes:
            if size == sizes[original] and filecmp.cmp(path, original, shallow=False):
                raise SourceError(
                    f"{path} is named like a copy of {original.name!r} and has the same content: remove it, or give a "
                    "pattern that does not match it"
                )
            notes.append(f"{names[path]!r} is named like a copy of {names[original]!r}: both are packed")
        earlier = by_size[size].setdefault(_ends(path, size), path) if size and counts[size] > 1 else path
        if earlier != path and filecmp.cmp(path, earlier, shallow=False):
            notes.append(
                f"{names[earlier]!r} and {names[path]!r} have the same content: their samples are packed twice"
            )
    return notes


def _ends(path: Path, size: int) -> bytes:
    """Return the first and the last bytes of a file."""
    with path.open("rb") as file:
        first = file.read(_ENDS_BYTES)
        file.seek(max(0, size - _ENDS_BYTES))
        return first + file.read(_ENDS_BYTES)


def find_remote_files(
    root: str, matches: Callable[[str], bool], what: str, remote: RemoteOptions
) -> tuple[RemoteFile, ...]:
    """Return the files of a source at a URL, as `find_files` does for a local one."""
    try:
        files = [file for name in expand_pattern(root) for file in _find(name, matches, remote)]
    except FileNotFoundError as error:
        raise SourceError(f"{error}; check the URL") from None
    if not files:
        check_bucket(root, remote)
        raise SourceError(f"{clean_url(root)} contains no {what} files: check the URL, and the format if you gave one")
    folder = f"{root.rstrip('/')}/"
    if all(file.url.startswith(folder) for file in files):
        check_set(folder[:-1], [file.url.removeprefix(folder) for file in files])
    else:
        check_set("", [file.url for file in files], given=root)
    return tuple(files)


def _find(url: str, matches: Callable[[str], bool], remote: RemoteOptions) -> list[RemoteFile]:
    folder, last = split_folder(url.rstrip("/"))
    if glob.has_magic(last):
        objects = list_objects(folder, remote)
        return [objects[path] for path in sorted(objects) if fnmatchcase(path, last) and "/" not in path]
    if matches(last):
        return [find_object(url, remote)]
    objects = list_objects(url, remote)
    return [objects[path] for path in sorted(objects) if matches(path) and is_meant(path)]


def locate(
    path: str | Path,
    matches: Callable[[str], bool],
    what: str,
    remote: RemoteOptions | None,
    names: Sequence[str] | None = None,
) -> tuple[Path | RemoteFile, ...]:
    """Return the files of a source, local or at a URL.

    ``remote`` is None if the source is local. ``names`` are the names of the files in the folder, if they are known.
    """
    if names is None:
        files = (
            find_files(Path(path), matches, what)
            if remote is None
            else find_remote_files(str(path), matches, what, remote)
        )
        _refuse_unfinished(files, remote)
        return files
    if remote is None:
        return tuple(Path(path) / name for name in names)
    if str(path).startswith(("http://", "https://")):  # these servers list neither all files nor their sizes
        return tuple(_shard_at(f"{str(path).rstrip('/')}/{name}", remote) for name in names)
    listed = list_objects(str(path), remote)
    if missing := [name for name in names if name not in listed]:
        raise _missing_shard(f"{str(path).rstrip('/')}/{missing[0]}")
    return tuple(listed[name] for name in names)


def _shard_at(url: str, remote: RemoteOptions) -> RemoteFile:
    try:
        return find_object(url, remote)
    except FileNotFoundError as error:
        raise _missing_shard(url) from error


def _missing_shard(url: str) -> SourceError:
    folder, name = split_folder(clean_url(url))
    return SourceError(f"{folder} lists the shard {name}, which does not exist: copy it again, or pack it again")


def _refuse_unfinished(paths: Sequence[Path | RemoteFile], remote: RemoteOptions | None) -> None:
    """Raise an error for shards of a dataset that is not complete."""
    for folder in dict.fromkeys(split_folder(f.url)[0] if isinstance(f, RemoteFile) else str(f.parent) for f in paths):
        reason = why_unfinished(clean_url(folder), open_store(folder, remote=remote or RemoteOptions.of()).read)
        if reason is not None:
            raise SourceError(reason)


def open_files(paths: Sequence[Path | RemoteFile], remote: RemoteOptions | None) -> MappedFiles | RemoteFiles:
    """Return the contents of files that `locate` returned."""
    if remote is None:
        return MappedFiles(tuple(path for path in paths if isinstance(path, Path)))
    return RemoteFiles([file for file in paths if isinstance(file, RemoteFile)], remote)


def stamp_of(paths: Sequence[Path | RemoteFile]) -> str:
    """Return a hash that changes with the content of files that `locate` returned."""
    remote = [f"{file.size} {file.version}\n" for file in paths if isinstance(file, RemoteFile)]
    if not remote:
        return stamp_files(path for path in paths if isinstance(path, Path))
    return xxhash.xxh3_128("".join(remote).encode()).hexdigest()


def content_of(paths: Sequence[Path | RemoteFile], states: Sequence[FileState]) -> str:
    """Return a checksum of files that `locate` returned, without reading them.

    Args:
        paths: The files.
        states: States of the local files.
    """
    remote = [f"{file.name} {file.size} {file.version}" for file in paths if isinstance(file, RemoteFile)]
    local = [f"{file.path} {file.size} {file.mtime_ns}" for file in states]
    return xxhash.xxh3_128_hexdigest("\n".join([*remote, *local]).encode("utf-8", "surrogateescape"))


def states_of(paths: tuple[Path | RemoteFile, ...]) -> tuple[FileState, ...]:
    """Return the states of the local files that `locate` returned."""
    return file_states(path for path in paths if isinstance(path, Path))


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

    def __getitem__(self, index: int) -> memoryview:
        if index not in self._mapped:
            self._mapped[index] = map_file(self.paths[index])
        return self._mapped[index]

    def group(self, index: int, offset: int) -> int:  # noqa: ARG002 - same arguments as `RemoteFiles.group`
        """Return -1: any record is cheap to read."""
        return -1

    def slice(self, index: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of a file."""
        path = self.paths[index]
        with as_read_error(f"{path} cannot be read"):
            if index not in self._open:
                self._open[index] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._open[index])
            part = os.pread(self._open[index], stop - start, start)
        if len(part) < stop - start:
            raise SourceChangedError(f"{path} changed while it was packed: it ends before byte {stop:,}")
        return memoryview(part)


class RemoteFiles:
    """Files at URLs, with the methods of `MappedFiles`. It is not pickled; each process creates its own."""

    def __init__(self, files: Sequence[RemoteFile], remote: RemoteOptions) -> None:
        self.files = files
        self._remote = replace(remote, cache_bytes=1)  # chunks are kept in memory instead
        self._stores: dict[str, Store] = {}
        self._chunks = LRUCache[tuple[int, int], memoryview](max_bytes=2 * WINDOW_BYTES)
        counts = [file.size // CHUNK_BYTES + 1 for file in files]
        self._first_group = [sum(counts[:index]) for index in range(len(files))]

    def __getitem__(self, index: int) -> ObjectStream:
        """Return the bytes of a file, to be read once from start to end."""
        return ObjectStream(partial(self._fetch, index), self.files[index].size, chunk_bytes=CHUNK_BYTES)

    def slice(self, index: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of a file.

        Raises:
            SourceChangedError: The file was removed, or has a different length.
            SourceStoreError: The storage fails.
        """
        parts = []
        for chunk in range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)):
            offset = chunk * CHUNK_BYTES
            parts.append(self._chunk(index, chunk)[max(0, start - offset) : stop - offset])
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def group(self, index: int, offset: int) -> int:
        """Return the number of a chunk among the chunks of all files: its records are cheap to read together."""
        return self._first_group[index] + offset // CHUNK_BYTES

    def _chunk(self, index: int, chunk: int) -> memoryview:
        start = chunk * CHUNK_BYTES
        stop = min(start + CHUNK_BYTES, self.files[index].size)
        return self._chunks.load((index, chunk), partial(self._fetch, index, start, stop), len)

    def _fetch(self, index: int, start: int, stop: int) -> memoryview:
        file = self.files[index]
        try:
            return self._store(index).fetch(file.name, [(start, stop)], total_bytes=file.size)[0]
        except FileNotFoundError as error:
            raise SourceChangedError(f"{file} was removed while it was packed") from error
        except ShardError as error:
            raise SourceChangedError(f"{file} changed while it was packed: {error}") from error
        except StoreError as error:
            raise SourceStoreError(str(error)) from error

    def _store(self, index: int) -> Store:
        folder = split_folder(self.files[index].url)[0]
        if folder not in self._stores:
            self._stores[folder] = open_store(folder, remote=self._remote)
        return self._stores[folder]


TAR = ".tar"
_XZ = "xz"  # read by Python, the others by pyarrow
CODECS = {
    **dict.fromkeys([".tar.gz", ".tgz"], "gzip"),
    **dict.fromkeys([".tar.zst", ".tar.zstd"], "zstd"),
    **dict.fromkeys([".tar.bz2", ".tbz2"], "bz2"),
    **dict.fromkeys([".tar.xz", ".txz"], _XZ),
}
"""Extension -> name of the codec."""

_INPUT_BYTES = 1 << 20  # of compressed data that are read at a time
_UNKNOWN = 1 << 62  # length of an archive whose end was not read yet


def is_tar(name: str) -> bool:
    """Return whether a file name is the name of a tar archive, compressed or not.

    >>> is_tar("a.tar"), is_tar("A.TGZ"), is_tar("a.tar.zst"), is_tar("a.gz")
    (True, True, True, False)
    """
    return name.lower().endswith((TAR, *CODECS))


def tar_stem(name: str) -> str:
    """Return the name of an archive without its extension.

    >>> tar_stem("n01440764.tar.gz"), tar_stem("cats.tar")
    ('n01440764', 'cats')
    """
    suffix = next((suffix for suffix in (TAR, *CODECS) if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


class DecompressedFiles:
    """Files with the methods of `MappedFiles`, some of them compressed.

    Args:
        files: The files as they are stored.
        names: Their names.
        codecs: For each file, the name of its codec in pyarrow; None if it is not compressed.
    """

    def __init__(self, files: MappedFiles | RemoteFiles, names: list[str], codecs: list[str | None]) -> None:
        self._files = files
        self._names = names
        self._codecs = codecs
        self._chunks = LRUCache[tuple[int, int], memoryview](max_bytes=2 * WINDOW_BYTES)
        self._open: dict[int, _Decompressed] = {}

    def __getitem__(self, index: int) -> Bytes:
        """Return the bytes of an archive, to be read once from start to end; a compressed one has no known length."""
        codec = self._codecs[index]
        if codec is None:
            return self._files[index]
        recent = LRUCache[tuple[int, int], memoryview](max_items=3)
        return _Decompressed(self._files, index, self._names[index], codec, recent)

    def group(self, index: int, offset: int) -> int:
        """Return the number of a group of records that are cheap to read together, or -1."""
        if self._codecs[index] is None:
            return self._files.group(index, offset)
        return 1 << 60 | index << 30 | offset // WINDOW_BYTES

    def slice(self, index: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of an archive."""
        codec = self._codecs[index]
        if codec is None:
            return self._files.slice(index, start, stop)
        if index not in self._open:
            self._open[index] = _Decompressed(self._files, index, self._names[index], codec, self._chunks)
        part = self._open[index][start:stop]
        if len(part) < stop - start:
            raise SourceChangedError(f"{self._names[index]} changed while it was packed: it ends before byte {stop:,}")
        return part


class TarFiles(DecompressedFiles):
    """Tar archives, some of them compressed, as their names show.

    Args:
        paths: The archives.
        remote: How URLs are read; None if the archives are local.
    """

    def __init__(self, paths: Sequence[Path | RemoteFile], remote: RemoteOptions | None = None) -> None:
        names = [path.name for path in paths]
        codecs = [next((codec for end, codec in CODECS.items() if n.lower().endswith(end)), None) for n in names]
        super().__init__(open_files(paths, remote), names, codecs)


class _Decompressed:
    """One archive, decompressed chunk by chunk.

    For a chunk before the last one that was read, if it is not kept any more, decompression starts again.
    """

    def __init__(
        self,
        files: MappedFiles | RemoteFiles,
        index: int,
        name: str,
        codec: str,
        chunks: LRUCache[tuple[int, int], memoryview],
    ) -> None:
        self._files = files
        self._index = index
        self._name = name
        self._codec = codec
        self._chunks = chunks
        self._stream: Any = None
        self._next = 0  # number of the chunk that the stream returns next
        self._size = _UNKNOWN

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        start, stop = part.start or 0, min(part.stop, self._size)
        if stop - start > MAX_RECORD_BYTES:
            raise SourceError(
                f"{self._name} has a member of {stop - start:,} bytes; allowed are {MAX_RECORD_BYTES:,}: decompress "
                "the archive first"
            )
        parts = []
        while start < stop:
            chunk, offset = divmod(start, CHUNK_BYTES)
            data = self._chunk(chunk)[offset : offset + stop - start]
            if not data:
                break
            parts.append(data)
            start += len(data)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _chunk(self, chunk: int) -> memoryview:
        data = self._chunks.get((self._index, chunk))
        if data is not None:
            return data
        if chunk * CHUNK_BYTES >= self._size:
            return memoryview(b"")
        if self._stream is None or chunk < self._next:
            self._stream, self._next = _stream(_Reader(self._files[self._index]), self._codec), 0
        while self._next <= chunk:
            data = self._decompress()
            self._chunks.put((self._index, self._next), data, len(data))
            if len(data) < CHUNK_BYTES:
                self._size = self._next * CHUNK_BYTES + len(data)
                self._stream = None  # it is at its end; a chunk that is needed again is decompressed from the start
                return data if self._next == chunk else memoryview(b"")
            self._next += 1
        assert data is not None
        return data

    def _decompress(self) -> memoryview:
        try:
            return memoryview(self._stream.read(CHUNK_BYTES))
        except SourceStoreError:
            raise
        except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
            start = self._next * CHUNK_BYTES
            raise SourceError(
                f"{self._name} cannot be decompressed after byte {start:,} of its content: "
                f"{' '.join(str(error).split())}; it is damaged or truncated: download it again"
            ) from error


def _stream(file: _Reader, codec: str) -> Any:
    if codec == _XZ:
        return lzma.LZMAFile(cast("BinaryIO", file))
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)


class _Reader:
    """Bytes as a file that is read once, for pyarrow."""

    closed = False

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        start = self._position
        stop = min(len(self._data), start + (size if size >= 0 else _INPUT_BYTES))
        self._position = max(start, stop)
        return bytes(self._data[start:stop])

    def close(self) -> None:
        """Do nothing: the data belongs to others."""
