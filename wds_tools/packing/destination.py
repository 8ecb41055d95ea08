"""Destinations of a dataset: a local folder here, a URL in `remote_destination`. The manifest is written last."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from wds_tools.errors import DestinationError, ManifestError
from wds_tools.format import manifest as manifests
from wds_tools.format.account import Account
from wds_tools.format.field_classes import FieldClasses
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.format.recorded_source import begins, differences, has_all, is_beginning, is_source
from wds_tools.format.totals import merge_stats
from wds_tools.packing.card import CARD_NAME, card, commit_card, remove_card
from wds_tools.packing.plan import Plan
from wds_tools.packing.stored_plan import Rows
from wds_tools.packing.work_folder import SKIPPED_NAME, ShardReport, WorkFolder, entry_exists, is_pack_file
from wds_tools.packing.worker import ShardTarget
from wds_tools.sources.base import Skip, Source
from wds_tools.sources.file_names import is_split_name
from wds_tools.storage.commit import commit_bytes, sync_folder
from wds_tools.storage.lock import PLAN_NAME, WORK_NAME
from wds_tools.wording import counted

PLAN = f"{WORK_NAME}/{PLAN_NAME}"
_log = logging.getLogger("wds_tools")
_APPEND_AGAIN = "append with --fresh (fresh=True)"
APPENDED = "appended"  # kind of the source of a dataset that samples were appended to
ADDED_FIELDS = "added fields"  # kind of the source of shards with fields that were added to a dataset later


def manifest_of(
    reports: Sequence[ShardReport],
    *,
    classes: tuple[str, ...],
    shuffled: bool,
    source: dict[str, Any],
    account: Account | None,
    field_classes: FieldClasses,
) -> Manifest:
    """Return the manifest of finished shards."""
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
        account=account,
        field_classes=field_classes,
    )


def empty_manifest(plan: Plan) -> Manifest:
    """Return the manifest of a plan before anything is packed."""
    return manifest_of(
        (),
        classes=plan.classes,
        shuffled=plan.shuffled,
        source=plan.source,
        account=None,
        field_classes=plan.field_classes,
    )


class Destination(Protocol):
    """Where a dataset is written. A ``with`` block locks it for one packer, or for the tasks that share it.

    Attributes:
        folder: Local folder in which workers write shards, indexes and reports.
        is_bounded: Whether ``folder`` can hold only as many shards as workers pack at the same time.
        task: (index, count) if this is one of several tasks.
    """

    name: str
    folder: Path
    is_bounded: bool
    task: tuple[int, int] | None

    def __enter__(self) -> Destination: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...

    def manifest(self) -> Manifest | None:
        """Return the manifest at the destination, or None."""

    def skipped(self) -> tuple[Skip, ...]:
        """Return the list of skipped files of a finished dataset."""

    def missing_shards(self, entries: Iterable[ShardEntry]) -> list[ShardEntry]:
        """Return the shards that are missing or have the wrong length; the same holds for their indexes."""

    def remove_leftover_work(self) -> None:
        """Remove the work area of a packer that was killed after it had completed the dataset."""

    def start(self, source: dict[str, Any], *, fresh: bool, onto: Manifest | None = None) -> None:
        """Start or resume packing ``source``. See `start_or_resume`."""

    def finished_shards(self, numbers: Iterable[int]) -> dict[int, ShardReport]:
        """Return the reports of those of these shards that an earlier run has finished, by number."""

    def add_shard(self, report: ShardReport) -> None:
        """Add a shard that is finished in ``folder``."""

    def shard_target(self) -> ShardTarget:
        """Return where tasks on other machines write their shards. `add_shard` is not called for these shards."""

    def finish_task(self) -> None:
        """Wait until the shards of this task have arrived. What belongs to other tasks stays."""

    def commit(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        """Complete the dataset: write list of skipped files, card and manifest; remove the work area."""

    def roll_back(self, packed: Iterable[ShardReport]) -> None:
        """Remove the shards that this run has ``packed``."""

    def read_plan(self) -> dict[str, Any] | None:
        """Return the source that is being packed, or None."""

    def write_plan(self, data: bytes) -> None:
        """Record the source that is being packed."""

    def read_listing(self) -> tuple[bytes, Rows] | None:
        """Return the files of the plan, see `stored_plan`; None without them."""

    def write_listing(self, write: Callable[[BinaryIO], bytes]) -> None:
        """Write the files of the plan: the rows, then what ``write`` returns."""

    def remove_listing(self) -> None:
        """Remove the files of the plan, so that the next run lists the source again."""

    def write_planned(self, manifest: Manifest) -> None:
        """Record the manifest of the plan, which has no shards yet, for loaders that read the shards meanwhile."""

    def names(self) -> Iterable[str]:
        """Return the names of the files at the destination."""

    def remove_earlier(self) -> None:
        """Remove an earlier dataset, its manifest first."""

    def remove_unlisted(self, manifest: Manifest) -> None:
        """Remove what an interrupted `append` left: shards that the manifest does not list, and its plan."""


def check_startable(destination: Destination, source: dict[str, Any], *, fresh: bool) -> None:
    """Check that a destination holds no other dataset, and no unfinished pack of something else."""
    old, plan = destination.manifest(), destination.read_plan()
    if fresh:
        _refuse_other_dataset(destination.name, old)
    elif old is not None and not has_all(old.source, source) and not begins(old.source, source):
        _refuse_dataset(destination, old, source)
    elif plan not in (None, source):
        raise _unfinished_error(destination, plan or {}, source)


def check_times(destination: Destination, plan: Plan, source: Source) -> None:
    """Check that no file of a source was changed after a local folder began to be packed from it."""
    unfinished = destination.read_plan() or {}
    again = _APPEND_AGAIN if "onto" in unfinished else how_to_start_over(destination.task)
    unfinished = {key: value for key, value in unfinished.items() if key != "onto"}  # of the dataset for `append`
    if unfinished == plan.source and (later := later_files(destination, plan, source, since=PLAN)):
        raise DestinationError(
            f"{destination.name} holds an unfinished pack of these files, and {later}: {again}, which starts over"
        )


def how_to_start_over(task: tuple[int, int] | None) -> str:
    """Return what to do to pack everything again: tasks refuse ``--fresh``, as each would remove shards of others."""
    return "pack with --fresh (fresh=True)" if task is None else "remove it, then run all tasks again"


def later_files(destination: Destination, plan: Plan, source: Source, *, since: str = MANIFEST_NAME) -> str:
    """Describe the files of a source that were modified later than a file at the destination; "" without any."""
    file = destination.folder / since
    if not isinstance(destination, FolderDestination) or not file.is_file():
        return ""
    later = source.later_than(plan.inputs, file.stat().st_mtime_ns)
    if not later:
        return ""
    have = "file of the source has" if len(later) == 1 else "files of the source have"
    return f"{len(later):,} {have} a later modification time, such as {later[0]!r}"


def start_or_resume(destination: Destination, source: dict[str, Any], *, fresh: bool, onto: Manifest | None) -> bool:
    """Start packing ``source`` into a destination, or resume an interrupted run.

    Returns:
        Whether this run wrote the plan, so that no earlier run is resumed.

    Raises:
        DestinationError: The destination holds something else.
    """
    old = destination.manifest()
    if fresh and onto is None:
        _refuse_other_dataset(destination.name, old)
        destination.remove_earlier()
    elif onto is None:
        _refuse_dataset(destination, old, source)
    elif old is None or old.fingerprint != onto.fingerprint:
        raise DestinationError(
            f"{destination.name} was changed by another packer in the meantime: run the same command again"
        )
    elif fresh:
        destination.remove_unlisted(onto)
    expected = source if onto is None else {"onto": onto.fingerprint, **source}
    is_new = destination.read_plan() is None
    if is_new:
        _refuse_unknown_files(destination, onto)
        destination.write_plan(json.dumps(expected).encode())
    plan = destination.read_plan()
    if plan != expected:
        raise _unfinished_error(destination, plan or {}, source, is_append=onto is not None)
    return is_new


def _unfinished_error(
    destination: Destination, plan: dict[str, Any], source: dict[str, Any], *, is_append: bool = False
) -> DestinationError:
    other = f"choose another folder, or {how_to_start_over(destination.task)}"
    return DestinationError(
        f"{destination.name} holds an unfinished pack of something else ({differences(plan, source)}): "
        f"finish that pack, {f'or {_APPEND_AGAIN}' if is_append else other} to start over"
    )


class FolderDestination(WorkFolder):
    """A local folder as a `Destination`."""

    is_bounded = False

    def __init__(self, folder: Path, *, task: tuple[int, int] | None = None) -> None:
        super().__init__(folder, str(folder), task=task)
        self._plan_is_new = False

    def manifest(self) -> Manifest | None:
        """Return the manifest in the folder."""
        return read_manifest(self.folder)

    def skipped(self) -> tuple[Skip, ...]:
        """Return the list of skipped files of a finished dataset."""
        return read_skipped(self.folder)

    def missing_shards(self, entries: Iterable[ShardEntry]) -> list[ShardEntry]:
        """Return the shards that are missing or have the wrong length."""
        return [entry for entry in entries if not entry_exists(self.folder, entry)]

    def remove_leftover_work(self) -> None:
        """Remove the work area of a packer that was killed after it had completed the dataset."""
        if self.work.exists():
            with self:
                self.remove_work()

    def start(self, source: dict[str, Any], *, fresh: bool, onto: Manifest | None = None) -> None:
        """Start or resume packing ``source``. See `start_or_resume`."""
        old = self.manifest()
        if onto is None and old is None and self.read_plan() is None:
            self._refuse_other_files()
        is_new = onto is None and not fresh
        if is_new and old is not None and begins(old.source, source) and self.read_plan() in (None, source):
            self._reopen(source)
        self._plan_is_new = start_or_resume(self, source, fresh=fresh, onto=onto)
        if onto is None and old is not None and old.additions:
            names = ", ".join(name for addition in old.additions for name in addition.fields)
            _log.warning("%s: the fields that were added later are not kept: add %s again", self.name, names)
        if self.task is None:
            self.remove_temporary_files()

    def _reopen(self, source: dict[str, Any]) -> None:
        """Continue a dataset that has only the first samples: until all are packed, it is unfinished."""
        self.write_plan(json.dumps(source).encode())
        (self.folder / MANIFEST_NAME).unlink()
        sync_folder(self.folder)

    def _refuse_other_files(self) -> None:
        """Refuse a folder with files of something else. A hidden file or a README.md does no harm."""
        names = sorted(path.name for path in self.folder.iterdir() if path.is_file())
        others = [name for name in names if name[0] != "." and name != CARD_NAME and not is_pack_file(name)]
        if others:
            raise DestinationError(
                f"{self.name} has {counted(len(others), 'file')} that pack did not write, such as {others[0]!r}: "
                "choose an empty or new folder"
            )

    def add_shard(self, report: ShardReport) -> None:
        """Do nothing: the shard is already in the folder."""

    def shard_target(self) -> ShardTarget:
        """Return the folder for tasks on other machines, which must share it."""
        return _SharedFolder(self.folder.absolute(), self.read_plan() or {})

    def finish_task(self) -> None:
        """Do nothing: the shards are already in the folder."""

    def commit(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        """Complete the dataset."""
        lines = skipped_lines(skipped)
        if lines:
            commit_bytes(self.folder / SKIPPED_NAME, lines)
        else:
            (self.folder / SKIPPED_NAME).unlink(missing_ok=True)
        commit_card(self.folder, card(manifest))
        commit_bytes(self.folder / MANIFEST_NAME, manifests.to_json(manifest).encode())
        if not is_beginning(manifest.source):
            self.remove_work()

    def roll_back(self, packed: Iterable[ShardReport]) -> None:
        """Remove the shards that this run has ``packed``."""
        self.remove_shards(packed)
        if self._plan_is_new and self.task is None:
            self.remove_work()

    def write_planned(self, manifest: Manifest) -> None:
        """Record the manifest of the plan for loaders."""
        commit_bytes(self.work / MANIFEST_NAME, manifests.to_json(manifest).encode())

    def names(self) -> Iterable[str]:
        """Return the names of the files in the folder."""
        return [path.name for path in self.folder.iterdir()]

    def remove_earlier(self) -> None:
        """Remove an earlier dataset, its manifest first, so that a partly removed dataset never looks complete."""
        (self.folder / MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(self.folder)
        remove_card(self.folder)
        for path in list(self.folder.iterdir()):
            if is_pack_file(path.name):
                path.unlink()
        self._clear_work()

    def remove_unlisted(self, manifest: Manifest) -> None:
        """Remove what an interrupted `append` left; the plan last, so that the folder stays unfinished until then."""
        listed = {name for entry in manifest.shards for name in (entry.name, entry.index)}
        for path in list(self.folder.iterdir()):
            if is_pack_file(path.name) and path.name not in listed | {MANIFEST_NAME, SKIPPED_NAME}:
                path.unlink()
        self._clear_work()

    def _clear_work(self) -> None:
        for path in sorted(self.work.iterdir(), key=lambda path: path.name == PLAN_NAME):
            if path.name != "lock":
                path.unlink()


@dataclass(frozen=True, slots=True)
class _SharedFolder:
    """A folder that all machines share, as a `ShardTarget`."""

    folder: Path
    plan: dict[str, Any]

    def put(self, pack: Callable[[Path], ShardReport]) -> ShardReport:
        """Pack a shard into the folder, if this machine has the folder of the packer and not another of its name."""
        if WorkFolder(self.folder, str(self.folder)).read_plan() != self.plan:
            raise DestinationError(
                f"{self.folder} is not the folder of this pack there ({PLAN} is missing or different): mount the "
                "shared folder on all machines, or pack to a URL"
            )
        return pack(self.folder)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, or None if there is none."""
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DestinationError(f"{folder / MANIFEST_NAME} cannot be read: {error.strerror}") from error
    return parse_manifest(data, where=str(folder))


def other_splits(dst: Path) -> dict[Path, tuple[str, ...]]:
    """Return the class names of datasets in folders next to a dataset, if all these folders have names of splits."""
    here = dst.resolve()
    others = {}
    for path in sorted(here.parent.glob(f"*/{MANIFEST_NAME}")) if is_split_name(here.name) else ():
        if path.parent != here and is_split_name(path.parent.name):
            with suppress(DestinationError):  # a damaged one does not matter here
                manifest = read_manifest(path.parent)
                others[path.parent] = manifest.label_classes if manifest else ()
    return others


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """Parse a manifest."""
    try:
        return manifests.from_json(data)
    except ManifestError as error:
        raise DestinationError(
            f"{where} holds a {MANIFEST_NAME} that is damaged or was not written by pack ({error}): "
            "choose another folder, or remove the file"
        ) from error


def read_skipped(folder: Path) -> tuple[Skip, ...]:
    """Return the list of skipped files of a finished dataset."""
    try:
        return parse_skipped((folder / SKIPPED_NAME).read_bytes())
    except FileNotFoundError:
        return ()


def parse_skipped(data: bytes) -> tuple[Skip, ...]:
    """Parse the list of skipped files that `skipped_lines` returned."""
    return tuple(Skip(**json.loads(line)) for line in data.splitlines())


def skipped_lines(skipped: Iterable[Skip]) -> bytes:
    """Return the list of skipped files as lines of JSON."""
    return "".join(json.dumps(skip._asdict()) + "\n" for skip in skipped).encode()


def _refuse_dataset(destination: Destination, old: Manifest | None, source: dict[str, Any]) -> None:
    if old is not None and is_source(old.source, source):
        raise DestinationError(f"another packer has just completed {destination.name}: nothing is left to do")
    if old is not None:
        raise DestinationError(
            f"{destination.name} holds another dataset ({differences(old.source or {}, source)}): "
            f"choose another folder, or {how_to_start_over(destination.task)} to replace it"
        )


def _refuse_unknown_files(destination: Destination, onto: Manifest | None) -> None:
    ours = {MANIFEST_NAME, SKIPPED_NAME} if onto else set()
    ours |= {name for entry in (onto.shards if onto else ()) for name in (entry.name, entry.index)}
    unknown = sorted({name for name in destination.names() if is_pack_file(name)} - ours)
    if unknown and destination.read_plan() is None:  # a plan: another task has started in the meantime
        raise DestinationError(
            f"{destination.name} already has {len(unknown)} files with names that pack would write, such as "
            f"{unknown[0]}: choose another folder, or {how_to_start_over(destination.task)} to replace them"
        )


def _refuse_other_dataset(name: str, old: Manifest | None) -> None:
    """Refuse to remove shards of another tool that ``wds-tools index`` made a dataset of."""
    if old is not None and (old.source is None or old.source.get("kind") == "shards"):
        raise DestinationError(
            f"{name} holds a dataset that was not written by pack, so --fresh does not remove it: choose another folder"
        )
