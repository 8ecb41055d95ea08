"""Notes about class names: names that look alike, and names of no sample. No I/O."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from wds_tools.wording import first_few


def notes_on_unused(given: Sequence[str], own: Sequence[str], largest: int) -> list[str]:
    """Return a note if names were given for numbers that no label has: the names may be shifted.

    >>> notes_on_unused(["background", "cat", "dog"], [], 1)
    ["there are 3 class names, and the largest label is 1: no sample is 'dog'"]

    Args:
        given: The names that the user gave for numbers.
        own: The names that the source has.
        largest: The largest class number of a sample; -1 without labels.
    """
    used = max(largest + 1, len(own))
    if not 0 < used < len(given) or (own and {*own} <= {*given}):
        return []
    unused = first_few(map(repr, given[used:]))
    return [f"there are {len(given):,} class names, and the largest label is {used - 1}: no sample is {unused}"]


def notes_on_similar(names: Iterable[str]) -> list[str]:
    """Return a note for each name of a class that looks like an earlier one, apart from upper and lower case.

    >>> notes_on_similar(["cat", "Dog", "Cat"])
    ["the classes 'cat' and 'Cat' differ only in upper and lower case, or look the same"]
    """
    first: dict[str, str] = {}
    return [
        f"the classes {other!a} and {name!a} differ only in upper and lower case, or look the same"
        for name in names
        if (other := first.setdefault(_folded(name), name)) != name
    ]


def _folded(text: str) -> str:
    """Return a form that is equal for names that look the same, apart from upper and lower case."""
    visible = "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", visible.casefold()).strip()


def like(name: str, names: Iterable[str]) -> str:
    r"""Return what to add to the message that a name is not among others; empty if none of them looks like it.

    >>> like("cafe\u0301", ["caf\xe9", "fig"])
    "; 'cafe\\u0301' and 'caf\\xe9' differ only in case, spaces or the form of their letters"
    """
    same = next((other for other in names if _folded(other) == _folded(name)), None)
    return f"; {name!a} and {same!a} differ only in case, spaces or the form of their letters" if same else ""
