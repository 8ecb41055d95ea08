"""Which inputs of `append` are in the dataset already: by paths and labels of all, and by the content of some."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import DecodeError, OptionError, SourceError
from wds_tools.format import image_header
from wds_tools.format.index import ABSENT, NO_LABEL, Index
from wds_tools.format.label_lists import LABELS
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.decode import decode_rgb
from wds_tools.packing.config import Repeated
from wds_tools.packing.plan import labels_field
from wds_tools.packing.run import show_notes
from wds_tools.packing.worker import ShardTask, encode_calls
from wds_tools.reading.shardset import ShardSet
from wds_tools.sources.base import Listing, Source
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.inputs import Input, Inputs
from wds_tools.wording import counted

_COMPARED = 64  # inputs whose content is compared, of each kind
_RUN = 8  # consecutive ones in a source that is read in groups
_PROBED = 8  # inputs that are read to see whether an entry of the source replaces the path
_SAME = 2.0  # mean difference of pixels: another version of the JPEG encoder may have packed them
_HASHES = np.dtype([("path", np.uint64), ("name", np.uint64)])  # of a path, and of what follows its last slash
_NO_LABEL = -1
_LABEL_STEP = np.uint64(0x9E3779B97F4A7C15)  # an odd number, so that a path with another label has another hash


def without_repeated(
    listing: Listing, source: Source, shards: ShardSet, task: ShardTask, repeated: Repeated | None
) -> Listing:
    """Return a listing without the inputs that a dataset has already.

    These have the path of a stored sample. The content of some of them is compared: if all of it differs, they are new
    inputs, which stay; if all is the same, they are left out. Otherwise ``repeated`` decides.

    Raises:
        OptionError: Some are the same, and some differ, for example in their labels; or the images of samples are at
            other paths now.
    """
    if repeated == "append":
        return listing
    inputs = Inputs.of(listing.inputs)
    stored = _Stored(shards)
    comparison = _Comparison(inputs, _paths(inputs, source), stored, task)
    rows, relations = np.flatnonzero(comparison.is_repeated), comparison.of_some()
    differences = [(inputs[row].path, field) for row, field in relations.items() if isinstance(field, str) and field]
    moved = {row: sample for row, sample in relations.items() if isinstance(sample, int)}
    is_same_source = "" in relations.values()
    remedy = "pass --repeated append (repeated='append') to append them again"
    if moved:
        row, sample = next(iter(moved.items()))
        example = f"such as {inputs[row].path!r}, which has the image of the sample {stored.path_of(sample)!r}"
        if not is_same_source and len({*moved.values()}) == 1 < len(relations):
            _noted(listing, source, f"a record has an image of the dataset, and is appended: {example}")
        elif repeated is None:
            raise OptionError(
                f"{shown_path(source.name)} has images of the dataset at other paths: {len(moved)} of "
                f"{len(relations)} compared records, {example}. Were files moved, or rows inserted? Pass --repeated "
                "skip (repeated='skip') to append only images that the dataset does not have, or --repeated append to "
                "append all; to correct samples, pack the dataset again"
            )
        else:
            kept = comparison.with_new_images()
            left_out = f"{counted(len(inputs) - len(kept), 'record')} with an image of the dataset"
            return _noted(_chosen(listing, inputs, kept), source, f"{left_out}: left out; {remedy}")
    if not len(rows):
        return listing
    example = inputs[int(rows[0])].path
    dataset = "the dataset" if len(shards.class_lists) == 1 else "the dataset and the other shares of its source"
    repeats = f"{counted(len(rows), 'record')} with the path of a sample of {dataset}, such as {example!r}"
    if repeated is None:
        if differences and not is_same_source and {field for _, field in differences} == {"image"}:
            return _noted(listing, source, f"{repeats}: their images differ, so they are appended")
        if (more := comparison.repeated_more()) is not None:
            differences.append((inputs[more].path, "number of records"))
        if differences:
            path, field = min(differences, key=lambda difference: difference[1] == "image")
            raise OptionError(
                f"{shown_path(source.name)} has {repeats}, and some have changed ({field} of {path!r}): pass "
                f"--repeated skip (repeated='skip') to append only the {len(inputs) - len(rows):,} others, or "
                "--repeated append to append all as new samples; to replace samples, pack the dataset again"
            )
    kept = np.flatnonzero(~comparison.is_repeated)
    return _noted(_chosen(listing, inputs, kept), source, f"{repeats}: left out; {remedy}")


def _chosen(listing: Listing, inputs: Inputs, rows: NDArray[np.int64]) -> Listing:
    """Return a listing with only some inputs."""
    account = listing.account.of_part(len(rows), (skip.reason for skip in listing.skipped))
    return replace(listing, inputs=inputs.chosen(rows), account=account)


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


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _hashes(paths: Iterable[str]) -> NDArray[np.void]:
    """Return `_HASHES` of paths: [n]."""
    return np.fromiter(((_hash(path), _hash(path.rpartition("/")[2])) for path in paths), _HASHES)


class _Lookup:
    """Finds the positions of a value."""

    def __init__(self, values: NDArray[np.uint64]) -> None:
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def find(self, value: int | np.uint64) -> NDArray[np.int64]:
        """Return the positions, ascending: int64 [k]."""
        start, stop = (int(np.searchsorted(self._sorted, np.uint64(value), side)) for side in ("left", "right"))
        return self._order[start:stop]


class _Stored:
    """The n samples of a dataset.

    Attributes:
        hashes: `_HASHES` [n], of their paths; 0 without one.
        labels: uint64 [n], their class numbers, or hashes of several.
        images: uint64 [n], hashes of their images.
    """

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._firsts = np.concatenate([[0], np.cumsum([entry.samples for entry in shards.entries])])
        self.hashes = np.zeros(self._firsts[-1], _HASHES)
        self.labels, self.images = (np.zeros(len(self.hashes), np.uint64) for _ in range(2))
        for shard in range(len(shards.entries)):
            index, start = shards.index(shard, keep=False), int(self._firsts[shard])
            part = slice(start, start + len(index))
            self.labels[part], self.images[part] = _labels_of(index), _images_of(index)
            if (columns := index.fields.get("json")) is not None:
                present = np.flatnonzero(columns.offset != ABSENT)
                starts, sizes = columns.offset[present].tolist(), columns.size[present].tolist()
                ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
                facts = map(_entries, shards.fetch(shard, ranges))
                self.hashes[start + present] = _hashes(str(entries.get("path", "")) for entries in facts)
        self._by_path, self._by_image = _Lookup(self.hashes["path"]), _Lookup(self.images)

    def with_path(self, path: np.uint64) -> NDArray[np.int64]:
        """Return the samples with the path of this hash: int64 [k]."""
        return self._by_path.find(path)

    def with_image(self, fields: dict[str, bytes]) -> NDArray[np.int64]:
        """Return the samples with the image of an encoded sample: int64 [k]."""
        return self._by_image.find(xxhash.xxh3_64_intdigest(fields[_image_field(fields)]))

    def fields_of(self, sample: int) -> dict[str, bytes]:
        """Return the fields of a sample."""
        shard = int(np.searchsorted(self._firsts, sample, side="right")) - 1
        row, index = sample - int(self._firsts[shard]), self._shards.index(shard)
        columns = {name: part for name, part in index.fields.items() if part.offset[row] != ABSENT}
        ranges = [(int(part.offset[row]), int(part.offset[row] + part.size[row])) for part in columns.values()]
        return {name: bytes(data) for name, data in zip(columns, self._shards.fetch(shard, ranges), strict=True)}

    def path_of(self, sample: int) -> str:
        """Return the path of a sample."""
        return str(_entries(self.fields_of(sample).get("json", b"")).get("path", ""))


def _labels_of(index: Index) -> NDArray[np.uint64]:
    if (several := index.fields.get(LABELS)) is not None:
        return several.xxh3
    return np.where(index.label == NO_LABEL, _NO_LABEL, index.label).view(np.uint64)


def _images_of(index: Index) -> NDArray[np.uint64]:
    images = np.zeros(len(index), np.uint64)
    for name in reversed([name for name in IMAGE_FIELDS if name in index.fields]):
        present = index.fields[name].offset != ABSENT
        images[present] = index.fields[name].xxh3[present]
    return images


def _spread(rows: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Return `_COMPARED` of the rows, or all if there are fewer: some consecutive ones in several places."""
    if len(rows) <= _COMPARED:
        return rows
    starts = np.linspace(0, len(rows) - run, _COMPARED // run).astype(np.int64)
    return np.take(rows, (starts[:, None] + np.arange(run)).ravel())


def _image_field(fields: dict[str, bytes]) -> str:
    return next(name for name in IMAGE_FIELDS if name in fields)


def _entries(data: bytes | memoryview) -> dict[str, object]:
    with suppress(ValueError):
        entries = json.loads(bytes(data))
        return entries if isinstance(entries, dict) else {}
    return {}


class _Comparison:
    """Inputs, compared with the samples of a dataset.

    Attributes:
        is_repeated: bool [n], whether an input has the path of a sample.
    """

    def __init__(self, inputs: Inputs, paths: Iterable[str], stored: _Stored, task: ShardTask) -> None:
        self._inputs, self._stored, self._task = inputs, stored, task
        self._new = _hashes(paths)
        self.is_repeated = np.isin(self._new["path"], stored.hashes["path"])
        self._is_gone = ~np.isin(stored.hashes["path"], self._new["path"])  # samples whose paths no input has

    @cached_property
    def _labels(self) -> NDArray[np.uint64]:
        if not self._inputs.have_several_labels:
            return self._inputs.numbers("label").view(np.uint64)
        hashes = (xxhash.xxh3_64_intdigest(labels_field(entry.labels or ())) for entry in self._inputs)
        return np.fromiter(hashes, np.uint64)

    def of_some(self) -> dict[int, str | int | None]:
        """Compare the content of some inputs that have the path of a sample, and of some whose label differs too.

        If paths of samples are gone, new inputs are compared too, and inputs with the name of a file that is gone.

        Returns:
            Relations by row, see `_relation`.
        """
        rows, stored = np.flatnonzero(self.is_repeated), self._stored
        pairs = self._new["path"] ^ self._labels * _LABEL_STEP
        groups = [rows, rows[~np.isin(pairs[rows], stored.hashes["path"] ^ stored.labels * _LABEL_STEP)]]
        if self._is_gone.any():
            others = np.flatnonzero(~self.is_repeated)
            groups += [others, others[np.isin(self._new["name"][others], stored.hashes["name"][self._is_gone])]]
        run = _RUN if self._inputs.have_groups else 1
        some = np.unique(np.concatenate([_spread(rows, run) for rows in groups]))
        return {row: self._relation(row, fields) for row, fields in self._encoded(some)}

    def with_new_images(self) -> NDArray[np.int64]:
        """Return the positions of inputs whose images are not in the dataset: int64 [k].

        An input that cannot be packed is one of them, so that packing reports it.
        """
        is_new = np.ones(len(self._inputs), np.bool_)
        for row, fields in self._encoded(np.arange(len(is_new))):
            is_new[row] = self._relation(row, fields) in (None, "image") and not len(self._stored.with_image(fields))
        return np.flatnonzero(is_new)

    def repeated_more(self) -> int | None:
        """Return the first input whose path more inputs than samples have; None if there is none."""
        rows = np.flatnonzero(self.is_repeated)
        hashes, first, counts = np.unique(self._new["path"][rows], return_index=True, return_counts=True)
        ordered = np.sort(self._stored.hashes["path"])
        more = counts > np.searchsorted(ordered, hashes, "right") - np.searchsorted(ordered, hashes, "left")
        return int(rows[first[more].min()]) if more.any() else None

    def _encoded(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield the position and the packed fields of each input. Inputs that cannot be packed are left out."""
        with closing(encode_calls(replace(self._task, inputs=tuple(self._inputs.chosen(rows))))) as calls:
            for row, (_, encode) in zip(rows.tolist(), calls, strict=True):
                try:
                    fields = dict(encode()[0].fields)
                except (SourceError, DecodeError):
                    continue
                yield row, fields

    def _relation(self, row: int, fields: dict[str, bytes]) -> str | int | None:
        """Compare an input with the samples that have its path.

        Returns:
            "" if it is equal to one of them; the name of a field that differs, "image" for the image; a sample with
            another path that has its image; or None if it is new.
        """
        samples = self._stored.with_path(self._new["path"][row]).tolist()
        differences = [_difference(fields, self._stored.fields_of(sample)) for sample in samples]
        if None in differences:
            return ""
        field = min(filter(None, differences), key=lambda field: field == "image", default=None)
        if field in (None, "image"):
            same_image = self._stored.with_image(fields)
            same_image = same_image if samples else same_image[self._is_gone[same_image]]
            return int(same_image[0]) if len(same_image) else field
        return field


def _difference(new: dict[str, bytes], old: dict[str, bytes]) -> str | None:
    """Return a field in which a new sample differs from a stored one, "image" for its image; None for the same."""
    image = _image_field(new)
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
