"""Which files are a source: not hidden, not unfinished, each once, all numbered parts of one set, and one split."""

from __future__ import annotations

import filecmp
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources.layouts import hidden_root, is_split_name
from wds_tools.sources.name_patterns import (
    ANNOTATIONS,
    COPY,
    FINGERPRINT,
    NUMBERS,
    PART_OF_SET,
    SPLIT_FILE,
    UNFINISHED_FILE,
)
from wds_tools.storage import is_url
from wds_tools.storage.patterns import has_pattern
from wds_tools.storage.requests.failures import clean_url
from wds_tools.wording import counted

UNFINISHED = "is named like an unfinished file or a backup"

_LOGS = {  # what is in a folder if not all of its Parquet files count -> the format, and what can write plain Parquet
    "_delta_log": ("a Delta Lake table", "deltalake.DeltaTable(PATH).to_pyarrow_table()"),
    "metadata/*.metadata.json": ("an Iceberg table", "pyiceberg's scan().to_arrow()"),
    ".hoodie": ("a Hudi table", "Spark"),
}
_WORDS = re.compile(r"[^\W\d_]+([-_ ][^\W\d_]+)*")
_ENDS_BYTES = 1 << 16
_MOST_PARTS = 1_000_000


class SplitsError(SourceError):
    """The files belong to several splits.

    Attributes:
        places: The folder or pattern of each split; empty if not all files are in one.
    """

    def __init__(self, message: str, places: Mapping[str, str]) -> None:
        super().__init__(message)
        self.places = places


def is_unfinished(name: str) -> bool:
    """Return whether a file is named like an unfinished download or a backup.

    >>> is_unfinished("a.tfrecord.tmp"), is_unfinished("a.tar~"), is_unfinished("part.tar")
    (True, True, False)
    """
    return UNFINISHED_FILE.match(name) is not None


def is_meant(path: str) -> bool:
    """Return whether a file of a folder can be a part of a source, by its path in the folder.

    >>> is_meant("a/b.parquet"), is_meant(".Trash-0/b.parquet"), is_meant("_SUCCESS"), is_meant("b.tar.part")
    (True, False, False, False)
    """
    name = posixpath.basename(path)
    return hidden_root(path) is None and name[0] not in "._" and not is_unfinished(name)


def check_set(root: str, names: Sequence[str], *, given: str = "") -> None:
    """Check that files are all parts of one set, of one split, unless the user named all of them.

    ``root`` is empty if the user gave a pattern, ``given``. Names are paths below it.
    """
    unfinished = [name for name in names if is_unfinished(name)]
    if unfinished and len(unfinished) < len(names):
        raise SourceError(
            f"{shown_path(given)} matches {shown_path(unfinished[0])!r}, which {UNFINISHED}: remove it, or give a "
            "pattern that does not match it"
        )
    _check_parts(root, names, given=given)
    _check_splits(root, names, given=given)


def notes_on_copies(files: Sequence[tuple[Path, int]]) -> list[str]:
    """Return a note for each local file that is named like a copy of another one, or has the content of another one.

    Raises:
        SourceError: A file is named like a copy of another one and has its content: its samples would be packed twice.
    """
    sizes = dict(files)
    above = posixpath.commonpath([path.parent.as_posix() for path in sizes]) if sizes else ""
    names = {path: posixpath.relpath(path.as_posix(), above) for path in sizes}
    originals = {path: path.with_name(COPY.without(path.name)) for path in sizes}
    copies = [(path, original) for path, original in originals.items() if path != original and original in sizes]
    for path, original in copies:
        if sizes[path] == sizes[original] and filecmp.cmp(path, original, shallow=False):
            raise SourceError(
                f"{path} is named like a copy of {original.name!r} and has the same content: remove it, or give a "
                "pattern that does not match it"
            )
    notes = [
        f"{names[path]!r} is named like a copy of {names[original]!r}: both are packed" for path, original in copies
    ]
    by_size: defaultdict[int, dict[bytes, Path]] = defaultdict(dict)
    counts = Counter(sizes.values())
    for path, size in files:
        earlier = by_size[size].setdefault(_ends(path, size), path) if size and counts[size] > 1 else path
        if earlier != path and filecmp.cmp(path, earlier, shallow=False):
            notes.append(
                f"{names[earlier]!r} and {names[path]!r} have the same content: their samples are packed twice"
            )
    return notes


def words_of_files(paths: Sequence[str]) -> list[str]:
    """Return the names of files without numbers at their end, if these differ and are words, as classes are.

    >>> words_of_files(["ant-0.tar", "ant-1.tar", "bee-0.tar"]), words_of_files(["part-0.tar", "part-1.tar"])
    (['ant', 'bee'], [])
    """
    words = sorted({NUMBERS.without(posixpath.basename(path).partition(".")[0]) for path in paths})
    are_words = all(_WORDS.fullmatch(word) and not is_split_name(word) for word in words)
    return words if len(words) > 1 and are_words else []


def _ends(path: Path, size: int) -> bytes:
    """Return the first and the last bytes of a file."""
    with path.open("rb") as file:
        first = file.read(_ENDS_BYTES)
        file.seek(max(0, size - _ENDS_BYTES))
        return first + file.read(_ENDS_BYTES)


def _check_parts(root: str, names: Sequence[str], *, given: str) -> None:
    """Check that all files of a set such as ``train-00000-of-00002`` exist, and that all state the same count."""
    sets: defaultdict[tuple[str, str, str], dict[str, dict[int, str]]] = defaultdict(dict)
    for name in names:
        folder, last = posixpath.split(name)
        if match := PART_OF_SET.match(last):
            start, index, _, count, end = match.groups()
            end = FINGERPRINT.without(end)
            if int(index) <= int(count):
                sets[folder, start, end].setdefault(count, {})[int(index)] = name
    for by_count in sets.values():
        first, *others = [next(iter(parts.values())) for parts in by_count.values()]
        if others and not all(count in given for count in by_count):
            raise SourceError(
                f"{shown_path(given or root)} has {first!r} and {others[0]!r}, which are parts of two sets of files: "
                f"remove one set, or pack one by a pattern, such as {_pattern(root, first)!r}"
            )
    lacking = {key: by_count for key, by_count in sets.items() if any(map(_missing, by_count, by_count.values()))}
    for _, start, end in () if given else lacking:
        same = [by_count for (_, *ends), by_count in sets.items() if ends == [start, end]]  # perhaps in other folders
        for count, parts in same[0].items():
            together = {index: name for by_count in same for index, name in by_count.get(count, {}).items()}
            if missing := _missing(count, together):
                first = next(iter(parts.values()))
                raise SourceError(
                    f"{shown_path(root)} has {counted(len(together), 'file')} such as {first!r}, and their names state "
                    f"{int(count):,}: {quoted(_sibling(first, index) for index in missing)} "
                    f"{'is' if len(missing) == 1 else 'are'} missing: copy what is missing, or pack the others by a "
                    f"pattern, such as {_pattern(root, first)!r}"
                )


def _missing(count: str, parts: Mapping[int, str]) -> list[int]:
    """Return the numbers of missing parts, which are counted from 0 or from 1."""
    first = 1 if 0 not in parts and int(count) in parts else 0
    return sorted({*range(first, first + int(count))} - parts.keys()) if int(count) <= _MOST_PARTS else []


def _sibling(name: str, index: int) -> str:
    """Return the name of another part of a set."""
    folder, last = posixpath.split(name)
    match = PART_OF_SET.match(last)
    assert match is not None, name
    start, number, of, count, end = match.groups()
    return posixpath.join(folder, f"{start}{index:0{len(number)}}{of}{count}{FINGERPRINT.without(end, '-*')}")


def _pattern(root: str, name: str) -> str:
    """Return a pattern for a set of which a file is a part."""
    folder, last = posixpath.split(shown_path(posixpath.join(root, name)))
    return posixpath.join(folder, FINGERPRINT.without(PART_OF_SET.without(last, r"\1*\3\4\5"), "-*"))


def check_no_log(root: Path, paths: Iterable[Path]) -> None:
    """Check that all files count: a table with a log also keeps files that were deleted or replaced."""
    above = {folder for path in paths for folder in path.parents}
    for folder in sorted(folder for folder in above if folder == root.parent or folder.is_relative_to(root)):
        for pattern, (name, program) in _LOGS.items():
            if any(folder.glob(pattern)):
                raise SourceError(
                    f"{folder} is {name}: only its log, which is not read, states which files count. Write it as "
                    f"Parquet with {program}, or give a pattern of files to pack these as they are"
                )


def _check_splits(root: str, names: Sequence[str], *, given: str = "") -> None:
    """Check that the files belong to one split, unless the user named all of them.

    ``root`` is empty if the user gave a pattern, ``given``. Names are paths below it.
    """
    by_split, are_known = _by_split(names, given=given)
    splits = sorted(by_split)
    archives = [name for name in names if name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))]
    described = next((name for name in archives if ANNOTATIONS.match(posixpath.basename(name))), None)
    if described is not None and len(archives) > 1 and len(splits) > 1 and not given:
        raise SourceError(
            f"{shown_path(root)} has {described!r}, which is named like annotations, next to archives of images: "
            "unpack all of them into one folder, and pack this folder"
        )
    if len(splits) > 1 and not all(split.lower() in given.lower() for split in splits):
        places = {split: _place(split, by_split[split], names) for split in splits}
        paths = {split: posixpath.join(root, place) for split, place in places.items() if place}
        are_all = len(paths) == len(splits) and sum(map(len, by_split.values())) == len(names) and not given
        by_name = any(given or _name_with_split(name) == posixpath.basename(name) for name in names)
        depth = 0 if given else names[0].count("/")
        above = posixpath.join(shown_path(root or posixpath.dirname(given)), *["*"] * depth)
        first = shown_path(paths.get(splits[0]) or posixpath.join(above, f"*{splits[0]}*"))
        together = f"*{{{','.join(splits)}}}*" if by_name else f"*{posixpath.splitext(names[0])[1]}"
        at_once = "with --split folders (pack_splits), or " if are_all else ""
        what = "several splits" if are_known else "a split next to other files"
        raise SplitsError(
            f"{shown_path(given or root)} contains {what} ({', '.join(splits)}): pack {at_once}one at a time, "
            f"such as '{first}'; the pattern '{posixpath.join(above, together)}' packs them together",
            paths if are_all else {},
        )


def _place(split: str, members: Sequence[str], names: Sequence[str]) -> str:
    """Return the folder that has only the files of a split, or a pattern that matches only these; empty without one."""
    folder = posixpath.commonpath([posixpath.dirname(name) for name in members])
    if has_pattern(folder):
        return ""
    if folder and all(name in members for name in names if name.startswith(f"{folder}/")):
        return folder
    first, extensions = posixpath.basename(members[0]), {posixpath.splitext(name)[1] for name in members}
    match = SPLIT_FILE.match(first)  # as in mnist-train.tfrecord-00000-of-00002
    extension = extensions.pop() if len(extensions) == 1 else ""
    for start in (
        first[: match.end(1) if match else len(split)],
        posixpath.commonprefix([*map(posixpath.basename, members)]),
    ):
        pattern = posixpath.join(folder, first if start == first else f"{start}*{extension}")
        matched = [name for name in names if fnmatchcase(name, pattern) and posixpath.dirname(name) == folder]
        if start and sorted(matched) == sorted(members):
            return pattern
    return ""


def _name_with_split(name: str) -> str:
    """Return what may begin with a split: a folder that is named like one, without ``split=``, or the file name."""
    *folders, last = name.split("/")
    return next(filter(is_split_name, (folder.rpartition("=")[2] for folder in folders)), last)


def _by_split(names: Sequence[str], *, given: str) -> tuple[dict[str, list[str]], bool]:
    """Return files by split, and whether several are named like splits; none if no split is next to another part.

    Files whose names differ after the word for the split, such as ``test_ood.tar`` and ``test.tar``, are splits of
    their own. Numbers at the end of a name are numbers of parts, unless another name differs only in having none.
    """
    split_paths = [name.split("/") for name in names]
    levels = (i for parts in split_paths for i, part in enumerate(parts[:-1]) if is_split_name(_value(part)))
    level = -1 if given else next(levels, -1)
    rests = {}  # name -> word for the split, what follows it, and the same without numbers of parts
    others: defaultdict[str, list[str]] = defaultdict(list)
    is_split = False
    for name, parts in zip(names, split_paths, strict=True):
        named = parts[-1] if given else _name_with_split(name)
        if named == parts[-1] and 0 <= level < len(parts) - 1:
            named = _value(parts[level])
        is_file = named == parts[-1]
        part = NUMBERS.without(named.partition(".")[0]) if is_file else named
        is_split |= is_split_name(part) and (is_file or part in map(_value, parts))
        if (match := SPLIT_FILE.match(named)) and (is_file or is_split_name(named)):
            rest = "" if given else COPY.without(FINGERPRINT.without(named[match.end(1) :]))
            bare = ".".join(map(NUMBERS.without, rest.split("."))) if is_file else rest
            rests[name] = match[1].lower(), rest, bare
        else:
            others[part].append(name)
    words = {word for word, _, _ in rests.values()}
    if len(words) < 2 and (not is_split or len(words) + len(others) < 2):
        return {}, False
    if given and len(words) > 1:
        others.clear()
    exact = {(word, rest) for word, rest, _ in rests.values()}
    by_rest: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, (word, rest, bare) in rests.items():
        by_rest[word, rest if (word, bare) in exact else bare].append(name)
    counts = Counter(word for word, _ in by_rest)
    end = posixpath.commonprefix([rest[::-1] for _, rest in by_rest]).rpartition(".")  # as all have it, reversed
    most = len("".join(end[:2]))
    by_split = {
        word if counts[word] == 1 else word + rest[: len(rest) - most]: members
        for (word, rest), members in by_rest.items()
    }
    return {**others, **by_split}, len(words) > 1


def _value(folder: str) -> str:
    """Return the name of a folder, or the value in ``split=train``. Values of other columns are not splits."""
    column, _, value = folder.rpartition("=")
    return value if column in ("", "split") else folder


def shown_path(path: str) -> str:
    """Return a path for messages: a URL without user, password and query."""
    return clean_url(path) if is_url(path) else path
