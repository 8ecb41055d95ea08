"""Searches for secrets in texts, files, and the command lines and environments of processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import quote

from buckets import Vault

WRONG = {"secret": "wr0ng-sentinel-/+value"}


def assert_hidden(text: str | bytes, *secrets: str) -> None:
    """Assert that none of the secrets is in a text, as it is or quoted; by default those of the tests."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    for secret in secrets or (Vault.SECRET, WRONG["secret"]):
        for form in (secret, quote(secret, safe=""), quote(secret)):
            assert form.encode() not in data


def assert_hidden_below(folder: Path) -> None:
    """Assert that no path and no file below a folder has a secret. Processes that end may remove files meanwhile."""
    for parent, folders, files in os.walk(folder):  # does not mind that a folder was removed
        for path in (Path(parent, name) for name in (*folders, *files)):
            assert_hidden(str(path))
            with contextlib.suppress(FileNotFoundError):
                assert_hidden(path.read_bytes() if path.is_file() else b"")


def command_lines() -> bytes:
    """Return the command lines and environments of this process and of all its descendants."""
    found, waiting = [], [os.getpid()]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        with contextlib.suppress(OSError):
            found += [(folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()]
            for children in folder.glob("task/*/children"):
                waiting += map(int, children.read_text().split())
    assert len(found) >= 2
    return b"\n".join(found)
