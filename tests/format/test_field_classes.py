"""Class lists of fields: every tool keeps them, and datasets with different ones are not mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wds_tools as wt
from wds_tools.errors import LabelError, ManifestError, OptionError
from wds_tools.format.field_classes import ClassList
from wds_tools.format.manifest import from_json, seal
from wds_tools.inspection.stats import format_stats

COCO = {"json:objects.category": ClassList(("person", "kite"), (1, 38))}
OTHER = {"json:objects.category": ClassList(("kite", "person"), (38, 1))}
BOXES = {"boxes": wt.Boxes(path="objects.box", format="xyxy"), "label": wt.Label()}


def boxes_of(folder: Path, photo: Path, field_classes: dict[str, Any], *, samples: int = 2, first: int = 0) -> Path:
    """Write a dataset with objects."""
    with wt.ShardWriter(folder / "shard-%06d.tar", field_classes=field_classes) as writer:
        for number in range(first, first + samples):
            objects = [{"box": [0, 0, 5, number + 1], "category": number % 2}]
            writer.write({"__key__": f"{number}", "jpg": photo.read_bytes(), "cls": 0, "json": {"objects": objects}})
    return folder


def lists_of(folder: Path) -> dict[str, ClassList]:
    return dict(from_json((folder / "manifest.json").read_bytes()).field_classes)


@pytest.fixture
def photo(photos: Path) -> Path:
    return min(photos.glob("*/*.jpg"))


@pytest.fixture
def coco(tmp_path: Path, photo: Path) -> Path:
    return boxes_of(tmp_path / "coco", photo, COCO)


def test_the_class_list_of_a_field_is_in_manifest_loader_and_info(coco: Path) -> None:
    raw = json.loads((coco / "manifest.json").read_text())
    assert raw["field_classes"] == {"json:objects.category": {"names": ["person", "kite"], "ids": [1, 38]}}
    with wt.make_loader(coco, batch_size=2, fields={"objects": wt.Field("json")}, num_workers=0) as loader:
        assert loader.field_classes == COCO
    assert wt.StreamingDataset(coco, batch_size=2, fields="json").field_classes == COCO
    stats = wt.describe(coco)
    assert stats.to_dict()["field_classes"] == raw["field_classes"]
    assert "2 classes of json:objects.category: person, kite" in format_stats(stats)


def test_a_manifest_without_class_lists_is_written_as_before(tmp_path: Path, photo: Path) -> None:
    assert "field_classes" not in (boxes_of(tmp_path / "a", photo, {}) / "manifest.json").read_text()


def test_names_alone_are_a_class_list(tmp_path: Path, photo: Path) -> None:
    folder = boxes_of(tmp_path / "a", photo, {"labels.json": ["cat", "dog"]})
    assert lists_of(folder) == {"labels.json": ClassList(("cat", "dog"))}


def test_reshard_splits_append_merge_index_and_reseal_keep_class_lists(coco: Path, tmp_path: Path, photo: Path) -> None:
    more = boxes_of(tmp_path / "more", photo, COCO, samples=3, first=5)
    wt.reshard(coco, tmp_path / "again", workers=1)
    assert lists_of(tmp_path / "again") == COCO
    wt.append(more, tmp_path / "again", kind="webdataset", images="keep", workers=1)
    assert lists_of(tmp_path / "again") == COCO
    assert wt.describe(tmp_path / "again").samples == 5
    wt.pack_splits(more, tmp_path / "splits", split="a=0.5,b=0.5", kind="webdataset", workers=1)
    assert lists_of(tmp_path / "splits/a") == lists_of(tmp_path / "splits/b") == COCO
    wt.merge([coco, more], tmp_path / "merged")
    assert lists_of(tmp_path / "merged") == COCO
    wt.index_shards(f"{coco}/*.tar")
    assert lists_of(coco) == COCO


def test_datasets_with_other_classes_for_a_field_are_not_mixed(coco: Path, tmp_path: Path, photo: Path) -> None:
    other = boxes_of(tmp_path / "other", photo, OTHER, samples=3, first=5)
    expected = r"different classes for 'json:objects.category' \(class 0 is 'kite' or 'person'\)"
    with pytest.raises(LabelError, match=expected):
        wt.merge([coco, other], tmp_path / "merged")
    with pytest.raises(LabelError, match=expected):
        wt.merge([f"{tmp_path}/{{coco,other}}/shard-000000.tar"], tmp_path / "merged")
    wt.reshard(coco, tmp_path / "again", workers=1)
    with pytest.raises(LabelError, match=expected):
        wt.append(other, tmp_path / "again", kind="webdataset", images="keep", workers=1)
    for both in (f"{tmp_path}/{{coco,other}}/shard-000000.tar", wt.Mixture([coco, other], weights=[1, 1])):
        with pytest.raises(LabelError, match=expected + r".*or remove 'json' from fields="):
            wt.make_loader(both, batch_size=2, fields=BOXES, num_workers=0)
        with wt.make_loader(both, batch_size=2, fields=("label",), num_workers=0) as loader:
            assert loader.field_classes == {}
    same = wt.Mixture([coco, boxes_of(tmp_path / "same", photo, COCO, samples=3, first=5)], weights=[1, 1])
    with wt.make_loader(same, batch_size=2, fields=BOXES, num_workers=0) as loader:
        assert loader.field_classes == COCO


def test_classes_with_other_numbers_in_the_original_source_differ(coco: Path, tmp_path: Path, photo: Path) -> None:
    ids = {"json:objects.category": ClassList(("person", "kite"), (1, 2))}
    other = boxes_of(tmp_path / "other", photo, ids, samples=3, first=5)
    with pytest.raises(LabelError, match="their numbers in the original source differ"):
        wt.merge([coco, other], tmp_path / "merged")


def test_numbers_with_names_are_not_mixed_with_numbers_without(tmp_path: Path, photo: Path) -> None:
    for name, lists in (("a", {"labels.json": ["cat"]}), ("b", {})):
        with wt.ShardWriter(tmp_path / name / "a-%d.tar", field_classes=lists) as writer:
            writer.write({"__key__": name, "jpg": photo.read_bytes(), "labels.json": [0]})
    with pytest.raises(LabelError, match=r"class 0 is 'cat' or no name"):
        wt.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")


def test_a_pattern_over_datasets_with_other_labels_is_not_merged(tmp_path: Path, photo: Path) -> None:
    for name, classes in (("a", ["cat", "dog"]), ("b", ["dog", "cat"])):
        with wt.ShardWriter(tmp_path / name / "a-%d.tar", classes=classes) as writer:
            writer.write({"__key__": name, "jpg": photo.read_bytes(), "cls": "cat"})
    with pytest.raises(LabelError, match=r"classes .class 0 is 'cat' or 'dog'.: name each dataset separately"):
        wt.merge([f"{tmp_path}/{{a,b}}/a-0.tar"], tmp_path / "merged")


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ({"labels.json": ["cat", "cat"]}, LabelError, "'cat' occurs twice"),
        ({"labels.json": ClassList(("cat", "dog"), (1,))}, LabelError, "one different id for each name"),
        ({"labels.json": ClassList(("cat", "dog"), (1, 1))}, LabelError, "one different id for each name"),
        ({"json:": ["cat"]}, OptionError, "an entry of a JSON field"),
        ({"folder": ["cat"]}, OptionError, "cannot have a list of classes"),
    ],
)
def test_an_invalid_class_list_is_an_error_before_anything_is_written(
    tmp_path: Path, lists: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        wt.ShardWriter(tmp_path / "d" / "a-%d.tar", field_classes=lists)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "raw", [[], {"a.json": ["cat"]}, {"a.json": {"names": [1]}}, {"a.json": {"names": ["cat"], "ids": [1.5]}}]
)
def test_class_lists_of_another_structure_are_refused(coco: Path, raw: Any) -> None:
    values = json.loads((coco / "manifest.json").read_text())
    with pytest.raises(ManifestError, match="field_classes"):
        from_json(seal(values | {"field_classes": raw}))
