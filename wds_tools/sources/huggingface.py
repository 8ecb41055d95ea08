"""Columns as Hugging Face's ``datasets`` writes them: images as ``{bytes, path}``, class names in the metadata.

Plain tables of other tools, with a binary column of images, are the same without that metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wds_tools.errors import SourceError
from wds_tools.format import codecs
from wds_tools.sources.base import Record
from wds_tools.sources.columns import IMAGE, LABEL, fact_name, field_name, no_image, pick, plain_name


@dataclass(frozen=True, slots=True)
class Roles:
    """What is in which column.

    Attributes:
        image: Column of the image.
        label: Column of the label, None if there is none.
        classes: Names of the classes, None where only the labels can tell.
        fields: Column to field, of columns that become fields of their own.
        pictures: Further columns of images, which become fields by their type.
        facts: Columns that go into ``json``.
    """

    image: str
    label: str | None
    classes: tuple[str, ...] | None
    fields: dict[str, str]
    pictures: tuple[str, ...]
    facts: tuple[str, ...]

    @property
    def rest(self) -> list[str]:
        """Return the columns besides image and label."""
        return [*self.fields, *self.pictures, *self.facts]


def find_roles(schema: pa.Schema, columns: Mapping[str, str], classes: tuple[str, ...] | None, where: str) -> Roles:
    """Tell the columns apart by the user's word, the metadata, the type, and the name, in this order.

    Raises:
        SourceError: No column holds images.
    """
    features = _features(schema)
    pictures = [name for name in schema.names if _holds_images(schema.field(name).type, features.get(name))]
    if IMAGE in columns and columns[IMAGE] in schema.names and columns[IMAGE] not in pictures:
        pictures.append(columns[IMAGE])
    image = pick(IMAGE, pictures, columns, where=where) or (pictures[0] if len(pictures) == 1 else None)
    if image is None:
        raise no_image(where, [f"{name} {schema.field(name).type}" for name in schema.names])
    others = [name for name in schema.names if name not in pictures]
    named = [name for name in others if _type(features.get(name)) == "ClassLabel"]
    label = pick(LABEL, others, columns, where=where) if LABEL in columns or len(named) != 1 else named[0]
    if label is not None and pa.types.is_floating(schema.field(label).type) and LABEL not in columns:
        label = None  # a number to regress on, which goes into json
    names = features.get(label, {}).get("names") if label else None
    rest = [name for name in others if name != label and not _is_binary(schema.field(name).type)]
    fields = _fields(schema, rest)
    return Roles(
        image,
        label,
        classes or (tuple(map(str, names)) if isinstance(names, list) else None),
        fields,
        tuple(name for name in pictures if name != image),
        tuple(name for name in rest if name not in fields),
    )


def to_record(row: Mapping[str, Any], roles: Roles) -> Record:
    """Return a row as a record.

    Raises:
        SourceError: It holds no image.
    """
    data, file_name = _image(row[roles.image])
    if data is None:
        what = f"names the file {file_name!r} in place of its bytes" if file_name else "is empty"
        raise SourceError(f"image {what}; packed are images that lie in the table")
    fields = {field: row[name].encode() for name, field in roles.fields.items() if row[name] is not None}
    for name in roles.pictures:
        more, _ = _image(row[name])
        kind = codecs.sniff(more) if more else None
        if more and kind:
            fields[f"{plain_name(name)}.{kind}"] = more
    return Record(data, fields, to_facts(row, roles, file_name))


def to_facts(row: Mapping[str, Any], roles: Roles, file_name: str | None) -> dict[str, Any]:
    """Return what ``json`` says of a row."""
    facts = {"file_name": file_name} if file_name else {}
    return facts | {fact_name(name): _jsonable(row[name]) for name in roles.facts}


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return what ``datasets`` says of the columns; nothing where it says nothing that can be read."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def _type(feature: Mapping[str, Any] | None) -> Any:
    return (feature or {}).get("_type")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _holds_images(kind: pa.DataType, feature: Mapping[str, Any] | None) -> bool:
    if _type(feature) == "Image":
        return True
    if pa.types.is_struct(kind):
        return _type(feature) is None and {"bytes", "path"} <= {kind.field(i).name for i in range(kind.num_fields)}
    return _is_binary(kind)


def _fields(schema: pa.Schema, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of text that become fields: the first of each name."""
    fields: dict[str, str] = {}
    for name in names:
        field = field_name(name)
        text = pa.types.is_string(schema.field(name).type) or pa.types.is_large_string(schema.field(name).type)
        if text and field is not None and field not in fields.values() and field != "json":
            fields[name] = field
    return fields


def _image(value: Any) -> tuple[bytes | None, str | None]:
    if isinstance(value, dict):
        return value.get("bytes"), value.get("path")
    return (value, None) if isinstance(value, bytes) else (None, value if isinstance(value, str) else None)


def _jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it; what it cannot becomes text."""
    if isinstance(value, dict):
        return {str(word): _jsonable(inner) for word, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - NaN
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
