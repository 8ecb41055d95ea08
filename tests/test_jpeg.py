"""What a JPEG's header says, against Pillow and libjpeg-turbo; cut and damaged files."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wds_tools.jpeg import exif_orientation, parse_header

IMAGES = Path(__file__).parents[1] / "shards" / "sample" / "images"
SAMPLES = sorted(IMAGES.rglob("*.jpg"))
QUICK = settings(deadline=None)


def noise(width: int = 37, height: int = 23, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, len(mode)), np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def jpeg(image: Image.Image | None = None, **options: object) -> bytes:
    target = io.BytesIO()
    (image or noise()).save(target, "JPEG", **options)
    return target.getvalue()


def exif(orientation: int, *, order: str = "<", kind: int = 3, before: int = 1) -> bytes:
    """Build an Exif payload whose first folder holds some other tags, then the orientation."""
    tag = struct.pack(order + "HHIH2x", 0x0112, kind, 1, orientation)
    others = b"".join(struct.pack(order + "HHIH2x", 0x9300 + i, 3, 1, 99) for i in range(before))
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return b"Exif\0\0" + magic + struct.pack(order + "IH", 8, before + 1) + others + tag + bytes(4)


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def insert(data: bytes, *segments: bytes) -> bytes:
    return data[:2] + b"".join(segments) + data[2:]


def assert_agrees_with_pillow(data: bytes) -> None:
    header = parse_header(data)
    with Image.open(io.BytesIO(data)) as image:
        assert (header.width, header.height) == image.size
        assert {1: "L", 3: "RGB", 4: "CMYK"}[header.components] == image.mode
        assert header.progressive == bool(image.info.get("progressive"))
        assert header.orientation == image.getexif().get(0x0112, 1)
        assert header.bits == 8


def test_the_sample_holds_photographs_of_every_kind() -> None:
    assert len(SAMPLES) > 300
    headers = [parse_header(path.read_bytes()) for path in SAMPLES]
    assert {header.progressive for header in headers} == {True, False}
    assert {header.components for header in headers} == {1, 3}


def test_every_photograph_of_the_sample_reads_as_pillow_reads_it() -> None:
    for path in SAMPLES:
        assert_agrees_with_pillow(path.read_bytes())


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (37, 23), (8, 1000)])
def test_every_mode_reads_as_pillow_reads_it(mode: str, progressive: bool, size: tuple[int, int]) -> None:
    assert_agrees_with_pillow(jpeg(noise(*size, mode), progressive=progressive))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 2}, {"optimize": True}])
def test_every_encoder_setting_reads_as_pillow_and_turbo_read_it(subsampling: str, options: dict[str, object]) -> None:
    data = jpeg(subsampling=subsampling, icc_profile=b"p" * 70_000, comment=b"hello", dpi=(72, 72), **options)
    assert_agrees_with_pillow(data)
    assert simplejpeg.decode_jpeg_header(data)[:2] == (parse_header(data).height, parse_header(data).width)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_orientation_reads_in_both_byte_orders(orientation: int, order: str, before: int) -> None:
    assert exif_orientation(exif(orientation, order=order, before=before)) == orientation
    data = jpeg(exif=exif(orientation, order=order, before=before))
    assert parse_header(data).orientation == orientation
    assert_agrees_with_pillow(data)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_none(orientation: int) -> None:
    assert exif_orientation(exif(orientation)) is None
    assert parse_header(jpeg(exif=exif(orientation))).orientation == 1


def test_an_orientation_of_another_type_is_ignored() -> None:
    assert exif_orientation(exif(6, kind=7)) is None


def test_a_tag_behind_the_last_one_that_is_counted_is_ignored() -> None:
    payload = bytearray(exif(6, before=20))
    payload[14:16] = struct.pack("<H", 20)  # there are 21
    assert exif_orientation(payload) is None


@pytest.mark.parametrize("marker", sorted({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}))
def test_every_kind_of_frame_is_one(marker: int) -> None:
    header = parse_header(jpeg().replace(b"\xff\xc0", bytes([0xFF, marker]), 1))
    assert (header.width, header.height, header.components) == (37, 23, 3)
    assert header.progressive == (marker in (0xC2, 0xC6, 0xCA, 0xCE))


@pytest.mark.parametrize("marker", [0xC4, 0xC8, 0xCC, 0xFE, 0xEF])
def test_other_segments_are_no_frame(marker: int) -> None:
    data = jpeg()
    place = data.index(b"\xff\xda")  # behind the frame, where a second one would win
    other = segment(marker, struct.pack(">BHHB", 12, 1, 1, 1))
    assert parse_header(data[:place] + other + data[place:]) == parse_header(data)


def test_the_first_exif_counts_as_in_pillow() -> None:
    data = insert(jpeg(), segment(0xE1, exif(6)), segment(0xE1, exif(3)))
    assert parse_header(data).orientation == 6
    assert_agrees_with_pillow(data)


def test_xmp_in_the_same_kind_of_segment_is_skipped() -> None:
    data = insert(jpeg(), segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"), segment(0xE1, exif(6)))
    assert parse_header(data).orientation == 6


@QUICK
@given(st.integers(0, 60), st.sampled_from("<>"))
def test_exif_cut_anywhere_is_ignored_or_right(length: int, order: str) -> None:
    whole = exif(6, order=order)
    assert exif_orientation(whole[:length]) in ((6,) if length >= len(whole) - 4 else (None,))


@QUICK
@given(st.binary(max_size=64))
def test_any_exif_is_ignored_or_an_orientation(payload: bytes) -> None:
    assert exif_orientation(payload) in (None, *range(1, 9))
    assert exif_orientation(b"Exif\0\0II*\0" + payload) in (None, *range(1, 9))


def test_fill_bytes_between_segments_are_skipped() -> None:
    data = jpeg()
    assert parse_header(data[:2] + b"\xff\xff\xff" + data[2:]) == parse_header(data)


def test_a_memoryview_reads_as_bytes_do() -> None:
    assert parse_header(memoryview(jpeg())) == parse_header(jpeg())


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"exif": exif(6)}, {"restart_marker_blocks": 1}])
def test_a_file_cut_anywhere_is_refused(options: dict[str, object]) -> None:
    data = jpeg(**options)
    for length in range(len(data)):
        with pytest.raises(ValueError, match="JPEG"):
            parse_header(data[:length])


def test_a_photograph_cut_anywhere_is_refused() -> None:
    data = min((path.read_bytes() for path in SAMPLES), key=len)
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match="JPEG"):
            parse_header(data[:length])


@QUICK
@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=5))
def test_a_damaged_header_raises_nothing_but_a_value_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(jpeg(exif=exif(6), progressive=True))
    for where, value in changes:
        data[where % len(data)] = value
    try:
        header = parse_header(data)
    except ValueError:
        return
    assert header.width > 0
    assert header.height > 0
    assert 1 <= header.orientation <= 8


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it starts with b''"),
        (b"\x89PNG\r\n\x1a\n", "not a JPEG"),
        (b"\xff\xd8\xff\xd9", "ends without a scan"),
        (b"\xff\xd8\x00\x00\x00", "damaged at byte 2: a marker was expected"),
        (b"\xff\xd8" + segment(0xC0, b"\x08\0"), "frame header is cut"),
        (b"\xff\xd8" + segment(0xDA, b"abc") + b"\xff\xd9", "no frame header with a width and a height"),
        (b"\xff\xd8" + segment(0xC0, b"\x08\0\0\0\x09\x03") + segment(0xDA, b"") + b"\xff\xd9", "no frame header"),
        (b"\xff\xd8\xff\xe0\x00\x01" + bytes(9), "a segment claims 1 bytes"),
        (b"\xff\xd8\xff\xe0\xff\xff" + bytes(9), "a segment claims 65535 bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_header(data)
