"""Folders with ``index.json`` and files of items with a table of offsets: what MDS and LitData share, and MDS.

MDS is the format of MosaicML Streaming. Source:
https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A shard has the number of
samples, their offsets, its header as JSON, and the samples: the lengths of values without a fixed one, then the values
in the order of the columns. Values by pickle are not read.
"""

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
from wds_tools.sources.base import Collector, Source, SourceOptions, as_read_error, as_source_error
from wds_tools.sources.files import MappedFiles
from wds_tools.sources.inputs import Input
from wds_tools.sources.records import Item, RecordSource, attempt
from wds_tools.sources.values import PICKLE, Excluded, array_of, images_of, pillow_image

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


def decompressed(data: Any, codec: str, size: int) -> memoryview:
    """Return at most ``size`` + 1 bytes of the content of compressed data.

    Raises:
        pyarrow.ArrowException: It is damaged.
    """
    if codec == "snappy":  # has no frames, so it is not a stream
        return memoryview(pa.decompress(data, size, codec))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return memoryview(stream.read(size + 1))


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
        self.path = self.path if self.path.is_dir() else self.path.parent

    def find_chunks(self) -> tuple[ChunkFile, ...]:
        """Return the files that the index names."""
        raise NotImplementedError

    def item(self, number: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        """Return the values of an item.

        Raises:
            SourceError: It is damaged.
        """
        raise NotImplementedError

    def group(self, number: int) -> int:
        """Return the number of the group of items that are cheap to read together, or -1."""
        return -1 if self._files[number].codec is None else number

    def locations(self, number: int) -> Iterator[tuple[int, ...]]:
        """Yield where each item of a file is, (start, stop): a number of items, their offsets, then their bytes."""
        file, data = self._files[number], self.content(number)
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

    def content(self, number: int) -> memoryview:
        """Return the content of a file: mapped, or decompressed as a whole."""
        file = self._files[number]
        is_plain = file.codec is None
        data = self._mapped[number] if is_plain else self._cache.load(number, lambda: self._decompress(number), len)
        if len(data) != file.size:
            raise SourceError(
                f"{file.path} is truncated or damaged: it has {len(data):,} bytes, but its index states {file.size:,}: "
                "copy it again"
            )
        return data

    def slice(self, number: int, start: int, stop: int) -> memoryview:
        """Return a part of the content of a file, to read an item."""
        if self._files[number].codec is None:
            return self._mapped.slice(number, start, stop)
        return self.content(number)[start:stop]

    def collect(self, found: Collector) -> None:
        found.take_files([self.path / INDEX, *(file.path for file in self._files)])
        super().collect(found)

    def why_left_out(self, path: str) -> str | None:  # noqa: ARG002 - the same for all
        return f"{INDEX} does not name it"

    def splits(self) -> Mapping[str, Source]:
        """Return the datasets in the folders of a folder without an index, such as ``train`` and ``val``."""
        return {path.name: type(self)(path, self.options) for path in datasets_in(self.path)}

    def items(self) -> Iterator[Item]:
        for number, file in enumerate(self._files):
            name = file.path.relative_to(self.path).as_posix()
            for row, location in enumerate(self.locations(number)):
                values = attempt(self.item, number, location, lambda file, *part: self.content(file)[slice(*part)])
                yield Item(f"{name}#{row}", (number, *location), values, self.group(number))

    def values(self, entry: Input) -> Mapping[str, Any]:
        number, *location = entry.location
        with as_read_error(f"{self.path} cannot be read"):
            return self.item(number, tuple(location), self.slice)

    @cached_property
    def _files(self) -> tuple[ChunkFile, ...]:
        with as_source_error(f"{self.path / INDEX} is damaged", KeyError, TypeError, ValueError, AttributeError):
            return self.find_chunks()

    @cached_property
    def _mapped(self) -> MappedFiles:
        return MappedFiles(tuple(file.path for file in self._files))

    def _decompress(self, number: int) -> memoryview:
        """Return the content of a compressed file, or one byte more than its index states."""
        file = self._files[number]
        if not 0 <= file.size <= _MAX_CONTENT_BYTES:
            raise SourceError(f"{file.path} states {file.size:,} bytes; allowed are {_MAX_CONTENT_BYTES:,}")
        with as_source_error(f"{file.path} cannot be decompressed", pa.ArrowException, ValueError):
            data = self._mapped.slice(number, 0, file.path.stat().st_size)
            return decompressed(data, str(file.codec), file.size)


def read_index(folder: Path, what: str) -> dict[str, Any]:
    """Return the content of the index of a folder."""
    path = folder / INDEX
    if not path.is_file():
        if below := datasets_in(folder):
            names = ", ".join(path.name for path in below)
            raise SourceError(
                f"{folder} has {what} in {names}: pack one at a time, such as {below[0]}, or each as a separate "
                "dataset (--split folders)"
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


def has_index_of(entry: str) -> Callable[[Path], bool]:
    """Return a function that tests for an index with a list of dictionaries, in a folder or in the first one in it."""

    def test(path: Path) -> bool:
        if path.name == INDEX and path.is_file():
            path = path.parent
        if not path.is_dir():
            return False
        try:
            found = read_index(next(iter(datasets_in(path)), path), "").get(entry)
        except SourceError:
            return False
        return isinstance(found, list) and bool(found) and all(isinstance(one, dict) for one in found)

    return test


_CODECS = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
_DECODERS: dict[str, Callable[[memoryview], Any]] = {
    **dict.fromkeys(("bytes", "jpeg", "png"), lambda data: data),
    "int": lambda data: array_of(data, "int64", []),
    "str": lambda data: str(data, "utf-8"),
    "str_int": lambda data: int(bytes(data)),
    "str_float": lambda data: float(bytes(data)),
    "str_decimal": lambda data: str(data, "ascii"),
    "json": lambda data: json.loads(bytes(data)),
    "pil": pillow_image,
    **dict.fromkeys(("jpeg_array", "jpegarray"), lambda data: images_of(data, 0)),
    **dict.fromkeys(("list[jpeg]", "list[png]"), lambda data: images_of(data, 4)),
    "pkl": lambda _: PICKLE,
}
_ARRAY_TYPES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8"} | {
    66: "f8"
}


class MdsSource(ChunkSource):
    """A folder with the ``index.json`` and the shards of one split."""

    kind = "mds"
    format = "MDS"
    part = "column"

    def item(self, number: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        names, encodings, sizes = self._columns[number]
        with as_source_error("is damaged", ValueError, IndexError, KeyError, RecursionError):
            fields = split_fields(cut(number, *location), sizes)
            return {
                name: decoded(field, encoding) for name, encoding, field in zip(names, encodings, fields, strict=True)
            }

    def find_chunks(self) -> tuple[ChunkFile, ...]:
        return tuple(self._file(shard) for shard in self._shards)

    @cached_property
    def _shards(self) -> list[dict[str, Any]]:
        shards = read_index(self.path, self.format).get("shards")
        if not isinstance(shards, list) or not shards or not all(isinstance(shard, dict) for shard in shards):
            raise SourceError(f"{self.path / INDEX} has no list of shards, so it is not MDS: check the path")
        for shard in shards:
            if shard.get("format") != "mds" or shard.get("version") != 2:
                raise SourceError(
                    f"{self.path} has shards of the format {shard.get('format')!r}, version {shard.get('version')!r}; "
                    "allowed is 'mds', version 2: CSV and JSON Lines of Streaming are packed with --from table"
                )
        return shards

    @cached_property
    def _columns(self) -> list[tuple[list[str], list[str], list[int | None]]]:
        """Return names, encodings and fixed lengths of the columns of each shard."""
        with as_source_error(f"{self.path / INDEX} is damaged", KeyError, TypeError, ValueError):
            found = []
            for shard in self._shards:
                names, encodings = shard["column_names"], shard["column_encodings"]
                sizes = [int(size) if size else None for size in shard["column_sizes"]]
                if not len(names) == len(encodings) == len(sizes) == len(set(names)):
                    raise ValueError(f"{len(names)} names, {len(encodings)} encodings and {len(sizes)} sizes")
                found.append((list(map(str, names)), list(map(str, encodings)), sizes))
            return found

    def _file(self, shard: Mapping[str, Any]) -> ChunkFile:
        raw, packed = shard["raw_data"], shard.get("zip_data")
        path, size, count = child(self.path, raw["basename"]), int(raw["bytes"]), int(shard["samples"])
        if path.exists() or not packed:
            return ChunkFile(path, None, size, count)
        name = str(shard["compression"]).partition(":")[0]
        if name not in _CODECS:
            raise SourceError(f"{self.path} is compressed by {name!r}; allowed are {', '.join(_CODECS)}")
        return ChunkFile(child(self.path, packed["basename"]), _CODECS[name], size, count)


def decoded(data: memoryview, encoding: str) -> Any:
    """Return a value, as `Item.values` has it.

    Raises:
        ValueError: It is damaged.
    """
    kind, _, arguments = encoding.partition(":")
    if kind == "ndarray":
        return _array(data, arguments)
    if kind in _NUMBERS:
        return array_of(data, kind, [])
    decode = _DECODERS.get(kind)
    return decode(data) if decode else Excluded(f"of the encoding {encoding!r}, which is not known")


def _array(data: memoryview, arguments: str) -> Any:
    """Return an array whose type and shape are in its encoding, or before its values."""
    dtype, _, sides = arguments.partition(":")
    position = 0
    if not dtype:
        dtype, position = _ARRAY_TYPES[data[0]], 1
    if sides:
        shape = [int(side) for side in sides.split(",")]
    else:
        count, bits = data[position] >> 2, data[position] & 3
        stop = position + 1 + (count << bits)
        shape = array_of(data[position + 1 : stop], f"<u{1 << bits}", [count]).tolist()
        position = stop
    return array_of(data[position:], dtype, shape)
