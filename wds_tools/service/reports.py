"""Reports of loaders and packers: checked, kept for some minutes, and summed up by run.

A report is hostile input. It is reduced to known keys with values of known types and ranges; everything else is
refused. The number of reports that are kept is bounded. With several processes, they are files in a common folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from wds_tools.reporting import EVENTS, MAX_ADVICE, MAX_EVENTS, MAX_TEXT, REPORT_SECONDS
from wds_tools.service.access import Grant
from wds_tools.stages import CAUSES, STEP, cause_name

FORMAT = 1
KINDS = ("loader", "pack")
STOPPED_SECONDS = 10.0
"""A run without a report for this long has stopped."""

MAX_REPORTS = 1024
_FORGET_SECONDS = 600.0
_MAX_NUMBER = 1e15
_READ_SECONDS = REPORT_SECONDS / 4  # for which the files of other processes are remembered


class InvalidReportError(ValueError):
    """A report does not have the schema. The message has none of its values."""


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of one process.

    Attributes:
        owner: Id of the token that it was sent with; "" without tokens.
        address: IP address that it was sent from.
        received: Time in seconds since 1970.
        values: The checked values.
    """

    owner: str
    address: str
    received: float
    values: dict[str, Any]

    @property
    def key(self) -> str:
        """Identifies the process among all."""
        return self._hash("kind", "run", "host", "loader", "rank", "dataset")

    @property
    def run_id(self) -> str:
        """Identifies the run of a loader among all."""
        return self._hash("run", "loader", "dataset")

    def _hash(self, *names: str) -> str:
        parts = [self.owner, *(str(self.values[name]) for name in names)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def is_outdated(self, now: float) -> bool:
        """Return whether it is not shown any more."""
        return now - self.received > _FORGET_SECONDS

    def status(self, now: float) -> str:
        """Return ``running``, ``finished`` or ``stopped``."""
        if self.values["ended"]:
            return "finished"
        return "stopped" if now - self.received > STOPPED_SECONDS else "running"


def check_report(body: bytes) -> dict[str, Any]:
    """Return the values of a report.

    Raises:
        InvalidReportError: It does not have the schema.
    """
    try:
        raw = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidReportError("the body is not JSON") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("kind") not in KINDS:
        raise InvalidReportError(
            f'the report has no "format": {FORMAT}, or its "kind" is not one of {", ".join(KINDS)}'
        )
    values: dict[str, Any] = {name: _text(raw, name) for name in ("kind", "run", "host", "dataset")}
    values["ended"] = raw.get("ended", False) is True
    values["images_per_second"] = _number(raw, "images_per_second")
    if values["kind"] == "pack":
        values |= {name: _integer(raw, name) for name in ("done", "total")}
        values["work"] = _text({"work": "packing", **raw}, "work")  # older packers lack it
        left = raw.get("seconds_left")
        values["seconds_left"] = None if left is None else _number(raw, "seconds_left")
        return {**values, "loader": 0, "rank": 0, "world_size": 1}
    values |= {name: _integer(raw, name) for name in ("loader", "rank", "world_size", "epoch", "step", "steps")}
    values |= {"workers": _integer(raw, "workers"), "idle_seconds": _number(raw, "idle_seconds")}
    if not values["rank"] < values["world_size"] <= 1_000_000:
        raise InvalidReportError('"rank" is not below "world_size", or there are more than 1,000,000')
    values["wait_share"] = min(1.0, _number(raw, "wait_share"))
    waits = raw.get("waits")
    if not isinstance(waits, dict) or not set(waits) <= set(CAUSES):
        raise InvalidReportError(f'"waits" is not an object with some of {", ".join(CAUSES)}')
    values["waits"] = {cause: min(1.0, _number(waits, cause)) if cause in waits else 0.0 for cause in CAUSES}
    if raw.get("main_cause") not in (*CAUSES, STEP):
        raise InvalidReportError(f'"main_cause" is not one of {", ".join((*CAUSES, STEP))}')
    values["main_cause"] = raw["main_cause"]
    values["advice"] = _text(raw, "advice", most=MAX_ADVICE, least=0)
    raw = {"remedy": "", "errors": 0, "device_wait": 0.0, "events": [], **raw}  # older loaders lack these
    values["remedy"] = _text(raw, "remedy", most=MAX_ADVICE, least=0)
    values |= {"errors": _integer(raw, "errors"), "device_wait": min(1.0, _number(raw, "device_wait"))}
    values["events"] = _events(raw["events"])
    return values


class ReportTable:
    """The last report of each process. If there are too many, whoever has most of them loses the oldest.

    Args:
        folder: Where the processes of the service exchange them; None: there is only one process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._reports: dict[str, Report] = {}
        self._read_at = 0.0
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, owner: str, address: str, values: dict[str, Any]) -> None:
        """Keep a report, and forget the one before it."""
        report = Report(owner, address, time.time(), values)
        self._refresh()
        if report.key not in self._reports and len(self._reports) >= MAX_REPORTS:
            self._remove_oldest()
        self._reports[report.key] = report
        if self._folder is not None:
            self._write(report)

    def reports(self) -> list[Report]:
        """Return all reports that are not too old."""
        self._refresh()
        now = time.time()
        for key in [key for key, report in self._reports.items() if report.is_outdated(now)]:
            self._remove(key)
        return list(self._reports.values())

    def visible(self, grant: Grant) -> list[Report]:
        """Return the reports that a request may see: with a token for some datasets, the reports of this token."""
        return [report for report in self.reports() if grant.allows_all or report.owner == grant.owner]

    def _remove_oldest(self) -> None:
        """Forget the oldest report of the token that has most of them, from its address that has most of these."""
        group = list(self._reports.values())
        for name in ("owner", "address"):
            ((most, _),) = Counter(getattr(report, name) for report in group).most_common(1)
            group = [report for report in group if getattr(report, name) == most]
        self._remove(min(group, key=lambda report: report.received).key)

    def _remove(self, key: str) -> None:
        self._reports.pop(key, None)
        if self._folder is not None:
            (self._folder / key).unlink(missing_ok=True)

    def _write(self, report: Report) -> None:
        assert self._folder is not None
        partial = self._folder / f".{report.key}-{os.getpid()}"
        with suppress(OSError):  # then only this process has it
            partial.write_text(json.dumps(astuple(report)))
            partial.rename(self._folder / report.key)

    def _refresh(self) -> None:
        """Read the reports that other processes have received."""
        if self._folder is None or time.monotonic() < self._read_at + _READ_SECONDS:
            return
        self._read_at = time.monotonic()
        reports = {}
        for path in self._folder.glob("[0-9a-f]*"):
            with suppress(OSError, ValueError):
                reports[path.name] = Report(*json.loads(path.read_text()))
        self._reports = reports


def run_groups(reports: Iterable[Report]) -> dict[str, list[Report]]:
    """Return the reports of the ranks of each run of a loader, by the id of the run."""
    groups: dict[str, list[Report]] = {}
    for report in reports:
        if report.values["kind"] == "loader":
            groups.setdefault(report.run_id, []).append(report)
    return groups


def runs_of(reports: Iterable[Report], *, now: float | None = None) -> list[dict[str, Any]]:
    """Sum up reports by run: running ones first, then those that wait for the largest share of their time.

    Returns:
        Plain values for JSON. ``ranks`` has the processes of a run, the slowest first; ``pack`` the packer that it has
        started (``pack_to=``), or None.
    """
    now = time.time() if now is None else now
    reports = list(reports)
    packs = _packs(reports, now)
    runs = [
        {**summary(group, now), "pack": next(iter(packs.get(_pack_key(group[0]), [])), None)}
        for group in run_groups(reports).values()
    ]
    return sorted(runs, key=lambda run: (_STATUSES.index(run["status"]), -run["wait_share"], run["dataset"]))


def packs_of(reports: Iterable[Report], *, now: float | None = None) -> list[dict[str, Any]]:
    """Return the packers that belong to no run of loaders, running ones first."""
    now = time.time() if now is None else now
    reports = list(reports)
    trained = {_pack_key(report) for report in reports if report.values["kind"] == "loader"}
    packs = [pack for key, group in _packs(reports, now).items() if key not in trained for pack in group]
    return sorted(packs, key=lambda pack: (_STATUSES.index(pack["status"]), pack["dataset"]))


def _pack_key(report: Report) -> tuple[str, str, str]:
    """Return what a loader and the packer that it has started have in common."""
    return report.owner, report.values["run"], report.values["dataset"]


def _packs(reports: Iterable[Report], now: float) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Return the packers, running ones first."""
    packs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in reports:
        if r.values["kind"] != "pack":
            continue
        pack = {
            **{name: r.values[name] for name in _PACK_VALUES},
            "seconds_left": r.values["seconds_left"],
            "status": r.status(now),
            "age_seconds": round(now - r.received, 1),
        }
        packs.setdefault(_pack_key(r), []).append(pack)
    for group in packs.values():
        group.sort(key=lambda pack: _STATUSES.index(pack["status"]))
    return packs


_STATUSES = ("running", "stopped", "finished")
_PACK_VALUES = ("run", "host", "dataset", "work", "done", "total", "images_per_second")
_RANK_VALUES = (
    *("rank", "host", "images_per_second", "wait_share", "waits", "main_cause"),
    *("advice", "remedy", "workers", "epoch", "step", "steps", "idle_seconds"),
)


def summary(group: list[Report], now: float) -> dict[str, Any]:
    """Return a run as plain values, from the reports of its ranks."""
    ranks = [
        {
            **{name: report.values[name] for name in _RANK_VALUES},
            "status": report.status(now),
            "age_seconds": round(now - report.received, 1),
        }
        for report in group
    ]
    ranks.sort(key=lambda rank: (-rank["wait_share"], rank["rank"]))
    statuses = {rank["status"] for rank in ranks}
    alive = [rank for rank in ranks if rank["status"] == "running"]
    worst = (alive or ranks)[0]
    values = group[0].values
    return {
        "id": group[0].run_id,
        **{name: values[name] for name in ("run", "dataset", "world_size")},
        "status": next(status for status in _STATUSES if status in statuses),
        "images_per_second": sum(rank["images_per_second"] for rank in alive or ranks),
        **{name: worst[name] for name in ("wait_share", "main_cause", "advice", "remedy", "epoch", "step", "steps")},
        "ranks": ranks,
    }


def verdict(runs: list[dict[str, Any]]) -> str:
    """Return one sentence: how many runs there are, and which ones wait, and for what.

    >>> verdict([])
    'No training reports to this server.'
    """
    running = [run for run in runs if run["status"] == "running"]
    stopped = sum(run["status"] == "stopped" for run in runs)
    ending = f"; {stopped} stopped without finishing" if stopped else ""
    if not running:
        return f"No training runs{ending}." if runs else "No training reports to this server."
    fed = [run for run in running if run["main_cause"] == STEP]
    count = f"{len(running)} run{'s' if len(running) > 1 else ''}: "
    if len(fed) == len(running):
        return f"{count}{'all fed' if len(running) > 1 else 'fed, the loader is fast enough'}{ending}."
    waiting = [run for run in running if run["main_cause"] != STEP]
    worst = waiting[0]
    remedy = worst["remedy"]
    sentence = f"{worst['dataset']} waits {100 * worst['wait_share']:.0f} %: {cause_name(worst['main_cause'])}"
    more = f"; {len(waiting) - 1} more wait{'s' if len(waiting) == 2 else ''}" if len(waiting) > 1 else ""
    start = f"{len(fed)} fed, " if fed else ""
    return f"{count}{start}{sentence}{f'; {remedy}' if remedy else ''}{more}{ending}."


def _text(raw: dict[str, Any], name: str, *, most: int = MAX_TEXT, least: int = 1) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        raise InvalidReportError(f'"{name}" is not a printable text of {least} to {most} characters')
    return value


def _number(raw: dict[str, Any], name: str) -> float:
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_NUMBER:
        raise InvalidReportError(f'"{name}" is not a number from 0 to {_MAX_NUMBER:.0e}')
    return float(value) if math.isfinite(value) else 0.0


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise InvalidReportError(f'"{name}" is not a whole number from 0 to {_MAX_NUMBER:.0e}')
    return value


def _events(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > MAX_EVENTS or not all(isinstance(event, dict) for event in value):
        raise InvalidReportError(f'"events" is not a list of at most {MAX_EVENTS} objects')
    if any(event.get("name") not in EVENTS for event in value):
        raise InvalidReportError(f'the "name" of an event is not one of {", ".join(EVENTS)}')
    return [
        {
            "name": event["name"],
            "time": _number(event, "time"),
            **{name: _integer(event, name) for name in ("epoch", "step")},
        }
        for event in value
    ]


def _refuse(_constant: str) -> float:
    raise ValueError
