"""How the files of a tree are arranged: which are images, splits, classes, and further fields of an image.

Pure functions of names, the same for folders, archives and URLs. `RowNames` has the rule for which image a name in
another file means: for tables, COCO files and all others.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.format.sample import CONVERTED_EXTENSIONS, STORED_EXTENSIONS
from wds_tools.sources.inputs import File, with_same
from wds_tools.sources.name_patterns import (
    IMAGES_FOLDER,
    OTHER_PART,
    SHARD,
    SPLIT_AND_CLASS,
    SPLIT_FOLDER,
    SPLIT_OF,
    TEST_FOLDER,
)

_JPEG = (".jfif", ".jpe", ".pjpeg", ".pjp")  # further extensions of JPEG
EXTENSIONS = (*STORED_EXTENSIONS, *CONVERTED_EXTENSIONS, *_JPEG)  # all that ``ImageFolder`` reads, and more
ARRAY_EXTENSIONS = (".h5", ".hdf5", ".hdf", ".he5", ".mat", ".npy", ".npz", ".pt", ".pth")
_SYSTEM_FOLDERS = {  # hidden too
    "__MACOSX": "macOS adds it to archives",
    "@eaDir": "Synology keeps thumbnails in it",
    "$RECYCLE.BIN": "Windows keeps deleted files in it",
    "System Volume Information": "Windows adds it to disks",
    "lost+found": "Linux adds it to disks",
}

_MOST = 0.9  # share of images in the folders of splits; the others are strays
MAX_LEVEL = 4  # levels of folders that are searched for splits
_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*")
FIELDS = ("txt", "caption", "json", "cls", "npy", "npz", "xml")  # extensions of further fields of an image
_TAKEOUT = re.compile(  # 1.jpg.supplemental-metadata(2).json is about 1(2).jpg; long names are cut off
    rf"(.+)({'|'.join(map(re.escape, EXTENSIONS))})(\.s[a-z-]*|)(\(\d+\))?\.json", re.IGNORECASE
)
_ABOUT_PHOTO = ".supplemental-metadata"
_MOST_OF_TAKEOUT = 46  # characters of a name before .json; the rest is cut off, even of the name of the image
_COPY = re.compile(r"[a-z]+ ?\(\d+\)\.")
_PIXEL_FIELD = re.compile(r"(mask|seg|segmentation|depth|normals?|edges?|alpha|matte|labels?|instances?|panoptic)\d*")
_MASK_FIELD = re.compile(
    r"((instance_)?train_ids|colou?r|mask_\d+|(mask|seg|segmentation|alpha|matte|labels?|instances?|panoptic)\d*)"
)
SHARD_TABLE = "is the table that img2dataset writes about a folder or shard, and into .json files too"
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".pq")  # that may be about images
_ABOVE = re.compile(r"^(\.{1,2}/)+|^/data/local-files/\?d=")  # the latter in Label Studio
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


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
        share = sum(there.values()) / sum(counts.values())
        is_divided = len(splits) > 1 or _are_parts(names, there, level)
        if (splits == names and share == 1) or (is_divided and share > _MOST):
            above = {folder[:level] for folder in there}
            base = "".join(f"{name}/" for name in above.pop()) if len(above) == 1 else ""
            pairs = {folder[level : level + 2] for folder in there if len(folder) > level + 1}
            inside = {name: [inner for upper, inner in pairs if upper == name] for name in names}
            _check_once("/".join([where, *base.split("/")[:-1]]), inside)
            return Arrangement(base, 0 if base else level, (*splits, *(name for name in names if name not in splits)))
        if is_divided:
            elsewhere = "/".join(min(folder for folder in counts if folder not in there)) or "the upper folder"
            raise SourceError(
                f"{where} has folders named like splits ({quoted(names)}), and images outside of them, in "
                f"{elsewhere!r}: move these into a split too, or pass --from folder (kind='folder') if the upper "
                "folders are the classes and no folder is a split"
            )
        if share > _MOST and (flat := _flat_part(names, there, level)):
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


def _flat_part(names: Sequence[str], folders: Iterable[tuple[str, ...]], level: int) -> str:
    """Return a folder of images without folders that is named like a test set next to others; empty without one.

    ``train`` and ``valid`` may be classes, of vehicles and documents.
    """
    with_folders = {folder[level] for folder in folders if len(folder) > level + 1}
    flat = (name for name in names if name not in with_folders and TEST_FOLDER.match(name))
    is_common = len({folder[:level] for folder in folders}) == 1
    return next(flat, "") if is_common and len(names) > 1 else ""


def _are_parts(names: Sequence[str], folders: Iterable[tuple[str, ...]], level: int) -> bool:
    """Return whether folders next to each other are parts of a dataset: by their names, or because one is a split.

    Then another one has no folders, or one that the split has too.
    """
    below: dict[str, set[str]] = {name: set() for name in names}
    for folder in folders:
        below[folder[level]].update(folder[level + 1 : level + 2])
    splits = list(filter(is_split_name, names))
    if len(names) < 2 or len({folder[:level] for folder in folders}) > 1:
        return False
    in_split = below[splits[0]] if len(splits) == 1 else set()
    like_it = in_split and any(not below[name] or below[name] & in_split for name in names if name not in splits)
    return bool(like_it) or all(is_split_name(name) or OTHER_PART.match(name) for name in names)


def splits_with_classes(paths: Iterable[str]) -> list[str]:
    """Return the folders that are all named like splits, if one of them has folders, which must then be the classes.

    >>> splits_with_classes(["a/train/cat/1.jpg", "a/test/2.jpg"]), splits_with_classes(["train/1.jpg", "test/2.jpg"])
    (['test', 'train'], [])
    """
    folders = {tuple(path.split("/")[:-1]) for path in paths}
    while folders and all(folders) and len(first := {folder[0] for folder in folders}) == 1:
        if is_split_name(*first):
            break
        folders = {folder[1:] for folder in folders}
    are_splits = all(folder and is_split_name(folder[0]) for folder in folders)
    return sorted({folder[0] for folder in folders}) if are_splits and any(folder[1:] for folder in folders) else []


def first_folders(paths: Iterable[str]) -> list[str]:
    """Return the first folders in which images differ, without splits; none if there is only one.

    >>> first_folders(["a/train/cat/1.jpg", "a/train/dog/1.jpg"])
    ['cat', 'dog']
    >>> first_folders(["a/train/1.jpg", "a/test/1.jpg"])
    []
    """
    folders = {tuple(name for name in path.split("/")[:-1] if not is_split_name(name)) for path in paths}
    while folders and all(folders) and len({folder[0] for folder in folders}) == 1:
        folders = {folder[1:] for folder in folders}
    names = sorted({folder[0] for folder in folders if folder})
    return names if len(names) > 1 else []


def common_folder(folders: Iterable[tuple[str, ...]]) -> str:
    """Return the folders that contain all class folders.

    >>> common_folder([("a", "cat"), ("a", "dog")]), common_folder([("cat",), ("cat",)])
    ('a/', '')
    """
    folders = list(folders)
    level = 0
    while folders and all(len(folder) > level + 1 for folder in folders):
        if len({folder[level] for folder in folders}) > 1:
            break
        level += 1
    return "".join(f"{name}/" for name in folders[0][:level]) if level else ""


def without_split(path: str, level: int | None) -> str:
    """Return a path without the folder of its split.

    >>> without_split("cat/train/1.jpg", 1)
    'cat/1.jpg'
    """
    if level is None:
        return path
    parts = path.split("/")
    return "/".join([*parts[:level], *parts[level + 1 :]])


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


def further_fields(paths: Sequence[str], endings: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return the files that are further fields of an image: path -> (path of the image, field).

    Their names are the name of the image, with or without its extension, and another extension.

    >>> further_fields(["a/1.jpg", "a/1.txt", "a/1.jpg.json", "a/1.mask.png", "a/readme.txt"], (".jpg", ".png"))
    {'a/1.txt': ('a/1.jpg', 'txt'), 'a/1.jpg.json': ('a/1.jpg', 'json'), 'a/1.mask.png': ('a/1.jpg', 'mask.png')}
    """
    candidates = [
        path
        for path in paths
        if not path.endswith(endings) or (path.count(".") > 1 and "." in path[path.rfind("/") + 1 : path.rfind(".")])
    ]
    images: dict[str, list[str]] = {start: [] for path in candidates for start, _ in _divisions(path)}
    for path in paths if images else ():
        if path.endswith(endings):
            for start in {path, path[: path.rfind(".")], path[: path.rfind("/") + 1 + _MOST_OF_TAKEOUT]}:
                if start in images:
                    images[start].append(path)
    is_takeout = any(path.endswith(f"{_ABOUT_PHOTO}.json") for path in candidates)
    fields = {}
    for path in candidates:
        for start, field in _divisions(path):
            is_cut = field == "json" and len(posixpath.basename(start)) == _MOST_OF_TAKEOUT
            owners = [image for image in images[start] if image != path and (is_cut or image[len(start) :][:1] in ".")]
            if owners and _is_field(field):
                if len(owners) == 1:
                    fields[path] = (owners[0], f"{_ABOUT_PHOTO[1:]}.json" if is_cut and is_takeout else field)
                break
    return {path: (image, field) for path, (image, field) in fields.items() if image not in fields}


def _divisions(path: str) -> list[tuple[str, str]]:
    """Return how a path can be divided into the path of an image and a field, the shortest field first."""
    parts = _TAKEOUT.fullmatch(path) if path.lower().endswith(".json") else None
    if parts is not None and _ABOUT_PHOTO.startswith(parts[3].lower()):
        image, ending, word, copy = parts.groups()
        path = f"{image}{copy or ''}{ending}{word and _ABOUT_PHOTO}.json"
    folder, words = folder_of(path), path[path.rfind("/") + 1 :].split(".")
    counts = range(len(words) - 1, 0, -1)
    return [(folder + ".".join(words[:count]), ".".join(words[count:]).lower()) for count in counts]


def _is_field(field: str) -> bool:
    """Return whether the end of a file name is a field, and not a part of the name of another image."""
    word, _, extension = field.rpartition(".")
    if _COPY.match(field):
        return False
    if f".{extension}" in EXTENSIONS:
        return _PIXEL_FIELD.fullmatch(word.rpartition(".")[2]) is not None
    return extension in FIELDS


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


def wrappers(paths: Iterable[str], *, parent: str, most: int = MAX_LEVEL) -> list[str]:
    """Return the folders that contain all images and are not classes, the upper one first; ``parent`` is above them.

    They have a usual name, or that of the folder above, or, on the first ``most`` levels, only folders in them.

    >>> wrappers(["images/1.jpg", "images/2.jpg"], parent=""), wrappers(["cat/1.jpg"], parent="")
    (['images'], [])
    >>> wrappers(["pets/cat/1.jpg", "pets/owl/1.jpg"], parent=""), wrappers(["pets/cat/1.jpg", "owl/1.jpg"], parent="")
    (['pets'], [])
    """
    inside, names = [path for path in paths if "/" in path], list[str]()
    while len(first := set(map(class_folder, inside))) == 1:
        only = str(first.pop())
        is_deep = all(path.count("/") > 1 for path in inside) and len(names) < most
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


class RowNames:
    """Files by the names that other files may use for them: a path, the end of a path, or these without extension."""

    def __init__(self, files: Iterable[File]) -> None:
        self._by_name: dict[str, list[File]] = {}
        self._by_stem: dict[str, list[File]] = {}
        for file in files:
            name = posixpath.basename(file.path)
            self._by_name.setdefault(name, []).append(file)
            self._by_stem.setdefault(posixpath.splitext(name)[0], []).append(file)

    def has(self, value: Any) -> bool:
        """Return whether a value names one or more files."""
        return bool(self._candidates(_text(value)))

    def all_of(self, values: Iterable[Any]) -> list[File]:
        """Return the first file that each value can mean, without values that name none."""
        return [files[0] for value in values if (files := self._candidates(_text(value)))]

    def find(self, value: Any, *, table: str, folder: str = "") -> File | None:
        """Return the file that a value names; None if there is none.

        Of several, it is the one at this path below the folder of the table, or else in a folder of the given name, or
        else in the split of the table, or else below the folder of the table.

        Args:
            value: A text, or a number that is an id.
            table: Path of the file with the value.
            folder: Name of a folder, such as the folder of a split.
        """
        name = _text(value)
        candidates = self._candidates(name)
        if len(candidates) > 1:
            above, split = posixpath.dirname(table), split_of_table(table)
            path = posixpath.join(above, name)
            for test in (
                lambda file: path in (file.path, posixpath.splitext(file.path)[0]),
                lambda file: folder in file.path.split("/")[:-1],
                lambda file: bool(split) and split_of(file.path) == split,
                lambda file: bool(above) and file.path.startswith(f"{above}/"),
            ):
                candidates = list(filter(test, candidates)) or candidates
        if len(candidates) > 1:
            raise SourceError(
                f"{table} names {name!r}, which can be {quoted(file.path for file in candidates[:2])}: write paths "
                "into it, or keep one of the files"
            )
        return candidates[0] if candidates else None

    def _candidates(self, name: str) -> list[File]:
        last = posixpath.basename(name)
        if not last:
            return []
        exact = [file for file in self._by_name.get(last, ()) if _fits(file.path, name)]
        return exact or [file for file in self._by_stem.get(last, ()) if _fits(posixpath.splitext(file.path)[0], name)]


def _text(value: Any) -> str:
    """Return a name as a path with slashes, without ``./`` and ``../`` before it; empty for any other value."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return _ABOVE.sub("", str(value).strip().replace("\\", "/"))


def _fits(path: str, name: str) -> bool:
    """Return whether a path ends with a name; or the name, as a path on another machine, with the path."""
    is_longer = name.endswith(f"/{path}") and ("/" in path or _ABSOLUTE.match(name) is not None)
    return is_longer or f"/{path}".endswith(f"/{name}")


def are_most(named: Sequence[File], images: Sequence[File]) -> bool:
    """Return whether at least half of the images are named; only images in the splits of the named ones count."""
    splits = {split_of(file.path) for file in named}
    return 2 * len(named) >= sum(split_of(file.path) in splits for file in images)
