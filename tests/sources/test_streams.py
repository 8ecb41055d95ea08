"""Streams of Hugging Face's datasets: packed without a copy, in windows, and refused if they are not repeatable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, OptionError, SourceError
from wds_tools.packing.shard_file import ShardFile
from wds_tools.sources import objects

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore::ResourceWarning")]

COUNT = 30
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "fig", "pea"], "_type": "ClassLabel"},
    "caption": {"dtype": "string", "_type": "Value"},
    "score": {"dtype": "float64", "_type": "Value"},
}


def jpeg(number: int) -> bytes:
    return encode(Image.fromarray(np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)), "JPEG")


def write(folder: Path) -> Path:
    """Write three Parquet files as Hugging Face stores them."""
    folder.mkdir()
    for part in range(3):
        rows = range(part * 10, part * 10 + 10)
        table = pa.table(
            {
                "image": [{"bytes": jpeg(row), "path": f"{row}.jpg"} for row in rows],
                "label": [row % 3 for row in rows],
                "caption": [f"caption {row}" for row in rows],
                "score": [row / 8 for row in rows],
            }
        ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
        pq.write_table(table, folder / f"train-{part:05d}-of-00003.parquet", row_group_size=4)
    return folder


@pytest.fixture
def load(hugging_face_offline: None) -> Callable[..., Any]:
    """Return a function that opens the stream of a folder."""
    import datasets

    return lambda *words, **options: datasets.load_dataset(*map(str, words), split="train", streaming=True, **options)


def samples(folder: Path) -> list[dict[str, Any]]:
    return list(webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False))


def test_a_stream_is_packed_with_labels_classes_and_all_columns(load: Callable[..., Any], tmp_path: Path) -> None:
    stream = load(write(tmp_path / "photos"))
    report = wt.pack(stream, tmp_path / "dst", shard_bytes=20_000, images="keep")
    assert (report.packed, report.skipped, report.manifest.classes) == (COUNT, (), ("cat", "fig", "pea"))
    found = {}
    for sample in samples(tmp_path / "dst"):
        facts = json.loads(sample["json"])
        row = int(facts["score"] * 8)
        assert (sample["jpg"], sample["cls"], sample["txt"]) == (
            jpeg(row),
            b"%d" % (row % 3),
            f"caption {row}".encode(),
        )
        assert facts["path"] == f"photos/train#{row}"
        assert (facts["class"], facts["file_name"]) == (("cat", "fig", "pea")[row % 3], f"{row}.jpg")
        found[row] = sample
    assert sorted(found) == list(range(COUNT))
    assert list(found) != sorted(found)
    assert len(report.manifest.shards) > 1
    with wt.make_loader(tmp_path / "dst", batch_size=COUNT, view=wt.Resize((8, 8)), num_workers=0) as loader:
        assert sorted(next(iter(loader)).label.tolist()) == sorted(row % 3 for row in range(COUNT))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.torture_except("False")
def test_windows_are_read_from_the_state_of_the_stream(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    stream = load(write(tmp_path / "photos"))
    wt.pack(stream, tmp_path / "one", images="keep", shuffle=False)
    monkeypatch.setattr(objects, "WINDOW_BYTES", 5 * len(jpeg(0)))
    begun = []
    read = objects.StreamSource._from  # noqa: SLF001 - counts how often the stream is read again
    monkeypatch.setattr(objects.StreamSource, "_from", lambda self, group: begun.append(group) or read(self, group))
    report = wt.pack(stream, tmp_path / "dst", images="keep", shuffle=shuffle)
    rows = [int(json.loads(sample["json"])["path"].rpartition("#")[2]) for sample in samples(tmp_path / "dst")]
    assert sorted(rows) == list(range(COUNT))
    assert (rows == sorted(rows)) is not shuffle
    assert report.manifest.shuffled is shuffle
    if not shuffle:
        assert len(begun) == 2  # checked once, read once
        assert (tmp_path / "dst" / "shard-000000.tar").read_bytes() == (
            tmp_path / "one" / "shard-000000.tar"
        ).read_bytes()


def test_an_interrupted_pack_is_continued_and_a_complete_one_is_not_repeated(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "photos")
    wt.pack(load(tmp_path / "photos"), tmp_path / "whole", shard_bytes=12_000)
    calls, original = [], ShardFile.write

    def stop(self: ShardFile, *args: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        original(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            wt.pack(load(tmp_path / "photos"), tmp_path / "dst", shard_bytes=12_000)
    assert wt.pack(load(tmp_path / "photos"), tmp_path / "dst", shard_bytes=12_000).kept > 0
    for path in (tmp_path / "whole").glob("*.tar"):
        assert (tmp_path / "dst" / path.name).read_bytes() == path.read_bytes()
    again = wt.pack(load(tmp_path / "photos"), tmp_path / "dst", shard_bytes=12_000)
    assert again.kept == len(again.manifest.shards)
    with pytest.raises(DestinationError, match="another dataset"):
        wt.pack(load(tmp_path / "photos").take(20), tmp_path / "dst", shard_bytes=12_000)


def test_every_column_of_a_stream_is_accounted_for_and_two_labels_are_an_error(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    import datasets

    stream = load(write(tmp_path / "photos"))
    listing = objects.StreamSource(stream).scan()
    assert {part.name: part.role for part in listing.account.parts} == {
        "file_name": "entries of json",
        "image": "image",
        "label": "label",
        "caption": "field txt",
        "score": "entries of json",
    }
    features = datasets.Features({**stream.features, "category": datasets.Value("int64")})
    two = stream.map(lambda row: row | {"category": int(row["score"] * 8) % 2}).cast(features)
    with pytest.raises(SourceError, match=r"could be the label: 'label' \(0, 1, 2\), 'category' \(0, 1\)"):
        wt.pack(two, tmp_path / "dst")
    report = wt.pack(two, tmp_path / "dst", columns={"label": "category"})
    labels = {json.loads(sample["json"])["score"]: int(sample["cls"]) for sample in samples(tmp_path / "dst")}
    assert labels == {row / 8: row % 2 for row in range(COUNT)}
    assert report.manifest.classes == ()


def test_images_that_the_stream_names_by_path_are_read(load: Callable[..., Any], tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "fig")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(jpeg(number))
    report = wt.pack(load("imagefolder", data_dir=tmp_path / "photos"), tmp_path / "dst", images="keep")
    assert report.manifest.classes == ("cat", "fig")
    assert {(sample["jpg"], sample["cls"]) for sample in samples(tmp_path / "dst")} == {
        (jpeg(0), b"0"),
        (jpeg(1), b"1"),
    }


def test_rows_without_an_image_are_skipped(load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    cells = [{"bytes": jpeg(0), "path": None}, {"bytes": None, "path": str(tmp_path / "gone.jpg")}, None]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(cells, kind)})
    features = {"image": {"_type": "Image"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "photos" / "train.parquet")
    report = wt.pack(load(tmp_path / "photos"), tmp_path / "dst")
    assert [(skip.path, skip.reason) for skip in report.skipped] == [
        (
            "photos/train#1",
            f"'image' is not read: it is the path of an unreadable file ({tmp_path / 'gone.jpg'})",
        ),
        ("photos/train#2", "has no image: it has no 'image'"),
    ]


def test_a_stream_with_a_shuffle_buffer_is_refused(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    monkeypatch.setattr(objects, "WINDOW_BYTES", 5 * len(jpeg(0)))
    stream = load(write(tmp_path / "photos")).shuffle(seed=1, buffer_size=10)
    with pytest.raises(OptionError, match=r"differs when it is read again: pass the stream without shuffle\(\)"):
        wt.pack(stream, tmp_path / "dst")
    assert not list(tmp_path.glob("dst/*.tar"))


def test_a_stream_without_known_features_or_with_several_splits_is_refused(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    import datasets

    stream = load(write(tmp_path / "photos"))
    with pytest.raises(OptionError, match=r"features of the stream are not known, as after map\(\)"):
        wt.pack(stream.map(lambda row: row), tmp_path / "dst")
    splits = datasets.IterableDatasetDict({"train": stream, "test": stream})
    with pytest.raises(OptionError, match="IterableDatasetDict with 'train', 'test'; pack one of them"):
        wt.pack(splits, tmp_path / "dst")
    with pytest.raises(SourceError, match="no column of images"):
        wt.pack(stream.remove_columns("image"), tmp_path / "dst")
