"""Roles of the names in records, found from all records of a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.format.label import MAX_CLASSES, quoted
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.sources.base import Collector, SourceOptions
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    field_name,
    find_column,
    is_text_field,
    no_image_error,
    plain_name,
    usual_columns,
)
from wds_tools.sources.record_values import (
    ALL_KINDS,
    ARRAY,
    BINARY,
    DECIMAL,
    IMAGES,
    LEFT_OUT,
    LIST,
    MAPPING,
    MISSING,
    PIXELS,
    SEVERAL_IMAGES,
    TEXT,
    VECTOR,
    WHOLE,
    Repeated,
    kind_of,
    label_value,
    resolved,
)

FIRST, SECOND, THIRD = "0", "1", "2"
"""The names of the values of a list."""

IN_LISTS = (SECOND, FIRST, THIRD)
"""Where the label is in a list: second if the image is first."""

_MIN_UNIQUE = 100  # with fewer records, whole numbers may all be different by chance
_HEIGHTS = ("height", "rows", "h", "image/height", "image_height", "img_height")
_WIDTHS = ("width", "cols", "columns", "w", "image/width", "image_width", "img_width")
_DEPTHS = ("depth", "channels", "c", "image/depth", "image/channels", "image_depth", "image_channels")
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
    """

    image: str
    label: str | None = None
    names: str | None = None
    shape: tuple[str, ...] = ()
    lists: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def used(self) -> set[str]:
        """Return the names that are not entries or fields of their own."""
        return {self.image, *filter(None, (self.label, self.names)), *self.shape}


class Rules(Protocol):
    """What a source states about the names in its records."""

    name: str
    part: ClassVar[str]
    parts: ClassVar[str]
    preferred: Mapping[str, tuple[str, ...]]
    bgr: bool
    columns: dict[str, str]
    options: SourceOptions

    def is_transcription(self, name: str, values: Sequence[Any]) -> bool:
        """Return whether values with the name of a label are texts, not classes."""


class Names:
    """What the records of a source have, name by name."""

    def __init__(self, source: Rules) -> None:
        self.source = source
        self.kinds: dict[str, Counter[str]] = {}
        self.lists: set[str] = set()
        self.labels: dict[str, list[Any]] = {}  # name that may be the label -> its values
        self.transcripts: set[str] = set()  # names of labels that are texts, not classes
        self.total = 0

    def add(self, values: Mapping[str, Any] | str) -> int:
        """Add a record; return its number among those that could be parsed."""
        if isinstance(values, str):
            return -1
        for name, value, kind in self._found(values):
            if isinstance(value, Repeated) and kind == LIST:
                self.lists.add(name)
            if name not in self.kinds:
                self.kinds[name] = Counter()
                if self._may_be_label(name):
                    self.labels[name] = [None] * self.total
            self.kinds[name][kind] += 1
            if name in self.labels:
                self.labels[name].append(label_value(value, kind))
        self.total += 1
        for known in self.labels.values():
            if len(known) < self.total:
                known.append(None)
        return self.total - 1

    def _found(self, values: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
        """Return (name, value, kind of value) of a record."""
        found = []
        for name, stored in values.items():
            value = resolved(stored, is_list=False)
            if isinstance(value, np.ndarray) and value.shape == (1,) and self._may_be_label(name):
                value = value.item()
            found.append((name, value, kind_of(value)))
        return found

    def _may_be_label(self, name: str) -> bool:
        source = self.source
        named = {source.columns.get(LABEL), *source.preferred.get(LABEL, ()), *source.preferred.get("names", ())}
        return name in named or bool(usual_columns(LABEL, [name]))

    def roles(self) -> Roles:
        """Return the roles of the names.

        Raises:
            SourceError: There is no image, or it is not clear which value is the image or the label.
        """
        image = self._image()
        shape = self._shape() if not self.kinds[image].keys() & IMAGES else ()
        label, names = self._label(image)
        roles = Roles(image, label, names, shape, frozenset(self.lists))
        return Roles(image, label, names, shape, frozenset(self.lists), self._fields(roles))

    def _image(self) -> str:
        source, where = self.source, self.source.name
        if IMAGE in source.columns:
            return str(find_column(IMAGE, self.kinds, source.columns, where=where))
        kinds = (IMAGES, {SEVERAL_IMAGES}, {BINARY} if self._shape() else set())
        for allowed in kinds:
            images = [name for name, found in self.kinds.items() if found.keys() & allowed]
            known = next((name for name in source.preferred.get(IMAGE, ()) if name in images), None)
            known = known or next(iter(usual_columns(IMAGE, images)), None)
            if known is None and len(images) > 1:
                raise SourceError(
                    f"{where} has several {source.parts} with images ({quoted(sorted(images))}): name the image, as in "
                    f"--column image={min(images)} (columns={{'image': {min(images)!r}}})"
                )
            if known or images:
                return known or images[0]
        known = next((name for name in source.preferred.get(IMAGE, ()) if name in self.kinds), None)
        arrays = [name for name, found in self.kinds.items() if ARRAY in found]
        known = known or next(iter(usual_columns(IMAGE, arrays)), None)
        if known and self.kinds[known].keys() - {MISSING}:
            return known  # each record is skipped with its reason
        raise no_image_error(where, [f"{name} ({self._described(name)})" for name in self.kinds], source.part)

    def _described(self, name: str) -> str:
        return ", ".join(sorted(self.kinds[name])) or MISSING

    def _shape(self) -> tuple[str, ...]:
        """Return the names of height, width and channels, or one name with all of them."""
        by_lower = {name.lower(): name for name in self.kinds}
        for usual in _SHAPES:
            if usual in by_lower:
                return (by_lower[usual],)
        sides = [next((by_lower[name] for name in usual if name in by_lower), None) for usual in (_HEIGHTS, _WIDTHS)]
        if None in sides:
            return ()
        depth = next((by_lower[name] for name in _DEPTHS if name in by_lower), None)
        return tuple(name for name in (*sides, depth) if name)

    def _label(self, image: str) -> tuple[str | None, str | None]:
        """Return the name of the label, and that of the text with class names."""
        source, where = self.source, self.source.name
        if LABEL in source.columns:
            label = str(find_column(LABEL, self.kinds, source.columns, where=where))
            self._check_label(label)
            return label, self._names(label)
        usual = usual_columns(LABEL, [name for name in self.kinds if name != image])
        known = [name for name in source.preferred.get(LABEL, ()) if name in self.kinds and name != image]
        if known[:1] != [FIRST]:  # without an image at the start, a list has no usual order
            known = known[:1]
        possible = [name for name in known or usual if self._is_label(name)]
        if not possible:
            return None, None
        label = possible[0]
        self._check_label(label)
        for other in possible[1:]:
            if not self._same_partition(label, other):
                raise SourceError(
                    f"{where} has two {source.parts} that could be the label: {label!r} ({self._some(label)}) and "
                    f"{other!r} ({self._some(other)}): name one, as in --label {label} (columns={{'label': {label!r}}})"
                )
        numbers = [name for name in possible if WHOLE in self.kinds[name]]
        texts = [name for name in possible if TEXT in self.kinds[name]]
        if numbers and texts and not source.options.classes and source.options.label_type is None:
            return numbers[0], texts[0] if self._can_name(numbers[0]) else None
        return label, self._names(label)

    def _is_label(self, name: str) -> bool:
        """Return whether values can be labels: neither fractions nor images, and not different in each record."""
        kinds, numbers = self.kinds[name].keys(), {WHOLE, DECIMAL}
        coordinates = {other.lower() for other, found in self.kinds.items() if found.keys() & numbers}
        if kinds - ALL_KINDS or BINARY in kinds <= {BINARY, MISSING}:
            return True  # it is refused
        is_coordinate = name.lower() == "y" and "x" in coordinates
        if is_coordinate or not kinds & {TEXT, WHOLE, LIST, VECTOR} or kinds - {TEXT, WHOLE, LIST, VECTOR, MISSING}:
            return False
        values = self.labels[name]
        if self.source.is_transcription(name, values):
            self.transcripts.add(name)
            return False
        return bool(kinds & {TEXT, LIST, VECTOR}) or self.total < _MIN_UNIQUE or len(set(values)) < len(values)

    def _check_label(self, label: str) -> None:
        """Check the values of a label.

        Raises:
            SourceError: They are images, or values that are not read.
        """
        kinds, where = self.kinds[label], self.source.name
        if reason := next((kind for kind in kinds if kind not in ALL_KINDS), None):
            raise SourceError(
                f"{where}: label {label!r} is not read, because it is {reason}: name another label (--label), or write "
                "it as a number or a text"
            )
        if kinds.keys() & {*IMAGES, ARRAY, BINARY, MAPPING}:
            raise SourceError(
                f"{where}: label {label!r} is {self._described(label)}; allowed are numbers and names: name another "
                "label (--label), or write it as text"
            )

    def _some(self, name: str) -> str:
        return ", ".join(repr(value) for value in list(dict.fromkeys(self.labels[name]))[:3])

    def _pairs(self, one: str, two: str) -> set[tuple[Any, Any]]:
        pairs = zip(self.labels[one], self.labels[two], strict=True)
        return {pair for pair in pairs if None not in pair}

    def _same_partition(self, one: str, two: str) -> bool:
        """Return whether two labels distinguish the same classes, so that either may be used."""
        pairs = self._pairs(one, two)
        return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})

    def _names(self, label: str) -> str | None:
        """Return the name of the text that has the class name of each label.

        Raises:
            SourceError: A number has two texts.
        """
        text = next((name for name in self.source.preferred.get("names", ()) if name in self.kinds), None)
        options = self.source.options
        if text is None or text == label or label not in self.source.preferred.get(LABEL, ()):
            return None
        if options.classes or options.label_type == "number" or not self._can_name(label):
            return None
        if not self.kinds[text].keys() <= {TEXT, MISSING}:
            return None
        pairs = self._pairs(label, text)
        names: dict[Any, str] = {}
        for number, name in sorted(pairs):
            if names.setdefault(number, name) != name:
                raise SourceError(
                    f"{self.source.name}: label {number} in {label!r} has two names in {text!r}, {names[number]!r} and "
                    f"{name!r}: correct them, give the names (--classes), or pass --label-type number to use only the "
                    "numbers"
                )
        return text if len(set(names.values())) == len(names) else None

    def _can_name(self, label: str) -> bool:
        """Return whether labels are numbers for which a list of names can be made."""
        numbers = [value for value in self.labels[label] if value is not None]
        are_numbers = all(type(value) is int for value in numbers)
        return are_numbers and max(numbers, default=0) <= min(MAX_CLASSES, 2 * len(set(numbers)))

    def _fields(self, roles: Roles) -> dict[str, str]:
        """Return the field of each name that becomes one.

        Raises:
            SourceError: Two names become the same field.
        """
        fields: dict[str, str] = {}
        for name, kinds in self.kinds.items():
            if name in roles.used:
                continue
            usual = "txt" if name in self.transcripts else field_name(name)
            is_file = usual is not None and usual.rpartition(".")[2] in IMAGE_FIELDS
            base = usual if is_file and usual else plain_name(name)
            if kinds.keys() & {*IMAGES, ARRAY, VECTOR}:
                if base in fields.values():
                    raise SourceError(
                        f"{self.source.name} has two {self.source.parts} that would be the field {base!r}: rename one "
                        "of them"
                    )
                fields[name] = base
            elif usual and is_text_field(usual) and kinds.keys() <= {TEXT, MISSING} and usual not in fields.values():
                fields[name] = usual
        return fields

    def class_names(self, roles: Roles) -> tuple[tuple[str, ...] | None, str]:
        """Return the class names by number that records have, and a note about numbers without a name."""
        if roles.names is None or roles.label is None:
            return None, ""
        names = dict(sorted(self._pairs(roles.label, roles.names)))
        numbers = [value for value in self.labels[roles.label] if value is not None and value >= 0]
        unnamed = [number for number in range(max(numbers, default=-1) + 1) if number not in names]
        note = f"class numbers without a name in {roles.names!r}: {quoted(map(str, unnamed))}" if unnamed else ""
        return tuple(names.get(number, str(number)) for number in range(max(numbers, default=-1) + 1)), note

    def account(self, found: Collector, roles: Roles) -> None:
        """State what becomes of each name."""
        part, account = self.source.part, found.account
        account.declare(part, self.kinds)
        classes, note = self.class_names(roles)
        found.classes = found.classes if classes is None else classes
        account.notes += [note] if note else []
        for name, kinds in self.kinds.items():
            left = {kind for kind in kinds if _reason(kind)}
            if name in roles.used:
                account.use(part, name, _role(name, roles))
                continue
            if kinds.keys() - left:
                account.use(part, name, self._destination(name, roles))
            for kind in sorted(left):
                account.leave_out(part, name, str(_reason(kind)))
            if name in self.labels and roles.label is None and DECIMAL in kinds:
                account.notes.append(f"{name!r} has fractions, so it is not the label")
            elif name in self.transcripts:
                account.notes.append(
                    f"{name!r} has texts to recognise, not classes: pass --label-type name if they are classes"
                )
            elif name in self.labels and roles.label is None and len(set(self.labels[name])) == self.total > 1:
                account.notes.append(f"{name!r} is different in each record, so it is not the label")
        text = next((name for name in self.source.preferred.get("names", ()) if name in self.kinds), None)
        if text and roles.label not in (None, text) and roles.names is None:
            account.notes.append(f"{text!r} does not give the class names: it is not one different text per label")
        if roles.shape:
            order = "B, G, R" if self.source.bgr else "R, G, B"
            account.notes.append(f"{roles.image!r} has raw pixels; colours are in the order {order}")

    def _destination(self, name: str, roles: Roles) -> str:
        if name not in roles.fields:
            return "entry of json"
        base = roles.fields[name]
        kinds = self.kinds[name].keys()
        if kinds & {ARRAY, PIXELS, VECTOR}:
            return f"field {base}.npy"
        return f"image field {base}" if kinds & IMAGES and "." not in base else f"field {base}"


def _reason(kind: str) -> str | None:
    """Return why values of a kind are left out, or None."""
    return LEFT_OUT.get(kind) or (None if kind in ALL_KINDS else kind)


def _role(name: str, roles: Roles) -> str:
    if name == roles.image:
        return "image"
    if name == roles.label:
        return "label"
    return "class names" if name == roles.names else "size of the image"
