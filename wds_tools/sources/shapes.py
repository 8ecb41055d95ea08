"""JSON of images with shapes, as LabelMe, VIA, CreateML and Scalabel (BDD100K) write it, converted to COCO's. No I/O.

Boxes and outlines are in pixels in all of them. What else a shape has is kept as attributes of the object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources.columns import LABEL, json_or, usual_columns

_WORDS = (b'"shapes"', b'"shape_attributes"', b'"coordinates"', b'"box2d"', b'"poly2d"')
_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_CLASS = "category"  # of a shape, its class by name
LABELME = "LabelMe"
MADE_UP = ("id", "file_name")
"""Entries of images that only `as_coco` adds."""

_NO_CLASS = "object"  # of regions of VIA without attributes
_Points = Sequence[Sequence[float]]
_Shape = dict[str, Any]


class Shaped(NamedTuple):
    """An image with shapes.

    Attributes:
        name: Its name in the file.
        entries: Further entries of it, such as its width.
        shapes: Annotations as of COCO, with the name of their class.
    """

    name: str
    entries: Mapping[str, Any] = {}
    shapes: Sequence[_Shape] = ()


def format_of(data: bytes) -> str | None:
    """Return the name of the format of JSON with shapes; None for any other content."""
    value = json_or(None, data) if any(word in data for word in _WORDS) else None
    return next((name for name, (is_it, _) in _FORMATS.items() if is_it(value)), None)


def images_in(data: bytes, where: str) -> list[Shaped]:
    """Return the images of a file."""
    try:
        return list(_FORMATS[str(format_of(data))][1](json.loads(data)))
    except _ERRORS as error:
        raise SourceError(f"{where} has a shape that cannot be read ({type(error).__name__}: {error})") from error


def as_coco(images: Iterable[Shaped], names: Sequence[str]) -> bytes:
    """Return images as a file of COCO with these classes."""
    numbers = {name: number for number, name in enumerate(names)}
    images = list(images)
    annotations = [
        {key: value for key, value in shape.items() if key != _CLASS}
        | {"image_id": image.name, "category_id": numbers[shape[_CLASS]]}
        for image in images
        for shape in image.shapes
    ]
    listed = [{**image.entries, "id": image.name, "file_name": image.name} for image in images]
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return json.dumps({"images": listed, "annotations": annotations, "categories": categories}).encode()


def classes_of(images: Iterable[Shaped]) -> list[str]:
    """Return the names of all classes, sorted."""
    return sorted({shape[_CLASS] for image in images for shape in image.shapes})


def _made(name: Any, geometry: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Shape:
    kept = {key: value for key, value in attributes.items() if value not in _EMPTY}
    return {**kept, **geometry, _CLASS: str(name)}


def _outline(points: _Points) -> _Shape:
    return {"segmentation": [[float(number) for number in chain.from_iterable(points)]]}


def _around(points: _Points) -> _Shape:
    """Return the box around points."""
    left, top = (min(float(point[axis]) for point in points) for axis in (0, 1))
    right, bottom = (max(float(point[axis]) for point in points) for axis in (0, 1))
    return {"bbox": [left, top, right - left, bottom - top]}


def _ellipse(x: float, y: float, width: float, height: float, angle: float = 0) -> _Shape:
    """Return the box around an ellipse, given by its centre, its semi-axes and its rotation."""
    a = math.hypot(width * math.cos(angle), height * math.sin(angle))
    b = math.hypot(width * math.sin(angle), height * math.cos(angle))
    return {"bbox": [x - a, y - b, 2 * a, 2 * b]}


def _is_labelme(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("shapes"), list) and "imagePath" in value


def _labelme(value: dict[str, Any]) -> Iterable[Shaped]:
    size = {"width": value.get("imageWidth"), "height": value.get("imageHeight")}
    used = ("shapes", "imagePath", "imageData", "imageWidth", "imageHeight", "version")
    rest = {key: one for key, one in value.items() if key not in used and one not in _EMPTY}
    yield Shaped(str(value["imagePath"]), size | rest, [_labelme_shape(one) for one in value["shapes"]])


def _labelme_shape(one: dict[str, Any]) -> _Shape:
    points, kind = one["points"], one.get("shape_type") or "polygon"
    if kind == "polygon" and len(points) > 2:
        geometry, used = _outline(points), {"points", "shape_type"}
    elif kind == "circle":
        (x, y), edge = points
        radius = math.dist((x, y), edge)
        geometry, used = _ellipse(x, y, radius, radius), set()
    else:
        geometry, used = _around(points), {"points", "shape_type"} if kind == "rectangle" else set()
    return _made(one["label"], geometry, {key: value for key, value in one.items() if key not in {"label", *used}})


def _via_images(value: Any) -> list[Any]:
    found = value.get("_via_img_metadata", value) if isinstance(value, dict) else {}
    return list(found.values()) if isinstance(found, dict) else []


def _is_via(value: Any) -> bool:
    images = _via_images(value)
    return bool(images) and all(isinstance(one, dict) and {"filename", "regions"} <= one.keys() for one in images)


def _via(value: Any) -> Iterable[Shaped]:
    found = [(one, one["regions"]) for one in _via_images(value)]
    images = [(one, list(regions.values() if isinstance(regions, dict) else regions)) for one, regions in found]
    attributes = dict.fromkeys(key for _, regions in images for one in regions for key in one["region_attributes"])
    usual = usual_columns(LABEL, attributes) or [key for key in attributes if key.lower() in ("name", "type", "object")]
    if len(attributes) > 1 and len(usual) != 1:
        raise SourceError(
            f"regions of VIA have the attributes {quoted(attributes)}, and it is not known which one is the class: "
            "call it 'class', or write the objects as COCO"
        )
    key = next(iter(usual or attributes), None)
    for one, regions in images:
        shapes = [_via_shape(region, key) for region in regions]
        yield Shaped(str(one["filename"]), one.get("file_attributes") or {}, shapes)


def _via_shape(region: dict[str, Any], key: str | None) -> _Shape:
    shape, attributes = region["shape_attributes"], dict(region["region_attributes"])
    name = _NO_CLASS if key is None else attributes.pop(key)
    if isinstance(name, dict):  # options that can be chosen together
        [name] = (option for option, is_chosen in name.items() if is_chosen)
    if shape["name"] == "rect":
        return _made(name, {"bbox": [shape[side] for side in ("x", "y", "width", "height")]}, attributes)
    if "all_points_x" in shape:
        points = list(zip(shape["all_points_x"], shape["all_points_y"], strict=True))
        if shape["name"] == "polygon" and len(points) > 2:
            return _made(name, _outline(points), attributes)
        return _made(name, _around(points), attributes | {"shape": shape})
    radius = shape.get("r", 0)
    sizes = (shape.get("rx", radius), shape.get("ry", radius), shape.get("theta", 0))
    return _made(name, _ellipse(shape["cx"], shape["cy"], *sizes), attributes | {"shape": shape})


def _has_lists(value: Any, name: str, parts: str, geometry: set[str]) -> bool:
    """Return whether JSON is a list of images with a name and a list of parts, of which one has a geometry."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and name in one for one in value):
        return False
    found = [part for one in value for part in one.get(parts) or () if isinstance(part, dict)]
    return any(not geometry.isdisjoint(part) for part in found)


def _createml(value: Any) -> Iterable[Shaped]:
    for one in value:
        shapes = []
        for part in one["annotations"]:
            x, y, width, height = (float(part["coordinates"][side]) for side in ("x", "y", "width", "height"))
            rest = {key: value for key, value in part.items() if key not in ("label", "coordinates")}
            shapes.append(_made(part["label"], {"bbox": [x - width / 2, y - height / 2, width, height]}, rest))
        yield Shaped(str(one["image"]), {}, shapes)


def _frames(value: Any) -> Any:
    return value.get("frames") if isinstance(value, dict) else value


def _scalabel(value: Any) -> Iterable[Shaped]:
    for one in _frames(value):
        rest = {
            key: value for key, value in one.items() if key not in ("name", "labels", "size") and value not in _EMPTY
        }
        shapes = [_scalabel_shape(part) for part in one.get("labels") or ()]
        yield Shaped(str(one["name"]), rest | (one.get("size") or {}), shapes)


def _scalabel_shape(part: dict[str, Any]) -> _Shape:
    """Return a label; its box includes the pixels of its right and bottom edge."""
    rest = {key: value for key, value in part.items() if key not in ("category", "box2d", "rle")}
    geometry: _Shape = {"segmentation": part["rle"]} if part.get("rle") else {}
    geometry["iscrowd"] = int(bool((part.get("attributes") or {}).get("crowd")))
    polygons = part.get("poly2d") or []
    if polygons and all(one["closed"] and "C" not in one["types"] for one in polygons):
        del rest["poly2d"]
        geometry |= {"segmentation": [list(chain.from_iterable(one["vertices"])) for one in polygons]}
    elif polygons:  # lines and curves
        geometry |= _around([point for one in polygons for point in one["vertices"]])
    if box := part.get("box2d"):
        left, top, right, bottom = (float(box[edge]) for edge in ("x1", "y1", "x2", "y2"))
        geometry["bbox"] = [left, top, right - left + 1, bottom - top + 1]
    return _made(part["category"], geometry, rest)


_FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Iterable[Shaped]]]] = {
    LABELME: (_is_labelme, _labelme),
    "VIA": (_is_via, _via),
    "CreateML": (lambda value: _has_lists(value, "image", "annotations", {"coordinates"}), _createml),
    "Scalabel": (lambda value: _has_lists(_frames(value), "name", "labels", {"box2d", "poly2d", "rle"}), _scalabel),
}
"""Name of a format -> whether JSON is in it, and its images."""
