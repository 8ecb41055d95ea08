"""Commands for the runs that `wds-tools serve` has stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from wds_tools.cli.common import LOCAL_PATH, as_json_option, example
from wds_tools.cli.serve import check_installed

if TYPE_CHECKING:
    from wds_tools.service.history import PastRun, RunHistory

_folder = click.option(
    "--cache-dir",
    type=LOCAL_PATH,
    metavar="FOLDER",
    help="Cache folder of the service. Default: WDS_TOOLS_CACHE_DIR, or wds_tools in the cache folder of the user.",
)
_run = click.argument("run", metavar="RUN")


@click.group(epilog=example("wds-tools runs list"))
def runs() -> None:
    """Show the runs that `wds-tools serve` has stored.

    The service stores the reports of loaders (`make_loader(report_to=...)`) in the file
    runs.sqlite3 of its cache folder: a point for every 10 seconds, for 90 days.
    """


@runs.command("list", epilog=example("wds-tools runs list"))
@_folder
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Number of runs.")
@as_json_option
def list_(cache_dir: Path | None, last: int, as_json: bool) -> None:
    """List the runs, the last seen first: id, time of the last report, status, epoch, step, name and dataset."""
    from dataclasses import asdict

    from wds_tools.wording import counted

    history = _history(cache_dir)
    reported = history.runs(limit=last)
    if as_json:
        click.echo(json.dumps({"file": str(history.path), "runs": [asdict(run) for run in reported]}, indent=2))
        return
    for run in reported:
        step = f"epoch {run.epoch}, step {run.step:,}"
        click.echo(f"{run.id[:8]}  {_day(run.seen)}  {run.status:<8}  {step:<24}  {run.name}  {run.dataset}")
    total = history.count()
    shown = f"{counted(total, 'run')}, {len(reported)} shown" if total > len(reported) else counted(total, "run")
    click.echo(f"{history.path}: {shown}")


@runs.command(epilog=example("wds-tools runs show 3fa1b2c4"))
@_run
@_folder
def show(run: str, cache_dir: Path | None) -> None:
    """Show a run: its speed, what it waited for in each epoch, and its events.

    RUN is the id of a run or the beginning of it, or the name of a run: the last one with this name.
    """
    from itertools import groupby

    from wds_tools.service.history import POINT_SECONDS, mean_of
    from wds_tools.stages import CAUSES, cause_name

    history = _history(cache_dir)
    reported = _find(history, run)
    points = history.points(reported)
    click.echo(f"run      {reported.name} ({reported.id[:8]}), {reported.status}")
    click.echo(f"dataset  {reported.dataset}")
    click.echo(f"ranks    {reported.world_size}, the first on {reported.host}")
    click.echo(f"time     {_day(reported.began)} to {_day(reported.seen)}")
    click.echo(f"step     {reported.step:,} of {reported.steps:,} in epoch {reported.epoch}")
    click.echo(f"errors   {reported.errors:,} unreadable samples replaced in this epoch")
    for epoch, group in groupby(points, key=lambda point: point.epoch):
        speed, wait, waits = mean_of(list(group))
        cause = max(CAUSES, key=lambda name: waits.get(name, 0.0))
        why = f" ({cause_name(cause)})" if waits.get(cause) else ""
        click.echo(f"epoch {epoch}: {speed:,.0f} images/s, waited {100 * wait:.0f} % of the time{why}")
    seen = {point.epoch for point in points}
    if missing := [epoch for epoch in range(min(seen, default=0), reported.epoch + 1) if epoch not in seen]:
        named = f"epoch {missing[0]}" if len(missing) == 1 else f"{len(missing)} epochs from {missing[0]} on"
        click.echo(f"{named}: too short for the points, which are kept every {POINT_SECONDS} s")
    for event in history.events(reported):
        click.echo(f"{_day(event.time)}  {event.name} at epoch {event.epoch}, step {event.step:,}")


@runs.command(epilog=example("wds-tools runs export 3fa1b2c4 --out run.csv"))
@_run
@_folder
@click.option(
    "--out",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="File; by default the standard output.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "json"]),
    default="csv",
    show_default=True,
    help="Format of the points.",
)
def export(run: str, cache_dir: Path | None, out: TextIO, kind: str) -> None:
    """Write all points of a run as CSV, or with its events as JSON.

    RUN is the id of a run or the beginning of it, or the name of a run: the last one with this name.
    """
    import csv
    from dataclasses import asdict

    from wds_tools.stages import CAUSES

    history = _history(cache_dir)
    reported = _find(history, run)
    points = history.points(reported)
    if kind == "json":
        events = [asdict(event) for event in history.events(reported)]
        content = {"run": asdict(reported), "points": [point._asdict() for point in points], "events": events}
        out.write(json.dumps(content, indent=2) + "\n")
        return
    plain = ("time", "epoch", "step", "images_per_second", "wait_share", "device_wait", "errors")
    writer = csv.writer(out)
    writer.writerow([*plain, *(f"wait_{cause}" for cause in CAUSES)])
    for point in points:
        row: list[Any] = [getattr(point, name) for name in plain]
        writer.writerow([*row, *(point.waits.get(cause, 0.0) for cause in CAUSES)])


def _history(cache_dir: Path | None) -> RunHistory:
    from wds_tools.options import RemoteOptions

    check_installed()
    from wds_tools.service.history import RunHistory

    return RunHistory(RemoteOptions.of(cache_dir).cache_folder)


def _find(history: RunHistory, name: str) -> PastRun:
    from wds_tools.errors import OptionError

    reported = history.runs()
    exact = [run for run in reported if name in (run.name, run.id)]
    beginning = [run for run in reported if run.id.startswith(name)]
    if exact or len(beginning) == 1:
        return (exact or beginning)[0]
    problem = f"{len(beginning)} ids begin with {name}" if beginning else f"no run has the name or id {name}"
    raise OptionError(f"{problem}: `wds-tools runs list` shows the runs of {history.path}")


def _day(seconds: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
