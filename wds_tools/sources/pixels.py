"""Arrays of pixels: their layout, which types and shapes are allowed, and the size of their PNG."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.image_header import MAX_PIXELS

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
    """Return the layout of an image's array.

    Raises:
        SourceError: The type is not uint8, the layout is ambiguous, or the image is too large.
    """
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
