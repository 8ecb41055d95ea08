"""Samples, keys and fields: WebDataset's naming rule, and the named tuples that the loader yields.

The rule: a member ``dir/name.a.b`` is the field ``a.b`` of the sample with key ``dir/name``. The
name is split at the first dot of its last path component
(https://github.com/webdataset/webdataset).
"""

from __future__ import annotations

import keyword
import re
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from wds_tools.errors import OptionError

IMAGE_FIELDS = ("jpg", "png", "webp", "jpeg", "tif", "tiff", "gif", "avif", "npy")
"""Fields that may hold the image of a sample, in order of preference.

``npy`` counts only if it is uint8 [height, width, 3].
"""

STORED_EXTENSIONS = tuple(f".{name}" for name in IMAGE_FIELDS if name != "npy")
"""Extensions of images that are packed as they are, or made crop-ready."""

CONVERTED_EXTENSIONS = (".bmp", ".ppm", ".pgm")
"""Extensions of images that become PNG when they are packed. Loaders do not decode them."""

_MASK_WORDS = frozenset(
    ("mask", "masks", "seg", "segmentation", "instance", "instances", "panoptic", "semantic", "depth")
)


@dataclass(slots=True)
class Sample:
    """One training example in its stored form.

    Attributes:
        fields: Field name to encoded bytes, in the order in which they are written.
    """

    key: str
    fields: dict[str, bytes] = field(default_factory=dict)


def is_mask_name(name: str) -> bool:
    """Return whether a field holds a mask or other numbers per pixel by its name.

    >>> is_mask_name("mask.png"), is_mask_name("left_instance_ids.npy"), is_mask_name("jpg"), is_mask_name("mask.json")
    (True, True, False, False)
    """
    stem, _, extension = name.lower().rpartition(".")
    return extension in IMAGE_FIELDS and not _MASK_WORDS.isdisjoint([stem, *stem.replace("_", ".").split(".")])


def shows_mask(name: str) -> bool:
    """Return whether a field holds class numbers or numbers of objects by its name.

    >>> shows_mask("mask.png"), shows_mask("depth.png"), shows_mask("jpg")
    (True, False, False)
    """
    return is_mask_name(name) and "depth" not in name


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into (key, field); return None for a name without a key or a field.

    >>> split_name("train/0001.seg.png")
    ('train/0001', 'seg.png')
    >>> split_name("README") is None, split_name("a/.hidden.jpg") is None
    (True, True)
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, field_name = base.partition(".")
    if not stem or not dot or not field_name:
        return None
    return folder + slash + stem, field_name.lower()


@lru_cache(maxsize=1024)
def numbered_names(names: tuple[str, ...], pattern: str) -> tuple[str, ...]:
    """Return the names that match a pattern, in the order of their numbers.

    >>> numbered_names(("txt", "frame10.jpg", "frame9.jpg", "thumb.jpg"), "frame*.jpg")
    ('frame9.jpg', 'frame10.jpg')
    """
    expression = re.compile(re.escape(pattern).replace(r"\*", "([0-9]+)"))
    numbers = {name: int(match[1]) for name in names if (match := expression.fullmatch(name))}
    return tuple(sorted(numbers, key=lambda name: (numbers[name], name)))


def attribute_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Turn field names into the attribute names of a batch.

    >>> attribute_names(("image", "__key__", "mask.png"))
    ('image', 'key', 'mask_png')
    """
    names = []
    for name in fields:
        word = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_")
        if not word or word[0].isdigit() or keyword.iskeyword(word):
            word = f"field_{word}"
        names.append(word)
    if len(set(names)) < len(names):
        raise OptionError(f"fields={fields!r} do not have distinct attribute names; list each field once")
    return tuple(names)


@lru_cache(maxsize=64)
def record_type(fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the named tuple type for these fields, used for one sample and for a batch.

    Libraries that transform a batch rebuild it from new values. Some, such as torch, detect a named
    tuple and call ``type(batch)(*values)``. Others, such as the Trainer of Hugging Face, call
    ``type(batch)(generator)``, as for a plain tuple. Both calls work. For a batch of one field, a
    single argument is its value unless it is an iterator, which is never a value.

    The type is created at run time, so pickle cannot find it by name in another process. A value is
    therefore pickled together with the field names.
    """
    names = attribute_names(fields)
    base = namedtuple("Batch", names)  # type: ignore[misc]

    class Batch(base):
        __slots__ = ()

        def __new__(cls, /, *values: Any, **named: Any) -> Any:
            if len(values) == 1 and not named and (len(names) > 1 or isinstance(values[0], Iterator)):
                return cls._make(values[0])
            return super().__new__(cls, *values, **named)

        def __reduce__(self) -> tuple[Any, ...]:
            return make_record, (fields, tuple(self))

    Batch.__doc__ = f"Values of the fields {', '.join(fields)}."
    return Batch


def make_record(fields: tuple[str, ...], values: Iterable[Any]) -> Any:
    """Return ``values``, one per field, as the named tuple for ``fields``."""
    return record_type(fields)._make(values)  # type: ignore[attr-defined]
