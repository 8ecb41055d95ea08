"""Conversion of the labels of a source, which are numbers or names, to class numbers."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.label_source import whole_number
from wds_tools.sources.base import Input, Listing, Skip

_MAX_QUOTED = 10
_DECIMAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_log = logging.getLogger("wds_tools")


def label_inputs(
    inputs: Sequence[Input],
    labels: Sequence[Any],
    classes: tuple[str, ...] | None,
    skipped: list[Skip],
    *,
    where: str,
    own: tuple[str, ...] | None = None,
) -> tuple[list[Input], tuple[str, ...]]:
    """Return inputs with class numbers, and the class names. If only some have a label, others are skipped.

    Args:
        inputs: Inputs without labels.
        labels: The label of each input, as stored in the source.
        classes: Class names by number that the user gave.
        skipped: Inputs without a label are added here.
        where: Name of the source, for error messages.
        own: Class names by number that the source has, see `numbers_among`.

    Raises:
        SourceError: As for `number_labels` and `numbers_among`, or no input is left.
    """
    if own and classes and (number_of := numbers_among(classes, own, where=where)):
        own_numbers, _ = number_labels(labels, own, where=where)
        numbers = [None if number is None else number_of[number] for number in own_numbers]
    else:
        numbers, classes = number_labels(labels, classes or own or None, where=where)
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

    Integers, also if written as text such as "3" or "3.0", are class numbers. Names are numbered by ``classes``, or in
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
    if all(_is_number(label, classes or ()) for label in known):
        numbers = [None if label is None else _number(label) for label in plain]
        highest = max((number for number in numbers if number is not None), default=-1)
        if classes is not None and highest >= len(classes):
            raise SourceError(
                f"{where} has label {highest}, but there are only {len(classes)} class names, numbered from 0: name "
                "all classes"
            )
        return numbers, classes or ()
    names = [str(label) for label in known]
    if classes is None:
        if all(_DECIMAL.fullmatch(name) for name in names):
            fraction = next(name for name in names if whole_number(name) is None)
            raise SourceError(
                f"{where} has label {fraction!r}, a number with a fraction; allowed are integers and names: choose "
                "another column (--column label=...), or rename the column, for example to 'score', and it becomes an "
                "entry of the json field"
            )
        _warn_of_numbers(set(names), where)
        classes = tuple(sorted(set(names), key=lambda name: name.encode("utf-8", "surrogateescape")))
    number_of = {name: number for number, name in enumerate(classes)}
    unknown = sorted(set(names) - number_of.keys())
    if unknown:
        raise SourceError(
            f"class {unknown[0]!r} in {where} is not among the given classes ({quoted_list(classes)}): add it to them"
        )
    return [None if label is None else number_of[str(label)] for label in plain], classes


def with_classes(listing: Listing, classes: tuple[str, ...]) -> Listing:
    """Return a listing with other classes, which include all of its own. Labels get the numbers of their names."""
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = [number_of[name] for name in listing.classes]
    inputs = [entry if entry.label is None else entry._replace(label=numbers[entry.label]) for entry in listing.inputs]
    return replace(listing, inputs=inputs, classes=classes)


def numbers_among(classes: Sequence[str], own: Sequence[str], *, where: str) -> list[int]:
    """Return the number that each class of a source has among the given classes; [] if the numbers stay.

    The numbers stay if the given classes only rename those of the source. They change if a name of the source has
    another number among the given classes.

    Args:
        classes: Class names by number that the user gave.
        own: Class names by number that the source has.
        where: Name of the source, for error messages.

    Raises:
        SourceError: Numbers change, and a name of the source is not among the given classes.
    """
    number_of = {name: number for number, name in enumerate(classes)}
    if all(number_of.get(name, number) == number for number, name in enumerate(own)):
        return []
    missing = [name for name in own if name not in number_of]
    if missing:
        raise SourceError(
            f"class {missing[0]!r} of {where} is not among the given classes ({quoted_list(classes)}), which have "
            "other classes of it in another order: add it to them"
        )
    return [number_of[name] for name in own]


def _is_number(label: int | str, classes: Sequence[str]) -> bool:
    """Return whether a label is a whole number. One such as "3.0" may also be the name of a class."""
    if isinstance(label, int) or label.isdecimal():
        return True
    return whole_number(label) is not None and label not in classes


def _number(label: int | str) -> int | None:
    """Return a label that is a whole number as int; None if it is negative."""
    number = label if isinstance(label, int) else whole_number(label)
    return number if number is not None and number >= 0 else None


def _warn_of_numbers(names: set[str], where: str) -> None:
    """Warn if most labels are whole numbers, but not all: then all are names, and 10 may get another number."""
    others = [name for name in names if whole_number(name) is None]
    if 2 * len(others) < len(names):
        _log.warning(
            "%s has label %r, which is not a whole number, so all labels are class names and get numbers in sorted "
            "order: 10 may become class 2. If labels are class numbers, correct or remove it",
            where,
            min(others),
        )


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
