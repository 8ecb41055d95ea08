"""Tables with a row for each image: CSV, TSV, JSON Lines or JSON, with labels and other columns.

`TableSource` is a table that the user names, which may name any file or URL. `Named` and `Columns` are for tables in a
tree of images, see `wds_tools.sources.tabled`.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import compress, islice, product, repeat
from pathlib import Path
from shlex import quote
from typing import Any

from wds_tools.errors import SourceError, StoreError, WdsToolsError
from wds_tools.format.label import NONE
from wds_tools.options import RemoteOptions
from wds_tools.sources.about_images import ENOUGH, LOOKED_AT, share_of_names
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    Collector,
    FileTimes,
    Record,
    SourceOptions,
    SourceStoreError,
    as_read_error,
    check_size,
)
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    field_name,
    image_field,
    is_text_field,
    no_image_error,
    pixel_columns,
    pixels_error,
    usual_columns,
)
from wds_tools.sources.file_list import Files, RowNames
from wds_tools.sources.inputs import File, Input, field_bytes
from wds_tools.sources.label_choice import ambiguous, some_of
from wds_tools.sources.layouts import is_mask_field, names_a_file, stored_name
from wds_tools.sources.record_roles import Names, Roles
from wds_tools.sources.records import RecordSource
from wds_tools.sources.text_table import COUNT, Row, TextTable, states_classes
from wds_tools.sources.trees import client_of
from wds_tools.sources.values import Kind, as_png, begins_like_an_image, converted
from wds_tools.storage import is_url, split_folder
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.patterns import has_pattern
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.http_client import quote_again
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.wording import counted

_NOT_A_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
_PIXELS = re.compile(r"[\[\s]*\d{1,3}([\s,;\[\]]+(\d{1,3}|\.\.\.)){63,}[\]\s]*")  # as text, in one column
_CONTENT = re.compile(  # base64, and bytes or a list of them as Python shows them
    r"(data:image/[\w.+-]+;base64,)?(/9j/|iVBORw0KGgo|UklGR|R0lGOD)[A-Za-z0-9+/=\s]{50,}"
    r"|b['\"](\\x89PNG|\\xff\\xd8|RIFF)|\[(137, 80, 78, 71|255, 216, 255), "
)
_HINT_ROWS = 1000  # that are looked at for a label with an unusual name
_PROBED_ROWS = 20  # whose files are looked for if several columns could have the images
URL_BYTES = 150_000
"""Estimated length of an image at a URL. Requesting the real length would take as long as reading it."""


def _is_content(value: Any) -> bool:
    """Return whether a value is, or contains, the bytes of an image as text or numbers."""
    if isinstance(value, dict):
        return any(map(_is_content, value.values()))
    return begins_like_an_image(value) if isinstance(value, list) else _CONTENT.match(str(value)) is not None


def with_images(roles: Roles, more: Iterable[str]) -> Roles:
    """Return roles in which columns that name images are fields, called like the column, and later the image type."""
    return replace(roles, fields={**roles.fields, **{name: image_field(name) for name in more}})


class TableRows(RecordSource):
    """Rows of text or JSON: columns with the name of a field are its text, or name a file with its content."""

    kind = "table"
    unit = "row"
    part = "column"
    reads_text = True
    names_files = True

    def seen(self, table: TextTable) -> Names:
        """Return the names of the columns, before values of rows are added."""
        self.class_lists = table.class_lists
        self.states_classes = states_classes(table)
        names = Names(self)
        for column in table.columns:
            names.declare(column, Kind.MISSING)
        return names

    def divided(self, row: Row, roles: Roles, table: TextTable) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of a row that are texts or entries of ``json``, and the names of files that are fields."""
        table.check_count(row)
        values, files = {}, {}
        for name, value in row.items():
            field = roles.fields.get(name)
            if field is None:
                values[name] = value
            elif value not in (None, ""):
                if not is_text_field(field):
                    files[name] = value
                else:
                    values[name] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        return values, files


@dataclass(slots=True)
class Named:
    """A table that names images, or its rows of a split.

    Attributes:
        file: Its file.
        rows: Its rows.
        image: The column with the names.
        images: Image of each row; None for a row that names none.
        notes: What a user should know about its rows.
        is_member: Whether each row is in the split.
        no_splits: Why there is no other split, if the table is of a split.
    """

    file: File
    rows: TextTable
    image: str
    images: list[File | None]
    notes: tuple[str, ...] = ()
    is_member: Sequence[bool] = ()
    no_splits: str = ""

    def of_split(self) -> Iterator[tuple[tuple[int, int], Row, File | None]]:
        """Yield the location, the row and the image of each row of the split."""
        rows = zip(self.rows.rows(), self.images, strict=True)
        return ((*row, image) for row, image in compress(rows, self.is_member or repeat(True)))


class Columns:
    """The columns of a table.

    Args:
        files: All files, which the columns may name.
        table: The table.
        options: What the user states.
        label_columns: The columns with the label and its class names, if another table shows which these are.
        hot: The columns with 0 or 1 for each class, of the tables of all splits; None if they are not known yet.

    Attributes:
        names: What the columns have.
        choice: The column that is the label.
    """

    def __init__(
        self,
        files: Files,
        table: Named,
        options: SourceOptions,
        label_columns: tuple[str | None, str | None] | None = None,
        hot: tuple[str, ...] | None = None,
    ) -> None:
        self.table = table
        self._files = files
        self._source = TableRows(table.file.path, options)
        self.names = self._source.seen(table.rows)
        for _, row in table.rows.rows():
            if COUNT not in row:
                self.names.add(row)
        if label_columns is not None:
            self.names.labels = {name: values for name, values in self.names.labels.items() if name in label_columns}
            self.names.names_of_label = label_columns[1]
        self.names.hot = hot
        self._head = [row for _, row in islice(table.rows.rows(), LOOKED_AT)]
        self.choice = self.names.label(table.image)

    @cached_property
    def roles(self) -> Roles:
        """The roles of the columns. Columns of image names become fields, named after the column and the image type."""
        names = [name for name in self.names.kinds if name != self.table.image and not field_name(name)]
        paths = [name for name in names if any(names_a_file(row.get(name)) for row in self._head)]
        more = [name for name in paths if share_of_names(name, self._head, self._names) >= ENOUGH]
        for name in more:
            self.names.declare(name, Kind.ENCODED)
        return with_images(self.names.roles(self.table.image), more)

    def account(self, collector: Collector) -> None:
        """State what becomes of the columns."""
        collector.account.notes += self.names.hints(self.roles, lambda name: [row.get(name) for row in self._head])
        self._source.account_names(self.names, collector, self.roles)

    def content(self, row: Row) -> tuple[Record, dict[str, File]]:
        """Return the texts and entries of ``json`` of a row, and the files that are fields."""
        values, named = self._source.divided(row, self.roles, self.table.rows)
        values = {name: value for name, value in values.items() if name in self.names.kinds}
        files = {}
        for column, value in named.items():
            file = self._names.find(value, table=self.table.file.path)
            if file is None:
                raise SourceError(f"its row names {str(value)!r} in column {column!r}, and there is no such file")
            field = self.roles.fields[column]
            is_image = Kind.ENCODED in self.names.kinds[column]
            files[f"{field}{posixpath.splitext(file.path)[1].lower()}" if is_image else field] = file
        return self._source.to_record(values, self.roles, b""), files

    @cached_property
    def _names(self) -> RowNames:
        return RowNames(self._files.files)


class TableSource(TableRows):
    """A table with a row for each image. The column of images has paths relative to the table, or URLs."""

    table: TextTable

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.remote = self.options.remote
        self.times = FileTimes()
        if has_pattern(str(src)) and not self.path.exists():
            raise SourceError(
                f"{src} is a pattern, and a table is read from one file: name it; or pack {self.path.parent}, with "
                "--split folders if it has a table for each split"
            )

    @property
    def is_stated(self) -> bool:
        return True  # the rows of this table are meant, whatever is next to it

    def collect(self, collector: Collector) -> None:
        collector.take_files([self.path])
        self.times = FileTimes()
        self.table = TextTable(self.path, self.options.encoding)
        image, names = self._image_column(), self.seen(self.table)
        more = self._further_images(image)
        for name in more:
            names.declare(name, Kind.ENCODED)
        roles = with_images(names.record_roles(image), more)
        entries: list[Input | None] = []
        for location, row in self.table.rows():
            entry = self._entry(collector, row, location, roles)
            if COUNT not in row:
                names.add(row)
                entries.append(entry)
        for name in self.table.unnamed:
            if names.kinds[name].total() == 1:
                names.kinds[name] = Counter(["has neither a name nor values"])
        self.record_roles = roles = with_images(names.roles(image), more)
        head = [row for _, row in islice(self.table.rows(), _HINT_ROWS)]
        collector.account.notes += names.hints(roles, lambda name: [row.get(name) for row in head])
        if not any(entries):
            self._check_not_below([image])
        labels = names.values_of(roles) or [NONE] * len(entries)
        self._check_repeated(collector, entries)
        for entry, label in zip(entries, labels, strict=True):
            if entry is not None:
                collector.add(entry, label)
        self.account_names(names, collector, roles)

    def read(self, entry: Input) -> Record:
        assert self.record_roles is not None
        row = self.table.row(entry.location)
        name = str(row[self.record_roles.image])
        image = self._bytes(name)
        if not is_url(name):
            check_size(f"file {name!r}", len(image), entry.size)
        values, files = self.divided(row, self.record_roles, self.table)
        further = {}
        for column, file in files.items():
            field, data = self.record_roles.fields[column], self._bytes(str(file))
            if "." not in field:
                field = stored_name(f"{field}{os.path.splitext(str(file).strip())[1].lower()}")  # noqa: PTH122
            further[field] = as_png(data) if field.endswith(".png") else data
        record = self.to_record(values, self.record_roles, converted(image))
        return record._replace(fields={**record.fields, **further})

    def later_than(self, inputs: Iterable[Input], time_ns: int) -> list[str]:
        """Return the local files that rows name whose modification time is later."""
        names = dict.fromkeys(name for entry in inputs for name in self._files_of(entry) if not is_url(name))
        return self.times.later(((name, os.fsencode(self._path(name))) for name in names), time_ns)

    def _files_of(self, entry: Input) -> Iterator[str]:
        assert self.record_roles is not None
        yield entry.path
        if self.record_roles.fields:
            yield from map(str, self.divided(self.table.row(entry.location), self.record_roles, self.table)[1].values())

    def _check_repeated(self, collector: Collector, entries: Iterable[Input | None]) -> None:
        """Note how many images have several rows."""
        seen, repeated = set(), set()
        for path in (entry.path for entry in entries if entry is not None):
            name = path
            if not is_url(name):  # 1.jpg and ./1.jpg are one file
                name = os.path.normpath(self._joined(name.strip().replace("\\", "/")))
            repeated |= {path} if name in seen else set()
            seen.add(name)
        if repeated:
            several = f"{counted(len(repeated), 'image')} with several rows, such as {min(repeated)!r}"
            if self.options.kind is None:
                raise SourceError(
                    f"{self.path} has {several}: pack the folder of the images, in which captions of an image become a "
                    "list, or pass --from table (kind='table') for a sample for each row"
                )
            collector.account.notes.append(
                f"{several}: each row is a separate sample, and --split can put samples of one image into different "
                "splits"
            )

    def _image_column(self) -> str:
        """Return the column of images: of several with usual names, the one whose files exist."""
        names, where = self.table.columns, str(self.path)
        usual = usual_columns(IMAGE, names, self.columns, where=where)
        rows = [row for _, row in islice(self.table.rows(), _PROBED_ROWS)]
        values = {name: [row.get(name) for row in rows] for name in usual}
        nested = [name for name in usual if any(isinstance(value, (dict, list)) for value in values[name])]
        if IMAGE not in self.columns:  # objects and lists of JSON do not name files
            usual = [name for name in usual if name not in nested]
        if encoded := [name for name in usual or names if any(_is_content(row.get(name)) for row in rows)]:
            raise SourceError(
                f"{where} has the bytes of images as base64 text or numbers in column {encoded[0]!r}: decode them and "
                "write the table as Parquet: docs/sources.md shows the lines"
            )
        pixels = [name for name in names if any(_PIXELS.fullmatch(str(row.get(name))) for row in rows)]
        if pixels := pixels or pixel_columns(names):
            raise pixels_error(where, pixels[0])
        if not usual and nested:
            raise SourceError(
                f"{where} has objects or lists in column {nested[0]!r}, such as {str(values[nested[0]][0])[:60]}, and "
                "images are named by paths or URLs as text: write these in a column"
            )
        if not usual:
            raise self._no_image()
        if len(usual) == 1:
            return usual[0]
        for fits in (self._exists, names_a_file):
            fitting = [name for name in usual if any(isinstance(value, str) and fits(value) for value in values[name])]
            if fitting and all(values[name] == values[fitting[0]] for name in fitting):
                return fitting[0]
            if fitting:
                raise ambiguous(IMAGE, where, {name: some_of(values[name]) for name in fitting})
        return usual[0]

    def _further_images(self, image: str) -> list[str]:
        """Return the columns whose values name other images that exist on this machine."""
        rows = [row for _, row in islice(self.table.rows(), _PROBED_ROWS)]
        columns = []
        for name in self.table.columns:
            values = [row[name] for row in rows if row.get(name) not in (None, "")]
            is_free = name not in (image, *self.columns.values()) and not field_name(name)
            if is_free and values and all(names_a_file(value) and not is_url(value) for value in values):
                images = {self._path(str(row.get(image))).absolute() for row in rows}
                others = [value for value in values if self._path(value).absolute() not in images]
                columns += [name] if any(map(self._exists, others)) else []
        return columns

    def _no_image(self) -> SourceError:
        where, names = str(self.path), [name for name in self.table.columns if not is_mask_field(name)]
        if any(names_a_file(name) or name.strip().isdigit() for name in names) and not self.table.is_json:
            hint = (
                "; its first line must have the names of the columns, such as path,label: "
                f"`sed -i '1i path,label' {self.path.name}` adds them"
            )
            return no_image_error(where, self.table.columns, hint=hint)
        rows = [row for _, row in islice(self.table.rows(), _PROBED_ROWS)]
        of_files = [name for name in names if any(names_a_file(row.get(name)) for row in rows)]
        if not any(self._exists(str(row.get(name) or "")) for name in of_files for row in rows):
            self._check_not_below(names)
        is_one = len(self.table.columns) == 1 and not self.table.is_json
        hint = "; values must be separated by a comma, semicolon, tab or |" * is_one
        return no_image_error(where, self.table.columns, hint=hint, of_files=of_files)

    def _check_not_below(self, columns: Sequence[str]) -> None:
        """Check that no column has paths of images from a folder above, or other names of images below the folder."""
        head = [row for _, row in islice(self.table.rows(), LOOKED_AT)]
        above = islice(self.path.absolute().parents, 1, 3)
        paths = [row[column] for row in head[:1] for column in columns if names_a_file(row.get(column))]
        for root, name in product(above, paths):
            if "/" in name and os.path.isfile(root / name):  # noqa: PTH113 - a name may be too long
                raise SourceError(
                    f"{self.path} names images by paths from {root}, such as {name!r}: move the table there, or pack "
                    f"{root} if this is the only table of the images"
                )
        images = RowNames(import_module("wds_tools.sources.around").images_below(self.path.parent))
        others = {*usual_columns(LABEL, columns), *self.columns.values()} - {self.columns.get(IMAGE)}
        shares = {name: share_of_names(name, head, images) for name in columns if name not in others}
        column = max(shares, key=shares.__getitem__, default="")
        if shares.get(column):
            name = next(row[column] for row in head if images.has(row.get(column)))
            raise SourceError(
                f"{self.path} names images in column {column!r}, but not by paths from its folder ({name!r} for "
                f"{images.all_of([name])[0].path!r}): pack {self.path.parent} with --column {quote(f'image={column}')} "
                f"(columns={{'image': {column!r}}}), where rows can have names or ids"
            )

    def _exists(self, name: str) -> bool:
        try:
            return bool(name) and (is_url(name) or self._size(name) > 0)
        except SourceError:
            return False

    def _entry(self, collector: Collector, row: Row, location: tuple[int, int], roles: Roles) -> Input | None:
        """Return the input of a row, or skip the row."""
        collector.account.given += 1
        name = str(row.get(roles.image) or "")
        self.table.check_encoding({**row, roles.image: None}, location)
        try:
            values, files = self.divided(row, roles, self.table)
            extra = self.extra_bytes(values, roles)
            extra += sum(field_bytes(self._size(str(file))) for file in files.values())
            size = self._size(name)
        except SourceError as error:
            self.table.check_encoding(row, location)
            collector.skip(name or self.table.position(location), str(error))
            return None
        return Input(name, size, None, location, -1, extra)

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
        self.times.add([name], [status])
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
            cleaned = self._joined(name.strip().replace("\\", "/"))
            path = cleaned if os.path.lexists(cleaned) else path
        return path

    def _joined(self, name: str) -> Path:
        return Path(os.fsdecode(os.path.join(os.fsencode(self.path.parent), name.encode("utf-8", "surrogateescape"))))  # noqa: PTH118

    def _bytes(self, name: str) -> bytes:
        if is_url(name):
            return fetch(name, self.remote)
        with as_read_error(f"file {name!r} cannot be read", ValueError), self._path(name).open("rb") as file:
            data, status = file.read(MAX_RECORD_BYTES), os.fstat(file.fileno())
        self.times.check(name, status, shown=f"file {name!r}")
        return data


def fetch(url: str, remote: RemoteOptions) -> bytes:
    """Read the bytes at a URL; failed requests are repeated for `RemoteOptions.retry_seconds`."""
    if "::" in url:
        raise SourceError(f"URL {url!r} is a chain of file systems; allowed are plain URLs")
    shown = clean_url(url)
    try:
        folder, name = _split(url, remote)
        return client_of(folder).read(name, most_bytes=MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise SourceError(f"URL {shown!r} does not exist") from error
    except StoreError as error:
        raise SourceStoreError(f"URL {shown!r} cannot be read: {error}") from error
    except WdsToolsError as error:
        raise SourceError(f"URL {shown!r} cannot be read: {error}") from error


def _split(url: str, remote: RemoteOptions) -> tuple[RemoteFolder, str]:
    """Return folder and name of a URL. An HTTP URL is percent-encoded, and may have a query."""
    match = re.fullmatch(r"(?is)(https?://[^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", url)
    if not match:
        folder, name = split_folder(url)
        return RemoteFolder.of(folder, remote), name
    folder, name = split_folder(match[1] + quote_again(match[2]))
    encoded = RemoteFolder.of(folder, remote)
    return replace(encoded, options={**encoded.options, "encoded": True}), name + quote_again(match[3] or "")
