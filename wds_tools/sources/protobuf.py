"""A parser for protocol buffer messages: ``tf.train.Example``, ``SequenceExample`` and Caffe's ``Datum``.

Source: https://protobuf.dev/programming-guides/encoding/. Values of bytes are slices of the buffer,
without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Values = list[memoryview] | list[int] | list[float]


def parse_example(data: memoryview) -> dict[str, Values | list[Values]]:
    """Return the features of a ``tf.train.Example`` or ``tf.train.SequenceExample`` by name.

    The feature lists of a ``SequenceExample`` are lists with the values of each step.

    Raises:
        ValueError: The data is not a valid message.
    """
    features: dict[str, Values | list[Values]] = {}
    for number, content in _messages(data):
        if number not in (1, 2):
            continue
        for inner, entry in _messages(content):
            if inner != 1:
                continue
            parts = dict(_messages(entry))
            name, value = str(parts.get(1, b""), "utf-8", "surrogateescape"), parts.get(2, memoryview(b""))
            if number == 2 and name in features:
                raise ValueError(f"the feature {name!r} is in the context and in the feature lists")
            features[name] = (
                _feature(value) if number == 1 else [_feature(step) for kind, step in _messages(value) if kind == 1]
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
    for number, kind, value in fields(data):
        if number == 4 and isinstance(value, memoryview):
            content = value
        elif number == 6 and isinstance(value, memoryview):
            floats += len(value) // 4
        elif kind == _VARINT and isinstance(value, int):
            numbers[number] = _signed(value)
    shape = (numbers.get(1, 0), numbers.get(2, 0), numbers.get(3, 0))
    return Datum(content, numbers.get(5), shape, floats)


def fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """Yield (number, wire type, value) of each field of a message; a varint is an int, others are bytes.

    Raises:
        ValueError: The data is not a valid message, or is truncated.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {position}; allowed are 0, 1, 2 and 5")
        if size > len(data) - position:
            raise ValueError(f"a field states {size:,} bytes, but {len(data) - position:,} are left")
        yield number, kind, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise ValueError(f"the varint at byte {position} does not end")


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    return ((number, value) for number, _, value in fields(data) if isinstance(value, memoryview))


def _feature(data: memoryview) -> Values:
    """Return the values of a feature: a list of bytes (field 1), floats (2) or integers (3)."""
    for number, content in _messages(data):
        if number == 1:
            return [value for inner, value in _messages(content) if inner == 1]
        if number == 2:
            floats = b"".join(value for inner, value in _messages(content) if inner == 1)
            return [value for (value,) in struct.iter_unpack("<f", floats[: len(floats) // 4 * 4])]
        if number == 3:
            return list(_integers(content))
    return list[int]()


def _integers(data: memoryview) -> Iterator[int]:
    for number, _, value in fields(data):
        if number == 1 and isinstance(value, int):
            yield _signed(value)
        elif number == 1 and isinstance(value, memoryview):  # packed
            position = 0
            while position < len(value):
                item, position = _varint(value, position)
                yield _signed(item)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
