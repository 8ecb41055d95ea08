"""Where the shards of a dataset are, and those with fields that were added later.

A dataset may be replaced while it is open. If a shard or an index is not the one that was opened, the manifest of its
folder is read again, so that the error is about the new version and not about damage. If only images were rewritten in
place, or columns were added to indexes, readers continue with the new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import NotADatasetError, ShardError, StoreError, WdsToolsError
from wds_tools.format.index import from_bytes, index_names, shard_entry
from wds_tools.format.index_edit import is_index
from wds_tools.format.manifest import MANIFEST_NAME, ShardEntry, from_json
from wds_tools.format.totals import Totals
from wds_tools.lazy_sequence import JoinedSequence, LazySequence
from wds_tools.lru_cache import LRUCache
from wds_tools.storage import Store, join

_MAX_RECENT = 4096  # locations that are kept


@dataclass(frozen=True, slots=True)
class ShardLocation:
    """A shard and the store that has it.

    Attributes:
        fields: Names of its fields, if it has fields that were added to another shard; otherwise empty.
        added: Shards with fields of the same samples that were added later.
    """

    store: Store
    entry: ShardEntry
    fields: tuple[str, ...] = ()
    added: tuple[ShardLocation, ...] = ()


@dataclass(frozen=True, slots=True)
class AddedTable:
    """Shards with fields that were added later: one for each shard of a large manifest, in the same order."""

    store: Store
    shards: Sequence[ShardEntry]
    fields: tuple[str, ...]

    def make(self, index: int) -> ShardLocation:
        """Return a location."""
        return ShardLocation(self.store, self.shards[index], self.fields)


class LocationTable(LazySequence[ShardLocation]):
    """The locations of all shards of a large manifest, made when they are used."""

    def __init__(
        self, store: Store, shards: Sequence[ShardEntry], stamp: object = None, added: Sequence[AddedTable] = ()
    ) -> None:
        self.store, self.shards, self.stamp, self.added = store, shards, stamp, tuple(added)
        self._recent = LRUCache[int, ShardLocation](max_items=_MAX_RECENT)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocationTable, (self.store, self.shards, self.stamp, self.added)

    def __len__(self) -> int:
        return len(self.shards)

    def make(self, index: int) -> ShardLocation:
        """Return a location."""
        return self._recent.load(index, lambda: self._made(index), lambda _: 0)

    def __iter__(self) -> Iterator[ShardLocation]:
        return map(self._made, range(len(self)))

    def _made(self, index: int) -> ShardLocation:
        added = tuple(table.make(index) for table in self.added)
        return ShardLocation(self.store, self.shards[index], added=added)


class _AddedLocations(LazySequence[ShardLocation]):
    """The shards with fields that were added later, those of the first shard first."""

    def __init__(self, locations: Sequence[ShardLocation], ends: NDArray[np.int64]) -> None:
        self._locations, self._ends = locations, ends

    def __len__(self) -> int:
        return int(self._ends[-1])

    def make(self, index: int) -> ShardLocation:
        """Return a location."""
        shard = int(np.searchsorted(self._ends, index, side="right")) - 1
        return self._locations[shard].added[index - int(self._ends[shard])]


def joined(parts: Sequence[Sequence[ShardLocation]]) -> Sequence[ShardLocation]:
    """Return the locations of several datasets as those of one; without objects, if any of them is a table."""
    if any(isinstance(part, LazySequence) for part in parts):
        return JoinedSequence(parts)
    return tuple(location for part in parts for location in part)


def parts_of(locations: Sequence[ShardLocation]) -> Sequence[Sequence[ShardLocation]]:
    """Return the tables and tuples that locations are joined of."""
    if isinstance(locations, JoinedSequence):
        return [subpart for part in locations.parts for subpart in parts_of(part)]
    return [locations]


def with_added(locations: Sequence[ShardLocation]) -> tuple[Sequence[ShardLocation], NDArray[np.int64]]:
    """Return the locations with the added shards after them, and how many of these there are before each shard."""
    counts = [
        np.full(len(part), len(part.added))
        if isinstance(part, LocationTable)
        else np.array([len(location.added) for location in part], np.int64)
        for part in parts_of(locations)
    ]
    ends = np.concatenate([[0], *counts]).cumsum()
    if isinstance(locations, LazySequence):
        return (JoinedSequence([locations, _AddedLocations(locations, ends)]) if ends[-1] else locations), ends
    return (*locations, *(part for location in locations for part in location.added)), ends


def changed(
    locations: Sequence[ShardLocation],
    *,
    stores: Mapping[int, Store] | None = None,
    fields: Set[str] | None = None,
) -> Sequence[ShardLocation]:
    """Return the same shards with other stores, or fewer added shards."""

    def store_of(shards: ShardLocation | LocationTable | AddedTable) -> Store:
        return shards.store if stores is None else stores[id(shards.store)]

    def kept(added: Iterable[Any]) -> tuple[Any, ...]:
        chosen = (shards for shards in added if fields is None or fields & {*shards.fields})
        return tuple(replace(shards, store=store_of(shards)) for shards in chosen)

    parts: list[Sequence[ShardLocation]] = []
    for part in parts_of(locations):
        if isinstance(part, LocationTable):
            parts.append(LocationTable(store_of(part), part.shards, part.stamp, kept(part.added)))
        else:
            parts.append(tuple(replace(shards, store=store_of(shards), added=kept(shards.added)) for shards in part))
    return parts[0] if len(parts) == 1 else joined(parts)


def stores_of(locations: Sequence[ShardLocation]) -> list[Store]:
    """Return the stores of locations, each once."""
    stores: list[Store] = []
    for part in parts_of(locations):
        for located in [part] if isinstance(part, LocationTable) else part:
            stores += [located.store, *(added.store for added in located.added)]
    return list({id(store): store for store in stores}.values())


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
    """The images or the index of a shard were rewritten in place while it was open: the samples are the same."""

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
        if any(isinstance(cause, ShardError | FileNotFoundError) for cause in causes):  # otherwise the storage fails
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
    rewritten = RewrittenError(
        f"the images of {name} in {store.folder} were rewritten in place while it was open: start again to read the "
        "new shards, which have the same samples in the same order"
    )
    rewritten.entries = entries
    return rewritten


def rewritten_entries(store: Store, entries: Iterable[ShardEntry]) -> dict[ShardEntry, ShardEntry]:
    """Return those entries whose files were rewritten in place since, with the ones that the manifest lists now."""
    return _rewritten(_listed_entries(store, default=set()), set(entries))


def _rewritten(listed: Iterable[ShardEntry], entries: Set[ShardEntry]) -> dict[ShardEntry, ShardEntry]:
    """Return the entries that have new images, or the same shard with a new index, with the new entries."""
    opened = {(entry.name, entry.xxh3): entry for entry in entries}
    replaced = {}
    for entry in listed:
        old = entry.before if entry.before in entries else opened.get((entry.name, entry.xxh3))
        if old is not None and old != entry:
            replaced[old] = entry
    return replaced


def _listed_entries(store: Store, *, default: set[ShardEntry]) -> set[ShardEntry]:
    """Return the shards that the manifest of a folder lists now; ``default`` without a valid manifest."""
    try:
        return set(from_json(store.read(MANIFEST_NAME, fresh=True)).shards)
    except (OSError, WdsToolsError):
        return default
