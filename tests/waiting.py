"""Waiting for a state that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 120) -> T:
    """Return the first true value of a function. The time is for a machine that does much else meanwhile."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
    return value
