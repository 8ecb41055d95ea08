"""What MDS and LitData share: a folder with ``index.json``, and files of items with a table of offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.base import WINDOW_BYTES, Collector, Input, Source, SourceOptions, as_read_error, as_source_error
from wds_tools.sources.files import MappedFiles
from wds_tools.sources.records import Item, RecordSource, attempt

INDEX = "index.json"
_MAX_INDEX_BYTES = 1 << 30
_MAX_CONTENT_BYTES = 1 << 32  # offsets have 32 bits

Cut = Callable[[int, int, int], memoryview]
"""Returns the bytes of a file, by its number, from a position to another."""


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

    def view(self, number: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of the content of a file that is mapped, to list it."""
        return self[number][start:stop]

    def slice(self, number: int, start: int, stop: int) -> memoryview:
        """Return the bytes from ``start`` to ``stop`` of the content of a file, to read an item."""
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


class ChunkSource(RecordSource):
    """A folder with the ``index.json`` and the files of one split.

    Attributes:
        format: Name of the format, for error messages.
    """

    format: ClassVar[str]

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src) if Path(src).is_dir() else Path(src).parent

    def find_chunks(self) -> tuple[ChunkFile, ...]:
        """Return the files that the index names."""
        raise NotImplementedError

    def locations(self, number: int) -> Iterator[tuple[int, ...]]:
        """Yield where each item of a file is."""
        return self._chunks.items(number)

    def group(self, number: int) -> int:
        """Return the number of the group of items that are cheap to read together, or -1."""
        return self._chunks.group(number)

    def item(self, number: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        """Return the values of an item.

        Raises:
            SourceError: It is damaged.
        """
        raise NotImplementedError

    def collect(self, found: Collector) -> None:
        files = [self.path / INDEX, *(file.path for file in self._chunks.files)]
        found.take_files(files)
        super().collect(found)
        known = {*files}
        below = (path for path in self.path.rglob("*") if path not in known and path.is_file())
        for name in sorted(path.relative_to(self.path).as_posix() for path in below):
            found.account.leave_out("file", name, f"{INDEX} does not name it")

    def splits(self) -> Mapping[str, Source]:
        """Return the datasets in the folders of a folder without an index, such as ``train`` and ``val``."""
        return {path.name: type(self)(path, self.options) for path in datasets_in(self.path)}

    def items(self) -> Iterator[Item]:
        for number, file in enumerate(self._chunks.files):
            for row, location in enumerate(self.locations(number)):
                values = attempt(self.item, number, location, self._chunks.view)
                name = file.path.relative_to(self.path).as_posix()
                yield Item(f"{name}#{row}", (number, *location), values, self.group(number))

    def values(self, entry: Input) -> Mapping[str, Any]:
        number, *location = entry.location
        with as_read_error(f"{self.path} cannot be read"):
            return self.item(number, tuple(location), self._chunks.slice)

    @cached_property
    def _chunks(self) -> ChunkFiles:
        with as_source_error(f"{self.path / INDEX} is damaged", KeyError, TypeError, ValueError, AttributeError):
            return ChunkFiles(self.find_chunks())


def read_index(folder: Path, what: str) -> dict[str, Any]:
    """Return the content of the index of a folder.

    Args:
        folder: The folder.
        what: Name of the format, for error messages.

    Raises:
        SourceError: There is none, or it is damaged.
    """
    path = folder / INDEX
    if not path.is_file():
        if below := datasets_in(folder):
            names = ", ".join(path.name for path in below)
            raise SourceError(
                f"{folder} has {what} in {names}: pack one at a time, such as {below[0]}, or each as a dataset of its "
                "own (--split folders)"
            )
        raise MissingSourceError(f"{folder} has no {INDEX}, so it is not {what}: check the path")
    with as_source_error(f"{path} cannot be read", ValueError, RecursionError):
        if path.stat().st_size > _MAX_INDEX_BYTES:
            raise SourceError(f"{path} has {path.stat().st_size:,} bytes; allowed are {_MAX_INDEX_BYTES:,}")
        found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}


def datasets_in(folder: Path) -> list[Path]:
    """Return the folders with an index in a folder that has none, sorted."""
    return [] if (folder / INDEX).is_file() else sorted(path.parent for path in folder.glob(f"*/{INDEX}"))


def child(folder: Path, name: str) -> Path:
    """Return the path of a file that an index names, which must be in the folder.

    Raises:
        ValueError: It is elsewhere.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the file {name!r} is outside the folder")
    return folder / path


def is_mds(path: Path) -> bool:
    """Return whether a folder, or a folder in it, has an index of MDS."""
    return _has(path, "shards")


def is_litdata(path: Path) -> bool:
    """Return whether a folder, or a folder in it, has an index of LitData."""
    return _has(path, "chunks")


def _has(path: Path, entry: str) -> bool:
    """Return whether the index of a folder, or of the first folder in it, has a list of dictionaries."""
    if path.name == INDEX and path.is_file():
        path = path.parent
    if not path.is_dir():
        return False
    folder = next(iter(datasets_in(path)), path)
    try:
        found = read_index(folder, "").get(entry)
    except SourceError:
        return False
    return isinstance(found, list) and bool(found) and all(isinstance(one, dict) for one in found)
