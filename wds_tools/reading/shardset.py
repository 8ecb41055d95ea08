"""An opened dataset: its manifest, and the location of each shard and index.

A dataset is given as a folder or URL with a ``manifest.json``, as the manifest itself, or as a
pattern of shards with indexes. Without a manifest, fields and image sizes come from the indexes,
and classes have numbers but no names.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ChecksumError, ManifestError, MissingFieldError, MissingFileError, NotADatasetError
from wds_tools.format.field_classes import DatasetClasses, shared
from wds_tools.format.index import Index, from_bytes
from wds_tools.format.index_edit import header_bytes, read_columns
from wds_tools.format.label_lists import LABELS
from wds_tools.format.manifest import Manifest, ShardEntry, from_json
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.format.totals import Totals
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.reading.locations import (
    ShardLocation,
    added_shards,
    entry_from_index,
    find_manifest,
    replacement_reported,
)
from wds_tools.reading.names import Dataset, is_pattern, listed_shards, name_of_list, split_manifest, why_not_a_dataset
from wds_tools.storage import (
    Block,
    Extent,
    FetchStatistics,
    Range,
    Store,
    StoredFile,
    is_url,
    join,
    open_store,
    split_folder,
    whole_file,
)
from wds_tools.storage.local import LocalStore
from wds_tools.storage.lock import unfinished_append, why_unfinished
from wds_tools.storage.patterns import expand_pattern
from wds_tools.storage.stream import ObjectStream, stream_object

MAX_OPEN_INDEXES = 1024  # about 1.5 MB each at 10,000 samples a shard
MAX_INDEX_BYTES = 2 << 30  # memory of all open indexes; an index may take far more memory than its file


class ShardSet:
    """The shards of a dataset. Indexes are read and verified when they are first needed.

    Shards have numbers: first those of ``locations``, and after them those with fields that were added later. Methods
    that read bytes or an index accept both.

    Args:
        manifest: Manifest of the dataset.
        locations: Location of each shard, in the order of the manifest.
        name: The folder, URL, manifest or pattern that was opened; for a list of shards, the first and the last one.
        class_lists: The class lists of each of several datasets that are opened as one; by default those of
            ``manifest``.
    """

    def __init__(
        self,
        manifest: Manifest,
        locations: Sequence[ShardLocation],
        *,
        name: str,
        class_lists: Sequence[DatasetClasses] | None = None,
    ) -> None:
        self.manifest = manifest
        self.class_lists = tuple([classes_of(manifest, name)] if class_lists is None else class_lists)
        self.locations = tuple(locations)
        self.name = name
        added = [(index, part) for index, location in enumerate(self.locations) for part in location.added]
        self._all = (*self.locations, *(part for _, part in added))
        self.has_added = bool(added)
        """Whether there are shards with fields that were added later."""
        self._added: dict[int, list[int]] = {}
        for index, (base, _) in enumerate(added, len(self.locations)):
            self._added.setdefault(base, []).append(index)
        self.stores = tuple({id(location.store): location.store for location in self._all}.values())
        """The stores of the shards, each once."""
        self._one_folder = len(self.stores) == 1
        self._indexes = LRUCache[int, Index](max_items=MAX_OPEN_INDEXES, max_bytes=MAX_INDEX_BYTES)

    def added(self, shard: int) -> list[tuple[int, tuple[str, ...]]]:
        """Return the shards with fields that were added to a shard: their numbers, and the names of their fields."""
        return [(number, self._all[number].fields) for number in self._added.get(shard, ())]

    @property
    def added_entries(self) -> list[ShardEntry]:
        """The entries of all shards with fields that were added later, in the order of their numbers."""
        return [location.entry for location in self._all[len(self.locations) :]]

    def with_fields(self, names: Sequence[str]) -> ShardSet:
        """Return the dataset with only those added shards that have one of these fields.

        All are kept if there is no stored field among them: whole samples are then read by key.
        """
        if not self.has_added or not set(names) - {"__key__"}:
            return self
        locations = [
            replace(location, added=tuple(part for part in location.added if set(part.fields) & set(names)))
            for location in self.locations
        ]
        return ShardSet(self.manifest, locations, name=self.name, class_lists=self.class_lists)

    @property
    def unfinished_append(self) -> str | None:
        """A message if shards are being appended or this was interrupted, with what to do; None for a URL."""
        store = self.locations[0].store
        return unfinished_append(store.folder, store.read) if isinstance(store, LocalStore) else None

    @property
    def has_manifest(self) -> bool:
        """Whether the dataset was opened by its manifest, not by a pattern of shards."""
        return not is_pattern(self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "locations": self.locations, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # each process reads the indexes that it needs

    def shard_name(self, shard: int) -> str:
        """Return the name of a shard for messages, with its folder if the dataset has several folders."""
        return self._all[shard].entry.name if self._one_folder else self.shard_url(shard)

    def shard_url(self, shard: int) -> str:
        """Return the path or URL of a shard."""
        location = self._all[shard]
        return join(location.store.folder, location.entry.name)

    def index(self, shard: int, *, keep: bool = True) -> Index:
        """Return the index of a shard.

        Args:
            shard: Index of the shard.
            keep: Keep the index in memory for later calls.

        Raises:
            StoreError: The index cannot be read.
            ChecksumError: It does not match the checksum in the manifest.
            ManifestError: It is invalid, or belongs to another shard.
        """
        known = self._indexes.get(shard)
        if known is not None:
            return known
        with self.replacement_reported([shard]):
            index = self._read_index(self._all[shard])
        if keep:
            self._indexes.put(shard, index, index.memory_bytes)
        return index

    def reopened(self) -> ShardSet:
        """Return the same shards with stores of their own, for another thread."""
        stores = {id(store): copy.copy(store) for store in self.stores}
        locations = [_with_stores(location, stores) for location in self.locations]
        return ShardSet(self.manifest, locations, name=self.name, class_lists=self.class_lists)

    @property
    def is_remote(self) -> bool:
        """Whether reading takes network requests."""
        return any(store.is_remote for store in self.stores)

    def block(self, shard: int, span: Range) -> Block:
        """Return a range of a shard as a unit of reading."""
        entry = self._all[shard].entry
        return Block(StoredFile(entry.name, entry.bytes, entry.xxh3), *span)

    def fetch(self, shard: int, ranges: Sequence[Range]) -> list[memoryview]:
        """Return byte ranges of a shard that are read once, in the order of ``ranges``: they are not cached.

        Raises:
            TruncatedShardError: The length of the shard is not the one that its manifest records.
            StoreError: The shard cannot be read.
        """
        location = self._all[shard]
        with self.replacement_reported([shard]):
            return location.store.fetch(location.entry.name, ranges, total_bytes=location.entry.bytes)

    def fetch_extents(self, shards: Sequence[int], extents: Sequence[Extent]) -> list[memoryview]:
        """Return parts of cached blocks, in the order of ``extents``; raises as `fetch` does.

        Args:
            shards: Index of the shard of each extent.
            extents: The parts.
        """
        found: list[memoryview] = [memoryview(b"")] * len(extents)
        for store, positions in self._by_store(shards):
            with self.replacement_reported(shards):
                values = store.fetch_extents([extents[position] for position in positions])
            for position, value in zip(positions, values, strict=True):
                found[position] = value
        return found

    def read_ahead(self, shards: Sequence[int], blocks: Sequence[Block]) -> None:
        """Start reading blocks that will be fetched soon, if the store can; raises as `fetch` does.

        Args:
            shards: Index of the shard of each block.
            blocks: The blocks.
        """
        for store, positions in self._by_store(shards):
            with self.replacement_reported(shards):
                store.read_ahead([blocks[position] for position in positions])

    def read_samples_ahead(self, shards: Sequence[int], extents: Sequence[Extent], *, machines: int) -> None:
        """Start reading the samples of the first batch on one of several machines, before their blocks."""
        for store, positions in self._by_store(shards):
            wanted = [extents[position] for position in positions]
            store.read_samples_ahead(wanted, dataset_bytes=self.manifest.bytes // machines)

    def read_indexes_ahead(self, shards: Iterable[int], *, wait: bool = True) -> None:
        """Read indexes into the cache, many at a time, if they are remote; without ``wait``, only start to."""
        wanted = [number for shard in shards for number in (shard, *self._added.get(shard, ()))]
        missing = [shard for shard in wanted if self._indexes.get(shard) is None]
        for store, positions in self._by_store(missing):
            entries = [self._all[missing[position]].entry for position in positions]
            with self.replacement_reported(missing):
                store.read_files_ahead([_index_file(entry) for entry in entries], wait=wait)

    def release(self, shards: Sequence[int], blocks: Sequence[Block]) -> None:
        """Mark blocks that will not be fetched again in this epoch, so that a cache evicts them first."""
        for store, positions in self._by_store(shards):
            store.release([blocks[position] for position in positions])

    def drop_cached(self, shard: int, blocks: Sequence[Block]) -> bool:
        """Remove damaged blocks from the cache; return whether another fetch may return different bytes."""
        return self._all[shard].store.drop_cached(blocks)

    @property
    def statistics(self) -> FetchStatistics:
        """What has been read from URLs so far."""
        return sum((store.statistics for store in self.stores), start=FetchStatistics())

    def log_use(self) -> None:
        """Log what was read, at level DEBUG."""
        for store in self.stores:
            store.log_use()

    def stream(self, shard: int, *, on_chunk: Callable[[int, memoryview], object] | None = None) -> ObjectStream:
        """Return the bytes of a shard, to be read from start to end; see `stream_object`."""
        location = self._all[shard]
        return stream_object(location.store, location.entry.name, total_bytes=location.entry.bytes, on_chunk=on_chunk)

    def replacement_reported(self, shards: Sequence[int]) -> AbstractContextManager[None]:
        """Let an error about damaged or missing shards report another version of the dataset, if there is one."""
        return replacement_reported([self._all[shard] for shard in shards])

    def _by_store(self, shards: Sequence[int]) -> Iterator[tuple[Store, Sequence[int]]]:
        """Yield each store, and the positions in ``shards`` of those that it has."""
        if self._one_folder:
            if shards:
                yield self.locations[0].store, range(len(shards))
            return
        positions: dict[int, list[int]] = {}
        for position, shard in enumerate(shards):
            positions.setdefault(id(self._all[shard].store), []).append(position)
        for found in positions.values():
            yield self._all[shards[found[0]]].store, found

    def columns(self, shard: int, names: Sequence[str]) -> pa.Table:
        """Return further columns of the index of a shard, see `Index.columns`; raises as `index` does."""
        location = self.locations[shard]
        path = join(location.store.folder, location.entry.index)
        return read_columns(self._index_bytes(location), names, name=path)

    def headers(self, shard: int, index: Index) -> dict[str, NDArray[np.int32] | None]:
        """Return the bytes of the tar headers of each field, see `header_bytes`; raises as `index` does."""
        location = self.locations[shard]
        path, data = join(location.store.folder, location.entry.index), self._index_bytes(location)
        return {field: header_bytes(data, field, name=path) for field in index.fields}

    def _read_index(self, location: ShardLocation) -> Index:
        entry = location.entry
        path = join(location.store.folder, entry.index)
        index = from_bytes(self._index_bytes(location), name=path, samples=entry.samples)
        if index.shard_bytes != entry.bytes:
            raise ManifestError(
                f"the index {path} is for a shard of {index.shard_bytes:,} bytes, but the manifest records "
                f"{entry.bytes:,}: rebuild it with `wds-tools index`",
                shard=entry.name,
            )
        return index

    def _index_bytes(self, location: ShardLocation) -> bytes:
        """Return the verified file of an index."""
        entry = location.entry
        path = join(location.store.folder, entry.index)
        try:
            data = location.store.read(entry.index, file=_index_file(entry))
        except FileNotFoundError as error:
            raise MissingFileError(
                f"the index {path} is missing, but its manifest lists it: copy it, or rebuild it with "
                "`wds-tools index`",
                shard=entry.name,
            ) from error
        if not _matches(data, entry) and location.store.drop_cached([whole_file(_index_file(entry))]):
            data = location.store.read(entry.index)
        if not _matches(data, entry):
            raise ChecksumError(
                f"the index {path} does not match the checksum in the manifest: "
                "it was damaged or replaced; copy it, or rebuild it with `wds-tools index`",
                shard=entry.name,
            )
        return data


def _with_stores(location: ShardLocation, stores: Mapping[int, Store]) -> ShardLocation:
    """Return a location, and the locations of its added fields, with other stores, by the id of the old one."""
    added = tuple(_with_stores(one, stores) for one in location.added)
    return replace(location, store=stores[id(location.store)], added=added)


def _index_file(entry: ShardEntry) -> StoredFile:
    return StoredFile(entry.index, entry.index_bytes, entry.index_xxh3)


def _matches(data: bytes, entry: ShardEntry) -> bool:
    """Return whether these bytes are the index of a shard."""
    return len(data) == entry.index_bytes and xxhash.xxh3_128_hexdigest(data) == entry.index_xxh3


def open_shards(spec: Dataset, *, remote: RemoteOptions | None = None, for_training: bool = False) -> ShardSet:
    """Open a dataset given by its folder, URL, manifest, pattern or shards.

    Args:
        spec: Folder or URL with a manifest, the manifest itself, a pattern of indexed shards, or a list of such shards.
        remote: How URLs are read; None uses the defaults.
        for_training: Fetch from a URL in a separate process, see `open_store`.

    Raises:
        NotADatasetError: The folder or manifest does not exist, a shard has no index, the pattern
            matches nothing, a list is empty, or the dataset has no samples.
        OptionError: A list has something other than shards.
        ManifestError: The manifest is invalid.
        StoreError: The storage fails.
    """
    remote = remote or RemoteOptions.of()
    if not isinstance(spec, str | os.PathLike):
        names = [os.fspath(name) for name in spec]
        return _from_shards(listed_shards(names), remote, name=name_of_list(names), for_training=for_training)
    name = os.fspath(spec)
    if is_pattern(name):
        return _from_shards(expand_pattern(name), remote, name=name, for_training=for_training)
    folder, manifest_name = split_manifest(name)
    if not is_url(folder) and os.path.isfile(folder):  # noqa: PTH113 - Path would normalize the string
        raise NotADatasetError(
            f"{folder} is a file; pass the folder that `wds-tools pack` wrote, its manifest.json, or a pattern of "
            "shards"
        )
    store = open_store(folder, remote=remote, for_training=for_training)
    try:
        manifest = from_json(store.read(manifest_name), name=join(folder, manifest_name))
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(
            why_unfinished(folder, store.read) or why_not_a_dataset(name, folder, manifest_name)
        ) from None
    if not manifest.samples:
        raise NotADatasetError(f"{join(folder, manifest_name)} lists no samples: pack the dataset again")
    added = added_shards(store, manifest, remote, for_training=for_training)
    locations = [ShardLocation(store, entry, added=added.get(entry.name, ())) for entry in manifest.shards]
    return ShardSet(manifest, locations, name=name)


def _from_shards(urls: list[str], remote: RemoteOptions, *, name: str, for_training: bool) -> ShardSet:
    """Open shards: as the manifests of their folders list them, otherwise by their indexes."""
    stores: dict[str, Store] = {}
    manifests: dict[str, Manifest | None] = {}
    listed: dict[str, dict[str, ShardEntry]] = {}
    added: dict[str, dict[str, tuple[ShardLocation, ...]]] = {}
    checked: set[str] = set()  # folders with shards that no manifest lists
    locations, totals = [], Totals()  # totals of the shards that no manifest lists
    for url in urls:
        folder, file_name = split_folder(url)
        if folder not in stores:
            stores[folder] = open_store(folder, remote=remote, for_training=for_training)
            found = manifests[folder] = find_manifest(stores[folder])
            listed[folder] = {entry.name: entry for entry in found.shards} if found else {}
            added[folder] = added_shards(stores[folder], found, remote, for_training=for_training) if found else {}
        entry = listed[folder].get(file_name)
        if entry is None:
            if folder not in checked and (reason := why_unfinished(folder, stores[folder].read)) is not None:
                raise NotADatasetError(reason)
            checked.add(folder)
            entry = entry_from_index(stores[folder], file_name, totals)
        locations.append(ShardLocation(stores[folder], entry, added=added[folder].get(file_name, ())))
    known = [manifest for manifest in manifests.values() if manifest]
    combined = _combine(known, locations)
    fields = dict(Counter(combined.fields) + totals.fields)
    images = None if known else totals.images
    class_lists = [classes_of(found, folder) for folder, found in manifests.items() if found]
    return ShardSet(replace(combined, fields=fields, images=images), locations, name=name, class_lists=class_lists)


def join_sets(sets: Sequence[ShardSet]) -> ShardSet:
    """Return several datasets as one; sample ids count through all of them."""
    locations = [location for shards in sets for location in shards.locations]
    manifest = _combine([shards.manifest for shards in sets], locations)
    class_lists = [classes for shards in sets for classes in shards.class_lists]
    return ShardSet(manifest, locations, name=" + ".join(shards.name for shards in sets), class_lists=class_lists)


def classes_of(manifest: Manifest, name: str) -> DatasetClasses:
    """Return all class lists of a dataset."""
    return DatasetClasses(name, manifest.classes, manifest.field_classes, manifest.all_fields)


def _combine(manifests: Sequence[Manifest], locations: Sequence[ShardLocation]) -> Manifest:
    """Return a manifest for some shards of several datasets, without image sizes.

    It has the fields of all datasets; their counts are not for these shards.
    """
    fields = {field: count for manifest in manifests for field, count in manifest.fields.items()}
    classes = {manifest.classes for manifest in manifests}
    return Manifest(
        shards=tuple(location.entry for location in locations),
        fields=fields,
        classes=classes.pop() if len(classes) == 1 else (),
        shuffled=bool(manifests) and all(manifest.shuffled for manifest in manifests),
        label=next((manifest.label for manifest in manifests if manifest.label is not None), None),
        additions=tuple(addition for manifest in manifests for addition in manifest.additions),
        field_classes=shared([classes_of(manifest, "") for manifest in manifests]),
    )


MAX_KEYS = 50_000_000
"""Maximum number of keys that are compared, in the order of the samples; each takes 8 bytes of memory."""


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that occurs at least twice.

    Attributes:
        key: The key.
        shards: Names of the shards with its first and second occurrence.
    """

    key: str
    shards: tuple[str, str]

    def __str__(self) -> str:
        one, other = self.shards
        return (
            f"key {self.key!r} occurs in {one} and in {other}, and other keys may be repeated too. wds_tools reads "
            "such a dataset, but readers that find samples by key, such as Energon, refuse it: `wds-tools reshard` "
            "writes the same samples with unique keys"
        )


def find_repeated_key(shards: ShardSet) -> RepeatedKey | None:
    """Return the first repeated key, or None if there is none among the first `MAX_KEYS`.

    Reads every index.

    Raises:
        StoreError: An index cannot be read.
        ChecksumError: An index is not the one that the manifest lists.
        ManifestError: An index is invalid.
    """
    parts, total = [], 0
    for index in range(len(shards.locations)):
        if total >= MAX_KEYS:
            break
        parts.append(_hashes(shards, index))
        total += len(parts[-1])
    hashes = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    order = np.argsort(hashes, kind="stable")
    repeated = order[1:][hashes[order[1:]] == hashes[order[:-1]]]  # sample ids whose key has occurred before
    if not len(repeated):
        return None
    second = int(repeated.min())
    first = int(np.flatnonzero(hashes == hashes[second])[0])
    edges = np.cumsum([len(part) for part in parts])
    one, other = (int(np.searchsorted(edges, sample, side="right")) for sample in (first, second))
    row = second - (int(edges[other - 1]) if other else 0)
    return RepeatedKey(shards.index(other, keep=False).keys[row], (shards.shard_name(one), shards.shard_name(other)))


def _hashes(shards: ShardSet, number: int) -> NDArray[np.uint64]:
    keys = shards.index(number, keep=False).keys
    return np.fromiter((xxhash.xxh3_64_intdigest(key.encode()) for key in keys), np.uint64, len(keys))


_SEVERAL = (
    "Its samples have several labels: load them as fields={'image': wds_tools.Image(...), 'labels': "
    "wds_tools.MultiHot()}"
)


def check_fields(fields: Sequence[str], available: Iterable[str], *, has_labels: bool = False) -> None:
    """Check that a dataset has the requested fields.

    Args:
        fields: The requested fields.
        available: The stored fields of the dataset.
        has_labels: Whether samples have labels even without the field ``cls``.

    Raises:
        MissingFieldError: A field is missing; the message lists the available ones.
    """
    stored = set(available)
    virtual = {"__key__"}
    if stored & set(IMAGE_FIELDS):
        virtual.add("image")
    if has_labels or "cls" in stored:
        virtual.add("label")
    missing = [name for name in fields if name not in stored | virtual]
    if missing:
        raise MissingFieldError(
            f"fields={tuple(fields)!r}: the dataset has no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(sorted(virtual) + sorted(stored))}"
            + (f". {_SEVERAL}" if "label" in missing and LABELS in stored else "")
        )
