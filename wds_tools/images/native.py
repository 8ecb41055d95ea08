"""The compiled path: JPEGs cut, resized and flipped into their places, a batch in one call that holds no GIL.

``csrc/`` is compiled when the package is installed (`docs/decisions/0009-compiled-path.md`, `docs/jpeg.md`). What it
does not take, or all where it is not there, goes through `decode` and `render`. The pixels of the two differ by 0.4 of
255 on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wds_tools.format.codecs import MAX_PIXELS, npy_header
from wds_tools.images.views import Regions
from wds_tools.options import use_native

try:
    from wds_tools.images import _native
except ImportError:  # not compiled
    _native = None  # type: ignore[assignment]

LONGEST_CODE = 11
"""Bits of the Huffman codes that `transcode_jpeg` writes, at most: what the decoder finds by one look into a table."""

STEPS = ("slice", "decode", "resize", "write")
"""What `render_jpegs` does, in the order of its timings."""


def is_there() -> bool:
    """Return whether the compiled path was built and can be loaded."""
    return _native is not None


def is_used() -> bool:
    """Return whether the compiled path is there and not switched off (``WDS_TOOLS_NATIVE=0``)."""
    return is_there() and use_native()


def description() -> str:
    """Return in a few words what decodes JPEGs in this process, for debug output."""
    if is_used():
        return f"the compiled module (SIMD: {_native.simd()})"
    return f"Python ({'WDS_TOOLS_NATIVE=0' if is_there() else 'the compiled module is missing'})"


def render_jpegs(
    data: Sequence[memoryview | None],
    regions: Regions,
    out: NDArray[np.uint8],
    timings: NDArray[np.float64] | None = None,
) -> list[bool]:
    """Make those pictures of a batch that the compiled path takes; there must be one (`is_used`).

    It leaves alone what is damaged, no JPEG of grey or three colours with 8 bits, or not resized.

    Args:
        data: The files; None leaves one alone.
        regions: What becomes of them, all of one size.
        out: uint8 [n, 3, height, width].
        timings: float64 [4], to which the seconds of each of `STEPS` are added.

    Returns:
        Which were made.
    """
    resized = _are_resized(regions)
    files = [piece if there else None for piece, there in zip(data, resized.tolist(), strict=True)]
    parts = (regions.box, regions.resize, regions.corner, regions.flip[:, None], regions.needed())
    # [n, 13]; an index may say anything, and numbers that do not fit must not become others that do
    places = np.clip(np.concatenate(parts, axis=1), -1, 2**31 - 1).astype(np.int32)
    height, width = out.shape[2:]
    made = _native.render_jpegs(files, places, out, height, width, MAX_PIXELS, timings)
    return [bool(done) for done in made]


def transcode_jpeg(data: bytes | memoryview, restart: int) -> bytes | None:
    """Write a JPEG with restart markers and Huffman codes of its own; the module must be there (`is_there`).

    Args:
        data: A sequential or progressive JPEG.
        restart: MCUs between two restart markers.

    Returns:
        A sequential JPEG with the same coefficients, which were decoded from it and compared, and no other segments
        than those that say what its components mean (JFIF, Adobe). None if the file is damaged, incomplete, or
        something that the decoder does not take (CMYK, arithmetic coding, 12 bits).
    """
    return _native.transcode_jpeg(data, restart, LONGEST_CODE, MAX_PIXELS)


def copy_pixels(data: Sequence[memoryview], regions: Regions, out: NDArray[np.uint8]) -> bool:
    """Copy pictures that are stored decoded into a batch, if they are all of its size and shown as they are.

    Args:
        data: The npy files; `decode` says what is wrong with them.
        regions: What becomes of them.
        out: uint8 [n, 3, height, width].

    Returns:
        Whether that was done; else nothing was.
    """
    height, width = out.shape[2:]
    if _are_resized(regions).any() or regions.flip.any() or (regions.size != (height, width)).any():
        return False
    try:
        shape, fortran, dtype, start = npy_header(data[0])
    except ValueError:
        return False
    if shape != (height, width, 3) or fortran or dtype != np.uint8 or (regions.box != (0, 0, width, height)).any():
        return False
    header, size = bytes(data[0][:start]), start + out[0].nbytes
    if any(piece[:start] != header or len(piece) != size for piece in data):
        return False
    _native.copy_pixels(list(data), start, out, height, width)
    return True


def _are_resized(regions: Regions) -> NDArray[np.bool_]:
    return np.asarray((regions.resize != regions.box[:, [3, 2]]).any(axis=1))
