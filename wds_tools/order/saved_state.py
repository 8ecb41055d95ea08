"""Entries of a saved state, checked: types, ranges, and a checksum over all of them. No I/O.

A state is kept in a checkpoint, in a file that people can edit, or in the hands of another library. A changed number
would continue the run at another sample without an error.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from wds_tools.errors import ResumeError

CHECKSUM = "xxh3"
"""Entry of a state with the checksum of its other entries. States of older versions have none."""

MAX_EPOCH = 1 << 40
MAX_NUMBER = (1 << 63) - 1


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the checksum of its entries."""
    return {**state, CHECKSUM: _checksum(state)}


def check_seal(state: Any) -> None:
    """Check that a state is a mapping and has the entries that its checksum is for, if it has one.

    Integers of numpy and tensors of one integer count as integers, and tuples as lists: some libraries change them.

    Raises:
        ResumeError: It is not, or was edited, truncated or damaged.
    """
    if not isinstance(state, Mapping):
        raise ResumeError(
            f"this is not a loader state ({type(state).__name__}): pass the result of loader.state_dict()"
        )
    if CHECKSUM not in state:
        return
    try:
        checksum = _checksum({name: value for name, value in state.items() if name != CHECKSUM})
    except (TypeError, ValueError, RecursionError) as error:
        raise ResumeError(f"the state has an entry of a wrong type ({error}): load an earlier state") from error
    if state[CHECKSUM] != checksum:
        raise ResumeError(
            f"the checksum of the state is {checksum}, but it records {state[CHECKSUM]!r}: it was damaged or edited; "
            f"load an earlier state, or, if you edited it on purpose, remove its entry {CHECKSUM!r}"
        )


def whole_number(value: Any, name: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """Return an entry that is a whole number."""
    number = None if isinstance(value, bool | np.bool_) else _index(value)
    if number is None or not least <= number <= most:
        raise ResumeError(
            f"the state has {name}={str(value)[:80]} ({type(value).__name__}); allowed are whole numbers from "
            f"{least:,} to {most:,}: the state was damaged, or is not the result of loader.state_dict()"
        )
    return number


def entries_of(value: Any, name: str) -> list[Any] | tuple[Any, ...]:
    """Return an entry that is a list."""
    if not isinstance(value, list | tuple):
        raise ResumeError(f"the entry {name!r} of the state is damaged: {str(value)[:80]!r} is not a list")
    return value


def _index(value: Any) -> int | None:
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises the others for tensors of several numbers
        return None


def _checksum(state: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(plain(state), sort_keys=True).encode())


def plain(value: Any) -> Any:
    """Return an entry as JSON would return it, so that two of them can be compared."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float | np.floating):
        return float(value)
    return operator.index(value)
