"""Waiting for a state of another process or thread: with a limit that a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def wait_for(condition: Callable[[], _Value], seconds: float = 120.0, *, poll_seconds: float = 0.02) -> _Value:
    """Return the first true value of a function."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(poll_seconds)
    return value
