"""MDS, the format of MosaicML Streaming: ``index.json`` and shards, also compressed ones.

Source: https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A shard has the
number of samples, their offsets, its header as JSON, and the samples: the lengths of values without a fixed one, then
the values in the order of the columns. Values by pickle are not read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.base import (
    Collector,
    Input,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
    file_states,
    stamp_files,
)
from wds_tools.sources.chunks import ChunkFile, ChunkFiles, split_fields
from wds_tools.sources.index_file import INDEX, account_files, child, datasets_in, read_index
from wds_tools.sources.record_values import PICKLE, Excluded, array_of, images_of, pillow_image
from wds_tools.sources.records import Item, RecordSource

_CODECS = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
_NUMBERS = {
    "int": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
}
_DECODERS: dict[str, Callable[[memoryview], Any]] = {
    **dict.fromkeys(("bytes", "jpeg", "png"), lambda data: data),
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


class MdsSource(RecordSource):
    """A folder with the ``index.json`` and the shards of one split."""

    kind = "mds"
    part, parts = "column", "columns"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src) if Path(src).is_dir() else Path(src).parent

    def collect(self, found: Collector) -> None:
        """Add the samples of all shards.

        Raises:
            SourceError: The index or a shard is damaged, or of another format.
        """
        files = [self.path / INDEX, *(file.path for file in self._files.files)]
        states = file_states(files)
        super().collect(found)
        account_files(found, self.path, files)
        found.files = states
        found.stamp = stamp_files(files) + repr(sorted(self.columns.items()))

    def splits(self) -> Mapping[str, Source]:
        """Return the datasets in the folders of a folder without an index, such as ``train`` and ``val``."""
        return {path.name: MdsSource(path, self.options) for path in datasets_in(self.path)}

    def items(self) -> Iterator[Item]:
        """Yield the samples of all shards."""
        for number, file in enumerate(self._files.files):
            data = self._files[number]
            for row, (start, stop) in enumerate(self._files.items(number)):
                values: Mapping[str, Any] | str
                try:
                    values = self._decoded(number, data[start:stop])
                except SourceError as error:
                    values = str(error)
                path = f"{file.path.relative_to(self.path).as_posix()}#{row}"
                yield Item(path, (number, start, stop), values, self._files.group(number))

    def values(self, entry: Input) -> Mapping[str, Any]:
        """Return the values of a sample."""
        number, start, stop = entry.location
        with as_read_error(f"{self.path} cannot be read"):
            return self._decoded(number, self._files.slice(number, start, stop))

    def _decoded(self, number: int, data: memoryview) -> dict[str, Any]:
        names, encodings, sizes = self._columns[number]
        with as_source_error("is damaged", ValueError, struct.error, IndexError, KeyError, RecursionError):
            fields = split_fields(data, sizes)
            return {
                name: decoded(field, encoding) for name, encoding, field in zip(names, encodings, fields, strict=True)
            }

    @cached_property
    def _shards(self) -> list[dict[str, Any]]:
        shards = read_index(self.path, "MDS").get("shards")
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

    @cached_property
    def _files(self) -> ChunkFiles:
        with as_source_error(f"{self.path / INDEX} is damaged", KeyError, TypeError, ValueError, AttributeError):
            return ChunkFiles(tuple(self._file(shard) for shard in self._shards))

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
        return struct.unpack(_NUMBERS[kind], data)[0]
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
