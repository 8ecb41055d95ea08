"""`append` adds samples to a dataset; `reshard` writes a dataset again, in other shards."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wds_tools.errors import DestinationError, LabelError, NotADatasetError, OptionError, SourceError
from wds_tools.format.class_notes import note_on_other_numbers, notes_on_similar
from wds_tools.format.field_classes import DatasetClasses, check_same
from wds_tools.format.label import Classes, LabelType, quoted
from wds_tools.format.label_lists import LABELS
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.format.recorded_source import is_source
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.options import available_cores
from wds_tools.packing.config import AppendOptions, PackOptions
from wds_tools.packing.destination import (
    APPENDED,
    FolderDestination,
    check_times,
    later_files,
    other_splits,
    read_manifest,
    read_skipped,
)
from wds_tools.packing.engines import EngineName
from wds_tools.packing.estimate import plan_listing, process_count
from wds_tools.packing.in_place import make_crop_ready
from wds_tools.packing.packer import PackReport, open_input, pack
from wds_tools.packing.plan import Plan
from wds_tools.packing.preview import account_lines, show_account
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.packing.repeated_inputs import without_repeated
from wds_tools.packing.run import PackJob, ProgressBar, check_strict, list_inputs, show_notes
from wds_tools.packing.worker import ShardTask
from wds_tools.reading.names import why_not_a_dataset
from wds_tools.reading.opening import join_sets, open_shards
from wds_tools.reading.shardset import ShardSet, classes_of
from wds_tools.signatures import takes
from wds_tools.sources.base import Listing, Source
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.inputs import Inputs
from wds_tools.sources.webdataset import WebDatasetSource
from wds_tools.storage.lock import why_unfinished

_FOLDERS = ("folder", "tar", "zip")  # formats in which folders are classes
_OF_LABELS = ("label_type", "label_separator")
_log = logging.getLogger("wds_tools")


@takes(AppendOptions)
def append(given: AppendOptions) -> PackReport:  # noqa: D417 - callers pass the fields of the options
    """Add samples to a dataset, in new shards after the existing ones.

    The dataset can be read at any time: the new shards become part of it at the end, when the manifest is replaced.
    To continue an interrupted run, repeat the same call. Repeating a finished call changes nothing, except with
    ``repeated="append"``. A saved state of a loader stays valid: the new samples are included from its next epoch on.

    `pack` describes the arguments that are not listed here. Where the dataset was packed with ``columns``,
    ``label_type`` or ``label_separator``, they are used here too if the source has these columns and the argument is
    omitted.

    Args:
        src: The source of the new samples, as for `pack`. Classes are matched by name; new classes get the next
            numbers.
        dst: Local folder of a dataset that `pack` wrote.
        shard_bytes: Maximum size of a new shard in bytes, or as text such as "4MB"; by default as in the dataset.
        seed: Seed of the one-time shuffle of the new samples.
        fresh: Remove what an interrupted `append` left, for example because its source has changed, and start
            again. The dataset stays.
        repeated: What becomes of records that the dataset has already. By default, records with the path of a sample
            are left out. The labels of all of them, and the content of some, are compared: if all have other images,
            they are appended; if some have changed, it is an error. It is also an error if the image of a sample is
            now at another path, as after files were moved or rows inserted. "skip" leaves out the records with a path
            of the dataset; after such a move, those with an image of the dataset. "append" appends all.
        images: As for `pack`. ``images``, ``resize`` and ``quality`` must have the values that the dataset was packed
            with.

    Returns:
        A report on the whole dataset; ``packed`` counts only the new samples.

    Raises:
        OptionError: An invalid argument; options, columns or labels that do not match the dataset, such as classes
            without names where the dataset has names; some records are in the dataset already, see ``repeated``; or
            ``dst`` is a URL.
        SourceError: ``src`` contains nothing to pack, or labels without a class; or, with ``strict``, a file cannot be
            packed.
        NotADatasetError: ``dst`` is not a packed dataset.
        DestinationError: ``dst`` was not written by `pack`, is in use, or its disk is full.
        WorkerError: A worker process died.
    """
    started = time.monotonic()
    src, dst = given.src, _local_folder(given.dst)
    onto, parts = _read_dataset(dst)
    options = PackOptions.of(given, shard_bytes=given.shard_bytes or parts[-1]["shard_bytes"])
    if str(options.policy) != parts[-1]["images"]:
        raise OptionError(
            f"{dst} was packed with images={parts[-1]['images']!r}, but this call would add {str(options.policy)!r}: "
            "append with the same --images and --resize, or reshard the dataset first"
        )
    source, listing = _list_new_inputs(src, dst, options, onto)
    shards, plan = open_shards(dst), plan_listing(source, listing, options)
    is_appended = given.repeated is None and any(is_source(part, plan.source) for part in parts)
    if not is_appended:
        compared = ShardTask(0, 0, (), listing.classes, source, dst, options.policy, available_cores())
        left = without_repeated(listing, source, _with_other_shares(shards, dst), compared, given.repeated)
        if left is not listing:
            listing = left
            plan = plan_listing(source, listing, options) if listing.inputs else plan
    show_account(account_lines(source, listing), progress=options.progress)
    check_strict([(source, listing)], options)
    if is_appended or not listing.inputs:  # an earlier call has appended everything
        finished = FolderDestination(dst)
        if is_appended:
            later = later_files(finished, plan, source)
            _log.warning(
                "%s: nothing is appended, because %s has files with these names and sizes from an earlier call%s; if "
                "they are different files, append them under other names",
                shown_path(source.name),
                dst,
                later and f", although {later}",
            )
        unfinished = finished.read_plan()
        if unfinished is None or {**unfinished, "onto": None} == {**plan.source, "onto": None}:  # not of another call
            finished.remove_leftover_work()
        skipped, seconds = read_skipped(dst), time.monotonic() - started
        return PackReport(onto, dst, 0, skipped, len(onto.shards), seconds, listing.account)
    if not options.fresh:
        check_times(FolderDestination(dst), plan, source)
    plan = _continue_numbering(plan, onto, parts)
    has_deep_images = any(mode.endswith(";16") for mode in shards.index(0).mode)  # 16 bits per channel
    plan = replace(plan, deep=options.policy.keeps_all or has_deep_images)
    with (
        FolderDestination(dst) as destination,
        ProgressBar(len(plan.inputs), options.progress, dataset=str(dst)) as bar,
    ):
        job = PackJob(plan, source, destination, process_count(plan, source, options), bar, options)
        manifest, skipped = job.run(listing, onto=onto)
    packed = manifest.samples - onto.samples
    notes = _notes_on_missing(onto, manifest)
    listing.account.notes += notes
    show_notes(source, notes)
    seconds = time.monotonic() - started
    return PackReport(manifest, dst, packed, skipped, len(job.kept), seconds, listing.account)


def _notes_on_missing(before: Manifest, now: Manifest) -> list[str]:
    """Return a note for each field that all samples had before, and some new samples do not have, such as a mask."""
    new = now.samples - before.samples
    folders = {name: addition.folder for addition in before.additions for name in addition.fields}
    notes = []
    for name, count in before.all_fields.items():
        without = new + before.fields.get(name, 0) - now.fields.get(name, 0)
        if name not in IMAGE_FIELDS and count == before.samples and without:
            remedy = f": to add it to all, first remove it with `wds-tools add-fields --remove {folders.get(name)}`"
            notes.append(
                f"{without:,} of {new:,} new samples have no {name}, which all earlier samples have"
                f"{remedy if name in folders else ''}"
            )
    return notes


def _local_folder(dst: str | Path) -> Path:
    location = parse_destination(dst)
    if isinstance(location, str):
        raise OptionError(
            f"{location} is a URL, and samples can be appended only to local datasets: append to a local copy, "
            "then upload it"
        )
    return location


def _read_dataset(dst: Path) -> tuple[Manifest, list[dict[str, Any]]]:
    """Return a dataset's manifest, and the description of each source that it was packed from."""
    onto = read_manifest(dst)
    if onto is None:
        raise NotADatasetError(
            why_unfinished(str(dst), lambda name: (dst / name).read_bytes())
            or why_not_a_dataset(str(dst), str(dst), MANIFEST_NAME)
        )
    source = onto.source or {}
    parts = source["parts"] if source.get("kind") == APPENDED else [source]
    if any("files" not in part for part in parts):
        raise DestinationError(
            f"{dst} was not written by pack: add shards to the folder and index all of them, "
            "or reshard it first, then append"
        )
    return onto, parts


def _list_new_inputs(src: Any, dst: Path, options: PackOptions, onto: Manifest) -> tuple[Source, Listing]:
    """List the inputs to append. Known classes keep their numbers, and new ones get the next numbers."""
    stated = onto.account.options if onto.account else {}
    source, listing = _list_as_stated(src, dst, options, stated)
    kind = stated.get("from")
    if kind in _FOLDERS and options.kind is None and source.unit == "file" and source.kind not in _FOLDERS:
        raise OptionError(
            f"{dst} was packed with --from {kind}, and {src} is read as {source.kind}: pass --from {kind} "
            f"(kind={kind!r}), or --from {source.kind} to use its annotations"
        )
    same_way = "append samples that are labelled in the same way"
    if shown := _shown({name: stated[name] for name in stated if name in (*source.roles, "from", *_OF_LABELS)}):
        same_way += f"; {dst} was packed with {shown}"
    is_several = Inputs.of(listing.inputs).have_several_labels
    if is_several != (LABELS in onto.fields):
        raise OptionError(
            f"the samples of {src if is_several else dst} have several labels each, those of "
            f"{dst if is_several else src} do not: {same_way}"
        )
    new_classes = [name for name in listing.label_classes if name not in onto.label_classes]
    if new_classes and "classes" in stated and options.names is None:
        raise OptionError(
            f"{dst} was packed with --classes, which renamed the classes of its source, and {quoted(new_classes)} of "
            f"{src} are not among these names: pass --classes (classes=) again, with the names of all classes of {src}"
        )
    if (several := onto.field_classes.get(LABELS)) and LABELS in listing.field_classes:
        numbered = _numbered(several.names, source, listing, dst)
        listing = listing.with_classes(Classes(numbered).united(listing.label_classes)[0])
        onto = replace(onto, field_classes={**onto.field_classes, LABELS: listing.field_classes[LABELS]})
    check_same(
        [
            classes_of(onto, str(dst)),
            DatasetClasses(str(src), listing.classes, listing.field_classes, [LABELS] if is_several else []),
        ]
    )
    old = _labels_of(onto.has_labels or is_several, onto.classes)
    new = _labels_of(listing.has_labels, listing.classes)
    if old != new:
        unnamed = listing.has_labels and not listing.classes
        by_number = ", or name the class numbers with --classes (classes=)" if unnamed else ""
        raise OptionError(f"{dst} has {old}, and {src} has {new}: {same_way}{by_number}")
    if listing.classes == onto.classes:
        return source, listing
    union, _ = Classes(_numbered(onto.classes, source, listing, dst)).united(listing.classes)
    notes = notes_on_similar(union)[len(notes_on_similar(onto.classes)) :]  # about the new classes
    listing.account.notes += notes
    show_notes(source, notes)
    return source, listing.with_classes(union)


def _numbered(names: Sequence[str], source: Source, listing: Listing, dst: Path) -> Sequence[str]:
    """Return the class names of a dataset, and after them those that another split, a folder next to it, has.

    So a new class gets the number that it has in the other split.
    """
    ours = tuple(names)
    for path, theirs in other_splits(dst).items() if {*listing.label_classes} - {*ours} else ():
        if theirs[: len(ours)] == ours != theirs:
            show_notes(source, [f"class numbers continue the numbers of {path}, with {quoted(theirs[len(ours) :])}"])
            ours = theirs
        show_notes(source, note_on_other_numbers(path, theirs, ours))
    return ours


def _list_as_stated(src: Any, dst: Path, options: PackOptions, stated: Mapping[str, str]) -> tuple[Source, Listing]:
    """Open and list a source with what the user stated about the source of the dataset, as far as it has that.

    Class folders have no columns, so they are listed without.
    """
    source = open_input(src, dst, options)
    given = options.columns or {}
    columns = {role: stated[role] for role in source.roles if role in stated and role not in given}
    if not isinstance(source, WebDatasetSource):  # a column of other sources is an entry of JSON in shards
        columns = {role: name.removeprefix("json:") for role, name in columns.items()}
    of_labels: dict[str, Any] = {name: stated.get(name) for name in _OF_LABELS if getattr(options, name) is None}
    same = replace(options, columns={**columns, **given}, **of_labels)
    if same.source != options.source:
        try:
            source = open_input(src, dst, same)
            return source, list_inputs(source, options.progress)
        except (LabelError, OptionError, SourceError) as error:
            problem = str(error)
            source = open_input(src, dst, options)
    listing = list_inputs(source, options.progress)
    for part in listing.account.parts:
        role, name = part.role, part.name
        if name != columns.get(role, name):
            raise OptionError(
                f"{dst} was packed with {_shown({role: columns[role]})}, and {problem}: pass --column {role}={name} "
                f"(columns={{{role!r}: {name!r}}}) if this is the {role} in {src}"
            )
    return source, listing


def _shown(stated: Mapping[str, str]) -> str:
    """Return what the user stated as options of the command line."""
    names = {"from": "--from ", "label_type": "--label-type ", "label_separator": "--label-separator "}
    return " ".join(names.get(name, f"--column {name}=") + shlex.quote(text) for name, text in stated.items())


def _is_share(manifest: Manifest | None) -> bool:
    """Return whether `pack_splits` drew the samples of a dataset at random."""
    return manifest is not None and manifest.account is not None and "share" in manifest.account.options


def _with_other_shares(shards: ShardSet, dst: Path) -> ShardSet:
    """Return the shards of a dataset, followed by the other shares of its source, which are in folders next to it."""
    here = dst.resolve()
    paths = sorted(here.parent.glob(f"*/{MANIFEST_NAME}")) if _is_share(shards.manifest) else []
    others = [path.parent for path in paths if path.parent != here and _is_share(read_manifest(path.parent))]
    return join_sets([shards, *map(open_shards, others)]) if others else shards


def _labels_of(has_labels: bool, classes: Sequence[str]) -> str:
    return "labels with class names" if classes else "labels without class names" if has_labels else "no labels"


def _continue_numbering(plan: Plan, onto: Manifest, parts: Sequence[dict[str, Any]]) -> Plan:
    """Number shards and samples so that they follow the ones of the dataset."""
    numbers = [int(entry.first.name.removeprefix("shard-").removesuffix(".tar")) for entry in onto.shards]
    return replace(plan, first_shard=max(numbers) + 1, first_position=sum(part["files"] for part in parts))


def _folder_in_place(dataset: str | Path, images: str | None, given: Mapping[str, bool]) -> Path:
    """Return the folder of a dataset whose images are rewritten in place, checked with the other options."""
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong or images != "crop-ready":
        others = ", ".join(wrong) or f"images={images!r}"
        raise OptionError(
            f"--in-place (in_place=True) with {others}: in place, only --images crop-ready (images='crop-ready') is "
            "possible, which changes no pixel; for anything else, write a new dataset to DST"
        )
    location = parse_destination(dataset)
    if isinstance(location, str):
        raise OptionError(
            f"{location} is a URL, and images can be rewritten in place only in local datasets: rewrite a local copy, "
            "then upload it; or write a new dataset (`wds-tools reshard DATASET DST --images crop-ready`)"
        )
    return location.parent if location.name == MANIFEST_NAME else location


def reshard(
    dataset: str | Path,
    dst: str | Path | None = None,
    *,
    in_place: bool = False,
    shard_bytes: int | str = "1GB",
    shuffle: bool = False,
    seed: int = 0,
    workers: int | None = None,
    fresh: bool = False,
    label: str | None = None,
    label_type: LabelType | None = None,
    label_separator: str | None = None,
    images: str | None = "keep",
    resize: int | str | tuple[int, int] | None = None,
    quality: int | None = None,
    task: tuple[int, int] | None = None,
    finish: bool = False,
    engine: EngineName = "local",
    num_cpus: int = 1,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Write a dataset again: in shards of another size, in another order, or with changed images.

    The original stays as it is, except with ``in_place``. To continue an interrupted run, repeat the same call.

    With ``in_place=True, images="crop-ready"`` the images of a local dataset become crop-ready in its own folder, one
    shard after the other: the samples, their keys, their order and their ids stay, and so do labels, further fields,
    fields that were added, and the columns of the indexes. Each new shard is verified before the old one is removed,
    so this takes the space of one more shard. The dataset can be read at any time: loaders continue with the new
    shards, in the same order, and saved states stay valid. Only the fingerprint changes.

    Args:
        dataset: Folder or URL of a dataset, or tar shards of another tool, including ``.tar.gz`` and ``.tar.zst``.
        dst: Folder or URL of the new dataset, as for `pack`. Not with ``in_place``.
        in_place: Rewrite the images in the folder of the dataset. Requires ``images="crop-ready"``, which changes no
            pixel; of the other options, only ``workers`` and ``progress`` are allowed.
        shard_bytes: Maximum size of a shard in bytes, or as text such as "4MB".
        shuffle: Store the samples in random order. By default they keep their order.
        seed: Seed of this shuffle.
        workers: Number of worker processes, as for `pack`; with ``in_place``, of threads.
        fresh: Remove what an earlier pack left in ``dst``, and start over.
        label: Where labels are, as for `index_shards`. The default is in the manifest, otherwise ``cls``.
        label_type: As for `pack`.
        label_separator: As for `pack`.
        images: As for `pack`, but by default ``keep``: images are copied unchanged. None chooses as `pack` does.
        resize: New size of the images, as for `pack`.
        quality: JPEG quality of resized images, as for `pack`.
        task: As for `pack`: this is one of several tasks.
        finish: As for `pack`: complete the dataset after all tasks have ended.
        engine: As for `pack`: ``local`` or ``ray``.
        num_cpus: As for `pack`: CPUs of a Ray task.
        progress: Whether to show a progress bar, as for `pack`.
        storage_options: As for `pack`.

    Returns:
        The report of `pack`.

    Raises:
        OptionError: An invalid argument; or, with ``in_place``, a dataset at a URL.
        SourceError: ``dataset`` has no shards, or damaged shards.
        NotADatasetError: With ``in_place``: ``dataset`` is not a packed dataset.
        ChecksumError: With ``in_place``: a shard is damaged. It stays as it is.
        DestinationError: ``dst`` contains something else, is in use, or its disk is full.
        StoreError: The storage at a URL does not respond, or the package for it is not installed.
        WorkerError: A worker process died.
    """
    if in_place:
        given = {
            "dst": dst is not None,
            "shard_bytes": shard_bytes != "1GB",
            "shuffle": shuffle,
            "seed": seed != 0,
            "fresh": fresh,
            "label": label is not None,
            "label_type": label_type is not None,
            "label_separator": label_separator is not None,
            "resize": resize is not None,
            "quality": quality is not None,
            "task": task is not None,
            "finish": finish,
            "engine": engine != "local",
        }
        return make_crop_ready(_folder_in_place(dataset, images, given), workers=workers, progress=progress)
    if dst is None:
        raise OptionError("reshard writes a new dataset: name its folder DST, or rewrite the images with --in-place")
    return pack(
        dataset,
        dst,
        kind="webdataset",
        shard_bytes=shard_bytes,
        seed=seed,
        workers=workers,
        fresh=fresh,
        columns=None if label is None else {"label": label},
        label_type=label_type,
        label_separator=label_separator,
        images=images,
        resize=resize,
        quality=quality,
        shuffle=shuffle,
        task=task,
        finish=finish,
        engine=engine,
        num_cpus=num_cpus,
        progress=progress,
        storage_options=storage_options,
    )
