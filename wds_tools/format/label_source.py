"""Where the label of a sample is: a field such as ``cls``, an entry of a JSON field, or a class folder. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wds_tools.errors import LabelError, OptionError
from wds_tools.format.codecs import view_npy
from wds_tools.format.label import name, parse
from wds_tools.format.sample import STORED_EXTENSIONS

FOLDER = "folder"
"""The label is the name of the class folder in the key, as ``cat`` in ``cat/0001.jpg``."""

INDEX = "index"
"""In a manifest: the labels are in the indexes, and the shards have different ones, as after a merge."""

_JSON = ("json", "jsn")
_MAX_LABEL_BYTES = 4096  # of a field of text


@dataclass(frozen=True, slots=True)
class LabelSource:
    """Where the label of a sample is.

    >>> LabelSource.parse("json:meta.label")
    LabelSource(field='json', path=('meta', 'label'))

    Attributes:
        field: Name of the field; None for the folder in the key, "" for no label.
        path: Names that lead to the entry of a JSON field; empty if the field itself is the label.
    """

    field: str | None = "cls"
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSource:
        """Parse ``cls``, ``y.txt``, ``json:label``, ``json:meta.label`` or ``folder``."""
        if text == FOLDER:
            return cls(None)
        field, colon, path = text.strip().partition(":")
        names = tuple(path.split(".")) if colon else ()
        if not field or not all(names):
            raise OptionError(
                f"label={text!r} (--label); allowed are a field such as 'cls' or 'y.txt', an entry of a JSON field "
                "such as 'json:label' or 'json:meta.label', and 'folder' for class folders"
            )
        return cls(field.lower(), names)

    @classmethod
    def given(cls, text: str) -> LabelSource:
        """Parse what the user names as the label, which is not a field of images; "" for no label."""
        if not text:
            return cls("")
        label = cls.parse(text)
        if not label.path and f".{label.field}".endswith(STORED_EXTENSIONS):
            raise OptionError(f"label={text!r} (--label) is a field of images: name one such as 'cls' or 'json:label'")
        return label

    def __str__(self) -> str:
        if not self.field:
            return FOLDER if self.field is None else "not packed"
        return f"{self.field}:{'.'.join(self.path)}" if self.path else self.field

    def value(self, key: str, content: bytes | memoryview | None) -> Any:
        """Return the label of a sample as it is stored: a value or a list for `Labels.add`, or None.

        If the label is a folder, this is its whole path in the key, which `resolved` shortens.
        """
        if self.field is None:
            return key.rpartition("/")[0].removeprefix("./").strip("/") or None
        if content is None:
            return None
        kind = self.field.rpartition(".")[2]
        if kind == "npy":
            return view_npy(content)
        if self.path or kind in _JSON:
            return self._entry(bytes(content))
        text = bytes(content[:_MAX_LABEL_BYTES])
        return _unquoted(text) if text[:1] == b'"' else text

    def resolved(self, values: Sequence[Any]) -> list[Any]:
        """Return the labels of all samples for `Labels`; if they are folders, the names of the class folders."""
        if self.field is not None:
            return list(values)
        folders = class_folders({value for value in values if value is not None})
        return [None if value is None else name(folders[value]) for value in values]

    def _entry(self, content: bytes) -> Any:
        try:
            entry = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"field {self.field!r} is not JSON: {error}") from error
        for word in self.path:
            entry = entry.get(word) if isinstance(entry, dict) else None
        if isinstance(entry, dict):
            raise ValueError(  # noqa: TRY004 - the type of a value in a file
                f"label {str(self)!r} is {json.dumps(entry)[:80]}; allowed are whole numbers, names, and lists of these"
            )
        return entry


def _unquoted(text: bytes) -> Any:
    """Return the name in a text such as ``"cat"``, as JSON writes it; any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class NamesOfNumbers:
    """The class names that `pack` writes next to class numbers, as ``"class"`` in ``json``.

    After a merge, equal numbers in the shards may be different classes.

    Attributes:
        contradiction: Two samples whose numbers and names contradict each other, as text; empty if there are none.
        unnamed: Key of a sample with a number and without a name; None if there is none.
    """

    def __init__(self) -> None:
        self.contradiction = ""
        self.unnamed: str | None = None
        self._by_number: dict[int, tuple[str, str]] = {}  # the other of number and name, and the key of a sample
        self._by_name: dict[str, tuple[int, str]] = {}

    @property
    def by_number(self) -> dict[int, str]:
        """Number -> name; empty if the names contradict each other, or if samples have numbers only."""
        is_list = self.unnamed is None and not self.contradiction
        return {number: named for number, (named, _) in self._by_number.items()} if is_list else {}

    @property
    def are_incomplete(self) -> bool:
        """Whether some samples have names, and others only numbers."""
        return self.unnamed is not None and bool(self._by_number) and not self.contradiction

    def add(self, key: str, label: Any, content: bytes | memoryview) -> None:
        """Compare a sample with the earlier ones, by its label and the content of its field ``json``."""
        if self.contradiction or label is None:
            return
        try:
            number = parse(label).number
            named = NAMED.value(key, content) if b'"class"' in bytes(content) else None
        except (LabelError, ValueError):
            return
        if number is None:
            return
        if isinstance(named, str):
            self._compare(number, named, key)
        elif self.unnamed is None:
            self.unnamed = key

    def update(self, other: NamesOfNumbers) -> None:
        """Compare the samples of a further shard with the earlier ones."""
        for number, (named, key) in other._by_number.items():
            if not self.contradiction:
                self._compare(number, named, key)
        self.contradiction = self.contradiction or other.contradiction
        self.unnamed = other.unnamed if self.unnamed is None else self.unnamed

    def _compare(self, number: int, named: str, key: str) -> None:
        first_name, first_key = self._by_number.setdefault(number, (named, key))
        first_number, other_key = self._by_name.setdefault(named, (number, key))
        if first_name != named:
            self.contradiction = f"class number {number} is {first_name!r} in {first_key!r} and {named!r} in {key!r}"
        elif first_number != number:
            self.contradiction = f"class {named!r} is number {first_number} in {other_key!r} and {number} in {key!r}"

    @property
    def remedy(self) -> str:
        """What to do about a contradiction."""
        return (
            f"the numbers in the field cls contradict the names in the field json: {self.contradiction}. This happens "
            "in shards of `wds-tools merge` without their manifest. Pass --label json:class (label='json:class') if "
            "the names are right, or --label cls if the numbers are right"
        )


NAMED = LabelSource("json", ("class",))
"""The class name that `pack` writes next to a class number."""


def class_folders(folders: Iterable[str]) -> dict[str, str]:
    """Return the class that each folder stands for: its first component after those that all folders share.

    >>> class_folders(["train/cat", "train/dog/small"])
    {'train/cat': 'cat', 'train/dog/small': 'dog'}
    """
    parts = {folder: folder.split("/") for folder in folders}
    shared = 0
    while parts and all(len(names) > shared + 1 for names in parts.values()):
        if len({names[shared] for names in parts.values()}) > 1:
            break
        shared += 1
    return {folder: names[shared] for folder, names in parts.items()}
