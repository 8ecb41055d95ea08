"""The folder that a dataset is packed into: one packer at a time, what an earlier run left, what may be removed.

While a pack runs, ``.packing/`` in that folder holds ``lock``, ``plan.json`` (what is being packed) and a report
per finished shard. It goes away once the manifest, the last file of a dataset, is there.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from wds_tools.errors import DestinationError, ManifestError
from wds_tools.format import manifest as manifests
from wds_tools.format.index import index_name
from wds_tools.format.manifest import MANIFEST_NAME, ImageStats, Manifest, ShardEntry
from wds_tools.format.totals import merge_stats
from wds_tools.packing.card import CARD_NAME, card, commit_card, remove_card
from wds_tools.packing.plan import differences, shard_name
from wds_tools.sources.base import Skip
from wds_tools.storage.commit import commit_bytes, final_name, sync_folder
from wds_tools.storage.lock import lock_file

WORK_NAME = ".packing"
PLAN_NAME = "plan.json"
SKIPPED_NAME = "skipped.jsonl"
APPENDED = "appended"  # kind of the source of a dataset that was packed in several goes
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


def manifest_of(
    reports: Sequence[ShardReport], *, classes: tuple[str, ...], shuffled: bool, source: dict[str, Any]
) -> Manifest:
    """Return the manifest of shards that were finished."""
    fields: Counter[str] = Counter()
    for report in reports:
        fields.update(report.fields)
    return Manifest(
        shards=tuple(report.entry for report in reports if report.entry is not None),
        fields=dict(fields),
        classes=classes,
        shuffled=shuffled,
        images=merge_stats(report.images for report in reports),
        source=source,
    )


def report_path(folder: Path, number: int) -> Path:
    """Return where a shard's report is kept until the dataset is complete."""
    return folder / WORK_NAME / f"{shard_name(number).removesuffix('.tar')}.json"


def save_report(folder: Path, report: ShardReport) -> None:
    """Record that a shard is finished; called when it and its index are on disk."""
    commit_bytes(report_path(folder, report.number), report.to_json().encode())


class Destination:
    """The output folder, held by one packer, or by tasks of the same one, for the length of a ``with`` block.

    Args:
        folder: Where the dataset goes; made if it is not there.
        task: (index, count) of a task of several: those hold the folder together, and each its own part alone.
    """

    bounded = False  # so many shards at a time as workers can have in hand

    def __init__(self, folder: Path, *, task: tuple[int, int] | None = None) -> None:
        self.folder = folder
        self.name = str(folder)
        self.task = task
        self.work = folder / WORK_NAME
        self._made_folder = False
        self._plan_is_new = False
        self._released = False  # the work area is gone; one that is there now is another packer's

    def __enter__(self) -> Destination:
        self._made_folder = not self.folder.exists()
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
        if not self._released and self.task is None:  # other tasks may be at work
            self.remove_temporary()
            if not (self.work / PLAN_NAME).exists():
                self._remove_work()
        if self._made_folder:
            with suppress(OSError):  # it holds something
                self.folder.rmdir()
        for lock in self._locks:
            os.close(lock)

    def manifest(self) -> Manifest | None:
        """Return the manifest that is there."""
        return read_manifest(self.folder)

    def skipped(self) -> tuple[Skip, ...]:
        """Return the list of skipped files of a finished dataset."""
        return read_skipped(self.folder)

    def lost(self, entries: Iterable[ShardEntry]) -> list[ShardEntry]:
        """Return those shards that are not there with their lengths, or whose indexes are not."""
        return [entry for entry in entries if not entry_is_there(self.folder, entry)]

    def tidy(self) -> None:
        """Remove the work area of a packer that was killed after it had completed the dataset."""
        if self.work.exists():
            with self:
                self._remove_work()

    def accept(self, report: ShardReport) -> None:
        """Take a shard that is finished; a folder has it already."""

    def claim(self, source: dict[str, Any], *, fresh: bool, onto: Manifest | None = None) -> None:
        """Make the folder ours to pack ``source`` into, or to go on with it.

        Args:
            source: Of the plan.
            fresh: Remove what an earlier pack left, whatever it was.
            onto: The dataset in the folder, if ``source`` is appended to it.

        Raises:
            DestinationError: The folder holds something else.
        """
        old = self.manifest()
        if fresh:
            _refuse_foreign(self.name, old)
            self._remove_earlier()
        elif onto is None:
            self._refuse_dataset(old, source)
        elif old is None or old.fingerprint != onto.fingerprint:
            raise DestinationError(f"{self.name} was changed by another packer: run the same command again")
        goal = source if onto is None else {"onto": onto.fingerprint, **source}
        if self._read_plan() is None:
            self._refuse_strangers(onto)
            self._write_plan(json.dumps(goal).encode())
            self._plan_is_new = True
        plan = self._read_plan()
        if plan != goal:
            raise DestinationError(
                f"{self.name} holds an unfinished pack of something else ({differences(plan or {}, source)}): "
                "finish that one, choose another folder, or pack with --fresh (fresh=True) to start over"
            )
        if self.task is None:
            self.remove_temporary()

    def _refuse_dataset(self, old: Manifest | None, source: dict[str, Any]) -> None:
        if old is not None and old.source == source:
            raise DestinationError(f"another packer has just completed {self.name}: there is nothing left to do")
        if old is not None:
            raise DestinationError(
                f"{self.name} holds another dataset ({differences(old.source or {}, source)}): "
                "choose another folder, or pack with --fresh (fresh=True) to replace it"
            )

    def finished_shards(self) -> dict[int, ShardReport]:
        """Return the reports of shards that an earlier run has finished and that are still there."""
        reports = {}
        for path in self.work.glob("shard-*.json"):
            report = ShardReport.from_json(path.read_text())
            if report.entry is None or entry_is_there(self.folder, report.entry):
                reports[report.number] = report
        return reports

    def commit(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        """Complete the dataset: list of skipped files, card, manifest, and then the work area goes."""
        lines = skipped_lines(skipped)
        if lines:
            commit_bytes(self.folder / SKIPPED_NAME, lines)
        else:
            (self.folder / SKIPPED_NAME).unlink(missing_ok=True)
        commit_card(self.folder, card(manifest))
        commit_bytes(self.folder / MANIFEST_NAME, manifests.to_json(manifest).encode())
        self._remove_work()

    def undo(self, made: Iterable[ShardReport]) -> None:
        """Leave the folder as this run found it: remove the shards that it ``made``."""
        for report in made:
            report_path(self.folder, report.number).unlink(missing_ok=True)
            remove_shard(self.folder, report.number)
        if self._plan_is_new and self.task is None:
            self._remove_work()

    def remove_temporary(self) -> None:
        """Remove half-written files of a packer that was killed: only those that would have become ours."""
        for path in (*self.folder.iterdir(), *self.work.iterdir()):
            name = final_name(path.name)
            if name is not None and (path.parent == self.work or name == CARD_NAME or is_ours(name)):
                path.unlink(missing_ok=True)

    def _read_plan(self) -> dict[str, Any] | None:
        try:
            return parse_plan((self.work / PLAN_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def _write_plan(self, data: bytes) -> None:
        commit_bytes(self.work / PLAN_NAME, data)

    def _names(self) -> Iterable[str]:
        return [path.name for path in self.folder.iterdir()]

    def _refuse_strangers(self, onto: Manifest | None) -> None:
        known = {MANIFEST_NAME, SKIPPED_NAME} if onto else set()
        known |= {name for entry in (onto.shards if onto else ()) for name in (entry.name, entry.index)}
        strangers = sorted({name for name in self._names() if is_ours(name)} - known)
        if strangers and self._read_plan() is None:  # or another task has begun in the meantime
            raise DestinationError(
                f"{self.name} already has {len(strangers)} files of names that pack would write, such as "
                f"{strangers[0]}: choose another folder, or pack with --fresh (fresh=True) to remove them"
            )

    def _remove_earlier(self) -> None:
        """The manifest goes first, so that a half-removed dataset is never taken for a whole one."""
        (self.folder / MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(self.folder)
        remove_card(self.folder)
        for path in list(self.folder.iterdir()):
            if is_ours(path.name):
                path.unlink()
        for path in list(self.work.iterdir()):
            if path.name != "lock":
                path.unlink()

    def _remove_work(self) -> None:
        """The lock goes last; who waits for it notices that it is another file by now."""
        self._released = True
        for path in sorted(self.work.iterdir(), key=lambda path: path.name == "lock"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the next packer may have come in already
            self.work.rmdir()


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, or None if there is none.

    Raises:
        DestinationError: There is a file of that name which is no manifest of ours, or a damaged one.
    """
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DestinationError(f"{folder / MANIFEST_NAME} cannot be read: {error.strerror}") from error
    return parse_manifest(data, where=str(folder))


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """Return the manifest that was found at a place.

    Raises:
        DestinationError: No manifest of ours, or a damaged one.
    """
    try:
        return manifests.from_json(data)
    except ManifestError as error:
        raise DestinationError(
            f"{where} holds a {MANIFEST_NAME} that pack did not write or that is damaged ({error}): "
            "choose another folder, or remove the file"
        ) from error


def entry_is_there(folder: Path, entry: ShardEntry) -> bool:
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


def read_skipped(folder: Path) -> tuple[Skip, ...]:
    """Return the list of skipped files of a finished dataset."""
    try:
        return parse_skipped((folder / SKIPPED_NAME).read_bytes())
    except FileNotFoundError:
        return ()


def parse_skipped(data: bytes) -> tuple[Skip, ...]:
    """Return what `skipped_lines` wrote."""
    return tuple(Skip(**json.loads(line)) for line in data.splitlines())


def skipped_lines(skipped: Iterable[Skip]) -> bytes:
    """Return the content of the list of skipped files."""
    return "".join(json.dumps(skip._asdict()) + "\n" for skip in skipped).encode()


def parse_plan(data: bytes) -> dict[str, Any]:
    """Return what is being packed; of a damaged file, nothing that anyone packs."""
    try:
        plan = json.loads(data)
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) else {}


def _refuse_foreign(name: str, old: Manifest | None) -> None:
    """A manifest over shards of others was made by ``wds-tools index``: those shards are not ours to remove."""
    if old is not None and (old.source is None or old.source.get("kind") == "shards"):
        raise DestinationError(
            f"{name} holds a dataset that pack did not make, so --fresh does not remove it: choose another folder"
        )


def is_ours(name: str) -> bool:
    """Tell whether pack writes files of this name."""
    return name in (MANIFEST_NAME, SKIPPED_NAME) or _SHARD.fullmatch(name) is not None
