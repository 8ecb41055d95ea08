from pathlib import Path

import pytest

from wds_tools.sources.layouts import folder_of
from wds_tools.sources.masks import pairs, siblings

FOREIGN = Path(__file__).parent.parent / "foreign" / "masks"


def names_of(folder, images):
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [*found, *images]


def test_camvid_as_datumaro_writes_it():
    images = [f"train/{name}.jpg" for name in ("photo_1", "photo 3")] + ["val/photo_2.jpg", "val/photo_4.jpg"]
    found = pairs(names_of(FOREIGN / "camvid", images))
    assert found.pairs == [
        ("train/photo 3.jpg", {"mask.png": "trainannot/photo 3.png"}),
        ("train/photo_1.jpg", {"mask.png": "trainannot/photo_1.png"}),
        ("val/photo_2.jpg", {"mask.png": "valannot/photo_2.png"}),
    ]
    assert found.unpaired == ["val/photo_4.jpg"]


def test_cityscapes_as_its_own_scripts_write_it():
    images = [
        "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png",
        "leftImg8bit/val/lindau/lindau_000001_000019_leftImg8bit.png",
    ]
    found = pairs(names_of(FOREIGN / "cityscapes", images))
    start = "gtFine/val/lindau/lindau_000001_000019_gtFine"
    assert found.unpaired == []
    assert [image for image, _ in found.pairs] == images
    assert found.pairs[1][1] == {"mask.png": f"{start}_labelIds.png", "color.png": f"{start}_color.png"}


@pytest.mark.parametrize(
    ("image", "mask", "field"),
    [
        ("images/1.jpg", "masks/1.png", "mask.png"),
        ("images/train/1.jpg", "annotations/train/1.png", "mask.png"),  # ADE20K
        ("train/images/1.jpg", "train/masks/1.png", "mask.png"),
        ("images/train/1.jpg", "labels/train/1.png", "mask.png"),
        ("JPEGImages/2007_1.jpg", "SegmentationClass/2007_1.png", "mask.png"),
        ("JPEGImages/2007_1.jpg", "SegmentationClassAug/2007_1.png", "mask.png"),
        ("JPEGImages/2007_1.jpg", "SegmentationObject/2007_1.png", "instance.png"),
        ("train/1.jpg", "train_masks/1_mask.gif", "mask.gif"),  # Carvana
        ("train/0001.png", "train_labels/0001_L.png", "mask.png"),  # CamVid
        ("train_img/1.jpg", "train_lab/1.png", "mask.png"),  # DeepCrack
        ("images/1.jpg", "labels/1_P.png", "mask.png"),  # CamVid of fast.ai
        ("a/TCGA_1.tif", "a/TCGA_1_mask.tif", "mask.tif"),  # both in one folder
        ("images/1.jpg", "annotations/trimaps/1.png", "mask.png"),  # Oxford pets
        ("ISIC_1.jpg", "ISIC_1_segmentation.png", "mask.png"),
        ("train/1_sat.jpg", "train/1_mask.png", "mask.png"),  # DeepGlobe
        ("1.jpg", "1_lab.png", "mask.png"),
        ("kitchen/1_rgb.jpg", "kitchen/1_depth.png", "depth.png"),
        ("frame1.png", "frame1_GT.png", "mask.png"),
        ("1_img.png", "1_masks.png", "mask.png"),  # Cellpose
        ("1.tif", "1_cp_masks.tif", "mask.tif"),
        ("cat (1).png", "cat (1) (mask).png", "mask.png"),
        ("1.png", "mask_1.png", "mask.png"),
        ("images/img_1.png", "masks/mask_1.png", "mask.png"),
        ("images/image1.jpg", "labels/1.png", "mask.png"),
        ("7/rgb.jpg", "7/depth.png", "depth.png"),
        ("7_json/img.png", "7_json/label.png", "mask.png"),  # labelme
        ("training/images/1.jpg", "training/v2.0/panoptic/1.png", "panoptic.png"),  # Mapillary Vistas
        ("leftImg8bit/val/b/b_1_2_leftImg8bit.png", "gtCoarse/val/b/b_1_2_gtCoarse_instanceIds.png", "instance.png"),
    ],
)
def test_layouts_of_images_and_masks(image, mask, field):
    assert pairs([mask, image]) == ([(image, {field: mask})], [], {})


@pytest.mark.parametrize(
    "names",
    [
        ["images/1.jpg", "masks/2.png"],
        ["images/train/1.jpg", "masks/val/1.png"],
        ["images/1.jpg", "images/1.png", "masks/1.png"],  # two images of one name
        ["cat/1.jpg", "dog/1.jpg"],
        ["cat/1.jpg", "cat/1_color.jpg"],  # not a mask: JPEG
        ["cat/1.png", "dog/mask_1.png"],
        ["image_1.png", "img_1.png", "mask_1.png"],
        ["a/image.png", "b/mask.png"],
        ["bmw/1.jpg", "ford_gt/1.jpg"],
    ],
)
def test_what_has_no_clear_partner_is_listed(names):
    assert pairs(names) == ([], sorted(names), {})


def test_two_masks_of_one_field_are_not_both_taken():
    pairing = pairs(["images/1.jpg", "labels/1.png", "masks/1.png"])
    assert pairing == ([("images/1.jpg", {"mask.png": "labels/1.png"})], [], {"masks/1.png": "labels/1.png"})


@pytest.mark.parametrize(
    "names",
    [["1.png", "target/1.png"], ["cat/1.png", "dog/1.png", "target/1.png"], ["input/1.png", "target/2.png"]],
)
def test_folders_that_are_not_next_to_one_folder_with_the_same_names_are_not_of_masks(names):
    assert not siblings(names, {folder_of(name) for name in names})
