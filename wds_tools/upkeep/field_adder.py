"""`add_fields()`: new fields for the samples of a dataset, in separate shards, read together with the old ones.

The new shards are a dataset in a subfolder: its shards and samples have the same names and keys as the
dataset's. The manifest of the dataset lists the subfolder. See docs/decisions/0021-added-fields.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray
from tqdm import tqdm

from wds_tools.errors import DestinationError, NotADatasetError, OptionError, SampleError, SourceError, WdsToolsError
from wds_tools.format import manifest as manifests
from wds_tools.format.field_classes import ClassList, FieldClasses, to_raw
from wds_tools.format.index import ABSENT, index_name
from wds_tools.format.label import NO_NUMBER, Labels
from wds_tools.format.label_lists import LABELS, Form
from wds_tools.format.label_source import LabelSource
from wds_tools.format.manifest import MANIFEST_NAME, Addition, Manifest, ShardEntry
from wds_tools.format.sample import IMAGE_FIELDS, Sample, is_mask_name, split_name
from wds_tools.format.totals import Totals
from wds_tools.packing.destination import ADDED_FIELDS
from wds_tools.packing.encode import encode_field
from wds_tools.packing.engines import EngineName, check_engine, engine_for, in_order
from wds_tools.packing.geometry import other_size
from wds_tools.packing.ray_engine import Advance, ShardFunction
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.packing.shard_file import ShardFile
from wds_tools.reading.names import is_pattern, split_manifest
from wds_tools.reading.opening import open_shards
from wds_tools.reading.shardset import ShardSet
from wds_tools.sources.columns import plain_name
from wds_tools.sources.layouts import is_mask_field
from wds_tools.storage.commit import commit_bytes, final_name, sync_folder, write_errors
from wds_tools.storage.lock import PLAN_NAME, lock_file, unlock
from wds_tools.storage.lock import WORK_NAME as UNFINISHED_NAME
from wds_tools.terminal import shows_progress
from wds_tools.upkeep.field_source import (
    KeyedFields,
    Spool,
    has_names_of_files,
    keyed_fields,
    record_count,
    spooled_records,
)

WORK_NAME = ".adding"
_REPORT_NAME = "report.json"
Match = Literal["key", "path"]
_Names = Literal["key", "path", "path without extension"]
_RESERVED = ("cls", "image", "label", *IMAGE_FIELDS)
_BATCH = 4096
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class AddReport:
    """The result of `add_fields`.

    Attributes:
        folder: Folder of the new shards.
        fields: New field to the number of samples that have it.
        samples: Number of samples with at least one new field.
        missing: Number of samples without any new field.
        unknown: Number of keys of the source that no sample has.
        unknown_key: The first unknown key, or None.
        bytes: Length of the new shards.
        seconds: Duration.
    """

    folder: Path
    fields: dict[str, int]
    samples: int
    missing: int
    unknown: int
    unknown_key: str | None
    bytes: int
    seconds: float


def add_fields(
    dataset: str | os.PathLike[str],
    source: Any,
    *,
    name: str | None = None,
    key: str = "key",
    fields: Mapping[str, str] | None = None,
    match: Match = "key",
    strict: bool = False,
    workers: int | None = None,
    engine: EngineName = "local",
    progress: bool | None = None,
) -> AddReport:
    """Add fields to the samples of a dataset, such as captions, embeddings or masks, without rewriting it.

    The new fields are written to shards in a subfolder, and loaders read them as if they were in the old shards. The
    order of samples, the states of loaders and the shards of the dataset do not change.

    Example::

        wds_tools.add_fields("shards/photos", "captions.parquet")        # columns key and caption: the field txt
        wds_tools.make_loader("shards/photos", batch_size=256, fields=("image", "txt"))

    Args:
        dataset: Local folder of a dataset, or its manifest.
        source: A Parquet, CSV, TSV or JSON Lines file, or a folder of Parquet files; a folder of files ``KEY.FIELD``;
            tar shards; or an iterable of dictionaries with ``__key__``, as `ShardWriter` takes them. Rows may be in any
            order.
        name: Name of the subfolder; None takes the name of the source without its extension.
        key: Column of a table with the keys.
        fields: Field to column of a table, such as ``{"caption2.txt": "blip"}``, or to a field of files and shards,
            such as ``{"mask.png": "png"}``; None takes all.
        match: What the keys of the source are: ``key``, the key of a sample; or ``path``, the ``path`` in its field
            ``json``, where `pack` keeps the name of the file.
        strict: Raise an error, before the dataset changes, if a key is unknown or a sample gets no field.
        workers: Number of worker processes that write shards; 1 writes them in this process. By default it is chosen
            from the size of the fields: at most one per core.
        engine: ``local`` for processes on this machine, or ``ray`` for tasks of Ray Core on all machines of a cluster,
            one for each shard. All of them must have this package, and the folder of the dataset. Only this process
            reads the source.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.

    Returns:
        What was added.

    Raises:
        OptionError: The dataset is at a URL or a pattern, its keys repeat, or a field exists already.
        NotADatasetError: The path is not a packed dataset.
        SourceError: The source cannot be read, has a key twice, or has no key of the dataset; or, with
            ``strict``, a key is unknown or missing.
        SampleError: A value cannot be encoded for its field.
        DestinationError: The subfolder exists, another process adds fields, or the disk is full.
    """
    started = time.monotonic()
    if match not in get_args(Match):
        raise OptionError(f"match={match!r}; allowed are 'key' and 'path'")
    check_engine(engine)
    folder, manifest_name = _local(dataset)
    shards = open_shards(folder / manifest_name)
    name = _name(name, source)
    work = _Work(folder / manifest_name, name)
    path = os.fspath(source) if isinstance(source, str | Path) else None
    call = [name, path, key, sorted((fields or {}).items()), match, strict]
    try:
        with work:
            if path is not None and (report := work.finished(call)) is not None:
                return AddReport(folder / name, **report, seconds=time.monotonic() - started)
            names: _Names = "path without extension" if match == "path" and has_names_of_files(source) else match
            run = _Run(shards, work, names, strict, workers, engine, progress)
            run.read(keyed_fields(source, key=key, fields=fields or {}), record_count(source))
            added = run.write()
            report = {
                "fields": added.fields,
                "samples": added.samples,
                "missing": shards.manifest.samples - added.samples,
                "unknown": run.unknown,
                "unknown_key": run.unknown_key,
                "bytes": added.bytes,
            }
            work.finish(call, report)
            _list_addition(
                folder / manifest_name, shards.manifest, Addition(name, added.fingerprint, added.fields), run.classes
            )
    except OSError as error:
        if isinstance(error, WdsToolsError):
            raise
        state = "the fields were added" if work.is_listed() else "the dataset is unchanged"
        raise DestinationError(
            f"cannot write to {folder}: {error.strerror or error}; {state}: fix the cause, then run the same command "
            "again"
        ) from error
    return AddReport(folder / name, **report, seconds=time.monotonic() - started)


def remove_fields(dataset: str | os.PathLike[str], name: str) -> Addition:
    """Remove fields that `add_fields` added.

    Args:
        dataset: Local folder of the dataset, or its manifest.
        name: Name of the subfolder.

    Returns:
        What was removed.

    Raises:
        OptionError: The dataset is at a URL, or has no such addition.
        NotADatasetError: The path is not a packed dataset.
        DestinationError: The manifest cannot be written.
    """
    folder, manifest_name = _local(dataset)
    path = folder / manifest_name
    old = _read_manifest(path)
    removed = next((addition for addition in old.additions if addition.folder == name), None)
    if removed is None:
        names = ", ".join(repr(addition.folder) for addition in old.additions) or "none"
        raise OptionError(f"{folder} has no added fields {name!r}; it has {names}")
    lists = {
        field_path: classes
        for field_path, classes in old.field_classes.items()
        if LabelSource.parse(field_path).field not in removed.fields
    }
    with write_errors(folder, "the dataset is unchanged"):
        _write_additions(path, [addition for addition in old.additions if addition is not removed], lists)
    _remove_names(folder / name, [entry.first.name for entry in old.shards])
    return removed


def _local(dataset: str | os.PathLike[str]) -> tuple[Path, str]:
    spec = os.fspath(dataset)
    if is_pattern(spec):
        raise OptionError(f"{spec} is a pattern of shards; name the folder of a dataset: `wds-tools index` creates one")
    folder, name = split_manifest(spec)
    location = parse_destination(folder)
    if isinstance(location, str):
        raise OptionError(
            f"{location} is a URL; fields can be added only to local datasets: add them to a copy, then upload"
        )
    return location, name


def _name(name: str | None, source: Any) -> str:
    if name is None:
        name = plain_name(Path(source).name.partition(".")[0]) if isinstance(source, (str, Path)) else "added"
    if not name.replace("-", "_").isidentifier() or not name.isascii():
        raise OptionError(f"name={name!r}; allowed are letters, digits, - and _, as in 'captions'")
    return name


class _Work:
    """The subfolder of the new shards, and the work area. A ``with`` block locks the dataset for one process."""

    def __init__(self, manifest: Path, name: str) -> None:
        self.folder = manifest.parent / name
        self._manifest = manifest
        self._area = manifest.parent / WORK_NAME
        self._shards: list[str] = []

    def __enter__(self) -> _Work:
        was_killed = self._area.exists()
        try:
            self._lock = lock_file(self._area / "lock")
        except BlockingIOError as error:
            raise DestinationError(f"another process is adding fields to {self.folder.parent}; wait for it") from error
        if was_killed:
            for path in self._manifest.parent.glob(".*.tmp"):
                if final_name(path.name) == self._manifest.name:
                    path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._shards and not self.is_listed():
            _remove_names(self.folder, self._shards)
        shutil.rmtree(self.spool, ignore_errors=True)
        shutil.rmtree(self._area, ignore_errors=True)  # with the report: all else is done
        unlock(self._lock)

    def is_listed(self) -> bool:
        """Return whether the manifest lists the new fields: even if an error followed, they belong to the dataset."""
        return any(addition.folder == self.folder.name for addition in _read_manifest(self._manifest).additions)

    def finished(self, call: list[Any]) -> dict[str, Any] | None:
        """Return the report of an earlier run of the same call that was killed after its fields were listed."""
        try:
            report = json.loads((self._area / _REPORT_NAME).read_bytes())
        except (OSError, ValueError):
            return None
        is_same = report["call"] == json.loads(json.dumps(call)) and self.is_listed()
        return dict(report["report"]) if is_same else None

    def finish(self, call: list[Any], report: dict[str, Any]) -> None:
        """Record the report of a call, and that the new shards are complete."""
        commit_bytes(self._area / _REPORT_NAME, json.dumps({"call": call, "report": report}).encode())
        shutil.rmtree(self.folder / UNFINISHED_NAME)

    def begin(self, manifest: Manifest) -> None:
        """Create the subfolder; what an interrupted run left in it is removed."""
        name = self.folder.name
        if any(addition.folder == name for addition in manifest.additions):
            raise OptionError(
                f"{self.folder} has added fields already: choose another name, or remove them with `wds-tools "
                f"add-fields {self.folder.parent} --remove {name}`"
            )
        self._shards = [entry.first.name for entry in manifest.shards]
        ours = {MANIFEST_NAME, *self._shards, *map(index_name, self._shards)}
        self.folder.mkdir(exist_ok=True)
        strange = sorted(path.name for path in self.folder.iterdir() if path.name not in ours and path.name[0] != ".")
        if strange:
            self._shards = []
            raise DestinationError(f"{self.folder} contains {strange[0]}: choose another name for the new fields")
        _remove_names(self.folder, self._shards)
        (self._area / _REPORT_NAME).unlink(missing_ok=True)
        (self.folder / UNFINISHED_NAME).mkdir(parents=True)
        commit_bytes(self.folder / UNFINISHED_NAME / PLAN_NAME, json.dumps({"kind": ADDED_FIELDS}).encode())

    @property
    def spool(self) -> Path:
        """Folder for records that do not fit into memory."""
        return self._area / "records"


@dataclass
class _Run:
    """One run: reads the source, then writes the shards."""

    shards: ShardSet
    work: _Work
    match: _Names
    strict: bool
    workers: int | None
    engine: EngineName
    progress: bool | None
    unknown: int = 0
    unknown_key: str | None = None
    known: int = 0
    classes: tuple[str, ...] = ()
    _fields: set[str] = field(default_factory=set)
    _labels: Labels = field(default_factory=lambda: Labels(LABELS))
    _form: Form | None = None

    def read(self, records: Iterator[KeyedFields], total: int | None) -> None:
        """Read the source, and sort its records by shard.

        Raises:
            SourceError: No key of the source is known; with ``strict``, one is unknown.
        """
        self.work.begin(self.shards.manifest)
        self.spool = Spool(self.work.spool)
        hashes, shard_of = self._keys()
        with self._bar("reading", self.shards.manifest.samples if total is None else total) as bar:
            while batch := list(islice(records, _BATCH)):
                key_hashes = _hashes(key for key, _ in batch)
                at = np.minimum(np.searchsorted(hashes, key_hashes), len(hashes) - 1)
                is_known = hashes[at] == key_hashes
                for record, shard, is_match in zip(batch, shard_of[at].tolist(), is_known.tolist(), strict=True):
                    self._add(record, shard if is_match else None)
                bar.update(len(batch))
        if not self.known:
            example = f", such as {self.unknown_key!r}," if self.unknown_key is not None else ""
            own = next(iter(_names_of(self.shards, 0, self.match)), None)
            raise SourceError(
                f"none of the {self.unknown:,} keys of the source{example} is a {self.match} of the dataset, such as "
                f"{own!r}: name the column with --key (key=), or use --match path (match='path')"
            )
        if self.strict and self.unknown:
            raise SourceError(f"{self.unknown:,} keys of the source are unknown, such as {self.unknown_key!r}")
        numbered = self._labels.numbered()
        self.classes, self._form = tuple(numbered.classes), numbered.form

    def _add(self, record: KeyedFields, shard: int | None) -> None:
        key, fields = record
        if shard is None:
            self.unknown += 1
            self.unknown_key = key if self.unknown_key is None else self.unknown_key
            return
        for name in fields.keys() - self._fields:
            self._check_field(name)
        self.known += 1
        if LABELS in fields:
            self._labels.add(_json_list(key, fields[LABELS]))
        if fields:
            self.spool.add(shard, record)

    def _check_field(self, name: str) -> None:
        if name in _RESERVED:
            raise OptionError(
                f"field {name!r} cannot be added, because image and label of a sample are in the index of its shard: "
                f"use another name, as in --field mask.png={name} (fields={{'mask.png': {name!r}}})"
            )
        if name in self.shards.manifest.all_fields:
            raise OptionError(f"the dataset has a field {name!r}: use another name (--field NEW=COLUMN)")
        self._fields.add(name)

    def _call(
        self, function: ShardFunction, common: Any, parts: Iterable[tuple[int, Any]], size: int, advance: Advance
    ) -> Iterator[Any]:
        """Call a function for all shards, of ``size`` bytes; yield the results in the order of the shards."""
        engine = engine_for(self.engine, self.workers, size=size, shards=len(self.shards.locations))
        shared = self.shards.local_files
        with closing(engine.run(function, common, parts, advance=advance, shared=shared)) as results:
            yield from (result for _, result in in_order(results))

    def _keys(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the hashes of all keys, sorted: uint64 [n], and the index of the shard of each: int64 [n]."""
        size = sum(location.entry.index_bytes for location in self.shards.locations)
        spans = ((shard, shard) for shard in range(len(self.shards.locations)))
        parts = list(self._call(_hashes_of, (self.shards, self.match), spans, size, lambda _samples, _bytes: None))
        hashes = np.concatenate(parts)
        shard_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.argsort(hashes, kind="stable")
        hashes, shard_of = hashes[order], shard_of[order]
        if len(hashes) and (hashes[1:] == hashes[:-1]).any():
            raise OptionError(
                f"a {self.match} occurs twice in {self.shards.name}, so fields cannot be matched by it: write the "
                "samples with unique keys, with `wds-tools reshard`"
            )
        return hashes, shard_of

    def write(self) -> Manifest:
        """Write the shards and their manifest.

        Raises:
            SourceError: A key occurs twice in the source; with ``strict``, a sample gets no field.
        """
        entries, totals, other_sizes, examples = [], Totals(), Counter[str](), dict[str, str]()
        common = _Writing(self.shards, self.match, self.work.folder, self.spool.folder, self.classes, self._form)
        parts = (
            (shard, (shard, location.entry.first.name, self.spool.take(shard)))
            for shard, location in enumerate(self.shards.locations)
        )
        with self._bar("writing", self.shards.manifest.samples) as bar:
            written = self._call(
                _write_shard, common, parts, self.spool.bytes, lambda samples, _bytes: bar.update(samples)
            )
            for entry, part, shard_sizes, shard_examples in written:
                if entry is not None:
                    entries.append(entry)
                    totals.add(part)
                other_sizes.update(shard_sizes)
                examples = shard_examples | examples
        source = {"kind": ADDED_FIELDS, "match": self.match}
        manifest = Manifest(tuple(entries), dict(totals.fields), source=source)
        if self.strict and manifest.samples < self.shards.manifest.samples:
            raise SourceError(
                f"{self.shards.manifest.samples - manifest.samples:,} of {self.shards.manifest.samples:,} samples get "
                "no field, because the source has no value for them"
            )
        if not manifest.samples:
            raise SourceError("the source has no value for any sample")
        for name, count in other_sizes.items():
            _log.warning(
                f"{self.work.folder.parent}: {count:,} of {totals.fields[name]:,} fields {name} do not have the size "
                f"of the stored image ({examples[name]}), so a loader cannot crop them with like=: resize them to the "
                "size of the stored images, by nearest neighbour"
            )
        commit_bytes(self.work.folder / MANIFEST_NAME, manifests.to_json(manifest).encode())
        return manifest

    def _bar(self, what: str, total: int) -> Any:
        hidden = not shows_progress(self.progress)
        return tqdm(desc=what, total=total, unit=" samples", disable=hidden, file=sys.stderr)


def _names_of(shards: ShardSet, shard: int, match: _Names) -> list[str]:
    """Return what the keys of the source are compared with, for the samples of a shard."""
    index = shards.index(shard, keep=False)
    if match == "key":
        return index.keys
    columns = index.fields.get("json")
    if columns is None or (columns.offset == ABSENT).any():
        raise OptionError(f"{shards.shard_url(shard)} has samples without the field json: match by key")
    spans = list(zip(columns.offset.tolist(), (columns.offset + columns.size).tolist(), strict=True))
    paths = []
    for key, data in zip(index.keys, shards.fetch(shard, spans), strict=True):
        value = json.loads(bytes(data))
        path = value.get("path") if isinstance(value, dict) else None
        if not isinstance(path, str):
            raise SampleError("its field json has no path: match by key", shard=index.shard, key=key)
        paths.append((split_name(path) or (path,))[0] if match == "path without extension" else path)
    return paths


def _hashes_of(common: tuple[ShardSet, _Names], shard: int, _advance: Advance) -> NDArray[np.uint64]:
    shards, match = common
    return _hashes(_names_of(shards, shard, match))


@dataclass(frozen=True)
class _Writing:
    """What all new shards have in common.

    Attributes:
        match: What the keys of the source are.
        spool: Folder of the records that did not fit into memory.
    """

    shards: ShardSet
    match: _Names
    folder: Path
    spool: Path
    classes: tuple[str, ...]
    form: Form | None

    def class_numbers(self, data: bytes) -> bytes:
        """Return the labels of a sample as a list of class numbers."""
        labels = Labels(LABELS, form=self.form)
        labels.add(json.loads(data))
        numbered = labels.numbered(own=self.classes)
        numbers = numbered.numbers.tolist() if numbered.several is None else numbered.several[0] or ()
        return encode_field(LABELS, [number for number in numbers if number != NO_NUMBER])


def _write_shard(
    writing: _Writing, part: tuple[int, str, list[KeyedFields]], advance: Advance
) -> tuple[ShardEntry | None, Totals, Counter[str], dict[str, str]]:
    """Write a shard of new fields where an engine calls this function.

    Returns:
        The entry and totals of the shard; for each field, the number of masks that do not have the size of the stored
        image, and an example of one.
    """
    index, name, kept = part
    fields_by_key: dict[str, dict[str, bytes]] = {}
    for key, fields in itertools.chain(spooled_records(writing.spool, index), kept):
        old = fields_by_key.setdefault(key, {})
        if twice := old.keys() & fields.keys():
            raise SourceError(f"key {key!r} occurs twice in the source, with field {min(twice)!r}")
        old.update(fields)
    stored = writing.shards.index(index, keep=False)
    other_sizes, examples = Counter[str](), dict[str, str]()
    with ShardFile(writing.folder / name) as shard:
        for row, name_in_source in enumerate(_names_of(writing.shards, index, writing.match)):
            key, size = stored.keys[row], (int(stored.height[row]), int(stored.width[row]))
            fields = fields_by_key.get(name_in_source, {})
            if LABELS in fields:
                fields[LABELS] = writing.class_numbers(fields[LABELS])
            if fields:
                shard.write(Sample(key, dict(sorted(fields.items()))))
            for field_name in fields if all(size) else ():
                is_mask = is_mask_name(field_name) or is_mask_field(field_name)
                if is_mask and (mask_size := other_size(fields[field_name], size)):
                    other_sizes[field_name] += 1
                    example = f"{mask_size[1]}x{mask_size[0]} for {size[1]}x{size[0]} in sample {key!r}"
                    examples.setdefault(field_name, example)
    advance(len(stored), 0)
    entry, totals = (None, Totals()) if shard.index is None else (shard.entry, Totals.of(shard.index))
    return entry, totals, other_sizes, examples


def _json_list(key: str, data: bytes) -> Any:
    """Return the labels in a field `LABELS` of the source: numbers, or names that get numbers."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"field {LABELS!r} of {key!r} is not JSON: {error}") from error


def _hashes(keys: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) for key in keys], np.uint64)


def _list_addition(path: Path, expected: Manifest, addition: Addition, classes: tuple[str, ...]) -> None:
    """Add an addition to the manifest, which must be the one that was opened."""
    current = _read_manifest(path)
    if current.checksum != expected.checksum:
        raise DestinationError(f"{path} was changed while fields were added: run the same command again")
    lists = {LABELS: ClassList(classes)} if classes else {}
    _write_additions(path, [*current.additions, addition], {**current.field_classes, **lists})


def _read_manifest(path: Path) -> Manifest:
    try:
        return manifests.from_json(path.read_bytes(), name=str(path))
    except FileNotFoundError:
        raise NotADatasetError(f"{path} does not exist; name the folder of a dataset, or its manifest") from None


def _write_additions(path: Path, additions: Iterable[Addition], field_classes: FieldClasses) -> None:
    raw, _ = manifests.from_unsealed(path.read_bytes(), name=str(path))
    for name in ("additions", "field_classes"):
        raw.pop(name, None)
    if field_classes:
        raw["field_classes"] = to_raw(field_classes)
    if listed := [asdict(addition) for addition in additions]:
        raw["additions"] = listed
    commit_bytes(path, manifests.seal(raw).encode())


def _remove_names(folder: Path, shards: Iterable[str]) -> None:
    """Remove the files of added fields, the manifest first, and the folder if it is then empty."""
    for name in (MANIFEST_NAME, *(file for shard in shards for file in (shard, index_name(shard)))):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        shutil.rmtree(folder / UNFINISHED_NAME, ignore_errors=True)
        folder.rmdir()
        sync_folder(folder.parent)
