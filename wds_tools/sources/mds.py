"""MDS, the format of MosaicML Streaming: ``index.json`` and shards, compressed or not.

Source: https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A shard has the
number of samples, their offsets, its header as JSON, and the samples: the lengths of values without a fixed one, then
the values in the order of the columns. Values by pickle are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.base import as_source_error
from wds_tools.sources.chunks import INDEX, ChunkFile, ChunkSource, Cut, child, read_index, split_fields
from wds_tools.sources.record_values import PICKLE, Excluded, array_of, images_of, pillow_image

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
