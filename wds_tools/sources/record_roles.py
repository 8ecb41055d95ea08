"""Roles of the names in records, found from all records of a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.sources.base import Source
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    check_not_image,
    field_name,
    find_column,
    is_second_label,
    is_text_field,
    no_image_error,
    not_finite,
    pixel_columns,
    pixels_error,
    plain_name,
    usual_columns,
)
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.label_choice import (
    Flags,
    LabelChoice,
    ambiguous,
    check_only_label,
    choose_label,
    hint,
    is_name,
    is_x,
    one_hot,
    with_matching_names,
)
from wds_tools.sources.layouts import split_in
from wds_tools.sources.values import (
    ALL_KINDS,
    IMAGES,
    SCALARS,
    Kind,
    Lengths,
    Repeated,
    kind_of,
    label_value,
    owner,
    reason_of,
    resolved,
    text_of,
)

IN_LISTS = ("1", "0", "2")
"""Where the label is in a list, whose values have their positions as names: second if the image is first."""

_HEIGHTS = ("height", "rows", "h", "image/height", "image_height", "img_height")
_WIDTHS = ("width", "cols", "columns", "w", "image/width", "image_width", "img_width")
_DEPTHS = ("depth", "channels", "c", "image/depth", "image/channels", "image_depth", "image_channels")
_SPLIT_NAMES = ("split", "splits", "subset", "partition", "fold", "usage")
_SPLIT_NUMBERS = frozenset(["true", "false", *map(str, range(10)), *map(str, map(float, range(10)))])
_MAX_CLASSES = 25_000  # different texts of a name that may have the class names
_LISTS = {Kind.LIST, Kind.VECTOR, Kind.ARRAY, Kind.PIXELS, Kind.MAPPING}
_TEXTS = {Kind.TEXT, Kind.MISSING}
_NO_FLAGS = bytearray()
_NO_IMAGES = {Kind.ARRAY, Kind.BINARY}
_SHAPES = ("shape", "image/shape", "image_shape", "img_shape")


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of names.

    Attributes:
        image: The image.
        label: The label; None without labels.
        names: The text that is the class name of the label.
        shape: Height, width and channels of images that are raw pixels, or one name with all of them.
        lists: Names whose `Repeated` values are lists.
        fields: Name -> field of texts; without extension for images and arrays.
        hot: Names with 0 or 1 for each class, which are the label together.
        classes: Class names by number that records have.
        notes: What a user should know about the label.
    """

    image: str
    label: str | None = None
    names: str | None = None
    shape: tuple[str, ...] = ()
    lists: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)
    hot: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def needs_other_sizes(self, guess: Roles) -> bool:
        """Return whether samples may be longer than they are with other roles."""
        same = replace(self, label=guess.label, names=guess.names, fields=guess.fields)
        changed = {name for name, _ in guess.fields.items() ^ self.fields.items()} - self.used
        return same != guess or guess.label not in (None, self.label) or bool(changed)

    @property
    def used(self) -> set[str]:
        """Return the names that are not separate entries or fields."""
        return {self.image, *filter(None, (self.label, self.names)), *self.hot, *self.shape}


class NamedValues(Source):
    """Base of sources whose records map names to values.

    Attributes:
        part: What a name is called in the account.
        preferred: Role -> names that are tried first.
        bgr: Whether pixels are in the order B, G, R.
        class_lists: Name -> class names that its type has.
        names_files: Whether all values are texts or JSON, and values with the name of another field name a file.
        states_classes: Whether all names with only 0 and 1 are classes.
        has_classes: Whether the names of records have classes, such as folders. Then names with only 0 and 1 are not.
    """

    part: ClassVar[str] = "entry"
    names_files: ClassVar[bool] = False
    preferred: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    bgr: bool = False
    states_classes: bool = False
    has_classes: bool = False
    class_lists: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def label_groups(self, names: Sequence[str]) -> list[list[str]]:
        """Return the names that are usual for labels: the names of a group if no earlier group has the label."""
        return [usual_columns(LABEL, names)]

    def entry_name(self, name: str) -> str:
        """Return what a name is in records."""
        return name

    def is_transcription(self, name: str, values: Sequence[Any]) -> bool:  # noqa: ARG002 - for formats that have them
        """Return whether values with the name of a label are texts, not classes."""
        return False


def _names_splits(column: str) -> bool:
    """Return whether a column is named like one of splits.

    >>> _names_splits("is_valid"), _names_splits("Usage"), _names_splits("validity")
    (True, True, False)
    """
    return column.lower() in _SPLIT_NAMES or bool(split_in(column))


class Names:
    """What the records of a source have, name by name."""

    def __init__(self, source: NamedValues) -> None:
        self.source = source
        self.kinds: dict[str, Counter[str]] = {}
        self.lists: set[str] = set()
        self.labels: dict[str, list[Any]] = {}  # name that may be the label -> its values
        self.transcripts: set[str] = set()  # names of labels that are texts, not classes
        self.total = 0
        self.lost: dict[str, int] = {}  # name -> numbers that JSON does not have
        self.splits: dict[str, set[str] | None] = {}  # name -> its different texts, if all are names of splits
        self.texts: dict[str, list[str | None] | None] = {}  # name -> its texts; None if too many differ
        self.names_of_label: str | None = ""  # which name has the class names; "" if it is not known, None for none
        self.flags = Flags()
        self.lengths: dict[str, Lengths] = {}  # name -> lengths of its lists
        self.hot: tuple[str, ...] | None = None  # names with 0 or 1 for each class, if that is known
        self._different: dict[str, dict[str, str]] = {}  # name -> its different texts
        self._same: dict[str, str] = {}

    def add(self, values: Mapping[str, Any] | str) -> int:
        """Add a record; return its index among the records that could be parsed."""
        if isinstance(values, str):
            return -1
        for name, stored in values.items():
            value = self._value(name, stored)
            kind = kind_of(value)
            if isinstance(value, Repeated) and kind == Kind.LIST:
                self.lists.add(name)
            if name not in self.kinds:
                self.declare(name)
            self.kinds[name][kind] += 1
            if kind != Kind.TEXT and (count := not_finite(value)):
                self.lost[name] = self.lost.get(name, 0) + count
            value = text_of(value) if kind == Kind.TEXT else value
            self._keep(name, value, kind)
            if kind in _LISTS or isinstance(stored, Repeated) or (kind == Kind.TEXT and value[:1] == "["):
                self.add_lengths(name, [value], self.total)
        self._fill_up()
        return self.total - 1

    def _fill_up(self) -> None:
        """Add None for the names that the record does not have."""
        self.total += 1
        for values in (*self.labels.values(), *filter(None, self.texts.values())):
            if len(values) < self.total:
                values.append(None)
        for name, codes in self.flags.items():
            if codes is not None and len(codes) < self.total:
                self.flags[name] = None

    def _keep(self, name: str, value: Any, kind: str) -> None:
        """Keep a value that may be a label, a class name, the name of a split, or 0 or 1 for a class."""
        if self.flags.get(name, _NO_FLAGS) is not None:
            self.flags.extend(name, [value])
        if kind == Kind.TEXT or self.may_be_splits(name):
            self.add_texts(name, [value])
        if name in self.labels:
            self.extend(name, [value])
        elif kind == Kind.TEXT and (texts := self.texts.get(name, [])) is not None:
            if (same := self._different[name].get(value) if texts else None) is not None:
                texts.append(same)
            else:
                self.extend_texts(name, [value])

    def add_lengths(self, name: str, values: Iterable[Any], start: int = 0) -> None:
        """Keep the lengths of lists, of the rows from ``start``."""
        self.lengths.setdefault(name, Lengths()).extend(values, start)

    def _value(self, name: str, stored: Any) -> Any:
        value = resolved(stored, is_list=False)
        is_number = isinstance(value, np.ndarray) and value.size == 1 and self.may_be_label(name)
        return value.item() if is_number else value

    def declare(self, name: str, *kinds: str) -> None:
        """Add a name, and the kinds of its values if they are known. Values of a label are added with `extend`."""
        self.kinds[name] = Counter(kinds)
        if not IMAGES & {*kinds} and self.may_be_label(name):
            self.labels[name] = [None] * self.total

    def extend(self, name: str, values: Iterable[Any]) -> None:
        """Add the values of a name that may be the label. Equal texts are kept once."""
        labels = (label_value(value, kind_of(value)) for value in values)
        same = self._same
        self.labels[name] += [same.setdefault(value, value) if isinstance(value, str) else value for value in labels]

    def may_be_class_names(self) -> list[str]:
        """Return the names of texts if there are numbers that may be the label."""
        numbers = (name for name in self.labels if {Kind.WHOLE, Kind.DECIMAL} & {*self.kinds[name]})
        texts = (name for name, kinds in self.kinds.items() if kinds.keys() <= {Kind.TEXT, Kind.MISSING})
        are_needed = any(name not in self.source.class_lists for name in numbers)
        return [name for name in texts if name not in self.labels] if are_needed else []

    def extend_texts(self, name: str, values: Iterable[Any]) -> None:
        """Add texts that may be class names. They are kept as long as they can be."""
        if name not in self.texts:
            self.texts[name], self._different[name] = [None] * self.total, {}
        texts, different = self.texts[name], self._different[name]
        if texts is None:
            return
        for value in values:
            text = text_of(value) if value else None
            texts.append(different.get(text, text) if text else None)
            if text and text not in different:
                different[text] = text
                if len(different) > _MAX_CLASSES or not is_name(text):
                    self.texts[name] = None
                    different.clear()
                    return

    def may_be_splits(self, name: str) -> bool:
        """Return whether the values of a name can be names of splits."""
        return Kind.TEXT in self.kinds[name] or _names_splits(self.source.entry_name(name))

    def add_texts(self, name: str, values: Iterable[Any]) -> None:
        """Keep the different values of a name, as long as all are names of splits, or numbers of a column of splits."""
        if (splits := self.splits.setdefault(name, set())) is None:
            return
        is_named = _names_splits(self.source.entry_name(name))
        for value in values:
            if value is None or (isinstance(value, str) and not value):
                continue
            text = str(value)
            is_split = isinstance(value, str) and is_split_name(text)
            if is_named:  # such as PublicTest in the column Usage of FER-2013
                is_split = is_split or text.lower() in _SPLIT_NUMBERS or bool(split_in(text))
            if text not in splits and not is_split:
                self.splits[name] = None
                return
            splits.add(text)

    def values_of(self, roles: Roles) -> list[Any]:
        """Return the label of each record, a list of labels if one record has several; nothing without labels."""
        if roles.hot:
            return list(self.flags.rows(roles.hot, self.total).astype(int).tolist())
        labels = self.labels.get(roles.label or "", [])
        if any(isinstance(label, tuple) for label in labels):
            return [label if isinstance(label, (tuple, str)) or label is None else (label,) for label in labels]
        return labels

    def may_be_label(self, name: str) -> bool:
        """Return whether a name may be the label, or has class names."""
        source = self.source
        preferred = (*source.preferred.get(LABEL, ()), *source.preferred.get("names", ()))
        named = {source.columns.get(LABEL), *source.class_lists, *preferred}
        return name in named or is_x(name) or is_second_label(name) or any(source.label_groups([name]))

    def find(
        self,
        values: Callable[[str], Iterable[Any]],
        head: Callable[[str], Sequence[Any]],
        image: str | None = None,
    ) -> Roles:
        """Return the roles of names that were declared, whose values are read as far as they are needed.

        Args:
            values: Returns the values of a name.
            head: Returns the first ones.
            image: The name of the image, if it is known.
        """
        for name in self.labels:
            self.extend(name, values(name))
        if any(type(value) is tuple for labels in self.labels.values() for value in labels):
            for name, kinds in self.kinds.items():
                is_json = Kind.TEXT in kinds and all(str(value).startswith("[") for value in head(name))
                if is_json or kinds.keys() & _LISTS:
                    self.add_lengths(name, values(name))
        for name in self.may_be_class_names():
            self.extend_texts(name, values(name))
        roles = self.roles(image)
        if (
            roles.label is None
            and LABEL not in self.source.columns
            and self._add_flags(self.facts(roles), values, head)
        ):
            roles = self.roles(image)
        for name in self.facts(roles):
            if self.may_be_splits(name):
                self.add_texts(name, chain(head(name), values(name)))
        return roles

    def _add_flags(
        self,
        names: Sequence[str],
        values: Callable[[str], Iterable[Any]],
        head: Callable[[str], Sequence[Any]],
    ) -> bool:
        """Read the names that may have 0 or 1 for a class, and the texts that may be the label instead."""
        for name in names:
            first = Flags()
            first.extend(name, head(name))
            if first.of(name):
                self.flags.extend(name, values(name))
        for name in names if self.flags else ():
            if self.kinds[name].keys() <= {Kind.TEXT} and name not in self.texts:
                self.extend_texts(name, values(name))
        return bool(self.flags)

    def roles(self, image: str | None = None) -> Roles:
        """Return the roles of the names; the name of the image may be given.

        Raises:
            SourceError: There is no image, or it is not clear which value is the image or the label.
        """
        is_given = image is not None
        image = image or self._image()
        shape = () if is_given or self.kinds[image].keys() & IMAGES else self._shape()
        choice = self.label(image)
        label, names, _, classes, notes, hot = choice
        roles = Roles(image, label, names, shape, frozenset(self.lists), {}, hot, classes, notes)
        return replace(roles, fields=self._fields(roles))

    def record_roles(self, image: str = "") -> Roles:
        """Return the roles without the label."""
        roles = Roles(image, lists=frozenset(self.lists))
        return replace(roles, fields=self._fields(roles))

    def _image(self) -> str:
        source, where = self.source, self.source.name
        if IMAGE in source.columns:
            named = str(find_column(IMAGE, self.kinds, source.columns, where=where))
            if self.kinds[named].keys() <= {*SCALARS, Kind.DECIMAL, Kind.MAPPING}:
                raise self._no_bytes(named)
            return named
        for allowed in (IMAGES, {Kind.SEVERAL_IMAGES}, {Kind.BINARY} if self._shape() else set()):
            images = [name for name, kinds in self.kinds.items() if kinds.keys() & allowed]
            usual = self._usual_image(images)
            if usual is None and len(images) > 1:
                raise ambiguous(IMAGE, where, {name: self._described(name) for name in sorted(images)}, source.part)
            if images:
                return usual or images[0]
        preferred = source.preferred.get(IMAGE, ())
        others = ({kind for kinds in self.kinds.values() for kind in kinds} - ALL_KINDS) | _NO_IMAGES
        may_be = [name for name, kinds in self.kinds.items() if name in preferred or kinds.keys() & others]
        usual = self._usual_image(may_be)
        if usual and self.kinds[usual].keys() - {Kind.MISSING}:
            return usual  # each record is skipped with its reason
        if pixels := pixel_columns(self.kinds) or self._usual_with(Kind.LIST):
            raise pixels_error(where, pixels[0], source.part)
        if texts := self._usual_with(Kind.TEXT):
            raise self._no_bytes(texts[0])
        nested = next((name for name, kinds in self.kinds.items() if Kind.LOSSY in kinds), None)
        hint = f"; bytes in lists and structs, as in {nested!r}, must be values of their own" if nested else ""
        raise no_image_error(where, [f"{name} ({self._described(name)})" for name in self.kinds], source.part, hint)

    def _no_bytes(self, name: str) -> SourceError:
        return SourceError(
            f"{self.source.name}: {self.source.part} {name!r} has {self._described(name)}; images are bytes, or "
            "structs of bytes and path: paths and URLs are read with --from table (of a Parquet file), or from a CSV "
            "or JSON Lines table, and in Python pass the bytes; base64 must be decoded to bytes: docs/sources.md shows "
            "the lines"
        )

    def _usual_with(self, kind: str) -> list[str]:
        """Return the usual names of images that have values of a kind."""
        return usual_columns(IMAGE, [name for name, kinds in self.kinds.items() if kind in kinds])

    def _usual_image(self, names: Sequence[str]) -> str | None:
        usual = (*self.source.preferred.get(IMAGE, ()), *usual_columns(IMAGE, names))
        return next((name for name in usual if name in names), None)

    def _described(self, name: str) -> str:
        return ", ".join(sorted(self.kinds[name])) or Kind.MISSING

    def _shape(self) -> tuple[str, ...]:
        """Return the names of height, width and channels, or one name with all of them."""
        by_lower = {name.lower(): name for name in self.kinds}
        shape, height, width, depth = (
            next((by_lower[name] for name in usual if name in by_lower), "")
            for usual in (_SHAPES, _HEIGHTS, _WIDTHS, _DEPTHS)
        )
        return (shape,) if shape else tuple(filter(None, (height, width, depth))) if height and width else ()

    def label(self, image: str) -> LabelChoice:
        """Return which name is the label, and which has the class names.

        Raises:
            SourceError: Several could be the label, or its values are not read.
        """
        source, where = self.source, self.source.name
        if LABEL in source.columns:
            check_not_image(source.columns[LABEL], image, where=where)
            label = find_column(LABEL, [name for name in self.kinds if name != image], source.columns, where=where)
            if label is None:
                return LabelChoice()
            self._check_label(label)
            return self._with_names(LabelChoice(label, None, self.labels[label], source.class_lists.get(label)))
        if source.states_classes and (hot := self._one_hot(image)):
            return LabelChoice(classes=hot, hot=hot)
        others = [name for name in self.labels if name in self.kinds and name != image]
        preferred = [name for name in source.preferred.get(LABEL, ()) if name in others]
        if preferred[:1] != ["0"]:  # without an image at the start, a list has no usual order
            preferred = preferred[:1]
        typed = [name for name in source.class_lists if name in others]
        groups = [preferred] if preferred else source.label_groups([name for name in self.kinds if name != image])
        choice = LabelChoice()
        for group in [group for group in groups if group] or [[]]:
            usual = dict.fromkeys(group if preferred else [*typed, *group, *filter(is_x, others)])
            if any(not is_x(name) for name in usual) and not preferred:
                usual |= dict.fromkeys(filter(is_second_label, others))
            named = self._of_group([*usual], {*group}, others)
            choice = named._replace(notes=tuple(dict.fromkeys([*choice.notes, *named.notes])))
            if choice.label is not None:
                break
        notes = choice.notes + tuple(
            f"{name!r} has texts to recognise, not classes: pass --label-type name if they are classes"
            for name in sorted(self.transcripts)
        )
        choice = self._with_names(choice._replace(notes=notes))
        hot = self._one_hot(image) if choice.label is None else ()
        return LabelChoice(classes=hot, hot=hot, notes=choice.notes) if hot else choice

    def _of_group(self, names: Sequence[str], usual: Container[str], others: Container[str]) -> LabelChoice:
        """Return which of some names is the label, with notes on the usual names that are not."""
        source = self.source
        values = {name: self.labels[name] for name in names if name in others and self._may_have_classes(name)}
        unlike = [name for name in names if name in usual and name not in values and name not in self.transcripts]
        owners = {name: other for name in values if (other := self._owner(name)) is not None}
        values = {name: labels for name, labels in values.items() if name not in owners}
        choice = choose_label(source.name, values, source.options, source.class_lists, part=source.part)
        notes = [*choice.notes]
        notes += [
            f"{source.part} {name!r} is not the label, because it has a value for each entry of {other!r} in the same "
            f"row: it is packed as it is, with all values in order; pass --label {name} if these are labels of the "
            "whole image"
            for name, other in owners.items()
        ]
        if choice.label is None:
            notes += [
                f"{source.part} {name!r} is not the label, because its values are not numbers or names "
                f"({self._described(name)})"
                for name in unlike
            ]
        return choice._replace(notes=tuple(notes))

    def _owner(self, name: str) -> str | None:
        """Return the name of another list with an entry for each value of this one, in each row; None without it."""
        return owner(self.labels[name], {key: lengths for key, lengths in self.lengths.items() if key != name})

    def _one_hot(self, image: str) -> tuple[str, ...]:
        """Return the names that have 0 or 1 for each class."""
        source = self.source
        if source.has_classes or self.hot is not None:
            hot = self.hot if self.hot and any(map(self.flags.of, self.hot)) else ()
        else:
            flags = Flags({name: codes for name, codes in self.flags.items() if name != image})
            hot = one_hot([(flags, self.total)], is_stated=source.states_classes)
        if not source.states_classes and not {*hot} <= {*(source.options.classes or ())}:
            check_only_label(source.name, hot, {**self.labels, **self.texts}, source.part)
        return hot

    def _may_have_classes(self, name: str) -> bool:
        """Return whether values have the types of labels, and are not texts to recognise."""
        kinds = self.kinds[name].keys() - {Kind.MISSING}
        if kinds - ALL_KINDS or kinds == {Kind.BINARY}:
            self._check_label(name)
        if kinds - {Kind.TEXT, Kind.WHOLE, Kind.DECIMAL, Kind.LIST, Kind.VECTOR, Kind.MAPPING}:
            return False
        if self.source.is_transcription(name, self.labels[name]):
            self.transcripts.add(name)
        return name not in self.transcripts

    def _check_label(self, label: str) -> None:
        kinds, where = self.kinds[label], self.source.name
        if reason := next((kind for kind in kinds if kind not in ALL_KINDS), None):
            raise SourceError(
                f"{where}: label {label!r} is not read, because it is {reason}: name another label (--label), or write "
                "it as a number or a text"
            )
        if kinds.keys() & {*IMAGES, Kind.ARRAY, Kind.BINARY, Kind.MAPPING}:
            raise SourceError(
                f"{where}: label {label!r} is {self._described(label)}; allowed are numbers and names: name another "
                "label (--label), or write it as text"
            )

    def _with_names(self, choice: LabelChoice) -> LabelChoice:
        """Return a choice with the class names in texts: of the format, such as ``image/class/text``, or others."""
        source, names = self.source, self.names_of_label
        stated = next((name for name in source.preferred.get("names", ()) if name in self.kinds), None)
        if stated is not None and choice.label in source.preferred.get(LABEL, ()):
            names = stated
        all_texts = (name for name, kinds in self.kinds.items() if kinds.keys() <= _TEXTS)
        texts = {name: values for name in all_texts if (values := self.labels.get(name) or self.texts.get(name))}
        return with_matching_names(choice, texts, source.options, source.part, names if names != choice.label else None)

    def _fields(self, roles: Roles) -> dict[str, str]:
        """Return the field of each name that becomes one."""
        fields: dict[str, str] = {}
        short = {name: self.source.entry_name(name) for name in self.kinds}
        usual_of = {name: "txt" if name in self.transcripts else field_name(short[name]) for name in self.kinds}
        names = sorted(self.kinds, key=lambda name: (name not in self.transcripts, name != usual_of[name], name))
        for name in names:  # of two texts that would be the field ``txt``, the same one in any order
            kinds, usual = self.kinds[name], usual_of[name]
            if name in roles.used:
                continue
            is_file = usual is not None and usual.rpartition(".")[2] in IMAGE_FIELDS
            base = usual if is_file and usual else plain_name(short[name])
            if kinds.keys() & {*IMAGES, Kind.ARRAY, Kind.VECTOR}:
                if (same := next((key for key, value in fields.items() if value == base), None)) is not None:
                    raise SourceError(
                        f"{self.source.name}: {same!r} and {name!r} would be one field, {base!r}: rename one of them"
                    )
                fields[name] = base
            elif (
                usual
                and usual not in fields.values()
                and (self._names_files(usual, kinds) or (is_text_field(usual) and kinds.keys() <= _TEXTS))
            ):
                fields[name] = usual
        return fields

    def _names_files(self, field: str, kinds: Iterable[str]) -> bool:
        """Return whether values are a field, or names of files with its content; a list of texts is not a text."""
        return self.source.names_files and not (field == "txt" and {Kind.LIST, Kind.MAPPING} & {*kinds})

    def facts(self, roles: Roles) -> list[str]:
        """Return the names that become entries of ``json``."""
        others = self.kinds.keys() - roles.used - roles.fields.keys()
        return [name for name in self.kinds if name in others and not all(map(reason_of, self.kinds[name]))]

    def _has_usual_label(self) -> bool:
        return any(not is_x(name) and not is_second_label(name) for name in self.labels)

    def hints(self, roles: Roles, head: Callable[[str], Sequence[Any]]) -> list[str]:
        """Return notes about entries of ``json`` that could be the label; ``head`` returns first values of a name."""
        if LABEL in self.source.columns or roles.hot or self._has_usual_label():
            return []
        vectors = [name for name, kinds in self.kinds.items() if Kind.VECTOR in kinds and name not in roles.used]
        return hint({name: head(name) for name in [*self.facts(roles), *vectors]}, self.source.part)
