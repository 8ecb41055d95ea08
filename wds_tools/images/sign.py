"""The signature of an image of any type: of a JPEG from its coefficients, of others from their pixels."""

from __future__ import annotations

import numpy as np
from PIL import Image

from wds_tools.errors import DecodeError
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.image_signature import Signature
from wds_tools.images import native
from wds_tools.images.decode import Pixels, decode_rgb, decode_stored


def sign(data: bytes | memoryview, info: ImageInfo) -> Signature | None:
    """Return the signature of an encoded image; None if it cannot be decoded. Requires the compiled module."""
    if info.kind == "jpg" and (signature := native.sign_jpeg(data, info.orientation)) is not None:
        return signature
    view = memoryview(data)
    try:
        if info.mode.endswith(";16"):
            pixels: Pixels = (decode_stored(view) >> 8).astype(np.uint8)
        else:
            pixels = decode_rgb(view, kind=info.kind, mode=info.mode, orientation=info.orientation)
    except DecodeError:
        return None
    return sign_pixels(pixels)


def sign_pixels(pixels: Pixels) -> Signature:
    """Return the signature of an image.

    Args:
        pixels: uint8 [height, width] or [height, width, channels]: grey, or RGB, each with or without alpha.
    """
    if pixels.ndim == 2 or pixels.shape[2] < 3:
        return native.sign_pixels(pixels if pixels.ndim == 2 else pixels[:, :, 0])
    rgb = Image.fromarray(np.ascontiguousarray(pixels[:, :, :3]))
    return native.sign_pixels(np.asarray(rgb.convert("L")))
