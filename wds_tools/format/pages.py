"""What a Parquet file becomes in memory, by its footer and by the headers of its pages, which decide. No I/O.

A column of equal values takes a few bytes in a file and 8 bytes a row in memory, and compressed pages can become
gigabytes. pyarrow finds that out when it has made room for them; and where a footer is damaged, its own reader of
footers may abort the process. Source: parquet.thrift (FileMetaData, PageHeader), and Thrift's compact protocol.
"""

from __future__ import annotations

from typing import Any

_MOST_DEPTH = 16  # of structures inside each other; 6 are usual
_MOST_FOOTER = 4 << 20  # bytes; a column takes about 150 in each row group
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_NUM_VALUES, _TOTAL_COMPRESSED, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 5, 7, 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 2, 3
_FOOTER_END = 8  # bytes of the footer's length and of the mark "PAR1"


def memory_of(data: bytes) -> int:
    """Return about how many bytes all columns of a Parquet file take when they have been read.

    Raises:
        ValueError: It is not a Parquet file, or it is damaged, or its footer is very long.
    """
    length = int.from_bytes(data[-_FOOTER_END:-4], "little")
    if data[-4:] != b"PAR1" or length > len(data) - _FOOTER_END:
        raise ValueError("not a Parquet file, or cut")
    if length > _MOST_FOOTER:
        raise ValueError(f"its footer has {length:,} bytes; allowed are {_MOST_FOOTER:,}")
    footer = _Reader(data, len(data) - _FOOTER_END - length).struct()
    try:
        chunks = [column[_META_DATA] for group in footer.get(_ROW_GROUPS, []) for column in group[_COLUMNS]]
        return sum(8 * max(0, chunk[_NUM_VALUES]) + _pages(data, chunk) for chunk in chunks)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the footer or a page header is damaged") from error


def _pages(data: bytes, chunk: dict[int, Any]) -> int:
    """Return the bytes of a column chunk's pages, uncompressed."""
    if not chunk[_NUM_VALUES]:
        return 0  # nothing of it is read
    first, dictionary = chunk[_DATA_PAGE_OFFSET], chunk.get(_DICTIONARY_PAGE_OFFSET, 0)
    at = min(first, dictionary) if dictionary > 0 else first
    stop = min(len(data), at + chunk[_TOTAL_COMPRESSED])
    total = 0
    while at < stop:
        reader = _Reader(data, at)
        page = reader.struct()
        total += max(0, page[_PAGE_UNCOMPRESSED])
        at = reader.at + max(0, page[_PAGE_COMPRESSED])
    return total


class _Reader:
    """Reads values of Thrift's compact protocol; text is passed over."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read a structure: values by field."""
        if depth > _MOST_DEPTH:
            raise ValueError("the footer or a page header is nested too deeply")
        values: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._whole()
            kind = head & 15
            values[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return values

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self._whole()
        if kind in (1, 2, 3):  # one byte, booleans only in a list
            return self._byte()
        if kind in (7, 8):
            length = 8 if kind == 7 else self._varint()
            self.at += length
            return None
        if kind == 9:
            head = self._byte()
            count = head >> 4 if head >> 4 != 15 else self._varint()
            return [self._value(head & 15, depth) for _ in range(min(count, len(self.data)))]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"the footer or a page header has a value of kind {kind}")

    def _whole(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("the footer or a page header has a number of more than 64 bits")

    def _byte(self) -> int:
        if not 0 <= self.at < len(self.data):
            raise ValueError("the footer or a page header lies outside the file")
        self.at += 1
        return self.data[self.at - 1]
