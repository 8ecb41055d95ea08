"""Types of Arrow: what the values of a column are, and the lengths of images in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wds_tools.sources.class_file import may_name_classes
from wds_tools.sources.values import Kind, begins_like_an_image

_OF_WRITERS = (b"huggingface", b"pandas", b"ARROW:", b"PARQUET:", b"org.apache.", b"writer.", b"parquet.", b"geo")
_VIEWS = ((pa.string_view(), pa.large_string()), (pa.binary_view(), pa.large_binary()))


def lengths(column: pa.Array) -> list[int | None]:
    """Return the number of bytes of each image, or of all images of a row; None for a row without one."""
    column = _plain(column)
    if pa.types.is_struct(column.type):
        column = _plain(pc.struct_field(column, "bytes"))
    if pa.types.is_null(column.type):
        return [None] * len(column)
    is_list = inner_type(column.type) is not None
    sizes: list[int | None] = (pc.list_value_length if is_list else pc.binary_length)(column).to_pylist()
    if not is_list or is_list_of_integers(column.type):
        return sizes
    parts = iter(lengths(column.flatten()))
    return [sum(next(parts) or 0 for _ in range(count)) if count else None for count in sizes]


def _plain(column: pa.Array) -> pa.Array:
    """Return values without the encodings that some functions of Arrow do not take."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    for view, supported in _VIEWS:
        if column.type == view:
            return column.cast(supported)
    return column


NOTHING, BINARY, _TEXT, LISTS = "no values", "binary values", "text", "lists of "
KINDS: tuple[tuple[str, str, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    (NOTHING, Kind.MISSING, (pa.types.is_null,)),
    ("booleans", Kind.WHOLE, (pa.types.is_boolean,)),
    ("numbers", Kind.WHOLE, (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
    (_TEXT, Kind.TEXT, (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (
        BINARY,
        Kind.BINARY,
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    ),
    ("times", Kind.DECIMAL, (pa.types.is_temporal,)),
    ("structs", Kind.MAPPING, (pa.types.is_struct,)),
    ("maps", Kind.LIST, (pa.types.is_map,)),
)


def what_in(kind: pa.DataType) -> str:
    """Return what values of a type are; values of types with the same answer may be in one column."""
    kind = _without_encoding(kind)
    inner = inner_type(kind)
    if inner is not None:
        return LISTS + what_in(inner)
    return next((what for what, _, tests in KINDS if any(test(kind) for test in tests)), str(kind))


def fit(first: str, second: str) -> bool:
    """Return whether values of two kinds may be in one column."""
    while first.startswith(LISTS) and second.startswith(LISTS):
        first, second = first.removeprefix(LISTS), second.removeprefix(LISTS)
    return first == second or NOTHING in (first, second)


def _without_encoding(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):  # which becomes text
        return _without_encoding(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _without_encoding(kind.value_type)
    return kind


def inner_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of a list; None for other types."""
    tests = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return kind.value_type if any(getattr(pa.types, test)(kind) for test in tests) else None


def is_list_of_integers(kind: pa.DataType) -> bool:
    """Return whether values are lists of integers."""
    inner = inner_type(kind)
    return inner is not None and bool(pa.types.is_integer(inner))


def is_image(kind: pa.DataType) -> bool:
    """Return whether a type is that of images of ``datasets``."""
    return bool(pa.types.is_struct(kind)) and {"bytes", "path"} <= {entry.name for entry in kind}


def has_type(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Return whether values are of a wanted type, or have such values inside."""
    kind = _without_encoding(kind)
    if test(kind):
        return True
    inner = inner_type(kind)
    if inner is not None:
        return has_type(inner, test)
    if pa.types.is_map(kind):
        return has_type(kind.key_type, test) or has_type(kind.item_type, test)
    return bool(pa.types.is_struct(kind)) and any(has_type(entry.type, test) for entry in kind)


def has_binary(kind: pa.DataType) -> bool:
    """Return whether values of a type are bytes, or contain bytes."""
    return has_type(kind, lambda inner: what_in(inner) == BINARY)


def hold_images(values: Sequence[Any]) -> bool:
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


def further_parts(
    schema: pa.Schema, images: Collection[str], pathless: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield what a file has besides its columns, and what structs of images have besides bytes and the path.

    Each is (kind, name, why it is left out). The path of an image in ``pathless`` is packed, or missing.
    """
    for column in schema:
        kind = _without_encoding(column.type)
        if column.name in images and pa.types.is_struct(kind):
            read_entries = ("bytes", "path") if column.name in pathless else ("bytes",)
            for part in (part.name for part in kind if part.name not in read_entries):
                yield "entry", f"{column.name}.{part}", "is an entry of the struct of an image: write it as a column"
        for key, value in (column.metadata or {}).items():
            if not key.startswith(b"PARQUET:") and not key.startswith(b"ARROW:"):
                yield _metadata(f"{column.name}@{key.decode(errors='replace')}", value)
    for key, value in (schema.metadata or {}).items():
        if not key.startswith(_OF_WRITERS):
            yield _metadata(key.decode(errors="replace"), value)


def _metadata(name: str, value: bytes) -> tuple[str, str, str]:
    return "metadata", name, f"is metadata{may_name_classes(value)}"


def class_lists_of(features: Mapping[str, Any], path: str = "") -> dict[str, tuple[str, ...]]:
    """Return path -> class names of each `ClassLabel` of ``datasets``, even inside lists and dictionaries.

    Features are objects or JSON; ``path`` is what is before their names.
    """
    lists: dict[str, tuple[str, ...]] = {}
    for name, outer in features.items():
        feature = _without_lists(outer)
        if _of_feature(feature, "_type") == "ClassLabel":
            lists[f"{path}{name}"] = tuple(map(str, _of_feature(feature, "names") or ()))
        elif isinstance(feature, Mapping):
            lists |= class_lists_of(feature, f"{path}{name}.")
    return lists


def _without_lists(feature: Any) -> Any:
    """Return the feature of the values in a list, at any depth."""
    inner = feature[0] if isinstance(feature, list) and feature else _of_feature(feature, "feature")
    return feature if inner is None else _without_lists(inner)


def _of_feature(feature: Any, name: str) -> Any:
    """Return a property of a feature; a dictionary without a type is the features of its entries."""
    if isinstance(feature, Mapping):
        return feature.get(name) if isinstance(feature.get("_type"), str) else None
    return getattr(feature, name, None)


def named_lists(
    lists: Mapping[str, tuple[str, ...]], given: Sequence[str] | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[int, int]]]:
    """Return lists with the names that the user gives for the classes of objects, and the numbers that change."""
    names = tuple(given or ())
    inner = {place for place, classes in lists.items() if "." in place and names and {*classes} <= {*names}}
    changes = {place: {number: names.index(name) for number, name in enumerate(lists[place])} for place in inner}
    return {**lists, **dict.fromkeys(inner, names)}, changes


def column_of(place: str, names: Iterable[str]) -> str | None:
    """Return the column that has a place such as ``objects.category``."""
    return next((name for name in names if place == name or place.startswith(f"{name}.")), None)


def renumbered(values: Mapping[str, Any], changes: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """Return values with other class numbers, by their place in the values: number -> number."""
    result = dict(values)
    for place, new in changes.items():
        if (name := column_of(place, result)) is not None:
            result[name] = _renumbered(result[name], place.removeprefix(name).split(".")[1:], new)
    return result


def _renumbered(value: Any, path: Sequence[str], new: Mapping[int, int]) -> Any:
    if isinstance(value, list):
        return [_renumbered(entry, path, new) for entry in value]
    if not path:
        return new.get(value, value)
    if isinstance(value, dict) and path[0] in value:
        return value | {path[0]: _renumbered(value[path[0]], path[1:], new)}
    return value
