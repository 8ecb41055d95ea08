"""Files of Arrow batches with a column of images: Parquet and Arrow.

Sizes of images in Parquet files are estimates: the mean of the row group. The metadata does not contain the lengths of
images, and reading them would mean to read all data. So shards may be somewhat longer than ``shard_bytes``.

Arrow files are those in the stream format, which ``datasets.save_to_disk`` writes, and in the file format. They are
memory-mapped: a record is read without its neighbours, and lengths are exact.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import NONE, quoted
from wds_tools.sources.arrow_columns import Columns, file_names, lengths, renumbered
from wds_tools.sources.base import Collector, SourceOptions, as_read_error, as_source_error
from wds_tools.sources.columns import LABEL, not_finite
from wds_tools.sources.files import find_files
from wds_tools.sources.inputs import Input
from wds_tools.sources.label_choice import Flags
from wds_tools.sources.layouts import first_folders
from wds_tools.sources.record_roles import Names, Roles
from wds_tools.sources.records import RecordSource
from wds_tools.sources.values import Excluded, Kind, cell, is_text

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_MAX_GROUP_BYTES = 16 << 30
_FIELD_BYTES = 1024  # upper bound of header and padding of a field of unknown length
_HEAD_ROWS = 8
_READ_ERRORS = (pa.ArrowException, ValueError, IndexError, KeyError, TypeError)
_LOAD_IT = "load it with datasets, and pass the object to wds_tools.pack, which reads the files"
_OF_SAVED = ("state.json", "dataset_info.json")  # files of ``save_to_disk``


class ArrowSource(RecordSource):
    """Arrow files with images in a column: a file, a pattern, or a folder, such as one that ``save_to_disk`` wrote.

    The files are those of one split. A folder ``label=cat`` of a path is a column ``label``.

    Attributes:
        grouped: Whether the rows of a group can only be read together.
    """

    kind = "arrow"
    unit = "row"
    part = "column"
    grouped: ClassVar[bool] = False
    found_roles: Roles
    packed: frozenset[str] = frozenset()
    image_columns: frozenset[str] = frozenset()
    changes: Mapping[int, Mapping[str, Mapping[int, int]]] = MappingProxyType({})  # of files, see `Columns.changes`

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.paths = self.find()
        self.partitions = _partitions(self.path, self.paths)

    def find(self) -> tuple[Path, ...]:
        """Return the files: those that the state of a saved dataset names, or those of the folder."""
        state = self.path / "state.json"
        if state.is_file():
            with as_source_error(f"{state} cannot be read", ValueError, KeyError, TypeError):
                names = [Path(entry["filename"]).name for entry in json.loads(state.read_bytes())["_data_files"]]
            return tuple(self.path / name for name in names)
        return find_files(self.path, lambda name: name.lower().endswith((".arrow", ".feather", ".ipc")), "Arrow")

    def schema(self, file: int) -> pa.Schema:
        """Return the schema of a file."""
        return self._open(file)[0]

    def rows(self, file: int) -> int:
        """Return the number of rows that a file states."""
        return sum(batch.num_rows for batch in self._open(file)[1])

    def column(self, file: int, column: str) -> list[Any]:
        """Return all values of a column."""
        return [value for batch in self._open(file)[1] for value in batch.column(column).to_pylist()]

    def head(self, file: int, column: str) -> list[Any]:
        """Return the first values of a column."""
        heads = (batch.column(column).drop_null()[:_HEAD_ROWS].to_pylist() for batch in self._open(file)[1])
        return next(filter(None, heads), [])

    def groups(self, file: int) -> Iterator[tuple[Sequence[int | None], Sequence[int]]]:
        """Yield the groups of a file: bytes of the image of each row, and of its other fields in a shard."""
        for batch in self._open(file)[1]:
            image = self.found_roles.image
            rest = [name for name in self.packed_columns(file) if name != image]
            rows = batch.select(rest).to_pylist() if rest else [{}] * batch.num_rows
            paths = file_names(batch.column(image))
            cells = (row | {image: {"bytes": b"", "path": path}} for row, path in zip(rows, paths, strict=True))
            extras = [self.extra_bytes(self.row_values(file, row), self.found_roles) for row in cells]
            yield lengths(batch.column(image)), extras

    def load(self, file: int, group: int) -> Any:
        """Return a table or batch with the columns of a group that are packed."""
        return self._open(file)[1][group].select(self.packed_columns(file))

    def collect(self, found: Collector) -> None:
        found.take_files(self.paths)
        with as_source_error(f"{self.path} cannot be read as {self.kind.title()}", pa.ArrowException, ValueError):
            self._add_rows(found)

    def why_left_out(self, path: str) -> str | None:
        return None if path in _OF_SAVED else super().why_left_out(path)

    def image_names(self, found: Collector) -> Iterator[str]:  # noqa: ARG002 - the paths of rows are numbers
        files = range(len(self.paths))
        yield from (str(value) for name in self._ids for file in files for value in self._column(file, name))

    def values(self, entry: Input) -> Mapping[str, Any]:
        file, number, row = entry.location
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            table = self.load(file, number)
            return self.row_values(file, {name: table.column(name)[row].as_py() for name in table.schema.names})

    def row_values(self, file: int, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a row of a file, by column."""
        values = self.partitions[file] | {
            name: bytes(value) if name in self.image_columns and isinstance(value, list) else cell(value)
            for name, value in renumbered(cells, self.changes[file]).items()
        }
        for name in self.image_columns & values.keys():
            data = values[name]
            if isinstance(data, dict):
                path = data["path"]
                values[name] = Excluded(f"a file name, {path!r}, without its bytes: {_LOAD_IT}") if path else None
            elif isinstance(data, bytes) and data and not sniff(data) and name != self.found_roles.image:
                raise SourceError(f"column {name!r} has {len(data)} bytes, not an image")
        image = cells.get(self.found_roles.image)
        path = image.get("path") if isinstance(image, dict) else None
        return {"file_name": path} | values if path else values

    def packed_columns(self, file: int) -> list[str]:
        """Return the columns of a file that records are made of."""
        return [name for name in self.schema(file).names if name in self.packed]

    def _add_rows(self, found: Collector) -> None:
        files = [file for file in range(len(self.paths)) if self.rows(file)] or [0]
        names = _names(self.path, self.paths)
        columns = Columns.of([self._schema(file) for file in files], [names[file] for file in files], self.name)
        self.class_lists = columns.classes
        self.changes = {file: columns.changes(position) for position, file in enumerate(files)}
        seen = Names(self)
        for name in columns.types:
            kind = columns.kind(name, partial(self._head, files, name))
            if (
                kind == Kind.BINARY
                and seen.may_be_label(name)
                and all(map(is_text, filter(None, self._head(files, name))))
            ):
                kind = Kind.TEXT
            seen.declare(name, kind)
        self.image_columns = frozenset(name for name, kinds in seen.kinds.items() if Kind.ENCODED in kinds)
        for name in seen.labels:
            for file in files:
                rows = ({name: value} for value in self._column(file, name))
                seen.extend(name, (renumbered(row, self.changes[file])[name] for row in rows))
        for name in seen.may_be_class_names():
            seen.extend_texts(name, self._values(files, name))
        roles = self.found_roles = self._with_flags(files, seen, seen.roles())
        columns.check_complete([roles.image, roles.label, roles.names, *roles.hot])
        found.account.notes += seen.hints(
            roles,
            lambda name: self._column(files[0], name) if Kind.TEXT in seen.kinds[name] else self._head(files[:1], name),
        )
        found.account.notes += self._notes_on_folders(roles)
        label = columns.types.get(roles.label or "")
        if isinstance(label, pa.DictionaryType) and label.ordered and not self.options.classes:
            found.account.notes.append(
                f"the categories of column {roles.label!r} have an order, and class numbers are those of the sorted "
                "names: pass --classes (classes=) with the names in their order to keep it"
            )
        for name in seen.facts(roles):
            if seen.may_be_splits(name):
                seen.add_texts(name, chain(self._head(files, name), self._values(files, name)))
            if columns.has_fractions(name):
                seen.lost[name] = sum(not_finite(value) for file in files for value in self._column(file, name))
        self._ids = [name for name in seen.facts(roles) if seen.kinds[name].keys() <= {Kind.TEXT, Kind.WHOLE}]
        self.packed = frozenset([roles.image, *roles.shape, *roles.fields, *seen.facts(roles)])
        self._add_entries(found, files, names, seen.values_of(roles))
        found.account.given = sum(map(self.rows, files))
        found.account.notes += columns.notes()
        seen.account(found, roles)

    def _with_flags(self, files: Sequence[int], seen: Names, roles: Roles) -> Roles:
        """Return the roles if columns with 0 or 1 for each class are the label where no other column is."""
        for name in seen.facts(roles) if roles.label is None and LABEL not in self.columns else ():
            head = Flags()
            head.extend(name, self._head(files, name))
            if head.of(name):
                seen.flags.extend(name, self._values(files, name))
            elif seen.kinds[name].keys() <= {Kind.TEXT} and name not in seen.texts:
                seen.extend_texts(name, self._values(files, name))
        return seen.roles() if seen.flags else roles

    def _notes_on_folders(self, roles: Roles) -> list[str]:
        """Return a note that names the folders of the files if they could be classes."""
        folders = first_folders(os.path.relpath(path, self.path) for path in self.paths) if self.path.is_dir() else []
        if roles.label is not None or LABEL in self.columns or not folders or any("=" in name for name in folders):
            return []
        remedy = f"rename them to label={folders[0]} and so on, which are read as a column"
        return [f"no label: the files are in the folders {quoted(folders)}; if these are the classes, {remedy}"]

    def _add_entries(self, found: Collector, files: Sequence[int], names: Sequence[str], labels: Sequence[Any]) -> None:
        total = group = 0
        for file in files:
            first = total
            for number, (sizes, extras) in enumerate(self.groups(file)):
                for row, (size, extra) in enumerate(zip(sizes, extras, strict=True)):
                    path = f"{names[file]}#{total - first}"
                    entry = Input(path, size or 0, None, (file, number, row), group if self.grouped else -1, extra)
                    if size:
                        found.add(entry, labels[total] if labels else NONE)
                    else:
                        found.skip(path, "is empty")
                    total += 1
                group += len(sizes) > 0

    def _column(self, file: int, name: str) -> list[Any]:
        """Return the values of a column in all rows of a file."""
        if name in self.schema(file).names:
            return self.column(file, name)
        return [self.partitions[file].get(name)] * self.rows(file)

    def _values(self, files: Sequence[int], name: str) -> Iterator[Any]:
        """Yield the values of a column in all files."""
        for file in files:
            yield from self._column(file, name)

    def _head(self, files: Sequence[int], name: str) -> list[Any]:
        heads = (self.head(file, name) for file in files if name in self.schema(file).names)
        return next((values for values in heads if any(value is not None for value in values)), [])

    def _schema(self, file: int) -> pa.Schema:
        """Return the schema of a file with the columns of its path."""
        schema = self.schema(file)
        for name, value in self.partitions[file].items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.int64() if isinstance(value, int) else pa.string()))
        return schema

    @cached_property
    def _opened(self) -> dict[int, Any]:
        return {}

    def _open(self, file: int) -> Any:
        """Return the schema and the mapped batches of a file, validated: wrong offsets would read outside the file."""
        if file not in self._opened:
            source = pa.memory_map(str(self.paths[file]))
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:
                source.seek(0)
                table = pa.ipc.open_stream(source).read_all()
            batches = table.to_batches()
            for batch in batches:
                batch.validate(full=True)
            self._opened[file] = table.schema, batches
        return self._opened[file]


def is_parquet(name: str) -> bool:
    """Return whether a file name is that of a Parquet file."""
    return name.lower().endswith((".parquet", ".pq"))


class ParquetSource(ArrowSource):
    """Parquet files, read as Arrow tables: a file, a pattern, or a folder with the files of one split.

    A row group is read at once, and once per worker and window.
    """

    kind = "parquet"
    grouped = True

    def find(self) -> tuple[Path, ...]:
        return find_files(self.path, is_parquet, "Parquet")

    def schema(self, file: int) -> pa.Schema:
        return self._open(file).schema_arrow

    def rows(self, file: int) -> int:
        return int(self._open(file).metadata.num_rows)

    def column(self, file: int, column: str) -> list[Any]:
        values: list[Any] = self._open(file).read(columns=[column], use_threads=False).column(column).to_pylist()
        return values

    def head(self, file: int, column: str) -> list[Any]:
        batches = self._open(file).iter_batches(_HEAD_ROWS, columns=[column], use_threads=False)
        heads = (batch.column(column).to_pylist() for batch in batches)
        return next((values for values in heads if any(value is not None for value in values)), [])

    def groups(self, file: int) -> Iterator[tuple[Sequence[int | None], Sequence[int]]]:
        metadata = self._open(file).metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if group.total_byte_size > _MAX_GROUP_BYTES:
                raise SourceError(
                    f"{self.paths[file]}: row group {number} has {group.total_byte_size:,} bytes; allowed are "
                    f"{_MAX_GROUP_BYTES:,}, because it is read at once: write the file with smaller row groups"
                )
            size, extra = self._mean_bytes(group) if group.num_rows else (0, 0)
            yield [size] * group.num_rows, [extra] * group.num_rows

    def load(self, file: int, group: int) -> Any:
        def read() -> Any:
            return self._open(file).read_row_group(group, columns=self.packed_columns(file), use_threads=False)

        return self._cache.load((file, group), read, lambda table: int(table.nbytes))

    def _open(self, file: int) -> Any:
        if file not in self._opened:
            self._opened[file] = pq.ParquetFile(self.paths[file], memory_map=True)
        return self._opened[file]

    def _mean_bytes(self, group: Any) -> tuple[int, int]:
        """Return the mean bytes of an image, and of the fields that the other columns become."""
        roles = self.found_roles
        image = rest = 0
        others = self.packed - {roles.image}
        for index in range(group.num_columns):
            column = group.column(index)
            path = column.path_in_schema  # such as mask.png.bytes, for the column mask.png
            name = max((name for name in self.packed if f"{path}.".startswith(f"{name}.")), key=len, default=None)
            image += column.total_uncompressed_size if name == roles.image else 0
            rest += column.total_uncompressed_size if name in others else 0
        json_keys = sum(len(name) + 8 for name in others - roles.fields.keys())
        extra = rest // group.num_rows + json_keys + _FIELD_BYTES * len(roles.fields) if others else 0
        return max(1, image // group.num_rows), extra


def _names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Return a different name for each file: its own, or its path in the folder."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        base = root if root.is_dir() else Path(os.path.commonpath(paths))
        names = [path.relative_to(base).as_posix() for path in paths]
    return names


def _partitions(root: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the columns that are folders ``name=value`` in the path of each file."""
    folders = [(path.relative_to(root) if root.is_dir() else path).parts[:-1] for path in paths]
    pairs = [[folder.split("=", 1) for folder in parts if "=" in folder] for parts in folders]
    found = [{name: None if value == _NO_PARTITION else unquote(value) for name, value in one} for one in pairs]
    values = {pair for columns in found for pair in columns.items()}
    texts = {name for name, value in values if value is not None and not _NUMBER.fullmatch(value)}
    return [
        {name: value if value is None or name in texts else int(value) for name, value in columns.items()}
        for columns in found
    ]
