"""Decoding of all kinds of images to RGB compared with Pillow, and views compared with torchvision."""

import io

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from wds_tools.errors import DecodeError
from wds_tools.format.codecs import encode_npy
from wds_tools.format.image_header import probe
from wds_tools.format.jpeg import baseline_frame
from wds_tools.images.decode import decode_rgb, decode_stored, decode_top, orient, orient_box
from wds_tools.images.resize import render_region
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize
from wds_tools.order.keyed_random import uniform


def encode(image, kind, **options):
    out = io.BytesIO()
    image.save(out, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[kind], **options)
    return out.getvalue()


def decoded(data):
    info = probe(data)
    pixels = decode_rgb(memoryview(data), kind=info.kind, mode=info.mode, orientation=info.orientation)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (info.height, info.width, 3)  # the size that an index records
    return pixels


@pytest.fixture(scope="module")
def photo(photos):
    """A colour photograph."""
    return Image.open(sorted((photos / "coffee").glob("*.jpg"))[0]).convert("RGB")


@pytest.fixture(scope="module")
def sample_files(photos):
    return sorted(path for path in photos.rglob("*") if path.suffix in (".jpg", ".png"))[::5]


def test_every_sample_photograph_has_the_pixels_of_pillow(sample_files):
    for path in sample_files:
        expected = np.asarray(Image.open(path).convert("RGB")).astype(int)
        assert abs(decoded(path.read_bytes()) - expected).mean() <= 2, path


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}])
def test_jpegs_of_all_codings_have_the_pixels_of_pillow(photo, mode, options):
    data = encode(photo.convert(mode), "jpg", quality=90, **options)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert abs(decoded(data) - expected).mean() <= 2


def test_red_in_cmyk_becomes_red_in_rgb():
    data = encode(Image.new("CMYK", (32, 32), (0, 255, 255, 0)), "jpg", quality=95)
    assert abs(decoded(data).mean(axis=(0, 1)) - [255, 0, 0]).max() < 8


def test_a_palette_image_becomes_the_colours_of_its_palette(photo):
    palette = photo.quantize(16)
    assert (decoded(encode(palette, "png")) == np.asarray(palette.convert("RGB"))).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "RGB"])
def test_png_of_all_modes_has_the_pixels_of_pillow_without_alpha(photo, mode):
    image = photo.convert(mode)
    assert (decoded(encode(image, "png")) == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 80}])
def test_webp_has_the_pixels_of_pillow(photo, options):
    data = encode(photo, "webp", **options)
    assert (decoded(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied_like_in_pillow(photo, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo.crop((0, 0, 60, 40)), kind, exif=exif)
    from PIL import ImageOps

    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")).astype(int)
    assert abs(decoded(data) - expected).mean() <= 2


def test_orient_returns_an_array_that_torch_accepts():
    for orientation in range(2, 9):
        torch.from_numpy(orient(np.zeros((4, 6, 3), np.uint8), orientation))


def test_a_jpeg_with_extra_bytes_between_segments_is_decoded_by_pillow(photo):
    data = encode(photo, "jpg", quality=90)
    sos = data.index(b"\xff\xda")
    odd = data[:sos] + b"\x00\x00\x00" + data[sos:]
    pixels = decode_rgb(memoryview(odd), kind="jpg", mode="RGB", orientation=1)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert abs(pixels - expected).mean() <= 2


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_a_truncated_image_is_an_error_and_not_filled_with_grey(photo, kind):
    data = encode(photo, kind)
    for part in (0.1, 0.5, 0.9):
        with pytest.raises(DecodeError):
            decode_rgb(memoryview(data[: int(len(data) * part)]), kind=kind, mode="RGB", orientation=1)


def test_a_mask_keeps_its_class_numbers(photo):
    mask = photo.quantize(7)
    assert (decode_stored(memoryview(encode(mask, "png")))[:, :, 0] == np.asarray(mask)).all()
    grey = photo.convert("L")
    assert (decode_stored(memoryview(encode(grey, "png")))[:, :, 0] == np.asarray(grey)).all()
    assert decode_stored(memoryview(encode(photo, "png"))).shape[2] == 3


def crop(pixels, box):
    left, top, width, height = box
    return pixels[top : top + height, left : left + width]


def apply(pixels, view, position=0):
    """Return the regions and the pixels of one image."""
    u = uniform(4, np.array([position]), view.draws)
    regions = view.regions(np.array([pixels.shape[1]]), np.array([pixels.shape[0]]), u)
    needed = regions.needed()[0].tolist()
    return regions, render_region(crop(pixels, needed), regions, 0, needed)


def mean_difference(ours, theirs):
    return abs(ours.astype(int) - theirs.numpy().astype(int)).mean()


def test_random_resized_crop_has_the_pixels_of_torchvision(sample_files):
    view = RandomResizedCrop(96, flip=True)
    flips = 0
    for position, path in enumerate(sample_files):
        pixels = decoded(path.read_bytes())
        regions, ours = apply(pixels, view, position)
        left, top, w, h = regions.box[0].tolist()
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        theirs = v2.functional.resized_crop(image, top, left, h, w, [96, 96], antialias=True)
        if regions.flip[0]:
            flips += 1
            theirs = v2.functional.horizontal_flip(theirs)
        assert mean_difference(ours, theirs) <= 2, path
    assert 0 < flips < len(sample_files)


@pytest.mark.parametrize(
    ("view", "theirs"),
    [
        (CenterCrop(112, resize=128), v2.Compose([v2.Resize(128, antialias=True), v2.CenterCrop(112)])),
        (CenterCrop(112), v2.CenterCrop(112)),
        (CenterCrop((100, 140), resize=150), v2.Compose([v2.Resize(150, antialias=True), v2.CenterCrop((100, 140))])),
        (Resize((120, 90)), v2.Resize((120, 90), antialias=True)),
        (Resize(100), v2.Resize(100, antialias=True)),
    ],
)
def test_center_crop_and_resize_have_the_pixels_of_torchvision(sample_files, view, theirs):
    for path in sample_files[::4]:
        pixels = decoded(path.read_bytes())
        _, ours = apply(pixels, view)
        expected = theirs(torch.from_numpy(pixels.copy()).permute(2, 0, 1))
        assert ours.shape == tuple(expected.shape)
        assert mean_difference(ours, expected) <= 2, path


@example(2, 7, 3, 1, 1, 0)  # the crop of the resized image is as wide as the original
@given(
    st.integers(1, 200),
    st.integers(1, 200),
    st.integers(1, 120),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
)
def test_a_centre_crop_has_the_pixels_of_a_full_resize(width, height, resize, crop_height, crop_width, seed):
    view = CenterCrop((min(crop_height, resize), min(crop_width, resize)), resize=resize)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    regions, ours = apply(pixels, view)
    (resized_h, resized_w), (y, x) = regions.resize[0].tolist(), regions.corner[0].tolist()
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    full = torch.nn.functional.interpolate(image, size=(resized_h, resized_w), mode="bilinear", antialias=True)[0]
    h, w = view.shape
    assert (torch.from_numpy(ours) == full[:, y : y + h, x : x + w]).all()


def test_a_centre_crop_needs_little_more_than_its_own_pixels():
    view = CenterCrop(224, resize=256)
    regions = view.regions(np.array([500, 4000]), np.array([375, 3000]), np.zeros((2, 0)))
    left, top, width, height = regions.needed().T
    assert (width * height / np.array([500 * 375, 4000 * 3000]) < 0.6).all()
    assert (left > 0).all()
    assert (top > 0).all()


def test_render_region_writes_only_into_the_given_array(photo):
    pixels = np.asarray(photo)
    regions, expected = apply(pixels, RandomResizedCrop(32))
    batch = np.zeros((2, 3, 32, 32), np.uint8)
    needed = regions.needed()[0].tolist()
    render_region(crop(pixels, needed), regions, 0, needed, batch[1])
    assert (batch[1] == expected).all()
    assert not batch[0].any()


def check_top(data, rows):
    """Compare the decoded top of a JPEG with a full decode, and return its number of rows; None without a top."""
    frame = baseline_frame(data)
    top = None if frame is None else decode_top(memoryview(data), frame, rows)
    if top is None:
        return None
    full = decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1)
    assert len(top) >= rows
    assert (top[:rows] == full[:rows]).all()
    return len(top)


def test_the_top_of_every_sample_photograph_is_identical_to_a_full_decode(sample_files):
    partial = 0
    for number, path in enumerate(sample_files):
        data = path.read_bytes()
        if probe(data).kind == "jpg":
            for rows in (1, 15, 16, 17, 40 + number, 100):
                partial += check_top(data, rows) is not None
    assert partial > 100


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}])
def test_the_top_of_baseline_jpegs_of_all_codings_is_identical_to_a_full_decode(photo, mode, subsampling, options):
    data = encode(photo.convert(mode), "jpg", quality=92, subsampling=subsampling, **options)
    heights = [check_top(data, rows) for rows in range(1, photo.height + 1, 5)]
    if not any("restart" in option for option in options):
        assert heights[0] <= 32  # the other rows were not decoded
        assert all(height is not None for height in heights[:5])


def test_damage_in_the_needed_rows_is_an_error(photo):
    data = encode(photo, "jpg", quality=92)
    start = data.index(b"\xff\xda") + 14
    truncated = data[: start + 200] + b"\xff\xd9"
    with pytest.raises(DecodeError):
        decode_rgb(memoryview(truncated), kind="jpg", mode="RGB", orientation=1, box=(0, 0, 9, photo.height - 40))


def test_extra_bytes_before_the_scan_are_an_error_or_do_not_change_the_pixels(photo):
    data = encode(photo, "jpg", quality=92)
    full = decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1)
    for marker in (b"\xff\xda", b"\xff\xc4", b"\xff\xc0", b"\xff\xdb"):
        at = data.index(marker)
        for extra in (b"\0\0\0", b"\xff\xff\x00", b"\xff\xd0"):
            odd = data[:at] + extra + data[at:]
            try:
                pixels = decode_rgb(memoryview(odd), kind="jpg", mode="RGB", orientation=1, box=(0, 0, photo.width, 40))
            except DecodeError:
                continue
            assert abs(pixels.astype(int) - full[:40]).mean() <= 2


def assert_boxes(data, boxes):
    """Check that decoded boxes of an image are identical to those of a full decode."""
    info = probe(data)
    full = decoded(data)
    for left, top, width, height in boxes:
        box = left % info.width, top % info.height, width, height
        box = (*box[:2], min(width, info.width - box[0]), min(height, info.height - box[1]))
        part = decode_rgb(memoryview(data), kind=info.kind, mode=info.mode, orientation=info.orientation, box=box)
        assert part.shape == (box[3], box[2], 3)
        assert (part == crop(full, box)).all(), box


BOXES = [(0, 0, 999, 999), (0, 0, 1, 1), (17, 33, 40, 30), (15, 16, 1, 1), (79, 31, 33, 1), (100, 90, 999, 999)]


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 1}])
def test_a_box_of_an_image_with_any_orientation_is_identical_to_a_full_decode(photo, kind, orientation, options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert_boxes(encode(photo.crop((0, 0, 118, 99)), kind, exif=exif, **(options if kind == "jpg" else {})), BOXES)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1}])
def test_a_box_of_a_jpeg_of_any_mode_is_identical_to_a_full_decode(photo, mode, options):
    assert_boxes(encode(photo.convert(mode), "jpg", **options), BOXES)


def test_a_box_outside_the_image_is_an_error_with_a_remedy(photo):
    for options in ({}, {"restart_marker_blocks": 1}):
        data = encode(photo.crop((0, 0, 64, 48)), "jpg", **options)
        for box in ((0, 0, 65, 10), (10, 10, 20, 39)):
            with pytest.raises(DecodeError, match=r"64x48, smaller than recorded in its index.*wds-tools index"):
                decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1, box=box)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_oriented_box_of_an_oriented_image_has_the_same_pixels(orientation):
    pixels = np.arange(7 * 11 * 3).astype(np.uint8).reshape(7, 11, 3)
    box = (2, 1, 5, 3)
    oriented = crop(orient(pixels, orientation), orient_box(box, orientation, (11, 7)))
    assert (oriented == orient(crop(pixels, box), orientation)).all()


def test_stored_pixels_are_returned_unchanged_and_cropped_without_a_copy():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    data = memoryview(encode_npy(pixels))
    assert (decode_rgb(data, kind="npy", mode="RGB", orientation=1) == pixels).all()
    part = decode_rgb(data, kind="npy", mode="RGB", orientation=1, box=(3, 2, 5, 4))
    assert (part == pixels[2:6, 3:8]).all()
    assert np.shares_memory(part, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    "array",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((4, 4, 1), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_an_array_that_is_not_an_image_is_an_error(array):
    with pytest.raises(DecodeError, match=r"is not an image, which is uint8 \[h, w, 3\]"):
        decode_rgb(memoryview(encode_npy(array)), kind="npy", mode="RGB", orientation=1)


@pytest.mark.parametrize("blocks", [2, 5])  # 5 divides the 25 MCUs of a row, 2 does not
def test_damage_between_restart_markers_is_an_error_or_the_pixels_of_a_full_decode(photo, blocks):
    data = bytearray(encode(photo, "jpg", quality=92, restart_marker_blocks=blocks))
    assert baseline_frame(data).columns == (5 if blocks == 5 else 0)
    box = 20, 20, 60, 60
    intact = crop(decoded(bytes(data)), box)
    start = data.index(b"\xff\xda") + 14
    refused = 0
    for position in np.random.default_rng(0).integers(start, len(data) - 2, 200).tolist():
        odd = data.copy()
        del odd[position : position + 40]  # may remove whole markers
        options = {"kind": "jpg", "mode": "RGB", "orientation": 1}
        try:
            part = decode_rgb(memoryview(odd), box=box, **options)
        except DecodeError:
            refused += 1
            continue
        if not (part == intact).all():  # libjpeg reports no damage in a few cases
            assert (part == crop(decode_rgb(memoryview(odd), **options), box)).all()
    assert refused > 30


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_a_box_of_a_damaged_jpeg_has_the_right_size_or_is_a_decode_error(changes, in_header):
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8))
    data = bytearray(encode(photo, "jpg", restart_marker_blocks=2))
    frame = baseline_frame(data)
    size = bytes(data[frame.height_at : frame.height_at + 4])
    for position, value in changes:
        data[position % (frame.scan_at if in_header else len(data))] = value
    data[frame.height_at : frame.height_at + 4] = size  # otherwise the image could take gigabytes
    try:
        part = decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1, box=(40, 20, 30, 17))
    except DecodeError:
        return
    assert part.shape == (17, 30, 3)
