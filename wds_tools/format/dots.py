"""File names with several dots, which WebDataset's naming rule may merge into one sample.

WebDataset splits a name at its first dot. So ``photo.2024.01.jpg`` and ``photo.2024.02.jpg`` become
one sample with key ``photo`` and fields ``2024.01.jpg`` and ``2024.02.jpg``. The fields of real
samples, such as ``left.jpg`` and ``seg.png``, occur in many samples. Parts of keys do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from wds_tools.format.index import ABSENT, Index
from wds_tools.format.sample import CONVERTED_EXTENSIONS, STORED_EXTENSIONS

_IMAGES = (*STORED_EXTENSIONS, *CONVERTED_EXTENSIONS)


def split_at_last_dot(name: str) -> tuple[str, str] | None:
    """Split a member's name into (key, field) at the last dot; return None if it has no dot or is hidden.

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
    """Counts image fields whose names contain a dot, such as ``2024.01.jpg``.

    Attributes:
        fields: Field name to the number of samples that have the field.
        samples: Number of samples with at least one such field.
        example: Key and two image names of the first sample with several such fields, or None.
        most: Largest number of such fields in one sample.
    """

    fields: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    example: tuple[str, str, str] | None = None
    most: int = 0

    def add(self, key: str, fields: Iterable[str]) -> None:
        """Count the fields of one sample."""
        dotted = [name for name in fields if "." in name and name.endswith(_IMAGES)]
        if not dotted:
            return
        self.samples += 1
        self.fields.update(dotted)
        self.most = max(self.most, len(dotted))
        if self.example is None and len(dotted) > 1:
            self.example = key, f"{key}.{dotted[0]}", f"{key}.{dotted[1]}"

    def add_index(self, index: Index) -> None:
        """Count the fields of all samples of a shard."""
        present = {name: columns.offset != ABSENT for name, columns in index.fields.items() if "." in name}
        if not present:
            return
        for row in np.flatnonzero(np.any(list(present.values()), axis=0)).tolist():
            self.add(index.keys[row], [name for name, rows in present.items() if rows[row]])

    @property
    def are_mostly_unique(self) -> bool:
        """Whether most of the fields occur only once, as parts of keys do; a few samples are enough to tell."""
        return len(self.fields) > 1 and self.fields.total() < 2 * len(self.fields)

    @property
    def belong_to_keys(self) -> bool:
        """Whether the dots seem to belong to keys: more fields than samples, or few repeated fields."""
        return len(self.fields) > max(1, self.samples) or self.are_mostly_unique

    def __str__(self) -> str:
        first, *_ = self.fields
        if self.example is None:
            return f"{first!r} would become the name of a field, because WebDataset splits a name at its first dot"
        key, first_image, second_image = self.example
        return (
            f"images such as {first_image!r} and {second_image!r} would become one sample, {key!r} "
            f"(up to {self.most:,} images in one), because WebDataset splits a name at its first dot"
        )
