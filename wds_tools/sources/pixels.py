"""Arrays of pixels: their layout, types and shapes, and the size of their PNG; BMP, PPM and PGM files as arrays.

Further fields of an image are checked here too.
"""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import DecodeError, SourceError
from wds_tools.format import image_header
from wds_tools.format.image_header import MAX_PIXELS
from wds_tools.sources.base import as_source_error

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


def converted(data: bytes) -> bytes | NDArray[np.uint8]:
    """Return an image as it is, or the pixels of a BMP, PPM or PGM file, which are packed as PNG."""
    if not _is_converted(data):
        return data
    with as_source_error("is damaged", ValueError, SyntaxError, DecodeError), Image.open(io.BytesIO(data)) as image:
        image_header.check_size(image.width, image.height)
        if image.mode.startswith("I"):
            return _encoded(Image.fromarray(np.asarray(image).astype(np.uint16)))
        mode = image.mode if image.mode in ("L", "RGB", "RGBA") else "L" if image.mode == "1" else "RGB"
        return np.asarray(image.convert(mode))


def _is_converted(data: bytes) -> bool:
    return image_header.sniff(data) is None and data[:2] in (b"BM", b"P2", b"P3", b"P5", b"P6")


def as_png(data: bytes) -> bytes:
    """Return a further field that is a BMP, PPM or PGM file as PNG; other data as it is."""
    if _is_converted(data):
        with as_source_error("has a damaged field", ValueError, SyntaxError), Image.open(io.BytesIO(data)) as image:
            if image.mode == "P":  # its numbers are classes
                return _encoded(image)
    pixels = converted(data)
    return pixels if isinstance(pixels, bytes) else image_header.encode_png(pixels)


def _encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def image_size(image: bytes | NDArray[np.uint8]) -> tuple[int, int]:
    """Return width and height of an image as it is shown: its EXIF orientation is applied."""
    if isinstance(image, bytes):
        info = image_header.probe(image)
        return info.width, info.height
    return image.shape[1], image.shape[0]


def check_mask(field: str, mask: bytes, image: bytes | NDArray[np.uint8]) -> None:
    """Check that a mask is as large as its image; otherwise it is a `SourceError`."""
    size = image_size(image)
    with as_source_error(f"its mask {field!r} cannot be read", DecodeError):
        width, height = image_size(mask)
    if (width, height) != size:
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
