"""Indexes that were changed and given valid checksums, so that nothing looks damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import xxhash

from wds_tools.format.index import Index, from_bytes, to_bytes
from wds_tools.format.manifest import from_json, to_json


def index_of(folder: Path, shard: str = "shard-000001.tar") -> Index:
    """Return the index of a shard."""
    return from_bytes((folder / shard.replace(".tar", ".parquet")).read_bytes(), name=shard)


def rewrite(folder: Path, index: Index, shard: bytes | None = None) -> None:
    """Replace an index, and its shard if given; update the manifest accordingly."""
    manifest = from_json((folder / "manifest.json").read_bytes())
    if shard is not None:
        (folder / index.shard).write_bytes(shard)
        index = replace(index, shard_bytes=len(shard), shard_xxh3=xxhash.xxh3_128_hexdigest(shard))
    data = to_bytes(index)
    (folder / index.shard.replace(".tar", ".parquet")).write_bytes(data)
    changed = {"index_bytes": len(data), "index_xxh3": xxhash.xxh3_128_hexdigest(data)}
    changed |= {"bytes": index.shard_bytes, "xxh3": index.shard_xxh3}
    shards = tuple(replace(e, **changed) if e.name == index.shard else e for e in manifest.shards)
    (folder / "manifest.json").write_text(to_json(replace(manifest, shards=shards)))
