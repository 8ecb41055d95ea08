"""Class lists of fields: the names of class numbers that are not the label of a sample. No I/O.

They belong to a field path, written as for `LabelSource`: a field such as ``labels.json``, or an entry of a JSON field
such as ``json:objects.category``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from wds_tools.errors import LabelError, OptionError
from wds_tools.format.label import Classes, quoted
from wds_tools.format.label_lists import LABELS
from wds_tools.format.label_source import FOLDER, INDEX, LabelSource
from wds_tools.format.objects import CATEGORY_PATH

CLASS_LISTS_NAME = "field_classes.json"
"""File of unpacked samples with their class lists, which the files of the samples do not have."""

LABEL_PATH = "cls"
"""The field path of class names in this file if the numbers are in files of their own."""

_MAKE_EQUAL = "make the class names and numbers of their sources equal, and pack these again"


class ClassList(NamedTuple):
    """The classes of a field.

    Attributes:
        names: Class names by number.
        ids: The number that each class had in the original source, by class number, such as 1 to 90 in COCO; empty if
            these are the class numbers.
        attributes: Further facts about each class in the original source, such as names of key points: a JSON object
            as text for each class; empty if there are none.
    """

    names: tuple[str, ...]
    ids: tuple[int, ...] = ()
    attributes: tuple[str, ...] = ()

    def means_the_same(self, other: ClassList) -> bool:
        """Return whether a number is the same class in both."""
        return (self.names, self.ids) == (other.names, other.ids)

    def with_names(self, names: Sequence[str], where: str) -> ClassList:
        """Return these classes in another order, in which there may be more; numbers of the source are left out."""
        if missing := [name for name in self.names if name not in names]:
            raise LabelError(
                f"{where} has the class names {quoted(missing)}, which are not among the names that were given "
                f"({quoted(names)}): add them (--classes, classes=)"
            )
        stated = dict(zip(self.names, self.attributes, strict=True)) if self.attributes else {}
        return ClassList(tuple(names), (), tuple(stated.get(name, "{}") for name in names) if stated else ())


FieldClasses: TypeAlias = Mapping[str, ClassList]
"""Field path -> its classes."""


class DatasetClasses(NamedTuple):
    """All class lists of a dataset."""

    name: str
    label: tuple[str, ...]
    fields: FieldClasses
    stored: Collection[str] = ()

    def of(self, path: str) -> ClassList | None:
        """Return the classes at a field path: without names if a field has no list, None if there is no such field."""
        return self.fields.get(path) or (ClassList(()) if path in self.stored else None)


def class_lists(given: Mapping[str, ClassList | Sequence[str]]) -> dict[str, ClassList]:
    """Return class lists that a user gave as such, or as names by number; raises as `check_field_classes` does."""
    lists = {
        path: ClassList(tuple(given_list.names), tuple(given_list.ids), tuple(given_list.attributes))
        if isinstance(given_list, ClassList)
        else ClassList(tuple(given_list))
        for path, given_list in given.items()
    }
    check_field_classes(lists)
    return lists


def check_field_classes(field_classes: FieldClasses) -> None:
    """Check class lists that go into a manifest."""
    for path, (names, ids, attributes) in field_classes.items():
        if path in (FOLDER, INDEX) or str(LabelSource.parse(path)) != path:
            raise OptionError(
                f"{path!r} cannot have a list of classes; allowed are fields such as 'labels.json', and entries of "
                "JSON fields such as 'json:objects.category'"
            )
        Classes(names)
        if ids and (len(ids) != len(names) or len(set(ids)) < len(ids)):
            raise LabelError(
                f"{path!r} has {len(names)} class names and the ids {list(ids)[:10]}; allowed is one different id for "
                "each name"
            )
        if attributes and len(attributes) != len(names):
            raise LabelError(
                f"{path!r} has {len(names)} class names and {len(attributes)} objects with attributes; allowed is one "
                "for each name"
            )


def to_raw(field_classes: FieldClasses) -> dict[str, Any]:
    """Return class lists as values for JSON."""
    return {
        path: {
            "names": list(names),
            **({"ids": list(ids)} if ids else {}),
            **({"attributes": list(map(json.loads, attributes))} if attributes else {}),
        }
        for path, (names, ids, attributes) in field_classes.items()
    }


def from_raw(raw: Any) -> dict[str, ClassList]:
    """Return class lists that were read from JSON."""
    if not isinstance(raw, dict):
        raise TypeError(f"field_classes are {raw!r}; allowed is an object with a list of classes for each field path")
    lists = {}
    for path, entry in raw.items():
        names, ids = (entry.get("names"), entry.get("ids", [])) if isinstance(entry, dict) else (None, None)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"field_classes of {path!r} have names {names!r}; allowed is a list of names")
        if not isinstance(ids, list) or not all(type(item) is int for item in ids):
            raise TypeError(f"field_classes of {path!r} have ids {ids!r}; allowed is a list of whole numbers")
        attributes = entry.get("attributes", [])
        if not isinstance(attributes, list) or not all(isinstance(one, dict) for one in attributes):
            raise TypeError(f"field_classes of {path!r} have attributes {attributes!r}; allowed is a list of objects")
        lists[path] = ClassList(tuple(names), tuple(ids), tuple(map(json.dumps, attributes)))
    check_field_classes(lists)
    return lists


def shared(parts: Sequence[DatasetClasses]) -> dict[str, ClassList]:
    """Return the class lists on which all datasets that have the field agree."""
    same: dict[str, ClassList] = {}
    for path in _paths(parts):
        first, *others = [classes for part in parts if (classes := part.of(path)) is not None]
        if all(map(first.means_the_same, others)):
            same[path] = first
    return same


def check_same(parts: Sequence[DatasetClasses], *, fields: Collection[str] | None = None) -> None:
    """Check that datasets have the same classes for each field path."""
    for path in _paths(parts):
        field = LabelSource.parse(path).field
        if fields is not None and field not in fields:
            continue
        lists = [(part, classes) for part in parts if (classes := part.of(path)) is not None]
        first, expected = lists[0]
        for part, classes in lists[1:]:
            if not classes.means_the_same(expected):
                can_be_given = path in (CATEGORY_PATH, LABELS)  # of objects, in COCO, YOLO and VOC
                remedy = "pack them with the same classes (--classes, classes=)" if can_be_given else _MAKE_EQUAL
                raise LabelError(
                    f"{first.name} and {part.name} have different classes for {path!r} "
                    f"({_first_difference(expected, classes)}), so its numbers would mean different things: {remedy}"
                    + ("" if fields is None else f", or remove {field!r} from fields=")
                )


def _paths(parts: Iterable[DatasetClasses]) -> list[str]:
    return list(dict.fromkeys(path for part in parts for path in part.fields))


def _first_difference(left: ClassList, right: ClassList) -> str:
    if left.names != right.names:
        return first_difference([left.names, right.names])
    return "their numbers in the original source differ"


def first_difference(class_lists: Iterable[tuple[str, ...]]) -> str:
    """Return the first class number that has several names, with these names.

    >>> first_difference([("cat", "dog"), ("cat", "fig")])
    "class 1 is 'dog' or 'fig'"
    """
    for index, names in enumerate(zip_longest(*sorted(class_lists), fillvalue=None)):
        if len(set(names)) > 1:
            return f"class {index} is {' or '.join(sorted(repr(name) if name else 'no name' for name in set(names)))}"
    return "one names them"
