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


def run_after(error: BaseException | None, step: Callable[[], object]) -> None:
    """Call the last function of a loader. If an error is already being raised, another one is added to it as a note."""
    try:
        step()
    except Exception as later:
        if error is None:
            raise
        error.add_note(f"closing the loader failed too: {type(later).__name__}: {later}")
