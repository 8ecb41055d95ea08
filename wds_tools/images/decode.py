"""Decoding of an image, or of a box in it, to uint8 RGB pixels in Python.

JPEGs are decoded by simplejpeg (libjpeg-turbo, without the GIL). Other types, and JPEGs that
simplejpeg refuses, are decoded by Pillow. All images become RGB: grey is repeated, palettes are
applied, CMYK is converted, alpha is dropped, and the EXIF orientation is applied. Images with 16
bits per channel are refused, because 8 bits would be lost; `decode_stored` returns all bits.

If a JPEG has restart markers, only the restart intervals that the box needs are decoded. In other
baseline JPEGs only the rows above the lower edge of the box are decoded. Either way the pixels are
identical to those of a full decode.
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

from wds_tools import stages
from wds_tools.errors import DecodeError
from wds_tools.format import jpeg
from wds_tools.format.codecs import stored_pixels
from wds_tools.format.image_header import MAX_PIXELS, PILLOW_FORMATS, check_size, reason_of, sixteen_bit_mode
from wds_tools.format.jpeg import Box, Frame

_DAMAGE = re.compile("remature end|bad Huffman|instead of RST|orrupt JPEG data: bad|before marker 0xd[0-7]")
"""Warnings of libjpeg that mean lost pixels; others, such as extra bytes before some markers, do not."""

_INVERSE_ORIENTATION = {6: 8, 8: 6}
"""The orientation that undoes another one; all others undo themselves."""

Pixels = NDArray[np.uint8]
DeepPixels = NDArray[np.uint16]


def decode_rgb(
    data: memoryview,
    *,
    kind: str,
    mode: str,
    orientation: int,
    box: Box | None = None,
    size: tuple[int, int] = (0, 0),
) -> Pixels:
    """Decode an image, or a box in it, to RGB with the EXIF orientation applied.

    Args:
        data: The encoded file.
        kind: Image field: ``jpg``, ``jpeg``, ``png``, ``webp`` or ``npy``.
        mode: Pillow mode as recorded in the index; only RGB and L use simplejpeg.
        orientation: EXIF orientation, 1 to 8.
        box: The box to return, in pixels after the orientation is applied; None returns the whole
            image.
        size: Width and height after the orientation is applied, as the index records them; 0 if they are not known.

    Returns:
        uint8 [height, width, 3].

    Raises:
        DecodeError: The image cannot be decoded, has 16 bits per channel, is larger than
            `MAX_PIXELS`, does not contain the box, or is not of ``size``.
    """
    if kind == "npy":
        return _crop(_of_size(_stored_pixels(data), size), box)
    if sixteen_bit_mode(data):
        raise DecodeError(
            "image has 16 bits per channel, but field 'image' has 8: read all bits with "
            f"fields={{'image': wds_tools.Image(mode='unchanged'), ...}} or the stored field {kind!r}, as in "
            f"fields=({kind!r}, 'label'), or convert the image to 8 bits before packing"
        )
    is_jpeg = kind in ("jpg", "jpeg")
    _check_effort(data)
    if is_jpeg and box is not None and (part := _decode_part(data, mode, orientation, box, size)) is not None:
        return part
    pixels = _decode_jpeg(data) if is_jpeg and mode in ("RGB", "L") else None
    if pixels is None:
        pixels = _decode_with_pillow(data, rgb=True)
    return _crop(_of_size(pixels if orientation == 1 else orient(pixels, orientation), size), box)


def _of_size(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Return the pixels of an image [height, width, channels] if it has the width and height that its index records."""
    actual = pixels.shape[1], pixels.shape[0]
    if 0 not in size and actual != size:
        raise DecodeError(
            f"image is {actual[0]}x{actual[1]}, but its index records {size[0]}x{size[1]}: rebuild the index with "
            "`wds-tools index`"
        )
    return pixels


def _crop(pixels: Pixels, box: Box | None) -> Pixels:
    if box is None:
        return pixels
    left, top, width, height = box
    if left + width > pixels.shape[1] or top + height > pixels.shape[0]:
        raise DecodeError(
            f"image is {pixels.shape[1]}x{pixels.shape[0]}, smaller than recorded in its index: "
            "rebuild the index with `wds-tools index`"
        )
    return pixels[top : top + height, left : left + width]


def _decode_jpeg(data: memoryview) -> Pixels | None:
    """Decode a whole JPEG with simplejpeg, or return None if Pillow should decode it."""
    try:
        return np.asarray(simplejpeg.decode_jpeg(data, "RGB"))
    except ValueError as error:
        # Pillow would fill missing pixels with grey, without an error.
        if _DAMAGE.search(str(error)):
            raise DecodeError(f"image cannot be decoded: {error}") from error
    return None


def _decode_part(data: memoryview, mode: str, orientation: int, box: Box, size: tuple[int, int]) -> Pixels | None:
    """Decode a box in a JPEG; return None if a full decode is needed or as fast, or if the image has another size."""
    with stages.SLICE:
        frame = jpeg.baseline_frame(data)
        if frame is None or (
            0 not in size and (frame.width, frame.height) != (size if orientation < 5 else size[::-1])
        ):
            return None
        if frame.columns:
            return decode_slice(data, frame, mode, orientation, box)
        if orientation != 1 or mode not in ("RGB", "L") or box[0] + box[2] > frame.width:
            return None
        top = decode_top(data, frame, box[1] + box[3])
    return None if top is None else _crop(top, box)


def decode_slice(data: memoryview, frame: Frame, mode: str, orientation: int, box: Box) -> Pixels | None:
    """Decode only the restart intervals that a box needs.

    Returns:
        The pixels of the box: uint8 [height, width, 3]. None if a full decode is needed.
    """
    stored_size = frame.width, frame.height
    oriented_size = stored_size if orientation < 5 else stored_size[::-1]
    if box[0] + box[2] > oriented_size[0] or box[1] + box[3] > oriented_size[1]:
        return None
    stored_box = orient_box(box, _INVERSE_ORIENTATION.get(orientation, orientation), oriented_size)
    part = jpeg.slice_region(data, frame, stored_box)
    if part is None:
        return None
    try:
        with stages.DECODE:
            if mode in ("RGB", "L"):
                pixels = simplejpeg.decode_jpeg(part.data, "RGB")
            else:
                pixels = _decode_with_pillow(part.data, rgb=True)
    except (ValueError, DecodeError):
        return None  # the full decode will report the error
    left, top, _, _ = orient_box(part.box, orientation, stored_size)
    return _crop(
        pixels if orientation == 1 else orient(pixels, orientation), (box[0] - left, box[1] - top, box[2], box[3])
    )


def decode_top(data: memoryview, frame: Frame, rows: int) -> Pixels | None:
    """Decode the first rows of a JPEG.

    The height in the frame header is lowered, so that the decoder stops there. It decodes an extra
    row for the interpolation of chroma, so the pixels are identical to those of a full decode.

    Returns:
        uint8 [at least ``rows``, width, 3]. None if only a full decode is possible or useful.
    """
    if frame.restart:
        return None  # libjpeg would stop at a restart marker, with the same warning as for damage
    step = frame.mcu_height
    rows = -(-(rows + (step > 8)) // step) * step
    if rows >= frame.height:
        return None
    lowered = bytearray(data)
    lowered[frame.height_at : frame.height_at + 2] = rows.to_bytes(2, "big")
    pixels = np.empty((rows, frame.width, 3), np.uint8)
    try:
        with stages.DECODE:
            simplejpeg.decode_jpeg(lowered, "RGB", buffer=pixels)
    except ValueError as error:
        # libjpeg reports its first warning only, and it always warns of the rest of the scan after
        # the last row.
        if "extraneous bytes before marker" not in str(error):
            return None
    return pixels


def _stored_pixels(data: memoryview) -> Pixels:
    try:
        return stored_pixels(data)
    except ValueError as error:
        raise DecodeError(f"image cannot be decoded: {error}") from error


def decode_stored(data: memoryview) -> Pixels | DeepPixels:
    """Decode an image in its stored form, such as a mask, without conversion to RGB.

    Returns:
        uint8 [height, width, channels], or uint16 for 16 bits per channel. Grey and palette images
        have one channel; that of a palette image has the palette indices, which are class numbers
        in a mask.
    """
    mode = sixteen_bit_mode(data)
    return _decode_deep(data, mode) if mode else _decode_with_pillow(data, rgb=False)


def decode_unchanged(data: memoryview, *, mode: str, orientation: int, size: tuple[int, int] = (0, 0)) -> NDArray[Any]:
    """Decode an image with its channels and dtype, and with the EXIF orientation applied.

    Args:
        data: The encoded file: JPEG, PNG, WebP, TIFF, GIF or AVIF.
        mode: Pillow mode as recorded in the index; RGB JPEGs are decoded by simplejpeg.
        orientation: EXIF orientation, 1 to 8.
        size: As for `decode_rgb`.

    Returns:
        [height, width, channels]. Grey has 1 channel, grey with alpha 2, RGB 3, RGBA and CMYK 4. Palette images are
        converted to RGB, or to RGBA if the palette has transparent colours.

    Raises:
        DecodeError: The image cannot be decoded, is larger than `MAX_PIXELS`, or is not of ``size``.
    """
    _check_effort(data)
    pixels: NDArray[Any] | None = None
    if deep := sixteen_bit_mode(data):
        pixels = _decode_deep(data, deep)
    elif mode == "RGB" and bytes(data[:2]) == b"\xff\xd8":
        pixels = _decode_jpeg(data)
    if pixels is None:
        pixels = _decode_all_channels(data)
    return _of_size(pixels if orientation == 1 else orient(pixels, orientation), size)


def _decode_all_channels(data: memoryview) -> NDArray[Any]:
    """Decode an image with Pillow to [height, width, channels], with its palette applied."""
    with _open_with_pillow(data) as image:
        if image.mode in ("P", "PA", "1"):
            has_alpha = image.mode == "PA" or "transparency" in image.info
            image = image.convert("L" if image.mode == "1" else "RGBA" if has_alpha else "RGB")  # noqa: PLW2901
        stored = np.asarray(image)
        return stored if stored.ndim == 3 else stored[:, :, None]


def _decode_deep(data: memoryview, mode: str) -> DeepPixels:
    """Decode a PNG with 16 bits per channel: uint16 [height, width, channels].

    Pillow supports such pixels for grey only. For colours it keeps one byte of each value: the
    upper one, or the lower one if the byte order is set to little-endian. Two decodes give both
    bytes.
    """
    if mode == "I;16":
        return _unpack(data, None).astype(np.uint16)[:, :, None]
    if mode == "LA;16":
        return _unpack(data, "RGBA").view(">u2").astype(np.uint16)  # the four bytes of each pixel, as stored
    upper, lower = (_unpack(data, f"{mode}{order}") for order in "BL")
    return np.asarray(upper.astype(np.uint16) << 8 | lower)


def orient(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Apply an EXIF orientation (Exif 2.32, tag 0x0112).

    Returns:
        A contiguous array; height and width are swapped for orientations 5 to 8.
    """
    oriented = pixels
    if orientation >= 5:
        oriented = oriented.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        oriented = oriented[:, ::-1]
    if orientation in (3, 4, 7, 8):
        oriented = oriented[::-1]
    return oriented.copy()  # ascontiguousarray() keeps the negative strides of a side of 1 pixel, which torch refuses


def orient_box(box: Box, orientation: int, size: tuple[int, int]) -> Box:
    """Return the box in an image after `orient` that corresponds to a box before it."""
    left, top, width, height = box
    image_width, image_height = size
    if orientation >= 5:
        left, top, width, height = top, left, height, width
        image_width, image_height = image_height, image_width
    if orientation in (2, 3, 6, 7):
        left = image_width - left - width
    if orientation in (3, 4, 7, 8):
        top = image_height - top - height
    return left, top, width, height


def _decode_with_pillow(data: memoryview | bytearray, *, rgb: bool) -> Pixels:
    with _open_with_pillow(data) as image:
        if rgb:
            if image.mode[0] in "IF":  # from a TIFF; convert() would clip the values
                raise DecodeError(f"image of mode {image.mode} has more than 8 bits per channel: read the stored field")
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # convert() always copies
        stored = np.asarray(image.convert("L") if image.mode == "1" else image)
        return stored if stored.ndim == 3 else stored[:, :, None]


def _unpack(data: memoryview, raw_mode: str | None) -> NDArray[Any]:
    """Decode a PNG with Pillow, with another raw mode for its pixels; None keeps Pillow's own."""
    with _open_with_pillow(data) as image:
        if raw_mode:
            image.tile = [(*tile[:3], raw_mode) for tile in image.tile]
        return np.asarray(image)


@contextmanager
def _open_with_pillow(data: memoryview | bytearray) -> Iterator[Any]:
    """Open an image with Pillow, and turn all its errors into DecodeError."""
    _check_effort(data)
    try:
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            check_size(image.width, image.height)
            yield image
    except (
        OSError,
        ValueError,
        SyntaxError,
        MemoryError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise DecodeError(f"image cannot be decoded: {reason_of(error, data)}") from error


def _check_effort(data: memoryview | bytearray) -> None:
    """Refuse a JPEG whose decoding would take far more memory or time than its size justifies."""
    if bytes(data[:2]) == b"\xff\xd8":
        try:
            jpeg.check_effort(memoryview(data), MAX_PIXELS)
        except ValueError as error:
            raise DecodeError(f"image cannot be decoded: {error}") from error
