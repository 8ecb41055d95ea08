"""Runs of the past, in an SQLite file: their speed and waits, a point for every ten seconds, and what happened to them.

What is written comes from `ReportTable`, whose reports are checked and bounded. Several processes of the service, and
`wds-tools runs`, use the file at the same time: each operation opens it. A damaged file is moved aside.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wds_tools.errors import OptionError, StoreError
from wds_tools.service.reports import STOPPED_SECONDS, Report, ReportTable, run_groups, summary
from wds_tools.stages import CAUSES

FILE_NAME = "runs.sqlite3"
POINT_SECONDS = 10
_VERSION = 1
_MAX_BYTES = 256 << 20
_MAX_DAYS = 90
_MAX_RUNS = 10_000
_MAX_EVENTS = 1000  # of a run
_PRUNE_SECONDS = 600.0
_BUSY_SECONDS = 5.0
_DAY = 86400.0
_log = logging.getLogger("wds_tools")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, name TEXT NOT NULL, dataset TEXT NOT NULL,
    loader INTEGER NOT NULL, host TEXT NOT NULL, world_size INTEGER NOT NULL, began REAL NOT NULL, seen REAL NOT NULL,
    status TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL, steps INTEGER NOT NULL,
    errors INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS points (
    run INTEGER NOT NULL, time INTEGER NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL,
    images_per_second REAL NOT NULL, wait_share REAL NOT NULL, waits TEXT NOT NULL, device_wait REAL NOT NULL,
    errors INTEGER NOT NULL, PRIMARY KEY (run, time)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    run INTEGER NOT NULL, time REAL NOT NULL, name TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL,
    PRIMARY KEY (run, time, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (seen);
"""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run of a loader, of now or of the past.

    Attributes:
        id: Identifies it among all.
        name: Its own name: ``WDS_TOOLS_RUN``, the id of the job, or host and process.
        dataset: The dataset that it reads.
        loader: Number of the loader in its process.
        host: Host of the first rank.
        world_size: Number of ranks.
        began: Time of the first report in seconds since 1970.
        seen: Time of the last report.
        status: ``running``, ``finished`` or ``stopped``.
        epoch: Last epoch, from 0.
        step: Last step of this epoch, from 0.
        steps: Number of steps of this epoch.
        errors: Unreadable samples of the epoch that were replaced, summed over the ranks.
    """

    id: str
    name: str
    dataset: str
    loader: int
    host: str
    world_size: int
    began: float
    seen: float
    status: str
    epoch: int
    step: int
    steps: int
    errors: int


class Point(NamedTuple):
    """What a run did in `POINT_SECONDS`.

    Attributes:
        time: Start in seconds since 1970.
        epoch: The epoch, from 0.
        step: The step, from 0.
        images_per_second: Samples per second, summed over the ranks.
        wait_share: Share of the time in which the loop waited, 0 to 1; the mean over the ranks, like the next two.
        waits: The parts of ``wait_share`` by cause.
        device_wait: Share of the time in which the loader waited until the device had finished earlier steps, 0 to 1.
        errors: Unreadable samples of the epoch that were replaced so far, summed over the ranks.
    """

    time: int
    epoch: int
    step: int
    images_per_second: float
    wait_share: float
    waits: dict[str, float]
    device_wait: float
    errors: int


def mean_of(points: Sequence[Point]) -> tuple[float, float, dict[str, float]]:
    """Return images/s, the share of waiting and its parts over some points of an epoch.

    Each counts as long as its steps took, and one without a step as long as the longest other one.
    """
    later = [max(0, after.step - before.step) for before, after in pairwise(points)]
    steps = [min([points[0].step, *later[:1]]), *later]
    seconds = [
        count / point.images_per_second if point.images_per_second else 0.0
        for count, point in zip(steps, points, strict=True)
    ]
    longest = max(seconds) or 1.0
    seconds = [part or longest for part in seconds]
    total = sum(seconds)

    def mean(values: Iterable[float]) -> float:
        return sum(part * value for part, value in zip(seconds, values, strict=True)) / total

    causes = {cause for point in points for cause in point.waits}
    waits = {cause: mean(point.waits.get(cause, 0.0) for point in points) for cause in causes}
    return mean(point.images_per_second for point in points), mean(point.wait_share for point in points), waits


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run: ``start``, ``resume``, ``reweight``, ``finished`` or ``stopped``."""

    time: float
    name: str
    epoch: int
    step: int


class RunHistory:
    """The file of runs.

    Args:
        folder: Folder of the file, such as the cache folder. It is created when the first run is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._has_warned = False
        self._pruned_at = -_PRUNE_SECONDS

    async def record(self, table: ReportTable) -> None:
        """Store the runs of a table of reports every `POINT_SECONDS`, until it is cancelled."""
        while True:
            await asyncio.sleep(POINT_SECONDS)
            reports = table.reports()
            await asyncio.get_running_loop().run_in_executor(None, self.add, reports)

    async def recording(self, table: ReportTable) -> AsyncIterator[None]:
        """Record while an application runs, and once more at its end."""
        task = asyncio.ensure_future(self.record(table))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.add(table.reports())

    def add(self, reports: Iterable[Report], *, now: float | None = None) -> None:
        """Store a point of each run that has reported since its last point. An error is logged once, not raised."""
        now = time.time() if now is None else now
        groups = run_groups(reports)
        if not groups:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as database:
                for run_id, group in groups.items():
                    _store(database, run_id, group, now)
            if time.monotonic() >= self._pruned_at + _PRUNE_SECONDS:
                self._pruned_at = time.monotonic()
                self.prune(now=now)
        except (OSError, sqlite3.Error) as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("%s: runs are not kept (%s); the page still shows the current ones", self.path, error)

    def runs(self, owner: str | None = None, *, limit: int = _MAX_RUNS, skip: int = 0) -> list[PastRun]:
        """Return the runs, the last seen first.

        Args:
            owner: Id of the token that they reported with; None for all.
            limit: Maximum number of runs.
            skip: Number of runs to leave out.

        Raises:
            StoreError: The file cannot be read.
        """
        where, values = ("", ()) if owner is None else ("WHERE owner = ?", (owner,))
        query = f"SELECT {_RUN_COLUMNS} FROM runs {where} ORDER BY seen DESC, number DESC LIMIT ? OFFSET ?"  # noqa: S608
        return [_past(row) for row in self._read(query, (*values, limit, skip))]

    def count(self, owner: str | None = None) -> int:
        """Return the number of runs; raises as `runs` does."""
        where, values = ("", ()) if owner is None else ("WHERE owner = ?", (owner,))
        rows = self._read(f"SELECT COUNT(*) FROM runs {where}", values)  # noqa: S608
        return int(rows[0][0]) if rows else 0

    def find(self, run_id: str, owner: str | None = None) -> PastRun | None:
        """Return the run with an id, or None if there is none that ``owner`` may see; raises as `runs` does."""
        rows = self._read(f"SELECT {_RUN_COLUMNS}, owner FROM runs WHERE id = ?", (run_id,))  # noqa: S608
        runs = [_past(row[:-1]) for row in rows if owner is None or row[-1] == owner]
        return runs[0] if runs else None

    def points(self, run: PastRun) -> list[Point]:
        """Return the points of a run in order of time; raises as `runs` does."""
        query = """SELECT time, epoch, step, images_per_second, wait_share, waits, device_wait, errors FROM points
            WHERE run = (SELECT number FROM runs WHERE id = ?) ORDER BY time"""
        rows = map(Point._make, self._read(query, (run.id,)))
        return [point._replace(waits=json.loads(str(point.waits))) for point in rows]

    def events(self, run: PastRun) -> list[Event]:
        """Return the events of a run in order of time; raises as `runs` does."""
        query = """SELECT time, name, epoch, step FROM events
            WHERE run = (SELECT number FROM runs WHERE id = ?) ORDER BY time"""
        return [Event(*row) for row in self._read(query, (run.id,))]

    def prune(self, *, now: float | None = None, max_bytes: int = _MAX_BYTES) -> None:
        """Remove points that are too old, and the runs of the longest ago if the file is too large."""
        now = time.time() if now is None else now
        with self._opened() as database:
            database.execute("DELETE FROM points WHERE time < ?", (now - _MAX_DAYS * _DAY,))
            database.execute("DELETE FROM runs WHERE seen < ?", (now - _MAX_DAYS * _DAY,))
            while _count(database) > _MAX_RUNS:
                _remove_oldest(database, _count(database) - _MAX_RUNS)
            while _used_bytes(database) > max_bytes and _count(database):
                _remove_oldest(database, max(1, _count(database) // 20))
            for name in ("points", "events"):
                database.execute(f"DELETE FROM {name} WHERE run NOT IN (SELECT number FROM runs)")  # noqa: S608
            database.commit()
            database.execute("PRAGMA incremental_vacuum")

    def _read(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        if not self.path.exists():
            return []
        try:
            with self._opened() as database:
                return database.execute(query, values).fetchall()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from error

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one operation, which is committed at its end. A damaged file is moved aside first."""
        try:
            database = self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, not writable, or no space
                raise
            self._move_aside()
            database = self._connect()
        try:
            with database:
                yield database
        except sqlite3.DatabaseError as error:
            if type(error) is sqlite3.DatabaseError:  # damaged; further classes are about the query
                database.close()
                self._move_aside()
            raise
        finally:
            database.close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise OptionError(f"{self.path} was written by a newer version of wds_tools: update wds_tools")
            if version < _VERSION:
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_SCHEMA)
                database.execute(f"PRAGMA user_version = {_VERSION}")
            database.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            database.close()
            raise
        return database

    def _move_aside(self) -> None:
        """Move a damaged file aside, unless another process has done so meanwhile."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_damaged(self.path):
                return
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        _log.warning("%s is damaged: it was moved to %s, and new runs are kept in a new file", self.path, aside)


_FIXED = ("id", "name", "dataset", "loader", "host", "began", "owner")
_CHANGING = ("world_size", "seen", "status", "epoch", "step", "steps", "errors")
_RUN_COLUMNS = ", ".join(column.name for column in fields(PastRun))


def _past(row: tuple[Any, ...]) -> PastRun:
    """Return a run from its row. One that has not been updated has stopped, even if the service did not see that."""
    run = PastRun(*row)
    is_old = time.time() - run.seen > STOPPED_SECONDS + 2 * POINT_SECONDS
    return replace(run, status="stopped") if run.status == "running" and is_old else run


def _store(database: sqlite3.Connection, run_id: str, group: list[Report], now: float) -> None:
    """Store the last reports of the ranks of a run."""
    run, seen = summary(group, now), max(report.received for report in group)
    stored = database.execute("SELECT number, seen, status FROM runs WHERE id = ?", (run_id,)).fetchone()
    if stored and stored[1:] == (seen, run["status"]):
        return
    first = min(group, key=lambda report: report.values["rank"])
    errors = sum(report.values["errors"] for report in group)
    position = (run["epoch"], run["step"])
    changing = (run["world_size"], seen, run["status"], *position, run["steps"], errors)
    if stored:
        row_id = stored[0]
        database.execute(f"UPDATE runs SET {' = ?, '.join(_CHANGING)} = ? WHERE number = ?", (*changing, row_id))  # noqa: S608
    else:
        fixed = (run_id, run["run"], run["dataset"], first.values["loader"], first.values["host"], seen, first.owner)
        columns = (*_FIXED, *_CHANGING)
        query = f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        row_id = database.execute(query, (*fixed, *changing)).lastrowid
    _store_events(database, row_id, first, run["status"], seen, position)
    alive = [report.values for report in group if report.status(now) == "running"]
    if alive:
        waits = {cause: round(_mean(values["waits"][cause] for values in alive), 4) for cause in CAUSES}
        point = (
            *(row_id, int(seen) // POINT_SECONDS * POINT_SECONDS, *position, run["images_per_second"]),
            _mean(values["wait_share"] for values in alive),
            json.dumps({cause: share for cause, share in waits.items() if share}),
            *(_mean(values["device_wait"] for values in alive), errors),
        )
        database.execute("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", point)


def _store_events(
    database: sqlite3.Connection, row_id: int, first: Report, status: str, seen: float, position: tuple[int, int]
) -> None:
    """Store the events that the first rank has reported, and the end of the run."""
    events = [
        (row_id, *(event[name] for name in ("time", "name", "epoch", "step"))) for event in first.values["events"]
    ]
    if status != "running":
        events.append((row_id, seen, status, *position))
    (count,) = database.execute("SELECT COUNT(*) FROM events WHERE run = ?", (row_id,)).fetchone()
    database.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)", events[: max(0, _MAX_EVENTS - count)])


def _remove_oldest(database: sqlite3.Connection, count: int) -> None:
    """Remove the runs that were seen the longest ago, of the token that has most runs."""
    database.execute(
        "DELETE FROM runs WHERE number IN (SELECT number FROM runs WHERE owner = "
        "(SELECT owner FROM runs GROUP BY owner ORDER BY COUNT(*) DESC LIMIT 1) ORDER BY seen LIMIT ?)",
        (count,),
    )
    for name in ("points", "events"):
        database.execute(f"DELETE FROM {name} WHERE run NOT IN (SELECT number FROM runs)")  # noqa: S608


def _count(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT COUNT(*) FROM runs").fetchone()[0])


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _is_damaged(path: Path) -> bool:
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    try:
        return bool(database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok")
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:
        return True
    finally:
        database.close()


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
