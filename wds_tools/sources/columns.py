"""Roles of columns, arrays and features: named by the user, or recognized by their usual names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources.inputs import field_bytes
from wds_tools.wording import first_few

IMAGE = "image"
LABEL = "label"
_USUAL_NAMES = {
    IMAGE: "image images img imgs jpg jpeg png webp picture photo pixels data x image_path img_path path file filename "
    "file_name filepath file_path image_url img_url url",
    LABEL: "label labels class classes target targets cls category fine_label species y class_name label_name class_id "
    "classid category_id label_id label_idx label_index class_idx class_index category_name target_name label_text",
}
# The other level of a hierarchy, or a second opinion: a label only if that is chosen, so both are shown.
_SECOND_LABELS = (
    "coarse_label superclass super_class subclass sub_class supercategory super_category subcategory sub_category "
    "label_2 label2 class_2 class2 category_2 category2"
)
_PIXEL = re.compile(r"pixel_?\d+|\d+x\d+")
_TEXTS = ("txt", "text", "caption", "captions", "caption.txt")
_EXTENSION = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*\.(txt|json|png|jpg|webp|npy|cls|xml|bin)")
_PATH_ENDINGS = ("_file_name", "_filename", "_path", "_file")
LABEL_WORD = re.compile(rb"[\w.-]{1,40}")
"""A text that may be a label: a number, or a name of one word."""

_SHOWN = 12  # names that a message lists
_MAX_FIELD_NAME = 64  # keeps the tar header of a member to one block
_CHANGE_OF_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]+")  # as in ClassName and "class name"
_encoder = json.JSONEncoder(separators=(",", ":"))


def usual_names(role: str) -> frozenset[str]:
    """Return the names by which the column of a role is recognized, in lower case."""
    return frozenset(_USUAL_NAMES[role].split())


def usual_columns(
    role: str, names: Iterable[str], columns: Mapping[str, str] = MappingProxyType({}), *, where: str = ""
) -> list[str]:
    """Return the column that the user named for a role, otherwise all with a usual name, the most usual one first.

    An empty name in ``columns`` means that there is none.
    """
    names = list(names)
    if role in columns:
        if not columns[role] and role == LABEL:
            return []
        if columns[role] in names:
            return [columns[role]]
        raise SourceError(
            f"{where} has no {columns[role]!r} for the {role}; it has {first_few(map(repr, names), _SHOWN) or 'none'}"
        )
    by_words = {_CHANGE_OF_WORD.sub("_", name).lower(): name for name in reversed(names)}
    by_name = {**by_words, **{name.lower(): name for name in reversed(names)}}
    return list(dict.fromkeys(by_name[usual] for usual in _USUAL_NAMES[role].split() if usual in by_name))


def is_second_label(name: str) -> bool:
    """Return whether a column is a label only next to another one, as `coarse_label` next to `fine_label`."""
    return _CHANGE_OF_WORD.sub("_", name).lower() in _SECOND_LABELS.split()


def find_column(role: str, names: Iterable[str], columns: Mapping[str, str], *, where: str) -> str | None:
    """Return the first of `usual_columns`, or None."""
    return next(iter(usual_columns(role, names, columns, where=where)), None)


def check_not_image(label: str, image: str, *, where: str) -> None:
    """Check that the label that the user named is not the image."""
    if label == image:
        raise SourceError(
            f"{where}: {image!r} is the image, so it cannot be the label: name another one, or the image with --column "
            "image=NAME (columns={'image': 'NAME'})"
        )


def check_unique(names: Sequence[str], *, where: str) -> None:
    """Check the header of a table. Columns without a name may occur several times."""
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        remedy = "rename one of them"
        if twice.strip().isdigit():
            remedy += ", or add a first line such as path,label if the file begins with a row of values"
        raise SourceError(f"{where} has two columns named {twice!r}: {remedy}")


def no_image_error(
    where: str, names: Iterable[str], what: str = "column", hint: str = "", of_files: Sequence[str] = ()
) -> SourceError:
    """Return the error that no image was found among ``names``, of which ``of_files`` have names of image files."""
    has = f"{first_few(map(repr, names), _SHOWN) or 'none'}{f' (image files in {quoted(of_files)})' * bool(of_files)}"
    name = next(iter(of_files), "NAME")
    return SourceError(
        f"{where} has no {what} of images with a known name; it has {has}: "
        f"name the {what}, as in --column image={name} (columns={{'image': {name!r}}}){hint}"
    )


def pixel_columns(names: Iterable[str]) -> list[str]:
    """Return the columns that have one pixel each, such as ``pixel0`` and ``pixel1``; empty if there is one at most."""
    columns = list(filter(_PIXEL.fullmatch, names))
    return columns if len(columns) > 1 else []


def pixels_error(where: str, name: str, what: str = "column") -> SourceError:
    """Return the error that the pixels of images are numbers in lists, in text or in one column each."""
    return SourceError(
        f"{where} has the pixels of images as numbers in {what} {name!r}, as FER-2013 and MNIST as CSV have them: make "
        "arrays of them and pack these: docs/sources.md shows the lines"
    )


def field_name(column: str) -> str | None:
    """Return the field that a column becomes; None if it becomes an entry of the ``json`` field.

    >>> field_name("caption"), field_name("mask.png"), field_name("boxes.json"), field_name("width")
    ('txt', 'mask.png', 'boxes.json', None)
    """
    name = column.strip().lower()
    if name in _TEXTS:
        return "txt"
    return name if len(name) <= _MAX_FIELD_NAME and _EXTENSION.fullmatch(name) else None


def is_text_field(field: str) -> bool:
    """Return whether a value of a table is the content of a field itself, not the name of a file with it.

    >>> is_text_field("txt"), is_text_field("boxes.json"), is_text_field("mask.png")
    (True, True, False)
    """
    return field == "txt" or field.endswith((".txt", ".json"))


def plain_name(name: str) -> str:
    """Return a name as part of a field name: at most 40 lower case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")[:40] or "field"


def image_field(column: str) -> str:
    """Return the first part of the name of the field that a column of names of images becomes.

    >>> image_field("mask_path"), image_field("Depth")
    ('mask', 'depth')
    """
    name = plain_name(column)
    ending = next((ending for ending in _PATH_ENDINGS if name.endswith(ending)), "")
    return name.removesuffix(ending) or name


def fact_name(name: str) -> str:
    """Return the key of a column in the ``json`` field, where ``path`` and ``class`` are reserved.

    >>> fact_name("width"), fact_name("path")
    ('width', 'path_')
    """
    return f"{name}_" if name in ("path", "class") else name


def json_or(otherwise: Any, data: bytes | memoryview) -> Any:
    """Return the value in JSON, or something else if it is not valid."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError):
        return otherwise


def json_object(data: bytes | memoryview) -> dict[str, Any] | None:
    """Return the object in JSON; None if it is something else. The text of invalid JSON is the entry ``json``."""
    value = json_or({"json": bytes(data).decode("utf-8", "replace")}, data)
    return value if isinstance(value, dict) else None


def note_on_labels(jsons: Iterable[bytes], texts: Sequence[bytes]) -> list[str]:
    """Return a note if entries of JSON files of images without labels, or their texts, could be the labels.

    >>> note_on_labels([], [b"1", b"0", b"1"])
    ['packed without labels; --label txt could be the label: pack the dataset once more, with this option']
    >>> note_on_labels([b'{"width": 3}'], [b"a cat", b"1", b"1"])
    []
    """
    objects = [json_object(data) or {} for data in jsons]
    candidates = [f"json:{entry}" for entries in objects for entry in usual_columns(LABEL, entries)]
    words = [data.strip() for data in texts]
    if len({*words}) < len(words) and all(map(LABEL_WORD.fullmatch, words)):  # such as class numbers
        candidates.append("txt")
    places = ", ".join(f"--label {place}" for place in dict.fromkeys(candidates))
    note = f"packed without labels; {places} could be the label: pack the dataset once more, with this option"
    return [note] if places else []


def not_finite(value: Any) -> int:
    """Return how many numbers of a value for JSON are NaN or infinite, which become null."""
    if isinstance(value, float):
        return int(not math.isfinite(value))
    if isinstance(value, Mapping):
        return sum(map(not_finite, value.values()))
    return sum(map(not_finite, value)) if isinstance(value, (list, tuple)) else 0


def null_note(name: str, count: int) -> str:
    """Return the note about numbers that become null in the ``json`` field."""
    return f"NaN and infinite numbers of {name!r} are null in json: {count:,}"


def facts_bytes(facts: Mapping[str, Any]) -> int:
    """Return an upper bound of the bytes that facts add to the ``json`` field in a shard."""
    renamed = "class" in facts  # it may become "class_"
    return field_bytes(len(_encoder.encode(facts)) + renamed) - field_bytes(0) if facts else 0
