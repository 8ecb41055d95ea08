"""LitData, the format of ``litdata.optimize``: ``index.json`` and ``chunk-*.bin``, compressed or not.

A chunk has the number of items, their offsets and the items: the lengths of the values of an item, then the values. The
index names the type of each value and the tree that they are the leaves of. Chunks of plain Python values are an Arrow
file after an empty table of offsets. zstd compresses a chunk, groups of its items, or each item.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from wds_tools.errors import SourceError
from wds_tools.sources.base import MAX_RECORD_BYTES, as_source_error
from wds_tools.sources.chunks import INDEX, ChunkFile, ChunkSource, Cut, child, decompressed, read_index, split_fields
from wds_tools.sources.columns import LABEL
from wds_tools.sources.record_roles import IN_LISTS
from wds_tools.sources.values import PICKLE, Excluded, array_of, images_of, pillow_image

_ARROW_END = b"LDARW01\0"
_FRAMED_START = b"LDFZ01\0\0"
_FRAMED_HEAD = struct.Struct("<8sHHIII")  # magic, version, flags, items, items per frame, frames
_FRAME = struct.Struct("<IIQII")  # first item, items, offset, length, length of the content
_NUMPY_TYPES = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?")
_TENSOR_TYPES = "<f4 <f4 <f8 <f8 <c8 <c8 <c16 <c16 <f2 <f2 - u1 i1 <i2 <i2 <i4 <i4 <i8 <i8 ? <u2".split()  # noqa: SIM905
_DAMAGE = (ValueError, struct.error, IndexError, KeyError, RecursionError, pa.ArrowException)
_PLAIN, _ROW = 0, 1  # how an item is found: by its offsets, or as a row of an Arrow file


class LitDataSource(ChunkSource):
    """A folder with the ``index.json`` and the chunks of one split."""

    kind = "litdata"
    format = "LitData"
    preferred = MappingProxyType({LABEL: IN_LISTS})  # of items such as (image, label)

    def group(self, number: int) -> int:
        return number if self._is_framed(number) else super().group(number)

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

    def _is_framed(self, number: int) -> bool:
        return bytes(self.slice(number, 0, 8)) == _FRAMED_START

    def locations(self, number: int) -> Iterator[tuple[int, ...]]:
        """Yield how each item of a chunk is found: (form, start, stop)."""
        file, data = self._files[number], self.content(number)
        found: list[tuple[int, ...]]
        if bytes(data[-8:]) == _ARROW_END:
            found = [(_ROW, row, 0) for row in range(self._table(number).num_rows)]
        elif self._is_framed(number):
            with as_source_error(f"{file.path} is damaged", ValueError, struct.error):
                count = _FRAMED_HEAD.unpack_from(data)[3]
                offsets = np.frombuffer(data, "<u4", count + 1, _FRAMED_HEAD.size).tolist()
            found = [(_PLAIN, *pair) for pair in pairwise(offsets)]
        else:
            found = [(_PLAIN, *pair) for pair in super().locations(number)]
        if len(found) != file.length:
            raise SourceError(f"{file.path} has {len(found):,} items, but its index states {file.length:,}")
        yield from found

    def item(self, number: int, location: tuple[int, ...], cut: Cut) -> dict[str, Any]:
        form, start, stop = location
        with as_source_error("is damaged", *_DAMAGE):
            if form == _ROW:
                row = self._table(number).slice(start, 1).to_pylist()[0]
                return dict(_flat(row, ""))
            if self._is_framed(number):
                data = self._framed(number, start, stop)
            else:
                data = cut(number, start, stop)
                if self._config.get("compression_level") == "sample":
                    data = decompressed(data, "zstd", MAX_RECORD_BYTES)
            fields = split_fields(data, [None] * len(self._leaves))
            return {name: decoded(field, kind) for (name, kind), field in zip(self._leaves, fields, strict=True)}

    def _framed(self, number: int, start: int, stop: int) -> memoryview:
        """Return an item of a chunk whose groups of items are compressed, by its offsets in the content."""
        whole = self.content(number)
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
                    (number, frame), partial(decompressed, stored, "zstd", limit), len
                )
                if len(content) != size or stop > begin + size:
                    raise ValueError(f"a group of items has {len(content):,} of {size:,} bytes")
                return content[start - begin : stop - begin]
            begin += size
        raise ValueError(f"no group of items has byte {start:,}")

    def _table(self, number: int) -> Any:
        """Return the rows of a chunk of plain Python values."""
        return self._cache.load(("rows", number), lambda: self._read_table(number), lambda table: int(table.nbytes))

    def _read_table(self, number: int) -> Any:
        data = self.content(number)
        size = int.from_bytes(data[-12:-8], "little")
        with as_source_error(f"{self._files[number].path} is damaged", pa.ArrowException, ValueError):
            if size > len(data) - 12:
                raise ValueError(f"its rows have {size:,} bytes, but it has {len(data):,}")
            content = pa.py_buffer(data[-12 - size : -12])
            is_file = bytes(data[-12 - size : -6 - size]) == b"ARROW1"
            found = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(content).read_all()
            found.validate(full=True)
        self._cache.pop(number)  # the content of a compressed chunk, which is not needed again
        return found


def decoded(data: memoryview, kind: str) -> Any:
    """Return a value, as `Item.values` has it.

    Raises:
        ValueError: It is damaged.
    """
    kind, _, argument = kind.partition(":")
    if kind in ("numpy", "no_header_numpy", "tensor", "no_header_tensor"):
        return _array(data, kind, argument)
    decode = _DECODERS.get(kind)
    return decode(data) if decode else Excluded(f"of the type {kind!r}, which is not read")


def _json(data: memoryview) -> Any:
    return json.loads(bytes(data)) if bytes(data[:1]) in (b"[", b"{") else _Nested(data).value()


_DECODERS: dict[str, Callable[[memoryview], Any]] = {
    **dict.fromkeys(("image", "file", "tiff", "tifffile", "jpeg", "bytes"), lambda data: data),
    **dict.fromkeys(("str", "text"), lambda data: str(data, "utf-8")),
    "int": lambda data: struct.unpack("<q", data)[0],
    "float": lambda data: struct.unpack("<d", data)[0],
    "bool": lambda data: data[0] != 0,
    "pil": pillow_image,
    "jpeg_array": lambda data: images_of(data, 0),
    "json": _json,
    **dict.fromkeys(("pickle", "graph"), lambda _: PICKLE),
}


def _array(data: memoryview, kind: str, argument: str) -> Any:
    """Return an array or a tensor: its type and shape are before its values, or the type is in its format."""
    types = {
        number: one for number, one in enumerate(_TENSOR_TYPES if "tensor" in kind else _NUMPY_TYPES) if one != "-"
    }
    if argument or kind.startswith("no_header"):
        dtype = types.get(int(argument))
        return array_of(data, dtype, [len(data) // np.dtype(dtype).itemsize]) if dtype else _unknown_type(argument)
    order = ">" if kind == "tensor" else "<"
    number, count = struct.unpack_from(f"{order}II", data)
    shape = list(struct.unpack_from(f"{order}{count}I", data, 8)) if count <= 64 else [-1]
    dtype = types.get(number)
    return array_of(data[8 + 4 * count :], dtype, shape) if dtype else _unknown_type(number)


def _unknown_type(number: Any) -> Excluded:
    return Excluded(f"an array of the type number {number}, which NumPy does not have, or of Python objects")


def _names(spec: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the names of the leaves of a tree: keys of dictionaries and positions, joined by dots."""
    kind, children = spec["type"], spec["children_spec"]
    if kind is None:
        yield path or "image"
        return
    is_dict = kind.rpartition(".")[2] in ("dict", "OrderedDict", "defaultdict")
    keys = json.loads(spec["context"]) if is_dict else range(len(children))
    keys = keys[-1] if keys and isinstance(keys[-1], list) else keys  # a defaultdict has its factory too
    for key, one in zip(keys, children, strict=True):
        yield from _names(one, f"{path}.{key}" if path else str(key))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a row by their paths in dictionaries."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _flat(one, f"{path}.{key}" if path else key)
    else:
        yield path, value


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
        found = self._data[self._position : self._position + count]
        if len(found) < count:
            raise ValueError(f"it ends before byte {self._position + count:,}")
        self._position += count
        return found
