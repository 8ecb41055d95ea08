"""One table of field types: extension -> encode and decode; and what an image is, by its first bytes.

Nothing here runs code from data: no pickle, no ``torch.load``, no decompression. A type that the table does
not know stays bytes. Images are decoded elsewhere (`decode`); here only their headers are read.
"""

from __future__ import annotations

import io
import json
import math
import operator
import tokenize
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import DecodeError, SampleError
from wds_tools.format import jpeg

MAX_PIXELS = 100_000_000
"""Images with more pixels are refused before memory is allocated; ImageNet's largest have about 70 million."""

MAX_SIDE = 1 << 20
"""Longer sides are refused too: decoders need memory for each row, and cannot hold a row of that length."""

_MOST_CHUNKS = 4096
_MAX_NPY_HEADER = 10_000  # numpy's own limit: it gives the header to Python's parser

PILLOW_FORMATS = ("JPEG", "PNG", "WEBP")

_PNG_START = b"\x89PNG\r\n\x1a\n"
_SIXTEEN_BIT_MODES = {0: "I;16", 2: "RGB;16", 4: "LA;16", 6: "RGBA;16"}  # by colour type; a palette has no 16 bits


class ImageInfo(NamedTuple):
    """What an image's header says.

    Attributes:
        kind: ``jpg``, ``png``, ``webp``, or ``npy`` for stored pixels.
        width: Pixels as shown, orientation applied.
        height: Pixels as shown, orientation applied.
        mode: Pillow's name: ``RGB``, ``L``, ``CMYK``, ``P``, ``RGBA``, ...; of a PNG with 16 bits a channel ``I;16``,
            ``LA;16``, ``RGB;16`` or ``RGBA;16``.
        orientation: EXIF orientation, 1 to 8.
        restart: MCUs between the restart markers along which a JPEG can be cut, 0 where it cannot.
        mcu_width: Pixels of a JPEG's MCU as stored, which tells its sampling; 0 for others.
        mcu_height: Pixels of an MCU.
    """

    kind: str
    width: int
    height: int
    mode: str
    orientation: int
    restart: int = 0
    mcu_width: int = 0
    mcu_height: int = 0


def sniff(data: bytes | memoryview) -> str | None:
    """Return the image type by the first bytes: ``jpg``, ``png``, ``webp``, ``npy`` or None.

    >>> sniff(bytes.fromhex("89504e470d0a1a0a")), sniff(b"GIF89a")
    ('png', None)
    """
    head = bytes(data[:12])
    if head[:3] == b"\xff\xd8\xff":
        return "jpg"
    if head[:8] == _PNG_START:
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[:6] == b"\x93NUMPY":
        return "npy"
    return None


def probe(data: bytes | memoryview) -> ImageInfo:
    """Read an image's header and check that its file is whole.

    Raises:
        DecodeError: Not a JPEG, PNG or WebP, damaged in the header, cut, or larger than `MAX_PIXELS`.
    """
    if len(data) == 0:
        raise DecodeError("is empty")
    kind = sniff(data)
    if kind is None:
        raise DecodeError(f"is no JPEG, PNG or WebP: it starts with {bytes(data[:8])!r}")
    try:
        info = _PROBES[kind](data)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DecodeError(str(error)) from error
    check_size(info.width, info.height)
    return info


def check_size(width: int, height: int) -> None:
    """Refuse a picture that is too large, before memory is allocated for it.

    Raises:
        DecodeError: It is.
    """
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise DecodeError(
            f"is {width}x{height} = {width * height:,} pixels; allowed are {MAX_PIXELS:,}, and {MAX_SIDE:,} a side"
        )


def _probe_jpeg(data: bytes | memoryview) -> ImageInfo:
    header = jpeg.parse_header(data)
    jpeg.check_effort(data, MAX_PIXELS)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}.get(header.components)
    if mode is None or header.bits != 8:
        raise ValueError(f"is a JPEG of {header.components} components at {header.bits} bits; allowed: 1, 3, 4 at 8")
    width, height = header.width, header.height
    if header.orientation >= 5:
        width, height = height, width
    frame = jpeg.baseline_frame(data) if header.has_restart else None
    restart = frame.restart if frame and frame.columns else 0
    return ImageInfo("jpg", width, height, mode, header.orientation, restart, header.mcu_width, header.mcu_height)


def _probe_npy(data: bytes | memoryview) -> ImageInfo:
    height, width, _ = stored_pixels(data).shape
    return ImageInfo("npy", width, height, "RGB", 1)


def _probe_pillow(data: bytes | memoryview, kind: str) -> ImageInfo:
    exif = _png_exif(data) if kind == "png" else b""
    if kind == "webp" and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise ValueError(f"WebP is cut: it has {len(data)} bytes and states {int.from_bytes(data[4:8], 'little') + 8}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our own pixel limit decides; and of damage in extra chunks it only warns
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            exif = exif or image.info.get("exif", b"")
            orientation = jpeg.exif_orientation(b"Exif\0\0" + exif.removeprefix(b"Exif\0\0")) or 1
            width, height = image.size[::-1] if orientation >= 5 else image.size
            return ImageInfo(kind, width, height, sixteen_bit_mode(data) or image.mode, orientation)


def sixteen_bit_mode(data: bytes | memoryview) -> str | None:
    """Return the mode of a PNG with 16 bits a channel, None for any other file.

    The header is read here because Pillow names the mode of its own pixels, which have 8 bits unless they are grey.
    """
    if bytes(data[:8]) != _PNG_START or bytes(data[12:16]) != b"IHDR" or len(data) < 26 or data[24] != 16:
        return None
    return _SIXTEEN_BIT_MODES.get(data[25])


_PROBES: dict[str, Callable[[bytes | memoryview], ImageInfo]] = {
    "jpg": _probe_jpeg,
    "png": lambda data: _probe_pillow(data, "png"),
    "webp": lambda data: _probe_pillow(data, "webp"),
    "npy": _probe_npy,
}


def _png_exif(data: bytes | memoryview) -> bytes:
    """Walk a PNG's chunks to the end, check each, and return its EXIF: Pillow would decode the pixels to find that."""
    exif = b""
    position, others = 8, 0
    while others <= _MOST_CHUNKS:
        stop = position + 12 + int.from_bytes(data[position : position + 4], "big")
        kind = bytes(data[position + 4 : position + 8])
        if stop > len(data):
            raise ValueError(f"PNG is cut: chunk {kind!r} at byte {position} ends at {stop:,} of {len(data):,}")
        if zlib.crc32(data[position + 4 : stop - 4]) != int.from_bytes(data[stop - 4 : stop], "big"):
            raise ValueError(f"PNG is damaged: chunk {kind!r} at byte {position} has another checksum than it states")
        if kind == b"IEND":
            return exif
        if kind == b"eXIf":
            exif = bytes(data[position + 8 : stop - 4])
        position = stop
        others += kind not in (b"IDAT", b"fdAT", b"fcTL")  # pixels, in as many chunks as it takes
    raise ValueError(f"PNG has more than {_MOST_CHUNKS:,} chunks beside those of pixels: save it again")


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels as a PNG, which keeps each of them.

    Args:
        pixels: uint8 [H, W] or [H, W, 1 | 3 | 4], in the order R, G, B, A.
    """
    out = io.BytesIO()
    pixels = np.ascontiguousarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    Image.fromarray(pixels).save(out, "PNG", compress_level=3)  # 224x224: 4.9 ms, 2 % longer than 11.8 ms of level 6
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type of field becomes bytes and back."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def encode_npy(value: Any) -> bytes:
    """Write an array as npy."""
    out = io.BytesIO()
    np.save(out, np.asarray(value), allow_pickle=False)
    return out.getvalue()


def npy_header(data: bytes | memoryview) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Read the header of an ``.npy`` file as ``np.load`` would, but check that the array fits the bytes that follow.

    Returns:
        Shape, whether in Fortran's order, dtype, and where the array starts.

    Raises:
        ValueError: Not an npy file of version 1.0 or 2.0, of Python objects, or of another length than it states.
    """
    size = 2 if bytes(data[6:7]) == b"\x01" else 4  # version 1.0 or 2.0
    start = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    if start > _MAX_NPY_HEADER:
        raise ValueError(f"npy header of {start:,} bytes; allowed are {_MAX_NPY_HEADER:,}")
    shape, fortran, dtype = _npy_header(bytes(data[:start]))
    fits = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == len(data) - start
    if dtype.hasobject or not dtype.itemsize or not fits:
        raise ValueError(f"shape {shape} of {dtype} does not fit the {len(data) - start:,} bytes that follow")
    return shape, fortran, dtype, start


def view_npy(data: bytes | memoryview) -> Any:
    """As ``np.load``, which would allocate whatever the header claims, and would open zip files and pickles too.

    Returns:
        An array over ``data``: nothing is copied.

    Raises:
        ValueError: As `npy_header`.
    """
    shape, fortran, dtype, start = npy_header(data)
    return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=1024)  # numpy parses it as Python source, which takes longer than copying a small picture
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise ValueError(f"npy version {version}; allowed are 1.0 and 2.0")
    try:
        return readers[version](stream)
    except (SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"header: {error}") from error  # numpy gives it to Python's own parser


def stored_pixels(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Return an image that is stored decoded, as npy: uint8 [height, width, 3], a view of ``data``.

    Raises:
        ValueError: No such array.
    """
    pixels = view_npy(data)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(f"npy of shape {pixels.shape} and {pixels.dtype} is no image; those are uint8 [h, w, 3]")
    return pixels  # type: ignore[no-any-return]


def _decode_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"takes text, not {type(value).__name__}")
    return value.encode()


_INT = Codec(lambda value: b"%d" % operator.index(value), int)  # 3.7 has no index, where int() would make it 3
_TEXT = Codec(_encode_text, lambda data: data.decode())
_JSON = Codec(lambda value: json.dumps(value, separators=(",", ":")).encode(), _decode_json)
_NPY = Codec(encode_npy, lambda data: view_npy(data).copy())
_BYTES = Codec(bytes, bytes)

CODECS: dict[str, Codec] = {
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _INT),
    **dict.fromkeys(("txt", "text", "transcript"), _TEXT),
    **dict.fromkeys(("json", "jsn"), _JSON),
    "npy": _NPY,
}
"""The types that webdataset decodes without images and without running code from data."""


def codec_for(field: str) -> Codec:
    """Return the codec of a field by its last extension; unknown types stay bytes.

    >>> codec_for("boxes.json").decode(b"[1, 2]"), codec_for("xyz").decode(b"raw")
    ([1, 2], b'raw')
    """
    return CODECS.get(field.rpartition(".")[2], _BYTES)


def decode_field(field: str, data: bytes, *, shard: str, key: str) -> Any:
    """Decode a field that is no image.

    Raises:
        SampleError: The bytes are not of the field's type.
    """
    try:
        return codec_for(field).decode(data)
    except ValueError as error:
        raise SampleError(
            f"field {field!r} holds {data[:40]!r}, which is no {field.rpartition('.')[2]}: {error}",
            shard=shard,
            key=key,
        ) from error


def parse_label(data: bytes) -> int | None:
    """Return a ``cls`` field's number, or None if it is text or does not fit the index's column."""
    try:
        label = int(data)
    except ValueError:
        return None
    return label if -(2**63) < label < 2**63 else None
