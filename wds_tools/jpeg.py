"""JPEG structure: what the header says, without decoding. No I/O.

Source: ITU-T T.81 (markers, frame header), the JFIF and Exif 2.32 specifications (APP0, APP1), and Adobe
Technical Note 5116 (APP14).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_STANDALONE = frozenset([0x01, *range(0xD0, 0xD8)])  # markers without a length: TEM, RSTn
_FRAMES = frozenset([*range(0xC0, 0xD0)]) - {0xC4, 0xC8, 0xCC}  # SOFn, without DHT, JPG and DAC
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What a JPEG file says of itself.

    Attributes:
        width: Pixels as stored, before orientation.
        height: Pixels as stored, before orientation.
        components: 1 grey, 3 colour, 4 CMYK or YCCK.
        bits: Per sample: 8 nearly always, 12 in medical pictures.
        progressive: Coefficients come in several scans.
        orientation: EXIF orientation, 1 to 8; 1 where it is absent.
    """

    width: int
    height: int
    components: int
    bits: int
    progressive: bool
    orientation: int


def parse_header(data: bytes | memoryview) -> JpegHeader:
    """Read a JPEG's header up to its first scan.

    Raises:
        ValueError: Not a JPEG, cut in the header, or with no end-of-image marker behind the first scan.

    >>> parse_header(b"GIF89a")
    Traceback (most recent call last):
    ...
    ValueError: not a JPEG: it starts with b'GI', not with FF D8
    """
    if bytes(data[:2]) != b"\xff\xd8":
        raise ValueError(f"not a JPEG: it starts with {bytes(data[:2])!r}, not with FF D8")
    position = 2
    frame: tuple[int, int, int, int, bool] | None = None
    orientation: int | None = None
    while True:
        marker, start, stop = _segment(data, position)
        if marker in _FRAMES:
            if stop - start < 6:
                raise ValueError("JPEG frame header is cut")
            bits, height, width, components = struct.unpack_from(">BHHB", data, start)
            frame = width, height, components, bits, marker in (0xC2, 0xC6, 0xCA, 0xCE)
        elif marker == 0xE1 and orientation is None:
            orientation = exif_orientation(data[start:stop])
        elif marker == 0xDA:
            break
        elif marker == 0xD9:
            raise ValueError("JPEG ends without a scan: it holds no picture")
        position = stop
    if frame is None or frame[0] == 0 or frame[1] == 0:
        raise ValueError("JPEG has no frame header with a width and a height before its first scan")
    if bytes(data[stop:]).rfind(b"\xff\xd9") < 0:
        raise ValueError("JPEG is cut: no end-of-image marker behind the first scan")
    return JpegHeader(frame[0], frame[1], frame[2], frame[3], frame[4], orientation or 1)


def _segment(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Return (marker, start, stop of its payload) of the segment at ``position``."""
    while position + 1 < len(data) and data[position] == 0xFF and data[position + 1] == 0xFF:
        position += 1  # fill bytes
    if position + 2 > len(data) or data[position] != 0xFF:
        raise ValueError(f"JPEG header is damaged at byte {position}: a marker was expected")
    marker = data[position + 1]
    if marker in _STANDALONE or marker == 0xD9:
        return marker, position + 2, position + 2
    if position + 4 > len(data):
        raise ValueError(f"JPEG is cut in its header, at byte {position}")
    length = int.from_bytes(data[position + 2 : position + 4], "big")
    if length < 2 or position + 2 + length > len(data):
        raise ValueError(f"JPEG is cut in its header, at byte {position}: a segment claims {length} bytes")
    return marker, position + 4, position + 2 + length


def exif_orientation(payload: bytes | memoryview) -> int | None:
    """Return the orientation (1 to 8) that an APP1 payload states, or None: damaged EXIF is common and ignored."""
    if bytes(payload[:6]) != b"Exif\0\0":
        return None
    tiff = bytes(payload[6:])
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return None
    (ifd,) = struct.unpack_from(order + "I", tiff, 4)
    if ifd + 2 > len(tiff):
        return None
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    for entry in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, _count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION_TAG and kind == 3 and 1 <= value <= 8:
            return int(value)
    return None


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a baseline JPEG states its height, and how high its MCUs are."""

    height_at: int
    height: int
    width: int
    mcu_height: int


def baseline_frame(data: bytes | memoryview) -> Frame | None:
    """Find the frame header of a Huffman-coded sequential JPEG of 8 bits in one interleaved scan, else None."""
    frame: Frame | None = None
    position = 2
    while position + 20 < len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker in (0xC0, 0xC1):
            _length, bits, height, width, components = struct.unpack_from(">HBHHB", data, position + 2)
            if frame or bits != 8 or not height or components not in (1, 3):
                return None
            # An only component is coded block by block, whatever its sampling factors say (T.81, A.2.2).
            most = 1 if components == 1 else max(data[position + 11 + 3 * i] & 15 for i in range(components))
            frame = Frame(position + 5, height, width, 8 * most)
        elif marker == 0xDA:
            return frame
        elif marker in _FRAMES or marker in _STANDALONE or marker in (0x00, 0xFF):
            return None
        position += 2 + (data[position + 2] << 8 | data[position + 3])
    return None  # bytes between segments too: decoders warn of them before they decode anything
