"""`merge()`: joins datasets into one. Shards become hard links if possible, and are copied otherwise.

Shards are renumbered but not rewritten. Indexes are rewritten, because an index contains the name
of its shard. If classes have different numbers in the inputs, the labels in the indexes are changed too.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray
from tqdm import tqdm

from wds_tools.errors import ChecksumError, DestinationError, LabelError, OptionError, WdsToolsError
from wds_tools.format.class_notes import notes_on_similar
from wds_tools.format.field_classes import check_same, first_difference
from wds_tools.format.index import NO_LABEL, index_name, shard_entry
from wds_tools.format.index_edit import relabel, rename
from wds_tools.format.label import Classes
from wds_tools.format.label_lists import LABELS
from wds_tools.format.label_source import INDEX
from wds_tools.format.manifest import Manifest, united_accounts
from wds_tools.format.recorded_source import is_source
from wds_tools.format.totals import count_fields, image_stats
from wds_tools.options import RemoteOptions
from wds_tools.packing.destination import FolderDestination, manifest_of, read_manifest
from wds_tools.packing.plan import shard_name
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.packing.work_folder import ShardReport, entry_exists, save_report
from wds_tools.reading.opening import join_sets, open_shards
from wds_tools.reading.repeated_keys import RepeatedKey, find_repeated_key
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.commit import CommitFile, commit_bytes, sync_folder, write_errors
from wds_tools.storage.local import LocalStore
from wds_tools.terminal import shows_progress

_log = logging.getLogger("wds_tools")
SOURCE_KIND = "merge"
COPY_BYTES = 8 << 20  # shards are copied in parts of this size

_NO_LINKS = (
    errno.EXDEV,  # another file system
    errno.EPERM,  # a file system without hard links, or a file of another user
    errno.EACCES,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.ENOSYS,
)


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of `merge`.

    Attributes:
        manifest: Manifest of the new dataset.
        dst: Folder of the new dataset.
        linked: Number of shards that are hard links, which take no disk space.
        copied: Number of shards that were copied.
        kept: Number of shards that an earlier run had finished; all shards if the dataset was complete.
        seconds: Duration.
        relabelled: Number of shards whose labels have new numbers in the index, because classes were matched by
            name; the field ``cls`` in them keeps the old number. Shards of an earlier run count too.
        repeated_key: A key that occurs more than once in the new dataset; None if there is none, or
            if an earlier run had completed the dataset.
    """

    manifest: Manifest
    dst: Path
    linked: int
    copied: int
    kept: int
    seconds: float
    relabelled: int = 0
    repeated_key: RepeatedKey | None = None


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    dst: str | Path,
    *,
    copy: bool = False,
    fresh: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Join datasets into one, in the order given. After an interruption, the same call continues.

    Local shards become hard links: the same bytes under another name, which take no disk space and
    remain when the inputs are removed. Remote shards, and those on other file systems, are copied
    and verified with their checksums.

    Classes are matched by name: the result has the classes of the first input, then new classes of the others. If a
    class gets another number, the labels in the indexes are changed, and the manifest has ``"label": "index"``.
    The field ``cls`` in the shards keeps the old number, which other readers see; `reshard` writes the new one.

    Fields that were added later, by `add_fields`, are left out, with a warning. `reshard` writes them into the shards.

    Keys do not change, because shards are not rewritten. If a key occurs in several inputs, as is
    usual for datasets written by `pack`, a warning names it, because some readers refuse repeated
    keys. `reshard` writes unique keys.

    Example::

        wds_tools.merge(["shards/2024", "s3://bucket/2025"], "shards/both").manifest.samples  # 120000

    Args:
        datasets: Folders or URLs with a manifest, manifests, or patterns of indexed shards.
        dst: Local folder for shards, indexes and manifest. Shards are named ``shard-000000.tar``
            and so on.
        copy: Copy local shards too, so that the new dataset does not share files with its inputs.
        fresh: Remove what an earlier pack or merge left in ``dst``, finished or not, and start again.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        The manifest, and how many shards were linked and copied.

    Raises:
        OptionError: A dataset is given twice, or ``dst`` is an input or a URL.
        LabelError: One dataset has labels without class names and another has names, or one has no labels.
        NotADatasetError: An input is not a dataset.
        DestinationError: ``dst`` contains something else, is in use, or its disk is full.
        ChecksumError: A copied shard does not match its checksum.
        StoreError: Storage cannot be read.
    """
    started = time.monotonic()
    dst = parse_destination(dst)
    if isinstance(dst, str):
        raise OptionError(f"{dst} is not a local folder; merge into a local folder, then copy it")
    remote = RemoteOptions.of(
        None, 1, storage_options=storage_options
    )  # every byte is read only once, so caching is useless
    sets = _open(datasets, remote)
    _check_inputs(sets, dst)
    for shards in sets:
        if shards.manifest.additions:
            names = ", ".join(name for addition in shards.manifest.additions for name in addition.fields)
            _log.warning("%s: the fields that were added later are not merged: %s", shards.name, names)
    classes = _unite_classes(sets)
    earlier = {note for shards in sets for note in notes_on_similar(shards.manifest.classes)}
    for note in notes_on_similar(classes.names):
        if note not in earlier:
            _log.warning("%s", note)
    source = _source(sets, classes)
    pairs = zip(sets, classes.numbers, strict=True)
    relabelled = sum(len(shards.locations) for shards, numbers in pairs if numbers is not None)
    if not fresh and (done := _finished(dst, source)) is not None:
        return MergeReport(done, dst, 0, 0, len(done.shards), time.monotonic() - started, relabelled)
    advice = "finished shards are kept: fix the cause, then run the same command again to continue"
    with write_errors(dst, advice), FolderDestination(dst) as destination:
        destination.start(source, fresh=fresh)
        run = _MergeRun(sets, classes, destination, copy)
        try:
            repeated = find_repeated_key(run.shards)
            manifest = run.run(source, progress)
        except WdsToolsError:
            if not run.linked + run.copied + run.kept:
                destination.roll_back(())  # no shard is finished, so leave the folder free for other inputs
            raise
    if repeated is not None:
        _log.warning("%s", repeated)
    seconds = time.monotonic() - started
    return MergeReport(manifest, dst, run.linked, run.copied, run.kept, seconds, relabelled, repeated)


class _MergeRun:
    """One run over all shards of all inputs."""

    def __init__(self, sets: Sequence[ShardSet], classes: _United, destination: FolderDestination, copy: bool) -> None:
        self.shards = join_sets(sets)
        self.classes = classes
        self.is_shuffled = _shuffled(sets)
        self.account = united_accounts(shards.manifest for shards in sets)
        self.dataset_of = [index for index, shards in enumerate(sets) for _ in shards.locations]
        self.destination = destination
        self.copy = copy
        self.linked = self.copied = self.kept = 0

    def run(self, source: dict[str, Any], progress: bool | None) -> Manifest:
        """Add the shards that are missing, then write the manifest."""
        finished = self.destination.finished_shards(range(len(self.shards.manifest.shards)))
        self.kept = len(finished)
        show = shows_progress(progress)
        total = self.shards.manifest.bytes
        with tqdm(total=total, unit="B", unit_scale=True, disable=not show, file=sys.stderr) as bar:
            reports = []
            for index, entry in enumerate(self.shards.manifest.shards):
                report = finished.get(index)
                reports.append(report if report is not None else self._add_shard(index, bar))
                if report is not None:
                    bar.update(entry.bytes)
        manifest = manifest_of(
            reports,
            classes=self.classes.names,
            shuffled=self.is_shuffled,
            source=source,
            account=self.account,
            field_classes=self.shards.manifest.field_classes,
        )
        manifest = replace(manifest, label=INDEX if self.classes.is_changed else self.shards.manifest.label)
        self.destination.commit(manifest, ())
        return manifest

    def _add_shard(self, shard: int, bar: Any) -> ShardReport:
        """Write the index of a shard, then link or copy the shard, then write its report.

        So no shard is ever without the index that has its labels.
        """
        folder, name = self.destination.folder, shard_name(shard)
        index = self.shards.index(shard)  # verifies the index before the shard is copied
        location = self.shards.locations[shard]
        url = self.shards.shard_url(shard)
        data = rename(location.store.read(location.entry.index), name=url, shard=name)
        label = self.classes.relabelled(self.dataset_of[shard], index.label, name=url)
        if label is not None:
            data = relabel(data, label, name=url)
        commit_bytes(folder / index_name(name), data)
        try:
            if self._link(shard, folder / name):
                self.linked += 1
                bar.update(location.entry.bytes)
            else:
                self._copy(shard, folder / name, bar)
                self.copied += 1
        except BaseException:
            (folder / index_name(name)).unlink(missing_ok=True)
            raise
        old = location.entry
        entry = shard_entry(name, data, samples=old.samples, shard_bytes=old.bytes, shard_xxh3=old.xxh3)
        report = ShardReport(shard, entry, count_fields(index), image_stats(index), ())
        save_report(folder, report)
        return report

    def _link(self, shard: int, path: Path) -> bool:
        """Create a hard link to the shard; return False if it is not local or the file system cannot."""
        location = self.shards.locations[shard]
        if self.copy or not isinstance(location.store, LocalStore):
            return False
        location.store.fetch(location.entry.name, [], total_bytes=location.entry.bytes)  # checks its length
        path.unlink(missing_ok=True)
        try:
            # realpath, because a hard link to a symbolic link would depend on the target of that link.
            os.link(os.path.realpath(Path(location.store.folder) / location.entry.name), path)
        except OSError as error:
            if error.errno in _NO_LINKS:
                _log.debug("%s: copied, as it cannot be linked: %s", path, error)
                return False
            raise
        sync_folder(path.parent)
        return True

    def _copy(self, shard: int, path: Path, bar: Any) -> None:
        """Copy the shard in parts, and verify its checksum before it gets its final name."""
        entry, digest = self.shards.locations[shard].entry, xxhash.xxh3_128()
        with CommitFile(path) as file:
            for start in range(0, entry.bytes, COPY_BYTES):
                stop = min(start + COPY_BYTES, entry.bytes)
                (part,) = self.shards.fetch(shard, [(start, stop)])
                digest.update(part)
                file.write(part)
                bar.update(stop - start)
            if digest.hexdigest() != entry.xxh3:
                raise ChecksumError(
                    f"its XXH3-128 is {digest.hexdigest()}, its manifest states {entry.xxh3}: "
                    "`wds-tools verify` lists the damage; copy the shard again, or pack it again",
                    shard=self.shards.shard_url(shard),
                )


class _United(NamedTuple):
    """The classes of several datasets.

    Attributes:
        numbers: For each dataset, int64 [classes], the new number of each of its classes; None if they keep theirs.
    """

    names: Classes
    numbers: list[NDArray[np.int64] | None]

    @property
    def is_changed(self) -> bool:
        """Whether a class has a different number than before."""
        return any(numbers is not None for numbers in self.numbers)

    @property
    def digest(self) -> str:
        """Hash of the new numbers."""
        return xxhash.xxh3_128_hexdigest(b"".join(b"-" if n is None else n.tobytes() for n in self.numbers))

    def relabelled(self, dataset: int, label: NDArray[np.int64], *, name: str) -> NDArray[np.int64] | None:
        """Return the new labels of a shard of a dataset, int64 [n]; None if they stay the same."""
        numbers = self.numbers[dataset]
        if numbers is None:
            return None
        has_label = label != NO_LABEL
        if has_label.any() and not 0 <= int(label[has_label].min()) <= int(label[has_label].max()) < len(numbers):
            raise LabelError(
                f"{name} has labels from {label[has_label].min()} to {label[has_label].max()}, but its manifest names "
                f"{len(numbers)} classes, so the others cannot be matched by name: name all classes in the manifest, "
                "then `wds-tools reseal`"
            )
        return np.where(has_label, numbers[np.where(has_label, label, 0)], label)


def _unite_classes(sets: Sequence[ShardSet]) -> _United:
    """Return one list of classes for all datasets, by name."""
    for shards in sets:
        if len(labels := {classes.label for classes in shards.class_lists}) > 1:
            raise LabelError(
                f"{shards.name}: these shards belong to datasets with different classes ({first_difference(labels)}): "
                "name each dataset separately"
            )
    several = [shards for shards in sets if LABELS in shards.manifest.fields]
    if several and (without := next((shards for shards in sets if LABELS not in shards.manifest.fields), None)):
        raise LabelError(
            f"the samples of {several[0].name} have several labels each, those of {without.name} do not: merge "
            "datasets that are labelled in the same way"
        )
    check_same([classes for shards in sets for classes in shards.class_lists])
    labelled = [shards for shards in sets if shards.manifest.has_labels or shards.manifest.classes]
    named = [shards for shards in labelled if shards.manifest.classes]
    if named and len(named) < len(labelled):
        without = next(shards for shards in labelled if not shards.manifest.classes)
        raise LabelError(
            f"{without.name} has labels without class names, {named[0].name} names {len(named[0].manifest.classes)} "
            "classes, so they cannot be matched by name: add the names to `classes` in its manifest.json, then run "
            "`wds-tools reseal`"
        )
    if labelled and len(labelled) < len(sets):
        without = next(shards for shards in sets if shards not in labelled)
        raise LabelError(
            f"{without.name} has no labels, {labelled[0].name} has: merge datasets that are labelled in the same way"
        )
    union, numbers = Classes(), list[NDArray[np.int64] | None]()
    for shards in sets:
        union, new = union.united(shards.manifest.classes)
        numbers.append(None if np.array_equal(new, np.arange(len(new))) else new)
    return _United(union, numbers)


def _source(sets: Sequence[ShardSet], classes: _United) -> dict[str, Any]:
    """Return the ``source`` of the manifest: the identity of each input, without its path, and of the new labels."""
    inputs = [
        {
            "fingerprint": shards.manifest.fingerprint,
            "shards": len(shards.locations),
            "samples": shards.manifest.samples,
        }
        for shards in sets
    ]
    return {"kind": SOURCE_KIND, "inputs": inputs, **({"classes": classes.digest} if classes.is_changed else {})}


def _shuffled(sets: Sequence[ShardSet]) -> bool:
    """Return whether the result is in random order: two shuffled datasets, one after the other, are not.

    A block has samples of one input only, which may have other classes than the rest. Because of
    this flag, the loader chooses a window that mixes them.
    """
    return len(sets) == 1 and sets[0].manifest.shuffled


def _open(datasets: Sequence[str | os.PathLike[str]], remote: RemoteOptions) -> list[ShardSet]:
    if isinstance(datasets, str | os.PathLike):
        raise OptionError(f"datasets={str(datasets)!r} is one path; allowed are lists of datasets")
    return [open_shards(name, remote=remote) for name in datasets]


def _check_inputs(sets: Sequence[ShardSet], dst: Path) -> None:
    if not sets:
        raise OptionError("no dataset was given; name at least one")
    seen: dict[Any, str] = {}
    for shards in sets:
        lists = frozenset(shards.manifest.field_classes.items())
        content = shards.manifest.fingerprint, shards.manifest.classes, lists
        earlier = seen.get(content)
        seen[content] = shards.name
        if earlier is not None:
            raise OptionError(
                f"{shards.name} and {earlier} are the same dataset (fingerprint {shards.manifest.fingerprint}), so "
                "each sample would occur twice; name it once, or use wds_tools.Mixture to load its samples more often"
            )
        for folder in {
            location.store.folder for location in shards.locations if isinstance(location.store, LocalStore)
        }:
            if dst.exists() and os.path.samefile(folder, dst):  # noqa: PTH121 - `folder` is a string
                raise OptionError(f"{dst} is one of the inputs; merge into another folder")


def _finished(dst: Path, source: dict[str, Any]) -> Manifest | None:
    """Return the manifest if an earlier run has completed ``dst``."""
    old = read_manifest(dst)
    if old is None:
        return None
    if not is_source(old.source, source):
        raise DestinationError(
            f"{dst} holds another dataset, of {old.samples:,} samples: choose another folder, or merge with --fresh "
            "(fresh=True) to replace it"
        )
    bad = [entry.name for entry in old.shards if not entry_exists(dst, entry)]
    if bad:
        raise DestinationError(
            f"{dst} is this dataset, but {len(bad)} of its {len(old.shards)} shards or their indexes are missing or "
            "have the wrong length: merge with --fresh (fresh=True) to create it again",
            shard=bad[0],
        )
    FolderDestination(dst).remove_leftover_work()
    return old
