"""Files of Arrow batches with a column of images: what Parquet and Arrow files have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from wds_tools.sources.arrow_columns import Columns, to_record
from wds_tools.sources.base import (
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
)
from wds_tools.sources.label_choice import LabelColumns
from wds_tools.sources.roles import Roles, add_rows, notes_about_splits

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class Group(NamedTuple):
    """Rows that are read together.

    Attributes:
        sizes: Bytes of the image of each row; None or 0 for a row without one.
        extras: Bytes of the other fields of each row in a shard.
    """

    sizes: Sequence[int | None]
    extras: Sequence[int]


class BatchSource(Source):
    """Files of one split, with columns. A folder ``label=cat`` of a path is a column ``label``.

    Attributes:
        format: Name of the format, for messages.
        grouped: Whether the rows of a group can only be read together.
    """

    unit = "row"
    format: ClassVar[str]
    grouped: ClassVar[bool]
    roles_of_columns: Roles

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.paths = self.find()
        self.partitions = _partitions(self.path, self.paths)

    def find(self) -> tuple[Path, ...]:
        """Return the files."""
        raise NotImplementedError

    def schema(self, file: int) -> pa.Schema:
        """Return the schema of a file."""
        raise NotImplementedError

    def rows(self, file: int) -> int:
        """Return the number of rows that a file states."""
        raise NotImplementedError

    def values(self, file: int, column: str) -> list[Any]:
        """Return all values of a column."""
        raise NotImplementedError

    def head(self, file: int, column: str) -> list[Any]:
        """Return the first values of a column."""
        raise NotImplementedError

    def groups(self, file: int) -> Iterator[Group]:
        """Yield the groups of a file."""
        raise NotImplementedError

    def load(self, file: int, group: int) -> Any:
        """Return a table or batch with the columns of a group that are packed."""
        raise NotImplementedError

    def collect(self, found: Collector) -> None:
        """Add the rows of all files.

        Raises:
            SourceError: There is no such file, not exactly one column of images and of labels, or files have columns of
                other types.
        """
        found.take_files(self.paths)
        with as_source_error(f"{self.path} cannot be read as {self.format}", pa.ArrowException, ValueError):
            self._add_rows(found)

    def read(self, entry: Input) -> Record:
        """Read one row.

        Raises:
            SourceError: The row cannot be read, or contains no image.
        """
        file, number, row = entry.location
        with as_read_error(f"{self.path} cannot be read", pa.ArrowException, ValueError, IndexError, KeyError):
            table = self.load(file, number)
            values = {name: table.column(name)[row].as_py() for name in table.schema.names}
            return to_record(self.partition(file) | values, self.roles_of_columns)

    def packed_columns(self, file: int) -> list[str]:
        """Return the columns of a file that records are made of."""
        names = self.schema(file).names
        return [name for name in (self.roles_of_columns.image, *self.roles_of_columns.rest) if name in names]

    def _add_rows(self, found: Collector) -> None:
        files = [file for file in range(len(self.paths)) if self.rows(file)] or [0]
        names = _names(self.path, self.paths)
        schemas = [self._schema(file) for file in files]
        columns = Columns.of(schemas, [names[file] for file in files], self.name)
        roles = self.roles_of_columns = columns.roles(self.columns, lambda name: self._head(files, name))
        columns.check_complete([roles.image])
        labels = columns.labels(roles, self.options)
        for position, file in enumerate(files):
            self._add_values(labels, columns, position, file)
        texts = [name for name in roles.facts if columns.is_text(name)]
        found.account.notes += notes_about_splits(
            texts, lambda name: chain(self._head(files, name), self._all_values(files, name))
        )
        if not labels.values:
            facts = [name for name in roles.facts if name in self.schema(files[0]).names]
            known = {name: self.values if columns.is_text(name) else self.head for name in facts}
            found.account.notes += labels.hint({name: values(files[0], name) for name, values in known.items()})
        choice = labels.choose()
        columns.check_complete([choice.label, choice.names])
        roles.set_label(choice.label, choice.names)
        entries: list[Input | None] = []
        group = 0
        for file in files:
            first = len(entries)
            for number, (sizes, extras) in enumerate(self.groups(file)):
                for row, (size, extra) in enumerate(zip(sizes, extras, strict=True)):
                    path = f"{names[file]}#{len(entries) - first}"
                    entry = Input(path, size or 0, None, (file, number, row), group if self.grouped else -1, extra)
                    if not size:
                        found.skip(path, "is empty")
                    entries.append(entry if size else None)
                group += len(sizes) > 0
        found.account.given = sum(map(self.rows, files))
        found.account.notes += columns.notes()
        columns.collect_classes(found, roles)
        add_rows(found, roles, entries, choice, declared=columns.types)

    def _add_values(self, labels: LabelColumns, columns: Columns, position: int, file: int) -> None:
        for name in labels.values:
            if name in self.schema(file).names:
                values = columns.numbers(position, name, self.values(file, name))
            else:
                values = [self.partition(file).get(name)] * self.rows(file)
            labels.extend(name, values)

    def _head(self, files: Sequence[int], name: str) -> list[Any]:
        for file in files:
            values = self.head(file, name) if name in self.schema(file).names else []
            if any(value is not None for value in values):
                return values
        return []

    def _all_values(self, files: Sequence[int], name: str) -> Iterator[Any]:
        for file in files:
            yield from self.values(file, name) if name in self.schema(file).names else []

    def partition(self, file: int) -> dict[str, Any]:
        """Return the columns that the path of a file has."""
        return self.partitions[file] if self.partitions else {}

    def _schema(self, file: int) -> pa.Schema:
        """Return the schema of a file with the columns of its path."""
        schema = self.schema(file)
        for name, value in self.partition(file).items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.int64() if isinstance(value, int) else pa.string()))
        return schema


def _names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Return a different name for each file: its own, or its path in the folder."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        base = root if root.is_dir() else Path(*_common(paths))
        names = [path.relative_to(base).as_posix() for path in paths]
    return names


def _common(paths: Sequence[Path]) -> list[str]:
    """Return the first parts that all paths have."""
    common = []
    for parts in zip(*(path.parts for path in paths), strict=False):  # up to the end of the shortest
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return common


def _partitions(root: Path, paths: Sequence[Path]) -> tuple[dict[str, Any], ...]:
    """Return the columns that are folders ``name=value`` in the path of each file; empty without such folders."""
    folders = [(path.relative_to(root) if root.is_dir() else path).parts[:-1] for path in paths]
    pairs = [[folder.split("=", 1) for folder in parts if "=" in folder] for parts in folders]
    found = [{name: None if value == _NO_PARTITION else unquote(value) for name, value in one} for one in pairs]
    texts = {
        name
        for columns in found
        for name, value in columns.items()
        if value is not None and not _NUMBER.fullmatch(value)
    }
    if not any(found):
        return ()
    return tuple(
        {name: value if value is None or name in texts else int(value) for name, value in columns.items()}
        for columns in found
    )
