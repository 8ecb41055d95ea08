"""Trees of images with annotations: VOC, and images with masks; what they share with COCO and YOLO.

Each layout finds its annotation files in the listing, parses them once for all splits, so that class numbers are the
same in all of them, and states what becomes of every other file.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.field_classes import ClassList
from wds_tools.format.label import NONE, quoted
from wds_tools.format.label import name as label_name
from wds_tools.format.objects import CATEGORY_PATH, name_of
from wds_tools.sources import about_images, folder_names, layouts, masks, voc
from wds_tools.sources.annotations import Annotations, class_list, completed, renumbered, unpacked
from wds_tools.sources.base import Collector, Record
from wds_tools.sources.columns import LABEL
from wds_tools.sources.file_list import Files
from wds_tools.sources.image_tables import mask_classes
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import split_folder
from wds_tools.sources.tree import Layout
from wds_tools.sources.values import image_size
from wds_tools.wording import counted

_SIZE_BYTES = 64  # that `completed` may add to a sample
LOOKED_AT = 3  # files of annotations
_MOST_NAMED = 10  # objects of a missing image


class Members(NamedTuple):
    """The images of a split, the files that list them, and listed images that are missing: name -> list."""

    images: Sequence[File]
    lists: tuple[File, ...] = ()
    missing: Mapping[str, str] = MappingProxyType({})

    @property
    def by_path(self) -> dict[str, File | None]:
        """Path -> image; None if it is missing."""
        return {file.path: file for file in self.images} | dict.fromkeys(self.missing)


@dataclass(slots=True)
class Described:
    """What a split is made of.

    Attributes:
        annotations: The annotations of its images.
        images: Name of an image in ``annotations`` -> its file; an image that is missing has none.
        parts: Path of an image -> field -> file.
        used: Files about several images.
        source: What lists the images, for messages.
        file_of: Path of an image -> the file about only this image.
        file_kind: What such a file is, for the note about images without one.
        classes: Path of an image -> class or classes; empty if the classes belong to the objects.
        notes: What a user should know about the split, as well as the notes of ``annotations``.
        missing: Name of a missing image -> file that lists it, if that is not ``source``.
    """

    annotations: Annotations
    images: Mapping[str, File | None]
    parts: Mapping[str, dict[str, File]]
    used: Sequence[File]
    source: str
    file_of: Mapping[str, File] = field(default_factory=dict)
    file_kind: str = ""
    classes: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def there(self) -> list[File]:
        """Its images, without missing ones."""
        return [file for file in self.images.values() if file is not None]

    @property
    def annotation_files(self) -> list[File]:
        """The files that are read for its annotations. 1.jpg and 1.png have the same 1.txt."""
        files = [self.file_of[image.path] for image in self.there if image.path in self.file_of]
        return list({file.path: file for file in (*self.used, *files)}.values())


class Annotated(Layout):
    """Images whose objects are in other files."""

    expected: ClassVar[str]
    """What the files of this layout are, for the message if there are none."""

    annotation_ending: ClassVar[tuple[str, ...]] = ()
    """How the names of files with the annotations of one image end."""

    labels: ClassVar[str] = ""
    place: ClassVar[str] = CATEGORY_PATH
    """Where the numbers of classes are."""

    _plan: dict[str, Described] | None = None

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether files are arranged in this layout."""
        raise NotImplementedError

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if the files have it."""
        return cls() if cls.matches(files) else None

    def splits(self, files: Files) -> Mapping[str, Sequence[File]]:
        """Return the files of each split. Files of no split are in the first."""
        if self._plan is None:
            if not self._is_there(files):
                raise SourceError(f"{files.where} is not in the layout {self.kind}: it needs {self.expected}")
            self._plan = self._read(files)
            if list(self._plan) == [""]:
                self._plan = _by_folder(self._plan[""], files.where)
        if list(self._plan) == [""]:
            return {}
        claimed = {}
        for name, part in self._plan.items():
            further = [file for image in part.there for file in part.parts.get(image.path, {}).values()]
            claimed[name] = {file.path for file in (*part.there, *further, *part.annotation_files)}
        return files.divided(claimed)

    def files_read(self, files: Files) -> Set[str]:
        self.splits(files)
        splits = (self._plan or {}).values()
        read = {file.path for split in splits for file in split.annotation_files}
        folders = {posixpath.dirname(file.path) for split in splits for file in split.file_of.values()}
        like = [path for file in files.others if posixpath.dirname(path := file.path) in folders]
        of_no_image = {path for path in like if path.lower().endswith(self.annotation_ending)}
        has_lists = any(layouts.is_image_set(file.path) for split in splits for file in split.used)
        lists = {file.path for file in files.others if has_lists and layouts.is_image_set(file.path)}
        return read | of_no_image | lists | super().files_read(files)

    def _collect(self, collector: Collector, files: Files, split: Described) -> None:
        self._state(collector, files, split)
        names = split.annotations.names
        classes = collector.field_classes.get(CATEGORY_PATH, ClassList(names)).names
        numbers = () if classes == names else tuple(map(classes.index, names))
        reasons = {skip.path: skip.reason for skip in split.annotations.skipped}
        done = {file.path for file in split.annotation_files}
        for name, file in split.images.items():
            if file is None:
                collector.account.given += 1
                collector.skip(name, _no_such_file(split, name))
                continue
            parts = split.parts.get(file.path, {})
            done |= {file.path, *(part.path for part in parts.values())}
            if name in reasons:
                self.skip(collector, file, reasons[name], parts)
            else:
                facts = split.annotations.images.pop(name, b"")
                facts = renumbered(facts, numbers) if numbers and facts else facts
                of_image = split.classes.get(file.path, ())
                label = label_name(of_image) if isinstance(of_image, str) else list(map(label_name, of_image)) or NONE
                self.add_image(collector, file, label, parts=parts, facts=facts, extra=_SIZE_BYTES)
        for file in files.files:
            if file.path not in done:
                self.skip(collector, file, self._why_skipped(files, file, split))

    def _state(self, collector: Collector, files: Files, split: Described) -> None:
        """State what the annotation files and their entries become."""
        annotations, paths = split.annotations, [file.path for file in split.there]
        if used := split.annotation_files:
            collector.account.attach("annotations", len(used))
        collector.account.parts += dict.fromkeys(annotations.parts)  # of several files, each once
        collector.account.notes += [*annotations.notes, *split.notes]
        if split.file_kind and (without := [path for path in paths if path not in split.file_of]):
            collector.account.notes.append(
                f"{len(without):,} of {len(paths):,} images have no {split.file_kind}, and so no objects, such as "
                f"{without[0]!r}"
            )
        folders = set() if split.classes else set(masks.classes(paths).values())
        if len(folders) > 1 and annotations.names:
            collector.account.notes.append(
                f"folders such as {quoted(sorted(folders)[:2])} are not labels, because the classes belong to the "
                "objects: pass --from folder (kind='folder') if the folders are classes"
            )
        if annotations.labels:
            collector.classes = annotations.names
        elif annotations.names:
            collector.field_classes[self.place] = self._classes(split)
        stated = json.dumps(self.options.classes).encode() if self.options.classes else b""
        collector.add_to_stamp([*map(files.read, used), stated])

    def _classes(self, split: Described) -> ClassList:
        """Return the classes of objects: those that the user names, or all of the source."""
        listed = class_list(split.annotations, split.source)
        given = self.options.classes if self.place == CATEGORY_PATH else None
        return listed.with_names(given, split.source) if given else listed

    def record(self, image: bytes, parts: Mapping[str, bytes], facts: Mapping[str, Any]) -> Record:
        """Return an image with its objects in pixels.

        Raises:
            SourceError: The annotations or a mask are for an image of another size.
        """
        record = super().record(image, parts, {})
        return record._replace(facts=completed(dict(facts), *image_size(record.image)))

    def _is_there(self, files: Files) -> bool:
        """Return whether files are arranged in this layout, which the user named."""
        return self.matches(files)

    def _read(self, files: Files) -> dict[str, Described]:
        """Return the splits by name; of a tree without splits, one with an empty name."""
        raise NotImplementedError

    def without_masks(
        self, files: Files, file_of: Mapping[str, File], file_kind: str
    ) -> tuple[list[File], dict[str, dict[str, File]]]:
        """Return the images, and the masks of each by field. A file that is described by a separate file is an image.

        Args:
            files: All files.
            file_of: Path of an image -> the file about only this image.
            file_kind: What such a file is, for messages.

        Raises:
            SourceError: Images in a separate folder have the names of described images, but no file: they may be masks.
                Or names of files differ only in case.
        """
        pairs, taken = masks_of_described(files, file_of)
        images = [file for file in files.images if file.path not in taken]
        described = [file.path for file in images if file.path in file_of]
        folders = {posixpath.dirname(path) for path in described}
        others = [file.path for file in images if file.path not in file_of]
        _check_case(files, file_of, others, file_kind)
        others = [path for path in others if posixpath.dirname(path) not in folders]
        partners = {} if self.given else masks.partners(described, others)
        if partners:
            image, partner = next(iter(partners.items()))
            raise SourceError(
                f"{files.where} has images without annotations in a separate folder, such as {partner!r}, named like "
                f"images with annotations, such as {image!r}: if they are masks, name them as in masks/1.png or "
                f"1_mask.png; otherwise move them away, or pass --from {self.kind} (kind={self.kind!r}) to pack them "
                "as images without objects"
            )
        return images, files.named(pairs)

    def _why_skipped(self, files: Files, file: File, split: Described) -> str:
        if layouts.is_image_name(file.path):
            is_listed = not masks.is_mask(file.path)
            return f"is not listed in {split.source}" if is_listed else "is named like a mask, but belongs to no image"
        if layouts.is_image_set(file.path) and any(layouts.is_image_set(used.path) for used in split.used):
            return "is a list of images, and another list is used instead"
        if file.path.lower().endswith(self.annotation_ending):
            return "belongs to no image that is packed"
        return files.why_not_packed(file.path)


def masks_of_described(
    files: Files, file_of: Mapping[str, object], listed: Set[str] = frozenset()
) -> tuple[list[tuple[str, dict[str, str]]], set[str]]:
    """Return the masks of images as `Pairs` has them, and all masks, if images are described by separate files.

    Args:
        files: All files.
        file_of: Path of an image -> the file about it. A mask with such a file is an image if its image has none.
        listed: Names of images. A file with such a name is a mask only of an image with the same name.
    """
    paths = files.images.paths
    pairing = masks.pairs(paths if masks.may_have_masks(paths, files.folders) else ())
    pairing.check(files.where)

    def is_of(image: str, mask: str) -> bool:
        name = posixpath.basename(mask)
        is_listed = name in listed and name != posixpath.basename(image)
        return not is_listed and file_of.get(mask) in (None, file_of.get(image))

    masks_of = [
        (image, {field: mask for field, mask in fields.items() if is_of(image, mask)})
        for image, fields in pairing.pairs
    ]
    taken = {mask for _, fields in masks_of for mask in fields.values()} | pairing.rivals.keys()
    return masks_of, taken | {path for path in pairing.unpaired if masks.is_mask(path) and path not in file_of}


def _check_case(files: Files, file_of: Mapping[str, File], without: Sequence[str], file_kind: str) -> None:
    """Check that no image without a file has the name of a file that belongs to no image, in other letters."""
    endings = {posixpath.splitext(file.path)[1] for file in file_of.values()}
    used = {file.path for file in file_of.values()} if without else set()
    unused = [file.path for file in files.others if file.path not in used and file.path.endswith(tuple(endings))]
    if same := about_images.in_other_letters(unused, without):
        path, image = next(iter(same.items()))
        raise SourceError(
            f"{files.where}: the names of {path!r} and {image!r} differ only in case or accents, so {image!r} has no "
            f"{file_kind}: rename one of them"
        )


def _by_folder(split: Described, where: str) -> dict[str, Described]:
    """Return the parts of a split whose images are in folders that are named like splits, or all of it."""
    names: dict[str, dict[str, File | None]] = {
        folder: {} for folder in sorted({split_folder(file.path) for file in split.there})
    }
    if "" in names and len(names) > 1:
        outside = next(file.path for file in split.there if not split_folder(file.path))
        raise SourceError(
            f"{where} has images in folders named like splits ({quoted(filter(None, names))}), and others such as "
            f"{outside!r}: put all into splits, or pack the folders separately"
        )
    for name, file in split.images.items():
        folder = split_folder(name if file is None else file.path)
        names.get(folder, next(iter(names.values()), {}))[name] = file
    return {folder: replace(split, images=images) for folder, images in names.items()} or {"": split}


class Voc(Annotated):
    """Pascal VOC: ``Annotations/1.xml`` for ``JPEGImages/1.jpg``, or both in one folder; ``ImageSets/Main``."""

    kind = "voc"
    expected = "an XML file <annotation> for an image, such as Annotations/1.xml for JPEGImages/1.jpg"
    annotation_ending = (".xml",)

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether an image has a VOC annotation."""
        xml_files = _xml_files(files)
        first = [xml_files[path] for path in files.images.paths if path in xml_files][:LOOKED_AT] if xml_files else []
        return any(b"<annotation" in files.read(file)[:1000] for file in first)

    def _read(self, files: Files) -> dict[str, Described]:
        annotation = _xml_files(files)
        images, parts = self.without_masks(files, annotation, "XML file")
        annotated = [(file.path, annotation.get(file.path)) for file in images]
        everything = voc.annotations_of(
            (path, xml.path if xml else "", files.read(xml) if xml else None) for path, xml in annotated
        )
        plan = {}
        for split, members in _image_sets(files, images).items():
            source = "ImageSets" if split else "Annotations"
            lists, missing = members.lists, members.missing
            plan[split] = Described(
                everything, members.by_path, parts, lists, source, annotation, "XML file", missing=missing
            )
        return plan


def _xml_files(files: Files) -> dict[str, File]:
    """Return the XML file of each image that has one."""
    if not any(file.path.lower().endswith(".xml") for file in files.others):
        return {}
    by_key: dict[tuple[str, ...], File | None] = {}
    for file in files.others:
        if file.path.lower().endswith(".xml"):
            key = voc.pair_key(file.path)
            by_key[key] = None if key in by_key else file
    pairs = {file.path: by_key.get(voc.pair_key(file.path)) for file in files.images}
    return {path: xml for path, xml in pairs.items() if xml is not None}


def _image_sets(files: Files, images: Sequence[File], kind: str = "Main") -> dict[str, Members]:
    """Return the images of each split that ``ImageSets`` lists; all with an empty name without lists.

    VOC2007 and VOC2012 each have lists of the images next to their folder ``ImageSets``.
    """
    by_kind: dict[str, dict[str, list[tuple[str, File]]]] = {}  # folder in ImageSets -> folder above -> split, file
    for file in filter(lambda file: layouts.is_image_set(file.path), files.others):
        folder, name = posixpath.split(file.path)
        above, _, kind_here = f"{folder}/".rpartition("ImageSets/")
        if layouts.is_split_name(split := posixpath.splitext(name)[0]):
            by_kind.setdefault(kind_here.rstrip("/"), {}).setdefault(above, []).append((split, file))
    lists = next((by_kind[name] for name in (kind, "Main", "Segmentation", "") if name in by_kind), {})
    sets: dict[str, Members] = {}
    for folder, of_folder in lists.items():
        place = folder if len(lists) > 1 else ""
        stems = {layouts.file_stem(file.path): file for file in images if file.path.startswith(place)}
        others = (path for path in files.images.paths if path.startswith(place) and not masks.is_mask(path))
        all_stems = stems.keys() | set(map(layouts.file_stem, others))
        for split, file in of_folder:
            listed = dict.fromkeys(voc.image_set(files.read(file), file.path))
            if there := [stems[stem] for stem in listed if stem in stems]:
                before = sets.get(split, Members(()))
                missing = dict(before.missing) | {stem: file.path for stem in listed if stem not in all_stems}
                sets[split] = Members([*before.images, *there], (*before.lists, file), missing)
    if {"train", "val"} <= sets.keys():
        sets.pop("trainval", None)
    return sets or {"": Members(images)}


class Masks(Annotated):
    """Images with masks of the same name: ``images/`` and ``masks/``, CamVid, Cityscapes, VOC without XML files."""

    kind = "masks"
    labels = "folders"
    place = "mask.png"
    expected = "masks with the names of the images, such as masks/1.png for images/1.jpg"

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether an image has a mask."""
        paths = files.images.paths
        may_have_masks = masks.may_have_masks(paths, files.folders)
        return bool((may_have_masks and masks.pairs(paths).pairs) or masks.siblings(paths, files.folders))

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if at least half of the images have a mask."""
        paths = files.images.paths
        pairing = masks.pairs(paths if masks.may_have_masks(paths, files.folders) else ())
        of_other_splits = {*_in_splits_without_masks(pairing)}
        pairing = pairing._replace(unpaired=[name for name in pairing.unpaired if name not in of_other_splits])
        is_most = len(pairing.pairs) >= max(1, len(pairing.unpaired))
        if is_most:
            pairing.check(files.where)
        used = {posixpath.dirname(mask) for _, fields in pairing.pairs for mask in fields.values()}
        lost = [name for name in pairing.unpaired if not masks.is_mask(name) or posixpath.dirname(name) not in used]
        without = [*(image for image, _ in pairing.pairs), *lost] if is_most else paths  # masks of other folders
        if pairing.unpaired and (together := masks.folders_together(without)):
            example = next(filter(masks.is_mask, lost or pairing.unpaired), pairing.unpaired[0])
            only = "--from masks (kind='masks') to pack only images with such a mask, or " if pairing.pairs else ""
            raise SourceError(
                f"{files.where} has images in {together[0]!r} and masks in {together[1]!r}, and "
                f"{len(pairing.pairs) or 'no'} images have a mask with their name ({example!r} is not such a mask): "
                "merge the masks of an image into one file with its name; or pass "
                f"{only}--from folder (kind='folder') if the folders are classes"
            )
        if is_most:
            _check_further(files, pairing, lost)
            return cls()
        if siblings := masks.siblings(paths, files.folders):
            folders = quoted("/".join(folder) for folder in list(siblings)[:2])
            raise SourceError(
                f"{files.where} has the folders {folders} with files of the same names: pass --from masks "
                "(kind='masks') if the second has the masks of the first, or --from folder (kind='folder') if they are "
                "classes"
            )
        return None

    def _read(self, files: Files) -> dict[str, Described]:
        paths = files.images.paths
        pairing = masks.pairs(paths)
        folders = {} if pairing.pairs else masks.siblings(paths, files.folders)
        pairing = masks.pairs(paths, folders) if folders else pairing
        parts = files.named(pairing.pairs)
        without = _in_splits_without_masks(pairing)
        images = [*parts, *without]
        is_unlabelled = self.options.columns.get(LABEL) == ""
        classes = {} if is_unlabelled else masks.classes(images, folders) or masks.classes(parts, folders)
        notes = [*pairing.check(files.where), *masks.notes_on_roles(pairing.pairs)]
        notes += filter(None, [folder_names.note_on_numbers({*classes.values()}, "folders")])
        if without:
            splits, others = (quoted(sorted({*map(split_folder, paths)})) for paths in (parts, without))
            notes.append(f"there are masks of {splits} only, and none of {others}")
        names, used = mask_classes(files)
        names = names or (() if classes else tuple(self.options.classes or ()))
        plan = {}
        for split, members in _image_sets(files, [files.by_path[path] for path in images], "Segmentation").items():
            described = Described(Annotations(names), members.by_path, parts, [*used, *members.lists], "a pair")
            plan[split] = replace(described, classes=classes, notes=notes, missing=members.missing)
        return plan

    def _why_skipped(self, files: Files, file: File, split: Described) -> str:
        if layouts.is_image_name(file.path):
            return "has no mask, or is not the mask of any image that is packed"
        return super()._why_skipped(files, file, split)


def _in_splits_without_masks(pairing: masks.Pairs) -> list[str]:
    """Return the images in folders of splits without any mask, as of a test set; none if some pairs are in no split."""
    paired = {split_folder(image) for image, _ in pairing.pairs}
    if not paired or "" in paired:
        return []
    with_masks = {"", *paired, *(split_folder(name) for name in pairing.unpaired if masks.is_mask(name))}
    return [name for name in pairing.unpaired if split_folder(name) not in with_masks]


def _check_further(files: Files, pairing: masks.Pairs, others: Sequence[str]) -> None:
    """Check that no further folder has files with the names of most of the images, which could be masks too."""
    folders = {posixpath.dirname(image) for image, _ in pairing.pairs}
    others = [name for name in others if posixpath.dirname(name) not in folders]
    further = masks.partners((image for image, _ in pairing.pairs), others)
    if further and 2 * len(further) >= len(pairing.pairs):
        image, unpaired = next(iter(further.items()))
        _, mask = min(dict(pairing.pairs)[image].items(), key=lambda item: not item[0].startswith("mask"))
        raise SourceError(
            f"{files.where} has {mask!r} as the mask of {image!r}, and another file {unpaired!r} with the same name: "
            "if this is the mask, call its folder 'masks' and move the other file away; or pass --from masks "
            "(kind='masks') to pack without such files"
        )


def _no_such_file(split: Described, name: str) -> str:
    """Return why an image that is missing is skipped, with the names of its objects."""
    reason = f"is listed in {split.missing.get(name, split.source)}, but there is no such file"
    facts = split.annotations.images.get(name)
    objects = unpacked(facts).get("objects", ()) if facts else ()
    names = [name_of(item, index) for index, item in enumerate(islice(objects, _MOST_NAMED))]
    more = ["..."] if len(objects) > len(names) else []
    return f"{reason}; {counted(len(objects), 'object')} left out: {', '.join(names + more)}" if names else reason
