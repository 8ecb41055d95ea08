"""`index_shards()`: writes indexes and a manifest for existing tar shards, reading each shard once."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray
from tqdm import tqdm

from wds_tools.errors import (
    DestinationError,
    LabelError,
    ManifestError,
    OptionError,
    ShardError,
    StoreError,
)
from wds_tools.format import manifest as manifests
from wds_tools.format.class_notes import note_on_other_numbers
from wds_tools.format.dots import Dots
from wds_tools.format.image_signature import COLUMNS as SIGNATURES
from wds_tools.format.image_signature import has_signatures
from wds_tools.format.index import (
    NO_LABEL,
    Index,
    content_checksum,
    from_bytes,
    index_names,
    shard_entry,
    to_bytes,
)
from wds_tools.format.index_edit import add_columns, is_index, read_columns, relabel
from wds_tools.format.label import NO_NUMBER, Classes, Labels, LabelType, Numbered
from wds_tools.format.label_lists import several_in_an_index
from wds_tools.format.label_source import INDEX, LabelSource, NamesOfNumbers
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import card
from wds_tools.packing.config import class_names
from wds_tools.packing.destination import other_splits
from wds_tools.packing.engines import EngineName, check_engine, engine_for, in_order
from wds_tools.packing.ray_engine import Advance
from wds_tools.reading.opening import open_shards
from wds_tools.reading.repeated_keys import find_repeated_key
from wds_tools.signatures import takes
from wds_tools.sources.label_choice import names_by_number
from wds_tools.storage import is_url, join
from wds_tools.storage.commit import write_errors
from wds_tools.storage.patterns import has_pattern
from wds_tools.terminal import shows_progress
from wds_tools.upkeep.index_folder import (
    NOT_WRITABLE,
    IndexFolder,
    LocalShards,
    RemoteShards,
    Replaced,
    check_splits,
    open_folders,
)
from wds_tools.upkeep.shard_scan import DOTS_REMEDY, ScanResult, columns_by_key, is_table, scan_shard
from wds_tools.wording import counted

SOURCE_KIND = "shards"
"""``source.kind`` of the manifest. `pack` did not write such shards, so it never removes them."""

_log = logging.getLogger("wds_tools")


@dataclass(frozen=True)
class IndexOptions:
    """The options of `index_shards`, which documents them, and of `index_folders`."""

    patterns: str | Sequence[str]
    _: KW_ONLY
    manifest: str | None = None
    label: str | None = None
    classes: str | Path | Sequence[str] | None = None
    label_type: LabelType | None = None
    dots_in_fields: bool = False
    workers: int | None = None
    engine: EngineName = "local"
    progress: bool | None = None
    storage_options: Mapping[str, Any] | None = None


@takes(IndexOptions)
def index_shards(options: IndexOptions) -> Manifest:  # noqa: D417 - callers pass the fields of the options
    """Write an index next to each shard, and then a manifest.

    If another tool has written a table next to a shard, as img2dataset writes ``00000.parquet`` next to ``00000.tar``,
    the index is named ``00000.index.parquet``. Columns of the table become columns of the index, by the column
    ``key``: ``where=`` accepts them.

    Args:
        patterns: Shards of one folder, as one pattern or several: names, globs, or braces such as
            ``train-{000000..000009}.tar``. They may be URLs that fsspec can write to, such as ``s3://bucket/train/*.tar``:
            shards are then read in ranges of a few MiB, and indexes and manifest are uploaded.
        manifest: File name of the manifest; None means ``manifest.json``.
        label: Where labels are: a field such as ``cls`` or ``y.txt``, an entry of a JSON field such as ``json:label``
            or ``json:meta.label``, or ``folder`` for class folders in the keys, as in ``cat/0001.jpg``. None takes
            that of an existing manifest, otherwise ``cls``. Names get numbers in sorted order.
        classes: Class names by number, or a file with one name per line. By default those that an existing manifest
            has for this label, and then new names in sorted order; for numbers in ``cls``, the names that `pack` wrote
            next to them, as "class" in ``json``.
        label_type: "name" or "number": how to read labels that could be either. By default whole
            numbers are numbers, other texts are names, and both together are an error.
        dots_in_fields: Names such as ``photo.2024.01.jpg`` mean the key ``photo`` and the field
            ``2024.01.jpg``. By default, it is an error if this would put several images whose keys
            seem to have dots into one sample.
        workers: Number of worker processes; 1 reads the shards in this process. By default it is chosen from their
            size: at most one per core.
        engine: ``local`` for processes on this machine, or ``ray`` for tasks of Ray Core on all machines of a cluster,
            one for each shard. All of them must have this package and reach the shards. Only this process writes.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        The manifest. Members that are not fields of samples, and broken images, are logged as warnings.

    Raises:
        NotADatasetError: A pattern matches nothing, a shard does not exist, or a command that writes the folder was
            interrupted.
        OptionError: Shards are in several folders, or of several splits that the patterns do not name; a shard is
            given twice, a URL is not writable, or ``label`` is invalid.
        ShardError: A shard is damaged, truncated or not a WebDataset; the error names shard and byte.
            Or keys have dots, or a table next to a shard cannot be read; or numbers in ``cls`` and names in ``json``
            contradict each other.
        LabelError: Labels that are not whole numbers or names, or both numbers and names, or not among ``classes``.
        DestinationError: The folder cannot be written to, or has other files with the names of
            indexes or manifest.
        StoreError: The storage at a URL fails.
    """
    jobs = _open(options)
    if len(jobs) > 1:
        raise OptionError(
            f"shards are in {len(jobs)} folders ({jobs[0].folder.name}, {jobs[1].folder.name}, ...); allowed is one, "
            "because a manifest is in the folder of its shards: index them with index_folders()"
        )
    return _index(jobs, options)[0]


@takes(IndexOptions)
def index_folders(options: IndexOptions) -> dict[str, Manifest]:  # noqa: D417 - callers pass the fields of the options
    """Write indexes and manifests for shards in several folders, such as ``train`` and ``val``.

    It calls `index_shards` for each folder, but class names have the same numbers in all of them.

    `index_shards` describes the arguments that are not listed here.

    Args:
        patterns: Shards of any number of folders.

    Returns:
        The manifest of each folder, by its path or URL. The errors are those of `index_shards`.
    """
    jobs = _open(options)
    return {job.folder.name: new for job, new in zip(jobs, _index(jobs, options), strict=True)}


class _Files(NamedTuple):
    """The files next to a shard.

    Attributes:
        table: Name of another tool's table.
        listed_by: Path of another manifest that lists the index, which therefore stays as it is.
    """

    index_file: str
    exists: bool
    table: str | None
    listed_by: str | None = None


@dataclass(slots=True)
class _Job:
    """The shards of one folder.

    Attributes:
        label: Where labels are, as given or as in the existing manifest; None for the default.
        others: The manifests of other shards in the folder, such as those of another split.
        labels: The label of each sample of all shards as it is stored.
        texts: The different texts among them, each kept once.
        numbers: int64 [n] for each shard, the labels that its index has.
        kept: For each shard, whether its existing index stays as it is.
        entries: Entries for the manifest, of the shards that have been indexed so far.
        replaced: The index files as they were, which come back if the run is refused.
    """

    folder: IndexFolder
    shards: list[str]
    files: list[_Files]
    manifest_name: str
    old: Manifest | None
    label: str | None
    others: tuple[Manifest, ...]
    labels: list[Any] = field(default_factory=list)
    texts: dict[bytes | str, bytes | str] = field(default_factory=dict)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    entries: list[ShardEntry] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    replaced: Replaced = field(default_factory=Replaced)

    @property
    def source(self) -> LabelSource:
        """Where labels are."""
        return LabelSource.given(self.label or "cls")

    @property
    def known_classes(self) -> tuple[str, ...]:
        """The classes that the existing manifest has for this label."""
        is_same = self.old is not None and LabelSource.parse(self.old.label or "cls") == self.source
        return self.old.classes if self.old is not None and is_same else ()


def _open(options: IndexOptions) -> list[_Job]:
    if options.label is not None:
        LabelSource.parse(options.label)
    patterns = [options.patterns] if isinstance(options.patterns, str) else options.patterns
    name, jobs = manifests.checked_name(options.manifest), []
    for folder, shards in open_folders(patterns, RemoteOptions.of(storage_options=options.storage_options)):
        old = _old_manifest(folder, name, shards)
        if old is None:
            check_splits(folder, shards, " ".join(filter(has_pattern, patterns)))
        recorded = old.label if old is not None else None
        others = dict(manifests.manifests_among({*folder.names()} - {name}, partial(_content, folder)))
        listed = {entry.index: join(folder.name, file) for file in others for entry in others[file].shards}
        files = [
            file._replace(listed_by=listed.get(file.index_file)) for file in map(partial(_files_beside, folder), shards)
        ]
        jobs.append(_Job(folder, shards, files, name, old, options.label or recorded, tuple(others.values())))
    return jobs


def _index(jobs: Sequence[_Job], options: IndexOptions) -> list[Manifest]:
    """Write the indexes of all folders, then their manifests."""
    classes, label_type = class_names(options.classes), options.label_type
    check_engine(options.engine)
    remote = RemoteOptions.of(storage_options=options.storage_options)
    written: list[Manifest] = []
    names = NamesOfNumbers()
    unfinished = deque(jobs)  # their manifests are not written yet
    try:
        with _progress_bar(jobs, options.progress) as bar:
            for job in jobs:
                _index_folder(job, bar, names, options)
        numbered = _named(_number(jobs, classes, label_type), names, jobs)
        _check_labels(jobs)
        for note in (*numbered.notes, *_notes_on_missing(jobs), *_notes_on_others(jobs, numbered.classes)):
            _log.warning("%s", note)
        for job, numbers in zip(jobs, _divided(numbered.numbers, [len(job.labels) for job in jobs]), strict=True):
            _relabel(job, numbers)
            written.append(_write_manifest(job, numbered.classes))
            unfinished.popleft()
            path = join(job.folder.name, job.manifest_name)
            if (repeated := find_repeated_key(open_shards(path, remote=remote))) is not None:
                _log.warning("%s", repeated)
    except BaseException:
        for job in unfinished:
            job.folder.remove(file.index_file for file in job.files if not file.exists)
            job.replaced.restore(job.folder)
        with write_errors((unfinished[0] if unfinished else jobs[-1]).folder.name, NOT_WRITABLE):
            raise
    finally:
        for job in jobs:
            job.replaced.close()
    return written


def _check_labels(jobs: Sequence[_Job]) -> None:
    """Refuse a label that the user has chosen and that no sample has."""
    if any(job.label for job in jobs) and all(value is None for job in jobs for value in job.labels):
        fields = dict.fromkeys(name for job in jobs for name in job.totals.fields)
        raise ShardError(
            f"no sample has the label {jobs[0].label!r}; the fields are {', '.join(fields)}: choose another label, "
            "such as --label cls, json:label or folder (label=)"
        )


def _notes_on_missing(jobs: Sequence[_Job]) -> list[str]:
    """Return a note if some samples have no label, and others have one."""
    are_missing = [value is None for job in jobs for value in job.labels]
    missing, samples = sum(are_missing), len(are_missing)
    note = f"{missing:,} of {samples:,} samples have no label: load the others with where='label >= 0'"
    return [note] if 0 < missing < samples else []


def _write_manifest(job: _Job, classes: tuple[str, ...]) -> Manifest:
    """Write the manifest of a folder, and its card; a folder of several datasets has no card."""
    new = _manifest_of(job, classes)
    if job.manifest_name == MANIFEST_NAME:
        job.folder.write_card(card(new))
    job.folder.write(job.manifest_name, manifests.to_json(new).encode())
    return new


def _progress_bar(jobs: Sequence[_Job], progress: bool | None) -> Any:
    total = sum(job.folder.size(shard) for job in jobs for shard in job.shards)
    return tqdm(total=total, unit="B", unit_scale=True, disable=not shows_progress(progress), file=sys.stderr)


def _scan(
    common: tuple[LocalShards | RemoteShards, LabelSource, bool], part: tuple[str, int], advance: Advance
) -> tuple[ScanResult, NamesOfNumbers]:
    """Read a shard where an engine calls this function."""
    shards, label, compares = common
    shard, size = part
    names = NamesOfNumbers()
    with shards.open(shard, size, lambda size: advance(0, size)) as view:
        return scan_shard(view, shard, label, names if compares else None), names


def _index_folder(job: _Job, bar: Any, names: NamesOfNumbers, options: IndexOptions) -> None:
    """Write the index of every shard of a folder."""
    dots = Dots()
    is_usual = job.label is None
    is_chosen = (
        bool(options.label_type) or job.source != LabelSource() or (job.old is not None and job.old.label is not None)
    )
    parts = [(shard, job.folder.size(shard)) for shard in job.shards]
    engine = engine_for(options.engine, options.workers, size=sum(size for _, size in parts), shards=len(parts))
    results = engine.run(
        _scan,
        (job.folder.shards, job.source, is_usual),
        enumerate(parts),
        advance=lambda _, size: bar.update(size),
        shared=[] if job.folder.folder is None else [job.folder.folder / job.shards[0]],
    )
    with closing(results):
        for index, (result, scanned) in in_order(results):
            names.update(scanned)
            _add_shard(job, result, job.files[index], is_chosen=is_chosen)
            dots.add_index(result.index)
    if not any(entry.samples for entry in job.entries):
        raise ShardError(
            f"no sample in {counted(len(job.shards), 'shard')}: members need names such as 000001.jpg, 000001.cls"
        )
    if dots.belong_to_keys and not options.dots_in_fields:
        raise ShardError(f"{dots}. {DOTS_REMEDY}")


def _add_shard(job: _Job, result: ScanResult, files: _Files, *, is_chosen: bool) -> None:
    """Write the index of a shard, and add what the manifest needs to the job."""
    kept = None
    if files.exists or files.listed_by:
        kept = _kept_index(job.folder, result.index, files, is_chosen=is_chosen)
    job.labels += [
        job.texts.setdefault(value, value) if isinstance(value, bytes | str) else value for value in result.labels
    ]
    job.numbers.append(result.index.label if kept is None else kept.label)
    job.kept.append(kept is not None)
    job.entries.append(_write_index(job, result.index, files, is_kept=kept is not None))
    job.totals.add(Totals.of(result.index))
    _log_warnings(result)


def _kept_index(folder: IndexFolder, new: Index, files: _Files, *, is_chosen: bool) -> Index | None:
    """Return the existing index of the same shard if another manifest lists it; None if it may be replaced.

    Raises:
        DestinationError: The index is listed, and the new one is different, or it is missing or damaged. Or it has
            other class numbers than the field cls, as after `merge`.
    """
    try:
        old = from_bytes(folder.read(files.index_file) or b"", name=files.index_file)
    except ManifestError as error:
        if files.listed_by:
            raise _in_use(files, new.shard, "is missing or damaged") from error
        return None  # it is replaced
    if files.listed_by and content_checksum(replace(old, label=new.label)) != content_checksum(new):
        raise _in_use(files, new.shard, "is of another shard, or has other keys or fields")
    if old.shard_xxh3 != new.shard_xxh3:
        return None
    differs = np.flatnonzero((old.label != new.label) & (old.label != NO_LABEL) & (new.label != NO_LABEL))
    if len(differs) and (files.listed_by or not is_chosen):
        row = int(differs[0])
        labels = f"key {new.keys[row]!r}: {old.label[row]}, and {new.label[row]}"
        if files.listed_by:
            raise _in_use(files, new.shard, f"has other labels ({labels})")
        raise DestinationError(
            f"{join(folder.name, files.index_file)} has labels that differ from the field cls of the shard ({labels}), "
            "as after `wds-tools merge`: keep that index and run the merge again; if `wds-tools index` wrote it, "
            "repeat its --label (label=), or remove it to replace its labels",
            shard=new.shard,
        )
    return old if files.listed_by else None


def _in_use(files: _Files, shard: str, difference: str) -> DestinationError:
    return DestinationError(
        f"{files.listed_by} lists this shard with the index {files.index_file}, which {difference}. A shard has one "
        "index, and another one would damage that dataset: read or repair that dataset, remove its manifest, or index "
        "links to the shards in another folder",
        shard=shard,
    )


def _number(jobs: Sequence[_Job], classes: tuple[str, ...] | None, label_type: LabelType | None) -> Numbered:
    """Return the labels of all samples of all folders as numbers.

    Classes of existing manifests keep their numbers, and new names follow in sorted order. A manifest of other shards
    in the folder counts if it has some of the names.
    """
    where = jobs[0].folder.name if len(jobs) == 1 else f"{jobs[0].folder.name} and other folders"
    labels = Labels(f"{where}, {jobs[0].source}", label_type=label_type)
    for value in jobs[0].source.resolved([value for job in jobs for value in job.labels]):
        labels.add(value)
    if classes is not None:
        return _one_each(labels.numbered(classes), jobs[0])
    numbered = _one_each(labels.numbered(), jobs[0])
    earlier = Classes(dict.fromkeys(name for job in jobs for name in job.known_classes))
    if not earlier:
        lists = (manifest.classes for job in jobs for manifest in job.others)
        earlier = Classes(next((names for names in lists if {*names} & {*numbered.classes}), ()))
    return labels.numbered(own=earlier.united(numbered.classes)[0]) if earlier and numbered.classes else numbered


def _named(numbered: Numbered, names: NamesOfNumbers, jobs: Sequence[_Job]) -> Numbered:
    """Return labels with the class names that `pack` wrote next to their numbers, if no others are known."""
    if names.contradiction:
        raise ShardError(f"{jobs[0].folder.name}: {names.remedy}")
    if numbered.classes or any(job.known_classes for job in jobs):
        return numbered
    if names.are_incomplete:
        note = f"the class names in the field json are not used, because sample {names.unnamed!r} has only a number"
        return numbered._replace(notes=(*numbered.notes, note))
    return numbered._replace(classes=Classes(names_by_number(names.by_number) or ()))


def _one_each(numbered: Numbered, job: _Job) -> Numbered:
    """Return labels if each sample has at most one, because the index has one for each."""
    if numbered.several is None:
        return numbered
    raise LabelError(f"{job.folder.name}: {several_in_an_index(str(job.source))}")


def _notes_on_others(jobs: Sequence[_Job], classes: Sequence[str]) -> list[str]:
    """Return notes about manifests of other splits that have other numbers for these classes."""
    theirs: dict[Any, tuple[str, ...]] = {
        f"another manifest in {j.folder.name}": m.classes for j in jobs for m in j.others
    }
    here = {Path(job.folder.name).resolve() for job in jobs if not is_url(job.folder.name)}
    theirs |= {path: names for folder in here for path, names in other_splits(folder).items() if path not in here}
    return [note for where, names in theirs.items() for note in note_on_other_numbers(where, names, classes)]


def _divided(numbers: NDArray[np.int64], counts: Sequence[int]) -> list[NDArray[np.int64]]:
    return np.split(numbers, np.cumsum(counts)[:-1])


def _relabel(job: _Job, numbers: NDArray[np.int64]) -> None:
    """Write class numbers to the indexes that have different ones."""
    parts = _divided(np.where(numbers == NO_NUMBER, NO_LABEL, numbers), [len(part) for part in job.numbers])
    changed = [position for position, part in enumerate(parts) if not np.array_equal(job.numbers[position], part)]
    for position in changed:
        if job.kept[position]:
            raise _in_use(job.files[position], job.shards[position], "has other labels")
    for position in changed:
        entry = job.entries[position]
        data = relabel(job.folder.read(entry.index) or b"", parts[position], name=join(job.folder.name, entry.index))
        job.folder.write(entry.index, data)
        job.entries[position] = replace(entry, index_bytes=len(data), index_xxh3=xxhash.xxh3_128_hexdigest(data))


def _manifest_of(job: _Job, classes: tuple[str, ...]) -> Manifest:
    """Return the manifest of a folder. What the old one states about the same shards is still true."""
    label = job.label if job.label not in (None, "cls") else None
    new = Manifest(
        tuple(job.entries),
        dict(job.totals.fields),
        classes,
        images=job.totals.images,
        source={"kind": SOURCE_KIND},
        label=label,
    )
    old = job.old
    if old is None:
        return new
    if not classes and old.label == label:
        classes = old.classes
    if old.fingerprint == new.fingerprint:
        new = replace(new, shuffled=old.shuffled, source=old.source, account=old.account)
    elif old.fingerprint != manifests.fingerprint(new.shards[: len(old.shards)]):
        return new
    before = {shard.name: shard.before for shard in old.shards}
    shards = tuple(replace(entry, before=before.get(entry.name)) for entry in new.shards)
    return replace(new, shards=shards, classes=classes, additions=old.additions, field_classes=old.field_classes)


def _old_manifest(folder: IndexFolder, name: str, shards: Sequence[str]) -> Manifest | None:
    """Return an existing manifest, which must list the same shards or the first of them."""
    path = join(folder.name, name)
    try:
        data = folder.read(name)
        old = None if data is None else manifests.from_json(data, name=path)
    except StoreError:
        raise
    except (ManifestError, OSError) as error:
        raise DestinationError(
            f"{path} exists and is not a manifest: {error}; remove it, or choose another name"
        ) from error
    if old is None:
        return None
    if old.label == INDEX:
        raise DestinationError(
            f"{path} states that the labels are only in the indexes, as after `wds-tools merge`, so they cannot be "
            "read from the shards: restore a damaged file from a copy or by merging again, or write shards that have "
            "the labels with `wds-tools reshard`"
        )
    listed = [entry.name for entry in old.shards]
    if listed != list(shards[: len(listed)]):
        raise DestinationError(
            f"{path} lists other shards ({len(listed)}, from {listed[:1]}; given are {len(shards)}, from "
            f"{list(shards[:1])}): choose another name with --manifest, or remove that file"
        )
    return old


def _write_index(job: _Job, index: Index, files: _Files, *, is_kept: bool) -> ShardEntry:
    """Write an index, or keep it; return the entry of the shard.

    It gets the signatures of an existing index of the same shard, and the columns of another tool's table.
    """
    folder = job.folder
    old = (folder.read(files.index_file) or b"") if files.exists else b""
    data = old if is_kept else to_bytes(index)
    if not is_kept and (signatures := _signatures_of(old, index, files.index_file)) is not None:
        data = add_columns(data, signatures)
    if files.table is not None and not is_kept:
        columns = columns_by_key(folder.read(files.table) or b"", index.keys, name=join(folder.name, files.table))
        if columns is None:
            _log.warning("%s has no text column 'key', so its columns are not used", files.table)
        elif columns.num_columns:
            data = add_columns(data, columns)
    if not is_kept:
        if files.exists:
            job.replaced.add(files.index_file, old)
        folder.write(files.index_file, data)
    return shard_entry(
        index.shard,
        data,
        samples=len(index),
        shard_bytes=index.shard_bytes,
        shard_xxh3=index.shard_xxh3,
        name=files.index_file,
    )


def _signatures_of(data: bytes, new: Index, name: str) -> pa.Table | None:
    """Return the signatures that an existing index has, if it is that of the same shard; otherwise None."""
    try:
        old = from_bytes(data, name=name, samples=len(new))
        is_same = old.shard_xxh3 == new.shard_xxh3 and old.keys == new.keys
        return read_columns(data, SIGNATURES, name=name) if is_same and has_signatures(old.columns) else None
    except ManifestError:
        return None


def _files_beside(folder: IndexFolder, shard: str) -> _Files:
    """Choose the name of an index. An existing index is replaced; the file of another tool is not."""
    table = None
    for name in index_names(shard):
        data = folder.read(name)
        if data is None or is_index(data):
            return _Files(name, data is not None, table)
        if table is not None or not is_table(data):
            break
        table = name
    raise DestinationError(f"{join(folder.name, name)} exists and is not an index of wds_tools: move it away first")


def _content(folder: IndexFolder, name: str) -> bytes:
    return folder.read(name) or b""


def _log_warnings(result: ScanResult) -> None:
    if result.ignored:
        _log.warning("%s: %d members do not belong to samples and are ignored", result.index.shard, result.ignored)
    if result.broken:
        _log.warning(
            "%s: the images of %d samples cannot be read, the first is %s",
            result.index.shard,
            len(result.broken),
            result.broken[0],
        )
