"""`wds-tools doctor DATASET`: can a dataset be read, as far as a quick look tells, and does it fit this machine?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wds_tools.errors import WdsToolsError
from wds_tools.inspection.doctor import Finding
from wds_tools.options import CacheOptions
from wds_tools.reading.shardset import ShardSet, open_shards
from wds_tools.storage import is_url
from wds_tools.wording import counted, human_bytes


def examine_dataset(dataset: str, *, memory_bytes: int, cache: CacheOptions) -> list[Finding]:
    """Return what a quick look at a dataset finds: nothing is decoded, and no shard is read.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a pattern of indexed shards.
        memory_bytes: That this process may use.
        cache: Where blocks of remote shards are kept.
    """
    try:
        shards = open_shards(dataset, cache=cache)
    except WdsToolsError as error:
        return [Finding("dataset", "problem", str(error))]
    manifest = shards.manifest
    what = f"{counted(manifest.samples, 'sample')} in {counted(len(manifest.shards), 'shard')}, "
    return [
        Finding("dataset", "ok", f"{dataset}: {what}{human_bytes(manifest.bytes)}"),
        _check_indexes(shards),
        *_check_files(shards),
        check_fit(manifest.bytes, remote=is_url(dataset), memory_bytes=memory_bytes, cache_bytes=cache.limit_bytes),
    ]


def _check_indexes(shards: ShardSet) -> Finding:
    reasons = []
    for number in range(len(shards.locations)):
        try:
            shards.index(number, keep=False)
        except (WdsToolsError, OSError) as error:
            reasons.append(str(error))
    if reasons:
        more = f" (and {len(reasons) - 1:,} more)" if len(reasons) > 1 else ""
        return Finding("indexes", "problem", f"{reasons[0]}{more}", "wds-tools verify tells what else is damaged")
    return Finding("indexes", "ok", f"{counted(len(shards.locations), 'index', 'indexes')} read, checksums right")


def _check_files(shards: ShardSet) -> Iterator[Finding]:
    """Compare the lengths of local shards with the manifest."""
    local = [place for place in shards.locations if not is_url(place.store.folder)]
    if not local:
        return
    bad = [
        place.entry.name for place in local if _length(Path(place.store.folder) / place.entry.name) != place.entry.bytes
    ]
    if bad:
        found = f"{len(bad):,} of {len(local):,} are gone or have another length, such as {bad[0]}"
        yield Finding("shards", "problem", found, "copy those again, or pack again")
    else:
        yield Finding("shards", "ok", f"{len(local):,} there, lengths right; wds-tools verify reads every byte")


def _length(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a path of its own
    except OSError:
        return -1


def check_fit(size: int, *, remote: bool, memory_bytes: int, cache_bytes: int) -> Finding:
    """Tell where the bytes come from after the first epoch."""
    if remote and size > cache_bytes:
        found = f"larger than the cache of {human_bytes(cache_bytes)}: much is fetched again in every epoch"
        return Finding("reading", "note", found, f"set WDS_TOOLS_CACHE_BYTES={size} if there is room, or cache_bytes=")
    if remote:
        return Finding("reading", "ok", f"fits into the cache of {human_bytes(cache_bytes)}: fetched once")
    if size > memory_bytes:
        found = f"larger than the memory of {human_bytes(memory_bytes)}: every epoch reads the disk"
        return Finding("reading", "ok", found)
    return Finding("reading", "ok", f"fits into the memory of {human_bytes(memory_bytes)}: the disk is read once")
