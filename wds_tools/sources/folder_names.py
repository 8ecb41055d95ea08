"""What the names of images, and of the folders and archives that could be classes, say: parts of a dataset, and notes.

Pure functions of names, the same for folders, archives and URLs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from wds_tools.format.label import quoted
from wds_tools.sources.inputs import with_same
from wds_tools.sources.layouts import (
    are_shard_folders,
    class_folder,
    file_stem,
    hidden_root,
    is_image_name,
    is_role,
    is_split_name,
    split_in,
)
from wds_tools.sources.name_patterns import COPY, NUMBERS, PART
from wds_tools.wording import counted

_LOOKED_AT = 1000  # names of images
_NUMBERED = re.compile(r"(.*?[A-Za-z].*?)[\W_]*\d+")
_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")
_NUMBERS_AT_END = re.compile(r"[-_. ]*#+$")
_IF_PARTS = "pass --column label= (columns={'label': ''}) to pack without labels if they are parts"


def folders_of_archives(stems: Sequence[str], paths: Sequence[Collection[str]]) -> tuple[list[str], str]:
    """Return the folder that stands for each archive, which may be empty, and a note if that is not certain.

    Archives are class folders if all have no folders, or a single one with the same name that is not a class, and no
    folders in it. Archives named like parts or shards, even of several splits, are not.

    >>> folders_of_archives(["cat", "dog"], [["1.jpg"], ["2.jpg"]])
    (['cat/', 'dog/'], '')
    >>> folders_of_archives(["train-0", "train-1", "val-0"], [["1.jpg"], ["2.jpg"], ["3.jpg"]])[0]
    ['', '', '']

    Args:
        stems: Names of the archives without extension.
        paths: The paths in each.
    """
    folders = {path.rpartition("/")[0] for archive in paths for path in archive if is_image_name(path)}
    folders = {folder for folder in folders if hidden_root(f"{folder}/") is None}
    if len(stems) < 2 or len(folders) != 1 or not (folders == {""} or is_role(*folders)):
        return [""] * len(stems), ""
    bases = list(map(NUMBERS.without, stems))
    are_splits = len({*bases}) < len(stems) and all(map(is_split_name, bases))
    shown = f"the archives {quoted(sorted(stems)[:2])}"
    if are_splits or are_shard_folders(stems) or are_parts(stems):
        note = f"{shown} are parts and not classes, by their names: unpack each into a folder if they are classes"
        return [""] * len(stems), note
    note = note_on_numbers(stems, "archives")
    return [f"{stem}/" for stem in stems], note and f"{note}, or move those of one class into a folder with its name"


def note_on_numbers(names: Collection[str], kind: str) -> str:
    """Return a note if some folders or archives that are classes have names that differ only in numbers.

    >>> note_on_numbers(["cat", "cat2", "dog"], "archives")[:70]
    "the archives 'cat', 'cat2' are classes, and their names differ only in"
    """
    same = with_same(sorted(names), lambda name: _NUMBERS_AT_END.sub("", _NUMBER.sub("#", name)))
    alike = next((sorted({*group})[:2] for group in same.values() if len({*group}) > 1), [])
    return f"the {kind} {quoted(alike)} are classes, and their names differ only in numbers: {_IF_PARTS}" * bool(alike)


def differ_in_numbers(names: Collection[str]) -> bool:
    """Return whether several names have the same words, and different numbers.

    >>> differ_in_numbers(["s1", "s12"]), differ_in_numbers(["a1", "b1"]), differ_in_numbers(["s1"])
    (True, False, False)
    """
    return len({*names}) > 1 and len({_NUMBER.sub("#", name) for name in names}) == 1


def are_parts(names: Collection[str]) -> bool:
    """Return whether the names of several folders or archives are usual for parts of a dataset.

    >>> are_parts(["batch_1", "batch_2"]), are_parts(["New folder", "New folder (2)"])
    (True, True)
    >>> are_parts(["room1", "room2"]), are_parts(["n01440764", "n01443537"])
    (False, False)
    """
    return len({*names}) > 1 and (all(map(PART.match, names)) or len({*map(COPY.without, names)}) == 1)


def notes_on_parts(names: Collection[str], paths: Sequence[str]) -> list[str]:
    """Return a note if class folders are usual for parts of a dataset, by their names, and those of images in them.

    >>> notes_on_parts(["batch_1", "batch_2"], ["batch_1/1.jpg", "batch_2/2.jpg"])[0][:53]
    "the classes 'batch_1', 'batch_2' are named like parts"
    >>> len(notes_on_parts(["00000", "01000"], ["00000/00000.png", "01000/01000.png"]))
    1
    >>> notes_on_parts(["0000045", "0000099"], ["0000045/001.jpg", "0000099/001.jpg"])
    []
    """
    some = [path.split("/")[-2:] for path in paths[:: len(paths) // _LOOKED_AT + 1] if "/" in path]
    are_shards = all(map(str.isdecimal, names)) and are_shard_folders(names)
    if not are_parts(names) and not (are_shards and all(image.startswith(folder) for folder, image in some)):
        return []
    return [f"the classes {quoted(sorted(names)[:2])} are named like parts of a dataset: {_IF_PARTS}"]


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


def in_other_letters(paths: Iterable[str], images: Iterable[str]) -> dict[str, str]:
    """Return path -> image whose name differs from it only in case or in how accents are encoded, without extensions.

    >>> in_other_letters(["labels/img_1.txt", "labels/IMG_2.txt"], ["images/IMG_1.jpg", "images/IMG_2.jpg"])
    {'labels/img_1.txt': 'images/IMG_1.jpg'}
    """
    path_of = {file_stem(path): path for path in paths}
    stem_of = {_letters(stem): stem for stem in path_of}
    pairs = [(stem_of.get(_letters(file_stem(image))), image) for image in images] if path_of else []
    return {path_of[stem]: image for stem, image in pairs if stem is not None and stem != file_stem(image)}


def _letters(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
