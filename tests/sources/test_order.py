"""No first file, row, member or name decides for the others: in another order, a source is the same.

Each kind of source is written by another program in several orders. One record has a further value, one lacks what the
others have, one has a whole number among fractions, one has no label and one no image; each of them comes first once.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr
from conformance_cases import NAMES, PHOTOS, PIXELS, annotated, png, write_arrow, write_records, write_shard
from foreign_records import FOREIGN, checksum, checksum_of
from PIL import Image, UnidentifiedImageError

from wds_tools.errors import SourceError
from wds_tools.sources.detect import KINDS, open_source

COUNT = 6
ORDERS = [[5, 4, 3, 2, 1, 0], *([(first + number) % COUNT for number in range(COUNT)] for first in (0, 2, 3, 4))]
LABELS = [NAMES[number % 3] for number in range(COUNT)]
NUMBERS = [number % 3 + 5 for number in range(COUNT)]
SCORES = [0.5, 1, 2.5, 0.25, 0.75, 1.25]
IGNORED = ("key", "path", "filename")  # entries of json that have the position
Order = Sequence[int]


def value(number: int) -> dict[str, Any]:
    """Return the values of a record; the third has a further one, the fourth lacks one, the fifth has no label."""
    found = {"label": LABELS[number], "score": SCORES[number], "caption": f"photo {number}", "text": "a text"}
    if number == 2:
        found["extra"] = "more"
    if number == 3:
        del found["caption"]
    if number == 4:
        del found["label"]
    return dict(sorted(found.items(), reverse=bool(number % 2)))


def image(number: int) -> bytes:
    """Return an image; the last one is none."""
    return png(number) if number < COUNT - 1 else b"no image"


def tree(order: Order) -> dict[str, bytes]:
    """Return the files of class folders; their names have the position, so that they are listed in this order."""
    files = {"a.md": b"", "b.md": b""}
    for position, number in enumerate(order):
        path = f"{LABELS[number]}/{position}" if number != 4 else str(position)
        files[f"{path}.png"] = image(number)
        if number != 3:
            files[f"{path}.txt"] = f"photo {number}".encode()
        if number == 2:
            files[f"{path}.json"] = b'{"extra": "more"}'
    order_of_types = {"png": 0, "a.md": 1, "txt": 2, "b.md": 3, "json": 4}  # members in a row are not of one sample
    return dict(
        sorted(files.items(), key=lambda file: order_of_types.get(file[0], order_of_types.get(file[0][-3:], 4)))
    )


def folder(path: Path, order: Order) -> Path:
    for name, data in tree(order).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def tar(path: Path, order: Order) -> Path:
    with tarfile.open(path / "a.tar", "w") as archive:
        for name, data in tree(order).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path / "a.tar"


def zip_archive(path: Path, order: Order) -> Path:
    with zipfile.ZipFile(path / "a.zip", "w") as archive:
        for name, data in tree(order).items():
            archive.writestr(name, data)
    return path / "a.zip"


def table(path: Path, order: Order) -> Path:
    for number in range(COUNT):
        (path / f"{number}.png").write_bytes(image(number))
    rows = [{"file": f"{number}.png", **value(number)} for number in order]
    (path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path / "a.jsonl"


def table_of_a_tree(path: Path, order: Order) -> Path:
    table(path, order).unlink()
    rows = [{"file": f"{number}.png", **value(number)} for number in order]
    pd.DataFrame(rows).to_csv(path / "labels.csv", index=False)
    return path


def arrow_table(order: Order) -> pa.Table:
    rows = [{"image": image(number), **value(number)} for number in order]
    kinds = dict.fromkeys(["label", "caption", "text", "extra"], pa.string())
    return pa.Table.from_pylist(rows, pa.schema({"image": pa.binary(), "score": pa.float64(), **kinds}))


def parquet(path: Path, order: Order) -> Path:
    """Two files, of which each has only the columns that have values in it."""
    for name, half in (("a", order[:3]), ("b", order[3:])):
        found = arrow_table(half)
        found = found.select([one for one in found.column_names if found[one].null_count < len(found)])
        pq.write_table(found, path / f"{name}.parquet")
    return path


def arrow(path: Path, order: Order) -> Path:
    write_arrow(path / "a.arrow", arrow_table(order[:3]))
    write_arrow(path / "b.arrow", arrow_table(order[3:]))
    return path


def stream(_: Path, order: Order) -> Any:
    return datasets.Dataset(arrow_table(order)).to_iterable_dataset()


def items(_: Path, order: Order) -> Any:
    return [{"image": PIXELS[number] if number < COUNT - 1 else None, **value(number)} for number in order]


def tfrecord(path: Path, order: Order) -> Path:
    records = [
        {name: one.encode() if isinstance(one, str) else float(one) for name, one in value(number).items()}
        | {"image": image(number)}
        for number in order
    ]
    write_records(path / "a.tfrecord", records[:3])
    write_records(path / "b.tfrecord", records[3:])
    return path


def shards(path: Path, order: Order, key: str = "{}") -> Path:
    for name, half in (("a", order[:3]), ("b", order[3:])):
        samples = []
        for number in half:
            found = value(number)
            fields = {"txt": found.pop("caption", None), "cls": found.pop("label", None), "json": found}
            fields["png" if number < COUNT - 1 else "bin"] = image(number)
            samples.append({"__key__": key.format(number), **{name: one for name, one in fields.items() if one}})
        write_shard(path / f"{name}.tar", samples)
    return path


def dotted(path: Path, order: Order) -> Path:
    return shards(path, order, "photo.2024.{}")


def lmdb_database(path: Path, order: Order) -> Path:
    with lmdb.open(str(path / "a.lmdb"), map_size=1 << 20) as database, database.begin(write=True) as out:
        for position, number in enumerate(order):
            out.put(f"image-{position}".encode(), image(number))
            if number != 3:
                out.put(f"caption-{position}".encode(), f"photo {number}".encode())
            if number != 4:
                out.put(f"label-{position}".encode(), LABELS[number].encode())
    return path / "a.lmdb"


def arrays(order: Order) -> dict[str, np.ndarray]:
    """Return arrays whose names come in another order too."""
    rows = np.array(order)
    found = {
        "images": PIXELS[rows],
        "labels": np.array(NUMBERS)[rows],
        "score": np.array(SCORES)[rows],
        "mean": np.array([0.1, 0.2, 0.3]),
        "caption": np.array([f"photo {number}" for number in order]),
    }
    names = list(found)[order[0] % 5 :] + list(found)[: order[0] % 5]
    return {name: found[name] for name in names}


def npz(path: Path, order: Order) -> Path:
    np.savez(path / "a.npz", **arrays(order))
    return path / "a.npz"


def hdf5(path: Path, order: Order) -> Path:
    with h5py.File(path / "a.h5", "w", track_order=True) as file:
        for name, array in arrays(order).items():
            file[name] = array.tolist() if array.dtype.kind == "U" else array
    return path / "a.h5"


def zarr_group(path: Path, order: Order) -> Path:
    group = zarr.open_group(path / "a.zarr", mode="w")
    for name, array in arrays(order).items():
        if array.dtype.kind != "U":
            group.create_array(name, data=array)
    return path / "a.zarr"


def tensors(path: Path, order: Order) -> Path:
    content = {
        name: array.tolist() if array.dtype.kind == "U" else torch.from_numpy(array)
        for name, array in arrays(order).items()
    }
    torch.save(content, path / "a.pt")
    return path / "a.pt"


def litdata(path: Path, order: Order) -> Path:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(path / "chunks"), chunk_size=4)
    for position, number in enumerate(order):
        writer[position] = {"image": image(number), "label": NUMBERS[number], "score": float(SCORES[number])}
    writer.done()
    writer.merge()
    return path / "chunks"


def mds(path: Path, order: Order) -> Path:
    """The shards of two datasets with other columns, in the order of the index."""
    src = shutil.copytree(FOREIGN / "mds" / "merged", path / "a")
    index = json.loads((src / "index.json").read_bytes())
    if order[0] % 2:
        index["shards"].reverse()
    (src / "index.json").write_text(json.dumps(index))
    return src


def coco(path: Path, order: Order) -> Path:
    src = annotated(path, "coco/supervision_boxes.json", "images", 0, set()).src
    found = json.loads((src / "supervision_boxes.json").read_bytes())
    for name in ("images", "annotations", "categories"):
        rows = found[name]
        found[name] = [rows[number] for number in order if number < len(rows)]
    (src / "supervision_boxes.json").write_text(json.dumps(found))
    return src


def renamed(src: Path, order: Order) -> Path:
    """Name the files of each photograph by its position."""
    for name, position in zip(PHOTOS, order, strict=False):
        for path in list(src.rglob(f"{name}.*")):
            path.rename(path.with_name(f"{position}{path.suffix}"))
    return src


def yolo(path: Path, order: Order) -> Path:
    return renamed(annotated(path, "yolo/supervision_boxes", "images", 0, set()).src, order)


def voc(path: Path, order: Order) -> Path:
    src = annotated(path, "voc/globox", "images", 0, set()).src
    shutil.copy(FOREIGN / "voc" / "datumaro" / "Annotations" / "photo_2.xml", src / "Annotations")  # more elements
    return renamed(src, order)


def masks(path: Path, order: Order) -> Path:
    for position, number in enumerate(order):
        for place, colour in (("images", (number, 2, 3)), ("masks", number)):
            (path / place).mkdir(exist_ok=True)
            if place == "images" or number != 3:
                mode = "RGB" if place == "images" else "L"
                Image.new(mode, (8, 6), colour).save(path / place / f"{position}.png")
    return path


SOURCES: dict[str, Callable[[Path, Order], Any]] = {
    "arrow": arrow,
    "coco": coco,
    "dotted": dotted,
    "folder": folder,
    "hdf5": hdf5,
    "litdata": litdata,
    "lmdb": lmdb_database,
    "masks": masks,
    "mds": mds,
    "numpy": npz,
    "object": items,
    "parquet": parquet,
    "stream": stream,
    "table": table,
    "table, in a tree": table_of_a_tree,
    "tar": tar,
    "tensors": tensors,
    "tfrecord": tfrecord,
    "voc": voc,
    "webdataset": shards,
    "yolo": yolo,
    "zarr": zarr_group,
    "zip": zip_archive,
}
LITDATA = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
MARKED = [pytest.param(name, marks=LITDATA if name == "litdata" else ()) for name in SOURCES]


def without_names(text: str) -> str:
    """Return a text without what depends on the order: the example, positions and file names."""
    return re.sub(r"'[^']*'|\d+", "", text)


def content(src: Any) -> dict[str, Any]:
    """Return what a source has: its account, classes, and the samples by the pixels of their images."""
    source = open_source(src)
    listing = source.scan()
    samples, skipped = {}, [skip.reason for skip in listing.skipped]
    names = listing.label_classes
    for entry in listing.inputs:
        try:
            record = source.read(entry)
            pixels = checksum(record.image) if isinstance(record.image, bytes) else checksum_of(record.image)
        except (SourceError, UnidentifiedImageError):
            skipped.append("cannot be read")
            continue
        labels = (entry.label,) if entry.labels is None else entry.labels
        facts = {name: one for name, one in record.facts.items() if name not in IGNORED and one is not None}
        if "objects" in facts:
            facts["objects"] = sorted(facts["objects"], key=json.dumps)
        named = [names[one] if names and one is not None else one for one in labels]
        samples[pixels] = named, facts, dict(record.fields)
    account = listing.account
    return {
        "classes": (listing.classes, listing.field_classes),
        "samples": samples,
        "counts": (account.given, account.packed, account.attached),
        "skipped": Counter(map(without_names, skipped)),
        "parts": {(part.kind, without_names(part.name), part.role, part.reason) for part in account.parts},
        "notes": Counter(map(without_names, account.notes)),
    }


def test_every_kind_is_here() -> None:
    assert set(KINDS) <= SOURCES.keys()


@pytest.mark.parametrize("kind", MARKED)
def test_another_order_gives_the_same_account_classes_and_labels(kind: str, tmp_path: Path) -> None:
    found = []
    for number, order in enumerate(ORDERS):
        (tmp_path / str(number)).mkdir()
        found.append(content(SOURCES[kind](tmp_path / str(number), order)))
    assert found[0]["samples"]
    for other in found[1:]:
        assert other == found[0]


@pytest.mark.parametrize("first", ["pairs", "images"])
def test_archives_of_which_one_has_samples_are_shards_in_any_order(first: str, tmp_path: Path) -> None:
    samples = [{"__key__": str(number), "png": png(number), "cls": number} for number in range(4)]
    alone = [{"__key__": one["__key__"], "png": one["png"]} for one in samples[:2]]
    halves = {"pairs": samples[2:], "images": alone}
    for name, half in zip("ab", (halves.pop(first), *halves.values()), strict=True):
        write_shard(tmp_path / f"{name}.tar", half)
    source = open_source(tmp_path)
    assert source.kind == "webdataset"
    assert Counter(skip.reason for skip in source.scan().skipped) == {"has no label": 2}
