"""Objects of images as the annotation files of COCO and YOLO: what `sources/coco` and `sources/yolo` read. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.field_classes import ClassList
from wds_tools.format.objects import (
    OBJECT_KEYS,
    SAMPLE_KEYS,
    Object,
    bounding_box,
    box_of,
    is_labelled,
    name_of,
    numbers_of,
    polygons_of,
    remarks,
    rounded,
    run_lengths,
)
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.yolo import label_path
from wds_tools.wording import counted

ANNOTATION_FORMATS = ("coco", "yolo")
DATA_YAML = "data.yaml"
_IMAGE_FOLDERS = ("images", "jpegimages")
_SAME_BOX = 0.5  # pixels
_TRIANGLE = 6  # numbers of the shortest outline; 4 numbers are a box in YOLO
_VISIBLE = 2  # COCO's flag of a key point that is labelled and visible
_FRACTION_DIGITS = 9  # finer than a millionth of a pixel
_YOLO_KEYS = ("box", "category", "polygons", "keypoints")


class Described(NamedTuple):
    """An image and its entries in ``json``."""

    name: str
    facts: dict[str, Any]

    @property
    def objects(self) -> list[Object]:
        """The objects of the image."""
        objects: list[Object] = self.facts["objects"]
        return objects


Files: TypeAlias = Iterator[tuple[str, bytes]]
Note: TypeAlias = Callable[[str], None]
"""Called with what a user should know about objects that a format cannot hold as they are."""


def name_in_split(path: str, file_name: object = None) -> str:
    """Return the path of an image in the folder of its split: ``file_name`` of COCO, or its path without usual folders.

    >>> name_in_split("val2017/a/1.jpg", "a/1.jpg"), name_in_split("images/val/1.jpg"), name_in_split("b/2.jpg")
    ('a/1.jpg', '1.jpg', 'b/2.jpg')
    """
    if isinstance(file_name, str) and f"/{path}".endswith(f"/{file_name}"):
        return file_name
    *folders, name = path.split("/")
    lowered = [folder.lower() for folder in folders]
    last = max((position for position, folder in enumerate(lowered, 1) if folder in _IMAGE_FOLDERS), default=0)
    folders = folders[last:]
    return "/".join([*(folders[1:] if folders and is_split_name(folders[0]) else folders), name])


def checked_objects(facts: Mapping[str, Any], classes: ClassList) -> list[str]:
    """Check the entries of an image, which any program may have written, and return what is remarkable about them."""
    width, height, objects = facts.get("width"), facts.get("height"), facts.get("objects")
    if type(width) is not int or type(height) is not int or width < 1 or height < 1:
        raise SourceError(f"its size is {width!r} x {height!r}; allowed are whole numbers of pixels")
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise SourceError("'objects' is not a list of objects")
    for index, item in enumerate(objects):
        try:
            _check_object(item, len(classes.names))
        except SourceError as error:
            raise SourceError(f"{name_of(item, index)} has {error}") from error
    return [f"{name_of(objects[index], index)} {remark}" for index, remark in remarks(objects, width, height)]


def _check_object(item: Object, classes: int) -> None:
    box_of(item.get("box"))
    category = item.get("category")
    if type(category) is not int or not 0 <= category < classes:
        raise SourceError(f"category {category!r}; allowed are 0 to {classes - 1}")
    if "polygons" in item:
        polygons_of(item["polygons"])
    if "rle" in item:
        if not isinstance(item["rle"], dict):
            raise SourceError(f"run lengths that are a {type(item['rle']).__name__}; allowed are size and counts")
        run_lengths(item["rle"])
    points = item.get("keypoints", [])
    if not isinstance(points, list):
        raise SourceError(f"key points that are a {type(points).__name__}; allowed is a list")
    for point in points:
        if len(numbers_of(point, "a key point")) not in (2, 3):
            raise SourceError(f"a key point of {len(point)} numbers; allowed are 2 and 3")


def coco_files(images: Iterable[Described], classes: ClassList, split: str, note: Note) -> Files:
    """Yield the files of COCO: ``annotations/instances_SPLIT.json``, and ``captions_SPLIT.json`` if there are captions.

    Ids of images and annotations are those of the source if all have one and none occurs twice, otherwise 1, 2, 3...
    Categories without ids get 1, 2, 3... An annotation without an area gets that of its outline or box.
    """
    image_ids = _ids([image.facts.get("id") for image in images], "images", note)
    object_ids = _ids([item.get("id") for image in images for item in image.objects], "annotations", note)
    numbers = classes.ids or range(1, len(classes.names) + 1)
    attributes = classes.attributes or ("{}",) * len(classes.names)
    categories = [
        {"id": number, "name": name} | json.loads(more)
        for number, name, more in zip(numbers, classes.names, attributes, strict=True)
    ]
    described = [_coco_image(image, number) for image, number in zip(images, image_ids, strict=True)]
    following = iter(object_ids)
    objects = (
        _coco_object(item, next(following), image_id, numbers[item["category"]])
        for image, image_id in zip(images, image_ids, strict=True)
        for item in image.objects
    )
    yield f"annotations/instances_{split}.json", _coco_json(described, objects, categories)
    captions = [
        {"image_id": image_id, "caption": caption}
        for image, image_id in zip(images, image_ids, strict=True)
        for caption in image.facts.get("captions", ())
    ]
    if captions:
        numbered = ({"id": number, **entry} for number, entry in enumerate(captions, 1))
        yield f"annotations/captions_{split}.json", _coco_json(described, numbered, None)


def _ids(ids: Sequence[Any], what: str, note: Note) -> list[Any]:
    if all(type(id_) in (int, str) for id_ in ids) and len(set(ids)) == len(ids):
        return list(ids)
    if any(id_ is not None for id_ in ids):
        note(f"ids of {what} are missing or occur twice: they are numbered from 1")
    return list(range(1, len(ids) + 1))


def _coco_image(image: Described, image_id: Any) -> bytes:
    others = {name: value for name, value in image.facts.items() if name not in ("id", "file_name", *SAMPLE_KEYS)}
    size = {side: image.facts[side] for side in ("width", "height")}
    return _json({"id": image_id, "file_name": image.name, **size, **_own_names(others, SAMPLE_KEYS)})


def _own_names(attributes: Mapping[str, Any], ours: Sequence[str]) -> dict[str, Any]:
    """Return attributes with the names of the source, see `objects.further`.

    >>> _own_names({"area": 5, "box_": "b"}, OBJECT_KEYS)
    {'area': 5, 'box': 'b'}
    """
    return {name[:-1] if name.endswith("_") and name[:-1] in ours else name: attributes[name] for name in attributes}


def _coco_object(item: Object, object_id: Any, image_id: Any, category_id: int) -> dict[str, Any]:
    left, top, right, bottom = item["box"]
    others = {name: value for name, value in item.items() if name not in ("id", *OBJECT_KEYS)}
    made = {
        "id": object_id,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": [left, top, rounded(right - left), rounded(bottom - top)],
        "area": _area(item),
        "iscrowd": int(bool(item.get("crowd"))),
        "segmentation": item.get("rle") or item.get("polygons", []),
    }
    if points := item.get("keypoints"):
        full = [_with_visibility(point) for point in points]
        made["keypoints"] = [value for point in full for value in point]
        made["num_keypoints"] = sum(point[2] > 0 for point in full)
    own = _own_names(others, OBJECT_KEYS)
    return made | {name: own[name] for name in own if name not in made or name in ("area", "num_keypoints")}


def _with_visibility(point: Sequence[float]) -> list[float]:
    """Return x, y and visibility; all are 0 for a point without visibility that is not labelled, as in COCO."""
    if len(point) > 2:
        return list(point)
    return [*point, _VISIBLE] if is_labelled(point) else [0, 0, 0]


def _area(item: Object) -> float:
    if "rle" in item:
        return sum(run_lengths(item["rle"])[1::2])
    if "polygons" in item:
        return rounded(sum(_polygon_area(points) for points in item["polygons"]))
    left, top, right, bottom = item["box"]
    return rounded((right - left) * (bottom - top))


def _polygon_area(points: Sequence[float]) -> float:
    xs, ys = points[::2], points[1::2]
    return abs(sum(xs[i - 1] * ys[i] - xs[i] * ys[i - 1] for i in range(len(xs)))) / 2


def _coco_json(images: Sequence[bytes], annotations: Iterable[Mapping[str, Any]], categories: object) -> bytes:
    """Return a file with one line for each image and annotation."""
    parts = [b'{"info":{},"licenses":[],"images":[\n', b",\n".join(images), b'\n],"annotations":[\n']
    parts += [b",\n".join(map(_json, annotations)), b"\n]"]
    if categories is not None:
        parts += [b',"categories":', _json(categories)]
    return b"".join([*parts, b"}\n"])


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def yolo_files(images: Iterable[Described], split: str, note: Note) -> Files:
    """Yield the label files of YOLO, one for each image.

    A line is a box; with outlines in the dataset all lines are outlines, and with key points all have key points,
    because Ultralytics reads a dataset as one of the three.
    """
    lines = _YoloLines(images)
    for image in images:
        rows = [lines.line(item, image, index) for index, item in enumerate(image.objects)]
        yield label_path(f"images/{split}/{image.name}"), "".join(f"{row}\n" for row in rows if row).encode()
    for what, (count, example) in lines.found.items():
        note(f"{counted(count, 'object')} {what}, such as {example}")
    if lines.left_out:
        note(f"entries of objects that YOLO does not have are left out: {', '.join(sorted(lines.left_out))}")


def keypoint_shape(images: Iterable[Described]) -> tuple[int, int] | None:
    """Return (number of key points, numbers for each of them) of all objects that have key points; None without any."""
    shapes: dict[int, str] = {}
    size = 2
    for image in images:
        for index, item in enumerate(image.objects):
            if points := item.get("keypoints"):
                shapes.setdefault(len(points), f"{name_of(item, index)} of {image.name!r}")
                size = max(size, *map(len, points))
    if len(shapes) > 1:
        (first, where), (second, elsewhere), *_ = shapes.items()
        raise OptionError(
            f"cannot be exported to yolo: {where} has {counted(first, 'key point')} and {elsewhere} {second}; YOLO "
            "requires the same number for all objects"
        )
    return (*shapes, size) if shapes else None  # type: ignore[return-value]


class _YoloLines:
    """Objects as lines of label files, and what YOLO cannot hold."""

    def __init__(self, images: Iterable[Described]) -> None:
        self.shape = keypoint_shape(images)
        self.are_outlines = self.shape is None and any(
            "polygons" in item and not item.get("crowd") for image in images for item in image.objects
        )
        self.found: dict[str, tuple[int, str]] = {}
        self.left_out: set[str] = set()

    def line(self, item: Object, image: Described, index: int) -> str:
        """Return the line of object ``index``, empty if YOLO has no such objects."""
        where = f"{name_of(item, index)} of {image.name!r}"
        if item.get("crowd"):
            return self._note("left out, as YOLO has no groups (crowd)", where)
        self.left_out |= item.keys() - {*_YOLO_KEYS, "rle"}
        width, height = image.facts["width"], image.facts["height"]
        values = [*map(float, self._outline(item, where) if self.are_outlines else item["box"])]
        inside = [min(max(value, 0), height if i % 2 else width) for i, value in enumerate(values)]
        if max(abs(a - b) for a, b in zip(values, inside, strict=True)) > _SAME_BOX:
            self._note(f"beyond the image by more than {_SAME_BOX} pixel, cut off at its edges", where)
        values = inside if self.are_outlines else _centre_and_size(inside)
        if not self.are_outlines and item.keys() & {"rle", "polygons"}:
            self._note("written without outline", where)
        fractions = [value / (height if i % 2 else width) for i, value in enumerate(values)]
        return " ".join([str(item["category"]), *map(_text, fractions), *self._points(item, width, height, where)])

    def _note(self, what: str, where: str) -> str:
        count, first = self.found.get(what, (0, where))
        self.found[what] = count + 1, first
        return ""

    def _outline(self, item: Object, where: str) -> list[float]:
        """Return one outline: parts are joined by lines there and back, which have no area."""
        if all(len(part) < _TRIANGLE for part in item.get("polygons", ())):
            if "polygons" in item:
                self._note("with an outline of fewer than 3 points, written as the outline of the box", where)
            elif "rle" in item:
                self._note("with a mask in run lengths, written as the outline of the box", where)
            left, top, right, bottom = item["box"]
            return [left, top, right, top, right, bottom, left, bottom]
        first, *others = item["polygons"]
        if others:
            self._note("in several parts, joined by lines", where)
        joined = [*first, *(first[:2] if others else [])]
        for index, part in enumerate(others, 1):
            joined += [*part, *part[:2], *(first[:2] if index < len(others) else [])]
        if max(abs(a - b) for a, b in zip(bounding_box(item["polygons"]), item["box"], strict=True)) > _SAME_BOX:
            self._note(
                f"with an outline that leaves its box by more than {_SAME_BOX} pixel, written without box", where
            )
        return joined

    def _points(self, item: Object, width: int, height: int, where: str) -> list[str]:
        if self.shape is None:
            return []
        count, size = self.shape
        words: list[str] = []
        is_beyond = False
        for point in item.get("keypoints") or [[0] * size] * count:
            x, y = min(max(point[0], 0), width), min(max(point[1], 0), height)
            visible = point[2:] or [_VISIBLE]
            if visible[0] and max(abs(x - point[0]), abs(y - point[1])) > _SAME_BOX:
                is_beyond, visible = True, [0]
            words += map(_text, [x / width, y / height, *visible][:size])
        if is_beyond:
            how = "at its edge as not labelled" if size > 2 else "at its edge"
            self._note(f"with key points beyond the image by more than {_SAME_BOX} pixel, written {how}", where)
        return words


def _centre_and_size(box: Sequence[float]) -> list[float]:
    left, top, right, bottom = box
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def _text(value: float) -> str:
    """Return a number without needless digits.

    >>> _text(0.5), _text(2), _text(-1e-12)
    ('0.5', '2', '0')
    """
    text = f"{value:.{_FRACTION_DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def data_yaml(classes: ClassList, splits: Iterable[str], shape: tuple[int, int] | None) -> bytes:
    """Return ``data.yaml`` for some splits, in which image folders are relative to the file."""
    lines = [f"{split}: images/{split}" for split in sorted(splits)]
    if shape is not None:
        lines.append(f"kpt_shape: {list(shape)}")
        lines += _keypoint_facts(json.loads(classes.attributes[0]) if classes.attributes else {})
    names = [f"  {number}: {json.dumps(name)}" for number, name in enumerate(classes.names)]
    return "\n".join([*lines, "names:", *names, ""]).encode()


def _keypoint_facts(attributes: Mapping[str, Any]) -> list[str]:
    """Return what ``data.yaml`` had about key points, whose numbers were read as text."""
    lines = []
    if isinstance(flipped := attributes.get("flip_idx"), list):
        lines.append(f"flip_idx: [{', '.join(map(str, flipped))}]")
    if isinstance(names := attributes.get("kpt_names"), dict):
        lines += ["kpt_names:", *(f"  {number}: {json.dumps(points)}" for number, points in names.items())]
    return lines


def splits_in(yaml: bytes) -> set[str]:
    """Return the splits of a file that `data_yaml` returned.

    >>> sorted(splits_in(data_yaml(ClassList(("cat",)), ["val", "train"], None)))
    ['train', 'val']
    """
    pairs = [line.partition(b": images/") for line in yaml.splitlines()]
    return {split.decode("utf-8", "replace") for split, _, folder in pairs if folder and split == folder}
