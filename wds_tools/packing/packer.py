"""`pack`: images become shards, in parallel. Runs are resumable and deterministic; the manifest is written last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wds_tools.errors import DestinationError, OptionError
from wds_tools.format.account import Account
from wds_tools.format.class_notes import note_on_other_numbers
from wds_tools.format.manifest import Manifest
from wds_tools.format.recorded_source import has_all, is_beginning
from wds_tools.options import RemoteOptions
from wds_tools.packing.config import PackOptions
from wds_tools.packing.destination import (
    Destination,
    check_startable,
    check_times,
    empty_manifest,
    how_to_start_over,
    later_files,
    other_splits,
)
from wds_tools.packing.estimate import nothing_written, plan_listing, process_count
from wds_tools.packing.plan import Plan
from wds_tools.packing.planning import one_task_plans
from wds_tools.packing.preview import Preview, account_lines, preview, show_account
from wds_tools.packing.remote_destination import open_destination, parse_destination
from wds_tools.packing.run import PackJob, ProgressBar, bad_files_error, check_strict, list_inputs, show_notes
from wds_tools.packing.stored_plan import StoredPlan, parse_head, request_of, restore, write
from wds_tools.signatures import takes
from wds_tools.sources.base import Listing, Skip, Source
from wds_tools.sources.detect import open_source, without_file_scheme
from wds_tools.storage import is_url
from wds_tools.terminal import shows_progress

_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of a packing run.

    Attributes:
        manifest: Manifest of the dataset. With ``task``, it covers the shards that this task has finished so far.
        dst: Folder of the dataset as a `Path`, or its URL as text.
        packed: Number of samples in the dataset. For `append`, the number of new samples.
        skipped: (path, reason) of each file that was not packed, sorted by path.
        kept: Number of shards that an earlier run had finished; all of them if there was nothing to do.
        seconds: Duration of the run in seconds.
        account: What the source had, and how each part was used.
        complete: Whether the dataset is complete. It is False for one of several tasks, and with ``dry_run``.
        preview: With ``dry_run``, what would be packed, with some samples: ``print(report.preview)``.
    """

    manifest: Manifest
    dst: Path | str
    packed: int
    skipped: tuple[Skip, ...]
    kept: int
    seconds: float
    account: Account
    complete: bool = True
    preview: Preview | None = None


@takes(PackOptions)
def pack(options: PackOptions) -> PackReport:  # noqa: D417 - callers pass the fields of the options
    """Pack a source of images into WebDataset shards.

    The source can be a folder of images, a table, HDF5, Parquet and more (see docs/sources.md). To continue an
    interrupted run, repeat the same call. The bytes written depend only on the input and on ``shard_bytes``,
    ``seed``, ``shuffle``, ``classes`` and the image options. Where images are changed, the versions of wds_tools and
    Pillow matter too.

    Args:
        src: The source. In a folder, images in ``<class>/**`` are labelled with their class; images directly in the
            folder get no labels. Other formats are given as a local path. A folder of images, tar archives and
            WebDataset shards may also be at a URL. An object with ``len()`` and ``[]``,
            such as a torch ``Dataset``, is packed in this process; so is a stream of Hugging Face's ``datasets``,
            ``load_dataset(..., streaming=True)["train"]``, which is read twice and not stored in between.
        dst: Folder for shards, indexes and manifest, created if missing. Or a URL such as "s3://bucket/train": each
            shard is uploaded when it is finished, and the manifest last.
        kind: Format of ``src``, such as "hdf5"; detected by default.
        columns: Names of the columns or arrays to use as ``image`` and ``label``. Common names are recognised.
        label_type: "name" or "number": how to read labels that could be either. By default whole numbers, even if
            written as text, are class numbers, and other texts are names; both together are an error.
        label_separator: Separator of the labels in a text, such as " " or ",". By default
            a text is one label. Samples with several labels, in texts or in lists, get a field ``labels.json``, a list
            of class numbers, instead of ``cls``; load it with `MultiHot`.
        encoding: Encoding of a table in CSV or JSON, such as "latin-1" or "cp1252". By default UTF-8, or UTF-16 or
            UTF-32 if there is a byte order mark.
        shard_bytes: Maximum size of a shard in bytes, or as text such as "4MB"; headers and padding count. At least
            10,240. Only a shard with a single sample can be larger. Where images are changed, their sizes are
            estimated, so the limit is approximate.
        seed: Seed of the one-time shuffle, 0 to 2**63 - 1.
        workers: Number of worker processes; 1 packs in this process. By default it is chosen from the size of the
            input: at most one per core, or with ``images="keep"`` at most one per two cores and 8 in total.
        classes: Class names by number, or the path of a text file with one name per line. By default the names of
            the class folders, sorted. If the source has its own names, and another number for one of these, names
            are matched and labels get new numbers; otherwise these names replace the names of the source.
        strict: Raise an error if any file cannot be packed, and pack nothing. The error names the first ten such
            files; if there are more, warnings before it name all of them. By default, such files are skipped and
            listed in ``skipped.jsonl``.
        fresh: Remove what an earlier pack left in ``dst``, finished or not, and start over.
        dry_run: List the source and read ten samples, but write nothing. The report has the samples as ``preview``; its
            manifest has no shards. Errors are the same as in a run, except for images that cannot be read.
        images: What happens to images. ``keep`` stores the bytes of the files. ``crop-ready`` adds restart markers to
            JPEGs without changing a pixel, so that a crop can be decoded without the rest of the image. ``resize``
            stores JPEGs of the size ``resize``. ``raw`` stores decoded pixels as ``npy``. The default is ``resize``
            if a size is given, otherwise ``crop-ready``, or ``keep`` if the compiled module is missing.
        resize: New size of the images, for "resize" and "raw": pixels of the shorter side, "WIDTHxHEIGHT", or
            (height, width). Given only the shorter side, images are never enlarged.
        quality: JPEG quality of resized images, 1 to 100; 90 by default.
        verify_pixels: Decode each crop-ready JPEG and its original. If a pixel differs, the original is kept.
        spool: Local folder for shards that wait for upload, at most two more than workers. By default a folder in
            the user's cache directory. Only for URLs.
        shuffle: Store the samples in random order. If False, they keep the order of the source.
        first: Pack only this number of samples, the first ones in stored order, as a dataset to look at. A later call
            without ``first``, or with a larger number, continues: it keeps the finished shards. Until it ends, the
            dataset is incomplete. Only for local folders.
        task: (index, count) with a zero-based index: pack only every count-th shard, as one of several tasks that
            share ``dst``, a folder or a URL, such as the tasks of a Slurm array. A last call with ``finish`` completes
            the dataset.
        finish: Pack nothing; complete the dataset from the shards that the tasks have packed.
        engine: ``local`` for processes on this machine, or ``ray`` for tasks of Ray Core on all machines of a cluster.
            All of them must have this package and reach ``src`` and ``dst``: URLs, or folders that they share.
        num_cpus: CPUs that Ray reserves for a task. A task packs one shard, and encodes this number of images at a
            time.
        progress: Whether to show a progress bar on stderr; by default, only if stderr is a terminal.
        storage_options: Options for the URLs of ``src`` and ``dst``, by the names of fsspec, such as
            ``{"anon": True}``, or by scheme, as ``{"s3": {"anon": True}}``. They are not saved, so repeat them to
            continue a run.

    Returns:
        A report: the manifest, and which files were skipped and why.

    Raises:
        OptionError: An invalid argument.
        LabelError: Invalid labels, or labels that are not among ``classes``.
        SourceError: ``src`` contains nothing to pack; or, with ``strict``, a file cannot be packed.
        DestinationError: ``dst`` contains something else, is in use by another packer, or its disk is full.
        StoreError: The source fails or changes while it is packed; or the storage at a URL does not respond, or the
            package for it is not installed.
        WorkerError: A worker process died.
    """
    started = time.monotonic()
    location = parse_destination(options.dst)
    if options.first is not None and isinstance(location, str):
        raise OptionError(f"first={options.first} needs a local folder to look at; {location} is a URL")
    with one_task_plans(location, options) as written:
        source, listing, stored = list_or_restore(location, options)
        for path, theirs in other_splits(location).items() if isinstance(location, Path) else ():
            show_notes(source, note_on_other_numbers(path, theirs, listing.label_classes))
        report = pack_listing(source, listing, location, options, whole=True, stored=stored, written=written)
    return replace(report, seconds=time.monotonic() - started)


def list_or_restore(location: Path | str, options: PackOptions) -> tuple[Source, Listing, StoredPlan | None]:
    """Return a source and its inputs: from the plan of an earlier run of the same pack, otherwise listed now."""
    check_place(options.src, location, options)
    stored = None if options.fresh or options.dry_run else _stored(location, options)
    lines: Sequence[str]
    if stored is None:
        source = open_input(options.src, location, options)
        listing = list_inputs(source, options.progress)
        lines = () if options.dry_run else account_lines(source, listing)
    else:
        source, listing, lines = stored.source, stored.listing, stored.lines
    if not options.dry_run:
        show_account(lines, progress=options.progress)
    return source, listing, stored


def _stored(location: Path | str, options: PackOptions) -> StoredPlan | None:
    """Return the stored plan, if the destination has one of these options, and the source is as it was listed."""
    request = request_of(options.src, options)
    destination = _open(location, options)
    if request is None or (files := destination.read_listing()) is None:
        return None
    head = parse_head(files[0], request, destination.read_plan())
    if head is None:
        return None
    with nothing_written():
        stored = restore(head, files[1], options.src, options, destination.name, compare=options.task is None)
    if stored is not None and stored.check is not None and stored.check.is_done:
        check_times(destination, stored.plan, stored.source)
    return stored


def _open(location: Path | str, options: PackOptions, *, cache: RemoteOptions | None = None) -> Destination:
    return open_destination(
        location,
        spool=options.spool_folder,
        progress=shows_progress(options.progress),
        task=options.task,
        remote=options.remote,
        cache=cache,
    )


def open_input(src: Any, dst: Path | str, options: PackOptions) -> Source:
    """Open ``src``."""
    check_place(src, dst, options)
    with nothing_written():
        source = open_source(src, kind=options.kind, options=options.source)
    if source.in_process and ((options.workers or 1) > 1 or options.engine != "local"):
        given = f"workers={options.workers}" if options.engine == "local" else f"engine={options.engine!r}"
        raise OptionError(f"{given}, but a Python object can be packed only in this process: omit {given}")
    return source


def check_place(src: Any, dst: Path | str, options: PackOptions) -> None:
    """Check that nothing would be written into the source."""
    src = without_file_scheme(src)
    if isinstance(src, str) and isinstance(dst, str) and f"{dst}/".startswith(f"{src.rstrip('/')}/"):
        raise _inside(src, dst)
    for folder in (dst, options.spool_folder):
        if isinstance(folder, Path):
            _refuse_inside(src, folder)


def pack_listing(
    source: Source,
    listing: Listing,
    dst: Path | str,
    options: PackOptions,
    *,
    deep: bool | None = None,
    planned: Callable[[Plan], object] | None = None,
    cache: RemoteOptions | None = None,
    whole: bool = False,
    stored: StoredPlan | None = None,
    written: Callable[[], object] | None = None,
) -> PackReport:
    """Pack the inputs of a listing, which may be only a part of the source.

    Args:
        source: The source.
        listing: The inputs.
        dst: From `parse_destination`.
        options: The options of `pack`.
        deep: See `plan_listing`.
        planned: Called with the plan, before anything is written.
        cache: See `open_destination`.
        whole: Whether these are all inputs of the source, so that the plan is stored for later runs.
        stored: The plan of an earlier run. Without it, the inputs are planned now.
        written: Called when the plan is written, before any shard.
    """
    started = time.monotonic()
    check_strict([(source, listing)], options)
    complete = plan_listing(source, listing, options, deep=deep) if stored is None else stored.plan
    plan = complete.beginning(options.first)
    if planned is not None:
        planned(plan)
    destination = _open(dst, options, cache=cache)
    if not options.fresh and stored is None:
        check_times(destination, plan, source)
    if options.dry_run:
        check_startable(destination, plan.source, fresh=options.fresh)
        return PackReport(
            manifest=empty_manifest(plan),
            dst=dst,
            packed=0,
            skipped=tuple(listing.skipped),
            kept=0,
            seconds=time.monotonic() - started,
            account=listing.account,
            complete=False,
            preview=preview(source, listing),
        )
    if not options.fresh and (old := _complete_dataset(destination, plan, strict=options.strict)) is not None:
        if later := later_files(destination, plan, source):
            _log.warning(
                "%s: the dataset is complete, but %s: if they have changed, %s to replace it",
                destination.name,
                later,
                how_to_start_over(options.task),
            )
        skipped = destination.skipped()
        account = old.account or listing.account
        return PackReport(old, dst, old.samples, skipped, len(old.shards), time.monotonic() - started, account)
    ranges = [plan.range_of(shard) for shard in plan.numbers if options.finish or options.packs(shard)]
    total = sum(stop - start for start, stop in ranges)
    with destination, ProgressBar(total, options.progress, dataset=destination.name) as bar:
        job = PackJob(plan, source, destination, process_count(plan, source, options), bar, options)
        if whole and stored is None and (request := request_of(options.src, options)) and source.state() is not None:
            lines = account_lines(source, listing)
            job.listed = lambda file: write(file, request, source, listing, complete, lines)
        if stored is not None:
            job.check, job.is_restored = stored.check, True
        job.written = written
        manifest, skipped = job.run(listing)
    return PackReport(
        manifest=manifest,
        dst=dst,
        packed=manifest.samples,
        skipped=skipped,
        kept=len(job.kept),
        seconds=time.monotonic() - started,
        account=manifest.account or listing.account,
        complete=options.task is None,
    )


def _complete_dataset(destination: Destination, plan: Plan, *, strict: bool) -> Manifest | None:
    """Return the manifest if the destination already holds the complete dataset of this plan."""
    manifest = destination.manifest()
    if manifest is None or not has_all(manifest.source, plan.packed_source):
        return None
    if missing := destination.missing_shards(manifest.shards):
        again = how_to_start_over(destination.task)
        raise DestinationError(
            f"{destination.name} is a dataset of these files, but {len(missing)} of its {len(manifest.shards)} "
            f"shards or indexes are missing or have the wrong length: {again} to replace it",
            shard=missing[0].name,
        )
    if not is_beginning(manifest.source):
        destination.remove_leftover_work()
    if strict and (skipped := destination.skipped()):
        raise bad_files_error(skipped, strict=True)
    return manifest


def _refuse_inside(src: Any, dst: Path) -> None:
    if not isinstance(src, (str, Path)) or is_url(str(src)):
        return
    outer, inner = Path(src).resolve(), dst.resolve()
    if Path(src).is_dir() and (inner == outer or outer in inner.parents):
        raise _inside(src, dst)


def _inside(src: object, dst: object) -> OptionError:
    return OptionError(
        f"the destination {dst} is inside the source {src}, so shards would become input: choose a folder outside"
    )
