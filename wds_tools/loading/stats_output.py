"""Statistics of a loader while it runs: a progress line, and JSON lines in a file."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from wds_tools.loading.statistics import STEP, PeriodStats, StatsReader
from wds_tools.order.planner import EpochPlan

_PROGRESS_SECONDS = 0.5  # between two updates of the figures in the progress line
_log = logging.getLogger("wds_tools")


class StatsOutput(Protocol):
    """Something that shows or stores statistics while a loader runs."""

    def begin(self, plan: EpochPlan) -> None:
        """Start an epoch, or the rest of one. The previous one has ended."""

    def update(self) -> None:
        """Report that the loop has received a batch."""

    def end(self) -> None:
        """Report that the epoch has ended or was left."""


class ProgressLine:
    """A line on stderr with the position in the epoch, images per second, and what the loop waits for; on rank 0 only.

    Args:
        reader: The statistics.
    """

    def __init__(self, reader: StatsReader) -> None:
        self._reader = reader
        self._bar: Any = None
        self._shown_at = 0.0

    def begin(self, plan: EpochPlan) -> None:
        """Show the line."""
        if plan.world.rank:
            return
        self._reader.read()
        self._bar = tqdm(total=len(plan), desc=f"epoch {plan.cursor.epoch}", unit=" batches", file=sys.stderr)
        self._shown_at = time.monotonic()

    def update(self) -> None:
        """Count a batch."""
        if self._bar is None:
            return
        if time.monotonic() - self._shown_at >= _PROGRESS_SECONDS:
            self._show_figures()
        self._bar.update()

    def end(self) -> None:
        """Leave the line as it is, with the figures of the epoch."""
        if self._bar is not None:
            self._bar.set_postfix_str(_summary(self._reader.read().epoch))
            self._bar.close()
            self._bar = None

    def _show_figures(self) -> None:
        self._bar.set_postfix_str(_summary(self._reader.read().since_last_call), refresh=False)
        self._shown_at = time.monotonic()


def _summary(stats: PeriodStats) -> str:
    text = f"{stats.images_per_second:,.0f} images/s, waits {100 * stats.wait_share:.0f} %"
    return text if stats.main_cause == STEP else f"{text} ({stats.main_cause.replace('_', '-')})"


class StatsFile:
    """JSON lines in a file: one line per epoch, and one for each period of some seconds.

    Args:
        path: The file; lines are appended.
        seconds: Time between two lines.
        reader: The statistics.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path, seconds: float, reader: StatsReader) -> None:
        self._path: Path | None = path
        self._seconds = seconds
        self._reader = reader
        self._rank = 0
        self._written_at = 0.0
        with path.open("a"):  # reports now that it cannot be written
            pass

    def begin(self, plan: EpochPlan) -> None:
        """Start to count the seconds."""
        self._reader.read()
        self._rank, self._written_at = plan.world.rank, time.monotonic()

    def update(self) -> None:
        """Write a line if it is time for one."""
        if time.monotonic() - self._written_at >= self._seconds:
            self._write("period", self._reader.read().since_last_call)

    def end(self) -> None:
        """Write the line of the epoch."""
        self._write("epoch", self._reader.read().epoch)

    def _write(self, kind: str, stats: PeriodStats) -> None:
        self._written_at = time.monotonic()
        if self._path is None:
            return
        line = {"time": time.time(), "rank": self._rank, "kind": kind, **stats.to_dict()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:  # not a reason to end the training
            _log.warning("%s: no more statistics are written: %s", self._path, error)
            self._path = None
