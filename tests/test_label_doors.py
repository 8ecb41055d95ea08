"""One table of label values, through every door by which labels come into a dataset. Each has one expected result."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import msgpack
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
import zarr
from pictures import encode
from PIL import Image
from pyarrow import feather
from tfrecords import example, frame

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, SampleError, ShardError, SourceError
from wds_tools.format.index import NO_LABEL
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples

REFUSED = "refused"
# The label is chosen, because numbers with fractions would be left out otherwise.
LABEL, LABELS = {"label": "label"}, {"label": "labels"}
NAN = float("nan")
LARGEST = 2**63 - 1
TABLE: list[tuple[list[Any], Any]] = [
    ([3, 1], [3, 1]),
    (["3", "1"], [3, 1]),
    (["3.0", " 1 "], [3, 1]),
    ([3.0, 1.0], [3, 1]),
    ([LARGEST, 0], [LARGEST, 0]),
    ([2**63, 0], REFUSED),
    ([-1, 3], [None, 3]),
    ([-1, 1], REFUSED),
    ([-1, -2], [None, None]),
    ([" cat", "dog"], ["cat", "dog"]),
    (["polar bear", "dog"], ["polar bear", "dog"]),
    (["Cat", "cat"], ["Cat", "cat"]),
    (["007", "008"], ["007", "008"]),
    (["007", "7"], REFUSED),
    (["fig", "3"], REFUSED),
    (["", "cat"], [None, "cat"]),
    (["nan", "cat"], [None, "cat"]),
    (["None", "cat"], [None, "cat"]),
    ([None, "cat"], [None, "cat"]),
    ([None, 1], [None, 1]),
    ([NAN, 1.0], [None, 1]),
    ([True, False], ["true", "false"]),
    (["TRUE", "False"], ["true", "false"]),
    ([0.5, 1.0], REFUSED),
    (["0.5", "1"], REFUSED),
    (["1e3", "2"], REFUSED),
    (["cat dog", "cat", "dog"], REFUSED),
    (["[1 0 0]", "[0 1 0]"], REFUSED),  # as str(array) is
    (["tensor(1)", "tensor(0)"], REFUSED),
    (["np.int64(1)", "1"], REFUSED),
    (["{'id': 1}", "{'id': 2}"], REFUSED),
    (["drumstick(chicken)", "set {1}"], ["drumstick(chicken)", "set {1}"]),
    ([[2, 1], [0]], [(2, 1), (0,)]),
    ([["cat", "dog"], ["cat"], []], [("cat", "dog"), ("cat",), ()]),
    ([[0, 1, 1], [1, 1, 0]], [(1, 2), (0, 1)]),
    ([[0, 1, 0], [1, 0, 0]], [1, 0]),
    ([[1.5, 2.5], [0.5]], REFUSED),
    ([[1, 2], ["cat"]], REFUSED),
]


def png(number: int) -> bytes:
    return encode(Image.new("L", (8, 8), 20 * number), "PNG")


class CannotHoldError(Exception):
    """A door has no form for these values."""


def same_type(values: list[Any]) -> None:
    """Raise an error for values that a typed column cannot hold next to each other."""
    kinds = {type(one) for value in values for one in (value if isinstance(value, list) else [value])} - {type(None)}
    if len(kinds) > 1 or 2**63 in values:
        raise CannotHoldError


def pack(src: Any, dst: Path, **options: Any) -> Path:
    wt.pack(src, dst, workers=1, shuffle=False, **options)
    return dst


def csv(values: list[Any], folder: Path) -> Path:
    frame_ = pd.DataFrame({"path": [f"{n}.png" for n in range(len(values))], "label": pd.Series(values, dtype=object)})
    frame_.to_csv(folder / "t.csv", index=False)
    return pack(folder / "t.csv", folder / "d", columns=LABEL)


def json_lines(values: list[Any], folder: Path) -> Path:
    rows = [json.dumps({"path": f"{n}.png", "label": value}) for n, value in enumerate(values)]
    (folder / "t.jsonl").write_text("\n".join(rows).replace("NaN", "null"))
    return pack(folder / "t.jsonl", folder / "d", columns=LABEL)


def arrow_table(values: list[Any]) -> pa.Table:
    same_type(values)
    return pa.table({"image": list(map(png, range(len(values)))), "label": pa.array(values, from_pandas=False)})


def parquet(values: list[Any], folder: Path) -> Path:
    pq.write_table(arrow_table(values), folder / "t.parquet")
    return pack(folder / "t.parquet", folder / "d", columns=LABEL)


def arrow(values: list[Any], folder: Path) -> Path:
    feather.write_feather(arrow_table(values), folder / "t.arrow", compression="uncompressed")
    return pack(folder / "t.arrow", folder / "d", columns=LABEL)


def stream(values: list[Any], folder: Path) -> Path:
    same_type(values)
    kind = pa.array(values, from_pandas=False).type
    label = datasets.features.features.generate_from_arrow_type(kind)
    features = datasets.Features({"image": datasets.Image(), "label": label})

    def rows() -> Iterator[dict[str, Any]]:
        for number, value in enumerate(values):
            yield {"image": {"bytes": png(number), "path": None}, "label": value}

    src = datasets.IterableDataset.from_generator(rows, features=features)
    return pack(src, folder / "d", columns=LABEL)


def objects(values: list[Any], folder: Path) -> Path:
    items = [(Image.open(io.BytesIO(png(number))), value) for number, value in enumerate(values)]
    return pack(items, folder / "d", columns=LABEL)


def dictionaries(values: list[Any], folder: Path) -> Path:
    items = [{"image": png(number), "label": value} for number, value in enumerate(values)]
    return pack(items, folder / "d", columns=LABEL)


def as_array(values: list[Any]) -> np.ndarray:
    same_type(values)
    if None in values or len({len(value) for value in values if isinstance(value, list)}) > 1:
        raise CannotHoldError
    return np.array(values)


def pixels(values: list[Any]) -> np.ndarray:
    return np.stack([np.full((8, 8, 1), 20 * number, np.uint8) for number in range(len(values))])


def hdf5(values: list[Any], folder: Path) -> Path:
    labels = as_array(values)
    with h5py.File(folder / "a.h5", "w") as file:
        file["images"] = pixels(values)
        file["labels"] = labels.tolist() if labels.dtype.kind == "U" else labels
    return pack(folder / "a.h5", folder / "d", columns=LABELS)


def numpy(values: list[Any], folder: Path) -> Path:
    np.savez(folder / "a.npz", images=pixels(values), labels=as_array(values))
    return pack(folder / "a.npz", folder / "d", columns=LABELS)


def zarr_group(values: list[Any], folder: Path) -> Path:
    group = zarr.open_group(str(folder / "a.zarr"), mode="w")
    labels = as_array(values)
    if labels.dtype.kind == "U":
        raise CannotHoldError  # zarr 3 warns that its type is not in the specification
    group["images"], group["labels"] = pixels(values), labels
    return pack(folder / "a.zarr", folder / "d", columns=LABELS)


def tensors(values: list[Any], folder: Path) -> Path:
    labels = as_array(values)
    if labels.dtype.kind == "U":
        raise CannotHoldError
    torch.save({"images": torch.from_numpy(pixels(values)), "labels": torch.from_numpy(labels)}, folder / "a.pt")
    return pack(folder / "a.pt", folder / "d", columns=LABELS)


def tfrecord(values: list[Any], folder: Path) -> Path:
    data = b""
    same_type(values)
    for number, value in enumerate(values):
        features: dict[str, Any] = {"image/encoded": png(number)}
        if isinstance(value, list) or value is None or isinstance(value, bool):
            raise CannotHoldError
        features["image/class/label"] = (
            value.encode() if isinstance(value, str) else [value] if isinstance(value, float) else value
        )
        data += frame(example(features))
    (folder / "a.tfrecord").write_bytes(data)
    return pack(folder / "a.tfrecord", folder / "d", columns={"label": "image/class/label"})


def foreign_shard(values: list[Any], folder: Path, *, field: str) -> Path:
    """Write a shard with webdataset."""
    with webdataset.TarWriter(str(folder / "a.tar"), encoder=False) as writer:
        for number, value in enumerate(values):
            sample: dict[str, Any] = {"__key__": f"{number}", "png": png(number)}
            if field == "json":
                sample["json"] = json.dumps({"label": value}).replace("NaN", "null").encode()
            elif isinstance(value, list):
                raise CannotHoldError
            elif value is not None:
                sample["cls"] = str(value).encode()
            writer.write(sample)
    return folder / "a.tar"


def packed_cls(values: list[Any], folder: Path) -> Path:
    return pack(foreign_shard(values, folder, field="cls"), folder / "d", kind="webdataset")


def packed_json(values: list[Any], folder: Path) -> Path:
    return pack(
        foreign_shard(values, folder, field="json"), folder / "d", kind="webdataset", columns={"label": "json:label"}
    )


def indexed_cls(values: list[Any], folder: Path) -> Path:
    wt.index_shards(str(foreign_shard(values, folder, field="cls")))
    return folder


def indexed_json(values: list[Any], folder: Path) -> Path:
    if any(isinstance(value, list) for value in values):
        raise CannotHoldError  # an index has one label, which tests/upkeep/test_labelling.py checks
    wt.index_shards(str(foreign_shard(values, folder, field="json")), label="json:label")
    return folder


def resharded(values: list[Any], folder: Path) -> Path:
    wt.reshard(foreign_shard(values, folder, field="json"), folder / "d", label="json:label", workers=1)
    return folder / "d"


def writer(values: list[Any], folder: Path) -> Path:
    if any(isinstance(value, list) for value in values):
        raise CannotHoldError  # they are the field labels.json
    if "cat dog" in values or values == [-1, 1]:
        raise CannotHoldError  # the program that writes a name or -1 decides what it is, one sample at a time
    with wt.ShardWriter(folder / "d" / "a-%d.tar") as shards:
        for number, value in enumerate(values):
            shards.write({"__key__": f"{number}", "png": png(number), "cls": value})
    return folder / "d"


def appended(values: list[Any], folder: Path) -> Path:
    """Append the samples to a dataset of the same ones."""
    json_lines(values, folder)
    more = [json.dumps({"path": f"{n}.png", "label": value}) for n, value in enumerate(values)]
    (folder / "more.jsonl").write_text("\n".join(more).replace("NaN", "null") + "\n")
    wt.append(folder / "more.jsonl", folder / "d", workers=1, seed=1)
    return folder / "d"


def merged(values: list[Any], folder: Path) -> Path:
    """Merge the samples with a dataset of others, in which the first class has another number."""
    first = json_lines(values, folder)
    others = [value for value in values if value not in (None, "", "nan", "None", NAN, -1, -2)]
    (folder / "other").mkdir()
    (folder / "other" / "5.png").write_bytes(png(12))
    row = {"path": "5.png", "label": others[-1] if others else None}
    (folder / "other" / "t.jsonl").write_text(json.dumps(row))
    if any(isinstance(value, list) for value in values) or not others:
        raise CannotHoldError  # lists of classes in other orders are refused
    wt.merge([pack(folder / "other" / "t.jsonl", folder / "other" / "d"), first], folder / "merged")
    return folder / "merged"


def packed_again(values: list[Any], folder: Path) -> Path:
    return pack(merged(values, folder), folder / "again", kind="webdataset")


def unpacked(values: list[Any], folder: Path) -> Path:
    """Unpack the samples, write the files to shards with webdataset, and index them."""
    d = json_lines(values, folder)
    shards = open_shards(d)
    wt.unpack(d, folder / "files", layout="keys")
    names = list(shards.manifest.classes)
    with webdataset.TarWriter(str(folder / "again.tar"), encoder=False) as out:
        for path in sorted((folder / "files").glob("*.png")):
            parts = {one.name.partition(".")[2]: one.read_bytes() for one in path.parent.glob(f"{path.stem}.*")}
            out.write({"__key__": path.stem, **parts})
    if "labels.json" in shards.manifest.fields:
        raise CannotHoldError  # a field, which is not in an index
    (folder / "again").mkdir()
    (folder / "again.tar").rename(folder / "again" / "again.tar")
    wt.index_shards(str(folder / "again" / "again.tar"), classes=names or None)
    return folder / "again"


def with_classes(values: list[Any], folder: Path) -> Path:
    """Pack with a list of classes in another order."""
    names = sorted({one for value in values for one in (value if isinstance(value, list) else [value]) if one})
    if not all(isinstance(name, str) for name in names):
        raise CannotHoldError
    json_lines(values, folder)
    return pack(folder / "t.jsonl", folder / "classes", columns=LABEL, classes=names[::-1])


def splits(values: list[Any], folder: Path) -> Path:
    """Split the samples, and merge the splits."""
    json_lines(values, folder)
    if None in values:
        raise CannotHoldError  # a share of one sample
    shares = {"train": 0.5, "val": 0.5}
    wt.pack_splits(folder / "t.jsonl", folder / "splits", split=shares, columns=LABEL, workers=1)
    wt.merge([folder / "splits" / name for name in shares], folder / "both")
    return folder / "both"


def with_more_fields(values: list[Any], folder: Path) -> Path:
    """Add a field to the samples, and pack them again."""
    d = json_lines(values, folder)
    wt.add_fields(d, [{"__key__": f"{number:09d}", "txt": "text"} for number in range(len(values))], name="more")
    return pack(d, folder / "again", kind="webdataset")


def lmdb_database(values: list[Any], folder: Path) -> Path:
    with lmdb.open(str(folder / "a.lmdb"), map_size=1 << 20) as database, database.begin(write=True) as transaction:
        for number, value in enumerate(values):
            if value == 2**63:
                raise CannotHoldError
            transaction.put(b"%05d" % number, msgpack.packb({"image": png(number), "label": value}))
    return pack(folder / "a.lmdb", folder / "d", columns=LABEL)


def litdata(values: list[Any], folder: Path) -> Path:
    from litdata.streaming.writer import BinaryWriter

    same_type(values)
    if None in values or any(isinstance(value, list) for value in values):
        raise CannotHoldError  # it would be a pickle; a list has the same length in all items
    chunks = BinaryWriter(str(folder / "chunks"), chunk_size=2)
    for number, value in enumerate(values):
        chunks[number] = {"image": png(number), "label": value}
    chunks.done()
    chunks.merge()
    return pack(folder / "chunks", folder / "d", columns=LABEL)


def sidecars(values: list[Any], folder: Path) -> Path:
    """Write a ``.cls`` file beside each image."""
    (folder / "tree").mkdir()
    for number, value in enumerate(values):
        if isinstance(value, list):
            raise CannotHoldError
        (folder / "tree" / f"{number}.png").write_bytes(png(number))
        if value is not None:
            (folder / "tree" / f"{number}.cls").write_text(str(value))
    return pack(folder / "tree", folder / "d")


FILES: list[Callable[[list[Any], Path], Path]] = [
    csv, json_lines, parquet, arrow, stream, objects, dictionaries, hdf5, numpy, zarr_group, tensors, tfrecord,
    packed_cls, packed_json, indexed_cls, indexed_json, writer, lmdb_database, sidecars,
]  # fmt: skip
DATASETS = [resharded, appended, merged, packed_again, unpacked, with_classes, splits, with_more_fields]
FEW: list[tuple[list[Any], Any]] = [
    ([3, 1], [3, 1]),
    (["dog", None, "cat"], ["dog", None, "cat"]),
    (["008", "007"], ["008", "007"]),
    ([True, False], ["true", "false"]),
    ([["cat", "dog"], ["cat"]], [("cat", "dog"), ("cat",)]),
]


def found_in(folder: Path, count: int) -> list[Any]:
    """Return the class name, the number, or the labels of each sample; None for a sample without one, or left out."""
    shards = open_shards(folder)
    found: dict[int, Any] = {}
    several = shards.manifest.field_classes.get("labels.json")
    for number in range(len(shards.locations)):
        labels = shards.index(number).label.tolist()
        for label, sample in zip(labels, stored_samples(shards, number), strict=True):
            grey = int(Image.open(io.BytesIO(bytes(sample.fields["png"]))).convert("L").getpixel((0, 0)))
            if "labels.json" in sample.fields:
                one: Any = json.loads(bytes(sample.fields["labels.json"]))
                found[grey // 20] = tuple(several.names[part] if several else part for part in one)
            elif label != NO_LABEL:
                found[grey // 20] = shards.manifest.classes[label] if shards.manifest.classes else label
    return [found.get(number) for number in range(count)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(number))
    return folder


def wrong_in(door: Callable[..., Path], table: list[tuple[list[Any], Any]], images: Path, folder: Path) -> list[Any]:
    """Return the values whose result is not the expected one."""
    wrong, tried = [], 0
    for number, (values, expected) in enumerate(table):
        case = folder / f"{number}"
        case.mkdir()
        for path in images.iterdir():
            (case / path.name).symlink_to(path)
        try:
            result: Any = found_in(door(values, case), len(values))
        except CannotHoldError:
            continue
        except (LabelError, SampleError, ShardError, SourceError, OptionError) as error:
            result = REFUSED if expected == REFUSED else f"{type(error).__name__}: {error}"
        tried += 1
        if result != expected:
            wrong.append((values, expected, result))
    assert tried >= len(table) // 4
    return wrong


# All values through one file and one packed dataset; through the others, one value of each kind.
WHOLE = (json_lines, packed_json)
TABLES = [(one, TABLE if one in WHOLE else FEW) for one in FILES]
TABLES += [pytest.param(one, TABLE, marks=pytest.mark.torture) for one in FILES if one not in WHOLE]


def name_of(value: Any) -> str:
    return getattr(value, "__name__", "all" if value is TABLE else "few")


@pytest.mark.parametrize(
    ("door", "table"), TABLES, ids=lambda one: "all" if one is TABLE else getattr(one, "__name__", "few")
)
def test_a_label_means_the_same_in_every_source(
    door: Callable[..., Path], table: list[tuple[list[Any], Any]], images: Path, tmp_path: Path
) -> None:
    assert wrong_in(door, table, images, tmp_path) == []


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")  # of LitData
def test_a_label_means_the_same_in_chunks_of_litdata(images: Path, tmp_path: Path) -> None:
    assert wrong_in(litdata, FEW, images, tmp_path) == []


@pytest.mark.parametrize("door", DATASETS, ids=lambda door: door.__name__)
@pytest.mark.torture_except(*(door.__name__ for door in DATASETS if door is not merged))  # `packed_again` merges too
def test_a_label_keeps_its_meaning_in_every_tool(door: Callable[..., Path], images: Path, tmp_path: Path) -> None:
    assert wrong_in(door, FEW, images, tmp_path) == []


@pytest.mark.parametrize("form", ["pattern", "mixture"])
@pytest.mark.parametrize("values", [["dog", "cat"], ["cat", 3], [3, 1]])
def test_a_class_number_has_one_meaning_in_datasets_that_are_read_together(
    form: str, values: list[Any], images: Path, tmp_path: Path
) -> None:
    """Read two datasets of a sample each. Their numbers are equal only if they are in the source."""
    for name, number, value in zip("ab", (0, 1), values, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(png(number))
        (tmp_path / name / "t.jsonl").write_text(json.dumps({"path": "1.png", "label": value}))
        pack(tmp_path / name / "t.jsonl", tmp_path / name / "d", columns=LABEL)
    folders = [str(tmp_path / name / "d") for name in "ab"]
    src: Any = wt.Mixture(folders, [1, 1]) if form == "mixture" else str(tmp_path / "{a,b}" / "d" / "*.tar")

    def read() -> dict[int, Any]:
        loader = wt.make_loader(src, batch_size=1, num_workers=0)
        return {int(image.max()) // 20: int(label) for batch in loader for image, label in zip(*batch, strict=True)}

    if all(isinstance(value, int) for value in values):
        assert read() == dict(enumerate(values))
        return
    with pytest.raises((LabelError, OptionError, ShardError), match=r"class"):
        read()


@pytest.mark.parametrize("text", ["tensor({})", "[1 {}]", "{{'id': {}}}"])
def test_a_column_with_the_text_of_objects_is_refused_even_if_it_was_not_chosen(text: str, tmp_path: Path) -> None:
    frame_ = pd.DataFrame({"path": [f"{n}.png" for n in range(4)], "label": [text.format(n % 2) for n in range(4)]})
    frame_.to_csv(tmp_path / "t.csv", index=False)
    for n in range(4):
        (tmp_path / f"{n}.png").write_bytes(png(n))
    with pytest.raises(LabelError, match=r"label .* is .*--label-type name"):
        wt.pack(tmp_path / "t.csv", tmp_path / "d", dry_run=True)
    assert len(wt.pack(tmp_path / "t.csv", tmp_path / "d", label_type="name", dry_run=True).manifest.classes) == 2
