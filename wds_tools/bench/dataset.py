"""What the contenders read: a dataset's pictures, unpacked into a temporary tree and packed again from it.

All of them get the same pictures the same number of times. A small dataset is repeated, because loaders pause
between epochs and an epoch of a second would measure the pause; of a large one the first part is taken.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from wds_tools.bench.registry import CONTENDERS
from wds_tools.bench.workloads import RAW_BYTES, RAW_SIDE, SMALL_SIDE, WORKS
from wds_tools.errors import DestinationError
from wds_tools.format.index import NO_LABEL
from wds_tools.format.jpeg import baseline_frame
from wds_tools.order.sequence import default_block
from wds_tools.packing.packer import pack
from wds_tools.reading.reader import Reader
from wds_tools.reading.shardset import ShardSet, open_shards
from wds_tools.upkeep.indexer import index_shards

EPOCH_IMAGES = 3_000  # about two seconds of work for the fastest contender on two cores
MOST_PICTURES = 10_000
_PROBES = 16
_CHUNK = 64
_LEAST_SHARD_BYTES = 10_240
_SMALL_QUALITY = 90  # photographs of SMALL_SIDE pixels then take some 20 kB
_SMALL_BYTES = 30_000  # at most, to reserve room
_SHARDS_PER_WORKER = 4  # webdataset deals whole shards to its workers
_FIELDS = {"raw": "npy", "bytes": "bin"}  # of the works whose samples are not packed as pictures


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
        crop_ready: Whether the first one has the restart markers of crop-ready JPEGs.
    """

    tree: Path
    shards: Path
    pictures: int
    copies: int
    bytes: int
    probes: tuple[str, ...]
    crop_ready: bool


def prepare(
    source: ShardSet, folder: Path, *, work: str, workers: int, batch_size: int, names: Iterable[str] = ()
) -> Material:
    """Unpack a dataset, repeat it if it is small, and pack the result.

    Args:
        source: The dataset.
        folder: Where to.
        work: The kind of work decides what a picture becomes: itself, a small JPEG, or an array.
        workers: The most that a contender will have.
        batch_size: Samples per batch.
        names: Contenders that will want room for a format of their own.

    Raises:
        MissingFieldError: The dataset has no images.
        DestinationError: There is too little room in the temporary folder.
    """
    pictures = min(source.manifest.samples, MOST_PICTURES)
    copies = -(-max(EPOCH_IMAGES, 4 * workers * batch_size) // pictures)
    _check_room(source, folder, work, pictures, copies, names)
    tree, shards = folder / "tree", folder / "shards"
    sizes = [_write(tree, copies, number, label, *made) for number, label, made in _made(source, pictures, work)]
    skipped = _pack(tree, shards, work, sum(sizes), _SHARDS_PER_WORKER * workers)
    probes = _probes(shards) if WORKS[work].view else ()
    return Material(
        tree, shards, len(sizes) - skipped // copies, copies, sum(sizes), probes, _is_crop_ready(tree, probes)
    )


def _made(source: ShardSet, count: int, work: str) -> Iterator[tuple[int, int, tuple[str, bytes | memoryview]]]:
    """Yield number, label, and the type and bytes of the file that each of the first pictures becomes."""
    reader = Reader(source, block=default_block(source.manifest.samples, source.manifest.bytes))
    for start in range(0, count, _CHUNK):
        rows = reader.rows(np.arange(start, min(start + _CHUNK, count), dtype=np.int64))
        columns = zip(rows.gather("label").tolist(), rows.kinds(), rows.images(), strict=True)
        for number, (label, kind, data) in enumerate(columns, start):
            if work not in ("small", "raw"):
                yield number, label, (kind, data)
            elif (picture := _square(data, SMALL_SIDE if work == "small" else RAW_SIDE)) is not None:
                yield number, label, _as_jpeg(picture) if work == "small" else _as_npy(picture)


def _square(data: memoryview, side: int) -> Image.Image | None:
    """Return the middle of a picture as a square; None if it is broken, as no contender gets those."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (side, side))
    except (OSError, ValueError, SyntaxError):
        return None


def _as_jpeg(picture: Image.Image) -> tuple[str, bytes]:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=_SMALL_QUALITY)
    return "jpg", out.getvalue()


def _as_npy(picture: Image.Image) -> tuple[str, bytes]:
    out = io.BytesIO()
    np.save(out, np.asarray(picture), allow_pickle=False)
    return "npy", out.getvalue()


def _write(tree: Path, copies: int, number: int, label: int, kind: str, data: bytes | memoryview) -> int:
    """Write every copy of a picture: real copies, as links would share their page cache. Return the bytes written."""
    folder = tree / ("unlabelled" if label == NO_LABEL else f"class-{label:05d}")
    folder.mkdir(parents=True, exist_ok=True)
    for copy in range(copies):
        (folder / f"{number:07d}-{copy:04d}.{kind}").write_bytes(data)
    return copies * len(data)


def _pack(tree: Path, shards: Path, work: str, total: int, count: int) -> int:
    """Pack the tree into some shards; return how many files were refused and removed."""
    if work in _FIELDS:
        _pack_as(_FIELDS[work], sorted(path for path in tree.rglob("*") if path.is_file()), shards, count)
        return 0
    limit = max(_LEAST_SHARD_BYTES, total // count)
    report = pack(tree, shards, shard_bytes=limit, workers=1, images="keep", progress=False)
    for skip in report.skipped:  # no contender gets what the packer refuses
        (tree / skip.path).unlink()
    return len(report.skipped)


def _pack_as(field: str, files: Sequence[Path], shards: Path, count: int) -> None:
    """Pack files as a field that is no picture, in random order as the packer would."""
    shards.mkdir()
    order = np.random.default_rng(0).permutation(len(files))
    for number, part in enumerate(np.array_split(order, min(count, len(files)))):
        with tarfile.open(shards / f"samples-{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for place in part.tolist():
                member = tarfile.TarInfo(f"{files[place].stem}.{field}")
                member.size = files[place].stat().st_size
                with files[place].open("rb") as file:
                    tar.addfile(member, file)
    index_shards(str(shards / "samples-*.tar"), progress=False)


def _check_room(source: ShardSet, folder: Path, work: str, pictures: int, copies: int, names: Iterable[str]) -> None:
    samples = copies * pictures
    each = {"small": _SMALL_BYTES, "raw": RAW_BYTES}.get(work, source.manifest.bytes / source.manifest.samples)
    size = round(samples * each)
    pixels = RAW_SIDE * RAW_SIDE
    own = [CONTENDERS[name].room_bytes(work, samples=samples, size=size, pixels=pixels) for name in names]
    needed = round(2.2 * size) + sum(own)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DestinationError(
            f"the contenders' copies of the dataset take {needed / 1e9:.1f} GB; {folder} has {free / 1e9:.1f} GB left: "
            "make room, set TMPDIR to a larger folder, or compare with fewer peers"
        )


def _is_crop_ready(tree: Path, probes: Sequence[str]) -> bool:
    frames = (baseline_frame(memoryview((tree / probe).read_bytes())) for probe in probes if probe.endswith(".jpg"))
    first = next(frames, None)
    return first is not None and first.columns > 0


def _probes(shards: Path) -> tuple[str, ...]:
    """Return where the first pictures in the shards came from."""
    packed = open_shards(shards)
    reader = Reader(packed, block=default_block(packed.manifest.samples, packed.manifest.bytes))
    rows = reader.rows(np.arange(min(_PROBES, packed.manifest.samples), dtype=np.int64))
    return tuple(json.loads(bytes(data))["path"] for data in rows.field("json"))
