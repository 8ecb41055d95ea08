"""Where the shards of a dataset are, and those with fields that were added later.

A dataset may be replaced while it is open. If a shard or an index is not the one that was opened, the manifest of its
folder is read again, so that the error is about the new version and not about damage. If only images were rewritten in
place, or columns were added to indexes, readers continue with the new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

from wds_tools.errors import NotADatasetError, ShardError, StoreError, WdsToolsError
from wds_tools.format.index import from_bytes, index_names, shard_entry
from wds_tools.format.index_edit import is_index
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry, from_json
from wds_tools.format.totals import Totals
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.storage import Store, join, open_store

_MAX_RECENT = 4096  # locations that are kept


@dataclass(frozen=True, slots=True)
class ShardLocation:
    """A shard and the store that has it.

    Attributes:
        store: The store.
        entry: What the manifest records about the shard.
        fields: Names of its fields, if it has fields that were added to another shard; otherwise empty.
        added: Shards with fields of the same samples that were added later.
    """

    store: Store
    entry: ShardEntry
    fields: tuple[str, ...] = ()
    added: tuple[ShardLocation, ...] = ()


class LocationTable(Sequence[ShardLocation]):
    """The locations of all shards of a large manifest, made when they are used. No fields were added to them.

    Args:
        store: The store that has all shards.
        shards: Their entries.
        stamp: What changes when the manifest is replaced, see `LocalStore.stamp`; None if it is not known.
    """

    def __init__(self, store: Store, shards: Sequence[ShardEntry], stamp: object = None) -> None:
        self.store, self.stamp = store, stamp
        self._shards = shards
        self._recent = LRUCache[int, ShardLocation](max_items=_MAX_RECENT)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.store, self._shards, self.stamp

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def with_store(self, store: Store) -> LocationTable:
        """Return the same shards with another store."""
        return LocationTable(store, self._shards, self.stamp)

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, item: int) -> ShardLocation: ...

    @overload
    def __getitem__(self, item: slice) -> Sequence[ShardLocation]: ...

    def __getitem__(self, item: int | slice) -> ShardLocation | Sequence[ShardLocation]:
        if isinstance(item, slice):
            numbers = range(len(self))[item]
            return self if numbers == range(len(self)) else [self[number] for number in numbers]
        return self._recent.load(item, lambda: ShardLocation(self.store, self._shards[item]), lambda _: 0)

    def __iter__(self) -> Iterator[ShardLocation]:
        return (ShardLocation(self.store, entry) for entry in self._shards)


def stores_of(locations: Sequence[ShardLocation]) -> list[Store]:
    """Return the stores of some locations; that of a `LocationTable` once."""
    return [locations.store] if isinstance(locations, LocationTable) else [location.store for location in locations]


def find_manifest(store: Store) -> Manifest | None:
    """Return the manifest of a folder, if there is one."""
    try:
        return from_json(store.read(MANIFEST_NAME), name=join(store.folder, MANIFEST_NAME))
    except FileNotFoundError:
        return None


def entry_from_index(store: Store, name: str, totals: Totals) -> ShardEntry:
    """Return the manifest entry of a shard, and add its index to the totals."""
    for file_name in index_names(name):
        try:
            data = store.read(file_name)
        except FileNotFoundError:
            continue
        if is_index(data):
            break
    else:
        path = join(store.folder, name)
        raise NotADatasetError(
            f"{path}: no such shard, or no index next to it: index it once with `wds-tools index '{path}'`"
        )
    index = from_bytes(data, name=join(store.folder, file_name))
    totals.add(Totals.of(index))
    return shard_entry(
        name,
        data,
        samples=len(index),
        shard_bytes=index.shard_bytes,
        shard_xxh3=index.shard_xxh3,
        name=file_name,
    )


class RewrittenError(StoreError):
    """The images or the index of a shard were rewritten in place while it was open: the samples are the same.

    Attributes:
        entries: The entries that were opened, with those that the manifest has now.
    """

    entries: Mapping[ShardEntry, ShardEntry]


@contextmanager
def replacement_reported(locations: Sequence[ShardLocation]) -> Iterator[None]:
    """Let an error about damaged or missing shards report another version of the dataset, if there is one.

    Raises:
        RewrittenError: The manifest of the folder lists a shard with the same samples now.
        StoreError: It lists another shard, or none of this name.
    """
    try:
        yield
    except (ShardError, StoreError, FileNotFoundError) as error:
        causes = (error, error.__cause__)
        if any(isinstance(one, ShardError | FileNotFoundError) for one in causes):  # otherwise the storage fails
            for store in {id(location.store): location.store for location in locations}.values():
                entries = {location.entry for location in locations if location.store is store}
                listed = _listed_entries(store, default=entries)
                if rewritten := _rewritten(listed, entries):
                    raise _rewritten_error(store, rewritten) from error
                if not entries <= listed:
                    raise StoreError(
                        f"{store.folder} was replaced by another version of the dataset while it was open: start again "
                        "to read the new version, in another order; give each version its own name to avoid this"
                    ) from error
        raise


def _rewritten_error(store: Store, entries: Mapping[ShardEntry, ShardEntry]) -> RewrittenError:
    # Not a variable where it is raised: a cycle of the error and its frames would keep the shards open that these have.
    name = min(entry.name for entry in entries)
    found = RewrittenError(
        f"the images of {name} in {store.folder} were rewritten in place while it was open: start again to read the "
        "new shards, which have the same samples in the same order"
    )
    found.entries = entries
    return found


def rewritten_entries(store: Store, entries: Iterable[ShardEntry]) -> dict[ShardEntry, ShardEntry]:
    """Return those entries whose files were rewritten in place since, with the ones that the manifest lists now."""
    return _rewritten(_listed_entries(store, default=set()), set(entries))


def _rewritten(listed: Iterable[ShardEntry], entries: Set[ShardEntry]) -> dict[ShardEntry, ShardEntry]:
    """Return the entries that have new images, or the same shard with a new index, with the new entries."""
    opened = {(entry.name, entry.xxh3): entry for entry in entries}
    found = {}
    for entry in listed:
        old = entry.before if entry.before in entries else opened.get((entry.name, entry.xxh3))
        if old is not None and old != entry:
            found[old] = entry
    return found


def _listed_entries(store: Store, *, default: set[ShardEntry]) -> set[ShardEntry]:
    """Return the shards that the manifest of a folder lists now; ``default`` without a valid manifest."""
    try:
        return set(from_json(store.read(MANIFEST_NAME, fresh=True)).shards)
    except (OSError, WdsToolsError):
        return default


def added_shards(
    store: Store, manifest: Manifest, remote: RemoteOptions, *, for_training: bool
) -> dict[str, tuple[ShardLocation, ...]]:
    """Return the shards with fields that were added later, by the first name of the shard of their samples.

    Raises:
        NotADatasetError: The folder of an addition is missing, or holds another dataset.
    """
    found: dict[str, tuple[ShardLocation, ...]] = {}
    for addition in manifest.additions:
        folder = join(store.folder, addition.folder)
        other = open_store(folder, remote=remote, for_training=for_training)
        path = join(folder, MANIFEST_NAME)
        try:
            added = from_json(other.read(MANIFEST_NAME), name=path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotADatasetError(
                f"{path} is missing: the fields {', '.join(addition.fields)} were added to this dataset; copy the "
                f"folder, or run `wds-tools add-fields {store.folder} --remove {addition.folder}`"
            ) from None
        if added.fingerprint != addition.fingerprint or added.fields != addition.fields:
            raise NotADatasetError(
                f"{path} is not the dataset of the fields that were added to {store.folder}: copy the folder again"
            )
        for entry in added.shards:
            location = ShardLocation(other, entry, tuple(added.fields))
            found[entry.name] = (*found.get(entry.name, ()), location)
    return found
