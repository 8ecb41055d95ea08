"""Sources written by other programs, each with some unpackable content, for `test_conformance`."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import webdataset
import zarr
from folders import write_tar
from foreign_records import FOREIGN, checksum_of, expected
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pictures import encode
from PIL import Image
from tensorboard.summary.writer.record_writer import RecordWriter

COUNT = 6
PIXELS = np.random.default_rng(26).integers(0, 256, (COUNT, 8, 12, 3), np.uint8)
NAMES = ("cat", "dog", "fig")
NUMBERS = [2, 6, 9, 2, 6, 9]
CLASSES = [NAMES[number % 3] for number in range(COUNT)]
SCORES = [number / 4 for number in range(COUNT)]
NUMBER_OF = {checksum_of(array): number for number, array in enumerate(PIXELS)}


@dataclass(frozen=True)
class Case:
    """A source, and what is in it.

    Attributes:
        src: What is packed.
        given: Number of files, rows or records in it.
        labels: Number of an image -> class name, class number or None without a label, of those that can be packed.
        names: All columns, arrays, features or fields, and the unpackable files and records.
        facts: Entry of ``json`` -> values of all images.
        fields: Field -> contents of all images.
        columns: As for `pack`.
        images: Checksum of the pixels of an image -> its number; by default those of `PIXELS`.
    """

    src: Any
    given: int
    labels: Mapping[int, int | str | None]
    names: set[str]
    facts: Mapping[str, list[Any]] = field(default_factory=dict)
    fields: Mapping[str, list[bytes]] = field(default_factory=dict)
    columns: Mapping[str, str] | None = None
    images: Mapping[str, int] = field(default_factory=lambda: NUMBER_OF)


def png(number: int) -> bytes:
    return encode(Image.fromarray(PIXELS[number]), "PNG")


def captions() -> list[str]:
    return [f"photo {number}" for number in range(COUNT)]


# --- Trees: files in class folders, empty files, and files that are not images ---

TREE = {f"{CLASSES[number]}/{number}.png": png(number) for number in range(COUNT)}
STRAYS = {"cat/empty.jpg": b"", "dog/notes.md": b"dogs", "fig/model.bin": b"\0" * 9}
TREE_CASE: dict[str, Any] = {"given": 9, "labels": dict(enumerate(CLASSES)), "names": {*STRAYS}}


def write_folder(path: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path / "photos.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path / "photos.zip"


WRITE_TREE = {
    "folder": write_folder,
    "tar": lambda path, files: write_tar(path / "photos.tar", files.items()),
    "zip": write_zip,
}


def folder(path: Path) -> Case:
    return Case(write_folder(path, TREE | STRAYS), **TREE_CASE)


def tar(path: Path) -> Case:
    return Case(write_tar(path / "photos.tar", (TREE | STRAYS).items()), **TREE_CASE)


def zip_archive(path: Path) -> Case:
    return Case(write_zip(path, TREE | STRAYS), **TREE_CASE)


# --- Tables: text, numbers, a binary column that is not an image, a row without an image ---


def table(path: Path) -> Case:
    with (path / "photos.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "caption", "score", ""])
        for number, caption in enumerate(captions()):
            (path / f"{number}.png").write_bytes(png(number))
            rows.writerow([f"{number}.png", NUMBERS[number], caption, SCORES[number], "unnamed"])
        rows.writerow(["missing.png", 2, "no file", 0.5, ""])
    return Case(
        path / "photos.csv",
        given=7,
        labels=dict(enumerate(NUMBERS)),
        names={"path", "label", "caption", "score", "column_5", "missing.png"},
        facts={"score": [str(score) for score in SCORES], "column_5": ["unnamed"] * COUNT},
        fields={"txt": [caption.encode() for caption in captions()]},
    )


VALUES = {"caption": "string", "score": "float64", "blob": "binary"}
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {"image": {"_type": "Image"}, "label": {"names": list(NAMES), "_type": "ClassLabel"}}


def rows(stop: int = COUNT, **more: Any) -> pa.Table:
    """Return the table of Hugging Face: the first images, and one row without an image."""
    images = [{"bytes": png(number), "path": f"{number}.png"} for number in range(stop)]
    table = pa.table(
        {
            "image": pa.array([*images, {"bytes": None, "path": None}], STRUCT),
            "label": [*(number % 3 for number in range(stop)), 0],
            "caption": [*captions()[:stop], "no image"],
            "score": [*SCORES[:stop], None],
            "blob": pa.array([b"\0\1"] * (stop + 1), pa.binary()),
            **more,
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def row_case(src: Any) -> Case:
    return Case(
        src,
        given=7,
        labels=dict(enumerate(CLASSES)),
        names={"image", "label", "caption", "score", "blob"},
        facts={"score": SCORES},
        fields={"txt": [caption.encode() for caption in captions()]},
        columns={"image": "image"},
    )


def parquet(path: Path) -> Case:
    pq.write_table(rows(), path / "photos.parquet")
    return row_case(path / "photos.parquet")


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def arrow(path: Path) -> Case:
    write_arrow(path / "photos.arrow", rows())
    return row_case(path / "photos.arrow")


def stream(_: Path) -> Case:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))}
    features |= {name: datasets.Value(kind) for name, kind in VALUES.items()}
    items = [row | {"image": row["image"] if row["image"]["bytes"] else None} for row in rows().to_pylist()]
    found = datasets.Dataset.from_list(items, features=datasets.Features(features))
    return row_case(found.to_iterable_dataset())


# --- Arrays: one of another length, text, a scalar, a group ---

MEAN = np.array([0.1, 0.2, 0.3], np.float32)
ARRAYS = {"images": PIXELS, "labels": np.array(NUMBERS), "score": np.array(SCORES), "mean": MEAN}


def array_case(src: Path, *more: str) -> Case:
    labels = dict(enumerate(NUMBERS))
    return Case(src, COUNT, labels, {*ARRAYS, *more}, facts={"score": SCORES})


def hdf5(path: Path) -> Case:
    with h5py.File(path / "photos.h5", "w") as file:
        for name, array in ARRAYS.items():
            file[name] = array
        file["version"] = 3
        file["camera/iso"] = np.arange(4)
    return array_case(path / "photos.h5", "version", "camera/iso")


def zarr_group(path: Path) -> Case:
    group = zarr.open_group(path / "photos.zarr", mode="w")
    for name, array in ARRAYS.items():
        group.create_array(name, data=array)
    group.create_group("camera").create_array("iso", data=np.arange(4))
    return array_case(path / "photos.zarr", "camera/iso")


def numpy(path: Path) -> Case:
    np.savez(path / "photos.npz", **ARRAYS, version=np.array(3))
    return array_case(path / "photos.npz", "version")


def tensors(path: Path) -> Case:
    content = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    torch.save(content | {"version": 3, "author": "me"}, path / "photos.pt")
    return array_case(path / "photos.pt", "version", "author")


# --- Records: damaged ones, further features and fields ---


def lmdb_database(path: Path) -> Case:
    records = {f"{CLASSES[number]}/{number}": png(number) for number in range(COUNT)}
    others = {"cat/pickle": b"\x80\x04N.", "dog/text": b"not an image", "fig/empty": b""}
    with lmdb.open(str(path / "photos.lmdb"), map_size=1 << 20) as database, database.begin(write=True) as transaction:
        for key, value in {**records, **others}.items():
            transaction.put(key.encode(), value)
    return Case(path / "photos.lmdb", 9, dict(enumerate(CLASSES)), {*others})


def example_type() -> Any:
    """Return the message ``tf.train.Example``, built by the library of protocol buffers."""
    file = descriptor_pb2.FileDescriptorProto(name="example_of_test.proto", package="of_test", syntax="proto3")
    label, kinds = descriptor_pb2.FieldDescriptorProto.Label, descriptor_pb2.FieldDescriptorProto.Type

    def add(name: str, *fields: tuple[str, int, int, str | None]) -> Any:
        found = file.message_type.add(name=name)
        for number, (word, repeated, kind, type_name) in enumerate(fields, 1):
            found.field.add(name=word, number=number, label=repeated, type=kind, type_name=type_name)
        return found

    one, many = label.Value("LABEL_OPTIONAL"), label.Value("LABEL_REPEATED")
    nested = kinds.Value("TYPE_MESSAGE")
    lists = {"BytesList": "TYPE_BYTES", "FloatList": "TYPE_FLOAT", "Int64List": "TYPE_INT64"}
    for name, kind in lists.items():
        add(name, ("value", many, kinds.Value(kind), None))
    add("Feature", *((word, one, nested, f".of_test.{name}") for word, name in zip("bfi", lists, strict=True)))
    entry = file.message_type.add(name="Features").nested_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, label=one, type=kinds.Value("TYPE_STRING"))
    entry.field.add(name="value", number=2, label=one, type=nested, type_name=".of_test.Feature")
    entry.options.map_entry = True
    features = file.message_type[-1]
    features.field.add(name="feature", number=1, label=many, type=nested, type_name=".of_test.Features.FeatureEntry")
    add("Example", ("features", one, nested, ".of_test.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("of_test.Example"))


def example(**features: bytes | int | float | list[float]) -> bytes:
    """Return an encoded ``tf.train.Example``."""
    message = example_type()()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = message.features.feature[name.replace("__", "/")]
        kind = {bytes: feature.b, float: feature.f, int: feature.i}[type(values[0])]
        kind.value.extend(values)
    return bytes(message.SerializeToString())


def write_records(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write a TFRecord file with TensorBoard."""
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(example(**record))
        writer.flush()
    return path


def photo_example(number: int) -> dict[str, Any]:
    label = {"image__class__label": NUMBERS[number]}
    return {"image__encoded": png(number), **label, "score": SCORES[number], "raw": b"\xff\xfe"}


def tfrecord(path: Path) -> Case:
    records = [photo_example(number) for number in range(COUNT)]
    src = write_records(path / "photos.tfrecord", [*records, {"score": 0.5, "image__class__label": 2}])
    names = {"image/encoded", "image/class/label", "score", "raw", "photos.tfrecord#6"}
    return Case(src, 7, dict(enumerate(NUMBERS)), names, facts={"score": SCORES})


def write_shard(path: Path, samples: list[dict[str, Any]]) -> Path:
    """Write a shard with webdataset."""
    with webdataset.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def samples(key: str, start: int = 0, stop: int = COUNT, **more: Any) -> list[dict[str, Any]]:
    return [
        {"__key__": key.format(number), "png": png(number), "cls": NUMBERS[number], "txt": captions()[number]}
        | {"json": {"score": SCORES[number]}, **more}
        for number in range(start, stop)
    ]


def shards(path: Path, key: str) -> Case:
    write_shard(
        path / "photos.tar", [*samples(key), {"__key__": key.format("none"), "cls": 2, "bin": b"no image here"}]
    )
    with tarfile.open(path / "photos.tar", "a") as archive:
        for name, target in (("README", ""), ("link", "README")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = (tarfile.SYMTYPE, target) if target else (tarfile.REGTYPE, "")
            archive.addfile(info, io.BytesIO())
    return Case(
        path / "photos.tar",
        given=7,
        labels=dict(enumerate(NUMBERS)),
        names={"png", "cls", "txt", "json", "bin"}
        | {"photos.tar/README", "photos.tar/link", f"photos.tar/{key.format('none')}"},
        facts={"score": SCORES},
        fields={"txt": [caption.encode() for caption in captions()]},
    )


def plain_shards(path: Path) -> Case:
    return shards(path, "{}")


def dotted_shards(path: Path) -> Case:
    return shards(path, "photo.2024.{}")


# --- Objects ---


class Items:
    """Items as a torch ``Dataset`` has them; one of them has no image."""

    def __len__(self) -> int:
        return COUNT + 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == COUNT:
            return {"image": None, "label": 2}
        return {"image": PIXELS[number], "label": NUMBERS[number], "score": SCORES[number], "thing": object()}


def items(_: Path) -> Case:
    labels, names = dict(enumerate(NUMBERS)), {"image", "label", "score", "thing", f"Items#{COUNT}"}
    return Case(Items(), COUNT + 1, labels, names, facts={"score": SCORES})


# --- Chunks of streaming libraries: a pickle, an image whose colours are lost, a file that the index does not name ---


def mds(path: Path) -> Case:
    rows = expected("mds")["palette"]
    folder = shutil.copytree(FOREIGN / "mds" / "palette", path / "photos")
    shutil.copy(folder / "shard.00000.mds", folder / "shard.00009.mds")
    return Case(
        folder,
        given=4,
        labels={number: rows[number]["label"] for number in (0, 2)},
        names={"image", "label", "shard.00000.mds#1", "shard.00000.mds#3", "shard.00009.mds"},
        images={rows[number]["image"].split()[0]: number for number in (0, 2)},
    )


def mds_pickle(_: Path) -> Case:
    rows = expected("mds")["pickled_extra"]
    labels = {number: row["label"] for number, row in enumerate(rows)}
    images = {row["image"].split()[0]: number for number, row in enumerate(rows)}
    return Case(FOREIGN / "mds" / "pickled_extra", len(rows), labels, {"image", "label", "meta"}, images=images)


def litdata(path: Path) -> Case:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(path / "chunks"), chunk_size=4)
    for number in range(COUNT + 1):
        image = png(number) if number < COUNT else b"no image here"
        score = SCORES[number] if number < COUNT else 0.0
        label = NUMBERS[number % COUNT]
        writer[number] = {"image": image, "label": label, "score": score, "extra": {1, number}}
    writer.done()
    writer.merge()
    shutil.copy(path / "chunks" / "chunk-0-0.bin", path / "chunks" / "chunk-9-0.bin")
    names = {"image", "label", "score", "extra", "chunk-9-0.bin", "chunk-0-1.bin#2"}
    return Case(path / "chunks", COUNT + 1, dict(enumerate(NUMBERS)), names, facts={"score": SCORES})


# --- Annotated trees: an image that is not listed, one that is missing, an empty file, files that are not images ---

PHOTOS = ("photo_1", "photo_2", "photo 3", "photo_4")
BOXES: list[Any] = [  # what the programs were given: left, top, right, bottom, number of the class
    [[10, 8, 30, 40, 0], [0, 0, 64, 48, 1]],
    [[5, 5, 45, 35, 2], [12, 10, 20, 30, 0]],
    [[1, 2, 39, 58, 1]],
    [],
]


def annotated(path: Path, annotations: str, images: str, given: int, names: set[str], **numbers: Any) -> Case:
    """Return a tree of images with annotations, and some other files that `pack` has to skip."""
    src = FOREIGN / annotations
    root = Path(shutil.copytree(src, path / "src") if src.is_dir() else path)
    if src.is_file():
        shutil.copy(src, root)
    (root / images).mkdir(exist_ok=True)
    found = numbers.pop("photos", range(4))
    for number in found:
        shutil.copy(FOREIGN / "images" / f"{PHOTOS[number]}.jpg", root / images)
    (root / images / "empty.jpg").write_bytes(b"")
    (root / "notes.md").write_text("notes")
    checksums = {}
    for number, photo in enumerate(PHOTOS):
        with Image.open(FOREIGN / "images" / f"{photo}.jpg") as image:
            checksums[checksum_of(np.asarray(image))] = number
    names = {f"{images}/empty.jpg", "notes.md", *names}
    return Case(root, given, dict.fromkeys(numbers.pop("packed", found)), names, images=checksums, **numbers)


def coco(path: Path) -> Case:
    names = {"info", "licenses", "categories", "images", "annotations", "photo_4.jpg", "images/other.jpg"}
    case = annotated(path, "coco/supervision_boxes.json", "images", 8, names, photos=range(3), facts={"boxes": BOXES})
    Image.new("RGB", (4, 4)).save(case.src / "images" / "other.jpg")
    return case


def yolo(path: Path) -> Case:
    names = {"names", "nc", "images/photo_4.jpg"}
    case = annotated(path, "yolo/supervision_boxes", "images", 11, names, packed=range(3), facts={"boxes": BOXES})
    (case.src / "labels" / "photo_4.txt").write_text("no numbers here")
    return case


def voc(path: Path) -> Case:
    names = {"folder", "filename", "source", "size", "segmented", "object", "Annotations/gone.xml"}
    case = annotated(path, "voc/supervision_boxes", "JPEGImages", 11, names, facts={"boxes": BOXES})
    shutil.copy(case.src / "Annotations" / "photo_1.xml", case.src / "Annotations" / "gone.xml")
    return case


def masks(path: Path) -> Case:
    names = {"train/photo_4.jpg", "label_colors.txt", "train.txt", "val.txt"}
    case = annotated(path, "masks/camvid", "train", 10, names, photos=(0, 2, 3), packed=(0, 2))
    shutil.rmtree(case.src / "valannot")
    pngs = [(FOREIGN / "masks" / "camvid" / "trainannot" / f"{PHOTOS[number]}.png").read_bytes() for number in (0, 2)]
    return replace(case, fields={"mask.png": [pngs[0], b"", pngs[1]]})


CASES: dict[str, Callable[[Path], Case]] = {
    "arrow": arrow,
    "coco": coco,
    "dotted": dotted_shards,
    "folder": folder,
    "hdf5": hdf5,
    "litdata": litdata,
    "lmdb": lmdb_database,
    "masks": masks,
    "mds": mds,
    "mds, a pickle": mds_pickle,
    "numpy": numpy,
    "object": items,
    "parquet": parquet,
    "stream": stream,
    "table": table,
    "tar": tar,
    "tensors": tensors,
    "tfrecord": tfrecord,
    "voc": voc,
    "webdataset": plain_shards,
    "yolo": yolo,
    "zarr": zarr_group,
    "zip": zip_archive,
}
