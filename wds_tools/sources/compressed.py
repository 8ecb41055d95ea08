"""Compressed tar archives, such as ``.tar.gz`` and ``.tar.zst``, decompressed as a stream while they are read.

Positions are those in the decompressed archive. No member can be found without decompressing everything before it, so
records are cheap to read only in order, or those of one window together.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from wds_tools.errors import SourceError
from wds_tools.format.tar import Bytes
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import MAX_RECORD_BYTES, WINDOW_BYTES, SourceChangedError, SourceStoreError
from wds_tools.sources.files import MappedFiles, RemoteFiles, open_files
from wds_tools.storage.requests.listing import RemoteFile
from wds_tools.storage.stream import CHUNK_BYTES

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
    """Return whether a file name is that of a tar archive, compressed or not.

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

    def __getitem__(self, number: int) -> Bytes:
        """Return the bytes of an archive, to be read once from start to end; a compressed one has no known length."""
        codec = self._codecs[number]
        if codec is None:
            return self._files[number]
        recent = LRUCache[tuple[int, int], memoryview](max_items=3)
        return _Decompressed(self._files, number, self._names[number], codec, recent)

    def group(self, number: int, offset: int) -> int:
        """Return the number of a group of records that are cheap to read together, or -1."""
        if self._codecs[number] is None:
            return self._files.group(number, offset)
        return 1 << 60 | number << 30 | offset // WINDOW_BYTES

    def slice(self, number: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of an archive.

        Raises:
            SourceError: The archive is damaged.
            SourceStoreError: Its storage fails.
            SourceChangedError: It has become shorter.
        """
        codec = self._codecs[number]
        if codec is None:
            return self._files.slice(number, start, stop)
        if number not in self._open:
            self._open[number] = _Decompressed(self._files, number, self._names[number], codec, self._chunks)
        part = self._open[number][start:stop]
        if len(part) < stop - start:
            raise SourceChangedError(f"{self._names[number]} changed while it was packed: it ends before byte {stop:,}")
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

    For a chunk that precedes the last one read and is not kept any more, it is decompressed from its start again.
    """

    def __init__(
        self,
        files: MappedFiles | RemoteFiles,
        number: int,
        name: str,
        codec: str,
        chunks: LRUCache[tuple[int, int], memoryview],
    ) -> None:
        self._files = files
        self._number = number
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
            number, offset = divmod(start, CHUNK_BYTES)
            found = self._chunk(number)[offset : offset + stop - start]
            if not found:
                break
            parts.append(found)
            start += len(found)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _chunk(self, number: int) -> memoryview:
        data = self._chunks.get((self._number, number))
        if data is not None:
            return data
        if number * CHUNK_BYTES >= self._size:
            return memoryview(b"")
        if self._stream is None or number < self._next:
            self._stream, self._next = _stream(_Reader(self._files[self._number]), self._codec), 0
        while self._next <= number:
            data = self._decompress()
            self._chunks.put((self._number, self._next), data, len(data))
            if len(data) < CHUNK_BYTES:
                self._size = self._next * CHUNK_BYTES + len(data)
                self._stream = None  # it is at its end; a chunk that is needed again is decompressed from the start
                return data if self._next == number else memoryview(b"")
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
