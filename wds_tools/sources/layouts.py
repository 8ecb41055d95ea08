"""How the files of a tree are arranged: which are images, splits, classes, and further fields of an image.

Pure functions of names, the same for folders, archives and URLs.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.format.sample import CONVERTED_EXTENSIONS, STORED_EXTENSIONS
from wds_tools.sources.file_names import (
    COPY,
    IMAGES_FOLDER,
    NUMBERS,
    OTHER_PART,
    PART,
    SHARD,
    SPLIT_AND_CLASS,
    SPLIT_OF,
    TEST_FOLDER,
    hidden_root,
    is_split_name,
)
from wds_tools.sources.inputs import with_same
from wds_tools.wording import counted

_JPEG = (".jfif", ".jpe", ".pjpeg", ".pjp")  # further extensions of JPEG
EXTENSIONS = (*STORED_EXTENSIONS, *CONVERTED_EXTENSIONS, *_JPEG)  # all that ``ImageFolder`` reads, and more
ARRAY_EXTENSIONS = (".h5", ".hdf5", ".hdf", ".he5", ".mat", ".npy", ".npz", ".pt", ".pth")
_MOST = 0.9  # share of images in the folders of splits; the others are strays
MAX_LEVEL = 4  # levels of folders that are searched for splits
_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*")
_LOOKED_AT = 1000  # names of images
_NUMBER = re.compile(r"\d+")
_NUMBERED = re.compile(r"(.*?[A-Za-z].*?)[\W_]*\d+")  # of an image: group 1 may be its class, such as n01440764
_SYNSET = re.compile(r"n\d{8}")
IF_PARTS = "if they are parts, patients or videos, pass --column label= (columns={'label': ''}) to pack without labels"
FIELDS = ("txt", "caption", "json", "cls", "npy", "npz", "xml")  # extensions of further fields of an image
_MASK_FIELD = re.compile(
    r"((instance_)?train_ids|colou?r|mask_\d+|(mask|seg|segmentation|alpha|matte|labels?|instances?|panoptic)\d*)"
)
SHARD_TABLE = "is the table that img2dataset writes about a folder or shard, and into .json files too"
_CLASS_LISTS = ("classes", "class_names", "categories")  # names of tables without images
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".pq")  # that may be about images


def is_image_name(name: str) -> bool:
    """Return whether a file name has the extension of an image."""
    return name.lower().endswith(EXTENSIONS)


def image_endings(names: Iterable[str]) -> tuple[str, ...]:
    """Return the extensions of images that occur in many names, as they are written there.

    >>> sorted(image_endings(["1.jpg", "a/2.JPEG", "b.txt", "c.d/jpg"]))
    ['.JPEG', '.jpg']
    """
    return tuple(filter(is_image_name, {name[name.rfind(".") :] for name in names}))


def names_a_file(value: Any) -> bool:
    """Return whether a value has the extension of an image."""
    return isinstance(value, str) and is_image_name(value.strip())


def is_mask_field(field: str) -> bool:
    """Return whether a field has a value for each pixel of its image; a depth may have another size.

    >>> is_mask_field("mask.png"), is_mask_field("train_ids.png"), is_mask_field("depth.png"), is_mask_field("mask.npy")
    (True, True, False, False)
    """
    word, _, extension = field.rpartition(".")
    return f".{extension}" in EXTENSIONS and _MASK_FIELD.fullmatch(word) is not None


def is_shard_table(name: str) -> bool:
    """Return whether a file is named like the tables of img2dataset, one for each folder or shard.

    >>> is_shard_table("data/00000.parquet"), is_shard_table("labels.parquet")
    (True, False)
    """
    stem, _, extension = name.rpartition("/")[2].rpartition(".")
    return extension == "parquet" and SHARD.match(stem) is not None


def stored_name(field: str) -> str:
    """Return the name of a field in a dataset: images of types that become PNG are called so, and JPEGs ``jpg``.

    >>> stored_name("mask.bmp"), stored_name("mask.tif"), stored_name("depth.jfif")
    ('mask.png', 'mask.tif', 'depth.jpg')
    """
    word, _, extension = field.rpartition(".")
    new = "png" if f".{extension}" in CONVERTED_EXTENSIONS else "jpg" if f".{extension}" in _JPEG else extension
    return f"{word}.{new}" if word else new


def is_image_set(path: str) -> bool:
    """Return whether a file is a list of images as VOC has them.

    >>> is_image_set("VOC2012/ImageSets/Main/train.txt"), is_image_set("train.txt")
    (True, False)
    """
    return path.endswith(".txt") and "ImageSets" in path.split("/")


def split_of(path: str) -> str:
    """Return the split that a file belongs to, by its folders: "train", "val", "test", or the name of the folder.

    >>> split_of("photos/train_images/1.jpg"), split_of("valid/a/1.jpg"), split_of("images/1.jpg")
    ('train', 'val', '')
    """
    folder = split_folder(path)
    return split_in(folder) or folder


def split_folder(path: str) -> str:
    """Return the folder of a file that is named like a split; empty without one."""
    return next(filter(is_split_name, path.split("/")[:-1]), "")


def split_of_table(path: str) -> str:
    """Return the split that a table is about: by its folders, or by a word in its name.

    >>> split_of_table("train/labels.csv"), split_of_table("ISIC_Training_Truth.csv"), split_of_table("valLabels.csv")
    ('train', 'train', 'val')
    >>> split_of_table("labels.csv"), split_of_table("train_test_split.csv")
    ('', '')
    """
    return split_of(path) or split_in(file_stem(path))


def splits_of_tables(paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the table or file of arrays of each split, and other tables.

    Tables with one word for a split have whole names, unless these differ only in numbers. Lists of classes and JSON
    files without a word for a split are not tables. Arrays are of splits only if each has one file: two may be images
    and their labels.

    >>> splits_of_tables(["train.csv", "train_extra.csv", "valLabels.csv", "holdout.csv", "stats.json"])[0].keys()
    dict_keys(['train', 'train_extra', 'val', 'holdout'])
    >>> splits_of_tables(["train.csv", "test_1.csv", "test_2.csv", "all.csv", "classes.csv"])
    ({'train': 'train.csv'}, ['all.csv', 'test_1.csv', 'test_2.csv'])
    >>> splits_of_tables(["train.h5", "val.h5"])[0].keys(), splits_of_tables(["x_train.npy", "y_train.npy"])
    (dict_keys(['train', 'val']), ({}, []))
    """
    by_split, tables = dict[str, list[str]](), dict[str, str]()
    for path in paths:
        stem = file_stem(path)
        split = split_of_table(path) or stem * (OTHER_PART.match(stem) is not None)
        if split or not (path.lower().endswith(".json") or stem.lower() in _CLASS_LISTS):
            by_split.setdefault(split, []).append(path)
    others = by_split.pop("", [])
    are_single = not others and all(len(same) == 1 for same in by_split.values())
    without_arrays = [path for path in paths if not path.lower().endswith(ARRAY_EXTENSIONS)]
    if not are_single and len(without_arrays) < len(paths):
        return splits_of_tables(without_arrays)
    for split, same in by_split.items():
        stems = Counter(NUMBERS.without(file_stem(path)) for path in same)
        for path in same:
            name = split if len(same) == 1 else file_stem(path)
            if name in tables or stems[NUMBERS.without(file_stem(path))] > 1:
                others.append(path)
            else:
                tables[name] = path
    return tables, others


def split_in(text: str) -> str:
    """Return the split that is a word of a text; empty if none is, or several are."""
    splits = {SPLIT_OF[word.lower()] for word in _WORD.findall(text) if word.lower() in SPLIT_OF}
    return splits.pop() if len(splits) == 1 else ""


class Arrangement(NamedTuple):
    """Where the images of a tree are.

    Attributes:
        base: Folders that contain all images and are not classes, such as ``photos/``; empty without such folders.
        level: Level of the folders of splits below ``base``; None without splits.
        splits: Their names: those that are named like splits first, then the folders next to them, sorted.
    """

    base: str = ""
    level: int | None = None
    splits: tuple[str, ...] = ()


def arrangement(folders: Mapping[str, int], *, where: str, in_archive: bool = False) -> Arrangement:
    """Return where images are. A few images outside the other folders do not change it.

    >>> arrangement({"photos/train/cat/": 1, "photos/val/cat/": 1}, where="photos")
    Arrangement(base='photos/', level=0, splits=('train', 'val'))
    >>> arrangement({"cat/train/": 1, "dog/test/": 1}, where="photos")
    Arrangement(base='', level=1, splits=('test', 'train'))

    Args:
        folders: Folder, as in `folder_of` -> number of images in it.
        where: Name of the tree, for messages.
        in_archive: Whether this is an archive, where a folder that contains all class folders is not a class.
    """
    counts = {tuple(folder.split("/")[:-1]): count for folder, count in folders.items() if folder}
    for level in range(min(MAX_LEVEL, max(map(len, counts), default=0))):
        there = {folder: count for folder, count in counts.items() if len(folder) > level}
        names = sorted({folder[level] for folder in there})
        splits = names if _are_splits(names) else list(filter(is_split_name, names))
        if len(splits) > 1 and len(above := {folder[:level] for folder in there if folder[level] in splits}) == 1:
            there = {folder: count for folder, count in there.items() if folder[:level] in above}  # not docs/img
            names = sorted({folder[level] for folder in there})
        inside: dict[str, set[str]] = {name: set() for name in names}  # folder -> folders in it
        for folder in there:
            inside[folder[level]].update(folder[level + 1 : level + 2])
        above = {folder[:level] for folder in there}
        is_common = len(above) == 1 < len(names)
        share = sum(there.values()) / sum(counts.values())
        is_divided = len(splits) > 1 or (is_common and _are_parts(inside))
        if (splits == names and share == 1) or (is_divided and share > _MOST):
            base = "".join(f"{name}/" for name in above.pop()) if len(above) == 1 else ""
            _check_once("/".join([where, *base.split("/")[:-1]]), inside)
            return Arrangement(base, 0 if base else level, (*splits, *(name for name in names if name not in splits)))
        if is_divided:
            elsewhere = "/".join(min(folder for folder in counts if folder not in there)) or "the upper folder"
            raise SourceError(
                f"{where} has folders named like splits ({quoted(names)}), and images outside of them, in "
                f"{elsewhere!r}: move these into a split too, or pass --from folder (kind='folder') if the upper "
                "folders are the classes and no folder is a split"
            )
        flat = next((name for name in names if not inside[name] and TEST_FOLDER.match(name)), "")
        if is_common and share > _MOST and flat:
            raise SourceError(
                f"{where} has images in {flat!r}, which is named like a part of a dataset, next to folders such as "
                f"{next(name for name in names if name != flat)!r}: move {flat!r} away, or pass --from folder "
                "(kind='folder') if it is a class"
            )
    return Arrangement(common_folder(counts) if in_archive else "")


def _are_splits(names: Sequence[str]) -> bool:
    """Return whether names differ only in a word for a split: ``DIV2K_train_HR`` and ``DIV2K_valid_HR``."""
    forms = {_WORD.sub(lambda word: "" if word[0].lower() in SPLIT_OF else word[0], name) for name in names}
    return len(forms) == 1 < len({split_in(name) for name in names} - {""}) == len(names)


def _are_parts(inside: Mapping[str, Set[str]]) -> bool:
    """Return whether folders are parts of a dataset by their names, or because one is a split like another one.

    The other one has no folders, or one that the split has too; next to ``train``, ``test_ood`` is a part by its name.
    ``inside`` has the folders in each of them.
    """
    splits = list(filter(is_split_name, inside))
    in_split = inside[splits[0]] if len(splits) == 1 else set()
    others = [folders for name, folders in inside.items() if name not in splits]
    like_it = in_split and any(not folders or folders & in_split for folders in others)
    others_like_it = all(name in splits or OTHER_PART.match(name) or (splits and split_in(name)) for name in inside)
    return bool(like_it) or others_like_it


def splits_with_classes(paths: Iterable[str]) -> list[str]:
    """Return the folders that are all named like splits, if one of them has folders, which must then be the classes.

    >>> splits_with_classes(["a/train/cat/1.jpg", "a/test/2.jpg"]), splits_with_classes(["train/1.jpg", "test/2.jpg"])
    (['test', 'train'], [])
    """
    folders = {tuple(path.split("/")[:-1]) for path in paths}
    above = posixpath.commonprefix([*folders])
    level = next((i for i, name in enumerate(above) if is_split_name(name)), len(above))
    are_splits = all(len(folder) > level and is_split_name(folder[level]) for folder in folders)
    have_folders = any(len(folder) > level + 1 for folder in folders)
    return sorted({folder[level] for folder in folders}) if are_splits and have_folders else []


def first_folders(paths: Iterable[str]) -> list[str]:
    """Return the first folders in which images differ, without splits; none if there is only one.

    >>> first_folders(["a/train/cat/1.jpg", "a/train/dog/1.jpg"])
    ['cat', 'dog']
    >>> first_folders(["a/train/1.jpg", "a/test/1.jpg"])
    []
    """
    folders = {tuple(name for name in path.split("/")[:-1] if not is_split_name(name)) for path in paths}
    level = len(posixpath.commonprefix([*folders]))
    names = sorted({folder[level] for folder in folders if len(folder) > level})
    return names if len(names) > 1 else []


def common_folder(folders: Iterable[tuple[str, ...]]) -> str:
    """Return the folders that contain all class folders.

    >>> common_folder([("a", "cat"), ("a", "dog")]), common_folder([("cat",), ("cat",)])
    ('a/', '')
    """
    common = posixpath.commonprefix([folder[:-1] for folder in folders])
    return "".join(f"{name}/" for name in common)


def folder_of(path: str) -> str:
    """Return the folders of a path.

    >>> folder_of("cat/house/1.jpg"), folder_of("1.jpg")
    ('cat/house/', '')
    """
    return path[: path.rfind("/") + 1]


def file_stem(path: str) -> str:
    """Return the name of a file of a tree, without folders and extension.

    >>> file_stem("cat/1.a.jpg"), file_stem("1")
    ('1.a', '1')
    """
    return posixpath.splitext(posixpath.basename(path))[0]


def class_folder(path: str) -> str | None:
    """Return the class of an image: the first folder of its path; None without a folder."""
    folder, slash, _ = path.partition("/")
    return folder if slash else None


def check_stems(paths: Sequence[str], *, where: str) -> None:
    """Check that images are not in pairs such as ``1.jpg`` and ``1.png``, an image and its mask."""
    ending = paths[0][paths[0].rfind(".") :] if paths else ""
    if all(path.endswith(ending) for path in paths):
        return
    stems = with_same(paths, lambda path: path[: path.rfind(".")])
    same = [group for group in stems.values() if len({path.rpartition(".")[2].lower() for path in group}) > 1]
    if 2 * sum(map(len, same)) >= len(paths):
        raise SourceError(
            f"{where} has images with one name and two extensions, such as {same[0][0]!r} and {same[0][1]!r}: put "
            "masks into another folder, such as images/1.jpg and masks/1.png, or name them 1_mask.png (--from "
            "masks), or pass --from folder (kind='folder') if each is a separate image"
        )


def are_shard_folders(folders: Collection[str]) -> bool:
    """Return whether folders are named like shards, as ``00000/`` or ``shard-000001/``."""
    return bool(folders) and all(map(SHARD.match, folders))


def wrappers(paths: Iterable[str], *, parent: str) -> list[str]:
    """Return the folders that contain all images and are not classes, the upper one first; ``parent`` is above them.

    They have a usual name, or that of the folder above, or, on the first levels, only folders in them.

    >>> wrappers(["images/1.jpg", "images/2.jpg"], parent=""), wrappers(["cat/1.jpg"], parent="")
    (['images'], [])
    >>> wrappers(["pets/cat/1.jpg", "pets/owl/1.jpg"], parent=""), wrappers(["pets/cat/1.jpg", "owl/1.jpg"], parent="")
    (['pets'], [])
    """
    inside, names = [path for path in paths if "/" in path], list[str]()
    while len(first := set(map(class_folder, inside))) == 1:
        only = str(first.pop())
        is_deep = all(path.count("/") > 1 for path in inside) and len(names) < MAX_LEVEL
        if not (is_deep or only == parent or is_role(only)):
            break
        inside = [below for path in inside if "/" in (below := path.removeprefix(f"{only}/"))]
        parent = only
        names.append(only)
    return names


def is_role(folder: str) -> bool:
    """Return whether a folder has a usual name for the folder of all images."""
    return IMAGES_FOLDER.match(folder) is not None


def check_classes(paths: Iterable[str], *, where: str) -> None:
    """Check that the first folders of images can be classes."""
    below: dict[str, dict[int, set[str]]] = {}  # folder -> level -> paths of the folders in it
    for folders in {tuple(path.split("/")[:-1]) for path in paths} - {()}:
        levels = below.setdefault(folders[0], {})
        for level in range(2, len(folders) + 1):
            levels.setdefault(level, set()).add("/".join(folders[1:level]))
    folders_in = {name: sorted(levels.get(2, ())) for name, levels in below.items()}
    initials = {name: {folder[:1].lower() for folder in inner} for name, inner in folders_in.items()}
    if len(below) > 1 and all(letters == {name.lower()} for name, letters in initials.items()):
        letter, (folder, *_) = min(folders_in.items())
        raise SourceError(
            f"{where} has folders named by the first letter of the folders in them, such as {letter}/{folder} "
            f"(Places365, SUN397): move the inner folders to {where}, for example with `mv */* .`, or pass --from "
            "folder (kind='folder') if the letters are the classes"
        )
    _check_once(where, folders_in)
    for level in range(2, max(map(len, below.values()), default=0) + 2):
        inner = [levels[level] for levels in below.values() if len(levels.get(level, ())) > 1]
        common = set.intersection(*inner) if inner else set()
        if len(inner) > 1 and len(common) > 1:
            raise SourceError(
                f"{where} has {quoted(sorted(below))}, which contain the same folders ({quoted(sorted(common))}): pack "
                "one of them if these are the classes, or pass --from folder (kind='folder') if the upper folders are"
            )
    by_split: dict[str, set[str]] = {}
    for name in below:
        if (parts := SPLIT_AND_CLASS.match(name.lower())) is not None:
            by_split.setdefault(SPLIT_OF[parts[1]], set()).add(parts[2])
    first, *others = by_split.values() or [set()]
    if others and all(classes == first for classes in others) and len(first) * len(by_split) == len(below):
        raise SourceError(
            f"{where} has folders named like splits and classes ({quoted(sorted(below))}): move them into folders such "
            "as train/A and test/A, pack one of them, or pass --from folder (kind='folder') if all are classes"
        )


def _check_once(where: str, inside: Mapping[str, Collection[str]]) -> None:
    """Check that no folder contains the other folders once more; ``inside`` has the folders in each of them."""
    for name, inner in inside.items():
        if len(common := sorted({*inner} & (inside.keys() - {name}))) > 1:
            raise SourceError(
                f"{where} has the folders {quoted(common)}, and {name!r} contains the same folders: move one of the "
                f"two sets away, pack {where}/{name}, or pass --from folder (kind='folder') if all are classes"
            )


def splits_error(
    where: str, splits: Sequence[str], *, are_folders: bool, base: str = "", given: str | None = None
) -> SourceError:
    """Return the error for a tree of several splits; if they are only folders, these may also be classes.

    ``given`` is an option that is needed as well, if they cannot be classes. ``base`` are folders above the splits.
    """
    names = ", ".join(splits)
    content, also = f"several splits ({names})", ", which packs a dataset for each"
    if are_folders:
        content = f"one folder per split ({names}), not per class"
        above = "/".join([where, *base.split("/")[:-1]])
        single = f"pack one of them, such as {above}/{splits[0]}"
        folder = f"pack {above} with" if base else "pass"
        also = f", {single}, or {folder} --from folder (kind='folder') if they are classes"
        also = also if given is None else f"{given}, or {single}"
    return SourceError(f"{where} has {content}: pack with --split folders (pack_splits){also}")


def folders_of_archives(
    places: Sequence[str], stems: Sequence[str], paths: Sequence[Collection[str]], *, where: str
) -> tuple[list[str], str]:
    """Return the folder that stands for each archive, which may be empty, and a note if that is not certain.

    Archives are class folders if their images are in no folder, or in one with a usual name for images. Those in
    several folders belong to these. Archives named like splits, parts or shards are not folders.

    >>> folders_of_archives(["", ""], ["cat", "dog"], [["1.jpg"], ["2.jpg"]], where="pets")
    (['cat/', 'dog/'], '')
    >>> folders_of_archives(["cat", "dog"], ["1", "1"], [["1.jpg"], ["2.jpg"]], where="pets")
    (['cat/', 'dog/'], '')
    >>> folders_of_archives(["", ""], ["cat1", "cat2"], [["1.jpg"], ["2.jpg"]], where="pets")[1][-49:]
    'archives of one class into a folder with its name'
    >>> folders_of_archives(["", ""], ["train-0", "train-1"], [["1.jpg"], ["2.jpg"]], where="pets")[0]
    ['', '']

    Args:
        places: The folders that they are in.
        stems: Their names without extension.
        paths: The paths in each.
        where: Name of the source, for messages.
    """
    folders = {path.rpartition("/")[0] for archive in paths for path in archive if is_image_name(path)}
    folders = {folder for folder in folders if hidden_root(f"{folder}/") is None}
    if len(stems) < 2 or len(folders) != 1 or not (folders == {""} or is_role(*folders)):
        return [""] * len(stems), ""
    if len({*places}) > 1 and all(places):
        return [f"{place}/" for place in places], ""
    if all(map(is_split_name, stems)) or are_shard_folders(stems) or are_parts(stems):
        shown = quoted(sorted(stems)[:2])
        note = f"the archives {shown} are parts and not classes, by their names: unpack each into a folder if they are"
        return [""] * len(stems), f"{note} classes"
    if len({*places}) > 1:
        above = stems[places.index("")]
        raise SourceError(
            f"{where} has the archive {above!r} next to a folder of archives, {max(places)!r}: move each archive into "
            "the folder of its class, or all into one folder"
        )
    note = note_on_numbers(stems, "archives")
    return [f"{stem}/" for stem in stems], note and f"{note}, or move archives of one class into a folder with its name"


def note_on_numbers(names: Collection[str], kind: str) -> str:
    """Return a note if some folders or archives that are classes have names that differ only in numbers.

    >>> note_on_numbers(["cat", "cat2", "dog"], "archives")[:70]
    "the archives 'cat', 'cat2' are classes, and their names differ only in"
    """
    same = with_same(sorted(names), _words)
    alike = next((sorted({*group})[:2] for group in same.values() if len({*group}) > 1), [])
    return f"the {kind} {quoted(alike)} are classes, and their names differ only in numbers: {IF_PARTS}" * bool(alike)


def differ_in_numbers(names: Collection[str]) -> bool:
    """Return whether several names have the same words, and different numbers.

    >>> differ_in_numbers(["s1", "s12"]), differ_in_numbers(["a1", "b1"]), differ_in_numbers(["s1"])
    (True, False, False)
    """
    return len({*names}) > 1 and len(set(map(_words, names))) == 1


def _words(name: str) -> str:
    """Return a name without numbers, unless it is an id of WordNet."""
    return name if _SYNSET.match(name) else _NUMBER.sub("#", NUMBERS.without(name))


def are_parts(names: Collection[str]) -> bool:
    """Return whether the names of several folders or archives are usual for parts of a dataset.

    >>> are_parts(["batch_1", "batch_2"]), are_parts(["New folder", "New folder (2)"]), are_parts(["room1", "room2"])
    (True, True, False)
    """
    return len({*names}) > 1 and (all(map(PART.match, names)) or len({*map(COPY.without, names)}) == 1)


def notes_on_parts(names: Collection[str], paths: Sequence[str]) -> list[str]:
    """Return a note if class folders are usual for parts or splits, by their names, and the names of images in them.

    >>> notes_on_parts(["batch_1", "batch_2"], ["batch_1/1.jpg", "batch_2/2.jpg"])[0][:53]
    "the classes 'batch_1', 'batch_2' are named like parts"
    >>> notes_on_parts(["train_sd", "val_hd"], ["train_sd/1.jpg", "val_hd/2.jpg"])[0][:52]
    "the classes 'train_sd', 'val_hd' are named like spli"
    >>> notes_on_parts(["training_real", "training_fake"], ["training_real/1.jpg", "training_fake/1.jpg"])
    []
    >>> notes_on_parts(["0000045", "0000099"], ["0000045/001.jpg", "0000099/001.jpg"])
    []
    """
    if len({*map(split_in, names)} - {""}) > 1 and all(map(split_in, names)):
        how = "rename the folders, such as to train and val, and pack with --split folders (pack_splits)"
        return [f"the classes {quoted(sorted(names)[:2])} are named like splits: if they are, {how}"]
    some = [path.split("/")[-2:] for path in paths[:: len(paths) // _LOOKED_AT + 1] if "/" in path]
    are_shards = all(map(str.isdecimal, names)) and are_shard_folders(names)
    if are_parts(names) or (are_shards and all(image.startswith(folder) for folder, image in some)):  # FFHQ
        return [f"the classes {quoted(sorted(names)[:2])} are named like parts of a dataset: {IF_PARTS}"]
    return []


def notes_about_names(paths: Sequence[str], classes: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return what a user should know about the names of images, and of folders that are not classes.

    >>> notes_about_names(["cat/1.jpg"], ["cat"], ["fig"])
    ["1 folder without an image: not a class, such as 'fig'"]
    """
    classes, notes = set(classes), []
    if same := next((sorted({*group}) for group in with_same(paths, str.lower).values() if len({*group}) > 1), []):
        notes.append(f"names of images differ only in case, such as {quoted(same)}: each is a sample")
    if damaged := [name for name in sorted(classes) if any("\ud800" <= character <= "\udfff" for character in name)]:
        notes.append(f"folders with names that are not UTF-8 are classes, such as {damaged[0]!r}: rename them")
    if folders := sorted(set(others) - classes):
        notes.append(f"{counted(len(folders), 'folder')} without an image: not a class, such as {folders[0]!r}")
    return notes


def note_on_prefixes(paths: Sequence[str], remedy: str = "move the images into folders with these names") -> list[str]:
    """Return a note if the names of images without labels begin with a few words, which can be classes.

    >>> note_on_prefixes(["cat.0.jpg", "cat.1.jpg", "dog.2.jpg", "dog.3.jpg"])
    ["no labels; names begin with 'cat', 'dog': if these are classes, move the images into folders with these names"]
    >>> note_on_prefixes(["image_1.jpg", "image_2.jpg"]), note_on_prefixes(["a1.jpg", "b1.jpg"])
    ([], [])
    """
    some = paths[:: len(paths) // _LOOKED_AT + 1]
    stems = (file_stem(path) for path in some)
    counts = Counter(match[1] if (match := _NUMBERED.fullmatch(stem)) else stem for stem in stems)
    if len(counts) < 2 or min(counts.values()) < 2 or any(map(split_in, counts)):
        return []
    shown = quoted(sorted(counts))
    return [f"no labels; names begin with {shown}: if these are classes, {remedy}"]


def notes_about_levels(paths: Iterable[str]) -> list[str]:
    """Return the note that folders in the folders of classes are not classes; none if they have no such folders.

    >>> notes_about_levels(["cat/lion/1.jpg", "cat/puma/1.jpg", "owl/1.jpg"])
    ["the first folder is the class: folders in it, such as 'cat/lion', are not classes"]
    """
    folders = sorted({"/".join(path.split("/")[:2]) for path in paths if path.count("/") > 1})
    several = [folder for folder, following in pairwise(folders) if class_folder(folder) == class_folder(following)]
    return [f"the first folder is the class: folders in it, such as {several[0]!r}, are not classes"] if several else []
