"""Files of Arrow batches with a column of images: Parquet and Arrow.

Columns have roles by their types and values, in one or several files. Of Hugging Face's ``datasets``, images are
structs ``{bytes, path}``, and class names are in the metadata. Tables of other tools, with a binary column of images
and without that metadata, are read too.

Sizes of images in Parquet files are estimates: the mean of the row group. The metadata does not contain the lengths of
images, and reading them would mean to read all data. So shards may be somewhat longer than ``shard_bytes``.

Arrow files are those in the stream format, which ``datasets.save_to_disk`` writes, and in the file format. They are
memory-mapped: a record is read without its neighbours, and lengths are exact.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import NONE, Classes, quoted
from wds_tools.sources.base import Collector, SourceOptions, as_read_error, as_source_error
from wds_tools.sources.columns import LABEL, check_unique, not_finite
from wds_tools.sources.files import find_files
from wds_tools.sources.inputs import Input
from wds_tools.sources.label_choice import Flags, class_lists_of, column_of, renumbered
from wds_tools.sources.layouts import first_folders
from wds_tools.sources.record_roles import Names, Roles
from wds_tools.sources.records import RecordSource
from wds_tools.sources.values import Excluded, Kind, begins_like_an_image, cell, is_text

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_MAX_GROUP_BYTES = 16 << 30
_FIELD_BYTES = 1024  # upper bound of header and padding of a field of unknown length
_HEAD_ROWS, _BATCH_ROWS = 8, 1 << 16
_READ_ERRORS = (pa.ArrowException, ValueError, IndexError, KeyError, TypeError)
_LOAD_IT = "load it with datasets, and pass the object to wds_tools.pack, which reads the files"
_OF_SAVED = ("state.json", "dataset_info.json")  # files of ``save_to_disk``
_VIEWS = ((pa.string_view(), pa.large_string()), (pa.binary_view(), pa.large_binary()))


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

    def batches(self, file: int, column: str, rows: int) -> Iterator[pa.Array]:  # noqa: ARG002 - for other formats
        """Yield the values of a column, in batches of at most some rows if they are not in memory."""
        return (batch.column(column) for batch in self._open(file)[1])

    def groups(self, file: int) -> Iterator[tuple[Sequence[int | None], Sequence[int]]]:
        """Yield the groups of a file: bytes of the image of each row, and of its other fields in a shard."""
        for batch in self._open(file)[1]:
            image = self.found_roles.image
            rest = [name for name in self.packed_columns(file) if name != image]
            rows = batch.select(rest).to_pylist() if rest else [{}] * batch.num_rows
            images = batch.column(image)
            named = pa.types.is_struct(images.type)
            paths = pc.struct_field(images, "path").to_pylist() if named else [None] * batch.num_rows
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
        yield from (str(value) for name in self._ids for value in self._values(range(len(self.paths)), name))

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
        columns = Columns.of([self._schema(file) for file in files], [names[file] for file in files])
        self.class_lists = columns.classes
        self.changes = {file: columns.changes(position) for position, file in enumerate(files)}
        seen = Names(self)
        for name in columns.types:
            head = partial(self._head, files, name)
            kind = columns.kind(name, head)
            is_text_label = kind == Kind.BINARY and seen.may_be_label(name) and all(map(is_text, filter(None, head())))
            seen.declare(name, Kind.TEXT if is_text_label else kind)
        self.image_columns = frozenset(name for name, kinds in seen.kinds.items() if Kind.ENCODED in kinds)
        for name in seen.labels:
            for file in files:
                rows = ({name: value} for value in self._values([file], name))
                seen.extend(name, (renumbered(row, self.changes[file])[name] for row in rows))
        for name in seen.may_be_class_names():
            seen.extend_texts(name, self._values(files, name))
        roles = self.found_roles = self._with_flags(files, seen, seen.roles())
        columns.check_complete([roles.image, roles.label, roles.names, *roles.hot])
        found.account.notes += seen.hints(
            roles,
            lambda name: [*(self._values if Kind.TEXT in seen.kinds[name] else self._head)(files[:1], name)],
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
            if _has(columns.types[name], pa.types.is_floating):
                seen.lost[name] = sum(map(not_finite, self._values(files, name)))
        self._ids = [name for name in seen.facts(roles) if seen.kinds[name].keys() <= {Kind.TEXT, Kind.WHOLE}]
        self.packed = frozenset([roles.image, *roles.shape, *roles.fields, *seen.facts(roles)])
        self._add_entries(found, files, names, seen.values_of(roles))
        found.account.given = sum(map(self.rows, files))
        found.account.notes += columns.notes()
        seen.account(found, roles)

    def _with_flags(self, files: Sequence[int], seen: Names, roles: Roles) -> Roles:
        """Return the roles if columns with 0 or 1 for each class are the label where no other column is."""
        facts = seen.facts(roles) if roles.label is None and LABEL not in self.columns else []
        for name in facts:
            head = Flags()
            head.extend(name, self._head(files, name))
            if head.of(name):
                seen.flags.extend(name, self._values(files, name))
        if not seen.flags:
            return roles
        for name in facts:  # one of them may be the label instead
            if seen.kinds[name].keys() <= {Kind.TEXT} and name not in seen.texts:
                seen.extend_texts(name, self._values(files, name))
        return seen.roles()

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

    def _values(self, files: Iterable[int], name: str) -> Iterator[Any]:
        """Yield the values of a column in all rows of files."""
        for file in files:
            if name in self.schema(file).names:
                yield from (value for batch in self.batches(file, name, _BATCH_ROWS) for value in batch.to_pylist())
            else:
                yield from repeat(self.partitions[file].get(name), self.rows(file))

    def _head(self, files: Iterable[int], name: str) -> list[Any]:
        """Return the first values of a column, without missing ones."""
        own = (file for file in files if name in self.schema(file).names)
        batches = chain.from_iterable(self.batches(file, name, _HEAD_ROWS) for file in own)
        return next(filter(None, (batch.drop_null()[:_HEAD_ROWS].to_pylist() for batch in batches)), [])

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

    def batches(self, file: int, column: str, rows: int) -> Iterator[pa.Array]:
        batches = self._open(file).iter_batches(rows, columns=[column], use_threads=False)
        return (batch.column(column) for batch in batches)

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
        others = self.packed - {roles.image}
        sizes: Counter[str | None] = Counter()
        for column in map(group.column, range(group.num_columns)):
            path = column.path_in_schema  # such as mask.png.bytes, for the column mask.png
            name = max((name for name in self.packed if f"{path}.".startswith(f"{name}.")), key=len, default=None)
            sizes[name] += column.total_uncompressed_size
        rest = sum(sizes[name] for name in others)
        json_keys = sum(len(name) + 8 for name in others - roles.fields.keys())
        extra = rest // group.num_rows + json_keys + _FIELD_BYTES * len(roles.fields) if others else 0
        return max(1, sizes[roles.image] // group.num_rows), extra


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


@dataclass(slots=True)
class Columns:
    """The columns of all files of a source.

    Attributes:
        types: Column -> type, of the first file where the type is not null.
        images: Columns that are images by their metadata, or may hold them by their type.
        classes: Column -> class names of all files, by number.
        own_classes: Of each file: column -> its class names, by number.
        first: Column -> name of the first file that has it.
        missing: Column -> names of the files that lack it.
    """

    types: dict[str, pa.DataType] = field(default_factory=dict)
    images: dict[str, bool] = field(default_factory=dict)
    classes: dict[str, Classes] = field(default_factory=dict)
    own_classes: list[dict[str, Classes]] = field(default_factory=list)
    first: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, schemas: Sequence[pa.Schema], names: Sequence[str]) -> Columns:
        """Return the columns of several files."""
        columns = cls()
        for schema, file in zip(schemas, names, strict=True):
            check_unique(schema.names, where=file)
            features = features_of(schema)
            for one in schema:
                known, first = columns.types.get(one.name), columns.first.setdefault(one.name, file)
                if known is None or _what(known).endswith(_NOTHING):
                    columns.types[one.name] = one.type
                    known = one.type
                if not _fit(_what(one.type), _what(known)):
                    raise SourceError(
                        f"column {one.name!r} has {_what(known)} ({known}) in {first}, and {_what(one.type)} "
                        f"({one.type}) in {file}: write both with one type, or pack them one at a time"
                    )
                columns._add_image(one.name, one.type, features.get(one.name))
            columns._add_classes(schema, features, file)
        pairs = [*zip(schemas, names, strict=True)]
        without = {name: [file for schema, file in pairs if name not in schema.names] for name in columns.types}
        columns.missing = {name: files for name, files in without.items() if files}
        return columns

    def changes(self, file: int) -> dict[str, dict[int, int]]:
        """Return place of class numbers -> number in a file -> number of that class in all files, if they differ."""
        return {
            place: {number: self.classes[place].index(name) for number, name in enumerate(own)}
            for place, own in self.own_classes[file].items()
            if own != self.classes[place][: len(own)]
        }

    def kind(self, name: str, head: Callable[[], Sequence[Any]]) -> str:
        """Return what the values of a column are; ``head`` returns its first values."""
        kind = self.types[name]
        what = _what(kind)
        if name in self.images and (self.images[name] or _holds_images(head())):
            return Kind.ENCODED
        if what == _BINARY:
            return Kind.BINARY
        if has_binary(kind):
            are_images = what == f"{_LISTS}structs" and _is_image(_inner(kind))
            are_images |= what == f"{_LISTS}{_BINARY}" and any(map(_holds_images, filter(None, head())))
            return Kind.SEVERAL_IMAGES if are_images else Kind.LOSSY
        known = Kind.LIST if what.startswith(_LISTS) else Kind.DECIMAL
        return next((found for one, found, _ in _KINDS if one == what), known)

    def check_complete(self, names: Sequence[str | None]) -> None:
        """Raise an error if a file lacks one of these columns."""
        if name := next((name for name in names if name in self.missing), None):
            raise SourceError(
                f"{self.missing[name][0]} has no column {name!r}, which {self.first[name]} has: add it, or pack the "
                "files one at a time"
            )

    def notes(self) -> list[str]:
        """Return what a user should know about columns that differ between files."""
        return [
            f"column {name!r} is missing in {quoted(files)}: their samples are packed without it"
            for name, files in self.missing.items()
        ] + [
            f"the files have the classes of column {name!r} in different orders: they are matched by name"
            for name in dict.fromkeys(name for file in range(len(self.own_classes)) for name in self.changes(file))
        ]

    def _add_image(self, name: str, kind: pa.DataType, feature: Mapping[str, Any] | None) -> None:
        stated = feature.get("_type") if isinstance(feature, Mapping) else None
        if stated == "Image" or (_is_image(kind) and stated is None):
            self.images[name] = True
        elif _what(kind) == _BINARY or _is_list_of_integers(kind):
            self.images.setdefault(name, False)

    def _add_classes(self, schema: pa.Schema, features: Mapping[str, Any], file: str) -> None:
        own = {
            name: Classes(found)
            for name, found in class_lists_of({name: features.get(name) for name in schema.names}).items()
            if found
        }
        for place in sorted(own.keys() ^ self.classes.keys()):
            name = column_of(place, schema.names)
            if name is not None and self.first[name] != file:
                one, other = (file, self.first[name]) if place in own else (self.first[name], file)
                raise SourceError(
                    f"column {place!r} has class names in {one}, and none in {other}, so its numbers may mean other "
                    "classes: pack them one at a time, or write them with one list of class names"
                )
        for name, classes in own.items():
            self.classes[name], _ = self.classes.get(name, Classes()).united(classes)
        self.own_classes.append(own)


def lengths(column: pa.Array) -> list[int | None]:
    """Return the number of bytes of each image, or of all images of a row; None for a row without one."""
    column = _plain(column)
    if pa.types.is_struct(column.type):
        column = _plain(pc.struct_field(column, "bytes"))
    if pa.types.is_null(column.type):
        return [None] * len(column)
    is_list = _inner(column.type) is not None
    found: list[int | None] = (pc.list_value_length if is_list else pc.binary_length)(column).to_pylist()
    if not is_list or _is_list_of_integers(column.type):
        return found
    parts = iter(lengths(column.flatten()))
    return [sum(next(parts) or 0 for _ in range(count)) if count else None for count in found]


def _plain(column: pa.Array) -> pa.Array:
    """Return values without the encodings that some functions of Arrow do not take."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    for view, other in _VIEWS:
        if column.type == view:
            return column.cast(other)
    return column


_NOTHING, _BINARY, _TEXT, _LISTS = "no values", "binary values", "text", "lists of "
_KINDS: tuple[tuple[str, str, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    (_NOTHING, Kind.MISSING, (pa.types.is_null,)),
    ("booleans", Kind.WHOLE, (pa.types.is_boolean,)),
    ("numbers", Kind.WHOLE, (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
    (_TEXT, Kind.TEXT, (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (
        _BINARY,
        Kind.BINARY,
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    ),
    ("times", Kind.DECIMAL, (pa.types.is_temporal,)),
    ("structs", Kind.MAPPING, (pa.types.is_struct,)),
    ("maps", Kind.LIST, (pa.types.is_map,)),
)


def _what(kind: pa.DataType) -> str:
    """Return what values of a type are; values of types with the same answer may be in one column."""
    kind = _without_encoding(kind)
    inner = _inner(kind)
    if inner is not None:
        return _LISTS + _what(inner)
    return next((what for what, _, tests in _KINDS if any(test(kind) for test in tests)), str(kind))


def _fit(one: str, other: str) -> bool:
    """Return whether values of two kinds may be in one column."""
    while one.startswith(_LISTS) and other.startswith(_LISTS):
        one, other = one.removeprefix(_LISTS), other.removeprefix(_LISTS)
    return one == other or _NOTHING in (one, other)


def _without_encoding(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):  # which becomes text
        return _without_encoding(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _without_encoding(kind.value_type)
    return kind


def _inner(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of a list; None for other types."""
    tests = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return kind.value_type if any(getattr(pa.types, test)(kind) for test in tests) else None


def _is_list_of_integers(kind: pa.DataType) -> bool:
    inner = _inner(kind)
    return inner is not None and bool(pa.types.is_integer(inner))


def _is_image(kind: pa.DataType) -> bool:
    """Return whether a type is that of images of ``datasets``."""
    return bool(pa.types.is_struct(kind)) and {"bytes", "path"} <= {one.name for one in kind}


def _has(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether values are of a wanted type, or have such values inside."""
    kind = _without_encoding(kind)
    if is_wanted(kind):
        return True
    inner = _inner(kind)
    if inner is not None:
        return _has(inner, is_wanted)
    if pa.types.is_map(kind):
        return _has(kind.key_type, is_wanted) or _has(kind.item_type, is_wanted)
    return bool(pa.types.is_struct(kind)) and any(_has(one.type, is_wanted) for one in kind)


def has_binary(kind: pa.DataType) -> bool:
    """Return whether values of a type are bytes, or contain bytes."""
    return _has(kind, lambda one: _what(one) == _BINARY)


def _holds_images(values: Sequence[Any]) -> bool:
    """Return whether some of the first values of a column are images."""
    cells = (value.get("bytes") if isinstance(value, dict) else value for value in values)
    return any(begins_like_an_image(data) for data in cells if isinstance(data, (bytes, list)))


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that ``datasets`` stored in the metadata; empty if missing or invalid."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}
