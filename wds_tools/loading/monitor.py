"""`Monitor`: what is measured of a loader while it runs, and where it is shown.

It is shown in a progress line, as JSON lines in a file, and by reports to a server. `Ceiling` measures the training
step alone.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from tqdm import tqdm

from wds_tools.format.recorded_source import are_crop_ready
from wds_tools.loading.pipeline.autoscale import Autoscaler, cores_per_rank
from wds_tools.loading.pipeline.diagnosis import Diagnosis, Setting, diagnose, has_large_images
from wds_tools.loading.pipeline.statistics import LoaderStats, Meter, PeriodStats, StatsReader
from wds_tools.loading.request import OpenedDataset
from wds_tools.loading.samples.bad_samples import ErrorLog
from wds_tools.loading.samples.recipe import Recipe
from wds_tools.order.planner import EpochPlan
from wds_tools.reporting import MAX_ADVICE, MAX_EVENTS, Reporter, dataset_label, identity, label
from wds_tools.stages import DEVICE, STEP, cause_name

_PROGRESS_SECONDS = 0.5  # between two updates of the figures in the progress line
_log = logging.getLogger("wds_tools")


class Monitor:
    """The statistics of a loader, and all that shows or stores them.

    Args:
        autoscaler: Has the current number of workers.
        device: Device of the batches.
        errors: The samples that were replaced.
        progress: Show a progress line.
        report_to: Origin of a server that gets reports; None sends none.

    Attributes:
        meter: Measures the loader and the loop that uses it.
    """

    def __init__(
        self,
        opened: OpenedDataset,
        autoscaler: Autoscaler,
        device: torch.device,
        *,
        errors: ErrorLog,
        progress: bool,
        report_to: str | None,
        is_elsewhere: bool = False,
    ) -> None:
        self.meter = Meter(autoscaler, opened.shards)
        self._reader = self.meter.reader()
        self._outputs: list[StatsOutput] = [ProgressLine(self.meter.reader())] if progress else []
        self._live: LiveReports | None = None
        manifest = opened.shards.manifest
        setting = Setting(
            cores=cores_per_rank(),
            is_remote=opened.shards.is_remote,
            read_ahead_bytes=opened.read_ahead_bytes,
            has_large_images=has_large_images(manifest, opened.recipe.view),
            has_one_size=opened.recipe.has_slots,
            is_crop_ready=are_crop_ready(manifest.source),
            device=str(device),
            sample_bytes=_sample_bytes(opened.recipe),
            is_elsewhere=is_elsewhere,
        )
        self._diagnose = partial(diagnose, setting=setting)
        if report_to:
            self._live = LiveReports(report_to, self.meter.reader(), opened.shards.name, self._diagnose, errors)
            self._outputs.append(self._live)
        self._live_pid = -1  # process that reports
        self._shown: EpochPlan | None = None  # the plan that the outputs show
        self._shown_pid = -1  # process that shows it; a fork of it must not end the outputs

    def begin(self, plan: EpochPlan) -> Callable[[], object]:
        """Show an epoch, or the rest of one, from now on.

        Returns:
            A function that ends the epoch of the outputs, unless they show another one already.
        """
        self._end(self._shown)
        if self._live and self._live_pid != os.getpid():
            self._live_pid = os.getpid()
            weakref.finalize(self, self._live.stop)
        self._shown, self._shown_pid = plan, os.getpid()
        for output in self._outputs:
            output.begin(plan)
        return partial(self._end, plan)

    def change(self) -> None:
        """Report that other weights hold from the next step on."""
        if self._live:
            self._live.add_event("reweight")

    def received(self, samples: int) -> None:
        """Count a batch, which the loop gets now."""
        for output in self._outputs:
            output.update()
        self.meter.received(samples)

    def close(self) -> None:
        """Send the last report to the server. The next epoch starts the reports again."""
        if self._live:
            self._live.stop()

    def stats(self) -> LoaderStats:
        """Return the figures of the epoch, and those since the last call."""
        return self._reader.read()

    def report(self) -> str:
        """Return the sentence of `Loader.report`."""
        return str(self._diagnose(self.meter.current_epoch()))

    def add_file(self, path: Path, seconds: float) -> None:
        """Append JSON lines to a file from now on; raises as `StatsFile` does."""
        output = StatsFile(path, seconds, self.meter.reader())
        if self._shown:
            output.begin(self._shown)
        self._outputs.append(output)

    def _end(self, plan: EpochPlan | None) -> None:
        if plan is None or plan is not self._shown or os.getpid() != self._shown_pid:
            return
        self._shown = None
        for output in self._outputs:
            output.end()


def _sample_bytes(recipe: Recipe) -> int:
    """Return the bytes of the tensors of a sample, 0 if they are not known."""
    if (layouts := recipe.layouts) is not None:
        return max(sum(spec.bytes for spec in layout.specs) for layout in layouts)
    shape = recipe.view and recipe.view.shape
    return 3 * shape[0] * shape[1] if shape else 0


class StatsOutput(Protocol):
    """Something that shows or stores statistics while a loader runs."""

    def begin(self, plan: EpochPlan) -> None:
        """Start an epoch, or the rest of one. The previous one has ended."""

    def update(self) -> None:
        """Report that the loop has received a batch."""

    def end(self) -> None:
        """Report that the epoch has ended or was left."""


class ProgressLine:
    """A line on stderr with the position in the epoch, images/s, and what the loop waits for; on rank 0 only."""

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
        """Start counting the seconds."""
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
        dataset: The dataset as it was opened.
        diagnose: Returns what the loop waits for, and what would help.
        errors: The samples that were replaced.

    Raises:
        OptionError: The URL is not the origin of a server.
    """

    def __init__(
        self,
        url: str,
        reader: StatsReader,
        dataset: str,
        diagnose: Callable[[PeriodStats], Diagnosis],
        errors: ErrorLog,
    ) -> None:
        self._reader = reader
        self._diagnose = diagnose
        self._errors = errors
        self._events: list[dict[str, Any]] = []
        self._number = next(_loader_numbers)  # the same on all ranks, which create the same loaders
        self._dataset = dataset_label(dataset)
        self._plan: EpochPlan | None = None
        self._first_step = self._step = 0
        self._last: PeriodStats | None = None
        self._batch_at = time.monotonic()
        self._reporter = Reporter(url, self._report)

    def begin(self, plan: EpochPlan) -> None:
        """Start reporting. The workers have been started, so a fork does not copy the thread."""
        self._plan, self._first_step = plan, plan.cursor.position // plan.global_batch
        self._step, self._batch_at = self._first_step, time.monotonic()
        if not self._events:
            self.add_event("resume" if self._first_step or plan.cursor.epoch else "start")
        self._reporter.start()

    def add_event(self, name: str) -> None:
        """Report an event at the current step; the server keeps it."""
        assert self._plan is not None
        event = {"name": name, "time": time.time(), "epoch": self._plan.cursor.epoch, "step": self._step}
        self._events = [*self._events, event][-MAX_EVENTS:]

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
            "device_wait": stats.share(stats.stage_seconds[DEVICE.name]),
            "errors": len(self._errors.samples),
            "events": self._events,
        }


WARMUP_STEPS = 3
"""Steps before the measurement begins, in which memory is allocated and kernels are compiled."""


class Ceiling:
    """Return value of `Loader.ceiling`: an iterable over one repeated batch, which measures the loop around it.

    Args:
        steps: Number of steps to measure.
        batch_size: Samples per batch.
        device: Device of the batch.

    Attributes:
        images_per_second: Samples per second of the measured steps; None until the loop has ended.
    """

    def __init__(self, load: Callable[[], Any], steps: int, *, batch_size: int, device: torch.device) -> None:
        self.images_per_second: float | None = None
        self._load = load
        self._steps = steps
        self._batch_size = batch_size
        self._device = device

    def __len__(self) -> int:
        """Return the number of steps, with those before the measurement."""
        return WARMUP_STEPS + self._steps

    def __iter__(self) -> Iterator[Any]:
        batch = self._load()
        for _ in range(WARMUP_STEPS):
            yield batch
        begun = self._time()
        for _ in range(self._steps):
            yield batch
        self.images_per_second = self._steps * self._batch_size / (self._time() - begun)

    def __str__(self) -> str:
        if self.images_per_second is None:
            return "the training step alone: not measured yet, iterate until the end"
        return f"the training step alone: {self.images_per_second:,.0f} images/s"

    def _time(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
