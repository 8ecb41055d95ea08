"""Trees of images with annotations: what COCO, YOLO, VOC and masks have in common.

Each layout finds its annotation files in the listing, parses them once for all splits, so that class numbers are the
same in all of them, and states what becomes of every other file.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.account import Part
from wds_tools.format.class_notes import NamesFromOne
from wds_tools.format.field_classes import ClassList
from wds_tools.format.label import NONE, quoted
from wds_tools.format.label import name as label_name
from wds_tools.format.objects import CATEGORY_PATH, Object, name_of, packed, remarks, scaled, unpacked
from wds_tools.sources import layouts, masks
from wds_tools.sources.base import Collector, Record, Skip
from wds_tools.sources.file_list import Files, in_other_letters
from wds_tools.sources.file_names import ABOUT_ALL
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import file_stem, split_folder
from wds_tools.sources.tree import Layout
from wds_tools.sources.values import image_size
from wds_tools.wording import counted

_SIZE_BYTES = 64  # that `completed` may add to a sample
LOOKED_AT = 3  # files of annotations
_MAX_NAMED = 10  # objects in a message
_FILE = "described in"  # among the entries of an image: the file that has them, for messages


@dataclass(slots=True)
class Annotations:
    """The annotations of a dataset.

    Attributes:
        names: Class names by number.
        ids: The number that each class has in the source; empty if these are the class numbers.
        attributes: Further attributes of each class, such as names of key points; empty if there are none.
        images: Name of an image in the source -> its entries of the ``json`` field, see `packed`.
        fields: Name of an image -> field -> file that becomes this field.
        labels: Name of an image -> its classes, if the file states no objects.
        skipped: Images whose annotations cannot be used.
        parts: What becomes of the entries of the annotation file.
        notes: What a user should know, for the account.
    """

    names: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    attributes: tuple[dict[str, Any], ...] = ()
    images: dict[str, bytes] = field(default_factory=dict)
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: list[Skip] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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

    file_kind: ClassVar[str]
    """What the file with the annotations of one image is, for messages."""

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
        has_lists = any(layouts.is_image_set(file.path) for split in splits for file in split.used)
        lists = {file.path for file in files.others if has_lists and layouts.is_image_set(file.path)}
        folders = {posixpath.dirname(file.path) for split in splits for file in split.file_of.values()}
        like = [path for file in files.others if posixpath.dirname(path := file.path) in folders]
        of_no_image = {path for path in like if path.lower().endswith(self.annotation_ending)} - read
        of_no_image -= in_other_letters(of_no_image, files.images.paths).keys()
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
        if split.file_of and (without := [path for path in paths if path not in split.file_of]):
            collector.account.notes.append(
                f"{len(without):,} of {len(paths):,} images have no {self.file_kind}, and so no objects, such as "
                f"{without[0]!r}: move those away that are masks or copies of others"
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
        if isinstance(given, NamesFromOne) and given[0] in listed.names:
            raise SourceError(f"{split.source} numbers classes from 0, and the names that were given count from 1")
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

    def _why_skipped(self, files: Files, file: File, split: Described) -> str:
        if layouts.is_image_name(file.path):
            is_listed = not masks.is_mask(file.path)
            return f"is not listed in {split.source}" if is_listed else "is named like a mask, but belongs to no image"
        if layouts.is_image_set(file.path) and any(layouts.is_image_set(used.path) for used in split.used):
            return "is a list of images, and another list is used instead"
        path = file.path.lower()
        if path.endswith(self.annotation_ending) and not ABOUT_ALL.match(posixpath.basename(path)):
            return "belongs to no image that is packed"
        return files.why_not_packed(file.path)


def without_masks(files: Files, file_of: Mapping[str, File]) -> tuple[list[File], dict[str, dict[str, File]]]:
    """Return the images, and the masks of each by field, if images are described by separate files."""
    pairs, taken = masks_of_described(files, file_of)
    return [file for file in files.images if file.path not in taken], files.named(pairs)


def masks_of_described(
    files: Files, file_of: Mapping[str, object], listed: Set[str] = frozenset()
) -> tuple[list[tuple[str, dict[str, str]]], set[str]]:
    """Return the masks of images as in `Pairs`, and all masks, if images are described by separate files.

    Args:
        files: All files.
        file_of: Path of an image -> the file about it. A mask with such a file is an image if its image has none.
        listed: Names of images. A file with such a name is a mask only of an image with the same name.
    """
    pairing = files.pairing
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


def _no_such_file(split: Described, name: str) -> str:
    """Return why an image that is missing is skipped, with the names of its objects."""
    reason = f"is listed in {split.missing.get(name, split.source)}, but there is no such file"
    facts = split.annotations.images.get(name)
    objects = unpacked(facts).get("objects", ()) if facts else ()
    names = [name_of(item, index) for index, item in enumerate(islice(objects, _MAX_NAMED))]
    more = ["..."] if len(objects) > len(names) else []
    return f"{reason}; {counted(len(objects), 'object')} left out: {', '.join(names + more)}" if names else reason


def class_list(annotations: Annotations, where: str) -> ClassList:
    """Return the classes of objects, each of which has a name."""
    unnamed = next((number for number, name in enumerate(annotations.names) if not name.strip()), None)
    if unnamed is not None:
        raise SourceError(f"class number {unnamed} of {where} has no name: add it, or remove the empty line or entry")
    return ClassList(annotations.names, annotations.ids, tuple(map(json.dumps, annotations.attributes)))


def renumbered(data: bytes, numbers: Sequence[int]) -> bytes:
    """Return entries of a sample whose objects have the class ``numbers[n]`` in place of n."""
    facts = unpacked(data)
    objects = [entry | {"category": numbers[entry["category"]]} for entry in facts.get("objects", ())]
    return packed(facts | {"objects": objects}) if objects else data


def completed(facts: dict[str, Any], width: int, height: int) -> dict[str, Any]:
    """Return the entries of a sample when the size of its image is known.

    Positions that are fractions of the image become pixels, and a missing size is added.

    ``facts`` are what `unpacked` returned, and the size is that of the image as it is shown: its EXIF orientation is
    applied.
    """
    facts = dict(facts)
    where = f", in {facts.pop(_FILE)}" if _FILE in facts else ""
    if facts.get("fractions"):
        objects = scaled(facts["objects"], width, height)
        return {"width": width, "height": height, "objects": objects}
    stated = facts.get("width", width), facts.get("height", height)
    if stated != (width, height):
        raise SourceError(
            f"its annotations are for an image of {stated[0]}x{stated[1]}, and the image is {width}x{height} as it is "
            f"shown (with its EXIF orientation){where}: correct the size or the image"
        )
    try:
        list(remarks(facts.get("objects", ()), width, height))  # of an image whose size the source does not state
    except SourceError as error:
        raise SourceError(f"{error}{where}") from error
    return {"width": width, "height": height, **{name: value for name, value in facts.items() if name != "fractions"}}


def first_of(named: Sequence[str]) -> str:
    """Return the first names of a list, and dots if there are more."""
    return "; ".join(named[:_MAX_NAMED]) + (" ..." if len(named) > _MAX_NAMED else "")


def notes_on_names(stated: Mapping[str, str], file_of: Mapping[str, str], kind: str, place: str) -> list[str]:
    """Return a note if files about one image state the name of another one.

    Args:
        stated: Image -> name of the image in its file, a path, with or without extension.
        file_of: Image -> its file.
        kind: What the files are, for messages.
        place: Where the name is, for messages.
    """
    stems = {image: file_stem(image) for image in stated}
    image_stems = set(stems.values())
    misnamed = [
        image for image, name in stated.items() if (stem := _stem(name)) in image_stems and stem != stems[image]
    ]
    if not misnamed:
        return []
    first = misnamed[0]
    note = (
        f"{counted(len(misnamed), kind)} with the name of another image in {place}, such as "
        f"{_stem(stated[first])!r} in {file_of[first]!r}: each belongs to the image with the name of the file"
    )
    return [note]


def _stem(path: str) -> str:
    """Return the name of a file without folders, of any system, and without extension."""
    return file_stem(path.replace("\\", "/"))


class Collected:
    """Annotations while they are collected: images with bad boxes are skipped, and remarks are listed."""

    def __init__(self) -> None:
        self.annotations = Annotations()
        self._remarks: dict[str, tuple[int, list[str]]] = {}

    def add(
        self,
        image: str,
        make: Callable[[], dict[str, Any]],
        size: tuple[float, float],
        *,
        file: str,
        tolerance: float = 1.0,
    ) -> None:
        """Add an image, or skip it if its annotations cannot be used.

        Args:
            image: Its name.
            make: Function that returns its entries, or raises a SourceError.
            size: Width and height, as for `remarks`.
            file: File with its annotations, for messages.
            tolerance: As for `remarks`.
        """
        try:
            facts = make()
            objects: Sequence[Object] = facts.get("objects", ())
            for index, remark in remarks(objects, *size, tolerance):
                self.remark(remark, f"{name_of(objects[index], index)} of {image!r} in {file}")
            self.annotations.images[image] = packed({**facts, _FILE: file})
        except SourceError as error:
            self.skip(image, error, file)

    def skip(self, image: str, error: SourceError, file: str) -> None:
        """Skip an image whose annotations cannot be read."""
        self.annotations.skipped.append(Skip(image, str(error) if file in str(error) else f"{error}, in {file}"))

    def remark(self, what: str, where: str, count: int = 1) -> None:
        """List objects that are kept, but about which a user should know."""
        before, named = self._remarks.get(what, (0, []))
        self._remarks[what] = before + count, [*named, where][: _MAX_NAMED + 1]

    def finished(self) -> Annotations:
        """Return the annotations with their notes."""
        self.annotations.notes += [
            f"{counted(count, 'object')} {what}, kept as in the source: {first_of(named)}"
            + (" (`wds-tools verify DATASET --json` names all)" if count > _MAX_NAMED else "")
            for what, (count, named) in sorted(self._remarks.items())
        ]
        return self.annotations
