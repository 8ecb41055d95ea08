"""Patterns for names of shards: braces (``train-{000000..000099}.tar``) and, for local files, globs."""

from __future__ import annotations

import glob
import os
import re

from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]

from wds_tools.errors import NotADatasetError, OptionError

MAX_NAMES = 1_000_000
"""Maximum number of names that a pattern may expand to. `braceexpand` builds all of them, so they are counted first."""

_MAX_DEPTH = 16
_MAX_LENGTH = 4096  # longest path on Linux; it also limits the digits of numbers in a range
_INT_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_CHAR_RANGE = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?$")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def has_pattern(spec: str) -> bool:
    """Return whether ``spec`` is a pattern: it has braces, or is a local path with ``*``, ``?`` or ``[``.

    >>> has_pattern("a-{0..9}.tar"), has_pattern("a-*.tar"), has_pattern("https://host/a.tar?x=*"), has_pattern("a.tar")
    (True, True, False, False)
    """
    return "{" in spec or (_URL.match(spec) is None and glob.has_magic(spec))


def expand_pattern(pattern: str) -> list[str]:
    """Return the names that a pattern matches; a name that is not a pattern is returned unchanged.

    Braces expand in the order in which they are written, and globs in sorted order. An existing local
    path is never treated as a pattern.

    >>> expand_pattern("s3://bucket/{train,val}-{08..10}.tar")[2:4]
    ['s3://bucket/train-10.tar', 's3://bucket/val-08.tar']

    Raises:
        OptionError: A brace is not closed, or the pattern is too long, nested too deeply, or expands to
            more than `MAX_NAMES` names.
        NotADatasetError: A glob matches no file.
    """
    if not has_pattern(pattern) or (_URL.match(pattern) is None and os.path.lexists(pattern)):
        return [pattern]
    names = [match for name in _expand_braces(pattern) for match in _expand_glob(name)]
    if not names:
        raise NotADatasetError(f"pattern {pattern!r} matches no file; check the path, and quote it in the shell")
    return names


def _expand_braces(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    if len(pattern) > _MAX_LENGTH:
        raise OptionError(f"a pattern of {len(pattern):,} characters; allowed are {_MAX_LENGTH:,}")
    count = _count(pattern, 0)
    if count > MAX_NAMES:
        raise OptionError(
            f"pattern {pattern[:200]!r} expands to {count:,} names; allowed are {MAX_NAMES:,}: use several patterns"
        )
    try:
        return list(braceexpand(pattern))
    except UnbalancedBracesError as error:
        raise OptionError(
            f"pattern {pattern[:200]!r} has a brace that is not closed; write \\{{ for the character itself"
        ) from error


def _expand_glob(name: str) -> list[str]:
    if _URL.match(name) is not None or not glob.has_magic(name) or os.path.lexists(name):
        return [name]
    return sorted(glob.glob(name))  # noqa: PTH207 - Path.glob() takes no absolute patterns


def _count(pattern: str, depth: int) -> int:
    """Return an upper bound for the number of names that `braceexpand` would return."""
    if depth > _MAX_DEPTH:
        raise OptionError(f"a pattern has braces nested more than {_MAX_DEPTH} deep")
    total = 1
    for group in _top_groups(pattern):
        total *= max(1, _count_group(group, depth + 1))
    return total


def _count_group(group: str, depth: int) -> int:
    if match := _INT_RANGE.match(group):
        start, stop, step = (int(text or "1") for text in match.groups())
        return abs(stop - start) // max(1, step) + 1
    if _CHAR_RANGE.match(group):
        return 60  # upper bound: there are 58 characters from A to z
    return sum(_count(part, depth) for part in _split_commas(group))


def _top_groups(pattern: str) -> list[str]:
    """Return the text inside each pair of outermost braces."""
    groups, depth, start = [], 0, 0
    for position, character in _unescaped(pattern):
        if character == "{":
            depth += 1
            start = position + 1 if depth == 1 else start
        elif character == "}":
            depth -= 1
            if depth == 0:
                groups.append(pattern[start:position])
    return groups


def _split_commas(group: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, character in _unescaped(group):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(group[start:position])
            start = position + 1
    return [*parts, group[start:]]


def _unescaped(text: str) -> list[tuple[int, str]]:
    """Return (position, character) of each character, without backslashes and the characters after them."""
    characters, position = [], 0
    while position < len(text):
        if text[position] == "\\":
            position += 1
        else:
            characters.append((position, text[position]))
        position += 1
    return characters
