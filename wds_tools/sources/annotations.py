"""What COCO, YOLO and VOC have in common: annotations by the name of their image. No I/O."""

from __future__ import annotations

import codecs
import json
import posixpath
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.account import Part
from wds_tools.format.field_classes import ClassList
from wds_tools.format.objects import Object, name_of, remarks, scaled
from wds_tools.sources.base import Skip
from wds_tools.wording import counted

_MAX_NAMED = 10  # of the objects of one kind
_FILE = "described in"  # among the entries of an image: the file that has them, for messages
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_encoder = json.JSONEncoder(separators=(",", ":"))


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


def class_list(annotations: Annotations, where: str) -> ClassList:
    """Return the classes of objects, each of which has a name."""
    unnamed = next((number for number, name in enumerate(annotations.names) if not name.strip()), None)
    if unnamed is not None:
        raise SourceError(f"class number {unnamed} of {where} has no name: add it, or remove the empty line or entry")
    return ClassList(annotations.names, annotations.ids, tuple(map(json.dumps, annotations.attributes)))


def text_of(data: bytes, where: str) -> str:
    """Return the text of a file, in UTF-8 or as its byte order mark states."""
    encoding = stated_encoding(data) or "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeError as error:
        raise SourceError(
            f"{where} is not text in {encoding.removesuffix('-sig').upper()} ({error}): save it as UTF-8"
        ) from error


def stated_encoding(head: bytes) -> str | None:
    """Return the encoding that the byte order mark of a text states; None without one, or for UTF-8."""
    return next((name for mark, name in _BOMS if head.startswith(mark)), None)


def lines_of(data: bytes, where: str) -> list[str]:
    """Return the lines of a file that are not empty, without spaces around them."""
    return [stripped for line in text_of(data, where).splitlines() if (stripped := line.strip())]


def packed(facts: Mapping[str, Any]) -> bytes:
    """Return the entries of a sample compactly: there may be as many as images, with all outlines of their objects."""
    return zlib.compress(_encoder.encode(dict(facts)).encode(), 1)


def unpacked(data: bytes) -> dict[str, Any]:
    """Return what `packed` was given."""
    facts: dict[str, Any] = json.loads(zlib.decompress(data))
    return facts


def renumbered(data: bytes, numbers: Sequence[int]) -> bytes:
    """Return entries of a sample whose objects have the class ``numbers[n]`` in place of n."""
    facts = unpacked(data)
    objects = [entry | {"category": numbers[entry["category"]]} for entry in facts.get("objects", ())]
    return packed(facts | {"objects": objects}) if objects else data


def unpacked_bytes(data: bytes) -> int:
    """Return the length of what `packed` was given as JSON; 0 for no bytes."""
    return len(zlib.decompress(data)) if data else 0


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
    stems = {image: stem_of(image) for image in stated}
    image_stems = set(stems.values())
    misnamed = [
        image for image, name in stated.items() if (stem := stem_of(name)) in image_stems and stem != stems[image]
    ]
    if not misnamed:
        return []
    first = misnamed[0]
    note = (
        f"{counted(len(misnamed), kind)} with the name of another image in {place}, such as "
        f"{stem_of(stated[first])!r} in {file_of[first]!r}: each belongs to the image with the name of the file"
    )
    return [note]


def stem_of(path: str) -> str:
    """Return the name of a file without folders, of any system, and without extension."""
    return posixpath.splitext(posixpath.basename(path.replace("\\", "/")))[0]


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
        """List objects that are kept, but that a user should know about."""
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
