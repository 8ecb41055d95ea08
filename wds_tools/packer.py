"""Pack images into shards: parallel, resumable, and the same bytes every time; the manifest is last."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from wds_tools.errors import DestinationError, OptionError, SourceError, StoreError, WdsToolsError
from wds_tools.manifest import Manifest
from wds_tools.options import available_cores
from wds_tools.packing import Packing
from wds_tools.packplan import Plan, make_plan
from wds_tools.packprobe import head_kind, planned_bytes, process_count
from wds_tools.packstate import Destination, ShardReport
from wds_tools.packwork import ShardTask, run_tasks
from wds_tools.publish import open_destination, place_of
from wds_tools.sources.base import Listing, Skip, Source
from wds_tools.sources.detect import open_source
from wds_tools.transcode import Policy
from wds_tools.writer import merge_stats

_NAMED_FILES = 3


@dataclass(frozen=True, slots=True)
class PackReport:
    """What became of a folder.

    Attributes:
        manifest: Of the dataset.
        dst: Its folder, or its URL as text.
        packed: Number of samples in it.
        skipped: (path, reason) of each file that was not packed, sorted by path.
        kept: Number of shards that an earlier run had finished; all of them if there was nothing to do.
        seconds: Time that it took.
    """

    manifest: Manifest
    dst: Path | str
    packed: int
    skipped: tuple[Skip, ...]
    kept: int
    seconds: float


def pack(
    src: Any,
    dst: str | Path,
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    shard_bytes: int | str = "1GB",
    seed: int = 0,
    workers: int | None = None,
    classes: str | Path | Sequence[str] | None = None,
    strict: bool = False,
    fresh: bool = False,
    images: str | None = None,
    resize: int | str | tuple[int, int] | None = None,
    quality: int | None = None,
    verify_pixels: bool = False,
    spool: str | Path | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack images into WebDataset shards: a folder of them, a table, HDF5, Parquet, and more (docs/packing.md).

    A run that was interrupted is continued by the same call. The bytes written depend on the files and on
    ``shard_bytes``, ``seed``, ``classes`` and what becomes of images only (and there, on the version of jpegtran or
    Pillow).

    Args:
        src: Folder with images in ``<class>/**``, or with images alone, which then get no labels; or another source;
            or an object with ``len()`` and ``[]``, such as a torch ``Dataset``, which is packed in this process.
        dst: Folder for shards, indexes and manifest, made if it is not there; or a URL such as "s3://bucket/train", to
            which each shard is uploaded when it is finished, and the manifest last.
        kind: What ``src`` is, such as "hdf5"; None looks at what is there.
        columns: Names of the columns or arrays to take as ``image`` and ``label``, where theirs are not known.
        shard_bytes: Largest shard, headers and padding counted, in bytes or as "4MB"; exceeded only by a sample
            that is larger alone. Where images change, their sizes are estimated, so it holds about.
        seed: Of the random order that the samples are put in.
        workers: Processes; None takes as many as pay, up to the cores there are, and to 8 if images are kept. 1
            packs in this process.
        classes: Class names by number, or a text file with one per line; None takes the sorted class folders.
        strict: A file that cannot be packed is an error, instead of a line in ``skipped.jsonl``.
        fresh: Remove what an earlier pack left in ``dst``, finished or not, and start over.
        images: ``keep`` the files' bytes; ``crop-ready``: JPEGs get restart markers, losslessly, so that a crop is
            decoded without the rest; ``resize``: JPEGs of at most that size; ``raw``: decoded, as ``npy``. None takes
            ``resize`` if a size is given, else ``crop-ready``, or ``keep`` where jpegtran is not installed.
        resize: Pixels of the shorter side, or "WIDTHxHEIGHT", or (height, width).
        quality: Of resized JPEGs, 90 if not given.
        verify_pixels: Prove each crop-ready JPEG by decoding it and its original; one that differs is kept as it is.
        spool: Local folder in which shards wait until they are uploaded, at most two more than workers; None takes one
            in the user's cache directory. For URLs only.
        progress: Show a bar on stderr; None does if it is a terminal.

    Returns:
        What was packed and what was not.

    Raises:
        OptionError: An argument that cannot be.
        SourceError: Nothing to pack in ``src``, or a file that cannot be packed and ``strict``.
        DestinationError: ``dst`` holds something else, is in use by another packer, or is full.
        StoreError: The storage at a URL does not answer, or a package for it is not installed.
        WorkerError: A worker process died.
    """
    started = time.monotonic()
    packing = Packing.of(
        kind=kind,
        columns=columns,
        shard_bytes=shard_bytes,
        seed=seed,
        workers=workers,
        classes=classes,
        strict=strict,
        fresh=fresh,
        images=images,
        resize=resize,
        quality=quality,
        verify_pixels=verify_pixels,
        spool=spool,
        progress=progress,
    )
    place = place_of(dst)
    source = open_input(src, place, packing)
    report = pack_listing(source, source.scan(), place, packing)
    return replace(report, seconds=time.monotonic() - started)


def open_input(src: Any, dst: Path | str, packing: Packing) -> Source:
    """Return the source at ``src``, in which ``dst`` must not lie, and which so many workers can read."""
    for folder in (dst, packing.spool):
        if isinstance(folder, Path):
            _refuse_inside(src, folder)
    source = open_source(src, kind=packing.kind, classes=packing.options.classes, columns=packing.columns)
    if source.in_process and (packing.workers or 1) > 1:
        raise OptionError(
            f"workers={packing.workers}, but an object is packed in the process that made it: leave workers out"
        )
    return source


def pack_listing(source: Source, listing: Listing, dst: Path | str, packing: Packing) -> PackReport:
    """Pack what a listing names, all of its source or a part."""
    started = time.monotonic()
    options, policy, strict = packing.options, packing.policy, packing.options.strict
    if strict and listing.skipped:
        raise _strict_error(listing.skipped)
    plan = make_plan(
        listing,
        kind=source.kind,
        seed=options.seed,
        shard_bytes=options.shard_bytes,
        kind_of=head_kind(source, policy),
        images=str(policy),
        image_bytes=planned_bytes(listing.inputs, source, policy, seed=options.seed),
    )
    destination = open_destination(dst, spool=packing.spool, progress=_shows(packing.progress))
    if not packing.fresh and (done := _finished(destination, plan, strict=strict)) is not None:
        skipped = destination.skipped()
        return PackReport(done, dst, done.samples, skipped, len(done.shards), time.monotonic() - started)
    with destination, _Bar(len(plan.inputs), packing.progress) as bar:
        processes = 1 if source.in_process else packing.workers or process_count(plan, policy)
        job = _Job(plan, source, destination, processes, bar, policy)
        manifest, skipped = job.run(listing.skipped, strict=strict, fresh=packing.fresh)
    return PackReport(manifest, dst, manifest.samples, skipped, len(job.kept), time.monotonic() - started)


class _Job:
    """One run of the packer over a plan."""

    def __init__(
        self, plan: Plan, source: Source, destination: Destination, processes: int, bar: _Bar, policy: Policy
    ) -> None:
        self.plan = plan
        self.source = source
        self.destination = destination
        self.processes = processes
        self.bar = bar
        self.policy = policy
        self.kept: dict[int, ShardReport] = {}
        self.made: list[ShardReport] = []

    def run(self, skipped: Iterable[Skip], *, strict: bool, fresh: bool) -> tuple[Manifest, tuple[Skip, ...]]:
        """Pack the shards that are missing and complete the dataset."""
        try:
            self.destination.claim(self.plan.source, fresh=fresh)
            self._pack_missing()
            reports = sorted([*self.kept.values(), *self.made], key=lambda report: report.number)
            skipped = _sorted([*skipped, *(skip for report in reports for skip in report.skipped)])
            manifest = self._manifest(reports)
            if (strict and skipped) or not manifest.shards:
                self.destination.undo(self.made)
                raise _strict_error(skipped)
            self.destination.commit(manifest, skipped)
        except OSError as error:
            if isinstance(error, WdsToolsError) and error.shard is None and not isinstance(error, StoreError):
                raise
            raise self._explain(error) from error
        return manifest, tuple(skipped)

    def _pack_missing(self) -> None:
        self.kept = self.destination.finished_shards()
        self.bar.start_at(sum(stop - start for start, stop in map(self._range, self.kept)))
        missing = [number for number in range(self.plan.shards) if number not in self.kept]
        processes = min(self.processes, len(missing))
        # Images that change take a core each; cores that have no shard of their own help with those there are.
        threads = 1 if self.policy.images == "keep" else max(1, available_cores() // max(1, processes))
        tasks = (self._task(number, threads) for number in missing)
        bounded = self.destination.bounded
        with closing(run_tasks(tasks, processes=processes, advance=self.bar.advance, bounded=bounded)) as reports:
            for report in reports:
                self.made.append(report)
                self.destination.accept(report)

    def _range(self, number: int) -> tuple[int, int]:
        return self.plan.boundaries[number], self.plan.boundaries[number + 1]

    def _task(self, number: int, threads: int) -> ShardTask:
        start, stop = self._range(number)
        inputs = tuple(self.plan.inputs[start:stop])
        return ShardTask(
            number, start, inputs, self.plan.classes, self.source, self.destination.folder, self.policy, threads
        )

    def _manifest(self, reports: Sequence[ShardReport]) -> Manifest:
        fields: Counter[str] = Counter()
        for report in reports:
            fields.update(report.fields)
        return Manifest(
            shards=tuple(report.entry for report in reports if report.entry is not None),
            fields=dict(fields),
            classes=self.plan.classes,
            shuffled=True,
            images=merge_stats(report.images for report in reports),
            source=self.plan.source,
        )

    def _explain(self, error: OSError) -> DestinationError:
        """Say what is kept when the disk is full or fails."""
        shard, reason = (
            (error.shard, str(error.args[0]))
            if isinstance(error, DestinationError)
            else (None, error.strerror or str(error))
        )
        remedy = "make room" if reason == os.strerror(errno.ENOSPC) else "mend that"
        return DestinationError(
            f"cannot be written to {self._where(error)}: {reason}; "
            f"{len(self.kept) + len(self.made)} of {self.plan.shards} shards are finished and kept: "
            f"{remedy}, then run the same command again, which goes on from there",
            shard=shard,
        )

    def _where(self, error: OSError) -> str:
        """A full disk is that of the folder, even where shards only wait in it."""
        return self.destination.name if isinstance(error, StoreError) else str(self.destination.folder)


class _Bar:
    """Images, images/s, MB/s and time left, on stderr."""

    def __init__(self, total: int, show: bool | None) -> None:
        self._bar = tqdm(total=total, unit=" images", unit_scale=False, disable=not _shows(show), file=sys.stderr)
        self._bytes = 0
        self._started = time.monotonic()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def start_at(self, samples: int) -> None:
        """Begin with samples that an earlier run has packed, which do not count as speed."""
        self._bar.initial = self._bar.n = samples

    def advance(self, samples: int, size: int) -> None:
        """Count samples and bytes that are done."""
        if self._bar.disable:
            return
        self._bytes += size
        rate = self._bytes / max(1e-9, time.monotonic() - self._started)
        self._bar.set_postfix_str(f"{rate / 1e6:.1f} MB/s", refresh=False)
        self._bar.update(samples)


def _shows(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _finished(destination: Destination, plan: Plan, *, strict: bool) -> Manifest | None:
    """Return the manifest if the destination holds just what the plan would make."""
    manifest = destination.manifest()
    if manifest is None or manifest.source != plan.source:
        return None
    if lost := destination.lost(manifest.shards):
        raise DestinationError(
            f"{destination.name} is a dataset of these files, but {len(lost)} of its {len(manifest.shards)} "
            "shards or their indexes are gone or have another length: pack with --fresh (fresh=True) to make it again",
            shard=lost[0].name,
        )
    destination.tidy()
    if strict and (skipped := destination.skipped()):
        raise _strict_error(skipped)
    return manifest


def _refuse_inside(src: Any, dst: Path) -> None:
    if not isinstance(src, (str, Path)):
        return
    outer, inner = Path(src).resolve(), dst.resolve()
    if Path(src).is_dir() and (inner == outer or outer in inner.parents):
        raise DestinationError(
            f"the destination {dst} lies inside the source {src}, so shards would become input: choose a folder outside"
        )


def _strict_error(skipped: Sequence[Skip]) -> SourceError:
    named = "; ".join(f"{skip.path!r} {skip.reason}" for skip in skipped[:_NAMED_FILES])
    more = f"; and {len(skipped) - _NAMED_FILES:,} more" if len(skipped) > _NAMED_FILES else ""
    files = "file" if len(skipped) == 1 else "files"
    return SourceError(
        f"{len(skipped):,} {files} cannot be packed: {named}{more}. Mend or remove them, or pack without "
        "strict to leave them out"
    )


def _sorted(skipped: Iterable[Skip]) -> list[Skip]:
    return sorted(skipped, key=lambda skip: skip.path.encode("utf-8", "surrogateescape"))
