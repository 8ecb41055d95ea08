"""One table of field types: extension -> encode and decode; and what an image is, by its first bytes.

Nothing here runs code from data: no pickle, no ``torch.load``, no decompression. A type that the table does
not know stays bytes. Images are decoded elsewhere (`decode`); here only their headers are read.
"""

from __future__ import annotations

import io
import json
import warnings
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
            f"is {info.width}x{info.height} = {info.width * info.height / 1e6:.0f} megapixels; "
            f"allowed are {MAX_PIXELS / 1e6:.0f}"
        )
    return info


def _probe_jpeg(data: bytes | memoryview) -> ImageInfo:
    header = jpeg.parse_header(data)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}.get(header.components)
    if mode is None or header.bits != 8:
        raise ValueError(
            f"is a JPEG of {header.components} components at {header.bits} bits; allowed: 1, 3, 4 at 8"
        )
    width, height = header.width, header.height
    if header.orientation >= 5:
        width, height = height, width
    return ImageInfo("jpg", width, height, mode, header.orientation)


def _probe_pillow(data: bytes | memoryview, kind: str) -> ImageInfo:
    _check_whole(data, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit decides
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            orientation = image.getexif().get(0x0112, 1)
            orientation = orientation if orientation in range(1, 9) else 1
            width, height = image.size[::-1] if orientation >= 5 else image.size
            return ImageInfo(kind, width, height, image.mode, orientation)


def _check_whole(data: bytes | memoryview, kind: str) -> None:
    """A PNG ends with an IEND chunk, a WebP is as long as its RIFF header says."""
    if kind == "png" and b"IEND" not in bytes(data[-64:]) and b"IEND" not in bytes(data):
        raise ValueError("PNG is cut: it has no end chunk")
    if kind == "webp" and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise ValueError(
            f"WebP is cut: it has {len(data)} bytes and states {int.from_bytes(data[4:8], 'little') + 8}"
        )


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type of field becomes bytes and back."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_npy(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(value), allow_pickle=False)
    return out.getvalue()


_INT = Codec(lambda value: b"%d" % int(value), int)
_TEXT = Codec(lambda value: str(value).encode(), lambda data: data.decode())
_JSON = Codec(lambda value: json.dumps(value, separators=(",", ":")).encode(), json.loads)
_NPY = Codec(_encode_npy, lambda data: np.load(io.BytesIO(data), allow_pickle=False))
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
    """Return a ``cls`` field's number, or None if it is text."""
    try:
        return int(data)
    except ValueError:
        return None
