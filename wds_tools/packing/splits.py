"""Pack one source into several datasets: shares drawn at random, or the folders ``train/``, ``val/``, ``test/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.errors import DestinationError, OptionError, SourceError
from wds_tools.options import parse_bytes
from wds_tools.packing.card import commit_card, split_card
from wds_tools.packing.config import PackOptions, class_names
from wds_tools.packing.packer import PackReport, open_input, pack_listing
from wds_tools.packing.remote_destination import place_of, publish_card
from wds_tools.packing.run import list_inputs, refuse_skipped
from wds_tools.packing.transcode import ImageOptions
from wds_tools.sources.base import Listing, Source
from wds_tools.sources.detect import split_folders
from wds_tools.storage import join
from wds_tools.storage.upload import Bucket

FOLDERS = "folders"
_INVERSE_GOLDEN = (5**0.5 - 1) / 2
_SPLIT_STREAM = 2  # keeps this use of the seed apart from others


def pack_splits(
    src: Any,
    dst: str | Path,
    *,
    split: str | Mapping[str, float],
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
) -> dict[str, PackReport]:
    """Pack a source into several datasets, ``dst/train``, ``dst/val``, and so on, with the same class numbers.

    Args:
        src: As for `pack`.
        dst: Folder, or URL, for a folder per split.
        split: Shares, as {"train": 0.9, "val": 0.1} or "train=0.9,val=0.1", drawn with ``seed`` and alike in every
            class; or "folders": ``src`` holds a folder per split, named train, val, test or alike.
        kind: As for `pack`, and so are the others.
        columns: As for `pack`.
        shard_bytes: As for `pack`.
        seed: As for `pack`; and of the draw.
        workers: As for `pack`.
        classes: As for `pack`.
        strict: As for `pack`; of a split. Those before it are packed, unless the listing shows it.
        fresh: As for `pack`.
        images: As for `pack`.
        resize: As for `pack`.
        quality: As for `pack`.
        verify_pixels: As for `pack`.
        spool: As for `pack`.
        progress: As for `pack`.

    Returns:
        Name of a split to what was packed. Records that were skipped before the draw are in the report of the first.

    Raises:
        OptionError: Shares that do not add up to 1, and whatever `pack` refuses.
        SourceError: A split that would be empty, no folders of splits, and whatever `pack` raises.
    """
    place = place_of(dst)
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
        progress=progress,
    )
    shares = parse_shares(split)
    source: Source
    if shares is None:
        parts = _of_folders(src, place, options)
    else:
        source = open_input(src, place, options)
        listing = list_inputs(source, options.progress)
        parts = {name: (source, part) for name, part in divide(listing, shares, seed).items()}
    refuse_skipped(list(parts.values()), options)
    reports = {
        name: pack_listing(source, listing, place_of(join(str(place), name)), options)
        for name, (source, listing) in parts.items()
    }
    _write_card(place, split_card({name: report.manifest for name, report in reports.items()}))
    return reports


def _write_card(place: Path | str, data: bytes) -> None:
    if isinstance(place, str):
        publish_card(Bucket(place), data)
        return
    try:
        commit_card(place, data)
    except OSError as error:
        raise DestinationError(f"cannot write to {place}: {error.strerror}; run the same command again") from error


def parse_shares(split: str | Mapping[str, float]) -> dict[str, Fraction] | None:
    """Return the share of each split, None for "folders".

    >>> parse_shares("train=0.9,val=0.1")
    {'train': Fraction(9, 10), 'val': Fraction(1, 10)}

    Raises:
        OptionError: No shares, or they do not add up to 1.
    """
    if split == FOLDERS:
        return None
    pairs = split.items() if isinstance(split, Mapping) else [word.partition("=")[::2] for word in split.split(",")]
    try:
        shares = {str(name).strip(): Fraction(str(share)) for name, share in pairs}
    except (ValueError, ZeroDivisionError):
        shares = {}
    bad = [name for name in shares if not name.replace("-", "").replace("_", "").isalnum()]
    if not shares or bad or min(shares.values()) <= 0 or sum(shares.values()) != 1:
        raise OptionError(
            f"split={split!r}; allowed are names with shares that add up to 1, as train=0.9,val=0.1, or {FOLDERS!r}"
        )
    return shares


def divide(listing: Listing, shares: Mapping[str, Fraction], seed: int) -> dict[str, Listing]:
    """Draw splits: random within each class, and each class in the same shares, to a record or two.

    Args:
        listing: All records.
        shares: Name of each split to its share; they add up to 1.
        seed: Of the draw.

    Raises:
        SourceError: A split that gets no record.
    """
    names = list(shares)
    random = np.random.default_rng([seed, _SPLIT_STREAM]).permutation(len(listing.inputs))
    labels = np.array([-1 if entry.label is None else entry.label for entry in listing.inputs], np.int64)
    order = random[np.argsort(labels[random], kind="stable")]  # by class, at random within each
    owner = np.empty(len(order), np.int64)
    # Record i of this order goes to the split whose range [from, to) holds i / golden ratio mod 1: the fraction is
    # spread evenly over any run of records, so every class gets each share, small ones as well as can be.
    spread = (np.arange(len(order)) * _INVERSE_GOLDEN) % 1.0
    bounds = np.cumsum([float(share) for share in shares.values()])[:-1]
    owner[order] = np.searchsorted(bounds, spread, side="right")
    parts = {}
    for number, name in enumerate(names):
        inputs = [listing.inputs[place] for place in np.flatnonzero(owner == number).tolist()]
        if not inputs:
            raise SourceError(
                f"split {name!r} gets none of {len(listing.inputs):,} records: give it a larger share, or leave it out"
            )
        parts[name] = replace(listing, inputs=inputs, skipped=listing.skipped if number == 0 else [])
    return parts


def _of_folders(src: Any, dst: Path | str, options: PackOptions) -> dict[str, tuple[Source, Listing]]:
    """Return source and listing of each folder of a split; classes are numbered over all of them."""
    folders = split_folders(Path(src)) if isinstance(src, (str, Path)) else []
    if not folders:
        raise SourceError(f"{src} holds no folders named train, val, test or alike: give shares, as train=0.9,val=0.1")

    def scan(classes: tuple[str, ...] | None) -> dict[str, tuple[Source, Listing]]:
        numbered = replace(options, classes=classes)
        sources = {path.name: open_input(path, dst, numbered) for path in folders}
        return {name: (source, list_inputs(source, options.progress)) for name, source in sources.items()}

    classes = options.classes
    parts = scan(classes)
    named = {listing.classes for _, listing in parts.values()}
    if classes is not None or len(named) == 1:
        return parts
    return scan(tuple(sorted({name for names in named for name in names}, key=_bytes)))


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
