"""Images of a local dataset become crop-ready in place: shard by shard, under running readers.

A new shard and its index appear next to the old ones, under other names, and are verified. Then the manifest
names them in place of the old ones, which are removed. So the folder has a complete dataset at any time, and at most
one shard more. The manifest keeps the entry of the old shard: the order of the samples follows from it and stays as it
was, and a reader that misses the old shard finds the new one. docs/decisions/0067-images-rewritten-in-place.md has the
reasons.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import xxhash

from wds_tools.errors import ChecksumError, DecodeError, DestinationError, ManifestError, NotADatasetError, OptionError
from wds_tools.format import manifest as manifests
from wds_tools.format import tar
from wds_tools.format.account import Account
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.image_signature import Signature, add_signatures, has_signatures
from wds_tools.format.index import ABSENT, FieldColumns, Index, index_name, shard_entry, to_bytes
from wds_tools.format.index_edit import add_columns
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.format.recorded_source import crop_ready_source
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.options import available_cores, check_counts
from wds_tools.packing.card import card, commit_card
from wds_tools.packing.destination import ADDED_FIELDS, FolderDestination, read_manifest, read_skipped
from wds_tools.packing.packer import PackReport
from wds_tools.packing.ray_engine import Advance
from wds_tools.packing.run import ProgressBar
from wds_tools.packing.transcode import Encoded, ImageOptions, transcode
from wds_tools.packing.work_folder import REWRITTEN
from wds_tools.reading.locations import ShardLocation
from wds_tools.reading.names import why_not_a_dataset
from wds_tools.reading.opening import open_shards
from wds_tools.reading.reader import image_columns
from wds_tools.reading.shardset import ShardSet
from wds_tools.reading.stored_samples import stored_samples
from wds_tools.storage.commit import CommitFile, commit_bytes, final_name, write_errors
from wds_tools.storage.local import LocalStore
from wds_tools.storage.lock import why_unfinished

_JPEGS = [IMAGE_FIELDS.index("jpg"), IMAGE_FIELDS.index("jpeg")]
_ADVICE = "the dataset is intact: fix the cause, then run the same command again to continue"


def make_crop_ready(folder: Path, *, workers: int | None = None, progress: bool | None = None) -> PackReport:
    """Rewrite the images of a dataset as crop-ready JPEGs, in its own folder; see `reshard`.

    It can be killed at any time; the next call continues.

    Raises:
        OptionError: The compiled module is missing, or shards belong to another dataset of the folder too.
        NotADatasetError: ``folder`` is not a packed dataset.
        DestinationError: The folder is in use, has an unfinished append, or its disk is full.
        ChecksumError: A shard is damaged. It stays as it is.
    """
    started = time.monotonic()
    check_counts({"workers": workers})
    threads, images = workers or available_cores(), ImageOptions(images="crop-ready")
    _check_owner(folder, _read(folder))
    with write_errors(folder, _ADVICE), FolderDestination(folder) as destination:
        if destination.read_plan() is not None:
            raise DestinationError(f"{folder} has an unfinished pack or append: finish it, then rewrite the images")
        manifest = _read(folder)  # again: another process may have held the lock
        _remove_leftovers(folder, manifest)
        todo = [shard for shard, entry in enumerate(manifest.shards) if entry.before is None]
        shards = open_shards(folder)
        with (
            ProgressBar(manifest.samples, progress, dataset=str(folder), work="making crop-ready") as bar,
            ThreadPoolExecutor(threads, "wds_tools-crop-ready") as pool,
        ):
            bar.start_at(manifest.samples - sum(manifest.shards[shard].samples for shard in todo))
            run = _Run(shards, folder, images, pool, 2 * threads, bar.advance)
            written = sum(map(run.rewrite, todo))
        manifest = _read(folder)
        if (source := crop_ready_source(manifest.source)) != manifest.source:
            manifest = replace(manifest, source=source)
            _commit(folder, manifest)
    return PackReport(
        manifest=manifest,
        dst=folder,
        packed=manifest.samples,
        skipped=read_skipped(folder),
        kept=len(manifest.shards) - written,
        seconds=time.monotonic() - started,
        account=manifest.account or Account.unknown(manifest.samples),
    )


class _Member(NamedTuple):
    """A member of the old shard; with the row of its sample and its new content if it is an image to convert."""

    member: tar.Member
    row: int
    new: Future[Encoded | None] | None


class _NothingToRewriteError(Exception):
    """No image of a shard can be made crop-ready."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One run over the shards of a dataset. It has at most ``ahead`` images in memory."""

    shards: ShardSet
    folder: Path
    images: ImageOptions
    pool: ThreadPoolExecutor
    ahead: int
    advance: Advance

    def rewrite(self, shard: int) -> bool:
        """Replace a shard by one with crop-ready images; return whether there is such an image."""
        old, index = self.shards.entry(shard), self.shards.index(shard, keep=False)
        rows = _rows_to_convert(index)
        self.advance(old.samples - len(rows), 0)
        if not rows:
            return False
        (data,) = LocalStore(str(self.folder)).fetch(old.name, [(0, old.bytes)], total_bytes=old.bytes)
        if xxhash.xxh3_128_hexdigest(data) != old.xxh3:
            raise ChecksumError(
                f"has changed since it was packed: copy {self.shards.shard_url(shard)} again; `wds-tools verify` "
                "lists all damage",
                shard=old.name,
            )
        name = rewritten_name(old.name)
        try:
            with CommitFile(self.folder / name) as file:
                copy = _Copy(data, file)
                for entry in self._members(data, old.name, rows):
                    copy.add(entry)
                    self.advance(int(entry.new is not None), entry.member.size)
                if not copy.images:
                    raise _NothingToRewriteError
                copy.finish()
        except _NothingToRewriteError:
            return False
        had_headers = any(header is not None for header in self.shards.headers(shard, index).values())
        moved = copy.index(index, shard=name, had_headers=had_headers)
        encoded = to_bytes(moved)
        if index.columns:
            encoded = add_columns(encoded, self.shards.columns(shard, index.columns))
        if not has_signatures(index.columns) and any(copy.signatures.values()):
            encoded = add_signatures(encoded, [copy.signatures.get(row) for row in range(len(index))])
        new = shard_entry(name, encoded, samples=old.samples, shard_bytes=copy.bytes, shard_xxh3=moved.shard_xxh3)
        commit_bytes(self.folder / new.index, encoded)
        _verify(self.folder, new, data, index, copy.images)
        _swap(self.folder, old, new)
        return True

    def _members(self, data: memoryview, shard: str, rows: Mapping[int, int]) -> Iterator[_Member]:
        """Yield the members of a shard in order. Threads convert the next images."""
        members: deque[_Member] = deque()
        converting = 0
        for member in tar.walk(data, shard=shard):
            row, new = rows.get(member.offset, -1), None
            if row >= 0:
                new = self.pool.submit(self._convert, data[member.offset : member.offset + member.size])
            members.append(_Member(member, row, new))
            converting += new is not None
            while converting > self.ahead:
                converting -= members[0].new is not None
                yield members.popleft()
        yield from members

    def _convert(self, content: memoryview) -> Encoded | None:
        """Return a JPEG as a crop-ready one with the same pixels; None if it stays as it is."""
        try:
            encoded = transcode(bytes(content), self.images)
        except DecodeError:
            return None  # it was packed so, or indexed
        return encoded if encoded.data != content else None


class _Copy:
    """Copies a shard, byte for byte except for its new images."""

    def __init__(self, data: memoryview, file: BinaryIO) -> None:
        self.bytes = 0
        self.images: dict[int, ImageInfo] = {}
        self.signatures: dict[int, Signature | None] = {}
        self._data = data
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._copied = 0  # bytes of the old shard
        self._moved: dict[int, tuple[int, int, int, int | None]] = {}
        """Offset of a content in the old shard -> its new offset, size and bytes of headers, and XXH3-64 if changed."""

    def add(self, entry: _Member) -> None:
        """Append a member, and what is before it."""
        member = entry.member
        new = entry.new.result() if entry.new else None
        if new is None:
            before = member.offset - member.header_offset
            self._moved[member.offset] = self.bytes + member.offset - self._copied, member.size, before, None
            self._write(self._data[self._copied : member.offset + tar.padded(member.size)])
        else:
            self.images[entry.row] = new.info
            self.signatures[entry.row] = new.signature
            header, size = tar.build_header(member.name, len(new.data)), len(new.data)
            self._write(self._data[self._copied : member.header_offset])
            xxh3 = xxhash.xxh3_64_intdigest(new.data)
            self._moved[member.offset] = self.bytes + len(header), size, len(header), xxh3
            self._write(header + new.data + bytes(-size % tar.BLOCK))
        self._copied = member.offset + tar.padded(member.size)

    def finish(self) -> None:
        """Append the end of the archive."""
        self._write(self._data[self._copied :])

    def index(self, old: Index, *, shard: str, had_headers: bool) -> Index:
        """Return the index of the new shard."""
        fields = {name: self._columns(columns, old.shard) for name, columns in old.fields.items()}
        parts = [columns.header[columns.offset != ABSENT] for columns in fields.values() if columns.header is not None]
        if not had_headers and all((part == tar.BLOCK).all() for part in parts):
            fields = {name: replace(columns, header=None) for name, columns in fields.items()}
        restart, mcu_width, mcu_height = old.restart.copy(), old.mcu_width.copy(), old.mcu_height.copy()
        for row, info in self.images.items():
            restart[row], mcu_width[row], mcu_height[row] = info.restart, info.mcu_width, info.mcu_height
        return replace(
            old,
            shard=shard,
            shard_bytes=self.bytes,
            shard_xxh3=self._digest.hexdigest(),
            fields=fields,
            restart=restart,
            mcu_width=mcu_width,
            mcu_height=mcu_height,
        )

    def _columns(self, old: FieldColumns, shard: str) -> FieldColumns:
        offset, size, xxh3 = old.offset.copy(), old.size.copy(), old.xxh3.copy()
        header = np.full(len(offset), tar.BLOCK, np.int32)
        for row in np.flatnonzero(offset != ABSENT).tolist():
            moved = self._moved.get(int(offset[row]))
            if moved is None or (moved[3] is None and moved[1] != size[row]):
                raise ManifestError(
                    f"the index does not describe the shard at byte {int(offset[row]):,}: rebuild it with "
                    "`wds-tools index`",
                    shard=shard,
                )
            offset[row], size[row], header[row], _ = moved
            if moved[3] is not None:
                xxh3[row] = moved[3]
        return FieldColumns(offset, size, xxh3, header)

    def _write(self, part: bytes | memoryview) -> None:
        self._file.write(part)
        self._digest.update(part)
        self.bytes += len(part)


def rewritten_name(shard: str) -> str:
    """Return the name of the crop-ready shard in place of another one.

    >>> rewritten_name("shard-000007.tar")
    'shard-000007-crop-ready.tar'
    """
    return f"{shard.removesuffix('.tar')}{REWRITTEN}.tar"


def _rows_to_convert(index: Index) -> dict[int, int]:
    """Return the rows whose image is a JPEG and not crop-ready, by the offset of the image."""
    columns, kind = image_columns(index)
    rows = np.flatnonzero(np.isin(kind, _JPEGS) & (index.restart == 0))
    return dict(zip(columns.offset[rows].tolist(), rows.tolist(), strict=True))


def _verify(folder: Path, new: ShardEntry, old: memoryview, index: Index, images: Mapping[int, ImageInfo]) -> None:
    """Read a new shard and its index, and compare them with each other and with the old shard."""
    shards = ShardSet(Manifest((new,), {}), [ShardLocation(LocalStore(str(folder)), new)], name=str(folder))
    data, new_index = shards.fetch(0, [(0, new.bytes)])[0], shards.index(0)
    for _ in stored_samples(shards, 0):  # compares each field with its checksum
        pass
    names = [[member.name for member in tar.walk(content, shard=new.name)] for content in (old, data)]
    kept = np.ones(len(index), bool)
    kept[list(images)] = False
    is_same = new_index.keys == index.keys and names[0] == names[1] and xxhash.xxh3_128_hexdigest(data) == new.xxh3
    chosen = image_columns(index)[0].offset
    for name, columns in index.fields.items():
        same = kept | (columns.offset != chosen)
        is_same = is_same and np.array_equal(columns.xxh3[same], new_index.fields[name].xxh3[same])
    if not is_same:
        (folder / new.name).unlink()
        raise ChecksumError(
            f"{folder / new.name} is not what was written to it; the dataset is intact: check the disk, then run the "
            "same command again",
            shard=new.name,
        )


def _swap(folder: Path, old: ShardEntry, new: ShardEntry) -> None:
    """Let the manifest name a new shard in place of an old one, and remove the old one."""
    manifest = _read(folder)  # again: fields may have been added in the meantime
    if old not in manifest.shards:
        raise DestinationError(f"{folder} was changed by another program in the meantime: run the same command again")
    shards = tuple(replace(new, before=old) if entry == old else entry for entry in manifest.shards)
    _commit(folder, replace(manifest, shards=shards))
    for name in (old.index, old.name):
        (folder / name).unlink(missing_ok=True)


def _commit(folder: Path, manifest: Manifest) -> None:
    commit_card(folder, card(manifest))
    commit_bytes(folder / MANIFEST_NAME, manifests.to_json(manifest).encode())


def _read(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None:
        raise NotADatasetError(
            why_unfinished(str(folder), lambda name: (folder / name).read_bytes())
            or why_not_a_dataset(str(folder), str(folder), MANIFEST_NAME)
        )
    return manifest


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Remove the files that an interrupted run left: old shards, and new ones that the manifest does not name."""
    listed = {name for entry in manifest.shards for name in (entry.name, entry.index)}
    ours = set[str]()
    for first in (entry.first for entry in manifest.shards):
        new = rewritten_name(first.name)
        ours |= {first.name, first.index, new, index_name(new)}
    for path in list(folder.iterdir()):
        name = final_name(path.name)
        if (path.name in ours - listed and path.suffix in (".tar", ".parquet")) or (name and name in ours):
            path.unlink(missing_ok=True)


def _check_owner(folder: Path, manifest: Manifest) -> None:
    """Check that no other dataset has the shards of this one."""
    if (manifest.source or {}).get("kind") == ADDED_FIELDS:
        raise OptionError(f"{folder} has fields that were added to another dataset: name the folder of that dataset")
    names = {entry.name for entry in manifest.shards}
    for path in sorted(folder.glob("*.json")):
        if path.name != MANIFEST_NAME:
            with suppress(OSError, ManifestError):
                owner = manifests.from_unsealed(path.read_bytes(), name=str(path))[1]
                if shared := sorted(names & {entry.name for entry in owner.shards}):
                    raise OptionError(
                        f"{path} lists shards of {folder} too, such as {shared[0]}, and would lose them: remove it, or "
                        "write a new dataset (`wds-tools reshard DATASET DST --images crop-ready`)"
                    )
