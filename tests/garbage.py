"""A plugin of pytest: what a test leaves open is its own error, and not that of a later test that collects garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect garbage after the other fixtures of a test have ended. Pytest then reports warnings and exceptions."""
    yield
    gc.collect()
