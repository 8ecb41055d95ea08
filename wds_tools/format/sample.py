"""Samples, keys and fields: WebDataset's naming rule, and the named tuples that the loader yields.

Source of the rule: a member ``dir/name.a.b`` belongs to the sample with key ``dir/name`` as its field ``a.b``:
the split is at the first dot of the last path component (https://github.com/webdataset/webdataset).
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from wds_tools.errors import OptionError

IMAGE_FIELDS = ("jpg", "png", "webp", "jpeg", "npy")
"""Fields that hold a sample's image, by its true type; ``npy`` only if it is uint8 [height, width, 3]."""


@dataclass(slots=True)
class Sample:
    """One training example as it is stored.

    Attributes:
        key: Unique within its dataset.
        fields: Field name to encoded bytes, in the order in which they are written.
    """

    key: str
    fields: dict[str, bytes] = field(default_factory=dict)


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into (key, field), or return None for a name that WebDataset ignores.

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


def attribute_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Turn field names into the names of a batch's attributes.

    >>> attribute_names(("image", "__key__", "mask.png"))
    ('image', 'key', 'mask_png')

    Raises:
        OptionError: Two fields would share one attribute.
    """
    names = []
    for name in fields:
        word = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_")
        if not word or word[0].isdigit() or keyword.iskeyword(word):
            word = f"field_{word}"
        names.append(word)
    if len(set(names)) < len(names):
        raise OptionError(f"fields={fields!r} do not have distinct names: each field may be named once")
    return tuple(names)


@lru_cache(maxsize=64)
def record_type(fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the named tuple for these fields: of one sample, and of a batch of them.

    Libraries that walk through a batch build it again from new values. Those that look for named tuples, such as
    torch, call ``type(batch)(*values)``; the others, such as the Trainer of Hugging Face, call
    ``type(batch)(generator)``, as for a plain tuple. Both work. One value alone is what a batch of one field takes,
    so such a batch is built again only from an iterator, which is never a value.

    The type is made at run time, so pickle could not find it by name in another process:
    its values are pickled with the field names instead.
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
    """Return ``values`` as the named tuple of ``fields``."""
    return record_type(fields)._make(values)  # type: ignore[attr-defined]
