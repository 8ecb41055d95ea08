"""Well-known public datasets, with the names of files and folders that they have: a few small images of each.

Each packs as it is, or with the option that the error names, with the right labels and without a false note.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image
from tfrecords import example, frame

import wds_tools as wt
from wds_tools.errors import SourceError

WORDNET = ("n01440764", "n02102040", "n02979186")
V5 = b"MATLAB 5.0 MAT-file" + bytes(300)
HEADER = "  image: column"
MASK, PHOTO = b"mask", b"photo"  # in place of their content


def image(name: str, number: int, *, is_mask: bool = False) -> bytes:
    """Return a small image that no other has, of the type that its name states."""
    out = io.BytesIO()
    content = Image.new("L", (16, 12), number % 4) if is_mask else Image.new("RGB", (16, 12), (number % 256, 7, 9))
    formats = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "tif": "TIFF", "ppm": "PPM"}
    content.save(out, formats[name.rpartition(".")[2].lower()])
    return out.getvalue()


def each(pattern: str, *classes: str) -> dict[str, Any]:
    """Return path -> class: one image of the first class, two of the second, and so on."""
    return {pattern.format(c=c, n=n): c for count, c in enumerate(classes, 1) for n in range(1, count + 1)}


def flat(pattern: str, count: int = 4) -> dict[str, Any]:
    """Return path -> None for images without labels."""
    return {pattern.format(n=n): None for n in range(1, count + 1)}


def lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def stem(path: str) -> str:
    return Path(path).stem


@dataclass(frozen=True)
class Dataset:
    """A dataset.

    Attributes:
        images: Path -> class name, class number or None.
        files: Path -> content of further files, or `MASK` and `PHOTO` for images that are not samples.
        src: What is packed.
        options: Options of `pack`; with ``split`` those of `pack_splits`.
        error: What the error says without these options, except for ``split``; empty if there is none.
        notes: Regular expressions: each note matches one of them.
        fields: Further fields that each sample has.
        split_of: Returns the split of a path.
    """

    images: Mapping[str, Any]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    src: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    notes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    split_of: Callable[[str], str] | None = None

    def write(self, root: Path) -> Path:
        """Write the files; return the path to pack."""
        for number, (name, content) in enumerate({**self.images, **self.files}.items()):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in self.images or content in (MASK, PHOTO):
                path.write_bytes(image(name, number, is_mask=content == MASK))
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root / self.src

    def of_split(self, split: str) -> dict[str, Any]:
        split_of = self.split_of or (lambda path: split if split in path.split("/") else "")
        return {path: label for path, label in self.images.items() if not split or split_of(path) == split}


FOLDERS = {"split": "folders"}
DATASETS: dict[str, Dataset] = {}

# --- class folders

DATASETS["ImageNet"] = Dataset(
    each("train/{c}/{c}_{n}.JPEG", *WORDNET) | each("val/{c}/ILSVRC2012_val_0000000{n}.JPEG", *WORDNET),
    options=FOLDERS,
)
DATASETS["ImageNet of Kaggle"] = Dataset(
    each("ILSVRC/Data/CLS-LOC/train/{c}/{c}_{n}.JPEG", *WORDNET)
    | flat("ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_0000000{n}.JPEG"),
    {"LOC_synset_mapping.txt": lines(f"{c} thing" for c in WORDNET)},
    src="ILSVRC/Data/CLS-LOC",
    options=FOLDERS,
    notes=("it has no labels, unlike the split 'train'",),
)
imagenette = each("{s}/{c}/{c}_{n}.JPEG".replace("{s}", "train"), *WORDNET) | each("val/{c}/{c}_0{n}.JPEG", *WORDNET)
DATASETS["Imagenette"] = Dataset(
    {f"imagenette2-160/{path}": c for path, c in imagenette.items()},
    {
        "imagenette2-160/noisy_imagenette.csv": "path,noisy_labels_0,noisy_labels_1,is_valid\n"
        + lines(f"{path},{c},{c},{'val' in path}" for path, c in imagenette.items()),
        "imagenette2-160/.DS_Store": "x",
    },
    src="imagenette2-160",
    options={**FOLDERS, "kind": "folder"},
    error="noisy_imagenette.csv, which names the images: pass --split folders --from folder",
)
CIFAR = ("airplane", "automobile", "bird")
DATASETS["CIFAR-10 of fast.ai"] = Dataset(
    each("cifar10/train/{c}/{n}_{c}.png", *CIFAR) | each("cifar10/test/{c}/{n}_{c}.png", *CIFAR),
    {"cifar10/labels.txt": lines(CIFAR)},
    src="cifar10",
    options=FOLDERS,
)
DATASETS["Oxford Flowers"] = Dataset(
    each("flower_data/train/{c}/image_0{c}{n}.jpg", "1", "2", "3")
    | each("flower_data/valid/{c}/image_1{c}{n}.jpg", "1", "2", "3"),
    {"flower_data/cat_to_name.json": json.dumps({"1": "pink primrose", "2": "tiger lily", "3": "canterbury bells"})},
    src="flower_data",
    options=FOLDERS,
    notes=("cat_to_name.json' has a name for each number .*--classes",),
)
DATASETS["flower_photos of TensorFlow"] = Dataset(
    each("flower_photos/{c}/{n}_{c}.jpg", "daisy", "dandelion", "roses"),
    {"flower_photos/LICENSE.txt": "daisy/1_daisy.jpg CC-BY by A\nroses/1_roses.jpg CC-BY by B\n"},
    notes=("'flower_photos' of all images is not read as a class",),
)
FOOD = ("apple_pie", "baby_back_ribs", "baklava")
food = each("images/{c}/10056{n}.jpg", *FOOD)
DATASETS["Food-101"] = Dataset(
    {f"food-101/{path}": c for path, c in food.items()},
    {
        "food-101/meta/classes.txt": lines(FOOD),
        "food-101/meta/labels.txt": "Apple pie\nBaby back ribs\nBaklava\n",
        "food-101/meta/train.txt": lines(f"{c}/{stem(path)}" for path, c in list(food.items())[::2]),
        "food-101/meta/test.txt": lines(f"{c}/{stem(path)}" for path, c in list(food.items())[1::2]),
        "food-101/meta/train.json": json.dumps({c: [f"{c}/100561"] for c in FOOD}),
        "food-101/README.txt": "Food",
    },
    src="food-101",
    notes=(r"meta/test.txt' \(and 2 other files\) is named like a list of a split, which is not read",),
)
DATASETS["Caltech-101"] = Dataset(
    each("caltech-101/101_ObjectCategories/{c}/image_000{n}.jpg", "BACKGROUND_Google", "Faces", "accordion"),
    {"caltech-101/Annotations/accordion/annotation_0001.mat": V5, "caltech-101/show_annotation.m": "function"},
    src="caltech-101",
    notes=("annotation_0001.mat' has arrays or objects", "'101_ObjectCategories' of all images is not read as a class"),
)
breeds = ("n02085620-Chihuahua", "n02085782-Japanese_spaniel", "n02085936-Maltese_dog")
dogs = {f"Images/{c}/{c[:9]}_{n}.jpg": c for count, c in enumerate(breeds, 1) for n in range(count)}
DATASETS["Stanford Dogs"] = Dataset(
    dogs,
    {f"Annotation/{c}/{stem(path)}": "<annotation></annotation>" for path, c in dogs.items()},
    notes=(r"Annotation/.*\(and 5 other files\) has the name of an image in another folder",),
)
birds = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
cub = {f"images/{c}/{c[4:]}_000{n}_79611{n}.jpg": c for count, c in enumerate(birds, 1) for n in range(count)}
DATASETS["CUB-200-2011"] = Dataset(
    {f"CUB_200_2011/{path}": c for path, c in cub.items()},
    {
        "CUB_200_2011/images.txt": lines(f"{n} {path.partition('/')[2]}" for n, path in enumerate(cub, 1)),
        "CUB_200_2011/image_class_labels.txt": lines(f"{n} {int(c[:3])}" for n, c in enumerate(cub.values(), 1)),
        "CUB_200_2011/train_test_split.txt": lines(f"{n} {n % 2}" for n in range(1, 7)),
        "CUB_200_2011/classes.txt": lines(f"{n} {c}" for n, c in enumerate(birds, 1)),
        "CUB_200_2011/bounding_boxes.txt": lines(f"{n} 60.0 27.0 325.0 304.0" for n in range(1, 7)),
        "CUB_200_2011/README": "x",
        "CUB_200_2011/parts/part_locs.txt": lines(f"{n} 1 0.0 0.0 0" for n in range(1, 7)),
        "attributes.txt": "1 has_bill_shape::curved_(up_or_down)\n",
    },
    notes=(
        r"image_class_labels.txt' \(and 1 other file\) is named like a file about the images",
        "images.txt' has a value for each image, such as '1' for",
        "train_test_split.txt' is named like a list of a split",
        "'CUB_200_2011' of all images is not read as a class",
    ),
)
DATASETS["EuroSAT"] = Dataset(
    each("EuroSAT/2750/{c}/{c}_{n}.jpg", "AnnualCrop", "Forest", "HerbaceousVegetation"),
    src="EuroSAT",
    notes=("'2750' of all images is not read as a class",),
)
scenes = ("buildings", "forest", "glacier")
DATASETS["Intel Image Classification"] = Dataset(
    each("seg_train/seg_train/{c}/{n}.jpg", *scenes)
    | each("seg_test/seg_test/{c}/2{n}.jpg", *scenes)
    | flat("seg_pred/seg_pred/3{n}.jpg"),
    options=FOLDERS,
    notes=("it has no labels, unlike the split",),
)
DATASETS["PetImages"] = Dataset(
    each("PetImages/{c}/{n}.jpg", "Cat", "Dog"),
    {"PetImages/Cat/666.jpg": b"", "PetImages/Cat/Thumbs.db": b"\xd0\xcf", "readme[1].txt": "x"},
    src="PetImages",
)
DATASETS["cats_and_dogs_filtered"] = Dataset(
    each("train/{c}/{c}.{n}.jpg", "cats", "dogs") | each("validation/{c}/{c}.200{n}.jpg", "cats", "dogs"),
    {"vectorize.py": "import os"},
    options=FOLDERS,
)
xrays = {
    f"{split}/{c}/{c}-IM-{split}{n}.jpeg": c
    for split in ("train", "test", "val")
    for count, c in enumerate(("NORMAL", "PNEUMONIA"), 1)
    for n in range(count)
}
DATASETS["chest x-ray"] = Dataset(xrays, {"train/.DS_Store": "x"}, options=FOLDERS)
crops = ("Pepper__bell___Bacterial_spot", "Pepper__bell___healthy", "Potato___Early_blight")
DATASETS["PlantVillage"] = Dataset(each("PlantVillage/{c}/{n}a00___JR_B.Spot 327{n}.JPG", *crops), src="PlantVillage")
textures = each("images/{c}/{c}_000{n}.jpg", "banded", "blotchy", "braided")
DATASETS["DTD"] = Dataset(
    textures,
    {
        "labels/train1.txt": lines(path[7:] for path in list(textures)[::2]),
        "labels/test1.txt": lines(path[7:] for path in list(textures)[1::2]),
        "labels/labels_joint_anno.txt": lines(
            f"{path[7:]} {c} {'dotted ' * (n % 2)}" for n, (path, c) in enumerate(textures.items())
        ),
        "imdb/imdb.mat": V5,
    },
    notes=(
        "labels_joint_anno.txt' has a value for each image",
        r"test1.txt' \(and 1 other file\) is named like a list",
    ),
)
waste = each("Garbage classification/Garbage classification/{c}/{c}{n}.jpg", "cardboard", "glass", "trash")
by_number = [f"{Path(path).name} {'cgt'.index(c[0])}" for path, c in waste.items()]
DATASETS["Garbage Classification of Kaggle"] = Dataset(  # lists with the classes of the folders
    waste,
    {"zero-indexed-files.txt": lines(by_number), "one-indexed-files-notrash_train.txt": lines(by_number[:3])},
    notes=(
        "one-indexed-files-notrash_train.txt' is named like a list of a split",
        "the folder 'Garbage classification' of all images is not read as a class",
    ),
)
pages = {f"images/imagesa/a/{'ab'[n % 2]}/doc{n}/{n}.tif": "ab"[n % 2] for n in range(6)}
DATASETS["RVL-CDIP"] = Dataset(  # the labels are in lists, not in folders
    pages,
    {"labels/train.txt": lines(f"{path[7:]} {n % 3}" for n, path in enumerate(pages))},
    notes=("labels/train.txt' has a value for each image, .*, so it is not read: write it as CSV", "folder"),
)
DATASETS["UC Merced"] = Dataset(
    each("UCMerced_LandUse/Images/{c}/{c}0{n}.tif", "agricultural", "airplane", "baseballdiamond"),
    {"UCMerced_LandUse/readme.txt": "x"},
    src="UCMerced_LandUse",
)
places = each("train/{c}/0000000{n}.jpg", "airfield", "alley", "attic") | each(
    "val/{c}/Places365_val_0000000{n}.jpg", "airfield", "alley", "attic"
)
DATASETS["Places365"] = Dataset(
    places,
    {f"{split}.txt": lines(path for path in places if path.startswith(split)) for split in ("train", "val")},
    options=FOLDERS,
)
DATASETS["LFW"] = Dataset(
    each("lfw-deepfunneled/{c}/{c}_000{n}.jpg", "Aaron_Eckhart", "Aaron_Guiel"), src="lfw-deepfunneled"
)
DATASETS["LFW of Kaggle"] = Dataset(
    each("lfw-deepfunneled/lfw-deepfunneled/{c}/{c}_000{n}.jpg", "Aaron_Eckhart", "Aaron_Guiel"),
    {"lfw_allnames.csv": "name,images\nAaron_Eckhart,1\nAaron_Guiel,2\n", "pairs.csv": "name,imagenum1,imagenum2,\n"},
    src="lfw-deepfunneled",
)
DATASETS["MVTec AD"] = Dataset(
    {f"bottle/train/good/00{n}.png": "good" for n in range(4)}
    | each("bottle/test/{c}/00{n}.png", "broken_large", "broken_small", "good"),
    {"bottle/ground_truth/broken_large/001_mask.png": MASK, "bottle/license.txt": "x", "bottle/readme.txt": "x"},
    src="bottle",
    options=FOLDERS,
    notes=("'ground_truth' next to the splits is named like masks", "all images have the class 'good'"),
)
DATASETS["STL-10"] = Dataset(
    each("train_images/{c}/{n}.png", *CIFAR)
    | each("test_images/{c}/{n}.png", *CIFAR)
    | flat("unlabeled_images/{n}.png"),
    options=FOLDERS,
    notes=("it has no labels, unlike the split",),
)
DATASETS["SVHN as folders"] = Dataset(
    {
        path: c
        for split in ("train", "test", "extra")
        for path, c in each(f"{split}/{{c}}/{{n}}.png", "0", "1", "2").items()
    },
    options=FOLDERS,
)
DATASETS["Market-1501"] = Dataset(
    flat("bounding_box_train/000{n}_c1s1_00045{n}_03.jpg")
    | flat("bounding_box_test/-1_c1s1_00045{n}_03.jpg")
    | flat("query/000{n}_c1s1_00145{n}_00.jpg")
    | flat("gt_bbox/000{n}_c1s1_00245{n}_00.jpg"),
    {"readme.txt": "x"},
    options=FOLDERS,
)
DATASETS["GTSRB"] = Dataset(
    each("Final_Training/Images/{c}/00000_0000{n}.ppm", "00000", "00001", "00002"),
    {
        f"Final_Training/Images/{c}/GT-{c}.csv": "Filename;Width;Height;ClassId\n"
        + lines(f"00000_0000{n}.ppm;16;12;{int(c)}" for n in range(1, count + 1))
        for count, c in enumerate(("00000", "00001", "00002"), 1)
    },
    src="Final_Training/Images",
    options={"kind": "folder"},
    error="pass --from folder .* if the folders are the classes, or pack one table",
)
DATASETS["FER-2013"] = Dataset(
    each("train/{c}/Training_{n}{c}.jpg", "angry", "happy") | each("test/{c}/PrivateTest_{n}{c}.jpg", "angry", "happy"),
    options=FOLDERS,
)
DATASETS["10 Monkey Species"] = Dataset(
    each("training/training/{c}/{c}0{n}.jpg", "n0", "n1", "n2")
    | each("validation/validation/{c}/{c}1{n}.jpg", "n0", "n1"),
    options=FOLDERS,
)
DATASETS["State Farm"] = Dataset(
    each("train/{c}/img_{n}{c}.jpg", "c0", "c1", "c2") | flat("test/img_{n}.jpg"),
    options=FOLDERS,
    notes=("it has no labels, unlike the split 'train'",),
)
DATASETS["Animals-10"] = Dataset(
    each("raw-img/{c}/OIF-{n}{c}.jpeg", "cane", "cavallo"), {"translate.py": "translate = {}"}
)
DATASETS["ASL alphabet"] = Dataset(
    each("asl_alphabet_train/asl_alphabet_train/{c}/{c}{n}.jpg", "A", "B", "C")
    | {f"asl_alphabet_test/asl_alphabet_test/{c}_test.jpg": None for c in "ABC"},
    options=FOLDERS,
    notes=("it has no labels, unlike the split 'asl_alphabet_train'",),
)
DATASETS["Fruits-360"] = Dataset(
    each("Training/{c}/{n}_100.jpg", "Apple Red 1", "Apple Red 2", "Banana")
    | each("Test/{c}/3{n}_100.jpg", "Apple Red 1", "Apple Red 2", "Banana")
    | flat("test-multiple_fruits/apple{n}.jpg", 2),
    {"LICENSE": "MIT", "readme.md": "#", "papers/a.pdf": b"%PDF"},
    options=FOLDERS,
    notes=("it has no labels, unlike the split",),
)
DATASETS["Hugging Face imagefolder"] = Dataset(
    each("train/{c}/{c}{n}.png", "bird", "dog") | each("test/{c}/{c}9{n}.png", "bird", "dog"),
    {"README.md": "---\nlicense: mit\n---\n"},
    options=FOLDERS,
)

DATASETS["DIV2K"] = Dataset(flat("DIV2K_train_HR/000{n}.png") | flat("DIV2K_valid_HR/080{n}.png"), options=FOLDERS)

# --- tables

kaggle = {f"train/{n}.png": c for n, c in enumerate(("frog", "truck", "truck", "deer"), 1)}
DATASETS["CIFAR-10 of Kaggle"] = Dataset(
    kaggle,
    {
        "trainLabels.csv": "id,label\n" + lines(f"{stem(path)},{c}" for path, c in kaggle.items()),
        "sampleSubmission.csv": "id,label\n1,cat\n2,cat\n",
        "test/1.png": PHOTO,
    },
    notes=("there is a table of 'train' only, and none of 'test'",),
)
DATASETS["Cats vs Dogs of Kaggle"] = Dataset(
    {f"train/{c}.{n}.jpg": None for c in ("cat", "dog") for n in range(3)} | flat("test1/{n}.jpg"),
    {"sampleSubmission.csv": "id,label\n1,0\n2,0\n"},
    options=FOLDERS,
    notes=("no labels; names begin with 'cat', 'dog'",),
)
leaves = {f"train_images/100001515{n}.jpg": n % 3 for n in range(5)}
DATASETS["Cassava of Kaggle"] = Dataset(
    leaves,
    {
        "train.csv": "image_id,label\n" + lines(f"{path[13:]},{label}" for path, label in leaves.items()),
        "test_images/2216849948.jpg": PHOTO,
        "sample_submission.csv": "image_id,label\n2216849948.jpg,4\n",
        "label_num_to_disease_map.json": json.dumps({"0": "CBB", "1": "CBSD", "2": "CGM"}),
        "train_tfrecords/ld_train00-1338.tfrec": b"x" * 40,
    },
    notes=(
        "label_num_to_disease_map.json' has a name for each number .*--classes",
        "ld_train00-1338.tfrec' has records.*: pack it on its own",
        "there is a table of 'train' only",
    ),
)
pokemon = flat("train/000{n}.png")
DATASETS["ImageFolder of Hugging Face"] = Dataset(
    pokemon,
    {"train/metadata.csv": "file_name,text\n" + lines(f"{path[6:]},a photo" for path in pokemon)},
    options=FOLDERS,
    fields=("txt",),
)
lesions = {f"HAM10000_images_part_{1 + n // 3}/ISIC_002430{n}.jpg": ("bkl", "nv", "mel")[n % 3] for n in range(6)}
DATASETS["HAM10000"] = Dataset(
    lesions,
    {
        "HAM10000_metadata.csv": "lesion_id,image_id,dx,dx_type,age,sex,localization\n"
        + lines(
            f"HAM_{n // 2},{stem(path)},{dx},histo,80.0,male,scalp" for n, (path, dx) in enumerate(lesions.items())
        ),
        "hmnist_8_8_L.csv": "pixel0000,pixel0001,label\n" + "5,6,2\n" * 6,
    },
    options={"columns": {"label": "dx"}},
)
diagnoses = {f"ISIC2018_Task3_Training_Input/ISIC_002430{n}.jpg": ("MEL", "NV", "BCC")[n % 3] for n in range(4)}
DATASETS["ISIC 2018"] = Dataset(
    diagnoses,
    {
        "ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv": "image,MEL,NV,BCC\n"
        + lines(f"{stem(path)},{c == 'MEL':d}.0,{c == 'NV':d}.0,{c == 'BCC':d}.0" for path, c in diagnoses.items()),
        "ISIC2018_Task3_Training_Input/ATTRIBUTION.txt": "x",
    },
    notes=("the labels are lists of 0 and 1 for 3 classes, so a sample has one label",),
)
findings = {
    f"images_00{1 + n // 3}/images/0000000{n}_000.png": ("Hernia", "Hernia|Mass", "Mass")[n % 3] for n in range(6)
}
DATASETS["NIH chest x-ray"] = Dataset(
    dict.fromkeys(findings, ...),
    {
        "Data_Entry_2017.csv": "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender\n"
        + lines(f"{path[18:]},{labels},0,{n},58,M" for n, (path, labels) in enumerate(findings.items())),
        "train_val_list.txt": lines(path[18:] for path in list(findings)[:3]),
        "README_CHESTXRAY.pdf": b"%PDF",
    },
    options={"columns": {"label": "Finding Labels"}, "label_separator": "|"},
)
FACES = ("5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive")
DATASETS["CelebA with its attributes"] = Dataset(
    {f"img_align_celeba/img_align_celeba/00000{n}.jpg": ... for n in range(1, 6)},
    {
        "list_attr_celeba.csv": f"image_id,{','.join(FACES)}\n"
        + lines(f"00000{n}.jpg,{','.join(str(2 * (n >> bit & 1) - 1) for bit in range(3))}" for n in range(1, 6)),
    },
    notes=("lists of 0 and 1 for 3 classes, so a sample has several labels",),
)
DATASETS["Hugging Face imagefolder with metadata.csv"] = Dataset(
    flat("train/000{n}.png") | flat("test/010{n}.png", 3),
    {
        "train/metadata.csv": "file_name,text\n" + lines(f"000{n}.png,a retriever {n}" for n in range(1, 5)),
        "test/metadata.csv": "file_name,text\n" + lines(f"010{n}.png,a shepherd {n}" for n in range(1, 4)),
    },
    options=FOLDERS,
    fields=("txt",),
)
sports = {
    path: c
    for split in ("train", "test", "valid")
    for path, c in each(f"{split}/{{c}}/00{{n}}.jpg", "air hockey", "archery").items()
}
SPORTS_TABLE = "class id,filepaths,labels,data set\n" + lines(
    f"{int(c == 'archery')},{path},{c},{path.partition('/')[0]}" for path, c in sports.items()
)
DATASETS["100 Sports"] = Dataset(
    sports,
    {"sports.csv": SPORTS_TABLE, "EfficientNetB0-100-(224 X 224)- 98.40.h5": b"\x89HDF\r\n\x1a\n"},
    options={**FOLDERS, "kind": "table"},
    error="sports.csv, which names the images: pass --split folders --from folder .*, or --from table",
    notes=("class names: column 'labels', whose values match the numbers in column 'class id'",),
)
tiny = each("train/{c}/images/{c}_{n}.JPEG", *WORDNET)
DATASETS["Tiny ImageNet"] = Dataset(
    tiny,
    {f"train/{c}/{c}_boxes.txt": f"{c}_1.JPEG\t0\t10\t63\t58\n" for c in WORDNET}
    | {"val/images/val_0.JPEG": PHOTO, "val/val_annotations.txt": "val_0.JPEG\tn01440764\t0\t32\t44\t62\n"}
    | {"wnids.txt": lines(WORDNET), "words.txt": lines(f"{c}\tthing, other" for c in WORDNET)},
    src="train",
    notes=(r"n01440764_boxes.txt' \(and 2 other files\) has values for some of the images",),
)
DATASETS["Flickr8k"] = Dataset(
    flat("Images/100026820{n}.jpg"),
    {
        "captions.txt": "image,caption\n"
        + lines(f"100026820{n}.jpg,A child {k} ." for n in range(1, 5) for k in range(3))
    },
    fields=("captions",),
    notes=("'captions.txt' has several rows for 4 images",),
)

# --- objects and masks


def coco(names: Iterable[str]) -> str:
    """Return annotations as COCO has them."""
    images = [{"id": n, "file_name": Path(name).name, "width": 16, "height": 12} for n, name in enumerate(names, 1)]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1 + n % 2, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
        for n in range(1, len(images) + 1)
    ]
    categories = [{"id": n, "name": name} for n, name in enumerate(("person", "bicycle"), 1)]
    return json.dumps({"info": {}, "licenses": [], "images": images, "annotations": boxes, "categories": categories})


def captions(names: Iterable[str]) -> str:
    raw = json.loads(coco(names))
    raw["annotations"] = [{"id": n["id"], "image_id": n["id"], "caption": "a man"} for n in raw["images"]]
    return json.dumps({key: value for key, value in raw.items() if key != "categories"})


def voc(name: str) -> str:
    return (
        f"<annotation><folder>VOC2012</folder><filename>{name}</filename><size><width>16</width><height>12</height>"
        "<depth>3</depth></size><object><name>dog</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax>"
        "</bndbox></object></annotation>"
    )


train, val = flat("train2017/00000000000{n}.jpg"), flat("val2017/00000000013{n}.jpg", 3)
DATASETS["COCO"] = Dataset(
    train | val,
    {
        "annotations/instances_train2017.json": coco(train),
        "annotations/instances_val2017.json": coco(val),
        "annotations/captions_train2017.json": captions(train),
        "annotations/captions_val2017.json": captions(val),
    },
    options=FOLDERS,
    fields=("objects", "captions"),
)
DATASETS["Pascal VOC"] = Dataset(
    flat("VOCdevkit/VOC2012/JPEGImages/2007_00000{n}.jpg", 6),
    {f"VOCdevkit/VOC2012/Annotations/2007_00000{n}.xml": voc(f"2007_00000{n}.jpg") for n in range(1, 7)}
    | {f"VOCdevkit/VOC2012/SegmentationClass/2007_00000{n}.png": MASK for n in (1, 5)}
    | {
        f"VOCdevkit/VOC2012/ImageSets/Main/{split}.txt": lines(f"2007_00000{n}" for n in numbers)
        for split, numbers in {"train": range(1, 4), "val": range(4, 7), "trainval": range(1, 7)}.items()
    },
    options=FOLDERS,
    fields=("objects",),
    notes=("boxes count pixels from 1",),
    split_of=lambda path: "train" if stem(path)[-1] in "123" else "val",
)
pets = {f"images/{c}_{n}.jpg": None for c in ("Abyssinian", "american_bulldog") for n in range(1, 4)}
DATASETS["Oxford-IIIT Pet"] = Dataset(
    pets,
    {f"annotations/trimaps/{stem(path)}.png": MASK for path in pets}
    | {f"annotations/xmls/{stem(path)}.xml": voc(path[7:]) for path in list(pets)[:2]}
    | {"annotations/list.txt": "#Image CLASS-ID SPECIES\n" + lines(f"{stem(path)} 1 1 1" for path in pets)}
    | {"annotations/README": "Pets", "images/Abyssinian_100.mat": V5},
    options={"kind": "masks"},
    error="annotations/list.txt has a value for each image, .* write it as CSV .*; or pass --from voc",
    fields=("mask.png",),
)
rooms = {
    f"images/{split}/ADE_{split[:5]}_0000000{n}.jpg": None for split in ("training", "validation") for n in range(3)
}
DATASETS["ADE20K"] = Dataset(
    rooms,
    {path.replace("images", "annotations").replace(".jpg", ".png"): MASK for path in rooms}
    | {"sceneCategories.txt": lines(f"{stem(path)} airport_terminal" for path in rooms)},
    options={**FOLDERS, "kind": "masks"},
    error=r"sceneCategories.txt has a value .* write it as CSV .*; or pass --from masks [^,]* images without it$",
    fields=("mask.png",),
)
streets = {
    f"leftImg8bit/{split}/{city}/{city}_00000{n}_000019_leftImg8bit.png": None
    for split, city in (("train", "aachen"), ("train_extra", "bamberg"), ("val", "frankfurt"), ("test", "berlin"))
    for n in range(2)
}
DATASETS["Cityscapes"] = Dataset(
    streets,
    {
        path.replace("leftImg8bit/", f"{kind}/", 1).replace("_leftImg8bit.png", f"_{kind}_{ending}"): content
        for path in streets
        for kind in ("gtCoarse" if "extra" in path else "gtFine",)
        for ending, content in {
            "labelIds.png": MASK,
            "instanceIds.png": MASK,
            "polygons.json": '{"objects":[]}',
        }.items()
    },
    options=FOLDERS,
    fields=("mask.png", "instance.png"),
)
roads = {
    f"{split}/0001TP_00669{n}.png": None
    for split, some in (("train", (0, 1)), ("val", (3,)), ("test", (5,)))
    for n in some
}
DATASETS["CamVid"] = Dataset(
    roads,
    {path.replace("/", "annot/"): MASK for path in roads}
    | {
        f"{split}.txt": lines(f"/S/{p} /S/{p.replace('/', 'annot/')}" for p in roads if p.startswith(split))
        for split in ("train", "val", "test")
    },
    options=FOLDERS,
    fields=("mask.png",),
)
scans = {
    f"kaggle_3m/{patient}/{patient}_{n}.tif": patient
    for patient in ("TCGA_CS_4941_19960909", "TCGA_CS_4942_19970222", "TCGA_DU_5849_19950405")
    for n in (1, 2)
}
DATASETS["LGG brain MRI"] = Dataset(
    scans,
    {path.replace(".tif", "_mask.tif"): MASK for path in scans}
    | {"kaggle_3m/data.csv": "Patient,gender\n" + lines(f"{patient[:12]},1" for patient in {*scans.values()})},
    fields=("mask.tif",),
    notes=("the folders 'TCGA_CS_4941.*', 'TCGA_CS_4942.*' of images with masks are their classes: .* --column",),
)
helmets = {
    f"{split}/images/img{n}_jpg.rf.{n}a{split}.jpg": None for split in ("train", "valid", "test") for n in range(3)
}
DATASETS["YOLO of Roboflow"] = Dataset(
    helmets,
    {f"{path.replace('/images/', '/labels/')[:-4]}.txt": "1 0.5 0.5 0.25 0.25\n" for path in helmets}
    | {
        "data.yaml": "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\n"
        "nc: 2\nnames: ['hat', 'head']\n",
        "README.dataset.txt": "# x",
        "README.roboflow.txt": "x",
    },
    options=FOLDERS,
    fields=("objects",),
    split_of=lambda path: path.partition("/")[0].removesuffix("id"),
)

# --- other formats and downloads

web = {f"{n // 3:05d}/{n // 3:05d}000{n % 3}.jpg": None for n in range(6)}
DATASETS["img2dataset"] = Dataset(
    web,
    {f"{path[:-4]}.txt": "a caption" for path in web}
    | {
        f"{path[:-4]}.json": json.dumps({"caption": "a caption", "url": "http://x/1", "status": "success"})
        for path in web
    }
    | {"00000_stats.json": '{"count": 3}'},
    fields=("txt", "url"),
    notes=("folders such as '00000' are parts of a download, not classes: pass --from folder",),
)


@pytest.mark.parametrize("name", DATASETS)
def test_a_well_known_dataset_packs_as_it_is(name: str, tmp_path: Path) -> None:
    dataset = DATASETS[name]
    check(dataset, dataset.write(tmp_path / "data"), tmp_path / "dst")


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
@pytest.mark.parametrize(
    "name",
    ["Food-101", "CUB-200-2011", "EuroSAT", "Intel Image Classification", "Pascal VOC", "YOLO of Roboflow", "HAM10000"],
)
def test_a_well_known_dataset_packs_as_an_archive(name: str, ending: str, tmp_path: Path) -> None:
    dataset = DATASETS[name]
    dataset.write(tmp_path / "data")
    path = tmp_path / f"archive{ending}"
    members = sorted(path for path in (tmp_path / "data").rglob("*") if path.is_file())
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for member in members:
                zipped.write(member, member.relative_to(tmp_path / "data"))
    else:
        with tarfile.open(path, "w:gz") as tarred:
            tarred.add(tmp_path / "data", ".")
    check(dataset, path, tmp_path / "dst", all_notes=False)


def test_archives_of_imagenet_are_a_class_each(tmp_path: Path) -> None:
    images = each("{c}/{c}_{n}.JPEG", *WORDNET)
    for number, (path, name) in enumerate(images.items()):
        (tmp_path / "src").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "src" / f"{name}.tar", "a") as archive:
            content = image(path, number)
            member = tarfile.TarInfo(Path(path).name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    check(Dataset(images), tmp_path / "src", tmp_path / "dst")


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (("cat/1", "cat/2", "dog/1"), ("cat", "dog")),
        (("cat/images", "dog/images"), ("cat", "dog")),
        (("cat/siam", "dog/poodle"), ("cat", "dog")),
        (("cat/00000", "dog/00000"), ("cat", "dog")),
        (("a/cat", "a/dog"), ("cat", "dog")),
    ],
)
def test_archives_in_class_folders_have_the_class_of_their_folder(
    names: Sequence[str], classes: Sequence[str], kind: str, tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        (tmp_path / "files" / name).mkdir(parents=True)
        (tmp_path / "files" / name / f"{number}.png").write_bytes(image("1.png", number))
        shutil.make_archive(str(tmp_path / "src" / name), kind, tmp_path / "files" / name)
    images = {f"/{n}.png": next(part for part in name.split("/") if part in classes) for n, name in enumerate(names)}
    check(Dataset(images, notes=("folders in it, such as",)), tmp_path / "src", tmp_path / "dst", all_notes=False)


CLOTHES = ("T - shirt / top", "Trouser", "Pullover")


def photos(count: int) -> list[bytes]:
    return [image("1.png", number) for number in range(count)]


def write_hub(root: Path) -> None:
    """Write Fashion-MNIST as Parquet, as the Hub has it."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLOTHES)})
    for split, count in (("test", 3), ("train", 6)):
        rows = {"image": [{"bytes": data} for data in photos(count)], "label": [n % 3 for n in range(count)]}
        (root / "fashion_mnist").mkdir(parents=True, exist_ok=True)
        table = datasets.Dataset.from_dict(rows, features)
        table.to_parquet(root / "fashion_mnist" / f"{split}-00000-of-00001.parquet")
    (root / "README.md").write_text("# Fashion-MNIST")


def write_tfds(root: Path) -> None:
    """Write Fashion-MNIST as TensorFlow Datasets prepares it."""
    folder = root / "fashion_mnist" / "3.0.1"
    folder.mkdir(parents=True)
    for split, count in (("test", 3), ("train", 6)):
        records = (frame(example({"image": data, "label": n % 3})) for n, data in enumerate(photos(count)))
        (folder / f"fashion_mnist-{split}.tfrecord-00000-of-00001").write_bytes(b"".join(records))
    (folder / "label.labels.txt").write_text(lines(CLOTHES))
    (folder / "dataset_info.json").write_text('{"name": "fashion_mnist", "splits": []}')
    (folder / "features.json").write_text('{"type": "tensorflow_datasets.core.features.features_dict.FeaturesDict"}')


@pytest.mark.parametrize("write", [write_hub, write_tfds])
def test_fashion_mnist_in_records_is_packed_by_split(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "data")
    with pytest.raises(SourceError, match=r"contains several splits .* pack with --split folders"):
        wt.pack(tmp_path / "data", tmp_path / "dst", dry_run=True)
    reports = wt.pack_splits(tmp_path / "data", tmp_path / "dst", split="folders", dry_run=True)
    assert {split: report.account.packed for split, report in reports.items()} == {"test": 3, "train": 6}
    for report in reports.values():
        assert report.manifest.classes == CLOTHES
        assert report.account.notes == []
        assert Counter(sample.label for sample in report.preview.samples).keys() == {0, 1, 2}


def test_the_flowers_of_kaggle_in_tfrecords_have_no_note_on_files_of_other_splits(tmp_path: Path) -> None:
    """The files of the splits have one name, and labels of ``test`` are looked for around it."""
    labels: dict[str, dict[str, int]] = {"train": {"class": 1}, "val": {"class": 0}, "test": {}}
    for split, label in labels.items():
        (tmp_path / "src" / split).mkdir(parents=True)
        records = (frame(example({"image": data, **label})) for data in photos(2))
        (tmp_path / "src" / split / "00-16x12-2.tfrec").write_bytes(b"".join(records))
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", dry_run=True)
    assert {split: report.account.packed for split, report in reports.items()} == dict.fromkeys(labels, 2)
    assert reports["test"].account.notes == ["it has no labels, unlike the split 'train'"]


REFUSED = {
    "PlantVillage of Kaggle": (
        {f"{above}{c}/1{c}.JPG": PHOTO for above in ("", "PlantVillage/") for c in crops},
        "'PlantVillage' contains the same folders: move one of the two sets away, pack .*/PlantVillage, or",
    ),
    "chest x-ray of Kaggle": (
        {f"{above}{path}": PHOTO for above in ("", "chest_xray/") for path in xrays},
        "has the folders 'test', 'train', 'val', and 'chest_xray' contains the same folders: move one",
    ),
    "Tiny ImageNet": (
        dict.fromkeys(tiny, PHOTO) | DATASETS["Tiny ImageNet"].files,
        "val_annotations.txt has a value for each image, .* or pack .*/val/images .*, and each other split on its own",
    ),
    "Fashion-MNIST as CSV": ({"train.csv": "label,pixel1,pixel2\n1,7,7\n"}, "name the table, .*/train.csv"),
    "SVHN": (
        {"train_32x32.mat": V5, "test_32x32.mat": V5},
        r"file for each of several splits \(test, train\): pack with --split",
    ),
    "Places365 of torchvision": (
        {f"{c[0]}/{c}/1.jpg": PHOTO for c in ("airfield", "alley", "bakery")},
        r"such as a/airfield \(Places365, SUN397\): move the inner folders",
    ),
    "Open Images": (
        dict.fromkeys(flat("train/000002b66c9c498{n}.jpg"), PHOTO)
        | {"train-annotations-bbox.csv": "ImageID,LabelName,XMin\n" + "000002b66c9c4981,/m/01g317,0.1\n" * 2},
        "train-annotations-bbox.csv .* rows for .*, with a list for several labels .*, or as COCO if they are boxes",
    ),
}
"""Name -> files, and what the error says: the way out."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_packed_wrong_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    files, message = REFUSED[name]
    src = Dataset({}, files).write(tmp_path / "data")
    with pytest.raises(SourceError, match=message):
        wt.pack(src, tmp_path / "dst", dry_run=True)


def check(dataset: Dataset, src: Path, dst: Path, *, all_notes: bool = True) -> None:
    """Pack a dataset without writing it, and compare images, labels, fields and notes."""
    options = dataset.options
    call: Callable[..., Any] = wt.pack_splits if "split" in options else wt.pack
    if dataset.error:
        with pytest.raises(SourceError, match=dataset.error):
            call(src, dst, dry_run=True, **{key: value for key, value in options.items() if key == "split"})
    result = call(src, dst, dry_run=True, **options)
    reports = result if isinstance(result, dict) else {"": result}
    notes = [note for report in reports.values() for note in report.account.notes]
    assert [note for note in notes if not any(re.search(allowed, note) for allowed in dataset.notes)] == []
    if all_notes:
        assert [allowed for allowed in dataset.notes if not any(re.search(allowed, note) for note in notes)] == []
    samples = 0
    for split, report in reports.items():
        expected = dataset.of_split(split)
        assert report.account.packed == len(expected)
        for sample in report.preview.samples:
            assert not sample.problem
            assert {*dataset.fields} <= {*sample.fields}
            [label] = {
                label for path, label in expected.items() if path.endswith(sample.path) or sample.path.endswith(path)
            }
            assert label is ... or label == (sample.label if sample.class_name is None else sample.class_name)
            assert (label is ...) == (sample.labels is not None)
        samples += len(expected)
    assert samples == len(dataset.images)
