"""Where a dataset is packed to: a local folder here, a URL in `remote_destination`. The manifest is written last."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from wds_tools.errors import DestinationError, ManifestError
from wds_tools.format import manifest as manifests
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.format.totals import merge_stats
from wds_tools.packing.card import card, commit_card, remove_card
from wds_tools.packing.plan import differences
from wds_tools.packing.work_folder import SKIPPED_NAME, ShardReport, WorkFolder, entry_exists, is_pack_file
from wds_tools.sources.base import Skip
from wds_tools.storage.commit import commit_bytes, sync_folder

APPENDED = "appended"  # kind of the source of a dataset that was packed in several goes


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


class Destination(Protocol):
    """Where a dataset is packed to; locked by one packer, or by tasks that share it, within a ``with`` block.

    Attributes:
        name: The folder or URL, for messages.
        folder: Where workers write shards, their indexes and their reports.
        is_bounded: Only as many shards may be in ``folder`` as workers pack at a time.
    """

    name: str
    folder: Path
    is_bounded: bool

    def __enter__(self) -> Destination: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def manifest(self) -> Manifest | None:
        """Return the manifest at the destination, or None."""

    def skipped(self) -> tuple[Skip, ...]:
        """Return the list of skipped files of a finished dataset."""

    def missing_shards(self, entries: Iterable[ShardEntry]) -> list[ShardEntry]:
        """Return the shards that are missing or have another length, or whose indexes are or have."""

    def remove_leftover_work(self) -> None:
        """Remove the work area of a packer that was killed after it had completed the dataset."""

    def start(self, source: dict[str, Any], *, fresh: bool, onto: Manifest | None = None) -> None:
        """Begin to pack ``source``, or continue. See `start_or_resume`."""

    def finished_shards(self) -> dict[int, ShardReport]:
        """Return the reports of shards that an earlier run has finished, by number."""

    def add_shard(self, report: ShardReport) -> None:
        """Take a shard that is finished in ``folder``."""

    def commit(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        """Complete the dataset: list of skipped files, card, manifest; then the work area is removed."""

    def roll_back(self, made: Iterable[ShardReport]) -> None:
        """Restore what this run found: remove the shards that it ``made``."""

    def read_plan(self) -> dict[str, Any] | None:
        """Return what is being packed; None if nothing is."""

    def write_plan(self, data: bytes) -> None:
        """Record what is being packed."""

    def names(self) -> Iterable[str]:
        """Return the names of the files at the destination."""

    def remove_earlier(self) -> None:
        """Remove an earlier dataset, its manifest first."""


def start_or_resume(destination: Destination, source: dict[str, Any], *, fresh: bool, onto: Manifest | None) -> bool:
    """Begin to pack ``source`` into a destination, or continue.

    Args:
        destination: A folder or URL.
        source: Of the plan.
        fresh: Remove what an earlier pack left, whatever it was.
        onto: The dataset at the destination, if ``source`` is appended to it.

    Returns:
        Whether this run wrote the plan.

    Raises:
        DestinationError: The destination holds something else.
    """
    old = destination.manifest()
    if fresh:
        _refuse_other_dataset(destination.name, old)
        destination.remove_earlier()
    elif onto is None:
        _refuse_dataset(destination.name, old, source)
    elif old is None or old.fingerprint != onto.fingerprint:
        raise DestinationError(f"{destination.name} was changed by another packer: run the same command again")
    goal = source if onto is None else {"onto": onto.fingerprint, **source}
    is_new = destination.read_plan() is None
    if is_new:
        _refuse_unknown_files(destination, onto)
        destination.write_plan(json.dumps(goal).encode())
    plan = destination.read_plan()
    if plan != goal:
        raise DestinationError(
            f"{destination.name} holds an unfinished pack of something else ({differences(plan or {}, source)}): "
            "finish that one, choose another folder, or pack with --fresh (fresh=True) to start over"
        )
    return is_new


class FolderDestination:
    """A local folder as a `Destination`.

    Args:
        folder: Of the dataset; created if it does not exist.
        task: (index, count) of a task of several.
    """

    is_bounded = False

    def __init__(self, folder: Path, *, task: tuple[int, int] | None = None) -> None:
        self.folder = folder
        self.name = str(folder)
        self.task = task
        self._work_folder = WorkFolder(folder, self.name, task=task)
        self._plan_is_new = False

    def __enter__(self) -> FolderDestination:
        self._work_folder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work_folder.__exit__(kind, error, trace)

    def manifest(self) -> Manifest | None:
        """Return the manifest in the folder."""
        return read_manifest(self.folder)

    def skipped(self) -> tuple[Skip, ...]:
        """Return the list of skipped files of a finished dataset."""
        return read_skipped(self.folder)

    def missing_shards(self, entries: Iterable[ShardEntry]) -> list[ShardEntry]:
        """Return the shards that are missing or have another length."""
        return [entry for entry in entries if not entry_exists(self.folder, entry)]

    def remove_leftover_work(self) -> None:
        """Remove the work area of a packer that was killed after it had completed the dataset."""
        if self._work_folder.work.exists():
            with self._work_folder:
                self._work_folder.remove_work()

    def start(self, source: dict[str, Any], *, fresh: bool, onto: Manifest | None = None) -> None:
        """Begin to pack ``source``, or continue. See `start_or_resume`."""
        self._plan_is_new = start_or_resume(self, source, fresh=fresh, onto=onto)
        if self.task is None:
            self._work_folder.remove_temporary_files()

    def finished_shards(self) -> dict[int, ShardReport]:
        """Return the reports of shards that an earlier run has finished and that are still in the folder."""
        return self._work_folder.finished_shards()

    def add_shard(self, report: ShardReport) -> None:
        """Do nothing: the shard is in the folder."""

    def commit(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        """Complete the dataset."""
        lines = skipped_lines(skipped)
        if lines:
            commit_bytes(self.folder / SKIPPED_NAME, lines)
        else:
            (self.folder / SKIPPED_NAME).unlink(missing_ok=True)
        commit_card(self.folder, card(manifest))
        commit_bytes(self.folder / MANIFEST_NAME, manifests.to_json(manifest).encode())
        self._work_folder.remove_work()

    def roll_back(self, made: Iterable[ShardReport]) -> None:
        """Remove the shards that this run ``made``."""
        self._work_folder.remove_shards(made)
        if self._plan_is_new and self.task is None:
            self._work_folder.remove_work()

    def read_plan(self) -> dict[str, Any] | None:
        """Return what is being packed."""
        return self._work_folder.read_plan()

    def write_plan(self, data: bytes) -> None:
        """Record what is being packed."""
        self._work_folder.write_plan(data)

    def names(self) -> Iterable[str]:
        """Return the names of the files in the folder."""
        return [path.name for path in self.folder.iterdir()]

    def remove_earlier(self) -> None:
        """Remove an earlier dataset. The manifest goes first, so that half of it never looks complete."""
        (self.folder / MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(self.folder)
        remove_card(self.folder)
        for path in list(self.folder.iterdir()):
            if is_pack_file(path.name):
                path.unlink()
        for path in list(self._work_folder.work.iterdir()):
            if path.name != "lock":
                path.unlink()


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


def _refuse_dataset(name: str, old: Manifest | None, source: dict[str, Any]) -> None:
    if old is not None and old.source == source:
        raise DestinationError(f"another packer has just completed {name}: there is nothing left to do")
    if old is not None:
        raise DestinationError(
            f"{name} holds another dataset ({differences(old.source or {}, source)}): "
            "choose another folder, or pack with --fresh (fresh=True) to replace it"
        )


def _refuse_unknown_files(destination: Destination, onto: Manifest | None) -> None:
    known = {MANIFEST_NAME, SKIPPED_NAME} if onto else set()
    known |= {name for entry in (onto.shards if onto else ()) for name in (entry.name, entry.index)}
    strangers = sorted({name for name in destination.names() if is_pack_file(name)} - known)
    if strangers and destination.read_plan() is None:  # or another task has begun in the meantime
        raise DestinationError(
            f"{destination.name} already has {len(strangers)} files of names that pack would write, such as "
            f"{strangers[0]}: choose another folder, or pack with --fresh (fresh=True) to remove them"
        )


def _refuse_other_dataset(name: str, old: Manifest | None) -> None:
    """A manifest over shards of others was made by ``wds-tools index``: those shards are not ours to remove."""
    if old is not None and (old.source is None or old.source.get("kind") == "shards"):
        raise DestinationError(
            f"{name} holds a dataset that pack did not make, so --fresh does not remove it: choose another folder"
        )
