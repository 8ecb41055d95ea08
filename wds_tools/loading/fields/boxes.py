"""Values at a path in JSON, boxes and points: moved, scaled and mirrored as the image beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import MissingFieldError, SampleError
from wds_tools.images.views import Regions
from wds_tools.loading.collate import number_array
from wds_tools.loading.columns import Column
from wds_tools.loading.fields.plain import Boxes, Field, Keypoints, MultiHot, Text
from wds_tools.loading.part import Part
from wds_tools.loading.user_functions import call_for_sample, seeded
from wds_tools.order.keyed_random import key_of

Floats = NDArray[np.float64]


def load_boxes(part: Part, column: Column) -> list[Any]:
    """Return the visible boxes of each sample: float32 [k, 4], left, top, right, bottom; by view if there is a list."""
    views = [
        [torch.from_numpy(one[_are_visible(column, one)]) for one in boxes] for boxes in _moved_boxes(part, column)
    ]
    return column.by_sample(views)


def load_keypoints(part: Part, column: Column) -> list[Any]:
    """Return the points of each sample: float32 [..., 2 or more]; by view if there is a list."""
    stored = _stored_points(part, column)
    views = []
    for regions in part.regions(column.geometry) if column.geometry else [None]:
        moved = [points.copy() for points in stored]
        for i, points in enumerate(moved):
            if regions is not None and points.size:
                points[..., :2] = move_points(points[..., :2], regions, i)
        views.append([torch.from_numpy(points.astype(np.float32)) for points in moved])
    return column.by_sample(views)


def _stored_points(part: Part, column: Column) -> list[Floats]:
    spec = column.spec
    assert isinstance(spec, Keypoints)
    stored = []
    for i, value in enumerate(values_at(part, spec.field, spec.path)):
        points = _numbers(part, i, spec, value)
        if spec.numbers is not None and points.ndim:
            count, rest = divmod(points.shape[-1], spec.numbers)
            if rest:
                found = f"an array of shape {points.shape}"
                raise _invalid(part, i, spec, found, f"lists of {spec.numbers} numbers for each point (numbers=)")
            points = points.reshape(*points.shape[:-1], count, spec.numbers)
        if points.size and (points.ndim < 2 or points.shape[-1] < 2):
            raise _invalid(part, i, spec, f"an array of shape {points.shape}", "points [..., 2] or [..., 3]")
        stored.append(points)
    return stored


def load_fields(part: Part, column: Column) -> list[Any]:
    """Return a stored field of each sample or what is at a path in it; if it belongs to boxes, for the visible ones."""
    spec = column.spec
    assert isinstance(spec, Field)
    values = values_at(part, spec.field, spec.path)
    if spec.decode is not None:
        values = _results(part, column, "decode", spec.decode, values)
    if spec.like is None:
        return [as_tensor(value) for value in values] if spec.path else values
    boxes = next(other for other in part.columns if other.name == spec.like)
    views = [
        [as_tensor(_visible_entries(part, spec, i, values[i], boxes, moved)) for i, moved in enumerate(view)]
        for view in _moved_boxes(part, boxes)
    ]
    return column.by_sample(views)


def _visible_entries(
    part: Part, spec: Field, i: int, value: Any, boxes: Column, moved: NDArray[np.float32]
) -> list[Any]:
    """Return the entries of a value of sample ``i``, which has one per stored box, for the boxes that are visible."""
    is_list = isinstance(value, list | np.ndarray | torch.Tensor)
    if not is_list or len(value) != len(moved):
        found = f"{len(value)} entries" if is_list else type(value).__name__
        raise _invalid(part, i, spec, found, f"lists with one entry for each of the {len(moved)} boxes")
    return [value[j] for j in np.flatnonzero(_are_visible(boxes, moved)).tolist()]


def load_texts(part: Part, column: Column) -> list[Any]:
    """Return the texts, or the results of the user's function of each text.

    Raises:
        SampleError: A value is not text.
    """
    spec = column.spec
    assert isinstance(spec, Text)
    texts = []
    for i, value in enumerate(values_at(part, spec.field, spec.path)):
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise _invalid(part, i, spec, f"bytes that are not UTF-8 ({error})", "text: read it with Field") from error
        if not isinstance(text, str):
            raise _invalid(part, i, spec, f"{type(value).__name__}", "text: use path=, such as 'captions.0'")
        texts.append(text)
    return texts if spec.encode is None else _results(part, column, "encode", spec.encode, texts)


def load_multi_hot(part: Part, column: Column) -> list[torch.Tensor]:
    """Return for each sample 1 for each of its classes: float32 [classes].

    Raises:
        SampleError: A value is neither the number nor the name of a class.
    """
    spec = column.spec
    assert isinstance(spec, MultiHot)
    names = spec.classes if isinstance(spec.classes, tuple) else ()
    count = len(names) if names else spec.classes
    numbers = {name: number for number, name in enumerate(names)}
    assert isinstance(count, int), "open_dataset() has set the classes"
    found = []
    for i, value in enumerate(values_at(part, spec.field, spec.path)):
        row = torch.zeros(count)
        for one in _flattened(value):
            number = numbers.get(one) if isinstance(one, str) else one
            if type(number) is not int or not 0 <= number < count:
                allowed = f"class numbers from 0 to {count - 1}{', and class names' if names else ''}"
                raise _invalid(part, i, spec, f"the label {str(one)[:40]!r}", allowed)
            row[number] = 1
        found.append(row)
    return found


def _flattened(value: Any) -> list[Any]:
    """Return the elements of a list and of the lists in it; a single value is a list of one."""
    return [one for part in value for one in _flattened(part)] if isinstance(value, list) else [value]


def _results(part: Part, column: Column, option: str, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """Return the results of the user's function of the value of each sample, with seeded random numbers."""

    def call(value: Any, position: int) -> Any:
        with seeded(key_of(option, part.seed, part.epoch, position, column.name)):
            return as_tensor(function(value))

    with stages.TRANSFORM:
        return [
            call_for_sample(f"{option}=", part.rows, i, partial(call, value, position))
            for i, (value, position) in enumerate(zip(values, part.positions.tolist(), strict=True))
        ]


def values_at(part: Part, field: str, path: str) -> list[Any]:
    """Return what is at a path in a field of each sample; with an empty path the whole field.

    Raises:
        MissingFieldError: A sample has nothing there.
    """
    values = list(part.values(field))
    if not path:
        return values
    for i, value in enumerate(values):
        try:
            values[i] = _at(value, path.split("."))
        except (KeyError, IndexError, TypeError) as error:
            shard, key = part.rows.shard_and_key(i)
            names = f"its names are {', '.join(map(repr, value))[:500]}" if isinstance(value, dict) else "no dictionary"
            raise MissingFieldError(f"field {field!r} has no {path!r}: {names}", shard=shard, key=key) from error
    return values


def _at(value: Any, names: list[str]) -> Any:
    """Follow names into dictionaries; in a list, a number is an index, and a name is looked up in each element."""
    for number, name in enumerate(names):
        if isinstance(value, list):
            if not name.isdecimal():
                return [_at(element, names[number:]) for element in value]
            value = value[int(name)]
        else:
            value = value[name]
    return value


def move_points(points: Floats, regions: Regions, i: int, *, mirror_at: int = -1) -> Floats:
    """Return points of an image as points of the region that a view shows of it.

    Args:
        points: float64 [..., 2], x and y in pixels of the image.
        regions: Regions of a batch.
        i: Number of the image in the batch.
        mirror_at: If the region is mirrored, x becomes its width plus this number, minus x. It is -1 for positions of
            pixels, which are those of torchvision's key points, and 0 for edges between pixels, as those of boxes.

    Returns:
        float64 [..., 2], in pixels of the result.
    """
    box, resized = regions.box[i], regions.resize[i]
    moved: Floats = (points - box[:2]) * (resized[::-1] / box[2:]) - regions.corner[i, ::-1]
    if regions.flip[i]:
        moved[..., 0] = regions.size[i, 1] + mirror_at - moved[..., 0]
    return moved


def _moved_boxes(part: Part, column: Column) -> list[list[NDArray[np.float32]]]:
    """Return for each view all boxes of each sample, clipped to its region: float32 [k, 4], edges in pixels."""
    stored = _stored_boxes(part, column)
    views = part.regions(column.geometry) if column.geometry else [None]
    return [
        [(clipped_boxes(edges, view, i) if view else edges).astype(np.float32) for i, edges in enumerate(stored)]
        for view in views
    ]


def _stored_boxes(part: Part, column: Column) -> list[Floats]:
    """Return the boxes of each sample in the image: float64 [k, 4], left, top, right, bottom in pixels."""
    spec = column.spec
    assert isinstance(spec, Boxes)
    boxes = []
    for i, value in enumerate(values_at(part, spec.field, spec.path)):
        stored = _numbers(part, i, spec, value)
        if stored.size and (stored.ndim != 2 or stored.shape[1] != 4):
            raise _invalid(part, i, spec, f"an array of shape {stored.shape}", "boxes [number of boxes, 4]")
        edges = _edges(stored.reshape(-1, 4), spec.format)
        invalid = ~((edges[:, 2:] >= edges[:, :2]).all(axis=1) & np.isfinite(edges).all(axis=1))
        if invalid.any():
            j = int(np.argmax(invalid))
            found = f"box {j}, {stored.reshape(-1, 4)[j].tolist()} ({spec.format})"
            raise _invalid(part, i, spec, found, "finite numbers, and widths and heights of at least 0")
        if spec.normalized:
            width, height = (int(sizes[i]) for sizes in part.image_sizes(_image_field(part, column)))
            edges *= [width, height, width, height]
        boxes.append(edges)
    return boxes


def _image_field(part: Part, column: Column) -> str:
    """Return the stored field of the image that boxes belong to, which need not have a view."""
    if column.geometry:
        return column.geometry.field
    return next(other.spec.field for other in part.columns if other.name == getattr(column.spec, "like", None))


def clipped_boxes(edges: Floats, regions: Regions, i: int) -> Floats:
    """Return boxes of an image as boxes of the region that a view shows of it, clipped to it.

    Args:
        edges: float64 [k, 4], left, top, right, bottom in pixels of the image.
        regions: Regions of a batch.
        i: Number of the image in the batch.

    Returns:
        float64 [k, 4], left, top, right, bottom in pixels of the result. A box outside the region has no area.
    """
    corners = move_points(edges.reshape(-1, 2, 2), regions, i, mirror_at=0)
    corners = np.clip(corners, 0, regions.size[i, ::-1])
    if regions.flip[i]:
        corners[:, :, 0] = corners[:, ::-1, 0]
    return corners.reshape(-1, 4)


def _are_visible(column: Column, edges: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which boxes have an area; all of them if no region is chosen."""
    if column.geometry is None:
        return np.ones(len(edges), np.bool_)
    return np.asarray((edges[:, 2:] > edges[:, :2]).all(axis=1))


def _edges(boxes: Floats, form: str) -> Floats:
    if form == "xyxy":
        return boxes
    corner, size = boxes[:, :2], boxes[:, 2:]
    start = corner - size / 2 if form == "cxcywh" else corner
    return np.concatenate([start, start + size], axis=1)


def _numbers(part: Part, i: int, spec: Any, value: Any) -> Floats:
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise _invalid(part, i, spec, f"{str(value)[:80]!r}", "numbers in lists of equal length") from error


def _invalid(part: Part, i: int, spec: Any, found: str, allowed: str) -> SampleError:
    shard, key = part.rows.shard_and_key(i)
    where = f" at path {spec.path!r}" if spec.path else ""
    return SampleError(f"field {spec.field!r}{where} has {found}; allowed are {allowed}", shard=shard, key=key)


def as_tensor(value: Any) -> Any:
    """Return a list of numbers as a tensor, also in a mapping, and any other value unchanged."""
    if isinstance(value, Mapping):
        return {key: as_tensor(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    try:
        array = number_array(value) if value else np.empty(0, np.int64)
    except ValueError:  # lists of different lengths
        return value
    return value if array is None else torch.from_numpy(array)
