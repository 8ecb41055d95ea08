"""Objects in images: the one JSON that COCO, YOLO and VOC become, and the one rule for bad boxes. No I/O.

The ``json`` field of a sample has ``width``, ``height`` and ``objects``, a list of dictionaries with ``box`` (left,
top, right, bottom in pixels) and ``category`` (class number); some also have ``polygons`` or ``rle``, ``keypoints``,
``crowd``, and the attributes of the source. `docs/annotations.md` describes it.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from wds_tools.errors import SourceError

Box: TypeAlias = tuple[float, float, float, float]
Object: TypeAlias = dict[str, Any]

CATEGORY_PATH = "json:objects.category"
"""Where the class list of objects belongs, as in ``field_classes`` of the manifest."""

OBJECT_KEYS = ("box", "category", "polygons", "rle", "crowd", "keypoints")
SAMPLE_KEYS = ("path", "class", "width", "height", "objects", "captions")
NO_AREA = "without area"
BEYOND = "with a box that reaches beyond its image"
POINTS_BEYOND = "with an outline or key points beyond its image"

_encoder = json.JSONEncoder(separators=(",", ":"))
_DIGITS = 6  # decimals of pixels that are computed, so that a width of 10.2 does not become 10.199999999999989


def box_of(values: Any) -> Box:
    """Return four finite numbers as a box.

    >>> box_of([1, 2.5, "3", 4])
    (1, 2.5, 3.0, 4)
    """
    numbers = numbers_of(values, "a box")
    if len(numbers) != 4:
        raise SourceError(f"a box of {len(numbers)} numbers; allowed are 4")
    return numbers[0], numbers[1], numbers[2], numbers[3]


def numbers_of(values: Any, what: str) -> list[float]:
    """Return a list of finite numbers."""
    if not isinstance(values, (list, tuple)):
        raise SourceError(f"{what} that is a {type(values).__name__}; allowed are lists of numbers")
    try:
        numbers = [value if type(value) in (int, float) else float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{what} of {str(values)[:80]}; allowed are lists of numbers") from error
    if not all(map(math.isfinite, numbers)):
        raise SourceError(f"{what} of {str(values)[:80]}; allowed are finite numbers")
    return numbers


def box_from_size(left: float, top: float, width: float, height: float) -> Box:
    """Return a box from its corner and size.

    >>> box_from_size(1.1, 2, 2.2, 3)
    (1.1, 2, 3.3, 5)
    """
    return left, top, rounded(left + width), rounded(top + height)


def rounded(value: float) -> float:
    """Return a computed position without the digits that only floating point adds."""
    return round(value, _DIGITS)


def polygons_of(values: Any) -> list[list[float]]:
    """Return outlines [[x, y, x, y, ...], ...]; a single list of numbers is one outline."""
    lists = [values] if values and not isinstance(values[0], (list, tuple)) else values
    polygons = [numbers_of(points, "a polygon") for points in lists]
    for points in polygons:
        if len(points) % 2 or not points:
            raise SourceError(f"a polygon of {len(points)} numbers; allowed are pairs of x and y")
    return polygons


def bounding_box(polygons: Sequence[Sequence[float]]) -> Box:
    """Return the smallest box around outlines."""
    xs = [x for points in polygons for x in points[::2]]
    ys = [y for points in polygons for y in points[1::2]]
    return min(xs), min(ys), max(xs), max(ys)


def remarks(
    objects: Sequence[Object], width: float, height: float, tolerance: float = 1.0
) -> Iterator[tuple[int, str]]:
    """Check all objects of an image: the one rule for every format.

    A box with a negative width or height, a box that is completely outside the image, and run lengths for an image of
    another size cannot be what was meant, so the image is skipped. A box without area, and what reaches beyond the
    image, are kept as they are.

    Args:
        objects: Objects of the image.
        width: Width of the image, infinite if it is not known; 1 if positions are fractions.
        height: Height of the image, infinite if it is not known.
        tolerance: How far an object may reach beyond the image without a remark: positions are rounded.

    Yields:
        Position of an object that is kept, and what is remarkable about it: `NO_AREA`, `BEYOND`, `POINTS_BEYOND`.

    Raises:
        SourceError: An object cannot be used.
    """
    for index, item in enumerate(objects):
        left, top, right, bottom = item["box"]
        if right < left or bottom < top:
            raise SourceError(f"{name_of(item, index)} has a box of negative size: {_shown(item['box'])}")
        if right < 0 or bottom < 0 or left > width or top > height:
            image = "whose positions are 0 to 1" if width == height == 1 else f"of {width:g}x{height:g}"
            raise SourceError(f"{name_of(item, index)} has a box outside its image {image}: {_shown(item['box'])}")
        if "rle" in item and math.isfinite(width) and item["rle"]["size"] != [height, width]:
            raise SourceError(
                f"{name_of(item, index)} has a mask in run lengths of size {item['rle']['size']} (height, width), and "
                f"its image has [{height:g}, {width:g}]"
            )
        if right == left or bottom == top or any(len(points) < 6 for points in item.get("polygons", ())):
            yield index, NO_AREA
        if min(left, top, width - right, height - bottom) < -tolerance:
            yield index, BEYOND
        points = [point for point in item.get("keypoints", ()) if is_labelled(point)]
        for xs, ys in [*((outline[::2], outline[1::2]) for outline in item.get("polygons", ())), *_columns(points)]:
            if xs and min(*xs, *ys, width - max(xs), height - max(ys)) < -tolerance:
                yield index, POINTS_BEYOND
                break


def is_labelled(point: Sequence[float]) -> bool:
    """Return whether the position of a key point is known: a visibility above 0, or without one no negative number."""
    return point[2] > 0 if len(point) > 2 else min(point) >= 0


def _columns(points: Sequence[Sequence[float]]) -> list[tuple[list[float], list[float]]]:
    return [([point[0] for point in points], [point[1] for point in points])] if points else []


def flip_index_of(attributes: Iterable[str]) -> tuple[int, ...] | None:
    """Return which key point each one becomes when its image is mirrored, from the attributes of classes.

    It is ``flip_idx`` of YOLO; in COCO, ``left`` and ``right`` change places in the names of key points.

    >>> flip_index_of(['{"keypoints": ["nose", "left_eye", "right_eye"]}'])
    (0, 2, 1)

    Returns:
        The index of the other point of each pair. None if it is not known, or not the same for all classes.
    """
    indexes = {index for text in attributes if (index := _flip_index(json.loads(text))) is not None}
    return indexes.pop() or None if len(indexes) == 1 else None


def _flip_index(attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the pairs of a class, nothing if they are not known; None if it has no key points."""
    index, names = attributes.get("flip_idx"), attributes.get("keypoints")
    if isinstance(index, list) and are_pairs(index):
        return tuple(index)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None if index is None else ()
    opposite = {"left": "right", "right": "left"}
    lower = [name.lower() for name in names]
    mirrored = [re.sub("left|right", lambda side: opposite[side[0]], name) for name in lower]
    if lower == mirrored or not set(mirrored) <= set(lower):
        return ()
    pairs = tuple(map(lower.index, mirrored))
    return pairs if are_pairs(pairs) else ()


def are_pairs(index: Sequence[Any]) -> bool:
    """Return whether these are the indices of points in pairs: those of two points are exchanged, or a point stays."""
    indexes = range(len(index))
    return all(type(partner) is int and partner in indexes and index[partner] == i for i, partner in enumerate(index))


def name_of(item: Mapping[str, Any], index: int) -> str:
    """Return what an object is called in messages: by its id in the source, or by its position in the image."""
    return f"annotation {item['id']}" if isinstance(item.get("id"), (int, str)) else f"object {index}"


def _shown(box: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "] (left, top, right, bottom)"


def scaled(objects: Sequence[Object], x: float, y: float) -> list[Object]:
    """Convert objects whose positions are fractions of the image to pixels, given its width x and height y."""
    return [_scaled(item, x, y) for item in objects]


def _scaled(item: Object, x: float, y: float) -> Object:
    new = item | {"box": _scaled_points(item["box"], x, y)}
    if "polygons" in item:
        new["polygons"] = [_scaled_points(points, x, y) for points in item["polygons"]]
    if "keypoints" in item:
        new["keypoints"] = [[*_scaled_points(point[:2], x, y), *point[2:]] for point in item["keypoints"]]
    return new


def _scaled_points(points: Sequence[float], x: float, y: float) -> list[float]:
    return [rounded(value * (y if i % 2 else x)) for i, value in enumerate(points)]


def further(source: Mapping[str, Any], used: Sequence[str], ours: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of a source that are kept under their own names; one that we use gets an underscore.

    >>> further({"bbox": [], "area": 5, "box": "b"}, ["bbox"], OBJECT_KEYS)
    {'area': 5, 'box_': 'b'}
    """
    return {f"{name}_" if name in ours else name: value for name, value in source.items() if name not in used}


def rle_box(rle: Mapping[str, Any]) -> Box:
    """Return the smallest box around a mask in run lengths, as COCO stores it: column by column, background first.

    >>> rle_box({"size": [3, 4], "counts": [4, 2, 6]})
    (1.0, 1.0, 2.0, 3.0)
    """
    height, counts = rle["size"][0], run_lengths(rle)
    start, runs = 0, []
    for index, length in enumerate(counts):
        if index % 2 and length:
            runs.append((start, start + length))
        start += length
    if not runs:
        return 0.0, 0.0, 0.0, 0.0
    columns = runs[0][0] // height, (runs[-1][1] - 1) // height + 1
    whole = any(first // height != (last - 1) // height for first, last in runs)  # a run around the end of a column
    top = 0 if whole else min(first % height for first, _ in runs)
    bottom = height if whole else max((last - 1) % height + 1 for _, last in runs)
    return float(columns[0]), float(top), float(columns[1]), float(bottom)


def run_lengths(rle: Mapping[str, Any]) -> list[int]:
    """Return the run lengths of a mask, decompressed if they are text."""
    size, counts = rle.get("size"), rle.get("counts")
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise SourceError(f"a mask in run lengths of size {str(size)[:40]}; allowed is [height, width]")
    if isinstance(counts, str):
        counts = _decompressed(counts)
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise SourceError("a mask in run lengths whose counts are neither numbers of at least 0 nor COCO's text")
    if sum(counts) != size[0] * size[1]:
        raise SourceError(f"a mask in run lengths of {sum(counts):,} pixels; its size {size} has {size[0] * size[1]:,}")
    return counts


def _decompressed(text: str) -> list[int]:
    """Return the counts of COCO's text: 5 bits per character; after the second, differences to the count two before."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            return [-1]
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift  # the sign
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    return counts if not shift else [-1]


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
