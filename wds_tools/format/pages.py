"""The memory that a Parquet file takes, computed from its footer and page headers. No I/O.

A column of equal values takes a few bytes in a file and 8 bytes per row in memory, and compressed
pages can expand to gigabytes. pyarrow allocates that memory without a limit, and a damaged footer can
make its footer parser abort the process. So this module parses footer and page headers itself.

Sources: parquet.thrift (FileMetaData, PageHeader) and the compact protocol of Thrift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

_MAX_DEPTH = 16  # of nested structures; 6 are typical
_MAX_FOOTER_BYTES = 4 << 20  # a column takes about 150 bytes in each row group
# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_NUM_VALUES, _TOTAL_COMPRESSED, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 5, 7, 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 2, 3
_TRAILER_BYTES = 8  # length of the footer, and the magic number "PAR1"
# Types of the compact protocol. An index is out of range, an IndexError, if a value is beyond the data.
_BOOLEANS, _INTEGERS, _TEXT, _LIST, _STRUCT = (1, 2), (4, 5, 6), 8, 9, 12
_FIXED_BYTES = {1: 0, 2: 0, 3: 1, 7: 8}  # booleans that are fields, bytes and doubles
_TOO_DEEP = "the footer or a page header is nested too deeply"
_TOO_LONG = "the footer or a page header has a number of more than 64 bits"
# What is decoded of a structure, by the numbers of its fields: None for an integer, or what is decoded of structures.
_Wanted: TypeAlias = Mapping[int, Any]
_OF_CHUNK = dict.fromkeys((_NUM_VALUES, _TOTAL_COMPRESSED, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET))
_FOOTER: _Wanted = {_ROW_GROUPS: {_COLUMNS: {_META_DATA: _OF_CHUNK}}}
_PAGE: _Wanted = dict.fromkeys((_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED))


def memory_of(data: bytes) -> int:
    """Return the estimated number of bytes that all columns of a Parquet file take in memory."""
    length = int.from_bytes(data[-_TRAILER_BYTES:-4], "little")
    if data[-4:] != b"PAR1" or length > len(data) - _TRAILER_BYTES:
        raise ValueError("not a Parquet file, or truncated")
    if length > _MAX_FOOTER_BYTES:
        raise ValueError(f"its footer has {length:,} bytes; allowed are {_MAX_FOOTER_BYTES:,}")
    try:
        footer, _ = _struct(data, len(data) - _TRAILER_BYTES - length, _FOOTER)
        chunks = [column[_META_DATA] for group in footer.get(_ROW_GROUPS, []) for column in group[_COLUMNS]]
        return sum(8 * max(0, chunk[_NUM_VALUES]) + _uncompressed_bytes(data, chunk) for chunk in chunks)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the footer or a page header is damaged") from error


def _uncompressed_bytes(data: bytes, chunk: dict[int, Any]) -> int:
    """Return the uncompressed size of the pages of a column chunk."""
    if not chunk[_NUM_VALUES]:
        return 0  # pyarrow reads no pages of an empty chunk
    first, dictionary = chunk[_DATA_PAGE_OFFSET], chunk.get(_DICTIONARY_PAGE_OFFSET, 0)
    at = min(first, dictionary) if dictionary > 0 else first
    stop = min(len(data), at + chunk[_TOTAL_COMPRESSED])
    total = 0
    while at < stop:
        if at < 0:
            raise ValueError("a page header lies outside the file")
        page, at = _struct(data, at, _PAGE)
        total += max(0, page[_PAGE_UNCOMPRESSED])
        at += max(0, page[_PAGE_COMPRESSED])
    return total


def _struct(data: bytes, at: int, wanted: _Wanted, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Decode a structure. Return its wanted fields by their numbers, and where it ends."""
    if depth > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    values: dict[int, Any] = {}
    field = 0
    while header := data[at]:
        at, kind = at + 1, header & 15
        field, at = (field + (header >> 4), at) if header > 15 else _signed(data, at)
        if field not in wanted:
            at = _skip(data, at, kind, depth)
        elif (inner := wanted[field]) is None and kind in _INTEGERS:
            values[field], at = _signed(data, at)
        elif inner is not None and kind == _STRUCT:
            values[field], at = _struct(data, at, inner, depth + 1)
        elif inner is not None and kind == _LIST:
            values[field], at = _structs(data, at, inner, depth)
        else:
            raise ValueError(f"the footer or a page header has a value of the wrong type {kind}")
    return values, at + 1


def _structs(data: bytes, at: int, wanted: _Wanted, depth: int) -> tuple[list[dict[int, Any]], int]:
    """Decode a list of structures."""
    count, kind, at = _list_head(data, at)
    if kind != _STRUCT:
        raise ValueError(f"the footer or a page header has a list of the wrong type {kind}")
    found = []
    for _ in range(count):
        values, at = _struct(data, at, wanted, depth + 1)
        found.append(values)
    return found, at


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value ends. Nearly all values are skipped, so this is not done by decoding them."""
    if kind in _INTEGERS:
        first = at
        while data[at] > 127:
            at += 1
        if at - first > 9:
            raise ValueError(_TOO_LONG)
        return at + 1
    if kind == _TEXT:
        length, at = _varint(data, at)
        return at + length
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    if kind == _STRUCT:
        return _skip_struct(data, at, depth + 1)
    if kind == _LIST:
        return _skip_list(data, at, depth)
    raise ValueError(f"the footer or a page header has a value of unknown type {kind}")


def _skip_struct(data: bytes, at: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    while header := data[at]:
        at = at + 1 if header > 15 else _varint(data, at + 1)[1]
        at = _skip(data, at, header & 15, depth)
    return at + 1


def _skip_list(data: bytes, at: int, depth: int) -> int:
    count, kind, at = _list_head(data, at)
    if kind in _BOOLEANS:  # bytes, as elements
        return at + count
    for _ in range(count):
        at = _skip(data, at, kind, depth)
    return at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of elements of a list, not more than there are bytes, their type, and where they start."""
    header = data[at]
    count, at = (header >> 4, at + 1) if header >> 4 != 15 else _varint(data, at + 1)
    return min(count, len(data)), header & 15, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """Decode an integer in zigzag encoding; return it, and where it ends."""
    number, at = _varint(data, at)
    return number >> 1 ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 127 and shift < 63:
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
    if byte > 127:
        raise ValueError(_TOO_LONG)
    return number | byte << shift, at + 1
