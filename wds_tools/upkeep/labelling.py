"""Labels that are names, collected while shards are indexed: they get numbers when all names are known."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ShardError
from wds_tools.format.index import NO_LABEL, Index
from wds_tools.format.label_source import LabelSource, class_folders
from wds_tools.sources.labels import quoted_list
from wds_tools.wording import counted

MAX_NAMES = 1_000_000
"""Most names of classes. If there are more, they are probably not classes, but captions, for example."""

_NONE = -1  # code of a sample without a name
_log = logging.getLogger("wds_tools")


class LabelNames:
    """The names of the labels of several shards.

    Args:
        source: Where labels are.
        is_required: Whether the user asked for labels with ``--label``. If True, unusable labels raise an error; if
            False, they only cause a warning.
    """

    def __init__(self, source: LabelSource, *, is_required: bool) -> None:
        self._source = source
        self._is_required = is_required
        self._codes: dict[str, int] = {}
        self._of_shard: dict[str, tuple[int, array[int], array[int]]] = {}  # samples, rows, codes
        self._highest = -1

    def add(self, shard: str, index: Index, names: Mapping[int, str]) -> None:
        """Add the names of a shard by row.

        Args:
            shard: Path of the shard.
            index: Its index.
            names: Names by row.
        """
        self._highest = max(self._highest, int(index.label.max(initial=-1)))
        if not names or len(self._codes) > MAX_NAMES:
            return
        codes = array("i", (self._codes.setdefault(name, len(self._codes)) for name in names.values()))
        self._of_shard[shard] = len(index), array("q", names), codes

    @property
    def has_labels(self) -> bool:
        """Whether any sample has a label, a number or a name."""
        return bool(self._codes) or self._highest >= 0

    @property
    def is_used(self) -> bool:
        """Whether there are names."""
        return bool(self._codes)

    def classes(self, known: Iterable[str], *, closed: bool) -> tuple[str, ...]:
        """Return the names of classes by number: the known ones, then new ones in sorted order.

        Args:
            known: Class names that have numbers.
            closed: Whether there may be no others.

        Raises:
            ShardError: A name is not among the known ones, or there are both names and numbers, or too many names.
        """
        known = tuple(known)
        if not self._is_usable():
            self._codes.clear()
            self._of_shard.clear()
        if closed and self._highest >= len(known):
            raise ShardError(f"there is label {self._highest}, but only {counted(len(known), 'class name')}: name all")
        found = set(self._names().values())
        new = sorted(found - set(known), key=lambda name: name.encode("utf-8", "surrogateescape"))
        if new and closed:
            raise ShardError(f"class {new[0]!r} is not among the given classes ({quoted_list(known)}): add it to them")
        return (*known, *new)

    def numbers(self, shard: str, classes: Iterable[str]) -> NDArray[np.int64] | None:
        """Return the class number of each sample of a shard, int64 [n]; None if it has no names."""
        if shard not in self._of_shard:
            return None
        samples, rows, codes = self._of_shard[shard]
        number_of = {name: number for number, name in enumerate(classes)}
        by_code = np.array([number_of[name] for name in self._names().values()], np.int64)
        label = np.full(samples, NO_LABEL, np.int64)
        label[np.asarray(rows)] = by_code[np.asarray(codes)]
        return label

    def _names(self) -> dict[str, str]:
        """Return each value that was found, in the order of the codes, with its class name."""
        if self._source.field is None:
            return class_folders(self._codes)
        return {value: value for value in self._codes}

    def _is_usable(self) -> bool:
        """Return whether the names can be numbered."""
        if not self._codes:
            return True
        if self._highest >= 0:
            reason = f"labels are names, such as {next(iter(self._codes))[:40]!r}, and also numbers"
        elif len(self._codes) > MAX_NAMES:
            reason = f"there are more than {MAX_NAMES:,} different labels"
        else:
            return True
        if self._is_required:
            raise ShardError(f"{self._source}: {reason}: choose another label")
        _log.warning("field %s: %s; samples with names have no label", self._source, reason)
        return False
