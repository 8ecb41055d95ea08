"""Facts about a source that the plan needs: the types of its first images, and their size after packing."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from wds_tools.errors import DecodeError, SourceError, StoreError
from wds_tools.format import image_header
from wds_tools.format.label import quoted
from wds_tools.options import available_cores
from wds_tools.packing.config import PackOptions
from wds_tools.packing.geometry import may_have_positions, resized
from wds_tools.packing.plan import Plan, extension_kind, make_plan
from wds_tools.packing.transcode import ImageOptions, transcode
from wds_tools.sources.base import Listing, Record, Source, SourceStoreError
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.inputs import Input

_log = logging.getLogger("wds_tools")
_MAX_WORKERS = 8  # by default: with more, packing waits for the disk
_BYTES_PER_WORKER = 500_000_000  # that one process packs in the 0.4 s in which another one starts
_BYTES_PER_TRANSCODER = 10_000_000  # the same, if images are converted
_MAX_HEAD_READS = 64
_ESTIMATE_STREAM = 3  # gives this use of the seed its own random numbers
_ESTIMATE_READS = 32
_DEPTH_READS = 32
_GEOMETRY_READS = 8
_EIGHT_BITS = ("jpg", "webp", "gif", "avif")  # types that have no 16 bits per channel


def head_kind(source: Source, images: ImageOptions) -> Callable[[Input], str | None]:
    """Return a function from an input to its fields: it reads the first inputs, and uses the names of the others."""
    reads = itertools.count()

    def kind_of(entry: Input) -> str | None:
        if next(reads) >= _MAX_HEAD_READS:
            return extension_kind(entry.path)
        try:
            return _fields_of(source.read(entry), images)
        except (SourceError, DecodeError):
            return None

    return kind_of


def _fields_of(record: Record, images: ImageOptions) -> str:
    if images.images in ("resize", "raw"):
        image = transcode(record.image, images).kind
    else:
        image = image_header.probe(record.image).kind if isinstance(record.image, bytes) else "png"
    return "+".join([image, *sorted(record.fields)])


def planned_bytes(inputs: Sequence[Input], source: Source, images: ImageOptions, *, seed: int) -> int | None:
    """Return the size of a packed image in bytes, exact or the mean of a few; None if it is the size of its input."""
    if images.fixed_bytes is not None:
        return images.fixed_bytes
    if images.images in ("keep", "crop-ready"):
        return None
    sampled = np.random.default_rng([seed, _ESTIMATE_STREAM]).permutation(len(inputs))[:_ESTIMATE_READS]
    sizes = []
    for index in sampled.tolist():
        with suppress(SourceError, DecodeError):
            sizes.append(len(transcode(source.read(inputs[index]).image, images).data))
    return sum(sizes) // len(sizes) if sizes else None


def check_geometry(source: Source, inputs: Sequence[Input], images: ImageOptions) -> None:
    """Check before packing that masks and boxes of the first images can be resized with them.

    A warning names further values that could be positions.
    """
    names: set[str] = set()
    for entry in inputs[:_GEOMETRY_READS] if images.size is not None else ():
        with suppress(SourceError, DecodeError):
            record = source.read(entry)
            info = transcode(record.image, images).info if record.fields or record.facts else None
            if info is not None:
                resized(record, (info.height, info.width))
                names |= may_have_positions(record, (info.height, info.width))
    if names:
        _log.warning(
            "%s: the values of %s are not changed when images are resized (--resize, resize=): if these are positions, "
            "distances or areas in pixels, pack without it, and let the loader resize image and positions together "
            "(view=, like=)",
            shown_path(source.name),
            quoted(sorted(names)),
        )


def plan_listing(source: Source, listing: Listing, options: PackOptions, *, deep: bool | None = None) -> Plan:
    """Plan the inputs of a listing, which may be only a part of the source.

    Args:
        source: The source.
        listing: The inputs.
        options: The options of `pack()`.
        deep: Whether images with 16 bits per channel are packed; None: if most of these inputs are such images.
    """
    with nothing_written(), garbage_collection_paused():
        check_geometry(source, listing.inputs, options.policy)
        plan = make_plan(
            listing,
            kind=source.kind,
            seed=options.seed,
            shard_bytes=options.max_bytes,
            kind_of=head_kind(source, options.policy),
            images=str(options.policy),
            image_bytes=planned_bytes(listing.inputs, source, options.policy, seed=options.seed),
            shuffle=options.shuffle,
        )
        return replace(plan, deep=packs_deep([(source, plan.inputs)], options) if deep is None else deep)


def packs_deep(parts: Sequence[tuple[Source, Sequence[Input]]], options: PackOptions) -> bool:
    """Return whether images with 16 bits per channel are packed: more than half of a few images have them."""
    if options.policy.keeps_all:
        return True
    starts = np.cumsum([0, *(len(inputs) for _, inputs in parts)])
    sampled = np.random.default_rng([options.seed, _ESTIMATE_STREAM]).permutation(starts[-1])[:_DEPTH_READS]
    deep = 0
    with nothing_written():
        for index in sampled.tolist():
            part = int(np.searchsorted(starts, index, side="right")) - 1
            source, inputs = parts[part]
            entry = inputs[index - int(starts[part])]
            if extension_kind(entry.path) not in _EIGHT_BITS:
                with suppress(SourceError, DecodeError):
                    image = source.read(entry).image
                    deep += isinstance(image, bytes) and image_header.sixteen_bit_mode(image) is not None
    return 2 * deep > len(sampled)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector while millions of objects are made: it would look at all of them again and again.

    For 1,281,167 files it took 54 of 86 s of listing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def nothing_written() -> Iterator[None]:
    """Add the advice to an error of a source that failed before anything was written."""
    try:
        yield
    except SourceStoreError as error:
        raise StoreError(f"{error}; nothing was written: fix the cause, then run the same command again") from error


def process_count(plan: Plan, source: Source, options: PackOptions) -> int:
    """Return the number of processes: ``workers`` if given, otherwise as many as make packing faster."""
    if source.in_process:
        return 1
    if options.workers is not None:
        return options.workers
    size, cores = plan.input_bytes, available_cores()
    if options.policy.images == "keep":  # each reads on one core and writes on another
        return min(_MAX_WORKERS, -(-cores // 2), 1 + size // _BYTES_PER_WORKER)
    return min(cores, 1 + size // _BYTES_PER_TRANSCODER)
