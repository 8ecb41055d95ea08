"""A dataset is opened: by its folder, URL, manifest, or shards.

Shards that no manifest lists get their fields and image sizes from their indexes, and their classes have numbers but
no names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter

from wds_tools.errors import NotADatasetError
from wds_tools.format.field_classes import shared
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.format.shard_table import ShardTable
from wds_tools.format.shard_table import joined as joined_shards
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.reading.locations import ShardLocation, entry_from_index
from wds_tools.reading.locations import joined as joined_locations
from wds_tools.reading.manifests import Additions, additions_of, find_manifest, locations_of, read_manifest
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
    added = additions_of(store, manifest, remote, cache, for_training=for_training)
    locations = locations_of(store, manifest.shards, added, stamp)
    return ShardSet(manifest, locations, name=name, array_cache=cache)


def _from_shards(urls: list[str], remote: RemoteOptions, *, name: str, for_training: bool) -> ShardSet:
    """Open shards: as the manifests of their folders list them, otherwise by their indexes.

    Those of a large manifest are mapped if they are all its shards in its order.
    """
    cache = ArrayCache(remote.cache_folder, remote.cache_bytes)
    folders: dict[str, _Folder] = {}
    entries: list[Sequence[ShardEntry]] = []
    locations: list[Sequence[ShardLocation]] = []
    totals = Totals()  # of the shards that no manifest lists
    for folder, names in groupby(map(split_folder, urls), key=itemgetter(0)):
        if folder not in folders:
            folders[folder] = _Folder.opened(folder, remote, cache, for_training=for_training)
        opened = folders[folder]
        shards = opened.shards([file_name for _, file_name in names], totals)
        entries.append(shards)
        locations.append(locations_of(opened.store, shards, opened.added))
    manifests = [opened.manifest for opened in folders.values() if opened.manifest]
    combined = _combine(manifests, joined_shards(entries))
    fields = dict(Counter(combined.fields) + totals.fields)
    images = None if manifests else totals.images
    class_lists = [classes_of(opened.manifest, folder) for folder, opened in folders.items() if opened.manifest]
    return ShardSet(
        replace(combined, fields=fields, images=images),
        joined_locations(locations),
        name=name,
        class_lists=class_lists,
        array_cache=cache,
    )


@dataclass
class _Folder:
    """A folder of which shards are opened."""

    store: Store
    manifest: Manifest | None
    added: Additions
    _is_checked: bool = False

    @classmethod
    def opened(cls, folder: str, remote: RemoteOptions, cache: ArrayCache, *, for_training: bool) -> _Folder:
        """Open a folder."""
        store = open_store(folder, remote=remote, for_training=for_training)
        manifest = find_manifest(store, cache)
        added = additions_of(store, manifest, remote, cache, for_training=for_training) if manifest else Additions([])
        return cls(store, manifest, added)

    @cached_property
    def _listed(self) -> dict[str, ShardEntry]:
        return {entry.name: entry for entry in self.manifest.shards} if self.manifest else {}

    def shards(self, names: Sequence[str], totals: Totals) -> Sequence[ShardEntry]:
        """Return the entries of shards; those that are not listed are added to the totals."""
        table = self.manifest.shards if self.manifest else None
        if isinstance(table, ShardTable) and table.has_names(names):
            return table
        return tuple(self._listed.get(name) or self._unlisted(name, totals) for name in names)

    def _unlisted(self, name: str, totals: Totals) -> ShardEntry:
        if not self._is_checked and (reason := why_unfinished(self.store.folder, self.store.read)) is not None:
            raise NotADatasetError(reason)
        self._is_checked = True
        return entry_from_index(self.store, name, totals)


def join_sets(sets: Sequence[ShardSet]) -> ShardSet:
    """Return several datasets as one; sample ids count through all of them."""
    class_lists = [classes for shards in sets for classes in shards.class_lists]
    return ShardSet(
        _combine([shards.manifest for shards in sets], joined_shards([shards.entries for shards in sets])),
        joined_locations([shards.locations for shards in sets]),
        name=" + ".join(shards.name for shards in sets),
        class_lists=class_lists,
        array_cache=sets[0].array_cache,
    )


def _combine(manifests: Sequence[Manifest], shards: Sequence[ShardEntry]) -> Manifest:
    """Return a manifest for some shards of several datasets, without image sizes.

    It has the fields of all datasets; their counts are not for these shards.
    """
    fields = {field: count for manifest in manifests for field, count in manifest.fields.items()}
    classes = {manifest.classes for manifest in manifests}
    return Manifest(
        shards=shards,
        fields=fields,
        classes=classes.pop() if len(classes) == 1 else (),
        shuffled=bool(manifests) and all(manifest.shuffled for manifest in manifests),
        label=next((manifest.label for manifest in manifests if manifest.label is not None), None),
        additions=tuple(addition for manifest in manifests for addition in manifest.additions),
        field_classes=shared([classes_of(manifest, "") for manifest in manifests]),
    )
