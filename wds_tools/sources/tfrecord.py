"""TFRecord files of ``tf.train.Example``: ``image/encoded``, ``image/class/label`` and other features.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details". Both
checksums of each record are verified: that of the length when records are listed, that of the data
when a record is read.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format import codecs
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_source_error,
    field_bytes,
    file_states,
    stamp_files,
)
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    fact_name,
    facts_bytes,
    field_name,
    find_column,
    plain_name,
)
from wds_tools.sources.files import MappedFiles, find_files
from wds_tools.sources.optional_dependencies import import_optional
from wds_tools.sources.protobuf import Values, parse_example

_NAME = re.compile(r"\.(tfrecords?|tfrec)(\b|_|$)|-\d{5}-of-\d{5}$", re.IGNORECASE)
_FEATURES = {
    IMAGE: ("image/encoded", "image_raw", "encoded", "image_bytes"),
    LABEL: ("image/class/label", "class_label"),
}


def is_tfrecord(name: str) -> bool:
    """Return whether a file name is that of a TFRecord file.

    >>> is_tfrecord("train-00000-of-01024"), is_tfrecord("a.tfrecord-00001-of-00002"), is_tfrecord("a.parquet")
    (True, True, False)
    """
    return _NAME.search(name) is not None


class TfRecordSource(Source):
    """Memory-mapped TFRecord files: a file, a pattern, or a folder with the files of one split."""

    kind = "tfrecord"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.paths = find_files(self.path, is_tfrecord, "TFRecord")
        self.label: str | None = None  # name of the feature, which `collect` finds

    def collect(self, found: Collector) -> None:
        """Add the records of all files.

        Raises:
            SourceError: A file is truncated or damaged between records, or no record has an image.
        """
        states = file_states(self.paths)
        inputs: list[Input] = []
        labels: list[tuple[str | None, Values]] = []  # name of the feature, its values
        for file, path in enumerate(self.paths):
            for number, (start, size) in enumerate(records(self._mapped[file], path)):
                found.account.given += 1
                name = f"{path.name}#{number}"
                try:
                    features = self._parse(self._mapped[file][start : start + size])
                    label = self._pick(LABEL, features)
                    record = self._record(features, label)
                except SourceError as error:
                    found.skip(name, str(error))
                    continue
                extra = facts_bytes(record.facts) + sum(field_bytes(len(data)) for data in record.fields.values())
                inputs.append(Input(name, len(record.image), None, (file, start, size), -1, extra))
                labels.append((label, features[label] if label else []))
        # Where a record lacks the feature of the labels, another one with a usual name is not its label.
        self.label = self._pick(LABEL, {label: [] for label, _ in labels if label}) if labels else None
        is_list = any(len(values) > 1 for label, values in labels if label == self.label)
        for entry, (label, values) in zip(inputs, labels, strict=True):
            found.add(entry, _label(values, is_list=is_list) if label == self.label else None)
        found.files = states
        found.stamp = stamp_files(list(self.paths)) + repr(sorted(self.columns.items()))

    def read(self, entry: Input) -> Record:
        """Read one record.

        Raises:
            SourceError: The checksum does not match.
        """
        file, start, size = entry.location
        data = self._mapped.slice(file, start, start + size + 4)
        if masked_crc(data[:size]) != int.from_bytes(data[size:], "little"):
            raise SourceError(
                f"record at byte {start - 12:,} of {self.paths[file].name} is damaged: its checksum does not match"
            )
        return self._record(self._parse(data[:size]), self.label)

    @cached_property
    def _mapped(self) -> MappedFiles:
        return MappedFiles(self.paths)

    def _parse(self, data: memoryview) -> dict[str, Values]:
        with as_source_error("is not a tf.train.Example", ValueError):
            return parse_example(data)

    def _record(self, features: Mapping[str, Values], label: str | None) -> Record:
        """Return the image and the other features of a record.

        Args:
            features: All features.
            label: Name of the one that is the label.
        """
        image = self._pick(IMAGE, features)
        values = features[image] if image else []
        if len(values) != 1 or not isinstance(values[0], memoryview):
            raise SourceError(
                f"has no image feature with a known name; it has {', '.join(map(repr, list(features)[:12]))}: name "
                "the feature, as in --column image=NAME (columns={'image': 'NAME'})"
            )
        fields, facts = {}, {}
        for name, others in features.items():
            if name in (image, label):
                continue
            content = others[0] if len(others) == 1 else None
            kind = codecs.sniff(content) if isinstance(content, memoryview) else None
            if isinstance(content, memoryview) and kind:
                field = field_name(name)
                field = field if field and field.endswith(f".{kind}") else f"{plain_name(name)}.{kind}"
                if field in fields:
                    raise SourceError(f"has two features that would be the field {field!r}: rename one of them")
                fields[field] = bytes(content)
            elif (fact := _fact(others)) is not None:
                facts[fact_name(name)] = fact
        return Record(bytes(values[0]), fields, facts)

    def _pick(self, role: str, features: Mapping[str, Values]) -> str | None:
        known = next((name for name in _FEATURES[role] if name in features), None)
        return (
            known if known and role not in self.columns else find_column(role, features, self.columns, where="record")
        )


def records(data: memoryview, path: Path) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the data of each record.

    Raises:
        SourceError: The file is truncated or damaged, so that the following records cannot be found.
    """
    position = 0
    while position < len(data):
        head = data[position : position + 12]
        if len(head) < 12 or masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
            if bytes(data[:2]) == b"\x1f\x8b":  # also the start of a record of, for example, 35,615 bytes
                raise SourceError(f"{path} is compressed: unpack it first, with gunzip")
            raise SourceError(
                f"{path} is not a TFRecord file, or is damaged or truncated at byte {position:,}: copy it again"
            )
        (size,) = struct.unpack("<Q", head[:8])
        if size > min(MAX_RECORD_BYTES, len(data) - position - 16):
            raise SourceError(
                f"{path}: the record at byte {position:,} states {size:,} bytes, but {len(data) - position:,} are "
                f"left and {MAX_RECORD_BYTES:,} are allowed: the file is truncated or damaged, copy it again"
            )
        yield position + 12, size
        position += size + 16


def masked_crc(data: memoryview) -> int:
    """Return the CRC-32C as TFRecord stores it: rotated, with a constant added."""
    crc: int = import_optional("google_crc32c", "TFRecord").value(bytes(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _label(values: Values, *, is_list: bool) -> Any:
    plain = [bytes(value) if isinstance(value, memoryview) else value for value in values]
    return plain if is_list else next(iter(plain), None)


def _fact(values: Values) -> Any | None:
    """Return a feature for the json field: one value or a list; None for bytes that are not text."""
    plain: list[Any] = []
    for value in values:
        if not isinstance(value, memoryview):
            plain.append(value if math.isfinite(value) else None)  # JSON has no NaN
            continue
        try:
            text = str(value, "utf-8")
        except UnicodeDecodeError:
            return None
        if "\0" in text:  # raw pixels of a mask may be valid UTF-8
            return None
        plain.append(text)
    return plain[0] if len(plain) == 1 else plain
