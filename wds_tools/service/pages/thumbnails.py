"""Thumbnails: images are decoded, reduced and encoded again, in a process with limits."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from wds_tools.format import jpeg
from wds_tools.format.codecs import stored_pixels, view_npy
from wds_tools.format.image_header import MAX_PIXELS, PILLOW_FORMATS, check_size
from wds_tools.inspection import palette

_MAX_VALUES = 20  # of a mask that are counted
SIZES = (160, 1024)
"""Longest sides in pixels that a thumbnail may have."""


def thumbnail(data: bytes, *, field: str, size: int) -> bytes:
    """Return an image as a JPEG, or as a PNG if it is transparent or a mask.

    Args:
        data: The encoded image, which may be anything.
        field: Name of the stored field; ``npy`` holds pixels.
        size: Longest side in pixels; smaller images keep their size.

    Raises:
        ValueError: It cannot be decoded, or has too many pixels.
        OSError: As above.
        MemoryError: As above.
    """
    if field.rpartition(".")[2] == "npy":
        image: Image.Image = Image.fromarray(stored_pixels(memoryview(data)))
    else:
        if data[:2] == b"\xff\xd8":
            jpeg.check_effort(memoryview(data), MAX_PIXELS)
        image = Image.open(io.BytesIO(data), formats=PILLOW_FORMATS)
        check_size(image.width, image.height)
        image.draft("RGB", (2 * size, 2 * size))  # a JPEG is decoded at a fraction of its size
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _eight_bits(image)
    if image.mode == "P" and "transparency" not in image.info:
        image = image.convert("RGB")
    image = image.convert("RGBA" if image.mode in ("RGBA", "LA", "PA", "P") else "RGB")
    image.thumbnail((size, size))
    out = io.BytesIO()
    clean = Image.frombytes(image.mode, image.size, image.tobytes())  # without metadata
    if image.mode == "RGBA":
        clean.save(out, "PNG")
    else:
        clean.save(out, "JPEG", quality=85)
    return out.getvalue()


def mask(data: bytes, *, field: str, size: int) -> tuple[bytes, dict[str, Any]]:
    """Return a mask as a PNG to lay over its image: numbers in a palette with 0 transparent, or colours without black.

    Args:
        data: The encoded mask, which may be anything.
        field: Name of the stored field.
        size: Longest side in pixels; of smaller masks all pixels are shown, of larger ones some.

    Returns:
        The PNG; and ``size``, the width and height of the mask, ``values``, the most frequent numbers with the share of
        pixels that have them, and ``more``, how many numbers there are beyond these.

    Raises:
        ValueError: It cannot be decoded, or has too many pixels.
        OSError: As above.
        MemoryError: As above.
    """
    pixels = _mask_pixels(data, field)
    height, width = pixels.shape[:2]
    facts: dict[str, Any] = {"size": [width, height], "values": [], "more": 0}
    scale = min(1.0, size / max(width, height))
    rows, columns = (
        ((np.arange(count) + 0.5) * (side / count)).astype(np.intp)
        for side, count in ((side, max(1, round(side * scale))) for side in (height, width))
    )
    pixels = pixels[rows][:, columns]
    out = io.BytesIO()
    if pixels.ndim == 3:
        opacity = np.where(pixels.any(axis=2, keepdims=True), 255, 0).astype(np.uint8)
        Image.fromarray(np.concatenate([pixels, opacity], axis=2)).save(out, "PNG")
        return out.getvalue(), facts
    values, counts = np.unique(pixels, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MAX_VALUES].tolist()
    facts["values"] = [[int(values[i]), float(counts[i] / pixels.size)] for i in order]
    facts["more"] = max(0, len(values) - _MAX_VALUES)
    numbers = pixels.astype(np.int64)
    places = np.where(numbers == 0, 0, (numbers - 1) % (palette.COUNT - 1) + 1).astype(np.uint8)
    image = Image.fromarray(places)
    image.putpalette([part for index in range(palette.COUNT) for part in palette.rgb_of(index)])
    image.save(out, "PNG", transparency=0)
    return out.getvalue(), facts


def _mask_pixels(data: bytes, field: str) -> NDArray[Any]:
    """Return the numbers of a mask [height, width], or its colours, uint8 [height, width, 3]."""
    if field.rpartition(".")[2] == "npy":
        array: NDArray[Any] = view_npy(memoryview(data))
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        if array.ndim != 2 or array.dtype.kind not in "bui" or 0 in array.shape:
            raise ValueError(f"npy of shape {array.shape} and {array.dtype} is not a mask, which is integers [h, w]")
        return array
    image = Image.open(io.BytesIO(data), formats=PILLOW_FORMATS)
    check_size(image.width, image.height)
    if image.mode == "F":
        raise ValueError("a mask has integers")
    if image.mode in ("LA", "PA"):
        return np.asarray(image)[:, :, 0]
    if image.mode in ("1", "L", "P", "I") or image.mode.startswith("I;16"):
        return np.asarray(image)
    return np.asarray(image.convert("RGB"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Stretch the values of an image of more than 8 bits to the range that a screen shows."""
    values = np.asarray(image).astype(np.float32)
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8))
