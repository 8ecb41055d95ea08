"""Splits: every input is in one of them, every class is divided in the same shares, and the seed decides the draw."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sources_conformance import contents, photos_of, stored

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.packing.splits import draw_splits, parse_shares
from wds_tools.sources.base import Input, Listing, Skip


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


def test_each_split_is_a_dataset_of_its_own(photos: Path, tmp_path: Path) -> None:
    reports = wt.pack_splits(photos, tmp_path / "dst", split={"train": 0.75, "val": 0.25}, workers=1, images="keep")
    assert {name: report.dst for name, report in reports.items()} == {
        "train": tmp_path / "dst" / "train",
        "val": tmp_path / "dst" / "val",
    }
    paths = {name: {json.loads(sample["json"])["path"] for sample in stored(r.dst)} for name, r in reports.items()}
    assert len(paths["train"] | paths["val"]) == 400
    assert not paths["train"] & paths["val"]
    assert set(Counter(path.split("/")[0] for path in paths["val"]).values()) <= {11, 12, 13, 14}
    assert reports["train"].manifest.classes == reports["val"].manifest.classes
    again = wt.pack_splits(photos, tmp_path / "dst", split="train=0.75,val=0.25", workers=2, images="keep")
    assert all(report.kept == len(report.manifest.shards) for report in again.values())
    wt.pack_splits(photos, tmp_path / "two", split="train=0.75,val=0.25", workers=2, images="keep")
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
    assert wt.pack(src, tmp_path / "dst", kind="folder", workers=1).manifest.classes == ("train", "val")


def test_missing_folders_of_splits_are_an_error_with_a_remedy(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no folders with names such as train, val or test: give shares"):
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
