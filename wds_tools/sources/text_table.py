"""Rows of a file: CSV with any usual separator, JSON Lines, JSON, or Parquet.

The rows of CSV and JSON Lines in UTF-8 are read at their byte offsets, without the rest of the file. Other files are
read as a whole.
"""

from __future__ import annotations

import codecs
import copy
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from wds_tools.errors import SourceError
from wds_tools.sources.arrow_types import class_lists_of, features_of, has_binary
from wds_tools.sources.base import as_read_error
from wds_tools.sources.class_file import stated_encoding
from wds_tools.sources.columns import IMAGE, check_unique, usual_columns
from wds_tools.sources.layouts import names_a_file
from wds_tools.sources.values import Excluded, cell
from wds_tools.wording import counted

COUNT = "\n"
"""Key of the number of values of a row, if there are more or fewer than columns; a column of CSV has no such name."""

Row = dict[str, Any]

_MAX_LINE_BYTES = 16 << 20
_MAX_WHOLE_BYTES = 1 << 30  # of a file that cannot be read row by row
_HEAD_BYTES = 1 << 16
_SEPARATORS = ",;\t|"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # str.splitlines also splits at other characters, such as U+2028
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # as Excel reads it
_PARQUET = b"PAR1"
_NO_BYTES = Excluded("binary, which is not read from a table of files")
_INVALID = re.compile("[\ud800-\udfff]")
ONE_HOT_NAME = "_classes.csv"


class TextTable:
    """A file with rows. It is pickled with the names of its columns, so workers do not read it again.

    It is Parquet if it begins so; its values are then like values of JSON. It is JSON Lines if its name ends in
    ``.jsonl`` or ``.ndjson``, or if it begins with an object; JSON if it begins with a list, or is one object.
    Otherwise values are separated by a comma, semicolon, tab or ``|``: whichever gives the most columns, or the one of
    a first line ``sep=;``.

    Args:
        path: The file.
        encoding: Encoding of the text; None is UTF-8, or as a byte order mark states.
        data: Its content, of a file in an archive or at a URL; None reads the local file.

    Attributes:
        columns: Names of the columns: of CSV, the names in the header; of JSON, the keys of all rows. A column without
            a name in the header is ``column_N``, counted from 1.
        unnamed: The columns without a name.
        class_lists: Column -> class names, by number, that the schema of Parquet has.
    """

    def __init__(self, path: Path, encoding: str | None = None, data: bytes | None = None) -> None:
        self.path = path
        self._data = data
        self._read_format(encoding)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_whole"}

    def rows(self) -> Iterator[tuple[tuple[int, int], Row]]:
        """Yield (location, row) of each row.

        Raises:
            SourceError: A row cannot be parsed, or it is not text in the encoding.
        """
        if self.is_whole:
            yield from (((index, index + 1), row) for index, row in enumerate(self._whole))
            return
        with self._errors(), self._open() as file:
            file.seek(self.start)
            lines = _Lines(file, self.start)
            if self.is_json:
                for line in lines:
                    if line.strip():
                        yield (lines.start, lines.stop), self._object(line)
                return
            for values in self._reader(lines):
                start, lines.row_start = lines.row_start, lines.stop
                if values:
                    yield (start, lines.stop), self._row_of(values)

    def with_rows(self, columns: Sequence[str], rows: Sequence[Row]) -> TextTable:
        """Return a table with other rows, which are in memory."""
        table = copy.copy(self)
        vars(table).update(columns=list(columns), is_whole=True, is_json=True, _whole=list(rows))
        return table

    def row(self, location: tuple[int, ...]) -> Row:
        """Return the row at a location."""
        start, stop = location
        if self.is_whole:
            return self._whole[start]
        with self._errors(), self._open() as file:
            file.seek(start)
            text = file.read(stop - start).decode("utf-8", "surrogateescape")
            return self._object(text) if self.is_json else self._row_of(next(self._reader(_LINE.findall(text))))

    def position(self, location: tuple[int, ...]) -> str:
        """Return where a row is, for messages."""
        return f"{self.path.name}, row {location[1]:,}" if self.is_whole else f"{self.path.name} at byte {location[0]}"

    def check_count(self, row: Row) -> None:
        """Check that a row has a value for each column; values may be empty."""
        if (count := row.get(COUNT)) is not None:
            remedy = "put values that contain the separator in quotes"
            if count < len(self.columns):
                remedy = "write the separators of empty values too"
            raise SourceError(f"the row has {counted(count, 'value')} for {len(self.columns)} columns: {remedy}")

    def check_encoding(self, row: Mapping[str, Any], location: tuple[int, ...]) -> None:
        """Check that the texts of a row are valid."""
        for value in row.values():
            if isinstance(value, str) and not value.isascii() and _INVALID.search(value):
                raise SourceError(
                    f"{self.path} is not UTF-8: the row at byte {location[0]:,} has {ascii(value)[:40]}; name the "
                    "encoding, such as --encoding latin-1 or cp1252 (encoding=)"
                )

    def _open(self) -> BinaryIO:
        return self.path.open("rb") if self._data is None else io.BytesIO(self._data)

    def _errors(self) -> Any:
        return as_read_error(f"{self.path} cannot be read", ValueError, RecursionError, csv.Error)

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        # strict: otherwise a quote that is not closed makes one value of all following rows
        reader = csv.reader(lines, delimiter=self.separator, skipinitialspace=self.skips_spaces, strict=True)
        rows = 0
        try:
            for values in reader:
                rows += 1
                yield values
        except csv.Error as error:
            raise SourceError(
                f"{self.path}: row {rows + 1:,} cannot be read: {error}; a value with a separator or a line break must "
                "be in double quotes, and a quote in it must be doubled"
            ) from error

    def _read_format(self, encoding: str | None) -> None:
        self.start, self.separator, self.skips_spaces = 0, "", False
        self.columns: list[str] = []
        self.unnamed: tuple[str, ...] = ()
        self.class_lists: dict[str, tuple[str, ...]] = {}
        with self._errors(), self._open() as file:
            head = file.read(_HEAD_BYTES)
            self._is_parquet = head.startswith(_PARQUET)
            if self._is_parquet:
                self.encoding, self.is_whole, self.is_json = "utf-8", True, True
                self.columns, self.class_lists = _columns_of_parquet(head + file.read())
                return
            self.encoding = encoding or stated_encoding(head) or "utf-8"
            self.is_whole = codecs.lookup(self.encoding).name not in ("utf-8", "utf-8-sig")
            if not self.is_whole and b"\0" in head:
                raise SourceError(
                    f"{self.path} has bytes of value 0, so it is not UTF-8: name the encoding, such as --encoding "
                    "utf-16-le (encoding=)"
                )
            text = head.decode(self.encoding, "replace").lstrip("\ufeff")
            suffix = self.path.suffix.lower()
            first, are_lines = text.lstrip()[:1], suffix in (".jsonl", ".ndjson")
            if first == "{" and not self.is_whole:
                file.seek(0)
                text = file.readline(_MAX_LINE_BYTES).decode("utf-8-sig", "replace")
            self._is_document = suffix not in (".csv", ".tsv") and (
                first == "[" or (first == "{" and not are_lines and _is_document(text))
            )
            self.is_json = self._is_document or first == "{" or are_lines
            self.is_whole |= self._is_document or ("\n" not in text and "\r" in text)
            if self.is_json:
                rows = self._whole if self.is_whole else (row for _, row in self.rows())
                self.columns = list(dict.fromkeys(name for row in rows for name in row))
            elif self.is_whole:
                self._whole  # noqa: B018 - reads the header
            else:
                file.seek(0)
                self._read_header(_Lines(file, 0))

    def _read_header(self, lines: Iterator[str]) -> None:
        """Read the line ``sep=`` and the names of the columns."""
        first = next((line for line in lines if line.strip("\ufeff\r\n")), "").removeprefix("\ufeff")
        if match := _SEPARATOR_LINE.fullmatch(first):
            self.separator, first = match[1], next(lines, "")
        else:
            tab_first = self.path.suffix.lower() == ".tsv" and "\t" in first
            self.separator = "\t" if tab_first else max(_SEPARATORS, key=lambda mark: len(_split(first, mark)))
        names = _split(first, self.separator)
        if first.startswith("#") and (len(names) == 1 or first[1:2] == " "):
            raise SourceError(
                f"{self.path} begins with a comment, {first.strip()[:40]!r}: the first line must have the names of the "
                "columns, such as path,label"
            )
        self.skips_spaces = any(names[1:]) and all(name.startswith(" ") for name in names[1:] if name)
        names = [name.strip() for name in next(self._reader(chain([first], lines)), [])]
        self.start = getattr(lines, "stop", 0)
        check_unique(names, where=str(self.path))
        self.columns = [name or f"column_{position}" for position, name in enumerate(names, 1)]
        self.unnamed = tuple(column for column, name in zip(self.columns, names, strict=True) if not name)

    @cached_property
    def _whole(self) -> list[Row]:
        """All rows of a file that is read as a whole."""
        with self._errors(), self._open() as file:
            data = file.read(_MAX_WHOLE_BYTES + 1)
            if len(data) > _MAX_WHOLE_BYTES:
                raise SourceError(
                    f"{self.path} has more than {_MAX_WHOLE_BYTES:,} bytes, and must be read as a whole: write it as "
                    "CSV or JSON Lines in UTF-8, which are read row by row"
                )
            if self._is_parquet:
                return [*map(_with_single_paths, _rows_of_parquet(data))]
            try:
                text = data.decode(self.encoding).removeprefix("\ufeff")
            except UnicodeError as error:
                raise SourceError(f"{self.path} is not {self.encoding}: {error}; name another --encoding") from error
            if self._is_document:
                return [*map(_with_single_paths, _rows_of_document(text, str(self.path)))]
            if self.is_json:
                return [self._object(line) for line in _LINE.findall(text) if line.strip()]
            lines = iter(io.StringIO(text, newline=""))
            self._read_header(lines)
            return [self._row_of(values) for values in self._reader(lines) if values]

    def _object(self, text: str) -> Row:
        row = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_unique)
        if not isinstance(row, dict):
            raise SourceError(f'{self.path}: a line is {text[:40]!r}; expected an object, such as {{"path": ...}}')
        return _with_single_paths(row)

    def _row_of(self, values: list[str]) -> Row:
        has_title = len(self.columns) - len(self.unnamed) == 1 < len(self.columns)
        if has_title and self.columns[0] not in self.unnamed and any(values[1:]):
            raise SourceError(
                f"{self.path} has a first line with only one text, {self.columns[0]!r}, and rows with more values: the "
                "first line must have the names of the columns, such as path,label"
            )
        row: Row = dict(zip(self.columns, values, strict=False))
        row = {name: value for name, value in row.items() if value or name not in self.unnamed}
        if any(values[len(self.columns) :]) or not all(name in self.unnamed for name in self.columns[len(values) :]):
            row[COUNT] = len(values)  # it is not certain which column each value belongs to
        return row


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


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _is_document(text: str) -> bool:
    """Return whether text that begins with ``{`` is one object of several lines, not an object per line."""
    first, _, _ = text.lstrip().partition("\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return isinstance(value, dict) and _has_columns(value)


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    """Return a JSON object, if each key occurs only once."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r} twice, with {[v for name, v in pairs if name == twice]}")
    return row


def _has_columns(value: Mapping[str, Any]) -> bool:
    """Return whether an object has a list, or values by row, for each column."""
    return bool(value) and any(all(isinstance(column, kind) for column in value.values()) for kind in (list, dict))


def _names_images(names: Iterable[str]) -> bool:
    return bool(usual_columns(IMAGE, names, {}, where=""))


def _with_single_paths(row: Row) -> Row:
    """Return a row in which a list with only the path of the image is this path, as in ``"images": ["1.jpg"]``."""
    lists = (name for name in row if isinstance(row[name], list) and len(row[name]) == 1 and _names_images([name]))
    return row | {name: row[name][0] for name in lists if names_a_file(row[name][0])}


def _rows_of_document(text: str, where: str) -> list[Row]:
    """Return the rows of a list of objects, or of an object of columns."""
    value = json.loads(text, object_pairs_hook=_unique)
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return value
    if isinstance(value, dict) and _has_columns(value):
        if all(isinstance(row, dict) and _names_images(row) for row in value.values()) and not _names_images(value):
            return list(value.values())  # rows by their key
        keys = [column.keys() if isinstance(column, dict) else range(len(column)) for column in value.values()]
        cells = [column.values() if isinstance(column, dict) else column for column in value.values()]
        nested = any(isinstance(cell, dict) for column in cells for cell in column)
        if all(column == keys[0] for column in keys) and not nested:
            return [dict(zip(value, row, strict=True)) for row in zip(*cells, strict=True)]
    kind = f"an object with {', '.join(map(repr, list(value)[:6]))}" if isinstance(value, dict) else "a list of values"
    raise SourceError(
        f'{where} is {kind}; expected a list of objects, such as [{{"path": ...}}], as pandas writes it with '
        "orient='records', or an object with a list of equal length for each column"
    )


def states_classes(table: TextTable) -> bool:
    """Return whether a table has the name of Roboflow's, whose columns of 0 and 1 are classes."""
    return table.path.name == ONE_HOT_NAME


def _columns_of_parquet(data: bytes) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the columns of a Parquet file, and the class names of columns that have them."""
    with _as_value_error():
        schema = pq.read_schema(io.BytesIO(data))
    return schema.names, class_lists_of(features_of(schema))


def _rows_of_parquet(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file, without values that are or contain bytes, which may be large."""
    with _as_value_error():
        file = pq.ParquetFile(io.BytesIO(data))
        binary = [field.name for field in file.schema_arrow if has_binary(field.type)]
        names = [name for name in file.schema_arrow.names if name not in binary]
        empty = dict.fromkeys(binary, _NO_BYTES)
        rows = file.read(names).to_pylist() if names else [{}] * file.metadata.num_rows
        return [{**cell(row), **empty} for row in rows]


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise ValueError(f"it is not valid Parquet: {error}") from error
