"""Trees of images and masks: which mask belongs to which image, by names alone. No I/O."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import groupby, islice
from types import MappingProxyType
from typing import NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.layouts import differ_in_numbers, file_stem, folder_of, is_image_name, split_in, stored_name
from wds_tools.wording import counted

_IMAGE_FOLDERS = frozenset(
    ["images", "image", "imgs", "img", "img_dir", "jpegimages", "leftimg8bit", "inputs", "rgb", "original", "originals"]
)
_OF_MASKS = """
    masks mask labels label annotations segmentation segmentations segmentationclass gt gtfine gtcoarse ground_truth
    groundtruth trimaps ann_dir lbl annotation_masks semantic 1st_manual segmentationclassaug segmentationclassraw
"""
_MASK_FOLDERS = dict.fromkeys(_OF_MASKS.split(), "mask") | {
    "ground truth": "mask",
    "depth": "depth",
    "colormaps": "color",  # BDD100K
    "segmentationobject": "instance",
    "instances": "instance",
    "panoptic": "panoptic",  # Mapillary Vistas
}
_MASK_WORD = re.compile(
    r"(?<![a-z])(masks?|labels?(tr)?|lbls?|annotations?|ann_dir|seg|segmentations?|gt|ground[ _-]?truth|targets?|depth"
    r"|trimaps?)(?![a-z])"  # labelsTr: nnU-Net
)
_IMAGE_WORD = re.compile(r"(?<![a-z])(images?|imgs?)(tr|ts)?(?![a-z])")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PAIRS = {
    "a": {"b"},
    "sat": {"map"},
    "low": {"high"},
    "lr": {"hr", "gt"},
    "input": {"target", "output", "gt"},
    "noisy": {"clean", "gt"},
    "hazy": {"clear", "clean", "gt"},
    "raw": {"reference"},
    **{word: {"sharp", "gt"} for word in ("blur", "blurry", "blurred")},
    **{word: {"norain", "clear", "clean", "gt"} for word in ("rain", "rainy")},
}
"""Words for two images of one sample: in the name of one folder -> in the name of the other folder."""

_ALL_PAIRED = {word for words in (_PAIRS, *_PAIRS.values()) for word in words if len(word) > 1}
_ADDITION = re.compile(r"[._-](?=[^._-]*[A-Za-z])")  # not only numbers, as in copies
_A_OR_B = re.compile(r"[_-][ABab](?=\.[A-Za-z]+$)")  # pix2pix
_VIEWS = 4  # folders that may have further images of the same samples; more are classes
_EXTENDED = 1000  # names in which additions to other names are looked for
FOLDER_ENDINGS = ("annot", "_labels", "_masks")  # CamVid: trainannot next to train; others: train_labels, train_masks
_SPLIT_ENDING = re.compile("_(lab|seg|segmentations?|gt|mask|label|annotations?)$")  # DeepCrack, LIP: train_lab
_IMAGE_ENDINGS = ("_leftImg8bit", "_image", "_img", "_sat", "_rgb", "_RGB")
_OF_IMAGE = re.compile(f"({'|'.join(_IMAGE_ENDINGS)})$")
_MASK_ENDINGS = {
    "_labelIds": "mask",
    "_labelTrainIds": "train_ids",
    "_instanceIds": "instance",
    "_instanceTrainIds": "instance_train_ids",
    "_color": "color",
    "_depth": "depth",
    **dict.fromkeys(["_mask", "_cp_masks", "_masks", "_Mask", "-mask", "-masks", " (mask)"], "mask"),  # Cellpose
    **dict.fromkeys(["_label", "_labels", "_lab", "_seg", "_segmentation", "_Segmentation", "_anno"], "mask"),
    **dict.fromkeys(["_gt", "_GT", "_L", "_P"], "mask"),  # CamVid: _L, and _P with class numbers
}
_NUMBERED_MASK = re.compile(r"(.+)_mask_(\d+)")  # a further mask of an image
_FIRST_WORDS = {  # of names of files, or whole names
    **dict.fromkeys(["mask", "masks", "label", "labels", "seg", "segmentation", "gt"], "mask"),
    **dict.fromkeys(["image", "images", "img", "im", "rgb", "color"], ""),
    "depth": "depth",
}
_FIRST_WORD = re.compile(rf"({'|'.join(_FIRST_WORDS)})(?:[-_ ]|(?=\d)|$)", re.IGNORECASE)
_ANY_FIRST_WORD = re.compile("/(?:[Mm]asks?|[Ll]abels?|[Ss]eg|[Ss]egmentation|[Gg][Tt]|[Dd]epth)[-_ .\\d]")
_ANY_ENDING = re.compile(  # a common first character makes the search five times as fast
    rf"({'|'.join(ending for ending in _MASK_ENDINGS if ending[0] == '_')})\.[A-Za-z]+(?=\0|$)"
)
_OTHER_ENDINGS = ("_color", "_L", "_P")  # that photographs may have too
_JPEG = (".jpg", ".jpeg", ".jfif", ".jpe")
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
        rivals: Unused second mask of an image for the same field -> the mask that is used.
    """

    pairs: list[tuple[str, dict[str, str]]]
    unpaired: list[str]
    rivals: Mapping[str, str] = MappingProxyType({})

    def check(self, where: str) -> list[str]:
        """Return the notes on rivals.

        Raises:
            SourceError: An image has two masks for one field. Those in ``gtFine`` take precedence over ``gtCoarse``.
        """
        coarse = [name for name, used in self.rivals.items() if "gtCoarse" in name and "gtFine" in used]
        if rival := min(self.rivals.keys() - coarse, default=""):
            used = self.rivals[rival]
            image = next(image for image, fields in self.pairs if used in fields.values())
            raise SourceError(
                f"{where} has two masks of {image!r}, {used!r} and {rival!r}: move one of the two sets of masks away; "
                "to pack both, write a table with a row for each image, such as image,mask,gt"
            )
        return [f"masks such as {coarse[0]!r} are left out: their images have masks in gtFine"] if coarse else []


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
        or any(map(_folder_ending, words))
        or any(map(_ANY_ENDING.search, _joined(names)))
        or any(_ANY_FIRST_WORD.search(text) or "-mask" in text or " (mask)" in text for text in _joined(names))
    )


def _joined(names: Iterable[str]) -> Iterator[str]:
    """Yield many names at once, with a slash before each and a zero byte between them."""
    following = iter(names)
    while part := list(islice(following, _JOINED)):
        yield "/" + "\0/".join(part)


def pairs(names: Iterable[str], folders: Folders = _NO_FOLDERS) -> Pairs:
    """Pair images with masks: the same folders and stem, except for words that mean "image" or "mask".

    Such words are folders (``images`` and ``masks``, ``JPEGImages`` and ``SegmentationClass``, ``leftImg8bit`` and
    ``gtFine``, ``train`` and ``trainannot``) and ends of names (``_leftImg8bit``, ``_gtFine_labelIds``, ``_mask``). A
    JPEG is a mask only in a folder of masks. If a folder has no such mask, each mask in it belongs to the only image of
    the same split with its stem, if most have such an image. Then words at the beginning count too: ``img_1`` and
    ``mask_1``, ``image`` and ``mask``.

    >>> pairs(["images/1.jpg", "masks/1.png", "images/2.jpg"])[:2]
    ([('images/1.jpg', {'mask.png': 'masks/1.png'})], ['images/2.jpg'])
    >>> pairs(["7/image.png", "7/mask.png"]).pairs
    [('7/image.png', {'mask.png': '7/mask.png'})]

    Args:
        names: Paths of a tree, with ``/``. Files without the extension of an image are ignored.
        folders: Further folders of images and of masks, see `siblings`.
    """
    images: dict[tuple[str, ...], list[str]] = {}
    masks: list[tuple[_Role, str]] = []
    for name in sorted(filter(is_image_name, names), key=lambda name: ("gtCoarse" in name, name)):
        role = _role(name, folders)
        if role.field:
            masks.append((role, name))
        else:
            images.setdefault(role.key, []).append(name)
    masks_of: dict[str, dict[str, str]] = {}
    rivals: dict[str, str] = {}
    unpaired = {name for same in images.values() if len(same) > 1 for name in same}
    alone = [(role, name) for role, name in masks if not _take(masks_of, rivals, images.get(role.key, ()), role, name)]
    unpaired |= _without_partner(masks_of, rivals, alone, images, folders)
    unpaired |= {same[0] for same in images.values() if len(same) == 1 and same[0] not in masks_of}
    unpaired -= _by_first_words(masks_of, rivals, unpaired, folders)
    return Pairs(sorted(masks_of.items()), sorted(unpaired - rivals.keys()), rivals)


def _without_partner(
    masks_of: dict[str, dict[str, str]],
    rivals: dict[str, str],
    alone: Sequence[tuple[_Role, str]],
    images: Mapping[tuple[str, ...], Sequence[str]],
    folders: Folders,
) -> set[str]:
    """Pair masks with the images that have their stem, in folders where most have such an image; return the others."""
    taken = {folder_of(mask) for fields in masks_of.values() if alone for mask in fields.values()}
    by_folder: dict[str, list[tuple[_Role, str, list[str]]]] = {}
    by_stem: dict[tuple[str, str], list[str]] = {}
    for key, same in images.items() if alone else ():
        by_stem.setdefault((split_in(folder_of(same[0])), key[-1]), []).extend(same)
    for role, name in alone:
        same = by_stem.get((split_in(folder_of(name)), role.key[-1]), [])
        is_stated = not role.folder or all(_role(image, folders).folder for image in same)
        by_folder.setdefault(folder_of(name), []).append((role, name, same if is_stated else []))
    unpaired = set()
    further: dict[str, str] = {}
    for folder, masks in by_folder.items():
        are_of_images = folder not in taken and 2 * sum(len(same) == 1 for _, _, same in masks) > len(masks)
        unpaired |= {
            name for role, name, same in masks if not (are_of_images and _take(masks_of, further, same, role, name))
        }
    rivals |= {name: mask for name, mask in further.items() if folder_of(mask) not in taken}
    return unpaired


def _by_first_words(
    masks_of: dict[str, dict[str, str]], rivals: dict[str, str], names: Set[str], folders: Folders
) -> set[str]:
    """Pair images and masks that have none by the words at the beginning of their names; return these."""
    images, masks = _divided_by_first_words(sorted(names), folders)
    paired = [(role, name) for role, name in masks if _take(masks_of, rivals, images.get(role.key, ()), role, name)]
    return {image for role, name in paired for image in (name, *images[role.key])}


def _divided_by_first_words(
    names: Iterable[str], folders: Folders = _NO_FOLDERS
) -> tuple[dict[tuple[str, ...], list[str]], list[tuple[_Role, str]]]:
    """Return the images of each key, and the masks; words at the beginning of names are not part of keys."""
    images: dict[tuple[str, ...], list[str]] = {}
    masks: list[tuple[_Role, str]] = []
    for name in names:
        role = _role(name, folders)
        word = _FIRST_WORD.match(role.key[-1])
        field = _FIRST_WORDS[word[1].lower()] if word and not name.lower().endswith(_JPEG) else ""
        key = (*role.key[:-1], role.key[-1][word.end() if word else 0 :])
        if field or role.field:
            masks.append((role._replace(key=key, field=role.field or field), name))
        else:
            images.setdefault(key, []).append(name)
    return images, masks


def _take(
    masks_of: dict[str, dict[str, str]], rivals: dict[str, str], images: Sequence[str], role: _Role, name: str
) -> bool:
    """Add a mask to its image if there is exactly one, without such a mask; return whether it was added."""
    field = stored_name(f"{role.field}{posixpath.splitext(name)[1].lower()}")
    if len(images) != 1:
        return False
    if (mask := masks_of.setdefault(images[0], {}).setdefault(field, name)) != name:
        rivals[name] = mask
    return mask == name


def siblings(names: Iterable[str], folders: Iterable[str]) -> Folders:
    """Return folders next to each other with files of the same names, one of them named like masks.

    >>> dict(siblings(["CXR_png/1.png", "lung masks/1.png"], ["CXR_png/", "lung masks/"]))
    {('CXR_png',): '', ('lung masks',): 'mask'}

    Args:
        names: Paths of images.
        folders: Their folders, by `layouts.folder_of`.
    """
    below: dict[tuple[str, ...], set[str]] = {}  # a folder -> the folders in it
    for path in folders:
        words = tuple(path.split("/")[:-1])
        for level, word in enumerate(words):
            below.setdefault(words[:level], set()).add(word)
    inside: dict[tuple[str, ...], set[tuple[str, ...]]] = {}  # a folder that may be one of the two -> its files
    for above, there in below.items():
        if sum(not _says_mask(folder) for folder in there) == 1 < len(there):
            inside |= {(*above, folder): set() for folder in there}
    for name in names if inside else ():
        *parents, last = name.split("/")
        for level in range(1, len(parents) + 1):
            if (files := inside.get(tuple(parents[:level]))) is not None:
                files.add((*parents[level:], _role(last).key[0]))
    images = {folder[:-1]: folder for folder in inside if not _says_mask(folder[-1])}
    fields: dict[tuple[str, ...], str] = {}
    for folder, files in inside.items():
        image = images[folder[:-1]]
        if folder != image and 2 * len(inside[image] & files) >= len(inside[image]) > 0:
            fields |= {image: "", folder: "depth" if "depth" in _words(folder[-1]) else "mask"}
    return fields


def have_one_name(folders: Folders) -> bool:
    """Return whether names of folders differ only in a word for images and one for masks.

    >>> have_one_name({("images_png",): "", ("masks_png",): "mask"})
    True
    >>> have_one_name({("face_images",): "", ("mask_images",): "mask"})
    False
    """
    words = {_words(folder[-1]): _MASK_WORD if field else _IMAGE_WORD for folder, field in folders.items()}
    return len({word.sub("#", name) for name, word in words.items()}) == 1


def folders_together(names: Iterable[str]) -> tuple[str, str] | None:
    """Return a folder of images and the folder of its masks; None without them. The names of files do not matter.

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
    roles = {name: _role(name, folders) for name in images}
    are_samples = (
        bool(images)
        and all(  # 7/image.png, 7/images/7.png
            key[-1].lower() in _FIRST_WORDS or (folder and key[-1] in key[-2:-1]) for key, _, folder in roles.values()
        )
    )
    end = -2 if are_samples else -1  # each folder is a sample
    kept = {name: [part for part in role.key[:end] if not is_split_name(part)] for name, role in roles.items()}
    while kept and all(kept.values()) and len({parts[0] for parts in kept.values()}) == 1:
        kept = {name: parts[1:] for name, parts in kept.items()}
    if not all(kept.values()) or any(_CITIES in name for name in images):
        return {}
    class_of = {name: parts[0] for name, parts in kept.items()}
    names = set(class_of.values())
    is_each_alone = len(names) == len(images) and (len(names) > _MANY or differ_in_numbers(names))
    if is_each_alone or any(is_split_name(word) for name in names for word in _WORDS.split(name)):
        return {}
    return class_of


def note_on_names(names: Sequence[str]) -> list[str]:
    """Return a note if some images, but not all, have names of masks, or names that extend others.

    >>> note_on_names(["1.jpg", "2.jpg"]), len(note_on_names(["1.jpg", "1_mask.jpg"]))
    ([], 1)
    >>> len(note_on_names(["1.png", "img_1.png", "mask_1.png"])), note_on_names(["img_1.png", "mask_2.png"])
    (1, [])
    >>> len(note_on_names(["1.jpg", "1_expert.png"])), note_on_names(["1.jpg", "1_2.jpg", "x_expert.png"])
    (1, [])
    >>> len(note_on_names(["1_img.png", "1_lbl.png"])), len(note_on_names(["1.jpg", "1.trimap.png"]))
    (1, 1)
    >>> note_on_names(["1_img.png", "2_img.png", "v1.jpg", "v1.2.jpg"])
    []
    """
    endings = Counter(end for text in _joined(names) for end in _ANY_ENDING.findall(text) if end not in _OTHER_ENDINGS)
    count, such = endings.total(), f"that end in {quoted(endings)}"
    if not endings:
        images, masks = _divided_by_first_words(names if any(map(_ANY_FIRST_WORD.search, _joined(names))) else ())
        of_images = [name for role, name in masks if role.key in images]
        if not of_images:
            return _note_on_additions(names[:_EXTENDED])
        count, such = len(of_images), f"such as {of_images[0]!r}"
    if count == len(names):
        return []
    note = (
        f"{counted(count, 'file')} packed as images, although names {such} are usual for masks: put masks into a "
        "folder 'masks' next to a folder 'images'"
    )
    return [note]


def partners(images: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return image -> another image with its name; they are in folders that are named like the same split.

    >>> partners(["a/1.jpg", "a/2.jpg"], ["lesions/1.png", "lesions/3.png"])
    {'a/1.jpg': 'lesions/1.png'}
    """
    by_stem = {(split_in(folder_of(path)), file_stem(path)): path for path in images}
    keys = {path: (split_in(folder_of(path)), file_stem(path)) for path in others}
    return {by_stem[key]: path for path, key in keys.items() if key in by_stem}


def _note_on_additions(names: Iterable[str]) -> list[str]:
    """Return a note if half of the images have another image with their name and an addition, the same for all."""
    of_stems = {posixpath.splitext(name)[0]: name for name in names}
    paths = {short if (short := _OF_IMAGE.sub("", stem)) not in of_stems else stem: of_stems[stem] for stem in of_stems}
    by_addition: dict[str, list[str]] = {}
    for stem in paths:
        match = _ADDITION.search(stem, stem.rfind("/") + 1)
        while match is not None and stem[: match.start()] not in paths:
            match = _ADDITION.search(stem, match.end())
        if match is not None:
            by_addition.setdefault(stem[match.start() :], []).append(stem)
    addition, stems = max(by_addition.items(), key=lambda item: len(item[1]), default=("", []))
    pairs = [(stem.removesuffix(addition), stem) for stem in stems]
    images = len(paths) - sum(map(len, by_addition.values()))
    if 2 * len(pairs) < images or not pairs:
        by_words: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for stem, path in paths.items():
            by_words.setdefault((folder_of(stem), _stem_words(_A_OR_B.sub("", path))), []).append(stem)
        pairs = [(same[0], same[1]) for same in by_words.values() if len(same) == 2]
        is_one = len(pairs) == 1 and _A_OR_B.search(paths[pairs[0][0]])  # as of the letters of an alphabet
        if 4 * len(pairs) < len(paths) or not pairs or is_one:
            return []
    first, second = pairs[0]
    note = (
        f"images such as {paths[first]!r} and {paths[second]!r} have names as an image and its mask, or two images of "
        "a sample: name masks 1_mask.png, or write a table image,target"
    )
    return [note]


def notes_on_classes(paths: Sequence[str], classes: Mapping[str, str], *, where: str) -> list[str]:
    """Return notes if classes have names that are usual for the folder of all images, or images of the same names.

    >>> folders = {"cat/": "cat", "dog/": "dog"}
    >>> notes_on_classes(["cat/1.jpg", "dog/2.jpg"], folders, where="pets")
    []
    >>> len(notes_on_classes(["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"], folders, where="pets"))
    1

    Args:
        paths: Paths of images, sorted.
        classes: Folder of images -> class.
        where: Name of the tree, for messages.

    Raises:
        SourceError: Two classes are named like images and their masks, or like two images of each sample.
    """
    names = sorted({*classes.values()})
    masks = list(filter(_says_mask, names))
    others = [name for name in names if name not in masks]
    images = [name for name in others if _IMAGE_WORD.search(_words(name))]
    if len(names) < 2:
        return [f"all images have the class {name!r}: pack the folder of this name if it is not one" for name in names]
    folders = "or pass --from folder (kind='folder') if the folders are classes"
    pair, same = _paired(names, paths, classes), _same_names(paths, classes)
    if masks and not pair and (images or (same and others)):
        raise SourceError(
            f"{where} has the folders {(images or others)[0]!r} and {masks[0]!r}, named like images and their masks, "
            f"in which files have other names: rename them as in images/1.png and masks/1.png, {folders}"
        )
    if pair or (images and same):
        first, second = pair or (images[0], next(name for name in names if name != images[0]))
        raise SourceError(
            f"{where} has the folders {first!r} and {second!r}, named like two images of each sample, and files with "
            "the same names: write and pack a table with a row for each sample, such as image,target; pack one of the "
            f"folders; {folders}"
        )
    notes = [
        f"the folder {name!r} is packed as a class, although its name is usual for the folder of all images: pack "
        "it alone if the other folders have masks, or other images of the same samples"
        for name in images[:1]
    ]
    if same and len(names) <= _VIEWS:
        notes.append(
            f"the {len(names)} classes have images of the same names, such as {same!r}: pack one of the folders if the "
            "others have further images of the same samples"
        )
    return notes


def _same_names(paths: Sequence[str], classes: Mapping[str, str]) -> str:
    """Return a name of an image if all classes have several images, of the same names; otherwise nothing.

    The extensions may differ if each class has one, as photographs and their masks have.
    """
    names, stems, extensions = set[frozenset[str]](), set[frozenset[str]](), set[str]()
    for _, group in groupby(paths, lambda path: classes.get(folder_of(path))):
        files = frozenset(map(posixpath.basename, group))
        names.add(files)
        stems.add(frozenset(map(file_stem, files)))
        extensions.add(" ".join(sorted({posixpath.splitext(file)[1] for file in files})))
    are_same = len(names) == 1 or (len(stems) == 1 and not any(" " in types for types in extensions))
    return posixpath.basename(paths[0]) if are_same and len(next(iter(stems))) > 1 else ""


def _paired(names: Sequence[str], paths: Sequence[str], classes: Mapping[str, str]) -> tuple[str, str] | None:
    """Return two classes, if all are named like one of two images of a sample, and most files of one have a partner."""
    words = {name: {*_words(name).split("_")} for name in names}
    words |= {name: set() for name in names if len(name) == 1 and name.islower()}  # pix2pix: A, B
    for word, partners in _PAIRS.items():
        inputs = {name for name, parts in words.items() if parts == {word} or (word in parts and len(word) > 1)}
        targets = {name for name, parts in words.items() if parts & partners and (len(word) > 1 or len(parts) == 1)}
        targets -= inputs
        if not inputs or not targets or not all(map(_says_mask, {*names} - inputs - targets)):
            continue
        stems, more = (
            [_stem_words(path) for path in paths if classes.get(folder_of(path)) in side] for side in (inputs, targets)
        )
        for first, second in ((stems, more), (more, stems)):
            there = {*first}
            if len(first) > 1 and 2 * sum(
                any(stem[:end] in there for end in range(len(stem) + 1)) for stem in second
            ) >= len(second):
                return min(inputs), min(targets)
    return None


def _stem_words(path: str) -> tuple[str, ...]:
    """Return the words of a file name, without words for one of two images of a sample."""
    return tuple(word for word in _words(file_stem(path)).split("_") if word not in _ALL_PAIRED)


def _says_mask(folder: str) -> bool:
    return _MASK_WORD.search(_words(folder)) is not None


def _words(name: str) -> str:
    """Return the words of a name in lower case: ``PedMasks`` has two."""
    return "_".join(_WORD.findall(name)).lower()


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
        ending = _folder_ending(word)
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


@lru_cache(maxsize=4096)
def _folder_ending(folder: str) -> str:
    """Return the end of the lower-case name of a folder that states that it has masks; "" without one."""
    after_split = _SPLIT_ENDING.search(folder)
    if after_split and is_split_name(folder[: after_split.start()]):
        return after_split[0]
    return next((end for end in FOLDER_ENDINGS if folder.endswith(end) and len(folder) > len(end)), "")


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
