"""Columns in the format of Hugging Face's ``datasets``.

Images are structs ``{bytes, path}``, and class names are in the metadata. Tables of other tools, with a
binary column of images and without that metadata, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wds_tools.errors import SourceError
from wds_tools.format import codecs
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.sources.base import Collector, Record
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    fact_name,
    field_name,
    find_column,
    json_value,
    no_image_error,
    plain_name,
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of the columns of a table.

    Attributes:
        image: Column of the image.
        label: Column of the label; None without labels.
        classes: Class names by number of its feature; None without them.
        fields: Column -> field, for columns of text that become fields of their own.
        more_images: Further columns of images; their fields are named after the column and the
            image type.
        facts: Columns that become entries of the ``json`` field.
        left_out: Columns that are not packed.
    """

    image: str
    label: str | None
    classes: tuple[str, ...] | None
    fields: dict[str, str]
    more_images: tuple[str, ...]
    facts: tuple[str, ...]

    left_out: tuple[str, ...]

    def collect(self, found: Collector) -> None:
        """Add class names, and what becomes of each column."""
        account = found.account
        account.declare("column", [self.image, *filter(None, [self.label]), *self.rest, *self.left_out])
        found.classes = self.classes
        account.use("column", self.image, "image")
        if self.label is not None:
            account.use("column", self.label, "label")
        for column, field in self.fields.items():
            account.use("column", column, f"field {field}")
        for column in self.more_images:
            account.use("column", column, "image fields")
        for column in self.facts:
            account.use("column", column, "entries of json")
        for column in self.left_out:
            account.leave_out("column", column, "binary, and not an image")

    @property
    def rest(self) -> list[str]:
        """Return the columns besides image and label."""
        return [*self.fields, *self.more_images, *self.facts]


def find_roles(schema: pa.Schema, columns: Mapping[str, str], where: str) -> Roles:
    """Find the roles of columns by the user's mapping, the metadata, types and names, in this order.

    Raises:
        SourceError: No column contains images.
    """
    features = _features(schema)
    images = [name for name in schema.names if _holds_images(schema.field(name).type, features.get(name))]
    if IMAGE in columns and columns[IMAGE] in schema.names and columns[IMAGE] not in images:
        images.append(columns[IMAGE])
    image = find_column(IMAGE, images, columns, where=where) or (images[0] if len(images) == 1 else None)
    if image is None:
        raise no_image_error(where, [f"{name} {schema.field(name).type}" for name in schema.names])
    others = [name for name in schema.names if name not in images]
    class_labels = [name for name in others if _class_label(features.get(name))]
    if LABEL in columns or len(class_labels) != 1:
        label = find_column(LABEL, others, columns, where=where)
    else:
        label = class_labels[0]
    if label is not None and pa.types.is_floating(schema.field(label).type) and LABEL not in columns:
        label = None  # a regression target, which becomes an entry of the json field
    names = _class_label(features.get(label)).get("names") if label else None
    rest = [name for name in others if name != label and not _is_binary(schema.field(name).type)]
    fields = _fields(schema, rest)
    return Roles(
        image,
        label,
        tuple(map(str, names)) if isinstance(names, list) else None,
        fields,
        tuple(name for name in images if name != image),
        tuple(name for name in rest if name not in fields),
        tuple(name for name in others if name != label and name not in rest),
    )


def to_record(row: Mapping[str, Any], roles: Roles) -> Record:
    """Convert a row to a record.

    Raises:
        SourceError: The row contains no image.
    """
    data, file_name = _image(row[roles.image])
    if data is None:
        problem = f"has a file name, {file_name!r}, but no bytes" if file_name else "is empty"
        raise SourceError(f"image {problem}; only images whose bytes are in the table can be packed")
    fields = {field: row[name].encode() for name, field in roles.fields.items() if row[name] is not None}
    for name in roles.more_images:
        other, _ = _image(row[name])
        kind = codecs.sniff(other) if other else None
        if other and kind:
            field = field_name(name)
            fields[field if field and field.endswith(f".{kind}") else f"{plain_name(name)}.{kind}"] = other
    return Record(data, fields, to_facts(row, roles, file_name))


def to_facts(row: Mapping[str, Any], roles: Roles, file_name: str | None) -> dict[str, Any]:
    """Return the entries of the ``json`` field for a row."""
    facts = {"file_name": file_name} if file_name else {}
    return facts | {fact_name(name): json_value(row[name]) for name in roles.facts}


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that ``datasets`` stored in the metadata; empty if missing or invalid."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {name: value for name, value in features.items() if isinstance(value, (dict, list))}


def _class_label(feature: Any) -> Mapping[str, Any]:
    """Return the `ClassLabel` that a feature is or has a list of; empty if it is none."""
    if isinstance(feature, list):  # as older versions of datasets write lists
        feature = feature[0] if feature else None
    if not isinstance(feature, Mapping):
        return {}
    return feature if _type(feature) == "ClassLabel" else _class_label(feature.get("feature"))


def _type(feature: Any) -> Any:
    return feature.get("_type") if isinstance(feature, Mapping) else None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _holds_images(kind: pa.DataType, feature: Mapping[str, Any] | None) -> bool:
    if _type(feature) == "Image":
        return True
    if pa.types.is_struct(kind):
        return _type(feature) is None and {"bytes", "path"} <= {kind.field(i).name for i in range(kind.num_fields)}
    return _is_binary(kind)


def _fields(schema: pa.Schema, names: Sequence[str]) -> dict[str, str]:
    """Return column -> field for columns of text that become fields; of equal fields, the first column."""
    fields: dict[str, str] = {}
    for name in names:
        field = field_name(name)
        text = pa.types.is_string(schema.field(name).type) or pa.types.is_large_string(schema.field(name).type)
        is_file = field is not None and field.rpartition(".")[2] in IMAGE_FIELDS  # the name of one, which is not read
        if text and field is not None and not is_file and field not in fields.values() and field != "json":
            fields[name] = field
    return fields


def _image(value: Any) -> tuple[bytes | None, str | None]:
    """Return (bytes, file name) of a cell; None for what it lacks."""
    if isinstance(value, dict):
        return value.get("bytes"), value.get("path")
    return (value, None) if isinstance(value, bytes) else (None, value if isinstance(value, str) else None)
