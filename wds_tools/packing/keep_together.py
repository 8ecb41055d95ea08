"""Images of a source that belong into one split: similar ones, or those with the same value of a column.

They are found before the source is divided. Every input is read for that.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from wds_tools.errors import DecodeError, LabelError, OptionError, SourceError
from wds_tools.format import image_header
from wds_tools.format.image_signature import Signature
from wds_tools.format.label import NONE, parse, quoted
from wds_tools.images import native
from wds_tools.images.decode import Pixels
from wds_tools.images.near_duplicates import BLANK_CONTRAST, DISTANCE, clusters_of
from wds_tools.images.sign import sign, sign_pixels
from wds_tools.options import available_cores
from wds_tools.sources.base import Listing, Source
from wds_tools.sources.inputs import Input
from wds_tools.terminal import shows_progress
from wds_tools.wording import counted

HASH = "hash"
_MAX_NAMED = 20  # columns in an error
_log = logging.getLogger("wds_tools")


def clusters_of_inputs(
    source: Source, listing: Listing, by: str, *, progress: bool | None
) -> tuple[Listing, NDArray[np.int64]]:
    """Return the cluster of each input, int64 [n], and the listing with a note about them.

    Each unreadable or blank image, and each one without a value, is a cluster of its own.

    Args:
        source: Where the inputs are read.
        listing: The inputs.
        by: What keeps images together: `HASH`, or the name of a column, which is an entry of the ``json`` field of
            packed samples, or of a field.
        progress: Whether to show a progress bar, as for `pack`.
    """
    bar = tqdm(total=len(listing.inputs), unit=" images", disable=not shows_progress(progress), file=sys.stderr)
    with bar:
        cluster, what = _of_similar(source, listing, bar) if by == HASH else _of_value(source, listing, by, bar)
    counts = np.unique(cluster, return_counts=True)[1]
    several = counts[counts > 1]
    together = counted(int(several.sum()), "image")
    note = f"{together} in {counted(len(several), 'cluster')} {what}: each cluster is in one split"
    _log.info("%s", note)
    account = replace(listing.account, notes=[*listing.account.notes, note])
    return replace(listing, account=account), cluster


def _of_similar(source: Source, listing: Listing, bar: tqdm[Any]) -> tuple[NDArray[np.int64], str]:
    """Return the cluster of each input, and in words what those of a cluster have in common."""
    if not native.is_available():
        raise OptionError(f"keep_together={HASH!r} cannot be used: {native.why_missing()}")
    hashes, has_hash = np.zeros(len(listing.inputs), np.uint64), np.zeros(len(listing.inputs), bool)
    for row, signature in enumerate(_signatures(source, listing.inputs)):
        if signature is not None and signature.contrast >= BLANK_CONTRAST:
            hashes[row], has_hash[row] = signature.phash, True
        bar.update()
    cluster = np.arange(len(hashes)) + len(hashes)
    cluster[has_hash] = clusters_of(hashes[has_hash], DISTANCE)
    return cluster, "of similar images"


def _of_value(source: Source, listing: Listing, column: str, bar: tqdm[Any]) -> tuple[NDArray[np.int64], str]:
    """Return as `_of_similar`; a cluster has the same value of a column."""
    clusters: dict[str, int] = {}
    names: dict[str, None] = {}
    cluster = np.arange(len(listing.inputs)) + len(listing.inputs)
    unknown = 0
    for row, entry in enumerate(listing.inputs):
        bar.update()
        try:
            record = source.read(entry)
        except SourceError:  # packing lists it
            continue
        names |= dict.fromkeys([*record.facts, *record.fields][:_MAX_NAMED])
        value = _text_of(record.fields.get(column) or record.facts.get(column))
        if value:
            cluster[row] = clusters.setdefault(value, len(clusters))
        else:
            unknown += 1
    if not clusters:
        raise OptionError(
            f"keep_together={column!r}; no record has this column, or it is the image or the label: allowed are "
            f"{HASH!r}, which keeps similar images together, and what the records have: "
            f"{quoted(list(names)[:_MAX_NAMED]) or 'nothing'}"
        )
    without = f" ({counted(unknown, 'image')} without a value, each alone)" if unknown else ""
    return cluster, f"with the same {column!r}{without}"


def _text_of(value: Any) -> str:
    """Return a value as text, the same for 3, 3.0 and " 3 ", as for labels; empty if it is missing.

    >>> [_text_of(value) for value in (3, 3.0, b" 3 ", "007", "P1 ", -1, "nan", None, 0.5, True)]
    ['3', '3', '3', '007', 'P1', '-1', '', '', '0.5', 'true']
    """
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    text = value.decode(errors="replace").strip() if isinstance(value, bytes) else str(value).strip()
    try:
        label = parse(value if isinstance(value, float | int) else text)
    except LabelError:  # a number with a fraction, for example
        return text
    if label == NONE:
        return text if text.startswith("-") and len(text) > 1 else ""
    return str(label.number) if label.name is None else label.name


def _signatures(source: Source, inputs: Sequence[Input]) -> Iterator[Signature | None]:
    """Yield the signature of each input, or None. Inputs are read in this thread, and decoded in others."""
    pending: deque[Future[Signature | None] | None] = deque()
    with ThreadPoolExecutor(available_cores()) as pool:
        for entry in inputs:
            try:
                pending.append(pool.submit(_sign, source.read(entry).image))
            except SourceError:  # packing lists it
                pending.append(None)
            if len(pending) > 2 * available_cores():
                yield _result(pending.popleft())
        yield from map(_result, pending)


def _result(signature: Future[Signature | None] | None) -> Signature | None:
    return None if signature is None else signature.result()


def _sign(image: bytes | Pixels) -> Signature | None:
    try:
        return sign_pixels(image) if isinstance(image, np.ndarray) else sign(image, image_header.probe(image))
    except DecodeError:
        return None
