"""Labels as sources hold them, numbers or names, become class numbers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.base import Input, Skip

_MOST_NAMED = 10


def label_inputs(
    inputs: Sequence[Input], raw: Sequence[Any], classes: tuple[str, ...] | None, skipped: list[Skip], *, where: str
) -> tuple[list[Input], tuple[str, ...]]:
    """Return inputs with their class numbers, and the class names; where some have a label, those without are skipped.

    Args:
        inputs: Without labels.
        raw: The label of each, as the source holds it.
        classes: Class names by number, if they are known.
        skipped: Records without a label are added.
        where: What holds them, for error messages.

    Raises:
        SourceError: As `number_labels`; or no input is left.
    """
    labels, classes = number_labels(raw, classes, where=where)
    if all(label is None for label in labels):
        kept = list(inputs)
    else:
        pairs = list(zip(inputs, labels, strict=True))
        kept = [entry._replace(label=label) for entry, label in pairs if label is not None]
        skipped += [Skip(entry.path, "has no label") for entry, label in pairs if label is None]
    if not kept:
        reason = f"; the first, {skipped[0].path!r}: {skipped[0].reason}" if skipped else ""
        raise SourceError(f"{where} holds no image that can be packed{reason}")
    return kept, classes


def number_labels(
    labels: Sequence[Any], classes: tuple[str, ...] | None, *, where: str
) -> tuple[list[int | None], tuple[str, ...]]:
    """Return the class number of each record, and the class names by number.

    Whole numbers, also written as text, stay what they are. Names get the numbers of ``classes``, or else of their
    sorted order, as in torchvision's ``ImageFolder``. None, an empty text and a number below 0 are no label.

    Args:
        labels: Of all records.
        classes: Class names by number, if they are known.
        where: What holds them, for error messages.

    Raises:
        SourceError: Labels that are neither, or that ``classes`` does not name.
    """
    plain = [_plain(label, where) for label in labels]
    known = [label for label in plain if label is not None]
    if not known:
        return [None] * len(plain), ()
    if all(isinstance(label, int) or label.isdecimal() for label in known):
        numbers = [None if label is None else int(label) for label in plain]
        highest = max(number for number in numbers if number is not None)
        if classes is not None and highest >= len(classes):
            raise SourceError(f"{where} has label {highest}, but {len(classes)} classes are named, from 0: name all")
        return numbers, classes or ()
    names = [str(label) for label in known]
    if classes is None:
        classes = tuple(sorted(set(names), key=lambda name: name.encode("utf-8", "surrogateescape")))
    table = {name: number for number, name in enumerate(classes)}
    strangers = sorted(set(names) - table.keys())
    if strangers:
        raise SourceError(
            f"class {strangers[0]!r} in {where} is not among the classes given ({shortened(classes)}): add it to them"
        )
    return [None if label is None else table[str(label)] for label in plain], classes


def _plain(label: Any, where: str) -> int | str | None:
    """Return a label as an int, a text, or None."""
    if isinstance(label, bytes):
        label = label.decode("utf-8", "surrogateescape")
    if label is None or isinstance(label, str):
        return label or None
    try:
        number = operator.index(label)
    except TypeError:
        raise SourceError(
            f"{where} has label {str(label)[:40]!r} of type {type(label).__name__}; allowed are whole numbers and "
            "names: name another column (--column label=...), or none of them"
        ) from None
    return number if number >= 0 else None


def shortened(names: Sequence[str]) -> str:
    """Name a few, and count them all."""
    more = f", ... {len(names):,} in all" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(repr, names[:_MOST_NAMED])) + more
