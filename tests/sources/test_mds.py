"""MDS that MosaicML Streaming wrote (`tests/foreign/README.md`), compared with what it reads from it."""

from __future__ import annotations

import json
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from foreign_records import FOREIGN, account_of, checksum, checksum_of, expected, packed
from PIL import Image

from wds_tools.errors import SourceError
from wds_tools.sources.detect import detect, open_source

FILES = FOREIGN / "mds"
READ = expected("mds")


@pytest.mark.parametrize("name", ["jpeg", "zstd", "br", "gz", "bz2", "snappy", "one_of_list"])
def test_images_and_labels_are_those_that_streaming_reads(name: str, tmp_path: Path) -> None:
    assert detect(FILES / name) == "mds"
    samples = packed(FILES / name, tmp_path / "dst")
    images = [row["image"][0] if isinstance(row["image"], list) else row["image"] for row in READ[name]]
    assert [f"{sample.pixels} RGB" for sample in samples] == images
    assert [sample.label for sample in samples] == [row["label"] for row in READ[name]]
    roles, account = account_of(FILES / name)
    assert roles == {"image": "image", "label": "label"}
    assert account.given == len(READ[name])


def test_pillow_images_of_all_modes_are_packed_with_their_colours(tmp_path: Path) -> None:
    samples = packed(FILES / "pil", tmp_path / "dst")
    assert [sample.pixels for sample in samples] == [row["image"].split()[0] for row in READ["pil"]]
    assert [sample.name for sample in samples] == [row["label"] for row in READ["pil"]]


def test_a_palette_image_whose_colours_are_lost_is_skipped() -> None:
    _, account = account_of(FILES / "palette")
    reason = "'image' is not read: it is an image of mode P, whose colours were not stored with it"
    assert (account.packed, account.skipped) == (2, {reason: 2})


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_arrays_of_pixels_are_images(name: str, tmp_path: Path) -> None:
    samples = packed(FILES / name, tmp_path / "dst")
    for sample, row in zip(samples, READ[name], strict=True):
        with Image.open(BytesIO(sample.fields["png"])) as image:
            pixels = np.asarray(image)
        assert f"{checksum_of(pixels)} {list(pixels.shape)}" == row["x"]
        assert sample.label == row["y"]
        if "vector" in row:
            assert np.load(BytesIO(sample.fields["vector.npy"])).tolist() == row["vector"]


def test_several_labels_of_a_sample_are_a_field(tmp_path: Path) -> None:
    samples = packed(FILES / "several_labels", tmp_path / "dst")
    labels = [json.loads(sample.fields["labels.json"]) for sample in samples]
    assert labels == [row["label"] for row in READ["several_labels"]]


def test_values_of_all_encodings_are_kept_or_accounted_for(tmp_path: Path) -> None:
    samples = packed(FILES / "values", tmp_path / "dst")
    rows = READ["values"]
    for sample, row in zip(samples, rows, strict=True):
        assert f"{sample.pixels} RGB" == row["picture"]
        assert f"{checksum(sample.fields['mask.png'])} L" == row["mask"]
        assert (sample.name, sample.fields["txt"].decode()) == (row["category"], row["caption"])
        kept = {name: sample.facts[name] for name in ("i8", "u64", "f16", "f64", "big", "price", "ratio", "boxes")}
        assert kept == {name: row[name] for name in kept}
    roles, _ = account_of(FILES / "values")
    assert set(roles) == set(rows[0])
    assert roles["raw"] == "binary, and not an image"


def test_a_pickled_label_is_an_error_and_another_pickled_column_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'label' is not read, because it is a pickle.*name another label"):
        packed(FILES / "pickled_label", tmp_path / "dst")
    samples = packed(FILES / "pickled_extra", tmp_path / "extra")
    assert [sample.label for sample in samples] == [row["label"] for row in READ["pickled_extra"]]
    assert account_of(FILES / "pickled_extra")[0]["meta"] == "a pickle, which is never read"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("several_images", r"has 2 images in 'image'; allowed is one per record"),
        ("splits", r"has MDS in train, val: pack one at a time, such as .*splits/train"),
    ],
)
def test_what_is_not_one_labelled_image_per_sample_is_an_error(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        packed(FILES / name, tmp_path / "dst")


def test_splits_are_sources_of_their_own() -> None:
    splits = open_source(FILES / "splits").splits()
    rows = {name: [row["label"] for row in READ[f"splits/{name}"]] for name in ("train", "val")}
    assert {name: [entry.label for entry in source.scan().inputs] for name, source in splits.items()} == rows
    assert not open_source(FILES / "jpeg").splits()


def test_a_file_that_the_index_does_not_name_is_left_out_with_that_reason(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "jpeg", tmp_path / "jpeg")
    shutil.copy(folder / "shard.00000.mds", folder / "shard.00009.mds")
    assert account_of(folder)[0]["shard.00009.mds"] == "index.json does not name it"


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "jpeg", tmp_path / "jpeg")
    index = json.loads((folder / "index.json").read_bytes())
    shard = folder / index["shards"][0]["raw_data"]["basename"]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(SourceError, match=rf"{shard.name} is truncated or damaged: it has {len(data) - 1:,} bytes"):
        packed(folder, tmp_path / "dst")
    shard.write_bytes(b"\xff\xff\xff\xff" + data[4:])
    with pytest.raises(SourceError, match=r"states 4,294,967,295 items, but its index states"):
        packed(folder, tmp_path / "dst")
    shard.write_bytes(data[:4] + b"\xff\xff\xff\xff" + data[8:])
    with pytest.raises(SourceError, match="its offsets are not inside the file"):
        packed(folder, tmp_path / "dst")
    shard.write_bytes(data)
    index["shards"][0]["column_encodings"][0] = "ndarray:what"
    (folder / "index.json").write_text(json.dumps(index))
    _, account = account_of(folder)
    assert set(account.skipped) == {"is damaged: data type 'what' not understood"}
    index["shards"][0]["raw_data"]["basename"] = "../jpeg/shard.00000.mds"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match="is outside the folder"):
        packed(folder, tmp_path / "dst")
    index["shards"][0]["format"] = "jsonl"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"format 'jsonl', version 2; allowed is 'mds'"):
        packed(folder, tmp_path / "dst")
