"""JPEG headers and slices compared with Pillow and libjpeg-turbo; truncated and damaged files."""

from __future__ import annotations

import io
import itertools
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode
from PIL import Image

from wds_tools.format.jpeg import (
    baseline_frame,
    exif_orientation,
    needed_segments,
    parse_header,
    slice_region,
    with_segments,
)

IMAGES = Path(__file__).parents[2] / "shards" / "sample" / "images"
SAMPLES = sorted(IMAGES.rglob("*.jpg"))


def noise(width: int = 37, height: int = 23, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, len(mode)), np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def jpeg(image: Image.Image | None = None, **options: object) -> bytes:
    return encode(image or noise(), "JPEG", **options)


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


def test_the_sample_photographs_have_all_codings() -> None:
    assert len(SAMPLES) > 300
    headers = [parse_header(path.read_bytes()) for path in SAMPLES]
    assert {header.progressive for header in headers} == {True, False}
    assert {header.components for header in headers} == {1, 3}


def test_the_header_of_every_sample_photograph_agrees_with_pillow() -> None:
    for path in SAMPLES:
        assert_agrees_with_pillow(path.read_bytes())


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_the_header_of_every_mode_agrees_with_pillow(mode: str) -> None:
    for progressive, size in itertools.product((False, True), ((1, 1), (37, 23), (8, 1000))):
        assert_agrees_with_pillow(jpeg(noise(*size, mode), progressive=progressive))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 2}, {"optimize": True}])
def test_the_header_of_every_encoder_setting_agrees_with_pillow_and_turbo(
    subsampling: str, options: dict[str, object]
) -> None:
    data = jpeg(subsampling=subsampling, icc_profile=b"p" * 70_000, comment=b"hello", dpi=(72, 72), **options)
    assert_agrees_with_pillow(data)
    assert simplejpeg.decode_jpeg_header(data)[:2] == (parse_header(data).height, parse_header(data).width)


def test_the_orientation_is_read_in_both_byte_orders() -> None:
    for orientation, order, before in itertools.product(range(1, 9), "<>", (0, 1, 30)):
        assert exif_orientation(exif(orientation, order=order, before=before)) == orientation, (order, before)
        data = jpeg(exif=exif(orientation, order=order, before=before))
        assert parse_header(data).orientation == orientation, (order, before)
        assert_agrees_with_pillow(data)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_out_of_range_is_ignored(orientation: int) -> None:
    assert exif_orientation(exif(orientation)) is None
    assert parse_header(jpeg(exif=exif(orientation))).orientation == 1


def test_an_orientation_of_another_type_is_ignored() -> None:
    assert exif_orientation(exif(6, kind=7)) is None


def test_a_tag_after_the_stated_number_of_tags_is_ignored() -> None:
    payload = bytearray(exif(6, before=20))
    payload[14:16] = struct.pack("<H", 20)  # the directory has 21 tags
    assert exif_orientation(payload) is None


@pytest.mark.parametrize("marker", sorted({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}))
def test_every_frame_marker_is_recognized(marker: int) -> None:
    header = parse_header(jpeg().replace(b"\xff\xc0", bytes([0xFF, marker]), 1))
    assert (header.width, header.height, header.components) == (37, 23, 3)
    assert header.progressive == (marker in (0xC2, 0xC6, 0xCA, 0xCE))


@pytest.mark.parametrize("marker", [0xC4, 0xC8, 0xCC, 0xFE, 0xEF])
def test_other_segments_are_not_mistaken_for_a_frame(marker: int) -> None:
    data = jpeg()
    position = data.index(b"\xff\xda")  # after the frame, where a second one would replace it
    other = segment(marker, struct.pack(">BHHB", 12, 1, 1, 1))
    assert parse_header(data[:position] + other + data[position:]) == parse_header(data)


def test_the_first_exif_segment_is_used_as_in_pillow() -> None:
    data = insert(jpeg(), segment(0xE1, exif(6)), segment(0xE1, exif(3)))
    assert parse_header(data).orientation == 6
    assert_agrees_with_pillow(data)


def test_an_xmp_segment_before_exif_is_skipped() -> None:
    data = insert(jpeg(), segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"), segment(0xE1, exif(6)))
    assert parse_header(data).orientation == 6


@given(st.integers(0, 60), st.sampled_from("<>"))
def test_exif_truncated_at_any_byte_is_ignored_unless_the_orientation_is_complete(length: int, order: str) -> None:
    payload = exif(6, order=order)
    assert exif_orientation(payload[:length]) in ((6,) if length >= len(payload) - 4 else (None,))


@given(st.binary(max_size=64))
def test_any_exif_data_gives_no_orientation_or_a_valid_one(payload: bytes) -> None:
    assert exif_orientation(payload) in (None, *range(1, 9))
    assert exif_orientation(b"Exif\0\0II*\0" + payload) in (None, *range(1, 9))


def test_fill_bytes_between_segments_are_skipped() -> None:
    data = jpeg()
    assert parse_header(data[:2] + b"\xff\xff\xff" + data[2:]) == parse_header(data)


def test_a_memoryview_gives_the_same_header_as_bytes() -> None:
    assert parse_header(memoryview(jpeg())) == parse_header(jpeg())


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"exif": exif(6)}, {"restart_marker_blocks": 1}])
def test_a_file_truncated_at_any_byte_is_refused(options: dict[str, object]) -> None:
    data = jpeg(**options)
    for length in range(len(data)):
        with pytest.raises(ValueError, match="JPEG"):
            parse_header(data[:length])


def test_a_photograph_truncated_at_any_byte_is_refused() -> None:
    data = min((path.read_bytes() for path in SAMPLES), key=len)
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match="JPEG"):
            parse_header(data[:length])


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=5))
def test_a_damaged_header_raises_nothing_but_a_value_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(jpeg(exif=exif(6), progressive=True))
    for position, value in changes:
        data[position % len(data)] = value
    try:
        header = parse_header(data)
    except ValueError:
        return
    assert header.width > 0
    assert header.height > 0
    assert 1 <= header.orientation <= 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it starts with b''"),
        (b"\x89PNG\r\n\x1a\n", "not a JPEG"),
        (b"\xff\xd8\xff\xd9", "ends without a scan"),
        (b"\xff\xd8\x00\x00\x00", "damaged at byte 2: a marker was expected"),
        (b"\xff\xd8" + segment(0xC0, b"\x08\0"), "frame header is truncated"),
        (b"\xff\xd8" + segment(0xDA, b"abc") + b"\xff\xd9", "no frame header with a width and a height"),
        (b"\xff\xd8" + segment(0xC0, b"\x08\0\0\0\x09\x03") + segment(0xDA, b"") + b"\xff\xd9", "no frame header"),
        (b"\xff\xd8\xff\xe0\x00\x01" + bytes(9), "a segment claims 1 bytes"),
        (b"\xff\xd8\xff\xe0\xff\xff" + bytes(9), "a segment claims 65535 bytes"),
    ],
)  # fmt: skip
def test_the_error_states_what_is_wrong_with_a_file(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_header(data)


def pixels_of(data: bytes | bytearray) -> np.ndarray:
    """Decode with libjpeg-turbo's default, which interpolates chroma."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def check_slice(data: bytes, box: tuple[int, int, int, int], full: np.ndarray | None = None) -> bool:
    """Check that a slice has the pixels of the full image; return False if the image cannot be sliced there."""
    frame = baseline_frame(data)
    assert frame is not None
    part = slice_region(memoryview(data), frame, box)
    if part is None:
        return False
    left, top, width, height = box
    x, y, part_width, part_height = part.box
    assert x <= left
    assert y <= top
    assert left + width <= x + part_width
    assert top + height <= y + part_height
    assert len(part.data) <= len(data)
    got = pixels_of(part.data)
    assert got.shape[:2] == (part_height, part_width)
    full = pixels_of(data) if full is None else full
    expected = full[top : top + height, left : left + width]
    assert (got[top - y : top - y + height, left - x : left - x + width] == expected).all(), (box, part.box)
    return True


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def jpegs_and_boxes(draw: st.DrawFn) -> tuple[bytes, tuple[int, int, int, int]]:
    width, height = draw(st.integers(1, 120)), draw(st.integers(1, 90))
    mode, subsampling = draw(st.sampled_from(["L", "RGB", "CMYK"])), draw(st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]))
    plain = jpeg(noise(width, height, mode), subsampling=subsampling)
    mcu = parse_header(plain).mcu_width
    blocks = draw(st.sampled_from(divisors(-(-width // mcu))))
    data = jpeg(noise(width, height, mode), subsampling=subsampling, restart_marker_blocks=blocks)
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    box = left, top, draw(st.integers(1, width - left)), draw(st.integers(1, height - top))
    return data, box


@given(jpegs_and_boxes())
def test_any_slice_of_any_jpeg_with_restart_markers_has_the_pixels_of_the_full_image(
    case: tuple[bytes, tuple[int, int, int, int]],
) -> None:
    check_slice(*case)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("width", [16 * 6 + 1, 16 * 6 + 3, 16 * 6 + 5, 16 * 7])
def test_every_slice_at_the_right_edge_has_the_pixels_of_the_full_image(subsampling: str, width: int) -> None:
    data = jpeg(noise(width, 40), subsampling=subsampling, restart_marker_blocks=1)
    full = pixels_of(data)
    for left in range(width - 40, width):
        assert check_slice(data, (left, 17, width - left, 15), full)


def test_every_slice_for_one_pixel_has_the_pixel_of_the_full_image() -> None:
    data = jpeg(noise(40, 24), subsampling="4:2:0", restart_marker_blocks=1)  # 3 x 2 MCUs
    full = pixels_of(data)
    assert all(check_slice(data, (x, y, 1, 1), full) for x in range(40) for y in range(24))


@pytest.mark.parametrize("sampling", ["1x2", "4x1", "2x1", "1x4", "4x2", "3x1", "2x2,1x2,2x1", "1x1,2x2,1x1", "1x1"])
@pytest.mark.parametrize("size", [(131, 75), (130, 64)])
@pytest.mark.torture_except(
    "size0-1x2",
    "size0-4x1",
    "size0-2x1",
    "size0-1x4",
    "size1-4x2",
    "size1-3x1",
    "size1-2x2,1x2,2x1",
    "size1-1x1,2x2,1x1",
    "size1-1x1",
)
def test_slices_with_unusual_sampling_factors_have_the_pixels_of_the_full_image(
    sampling: str, size: tuple[int, int]
) -> None:
    image = noise(*size)
    ppm = b"P6 %d %d 255\n" % size + image.tobytes()
    plain = subprocess.run(["cjpeg", "-sample", sampling], input=ppm, capture_output=True, check=True).stdout
    row = -(-size[0] // parse_header(plain).mcu_width)
    for blocks in divisors(row):
        command = ["cjpeg", "-quality", "90", "-sample", sampling, "-restart", f"{blocks}B"]
        data = subprocess.run(command, input=ppm, capture_output=True, check=True).stdout
        full, slices = pixels_of(data), 0
        rng = np.random.default_rng(0)
        for left, top in zip(rng.integers(0, size[0], 20).tolist(), rng.integers(0, size[1], 20).tolist(), strict=True):
            box = left, top, min(33, size[0] - left), min(17, size[1] - top)
            slices += check_slice(data, box, full)
        assert slices


def test_a_slice_omits_the_intervals_around_the_box() -> None:
    data = jpeg(noise(256, 256), subsampling="4:4:4", restart_marker_blocks=4)
    frame = baseline_frame(data)
    assert frame is not None
    part = slice_region(data, frame, (100, 100, 20, 20))
    assert part is not None
    assert part.box == (96, 96, 32, 24)
    assert len(part.data) < len(data) / 50
    assert parse_header(part.data).width == 32


def test_the_frame_gives_the_restart_intervals_per_row() -> None:
    frame = baseline_frame(jpeg(noise(100, 50), subsampling="4:2:0", restart_marker_blocks=7))
    assert frame is not None
    assert (frame.width, frame.height, frame.mcu_width, frame.mcu_height) == (100, 50, 16, 16)
    assert (frame.restart, frame.columns) == (7, 1)
    for blocks, columns in ((1, 7), (2, 0), (14, 0), (0, 0)):
        data = jpeg(noise(100, 50), subsampling="4:2:0", restart_marker_blocks=blocks)
        assert baseline_frame(data).columns == columns  # type: ignore[union-attr]


def test_the_header_shows_whether_there_is_a_restart_interval() -> None:
    assert not parse_header(jpeg()).has_restart
    assert parse_header(jpeg(restart_marker_blocks=1)).has_restart
    assert parse_header(jpeg(progressive=True, restart_marker_blocks=1)).has_restart


@given(st.lists(st.tuples(st.integers(2, 700), st.integers(0, 255)), max_size=3), st.booleans())
def test_a_header_without_a_restart_interval_has_no_frame_with_one(
    changes: list[tuple[int, int]], with_restart: bool
) -> None:
    data = bytearray(jpeg(restart_marker_blocks=1) if with_restart else jpeg())
    for position, value in changes:
        data[position] = value
    try:
        has_restart = parse_header(bytes(data)).has_restart
    except ValueError:
        return
    frame = baseline_frame(bytes(data))
    assert has_restart or frame is None or frame.restart == 0


def test_only_an_end_of_image_marker_after_the_scan_header_counts() -> None:
    data = jpeg()
    assert parse_header(data + bytes(500)) == parse_header(data)
    scan = data.index(b"\xff\xda")
    with pytest.raises(ValueError, match="no end-of-image marker"):
        parse_header(insert(data, segment(0xFE, b"\xff\xd9"))[: scan + 30])
    with pytest.raises(ValueError, match="no end-of-image marker"):
        parse_header(data[:scan] + segment(0xDA, b"\xff\xd9"))


def test_a_progressive_a_damaged_and_a_truncated_jpeg_cannot_be_sliced() -> None:
    assert baseline_frame(jpeg(progressive=True)) is None
    for data in (b"", b"\xff\xd8", b"\xff\xd8\xff\xc0" + bytes(15), b"\xff\xd8\xff\xe0\x00\x00" + bytes(40)):
        assert baseline_frame(data) is None
    for data in (jpeg(), jpeg(restart_marker_blocks=1)):
        for length in range(len(data)):
            frame = baseline_frame(data[:length])
            assert frame is None or slice_region(data[:length], frame, (0, 0, 9, 9)) is None


def test_a_jpeg_with_restart_markers_out_of_sequence_is_not_sliced() -> None:
    data = jpeg(noise(64, 64), subsampling="4:4:4", restart_marker_blocks=2)
    frame = baseline_frame(data)
    assert frame is not None
    box = (8, 8, 8, 8)
    assert slice_region(data, frame, box) is not None
    third = data.index(b"\xff\xd2", frame.scan_at)
    for odd in (
        data[:third] + b"\xff\xd3" + data[third + 2 :],  # another number
        data[:third] + data[third + 2 :],  # one marker less
        data[:third] + b"\xff\xd2" + data[third:],  # one marker more
        data[:third] + b"\xff\xda" + data[third:],  # the start of another scan
        data[:third] + b"\xff\xff" + data[third:],
        data[:-2],
    ):
        assert slice_region(odd, frame, box) is None
    assert slice_region(data + b"trailer \xff\xd0", frame, box) is not None


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=5), st.booleans())
def test_slicing_a_damaged_jpeg_raises_no_error(changes: list[tuple[int, int]], in_header: bool) -> None:
    data = bytearray(jpeg(noise(60, 40), restart_marker_blocks=1))
    scan_at = baseline_frame(data).scan_at  # type: ignore[union-attr]
    for position, value in changes:
        data[position % (scan_at if in_header else len(data))] = value
    frame = baseline_frame(data)
    if frame is not None and frame.width > 20 and frame.height > 20:
        slice_region(data, frame, (10, 10, 10, 10))


def test_the_header_gives_the_size_of_an_mcu_for_every_coding() -> None:
    for progressive in (False, True):
        for subsampling, size in (("4:4:4", (8, 8)), ("4:2:2", (16, 8)), ("4:2:0", (16, 16))):
            header = parse_header(jpeg(subsampling=subsampling, progressive=progressive))
            assert (header.mcu_width, header.mcu_height) == size
        assert parse_header(jpeg(noise(mode="L"), progressive=progressive)).mcu_width == 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_copy_keeps_orientation_and_profile_and_no_other_metadata(orientation: int) -> None:
    profile = bytes(range(256)) * 400  # two segments
    data = jpeg(exif=exif(orientation), icc_profile=profile, comment=b"hello", dpi=(72, 72))
    segments = needed_segments(data)
    bare = jpeg()
    copy = with_segments(bare, segments)
    with Image.open(io.BytesIO(copy)) as image:
        assert image.getexif().get(0x0112, 1) == orientation
        assert image.info["icc_profile"] == profile
        assert "comment" not in image.info
    assert parse_header(copy).orientation == orientation
    assert (pixels_of(copy) == pixels_of(bare)).all()
    assert copy[2:4] == b"\xff\xe0"  # JFIF is still the first segment
    assert len(segments) - len(profile) < 80


def test_a_jpeg_without_orientation_and_profile_has_no_segments_to_keep() -> None:
    assert needed_segments(jpeg(exif=exif(1))) == b""
    assert with_segments(jpeg(), b"") == jpeg()
