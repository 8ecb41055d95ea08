"""The local folder that shards are written to: its lock, the plan, and a report for each finished shard.

During a run, the folder has a work area ``.packing/`` with the files ``lock``, ``plan.json`` (what is being packed),
``manifest.json`` (without shards) and one report per finished shard. It is removed after the manifest, the last file of
a dataset, is written.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from wds_tools.errors import DestinationError
from wds_tools.format.index import index_name
from wds_tools.format.manifest import MANIFEST_NAME, ImageStats, ShardEntry
from wds_tools.packing.card import CARD_NAME
from wds_tools.packing.plan import shard_name
from wds_tools.sources.base import Skip
from wds_tools.storage.commit import CommitFile, commit_bytes, final_name, write_errors
from wds_tools.storage.lock import PLAN_NAME, WORK_NAME, lock_file, parse_plan, unlock

SKIPPED_NAME = "skipped.jsonl"
HEAD_NAME = "listing.json"
ROWS_NAME = "listing.arrow"
"""Files of a plan in the work area, see `stored_plan`."""

REWRITTEN = "-crop-ready"
"""End of the name of a shard whose images were made crop-ready in place, before its extension."""

_SHARD = re.compile(rf"shard-\d{{6,}}({REWRITTEN})?\.(tar|parquet)")


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The result of packing one shard.

    Attributes:
        entry: Its entry in the manifest; None if none of its inputs could be packed, so that there is no file.
        remarks: Remark of `Record` -> number of samples.
        plan: `Plan.id` of the plan that the shard belongs to; empty in the reports of other commands and old versions.
    """

    number: int
    entry: ShardEntry | None
    fields: dict[str, int]
    images: ImageStats | None
    skipped: tuple[Skip, ...]
    sixteen_bit: int = 0
    remarks: dict[str, int] = field(default_factory=dict)
    plan: str = ""

    @property
    def inputs(self) -> int:
        """Number of inputs, packed or skipped."""
        return len(self.skipped) + (self.entry.samples if self.entry else 0)

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShardReport:
        """Parse a report."""
        raw = json.loads(text)
        return cls(
            raw["number"],
            ShardEntry(**raw["entry"]) if raw["entry"] else None,
            raw["fields"],
            ImageStats(**raw["images"]) if raw["images"] else None,
            tuple(Skip(*pair) for pair in raw["skipped"]),
            raw.get("sixteen_bit", 0),
            raw.get("remarks", {}),
            raw.get("plan", ""),
        )


def report_path(folder: Path, shard: int) -> Path:
    """Return the path of a shard's report, which exists until the dataset is complete."""
    return folder / WORK_NAME / f"{shard_name(shard).removesuffix('.tar')}.json"


def save_report(folder: Path, report: ShardReport) -> None:
    """Record that a shard is finished. Call it after the shard and its index are on disk."""
    commit_bytes(report_path(folder, report.number), report.to_json().encode())


class WorkFolder:
    """The local folder that shards are written to, and its work area ``.packing/``. A ``with`` block locks it."""

    def __init__(
        self, folder: Path, name: str, *, task: tuple[int, int] | None = None, keep_empty: bool = True
    ) -> None:
        self.folder = folder
        self.name = name
        self.task = task
        self.work = folder / WORK_NAME
        self._keep_empty = keep_empty
        self._is_removed = False  # whether the work area was removed; a new one belongs to another packer

    def __enter__(self) -> Self:
        self._keep_empty = self._keep_empty and self.folder.exists()
        with write_errors(self.folder, "choose a writable folder"):
            try:
                self._locks = [lock_file(self.work / "lock", shared=self.task is not None)]
                if self.task:
                    self._locks.append(lock_file(self.work / f"task-{self.task[0]}-of-{self.task[1]}.lock"))
            except BlockingIOError as error:
                raise DestinationError(
                    f"another packer is writing into {self.name}; wait until it ends, or choose another folder"
                ) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._is_removed and self.task is None:  # other tasks may be running
            self.remove_temporary_files()
            if not (self.work / PLAN_NAME).exists():
                self.remove_work()
        if not self._keep_empty:
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()
        for lock in self._locks:
            unlock(lock)

    def read_plan(self) -> dict[str, Any] | None:
        """Return the source that is being packed into the folder, or None."""
        try:
            return parse_plan((self.work / PLAN_NAME).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_plan(self, data: bytes) -> None:
        """Record the source that is being packed."""
        commit_bytes(self.work / PLAN_NAME, data)

    def read_listing(self) -> tuple[bytes, memoryview] | None:
        """Return the files of the plan, see `stored_plan`; None without them. The larger one is mapped."""
        try:
            head = (self.work / HEAD_NAME).read_bytes()
            with (self.work / ROWS_NAME).open("rb") as file:
                return head, memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, NotADirectoryError, ValueError):  # an empty file cannot be mapped
            return None

    def write_listing(self, write: Callable[[BinaryIO], bytes]) -> None:
        """Write the files of the plan: the rows, then what ``write`` returns."""
        with CommitFile(self.work / ROWS_NAME) as file:
            head = write(file)
        commit_bytes(self.work / HEAD_NAME, head)

    def remove_listing(self) -> None:
        """Remove the files of the plan, so that the next run lists the source again."""
        for name in (HEAD_NAME, ROWS_NAME):
            (self.work / name).unlink(missing_ok=True)

    def finished_shards(self, numbers: Iterable[int]) -> dict[int, ShardReport]:
        """Return the reports of those of these shards that are finished and still in the folder, by number."""
        names = {report_path(self.folder, number).name for number in numbers}
        reports = {}
        for path in self.work.glob("shard-*.json"):
            if path.name not in names:
                continue
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
        """Remove half-written files of a killed packer. Temporary files of other programs stay."""
        for path in (*self.folder.iterdir(), *self.work.iterdir()):
            name = final_name(path.name)
            if name is not None and (path.parent == self.work or name == CARD_NAME or is_pack_file(name)):
                path.unlink(missing_ok=True)

    def remove_work(self) -> None:
        """Remove the work area, the lock last. A packer that waits for the lock notices that the file was replaced."""
        self._is_removed = True
        for path in sorted(self.work.iterdir(), key=lambda path: path.name == "lock"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the next packer may have started already
            self.work.rmdir()


def entry_exists(folder: Path, entry: ShardEntry) -> bool:
    """Return whether a shard and its index exist with the right lengths. Their content is checked by `verify`."""
    try:
        sizes = [(folder / name).stat().st_size for name in (entry.name, entry.index)]
    except OSError:
        return False
    return sizes == [entry.bytes, entry.index_bytes]


def remove_shard(folder: Path, shard: int) -> None:
    """Remove a shard and its index, if they exist."""
    for name in (shard_name(shard), index_name(shard_name(shard))):
        (folder / name).unlink(missing_ok=True)


def is_pack_file(name: str) -> bool:
    """Return whether `pack` writes files of this name."""
    return name in (MANIFEST_NAME, SKIPPED_NAME) or _SHARD.fullmatch(name) is not None
