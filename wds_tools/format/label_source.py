"""Where the label of a sample is: a field such as ``cls``, an entry of a JSON field, or a class folder. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from wds_tools.errors import OptionError

FOLDER = "folder"
"""The label is the name of the class folder in the key, as ``cat`` in ``cat/0001.jpg``."""

INDEX = "index"
"""In a manifest: the labels are those of the indexes, and the shards have others, as after a merge."""

_MAX_LABEL_BYTES = 4096  # of a field of text
_WHOLE_NUMBER = re.compile(r"\s*([+-]?\d+)(\.0*)?\s*")  # such as 3.0, which pandas writes if another label is missing
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)  # such as 0.5, which is not a class


@dataclass(frozen=True, slots=True)
class LabelSource:
    """Where the label of a sample is.

    >>> LabelSource.parse("json:meta.label")
    LabelSource(field='json', path=('meta', 'label'))

    Attributes:
        field: Name of the field; None for the folder in the key.
        path: Names that lead to the entry of a JSON field; empty if the field itself is the label.
    """

    field: str | None = "cls"
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSource:
        """Parse ``cls``, ``y.txt``, ``json:label``, ``json:meta.label`` or ``folder``.

        Raises:
            OptionError: The text is none of these.
        """
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

    def __str__(self) -> str:
        if self.field is None:
            return FOLDER
        return f"{self.field}:{'.'.join(self.path)}" if self.path else self.field

    def value(self, key: str, content: bytes | memoryview | None) -> int | str | None:
        """Return the label of a sample: a number, a name, or None if it has none. A folder has its parents.

        Args:
            key: Key of the sample.
            content: Content of the field, if there is one.

        Raises:
            ValueError: The field is not JSON, or its entry is neither a number nor a text.
        """
        if self.field is None:
            return key.rpartition("/")[0].removeprefix("./").strip("/") or None
        if content is None:
            return None
        if self.path:
            return self._entry(bytes(content))
        text = bytes(content[:_MAX_LABEL_BYTES]).strip().decode("utf-8", "surrogateescape")
        return _number_or_name(text)

    def _entry(self, content: bytes) -> int | str | None:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"field {self.field!r} is not JSON: {error}") from error
        for name in self.path:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        if isinstance(found, str):
            return _number_or_name(found.strip())
        raise ValueError(f"label {str(self)!r} is {json.dumps(found)[:80]}; allowed are a whole number and a name")


def whole_number(text: str) -> int | None:
    """Return the whole number that a text is, or None.

    >>> [whole_number(text) for text in ("3", "-1", " 3.0", "3.5", "cat", "10_11")]
    [3, -1, 3, None, None, None]
    """
    found = _WHOLE_NUMBER.fullmatch(text)
    return int(found[1]) if found else None


def _number_or_name(text: str) -> int | str | None:
    number = whole_number(text)
    if number is not None:
        return number
    return None if not text or _NUMBER.fullmatch(text) else text


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
