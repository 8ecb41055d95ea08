"""Which field of a sample is its image, in shards that webdataset wrote."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import webdataset
from pictures import encode
from PIL import Image
from sources_conformance import stored

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples


def encoded(kind: str, grey: int) -> bytes:
    return encode(Image.new("L", (16, 16), grey), kind)


PHOTO, MASK = encoded("JPEG", 200), encoded("PNG", 1)


def shard(folder: Path, *samples: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    with webdataset.TarWriter(str(folder / "a.tar"), encoder=False) as writer:
        for number, fields in enumerate(samples):
            writer.write({"__key__": f"{number}", **fields})
    return folder / "a.tar"


def packed(src: Path, dst: Path, **options: Any) -> list[dict[str, int]]:
    """Pack, and return the grey value of each image field of each sample; that of the image is under "image"."""
    wt.pack(src, dst, kind="webdataset", workers=1, shuffle=False, **options)
    with wt.make_loader(dst, batch_size=1, fields="image", num_workers=0) as loader:
        images = [int(batch[0, 0, 0, 0]) for batch in loader]
    found = []
    for grey, sample in zip(images, stored_samples(open_shards(dst), 0), strict=True):
        fields = {name: bytes(data) for name, data in sample.fields.items() if name != "json"}
        found.append(
            {"image": grey} | {name: Image.open(io.BytesIO(data)).getpixel((0, 0)) for name, data in fields.items()}
        )
    return found


@pytest.mark.parametrize("extension", ["jpg", "jpeg"])
def test_a_png_next_to_a_jpeg_is_not_the_image(
    tmp_path: Path, extension: str, caplog: pytest.LogCaptureFixture
) -> None:
    src = shard(tmp_path, {extension: PHOTO, "png": MASK, "seg.png": MASK})
    with caplog.at_level(logging.WARNING, logger="wds_tools"):
        assert packed(src, tmp_path / "d") == [{"image": 200, "jpg": 200, "png": 1, "seg.png": 1}]
    assert f"1 sample with several images: '{extension}' is packed as the image, and 'png' as further" in caplog.text
    assert "pack with --column image=png" in caplog.text  # also for reshard, which has no such option


def test_a_png_next_to_a_webp_is_kept_under_another_name(tmp_path: Path) -> None:
    src = shard(tmp_path, {"webp": encoded("WEBP", 200), "png": MASK})
    assert packed(src, tmp_path / "d") == [{"image": 200, "webp": (200, 200, 200), "other.png": 1}]


@pytest.mark.parametrize("options", [{}, {"resize": 8}], ids=["crop-ready", "resize"])
def test_another_field_can_be_chosen_as_the_image(
    tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    src = shard(tmp_path, {"jpg": PHOTO, "png": encoded("PNG", 100)})
    with caplog.at_level(logging.WARNING, logger="wds_tools"):
        (sample,) = packed(src, tmp_path / "d", columns={"image": "png"}, **options)
    assert (sample["image"], sample["other.jpg"]) == (100, 200)
    assert not caplog.text


def test_a_mask_alone_is_not_an_image(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"has no image among its fields 'mask.png'"):
        wt.pack(shard(tmp_path, {"mask.png": MASK}), tmp_path / "d", kind="webdataset", workers=1)


def test_samples_without_the_chosen_image_are_named(tmp_path: Path) -> None:
    src = shard(tmp_path, {"jpg": PHOTO, "left.jpg": PHOTO}, {"jpg": PHOTO})
    report = wt.pack(src, tmp_path / "d", kind="webdataset", columns={"image": "left.jpg"}, workers=1)
    assert [skip.reason for skip in report.skipped] == ["has no field 'left.jpg' among its fields 'jpg'"]


@pytest.mark.parametrize(
    ("key", "fields", "place"),
    [
        ("{n}", {"label.txt": "cat"}, "label.txt"),
        ("{n}", {"json": {"label": 1}}, "json:label"),
        ("{folder}/{n}", {"txt": "a caption"}, "folder"),
    ],
)
def test_samples_without_cls_name_what_could_be_the_label(
    tmp_path: Path, key: str, fields: dict[str, Any], place: str
) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(4):
            name = key.format(n=number, folder="ab"[number // 2])
            writer.write({"__key__": name, "jpg": Image.new("RGB", (8, 8), number), **fields})
    report = wt.pack(tmp_path / "a.tar", tmp_path / "dst", workers=1)
    assert [f"--label {place} could be the label" in note for note in report.account.notes] == [True]


def test_a_field_that_is_not_json_and_files_next_to_shards_are_stated(tmp_path: Path) -> None:
    samples = [{"jpg": PHOTO, "json": data} for data in (b'{"a": 1}', b"{'a': 1}", b"[1]", b"")]
    src = shard(tmp_path / "src", *samples)
    src.rename(src.with_name("00000.tar"))
    pd.DataFrame({"url": ["x"], "caption": ["a cat"]}).to_parquet(tmp_path / "src" / "00000.parquet")
    (tmp_path / "src" / "00000_stats.json").write_text("{}")
    account = wt.pack(tmp_path / "src", tmp_path / "dst", images="keep", workers=1).account
    [note] = (note for note in account.notes if "JSON" in note)
    assert note == (
        "2 samples with a field json that is not valid JSON, such as '00000.tar/1': its text is the entry 'json'"
    )
    entries = [json.loads(one["json"]) for one in stored(tmp_path / "dst")]
    assert sorted(str(one.get("json")) if isinstance(one, dict) else str(one) for one in entries) == [
        "", "None", "[1]", "{'a': 1}",
    ]  # fmt: skip
    assert {one["path"] for one in entries if isinstance(one, dict)} == {f"00000.tar/{n}" for n in (0, 1, 3)}
    assert {part.name: part.reason.partition(":")[0] for part in account.parts if part.kind == "file"} == {
        "00000.parquet": "is the table that img2dataset writes about a folder or shard, and into .json files too",
        "00000_stats.json": "is next to what is packed, and is not read",
    }
