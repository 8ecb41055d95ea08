"""Class names in values, such as the attribute ``class_to_idx`` of an object, and in files, such as ``classes.txt``."""

from __future__ import annotations

import ast
import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.format.class_notes import NamesFromOne
from wds_tools.format.label import MAX_CLASSES, quoted
from wds_tools.sources.base import import_optional
from wds_tools.sources.columns import IMAGE, LABEL, usual_names
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.label_choice import names_by_number

_WORDS = """
    classes class_to_idx idx_to_class class_names classnames list_classes label_names labels_names category_names
    categories target_names class_labels id2label label2id id_to_label label_to_id idx_to_label label_to_idx id_to_class
    class_to_id id2class class2id id2name name2id class_dict class_map label_map attr_names
"""
CLASS_LISTS = tuple(_WORDS.split())
"""Names of attributes, entries and arrays with class names."""

MAYBE_LISTS = ("names",)
"""Names that may also mean something else: such a value must have a name for each class."""

_WITH_NUMBERS = re.compile("to|2|dict|map")  # of names such as class_to_idx, which state the number of each class
_IN_ONE_WORD = frozenset(name.replace("_", "") for name in CLASS_LISTS)

_MAX_BYTES = 1 << 26
_MAX_YAML_BYTES = 1 << 20
_MAX_DIGITS = 20
_MAX_LINE = 1000  # characters of a name and its number
_LINE_END = re.compile(r"\r\n|\r|\n")  # str.splitlines also splits at other characters, such as U+2028
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f]")
_FRACTION = re.compile(r"-?[0-9]*\.?[0-9]+")
_MARK = r"(?:\s*(?P<mark>[,;\t:=|]|[=-]>)\s*|\s+(?P<dash>-)\s+|\s+)"
_NUMBER_FIRST = re.compile(rf"(?P<number>[0-9]+)(?:[.)]\s+|{_MARK})(?P<name>.+)")
_NUMBER_LAST = re.compile(rf"(?P<name>.+?){_MARK}[(\[]?(?P<number>[0-9]+)(?P<rest>\.[0-9]+)?%?[)\]]?")
_YEAR = re.compile(r"(19|20)[0-9]{2}")  # the end of a name such as "Audi A4 2012"
_SYNSET = r"n[0-9]{8}"  # id of WordNet
_SYNSET_FIRST = re.compile(rf"(?P<id>{_SYNSET})(?: +|: *)(?P<name>[^ ].*)")
_COLUMN_END = re.compile(r"\t|[,;](?! )")
_HEADERS = re.compile(r"((class|label|category)[ _-]?)?(names?|labels?|ids?)|class(es)?|categor(y|ies)", re.IGNORECASE)
_HEADERS_OF_NUMBERS = re.compile(r"(n|num(ber)?|counts?|index|idx|freq(uency)?|samples|images)", re.IGNORECASE)
_YAML_ENTRY = re.compile(rf"^({'|'.join(CLASS_LISTS)}|names)\s*:", re.MULTILINE)
_ASSIGNED = re.compile(r"\A\s*\w+\s*=\s*(?=[\[{(])")  # as in a Python file
_MESSAGE = re.compile(r"^[ \t]*item\s*:?\s*\{", re.MULTILINE)  # of a label map of TensorFlow
_ITEM = re.compile(r"\bitem\s*:?\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_ENTRY = re.compile(r"""\b(\w+)\s*:\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|-?\w+)""")
_NUMBERS, _NAMES = ("id", "label", "index", "class_id", "number"), ("display_name", "name", "class", "class_name")
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_AS_JSON = 'or write the names as a JSON list, such as ["cat", "dog"]'


# Values


def is_class_list(name: str) -> bool:
    """Return whether a name is one of `CLASS_LISTS`, whatever separates its words."""
    return re.sub("[^a-z0-9]", "", name.lower()) in _IN_ONE_WORD


def may_name_classes(value: Any) -> str:
    """Return that a value may have class names, and how to pass them, as the end of a sentence; empty if not."""
    names = likely_names(value)
    return f", which may name the classes ({quoted(names)}): pass them with --classes (classes=)" if names else ""


def likely_names(value: Any) -> tuple[str, ...]:
    """Return the class names in a value or in JSON whose name does not say what it has; empty if there are none.

    >>> likely_names({"cat": 0, "dog": 1}), likely_names({"width": 224, "height": 224}), likely_names([0.5, 2])
    (('cat', 'dog'), (), ())
    """
    if not (numbered := numbered_names(value := _parsed(value))):
        return ()
    first, names = min(numbered), [*numbered.values()]
    is_list = 1 < len(names) == len({*names}) == len(value) and not all(map(_FRACTION.fullmatch, names))
    return names_in(numbered) if is_list and first < 2 and max(numbered) == first + len(names) - 1 else ()


def names_in(value: Any) -> tuple[str, ...]:
    """Return the class names in a value or in JSON, see `numbered_names`; a number without a name is the name itself.

    Names of splits, and usual names of columns, are not class names.

    >>> names_in({"cat": 1, "dog": 0}), names_in('{"0": "dog", "1": "cat"}'), names_in([7, 8]), names_in("dog")
    (('dog', 'cat'), ('dog', 'cat'), ('7', '8'), ())
    >>> names_in(["image", "label"]), names_in(["train", "val"]), names_in(["x", "y"])
    ((), (), ('x', 'y'))
    """
    names = names_by_number(numbered_names(_parsed(value)) or {}) or ()
    columns, labels = {name.lower() for name in names}, usual_names(LABEL)
    are_columns = columns <= (usual_names(IMAGE) | labels) - {"x", "y"} and not columns.isdisjoint(labels)
    return () if are_columns or (len(names) > 1 and all(map(is_split_name, names))) else names


def are_labels(
    names: Sequence[str], labels: Iterable[float], where: str, sources: Iterable[str], *, given: Sequence[str] | None
) -> bool:
    """Return whether names that are whole numbers are the labels themselves, as in ``sorted(set(labels))``.

    >>> are_labels(["1", "2", "3"], [1, 3], "a", ["classes"], given=None)
    True
    >>> are_labels(["1", "2", "3"], [0, 1, 2], "a", ["classes"], given=None)
    False

    Args:
        names: Class names of the source.
        labels: The labels that are numbers.
        where: Name of the source, for messages.
        sources: Attributes or entries that have the names.
        given: The class names that the user gave.

    Raises:
        LabelError: They can also be the names of the labels by position, and no names are given.
    """
    values = [int(name) for name in names if name.isascii() and name.isdigit()]
    different = {*labels}
    if not different or not different <= {*values} or len(values) < len(names):
        return False
    numbers = sorted(map(int, different))
    has_numbers = any(_WITH_NUMBERS.search(re.split("[/@]", name)[-1].lower()) for name in sources)
    is_position = numbers[-1] < len(values)
    ambiguous = next((number for number in numbers if is_position and values[number] != number), None)
    if has_numbers or (is_position and ambiguous is None):
        return False
    if ambiguous is not None and not given:
        raise LabelError(
            f"{where} has whole numbers as class names ({quoted(names)}): label {ambiguous} can be the class "
            f"{str(ambiguous)!r} by its name, or {names[ambiguous]!r} by its position; pass --classes (classes=) with "
            "a name for each number from 0"
        )
    return True


def _parsed(value: Any) -> Any:
    """Return the value in JSON; None if it is not valid. Other values are returned as they are."""
    if not isinstance(value, (bytes, str)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def numbered_names(value: Any) -> dict[int, str] | None:
    """Return number -> class name; None if a value does not have them.

    It is a list of names, of synonyms, or of objects with ``id`` and ``name``; or a dictionary from names to numbers
    or from numbers to names. Several names of a number are joined.

    >>> numbered_names({"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]})
    {0: 'tench', 1: 'goldfish'}
    >>> numbered_names([{"id": 3, "name": "cat"}]), numbered_names([("tench", "Tinca tinca")])
    ({3: 'cat'}, {0: 'tench, Tinca tinca'})
    """
    if hasattr(value, "tolist"):
        value = value.tolist() if getattr(value, "ndim", 1) == 1 else None
    if isinstance(value, Mapping) and not all(isinstance(n, Integral) for pair in value.items() for n in pair):
        keys, numbers = [*map(_number, value)], [*map(_number, value.values())]
        are_numbers = None not in numbers and (None in keys or not any(isinstance(n, str) for n in value.values()))
        return _joined(numbers, [*value]) if are_numbers else _joined(keys, [*value.values()])
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if all(isinstance(entry, Mapping) for entry in value):
        return _joined([_number(_first(entry, _NUMBERS)) for entry in value], [_first(e, _NAMES) for e in value])
    if all(isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in value):
        for number, name in ((0, 1), (1, 0)):
            if all(isinstance(entry[number], int) and not isinstance(entry[name], int) for entry in value):
                return _joined([entry[number] for entry in value], [entry[name] for entry in value])
    while value and value[-1] in ("", b""):  # as torchvision's CelebA has it
        value = value[:-1]
    return _joined([*range(len(value))], value)


def _number(value: Any) -> int | None:
    is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _MAX_DIGITS
    return int(value) if is_text or (isinstance(value, Integral) and not isinstance(value, bool)) else None


def _first(entries: Mapping[Any, Any], keys: Iterable[str]) -> Any:
    return next((entries[key] for key in keys if entries.get(key) not in (None, "")), None)


def _joined(numbers: Sequence[int | None], values: Sequence[Any]) -> dict[int, str] | None:
    """Return number -> name, or its names; None if a number or a name is something else."""
    names = [_name(value) for value in _without_synsets(values)]
    by_number: dict[int, list[str]] = {}
    for number, name in zip(numbers, names, strict=True):
        if number is None or number < 0 or name is None:
            return None
        by_number.setdefault(number, []).append(name)
    return {number: ", ".join(same) for number, same in by_number.items()}


def _name(value: Any) -> str | None:
    """Return a name as text; synonyms are joined, and names may be bytes, as in pickles of Python 2."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape").strip()
    if isinstance(value, (list, tuple)):
        names = [_name(name) for name in value if not isinstance(name, (list, tuple))]
        texts = [name for name in names if name]
        return ", ".join(texts) if texts and len(texts) == len(value) else None
    return str(value).strip() if isinstance(value, (str, Integral)) and not isinstance(value, bool) else None


def _without_synsets(values: Sequence[Any]) -> Sequence[Any]:
    """Return names without the ids of WordNet before them, except where two names are the same."""
    pairs = [value if isinstance(value, (list, tuple)) and len(value) == 2 else ("", value) for value in values]
    if not pairs or not all(isinstance(id_, str) and re.fullmatch(_SYNSET, id_) for id_, _ in pairs):
        return values
    counts = Counter(name for _, name in pairs)
    return [name if counts[name] == 1 else f"{name} ({id_})" for id_, name in pairs]


# Files


def text_of(data: bytes, where: str) -> str:
    """Return the text of a file, in UTF-8 or as its byte order mark states."""
    encoding = stated_encoding(data) or "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeError as error:
        raise SourceError(
            f"{where} is not text in {encoding.removesuffix('-sig').upper()} ({error}): save it as UTF-8"
        ) from error


def stated_encoding(head: bytes) -> str | None:
    """Return the encoding that the byte order mark of a text states; None without one, or for UTF-8."""
    return next((name for mark, name in _BOMS if head.startswith(mark)), None)


def lines_of(data: bytes, where: str) -> list[str]:
    """Return the lines of a file that are not empty, without spaces around them."""
    return [stripped for line in text_of(data, where).splitlines() if (stripped := line.strip())]


def read_class_names(path: Path) -> tuple[str, ...]:
    """Return the class names in a file that the user gives, see `names_of`.

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
    try:
        return names_of(data, str(path), f"{path} (--classes, classes=)", may_count_from_1=True)
    except SourceError as error:
        raise OptionError(str(error)) from error


def names_of(
    data: bytes, path: str, where: str = "", *, by_line: bool = False, may_count_from_1: bool = False
) -> tuple[str, ...]:
    """Return the class names in the content of a file, in the order of class numbers, without spaces around them.

    The file has one name per line, or all in one; or lines with a name and its number, in any order, with or without a
    header; or JSON, YAML, or a label map of TensorFlow. Empty lines, and lines that begin with ``#`` and a space, are
    left out; ``by_line`` counts them, as programs do that number classes by line. Numbers from 1 make `NamesFromOne`.

    Raises:
        SourceError: The content is not clearly names.
    """
    where = where or path
    if len(data) > _MAX_BYTES:
        raise SourceError(f"{where} has more than {_MAX_BYTES:,} bytes; allowed are {MAX_CLASSES:,} names")
    content = _names_in(text_of(data, where), path, where, by_line=by_line)
    names = (
        in_order(content, where, may_count_from_1=may_count_from_1) if isinstance(content, Mapping) else tuple(content)
    )
    if binary := next((name for name in names if _CONTROL.search(name)), None):
        raise SourceError(f"{where} has {binary[:40]!a}, which is not text: save it as text in UTF-8")
    return names


def _names_in(text: str, path: str, where: str, *, by_line: bool) -> Sequence[str] | Mapping[int, str]:
    """Return class names in their order, or by number."""
    if text.lstrip()[:1] in ("[", "{") or _ASSIGNED.match(text):
        return _numbered_in(_value(_ASSIGNED.sub("", text), where), where)
    if path.lower().endswith((".yaml", ".yml")) or _YAML_ENTRY.search(text):
        return _numbered_in(load_yaml(text, where), where)
    if _MESSAGE.search(text):
        items = [dict(_ENTRY.findall(re.sub(r"\b\w+\s*:?\s*\{[^{}]*\}", "", item))) for item in _ITEM.findall(text)]
        return _numbered_in([{key: _literal(value) for key, value in item.items()} for item in items], where)
    lines = [line.strip() for line in _LINE_END.split(text)]
    if by_line:
        lines = lines[: max((position for position, line in enumerate(lines, 1) if line), default=0)]
        if "" in lines:
            raise SourceError(
                f"class number {lines.index('')} of {where} has no name: add it, or remove the empty line"
            )
    else:
        lines = [line for line in lines if line and line != "#" and not line.startswith("# ")]
    return _of_lines(lines, where)


def load_yaml(text: str, where: str) -> Any:
    """Return the value in YAML, with all scalars as text, so that a class may be called ``no``."""
    if len(text) > _MAX_YAML_BYTES:
        raise SourceError(f"{where} has {len(text):,} bytes; allowed are {_MAX_YAML_BYTES:,} for YAML")
    yaml = import_optional("yaml", "YAML, such as data.yaml,")
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # only text, lists and dictionaries
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "it is nested too deeply"
        raise SourceError(f"{where} is not valid YAML: {reason}") from error


def _value(text: str, where: str) -> Any:
    """Return the list or dictionary that a text is, in the form of JSON or Python."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise SourceError(
                f"{where} begins like JSON, which cannot be read: {error}; expected a list of names"
            ) from error


def of_value(value: Any, where: str) -> tuple[str, ...]:
    """Return the names in a value, or in entries of a dictionary such as ``names``."""
    return in_order(_numbered_in(value, where), where)


def _numbered_in(value: Any, where: str) -> dict[int, str]:
    """Return number -> name in a value, or in entries of a dictionary such as ``names``."""
    entries = value if isinstance(value, Mapping) else {}
    lists = {key: entries[key] for key in (*CLASS_LISTS, *MAYBE_LISTS) if isinstance(entries.get(key), (list, Mapping))}
    names, *others = [numbered_names(entry) or {} for entry in lists.values() or (value,)]
    if any(other != names for other in others):
        raise SourceError(f"{where} has different class names in {quoted(lists)}: remove all but one")
    if names and str(count := entries.get("nc", len(names))) != str(len(names)):
        raise SourceError(f"{where}: nc is {count}, and there are {len(names)} names: correct one of them")
    return names


def in_order(numbered: Mapping[int, str], where: str, *, may_count_from_1: bool = False) -> tuple[str, ...]:
    """Return class names by number, if each number from 0 has one; or from 1, if that is allowed."""
    if not numbered or not all(numbered.values()):
        raise SourceError(
            f"{where} has no class names: expected a list of names, or a name for each number from 0, such as "
            '["cat", "dog"] or {"cat": 0, "dog": 1}'
        )
    names = tuple(numbered[number] for number in sorted(numbered))
    first = min(numbered)
    if sorted(numbered) != [*range(first, first + len(numbered))] or first > may_count_from_1:
        raise _numbers_error(list(numbered), where)
    return NamesFromOne(("0", *names)) if first else names


def _numbers_error(numbers: Sequence[int], where: str) -> SourceError:
    missing = "the missing numbers" if 0 in numbers else "0 if the labels begin with 1"
    return SourceError(
        f"{where} has names with the numbers {quoted(map(str, numbers))}; class numbers are 0 to {len(numbers) - 1}, "
        f"each once: add a name for {missing}, correct the numbers if they are class numbers, leave them out if they "
        f"are counts, {_AS_JSON}"
    )


def _of_lines(lines: list[str], where: str) -> Sequence[str] | Mapping[int, str]:
    if lines and lines[0].startswith("#"):
        raise SourceError(f"{where} begins with {lines[0][:40]!r}: remove this line if it is a comment, {_AS_JSON}")
    if lines and all(line.startswith("- ") for line in lines):  # a list of YAML
        lines = [line[2:].strip() for line in lines]
    lines = _separated(lines[0]) if len(lines) == 1 else lines
    if len(lines) > 1 and all(line.endswith(",") for line in lines[:-1]):  # of Python or JSON
        lines = [line.removesuffix(",").strip() for line in lines]
    unquoted = [_unquoted(line) for line in lines]
    names = [name if name is not None and line[0] == '"' else line for name, line in zip(unquoted, lines, strict=True)]
    if are_quoted := None not in unquoted:
        names = [name or "" for name in unquoted]
    if not are_quoted and (numbered := _numbered(names, where)) is not None:
        return numbered
    if len(names) > 1 and _HEADERS.fullmatch(names[0]):
        raise SourceError(f"{where} begins with {names[0]!r}: remove this line if it is a header, {_AS_JSON}")
    if not are_quoted and all(pairs := [*map(_SYNSET_FIRST.fullmatch, names)]):
        names = list(_without_synsets([match.groups() for match in pairs if match]))
    if not are_quoted:
        _check_columns(names, where)
    return names


def _separated(line: str) -> list[str]:
    """Return the names in the only line of a file: one, or several with a separator between them."""
    for separator in ",;|\t" if len(line) < csv.field_size_limit() else "":
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
        names = names[:-1] if names[-1] == "" else names
        if len(names) > 2 or (len(names) == 2 and not any(map(str.isdigit, names))):
            return names
    return [line]


def _unquoted(text: str) -> str | None:
    """Return the text in quotes, with each inner quote written twice; None for other texts."""
    if len(text) <= 2 or text[0] != text[-1] or text[0] not in "'\"":
        return None
    inner = text[1:-1].replace(2 * text[0], "\0")
    return None if text[0] in inner else inner.replace("\0", text[0]).strip()


def _numbered(lines: Sequence[str], where: str) -> dict[int, str] | None:
    """Return number -> name of lines that are a name and its number; None if lines are only names."""
    for pattern in (_NUMBER_FIRST, _NUMBER_LAST) if max(map(len, lines), default=0) <= _MAX_LINE else ():
        matches = [pattern.fullmatch(line) for line in lines]
        first = 1 if len(lines) > 2 and matches[0] is None else 0
        parts = [match for match in matches[first:] if match is not None]
        marks = {part["mark"] or part["dash"] for part in parts}
        names = [_unquoted(part["name"]) or part["name"] for part in parts]
        if not parts or len(parts) < len(lines) - first or len(set(names)) < len(names):
            continue
        if first and (len(marks) > 1 or not _is_header(lines[0], next(iter(marks)))):
            continue
        numbers = [int(part["number"]) for part in parts]
        are_whole = not any(part.groupdict().get("rest") for part in parts)
        start = min(len(numbers) - 1, *numbers, 1)
        if are_whole and sorted(numbers) == [*range(start, start + len(numbers))]:
            if not any(_unquoted(part["name"]) for part in parts):
                _check_columns(names, where)
            return dict(zip(numbers, names, strict=True))
        are_years = are_whole and marks == {None} and all(_YEAR.fullmatch(part["number"]) for part in parts)
        if not are_years and (len(numbers) > 1 or numbers == [1]):
            raise _numbers_error(numbers, where)
    return None


def _is_header(line: str, mark: str | None) -> bool:
    """Return whether a line can be the header of lines of names and numbers with a mark between them."""
    words = line.split(mark)
    return len(words) == 2 and (
        mark is not None or all(_HEADERS.fullmatch(word) or _HEADERS_OF_NUMBERS.fullmatch(word) for word in words)
    )


def _check_columns(lines: Sequence[str], where: str) -> None:
    """Check that names are not values of several columns."""
    marks = [tuple(_COLUMN_END.findall(line)) for line in lines]
    if len(lines) > 1 and ((marks[0] and len(set(marks)) == 1) or _numbered(lines, where) is not None):
        raise SourceError(
            f"{where} has several columns, such as {lines[0][:40]!r} and {lines[1][:40]!r}: keep the names, or names "
            f"and their numbers, {_AS_JSON}"
        )


def _literal(text: str) -> str:
    """Return the value of an entry of a label map of TensorFlow."""
    if text[0] not in "'\"":
        return text
    data = re.sub(rb"\\([0-7]{1,3}|.)", lambda match: _escaped(match[1]), text[1:-1].encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "replace")


def _escaped(code: bytes) -> bytes:
    """Return what a code after a backslash stands for: a byte in octal digits, or the character itself."""
    return bytes([int(code, 8) & 255]) if code.isdigit() else code
