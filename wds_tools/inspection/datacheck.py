"""`wds-tools doctor DATASET`: quick checks of a dataset, and whether a remote one fits into the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wds_tools.errors import NotADatasetError, WdsToolsError
from wds_tools.inspection.doctor import Finding
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import is_url
from wds_tools.terminal import phase_bar
from wds_tools.wording import counted, human_bytes


def examine_dataset(dataset: str, *, remote: RemoteOptions) -> list[Finding]:
    """Check manifest and indexes of a dataset, and the lengths of its shards, which are not read.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a pattern of indexed shards.
        remote: Folder and limit of the cache for remote shards.

    Raises:
        NotADatasetError: The path is not a packed dataset.
    """
    try:
        shards = open_shards(dataset, remote=remote)
    except NotADatasetError:
        raise
    except WdsToolsError as error:
        return [Finding("dataset", "problem", str(error))]
    manifest = shards.manifest
    what = f"{counted(manifest.samples, 'sample')} in {counted(len(manifest.shards), 'shard')}, "
    return [
        Finding("dataset", "ok", f"{dataset}: {what}{human_bytes(manifest.bytes)}"),
        _check_indexes(shards),
        *_check_files(shards),
        *(_check_cache(manifest.bytes, remote.cache_bytes) if is_url(dataset) else ()),
    ]


def _check_indexes(shards: ShardSet) -> Finding:
    reasons = []
    for shard in phase_bar("reading indexes", range(len(shards.locations))):
        try:
            shards.index(shard, keep=False)
        except (WdsToolsError, OSError) as error:
            reasons.append(str(error))
    if reasons:
        more = f" (and {len(reasons) - 1:,} more)" if len(reasons) > 1 else ""
        return Finding("indexes", "problem", f"{reasons[0]}{more}", "wds-tools verify lists all damage")
    return Finding("indexes", "ok", f"{counted(len(shards.locations), 'index', 'indexes')} read, all checksums match")


def _check_files(shards: ShardSet) -> Iterator[Finding]:
    """Compare the lengths of local shards with the manifest."""
    local = [location for location in shards.locations if not is_url(location.store.folder)]
    if not local:
        return
    bad = [
        location.entry.name
        for location in local
        if _length(Path(location.store.folder) / location.entry.name) != location.entry.bytes
    ]
    if bad:
        found = f"{len(bad):,} of {len(local):,} are missing or have the wrong length, such as {bad[0]}"
        yield Finding("shards", "problem", found, "copy these again, or pack again")
    else:
        found = f"all {len(local):,} exist, with the right lengths; wds-tools verify reads every byte"
        yield Finding("shards", "ok", found)


def _length(path: Path) -> int:
    """Return the length of a file; -1 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _check_cache(size: int, cache_bytes: int) -> Iterator[Finding]:
    """Report a remote dataset of which later epochs download a part again."""
    if size > cache_bytes:
        found = f"larger than the cache of {human_bytes(cache_bytes)}: much is downloaded again in every epoch"
        remedy = f"set WDS_TOOLS_CACHE_BYTES={size} if the disk has enough free space, or cache_bytes="
        yield Finding("reading", "note", found, remedy)
