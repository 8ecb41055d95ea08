"""Statistics of a loader while it runs: a progress line, JSON lines in a file, and reports to a server."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from wds_tools.loading.pipeline.diagnosis import Diagnosis
from wds_tools.loading.pipeline.statistics import PeriodStats, StatsReader
from wds_tools.order.planner import EpochPlan
from wds_tools.reporting import MAX_ADVICE, Reporter, dataset_label, identity, label
from wds_tools.stages import STEP, cause_name

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
    return text if stats.main_cause == STEP else f"{text} ({cause_name(stats.main_cause)})"


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
        with path.open("a"):  # raises the OSError now, not in the training
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


_LONG_WAIT_SECONDS = 2.0  # after which a wait in progress is reported
_loader_numbers = itertools.count()


class LiveReports:
    """Reports to ``wds-tools serve`` while a loader runs. `stop` ends them.

    Args:
        url: Origin of the server.
        reader: The statistics.
        dataset: The dataset as it was opened.
        diagnose: Returns what the loop waits for, and what would help.

    Raises:
        OptionError: The URL is not the origin of a server.
    """

    def __init__(
        self, url: str, reader: StatsReader, dataset: str, diagnose: Callable[[PeriodStats], Diagnosis]
    ) -> None:
        self._reader = reader
        self._diagnose = diagnose
        self._number = next(_loader_numbers)  # the same on all ranks, which create the same loaders
        self._dataset = dataset_label(dataset)
        self._plan: EpochPlan | None = None
        self._first_step = self._step = 0
        self._last: PeriodStats | None = None
        self._batch_at = time.monotonic()
        self._reporter = Reporter(url, self._report)

    def begin(self, plan: EpochPlan) -> None:
        """Start to report. The workers have been started, so a fork does not copy the thread."""
        self._plan, self._first_step = plan, plan.cursor.position // plan.global_batch
        self._step, self._batch_at = self._first_step, time.monotonic()
        self._reporter.start()

    def update(self) -> None:
        """Count a batch."""
        self._step += 1
        self._batch_at = time.monotonic()

    def end(self) -> None:
        """Do nothing: the next epoch may follow at once."""

    def stop(self) -> None:
        """Send the last report. The next epoch starts the reports again."""
        self._reporter.stop()

    def _report(self) -> dict[str, Any]:
        """Return the next report; called by the thread of the reporter."""
        stats = self._reader.read().since_last_call
        if not stats.batches:  # what the loop waits for is not known from results yet
            wait = self._reader.current_wait()
            stats = wait if wait and wait.seconds > _LONG_WAIT_SECONDS else self._last or stats
        self._last = stats
        diagnosis = self._diagnose(stats)
        plan = self._plan
        assert plan is not None
        return {
            "kind": "loader",
            **identity(),
            "loader": self._number,
            "rank": plan.world.rank,
            "world_size": plan.world.world_size,
            "dataset": self._dataset,
            "epoch": stats.epoch,
            "step": self._step,
            "steps": self._first_step + len(plan),
            "images_per_second": stats.images_per_second,
            "wait_share": stats.wait_share,
            "waits": {cause: stats.share(seconds) for cause, seconds in stats.waits.items()},
            "main_cause": stats.main_cause,
            "advice": label(str(diagnosis), MAX_ADVICE) if stats.batches else "",
            "remedy": label(diagnosis.remedy, MAX_ADVICE) if stats.batches and diagnosis.remedy else "",
            "workers": stats.workers,
            "idle_seconds": time.monotonic() - self._batch_at,
        }
