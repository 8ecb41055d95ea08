"""The worker processes of a loader, found as any other program would: they are children of this process."""

from __future__ import annotations

import multiprocessing
from multiprocessing.process import BaseProcess

PREFIX = "wds-tools-worker-"


def worker_processes() -> list[BaseProcess]:
    """Return the workers of a loader by number; no other loader of this process may have workers."""
    found = [process for process in multiprocessing.active_children() if process.name.startswith(PREFIX)]
    numbers = {int(process.name.removeprefix(PREFIX)): process for process in found}
    assert len(numbers) == len(found), "several loaders have workers"
    return [numbers[number] for number in sorted(numbers)]
