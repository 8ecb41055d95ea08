"""The label of a sample, and the classes of a dataset: one rule for everything that reads labels. No I/O.

A source states only what kind of label it has: `name` for class folders, `number` for integers whose meaning is known,
and the value itself for a column of unknown meaning, which `parse` reads. `Labels` collects them and numbers them once,
when all are known. A sample may have several labels: its value is then a list.
"""

from __future__ import annotations

import decimal
import math
import operator
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import LabelError
from wds_tools.format import class_notes
from wds_tools.format.class_notes import like, notes_on_similar, notes_on_words, with_same_number
from wds_tools.format.label_lists import Form, Lists, items_of, why_several, without_prefix
from wds_tools.wording import counted

LabelType = Literal["name", "number"]
"""What the values of a column are, where the user decides it (``--label-type``)."""

NO_NUMBER = -1
"""In arrays of class numbers: a sample without a label."""

MAX_CLASSES = 1_000_000
"""Maximum number of class names. If there are more, they are probably not classes but, for example, captions."""

_LARGEST = 2**63 - 1
_MAX_QUOTED = 10
_MIN_ROWS = 20  # with fewer lists of labels, all may differ
_MAX_TEXT = 40  # characters of a label in a message
_PART = 1 << 18  # codes at a time: NumPy makes int64 of them to count them, and to take values by them
_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]*))(?:\.0*)?")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# What str() makes of lists, dictionaries, arrays and other objects. A class may be called drumstick(chicken).
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_OBJECT = re.compile(
    r"\[.*\]|\{.*\}|((torch|np|numpy|tf)\.\w+|tensor|array|ndarray)\(.*\)|<.* object at 0x\w+>", re.DOTALL
)
# How programs write missing values, in upper or lower case.
_MISSING = frozenset(["nan", "na", "n/a", "#na", "#n/a", "<na>", "none", "null", "nat"])
BOOLEANS = ("false", "true")
"""The classes of booleans, however they are written."""


class Label(NamedTuple):
    """The label of a sample: a number, a name, or neither; never both.

    Attributes:
        number: Class number, 0 to 2**63 - 1.
        name: Name of the class.
    """

    number: int | None = None
    name: str | None = None


NONE = Label()
"""No label."""

_ONE_AND_ZERO = frozenset([Label(0), Label(1)])
_TRUE_AND_FALSE = frozenset(Label(name=text) for text in BOOLEANS)


def number(value: int) -> Label:
    """Return a class number as a label; a negative number means that there is none.

    >>> number(3), number(-1)
    (Label(number=3, name=None), Label(number=None, name=None))
    """
    if value > _LARGEST:
        raise LabelError(f"label {value} does not fit into 64 bits; allowed are 0 to {_LARGEST}")
    return Label(value) if value >= 0 else NONE


def name(text: str) -> Label:
    """Return the name of a class as a label: always a name, even if it is written in digits.

    >>> name("10")
    Label(number=None, name='10')
    """
    return Label(name=text) if text else NONE


def parse(value: Any) -> Label:
    """Return the label that a text or scalar of unknown meaning stands for.

    >>> [parse(value).number for value in (3, "3", " 3.0 ", 3.0)]
    [3, 3, 3, 3]
    >>> [parse(value).name for value in (" cat", "007", True, "False")]
    ['cat', '007', 'true', 'false']
    >>> {parse(value) for value in (None, "", "nan", "None", float("nan"), -1)}
    {Label(number=None, name=None)}

    Raises:
        LabelError: A number with a fraction or outside int64, the text of an object such as ``tensor(1)``, or a value
            that is neither a number nor a text.
    """
    value = _scalar(value)
    if isinstance(value, Label):
        return value
    if isinstance(value, bool):
        return Label(name=BOOLEANS[value])
    if isinstance(value, str):
        return _parse_text(value.strip())
    return NONE if value is None else _parse_number(value)


def _parse_text(text: str) -> Label:
    if not text or text.lower() in _MISSING:
        return NONE
    if text.lower() in BOOLEANS:
        return Label(name=text.lower())
    if match := _WHOLE.fullmatch(text):
        return number(int(match[1])) if len(text) <= _MAX_TEXT else number(_LARGEST + 1)
    if _DECIMAL.fullmatch(text) and not _LEADING_ZERO.fullmatch(text):
        raise LabelError(f"label {text[:_MAX_TEXT]!r} is not a whole number")
    if _CONTROL.search(text):
        raise LabelError(
            f"label {text[:_MAX_TEXT]!a} has control characters, so it is binary data and not a name: write it as "
            "text, such as '3' or 'cat'"
        )
    if _OBJECT.fullmatch(text):
        raise LabelError(
            f"label {text[:_MAX_TEXT]!r} is the text of a list or another object, not a number or a name: write its "
            "value itself, or pass --label-type name (label_type='name') if it is the name of a class"
        )
    return Label(name=text)


def _parse_number(value: Any) -> Label:
    if isinstance(value, (float, decimal.Decimal)):
        if math.isnan(value):
            return NONE
        if not math.isfinite(value) or value != int(value):
            raise LabelError(f"label {value} is not a whole number")
        return number(int(value))
    try:
        return number(operator.index(value))
    except TypeError:
        raise LabelError(
            f"label {str(value)[:_MAX_TEXT]!r} of type {type(value).__name__} is neither a number nor a text"
        ) from None


def _scalar(value: Any) -> Any:
    """Return a NumPy scalar or a tensor of one value as a Python value, and bytes as text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of(bytes(value))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return _scalar(value.item()) if not isinstance(value, bytes) else value
    return value


def _text_of(data: bytes) -> str:
    """Return bytes as text: UTF-8, or UTF-16 with a byte order mark, as programs on Windows write it."""
    try:
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        if _CONTROL.search(text):
            return text  # binary data, see `_parse_text`
        raise LabelError(f"label {data[:_MAX_TEXT]!r} is not UTF-8 text: save it as UTF-8, or as a number") from None


class Classes(tuple[str, ...]):
    """The names of the classes of a dataset, by number; no name occurs twice."""

    __slots__ = ()

    def __new__(cls, names: Iterable[str] = ()) -> Classes:
        """Return the classes with these names."""
        classes = super().__new__(cls, names)
        if len(set(classes)) < len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise LabelError(
                f"class {twice!r} occurs twice among the class names, as number {classes.index(twice)} and as number "
                f"{classes.index(twice, classes.index(twice) + 1)}: give each class a unique name (--classes, "
                "classes=)"
            )
        return classes

    @classmethod
    def sorted(cls, names: Iterable[str]) -> Classes:
        """Return different names in the order of torchvision's ``ImageFolder``."""
        return cls(sorted(set(names), key=lambda name: name.encode("utf-8", "surrogateescape")))

    def numbers(self) -> dict[str, int]:
        """Return name -> number."""
        return {name: number for number, name in enumerate(self)}

    def united(self, other: Iterable[str]) -> tuple[Classes, NDArray[np.int64]]:
        """Return these classes followed by the new ones of ``other``, and the number of each of ``other``, int64 [m].

        >>> Classes(["cat", "dog"]).united(["dog", "fig"])
        (('cat', 'dog', 'fig'), array([1, 2]))
        """
        other = Classes(other)
        union = Classes(dict.fromkeys([*self, *other]))
        numbers = union.numbers()
        return union, np.array([numbers[name] for name in other], np.int64)

    def matched(self, given: Iterable[str], *, where: str) -> NDArray[np.int64]:
        """Return the number that each of these classes has among the classes that the user gave, int64 [n].

        If a name has another number among the given ones, names are matched. Otherwise the given names replace these,
        number by number.
        """
        given = Classes(given)
        numbers = given.numbers()
        if all(numbers.get(name, number) == number for number, name in enumerate(self)):
            if len(given) < len(self):
                raise LabelError(
                    f"{where} has {counted(len(self), 'class', 'classes')}, but {len(given)} were given "
                    f"({quoted(given)}): name all"
                )
            return np.arange(len(self))
        missing = [name for name in self if name not in numbers]
        if missing:
            raise LabelError(
                f"class {missing[0]!r} of {where} is not among the given classes ({quoted(given)}), which have its "
                f"other classes in another order: add it to them{like(missing[0], given)}"
            )
        return np.array([numbers[name] for name in self], np.int64)


class Numbered(NamedTuple):
    """The labels of a dataset as class numbers.

    Attributes:
        numbers: int64 [n], `NO_NUMBER` for a sample without a label, and for all samples if they have several.
        classes: Class names by number; empty if labels are only numbers, or if there are none.
        notes: What a user should know about values that were read as no label, or in an unexpected way.
        form: What the values are.
        several: The class numbers of each sample, each once, None for a sample without a label; None if a sample has at
            most one label.
    """

    numbers: NDArray[np.int64]
    classes: Classes
    notes: tuple[str, ...]
    form: Form = Form()
    several: list[tuple[int, ...] | None] | None = None


def _counted(codes: NDArray[np.int32], values: int) -> NDArray[np.int64]:
    """Return how often each code occurs: int64 [values]."""
    parts = (codes[start : start + _PART] for start in range(0, len(codes), _PART))
    return sum((np.bincount(part, minlength=values) for part in parts), np.zeros(values, np.int64))


def _taken(values: NDArray[np.int64], codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the value of each code: int64 [codes]."""
    taken = np.empty(len(codes), np.int64)
    for start in range(0, len(codes), _PART):
        taken[start : start + _PART] = values[codes[start : start + _PART]]
    return taken


class Labels:
    """The labels of all samples of a source, collected in their order and numbered once.

    Args:
        where: Name of the source, for error messages.
        label_type: Whether values of unknown meaning are all names or all numbers; None decides by `parse`.
        separator: Text between the labels of a sample, if a text has several; None if it is one label.
        form: What the values are, if that is known from other samples of the source.
    """

    def __init__(
        self, where: str, *, label_type: LabelType | None = None, separator: str | None = None, form: Form | None = None
    ) -> None:
        self._where = where
        self._label_type = label_type
        self._separator = separator
        self._form = form
        self._lists = Lists()
        self._codes = array("i")  # of all values of all samples
        self._code_of: dict[tuple[type, Any], int] = {}  # by type too, because 1, 1.0 and True are equal
        self._values: list[Any] = []  # different values, by code
        self._last: Any = None

    def add(self, value: Any, count: int = 1) -> None:
        """Add the label of the next samples: a `Label`, a value that `parse` reads, or a list of these."""
        value = _scalar(value)
        items = items_of(value, self._separator, as_text=self._label_type == "name")
        self._lists.add(None if items is None else len(items), count)
        start = len(self._codes)
        for item in [value] if items is None else items:
            self._add_value(_scalar(item))
        if count > 1:
            self._codes.extend(self._codes[start:] * (count - 1))

    def _add_value(self, value: Any) -> None:
        if self._codes and value is self._last:  # often: files come by folder
            self._codes.append(self._codes[-1])
            return
        self._last = value
        if isinstance(value, float) and math.isnan(value):  # each NaN would be another value
            value = None
        try:
            code = self._code_of.setdefault((type(value), value), len(self._values))
        except TypeError as error:  # it has no hash
            raise LabelError(
                f"{self._where} has label {str(value)[:_MAX_TEXT]!r} of type {type(value).__name__}; allowed are "
                "numbers, names, and lists of these: choose another label (--label, --column label=...)"
            ) from error
        if code == len(self._values):
            self._values.append(value)
        self._codes.append(code)

    def numbered(
        self, given: Iterable[str] | None = None, own: Iterable[str] | None = None, *, are_numbers: bool = False
    ) -> Numbered:
        """Return the class number of every sample, or its class numbers.

        Numbers stay as they are. Names are numbered by ``own`` or ``given``, otherwise in sorted order. Booleans are
        the classes ``false`` and ``true``. Lists of equal length with only 0 and 1, or booleans, have one value for
        each class; if a single value of each is 1, samples have one label. They are lists of class numbers if the type
        of the values says so (``are_numbers``).

        Raises:
            LabelError: Labels are both numbers and names, have fractions, or are not among the classes; or it is not
                clear whether a sample has several.
        """
        as_given = given
        given, own, self._values = Classes(given or ()), Classes(own or ()), without_prefix(self._values)
        form = self._form or (Form(self._lists.has_lists) if are_numbers else self._found_form(own or given))
        if self._lists.has_lists and form == Form():
            raise LabelError(f"{self._where} has a list of labels, and other samples have one label each")
        if form.width:
            return self._numbered_rows(form, given, own)
        labels = self._labels(own or given)
        if not (own or given or self._label_type):
            self._refuse_joined()
        self._refuse_both_kinds(labels)
        names = {label.name for label in labels if label.name is not None}
        if len(names) > MAX_CLASSES:
            raise LabelError(
                f"{self._where} has {len(names):,} different labels, such as {quoted(sorted(names)[:2])}; allowed are "
                f"{MAX_CLASSES:,} classes: they are probably not classes, choose another label (--label, --column "
                "label=...)"
            )
        classes = own or given or (Classes(BOOLEANS) if names and names <= {*BOOLEANS} else Classes.sorted(names))
        numbers = classes.numbers()
        by_code = np.array([self._number(label, numbers) for label in labels], np.int64)
        used = by_code[by_code != NO_NUMBER].tolist()
        is_short = bool(given and own) and not names and max(used, default=0) >= len(own)
        own, classes = (Classes(), given) if is_short else (own, classes)
        if classes and max(used, default=0) >= len(classes):
            raise LabelError(f"{self._where} has {class_notes.why_too_few(classes, used)}")
        if own and given:
            new = own.matched(given, where=self._where)
            by_code = np.where(by_code == NO_NUMBER, NO_NUMBER, new[by_code])
            classes = given
        codes = np.asarray(self._codes)
        classes = classes if by_code.max(initial=-1) >= 0 or given or own else Classes()
        notes = self._notes(labels, _counted(codes, len(labels)))
        notes = (*notes, *class_notes.notes_on_given(() if names else given, own, used))
        notes += class_notes.notes_from_one(as_given, by_code, self._where)
        if not form.is_several:
            return Numbered(_taken(by_code, codes), classes, notes)
        several, repeated, lost = self._lists.split(by_code[codes], NO_NUMBER)
        if lost:
            notes = (*notes, f"{counted(lost, 'missing value')} in lists of labels: the other labels are kept")
        if repeated:
            notes = (*notes, f"{counted(repeated, 'sample')} with the same label several times: it is kept once")
        return Numbered(np.full(len(several), NO_NUMBER), classes, notes, form, several)

    def _found_form(self, classes: Classes) -> Form:
        """Return what the values are: one label, a list of labels, or a list with 0 or 1 for each class."""
        if not self._lists.has_lists or self._label_type is not None:
            return Form(self._lists.has_lists)
        codes, in_lists = np.asarray(self._codes), self._lists.are_in_lists()
        try:
            labels = {parse(self._values[code]) for code in np.unique(codes[in_lists])}
        except LabelError:
            return Form(is_several=True)  # `_labels` reports all errors
        flags, width = labels - {NONE}, self._lists.common_length
        if not flags or not (flags <= _ONE_AND_ZERO or flags <= _TRUE_AND_FALSE):
            if width > 1 and in_lists.sum() > width and all(label.number is not None for label in labels):
                self._refuse_pairs(codes[in_lists].reshape(-1, width))
            return Form(is_several=True)
        if flags <= _ONE_AND_ZERO and (width < 2 or (width == 2 and classes and len(classes) != width)):
            return Form(is_several=True)
        singles = {self._values[code] for code in np.unique(codes[~in_lists])}
        if width < 2 or NONE in labels or {parse(value) for value in singles} - {NONE}:
            raise LabelError(
                f"{self._where} has lists of 0 and 1, or of booleans, as labels, and not all have the same length, or "
                "some values are missing; allowed are lists with 0 or 1 for each class, and lists of class numbers: "
                "correct the labels, or pass --label-type number (label_type='number') for class numbers"
            )
        return Form(is_several=True, width=width)

    def _refuse_pairs(self, rows: NDArray[np.int64]) -> None:
        """Raise an error if lists of one length are probably not labels of one kind.

        They are not if one has a number twice, or if all of many rows differ, as coordinates do.
        """
        ordered = np.sort(rows, axis=1)
        twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)).tolist()
        all_differ = len(rows) >= _MIN_ROWS and len(np.unique(rows, axis=0)) == len(rows)
        if twice or all_differ:
            shown = [self._values[code] for code in rows[twice[0] if twice else 0]]
            problem = f"{shown} has a number twice" if twice else f"all differ, such as {shown}"
            raise LabelError(
                f"{self._where} has lists of {rows.shape[1]} numbers as labels, and {problem}; "
                "if the positions are different labels, such as a coarse and a fine class, keep one as the label, and "
                "the others as separate entries; if all are numbers of the same classes, pass --label-type number "
                "(label_type='number')"
            )

    def _numbered_rows(self, form: Form, given: Classes, own: Classes) -> Numbered:
        """Return the labels where each list has 0 or 1 for each class."""
        width, codes, in_lists = form.width, np.asarray(self._codes), self._lists.are_in_lists()
        if self._lists.has_lists and self._lists.common_length != width:
            raise LabelError(f"{self._where} has a list of {self._lists.common_length} values; others have {width}")
        if (known := own or given) and len(known) != width:
            raise LabelError(
                f"{self._where} has lists of {width} values as labels, one for each class, but there are "
                f"{counted(len(known), 'class name')}: name all classes (--classes, classes=)"
            )
        is_one = np.array([parse(value) in (Label(1), Label(name="true")) for value in self._values], np.bool_)
        rows = is_one[codes[in_lists]].reshape(-1, width)
        if self._form is None and (rows.sum(1) == 1).all():
            form = form._replace(is_several=False)
        if not form.is_several and (rows.sum(1) != 1).any():
            raise LabelError(
                f"{self._where} has a list as label that does not contain exactly one 1, unlike other samples"
            )
        new = own.matched(given, where=self._where) if own and given else np.arange(width)
        has_list = self._lists.lengths >= 0
        numbers = np.full(len(has_list), NO_NUMBER)
        several: list[tuple[int, ...] | None] | None = None
        meaning = "several labels"
        if form.is_several:
            remaining = iter(rows)
            several = [tuple(new[np.flatnonzero(next(remaining))].tolist()) if known else None for known in has_list]
        else:
            numbers[has_list] = new[rows.argmax(1)]
            meaning = "one label, as a single value is 1"
        note = f"the labels are lists of 0 and 1 for {width} classes, so a sample has {meaning}"
        return Numbered(numbers, Classes(given or own), (note,), form, several)

    def _refuse_joined(self) -> None:
        """Raise an error if texts consist of several labels."""
        texts = {text for value in self._values if isinstance(value, str) and (text := value.strip())}
        if problem := why_several(texts):
            raise LabelError(f"{self._where} has {problem}")

    def _labels(self, classes: Classes) -> list[Label]:
        """Return the label of each distinct value."""
        if self._label_type == "number":
            labels = [_numbered(value) for value in self._values]
            remedy = "omit --label-type number (label_type='number')"
            if names := [label.name for label in labels if label.name is not None]:
                raise LabelError(
                    f"{self._where} has classes such as {names[0]!r}, which are names and not numbers: {remedy}"
                )
            folders = (label.name for label in self._values if isinstance(label, Label) and label.name is not None)
            if same := with_same_number(folders):
                raise LabelError(f"{self._where} has {quoted(same)}, the same number: rename one, or {remedy}")
            return labels
        if self._label_type == "name" or self._are_names_among(classes):
            return [_named(value) for value in self._values]
        labels, errors = [], []
        for value in self._values:
            try:
                labels.append(parse(value))
            except LabelError as error:
                errors.append(error)
        if errors:
            self._refuse(errors)
        return labels

    def _are_names_among(self, classes: Classes) -> bool:
        """Return whether texts that look like numbers are names, because the known classes include all texts."""
        texts = {value.strip() for value in self._values if isinstance(value, str)} - {""}
        numbers = {text: int(match[1]) for text in texts if (match := _WHOLE.fullmatch(text))}
        all_known = bool(texts) and texts <= {*classes}
        if not all(isinstance(value, (str, type(None))) for value in self._values) or not numbers.keys() <= {*classes}:
            return False
        by_name = classes.numbers()
        if not numbers or texts - numbers.keys():  # for 0.5, which can only be a name; and for 3 and cat together
            return all_known
        if all(by_name[text] == number for text, number in numbers.items()):
            return False
        text = min(text for text, number in numbers.items() if by_name[text] != number)
        raise LabelError(
            f"{self._where} has label {text!r}, which can be class number {numbers[text]} or the name of class "
            f"{by_name[text]}: pass --label-type name or --label-type number (label_type=)"
        )

    def _refuse(self, errors: Sequence[LabelError]) -> None:
        """Raise an error that shows two of the values that are not labels."""
        shown = ", ".join(str(error) for error in errors[:2])
        raise LabelError(
            f"{self._where}: {shown}; allowed are whole numbers and names: choose another label (--label), pass "
            "--column label= if they are numbers to predict, or --label-type name (label_type='name') for class names"
        ) from errors[0]

    def _refuse_both_kinds(self, labels: Sequence[Label]) -> None:
        """Raise an error if there are both numbers and names, or only 1 and -1, where -1 means no label."""
        numbers = [label.number for label in labels if label.number is not None]
        names = [label.name for label in labels if label.name is not None]
        if {*numbers} == {1} and not names and {"-1", "-1.0"} & {str(value).strip() for value in self._values}:
            raise LabelError(
                f"{self._where} has only 1 and -1, and -1 means no label: write 1 and 0, or pass --label-type name"
            )
        if numbers and names:
            raise LabelError(
                f"{self._where} has labels that are numbers ({quoted(map(str, numbers[:2]))}) and labels that are "
                f"names ({quoted(names[:2])}): pass --label-type name (label_type='name') if all are names, "
                "--label-type number if the names mean that there is no label, or correct the labels"
            )

    def _number(self, label: Label, numbers: dict[str, int]) -> int:
        """Return the class number of a label."""
        if label.name is None:
            return NO_NUMBER if label.number is None else label.number
        if label.name not in numbers:
            raise LabelError(
                f"class {label.name!r} in {self._where} is not among the given classes ({quoted([*numbers])}): add it"
                f"{like(label.name, numbers)}"
            )
        return numbers[label.name]

    def _notes(self, labels: Sequence[Label], counts: NDArray[np.int64]) -> tuple[str, ...]:
        """Return what a user should know about values that are not labels, or look like the same class."""
        without = [
            (value, int(count))
            for value, label, count in zip(self._values, labels, counts, strict=True)
            if label == NONE and value not in (None, "", NONE)
        ]
        notes = []
        texts = {value.strip() for value in self._values if isinstance(value, str)} - {""}
        if self._separator is None and self._label_type is None:
            notes += notes_on_words(texts)
        if without:
            total = sum(count for _, count in without)
            shown = quoted([str(value)[:_MAX_TEXT] for value, _ in without[:3]])
            texts = {str(value).strip().lower() for value, _ in without}
            remedy = "; pass --label-type name if it is the name of a class" if texts & _MISSING else ""
            notes.append(f"{counted(total, 'sample')} without a label: the value is {shown}{remedy}")
        return (*notes, *notes_on_similar(label.name for label in labels if label.name))


def readings(value: Any, classes: Sequence[str]) -> list[int]:
    """Return the class numbers that a value can stand for: as a number, and as the name of a class.

    >>> readings("1", ["0", "2", "1"]), readings("fig", ["cat", "fig"]), readings("pea", ["cat", "fig"])
    ([1, 2], [1], [])
    """
    label, text = _numbered(value), _named(value).name
    numbers = [] if label.number is None else [label.number]
    return numbers + [number for number, name in enumerate(classes) if name == text]


def _named(value: Any) -> Label:
    """Return a value as a name, whatever it looks like."""
    value = _scalar(value)
    if isinstance(value, Label) or value is None:
        return value or NONE
    return name(BOOLEANS[value] if isinstance(value, bool) else str(value).strip())


def _numbered(value: Any) -> Label:
    """Return a value as a number; no label if it is not one."""
    value = _scalar(value)
    if isinstance(value, Label) and value.name is not None and value.name.isdecimal():
        value = value.name
    if isinstance(value, str) and _LEADING_ZERO.fullmatch(value.strip()):
        return number(int(value))
    try:
        label = parse(value)
    except LabelError:
        return NONE
    if label.name in BOOLEANS and not isinstance(value, Label):
        return number(BOOLEANS.index(label.name))
    return label if isinstance(value, Label) or label.name is None else NONE


def quoted(names: Iterable[str]) -> str:
    """Return the first names in quotes; followed by their count if there are more.

    >>> quoted(["cat", "fig"])
    "'cat', 'fig'"
    """
    names = list(names)
    more = f", ... {len(names):,} in all" if len(names) > _MAX_QUOTED else ""
    return ", ".join(map(repr, names[:_MAX_QUOTED])) + more
