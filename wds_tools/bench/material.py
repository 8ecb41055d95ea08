"""What the contenders read: a dataset's pictures, unpacked into a temporary tree and packed again from it.

All of them get the same pictures the same number of times. A small dataset is repeated, because loaders pause
between epochs and an epoch of a second would measure the pause; of a large one the first part is taken.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wds_tools.errors import DestinationError
from wds_tools.index import NO_LABEL
from wds_tools.order import default_block
from wds_tools.packer import pack
from wds_tools.reader import Reader
from wds_tools.shardset import ShardSet, open_shards

EPOCH_IMAGES = 3_000  # about two seconds of work for the fastest contender on two cores
MOST_PICTURES = 10_000
_PROBES = 16
_CHUNK = 64
_LEAST_SHARD_BYTES = 10_240


@dataclass(frozen=True, slots=True)
class Material:
    """The pictures in a temporary folder.

    Attributes:
        tree: As files, ``<class>/<name>``.
        shards: Packed.
        pictures: How many different ones.
        copies: How often each one is there.
        bytes: All copies together, as files.
        probes: The first ones in the shards, as paths in ``tree``.
    """

    tree: Path
    shards: Path
    pictures: int
    copies: int
    bytes: int
    probes: tuple[str, ...]


def prepare(dataset: str | os.PathLike[str], folder: Path, *, workers: int, batch_size: int) -> Material:
    """Unpack a dataset, repeat it if it is small, and pack the result, its images kept as they are.

    Raises:
        NotADatasetError: There is no dataset.
        MissingFieldError: It has no images.
        DestinationError: There is too little room in the temporary folder.
    """
    source = open_shards(dataset)
    pictures = min(source.manifest.samples, MOST_PICTURES)
    copies = -(-max(EPOCH_IMAGES, 4 * workers * batch_size) // pictures)
    _check_room(source, folder, pictures, copies)
    tree, shards = folder / "tree", folder / "shards"
    total = sum(_write(tree, copies, *picture) for picture in _pictures(source, pictures))
    # Four shards a worker, because webdataset deals whole shards to its workers.
    limit = max(_LEAST_SHARD_BYTES, total // (4 * workers))
    report = pack(tree, shards, shard_bytes=limit, workers=1, images="keep", progress=False)
    for skip in report.skipped:  # no contender gets what the packer refuses
        (tree / skip.path).unlink()
    pictures -= len(report.skipped) // copies
    return Material(tree, shards, pictures, copies, total, _probes(shards))


def _pictures(source: ShardSet, count: int) -> Iterator[tuple[int, int, str, memoryview]]:
    """Yield number, label, type and bytes of the first pictures of a dataset."""
    reader = Reader(source, block=default_block(source.manifest.samples, source.manifest.bytes))
    for start in range(0, count, _CHUNK):
        rows = reader.rows(np.arange(start, min(start + _CHUNK, count), dtype=np.int64))
        columns = zip(rows.gather("label").tolist(), rows.kinds(), rows.images(), strict=True)
        for number, (label, kind, data) in enumerate(columns, start):
            yield number, label, kind, data


def _write(tree: Path, copies: int, number: int, label: int, kind: str, data: memoryview) -> int:
    """Write every copy of a picture: real copies, as links would share their page cache. Return the bytes written."""
    folder = tree / ("unlabelled" if label == NO_LABEL else f"class-{label:05d}")
    folder.mkdir(parents=True, exist_ok=True)
    for copy in range(copies):
        (folder / f"{number:07d}-{copy:04d}.{kind}").write_bytes(data)
    return copies * len(data)


def _check_room(source: ShardSet, folder: Path, pictures: int, copies: int) -> None:
    needed = round(2.2 * copies * source.manifest.bytes * pictures / source.manifest.samples)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DestinationError(
            f"the contenders' copies of the dataset take {needed / 1e9:.1f} GB; {folder} has {free / 1e9:.1f} GB left: "
            "make room, or set TMPDIR to a larger folder"
        )


def _probes(shards: Path) -> tuple[str, ...]:
    """Return where the first pictures in the shards came from."""
    packed = open_shards(shards)
    reader = Reader(packed, block=default_block(packed.manifest.samples, packed.manifest.bytes))
    rows = reader.rows(np.arange(min(_PROBES, packed.manifest.samples), dtype=np.int64))
    return tuple(json.loads(bytes(data))["path"] for data in rows.field("json"))
