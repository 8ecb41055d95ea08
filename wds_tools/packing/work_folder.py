"""A local folder that shards are packed into: its lock, the plan, and a report of each finished shard.

While a pack runs, ``.packing/`` in that folder holds ``lock``, ``plan.json`` (what is being packed) and a report
per finished shard. It is removed once the manifest, the last file of a dataset, is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from wds_tools.errors import DestinationError
from wds_tools.format.index import index_name
from wds_tools.format.manifest import MANIFEST_NAME, ImageStats, ShardEntry
from wds_tools.packing.card import CARD_NAME
from wds_tools.packing.plan import shard_name
from wds_tools.sources.base import Skip
from wds_tools.storage.commit import commit_bytes, final_name
from wds_tools.storage.lock import lock_file

WORK_NAME = ".packing"
PLAN_NAME = "plan.json"
SKIPPED_NAME = "skipped.jsonl"
_SHARD = re.compile(r"shard-\d{6,}\.(tar|parquet)")


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What became of one planned shard.

    Attributes:
        number: Which one.
        entry: What the manifest says of it; None if none of its pictures could be packed, so that there is no file.
        fields: Field name to number of samples that have it.
        images: Range of image sizes.
        skipped: Pictures that could not be packed.
        sixteen_bit: Number of images that have 16 bits a channel.
    """

    number: int
    entry: ShardEntry | None
    fields: dict[str, int]
    images: ImageStats | None
    skipped: tuple[Skip, ...]
    sixteen_bit: int = 0

    def to_json(self) -> str:
        """Write it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShardReport:
        """Read it."""
        raw = json.loads(text)
        return cls(
            raw["number"],
            ShardEntry(**raw["entry"]) if raw["entry"] else None,
            raw["fields"],
            ImageStats(**raw["images"]) if raw["images"] else None,
            tuple(Skip(*pair) for pair in raw["skipped"]),
            raw.get("sixteen_bit", 0),
        )


def report_path(folder: Path, number: int) -> Path:
    """Return where a shard's report is kept until the dataset is complete."""
    return folder / WORK_NAME / f"{shard_name(number).removesuffix('.tar')}.json"


def save_report(folder: Path, report: ShardReport) -> None:
    """Record that a shard is finished; called when it and its index are on disk."""
    commit_bytes(report_path(folder, report.number), report.to_json().encode())


class WorkFolder:
    """A local folder that shards are packed into, and its ``.packing/``; locked for the length of a ``with`` block.

    Args:
        folder: Created if it does not exist.
        name: For messages.
        task: (index, count) of a task of several: they hold the folder together, and each task its own lock alone.
        keep_empty: The folder stays if it is empty at the end and existed before.
    """

    def __init__(
        self, folder: Path, name: str, *, task: tuple[int, int] | None = None, keep_empty: bool = True
    ) -> None:
        self.folder = folder
        self.name = name
        self.task = task
        self.work = folder / WORK_NAME
        self._keep_empty = keep_empty
        self._is_removed = False  # the work area; one that exists now belongs to another packer

    def __enter__(self) -> WorkFolder:
        self._keep_empty = self._keep_empty and self.folder.exists()
        try:
            self._locks = [lock_file(self.work / "lock", shared=self.task is not None)]
            if self.task:
                self._locks.append(lock_file(self.work / f"task-{self.task[0]}-of-{self.task[1]}.lock"))
        except BlockingIOError as error:
            raise DestinationError(
                f"another packer is writing into {self.name}; wait for it to end, or choose another folder"
            ) from error
        except OSError as error:
            raise DestinationError(
                f"cannot write to {self.folder}: {error.strerror}; choose a folder that is writable"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_removed and self.task is None:  # other tasks may be at work
            self.remove_temporary_files()
            if not (self.work / PLAN_NAME).exists():
                self.remove_work()
        if not self._keep_empty:
            with suppress(OSError):  # it holds something
                self.folder.rmdir()
        for lock in self._locks:
            os.close(lock)

    def read_plan(self) -> dict[str, Any] | None:
        """Return what is being packed into the folder; None if nothing is."""
        try:
            return parse_plan((self.work / PLAN_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def write_plan(self, data: bytes) -> None:
        """Record what is being packed."""
        commit_bytes(self.work / PLAN_NAME, data)

    def finished_shards(self) -> dict[int, ShardReport]:
        """Return the reports of shards that are finished and still in the folder."""
        reports = {}
        for path in self.work.glob("shard-*.json"):
            report = ShardReport.from_json(path.read_text())
            if report.entry is None or entry_exists(self.folder, report.entry):
                reports[report.number] = report
        return reports

    def remove_shards(self, reports: Iterable[ShardReport]) -> None:
        """Remove shards, their indexes and reports."""
        for report in reports:
            report_path(self.folder, report.number).unlink(missing_ok=True)
            remove_shard(self.folder, report.number)

    def remove_temporary_files(self) -> None:
        """Remove half-written files of a packer that was killed: only those that would have become ours."""
        for path in (*self.folder.iterdir(), *self.work.iterdir()):
            name = final_name(path.name)
            if name is not None and (path.parent == self.work or name == CARD_NAME or is_pack_file(name)):
                path.unlink(missing_ok=True)

    def remove_work(self) -> None:
        """Remove the work area. The lock goes last; whoever waits for it notices that it is another file by then."""
        self._is_removed = True
        for path in sorted(self.work.iterdir(), key=lambda path: path.name == "lock"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the next packer may have come in already
            self.work.rmdir()


def entry_exists(folder: Path, entry: ShardEntry) -> bool:
    """Tell whether a shard and its index are there with their lengths; `verify` checks their bytes."""
    try:
        sizes = [(folder / name).stat().st_size for name in (entry.name, entry.index)]
    except OSError:
        return False
    return sizes == [entry.bytes, entry.index_bytes]


def remove_shard(folder: Path, number: int) -> None:
    """Remove a shard and its index, if they are there."""
    for name in (shard_name(number), index_name(shard_name(number))):
        (folder / name).unlink(missing_ok=True)


def parse_plan(data: bytes) -> dict[str, Any]:
    """Return what is being packed; of a damaged file, nothing that anyone packs."""
    try:
        plan = json.loads(data)
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) else {}


def is_pack_file(name: str) -> bool:
    """Tell whether pack writes files of this name."""
    return name in (MANIFEST_NAME, SKIPPED_NAME) or _SHARD.fullmatch(name) is not None
