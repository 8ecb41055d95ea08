"""The dataset that all loaders read: the user's images, unpacked into a temporary folder and packed again from there.

All loaders get the same images the same number of times. A small dataset is repeated: loaders pause
between epochs, and with epochs of a second the pause would be measured. Only the first images of a
large dataset are used.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from wds_tools.bench.registry import LOADERS
from wds_tools.bench.workloads import ANNOTATIONS, RAW_BYTES, RAW_SIDE, SMALL_SIDE, WITH_BOXES, WORKLOADS
from wds_tools.errors import DestinationError
from wds_tools.format.index import NO_LABEL
from wds_tools.format.jpeg import baseline_frame
from wds_tools.order.sequence import default_block
from wds_tools.packing.packer import pack
from wds_tools.reading.opening import open_shards
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows
from wds_tools.reading.shardset import ShardSet
from wds_tools.terminal import phase_bar
from wds_tools.upkeep.indexer import index_shards

EPOCH_IMAGES = 3_000  # the fastest loader takes about two seconds for them on two cores
MAX_IMAGES = 10_000
_PROBES = 16
_CHUNK = 64
_MIN_SHARD_BYTES = 10_240
_SMALL_QUALITY = 90  # images of SMALL_SIDE pixels then take about 20 kB
_SMALL_BYTES = 30_000  # upper bound, to check the free space
_SHARDS_PER_WORKER = 4  # webdataset gives whole shards to its workers
_BOXES = 8  # per image
_FIELDS = {"raw": "npy", "bytes": "bin"}  # workloads whose samples are not packed as images


@dataclass(frozen=True, slots=True)
class BenchDataset:
    """The dataset in a temporary folder.

    Attributes:
        copies: How often each image is in the dataset.
        bytes: Size of all files.
        probes: The first images in the shards, as paths in ``tree``.
        crop_ready: Whether the first image has the restart markers of crop-ready JPEGs.
    """

    tree: Path
    shards: Path
    images: int
    copies: int
    bytes: int
    probes: tuple[str, ...]
    crop_ready: bool


def prepare_dataset(
    source: ShardSet, folder: Path, *, workload: str, workers: int, batch_size: int, names: Iterable[str] = ()
) -> BenchDataset:
    """Unpack a dataset, repeat it if it is small, and pack the result.

    Raises:
        MissingFieldError: The dataset has no images.
        DestinationError: The temporary folder has too little free space.
    """
    images = min(source.manifest.samples, MAX_IMAGES)
    copies = -(-max(EPOCH_IMAGES, 4 * workers * batch_size) // images)
    _check_free_space(source, folder, workload, images, copies, names)
    tree, shards = folder / "tree", folder / "shards"
    files = phase_bar("unpacking the images", _files(source, images, workload), total=images)
    sizes = [_write_copies(tree, copies, index, label, *file) for index, label, file in files]
    skipped = _pack(tree, shards, workload, sum(sizes), _SHARDS_PER_WORKER * workers)
    probes = _probes(shards) if WORKLOADS[workload].view else ()
    return BenchDataset(
        tree, shards, len(sizes) - skipped // copies, copies, sum(sizes), probes, _is_crop_ready(tree, probes)
    )


def _files(source: ShardSet, count: int, workload: str) -> Iterator[tuple[int, int, tuple[str, bytes | memoryview]]]:
    """Yield the number and label of each of the first images, with the type and bytes of the file to write for it."""
    reader = Reader(source, block=default_block(source.manifest.samples, source.manifest.bytes))
    for start in range(0, count, _CHUNK):
        rows = Rows(reader, np.arange(start, min(start + _CHUNK, count), dtype=np.int64))
        columns = zip(rows.gather("label").tolist(), rows.kinds(), rows.images(), strict=True)
        for index, (label, kind, data) in enumerate(columns, start):
            if workload in WITH_BOXES and square(data, 8) is None:
                continue  # its boxes would be of no use
            if workload not in ("small", "raw"):
                yield index, label, (kind, data)
            elif (image := square(data, SMALL_SIDE if workload == "small" else RAW_SIDE)) is not None:
                yield index, label, _as_jpeg(image) if workload == "small" else _as_npy(image)


def square(data: memoryview, side: int) -> Image.Image | None:
    """Return the centre of an image as a square; None for a damaged image, which no loader gets."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (side, side))
    except (OSError, ValueError, SyntaxError):
        return None


def _as_jpeg(image: Image.Image) -> tuple[str, bytes]:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_SMALL_QUALITY)
    return "jpg", out.getvalue()


def _as_npy(image: Image.Image) -> tuple[str, bytes]:
    out = io.BytesIO()
    np.save(out, np.asarray(image), allow_pickle=False)
    return "npy", out.getvalue()


def _write_copies(tree: Path, copies: int, index: int, label: int, kind: str, data: bytes | memoryview) -> int:
    """Write all copies of a file and return their size; links would share their page cache."""
    folder = tree / ("unlabelled" if label == NO_LABEL else f"class-{label:05d}")
    folder.mkdir(parents=True, exist_ok=True)
    for copy in range(copies):
        (folder / f"{index:07d}-{copy:04d}.{kind}").write_bytes(data)
    return copies * len(data)


def _pack(tree: Path, shards: Path, workload: str, total: int, count: int) -> int:
    """Pack the files into about ``count`` shards; return how many files the packer skipped, which are removed."""
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    if workload in _FIELDS:
        field = _FIELDS[workload]
        _write_shards(files, shards, count, lambda path: {field: path.read_bytes()})
        return 0
    if workload in WITH_BOXES:
        boxes = _write_annotations(files, tree)
        _write_shards(files, shards, count, lambda path: _with_boxes(path, path.relative_to(tree), boxes))
        return 0
    limit = max(_MIN_SHARD_BYTES, total // count)
    report = pack(tree, shards, shard_bytes=limit, workers=1, images="keep")
    for skip in report.skipped:  # no loader gets what the packer skips
        (tree / skip.path).unlink()
    return len(report.skipped)


def _write_shards(files: Sequence[Path], shards: Path, count: int, fields: Callable[[Path], dict[str, bytes]]) -> None:
    """Write the fields of each file as a sample, in random order as the packer does."""
    shards.mkdir()
    order = np.random.default_rng(0).permutation(len(files))
    for index, part in enumerate(np.array_split(order, min(count, len(files)))):
        with tarfile.open(shards / f"samples-{index:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for position in part.tolist():
                for field, data in fields(files[position]).items():
                    member = tarfile.TarInfo(f"{files[position].stem}.{field}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    index_shards(str(shards / "samples-*.tar"), progress=False)


def _write_annotations(files: Sequence[Path], tree: Path) -> dict[Path, list[list[float]]]:
    """Write random boxes for each image, in the JSON of COCO next to the tree; return them by path in the tree."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    by_path: dict[Path, list[list[float]]] = {}
    for index, file in enumerate(files):
        with Image.open(file) as image:
            width, height = ImageOps.exif_transpose(image).size
        rng, path = np.random.default_rng(index), file.relative_to(tree)
        corners, sizes = rng.uniform(0, 0.6, (_BOXES, 2)), rng.uniform(0.1, 0.4, (_BOXES, 2))
        by_path[path] = (np.hstack([corners, sizes]) * [width, height, width, height]).round(1).tolist()
        images.append({"id": index, "file_name": path.as_posix(), "width": width, "height": height})
        for box in by_path[path]:
            values = {"image_id": index, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            annotations.append({"id": len(annotations), **values})
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "object"}]}
    (tree.parent / ANNOTATIONS).write_text(json.dumps(coco))
    return by_path


def _with_boxes(file: Path, path: Path, boxes: dict[Path, list[list[float]]]) -> dict[str, bytes]:
    facts = {"path": path.as_posix(), "boxes": boxes[path]}
    return {file.suffix[1:]: file.read_bytes(), "json": json.dumps(facts).encode()}


def _check_free_space(
    source: ShardSet, folder: Path, workload: str, images: int, copies: int, names: Iterable[str]
) -> None:
    samples = copies * images
    each = {"small": _SMALL_BYTES, "raw": RAW_BYTES}.get(workload, source.manifest.bytes / source.manifest.samples)
    size = round(samples * each)
    pixels = RAW_SIDE * RAW_SIDE
    own = [LOADERS[name].disk_bytes(workload, samples=samples, size=size, pixels=pixels) for name in names]
    needed = round(2.2 * size) + sum(own)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DestinationError(
            f"the benchmark needs {needed / 1e9:.1f} GB for its copies of the dataset, but {folder} has only "
            f"{free / 1e9:.1f} GB free: free some space, set TMPDIR to a folder on a larger disk, or compare with "
            "fewer peers"
        )


def _is_crop_ready(tree: Path, probes: Sequence[str]) -> bool:
    frames = (baseline_frame(memoryview((tree / probe).read_bytes())) for probe in probes if probe.endswith(".jpg"))
    first = next(frames, None)
    return first is not None and first.columns > 0


def _probes(shards: Path) -> tuple[str, ...]:
    """Return the original paths of the first images in the shards."""
    packed = open_shards(shards)
    reader = Reader(packed, block=default_block(packed.manifest.samples, packed.manifest.bytes))
    rows = Rows(reader, np.arange(min(_PROBES, packed.manifest.samples), dtype=np.int64))
    return tuple(json.loads(bytes(data))["path"] for data in rows.field("json"))
