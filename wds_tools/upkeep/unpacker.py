"""A dataset becomes files again: the tree that was packed, or a file for each field."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from wds_tools.errors import DestinationError, MissingFieldError, OptionError, WdsToolsError
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.options import CacheOptions
from wds_tools.reading.shardset import ShardSet, open_shards
from wds_tools.reading.stored_samples import StoredSample, stored_samples
from wds_tools.storage import is_url
from wds_tools.storage.local import LocalStore
from wds_tools.upkeep.restore import Tree, check_path

Layout = Literal["paths", "keys", "shards"]
LAYOUTS = ("paths", "keys", "shards")

_IMAGE_ENDINGS = tuple(f".{name}" for name in IMAGE_FIELDS)


@dataclass(slots=True)
class UnpackReport:
    """What became of a dataset.

    Attributes:
        dst: The folder.
        samples: Samples that were restored.
        written: Files that were written.
        kept: Files that were there already, byte for byte.
        bytes: Bytes of all of these files.
        seconds: Time that it took.
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
    layout: Layout = "paths",
    overwrite: bool = False,
    progress: bool | None = None,
) -> UnpackReport:
    """Write the samples of a dataset to files; every byte is compared with its checksum first.

    A sample that was packed from a file gets its path back, which its ``json`` field tells. Fields that say no more
    than the path does (``cls`` and ``json`` as `pack` made them) are then left out; any other lies beside the picture,
    as ``cat/1.jpg.txt``. A sample without a path becomes files named ``<key>.<field>``.

    Files that are there with the same bytes are kept, so an interrupted run is continued by the same call. Nothing is
    written outside ``dst``, and two samples never become one file.

    Example::

        wds_tools.unpack("shards/photos", "photos").written  # 1281167

    Args:
        dataset: Folder or URL with a manifest, the manifest itself, or a pattern of indexed shards.
        dst: Folder to write to; made if it is not there.
        fields: Those to write, ``"image"`` meaning whichever image a sample has; None writes all.
        layout: ``"paths"`` as above; ``"keys"`` names all files ``<key>.<field>``; ``"shards"`` does so in a folder for
            each shard, for datasets whose keys are unique within a shard only.
        overwrite: Replace files that are there and have other bytes.
        progress: Show a bar on stderr; None does if it is a terminal.

    Returns:
        What was written.

    Raises:
        OptionError: Another layout, or ``dst`` is a URL or the dataset's own folder.
        NotADatasetError: There is no dataset.
        MissingFieldError: It has no field of that name.
        ChecksumError: Bytes have changed since they were packed.
        DestinationError: A file is there with other bytes, two samples have one path, a path leads outside ``dst``,
            or the disk is full. Shard and key are named.
    """
    started = time.monotonic()
    if layout not in LAYOUTS:
        raise OptionError(f"layout={layout!r}; allowed are {', '.join(LAYOUTS)}")
    if is_url(os.fspath(dst)):
        raise OptionError(f"{dst} is no local folder; unpack into one")
    shards = open_shards(dataset, cache=CacheOptions.of(None, 1))  # every byte is read once: none is worth keeping
    wanted = _wanted(shards, fields)
    _refuse_dataset(shards, Path(dst))
    report = UnpackReport(Path(dst))
    show = sys.stderr.isatty() if progress is None else progress
    total = shards.manifest.samples
    try:
        with Tree(report.dst, overwrite=overwrite) as tree:
            with tqdm(total=total, unit=" samples", disable=not show, file=sys.stderr) as bar:
                for number in range(len(shards.locations)):
                    for sample in stored_samples(shards, number):
                        _restore(tree, sample, wanted, layout, report)
                        bar.update()
            os.sync()  # once, where a sync for each of a million files would take hours
    except OSError as error:
        if isinstance(error, WdsToolsError):
            raise
        raise DestinationError(
            f"cannot write to {dst}: {error.strerror or error}; the files so far are kept: mend that, then run the "
            "same command again, which goes on from there"
        ) from error
    report.seconds = time.monotonic() - started
    return report


def _restore(
    tree: Tree, sample: StoredSample, wanted: frozenset[str] | None, layout: Layout, report: UnpackReport
) -> None:
    """Write the files of one sample."""
    try:
        for path, data in files_of(sample, wanted, layout):
            if tree.put(path, data):
                report.written += 1
            else:
                report.kept += 1
            report.bytes += len(data)
    except DestinationError as error:
        error.shard, error.key = sample.shard, sample.key
        raise
    report.samples += 1


def files_of(sample: StoredSample, wanted: frozenset[str] | None, layout: Layout) -> Iterator[tuple[str, memoryview]]:
    """Yield (path, bytes) of the files that a sample becomes.

    Args:
        sample: What is stored.
        wanted: Fields to write; None stands for all that are not told by the path.
        layout: As for `unpack`.

    Raises:
        DestinationError: A path in ``json`` that is none inside a folder.
    """
    image = next((name for name in IMAGE_FIELDS if name in sample.fields), None)
    facts = _facts(sample) if layout == "paths" and image is not None else None
    if facts is None:
        folder = sample.shard.rpartition("/")[2].removesuffix(".tar")
        base = f"{folder}/{sample.key}" if layout == "shards" else sample.key
        for name, data in sample.fields.items():
            if wanted is None or name in wanted or (name == image and "image" in wanted):
                yield f"{base}.{name}", data
        return
    path = str(facts["path"])
    check_path(path)  # as it is: with an ending, even "" or "a/" would name a file
    told = _told_by_path(facts)
    for name, data in sample.fields.items():
        if name == image and (wanted is None or name in wanted or "image" in wanted):
            # A path such as a.h5#3 is of a record, not of a file: its file needs an ending
            yield path if path.lower().endswith(_IMAGE_ENDINGS) else f"{path}.{name}", data
        elif name != image and (name not in told if wanted is None else name in wanted):
            yield f"{path}.{name}", data


def _facts(sample: StoredSample) -> dict[str, Any] | None:
    """Return what ``json`` says of where a sample came from, if it does."""
    try:
        facts = json.loads(bytes(sample.fields["json"]))
    except (KeyError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("path"), str) else None


def _told_by_path(facts: dict[str, Any]) -> set[str]:
    """Return the fields that say no more than the path: what `pack` adds to a picture in a class folder."""
    name = facts.get("class")
    in_class_folder = isinstance(name, str) and facts["path"].startswith(f"{name}/")
    told = {"cls"} if in_class_folder else set()
    if facts.keys() <= ({"path", "class"} if in_class_folder else {"path"}):
        told.add("json")
    return told


def _refuse_dataset(shards: ShardSet, dst: Path) -> None:
    """A file of a sample could have the name of a shard, an index, or the manifest."""
    folders = {place.store.folder for place in shards.locations if isinstance(place.store, LocalStore)}
    if dst.exists() and any(os.path.samefile(folder, dst) for folder in folders):  # noqa: PTH121 - a string as it is
        raise OptionError(f"{dst} is the folder of the dataset; unpack into another one")


def _wanted(shards: ShardSet, fields: Sequence[str] | None) -> frozenset[str] | None:
    if fields is None:
        return None
    there = set(shards.manifest.fields)
    missing = sorted(set(fields) - there - ({"image"} if there & set(IMAGE_FIELDS) else set()))
    if missing or not fields:
        raise MissingFieldError(
            f"fields={tuple(fields)!r}: the dataset has no {', '.join(map(repr, missing)) or 'such fields'}; it has "
            f"{', '.join(sorted(there))}, and image for whichever image a sample has"
        )
    return frozenset(fields)
