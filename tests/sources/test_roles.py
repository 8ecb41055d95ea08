"""A column is the label because of its type and values, in every kind of source that has columns, arrays or features.

In each source a column is called ``label``. It has fractions, or a number of its own in each row, or there is another
column that could be the label as well. A label is never taken from them without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import msgpack
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
import zarr
from conformance_cases import write_records
from foreign_records import FOREIGN
from pictures import encode
from PIL import Image

from wds_tools.errors import SourceError
from wds_tools.sources.base import Listing, SourceOptions
from wds_tools.sources.detect import KINDS, open_source

COUNT = 120  # among fewer rows, each could have a class of its own
FRACTIONS = {"label": [number + 0.5 for number in range(COUNT)]}
UNIQUE = {"label": [1000 + number for number in range(COUNT)]}
TWO = {"label": [number % 3 for number in range(COUNT)], "category": [number % 2 for number in range(COUNT)]}

Columns = dict[str, list[Any]]


def png(number: int) -> bytes:
    return encode(Image.new("L", (4, 3), number), "PNG")


IMAGES = [png(number) for number in range(COUNT)]
PIXELS = np.zeros((COUNT, 8, 8, 3), np.uint8)


def csv(columns: Columns, folder: Path) -> Path:
    paths = [f"{number}.png" for number in range(COUNT)]
    for path, data in zip(paths, IMAGES, strict=True):
        (folder / path).write_bytes(data)
    pd.DataFrame({"path": paths, **columns}).to_csv(folder / "photos.csv", index=False)
    return folder / "photos.csv"


def parquet(columns: Columns, folder: Path) -> Path:
    pq.write_table(pa.table({"image": IMAGES, **columns}), folder / "photos.parquet")
    return folder / "photos.parquet"


def arrow(columns: Columns, folder: Path) -> Path:
    pa.feather.write_feather(pa.table({"image": IMAGES, **columns}), folder / "a.arrow", compression="uncompressed")
    return folder / "a.arrow"


def stream(columns: Columns, _: Path) -> Any:
    images = [{"bytes": data, "path": None} for data in IMAGES]
    found = datasets.Dataset.from_dict({"image": images, **columns})
    return found.cast_column("image", datasets.Image()).to_iterable_dataset()


def items(columns: Columns, _: Path) -> list[dict[str, Any]]:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{"image": data, **row} for data, row in zip(IMAGES, rows, strict=True)]


def few_items(columns: Columns, folder: Path) -> list[dict[str, Any]]:
    """Return items that are all read when they are listed."""
    return items(columns, folder)[:30]


def hdf5(columns: Columns, folder: Path) -> Path:
    with h5py.File(folder / "photos.h5", "w") as file:
        file["images"] = PIXELS
        for name, values in columns.items():
            file[name] = values
    return folder / "photos.h5"


def numpy(columns: Columns, folder: Path) -> Path:
    np.savez(folder / "photos.npz", images=PIXELS, **{name: np.array(values) for name, values in columns.items()})
    return folder / "photos.npz"


def tensors(columns: Columns, folder: Path) -> Path:
    content = {"images": torch.from_numpy(PIXELS), **{name: torch.tensor(one) for name, one in columns.items()}}
    torch.save(content, folder / "photos.pt")
    return folder / "photos.pt"


def zarr_group(columns: Columns, folder: Path) -> Path:
    group = zarr.open_group(folder / "photos.zarr", mode="w")
    group.create_array("images", data=PIXELS)
    for name, values in columns.items():
        group.create_array(name, data=np.array(values))
    return folder / "photos.zarr"


def tfrecord(columns: Columns, folder: Path) -> Path:
    rows = (
        {name: one.encode() if isinstance(one, str) else one for name, one in row.items()}
        for row in items(columns, folder)
    )
    return write_records(folder / "photos.tfrecord", list(rows))


def lmdb_database(columns: Columns, folder: Path) -> Path:
    with lmdb.open(str(folder / "a.lmdb"), map_size=1 << 22) as database, database.begin(write=True) as transaction:
        for number, row in enumerate(items(columns, folder)):
            transaction.put(b"%05d" % number, msgpack.packb(row))
    return folder / "a.lmdb"


def litdata(columns: Columns, folder: Path) -> Path:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder / "chunks"), chunk_size=50)
    for number, row in enumerate(items(columns, folder)):
        writer[number] = row
    writer.done()
    writer.merge()
    return folder / "chunks"


def mds(columns: Columns, _: Path) -> Path:
    """Return a dataset of six samples that MosaicML Streaming wrote."""
    names = {"fractions": FRACTIONS, "unique": UNIQUE, "two_labels": TWO}
    return FOREIGN / "mds" / next(name for name, one in names.items() if one is columns)


WRITERS: dict[str, Callable[[Columns, Path], Any]] = {
    "arrow": arrow,
    "hdf5": hdf5,
    "litdata": litdata,
    "lmdb": lmdb_database,
    "mds": mds,
    "numpy": numpy,
    "object": few_items,
    "parquet": parquet,
    "stream": stream,
    "table": csv,
    "tensors": tensors,
    "tfrecord": tfrecord,
    "zarr": zarr_group,
}
WITHOUT = {"folder", "tar", "zip", "webdataset", "dotted", "coco", "yolo", "voc", "masks"}
"""Kinds without columns: the label is the folder, ``cls``, or in objects."""

LITDATA = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
MARKED = [pytest.param(kind, marks=LITDATA if kind == "litdata" else ()) for kind in sorted(WRITERS)]


def test_every_kind_with_columns_is_tested() -> None:
    assert {*WRITERS} | WITHOUT == set(KINDS)


def scan(kind: str, columns: Columns, folder: Path) -> Listing:
    return open_source(WRITERS[kind](columns, folder), options=SourceOptions()).scan()


def check_no_label(kind: str, columns: Columns, folder: Path) -> None:
    """Check that a column called label is not the label, and that the account states what it is and why."""
    found = scan(kind, columns, folder)
    assert {entry.label for entry in found.inputs} == {None}
    (part,) = (part for part in found.account.parts if part.name == "label")
    assert part.role.startswith("entr")  # of json
    assert any("'label'" in note for note in found.account.notes)


@pytest.mark.parametrize("kind", MARKED)
def test_a_column_called_label_is_the_label_only_by_its_values(kind: str, tmp_path: Path) -> None:
    for name, columns in (("fractions", FRACTIONS), ("unique", UNIQUE)):
        (tmp_path / name).mkdir()
        check_no_label(kind, columns, tmp_path / name)
    (tmp_path / "two").mkdir()
    with pytest.raises(SourceError, match=r"could be the label.*'label\b.*'category\b"):
        scan(kind, TWO, tmp_path / "two")


BREEDS = [["owl", "cat", "fig"][number % 3] for number in range(COUNT)]
NUMBERS = [number % 3 for number in range(COUNT)]
WITH_TEXTS = [one for one in MARKED if getattr(one, "values", ["mds"])[0] not in ("mds", "tensors", "zarr")]


@pytest.mark.parametrize("kind", WITH_TEXTS)
def test_texts_that_match_the_numbers_of_the_label_are_its_class_names(kind: str, tmp_path: Path) -> None:
    for name in ("BreedName", "bird"):
        (tmp_path / name).mkdir()
        found = scan(kind, {"label": NUMBERS, name: BREEDS}, tmp_path / name)
        assert [entry.label for entry in found.inputs] == NUMBERS[: len(found.inputs)]
        [note] = (note for note in found.account.notes if repr(name) in note)
        if name == "bird":
            assert found.classes == ()
            assert "has one text for each number of" in note
            assert "--label bird" in note
            continue
        assert found.classes == ("owl", "cat", "fig")
        roles = {part.name: part.role for part in found.account.parts}
        assert (roles["label"], roles["BreedName"]) == ("label", "class names")
        assert "'BreedName', whose values match the numbers in" in note


HOT = {name: [int(breed == name) for breed in BREEDS] for name in ("owl", "cat", "fig")}


@pytest.mark.parametrize("kind", [one for one in MARKED if getattr(one, "values", ["mds"])[0] != "mds"])
def test_columns_of_0_and_1_for_each_class_are_the_label(kind: str, tmp_path: Path) -> None:
    dtype = bool if kind in ("arrow", "lmdb", "numpy", "object", "table") else int
    columns = {name: [dtype(one) for one in values] for name, values in HOT.items()}
    found = scan(kind, {**columns, "is_train": [dtype(row % 2) for row in range(COUNT)]}, tmp_path)
    assert [found.classes[entry.label or 0] for entry in found.inputs] == BREEDS[: len(found.inputs)]
    assert {part.name: part.role for part in found.account.parts if part.name in HOT} == dict.fromkeys(HOT, "label")
    is_ordered = kind not in ("hdf5", "tfrecord", "zarr")
    assert found.classes == tuple(HOT if is_ordered else sorted(HOT))


@pytest.mark.parametrize("kind", ["arrow", "lmdb", "object", "table"])
def test_columns_of_0_and_1_are_not_the_label_if_a_row_has_none_or_another_column_is(kind: str, tmp_path: Path) -> None:
    others = {"owl": HOT["owl"], "cat": HOT["cat"]}
    for number, columns in enumerate((others, {**HOT, "label": NUMBERS})):
        (tmp_path / str(number)).mkdir()
        found = scan(kind, columns, tmp_path / str(number))
        roles = {part.name: part.role for part in found.account.parts}
        assert roles["owl"].startswith("entr")
        assert [entry.label for entry in found.inputs][:3] == ([0, 1, 2] if "label" in columns else [None] * 3)


@pytest.mark.parametrize("kind", ["arrow", "parquet", "lmdb", "table"])
def test_columns_of_0_and_1_next_to_names_are_an_error(kind: str, tmp_path: Path) -> None:
    two = {"left": HOT["owl"], "right": [1 - one for one in HOT["owl"]]}
    three = {f"fold_{number}": values for number, values in enumerate(HOT.values())}
    for columns, first in ((two, "left"), (three, "fold_0")):
        (tmp_path / first).mkdir()
        remedy = f"--label kind .* or pass --classes .classes=. with {str([*columns])[1:-1]} if these"
        with pytest.raises(SourceError, match=rf"could be the label: 'kind' \(owl.*'{first}' .*{remedy}"):
            scan(kind, {**columns, "kind": BREEDS}, tmp_path / first)
    (tmp_path / "others").mkdir()
    others = {"patient": [f"p{row}" for row in range(COUNT)], "subset": ["train", "val", "test"] * (COUNT // 3)}
    assert scan(kind, {**HOT, **others}, tmp_path / "others").classes == tuple(HOT)


@pytest.mark.parametrize("kind", ["lmdb", "parquet", "table"])
def test_a_label_that_the_user_named_has_the_class_names_that_match_it(kind: str, tmp_path: Path) -> None:
    src = WRITERS[kind]({"code": NUMBERS, "class_name": BREEDS}, tmp_path)
    found = open_source(src, options=SourceOptions(columns={"label": "code"})).scan()
    assert found.classes == ("owl", "cat", "fig")
    assert [entry.label for entry in found.inputs] == NUMBERS


@pytest.mark.parametrize("kind", ["hdf5", "lmdb", "parquet", "table"])
def test_texts_that_do_not_match_the_numbers_of_the_label_are_entries(kind: str, tmp_path: Path) -> None:
    splits = ["train", "val", "test"] * (COUNT // 3)
    found = scan(kind, {"label": NUMBERS, "BreedName": [*BREEDS[:-1], "owl"], "split_name": splits}, tmp_path)
    assert found.classes == ()
    roles = {part.name: part.role for part in found.account.parts}
    assert roles["BreedName"].startswith("entr")
    assert roles["split_name"].startswith("entr")


@pytest.mark.parametrize("kind", [one for one in MARKED if getattr(one, "values", ["mds"])[0] != "mds"])
def test_numbers_of_splits_are_named_in_a_note(kind: str, tmp_path: Path) -> None:
    names = ("is_train", "fold", "is_valid", "is_training_img")
    splits = {name: [number % 2 for number in range(COUNT)] for name in names}
    found = scan(kind, {"label": NUMBERS, **splits}, tmp_path)
    for name in names:
        [note] = (note for note in found.account.notes if repr(name) in note)
        assert "names splits, '0', '1'" in note


@pytest.mark.parametrize("kind", ["hdf5", "lmdb", "parquet", "table"])
def test_words_of_splits_are_named_in_a_note(kind: str, tmp_path: Path) -> None:
    """As in FER-2013."""
    usages = ["Training", "PublicTest", "PrivateTest"] * (COUNT // 3)
    found = scan(kind, {"label": NUMBERS, "Usage": usages, "Trainer": ["Ann", "Bo", "Cy"] * (COUNT // 3)}, tmp_path)
    [note] = (note for note in found.account.notes if "names splits" in note)
    assert "sage' names splits, 'PrivateTest', 'PublicTest', 'Training'" in note


@pytest.mark.parametrize("place", ["/", "labels"])
def test_class_names_are_read_from_an_attribute_of_the_file_or_of_the_labels(place: str, tmp_path: Path) -> None:
    path = hdf5({"labels": NUMBERS}, tmp_path)
    with h5py.File(path, "a") as file:
        file[place].attrs["classes"] = ["owl", "cat", "fig"]
    assert open_source(path).scan().classes == ("owl", "cat", "fig")


@pytest.mark.parametrize("ordered", [True, False])
def test_the_order_of_categories_of_pandas_is_noted(ordered: bool, tmp_path: Path) -> None:
    sizes = pd.Categorical(["small", "large"] * (COUNT // 2), categories=["small", "large"], ordered=ordered)
    pd.DataFrame({"image": IMAGES, "label": sizes}).to_parquet(tmp_path / "photos.parquet")
    found = open_source(tmp_path / "photos.parquet").scan()
    assert found.classes == ("large", "small")
    assert [note for note in found.account.notes if "sorted names: pass --classes" in note] == found.account.notes
    assert len(found.account.notes) == ordered
