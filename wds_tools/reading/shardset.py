"""A dataset that has been found: its manifest, and where each shard and index is.

A dataset is named by a folder or URL with a ``manifest.json``, by the manifest itself, or by a brace pattern of
shards that have an index. Without a manifest, fields and image sizes come from the indexes; classes have numbers then
and no names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from wds_tools.errors import ChecksumError, ManifestError, NotADatasetError, StoreError
from wds_tools.format.index import Index, from_bytes, index_name, shard_entry
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry, from_json
from wds_tools.format.totals import Totals
from wds_tools.lru_cache import LRUCache
from wds_tools.options import CacheOptions
from wds_tools.storage import Range, Store, is_url, join, open_store, split_folder
from wds_tools.storage.patterns import expand_pattern, has_pattern

MAX_OPEN_INDEXES = 1024  # about 1.5 MB each at 10,000 samples a shard
MAX_INDEX_BYTES = 2 << 30  # of all open ones: an index may be far larger in memory than its file


@dataclass(frozen=True, slots=True)
class Place:
    """Where one shard is."""

    store: Store
    entry: ShardEntry


class ShardSet:
    """The shards of a dataset. Indexes are read when they are first needed, and verified."""

    def __init__(self, manifest: Manifest, places: Sequence[Place], *, name: str) -> None:
        self.manifest = manifest
        self.places = tuple(places)
        self.name = name
        self._one_folder = len({id(place.store) for place in self.places}) == 1
        self._indexes = LRUCache[int, Index](max_items=MAX_OPEN_INDEXES, max_bytes=MAX_INDEX_BYTES)

    @property
    def has_manifest(self) -> bool:
        """Whether the dataset is named by its manifest, rather than by a pattern of shards."""
        return not is_pattern(self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "places": self.places, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # each process reads the indexes that it needs

    def shard_name(self, shard: int) -> str:
        """Return a shard's name for messages: with its folder, if the dataset has several."""
        return self.places[shard].entry.name if self._one_folder else self.shard_url(shard)

    def shard_url(self, shard: int) -> str:
        """Return the path or URL of a shard."""
        place = self.places[shard]
        return join(place.store.folder, place.entry.name)

    def index(self, shard: int, *, keep: bool = True) -> Index:
        """Return the index of a shard.

        Args:
            shard: Its number.
            keep: Hold it in memory, because it will soon be asked for again.

        Raises:
            StoreError: It cannot be read.
            ChecksumError: It is not the one that the manifest names.
            ManifestError: It breaks the format, or belongs to another shard.
        """
        known = self._indexes.get(shard)
        if known is not None:
            return known
        index = self._read_index(self.places[shard])
        if keep:
            self._indexes.put(shard, index, index.memory_bytes)
        return index

    def fetch(self, shard: int, ranges: Sequence[Range]) -> list[memoryview]:
        """Return ranges of a shard's bytes.

        Raises:
            TruncatedShardError: The shard does not have the length that its manifest states.
            StoreError: It cannot be read.
        """
        place = self.places[shard]
        return place.store.fetch(place.entry.name, ranges, total_bytes=place.entry.bytes)

    def expect(self, shard: int, ranges: Sequence[Range]) -> None:
        """Say that these ranges will be fetched soon."""
        place = self.places[shard]
        place.store.expect(place.entry.name, ranges, total_bytes=place.entry.bytes)

    def forget(self, shard: int, ranges: Sequence[Range]) -> bool:
        """Drop cached copies of damaged ranges; return whether fetching again may help."""
        return self.places[shard].store.forget(self.places[shard].entry.name, ranges)

    def log_cache_use(self) -> None:
        """Log what came from the cache, at level DEBUG."""
        for store in {id(place.store): place.store for place in self.places}.values():
            store.log_cache_use()

    def read_shard(self, shard: int) -> memoryview:
        """Return a whole shard."""
        return self.fetch(shard, [(0, self.places[shard].entry.bytes)])[0]

    def _read_index(self, place: Place) -> Index:
        entry = place.entry
        where = join(place.store.folder, entry.index)
        try:
            data = place.store.read(entry.index)
        except FileNotFoundError as error:
            raise StoreError(
                f"the index {where} is missing: copy it, or make it again with `wds-tools index`",
                shard=entry.name,
            ) from error
        if len(data) != entry.index_bytes or xxhash.xxh3_128_hexdigest(data) != entry.index_xxh3:
            raise ChecksumError(
                f"the index {where} is not the one that the manifest names (checksum differs): "
                "it was damaged or replaced; copy it, or make it again with `wds-tools index`",
                shard=entry.name,
            )
        index = from_bytes(data, name=where, samples=entry.samples)
        if index.shard_bytes != entry.bytes:
            raise ManifestError(
                f"the index {where} is for a shard of {index.shard_bytes:,} bytes; the manifest says "
                f"{entry.bytes:,}: make it again with `wds-tools index`",
                shard=entry.name,
            )
        return index


def open_shards(spec: str | os.PathLike[str], *, cache: CacheOptions | None = None) -> ShardSet:
    """Find a dataset by folder, URL, manifest or pattern.

    Raises:
        NotADatasetError: Nothing there, no manifest, shards without an index, or a pattern that matches nothing.
        ManifestError: A manifest that breaks its format.
        StoreError: Storage that does not answer.
    """
    name = os.fspath(spec)
    cache = cache or CacheOptions.of()
    if is_pattern(name):
        return _from_pattern(name, cache)
    folder, manifest_name = split_manifest(name)
    if not is_url(folder) and os.path.isfile(folder):  # noqa: PTH113 - a string may be what it is
        raise NotADatasetError(
            f"{folder} is a file; give the folder that `wds-tools pack` wrote to, or its manifest.json, or a pattern "
            "of shards"
        )
    store = open_store(folder, cache=cache)
    try:
        manifest = from_json(store.read(manifest_name), name=join(folder, manifest_name))
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(_why_not_a_dataset(name, folder, manifest_name)) from None
    if not manifest.samples:
        raise NotADatasetError(f"{join(folder, manifest_name)} lists no samples: pack the dataset again")
    return ShardSet(manifest, [Place(store, entry) for entry in manifest.shards], name=name)


def is_pattern(name: str) -> bool:
    """Tell whether a dataset is named by its shards, rather than by its folder or manifest."""
    return not _is_folder(name) and (has_pattern(name) or name.endswith(".tar"))


def split_manifest(name: str) -> tuple[str, str]:
    """Split what names a dataset, a folder or a manifest, into its folder and the name of its manifest."""
    return split_folder(name) if name.endswith(".json") and not _is_folder(name) else (name, MANIFEST_NAME)


def _is_folder(name: str) -> bool:
    """Tell a local folder, whatever characters its name has."""
    return not is_url(name) and os.path.isdir(name)  # noqa: PTH112 - a string may be what it is


def _why_not_a_dataset(name: str, folder: str, manifest_name: str) -> str:
    if is_url(name):
        return f"{name}: no {manifest_name} there; a dataset is the folder that `wds-tools pack` or `index` wrote to"
    if not os.path.isdir(folder):  # noqa: PTH112 - a string may be what it is
        return f"{folder}: no such folder; give the folder that `wds-tools pack` wrote to"
    if any(entry.endswith(".tar") for entry in os.listdir(folder)):  # noqa: PTH208
        return (
            f"{folder} holds tar files but no {manifest_name}: "
            f"index them once with `wds-tools index '{folder.rstrip('/')}/*.tar'`"
        )
    return f"{folder} has no {manifest_name}, so it is no packed dataset: pack it with `wds-tools pack {folder} DST`"


def _from_pattern(pattern: str, cache: CacheOptions) -> ShardSet:
    """Take the named shards from the manifests of their folders, or from their indexes where there is none."""
    urls = expand_pattern(pattern)
    stores: dict[str, Store] = {}
    manifests: dict[str, Manifest | None] = {}
    listed: dict[str, dict[str, ShardEntry]] = {}
    places, totals = [], Totals()  # of the shards that no manifest lists
    for url in urls:
        folder, name = split_folder(url)
        if folder not in stores:
            stores[folder] = open_store(folder, cache=cache)
            found = manifests[folder] = _find_manifest(stores[folder])
            listed[folder] = {entry.name: entry for entry in found.shards} if found else {}
        entry = listed[folder].get(name) or _entry_from_index(stores[folder], name, totals)
        places.append(Place(stores[folder], entry))
    known = [manifest for manifest in manifests.values() if manifest]
    made = _combine(known, places)
    fields = dict(Counter(made.fields) + totals.fields)
    return ShardSet(replace(made, fields=fields, images=None if known else totals.images), places, name=pattern)


def _find_manifest(store: Store) -> Manifest | None:
    try:
        return from_json(store.read(MANIFEST_NAME), name=join(store.folder, MANIFEST_NAME))
    except FileNotFoundError:
        return None


def _entry_from_index(store: Store, name: str, totals: Totals) -> ShardEntry:
    """Return what a manifest would say of a shard, and add its index to the totals."""
    try:
        data = store.read(index_name(name))
    except FileNotFoundError:
        where = join(store.folder, name)
        raise NotADatasetError(
            f"{where}: no such shard, or no index beside it: index it once with `wds-tools index '{where}'`"
        ) from None
    index = from_bytes(data, name=join(store.folder, index_name(name)))
    totals.add(index)
    return shard_entry(name, data, samples=len(index), shard_bytes=index.shard_bytes, shard_xxh3=index.shard_xxh3)


def join_sets(sets: Sequence[ShardSet]) -> ShardSet:
    """Return several datasets as one; sample ids count through all of them."""
    places = [place for shards in sets for place in shards.places]
    manifest = _combine([shards.manifest for shards in sets], places)
    return ShardSet(manifest, places, name=" + ".join(shards.name for shards in sets))


def _combine(manifests: Sequence[Manifest], places: Sequence[Place]) -> Manifest:
    """Return the manifest of a choice of shards: of fields only the names carry over, of sizes nothing."""
    fields = {field: count for manifest in manifests for field, count in manifest.fields.items()}
    classes = {manifest.classes for manifest in manifests}
    return Manifest(
        shards=tuple(place.entry for place in places),
        fields=fields,
        classes=classes.pop() if len(classes) == 1 else (),
        shuffled=bool(manifests) and all(manifest.shuffled for manifest in manifests),
    )
