"""Check a dataset against its manifest: every index, the length and checksum of every shard, every header and field.

Nothing is decoded: bytes that are the bytes that were packed need no look at their meaning. All damage is gathered,
not only the first, so that one run tells which shards to copy again.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from tqdm import tqdm

from wds_tools.errors import ManifestError, ShardError, StoreError, shortened
from wds_tools.format import tar
from wds_tools.format.index import ABSENT, Index
from wds_tools.format.manifest import MANIFEST_NAME, OLD_VERSION
from wds_tools.format.sample import split_name
from wds_tools.format.totals import Totals
from wds_tools.options import CacheOptions
from wds_tools.packing.card import CARD_NAME
from wds_tools.reading.keys import find_repeated_key
from wds_tools.reading.shardset import ShardSet, open_shards

MAX_DAMAGES = 1000
"""Damages that a report lists; all are counted."""

_OWN_NAMES = {MANIFEST_NAME, CARD_NAME, "skipped.jsonl"}


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was packed.

    Attributes:
        shard: Name of the shard, or of the manifest.
        key: Key of the sample, None where no single one is concerned.
        field: Name of the field, None where no single one is concerned.
        offset: Byte in the shard where the damaged field or header starts, None where it is not known.
        reason: What was found, what should be there.
    """

    shard: str
    key: str | None
    field: str | None
    offset: int | None
    reason: str

    def __str__(self) -> str:
        words = (("shard", self.shard), ("key", self.key), ("field", self.field), ("byte", self.offset))
        place = [f"{word} {shortened(str(value), 1000)}" for word, value in words if value is not None]
        return f"{', '.join(place)}: {shortened(self.reason)}"


@dataclass(slots=True)
class VerifyReport:
    """What was checked and what was found.

    Attributes:
        dataset: As it was named.
        shards: Shards that were checked, damaged ones included.
        samples: Samples in them.
        bytes: Bytes of the shards that were read.
        damages: The first `MAX_DAMAGES`, in order of shard and byte.
        damage_count: All of them.
        damaged_shards: Names of the shards with damage, or with a damaged index.
        unchecked: Shard to the reason why it could not be read: storage that does not answer, no permission.
        strangers: Files in the folder that the manifest does not name. They are no part of the dataset, and no damage.
        notes: What is worth knowing and is not damage, such as a manifest without a checksum.
        seconds: Time that it took.
    """

    dataset: str
    shards: int = 0
    samples: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    damage_count: int = 0
    damaged_shards: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """All of it was checked, and nothing is damaged."""
        return not self.damage_count and not self.unchecked

    def add(self, damages: list[Damage]) -> None:
        """Count the damages of one shard and list them as far as there is room."""
        if damages:
            self.damaged_shards.append(damages[0].shard)
            self.damage_count += len(damages)
            self.damages += damages[: MAX_DAMAGES - len(self.damages)]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return {"ok": self.ok, **asdict(self)}


def verify(
    dataset: str | os.PathLike[str], *, cache_dir: str | Path | None = None, progress: bool | None = None
) -> VerifyReport:
    """Check every byte of a dataset.

    Args:
        dataset: Folder or URL with a manifest, the manifest itself, or a brace pattern of indexed shards.
        cache_dir: Where blocks of remote shards are kept; None takes ``WDS_TOOLS_CACHE_DIR`` or the user's cache.
        progress: Show a bar on stderr; None does if it is a terminal.

    Returns:
        What was checked and all damage that was found. A damaged manifest is a damage, too.

    Raises:
        NotADatasetError: There is no dataset.
        StoreError: The storage of the manifest does not answer.
    """
    started = time.monotonic()
    report = VerifyReport(os.fspath(dataset))
    try:
        shards = open_shards(dataset, cache=CacheOptions.of(cache_dir, None))
    except ManifestError as error:
        report.add([Damage(error.shard or MANIFEST_NAME, error.key, None, None, str(error.args[0]))])
        return report
    show = sys.stderr.isatty() if progress is None else progress
    totals = Totals()
    with tqdm(total=shards.manifest.bytes, unit="B", unit_scale=True, disable=not show, file=sys.stderr) as bar:
        for number, entry in enumerate(shards.manifest.shards):
            index = _check_shard(shards, number, report)
            if index is not None:
                totals.add(index)
            bar.update(entry.bytes)
    if report.ok and (repeated := find_repeated_key(shards)) is not None:
        report.notes.append(str(repeated))
    if shards.has_manifest:  # of a pattern, others may lie beside
        report.strangers = _strangers(shards)
        if report.ok:
            _check_manifest(shards, totals, report)
    report.seconds = time.monotonic() - started
    return report


def _check_manifest(shards: ShardSet, totals: Totals, report: VerifyReport) -> None:
    """Compare the manifest with its indexes, which are whole."""
    for reason in totals.contradictions(shards.manifest):
        report.add([Damage(MANIFEST_NAME, None, None, None, reason)])
    if (unnamed := totals.unnamed_classes(shards.manifest)) is not None:
        report.notes.append(f"{MANIFEST_NAME}: {unnamed}")
    if shards.manifest.checksum is None:
        report.notes.append(
            f"{MANIFEST_NAME} is of version {OLD_VERSION} and has no checksum, so that a changed class name would not "
            f"be noticed: check the class names, then give it one with `wds-tools reseal {shards.name}`"
        )


def _check_shard(shards: ShardSet, number: int, report: VerifyReport) -> Index | None:
    """Add what is found to the report; return the index if it is whole."""
    entry = shards.manifest.shards[number]
    damages: list[Damage] = []
    try:
        index, data = _read(shards, number, damages)
        if data is not None:
            report.bytes += len(data)
            damages += _compare(data, index, entry.name, entry.xxh3)
    except (StoreError, FileNotFoundError) as error:
        report.unchecked[entry.name] = str(error)
        return None
    report.shards += 1
    report.samples += entry.samples
    report.add(damages)
    return index


def _read(shards: ShardSet, number: int, damages: list[Damage]) -> tuple[Index | None, memoryview | None]:
    """Return what can be read of a shard's index and bytes; what is missing or damaged is added to ``damages``."""
    name = shards.manifest.shards[number].name
    index, data = None, None
    try:
        index = shards.index(number, keep=False)
    except (ManifestError, ShardError, StoreError, FileNotFoundError) as error:
        damages.append(_damage_of(error, name))
    try:
        data = shards.read_shard(number)
    except (ShardError, StoreError, FileNotFoundError) as error:
        damages.append(_damage_of(error, name))
    return index, data


def _damage_of(error: Exception, shard: str) -> Damage:
    """A file that is not there is damage; storage that does not answer is not, and is raised again."""
    if isinstance(error, StoreError) and not isinstance(error.__cause__, FileNotFoundError):
        raise error
    reason = str(error.args[0]) if error.args else str(error)
    return Damage(shard, None, None, getattr(error, "offset", None), reason)


def _compare(data: memoryview, index: Index | None, shard: str, checksum: str) -> list[Damage]:
    """Return all that differs between a shard's bytes, its index and its checksum in the manifest."""
    damages: list[Damage] = []
    if index is not None:
        if (index.shard, index.shard_xxh3) != (shard, checksum):
            reason = f"its index is of {index.shard} with XXH3-128 {index.shard_xxh3}, its manifest says {checksum}"
            damages.append(Damage(shard, None, None, None, reason))
        damages += _check_fields(data, index, shard)
        damages += _check_members(data, index, shard)
    found = xxhash.xxh3_128_hexdigest(data)
    if found != checksum and not damages:
        damages.append(
            Damage(
                shard,
                None,
                None,
                None if index is None else _padding_damage(data, index),
                f"its XXH3-128 is {found}, its manifest says {checksum}"
                + ("" if index is None else "; fields and headers are whole, bytes between them have changed"),
            )
        )
    return sorted(damages, key=lambda damage: -1 if damage.offset is None else damage.offset)


def _check_fields(data: memoryview, index: Index, shard: str) -> Iterator[Damage]:
    """Compare each field's bytes with its checksum."""
    for name, columns in index.fields.items():
        rows = zip(columns.offset.tolist(), columns.size.tolist(), columns.xxh3.tolist(), index.keys, strict=True)
        for offset, size, checksum, key in rows:
            if offset == ABSENT:
                continue
            found = xxhash.xxh3_64_intdigest(data[offset : offset + size])
            if found != checksum:
                reason = f"the XXH3-64 of its {size:,} bytes is {found:016x}, its index says {checksum:016x}"
                yield Damage(shard, key, name, offset, reason)


def _check_members(data: memoryview, index: Index, shard: str) -> Iterator[Damage]:
    """Walk the archive and compare its members with the index, going on behind each header that is damaged."""
    expected, duplicates = _places(index)
    for key, name, offset in duplicates:
        yield Damage(shard, key, name, offset, "its index puts two fields at this byte")
    offsets = sorted(expected)
    start = 0
    while start < len(data):
        try:
            for member in tar.walk(data[start:], shard=shard):
                yield from _check_member(member, start, expected, shard)
            break
        except ShardError as error:
            broken = start + (error.offset or 0)
            after = bisect_right(offsets, broken)
            place = expected.pop(offsets[after], None) if after < len(offsets) else None
            if place is None:
                yield Damage(shard, None, None, broken, f"behind the last member: {error.args[0]}")
                break
            key, name, size = place
            yield Damage(shard, key, name, broken, f"its tar header: {error.args[0]}")
            start = offsets[after] + tar.padded(size)
    for offset, (key, name, size) in expected.items():
        yield Damage(shard, key, name, offset, f"its index says {size:,} bytes here, the archive has no such member")


_Places = dict[int, tuple[str, str, int]]


def _places(index: Index) -> tuple[_Places, list[tuple[str, str, int]]]:
    """Return offset -> (key, field, size) of all fields, and the (key, field, offset) that come twice."""
    places: _Places = {}
    duplicates = []
    for name, columns in index.fields.items():
        for key, offset, size in zip(index.keys, columns.offset.tolist(), columns.size.tolist(), strict=True):
            if offset == ABSENT:
                continue
            if offset in places:
                duplicates.append((key, name, offset))
            places[offset] = (key, name, size)
    return places, duplicates


def _check_member(member: tar.Member, start: int, expected: _Places, shard: str) -> Iterator[Damage]:
    parts = split_name(member.name) if member.is_file else None
    if parts is None:
        return  # folders, links and hidden files are no fields, and no index names them
    key, name = parts
    place = expected.pop(start + member.offset, None)
    if place == (key, name, member.size):
        return
    told = "nothing" if place is None else f"field {place[1]!r} of key {place[0]!r} with {place[2]:,} bytes"
    reason = f"the archive has member {member.name[:200]!r} of {member.size:,} bytes here, its index says {told}"
    yield Damage(shard, key, name, start + member.header_offset, reason)


def _padding_damage(data: memoryview, index: Index) -> int | None:
    """Return the first byte behind a field, up to its last block's end, that is not zero as our packer writes it."""
    for offset, (_, _, size) in sorted(_places(index)[0].items()):
        padding = data[offset + size : offset + tar.padded(size)]
        for place, byte in enumerate(padding, offset + size):
            if byte:
                return place
    return None


def _strangers(shards: ShardSet) -> list[str]:
    """Return the files beside the manifest that it does not name."""
    own = _OWN_NAMES | {shards.name.rpartition("/")[2]}
    own |= {name for entry in shards.manifest.shards for name in (entry.name, entry.index)}
    try:
        return sorted(set(shards.locations[0].store.list()) - own)
    except (StoreError, OSError):
        return []  # plain HTTP servers list nothing
