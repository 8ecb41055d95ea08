"""A table of paths or URLs of images: CSV, TSV or JSON Lines, with labels and other columns.

The user wrote the table, so it may name any file. Workers read a row at its byte offset and do not
load the table.
"""

from __future__ import annotations

import codecs
import csv
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from wds_tools.errors import SourceError
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    SourceStoreError,
    as_read_error,
    check_size,
    field_bytes,
    file_states,
    stamp_files,
)
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    check_unique,
    fact_name,
    facts_bytes,
    field_name,
    find_column,
    is_text_field,
    json_value,
    no_image_error,
)
from wds_tools.sources.urls import URL_BYTES, fetch
from wds_tools.storage import is_url

_MAX_LINE_BYTES = 16 << 20
_NOT_A_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
_MORE = "\n"  # key of the values of a row that no column is for; a column of CSV has no such name
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # str.splitlines also splits at other characters, such as U+2028

Row = dict[str, Any]


class TableSource(Source):
    """A table with a row for each image.

    It is JSON Lines if its name ends in ``.jsonl`` or ``.ndjson`` or it begins with ``{``. Otherwise values are
    separated by tabs in a ``.tsv`` file, else by a comma, semicolon or tab, as in the header. The column of images has
    paths relative to the table, or URLs.
    """

    kind = "table"
    unit = "row"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.remote = self.options.remote

    def collect(self, found: Collector) -> None:
        """Add the rows, with the length of each file.

        Raises:
            SourceError: There is no such table, no column of images, or no row whose files exist.
        """
        image, label = self._roles
        states = file_states([self.path])
        for start, stop, row in self._rows():
            found.account.given += 1
            name = str(row.get(image) or "")
            try:
                size, extra = self._sizes(row)
            except SourceError as error:
                found.skip(name or f"{self.path.name} at byte {start}", str(error))
                continue
            found.add(Input(name, size, None, (start, stop), -1, extra), row.get(label) if label else None)
        found.files = states
        found.stamp = stamp_files([self.path]) + repr(sorted(self.columns.items()))

    def read(self, entry: Input) -> Record:
        """Read the image of a row, and its other columns.

        Raises:
            SourceError: There is nothing at a URL.
            SourceStoreError: A file is missing or cannot be read, or the storage of a URL fails.
            SourceChangedError: The image has changed its size since it was listed.
        """
        start, stop = entry.location
        with as_read_error(f"{self.path} cannot be read", ValueError, csv.Error), self.path.open("rb") as file:
            file.seek(start)
            row = self._parse(file.read(stop - start).decode("utf-8", "surrogateescape"))
        name = str(row[self._roles[0]])
        image = self._bytes(name)
        if not is_url(name):
            check_size(f"file {name!r}", len(image), entry.size)
        fields = {field: self._field(field, row[name]) for name, field in self._fields(row).items()}
        return Record(image, fields, self._facts(row))

    @cached_property
    def _is_json_lines(self) -> bool:
        if self.path.suffix.lower() in (".jsonl", ".ndjson"):
            return True
        with as_read_error(f"{self.path} cannot be read"), self.path.open("rb") as file:
            return file.read(4).removeprefix(codecs.BOM_UTF8)[:1] == b"{"

    @cached_property
    def header(self) -> tuple[list[str], str, int]:
        """The names of the columns, the separator, and the offset of the first row.

        The columns of JSON Lines are the keys of all rows. They are pickled with the source, so workers do not read
        the table again.
        """
        with as_read_error(f"{self.path} cannot be read", ValueError), self.path.open("rb") as file:
            if self._is_json_lines:
                names = dict.fromkeys(name for line in _Lines(file, 0) if line.strip() for name in self._parse(line))
                return list(names), "", 0
            line = file.readline(_MAX_LINE_BYTES)
            text = line.decode("utf-8-sig", "surrogateescape").rstrip("\r\n")
            separator = "\t" if self.path.suffix.lower() == ".tsv" else max(",;\t", key=text.count)
            columns: list[str] = next(csv.reader([text], delimiter=separator), [])
        check_unique(columns, where=str(self.path))
        return columns, separator, len(line)

    @cached_property
    def _roles(self) -> tuple[str, str | None]:
        names = self.header[0]
        image = find_column(IMAGE, names, self.columns, where=str(self.path))
        if image is None:
            raise no_image_error(str(self.path), names)
        return image, find_column(LABEL, [name for name in names if name != image], self.columns, where=str(self.path))

    def _rows(self) -> Iterator[tuple[int, int, Row]]:
        """Yield (first byte, end, row) of each row."""
        _, separator, start = self.header
        with as_read_error(f"{self.path} cannot be read", ValueError, csv.Error), self.path.open("rb") as file:
            file.seek(start)
            lines = _Lines(file, start)
            if self._is_json_lines:
                for line in lines:
                    if line.strip():
                        yield lines.start, lines.stop, self._parse(line)
                return
            for values in csv.reader(lines, delimiter=separator):
                row_start, lines.row_start = lines.row_start, lines.stop
                if values:
                    yield row_start, lines.stop, self._row_of(values)

    def _parse(self, text: str) -> Row:
        """Parse the text of one row."""
        if not self._is_json_lines:
            return self._row_of(next(csv.reader(_LINE.findall(text), delimiter=self.header[1])))
        row = json.loads(text.removeprefix("\ufeff"))
        if not isinstance(row, dict):
            raise SourceError(f'{self.path}: a line is {text[:40]!r}; expected an object, such as {{"path": ...}}')
        return row

    def _row_of(self, values: list[str]) -> Row:
        names = self.header[0]
        row: Row = dict(zip(names, values, strict=False))
        if any(values[len(names) :]):
            row[_MORE] = values[len(names) :]
        return row

    def _fields(self, row: Row) -> dict[str, str]:
        """Return column -> field for the columns that become fields and have a value in this row."""
        fields: dict[str, str] = {}
        for name, value in row.items():
            field = field_name(name)
            if field and name not in self._roles and value not in (None, "") and field not in fields.values():
                fields[name] = field
        return fields

    def _facts(self, row: Row) -> Row:
        excluded = {*self._roles, *self._fields(row)}
        return {fact_name(name): json_value(value) for name, value in row.items() if name not in excluded}

    def _field(self, field: str, value: Any) -> bytes:
        """Return the content of a field: the value itself for text, otherwise the file that it names."""
        if is_text_field(field):
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            return text.encode("utf-8", "surrogateescape")
        return self._bytes(str(value))

    def _sizes(self, row: Row) -> tuple[int, int]:
        """Return the length of a row's image, and the bytes that the other fields take in a shard."""
        if _MORE in row:
            names = self.header[0]
            count = len(names) + len(row[_MORE])
            raise SourceError(
                f"the row has {count} values for {len(names)} columns: put values that contain the separator in quotes"
            )
        extra = facts_bytes(self._facts(row))
        for name, field in self._fields(row).items():
            value = row[name]
            extra += field_bytes(len(self._field(field, value)) if is_text_field(field) else self._size(str(value)))
        return self._size(str(row.get(self._roles[0]) or "")), extra

    def _size(self, name: str) -> int:
        if not name:
            raise SourceError("names no file")
        if is_url(name):
            return URL_BYTES
        path = self._path(name)
        try:
            with as_read_error(f"file {name!r} cannot be read", ValueError):
                status = path.stat()
        except SourceStoreError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NOT_A_FILE:
                raise SourceError(str(error)) from error
            raise
        is_file = stat.S_ISREG(status.st_mode)
        if not is_file or not 0 < status.st_size <= MAX_RECORD_BYTES:
            problem = f"has {status.st_size:,} bytes" if is_file else "is not a regular file"
            raise SourceError(f"file {name!r} {problem}; allowed are files of 1 to {MAX_RECORD_BYTES:,} bytes")
        return status.st_size

    def _path(self, name: str) -> Path:
        """Return the path that a row names, relative to the table; the name may contain surrogate escapes."""
        return Path(os.fsdecode(os.path.join(os.fsencode(self.path.parent), name.encode("utf-8", "surrogateescape"))))  # noqa: PTH118

    def _bytes(self, name: str) -> bytes:
        if is_url(name):
            return fetch(name, self.remote)
        with as_read_error(f"file {name!r} cannot be read", ValueError), self._path(name).open("rb") as file:
            return file.read(MAX_RECORD_BYTES)


class _Lines(Iterator[str]):
    """The lines of a file, with the byte offsets of the last line that was read.

    Attributes:
        start: First byte of the line.
        stop: End of the line.
        row_start: First byte of the row, which may have several lines; the caller sets it.
    """

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self.start = self.stop = self.row_start = start

    def __next__(self) -> str:
        line = self._file.readline(_MAX_LINE_BYTES)
        if not line:
            raise StopIteration
        self.start, self.stop = self.stop, self.stop + len(line)
        return line.decode("utf-8", "surrogateescape")
