"""Conversion of the labels of a source, which are numbers or names, to class numbers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.base import Input, Skip

_MAX_QUOTED = 10


def label_inputs(
    inputs: Sequence[Input], labels: Sequence[Any], classes: tuple[str, ...] | None, skipped: list[Skip], *, where: str
) -> tuple[list[Input], tuple[str, ...]]:
    """Return inputs with class numbers, and the class names. If only some have a label, others are skipped.

    Args:
        inputs: Inputs without labels.
        labels: The label of each input, as stored in the source.
        classes: Class names by number, if they are known.
        skipped: Inputs without a label are added here.
        where: Name of the source, for error messages.

    Raises:
        SourceError: As for `number_labels`, or no input is left.
    """
    numbers, classes = number_labels(labels, classes, where=where)
    if all(number is None for number in numbers):
        kept = list(inputs)
    else:
        pairs = list(zip(inputs, numbers, strict=True))
        kept = [entry._replace(label=label) for entry, label in pairs if label is not None]
        skipped += [Skip(entry.path, "has no label") for entry, label in pairs if label is None]
    if not kept:
        reason = f"; the first, {skipped[0].path!r}: {skipped[0].reason}" if skipped else ""
        raise SourceError(f"{where} contains no image that can be packed{reason}")
    return kept, classes


def number_labels(
    labels: Sequence[Any], classes: tuple[str, ...] | None, *, where: str
) -> tuple[list[int | None], tuple[str, ...]]:
    """Return the class number of each record, and the class names by number.

    Integers, also if written as text, are class numbers. Names are numbered by ``classes``, or in
    sorted order if that is None, as in torchvision's ``ImageFolder``. None, an empty text and a
    negative number mean that there is no label.

    Args:
        labels: Labels of all records.
        classes: Class names by number, if they are known.
        where: Name of the source, for error messages.

    Raises:
        SourceError: A label is neither a number nor a name, or is not in ``classes``.
    """
    plain = [_plain(label, where) for label in labels]
    known = [label for label in plain if label is not None]
    if not known:
        return [None] * len(plain), ()
    if all(isinstance(label, int) or label.removeprefix("-").isdecimal() for label in known):
        numbers = [None if label is None or int(label) < 0 else int(label) for label in plain]
        highest = max((number for number in numbers if number is not None), default=-1)
        if classes is not None and highest >= len(classes):
            raise SourceError(
                f"{where} has label {highest}, but there are only {len(classes)} class names, numbered from 0: name "
                "all classes"
            )
        return numbers, classes or ()
    names = [str(label) for label in known]
    if classes is None:
        classes = tuple(sorted(set(names), key=lambda name: name.encode("utf-8", "surrogateescape")))
    number_of = {name: number for number, name in enumerate(classes)}
    unknown = sorted(set(names) - number_of.keys())
    if unknown:
        raise SourceError(
            f"class {unknown[0]!r} in {where} is not among the given classes ({quoted_list(classes)}): add it to them"
        )
    return [None if label is None else number_of[str(label)] for label in plain], classes


def _plain(label: Any, where: str) -> int | str | None:
    """Return a label as an int or a text; None if there is no label."""
    if isinstance(label, bytes):
        label = label.decode("utf-8", "surrogateescape")
    if label is None or isinstance(label, str):
        return label or None
    try:
        number = operator.index(label)
    except TypeError:
        raise SourceError(
            f"{where} has label {str(label)[:40]!r} of type {type(label).__name__}; allowed are integers and "
            "names: choose another column (--column label=...)"
        ) from None
    return number if number >= 0 else None


def quoted_list(names: Sequence[str]) -> str:
    """Return the first names in quotes; followed by their number if there are more."""
    more = f", ... {len(names):,} in all" if len(names) > _MAX_QUOTED else ""
    return ", ".join(map(repr, names[:_MAX_QUOTED])) + more
