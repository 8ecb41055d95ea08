"""Images with a table next to them or above them: which table other programs wrote is read, and what is refused.

pandas, polars, csvkit, DuckDB, SQLite, jq and iconv wrote the tables; expected values are those of their input, or what
``datasets`` or pandas reads.
"""

from __future__ import annotations

import gc
import io
import json
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pandas as pd
import pytest
from annotated_trees import tree_of
from foreign_tables import COUNT, LABELS, NAMES, beside_images, packed, png
from PIL import Image
from sources_conformance import stored

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.sources.detect import open_source

TABLES = {
    "polars.csv": {},
    "polars-semicolon.csv": {},
    "polars-bom.tsv": {},
    "polars.ndjson": {},
    "polars.json": {},
    "csvkit.tsv": {},
    "csvkit-cr.csv": {},
    "csvkit-in.json": {},
    "csvkit-keyed.json": {},
    "csvkit-numbered.csv": {},
    "csvkit-quoted.csv": {},
    "duckdb.jsonl": {},
    "duckdb-pipe.csv": {},
    "iconv-utf16.csv": {},
    "iconv-latin1.csv": {"encoding": "latin-1"},
    "jq-array.json": {},
    "jq-columns.json": {},
    "sqlite.csv": {},
    "sqlite.json": {},
}
"""Tables of other programs with the column ``path``, and the options that they need."""


def images(folder: Path, *names: str) -> Path:
    """Write the images 0, 1, 2, ... with these paths."""
    for row, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(row))
    return folder


def names_of(place: str, count: int = COUNT) -> list[str]:
    return [place.format(row) for row in range(count)]


def frame(values: str, column: str = "id", **more: Any) -> pd.DataFrame:
    """Return a table with six rows, whose images are named by a text with {}."""
    return pd.DataFrame({column: names_of(values), "label": list(LABELS.values()), **more})


def labels(found: dict[int, Any]) -> dict[int, str | None]:
    return {row: one.name for row, one in found.items()}


def by_path(dst: Path) -> dict[str, dict[str, Any]]:
    """Return the samples of a dataset by their path, read by webdataset."""
    return {json.loads(sample["json"])["path"]: sample for sample in stored(dst)}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_another_program_next_to_images_gives_their_labels(table: str, tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", table).parent
    assert labels(packed(src, tmp_path / "dst", **TABLES[table])) == LABELS


@pytest.mark.parametrize("table", ["polars.csv", "csvkit.tsv", "polars.ndjson", "jq-array.json"])
def test_captions_and_further_columns_arrive(table: str, tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", table).parent
    found = packed(src, tmp_path / "dst")
    assert [one.caption for one in found.values()] == [f"photo {row}, é" for row in range(COUNT)]
    assert [float(one.facts["score"]) for one in found.values()] == [row / 4 for row in range(COUNT)]


def test_class_names_of_a_parquet_table_of_datasets_are_those_of_its_numbers(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("train/{}.png"))
    features = datasets.Features(
        {"file_name": datasets.Value("string"), "label": datasets.ClassLabel(names=["fig", "dog", "cat"])}
    )
    rows = {"file_name": names_of("{}.png"), "label": list(LABELS.values())}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(src / "train" / "metadata.parquet"))
    found = packed(src, tmp_path / "dst")
    assert labels(found) == LABELS
    assert [one.number for one in found.values()] == [2 - row % 3 for row in range(COUNT)]


def test_a_parquet_table_of_pandas_next_to_images_is_read(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    frame("{}", caption=names_of("photo {}"), score=[row / 4 for row in range(COUNT)]).to_parquet(src / "train.parquet")
    found = packed(src, tmp_path / "dst")
    assert labels(found) == LABELS
    assert [(one.caption, one.facts) for one in found.values()] == [
        (f"photo {row}", {"score": row / 4}) for row in range(COUNT)
    ]


def test_a_parquet_file_of_paths_is_a_table_if_the_user_says_so(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    table = frame("{}.png", "path", thumbnail=[b"RIFF1234"] * COUNT, day=pd.Timestamp("2024-05-01"))
    table.to_parquet(src / "t.parquet")
    found = packed(src / "t.parquet", tmp_path / "dst", kind="table")
    assert labels(found) == LABELS
    assert found[0].facts == {"day": "2024-05-01 00:00:00"}
    account = wt.pack(src / "t.parquet", tmp_path / "again", kind="table", dry_run=True).account
    [part] = [part for part in account.parts if part.name == "thumbnail"]
    assert (part.role, part.reason) == ("", "binary, which is not read from a table of files")


LAYOUTS = {
    "ids of files in a folder": ("images/{}.png", "{}"),
    "ids with leading zeros": ("train_images/00{}.png", "00{}"),
    "base names of files in a folder": ("images/{}.png", "{}.png"),
    "paths": ("images/{}.png", "images/{}.png"),
    "paths without extension": ("images/{}.png", "images/{}"),
    "paths with a folder above": ("images/{}.png", "./data/images/{}.png"),
    "paths of another machine": ("images/{}.png", "/home/me/images/{}.png"),
    "paths of Windows": ("images/{}.png", "images\\{}.png"),
    "folders that are no classes": ("data/images/{}.png", "{}"),
    "local files of Label Studio": ("images/{}.png", "/data/local-files/?d=images/{}.png"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_names_its_image_by_path_or_name_or_id(name: str, tmp_path: Path) -> None:
    place, values = LAYOUTS[name]
    src = images(tmp_path / "src", *names_of(place))
    frame(values).to_csv(src / "labels.csv", index=False)
    assert labels(packed(src, tmp_path / "dst")) == LABELS


@pytest.mark.parametrize("kind", ["tar", "zip", "gztar", "url"])
def test_a_table_is_read_in_an_archive_and_at_a_url(kind: str, tmp_path: Path) -> None:
    folder = images(tmp_path / "src", *names_of("images/{}.png"))
    frame("{}").to_csv(folder / "labels.csv", index=False)
    src: Any
    if kind == "url":
        src = "memory://tabled/photos"
        memory = fsspec.filesystem("memory")
        memory.put(f"{folder}/", "/tabled/photos", recursive=True)
    else:
        src = shutil.make_archive(str(tmp_path / "photos"), kind, folder)
    assert labels(packed(src, tmp_path / "dst")) == LABELS


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # of datasets
def test_rows_are_those_that_datasets_reads_from_an_image_folder(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("a{}.png"))
    frame("a{}.png", "file_name", caption=[f"a {row}" for row in range(COUNT)]).to_csv(
        src / "metadata.csv", index=False
    )
    theirs = datasets.load_dataset("imagefolder", data_dir=str(src), split="train", cache_dir=str(tmp_path / "cache"))
    expected = {tuple(row["image"].getpixel((0, 0))): (row["label"], row["caption"]) for row in theirs}
    gc.collect()  # `datasets` leaves its files open
    wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    found = {}
    for sample in stored(tmp_path / "dst"):
        pixel = datasets.Image().decode_example({"bytes": sample["png"], "path": None}).getpixel((0, 0))
        found[tuple(pixel)] = (json.loads(sample["json"])["class"], sample["txt"].decode())
    assert found == expected


def test_folders_of_splits_with_a_table_each_become_datasets_with_the_same_classes(tmp_path: Path) -> None:
    for split, rows in (("train", slice(0, 6)), ("validation", slice(0, 2))):
        images(tmp_path / "src" / split, *names_of("{}.png")[rows])
        frame("{}.png", "file_name")[rows].to_json(
            tmp_path / "src" / split / "metadata.jsonl", orient="records", lines=True
        )
    with pytest.raises(SourceError, match=r"several splits \(train, validation\): pack with --split folders"):
        wt.pack(tmp_path / "src", tmp_path / "one", workers=1)
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", images="keep", workers=1)
    assert {name: report.manifest.classes for name, report in reports.items()} == {
        "train": NAMES,
        "validation": NAMES,
    }
    found = by_path(tmp_path / "dst" / "validation")
    assert {path: int(sample["cls"]) for path, sample in found.items()} == {
        "validation/0.png": 0,
        "validation/1.png": 1,
    }


@pytest.mark.parametrize("folders", [("train", "test"), ("images", "images")])
def test_tables_of_splits_are_datasets_and_a_test_table_may_have_no_labels(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    src = tmp_path / "src"
    same_names = folders[0] != folders[1]
    images(src, *names_of(f"{folders[0]}/{{}}.png"))
    names = ["0", "1"] if same_names else ["x", "y"]
    images(src, *(f"{folders[1]}/{name}.png" for name in names))
    frame("{}").to_csv(src / "train.csv", index=False)
    pd.DataFrame({"id": names}).to_csv(src / "test.csv", index=False)
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    train = by_path(tmp_path / "dst" / "train")
    assert {path: NAMES[int(one["cls"])] for path, one in train.items()} == {
        f"{folders[0]}/{row}.png": name for row, name in LABELS.items()
    }
    test = by_path(tmp_path / "dst" / "test")
    assert {path: one["png"] for path, one in test.items()} == {
        f"{folders[1]}/{name}.png": png(row) for row, name in enumerate(names)
    }
    assert not any("cls" in one for one in test.values())
    assert reports["test"].manifest.classes == ()


def test_a_table_of_both_splits_is_divided_by_the_folders_of_its_images(tmp_path: Path) -> None:
    places = ["train/0.png", "train/1.png", "train/2.png", "val/3.png", "val/4.png", "val/5.png"]
    src = images(tmp_path / "src", *places)
    pd.DataFrame({"filepaths": places, "label": list(LABELS.values())}).to_csv(src / "birds.csv", index=False)
    wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    found = {split: by_path(tmp_path / "dst" / split) for split in ("train", "val")}
    assert {path: NAMES[int(one["cls"])] for path, one in found["train"].items()} == dict(
        zip(places[:3], NAMES, strict=True)
    )
    assert {path: NAMES[int(one["cls"])] for path, one in found["val"].items()} == dict(
        zip(places[3:], NAMES, strict=True)
    )


def test_a_template_of_predictions_and_images_without_labels_are_not_packed_as_labelled(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("train_images/{}.png"))
    images(src, *names_of("test_images/t{}.png"))
    frame("{}").to_csv(src / "train.csv", index=False)
    frame("t{}").assign(label="cat").to_csv(src / "sample_submission.csv", index=False)
    assert labels(packed(src, tmp_path / "dst")) == LABELS
    account = wt.pack(src, tmp_path / "again", workers=1, images="keep").account
    assert account.given == 14
    assert account.attached == {"table": 1}
    assert account.skipped == {
        "has no row in 'train.csv'": 6,
        "is a template of predictions, whose labels do not belong to the images": 1,
    }
    assert "there is a table of 'train' only, and none of 'test_images'" in account.notes
    with pytest.raises(SourceError, match="table of 'train' only, and none of 'test_images': add a table that names"):
        wt.pack_splits(src, tmp_path / "splits", split="folders", workers=1)
    (src / "train.csv").rename(src / "labels.csv")
    with pytest.raises(SourceError, match="names images of 'train_images' only, and none of 'test_images':"):
        wt.pack_splits(src, tmp_path / "splits", split="folders", workers=1)


def captions(src: Path, count: int) -> None:
    """Write captions as Kaggle's copy of Flickr8k has them."""
    rows = [(f"{row}.png", f"photo {row}, {number}") for row in range(COUNT) for number in range(count)]
    pd.DataFrame(rows, columns=["image", "caption"]).to_csv(src / "captions.txt", index=False)


def label_studio(src: Path, path: str) -> None:
    """Write a table as Label Studio exports choices; ids of annotations are also names of images."""
    rows = {"annotation_id": names_of("{}"), "choice": list(LABELS.values()), "image": names_of(path)}
    pd.DataFrame(rows).to_csv(src / "project-1.csv", index=False)


UNCLEAR = {
    "values instead of a header": (  # as Google's AutoML has them
        lambda src: (src / "import.csv").write_text("".join(f"TRAIN,gs://b/{n}.png,cat\n" for n in range(COUNT))),
        "import.csv begins with a row of values, such as 'gs://b/0.png': add a first line such as path,label",
    ),
    "numbers instead of a header": (  # as makesense.ai has them
        lambda src: (src / "t.csv").write_text("".join(f"cat,1,2,{n}.png,16,16\n" for n in range(COUNT))),
        "two columns named '16': rename one of them, or add a first line such as path,label",
    ),
    "several captions, and labels that differ": (
        lambda src: frame("{}.png").assign(id=["0.png", *names_of("{}.png", 5)], caption="a").to_csv(src / "train.csv"),
        "train.csv has 2 rows for 'images/0.png', .* with a list for several labels or captions",
    ),
    "ids and other files": (
        lambda src: label_studio(src, "/data/upload/1/ab-{}.png"),
        r"'image' \(/data/upload/1/ab-0.png, .*'annotation_id' \(0, 1, 2\); name one",
    ),
    "names in other folders": (
        lambda src: frame("/data/upload/1/{}.png", "image").to_csv(src / "t.csv", index=False),
        "t.csv names images by paths that are not here, such as '/data/upload/1/0.png' in column 'image': write",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_table_whose_rows_are_unclear_is_an_error_that_says_why(name: str, tmp_path: Path) -> None:
    write, message = UNCLEAR[name]
    write(images(tmp_path / "src", *names_of("images/{}.png")))
    with pytest.raises(SourceError, match=message):
        wt.pack(tmp_path / "src", tmp_path / "dst", dry_run=True)


def test_a_caption_whose_separator_is_missing_is_skipped_and_the_others_of_the_image_are_not(tmp_path: Path) -> None:
    """As in the copy of Flickr30k on Kaggle."""
    src = images(tmp_path / "src", "images/0.png", "images/1.png")
    rows = [(f"{row}.png", number, f"caption {row} {number}") for row in range(2) for number in range(3)]
    table = pd.DataFrame(rows, columns=["image_name", "comment_number", "comment"])
    table.to_csv(src / "results.csv", sep="|", index=False)
    text = (src / "results.csv").read_text()
    (src / "results.csv").write_text(text.replace("1.png|1|", "1.png|1   "))
    report = wt.pack(src, tmp_path / "dst", workers=1)
    entries = {entry["path"]: entry for entry in (json.loads(sample["json"]) for sample in stored(tmp_path / "dst"))}
    assert entries["images/0.png"]["captions"] == ["caption 0 0", "caption 0 1", "caption 0 2"]
    assert entries["images/1.png"]["captions"] == ["caption 1 0", "caption 1 2"]
    assert entries["images/1.png"]["comment_number"] == ["0", "2"]
    assert [(skip.path, skip.reason[:38]) for skip in report.skipped] == [
        ("1.png", "the row has 2 values for 3 columns: wr")
    ]


def test_class_numbers_that_are_also_names_of_images_are_labels(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    pd.DataFrame({"id": range(COUNT), "label": [1, 2] * (COUNT // 2)}).to_csv(src / "labels.csv", index=False)
    report = wt.pack(src, tmp_path / "dst", workers=1)
    assert report.packed == COUNT
    assert sorted(sample["cls"] for sample in stored(tmp_path / "dst")) == [b"1"] * 3 + [b"2"] * 3


@pytest.mark.parametrize("mark", ["x", 1.0])
def test_marks_in_columns_of_classes_are_named_in_a_note(mark: Any, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    marks = {name: [mark if row % 2 == number else None for row in range(COUNT)] for number, name in enumerate("ab")}
    pd.DataFrame({"file": names_of("{}.png"), **marks}).astype("object").to_csv(src / "labels.csv", index=False)
    notes = wt.pack(src, tmp_path / "dst", dry_run=True).account.notes
    assert any(f"no label: 2 columns with only {mark} and empty values ('a', 'b')" in note for note in notes)


def test_a_title_above_the_names_of_columns_is_an_error(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    frame("{}.png", "file").to_csv(src / "labels.csv", index=False)
    (src / "labels.csv").write_text("Dataset export 2024,\n" + (src / "labels.csv").read_text())
    with pytest.raises(SourceError, match=r"only one text, 'Dataset export 2024', .* must have the names of the col"):
        wt.pack(src, tmp_path / "dst", dry_run=True)


def test_lists_of_captions_are_lists_in_json_and_not_a_text(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    captions(src, 2)
    table = pd.read_csv(src / "captions.txt").groupby("image")["caption"].agg(list).reset_index()
    table.to_json(src / "captions.jsonl", orient="records", lines=True)
    (src / "captions.txt").unlink()
    found = packed(src, tmp_path / "dst")
    assert [(one.caption, one.facts["caption"]) for one in found.values()] == [
        (None, [f"photo {row}, 0", f"photo {row}, 1"]) for row in range(COUNT)
    ]


def flickr30k(src: Path) -> None:
    """Write captions as Flickr30k has them: spaces after the separator, and a number for each row of an image."""
    rows = [f"{row}.png| {number}| photo {row}, {number}" for row in range(COUNT) for number in range(2)]
    (src / "results.csv").write_text("\n".join(["image_name| comment_number| comment", *rows]))


def with_labels(src: Path) -> None:
    rows = [(f"{row}", LABELS[row], f"photo {row}, {number}") for row in range(COUNT) for number in range(2)]
    table = pd.DataFrame(rows, columns=["id", "label", "text"])
    table.to_json(src / "captions.jsonl", orient="records", lines=True)


def two_languages(src: Path) -> None:
    rows = [(f"{row}.png", f"photo {row}, {number}", f"Foto {row}") for row in range(COUNT) for number in range(2)]
    table = pd.DataFrame(rows, columns=["image", "caption", "german_text"])
    table.loc[0, "german_text"] = "Bild 0"
    table.reset_index(names="id").to_parquet(src / "captions.parquet")


@pytest.mark.parametrize(
    ("mask", "field"),
    [("{}_anno.png", "mask.png"), ("Part1_GroundTruth/{}_segmentation.png", "mask.png"), ("lesions/{}.png", "")],
)
def test_masks_next_to_images_with_a_table_are_fields_or_skipped(mask: str, field: str, tmp_path: Path) -> None:
    """GlaS has a table of grades, and ISIC one of diagnoses."""
    src = images(tmp_path / "src", *names_of("photos/{}.jpg"))
    images(src, *names_of(mask if "/" in mask else f"photos/{mask}"))
    frame("{}.jpg").to_csv(src / "Grade.csv", index=False)
    report = wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    assert (report.packed, report.manifest.fields.get(field)) == (COUNT, COUNT if field else None)
    assert [skip.reason for skip in report.skipped] == ["has no row in 'Grade.csv'"] * (0 if field else COUNT)


SEVERAL = {
    "flickr8k": (lambda src: captions(src, 2), {}),
    "flickr30k": (flickr30k, {"comment_number": ["0", "1"]}),
    "with labels": (with_labels, {}),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_captions_in_several_rows_of_an_image_are_one_list(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    write, more = SEVERAL[name]
    write(src)
    found = packed(src, tmp_path / "dst")
    assert {row: one.facts for row, one in found.items()} == {
        row: {"captions": [f"photo {row}, 0", f"photo {row}, 1"]} | more for row in range(COUNT)
    }
    assert labels(found) == (LABELS if "labels" in name else dict.fromkeys(range(COUNT)))
    account = wt.pack(src, tmp_path / "again", dry_run=True).account
    assert " has several rows for 6 images: " in account.notes[0]
    fields = {
        "first": wt.Text("json", path="captions.0"),
        "any": wt.Field("json", path="captions", decode=random.choice),
    }
    with wt.make_loader(tmp_path / "dst", batch_size=COUNT, fields=fields, num_workers=0) as loader:
        batch = next(iter(loader))
    assert sorted(batch.first) == names_of("photo {}, 0")
    assert [text.rpartition(",")[0] for text in batch.any] == [text.rpartition(",")[0] for text in batch.first]


def test_two_columns_of_captions_keep_their_names(tmp_path: Path) -> None:
    two_languages(images(tmp_path / "src", *names_of("images/{}.png")))
    found = packed(tmp_path / "src", tmp_path / "dst")
    assert found[0].facts == {
        "id": [0, 1],
        "caption": ["photo 0, 0", "photo 0, 1"],
        "german_text": ["Bild 0", "Foto 0"],
    }


@pytest.mark.parametrize("different", ["label", "xmin"])
def test_rows_of_an_image_that_differ_in_more_than_captions_are_not_joined(different: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    rows = {"id": ["0.png", "0.png", "1.png"], "caption": [*"abc"], different: [0, 1, 1]}
    pd.DataFrame(rows).to_csv(src / "train.csv", index=False)
    with pytest.raises(SourceError, match=r"train.csv has 2 rows for 'images/0.png', and a sample has one row"):
        wt.pack(src, tmp_path / "dst", dry_run=True)


def test_a_text_with_names_of_columns_is_a_table(tmp_path: Path) -> None:
    captions(images(tmp_path / "src", *names_of("images/{}.png")), 1)
    assert [one.caption for one in packed(tmp_path / "src", tmp_path / "dst").values()] == names_of("photo {}, 0")


def zipped(src: Path, pixels: np.ndarray) -> Path:
    return Path(shutil.make_archive(str(src.parent / "train"), "zip", src))


def arrays(src: Path, pixels: np.ndarray) -> Path:
    np.save(src.parent / "x_train.npy", pixels)
    return src.parent / "x_train.npy"


def columns_of(src: Path, pixels: np.ndarray) -> Path:
    rows = {"image": [png(row) for row in range(COUNT)], "id": names_of("{}")}
    pd.DataFrame(rows).to_parquet(src.parent / "train.parquet")
    return src.parent / "train.parquet"


NEXT_TO = {
    "zip": (zipped, lambda path: frame("{}").to_csv(path / "train.csv", index=False), "train.csv names 6 images"),
    "parquet": (columns_of, lambda path: frame("{}").to_csv(path / "t.csv", index=False), "t.csv names 6 images"),
    "parquet, two": (
        columns_of,
        lambda path: frame("{}").to_parquet(path / "labels.parquet"),
        "labels.parquet names 6",
    ),
    "numpy": (
        arrays,
        lambda path: np.save(path / "y_train.npy", np.arange(COUNT) % 3),
        "y_train.npy has arrays or objects",
    ),
}


@pytest.mark.parametrize("kind", NEXT_TO)
def test_labels_next_to_a_file_that_is_named_are_an_error(kind: str, tmp_path: Path) -> None:
    write, labels_of, message = NEXT_TO[kind]
    kind = kind.partition(",")[0]
    src = write(images(tmp_path / "src", *names_of("{}.png")), np.zeros((COUNT, 5, 6, 3), np.uint8))
    (tmp_path / "stats.csv").write_text("n,mean\n1,0.5\n")
    (tmp_path / "readme.txt").write_text("photographs")
    for name in "train_labels", "train":
        columns_of(src, np.zeros(0)).replace(tmp_path / f"{name}.parquet")  # it has images of its own
    np.save(tmp_path / "y_test.npy", np.arange(COUNT) % 3)  # of another split
    assert wt.pack(src, tmp_path / "dst", dry_run=True).account.packed == COUNT
    labels_of(tmp_path)
    with pytest.raises(SourceError, match=rf"{message}.*, and is not read with .*{src.name}.*pass --from {kind}"):
        wt.pack(src, tmp_path / "dst", dry_run=True)
    assert wt.pack(src, tmp_path / "dst", kind=kind, dry_run=True).account.packed == COUNT


def test_a_table_next_to_an_archive_with_class_folders_is_not_in_its_way(tmp_path: Path) -> None:
    src = zipped(images(tmp_path / "src", *(f"{name}/{row}.png" for row, name in LABELS.items())), np.zeros(0))
    frame("{}").to_csv(tmp_path / "train.csv", index=False)
    assert labels(packed(src, tmp_path / "dst")) == LABELS
    shutil.rmtree(tmp_path / "src")
    one = zipped(images(tmp_path / "src", *names_of("only/{}.png")), np.zeros(0))  # the folder is no class then
    with pytest.raises(SourceError, match=r"train.csv names 6 images in column 'id'"):
        wt.pack(one, tmp_path / "one", dry_run=True)


ABOVE = {
    "labels.csv": lambda src: frame("{}").to_csv(src / "labels.csv", index=False),
    "train.csv": lambda src: frame("{}.png", "image").to_csv(src / "train.csv", index=False),
    "with a folder": lambda src: frame("images/{}.png", "path").to_csv(src / "list.tsv", sep="\t"),
    "captions.txt": lambda src: captions(src, 5),
    "metadata.jsonl": lambda src: frame("{}.png", "file_name").to_json(
        src / "metadata.jsonl", orient="records", lines=True
    ),
    "parquet": lambda src: frame("images/{}.png", "image").to_parquet(src / "x.parquet"),
    "coco": lambda src: coco_of(src / "instances.json"),
}
"""Files of pandas in the folder above the one with the images, which packing the folder above reads."""


def coco_of(path: Path) -> None:
    boxes = [{"id": row, "image_id": row, "category_id": 0, "bbox": [1, 1, 2, 2]} for row in range(COUNT)]
    named = [{"id": row, "file_name": f"{row}.png"} for row in range(COUNT)]
    path.write_text(json.dumps({"images": named, "annotations": boxes, "categories": [{"id": 0, "name": "cat"}]}))


@pytest.mark.parametrize("name", ABOVE)
def test_images_are_not_packed_without_the_table_above_their_folder(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    ABOVE[name](src)
    with pytest.raises(
        SourceError, match=r"src/\S+ (names|is about) .*: if it has the labels, pack .*/src, .*--from f"
    ):
        wt.pack(src / "images", tmp_path / "dst", dry_run=True)
    assert wt.pack(src / "images", tmp_path / "dst", kind="folder", dry_run=True).account.packed == COUNT
    assert wt.pack(src, tmp_path / "above", dry_run=True).account.attached.keys() & {"table", "annotations"}


def test_the_folder_above_the_working_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    frame("{}").to_csv(src / "labels.csv", index=False)
    for folder, named, shown in (("", "images", "labels.csv"), ("images", ".", f"{src}/labels.csv")):
        monkeypatch.chdir(src / folder)
        with pytest.raises(SourceError, match=rf"^{shown} names 6 images in column 'id'.* is not read with {named}"):
            wt.pack(named, tmp_path / "dst", dry_run=True)


def test_images_are_not_packed_without_the_annotations_in_the_folder_next_to_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yolo = tree_of(tmp_path / "yolo", "yolo/datumaro_boxes", "images/{split}/{name}")
    voc = tree_of(tmp_path / "voc", "voc/datumaro", "JPEGImages/{name}")
    for src, above in ((yolo / "images", yolo), (yolo / "images" / "train", yolo), (voc / "JPEGImages", voc)):
        options = {} if src != yolo / "images" else {"split": "folders"}
        pack: Any = wt.pack_splits if options else wt.pack
        with pytest.raises(
            SourceError, match=rf"has the objects of 'photo.*, and is not read with {src}.* pack {above}, "
        ):
            pack(src, tmp_path / "dst", dry_run=True, **options)
        assert pack(src, tmp_path / "dst", kind="folder", dry_run=True, **options)
    monkeypatch.chdir(voc)
    assert wt.pack_splits(".", tmp_path / "dst", split="folders", dry_run=True)["val"].account.attached["annotations"]


def test_a_file_above_that_is_not_read_is_noted_if_its_name_says_that_it_has_labels(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    frame("{}").to_pickle(src / "labels.pkl")
    frame("{}").to_pickle(src / "features.pkl")
    (src / "labels.txt").write_text(LISTS["train.txt"])
    notes = wt.pack(src / "images", tmp_path / "dst", dry_run=True).account.notes
    assert [note.partition(", ")[0] for note in notes] == [
        f"'{src}/labels.pkl' has arrays or objects",
        f"'{src}/labels.txt' has a value for each image",
    ]


LISTS_NEXT = {
    "identity_CelebA.txt": lambda path: frame("{}.png", "image").to_csv(path, sep=" ", header=False, index=False),
    "data.txt": lambda path: frame("{}.png", "image").to_csv(path, sep=" ", index=False),
    "meta/train.lst": lambda path: frame("images/{}.png").to_csv(path, sep=" ", header=False, index=False),
    "annotations/list.txt": lambda path: frame("p{}").to_csv(path, sep=" ", header=False, index=False),
}
"""Lists of pandas, named and written as those of CelebA, mmpretrain and Oxford-IIIT Pet."""


@pytest.mark.parametrize("name", LISTS_NEXT)
def test_a_list_above_or_next_to_the_folder_is_noted_whatever_its_name_is(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/p{}.png" if name.startswith("anno") else "images/{}.png"))
    (src / name).parent.mkdir(exist_ok=True)
    LISTS_NEXT[name](src / name)
    if name.startswith("anno"):
        images(src, *names_of("annotations/trimaps/p{}.png"))
    notes = wt.pack(src / "images", tmp_path / "dst", dry_run=True).account.notes
    assert any(note.startswith(f"'{src}/{name}' has a value for each image, such as") for note in notes)


@pytest.mark.parametrize("name", ["ann/{}.png.json", "gt/{}.txt"])
def test_files_with_the_names_of_images_in_a_folder_next_to_theirs_are_noted(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("img/{}.png"))
    images(src, *names_of("other/{}.png"))
    for place in (name, f"other/{name.rpartition('/')[2]}"):  # the latter belong to other images
        (src / place).parent.mkdir(exist_ok=True)
        for row in range(COUNT):
            (src / place.format(row)).write_text('{"objects": []}')
    [note] = wt.pack(src / "img", tmp_path / "dst", dry_run=True).account.notes
    first = src / name.format(0)
    assert note.startswith(f"{str(first)!r} (and 5 other files) has the name of an image, as most files in its folder")


def test_images_are_not_packed_without_the_table_in_a_folder_next_to_theirs(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    (src / "meta").mkdir()
    frame("{}.png").to_csv(src / "meta" / "x.csv", index=False)
    with pytest.raises(SourceError, match=r"src/meta/x\.csv names 6 images .*: if it has the labels, pack .*/src, "):
        wt.pack(src / "images", tmp_path / "dst", dry_run=True)
    assert wt.pack(src, tmp_path / "dst", dry_run=True).account.attached["table"] == 1


def ids_of_others(path: Path) -> None:
    path.parent.mkdir()
    pd.DataFrame({"PassengerId": range(1, 10), "Survived": 1}).to_csv(path, index=False)
    pd.DataFrame({"key": ["1", "x"], "label": 1}).to_csv(path.with_name("labels.csv"), index=False)


OTHERS = {
    "epochs of a training": lambda src: pd.DataFrame({"epoch": range(COUNT), "loss": 0.5}).to_csv(src / "results.csv"),
    "ids of others": lambda src: pd.DataFrame({"id": range(50), "name": "a"}).to_csv(src / "users.csv", index=False),
    "ids of others in a folder": lambda src: ids_of_others(src / "titanic" / "train.csv"),
    "a few images": lambda src: frame("{}.png")[:2].to_csv(src / "best.csv", index=False),
    "other images": lambda src: frame("other{}.png").to_csv(src / "labels.csv", index=False),
    "no table": lambda src: (src / "train.csv").write_text('a,"b\n1'),
    "not Parquet": lambda src: (src / "train.parquet").write_bytes(b"PAR1"),
    "a template": lambda src: frame("{}").to_csv(src / "sample_submission.csv", index=False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_above_a_folder_of_images_does_not_matter(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    OTHERS[name](src)
    account = wt.pack(src / "images", tmp_path / "dst", dry_run=True).account
    assert (account.packed, [note for note in account.notes if "titanic" in note]) == (COUNT, [])


def test_class_names_that_pandas_wrote_as_bytes_are_names(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    names = frame("{}.png")
    names["label"] = names["label"].str.encode("utf-8")
    names.to_csv(src / "train.csv", index=False)  # b'cat'
    assert "b'cat'" in (src / "train.csv").read_text()
    assert labels(packed(src, tmp_path / "dst")) == LABELS


def test_images_that_have_labels_do_not_need_a_table_above(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *(f"images/{name}/{row}.png" for row, name in LABELS.items()))
    frame("{}").to_csv(src / "train.csv", index=False)
    assert labels(packed(src / "images", tmp_path / "dst")) == LABELS


def test_images_without_a_row_and_rows_without_an_image_are_listed_and_counted(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", "polars.csv", count=5).parent
    (src / "more.png").write_bytes(png(9))
    report = wt.pack(src, tmp_path / "dst", workers=1, images="keep")
    assert dict(report.skipped) == {
        "5.png": "is named in 'polars.csv', but there is no such image",
        "more.png": "has no row in 'polars.csv'",
    }
    assert (report.account.given, report.account.packed) == (8, 5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("folder", {"a/0.png": "a", "a/1.png": "a", "b/2.png": "b", "b/3.png": "b"}),
     ("table", {"a/0.png": "cat", "a/1.png": "dog", "b/2.png": "fig", "b/3.png": "cat"})],
)  # fmt: skip
def test_class_folders_and_a_table_that_names_the_images_need_a_decision(
    kind: str, expected: dict[str, str], tmp_path: Path
) -> None:
    src = images(tmp_path / "src", "a/0.png", "a/1.png", "b/2.png", "b/3.png")
    frame("{}")[:4].to_csv(src / "labels.csv", index=False)
    with pytest.raises(
        SourceError, match=r"folders of images \('a', 'b'\), and labels.csv.*--from folder.*--from table"
    ):
        wt.pack(src, tmp_path / "dst", workers=1)
    manifest = wt.pack(src, tmp_path / "dst", kind=kind, workers=1, images="keep").manifest
    found = {path: manifest.classes[int(one["cls"])] for path, one in by_path(tmp_path / "dst").items()}
    assert found == expected


def test_class_folders_of_another_split_than_that_of_the_table_are_an_error(tmp_path: Path) -> None:
    """Kaggle's copy of ImageNet has class folders in train, and a table of val."""
    src = images(tmp_path / "src", "train/a/0.png", "train/b/1.png", "val/2.png", "val/3.png", "test/4.png")
    frame("{}")[2:4].to_csv(src / "LOC_val_solution.csv", index=False)
    with pytest.raises(SourceError, match=r"table of 'val' only, LOC_val_.* class folders \('a', 'b'\) in .*'train'"):
        wt.pack(src, tmp_path / "dst", dry_run=True)
    assert wt.pack(src, tmp_path / "dst", kind="table", dry_run=True).account.packed == 2


def write_gtsrb(src: Path) -> Path:
    """Write images and tables as GTSRB has them: a table in each class folder, and one of the test images."""
    shown = {"Width": 10, "Roi.X1": 1}
    for number in range(2):
        folder = src / "Final_Training" / "Images" / f"{number:05d}"
        names = [f"00000_{row:05d}.png" for row in range(3)]
        for row, name in enumerate(names):
            images(folder, name).joinpath(name).write_bytes(png(3 * number + row))
        pd.DataFrame({"Filename": names, **shown, "ClassId": 5 - number}).to_csv(
            folder / f"GT-{number:05d}.csv", sep=";", index=False
        )
    test = images(src / "Final_Test" / "Images", "00000.png", "00001.png")
    pd.DataFrame({"Filename": ["00000.png", "00001.png"], **shown}).to_csv(test / "GT-final_test.csv", sep=";")
    return src


def test_tables_of_the_images_in_their_own_folder_are_left_out_with_the_folders_as_classes(tmp_path: Path) -> None:
    src = write_gtsrb(tmp_path / "src")
    for path in (src, src / "Final_Training"):
        message = r"GT-00000.csv, .*: pack .*/Final_Training/Images --from folder .* or pack one table, such as .*GT-0"
        with pytest.raises(SourceError, match=message):
            wt.pack(path, tmp_path / "dst", workers=1)
    folders = wt.pack(src / "Final_Training" / "Images", tmp_path / "folders", kind="folder", workers=1)
    assert folders.manifest.classes == ("00000", "00001")
    with pytest.raises(SourceError, match=r"several tables that name its images, .*GT-00000.csv.*GT-00001.csv"):
        wt.pack(src / "Final_Training", tmp_path / "rows", kind="table", workers=1)


def test_one_of_several_tables_can_be_packed_with_the_images_that_it_names(tmp_path: Path) -> None:
    src = images(tmp_path / "src", "Train/0/0.png", "Train/1/1.png", "Test/2.png", "Meta/3.png", "Meta/4.png")
    for name, paths in {"Train": ["0/0", "1/1"], "Test": ["2"], "Meta": ["3", "4"]}.items():
        table = pd.DataFrame({"ClassId": range(len(paths)), "Path": [f"{name}/{path}.png" for path in paths]})
        table.to_csv(src / f"{name}.csv", index=False)
    with pytest.raises(SourceError, match=r"pack .*src/Train --from folder .*, or pack one table, such as .*csv, for"):
        wt.pack(src, tmp_path / "dst", workers=1)
    with pytest.raises(SourceError, match=r"'Train.csv' .*: pack one of them by its path, if"):
        wt.pack(src, tmp_path / "dst", kind="table", workers=1)
    wt.pack(src / "Train.csv", tmp_path / "dst", workers=1, images="keep")
    assert {path: int(one["cls"]) for path, one in by_path(tmp_path / "dst").items()} == {
        "Train/0/0.png": 0,
        "Train/1/1.png": 1,
    }


def test_a_table_of_classes_is_left_out_even_if_its_numbers_are_names_of_images(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *(f"{name}/{row}.png" for name in NAMES for row in range(4)))
    pd.DataFrame({"id": range(3), "name": NAMES}).to_csv(src / "classes.csv", index=False)
    report = wt.pack(src, tmp_path / "dst", workers=1, images="keep")
    assert report.manifest.classes == NAMES
    [skip] = report.skipped
    assert (skip.path, skip.reason.partition(":")[0]) == (
        "classes.csv",
        "has a name for each number ('cat', 'dog', 'fig'), which is not read with images next to it",
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two tables": (
        {"one.csv": frame("{}"), "two.csv": frame("{}").assign(label="cat")},
        r"several tables that name its images, 'one.csv' \(id, label\), 'two.csv' \(id, label\): .*--label .*--from",
    ),
    "two tables of other images": (
        {"one.csv": frame("{}.png")[:2], "two.csv": frame("{}.png")[2:4]},
        "several tables that name its images, 'one.csv' .*, 'two.csv' ",
    ),
    "a table of two and one of the others": (
        {"one.csv": frame("{}.png")[:4], "two.csv": frame("{}.png")[4:]},
        "several tables that name its images, 'one.csv' .*, 'two.csv' ",
    ),
    "a row of each box": (
        {"boxes.csv": pd.concat([frame("{}"), frame("{}")[:2]])},
        r"boxes.csv has 2 rows for 'images/0.png', and a sample has one row",
    ),
    "few images": (
        {"best.csv": frame("{}.png")[:2]},
        r"best.csv names 2 images in column 'id' \(0.png, 1.png\), .*: .*--column image=id .*; or pack .*src/images",
    ),
    "few ids": ({"best.csv": frame("{}")[:2]}, r"best.csv names 2 images in column 'id' \(0, 1\), and not most"),
    "one of several names": (
        {"t.csv": frame("photo{}.png").assign(id=["0.png", *names_of("photo{}.png", 5)])},
        r"t.csv names 1 image in column 'id' \(0.png\), and not most",
    ),
    "no header": ({"anno.csv": "0.png,3\n1.png,4\n2.png,5\n"}, "anno.csv begins with a row of values, 0.png, 3"),
    "pairs": (
        {"pairs.csv": frame("{}.png", "one", two=[f"{5 - row}.png" for row in range(6)])},
        r"pairs.csv has 2 columns that could be the image: 'one' .*, 'two' .*--column image=one",
    ),
    "two usual names": (
        {"pairs.csv": frame("{}.png", "image", file=[f"{5 - row}.png" for row in range(6)])},
        r"pairs.csv has 2 columns that could be the image: 'image' .*, 'file' .*--column image=image",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_with_the_choices(name: str, tmp_path: Path) -> None:
    tables, message = REFUSED[name]
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    for table, content in tables.items():
        if isinstance(content, str):
            (src / table).write_text(content)
        else:
            content.to_csv(src / table, index=False)
    with pytest.raises(SourceError, match=message):
        wt.pack(src, tmp_path / "dst", workers=1)


LISTS = {
    "train.txt": "".join(f"{row}.png {row % 3}\n" for row in range(COUNT)),
    "list_attr_celeba.txt": "6\nSmiling Young\n" + "".join(f"{row}.png  1 -1\n" for row in range(COUNT)),
    "val_annotations.txt": frame("{}.png", x=0, y=1).to_csv(sep="\t", header=False, index=False),
    "ids.lst": "".join(f"{row},{row % 3}\n" for row in range(COUNT)),
}
"""Lists as Caffe, CelebA, Tiny ImageNet and MXNet write them."""

STRUCTURED = {
    "labels.json": json.dumps({f"{row}.png": row % 3 for row in range(COUNT)}),
    "dataset.json": json.dumps({"labels": [[f"images/{row}.png", row % 3] for row in range(COUNT)]}),
    "ids.json": json.dumps({str(row): row % 3 for row in range(COUNT)}),
    "tasks.json": json.dumps([{"data": {"image": f"/data/{row}.png"}, "annotations": []} for row in range(COUNT)]),
}
"""JSON as scripts, StyleGAN and Label Studio write it."""


@pytest.mark.parametrize("name", LISTS)
def test_a_list_without_names_of_columns_is_refused_instead_of_losing_the_labels(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("images/{}.png"))
    (src / "classes.txt").write_text("0 cat\n1 dog\n2 fig\n")
    assert wt.pack(src, tmp_path / "without", workers=1).account.skipped.total() == 1
    (src / name).write_text(LISTS[name])
    with pytest.raises(
        SourceError, match=rf"{name} has a value for each image, .* write it as CSV .* pack .*src/images"
    ):
        wt.pack(src, tmp_path / "dst", workers=1)


@pytest.mark.parametrize(
    "lists",
    [
        {"x": ["0.png", "1.png"], "y": ["2.png", "3.png"]},
        {"pie": ["0.png", "1.png"], "ramen": ["2.png", "3.png"], "soup": ["4.png", "5.png"]},
        {"train": [0, 1, 2], "val": [3, 4, 5]},
    ],
)
def test_lists_of_the_images_of_each_class_are_not_columns(lists: dict[str, Any], tmp_path: Path) -> None:
    src = images(tmp_path / "src", *(f"{row}.png" for row in range(sum(map(len, lists.values())))))
    (src / "labels.json").write_text(json.dumps(lists))
    with pytest.raises(SourceError, match=r"labels.json has lists of images for .*path,label; or pass --from folder"):
        wt.pack(src, tmp_path / "dst", workers=1)


@pytest.mark.parametrize("name", [*LISTS, "labels.json", "some.csv"])
def test_masks_do_not_hide_a_file_about_the_images(name: str, tmp_path: Path) -> None:
    """The photographs, trimaps and list of Oxford-IIIT Pets are arranged so."""
    src = images(tmp_path / "src", *names_of("images/{}.png"), *names_of("annotations/trimaps/{}.png"))
    (src / "readme.txt").write_text("Photographs of pets\n")
    assert wt.pack(src, tmp_path / "without", workers=1).packed == COUNT
    if name == "some.csv":
        frame("{}.png").head(COUNT // 3).to_csv(src / name, index=False)
    else:
        (src / name).write_text({**LISTS, **STRUCTURED}[name])
    with pytest.raises(SourceError, match=rf"{name} .* pass --from masks .*to pack the images without it"):
        wt.pack(src, tmp_path / "dst", workers=1)
    given = wt.pack(src, tmp_path / "given", kind="masks", workers=1)
    assert (given.packed, given.account.skipped.total()) == (COUNT, 2)


@pytest.mark.parametrize("name", STRUCTURED)
def test_json_about_images_is_refused_instead_of_losing_the_labels(name: str, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    (src / "images.json").write_text(json.dumps(names_of("{}.png")))  # only a list of them
    (src / "readme.json").write_text(json.dumps({"images": COUNT, "license": "CC0"}))
    (src / "0.png.json").write_text(json.dumps({"title": "0.png"}))  # a field of the image, as Google Takeout writes it
    assert wt.pack(src, tmp_path / "without", workers=1).account.skipped.total() == 2
    (src / name).write_text(STRUCTURED[name])
    with pytest.raises(SourceError, match=rf"{name} is about images such as .* not read: .*; or pass --from folder"):
        wt.pack(src, tmp_path / "dst", workers=1)
    assert wt.pack(src, tmp_path / "given", kind="folder", workers=1).packed == COUNT


def test_a_split_without_class_folders_is_not_packed_without_its_list(tmp_path: Path) -> None:
    """Tiny ImageNet has class folders in ``train``, and a list in ``val``."""
    src = images(tmp_path / "src", *(f"train/{name}/images/{name}_0.png" for name in NAMES))
    for name in NAMES:
        boxes = pd.DataFrame([[f"{name}_0.png", 0, 10, 63, 58]])
        boxes.to_csv(src / "train" / name / f"{name}_boxes.txt", sep="\t", header=False, index=False)
    images(src, *names_of("val/images/val_{}.png"), *names_of("test/images/test_{}.png"))
    assert wt.pack_splits(src, tmp_path / "without", split="folders", workers=1)["train"].manifest.classes == NAMES
    frame("val_{}.png").to_csv(src / "val" / "val_annotations.txt", sep="\t", header=False, index=False)
    with pytest.raises(SourceError, match=r"val/val_annotations.txt has a value for each image.* class folders;"):
        wt.pack_splits(src, tmp_path / "dst", split="folders", workers=1)


def test_class_folders_are_classes_whatever_lists_of_their_images_there_are(tmp_path: Path) -> None:
    """Food-101 has lists of each split, as text and as JSON."""
    src = images(tmp_path / "src", *names_of("images/cat/1{}.png", 3), *names_of("images/dog/2{}.png", 3))
    names = pd.DataFrame({"cat": ["cat/10", "cat/11"], "dog": ["dog/20", "dog/21"]})
    (src / "meta").mkdir()
    (src / "meta" / "train.json").write_text(json.dumps(names.to_dict("list")))
    names.melt()["value"].to_csv(src / "meta" / "train.txt", header=False, index=False)
    report = wt.pack(src, tmp_path / "dst", workers=1, images="keep")
    assert report.manifest.classes == ("cat", "dog")
    assert {skip.path for skip in report.skipped} == {"meta/train.json", "meta/train.txt"}
    assert {skip.reason.split(":")[0] for skip in report.skipped} == {
        "is named like a list of a split, which is not read"
    }
    notes = report.manifest.account.notes
    [note] = notes
    assert note.startswith("'meta/train.json' (and 1 other file) is named like a list of a split, which is not read: ")


def test_json_files_that_describe_one_image_each_are_left_out_of_class_folders(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("cat/{}.png", 2), *names_of("dog/{}.png", 2))
    for path in sorted(src.rglob("*.png")):
        path.with_name(f"{path.stem}_meta.json").write_text(json.dumps({"file": f"{path.parent.name}/{path.name}"}))
    report = wt.pack(src, tmp_path / "dst", workers=1, images="keep")
    assert (report.manifest.classes, len(report.skipped)) == (("cat", "dog"), 4)


def test_the_label_of_the_user_chooses_among_tables(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    frame("{}").to_csv(src / "one.csv", index=False)
    frame("{}").assign(label="x", breed=list(LABELS.values())).to_csv(src / "two.csv", index=False)
    assert labels(packed(src, tmp_path / "dst", columns={"label": "breed"})) == LABELS


def test_a_name_that_two_images_have_is_refused_with_both(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("big/{}.png"))
    images(src, *names_of("small/{}.png"))
    frame("{}").to_csv(src / "labels.csv", index=False)
    with pytest.raises(SourceError, match=r"labels.csv names '0', which can be 'big/0.png', 'small/0.png'"):
        wt.pack(src, tmp_path / "dst", kind="table", workers=1)


def test_columns_of_the_user_choose_image_and_label(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    pairs = frame("{}.png", "one", two=[f"{5 - row}.png" for row in range(6)]).rename(columns={"label": "breed"})
    pairs.to_csv(src / "pairs.csv", index=False)
    found = packed(src, tmp_path / "dst", columns={"image": "two", "label": "breed"})
    assert labels(found) == {5 - row: name for row, name in LABELS.items()}
    with pytest.raises(OptionError, match="because no table in it has a column 'three'"):
        packed(src, tmp_path / "other", columns={"image": "three"})
    (src / "pairs.csv").unlink()
    with pytest.raises(OptionError, match="read as folder, which has no columns, because no table"):
        packed(src, tmp_path / "other", columns={"label": "breed"})


def test_masks_that_the_rows_name_and_those_with_the_name_of_an_image_become_fields(tmp_path: Path) -> None:
    by_row = images(tmp_path / "row", *names_of("images/{}.png"), *names_of("masks/m{}.png"))
    frame("images/{}.png", "image", mask_path=names_of("masks/m{}.png")).to_csv(by_row / "train.csv", index=False)
    by_name = images(tmp_path / "name", *names_of("images/{}.png"), *names_of("masks/{}.png"))
    frame("{}").to_csv(by_name / "train.csv", index=False)
    for src in (by_row, by_name):
        wt.pack(src, tmp_path / f"{src.name}.out", workers=1, images="keep")
        found = by_path(tmp_path / f"{src.name}.out")
        assert {path: (NAMES[int(one["cls"])], one["mask.png"]) for path, one in found.items()} == {
            f"images/{row}.png": (name, png(COUNT + row)) for row, name in LABELS.items()
        }


@pytest.mark.parametrize("tables", [("train.csv", "val.csv"), ("all.csv",)])
def test_an_image_without_a_row_is_skipped_in_the_split_of_its_folder(tables: tuple[str, ...], tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("train/{}.png"))
    images(src, "val/6.png", "val/7.png", "val/8.png")
    rows = pd.DataFrame({"id": [*names_of("train/{}.png"), "val/6.png", "val/7.png"], "label": ["cat", "dog"] * 4})
    for table, part in zip(tables, (rows[:6], rows[6:]) if len(tables) > 1 else (rows,), strict=True):
        part.to_csv(src / table, index=False)
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    assert {split: dict(report.skipped) for split, report in reports.items()} == {
        "train": {},
        "val": {"val/8.png": f"has no row in {tables[-1]!r}"},
    }


def test_columns_of_zero_and_one_are_labels(tmp_path: Path) -> None:
    """Roboflow's ``_classes.csv`` has several labels."""
    roboflow = images(tmp_path / "roboflow", *names_of("{}.png"))
    (roboflow / "_classes.csv").write_text(
        "filename, cat, dog, fig\n" + "".join(f"{row}.png, {row % 2}, {row // 2 % 2}, 1\n" for row in range(COUNT))
    )
    report = wt.pack(roboflow, tmp_path / "several", workers=1, images="keep")
    assert report.manifest.field_classes["labels.json"].names == NAMES
    assert {path: json.loads(one["labels.json"]) for path, one in by_path(tmp_path / "several").items()} == {
        f"{row}.png": [0] * (row % 2) + [1] * (row // 2 % 2) + [2] for row in range(COUNT)
    }


@pytest.mark.parametrize("dtype", [float, bool])
def test_columns_with_one_class_of_each_row_are_the_label(dtype: type, tmp_path: Path) -> None:
    """ISIC's table has 0.0 and 1.0; pandas writes booleans by default. One column of 0 and 1 is another fact."""
    src = images(tmp_path / "src", *names_of("ISIC_{}.png"))
    table = pd.get_dummies(frame("ISIC_{}")["label"], dtype=dtype)
    table.insert(0, "image", names_of("ISIC_{}"))
    if dtype is bool:
        table["sex"] = [row // 3 % 2 for row in range(COUNT)]
    table.to_csv(src / "truth.csv")
    assert labels(packed(src, tmp_path / "dst")) == LABELS


@pytest.mark.parametrize(
    ("columns", "rows", "classes", "expected"),
    [
        ("dog, cat", ["1, 0", "1, 1", "0, 0"], ("cat", "dog", "cow"), [[1], [0, 1], []]),
        ("elk, cat", ["1, 0", "1, 1", "0, 1"], ("cat", "dog", "cow", "elk"), [[3], [0, 3], [0]]),
        ("dog", ["1", "0", "1"], ("cat", "dog", "cow"), [[1], [], [1]]),
        ("cat, dog, cow", ["1, 0, 0", "0, 0, 1", "0, 1, 0"], ("cat", "dog", "cow"), [[0], [2], [1]]),
    ],
    ids=["a class is missing", "another class", "only one class", "one label each"],
)
def test_columns_of_classes_are_matched_by_name_over_splits(
    columns: str, rows: list[str], classes: tuple[str, ...], expected: list[list[int]], tmp_path: Path
) -> None:
    """Roboflow's tables; a split with a single 1 in each row has several labels too, as the other split does."""
    tables = {"train": ("cat, dog, cow", ["1, 1, 0", "0, 1, 1", "0, 0, 0"]), "valid": (columns, rows)}
    for split, (header, lines) in tables.items():
        images(tmp_path / "src" / split, *names_of("{}.png", len(lines)))
        table = "".join(f"{row}.png, {line}\n" for row, line in enumerate(lines))
        (tmp_path / "src" / split / "_classes.csv").write_text(f"filename, {header}\n{table}")
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", images="keep", workers=1)
    assert {report.manifest.field_classes["labels.json"].names for report in reports.values()} == {classes}
    found = by_path(tmp_path / "dst" / "valid")
    assert [sorted(json.loads(found[f"valid/{row}.png"]["labels.json"])) for row in range(3)] == expected
    found = by_path(tmp_path / "dst" / "train")
    assert [json.loads(found[f"train/{row}.png"]["labels.json"]) for row in range(3)] == [[0, 1], [1, 2], []]


def test_the_label_of_a_small_split_is_that_of_the_large_one(tmp_path: Path) -> None:
    """Five rows with five classes look like ids."""
    src = images(tmp_path / "src", *names_of("images/{}.png", 15))
    table = pd.DataFrame({"id": names_of("{}", 15), "class": [f"c{row % 5}" for row in range(15)]})
    table[:10].to_csv(src / "train.csv", index=False)
    table[10:].to_csv(src / "val.csv", index=False)
    wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    assert {path: int(one["cls"]) for path, one in by_path(tmp_path / "dst" / "val").items()} == {
        f"images/{row}.png": row % 5 for row in range(10, 15)
    }


def test_an_archive_of_two_kinds_of_files_says_what_becomes_of_each(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    frame("{}").to_csv(src / "labels.csv", index=False)
    frame("{}").to_feather(src / "more.feather")
    with tarfile.open(src / "more.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("x.png"), io.BytesIO())
    report = wt.pack(src, tmp_path / "dst", workers=1, images="keep")
    assert {path: reason.partition(",")[0] for path, reason in report.skipped} == {
        "more.feather": "has columns in a binary format",
        "more.tar": "is an archive",
    }


def test_columns_of_minus_one_and_one_are_several_labels(tmp_path: Path) -> None:
    """CelebA's attributes, as pandas writes them; in CheXpert's, -1 is uncertain and 0 is no."""
    src = images(tmp_path / "src", *names_of("{:06}.png"))
    flags = {name: [1 if row >> bit & 1 else -1 for row in range(COUNT)] for bit, name in enumerate(NAMES)}
    table = pd.DataFrame({"image_id": names_of("{:06}.png"), **flags})
    table.to_csv(src / "list_attr_celeba.csv", index=False)
    report = wt.pack(src, tmp_path / "several", workers=1, images="keep")
    assert report.manifest.field_classes["labels.json"].names == NAMES
    assert {path: json.loads(one["labels.json"]) for path, one in by_path(tmp_path / "several").items()} == {
        f"{row:06}.png": [bit for bit in range(3) if row >> bit & 1] for row in range(COUNT)
    }
    with pytest.raises(LabelError, match="only 1 and -1, and -1 means no label: write 1 and 0"):
        wt.pack(src, tmp_path / "one", columns={"label": "cat"}, dry_run=True)
    table.loc[0, list(NAMES)] = 0
    table.to_csv(src / "list_attr_celeba.csv", index=False)
    uncertain = wt.pack(src, tmp_path / "entries", workers=1, images="keep").manifest
    assert "labels.json" not in uncertain.fields


@pytest.mark.parametrize(
    ("column", "train", "val"),
    [("split", "train", "val"), ("Split", 0, 1), ("is_train", True, False), ("fold", 3.0, 4.0)],
)
@pytest.mark.parametrize("writer", ["to_csv", "to_parquet"])
@pytest.mark.torture_except("to_csv-split-train-val", "to_parquet-is_train-True-False", "to_csv-fold-3.0-4.0")
def test_a_column_of_splits_is_named_in_a_note(writer: str, column: str, train: Any, val: Any, tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png", 300))
    table = pd.DataFrame({"image": names_of("{}.png", 300), column: [train] * 250 + [val] * 50})
    if writer == "to_parquet":
        table["image"] = [{"bytes": png(0), "path": None}] * 300
    path = (src if writer == "to_csv" else tmp_path) / f"table.{writer.removeprefix('to_')}"
    getattr(table, writer)(path, index=False)
    for where in (src, path) if writer == "to_csv" else (path,):
        lines = wt.pack(where, tmp_path / "dst", dry_run=True).account.notes
        shown = ", ".join(map(repr, sorted(map(str, (train, val)))))
        assert any(f"column {column!r} names splits, {shown}" in line for line in lines)


def test_a_mask_of_another_size_than_its_image_is_reported(tmp_path: Path) -> None:
    """In class folders, and with a table."""
    small = io.BytesIO()
    Image.new("L", (3, 5)).save(small, "PNG")
    for name in ("folders/cat", "tables"):
        src = images(tmp_path / name, "1.png", "2.png")
        (src / "1.mask.png").write_bytes(small.getvalue())
    (tmp_path / "tables" / "labels.csv").write_text("file,label\n1.png,cat\n2.png,cat\n")
    for name in ("folders", "tables"):
        report = wt.pack(tmp_path / name, tmp_path / f"{name} packed", workers=1, images="keep")
        assert report.packed == 1
        assert "mask 'mask.png' is 3x5" in report.skipped[0].reason


def test_numbers_that_json_lacks_and_fields_of_further_images_are_stated(tmp_path: Path) -> None:
    images(tmp_path / "src", *names_of("{}.png"), *names_of("masks/{}_m.png"))
    rows = [
        {"file_name": f"{row}.png", "label": label, "mask_path": f"{row}_m.png", "score": float("nan")}
        for row, label in LABELS.items()
    ]
    (tmp_path / "src" / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    account = open_source(tmp_path / "src", kind="table").scan().account
    assert f"NaN and infinite numbers of 'score' are null in json: {len(rows)}" in account.notes
    assert {part.name: part.role for part in account.parts}["mask_path"] == "image field mask"


def test_columns_of_0_and_1_have_one_note(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    flags = {name: [int(row % len(NAMES) == number) for row in range(COUNT)] for number, name in enumerate(NAMES)}
    further = {"sex": ["m", "f"] * (COUNT // 2), "site": [0, 2] * (COUNT // 2)}
    pd.DataFrame({"image": names_of("{}.png"), **flags, **further}).to_csv(src / "truth.csv", index=False)
    report = wt.pack(src, tmp_path / "dst", workers=1, images="keep", classes=NAMES[::-1])
    assert report.manifest.classes == NAMES[::-1]
    assert [int(by_path(tmp_path / "dst")[f"{row}.png"]["cls"]) for row in range(3)] == [2, 1, 0]
    [note] = report.manifest.account.notes
    assert note.startswith(f"the labels are lists of 0 and 1 for {len(NAMES)} classes")


def test_columns_of_0_and_1_next_to_names_are_an_error_in_the_tables_of_splits_too(tmp_path: Path) -> None:
    src, sites = tmp_path / "src", ["site_a", "site_b", "site_c"]
    for split in ("train", "val"):
        images(src / split, *names_of(f"{split}{{}}.png"))
        flags = {name: [int(row % 3 == number) for row in range(COUNT)] for number, name in enumerate(sites)}
        table = {"image": names_of(f"{split}{{}}.png"), "kind": ["mel", "nev"] * (COUNT // 2), **flags}
        pd.DataFrame(table).to_csv(src / f"{split}.csv", index=False)
    splits: dict[str, Any] = {"split": "folders", "dry_run": True}
    with pytest.raises(SourceError, match=r"could be the label: 'kind' \(mel, nev\), 'site_a' .*--label kind"):
        wt.pack_splits(src, tmp_path / "dst", **splits)
    for options, expected in (({"columns": {"label": "kind"}}, ("mel", "nev")), ({"classes": sites}, tuple(sites))):
        reports = wt.pack_splits(src, tmp_path / "dst", **splits, **options)
        assert {report.manifest.classes for report in reports.values()} == {expected}


@pytest.mark.parametrize(("first", "second"), [("cat", "dog"), ("is_train", "is_test")])
def test_columns_of_0_and_1_are_labels_by_the_same_rule_in_a_table_and_in_its_folder(
    first: str, second: str, tmp_path: Path
) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    flags = {first: [row % 2 for row in range(COUNT)], second: [1 - row % 2 for row in range(COUNT)]}
    pd.DataFrame({"image": names_of("{}.png"), **flags, "site": "x"}).to_csv(src / "t.csv", index=False)
    found = {}
    for path in (src, src / "t.csv"):
        dst = tmp_path / f"packed-{path.name}"
        report = wt.pack(path, dst, workers=1, images="keep")
        samples = {name: (one.get("cls"), json.loads(one["json"])) for name, one in by_path(dst).items()}
        roles = {part.name: part.role for part in report.account.parts if part.kind == "column"}
        found[path] = report.manifest.classes, {name: label for name, (label, _) in samples.items()}, roles
        is_label = first == "cat"
        assert all((first in facts) != is_label for _, facts in samples.values())
        assert report.manifest.classes == ((first, second) if is_label else ())
    assert found[src] == found[src / "t.csv"]


def test_a_table_whose_names_differ_in_case_from_images_without_labels_is_an_error(tmp_path: Path) -> None:
    src = images(tmp_path / "src", *names_of("{}.png"))
    table = pd.DataFrame({"image": names_of("{}.PNG"), "label": list(LABELS.values())})
    table.to_csv(src / "t.csv", index=False)
    with pytest.raises(SourceError, match=r"t.csv has a row for each image, .*: correct .*case.*--from folder"):
        wt.pack(src, tmp_path / "dst", workers=1)
    table[:4].to_csv(src / "t.csv", index=False)
    [note] = wt.pack(src, tmp_path / "dst", workers=1, images="keep").manifest.account.notes
    assert note.startswith("'t.csv' is a table that does not name most of the images")


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_list_with_one_path_is_the_path_of_the_image(tmp_path: Path, ending: str) -> None:
    """Tools for vision-language models write ``images`` as a list; two images of a row are refused."""
    folder = images(tmp_path / "src", *(f"{number}.png" for number in range(6)))
    rows = [{"id": 5 - number, "images": [f"{number}.png"], "messages": ["What?"]} for number in range(6)]

    def write() -> Path:
        text = json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows))
        (folder / f"t.{ending}").write_text(text)
        return folder / f"t.{ending}"

    for number, src in enumerate((write(), folder)):
        wt.pack(src, tmp_path / f"{number}", workers=1, images="keep", shuffle=False)
        facts = [json.loads(sample["json"]) for sample in stored(tmp_path / f"{number}")]
        assert [(fact["path"], fact["id"], fact["messages"]) for fact in facts] == [
            (f"{number}.png", 5 - number, ["What?"]) for number in range(6)
        ]
    rows[3]["images"] += ["1.png"]
    for src, refused in ((write(), "objects or lists in column"), (folder, "could be the image: 'images'")):
        with pytest.raises(SourceError, match=refused):
            open_source(src).scan()


@pytest.mark.parametrize(
    "other",
    [
        lambda name: {"img_url": f"https://host/p/{name}?size=1"},
        lambda name: {"meta": {"files": [{"name": name}]}},
        lambda name: {"data": {"image": f"/data/upload/1/ab12cd34-{name}"}},  # Label Studio
        lambda name: {"data": {"image": f"/data/local-files/?d=photos/{name}"}},
        lambda name: {"text": f"<img>photos/{name}</img> What is it?"},  # Qwen-VL
        lambda name: {"files": f"['photos/{name}']"},
        lambda name: {"original": f"old\\{name}".replace(".png", ".jpg")},
    ],
    ids=["url", "nested", "label-studio", "local-files", "tag", "list", "path"],
)
def test_ids_that_disagree_with_names_of_files_in_the_row_are_refused(tmp_path: Path, other: Any) -> None:
    images(tmp_path, *(f"{number}.png" for number in range(1, 13)))
    for step, is_refused in ((7, True), (1, False)):
        rows = [{"id": id_} | other(f"{id_ * step % 13}.png") | {"label": id_ % 2} for id_ in range(1, 13)]
        (tmp_path / "t.json").write_text(json.dumps(rows))
        if is_refused:
            with pytest.raises(SourceError, match=r"in 'id' \(1\), and names of other images.*7\."):
                open_source(tmp_path).scan()
        else:
            assert [entry.path for entry in open_source(tmp_path).scan().inputs] == [f"{row['id']}.png" for row in rows]
