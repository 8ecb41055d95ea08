"""Which column, array or entry is the label: the one rule of all sources. No I/O.

Names only suggest a role: types and values decide. What could be two is an error that shows both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import LabelError, SourceError
from wds_tools.format.label import NONE, Label, parse, quoted
from wds_tools.format.label_lists import items_of
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.columns import LABEL, usual_names
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.layouts import names_a_file, split_in
from wds_tools.wording import counted

_List = tuple[Any, ...]  # labels of a sample that has several
_MIN_ROWS = 20  # with fewer, classes may also differ in each row, as in a demo with one image per class
_FLAGS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1, "-1": 2, "-1.0": 2, "false": 3, "true": 4}  # codes of a column per class
_ZERO, _SIGNED, _BOOLEANS = {0, 1}, {1, 2}, {3, 4}  # CelebA has -1 and 1, pandas.get_dummies booleans
_ONES = (1, 4)
_MARKS = {"1", "1.0", "x", "true", "yes", "y"}
_LABELS_PER_ODD = 10  # a value that is not a label is a mistake if the column has at least ten times as many labels
_MAX_UNNAMED = 1000  # numbers without a name, for each of which the class names get an entry
_CAPTION_SPACES = 3  # in a text of more than three words, which is not a class name
_MAX_SHOWN = 30  # characters of a value in a message
_MAX_NUMBERS, _SPARSE = 100, 4  # of classes; numbers per class, at most
_MAX_NAMES = 12  # columns that a message shows
_UNIQUE = "has a different value in each row, like an id"
_NESTED = "has nested values"
_WORD_OF_NAMES = re.compile("name|class|cls|label|categor|species|text")
_PLURALS = {"entry": "entries"}


class LabelChoice(NamedTuple):
    """The column that is the label.

    Attributes:
        label: Its name; None without labels.
        names: The column with the names of its numbers; None without it.
        values: Label of each row.
        classes: Class names by number, of the type of the column or of ``names``; None without them.
        notes: What a user should know about the choice.
        hot: Columns with 0 or 1 for each class, which are the label together, instead of ``label``.
    """

    label: str | None = None
    names: str | None = None
    values: Sequence[Any] = ()
    classes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    hot: tuple[str, ...] = ()


class Flags(dict[str, bytearray | None]):
    """Columns with 0 or 1, -1 and 1, or a boolean in each row: column -> codes; None if it has other values."""

    @classmethod
    def of_rows(cls, columns: Sequence[str], rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> tuple[Flags, int]:
        """Return the flags of columns, and the number of rows, which are given with their locations."""
        flags, count = cls(), 0
        for _, row in rows:
            count += 1
            for name in columns:
                flags.extend(name, [row.get(name)])
        return flags, count

    def extend(self, column: str, values: Iterable[Any]) -> None:
        """Add values of a column."""
        codes = self.setdefault(column, bytearray())
        for value in values if codes is not None else ():
            code = _FLAGS.get(str(value).strip().lower()) if isinstance(value, (int, float, str)) else None
            if code is None or codes is None:
                self[column] = None
                return
            codes.append(code)

    def of(self, column: str) -> bytearray:
        """Return the codes of a column; empty if it has other values."""
        return self.get(column) or bytearray()

    def rows(self, columns: Sequence[str], count: int) -> NDArray[np.bool_]:
        """Return whether each row has the class of each column: bool [count, columns]; a missing column has none."""
        codes = [np.frombuffer(self.of(column) or bytes(count), np.uint8) for column in columns]
        has_class: NDArray[np.bool_] = np.isin(np.stack(codes, axis=1), _ONES)
        return has_class


def one_hot(tables: Sequence[tuple[Flags, int]], *, is_stated: bool = False) -> tuple[str, ...]:
    """Return the columns that have 0 or 1, or a boolean, for each class.

    Exactly one in each row must be 1, unless the columns have -1 and 1, or it ``is_stated`` that columns are classes.
    Otherwise columns with the name of a split, such as ``is_train``, are not classes.

    Args:
        tables: Flags of each table, without columns with a known role, and number of its rows. Several tables,
            such as one for each split, have the same classes.
        is_stated: Whether all columns with 0 and 1 are classes.
    """
    names = [*dict.fromkeys(name for flags, _ in tables for name in flags if is_stated or not split_in(name))]
    parts_of = {name: [flags[name] for flags, _ in tables if name in flags] for name in names}
    codes = {name: {*b"".join(filter(None, parts))} for name, parts in parts_of.items() if all(parts)}
    signed, zero, booleans = (
        tuple(name for name, values in codes.items() if values <= allowed) for allowed in (_SIGNED, _ZERO, _BOOLEANS)
    )
    if are_signed := len(signed) > 2 and any(2 in codes[name] for name in signed):
        columns = signed
    else:
        columns = zero if is_stated or len(zero) > 1 else booleans
    if is_stated:
        return columns if len(columns) > 1 else ()
    rows = [flags.rows(columns, count) for flags, count in tables if len(columns) > 1 and any(map(flags.of, columns))]
    if not rows or not (are_signed or all((row.sum(1) == 1).all() for row in rows)):
        return ()
    return columns if len(np.unique(np.concatenate(rows), axis=0)) > 1 else ()


def check_only_label(where: str, hot: Sequence[str], texts: Mapping[str, Sequence[Any] | None], part: str) -> None:
    """Check that no column next to columns of 0 and 1 has texts that recur, as class names do."""
    text_columns = {
        name: some_of(values)
        for name, values in texts.items()
        if hot and values and could_be_classes(values) and not (_are_flags(values) or _are_splits(name, values))
    }
    if text_columns:
        remedy = f"; or pass --classes (classes=) with {quoted(hot)} if these are the classes"
        raise ambiguous(LABEL, where, {**text_columns, **dict.fromkeys(hot, "0, 1")}, part, remedy)


def _are_splits(name: str, values: Sequence[Any]) -> bool:
    return bool(split_in(name)) or all(map(is_split_name, {value for value in values if value}))


def choose_label(
    where: str,
    values: Mapping[str, Sequence[Any]],
    options: SourceOptions,
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    *,
    part: str = "column",
) -> LabelChoice:
    """Return the column that is the label.

    Args:
        where: Name of the source, for error messages.
        values: Column -> values, of columns with a usual name of labels.
        options: What the user states.
        classes: Column -> class names that its type has.
        part: What a column is called in messages.

    Raises:
        SourceError: Several columns could be the label, or a value in a column of labels is not a label.
    """
    as_name = options.label_type == "name"
    columns = {
        name: _Column(column, name in classes, options.label_separator, as_name=as_name)
        for name, column in values.items()
    }
    _check_odd(where, columns, part)
    x = next((name for name, column in columns.items() if is_x(name) and column.has_numbers), None)
    reasons = {name: column.why_not() for name, column in columns.items() if not is_x(name)}
    for name in reasons:
        if options.label_type is not None and (columns[name].fraction is not None or columns[name].is_unique):
            reasons[name] = None  # the user has decided what such values are
        if x is not None and name.lower() == "y":
            reasons[name] = f"is a coordinate next to {x!r}"
    candidates = {name: columns[name] for name, reason in reasons.items() if reason is None}
    if not all(column.is_constant for column in candidates.values()):  # the same value in all rows tells nothing
        candidates = {name: column for name, column in candidates.items() if not column.is_constant or name in classes}
    if not candidates:
        notes = (_not_the_label(name, reason, part) for name, reason in reasons.items() if reason)
        return LabelChoice(notes=tuple(notes))
    numeric = [name for name, column in candidates.items() if column.is_number]
    label = next(iter([*filter(classes.__contains__, candidates), *numeric, *candidates]))
    choice = LabelChoice(label, None, values[label], classes.get(label))
    names = [name for name, column in candidates.items() if column.labels != candidates[label].labels]
    are_names = all(candidates[label].is_named_by(candidates[name]) for name in names)
    if not are_names or (label not in classes and len(names) > 1):
        raise ambiguous(LABEL, where, {name: some_of(values[name]) for name in candidates}, part)
    if not names or label in classes:
        return choice
    texts = [parse(value).name for value in values[names[0]]]
    named = _with_names(choice, names[0], names_of(choice.values, texts, is_certain=True), part)
    if named is None:
        raise ambiguous(LABEL, where, {name: some_of(values[name]) for name in (label, names[0])}, part)
    return named


def _check_odd(where: str, columns: Mapping[str, _Column], part: str) -> None:
    """Raise an error if almost all values of a column with a usual name are labels, and one cannot be."""
    for name, column in columns.items():
        if name.lower() in usual_names(LABEL) and (odd := column.odd_row()):
            raise SourceError(
                f"{where}: almost all values of {part} {name!r} are labels, but the value of row {odd[0] + 1:,} is "
                f"{str(odd[1])[:_MAX_SHOWN]!r}: correct it, or name the label, as in --column label=NAME "
                "(columns={'label': 'NAME'}); --column label= if there are no labels"
            )


def _not_the_label(name: str, reason: str, part: str) -> str:
    return f"{part} {name!r} is not the label, because it {reason}: {_remedy(name, reason)}"


def _remedy(name: str, reason: str) -> str:
    return f"pass --label {name} if it is" if reason != _NESTED else "write the label as a separate value"


class _Column:
    """The values of a column that could be the label."""

    def __init__(self, values: Sequence[Any], is_typed: bool, separator: str | None, *, as_name: bool = False) -> None:
        self._values, self._as_name = values, as_name
        self._separator = separator
        self._is_typed = is_typed
        self.different: set[Label | _List] = set()
        self.labels: list[Label | _List | None] = []
        self.has_lists = False
        self.fraction: Any = None
        self.odd: Any = None  # a number that is whole and not written so, such as 1e3, or infinite
        self._reason = self._parse()
        self.is_number = any(isinstance(label, Label) and label.number is not None for label in self.different)
        self.has_numbers = self.is_number or self.fraction is not None
        count = sum(label is not None and label != NONE for label in self.labels)
        self.is_constant = len(self.different) == 1 and count == len(self.labels)
        self.is_unique = len(self.different) == count >= _MIN_ROWS
        if self.has_lists:  # of captions; pairs of numbers are an error
            texts = [text for label in self.labels for text in label or ()]
            self.is_unique = len({*texts}) == len(texts) >= _MIN_ROWS and all(isinstance(text, str) for text in texts)

    def why_not(self) -> str | None:
        """Return why the column is not the label; None if it could be."""
        if self._reason or self._is_typed:
            return self._reason
        if not self.different:
            problem = "beyond 64 bits" if isinstance(self.odd, int) else "not whole"
            return f"has numbers such as {self.odd}, which are {problem}" if self.odd is not None else "has no values"
        if self.is_unique:
            return _UNIQUE
        return None

    def odd_row(self) -> tuple[int, Any] | None:
        """Return the first row whose value cannot be a label, and the value, if almost all others are labels."""
        if not self._reason or self.fraction is not None:
            return None
        odd, count = [], 0
        for row, value in enumerate(self._values):
            column = _Column([value], False, self._separator, as_name=self._as_name)
            if column.fraction is not None:
                return None
            if column._reason:
                odd.append((row, value))
            count += bool(column.different)
            if len(odd) * _LABELS_PER_ODD > len(self._values):
                return None
        return odd[0] if odd and len(odd) * _LABELS_PER_ODD <= count else None

    def is_named_by(self, names: _Column) -> bool:
        """Return whether each number has one name in the other column, and no row lacks only one of them."""
        if not self.is_number or names.is_number:
            return False
        pairs = set(zip(self.labels, names.labels, strict=True)) - {(NONE, NONE)}
        if any(NONE in pair for pair in pairs):
            return False
        return len({label for label, _ in pairs}) == len({name for _, name in pairs}) == len(pairs)

    def _parse(self) -> str | None:
        """Collect the labels; return why the values cannot be labels, or None."""
        parsed: dict[Any, Label | _List | None] = {}
        for value in self._values:
            if isinstance(value, Mapping):
                return _NESTED
            several = self._several(value)
            if several is not None:
                labels = _list_of(several)
                if isinstance(labels, str):
                    return labels
                self.labels.append(parsed.setdefault(labels, labels))
                self.has_lists = True
            elif isinstance(value, float) and math.isnan(value):
                self.labels.append(NONE)
            else:
                key = (type(value), value)
                if key not in parsed:
                    parsed[key] = _label(value, as_name=self._as_name)
                    if parsed[key] is None and (reason := self._unlike_a_label(value)):
                        return reason
                self.labels.append(parsed[key])
        self.different = {label for label in parsed.values() if label is not None and label != NONE}
        has_names = any(isinstance(label, Label) and label.name for label in self.different)
        if self.fraction is not None and not self.has_lists and not has_names:
            return f"has numbers with fractions, such as {self.fraction}"
        names = [label.name for label in self.different if isinstance(label, Label)]
        if names and all(map(names_a_file, names)):
            return f"has names of images, such as {min(filter(None, names))!r}"
        return None

    def _several(self, value: Any) -> Any | None:
        """Return a list of labels, even if it is written as text; None for other values."""
        try:
            return value if getattr(value, "ndim", 0) > 1 else items_of(value, self._separator)
        except LabelError:
            return None

    def _unlike_a_label(self, value: Any) -> str | None:
        """Return why a value that is not a label shows that the column has none, and keep one with a fraction."""
        try:
            size = float(value)
        except (TypeError, ValueError):
            if isinstance(value, str):  # such as tensor(1): the column is the label, and the value is refused
                parse(value)
            return f"has values of type {type(value).__name__}"
        if self.fraction is None and math.isfinite(size) and size != int(size):
            self.fraction = value
        else:
            self.odd = value
        return None


def names_of(labels: Sequence[Any], texts: Sequence[str | None], *, is_certain: bool = False) -> dict[int, str] | None:
    """Return the class name of each number if texts are class names: one for each number, and all different.

    Some number must have several rows, unless it ``is_certain`` that the texts are class names.

    >>> names_of([3, 0, 3], ["owl", "cat", "owl"]), names_of([3, 0, 3], ["owl", "cat", "cat"])
    ({3: 'owl', 0: 'cat'}, None)
    """
    if any(isinstance(label, (tuple, list, Mapping)) for label in labels):
        return None
    numbers = {label: _label(label) for label in set(labels)}
    names: dict[int, str] = {}
    rows = 0
    for value, text in zip(labels, texts, strict=True):
        label = numbers.get(value)
        if label is None or (label == NONE) != (not text) or (text and label.number is None):
            return None
        if text and label.number is not None:
            rows += 1
            if names.setdefault(label.number, text) != text:
                return None
    is_unique = len(set(names.values())) == len(names)
    are_names = bool(names) and all(map(is_name, names.values()))
    return names if are_names and is_unique and (is_certain or 2 <= len(names) < rows) else None


def is_name(text: str) -> bool:
    """Return whether a text is a name, not a number or a word for a missing value."""
    label = _label(text)
    return label is not None and label.name is not None


def with_matching_names(
    choice: LabelChoice,
    texts: Mapping[str, Sequence[str | None]],
    options: SourceOptions,
    part: str,
    names_column: str | None = "",
) -> LabelChoice:
    """Return a choice with the class names in another column, if its values match the numbers of the label.

    ``texts`` are the values of columns of texts. ``names_column`` is the column of class names; empty if it is not
    known, None if there is none.
    """
    label = choice.label
    has_names = choice.names or choice.classes or options.classes or options.label_type == "number"
    if label is None or has_names or names_column is None:
        return choice
    candidates = {}
    for column, values in texts.items():
        names = names_of(choice.values, values, is_certain=bool(names_column)) if names_column in ("", column) else None
        if names and column != label and not all(map(is_split_name, names.values())):
            candidates[column] = names
    named = [column for column in candidates if _WORD_OF_NAMES.search(column.lower())]
    if len(named) == 1 and (
        with_names := _with_names(choice, named[0], candidates[named[0]], part, is_stated=names_column != "")
    ):
        return with_names
    has = f"has one text for each number of {part} {label!r}"
    notes = [f"{part} {column!r} {has}: pass --label {column} if these are the class names" for column in candidates]
    if names_column and not candidates:
        notes = [f"{names_column!r} does not give the class names: it does not have one distinct text per label"]
    return choice._replace(notes=(*choice.notes, *notes))


def _with_names(
    choice: LabelChoice, column: str, names: Mapping[int, str] | None, part: str, *, is_stated: bool = False
) -> LabelChoice | None:
    """Return a label with the names of its numbers in another column; None if they are not class names.

    A note says so, unless the format states it.
    """
    classes = names_by_number(names) if names else None
    if classes is None or names is None:
        return None
    matching = f"class names: {part} {column!r}, whose values match the numbers in {part} {choice.label!r}"
    notes = [] if is_stated else [matching]
    if unnamed := [str(class_number) for class_number in range(len(classes)) if class_number not in names]:
        notes.append(
            f"{counted(len(unnamed), 'class number')} of {len(classes):,} without a row, and so without a name, such "
            f"as {unnamed[0]}: the number is the class name"
        )
    return choice._replace(names=column, classes=classes, notes=(*choice.notes, *notes))


def hint(columns: Mapping[str, Sequence[Any]], part: str) -> list[str]:
    """Return a note that names columns that could be the label, by their values, where none has a usual name."""
    lists = {
        name: values
        for name, values in columns.items()
        if any(isinstance(value, (list, np.ndarray)) for value in values[:_MIN_ROWS])
    }
    columns = {name: values for name, values in columns.items() if name not in lists}
    candidates = [name for name, values in columns.items() if could_be_classes(values)]
    flags = [name for name, values in columns.items() if _are_flags(values)]
    if not candidates and len(flags) > 1:
        count = counted(len(flags), part, _PLURALS.get(part))
        cells = {value for name in flags for value in columns[name]}
        different = sorted({str(value) for value in cells - {None, ""}}) + ["empty values"] * bool(cells & {None, ""})
        note = (
            f"no label: {count} with only {' and '.join(different)} ({quoted(flags)}): if they are classes, not only "
            f"entries of json, write one {part} with the name of the class of each row, or a list of names"
        )
        return [note]
    candidates = candidates or [name for name, values in columns.items() if _could_be_class_numbers(values)]
    candidates = candidates or [name for name in flags if all(isinstance(value, bool) for value in columns[name])]
    if not candidates and (notes := [*filter(None, (_note_on_rows(name, lists[name], part) for name in lists))]):
        return notes
    if not candidates:
        nested = _entries_of(columns).items()
        candidates = [name for name, values in nested if could_be_classes(values) or _could_be_class_numbers(values)]
        return [f"no label: {quoted(candidates)} could be it: write it as a separate {part}"] if candidates else []
    shown = ", ".join(f"{name!r} ({some_of(columns[name])})" for name in candidates)
    return [f"no label: the {part} {shown} could be it; pass --label NAME if it is"] if candidates else []


def _note_on_rows(name: str, rows: Sequence[Any], part: str) -> str:
    """Return the note that lists have names, or 0 or 1, or -1 and 1, for each of several classes; empty if not."""
    lists = [
        row.tolist() if isinstance(row, np.ndarray) else row for row in rows if isinstance(row, (list, np.ndarray))
    ]
    width, values = len(lists[0]), [value for row in lists for value in row]
    are_short = all(str(value).count(" ") < _CAPTION_SPACES for value in values)
    if are_short and could_be_classes(values) and all(len({*row}) == len(row) for row in lists):
        shown = f"the {part} {name!r} has names in lists ({some_of(values)})"
        return f"no label: {shown}: pass --label {name} if they are classes"
    cells = {float(value) if isinstance(value, (int, float, np.generic)) else 2 for value in values}
    if cells not in ({0, 1}, {-1, 1}) or width < 2 or {len(row) for row in lists} != {width}:
        return ""
    remedy = f"pass --label {name}" if 0 in cells else "write 0 instead of -1, and pass --label"
    return (
        f"no label: the {part} {name!r} has only {min(cells):g} and 1 in lists of {width:,} values: {remedy} if they "
        "are classes"
    )


def _are_flags(values: Sequence[Any]) -> bool:
    """Return whether values are 0 and 1 or booleans, or a mark such as ``x`` in some rows, as in spreadsheets."""
    marks = {str(value).strip().lower() for value in values if value not in (None, "")}
    is_marked = len(marks) == 1 and marks <= _MARKS and any(value in (None, "") for value in values)
    return bool(values) and (is_marked or all(str(value).lower() in _FLAGS for value in values))


def _entries_of(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the values of the entries of columns that have only objects."""
    nested = {name: values for name, values in columns.items() if all(isinstance(value, Mapping) for value in values)}
    names = {f"{name}.{key}": (name, key) for name, values in nested.items() for value in values[:1] for key in value}
    return {shown: [value.get(key) for value in nested[name]] for shown, (name, key) in names.items()}


def is_x(name: str) -> bool:
    """Return whether this is the name of the coordinate that decides what ``y`` is."""
    return name.lower() == "x"


def ambiguous(
    role: str, where: str, candidates: Mapping[str, str], part: str = "column", remedy: str = ""
) -> SourceError:
    """Return the error that several columns could have a role; ``candidates`` are these, with what is shown of each."""
    first, *_ = names = list(candidates)[:_MAX_NAMES]
    shown = ", ".join(f"{name!r} ({candidates[name]})" for name in names)
    shown += ", ..." if len(candidates) > len(names) else ""
    option = f"--label {first}" if role == LABEL else f"--column {role}={first}"
    remedy = remedy or ("; or pass --column label= if there are no labels" if role == LABEL else "")
    return SourceError(
        f"{where} has {counted(len(candidates), part, _PLURALS.get(part))} that could be the {role}: {shown}; name "
        f"one, as in {option} (columns={{{role!r}: {first!r}}}){remedy}"
    )


def names_by_number(names: Mapping[int, str]) -> tuple[str, ...] | None:
    """Return the class names by number, with the number where a name is missing; None if too many are missing.

    >>> names_by_number({0: "cat", 2: "dog"})
    ('cat', '1', 'dog')
    """
    count = max(names, default=-1) + 1
    are_too_many = count - len(names) > _MAX_UNNAMED
    return None if are_too_many else tuple(names.get(index) or str(index) for index in range(count))


def _label(value: Any, *, as_name: bool = False) -> Label | None:
    try:
        return parse(value)
    except LabelError:
        return Label(name=value.strip()) if as_name and isinstance(value, str) else None


def _list_of(value: Any) -> _List | str:
    """Return the labels of a sample that has several, or why a list is not one of labels."""
    values = value.tolist() if hasattr(value, "tolist") else list(value)
    if any(isinstance(entry, (list, tuple, Mapping)) for entry in values):
        return _NESTED
    if any(isinstance(entry, float) and math.isfinite(entry) and entry != int(entry) for entry in values):
        return "has lists of numbers with fractions"
    return tuple(values)


def could_be_classes(values: Sequence[Any]) -> bool:
    """Return whether values are texts that occur several times, as the names of classes do."""
    texts = [value.strip() for value in values if isinstance(value, str) and value.strip()]
    different = set(texts) if all(isinstance(value, (str, type(None))) for value in values) else set()
    labels = [label for value in different if (label := _label(value)) is not None]
    # a text such as NA, which means a missing value, may be the name of a class too
    return not any(label.number is not None for label in labels) and 2 <= len(labels) <= len(texts) // 2


def _could_be_class_numbers(values: Sequence[Any]) -> bool:
    """Return whether values are a few numbers from 0 that occur several times."""
    labels = set(map(_label, values)) - {NONE}
    numbers = [label.number for label in labels if label is not None and label.number is not None]
    few = 2 <= len(numbers) == len(labels) <= min(len(values) // 2, _MAX_NUMBERS)
    return few and max(numbers) < _SPARSE * len(numbers)  # other numbers are widths, years or ids


def some_of(values: Sequence[Any], count: int = 3) -> str:
    """Return the first different values of a column as text."""
    different: dict[str, None] = {}
    for value in values:
        if value is not None and value != "":
            different.setdefault(str(value)[:_MAX_SHOWN])
        if len(different) == count:
            break
    return ", ".join(different) or "empty"
