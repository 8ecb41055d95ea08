"""What names of files, folders and archives decide: each pattern, and names on both sides of it. No I/O.

A test compares each pattern with its names. A new pattern needs ordinary names that it must not match.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SPLIT_OF = {  # a word that names a split -> the split
    **dict.fromkeys(["train", "training", "trainval", "trn"], "train"),
    **dict.fromkeys(["test", "testing", "tst"], "test"),
    **dict.fromkeys(["val", "valid", "validation", "dev", "development", "eval", "evaluation"], "val"),
}
SPLIT_WORDS = "|".join(sorted(SPLIT_OF, key=len, reverse=True))
_PARTS = "part|batch|shard|chunk|vol|volume|disc|disk|fold|set|image|img|photo|picture|file|data|archive|folder"


class NamePattern(NamedTuple):
    """A pattern of names; upper and lower case are the same.

    Attributes:
        regex: What it matches: the whole name, unless it begins with ``^`` or ends with ``$``.
        names: Names that it matches.
        others: Names that it does not match.
    """

    regex: re.Pattern[str]
    names: tuple[str, ...]
    others: tuple[str, ...]

    def match(self, name: str) -> re.Match[str] | None:
        """Return the match of a name; None if it does not match."""
        return self.regex.search(name)

    def without(self, name: str, new: str = "") -> str:
        """Return a name with ``new`` in place of what matches."""
        return self.regex.sub(new, name)


def _part(regex: str, names: str, others: str) -> NamePattern:
    """Return a pattern of a part of a name. Names are separated by commas."""
    compiled = re.compile(regex, re.IGNORECASE | re.DOTALL)
    return NamePattern(compiled, tuple(names.split(", ")), tuple(others.split(", ")))


def _whole(regex: str, names: str, others: str) -> NamePattern:
    """Return a pattern of whole names."""
    return _part(rf"^(?:{regex})\Z", names, others)


SPLIT_FOLDER = _whole(
    rf"([a-z0-9]+[-_])*({SPLIT_WORDS})([-_ ]?(set|split|data|images?|imgs?|extra|\d+))*",
    "train, val2017, test_images, seg_train, Training, bounding_box_test, test1, TestSet, train_extra",
    "trains, test_tube, training_shoe, seg_pred, contest, valley, latest, devices",
)
SPLIT_FILE = _part(  # group 1 is the split
    rf"^(?:.*?[-_.])?({SPLIT_WORDS})(?![a-z])",
    "train.parquet, mnist-test.tfrecord-00000-of-00001, train-00000-of-00002.parquet, my_dev_box.tar, TEST1.tar",
    "trains.tar, contest.tar, valley.parquet, 00000.tar, holdout.parquet",
)
SPLIT_AND_CLASS = _whole(  # group 1 is the split, group 2 the class
    rf"({SPLIT_WORDS})[-_ ]?(.+)", "trainA, test_cat, val-dog", "cat_train, horse, seg_test"
)
TEST_FOLDER = _whole(
    r"(test|testing|val|validation|unlabell?ed)([-_ ]?(set|data|images?|imgs?))*",
    "test, Validation, unlabeled_images",
    "train, valid, test_tube, contest",  # train and valid may be classes, of vehicles and documents
)
OTHER_PART = _whole(  # a class may have such a name too
    r"([a-z0-9]+[-_])*((un)?labell?ed|query|gallery|background|extra|distractors?|holdout)"
    r"([-_ ]?(set|data|images?|imgs?))*",
    "labeled, unlabeled_images, query, gallery, images_background, extra",
    "cat, label, backgrounds_2, extraction",
)
IMAGES_FOLDER = _whole(  # the folder of all images
    r"(raw|all)?[-_ ]?(images?|imgs?|jpe?gs?|pngs?|photos?|pictures?|jpegimages|data)([-_]?\d)?",
    "Images, raw-img, jpg, JPEGImages, all_photos, data, images_2",
    "cat, pets, imagery, database, photographer",
)
SHARD = _whole(
    r"\d{4,}|(shard|part|chunk)[-_]?\d+", "00000, shard-000001, part_1, chunk2", "1, 10, 007, party1, n01440764"
)
PART = _whole(  # of a dataset: of several folders or archives
    rf"(.*[\W\d_])?({_PARTS})(e?s)?[\W_]*\d+"
    r"|.*\d{8}T\d{6}Z([-_]\d+)*"  # Google
    r"|\d{3}[A-Z_]{5}"  # cameras
    r"|(19|20)\d\d",
    "batch_1, photos_part2, images_001, HAM10000_images_part_1, vol01, fold3, 100CANON, 2021, "
    "takeout-20240101T000000Z-001, drive-download-20240101T000000Z-1-002",
    "n0, c9, s40, room1, 2CV, v1.0, -1, class_1, person_001, n01440764, n000001, 001.Black_footed_Albatross, "
    "0, 14, 101, model3, subset, Apple Red 1",
)
COPY = _part(
    r" ?\(\d+\)(?=\.|$)| ?- Copy(?=\.|$)|[-_ ]copy\d*(?=\.|$)|-checkpoint(?=\.|$)",
    "a (1).parquet, New folder (2), a - Copy.tar, a_copy2.csv, train-checkpoint.csv",
    "a.parquet, copy.tar, photocopy.tar, checkpoint.tar, f(x).csv, 2 (a).jpg",
)
PART_OF_SET = _whole(  # start, number, "of", count, end
    r"(.*?)(\d+)([-_ ]?of[-_ ]?)(\d+)(.*)",
    "train-00000-of-00002.parquet, a_1_of_2.tar, x.tfrecord-00000-of-00001",
    "proof.tar, 1.tar, part-of-2.tar, office31.tar",
)
FINGERPRINT = _part(  # of the content, as in train-00000-of-00002-b4aaeceff1d90ecb.parquet, or of the program's run
    r"[-_]([0-9a-f]{16,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(?=[-_.]|$)",
    "-of-00002-b4aaeceff1d90ecb.parquet, part-0-6f3c1d2e-0000-4d5b-9c3e-0123456789ab.c000.snappy.parquet",
    "train-00000.parquet, cat-20240101.parquet, face-deadbeef.tar",
)
NUMBERS = _part(  # of parts, at the end of a name
    r"([-_. ]*(\d+|of|part|shard))+$", "ant-0, ant-00000-of-00002, train_part3, bee shard 1", "ant, 3d_printer, v2_ant"
)
UNFINISHED_FILE = _whole(
    r".*(~|\.(tmp|temp|part|partial|filepart|crdownload|download|incomplete|aria2|bak|backup|old|orig|swp))",
    "a.tfrecord.tmp, a.tar~, a.zip.crdownload, labels.csv.bak",
    "part.tar, old.jpg, template.csv, a.backup.tar, part-0.parquet",
)
ANNOTATIONS = _part(  # of archives, as COCO has them
    r"^(.*[-_.])?(annotations?|annots?|labels?)(?![a-z])",
    "annotations_trainval2017.zip, VOC_labels.tar, labels.zip",
    "train2017.zip, labeled.zip, unlabeled2017.zip, labelsA.zip",
)
_LABELS = (
    "label|target|anno[st]|categ|species|breed|caption|attribut(?!ion)|truth|metadata|(?<![a-z])(meta|gt|y)(?![a-z])"
)
LABELS_FILE = _part(
    _LABELS,
    "imagelabels.mat, list_attr_celeba_attributes.txt, val_annotations.txt, gt.txt, y.npy, HAM10000_metadata.xlsx",
    "train.txt, ATTRIBUTION.txt, images.txt, body.txt, background.npy, features.npy, pairs.txt",
)
LABELS_OR_SPLIT_FILE = _part(
    rf"{_LABELS}|class|(?<![a-z])({SPLIT_WORDS})(?![a-z])",
    "classes.txt, train.csv, test1.txt, labels.csv",
    "trains.csv, images.csv, contest.txt, valley.csv, features.csv",
)
LABELS_DOCUMENT = _whole(
    r"(image_?)?(labels?|annotations?|captions?|ground_?truth)\.[a-z]+",
    "labels.md, annotations.pdf, image_labels.doc",
    "labelling.md, how_to_label.pdf, labels_guide.md",
)
TEMPLATE = _part(  # of predictions
    r"(^|/)[^/]*submission[^/]*\.[a-z]+$",
    "sample_submission.csv, data/sampleSubmission.csv",
    "submissions/labels.csv, train.csv, submit.csv",
)
ABOUT_ALL = _whole(  # files about the dataset or its programs, which never have labels
    r"(readme|licen[cs]e|attribution|changelog|contributing|requirements|makefile|md5|sha\d+"
    r"|(md5|sha\d*|b2|check)[-_]?sums?)([-_.].*)?"
    r"|_(common_)?metadata|_success|_(started|committed)_\d+|.*\.crc"  # Spark, Hive, Dask, Databricks
    r"|.*\.cache",  # Ultralytics
    "README.md, LICENSE, license_agreement.txt, readme.dataset.txt, SHA256SUMS, md5sum.txt, _SUCCESS, "
    "_common_metadata, .part-00000.snappy.parquet.crc, labels.cache",
    "labels.txt, attributes.txt, cache.txt, makefiles.csv, readmission.csv, metadata, _classes.csv, success.txt",
)
