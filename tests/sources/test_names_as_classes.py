"""Names of files, folders and keys that could be the classes of records without labels; labels that are not names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import datasets
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from sources_conformance import Photo, photos_of
from test_file_sets import account_of, left_out
from tfrecords import example, frame

from wds_tools.sources.base import SourceOptions
from wds_tools.sources.class_file import read_class_names
from wds_tools.sources.detect import open_source


@pytest.fixture(scope="module")
def six() -> list[Photo]:
    return photos_of(6)


def write(path: Path, photos: Iterable[Photo]) -> None:
    """Write images without labels, in the format that the extension names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"image": [photo.data for photo in photos]}), path)
    else:
        path.write_bytes(b"".join(frame(example({"image": photo.data})) for photo in photos))


@pytest.mark.parametrize("extension", ["parquet", "tfrecord"])
@pytest.mark.parametrize(
    ("ant", "bee", "what"),
    [("ant/a", "bee/b", "are in the folders"), ("ant", "bee", "are named"), ("ant-0", "bee-0", "are named")],
)
def test_names_of_files_that_could_be_classes_are_noted(
    tmp_path: Path, six: list[Photo], extension: str, ant: str, bee: str, what: str
) -> None:
    write(tmp_path / "src" / f"{ant}.{extension}", six[:3])
    write(tmp_path / "src" / f"{bee}.{extension}", six[3:])
    remedy = "label=ant" if extension == "parquet" else "write a label into each record"
    [note] = account_of(tmp_path / "src").notes
    assert note.startswith(f"no label: the files {what} 'ant', 'bee'; if these are the classes, ")
    assert remedy in note


@pytest.mark.parametrize("names", [("part-0", "part-1"), ("00000", "00001"), ("c000-12ab", "c001-34cd")])
def test_names_of_parts_are_not_noted(tmp_path: Path, six: list[Photo], names: tuple[str, str]) -> None:
    write(tmp_path / "src" / f"{names[0]}.parquet", six[:3])
    write(tmp_path / "src" / f"{names[1]}.parquet", six[3:])
    for name in ("_metadata", "_common_metadata"):  # as Spark, Hive and Dask write them
        pq.write_metadata(pa.schema({"image": pa.binary()}), tmp_path / "src" / name)
    for name in ("_SUCCESS", "_SUCCESS.crc", f".{names[0]}.parquet.crc", "_committed_12"):
        (tmp_path / "src" / name).write_bytes(b"crc\0\0\0\0\x01")
    account = account_of(tmp_path / "src")
    assert (account.packed, account.notes) == (6, [])


def test_keys_that_could_be_classes_are_noted(tmp_path: Path, six: list[Photo]) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 24) as database, database.begin(write=True) as writer:
        for index, photo in enumerate(six):
            writer.put(f"{['ant', 'bee'][index % 2]}_{index:05d}".encode(), photo.data)
    [note] = account_of(tmp_path / "db").notes
    assert note.startswith("no labels; names begin with 'ant', 'bee'")


def test_the_column_in_the_name_of_the_folder_is_read(tmp_path: Path, six: list[Photo]) -> None:
    write(tmp_path / "label=ant" / "a.parquet", six)
    assert open_source(tmp_path / "label=ant").scan().classes == ("ant",)


def test_the_cache_of_datasets_is_left_out(tmp_path: Path, six: list[Photo]) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    columns = {"image": [{"bytes": p.data, "path": None} for p in six], "label": [0, 1] * 3}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "saved")
    saved = tmp_path / "saved" / "data-00000-of-00001.arrow"
    folder = tmp_path / "src"
    folder.mkdir()
    saved.rename(folder / "photos-train.arrow")
    dataset = datasets.Dataset.from_file(str(folder / "photos-train.arrow"))
    dataset.map(lambda row: {"label": 1 - row["label"]}, cache_file_name=str(folder / "cache-8d1f0c3a.arrow"))
    account = account_of(folder)
    assert account.packed == 6
    assert left_out(account) == {"cache-8d1f0c3a.arrow": "is a cached result of datasets, such as of map()"}
    assert account.notes == []


@pytest.mark.parametrize(("missing", "one"), [([-1], [2]), ([None], [2]), (["nan"], ["b"])])
def test_a_sample_whose_labels_are_all_missing_is_skipped(
    tmp_path: Path, six: list[Photo], missing: list[object], one: list[object]
) -> None:
    labels = [one, missing, one * 2, [], one, missing]
    table = {"image": [photo.data for photo in six], "labels": labels}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    listing = open_source(tmp_path / "a.parquet").scan()
    assert [skip.reason for skip in listing.skipped] == ["has no label"] * 2
    assert [entry.labels for entry in listing.inputs][2] == ()  # an empty list belongs to no class
    assert len(listing.inputs) == 4


class Items:
    """A dataset of torchvision's form, with the attributes that it is given."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index >= 4:
            raise IndexError
        return np.full((8, 8, 3), index, np.uint8), index % 2


@pytest.mark.parametrize(
    ("attributes", "classes"),
    [
        ({"class_to_idx": {"ant": 0, "formica": 0, "bee": 1}}, ("ant, formica", "bee")),
        ({"classes": [("ant", "formica"), "bee"], "class_to_idx": {"ant": 0, "formica": 0, "bee": 1}}, None),
        ({"classes": [b"ant", b"bee"]}, ("ant", "bee")),
    ],
)
def test_names_of_objects_may_have_synonyms_and_be_bytes(
    attributes: dict[str, object], classes: tuple[str, ...] | None
) -> None:
    assert open_source(Items(**attributes)).scan().classes == (classes or ("ant, formica", "bee"))


def test_class_names_of_objects_that_are_not_read_are_noted() -> None:
    listing = open_source(Items(classes=lambda: ["ant", "bee"])).scan()
    assert not listing.classes
    assert "the attribute 'classes' of the Items is a function" in " ".join(listing.account.notes)


@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_class_names_next_to_labels_that_are_numbers_are_noted_with_the_option(
    tmp_path: Path, six: list[Photo], kind: str
) -> None:
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    if kind == "parquet":
        table = pa.table({"image": [photo.data for photo in six], "label": [0, 1, 2] * 2})
        pq.write_table(table, file := folder / "0.parquet")
    else:
        with webdataset.TarWriter(str(file := folder / "0.tar")) as writer:
            for row, photo in enumerate(six):
                writer.write({"__key__": f"{row:03d}", "jpg": photo.data, "cls": row % 3})
    assert account_of(folder).notes == []
    for name, text in (
        ("classnames.txt", "ant\nbee\ncat\n"),
        ("labels.txt", "0: ant\n1: bee\n2: cat\n"),
        ("label_map.json", '{"ant": 0, "bee": 1, "cat": 2}'),
    ):
        for place, sources in ((folder, (folder, file)), (folder.parent, (folder, file))):
            (place / name).write_text(text)
            for source in sources:
                [note] = account_of(source).notes
                assert f"{name}' has a name for each number ('ant', 'bee', 'cat')" in note
                assert "pass them with --classes" in note
            listing = open_source(folder, options=SourceOptions(classes=read_class_names(place / name))).scan()
            assert (listing.classes, listing.account.notes) == (("ant", "bee", "cat"), [])
            (place / name).unlink()
    others = {"labels.txt": "ant\nbee\nant\n", "classes.txt": "1.jpg\n2.jpg\n", "class_weights.txt": "0.5\n2\n"}
    for name, text in others.items():
        (folder.parent / name).write_text(text)
    assert account_of(folder).notes == []
