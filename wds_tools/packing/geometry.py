"""Masks and boxes of images that are resized while they are packed: resized too, or the run is refused.

The JSON of objects is ``{"objects": [{"box": [left, top, right, bottom], ...}]}`` in pixels, as `docs/sources.md`
describes it. Other positions are not understood: they may be in pixels of the old image, or fractions of its size.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import DecodeError, OptionError, SourceError
from wds_tools.format import codecs, image_header
from wds_tools.format.label import quoted
from wds_tools.format.objects import run_lengths
from wds_tools.format.sample import IMAGE_FIELDS, is_mask_name
from wds_tools.sources.base import Record

Size = tuple[int, int]
"""Height and width in pixels."""

_POSITIONS = (
    *("box", "boxes", "bbox", "bboxes", "bounding_box", "bounding_boxes", "bndbox", "roi", "rois"),
    *("rectangle", "rectangles", "quad", "quads", "polygon", "polygons", "segmentation", "contour", "contours"),
    *("rle", "encodedpixels", "keypoints", "landmarks", "points", "corners"),
)  # names of lists, objects and texts with several numbers
_POSITIONS_ENDING = ("box", "boxes", "kpt", "kpts")  # as in hbox and foot_kpts
_KEPT_TYPES = (".png", ".tif", ".tiff")
_EDGES = ("xmin", "xmax", "ymin", "ymax", "x1", "x2", "y1", "y2", "xtl", "ytl", "xbr", "ybr")  # names of numbers too
_XML_NAME = re.compile(r"[<\s]([A-Za-z_][\w.-]*)(?=[\s=>])")  # of elements and attributes
_OPAQUE = ("pkl", "pickle", "pyd", "pth", "pt", "ten", "mat", "h5", "msgpack", "mp", "cbor")  # types not looked into
_AXIS = re.compile(r"(?:^c?|_c?|min|max)(x|y|left|top)(?:_?(?:\d+|min|max|c|center|centre))?$")
_PARTNERS = {"x": "y", "y": "x", "left": "top", "top": "left"}  # two numbers with such names are a position
_NUMBERS = re.compile(r"[-+.,;:|eE\d\s\[\](){}]+")  # text that has nothing but numbers
_SEVERAL = re.compile(r"\d[^\d.]+\.?\d")
_DIGITS = 6  # decimals of pixels, so that a width of 10.2 does not become 10.199999999999989
_COORDINATES = (2, 3)  # the last side of an array of positions: x and y, perhaps with a depth or visibility
_UNDERSTOOD = ("objects", "height", "width", "path", "class", "label")  # not positions, or changed with the image
_MOVED = ("box", "polygons", "keypoints", "rle")  # positions of an object
_FACTS = (
    *("id", "license", "depth", "segmented", "date", "time", "year", "age", "rating", "score", "count", "lat", "lon"),
    *("latitude", "longitude", "altitude", "weight", "temperature", "duration", "price", "likes"),
)  # words in names of numbers that are not positions
_CLASSES = ("label", "labels", "class", "classes", "category", "categories")  # last words of names of class numbers
_MAX_NUMBERS = 10_000
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[^\s,;:|()\[\]{}]+")
_REMEDY = (
    "pack without --resize (resize=), and let the loader resize image and positions together (view=, like=); or store "
    'them as {"objects": [{"box": [left, top, right, bottom], ...}]} in pixels'
)
_TURNED = (
    "a mask, and an EXIF orientation that loaders apply to the image and not to the mask: if masks were drawn on the "
    "pixels as they are stored, apply the orientation to the files first"
)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # EXIF orientation -> how the stored pixels are turned


def resized(record: Record, new: Size) -> Record:
    """Return a record whose further fields and facts belong to its image after it was resized.

    Masks and other arrays of the size of the image are resized by nearest neighbour, objects by arithmetic.
    """
    if not record.fields and not record.facts:
        return record
    record = turned(record)
    record = record._replace(remarks=(*record.remarks, *other_size_remarks(record)))
    old = _size_of(record.image)
    fields = {_stored_name(name): _resized_field(name, data, old, new) for name, data in record.fields.items()}
    if len(fields) < len(record.fields):
        raise OptionError(
            f"the masks {quoted(sorted(record.fields))} of a sample would become one field, because masks become PNG "
            "when they are resized: rename one, or pack without --resize (resize=)"
        )
    if old == new:
        return record._replace(fields=fields)
    return record._replace(fields=fields, facts=_resized_facts(record.facts, old, new))


def turned(record: Record, *, strictly: bool = True) -> Record:
    """Return a record whose masks are turned like its image, to which readers apply its EXIF orientation.

    Only masks that have the size of the stored pixels, and not that of the turned image, are turned.

    Args:
        record: The record.
        strictly: False for a remark instead of the error.

    Raises:
        DecodeError: The sizes do not show whether a mask was drawn on the stored pixels, or an array was.
    """
    may_have_masks = any(name.endswith(".png") or is_mask_name(name) for name in record.fields)
    orientation, size = _orientation_of(record.image) if may_have_masks else (1, (0, 0))
    if orientation == 1:
        return record
    fields, remarks = dict(record.fields), dict.fromkeys(record.remarks)
    for name, data in record.fields.items():
        drawn_on = _drawn_on(name, data, orientation, size)
        if drawn_on == "stored" and _is_picture(name):
            fields[name] = _turned_mask(name, data, orientation)
        elif drawn_on in ("stored", "unknown") and strictly:
            raise DecodeError(
                f"has the EXIF orientation {orientation}, and {name!r} may have been drawn without it: apply the "
                "orientation to the file, for example with Pillow's ImageOps.exif_transpose, or pack with --images keep"
            )
        elif drawn_on in ("stored", "unknown"):
            remarks[_TURNED] = None
    return record._replace(fields=fields, remarks=tuple(remarks))


def _orientation_of(image: bytes | NDArray[np.uint8]) -> tuple[int, Size]:
    """Return the EXIF orientation of an image, and its size after it is applied."""
    if isinstance(image, np.ndarray):
        return 1, (image.shape[0], image.shape[1])
    info = image_header.probe(image)
    return info.orientation, (info.height, info.width)


def _drawn_on(name: str, data: bytes, orientation: int, size: Size) -> Literal["turned", "stored", "unknown"] | None:
    """Return what a mask was drawn on, by its size: the turned image or the stored pixels; None if it is not a mask."""
    if not is_mask_name(name) and not (name.endswith(".png") and _is_grey_png(data, size, size[::-1])):
        return None
    if _is_picture(name):
        try:
            info = image_header.probe(data)
        except DecodeError:
            return None
        sides = {(info.height, info.width)}
    else:
        array = _array_in(data)
        sides = set() if array is None else {array.shape[:2], array.shape[-2:]}
    swaps = orientation >= 5 and size[0] != size[1]
    if size in sides:
        return "turned" if swaps else "unknown"
    return "stored" if swaps and size[::-1] in sides else None


def _is_picture(name: str) -> bool:
    return not name.endswith(".npy")


def _turned_mask(name: str, data: bytes, orientation: int) -> bytes:
    """Return a mask turned as an EXIF orientation says, with its mode and palette."""
    out = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data)) as mask:
            kind = "TIFF" if name.endswith((".tif", ".tiff")) else "PNG"
            mask.transpose(_TURNS[orientation]).save(out, kind)
    except (OSError, ValueError, SyntaxError) as error:
        raise DecodeError(
            f"has a mask {name!r} that cannot be rotated to match its image: {image_header.reason_of(error, data)}"
        ) from error
    return out.getvalue()


def other_size_remarks(record: Record) -> tuple[str, ...]:
    """Return a remark if a mask does not have the size of its image, so that it is not resized with it."""
    size = _size_of(record.image)
    for name, data in record.fields.items():
        if _is_mask(name) and other_size(data, size):
            return (f"a mask {name!r} of another size than the image, which is not resized",)
    return ()


def other_size(mask: bytes, size: Size) -> Size | None:
    """Return the size of a mask, or of an array, if it is not the size of its image; None too if it is damaged."""
    with suppress(DecodeError):
        info = image_header.probe_array(mask)
        return (info.height, info.width) if (info.height, info.width) != size else None
    return None


def _size_of(image: bytes | NDArray[np.uint8]) -> Size:
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    info = image_header.probe(image)
    return info.height, info.width


def _words(name: str) -> set[str]:
    return set(name.lower().replace("_", ".").split(".")[:-1]) | {name.lower().rpartition(".")[0]}


def _is_mask(name: str) -> bool:
    """Return whether a field is a mask by its name, of any type of image."""
    return is_mask_name(name) and name[-4:] != ".npy"


def _stored_name(name: str) -> str:
    """Return the name of a field after resizing: masks in types that lose pixels or have several images become PNG."""
    return name if not _is_mask(name) or name.endswith(_KEPT_TYPES) else f"{name.rpartition('.')[0]}.png"


def _resized_field(name: str, data: bytes, old: Size, new: Size) -> bytes:
    if _is_mask(name):
        return _resized_mask(name, data, old, new)
    kind = name.rpartition(".")[2]
    if old == new:
        return data
    positions = {*_words(name), kind}.intersection(_POSITIONS)
    if kind in ("json", "jsn"):
        positions = positions or _positions_in(_parsed(data))
    elif kind == "xml":
        positions = positions or _position_names(_XML_NAME.findall(data.decode(errors="replace")))
    elif kind == "npz":
        return _resized_arrays(name, data, old, new)
    if positions and kind not in IMAGE_FIELDS:
        raise _not_understood(f"field {name!r}", min(positions))
    if kind == "npy":
        return _resized_array(name, data, old, new, positions)
    # another photograph keeps its size; loaders compare the sizes
    return _resized_mask(name, data, old, new) if kind == "png" and _is_grey_png(data, old) else data


def _is_grey_png(data: bytes, *sizes: Size) -> bool:
    """Return whether a PNG has one of these sizes and one channel, as class numbers and depths have."""
    try:
        info = image_header.probe(data)
    except DecodeError:
        return False
    return (info.height, info.width) in sizes and not info.mode.startswith(("RGB", "LA"))


def _resized_array(name: str, data: bytes, old: Size, new: Size, positions: set[str]) -> bytes:
    """Resize an array [..., height, width], such as a mask for each instance; any other array is kept."""
    array = _array_in(data)
    if array is not None and _has_sides(array, old):
        return codecs.encode_npy(_resized_sides(array, old, new))
    if positions:
        raise _not_understood(f"field {name!r}", min(positions))
    return data


def _resized_arrays(name: str, data: bytes, old: Size, new: Size) -> bytes:
    """Resize the arrays in an npz file that have the sides of the image; others are kept."""
    arrays = _arrays_in(data)
    for key, array in arrays.items():
        if not _has_sides(array, old) and (positions := _position_names([key])):
            raise _not_understood(f"array {key!r} of field {name!r}", min(positions))
    if not any(_has_sides(array, old) for array in arrays.values()):
        return data
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as members:
        for key, array in arrays.items():
            members.writestr(f"{key}.npy", codecs.encode_npy(_resized_sides(array, old, new)))
    return out.getvalue()


def _has_sides(array: NDArray[Any], size: Size) -> bool:
    """Return whether an array is [height, width], [height, width, channels] or [..., height, width]."""
    return array.shape[-2:] == size or (array.ndim == 3 and array.shape[:2] == size)


def _resized_sides(array: NDArray[Any], old: Size, new: Size) -> NDArray[Any]:
    """Return an array with the sides of the image in the new size, and any other array as it is."""
    if not _has_sides(array, old):
        return array
    if array.ndim < 4 and array.shape[:2] == old:
        return _nearest(array, new)
    last = np.moveaxis(_nearest(np.moveaxis(array, (-2, -1), (0, 1)), new), (0, 1), (-2, -1))
    return np.ascontiguousarray(last)


def _resized_mask(name: str, data: bytes, old: Size, new: Size) -> bytes:
    """Resize a mask that has the size of the image; a mask of any other size is kept."""
    is_kept = _stored_name(name) == name
    try:
        info = image_header.probe(data)
    except DecodeError:
        if is_kept:
            return data
        raise
    size = info.height, info.width
    if size == old:
        size = new
    if is_kept and size == (info.height, info.width):
        return data
    if info.mode.startswith("RGB") and info.mode.endswith("16"):
        raise DecodeError(f"has a mask {name!r} with 16 bits in each of its channels, which cannot be resized")
    out = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data)) as mask:
            kind = "TIFF" if name.endswith((".tif", ".tiff")) else "PNG"
            mask.resize(size[::-1], Image.Resampling.NEAREST).save(out, kind)
    except (OSError, ValueError, SyntaxError) as error:
        raise DecodeError(
            f"has a mask {name!r} that cannot be resized: {image_header.reason_of(error, data)}"
        ) from error
    return out.getvalue()


def _nearest(array: NDArray[Any], new: Size) -> NDArray[Any]:
    """Return an array [height, width, ...] in another size, by nearest neighbour."""
    rows, columns = (
        ((np.arange(side) + 0.5) * (before / side)).astype(np.int64)
        for side, before in zip(new, array.shape[:2], strict=True)
    )
    return np.ascontiguousarray(array[rows][:, columns])


def _resized_facts(facts: Mapping[str, Any], old: Size, new: Size) -> Mapping[str, Any]:
    result = dict(facts)
    objects = result.pop("objects", None)
    if isinstance(objects, list) and all(isinstance(item, dict) for item in objects):
        scale = new[1] / old[1], new[0] / old[0]
        result["objects"] = [_resized_object(item, scale, old, new) for item in objects]
    elif objects is not None and (positions := _positions_in(objects)):
        raise _not_understood("'objects' of the field 'json'", min(positions))
    elif "objects" in facts:
        result["objects"] = objects
    if positions := _positions_in({name: value for name, value in result.items() if name != "objects"}):
        raise _not_understood("the field 'json'", min(positions))
    if (facts.get("height"), facts.get("width")) == old:
        result["height"], result["width"] = new
    return {name: result[name] for name in facts}


def _resized_object(item: dict[str, Any], scale: tuple[float, float], old: Size, new: Size) -> dict[str, Any]:
    parts = item.get("part")  # of VOC
    has_parts = isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
    further = {name: value for name, value in item.items() if name not in _MOVED and not (has_parts and name == "part")}
    if positions := _positions_in(further):
        raise _not_understood("'objects' of the field 'json'", min(positions))
    moved = dict(item)
    try:
        if "box" in item:
            moved["box"] = _scaled(item["box"], scale)
        if "polygons" in item:
            moved["polygons"] = [_scaled(points, scale) for points in item["polygons"]]
        if "keypoints" in item:
            moved["keypoints"] = [[*_scaled(point[:2], scale), *point[2:]] for point in item["keypoints"]]
        if "area" in item:
            moved["area"] = round(item["area"] * scale[0] * scale[1], _DIGITS)
        if item.get("rle") is not None:
            moved["rle"] = _resized_rle(item["rle"], old, new)
        if has_parts:
            moved["part"] = [_resized_object(part, scale, old, new) for part in item["part"]]
    except (TypeError, ValueError, KeyError, AttributeError, SourceError) as error:
        raise OptionError(f"an object {str(item)[:100]} has positions in another form ({error}): {_REMEDY}") from error
    return moved


def _scaled(points: Any, scale: tuple[float, float]) -> list[float]:
    """Return x, y, x, y, ... times the scale of x and y."""
    if len(points) % 2:
        raise ValueError("an x without y")
    return [round(value * scale[i % 2], _DIGITS) for i, value in enumerate(points)]


def _resized_rle(rle: Mapping[str, Any], old: Size, new: Size) -> dict[str, Any]:
    """Return a mask in run lengths, column by column and background first, in another size."""
    counts = run_lengths(rle)
    if tuple(rle["size"]) != old:
        raise ValueError("rle does not have the size of the image")
    mask = np.repeat(np.arange(len(counts)) % 2, counts).reshape(old[::-1]).T
    flat = _nearest(mask, new).T.reshape(-1)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(flat)) + 1, [len(flat)]])
    runs = np.diff(starts).tolist()
    return {**rle, "size": list(new), "counts": [0, *runs] if flat[0] else runs}


def _parsed(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _array_in(data: bytes) -> NDArray[Any] | None:
    try:
        return np.asarray(codecs.view_npy(data))
    except (ValueError, DecodeError):
        return None


def _arrays_in(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in an npz file; none if it is damaged or has objects of Python."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        return {}


def may_have_positions(record: Record, new: Size) -> set[str]:
    """Return the names of further fields and entries of ``json`` whose values could be positions in the image.

    They are not changed when the image is resized: only their values show it, two or more numbers from 0 to the sides
    of the image, one of them above 1.
    """
    old = _size_of(record.image)
    if old == new:
        return set()
    facts = {
        name: _plain_number(value)
        for name, value in record.facts.items()
        if name not in _UNDERSTOOD and not set(_FACTS).intersection(words := re.split("[_/]", _plain(name)))
        if words[-1] not in _CLASSES
    }
    names = {name for name, value in facts.items() if not _is_number(value) and _could_be_positions(value, old)}
    numbers = [name for name, value in facts.items() if _is_number(value) and 0 <= value <= max(old)]
    if len(numbers) > 1 and any(facts[name] > 1 for name in numbers):  # one number is not a position
        names.update(numbers)
    names.update(name for name, value in facts.items() if _is_number(value) and "area" in _plain(name).split("_"))
    objects = record.facts.get("objects")
    for item in objects if isinstance(objects, list) else ():
        names.update(
            name
            for name, value in (item.items() if isinstance(item, dict) else ())
            if name not in (*_MOVED, "part") and not _is_number(value) and _could_be_positions(value, old)
        )
    names.update(name for name, data in record.fields.items() if _field_may_have_positions(name, data, old))
    return names


def _field_may_have_positions(name: str, data: bytes, size: Size) -> bool:
    kind = name.rpartition(".")[2]
    if kind == "json":
        return _could_be_positions(_parsed(data), size)
    if kind in ("npy", "npz"):
        array = _array_in(data) if kind == "npy" else None
        arrays = _arrays_in(data).values() if kind == "npz" else [] if array is None else [array]
        return any(_array_may_have_positions(array, size) for array in arrays)
    if kind == "txt":
        text = data.decode(errors="replace")
        return _is_list_of_numbers(text) and any(float(number) > 1 for number in _NUMBER.findall(text))
    return kind in _OPAQUE


def _array_may_have_positions(array: NDArray[Any], size: Size) -> bool:
    if _has_sides(array, size):
        return array.ndim == 3 and array.shape[2] == 2  # resized, but not its vectors in pixels, such as optical flow
    is_list = array.ndim and array.dtype.kind in "iuf" and array.shape[-1] in _COORDINATES
    return bool(is_list) and _could_be_positions(array.tolist(), size)


def _plain_number(value: Any) -> Any:
    """Return a text that is a number, as in CSV, as this number."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value.strip()) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _could_be_positions(value: Any, size: Size) -> bool:
    """Return whether a value has two or more numbers, all of which are positions in an image of this size."""
    numbers: list[float] = []
    stack = [value]
    while stack and len(numbers) < _MAX_NUMBERS:
        item = stack.pop()
        if isinstance(item, str):
            parsed = _parsed(item) if item.lstrip()[:1] in ("{", "[") else None
            if parsed is None:
                parsed = [float(word) for word in _NUMBER.findall(item)] if _is_list_of_numbers(item) else None
            item = parsed
        if _is_number(item):
            numbers.append(item)
        stack += item if isinstance(item, list) else item.values() if isinstance(item, dict) else ()
    return len(numbers) > 1 and max(numbers) > 1 and all(0 <= number <= max(size) for number in numbers)


def _is_list_of_numbers(text: str) -> bool:
    """Return whether a text has several numbers with nothing but names of classes or shapes between them."""
    words = _WORD.findall(text)
    numbers = [word for word in words if _NUMBER.fullmatch(word)]
    return len(numbers) > 1 and 2 * len(numbers) >= len(words)


def _positions_in(value: Any) -> set[str]:
    """Return the names in JSON that positions usually have, and that have numbers."""
    positions = set()
    for item in _objects_in(value):
        axes, names = {}, set()
        for name, below in item.items():
            if name == "counts" and _is_size(item.get("size")):  # run lengths, also those that are written as text
                positions.add(name)
            if not _numbers_in(below):
                continue
            is_several = isinstance(below, (list, dict)) or (isinstance(below, str) and _SEVERAL.search(below))
            if name.lower() in _EDGES or (is_several and _position_names([name])):
                names.add(name)
            elif (axis := _AXIS.search(plain := _plain(name))) is not None:
                axes[plain[: axis.start(1)], axis[1], plain[axis.end(1) :]] = name
        names |= {name for (start, axis, end), name in axes.items() if (start, _PARTNERS[axis], end) in axes}
        if not _are_fractions(_numbers_in([item[name] for name in names])):
            positions |= names
    return positions


def _are_fractions(numbers: list[float]) -> bool:
    """Return whether positions are fractions of the sides of the image, which stay right when it is resized."""
    return all(0 <= number <= 1 for number in numbers) and not all(number.is_integer() for number in numbers)


def _position_names(names: Iterable[str]) -> set[str]:
    """Return the names that are names of positions, whatever their values are."""
    return {
        name
        for name in names
        if name.lower() in _EDGES
        or name.lower().endswith(_POSITIONS_ENDING)
        or not {name.lower(), _plain(name), *_plain(name).split("_")}.isdisjoint(_POSITIONS)
    }


@cache
def _plain(name: str) -> str:
    """Return a name in lower case with ``_`` between words.

    >>> _plain("Roi.X1"), _plain("boundingBox")
    ('roi_x1', 'bounding_box')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[.\s-]+", "_", name).lower()


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in JSON, on all levels, and in texts that are JSON."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str) and item.lstrip()[:1] in ("{", "["):
            item = _parsed(item)
        if isinstance(item, dict):
            yield item
            stack += item.values()
        elif isinstance(item, list):
            stack += item


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _numbers_in(value: Any) -> list[float]:
    """Return the numbers in JSON, on all levels, and in texts that have nothing but numbers."""
    numbers: list[float] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if _is_number(item):
            numbers.append(float(item))
        elif isinstance(item, str) and _NUMBERS.fullmatch(item):
            numbers += map(float, _NUMBER.findall(item))
        stack += item if isinstance(item, list) else item.values() if isinstance(item, dict) else ()
    return numbers


def _not_understood(where: str, name: str) -> OptionError:
    return OptionError(
        f"{where} has positions in the image ({name!r}), which would be wrong in the resized image: {_REMEDY}"
    )
