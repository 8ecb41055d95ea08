"""Class names in a file, as ``--classes`` names it: lines, JSON, or ``names:`` of YAML."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.label import MAX_CLASSES, quoted
from wds_tools.sources.text_table import stated_encoding
from wds_tools.sources.yolo import parse_yaml

_MAX_BYTES = 1 << 26
_LINE_END = re.compile(r"\r\n|\r|\n")  # str.splitlines also splits at other characters, such as U+2028
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f]")
_NUMBER_FIRST = re.compile(r"(?P<number>[0-9]+)(?:\s*(?P<mark>[,;\t:=])\s*|\s+)(?P<name>.+)")
_NUMBER_LAST = re.compile(r"(?P<name>.+?)(?:\s*(?P<mark>[,;\t:=])\s*|\s+)(?P<number>[0-9]+)")
_COLUMN_END = re.compile(r"\t|[,;](?! )")
_HEADERS = re.compile(r"((class|label|category)[ _-]?)?(names?|labels?|ids?)|class(es)?|categor(y|ies)", re.IGNORECASE)
_AS_JSON = 'or write the names as a JSON list, such as ["cat", "dog"]'


def read_class_names(path: Path) -> tuple[str, ...]:
    """Return the class names in a file, in the order of class numbers, without spaces around them.

    The file has one name per line; or lines with a name and its number, in any order, with or without a header; or a
    JSON list; or a JSON object of names and numbers; or an entry ``names`` of YAML, as ``data.yaml`` has it. Empty
    lines, and lines that begin with ``#`` and a space, are left out.

    Raises:
        OptionError: The file cannot be read, or its lines are not clearly names.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise OptionError(
            f"classes={str(path)!r} cannot be read: {error.strerror}; expected a file with one name per line"
        ) from error
    where = f"{path} (--classes, classes=)"
    if len(data) > _MAX_BYTES:
        raise OptionError(f"{where} has more than {_MAX_BYTES:,} bytes; allowed are {MAX_CLASSES:,} names")
    text = _text(data, where)
    try:
        names = _names_in(text, path, where)
    except SourceError as error:
        raise OptionError(str(error)) from error
    if binary := next((name for name in names if _CONTROL.search(name)), None):
        raise OptionError(f"{where} has {binary[:40]!a}, which is not text: save it as text in UTF-8")
    return tuple(names)


def _text(data: bytes, where: str) -> str:
    encoding = stated_encoding(data) or "utf-8"
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        raise OptionError(f"{where} is not {encoding} ({error}): save it as UTF-8") from error


def _names_in(text: str, path: Path, where: str) -> Sequence[str]:
    lines = [line.strip() for line in _LINE_END.split(text)]
    lines = [line for line in lines if line and line != "#" and not line.startswith("# ")]
    if text.lstrip()[:1] in ("[", "{"):
        return _of_value(_value(text, where), where)
    if path.suffix.lower() in (".yaml", ".yml") or any(re.match(r"names\s*:", line) for line in lines):
        return parse_yaml(text.encode(), where).names
    for line in lines[:1]:
        if line.startswith("#"):
            raise OptionError(f"{where} begins with {line[:40]!r}: remove this line if it is a comment, {_AS_JSON}")
    if lines and all(line.startswith("- ") for line in lines):  # a list of YAML
        lines = [line[2:].strip() for line in lines]
    numbered = _numbered(lines, where)
    if numbered is not None:
        return numbered
    if len(lines) > 1 and lines[0] and _HEADERS.fullmatch(lines[0]):
        raise OptionError(f"{where} begins with {lines[0]!r}: remove this line if it is a header, {_AS_JSON}")
    marks = [tuple(_COLUMN_END.findall(line)) for line in lines]
    if len(lines) > 1 and marks[0] and len(set(marks)) == 1:
        raise OptionError(
            f"{where} has several columns, such as {lines[0][:40]!r} and {lines[1][:40]!r}: keep the names, or names "
            f"and their numbers, {_AS_JSON}"
        )
    return lines


def _numbered(lines: Sequence[str], where: str) -> list[str] | None:
    """Return the names of lines that are a name and its number, sorted by number; None if lines are only names."""
    for pattern in (_NUMBER_FIRST, _NUMBER_LAST):
        matches = [pattern.fullmatch(line) for line in lines]
        first = 1 if len(lines) > 2 and matches[0] is None else 0
        parts = [match for match in matches[first:] if match is not None]
        numbers = [int(part["number"]) for part in parts]
        names = [_without_quotes(part["name"]) if part["mark"] else part["name"] for part in parts]
        are_pairs = bool(parts) and len(parts) == len(lines) - first
        if not are_pairs or len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
            continue
        marks = {part["mark"] for part in parts}
        if first and (len(marks) > 1 or not _is_header(lines[0], marks.pop())):
            continue
        if sorted(numbers) == list(range(len(numbers))):
            return [name for _, name in sorted(zip(numbers, names, strict=True))]
        is_run = sorted(numbers) == list(range(1, len(numbers) + 1))
        if is_run or (len(numbers) > 1 and (pattern is _NUMBER_FIRST or marks != {None})):
            raise OptionError(
                f"{where} has lines with the numbers {quoted(map(str, numbers))}; class numbers are 0 to "
                f"{len(numbers) - 1}, each once: correct the numbers if they are class numbers, {_AS_JSON}"
            )
    return None


def _without_quotes(text: str) -> str:
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"" else text


def _is_header(line: str, mark: str | None) -> bool:
    """Return whether a line can be the header of lines with a mark between number and name."""
    return len(line.split(mark)) == 2


def _value(text: str, where: str) -> Any:
    """Return the list or dictionary that a text is, in the form of JSON or Python."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise OptionError(
                f"{where} begins like JSON, which cannot be read: {error}; expected a list of names"
            ) from error


def _of_value(value: Any, where: str) -> list[str]:
    """Return the names in a list, in a dictionary of names and numbers, or in its entry ``names``."""
    if isinstance(value, Mapping) and isinstance(value.get("names"), (list, Mapping)):
        value = value["names"]
    if isinstance(value, Mapping):
        if all(isinstance(number, int) for number in value.values()):
            value = {number: name for name, number in value.items()} if len({*value.values()}) == len(value) else {}
        by_number = {int(key): name for key, name in value.items() if str(key).isascii() and str(key).isdigit()}
        value = [by_number.get(number) for number in range(len(value))]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name.strip() for name in value):
        raise OptionError(
            f"{where} is JSON, but neither a list of names nor an object with each number from 0 and its name, such as "
            '["cat", "dog"] or {"cat": 0, "dog": 1}'
        )
    return [name.strip() for name in value]
