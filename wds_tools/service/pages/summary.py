"""What a dataset consists of, summed up over its indexes: samples by class, sizes of images, and bytes of fields.

Each index is summed up in the helper process, `summary_of`, and the results are added here. Values are counted in bins
that do not depend on the data, so that the sums over shards are exact: all numbers with two significant digits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import printable
from wds_tools.format.index import ABSENT, NO_LABEL, Index

EDGES = [0.0, *(float(f"{digits}e{power}") for power in range(-3, 15) for digits in range(10, 100))]
"""The lower ends of the bins; each bin ends where the next one begins, and the last one has no end."""

MAX_FIELDS = 200
"""Fields that are summed up. The others are only named in the manifest."""

WIDTH, HEIGHT, RATIO = "width", "height", "width / height"
"""What is counted of images, as a condition names it."""

_EDGES = np.array(EDGES)


@dataclass(slots=True)
class FieldSummary:
    """A field: the samples that have it, their bytes, the shortest and the longest value, and the bins of the sizes."""

    samples: int = 0
    bytes: int = 0
    shortest: int = 0
    longest: int = 0
    sizes: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Summary:
    """Sums over the shards counted so far.

    Attributes:
        labels: Samples by class number; None is for samples without a class.
        images: Samples by bin, for each of ``WIDTH``, ``HEIGHT`` and ``RATIO``; without samples that have no image.
        fields: The fields by name.
        shards: Number of shards that have been counted.
    """

    labels: Counter[int | None] = field(default_factory=Counter)
    images: dict[str, Counter[int]] = field(default_factory=dict)
    fields: dict[str, FieldSummary] = field(default_factory=dict)
    shards: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as values for JSON."""
        fields = {
            name: [sums.samples, sums.bytes, sums.shortest, sums.longest, list(sums.sizes.items())]
            for name, sums in self.fields.items()
        }
        images = {name: list(bins.items()) for name, bins in self.images.items()}
        return {"labels": list(self.labels.items()), "images": images, "fields": fields, "shards": self.shards}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Summary:
        """Return the sums that `to_dict` described."""
        fields = {
            name: FieldSummary(samples, size, shortest, longest, Counter(dict(bins)))
            for name, (samples, size, shortest, longest, bins) in values["fields"].items()
        }
        images = {name: Counter(dict(bins)) for name, bins in values["images"].items()}
        return cls(Counter(dict(values["labels"])), images, fields, values["shards"])

    def add(self, answer: dict[str, Any]) -> None:
        """Add what `summary_of` says about the next shard."""
        for label, count in answer["labels"]:
            self.labels[None if label == answer["none"] else label] += count
        for name, bins in answer["images"].items():
            self.images.setdefault(name, Counter()).update(dict(bins))
        for name, (samples, size, shortest, longest, bins) in answer["fields"]:
            if name not in self.fields and len(self.fields) >= MAX_FIELDS:
                continue
            sums = self.fields.setdefault(name, FieldSummary(shortest=shortest))
            sums.samples += samples
            sums.bytes += size
            sums.shortest, sums.longest = min(sums.shortest, shortest), max(sums.longest, longest)
            sums.sizes.update(dict(bins))
        self.shards += 1


def summary_of(index: Index) -> dict[str, Any]:
    """Return the sums over one index as values for JSON."""
    has_size = (index.width > 0) & (index.height > 0)
    width, height = index.width[has_size], index.height[has_size]
    images: dict[str, NDArray[Any]] = {WIDTH: width, HEIGHT: height, RATIO: width / height}
    fields = []
    for name, columns in list(index.fields.items())[:MAX_FIELDS]:
        sizes = columns.size[columns.offset != ABSENT]
        if len(sizes) and printable(name) == name:
            values = len(sizes), int(sizes.sum()), int(sizes.min()), int(sizes.max()), _bins(sizes)
            fields.append((name, values))
    return {
        "labels": _pairs(index.label),
        "none": NO_LABEL,
        "images": {name: _bins(values) for name, values in images.items()},
        "fields": fields,
    }


def _bins(values: NDArray[Any]) -> list[tuple[int, int]]:
    """Return the numbers of the bins that are not empty, and how many values each one has."""
    return _pairs(np.maximum(np.searchsorted(_EDGES, values, side="right") - 1, 0))


def _pairs(values: NDArray[Any]) -> list[tuple[int, int]]:
    numbers, counts = np.unique(values, return_counts=True)
    return list(zip(numbers.tolist(), counts.tolist(), strict=True))
