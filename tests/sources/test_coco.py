import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wds_tools.errors import LabelError, SourceError
from wds_tools.format.objects import rle_box, run_lengths, unpacked
from wds_tools.sources import coco
from wds_tools.sources.annotated import completed
from wds_tools.sources.file_list import RowNames
from wds_tools.sources.inputs import File

FOREIGN = Path(__file__).parent.parent / "foreign" / "coco"
NOT_READ = ("imantics.json", "pycocotools_rle.json", "panoptic_train.json", "panoptic_val.json")  # by pycocotools
FILES = sorted(path for path in FOREIGN.rglob("*.json") if path.name not in NOT_READ)


def parsed(path):
    return coco.parse(path.read_bytes(), path.name)


def sample(found, name="photo_1.jpg"):
    return unpacked(found.images[name])


@pytest.mark.frameworks
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOREIGN)))
def test_images_categories_and_annotations_are_those_that_pycocotools_reads(path, capsys):
    from pycocotools.coco import COCO

    theirs, ours = COCO(), parsed(path)
    theirs.dataset = json.loads(path.read_text())
    for number, one in enumerate(theirs.dataset["annotations"]):
        one.setdefault("id", f"made {number}")  # pycocotools requires one; labelformat and panoptic files have none
    theirs.createIndex()
    capsys.readouterr()
    categories = theirs.loadCats(sorted(theirs.getCatIds()))
    assert list(ours.ids) == [one["id"] for one in categories]
    assert list(ours.names) == [one["name"] for one in categories]
    assert not ours.skipped
    assert sorted(ours.images) == sorted(image["file_name"] for image in theirs.imgs.values())
    for image in theirs.imgs.values():
        facts = sample(ours, image["file_name"])
        assert (facts["width"], facts["height"]) == (image["width"], image["height"])
        assert facts["id"] == image["id"]
        annotations = theirs.imgToAnns[image["id"]]
        if "captions" in facts:
            assert facts["captions"] == [one["caption"] for one in annotations]
        else:
            check_objects(facts["objects"], annotations, ours, image)


def check_objects(objects, expected, found, image):
    from pycocotools import mask as coco_mask

    assert len(objects) == len(expected)
    for ours, theirs in zip(objects, expected, strict=True):
        left, top, width, height = theirs["bbox"]
        np.testing.assert_allclose(ours["box"], [left, top, left + width, top + height], atol=1e-6, rtol=0)
        assert found.ids[ours["category"]] == theirs["category_id"]
        assert ours.get("crowd", False) == bool(theirs.get("iscrowd"))
        assert ours.get("id", "made") == theirs["id"] or str(theirs["id"]).startswith("made")
        assert ours.get("area") == theirs.get("area")
        assert [number for point in ours.get("keypoints", []) for number in point] == theirs.get("keypoints", [])
        outline = ours.get("polygons") or ours.get("rle")
        assert bool(outline) == bool(theirs.get("segmentation"))
        if outline:
            size = image["height"], image["width"]
            rles = [coco_mask.frPyObjects(one, *size) for one in (outline, theirs["segmentation"])]
            first, second = [coco_mask.merge(rle) if isinstance(rle, list) else rle for rle in rles]
            assert first == second


def test_names_of_key_points_and_the_skeleton_belong_to_their_category():
    found = parsed(FOREIGN / "datumaro_person_keypoints" / "person_keypoints_train.json")
    assert found.attributes[0]["keypoints"] == ["left", "right", "tail"]
    assert found.attributes[0]["skeleton"] == [[0, 1], [1, 2]]
    assert sample(found)["objects"][0]["keypoints"] == [[11, 9, 2], [29, 9, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("split", "name"), [("train", "photo_1.jpg"), ("train", "photo 3.jpg"), ("val", "photo_2.jpg")]
)
def test_the_segments_of_a_panoptic_image_are_those_in_its_png(split, name):
    folder = FOREIGN / "datumaro_panoptic"
    found = parsed(folder / f"panoptic_{split}.json")
    pixels = np.asarray(Image.open(folder / f"panoptic_{split}" / found.fields[name]["panoptic.png"])).astype(int)
    ids = pixels @ [1, 256, 65536]
    objects = sample(found, name)["objects"]
    assert set(np.unique(ids).tolist()) - {0} <= {one["id"] for one in objects}  # one covers another
    visible = next(one for one in objects if (ids == one["id"]).any())
    left, top, right, bottom = visible["box"]
    rows, columns = np.nonzero(ids == visible["id"])
    assert left <= columns.min() <= columns.max() < right
    assert top <= rows.min() <= rows.max() < bottom
    assert found.attributes[0]["isthing"] == 0


def test_an_image_without_annotations_has_an_empty_list_of_objects():
    assert sample(parsed(FOREIGN / "sahi.json"), "photo_4.jpg")["objects"] == []


def test_categories_that_share_an_id_as_imantics_writes_them_are_refused():
    with pytest.raises(SourceError, match="'0' occurs more than once as id of 'categories'"):
        parsed(FOREIGN / "imantics.json")


@pytest.mark.frameworks
def test_run_lengths_that_pycocotools_compressed_have_its_pixels_and_its_box():
    from pycocotools import mask as coco_mask

    theirs = json.loads((FOREIGN / "pycocotools_rle.json").read_text())
    for rle, (left, top, width, height), area in zip(theirs["masks"], theirs["boxes"], theirs["areas"], strict=True):
        assert rle_box(rle) == (left, top, left + width, top + height)
        assert sum(run_lengths(rle)[1::2]) == area
        again = coco_mask.frPyObjects({"size": rle["size"], "counts": run_lengths(rle)}, *rle["size"])
        assert again["counts"].decode() == rle["counts"]


BASE = {
    "info": {"year": 2026},
    "images": [{"id": 7, "file_name": "a.jpg", "width": 100, "height": 50}, {"id": 8, "file_name": "b.jpg"}],
    "annotations": [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [10, 20, 30, 15.5], "iscrowd": 0}],
    "categories": [{"id": 90, "name": "fig"}, {"id": 18, "name": "dog"}],
}


def with_changes(**changes):
    """Return a file in which the first annotation has other values."""
    new = copy.deepcopy(BASE)
    new["annotations"][0].update(changes)
    return new


def parse(raw):
    return coco.parse(json.dumps(raw).encode(), "some.json")


def test_category_ids_become_numbers_in_ascending_order_and_are_recorded():
    found = parse(BASE)
    assert (found.names, found.ids) == (("dog", "fig"), (18, 90))
    assert sample(found, "a.jpg")["objects"] == [{"box": [10, 20, 40, 35.5], "category": 0, "id": 1}]


def test_attributes_of_images_and_annotations_keep_their_names():
    raw = with_changes(score=0.5, box="own", note={"a": [1]})
    raw["images"][0] |= {"license": 3, "objects": 9, "path": "x"}
    facts = sample(parse(raw), "a.jpg")
    assert (facts["license"], facts["objects_"], facts["path_"]) == (3, 9, "x")
    assert facts["objects"][0] == {
        "box": [10, 20, 40, 35.5], "category": 0, "id": 1, "score": 0.5, "box_": "own", "note": {"a": [1]},
    }  # fmt: skip


def test_every_entry_of_the_file_is_in_the_account():
    raw = BASE | {"licenses": [], "mine": 3}
    parts = {part.name: (part.role, part.reason) for part in parse(raw).parts}
    assert parts.keys() == raw.keys()
    assert all(bool(role) != bool(reason) for role, reason in parts.values())


def changed(name, *more):
    return BASE | {name: [*BASE[name], *more]}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (changed("images", {"id": 7, "file_name": "c.jpg"}), "'7' occurs more than once as id of 'images'"),
        (changed("images", {"id": 9, "file_name": "./a.jpg"}), "'a.jpg' occurs more than once as 'file_name'"),
        (changed("images", {"id": 9}), "neither 'file_name' nor 'coco_url'"),
        (changed("annotations", BASE["annotations"][0]), "'1' occurs more than once as id of 'annotations'"),
        (changed("categories", {"id": 18, "name": "cat"}), "'18' occurs more than once as id of 'categories'"),
        (changed("categories", {"id": "3", "name": "cat"}), "'categories' has id '3'"),
        (with_changes(category_id=5), "annotation 1 has category 5, which is not among the 2"),
        (with_changes(category_id=None), "category_id None"),
        (with_changes(image_id=None), "does not name its image"),
        (with_changes(image_id=5), "no annotation belongs to one of the images, such as 5"),
        ({"annotations": []}, "no list 'images', so it is not COCO"),
        (BASE | {"images": {}}, "'images' is not a list of objects"),
    ],
)
def test_references_that_are_ambiguous_or_lead_nowhere_are_refused(raw, message):
    with pytest.raises(SourceError, match=message):
        parse(raw)


def test_annotations_of_unknown_images_are_counted_and_left_out():
    found = parse(changed("annotations", {"id": 2, "image_id": 99, "category_id": 18, "bbox": [1, 1, 2, 2]}))
    assert found.notes == ["1 annotation of images that some.json does not list, left out: annotation 2 of image 99"]
    assert len(sample(found, "a.jpg")["objects"]) == 1


def test_two_used_categories_of_one_name_are_refused_and_an_unused_one_is_left_out():
    raw = changed("categories", {"id": 0, "name": "dog", "supercategory": "none"})  # as Roboflow writes
    found = parse(raw)
    assert found.ids == (18, 90)
    assert found.notes == ["category 0 has no annotation, and the same name as another one, 'dog': left out"]
    more = {"id": 2, "image_id": 7, "category_id": 0, "bbox": [1, 1, 2, 2]}
    with pytest.raises(LabelError, match="class 'dog' occurs twice"):
        parse(raw | {"annotations": [*BASE["annotations"], more]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bbox": [10, 20, -3, 5]}, "annotation 1 has a box of negative size"),
        ({"bbox": [10, 20, math.nan, 5]}, "annotation 1 has a box of .*finite"),
        ({"bbox": [10, 20, 3]}, "a box of 3 numbers; allowed are 4"),
        ({"bbox": [200, 20, 3, 4]}, "annotation 1 has a box outside its image of 100x50"),
        ({"bbox": "10"}, "a box that is a str"),
        ({"bbox": None}, "neither a box"),
        ({"segmentation": [[1, 2, 3, 4, 5]]}, "a polygon of 5 numbers"),
        ({"segmentation": [[1, 2, 3, 4, 5, math.inf]]}, "finite"),
        ({"segmentation": {"size": [50, 100], "counts": [4]}}, "4 pixels; its size .* has 5,000"),
        ({"segmentation": {"size": [50, 100], "counts": "~~"}}, "counts are neither"),
        ({"segmentation": {"size": [-1, 100], "counts": [4]}}, "run lengths of size"),
        ({"segmentation": "mask"}, "a segmentation that is a str"),
        (
            {"segmentation": {"size": [100, 50], "counts": [5000]}},
            r"annotation 1 .* of size \[100, 50\].*has \[50, 100\]",
        ),
        ({"iscrowd": "0"}, "annotation 1 has iscrowd '0'; allowed are 0 and 1"),
        ({"iscrowd": 2}, "annotation 1 has iscrowd 2; allowed are 0 and 1"),
    ],
)
def test_an_image_with_an_object_that_cannot_be_used_is_skipped_with_the_reason(changes, message):
    found = parse(with_changes(**changes))
    assert list(found.images) == ["b.jpg"]
    [skip] = found.skipped
    assert skip.path == "a.jpg"
    assert re.search(message, skip.reason)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"bbox": [10, 20, 0, 5]},
            "1 object without area, kept as in the source: annotation 1 of 'a.jpg' in",
        ),
        ({"bbox": [90, 20, 30, 5]}, "1 object with a box that reaches beyond its image, kept as in the source"),
        ({"segmentation": [[1, 2, 3, 4]]}, "1 object without area"),
        ({"segmentation": [[10, 20, 40, 20, 40, 90]]}, "1 object with an outline or key points beyond its image, kept"),
        ({"keypoints": [10, 20, 2, 140, 20, 1]}, "1 object with an outline or key points beyond its image, kept as in"),
    ],
)
def test_a_box_that_is_only_strange_is_kept_as_it_is_and_counted(changes, note):
    found = parse(with_changes(**changes))
    assert not found.skipped
    assert [one for one in found.notes if one.startswith(note)]
    box = changes.get("bbox", [10, 20, 30, 15.5])
    assert sample(found, "a.jpg")["objects"][0]["box"] == [box[0], box[1], box[0] + box[2], box[1] + box[3]]


@pytest.mark.parametrize(
    "changes",
    [
        {"bbox": [90, 20, 10.4, 5]},
        {"segmentation": [[10, 20, 100.9, 20, 40, 50.5]]},
        {"keypoints": [10, 20, 2, -140, 20, 0]},  # not labelled
        {"iscrowd": True},
    ],
)
def test_a_fraction_of_a_pixel_and_a_point_that_is_not_labelled_are_not_remarkable(changes):
    found = parse(with_changes(**changes))
    assert (found.notes, found.skipped) == ([], [])


def test_an_object_without_a_box_gets_the_one_around_its_outline():
    found = parse(with_changes(bbox=[], segmentation=[[5, 6, 20.5, 6, 20.5, 30], [1, 8, 2, 8, 2, 9]]))
    assert sample(found, "a.jpg")["objects"][0]["box"] == [1, 6, 20.5, 30]
    rle = {"size": [50, 100], "counts": [50 * 10 + 5, 3, 50 - 3, 7, 50 * 88 - 12]}
    rle["counts"][-1] += 5000 - sum(rle["counts"])
    found = parse(with_changes(bbox=None, segmentation=rle))
    assert sample(found, "a.jpg")["objects"][0]["box"] == [10, 5, 12, 12]


def test_annotations_for_an_image_of_another_size_are_refused():
    facts = sample(parse(BASE), "a.jpg")
    assert facts.pop("described in") == "some.json"
    assert completed(facts, 100, 50) == facts
    facts = sample(parse(BASE), "a.jpg")
    message = r"an image of 100x50, and the image is 50x100 as it is shown .*, in some\.json: correct"
    with pytest.raises(SourceError, match=message):
        completed(facts, 50, 100)


def test_an_image_without_a_size_gets_it_and_its_boxes_are_checked_then():
    raw = with_changes(image_id=8)
    facts = sample(parse(raw), "b.jpg")
    assert completed(facts, 100, 50)["width"] == 100
    with pytest.raises(SourceError, match=r"outside its image of 5x5: .*, in some\.json"):
        completed(facts, 5, 5)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"images": [', b'{"images": []', b'{"annotations": [1 2]}', b'{1: 2}', b"\xff\xfe{}", b'{"a": 1} x',
     b'{"annotations": ' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_not_json_of_this_form_is_refused(data):
    with pytest.raises(SourceError, match=r"some.json"):
        coco.parse(data, "some.json")


def test_a_file_in_which_annotations_come_first_is_read_too():
    again = {name: BASE[name] for name in ("annotations", "categories", "images", "info")}
    assert parse(again).images == parse(BASE).images
    spaced = json.dumps(BASE, indent=2).replace("\n", "\r\n").encode()
    for data in (b"\xef\xbb\xbf" + spaced, spaced.decode().encode("utf-16")):
        assert coco.is_coco(data)
        assert coco.parse(data, "some.json").images == parse(BASE).images


@pytest.mark.parametrize("ids", [[1, 2, 3], [2, 1, 9], [70, 71, 72]])
def test_captions_and_key_points_are_joined_with_the_instances_of_the_same_images(ids):
    """Also if each file has its own ids for the annotations."""
    boxes, captions, points = (
        parsed(FOREIGN / folder / f"{kind}_train.json")
        for folder, kind in [
            ("datumaro_instances_poly", "instances"),
            ("datumaro_captions", "captions"),
            ("datumaro_person_keypoints", "person_keypoints"),
        ]
    )
    raw = json.loads((FOREIGN / "datumaro_person_keypoints" / "person_keypoints_train.json").read_text())
    for new, one in zip(ids, raw["annotations"], strict=False):
        one["id"] = new
    points = parse(raw)
    joined = coco.merged(coco.merged(captions, boxes, "x"), points, "x")
    facts = sample(joined)
    assert facts["captions"] == ["a cat", "a dog"]
    assert [one["id"] for one in facts["objects"]] == [1, 2]
    assert facts["objects"][0]["polygons"]
    assert len(facts["objects"][0]["keypoints"]) == 3
    assert joined.attributes[2]["keypoints"] == ["left", "right", "tail"]
    assert joined.names == ("cat", "dog", "fig tree")


def test_files_with_other_categories_are_not_joined():
    other = parse(BASE | {"categories": [{"id": 18, "name": "cat"}, {"id": 90, "name": "fig"}]})
    with pytest.raises(SourceError, match="categories that differ"):
        coco.merged(parse(BASE), other, "x")


def found(paths, name, beside, split=""):
    file = RowNames(File(path, 1) for path in paths).find(coco.name_here(name), table=beside, folder=split)
    return file.path if file else None


@pytest.mark.parametrize(
    ("paths", "beside", "split", "expected"),
    [
        (["images/train/a.jpg", "images/val/a.jpg"], "annotations/instances_train.json", "train", "images/train/a.jpg"),
        (["train/a.jpg", "valid/a.jpg"], "valid/_annotations.coco.json", "valid", "valid/a.jpg"),
        (["data/a.jpg", "raw/data/a.jpg"], "raw/labels.json", "", "raw/data/a.jpg"),
        (["b.jpg"], "x.json", "", None),
        (["xa.jpg"], "x.json", "", None),
    ],
)
def test_the_image_of_a_name_is_found_by_split_and_folder(paths, beside, split, expected):
    assert found(paths, "a.jpg", beside, split) == expected


def test_a_name_with_another_folder_is_not_the_image_but_a_path_of_another_machine_is():
    assert found(["val/a.jpg"], "train/a.jpg", "x.json") is None
    paths = ["images/photo_1.jpg"]
    for name in ("/tmp/photos/images/photo_1.jpg", "C:/photos/photo_1.jpg", "../photo_1.jpg"):
        assert found(paths, name, "x.json") == paths[0]


def test_a_name_that_can_be_two_images_is_refused():
    with pytest.raises(SourceError, match=r"'a\.jpg', which can be 'x/a\.jpg', 'y/a\.jpg'"):
        found(["x/a.jpg", "y/a.jpg"], "a.jpg", "labels.json")
