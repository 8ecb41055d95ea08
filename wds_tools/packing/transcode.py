"""What happens to an image when it is packed: it is kept, made crop-ready, resized, or stored decoded.

*Crop-ready* changes no coefficient. The same image is written as a sequential JPEG with its own Huffman tables and a
restart marker every few MCUs, so that a reader can extract a crop and decode only that (`jpeg.slice_region`). The
compiled module writes this JPEG, and decodes it again to compare the coefficients. An image that cannot be converted
with certainty is kept unchanged.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import DecodeError, OptionError
from wds_tools.format import codecs, image_header, jpeg
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.image_signature import Signature
from wds_tools.images import native
from wds_tools.images.decode import Pixels, decode_rgb, decode_stored
from wds_tools.images.sign import sign, sign_pixels

Images = Literal["keep", "crop-ready", "resize", "raw"]
"""What may happen to images."""

QUALITY = 90
PIECE_PIXELS = 64
"""Approximate width in pixels of a piece between two restart markers: see docs/decisions/0007-crop-ready.md."""

_MIN_PIECE_PIXELS = 16  # below this, markers and padding add more than 10 % to a file
_MAX_SIDE = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """What happens to images when they are packed.

    Attributes:
        images: ``keep`` stores the bytes unchanged, ``crop-ready`` adds restart markers to JPEGs, ``resize`` stores
            smaller JPEGs, which are crop-ready too, and ``raw`` stores uint8 pixels. None becomes ``resize`` if a size
            is given, otherwise ``crop-ready``, or ``keep`` without the compiled module.
        resize: Pixels of the shorter side, (height, width), or text such as "256" or "320x240", which is parsed.
        quality: JPEG quality for ``resize``, 1 to 100; None becomes `QUALITY`.
        verify_pixels: Decode each crop-ready JPEG and its original, and keep the original if a pixel differs.
        compiled: Whether the compiled module can be used; without it, JPEGs that need no resizing are kept as they are.
        notice: A warning for the user when packing starts, or "".

    Raises:
        OptionError: Options that contradict each other, or ``crop-ready`` without the compiled module.
    """

    images: str | None = None
    resize: int | str | tuple[int, int] | None = None
    quality: int | None = None
    verify_pixels: bool = False
    compiled: bool = field(default_factory=native.is_available)
    notice: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.images is not None and self.images not in get_args(Images):
            raise OptionError(f"images={self.images!r}; allowed are {', '.join(map(repr, get_args(Images)))}")
        if self.images == "crop-ready" and not self.compiled:
            raise OptionError(f"images='crop-ready' cannot be used: {native.why_missing()}, or pack with images='keep'")
        chosen = self.images or ("crop-ready" if self.resize is None else "resize")
        self._check(chosen)
        if not self.compiled and chosen in ("crop-ready", "resize"):
            which = "JPEGs" if chosen == "crop-ready" else "JPEGs that need no resizing"
            notice = (
                f"{native.why_missing()}. Until then, {which} are kept unchanged, and crops of them load more slowly"
            )
            object.__setattr__(self, "notice", notice)
            chosen = "keep" if chosen == "crop-ready" else chosen
        object.__setattr__(self, "images", chosen)
        object.__setattr__(self, "resize", parse_size(self.resize))
        if chosen == "resize" and self.quality is None:
            object.__setattr__(self, "quality", QUALITY)

    def _check(self, chosen: str) -> None:
        size, quality = parse_size(self.resize), self.quality
        if size is None and chosen == "resize":
            raise OptionError(
                "images='resize' needs a size: give --resize 256 (resize=256), the shorter side in pixels, or 320x240"
            )
        if size is not None and chosen not in ("resize", "raw"):
            raise OptionError(f"resize={self.resize!r} with images={chosen!r}; a size requires 'resize' or 'raw'")
        if quality is not None and (chosen != "resize" or not 1 <= quality <= 100):
            raise OptionError(f"quality={quality} with images={chosen!r}; allowed are 1 to 100, only with 'resize'")
        if self.verify_pixels and chosen not in ("crop-ready", "resize"):
            raise OptionError(f"verify_pixels with images={chosen!r}; it requires 'crop-ready' or 'resize'")

    @property
    def keeps_all(self) -> bool:
        """Whether ``keep`` was chosen, and is not just the fallback without the compiled module."""
        return self.images == "keep" and not self.notice

    @property
    def size(self) -> int | tuple[int, int] | None:
        """Pixels of the shorter side, or (height, width)."""
        return parse_size(self.resize)

    def __str__(self) -> str:
        """Return every option that changes the bytes, as text: part of a dataset's ``source``."""
        size = f"{self.resize[1]}x{self.resize[0]}" if isinstance(self.resize, tuple) else self.resize
        words = [str(self.images), *([str(size)] if size else [])]
        if self.images == "resize":
            words.append(f"quality {self.quality}" + ("" if self.compiled else " not compiled"))
        return " ".join(words)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of an image after packing. Given only the shorter side, it is never enlarged."""
        size, short = self.size, min(height, width)
        if isinstance(size, tuple):
            return size
        if size is None or short <= size:
            return height, width
        return height * size // short, width * size // short

    @property
    def fixed_bytes(self) -> int | None:
        """Size of every packed image in bytes, or None if the images differ in size."""
        if self.images != "raw" or not isinstance(self.size, tuple):
            return None
        return len(codecs.encode_npy(np.empty((*self.size, 3), np.uint8)))


def parse_size(size: int | str | tuple[int, int] | None) -> int | tuple[int, int] | None:
    """Parse a size: the shorter side, "WIDTHxHEIGHT", or (height, width) as in views.

    >>> parse_size("256"), parse_size("128x96"), parse_size((96, 128))
    (256, (96, 128), (96, 128))
    """
    if size is None:
        return None
    sides: list[Any]
    if isinstance(size, str):
        words = size.lower().split("x")
        sides = [int(word) if word.isascii() and word.isdigit() else 0 for word in reversed(words)]
    else:
        sides = list(size) if isinstance(size, (tuple, list)) else [size]
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and 1 <= side <= _MAX_SIDE for side in sides):
        raise OptionError(f"resize={size!r}; allowed are pixels of the shorter side, or WIDTHxHEIGHT such as '128x128'")
    if len(sides) == 2 and sides[0] * sides[1] > image_header.MAX_PIXELS:
        raise OptionError(f"resize={size!r}; at most {image_header.MAX_PIXELS:,} pixels are allowed")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


@dataclass(frozen=True, slots=True)
class Encoded:
    """An image as it is stored.

    Attributes:
        kind: Its type, which is also the name of its field, such as ``jpg``; see `ImageInfo`.
        signature: Its signature; None if its pixels were not needed, so that computing it would take much longer.
    """

    kind: str
    data: bytes
    info: ImageInfo
    signature: Signature | None = None


def transcode(image: bytes | NDArray[np.uint8], options: ImageOptions) -> Encoded:
    """Convert an image for packing.

    Args:
        image: The bytes of an image file; or pixels, uint8 [height, width, 1 | 3 | 4], or [height, width] for grey.
            With "keep" and "crop-ready", pixels become a PNG. Otherwise their alpha channel is dropped.
        options: What happens to the image.

    Raises:
        DecodeError: The image is damaged, of an unsupported type, or has 16 bits per channel where 8 are written.
    """
    if isinstance(image, np.ndarray):
        _check_pixels(image)
        if options.images in ("keep", "crop-ready"):
            return _encoded(image_header.encode_png(image), image, options)
        return _from_pixels(
            image[..., 0] if image.shape[2:] == (1,) else image[:, :, :3] if image.ndim == 3 else image, options
        )
    info = image_header.probe(image)
    if options.images == "keep":
        return Encoded(info.kind, image, info)
    same_size = options.size_of(info.height, info.width) == (info.height, info.width)
    if options.images == "crop-ready" or (options.images == "resize" and info.kind == "jpg" and same_size):
        return crop_ready(image, info, options) if options.compiled else Encoded(info.kind, image, info)
    if info.mode.endswith(";16"):
        raise DecodeError(
            f"has 16 bits per channel, and images={options.images!r} writes 8: pack with images='keep', which "
            "keeps the file unchanged, or convert it to 8 bits first"
        )
    pixels = decode_rgb(memoryview(image), kind=info.kind, mode=info.mode, orientation=info.orientation)
    return _from_pixels(pixels[:, :, 0] if info.mode == "L" else pixels, options)


def _check_pixels(pixels: NDArray[np.uint8]) -> None:
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4))
    if pixels.dtype != np.uint8 or not is_image or not 0 < pixels.size <= 4 * image_header.MAX_PIXELS:
        raise DecodeError(
            f"is an array of shape {pixels.shape} and {pixels.dtype}; allowed are uint8 [height, width, 1, 3 or 4] "
            f"and [height, width], of at most {image_header.MAX_PIXELS:,} pixels"
        )


def _from_pixels(pixels: Pixels, options: ImageOptions) -> Encoded:
    size = options.size_of(*pixels.shape[:2])
    if pixels.shape[:2] != size:
        # torchvision's antialiasing filter, so that resizing here and in training give the same pixels
        image = Image.fromarray(pixels)
        if image.height * size[1] > image_header.MAX_PIXELS:  # Pillow would resize all rows horizontally first
            image = image.resize((image.width, size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))
    if options.images == "raw":
        if pixels.ndim == 2:
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        return _encoded(codecs.encode_npy(np.ascontiguousarray(pixels)), pixels, options)
    return _encoded(_jpeg(pixels, options.quality or QUALITY), None, options)


def _encoded(data: bytes, pixels: Pixels | None, options: ImageOptions) -> Encoded:
    """Return an image that was encoded here; without ``pixels``, it is a JPEG that loses some of them."""
    info = image_header.probe(data)
    if not options.compiled:
        return Encoded(info.kind, data, info)
    return Encoded(info.kind, data, info, sign(data, info) if pixels is None else sign_pixels(pixels))


def _jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encode pixels as a crop-ready JPEG."""
    if max(pixels.shape[:2]) > _MAX_SIDE:
        raise DecodeError(
            f"would be a JPEG of {pixels.shape[1]}x{pixels.shape[0]}; allowed are {_MAX_SIDE:,} pixels per side: pack "
            "with images='keep', or with resize= as WIDTHxHEIGHT"
        )
    out = io.BytesIO()
    blocks = piece_mcus(pixels.shape[1], 8 if pixels.ndim == 2 else 16)
    Image.fromarray(pixels).save(
        out, "JPEG", quality=quality, optimize=True, subsampling="4:2:0", restart_marker_blocks=blocks
    )
    return out.getvalue()


def piece_mcus(width: int, mcu_width: int) -> int:
    """Return the number of MCUs in a piece: it divides the number in a row, and its width is close to `PIECE_PIXELS`.

    >>> piece_mcus(500, 16), piece_mcus(375, 8), piece_mcus(31 * 16, 16), piece_mcus(113 * 8, 8)
    (4, 47, 1, 113)
    """
    row = -(-width // mcu_width)
    fitting = [n for n in range(1, row) if row % n == 0 and n * mcu_width >= _MIN_PIECE_PIXELS]
    return min([*fitting, row], key=lambda n: abs(math.log(n * mcu_width / PIECE_PIXELS)))


def crop_ready(data: bytes, info: ImageInfo, options: ImageOptions) -> Encoded:
    """Return a JPEG with restart markers and the same pixels; an image that does not allow it is returned unchanged."""
    kept = Encoded(info.kind, data, info)
    if info.kind != "jpg" or not info.mcu_width:
        return kept
    stored_width = info.width if info.orientation < 5 else info.height
    result = native.transcode_jpeg(data, piece_mcus(stored_width, info.mcu_width), info.orientation)
    if result is None:
        return kept
    transcoded, signature = result
    kept = replace(kept, signature=signature)
    try:
        encoded = jpeg.with_segments(transcoded, jpeg.needed_segments(data))
        new = image_header.probe(encoded)
    except ValueError:
        return kept
    facts = [(header.width, header.height, header.mode, header.orientation) for header in (info, new)]
    if facts[0] != facts[1] or not new.restart or (options.verify_pixels and not _same_pixels(data, encoded)):
        return kept
    return Encoded(new.kind, encoded, new, signature)


def _same_pixels(first: bytes, second: bytes) -> bool:
    try:
        return np.array_equal(decode_stored(memoryview(first)), decode_stored(memoryview(second)))
    except DecodeError:
        return False
