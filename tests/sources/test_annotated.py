"""Trees of images with annotations that other programs wrote, packed and read again."""

import io
import json
import pickle
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import fsspec
import numpy as np
import pytest
import torch
import yaml as pyyaml
from annotated_trees import FOREIGN, SPLIT_OF, tree_of
from PIL import Image
from sources_conformance import stored
from torchvision.datasets import CocoDetection, VOCDetection

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import LabelError, MissingSourceError, OptionError, SourceError
from wds_tools.sources.detect import open_source

NAMES = ("cat", "dog", "fig tree")
BOXES = {  # what the programs were given: left, top, right, bottom, class number
    "photo_1.jpg": [(10, 8, 30, 40, 0), (0, 0, 64, 48, 1)],
    "photo_2.jpg": [(5, 5, 45, 35, 2), (12, 10, 20, 30, 0)],
    "photo 3.jpg": [(1, 2, 39, 58, 1)],
    "photo_4.jpg": [],
}
FIELDS = {
    "image": wt.Image(),
    "boxes": wt.Boxes(path="objects.box", like="image"),
    "classes": wt.Field("json", path="objects.category", like="boxes"),
    "path": wt.Text("json", path="path"),
}


def samples_of(dataset, fields=FIELDS):
    """Return the samples of a dataset by the name of their image."""
    loader = wt.make_loader(dataset, batch_size=1, fields=fields, num_workers=0)
    return {Path(batch.path[0]).name: batch for batch in loader}


def json_of(dataset):
    with tarfile.open(Path(dataset) / "shard-000000.tar") as shard:
        found = [json.loads(shard.extractfile(member).read()) for member in shard if member.name.endswith(".json")]
    return {Path(one["path"]).name: one for one in found}


def classes_of(report):
    return report.manifest.field_classes["json:objects.category"]


TREES = {
    "coco": ("coco/datumaro_instances_mask", "images/{split}/{name}", "coco"),
    "coco, panoptic": ("coco/datumaro_panoptic", "images/{split}/{name}", "coco"),
    "coco, polygons": ("coco/datumaro_instances_poly", "{split}/{name}", "coco"),
    "yolo": ("yolo/datumaro_boxes", "images/{split}/{name}", "yolo"),
    "darknet": ("yolo/datumaro_darknet", "obj_{split}_data/{name}", "yolo"),
    "voc": ("voc/datumaro", "JPEGImages/{name}", "voc"),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_with_splits_becomes_a_dataset_for_each_with_its_boxes(name, tmp_path):
    annotations, place, kind = TREES[name]
    src = tree_of(tmp_path / "src", annotations, place)
    with pytest.raises(SourceError, match=r"several splits \(train, val\): pack with --split folders"):
        wt.pack(src, tmp_path / "one", images="keep")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    found = {}
    for split, report in reports.items():
        assert report.manifest.source["kind"] == kind
        assert classes_of(report).names == NAMES
        there = samples_of(tmp_path / "out" / split)
        assert {name for name, one in SPLIT_OF.items() if one == split} == there.keys()
        found |= there
    check_boxes(found)


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [("coco/supervision_boxes.json", None), ("yolo/labelimg", "labels"), ("voc/labelimg", "Annotations")],
)
def test_annotations_that_state_no_split_are_divided_by_the_folders_of_the_images(annotations, labels, tmp_path):
    src, splits = tmp_path / "src", {"train": ["photo_1", "photo_2"], "val": ["photo 3", "photo_4"]}
    src.mkdir()
    for path in [FOREIGN / annotations] if labels is None else sorted((FOREIGN / annotations).rglob("*.*")):
        folder = next((f"{labels}/{split}" for split, names in splits.items() if path.stem in names), "")
        (src / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, src / folder)
    for split, names in splits.items():
        (src / "images" / split).mkdir(parents=True)
        for name in names:
            shutil.copy(FOREIGN / "images" / f"{name}.jpg", src / "images" / split)
    with pytest.raises(SourceError, match=r"has several splits \(train, val\): pack with --split folders"):
        wt.pack(src, tmp_path / "dst", workers=1)
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    found = {split: samples_of(tmp_path / "dst" / split) for split in reports}
    assert {split: sorted(one) for split, one in found.items()} == {
        split: sorted(f"{name}.jpg" for name in names) for split, names in splits.items()
    }
    for report in reports.values():
        assert report.account.attached == {"annotations": {"coco": 1, "yolo": 3, "voc": 2}[annotations.split("/")[0]]}
        assert not report.skipped
    check_boxes({name: one for there in found.values() for name, one in there.items()}, atol=1.01)  # of labelImg


def check_boxes(found, atol=0.001):
    for name, boxes in BOXES.items():
        expected = torch.tensor([box[:4] for box in boxes], dtype=torch.float32).reshape(-1, 4)
        torch.testing.assert_close(found[name].boxes[0], expected, atol=atol, rtol=0)
        assert found[name].classes[0].tolist() == [box[4] for box in boxes]
        pixels = np.asarray(Image.open(FOREIGN / "images" / name).convert("RGB"))
        assert np.array_equal(found[name].image[0].permute(1, 2, 0).numpy(), pixels)


@pytest.mark.parametrize(
    ("annotations", "place", "atol"),
    [
        ("yolo/supervision_boxes", "images/{name}", 0.001),
        ("yolo/supervision_obb", "images/{name}", 0.001),
        ("yolo/labelimg", "{name}", 1.01),  # it writes 1 for 0
        ("yolo/label_studio", "images/{name}", 0.001),
        ("voc/supervision_boxes", "images/{name}", 0),
        ("voc/globox", "images/{name}", 0),
        ("voc/pascal_voc_writer", "JPEGImages/{name}", 0),
    ],
)
def test_a_tree_without_splits_becomes_one_dataset(annotations, place, atol, tmp_path):
    src = tree_of(tmp_path / "src", annotations, place)
    report = wt.pack(src, tmp_path / "out", images="keep")
    assert report.manifest.source["kind"] == annotations.partition("/")[0]
    assert classes_of(report).names == NAMES
    assert not report.manifest.classes
    check_boxes(samples_of(tmp_path / "out"), atol + 1e-6)


def test_class_names_that_the_user_gives_number_the_objects_of_all_formats_so_that_they_can_be_merged(tmp_path):
    names, datasets = ("fig tree", "owl", "cat", "dog"), []
    for annotations in ("yolo/supervision_boxes", "voc/supervision_boxes", "coco/supervision_boxes.json"):
        src = tmp_path / "src" / annotations
        if annotations.endswith(".json"):
            shutil.copytree(FOREIGN / "images", src)
            shutil.copy(FOREIGN / annotations, src)
        else:
            tree_of(src, annotations, "images/{name}")
        if annotations.startswith("yolo"):
            for file in [path for path in src.rglob("*.*") if path.suffix in (".yaml", ".yml")]:
                file.unlink()
        datasets.append(tmp_path / src.parent.name)
        kind = "yolo" if annotations.startswith("yolo") else None
        given = [*NAMES, "owl"] if kind else names
        report = wt.pack(src, datasets[-1], images="keep", workers=1, classes=given, kind=kind)
        assert (classes_of(report).names, classes_of(report).ids) == (tuple(given), ())
        expected = [[given.index(NAMES[box[4]]) for box in BOXES[name]] for name in sorted(BOXES)]
        assert [
            [one["category"] for one in json_of(datasets[-1])[name]["objects"]] for name in sorted(BOXES)
        ] == expected
    with pytest.raises(LabelError, match=r"yolo and .*voc have different classes .* pack them with the same classes"):
        wt.merge(datasets, tmp_path / "merged")
    wt.pack(src, tmp_path / "other", images="keep", workers=1)
    with pytest.raises(LabelError, match="have different classes"):
        wt.merge([datasets[2], tmp_path / "other"], tmp_path / "merged")
    assert classes_of(wt.merge(datasets[1:], tmp_path / "merged")).names == names


@pytest.mark.frameworks
def test_coco_is_what_torchvision_reads_from_it_with_pycocotools(tmp_path, capsys):
    src = tree_of(tmp_path / "src", "coco/datumaro_instances_mask", "images/{split}/{name}")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    for split in ("train", "val"):
        theirs = CocoDetection(src / "images" / split, src / f"instances_{split}.json")
        ours, facts = samples_of(tmp_path / "out" / split), json_of(tmp_path / "out" / split)
        ids = classes_of(reports[split]).ids
        assert len(theirs) == len(ours)
        for number, (image, annotations) in zip(theirs.ids, theirs, strict=True):
            name = theirs.coco.imgs[number]["file_name"]
            assert np.array_equal(ours[name].image[0].permute(1, 2, 0).numpy(), np.asarray(image))
            assert facts[name]["id"] == number
            boxes = [[x, y, x + width, y + height] for x, y, width, height in (one["bbox"] for one in annotations)]
            assert ours[name].boxes[0].tolist() == boxes
            assert [ids[one] for one in ours[name].classes[0].tolist()] == [one["category_id"] for one in annotations]
            for one, other in zip(facts[name]["objects"], annotations, strict=True):
                outline = other["segmentation"]
                assert one.get("rle" if isinstance(outline, dict) else "polygons") == outline
                assert one.get("crowd", False) == bool(other["iscrowd"])
    capsys.readouterr()


def test_voc_is_what_torchvision_reads_from_it(tmp_path):
    src = tree_of(tmp_path / "src", "voc/supervision_boxes", "JPEGImages/{name}")
    sets = src / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    (sets / "train.txt").write_text("photo_1\nphoto_2\n")
    (sets / "val.txt").write_text("photo_4\n")
    (sets / "trainval.txt").write_text("photo_1\nphoto_2\nphoto_4\n")
    (sets / "cat_train.txt").write_text("photo_1  1\nphoto_2 -1\n")
    shutil.copytree(src, tmp_path / "root" / "VOCdevkit" / "VOC2012")
    theirs = VOCDetection(tmp_path / "root", year="2012", image_set="train")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert list(reports) == ["train", "val"]
    assert [(skip.path, skip.reason) for skip in reports["train"].skipped] == [
        ("Annotations/photo 3.xml", "belongs to no image that is packed"),
        ("ImageSets/Main/cat_train.txt", "is a list of images, and another list is used instead"),
        ("ImageSets/Main/trainval.txt", "is a list of images, and another list is used instead"),
        ("JPEGImages/photo 3.jpg", "is not listed in ImageSets"),
    ]
    ours = samples_of(tmp_path / "out" / "train")
    for image, target in theirs:
        sample = ours[target["annotation"]["filename"]]
        assert np.array_equal(sample.image[0].permute(1, 2, 0).numpy(), np.asarray(image))
        edges = [[float(one["bndbox"][edge]) for edge in ("xmin", "ymin", "xmax", "ymax")]
                 for one in target["annotation"]["object"]]  # fmt: skip
        assert sample.boxes[0].tolist() == [[x - 1, y - 1, right, bottom] for x, y, right, bottom in edges]
        assert [NAMES[one] for one in sample.classes[0].tolist()] == [
            one["name"] for one in target["annotation"]["object"]
        ]


def test_key_points_are_read_as_points_and_their_names_are_in_the_manifest(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_person_keypoints", "images/{split}/{name}")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    attributes = json.loads(classes_of(reports["val"]).attributes[2])
    assert attributes["keypoints"] == ["left", "right", "tail"]
    assert attributes["skeleton"] == [[0, 1], [1, 2]]
    fields = {**FIELDS, "points": wt.Keypoints(path="objects.keypoints", like="image")}
    found = samples_of(tmp_path / "out" / "train", fields)
    assert found["photo_1.jpg"].points[0].tolist() == [
        [[11, 9, 2], [29, 9, 1], [0, 0, 0]],
        [[1, 1, 2], [63, 1, 1], [0, 0, 0]],
    ]
    assert samples_of(tmp_path / "out" / "val", fields)["photo_4.jpg"].points[0].numel() == 0


@pytest.mark.parametrize(
    ("folder_of_lists", "line"),
    [("Main", "{0.stem}"), ("Segmentation", "{0.name}"), (".", "JPEGImages/{0.name}")],
)
def test_lists_of_several_years_of_voc_are_joined(folder_of_lists, line, tmp_path):
    for year, names in (("VOC2007", "12"), ("VOC2012", "34")):
        src = tree_of(tmp_path / year, "voc/supervision_boxes", "JPEGImages/{name}")
        (root := tmp_path / "VOCdevkit" / year).mkdir(parents=True)
        for folder in ("JPEGImages", "Annotations"):
            (root / folder).mkdir()
            for number in names:
                [file] = (src / folder).glob(f"photo[_ ]{number}.*")
                shutil.copy(file, root / folder)
        (lists := root / "ImageSets" / folder_of_lists).mkdir(parents=True)
        for split, photo in zip(("train", "val"), names, strict=True):
            [file] = (root / "JPEGImages").glob(f"photo[_ ]{photo}.*")
            (lists / f"{split}.txt").write_text(f"{line.format(file)}\n")
    reports = wt.pack_splits(tmp_path / "VOCdevkit", tmp_path / "out", split="folders", images="keep")
    packed = {split: sorted(json_of(tmp_path / "out" / split)) for split in reports}
    assert packed == {"train": ["photo 3.jpg", "photo_1.jpg"], "val": ["photo_2.jpg", "photo_4.jpg"]}


def test_captions_are_a_list_for_each_image(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_captions", "images/{split}/{name}")
    wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert json_of(tmp_path / "out" / "train")["photo_1.jpg"]["captions"] == ["a cat", "a dog"]


def test_instances_captions_and_key_points_of_the_same_images_become_one_sample(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_instances_poly", "images/{split}/{name}")
    for kind in ("captions", "person_keypoints"):
        shutil.copytree(FOREIGN / "coco" / f"datumaro_{kind}", src, dirs_exist_ok=True)
    [points] = src.rglob("person_keypoints_train.json")  # the largest file; with a class less, as COCO has it
    raw = json.loads(points.read_text())
    raw["annotations"][0]["bbox"] = [10.4, 8, 20, 32]  # the object has the same id
    points.write_text(json.dumps(raw | {"categories": raw["categories"][:2]}))
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    facts = json_of(tmp_path / "out" / "train")["photo_1.jpg"]
    assert facts["captions"] == ["a cat", "a dog"]
    assert [one["box"] for one in facts["objects"]] == [[10, 8, 30, 40], [0, 0, 64, 48]]
    assert facts["objects"][0]["polygons"]
    assert facts["objects"][0]["keypoints"]
    assert reports["train"].manifest.account.attached["annotations"] == 3


def test_the_png_of_a_panoptic_image_is_a_field(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_panoptic", "images/{split}/{name}")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert reports["train"].manifest.fields["panoptic.png"] == 2
    fields = {**FIELDS, "panoptic": wt.Image("panoptic.png", mode="unchanged")}
    [png] = (FOREIGN / "coco" / "datumaro_panoptic").rglob("photo 3.png")
    ours = samples_of(tmp_path / "out" / "train", fields)["photo 3.jpg"].panoptic[0]
    assert np.array_equal(ours.permute(1, 2, 0).numpy(), np.asarray(Image.open(png)))


@pytest.mark.parametrize(
    ("annotations", "place", "masks"),
    [
        ("masks/camvid", "{split}/{name}", "{split}annot/{stem}.png"),
        ("voc/datumaro_segmentation", "JPEGImages/{name}", "SegmentationClass/{stem}.png"),
    ],
)
def test_images_with_masks_have_the_pixels_of_the_png(annotations, place, masks, tmp_path):
    src = tree_of(tmp_path / "src", annotations, place)
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert {report.manifest.source["kind"] for report in reports.values()} == {"masks"}
    fields = {"path": FIELDS["path"], "mask": wt.Image("mask.png", mode="unchanged")}
    for split in ("train", "val"):
        for name, batch in samples_of(tmp_path / "out" / split, fields).items():
            path = src / masks.format(split=split, stem=Path(name).stem)
            assert np.array_equal(batch.mask[0].permute(1, 2, 0).numpy(), np.asarray(Image.open(path)))


def test_cityscapes_with_the_class_numbers_of_its_scripts(tmp_path):
    src = tmp_path / "src"
    shutil.copytree(FOREIGN / "masks" / "cityscapes", src)
    for mask in sorted(src.rglob("*_labelIds.png")):
        folder = src / "leftImg8bit" / mask.parent.relative_to(src / "gtFine")
        folder.mkdir(parents=True)
        Image.new("RGB", (64, 32), (9, 9, 9)).save(folder / mask.name.replace("gtFine_labelIds", "leftImg8bit"))
    wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    loader = wt.make_loader(tmp_path / "out" / "val", batch_size=1, num_workers=0, fields={
        "image": wt.Image(), "mask": wt.Mask("mask.png", like="image"),
    })  # fmt: skip
    [batch] = loader
    [png] = (src / "gtFine" / "val").rglob("*_labelIds.png")
    assert np.array_equal(batch.mask[0].numpy(), np.asarray(Image.open(png)))
    assert {7, 26} <= set(batch.mask[0].unique().tolist())  # road, car


def as_tar(src, path):
    with tarfile.open(path, "w") as archive:
        archive.add(src, ".")
    return path


def as_zip(src, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(src.rglob("*")):
            archive.write(file, file.relative_to(src))
    return path


def as_url(src, path):
    for file in src.rglob("*"):
        if file.is_file():
            fsspec.filesystem("memory").pipe_file(f"/{path.name}/{file.relative_to(src)}", file.read_bytes())
    return f"memory://{path.name}"


@pytest.mark.parametrize("convert", [as_tar, as_zip, as_url])
@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_the_same_tree_in_an_archive_or_at_a_url_gives_the_same_samples(convert, kind, tmp_path):
    annotations, place, _ = TREES[kind]
    src = tree_of(tmp_path / "src", annotations, place)
    names = {as_tar: "src.tar", as_zip: "src.zip", as_url: f"{kind}-at-a-url"}
    other = convert(src, tmp_path / names[convert])
    wt.pack_splits(src, tmp_path / "a", split="folders", images="keep")
    wt.pack_splits(other, tmp_path / "b", split="folders", images="keep", kind=kind, workers=1)
    for split in ("train", "val"):
        assert json_of(tmp_path / "a" / split) == json_of(tmp_path / "b" / split)


def coco_file(**changes):
    base = {
        "images": [{"id": 1, "file_name": "photo_1.jpg", "width": 64, "height": 48}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [4, 8, 20, 16]}],
        "categories": [{"id": 3, "name": "cat"}],
    }
    return json.dumps(base | changes)


@pytest.fixture
def src(tmp_path):
    folder = tmp_path / "src"
    (folder / "images").mkdir(parents=True)
    shutil.copy(FOREIGN / "images" / "photo_1.jpg", folder / "images")
    return folder


def skipped(report):
    return {skip.path: skip.reason for skip in report.skipped}


def test_images_that_are_missing_or_not_listed_are_named(src, tmp_path):
    shutil.copy(FOREIGN / "images" / "photo_2.jpg", src / "images")
    (src / "notes.md").write_text("x")
    images = json.loads(coco_file())["images"] + [{"id": 2, "file_name": "gone.jpg", "width": 5, "height": 5}]
    objects = [{"id": 70 + index, "image_id": 2, "category_id": 3, "bbox": [1, 1, 3, 3]} for index in range(2)]
    (src / "labels.json").write_text(coco_file(images=images, annotations=objects))
    report = wt.pack(src, tmp_path / "out")
    found = skipped(report)
    assert found["gone.jpg"] == (
        "is listed in labels.json, but there is no such file; 2 objects left out: annotation 70, annotation 71"
    )
    assert found["images/photo_2.jpg"] == "is not listed in labels.json"
    assert "notes.md" in found
    account = report.manifest.account
    assert (account.given, account.packed, account.attached["annotations"]) == (5, 1, 1)


def test_an_image_of_another_size_than_its_annotations_is_skipped_with_both_sizes(src, tmp_path):
    images = [{"id": 1, "file_name": "photo_1.jpg", "width": 48, "height": 64}]
    more = {"id": 2, "file_name": "photo_2.jpg", "width": 50, "height": 40}
    shutil.copy(FOREIGN / "images" / "photo_2.jpg", src / "images")
    (src / "labels.json").write_text(coco_file(images=[*images, more]))
    [(path, reason)] = skipped(wt.pack(src, tmp_path / "out")).items()
    assert path == "images/photo_1.jpg"
    assert "an image of 48x64, and the image is 64x48 as it is shown" in reason


def test_an_image_that_is_shown_rotated_has_the_size_that_is_shown(src, tmp_path):
    rotated = Image.open(src / "images" / "photo_1.jpg")
    exif = Image.Exif()
    exif[274] = 6
    rotated.save(src / "images" / "photo_1.jpg", exif=exif)
    images = [{"id": 1, "file_name": "photo_1.jpg", "width": 48, "height": 64}]
    (src / "labels.json").write_text(coco_file(images=images))
    wt.pack(src, tmp_path / "out")
    assert json_of(tmp_path / "out")["photo_1.jpg"]["width"] == 48


def test_bad_objects_skip_their_image_and_are_an_error_with_strict(src, tmp_path):
    bad = {"id": 7, "image_id": 1, "category_id": 3, "bbox": [4, 8, -20, 16]}
    shutil.copy(FOREIGN / "images" / "photo_2.jpg", src / "images")
    images = json.loads(coco_file())["images"] + [{"id": 2, "file_name": "photo_2.jpg", "width": 50, "height": 40}]
    (src / "labels.json").write_text(coco_file(images=images, annotations=[bad]))
    assert "annotation 7 has a box of negative size" in skipped(wt.pack(src, tmp_path / "out"))["images/photo_1.jpg"]
    with pytest.raises(SourceError, match="annotation 7 has a box of negative size"):
        wt.pack(src, tmp_path / "strict", strict=True)


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("instances_train2017.json", "panoptic_train2017.json")])
def test_several_coco_files_about_the_same_images_are_refused(names, src, tmp_path):
    for name in names:
        (src / name).write_text(coco_file())
    message = rf"annotation files about the same images, such as 'photo_1\.jpg', '{names[0]}', '{names[1]}': keep one"
    with pytest.raises(SourceError, match=message):
        wt.pack(src, tmp_path / "out")


@pytest.mark.parametrize("folder", ["", "annotations/"])
@pytest.mark.parametrize("name", ["instances_default.json", "captions_default.json"])
def test_exports_of_two_jobs_are_not_mixed(name, folder, tmp_path):
    """CVAT writes a file with the same name for each job, and names frames alike."""
    files = {"job_1": f"{folder}instances_default.json", "job_2": f"{folder}{name}"}
    for number, (job, file) in enumerate(files.items(), start=1):
        (tmp_path / "src" / job / "images").mkdir(parents=True)
        (tmp_path / "src" / job / file).parent.mkdir(exist_ok=True)
        shutil.copy(FOREIGN / "images" / f"photo_{number}.jpg", tmp_path / "src" / job / "images" / "photo_1.jpg")
        image = {"id": 1, "file_name": "photo_1.jpg"}
        box = {"id": number, "image_id": 1, "category_id": 3, "bbox": [number, 8, 20, 16]}
        (tmp_path / "src" / job / file).write_text(coco_file(images=[image], annotations=[box]))
    with pytest.raises(
        SourceError, match=r"about the same images, such as 'photo_1\.jpg', 'job_1/.*'job_2/.* or pack the folder"
    ):
        wt.pack(tmp_path / "src", tmp_path / "out")
    (tmp_path / "src/job_2/images/photo_1.jpg").rename(tmp_path / "src/job_2/images/photo_2.jpg")
    path = tmp_path / "src" / "job_2" / files["job_2"]
    path.write_text(path.read_text().replace("photo_1.jpg", "photo_2.jpg"))
    shutil.copy(FOREIGN / "images" / "photo_4.jpg", tmp_path / "src/job_1/images/photo_2.jpg")  # no file lists it
    report = wt.pack(tmp_path / "src", tmp_path / "out", images="keep")
    assert {entries["path"]: entries["objects"][0]["box"][0] for entries in json_of(tmp_path / "out").values()} == {
        "job_1/images/photo_1.jpg": 1, "job_2/images/photo_2.jpg": 2,
    }  # fmt: skip
    assert [*skipped(report)] == ["job_1/images/photo_2.jpg"]


def test_boxes_that_are_fractions_are_refused(tmp_path):
    """As some programs export them; they would be boxes of less than a pixel."""
    src = shutil.copytree(FOREIGN / "images", tmp_path / "src")
    path = Path(shutil.copy(FOREIGN / "coco" / "supervision_boxes.json", src))
    found = json.loads(path.read_bytes())
    sizes = {image["id"]: (image["width"], image["height"]) * 2 for image in found["images"]}
    for one in found["annotations"]:
        sides = sizes[one["image_id"]]
        one["bbox"] = [edge / side for edge, side in zip(one["bbox"], sides, strict=True)]
    path.write_text(json.dumps(found))
    with pytest.raises(SourceError, match=rf"{path.name}: no number of a box .* fractions of the image: multiply them"):
        wt.pack(src, tmp_path / "dst", workers=1)


def test_splits_with_other_categories_need_the_names_of_all(src, tmp_path):
    photo_2 = [{"id": 2, "file_name": "photo_2.jpg", "width": 64, "height": 48}]
    objects = [{"id": number, "image_id": 2, "category_id": number, "bbox": [4, 8, 20, 16]} for number in (3, 5)]
    categories = [{"id": 3, "name": "dog"}, {"id": 5, "name": "cat"}]
    shutil.copy(src / "images" / "photo_1.jpg", src / "images" / "photo_2.jpg")
    (src / "train.json").write_text(coco_file())
    (src / "val.json").write_text(coco_file(images=photo_2, annotations=objects, categories=categories))
    for classes in (None, ["dog", "fig"]):
        with pytest.raises(SourceError, match=r"train\.json and val\.json have different categories.*--classes"):
            wt.pack_splits(src, tmp_path / "out", split="folders", classes=classes)
    classes = ["fig", "cat", "dog"]
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", classes=classes, images="keep", workers=1)
    for split, numbers in (("train", [1]), ("val", [2, 1])):
        assert classes_of(reports[split]).names == ("fig", "cat", "dog")
        [sample] = json_of(tmp_path / "out" / split).values()
        assert [one["category"] for one in sample["objects"]] == numbers


def test_a_layout_that_the_files_do_not_have_is_refused_with_what_it_needs(src, tmp_path):
    for kind, needed in [("coco", "a JSON file"), ("yolo", "data.yaml"), ("voc", "an XML file"), ("masks", "masks")]:
        with pytest.raises(SourceError, match=f"is not in the layout {kind}: it needs .*{needed}"):
            wt.pack(src, tmp_path / "out", kind=kind)
    with pytest.raises(OptionError, match="read as coco, which has no columns"):
        wt.pack(src, tmp_path / "out", kind="coco", columns={"label": "x"})


def test_labels_and_classes_of_images_with_objects_are_refused_with_what_to_do(src, tmp_path):
    (src / "labels.json").write_text(coco_file())
    with pytest.raises(
        LabelError, match=r"labels.json has the class names 'cat', which are not among .* \('dog'\): add"
    ):
        wt.pack(src, tmp_path / "out", classes=["dog"])
    with pytest.raises(OptionError, match="is read as coco, which has no columns"):
        wt.pack(src, tmp_path / "out", columns={"label": "category_id"})
    with pytest.raises(SourceError, match=r"labels.json is not a folder, .*, pack the folder that contains it"):
        wt.pack(src / "labels.json", tmp_path / "out")


def test_if_no_image_can_be_packed_the_reason_comes_first(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    for label in src.glob("labels/*.txt"):
        label.write_text("0 20 15 10 10\n")
    with pytest.raises(
        MissingSourceError, match=r"has 4 images, and none can be packed; correct them: .* outside its im"
    ):
        wt.pack(src, tmp_path / "out")


def test_archives_of_images_and_of_annotations_must_be_unpacked_together(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_instances_box", "images/{split}/{name}")
    (tmp_path / "zips").mkdir()
    shutil.make_archive(str(tmp_path / "zips" / "train2017"), "zip", src / "images")
    shutil.rmtree(src / "images")
    shutil.make_archive(str(tmp_path / "zips" / "annotations_trainval2017"), "zip", src)
    with pytest.raises(SourceError, match=r"named like annotations, next to archives of images: unpack all of them"):
        wt.pack(tmp_path / "zips", tmp_path / "out")


def test_folders_are_classes_if_the_user_says_so(src, tmp_path):
    (src / "labels.json").write_text(coco_file())
    assert wt.pack(src, tmp_path / "out", kind="folder").manifest.classes == ("images",)


def test_other_annotations_of_the_same_images_are_another_source(src, tmp_path):
    (src / "labels.json").write_text(coco_file())
    wt.pack(src, tmp_path / "out")
    (src / "labels.json").write_text(coco_file().replace("[4, 8, 20, 16]", "[4, 9, 20, 16]"))
    with pytest.raises(wt.DestinationError, match="holds another dataset"):
        wt.pack(src, tmp_path / "out")


@pytest.mark.parametrize(("first", "second"), [("yolo", "voc"), ("voc", "coco")])
def test_annotations_in_two_formats_are_refused_with_the_way_to_pack_each(first, second, tmp_path):
    src = tree_of(tmp_path / "src", "voc/supervision_boxes", "images/{name}")
    if second == "coco":
        shutil.copy(FOREIGN / "coco" / "supervision_boxes.json", src)
    else:
        shutil.copytree(FOREIGN / "yolo" / "supervision_boxes", src, dirs_exist_ok=True)
    with pytest.raises(SourceError, match=r"in the format of VOC: pass --from voc .*; or pass --from (yolo|coco) "):
        wt.pack(src, tmp_path / "out")
    for kind in (first, second):
        wt.pack(src, tmp_path / kind, kind=kind, images="keep", workers=1)
        check_boxes(samples_of(tmp_path / kind))


def test_boxes_polygons_and_points_move_with_resized_images(src, tmp_path):
    one = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [4, 8, 20, 16], "segmentation": [[4, 8, 24, 8, 24, 24]],
           "keypoints": [4, 8, 2]}  # fmt: skip
    (src / "labels.json").write_text(coco_file(annotations=[one]))
    wt.pack(src, tmp_path / "out", images="resize", resize=(24, 16))
    facts = json_of(tmp_path / "out")["photo_1.jpg"]
    assert (facts["width"], facts["height"]) == (16, 24)
    assert facts["objects"] == [
        {"box": [1, 4, 6, 12], "category": 0, "polygons": [[1, 4, 6, 4, 6, 12]], "keypoints": [[1, 4, 2]], "id": 1}
    ]


def test_compressed_run_lengths_are_resized_with_their_image(src, tmp_path):
    rle = json.loads((FOREIGN / "coco" / "pycocotools_rle.json").read_text())["masks"][1]  # the first three columns
    one = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 3, 48], "segmentation": rle, "iscrowd": 1}
    (src / "labels.json").write_text(coco_file(annotations=[one]))
    wt.pack(src, tmp_path / "out", images="resize", resize=(96, 128))
    [made] = json_of(tmp_path / "out")["photo_1.jpg"]["objects"]
    assert made["rle"] == {"size": [96, 128], "counts": [0, 6 * 96, 122 * 96]}


def test_masks_are_resized_with_their_images(tmp_path):
    src = tree_of(tmp_path / "src", "masks/camvid", "{split}/{name}")
    wt.pack_splits(src, tmp_path / "out", split="folders", images="resize", resize=16)
    fields = {"image": wt.Image(), "mask": wt.Array("mask.png"), "path": wt.Text("json", path="path")}
    for batch in samples_of(tmp_path / "out" / "train", fields).values():
        assert batch.mask.shape[-2:] == batch.image.shape[-2:]
        assert min(batch.image.shape[-2:]) == 16


def test_yolo_without_a_label_for_some_images_says_how_many(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    (src / "labels" / "photo_1.txt").unlink()
    report = wt.pack(src, tmp_path / "out")
    assert any(note.startswith("1 of 4 images have no label file") for note in report.manifest.account.notes)


@pytest.mark.parametrize("kind", ["yolo", "coco", "voc"])
def test_images_of_a_single_split_need_no_note_about_classes(kind, tmp_path):
    if kind == "yolo":
        src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/train/{name}")
        (src / "labels/train").mkdir()
        for path in src.glob("labels/*.txt"):
            path.rename(src / "labels/train" / path.name)
        (src / "data.yaml").write_text((src / "data.yaml").read_text() + "\ntrain: images/train\n")
    elif kind == "coco":
        src = tree_of(tmp_path / "src", "coco/datumaro_instances_box", "images/train/{name}")
        next(src.rglob("instances_val.json")).unlink()
    else:
        src = tree_of(tmp_path / "src", "voc/datumaro", "JPEGImages/{name}")
        next(src.rglob("val.txt")).unlink()
    report = wt.pack(src, tmp_path / "out", images="keep")
    assert report.manifest.source["kind"] == kind
    assert not [note for note in report.manifest.account.notes if "not a class" in note]


def test_a_split_of_data_yaml_that_is_not_there_is_noted(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/datumaro_boxes", "images/{split}/{name}")
    (src / "data.yaml").write_text((src / "data.yaml").read_text() + "test: test.txt\n")
    (src / "README.roboflow.txt").write_text("exported via roboflow.com\n")
    (src / "labels" / "train" / "no image.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    reasons = {skip.path: skip.reason for report in reports.values() for skip in report.skipped}
    assert reasons["README.roboflow.txt"].startswith("does not have the extension of an image")
    assert reasons["labels/train/no image.txt"] == "belongs to no image that is packed"
    note = "data.yaml names images for 'test', 'test.txt', which do not exist: left out"
    assert [note in report.manifest.account.notes for report in reports.values()] == [True, True]


def test_a_class_number_beyond_the_names_is_an_error_of_the_whole_tree(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    (src / "labels" / "photo_4.txt").write_text("3 0.5 0.5 0.1 0.1\n")
    with pytest.raises(SourceError, match=r"labels/photo_4\.txt has class number 3, and data\.yaml has 3 names"):
        wt.pack(src, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("{}/_annotations.coco.json", ["train", "valid"]),
        ("{}/annotations.json", ["train", "valid"]),
        ("{}/labels.json", ["train", "valid"]),
        ("{}/coco/instances_default.json", ["train", "valid"]),
        ("{}_coco.json", ["train", "valid"]),
        ("annotations/annotations_{}2017.json", ["train2017", "valid2017"]),
    ],
)
def test_each_split_has_a_json_file(name, splits, tmp_path):
    """Of Roboflow, FiftyOne, and others."""
    src = tmp_path / "src"
    raw = json.loads((FOREIGN / "coco" / "supervision_boxes.json").read_text())
    for folder, split in [("train", "train"), ("valid", "val")]:
        there = [image for image in raw["images"] if SPLIT_OF[image["file_name"]] == split]
        (src / folder).mkdir(parents=True)
        ids = {image["id"] for image in there}
        part = raw | {"images": there, "annotations": [one for one in raw["annotations"] if one["image_id"] in ids]}
        (src / name.format(folder)).parent.mkdir(exist_ok=True)
        (src / name.format(folder)).write_text(json.dumps(part))
        for image in there:
            shutil.copy(FOREIGN / "images" / image["file_name"], src / folder)
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert list(reports) == splits
    check_boxes({name: one for split in splits for name, one in samples_of(tmp_path / "out" / split).items()})


def test_images_are_bytes_of_the_files(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_instances_box", "images/{split}/{name}")
    wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    with tarfile.open(tmp_path / "out" / "train" / "shard-000000.tar") as shard:
        images = {shard.extractfile(member).read() for member in shard if member.name.endswith(".jpg")}
    assert images == {(FOREIGN / "images" / name).read_bytes() for name in ("photo_1.jpg", "photo 3.jpg")}
    assert all(Image.open(io.BytesIO(data)).size for data in images)


def test_captions_and_a_yaml_file_are_not_yolo(src, tmp_path):
    (src / "images" / "photo_1.txt").write_text("a cat on 2 mats")
    (src / "classes.txt").write_text("cat\n")
    (src / "config.yaml").write_text("names: [cat]\n")
    report = wt.pack(src, tmp_path / "out")
    assert report.manifest.source["kind"] == "folder"
    assert report.manifest.fields["txt"] == 1


def test_a_coco_file_is_found_among_many_other_json_files(src, tmp_path):
    (src / "annotations").mkdir()
    (src / "annotations" / "z.json").write_text(coco_file())
    (src / "meta").mkdir()
    for number in range(60):
        (src / "meta" / f"{number}.json").write_text("{}")
    assert wt.pack(src, tmp_path / "out").manifest.source["kind"] == "coco"


def test_random_shares_and_later_shards_keep_the_class_list(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    reports = wt.pack_splits(src, tmp_path / "out", split={"train": 0.5, "val": 0.5}, images="keep")
    assert [classes_of(report).names for report in reports.values()] == [NAMES, NAMES]
    wt.reshard(tmp_path / "out" / "train", tmp_path / "again")
    assert wt.describe(tmp_path / "again").field_classes["json:objects.category"].names == NAMES


def test_a_pickled_source_is_small_and_reads_the_same_samples(tmp_path):
    source = open_source(tree_of(tmp_path / "src", "voc/supervision_masks", "images/{name}"))
    inputs = source.scan().inputs
    pickled = pickle.dumps(source)
    assert len(pickled) < 3000
    again = pickle.loads(pickled)
    assert [again.read(entry) for entry in inputs] == [source.read(entry) for entry in inputs]
    assert all(source.read(entry).facts["objects"] is not None for entry in inputs)


@pytest.mark.parametrize("folder", ["", "train"])
def test_label_files_of_yolo_without_class_names_are_an_error(folder, tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    if folder:  # data.yaml is in the folder above, as Roboflow writes it
        (src / folder).mkdir()
        for name in ("images", "labels"):
            (src / name).rename(src / folder / name)
    else:
        (src / "data.yaml").unlink()
        (src / "labels" / "photo 3.txt").write_text("0 0.5 0.5 0.1 x\n")  # the first one is damaged
    with pytest.raises(SourceError, match=r"label files of YOLO, such as 'labels/.*', and no class names: add data"):
        wt.pack(src / folder, tmp_path / "out")
    assert wt.pack(src / folder, tmp_path / "out", kind="folder").manifest.classes


def test_key_points_without_their_shape_in_data_yaml_are_an_error(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/ultralytics_keypoints", "images/all/{name}")
    (src / "data.yaml").write_text(f"names: [{', '.join(NAMES)}]\n")
    with pytest.raises(SourceError, match=r"has a line with 2, which is neither a fraction .* add kpt_shape to data"):
        wt.pack(src, tmp_path / "out")


@pytest.mark.parametrize("line", ["0 0.3125 0.5 0.3125 0.666667 7", "0 0.3125 0.5 0.3125 0.666667 0.75 7"])
def test_a_number_after_a_box_that_is_no_confidence_is_an_error(line, tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    shutil.copy(FOREIGN / "yolo/ultralytics_predictions/photo_1.txt", src / "labels")
    assert wt.pack(src, tmp_path / "out").manifest.samples == 4
    (src / "labels" / "photo_2.txt").write_text(f"{line}\n")  # with the number of a track, as Ultralytics writes it
    with pytest.raises(SourceError, match=r"labels/photo_2\.txt has a line with 7, which is neither a fraction"):
        wt.pack(src, tmp_path / "again")


def test_two_files_with_class_names_in_different_order_are_an_error(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    (src / "custom.yaml").write_text(pyyaml.safe_dump({"names": dict(enumerate(NAMES))}))
    (src / "args.yaml").write_text("task: detect\n")
    assert wt.pack(src, tmp_path / "out", dry_run=True).account.packed == 4
    (src / "custom.yaml").write_text(pyyaml.safe_dump({"names": dict(enumerate(reversed(NAMES)))}))
    with pytest.raises(SourceError, match=r"data\.yaml has the class names 'cat', .* and custom\.yaml has 'fig tree'"):
        wt.pack(src, tmp_path / "out")


def test_several_files_with_the_same_class_names_are_one(tmp_path):
    """As labelImg writes them into each folder, and as two exports have them."""
    splits = {"train": "images", "names": list(NAMES)}
    for part in ("a", "b"):
        src = tree_of(tmp_path / "src" / part, "yolo/supervision_boxes", f"images/{part}_{{name}}")
        for label in src.glob("labels/*.txt"):
            label.rename(label.with_name(f"{part}_{label.name}"))
        (src / "data.yaml").write_text(pyyaml.safe_dump(splits))
        (src / "labels" / "classes.txt").write_text("\n".join(NAMES))
        (src / "labels.cache").write_bytes(b"\x93NUMPY")  # of Ultralytics
    for is_stated in (True, False):
        report = wt.pack(tmp_path / "src", tmp_path / "out", fresh=True, images="keep", workers=1)
        assert classes_of(report).names == NAMES
        assert not [note for note in report.account.notes if "not read" in note]
        for part in ("a", "b"):
            found = samples_of(tmp_path / "out")
            check_boxes({name: found[f"{part}_{name}"] for name in BOXES})
        for path in (tmp_path / "src").rglob("data.yaml") if is_stated else ():
            path.unlink()


def test_the_number_of_classes_in_data_yaml_is_enough(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    (src / "data.yaml").write_text("nc: 3\n")
    assert classes_of(wt.pack(src, tmp_path / "out")).names == ("class_0", "class_1", "class_2")
    assert classes_of(wt.pack(src, tmp_path / "named", classes=NAMES)).names == NAMES
    (tmp_path / "names.txt").write_text("1 cat\n2 dog\n3 fig\n")
    with pytest.raises(SourceError, match=r"numbers classes from 0, and the names that were given count from 1"):
        wt.pack(src, tmp_path / "from_one", classes=tmp_path / "names.txt")
    with pytest.raises(LabelError, match=r"'class_0'.* not among the names that were given"):
        wt.pack(src, tmp_path / "few", classes=NAMES[:2])


def tree_of_masks(root, *names):
    """Write 4 different small images for each name, in which {} stands for their number."""
    for name in names:
        for number in range(4):
            path = root / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB" if path.suffix == ".jpg" else "L", (16, 12), number).save(path)
    return root


def test_class_names_of_masks_of_roboflow_are_in_the_manifest(tmp_path):
    src = tree_of_masks(tmp_path / "src", "train/{}.jpg", "valid/{}.jpg")  # with names as in the first column
    for photo in src.glob("*/*.jpg"):
        Image.new("L", (16, 12), 2).save(photo.with_name(f"{photo.stem}_mask.png"))
        (photo.parent / "_classes.csv").write_text("Pixel Value, Class\n0, background\n1, cat\n2, dog\n")
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep", workers=1)
    for split, report in reports.items():
        assert report.manifest.field_classes["mask.png"].names == ("background", "cat", "dog")
        fields = {"image": wt.Image(), "mask": wt.Mask("mask.png", like="image")}
        with wt.make_loader(tmp_path / "out" / split, batch_size=2, num_workers=0, fields=fields) as loader:
            assert loader.field_classes["mask.png"].names == ("background", "cat", "dog")
            assert next(iter(loader)).mask.unique().tolist() == [2]
    (src / "valid" / "_classes.csv").write_text("Pixel Value, Class\n0, background\n1, dog\n2, cat\n")
    with pytest.raises(SourceError, match=r"'train/_classes.csv', 'valid/_classes.csv' have different classes"):
        wt.pack_splits(src, tmp_path / "out", split="folders", dry_run=True)


@pytest.mark.parametrize("header", ["Pixel Value, Class", "pixel,class", "id,class"])
def test_values_of_pixels_are_not_names_of_images(header, tmp_path):
    """A table of ids and classes is one of images, as before."""
    src = tree_of_masks(tmp_path / "src", "{}.png", *([] if header == "id,class" else ["{}_mask.png"]))
    (src / ("photos.csv" if header == "id,class" else "_classes.csv")).write_text(
        f"{header}\n0, background\n1, cat\n2, dog\n3, elk\n"
    )
    report = wt.pack(src, tmp_path / "out", images="keep", workers=1)
    assert report.manifest.samples == 4
    if header == "id,class":
        assert report.manifest.classes == ("background", "cat", "dog", "elk")
        return
    assert report.manifest.classes == ()
    named = report.manifest.field_classes.get("mask.png")
    assert (named.names if named else None) == (("background", "cat", "dog", "elk") if "Value" in header else None)


def test_class_names_that_are_given_are_those_of_masks_if_there_are_no_labels(tmp_path):
    src = tree_of_masks(tmp_path / "src", "images/{}.jpg", "masks/{}.png")
    report = wt.pack(src, tmp_path / "a", classes=["road", "car"], dry_run=True)
    assert (report.manifest.classes, report.manifest.field_classes["mask.png"].names) == ((), ("road", "car"))
    src = tree_of_masks(tmp_path / "classes", *(f"{one}/{place}/{{}}.png" for one in "ab" for place in ("img", "lbl")))
    report = wt.pack(src, tmp_path / "b", classes=["b", "a"], dry_run=True)
    assert (report.manifest.classes, report.manifest.field_classes) == (("b", "a"), {})


@pytest.mark.parametrize(("kind", "ending"), [("yolo", "png"), ("labelme", "png"), ("coco", "png"), ("coco", "jpg")])
def test_masks_next_to_label_files_are_fields_and_no_images(kind, ending, tmp_path):
    if kind == "yolo":
        src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    elif kind == "coco":
        src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
        for label in (*src.glob("labels/*"), src / "data.yaml"):
            label.unlink()
        shutil.copy(FOREIGN / "coco/supervision_boxes.json", src)
    else:
        src = tree_of(tmp_path / "src" / "images", "shapes/globox_labelme", "{name}").parent
    (src / "masks").mkdir()
    for photo in [*src.rglob("photo*.jpg")]:
        with Image.open(photo) as image:
            Image.new("L", image.size, 1).save(src / "masks" / f"{photo.stem}.{ending}")
    report = wt.pack(src, tmp_path / "out", images="keep")
    assert (report.manifest.samples, report.manifest.fields[f"mask.{ending}"]) == (4, 4)
    check_boxes(samples_of(tmp_path / "out"))


def test_copies_of_images_without_label_files_are_noted(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    shutil.copytree(src / "images", src / "thermal")
    [note] = wt.pack(src, tmp_path / "out", dry_run=True).account.notes
    assert re.fullmatch(r"4 of 8 images have no label file, .* such as 'thermal/photo 3.jpg': move those away .*", note)


def test_label_files_with_names_in_other_letters_are_a_note_or_an_error(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    (src / "labels" / "photo_1.txt").rename(src / "labels" / "PHOTO_1.txt")
    [first, _] = wt.pack(src, tmp_path / "out", dry_run=True).account.notes
    assert first.startswith("'labels/PHOTO_1.txt' has the name of 'images/photo_1.jpg' except for case or accents, and")
    for label in (src / "labels").iterdir():
        label.rename(label.with_name(label.name.swapcase()))
    with pytest.raises(SourceError, match=r"has the name of 'images/photo.*' except for case or accents"):
        wt.pack(src, tmp_path / "out")


def test_masks_next_to_voc_files_are_fields(tmp_path):
    src = tree_of_masks(tmp_path / "src", "images/photo_{}.jpg", "annotations/trimaps/photo_{}.png")
    (src / "annotations" / "xmls").mkdir()
    for number in range(3):  # as in Oxford-IIIT Pet, where not all images have one
        (src / f"annotations/xmls/photo_{number}.xml").write_text(
            "<annotation><object><name>cat</name><bndbox><xmin>2</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax>"
            "</bndbox></object></annotation>"
        )
    (src / "labelmap.txt").write_text("# label:color_rgb:parts:actions\ncat:1,2,3::\ndog:4,5,6::\n")  # CVAT
    report = wt.pack(src, tmp_path / "out", images="keep")
    assert not any("labelmap" in note for note in report.account.notes)
    assert (report.manifest.source["kind"], report.manifest.samples) == ("voc", 4)
    assert report.manifest.fields["mask.png"] == 4
    assert json_of(tmp_path / "out")["photo_1.jpg"]["objects"][0]["box"] == [1, 1, 9, 9]


@pytest.mark.parametrize(
    ("names", "classes", "fields"),
    [
        (
            ["benign/benign ({}).png", "benign/benign ({})_mask.png", "benign/benign ({})_mask_1.png",
             "normal/normal ({}).png", "normal/normal ({})_mask.png"],
            ("benign", "normal"), {"mask.png": 8, "mask_1.png": 4},
        ),  # BUSI
        (
            ["COVID/images/C-{}.png", "COVID/masks/C-{}.png", "Normal/images/N-{}.png", "Normal/masks/N-{}.png"],
            ("COVID", "Normal"), {"mask.png": 8},
        ),  # COVID-QU
        (["a/images/{}.jpg", "a/masks/{}.png"], (), {"mask.png": 4}),
        (["Training_Data/{}.jpg", "Training_GroundTruth/{}_segmentation.png"], (), {"mask.png": 4}),  # ISIC
    ],
)  # fmt: skip
def test_class_folders_of_images_with_masks_are_labels(names, classes, fields, tmp_path):
    src = tree_of_masks(tmp_path / "src", *names)
    report = wt.pack(src, tmp_path / "out", images="keep", kind="masks")
    assert report.manifest.classes == classes
    assert not report.skipped
    assert {name: count for name, count in report.manifest.fields.items() if "mask" in name} == fields


def test_class_folders_in_splits_of_images_with_masks_have_the_same_numbers(tmp_path):
    names = [f"{{split}}/{one}/{place}/{{}}.png" for one in ("cat", "dog") for place in ("images", "masks")]
    names = [name.replace("{split}", split) for split in ("train", "val") for name in names]
    src = tree_of_masks(tmp_path / "src", *names)
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert [report.manifest.classes for report in reports.values()] == [("cat", "dog")] * 2


@pytest.mark.parametrize(
    "names", [["images/{}.jpg", "masks/{}_0.png", "masks/{}_1.png"], ["{}/images/{}.png", "{}/masks/x.png"]]
)
def test_several_masks_for_an_image_are_an_error(names, tmp_path):
    src = tree_of_masks(tmp_path / "src", *(name.replace("{}", "{0}") for name in names))
    with pytest.raises(SourceError, match=r"images in 'images' and masks in 'masks', but .* has no partner .* merge"):
        wt.pack(src, tmp_path / "out")
    assert wt.pack(src, tmp_path / "out", kind="folder").manifest.classes


@pytest.mark.parametrize(
    ("image", "first", "second"),
    [
        ("images/{}.jpg", "labels/{}.png", "masks/{}.png"),
        ("images/{}.jpg", "gt/{}.png", "masks/{}.png"),
        ("training/images/{}.jpg", "training/v1.2/labels/{}.png", "training/v2.0/labels/{}.png"),  # Mapillary Vistas
        ("{}.png", "{}_mask.png", "{}_seg.png"),
    ],
)
def test_two_sets_of_masks_are_an_error_that_names_both(image, first, second, tmp_path):
    src = tree_of_masks(tmp_path / "src", image, first, second)
    for kind in (None, "masks"):
        with pytest.raises(SourceError, match=r"has two masks of .*: move one of the two sets of masks away") as error:
            wt.pack(src, tmp_path / "dst", kind=kind)
        assert all(repr(form.format(0)) in str(error.value) for form in (image, first, second))
    for number in range(4):
        (src / second.format(number)).unlink()
    assert wt.pack(src, tmp_path / "dst", images="keep", workers=1).manifest.fields["mask.png"] == 4


def test_images_and_masks_of_the_same_names_in_two_archives_are_an_error(tmp_path):
    (tmp_path / "src").mkdir()
    tree_of_masks(tmp_path / "files", "images/{}.jpg", "masks/{}.png")
    for name in ("a", "b"):
        shutil.make_archive(tmp_path / "src" / name, "zip", tmp_path / "files")
    with pytest.raises(
        SourceError, match=r"has 'masks/..png' and its image in several archives, .* unpack each archive"
    ):
        wt.pack(tmp_path / "src", tmp_path / "dst", workers=1)
    for mask in (tmp_path / "files").glob("*/*"):
        mask.rename(mask.with_stem(f"{mask.stem}b"))
    shutil.make_archive(tmp_path / "src" / "b", "zip", tmp_path / "files")
    report = wt.pack(tmp_path / "src", tmp_path / "dst", images="keep", workers=1)
    assert (report.packed, report.manifest.fields["mask.png"]) == (8, 8)


def test_fine_masks_of_cityscapes_are_used_instead_of_coarse_ones(tmp_path):
    names = [f"{folder}/train/aachen/a_{{}}_{folder}" for folder in ("leftImg8bit", "gtFine", "gtCoarse")]
    src = tree_of_masks(tmp_path / "src", f"{names[0]}.png", f"{names[1]}_labelIds.png", f"{names[2]}_labelIds.png")
    for number in range(4):
        Image.new("L", (16, 12), 50).save(src / f"{names[2]}_labelIds.png".format(number))
    report = wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    assert [note for note in report.account.notes if "gtCoarse" in note and "left out" in note]
    assert {skip.path.partition("/")[0] for skip in report.skipped} == {"gtCoarse"}
    fields = {"mask": wt.Mask("mask.png", like="image"), "image": wt.Image()}
    with wt.make_loader(tmp_path / "dst", batch_size=4, num_workers=0, fields=fields) as loader:
        assert sorted(next(iter(loader)).mask[:, 0, 0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["case{}/image.png", "case{}/mask.png"], ()),
        (["patient_{}/images/0.png", "patient_{}/masks/0.png"], ()),
        (
            [f"{one}/x{{0}}/{place}/x{{0}}.png" for one in ("cat", "dog") for place in ("images", "masks")],
            ("cat", "dog"),
        ),
        (["cat/{}/image.png", "cat/{}/mask.png", "dog/{}/image.png", "dog/{}/mask.png"], ("cat", "dog")),
        (["cat/c{}_img.png", "cat/c{}_masks.png", "dog/d{}_img.png", "dog/d{}_masks.png"], ("cat", "dog")),
    ],
)
def test_masks_in_the_folder_of_their_image_are_no_images(names, classes, tmp_path):
    report = wt.pack(tree_of_masks(tmp_path / "src", *names), tmp_path / "dst", images="keep", dry_run=True)
    account = report.account
    assert (account.packed, report.manifest.classes) == (2 * len(names), classes)
    assert [" of images with masks are their classes" in note for note in account.notes] == [True] * (len(classes) > 1)
    assert account.attached["field mask.png"] == account.packed


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["A/a{}.jpg", "B/b{}.jpg"], ("A", "B")),
        (["cat/img_{}.png", "dog/image_{}.png"], ("cat", "dog")),
        (["no/img_{}.png", "yes/mask_{}.png"], ("no", "yes")),
        (["a{}/rgb.png", "b{}/rgb.png"], ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")),
        (["{}_A_cat.jpg", "{}_B_dog.jpg"], ()),
        (["img_A{}.jpg", "img_B{}.jpg", "label_{}5.jpg"], ()),
        (["mask_{}.png", "photo_{}.png"], ()),
    ],
)
def test_plain_images_with_words_for_masks_in_their_names_are_images(names, classes, tmp_path):
    report = wt.pack(tree_of_masks(tmp_path / "src", *names), tmp_path / "dst", images="keep", dry_run=True)
    assert report.account.packed == 4 * len(names)
    assert report.manifest.classes == classes
    assert not [note for note in report.account.notes if "mask of" in note or "its mask" in note]


@pytest.mark.parametrize(
    ("image", "mask", "field"),
    [
        ("original/{}.jpg", "mask/{}.png", "mask.png"),
        ("images/{}.jpg", "annotation_masks/{}.png", "mask.png"),
        ("img/{}.jpg", "lbl/{}.png", "mask.png"),
        ("img_dir/train/{}.jpg", "ann_dir/train/{}.png", "mask.png"),  # MMSegmentation
        ("images/{}.jpg", "depth/{}.png", "depth.png"),
        ("rgb/{}.png", "semantic/{}.png", "mask.png"),
        ("images/{}.jpg", "1st_manual/{}.gif", "mask.gif"),
        ("Original/{}.jpg", "Ground Truth/{}.png", "mask.png"),
        ("{}_sat.jpg", "{}_mask.png", "mask.png"),
        ("{}.jpg", "{}_lab.png", "mask.png"),
        ("{}.png", "{}_GT.png", "mask.png"),
        ("train_{}.bmp", "train_{}_anno.bmp", "mask.png"),  # GlaS
        ("PNGImages/{}.png", "PedMasks/{}_mask.png", "mask.png"),  # Penn-Fudan
        ("images/10k/train/{}.jpg", "labels/sem_seg/masks/train/{}.png", "mask.png"),  # BDD100K
        ("Rural/images_png/{}.png", "Rural/masks_png/{}.png", "mask.png"),  # LoveDA
        ("DUTS-TR-Image/{}.jpg", "DUTS-TR-Mask/{}.png", "mask.png"),
        ("2_Ortho_RGB/top_{}_RGB.tif", "5_Labels_all/top_{}_label.tif", "mask.tif"),  # ISPRS Potsdam
    ],
)
def test_other_names_of_folders_of_masks(image, mask, field, tmp_path):
    report = wt.pack(tree_of_masks(tmp_path / "src", image, mask), tmp_path / "out", images="keep")
    assert (report.manifest.samples, report.manifest.fields[field]) == (4, 4)


@pytest.mark.parametrize(
    ("image", "mask"),
    [("CXR_png", "masks"), ("input", "target"), ("photos", "lung_gt"), ("color", "depth"), ("face_img", "mask_img")],
)
def test_folders_that_can_be_masks_or_classes_are_an_error_that_names_both(image, mask, tmp_path):
    field = "depth.png" if mask == "depth" else "mask.png"
    src = tree_of_masks(tmp_path / "src", f"{image}/{{}}.png", f"{mask}/{{}}.png")
    with pytest.raises(SourceError, match=rf"folders '{image}', '{mask}' with files of the same names: pass --from"):
        wt.pack(src, tmp_path / "out")
    assert wt.pack(src, tmp_path / "a", kind="masks").manifest.fields[field] == 4
    assert wt.pack(src, tmp_path / "b", kind="folder").manifest.classes == tuple(sorted((image, mask)))


def test_folders_of_masks_named_after_splits_are_no_splits(tmp_path):
    names = [f"{split}_{kind}/{split}{{}}.png" for split in ("train", "val") for kind in ("images", "segmentations")]
    src = tree_of_masks(tmp_path / "src", *names)  # LIP
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", dry_run=True)
    assert [list(reports), *(report.account.attached for report in reports.values())] == [
        ["train_images", "val_images"],
        *[{"field mask.png": 4}] * 2,
    ]


def test_the_labels_that_folders_around_images_and_masks_would_become_are_named(tmp_path):
    names = [f"{area}/{kind}_png/{{}}.png" for area in ("Rural", "Urban") for kind in ("images", "masks")]
    src = tree_of_masks(tmp_path / "src", *names)
    with pytest.raises(
        SourceError, match=r"--from masks .* \('Rural', 'Urban' are then labels: pass --column label= too"
    ):
        wt.pack(src, tmp_path / "out")
    assert wt.pack(src, tmp_path / "a", kind="masks", dry_run=True).manifest.classes == ("Rural", "Urban")
    report = wt.pack(src, tmp_path / "b", kind="masks", columns={"label": ""}, workers=1)
    assert (report.manifest.classes, report.manifest.fields) == ((), {"json": 8, "mask.png": 8, "png": 8})


PAIRS = {
    "LOL": ("low/{}.png", "high/{}.png"),
    "pix2pix": ("A/{}.jpg", "B/{}.jpg"),
    "LEVIR-CD": ("A/{}.png", "B/{}.png", "label/{}.png"),
    "DIV2K": ("DIV2K_train_HR/{}.png", "DIV2K_train_LR_bicubic/X2/{}x2.png"),
    "RESIDE": ("clear/{}.png", "hazy/{}_1_0.9.png"),
    "O-HAZE": ("hazy/0{}_outdoor_hazy.jpg", "GT/0{}_outdoor_GT.jpg"),
    "Rain100": ("rainy/rain-{}.png", "norain/norain-{}.png"),
    "UIEB": ("raw-890/{}.png", "reference-890/{}.png"),
    "KITTI": ("image_2/{}.png", "image_3/{}.png"),
    "HRF": ("images/{}.jpg", "manual1/{}.tif"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_folders_of_two_images_of_each_sample_are_an_error_that_shows_the_choices(name, tmp_path):
    src = tree_of_masks(tmp_path / "src", *PAIRS[name])
    with pytest.raises(SourceError, match=r"named like two images of each sample, .* pack a table .* --from folder"):
        wt.pack(src, tmp_path / "dst", dry_run=True)
    assert len(wt.pack(src, tmp_path / "dst", dry_run=True, kind="folder").manifest.classes) == len(PAIRS[name])


def test_masks_of_mvtec_are_named_with_the_way_to_pack_them(tmp_path):
    objects = ("train/good/{}.png", "test/good/{}.png", "test/cut/{}.png", "ground_truth/cut/{}_mask.png")
    src = tree_of_masks(tmp_path / "src", *(f"{name}/{place}" for name in ("bottle", "cable") for place in objects))
    with pytest.raises(SourceError, match=rf"such as {src}/bottle/test, or pack {src}/bottle with --from folder"):
        wt.pack(src, tmp_path / "dst")
    with pytest.raises(SourceError, match=r"it needs masks with the names .* such as image,mask"):
        wt.pack(src / "bottle", tmp_path / "dst", kind="masks")
    reports = wt.pack_splits(src / "bottle", tmp_path / "dst", split="folders", dry_run=True)
    assert {split: report.manifest.classes for split, report in reports.items()} == dict.fromkeys(
        ["test", "train"], ("cut", "good")
    )
    assert {split: report.account.packed for split, report in reports.items()} == {"test": 8, "train": 4}
    [note, *_] = reports["test"].account.notes
    assert "'ground_truth' next to the splits is named like masks, and is not packed: write a table with" in note


@pytest.mark.parametrize(
    ("names", "is_noted"),
    [
        (["a/{}.png", "b/{}.png"], True),
        (["A/{}.png", "B/{}.png", "C/{}.png"], True),  # letters of a sign language
        (["rgb/{}.png", "thermal/{}.png"], True),
        (["photos/{}.jpg", "outlines/{}.png"], True),
        ([f"{digit}/{{}}.png" for digit in range(10)], False),
        (["blur/a{}.png", "sharp/b{}.png"], False),
        (["noisy/{}.png", "clean/1{}.png"], False),
    ],
)
def test_classes_with_images_of_the_same_names_are_noted(names, is_noted, tmp_path):
    account = wt.pack(tree_of_masks(tmp_path / "src", *names), tmp_path / "dst", dry_run=True).account
    assert [f"the {len(names)} classes have images of the same names" in note for note in account.notes] == (
        [True] * is_noted
    )


@pytest.mark.parametrize(
    "names",
    [
        ["{}.jpg", "{}_1stHO.png", "{}_2ndHO.png"],
        ["a/{}_GT_010.png", "a/{}_NOISY_010.png"],
        ["{}_A.png", "{}_B.png"],
        ["{}_sat.jpg", "{}_map.jpg"],
        ["{}_input.png", "{}_output.png"],
        ["{}_img.png", "{}_lbl.png"],
        ["{}.jpg", "{}.trimap.png"],
    ],
)
def test_images_whose_names_belong_together_are_noted(names, tmp_path):
    """CHASE_DB1 has two masks of each photograph, and SIDD two photographs of each scene."""
    notes = wt.pack(tree_of_masks(tmp_path / "src", *names), tmp_path / "dst", dry_run=True).account.notes
    assert any("have names as an image and its mask, or two images of a sample" in note for note in notes)


def test_a_folder_of_masks_with_other_names_is_refused_although_another_folder_fits(tmp_path):
    """DRIVE has the field of view of each image in ``mask``, and its vessels in ``1st_manual``."""
    src = tree_of_masks(tmp_path / "src", "images/2{}_training.tif", "mask/2{}_training_mask.gif")
    report = wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    assert (report.packed, report.account.notes) == (4, [])
    tree_of_masks(src, "1st_manual/2{}_manual1.gif")
    message = (
        r"masks in '1st_manual', but '1st_manual/20_manual1.gif' has no partner .*, while 'mask/20_training_mask.gif' "
        r"is the mask of 'images/20_training.tif': .* table .* --from masks .* only masks such as 'mask/20_"
    )
    with pytest.raises(SourceError, match=message):
        wt.pack(src, tmp_path / "other", workers=1)
    [note] = wt.pack(src, tmp_path / "other", kind="masks", dry_run=True).account.notes
    assert note.startswith("masks in 'mask' are packed, and those in '1st_manual' are left out, because no image has")
    for path in (src / "1st_manual").iterdir():
        Image.new("L", (16, 12), 9 + int(path.name[1])).save(path)
    rows = "".join(f"images/2{n}_training.tif,1st_manual/2{n}_manual1.gif\n" for n in range(4))
    (src / "t.csv").write_text(f"image,mask\n{rows}")
    wt.pack(src, tmp_path / "table", kind="table", images="keep", workers=1)
    masks = sorted(sample["mask.gif"] for sample in stored(tmp_path / "table"))
    assert masks == sorted(path.read_bytes() for path in (src / "1st_manual").iterdir())


@pytest.mark.parametrize("names", [["mask/a{}.png", "no_mask/b{}.png"], ["with_mask/{}.png", "without_mask/{}.png"]])
def test_folders_with_and_without_masks_are_classes(names, tmp_path):
    report = wt.pack(tree_of_masks(tmp_path / "src", *names), tmp_path / "out")
    assert len(report.manifest.classes) == 2


@pytest.mark.parametrize(
    "names",
    [
        ["imagesTr/case_00{}_0000.png", "labelsTr/case_00{}.png"],  # nnU-Net
        ["image_2/um_{}.png", "gt_image_2/um_road_{}.png"],  # KITTI's roads
    ],
)
def test_folders_of_images_and_masks_with_other_names_are_not_classes(names, tmp_path):
    src = tree_of_masks(tmp_path / "src", *names)
    with pytest.raises(SourceError, match=r"named like images and their masks, in which files have other names"):
        wt.pack(src, tmp_path / "dst", workers=1)
    assert len(wt.pack(src, tmp_path / "dst", kind="folder", workers=1).manifest.classes) == 2


def test_a_class_named_like_the_folder_of_all_images_is_noted(tmp_path):
    src = tree_of_masks(tmp_path / "src", "images/{}.jpg", "manual1/{}_h.tif")
    [note] = wt.pack(src, tmp_path / "dst", workers=1).manifest.account.notes
    assert note.startswith("the folder 'images' is packed as a class, although its name is usual for the folder of all")


@pytest.mark.parametrize(
    ("names", "such"),
    [
        (["{}.jpg", "{}_mask.jpg"], "that end in '_mask'"),
        (["{}.jpg", "x{}_seg.png"], "that end in '_seg'"),
        (["{}.png", "img_{}.png", "mask_{}.png"], "such as 'mask_0.png'"),
    ],
)
def test_masks_that_belong_to_no_image_or_to_several_are_noted(names, such, tmp_path):
    src = tree_of_masks(tmp_path / "src", *names)
    [note] = wt.pack(src, tmp_path / "out", dry_run=True).account.notes
    assert note.startswith(f"4 files packed as images, although names {such} are usual for masks")


def test_folders_are_noted_as_classes_of_images_with_masks(tmp_path):
    names = [f"patient_{{}}/{place}/{number}.png" for place in ("images", "masks") for number in range(2)]
    src = tree_of_masks(tmp_path / "src", *names)
    report = wt.pack(src, tmp_path / "a", dry_run=True)
    assert report.manifest.classes == tuple(f"patient_{number}" for number in range(4))
    [note] = report.account.notes
    assert "'patient_3' of images with masks are their classes: if they are parts, patients or videos" in note
    for kind in (None, "masks"):
        report = wt.pack(src, tmp_path / "b", kind=kind, columns={"label": ""}, dry_run=True)
        assert (report.manifest.classes, report.account.attached["field mask.png"]) == ((), 8)
    for folders in (("TCGA_CS_4941_1996", "TCGA_DU_5849_1995"), ("bear", "camel"), ("benign", "malignant")):
        shutil.rmtree(src)
        tree_of_masks(src, *(f"{folder}/{name}.png" for folder in folders for name in ("{}", "{}_mask")))
        report = wt.pack(src, tmp_path / "c", dry_run=True)
        assert report.manifest.classes == folders
        [note] = report.account.notes
        assert note.startswith(f"the folders {folders[0]!r}, {folders[1]!r} of images with masks are their classes: if")


def test_a_split_without_masks_is_packed_without_them(tmp_path):
    """Test sets have no masks, and may be larger than the training set, as in TGS Salt of Kaggle."""
    names = [f"test/{one}/images/{letter}{{}}.png" for one in ("cat", "dog") for letter in "ab"]
    train = [f"train/{one}/{place}/{{}}.png" for one in ("cat", "dog") for place in ("images", "masks")]
    src = tree_of_masks(tmp_path / "src", *names, *train)
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep", workers=1)
    assert {name: (report.packed, report.manifest.fields.get("mask.png")) for name, report in reports.items()} == {
        "test": (16, None), "train": (8, 8)
    }  # fmt: skip
    assert not any(report.skipped for report in reports.values())
    assert {report.manifest.classes for report in reports.values()} == {("cat", "dog")}
    assert "there are masks of 'train' only, and none of 'test'" in reports["test"].account.notes
    (src / "test" / "dog" / "images" / "a0_mask.png").write_bytes((src / train[1].format(0)).read_bytes())
    reports = wt.pack_splits(src, tmp_path / "again", split="folders", kind="masks", dry_run=True)
    assert {name: report.account.packed for name, report in reports.items()} == {"test": 1, "train": 8}


def test_masks_of_another_size_than_their_image_are_skipped_with_both_sizes(tmp_path):
    src = tree_of_masks(tmp_path / "src", "images/{}.jpg", "masks/{}.png", "depth/{}.png")
    Image.new("L", (8, 6)).save(src / "masks" / "1.png")
    Image.new("L", (8, 6)).save(src / "depth" / "3.png")  # which may have its own size
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (16, 12)).save(src / "images" / "2.jpg", exif=exif)
    drawn = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)  # on the stored pixels
    Image.fromarray(drawn).save(src / "masks" / "2.png")
    for images in ("keep", "raw"):
        [skip] = wt.pack(src, tmp_path / images, images=images, workers=1).skipped
        assert skip.path == "images/1.jpg"
        assert "its mask 'mask.png' is 8x6, and the image is 16x12 as it is shown" in skip.reason
        fields = {"image": wt.Image(), "mask": wt.Mask("mask.png", like="image"), "path": FIELDS["path"]}
        assert np.array_equal(samples_of(tmp_path / images, fields)["2.jpg"].mask[0].numpy(), np.rot90(drawn, -1))


@pytest.mark.parametrize("mode", ["L", "P", "1"])
def test_masks_in_bmp_become_png_with_the_same_numbers(mode, tmp_path):
    src = tree_of_masks(tmp_path / "src", "images/{}.jpg")
    (src / "masks").mkdir()
    numbers = np.arange(16 * 12, dtype=np.uint8).reshape(12, 16) % 2
    for number in range(4):
        mask = Image.fromarray(numbers.astype(bool) if mode == "1" else numbers)
        if mode == "P":
            mask.putpalette([0, 0, 0, 9, 200, 30])
        mask.save(src / "masks" / f"{number}.bmp")
    report = wt.pack(src, tmp_path / "out", images="keep")
    assert report.manifest.account.attached["field mask.png"] == 4
    fields = {"image": wt.Image(), "mask": wt.Mask("mask.png", like="image")}
    with wt.make_loader(tmp_path / "out", batch_size=4, fields=fields, num_workers=0) as loader:
        [batch] = loader
    expected = torch.from_numpy(numbers.astype(bool))
    assert torch.equal(batch.mask.bool(), expected.expand(4, -1, -1))
    assert batch.mask.max() == (255 if mode == "1" else 1)


def test_a_bmp_and_a_png_that_would_be_one_field_are_named(src, tmp_path):
    for kind in ("bmp", "png"):
        Image.new("L", (64, 48)).save(src / "images" / f"photo_1.mask.{kind}")
    report = wt.pack(src, tmp_path / "out", kind="folder")
    assert skipped(report) == {"images/photo_1.mask.bmp": "would be the field 'mask.png', like another file"}


def test_class_folders_of_images_with_objects_are_noted(src, tmp_path):
    for name in ("cat", "dog"):
        (src / name).mkdir()
        shutil.copy(src / "images" / "photo_1.jpg", src / name / f"{name}.jpg")
    shutil.rmtree(src / "images")
    images = [{"id": n, "file_name": f"{name}.jpg", "width": 64, "height": 48} for n, name in [(1, "cat"), (2, "dog")]]
    (src / "labels.json").write_text(coco_file(images=images))
    notes = wt.pack(src, tmp_path / "out").manifest.account.notes
    assert any("folders such as 'cat', 'dog' are not labels" in note for note in notes)
    shutil.move(src / "dog" / "dog.jpg", src / "cat")
    notes = wt.pack(src, tmp_path / "again").manifest.account.notes
    assert not any("are not labels" in note for note in notes)


def test_entries_of_several_coco_files_are_in_the_account_once(tmp_path):
    src = tree_of(tmp_path / "src", "coco/datumaro_instances_poly", "images/{split}/{name}")
    shutil.copytree(FOREIGN / "coco" / "datumaro_captions", src, dirs_exist_ok=True)
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    parts = reports["train"].manifest.account.parts
    assert len(parts) == len(set(parts))


def test_boxes_of_parts_of_voc_move_with_resized_images(src, tmp_path):
    (src / "images" / "photo_1.xml").write_text(
        "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>64</xmax><ymax>48</ymax></bndbox>"
        "<part><name>head</name><bndbox><xmin>5</xmin><ymin>9</ymin><xmax>32</xmax><ymax>24</ymax></bndbox></part>"
        "</object></annotation>"
    )
    wt.pack(src, tmp_path / "out", images="resize", resize=(24, 32))
    [one] = json_of(tmp_path / "out")["photo_1.jpg"]["objects"]
    assert one == {"box": [0, 0, 32, 24], "category": 0, "part": [{"name": "head", "box": [2, 4, 16, 12]}]}


def test_images_of_one_stem_have_the_same_label_file(src, tmp_path):
    src = tree_of(tmp_path / "yolo", "yolo/supervision_boxes", "images/{name}")
    (src / "data.yaml").unlink()
    (src / "classes.txt").write_text("\n".join(NAMES))
    Image.open(FOREIGN / "images" / "photo_1.jpg").save(src / "images" / "photo_1.png")
    report = wt.pack(src, tmp_path / "out", images="keep")
    found = json_of(tmp_path / "out")
    assert len(found["photo_1.png"]["objects"]) == 2
    assert found["photo_1.png"]["objects"] == found["photo_1.jpg"]["objects"]
    assert report.manifest.account.attached["annotations"] == 5


@pytest.mark.parametrize(
    ("name", "folder", "entry"), [("yolo", "", "images/val/99.jpg"), ("voc", "ImageSets/Main/", "99")]
)
def test_listed_images_that_are_missing_are_skipped_and_those_in_two_splits_noted(name, folder, entry, tmp_path):
    annotations, place, _ = TREES[name]
    src = tree_of(tmp_path / "src", annotations, place)
    with (src / f"{folder}val.txt").open("a") as file:
        file.write(f"\n{entry}\n" + (src / f"{folder}train.txt").read_text().splitlines()[0])
    reports = wt.pack_splits(src, tmp_path / "out", split="folders", images="keep")
    assert skipped(reports["val"]) == {entry: f"is listed in {folder}val.txt, but there is no such file"}
    assert reports["val"].manifest.account.packed == 3
    assert entry not in skipped(reports["train"])
    for report, text in ((reports["val"], "'val' and 'train'"), (reports["train"], "'train' and 'val'")):
        [note] = (note for note in report.manifest.account.notes if "share" in note)
        assert note.startswith(f"{text} share 1 image, such as ")


BAD = ("outside", "nan", "negative", "size")
STRANGE = {"zero": "without area", "beyond": "with a box that reaches beyond its image"}
BAD_BOXES = {  # left, top, width, height in an image of 100 x 50
    "outside": (200, 2, 3, 4), "nan": (1, float("nan"), 3, 4), "negative": (50, 5, -2, 3), "size": (1, 2, 3, 4),
    "zero": (1, 2, 0, 4), "beyond": (90, 2, 50, 4), "missing": (1, 2, 3, 4), "no size": (1, 2, 3, 4),
}  # fmt: skip
MANY = [(i % 90 + 1, i // 250, 5, 5) for i in range(10_000)]


def bad_coco(root, boxes):
    numbers = {name: number for number, name in enumerate(boxes, 1)}
    images = [
        {"id": number, "file_name": f"{name}.jpg", "width": 200 if name == "size" else 100, "height": 50}
        if name != "no size" else {"id": number, "file_name": f"{name}.jpg"}
        for name, number in numbers.items()
    ]  # fmt: skip
    annotations = [
        {"id": 100 * numbers[name] + i if i < 100 else 10_000 + i, "image_id": numbers[name], "category_id": 1,
         "bbox": list(box)}
        for name, own in boxes.items() for i, box in enumerate(own)
    ]  # fmt: skip
    categories = [{"id": 1, "name": "cat"}]
    (root / "all.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return {name: ("all.json", f"annotation {100 * number}") for name, number in numbers.items()}


def bad_yolo(root, boxes):
    for name, own in boxes.items():
        lines = [f"0 {(x + w / 2) / 100} {(y + h / 2) / 50} {w / 100} {h / 50}\n" for x, y, w, h in own]
        (root / f"{name}.txt").write_text("".join(lines))
    (root / "data.yaml").write_text("names: [cat]")
    return {name: (f"{name}.txt", "line 1" if name == "nan" else "object 0") for name in boxes}


def bad_voc(root, boxes):
    for name, own in boxes.items():
        tree = ElementTree.Element("annotation")
        if name != "no size":
            size = ElementTree.SubElement(tree, "size")
            for side, pixels in (("width", 200 if name == "size" else 100), ("height", 50)):
                ElementTree.SubElement(size, side).text = str(pixels)
        for x, y, w, h in own:
            item = ElementTree.SubElement(tree, "object")
            ElementTree.SubElement(item, "name").text = "cat"
            edges = ElementTree.SubElement(item, "bndbox")
            for edge, value in (("xmin", x + 1), ("ymin", y + 1), ("xmax", x + w), ("ymax", y + h)):
                ElementTree.SubElement(edges, edge).text = str(value)
        ElementTree.ElementTree(tree).write(root / f"{name}.xml")
    return {name: (f"{name}.xml", "object 0") for name in boxes}


@pytest.mark.parametrize("write", [bad_coco, bad_yolo, bad_voc])
def test_every_bad_box_is_named_with_its_file_image_and_annotation(write, tmp_path):
    src = tmp_path / "src"
    src.mkdir()
    boxes = {name: [box] for name, box in BAD_BOXES.items()} | {"many": MANY if write is bad_coco else MANY[:1000]}
    if write is bad_yolo:
        del boxes["size"], boxes["no size"]  # fractions
    named = write(src, boxes)
    for name in boxes.keys() - {"missing"}:
        Image.new("RGB", (100, 50)).save(src / f"{name}.jpg")
    kind = write.__name__.removeprefix("bad_")
    report = wt.pack(src, tmp_path / "out", kind=kind, progress=False)
    reasons = {Path(skip.path).stem: skip.reason for skip in report.skipped}
    account = report.manifest.account
    for name in {*BAD} & boxes.keys():
        file, annotation = named[name]
        assert name == "size" or (file in reasons[name] and annotation in reasons[name]), reasons[name]
    for name, what in STRANGE.items():
        file, annotation = named[name]
        assert f"1 object {what}, kept as in the source: {annotation} of '{name}.jpg' in {file}" in account.notes
    assert "missing" in reasons or any("missing" in one for one in reasons)
    kept = {Path(one["path"]).stem: one["objects"] for one in json_of(tmp_path / "out").values()}
    assert kept.keys() == boxes.keys() - {*BAD, "missing"}
    assert len(kept["many"]) == len(boxes["many"])
    assert kept["zero"][0]["box"][0] == kept["zero"][0]["box"][2] == 1
    with pytest.raises(SourceError, match="cannot be packed"):
        wt.pack(src, tmp_path / "strict", kind=kind, strict=True, progress=False)


def test_the_call_that_pack_prints_loads_images_with_their_objects(tmp_path, capsys):
    src = tree_of(tmp_path / "src", "yolo/supervision_boxes", "images/{name}")
    with pytest.raises(SystemExit):
        main(["pack", str(src), str(tmp_path / "out")])
    _, _, call = capsys.readouterr().out.partition("import wds_tools\n")
    names = {"wds_tools": wt}
    exec(call.replace("shuffle=True", "num_workers=0"), names)
    batch = next(iter(names["loader"]))
    assert batch.image.shape == (4, 3, 640, 640)
    assert batch.boxes_offsets[-1] == len(batch.classes) == sum(map(len, BOXES.values()))


def write_labelled(src, split, categories, labels):
    """Write images and a file with categories only, as iNaturalist publishes them; one annotation for each label."""
    images, annotations = [], []
    for number, own in enumerate(labels):
        name = f"train_val2018/{split}/{number:032x}.png"
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (number, len(split), 9)).save(src / name)
        images.append({"id": number, "file_name": name, "width": 8, "height": 6, "license": 3})
        annotations += [{"id": len(annotations) + n, "image_id": number, "category_id": c} for n, c in enumerate(own)]
    content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (src / f"{split}2018.json").write_text(json.dumps(content))


SPECIES = [{"id": 7, "name": "Fungi c", "supercategory": "Fungi"}, {"id": 3, "name": "Aves a", "supercategory": "Aves"}]


def test_a_category_of_each_image_without_a_box_is_its_label(tmp_path):
    write_labelled(tmp_path / "src", "train", SPECIES, [[7], [3], [7], []])
    write_labelled(tmp_path / "src", "val", SPECIES, [[3], [7]])
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", images="keep", workers=1)
    train, val = reports["train2018"], reports["val2018"]
    assert train.manifest.classes == val.manifest.classes == ("Aves a", "Fungi c")
    labels = {}
    for split in reports:
        for sample in stored(tmp_path / "dst" / split):
            facts = json.loads(sample["json"])
            assert "objects" not in facts
            assert sample["png"] == (tmp_path / "src" / facts["file_name"]).read_bytes()
            labels[split, facts["id"]] = int(sample["cls"])
    assert labels == {
        ("train2018", 0): 1,
        ("train2018", 1): 0,
        ("train2018", 2): 1,
        ("val2018", 0): 0,
        ("val2018", 1): 1,
    }
    assert [skip.reason for skip in train.skipped] == ["has no label"]
    parts = {part.name: part.role or part.reason for part in val.account.parts}
    assert (parts["annotations"], parts["categories"]) == ("label", "class names")
    assert parts["supercategory"] == "attributes of classes are kept of objects only"
    assert any("class numbers are the positions of categories sorted by id" in note for note in val.account.notes)


def test_several_categories_of_an_image_without_boxes_are_several_labels(tmp_path):
    write_labelled(tmp_path / "src", "train", SPECIES, [[7], [3, 7]])
    wt.pack(tmp_path / "src", tmp_path / "dst", images="keep", workers=1)
    labels = {json.loads(one["json"])["id"]: json.loads(one["labels.json"]) for one in stored(tmp_path / "dst")}
    assert labels == {0: [1], 1: [0, 1]}


def test_xml_of_labelme_is_refused_by_name(tmp_path):
    outline = "".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in [(1, 1), (9, 1), (9, 9)])
    car = f"<object><name>car</name><deleted>0</deleted><polygon><username>a</username>{outline}</polygon></object>"
    for number, content in enumerate(["", car]):
        for folder in ("Images", "Annotations"):
            (tmp_path / folder).mkdir(exist_ok=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "Images" / f"{number}.jpg")
        (tmp_path / "Annotations" / f"{number}.xml").write_text(
            f"<annotation><filename>{number}.jpg</filename><imagesize><nrows>20</nrows></imagesize>{content}</annotation>"
        )
    with pytest.raises(SourceError, match=r"1.xml is an annotation of LabelMe .*--from folder"):
        open_source(tmp_path).scan()
    assert len(open_source(tmp_path, kind="folder").scan().inputs) == 2


def test_lists_of_splits_that_are_not_read_are_named(tmp_path):
    """As DAVIS has them: the same names in each folder, and lists in a folder of the resolution."""
    src = tmp_path / "src"
    lines = {}
    for split, video in (("train", "bear"), ("val", "dog")):
        for kind, extension in (("JPEGImages", "jpg"), ("Annotations", "png")):
            path = src / kind / "480p" / video / f"00000.{extension}"
            path.parent.mkdir(parents=True)
            Image.new("L", (8, 8)).save(path)
        lines[split] = f"/JPEGImages/480p/{video}/00000.jpg /Annotations/480p/{video}/00000.png\n"
    (src / "ImageSets" / "480p").mkdir(parents=True)
    for split, text in lines.items():
        (src / "ImageSets" / "480p" / f"{split}.txt").write_text(text)
    report = wt.pack(src, tmp_path / "dst", dry_run=True)
    note, videos = report.account.notes
    assert videos.startswith("the folders 'bear', 'dog' of images with masks are their classes")
    assert note.startswith("'ImageSets/480p/train.txt' (and 1 other file) is named like a list of a split, which is ")
    assert {skip.reason.partition(",")[0] for skip in report.skipped} == {"is named like a list of a split"}


@pytest.mark.parametrize(
    ("image", "mask", "other"),
    [
        ("images/{}_dr.jpg", "mask/{}_dr_mask.tif", "manual1/{}_dr.tif"),  # HRF: the field of view, and vessels
        ("images/{}.jpg", "masks/{}.png", "vessels/{}.png"),
        ("images/{}.jpg", "gt/{}.png", "edges/{}.png"),
    ],
)
def test_a_further_folder_with_the_names_of_the_images_is_refused(
    image: str, mask: str, other: str, tmp_path: Path
) -> None:
    for name in (form.format(number) for form in (image, mask, other) for number in (1, 2)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"image")
    with pytest.raises(SourceError, match="with the same name") as error:
        open_source(tmp_path).scan()
    assert all(repr(form.format(1)) in str(error.value) for form in (image, mask, other))
    assert len(open_source(tmp_path, kind="masks").scan().inputs) == 2


@pytest.mark.parametrize("largest", [1, 2, 3, 20, 254, 255, 256, 1023, 65535])
@pytest.mark.parametrize("is_text", [True, False])
def test_masks_in_pgm_keep_their_numbers(largest: int, is_text: bool, tmp_path: Path) -> None:
    numbers = sorted({0, 1, largest // 2, largest})
    header = f"P{2 if is_text else 5}\n# {largest}\n{len(numbers)} 1\n{largest}\n".encode()
    pixels = np.array(numbers, ">u2" if largest > 255 else "u1").tobytes()
    for name, data in (("images", b"1" * len(numbers)), ("masks", " ".join(map(str, numbers)).encode())):
        (tmp_path / name).mkdir()
        is_mask = name == "masks"
        own = header + (data if is_text else pixels) if is_mask else f"P2 {len(numbers)} 1 1 ".encode() + b"1 " * 9
        (tmp_path / name / "1.pgm").write_bytes(own)
    source = open_source(tmp_path)
    [entry] = source.scan().inputs
    assert np.asarray(Image.open(io.BytesIO(source.read(entry).fields["mask.png"]))).tolist() == [numbers]
