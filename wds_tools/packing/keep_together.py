"""Similar images of a source, found before it is divided into splits. Every image is read and decoded for that."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from wds_tools.errors import DecodeError, OptionError, SourceError
from wds_tools.format import image_header
from wds_tools.format.image_signature import Signature
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
_log = logging.getLogger("wds_tools")


def clusters_of_inputs(
    source: Source, listing: Listing, by: str, *, progress: bool | None
) -> tuple[Listing, NDArray[np.int64]]:
    """Return the cluster of each input, int64 [n], and the listing with a note about them.

    Each unreadable or blank image is a group of its own.

    Args:
        source: Where the inputs are read.
        listing: The inputs.
        by: What keeps images together: `HASH`.
        progress: Whether to show a progress bar, as for `pack`.

    Raises:
        OptionError: Another value of ``by``, or the compiled module is missing.
    """
    if by != HASH:
        raise OptionError(f"keep_together={by!r}; allowed is {HASH!r}, which keeps similar images together")
    if not native.is_available():
        raise OptionError(f"keep_together={by!r} cannot be used: {native.why_missing()}")
    bar = tqdm(total=len(listing.inputs), unit=" images", disable=not shows_progress(progress), file=sys.stderr)
    hashes, has_hash = np.zeros(len(listing.inputs), np.uint64), np.zeros(len(listing.inputs), bool)
    with bar:
        for row, found in enumerate(_signatures(source, listing.inputs)):
            if found is not None and found.contrast >= BLANK_CONTRAST:
                hashes[row], has_hash[row] = found.phash, True
            bar.update()
    cluster = np.arange(len(hashes)) + len(hashes)
    cluster[has_hash] = clusters_of(hashes[has_hash], DISTANCE)
    counts = np.unique(cluster, return_counts=True)[1]
    several = counts[counts > 1]
    note = (
        f"{counted(int(several.sum()), 'image')} in {counted(len(several), 'cluster')} of similar images: each cluster "
        "is in one split"
    )
    _log.info("%s", note)
    account = replace(listing.account, notes=[*listing.account.notes, note])
    return replace(listing, account=account), cluster


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


def _result(one: Future[Signature | None] | None) -> Signature | None:
    return None if one is None else one.result()


def _sign(image: bytes | Pixels) -> Signature | None:
    try:
        return sign_pixels(image) if isinstance(image, np.ndarray) else sign(image, image_header.probe(image))
    except DecodeError:
        return None
