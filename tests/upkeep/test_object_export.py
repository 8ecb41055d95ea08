"""`export()` to COCO and YOLO: annotations of other programs are packed, exported, and compared with what they were."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from annotated_trees import FOREIGN, SPLIT_OF, tree_of
from PIL import Image

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import DestinationError, OptionError, SampleError
from wds_tools.format.objects import bounding_box

COCO_TREES = {
    "instances as RLE": ("coco/datumaro_instances_mask", "images/{split}/{name}"),
    "instances as polygons": ("coco/datumaro_instances_poly", "{split}/{name}"),
    "boxes": ("coco/datumaro_instances_box", "images/{split}/{name}"),
    "key points": ("coco/datumaro_person_keypoints", "images/{split}/{name}"),
}
YOLO_TREES = {
    "datumaro": ("yolo/datumaro_boxes", "images/{split}/{name}", ("train", "val")),
    "labelimg": ("yolo/labelimg", "{name}", ("",)),
    "supervision": ("yolo/supervision_boxes", "images/{name}", ("",)),
    "outlines of supervision": ("yolo/supervision_masks", "images/{name}", ("",)),
    "oriented boxes of supervision": ("yolo/supervision_obb", "images/{name}", ("",)),
}


def read_coco(path: Path) -> Any:
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(path)


def facts_of(dataset: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of the samples of a dataset by the name of their image."""
    with tarfile.open(dataset / "shard-000000.tar") as shard:
        files = [shard.extractfile(member) for member in shard if member.name.endswith(".json")]
        found = [json.loads(file.read()) for file in files if file]
    return {Path(one.pop("path")).name: one for one in found}


def packed_splits(src: Path, dst: Path, kind: str) -> Path:
    wt.pack_splits(src, dst, split="folders", kind=kind, progress=False)
    return dst


@pytest.mark.frameworks
@pytest.mark.parametrize("name", COCO_TREES)
def test_coco_of_other_programs_is_the_same_for_pycocotools_after_packing_and_exporting(
    name: str, tmp_path: Path
) -> None:
    annotations, place = COCO_TREES[name]
    src = tree_of(tmp_path / "src", annotations, place)
    packed_splits(src, tmp_path / "packed", "coco")
    for path in sorted((FOREIGN / annotations).glob("*.json")):
        split = path.stem.rpartition("_")[2]
        report = wt.export(tmp_path / "packed" / split, "coco", dst=tmp_path / "out", split=split, progress=False)
        assert report.notes == []
        theirs, ours = read_coco(path), read_coco(tmp_path / f"out/annotations/instances_{split}.json")
        assert ours.cats == theirs.cats
        assert {number: sized(image) for number, image in ours.imgs.items()} == {
            number: sized(image) for number, image in theirs.imgs.items()
        }
        assert ours.anns.keys() == theirs.anns.keys()
        for number, one in theirs.anns.items():
            check_annotation(ours, ours.anns[number], theirs, one)
        for image in ours.imgs.values():
            exported = tmp_path / f"out/images/{split}" / image["file_name"]
            assert size_of(exported) == (image["width"], image["height"])


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def sized(image: dict[str, Any]) -> tuple[Any, ...]:
    return image["file_name"], image["width"], image["height"]


def check_annotation(ours: Any, one: dict[str, Any], theirs: Any, other: dict[str, Any]) -> None:
    for entry in ("image_id", "category_id", "iscrowd"):
        assert one[entry] == other[entry]
    np.testing.assert_allclose(one["bbox"], other["bbox"], atol=1e-6)
    assert one["area"] == other["area"]
    assert one.get("keypoints") == other.get("keypoints")
    assert one.get("num_keypoints") == other.get("num_keypoints")
    assert bool(one["segmentation"]) == bool(other.get("segmentation"))
    if one["segmentation"]:
        assert ours.annToRLE(one) == theirs.annToRLE(other)


def label_rows(path: Path) -> list[list[float]]:
    return [[float(word) for word in line.split()] for line in path.read_text().splitlines() if line]


@pytest.mark.parametrize("name", YOLO_TREES)
def test_label_files_of_other_programs_have_the_same_values_after_packing_and_exporting(
    name: str, tmp_path: Path
) -> None:
    annotations, place, splits = YOLO_TREES[name]
    src, packed = tree_of(tmp_path / "src", annotations, place), tmp_path / "packed"
    wt.pack(src, packed, kind="yolo", progress=False) if splits == ("",) else packed_splits(src, packed, "yolo")
    for split in splits:
        report = wt.export(packed / split, "yolo", dst=tmp_path / "out", split=split or "train", progress=False)
        assert report.notes == []
    compared = 0
    for image, split in SPLIT_OF.items():
        stem = Path(image).stem
        [ours] = tmp_path.glob(f"out/labels/*/{stem}.txt")
        assert ours.parent.name == (split if splits != ("",) else "train")
        theirs = next((tmp_path / "src").rglob(f"{stem}.txt"), None)
        expected = label_rows(theirs) if theirs else []
        assert [len(row) for row in label_rows(ours)] == [len(row) for row in expected]
        for row, other in zip(label_rows(ours), expected, strict=True):
            np.testing.assert_allclose(row, other, atol=1e-6)
            compared += 1
        assert (tmp_path / "out/images" / ours.parent.name / image).read_bytes()
    assert compared >= 4
    names = yaml.safe_load((tmp_path / "out/data.yaml").read_text())["names"]
    assert names == {0: "cat", 1: "dog", 2: "fig tree"}


def test_both_splits_are_in_data_yaml_and_other_class_names_are_refused(tmp_path: Path) -> None:
    packed = packed_splits(
        tree_of(tmp_path / "src", "yolo/datumaro_boxes", "images/{split}/{name}"), tmp_path / "packed", "yolo"
    )
    for split in ("val", "train", "val"):
        wt.export(packed / split, "yolo", dst=tmp_path / "out", split=split, progress=False)
    found = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert found == {"train": "images/train", "val": "images/val", "names": {0: "cat", 1: "dog", 2: "fig tree"}}
    (tmp_path / "out/data.yaml").write_text("names: [bird]\n")
    with pytest.raises(DestinationError, match=r"'data.yaml' already exists with other content.*--overwrite"):
        wt.export(packed / "val", "yolo", dst=tmp_path / "out", split="val", progress=False)
    wt.export(packed / "val", "yolo", dst=tmp_path / "out", split="val", overwrite=True, progress=False)
    assert yaml.safe_load((tmp_path / "out/data.yaml").read_text())["val"] == "images/val"


def test_key_points_of_ultralytics_have_the_same_values_and_data_yaml_their_shape(tmp_path: Path) -> None:
    src = tree_of(tmp_path / "src", "yolo/ultralytics_keypoints", "images/all/{name}")
    settings = {"names": ["cat", "dog", "fig tree"], "kpt_shape": [3, 3], "flip_idx": [1, 0, 2], "train": "images/all"}
    (src / "data.yaml").write_text(yaml.safe_dump(settings))
    wt.pack(src, tmp_path / "packed", kind="yolo", progress=False)
    wt.export(tmp_path / "packed", "yolo", dst=tmp_path / "out", progress=False)
    found = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert (found["kpt_shape"], found["flip_idx"]) == ([3, 3], [1, 0, 2])
    labels = sorted(path.name for path in src.glob("labels/all/*.txt"))
    for name in labels:
        np.testing.assert_allclose(
            label_rows(tmp_path / "out/labels/train/all" / name), label_rows(src / "labels/all" / name), atol=1e-6
        )
    assert labels


@pytest.mark.frameworks
@pytest.mark.parametrize("to", ["coco", "yolo"])
@pytest.mark.parametrize("name", ["voc/datumaro", "voc/supervision_masks"])
def test_voc_becomes_coco_or_yolo_with_the_same_objects(name: str, to: str, tmp_path: Path) -> None:
    in_splits = name == "voc/datumaro"
    src = tree_of(tmp_path / "src", name, "JPEGImages/{name}" if in_splits else "images/{name}")
    packed = tmp_path / "packed" / ("train" if in_splits else "")
    packed_splits(src, tmp_path / "packed", "voc") if in_splits else wt.pack(src, packed, kind="voc", progress=False)
    report = wt.export(packed, to, dst=tmp_path / "out", progress=False)
    leaves = "an outline that leaves its box by more than 0.5 pixel, written without box, such as object 0 of"
    assert any(leaves in note for note in report.notes) == (to == "yolo" and not in_splits)
    wt.pack(tmp_path / "out", tmp_path / "again", kind=to, progress=False)
    first, second = facts_of(packed), facts_of(tmp_path / "again")
    assert first.keys() == second.keys()
    assert any(one["objects"] for one in first.values())
    for image, one in first.items():
        assert len(one["objects"]) == len(second[image]["objects"])
        for ours, theirs in zip(one["objects"], second[image]["objects"], strict=True):
            assert ours["category"] == theirs["category"]
            around = bounding_box(ours["polygons"]) if to == "yolo" and "polygons" in ours else ours["box"]
            np.testing.assert_allclose(around, theirs["box"], atol=1e-5)
            np.testing.assert_allclose(ours.get("polygons", []), theirs.get("polygons", []), atol=1e-5)
            if to == "coco":
                assert ours.items() <= {**theirs, "box": ours["box"], "polygons": ours.get("polygons")}.items()


def test_captions_are_exported_and_packed_again(tmp_path: Path) -> None:
    src = tree_of(tmp_path / "src", "coco/datumaro_instances_box", "images/{split}/{name}")
    shutil.copytree(FOREIGN / "coco/datumaro_captions", src, dirs_exist_ok=True)
    packed = packed_splits(src, tmp_path / "packed", "coco")
    wt.export(packed / "train", "coco", dst=tmp_path / "out", progress=False)
    captions = {
        one["image_id"]: one["caption"]
        for one in json.loads((tmp_path / "out/annotations/captions_train.json").read_text())["annotations"]
    }
    theirs = json.loads((FOREIGN / "coco/datumaro_captions/captions_train.json").read_text())
    names = {image["id"]: image["file_name"] for image in theirs["images"]}
    ours = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())
    assert {names[one["image_id"]] for one in theirs["annotations"]} <= {one["file_name"] for one in ours["images"]}
    assert set(captions.values()) <= {one["caption"] for one in theirs["annotations"]}
    wt.pack_splits(tmp_path / "out", tmp_path / "again", split="folders", kind="coco", progress=False)
    assert facts_of(tmp_path / "again" / "train") == facts_of(packed / "train")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A dataset with what YOLO does not have: groups, run lengths, outlines in parts, further entries and fields."""
    image = io.BytesIO()
    Image.new("RGB", (100, 50)).save(image, "JPEG")
    parts = [[10, 10, 20, 10, 20, 20], [50, 10, 60, 10, 60, 20]]
    objects = [
        {"box": [10, 10, 60, 20], "category": 0, "polygons": parts, "id": 7, "difficult": 1},
        {"box": [0, 0, 10, 50], "category": 1, "rle": {"size": [50, 100], "counts": [0, 500, 4500]}, "id": 8},
        {"box": [0, 0, 100, 50], "category": 1, "crowd": True, "rle": {"size": [50, 100], "counts": [0, 5000]}},
    ]
    classes = {"json:objects.category": ("cat", "dog")}
    with wt.ShardWriter(tmp_path / "odd" / "shard-%06d.tar", field_classes=classes) as writer:
        facts = {"width": 100, "height": 50, "objects": objects}
        writer.write({"__key__": "a", "jpg": image.getvalue(), "json": facts, "txt": "two cats"})
    return tmp_path / "odd"


@pytest.mark.parametrize("has_outlines", [False, True])
def test_yolo_has_no_outlines_of_two_points_and_nothing_beyond_the_image(has_outlines: bool, tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (100, 80)).save(image, "PNG")
    objects = [
        {"box": [30, 20, 70, 60], "category": 0, "polygons": [[30, 20, 70, 60]]},
        {"box": [30, -8, 130, 40], "category": 0, "polygons": [[30, -8, 130, -8, 130, 40, 30, 40]]},
    ]
    if not has_outlines:
        objects = [{name: item[name] for name in ("box", "category")} for item in objects]
    with wt.ShardWriter(tmp_path / "in/a-%06d.tar", field_classes={"json:objects.category": ("cat",)}) as writer:
        facts = {"width": 100, "height": 80, "objects": objects}
        writer.write({"__key__": "a", "png": image.getvalue(), "json": facts})
    report = wt.export(tmp_path / "in", "yolo", dst=tmp_path / "out", progress=False)
    rows = label_rows(tmp_path / "out/labels/train/a.txt")
    where = "object {} of 'a.png'"
    short = "yolo: 1 object with an outline of fewer than 3 points, written as the outline of the box, such as " + where
    beyond = "yolo: 1 object beyond the image by more than 0.5 pixel, cut off at its edges, such as " + where
    if has_outlines:
        assert rows == [[0, 0.3, 0.25, 0.7, 0.25, 0.7, 0.75, 0.3, 0.75], [0, 0.3, 0, 1, 0, 1, 0.5, 0.3, 0.5]]
        assert report.notes == [short.format(0), beyond.format(1)]
    else:
        assert rows == [[0, 0.5, 0.5, 0.4, 0.5], [0, 0.65, 0.25, 0.7, 0.5]]
        assert report.notes == [beyond.format(1)]


@pytest.mark.parametrize("size", [2, 3])
def test_key_points_beyond_the_image_are_moved_to_its_edge_and_not_labelled(size: int, tmp_path: Path) -> None:
    points = [[10, 20, 2], [100.25, 40, 2], [120, 40, 2], [-30, 90, 0]]
    item = {"box": [5, 5, 95, 75], "category": 0, "keypoints": [point[:size] for point in points]}
    image = io.BytesIO()
    Image.new("RGB", (100, 80)).save(image, "PNG")
    with wt.ShardWriter(tmp_path / "in/a-%06d.tar", field_classes={"json:objects.category": ("cat",)}) as writer:
        writer.write({"__key__": "a", "png": image.getvalue(), "json": {"width": 100, "height": 80, "objects": [item]}})
    report = wt.export(tmp_path / "in", "yolo", dst=tmp_path / "out", progress=False)
    expected = [[0.1, 0.25, 2], [1, 0.5, 2], [1, 0.5, 0], [0, 1, 0]]  # Ultralytics leaves an image with others out
    (row,) = label_rows(tmp_path / "out/labels/train/a.txt")
    assert row[5:] == [value for point in expected for value in point[:size]]
    what = "1 object with key points beyond the image by more than 0.5 pixel, written at its edge"
    labelled = " as not labelled" if size > 2 else ""
    assert report.notes == [f"yolo: {what}{labelled}, such as object 0 of 'a.png'"]


def test_predictions_are_exported_without_their_confidence_which_trainers_refuse(tmp_path: Path) -> None:
    foreign = Path(__file__).parents[1] / "foreign"
    src = tmp_path / "src"
    for folder in ("images", "labels"):
        (src / folder).mkdir(parents=True)
    shutil.copy(foreign / "images/photo_1.jpg", src / "images")
    shutil.copy(foreign / "yolo/ultralytics_predictions/photo_1.txt", src / "labels")
    (src / "classes.txt").write_text("cat\ndog\n")
    wt.pack(src, tmp_path / "packed", kind="yolo", progress=False)
    report = wt.export(tmp_path / "packed", "yolo", dst=tmp_path / "out", progress=False)
    assert "yolo: entries of objects that YOLO does not have are left out: confidence" in report.notes
    rows = label_rows(src / "labels/photo_1.txt")
    assert [len(row) for row in rows] == [6, 6]
    found = label_rows(tmp_path / "out/labels/train/photo_1.txt")
    np.testing.assert_allclose(found, [row[:5] for row in rows], atol=1e-6)


def test_coco_has_flip_idx_as_numbers(tmp_path: Path) -> None:
    src = tree_of(tmp_path / "src", "yolo/ultralytics_keypoints", "images/all/{name}")
    settings = {"names": ["cat", "dog", "fig tree"], "kpt_shape": [3, 3], "flip_idx": [1, 0, 2], "train": "images/all"}
    (src / "data.yaml").write_text(yaml.safe_dump(settings))
    wt.pack(src, tmp_path / "packed", kind="yolo", progress=False)
    wt.export(tmp_path / "packed", "coco", dst=tmp_path / "out", progress=False)
    written = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())
    assert [one["flip_idx"] for one in written["categories"]] == [[1, 0, 2]] * 3


def test_points_without_visibility_and_with_negative_numbers_are_not_labelled_in_coco(tmp_path: Path) -> None:
    item = {"box": [5, 5, 95, 75], "category": 0, "keypoints": [[10, 20], [-1, 24], [0, 0]]}
    image = io.BytesIO()
    Image.new("RGB", (100, 80)).save(image, "PNG")
    with wt.ShardWriter(tmp_path / "in/a-%06d.tar", field_classes={"json:objects.category": ("cat",)}) as writer:
        writer.write({"__key__": "a", "png": image.getvalue(), "json": {"width": 100, "height": 80, "objects": [item]}})
    wt.export(tmp_path / "in", "coco", dst=tmp_path / "out", progress=False)
    (one,) = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())["annotations"]
    assert (one["keypoints"], one["num_keypoints"]) == ([10, 20, 2, 0, 0, 0, 0, 0, 2], 2)


def test_what_yolo_does_not_have_is_counted_with_an_example(odd: Path, tmp_path: Path) -> None:
    report = wt.export(odd, "yolo", dst=tmp_path / "out", progress=False)
    assert report.notes == [
        "other fields are left out: txt; `wds-tools unpack` writes them",
        "yolo: 1 object in several parts, joined by lines, such as annotation 7 of 'a.jpg'",
        "yolo: 1 object with a mask in run lengths, written as the outline of the box, such as annotation 8 of 'a.jpg'",
        "yolo: 1 object left out, as YOLO has no groups (crowd), such as object 2 of 'a.jpg'",
        "yolo: entries of objects that YOLO does not have are left out: difficult, id",
    ]
    joined, box = label_rows(tmp_path / "out/labels/train/a.txt")
    assert box == [1, 0, 0, 0.1, 0, 0.1, 1, 0, 1]
    points = np.array(joined[1:]).reshape(-1, 2) * [100, 50]
    xs, ys = points.T
    area = abs(sum(xs[i - 1] * ys[i] - xs[i] * ys[i - 1] for i in range(len(xs)))) / 2
    assert area == pytest.approx(100)  # of both triangles: the line between them has none


@pytest.mark.frameworks
def test_objects_without_area_or_id_get_them_for_pycocotools(odd: Path, tmp_path: Path) -> None:
    from pycocotools import mask as coco_mask

    report = wt.export(odd, "coco", dst=tmp_path / "out", progress=False)
    assert "coco: ids of annotations are missing or occur twice: they are numbered from 1" in report.notes
    found = read_coco(tmp_path / "out/annotations/instances_train.json")
    assert [one["area"] for one in found.anns.values()] == [100, 500, 5000]
    assert coco_mask.area([found.annToRLE(one) for one in found.anns.values()]).tolist()[1:] == [500, 5000]
    assert [one["iscrowd"] for one in found.anns.values()] == [0, 0, 1]
    assert found.anns[1]["difficult"] == 1
    assert found.getCatIds() == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objects": [{"box": [0, 0, 1, float("nan")], "category": 0}]}, "object 0 has a box of"),
        ({"objects": [{"box": [0, 0, 1, 1], "category": 2}]}, "object 0 has category 2; allowed are 0 to 1"),
        ({"objects": [{"box": [0, 0, 1], "category": 0, "id": 5}]}, "annotation 5 has a box of 3 numbers"),
        ({"objects": [{"box": [300, 0, 301, 1], "category": 0}]}, "object 0 has a box outside its image"),
        ({"objects": [{"box": [0, 0, 1, 1], "category": 0, "keypoints": [[1]]}]}, "a key point of 1 number"),
        ({"objects": [{"box": [0, 0, 1, 1], "category": 0, "rle": [1]}]}, "run lengths that are a list"),
        ({"objects": 3}, "'objects' is not a list"),
        ({"width": 0}, "its size is 0 x 50"),
    ],
)
def test_objects_that_another_program_wrote_wrongly_are_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    facts = {"width": 100, "height": 50, "objects": [], **change}
    image = io.BytesIO()
    Image.new("RGB", (100, 50)).save(image, "PNG")
    with wt.ShardWriter(
        tmp_path / "in" / "shard-%06d.tar", field_classes={"json:objects.category": ("cat", "dog")}
    ) as writer:
        writer.write({"__key__": "a", "png": image.getvalue(), "json": json.dumps(facts)})
    with pytest.raises(SampleError, match=message) as caught:
        wt.export(tmp_path / "in", "coco", dst=tmp_path / "out", progress=False)
    assert caught.value.key == "a"
    assert not list(tmp_path.glob("out/annotations/*"))


def test_raw_pixels_become_png(tmp_path: Path) -> None:
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    wt.pack(src, tmp_path / "packed", kind="yolo", images="raw", resize=(48, 64), progress=False)
    wt.export(tmp_path / "packed", "yolo,coco", dst=tmp_path / "out", progress=False)
    assert size_of(tmp_path / "out/images/train/photo_1.jpg.png") == (64, 48)
    assert (tmp_path / "out/labels/train/photo_1.jpg.txt").exists()


def test_folders_of_images_are_kept_and_two_images_of_one_name_are_named(tmp_path: Path) -> None:
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/a/{name}")
    shutil.move(src / "labels", src / "a")
    (src / "labels").mkdir()
    shutil.move(src / "a", src / "labels/a")
    wt.pack(src, tmp_path / "packed", kind="yolo", progress=False)
    wt.export(tmp_path / "packed", "yolo", dst=tmp_path / "out", progress=False)
    assert label_rows(tmp_path / "out/labels/train/a/photo_1.txt")
    shutil.copytree(src / "images/a", src / "more/images/a")
    wt.pack(src, tmp_path / "twice", kind="yolo", progress=False)
    with pytest.raises(
        DestinationError, match=r"images/a/photo.*would both be images/train/a/photo.* with one label file"
    ):
        wt.export(tmp_path / "twice", "yolo", dst=tmp_path / "other", progress=False)


def test_options_that_do_not_fit_are_refused(packed_copy: Path, odd: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="to='coco' requires dst"):
        wt.export(odd, "coco")
    with pytest.raises(OptionError, match="is for coco and yolo"):
        wt.export(odd, "timm", dst=tmp_path / "out")
    with pytest.raises(OptionError, match="is not a local folder"):
        wt.export(odd, "coco", dst="memory://out")
    with pytest.raises(OptionError, match="has no objects to export: it has no class list"):
        wt.export(packed_copy, "coco", dst=tmp_path / "out")


def test_the_command_names_the_files_and_what_was_left_out(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(["export", str(odd), str(tmp_path / "out"), "--to", "coco,yolo"])
    assert exit_code.value.code == 0
    out = capsys.readouterr().out
    assert "coco: 2 files, images/train/, annotations/instances_train.json" in out
    assert f"yolo detect train data={tmp_path / 'out'}/data.yaml" in out
    assert "yolo: 1 object left out" in out
