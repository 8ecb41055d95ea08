"""The objects of a sample, read from its JSON in a process with limits: few, finite, and near the image."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from wds_tools.format.objects import is_labelled

MAX_OBJECTS = 300
"""Objects that are drawn at most."""

MAX_NUMBERS = 20_000
"""Numbers of outlines and key points that are drawn at most, of all objects together."""

_MAX_READ = 50_000  # objects; further ones are only counted
_MAX_CAPTION = 1000  # characters
_MAX_OUTLINE = 1000  # points of an outline; longer ones are thinned out
_MAX_OUTLINES = 100  # of an object
_MAX_POINTS = 1000  # key points of an object
_MAX_CLASSES = 50  # that are counted


def objects_of(data: bytes, *, width: int, height: int) -> dict[str, Any]:
    """Return what can be drawn of the JSON of a sample, which may be anything.

    Args:
        data: The stored field.
        width: Width of the image in pixels.
        height: Height of the image in pixels.

    Returns:
        ``count`` of all objects, ``unusable`` ones, those ``left_out`` because there are too many, those that have a
        mask in ``run_lengths``; ``classes`` with their counts; ``stated``, the size of the image in the JSON;
        ``objects`` with ``category``, ``box``, ``outlines`` and ``points``.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    value = json.loads(data)
    items: list[Any] = _list(value.get("objects")) if isinstance(value, dict) else []
    kept: list[dict[str, Any]] = []
    classes: Counter[int] = Counter()
    unusable = run_lengths = 0
    numbers = MAX_NUMBERS
    for item in items[:_MAX_READ]:
        if not isinstance(item, dict):
            unusable += 1
            continue
        category = _category(item.get("category"))
        if category is not None and (category in classes or len(classes) < _MAX_CLASSES):
            classes[category] += 1
        run_lengths += "rle" in item
        if len(kept) == MAX_OBJECTS or numbers <= 0:
            continue
        shape = _shape(item, width, height)
        if shape is None:
            unusable += 1
            continue
        numbers -= sum(map(len, shape["outlines"])) + 3 * len(shape["points"])
        kept.append({"category": category, **shape})
    stated = [value.get("width"), value.get("height")] if isinstance(value, dict) else []
    return {
        "count": len(items),
        "unusable": unusable,
        "left_out": len(items) - unusable - len(kept),
        "run_lengths": run_lengths,
        "classes": classes.most_common(),
        "stated": stated if all(type(side) is int and 0 < side < 10**6 for side in stated) else [],
        "objects": kept,
    }


def caption_of(data: bytes) -> str:
    """Return the first caption in the JSON of a sample; "" if there is none.

    >>> caption_of(b'{"captions": ["a dog", "a cat"]}'), caption_of(b'{"caption": "a dog"}'), caption_of(b"[]")
    ('a dog', 'a dog', '')

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    value = json.loads(data)
    values = [value.get(name) for name in ("captions", "caption", "text")] if isinstance(value, dict) else []
    texts = (value[0] if isinstance(value, list) and value else value for value in values)
    return next((text[:_MAX_CAPTION] for text in texts if isinstance(text, str)), "")


def _shape(item: dict[str, Any], width: int, height: int) -> dict[str, Any] | None:
    """Return the box, outlines and key points of an object; None if none of them can be drawn."""
    box = _positions(item.get("box"), width, height, 4)
    if box and not (len(box) == 4 and box[0] <= box[2] and box[1] <= box[3]):
        box = []
    outlines = [_positions(outline, width, height) for outline in _list(item.get("polygons"))[:_MAX_OUTLINES]]
    outlines = [_thinned(outline) for outline in outlines if outline and len(outline) % 2 == 0]
    points = list(_points(_list(item.get("keypoints"))[:_MAX_POINTS], width, height))
    if not box and not outlines and not any(points):
        return None
    return {"box": box, "outlines": outlines, "points": points}


def _points(points: Iterable[Any], width: int, height: int) -> Iterator[list[float]]:
    """Yield x and y of each key point, nothing for one whose position is not known."""
    for point in points:
        numbers = _list(point)[:3]
        is_usable = len(numbers) >= 2 and all(map(_is_finite, numbers)) and is_labelled(numbers)
        yield _positions(numbers[:2], width, height) if is_usable else []


def _positions(values: Any, width: int, height: int, most: int = 1 << 20) -> list[float]:
    """Return numbers x, y, x, y, ..., moved to the surroundings of the image; nothing if one is not finite."""
    numbers = _list(values)
    if len(numbers) > most or not all(map(_is_finite, numbers)):
        return []
    ends = (width, height)
    return [round(min(max(float(value), -ends[i % 2]), 2 * ends[i % 2]), 2) for i, value in enumerate(numbers)]


def _thinned(outline: list[float]) -> list[float]:
    step = math.ceil(len(outline) / 2 / _MAX_OUTLINE)
    return [value for i in range(0, len(outline), 2 * step) for value in outline[i : i + 2]]


def _category(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 10**9 else None


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and -1e15 < value < 1e15  # False for NaN


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
