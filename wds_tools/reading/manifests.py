"""The manifest of a dataset, and where its shards are. That of many shards is parsed once per machine, and mapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial

from wds_tools.errors import NotADatasetError, StoreError
from wds_tools.format.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    ShardTotals,
    check_seal,
    from_head,
    from_json,
    parse,
)
from wds_tools.format.shard_table import ShardTable, columns_of
from wds_tools.options import RemoteOptions
from wds_tools.reading.locations import AddedTable, LocationTable, ShardLocation
from wds_tools.storage import Store, join, open_store
from wds_tools.storage.cache.arrays import ArrayCache, Arrays
from wds_tools.storage.local import LocalStore

LEAST_BYTES = 4 << 20
"""Size of the smallest manifest that is mapped: about 20,000 shards, which take 0.3 s to parse."""

_IN_TABLE = ("shards", "rewritten")  # entries of the JSON object that are not needed in addition to a table


def read_manifest(store: Store, name: str, cache: ArrayCache) -> Manifest:
    """Return the manifest of a folder.

    A large one is hashed, and the columns of its shards come from the cache, under its checksum.

    Raises:
        FileNotFoundError: There is no such file.
        ManifestError: It is not a valid manifest.
        StoreError: The storage fails.
    """
    data = _content(store, name)
    path = join(store.folder, name)
    checksum = check_seal(data, name=path) if len(data) >= LEAST_BYTES else None
    if checksum is None:
        return from_json(bytes(data), name=path)
    columns = cache.load(_source(checksum), partial(_parsed, data, path))
    table = _table(columns, partial(_table_of, store, name, cache, checksum))
    return replace(from_head(columns.values["head"], table), checksum=checksum)


def find_manifest(store: Store, cache: ArrayCache) -> Manifest | None:
    """Return the manifest of a folder, if there is one."""
    try:
        return read_manifest(store, MANIFEST_NAME, cache)
    except FileNotFoundError:
        return None


class Additions:
    """The shards with fields that were added to a dataset later."""

    def __init__(self, tables: Sequence[AddedTable]) -> None:
        self.tables = tables

    @cached_property
    def by_name(self) -> dict[str, tuple[ShardLocation, ...]]:
        """Those of each shard, by its first name."""
        by_name: dict[str, tuple[ShardLocation, ...]] = {}
        for table in self.tables:
            for index, entry in enumerate(table.shards):
                by_name[entry.name] = (*by_name.get(entry.name, ()), table.make(index))
        return by_name


def additions_of(
    store: Store, manifest: Manifest, remote: RemoteOptions, cache: ArrayCache, *, for_training: bool
) -> Additions:
    """Return the shards with fields that were added later."""
    tables = []
    for addition in manifest.additions:
        folder = join(store.folder, addition.folder)
        addition_store = open_store(folder, remote=remote, for_training=for_training)
        path = join(folder, MANIFEST_NAME)
        try:
            added = read_manifest(addition_store, MANIFEST_NAME, cache)
        except (FileNotFoundError, NotADirectoryError):
            raise NotADatasetError(
                f"{path} is missing: the fields {', '.join(addition.fields)} were added to this dataset; copy the "
                f"folder, or run `wds-tools add-fields {store.folder} --remove {addition.folder}`"
            ) from None
        if added.fingerprint != addition.fingerprint or added.fields != addition.fields:
            raise NotADatasetError(
                f"{path} is not the dataset of the fields that were added to {store.folder}: copy the folder again"
            )
        tables.append(AddedTable(addition_store, added.shards, tuple(added.fields)))
    return Additions(tables)


def locations_of(
    store: Store, shards: Sequence[ShardEntry], added: Additions, stamp: object = None
) -> Sequence[ShardLocation]:
    """Return the locations of the shards of a manifest: as a table, if it is mapped."""
    if isinstance(shards, ShardTable) and all(
        isinstance(table.shards, ShardTable) and table.shards.has_names_of(shards) for table in added.tables
    ):
        return LocationTable(store, shards, stamp, added.tables)
    return tuple(ShardLocation(store, entry, added=added.by_name.get(entry.first.name, ())) for entry in shards)


def _source(checksum: str) -> str:
    return f"columns 1 of the manifest {checksum}"


def _table(columns: Arrays, reopen: Callable[[], ShardTable]) -> ShardTable:
    return ShardTable(columns.arrays, ShardTotals(**columns.values["totals"]), reopen if columns.is_mapped else None)


def _table_of(store: Store, name: str, cache: ArrayCache, checksum: str) -> ShardTable:
    """Return the shards of a manifest that another process has opened. It is read only if the cache has lost them."""

    def read_again() -> Arrays:
        data, path = _content(store, name), join(store.folder, name)
        if check_seal(data, name=path) != checksum:
            raise StoreError(f"{path} was replaced by another version of the dataset while it was open: start again")
        return _parsed(data, path)

    columns = cache.load(_source(checksum), read_again)
    return _table(columns, partial(_table_of, store, name, cache, checksum))


def _content(store: Store, name: str) -> bytes | memoryview:
    return store.view(name) if isinstance(store, LocalStore) else store.read(name)


def _parsed(data: bytes | memoryview, path: str) -> Arrays:
    """Return the columns of the shards of a manifest, and all else that it has."""
    raw, manifest = parse(bytes(data), name=path)
    head = {key: value for key, value in raw.items() if key not in _IN_TABLE}
    return Arrays(columns_of(manifest.shards), {"head": head, "totals": asdict(ShardTotals.of(manifest.shards))})
