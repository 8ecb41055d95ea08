"""Samples with several labels: what counts as a list, and how long the list of each sample is. No I/O."""

from __future__ import annotations

import ast
import json
import re
from array import array
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import LabelError

_BYTES = re.compile(r"b'[^']*'|b\"[^\"]*\"")  # as Python shows bytes

LABELS = "labels.json"
"""The field of samples with several labels: a JSON list of class numbers."""

_NO_LIST = -1
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.0*)?")
_COMMA_DECIMAL = re.compile(r"[+-]?[0-9]+,0+")
_SEPARATORS = (" ", ",", ";", "|")  # that texts with several labels usually have


class Form(NamedTuple):
    """What the labels of a source are.

    Attributes:
        is_several: Whether a sample may have several labels.
        width: Number of classes, if values are lists with 0 or 1 for each class; 0 if they are labels, or lists of
            labels. Lists in which a single value is 1 are one label.
    """

    is_several: bool = False
    width: int = 0


def items_of(value: Any, separator: str | None, *, as_text: bool = False) -> list[Any] | None:
    """Return the labels of a sample that has a list of them, otherwise None.

    >>> items_of([3, 1], None), items_of('["cat", "dog"]', None), items_of("['cat']", None), items_of("cat, dog", ",")
    ([3, 1], ['cat', 'dog'], ['cat'], ['cat', 'dog'])
    >>> items_of("cat dog", None), items_of("", " ")
    (None, None)
    """
    if isinstance(value, str):
        text = value.strip()
        if separator is not None:
            return [part.strip() for part in text.split(separator) if part.strip()] or None
        return None if as_text or not (text.startswith("[") and text.endswith("]")) else _list_in(text)
    if isinstance(value, (list, set, frozenset)) or type(value) is tuple:
        return list(value) if isinstance(value, (list, tuple)) else sorted(value, key=repr)
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1:
        return list(value.tolist())
    return None


def _list_in(text: str) -> list[Any]:
    """Return the list that a text represents; pandas writes lists to CSV as Python does."""
    for read in (json.loads, ast.literal_eval):
        try:
            items = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(items, list):
            return items
    raise LabelError(
        f"label {text[:40]!r} is not a list in the form of JSON or Python: correct it, or pass --label-type name "
        "(label_type='name') if it is the name of a class"
    )


def several_in_an_index(place: str) -> str:
    """Return the text of the error that a sample has several labels at a place, where there can be only one."""
    field, _, path = place.partition(":")
    loaded = f"{field!r}{f', path={path!r}' if path else ''}"
    return (
        f"a sample has several labels in {place!r}, and an index has one for each sample: choose another --label, and "
        f"load these with wds_tools.MultiHot({loaded}, classes=...); or write the samples again, with "
        f"`wds-tools reshard --label {place}`"
    )


class Lists:
    """Which samples have a list of labels, and how long it is."""

    def __init__(self) -> None:
        self._lengths = array("q")  # of each sample, once there is a list; _NO_LIST for a single value
        self._single = 0  # samples before
        self.has_lists = False

    def add(self, length: int | None, count: int = 1) -> None:
        """Add the next samples: the length of the list of each, None for a single value."""
        if length is None and not self.has_lists:
            self._single += count
            return
        self.has_lists = True
        self._lengths.extend([_NO_LIST if length is None else length] * count)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of the list of each sample, int64 [samples]; -1 for a single value."""
        return np.concatenate([np.full(self._single, _NO_LIST, np.int64), np.array(self._lengths, np.int64)])

    @property
    def common_length(self) -> int:
        """The length that all lists have; 0 if they differ."""
        lengths = np.unique(self.lengths[self.lengths != _NO_LIST])
        return int(lengths[0]) if len(lengths) == 1 else 0

    def are_in_lists(self) -> NDArray[np.bool_]:
        """Return for each value of all samples whether it is in a list: bool [values]."""
        lengths = self.lengths
        return np.repeat(lengths != _NO_LIST, np.where(lengths == _NO_LIST, 1, lengths))

    def split(self, numbers: NDArray[np.int64], missing: int) -> tuple[list[tuple[int, ...] | None], int, int]:
        """Return the class numbers of each sample, each once.

        Also return how many samples name a class several times, and how many values are missing in lists with others.
        """
        rows: list[tuple[int, ...] | None] = []
        start = repeated = lost = 0
        values = numbers.tolist()
        for length in self.lengths.tolist():
            stop = start + max(length, 0) + (length == _NO_LIST)
            labels = [number for number in values[start:stop] if number != missing]
            lost += length - len(labels) if labels and length != _NO_LIST else 0
            different = tuple(dict.fromkeys(labels))
            repeated += len(different) < len(labels)
            rows.append(None if length and not labels else different)  # an empty list belongs to no class
            start = stop
        return rows, repeated, lost


def why_several(texts: Collection[str]) -> str | None:
    """Return that texts probably mean several labels, and what to do; None if they do not.

    An example is "cat dog" where there is "cat", or if most texts have the same separator between few words.

    >>> why_several({"cat", "dog", "a fig"}) is None, why_several({"a;b", "b;c", "a;c"})[:37]
    (True, "labels such as 'a;b', 'a;c', made of ")
    >>> why_several({"scab", "scab;rust"})[:58], why_several({"bear", "polar bear"}) is None
    ("the label 'scab;rust', and its part 'scab' is a label too:", True)
    """
    if texts and all(map(_COMMA_DECIMAL.fullmatch, texts)):
        shown = ", ".join(map(repr, sorted(texts)[:2]))
        return (
            f"labels such as {shown}, which are whole numbers with a decimal comma: write them without it, such as "
            f"{min(texts).partition(',')[0]!r}, or pass --label-separator ',' (label_separator=',') if they are several"
        )
    if lines := min((text for text in texts if len(text.splitlines()) > 1), default=None):
        return (
            f"the label {lines[:40]!r}, which has several lines: pass --label-separator $'\\n' (label_separator='\\n') "
            "if each line is a label, or --label-type name (label_type='name') if it is the name of a class"
        )
    for text in sorted(texts):
        for separator in _SEPARATORS:
            parts = [part.strip() for part in text.split(separator)]
            labels = [part for part in dict.fromkeys(parts) if part in texts and part != text]
            is_clear = separator != " " or len(labels) == len(parts)  # "polar bear" next to "bear" is a name
            if labels and is_clear:
                are = "parts {} are labels" if len(labels) > 1 else "part {} is a label"
                return (
                    f"the label {text!r}, and its {are.format(', '.join(map(repr, labels[:3])))} too: pass "
                    f"--label-separator {separator!r} (label_separator={separator!r}) if it means several labels, "
                    "or --label-type name (label_type='name') if it is the name of a class"
                )
    for separator in _SEPARATORS:
        words = parts_joined_by(texts, separator)
        if words and (separator != " " or _are_numbers(words)):
            return (
                f"labels such as {', '.join(map(repr, sorted(texts)[:2]))}, made of {len(words)} texts with "
                f"{separator!r} between them: pass --label-separator {separator!r} (label_separator={separator!r}) if "
                "they mean several labels, or --label-type name (label_type='name') if they are names of classes"
            )
    return None


def parts_joined_by(texts: Collection[str], separator: str) -> set[str]:
    """Return the parts of texts that probably mean several labels: most texts have the separator, and few parts.

    If all parts are numbers, and some texts are one number, a single text with the separator is enough.
    """
    joined = [parts for text in texts if len(parts := [piece.strip() for piece in text.split(separator)]) > 1]
    different = {part for parts in joined for part in parts}
    is_most = len(joined) > 1 and 2 * len(joined) > len(texts)
    are_few = len(different) <= len(texts) or _are_numbers(different)
    single = [text for text in texts if separator not in text]
    are_mixed = bool(joined and single) and _are_numbers(different) and _are_numbers(single)
    return different if (is_most and are_few) or are_mixed else set()


def _are_numbers(texts: Collection[str]) -> bool:
    return all(map(_WHOLE.fullmatch, texts))


def without_prefix(values: Sequence[Any]) -> list[Any]:
    """Return labels without the prefix of bytes, if Python wrote all texts among them so.

    >>> without_prefix(["b'cat'", "b'dog'", None]), without_prefix(["b'cat'", "dog"])
    (['cat', 'dog', None], ["b'cat'", 'dog'])
    """
    if not all(_BYTES.fullmatch(value) for value in values if isinstance(value, str) and value):
        return list(values)
    try:
        return [ast.literal_eval(value).decode() if value and isinstance(value, str) else value for value in values]
    except (ValueError, SyntaxError):
        return list(values)
