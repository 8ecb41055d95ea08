"""Trees of images and masks: which mask belongs to which image, by names alone. No I/O."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources.layouts import is_image_name, is_split_name, stored_name
from wds_tools.wording import counted

_IMAGE_FOLDERS = frozenset(
    ["images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "inputs", "rgb", "original", "originals"]
)
_MASK_FOLDERS = {
    **dict.fromkeys(["masks", "mask", "labels", "label", "annotations", "segmentation", "segmentations"], "mask"),
    **dict.fromkeys(
        ["segmentationclass", "gt", "gtfine", "gtcoarse", "ground_truth", "groundtruth", "ground truth", "trimaps"],
        "mask",
    ),
    **dict.fromkeys(["annotation_masks", "semantic", "1st_manual"], "mask"),
    "depth": "depth",
    "segmentationobject": "instance",
    "instances": "instance",
}
_MASK_WORD = re.compile(
    r"(?<![a-z])(masks?|labels?(tr)?|annotations?|seg|segmentations?|gt|ground[ _-]?truth|targets?|depth|trimaps?)"
    r"(?![a-z])"  # labelsTr: nnU-Net
)
_IMAGE_WORD = re.compile(r"(?<![a-z])(images?|imgs?)(tr|ts)?(?![a-z])")
_FOLDER_ENDINGS = ("annot", "_labels", "_masks")  # CamVid: trainannot next to train; others: train_labels, train_masks
_IMAGE_ENDINGS = ("_leftImg8bit", "_image", "_img", "_sat", "_rgb")
_MASK_ENDINGS = {
    "_labelIds": "mask",
    "_labelTrainIds": "train_ids",
    "_instanceIds": "instance",
    "_instanceTrainIds": "instance_train_ids",
    "_color": "color",
    "_mask": "mask",
    "_lab": "mask",
    "_label": "mask",
    "_labels": "mask",
    "_seg": "mask",
    "_segmentation": "mask",
    "_gt": "mask",
    "_GT": "mask",
    "_L": "mask",  # CamVid
    "_P": "mask",  # CamVid with class numbers
    "_depth": "depth",
}
_NUMBERED_MASK = re.compile(r"(.+)_mask_(\d+)")  # a further mask of an image
_OTHER_ENDINGS = ("_color", "_L", "_P")  # that photographs may have too
_ANY_ENDING = re.compile(rf"({'|'.join(_MASK_ENDINGS)})\.[A-Za-z]+(?=\0|$)")  # of names that are joined by \0
_JPEG = (".jpg", ".jpeg")
_CITYSCAPES = ("_gtFine", "_gtCoarse")  # before the ending
_CITIES = "leftImg8bit"  # its folders are cities, not classes
_JOINED = 1 << 16  # names that are searched together
_MANY = 20  # folders with one image each are not classes if there are more of them
_WORDS = re.compile(r"[^A-Za-z]+")

Folders = Mapping[tuple[str, ...], str]
"""Folders of images and of masks: folder -> field of its files; "" for images."""

_NO_FOLDERS: Folders = MappingProxyType({})


class Pairs(NamedTuple):
    """Images with their masks.

    Attributes:
        pairs: (image, field -> mask), by the name of the image.
        unpaired: Images without a mask, and masks without an image.
    """

    pairs: list[tuple[str, dict[str, str]]]
    unpaired: list[str]


class _Role(NamedTuple):
    key: tuple[str, ...]  # folders and stem without what only says whether it is an image or a mask
    field: str  # "" for an image
    folder: str = ""  # the folder that says it


def may_have_masks(names: Iterable[str], folders: Iterable[str]) -> bool:
    """Return whether any name has a word for a mask: quick, because most trees of a million images have none.

    Args:
        names: Paths of images.
        folders: Their folders, by `layouts.folder_of`.
    """
    words = {word for folder in folders for word in folder.lower().split("/")}
    return (
        not words.isdisjoint(_MASK_FOLDERS)
        or any(word.endswith(_FOLDER_ENDINGS) for word in words)
        or next(_mask_endings(names), None) is not None
    )


def _mask_endings(names: Iterable[str]) -> Iterator[str]:
    """Yield how names of masks end, of any names."""
    following = iter(names)
    while part := list(islice(following, _JOINED)):
        yield from _ANY_ENDING.findall("\0".join(part))


def pairs(names: Iterable[str], folders: Folders = _NO_FOLDERS) -> Pairs:
    """Pair images with masks: the same folders and stem, except for words that mean "image" or "mask".

    Such words are folders (``images`` and ``masks``, ``JPEGImages`` and ``SegmentationClass``, ``leftImg8bit`` and
    ``gtFine``, ``train`` and ``trainannot``) and ends of names (``_leftImg8bit``, ``_gtFine_labelIds``, ``_mask``). A
    JPEG is a mask only in a folder of masks.

    >>> pairs(["images/1.jpg", "masks/1.png", "images/2.jpg"])
    Pairs(pairs=[('images/1.jpg', {'mask.png': 'masks/1.png'})], unpaired=['images/2.jpg'])

    Args:
        names: Paths of a tree, with ``/``. Files without the extension of an image are ignored.
        folders: Further folders of images and of masks, see `siblings`.
    """
    images: dict[tuple[str, ...], list[str]] = {}
    masks: list[tuple[_Role, str]] = []
    for name in sorted(filter(is_image_name, names)):
        role = _role(name, folders)
        if role.field:
            masks.append((role, name))
        else:
            images.setdefault(role.key, []).append(name)
    found: dict[str, dict[str, str]] = {}
    unpaired = [name for same in images.values() if len(same) > 1 for name in same]
    for role, name in masks:
        candidates = images.get(role.key, ())
        field = stored_name(f"{role.field}{posixpath.splitext(name)[1].lower()}")
        if len(candidates) == 1 and field not in found.get(candidates[0], ()):
            found.setdefault(candidates[0], {})[field] = name
        else:
            unpaired.append(name)
    unpaired += [same[0] for same in images.values() if len(same) == 1 and same[0] not in found]
    return Pairs(sorted(found.items()), sorted(unpaired))


def siblings(names: Iterable[str], folders: Iterable[str]) -> Folders:
    """Return folders next to each other with files of the same names, of which one is named like masks.

    >>> dict(siblings(["CXR_png/1.png", "lung masks/1.png"], ["CXR_png/", "lung masks/"]))
    {('CXR_png',): '', ('lung masks',): 'mask'}

    Args:
        names: Paths of images.
        folders: Their folders, by `layouts.folder_of`.
    """
    below: dict[tuple[str, ...], set[str]] = {}  # a folder -> those in it
    for path in folders:
        words = tuple(path.split("/")[:-1])
        for level, word in enumerate(words):
            below.setdefault(words[:level], set()).add(word)
    inside: dict[tuple[str, ...], set[tuple[str, ...]]] = {}  # a folder that may be one of the two -> its files
    for above, there in below.items():
        if sum(_MASK_WORD.search(folder.lower()) is None for folder in there) == 1 < len(there):
            inside |= {(*above, folder): set() for folder in there}
    for name in names if inside else ():
        *parents, last = name.split("/")
        for level in range(1, len(parents) + 1):
            if (files := inside.get(tuple(parents[:level]))) is not None:
                files.add((*parents[level:], _role(last).key[0]))
    images = {folder[:-1]: folder for folder in inside if not _MASK_WORD.search(folder[-1].lower())}
    found: dict[tuple[str, ...], str] = {}
    for folder, files in inside.items():
        image = images[folder[:-1]]
        if folder != image and 2 * len(inside[image] & files) >= len(inside[image]) > 0:
            found |= {image: "", folder: "mask"}
    return found


def folders_together(names: Iterable[str]) -> tuple[str, str] | None:
    """Return a folder of images and the folder of masks that belongs to it, if there are such; names do not matter.

    >>> folders_together(["7/images/7.png", "7/masks/a.png", "7/masks/b.png"])
    ('images', 'masks')
    """
    images: dict[tuple[str, ...], str] = {}
    masks: dict[tuple[str, ...], str] = {}
    for name in names:
        role = _role(name)
        if role.folder:
            (masks if role.field else images)[role.key[:-1]] = role.folder
    return next(((images[key], mask) for key, mask in masks.items() if key in images), None)


def classes(images: Iterable[str], folders: Folders = _NO_FOLDERS) -> dict[str, str]:
    """Return the class of each image: its first folder that is neither a split nor states that it is an image.

    >>> classes(["COVID/images/1.png", "Normal/images/1.png"])
    {'COVID/images/1.png': 'COVID', 'Normal/images/1.png': 'Normal'}

    Returns:
        Nothing if the folders are not classes: some images have none, or all have the same.
    """
    images = list(images)
    kept = {name: [one for one in _role(name, folders).key[:-1] if not is_split_name(one)] for name in images}
    while kept and all(kept.values()) and len({one[0] for one in kept.values()}) == 1:
        kept = {name: one[1:] for name, one in kept.items()}
    if not all(kept.values()) or any(_CITIES in name for name in images):
        return {}
    found = {name: one[0] for name, one in kept.items()}
    names = set(found.values())
    if _MANY < len(names) == len(images) or any(is_split_name(word) for one in names for word in _WORDS.split(one)):
        return {}
    return found


def note_on_names(names: Sequence[str]) -> list[str]:
    """Return a note if some images, but not all, have names that end as those of masks do.

    >>> note_on_names(["1.jpg", "2.jpg"]), len(note_on_names(["1.jpg", "1_mask.jpg"]))
    ([], 1)
    """
    endings = Counter(ending for ending in _mask_endings(names) if ending not in _OTHER_ENDINGS)
    if not 0 < endings.total() < len(names):
        return []
    note = (
        f"{counted(endings.total(), 'file')} packed as images, although names that end in {quoted(endings)} are usual "
        "for masks: put masks into a folder 'masks' next to a folder 'images'"
    )
    return [note]


def notes_on_classes(names: Iterable[str], *, where: str) -> list[str]:
    """Return a note if a class has a name that is usual for the folder of all images.

    >>> notes_on_classes(["cat", "dog"], where="photos"), len(notes_on_classes(["images", "manual1"], where="HRF"))
    ([], 1)

    Raises:
        SourceError: Another class is named like masks.
    """
    lower = {name: name.lower() for name in sorted(names)}
    masks = [name for name, word in lower.items() if _MASK_WORD.search(word)]
    images = [name for name, word in lower.items() if name not in masks and _IMAGE_WORD.search(word)]
    if not images or len(lower) < 2:
        return []
    if masks:
        raise SourceError(
            f"{where} has the folders {images[0]!r} and {masks[0]!r}, named like images and their masks, in which "
            "files have other names: rename them as in images/1.png and masks/1.png, or pass --from folder "
            "(kind='folder') if the folders are classes"
        )
    note = (
        f"the folder {images[0]!r} is packed as a class, although its name is usual for the folder of all images: pack "
        "it alone if the other folders have masks, or other images of the same samples"
    )
    return [note]


def notes_on_roles(found: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Return a note if masks have names that classes or other images may have as well: ``hats_masks``, ``1_L.png``.

    >>> notes_on_roles([("images/1.png", {"mask.png": "masks/1.png"})])
    []
    """
    pairs = ((image, mask) for image, fields in found for mask in fields.values())
    image, mask = next((pair for pair in pairs if _may_be_images(*pair)), ("", ""))
    note = (
        f"{mask!r} is taken as the mask of {image!r}, and so are others with such names: pass --from folder "
        "(kind='folder') if they are separate images"
    )
    return [note] if mask else []


def _may_be_images(image: str, mask: str) -> bool:
    """Return whether only an ending, of a folder or of a name, states that one image is the mask of the other."""
    one, other = (path.split("/")[:-1] for path in (image, mask))
    level = next((level for level in range(min(len(one), len(other))) if one[level] != other[level]), None)
    if level is not None:
        return other[level].lower().startswith(one[level].lower()) and not is_split_name(one[level])
    ending = _ANY_ENDING.search(mask)
    return ending is not None and ending[1] in _OTHER_ENDINGS


def is_mask(name: str) -> bool:
    """Return whether a path is named like a mask.

    >>> is_mask("VOC2012/SegmentationObject/1.png"), is_mask("VOC2012/JPEGImages/1.jpg")
    (True, False)
    """
    return bool(_role(name).field)


def _role(name: str, given: Folders = _NO_FOLDERS) -> _Role:
    *folders, file_name = name.split("/")
    stem, extension = posixpath.splitext(file_name)
    kept, field, stated = [], "", ""
    for level, folder in enumerate(folders, 1):
        word = folder.lower()
        ending = next((end for end in _FOLDER_ENDINGS if word.endswith(end) and len(word) > len(end)), "")
        if given and (path := tuple(folders[:level])) in given:
            field, stated = given[path] or field, folder
        elif word in _MASK_FOLDERS:
            field, stated = _MASK_FOLDERS[word], folder
        elif ending:
            field = "mask"
            kept.append(folder[: -len(ending)])
        elif word in _IMAGE_FOLDERS:
            stated = folder
        else:
            kept.append(folder)
    stem, ending_field = _without_ending(stem, may_be_mask=bool(field) or extension.lower() not in _JPEG)
    return _Role((*kept, stem), ending_field or field, stated)


def _without_ending(stem: str, *, may_be_mask: bool) -> tuple[str, str]:
    """Return a stem without the end that states its role, and the field; "" if there is no such end."""
    for ending, field in _MASK_ENDINGS.items() if may_be_mask else ():
        if stem.endswith(ending) and len(stem) > len(ending):
            stem = stem.removesuffix(ending)
            for middle in _CITYSCAPES:
                stem = stem.removesuffix(middle)
            return stem, field
    if may_be_mask and (numbered := _NUMBERED_MASK.fullmatch(stem)):
        return numbered[1], f"mask_{int(numbered[2])}"
    for ending in _IMAGE_ENDINGS:
        if stem.endswith(ending) and len(stem) > len(ending):
            return stem.removesuffix(ending), ""
    return stem, ""
