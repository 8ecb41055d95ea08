"""TFRecord files of ``tf.train.Example``: ``image/encoded``, ``image/class/label`` and other features.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details". Both
checksums of each record are verified: the one of the length when records are listed, the one of the data
when a record is read. Files may be compressed as a whole with gzip or zlib, the two kinds that TensorFlow writes.

Records are messages of protocol buffers, and so is Caffe's ``Datum``, which LMDB databases have. Source:
https://protobuf.dev/programming-guides/encoding/. Values of bytes are slices of the buffer, without a copy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.tar import Bytes
from wds_tools.sources.base import MAX_RECORD_BYTES, Collector, SourceOptions, as_source_error, import_optional
from wds_tools.sources.class_file import names_of
from wds_tools.sources.columns import IMAGE, LABEL
from wds_tools.sources.files import DecompressedFiles, MappedFiles, find_files
from wds_tools.sources.inputs import Input
from wds_tools.sources.records import Item, RecordSource, attempt
from wds_tools.sources.values import Repeated

_NAME = re.compile(r"\.(tfrecords?|tfrec|record)(\b|_|$)|-\d{5}-of-\d{5}$", re.IGNORECASE)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Values = list[memoryview] | list[int] | list[float]


def is_tfrecord(name: str) -> bool:
    """Return whether a file name is the name of a TFRecord file.

    >>> is_tfrecord("train-00000-of-01024"), is_tfrecord("train.record"), is_tfrecord("a.parquet")
    (True, True, False)
    """
    return _NAME.search(name) is not None


class TfRecordSource(RecordSource):
    """TFRecord files: a file, a pattern, or a folder with the files of one split."""

    kind = "tfrecord"
    part = "feature"
    preferred = MappingProxyType(
        {
            IMAGE: ("image/encoded", "image_raw", "encoded", "image_bytes"),
            LABEL: ("image/class/label", "class_label", "image/class/text", "image/class/synset"),
            "names": ("image/class/text",),
        }
    )

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.paths = find_files(self.path, is_tfrecord, "TFRecord")

    def collect(self, collector: Collector) -> None:
        collector.take_files(self.paths)
        super().collect(collector)

    def items(self) -> Iterator[Item]:
        for file, path in enumerate(self.paths):
            data = self._files[file]
            for index, (start, size) in enumerate(records(data, path)):
                location = (file, start, size)
                values = attempt(_values, memoryview(data[start : start + size]))
                yield Item(f"{path.name}#{index}", location, values, self._files.group(file, start))

    def values(self, entry: Input) -> Mapping[str, Any]:
        file, start, size = entry.location
        data = self._files.slice(file, start, start + size + 4)
        if masked_crc(data[:size]) != int.from_bytes(data[size:], "little"):
            raise SourceError(
                f"record at byte {start - 12:,} of {self.paths[file].name} is damaged: its checksum does not match"
            )
        return _values(data[:size])

    @cached_property
    def _files(self) -> DecompressedFiles:
        files = MappedFiles(self.paths)
        codecs = ["gzip" if _is_compressed(files[file]) else None for file in range(len(self.paths))]
        return DecompressedFiles(files, [str(path) for path in self.paths], codecs)

    def class_names(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return the class names that TensorFlow Datasets writes to ``NAME.labels.txt``."""
        label = (self.record_roles and self.record_roles.label) or ""
        folders = {path.parent for path in self.paths}
        path = (folders.pop() if len(folders) == 1 else self.path) / f"{label.replace('/', '-')}.labels.txt"
        if not path.is_file():
            return {}
        name = path.relative_to(self.path).as_posix() if self.path in path.parents else path.name
        with as_source_error(f"{path} cannot be read"):
            return {("file", name): names_of(path.read_bytes(), str(path))}


def records(data: Bytes, path: Path) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the data of each record."""
    position = 0
    while head := data[position : position + 12]:
        if not _is_head(head):
            raise SourceError(
                f"{path} is not a TFRecord file, or is damaged or truncated at byte {position:,}: copy it again"
            )
        (size,) = struct.unpack("<Q", head[:8])
        if size > MAX_RECORD_BYTES or len(data[position + 12 + size : position + 16 + size]) < 4:
            raise SourceError(
                f"{path}: the record at byte {position:,} states {size:,} bytes, which is beyond the end of the file "
                f"or above the allowed {MAX_RECORD_BYTES:,} bytes: it is truncated or damaged, copy it again"
            )
        yield position + 12, size
        position += size + 16


def _is_head(head: Bytes) -> bool:
    """Return whether bytes are the length of a record and its checksum."""
    return len(head) == 12 and masked_crc(memoryview(head[:8])) == int.from_bytes(head[8:], "little")


def _is_compressed(data: memoryview) -> bool:
    """Return whether a file is compressed: a record may begin with the same bytes, but has a checksum."""
    is_zlib = len(data) > 2 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return (bytes(data[:2]) == b"\x1f\x8b" or is_zlib) and not _is_head(data[:12])


def masked_crc(data: memoryview) -> int:
    """Return the CRC-32C as TFRecord stores it: rotated, with a constant added."""
    crc: int = import_optional("google_crc32c", "TFRecord").value(bytes(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _values(data: memoryview) -> dict[str, Any]:
    """Return the features of a record. Feature lists of a SequenceExample have one value per step."""
    with as_source_error("is not a tf.train.Example", ValueError):
        features = parse_example(data)
    return {name: _repeated(features[name]) for name in sorted(features)}  # their order in a file is arbitrary


def _repeated(values: Values | list[Values]) -> Repeated:
    if any(isinstance(step, list) for step in values):
        return Repeated(step[0] if len(step) == 1 else step for step in values if isinstance(step, list))
    return Repeated(values)


def parse_example(data: memoryview) -> dict[str, Values | list[Values]]:
    """Return the features of a ``tf.train.Example`` or ``tf.train.SequenceExample`` by name.

    The feature lists of a ``SequenceExample`` are lists with the values of each step.

    Raises:
        ValueError: The data is not a valid message.
    """
    features: dict[str, Values | list[Values]] = {}
    for field, content in _messages(data):
        if field not in (1, 2):
            continue
        for inner, entry in _messages(content):
            if inner != 1:
                continue
            parts = dict(_messages(entry))
            name, value = str(parts.get(1, b""), "utf-8", "surrogateescape"), parts.get(2, memoryview(b""))
            if field == 2 and name in features:
                raise ValueError(f"the feature {name!r} is in the context and in the feature lists")
            features[name] = (
                _feature(value) if field == 1 else [_feature(step) for kind, step in _messages(value) if kind == 1]
            )
    return features


class Datum(NamedTuple):
    """Caffe's ``Datum``.

    Attributes:
        data: An encoded image, or raw pixels [channels, height, width].
        label: The label; None if it is not set.
        shape: Channels, height and width of raw pixels.
        floats: Number of values of ``float_data``.
    """

    data: memoryview
    label: int | None
    shape: tuple[int, int, int]
    floats: int


def parse_datum(data: memoryview) -> Datum:
    """Return a Caffe ``Datum``. Its flag ``encoded`` is ignored: the data shows whether it is set.

    Raises:
        ValueError: The data is not a valid message.
    """
    content, numbers, floats = memoryview(b""), dict[int, int](), 0
    for field, kind, value in fields(data):
        if field == 4 and isinstance(value, memoryview):
            content = value
        elif field == 6 and isinstance(value, memoryview):
            floats += len(value) // 4
        elif kind == _VARINT and isinstance(value, int):
            numbers[field] = _signed(value)
    shape = (numbers.get(1, 0), numbers.get(2, 0), numbers.get(3, 0))
    return Datum(content, numbers.get(5), shape, floats)


def fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """Yield (field number, wire type, value) of each field of a message; a varint is an int, others are bytes.

    Raises:
        ValueError: The data is not a valid message, or is truncated.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield field, kind, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {position}; allowed are 0, 1, 2 and 5")
        if size > len(data) - position:
            raise ValueError(f"a field states {size:,} bytes, but {len(data) - position:,} are left")
        yield field, kind, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise ValueError(f"the varint at byte {position} does not end")


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    return ((field, value) for field, _, value in fields(data) if isinstance(value, memoryview))


def _feature(data: memoryview) -> Values:
    """Return the values of a feature: a list of bytes (field 1), floats (2) or integers (3)."""
    for field, content in _messages(data):
        if field == 1:
            return [value for inner, value in _messages(content) if inner == 1]
        if field == 2:
            floats = b"".join(value for inner, value in _messages(content) if inner == 1)
            return [value for (value,) in struct.iter_unpack("<f", floats[: len(floats) // 4 * 4])]
        if field == 3:
            return list(_integers(content))
    return list[int]()


def _integers(data: memoryview) -> Iterator[int]:
    for field, _, value in fields(data):
        if field == 1 and isinstance(value, int):
            yield _signed(value)
        elif field == 1 and isinstance(value, memoryview):  # packed
            position = 0
            while position < len(value):
                item, position = _varint(value, position)
                yield _signed(item)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
