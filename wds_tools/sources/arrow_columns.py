"""Columns of Arrow types, of one or several files: their roles, and a row as a record.

Of Hugging Face's ``datasets``, images are structs ``{bytes, path}``, and class names are in the metadata. Tables of
other tools, with a binary column of images and without that metadata, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wds_tools.errors import SourceError
from wds_tools.format import image_header
from wds_tools.format.field_classes import ClassList
from wds_tools.format.label import Classes, quoted
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.sources.base import Collector, Record, SourceOptions
from wds_tools.sources.columns import (
    IMAGE,
    check_unique,
    fact_name,
    field_name,
    json_value,
    no_image_error,
    plain_name,
    usual_columns,
)
from wds_tools.sources.label_choice import LabelColumns
from wds_tools.sources.roles import Roles

_NOT_AN_IMAGE = "binary, and not an image"
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
        """Return the columns of several files.

        Args:
            schemas: Of each file.
            names: Name of each file.
            where: Name of the source.

        Raises:
            SourceError: A column has another type in another file, or class names only in some, or a file has two
                columns with the same name.
        """
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
        for name in columns.types:
            without = [file for schema, file in zip(schemas, names, strict=True) if name not in schema.names]
            if without:
                columns.missing[name] = without
        return columns

    def numbers(self, file: int, column: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return class numbers of a file as those of all files: classes are matched by name."""
        own = self.own_classes[file].get(column)
        if own is None or own == self.classes[column][: len(own)]:
            return values
        new = {number: self.classes[column].index(name) for number, name in enumerate(own)}
        return [
            [new.get(one, one) for one in value] if isinstance(value, list) else new.get(value, value)
            for value in values
        ]

    def roles(self, columns: Mapping[str, str], head: Callable[[str], Sequence[Any]]) -> Roles:
        """Return the roles of all columns; that of the label is decided when its values are known.

        Args:
            columns: The user's mapping from role to column.
            head: Returns the first values of a column.

        Raises:
            SourceError: No column contains images, or several do.
        """
        images = [name for name, is_certain in self.images.items() if is_certain or _holds_images(head(name))]
        images += [] if images else usual_columns(IMAGE, self.images, {}, where=self.where)
        image = self._image(images, columns)
        fields, facts, left_out = dict[str, str](), [], {}
        for name, kind in self.types.items():
            if name == image or name in images:
                continue
            if _has_binary(kind):
                left_out[name] = _NOT_AN_IMAGE if _what(kind) == _BINARY else "has binary values in lists or structs"
            elif (found := _text_field(name, kind)) and found not in fields.values():
                fields[name] = found
            else:
                facts.append(name)
        more = tuple(name for name in images if name != image)
        return Roles(image, fields=fields, more_images=more, facts=tuple(facts), left_out=left_out)

    def labels(self, roles: Roles, options: SourceOptions) -> LabelColumns:
        """Return the columns that could be the label, without their values."""
        names = [name for name in self.types if name != roles.image and name not in roles.more_images]
        return LabelColumns(self.where, names, options, self.classes)

    def is_text(self, name: str) -> bool:
        """Return whether a column has text."""
        return _what(self.types[name]) == _TEXT

    def check_complete(self, names: Sequence[str | None]) -> None:
        """Check that all files have some columns.

        Raises:
            SourceError: One is missing.
        """
        for name in names:
            if name in self.missing:
                raise SourceError(
                    f"{self.missing[name][0]} has no column {name!r}, which {self.first[name]} has: add it, or "
                    "pack the files one at a time"
                )

    def collect_classes(self, found: Collector, roles: Roles) -> None:
        """Add the class lists of columns that become entries of ``json``, once the label is known.

        If files have different lists for a column, its numbers have no common meaning, which is noted.
        """
        for name in roles.facts:
            lists = {own[name] for own in self.own_classes if name in own}
            if len(lists) == 1:
                found.field_classes[f"json:{fact_name(name)}"] = ClassList(tuple(lists.pop()))
            elif lists:
                found.account.notes.append(
                    f"the files have different class names for column {name!r}: its numbers are packed without names"
                )

    def notes(self) -> list[str]:
        """Return what a user should know about columns that are not in all files."""
        return [
            f"column {name!r} is missing in {quoted(files)}: their samples are packed without it"
            for name, files in self.missing.items()
        ]

    def _image(self, images: Sequence[str], columns: Mapping[str, str]) -> str:
        chosen = columns.get(IMAGE)
        if chosen in self.types and chosen not in self.images:
            raise SourceError(
                f"{self.where}: column {chosen!r} has {_what(self.types[chosen])}; images are bytes, or structs of "
                "bytes and path: list files and URLs in a CSV or JSON Lines table"
            )
        usual = usual_columns(IMAGE, self.types if chosen is not None else images, columns, where=self.where)
        if usual:
            return usual[0]
        if len(images) == 1:
            return images[0]
        texts = [name for name, kind in self.types.items() if _what(kind) == _TEXT]
        paths = usual_columns(IMAGE, texts, {}, where=self.where)
        hint = f"; {paths[0]!r} has text: list files and URLs in a CSV or JSON Lines table" if paths else ""
        raise no_image_error(self.where, [f"{name} {kind}" for name, kind in self.types.items()], hint=hint)

    def _add_image(self, name: str, kind: pa.DataType, feature: Mapping[str, Any] | None) -> None:
        is_struct = pa.types.is_struct(kind) and {"bytes", "path"} <= {one.name for one in kind}
        if _type(feature) == "Image" or (is_struct and _type(feature) is None):
            self.images[name] = True
        elif _what(kind) == _BINARY or _is_bytes_in_list(kind):
            self.images.setdefault(name, False)

    def _add_classes(self, schema: pa.Schema, features: Mapping[str, Any], file: str) -> None:
        own = {
            name: Classes(map(str, found))
            for name, feature in features.items()
            if name in schema.names and (found := _names_of_classes(feature))
        }
        for name in schema.names:
            known_before = self.first[name] != file and name in self.types
            if known_before and (name in own) != (name in self.classes):
                one, other = (file, self.first[name]) if name in own else (self.first[name], file)
                raise SourceError(
                    f"column {name!r} has class names in {one}, and none in {other}, so its numbers may mean other "
                    "classes: pack them one at a time, or write them with one list of class names"
                )
        for name, classes in own.items():
            self.classes[name], _ = self.classes.get(name, Classes()).united(classes)
        self.own_classes.append(own)


def to_record(row: Mapping[str, Any], roles: Roles) -> Record:
    """Convert a row to a record.

    Raises:
        SourceError: The row contains no image, or another column of images has a value that is none.
    """
    data, file_name = image_of(row[roles.image])
    if data is None:
        problem = f"has a file name, {file_name!r}, but no bytes" if file_name else "is empty"
        raise SourceError(f"image {problem}; only images whose bytes are in the table can be packed")
    fields = {value: row[name].encode() for name, value in roles.fields.items() if row.get(name) is not None}
    for name in roles.more_images:
        other, path = image_of(row.get(name))
        kind = image_header.sniff(other) if other else None
        if (other or path) and not kind:
            raise SourceError(f"column {name!r} has {f'{len(other)} bytes' if other else repr(path)}, not an image")
        if other and kind:
            known = field_name(name)
            fields[known if known and known.endswith(f".{kind}") else f"{plain_name(name)}.{kind}"] = other
    return Record(data, fields, to_facts(row, roles, file_name))


def to_facts(row: Mapping[str, Any], roles: Roles, file_name: str | None) -> dict[str, Any]:
    """Return the entries of the ``json`` field for a row."""
    facts = {"file_name": file_name} if file_name else {}
    return facts | {fact_name(name): json_value(row[name]) for name in roles.facts if name in row}


def lengths(column: pa.Array) -> list[int | None]:
    """Return the number of bytes of each image or text; None for a row without one."""
    column = _plain(column)
    if pa.types.is_struct(column.type):
        column = _plain(pc.struct_field(column, "bytes"))
    if pa.types.is_null(column.type):
        return [None] * len(column)
    is_list = _is_bytes_in_list(column.type)
    found: list[int | None] = (pc.list_value_length if is_list else pc.binary_length)(column).to_pylist()
    return found


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
_KINDS: tuple[tuple[str, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    (_NOTHING, (pa.types.is_null,)),
    ("booleans", (pa.types.is_boolean,)),
    ("numbers", (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
    (_TEXT, (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (
        _BINARY,
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    ),
    ("times", (pa.types.is_temporal,)),
    ("structs", (pa.types.is_struct,)),
    ("maps", (pa.types.is_map,)),
)


def _what(kind: pa.DataType) -> str:
    """Return what values of a type are; values of types with the same answer may be in one column."""
    kind = _without_encoding(kind)
    inner = _inner(kind)
    if inner is not None:
        return _LISTS + _what(inner)
    return next((what for what, tests in _KINDS if any(test(kind) for test in tests)), str(kind))


def _fit(one: str, other: str) -> bool:
    """Return whether values of two kinds may be in one column."""
    while one.startswith(_LISTS) and other.startswith(_LISTS):
        one, other = one.removeprefix(_LISTS), other.removeprefix(_LISTS)
    return one == other or _NOTHING in (one, other)


def _without_encoding(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _without_encoding(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _without_encoding(kind.value_type)
    return kind


def _inner(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of a list; None for other types."""
    tests = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return kind.value_type if any(getattr(pa.types, test)(kind) for test in tests) else None


def _is_bytes_in_list(kind: pa.DataType) -> bool:
    inner = _inner(kind)
    return inner is not None and bool(pa.types.is_uint8(inner))


def _has_binary(kind: pa.DataType) -> bool:
    """Return whether values are binary, or have binary values inside."""
    kind = _without_encoding(kind)
    if _what(kind) == _BINARY:
        return True
    inner = _inner(kind)
    if inner is not None:
        return _has_binary(inner)
    if pa.types.is_map(kind):
        return _has_binary(kind.key_type) or _has_binary(kind.item_type)
    return bool(pa.types.is_struct(kind)) and any(_has_binary(one.type) for one in kind)


def _text_field(name: str, kind: pa.DataType) -> str | None:
    """Return the field that a column of text becomes; None if it becomes an entry of ``json``."""
    found = field_name(name)
    is_file = found is not None and found.rpartition(".")[2] in IMAGE_FIELDS  # the name of one, which is not read
    return found if _what(kind) == _TEXT and not is_file else None


def _holds_images(values: Sequence[Any]) -> bool:
    """Return whether some of the first values of a column are images."""
    return any(image_header.sniff(data) for value in values if (data := image_of(value)[0]))


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that ``datasets`` stored in the metadata; empty if missing or invalid."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    if not isinstance(features, dict):
        return {}
    return features


def _names_of_classes(feature: Any) -> list[Any]:
    """Return the class names of a `ClassLabel`, or of a list of them; empty for another feature."""
    while isinstance(feature, list) or _type(feature) in ("List", "LargeList", "Sequence"):
        feature = next(iter(feature), None) if isinstance(feature, list) else feature.get("feature")
    names = feature.get("names") if _type(feature) == "ClassLabel" else None
    return names if isinstance(names, list) else []


def _type(feature: Any) -> Any:
    return feature.get("_type") if isinstance(feature, Mapping) else None


def image_of(value: Any) -> tuple[bytes | None, str | None]:
    """Return (bytes, file name) of a cell; None for what it lacks."""
    if isinstance(value, dict):
        return value.get("bytes"), value.get("path")
    if isinstance(value, list):
        return bytes(value), None
    return (value, None) if isinstance(value, bytes) else (None, value if isinstance(value, str) else None)
