"""COCO: one JSON file with images, annotations and categories; instances, key points, panoptic, captions, LVIS. No I/O.

The file can have a million annotations with outlines. They are decoded one by one: first to learn which image each
belongs to, then image by image, so that the file and its compact result are in memory, and not all as Python objects.
"""

from __future__ import annotations

import codecs
import json
import math
import posixpath
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format.account import Part
from wds_tools.format.label import Classes, quoted
from wds_tools.format.objects import (
    OBJECT_KEYS,
    SAMPLE_KEYS,
    Object,
    bounding_box,
    box_from_size,
    box_of,
    further,
    numbers_of,
    packed,
    polygons_of,
    rle_box,
    run_lengths,
    unpacked,
)
from wds_tools.sources.annotated import Annotations, Collected, first_of
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.layouts import split_folder
from wds_tools.wording import counted

_LISTS = ("images", "annotations", "categories")
_DESCRIPTIONS = ("info", "licenses", "type")
_SPACE = re.compile(r"[ \t\r\n]*")
_KINDS = ("instances", "person_keypoints", "captions", "stuff", "panoptic", "image_info", "lvis_v1")
_WORDS = "|".join((*_KINDS, "annotations?", "coco", "labels?", "results?"))
_AROUND = re.compile(rf"^(({_WORDS})[-_.])+|([-_.]({_WORDS}))+$")
_MERGED = re.compile(r"(instances|person_keypoints|captions)(_.*)?\.json")
_ELSEWHERE = re.compile(r"/|\.\.|[A-Za-z]:|[a-z0-9]+://")
_GEOMETRY = ("bbox", "segmentation", "keypoints", "iscrowd")
_decode = json.JSONDecoder().raw_decode
_Id = int | str
_ONLY_LABELS = {"labels"}  # kinds of annotations, as iNaturalist has them


def is_coco(data: bytes) -> bool:
    """Return whether a JSON file can be COCO: it has the words of its lists."""
    data = data.replace(b"\0", b"") if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else data
    return b'"images"' in data and (b'"annotations"' in data or b'"categories"' in data)


def can_be_merged(path: str) -> bool:
    """Return whether a file is one of several that COCO provides for the same images."""
    return _MERGED.fullmatch(posixpath.basename(path)) is not None


def parse(data: bytes, where: str, *, left_out: tuple[str, ...] = (), ids_repeat: bool = False) -> Annotations:
    """Return the annotations of a COCO file.

    Category ids become class numbers in ascending order. Boxes become left, top, right, bottom. An annotation without
    a box gets the box around its outline. Images without annotations have an empty list of objects.

    Args:
        data: The file.
        where: Its name, for messages.
        left_out: Entries of images that do not become entries of samples.
        ids_repeat: Whether annotations of several images may have the same id, like an object in the frames of a film.

    Raises:
        SourceError: The file is not COCO, or what refers to an image or a category is ambiguous: ids that occur twice,
            images with one name, annotations with an unknown category.
        LabelError: Two categories with annotations have the same name.
    """
    return _Reader(data, where, left_out, ids_repeat).annotations()


class _Reader:
    def __init__(self, data: bytes, where: str, left_out: tuple[str, ...], ids_repeat: bool) -> None:
        self.where = where
        self.left_out = left_out
        self.ids_repeat = ids_repeat
        self.result = Collected()
        self.by_image: dict[_Id, array[int]] = {}  # where the annotations of each image start
        self.ids: list[Any] = []
        self.kinds: set[str] = set()
        self.used: dict[Any, _Id] = {}  # category -> an annotation
        self.largest = 0.0  # number in a box
        try:
            self.text = data.decode(json.detect_encoding(data))
            self.values = self._entries()
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            raise SourceError(f"{where} is not valid JSON: {error or 'it is nested too deeply'}") from error

    def _entries(self) -> dict[str, Any]:
        """Return the entries of the file, without its annotations, which `_note` takes one by one."""
        values: dict[str, Any] = {}
        at = self._expect("{", 0)
        while self.text[at : at + 1] != "}":
            self._expect('"', at)
            key, at = _decode(self.text, at)
            at = self._expect(":", at)
            if key == "annotations" and self.text[at : at + 1] == "[":
                at = self._elements(at)
                values[key] = []
            else:
                values[key], at = _decode(self.text, at)
            at = self._next(at, "}")
        if self._space(at + 1) < len(self.text):
            raise ValueError(f"there is more after its end, character {at:,}")
        return values

    def _elements(self, at: int) -> int:
        """Take note of the annotations in a list, and return the position after it."""
        at = self._expect("[", at)
        while self.text[at : at + 1] != "]":
            annotation, end = _decode(self.text, at)
            self._note(annotation, at)
            at = self._next(end, "]")
        return at + 1

    def _next(self, at: int, end: str) -> int:
        """Return the position of the next element, or of the end."""
        at = self._space(at)
        return at if self.text[at : at + 1] == end else self._expect(",", at)

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        assert match is not None, "the pattern matches the empty text"
        return match.end()

    def _expect(self, character: str, at: int) -> int:
        """Return the position of what follows a character and spaces around it."""
        at = self._space(at)
        if self.text[at : at + 1] != character:
            raise ValueError(f"{character!r} is missing at character {at:,}")
        return self._space(at + 1)

    def annotations(self) -> Annotations:
        """Return what the file contains."""
        images = self._images()
        categories = self._dicts("categories")
        if 0 < self.largest <= 1:
            raise SourceError(
                f"{self.where}: no number of a box (bbox) is larger than {self.largest:g}, so they are fractions of "
                "the image: multiply them and other positions by its width and height, because COCO counts pixels"
            )
        self._check_references({image["id"] for image in images})
        categories = self._used_categories(categories)
        numbers = {category["id"]: index for index, category in enumerate(categories)}
        names = Classes(str(category.get("name", category["id"])) for category in categories)
        points = {category["id"]: category.get("keypoints") for category in categories}
        for image in images:
            width, height = _side(image, "width"), _side(image, "height")
            self.result.add(
                _file_name(image),
                self._maker(image, self.by_image.get(image["id"], ()), numbers, points),
                (width or math.inf, height or math.inf),
                file=self.where,
            )
        annotations = self.result.finished()
        attributes = [further(category, ("id", "name"), ()) for category in categories]
        annotations = replace(annotations, names=tuple(names), ids=tuple(numbers))
        annotations.attributes = tuple(attributes) if any(attributes) else ()
        annotations.parts += self._parts()
        if self.kinds == _ONLY_LABELS:
            self._add_labels(annotations, images, numbers)
        return annotations

    def _add_labels(
        self, annotations: Annotations, images: Iterable[dict[str, Any]], numbers: Mapping[int, int]
    ) -> None:
        """Add the classes of images, of a file whose annotations have nothing else."""
        for image in images:
            labels = (_decode(self.text, start)[0] for start in self.by_image.get(image["id"], ()))
            annotations.labels[_file_name(image)] = tuple(
                annotations.names[numbers[int(label["category_id"])]] for label in labels
            )
        attributes = dict.fromkeys(name for entries in annotations.attributes for name in entries)
        annotations.parts += [
            Part("attribute", name, "", "attributes of classes are kept of objects only") for name in attributes
        ]
        if annotations.ids != tuple(range(len(annotations.ids))):
            annotations.notes.append(
                f"class numbers are the positions of categories sorted by id, which begin with {annotations.ids[0]}"
            )

    def _parts(self) -> list[Part]:
        are_labels = self.kinds == _ONLY_LABELS
        roles = {"images": "samples", "annotations": "label", "categories": "class names"}
        roles |= {} if are_labels else {"annotations": "json", "categories": "class list"}
        reasons = dict.fromkeys(_DESCRIPTIONS, "describes the file, not its images")
        otherwise = "is not part of COCO's format"
        return [
            Part("entry", name, roles[name]) if name in roles else Part("entry", name, "", reasons.get(name, otherwise))
            for name in self.values
        ]

    def _dicts(self, name: str) -> list[dict[str, Any]]:
        """Return a list of dictionaries whose ids are all different."""
        entries = self.values.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SourceError(f"{self.where}: {name!r} is not a list of objects, as in COCO")
        allowed = (int,) if name == "categories" else (int, str)
        for entry in entries:
            if type(entry.get("id")) not in allowed:
                raise SourceError(f"{self.where}: an entry of {name!r} has id {entry.get('id')!r}; allowed are numbers")
        self._refuse_repeated((entry["id"] for entry in entries), f"id of {name!r}")
        return sorted(entries, key=lambda entry: entry["id"]) if name == "categories" else entries

    def _refuse_repeated(self, values: Iterable[Any], what: str) -> None:
        repeated = [value for value, count in Counter(values).items() if count > 1]
        if repeated:
            raise SourceError(
                f"{self.where}: {quoted(map(str, repeated[:3]))} occurs more than once as {what}, so it is not known "
                "which one is meant: remove or rename the others"
            )

    def _images(self) -> list[dict[str, Any]]:
        if "images" not in self.values:
            raise SourceError(f"{self.where} has no list 'images', so it is not COCO; it has {quoted(self.values)}")
        images = self._dicts("images")
        for image in images:
            if not _file_name(image):
                raise SourceError(f"{self.where}: image {image['id']!r} has neither 'file_name' nor 'coco_url'")
        self._refuse_repeated(map(_file_name, images), "'file_name' of 'images'")
        return images

    def _note(self, annotation: Any, start: int) -> None:
        """Remember to which image an annotation belongs."""
        if not isinstance(annotation, dict) or type(annotation.get("image_id")) not in (int, str):
            raise SourceError(f"{self.where}: annotation {str(annotation)[:80]} does not name its image (image_id)")
        self.by_image.setdefault(annotation["image_id"], array("q")).append(start)
        if "id" in annotation:
            self.ids.append(annotation["id"])
        self._note_kind(annotation)

    def _check_references(self, images: set[_Id]) -> None:
        """Check ids, and note annotations of unknown images, which are left out."""
        if not self.ids_repeat:
            self._refuse_repeated(map(repr, self.ids), "id of 'annotations'")
        unknown = [image for image in self.by_image if image not in images]
        if unknown and len(unknown) == len(self.by_image):
            raise SourceError(
                f"{self.where}: no annotation belongs to one of the images, such as {unknown[0]!r}; ids of images are "
                f"such as {next(iter(images), None)!r}, and a number is not the same as a text"
            )
        if unknown:
            starts = [start for image in unknown for start in self.by_image[image]]
            refused = [_decode(self.text, start)[0] for start in starts]
            named = [f"annotation {entry.get('id', 'without id')} of image {entry['image_id']!r}" for entry in refused]
            self.result.annotations.notes.append(
                f"{counted(len(starts), 'annotation')} of images that {self.where} does not list, left out: "
                f"{first_of(named)}"
            )

    def _note_kind(self, annotation: dict[str, Any]) -> None:
        """Remember what kinds of annotations there are, and which categories have any."""
        segments = annotation.get("segments_info")
        if isinstance(segments, list):
            self.kinds.add("segments")
            parts = [part for part in segments if isinstance(part, dict)]
        else:
            is_label = not any(name in annotation for name in _GEOMETRY)
            self.kinds.add("captions" if _is_caption(annotation) else "labels" if is_label else "objects")
            parts = [] if _is_caption(annotation) else [annotation]
        for part in parts:
            category = part.get("category_id")
            if isinstance(category, float) and category.is_integer():
                category = int(category)
            if type(category) is not int:
                raise SourceError(
                    f"{self.where}: annotation {annotation.get('id', '')!r} has category_id {category!r}; allowed are "
                    "the ids of 'categories'"
                )
            self.used.setdefault(category, annotation.get("id", annotation["image_id"]))
            box = part.get("bbox")
            edges = [edge for edge in box if type(edge) in (int, float)] if isinstance(box, list) else ()
            self.largest = max(self.largest, *edges, 0)

    def _used_categories(self, categories: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the categories. Unused ones with the name of another one, as Roboflow writes them, are left out."""
        ids = {category["id"] for category in categories}
        unknown = [category for category in self.used if category not in ids]
        if unknown:
            raise SourceError(
                f"{self.where}: annotation {self.used[unknown[0]]!r} has category {unknown[0]}, which is not among the "
                f"{len(ids)} of 'categories': add it to them"
            )
        names = Counter(category.get("name") for category in categories)
        left_out = [entry for entry in categories if names[entry.get("name")] > 1 and entry["id"] not in self.used]
        if len(left_out) < len(categories):
            for category in left_out:
                self.result.annotations.notes.append(
                    f"category {category['id']} has no annotation, and the same name as another one, "
                    f"{category.get('name')!r}: left out"
                )
            categories = [category for category in categories if category not in left_out]
        return categories

    def _maker(
        self, image: dict[str, Any], starts: Sequence[int], numbers: Mapping[int, int], points: Mapping[int, Any]
    ) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the entries of an image, see `Collected.add`."""

        def make() -> dict[str, Any]:
            facts: dict[str, Any] = {side: size for side in ("width", "height") if (size := _side(image, side))}
            if len(facts) == 1:
                facts = {}
            facts |= further(image, ("width", "height", *self.left_out), SAMPLE_KEYS)
            objects: list[Object] = []
            captions: list[str] = []
            labelled: list[dict[str, Any]] = []
            for start in starts:
                annotation, _ = _decode(self.text, start)
                if isinstance(annotation.get("segments_info"), list):
                    self._add_panoptic(image, annotation)
                    objects += [_object(part, numbers, points, image) for part in annotation["segments_info"]]
                elif _is_caption(annotation):
                    captions.append(annotation["caption"])
                elif self.kinds != _ONLY_LABELS:
                    objects.append(_object(annotation, numbers, points, image))
                elif more := further(annotation, ("id", "image_id", "category_id", *_GEOMETRY), ()):
                    labelled.append(more)
            has_objects = self.kinds & {"objects", "segments"} or ("annotations" in self.values and bool(numbers))
            return (
                facts
                | ({"annotations": labelled} if labelled else {})
                | ({"objects": objects} if has_objects and self.kinds != _ONLY_LABELS else {})
                | ({"captions": captions} if "captions" in self.kinds else {})
            )

        return make

    def _add_panoptic(self, image: dict[str, Any], annotation: dict[str, Any]) -> None:
        if not isinstance(annotation.get("file_name"), str):
            raise SourceError("its panoptic annotation does not name a PNG (file_name)")
        self.result.annotations.fields[_file_name(image)] = {"panoptic.png": annotation["file_name"]}


def _is_caption(annotation: dict[str, Any]) -> bool:
    return isinstance(annotation.get("caption"), str) and not (annotation.get("bbox") or annotation.get("segmentation"))


def _side(image: dict[str, Any], side: str) -> int:
    """Return the width or height of an image, 0 if it is not stated."""
    value = image.get(side)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value > 0 else 0


def _file_name(image: dict[str, Any]) -> str:
    """Return the path of an image; LVIS gives only its URL, which ends with folder and name."""
    name = image.get("file_name") or "/".join(str(image.get("coco_url", "")).split("/")[-2:])
    return posixpath.normpath(str(name).replace("\\", "/")) if name else ""


def _object(
    annotation: dict[str, Any], numbers: Mapping[int, int], points: Mapping[int, Any], image: dict[str, Any]
) -> Object:
    try:
        return _checked_object(annotation, numbers, points)
    except SourceError as error:
        named = f"annotation {annotation['id']}" if "id" in annotation else f"an annotation of image {image['id']}"
        raise SourceError(f"{named} has {error}") from error


def _checked_object(annotation: dict[str, Any], numbers: Mapping[int, int], points: Mapping[int, Any]) -> Object:
    category = int(annotation["category_id"])
    outline = _outline(annotation.get("segmentation"))
    made: Object = {"box": _box(annotation, outline), "category": numbers[category], **outline}
    crowd = annotation.get("iscrowd") or 0
    if crowd not in (0, 1):
        raise SourceError(f"iscrowd {crowd!r}; allowed are 0 and 1")
    if crowd:
        made["crowd"] = True
    if annotation.get("keypoints"):
        made["keypoints"] = _keypoints(annotation["keypoints"], points[category])
    used = ("image_id", "category_id", "bbox", "segmentation", "iscrowd", "keypoints")
    return made | further(annotation, used, OBJECT_KEYS)


def _outline(segmentation: Any) -> dict[str, Any]:
    """Return polygons or a mask in run lengths; nothing if there is none."""
    if not segmentation:
        return {}
    if isinstance(segmentation, dict):
        rle = {"size": segmentation.get("size"), "counts": segmentation.get("counts")}
        run_lengths(rle)
        return {"rle": rle}
    if not isinstance(segmentation, list):
        raise SourceError(f"a segmentation that is a {type(segmentation).__name__}; allowed are polygons and RLE")
    polygons = [points for points in polygons_of(segmentation) if points]
    return {"polygons": polygons} if polygons else {}


def _box(annotation: dict[str, Any], outline: dict[str, Any]) -> list[float]:
    if annotation.get("bbox"):
        return list(box_from_size(*box_of(annotation["bbox"])))
    if "polygons" in outline:
        return list(bounding_box(outline["polygons"]))
    if "rle" in outline:
        return list(rle_box(outline["rle"]))
    raise SourceError("neither a box (bbox) nor an outline (segmentation)")


def _keypoints(values: Any, names: Any) -> list[list[float]]:
    """Return [[x, y, visibility], ...]."""
    numbers = numbers_of(values, "a list of key points")
    expected = 3 * len(names) if names and isinstance(names, list) else len(numbers) // 3 * 3
    if len(numbers) != expected:
        raise SourceError(f"{len(numbers)} numbers for its key points; its category has {expected // 3} points of 3")
    return [numbers[start : start + 3] for start in range(0, len(numbers), 3)]


def merged(first: Annotations, second: Annotations, where: str) -> Annotations:
    """Return the annotations of two files about the same images, such as instances and captions.

    Objects with the same class and box become one with the attributes of both, as in ``person_keypoints`` and
    ``instances``, and so do those with the same class and id.
    """
    ids = dict(zip(first.ids, first.names, strict=True))
    if any(ids and name != ids.get(source_id) for source_id, name in zip(second.ids, second.names, strict=True)):
        raise SourceError(f"{where} has categories that differ from those of the other files: pack them separately")
    main, added = (first, second) if len(first.names) >= len(second.names) else (second, first)
    numbers = {index: main.ids.index(source_id) for index, source_id in enumerate(added.ids)}
    images = dict(main.images)
    for name, data in added.images.items():
        images[name] = _merged_facts(images.get(name), data, numbers)
    skipped = [*main.skipped, *added.skipped]
    for skip in skipped:
        images.pop(skip.path, None)
    attributes = _merged_attributes(main, added, numbers)
    return Annotations(
        main.names, main.ids, attributes, images, {**main.fields, **added.fields}, {**main.labels, **added.labels},
        list(dict.fromkeys(skipped)), [*main.parts, *added.parts], [*main.notes, *added.notes],
    )  # fmt: skip


def _merged_attributes(main: Annotations, added: Annotations, numbers: Mapping[int, int]) -> tuple[dict[str, Any], ...]:
    if not main.attributes and not added.attributes:
        return ()
    attributes = [dict(entries) for entries in main.attributes or [{}] * len(main.names)]
    for index, entries in enumerate(added.attributes):
        attributes[numbers[index]] = entries | attributes[numbers[index]]
    return tuple(attributes)


def _merged_facts(first: bytes | None, second: bytes, numbers: Mapping[int, int]) -> bytes:
    facts, more = unpacked(first) if first else {}, unpacked(second)
    objects = list(facts.get("objects", ()))
    boxes: dict[Any, list[int]] = {}
    for i, entry in enumerate(objects):
        boxes.setdefault(_class_and_box(entry), []).append(i)
    without = []
    for entry in more.get("objects", ()):
        entry["category"] = numbers[entry["category"]]
        if same := boxes.get(_class_and_box(entry)):
            i = min(same, key=lambda i: objects[i].get("id") != entry.get("id"))
            same.remove(i)
            objects[i] = entry | objects[i]
        else:
            without.append(entry)
    ids = {(objects[i]["category"], objects[i]["id"]): i for same in boxes.values() for i in same if "id" in objects[i]}
    for entry in without:
        if (place := ids.get((entry["category"], entry.get("id")))) is not None:
            objects[place] = entry | objects[place]
        else:
            objects.append(entry)
    together = more | facts
    if "objects" in together:
        together["objects"] = objects
    return packed(together)


def _class_and_box(entry: Object) -> tuple[float, ...]:
    return (entry["category"], *(round(edge, 2) for edge in entry["box"]))


def split_of(path: str) -> str:
    """Return the split that a file is about, by its name or folder; "" if neither names one.

    >>> split_of("annotations/instances_train2017.json"), split_of("valid/_annotations.coco.json"), split_of("a.json")
    ('train2017', 'valid', '')
    >>> split_of("train_coco.json"), split_of("annotations_val.json"), split_of("val/labels.json")
    ('train', 'val', 'val')
    >>> split_of("extra/_annotations.coco.json"), split_of("extra/labels.json")  # Roboflow has one for each split
    ('extra', '')
    """
    folder, name = posixpath.split(path)
    stem = name.removesuffix(".json")
    split = _AROUND.sub("", stem)
    is_kind = any(stem.startswith(f"{kind}_") for kind in _KINDS)  # what follows is a split, such as "default"
    fallback = posixpath.basename(folder) if stem == "_annotations.coco" else split * is_kind
    return split if is_split_name(split) else split_folder(path) or fallback


def name_here(name: str) -> str:
    """Return the name of an image in a tree: of a path on another machine, only the last part.

    >>> name_here("/data/1.jpg"), name_here("../photos/1.jpg"), name_here("photos/1.jpg")
    ('1.jpg', '1.jpg', 'photos/1.jpg')
    """
    return posixpath.basename(name) if _ELSEWHERE.match(name) else name
