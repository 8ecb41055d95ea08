"""Notes about class names: names that look alike, and names of no sample. No I/O."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from wds_tools.errors import LabelError
from wds_tools.format.label_lists import parts_joined_by
from wds_tools.wording import counted, first_few

_FROM_ONE = "if they count from 1, subtract 1 from them, or add a name for 0"
_NO_CLASS = {"0", "background", "bg", "dummy", "nothing", "none", "unknown"}  # names of a class that no sample has


def notes_on_given(given: Sequence[str], stated: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return notes if names were given for numbers that no label has: the names may be shifted.

    >>> notes_on_given(["background", "cat", "dog"], [], [1, 0])
    ["there are 3 class names, and the largest label is 1: no sample is 'dog'"]

    Args:
        given: The names that the user gave for numbers.
        stated: The names that the source has.
        numbers: The different class numbers of samples.
    """
    used = max(max(numbers, default=-1) + 1, len(stated))
    notes = [] if stated else notes_on_first(given, numbers)
    if 0 < used < len(given) and not (stated and {*stated} <= {*given}):
        unused = first_few(map(repr, given[used:]))
        notes.append(
            f"there are {len(given):,} class names, and the largest label is {used - 1}: no sample is {unused}"
        )
    return notes


class NamesFromOne(tuple[str, ...]):
    """Class names of a file that counts from 1: that of number 0 is "0", and no sample may have this number."""

    __slots__ = ()


def notes_from_one(given: Any, numbers: Iterable[int], where: str) -> tuple[str, ...]:
    """Return a note if the class names that were given are `NamesFromOne`.

    Raises:
        LabelError: A sample has number 0.
    """
    if not isinstance(given, NamesFromOne):
        return ()
    if 0 in numbers:
        raise LabelError(
            f"{where} has label 0, and the class names that were given have the numbers 1 to {len(given) - 1}: add a "
            "name for 0, or number the names from 0 if the labels begin with 0"
        )
    return ("the class names that were given count from 1: class 0 has no name",)


def notes_on_first(names: Sequence[str], numbers: Iterable[float]) -> list[str]:
    """Return a note if labels begin with 1, so that names that are numbered from 0 may be shifted.

    >>> notes_on_first(["ant", "bee", "cat"], [2, 1])[0][:57]
    "no sample has class 0, 'ant', and labels begin with 1: if"
    >>> notes_on_first(["background", "bee"], [1])
    []
    """
    if not names or min(numbers, default=0) != 1 or names[0].lower().strip("_") in _NO_CLASS:
        return []
    return [f"no sample has class 0, {names[0]!r}, and labels begin with 1: {_FROM_ONE}"]


def why_too_few(names: Sequence[str], numbers: Sequence[int]) -> str:
    """Return what is wrong with labels of which the largest has no name.

    >>> why_too_few(["ant", "bee"], [2, 1])[:72]
    'label 2, but there are only 2 class names, numbered from 0, and labels b'
    """
    remedy = ": name all classes (--classes, classes=)"
    if min(numbers) == 1 and max(numbers) == len(names):
        remedy = f", and labels begin with 1: {_FROM_ONE}, such as background (--classes, classes=)"
    return f"label {max(numbers)}, but there are only {counted(len(names), 'class name')}, numbered from 0{remedy}"


def notes_on_similar(names: Iterable[str]) -> list[str]:
    """Return a note for each name of a class that looks like an earlier one, apart from upper and lower case.

    >>> notes_on_similar(["cat", "Dog", "Cat"])
    ["the classes 'cat' and 'Cat' differ only in upper and lower case, or look the same"]
    """
    first: dict[str, str] = {}
    return [
        f"the classes {earlier!a} and {name!a} differ only in upper and lower case, or look the same"
        for name in names
        if (earlier := first.setdefault(_folded(name), name)) != name
    ]


def notes_on_words(names: Collection[str]) -> list[str]:
    """Return a note if names of classes are made of the same words, so that a text may mean several labels.

    >>> notes_on_words(["cat", "dog", "cat dog"])[0][:65]
    "labels such as 'cat dog' are names of classes, and have a word th"
    """
    names = {*names}
    joined = [name for name in names if " " in name and not names.isdisjoint(name.split())]
    if parts := parts_joined_by(names, " "):
        joined, what = [*names], f"are made of only {len(parts)} words"
    else:
        what = "have a word that is a class too"
    shown = first_few(map(repr, sorted(joined)[:2]))
    remedy = "pass --label-separator ' ' if they mean several labels"
    return [f"labels such as {shown} are names of classes, and {what}: {remedy}"] if joined else []


def with_same_number(names: Iterable[str]) -> tuple[str, ...]:
    """Return two names that are the same number; empty without them.

    >>> with_same_number(["1", "2", "01"]), with_same_number(["1", "10"])
    (('1', '01'), ())
    """
    first: dict[int, str] = {}
    return next(((earlier, name) for name in names if (earlier := first.setdefault(int(name), name)) != name), ())


def _folded(text: str) -> str:
    """Return a form that is equal for names that look the same, apart from upper and lower case."""
    visible = "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", visible.casefold()).strip()


def like(name: str, names: Iterable[str]) -> str:
    r"""Return what to add to the message that a name is not among others; empty if none of them looks like it.

    >>> like("cafe\u0301", ["caf\xe9", "fig"])
    "; 'cafe\\u0301' and 'caf\\xe9' differ only in case, spaces or the form of their letters"
    """
    same = next((similar for similar in names if _folded(similar) == _folded(name)), None)
    if same is None and name.isdecimal():
        return ", or pass --label-type number (label_type='number') if such names are class numbers"
    return f"; {name!a} and {same!a} differ only in case, spaces or the form of their letters" if same else ""


def note_on_other_numbers(where: Any, theirs: Sequence[str], ours: Sequence[str]) -> list[str]:
    """Return a note if another split has other class numbers. One of the two may have further classes at its end.

    >>> note_on_other_numbers("val", ["ant", "cat"], ["ant", "bee", "cat"])[0][:66]
    "val has other class numbers (1 is 'cat' there, and 'bee' here): pa"
    """
    remedy = "pack all splits at once with --split folders (pack_splits), or each with the same --classes (classes=)"
    for number, (name, own_name) in enumerate(zip(theirs, ours, strict=False)):
        if name != own_name and not {*ours}.isdisjoint(theirs):
            return [f"{where} has other class numbers ({number} is {name!r} there, and {own_name!r} here): {remedy}"]
    return []
