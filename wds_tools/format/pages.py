"""The memory that a Parquet file takes, computed from its footer and page headers. No I/O.

A column of equal values takes a few bytes in a file and 8 bytes per row in memory, and compressed
pages can expand to gigabytes. pyarrow allocates that memory without a limit, and a damaged footer can
make its footer parser abort the process. So this module parses footer and page headers itself.

Sources: parquet.thrift (FileMetaData, PageHeader) and the compact protocol of Thrift.
"""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 16  # of nested structures; 6 are typical
_MAX_FOOTER_BYTES = 4 << 20  # a column takes about 150 bytes in each row group
# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_NUM_VALUES, _TOTAL_COMPRESSED, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 5, 7, 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 2, 3
_TRAILER_BYTES = 8  # length of the footer, and the magic number "PAR1"


def memory_of(data: bytes) -> int:
    """Return the estimated number of bytes that all columns of a Parquet file take in memory."""
    length = int.from_bytes(data[-_TRAILER_BYTES:-4], "little")
    if data[-4:] != b"PAR1" or length > len(data) - _TRAILER_BYTES:
        raise ValueError("not a Parquet file, or truncated")
    if length > _MAX_FOOTER_BYTES:
        raise ValueError(f"its footer has {length:,} bytes; allowed are {_MAX_FOOTER_BYTES:,}")
    try:
        footer = _ThriftReader(data, len(data) - _TRAILER_BYTES - length).struct()
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
        reader = _ThriftReader(data, at)
        page = reader.struct()
        total += max(0, page[_PAGE_UNCOMPRESSED])
        at = reader.at + max(0, page[_PAGE_COMPRESSED])
    return total


class _ThriftReader:
    """Decodes values of Thrift's compact protocol; skips text and floats. A value outside the data is an IndexError."""

    def __init__(self, data: bytes, at: int) -> None:
        if at < 0:
            raise ValueError("the footer or a page header lies outside the file")
        self.data = data
        self.at = at

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Decode a structure into a dictionary from field number to value."""
        if depth > _MAX_DEPTH:
            raise ValueError("the footer or a page header is nested too deeply")
        values: dict[int, Any] = {}
        data, field = self.data, 0
        while header := data[self.at]:
            self.at += 1
            field = field + (header >> 4) if header >> 4 else self._signed()
            kind = header & 15
            values[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        self.at += 1
        return values

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self._signed()
        if kind in (1, 2, 3):  # a byte, or a boolean in a list
            self.at += 1
            return self.data[self.at - 1]
        if kind in (7, 8):  # a double, or text
            length = 8 if kind == 7 else self._varint()
            self.at += length
            return None
        if kind == 9:  # a list
            header = self.data[self.at]
            self.at += 1
            count = header >> 4 if header >> 4 != 15 else self._varint()
            return [self._value(header & 15, depth) for _ in range(min(count, len(self.data)))]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"the footer or a page header has a value of unknown type {kind}")

    def _signed(self) -> int:
        """Decode an integer in zigzag encoding."""
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        data, at, number, shift = self.data, self.at, 0, 0
        while (byte := data[at]) > 127 and shift < 63:
            number |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
        self.at = at + 1
        if byte < 128:
            return number | byte << shift
        raise ValueError("the footer or a page header has a number of more than 64 bits")
