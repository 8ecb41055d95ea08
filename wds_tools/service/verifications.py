"""The last verification of each dataset, as `wds-tools verify` reported it. It outlives the service.

Each dataset has one small file, which is replaced atomically and read when a page shows it. So several processes need
no lock, and a killed one leaves the result of before.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from wds_tools.storage.commit import commit_bytes

MAX_FILES = 4096
_MAX_SECONDS = 90 * 86400.0  # after which a result is not shown any more
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        damaged: Number of damaged parts.
        received: When it was reported, in seconds since 1970.
        place: Which copy of the dataset was verified: its path or URL, and the machine.
    """

    damaged: int
    received: float
    place: str


class Verifications:
    """Results by the fingerprint of the dataset. If the folder is not writable, they are kept in memory only.

    Args:
        folder: Folder of the files; it is created if needed, and may be deleted at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsaved: dict[str, Verification] = {}
        self._has_warned = False

    def add(self, values: dict[str, Any]) -> None:
        """Keep the result of a report that `wds_tools.service.reports.check_report` has accepted. Writes to a disk."""
        found = Verification(values["damaged"], time.time(), f"{values['dataset']} on {values['host']}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_way()
            commit_bytes(self._path(values["fingerprint"]), json.dumps(astuple(found)).encode())
            self._unsaved.pop(values["fingerprint"], None)
        except OSError as error:
            if not self._has_warned:
                _log.warning(
                    "%s: results of verifications cannot be stored: %s; they are lost when the service ends",
                    *(self._folder, error.strerror or error),
                )
            self._has_warned = True
            if len(self._unsaved) < MAX_FILES:
                self._unsaved[values["fingerprint"]] = found

    def find(self, fingerprint: str) -> Verification | None:
        """Return the last result for a dataset; None if there is none, or only an old one."""
        found = self._unsaved.get(fingerprint) or self._read(fingerprint)
        return None if found is None or time.time() - found.received > _MAX_SECONDS else found

    def _read(self, fingerprint: str) -> Verification | None:
        with suppress(OSError, ValueError, TypeError, OverflowError):  # missing, or damaged
            damaged, received, place = json.loads(self._path(fingerprint).read_bytes())
            return Verification(int(damaged), max(0.0, min(time.time(), float(received))), str(place))
        return None

    def _path(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"

    def _make_way(self) -> None:
        """Remove the oldest files if there are too many."""
        with os.scandir(self._folder) as entries:
            files = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in entries]
        for _, path in sorted(files)[: max(0, len(files) + 1 - MAX_FILES)]:
            Path(path).unlink(missing_ok=True)
