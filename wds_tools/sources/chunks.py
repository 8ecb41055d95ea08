"""Files of items with a table of offsets, which MDS and LitData share: their bytes, also of compressed files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wds_tools.errors import SourceError
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.base import WINDOW_BYTES, as_source_error
from wds_tools.sources.files import MappedFiles

_MAX_CONTENT_BYTES = 1 << 32  # offsets have 32 bits


class ChunkFile(NamedTuple):
    """A file of items.

    Attributes:
        path: Its path.
        codec: Name of the codec in pyarrow; None if it is not compressed.
        size: Length of its content in bytes, as the index of the dataset states it.
        length: Number of items, likewise.
    """

    path: Path
    codec: str | None
    size: int
    length: int


class ChunkFiles:
    """The content of files: mapped to be listed, and read item by item; compressed ones are decompressed as a whole."""

    def __init__(self, files: tuple[ChunkFile, ...]) -> None:
        self.files = files
        self._mapped = MappedFiles(tuple(file.path for file in files))
        self._contents = LRUCache[int, memoryview](max_bytes=WINDOW_BYTES)

    def __getitem__(self, number: int) -> memoryview:
        """Return the content of a file.

        Raises:
            SourceError: It is truncated or damaged.
        """
        file = self.files[number]
        if file.codec is None:
            data = self._mapped[number]
        else:
            found = self._contents.get(number)
            if found is not None:
                return found
            data = _decompress(self._mapped.slice(number, 0, file.path.stat().st_size), file)
            self._contents.put(number, data, len(data))
        if len(data) != file.size:
            raise SourceError(
                f"{file.path} is truncated or damaged: it has {len(data):,} bytes, but its index states {file.size:,}: "
                "copy it again"
            )
        return data

    def slice(self, number: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of the content of a file."""
        if self.files[number].codec is None:
            return self._mapped.slice(number, start, stop)
        return self[number][start:stop]

    def group(self, number: int) -> int:
        """Return the number of the group of records that are cheap to read together, or -1."""
        return -1 if self.files[number].codec is None else number

    def items(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of each item: a number of items, their offsets, then their bytes.

        Raises:
            SourceError: The table of offsets is damaged.
        """
        file, data = self.files[number], self[number]
        count = int.from_bytes(data[:4], "little")
        if count != file.length or len(data) < 4 * (count + 2):
            raise SourceError(
                f"{file.path} states {count:,} items, but its index states {file.length:,}: it is damaged or of "
                "another dataset"
            )
        offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
        if offsets[0] < 4 * (count + 2) or offsets[-1] > len(data) or offsets != sorted(offsets):
            raise SourceError(f"{file.path} is damaged: its offsets are not inside the file")
        yield from pairwise(offsets)


def _decompress(data: memoryview, file: ChunkFile) -> memoryview:
    """Return the content of a compressed file.

    Raises:
        SourceError: It is damaged, or longer than its index states.
    """
    if not 0 <= file.size <= _MAX_CONTENT_BYTES:
        raise SourceError(f"{file.path} states {file.size:,} bytes; allowed are {_MAX_CONTENT_BYTES:,}")
    with as_source_error(f"{file.path} cannot be decompressed", pa.ArrowException, ValueError):
        return decompressed(data, str(file.codec), file.size)


def decompressed(data: Any, codec: str, size: int) -> memoryview:
    """Return at most ``size`` + 1 bytes of the content of compressed data.

    Raises:
        pyarrow.ArrowException: It is damaged.
    """
    if codec == "snappy":  # has no frames, so it is not a stream
        return memoryview(pa.decompress(data, size, codec))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        parts = []
        while size >= 0 and (part := stream.read(size + 1)):
            parts.append(part)
            size -= len(part)
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


def split_fields(data: memoryview, sizes: list[int | None]) -> list[memoryview]:
    """Return the values of an item: the lengths of those without a known one, then all values.

    Raises:
        ValueError: The lengths do not match the item.
    """
    head = 4 * sizes.count(None)
    lengths = iter(np.frombuffer(data[:head], "<u4").tolist())
    position, fields = head, []
    for size in sizes:
        length = next(lengths) if size is None else size
        fields.append(data[position : position + length])
        position += length
    if position != len(data):
        raise ValueError(f"its values have {position:,} bytes, but it has {len(data):,}")
    return fields
