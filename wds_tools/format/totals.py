"""Totals over indexes: samples with each field, range of image sizes, largest class number. No I/O.

The manifest records these totals. They are computed again to check a manifest, or if there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np

from wds_tools.errors import shortened
from wds_tools.format.index import ABSENT, Index
from wds_tools.format.manifest import ImageStats, Manifest


@dataclass(slots=True)
class Totals:
    """Totals over the indexes that were added.

    Attributes:
        images: Range of image sizes, None if no image size is known.
        last_label: Largest class number, -1 without labels.
    """

    fields: Counter[str] = field(default_factory=Counter)
    images: ImageStats | None = None
    last_label: int = -1

    @classmethod
    def of(cls, index: Index) -> Totals:
        """Return the totals of one shard."""
        return cls(Counter(count_fields(index)), image_stats(index), int(index.label.max(initial=-1)))

    def add(self, other: Totals) -> None:
        """Add the totals of further shards."""
        self.fields.update(other.fields)
        self.images = merge_stats([self.images, other.images])
        self.last_label = max(self.last_label, other.last_label)

    def contradictions(self, manifest: Manifest) -> list[str]:
        """Return a sentence for each total that a manifest records differently."""
        contradictions = []
        if manifest.fields != self.fields:
            counts = (shortened(str(dict(sorted(part.items()))), 1000) for part in (manifest.fields, self.fields))
            contradictions.append("it records the field counts {}, but its indexes give {}".format(*counts))
        if manifest.images is not None and manifest.images != self.images:
            own = asdict(self.images) if self.images else None
            contradictions.append(f"it records the image sizes {asdict(manifest.images)}, but its indexes give {own}")
        return contradictions

    def unnamed_classes(self, manifest: Manifest) -> str | None:
        """Return a sentence if a manifest names classes, but not all; None otherwise."""
        if not manifest.classes or self.last_label < len(manifest.classes):
            return None
        return f"it names {len(manifest.classes)} classes, but samples have class numbers up to {self.last_label}"


def count_fields(index: Index) -> dict[str, int]:
    """Return, for each field of a shard, the number of samples that have it."""
    return {name: int((columns.offset != ABSENT).sum()) for name, columns in index.fields.items()}


def image_stats(index: Index) -> ImageStats | None:
    """Return the range of the image sizes of a shard, None if no image size is known."""
    has_size = (index.width > 0) & (index.height > 0)
    if not has_size.any():
        return None
    width, height = index.width[has_size], index.height[has_size]
    return ImageStats(int(np.min(width)), int(np.max(width)), int(np.min(height)), int(np.max(height)))


def merge_stats(parts: Iterable[ImageStats | None]) -> ImageStats | None:
    """Return the range of image sizes over all shards, None if no image size is known."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    return ImageStats(
        min(part.min_width for part in given),
        max(part.max_width for part in given),
        min(part.min_height for part in given),
        max(part.max_height for part in given),
    )
