"""Cleanup that goes on after an error."""

from __future__ import annotations

from collections.abc import Callable


def run_all(*steps: Callable[[], object]) -> None:
    """Call all functions in order, also after an error. Then raise the first error."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:  # it is raised below
            first = first or error
    if first:
        raise first
