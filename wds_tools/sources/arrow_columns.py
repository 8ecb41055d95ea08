"""Columns of Arrow types, of one or several files: their roles, and a row as a record.

Of Hugging Face's ``datasets``, images are structs ``{bytes, path}``, and class names are in the metadata. Tables of
other tools, with a binary column of images and without that metadata, are read too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wds_tools.errors import SourceError
from wds_tools.format.label import Classes, quoted
from wds_tools.sources.columns import check_unique
from wds_tools.sources.label_choice import class_lists_of
from wds_tools.sources.values import Excluded, Kind, begins_like_an_image, cell

_NO_BYTES = Excluded("binary, which is not read from a table of files")
_VIEWS = ((pa.string_view(), pa.large_string()), (pa.binary_view(), pa.large_binary()))


@dataclass(slots=True)
class Columns:
    """The columns of all files of a source.

    Attributes:
        where: Name of the source, for error messages.
        types: Column -> type, of the first file where the type is not null.
        images: Columns that are images by their metadata, or may hold them by their type.
        classes: Column -> class names of all files, by number.
        own_classes: Of each file: column -> its class names, by number.
        first: Column -> name of the first file that has it.
        missing: Column -> names of the files that lack it.
    """

    where: str
    types: dict[str, pa.DataType] = field(default_factory=dict)
    images: dict[str, bool] = field(default_factory=dict)
    classes: dict[str, Classes] = field(default_factory=dict)
    own_classes: list[dict[str, Classes]] = field(default_factory=list)
    first: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, schemas: Sequence[pa.Schema], names: Sequence[str], where: str) -> Columns:
        """Return the columns of several files."""
        columns = cls(where)
        for schema, file in zip(schemas, names, strict=True):
            check_unique(schema.names, where=file)
            features = _features(schema)
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
        if _has(kind, lambda one: _what(one) == _BINARY):
            are_images = what == f"{_LISTS}structs" and _is_image(_inner(kind))
            are_images |= what == f"{_LISTS}{_BINARY}" and any(map(_holds_images, filter(None, head())))
            return Kind.SEVERAL_IMAGES if are_images else Kind.LOSSY
        return (
            Kind.LIST
            if what.startswith(_LISTS)
            else next((found for known, found, _ in _KINDS if known == what), Kind.DECIMAL)
        )

    def has_fractions(self, name: str) -> bool:
        """Return whether a column has floats, also inside lists and structs."""
        return _has(self.types[name], pa.types.is_floating)

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
            name = _column_of(place, schema.names)
            if name is not None and self.first[name] != file:
                one, other = (file, self.first[name]) if place in own else (self.first[name], file)
                raise SourceError(
                    f"column {place!r} has class names in {one}, and none in {other}, so its numbers may mean other "
                    "classes: pack them one at a time, or write them with one list of class names"
                )
        for name, classes in own.items():
            self.classes[name], _ = self.classes.get(name, Classes()).united(classes)
        self.own_classes.append(own)


def _column_of(place: str, names: Iterable[str]) -> str | None:
    """Return the column that has a place such as ``objects.category``."""
    return next((name for name in names if place == name or place.startswith(f"{name}.")), None)


def renumbered(values: Mapping[str, Any], changes: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """Return the values of a row with the class numbers of all files, see `Columns.changes`."""
    found = dict(values)
    for place, new in changes.items():
        if (name := _column_of(place, found)) is not None:
            found[name] = _renumbered(found[name], place.removeprefix(name).split(".")[1:], new)
    return found


def _renumbered(value: Any, path: Sequence[str], new: Mapping[int, int]) -> Any:
    if isinstance(value, list):
        return [_renumbered(one, path, new) for one in value]
    if not path:
        return new.get(value, value)
    if isinstance(value, dict) and path[0] in value:
        return value | {path[0]: _renumbered(value[path[0]], path[1:], new)}
    return value


def columns_of_parquet(data: bytes) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the columns of a Parquet file, and the class names of those that have them."""
    with _as_value_error():
        schema = pq.read_schema(io.BytesIO(data))
    return schema.names, class_lists_of(_features(schema))


def rows_of_parquet(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file, without values that are or contain bytes, which may be large."""
    with _as_value_error():
        file = pq.ParquetFile(io.BytesIO(data))
        binary = [one.name for one in file.schema_arrow if _has(one.type, lambda kind: _what(kind) == _BINARY)]
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


def file_names(column: pa.Array) -> list[str | None]:
    """Return the names of the files of images; None where they are not known."""
    if not pa.types.is_struct(column.type):
        return [None] * len(column)
    found: list[str | None] = pc.struct_field(column, "path").to_pylist()
    return found


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


def _holds_images(values: Sequence[Any]) -> bool:
    """Return whether some of the first values of a column are images."""
    cells = (value.get("bytes") if isinstance(value, dict) else value for value in values)
    return any(begins_like_an_image(data) for data in cells if isinstance(data, (bytes, list)))


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that ``datasets`` stored in the metadata; empty if missing or invalid."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}
