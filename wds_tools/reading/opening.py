"""A dataset is opened: by its folder, URL, manifest, or shards.

Shards that no manifest lists get their fields and image sizes from their indexes, and their classes have numbers but
no names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from wds_tools.errors import NotADatasetError
from wds_tools.format.field_classes import shared
from wds_tools.format.manifest import MANIFEST_NAME, KnownShards, Manifest, ShardEntry
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.reading.locations import LocationTable, ShardLocation, added_shards, entry_from_index, find_manifest
from wds_tools.reading.manifests import read_manifest
from wds_tools.reading.names import Dataset, is_pattern, listed_shards, name_of_list, split_manifest, why_not_a_dataset
from wds_tools.reading.shardset import ShardSet, classes_of
from wds_tools.storage import Store, is_url, join, open_store, split_folder
from wds_tools.storage.cache.arrays import ArrayCache
from wds_tools.storage.local import LocalStore
from wds_tools.storage.lock import why_unfinished
from wds_tools.storage.patterns import expand_pattern


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
    cache = ArrayCache(remote.cache_folder, remote.cache_bytes)
    stamp = store.stamp(MANIFEST_NAME) if isinstance(store, LocalStore) else None
    try:
        manifest = read_manifest(store, manifest_name, cache)
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(
            why_unfinished(folder, store.read) or why_not_a_dataset(name, folder, manifest_name)
        ) from None
    if not manifest.samples:
        raise NotADatasetError(f"{join(folder, manifest_name)} lists no samples: pack the dataset again")
    added = added_shards(store, manifest, remote, for_training=for_training)
    locations: Sequence[ShardLocation]
    if isinstance(manifest.shards, KnownShards) and not added:
        locations = LocationTable(store, manifest.shards, stamp)
    else:
        locations = [ShardLocation(store, entry, added=added.get(entry.first.name, ())) for entry in manifest.shards]
    return ShardSet(manifest, locations, name=name, array_cache=cache)


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
        locations.append(ShardLocation(stores[folder], entry, added=added[folder].get(entry.first.name, ())))
    known = [manifest for manifest in manifests.values() if manifest]
    combined = _combine(known, locations)
    fields = dict(Counter(combined.fields) + totals.fields)
    images = None if known else totals.images
    class_lists = [classes_of(found, folder) for folder, found in manifests.items() if found]
    manifest = replace(combined, fields=fields, images=images)
    return ShardSet(
        manifest,
        locations,
        name=name,
        class_lists=class_lists,
        array_cache=ArrayCache(remote.cache_folder, remote.cache_bytes),
    )


def join_sets(sets: Sequence[ShardSet]) -> ShardSet:
    """Return several datasets as one; sample ids count through all of them."""
    locations = [location for shards in sets for location in shards.locations]
    manifest = _combine([shards.manifest for shards in sets], locations)
    class_lists = [classes for shards in sets for classes in shards.class_lists]
    name = " + ".join(shards.name for shards in sets)
    return ShardSet(manifest, locations, name=name, class_lists=class_lists, array_cache=sets[0].array_cache)


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
