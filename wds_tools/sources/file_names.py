"""What names of files, folders and archives decide. No I/O.

All patterns are here, each with names that it matches and ordinary names that it must not match: a test compares them.
The functions decide which files of a folder are a source: not hidden, not unfinished, all numbered parts of one set,
and of one split.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.storage import is_url
from wds_tools.storage.patterns import has_pattern
from wds_tools.storage.requests.failures import clean_url
from wds_tools.wording import counted

UNFINISHED = "is named like an unfinished file or a backup"
_SYSTEM_FOLDERS = {  # hidden too
    "__MACOSX": "macOS adds it to archives",
    "@eaDir": "Synology keeps thumbnails in it",
    "$RECYCLE.BIN": "Windows keeps deleted files in it",
    "System Volume Information": "Windows adds it to disks",
    "lost+found": "Linux adds it to disks",
}

_WORDS = re.compile(r"[^\W\d_]+([-_ ][^\W\d_]+)*")
_FROM_PATTERN = re.compile(r"[^/]*[*?\[{].*")
_MOST_PARTS = 1_000_000
SPLIT_OF = {  # a word that names a split -> the split
    **dict.fromkeys(["train", "training", "trainval", "trn"], "train"),
    **dict.fromkeys(["test", "testing", "tst"], "test"),
    **dict.fromkeys(["val", "valid", "validate", "validation", "minival"], "val"),
    **dict.fromkeys(["dev", "development", "eval", "evaluation"], "val"),
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
    rf"([a-z0-9]+[-_])*({SPLIT_WORDS})([-_ ]?(set|split|data|images?|imgs?|extra|\d+k?))*",
    "train, val2017, test_images, seg_train, Training, bounding_box_test, test1, TestSet, train_extra, val_5k, minival",
    "trains, test_tube, training_shoe, seg_pred, contest, valley, latest, devices",
)
SPLIT_FILE = _part(  # group 1 is the split
    rf"^(?:.*?[-_.])?({SPLIT_WORDS})(?-i:(?![a-z]|(?<=[A-Z])[A-Z]))",
    "train.parquet, mnist-test.tfrecord-00000-of-00001, train-00000-of-00002.parquet, x_dev_y.tar, TEST1.tar, testA",
    "trains.tar, contest.tar, valley.parquet, 00000.tar, holdout.parquet, TRAINS.tar",
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
    r"([a-z0-9]+[-_])*((un)?labell?ed|query|gallery|background|extra|distractors?|hold[-_]?out|t10k|ood|pred)"
    r"([-_ ]?(set|data|images?|imgs?))*",
    "labeled, unlabeled_images, query, gallery, images_background, extra, hold-out, t10k, seg_pred",
    "cat, label, backgrounds_2, extraction, food, predator",
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
NUMBERS = _part(  # of parts, at the end of a name; folds are not parts
    r"(?<!fold)(?<!fold[-_ ])(?<!\d)([-_. ]*(\d+|of|part|shard))+$",
    "ant-0, ant-00000-of-00002, train_part3, bee shard 1",
    "ant, 3d_printer, v2_ant, train_fold1, fold_12",
)
OF_IMAGES = _part(  # what an archive next to that of the images has, as Kaggle's train_masks.zip
    r"^[-_](masks?|labels?|annotations?)(?=\.)", "_masks.zip, _labels.tar", "_masked.zip, _extra.zip, .zip"
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


class SplitsError(SourceError):
    """The files belong to several splits.

    Attributes:
        places: The folder or pattern of each split; empty if not all files are in one.
    """

    def __init__(self, message: str, places: Mapping[str, str]) -> None:
        super().__init__(message)
        self.places = places


def is_hidden_name(name: str) -> bool:
    """Return whether a name of a file or folder is hidden, see `hidden_root`."""
    return name in _SYSTEM_FOLDERS or (name.startswith(".") and name not in (".", ".."))


def may_have_hidden(paths: Iterable[str]) -> bool:
    """Return whether any of many paths may have a hidden name: quick, because most trees have none."""
    text = "/" + "/".join(paths)
    return any(name in text for name in ("/.", *_SYSTEM_FOLDERS))


def hidden_root(path: str) -> str | None:
    """Return the first part of a path that ends in a hidden name; None without one.

    Names that start with a dot are hidden, and the folders that systems add to archives, folders and disks.

    >>> hidden_root(".git/a.jpg"), hidden_root("cat/.a.jpg"), hidden_root("../cat/a.jpg")
    ('.git', 'cat/.a.jpg', None)
    >>> hidden_root("cat/@eaDir/1.jpg/thumb.jpg")
    'cat/@eaDir'
    """
    parts = path.split("/")
    hidden = (i for i, part in enumerate(parts) if is_hidden_name(part))
    first = next(hidden, None)
    return None if first is None else "/".join(parts[: first + 1])


def why_hidden(root: str) -> str:
    """Return why what has a hidden name is not packed."""
    return _SYSTEM_FOLDERS.get(root.rpartition("/")[2], "its name starts with a dot")


def is_split_name(folder: str) -> bool:
    """Return whether a folder is named like a split."""
    return SPLIT_FOLDER.match(folder) is not None


def is_unfinished(name: str) -> bool:
    """Return whether a file is named like an unfinished download or a backup.

    >>> is_unfinished("a.tfrecord.tmp"), is_unfinished("a.tar~"), is_unfinished("part.tar")
    (True, True, False)
    """
    return UNFINISHED_FILE.match(name) is not None


def is_meant(path: str) -> bool:
    """Return whether a file of a folder can be a part of a source, by its path in the folder.

    >>> is_meant("a/b.parquet"), is_meant(".Trash-0/b.parquet"), is_meant("_SUCCESS"), is_meant("b.tar.part")
    (True, False, False, False)
    """
    name = posixpath.basename(path)
    return hidden_root(path) is None and name[0] not in "._" and not is_unfinished(name)


def words_of_files(paths: Sequence[str]) -> list[str]:
    """Return the names of files without numbers at their end, if these differ and are words, as classes are.

    >>> words_of_files(["ant-0.tar", "ant-1.tar", "bee-0.tar"]), words_of_files(["part-0.tar", "part-1.tar"])
    (['ant', 'bee'], [])
    """
    words = sorted({NUMBERS.without(posixpath.basename(path).partition(".")[0]) for path in paths})
    are_words = all(_WORDS.fullmatch(word) and not is_split_name(word) for word in words)
    return words if len(words) > 1 and are_words else []


def check_set(root: str, names: Sequence[str], *, given: str = "") -> None:
    """Check that files are all parts of one set, of one split, unless the user named all of them.

    ``root`` is empty if the user gave a pattern, ``given``. Names are paths below it.
    """
    unfinished = [name for name in names if is_unfinished(name)]
    if unfinished and len(unfinished) < len(names):
        raise SourceError(
            f"{shown_path(given)} matches {shown_path(unfinished[0])!r}, which {UNFINISHED}: remove it, or give a "
            "pattern that does not match it"
        )
    _check_parts(root, names, given=given)
    _check_splits(root, names, given=given)


def _check_parts(root: str, names: Sequence[str], *, given: str) -> None:
    """Check that all files of a set such as ``train-00000-of-00002`` exist, and that all state the same count."""
    sets: defaultdict[tuple[str, str, str], dict[str, dict[int, str]]] = defaultdict(dict)
    for name in names:
        folder, last = posixpath.split(name)
        if match := PART_OF_SET.match(last):
            start, index, _, count, end = match.groups()
            end = FINGERPRINT.without(end)
            if int(index) <= int(count):
                sets[folder, start, end].setdefault(count, {})[int(index)] = name
    for by_count in sets.values():
        first, *others = [next(iter(parts.values())) for parts in by_count.values()]
        if others and not all(count in given for count in by_count):
            raise SourceError(
                f"{shown_path(given or root)} has {first!r} and {others[0]!r}, which are parts of two sets of files: "
                f"remove one set, or pack one by a pattern, such as {_pattern(root, first)!r}"
            )
    lacking = {key: by_count for key, by_count in sets.items() if any(map(_missing, by_count, by_count.values()))}
    for _, start, end in () if given else lacking:
        same = [by_count for (_, *ends), by_count in sets.items() if ends == [start, end]]  # perhaps in other folders
        for count, parts in same[0].items():
            together = {index: name for by_count in same for index, name in by_count.get(count, {}).items()}
            if missing := _missing(count, together):
                first, which = next(iter(parts.values())), quoted(f"{index:0{len(count)}}" for index in missing)
                raise SourceError(
                    f"{shown_path(root)} has {counted(len(together), 'file')} such as {first!r}, and their names state "
                    f"{int(count):,}: {which} {'is' if len(missing) == 1 else 'are'} missing: copy what is missing, or "
                    f"pack the others by a pattern, such as {_pattern(root, first)!r}"
                )


def _missing(count: str, parts: Mapping[int, str]) -> list[int]:
    """Return the numbers of missing parts, which are counted from 0 or from 1."""
    first = 1 if 0 not in parts and int(count) in parts else 0
    return sorted({*range(first, first + int(count))} - parts.keys()) if int(count) <= _MOST_PARTS else []


def _pattern(root: str, name: str) -> str:
    """Return a pattern for a set of which a file is a part."""
    folder, last = posixpath.split(shown_path(posixpath.join(root, name)))
    return posixpath.join(folder, FINGERPRINT.without(PART_OF_SET.without(last, r"\1*\3\4\5"), "-*"))


def _check_splits(root: str, names: Sequence[str], *, given: str) -> None:
    """Check that the files belong to one split, unless the user named all of them.

    ``root`` is empty if the user gave a pattern, ``given``. Names are paths below it.
    """
    by_split, are_known = _by_split(names, given=given)
    splits = sorted(by_split)
    archives = [name for name in names if name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))]
    described = next((name for name in archives if ANNOTATIONS.match(posixpath.basename(name))), None)
    if described is not None and len(archives) > 1 and len(splits) > 1 and not given:
        raise SourceError(
            f"{shown_path(root)} has {described!r}, which is named like annotations, next to archives of images: "
            "unpack all of them into one folder, and pack this folder"
        )
    if len(splits) > 1 and not _are_named(splits, given):
        places = {split: _place(by_split[split], names) for split in splits}
        paths = {split: posixpath.join(root, place) for split, place in places.items() if place}
        are_all = len(paths) == len(splits) and sum(map(len, by_split.values())) == len(names) and not given
        folders = {split_value(folder) for name in names for folder in name.split("/")[:-1]}
        by_name = given or not any(map(is_split_name, folders))
        depth = 0 if given else names[0].count("/")
        above = posixpath.join(shown_path(root or posixpath.dirname(given)), *["*"] * depth)
        written = [_as_written(split, by_split[split]) for split in splits]
        first = shown_path(paths.get(splits[0]) or posixpath.join(above, f"*{written[0]}*"))
        together = f"*{{{','.join(written)}}}*" if by_name else f"*{posixpath.splitext(names[0])[1]}"
        at_once = "with --split folders (pack_splits), or " if are_all else ""
        what = "several splits" if are_known else "a split next to other files"
        raise SplitsError(
            f"{shown_path(given or root)} contains {what} ({', '.join(splits)}): pack {at_once}one at a time, "
            f"such as '{first}'; the pattern '{posixpath.join(above, together)}' packs them together",
            paths if are_all else {},
        )


def _as_written(split: str, members: Sequence[str]) -> str:
    """Return a split as it is spelled in the names of its files, such as ``TrainData.zip``, for a pattern."""
    name = posixpath.basename(members[0])
    start = name.lower().find(split.lower())
    return split if start < 0 else name[start : start + len(split)]


def _place(members: Sequence[str], names: Sequence[str]) -> str:
    """Return the folder that has only the files of a split, or a pattern that matches only these; empty without one."""
    folder = posixpath.commonpath([posixpath.dirname(name) for name in members])
    if has_pattern(folder):
        return ""
    if folder and all(name in members for name in names if name.startswith(f"{folder}/")):
        return folder
    last, extensions = [*map(posixpath.basename, members)], {posixpath.splitext(name)[1] for name in members}
    start, extension = posixpath.commonprefix(last).rstrip("0123456789"), min(extensions) * (len(extensions) == 1)
    pattern = posixpath.join(folder, f"{start}*{extension}" if len(last) > 1 else last[0])
    matched = [name for name in names if fnmatchcase(name, pattern) and posixpath.dirname(name) == folder]
    return pattern if start and sorted(matched) == sorted(members) else ""


def _are_named(splits: Iterable[str], given: str) -> bool:
    """Return whether patterns name all splits, not counting the folders above what they match, such as ``trainval``."""
    patterns = " ".join(match[0] for word in given.lower().split() if (match := _FROM_PATTERN.search(word)))
    return all(split.lower() in patterns for split in splits)


def mixed_splits(names: Sequence[str], given: str) -> dict[str, str]:
    """Return a pattern for each split of files if there are several, and the pattern that the user gave lacks some."""
    by_split, _ = _by_split(names, given=given)
    splits = {_as_written(split, members): members for split, members in sorted(by_split.items())}
    if len(splits) < 2 or _are_named(splits, given):
        return {}
    return {split: _place(members, names) or f"*{split}*.tar" for split, members in splits.items()}


def _by_split(names: Sequence[str], *, given: str) -> tuple[dict[str, list[str]], bool]:
    """Return files by split, and whether several are named like splits; none if no split is next to another part.

    Each folder that is named like a split is one. Files whose names differ before or after the word for the split, such
    as ``en-train.tar`` and ``fr-train.tar``, or ``test_ood.tar`` and ``test.tar``, are separate splits. Numbers at
    the end of a name are numbers of parts, unless another name differs only in having none. A pattern with the word for
    the split is for all of them.
    """
    paths = [[*map(split_value, name.split("/")[:-1]), posixpath.basename(name)] for name in names]
    levels = (i for parts in paths for i, part in enumerate(parts[:-1]) if is_split_name(part))
    level = next(levels, len(names[0]))
    split_of: dict[str, tuple[str, str, str, str]] = {}  # what is before it, split, what follows, that without numbers
    others: defaultdict[str, list[str]] = defaultdict(list)
    is_split = False
    for name, (*folders, last) in zip(names, paths, strict=True):
        folder = "" if given else next(filter(is_split_name, folders), "".join(folders[level : level + 1]))
        part = folder or NUMBERS.without(last.partition(".")[0])
        is_split |= is_split_name(part)
        if folder and is_split_name(folder):
            split_of[name] = "", folder, "", ""
        elif not folder and (match := SPLIT_FILE.match(last)):
            is_named = given and _are_named([match[1]], given)
            ending = "" if is_named else OF_IMAGES.without(COPY.without(FINGERPRINT.without(last[match.end(1) :])))
            before = "" if is_named else last[: match.start(1)].rstrip("-_.")
            start = NUMBERS.without(before)
            if start and (before + "_")[len(start)].isdigit():  # split1_train.tar: not a part like 01_train.tar
                start = before
            start += last[match.start(1) - 1] * bool(start)
            split_of[name] = start, match[1].lower(), ending, ".".join(map(NUMBERS.without, ending.split(".")))
        else:
            others[part].append(name)
    exact = {(start, split, ending) for start, split, ending, _ in split_of.values()}
    by_ending: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, (start, split, ending, bare) in split_of.items():
        by_ending[start, split, ending if (start, split, bare) in exact else bare].append(name)
    counts = Counter(split for _, split, _ in by_ending)
    end = posixpath.commonprefix([ending[::-1] for *_, ending in by_ending]).rpartition(".")  # reversed
    most = len("".join(end[:2]))
    is_one_start = len({start for start, *_ in by_ending}) < 2
    have_further = len(by_ending) > 1 and any(len(ending) == most for *_, ending in by_ending)
    are_several = len(counts) > 1 or not is_one_start or have_further
    if not are_several and (not is_split or len(counts) + len(others) < 2):
        return {}, False
    by_split = {
        split if counts[split] == 1 else start * (not is_one_start) + split + ending[: len(ending) - most]: members
        for (start, split, ending), members in by_ending.items()
    }
    return {**({} if given and are_several else others), **by_split}, are_several


def split_value(folder: str) -> str:
    """Return the name of a folder, or the value in ``split=train``. Values of other columns are not splits."""
    column, _, value = folder.rpartition("=")
    return value if column in ("", "split") else folder


def shown_path(path: str) -> str:
    """Return a path for messages: a URL without user, password and query."""
    return clean_url(path) if is_url(path) else path
