"""Datasets of before the account of sources and before labels had one type: all tools still read and change them.

`tests/fixtures/README.md` has the calls that wrote them: ``packed`` from a folder, ``table`` from a table of numbers,
``appended`` with more photographs, ``merged`` with a dataset of other classes, and two ``splits``. Photographs are
noise, so their pixels identify them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from folders import contents
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError

OLD = Path(__file__).parents[1] / "fixtures" / "old_datasets"
CONTENT = {
    "packed": ["photos"],
    "table": ["photos"],
    "appended": ["photos", "more"],
    "merged": ["photos", "others"],
}
NUMBERS = {"cat": 7, "dog": 3}  # in photos.csv
KEPT = {"images": "keep", "workers": 1}

Labelled = dict[bytes, str | int]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "old", copy_function=shutil.copyfile)  # with new times of modification


def pixels(path: Path) -> bytes:
    with Image.open(path) as image:
        return np.asarray(image).tobytes()


def expected(dataset: str) -> Labelled:
    """Return the class of each photograph of a dataset, from the folders of photographs."""
    paths = [path for folder in CONTENT[dataset] for path in (OLD / folder).glob("*/*.png")]
    classes: Labelled = {pixels(path): path.parent.name for path in paths}
    return {key: NUMBERS[str(name)] for key, name in classes.items()} if dataset == "table" else classes


def loaded(folder: Path) -> Labelled:
    """Return the class of each photograph, as a loader yields it."""
    loader = wt.make_loader(folder, batch_size=1, num_workers=0)
    names = loader.classes
    found = {}
    for images, labels in loader:
        (image,), (label,) = images, labels.tolist()
        found[image.permute(1, 2, 0).numpy().tobytes()] = names[label] if names else label
    return found


def united(parts: Iterable[Labelled]) -> Labelled:
    return {key: name for part in parts for key, name in part.items()}


@pytest.mark.parametrize("dataset", CONTENT)
def test_an_old_dataset_is_verified_and_has_the_labels_that_it_was_packed_with(dataset: str, old: Path) -> None:
    assert not wt.verify(old / dataset).damages
    assert loaded(old / dataset) == expected(dataset)


def test_the_same_calls_find_that_old_datasets_are_complete_and_change_nothing(old: Path) -> None:
    before = contents(old)
    reports = [
        wt.pack(old / "photos", old / "packed", **KEPT),
        wt.pack(old / "photos.csv", old / "table", **KEPT),
        *wt.pack_splits(old / "photos", old / "splits", split={"train": 0.5, "val": 0.5}, **KEPT).values(),
    ]
    assert [report.kept for report in reports] == [1, 1, 1, 1]  # shards that were there already
    assert wt.append(old / "more", old / "appended", **KEPT).packed == 0
    assert contents(old) == before


@pytest.mark.parametrize("dataset", ["packed", "appended", "merged"])
def test_photographs_are_appended_to_an_old_dataset_by_the_names_of_their_classes(dataset: str, old: Path) -> None:
    src, dst = old / ("more" if dataset == "merged" else "others"), old / dataset
    if dataset == "merged":
        with pytest.raises(DestinationError, match="or reshard it first"):
            wt.append(src, dst, **KEPT)
        wt.reshard(dst, old / "again", images="keep", workers=1)
        dst = old / "again"
    wt.append(src, dst, **KEPT)
    assert not wt.verify(dst).damages
    other = {pixels(path): path.parent.name for path in src.glob("*/*.png")}
    assert loaded(dst) == {**expected(dataset), **other}


def test_old_datasets_are_merged_with_others_by_the_names_of_their_classes(old: Path) -> None:
    wt.pack(old / "more", old / "new", **KEPT)
    wt.merge([old / "new", old / "merged"], old / "all")
    assert not wt.verify(old / "all").damages
    assert loaded(old / "all") == united([expected("merged"), expected("appended")])


@pytest.mark.parametrize("dataset", CONTENT)
def test_an_old_dataset_is_written_again_with_the_same_labels(dataset: str, old: Path) -> None:
    wt.reshard(old / dataset, old / "again", workers=1)
    assert not wt.verify(old / "again").damages
    assert loaded(old / "again") == expected(dataset)


@pytest.mark.parametrize("dataset", ["packed", "appended", "merged"])
def test_an_old_dataset_is_unpacked_into_folders_of_its_classes(dataset: str, old: Path) -> None:
    wt.unpack(old / dataset, old / "files")
    assert {pixels(path): path.parent.name for path in (old / "files").glob("*/*.png")} == expected(dataset)


def test_an_old_dataset_is_a_source_without_losing_labels(old: Path) -> None:
    report = wt.pack(old / "merged", old / "again", **KEPT)
    assert loaded(old / "again") == expected("merged")
    assert (report.account.given, report.account.packed) == (8, 8)


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_splits_of_an_old_dataset_have_all_photographs_between_them(split: str, old: Path) -> None:
    parts = {name: loaded(old / "splits" / name) for name in ("train", "val")}
    assert not wt.verify(old / "splits" / split).damages
    assert united(parts.values()) == expected("packed")
    assert len(parts[split]) == 2
