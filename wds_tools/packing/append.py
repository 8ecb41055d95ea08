"""Add to a dataset, or write it anew in other shards."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wds_tools.errors import DestinationError, OptionError
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.options import parse_bytes
from wds_tools.packing.config import PackOptions
from wds_tools.packing.destination import APPENDED, FolderDestination, read_manifest, read_skipped
from wds_tools.packing.estimate import plan_listing, process_count
from wds_tools.packing.packer import PackReport, open_input, pack
from wds_tools.packing.plan import Plan
from wds_tools.packing.remote_destination import place_of
from wds_tools.packing.run import Bar, PackJob, list_inputs, refuse_skipped
from wds_tools.packing.transcode import ImageOptions
from wds_tools.sources.base import Listing, Source


def append(
    src: Any,
    dst: str | Path,
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    shard_bytes: int | str | None = None,
    seed: int = 0,
    workers: int | None = None,
    strict: bool = False,
    images: str | None = None,
    resize: int | str | tuple[int, int] | None = None,
    quality: int | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack more images behind those of a dataset, as shards of their own.

    The dataset is whole at any time: it has the new shards when its manifest is replaced, at the end. An interrupted
    run is continued by the same call, and a call that has been carried out does nothing again. A loader's state from
    before is still good: the new samples come with its next epoch.

    Args:
        src: What to add, as for `pack`. Classes are known by name; new ones get the next numbers.
        dst: A dataset that `pack` made.
        kind: As for `pack`.
        columns: As for `pack`.
        shard_bytes: As for `pack`; by default that of the dataset.
        seed: Of the order of the new samples.
        workers: As for `pack`.
        strict: As for `pack`.
        images: As for `pack`; it must be what the dataset was packed with.
        resize: As for `pack`.
        quality: As for `pack`.
        progress: As for `pack`.

    Returns:
        The dataset now; ``packed`` counts the new samples.

    Raises:
        OptionError: An argument that cannot be, or does not go with the dataset.
        SourceError: Nothing to pack, or labels without names where the dataset has names.
        DestinationError: ``dst`` is no dataset of `pack`, or is in use.
    """
    started = time.monotonic()
    dst = _local(dst)
    onto, parts = _dataset(dst)
    options = PackOptions(
        kind=kind,
        columns=columns,
        shard_bytes=parse_bytes(shard_bytes or parts[-1]["shard_bytes"], what="shard_bytes"),
        seed=seed,
        workers=workers,
        strict=strict,
        images=ImageOptions(images=images, resize=resize, quality=quality),
        progress=progress,
    )
    if str(options.images) != parts[-1]["images"]:
        raise OptionError(
            f"{dst} was packed with images={parts[-1]['images']!r}, this would add {str(options.images)!r}: "
            "append with the same --images and --resize, or reshard the dataset first"
        )
    source, listing = _listing(src, dst, options, onto)
    refuse_skipped([(source, listing)], options)
    plan = plan_listing(source, listing, options)
    if plan.source in parts:  # it was appended already
        return PackReport(onto, dst, 0, read_skipped(dst), len(onto.shards), time.monotonic() - started)
    plan = _behind(plan, onto, parts)
    with FolderDestination(dst) as destination, Bar(len(plan.inputs), progress) as bar:
        job = PackJob(plan, source, destination, process_count(plan, source, options), bar, options)
        manifest, skipped = job.run(listing.skipped, onto=onto)
    packed = manifest.samples - onto.samples
    return PackReport(manifest, dst, packed, skipped, len(job.kept), time.monotonic() - started)


def _local(dst: str | Path) -> Path:
    place = place_of(dst)
    if isinstance(place, str):
        raise OptionError(f"{place} is a URL, and only local datasets can be added to: append to a copy, and copy that")
    return place


def _dataset(dst: Path) -> tuple[Manifest, list[dict[str, Any]]]:
    """Return a dataset's manifest, and the sources that it was packed from."""
    onto = read_manifest(dst)
    if onto is None:
        raise DestinationError(f"{dst} has no {MANIFEST_NAME}: append to a finished dataset, or make one with pack")
    source = onto.source or {}
    parts = source["parts"] if source.get("kind") == APPENDED else [source]
    if any("files" not in part for part in parts):
        raise DestinationError(
            f"{dst} was not made by pack: write more shards beside its own and index all of them, "
            "or reshard it first, then append"
        )
    return onto, parts


def _listing(src: Any, dst: Path, options: PackOptions, onto: Manifest) -> tuple[Source, Listing]:
    """List what is to be added; classes keep their numbers, and new ones come behind."""
    source = open_input(src, dst, options)
    listing = list_inputs(source, options.progress)
    new = [name for name in listing.classes if name not in onto.classes]
    if bool(listing.classes) != bool(onto.classes):
        raise OptionError(
            f"{dst} has {'names' if onto.classes else 'no names'} for its classes, and {src} has "
            f"{'names' if listing.classes else 'none'}: add what is labelled in the same way"
        )
    if listing.classes == onto.classes:
        return source, listing
    numbered = replace(options, classes=(*onto.classes, *new))
    source = open_input(src, dst, numbered)
    return source, list_inputs(source, options.progress)


def _behind(plan: Plan, onto: Manifest, parts: Sequence[dict[str, Any]]) -> Plan:
    """Number shards and samples on from those of the dataset."""
    numbers = [int(entry.name.removeprefix("shard-").removesuffix(".tar")) for entry in onto.shards]
    return replace(plan, first_shard=max(numbers) + 1, first_position=sum(part["files"] for part in parts))


def reshard(
    dataset: str | Path,
    dst: str | Path,
    *,
    shard_bytes: int | str = "1GB",
    shuffle: bool = False,
    seed: int = 0,
    workers: int | None = None,
    fresh: bool = False,
    images: str | None = "keep",
    resize: int | str | tuple[int, int] | None = None,
    quality: int | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Write a dataset anew: in shards of another size, in another order, with other images.

    Args:
        dataset: Local folder of a dataset, or tar shards of others.
        dst: Where to.
        shard_bytes: Largest shard.
        shuffle: Put the samples in random order; else they keep theirs.
        seed: Of that order.
        workers: As for `pack`.
        fresh: As for `pack`.
        images: As for `pack`; None chooses as `pack` does.
        resize: As for `pack`.
        quality: As for `pack`.
        progress: As for `pack`.

    Returns:
        As `pack`.

    Raises:
        OptionError: An argument that cannot be.
        SourceError: No shards there, or damaged ones.
        DestinationError: ``dst`` holds something else, is in use, or is full.
    """
    return pack(
        dataset,
        dst,
        kind="webdataset",
        shard_bytes=shard_bytes,
        seed=seed,
        workers=workers,
        fresh=fresh,
        images=images,
        resize=resize,
        quality=quality,
        shuffle=shuffle,
        progress=progress,
    )
