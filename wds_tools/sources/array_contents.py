"""What an open file of arrays has, and what the names in it say: roles, splits, class names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from wds_tools.format.label import Label
from wds_tools.sources.array_kinds import fields_of
from wds_tools.sources.columns import IMAGE, LABEL, usual_names
from wds_tools.sources.layouts import SPLIT_OF
from wds_tools.sources.object_classes import names_in


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


CLASS_NAMES = _set(
    "classes class_names classnames list_classes label_names labels_names category_names categories target_names"
)
_MAPPINGS = frozenset(["class_to_idx", "idx_to_class"])
_FILLERS = frozenset(["set"])  # as in train_set_x
_MASKS = _set("mask masks seg segmentation depth gt annotation annotations mean std")
_MEASURES = _set("num n count counts weight weights score scores confidence prob probs logits")
_VAGUE = _set("x y data file path url filename filepath")  # part of many other names
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


class Unusable(NamedTuple):
    """A part of a file that is not an array with rows.

    Attributes:
        kind: Kind of the part, as in an account.
        name: Its name.
        reason: Why it is not packed.
        is_array: Whether it would be an array in a file of another kind, so that it could have a role.
    """

    kind: str
    name: str
    reason: str
    is_array: bool = False


@dataclass(slots=True)
class Contents:
    """What an open file has.

    Attributes:
        arrays: Name -> array.
        unusable: Other parts, which are left out.
        labels: The label of each row, if it is not in an array.
        class_names: (kind, name) of an attribute or entry -> class names.
        used: Further parts that are used: (kind, name, what they are used as).
        mean_bytes: Mean length of an encoded image in bytes, if it is not known.
        counts_from_one: Whether the program that wrote the file counts from 1.
    """

    arrays: dict[str, Any]
    unusable: list[Unusable] = field(default_factory=list)
    labels: list[Label] | None = None
    class_names: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    used: list[tuple[str, str, str]] = field(default_factory=list)
    mean_bytes: int = 1
    counts_from_one: bool = False

    def add(self, name: str, array: Any, inside: str | None = None) -> None:
        """Add an array; of records, the fields as arrays of their own, below the name ``inside``; or a single value."""
        if array.ndim == 0:
            self.add_entry("array", name, name, array[()])
        elif array.dtype.names and array.ndim == 1:
            prefix = f"{name}/" if inside is None else inside
            self.arrays |= {f"{prefix}{field}": values for field, values in fields_of(array)}
        else:
            self.arrays[name] = array

    def add_entry(self, kind: str, name: str, word: str, value: Any) -> None:
        """Add a value that is not one for each image: class names, by its name in the file, or something unusable."""
        names = class_names_in(value) if "_".join(words_of(word)) in CLASS_NAMES | _MAPPINGS else None
        if names is not None:
            self.class_names[kind, name] = names
        else:
            is_attribute = kind == "attribute"
            reason = "is an attribute" if is_attribute else "is a single value, not one for each image"
            self.unusable.append(Unusable(kind, name, reason))


def words_of(name: str) -> list[str]:
    """Return the words of the last part of a path, without those of splits; of an earlier part if none is left.

    >>> words_of("train/X"), words_of("images/test"), words_of("trainLabels"), words_of("y_val")
    (['x'], ['images'], ['labels'], ['y'])
    """
    for part in reversed(name.split("/")):
        words = [word.lower() for word in _WORD.findall(part)]
        if kept := [word for word in words if word not in {*SPLIT_OF, *_FILLERS}]:
            return kept
    return []


def split_of(name: str) -> frozenset[str]:
    """Return the splits that a path names.

    >>> sorted(split_of("training/images")), sorted(split_of("y_dev"))
    (['train'], ['val'])
    """
    return frozenset(SPLIT_OF[word] for word in map(str.lower, _WORD.findall(name)) if word in SPLIT_OF)


def in_another_split(name: str, image: str) -> bool:
    """Return whether a path names another split than that of the images."""
    return bool(split_of(image) and split_of(name)) and split_of(image).isdisjoint(split_of(name))


def role_rank(name: str, role: str) -> int:
    """Return 2 for a usual name of a role, 1 for a name with a word of one, otherwise 0."""
    words, usual = words_of(name), usual_names(role)
    if "_".join(words) in usual:
        return 2
    excluded = _MASKS | (usual_names(LABEL) if role == IMAGE else _MEASURES | usual_names(IMAGE))
    clear = (usual & {*words}) - _VAGUE
    return 1 if clear and not {*words} & (excluded - _VAGUE) else 0


def class_names_in(value: Any) -> tuple[str, ...] | None:
    """Return the class names in a list of texts, a mapping with numbers, or JSON of one of them; None for other values.

    >>> class_names_in(["cat", "dog"]), class_names_in('{"cat": 1, "dog": 0}'), class_names_in({0: "cat"})
    (('cat', 'dog'), ('dog', 'cat'), ('cat',))
    """
    if isinstance(value, (bytes, str)):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.ndim == 1 else None
    if isinstance(value, (list, tuple)):
        value = [text.decode() if isinstance(text, bytes) else text for text in value]
    return names_in(value) or None
