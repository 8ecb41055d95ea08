"""Keys with dots: WebDataset splits a name at its first dot, which makes one sample of many pictures of such names.

``photo.2024.01.jpg`` and ``photo.2024.02.jpg`` become key ``photo`` with fields ``2024.01.jpg`` and ``2024.02.jpg``.
Fields of real samples, such as ``left.jpg`` and ``seg.png``, come again in sample after sample; parts of keys do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from wds_tools.format.index import ABSENT, Index

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def split_at_last_dot(name: str) -> tuple[str, str] | None:
    """Split a member's name into (key, field) at the last dot; return None for a name that has none or is hidden.

    >>> split_at_last_dot("a/photo.2024.01.JPG"), split_at_last_dot("a.b/.hidden")
    (('a/photo.2024.01', 'jpg'), None)
    """
    folder, slash, base = name.rpartition("/")
    stem, _, field_name = base.rpartition(".")
    if not stem or stem.startswith(".") or not field_name:
        return None
    return folder + slash + stem, field_name.lower()


@dataclass(slots=True)
class Dots:
    """Counts the pictures in fields whose names have a dot, such as ``2024.01.jpg``.

    Attributes:
        fields: Name of such a field to the number of samples that have it.
        samples: Samples with one or more of them.
        example: Of the first sample with several, its key and the names of two of its pictures.
        most: The most pictures of such a kind in one sample.
    """

    fields: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    example: tuple[str, str, str] | None = None
    most: int = 0

    def add(self, key: str, fields: Iterable[str]) -> None:
        """Count the fields of a sample."""
        found = [name for name in fields if "." in name and name.endswith(_IMAGES)]
        if not found:
            return
        self.samples += 1
        self.fields.update(found)
        self.most = max(self.most, len(found))
        if self.example is None and len(found) > 1:
            self.example = key, f"{key}.{found[0]}", f"{key}.{found[1]}"

    def add_index(self, index: Index) -> None:
        """Count the fields of all samples of a shard."""
        there = {name: part.offset != ABSENT for name, part in index.fields.items() if "." in name}
        if not there:
            return
        for row in np.flatnonzero(np.any(list(there.values()), axis=0)).tolist():
            self.add(index.keys[row], [name for name, rows in there.items() if rows[row]])

    @property
    def rarely_again(self) -> bool:
        """Whether most of the fields come once, as parts of keys do: this shows in the first members of a shard."""
        return len(self.fields) > 1 and self.fields.total() < 2 * len(self.fields)

    @property
    def belong_to_keys(self) -> bool:
        """Whether the dots of a whole dataset look like those of keys: more fields than samples, or few come again."""
        return len(self.fields) > max(1, self.samples) or self.rarely_again

    def __str__(self) -> str:
        first, *_ = self.fields
        if self.example is None:
            return f"{first!r} would become the name of a field, because WebDataset splits a name at its first dot"
        key, one, other = self.example
        return (
            f"pictures such as {one!r} and {other!r} would become one sample, {key!r} (up to {self.most:,} pictures in "
            "one), because WebDataset splits a name at its first dot"
        )
