"""Lists that belong to the parts of an image, such as the class of each of its boxes: they are not labels of the image.

No I/O.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_OF_LABELS = re.compile("label|class|cls|categor|species|breed")  # another list of the same labels


class Lengths:
    """The lengths of the lists of a name in all rows.

    Attributes:
        are_nested: Whether the lists have lists or objects, such as boxes.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._counts = array("q")
        self.are_nested = False
        self.extend(values)

    def extend(self, values: Iterable[Any], start: int = 0) -> None:
        """Add the values of the next rows, which begin with row ``start``; rows that are left out have no list."""
        self._counts.extend([0] * (start - len(self._counts)))
        for value in values:
            count, is_nested = _length(value)
            self._counts.append(count)
            self.are_nested |= is_nested

    def of(self, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the length in each row, int64 [rows]: 1 for a single value, 0 for a missing one."""
        return np.array([*self._counts, *[0] * (rows - len(self._counts))], np.int64)


def _length(value: Any) -> tuple[int, bool]:
    """Return the length of a list, or of an object of equally long lists, and whether it has lists or objects."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return 1, False
    if isinstance(value, Mapping):
        counts = {len(item) for item in value.values() if isinstance(item, (list, tuple))}
        return (counts.pop(), True) if len(counts) == 1 else (1, False)
    if isinstance(value, (list, tuple)):
        return len(value), any(isinstance(item, (list, tuple, Mapping, np.ndarray)) for item in value)
    if isinstance(value, np.ndarray) and value.ndim:
        return value.shape[0], value.ndim > 1
    return int(value is not None and value != ""), False


def owner(values: Sequence[Any], others: Mapping[str, Lengths]) -> str | None:
    """Return the name of another list to whose entries labels belong; None if they are labels of the images.

    The other list has the same length in each row: lists of several lengths, or a list of boxes or points. It may also
    be flat, with the same number of values for each label. Rows of 0 and 1 with one length have a value for each class
    instead.

    >>> owner([[7, 3, 7], [3]], {"scores": Lengths([[0.5, 0.1, 0.2], [0.9]])}), owner([[7, 3], [3]], {})
    ('scores', None)
    """
    lengths = Lengths(values).of(len(values))
    several = set(lengths.tolist()) - {0}
    if not several or not any(map(_is_list, values)):
        return None
    have_one_length = len(set(lengths.tolist())) == 1
    if have_one_length and max(several) > 1 and {value for row in values for value in _numbers(row)} <= {0, 1}:
        return None
    for name, lists in others.items():
        counts = lists.of(len(values))
        is_same = len(counts) == len(lengths) and bool((counts == lengths).all())
        is_view = not lists.are_nested and _OF_LABELS.search(name.lower()) is not None
        if is_same and not is_view and (lists.are_nested or (not have_one_length and max(several) > 1)):
            return name
        ratios = {*(counts[lengths > 0] / lengths[lengths > 0]).tolist()} if len(counts) == len(lengths) else set()
        is_flat = len(ratios) == 1 and min(ratios) >= 2 and min(ratios).is_integer() and not counts[lengths == 0].any()
        if is_flat and len(set(lengths.tolist())) > 1 and max(several) > 1:
            return name
    return None


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, even if it is written as JSON."""
    return value.lstrip().startswith("[") if isinstance(value, str) else isinstance(value, (list, tuple, np.ndarray))


def _numbers(row: Any) -> list[float]:
    """Return the numbers in a list; [2], which is neither 0 nor 1, for values of another kind."""
    if isinstance(row, str):
        try:
            row = json.loads(row)
        except (ValueError, RecursionError):
            return [2]
    row = row.tolist() if isinstance(row, np.ndarray) else row
    are_numbers = isinstance(row, (list, tuple)) and all(isinstance(item, (int, float)) for item in row)
    return list(row) if are_numbers else [2]


def why_no_label(name: str, owner: str, part: str) -> str:
    """Return the note that a name has no labels of the images."""
    return (
        f"{part} {name!r} is not the label, because it has a value for each entry of {owner!r} in the same row: it is "
        f"packed as it is, with all values in order; pass --label {name} if these are labels of the whole image"
    )
