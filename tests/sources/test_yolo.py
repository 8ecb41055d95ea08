import re
from pathlib import Path

import numpy as np
import pytest
import yaml as pyyaml
from PIL import Image

import wds_tools as wt
from wds_tools.errors import LabelError, SourceError
from wds_tools.format.objects import scaled, unpacked
from wds_tools.sources import yolo
from wds_tools.sources.annotated import completed
from wds_tools.sources.class_file import names_of

FOREIGN = Path(__file__).parent.parent / "foreign" / "yolo"
NAMES = ("cat", "dog", "fig tree")
SIZES = {"photo_1": (64, 48), "photo_2": (50, 40), "photo 3": (40, 60), "photo_4": (64, 48)}
BOXES = {  # what the programs were given: left, top, right, bottom, class number
    "photo_1": [(10, 8, 30, 40, 0), (0, 0, 64, 48, 1)],
    "photo_2": [(5, 5, 45, 35, 2), (12, 10, 20, 30, 0)],
    "photo 3": [(1, 2, 39, 58, 1)],
    "photo_4": [],
}
LABELS = sorted(
    path
    for path in FOREIGN.rglob("*.txt")
    if path.stem in SIZES and "predictions" not in str(path) and "keypoints" not in str(path)
)


def in_pixels(path, **options):
    return scaled(yolo.parse(path.read_bytes(), path.name, **options), *SIZES[path.stem.partition("_seg")[0]])


def test_label_files_of_other_programs_have_the_boxes_that_these_were_given():
    assert len(LABELS) > 20
    for path in LABELS:
        check_boxes_of(path)


def check_boxes_of(path):
    objects = in_pixels(path)
    expected = BOXES[path.stem]
    assert len(objects) == len(expected)
    first = int("labelformat" in str(path))  # it numbers classes from 1, as its data.yaml says
    assert [one["category"] - first for one in objects] == [number for *_, number in expected]
    # masks of supervision end at the last pixel; labelImg writes 1 for 0; the files have 5 or 6 digits
    off_by_one = "supervision_masks" in str(path) or "labelimg" in str(path)
    for one, (*box, _) in zip(objects, expected, strict=True):
        np.testing.assert_allclose(one["box"], box, atol=1.01 if off_by_one else 0.001, rtol=0)
        if "polygons" in one:
            points = np.reshape(one["polygons"][0], (-1, 2))
            np.testing.assert_allclose([*points.min(axis=0), *points.max(axis=0)], one["box"], atol=1e-6, rtol=0)
    assert all(
        ("polygons" in one) == any(word in str(path) for word in ("masks", "obb", "segments")) for one in objects
    )


@pytest.mark.parametrize("name", ["photo_1", "photo_2", "photo 3"])
def test_key_points_of_ultralytics_are_in_pixels_with_their_visibility(name):
    path = FOREIGN / "ultralytics_keypoints" / "labels" / "all" / f"{name}.txt"
    for one, (left, top, right, bottom, number) in zip(in_pixels(path, keypoints=(3, 3)), BOXES[name], strict=True):
        np.testing.assert_allclose(one["box"], (left, top, right, bottom), atol=0.001)
        expected = [[left + 1, top + 1, 2], [right - 1, top + 1, 1], [0, 0, 0]]
        np.testing.assert_allclose(one["keypoints"], expected, atol=0.001)
        assert one["category"] == number


@pytest.mark.parametrize("size", [2, 3])
def test_boxes_and_key_points_without_kpt_shape_are_noted(size):
    """Those of Ultralytics, with visibilities of 1, or without any. Its outlines and oriented boxes have no note."""

    def notes(folder, edit=lambda line: line, names="names: [a, b, c, d]"):
        paths = sorted((FOREIGN / folder / "labels").rglob("*.txt"))
        texts = [(path.name, path.name, "\n".join(map(edit, path.read_text().splitlines())).encode()) for path in paths]
        return yolo.annotations_of(texts * 2, yaml_of(names)).notes

    def edited(line):
        numbers = line.split()
        points = zip(numbers[5::3], numbers[6::3], strict=False)
        return " ".join([*numbers[:5], *(value for x, y in points for value in (x, y, "1")[:size])])

    [note] = notes("ultralytics_keypoints", edited)
    assert re.fullmatch(rf"all \d+ outlines can .*: add kpt_shape: \[3, {size}\] to data.yaml if they are", note)
    assert not notes("ultralytics_keypoints", edited, f"names: [a, b, c, d]\nkpt_shape: [3, {size}]")
    for folder in ("supervision_obb", "ultralytics_segments", "ultralytics_boxes"):
        assert not notes(folder)


def test_predictions_of_ultralytics_have_their_confidence():
    folder = FOREIGN / "ultralytics_predictions"
    boxes, segments, oriented = (
        scaled(yolo.parse((folder / f"photo_1{kind}.txt").read_bytes(), kind), 64, 48)
        for kind in ("", "_segments", "_obb")
    )
    pose = scaled(yolo.parse((folder / "photo_1_pose.txt").read_bytes(), "pose", keypoints=(3, 3)), 64, 48)
    for found in (boxes, segments, oriented, pose):
        assert [one["confidence"] for one in found] == [0.75, 0.5]
        assert [one["category"] for one in found] == [0, 1]
    np.testing.assert_allclose(boxes[0]["box"], (10, 8, 30, 40), atol=0.001)
    assert len(oriented[0]["polygons"][0]) == 8
    np.testing.assert_allclose(np.reshape(oriented[0]["polygons"][0], (4, 2)).mean(axis=0), (20, 24), atol=0.001)
    np.testing.assert_allclose(pose[1]["keypoints"][0], (2, 2, 0.9), atol=0.001)


@pytest.mark.parametrize("path", sorted(FOREIGN.rglob("data.y*ml")), ids=lambda path: path.parent.name)
def test_names_of_data_yaml_are_those_that_pyyaml_reads(path):
    if path.parent.name == "labelformat":  # numbered from 1, which Ultralytics refuses too
        with pytest.raises(
            SourceError, match=r"the numbers '1', '2', '3'; class numbers are 0 to 2, .* add a name for 0"
        ):
            yolo.parse_yaml(path.read_bytes(), "data.yaml")
        return
    theirs = pyyaml.safe_load(path.read_text())
    ours = yolo.parse_yaml(path.read_bytes(), "data.yaml")
    names = theirs["names"]
    assert list(ours.names) == (names if isinstance(names, list) else list(names.values()))
    assert ours.splits == {split: (theirs[split],) for split in ("train", "val") if split in theirs}


def test_names_in_text_files_of_labelimg_and_of_darknet():
    for path in ("labelimg/classes.txt", "label_studio/classes.txt", "datumaro_darknet/obj.names"):
        assert names_of((FOREIGN / path).read_bytes(), path, by_line=True) == NAMES


def yaml_of(text):
    return yolo.parse_yaml(text.encode(), "data.yaml")


def test_a_class_called_no_keeps_its_name():
    assert yaml_of("names: [no, 007, 1.0, null]\n").names == ("no", "007", "1.0", "null")
    assert yaml_of("names: {1: off, 0: on}").names == ("on", "off")
    assert yaml_of("nc: 2").names == ("class_0", "class_1")


def test_paths_of_splits_get_path_before_them_and_may_be_lists():
    found = yaml_of("path: ../sets/birds\ntrain: [a, b]\nvalid: c.txt\ntest:\nnames: [x]")
    assert found.splits == {"train": ("../sets/birds/a", "../sets/birds/b"), "val": ("../sets/birds/c.txt",)}


def test_entries_of_data_yaml_are_all_in_the_account():
    found = yaml_of("names: [x]\ndownload: |\n  import os\nkpt_shape: [17, 3]\nflip_idx: [0]\nmine: 3\n")
    assert found.keypoints == (17, 3)
    assert found.attributes == {"flip_idx": [0]}
    assert {part.name: bool(part.reason) for part in found.parts} == {
        "names": False, "download": True, "kpt_shape": False, "flip_idx": False, "mine": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nc: 3\nnames: [a, b]", "nc is 3, and there are 2 names"),
        ("nc: many\nnames: [a]", "nc is not a whole number"),
        ("names: {0: a, 2: b}", "the numbers '0', '2'; class numbers are 0 to 1"),
        ("names: {x: a}", "no class names"),
        ("names: cat", "no class names"),
        ("train: x", "no class names"),
        ("- a", "no entries"),
        ("names: [a", "not valid YAML"),
        ("names: [a]\ntrain: {x: y}", "train is not a path"),
        ("names: [a]\nkpt_shape: 17", "kpt_shape is not"),
        ("names: [a]\nflip_idx: [1, x]", "flip_idx is not a list of point numbers"),
        ("names: [a]\nkpt_shape: [17, 4]", "kpt_shape is not"),
        ("names: [a]\nkpt_shape: [17, 3, 1]", "kpt_shape is not"),
        ("names: [a]\nx: !!python/object/apply:os.system [ls]", None),
        ("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nnames: [*c]", "no class names"),
        ("x" * (2 << 20), "allowed are 1,048,576"),
    ],
)
def test_invalid_data_yaml_is_refused_and_runs_no_code(text, message):
    if message is None:
        assert yaml_of(text).names == ("a",)
        return
    with pytest.raises(SourceError, match=message):
        yaml_of(text)


def test_names_in_classes_txt_are_read_by_the_rule_of_classes():
    assert names_of(b'1 dog\n0 "cat"\n', "classes.txt", by_line=True) == ("cat", "dog")
    with pytest.raises(SourceError, match="numbers '120', '80'"):
        names_of(b"cat 120\ndog 80\n", "classes.txt", by_line=True)


def test_a_class_without_a_name_is_refused(tmp_path):
    src = tmp_path / "src"
    (src / "images").mkdir(parents=True)
    (src / "labels").mkdir()
    Image.new("RGB", (40, 30)).save(src / "images" / "1.jpg")
    (src / "labels" / "1.txt").write_text("1 0.5 0.5 0.2 0.2")
    (src / "classes.txt").write_text("cat\n\ndog\n")
    with pytest.raises(SourceError, match=r"class number 1 of .* has no name: add it, or remove the empty line"):
        wt.pack(src, tmp_path / "dst", dry_run=True)


def test_two_classes_of_one_name_are_refused():
    with pytest.raises(LabelError, match="class 'a' occurs twice"):
        yaml_of("names: [a, b, a]")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.1", "4 numbers; allowed are 5 for a box"),
        ("0 0.5 0.5 0.1 x", "line 3 of a.txt has 0 0.5 0.5 0.1 x; allowed are finite numbers"),
        ("0 0.5 0.5 0.1 nan", "finite"),
        ("-1 0.5 0.5 0.1 0.1", "class number -1"),
        ("0.5 0.5 0.5 0.1 0.1", "class number 0.5"),
        ("cat 0.5 0.5 0.1 0.1", "has cat 0.5 0.5 0.1 0.1; allowed"),
        ("0 320 240 100 100", "outside its image whose positions are 0 to 1"),
        ("0 0.5 0.5 -0.1 0.1", "negative size"),
        ("0 0.5 0.5 0.1 0.1 0.2 0.2", None),
    ],
)
def test_an_image_with_a_line_that_is_not_an_object_is_skipped_with_the_reason(line, message):
    text = f"0 0.5 0.5 0.1 0.1\n\n{line}\n".encode()
    found = yolo.annotations_of([("a.jpg", "a.txt", text), ("b.jpg", "b.txt", None)], yaml_of("names: [x]"))
    if message is None:
        assert not found.skipped
        return
    assert list(found.images) == ["b.jpg"]
    assert re.search(message, found.skipped[0].reason)


def test_a_class_number_beyond_the_names_is_an_error_that_names_the_file():
    with pytest.raises(SourceError, match=r"a\.txt has class number 3, and data\.yaml has 2 names"):
        yolo.annotations_of([("a.jpg", "a.txt", b"3 0.5 0.5 0.1 0.1")], yaml_of("names: [x, y]"))


def test_images_without_a_label_file_and_with_an_empty_one_have_no_objects():
    found = yolo.annotations_of([("a.jpg", "a.txt", None), ("b.jpg", "b.txt", b"\r\n")], yaml_of("names: [x]"))
    for data in found.images.values():
        assert completed(unpacked(data), 7, 5) == {"width": 7, "height": 5, "objects": []}


def test_strange_boxes_and_repeated_lines_are_kept_and_counted():
    lines = b"0 0.5 0.5 0.1 0\n0 0.95 0.5 0.2 0.1\n0 0.5 0.5 0.2 0.1\n0 0.5 0.5 0.2 0.1\n"
    found = yolo.annotations_of([("a.jpg", "a.txt", lines)], yaml_of("names: [x]"))
    assert [note.partition(",")[0] for note in found.notes] == [
        "1 object with a box that reaches beyond its image",
        "1 object with the line of another in its label file",
        "1 object without area",
    ]
    assert len(unpacked(found.images["a.jpg"])["objects"]) == 4


def test_windows_line_ends_comments_and_a_byte_order_mark_are_read():
    assert len(yolo.parse(b"\xef\xbb\xbf# class x y\r\n0 0.5 0.5 0.1 0.1\r\n1 0.5 0.5 0.1 0.1", "a.txt")) == 2
    with pytest.raises(SourceError, match="not text in UTF-16"):
        yolo.parse(b"\xff\xfe0", "a.txt")


def test_fractions_give_the_pixels_of_the_image_exactly():
    [one] = scaled(yolo.parse(b"0 0.1 0.2 0.05 0.1", "a.txt"), 640, 480)
    assert one["box"] == [48.0, 72.0, 80.0, 120.0]


@pytest.mark.parametrize(
    ("entry", "beside", "expected"),
    [
        ("train/images", "data.yaml", "train/images"),
        ("../train/images", "data.yaml", "train/images"),  # Roboflow
        ("../train/images", "sets/data.yaml", "train/images"),
        ("../val/images", "sets/data.yaml", "sets/val/images"),
        ("/tmp/photos/sahi/yolo/train", "data.yml", "train"),
        ("../datasets/coco8/images/train", "coco8/data.yaml", "coco8/images/train"),
        ("./images", "data.yaml", "images"),
        (".", "data.yaml", ""),
        ("nowhere", "data.yaml", None),
    ],
)
def test_the_folder_of_an_entry_is_found_in_the_tree(entry, beside, expected):
    tree = {"train", "train/images", "images", "sets", "sets/val/images", "coco8/images/train"}
    assert yolo.find_folder(entry, tree, data_yaml=beside) == expected


def test_label_files_are_paired_as_ultralytics_pairs_them():
    assert yolo.label_path("images/a/images/b.c.jpg") == "images/a/labels/b.c.txt"
    assert yolo.label_path("train/b.JPG") == "train/b.txt"
