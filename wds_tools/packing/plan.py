"""The order of samples and the boundaries of shards, computed from names and sizes before images are read.

This is pure arithmetic without files or clock. So the output cannot depend on the number of workers, on their timing,
or on where an earlier run was killed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from wds_tools.format.field_classes import FieldClasses, to_raw
from wds_tools.format.recorded_source import FIRST
from wds_tools.format.tar import BLOCK, END, MAX_OCTAL_SIZE
from wds_tools.sources.base import WINDOW_BYTES, Listing
from wds_tools.sources.inputs import (
    Input,
    InputRows,
    Inputs,
    Ordered,
    field_bytes,
    lists_of,
    numbers_of,
    offsets_of,
    path_text,
    to_inputs,
)

HEAD = 5
"""Hugging Face infers the fields of a dataset from the first five samples of its first shard, which must agree."""

_PROBED = 32  # inputs that are read to find the most common type, if names do not show it
_ORDER_STREAM = 1  # gives this use of the seed its own random numbers
_encoder = json.JSONEncoder(separators=(",", ":"))
_IS_SPECIAL = np.array([not 0x20 <= byte < 0x7F or byte in b'"\\' for byte in range(256)])  # in JSON: written as \"


def shard_name(index: int) -> str:
    """Return a shard's file name.

    >>> shard_name(7)
    'shard-000007.tar'
    """
    return f"shard-{index:06d}.tar"


def sample_key(position: int) -> str:
    """Return the key of the sample at ``position`` in the packed order: unique and without dots."""
    return f"{position:09d}"


def json_field(entry: Input, classes: Sequence[str], facts: Mapping[str, Any] | None = None) -> bytes:
    """Return the ``json`` field: path and class of an input, and further facts from its source.

    >>> json_field(Input("cat/1.jpg", 10, 0), ["cat"])
    b'{"path":"cat/1.jpg","class":"cat"}'
    >>> json_field(Input("a.h5#3", 10, 7), [], {"width": 640})
    b'{"path":"a.h5#3","width":640}'
    >>> json_field(Input("cat/1.jpg", 10, 0), ["cat"], {"class": "tiger"})
    b'{"path":"cat/1.jpg","class":"cat","class_":"tiger"}'
    """
    values = {"path": entry.path}
    if entry.label is not None and entry.label < len(classes):
        values["class"] = classes[entry.label]
    if facts:
        class_name, facts = values.get("class"), dict(facts)
        if class_name is not None and facts.get("class", class_name) != class_name:  # as in JSON about the image
            facts["class_"] = facts.pop("class")
        return _compact(values | facts).encode()
    # Value by value: for a dictionary, json builds an encoder, which takes longer than everything else here.
    return ("{" + ",".join([f'"{name}":{_compact(text)}' for name, text in values.items()]) + "}").encode()


def sample_bytes(
    inputs: InputRows, classes: Sequence[str], image_bytes: int | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield the size of each sample in a shard in bytes, if its image is as large as the input: int64 [n] in parts."""
    # A label is the text of its number; the entry "class" of the field json has the name.
    names = np.array([len(f',"class":{_compact(name)}') for name in classes], np.int64)
    for batch in inputs.rows(0, len(inputs)):
        labels = numbers_of(batch, "label")
        images = numbers_of(batch, "size") if image_bytes is None else np.full(len(batch), image_bytes)
        facts = text_bytes(batch.column("path")) + len('{"path":}')
        is_named = (labels >= 0) & (labels < len(names))
        facts[is_named] += names[labels[is_named]]
        sizes = _fields_bytes(images) + _fields_bytes(facts) + numbers_of(batch, "extra")
        different, indexes = np.unique(labels, return_inverse=True)
        digits = np.array([field_bytes(len(str(label))) if label >= 0 else 0 for label in different.tolist()], np.int64)
        sizes += digits[indexes]
        if "labels" in batch.schema.names:
            several = lists_of(batch)
            sizes += [0 if labels is None else field_bytes(len(labels_field(labels))) for labels in several]
        yield sizes


def _fields_bytes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what `field_bytes` returns, for several sizes: int64 [n]."""
    sizes_in_shard = BLOCK - (-sizes // BLOCK) * BLOCK
    is_large = sizes > MAX_OCTAL_SIZE
    sizes_in_shard[is_large] = [field_bytes(size) for size in sizes[is_large].tolist()]
    return sizes_in_shard


def text_bytes(paths: pa.Array) -> NDArray[np.int64]:
    """Return the length of each path as text in JSON: int64 [n]."""
    offsets, data = offsets_of(paths).astype(np.int64), paths.buffers()[2]
    is_special = _IS_SPECIAL[np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]]
    counts = np.concatenate([[0], np.cumsum(is_special, dtype=np.int32)])[offsets - offsets[0]]
    lengths: NDArray[np.int64] = np.diff(offsets) + len('""')
    rows = np.flatnonzero(np.diff(counts))  # few, as a rule
    lengths[rows] = [len(_compact(path_text(paths[row].as_py()))) for row in rows.tolist()]
    return lengths


def labels_field(labels: Iterable[int]) -> bytes:
    """Return the field `LABELS`.

    >>> labels_field([3, 1])
    b'[3,1]'
    """
    return _compact(list(labels)).encode()


def _compact(value: Any) -> str:
    return _encoder.encode(value)


def plan_boundaries(sizes: Iterable[NDArray[np.int64]], limit: int) -> list[int]:
    """Divide samples, whose sizes come in parts, into shards: each holds as many as fit, but at least one.

    Returns:
        Ascending positions from 0 to n: shard i holds the samples from ``[i]`` up to, not including, ``[i + 1]``.
    """
    boundaries, before = [0], 0  # before: bytes of the samples before the last boundary
    first = total = 0  # samples and bytes before the part
    for part in sizes:
        ends = total + np.cumsum(part)
        while True:
            most = before + limit - len(END)
            stop = max(first + int(np.searchsorted(ends, most, side="right")), boundaries[-1] + 1)
            if stop >= first + len(part):
                break  # further samples may fit
            boundaries.append(stop)
            before = int(ends[stop - first - 1]) if stop > first else total
        first, total = first + len(part), int(ends[-1])
    return boundaries if boundaries[-1] == first else [*boundaries, first]


def shuffled(inputs: InputRows, seed: int, *, window_bytes: int = WINDOW_BYTES) -> NDArray[np.signedinteger]:
    """Return the positions of the inputs in random order: int32 or int64 [n].

    Inputs that are read in groups, such as row groups, stay close to the other inputs of their group: the groups are
    put in random order and divided into windows, and each window is shuffled. A shard then needs the groups of one or
    two windows. With a full shuffle every shard would need every group, and reading would take quadratic time.
    """
    random = np.random.default_rng([seed, _ORDER_STREAM])
    if not inputs.have_groups:
        order: NDArray[np.signedinteger] = np.arange(len(inputs), dtype=np.int32 if len(inputs) < 1 << 31 else np.int64)
        random.shuffle(order)
        return order
    windows = _windows(inputs.numbers("group"), inputs.numbers("size"), random, window_bytes)
    return np.concatenate([window[random.permutation(len(window))] for window in windows])


def is_full_shuffle(inputs: InputRows) -> bool:
    """Return whether `shuffled` mixes all inputs, instead of only the inputs of each window."""
    return not inputs.have_groups or inputs.bytes <= WINDOW_BYTES


def _windows(
    groups: NDArray[np.int64], sizes: NDArray[np.int64], random: np.random.Generator, window_bytes: int
) -> Iterator[NDArray[np.int64]]:
    """Yield windows as positions of inputs: complete groups in random order."""
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    in_order = np.argsort(group_of, kind="stable")
    ends = np.cumsum(np.bincount(group_of))
    members = np.split(in_order, ends[:-1])
    members = [members[group] for group in np.argsort(first)]  # in the order in which they first occur
    window: list[NDArray[np.int64]] = []
    filled = 0
    for group in random.permutation(len(members)).tolist():
        size = int(sizes[members[group]].sum())
        if window and filled + size > window_bytes:
            yield np.concatenate(window)
            window, filled = [], 0
        window.append(members[group])
        filled += size
    yield np.concatenate(window)


def extension_kind(path: str) -> str:
    """Return the image type that the extension of a name stands for.

    >>> extension_kind("a/B.JPEG"), extension_kind("a.png")
    ('jpg', 'png')
    """
    kind = path.rpartition(".")[2].lower()
    return {"jpeg": "jpg", "tiff": "tif"}.get(kind, kind)


def unify_head(inputs: InputRows, order: NDArray[np.signedinteger], kind_of: Callable[[Input], str | None]) -> None:
    """Swap inputs of the most common type into the first `HEAD` positions, each with the next such input.

    If names do not show the types, or some inputs have further fields, only the first `_PROBED` inputs are considered,
    and read.
    """
    counts, has_more = Counter[str](), False
    for batch in inputs.rows(0, len(inputs)):
        endings = Counter([path[path.rfind(b".") + 1 :] for path in batch.column("path").to_pylist()])
        for ending, count in endings.items():
            counts[extension_kind(path_text(ending))] += count
        has_more = has_more or bool(numbers_of(batch, "extra").any())
    by_name = not has_more and counts.keys() <= {"jpg", "png", "webp", "tif", "gif", "avif"}
    if not by_name:
        kinds = [kind for index in order[:_PROBED].tolist() if (kind := kind_of(inputs[index])) is not None]
        counts = Counter(kinds)
    if not counts:
        return
    most_common = min(counts, key=lambda kind: (-counts[kind], kind))
    last = len(order) if by_name else min(_PROBED, len(order))
    candidate = 0
    for position in range(min(HEAD, last)):
        candidate = max(candidate, position)
        while candidate < last:
            entry = inputs[int(order[candidate])]
            if (not by_name or extension_kind(entry.path) == most_common) and kind_of(entry) == most_common:
                break
            candidate += 1
        if candidate == last:
            return
        order[[position, candidate]] = order[[candidate, position]]
        candidate += 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset before it is packed.

    Attributes:
        boundaries: Positions in ``inputs`` where shards start, and the end.
        source: The input and all options that change the bytes, as recorded in the manifest. Equal plans have equal
            sources.
        first_shard: Number of the first shard; not 0 if a dataset is appended to.
        first_position: Position of the first sample, from which its key follows; not 0 if a dataset is appended to.
        deep: Whether images with 16 bits per channel are packed. Otherwise they are skipped: in a batch of images with
            8 bits, one of them would be an error.
        first: Number of inputs, if these are only the first ones of the plan that ``source`` describes; otherwise None.
        input_bytes: Size of all images before packing, in bytes.
    """

    inputs: Sequence[Input]
    boundaries: list[int]
    classes: tuple[str, ...]
    source: dict[str, Any]
    first_shard: int = 0
    first_position: int = 0
    shuffled: bool = True
    deep: bool = True
    field_classes: FieldClasses = field(default_factory=dict)
    first: int | None = None
    input_bytes: int = 0

    def beginning(self, samples: int | None) -> Plan:
        """Return the plan of only the first inputs. Its shards are those of this plan; the last one may be shorter."""
        if samples is None or samples >= len(self.inputs):
            return self
        boundaries = [*(start for start in self.boundaries if start < samples), samples]
        inputs = self.inputs[:samples]
        size = sum(entry.size for entry in inputs)
        return replace(self, inputs=inputs, boundaries=boundaries, first=samples, input_bytes=size)

    @property
    def id(self) -> str:
        """Short text that is the same only for equal sources."""
        return xxhash.xxh3_64_hexdigest(json.dumps(self.source, sort_keys=True).encode())

    @property
    def packed_source(self) -> dict[str, Any]:
        """The source of the dataset that has these inputs."""
        return self.source if self.first is None else {**self.source, FIRST: self.first}

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.boundaries) - 1

    @property
    def numbers(self) -> range:
        """The numbers of the shards."""
        return range(self.first_shard, self.first_shard + self.shards)

    def range_of(self, shard: int) -> tuple[int, int]:
        """Return the positions in ``inputs`` where a shard starts and ends."""
        index = shard - self.first_shard
        return self.boundaries[index], self.boundaries[index + 1]


def make_plan(
    listing: Listing,
    *,
    kind: str,
    seed: int,
    shard_bytes: int,
    kind_of: Callable[[Input], str | None],
    images: str = "keep",
    image_bytes: int | None = None,
    shuffle: bool = True,
) -> Plan:
    """Compute the order of the samples and the boundaries of the shards."""
    listed = Inputs.of(listing.inputs)
    inputs: InputRows = listed
    if shuffle:
        order = shuffled(listed, seed)
        unify_head(listed, order, kind_of)
        inputs = Ordered(listed, order)
    mixed = is_full_shuffle(listed) if shuffle else listing.shuffled
    sizes = sample_bytes(inputs, listing.classes, image_bytes)
    source = {
        "kind": kind,
        "seed": seed,
        "shard_bytes": shard_bytes,
        "files": len(inputs),
        "images": images,
        "image_bytes": image_bytes,
        "shuffle": shuffle,
        "digest": digest(inputs, listing.classes, listing.stamp, listing.field_classes),
    }
    return Plan(
        inputs,
        plan_boundaries(sizes, shard_bytes),
        listing.classes,
        source,
        shuffled=mixed,
        field_classes=listing.field_classes,
        input_bytes=listed.bytes,
    )


def digest(
    inputs: InputRows, classes: Sequence[str], stamp: str = "", field_classes: FieldClasses | None = None
) -> str:
    """Return a checksum of inputs in packed order: their paths, sizes and labels, the class names, and the stamp.

    The lengths of further files of a sample count too.
    """
    hasher = xxhash.xxh3_128()
    hasher.update(_compact(list(classes)).encode())
    if field_classes:
        hasher.update(_compact(to_raw(field_classes)).encode())
    hasher.update(stamp.encode())
    for batch in inputs.rows(0, len(inputs)):
        if not {"parts", "labels"}.isdisjoint(batch.schema.names):
            _add_rows(hasher, to_inputs(batch))
            continue
        columns = (batch.column("path"), batch.column("size"), batch.column("label"))
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        hasher.update(b"".join(map(b"%s\0%d\0%d\n".__mod__, rows)))
    return hasher.hexdigest()


def _add_rows(hasher: xxhash.xxh3_128, inputs: Iterable[Input]) -> None:
    for entry in inputs:
        label = -1 if entry.label is None else entry.label
        hasher.update(b"%s\0%d\0%d\n" % (entry.path.encode("utf-8", "surrogateescape"), entry.size, label))
        for name, file in entry.parts:
            hasher.update(b"%s\0%d\n" % (name.encode("utf-8", "surrogateescape"), file.size))
        if entry.labels is not None:
            hasher.update(labels_field(entry.labels))
