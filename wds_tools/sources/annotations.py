"""What COCO, YOLO and VOC have in common: annotations by the name of their image. No I/O."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.account import Part
from wds_tools.format.objects import Object, name_of, remarks, scaled
from wds_tools.sources.base import Skip
from wds_tools.wording import counted

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
        skipped: Images whose annotations cannot be used.
        parts: What becomes of the entries of the annotation file.
        notes: What a user should know, for the account.
    """

    names: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    attributes: tuple[dict[str, Any], ...] = ()
    images: dict[str, bytes] = field(default_factory=dict)
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: list[Skip] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def text_of(data: bytes, where: str) -> str:
    """Return the text of a file.

    Raises:
        SourceError: It is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{where} is not text in UTF-8 ({error})") from error


def packed(facts: Mapping[str, Any]) -> bytes:
    """Return the entries of a sample compactly: there may be as many as images, with all outlines of their objects."""
    return zlib.compress(_encoder.encode(dict(facts)).encode(), 1)


def unpacked(data: bytes) -> dict[str, Any]:
    """Return what `packed` was given."""
    facts: dict[str, Any] = json.loads(zlib.decompress(data))
    return facts


def unpacked_bytes(data: bytes) -> int:
    """Return the length of what `packed` was given as JSON; 0 for no bytes."""
    return len(zlib.decompress(data)) if data else 0


def completed(facts: dict[str, Any], width: int, height: int) -> dict[str, Any]:
    """Return the entries of a sample when the size of its image is known.

    Positions that are fractions of the image become pixels, and a missing size is added.

    Args:
        facts: What `unpacked` returned.
        width: Width of the image in pixels, as it is shown: its EXIF orientation is applied.
        height: Height of the image.

    Raises:
        SourceError: The annotations are for an image of another size.
    """
    if facts.get("fractions"):
        objects = scaled(facts["objects"], width, height)
        return {"width": width, "height": height, "objects": objects}
    stated = facts.get("width", width), facts.get("height", height)
    if stated != (width, height):
        raise SourceError(
            f"its annotations are for an image of {stated[0]}x{stated[1]}, and the image is {width}x{height} as it is "
            "shown (with its EXIF orientation): correct the size or the image"
        )
    list(remarks(facts.get("objects", ()), width, height))  # of an image whose size the source does not state
    return {"width": width, "height": height, **{name: value for name, value in facts.items() if name != "fractions"}}


class Collected:
    """Annotations while they are collected: images with bad boxes are skipped, what is remarkable is counted."""

    def __init__(self) -> None:
        self.found = Annotations()
        self._remarks: dict[str, tuple[int, str]] = {}

    def add(
        self, image: str, make: Callable[[], dict[str, Any]], width: float, height: float, tolerance: float = 1.0
    ) -> None:
        """Add an image, or skip it if ``make``, which returns its entries, raises a SourceError.

        The other arguments are those of `remarks`.
        """
        try:
            facts = make()
            objects: Sequence[Object] = facts.get("objects", ())
            for number, remark in remarks(objects, width, height, tolerance):
                self.remark(remark, f"{name_of(objects[number], number)} of {image!r}")
            self.found.images[image] = packed(facts)
        except SourceError as error:
            self.skip(image, error)

    def skip(self, image: str, error: SourceError) -> None:
        """Skip an image whose annotations cannot be read."""
        self.found.skipped.append(Skip(image, str(error)))

    def remark(self, what: str, example: str) -> None:
        """Count an object that is kept but that a user should know."""
        count, first = self._remarks.get(what, (0, example))
        self._remarks[what] = count + 1, first

    def finished(self) -> Annotations:
        """Return the annotations with their notes."""
        self.found.notes += [
            f"{counted(count, 'object')} {what}, kept as in the source, such as {first}"
            for what, (count, first) in sorted(self._remarks.items())
        ]
        return self.found
