"""What a JPEG's header says, against Pillow and libjpeg-turbo; cut and damaged files."""

from __future__ import annotations

import io
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
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


def pixels_of(data: bytes | bytearray) -> np.ndarray:
    """Decode with libjpeg-turbo's default, which interpolates chroma."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def same_slice(data: bytes, box: tuple[int, int, int, int], whole: np.ndarray | None = None) -> bool:
    """Cut a part out, compare its pixels with those of the whole file to the bit; tell whether there was a cut."""
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
    whole = pixels_of(data) if whole is None else whole
    expected = whole[top : top + height, left : left + width]
    assert (got[top - y : top - y + height, left - x : left - x + width] == expected).all(), (box, part.box)
    return True


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def sliceable(draw: st.DrawFn) -> tuple[bytes, tuple[int, int, int, int]]:
    width, height = draw(st.integers(1, 120)), draw(st.integers(1, 90))
    mode, subsampling = draw(st.sampled_from(["L", "RGB", "CMYK"])), draw(st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]))
    plain = jpeg(noise(width, height, mode), subsampling=subsampling)
    mcu = parse_header(plain).mcu_width
    blocks = draw(st.sampled_from(divisors(-(-width // mcu))))
    data = jpeg(noise(width, height, mode), subsampling=subsampling, restart_marker_blocks=blocks)
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    box = left, top, draw(st.integers(1, width - left)), draw(st.integers(1, height - top))
    return data, box


@settings(deadline=None, max_examples=300)
@given(sliceable())
def test_any_part_of_any_jpeg_with_restart_markers_has_the_pixels_of_the_whole(
    case: tuple[bytes, tuple[int, int, int, int]],
) -> None:
    same_slice(*case)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("width", [16 * 6 + 1, 16 * 6 + 3, 16 * 6 + 5, 16 * 7])
def test_every_box_at_the_right_edge_has_the_pixels_of_the_whole(subsampling: str, width: int) -> None:
    data = jpeg(noise(width, 40), subsampling=subsampling, restart_marker_blocks=1)
    whole = pixels_of(data)
    for left in range(width - 40, width):
        assert same_slice(data, (left, 17, width - left, 15), whole)


def test_every_box_of_one_pixel_has_the_pixel_of_the_whole() -> None:
    data = jpeg(noise(64, 48), subsampling="4:2:0", restart_marker_blocks=1)
    whole = pixels_of(data)
    assert all(same_slice(data, (x, y, 1, 1), whole) for x in range(64) for y in range(48))


@pytest.mark.parametrize("sampling", ["1x2", "4x1", "2x1", "1x4", "4x2", "3x1", "2x2,1x2,2x1", "1x1,2x2,1x1", "1x1"])
@pytest.mark.parametrize("size", [(131, 75), (130, 64)])
def test_odd_samplings_are_cut_to_the_bit(sampling: str, size: tuple[int, int]) -> None:
    image = noise(*size)
    ppm = b"P6 %d %d 255\n" % size + image.tobytes()
    plain = subprocess.run(["cjpeg", "-sample", sampling], input=ppm, capture_output=True, check=True).stdout
    row = -(-size[0] // parse_header(plain).mcu_width)
    for blocks in divisors(row):
        command = ["cjpeg", "-quality", "90", "-sample", sampling, "-restart", f"{blocks}B"]
        data = subprocess.run(command, input=ppm, capture_output=True, check=True).stdout
        whole, cuts = pixels_of(data), 0
        rng = np.random.default_rng(0)
        for left, top in zip(rng.integers(0, size[0], 20).tolist(), rng.integers(0, size[1], 20).tolist(), strict=True):
            box = left, top, min(33, size[0] - left), min(17, size[1] - top)
            cuts += same_slice(data, box, whole)
        assert cuts


def test_a_cut_leaves_out_what_is_above_below_and_beside() -> None:
    data = jpeg(noise(256, 256), subsampling="4:4:4", restart_marker_blocks=4)
    frame = baseline_frame(data)
    assert frame is not None
    part = slice_region(data, frame, (100, 100, 20, 20))
    assert part is not None
    assert part.box == (96, 96, 32, 24)
    assert len(part.data) < len(data) / 50
    assert parse_header(part.data).width == 32


def test_the_frame_says_where_a_jpeg_can_be_cut() -> None:
    frame = baseline_frame(jpeg(noise(100, 50), subsampling="4:2:0", restart_marker_blocks=7))
    assert frame is not None
    assert (frame.width, frame.height, frame.mcu_width, frame.mcu_height) == (100, 50, 16, 16)
    assert (frame.restart, frame.columns) == (7, 1)
    for blocks, columns in ((1, 7), (2, 0), (14, 0), (0, 0)):
        data = jpeg(noise(100, 50), subsampling="4:2:0", restart_marker_blocks=blocks)
        assert baseline_frame(data).columns == columns  # type: ignore[union-attr]


def test_a_restart_interval_is_told_by_the_header() -> None:
    assert not parse_header(jpeg()).has_restart
    assert parse_header(jpeg(restart_marker_blocks=1)).has_restart
    assert parse_header(jpeg(progressive=True, restart_marker_blocks=1)).has_restart


@settings(QUICK, max_examples=300)
@given(st.lists(st.tuples(st.integers(2, 700), st.integers(0, 255)), max_size=3), st.booleans())
def test_a_header_without_a_restart_interval_has_no_frame_with_one(changes: list[tuple[int, int]], there: bool) -> None:
    data = bytearray(jpeg(restart_marker_blocks=1) if there else jpeg())
    for place, value in changes:
        data[place] = value
    try:
        told = parse_header(bytes(data)).has_restart
    except ValueError:
        return
    frame = baseline_frame(bytes(data))
    assert told or frame is None or frame.restart == 0


def test_an_end_is_found_behind_the_scan_only() -> None:
    data = jpeg()
    assert parse_header(data + bytes(500)) == parse_header(data)
    scan = data.index(b"\xff\xda")
    with pytest.raises(ValueError, match="no end-of-image marker"):
        parse_header(insert(data, segment(0xFE, b"\xff\xd9"))[: scan + 30])
    with pytest.raises(ValueError, match="no end-of-image marker"):
        parse_header(data[:scan] + segment(0xDA, b"\xff\xd9"))


def test_there_is_no_frame_to_cut_in_a_progressive_jpeg_or_in_what_is_none() -> None:
    assert baseline_frame(jpeg(progressive=True)) is None
    for data in (b"", b"\xff\xd8", b"\xff\xd8\xff\xc0" + bytes(15), b"\xff\xd8\xff\xe0\x00\x00" + bytes(40)):
        assert baseline_frame(data) is None
    for data in (jpeg(), jpeg(restart_marker_blocks=1)):
        for length in range(len(data)):
            frame = baseline_frame(data[:length])
            assert frame is None or slice_region(data[:length], frame, (0, 0, 9, 9)) is None


def test_restart_markers_that_are_not_the_ones_due_are_not_trusted() -> None:
    data = jpeg(noise(64, 64), subsampling="4:4:4", restart_marker_blocks=2)
    frame = baseline_frame(data)
    assert frame is not None
    box = (8, 8, 8, 8)
    assert slice_region(data, frame, box) is not None
    third = data.index(b"\xff\xd2", frame.scan_at)
    for odd in (
        data[:third] + b"\xff\xd3" + data[third + 2 :],  # another number
        data[:third] + data[third + 2 :],  # one less
        data[:third] + b"\xff\xd2" + data[third:],  # one more
        data[:third] + b"\xff\xda" + data[third:],  # another scan begins
        data[:third] + b"\xff\xff" + data[third:],
        data[:-2],
    ):
        assert slice_region(odd, frame, box) is None
    assert slice_region(data + b"trailer \xff\xd0", frame, box) is not None


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=5), st.booleans())
def test_a_damaged_jpeg_is_cut_or_not_but_never_an_error(changes: list[tuple[int, int]], in_header: bool) -> None:
    data = bytearray(jpeg(noise(60, 40), restart_marker_blocks=1))
    scan_at = baseline_frame(data).scan_at  # type: ignore[union-attr]
    for where, value in changes:
        data[where % (scan_at if in_header else len(data))] = value
    frame = baseline_frame(data)
    if frame is not None and frame.width > 20 and frame.height > 20:
        slice_region(data, frame, (10, 10, 10, 10))


def test_the_size_of_an_mcu_is_told_for_every_coding() -> None:
    for progressive in (False, True):
        for subsampling, size in (("4:4:4", (8, 8)), ("4:2:2", (16, 8)), ("4:2:0", (16, 16))):
            header = parse_header(jpeg(subsampling=subsampling, progressive=progressive))
            assert (header.mcu_width, header.mcu_height) == size
        assert parse_header(jpeg(noise(mode="L"), progressive=progressive)).mcu_width == 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_and_profile_survive_on_a_copy_and_nothing_else_does(orientation: int) -> None:
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
    assert copy[2:4] == b"\xff\xe0"  # JFIF stays first
    assert len(segments) - len(profile) < 80


def test_there_is_nothing_to_keep_of_a_plain_jpeg() -> None:
    assert needed_segments(jpeg(exif=exif(1))) == b""
    assert with_segments(jpeg(), b"") == jpeg()
