"""PNGs with 16 bits per channel, which Pillow does not write in colour."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's colour type by the number of channels: grey, grey with alpha, RGB, RGBA."""

_ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def deep_png(pixels: NDArray[np.uint16], *, interlaced: bool = False) -> bytes:
    """Write uint16 [height, width, 1 to 4] as a PNG; each row has another filter."""
    height, width, channels = pixels.shape
    parts = [pixels[y::down, x::across] for y, x, down, across in _ADAM7] if interlaced else [pixels]
    raw = b"".join(_filtered(part) for part in parts if part.size)
    header = struct.pack(">IIBBBBB", width, height, 16, COLOUR_TYPES[channels], 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def _filtered(pixels: NDArray[np.uint16]) -> bytes:
    height, _, channels = pixels.shape
    rows = np.frombuffer(pixels.astype(">u2").tobytes(), np.uint8).reshape(height, -1).astype(int)
    left = np.pad(rows, ((0, 0), (2 * channels, 0)))[:, : rows.shape[1]]
    above = np.pad(rows, ((1, 0), (0, 0)))[:height]
    corner = np.pad(left, ((1, 0), (0, 0)))[:height]
    guesses = [0 * rows, left, above, (left + above) // 2, _paeth(left, above, corner)]
    return b"".join(
        bytes([y % 5]) + ((rows - guesses[y % 5])[y] % 256).astype(np.uint8).tobytes() for y in range(height)
    )


def _paeth(left: NDArray[np.int64], above: NDArray[np.int64], corner: NDArray[np.int64]) -> NDArray[np.int64]:
    to_left, to_above, to_corner = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
    nearest = np.where(to_above <= to_corner, above, corner)
    return np.where((to_left <= to_above) & (to_left <= to_corner), left, nearest)
