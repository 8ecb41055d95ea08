"""JPEG structure: what the header says, and cutting a part out between restart markers, without decoding. No I/O.

Source: ITU-T T.81 (markers, frame header), the JFIF and Exif 2.32 specifications (APP0, APP1), and Adobe
Technical Note 5116 (APP14).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_STANDALONE = frozenset([0x01, *range(0xD0, 0xD8)])  # markers without a length: TEM, RSTn
_FRAMES = frozenset([*range(0xC0, 0xD0)]) - {0xC4, 0xC8, 0xCC}  # SOFn, without DHT, JPG and DAC
_ORIENTATION_TAG = 0x0112
_END = b"\xff\xd9"
_HEAD = struct.Struct(">BBH")  # of a segment: FF, marker, length
_LENGTH = struct.Struct(">H")
_WITHOUT_LENGTH = _STANDALONE | {0xD9, 0xFF}
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # without RSTn and TEM, which stand alone, and FF 00, a coded FF
_PROGRESSIVE = frozenset([0xC2, 0xC6, 0xCA, 0xCE])
_ARITHMETIC = frozenset([0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF])
_MOST_SEGMENTS = 4096  # a colour profile has 255 at most, other data a few
_MOST_TAGS = 512  # of an Exif folder; cameras write about 20
_MOST_PASSES = 16
"""Scans that a picture of the largest size may have; a smaller one may have more. Encoders make about 10."""


class JpegHeader(NamedTuple):
    """What a JPEG file says of itself.

    Attributes:
        width: Pixels as stored, before orientation.
        height: Pixels as stored, before orientation.
        components: 1 grey, 3 colour, 4 CMYK or YCCK.
        bits: Per sample: 8 nearly always, 12 in medical pictures.
        progressive: Coefficients come in several scans.
        orientation: EXIF orientation, 1 to 8; 1 where it is absent.
        mcu_width: Pixels of an MCU, the unit that the scan is made of; 0 where it cannot be told.
        mcu_height: Pixels of an MCU.
        has_restart: A restart interval is stated; only then there may be markers to cut along.
    """

    width: int
    height: int
    components: int
    bits: int
    progressive: bool
    orientation: int
    mcu_width: int
    mcu_height: int
    has_restart: bool


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
    mcu = (0, 0)
    orientation: int | None = None
    has_restart = False
    for _ in range(_MOST_SEGMENTS):
        marker, start, stop = _segment(data, position)
        has_restart |= marker == 0xDD
        if marker in _FRAMES:
            if stop - start < 6:
                raise ValueError("JPEG frame header is cut")
            bits, height, width, components = struct.unpack_from(">BHHB", data, start)
            frame = width, height, components, bits, marker in _PROGRESSIVE
            mcu = _mcu(data[start:stop], components)
        elif marker == 0xE1 and orientation is None:
            orientation = exif_orientation(data[start:stop])
        elif marker == 0xDA:
            break
        elif marker == 0xD9:
            raise ValueError("JPEG ends without a scan: it holds no picture")
        position = stop
    else:
        raise ValueError(f"JPEG has more than {_MOST_SEGMENTS:,} segments: save it again")
    if frame is None or frame[0] == 0 or frame[1] == 0:
        raise ValueError("JPEG has no frame header with a width and a height before its first scan")
    if not _has_end(data, stop):
        raise ValueError("JPEG is cut: no end-of-image marker behind the first scan")
    return JpegHeader(*frame, orientation or 1, *mcu, has_restart)


def check_effort(data: bytes | memoryview, most_pixels: int) -> None:
    """Refuse a JPEG that takes far more memory or time than its size and the length of its file explain.

    A decoder passes over the whole picture for each scan. And in a Huffman-coded file each block of 64 pixels takes at
    least a bit: where there are fewer, the file is cut, which a decoder would only find out after making room for all.

    Raises:
        ValueError: It has more than ``most_pixels``, too many scans for its size, or too few bytes.
    """
    width = height = components = scans = frame_marker = 0
    for number, (marker, start, stop) in enumerate(_segments(data)):
        if number >= _MOST_SEGMENTS:
            raise ValueError(f"JPEG has more than {_MOST_SEGMENTS:,} segments: save it again")
        if marker in _FRAMES and not frame_marker and stop - start >= 6:
            frame_marker = marker
            _, height, width, components = struct.unpack_from(">BHHB", data, start)
        elif marker == 0xDA and start < stop:
            scans += 1
            if frame_marker not in _PROGRESSIVE and data[start] == components:
                break  # all is in one scan: decoders stop behind it
    pixels = width * height
    if pixels > most_pixels:
        raise ValueError(f"is {width}x{height} = {pixels:,} pixels; allowed are {most_pixels:,}")
    if scans * pixels > _MOST_PASSES * most_pixels:
        raise ValueError(
            f"JPEG has {scans:,} scans, and each is a pass over its {width}x{height} pixels; allowed are "
            f"{_MOST_PASSES * most_pixels // pixels:,} at this size: save it again"
        )
    if frame_marker not in _ARITHMETIC and 8 * len(data) < -(-width // 8) * -(-height // 8):
        raise ValueError(f"JPEG is cut: {len(data):,} bytes cannot hold {width}x{height} pixels")


def _segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop of its payload) of all segments as decoders find them: other bytes are skipped."""
    position, end = 2, len(data) - 1
    while (found := _MARKER.search(data, position)) and (position := found.end()) < end:
        marker, (length,) = data[position - 1], _LENGTH.unpack_from(data, position)
        if marker == 0xD9 or length < 2 or position + length > len(data):
            return
        yield marker, position + 2, position + length
        position += length


def _has_end(data: bytes | memoryview, start: int) -> bool:
    """Tell whether there is an end-of-image marker behind ``start``; nearly always it is the last two bytes."""
    return (len(data) >= start + 2 and data[-2:] == _END) or bytes(data[start:]).rfind(_END) >= 0


def _segment(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Return (marker, start, stop of its payload) of the segment at ``position``."""
    if position + 4 <= len(data):
        lead, marker, length = _HEAD.unpack_from(data, position)
        stop = position + 2 + length
        if lead == 0xFF and marker not in _WITHOUT_LENGTH and length >= 2 and stop <= len(data):
            return marker, position + 4, stop
    return _odd_segment(data, position)


def _odd_segment(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Do as `_segment` for what is rare: fill bytes, markers without a length, damage."""
    start = position
    while position + 1 < len(data) and data[position] == 0xFF and data[position + 1] == 0xFF:
        position += 1
        if position - start > _MOST_SEGMENTS:
            raise ValueError(f"JPEG has more than {_MOST_SEGMENTS:,} fill bytes at byte {start}")
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
    for entry in range(ifd + 2, min(ifd + 2 + 12 * min(entries, _MOST_TAGS), len(tiff) - 11), 12):
        tag, kind, _count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION_TAG and kind == 3 and 1 <= value <= 8:
            return int(value)
    return None


def needed_segments(data: bytes | memoryview) -> bytes:
    """Return the segments of a whole JPEG that a reader may need, for a copy of it: orientation and colour profile."""
    header = parse_header(data)
    kept = [_orientation_segment(header.orientation)] if header.orientation != 1 else []
    position, marker = 2, 0
    while marker != 0xDA:
        marker, start, stop = _segment(data, position)
        if marker == 0xE2 and bytes(data[start : start + 12]) == b"ICC_PROFILE\0":
            kept.append(bytes(data[start - 4 : stop]))
        position = stop
    return b"".join(kept)


def _orientation_segment(orientation: int) -> bytes:
    """Build the smallest Exif segment (Exif 2.32): one folder with one tag."""
    tag = struct.pack(">HHIHHI", _ORIENTATION_TAG, 3, 1, orientation, 0, 0)
    payload = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + tag
    return b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload


def with_segments(data: bytes, segments: bytes) -> bytes:
    """Put segments into a JPEG, behind its JFIF segment, which must come first."""
    marker, _, stop = _segment(data, 2)
    place = stop if marker == 0xE0 else 2
    return data[:place] + segments + data[place:] if segments else data


@dataclass(frozen=True, slots=True)
class Frame:
    """What cutting a baseline JPEG takes.

    Attributes:
        height_at: Byte where the frame header states height and width, two bytes each.
        width: Pixels as stored, before orientation.
        height: Pixels as stored, before orientation.
        components: 1 grey, 3 colour, 4 CMYK or YCCK.
        mcu_width: Pixels of an MCU, the unit that the scan is made of.
        mcu_height: Pixels of an MCU.
        restart: MCUs between two restart markers, 0 without them.
        scan_at: First byte of the coded data.
    """

    height_at: int
    width: int
    height: int
    components: int
    mcu_width: int
    mcu_height: int
    restart: int
    scan_at: int

    @property
    def columns(self) -> int:
        """Pieces between restart markers in a row of MCUs; 0 if they do not begin where a row does."""
        row = -(-self.width // self.mcu_width)
        return row // self.restart if self.restart and row % self.restart == 0 else 0


def baseline_frame(data: bytes | memoryview) -> Frame | None:
    """Find the frame header of a Huffman-coded sequential JPEG of 8 bits in one interleaved scan, else None."""
    frame: tuple[int, int, int, int, int, int] | None = None
    restart = 0
    position = 2
    while position + 10 < len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        stop = position + 2 + (data[position + 2] << 8 | data[position + 3])
        if marker in (0xC0, 0xC1):
            if frame or (frame := _frame(data, position + 4, stop)) is None:
                return None
        elif marker == 0xDD:
            restart = data[position + 4] << 8 | data[position + 5]
        elif marker == 0xDA:
            whole = frame is not None and data[position + 4] == frame[3] and stop + 2 <= len(data)
            return Frame(*frame, restart, stop) if frame and whole else None
        elif marker in _FRAMES or marker in _STANDALONE or marker in (0x00, 0xFF):
            return None
        position = stop
    return None  # bytes between segments too: decoders warn of them before they decode anything


def _frame(data: bytes | memoryview, start: int, stop: int) -> tuple[int, int, int, int, int, int] | None:
    """Return the first fields of `Frame` from the payload of a frame header."""
    bits, height, width, components = struct.unpack_from(">BHHB", data, start)
    mcu_width, mcu_height = _mcu(data[start:stop], components)
    if bits != 8 or not height or not width or components not in (1, 3, 4) or not mcu_width:
        return None
    return start + 1, width, height, components, mcu_width, mcu_height


def _mcu(payload: bytes | memoryview, components: int) -> tuple[int, int]:
    """Return width and height of an MCU from a frame header, (0, 0) if it is cut or breaks the standard."""
    return _mcu_of(bytes(payload[7 : 6 + 3 * components : 3]), components)


@lru_cache(maxsize=256)  # most files have one of a few samplings
def _mcu_of(factors: bytes, components: int) -> tuple[int, int]:
    if len(factors) != components or not components:
        return 0, 0
    if components == 1:
        return 8, 8  # an only component is coded block by block, whatever its factors say (T.81, A.2.2)
    across, down = max(factor >> 4 for factor in factors), max(factor & 15 for factor in factors)
    return (8 * across, 8 * down) if 1 <= across <= 4 and 1 <= down <= 4 else (0, 0)


Box = tuple[int, int, int, int]
"""Left, top, width, height, in pixels."""

_CYCLE = bytes(range(0xD0, 0xD8))  # the codes of restart markers, in turn
_LEAST_WIDTH = 5  # below, libjpeg repeats chroma instead of interpolating it


@dataclass(frozen=True, slots=True)
class Slice:
    """A JPEG cut out of another one.

    Attributes:
        data: The file.
        box: Which part of the picture it is.
    """

    data: bytearray
    box: Box


def slice_region(data: bytes | memoryview, frame: Frame, box: Box) -> Slice | None:
    """Cut the pieces between restart markers that a part of the picture needs, and make them a JPEG of their own.

    Its pixels inside ``box`` are those of the whole picture to the bit: pieces do not depend on each other, and one
    more pixel than needed is there on each inner edge, for the interpolation of chroma.

    Args:
        data: A whole JPEG.
        frame: Its `baseline_frame`.
        box: The part that is needed, inside the picture, in pixels as stored.

    Returns:
        None where nothing can be left out, or where the restart markers are not those that the header promises.
    """
    if frame.columns == 0:
        return None
    rows = -(-frame.height // frame.mcu_height)
    left, right, top, bottom = _cells(frame, rows, box)
    if (right - left) * (bottom - top) == frame.columns * rows:
        return None
    ends = _piece_ends(data, frame, frame.columns * rows)
    if ends is None:
        return None
    return Slice(_join(data, frame, ends, (left, right, top, bottom)), _covered(frame, left, right, top, bottom))


def _cells(frame: Frame, rows: int, box: Box) -> Box:
    """Return (left, right, top, bottom) of the pieces that a box needs, counted in pieces."""
    left, top, width, height = box
    cell, step = frame.restart * frame.mcu_width, frame.mcu_height
    # Where nothing is subsampled, no pixel depends on its neighbour.
    more_x, more_y = frame.mcu_width > 8, frame.mcu_height > 8
    first, last = max(left - more_x, 0) // cell, min(-(-(left + width + more_x) // cell), frame.columns)
    if frame.width - first * cell < _LEAST_WIDTH and first:
        first -= 1
    return first, last, max(top - more_y, 0) // step, min(-(-(top + height + more_y) // step), rows)


def _covered(frame: Frame, left: int, right: int, top: int, bottom: int) -> Box:
    cell, step = frame.restart * frame.mcu_width, frame.mcu_height
    x, y = left * cell, top * step
    return x, y, min(right * cell, frame.width) - x, min(bottom * step, frame.height) - y


def _piece_ends(data: bytes | memoryview, frame: Frame, count: int) -> NDArray[np.int64] | None:
    """Return where the marker behind each piece is, int64 [count], or None if one is missing or another than due."""
    scan = np.frombuffer(data, np.uint8, offset=frame.scan_at)
    if 2 * count > len(scan):
        return None  # a header may claim more pieces than there is memory for
    at = np.flatnonzero(scan[:-1] == 0xFF)
    codes = scan[at + 1]
    marks = np.flatnonzero(codes)[:count]  # FF 00 is a coded FF
    if codes[marks].tobytes() != (_CYCLE * (count // 8 + 1))[: count - 1] + b"\xd9":
        return None
    return at[marks] + frame.scan_at


def _join(data: bytes | memoryview, frame: Frame, ends: NDArray[np.int64], cells: Box) -> bytearray:
    left, right, top, bottom = cells
    first = np.arange(top, bottom) * frame.columns + left  # [rows] number of each row's first piece
    start = np.where(first > 0, ends[first - 1] + 2, frame.scan_at)
    stop = ends[first + (right - left - 1)] + 2
    view = memoryview(data)
    parts = [view[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True)]
    out = bytearray().join([view[: frame.scan_at], *parts])
    # Markers move with their pieces and are numbered anew: [rows, pieces] places of their codes in `out`.
    moved = frame.scan_at + np.cumsum(stop - start) - stop
    codes = ends[first[:, None] + np.arange(right - left)] + (moved + 1)[:, None]
    np.frombuffer(out, np.uint8)[codes.ravel()] = np.frombuffer(_CYCLE * (codes.size // 8 + 1), np.uint8)[: codes.size]
    out[-1] = 0xD9
    _, _, width, height = _covered(frame, *cells)
    struct.pack_into(">HH", out, frame.height_at, height, width)
    return out
