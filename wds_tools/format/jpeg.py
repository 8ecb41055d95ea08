"""JPEG files without decoding: parse the header, and crop a region along restart markers. No I/O.

Source: ITU-T T.81 (markers, frame header), the JFIF and Exif 2.32 specifications (APP0, APP1), and
Adobe Technical Note 5116 (APP14).
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

_STANDALONE = frozenset([0x01, *range(0xD0, 0xD8)])  # markers without a payload: TEM, RSTn
_FRAMES = frozenset([*range(0xC0, 0xD0)]) - {0xC4, 0xC8, 0xCC}  # SOFn, without DHT, JPG and DAC
_ORIENTATION_TAG = 0x0112
_END_OF_IMAGE = b"\xff\xd9"
_SEGMENT_START = struct.Struct(">BBH")  # FF, marker, length
_LENGTH = struct.Struct(">H")
_WITHOUT_LENGTH = _STANDALONE | {0xD9, 0xFF}
# Without TEM and RSTn, which have no payload, and without FF 00, which is a coded FF.
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
_PROGRESSIVE = frozenset([0xC2, 0xC6, 0xCA, 0xCE])
_ARITHMETIC = frozenset([0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF])
_MAX_SEGMENTS = 4096  # a colour profile takes at most 255, other data a few
_MAX_TAGS = 512  # in an Exif directory; cameras write about 20
_MAX_SCANS = 16
"""Maximum number of scans of an image of the largest size; smaller ones may have more. Encoders write about 10."""


class JpegHeader(NamedTuple):
    """Facts from the header of a JPEG file.

    Attributes:
        bits: Bits per channel: nearly always 8, and 12 in some medical images.
        orientation: EXIF orientation, 1 to 8; 1 if the file has none.
        mcu_width: Width in pixels of an MCU, the unit of a scan; 0 if the header is invalid there.
        has_restart: Whether the header defines a restart interval. Without one there are no restart
            markers.
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
    """Read the header of a JPEG up to its first scan.

    Raises:
        ValueError: The file is not a JPEG, its header is damaged or truncated, or no end-of-image
            marker follows the first scan.

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
    for _ in range(_MAX_SEGMENTS):
        marker, start, stop = _segment(data, position)
        has_restart |= marker == 0xDD
        if marker in _FRAMES:
            if stop - start < 6:
                raise ValueError("JPEG frame header is truncated")
            bits, height, width, components = struct.unpack_from(">BHHB", data, start)
            frame = width, height, components, bits, marker in _PROGRESSIVE
            mcu = _mcu(data[start:stop], components)
        elif marker == 0xE1 and orientation is None:
            orientation = exif_orientation(data[start:stop])
        elif marker == 0xDA:
            break
        elif marker == 0xD9:
            raise ValueError("JPEG ends without a scan: it contains no image")
        position = stop
    else:
        raise ValueError(f"JPEG has more than {_MAX_SEGMENTS:,} segments: save it again")
    if frame is None or frame[0] == 0 or frame[1] == 0:
        raise ValueError("JPEG has no frame header with a width and a height before its first scan")
    if not _has_end(data, stop):
        raise ValueError("JPEG is truncated (no end-of-image marker)")
    return JpegHeader(*frame, orientation or 1, *mcu, has_restart)


def check_effort(data: bytes | memoryview, max_pixels: int) -> None:
    """Refuse a JPEG whose decoding would take far more memory or time than its size justifies.

    A decoder passes over the whole image for each scan. In a Huffman-coded file each block of 64
    pixels takes at least one bit. A file with fewer bits is truncated, which a decoder would notice
    only after allocating memory for all pixels.

    Raises:
        ValueError: The image has more than ``max_pixels``, too many scans for its size, or too few
            bytes.
    """
    width = height = components = scans = frame_marker = 0
    for index, (marker, start, stop) in enumerate(_segments(data)):
        if index >= _MAX_SEGMENTS:
            raise ValueError(f"JPEG has more than {_MAX_SEGMENTS:,} segments: save it again")
        if marker in _FRAMES and not frame_marker and stop - start >= 6:
            frame_marker = marker
            _, height, width, components = struct.unpack_from(">BHHB", data, start)
        elif marker == 0xDA and start < stop:
            scans += 1
            if frame_marker not in _PROGRESSIVE and data[start] == components:
                break  # one scan holds all components: decoders stop after it
    pixels = width * height
    if pixels > max_pixels:
        raise ValueError(f"is {width}x{height} = {pixels:,} pixels; allowed are {max_pixels:,}")
    if scans * pixels > _MAX_SCANS * max_pixels:
        raise ValueError(
            f"JPEG has {scans:,} scans, and each is a pass over its {width}x{height} pixels; allowed are "
            f"{_MAX_SCANS * max_pixels // pixels:,} at this size: save it again"
        )
    if frame_marker not in _ARITHMETIC and 8 * len(data) < -(-width // 8) * -(-height // 8):
        raise ValueError(f"JPEG is truncated: {len(data):,} bytes cannot hold {width}x{height} pixels")


def _segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start and stop of the payload) of all segments; skip other bytes, as decoders do."""
    position, end = 2, len(data) - 1
    while (match := _MARKER.search(data, position)) and (position := match.end()) < end:
        marker, (length,) = data[position - 1], _LENGTH.unpack_from(data, position)
        if marker == 0xD9 or length < 2 or position + length > len(data):
            return
        yield marker, position + 2, position + length
        position += length


def _has_end(data: bytes | memoryview, start: int) -> bool:
    """Return whether an end-of-image marker follows ``start``; nearly always it is the last two bytes."""
    return (len(data) >= start + 2 and data[-2:] == _END_OF_IMAGE) or bytes(data[start:]).rfind(_END_OF_IMAGE) >= 0


def _segment(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Return (marker, start of payload, stop of payload) of the segment at ``position``."""
    if position + 4 <= len(data):
        lead, marker, length = _SEGMENT_START.unpack_from(data, position)
        stop = position + 2 + length
        if lead == 0xFF and marker not in _WITHOUT_LENGTH and length >= 2 and stop <= len(data):
            return marker, position + 4, stop
    return _unusual_segment(data, position)


def _unusual_segment(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Parse a segment with rare cases too: fill bytes, markers without a length, damage."""
    start = position
    while position + 1 < len(data) and data[position] == 0xFF and data[position + 1] == 0xFF:
        position += 1
        if position - start > _MAX_SEGMENTS:
            raise ValueError(f"JPEG has more than {_MAX_SEGMENTS:,} fill bytes at byte {start}")
    if position + 2 > len(data) or data[position] != 0xFF:
        raise ValueError(f"JPEG header is damaged at byte {position}: a marker was expected")
    marker = data[position + 1]
    if marker in _STANDALONE or marker == 0xD9:
        return marker, position + 2, position + 2
    if position + 4 > len(data):
        raise ValueError(f"JPEG is truncated in its header, at byte {position}")
    length = int.from_bytes(data[position + 2 : position + 4], "big")
    if length < 2 or position + 2 + length > len(data):
        raise ValueError(f"JPEG is truncated in its header, at byte {position}: a segment claims {length} bytes")
    return marker, position + 4, position + 2 + length


def exif_orientation(payload: bytes | memoryview) -> int | None:
    """Return the orientation (1 to 8) in the payload of an APP1 segment, or None.

    Damaged EXIF data is common and ignored.
    """
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
    for entry in range(ifd + 2, min(ifd + 2 + 12 * min(entries, _MAX_TAGS), len(tiff) - 11), 12):
        tag, kind, _count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION_TAG and kind == 3 and 1 <= value <= 8:
            return int(value)
    return None


def needed_segments(data: bytes | memoryview) -> bytes:
    """Return the segments that a re-encoded JPEG must keep: EXIF orientation and colour profile."""
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
    """Build the smallest Exif segment (Exif 2.32): one directory with one tag."""
    tag = struct.pack(">HHIHHI", _ORIENTATION_TAG, 3, 1, orientation, 0, 0)
    payload = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + tag
    return b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload


def with_segments(data: bytes, segments: bytes) -> bytes:
    """Insert segments into a JPEG, after the JFIF segment, which must be the first one."""
    marker, _, stop = _segment(data, 2)
    position = stop if marker == 0xE0 else 2
    return data[:position] + segments + data[position:] if segments else data


@dataclass(frozen=True, slots=True)
class Frame:
    """What is needed to crop a sequential JPEG without decoding it.

    Attributes:
        height_at: Byte offset of height and width in the frame header, two bytes each.
        restart: MCUs between two restart markers, 0 without markers.
        scan_at: Byte offset of the coded data.
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
        """Restart intervals per row of MCUs; 0 if rows do not start with an interval."""
        row = -(-self.width // self.mcu_width)
        return row // self.restart if self.restart and row % self.restart == 0 else 0


def baseline_frame(data: bytes | memoryview) -> Frame | None:
    """Return the frame of a sequential JPEG, or None.

    The coding must be Huffman with 8 bits per channel, in one interleaved scan.
    """
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
            one_scan = frame is not None and data[position + 4] == frame[3] and stop + 2 <= len(data)
            return Frame(*frame, restart, stop) if frame and one_scan else None
        elif marker in _FRAMES or marker in _STANDALONE or marker in (0x00, 0xFF):
            return None
        position = stop
    return None  # bytes between segments too, about which decoders warn


def _frame(data: bytes | memoryview, start: int, stop: int) -> tuple[int, int, int, int, int, int] | None:
    """Return the first fields of `Frame` from the payload of a frame header."""
    bits, height, width, components = struct.unpack_from(">BHHB", data, start)
    mcu_width, mcu_height = _mcu(data[start:stop], components)
    if bits != 8 or not height or not width or components not in (1, 3, 4) or not mcu_width:
        return None
    return start + 1, width, height, components, mcu_width, mcu_height


def _mcu(payload: bytes | memoryview, components: int) -> tuple[int, int]:
    """Return width and height of an MCU from a frame header, (0, 0) if it is truncated or invalid."""
    return _mcu_of(bytes(payload[7 : 6 + 3 * components : 3]), components)


@lru_cache(maxsize=256)  # most files have one of a few samplings
def _mcu_of(factors: bytes, components: int) -> tuple[int, int]:
    if len(factors) != components or not components:
        return 0, 0
    if components == 1:
        return 8, 8  # a single component is coded block by block, whatever its sampling factors (T.81, A.2.2)
    across, down = max(factor >> 4 for factor in factors), max(factor & 15 for factor in factors)
    return (8 * across, 8 * down) if 1 <= across <= 4 and 1 <= down <= 4 else (0, 0)


Box = tuple[int, int, int, int]
"""Left, top, width, height, in pixels."""

_RESTART_CODES = bytes(range(0xD0, 0xD8))  # second bytes of consecutive restart markers
_MIN_WIDTH = 5  # in narrower images, libjpeg repeats chroma instead of interpolating it


@dataclass(frozen=True, slots=True)
class Slice:
    """A region of a JPEG as a separate JPEG."""

    data: bytearray
    box: Box


def slice_region(data: bytes | memoryview, frame: Frame, box: Box) -> Slice | None:
    """Copy the restart intervals that a region needs into a new JPEG.

    The decoded pixels inside ``box`` are identical to the pixels of the full image. Restart intervals do
    not depend on each other, and the slice has at least one extra pixel at each inner edge, which the
    interpolation of chroma needs.

    Returns:
        The slice; None if it would be the whole image, or if restart markers are missing or not in
        sequence.
    """
    if frame.columns == 0:
        return None
    rows = -(-frame.height // frame.mcu_height)
    grid = _needed_intervals(frame, rows, box)
    left, right, top, bottom = grid
    if (right - left) * (bottom - top) == frame.columns * rows:
        return None
    ends = _interval_ends(data, frame, frame.columns * rows)
    if ends is None:
        return None
    return Slice(_join_intervals(data, frame, ends, grid), _grid_to_box(frame, grid))


def _needed_intervals(frame: Frame, rows: int, box: Box) -> tuple[int, int, int, int]:
    """Return the restart intervals that a box needs.

    The result (left, right, top, bottom) counts columns of intervals and rows of MCUs.
    """
    left, top, width, height = box
    interval_width, row_height = frame.restart * frame.mcu_width, frame.mcu_height
    # A pixel depends on its neighbours only where chroma is subsampled.
    margin_x, margin_y = frame.mcu_width > 8, frame.mcu_height > 8
    first = max(left - margin_x, 0) // interval_width
    last = min(-(-(left + width + margin_x) // interval_width), frame.columns)
    if frame.width - first * interval_width < _MIN_WIDTH and first:
        first -= 1
    return first, last, max(top - margin_y, 0) // row_height, min(-(-(top + height + margin_y) // row_height), rows)


def _grid_to_box(frame: Frame, grid: tuple[int, int, int, int]) -> Box:
    """Return the pixels of restart intervals that are given as in `_needed_intervals`."""
    left, right, top, bottom = grid
    interval_width, row_height = frame.restart * frame.mcu_width, frame.mcu_height
    x, y = left * interval_width, top * row_height
    return x, y, min(right * interval_width, frame.width) - x, min(bottom * row_height, frame.height) - y


def _interval_ends(data: bytes | memoryview, frame: Frame, count: int) -> NDArray[np.int64] | None:
    """Return the byte offset of the marker after each restart interval, int64 [count].

    None if a marker is missing or out of sequence.
    """
    scan = np.frombuffer(data, np.uint8, offset=frame.scan_at)
    if 2 * count > len(scan):
        return None  # a damaged header may claim so many intervals that the code below would exhaust the memory
    at = np.flatnonzero(scan[:-1] == 0xFF)
    codes = scan[at + 1]
    markers = np.flatnonzero(codes)[:count]  # FF 00 is a coded FF
    if codes[markers].tobytes() != (_RESTART_CODES * (count // 8 + 1))[: count - 1] + b"\xd9":
        return None
    return at[markers] + frame.scan_at


def _join_intervals(
    data: bytes | memoryview, frame: Frame, ends: NDArray[np.int64], grid: tuple[int, int, int, int]
) -> bytearray:
    left, right, top, bottom = grid
    first = np.arange(top, bottom) * frame.columns + left  # [rows], index of the first interval of each row
    start = np.where(first > 0, ends[first - 1] + 2, frame.scan_at)
    stop = ends[first + (right - left - 1)] + 2
    view = memoryview(data)
    parts = [view[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True)]
    out = bytearray().join([view[: frame.scan_at], *parts])
    # Each interval keeps the marker after it, renumbered. `codes`: [rows, intervals], offsets of
    # marker codes in `out`.
    shift = frame.scan_at + np.cumsum(stop - start) - stop
    codes = ends[first[:, None] + np.arange(right - left)] + (shift + 1)[:, None]
    cycle = np.frombuffer(_RESTART_CODES * (codes.size // 8 + 1), np.uint8)
    np.frombuffer(out, np.uint8)[codes.ravel()] = cycle[: codes.size]
    out[-1] = 0xD9
    _, _, width, height = _grid_to_box(frame, grid)
    struct.pack_into(">HH", out, frame.height_at, height, width)
    return out
