"""Trees of images and masks: which mask belongs to which image, by names alone. No I/O."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import NamedTuple

from wds_tools.sources.annotations import Annotations, packed
from wds_tools.sources.layouts import is_image_name

_IMAGE_FOLDERS = frozenset(["images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "inputs", "rgb"])
_MASK_FOLDERS = {
    **dict.fromkeys(["masks", "mask", "labels", "label", "annotations", "segmentation", "segmentations"], "mask"),
    **dict.fromkeys(
        ["segmentationclass", "gt", "gtfine", "gtcoarse", "ground_truth", "groundtruth", "trimaps"], "mask"
    ),
    "segmentationobject": "instance",
    "instances": "instance",
}
_FOLDER_ENDINGS = ("annot", "_labels", "_masks")  # CamVid: trainannot beside train; others: train_labels, train_masks
_IMAGE_ENDINGS = ("_leftImg8bit", "_image", "_img")
_MASK_ENDINGS = {
    "_labelIds": "mask",
    "_labelTrainIds": "train_ids",
    "_instanceIds": "instance",
    "_instanceTrainIds": "instance_train_ids",
    "_color": "color",
    "_mask": "mask",
    "_label": "mask",
    "_labels": "mask",
    "_seg": "mask",
    "_segmentation": "mask",
    "_gt": "mask",
    "_L": "mask",  # CamVid
    "_P": "mask",  # CamVid with class numbers
}
_ANY_ENDING = re.compile(rf"({'|'.join(_MASK_ENDINGS)})\.[A-Za-z]+$")
_JPEG = (".jpg", ".jpeg")
_CITYSCAPES = ("_gtFine", "_gtCoarse")  # before the ending


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


def may_have_masks(names: Iterable[str]) -> bool:
    """Return whether any name has a word for a mask: quick, because most trees of a million images have none."""
    folders = set()
    for name in names:
        folder, _, last = name.rpartition("/")
        folders.add(folder)
        if _ANY_ENDING.search(last):
            return True
    words = {word for folder in folders for word in folder.lower().split("/")}
    return not words.isdisjoint(_MASK_FOLDERS) or any(word.endswith(_FOLDER_ENDINGS) for word in words)


def pairs(names: Iterable[str]) -> Pairs:
    """Pair images with masks: the same folders and stem, except for words that mean "image" or "mask".

    Such words are folders (``images`` and ``masks``, ``JPEGImages`` and ``SegmentationClass``, ``leftImg8bit`` and
    ``gtFine``, ``train`` and ``trainannot``) and ends of names (``_leftImg8bit``, ``_gtFine_labelIds``, ``_mask``). A
    JPEG is a mask only in a folder of masks.

    >>> pairs(["images/1.jpg", "masks/1.png", "images/2.jpg"])
    Pairs(pairs=[('images/1.jpg', {'mask.png': 'masks/1.png'})], unpaired=['images/2.jpg'])

    Args:
        names: Paths of a tree, with ``/``. Files without the extension of an image are ignored.
    """
    images: dict[tuple[str, ...], list[str]] = {}
    masks: list[tuple[_Role, str]] = []
    for name in sorted(filter(is_image_name, names)):
        role = _role(name)
        if role.field:
            masks.append((role, name))
        else:
            images.setdefault(role.key, []).append(name)
    found: dict[str, dict[str, str]] = {}
    unpaired = [name for same in images.values() if len(same) > 1 for name in same]
    for role, name in masks:
        candidates = images.get(role.key, ())
        field = f"{role.field}{posixpath.splitext(name)[1].lower()}"
        if len(candidates) == 1 and field not in found.get(candidates[0], ()):
            found.setdefault(candidates[0], {})[field] = name
        else:
            unpaired.append(name)
    unpaired += [same[0] for same in images.values() if len(same) == 1 and same[0] not in found]
    return Pairs(sorted(found.items()), sorted(unpaired))


def without_objects(images: Iterable[str]) -> Annotations:
    """Return the annotations of images that have only masks."""
    return Annotations(images={image: packed({}) for image in images})


def _role(name: str) -> _Role:
    *folders, file_name = name.split("/")
    stem, extension = posixpath.splitext(file_name)
    kept, field = [], ""
    for folder in folders:
        word = folder.lower()
        ending = next((end for end in _FOLDER_ENDINGS if word.endswith(end) and len(word) > len(end)), "")
        if word in _MASK_FOLDERS:
            field = _MASK_FOLDERS[word]
        elif ending:
            field = "mask"
            kept.append(folder[: -len(ending)])
        elif word not in _IMAGE_FOLDERS:
            kept.append(folder)
    stem, ending_field = _without_ending(stem, may_be_mask=bool(field) or extension.lower() not in _JPEG)
    return _Role((*kept, stem), ending_field or field)


def _without_ending(stem: str, *, may_be_mask: bool) -> tuple[str, str]:
    """Return a stem without the end that states its role, and the field; "" if there is no such end."""
    for ending, field in _MASK_ENDINGS.items() if may_be_mask else ():
        if stem.endswith(ending) and len(stem) > len(ending):
            stem = stem.removesuffix(ending)
            for middle in _CITYSCAPES:
                stem = stem.removesuffix(middle)
            return stem, field
    for ending in _IMAGE_ENDINGS:
        if stem.endswith(ending) and len(stem) > len(ending):
            return stem.removesuffix(ending), ""
    return stem, ""
