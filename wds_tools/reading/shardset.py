"""An opened dataset: its manifest, its shards and their indexes; the fields that a user requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ChecksumError, ManifestError, MissingFieldError, MissingFileError
from wds_tools.format.field_classes import DatasetClasses
from wds_tools.format.index import Index, from_bytes, stored_columns
from wds_tools.format.index_edit import header_bytes, read_columns
from wds_tools.format.label_lists import LABELS
from wds_tools.format.manifest import MANIFEST_NAME, KnownShards, Manifest, ShardEntry
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.lazy_sequence import LazySequence
from wds_tools.lru_cache import LRUCache
from wds_tools.reading.locations import (
    LocationTable,
    RewrittenError,
    ShardLocation,
    changed,
    parts_of,
    replacement_reported,
    rewritten_entries,
    stores_of,
    with_added,
)
from wds_tools.reading.names import is_pattern
from wds_tools.storage import (
    Block,
    Extent,
    FetchStatistics,
    Range,
    Store,
    StoredFile,
    join,
    whole_file,
)
from wds_tools.storage.cache.arrays import ArrayCache, Arrays
from wds_tools.storage.local import LocalStore
from wds_tools.storage.lock import unfinished_append
from wds_tools.storage.stream import ObjectStream, stream_object

MAX_OPEN_INDEXES = 1024  # about 1.5 MB each at 10,000 samples a shard
MAX_INDEX_BYTES = 2 << 30  # memory of all open indexes; an index may take far more memory than its file
MIN_STORED_SAMPLES = 100_000  # of a dataset whose selections are stored: those of a smaller one take 0.1 s


class ShardSet:
    """The shards of a dataset. Indexes are read and verified when they are first needed.

    Shards are numbered: first the shards of ``locations``, then the shards with fields that were added later. Methods
    that read bytes or an index accept both.

    Args:
        manifest: Manifest of the dataset.
        locations: Location of each shard, in the order of the manifest.
        name: The folder, URL, manifest or pattern that was opened; for a list of shards, the first and the last one.
        class_lists: The class lists of each of several datasets that are opened as one; by default those of
            ``manifest``.
        array_cache: Where `computed` stores arrays; None stores none.
    """

    def __init__(
        self,
        manifest: Manifest,
        locations: Sequence[ShardLocation],
        *,
        name: str,
        class_lists: Sequence[DatasetClasses] | None = None,
        array_cache: ArrayCache | None = None,
    ) -> None:
        self.manifest = manifest
        self.array_cache = array_cache
        self.class_lists = tuple([classes_of(manifest, name)] if class_lists is None else class_lists)
        self.name = name
        self.locations: Sequence[ShardLocation] = locations if isinstance(locations, LazySequence) else tuple(locations)
        self._all, self._added_ends = with_added(self.locations)
        self.has_added = len(self._all) > len(self.locations)
        """Whether there are shards with fields that were added later."""
        self.stores = tuple(stores_of(self.locations))
        """The stores of the shards, each once."""
        self._one_folder = len(self.stores) == 1
        self._stamps: dict[str, object] = {}  # of the manifests that were read, by folder
        for part in parts_of(self.locations):
            if isinstance(part, LocationTable) and part.stamp is not None:
                self._stamps[part.store.folder] = part.stamp
        self._indexes = LRUCache[int, Index](max_items=MAX_OPEN_INDEXES, max_bytes=MAX_INDEX_BYTES)

    def added(self, shard: int) -> list[tuple[int, tuple[str, ...]]]:
        """Return the shards with fields that were added to a shard: their numbers, and the names of their fields."""
        return [(added, self._all[added].fields) for added in self._numbers_of_added(shard)]

    def _numbers_of_added(self, shard: int) -> range:
        if not self.has_added or shard >= len(self.locations):
            return range(0)
        first, last = self._added_ends[shard : shard + 2].tolist()
        return range(len(self.locations) + first, len(self.locations) + last)

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
        return self._with(changed(self.locations, fields=set(names)))

    def _with(self, locations: Sequence[ShardLocation]) -> ShardSet:
        options: dict[str, Any] = {"class_lists": self.class_lists, "array_cache": self.array_cache}
        return ShardSet(self.manifest, locations, name=self.name, **options)

    def find_gaps(self, shards: range, start: int, stop: int) -> NDArray[np.int64]:
        """Return which inputs ``start`` to ``stop`` of its plan some shards lack, ascending: int64 [n].

        Keys are positions in the plan.
        """
        keys = [np.array(self.index(shard, keep=False).keys).astype(np.int64) for shard in shards]
        return np.setdiff1d(np.arange(start, stop), np.concatenate([np.empty(0, np.int64), *keys]))

    def packed(self) -> tuple[int, NDArray[np.int64]]:
        """Return the number of inputs of its plan, and those that could not be packed. Keys are read only for these."""
        return self._packed

    @cached_property
    def _packed(self) -> tuple[int, NDArray[np.int64]]:
        inputs = int((self.manifest.source or {})["files"])
        is_complete = inputs == self.manifest.samples
        shards = range(0 if is_complete else len(self.manifest.shards))
        return inputs, self.find_gaps(shards, 0, 0 if is_complete else inputs)

    def check_new(self, check: Callable[[], object]) -> None:
        """Call a function whenever there are new shards: never, except in a dataset that is being packed."""

    @property
    def unfinished_append(self) -> str | None:
        """A message if shards are being appended or this was interrupted, with what to do; None for a URL."""
        store = self.locations[0].store
        return unfinished_append(store.folder, store.read) if isinstance(store, LocalStore) else None

    @property
    def local_files(self) -> list[Path]:
        """A file of each local folder with shards: another machine that has these files shares the folders."""
        entries = {location.store.folder: location.entry for location in self.locations}
        return [
            Path(folder, MANIFEST_NAME if Path(folder, MANIFEST_NAME).exists() else entries[folder].index)
            for folder in (store.folder for store in self.stores if isinstance(store, LocalStore))
            if folder in entries
        ]

    @property
    def has_manifest(self) -> bool:
        """Whether the dataset was opened by its manifest, not by a pattern of shards."""
        return not is_pattern(self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "locations": self.locations, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # each process reads the indexes that it needs

    @property
    def entries(self) -> Sequence[ShardEntry]:
        """The entries of the shards of ``locations``."""
        shards = self.manifest.shards
        return shards if isinstance(shards, KnownShards) else tuple(location.entry for location in self.locations)

    def entry(self, shard: int) -> ShardEntry:
        """Return the entry of a shard: that of the manifest, or the one that `follow` has found since."""
        return self._all[shard].entry

    def follow(self, error: RewrittenError) -> None:
        """Continue with the new shards and indexes that were rewritten in place since the dataset was opened."""
        self._go_on(error.entries)

    def refresh(self) -> None:
        """Continue with local shards whose images were rewritten in place since, if the manifest changed."""
        for store in self.stores:
            stamp = store.stamp(MANIFEST_NAME) if isinstance(store, LocalStore) else None
            if not isinstance(store, LocalStore) or stamp == self._stamps.get(store.folder):
                continue
            entries = [location.entry for location in self.locations if location.store is store]
            if all(entry.before for entry in entries):
                continue
            self._stamps[store.folder] = stamp
            if rewritten := rewritten_entries(store, entries):
                store.close_files()  # as long as an old file is mapped, it takes disk space
                self._go_on(rewritten)

    def _go_on(self, entries: Mapping[ShardEntry, ShardEntry]) -> None:
        """Take new entries for old ones."""
        locations = [replace(old, entry=entries.get(old.entry, old.entry)) for old in self.locations]
        indexes, stamps = self._indexes, self._stamps
        for shard, location in enumerate(self.locations):
            if location.entry in entries:
                indexes.pop(shard)
        manifest = replace(self.manifest, shards=tuple(location.entry for location in locations))
        options: dict[str, Any] = {"class_lists": self.class_lists, "array_cache": self.array_cache}
        ShardSet.__init__(self, manifest, locations, name=self.name, **options)
        self._indexes, self._stamps = indexes, stamps

    def shard_name(self, shard: int) -> str:
        """Return the name of a shard for messages, with its folder if the dataset has several folders."""
        return self._all[shard].entry.name if self._one_folder else self.shard_url(shard)

    def shard_url(self, shard: int) -> str:
        """Return the path or URL of a shard."""
        location = self._all[shard]
        return join(location.store.folder, location.entry.name)

    def index(self, shard: int, *, keep: bool = True) -> Index:
        """Return the index of a shard.

        Raises:
            StoreError: The index cannot be read.
            ChecksumError: It does not match the checksum in the manifest.
            ManifestError: It is invalid, or belongs to another shard.
        """
        cached = self._indexes.get(shard)
        if cached is not None:
            return cached
        index = self._read_index(*self._index_bytes(shard))
        if keep:
            self._indexes.put(shard, index, index.memory_bytes)
        return index

    def grow(self) -> bool:
        """Find shards that have been added since; return whether there are any. Only a dataset being packed grows."""
        return False

    def reopened(self) -> ShardSet:
        """Return the same shards with their own stores, for another thread."""
        stores = {id(store): copy.copy(store) for store in self.stores}
        return self._with(changed(self.locations, stores=stores))

    @property
    def is_remote(self) -> bool:
        """Whether reading takes network requests."""
        return any(store.is_remote for store in self.stores)

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
        """Return parts of cached blocks, in the order of ``extents``; raises as `fetch` does."""
        data: list[memoryview] = [memoryview(b"")] * len(extents)
        for store, positions in self._by_store(shards):
            with self.replacement_reported(shards):
                values = store.fetch_extents([extents[position] for position in positions])
            for position, value in zip(positions, values, strict=True):
                data[position] = value
        return data

    def read_ahead(self, shards: Sequence[int], blocks: Sequence[Block]) -> None:
        """Start reading blocks that will be fetched soon, if the store can; raises as `fetch` does."""
        for store, positions in self._by_store(shards):
            with self.replacement_reported(shards):
                store.read_ahead([blocks[position] for position in positions])

    def read_samples_ahead(self, shards: Sequence[int], extents: Sequence[Extent], *, machines: int) -> None:
        """Start reading the samples of the first batch on one of several machines, before their blocks."""
        for store, positions in self._by_store(shards):
            requested = [extents[position] for position in positions]
            store.read_samples_ahead(requested, dataset_bytes=self.manifest.bytes // machines)

    def read_indexes_ahead(self, shards: Iterable[int], *, wait: bool = True) -> None:
        """Read indexes into the cache, many at a time, if they are remote; without ``wait``, only start to."""
        requested = [index for shard in shards for index in (shard, *self._numbers_of_added(shard))]
        missing = [shard for shard in requested if self._indexes.get(shard) is None]
        try:
            self._read_indexes_ahead(missing, wait)
        except RewrittenError as error:
            self.follow(error)
            self._read_indexes_ahead(missing, wait)

    def _read_indexes_ahead(self, shards: Sequence[int], wait: bool) -> None:
        for store, positions in self._by_store(shards):
            entries = [self._all[shards[position]].entry for position in positions]
            with self.replacement_reported(shards):
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
        for group in positions.values():
            yield self._all[shards[group[0]]].store, group

    def columns(self, shard: int, names: Sequence[str]) -> pa.Table:
        """Return further columns of the index of a shard, see `Index.columns`; raises as `index` does."""
        data, location = self._index_bytes(shard)
        return read_columns(data, names, name=join(location.store.folder, location.entry.index))

    def index_file(self, shard: int) -> bytes:
        """Return the file of the index of a shard; raises as `index` does."""
        return self._index_bytes(shard)[0]

    def stored_columns(self, shard: int, names: Collection[str]) -> tuple[pa.Table, list[str]]:
        """Return some columns of the index of a shard, and the names of the further ones; see `stored_columns`."""
        data, location = self._index_bytes(shard)
        path = join(location.store.folder, location.entry.index)
        return stored_columns(data, names, name=path, samples=location.entry.samples)

    def computed(self, what: str, compute: Callable[[], Arrays], *, first_shards: int | None = None) -> Arrays:
        """Return arrays that are computed from the indexes: once per machine, for a dataset with many samples."""
        if self.array_cache is None or self.manifest.samples < MIN_STORED_SAMPLES:
            return compute()
        digest = xxhash.xxh3_128()
        shards = self.manifest.shards
        if isinstance(shards, KnownShards):
            digest.update(shards.index_checksums[:first_shards].tobytes().hex().encode())
        else:
            digest.update("".join(shard.index_xxh3 for shard in shards[:first_shards]).encode())
        return self.array_cache.load(f"{what} of indexes {digest.hexdigest()}", compute)

    def headers(self, shard: int, index: Index) -> dict[str, NDArray[np.int32] | None]:
        """Return the bytes of the tar headers of each field, see `header_bytes`; raises as `index` does."""
        data, location = self._index_bytes(shard)
        path = join(location.store.folder, location.entry.index)
        return {field: header_bytes(data, field, name=path) for field in index.fields}

    def _read_index(self, data: bytes, location: ShardLocation) -> Index:
        entry = location.entry
        path = join(location.store.folder, entry.index)
        index = from_bytes(data, name=path, samples=entry.samples)
        if index.shard_bytes != entry.bytes:
            raise ManifestError(
                f"the index {path} is for a shard of {index.shard_bytes:,} bytes, but the manifest records "
                f"{entry.bytes:,}: rebuild it with `wds-tools index`",
                shard=entry.name,
            )
        return index

    def _index_bytes(self, shard: int) -> tuple[bytes, ShardLocation]:
        """Return the verified file of an index, and the location of the shard that it belongs to."""
        try:
            with self.replacement_reported([shard]):
                return self._verified_index(self._all[shard]), self._all[shard]
        except RewrittenError as error:
            self.follow(error)
            return self._verified_index(self._all[shard]), self._all[shard]

    def _verified_index(self, location: ShardLocation) -> bytes:
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


def _index_file(entry: ShardEntry) -> StoredFile:
    return StoredFile(entry.index, entry.index_bytes, entry.index_xxh3)


def _matches(data: bytes, entry: ShardEntry) -> bool:
    """Return whether these bytes are the index of a shard."""
    return len(data) == entry.index_bytes and xxhash.xxh3_128_hexdigest(data) == entry.index_xxh3


def classes_of(manifest: Manifest, name: str) -> DatasetClasses:
    """Return all class lists of a dataset."""
    return DatasetClasses(name, manifest.classes, manifest.field_classes, manifest.all_fields)


_SEVERAL = (
    "Its samples have several labels: load them as fields={'image': wds_tools.Image(...), 'labels': "
    "wds_tools.MultiHot()}"
)


def check_fields(fields: Sequence[str], available: Iterable[str], *, has_labels: bool = False) -> None:
    """Check that a dataset has the requested fields."""
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
