"""A table of paths or URLs of images: CSV, TSV, JSON Lines or JSON, with labels and other columns.

The user wrote the table, so it may name any file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.label import NONE
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
)
from wds_tools.sources.columns import (
    IMAGE,
    fact_name,
    facts_bytes,
    field_name,
    is_text_field,
    json_value,
    names_image,
    no_image_error,
    not_finite,
    null_note,
    usual_columns,
)
from wds_tools.sources.label_choice import LabelColumns, ambiguous, some_of
from wds_tools.sources.roles import Roles, notes_about_splits, state_roles
from wds_tools.sources.text_table import MORE, Row, TextTable
from wds_tools.sources.urls import URL_BYTES, fetch
from wds_tools.storage import is_url
from wds_tools.wording import counted

_NOT_A_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
_HINT_ROWS = 1000  # that are looked at for a label with an unusual name
_PROBED_ROWS = 20  # whose files are looked for if several columns could have the images


class TableSource(Source):
    """A table with a row for each image. The column of images has paths relative to the table, or URLs."""

    kind = "table"
    unit = "row"
    reads_text = True
    table: TextTable
    roles_of_columns: Roles

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.remote = self.options.remote

    def collect(self, found: Collector) -> None:
        """Add the rows, with the length of each file.

        Raises:
            SourceError: There is no such table, no row whose files exist, or not exactly one column of images and of
                labels.
            LabelError: A row has several labels.
        """
        found.take_files([self.path])
        self.table = TextTable(self.path, self.options.encoding)
        self.roles_of_columns = self._without_label()
        names = [name for name in self.table.columns if name != self.roles_of_columns.image]
        labels = LabelColumns(self.name, names, self.options)
        entries: list[Input | None] = []
        used: set[str] = set()
        short, lost = 0, Counter[str]()
        for location, row in self.table.rows():
            labels.add(row)
            used.update(row)
            lost.update({name: count for name, value in row.items() if (count := not_finite(value))})
            short += len(row) < len(self.table.columns) - len(self.table.unnamed)
            entries.append(self._entry(found, row, location))
        if short and not self.table.is_json:
            found.account.notes.append(f"{counted(short, 'row')} with fewer values than the header has columns")
        for name in set(self.table.unnamed) - used:
            self.roles_of_columns.leave_out(name, "has neither a name nor values")
        hint = [row for _, row in islice(self.table.rows(), _HINT_ROWS)] if not labels.values else []
        found.account.notes += labels.hint(
            {name: [row.get(name) for row in hint] for name in self.roles_of_columns.facts}
        )
        found.account.notes += notes_about_splits(
            self.roles_of_columns.facts, lambda name: (row.get(name) for _, row in self.table.rows())
        )
        choice = labels.choose()
        found.account.notes += [null_note(name, count) for name, count in lost.items() if name != choice.label]
        self._check_repeated(found, entries, choice.values)
        for entry, label in zip(entries, choice.values or [NONE] * len(entries), strict=True):
            if entry is not None:
                found.add(entry, label)
        state_roles(found, self.roles_of_columns, choice, declared=self.table.columns)

    def read(self, entry: Input) -> Record:
        """Read the image of a row, and its other columns.

        Raises:
            SourceError: There is nothing at a URL.
            SourceStoreError: A file is missing or cannot be read, or the storage of a URL fails.
            SourceChangedError: The image has changed its size since it was listed.
        """
        row = self.table.row(entry.location)
        name = str(row[self.roles_of_columns.image])
        image = self._bytes(name)
        if not is_url(name):
            check_size(f"file {name!r}", len(image), entry.size)
        fields = {field: self._field(field, row[name]) for name, field in self._fields(row).items()}
        return Record(image, fields, self._facts(row))

    def _check_repeated(self, found: Collector, entries: Sequence[Input | None], labels: Sequence[Any]) -> None:
        """Note how many images have several rows.

        Raises:
            SourceError: The labels of an image differ.
        """
        first: dict[str, Any] = {}
        repeated = set()
        for entry, label in zip(entries, labels or [None] * len(entries), strict=True):
            if entry is None:
                continue
            if entry.path in first:
                repeated.add(entry.path)
                known = first[entry.path]
                if label not in (None, "") and known not in (None, "") and str(label) != str(known):
                    raise SourceError(
                        f"{self.path} has several rows for {entry.path!r}, with the labels {known!r} and "
                        f"{label!r}: correct it, or write one row with a list if an image has several labels; or pass "
                        "--column label= to pack a sample for each row, without labels"
                    )
            if first.get(entry.path) in (None, ""):
                first[entry.path] = label
        if repeated:
            found.account.notes.append(
                f"{counted(len(repeated), 'image')} with several rows, such as {min(repeated)!r}: each row is a sample "
                "of its own, and --split can put samples of one image into different splits"
            )

    def _without_label(self) -> Roles:
        """Return the roles of all columns; that of the label is decided when all its values are known."""
        image = self._image_column()
        fields: dict[str, str] = {}
        for name in self.table.columns:
            field = field_name(name)
            if field and name != image and field not in fields.values():
                fields[name] = field
        facts = tuple(name for name in self.table.columns if name != image and name not in fields)
        return Roles(image, fields=fields, facts=facts)

    def _image_column(self) -> str:
        """Return the column of images: of several with usual names, the one whose files exist.

        Raises:
            SourceError: There is none, or there are several.
        """
        names, where = self.table.columns, str(self.path)
        found = usual_columns(IMAGE, names, self.columns, where=where)
        rows = [row for _, row in islice(self.table.rows(), _PROBED_ROWS)]
        values = {name: [row.get(name) for row in rows] for name in found}
        if IMAGE not in self.columns:  # objects and lists of JSON do not name files
            found = [name for name in found if not any(isinstance(value, (dict, list)) for value in values[name])]
        if not found:
            raise self._no_image()
        if len(found) == 1:
            return found[0]
        for fits in (self._exists, names_image):
            those = [name for name in found if any(isinstance(value, str) and fits(value) for value in values[name])]
            if those and all(values[name] == values[those[0]] for name in those):
                return those[0]
            if those:
                raise ambiguous(IMAGE, where, {name: some_of(values[name]) for name in those})
        return found[0]

    def _no_image(self) -> SourceError:
        names = self.table.columns
        hint = ""
        if any(names_image(name) for name in names) and not self.table.is_json:
            hint = "; its first line must have the names of the columns, such as path,label"
        elif len(names) == 1 and not self.table.is_json:
            hint = "; values must be separated by a comma, semicolon, tab or |"
        return no_image_error(str(self.path), names, hint=hint)

    def _exists(self, name: str) -> bool:
        try:
            return bool(name) and (is_url(name) or self._size(name) > 0)
        except SourceError:
            return False

    def _entry(self, found: Collector, row: Row, location: tuple[int, int]) -> Input | None:
        """Return the input of a row, or skip the row."""
        found.account.given += 1
        name = str(row.get(self.roles_of_columns.image) or "")
        self.table.check_encoding({**row, self.roles_of_columns.image: None}, location)
        try:
            size, extra = self._sizes(row)
        except SourceError as error:
            self.table.check_encoding(row, location)
            found.skip(name or self.table.position(location), str(error))
            return None
        return Input(name, size, None, location, -1, extra)

    def _fields(self, row: Row) -> dict[str, str]:
        """Return column -> field for the columns that become fields and have a value in this row."""
        return {name: field for name, field in self.roles_of_columns.fields.items() if row.get(name) not in (None, "")}

    def _facts(self, row: Row) -> Row:
        return {fact_name(name): json_value(row[name]) for name in self.roles_of_columns.facts if name in row}

    def _field(self, field: str, value: Any) -> bytes:
        """Return the content of a field: the value itself for text, otherwise the file that it names."""
        if is_text_field(field):
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            return text.encode("utf-8", "surrogateescape")
        return self._bytes(str(value))

    def _sizes(self, row: Row) -> tuple[int, int]:
        """Return the length of a row's image, and the bytes that the other fields take in a shard."""
        if MORE in row:
            count = len(self.table.columns) + len(row[MORE])
            raise SourceError(
                f"the row has {count} values for {len(self.table.columns)} columns: put values that contain the "
                "separator in quotes"
            )
        extra = facts_bytes(self._facts(row))
        for name, field in self._fields(row).items():
            value = row[name]
            extra += field_bytes(len(self._field(field, value)) if is_text_field(field) else self._size(str(value)))
        return self._size(str(row.get(self.roles_of_columns.image) or "")), extra

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
        """Return the path that a row names, relative to the table; the name may contain surrogate escapes.

        If there is no such file, spaces around the name are dropped, and backslashes separate folders, as on Windows.
        """
        path = self._joined(name)
        if not os.path.lexists(path):
            other = self._joined(name.strip().replace("\\", "/"))
            path = other if os.path.lexists(other) else path
        return path

    def _joined(self, name: str) -> Path:
        return Path(os.fsdecode(os.path.join(os.fsencode(self.path.parent), name.encode("utf-8", "surrogateescape"))))  # noqa: PTH118

    def _bytes(self, name: str) -> bytes:
        if is_url(name):
            return fetch(name, self.remote)
        with as_read_error(f"file {name!r} cannot be read", ValueError), self._path(name).open("rb") as file:
            return file.read(MAX_RECORD_BYTES)
