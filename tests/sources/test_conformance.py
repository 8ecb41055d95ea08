"""The promise of every source: all that it was given is in the account by name, and values arrive as they are.

Each source here is written by another program, and has things that cannot be packed: an extra column, array, member
or feature, a damaged record, a second file with another schema. What is packed is read by the webdataset library and
Pillow, and compared with the arrays that were written.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
import zarr
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image
from tensorboard.summary.writer.record_writer import RecordWriter

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.format.account import Account
from wds_tools.sources.detect import KINDS

NOT_YET = {
    *("arrow", "object", "parquet", "stream", "table"),
    *("hdf5", "numpy", "tensors", "zarr"),
    *("litdata", "mds", "tfrecord"),
    *("coco", "masks", "voc", "yolo"),
}
"""Kinds whose account does not name everything yet; it may only shrink."""

COUNT = 6
PIXELS = np.random.default_rng(26).integers(0, 256, (COUNT, 8, 12, 3), np.uint8)
NAMES = ("cat", "dog", "fig")
NUMBERS = [2, 6, 9, 2, 6, 9]
CLASSES = [NAMES[number % 3] for number in range(COUNT)]
SCORES = [number / 4 for number in range(COUNT)]


@dataclass(frozen=True)
class Case:
    """A source, and what is in it.

    Attributes:
        src: What is packed.
        given: Number of files, rows or records in it.
        labels: Number of an image -> class name or class number, of those that can be packed.
        names: All columns, arrays, features or fields, and the files and records that cannot be packed.
        facts: Entry of ``json`` -> values of all images.
        fields: Field -> contents of all images.
        columns: As for `pack`.
    """

    src: Any
    given: int
    labels: Mapping[int, int | str]
    names: set[str]
    facts: Mapping[str, list[Any]] = field(default_factory=dict)
    fields: Mapping[str, list[bytes]] = field(default_factory=dict)
    columns: Mapping[str, str] | None = None


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(PIXELS[number]).save(out, "PNG")
    return out.getvalue()


def captions() -> list[str]:
    return [f"photo {number}" for number in range(COUNT)]


# --- Trees: files in class folders, empty files, and files that are not images ---

TREE = {f"{CLASSES[number]}/{number}.png": png(number) for number in range(COUNT)}
STRAYS = {"cat/empty.jpg": b"", "dog/notes.md": b"dogs", "fig/model.bin": b"\0" * 9}
TREE_CASE: dict[str, Any] = {"given": 9, "labels": dict(enumerate(CLASSES)), "names": {*STRAYS}}


def folder(path: Path) -> Case:
    for name, data in {**TREE, **STRAYS}.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return Case(path, **TREE_CASE)


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def tar(path: Path) -> Case:
    return Case(write_tar(path / "photos.tar", {**TREE, **STRAYS}), **TREE_CASE)


def zip_archive(path: Path) -> Case:
    with zipfile.ZipFile(path / "photos.zip", "w") as archive:
        for name, data in {**TREE, **STRAYS}.items():
            archive.writestr(name, data)
    return Case(path / "photos.zip", **TREE_CASE)


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
        names={"path", "label", "caption", "score", "", "missing.png"},
        facts={"score": [str(score) for score in SCORES]},
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


def write_records(path: Path, records: list[bytes]) -> Path:
    """Write a TFRecord file with TensorBoard."""
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(record)
        writer.flush()
    return path


def photo_example(number: int, **more: Any) -> bytes:
    return example(
        image__encoded=png(number), image__class__label=NUMBERS[number], score=SCORES[number], raw=b"\xff\xfe", **more
    )


def tfrecord(path: Path) -> Case:
    records = [photo_example(number) for number in range(COUNT)]
    src = write_records(path / "photos.tfrecord", [*records, example(score=0.5, image__class__label=2)])
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
    """Items as a torch ``Dataset`` has them."""

    def __init__(self, extra_from: int = COUNT) -> None:
        self.extra_from = extra_from

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> dict[str, Any]:
        item = {"image": PIXELS[number], "label": NUMBERS[number], "score": SCORES[number], "thing": object()}
        return item | ({"extra": f"more {number}"} if number >= self.extra_from else {})


def items(_: Path) -> Case:
    labels = dict(enumerate(NUMBERS))
    return Case(Items(), COUNT, labels, {"image", "label", "score", "thing"}, facts={"score": SCORES})


CASES: dict[str, Callable[[Path], Case]] = {
    "arrow": arrow,
    "dotted": dotted_shards,
    "folder": folder,
    "hdf5": hdf5,
    "lmdb": lmdb_database,
    "numpy": numpy,
    "object": items,
    "parquet": parquet,
    "stream": stream,
    "table": table,
    "tar": tar,
    "tensors": tensors,
    "tfrecord": tfrecord,
    "webdataset": plain_shards,
    "zarr": zarr_group,
    "zip": zip_archive,
}


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    (tmp_path / "src").mkdir()
    return CASES[request.param](tmp_path / "src")


def pack(src: Any, dst: Path, columns: Mapping[str, str] | None = None) -> Any:
    return wt.pack(src, dst, columns=columns, workers=1, images="keep")


def read(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the samples of a dataset as webdataset and Pillow read them, by the number of their image."""
    number_of = {array.tobytes(): number for number, array in enumerate(PIXELS)}
    classes = json.loads((folder / "manifest.json").read_bytes())["classes"]
    found = {}
    for sample in webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False, empty_check=False):
        with Image.open(io.BytesIO(sample["png"])) as image:
            number = number_of[np.asarray(image.convert("RGB")).tobytes()]
        label = int(sample["cls"]) if "cls" in sample else None
        name = classes[label] if classes and label is not None else label
        found[number] = {**sample, "label": name, "json": json.loads(sample["json"])}
    return found


def test_every_kind_has_a_case() -> None:
    assert set(KINDS) <= {*CASES} | NOT_YET


@pytest.mark.parametrize("case", sorted({*CASES} - NOT_YET), indirect=True)
def test_everything_that_a_source_has_is_in_the_account_by_name(case: Case, tmp_path: Path) -> None:
    report = pack(case.src, tmp_path / "dst", case.columns)
    account = report.account
    assert (account.given, account.packed) == (case.given, len(case.labels))
    assert account.given == account.packed + account.skipped.total() + account.attached.total()
    assert len(report.skipped) == account.skipped.total()
    assert all(skip.reason for skip in report.skipped)
    assert all(bool(part.role) != bool(part.reason) for part in account.parts)
    named = {part.name for part in account.parts} | {skip.path for skip in report.skipped}
    assert case.names <= named


@pytest.mark.parametrize("case", sorted({*CASES} - NOT_YET), indirect=True)
def test_images_labels_and_values_are_those_that_the_other_program_wrote(case: Case, tmp_path: Path) -> None:
    pack(case.src, tmp_path / "dst", case.columns)
    found = read(tmp_path / "dst")
    assert {number: sample["label"] for number, sample in found.items()} == case.labels
    for number, sample in found.items():
        for name, values in case.facts.items():
            assert sample["json"][name] == values[number]
        for name, contents in case.fields.items():
            assert sample[name] == contents[number]


# --- A second file, row or item with another schema ---


def parquet_files(path: Path) -> Path:
    pq.write_table(rows(3), path / "a.parquet")
    pq.write_table(rows(extra=pa.array(["more"] * 7)).slice(3, 3), path / "b.parquet")
    return path


def arrow_files(path: Path) -> Path:
    write_arrow(path / "a.arrow", rows(3))
    write_arrow(path / "b.arrow", rows(extra=pa.array(["more"] * 7)).slice(3, 3))
    return path


def tfrecord_files(path: Path) -> Path:
    write_records(path / "a.tfrecord", [photo_example(number) for number in range(3)])
    write_records(path / "b.tfrecord", [photo_example(number, extra=b"more") for number in range(3, COUNT)])
    return path


def shard_files(path: Path, key: str = "{}") -> Path:
    write_shard(path / "a.tar", samples(key, 0, 3))
    write_shard(path / "b.tar", samples(key, 3, extra=b"more"))
    return path


def dotted_files(path: Path) -> Path:
    return shard_files(path, "photo.2024.{}")


def json_lines(path: Path) -> Path:
    lines = []
    for number in range(COUNT):
        (path / f"{number}.png").write_bytes(png(number))
        lines.append({"path": f"{number}.png", "label": NUMBERS[number]} | ({"extra": "more"} if number > 2 else {}))
    (path / "photos.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path / "photos.jsonl"


def later_items(_: Path) -> Items:
    return Items(extra_from=3)


SECOND: dict[str, Callable[[Path], Any]] = {
    "arrow": arrow_files,
    "dotted": dotted_files,
    "object": later_items,
    "parquet": parquet_files,
    "table": json_lines,
    "tfrecord": tfrecord_files,
    "webdataset": shard_files,
}
"""The kinds whose schema can change; each writer returns a source in which only images 3 to 5 have ``extra``."""


@pytest.mark.parametrize("kind", sorted({*SECOND} - NOT_YET))
def test_what_only_a_later_file_has_is_in_the_account_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    src = SECOND[kind](tmp_path / "src")
    try:
        report = pack(src, tmp_path / "dst")
    except SourceError as error:
        assert "'extra'" in str(error)  # noqa: PT017 - either is right
        return
    (part,) = (part for part in report.account.parts if part.name == "extra")
    found = read(tmp_path / "dst")
    assert sorted(found) == list(range(COUNT))
    if part.role:
        has = {number for number, sample in found.items() if "extra" in sample or sample["json"].get("extra")}
        assert has == {3, 4, 5}


def test_a_source_that_forgets_a_part_or_a_record_cannot_be_packed() -> None:
    account = Account("row", given=3)
    account.declare("column", ["a", "b"])
    account.use("column", "a", "image")
    with pytest.raises(AssertionError, match=r"no account of.*'b'"):
        account.close(3, [])
    account.leave_out("column", "b", "is empty")
    with pytest.raises(AssertionError, match="3 rows were given, 2 are accounted for"):
        account.close(1, ["is damaged"])
