"""The manifest of a dataset, read from its folder. That of many shards is parsed once per machine, and mapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

from wds_tools.errors import StoreError
from wds_tools.format.manifest import Manifest, ShardTotals, check_seal, from_head, from_json, parse
from wds_tools.format.shard_table import ShardTable, columns_of
from wds_tools.storage import Store, join
from wds_tools.storage.cache.arrays import ArrayCache, Arrays
from wds_tools.storage.local import LocalStore

LEAST_BYTES = 4 << 20
"""Size of the smallest manifest that is mapped: about 20,000 shards, which take 0.3 s to parse."""

_IN_TABLE = ("shards", "rewritten")  # entries of the JSON object that are not needed in addition to a table


def read_manifest(store: Store, name: str, cache: ArrayCache) -> Manifest:
    """Return the manifest of a folder.

    A large one is hashed, and the columns of its shards come from the cache, under its checksum.

    Args:
        store: The folder.
        name: File name of the manifest.
        cache: Where the columns are stored.

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
    found = cache.load(_source(checksum), partial(_parsed, data, path))
    table = _table(found, partial(_table_of, store, name, cache, checksum))
    return replace(from_head(found.values["head"], table), checksum=checksum)


def _source(checksum: str) -> str:
    return f"columns 1 of the manifest {checksum}"


def _table(found: Arrays, reopen: Callable[[], ShardTable]) -> ShardTable:
    return ShardTable(found.arrays, ShardTotals(**found.values["totals"]), reopen if found.is_mapped else None)


def _table_of(store: Store, name: str, cache: ArrayCache, checksum: str) -> ShardTable:
    """Return the shards of a manifest that another process has opened. It is read only if the cache has lost them."""

    def read_again() -> Arrays:
        data, path = _content(store, name), join(store.folder, name)
        if check_seal(data, name=path) != checksum:
            raise StoreError(f"{path} was replaced by another version of the dataset while it was open: start again")
        return _parsed(data, path)

    found = cache.load(_source(checksum), read_again)
    return _table(found, partial(_table_of, store, name, cache, checksum))


def _content(store: Store, name: str) -> bytes | memoryview:
    return store.view(name) if isinstance(store, LocalStore) else store.read(name)


def _parsed(data: bytes | memoryview, path: str) -> Arrays:
    """Return the columns of the shards of a manifest, and all else that it has."""
    raw, manifest = parse(bytes(data), name=path)
    head = {key: value for key, value in raw.items() if key not in _IN_TABLE}
    return Arrays(columns_of(manifest.shards), {"head": head, "totals": asdict(ShardTotals.of(manifest.shards))})
