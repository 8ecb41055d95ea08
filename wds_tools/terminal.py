"""When progress is shown on the terminal: no other module looks at the streams, at ``TERM`` or at ``CI``.

The package writes no colours, so ``NO_COLOR`` changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

_FALSE = ("", "0", "false", "no")


def shows_progress(progress: bool | None = None) -> bool:
    """Return whether to show a progress bar on stderr.

    Args:
        progress: The user's choice; None shows one only if a person can watch it: stderr is a
            terminal that can move the cursor (``TERM`` is not ``dumb``), and this is not a CI job
            (``CI`` is not set).
    """
    if progress is not None:
        return progress
    is_terminal = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
    is_ci = os.environ.get("CI", "").strip().lower() not in _FALSE
    return is_terminal and os.environ.get("TERM") != "dumb" and not is_ci


def phase_bar(what: str, items: int | Iterable[Any], *, total: int | None = None, progress: bool | None = None) -> Any:
    """Return tqdm's bar for one phase of a command, such as reading indexes. It disappears at the end of the phase.

    Args:
        what: Name of the phase.
        items: How many steps it has, or the steps to iterate over.
        total: Number of ``items`` if they have no length.
        progress: The user's choice, as for `shows_progress`.
    """
    from tqdm import tqdm  # noqa: PLC0415 - the command line imports this module, and `--help` must not load tqdm

    options = {"desc": what, "leave": False, "disable": not shows_progress(progress), "file": sys.stderr}
    return tqdm(total=items, **options) if isinstance(items, int) else tqdm(items, total=total, **options)
