"""`unpack()`: restores the files of a dataset, as the tree that was packed or as one file per field."""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm
from xxhash import xxh3_64_intdigest

from wds_tools.errors import DestinationError, MissingFieldError, OptionError
from wds_tools.format.field_classes import CLASS_LISTS_NAME, LABEL_PATH, ClassList, to_raw
from wds_tools.format.index import ABSENT, NO_LABEL
from wds_tools.format.label_source import INDEX, LabelSource
from wds_tools.format.manifest import Manifest
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.options import RemoteOptions
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.reading.opening import open_shards
from wds_tools.reading.shardset import ShardSet
from wds_tools.reading.stored_samples import StoredSample, stored_samples
from wds_tools.storage.commit import write_errors
from wds_tools.storage.local import LocalStore
from wds_tools.storage.lock import UNPACK_NAME
from wds_tools.terminal import phase_bar, shows_progress
from wds_tools.upkeep.restore import RestoreFolder, check_path, written_twice

UnpackLayout = Literal["paths", "keys", "shards"]
LAYOUTS = ("paths", "keys", "shards")

_IMAGE_EXTENSIONS = tuple(f".{name}" for name in IMAGE_FIELDS)


@dataclass(slots=True)
class UnpackReport:
    """The result of `unpack`.

    Attributes:
        dst: The folder.
        samples: Number of samples.
        written: Number of files that were written.
        kept: Number of files that already existed with the same content.
        bytes: Length of all these files in bytes.
        seconds: Duration.
    """

    dst: Path
    samples: int = 0
    written: int = 0
    kept: int = 0
    bytes: int = 0
    seconds: float = 0.0


def unpack(
    dataset: str | os.PathLike[str],
    dst: str | Path,
    *,
    fields: Sequence[str] | None = None,
    layout: UnpackLayout = "paths",
    overwrite: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> UnpackReport:
    """Write the samples of a dataset to files; checksums are verified first.

    An image that was packed from a file gets its original path, which is in the ``json`` field of the
    sample; raw pixels become ``cat/1.jpg.npy``. Fields without further information (``cls`` and
    ``json`` as `pack` wrote them) are omitted. Other fields are written next to the image, as
    ``cat/1.jpg.txt``. A sample without a path becomes files named ``<key>.<field>``. The class lists of
    fields, and class names if there are ``cls`` files, are written to ``field_classes.json``, which `pack` reads.

    The folder must be empty, or not exist. After an interruption the same call continues: files that exist with the
    same content are kept. A call with a different dataset, layout or fields is refused.
    Nothing is written outside ``dst``, and two samples are never written to the same file: this is checked before the
    first file is written, except for paths in the ``json`` field of a dataset at a URL.

    Example::

        wds_tools.unpack("shards/photos", "photos").written  # 1281167

    Args:
        dataset: Folder or URL with a manifest, the manifest itself, or a pattern of indexed shards.
        dst: Folder to write to; created if it does not exist.
        fields: Fields to write; ``"image"`` means the image of a sample, whatever its type. None
            writes all fields.
        layout: ``"paths"`` as above; ``"keys"`` names all files ``<key>.<field>``; ``"shards"``
            does this in one folder per shard, for datasets whose keys are only unique within a
            shard.
        overwrite: Accept a folder that is not empty, and replace existing files with other content.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        How many files were written and kept.

    Raises:
        OptionError: An unknown layout, ``dst`` is a URL or the folder of the dataset, or two samples have the same
            path.
        NotADatasetError: The path is not a packed dataset.
        MissingFieldError: The dataset has no field of that name.
        ChecksumError: Bytes have changed since they were packed.
        DestinationError: The folder is not empty, or a call with other arguments was interrupted there; a path leads
            outside ``dst``, or the disk is full. The error names shard and key.
    """
    started = time.monotonic()
    if layout not in LAYOUTS:
        raise OptionError(f"layout={layout!r}; allowed are {', '.join(LAYOUTS)}")
    dst = parse_destination(dst)
    if isinstance(dst, str):
        raise OptionError(f"{dst} is not a local folder; unpack into a local folder")
    shards = open_shards(
        dataset, remote=RemoteOptions.of(None, 1, storage_options=storage_options)
    )  # no cache, as every byte is read only once
    requested = _wanted(shards, fields)
    _check_not_dataset(shards, dst)
    if not overwrite:
        _check_empty(dst)
    report = UnpackReport(dst)
    show = shows_progress(progress)
    total = shards.manifest.samples
    _check_names(shards, requested, layout, progress)
    advice = "the files so far are kept: fix the cause, then run the same command again to continue"
    with (
        write_errors(dst, advice),
        RestoreFolder(report.dst, plan=_plan(shards, requested, layout), overwrite=overwrite) as folder,
    ):
        with tqdm(total=total, unit=" samples", disable=not show, file=sys.stderr) as bar:
            has_numbers = False
            for shard in range(len(shards.locations)):
                for sample in _with_indexed_labels(shards, shard):
                    has_numbers |= _restore(folder, sample, requested, layout, report)
                    bar.update()
            _put_class_lists(folder, shards.manifest, requested, report, has_numbers=has_numbers)
        os.sync()  # once at the end: an fsync for each of a million files would take hours
    report.seconds = time.monotonic() - started
    return report


def _check_names(
    shards: ShardSet, requested: frozenset[str] | None, layout: UnpackLayout, progress: bool | None
) -> None:
    """Refuse files of one name for two samples, before any file is written.

    Names follow from the indexes and, in layout "paths", from the field ``json``. At a URL, this field would take a
    request for each sample: there, such names are found when they are written.
    """
    if layout == "paths" and "json" in shards.manifest.all_fields and shards.is_remote:
        return
    hashes = array("Q")  # one number for each file, instead of its name
    for shard in phase_bar("checking names", range(len(shards.locations)), progress=progress):
        hashes.extend(xxh3_64_intdigest(path) for _, path in _names(shards, shard, requested, layout))
    values, counts = np.unique(np.frombuffer(hashes, np.uint64), return_counts=True)
    repeated = {*values[counts > 1].tolist()}
    seen: set[bytes] = set()
    for shard in range(len(shards.locations)) if repeated else ():
        for sample, path in _names(shards, shard, requested, layout):
            if path in seen:
                with _named(sample):
                    raise written_twice(os.fsdecode(path))
            if xxh3_64_intdigest(path) in repeated:
                seen.add(path)


def _names(
    shards: ShardSet, shard: int, requested: frozenset[str] | None, layout: UnpackLayout
) -> Iterator[tuple[StoredSample, bytes]]:
    """Yield the path of each file of a shard, with its sample, of whose fields only ``json`` is read."""
    shard_name, keys = shards.shard_name(shard), shards.index(shard).keys
    samples = [StoredSample(shard_name, key, {}) for key in keys]
    by_key = dict(zip(keys, samples, strict=True))
    for part in (shard, *(added for added, _ in shards.added(shard))):
        index = shards.index(part)
        rows = samples if part == shard else [by_key[key] for key in index.keys]
        for name, columns in index.fields.items():
            present = np.flatnonzero(columns.offset != ABSENT).tolist()
            contents = [memoryview(b"")] * len(present)
            if name == "json" and layout == "paths":
                starts, sizes = columns.offset[present].tolist(), columns.size[present].tolist()
                contents = shards.fetch(
                    part, [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
                )
            for row, content in zip(present, contents, strict=True):
                rows[row].fields[name] = content
    for sample in samples:
        with _named(sample):
            yield from ((sample, b"/".join(check_path(path))) for path, _ in files_of(sample, requested, layout))


@contextmanager
def _named(sample: StoredSample) -> Iterator[None]:
    """Let an error name the shard and the key of a sample."""
    try:
        yield
    except (DestinationError, OptionError) as error:
        error.shard, error.key = sample.shard, sample.key
        raise


def _plan(shards: ShardSet, requested: frozenset[str] | None, layout: UnpackLayout) -> bytes:
    """Return what determines the files: the content of the dataset, with added fields, and the options."""
    manifest = shards.manifest
    plan = {
        "dataset": [manifest.fingerprint, *(addition.fingerprint for addition in manifest.additions)],
        "fields": None if requested is None else sorted(requested),
        "layout": layout,
    }
    return json.dumps(plan).encode()


def _with_indexed_labels(shards: ShardSet, shard: int) -> Iterator[StoredSample]:
    """Yield the samples of a shard. ``cls`` has the class numbers of the index where the shard has different ones."""
    index = shards.index(shard)
    for row, sample in enumerate(stored_samples(shards, shard)):
        if shards.manifest.label == INDEX and "cls" in sample.fields and index.label[row] != NO_LABEL:
            sample.fields["cls"] = memoryview(b"%d" % index.label[row])
        yield sample


def _put_class_lists(
    folder: RestoreFolder,
    manifest: Manifest,
    requested: frozenset[str] | None,
    report: UnpackReport,
    *,
    has_numbers: bool,
) -> None:
    """Write the class lists of the fields that were written, as the manifest has them; for ``cls`` files the names."""
    lists = {
        path: classes
        for path, classes in manifest.field_classes.items()
        if requested is None or LabelSource.parse(path).field in requested
    }
    if has_numbers and manifest.classes:
        lists[LABEL_PATH] = ClassList(tuple(manifest.classes))
    if lists:
        data = json.dumps(to_raw(lists), indent=2).encode()
        report.written += folder.put(CLASS_LISTS_NAME, data)
        report.bytes += len(data)


def _restore(
    folder: RestoreFolder,
    sample: StoredSample,
    requested: frozenset[str] | None,
    layout: UnpackLayout,
    report: UnpackReport,
) -> bool:
    """Write the files of one sample; return whether its class number is one of them."""
    has_number = False
    with _named(sample):
        for path, data in files_of(sample, requested, layout):
            has_number |= path.endswith(f".{LABEL_PATH}")
            if folder.put(path, data):
                report.written += 1
            else:
                report.kept += 1
            report.bytes += len(data)
    report.samples += 1
    return has_number


def files_of(
    sample: StoredSample, requested: frozenset[str] | None, layout: UnpackLayout
) -> Iterator[tuple[str, memoryview]]:
    """Yield (path, content) of the files of a sample.

    Raises:
        DestinationError: The path in ``json`` is not a relative path inside a folder.
    """
    image = next((name for name in IMAGE_FIELDS if name in sample.fields), None)
    facts = _facts(sample) if layout == "paths" and image is not None else None
    if facts is None:
        folder = sample.shard.rpartition("/")[2].removesuffix(".tar")
        base = f"{folder}/{sample.key}" if layout == "shards" else sample.key
        for name, data in sample.fields.items():
            if requested is None or name in requested or (name == image and "image" in requested):
                yield f"{base}.{name}", data
        return
    path = str(facts["path"])
    check_path(path)  # before an extension is added, which would make "" and "a/" valid names
    implied = _implied_by_path(facts)
    if image != "npy" and not path.lower().endswith(_IMAGE_EXTENSIONS):
        path = f"{path}.{image}"  # a path such as a.h5#3 names a record, not a file
    for name, data in sample.fields.items():
        if name == image and (requested is None or name in requested or "image" in requested):
            # Raw pixels, which are npy, are not what the extension of the path states.
            yield f"{path}.{name}" if name == "npy" else path, data
        elif name != image and (name not in implied if requested is None else name in requested):
            yield f"{path}.{name}", data


def _facts(sample: StoredSample) -> dict[str, Any] | None:
    """Return the ``json`` field of a sample if it is an object with the path of the image, else None."""
    try:
        facts = json.loads(bytes(sample.fields["json"]))
    except (KeyError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("path"), str) else None


def _implied_by_path(facts: dict[str, Any]) -> set[str]:
    """Return the fields that `pack` creates from the path: ``cls``, and ``json`` without other entries."""
    name = facts.get("class")
    in_class_folder = isinstance(name, str) and facts["path"].startswith(f"{name}/")
    implied = {"cls"} if in_class_folder else set()
    if facts.keys() <= ({"path", "class"} if in_class_folder else {"path"}):
        implied.add("json")
    return implied


def _check_not_dataset(shards: ShardSet, dst: Path) -> None:
    """Refuse the folder of the dataset, where a file could replace a shard, an index or the manifest."""
    folders = {location.store.folder for location in shards.locations if isinstance(location.store, LocalStore)}
    if dst.exists() and any(os.path.samefile(folder, dst) for folder in folders):  # noqa: PTH121 - `folder` is a string
        raise OptionError(f"{dst} is the folder of the dataset; unpack into another one")


def _check_empty(dst: Path) -> None:
    """Refuse a folder of other files. One in which an interrupted run has left its work area is continued."""
    if not (dst / UNPACK_NAME).exists() and dst.is_dir() and any(dst.iterdir()):
        raise DestinationError(
            f"{dst} is not empty: choose a new or empty folder, or unpack with --overwrite (overwrite=True), which "
            "keeps other files and replaces files of the same names"
        )


def _wanted(shards: ShardSet, fields: Sequence[str] | None) -> frozenset[str] | None:
    if fields is None:
        return None
    available = set(shards.manifest.all_fields)
    missing = sorted(set(fields) - available - ({"image"} if available & set(IMAGE_FIELDS) else set()))
    if missing or not fields:
        raise MissingFieldError(
            f"fields={tuple(fields)!r}: the dataset has no {', '.join(map(repr, missing)) or 'such fields'}; it has "
            f"{', '.join(sorted(available))}, and image for the image of a sample, whatever its type"
        )
    return frozenset(fields)
