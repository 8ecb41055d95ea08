"""Headers of images: their type by their first bytes, size and mode, and whether the file is complete.

Only headers are read here; `images.decode` decodes images.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from wds_tools.errors import DecodeError
from wds_tools.format import jpeg
from wds_tools.format.codecs import npy_header, stored_pixels

MAX_PIXELS = 100_000_000
"""Maximum number of pixels of an image; larger images are refused before memory is allocated.

The largest images of ImageNet have about 70 million pixels.
"""

MAX_SIDE = 1 << 20
"""Maximum number of pixels along one side of an image: decoders allocate memory for each row."""

_MAX_CHUNKS = 4096

PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", *(("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()))
"""Names of the formats that Pillow may open; AVIF since Pillow 11.3."""

IMAGE_TYPES = "JPEG, PNG, WebP, TIFF, GIF or AVIF"

LFS_START, LFS_POINTER = b"version https://git-lfs", "is a pointer of Git LFS: get the file itself with `git lfs pull`"

_PNG_START = b"\x89PNG\r\n\x1a\n"
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SIGNATURES: tuple[tuple[str, dict[int, bytes]], ...] = (
    ("jpg", {0: b"\xff\xd8\xff"}),
    ("png", {0: _PNG_START}),
    ("webp", {0: b"RIFF", 8: b"WEBP"}),
    ("npy", {0: b"\x93NUMPY"}),
    *(("tif", {0: start}) for start in _TIFF_STARTS),
    ("gif", {0: b"GIF87a"}),
    ("gif", {0: b"GIF89a"}),
    *((("avif", {4: b"ftypavif"}), ("avif", {4: b"ftypavis"})) if "AVIF" in PILLOW_FORMATS else ()),
)
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_BITS, _TIFF_ORIENTATION, _TIFF_CHANNELS = 256, 257, 258, 274, 277
_TIFF_PARTS = ((273, 279), (324, 325))  # tags of offsets and lengths of strips, and of tiles
_SIXTEEN_BIT_MODES = {0: "I;16", 2: "RGB;16", 4: "LA;16", 6: "RGBA;16"}  # by PNG colour type


class ImageInfo(NamedTuple):
    """Facts from the header of an image.

    Attributes:
        mode: Pillow's mode, such as ``RGB``, ``L``, ``CMYK``, ``P`` or ``RGBA``. For a PNG with
            16 bits per channel: ``I;16``, ``LA;16``, ``RGB;16`` or ``RGBA;16``.
        orientation: EXIF orientation, 1 to 8; 1 for a TIFF, because Pillow applies it.
        restart: MCUs between two restart markers if a JPEG can be cropped along them, otherwise 0.
        mcu_width: Width in pixels of a JPEG's MCU as stored, which depends on its chroma
            subsampling; 0 for other types.
    """

    kind: str
    width: int
    height: int
    mode: str
    orientation: int
    restart: int = 0
    mcu_width: int = 0
    mcu_height: int = 0


def sniff(data: bytes | bytearray | memoryview) -> str | None:
    """Detect an image type by the first bytes, as in `ImageInfo.kind`; None for other files.

    >>> sniff(bytes.fromhex("89504e470d0a1a0a")), sniff(b"GIF89a"), sniff(b"BM")
    ('png', 'gif', None)
    """
    head = bytes(data[:12])
    for kind, signature in _SIGNATURES:
        if all(head.startswith(part, offset) for offset, part in signature.items()):
            return kind
    return None


def probe_array(data: bytes | memoryview) -> ImageInfo:
    """Read the header of an image as `probe` does, or that of an ``.npy`` array of any dtype and channels."""
    if sniff(data) != "npy":
        return probe(data)
    try:
        shape, _, dtype, _ = npy_header(data)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    if len(shape) not in (2, 3):
        raise DecodeError(f"an array of shape {shape} is not [height, width] or [height, width, channels]")
    check_size(shape[1], shape[0])
    return ImageInfo("npy", shape[1], shape[0], str(dtype), 1)


def probe(data: bytes | memoryview) -> ImageInfo:
    """Read the header of an image and check that the file is complete.

    Raises:
        DecodeError: The file is of none of `IMAGE_TYPES`, its header is damaged, it is truncated,
            or the image is larger than `MAX_PIXELS` or `MAX_SIDE`.
    """
    if len(data) == 0:
        raise DecodeError("is empty")
    kind = sniff(data)
    if kind is None:
        is_pointer = data[: len(LFS_START)] == LFS_START
        raise DecodeError(LFS_POINTER if is_pointer else f"is not a {IMAGE_TYPES}: it starts with {bytes(data[:8])!r}")
    try:
        info = _PROBES[kind](data)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(reason_of(error, data)) from error
    check_size(info.width, info.height)
    return info


def reason_of(error: Exception, data: bytes | bytearray | memoryview) -> str:
    """Return why Pillow cannot read an image. Its message for a damaged header contains an object's address."""
    if isinstance(error, UnidentifiedImageError):
        kind = sniff(data)
        if kind == "tif" and (form := _tiff_form(data)):
            return f"is a TIFF with {form}, which Pillow does not read: convert it to PNG, or to npy"
        start = f"starts as {kind.upper()}, but its" if kind else "its"
        return f"{start} header is damaged or truncated"
    return str(error) or "not enough memory"


def check_size(width: int, height: int) -> None:
    """Refuse an image that is too large, before memory is allocated for it."""
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise DecodeError(
            f"is {width}x{height} = {width * height:,} pixels; allowed are {MAX_PIXELS:,}, and {MAX_SIDE:,} per side"
        )


def _probe_jpeg(data: bytes | memoryview) -> ImageInfo:
    header = jpeg.parse_header(data)
    jpeg.check_effort(data, MAX_PIXELS)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}.get(header.components)
    if mode is None or header.bits != 8:
        raise ValueError(
            f"is a JPEG of {header.components} components at {header.bits} bits; allowed are 1, 3 or 4 at 8 bits"
        )
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
        stated = int.from_bytes(data[4:8], "little") + 8
        raise ValueError(f"WebP is truncated: it has {len(data)} bytes, and its header states {stated}")
    with warnings.catch_warnings():
        # Pillow warns of large images, which `check_size` handles, and of damage in optional chunks.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as image:
            exif = exif or image.info.get("exif", b"")
            orientation = jpeg.exif_orientation(b"Exif\0\0" + exif.removeprefix(b"Exif\0\0")) or 1
            width, height = image.size[::-1] if orientation >= 5 else image.size
            return ImageInfo(kind, width, height, sixteen_bit_mode(data) or image.mode, orientation)


def _probe_tiff(data: bytes | memoryview) -> ImageInfo:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data), formats=["TIFF"]) as image:
            tags: Any = image.tag_v2  # type: ignore[attr-defined]
            width, height = int(tags[_TIFF_WIDTH]), int(tags[_TIFF_HEIGHT])
            for starts, counts in _TIFF_PARTS:
                for start, count in zip(tags.get(starts, ()), tags.get(counts, ()), strict=False):
                    if start + count > len(data):
                        raise ValueError(
                            f"TIFF is truncated: pixels at byte {start} end at {start + count:,} of {len(data):,}"
                        )
            if tags.get(_TIFF_ORIENTATION, 1) in (5, 6, 7, 8):
                width, height = height, width
            mode = sixteen_bit_mode(data) or image.mode
    if mode[0] in "IF" and mode != "I;16":
        raise ValueError(f"TIFF of mode {mode} does not have 8 bits per channel: convert it to PNG, or to npy")
    return ImageInfo("tif", width, height, mode, 1)


def _tiff_form(data: bytes | bytearray | memoryview) -> str:
    """Return the number of channels and bits of a TIFF, if they are more than images have here; otherwise nothing."""
    with suppress(OSError, ValueError, SyntaxError, KeyError, TypeError, struct.error), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damage
        tags = TiffImagePlugin.ImageFileDirectory_v2(bytes(data[:8]))
        file = io.BytesIO(data)
        file.seek(tags.next)
        tags.load(file)
        channels, bits = int(tags[_TIFF_CHANNELS]), max(tags[_TIFF_BITS])
        return f"{channels} channels of {bits} bits" if channels > 4 or bits > 8 else ""
    return ""


def _tiff_depth(data: bytes | memoryview) -> str | None:
    """Return ``I;16`` for a grey TIFF with 16 bits; refuse colours with more than 8, which Pillow would reduce."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=["TIFF"]) as image:
                bits = image.tag_v2.get(_TIFF_BITS, (1,))  # type: ignore[attr-defined]
                mode = image.mode
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # the decoder will report it
    if len(bits) > 1 and max(bits) > 8:
        raise DecodeError(
            f"is a TIFF with {max(bits)} bits in each of {len(bits)} channels, which Pillow reduces to 8: convert it "
            "to PNG, or to npy"
        )
    return "I;16" if mode.startswith("I;16") else None


def sixteen_bit_mode(data: bytes | memoryview) -> str | None:
    """Return the mode of a PNG, or a grey TIFF, with 16 bits per channel, and None for any other file.

    Pillow does not report this: unless the image is grey, it converts the pixels to a mode with 8 bits.

    Raises:
        DecodeError: The file is a TIFF with several channels of more than 8 bits.
    """
    if bytes(data[:4]) in _TIFF_STARTS:
        return _tiff_depth(data)
    if bytes(data[:8]) != _PNG_START or bytes(data[12:16]) != b"IHDR" or len(data) < 26 or data[24] != 16:
        return None
    return _SIXTEEN_BIT_MODES.get(data[25])


_PROBES: dict[str, Callable[[bytes | memoryview], ImageInfo]] = {
    "jpg": _probe_jpeg,
    "png": lambda data: _probe_pillow(data, "png"),
    "webp": lambda data: _probe_pillow(data, "webp"),
    "gif": lambda data: _probe_pillow(data, "gif"),
    "avif": lambda data: _probe_pillow(data, "avif"),
    "tif": _probe_tiff,
    "npy": _probe_npy,
}


def _png_exif(data: bytes | memoryview) -> bytes:
    """Check all chunks of a PNG, and return its EXIF data. Pillow would decode the pixels to find it."""
    exif = b""
    position, others = 8, 0
    while others <= _MAX_CHUNKS:
        stop = position + 12 + int.from_bytes(data[position : position + 4], "big")
        kind = bytes(data[position + 4 : position + 8])
        if stop > len(data):
            raise ValueError(f"PNG is truncated: chunk {kind!r} at byte {position} ends at {stop:,} of {len(data):,}")
        if zlib.crc32(data[position + 4 : stop - 4]) != int.from_bytes(data[stop - 4 : stop], "big"):
            raise ValueError(f"PNG is damaged: chunk {kind!r} at byte {position} does not match its checksum")
        if kind == b"IEND":
            return exif
        if kind == b"eXIf":
            exif = bytes(data[position + 8 : stop - 4])
        position = stop
        others += kind not in (b"IDAT", b"fdAT", b"fcTL")  # there may be many chunks of pixels
    raise ValueError(f"PNG has more than {_MAX_CHUNKS:,} chunks other than pixels: save it again")


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels as a PNG, which is lossless.

    Args:
        pixels: uint8 [height, width] or [height, width, 1 | 3 | 4], channels in the order R, G, B, A.
    """
    out = io.BytesIO()
    pixels = np.ascontiguousarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    # 224x224 pixels: level 3 takes 4.9 ms, level 6 takes 11.8 ms and makes the file 2 % smaller.
    Image.fromarray(pixels).save(out, "PNG", compress_level=3)
    return out.getvalue()
