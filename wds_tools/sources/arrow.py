"""Files of Arrow batches with a column of images: Parquet and Arrow.

Columns have roles by their types and values, in one or several files. Of Hugging Face's ``datasets``, images are
structs ``{bytes, path}``, and class names are in the metadata. Tables of other tools, with a binary column of images
and without that metadata, are read too.

Sizes of images in Parquet files are estimates: the mean of the row group. The metadata does not contain the lengths of
images, and to learn them, all data would have to be read. So shards may be somewhat longer than ``shard_bytes``.

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

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import NONE, Classes, quoted
from wds_tools.sources.arrow_types import (
    BINARY,
    KINDS,
    LISTS,
    NOTHING,
    class_lists_of,
    column_of,
    features_of,
    fit,
    further_parts,
    has_binary,
    has_type,
    hold_images,
    inner_type,
    is_image,
    is_list_of_integers,
    lengths,
    named_lists,
    renumbered,
    what_in,
)
from wds_tools.sources.base import Collector, SourceOptions, as_read_error, as_source_error
from wds_tools.sources.columns import check_unique, not_finite
from wds_tools.sources.files import find_files
from wds_tools.sources.inputs import Input
from wds_tools.sources.record_roles import Names, Roles
from wds_tools.sources.records import RecordSource
from wds_tools.sources.values import Excluded, Kind, cell, is_base64_of_image, is_text

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_PART = re.compile(r"-\d{5}-of-\d{5}\.")  # as Hugging Face names the files of a split
_CACHE = re.compile(r"(cache-[0-9a-f]+.*|tmp\w+)\.arrow")  # results that Hugging Face keeps next to their sources
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_MAX_GROUP_BYTES = 16 << 30
_FIELD_BYTES = 1024  # upper bound of header and padding of a field of unknown length
_HEAD_ROWS, _BATCH_ROWS = 8, 1 << 16
_CAN_REPEAT = {Kind.TEXT, Kind.WHOLE, Kind.DECIMAL}  # as class names and numbers do
_READ_ERRORS = (pa.ArrowException, ValueError, IndexError, KeyError, TypeError)
_LOAD_IT = "load it with datasets, and pass the object to wds_tools.pack, which reads the files"
_OF_SAVED = ("state.json", "dataset_info.json")  # files of ``save_to_disk``


class ArrowSource(RecordSource):
    """Arrow files with images in a column: a file, a pattern, or a folder, such as one that ``save_to_disk`` wrote.

    All files belong to one split. A folder ``label=cat`` of a path is a column ``label``.

    Attributes:
        grouped: Whether the rows of a group can only be read together.
    """

    kind = "arrow"
    unit = "row"
    part = "column"
    grouped: ClassVar[bool] = False
    record_roles: Roles
    packed: frozenset[str] = frozenset()
    image_columns: frozenset[str] = frozenset()
    changes: Mapping[int, Mapping[str, Mapping[int, int]]] = MappingProxyType({})  # of files, see `Columns.changes`

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.paths = self.find()
        self.partitions = _partitions(self.path, self.paths)

    def find(self) -> tuple[Path, ...]:
        """Return the files that the state of a saved dataset names, or else the files of the folder."""
        state = self.path / "state.json"
        if state.is_file():
            with as_source_error(f"{state} cannot be read", ValueError, KeyError, TypeError):
                names = [Path(entry["filename"]).name for entry in json.loads(state.read_bytes())["_data_files"]]
            return tuple(self.path / name for name in names)
        try:
            return find_files(self.path, lambda name: is_arrow(name) and not _CACHE.fullmatch(name), "Arrow")
        except MissingSourceError:
            return find_files(self.path, is_arrow, "Arrow")

    def schema(self, file: int) -> pa.Schema:
        """Return the schema of a file."""
        return self._open(file)[0]

    def rows(self, file: int) -> int:
        """Return the number of rows that a file states."""
        return sum(batch.num_rows for batch in self._open(file)[1])

    def batches(self, file: int, column: str, rows: int) -> Iterator[pa.Array]:  # noqa: ARG002 - for other formats
        """Yield the values of a column, in batches of at most ``rows`` if they are not in memory."""
        return (batch.column(column) for batch in self._open(file)[1])

    def groups(self, file: int) -> Iterator[tuple[Sequence[int | None], Sequence[int]]]:
        """Yield the groups of a file: bytes of the image of each row, and of its other fields in a shard."""
        for batch in self._open(file)[1]:
            image = self.record_roles.image
            other_columns = [name for name in self.packed_columns(file) if name != image]
            rows = batch.select(other_columns).to_pylist() if other_columns else [{}] * batch.num_rows
            images = batch.column(image)
            named = pa.types.is_struct(images.type)
            paths = pc.struct_field(images, "path").to_pylist() if named else [None] * batch.num_rows
            cells = (row | {image: {"bytes": b"", "path": path}} for row, path in zip(rows, paths, strict=True))
            extras = [self.extra_bytes(self.row_values(file, row), self.record_roles) for row in cells]
            yield lengths(batch.column(image)), extras

    def load(self, file: int, group: int) -> Any:
        """Return a table or batch with the columns of a group that are packed."""
        return self._open(file)[1][group].select(self.packed_columns(file))

    def collect(self, collector: Collector) -> None:
        collector.take_files(self.paths)
        with as_source_error(f"{self.path} cannot be read as {self.kind.title()}", pa.ArrowException, ValueError):
            self._add_rows(collector)

    def why_left_out(self, path: str) -> str | None:
        if path in _OF_SAVED:
            return None
        if is_arrow(path) and (self.path / _OF_SAVED[0]).is_file():
            return f"is not among the files that {_OF_SAVED[0]} names"
        is_cache = _CACHE.fullmatch(path.rpartition("/")[2]) is not None
        return "is a cached result of datasets, such as of map()" if is_cache else super().why_left_out(path)

    def image_names(self, collector: Collector) -> Iterator[str]:  # noqa: ARG002 - the paths of rows are numbers
        yield from (str(value) for name in self._ids for value in self._values(range(len(self.paths)), name))

    def values(self, entry: Input) -> Mapping[str, Any]:
        file, group, row = entry.location
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            table = self.load(file, group)
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
            elif isinstance(data, bytes) and data and not sniff(data) and name != self.record_roles.image:
                raise SourceError(f"column {name!r} has {len(data)} bytes, not an image")
        image = cells.get(self.record_roles.image)
        path = image.get("path") if isinstance(image, dict) else None
        return {"file_name": path} | values if path else values

    def packed_columns(self, file: int) -> list[str]:
        """Return the columns of a file that records are made of."""
        return [name for name in self.schema(file).names if name in self.packed]

    def _add_rows(self, collector: Collector) -> None:
        files = [file for file in range(len(self.paths)) if self.rows(file)] or [0]
        names = _names(self.path, self.paths)
        self._check_configurations([names[file] for file in files])
        self._check_partitions(files, names)
        schemas = [self._schema(file) for file in files]
        columns = Columns.of(schemas, [names[file] for file in files])
        collector.account.notes += columns.notes()
        named, _ = named_lists(columns.classes, self.options.classes)
        self.class_lists = columns.classes = {place: Classes(names) for place, names in named.items()}
        self.changes = {file: columns.changes(position) for position, file in enumerate(files)}
        seen = Names(self)
        for name in columns.types:
            head = partial(self._head, files, name)
            kind = columns.kind(name, head)
            is_text_label = kind == Kind.BINARY and seen.may_be_label(name) and all(map(is_text, filter(None, head())))
            seen.declare(name, Kind.TEXT if is_text_label else kind)
        self.image_columns = frozenset(name for name, kinds in seen.kinds.items() if Kind.ENCODED in kinds)
        roles = self.record_roles = seen.find(partial(self._numbered, files), partial(self._head, files))
        self._check_no_base64(files, roles.image)
        columns.check_complete([roles.image, roles.label, roles.names, *roles.hot])
        collector.account.notes += seen.hints(
            roles,
            lambda name: [*(self._values if _CAN_REPEAT & seen.kinds[name].keys() else self._head)(files[:1], name)],
        )
        label = columns.types.get(roles.label or "")
        if isinstance(label, pa.DictionaryType) and label.ordered and not self.options.classes:
            collector.account.notes.append(
                f"the categories of column {roles.label!r} have an order, and class numbers are those of the sorted "
                "names: pass --classes (classes=) with the names in their order to keep it"
            )
        for name in seen.facts(roles):
            if has_type(columns.types[name], pa.types.is_floating):
                seen.lost[name] = sum(map(not_finite, self._values(files, name)))
        self._ids = [name for name in seen.facts(roles) if seen.kinds[name].keys() <= {Kind.TEXT, Kind.WHOLE}]
        self.packed = frozenset([roles.image, *roles.shape, *roles.fields, *seen.facts(roles)])
        self._add_entries(collector, files, names, seen.values_of(roles))
        collector.account.given = sum(map(self.rows, files))
        self.account_names(seen, collector, roles)
        pathless = {name for name in self.image_columns if not any(map(_path_in, self._head(files, name)))}
        pathless = {roles.image, *pathless}
        further = chain.from_iterable(further_parts(schema, self.image_columns, pathless) for schema in schemas)
        for kind, name, reason in dict.fromkeys(further):
            collector.account.leave_out(kind, name, reason)

    def _check_no_base64(self, files: Sequence[int], image: str) -> None:
        head = [value for value in self._head(files, image) if isinstance(value, bytes)]
        if head and all(map(is_base64_of_image, head)):
            raise SourceError(
                f"{self.name}: column {image!r} is base64 of images: decode it to bytes, as docs/sources.md shows"
            )

    def _check_configurations(self, names: Sequence[str]) -> None:
        """Raise an error if two folders have all parts of a dataset: configurations, with other classes or columns."""
        parts: dict[str, str] = {}
        for folder, _, name in (file.rpartition("/") for file in names):
            first_folder = parts.setdefault(name, folder)
            if first_folder != folder and _PART.search(name) and "=" not in f"{folder}{first_folder}":
                raise SourceError(
                    f"{self.name} has {name!r} in the folders {first_folder!r} and {folder!r}, so they are two "
                    f"configurations of a dataset: pack one of them, such as {self.path / folder}"
                )

    def _check_partitions(self, files: Iterable[int], names: Sequence[str]) -> None:
        """Raise an error if a column of a file contradicts the folder ``name=value`` of the file."""
        for file in files:
            for name in self.partitions[file].keys() & {*self.schema(file).names}:
                value = self.partitions[file][name]
                cells = self._values([file], name)
                different = next((cell for cell in cells if not _is_same(cell, value)), value)
                if different is not value:
                    raise SourceError(
                        f"{names[file]} is in the folder '{name}={value}', and its column {name!r} has {different!r}: "
                        "remove the column, or rename the folder"
                    )

    def remedy_for_names(self, first: str) -> str:
        return f"move the files into folders such as label={first}, which are read as a column"

    def _add_entries(
        self, collector: Collector, files: Sequence[int], names: Sequence[str], labels: Sequence[Any]
    ) -> None:
        total = group = 0
        for file in files:
            first = total
            for group_index, (sizes, extras) in enumerate(self.groups(file)):
                for row, (size, extra) in enumerate(zip(sizes, extras, strict=True)):
                    path = f"{names[file]}#{total - first}"
                    entry = Input(path, size or 0, None, (file, group_index, row), group if self.grouped else -1, extra)
                    if size:
                        collector.add(entry, labels[total] if labels else NONE)
                    else:
                        collector.skip(path, "is empty")
                    total += 1
                group += len(sizes) > 0

    def _values(self, files: Iterable[int], name: str) -> Iterator[Any]:
        """Yield the values of a column in all rows of files."""
        for file in files:
            if name in self.schema(file).names:
                yield from (value for batch in self.batches(file, name, _BATCH_ROWS) for value in batch.to_pylist())
            else:
                yield from repeat(self.partitions[file].get(name), self.rows(file))

    def _numbered(self, files: Iterable[int], name: str) -> Iterator[Any]:
        """Yield the values of a column in all rows of files, with the class numbers that all files have."""
        for file in files:
            values, changes = self._values([file], name), self.changes[file]
            yield from (renumbered({name: value}, changes)[name] for value in values) if changes else values

    def _head(self, files: Iterable[int], name: str) -> list[Any]:
        """Return the first values of a column, without missing ones."""
        files_with_it = (file for file in files if name in self.schema(file).names)
        batches = chain.from_iterable(self.batches(file, name, _HEAD_ROWS) for file in files_with_it)
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


def _is_same(value: Any, folder_value: Any) -> bool:
    """Return whether a value is that of a folder, whose numbers are written as text."""
    return value == folder_value or str(value) == str(folder_value)


def _path_in(value: Any) -> Any:
    return value.get("path") if isinstance(value, dict) else None


def is_arrow(name: str) -> bool:
    """Return whether a file name is that of an Arrow file."""
    return name.lower().endswith((".arrow", ".feather", ".ipc"))


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
        for group_index in range(metadata.num_row_groups):
            group = metadata.row_group(group_index)
            if group.total_byte_size > _MAX_GROUP_BYTES:
                raise SourceError(
                    f"{self.paths[file]}: row group {group_index} has {group.total_byte_size:,} bytes; allowed are "
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
        roles = self.record_roles
        further = self.packed - {roles.image}
        sizes: Counter[str | None] = Counter()
        for column in map(group.column, range(group.num_columns)):
            path = column.path_in_schema  # such as mask.png.bytes, for the column mask.png
            name = max((name for name in self.packed if f"{path}.".startswith(f"{name}.")), key=len, default=None)
            sizes[name] += column.total_uncompressed_size
        further_bytes = sum(sizes[name] for name in further)
        json_keys = sum(len(name) + 8 for name in further - roles.fields.keys())
        extra = further_bytes // group.num_rows + json_keys + _FIELD_BYTES * len(roles.fields) if further else 0
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
    base = root.parent if "=" in root.name else root
    folders = [(path.relative_to(base) if root.is_dir() else path).parts[:-1] for path in paths]
    pairs = [[folder.split("=", 1) for folder in parts if "=" in folder] for parts in folders]
    by_file = [{name: None if value == _NO_PARTITION else unquote(value) for name, value in parts} for parts in pairs]
    values = {pair for columns in by_file for pair in columns.items()}
    texts = {name for name, value in values if value is not None and not _NUMBER.fullmatch(value)}
    return [
        {name: value if value is None or name in texts else int(value) for name, value in columns.items()}
        for columns in by_file
    ]


@dataclass(slots=True)
class Columns:
    """The columns of all files of a source.

    Attributes:
        types: Column -> type, of the first file where the type is not null.
        images: Columns that are images by their metadata, or may hold them by their type.
        classes: Column -> class names of all files, by number.
        file_classes: Of each file: column -> its class names, by number.
        first: Column -> name of the first file that has it.
        missing: Column -> names of the files that lack it.
    """

    types: dict[str, pa.DataType] = field(default_factory=dict)
    images: dict[str, bool] = field(default_factory=dict)
    classes: dict[str, Classes] = field(default_factory=dict)
    file_classes: list[dict[str, Classes]] = field(default_factory=list)
    first: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, schemas: Sequence[pa.Schema], names: Sequence[str]) -> Columns:
        """Return the columns of several files."""
        columns = cls()
        for schema, file in zip(schemas, names, strict=True):
            check_unique(schema.names, where=file)
            features = features_of(schema)
            for column in schema:
                common, first = columns.types.get(column.name), columns.first.setdefault(column.name, file)
                if common is None or what_in(common).endswith(NOTHING):
                    columns.types[column.name] = column.type
                    common = column.type
                if not fit(what_in(column.type), what_in(common)):
                    raise SourceError(
                        f"column {column.name!r} has {what_in(common)} ({common}) in {first}, and "
                        f"{what_in(column.type)} ({column.type}) in {file}: write both with one type, or pack them "
                        "one at a time"
                    )
                columns._add_image(column.name, column.type, features.get(column.name))
            columns._add_classes(schema, features, file)
        pairs = [*zip(schemas, names, strict=True)]
        without = {name: [file for schema, file in pairs if name not in schema.names] for name in columns.types}
        columns.missing = {name: files for name, files in without.items() if files}
        return columns

    def changes(self, file: int) -> dict[str, dict[int, int]]:
        """Return place of class numbers -> number in a file -> number of that class in all files, if they differ."""
        return {
            place: {class_number: self.classes[place].index(name) for class_number, name in enumerate(classes)}
            for place, classes in self.file_classes[file].items()
            if classes != self.classes[place][: len(classes)]
        }

    def kind(self, name: str, head: Callable[[], Sequence[Any]]) -> str:
        """Return what the values of a column are; ``head`` returns its first values."""
        kind = self.types[name]
        what = what_in(kind)
        if name in self.images and (self.images[name] or hold_images(head())):
            return Kind.ENCODED
        if what == BINARY:
            return Kind.BINARY
        if has_binary(kind):
            are_images = what == f"{LISTS}structs" and is_image(inner_type(kind))
            are_images |= what == f"{LISTS}{BINARY}" and any(map(hold_images, filter(None, head())))
            return Kind.SEVERAL_IMAGES if are_images else Kind.LOSSY
        otherwise = Kind.LIST if what.startswith(LISTS) else Kind.DECIMAL
        return next((kind_of_values for what_of_kind, kind_of_values, _ in KINDS if what_of_kind == what), otherwise)

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
            for name in dict.fromkeys(name for file in range(len(self.file_classes)) for name in self.changes(file))
        ]

    def _add_image(self, name: str, kind: pa.DataType, feature: Mapping[str, Any] | None) -> None:
        stated = feature.get("_type") if isinstance(feature, Mapping) else None
        if stated == "Image" or (is_image(kind) and stated is None):
            self.images[name] = True
        elif what_in(kind) == BINARY or is_list_of_integers(kind):
            self.images.setdefault(name, False)

    def _add_classes(self, schema: pa.Schema, features: Mapping[str, Any], file: str) -> None:
        classes_of_file = {
            name: Classes(names)
            for name, names in class_lists_of({name: features.get(name) for name in schema.names}).items()
            if names
        }
        for place in sorted(classes_of_file.keys() ^ self.classes.keys()):
            name = column_of(place, schema.names)
            if name is not None and self.first[name] != file:
                named, unnamed = (file, self.first[name]) if place in classes_of_file else (self.first[name], file)
                raise SourceError(
                    f"column {place!r} has class names in {named}, and none in {unnamed}, so its numbers may mean "
                    "other classes: pack them one at a time, or write them with one list of class names"
                )
        for name, classes in classes_of_file.items():
            first = self.first[column_of(name, schema.names) or name]
            are_disjoint = {*self.classes.get(name, ())}.isdisjoint(classes)
            if name in self.classes and are_disjoint and Path(first).parent != Path(file).parent:
                raise SourceError(
                    f"column {name!r} has no class of {first} in {file}: if the folders have different labels of the "
                    "same images, pack one of them"
                )
            self.classes[name], _ = self.classes.get(name, Classes()).united(classes)
        self.file_classes.append(classes_of_file)
