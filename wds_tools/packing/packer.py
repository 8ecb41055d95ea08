"""Pack images into shards: parallel, resumable, and the same bytes every time; the manifest is last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wds_tools.errors import DestinationError, OptionError
from wds_tools.format.manifest import Manifest
from wds_tools.options import parse_bytes
from wds_tools.packing.config import Engine, PackOptions, class_names
from wds_tools.packing.destination import Destination
from wds_tools.packing.estimate import plan_listing, process_count
from wds_tools.packing.plan import Plan
from wds_tools.packing.remote_destination import open_destination, place_of
from wds_tools.packing.run import Bar, PackJob, list_inputs, refuse_skipped, strict_error
from wds_tools.packing.transcode import ImageOptions
from wds_tools.sources.base import Listing, Skip, Source
from wds_tools.sources.detect import open_source
from wds_tools.terminal import shows_progress


@dataclass(frozen=True, slots=True)
class PackReport:
    """What became of a folder.

    Attributes:
        manifest: Of the dataset; of what is there so far, for a task of several.
        dst: Its folder, or its URL as text.
        packed: Number of samples in it.
        skipped: (path, reason) of each file that was not packed, sorted by path.
        kept: Number of shards that an earlier run had finished; all of them if there was nothing to do.
        seconds: Time that it took.
        complete: The dataset is; False for a task of several.
    """

    manifest: Manifest
    dst: Path | str
    packed: int
    skipped: tuple[Skip, ...]
    kept: int
    seconds: float
    complete: bool = True


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
    shuffle: bool = True,
    task: tuple[int, int] | None = None,
    finish: bool = False,
    engine: Engine = "local",
    progress: bool | None = None,
) -> PackReport:
    """Pack images into WebDataset shards: a folder of them, a table, HDF5, Parquet, and more (docs/options.md).

    A run that was interrupted is continued by the same call. The bytes written depend on the files and on
    ``shard_bytes``, ``seed``, ``classes`` and what becomes of images only (and there, on the versions of wds_tools and
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
        workers: Processes; None takes as many as pay, up to the cores there are, or if images are kept, which takes
            two cores each, to half of them and 8. 1 packs in this process.
        classes: Class names by number, or a text file with one per line; None takes the sorted class folders.
        strict: A file that cannot be packed is an error, instead of a line in ``skipped.jsonl``. Nothing is packed
            then; the error names the files, the first ten of many, and warnings before it name all.
        fresh: Remove what an earlier pack left in ``dst``, finished or not, and start over.
        images: ``keep`` the files' bytes; ``crop-ready``: JPEGs get restart markers, losslessly, so that a crop is
            decoded without the rest; ``resize``: JPEGs of at most that size; ``raw``: decoded, as ``npy``. None takes
            ``resize`` if a size is given, else ``crop-ready``, or ``keep`` where the compiled module is missing.
        resize: Pixels of the shorter side, or "WIDTHxHEIGHT", or (height, width).
        quality: Of resized JPEGs, 90 if not given.
        verify_pixels: Prove each crop-ready JPEG by decoding it and its original; one that differs is kept as it is.
        spool: Local folder in which shards wait until they are uploaded, at most two more than workers; None takes one
            in the user's cache directory. For URLs only.
        shuffle: Put the samples in random order, once; else they stay in that of the source.
        task: (index, count): pack every count-th shard only, as one of several that share ``dst``, such as those of a
            Slurm array. A last call with ``finish`` completes the dataset.
        finish: Pack nothing: complete what the tasks have packed.
        engine: ``local`` processes, or ``ray``: tasks of Ray core, with ``dst`` shared by all its machines.
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
    options = PackOptions(
        kind=kind,
        columns=columns,
        shard_bytes=parse_bytes(shard_bytes, what="shard_bytes"),
        seed=seed,
        workers=workers,
        classes=class_names(classes),
        strict=strict,
        fresh=fresh,
        images=ImageOptions(images=images, resize=resize, quality=quality, verify_pixels=verify_pixels),
        spool=None if spool is None else Path(spool),
        shuffle=shuffle,
        task=task,
        finish=finish,
        engine=engine,
        progress=progress,
    )
    place = place_of(dst)
    if engine == "ray" and isinstance(place, str):
        raise OptionError(f"engine='ray' packs into a folder that its machines share, and {place} is none")
    source = open_input(src, place, options)
    report = pack_listing(source, list_inputs(source, options.progress), place, options)
    return replace(report, seconds=time.monotonic() - started)


def open_input(src: Any, dst: Path | str, options: PackOptions) -> Source:
    """Return the source at ``src``, in which ``dst`` must not lie, and which so many workers can read."""
    for folder in (dst, options.spool):
        if isinstance(folder, Path):
            _refuse_inside(src, folder)
    source = open_source(src, kind=options.kind, classes=options.classes, columns=options.columns)
    if source.in_process and (options.workers or 1) > 1:
        raise OptionError(
            f"workers={options.workers}, but an object is packed in the process that made it: leave workers out"
        )
    return source


def pack_listing(source: Source, listing: Listing, dst: Path | str, options: PackOptions) -> PackReport:
    """Pack what a listing names, all of its source or a part."""
    started = time.monotonic()
    refuse_skipped([(source, listing)], options)
    plan = plan_listing(source, listing, options)
    destination = open_destination(
        dst, spool=options.spool, progress=shows_progress(options.progress), task=options.task
    )
    if not options.fresh and (done := _finished(destination, plan, strict=options.strict)) is not None:
        skipped = destination.skipped()
        return PackReport(done, dst, done.samples, skipped, len(done.shards), time.monotonic() - started)
    with destination, Bar(len(plan.inputs), options.progress) as bar:
        job = PackJob(plan, source, destination, process_count(plan, source, options), bar, options)
        manifest, skipped = job.run(listing.skipped)
    return PackReport(
        manifest=manifest,
        dst=dst,
        packed=manifest.samples,
        skipped=skipped,
        kept=len(job.kept),
        seconds=time.monotonic() - started,
        complete=options.task is None,
    )


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
        raise strict_error(skipped)
    return manifest


def _refuse_inside(src: Any, dst: Path) -> None:
    if not isinstance(src, (str, Path)):
        return
    outer, inner = Path(src).resolve(), dst.resolve()
    if Path(src).is_dir() and (inner == outer or outer in inner.parents):
        raise DestinationError(
            f"the destination {dst} lies inside the source {src}, so shards would become input: choose a folder outside"
        )
