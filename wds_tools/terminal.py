"""When progress is shown on the terminal: no other module looks at the streams, at ``TERM`` or at ``CI``.

The package writes no colours, so ``NO_COLOR`` changes nothing.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

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
    return _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb" and _is_off("CI")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _is_off(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in _FALSE
