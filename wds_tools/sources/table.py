"""A table of paths or URLs: CSV, TSV or JSON Lines, with labels and whatever else is known of each picture.

The table is the user's own, so it may name any file. A worker finds a row by its place in bytes, and holds no table.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from wds_tools.errors import SourceError
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    Input,
    Lazy,
    Listing,
    Record,
    Skip,
    field_bytes,
    refusing,
    stamp_files,
)
from wds_tools.sources.columns import IMAGE, LABEL, check_columns, fact_name, facts_bytes, field_name, no_image, pick
from wds_tools.sources.labels import label_inputs
from wds_tools.sources.urls import URL_BYTES, fetch
from wds_tools.storage import is_url

_MAX_LINE_BYTES = 16 << 20
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # str.splitlines would also split at other characters
_TEXT_FIELDS = (".txt", ".json")

Row = dict[str, Any]


class TableSource(Lazy):
    """A table with a row for each image.

    Args:
        path: Of the table: JSON Lines if it begins with ``{`` or its name ends so, else separated values: by tabs in
            ``.tsv``, elsewhere by what separates the names of the columns.
        classes: Class names by number.
        columns: Names of the columns: ``image`` (a path relative to the table, or a URL) and ``label``.
    """

    kind = "table"

    def __init__(
        self, path: str | Path, classes: tuple[str, ...] | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        self.path = Path(path)
        self.classes = classes
        self.columns = check_columns(columns)

    def scan(self) -> Listing:
        """List the rows and look at the length of each file.

        Raises:
            SourceError: No such table, no column of images, or no row whose files are there.
        """
        skipped: list[Skip] = []
        found: list[Input] = []
        raw: list[Any] = []
        for start, stop, row in self._rows():
            name = str(row.get(self._roles[0]) or "")
            try:
                size, extra = self._sizes(row)
            except SourceError as error:
                skipped.append(Skip(name or f"{self.path.name} at byte {start}", str(error)))
                continue
            found.append(Input(name, size, None, (start, stop), -1, extra))
            raw.append(row.get(self._roles[1]) if self._roles[1] else None)
        inputs, classes = label_inputs(found, raw, self.classes, skipped, where=str(self.path))
        return Listing(inputs, skipped, classes, stamp_files([self.path]) + repr(sorted(self.columns.items())))

    def read(self, entry: Input) -> Record:
        """Return the image of a row, and what the row says of it.

        Raises:
            SourceError: A file is gone, or the URL does not answer.
        """
        start, stop = entry.place
        with refusing("cannot be read", ValueError, csv.Error), self.path.open("rb") as file:
            file.seek(start)
            row = self._parse(file.read(stop - start).decode("utf-8", "surrogateescape"))
        image = self._bytes(str(row[self._roles[0]]))
        fields = {field: self._field(field, row[name]) for name, field in self._fields(row).items()}
        return Record(image, fields, self._facts(row))

    @cached_property
    def _is_lines(self) -> bool:
        if self.path.suffix.lower() in (".jsonl", ".ndjson"):
            return True
        with refusing(f"{self.path} cannot be read"), self.path.open("rb") as file:
            return file.read(4).removeprefix(codecs.BOM_UTF8)[:1] == b"{"  # no column is called so

    @cached_property
    def _header(self) -> tuple[list[str], str, int]:
        """Return the names of the columns, what separates them, and where the first row begins."""
        with refusing(f"{self.path} cannot be read", ValueError), self.path.open("rb") as file:
            if self._is_lines:
                first = json.loads(file.readline(_MAX_LINE_BYTES).decode("utf-8-sig") or "{}")
                return (list(first) if isinstance(first, dict) else []), "", 0
            line = file.readline(_MAX_LINE_BYTES)
            text = line.decode("utf-8-sig", "surrogateescape").rstrip("\r\n")
            separator = "\t" if self.path.suffix.lower() == ".tsv" else max(",;\t", key=text.count)
            return next(csv.reader([text], delimiter=separator), []), separator, len(line)

    @cached_property
    def _roles(self) -> tuple[str, str | None]:
        names = self._header[0]
        image = pick(IMAGE, names, self.columns, where=str(self.path))
        if image is None:
            raise no_image(str(self.path), names)
        return image, pick(LABEL, [name for name in names if name != image], self.columns, where=str(self.path))

    def _rows(self) -> Iterator[tuple[int, int, Row]]:
        """Yield (first byte, byte behind, row)."""
        _, separator, start = self._header
        with refusing(f"{self.path} cannot be read", ValueError, csv.Error), self.path.open("rb") as file:
            file.seek(start)
            lines = _Lines(file, start)
            if self._is_lines:
                for line in lines:
                    if line.strip():
                        yield lines.start, lines.stop, self._parse(line)
                return
            for values in csv.reader(lines, delimiter=separator):
                first, lines.first = lines.first, lines.stop
                if values:
                    yield first, lines.stop, self._named(values)

    def _parse(self, text: str) -> Row:
        """Return a row from its own text."""
        if not self._is_lines:
            return self._named(next(csv.reader(_LINE.findall(text), delimiter=self._header[1])))
        row = json.loads(text.removeprefix("\ufeff"))
        if not isinstance(row, dict):
            raise SourceError(f'{self.path}: a line holds {text[:40]!r}; expected an object, such as {{"path": ...}}')
        return row

    def _named(self, values: list[str]) -> Row:
        return dict(zip(self._header[0], values, strict=False))

    def _fields(self, row: Row) -> dict[str, str]:
        """Return column to field, of those with a value."""
        fields: dict[str, str] = {}
        for name, value in row.items():
            field = field_name(name)
            if field and name not in self._roles and value not in (None, "") and field not in fields.values():
                fields[name] = field
        return fields

    def _facts(self, row: Row) -> Row:
        left_out = {*self._roles, *self._fields(row)}
        return {fact_name(name): value for name, value in row.items() if name not in left_out}

    def _field(self, field: str, value: Any) -> bytes:
        """Return the content of a field: text as it stands, other types from the file that is named."""
        if field == "txt" or field.endswith(_TEXT_FIELDS):
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            return text.encode("utf-8", "surrogateescape")
        return self._bytes(str(value))

    def _sizes(self, row: Row) -> tuple[int, int]:
        """Return the bytes of a row's image and, in a shard, of all else."""
        extra = facts_bytes(self._facts(row))
        for name, field in self._fields(row).items():
            is_text = field == "txt" or field.endswith(_TEXT_FIELDS)
            extra += field_bytes(len(self._field(field, row[name])) if is_text else self._size(str(row[name])))
        return self._size(str(row.get(self._roles[0]) or "")), extra

    def _size(self, name: str) -> int:
        if not name:
            raise SourceError("names no file")
        if is_url(name):
            return URL_BYTES
        path = self._path(name)
        with refusing(f"file {name!r} cannot be read", ValueError):
            status = path.stat()
        if not path.is_file() or not 0 < status.st_size <= MAX_RECORD_BYTES:
            what = "is no regular file" if not path.is_file() else f"has {status.st_size:,} bytes"
            raise SourceError(f"file {name!r} {what}; packed are files of 1 to {MAX_RECORD_BYTES:,} bytes")
        return status.st_size

    def _path(self, name: str) -> Path:
        return Path(os.fsdecode(os.path.join(os.fsencode(self.path.parent), name.encode("utf-8", "surrogateescape"))))  # noqa: PTH118

    def _bytes(self, name: str) -> bytes:
        if is_url(name):
            return fetch(name)
        with refusing(f"file {name!r} cannot be read", ValueError), self._path(name).open("rb") as file:
            return file.read(MAX_RECORD_BYTES)


class _Lines(Iterator[str]):
    """The lines of a file, and where the one that was given last begins and ends."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self.start = self.stop = self.first = start  # first: of a row that may be several lines

    def __next__(self) -> str:
        line = self._file.readline(_MAX_LINE_BYTES)
        if not line:
            raise StopIteration
        self.start, self.stop = self.stop, self.stop + len(line)
        return line.decode("utf-8", "surrogateescape")
