"""Several datasets become one: shards are linked where the file system can, copied where it cannot.

No shard is rewritten. Its index is, because it names its shard, and shards are numbered anew.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from tqdm import tqdm

from wds_tools.errors import ChecksumError, DestinationError, OptionError, WdsToolsError
from wds_tools.format import index as indexes
from wds_tools.format.index import index_name
from wds_tools.format.manifest import Manifest, ShardEntry
from wds_tools.format.totals import count_fields, image_stats
from wds_tools.options import CacheOptions
from wds_tools.packing.destination import FolderDestination, manifest_of, read_manifest
from wds_tools.packing.plan import shard_name
from wds_tools.packing.work_folder import ShardReport, entry_exists, save_report
from wds_tools.reading.keys import RepeatedKey, find_repeated_key
from wds_tools.reading.shardset import ShardSet, join_sets, open_shards
from wds_tools.storage import is_url
from wds_tools.storage.commit import CommitFile, commit_bytes, sync_folder
from wds_tools.storage.local import LocalStore

_log = logging.getLogger("wds_tools")
SOURCE_KIND = "merge"
COPY_BYTES = 8 << 20  # held in memory while a shard is copied

_NO_LINKS = (
    errno.EXDEV,  # another file system
    errno.EPERM,  # one without hard links, or a file of another user
    errno.EACCES,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.ENOSYS,
)


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What became of several datasets.

    Attributes:
        manifest: Of the one that they have become.
        dst: Its folder.
        linked: Shards that are hard links, so that they take no room.
        copied: Shards that were copied.
        kept: Shards that an earlier run had finished; all of them if there was nothing to do.
        seconds: Time that it took.
        repeated_key: A key that comes more than once in the result; None if there is none, or nothing was to do.
    """

    manifest: Manifest
    dst: Path
    linked: int
    copied: int
    kept: int
    seconds: float
    repeated_key: RepeatedKey | None = None


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    dst: str | Path,
    *,
    copy: bool = False,
    fresh: bool = False,
    progress: bool | None = None,
) -> MergeReport:
    """Join datasets into one, in the order given; a run that was interrupted is continued by the same call.

    Local shards become hard links: the same bytes under another name, which take no room and stay when the inputs are
    removed. Remote ones, and those of other file systems, are copied and compared with their checksums.

    Keys stay what they are, because no shard is rewritten. If one comes in several inputs, as with inputs that `pack`
    made, a warning names it: some readers refuse that. `reshard` gives each sample a key of its own.

    Example::

        wds_tools.merge(["shards/2024", "s3://bucket/2025"], "shards/both").manifest.samples  # 120000

    Args:
        datasets: Folders or URLs with a manifest, manifests, or patterns of indexed shards. Their classes must have the
            same numbers: one list of names, or lists that begin with each other.
        dst: Local folder for the shards, which are renamed ``shard-000000.tar`` and so on, indexes and manifest.
        copy: Copy local shards, too: for a dataset that shares no bytes with its inputs.
        fresh: Remove what an earlier pack or merge left in ``dst``, finished or not, and start over.
        progress: Show a bar on stderr; None does if it is a terminal.

    Returns:
        What the result is and how it was made.

    Raises:
        OptionError: One dataset given twice, classes that do not fit, or ``dst`` is an input or a URL.
        NotADatasetError: An input is no dataset.
        DestinationError: ``dst`` holds something else, is in use, or is full.
        ChecksumError: A shard that was copied is not what its manifest says.
        StoreError: Storage that does not answer.
    """
    started = time.monotonic()
    if is_url(os.fspath(dst)):
        raise OptionError(f"{dst} is no local folder; merge into one, then copy it as a whole")
    cache = CacheOptions.of(None, 1)  # every byte is read once: none is worth keeping
    sets = [open_shards(name, cache=cache) for name in datasets]
    dst = Path(dst)
    _check_inputs(sets, dst)
    classes = _common_classes(sets)
    source = _source(sets)
    if not fresh and (done := _finished(dst, source)) is not None:
        return MergeReport(done, dst, 0, 0, len(done.shards), time.monotonic() - started)
    try:
        with FolderDestination(dst) as destination:
            destination.start(source, fresh=fresh)
            job = _Job(join_sets(sets), destination, copy)
            try:
                repeated = find_repeated_key(job.shards)
                manifest = job.run(classes, _shuffled(sets), source, progress)
            except WdsToolsError:
                if not job.linked + job.copied + job.kept:
                    destination.roll_back(
                        ()
                    )  # nothing that a rerun could go on from: the folder is free for other inputs
                raise
    except OSError as error:
        if isinstance(error, WdsToolsError):
            raise
        raise DestinationError(
            f"cannot write to {dst}: {error.strerror or error}; finished shards are kept: mend that, then run the same "
            "command again, which goes on from there"
        ) from error
    if repeated is not None:
        _log.warning("%s", repeated)
    return MergeReport(manifest, dst, job.linked, job.copied, job.kept, time.monotonic() - started, repeated)


class _Job:
    """One run over all shards of all inputs."""

    def __init__(self, shards: ShardSet, destination: FolderDestination, copy: bool) -> None:
        self.shards = shards
        self.destination = destination
        self.copy = copy
        self.linked = self.copied = self.kept = 0

    def run(self, classes: tuple[str, ...], shuffled: bool, source: dict[str, Any], progress: bool | None) -> Manifest:
        """Bring the shards that are missing, then write the manifest."""
        finished = self.destination.finished_shards()
        self.kept = len(finished)
        show = sys.stderr.isatty() if progress is None else progress
        total = self.shards.manifest.bytes
        with tqdm(total=total, unit="B", unit_scale=True, disable=not show, file=sys.stderr) as bar:
            reports = []
            for number, entry in enumerate(self.shards.manifest.shards):
                report = finished.get(number)
                reports.append(report if report is not None else self._take(number, bar))
                if report is not None:
                    bar.update(entry.bytes)
        made = manifest_of(reports, classes=classes, shuffled=shuffled, source=source)
        self.destination.commit(made, ())
        return made

    def _take(self, number: int, bar: Any) -> ShardReport:
        """Bring one shard: first itself, then its index, then its report."""
        folder, name = self.destination.folder, shard_name(number)
        index = self.shards.index(number)  # verified, before a byte is copied
        place = self.shards.places[number]
        data = indexes.rename(place.store.read(place.entry.index), name=self.shards.shard_url(number), shard=name)
        if self._link(number, folder / name):
            self.linked += 1
            bar.update(place.entry.bytes)
        else:
            self._copy(number, folder / name, bar)
            self.copied += 1
        commit_bytes(folder / index_name(name), data)
        entry = ShardEntry(
            name=name,
            samples=place.entry.samples,
            bytes=place.entry.bytes,
            xxh3=place.entry.xxh3,
            index=index_name(name),
            index_bytes=len(data),
            index_xxh3=xxhash.xxh3_128_hexdigest(data),
        )
        report = ShardReport(number, entry, count_fields(index), image_stats(index), ())
        save_report(folder, report)
        return report

    def _link(self, number: int, path: Path) -> bool:
        """Give the shard a second name, if it is local and the file system can."""
        place = self.shards.places[number]
        if self.copy or not isinstance(place.store, LocalStore):
            return False
        place.store.fetch(place.entry.name, [], total_bytes=place.entry.bytes)  # it is there, and of its length
        path.unlink(missing_ok=True)
        try:
            # realpath, because a link to a link would be one that moves with its target
            os.link(os.path.realpath(Path(place.store.folder) / place.entry.name), path)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        sync_folder(path.parent)
        return True

    def _copy(self, number: int, path: Path, bar: Any) -> None:
        """Copy the shard, a part at a time, and compare it with its checksum before it gets its name."""
        entry, digest = self.shards.places[number].entry, xxhash.xxh3_128()
        with CommitFile(path) as file:
            for start in range(0, entry.bytes, COPY_BYTES):
                stop = min(start + COPY_BYTES, entry.bytes)
                (part,) = self.shards.fetch(number, [(start, stop)])
                digest.update(part)
                file.write(part)
                bar.update(stop - start)
            if digest.hexdigest() != entry.xxh3:
                raise ChecksumError(
                    f"its XXH3-128 is {digest.hexdigest()}, its manifest says {entry.xxh3}: "
                    "`wds-tools verify` lists the damage; copy it again, or pack it again",
                    shard=self.shards.shard_url(number),
                )


def _source(sets: Sequence[ShardSet]) -> dict[str, Any]:
    """Return what the manifest says of the inputs: what they are, and not where they were."""
    inputs = [
        {"fingerprint": shards.manifest.fingerprint, "shards": len(shards.places), "samples": shards.manifest.samples}
        for shards in sets
    ]
    return {"kind": SOURCE_KIND, "inputs": inputs}


def _shuffled(sets: Sequence[ShardSet]) -> bool:
    """Tell whether the result is in random order: two shuffled datasets, one behind the other, are not.

    A block then holds samples of one input only, which may be of other classes than the rest. The loader is told so,
    and takes a window that mixes them.
    """
    return len(sets) == 1 and sets[0].manifest.shuffled


def _check_inputs(sets: Sequence[ShardSet], dst: Path) -> None:
    if not sets:
        raise OptionError("no dataset was given; name at least one")
    seen: dict[str, str] = {}
    for shards in sets:
        before = seen.setdefault(shards.manifest.fingerprint, shards.name)
        if before is not shards.name:
            raise OptionError(
                f"{shards.name} and {before} are the same dataset (fingerprint {shards.manifest.fingerprint}), so each "
                "sample would come twice; name it once, and to draw from it more often use wds_tools.Mixture"
            )
        for folder in {place.store.folder for place in shards.places if isinstance(place.store, LocalStore)}:
            if dst.exists() and os.path.samefile(folder, dst):  # noqa: PTH121 - a string may be what it is
                raise OptionError(f"{dst} is one of the inputs; merge into another folder")


def _common_classes(sets: Sequence[ShardSet]) -> tuple[str, ...]:
    """Return the class names of the result: labels are stored in the shards, so each number must mean one class."""
    labelled = [shards for shards in sets if "cls" in shards.manifest.fields or shards.manifest.classes]
    if not labelled:
        return ()
    longest = max(labelled, key=lambda shards: len(shards.manifest.classes))
    names = longest.manifest.classes
    for shards in labelled:
        own = shards.manifest.classes
        if own == names[: len(own)] and bool(own) == bool(names):
            continue
        raise OptionError(f"{_difference(shards, longest)}: {_MEND_CLASSES}")
    return names


_MEND_CLASSES = (
    "labels are numbers inside the shards, so the classes of all inputs must have the same names in the same order; "
    "pack them again with one `--classes FILE` that names all classes (`wds-tools unpack` gives the files back)"
)


def _difference(one: ShardSet, other: ShardSet) -> str:
    own, names = one.manifest.classes, other.manifest.classes
    if not own:
        return f"{one.name} has labels without class names, {other.name} names {len(names)} classes"
    number = next(number for number, name in enumerate(own) if name != names[number])
    return f"class {number} is {own[number]!r} in {one.name} and {names[number]!r} in {other.name}"


def _finished(dst: Path, source: dict[str, Any]) -> Manifest | None:
    """Return the manifest if ``dst`` is the result already."""
    old = read_manifest(dst)
    if old is None:
        return None
    if old.source != source:
        raise DestinationError(
            f"{dst} holds another dataset, of {old.samples:,} samples: choose another folder, or merge with --fresh "
            "(fresh=True) to replace it"
        )
    lost = [entry.name for entry in old.shards if not entry_exists(dst, entry)]
    if lost:
        raise DestinationError(
            f"{dst} is this dataset, but {len(lost)} of its {len(old.shards)} shards or their indexes are gone or have "
            "another length: merge with --fresh (fresh=True) to make it again",
            shard=lost[0],
        )
    FolderDestination(dst).remove_leftover_work()
    return old
