"""Labels of shards of other tools: names in ``cls``, entries of JSON fields, class folders, several folders at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import webdataset
from folders import write_tar
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import LabelError, MissingFieldError, OptionError, ShardError, SourceError, WdsToolsError
from wds_tools.format.index import NO_LABEL, from_bytes


def jpeg() -> bytes:
    return encode(Image.new("RGB", (8, 6), (200, 30, 90)), "JPEG")


def shard(path: Path, samples: Sequence[tuple[str, dict[str, Any]]]) -> Path:
    """Write samples as (key, further fields); values that are not bytes become JSON."""
    members = [(f"{key}.{name}", value) for key, fields in samples for name, value in {"jpg": jpeg(), **fields}.items()]
    return write_tar(path, [(name, v if isinstance(v, bytes) else json.dumps(v).encode()) for name, v in members])


def json_shard(path: Path, labels: Sequence[Any], name: str = "label") -> Path:
    return shard(path, [(f"{number:03d}", {"json": {name: label}}) for number, label in enumerate(labels)])


def labels(folder: Path) -> list[int | None]:
    found: list[int | None] = []
    for path in sorted(folder.glob("*.parquet")):
        values = from_bytes(path.read_bytes(), name=path.name).label.tolist()
        found += [None if value == NO_LABEL else value for value in values]
    return found


def loaded(dataset: Path) -> list[int]:
    with wt.make_loader(dataset, batch_size=1, view=wt.Resize((4, 4)), num_workers=0, shuffle=False) as loader:
        return [int(batch.label) for batch in loader]


def test_names_of_digits_and_underscores_are_not_numbers(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", [("a", {"cls": b"10_11"}), ("b", {"cls": b"10_9"})])
    assert wt.index_shards(f"{tmp_path}/a.tar").classes == ("10_11", "10_9")
    assert labels(tmp_path) == [0, 1]


def test_names_in_cls_become_class_numbers_in_sorted_order(tmp_path: Path) -> None:
    shard(tmp_path / "a-0.tar", [("a", {"cls": b"fig"}), ("b", {"cls": b"cat\n"})])
    shard(tmp_path / "a-1.tar", [("c", {"cls": "é".encode()}), ("d", {"cls": b"cat"}), ("e", {})])
    manifest = wt.index_shards(f"{tmp_path}/*.tar")
    assert manifest.classes == ("cat", "fig", "é")
    assert manifest.label is None
    assert labels(tmp_path) == [1, 0, 2, 0, None]
    assert wt.verify(tmp_path).ok
    with wt.make_loader(
        tmp_path, batch_size=3, where="label == 'cat' or label == 'fig'", fields="label", num_workers=0
    ) as loader:
        assert next(iter(loader)).tolist() == [1, 0, 0]


def test_names_and_numbers_in_cls_are_an_error_until_the_user_decides(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", [("a", {"cls": b"fig"}), ("b", {"cls": b"3"})])
    with pytest.raises(LabelError, match=r"numbers \('3'\) and .* names \('fig'\): pass --label-type name"):
        wt.index_shards(f"{tmp_path}/*.tar")
    assert not list(tmp_path.glob("*.parquet"))
    assert wt.index_shards(f"{tmp_path}/*.tar", label_type="name").classes == ("3", "fig")
    assert labels(tmp_path) == [1, 0]
    (tmp_path / "manifest.json").unlink()
    assert wt.index_shards(f"{tmp_path}/*.tar", label_type="number").classes == ()
    assert labels(tmp_path) == [None, 3]


@pytest.mark.parametrize(
    ("values", "expected", "classes"),
    [
        ([3, 0, 3.0, "7", None], [3, 0, 3, 7, None], ()),
        (["fig", "cat", "fig"], [1, 0, 1], ("cat", "fig")),
    ],
)
def test_an_entry_of_a_json_field_is_the_label(
    tmp_path: Path, values: list[Any], expected: list[int | None], classes: tuple[str, ...]
) -> None:
    json_shard(tmp_path / "a.tar", values)
    manifest = wt.index_shards(f"{tmp_path}/*.tar", label="json:label")
    assert (manifest.classes, manifest.label) == (classes, "json:label")
    assert labels(tmp_path) == expected
    if None not in expected:
        assert loaded(tmp_path) == expected
    assert wt.index_shards(f"{tmp_path}/*.tar") == manifest  # the manifest states where labels are


def test_entries_are_found_in_nested_objects_and_in_fields_of_any_name(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", [("a", {"meta.json": {"truth": {"species": "cat"}}, "y.txt": b"5"})])
    wt.index_shards(f"{tmp_path}/*.tar", label="meta.json:truth.species")
    assert labels(tmp_path) == [0]
    wt.index_shards(f"{tmp_path}/*.tar", label="y.txt")
    assert labels(tmp_path) == [5]


def test_class_folders_in_the_names_of_members_are_labels(tmp_path: Path) -> None:
    keys = ["./train/n02/a", "./train/n01/b", "./train/n01/deep/c"]
    shard(tmp_path / "a.tar", [(key, {}) for key in keys])
    manifest = wt.index_shards(f"{tmp_path}/a.tar", label="folder")
    assert (manifest.classes, manifest.label) == (("n01", "n02"), "folder")
    assert labels(tmp_path) == [1, 0, 0]
    assert loaded(tmp_path) == [1, 0, 0]


def test_given_classes_have_their_numbers_and_others_are_an_error(tmp_path: Path) -> None:
    json_shard(tmp_path / "a.tar", ["fig", "cat"])
    pattern = f"{tmp_path}/*.tar"
    (tmp_path / "names.txt").write_text("fig\ndog\ncat\n")
    manifest = wt.index_shards(pattern, label="json:label", classes=tmp_path / "names.txt")
    assert manifest.classes == ("fig", "dog", "cat")
    assert labels(tmp_path) == [0, 2]
    with pytest.raises(LabelError, match=r"class 'cat' in .* is not among the given classes \('fig'\): add it"):
        wt.index_shards(pattern, label="json:label", classes=["fig"])


def test_given_classes_name_numbers_too(tmp_path: Path) -> None:
    json_shard(tmp_path / "a.tar", [1, 0])
    assert wt.index_shards(f"{tmp_path}/*.tar", label="json:label", classes=["x", "y"]).classes == ("x", "y")
    with pytest.raises(LabelError, match="label 1, but there are only 1 class name"):
        wt.index_shards(f"{tmp_path}/*.tar", label="json:label", classes=["x"])


def test_classes_of_an_existing_manifest_keep_their_numbers_when_shards_are_added(tmp_path: Path) -> None:
    json_shard(tmp_path / "a-0.tar", ["fig", "pea"])
    wt.index_shards(f"{tmp_path}/*.tar", label="json:label")
    json_shard(tmp_path / "a-1.tar", ["cat", "pea"])
    assert wt.index_shards(f"{tmp_path}/*.tar").classes == ("fig", "pea", "cat")
    assert labels(tmp_path) == [0, 1, 2, 1]


def test_a_list_is_an_error_with_the_key(tmp_path: Path) -> None:
    json_shard(tmp_path / "a.tar", [1, [1, 2]])
    with pytest.raises(ShardError, match=r"several labels in 'json:label'.*reshard --label json:label") as caught:
        wt.index_shards(f"{tmp_path}/*.tar", label="json:label")
    assert caught.value.key == "001"
    assert not list(tmp_path.glob("*.parquet"))


def test_booleans_are_two_classes(tmp_path: Path) -> None:
    json_shard(tmp_path / "a.tar", [True, False])
    assert wt.index_shards(f"{tmp_path}/*.tar", label="json:label").classes == ("false", "true")
    assert labels(tmp_path) == [1, 0]


@pytest.mark.parametrize("values", [[1, "cat"], [1, True], [1, 1.5]])
def test_labels_of_several_kinds_are_an_error(tmp_path: Path, values: list[Any]) -> None:
    json_shard(tmp_path / "a.tar", values)
    with pytest.raises(LabelError, match=r"json:label.*--label-type"):
        wt.index_shards(f"{tmp_path}/*.tar", label="json:label")
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize("label", ["", ":label", "json:", "json:a..b"])
def test_an_invalid_label_is_an_error(tmp_path: Path, label: str) -> None:
    json_shard(tmp_path / "a.tar", [1])
    with pytest.raises(OptionError, match="allowed are a field such as 'cls' or"):
        wt.index_shards(f"{tmp_path}/*.tar", label=label)


def test_without_label_a_loader_names_the_missing_field(tmp_path: Path) -> None:
    json_shard(tmp_path / "a.tar", [1])
    wt.index_shards(f"{tmp_path}/*.tar")
    with pytest.raises(MissingFieldError, match="'label'"):
        loaded(tmp_path)


# --- pack and reshard ---


def test_reshard_writes_the_label_as_cls(tmp_path: Path) -> None:
    json_shard(tmp_path / "src" / "a.tar", ["fig", "cat", "fig"])
    manifest = wt.reshard(tmp_path / "src", tmp_path / "dst", label="json:label", workers=1).manifest
    assert manifest.classes == ("cat", "fig")
    read = webdataset.WebDataset(str(tmp_path / "dst" / "shard-000000.tar"), shardshuffle=False)
    assert [sample["cls"] for sample in read] == [b"1", b"0", b"1"]


@pytest.mark.parametrize("label", ["json:label", "folder"])
def test_reshard_takes_the_labels_of_an_indexed_dataset_from_its_indexes(tmp_path: Path, label: str) -> None:
    keys = ["fig/a", "cat/b", "fig/c"]
    path = shard(tmp_path / "src" / "a.tar", [(key, {"json": {"label": key.partition("/")[0]}}) for key in keys])
    wt.index_shards(str(path), label=label, classes=["fig", "cat"])
    manifest = wt.reshard(tmp_path / "src", tmp_path / "dst", workers=1).manifest
    assert manifest.classes == ("fig", "cat")
    assert loaded(tmp_path / "dst") == [0, 1, 0]


def test_pack_takes_class_folders_of_shards_as_labels(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", [("x/fig/a", {"txt": b"t"}), ("x/cat/b", {"txt": b"t"})])
    report = wt.pack(tmp_path / "a.tar", tmp_path / "dst", columns={"label": "folder"}, workers=1)
    assert report.manifest.classes == ("cat", "fig")


def test_pack_refuses_an_entry_that_is_not_a_label(tmp_path: Path) -> None:
    json_shard(tmp_path / "a.tar", [{"a": 1}])
    with pytest.raises(SourceError, match=r"a.tar/000: label 'json:label' is {\"a\": 1}; allowed are"):
        wt.reshard(tmp_path / "a.tar", tmp_path / "dst", label="json:label")
    with pytest.raises(OptionError, match="the role 'pixels'; allowed are 'image' and 'label'"):
        wt.pack(tmp_path / "a.tar", tmp_path / "dst", kind="webdataset", columns={"pixels": "jpg"})


# --- several folders ---


def test_several_folders_are_indexed_in_one_call_with_the_same_class_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_shard(tmp_path / "train" / "a.tar", ["pea", "cat"])
    json_shard(tmp_path / "val" / "a.tar", ["pea", "fig"])
    with pytest.raises(SystemExit) as end:
        main(["index", f"{tmp_path}/*/*.tar", "--label", "json:label"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    for split, expected in (("train", [2, 0]), ("val", [2, 1])):
        assert f"indexed 2 samples in 1 shard, {(tmp_path / split / 'a.tar').stat().st_size / 1000:.1f} kB" in out
        assert f"3 classes, into {tmp_path}/{split}/manifest.json\n" in out
        assert labels(tmp_path / split) == expected
    assert out.count("make_loader(") == 1


def test_index_shards_refuses_several_folders_and_names_the_other_function(tmp_path: Path) -> None:
    for split in ("train", "val"):
        json_shard(tmp_path / split / "a.tar", [1])
    with pytest.raises(OptionError, match=r"shards are in 2 folders .* index them with index_folders\(\)"):
        wt.index_shards(f"{tmp_path}/*/*.tar")
    assert sorted(wt.index_folders([f"{tmp_path}/*/*.tar"])) == [f"{tmp_path}/train", f"{tmp_path}/val"]


def test_after_an_error_in_one_folder_no_folder_has_new_indexes(tmp_path: Path) -> None:
    json_shard(tmp_path / "train" / "a.tar", [1])
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "a.tar").write_bytes(b"not a tar file")
    with pytest.raises(ShardError):
        wt.index_folders([f"{tmp_path}/*/*.tar"])
    assert not list(tmp_path.glob("*/*.parquet"))


def test_whole_numbers_with_a_point_are_class_numbers(tmp_path: Path) -> None:
    shard(tmp_path / "cls" / "a.tar", [("a", {"cls": b"3.0\n"}), ("b", {"cls": b"10"}), ("c", {"cls": b"1."})])
    wt.index_shards(f"{tmp_path}/cls/a.tar")
    assert labels(tmp_path / "cls") == [3, 10, 1]
    json_shard(tmp_path / "json" / "a.tar", ["10.0", 2.0, "3"])
    wt.index_shards(f"{tmp_path}/json/a.tar", label="json:label")
    assert labels(tmp_path / "json") == [10, 2, 3]


@pytest.mark.parametrize("label", ["json:score", "json:nope", "json:mixed"])
def test_a_label_that_is_refused_leaves_the_dataset_as_it_was(label: str, tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for i, name in enumerate(["ant", "bee"]):
            facts = {"name": name, "score": i / 10 + 0.5, "mixed": i or "w"}
            writer.write({"__key__": str(i), "txt": "x", "json": facts})
    wt.index_shards(f"{tmp_path}/*.tar", label="json:name")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(WdsToolsError):
        wt.index_shards(f"{tmp_path}/*.tar", label=label)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
