"""What values are: encoded images, arrays of pixels, texts, numbers, lists and their lengths; and how they are stored.

BMP, PPM and PGM files become arrays. Further fields of an image are checked here too.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import DecodeError, SourceError
from wds_tools.format import codecs, image_header
from wds_tools.format.image_header import MAX_PIXELS
from wds_tools.sources.base import as_source_error
from wds_tools.sources.inputs import path_text

_HEADER_BYTES = 1 << 12
_NETPBM = re.compile(rb"P[2356]" + 2 * rb"(?:\s|#[^\r\n]*)+\d+" + rb"(?:\s|#[^\r\n]*)+(\d+)\s")  # PPM and PGM
CHANNELS = (1, 3, 4)
"""Numbers of channels that an image can have: grey, RGB, RGBA."""


def png_bound(shape: tuple[int, ...], layout: str) -> int:
    """Return an upper bound of the length of a PNG in bytes.

    It has the pixels, a filter byte per row, and the overhead of zlib for data that cannot be
    compressed.
    """
    height = shape[1] if layout == "CHW" else shape[0]
    size = math.prod(shape) + height
    return size + size // 500 + 200


def layout_of(shape: tuple[int, ...]) -> str | None:
    """Return the layout of an image of this shape; None if it is ambiguous or not supported.

    >>> layout_of((32, 32, 3)), layout_of((1, 28, 28)), layout_of((28, 28)), layout_of((3, 32, 3))
    ('HWC', 'CHW', 'HW', None)
    """
    if len(shape) == 2:
        return "HW"
    if len(shape) != 3 or (shape[0] in CHANNELS) == (shape[2] in CHANNELS):
        return None
    return "HWC" if shape[2] in CHANNELS else "CHW"


def check_pixels(shape: tuple[int, ...], dtype: Any, what: str) -> str:
    """Return the layout of an image's array."""
    if dtype != np.uint8:
        raise SourceError(
            f"{what} is {dtype}; allowed are uint8 pixels from 0 to 255, because the range of other types is not "
            "known: convert it, for example with (255 * x).round().astype('uint8') if values are from 0 to 1"
        )
    layout = layout_of(shape)
    if layout is None:
        raise SourceError(
            f"{what} has images of shape {list(shape)}; allowed are [H, W], [H, W, C] and [C, H, W], where C is 1, 3 "
            "or 4, and only the first or the last size is one of these: reshape or transpose it"
        )
    if not 0 < math.prod(shape) <= 4 * MAX_PIXELS:
        raise SourceError(f"{what} has images of shape {list(shape)}; allowed are 1 to {MAX_PIXELS:,} pixels")
    return layout


def to_pixels(image: Any, layout: str) -> NDArray[np.uint8]:
    """Return uint8 pixels as [H, W] or [H, W, C]."""
    pixels = np.asarray(image, np.uint8)
    return pixels.transpose(1, 2, 0) if layout == "CHW" else pixels


def converted(data: bytes, *, largest: int = 0) -> bytes | NDArray[np.uint8]:
    """Return an image as it is, or the pixels of a BMP, PPM or PGM file, which are packed as PNG.

    ``largest`` is the number that means white in the file; 0 scales numbers, so that white is 255 or 65,535.
    """
    if not _is_converted(data):
        return data
    with as_source_error("is damaged", ValueError, SyntaxError, DecodeError), Image.open(io.BytesIO(data)) as image:
        image_header.check_size(image.width, image.height)
        header = _NETPBM.match(data[:_HEADER_BYTES])
        if header is not None and image.mode == "RGB" and int(header[1]) > 255:
            raise SourceError("is a PPM with 16 bits per colour, which Pillow reduces to 8: convert it to PNG or npy")
        if image.mode.startswith("I"):
            return _encoded(Image.fromarray(_scaled(np.asarray(image), 65535, largest).astype(np.uint16)))
        mode = image.mode if image.mode in ("L", "RGB", "RGBA") else "L" if image.mode == "1" else "RGB"
        return _scaled(np.asarray(image.convert(mode)), 255, largest).astype(np.uint8)


def _scaled(pixels: NDArray[Any], white: int, largest: int) -> NDArray[Any]:
    """Return pixels with the numbers of the file, which Pillow scales so that the largest one becomes ``white``."""
    return np.rint(pixels * (largest / white)) if 0 < largest < white else pixels


def _is_converted(data: bytes) -> bool:
    return image_header.sniff(data) is None and data[:2] in (b"BM", b"P2", b"P3", b"P5", b"P6")


def as_png(data: bytes) -> bytes:
    """Return a further field that is a BMP, PPM or PGM file as PNG with the same numbers; other data as it is."""
    if _is_converted(data):
        with as_source_error("has a damaged field", ValueError, SyntaxError), Image.open(io.BytesIO(data)) as image:
            if image.mode == "P":  # its numbers are classes
                return _encoded(image)
    header = _NETPBM.match(data[:_HEADER_BYTES])
    pixels = converted(data, largest=int(header[1]) if header else 0)
    return pixels if isinstance(pixels, bytes) else image_header.encode_png(pixels)


def _encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", exif=b"")
    return out.getvalue()


def image_size(image: bytes | NDArray[np.uint8]) -> tuple[int, int]:
    """Return width and height of an image as it is shown: its EXIF orientation is applied."""
    if isinstance(image, bytes):
        info = image_header.probe(image)
        return info.width, info.height
    return image.shape[1], image.shape[0]


def check_mask(field: str, mask: bytes, image: bytes | NDArray[np.uint8]) -> None:
    """Check that a mask is as large as its image, or as its stored pixels; otherwise it is a `SourceError`."""
    size = image_size(image)
    is_turned = isinstance(image, bytes) and image_header.probe(image).orientation > 4  # the mask will be turned too
    with as_source_error(f"its mask {field!r} cannot be read", DecodeError):
        width, height = image_size(mask)
    if (width, height) not in (size, size[::-1] if is_turned else size):
        raise SourceError(
            f"its mask {field!r} is {width}x{height}, and the image is {size[0]}x{size[1]} as it is shown (with its "
            "EXIF orientation): correct the mask or the image"
        )


def damage_of(field: str, data: bytes) -> str:
    """Return the note that a further field cannot be loaded; empty if it can."""
    kind = field.rpartition(".")[2]
    try:
        if kind == "json":
            json.loads(data)
        elif kind in ("txt", "caption"):
            data.decode()
    except (ValueError, RecursionError):
        if field == "json":
            return "a .json file that is not valid JSON: its text is the entry 'json'"
        return f"a field {field} that is not {'valid JSON' if kind == 'json' else 'UTF-8'}: kept as it is"
    start = {"npy": b"\x93NUMPY", "npz": b"PK"}.get(kind, b"")
    return "" if data.startswith(start) else f"a field {field} that is not of this type: kept as it is"


class Pixels(np.ndarray[Any, np.dtype[np.uint8]]):
    """The pixels of an image, not of any other array: [H, W] or [H, W, C]."""


class DeepPixels(np.ndarray[Any, np.dtype[Any]]):
    """The pixels of an image of Pillow whose values do not fit into 8 bits, [H, W], with its mode."""

    mode: str


class Kind:
    """What a value is. Any other text is the reason why it is not read."""

    ENCODED = "image"
    PICTURE = "pixels of an image"
    PIXELS = "pixels"
    ARRAY = "array"
    VECTOR = "vector"
    SEVERAL_IMAGES = "images"
    BINARY = "binary"
    LOSSY = "several binary"
    TEXT = "text"
    WHOLE = "whole"
    DECIMAL = "decimal"
    LIST = "list"
    MAPPING = "mapping"
    MISSING = "missing"


ALL_KINDS = {value for name, value in vars(Kind).items() if name.isupper()}
IMAGES = {Kind.ENCODED, Kind.PICTURE, Kind.PIXELS}
SCALARS = {Kind.TEXT, Kind.WHOLE, Kind.MISSING}
_FOR_JSON = {*SCALARS, Kind.DECIMAL, Kind.LIST, Kind.MAPPING}
_KEPT = (
    *(bool, int, float, str, np.generic, np.ndarray, date, time, timedelta, Decimal),
    *(Mapping, list, tuple, set, frozenset, Image.Image, bytes, bytearray, memoryview),
)
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_HEAD_BASE64 = 64  # a multiple of 4
_HEAD_BYTES = 12  # that show the type of an image
_LEFT_OUT = {
    Kind.BINARY: "binary, and not an image",
    Kind.LOSSY: "a list or dictionary with binary values",
    Kind.SEVERAL_IMAGES: "several images per record",
}


class Excluded(NamedTuple):
    """A value that is not read, and the reason."""

    reason: str


class Repeated(list[Any]):
    """The values of a name that may have any number of values. If all records have one value, it is not a list."""


def kind_of(value: Any) -> str:
    """Return what a value is; the reason if it is `Excluded`."""
    find = _KIND_OF.get(type(value))
    return Kind.MAPPING if find is None else find(value)


def reason_of(kind: str) -> str | None:
    """Return why values of a kind are left out, or None."""
    return _LEFT_OUT.get(kind) or (None if kind in ALL_KINDS else kind)


def _kind_of_bytes(value: bytes | memoryview) -> str:
    if image_header.sniff(value):
        return Kind.ENCODED
    return Kind.TEXT if is_text(value) else Kind.BINARY


def _kind_of_float(value: float) -> str:
    if math.isnan(value):
        return Kind.MISSING
    return Kind.WHOLE if value.is_integer() else Kind.DECIMAL


def _kind_of_array(value: NDArray[Any]) -> str:
    if value.ndim == 1:
        return Kind.VECTOR
    return Kind.PIXELS if value.dtype == np.uint8 and layout_of(value.shape) else Kind.ARRAY


def _kind_of_list(value: list[Any]) -> str:
    kinds = {kind_of(item) for item in value}
    if kinds & IMAGES:
        return Kind.SEVERAL_IMAGES
    return Kind.LIST if kinds <= _FOR_JSON else Kind.LOSSY


_KIND_OF: dict[type, Callable[[Any], str]] = {
    Excluded: lambda value: str(value.reason),
    type(None): lambda _: Kind.MISSING,
    bytes: _kind_of_bytes,
    memoryview: _kind_of_bytes,
    str: lambda _: Kind.TEXT,
    bool: lambda _: Kind.WHOLE,
    int: lambda _: Kind.WHOLE,
    float: _kind_of_float,
    np.ndarray: _kind_of_array,
    Pixels: lambda _: Kind.PICTURE,
    DeepPixels: lambda _: Kind.ARRAY,
    list: _kind_of_list,
    Repeated: _kind_of_list,
    dict: lambda value: Kind.MAPPING if {kind_of(item) for item in value.values()} <= _FOR_JSON else Kind.LOSSY,
}


def is_text(data: bytes | memoryview) -> bool:
    """Return whether bytes are text in UTF-8. Control characters are valid UTF-8, but binary numbers."""
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return _CONTROL.search(data) is None


def begins_like_an_image(value: bytes | memoryview | list[Any]) -> bool:
    """Return whether bytes, or a list with the number of each byte, begin like an encoded image."""
    start = value[:_HEAD_BYTES]
    if isinstance(start, list) and not all(type(byte) is int and 0 <= byte < 256 for byte in start):
        return False
    return image_header.sniff(bytes(start)) is not None


def is_base64_of_image(data: bytes | memoryview) -> bool:
    """Return whether bytes are the base64 of an encoded image."""
    try:
        return image_header.sniff(base64.b64decode(bytes(data[:_HEAD_BASE64]), validate=True)) is not None
    except ValueError:
        return False


def resolved(value: Any, *, is_list: bool) -> Any:
    """Return repeated values as one value if no record has more than one, or if it cannot be in a list.

    A list with the number of each byte of an image is this image, and an array of NumPy in bytes is an array.
    """
    if type(value) is list and len(value) > _HEAD_BYTES and begins_like_an_image(value):
        with suppress(ValueError, TypeError):
            return bytes(value)
    if isinstance(value, Repeated) and not (is_list and kind_of(value) == Kind.LIST):
        value = value[0] if len(value) == 1 else value or None
    if isinstance(value, (bytes, memoryview)) and image_header.sniff(value) == "npy":
        with suppress(ValueError):
            return codecs.view_npy(value)
        return Excluded("a damaged array of NumPy, or one of Python objects")
    return value


def label_value(value: Any, kind: str) -> Any:
    """Return a value as a label, for `Labels`: a tuple of several labels, or None if it is not a label."""
    if kind in (Kind.LIST, Kind.VECTOR):
        return tuple(for_json(value.tolist() if isinstance(value, np.ndarray) else list(value)))
    if kind == Kind.MAPPING:
        return value
    if kind not in (Kind.TEXT, Kind.WHOLE, Kind.DECIMAL):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return text_of(value) if kind == Kind.TEXT else value


def text_of(value: Any) -> str:
    """Return a text that may be stored as bytes."""
    return value if isinstance(value, str) else str(value, "utf-8")


def name_text(name: Any) -> str:
    """Return a key of a dictionary as text; bytes that are not UTF-8 become surrogate escapes."""
    return path_text(name) if isinstance(name, bytes) else str(name)


def for_json(value: Any) -> Any:
    """Return a value for JSON: NaN and infinity become null, and what JSON lacks becomes text."""
    if isinstance(value, (bytes, memoryview)):
        return text_of(value)
    if isinstance(value, dict):
        return {name_text(name): for_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def plain(value: Any) -> Any:
    """Return a value of an object as a record has it: an array, or what `cell` returns."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biufc":
        return value
    if isinstance(value, os.PathLike):
        value = str(value)
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, _KEPT):
        return cell(value)
    return Excluded(f"of the type {type(value).__name__}, which is not kept")


def cell(value: Any) -> Any:
    """Return a value of a table, or in a list or dictionary, as a record has it: arrays are lists.

    >>> cell([np.int64(3), "cat", b"abc", np.datetime64("2024-05-01", "ns")])
    [3, 'cat', b'abc', '2024-05-01T00:00:00.000000000']
    """
    if isinstance(value, Image.Image):
        return of_pillow(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        if {"bytes", "path"} <= value.keys() and value["bytes"] is not None:  # an image of Hugging Face's datasets
            return bytes(value["bytes"])
        return {str(name): cell(item) for name, item in value.items()}
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "mM":  # tolist() returns nanoseconds
        value = np.where(np.isnat(value), np.array(None), value.astype(str))
    if isinstance(value, (np.generic, np.ndarray)) or hasattr(value, "detach"):
        value = value.tolist()
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        cells = [cell(item) for item in value]
        return Repeated(cells) if cells and kind_of(cells[0]) in IMAGES else cells
    return float(value) if isinstance(value, float) else for_json(value)


_OF_LABELS = re.compile("label|class|cls|categor|species|breed")  # another list of the same labels
PICKLE = Excluded("a pickle, which is never read")
_PIXEL_MODES = {"L": 1, "RGB": 3, "RGBA": 4}
_PNG_MODES = ("1", "LA", "P", "I;16")
_RGB_MODES = ("CMYK", "YCbCr", "HSV", "LAB")


def pillow_image(data: memoryview) -> Any:
    """Return an image that was stored as width, height, mode and raw pixels: pixels, or a PNG for other modes.

    Raises:
        ValueError: It is damaged.
    """
    width, height, length = struct.unpack_from("<III", data)
    mode, raw = str(data[12 : 12 + length], "ascii"), data[12 + length :]
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"an image of {width:,} x {height:,} pixels; allowed are {MAX_PIXELS:,}")
    if mode not in _PIXEL_MODES:
        if mode == "P":
            return Excluded("an image of mode P, whose colours were not stored with it")
        if mode not in (*_PNG_MODES, *_RGB_MODES):
            return Excluded(f"an image of mode {mode!r}, whose values do not fit into 8 bits")
        return of_pillow(Image.frombytes(mode, (width, height), bytes(raw)))
    shape = (height, width) if mode == "L" else (height, width, _PIXEL_MODES[mode])
    return np.frombuffer(raw, np.uint8).reshape(shape).view(Pixels)


def of_pillow(image: Image.Image) -> Any:
    """Return an image of Pillow as pixels, as a PNG, or as an array if its values do not fit into 8 bits.

    Its EXIF orientation is not applied, because masks and boxes next to it refer to its stored pixels.
    """
    if image.mode in _PNG_MODES:
        return _encoded(image)
    if image.mode not in _PIXEL_MODES and image.mode[:1] in ("F", "I"):
        deep = np.asarray(image).view(DeepPixels)
        deep.mode = image.mode
        return deep
    return np.asarray(image if image.mode in _PIXEL_MODES else image.convert("RGB")).view(Pixels)


def images_of(data: memoryview, start: int) -> Repeated:
    """Return encoded images that were stored as their number, at ``start``, their lengths, and their bytes.

    Raises:
        ValueError: They are damaged.
    """
    count = int.from_bytes(data[start : start + 4], "little")
    position = start + 4 + 4 * count
    if position > len(data):
        raise ValueError(f"{count:,} images in {len(data):,} bytes")
    images = Repeated()
    for size in np.frombuffer(data[start + 4 : position], "<u4").tolist():
        images.append(data[position : position + size])
        position += size
    if position != len(data):
        raise ValueError(f"images of {position:,} bytes in {len(data):,} bytes")
    return images


def array_of(data: memoryview, dtype: str, shape: list[int]) -> Any:
    """Return an array.

    Raises:
        ValueError: Its shape does not match its bytes.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} of {dtype} in {len(data):,} bytes")
    array = np.frombuffer(data, kind).reshape(shape)
    return array if shape else array.item()


class Lengths:
    """The lengths of the lists of a name in all rows.

    Attributes:
        are_nested: Whether the lists have lists or objects, such as boxes.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._counts = array("q")
        self.are_nested = False
        self.extend(values)

    def extend(self, values: Iterable[Any], start: int = 0) -> None:
        """Add the values of the next rows, which begin with row ``start``; rows that are left out have no list."""
        self._counts.extend([0] * (start - len(self._counts)))
        for value in values:
            count, is_nested = _length(value)
            self._counts.append(count)
            self.are_nested |= is_nested

    def of(self, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the length in each row, int64 [rows]: 1 for a single value, 0 for a missing one."""
        return np.array([*self._counts, *[0] * (rows - len(self._counts))], np.int64)


def _length(value: Any) -> tuple[int, bool]:
    """Return the length of a list, or of an object of equally long lists, and whether it has lists or objects."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return 1, False
    if isinstance(value, Mapping):
        counts = {len(item) for item in value.values() if isinstance(item, (list, tuple))}
        return (counts.pop(), True) if len(counts) == 1 else (1, False)
    if isinstance(value, (list, tuple)):
        return len(value), any(isinstance(item, (list, tuple, Mapping, np.ndarray)) for item in value)
    if isinstance(value, np.ndarray) and value.ndim:
        return value.shape[0], value.ndim > 1
    return int(value is not None and value != ""), False


def owner(values: Sequence[Any], others: Mapping[str, Lengths]) -> str | None:
    """Return the name of another list to whose entries labels belong; None if they are labels of the images.

    The other list has the same length in each row: lists of several lengths, or a list of boxes or points. It may also
    be flat, with the same number of values for each label. Rows of 0 and 1 with one length have a value for each class
    instead.

    >>> owner([[7, 3, 7], [3]], {"scores": Lengths([[0.5, 0.1, 0.2], [0.9]])}), owner([[7, 3], [3]], {})
    ('scores', None)
    """
    lengths = Lengths(values).of(len(values))
    several = set(lengths.tolist()) - {0}
    if not several or not any(map(_is_list, values)):
        return None
    have_one_length = len(set(lengths.tolist())) == 1
    if have_one_length and max(several) > 1 and {value for row in values for value in _numbers(row)} <= {0, 1}:
        return None
    for name, lists in others.items():
        counts = lists.of(len(values))
        is_same = len(counts) == len(lengths) and bool((counts == lengths).all())
        is_view = not lists.are_nested and _OF_LABELS.search(name.lower()) is not None
        if is_same and not is_view and (lists.are_nested or (not have_one_length and max(several) > 1)):
            return name
        ratios = {*(counts[lengths > 0] / lengths[lengths > 0]).tolist()} if len(counts) == len(lengths) else set()
        is_flat = len(ratios) == 1 and min(ratios) >= 2 and min(ratios).is_integer() and not counts[lengths == 0].any()
        if is_flat and len(set(lengths.tolist())) > 1 and max(several) > 1:
            return name
    return None


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, even if it is written as JSON."""
    is_list = isinstance(value, (list, np.ndarray)) or type(value) is tuple  # and not a `Label`
    return value.lstrip().startswith("[") if isinstance(value, str) else is_list


def _numbers(row: Any) -> list[float]:
    """Return the numbers in a list; [2], which is neither 0 nor 1, for values of another kind."""
    if isinstance(row, str):
        try:
            row = json.loads(row)
        except (ValueError, RecursionError):
            return [2]
    row = row.tolist() if isinstance(row, np.ndarray) else row
    are_numbers = isinstance(row, (list, tuple)) and all(isinstance(item, (int, float)) for item in row)
    return list(row) if are_numbers else [2]
