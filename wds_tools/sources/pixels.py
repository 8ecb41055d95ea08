"""Arrays of pixels: their layout, types and shapes, and the size of their PNG; BMP, PPM and PGM files as arrays."""

from __future__ import annotations

import io
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
