"""Opens a dataset by its folder, URL, manifest or shards.

Shards have the class names of the manifest that lists them, whatever its name. Shards that no manifest lists get their
fields and image sizes from their indexes, and their classes have numbers but no names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter

from wds_tools.errors import NotADatasetError, StoreError
from wds_tools.format.field_classes import shared
from wds_tools.format.label_lists import LABELS
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry, manifests_among
from wds_tools.format.shard_table import ShardTable
from wds_tools.format.shard_table import joined as joined_shards
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.reading.locations import AddedTable, ShardLocation, entry_from_index
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
    """Open shards: as manifests in their folders list them, otherwise by their indexes.

    Shards of a large manifest are mapped, if they are all of its shards in its order.
    """
    cache = ArrayCache(remote.cache_folder, remote.cache_bytes)
    folders: dict[str, _Folder] = {}
    entries: list[Sequence[ShardEntry]] = []
    locations: list[Sequence[ShardLocation]] = []
    for folder, group in groupby(map(split_folder, urls), key=itemgetter(0)):
        if folder not in folders:
            store = open_store(folder, remote=remote, for_training=for_training)
            find_additions = partial(additions_of, store, remote=remote, cache=cache, for_training=for_training)
            folders[folder] = _Folder(store, find_manifest(store, cache), find_additions)
        opened = folders[folder]
        shards = opened.shards([file_name for _, file_name in group])
        entries.append(shards)
        locations.append(locations_of(opened.store, shards, Additions(opened.added)))
    manifests = {path: manifest for opened in folders.values() for path, manifest in opened.manifests.items()}
    unlisted = {
        folder: Manifest((), dict(opened.totals.fields), ()) for folder, opened in folders.items() if opened.has_labels
    }
    combined = _combine([*manifests.values(), *unlisted.values()], joined_shards(entries))
    fields = Counter({field: count for manifest in manifests.values() for field, count in manifest.fields.items()})
    totals = Totals()
    for opened in folders.values():
        totals.add(opened.totals)
    return ShardSet(
        replace(combined, fields=dict(fields + totals.fields), images=None if manifests else totals.images),
        joined_locations(locations),
        name=name,
        class_lists=[classes_of(manifest, path) for path, manifest in (manifests | unlisted).items()],
        array_cache=cache,
    )


@dataclass
class _Folder:
    """A folder with shards to open.

    Attributes:
        default: Its `MANIFEST_NAME`, if it has one.
        find_additions: Returns the shards with fields that were added to a dataset, by its manifest.
        manifests: The manifests that list these shards, by their path.
        added: The shards with fields that were added to these shards.
        totals: The totals of the shards that no manifest lists.
    """

    store: Store
    default: Manifest | None
    find_additions: Callable[[Manifest], Additions]
    manifests: dict[str, Manifest] = field(default_factory=dict)
    added: list[AddedTable] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    @property
    def has_labels(self) -> bool:
        """Whether shards that no manifest lists have labels, which are numbers without names."""
        return self.totals.last_label >= 0 or LABELS in self.totals.fields

    @cached_property
    def _listed(self) -> dict[str, ShardEntry]:
        return {entry.name: entry for entry in self.default.shards} if self.default else {}

    @cached_property
    def _others(self) -> dict[str, tuple[str, Manifest, ShardEntry]]:
        """The shards that manifests of other names list: name -> name of the manifest, the manifest, the entry."""
        if (reason := why_unfinished(self.store.folder, self.store.read)) is not None:
            raise NotADatasetError(reason)
        others: dict[str, tuple[str, Manifest, ShardEntry]] = {}
        with suppress(OSError, StoreError):  # not every server can list files
            for name, manifest in manifests_among({*self.store.list()} - {MANIFEST_NAME}, self.store.read):
                for entry in manifest.shards:
                    others.setdefault(entry.name, (name, manifest, entry))
        return others

    def shards(self, names: Sequence[str]) -> Sequence[ShardEntry]:
        """Return the entries of shards; those that are not listed are added to the totals."""
        table = self.default.shards if self.default else None
        if isinstance(table, ShardTable) and table.has_names(names):
            self._use(MANIFEST_NAME, self.default)
            return table
        return tuple(map(self._entry, names))

    def _use(self, name: str, manifest: Manifest | None) -> None:
        path = join(self.store.folder, name)
        if manifest is not None and path not in self.manifests:
            self.manifests[path] = manifest
            self.added += self.find_additions(manifest).tables

    def _entry(self, name: str) -> ShardEntry:
        if entry := self._listed.get(name):
            self._use(MANIFEST_NAME, self.default)
            return entry
        if name in self._others:
            manifest_name, manifest, entry = self._others[name]
            self._use(manifest_name, manifest)
            return entry
        return entry_from_index(self.store, name, self.totals)


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
