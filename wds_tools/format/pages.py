"""The memory that a Parquet file takes, computed from its footer and page headers. No I/O.

A column of equal values takes a few bytes in a file and 8 bytes per row in memory, and compressed
pages can expand to gigabytes. pyarrow allocates that memory without a limit, and a damaged footer can
make its footer parser abort the process. So this module parses footer and page headers itself.

A structure that is written as usual is matched by one regular expression, as one call for each value
would take most of the time of reading an index. All others are decoded value by value, and may be invalid.

Sources: parquet.thrift (FileMetaData, PageHeader) and the compact protocol of Thrift.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

_MAX_DEPTH = 16  # of nested structures and lists; 8 are typical
_MAX_FOOTER_BYTES = 4 << 20  # a column takes about 150 bytes in each row group
_MAX_VARINT_BYTES = 10  # of 64 bits
_SHORT_TEXT = 32  # texts of fewer bytes are matched by expressions
_TRAILER_BYTES = 8  # length of the footer, and the magic number "PAR1"

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12

# Numbers of fields of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_PATH, _NUM_VALUES, _TOTAL_COMPRESSED, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 3, 5, 7, 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 2, 3


def memory_of(data: bytes, columns: Collection[str] | None = None) -> int:
    """Return the estimated number of bytes that columns of a Parquet file take in memory."""
    length = int.from_bytes(data[-_TRAILER_BYTES:-4], "little")
    if data[-4:] != b"PAR1" or length > len(data) - _TRAILER_BYTES:
        raise ValueError("not a Parquet file, or truncated")
    if length > _MAX_FOOTER_BYTES:
        raise ValueError(f"its footer has {length:,} bytes; allowed are {_MAX_FOOTER_BYTES:,}")
    requested = None if columns is None else {name.encode() for name in columns}
    try:
        footer = _struct(data, len(data) - _TRAILER_BYTES - length, _FOOTER, 0)[0]
        chunks = [column[_META_DATA] for group in footer.get(_ROW_GROUPS, ()) for column in group[_COLUMNS]]
        return sum(
            8 * max(0, chunk[_NUM_VALUES]) + _uncompressed_bytes(data, chunk)
            for chunk in chunks
            if requested is None or _is_wanted(b".".join(chunk[_PATH]), requested)
        )
    except (LookupError, TypeError) as error:
        raise ValueError("the footer or a page header is damaged") from error


def _is_wanted(path: bytes, requested: Collection[bytes]) -> bool:
    """Return whether pyarrow reads a column for one of these names, which may also name a structure of columns."""
    return path in requested or any(path.startswith(name + b".") for name in requested)


def _uncompressed_bytes(data: bytes, chunk: dict[int, Any]) -> int:
    """Return the uncompressed size of the pages of a column chunk."""
    if not chunk[_NUM_VALUES]:
        return 0  # pyarrow reads no pages of an empty chunk
    first, dictionary = chunk[_DATA_PAGE_OFFSET], chunk.get(_DICTIONARY_PAGE_OFFSET, 0)
    at = min(first, dictionary) if dictionary > 0 else first
    if at < 0:
        raise ValueError("the footer or a page header lies outside the file")
    stop = min(len(data), at + chunk[_TOTAL_COMPRESSED])
    total = 0
    while at < stop:
        page, at = _struct(data, at, _PAGE, 0)
        total += max(0, page[_PAGE_UNCOMPRESSED])
        at += max(0, page[_PAGE_COMPRESSED])
    return total


@dataclass(frozen=True, slots=True)
class _Decoded:
    """The fields of a structure that are decoded.

    Attributes:
        fields: Number of each decoded field -> its type, and what is decoded of it.
        usual: The structure for `_usual`; None decodes it value by value.
    """

    fields: dict[int, tuple[int, Any]]
    usual: str | None = None


# Expressions that match fields of which nothing is needed.


def _field(*kinds: int) -> bytes:
    """Match the head of a field whose number is larger than the number before it."""
    return b"[" + re.escape(bytes(step << 4 | kind for step in range(1, 16) for kind in kinds)) + b"]"


def _several(most: int, kind: int, item: bytes) -> bytes:
    """Match a list of up to ``most`` values of a type."""
    return b"|".join(re.escape(bytes([count << 4 | kind])) + item * count for count in range(most + 1))


_NUMBER = rb"[\x80-\xff]{0,9}[\0-\x7f]"
_CHARACTERS = b"(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(_SHORT_TEXT)) + b")"
_PLAIN_FIELD = b"|".join(
    [
        _field(_TRUE, _FALSE),
        _field(_BYTE) + b".",
        _field(_I16, _I32, _I64) + _NUMBER,
        _field(_TEXT) + _CHARACTERS,
        _field(_LIST) + b"(?:" + _several(5, _I32, _NUMBER) + b"|" + _several(2, _I64, _NUMBER) + b")",
    ]
)


def _fields(depth: int, *others: bytes) -> bytes:
    """Match fields up to the end of a structure, with structures in it up to a depth."""
    fields = [_PLAIN_FIELD, *others, *([_field(_STRUCT) + _fields(depth - 1)] if depth else [])]
    return b"(?:" + b"|".join(fields) + rb")*+\0"  # possessive: what does not match, is not tried in other ways


@cache
def _usual(structure: str) -> re.Pattern[bytes]:
    """Return an expression for a structure as it is usually written, with a group for each decoded field.

    It is compiled when it is first needed, which takes some milliseconds.
    """
    list_of_structures = _field(_LIST) + b"(?:" + _several(3, _STRUCT, _fields(0)) + b")"
    parts = {b"n": _NUMBER, b"text": _CHARACTERS, b"encodings": _several(5, _I32, _NUMBER)}
    if structure == "chunk":
        expression = (
            rb"\x15%(n)b\x19(?:%(encodings)b)\x19\x18(%(text)b)\x15%(n)b"  # type, encodings, path, codec
            rb"\x16(%(n)b)\x16%(n)b\x16(%(n)b)\x26(%(n)b)"  # from _NUM_VALUES to _DATA_PAGE_OFFSET
            rb"(?:\x26(%(n)b)|(?=[\x30-\xff\0]))"  # _DICTIONARY_PAGE_OFFSET, or a field with a larger number
        )
        expression = expression % parts + _fields(1, list_of_structures)
    elif structure == "page":
        expression = rb"\x15%(n)b\x15(%(n)b)\x15(%(n)b)" % parts + _fields(2)
    else:
        expression = _fields(2)
    return re.compile(expression, re.DOTALL)


_CHUNK = _Decoded(
    {
        _PATH: (_LIST, (_TEXT, None)),
        _NUM_VALUES: (_I64, None),
        _TOTAL_COMPRESSED: (_I64, None),
        _DATA_PAGE_OFFSET: (_I64, None),
        _DICTIONARY_PAGE_OFFSET: (_I64, None),
    },
    "chunk",
)
_GROUP = _Decoded({_COLUMNS: (_LIST, (_STRUCT, _Decoded({_META_DATA: (_STRUCT, _CHUNK)})))})
_FOOTER = _Decoded({_ROW_GROUPS: (_LIST, (_STRUCT, _GROUP))})
_PAGE = _Decoded({_PAGE_UNCOMPRESSED: (_I32, None), _PAGE_COMPRESSED: (_I32, None)}, "page")
_NOTHING = _Decoded({})


# These functions return the position after what they read. A position outside of the data is an IndexError.


def _struct(data: bytes, at: int, decoded: _Decoded, depth: int) -> tuple[dict[int, Any], int]:
    """Decode the `_Decoded` fields of a structure into a dictionary from field number to value."""
    if decoded.usual is not None and (match := _usual(decoded.usual).match(data, at)):
        spans = zip(decoded.fields.items(), match.regs[1:], strict=True)
        return {field: _matched(data, kind, *span) for (field, (kind, _)), span in spans if span[0] >= 0}, match.end()
    if depth > _MAX_DEPTH:
        raise ValueError("the footer or a page header is nested too deeply")
    values: dict[int, Any] = {}
    field = 0
    while header := data[at]:
        at += 1
        kind = header & 15
        if header > 15:
            field += header >> 4
        else:
            field, at = _signed(data, at)
        if field in decoded.fields:
            expected, of_value = decoded.fields[field]
            if field in values or kind != expected:
                raise ValueError("the footer or a page header has a field twice, or one of another type")
            values[field], at = _value(data, at, kind, of_value, depth)
        elif kind not in (_TRUE, _FALSE):
            at = _skip(data, at, kind, depth)
    return values, at + 1


def _matched(data: bytes, kind: int, start: int, stop: int) -> Any:
    """Decode what a group has matched: a number, or the only text of a list."""
    if kind == _LIST:
        return [bytes(data[start + 1 : stop])]
    value, shift = 0, 0
    for byte in data[start:stop]:
        value |= (byte & 127) << shift
        shift += 7
    return value >> 1 ^ -(value & 1)


def _value(data: bytes, at: int, kind: int, of_value: Any, depth: int) -> tuple[Any, int]:
    """Decode a value of a type; of a structure only the fields of its `_Decoded`."""
    if kind == _STRUCT:
        return _struct(data, at, of_value, depth + 1)
    if kind == _TEXT:
        length, at = _varint(data, at)
        return bytes(data[at : at + length]), at + length
    if kind != _LIST:
        return _signed(data, at)
    expected, of_item = of_value
    count, kind, at = _list(data, at)
    if count and kind != expected:
        raise ValueError("the footer or a page header has a list of another type")
    values = []
    for _ in range(count):
        value, at = _value(data, at, kind, of_item, depth + 1)
        values.append(value)
    return values, at


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """Skip a value, which is a byte for a boolean in a list."""
    if kind == _STRUCT:
        match = _usual("of no interest").match(data, at)
        return _struct(data, at, _NOTHING, depth + 1)[1] if match is None else match.end()
    if kind in (_I16, _I32, _I64):
        return _varint(data, at)[1]
    if kind == _TEXT:
        length, at = _varint(data, at)
        return at + length
    if kind == _DOUBLE:
        return at + 8
    if kind in (_TRUE, _FALSE, _BYTE):
        return at + 1
    if kind != _LIST:
        raise ValueError(f"the footer or a page header has a value of unknown type {kind}")
    if depth > _MAX_DEPTH:
        raise ValueError("the footer or a page header is nested too deeply")
    count, kind, at = _list(data, at)
    for _ in range(count):
        at = _skip(data, at, kind, depth + 1)
        data[at]  # so that the loop ends with the data
    return at


def _list(data: bytes, at: int) -> tuple[int, int, int]:
    """Decode the head of a list: number of values, and their type."""
    header = data[at]
    count, at = (header >> 4, at + 1) if header >> 4 != 15 else _varint(data, at + 1)
    return count, header & 15, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """Decode an integer in zigzag encoding."""
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift, first = 0, 0, at
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if at - first == _MAX_VARINT_BYTES:
            raise ValueError("the footer or a page header has a number of more than 64 bits")
    return value | byte << shift, at + 1
