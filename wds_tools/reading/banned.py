"""The option ``ban=``: a file or a sequence of keys or sample ids → sample ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.reading.shardset import ShardSet

Banned: TypeAlias = str | os.PathLike[str] | Sequence[str] | Sequence[int] | NDArray[np.integer]
"""A file with one key or sample id per line, keys, or sample ids."""

_MAX_SHOWN = 5


def banned_ids(shards: ShardSet, ban: Banned) -> list[int]:
    """Return the ids of banned samples, ascending. Indexes are read only for keys.

    Args:
        shards: The dataset.
        ban: Keys (str), or sample ids (int). Or a file: its lines are sample ids if all of them are whole numbers and
            none is a key of the dataset, otherwise keys. All samples with a key are banned.

    Raises:
        OptionError: The file cannot be read, or the dataset does not have a key or an id.
    """
    if isinstance(ban, str | os.PathLike):
        return _ids_of_lines(shards, _lines(ban), os.fspath(ban))
    values: list[Any] = ban.tolist() if isinstance(ban, np.ndarray) else list(ban)
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return _checked_ids(shards, values, "ban=")
    if all(isinstance(value, str) for value in values):
        return _ids_of_keys(_ids_by_key(shards, values), values, "ban=")
    found = ", ".join(sorted({type(value).__name__ for value in values}))
    raise OptionError(f"ban= has values of type {found}; allowed are keys (str) or sample ids (int), not both")


def _lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionError(
            f"ban={os.fspath(path)!r} cannot be read ({reason}): pass a text file with one key or sample id per line, "
            "or a list of keys"
        ) from error
    return [line.strip() for line in lines if line.strip()]


def _ids_of_lines(shards: ShardSet, lines: list[str], path: str) -> list[int]:
    found = _ids_by_key(shards, lines)
    if not found and all(line.isdecimal() for line in lines):
        return _checked_ids(shards, list(map(int, lines)), path)
    return _ids_of_keys(found, lines, path)


def _ids_by_key(shards: ShardSet, keys: Iterable[str]) -> dict[str, list[int]]:
    """Return the ids of the samples with these keys, without keys that no sample has."""
    wanted, found, start = set(keys), dict[str, list[int]](), 0
    for number in range(len(shards.locations)) if wanted else ():
        index = shards.index(number)
        for row, key in enumerate(index.keys):
            if key in wanted:
                found.setdefault(key, []).append(start + row)
        start += len(index)
    return found


def _ids_of_keys(found: dict[str, list[int]], keys: Sequence[str], where: str) -> list[int]:
    unknown = sorted(set(keys) - set(found))
    if unknown:
        more = f" and {len(unknown) - _MAX_SHOWN:,} more" if len(unknown) > _MAX_SHOWN else ""
        raise OptionError(
            f"{where} has keys that the dataset does not have: {', '.join(map(repr, unknown[:_MAX_SHOWN]))}{more}; "
            "remove them, or list keys as loader.explain() and `wds-tools plan --state` print them"
        )
    return sorted({sample for ids in found.values() for sample in ids})


def _checked_ids(shards: ShardSet, ids: Sequence[int], where: str) -> list[int]:
    samples = sum(location.entry.samples for location in shards.locations)
    wrong = [sample for sample in ids if not 0 <= sample < samples]
    if wrong:
        raise OptionError(f"{where} has the sample id {wrong[0]}; the dataset has the ids 0 to {samples - 1}")
    return sorted(set(map(int, ids)))
