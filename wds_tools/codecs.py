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
from typing import Any

import numpy as np
from PIL import Image

from wds_tools import jpeg
from wds_tools.errors import DecodeError, SampleError

MAX_PIXELS = 100_000_000
"""Images with more pixels are refused before memory is allocated; ImageNet's largest have about 70 million."""

PILLOW_FORMATS = ("JPEG", "PNG", "WEBP")


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What an image's header says.

    Attributes:
        kind: ``jpg``, ``png`` or ``webp``.
        width: Pixels as shown, orientation applied.
        height: Pixels as shown, orientation applied.
        mode: Pillow's name: ``RGB``, ``L``, ``CMYK``, ``P``, ``RGBA``, ``I;16``, ...
        orientation: EXIF orientation, 1 to 8.
    """

    kind: str
    width: int
    height: int
    mode: str
    orientation: int


def sniff(data: bytes | memoryview) -> str | None:
    """Return the image type by the first bytes: ``jpg``, ``png``, ``webp`` or None.

    >>> sniff(bytes.fromhex("89504e470d0a1a0a")), sniff(b"GIF89a")
    ('png', None)
    """
    head = bytes(data[:12])
    if head[:3] == b"\xff\xd8\xff":
        return "jpg"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
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
        info = _probe_jpeg(data) if kind == "jpg" else _probe_pillow(data, kind)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DecodeError(str(error)) from error
    if info.width * info.height > MAX_PIXELS:
        raise DecodeError(
            f"is {info.width}x{info.height} = {info.width * info.height:,} pixels; allowed are {MAX_PIXELS:,}"
        )
    return info


def _probe_jpeg(data: bytes | memoryview) -> ImageInfo:
    header = jpeg.parse_header(data)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}.get(header.components)
    if mode is None or header.bits != 8:
        raise ValueError(f"is a JPEG of {header.components} components at {header.bits} bits; allowed: 1, 3, 4 at 8")
    width, height = header.width, header.height
    if header.orientation >= 5:
        width, height = height, width
    return ImageInfo("jpg", width, height, mode, header.orientation)


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
            return ImageInfo(kind, width, height, image.mode, orientation)


def _png_exif(data: bytes | memoryview) -> bytes:
    """Walk a PNG's chunks to the end, check each, and return its EXIF: Pillow would decode the pixels to find that."""
    exif = b""
    position = 8
    while True:
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


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type of field becomes bytes and back."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_npy(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(value), allow_pickle=False)
    return out.getvalue()


def _decode_npy(data: bytes) -> Any:
    """As ``np.load``, which would allocate whatever the header claims, and would open zip files and pickles too."""
    stream = io.BytesIO(data)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise ValueError(f"npy version {version}; allowed are 1.0 and 2.0")
    try:
        shape, fortran, dtype = readers[version](stream)
    except (SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"header: {error}") from error  # numpy gives it to Python's own parser
    start, count = stream.tell(), math.prod(shape)
    if dtype.hasobject or min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - start:
        raise ValueError(f"shape {shape} of {dtype} does not fit the {len(data) - start:,} bytes that follow")
    return np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if fortran else "C").copy()


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
_NPY = Codec(_encode_npy, _decode_npy)
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
