"""Encoded image and box -> uint8 RGB pixels.

JPEG goes through simplejpeg (libjpeg-turbo, the GIL released), everything else and whatever it refuses through
Pillow. All images become RGB: grey is repeated, palettes are applied, CMYK is converted, alpha is dropped, EXIF
orientation is applied. A picture with 16 bits a channel does not become one of 8: it is refused here, and
`decode_stored` gives all of its bits. Of a JPEG with restart markers only the pieces that the box touches are
decoded, of another baseline JPEG only the rows down to the end of the box; the pixels are those of a full decode.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import DecodeError
from wds_tools.format import jpeg
from wds_tools.format.codecs import MAX_PIXELS, PILLOW_FORMATS, check_size, sixteen_bit_mode, stored_pixels
from wds_tools.format.jpeg import Box, Frame

_DAMAGE = re.compile("remature end|bad Huffman|instead of RST|orrupt JPEG data: bad|before marker 0xd[0-7]")
"""libjpeg's warnings that mean lost pixels; others, such as stray bytes before other markers, do not."""

_BACK = {6: 8, 8: 6}
"""Orientation that undoes another one; the others undo themselves."""

Pixels = NDArray[np.uint8]
DeepPixels = NDArray[np.uint16]


def decode_rgb(data: memoryview, *, kind: str, mode: str, orientation: int, box: Box | None = None) -> Pixels:
    """Decode an image, or a part of it, to RGB as it is meant to be shown: uint8 [height, width, 3].

    Args:
        data: The encoded file.
        kind: Its field: ``jpg``, ``png``, ``webp``, ``npy``.
        mode: Its Pillow mode as the index has it; only RGB and L take the fast path.
        orientation: EXIF orientation, 1 to 8.
        box: The part that is needed, in pixels as shown; None takes all.

    Raises:
        DecodeError: No decoder takes it, it has 16 bits a channel, it is larger than `MAX_PIXELS`, or smaller than the
            box.
    """
    if kind == "npy":
        return _cut(_stored(data), box)
    if sixteen_bit_mode(data):
        raise DecodeError(
            f"image has 16 bits a channel, and an 'image' has 8: read it as the stored field {kind!r}, as in "
            f"fields=({kind!r}, 'label'), or convert it to 8 bits before packing"
        )
    is_jpeg = kind in ("jpg", "jpeg")
    _check_effort(data)
    if is_jpeg and box is not None and (part := _decode_part(data, mode, orientation, box)) is not None:
        return part
    pixels = _decode_jpeg(data) if is_jpeg and mode in ("RGB", "L") else None
    if pixels is None:
        pixels = _pillow(data, rgb=True)
    return _cut(pixels if orientation == 1 else orient(pixels, orientation), box)


def _cut(pixels: Pixels, box: Box | None) -> Pixels:
    if box is None:
        return pixels
    left, top, width, height = box
    if left + width > pixels.shape[1] or top + height > pixels.shape[0]:
        raise DecodeError(
            f"image is {pixels.shape[1]}x{pixels.shape[0]}, smaller than its index says: "
            "make the index again with `wds-tools index`"
        )
    return pixels[top : top + height, left : left + width]


def _decode_jpeg(data: memoryview) -> Pixels | None:
    """Decode a whole JPEG, or return None if Pillow should try."""
    try:
        return np.asarray(simplejpeg.decode_jpeg(data, "RGB"))
    except ValueError as error:
        # Pillow would fill what is missing with grey, and say nothing.
        if _DAMAGE.search(str(error)):
            raise DecodeError(f"image cannot be decoded: {error}") from error
    return None


def _decode_part(data: memoryview, mode: str, orientation: int, box: Box) -> Pixels | None:
    """Decode a part of a JPEG, or return None where that saves nothing or cannot be done: then all is decoded."""
    frame = jpeg.baseline_frame(data)
    if frame is None:
        return None
    if frame.columns:
        return decode_slice(data, frame, mode, orientation, box)
    if orientation != 1 or mode not in ("RGB", "L") or box[0] + box[2] > frame.width:
        return None
    top = decode_top(data, frame, box[1] + box[3])
    return None if top is None else _cut(top, box)


def decode_slice(data: memoryview, frame: Frame, mode: str, orientation: int, box: Box) -> Pixels | None:
    """Decode the pieces between restart markers that a box touches: uint8 [height, width, 3], or None as above."""
    stored_size = frame.width, frame.height
    shown_size = stored_size if orientation < 5 else stored_size[::-1]
    if box[0] + box[2] > shown_size[0] or box[1] + box[3] > shown_size[1]:
        return None
    part = jpeg.slice_region(data, frame, turned_box(box, _BACK.get(orientation, orientation), shown_size))
    if part is None:
        return None
    try:
        pixels = simplejpeg.decode_jpeg(part.data, "RGB") if mode in ("RGB", "L") else _pillow(part.data, rgb=True)
    except (ValueError, DecodeError):
        return None  # the full decode says what is wrong
    left, top, _, _ = turned_box(part.box, orientation, stored_size)
    return _cut(
        pixels if orientation == 1 else orient(pixels, orientation), (box[0] - left, box[1] - top, box[2], box[3])
    )


def decode_top(data: memoryview, frame: Frame, rows: int) -> Pixels | None:
    """Decode the first rows of a JPEG: uint8 [at least rows, width, 3], or None where that saves nothing.

    The height in the frame header is lowered, so that the decoder stops there. The pixels are those of a full decode,
    because one more row than needed is there for the interpolation of chroma.
    """
    if frame.restart:
        return None  # libjpeg would stop at one of the markers, and warn of that as it warns of damage
    step = frame.mcu_height
    rows = -(-(rows + (step > 8)) // step) * step
    if rows >= frame.height:
        return None
    lowered = bytearray(data)
    lowered[frame.height_at : frame.height_at + 2] = rows.to_bytes(2, "big")
    pixels = np.empty((rows, frame.width, 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(lowered, "RGB", buffer=pixels)
    except ValueError as error:
        # What is left of the scan always makes libjpeg warn, after the last row. It reports the first warning.
        if "extraneous bytes before marker" not in str(error):
            return None
    return pixels


def _stored(data: memoryview) -> Pixels:
    try:
        return stored_pixels(data)
    except ValueError as error:
        raise DecodeError(f"image cannot be decoded: {error}") from error


def decode_stored(data: memoryview) -> Pixels | DeepPixels:
    """Decode an image as it is stored, such as a mask: uint8 [height, width, channels], uint16 where it has 16 bits.

    Grey has one channel; so has a palette image, whose pixels are its indices (class numbers, in a mask).

    Raises:
        DecodeError: No decoder takes it, or it is larger than `MAX_PIXELS`.
    """
    mode = sixteen_bit_mode(data)
    return _decode_deep(data, mode) if mode else _pillow(data, rgb=False)


def _decode_deep(data: memoryview, mode: str) -> DeepPixels:
    """Decode a PNG with 16 bits a channel: uint16 [height, width, channels].

    Pillow has such pixels for grey only. Of colours it keeps the upper byte of each number, or, if it takes the file's
    numbers for little-endian ones, the lower byte: the two together are all.
    """
    if mode == "I;16":
        return _read(data, None).astype(np.uint16)[:, :, None]
    if mode == "LA;16":
        return _read(data, "RGBA").view(">u2").astype(np.uint16)  # four bytes a pixel, as they are stored
    upper, lower = (_read(data, f"{mode}{order}") for order in "BL")
    return np.asarray(upper.astype(np.uint16) << 8 | lower)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turn an image as its EXIF orientation says (Exif 2.32, tag 0x0112): a contiguous copy."""
    turned = pixels
    if orientation >= 5:
        turned = turned.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        turned = turned[:, ::-1]
    if orientation in (3, 4, 7, 8):
        turned = turned[::-1]
    return np.ascontiguousarray(turned)


def turned_box(box: Box, orientation: int, size: tuple[int, int]) -> Box:
    """Return where a box of a picture of (width, height) lies when `orient` has turned it."""
    left, top, width, height = box
    whole_width, whole_height = size
    if orientation >= 5:
        left, top, width, height = top, left, height, width
        whole_width, whole_height = whole_height, whole_width
    if orientation in (2, 3, 6, 7):
        left = whole_width - left - width
    if orientation in (3, 4, 7, 8):
        top = whole_height - top - height
    return left, top, width, height


def _pillow(data: memoryview | bytearray, *, rgb: bool) -> Pixels:
    with _opened(data) as image:
        if rgb:
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # which would make a copy
        stored = np.asarray(image.convert("L") if image.mode == "1" else image)
        return stored if stored.ndim == 3 else stored[:, :, None]


def _read(data: memoryview, raw_mode: str | None) -> NDArray[Any]:
    """Let Pillow unpack the pixels of a PNG in another way than it would by itself."""
    with _opened(data) as image:
        if raw_mode:
            image.tile = [(*tile[:3], raw_mode) for tile in image.tile]
        return np.asarray(image)


@contextmanager
def _opened(data: memoryview | bytearray) -> Iterator[Any]:
    """Open an image with Pillow, and report all that it finds wrong in the same way."""
    _check_effort(data)
    try:
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            check_size(image.width, image.height)
            yield image
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        raise DecodeError(f"image cannot be decoded: {str(error) or 'not enough memory'}") from error


def _check_effort(data: memoryview | bytearray) -> None:
    """Refuse a JPEG that takes far more memory or time than its size and the length of its file explain."""
    if bytes(data[:2]) == b"\xff\xd8":
        try:
            jpeg.check_effort(memoryview(data), MAX_PIXELS)
        except ValueError as error:
            raise DecodeError(f"image cannot be decoded: {error}") from error
