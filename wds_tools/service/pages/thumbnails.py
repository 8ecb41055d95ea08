"""Thumbnails: images are decoded, reduced and encoded again, in a process with limits."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps

from wds_tools.format import jpeg
from wds_tools.format.codecs import stored_pixels
from wds_tools.format.image_header import MAX_PIXELS, PILLOW_FORMATS, check_size

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


def _eight_bits(image: Image.Image) -> Image.Image:
    """Stretch the values of an image of more than 8 bits to the range that a screen shows."""
    values = np.asarray(image).astype(np.float32)
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8))
