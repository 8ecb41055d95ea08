"""Which inputs of `append` are in the dataset already: by their paths, and by the content of some of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import DecodeError, OptionError, SourceError
from wds_tools.format import image_header
from wds_tools.format.index import ABSENT
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.decode import decode_rgb
from wds_tools.packing.config import Repeated
from wds_tools.packing.run import show_notes
from wds_tools.packing.worker import ShardTask, make_sample
from wds_tools.reading.shardset import ShardSet
from wds_tools.sources.base import Listing, Source
from wds_tools.sources.file_sets import shown_path
from wds_tools.sources.inputs import Input, Inputs
from wds_tools.wording import counted

_COMPARED = 64  # inputs whose content is compared
_PROBED = 8  # inputs that are read to see whether an entry of the source replaces the path
_SAME = 2.0  # mean difference of pixels: another version of the JPEG encoder may have packed them


def without_repeated(
    listing: Listing, source: Source, shards: ShardSet, task: ShardTask, repeated: Repeated | None
) -> Listing:
    """Return a listing without the inputs that a dataset has already.

    They have the path of a stored sample. If nothing else is the same in those that are compared, they are other
    inputs, and stay; if everything is the same, they are left out. ``repeated`` decides without a comparison.

    Raises:
        OptionError: Some are the same, and some differ, for example in their labels.
    """
    if repeated == "append":
        return listing
    inputs = Inputs.of(listing.inputs)
    stored, new = _stored_hashes(shards), _hashes(_paths(inputs, source))
    is_stored = np.isin(new, stored)
    rows = np.flatnonzero(is_stored)
    if not len(rows):
        return listing
    example = inputs[int(rows[0])].path
    known = f"{counted(len(rows), 'record')} with the path of a sample of the dataset, such as {example!r}"
    if repeated is None:
        same, differences = _compared(inputs, rows, new, stored, shards, task)
        if differences and not same and {field for _, field in differences} == {"image"}:
            return _noted(listing, source, f"{known}: their images are other ones, so they are appended")
        if (more := _repeated_more(new[rows], stored)) is not None:
            differences.append((inputs[int(rows[more])].path, "number of records"))
        if differences:
            path, field = min(differences, key=lambda difference: difference[1] == "image")
            raise OptionError(
                f"{shown_path(source.name)} has {known}, and some have changed ({field} of {path!r}): pass --repeated "
                f"skip (repeated='skip') to append only the {len(inputs) - len(rows):,} others, or --repeated append "
                "to append all as new samples; to replace samples, pack the dataset again"
            )
    note = f"{known}: left out; pass --repeated append (repeated='append') to append them again"
    kept = inputs.chosen(np.flatnonzero(~is_stored))
    account = listing.account.of_part(len(kept), (skip.reason for skip in listing.skipped))
    return _noted(replace(listing, inputs=kept, account=account), source, note)


def _noted(listing: Listing, source: Source, note: str) -> Listing:
    """Return a listing after its account has a note, which is shown."""
    listing.account.notes.append(note)
    show_notes(source, [note])
    return listing


def _paths(inputs: Inputs, source: Source) -> Iterator[str]:
    """Yield the entry "path" of the field ``json`` that each input will have."""
    step = max(1, len(inputs) // _PROBED)
    if any(_path(inputs[row], source) != inputs[row].path for row in range(0, len(inputs), step)):
        return (_path(entry, source) for entry in inputs)
    return (entry.path for entry in inputs)


def _path(entry: Input, source: Source) -> str:
    with suppress(SourceError):
        return str((source.read(entry).facts or {}).get("path", entry.path))
    return entry.path


def _hashes(paths: Iterator[str]) -> NDArray[np.uint64]:
    """Return a hash of each path: uint64 [n]."""
    return np.fromiter((xxhash.xxh3_64_intdigest(path.encode("utf-8", "surrogatepass")) for path in paths), np.uint64)


def _stored_hashes(shards: ShardSet) -> NDArray[np.uint64]:
    """Return the hash of the path of each sample: uint64 [samples], 0 without one."""
    parts = []
    for shard, entry in enumerate(shards.entries):
        hashes = np.zeros(entry.samples, np.uint64)
        if (columns := shards.index(shard, keep=False).fields.get("json")) is not None:
            present = np.flatnonzero(columns.offset != ABSENT)
            starts, sizes = columns.offset[present].tolist(), columns.size[present].tolist()
            ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
            facts = map(_entries, shards.fetch(shard, ranges))
            hashes[present] = _hashes(str(entries.get("path", "")) for entries in facts)
        parts.append(hashes)
    return np.concatenate(parts)


def _entries(data: bytes | memoryview) -> dict[str, object]:
    with suppress(ValueError):
        entries = json.loads(bytes(data))
        return entries if isinstance(entries, dict) else {}
    return {}


def _repeated_more(new: NDArray[np.uint64], stored: NDArray[np.uint64]) -> int | None:
    """Return the first of the new inputs whose path more of them have than samples; None if there is none."""
    hashes, first, counts = np.unique(new, return_index=True, return_counts=True)
    ordered = np.sort(stored)
    more = counts > np.searchsorted(ordered, hashes, "right") - np.searchsorted(ordered, hashes, "left")
    return int(first[more].min()) if more.any() else None


def _compared(
    inputs: Inputs,
    rows: NDArray[np.int64],
    new: NDArray[np.uint64],
    stored: NDArray[np.uint64],
    shards: ShardSet,
    task: ShardTask,
) -> tuple[int, list[tuple[str, str]]]:
    """Compare some inputs with the samples that have their paths.

    Returns:
        How many are equal to a sample; and the paths of the others, each with a field that differs.
    """
    firsts = np.concatenate([[0], np.cumsum([entry.samples for entry in shards.entries])])
    same, different = 0, list[tuple[str, str]]()
    for row in rows[np.unique(np.linspace(0, len(rows) - 1, _COMPARED).astype(np.int64))].tolist():
        entry = inputs[row]
        try:
            fields = make_sample(task, 0, entry)[0].fields
        except (SourceError, DecodeError):
            continue  # it cannot be packed
        differences = []
        for sample in np.flatnonzero(stored == new[row]).tolist():
            shard = int(np.searchsorted(firsts, sample, side="right")) - 1
            differences.append(_difference(fields, _fields_of(shards, shard, sample - int(firsts[shard]))))
        if None in differences:
            same += 1
        else:
            different.append((entry.path, min(filter(None, differences), key=lambda field: field == "image")))
    return same, different


def _fields_of(shards: ShardSet, shard: int, row: int) -> dict[str, bytes]:
    """Return the fields of a stored sample."""
    columns = {name: part for name, part in shards.index(shard).fields.items() if part.offset[row] != ABSENT}
    ranges = [(int(part.offset[row]), int(part.offset[row] + part.size[row])) for part in columns.values()]
    return {name: bytes(data) for name, data in zip(columns, shards.fetch(shard, ranges), strict=True)}


def _difference(new: dict[str, bytes], old: dict[str, bytes]) -> str | None:
    """Return a field in which a new sample differs from a stored one, "image" for its image; None for the same."""
    image = next(name for name in IMAGE_FIELDS if name in new)
    if image not in old or not _are_same_pixels(new[image], old[image]):
        return "image"
    entries, stored = _entries(new.get("json", b"")), _entries(old.get("json", b""))
    if {**entries, "key": None} != {**stored, "key": None}:
        return next(
            (f"json:{name}" for name in entries | stored if name != "key" and entries.get(name) != stored.get(name)),
            "json",
        )
    return next((name for name in new | old if name not in (image, "json") and new.get(name) != old.get(name)), None)


def _are_same_pixels(new: bytes, old: bytes) -> bool:
    if new == old:
        return True
    with suppress(DecodeError):
        left, right = _pixels(new), _pixels(old)
        return left.shape == right.shape and bool(np.abs(left - right).mean() < _SAME)
    return False


def _pixels(data: bytes) -> NDArray[np.float32]:
    info = image_header.probe(data)
    pixels = decode_rgb(memoryview(data), kind=info.kind, mode=info.mode, orientation=info.orientation)
    return pixels.astype(np.float32)
