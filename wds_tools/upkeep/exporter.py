"""`export()`: the files that other readers of shards need, next to them; or images with objects as COCO and YOLO."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from wds_tools.errors import NotADatasetError, OptionError
from wds_tools.format.index import ABSENT
from wds_tools.format.label_source import INDEX
from wds_tools.format.manifest import MANIFEST_NAME
from wds_tools.format.tar import MAX_USTAR_NAME
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import CARD_NAME, card, may_replace
from wds_tools.packing.output_folder import BucketFolder, LocalFolder, open_folder
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.reading.names import is_pattern, split_manifest
from wds_tools.reading.opening import open_shards
from wds_tools.reading.repeated_keys import find_repeated_key
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.commit import write_errors
from wds_tools.terminal import phase_bar, shows_progress
from wds_tools.upkeep import export_formats
from wds_tools.upkeep.annotation_files import ANNOTATION_FORMATS
from wds_tools.upkeep.export_formats import write_database
from wds_tools.upkeep.index_folder import NOT_WRITABLE
from wds_tools.upkeep.members import StoredKey, stored_keys
from wds_tools.upkeep.object_export import ObjectExport

READERS = ("dali", "energon", "hf", "timm", "wids")
CHOICES = (*ANNOTATION_FORMATS, *READERS)
ENERGON_FOLDER = ".nv-meta"
TIMM_NAME = "_info.json"
WIDS_NAME = "shardindex.json"
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of `export`.

    Attributes:
        dataset: The argument of `export`.
        folder: Folder or URL of the shards.
        dst: Folder with images and annotations, if they were exported.
        files: Reader or format to the names of the files that were written, in the folder; folders end with ``/``.
        kept: Names of files that were kept, because a user wrote or edited them.
        notes: Annotations that the formats cannot represent exactly.
        seconds: Duration.
    """

    dataset: str
    folder: str
    dst: Path | None
    files: dict[str, list[str]]
    kept: list[str]
    notes: list[str]
    seconds: float


def export(
    dataset: str | os.PathLike[str],
    to: str | Sequence[str],
    *,
    dst: str | Path | None = None,
    split: str = "train",
    overwrite: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write files for other readers of WebDataset shards, next to the shards, or images with annotation files.

    For readers of shards, no shard is read or changed:

    ==========  ==========================================================================================
    ``dali``    ``shard-000000.idx`` for each shard, as NVIDIA DALI's ``wds2idx`` writes it
    ``energon`` ``shard-000000.tar.idx`` for each shard and ``.nv-meta/``, as Megatron-Energon's ``prepare``
    ``hf``      ``README.md``, the dataset card, for Hugging Face's ``load_dataset(folder)``
    ``timm``    ``_info.json``, for timm's ``wds/`` datasets
    ``wids``    ``shardindex.json``, for ``wids.ShardListDataset``
    ==========  ==========================================================================================

    Existing files are replaced, but not a ``README.md`` or ``.nv-meta/dataset.yaml`` that a user may have written.
    After samples were appended, export again.

    A dataset with objects is written to a folder ``dst`` as images in ``images/SPLIT/`` with:

    ==========  ==========================================================================================
    ``coco``    ``annotations/instances_SPLIT.json``, and ``captions_SPLIT.json`` if there are captions
    ``yolo``    ``labels/SPLIT/`` and ``data.yaml``, in which other splits are kept
    ==========  ==========================================================================================

    Example::

        wds_tools.export("shards/coco/val", "coco,yolo", dst="exported", split="val")

    Args:
        dataset: Folder or URL of a dataset, or its manifest.
        to: Names of readers and formats, as a sequence or separated by commas.
        dst: Local folder for ``coco`` and ``yolo``; created if it does not exist. It may have other splits.
        split: Name of the split, for COCO, YOLO, Energon and timm. In ``_info.json`` other splits are kept.
        overwrite: Replace files in ``dst`` that exist with other content. They are an error by default.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        The files that were written.

    Raises:
        OptionError: An unknown reader, a URL that is not writable, or a dataset that a reader cannot read: repeated
            keys for Energon, white space in field names for DALI, names of more than 100 bytes for wids, no objects
            for COCO and YOLO. Or ``dst`` is missing for COCO and YOLO, or given for the others.
        SampleError: The objects of a sample do not have the form in docs/annotations.md.
        NotADatasetError: The folder has no manifest, or the name is a pattern.
        ManifestError: Manifest or index is invalid, or the index does not record the tar headers of the shard.
        DestinationError: The folder cannot be written to.
        StoreError: The storage at a URL fails.
    """
    started = time.monotonic()
    readers = _readers(to)
    folder_of_objects = _folder_of_objects(readers, dst)
    if not split or not split.replace("-", "_").isidentifier():
        raise OptionError(f"split={split!r}; allowed is a name such as 'train' or 'val'")
    spec = os.fspath(dataset)
    if is_pattern(spec):
        raise NotADatasetError(f"{spec} is a pattern of shards; name a folder with a manifest: `wds-tools index`")
    remote = RemoteOptions.of(None, 1, storage_options=storage_options)
    shards = open_shards(spec, remote=remote)
    folder, manifest_name = split_manifest(spec)
    output = open_folder(folder, remote)
    run = _Export(shards, output, split, is_default=manifest_name == MANIFEST_NAME, progress=progress)
    notes: list[str] = []
    with write_errors(folder, NOT_WRITABLE):
        run.check(readers)
        for reader in readers:
            if reader in READERS:
                run.write(reader)
    if folder_of_objects is not None:
        with write_errors(folder_of_objects, "make it writable, or choose another folder"):
            objects = ObjectExport(shards, folder_of_objects, split, overwrite, progress, notes)
            run.files |= objects.write([name for name in readers if name in ANNOTATION_FORMATS])
    return ExportReport(spec, folder, folder_of_objects, run.files, run.kept, notes, time.monotonic() - started)


def _folder_of_objects(names: Sequence[str], dst: str | Path | None) -> Path | None:
    """Return the folder for images and annotations, if they are exported."""
    formats = [name for name in names if name in ANNOTATION_FORMATS]
    if not formats:
        if dst is not None:
            raise OptionError(f"{dst} is for {' and '.join(ANNOTATION_FORMATS)}: other files are written to the shards")
        return None
    if dst is None:
        raise OptionError(f"to={formats[0]!r} requires dst, a folder for images and annotations")
    folder = parse_destination(dst)
    if isinstance(folder, str):
        raise OptionError(f"{dst} is not a local folder; export {formats[0]} to a local folder")
    return folder


def _readers(to: str | Sequence[str]) -> list[str]:
    names = [name.strip() for name in to.split(",")] if isinstance(to, str) else list(to)
    unknown = [name for name in names if name not in CHOICES]
    if unknown or not names:
        raise OptionError(f"to={to!r}; allowed are {', '.join(map(repr, CHOICES))}, several separated by commas")
    return list(dict.fromkeys(names))


@dataclass
class _Export:
    """One export."""

    shards: ShardSet
    output: LocalFolder | BucketFolder
    split: str
    is_default: bool
    progress: bool | None
    files: dict[str, list[str]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)

    def check(self, readers: Sequence[str]) -> None:
        """Raise an error if a reader could not read the dataset; warn if it reads labels other than loaders do."""
        if "energon" in readers and (repeated := find_repeated_key(self.shards)) is not None:
            raise OptionError(f"cannot be exported to energon: {repeated}")
        if "wids" in readers and (long := self._long_name()) is not None:
            raise OptionError(
                f"cannot be exported to wids: it reads names of at most {MAX_USTAR_NAME} bytes, and member {long!r} is "
                "longer: `wds-tools reshard` writes the same samples with short keys"
            )
        if self.shards.manifest.label == INDEX:
            _log.warning(
                "%s was merged from datasets with different class numbers: other readers see the numbers in cls, "
                "not the ones in the index; `wds-tools reshard` writes shards with the new numbers",
                self.shards.name,
            )

    def _long_name(self) -> str | None:
        """Return the name of a member that does not fit a ustar header, or None."""
        for shard in phase_bar("reading indexes", range(len(self.shards.locations)), progress=self.progress):
            index = self.shards.index(shard, keep=False)
            for name, columns in index.fields.items():
                most = MAX_USTAR_NAME - 1 - len(name.encode())
                for row in np.flatnonzero(columns.offset != ABSENT).tolist():
                    if len(index.keys[row].encode()) > most:
                        return f"{index.keys[row]}.{name}"
        return None

    def write(self, reader: str) -> None:
        """Write the files of one reader."""
        self.files[reader] = []
        manifest, write = self.shards.manifest, {"dali": self._dali, "energon": self._energon, "hf": self._hf}
        if reader in write:
            write[reader]()
        elif reader == "timm":
            data = export_formats.timm_info(manifest, split=self.split, old=self._old_json(TIMM_NAME))
            self._write(reader, TIMM_NAME, data)
        else:
            name = Path(self.shards.name).resolve().name
            self._write(reader, WIDS_NAME, export_formats.wids_index(manifest, name=name))

    def _write(self, reader: str, name: str, data: bytes) -> None:
        self.output.write(name, data)
        self.files[reader].append(name)

    def _old_json(self, name: str) -> dict[str, Any]:
        try:
            old = json.loads(self.output.read(name) or b"{}")
        except ValueError:
            old = {}
        return old if isinstance(old, dict) else {}

    def _samples(self, reader: str) -> Iterator[tuple[str, list[StoredKey]]]:
        hidden = not shows_progress(self.progress)
        locations = tqdm(self.shards.locations, desc=reader, unit=" shards", disable=hidden, file=sys.stderr)
        for position, location in enumerate(locations):
            index = self.shards.index(position, keep=False)
            headers = self.shards.headers(position, index)
            yield location.entry.name, stored_keys(index, headers, name=self.shards.shard_url(position))

    def _dali(self) -> None:
        for shard, samples in self._samples("dali"):
            data = export_formats.dali_index(samples, shard=shard)
            self._write("dali", f"{shard.removesuffix('.tar')}.idx", data)

    def _energon(self) -> None:
        manifest = self.shards.manifest
        for name, data in export_formats.energon_files(manifest, split=self.split).items():
            path = f"{ENERGON_FOLDER}/{name}"
            if name == "dataset.yaml" and self.output.read(path) not in (None, data):
                self.kept.append(path)
            else:
                self._write("energon", path, data)
        with tempfile.TemporaryDirectory(dir=self.output.folder and self.output.folder / ENERGON_FOLDER) as folder:
            database = Path(folder) / "index.sqlite"
            write_database(database, self._energon_shards())
            self.output.put(database, f"{ENERGON_FOLDER}/index.sqlite")
        self.files["energon"].append(f"{ENERGON_FOLDER}/index.sqlite")

    def _energon_shards(self) -> Iterator[list[StoredKey]]:
        for shard, samples in self._samples("energon"):
            if samples:
                self._write("energon", f"{shard}.idx", export_formats.energon_index(samples))
                yield samples

    def _hf(self) -> None:
        if not self.is_default:
            raise OptionError(
                f"{self.shards.name} is one of several datasets in its folder, and a card describes all files of a "
                "folder: write the README.md yourself, with data_files for each split"
            )
        data, old = card(self.shards.manifest), self.output.read(CARD_NAME)
        if may_replace(old, where=self.shards.name):
            self._write("hf", CARD_NAME, data)
        else:
            self.kept.append(CARD_NAME)
