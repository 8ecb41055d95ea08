"""Roles of the columns of rows: the image, the label, and what becomes of all others. No I/O.

Names only suggest a role: types and values decide. What could be two columns is an error that shows both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wds_tools.errors import LabelError, SourceError
from wds_tools.format.account import Account
from wds_tools.format.label import NONE, Label, parse
from wds_tools.format.label_lists import items_of
from wds_tools.sources.base import Collector, Input, SourceOptions
from wds_tools.sources.columns import LABEL, usual_columns
from wds_tools.wording import counted

_MIN_ROWS = 5  # with fewer, classes may also differ in each row
_MAX_UNNAMED = 1000  # numbers without a name, for each of which the class names get an entry
_MAX_SHOWN = 30  # characters of a value in a message


@dataclass(slots=True)
class Roles:
    """The roles of the columns of a source.

    Attributes:
        image: Column of the image.
        label: Column of the label; None without labels.
        names: Column with the name of the class whose number is in ``label``; None without it.
        fields: Column -> field, for columns that become fields of their own.
        more_images: Further columns of images; their fields are named after the column and the image type.
        facts: Columns that become entries of the ``json`` field.
        left_out: Column -> why it is not packed.
    """

    image: str
    label: str | None = None
    names: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    more_images: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def rest(self) -> list[str]:
        """Return the columns that are packed besides image and label."""
        return [*self.fields, *self.more_images, *self.facts]

    def set_label(self, label: str | None, names: str | None) -> None:
        """Set the column of the label and that of class names, which are no entries or fields then."""
        self.label, self.names = label, names
        self.facts = tuple(name for name in self.facts if name not in (label, names))
        self.fields = {name: value for name, value in self.fields.items() if name not in (label, names)}
        self.left_out = {name: value for name, value in self.left_out.items() if name not in (label, names)}

    def leave_out(self, name: str, reason: str) -> None:
        """State that a column is not packed."""
        self.facts = tuple(other for other in self.facts if other != name)
        self.left_out[name] = reason

    def collect(self, account: Account, kind: str = "column") -> None:
        """Add what becomes of each column."""
        account.use(kind, self.image, "image")
        if self.label is not None:
            account.use(kind, self.label, "label")
        if self.names is not None:
            account.use(kind, self.names, "class names")
        for name, value in self.fields.items():
            account.use(kind, name, f"field {value}")
        for name in self.more_images:
            account.use(kind, name, "image fields")
        for name in self.facts:
            account.use(kind, name, "entries of json")
        for name, reason in self.left_out.items():
            account.leave_out(kind, name, reason)


class LabelChoice(NamedTuple):
    """The column that is the label.

    Attributes:
        label: Its name; None without labels.
        names: The column with the names of its numbers; None without it.
        values: Label of each row.
        classes: Class names by number, of the type of the column or of ``names``; None without them.
        notes: What a user should know about the choice.
    """

    label: str | None
    names: str | None
    values: Sequence[Any]
    classes: tuple[str, ...] | None
    notes: tuple[str, ...] = ()


class LabelColumns:
    """The columns that could be the label, and their values.

    Args:
        where: Name of the source, for error messages.
        names: All columns besides the image.
        columns: The user's mapping from role to column; an empty name means that there is no label.
        options: What the user states about the source.
        classes: Column -> class names that its type has.

    Raises:
        SourceError: The column that the user named does not exist.
    """

    def __init__(
        self,
        where: str,
        names: Iterable[str],
        columns: Mapping[str, str],
        options: SourceOptions,
        classes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._where = where
        self._separator = options.label_separator
        self._label_type = options.label_type
        self._is_given = LABEL in columns
        self._classes = classes or {}
        found = usual_columns(LABEL, names, columns, where=where)
        typed = [] if self._is_given else [name for name in self._classes if name not in found]
        self.values: dict[str, list[Any]] = {name: [] for name in [*typed, *found]}
        self._same: dict[Any, Any] = {}  # equal texts of many rows are kept once

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the next row."""
        for name, values in self.values.items():
            value = row.get(name)
            values.append(self._same.setdefault(value, value) if isinstance(value, str) else value)

    def extend(self, name: str, values: Iterable[Any]) -> None:
        """Add the values of a column in the next rows."""
        same = self._same
        self.values[name] += [same.setdefault(value, value) if isinstance(value, str) else value for value in values]

    def choose(self, *, complete: bool = True) -> LabelChoice:
        """Return the column that is the label.

        Args:
            complete: Whether all rows were added, so that a value in only one row is known to be one.

        Raises:
            SourceError: Several columns could be the label.
        """
        if self._is_given:
            name = next(iter(self.values), None)
            return self._chosen(name, None) if name is not None else LabelChoice(None, None, (), None)
        found: dict[str, _Column] = {}
        refused = {}
        for name, values in self.values.items():
            column = _Column(values, is_typed=name in self._classes, separator=self._separator)
            reason = column.why_not(complete=complete)
            if self._label_type is not None and column.fraction is not None:
                reason = None  # the user has decided what such values are
            if reason is None:
                found[name] = column
            else:
                refused[name] = reason
        lists = [name for name in refused if refused[name] == _SEVERAL]
        if lists and len(found) + len(lists) > 1:
            raise self._ambiguous([*found, *lists])
        if lists:
            return self._chosen(lists[0], None)
        if any(len(column.different) > 1 for column in found.values()):  # one value in all rows tells nothing
            found = {name: one for name, one in found.items() if len(one.different) > 1 or name in self._classes}
        if not found:
            return LabelChoice(None, None, (), None, tuple(map(_not_a_label, refused, refused.values())))
        return self._chosen(*self._views(found))

    def _chosen(self, label: str, names: str | None) -> LabelChoice:
        classes: tuple[str, ...] | None = self._classes.get(label)
        notes: tuple[str, ...] = ()
        if names is not None:
            classes, notes = self._named(label, names)
        return LabelChoice(label, names, self.values[label], classes, notes)

    def _views(self, found: Mapping[str, _Column]) -> tuple[str, str | None]:
        """Return the label, and the column of its class names, if all columns state the same classes.

        Raises:
            SourceError: They do not.
        """
        typed = [name for name in found if name in self._classes]
        numbers = [name for name, column in found.items() if column.is_number]
        label = next(iter([*typed, *numbers, *found]))
        others = {name: column for name, column in found.items() if name != label}
        for column in others.values():
            is_same = column.labels == found[label].labels
            is_name = found[label].is_number and not column.is_number and found[label].matches(column)
            if not (is_same or is_name):
                raise self._ambiguous(list(found))
        names = [name for name, column in others.items() if not column.is_number and found[label].is_number]
        if label in self._classes or not names:
            return label, None
        if len(names) > 1:
            raise self._ambiguous(list(found))
        return label, names[0]

    def _named(self, label: str, names: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the class names by number, and what to note about them."""
        pairs = zip(map(parse, self.values[label]), map(parse, self.values[names]), strict=True)
        named = {number.number: name.name for number, name in pairs if number.number is not None and name.name}
        count = max(named) + 1
        if count - len(named) > _MAX_UNNAMED:
            raise self._ambiguous([label, names])
        unnamed = [number for number in range(count) if number not in named]
        notes = [f"class names: column {names!r}, whose values match the numbers in column {label!r}"]
        if unnamed:
            notes.append(
                f"{counted(len(unnamed), 'class number')} of {count:,} without a row and a name, such as "
                f"{unnamed[0]}: the number is the class name"
            )
        return tuple(named.get(number) or str(number) for number in range(count)), tuple(notes)

    def _ambiguous(self, names: Sequence[str]) -> SourceError:
        return ambiguous(LABEL, self._where, {name: self.values[name] for name in names})


_SEVERAL = "several labels"


class _Column:
    """The values of a column that could be the label."""

    def __init__(self, values: Sequence[Any], *, is_typed: bool, separator: str | None) -> None:
        self._values = values
        self._separator = separator
        self._is_typed = is_typed
        self.different: set[Label] = set()
        self.labels: list[Label | None] = []
        self.fraction: Any = None
        self._reason = self._parse()
        self.is_number = any(label.number is not None for label in self.different)

    def why_not(self, *, complete: bool) -> str | None:
        """Return why the column is not the label; None if it could be."""
        if self._reason or self._is_typed:
            return self._reason
        if not self.different:
            return "has no values"
        count = sum(label not in (None, NONE) for label in self.labels)
        if complete and len(self.different) == count >= _MIN_ROWS:
            return "has another value in each row, as an id has"
        return None

    def matches(self, other: _Column) -> bool:
        """Return whether each label has one label of the other column, and no row lacks only one of them."""
        pairs = set(zip(self.labels, other.labels, strict=True)) - {(NONE, NONE)}
        if any(NONE in pair for pair in pairs):
            return False
        return len({one for one, _ in pairs}) == len({two for _, two in pairs}) == len(pairs)

    def _parse(self) -> str | None:
        """Collect the labels; return why the values cannot be labels, or None."""
        parsed: dict[tuple[type, Any], Label | None] = {}
        for value in self._values:
            if isinstance(value, float) and math.isnan(value):
                self.labels.append(NONE)
                continue
            if why := _why_not_single(value, self._separator):
                return why
            if (type(value), value) not in parsed:
                parsed[type(value), value] = _label(value)
                if parsed[type(value), value] is None and (reason := self._unlike_a_label(value)):
                    return reason
            self.labels.append(parsed[type(value), value])
        self.different = {label for label in parsed.values() if label not in (None, NONE)}
        if self.fraction is not None and all(label.name is None for label in self.different):
            return f"has numbers with fractions, such as {self.fraction}"
        return None

    def _unlike_a_label(self, value: Any) -> str | None:
        """Return why a value that is not a label shows that the column has none, and keep one with a fraction."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            return f"has values of type {type(value).__name__}"
        if self.fraction is None and math.isfinite(number) and number != int(number):
            self.fraction = value
        return None


def add_rows(
    found: Collector,
    roles: Roles,
    entries: Sequence[Input | None],
    choice: LabelChoice,
    *,
    declared: Iterable[str],
    kind: str = "column",
) -> None:
    """Add the rows of a source with their labels, and the account of all columns.

    Args:
        found: Where they are added.
        roles: Roles of the columns.
        entries: Input of each row; None for rows that are skipped.
        choice: The label, with a value for each row.
        declared: All columns that the source has.
        kind: What a column is called in the account.
    """
    roles.set_label(choice.label, choice.names)
    for entry, value in zip(entries, choice.values or [NONE] * len(entries), strict=True):
        if entry is not None:
            found.add(entry, value)
    found.classes = choice.classes
    found.account.notes += choice.notes
    found.account.declare(kind, declared)
    roles.collect(found.account, kind)


def ambiguous(role: str, where: str, values: Mapping[str, Sequence[Any]]) -> SourceError:
    """Return the error that several columns could have a role, with some of their values."""
    shown = ", ".join(f"{name!r} ({_shown(column)})" for name, column in values.items())
    first = next(iter(values))
    option = f"--label {first} (--column label={first}" if role == LABEL else f"--column {role}={first} ("
    return SourceError(
        f"{where} has several columns that could be the {role}: {shown}; name one of them, as in {option}"
        f"{', ' if role == LABEL else ''}columns={{{role!r}: {first!r}}})"
    )


def _label(value: Any) -> Label | None:
    try:
        return parse(value)
    except LabelError:
        return None


def _why_not_single(value: Any, separator: str | None) -> str:
    """Return why a value is not one label, or ""; of several labels, `_SEVERAL`."""
    if isinstance(value, Mapping):
        return "has nested values"
    if isinstance(value, Hashable) and not isinstance(value, (str, tuple)) and not getattr(value, "ndim", 0):
        return ""
    try:
        several = items_of(value, separator)
    except LabelError:
        return "has texts in brackets that are not lists"
    if several is not None:
        return _of_list(several)
    return "" if isinstance(value, str) else f"has values of type {type(value).__name__}"


def _of_list(value: Any) -> str:
    """Return why a list is not the label: it has several labels, or numbers that are none."""
    values = value.tolist() if hasattr(value, "tolist") else list(value)
    if any(isinstance(entry, (list, tuple, Mapping)) for entry in values):
        return "has nested values"
    if any(isinstance(entry, float) and entry != int(entry) for entry in values if entry == entry):  # noqa: PLR0124
        return "has lists of numbers with fractions"
    return _SEVERAL


def _not_a_label(name: str, reason: str) -> str:
    return f"column {name!r} is not the label, because it {reason}: pass --label {name} if it is"


def _shown(values: Sequence[Any], count: int = 3) -> str:
    """Return the first different values of a column as text."""
    different: dict[str, None] = {}
    for value in values:
        if value is not None and value != "":
            different.setdefault(str(value)[:_MAX_SHOWN])
        if len(different) == count:
            break
    return ", ".join(different) or "empty"
