"""What goes where, decided from names and sizes before the pictures are read. Pure arithmetic: no files, no clock.

So the output cannot depend on the number of workers, on their timing, or on where an earlier run was killed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.format.tar import END
from wds_tools.sources.base import WINDOW_BYTES, Input, Listing, field_bytes

HEAD = 5
"""Hugging Face takes a dataset's fields from the first five samples of its first shard, which must agree."""

_PROBED = 32  # where names do not tell the type of a picture, so many are read for it
_ORDER_STREAM = 1  # keeps this use of the seed apart from others
_COMPARED = (
    "kind",
    "seed",
    "shard_bytes",
    "files",
    "images",
    "image_bytes",
    "shuffle",
)  # of a source, apart from its digest
_encoder = json.JSONEncoder(separators=(",", ":"))


def shard_name(number: int) -> str:
    """Return a shard's file name.

    >>> shard_name(7)
    'shard-000007.tar'
    """
    return f"shard-{number:06d}.tar"


def sample_key(position: int) -> str:
    """Return the key of the sample at ``position`` of the packed order: unique, and free of dots."""
    return f"{position:09d}"


def json_field(entry: Input, classes: Sequence[str], facts: Mapping[str, Any] | None = None) -> bytes:
    """Return the ``json`` field: where the picture came from, and what else its source says of it.

    >>> json_field(Input("cat/1.jpg", 10, 0), ["cat"])
    b'{"path":"cat/1.jpg","class":"cat"}'
    >>> json_field(Input("a.h5#3", 10, 7), [], {"width": 640})
    b'{"path":"a.h5#3","width":640}'
    """
    said = {"path": entry.path}
    if entry.label is not None and entry.label < len(classes):
        said["class"] = classes[entry.label]
    if facts:
        return _compact(said | dict(facts)).encode()
    # Text by text: json builds an encoder for every dictionary, which takes longer than all the rest.
    return ("{" + ",".join([f'"{name}":{_compact(text)}' for name, text in said.items()]) + "}").encode()


def sample_bytes(entry: Input, classes: Sequence[str]) -> int:
    """Return the bytes that a sample takes in a shard if its image has the input's size, whatever its type."""
    total = field_bytes(entry.size) + field_bytes(len(json_field(entry, classes))) + entry.extra
    return total if entry.label is None else total + field_bytes(len(str(entry.label)))


def _compact(value: Any) -> str:
    return _encoder.encode(value)


def plan_boundaries(sizes: NDArray[np.int64], limit: int) -> list[int]:
    """Cut samples into shards: as many as fit, at least one.

    Args:
        sizes: int64 [n], bytes of each sample in packed order.
        limit: Most bytes of a shard, closing blocks included.

    Returns:
        Ascending positions, from 0 to n: shard i holds the samples ``[i], [i + 1]``.
    """
    ends = np.cumsum(sizes)
    boundaries = [0]
    while boundaries[-1] < len(sizes):
        start = boundaries[-1]
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + limit - len(END), side="right"))
        boundaries.append(max(stop, start + 1))
    return boundaries


def shuffled(inputs: Sequence[Input], seed: int, *, window_bytes: int = WINDOW_BYTES) -> list[Input]:
    """Return the inputs in random order.

    Inputs that are read in groups keep near the others of their group: groups are put in random order and cut into
    windows, and each window is shuffled. A shard then needs the groups of a window or two, where a full shuffle would
    need every group for every shard, which is quadratic.

    Args:
        inputs: In the order of the source.
        seed: Of the order.
        window_bytes: Most bytes of the groups of a window; one group at least.
    """
    random = np.random.default_rng([seed, _ORDER_STREAM])
    if not any(entry.group >= 0 for entry in inputs):
        return [inputs[number] for number in random.permutation(len(inputs)).tolist()]
    order: list[Input] = []
    for window in _windows(inputs, random, window_bytes):
        order += [inputs[window[number]] for number in random.permutation(len(window)).tolist()]
    return order


def is_full_shuffle(inputs: Sequence[Input], *, window_bytes: int = WINDOW_BYTES) -> bool:
    """Tell whether `shuffled` mixes all inputs, and not only those of a window."""
    return not any(entry.group >= 0 for entry in inputs) or sum(entry.size for entry in inputs) <= window_bytes


def _windows(inputs: Sequence[Input], random: np.random.Generator, window_bytes: int) -> Iterator[list[int]]:
    """Yield runs of inputs, as their numbers: whole groups in random order."""
    groups: dict[int, list[int]] = {}
    for number, entry in enumerate(inputs):
        groups.setdefault(entry.group, []).append(number)
    members = list(groups.values())
    window: list[int] = []
    filled = 0
    for group in random.permutation(len(members)).tolist():
        size = sum(inputs[number].size for number in members[group])
        if window and filled + size > window_bytes:
            yield window
            window, filled = [], 0
        window += members[group]
        filled += size
    yield window


def extension_kind(path: str) -> str:
    """Return the image type that a name promises.

    >>> extension_kind("a/B.JPEG"), extension_kind("a.png")
    ('jpg', 'png')
    """
    kind = path.rpartition(".")[2].lower()
    return "jpg" if kind == "jpeg" else kind


def _name_gives_type(entry: Input) -> bool:
    """Tell whether a name promises the type of a picture that has no further fields."""
    return entry.extra == 0 and extension_kind(entry.path) in ("jpg", "png", "webp")


def unify_head(inputs: list[Input], kind_of: Callable[[Input], str | None], *, by_name: bool = True) -> None:
    """Swap samples of the most common type into the first `HEAD` places, each with the next one behind it.

    Args:
        inputs: In packed order; changed in place.
        kind_of: Returns the true type of a picture (and its further fields), or None if it cannot be packed.
        by_name: The names promise the types; else the first `_PROBED` inputs are looked at.
    """
    if by_name:
        counts = Counter(extension_kind(entry.path) for entry in inputs)
    else:
        kinds = [kind for entry in inputs[:_PROBED] if (kind := kind_of(entry)) is not None]
        counts = Counter(kinds)
    if not counts:
        return
    wanted = min(counts, key=lambda kind: (-counts[kind], kind))
    last = len(inputs) if by_name else min(_PROBED, len(inputs))
    candidate = 0
    for place in range(min(HEAD, last)):
        candidate = max(candidate, place)
        while candidate < last and not (
            (not by_name or extension_kind(inputs[candidate].path) == wanted) and kind_of(inputs[candidate]) == wanted
        ):
            candidate += 1
        if candidate == last:
            return
        inputs[place], inputs[candidate] = inputs[candidate], inputs[place]
        candidate += 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset before it is packed.

    Attributes:
        inputs: In packed order.
        boundaries: Positions in ``inputs`` where shards begin, and the end.
        classes: Class names by number.
        source: What the manifest says of the input; equal plans have equal sources.
        first_shard: Number of the first shard: those of a dataset that is appended to come before.
        first_position: Of the first sample, likewise; keys count on from there.
        shuffled: The inputs are in random order, all of them.
    """

    inputs: list[Input]
    boundaries: list[int]
    classes: tuple[str, ...]
    source: dict[str, Any]
    first_shard: int = 0
    first_position: int = 0
    shuffled: bool = True

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.boundaries) - 1

    @property
    def numbers(self) -> range:
        """Numbers of the shards."""
        return range(self.first_shard, self.first_shard + self.shards)

    def range_of(self, number: int) -> tuple[int, int]:
        """Return where the inputs of a shard start and stop."""
        place = number - self.first_shard
        return self.boundaries[place], self.boundaries[place + 1]


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
    """Decide on the order of the samples and the boundaries of the shards.

    Args:
        listing: All inputs.
        kind: Kind of source, for the manifest.
        seed: Of the order.
        shard_bytes: Most bytes of a shard.
        kind_of: As for `unify_head`.
        images: What becomes of images, for the manifest.
        image_bytes: What each takes then; None takes the size of its input.
        shuffle: Put them in random order; else they stay in the order of the listing.
    """
    inputs = shuffled(listing.inputs, seed) if shuffle else list(listing.inputs)
    if shuffle:
        unify_head(inputs, kind_of, by_name=all(_name_gives_type(entry) for entry in inputs))
    mixed = is_full_shuffle(listing.inputs) if shuffle else listing.shuffled
    planned = inputs if image_bytes is None else [entry._replace(size=image_bytes) for entry in inputs]
    sizes = np.array([sample_bytes(entry, listing.classes) for entry in planned], np.int64)
    source = {
        "kind": kind,
        "seed": seed,
        "shard_bytes": shard_bytes,
        "files": len(inputs),
        "images": images,
        "image_bytes": image_bytes,
        "shuffle": shuffle,
        "digest": digest(inputs, listing.classes, listing.stamp),
    }
    return Plan(inputs, plan_boundaries(sizes, shard_bytes), listing.classes, source, shuffled=mixed)


def digest(inputs: Sequence[Input], classes: Sequence[str], stamp: str = "") -> str:
    """Return the identity of a list of inputs in packed order: paths, sizes, labels, names of classes, and stamp."""
    hasher = xxhash.xxh3_128()
    hasher.update(_compact(list(classes)).encode())
    hasher.update(stamp.encode())
    for entry in inputs:
        hasher.update(
            b"%s\0%d\0%d\n" % (entry.path.encode("utf-8", "surrogateescape"), entry.size, _label_number(entry))
        )
    return hasher.hexdigest()


def _label_number(entry: Input) -> int:
    return -1 if entry.label is None else entry.label


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Name what tells two sources apart, for an error message.

    >>> differences({"seed": 0, "digest": "a"}, {"seed": 1, "digest": "b"})
    'seed was 0 and is 1'
    """
    words = [word for word in _COMPARED if old.get(word) != new.get(word)]
    named = [f"{word} was {old.get(word)!r} and is {new.get(word)!r}" for word in words]
    return ", ".join(named) or "paths, sizes, content, classes or the first pictures of the input are others"
