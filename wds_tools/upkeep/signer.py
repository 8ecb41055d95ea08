"""`sign_images()`: signatures of the images of a packed dataset, as columns of its indexes. Shards are not changed.

The dataset is complete at any time. New indexes are written next to the old ones; then the manifest names them; then
the old files get the new content; then the manifest names these again, and the others are removed.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import DecodeError, DestinationError, ManifestError, NotADatasetError, OptionError
from wds_tools.format import image_header
from wds_tools.format import manifest as manifests
from wds_tools.format.image_signature import (
    COLUMNS,
    Signature,
    Signatures,
    add_signatures,
    has_signatures,
    parse_hashes,
)
from wds_tools.format.index import content_checksum, from_bytes, index_names
from wds_tools.format.index_edit import add_columns, column_name, is_index, read_columns
from wds_tools.format.manifest import Manifest, ShardEntry
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images import native
from wds_tools.images.sign import sign
from wds_tools.options import available_cores, check_counts
from wds_tools.packing.destination import FolderDestination
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.packing.run import ProgressBar
from wds_tools.reading.names import split_manifest, why_not_a_dataset
from wds_tools.reading.opening import open_shards
from wds_tools.reading.reader import image_columns
from wds_tools.reading.shardset import ShardSet
from wds_tools.reading.stored_samples import stored_samples
from wds_tools.storage import join
from wds_tools.storage.commit import commit_bytes, write_errors

_NEW = ".signatures.parquet"  # end of the name of a new index, until it replaces the old one
_ADVICE = "the dataset is intact: fix the cause, then run the same command again to continue"


@dataclass(frozen=True, slots=True)
class SignReport:
    """The result of `sign_images`.

    Attributes:
        signed: Number of images that got a signature.
        kept: Number of images that had one.
        unreadable: Number of images that cannot be decoded.
    """

    samples: int
    signed: int
    kept: int
    unreadable: int
    seconds: float


def sign_images(
    dataset: str | os.PathLike[str], *, workers: int | None = None, progress: bool | None = None
) -> SignReport:
    """Compute a signature of each image of a dataset that has none, and add it to the indexes.

    `pack` adds signatures of the images that it decodes. This adds the others: of datasets that were packed before,
    with ``images="keep"``, or by another tool. The shards are read and not changed; order, states and fingerprint stay.
    It can be killed at any time; the next call continues.

    Raises:
        OptionError: ``dataset`` is a URL, or the compiled module is missing.
        NotADatasetError: There is no manifest.
        DestinationError: The folder is in use, has an unfinished pack, or its disk is full.
        ChecksumError: A shard is damaged.
    """
    started = time.monotonic()
    check_counts({"workers": workers})
    if not native.is_available():
        raise OptionError(f"signatures cannot be computed: {native.why_missing()}")
    folder, name = _place(dataset)
    with write_errors(folder, _ADVICE), FolderDestination(folder) as destination:
        if destination.read_plan() is not None:
            raise DestinationError(f"{folder} has an unfinished pack or append: finish it first")
        manifest = _read(folder, name)
        threads = workers or available_cores()
        with (
            ProgressBar(manifest.samples, progress, dataset=str(folder), work="adding signatures") as bar,
            ThreadPoolExecutor(threads, "wds_tools-sign") as pool,
        ):
            run = _Run(open_shards(join(str(folder), name)), folder, pool, 2 * threads, bar)
            new = {entry: run.sign(shard) for shard, entry in enumerate(manifest.shards)}
        _replace_indexes(folder, name, {old: entry for old, entry in new.items() if entry.index != old.index})
    return SignReport(manifest.samples, run.signed, run.kept, run.unreadable, time.monotonic() - started)


def _place(dataset: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the folder of a dataset, and the name of its manifest."""
    folder, name = split_manifest(os.fspath(dataset))
    location = parse_destination(folder)
    if isinstance(location, str):
        raise OptionError(
            f"{location} is a URL, and signatures can be added only to local datasets: add them to a local copy, then "
            "upload its indexes, and its manifest last"
        )
    return location, name


def _read(folder: Path, name: str) -> Manifest:
    try:
        data = (folder / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(why_not_a_dataset(str(folder), str(folder), name)) from None
    return manifests.from_json(data, name=str(folder / name))


@dataclass(slots=True)
class _Run:
    """One run over the shards of a dataset. It has at most ``ahead`` images in memory."""

    shards: ShardSet
    folder: Path
    pool: ThreadPoolExecutor
    ahead: int
    bar: ProgressBar
    signed: int = 0
    kept: int = 0
    unreadable: int = 0

    def sign(self, shard: int) -> ShardEntry:
        """Write a new index of a shard next to the old one, and return its entry; the same one if nothing changes."""
        entry, index = self.shards.entry(shard), self.shards.index(shard, keep=False)
        has_image = (image_columns(index)[1] >= 0) & (index.width > 0)
        old: list[Signature | None]
        old = self._signatures(shard) if has_signatures(index.columns) else [None] * len(index)
        missing = has_image & np.array([signature is None for signature in old], bool)
        if not missing.any() and entry.index.endswith(_NEW):  # the manifest was written, and then a run was killed
            return entry
        self.kept += int(has_image.sum() - missing.sum())
        self.bar.advance(len(index) - int(missing.sum()), 0)
        if not missing.any():
            return entry
        path = self.folder / (entry.name.removesuffix(".tar") + _NEW)
        data = self._finished(path, content_checksum(index))
        if data is None:
            data = add_signatures(self._own_index(shard, index.columns), self._added(shard, missing, old))
            commit_bytes(path, data)
        else:
            self.bar.advance(int(missing.sum()), 0)
        has_hash = parse_hashes(read_columns(data, COLUMNS[:1], name=path.name).column(0))[1]
        self.signed += int((has_hash & missing).sum())
        self.unreadable += int((missing & ~has_hash).sum())
        return _with_index(entry, path.name, data)

    def _own_index(self, shard: int, columns: Sequence[str]) -> bytes:
        """Return an index in which another tool's columns with the names of ours have other names."""
        data = self.shards.index_file(shard)
        clashing = [name for name in COLUMNS if name in columns]
        if not clashing or has_signatures(columns):
            return data
        return add_columns(data, self.shards.columns(shard, clashing).rename_columns(list(map(column_name, clashing))))

    def _signatures(self, shard: int) -> list[Signature | None]:
        """Return the signatures that an index has."""
        table = self.shards.columns(shard, COLUMNS)
        try:
            signatures = Signatures.of(table)
        except ValueError:
            return [None] * len(table)  # another tool's column of this name
        return [signatures.row(i) for i in range(len(signatures))]

    def _finished(self, path: Path, checksum: str) -> bytes | None:
        """Return the new index that an earlier run has finished; None if there is none."""
        try:
            data = path.read_bytes()
            index = from_bytes(data, name=path.name)
        except (FileNotFoundError, ManifestError):
            return None
        return data if has_signatures(index.columns) and content_checksum(index) == checksum else None

    def _added(self, shard: int, missing: NDArray[np.bool_], old: list[Signature | None]) -> list[Signature | None]:
        """Return the signatures of a shard with those that are missing."""
        signatures: list[Signature | None] = []
        pending: deque[Future[Signature | None] | Signature | None] = deque()
        for is_missing, kept, image in zip(missing.tolist(), old, self._images(shard), strict=True):
            pending.append(self.pool.submit(_sign, image) if is_missing else kept)
            if len(pending) > self.ahead:
                signatures.append(self._result(pending.popleft()))
        signatures += map(self._result, pending)
        return signatures

    def _images(self, shard: int) -> Iterator[bytes]:
        for sample in stored_samples(self.shards, shard):
            name = next((name for name in IMAGE_FIELDS if name in sample.fields), None)
            yield b"" if name is None else bytes(sample.fields[name])

    def _result(self, signature: Future[Signature | None] | Signature | None) -> Signature | None:
        if not isinstance(signature, Future):
            return signature
        self.bar.advance(1, 0)
        return signature.result()


def _sign(image: bytes) -> Signature | None:
    try:
        return sign(image, image_header.probe(image))
    except DecodeError:
        return None


def _replace_indexes(folder: Path, name: str, new: Mapping[ShardEntry, ShardEntry]) -> None:
    """Let the manifest name new indexes; then give these the names of the old ones."""
    if new:
        _commit(folder, name, new)
    final = {}
    for entry in _read(folder, name).shards:
        if entry.index.endswith(_NEW):
            data, usual = (folder / entry.index).read_bytes(), _usual_name(folder, entry.name)
            commit_bytes(folder / usual, data)
            final[entry] = _with_index(entry, usual, data)
    if final:
        _commit(folder, name, final)
    for entry in final:
        (folder / entry.index).unlink()


def _usual_name(folder: Path, shard: str) -> str:
    """Return the name of the old index of a shard. Another tool's table may have the first name that it could have."""
    first, second = index_names(shard)
    return first if not (folder / first).exists() or is_index((folder / first).read_bytes()) else second


def _with_index(entry: ShardEntry, name: str, data: bytes) -> ShardEntry:
    return replace(entry, index=name, index_bytes=len(data), index_xxh3=xxhash.xxh3_128_hexdigest(data))


def _commit(folder: Path, name: str, new: Mapping[ShardEntry, ShardEntry]) -> None:
    manifest = _read(folder, name)  # again: fields may have been added in the meantime
    shards = tuple(new.get(entry, entry) for entry in manifest.shards)
    if not new.keys() <= set(manifest.shards):
        raise DestinationError(f"{folder} was changed by another program in the meantime: run the same command again")
    commit_bytes(folder / name, manifests.to_json(replace(manifest, shards=shards)).encode())
