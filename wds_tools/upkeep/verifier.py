"""`verify()`: checks every index, shard, tar header and field of a dataset against its manifest.

No pixels are decoded, because unchanged bytes decode as they did when they were packed; the headers of images and the
labels are compared with the index. All damage is collected, not only the first, so that one run lists every shard that
must be copied again.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from wds_tools.errors import ManifestError, MissingFileError, ShardError, StoreError, shortened
from wds_tools.format import tar
from wds_tools.format.index import ABSENT, Index
from wds_tools.format.manifest import MANIFEST_NAME, OLD_VERSION, Addition, ShardEntry
from wds_tools.format.sample import split_name
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import CARD_NAME
from wds_tools.packing.engines import EngineName, engine_for, in_order
from wds_tools.packing.ray_engine import Advance
from wds_tools.reading.opening import open_shards
from wds_tools.reading.repeated_keys import find_repeated_key
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import join
from wds_tools.terminal import shows_progress
from wds_tools.upkeep.checksums import ShardChecksums
from wds_tools.upkeep.content_check import ContentCheck, row_differences
from wds_tools.upkeep.exporter import TIMM_NAME, WIDS_NAME

MAX_DAMAGES = 1000
"""Limit for the damage that a report lists. All of it is counted."""

_EXPECTED_FILES = {MANIFEST_NAME, CARD_NAME, "skipped.jsonl", TIMM_NAME, WIDS_NAME}


@dataclass(frozen=True, slots=True)
class Damage:
    """One difference from the dataset as it was packed.

    Attributes:
        key: Key of the sample; None if the damage does not belong to one sample.
        field: Name of the field; None if the damage does not belong to one field.
        offset: Offset in bytes of the damaged field or header in the shard; None if it is not known.
    """

    shard: str
    key: str | None
    field: str | None
    offset: int | None
    reason: str

    def __str__(self) -> str:
        parts = (("shard", self.shard), ("key", self.key), ("field", self.field), ("byte", self.offset))
        where = [f"{name} {shortened(str(value), 1000)}" for name, value in parts if value is not None]
        return f"{', '.join(where)}: {shortened(self.reason)}"


@dataclass(slots=True)
class _Checked:
    """What was found in one shard.

    Attributes:
        unchecked: Why it could not be checked; None if it was.
        totals: Of its index, if that is intact.
        machine: Where it was checked.
    """

    damages: list[Damage] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    is_read: bool = False
    unchecked: str | None = None
    totals: Totals | None = None
    machine: str = field(default_factory=platform.node)


@dataclass(slots=True)
class VerifyReport:
    """The result of `verify`.

    Attributes:
        dataset: The argument of `verify`.
        shards: Number of shards that were checked, including damaged ones.
        samples: Number of samples in these shards.
        bytes: Bytes of the shards that were read.
        damages: The first `MAX_DAMAGES` findings, in order of shard and byte.
        damage_count: Number of all findings.
        damaged_shards: Names of the shards that are damaged or have a damaged index.
        unchecked: Shard -> reason why it could not be read, such as missing permission or a network
            error.
        strangers: Files in the folder that the manifest does not list. They are not part of the
            dataset, and not damage.
        notes: Facts that are not damage, such as a manifest without a checksum.
        objects: All objects in images with unusual values, such as boxes without area, or invalid values; with shard
            and key. They are not damage, because they were packed in this form.
        seconds: Duration.
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
    objects: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether everything was checked and nothing is damaged."""
        return not self.damage_count and not self.unchecked

    def add(self, damages: list[Damage]) -> None:
        """Add the damage of one shard: all of it is counted, at most `MAX_DAMAGES` are listed in total."""
        if damages:
            self.damaged_shards.append(damages[0].shard)
            self.damage_count += len(damages)
            self.damages += damages[: MAX_DAMAGES - len(self.damages)]

    def add_shard(self, entry: ShardEntry, checked: _Checked) -> None:
        """Add what was found in a shard."""
        self.objects += checked.objects
        self.bytes += entry.bytes if checked.is_read else 0
        if checked.unchecked is not None:
            self.unchecked[entry.name] = checked.unchecked
            return
        self.shards += 1
        self.samples += entry.samples
        self.add(checked.damages)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {"ok": self.ok, **asdict(self)}


def verify(
    dataset: str | os.PathLike[str],
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    cache_dir: str | Path | None = None,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check every byte of a dataset against its checksums.

    Args:
        dataset: Folder or URL with a manifest, the manifest itself, or a brace pattern of indexed
            shards.
        workers: Number of worker processes; 1 checks in this process. By default it is chosen from the size of the
            shards: at most one per core.
        engine: ``local`` for processes on this machine, or ``ray`` for tasks of Ray Core on all machines of a cluster,
            one for each shard. All of them must have this package and reach ``dataset``.
        cache_dir: Cache folder for blocks of remote shards; None takes ``WDS_TOOLS_CACHE_DIR`` or
            the user's cache.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        What was checked, and the damage. A damaged manifest is reported as damage, not as an error.

    Raises:
        NotADatasetError: The path is not a packed dataset.
        OptionError: An unknown engine, or Ray is not installed.
        StoreError: The manifest cannot be read.
        WorkerError: A worker process died, or a machine of the Ray cluster lacks what it needs.
    """
    started = time.monotonic()
    report = VerifyReport(os.fspath(dataset))
    try:
        shards = open_shards(dataset, remote=RemoteOptions.of(cache_dir, storage_options=storage_options))
    except ManifestError as error:
        report.add([Damage(error.shard or MANIFEST_NAME, error.key, None, None, str(error.args[0]))])
        return report
    show = shows_progress(progress)
    totals = Totals()
    entries = shards.manifest.shards
    chosen = engine_for(engine, workers, size=shards.manifest.bytes, shards=len(entries))
    with (
        tqdm(total=shards.manifest.bytes, unit="B", unit_scale=True, disable=not show, file=sys.stderr) as bar,
        closing(
            chosen.run(
                _check_shard,
                shards,
                ((shard, shard) for shard in range(len(entries))),
                advance=lambda _, size: bar.update(size),
                shared=shards.local_files,
            )
        ) as results,
    ):
        for shard, checked in in_order(results):
            if checked.unchecked is not None and engine == "ray":
                checked.unchecked = f"on {checked.machine}: {checked.unchecked}"
            report.add_shard(entries[shard], checked)
            if checked.totals is not None:
                totals.add(checked.totals)
    for addition in shards.manifest.additions:
        folder = join(shards.locations[0].store.folder, addition.folder)
        part = verify(
            folder,
            workers=workers,
            engine=engine,
            cache_dir=cache_dir,
            progress=progress,
            storage_options=storage_options,
        )
        _add_part(shards, addition, part, report)
    if report.ok and (repeated := find_repeated_key(shards)) is not None:
        report.notes.append(str(repeated))
    if shards.has_manifest:  # a pattern does not name all files of its folder
        report.strangers = _unlisted_files(shards)
        report.notes += filter(None, [shards.unfinished_append])
        if report.ok:
            _check_manifest(shards, totals, report)
    report.seconds = time.monotonic() - started
    return report


def _add_part(shards: ShardSet, addition: Addition, part: VerifyReport, report: VerifyReport) -> None:
    """Add the report about fields that were added later, and check that their samples belong to the dataset."""
    report.add([replace(damage, shard=f"{addition.folder}/{damage.shard}") for damage in part.damages])
    report.damage_count += part.damage_count - len(part.damages)
    report.unchecked |= {f"{addition.folder}/{name}": reason for name, reason in part.unchecked.items()}
    report.bytes += part.bytes
    if not report.ok:
        return
    for shard in range(len(shards.locations)):
        keys = set(shards.index(shard, keep=False).keys)
        for added, fields in shards.added(shard):
            strange = set(shards.index(added, keep=False).keys) - keys
            if strange and set(fields) == addition.fields.keys():
                name = f"{addition.folder}/{shards.manifest.shards[shard].name}"
                reason = "no sample of the dataset has this key, to which fields were added"
                report.add([Damage(name, min(strange), None, None, reason)])


def _check_manifest(shards: ShardSet, totals: Totals, report: VerifyReport) -> None:
    """Compare the manifest with the indexes, which are intact."""
    for name, count in Counter(shards.manifest.classes).items():
        if count > 1:
            reason = f"it has the class name {name!r} {count} times: each class needs a unique name"
            report.add([Damage(MANIFEST_NAME, None, None, None, reason)])
    for reason in totals.contradictions(shards.manifest):
        report.add([Damage(MANIFEST_NAME, None, None, None, reason)])
    if (unnamed := totals.unnamed_classes(shards.manifest)) is not None:
        report.notes.append(f"{MANIFEST_NAME}: {unnamed}")
    if shards.manifest.checksum is None:
        report.notes.append(
            f"{MANIFEST_NAME} has version {OLD_VERSION}, which has no checksum, so a changed class name cannot "
            f"be detected: check the class names, then add a checksum with `wds-tools reseal {shards.name}`"
        )


def _check_shard(shards: ShardSet, shard: int, advance: Advance) -> _Checked:
    """Check one shard."""
    entry = shards.manifest.shards[shard]
    checked = _Checked()
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size
        advance(0, size)

    try:
        index = _read_index(shards, shard, checked.damages)
        try:
            checked.damages += _check_bytes(shards, shard, index, count, checked.objects)
            checked.is_read = True
        except (ShardError, StoreError) as error:
            checked.damages.append(_damage_of(error, entry.name))
        checked.totals = None if index is None else Totals.of(index)
    except StoreError as error:
        checked.unchecked = str(error)
    finally:
        advance(0, entry.bytes - read)
    return checked


def _read_index(shards: ShardSet, shard: int, damages: list[Damage]) -> Index | None:
    """Return the index of a shard; if it is missing or damaged, return None and add that to ``damages``."""
    try:
        return shards.index(shard, keep=False)
    except (ManifestError, ShardError, StoreError) as error:
        damages.append(_damage_of(error, shards.manifest.shards[shard].name))
        return None


def _damage_of(error: Exception, shard: str) -> Damage:
    """Convert an error to a `Damage`. An error of the storage is raised again, unless a file is missing."""
    if isinstance(error, StoreError) and not isinstance(error, MissingFileError):
        raise error
    reason = str(error.args[0]) if error.args else str(error)
    return Damage(shard, None, None, getattr(error, "offset", None), reason)


def _check_bytes(
    shards: ShardSet, shard: int, index: Index | None, advance: Callable[[int], object], objects: list[str]
) -> list[Damage]:
    """Read a shard once, and return all differences between its bytes, its index and its checksum in the manifest.

    Remarks about objects in images are added to ``objects``.
    """
    entry, checksums = shards.manifest.shards[shard], ShardChecksums(index)
    name, stated = entry.name, entry.xxh3
    damages: list[Damage] = []

    def add(offset: int, data: memoryview) -> None:
        checksums.add(offset, data)
        advance(len(data))

    stream = shards.stream(shard, on_chunk=add)
    contents: list[Damage] = []
    members: list[Damage] = []
    if index is not None:
        check = ContentCheck(index, shards.manifest)
        members += _check_members(stream, index, name, check, contents)
        objects += [f"shard {name}, {remark}" for remark in check.remarks]
    stream.finish()
    if index is not None and (index.shard, index.shard_xxh3) != (name, stated):
        reason = f"its index is for {index.shard} with XXH3-128 {index.shard_xxh3}, its manifest states {stated}"
        damages.append(Damage(name, None, None, None, reason))
    for field_ in checksums.changed_fields():
        reason = (
            f"the XXH3-64 of its {field_.size:,} bytes is {field_.actual:016x}, its index states {field_.stated:016x}"
        )
        damages.append(Damage(name, field_.key, field_.name, field_.offset, reason))
    damages += members
    changed = {damage.offset for damage in damages}
    damages += [damage for damage in contents if damage.offset not in changed]
    if index is not None:
        rows = row_differences(index, shards.manifest.classes)
        damages += [Damage(name, key, None, None, reason) for key, reason in rows]
    checksum = checksums.shard_checksum()
    if checksum != stated and not damages:
        damages.append(
            Damage(
                name,
                None,
                None,
                None if index is None else _padding_damage(shards.stream(shard), index),
                f"its XXH3-128 is {checksum}, its manifest states {stated}"
                + ("" if index is None else "; fields and headers are intact, bytes between them have changed"),
            )
        )
    return sorted(damages, key=lambda damage: -1 if damage.offset is None else damage.offset)


def _check_members(
    data: tar.Bytes, index: Index, shard: str, check: ContentCheck, contents: list[Damage]
) -> Iterator[Damage]:
    """Compare the members of the archive with the index. A damaged header does not end the comparison.

    Differences between an index and the content of intact members are added to ``contents``.
    """
    expected, duplicates = _fields_by_offset(index)
    for key, name, offset in duplicates:
        yield Damage(shard, key, name, offset, "its index has two fields at this byte")
    offsets = sorted(expected)
    start = 0
    while start < len(data):
        try:
            for member in tar.walk(_Rest(data, start), shard=shard):
                yield from _check_member(member, start, expected, shard)
                offset = start + member.offset
                if offset not in expected and check.needs(offset):
                    parts = split_name(member.name) or ("", "")
                    reasons = check.differences(offset, data[offset : offset + member.size])
                    contents += [Damage(shard, *parts, offset, reason) for reason in reasons]
            break
        except ShardError as error:
            broken = start + (error.offset or 0)
            after = bisect_right(offsets, broken)
            field_after = expected.pop(offsets[after], None) if after < len(offsets) else None
            if field_after is None:
                yield Damage(shard, None, None, broken, f"after the last member: {error.args[0]}")
                break
            key, name, size = field_after
            yield Damage(shard, key, name, broken, f"its tar header: {error.args[0]}")
            start = offsets[after] + tar.padded(size)
    for offset, (key, name, size) in expected.items():
        yield Damage(shard, key, name, offset, f"its index states {size:,} bytes here, the archive has no such member")


class _Rest:
    """The bytes of an archive from ``start`` on."""

    def __init__(self, data: tar.Bytes, start: int) -> None:
        self._data = data
        self._start = start

    def __len__(self) -> int:
        return len(self._data) - self._start

    def __getitem__(self, part: slice) -> memoryview:
        return self._data[self._start + part.start : self._start + part.stop]


_FieldsByOffset = dict[int, tuple[str, str, int]]  # offset -> (key, field, size)


def _fields_by_offset(index: Index) -> tuple[_FieldsByOffset, list[tuple[str, str, int]]]:
    """Return all fields of an index, and (key, field, offset) of those whose offset another field has."""
    fields: _FieldsByOffset = {}
    duplicates = []
    for name, columns in index.fields.items():
        for key, offset, size in zip(index.keys, columns.offset.tolist(), columns.size.tolist(), strict=True):
            if offset == ABSENT:
                continue
            if offset in fields:
                duplicates.append((key, name, offset))
            fields[offset] = (key, name, size)
    return fields, duplicates


def _check_member(member: tar.Member, start: int, expected: _FieldsByOffset, shard: str) -> Iterator[Damage]:
    """Compare a member with the field at its offset, which is removed from ``expected``."""
    parts = split_name(member.name) if member.is_file else None
    if parts is None:
        return  # folders, links and hidden files are not fields
    key, name = parts
    indexed = expected.pop(start + member.offset, None)
    if indexed == (key, name, member.size):
        return
    problem = f"the archive has member {member.name[:200]!r} of {member.size:,} bytes here"
    if indexed is None:
        reason = f"{problem}, its index has no field"
    else:
        reason = f"{problem}, its index has field {indexed[1]!r} of key {indexed[0]!r} with {indexed[2]:,} bytes"
    yield Damage(shard, key, name, start + member.header_offset, reason)


def _padding_damage(data: tar.Bytes, index: Index) -> int | None:
    """Return the offset of the first byte in the padding of fields that is not zero; None if all are."""
    for offset, (_, _, size) in sorted(_fields_by_offset(index)[0].items()):
        padding = data[offset + size : offset + tar.padded(size)]
        for position, byte in enumerate(padding, offset + size):
            if byte:
                return position
    return None


def _unlisted_files(shards: ShardSet) -> list[str]:
    """Return the files in the folder of the manifest that it does not list."""
    expected = _EXPECTED_FILES | {shards.name.rpartition("/")[2]}
    for entry in shards.manifest.shards:
        expected |= {entry.name, entry.index, f"{entry.name}.idx", f"{entry.name.removesuffix('.tar')}.idx"}
    try:
        return sorted(set(shards.locations[0].store.list()) - expected)
    except (StoreError, OSError):
        return []  # plain HTTP servers cannot list files
