"""Shards that this package has packed: what their indexes list, and fields that were added later in other shards.

With an index, a shard need not be read to be listed. Added fields have the keys of the samples that they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ManifestError, ShardError, SourceError, StoreError
from wds_tools.format import tar
from wds_tools.format.field_classes import DatasetClasses, check_same
from wds_tools.format.index import ABSENT, NO_LABEL, Index, from_bytes
from wds_tools.format.index_edit import header_bytes
from wds_tools.format.manifest import MANIFEST_NAME, Addition, Manifest, ShardEntry, from_json, manifests_among
from wds_tools.format.sample import split_name
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import SourceStoreError, as_read_error, as_source_error
from wds_tools.sources.columns import facts_bytes
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.files import TarFiles, is_tar, locate
from wds_tools.storage import Store, join, open_store, split_folder
from wds_tools.storage.requests.listing import RemoteFile
from wds_tools.wording import counted

_KINDS_WITH_KEYS = ("webdataset", "dotted")  # of a pack, which adds the old key to the field ``json``
Span = tuple[int, int]
"""First byte and end of the added fields of a sample in their shard; (0, 0) for none."""


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """A sample as its index describes it.

    Attributes:
        key: Its key.
        start: First byte of its first header in the shard.
        stop: End of its last member.
        sizes: Length of each field in bytes, in stored order.
        label: Its class number; None without one.
        json_bytes: What the entries of its field ``json``, and its key, add to this field of a new shard.
    """

    key: str
    start: int
    stop: int
    sizes: dict[str, int]
    label: int | None
    json_bytes: int


class Indexes:
    """The indexes of a dataset that this package has packed.

    Args:
        store: Its folder.
        manifest: Its manifest.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._entries = {entry.name: entry for entry in manifest.shards}
        self._has_keys = (manifest.source or {}).get("kind") in _KINDS_WITH_KEYS

    @classmethod
    def of(cls, store: Store, manifest: Manifest | None) -> Indexes | None:
        """Return the indexes if `pack` wrote all shards: then they have no members that an index lacks."""
        return None if manifest is None or "digest" not in (manifest.source or {}) else cls(store, manifest)

    def samples(self, path: Path | RemoteFile) -> list[IndexedSample] | None:
        """Return the samples of a shard; None if its index is missing or damaged, or the shard has another length."""
        entry = self._entries.get(path.name)
        if entry is None or _length(path) != entry.bytes:
            return None
        try:
            data = self._store.read(entry.index)
            if xxhash.xxh3_128_hexdigest(data) != entry.index_xxh3:
                return None
            index = from_bytes(data, name=entry.index, samples=entry.samples)
            headers = {name: header_bytes(data, name, name=entry.index) for name in index.fields}
        except (FileNotFoundError, ManifestError, StoreError):
            return None
        return list(_samples(index, headers, has_keys=self._has_keys)) if _describes(index, entry) else None


def _length(path: Path | RemoteFile) -> int:
    try:
        return path.size if isinstance(path, RemoteFile) else path.stat().st_size
    except OSError:
        return -1


def _describes(index: Index, entry: ShardEntry) -> bool:
    return index.shard_bytes == entry.bytes and index.shard_xxh3 == entry.xxh3


def _samples(index: Index, headers: dict[str, NDArray[np.int32] | None], *, has_keys: bool) -> Iterator[IndexedSample]:
    names = list(index.fields)
    offsets = np.array([part.offset for part in index.fields.values()])
    sizes = np.array([part.size for part in index.fields.values()])
    before = np.array([np.full(len(index), tar.BLOCK) if header is None else header for header in headers.values()])
    stops = (offsets + -(-sizes // tar.BLOCK) * tar.BLOCK).T.tolist()
    starts, rows = (offsets - before).T.tolist(), zip(index.keys, offsets.T.tolist(), sizes.T.tolist(), strict=True)
    labels = index.label.tolist()
    for row, (key, starts_of_fields, lengths) in enumerate(rows):
        fields = sorted((offset, position) for position, offset in enumerate(starts_of_fields) if offset != ABSENT)
        if fields:
            first, last = fields[0][1], fields[-1][1]
            sizes_by_field = {names[position]: lengths[position] for _, position in fields}
            yield IndexedSample(
                key,
                starts[row][first],
                stops[row][last],
                sizes_by_field,
                None if labels[row] == NO_LABEL else labels[row],
                _json_bytes(key, sizes_by_field.get("json"), has_keys=has_keys),
            )


def _json_bytes(key: str, size: int | None, *, has_keys: bool) -> int:
    """Return what a field ``json`` of ``size`` bytes, written by `pack`, and the key add to that of a new shard."""
    if size is None:
        return facts_bytes({"key": key})
    return tar.padded(size if has_keys else size + len(f'"key":{json.dumps(key)},'))


class AddedFields:
    """The shards with added fields of a dataset. It is not pickled; each process creates its own.

    Args:
        path: Folder or URL of the dataset.
        additions: What its manifest lists.
        remote: How URLs are read, if it is at a URL; otherwise None.

    Attributes:
        paths: The shards.

    Raises:
        SourceError: The folder of added fields is missing or damaged.
    """

    def __init__(self, path: str, additions: Sequence[Addition], remote: RemoteOptions | None) -> None:
        self.paths: tuple[Path | RemoteFile, ...] = ()
        self._parts: list[tuple[TarFiles, dict[str, int]]] = []  # archives, and the index of each by its name
        for addition in additions:
            folder = join(path, addition.folder)
            with as_source_error(f"{shown_path(folder)} cannot be read", ManifestError, StoreError):
                data = open_store(folder, remote=remote or RemoteOptions.of()).read(MANIFEST_NAME)
                names = [entry.name for entry in from_json(data, name=join(folder, MANIFEST_NAME)).shards]
            paths = locate(folder, is_tar, "tar", remote, names)
            self.paths += paths
            self._parts.append((TarFiles(paths, remote), {name: index for index, name in enumerate(names)}))

    def spans(self, shard: str) -> list[dict[str, tuple[Span, int]]]:
        """Return for each addition: key -> (span, bytes that the fields take in a shard), of the samples of a shard."""
        spans = []
        for archives, indexes in self._parts:
            part: dict[str, tuple[Span, int]] = {}
            if shard in indexes:
                with as_source_error(f"{shard} with added fields cannot be packed", ShardError):
                    for member in tar.walk(archives[indexes[shard]], shard=shard):
                        key, name = split_name(member.name) or ("", "")
                        (start, _), size = part.get(key, ((member.header_offset, 0), 0))
                        size += tar.member_bytes(f"000000000.{name}", member.size)
                        part[key] = (start, member.offset + tar.padded(member.size)), size
            spans.append(part)
        return spans

    def fields(self, shard: str, spans: list[Span]) -> dict[str, bytes]:
        """Return the added fields of a sample."""
        contents = {}
        for (archives, indexes), (start, stop) in zip(self._parts, spans, strict=True):
            if stop:
                data = archives.slice(indexes[shard], start, stop)
                with as_read_error("cannot be read", ShardError):
                    for member in tar.walk(data, shard=shard, complete=True):
                        _, name = split_name(member.name) or ("", "")
                        contents[name] = bytes(data[member.offset : member.offset + member.size])
        return contents


def folder_of(path: Path | RemoteFile) -> str:
    """Return the folder of a shard."""
    return split_folder(_place(path))[0]


def _place(path: Path | RemoteFile) -> str:
    return path.url if isinstance(path, RemoteFile) else str(path)


def read_manifest(folder: str, remote: RemoteOptions | None) -> Manifest | None:
    """Return the manifest of a folder; None without one.

    Raises:
        SourceError: It is damaged, or the storage fails.
    """
    store = open_store(folder, remote=remote or RemoteOptions.of())
    with as_source_error(shown_path(folder), ManifestError):
        try:
            data = store.read(MANIFEST_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except StoreError as error:
            kind = SourceError if remote is None else SourceStoreError
            raise kind(str(error)) from error
        return from_json(data)


def manifest_of_shards(
    name: str, paths: Sequence[Path | RemoteFile], remote: RemoteOptions | None
) -> tuple[str, Manifest] | None:
    """Return the manifest that lists shards, whatever its name, and its folder; None if they are in no manifest.

    If several manifests state the same, the first one is returned, with the shards of all manifests of its folder.

    Raises:
        SourceError: The manifests state different classes or labels, or some shards are in no manifest.
    """
    lists = {folder: _manifests_of(folder, paths, remote) for folder in sorted(set(map(folder_of, paths)))}
    manifests = {join(folder, file): manifest for folder, named in lists.items() for file, manifest in named.items()}
    if not manifests:
        return None
    first, manifest = next(iter(manifests.items()))
    stated = {(manifest.classes, manifest.label, bool(manifest.additions)) for manifest in manifests.values()}
    check_same([DatasetClasses(path, manifest.classes, manifest.field_classes) for path, manifest in manifests.items()])
    is_same = stated == {(manifest.classes, manifest.label if len(manifests) == 1 else None, bool(manifest.additions))}
    if not all(lists.values()) or not is_same or (len(manifests) > 1 and manifest.additions):
        raise SourceError(
            f"{name} has shards of {counted(len(lists), 'folder')}, whose manifests state different classes or labels, "
            "or which have none: pack the shards of one manifest at a time, or join them first, with `wds-tools merge`"
        )
    listed = {shard.name for manifest in manifests.values() for shard in manifest.shards}
    missing = [path.name for path in paths if path.name not in listed]
    if missing and (manifest.label is not None or manifest.additions or manifest.classes):
        raise SourceError(
            f"{name} has the shard {missing[0]}, which {first} does not list: index all shards of the folder with "
            "`wds-tools index`, or move it to another folder"
        )
    folder = next(folder for folder, named in lists.items() if named)
    shards = tuple(shard for manifest in lists[folder].values() for shard in manifest.shards)
    return folder, manifest if len(lists[folder]) == 1 else replace(manifest, shards=shards)


def _manifests_of(folder: str, paths: Iterable[Path | RemoteFile], remote: RemoteOptions | None) -> dict[str, Manifest]:
    """Return the manifests of a folder that list any of some shards, by their names."""
    shards = {split_folder(_place(path))[1] for path in paths if folder_of(path) == folder}
    default = read_manifest(folder, remote)
    in_default = shards & {shard.name for shard in default.shards} if default else set()
    named = {MANIFEST_NAME: default} if default and in_default else {}
    if not shards <= in_default:
        store = open_store(folder, remote=remote or RemoteOptions.of())
        with suppress(OSError, StoreError), as_source_error(shown_path(folder), ManifestError):
            others = manifests_among({*store.list()} - {MANIFEST_NAME}, store.read)
            missing = shards - in_default
            named |= {
                file: manifest for file, manifest in others if missing & {shard.name for shard in manifest.shards}
            }
    return named
