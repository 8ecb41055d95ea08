"""Splits: every input is in one of them, every class is divided in the same shares, and the seed decides the draw."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
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
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sources_conformance import contents, photos_of, stored

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.packing.splits import draw_splits, parse_shares
from wds_tools.sources.base import Listing, Skip
from wds_tools.sources.inputs import Input


def listing_of(labels: list[int | None]) -> Listing:
    inputs = [Input(f"{row:05d}.jpg", 10, label) for row, label in enumerate(labels)]
    return Listing(inputs, [Skip("x", "is empty")], ("a", "b"))


@settings(deadline=None)
@given(st.lists(st.integers(0, 4) | st.none(), min_size=40, max_size=300), st.integers(0, 9))
def test_every_input_is_in_one_split_and_classes_are_divided_by_the_shares(labels: list[int | None], seed: int) -> None:
    listing = listing_of(labels)
    parts = draw_splits(listing, {"train": Fraction(8, 10), "val": Fraction(2, 10)}, seed)
    together = [entry for part in parts.values() for entry in part.inputs]
    assert sorted(together, key=lambda entry: entry.path) == listing.inputs
    assert abs(len(parts["val"].inputs) - 0.2 * len(labels)) <= 2
    whole, val = Counter(labels), Counter(entry.label for entry in parts["val"].inputs)
    assert all(abs(val[label] - 0.2 * whole[label]) <= 2 for label in whole)
    assert parts == draw_splits(listing, {"train": Fraction(8, 10), "val": Fraction(2, 10)}, seed)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=40, max_size=300), st.integers(0, 9))
def test_all_inputs_of_a_cluster_are_in_one_split(rows: list[tuple[int, int]], seed: int) -> None:
    listing = listing_of([label for label, _ in rows])
    cluster = np.array([number for _, number in rows])
    try:
        parts = draw_splits(listing, {"train": Fraction(7, 10), "val": Fraction(3, 10)}, seed, cluster)
    except SourceError:  # too few clusters
        assert len(set(cluster.tolist())) < 10
        return
    together = [entry for part in parts.values() for entry in part.inputs]
    assert sorted(together, key=lambda entry: entry.path) == listing.inputs
    numbers = [{int(cluster[int(entry.path[:5])]) for entry in part.inputs} for part in parts.values()]
    assert not numbers[0] & numbers[1]
    largest = max(np.bincount(cluster))
    assert abs(len(parts["val"].inputs) - 0.3 * len(rows)) <= 2 * largest


def test_clusters_of_one_do_not_change_the_draw() -> None:
    listing = listing_of([row % 3 for row in range(100)])
    shares = {"train": Fraction(1, 2), "val": Fraction(1, 2)}
    assert draw_splits(listing, shares, 3, np.arange(100)) == draw_splits(listing, shares, 3)


def test_similar_images_are_kept_together(photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "images").mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[::40]):
        image = Image.open(path).convert("RGB")
        for copy in range(4):
            image.save(tmp_path / "images" / f"{number}-{copy}.jpg", quality=90 - 10 * copy)
    (tmp_path / "images" / "broken.jpg").write_bytes(b"no image")
    caplog.set_level("INFO", logger="wds_tools")
    split = {"train": 0.5, "val": 0.5}
    with pytest.raises(OptionError, match=r"no record has this column, .*: allowed are 'hash'.* have: nothing"):
        wt.pack_splits(tmp_path / "images", tmp_path / "x", split=split, keep_together="patient")
    with pytest.raises(OptionError, match="requires shares"):
        wt.pack_splits(tmp_path / "images", tmp_path / "x", split="folders", keep_together="hash")
    alone = wt.pack_splits(tmp_path / "images", tmp_path / "alone", split=split, workers=1)
    kept = wt.pack_splits(tmp_path / "images", tmp_path / "kept", split=split, keep_together="hash", workers=1)
    assert "similar images: each cluster is in one split" in caplog.text

    def pictures(dataset: Path) -> set[str]:
        return {Path(sample["path"]).name.partition("-")[0] for sample in stored_json(dataset)}

    assert pictures(alone["train"].dst) & pictures(alone["val"].dst)
    assert not pictures(kept["train"].dst) & pictures(kept["val"].dst)
    assert any("similar images" in note for note in kept["train"].manifest.account.notes)


def test_records_with_the_same_value_of_a_column_are_kept_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ["image,label,patient"]
    for number in range(40):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number % 2},{'' if number == 7 else f'p{number // 4}'}")
    (tmp_path / "scans.csv").write_text("\n".join(rows))
    caplog.set_level("INFO", logger="wds_tools")
    options: dict[str, Any] = {"split": {"train": 0.5, "val": 0.5}, "workers": 1, "progress": False}
    with pytest.raises(OptionError, match="what the records have: 'patient'"):
        wt.pack_splits(tmp_path / "scans.csv", tmp_path / "x", keep_together="study", **options)
    packed = wt.pack_splits(tmp_path / "scans.csv", tmp_path / "kept", keep_together="patient", **options)
    note = (
        "39 images in 10 clusters with the same 'patient' (1 image without a value, each alone): each cluster is in "
        "one split"
    )
    assert note in caplog.text
    assert note in packed["train"].manifest.account.notes
    found = {name: [sample.get("patient") for sample in stored_json(report.dst)] for name, report in packed.items()}
    assert sum(map(len, found.values())) == 40
    assert set(found["train"]) & set(found["val"]) <= {None, ""}
    assert len(set(found["train"])) > 2
    again = wt.pack_splits(tmp_path / "kept" / "val", tmp_path / "again", keep_together="patient", **options)
    assert {sample["patient"] for sample in stored_json(again["train"].dst) if sample.get("patient")}.isdisjoint(
        sample["patient"] for sample in stored_json(again["val"].dst) if sample.get("patient")
    )


def test_numbers_and_texts_of_a_column_are_the_same_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = [[7, "7", 7.0, " 7 "], [8, "8"], ["P1", "P1 "], ["08"], [0.5, "0.5"], [None, "", "nan"]]
    rows = [(value, number) for number, same in enumerate(values) for value in same * 6]
    for number in range(len(rows)):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [json.dumps({"image": f"{i}.png", "label": 0, "patient": value}) for i, (value, _) in enumerate(rows)]
    (tmp_path / "scans.jsonl").write_text("\n".join(lines))
    caplog.set_level("INFO", logger="wds_tools")
    packed = wt.pack_splits(
        tmp_path / "scans.jsonl", tmp_path / "kept", split="train=0.6,val=0.4", keep_together="patient", workers=1
    )
    assert "66 images in 5 clusters with the same 'patient' (18 images without a value, each alone)" in caplog.text
    groups = [
        {rows[int(sample["path"].partition(".")[0])][1] for sample in stored_json(report.dst)}
        for report in packed.values()
    ]
    assert groups[0] & groups[1] == {5}


def test_shares_that_clusters_do_not_allow_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    listing = listing_of([0] * 100)
    shares = {"train": Fraction(8, 10), "val": Fraction(2, 10)}
    parts = draw_splits(listing, shares, 0, np.repeat(np.arange(11), [50, *[5] * 10]))
    assert len(parts["val"].inputs) == 20
    assert not caplog.text
    draw_splits(listing, shares, 0, np.repeat([0, 1], [60, 40]))
    assert "train 60% (requested 80%), val 40% (requested 20%)" in caplog.text


def stored_json(dataset: Path) -> list[dict[str, Any]]:
    return [
        json.loads(sample["json"])
        for sample in webdataset.WebDataset(str(next(dataset.glob("*.tar"))), shardshuffle=False)
    ]


def test_another_seed_draws_another_split() -> None:
    listing = listing_of([row % 3 for row in range(300)])
    shares = {"train": Fraction(1, 2), "val": Fraction(1, 2)}
    one, two = (set(draw_splits(listing, shares, seed)["val"].inputs) for seed in (0, 1))
    assert 40 < len(one & two) < 110


def test_skipped_inputs_are_reported_once() -> None:
    parts = draw_splits(listing_of([0] * 10), {"a": Fraction(1, 2), "b": Fraction(1, 2)}, 0)
    assert [len(part.skipped) for part in parts.values()] == [1, 0]


@pytest.mark.parametrize("split", ["train=0.9,val=0.2", "train", "train=1,val=0", "train=x", "../x=1", "", {"a": 0.5}])
def test_invalid_shares_are_refused(split: str) -> None:
    with pytest.raises(OptionError, match="shares that add up to 1"):
        parse_shares(split)


def test_shares_are_added_up_exactly() -> None:
    assert sum(parse_shares({"train": 0.7, "val": 0.2, "test": 0.1}).values()) == 1


def test_a_split_that_would_be_empty_is_an_error() -> None:
    with pytest.raises(SourceError, match="split 'val' gets none of 2 records"):
        draw_splits(listing_of([0, 0]), {"train": Fraction(999, 1000), "val": Fraction(1, 1000)}, 0)


def test_each_split_is_a_dataset_of_its_own(few_photos: Path, tmp_path: Path) -> None:
    reports = wt.pack_splits(few_photos, tmp_path / "dst", split={"train": 0.75, "val": 0.25}, workers=1, images="keep")
    assert {name: report.dst for name, report in reports.items()} == {
        "train": tmp_path / "dst" / "train",
        "val": tmp_path / "dst" / "val",
    }
    paths = {name: {json.loads(sample["json"])["path"] for sample in stored(r.dst)} for name, r in reports.items()}
    assert len(paths["train"] | paths["val"]) == 40
    assert not paths["train"] & paths["val"]
    assert set(Counter(path.split("/")[0] for path in paths["val"]).values()) <= {1, 2}
    assert reports["train"].manifest.classes == reports["val"].manifest.classes
    again = wt.pack_splits(few_photos, tmp_path / "dst", split="train=0.75,val=0.25", workers=1, images="keep")
    assert all(report.kept == len(report.manifest.shards) for report in again.values())
    wt.pack_splits(few_photos, tmp_path / "two", split="train=0.75,val=0.25", workers=2, images="keep")
    for name in ("train", "val"):
        assert contents(tmp_path / "dst" / name) == contents(tmp_path / "two" / name)


def split_tree(root: Path) -> Path:
    for number, photo in enumerate(photos_of(12)):
        split = "val" if number % 4 == 0 else "train"
        name = "abc"[photo.label] if split == "train" else "bcd"[photo.label]
        path = root / split / name / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo.data)
    return root


def test_folders_of_splits_share_their_class_numbers(tmp_path: Path) -> None:
    src = split_tree(tmp_path / "src")
    for source in (src, f"file://{src}"):
        reports = wt.pack_splits(source, tmp_path / "dst", split="folders", workers=1)
        assert {name: (report.packed, report.manifest.classes) for name, report in reports.items()} == {
            "train": (9, ("a", "b", "c", "d")),
            "val": (3, ("a", "b", "c", "d")),
        }


def test_folders_of_splits_whose_files_number_classes_differently_share_class_numbers(tmp_path: Path) -> None:
    for split, names in (("train", ["b", "a"]), ("val", ["c", "a"])):
        (tmp_path / "src" / split).mkdir(parents=True)
        rows = {"image": [photo.data for photo in photos_of(2)], "label": [0, 1]}
        features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}}
        table = pa.table(rows).replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, tmp_path / "src" / split / "part.parquet")
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)
    assert {report.manifest.classes for report in reports.values()} == {("a", "b", "c")}
    found = {name: sorted(json.loads(s["json"])["class"] for s in stored(r.dst)) for name, r in reports.items()}
    assert found == {"train": ["a", "b"], "val": ["a", "c"]}


def test_folders_of_splits_are_not_read_as_classes(tmp_path: Path) -> None:
    src = split_tree(tmp_path / "src")
    with pytest.raises(SourceError, match=r"one folder per split \(train, val\).*--split folders"):
        wt.pack(src, tmp_path / "dst")
    with pytest.raises(
        SourceError, match=r"folder per split \(train, val\).*--split folders .* --from folder .*or pack one"
    ):
        wt.pack(src, tmp_path / "dst", kind="folder")
    for path in sorted(src.rglob("*.jpg")):
        path.rename(src / path.relative_to(src).parts[0] / f"{path.parent.name}-{path.name}")
    assert wt.pack(src, tmp_path / "dst", kind="folder", workers=1).manifest.classes == ("train", "val")


def test_missing_folders_of_splits_are_an_error_with_a_remedy(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no names such as train and val: rename splits, or give shares"):
        wt.pack_splits(photos, tmp_path / "dst", split="folders")


def test_the_command_line_reports_each_split(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--split", "train=0.9,val=0.1", "--workers", "1", "--images", "keep"]
    with pytest.raises(SystemExit) as end:
        main(["pack", str(photos), str(tmp_path / "dst"), *words])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "packed 360 images" in out
    assert "packed 40 images" in out
    assert out.count("next:") == 1


def test_the_command_line_accepts_kind_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = photos_of(1)[0]
    (tmp_path / "a.jpg").write_bytes(photo.data)
    (tmp_path / "t.dat").write_text("id,what,sort\n1,a.jpg,cat\n")
    words = ["pack", str(tmp_path / "t.dat"), str(tmp_path / "dst"), "--from", "table", "--column", "image=what"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--column", "label=sort"])
    assert end.value.code == 0
    assert "packed 1 image in 1 shard" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main([*words, "--column", "label"])
    assert end.value.code == 2
    assert "expected ROLE=NAME" in capsys.readouterr().err


def test_given_classes_are_for_the_splits_that_have_labels(tmp_path: Path) -> None:
    photo = photos_of(1)[0].data
    for name in ("train/cat/1.jpg", "train/dog/1.jpg", "test/1.jpg", "test/2.jpg"):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(photo)
    options: dict[str, Any] = {"split": "folders", "workers": 1, "images": "keep"}
    wt.pack_splits(tmp_path / "src", tmp_path / "dst", classes=["dog", "cat"], **options)
    train, test = (stored(tmp_path / "dst" / split) for split in ("train", "test"))
    assert sorted((json.loads(one["json"])["path"], one["cls"]) for one in train) == [
        ("cat/1.jpg", b"1"),
        ("dog/1.jpg", b"0"),
    ]
    assert [sorted(one.keys() & {"jpg", "cls"}) for one in test] == [["jpg"], ["jpg"]]
    shutil.rmtree(tmp_path / "src" / "train")
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "src" / "train").mkdir(exist_ok=True)
        (tmp_path / "src" / "train" / name).write_bytes(photo)
    with pytest.raises(LabelError, match="has no labels, but class names were given"):
        wt.pack_splits(tmp_path / "src", tmp_path / "other", classes=["dog", "cat"], **options)


def split_tables(root: Path, **tables: pd.DataFrame) -> Path:
    """Write a table for each split, as pandas does, and its images in a folder of its name."""
    photo = photos_of(1)[0].data
    for split, table in tables.items():
        (root / split).mkdir(parents=True, exist_ok=True)
        for row in range(len(table)):
            (root / split / f"{split}{row}.jpg").write_bytes(photo)
        table.assign(file=[f"{split}{row}.jpg" for row in range(len(table))]).to_csv(root / f"{split}.csv", index=False)
    return root


def numbered(*labels: int, names: Sequence[str] = ("zebra", "dog", "cow")) -> pd.DataFrame:
    return pd.DataFrame({"label": labels, "class_name": [names[label] for label in labels]})


def labels_of(dst: Path) -> dict[str, tuple[tuple[str, ...], list[int]]]:
    """Return the classes and the labels of each split, in the order of the images."""
    found = {}
    for split in sorted(path for path in dst.iterdir() if path.is_dir()):
        samples = sorted(stored(split), key=lambda one: json.loads(one["json"])["path"])
        classes = tuple(json.loads((split / "manifest.json").read_text()).get("classes") or ())
        found[split.name] = (classes, [int(one["cls"]) for one in samples])
    return found


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        (numbered(0, 1, 2, 0, 1, 2), numbered(2, 1, 0), [2, 1, 0]),
        (numbered(0, 1, 2, 0, 1, 2), numbered(1, 2), [1, 2]),
        (numbered(0, 1, 0, 1), numbered(2, 1), [2, 1]),
        (numbered(0, 1, 2, 0, 1, 2), pd.DataFrame({"label": [2, 0, 1]}), [2, 0, 1]),
        (numbered(0, 1, 2, 0, 1, 2), pd.DataFrame({"class_name": ["cow", "zebra", "dog"]}), [2, 0, 1]),
    ],
    ids=["the same", "a class is missing", "each lacks a class", "only numbers", "only names"],
)
def test_numbers_and_names_of_all_splits_are_those_of_their_tables(
    train: pd.DataFrame, val: pd.DataFrame, expected: list[int], tmp_path: Path
) -> None:
    src = split_tables(tmp_path / "src", train=train, val=val)
    wt.pack_splits(src, tmp_path / "dst", split="folders", workers=1)
    names = ("zebra", "dog", "cow")
    assert labels_of(tmp_path / "dst") == {"train": (names, train["label"].tolist()), "val": (names, expected)}


def test_splits_that_give_a_class_two_numbers_are_refused(tmp_path: Path) -> None:
    src = split_tables(
        tmp_path / "src", train=numbered(0, 1, 2, 0), val=numbered(0, 1, 2, names=("dog", "zebra", "cow"))
    )
    with pytest.raises(LabelError, match=r"class 0 is 'zebra' in 'train' and 'dog' in 'val'.*--classes"):
        wt.pack_splits(src, tmp_path / "dst", split="folders", workers=1)


def with_class_list(rows: dict[str, Any], names: Sequence[str]) -> datasets.Dataset:
    return datasets.Dataset.from_dict(rows).cast_column("label", datasets.ClassLabel(names=list(names)))


def photo_rows(labels: Sequence[Any]) -> dict[str, Any]:
    return {"image": [photos_of(1)[0].data] * len(labels), "label": list(labels)}


def write_jsonl(split: Path, labels: Sequence[Any]) -> None:
    split_tables(split, images=pd.DataFrame({"label": labels}))
    rows = pd.DataFrame({"file_name": [f"images/images{row}.jpg" for row in range(len(labels))], "label": labels})
    (split / "images.csv").unlink()
    rows.to_json(split / "metadata.jsonl", orient="records", lines=True)


def write_csv(split: Path, labels: Sequence[Any]) -> None:
    split_tables(split.parent, **{split.name: pd.DataFrame({"label": labels})})


def write_parquet(split: Path, labels: Sequence[Any]) -> None:
    split.mkdir(parents=True)
    pd.DataFrame(photo_rows(labels)).to_parquet(split / "0.parquet")


def write_shard(split: Path, labels: Sequence[Any]) -> None:
    split.mkdir(parents=True)
    with webdataset.TarWriter(str(split / "0.tar")) as writer:
        for row, label in enumerate(labels):
            writer.write({"__key__": str(row), "jpg": photos_of(1)[0].data, "cls": str(label).encode()})


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet, write_shard])
def test_numbers_in_a_split_and_names_in_another_are_refused(
    write: Callable[[Path, Sequence[Any]], None], tmp_path: Path
) -> None:
    write(tmp_path / "src" / "train", ["zebra", "ant", "zebra", "ant"])
    write(tmp_path / "src" / "val", [0, 1, 1])
    problem = r"'val' are numbers \('0', '1'\), those of 'train' are names \('ant', 'zebra'\).*--classes"
    with pytest.raises(LabelError, match=problem):
        wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)
    wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1, classes=["zebra", "ant"])
    assert {split: labels for split, (_, labels) in labels_of(tmp_path / "dst").items()} == {
        "train": [0, 1, 0, 1],
        "val": [0, 1, 1],
    }


def test_numbers_of_a_split_mean_the_class_list_of_another(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "src" / split).mkdir(parents=True)
    one = with_class_list(photo_rows([0, 1, 1]), ["zebra", "ant"])
    one.to_parquet(tmp_path / "src" / "train" / "0.parquet")
    pd.DataFrame(photo_rows([1, 0])).to_parquet(tmp_path / "src" / "test" / "0.parquet")
    wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)
    names = ("zebra", "ant")
    assert labels_of(tmp_path / "dst") == {"train": (names, [0, 1, 1]), "test": (names, [1, 0])}
    pd.DataFrame(photo_rows([2, 0])).to_parquet(tmp_path / "src" / "test" / "0.parquet")
    with pytest.raises(LabelError, match="has label 2, but there are only 2 class names"):
        wt.pack_splits(tmp_path / "src", tmp_path / "other", split="folders", workers=1)


def test_numbers_next_to_class_lists_that_differ_are_refused(tmp_path: Path) -> None:
    for split, names in (("train", ["zebra", "ant"]), ("val", ["ant", "zebra"])):
        (tmp_path / "src" / split).mkdir(parents=True)
        with_class_list(photo_rows([0, 1]), names).to_parquet(tmp_path / "src" / split / "0.parquet")
    write_parquet(tmp_path / "src" / "test", [0, 1])
    with pytest.raises(LabelError, match="class 0 is 'zebra' in 'train' and 'ant' in 'val'"):
        wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)


def test_one_label_in_a_split_and_several_in_another_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "src" / "train", [["zebra", "ant"], ["ant"]])
    write_parquet(tmp_path / "src" / "val", ["zebra", "ant"])
    with pytest.raises(LabelError, match="'val' have one label each, those of 'train' have a list of labels"):
        wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)


@pytest.mark.parametrize("folder", ["", "data/", "{}/"])
def test_files_that_begin_with_the_name_of_a_split_are_splits(folder: str, tmp_path: Path) -> None:
    """As the Hub names them."""
    for split, labels in (("train", ["zebra", "ant", "zebra"]), ("test", ["zebra"])):
        for part in range(2):
            path = tmp_path / "src" / folder.format(split) / f"{split}-0000{part}-of-00002.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(photo_rows(labels)).to_parquet(path)
    (tmp_path / "src" / "docs").mkdir()
    (tmp_path / "src" / "docs" / "README.md").write_text("a card")
    wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)
    names = ("ant", "zebra")
    assert labels_of(tmp_path / "dst") == {"train": (names, [1, 0, 1] * 2), "test": (names, [1] * 2)}


def test_files_of_a_split_in_several_folders_are_packed_one_at_a_time(tmp_path: Path) -> None:
    for name in ("train-00000.parquet", "test-00000.parquet", "sub/train-00001.parquet"):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(photo_rows(["zebra"])).to_parquet(tmp_path / "src" / name)
    with pytest.raises(SourceError, match=r"several splits \(test, train\): pack one at a time, such as"):
        wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)


@pytest.mark.parametrize("names", ["train{}", "train_{}"])
def test_files_of_splits_with_the_same_numbers_may_be_folds(names: str, tmp_path: Path) -> None:
    """Shards of splits seldom have the same few numbers, or only those of a test set have numbers."""
    for folder, numbers in {"folds": ("0", "1"), "shards": ("000", "001"), "parts": ("1-of-2", "2-of-2")}.items():
        (tmp_path / folder).mkdir()
        for name in (names, names.replace("train", "val")):
            for number in numbers:
                pd.DataFrame(photo_rows(["ant"])).to_parquet(tmp_path / folder / f"{name.format(number)}.parquet")
        reports = wt.pack_splits(tmp_path / folder, tmp_path / "dst", split="folders", dry_run=True)
        notes = [note for note in reports["train"].account.notes if "if these are folds" in note]
        assert len(notes) == (folder == "folds")
        assert all(f"'{names}.parquet', ".format(0) in note for note in notes)
        for number in numbers:
            (tmp_path / folder / f"{names.format(number)}.parquet").unlink()
        pd.DataFrame(photo_rows(["ant"])).to_parquet(tmp_path / folder / "train.parquet")
        notes = wt.pack_splits(tmp_path / folder, tmp_path / "dst", split="folders", dry_run=True)["val"].account.notes
        assert any("are parts of one split" in note for note in notes) == (folder == "folds")


def test_arrays_and_databases_of_splits_are_packed_as_these(tmp_path: Path) -> None:
    for extension in ("npz", "h5", "lmdb"):
        (src := tmp_path / extension).mkdir()
        for split, count in (("train", 4), ("val", 2)):
            images, labels = np.zeros((count, 16, 16, 3), np.uint8), np.arange(count) % 2
            path = src / f"{split}.{extension}"
            if extension == "npz":
                np.savez(path, images=images, labels=labels)
            elif extension == "h5":
                with h5py.File(path, "w") as file:
                    file["images"], file["labels"] = images, labels
            else:
                with lmdb.open(str(path)) as store, store.begin(write=True) as transaction:
                    for row, photo in enumerate(photos_of(count)):
                        transaction.put(f"image-{row}".encode(), photo.data)
                        transaction.put(f"label-{row}".encode(), b"%d" % labels[row])
        reports = wt.pack_splits(src, tmp_path / "dst", split="folders", dry_run=True)
        assert {split: report.account.packed for split, report in reports.items()} == {"train": 4, "val": 2}
        assert {sample.label for sample in reports["val"].preview.samples} == {0, 1}, extension
    with pytest.raises(SourceError, match=r"name one LMDB, such as 'train\.lmdb', or pass --split folders"):
        wt.pack(tmp_path / "lmdb", tmp_path / "dst")
    np.savez(tmp_path / "npz" / "train_labels.npz", labels=labels)  # perhaps of the images in another file
    with pytest.raises(SourceError, match="3 files of arrays"):
        wt.pack(tmp_path / "npz", tmp_path / "dst")


def test_classes_of_a_split_that_the_largest_does_not_have_are_named(tmp_path: Path) -> None:
    """Kaggle's chest CT scans name the same classes in two ways."""
    data = photos_of(1)[0].data
    for place in (
        "train/Cat/1",
        "train/Cat/2",
        "train/dog/1",
        "train/fig/1",
        "test/cat/1",
        "test/dog/1",
        "test/pear/1",
    ):
        (tmp_path / "src" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / f"{place}.jpg").write_bytes(data)
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", dry_run=True)
    assert reports["test"].account.notes == [
        "2 classes without a sample in 'train': 'cat', 'pear'",
        "the classes 'Cat' and 'cat' differ only in upper and lower case, or look the same",
    ]
    assert reports["train"].account.notes == []


@pytest.mark.parametrize("label", [lambda number: number, lambda number: [number, 12]], ids=["one label", "several"])
def test_class_numbers_of_a_split_that_the_largest_does_not_have_are_named(
    label: Callable[[int], Any], tmp_path: Path
) -> None:
    """The numbers of a split may begin at 1, and those of another at 0."""
    data = photos_of(1)[0].data
    for split, numbers in (("train", [0, 1, 2, 9, 0, 1, 2]), ("test", [1, 2, 3, 10])):
        rows = [{"image": data, "label": label(number)} for number in numbers]
        (tmp_path / "src").mkdir(exist_ok=True)
        pd.DataFrame(rows).to_parquet(tmp_path / "src" / f"{split}.parquet")
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", dry_run=True)
    assert "2 classes without a sample in 'train': '3', '10'" in reports["test"].account.notes
    assert not [note for note in reports["train"].account.notes if "without a sample" in note]
