"""What is drawn over the image of a sample: its objects, as plain values for the template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wds_tools.format.field_classes import ClassList
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.inspection.palette import hex_of
from wds_tools.service.pages.views import class_name

_LEAST_SIDE = 640.0  # pixels of the longer side of a picture with objects: smaller ones are enlarged
_TEXT_SHARE = 45  # of the longer side
_MAX_TEXT_CHARACTERS = 40
_MAX_ATTRIBUTES = 100_000  # characters
_MAX_LINES = 100


def frame_of(width: int, height: int) -> dict[str, Any]:
    """Return the coordinates of a picture with something drawn over it, and its size on the page in pixels."""
    longer = max(width, height)
    scale = max(1.0, _LEAST_SIDE / longer)
    return {
        "width": width,
        "height": height,
        "shown_width": round(width * scale) or 1,
        "shown_height": round(height * scale) or 1,
        "text": _text(longer / _TEXT_SHARE),
        "radius": _text(longer / 200),
    }


def objects_view(answer: dict[str, Any], lists: Mapping[str, ClassList], width: int, height: int) -> dict[str, Any]:
    """Return the objects of a sample as they are drawn.

    Args:
        answer: See `wds_tools.service.pages.annotations.objects_of`.
        lists: Class lists of the dataset.
        width: Width of the image in pixels.
        height: Height of the image in pixels.
    """
    classes = lists.get(CATEGORY_PATH, ClassList(()))
    lines = _Lines(classes)
    text = max(width, height) / _TEXT_SHARE
    drawn = []
    for index, item in enumerate(answer["objects"]):
        category, box = item["category"], item["box"]
        outlines, points = item["outlines"], item["points"]
        corner = box or (outlines[0] if outlines else next((point for point in points if point), [0.0, 0.0]))
        names = lines.names(category)
        drawn.append(
            {
                "colour": hex_of(index if category is None else category),
                "name": _name(classes, category),
                "x": _text(min(max(0.0, corner[0]), width * 0.9)),
                "y": _text(min(max(1.1 * text, corner[1] - 0.25 * text), float(height))),
                "box": _box(box),
                "outlines": [" ".join(map(_text, outline)) for outline in outlines],
                "points": [
                    {"x": _text(point[0]), "y": _text(point[1]), "name": names[i] if i < len(names) else str(i)}
                    for i, point in enumerate(points)
                    if point
                ],
                "lines": [
                    dict(zip(("x1", "y1", "x2", "y2"), map(_text, [*points[first], *points[second]]), strict=True))
                    for first, second in lines.pairs(category)
                    if first < len(points) and second < len(points) and points[first] and points[second]
                ],
            }
        )
    stated = answer["stated"]
    return {
        "count": answer["count"],
        "unusable": answer["unusable"],
        "left_out": answer["left_out"],
        "run_lengths": answer["run_lengths"],
        "other_size": f"{stated[0]}x{stated[1]}" if stated and stated != [width, height] else "",
        "classes": [
            {"colour": hex_of(label), "name": class_name(classes.names, label), "count": count}
            for label, count in answer["classes"]
        ],
        "drawn": drawn,
    }


def numbered_box(index: int, box: list[float] | None, width: int, height: int) -> dict[str, Any]:
    """Return a region of an image, left, top, width and height, as it is drawn with its number; None is not drawn."""
    if box is None or min(width, height) <= 0:
        return {"colour": hex_of(index), "box": None}
    left, top, wide, high = (
        min(max(end, -2.0 * side), 3.0 * side) for end, side in zip(box, (width, height) * 2, strict=True)
    )
    text = max(width, height) / _TEXT_SHARE
    return {
        "colour": hex_of(index),
        "box": _box([left, top, left + wide, top + high]),
        "x": _text(min(max(0.0, left + 0.2 * text), width * 0.95)),
        "y": _text(min(max(text, top + text), float(height))),
    }


def mask_view(
    name: str, facts: dict[str, Any] | None, lists: Mapping[str, ClassList], size: list[int]
) -> dict[str, Any]:
    """Return a mask as the page shows it, with the names of its most frequent numbers.

    Args:
        name: Name of the stored field.
        facts: See `wds_tools.service.pages.thumbnails.mask`; empty if it cannot be decoded, None if it
            has not been decoded yet.
        lists: Class lists of the dataset.
        size: Width and height of the image in pixels.
    """
    names = lists.get(name, ClassList(())).names
    decoded = facts or {}
    mask_size = decoded.get("size", size)
    return {
        "name": name,
        "numbers": [
            {"colour": hex_of(value) if value else "", "name": class_name(names, value), "share": f"{100 * share:.1f}"}
            for value, share in decoded.get("values", ())
        ],
        "more": decoded.get("more", 0),
        "other_size": f"{mask_size[0]}x{mask_size[1]}" if mask_size != size else "",
        "is_known": facts is not None,
        "is_damaged": facts == {},
    }


class _Lines:
    """Names of key points and the lines between them, by class, from the attributes of classes in COCO."""

    def __init__(self, classes: ClassList) -> None:
        self._attributes = classes.attributes
        self._known: dict[int | None, dict[str, Any]] = {None: {}}

    def names(self, category: int | None) -> list[str]:
        names = self._of(category).get("keypoints")
        return [str(name)[:_MAX_TEXT_CHARACTERS] for name in names[:1000]] if isinstance(names, list) else []

    def pairs(self, category: int | None) -> list[tuple[int, int]]:
        """Return indices of points between which there is a line. COCO counts them from 1."""
        pairs = self._of(category).get("skeleton")
        return [
            (pair[0] - 1, pair[1] - 1)
            for pair in (pairs[:_MAX_LINES] if isinstance(pairs, list) else [])
            if isinstance(pair, list) and len(pair) == 2 and all(type(end) is int and end > 0 for end in pair)
        ]

    def _of(self, category: int | None) -> dict[str, Any]:
        if category not in self._known:
            attributes: Any = {}
            text = self._attributes[category] if category is not None and category < len(self._attributes) else ""
            if 0 < len(text) < _MAX_ATTRIBUTES:
                try:
                    attributes = json.loads(text)
                except (ValueError, RecursionError):
                    attributes = {}
            self._known[category] = attributes if isinstance(attributes, dict) else {}
        return self._known[category]


def _name(classes: ClassList, category: int | None) -> str:
    name = class_name(classes.names, category)
    return name if len(name) <= _MAX_TEXT_CHARACTERS else f"{name[: _MAX_TEXT_CHARACTERS - 1]}…"


def _box(box: list[float]) -> dict[str, str] | None:
    if not box:
        return None
    left, top, right, bottom = box
    return {"x": _text(left), "y": _text(top), "width": _text(right - left), "height": _text(bottom - top)}


def _text(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
