"""JSON of LabelMe, VIA, CreateML and Scalabel: the objects are those of the COCO file that the programs converted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from annotated_trees import FOREIGN
from sources_conformance import stored

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.format.objects import unpacked
from wds_tools.sources.detect import open_source

SHAPES = FOREIGN / "shapes"
FILES = {
    "globox_labelme": "supervision_boxes",
    "globox_via.json": "supervision_boxes",
    "labelimg_createml.json": "supervision_boxes",
    "scalabel_boxes.json": "supervision_boxes",
    "scalabel_polygons.json": "supervision_masks",
}


def tree(root: Path, name: str | None = None, images: str = "images") -> Path:
    """Return a tree with the four images, and what a program wrote."""
    shutil.copytree(FOREIGN / "images", root / images)
    if name is not None and (SHAPES / name).is_dir():
        shutil.copytree(SHAPES / name, root / images, dirs_exist_ok=True)
    elif name is not None:
        shutil.copy(SHAPES / name, root)
    return root


def packed(src: Path, dst: Path, **options: Any) -> dict[str, Any]:
    """Return name of the image -> entries of ``json``, with the names of classes instead of their numbers."""
    manifest = wt.pack(src, dst, images="keep", workers=1, **options).manifest
    names = manifest.field_classes["json:objects.category"].names
    found = {}
    for sample in stored(dst):
        facts = json.loads(sample["json"])
        facts["objects"] = [one | {"category": names[one["category"]]} for one in facts["objects"]]
        found[facts["path"].rpartition("/")[2]] = facts
    return found


def objects(found: dict[str, Any], *keys: str) -> dict[str, list[list[Any]]]:
    return {name: [[one.get(key) for key in keys] for one in facts["objects"]] for name, facts in found.items()}


@pytest.mark.parametrize("name", FILES)
def test_objects_are_those_of_the_file_that_was_converted(name: str, tmp_path: Path) -> None:
    theirs = json.loads((FOREIGN / "coco" / f"{FILES[name]}.json").read_text())
    classes = {one["id"]: one["name"] for one in theirs["categories"]}
    expected: dict[str, list[list[Any]]] = {}
    for image in theirs["images"]:
        own = [one for one in theirs["annotations"] if one["image_id"] == image["id"]]
        boxes = [[x, y, x + width, y + height] for x, y, width, height in (one["bbox"] for one in own)]
        outlines = [one["segmentation"] if "polygons" in name else None for one in own]
        expected[image["file_name"]] = [
            [box, classes[one["category_id"]], outline] for one, box, outline in zip(own, boxes, outlines, strict=True)
        ]
    found = packed(tree(tmp_path / "src", name), tmp_path / "dst")
    assert objects(found, "box", "category", "polygons") == expected
    account = wt.pack(tmp_path / "src", tmp_path / "again", dry_run=True).account
    assert account.attached["annotations"] == (4 if name == "globox_labelme" else 1)
    assert not account.skipped


def labelme(path: Path, shapes: list[dict[str, Any]], **more: Any) -> None:
    path.write_text(json.dumps({"imagePath": f"{path.stem}.jpg", "imageData": "iVBO", "shapes": shapes, **more}))


def test_shapes_of_labelme_become_boxes_and_outlines_and_keep_what_else_they_have(tmp_path: Path) -> None:
    src = tree(tmp_path / "src")
    triangle = [[1, 2], [11, 2], [6, 8]]
    shapes = [
        {"label": "cat", "points": triangle, "shape_type": "polygon", "group_id": 3, "flags": {}},
        {"label": "cat", "points": triangle},  # as old versions wrote it
        {"label": "dog", "points": [[20, 20], [20, 25]], "shape_type": "circle"},
        {"label": "dog", "points": [[9, 30], [4, 20]], "shape_type": "rectangle", "flags": {"hidden": True}},
        {"label": "eye", "points": [[5, 6]], "shape_type": "point"},
    ]
    labelme(src / "images" / "photo_1.json", shapes, imageWidth=64, imageHeight=48, flags={"night": True})
    found = packed(src, tmp_path / "dst")["photo_1.jpg"]
    assert found.keys() == {"path", "width", "height", "objects", "flags"}
    assert found["flags"] == {"night": True}
    outline = [[1.0, 2.0, 11.0, 2.0, 6.0, 8.0]]
    assert found["objects"] == [
        {"box": [1, 2, 11, 8], "category": "cat", "polygons": outline, "group_id": 3},
        {"box": [1, 2, 11, 8], "category": "cat", "polygons": outline},
        {
            "box": [15, 15, 25, 25], "category": "dog", "points": [[20, 20], [20, 25]], "shape_type": "circle"
        },
        {"box": [4, 20, 9, 30], "category": "dog", "flags": {"hidden": True}},
        {"box": [5, 6, 5, 6], "category": "eye", "points": [[5, 6]], "shape_type": "point"},
    ]  # fmt: skip


def test_images_without_a_file_of_labelme_have_no_objects_and_damaged_files_are_skipped(tmp_path: Path) -> None:
    src = tree(tmp_path / "src")
    labelme(src / "images" / "photo_1.json", [{"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}])
    labelme(src / "images" / "photo_2.json", [{"points": [[1, 2], [3, 4]]}])
    report = wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    assert objects(packed(src, tmp_path / "again"), "category") == {
        "photo_1.jpg": [["cat"]], "photo 3.jpg": [], "photo_4.jpg": []
    }  # fmt: skip
    [skip] = report.skipped
    assert skip.path == "images/photo_2.jpg"
    assert "photo_2.json has an invalid shape (KeyError: 'label')" in skip.reason
    assert "2 of 4 images have no file of shapes, and so no objects" in " ".join(report.manifest.account.notes)


def test_files_of_two_folders_are_about_the_images_that_are_there(tmp_path: Path) -> None:
    src = tmp_path / "src"
    triangle = {"points": [[1, 2], [11, 2], [6, 8]]}
    for part, label in (("a", "cat"), ("b", "dog")):
        tree(src / part, images="img")
        (src / part / "json").mkdir()
        labelme(src / part / "json" / "photo_1.json", [triangle | {"label": label}])
        (path := src / part / "json" / "photo_1.json").write_text(path.read_text().replace("photo_1", "../img/photo_1"))
    wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    found = {
        facts["path"]: facts["objects"] for sample in stored(tmp_path / "dst") if (facts := json.loads(sample["json"]))
    }
    assert len(found) == 8
    assert [[one["category"] for one in found[f"{part}/img/photo_1.jpg"]] for part in "ab"] == [[0], [1]]
    for number, part in enumerate("ab"):
        shutil.rmtree(src / part / "json")
        region = {
            "shape_attributes": {"name": "rect", "x": number, "y": 2, "width": 3, "height": 4},
            "region_attributes": {},
        }
        via(src / part / "via.json", [region])
    wt.pack(src, tmp_path / "dst", images="keep", workers=1, fresh=True)
    found = {
        facts["path"]: facts["objects"] for sample in stored(tmp_path / "dst") if (facts := json.loads(sample["json"]))
    }
    assert {path: [one["box"][0] for one in entries] for path, entries in found.items()} == {
        "a/img/photo_1.jpg": [0], "b/img/photo_1.jpg": [1]
    }  # fmt: skip
    shutil.copy(src / "a" / "via.json", src / "a" / "old.json")
    with pytest.raises(SourceError, match=r"about the same images, such as 'a/img/photo_1.jpg', 'a/old.json', 'a/via"):
        wt.pack(src, tmp_path / "again")


def via(path: Path, regions: list[dict[str, Any]]) -> None:
    path.write_text(
        json.dumps({"_via_img_metadata": {"x": {"filename": "photo_1.jpg", "size": 1, "regions": regions}}})
    )


def region(attributes: dict[str, Any], **shape: Any) -> dict[str, Any]:
    return {"shape_attributes": shape, "region_attributes": attributes}


def test_regions_of_via_have_one_attribute_that_is_the_class(tmp_path: Path) -> None:
    src = tree(tmp_path / "src")
    regions = [
        region({"class": "cat", "age": "3"}, name="polygon", all_points_x=[1, 11, 6], all_points_y=[2, 2, 8]),
        region({"class": {"dog": True}, "age": ""}, name="circle", cx=20, cy=20, r=5),
        region({"class": "dog", "age": ""}, name="ellipse", cx=20, cy=20, rx=5, ry=3, theta=0),
        region({"class": "eye", "age": ""}, name="point", cx=5, cy=6),
    ]
    via(src / "via_project.json", regions)
    found = packed(src, tmp_path / "dst")["photo_1.jpg"]["objects"]
    assert [(one["category"], one["box"], one.get("age")) for one in found] == [
        ("cat", [1, 2, 11, 8], "3"),
        ("dog", [15, 15, 25, 25], None),
        ("dog", [15, 17, 25, 23], None),
        ("eye", [5, 6, 5, 6], None),
    ]
    assert found[2]["shape"] == {"name": "ellipse", "cx": 20, "cy": 20, "rx": 5, "ry": 3, "theta": 0}
    via(src / "via_project.json", [region({"colour": "red", "size": "big"}, name="rect", x=1, y=1, width=2, height=2)])
    with pytest.raises(SourceError, match=r"VIA have the attributes 'colour', 'size', and .* call it 'class'"):
        wt.pack(src, tmp_path / "again", workers=1)


def test_images_with_a_region_of_via_without_a_class_are_skipped_and_named(tmp_path: Path) -> None:
    src = tree(tmp_path / "src")
    metadata = json.loads((SHAPES / "globox_via.json").read_text())
    images = {image["filename"]: image["regions"] for image in metadata.get("_via_img_metadata", metadata).values()}
    images["photo_1.jpg"][0]["region_attributes"] = {}
    key = next(iter(images["photo_2.jpg"][0]["region_attributes"]))
    images["photo_2.jpg"][0]["region_attributes"] = {key: {"cat": True, "dog": True}}  # check boxes
    (src / "via.json").write_text(json.dumps(metadata))
    report = wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    assert {skip.path: skip.reason for skip in report.skipped} == {
        "images/photo_1.jpg": f"a region has no value for {key!r}, which is the class",
        "images/photo_2.jpg": f"a region has 2 of the options of {key!r}, which is the class: choose one",
    }
    assert report.manifest.samples == 2


def test_a_box_of_scalabel_includes_its_last_pixel_and_lines_are_kept_as_they_are(tmp_path: Path) -> None:
    """The form is that of BDD100K: a list of frames, boxes, and lanes with curves."""
    src = tree(tmp_path / "src")
    lane = [{"vertices": [[1, 40], [5, 20], [9, 20], [20, 10]], "types": "LCCC", "closed": False}]
    labels = [
        {"category": "car", "box2d": {"x1": 4, "y1": 5, "x2": 13, "y2": 14}, "attributes": {"occluded": True}},
        {"category": "lane", "poly2d": lane, "id": 7},
    ]
    frames = [{"name": "photo_1.jpg", "attributes": {"weather": "rainy"}, "timestamp": 10000, "labels": labels}]
    frames.append({"name": "photo_2.jpg", "labels": labels[1:]})  # the same object, in the next frame of a film
    (src / "bdd100k_labels_images_val.json").write_text(json.dumps(frames))
    found = packed(src, tmp_path / "dst")["photo_1.jpg"]
    assert found["attributes"] == {"weather": "rainy"}
    assert found["objects"] == [
        {"box": [4, 5, 14, 15], "category": "car", "attributes": {"occluded": True}},
        {"box": [1, 10, 20, 40], "category": "lane", "poly2d": lane, "id": 7},
    ]


def test_splits_of_createml_have_one_list_of_classes(tmp_path: Path) -> None:
    """Roboflow exports a file in the folder of each split."""
    content = json.loads((SHAPES / "labelimg_createml.json").read_text())
    for split, rows in (("train", content[:2]), ("valid", content[2:])):
        (tmp_path / "src" / split).mkdir(parents=True)
        for row in rows:
            shutil.copy(FOREIGN / "images" / row["image"], tmp_path / "src" / split)
        (tmp_path / "src" / split / "_annotations.createml.json").write_text(json.dumps(rows))
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", images="keep", workers=1)
    names = {split: one.manifest.field_classes["json:objects.category"].names for split, one in reports.items()}
    assert names == dict.fromkeys(("train", "valid"), ("cat", "dog", "fig tree"))
    [first, _] = stored(tmp_path / "dst" / "valid")
    assert [one["category"] for one in json.loads(first["json"])["objects"]] == [1]


def test_other_json_with_the_name_of_an_image_is_a_field_as_before(tmp_path: Path) -> None:
    src = tree(tmp_path / "src")
    for path in (src / "images").glob("*.jpg"):
        path.with_suffix(".json").write_text(json.dumps({"shapes": 3, "coordinates": [1, 2]}))
    wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    assert all(json.loads(sample["json"])["coordinates"] == [1, 2] for sample in stored(tmp_path / "dst"))


def test_what_a_file_of_shapes_states_besides_shapes_is_kept_and_other_names_are_noted(tmp_path: Path) -> None:
    for number, other in ((1, 2), (2, 1)):
        (tmp_path / f"{number}.png").write_bytes(b"image")
        shape = {"label": "a", "shape_type": "rectangle", "points": [[1, 1], [3, 3]]}
        facts = {"shapes": [shape], "imagePath": f"..\\{other}.png", "imageHeight": 6, "imageWidth": 8}
        (tmp_path / f"{number}.json").write_text(json.dumps(facts))
    notes = open_source(tmp_path).scan().account.notes
    assert any("2 JSON files with the name of another image in imagePath, such as '2' in '1.json'" in n for n in notes)
    for number in (1, 2):
        (tmp_path / f"{number}.json").unlink()
    box = {"label": "cat", "coordinates": {"x": 4, "y": 3, "width": 2, "height": 2}}
    (tmp_path / "a.json").write_text(json.dumps([{"image": "1.png", "annotations": [box], "tags": ["night"]}]))
    assert unpacked(open_source(tmp_path).scan().inputs[0].facts)["tags"] == ["night"]
