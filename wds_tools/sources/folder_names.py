"""What the names of images, and of the folders and archives that could be classes, say: parts of a dataset, and notes.

Pure functions of names, the same for folders, archives and URLs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from wds_tools.format.label import quoted
from wds_tools.sources.inputs import with_same
from wds_tools.sources.layouts import are_shard_folders, class_folder, file_stem, is_split_name, split_in, wrapper
from wds_tools.wording import counted

_LOOKED_AT = 1000  # names of images
_NUMBERED = re.compile(r"(.*?[A-Za-z].*?)[\W_]*\d+")
_COPY = re.compile(r"[ _-]*(\(\d+\)|\d+)$")  # as in "New folder (2)"
_WORDNET = re.compile(r"n\d{8}")
_OF_CLASS = re.compile("class|cls|label|categor", re.IGNORECASE)
_NUMBERED_CLASS = re.compile(
    r"(class|cls|label|category|grade|level|person|subject|stage|type|n)[-_ ]?\d+", re.IGNORECASE
)
_YEAR = re.compile(r"(19|20)\d\d")


def differ_only_in_numbers(names: Collection[str]) -> bool:
    """Return whether names are like those of parts of a dataset; ids of WordNet are names of classes.

    >>> differ_only_in_numbers(["part1", "part2"]), differ_only_in_numbers(["New folder", "New folder (2)"])
    (True, True)
    >>> differ_only_in_numbers(["n01440764", "n01443537"]), differ_only_in_numbers(["cat_1", "dog_2"])
    (False, False)
    """
    forms = ({re.sub(r"\d+", "#", name) for name in names}, {_COPY.sub("", name) for name in names})
    return len({*names}) > 1 and not all(map(_WORDNET.fullmatch, names)) and any(len(form) == 1 for form in forms)


def folders_of_archives(stems: Sequence[str], paths: Sequence[Collection[str]]) -> tuple[list[str], str]:
    """Return the folder that each of several archives is, which may be empty, and a note if they are parts.

    Archives are class folders if all have no folders, or a single one with the same name that is not a class. Archives
    whose names differ only in numbers, or are the names of shards, are parts, of several splits too; those named like
    classes, such as ``class_0``, are not.

    >>> folders_of_archives(["cat", "dog"], [["1.jpg"], ["2.jpg"]])
    (['cat/', 'dog/'], '')
    >>> folders_of_archives(["train-0", "train-1", "val-0"], [["1.jpg"], ["2.jpg"], ["3.jpg"]])[0]
    ['', '', '']

    Args:
        stems: Names of the archives without extension.
        paths: The paths in each.
    """
    first = [{path.partition("/")[0] for path in archive if "/" in path} - {"__MACOSX"} for archive in paths]
    only = first[0].copy().pop() if first and len(first[0]) == 1 else ""
    is_wrapper = bool(only) and all(names == {only} for names in first) and wrapper([f"{only}/"], parent="") is not None
    if len(stems) < 2 or (any(first) and not is_wrapper):
        return [""] * len(stems), ""
    bases = [_COPY.sub("", stem) for stem in stems]
    are_splits = len({*bases}) < len(stems) and all(map(is_split_name, bases))
    are_numbered = differ_only_in_numbers(stems) and not all(map(_NUMBERED_CLASS.fullmatch, stems))
    if not (are_splits or are_shard_folders(stems) or are_numbered):
        return [f"{stem}/" for stem in stems], ""
    note = (
        f"the archives {quoted(sorted(stems)[:2])} are parts and not classes, because their names differ only in "
        "numbers: unpack each into a folder with its name if they are classes"
    )
    return [""] * len(stems), note


def notes_on_parts(names: Collection[str]) -> list[str]:
    """Return a note if the names of class folders look like those of parts of a dataset.

    >>> notes_on_parts(["batch_1", "batch_2"])[0][:61]
    "the classes 'batch_1', 'batch_2' differ only in numbers: pass"
    >>> notes_on_parts(["0", "1"]), notes_on_parts(["class1", "class2"]), notes_on_parts(["n01440764", "n01443537"])
    ([], [], [])
    """
    are_numbers = all(map(str.isdecimal, names))
    are_classes = are_numbers and not all(map(_YEAR.fullmatch, names)) and not are_shard_folders(names)
    if are_classes or not differ_only_in_numbers(names) or any(map(_OF_CLASS.match, names)):
        return []
    note = (
        f"the classes {quoted(sorted(names)[:2])} differ only in numbers: pass --column label= "
        "(columns={'label': ''}) to pack without labels if these folders are parts of a dataset"
    )
    return [note]


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
