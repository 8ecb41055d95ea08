"""Folders with ``index.json`` and files of items with a table of offsets: MDS and LitData.

MDS is the format of MosaicML Streaming. Source:
https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A shard has the number of
samples, their offsets, its header as JSON, and the samples: the lengths of values without a fixed one, then the values
in the order of the columns.

LitData is the format of ``litdata.optimize``. A chunk has the number of items, their offsets and the items: the lengths
of the values of an item, then the values. The index names the type of each value and the tree that they are the leaves
of. Chunks of plain Python values are an Arrow file after an empty table of offsets. zstd compresses a chunk, groups of
its items, or each item. Values by pickle are not read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    Collector,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
)
from wds_tools.sources.columns import LABEL
from wds_tools.sources.files import MappedFiles
from wds_tools.sources.inputs import Input
from wds_tools.sources.record_roles import IN_LISTS
from wds_tools.sources.records import Item, RecordSource, attempt, flatten
from wds_tools.sources.values import PICKLE, Excluded, array_of, images_of, pillow_image

INDEX = "index.json"
_MAX_INDEX_BYTES = 1 << 30
_MAX_CONTENT_BYTES = 1 << 32  # offsets have 32 bits
_CODECS = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
_ARRAY_TYPES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8"} | {
    66: "f8"
}
_ARROW_END = b"LDARW01\0"
_FRAMED_START = b"LDFZ01\0\0"
_FRAMED_HEAD = struct.Struct("<8sHHIII")  # magic, version, flags, items, items per frame, frames
_FRAME = struct.Struct("<IIQII")  # first item, items, offset, length, length of the content
_NUMPY_TYPES = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?")
_TENSOR_TYPES = "<f4 <f4 <f8 <f8 <c8 <c8 <c16 <c16 <f2 <f2 - u1 i1 <i2 <i2 <i4 <i4 <i8 <i8 ? <u2".split()  # noqa: SIM905
_DAMAGE = (ValueError, struct.error, IndexError, KeyError, RecursionError, pa.ArrowException)
_PLAIN, _ROW = 0, 1  # how an item is found: by its offsets, or as a row of an Arrow file
_MAX_SIDES = 64
_NESTED_TAGS = 32  # JSON has no such characters

Cut = Callable[[int, int, int], memoryview]
"""Returns the bytes of a file, given by its index, from one position to another."""


class ChunkFile(NamedTuple):
    """A file of items.

    Attributes:
        path: Its path.
        codec: Name of the codec in pyarrow; None if it is not compressed.
        size: Length of its content in bytes, as the index of the dataset states it.
        length: Number of items, as the index states it.
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
    """Return the values of an item, which begins with the lengths of the values whose size is None.

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

    def item(self, chunk: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        """Return the values of an item.

        Raises:
            SourceError: It is damaged.
        """
        raise NotImplementedError

    def group(self, chunk: int) -> int:
        """Return the number of the group of items in a file that are cheap to read together, or -1."""
        return -1 if self._files[chunk].codec is None else chunk

    def locations(self, chunk: int) -> Iterator[tuple[int, ...]]:
        """Yield where each item of a file is, (start, stop): a number of items, their offsets, then their bytes."""
        file, data = self._files[chunk], self.content(chunk)
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

    def content(self, chunk: int) -> memoryview:
        """Return the content of a file: mapped, or decompressed as a whole."""
        file = self._files[chunk]
        is_plain = file.codec is None
        data = self._mapped[chunk] if is_plain else self._cache.load(chunk, lambda: self._decompress(chunk), len)
        if len(data) != file.size:
            raise SourceError(
                f"{file.path} is truncated or damaged: it has {len(data):,} bytes, but its index states {file.size:,}: "
                "copy it again"
            )
        return data

    def slice(self, chunk: int, start: int, stop: int) -> memoryview:
        """Return a part of the content of a file, to read an item."""
        if self._files[chunk].codec is None:
            return self._mapped.slice(chunk, start, stop)
        return self.content(chunk)[start:stop]

    def collect(self, collector: Collector) -> None:
        collector.take_files([self.path / INDEX, *(file.path for file in self._files)])
        super().collect(collector)

    def why_left_out(self, path: str) -> str | None:  # noqa: ARG002 - the same for all
        return f"{INDEX} does not name it"

    def splits(self) -> Mapping[str, Source]:
        """Return the datasets in the folders of a folder without an index, such as ``train`` and ``val``."""
        return {path.name: type(self)(path, self.options) for path in datasets_in(self.path)}

    def items(self) -> Iterator[Item]:
        for chunk, file in enumerate(self._files):
            name = file.path.relative_to(self.path).as_posix()
            for row, location in enumerate(self.locations(chunk)):
                values = attempt(self.item, chunk, location, lambda file, *part: self.content(file)[slice(*part)])
                yield Item(f"{name}#{row}", (chunk, *location), values, self.group(chunk))

    def values(self, entry: Input) -> Mapping[str, Any]:
        chunk, *location = entry.location
        with as_read_error(f"{self.path} cannot be read"):
            return self.item(chunk, tuple(location), self.slice)

    @cached_property
    def _files(self) -> tuple[ChunkFile, ...]:
        with as_source_error(f"{self.path / INDEX} is damaged", KeyError, TypeError, ValueError, AttributeError):
            return self.find_chunks()

    @cached_property
    def _mapped(self) -> MappedFiles:
        return MappedFiles(tuple(file.path for file in self._files))

    def _decompress(self, chunk: int) -> memoryview:
        """Return the content of a compressed file, or one byte more than its index states."""
        file = self._files[chunk]
        if not 0 <= file.size <= _MAX_CONTENT_BYTES:
            raise SourceError(f"{file.path} states {file.size:,} bytes; allowed are {_MAX_CONTENT_BYTES:,}")
        with as_source_error(f"{file.path} cannot be decompressed", pa.ArrowException, ValueError):
            data = self._mapped.slice(chunk, 0, file.path.stat().st_size)
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
        index = json.loads(path.read_bytes())
    return index if isinstance(index, dict) else {}


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
            entries = read_index(next(iter(datasets_in(path)), path), "").get(entry)
        except SourceError:
            return False
        return isinstance(entries, list) and bool(entries) and all(isinstance(item, dict) for item in entries)

    return test


class MdsSource(ChunkSource):
    """A folder with the ``index.json`` and the shards of one split."""

    kind = "mds"
    format = "MDS"
    part = "column"

    def item(self, chunk: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        names, encodings, sizes = self._columns[chunk]
        with as_source_error("is damaged", ValueError, IndexError, KeyError, RecursionError):
            fields = split_fields(cut(chunk, *location), sizes)
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
            columns = []
            for shard in self._shards:
                names, encodings = shard["column_names"], shard["column_encodings"]
                sizes = [int(size) if size else None for size in shard["column_sizes"]]
                if not len(names) == len(encodings) == len(sizes) == len(set(names)):
                    raise ValueError(f"{len(names)} names, {len(encodings)} encodings and {len(sizes)} sizes")
                columns.append((list(map(str, names)), list(map(str, encodings)), sizes))
            return columns

    def _file(self, shard: Mapping[str, Any]) -> ChunkFile:
        raw, packed = shard["raw_data"], shard.get("zip_data")
        path, size, count = child(self.path, raw["basename"]), int(raw["bytes"]), int(shard["samples"])
        if path.exists() or not packed:
            return ChunkFile(path, None, size, count)
        name = str(shard["compression"]).partition(":")[0]
        if name not in _CODECS:
            raise SourceError(f"{self.path} is compressed by {name!r}; allowed are {', '.join(_CODECS)}")
        return ChunkFile(child(self.path, packed["basename"]), _CODECS[name], size, count)


class LitDataSource(ChunkSource):
    """A folder with the ``index.json`` and the chunks of one split."""

    kind = "litdata"
    format = "LitData"
    preferred = MappingProxyType({LABEL: IN_LISTS})  # of items such as (image, label)

    def group(self, chunk: int) -> int:
        return chunk if self._is_framed(chunk) else super().group(chunk)

    @cached_property
    def _index(self) -> dict[str, Any]:
        return read_index(self.path, self.format)

    @cached_property
    def _config(self) -> dict[str, Any]:
        config = self._index.get("config")
        if not isinstance(config, dict):
            raise SourceError(f"{self.path / INDEX} has no config, so it is not LitData: check the path")
        if config.get("encryption"):
            raise SourceError(f"{self.path} is encrypted: write it without encryption")
        loader = config.get("item_loader") or "PyTreeLoader"
        if loader != "PyTreeLoader":
            remedy = "pack the Parquet files with --from parquet" if "Parquet" in loader else "it has no images"
            raise SourceError(f"{self.path} is for litdata's {loader}; allowed is PyTreeLoader: {remedy}")
        return config

    def find_chunks(self) -> tuple[ChunkFile, ...]:
        compression = str(self._config.get("compression") or "")
        if compression and not compression.startswith("zstd"):
            raise SourceError(f"{self.path} is compressed by {compression!r}; allowed is zstd")
        return tuple(self._file(chunk, compression) for chunk in self._index["chunks"])

    def _file(self, chunk: Mapping[str, Any], compression: str) -> ChunkFile:
        """Return a chunk; LitData replaces compressed ones by their content when it reads them."""
        path = child(self.path, chunk["filename"])
        size, count = int(chunk["chunk_bytes"]), int(chunk["chunk_size"])
        ending = f".{compression}.bin"
        if not compression or not path.name.endswith(ending):
            return ChunkFile(path, None, size, count)
        content = path.with_name(f"{path.name.removesuffix(ending)}.bin")
        return ChunkFile(content, None, size, count) if content.exists() else ChunkFile(path, "zstd", size, count)

    @cached_property
    def _leaves(self) -> list[tuple[str, str]]:
        """Return (name, type) of the values of an item."""
        with as_source_error(f"{self.path / INDEX} is damaged", KeyError, TypeError, ValueError, RecursionError):
            types = list(map(str, self._config["data_format"]))
            names = list(_names(json.loads(self._config["data_spec"])[1]))
            return list(zip(names, types, strict=True))

    def _is_framed(self, chunk: int) -> bool:
        return bytes(self.slice(chunk, 0, 8)) == _FRAMED_START

    def locations(self, chunk: int) -> Iterator[tuple[int, ...]]:
        """Yield how each item of a chunk is found: (form, start, stop)."""
        file, data = self._files[chunk], self.content(chunk)
        locations: list[tuple[int, ...]]
        if bytes(data[-8:]) == _ARROW_END:
            locations = [(_ROW, row, 0) for row in range(self._table(chunk).num_rows)]
        elif self._is_framed(chunk):
            with as_source_error(f"{file.path} is damaged", ValueError, struct.error):
                count = _FRAMED_HEAD.unpack_from(data)[3]
                offsets = np.frombuffer(data, "<u4", count + 1, _FRAMED_HEAD.size).tolist()
            locations = [(_PLAIN, *pair) for pair in pairwise(offsets)]
        else:
            locations = [(_PLAIN, *pair) for pair in super().locations(chunk)]
        if len(locations) != file.length:
            raise SourceError(f"{file.path} has {len(locations):,} items, but its index states {file.length:,}")
        yield from locations

    def item(self, chunk: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        form, start, stop = location
        with as_source_error("is damaged", *_DAMAGE):
            if form == _ROW:
                row = self._table(chunk).slice(start, 1).to_pylist()[0]
                values: dict[str, Any] = {}
                flatten(row, "", values)
                return values
            if self._is_framed(chunk):
                data = self._framed(chunk, start, stop)
            else:
                data = cut(chunk, start, stop)
                if self._config.get("compression_level") == "sample":
                    data = decompressed(data, "zstd", MAX_RECORD_BYTES)
            fields = split_fields(data, [None] * len(self._leaves))
            return {name: decoded(field, kind) for (name, kind), field in zip(self._leaves, fields, strict=True)}

    def _framed(self, chunk: int, start: int, stop: int) -> memoryview:
        """Return an item of a chunk whose groups of items are compressed, by its offsets in the content."""
        whole = self.content(chunk)
        _, version, _, count, _, frames = _FRAMED_HEAD.unpack_from(whole)
        if version != 1:
            raise ValueError(f"groups of items of version {version}; allowed is 1")
        table = _FRAMED_HEAD.size + 4 * (count + 1)
        begin = 0
        for frame in range(frames):
            _, _, offset, length, size = _FRAME.unpack_from(whole, table + frame * _FRAME.size)
            if start < begin + size:
                stored, limit = whole[offset : offset + length], min(size, MAX_RECORD_BYTES)
                content: memoryview = self._cache.load(
                    (chunk, frame), partial(decompressed, stored, "zstd", limit), len
                )
                if len(content) != size or stop > begin + size:
                    raise ValueError(f"a group of items has {len(content):,} of {size:,} bytes")
                return content[start - begin : stop - begin]
            begin += size
        raise ValueError(f"no group of items has byte {start:,}")

    def _table(self, chunk: int) -> Any:
        """Return the rows of a chunk of plain Python values."""
        return self._cache.load(("rows", chunk), lambda: self._read_table(chunk), lambda table: int(table.nbytes))

    def _read_table(self, chunk: int) -> Any:
        data = self.content(chunk)
        size = int.from_bytes(data[-12:-8], "little")
        with as_source_error(f"{self._files[chunk].path} is damaged", pa.ArrowException, ValueError):
            if size > len(data) - 12:
                raise ValueError(f"its rows have {size:,} bytes, but it has {len(data):,}")
            content = pa.py_buffer(data[-12 - size : -12])
            is_file = bytes(data[-12 - size : -6 - size]) == b"ARROW1"
            table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(content).read_all()
            table.validate(full=True)
        self._cache.pop(chunk)  # the content of a compressed chunk, which is not needed again
        return table


def _names(spec: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the names of the leaves of a tree: keys of dictionaries and positions, joined by dots."""
    kind, children = spec["type"], spec["children_spec"]
    if kind is None:
        yield path or "image"
        return
    is_dict = kind.rpartition(".")[2] in ("dict", "OrderedDict", "defaultdict")
    keys = json.loads(spec["context"]) if is_dict else range(len(children))
    keys = keys[-1] if keys and isinstance(keys[-1], list) else keys  # a defaultdict has its factory too
    for key, child_spec in zip(keys, children, strict=True):
        yield from _names(child_spec, f"{path}.{key}" if path else str(key))


class _Nested:
    """A list or dictionary in LitData's own encoding: a tag before each value.

    Args:
        data: The encoded value.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def value(self) -> Any:
        """Return the next value.

        Raises:
            ValueError: It is damaged.
        """
        tag = self._bytes(1)[0]
        if tag == 0:
            return json.loads(bytes(self._bytes(self._count())))
        if tag in (1, 2, 3, 4):
            count = self._count()
            if tag == 1:
                return [self._text() for _ in range(count)]
            dtype = {2: "<i8", 3: "<f8", 4: "?"}[tag]
            return np.frombuffer(self._bytes(count * np.dtype(dtype).itemsize), dtype).tolist()
        if tag == 5:
            return {self._text(): self.value() for _ in range(self._count())}
        return self._records() if tag == 6 else self._scalar(tag - 7)

    def _records(self) -> list[dict[str, Any]]:
        """Return dictionaries with the same keys."""
        count = self._count()
        keys = [self._text() for _ in range(self._count())]
        scalars = {0x10: 4, 0x11: 0, 0x12: 1, 0x13: 2, 0x14: 3}
        return [{key: self._scalar(scalars.get(self._bytes(1)[0], -1)) for key in keys} for _ in range(count)]

    def _scalar(self, kind: int) -> Any:
        """Return a text (0), an integer (1), a number (2), a boolean (3), or None (4)."""
        if kind == 0:
            return self._text()
        if kind in (1, 2):
            return struct.unpack("<q" if kind == 1 else "<d", self._bytes(8))[0]
        if kind == 3:
            return self._bytes(1)[0] != 0
        if kind == 4:
            return None
        raise ValueError(f"an unknown tag before byte {self._position:,}")

    def _text(self) -> str:
        return str(self._bytes(self._count()), "utf-8")

    def _count(self) -> int:
        return int.from_bytes(self._bytes(4), "little")

    def _bytes(self, count: int) -> memoryview:
        data = self._data[self._position : self._position + count]
        if len(data) < count:
            raise ValueError(f"it ends before byte {self._position + count:,}")
        self._position += count
        return data


_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
_DECODERS: dict[str, Callable[[memoryview], Any]] = {
    **dict.fromkeys(("bytes", "jpeg", "png", "image", "file", "tiff", "tifffile"), lambda data: data),
    **dict.fromkeys(("str", "text", "str_decimal"), lambda data: str(data, "utf-8")),
    **{dtype: partial(array_of, dtype=dtype, shape=[]) for dtype in _NUMBERS},
    "int": partial(array_of, dtype="<i8", shape=[]),
    "float": partial(array_of, dtype="<f8", shape=[]),
    "bool": lambda data: data[0] != 0,
    "str_int": lambda data: int(bytes(data)),
    "str_float": lambda data: float(bytes(data)),
    "json": lambda data: _Nested(data).value() if data[0] < _NESTED_TAGS else json.loads(bytes(data)),
    "pil": pillow_image,
    **dict.fromkeys(("jpeg_array", "jpegarray"), lambda data: images_of(data, 0)),
    **dict.fromkeys(("list[jpeg]", "list[png]"), lambda data: images_of(data, 4)),
    **dict.fromkeys(("pkl", "pickle", "graph"), lambda _: PICKLE),
}


def decoded(data: memoryview, encoding: str) -> Any:
    """Return a value, as `Item.values` has it.

    Raises:
        ValueError: It is damaged.
    """
    kind, _, argument = encoding.partition(":")
    if kind == "ndarray":
        return _array(data, argument)
    if kind in ("numpy", "no_header_numpy", "tensor", "no_header_tensor"):
        return _array_of_litdata(data, kind, argument)
    decode = _DECODERS.get(kind)
    return decode(data) if decode else Excluded(f"of the encoding {encoding!r}, which is not read")


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


def _array_of_litdata(data: memoryview, kind: str, argument: str) -> Any:
    """Return an array or a tensor: its type and shape are before its values, or the type is in its encoding."""
    if argument or kind.startswith("no_header"):
        type_index, shape = int(argument), [-1]
    else:
        order = ">" if kind == "tensor" else "<"
        type_index, count = struct.unpack_from(f"{order}II", data)
        shape = list(struct.unpack_from(f"{order}{min(count, _MAX_SIDES)}I", data, 8))
        data = data[8 + 4 * count :]
    types = _TENSOR_TYPES if "tensor" in kind else _NUMPY_TYPES
    dtype = types[type_index] if type_index < len(types) else "-"
    if dtype == "-":
        return Excluded(f"an array of the type number {type_index}, which NumPy does not have, or of Python objects")
    return array_of(data, dtype, [len(data) // np.dtype(dtype).itemsize] if shape == [-1] else shape)
