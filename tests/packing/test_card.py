"""Dataset card: the real `datasets` library reads packed folders with it, and no README.md of a user is lost."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import yaml
from folders import manifest_of
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.format.manifest import Manifest, ShardEntry
from wds_tools.packing.card import CARD_NAME, card, commit_card, is_card, split_card

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # `datasets` leaves archives open
ENTRY = ShardEntry("shard-000000.tar", 3, 10_240, "0" * 32, "shard-000000.parquet", 100, "1" * 32)


def front_of(data: bytes) -> Any:
    return yaml.safe_load(data.decode().split("---\n")[1])


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the real `datasets.load_dataset`, offline, with an empty cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    import datasets

    datasets.disable_progress_bars()
    return lambda folder, **options: datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"), **options)


# --- Hugging Face ---


@pytest.mark.frameworks
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.torture_except("True")
def test_hugging_face_reads_every_image_and_class_of_a_packed_folder(
    load: Callable[..., Any], packed_few: Path, streaming: bool
) -> None:
    photos = packed_few.parent / "images"
    splits = load(packed_few, streaming=streaming)
    assert list(splits) == ["train"]
    classes = splits["train"].features["cls"].names
    assert classes == list(manifest_of(packed_few).classes)
    seen = Counter()
    for row in splits["train"]:
        image = row["jpg"] or row["png"]  # also a PNG, which the first samples lack
        file = photos / row["json"]["path"]
        assert np.array_equal(np.asarray(image.convert("RGB")), np.asarray(Image.open(file).convert("RGB")))
        assert row["json"]["class"] == classes[row["cls"]] == file.parent.name
        seen[row["json"]["path"]] += 1
    assert seen == Counter(str(path.relative_to(photos)) for path in photos.rglob("*.*") if path.is_file())


@pytest.mark.frameworks
def test_hugging_face_reads_splits_by_their_names(load: Callable[..., Any], few_photos: Path, tmp_path: Path) -> None:
    wt.pack_splits(few_photos, tmp_path / "dst", split="train=0.8,hold-out=0.2", workers=1, images="keep")
    splits = load(tmp_path / "dst")
    assert {name: len(split) for name, split in splits.items()} == {"train": 33, "hold_out": 7}
    assert splits["hold_out"][0]["jpg"].size[0] > 0
    assert splits["hold_out"].features["cls"].names[2] == "cat"
    assert len(load(tmp_path / "dst" / "hold-out")["train"]) == 7


@pytest.mark.frameworks
@pytest.mark.torture
def test_hugging_face_reads_stored_pixels_and_images_without_labels(
    load: Callable[..., Any], photos: Path, tmp_path: Path
) -> None:
    wt.pack(photos, tmp_path / "raw", workers=1, images="raw", resize="16x12")
    row = load(tmp_path / "raw")["train"][0]
    assert np.asarray(row["npy"]).shape == (12, 16, 3)
    wt.pack(photos / "cat", tmp_path / "flat", workers=1, images="keep")
    rows = load(tmp_path / "flat")["train"]
    assert "cls" not in rows.features
    assert len(rows) == 50
    assert (rows[0]["jpg"] or rows[0]["png"]).size[0] > 0


@pytest.mark.frameworks
@pytest.mark.torture
def test_hugging_face_reads_indexed_written_merged_appended_and_resharded_datasets(
    load: Callable[..., Any], packed_copy: Path, photos: Path, tmp_path: Path
) -> None:
    for path in packed_copy.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    wt.index_shards(str(packed_copy / "shard-*.tar"))
    assert len(load(packed_copy)["train"]) == 400
    with wt.ShardWriter(f"{tmp_path}/written/odd [name]-%d.tar") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", "png": encode(Image.new("RGB", (8, 8)), "PNG"), "txt": "a caption"})
    assert load(tmp_path / "written")["train"][2]["txt"] == "a caption"
    wt.pack(photos / "cat", tmp_path / "flat", workers=1, images="keep")
    wt.append(photos / "fig", tmp_path / "flat", workers=1, images="keep")
    assert len(load(tmp_path / "flat")["train"]) == 100
    wt.reshard(tmp_path / "flat", tmp_path / "new", workers=1)
    wt.pack(photos / "fig", tmp_path / "fig", workers=1, images="keep", seed=1)
    wt.merge([tmp_path / "new", tmp_path / "fig"], tmp_path / "merged")
    assert len(load(tmp_path / "merged")["train"]) == 150


@pytest.mark.frameworks
def test_a_card_names_no_types_if_a_field_has_an_unknown_type(load: Callable[..., Any], tmp_path: Path) -> None:
    with wt.ShardWriter(f"{tmp_path}/dst/a-%d.tar") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", "xyz": b"\x00\x01", "txt": "words"})
    assert "dataset_info" not in front_of((tmp_path / "dst" / CARD_NAME).read_bytes())
    assert load(tmp_path / "dst")["train"][0]["xyz"] == b"\x00\x01"


# --- content ---


@pytest.mark.frameworks
def test_the_code_on_a_card_runs(load: Callable[..., Any], packed: Path) -> None:
    codes = re.findall(r"```python\n(.*?)```", (packed / CARD_NAME).read_text(), re.DOTALL)
    assert len(codes) == 2
    names: dict[str, Any] = {}
    for code in codes:
        exec(code.replace("FOLDER", str(packed)).replace("datasets.load_dataset", "load"), {"load": load}, names)
    assert len(next(iter(names["loader"]))[0]) == 256
    names["loader"].close()
    assert len(names["splits"]["train"]) == 400


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5, unique=True), st.text(max_size=6))
def test_a_card_is_valid_yaml_with_any_names_of_classes_and_fields(classes: list[str], field: str) -> None:
    front = front_of(card(Manifest((ENTRY,), {"cls": 3, f"{field}.txt": 3}, tuple(classes))))
    features = {feature["name"]: feature["dtype"] for feature in front["dataset_info"]["features"]}
    names = features["cls"]["class_label"]["names"]
    assert [names[str(number)] for number in range(len(classes))] == classes
    assert features[f"{field}.txt"] == "string"


def test_a_class_name_that_is_not_utf8_is_escaped() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    data = card(Manifest((ENTRY,), {"cls": 3}, (name,)))
    (feature, *_) = front_of(data)["dataset_info"]["features"]
    assert feature["dtype"]["class_label"]["names"] == {"0": "caf\\udce9"}


def test_labels_are_plain_numbers_if_two_classes_have_the_same_name() -> None:
    front = front_of(card(Manifest((ENTRY,), {"cls": 3}, ("cat", "cat"))))
    assert front["dataset_info"]["features"][0] == {"name": "cls", "dtype": "int64"}


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["shard-000000.tar", "shard-000001.tar"], "shard-*.tar"),
        (["train-0.tar"], "train-*.tar"),
        (["a-0.tar", "b-0.tar"], "*.tar"),
        (["000.tar", "001.tar"], "*.tar"),
        (["what*-0.tar", "what*-1.tar"], "*.tar"),
    ],
)
def test_the_pattern_names_the_shards(names: list[str], pattern: str) -> None:
    shards = tuple(replace(ENTRY, name=name, index=f"{name}.parquet") for name in names)
    assert front_of(card(Manifest(shards, {"jpg": 3})))["configs"][0]["data_files"] == pattern


# --- cards and README.md files of users ---


def test_the_same_input_gives_the_same_card(few_photos: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        wt.pack(few_photos, tmp_path / name, workers=workers, images="keep", shard_bytes="200kB")
    one, two = ((tmp_path / name / CARD_NAME).read_bytes() for name in ("one", "two"))
    assert one == two
    assert is_card(one)
    assert not is_card(one + b"x")
    assert not is_card(one.replace(b"40 samples", b"41 samples"))
    assert not is_card(b"")


@pytest.mark.parametrize("text", ["my notes\n", "---\nconfigs:\n- data_files: 'x.tar'\n---\n"])
def test_a_readme_of_the_users_own_is_never_replaced(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    dst = tmp_path / "dst"
    dst.mkdir()
    (dst / CARD_NAME).write_text(text)
    with caplog.at_level(logging.WARNING):
        wt.pack(photos / "cat", dst, workers=1, images="keep")
        wt.pack(photos / "cat", dst, workers=1, images="keep", seed=1, fresh=True)
        wt.append(photos / "fig", dst, workers=1, images="keep")
        wt.index_shards(str(dst / "*.tar"))
    assert (dst / CARD_NAME).read_text() == text
    warned = [record for record in caplog.records if "README.md was written or edited by a user" in record.getMessage()]
    assert bool(warned) == ("data_files" not in text)  # a README.md that names its data files needs no advice


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
def test_a_folder_or_link_with_the_name_of_the_card_is_kept(photos: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "dst" / CARD_NAME
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    wt.pack(photos / "cat", tmp_path / "dst", workers=1, images="keep")
    assert path.is_dir() if kind == "folder" else path.is_symlink()
    assert wt.verify(tmp_path / "dst").ok


def test_a_card_is_updated_until_a_user_edits_it(photos: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    for name in ("cat", "fig", "rocket"):
        (tmp_path / f"of-{name}").mkdir()
        (tmp_path / f"of-{name}" / name).symlink_to(photos / name, target_is_directory=True)
    path = small / CARD_NAME
    wt.pack(tmp_path / "of-cat", small, workers=1, images="keep")
    wt.append(tmp_path / "of-fig", small, workers=1, images="keep")
    assert front_of(path.read_bytes())["dataset_info"]["features"][1]["dtype"]["class_label"]["names"] == {
        "0": "cat",
        "1": "fig",
    }
    assert wt.verify(small).strangers == []
    edited = path.read_text().replace("# 100 samples", "# My 100 samples")
    path.write_text(edited)
    wt.append(tmp_path / "of-rocket", small, workers=1, images="keep")
    assert path.read_text() == edited


def test_reseal_updates_a_renamed_class_in_the_card(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    path.write_text(path.read_text().replace('"cat"', '"chat"'))
    wt.reseal(packed_copy)
    assert b'"chat"' in (packed_copy / CARD_NAME).read_bytes()
    assert b'"cat"' not in (packed_copy / CARD_NAME).read_bytes()


def test_fresh_removes_the_card(photos: Path, tmp_path: Path) -> None:
    from wds_tools.errors import SourceError

    dst = tmp_path / "dst"
    wt.pack(photos / "cat", dst, workers=1, images="keep")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_bytes(b"not an image")
    with pytest.raises(SourceError):
        wt.pack(tmp_path / "bad", dst, workers=1, images="keep", fresh=True)
    assert not (dst / CARD_NAME).exists()


def test_several_datasets_in_one_folder_have_no_card(packed_copy: Path) -> None:
    for path in packed_copy.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    wt.index_shards(str(packed_copy / "shard-00000[0-2].tar"), manifest="first.json")
    assert not (packed_copy / CARD_NAME).exists()


def test_a_card_is_written_to_a_url_and_a_readme_there_is_kept(photos: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/cards/mine/README.md", b"mine")
        wt.pack(photos / "cat", "memory://cards/new", workers=1, images="keep")
        wt.pack(photos / "cat", "memory://cards/mine", workers=1, images="keep")
        wt.pack_splits(photos / "cat", "memory://cards/split", split="a=0.5,b=0.5", workers=1, images="keep")
        assert is_card(memory.cat("/cards/new/README.md"))
        assert memory.cat("/cards/mine/README.md") == b"mine"
        assert front_of(memory.cat("/cards/split/README.md"))["configs"][0]["data_files"] == [
            {"split": "a", "path": "a/shard-*.tar"},
            {"split": "b", "path": "b/shard-*.tar"},
        ]
        assert wt.verify("memory://cards/new").strangers == []
    finally:
        memory.rm("/cards", recursive=True)


def test_the_card_of_splits_is_rewritten_only_if_it_changes(tmp_path: Path) -> None:
    one = split_card({"train": Manifest((ENTRY,), {"jpg": 3}), "val": Manifest((ENTRY,), {"jpg": 3, "png": 1})})
    assert [feature["name"] for feature in front_of(one)["dataset_info"]["features"]] == [
        "jpg",
        "png",
        "__key__",
        "__url__",
    ]
    commit_card(tmp_path, one)
    before = (tmp_path / CARD_NAME).stat()
    commit_card(tmp_path, one)
    assert (tmp_path / CARD_NAME).stat().st_ino == before.st_ino
    commit_card(tmp_path, split_card({"train": Manifest((ENTRY,), {"jpg": 3})}))
    assert len(front_of((tmp_path / CARD_NAME).read_bytes())["configs"][0]["data_files"]) == 1
