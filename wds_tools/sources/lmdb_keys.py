"""Keys of an LMDB database: which of them belong to one record. Functions of the keys alone.

A key is an id, and perhaps a word before or after it: ``image-000000001`` and ``label-000000001``, ``7`` and
``7_label``, ``cat/1.jpg`` and ``cat/1.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from wds_tools.sources.layouts import is_split_name
from wds_tools.sources.trees import path_bytes, path_text

_IMAGE = rb"images?|imgs?|rgb|jpe?g|png|webp|tiff?|photo|picture"
_PREFIX = re.compile(rb"((?:" + _IMAGE + rb")[-_:.]|(?:images?|imgs?)/)(.+)", re.IGNORECASE | re.DOTALL)
_SUFFIX = re.compile(rb"(.+)([-_:./](?:" + _IMAGE + rb"))", re.IGNORECASE | re.DOTALL)
_SEPARATOR = re.compile(rb"[-_:./]")
_SECOND_IMAGES = frozenset(
    b"mask masks seg segm segmentation depth gt target label labels lbl alpha edge edges normal normals flow instance "
    b"semantic annotation".split()
)
META = frozenset(b"__len__ __keys__ __meta__ __version__ num-samples num_samples length len keys".split())
"""Keys that describe the database, not a record of it."""

COUNTS = (b"num-samples", b"num_samples")
"""Keys with the number of samples as text."""


class Pattern(NamedTuple):
    """What is before and after the id in a key, and the name that its value gets in the record."""

    name: str
    before: bytes = b""
    after: bytes = b""

    def key(self, id_: bytes) -> bytes:
        """Return the key for an id."""
        return self.before + id_ + self.after

    def id_of(self, key: bytes) -> bytes:
        """Return the id of a key of this pattern."""
        return key[len(self.before) : len(key) - len(self.after)]


PLAIN = Pattern("image")


class Grouped(NamedTuple):
    """The keys of a database as records.

    Attributes:
        records: (pattern, key, patterns of further values) of each record, in the order of the keys.
        alone: Keys that do not belong to a record with an image.
    """

    records: list[tuple[Pattern, bytes, tuple[Pattern, ...]]]
    alone: list[bytes]


def grouped(images: Iterable[bytes], others: Iterable[bytes]) -> Grouped:
    """Return which keys belong together.

    Args:
        images: Keys whose values are images, or records with images.
        others: All other keys, except those that describe the database.
    """
    records: dict[bytes, tuple[Pattern, bytes]] = {}  # by id
    further, alone = dict[bytes, list[Pattern]](), []
    images = list(images)
    for key in images:
        pattern = image_pattern(key)
        id_ = pattern.id_of(key)
        records[key if id_ in records else id_] = (PLAIN if id_ in records else pattern, key)
    for key in images:
        pattern = next((one for one in patterns_of(key) if _is_second_image(one, key, records)), PLAIN)
        if pattern is not PLAIN and records.get(key) == (PLAIN, key):
            further.setdefault(pattern.id_of(key), []).append(pattern)
            del records[key]
    for key in others:
        pattern = next((one for one in patterns_of(key) if one.id_of(key) in records), PLAIN)
        if pattern is PLAIN:
            alone.append(key)
        else:
            further.setdefault(pattern.id_of(key), []).append(pattern)
    found = [(pattern, key, tuple(further.get(id_, ()))) for id_, (pattern, key) in records.items()]
    return Grouped(sorted(found, key=lambda record: record[1]), alone)


def image_pattern(key: bytes) -> Pattern:
    """Return the pattern of an image's key.

    >>> image_pattern(b"image-01").id_of(b"image-01"), image_pattern(b"7/img").id_of(b"7/img")
    (b'01', b'7')
    """
    if found := _PREFIX.fullmatch(key):
        return Pattern("image", found[1], b"")
    if found := _SUFFIX.fullmatch(key):
        return Pattern("image", b"", found[2])
    return PLAIN


def patterns_of(key: bytes) -> Iterator[Pattern]:
    """Yield the ways in which a key can be a word and an id.

    >>> [(pattern.name, pattern.id_of(b"train_1_label")) for pattern in patterns_of(b"train_1_label")]
    [('train', b'1_label'), ('label', b'train_1')]
    """
    found = list(_SEPARATOR.finditer(key))
    if not found:
        return
    first, last = found[0], found[-1]
    for word, pattern in (
        (key[: first.start()], Pattern(path_text(key[: first.start()]).lower(), key[: first.end()], b"")),
        (key[last.end() :], Pattern(path_text(key[last.end() :]).lower(), b"", key[last.start() :])),
    ):
        if word and not word.isdigit():
            yield pattern


def _is_second_image(pattern: Pattern, key: bytes, records: Container[bytes]) -> bool:
    return path_bytes(pattern.name) in _SECOND_IMAGES and pattern.id_of(key) in records


def first_split(key: bytes) -> str | None:
    """Return the first folder of a key if it is named like a split.

    >>> first_split(b"train/cat/1"), first_split(b"images/val/2"), first_split(b"cat/1")
    ('train', 'val', None)
    """
    folder, slash, _ = image_pattern(key).id_of(key).partition(b"/")
    return path_text(folder) if slash and is_split_name(path_text(folder)) else None
