"""One list of classes for several datasets: united by name, with the new number of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.format.index import NO_LABEL
from wds_tools.reading.shardset import ShardSet


@dataclass(frozen=True, slots=True)
class ClassUnion:
    """The classes of several datasets.

    Attributes:
        names: Class names by number: those of the first dataset with labels, then the new names of each other one.
        numbers: For each dataset, int64 [classes], the new number of each of its classes; None if they keep theirs.
    """

    names: tuple[str, ...]
    numbers: tuple[NDArray[np.int64] | None, ...]

    @property
    def is_changed(self) -> bool:
        """Whether a class has another number than before."""
        return any(numbers is not None for numbers in self.numbers)

    @property
    def digest(self) -> str:
        """Hash of the new numbers."""
        return xxhash.xxh3_128_hexdigest(b"".join(b"-" if n is None else n.tobytes() for n in self.numbers))

    def relabelled(self, dataset: int, label: NDArray[np.int64], *, name: str) -> NDArray[np.int64] | None:
        """Return the new labels of a shard, int64 [n]; None if they stay the same.

        Args:
            dataset: Number of the dataset.
            label: int64 [n], the labels of the shard.
            name: Path of the shard, for error messages.

        Raises:
            OptionError: A label has no class name.
        """
        numbers = self.numbers[dataset]
        if numbers is None:
            return None
        known = label != NO_LABEL
        if known.any() and not 0 <= int(label[known].min()) <= int(label[known].max()) < len(numbers):
            raise OptionError(
                f"{name} has labels from {label[known].min()} to {label[known].max()}, but its manifest names "
                f"{len(numbers)} classes, so the others cannot be matched by name: name all in the manifest, then "
                "`wds-tools reseal`"
            )
        return np.where(known, numbers[np.where(known, label, 0)], label)


def unite_classes(sets: Sequence[ShardSet]) -> ClassUnion:
    """Return one list of classes for all datasets.

    If one list is the beginning of every other, nothing changes: the longest list is taken.

    Raises:
        OptionError: Labels without class names beside class names, or a list that has a name twice.
    """
    labelled = [shards for shards in sets if shards.manifest.has_labels or shards.manifest.classes]
    unchanged = ClassUnion((), (None,) * len(sets))
    if not any(shards.manifest.classes for shards in labelled):
        return unchanged
    for shards in labelled:
        if not shards.manifest.classes:
            other = next(shards for shards in labelled if shards.manifest.classes)
            raise OptionError(
                f"{shards.name} has labels without class names, {other.name} names {len(other.manifest.classes)} "
                "classes, so they cannot be matched by name: add the names to `classes` in its manifest.json, then run "
                "`wds-tools reseal`"
            )
    longest = max((shards.manifest.classes for shards in labelled), key=len)
    if all(shards.manifest.classes == longest[: len(shards.manifest.classes)] for shards in labelled):
        return ClassUnion(longest, unchanged.numbers)
    for shards in labelled:
        _refuse_repeated(shards)
    union = list(dict.fromkeys(name for shards in labelled for name in shards.manifest.classes))
    number_of = {name: number for number, name in enumerate(union)}
    numbers = []
    for shards in sets:
        new = np.array([number_of[name] for name in shards.manifest.classes], np.int64)
        numbers.append(None if np.array_equal(new, np.arange(len(new))) else new)
    return ClassUnion(tuple(union), tuple(numbers))


def _refuse_repeated(shards: ShardSet) -> None:
    names = shards.manifest.classes
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(
            f"{shards.name} has class {twice!r} twice, so classes cannot be matched by name: rename one of them in its "
            "manifest.json, then run `wds-tools reseal`"
        )
