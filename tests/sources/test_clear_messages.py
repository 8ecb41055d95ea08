"""Messages that name what is wrong with a source, and sources that were not recognised."""

from __future__ import annotations

import base64
import enum
import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import lmdb
import msgpack
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from sources_conformance import Photo, photos_of
from tfrecords import example, frame

from wds_tools import index_shards
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.format.image_header import encode_png
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.detect import open_source


@pytest.fixture(scope="module")
def six() -> list[Photo]:
    return photos_of(6)


def test_base64_is_named(tmp_path: Path, six: list[Photo]) -> None:
    pq.write_table(pa.table({"image": [base64.b64encode(photo.data) for photo in six]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="column 'image' is base64 of images: decode it to bytes"):
        open_source(tmp_path / "a.parquet").scan()


def test_decimal_commas_are_not_taken_for_several_labels(tmp_path: Path, six: list[Photo]) -> None:
    for photo in six:
        (tmp_path / f"{photo.name}.jpg").write_bytes(photo.data)
    rows = {"path": [f"{photo.name}.jpg" for photo in six], "label": [float(index % 2) for index in range(6)]}
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", sep=";", decimal=",", index=False)
    with pytest.raises(LabelError, match="'0,0', '1,0', which are whole numbers with a decimal comma"):
        open_source(tmp_path / "t.csv").scan()


def test_a_separator_without_a_label_is_noted(tmp_path: Path, six: list[Photo]) -> None:
    pq.write_table(pa.table({"image": [photo.data for photo in six]}), tmp_path / "a.parquet")
    account = open_source(tmp_path / "a.parquet", options=SourceOptions(label_separator="|")).scan().account
    assert account.notes == ["--label-separator (label_separator=) has no effect, because there is no label"]


def test_a_dictionary_is_an_error_that_names_its_keys() -> None:
    with pytest.raises(OptionError, match=r"src is a dict with 'train', 'test'; pack one of them, .* a pair such as"):
        open_source({"train": [1], "test": [2]})


def test_a_pair_of_lists_is_a_pair_of_arrays() -> None:
    images = [np.full((8, 8, 3), index, np.uint8) for index in range(4)]
    inputs = open_source((images, [3, 2, 1, 0])).scan().inputs
    assert [entry.label for entry in inputs] == [3, 2, 1, 0]


def test_an_lmdb_file_without_an_extension_is_recognised(tmp_path: Path, six: list[Photo]) -> None:
    with (
        lmdb.open(str(tmp_path / "db"), map_size=1 << 24, subdir=False) as database,
        database.begin(write=True) as row,
    ):
        for index, photo in enumerate(six):
            row.put(b"%05d" % index, msgpack.packb({"image": photo.data, "label": index}))
    source = open_source(tmp_path / "db")
    assert source.kind == "lmdb"
    assert [entry.label for entry in source.scan().inputs] == [*range(6)]


def test_a_truncated_file_of_labels_is_named(tmp_path: Path, six: list[Photo]) -> None:
    for photo in six:
        (tmp_path / f"{photo.name}.jpg").write_bytes(photo.data)
    (tmp_path / "labels.json").write_text(json.dumps({f"{photo.name}.jpg": photo.label for photo in six})[:-4])
    with pytest.raises(SourceError, match=r"labels.json names images and is not valid JSON.*truncated"):
        open_source(tmp_path).scan()


def test_groups_of_encoded_images_of_one_length_are_read(tmp_path: Path) -> None:
    pixels = [np.full((8, 8, 3), index, np.uint8) for index in range(4)]
    encoded = [np.frombuffer(encode_png(image), np.uint8) for image in pixels]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for index, data in enumerate(encoded):
            file[f"{['ant', 'bee'][index % 2]}/{index}"] = np.pad(data, (0, 200 - len(data)))
    listing = open_source(tmp_path / "a.h5").scan()
    assert listing.classes == ("ant", "bee")
    assert [entry.label for entry in listing.inputs] == [0, 0, 1, 1]


def test_class_names_that_repeat_are_left_out_with_the_reason(tmp_path: Path) -> None:
    images = np.zeros((8, 8, 8, 3), np.uint8) + np.arange(8, dtype=np.uint8)[:, None, None, None]
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(8) % 3, classes=np.array(["a", "b", "b"]))
    parts = {part.name: part.reason for part in open_source(tmp_path / "a.npz").scan().account.parts}
    assert parts["classes"] == "has a name several times, and so is not a list of class names"


class Number(enum.IntEnum):
    ANT = 0
    BEE = 1


class Name(enum.Enum):
    ANT = "ant"
    BEE = "bee"


@pytest.mark.parametrize(("labels", "classes"), [(Number, ()), (Name, ("ant", "bee"))])
@pytest.mark.parametrize("form", ["items", "dictionaries", "pair"])
def test_members_of_an_enum_are_their_values(labels: type[enum.Enum], classes: tuple[str, ...], form: str) -> None:
    images = np.stack([np.full((8, 8, 3), index, np.uint8) for index in range(4)])
    values = [*labels] * 2
    src: Any = (images, values)
    if form != "pair":
        src = [(image, value) for image, value in zip(images, values, strict=True)]
    if form == "dictionaries":
        src = [{"image": image, "label": value} for image, value in src]
    listing = open_source(src).scan()
    assert [entry.label for entry in listing.inputs] == [0, 1, 0, 1]
    assert listing.classes == classes


ANIMALS = ["ant", "bee"] * 3


def as_tfrecord(path: Path, photos: list[Photo]) -> None:
    rows = (example({"image": p.data, "animal": name.encode()}) for p, name in zip(photos, ANIMALS, strict=True))
    path.write_bytes(b"".join(map(frame, rows)))


def as_lmdb(path: Path, photos: list[Photo]) -> None:
    with lmdb.open(str(path), map_size=1 << 24) as database, database.begin(write=True) as row:
        for index, (photo, name) in enumerate(zip(photos, ANIMALS, strict=True)):
            row.put(b"%05d" % index, msgpack.packb({"image": photo.data, "animal": name}))


def as_tar(path: Path, photos: list[Photo]) -> None:
    with tarfile.open(path, "w") as shard:
        for photo, name in zip(photos, ANIMALS, strict=True):
            for ending, data in (("jpg", photo.data), ("json", json.dumps({"animal": name}).encode())):
                member = tarfile.TarInfo(f"{photo.name}.{ending}")
                member.size = len(data)
                shard.addfile(member, BytesIO(data))


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (as_tfrecord, "the feature 'animal' (ant, bee)"),
        (as_lmdb, "the entry 'animal' (ant, bee)"),
        (as_tar, "the field 'json:animal' (ant, bee)"),
    ],
)
def test_what_could_be_the_label_is_noted_in_all_formats(
    tmp_path: Path, six: list[Photo], write: Any, name: str
) -> None:
    path = tmp_path / ("a.tfrecord" if write is as_tfrecord else "a.tar" if write is as_tar else "db")
    write(path, six)
    [note] = open_source(path).scan().account.notes
    assert note == f"no label: {name} could be it; pass --label NAME if it is"


def test_numbers_that_could_be_the_label_are_noted(tmp_path: Path, six: list[Photo]) -> None:
    """Grades from 0 to 6 repeat only in many rows. Ages and scores are not classes."""
    cases: dict[str, list[Any]] = {
        "0, 1, 2": [n % 7 for n in range(21)],
        "0.0, 1.0, 2.0": [float(n % 3) for n in range(6)],
        "True, False": [n % 2 == 0 for n in range(6)],
        "": [18 + n for n in range(21)],
        "none": [n / 7 for n in range(21)],
        "has only 0 and 1 in lists of 3 values": [[int(n % 3 == row) for row in range(3)] for n in range(6)],
        "has names in lists (ant, bee)": [["ant", "bee"][: n % 2 + 1] for n in range(6)],
        "boxes": [[0, 1, n, 9] for n in range(6)],
        "words": [["a", "cat", "and", "a", "dog"] for n in range(6)],
    }
    for shown, values in cases.items():
        rows = [{"image": six[n % 6].data, "grade": value} for n, value in enumerate(values)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        for src, part in ((tmp_path / "a.parquet", "column"), (rows, "entry")):
            note = f"no label: the {part} 'grade' ({shown}) could be it; pass --label NAME if it is"
            if shown.startswith("has "):
                note = f"no label: the {part} 'grade' {shown}: pass --label grade if they are classes"
            assert open_source(src).scan().account.notes == ([note] if " " in shown else [])


def test_fields_of_one_word_in_shards_are_noted_and_json_texts_are_names(tmp_path: Path, six: list[Photo]) -> None:
    fields: dict[str, Any] = {"id": [f"{n + 7}" for n in range(6)], "index": [f"{n % 3}\n" for n in range(6)]}
    fields |= {"txt": [f"an {name}" for name in ANIMALS]}  # captions
    expected: dict[str, tuple[list[str], list[Any]]] = {
        "index": (["no label: the field 'index' (0, 1, 2) could be it; pass --label NAME if it is"], []),
        "synset": (["no label: the field 'synset' (ant, bee) could be it; pass --label NAME if it is"], []),
        "cls": ([], [0, 1] * 3),
    }
    for name, (notes, labels) in expected.items():
        fields |= {"synset": ANIMALS} if name == "synset" else {}
        fields |= {"cls": ['"ant"\n', "bee\n"] * 3} if name == "cls" else {}  # as json.dumps and echo write them
        with webdataset.TarWriter(str(tmp_path / f"{name}.tar")) as writer:
            for row, photo in enumerate(six):
                values = {field: values[row].encode() for field, values in fields.items()}
                writer.write({"__key__": photo.name, "jpg": photo.data, **values})
        listing = open_source(tmp_path / f"{name}.tar").scan()
        assert listing.account.notes == notes
        assert [entry.label for entry in listing.inputs if entry.label is not None] == labels
        assert listing.classes == (("ant", "bee") if labels else ())
    assert index_shards(str(tmp_path / "cls.tar")).classes == ("ant", "bee")


def test_a_text_that_means_a_missing_value_may_be_a_name(tmp_path: Path, six: list[Photo]) -> None:
    columns = {"image": [photo.data for photo in six], "country": ["NA", "DE", "NA", None, "DE", "NA"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    [note] = open_source(tmp_path / "a.parquet").scan().account.notes
    assert "'country' (NA, DE) could be it" in note


def test_entries_of_objects_that_may_be_labels_are_noted(tmp_path: Path, six: list[Photo]) -> None:
    rows = [{"image": photo.data, "meta": {"label": n % 3, "id": n, "sizes": [n]}} for n, photo in enumerate(six)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for src, part in ((tmp_path / "a.parquet", "column"), (rows, "entry")):
        [note] = open_source(src).scan().account.notes
        assert note == f"no label: 'meta.label' could be it: write it as a separate {part}"
    (tmp_path / "a.parquet").unlink()
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for row, photo in zip(rows, six, strict=True):
            writer.write({"__key__": photo.name, "image": photo.data, "json": {"meta": row["meta"]}, "pyd": 1})
    with pytest.raises(SourceError, match="--column image=image if it is the image"):
        open_source(tmp_path / "a.tar").scan()
    for columns in ({"image": "image"}, {"image": "image", "label": "json:meta.label"}):
        listing = open_source(tmp_path / "a.tar", options=SourceOptions(columns=columns)).scan()
        assert [entry.label for entry in listing.inputs] == ([0, 1, 2] * 2 if "label" in columns else [None] * 6)
        note = "no label: the field 'json:meta.label' (0, 1, 2) could be it; pass --label NAME if it is"
        assert listing.account.notes == ([] if "label" in columns else [note])


def test_pickles_that_may_have_the_label_are_noted(tmp_path: Path, six: list[Photo]) -> None:
    for number, fields in enumerate(({"pyd": 1}, {"pyd": 1, "cls": 1}, {"clip.npy": np.ones(3)})):
        with webdataset.TarWriter(str(tmp_path / f"{number}.tar")) as writer:
            for photo in six:
                writer.write({"__key__": photo.name, "jpg": photo.data, **fields})
        note = "no label: fields that are not read may have it ('pyd'): write it as a field cls"
        assert open_source(tmp_path / f"{number}.tar").scan().account.notes == [note] * (number == 0)
