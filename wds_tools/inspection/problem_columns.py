"""The columns of a dataset that `problems` needs, read from its indexes; files that ``ban=`` takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from wds_tools.format.image_signature import COLUMNS, has_signatures, parse_hashes
from wds_tools.format.index import Index
from wds_tools.inspection.problems import ImageColumns, Problem
from wds_tools.reading.reader import image_columns
from wds_tools.reading.select import ids_by_key
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.commit import commit_bytes, write_errors
from wds_tools.terminal import phase_bar


def read_columns(shards: ShardSet) -> ImageColumns:
    """Return the columns of a dataset. Only its indexes are read."""
    parts = [_of_shard(shards, shard) for shard in phase_bar("reading indexes", range(len(shards.locations)))]
    return ImageColumns(*(np.concatenate([getattr(part, name) for part in parts]) for name in ImageColumns.__slots__))


def columns_key(shards: ShardSet) -> str:
    """Return a text that is the same only for the same columns: results can be kept under it."""
    lines = "".join(f"{location.entry.index_xxh3}\n" for location in shards.locations)
    return xxhash.xxh3_128_hexdigest(lines.encode())


def _of_shard(shards: ShardSet, shard: int) -> ImageColumns:
    index = shards.index(shard, keep=False)
    return columns_of_index(index, shards.columns(shard, COLUMNS) if has_signatures(index.columns) else None)


def columns_of_index(index: Index, signatures: pa.Table | None) -> ImageColumns:
    """Return the columns of one shard."""
    count = len(index)
    phash, is_signed = np.zeros(count, np.uint64), np.zeros(count, bool)
    contrast, sharpness = np.zeros(count, np.float32), np.zeros(count, np.float32)
    if signatures is not None:
        try:
            phash, is_signed = parse_hashes(signatures["phash"])
            contrast, sharpness = (_floats(signatures[name]) for name in ("contrast", "sharpness"))
        except (ValueError, pa.ArrowException):
            is_signed = np.zeros(count, bool)  # columns of another tool
    has_image = (image_columns(index)[1] >= 0) & (index.width > 0)
    return ImageColumns(
        label=index.label,
        width=np.where(has_image, index.width, 0),
        height=np.where(has_image, index.height, 0),
        content=image_columns(index)[0].xxh3,
        is_signed=is_signed & has_image,
        phash=phash,
        contrast=contrast,
        sharpness=sharpness,
    )


def _floats(column: pa.ChunkedArray) -> NDArray[np.float32]:
    return np.array([np.nan if value is None else value for value in column.to_pylist()], np.float32)


def write_ban(path: Path, shards: ShardSet, problem: Problem) -> None:
    """Write the samples of a problem to a file that ``ban=`` takes: their keys, or their ids if keys are repeated."""
    keys = [key for shard in range(len(shards.locations)) for key in _keys(shards, shard, problem.samples)]
    ids_of = ids_by_key(shards, keys, [0, shards.manifest.samples], str(path))
    lines = keys if all(len(ids) == 1 for ids in ids_of.values()) else list(map(str, problem.samples.tolist()))
    with write_errors(path.parent, "choose another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _keys(shards: ShardSet, shard: int, samples: NDArray[np.int64]) -> list[str]:
    """Return the keys of those samples that are in a shard."""
    start = sum(location.entry.samples for location in shards.locations[:shard])
    stop = start + shards.locations[shard].entry.samples
    low, high = np.searchsorted(samples, [start, stop])
    if low == high:
        return []
    keys = shards.index(shard, keep=False).keys
    return [keys[row - start] for row in samples[low:high].tolist()]
