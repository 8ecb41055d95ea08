"""TFRecord files that TensorFlow wrote (`tests/foreign/README.md`), compared with what TensorFlow reads from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign_records import FOREIGN, account_of, expected, packed

from wds_tools.errors import LabelError, SourceError

FILES = FOREIGN / "tfrecord"
READ = expected("tfrecord")


def one(row: dict[str, list[object]], name: str) -> object:
    (value,) = row[name]
    return value


@pytest.mark.parametrize("name", ["slim.tfrecord", "compressed/gzip.tfrecord.gz", "compressed/zlib.tfrecord"])
def test_numbers_keep_their_values_and_are_named_by_the_text_beside_them(name: str, tmp_path: Path) -> None:
    samples = packed(FILES / name, tmp_path / "dst")
    found = [(sample.pixels, sample.label, sample.name) for sample in samples]
    assert found == [
        (one(row, "image/encoded"), one(row, "image/class/label"), one(row, "image/class/text")) for row in READ[name]
    ]
    assert [sample.facts["image/object/bbox/xmin"] for sample in samples] == [
        row["image/object/bbox/xmin"] for row in READ[name]
    ]  # a list in every sample, even if it has one box
    roles, account = account_of(FILES / name)
    assert set(roles) == set(READ[name][0])
    assert roles["image/class/text"] == "class names"
    assert account.notes == [
        "1 class number of 4 without a row, and so without a name, such as 0: the number is the class name"
    ]


def test_a_number_with_two_texts_has_no_name(tmp_path: Path) -> None:
    src = FILES / "two_texts.tfrecord"
    samples = packed(src, tmp_path / "numbers")
    assert [(sample.label, sample.name) for sample in samples] == [
        (one(row, "image/class/label"), None) for row in READ["two_texts.tfrecord"]
    ]
    assert samples[5].facts["image/class/text"] == "wolf"
    assert "'image/class/text' does not give the class names" in account_of(src)[1].notes[0]
    named = packed(src, tmp_path / "named", classes=["none", "a", "b", "c"])
    assert [sample.name for sample in named] == ["a", "b", "c"] * 2


def test_a_text_of_two_numbers_is_not_their_name(tmp_path: Path) -> None:
    samples = packed(FILES / "same_text.tfrecord", tmp_path / "dst")
    assert [(sample.label, sample.name) for sample in samples] == [(1, None), (2, None), (3, None)] * 2
    assert [sample.facts["image/class/text"] for sample in samples] == ["crane", "dog", "crane"] * 2
    assert "does not give the class names" in account_of(FILES / "same_text.tfrecord")[1].notes[0]


@pytest.mark.parametrize(("name", "image"), [("raw.tfrecord", "image_raw"), ("stylegan.tfrecords", "data")])
def test_raw_pixels_are_read_by_the_size_beside_them(name: str, image: str, tmp_path: Path) -> None:
    samples = packed(FILES / name, tmp_path / "dst")
    encoded = [one(row, "image") for row in READ["union/part-00000-of-00002"]]  # the same photographs as PNGs
    assert [sample.pixels for sample in samples[:3]] == encoded
    labels = [row.get("label", [None])[0] for row in READ[name]]
    assert [sample.label for sample in samples] == labels
    roles, account = account_of(FILES / name)
    assert roles[image] == "image"
    assert {roles[one] for one in roles if one not in (image, "label")} == {"size of the image"}
    assert account.notes == [f"{image!r} has raw pixels; colours are in the order R, G, B"]


def test_grey_raw_pixels_need_no_depth(tmp_path: Path) -> None:
    from hashlib import md5
    from io import BytesIO

    from PIL import Image

    samples = packed(FILES / "grey.tfrecord", tmp_path / "dst")
    for sample, row in zip(samples, READ["grey.tfrecord"], strict=True):
        with Image.open(BytesIO(sample.fields["png"])) as image:
            assert (image.mode, image.size) == ("L", (10, 8))
            assert md5(image.tobytes()).hexdigest() == one(row, "image_raw")


def test_a_sequence_example_with_one_image_is_a_sample(tmp_path: Path) -> None:
    samples = packed(FILES / "sequence.tfrecord", tmp_path / "dst")
    rows = READ["sequence.tfrecord"]
    assert [(sample.pixels, sample.label) for sample in samples] == [(one(r, "image"), one(r, "label")) for r in rows]
    assert [sample.facts["tokens"] for sample in samples] == [row["tokens"] for row in rows]
    assert set(account_of(FILES / "sequence.tfrecord")[0]) == set(rows[0])


def test_features_of_all_files_are_packed_and_accounted_for(tmp_path: Path) -> None:
    samples = packed(FILES / "union", tmp_path / "dst")
    rows = READ["union/part-00000-of-00002"] + READ["union/part-00001-of-00002"]
    assert [(sample.pixels, sample.label) for sample in samples] == [(one(r, "image"), one(r, "label")) for r in rows]
    assert [sample.fields.get("txt", b"").decode() for sample in samples] == [r.get("caption", [""])[0] for r in rows]
    assert ["mask.png" in sample.fields for sample in samples] == ["mask" in row for row in rows]
    assert [sample.facts.get("scores") for sample in samples] == [row.get("scores") for row in rows]
    roles, _ = account_of(FILES / "union")
    assert roles["caption"] == "field txt"
    assert set(roles) == {"image", "label", "caption", "mask", "scores"}


def test_class_names_of_tensorflow_datasets_are_read_from_the_file_beside(tmp_path: Path) -> None:
    folder = FILES / "tfds" / "toy" / "1.0.0"
    samples = packed(folder, tmp_path / "dst")
    rows = [row for part in range(2) for row in READ[f"tfds/toy/1.0.0/toy-train.tfrecord-0000{part}-of-00002"]]
    names = ["zebra", "apple", "mango"]  # the order of the file, not of the alphabet
    assert [(s.pixels, s.label, s.name) for s in samples] == [
        (one(row, "image"), one(row, "label"), names[row["label"][0]]) for row in rows
    ]
    roles, _ = account_of(folder)
    assert roles["label.labels.txt"] == "class names"
    assert roles["features.json"] == "is next to what is packed, and is not read"
    one_file = packed(min(folder.glob("toy-*")), tmp_path / "one")
    assert [sample.name for sample in one_file] == names
    roles, account = account_of(FILES / "tfds")  # what `tfds.load(data_dir=...)` has
    assert (roles["toy/1.0.0/label.labels.txt"], account.notes) == ("class names", [])


def test_labels_of_other_types_follow_the_rule_for_labels(tmp_path: Path) -> None:
    names = packed(FILES / "names.tfrecord", tmp_path / "names")
    assert [sample.name for sample in names] == [one(row, "label") for row in READ["names.tfrecord"]]
    whole = packed(FILES / "whole_floats.tfrecord", tmp_path / "whole")
    assert [sample.label for sample in whole] == [one(row, "label") for row in READ["whole_floats.tfrecord"]]
    fractions = packed(FILES / "fractions.tfrecord", tmp_path / "fractions")
    assert [sample.label for sample in fractions] == [None] * 6
    assert [sample.facts["label"] for sample in fractions] == [one(row, "label") for row in READ["fractions.tfrecord"]]
    (note,) = account_of(FILES / "fractions.tfrecord")[1].notes
    assert note.startswith("feature 'label' is not the label, because it has numbers with fractions, such as 0.5")
    with pytest.raises(LabelError, match=r"0\.5.*1\.5.*--label-type name"):
        packed(FILES / "fractions.tfrecord", tmp_path / "dst", columns={"label": "label"})


def test_the_text_of_a_class_is_the_label_if_there_is_no_number(tmp_path: Path) -> None:
    data = [one(row, "image/class/text") for row in READ["slim.tfrecord"]]
    samples = packed(FILES / "slim.tfrecord", tmp_path / "dst", columns={"label": "image/class/text"})
    assert [sample.name for sample in samples] == data
    texts = packed(FILES / "texts.tfrecord", tmp_path / "texts")
    assert [sample.name for sample in texts] == [one(row, "image/class/text") for row in READ["texts.tfrecord"]]


def test_records_without_a_label_or_with_a_negative_one_are_skipped(tmp_path: Path) -> None:
    samples = packed(FILES / "missing.tfrecord", tmp_path / "dst")
    rows = [row for row in READ["missing.tfrecord"] if row.get("label", [-1])[0] >= 0]
    assert [(sample.pixels, sample.label) for sample in samples] == [(one(r, "image"), one(r, "label")) for r in rows]
    _, account = account_of(FILES / "missing.tfrecord")
    assert (account.given, account.packed, account.skipped) == (6, 4, {"has no label": 2})


def test_several_labels_of_a_record_are_a_field(tmp_path: Path) -> None:
    samples = packed(FILES / "several_labels.tfrecord", tmp_path / "dst")
    labels = [json.loads(sample.fields["labels.json"]) for sample in samples]
    assert labels == [row["image/class/label"] for row in READ["several_labels.tfrecord"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two_labels.tfrecord", r"2 features that could be the label: 'label' \(0, 1, 2\), 'target' \(0, 1\)"),
        ("two_images.tfrecord", r"2 features that could be the image: 'left' .*, 'right' .*--column image=left"),
        ("video.tfrecord", r"has 2 images in 'image'; allowed is one per record: write one record per image"),
        ("frames.tfrecord", r"has 2 images in 'image'; allowed is one per record"),
        ("floats.tfrecord", r"960 bytes of raw pixels, but .* state 8 x 10 x 3; allowed is one byte per value"),
        ("serialized.tfrecord", "has no feature of images"),
        ("tfds_splits", r"several splits \(test, train\): pack (with .*, or )?one at a time, such as"),
    ],
)
def test_what_is_ambiguous_or_not_one_image_per_record_is_an_error(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        packed(FILES / name, tmp_path / "dst")


def test_a_column_decides_what_is_ambiguous(tmp_path: Path) -> None:
    labels = packed(FILES / "two_labels.tfrecord", tmp_path / "labels", columns={"label": "target"})
    assert [(sample.label, sample.facts["label"]) for sample in labels] == [
        (one(row, "target"), one(row, "label")) for row in READ["two_labels.tfrecord"]
    ]
    unlabelled = packed(FILES / "two_labels.tfrecord", tmp_path / "none", columns={"label": ""})
    assert [(sample.label, sample.facts["target"]) for sample in unlabelled] == [
        (None, one(row, "target")) for row in READ["two_labels.tfrecord"]
    ]
    images = packed(FILES / "two_images.tfrecord", tmp_path / "images", columns={"image": "right"})
    assert [sample.pixels for sample in images] == [one(row, "right") for row in READ["two_images.tfrecord"]]
    assert all("left.png" in sample.fields for sample in images)


def test_a_truncated_compressed_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    for name in ("gzip.tfrecord.gz", "zlib.tfrecord"):
        data = (FILES / "compressed" / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(SourceError, match=f"{name}.*(truncated|damaged)"):
            packed(tmp_path / name, tmp_path / "dst")
