"""Keys of LMDB: an id, and perhaps a word before or after it. Values of several keys can be one record. No I/O.

Words are names, as in ``label-7`` and ``7_mask``, or the size of an image that is stored in several sizes, as in
``256-00001`` and ``512-00001``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from wds_tools.sources.inputs import path_text

# The words of keys. Any other word is the name of a further value of the record.
IMAGES = re.compile("images?|imgs?|rgb|jpe?g|png|webp|tiff?|photo|picture")
_IMAGE_FOLDERS = re.compile("(image|img)s?")
_SECOND_IMAGES = re.compile(
    "masks?|segm?|segmentation|depth|gt|target|labels?|lbl|alpha|edges?|normals?|flow|instance|semantic|annotation"
)
_SEPARATOR = re.compile(rb"[-_:./]")


class Pattern(NamedTuple):
    """What is before and after the id in a key, and the name that its value gets in the record."""

    name: str
    before: bytes = b""
    after: bytes = b""

    def key(self, id_: bytes) -> bytes:
        """Return the key for an id."""
        return self.before + id_ + self.after

    def fits(self, key: bytes) -> bool:
        """Return whether a key is of this pattern."""
        return key.startswith(self.before) and key.endswith(self.after)

    def id_of(self, key: bytes) -> bytes:
        """Return the id of a key of this pattern."""
        return key[len(self.before) : len(key) - len(self.after)]


_PLAIN = Pattern("image")


def patterns_of(key: bytes) -> Iterator[Pattern]:
    """Yield the ways in which a key can be a word and an id.

    >>> [(pattern.name, pattern.id_of(b"train_1_label")) for pattern in patterns_of(b"train_1_label")]
    [('train', b'1_label'), ('label', b'train_1')]
    """
    separators = list(_SEPARATOR.finditer(key))
    if separators and (word := key[: separators[0].start()]) and not word.isdigit() and key[separators[0].end() :]:
        yield Pattern(path_text(word).lower(), key[: separators[0].end()], b"")
    if separators and (word := key[separators[-1].end() :]) and not word.isdigit() and key[: separators[-1].start()]:
        yield Pattern(path_text(word).lower(), b"", key[separators[-1].start() :])


def image_pattern(key: bytes) -> Pattern:
    """Return the pattern of an image's key.

    >>> image_pattern(b"image-01").id_of(b"image-01"), image_pattern(b"7/img").id_of(b"7/img")
    (b'01', b'7')
    """
    for pattern in patterns_of(key):
        if (_IMAGE_FOLDERS if pattern.before.endswith(b"/") else IMAGES).fullmatch(pattern.name):
            return pattern._replace(name="image")
    return _PLAIN


def size_patterns(keys: Sequence[bytes], sides: Callable[[bytes], tuple[int, int]]) -> list[Pattern]:
    """Return the patterns of keys of images that are stored in several sizes; an empty list for other keys.

    All keys have a word whose last number is the width or the height of their image, and words have the same ids.

    Args:
        keys: Keys of images.
        sides: Returns the width and the height of the image of a key.

    >>> size_patterns([b"8-0001", b"16-0001"], lambda key: (8, 8) if key[:1] == b"8" else (16, 16))
    [Pattern(name='8', before=b'8-', after=b''), Pattern(name='16', before=b'16-', after=b'')]
    """
    for is_first in (True, False):
        sizes: dict[Pattern, int] = {}
        for key in keys:
            pattern = _around(key, is_first=is_first)
            if pattern not in sizes:
                *_, sizes[pattern] = (0, *map(int, re.findall("[0-9]+", pattern.name)))
                if sizes[pattern] not in sides(key):
                    break
        else:
            ids = {_around(key, is_first=is_first).id_of(key) for key in keys if len(sizes) > 1}
            if 0 < len(ids) < len(keys):
                return sorted(sizes, key=sizes.__getitem__)
    return []


def _around(key: bytes, *, is_first: bool) -> Pattern:
    """Return the pattern with what is before or after the last separator of a key, without a file extension."""
    cut = max(key.rfind(mark) for mark in (b"-", b"_", b":", b"/"))
    if is_first:
        return Pattern(path_text(key[: max(cut, 0)]).lower(), before=key[: cut + 1])
    return Pattern(path_text(key[cut + 1 :].partition(b".")[0]).lower(), after=key[max(cut, 0) :])


def grouped(
    images: Sequence[bytes], others: Iterable[bytes], sizes: Sequence[Pattern] = ()
) -> tuple[list[tuple[Pattern, bytes, list[Pattern]]], list[bytes]]:
    """Return (pattern, key, patterns of further values) of each record in the order of the keys, and all other keys.

    ``images`` are keys whose values are images, or records with images. If they are stored in several sizes, the first
    of ``sizes`` is that of the image, and images of the other sizes are further values.
    """
    chosen = [pattern._replace(name="image") for pattern in sizes[:1]]
    others = [*others, *(key for key in images if not all(pattern.fits(key) for pattern in chosen))]
    images = [key for key in images if all(pattern.fits(key) for pattern in chosen)]
    records: dict[bytes, tuple[Pattern, bytes]] = {}  # by id
    further: dict[bytes, list[Pattern]] = {}

    def is_joined(key: bytes, words: re.Pattern[str] | None = None) -> bool:
        """Add a value to the record that its key names, if there is one."""
        for pattern in (*(size for size in sizes if size.fits(key)), *patterns_of(key)):
            if pattern.id_of(key) in records and (words is None or words.fullmatch(pattern.name)):
                further.setdefault(pattern.id_of(key), []).append(pattern)
                return True
        return False

    for key in images:
        pattern = next(iter(chosen), None) or image_pattern(key)
        id_ = pattern.id_of(key)
        records[key if id_ in records else id_] = (_PLAIN if id_ in records else pattern, key)
    for key in images:
        if records.get(key) == (_PLAIN, key) and is_joined(key, _SECOND_IMAGES):
            del records[key]
    alone = [key for key in others if not is_joined(key)]
    joined = [(pattern, key, further.get(id_, [])) for id_, (pattern, key) in records.items()]
    return sorted(joined, key=lambda record: record[1]), alone
