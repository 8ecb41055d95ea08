import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import VOCDetection

from wds_tools.errors import SourceError
from wds_tools.format.objects import unpacked
from wds_tools.sources import voc
from wds_tools.sources.annotated import completed

FOREIGN = Path(__file__).parent.parent / "foreign" / "voc"
NAMES = ("cat", "dog", "fig tree")
BOXES = {
    "photo_1": [(10, 8, 30, 40, 0), (0, 0, 64, 48, 1)],
    "photo_2": [(5, 5, 45, 35, 2), (12, 10, 20, 30, 0)],
    "photo 3": [(1, 2, 39, 58, 1)],
    "photo_4": [],
}
PROGRAMS = sorted(folder.parent for folder in FOREIGN.glob("*/Annotations"))
COUNTS_FROM_1 = ("labelimg", "supervision_boxes", "supervision_masks")


def annotations_of(folder):
    files = sorted((folder / "Annotations").glob("*.xml"))
    return voc.annotations_of((path.stem, path.name, path.read_bytes()) for path in files)


@pytest.mark.parametrize("folder", PROGRAMS, ids=lambda folder: folder.name)
def test_boxes_of_other_programs_are_those_that_they_were_given(folder):
    found = annotations_of(folder)
    assert found.names == NAMES
    assert not found.skipped
    for name, data in found.images.items():
        objects = unpacked(data)["objects"]
        assert [one["category"] for one in objects] == [number for *_, number in BOXES[name]]
        for one, (*box, _) in zip(objects, BOXES[name], strict=True):
            # Label Studio rounds down; labelImg counts from 0 but writes 1 for 0, so its boxes are off by one
            inexact = folder.name in ("label_studio", "labelimg")
            np.testing.assert_allclose(one["box"], box, atol=2 if inexact else 0)
    [note] = [note for note in found.notes if note.startswith("boxes count")]
    assert note.startswith(f"boxes count pixels from {int(folder.name in COUNTS_FROM_1)}")


@pytest.mark.parametrize("folder", PROGRAMS, ids=lambda folder: folder.name)
def test_xml_is_read_as_torchvision_reads_it(folder, tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    shutil.copytree(folder / "Annotations", root / "Annotations")
    names = sorted(path.stem for path in (folder / "Annotations").glob("*.xml"))
    (root / "ImageSets" / "Main" / "train.txt").write_text("\n".join(names))
    for name in names:
        Image.new("RGB", (4, 4)).save(root / "JPEGImages" / f"{name}.jpg")
    theirs = VOCDetection(str(tmp_path), year="2012", image_set="train")
    for name, (_, target) in zip(names, theirs, strict=True):
        ours = voc.read_xml((root / "Annotations" / f"{name}.xml").read_bytes(), name)
        objects = ours.pop("object", [])
        expected = target["annotation"].pop("object", [])
        assert (objects if isinstance(objects, list) else [objects]) == expected
        assert without_empty(ours) == without_empty(target["annotation"])


def without_empty(tree):
    """Return without elements that have no text, which torchvision leaves out."""
    if not isinstance(tree, dict):
        return tree
    return {name: without_empty(value) for name, value in tree.items() if value not in ("", None) and name[0] != "@"}


def test_polygons_that_supervision_writes_as_roboflow_does_are_outlines():
    found = annotations_of(FOREIGN / "supervision_masks")
    assert unpacked(found.images["photo_1"])["objects"][0]["polygons"] == [[10, 8, 10, 39, 29, 39, 29, 8]]


def test_attributes_of_datumaro_keep_their_names():
    facts = unpacked(annotations_of(FOREIGN / "datumaro").images["photo_1"])
    assert facts["source"] == {"database": "Unknown", "annotation": "Unknown", "image": "Unknown"}
    assert (facts["filename"], facts["segmented"]) == ("photo_1.jpg", 0)
    assert facts["objects"][1] == {
        "box": [0, 0, 64, 48], "category": 1, "truncated": 1, "occluded": 0, "difficult": 0,
        "attributes": {"attribute": {"name": "colour", "value": "red"}},
    }  # fmt: skip


def xml(*objects, size="<size><width>100</width><height>50</height><depth>3</depth></size>"):
    return f"<annotation><filename>a.jpg</filename>{size}{''.join(objects)}</annotation>".encode()


def one(box=(1, 1, 100, 50), name="cat", more=""):
    edges = "".join(f"<{edge}>{value}</{edge}>" for edge, value in zip(voc._EDGES, box, strict=True))  # noqa: SLF001
    return f"<object><name>{name}</name><bndbox>{edges}</bndbox>{more}</object>"


def annotations(*files, **options):
    return voc.annotations_of([(f"{n}.jpg", f"{n}.xml", data) for n, data in enumerate(files)], **options)


def objects(found, number=0):
    return unpacked(found.images[f"{number}.jpg"])["objects"]


def test_a_box_of_all_pixels_of_voc_is_the_whole_image():
    found = annotations(xml(one((1, 1, 100, 50))))
    assert objects(found)[0]["box"] == [0, 0, 100, 50]


def test_one_coordinate_0_shows_that_the_whole_dataset_counts_from_0():
    found = annotations(xml(one((1, 1, 100, 50))), xml(one((0, 5, 10, 20))))
    assert objects(found)[0]["box"] == [1, 1, 100, 50]
    assert found.notes == ["boxes count pixels from 0: 1.xml has an xmin or ymin below 1"]


def test_parts_of_an_object_stay_with_it_and_are_in_the_same_pixels():
    part = "<part><name>head</name><bndbox><xmin>5</xmin><ymin>6</ymin><xmax>7</xmax><ymax>8</ymax></bndbox></part>"
    found = annotations(xml(one(more="<pose>Left</pose><difficult>1</difficult>" + part)))
    assert objects(found) == [
        {"box": [0, 0, 100, 50], "category": 0, "pose": "Left", "difficult": 1,
         "part": [{"name": "head", "box": [4, 5, 7, 8]}]}
    ]  # fmt: skip


def test_classes_are_numbered_in_sorted_order():
    found = annotations(xml(one(name="dog"), one(name="cat")))
    assert found.names == ("cat", "dog")
    assert [thing["category"] for thing in objects(found)] == [1, 0]


def test_files_that_name_another_image_are_noted():
    """A file that was copied and edited keeps the name of the image that it was about."""
    found = voc.annotations_of([("x/a.jpg", "x/a.xml", xml(one())), ("x/b.jpg", "x/b.xml", xml(one()))])
    [note] = found.notes[1:]
    assert note.startswith("1 XML file with the name of another image in <filename>, such as 'a' in 'x/b.xml'")
    renamed = voc.annotations_of([("1.jpg", "1.xml", xml(one())), ("2.jpg", "2.xml", xml(one()))])
    assert renamed.notes[1:] == []


def test_an_image_without_an_xml_file_has_no_objects():
    found = voc.annotations_of([("a.jpg", "a.xml", None), ("b.jpg", "b.xml", xml(one()))])
    assert completed(unpacked(found.images["a.jpg"]), 9, 8) == {"width": 9, "height": 8, "objects": []}


@pytest.mark.parametrize("size", ["", "<size><width>0</width><height>0</height></size>", "<size/>"])
def test_a_size_that_is_missing_or_0_is_taken_from_the_image(size):
    found = annotations(xml(one((2, 2, 10, 10)), size=size))
    facts = completed(unpacked(found.images["0.jpg"]), 100, 50)
    assert (facts["width"], facts["height"]) == (100, 50)


def test_another_size_than_that_of_the_image_is_refused():
    found = annotations(xml(one()))
    with pytest.raises(SourceError, match="an image of 100x50, and the image is 50x100"):
        completed(unpacked(found.images["0.jpg"]), 50, 100)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (xml(one((30, 1, 10, 50))), "box of negative size"),
        (xml(one(("nan", 1, 10, 50))), "finite"),
        (xml(one(("x", 1, 10, 50))), "allowed are lists of numbers"),
        (xml(one((300, 1, 310, 50))), "outside its image of 100x50"),
        (xml("<object><name>cat</name></object>"), r"object 0 \(cat\) has no box"),
        (xml("<object><bndbox/></object>"), "has an object without a name"),
        (xml(one(more="<polygon><x1>3</x1></polygon>")), "a polygon that is not"),
        (b"<annotation>", "not valid XML"),
        (b"<html></html>", "first element is <html>"),
        (b"\x00", "not valid XML"),
        (b"<annotation>" + b"<a>" * 50 + b"</a>" * 50 + b"</annotation>", "elements nested more than 20 levels deep"),
        (b'<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>', "document type decl"),
        ('<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x SYSTEM "/etc/passwd"><annotation/>'.encode("utf-16"),
         "document type declaration"),
    ],
)  # fmt: skip
def test_an_image_whose_xml_cannot_be_used_is_skipped_with_the_reason(data, message):
    found = annotations(data, xml(one(name="cat")))
    assert list(found.images) == ["1.jpg"]
    assert re.search(message, found.skipped[0].reason)


def test_lists_of_images_may_have_names_with_spaces():
    listed = voc.image_set((FOREIGN / "datumaro" / "ImageSets" / "Main" / "train.txt").read_bytes(), "train.txt")
    assert listed == ("photo_1", "photo 3")
    with pytest.raises(SourceError, match="not text"):
        voc.image_set(b"\xff", "train.txt")


def test_what_a_box_states_besides_its_edges_is_kept():
    xml = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax><angle>0.5</angle></bndbox>"
    xml = f"<annotation><object><name>dog</name>{xml}</object></annotation>"
    [data] = voc.annotations_of([("1", "1.xml", xml.encode())]).images.values()
    assert unpacked(data)["objects"] == [{"box": [0, 0, 5, 5], "category": 0, "angle": "0.5"}]
