"""The compiled path has the pixels of torchvision, equal for kept and crop-ready files, or skips an image."""

from __future__ import annotations

import io
import itertools
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from native_helpers import (
    by_native,
    by_python,
    encoded,
    mean_difference,
    needs_native,
    python_refuses,
    region,
    regions_of,
    sampled,
    unknown_sizes,
)
from numpy.typing import NDArray
from pictures import encode
from PIL import Image
from torchvision.transforms import v2
from turbo import decode, library, recode

import wds_tools as wt
from wds_tools.errors import DecodeError
from wds_tools.format.codecs import encode_npy
from wds_tools.images import native
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Regions, Resize, View
from wds_tools.packing.transcode import ImageOptions, transcode

pytestmark = needs_native

SAMPLINGS = ["444", "422", "420", "440", "411"]
FULL_VIEW = Resize((24, 40))


@pytest.fixture(scope="module")
def files(photos: Path) -> list[bytes]:
    """Return every second sample photograph that is a JPEG."""
    return [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[::2]]


@pytest.fixture(scope="module")
def photo(photos: Path) -> Image.Image:
    """Return a colour photograph."""
    return Image.open(sorted((photos / "coffee").glob("*.jpg"))[0]).convert("RGB")


def by_torchvision(files: list[bytes], regions: Regions) -> NDArray[np.uint8]:
    """Decode with Pillow; crop, resize with antialiasing, crop and flip with torchvision."""
    results = []
    for i, data in enumerate(files):
        (left, top, w, h), (y, x) = regions.box[i].tolist(), regions.corner[i].tolist()
        full = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB"))).permute(2, 0, 1)
        resized = v2.functional.resized_crop(full, top, left, h, w, regions.resize[i].tolist(), antialias=True)
        cropped = v2.functional.crop(resized, y, x, *regions.size[i].tolist())
        results.append((v2.functional.horizontal_flip(cropped) if regions.flip[i] else cropped).numpy())
    return np.stack(results)


@pytest.mark.parametrize(
    "view",
    [
        RandomResizedCrop(96, flip=True),
        RandomResizedCrop((40, 56), scale=(0.5, 1), flip=True),  # reduces most images to half their size or less
        RandomResizedCrop(224, scale=(0.05, 0.3)),  # enlarges most images
        CenterCrop(112, resize=128),
        CenterCrop((100, 140), resize=150),
        Resize((120, 90)),
        Resize((300, 400)),
    ],
)
@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.torture)])
def test_every_photograph_has_the_pixels_of_torchvision(files: list[bytes], view: View, step: int) -> None:
    files = files[::step]
    regions = regions_of(view, files)
    rendered, ours = by_native(files, regions)
    assert all(rendered)
    assert mean_difference(ours, by_torchvision(files, regions)) <= 2


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("smaller", [1, 2, 4, 8])
def test_a_large_image_decoded_at_a_reduced_size_has_the_pixels_of_torchvision(
    photo: Image.Image, sampling: str, smaller: int
) -> None:
    scale = 2 if smaller == 8 else 1  # for an eighth, the paths differ more in a smaller image
    data = sampled(photo.resize((800 * scale + 1, 600 * scale + 3), Image.Resampling.BICUBIC), sampling)
    side = 600 * scale // (2 * smaller)  # at most half of the reduced image
    for view in (
        Resize((side, side)),
        CenterCrop(side // 2, resize=side),
        RandomResizedCrop(side, scale=(0.9, 1), flip=True),
    ):
        regions = regions_of(view, [data])
        rendered, ours = by_native([data], regions)
        assert rendered == [True]
        assert mean_difference(ours, by_torchvision([data], regions)) <= 2


@pytest.mark.parametrize("sampling", ["444", "420"])
@pytest.mark.parametrize(
    ("width", "height"),
    [(31, 64), (33, 100), (203, 301), (157, 29), (640, 5), (1, 1), (400, 41)],  # the last is as high as the image
)
def test_pixels_are_the_same_on_all_processors(photo: Image.Image, sampling: str, width: int, height: int) -> None:
    data, outputs = sampled(photo.resize((333, 41)), sampling), []
    regions = region((0, 0, 333, 41), (height, width), (0, 0), (height, width), flip=False)
    try:
        for simd in (True, False):
            native.compiled.simd(simd)
            rendered, pixels = by_native([data], regions)
            assert rendered == [True]
            outputs.append(pixels)
    finally:
        native.compiled.simd(True)
    assert (outputs[0] == outputs[1]).all()


@pytest.mark.parametrize("view", [RandomResizedCrop(64, flip=True), CenterCrop(48, resize=64), Resize((50, 40))])
@pytest.mark.torture_except("view0")
def test_kept_and_crop_ready_photographs_have_identical_pixels(files: list[bytes], view: View) -> None:
    ready = [transcode(data, ImageOptions(images="crop-ready")).data for data in files]
    assert sum(a != b for a, b in zip(files, ready, strict=True)) > 0.9 * len(files)
    regions = regions_of(view, files)
    (rendered, kept_pixels), (also_rendered, ready_pixels) = by_native(files, regions), by_native(ready, regions)
    assert all(rendered)
    assert all(also_rendered)
    assert (kept_pixels == ready_pixels).all()


def jpegtran(data: bytes, *options: str) -> bytes:
    return subprocess.run(["jpegtran", *options], input=data, capture_output=True, check=True).stdout


def agrees_with_python(data: bytes, view: View = FULL_VIEW) -> bool:
    """Return whether the compiled path supports an image; if so, compare its pixels with the Python path."""
    regions = regions_of(view, [data])
    rendered, ours = by_native([data], regions)
    if rendered[0]:
        assert mean_difference(ours, by_python([data], regions)) <= 2
    return rendered[0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_chroma_subsampling_is_supported(photo: Image.Image, sampling: str) -> None:
    assert agrees_with_python(sampled(photo, sampling))


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"keep_rgb": True},
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 7},
        {"optimize": True},
    ],
)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_every_huffman_coding_is_supported(photo: Image.Image, mode: str, options: dict[str, object]) -> None:
    assert agrees_with_python(encoded(photo.convert(mode), quality=90, **options))


@pytest.mark.parametrize("options", [[], ["-progressive"]])
def test_arithmetic_coding_is_skipped(photo: Image.Image, options: list[str]) -> None:
    data = jpegtran(encoded(photo), "-arithmetic", *options)
    assert by_native([data], region((0, 0, photo.width, photo.height), (60, 90), (0, 0), (60, 90), flip=False))[0] == [
        False
    ]


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "Gray"])
@pytest.mark.parametrize("ready", [False, True])
def test_small_and_narrow_images_are_supported(photo: Image.Image, sampling: str, ready: bool) -> None:
    smooth = photo.resize((9, 7))
    sizes = itertools.product((1, 2, 3, 7, 8, 9, 15, 16, 17), (1, 2, 7, 8, 9))
    for width, height in [*sizes, (1, 300), (3, 200), (400, 1), (400, 2)]:
        image = smooth.resize((width, height), Image.Resampling.BICUBIC)
        data = encoded(image, restart_marker_blocks=1) if ready and sampling == "420" else sampled(image, sampling)
        regions = regions_of(Resize((11, 13)), [data])
        rendered, ours = by_native([data], regions)
        assert rendered == [True], (width, height)
        # With one or two pixels of chroma the paths differ more.
        assert mean_difference(ours, by_python([data], regions)) <= 6, (width, height)


def with_orientation(photo: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(photo, exif=exif)


def test_files_that_are_not_grey_or_colour_jpegs_of_eight_bits_are_skipped(photo: Image.Image) -> None:
    plain = encoded(photo)
    frame = plain.index(b"\xff\xc0")
    twelve_bits = plain[: frame + 4] + b"\x0c" + plain[frame + 5 :]
    lossless = plain[: frame + 1] + b"\xc3" + plain[frame + 2 :]
    for data in (
        encoded(photo.convert("CMYK")),
        twelve_bits,
        lossless,
        encode(photo, "PNG"),
        b"",
        b"\xff\xd8",
        bytes(99),
    ):
        assert by_native([data], regions_of(FULL_VIEW, [plain]))[0] == [False]


def test_an_image_that_is_not_resized_is_skipped(photo: Image.Image) -> None:
    assert by_native([encoded(photo)], regions_of(CenterCrop(64), [encoded(photo)]))[0] == [False]


def test_an_image_that_is_reduced_more_than_31_times_in_one_direction_is_skipped(photo: Image.Image) -> None:
    data = encoded(photo.resize((4000, 64)))
    assert by_native([data], regions_of(Resize((64, 8)), [data]))[0] == [False]


@pytest.mark.parametrize("sampling", ["2x2,1x2,2x1", "2x2,2x1,1x1", "1x1,2x2,1x1", "1x1,1x1,2x2"])
def test_an_image_with_different_sampling_of_its_chroma_planes_is_skipped(photo: Image.Image, sampling: str) -> None:
    ppm = b"P6 %d %d 255\n" % photo.size + photo.tobytes()
    data = subprocess.run(["cjpeg", "-sample", sampling], input=ppm, capture_output=True, check=True).stdout
    assert by_native([data], regions_of(FULL_VIEW, [data]))[0] == [False]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=9))
def test_the_pixels_of_an_image_do_not_depend_on_the_other_images_of_its_batch(photo: Image.Image, parts) -> None:
    plain, small = encoded(photo), photo.resize((60, 44))
    codings = (
        plain,
        encoded(photo, restart_marker_blocks=4),
        encoded(photo, progressive=True),
        encoded(small, quality=95),
        plain[: len(plain) // 2],
        b"not a JPEG",
    )
    width, height = small.size
    boxes = [(0, 0, width, height), (0, height // 2, width, height // 2), (8, 0, 20, 9), (40, 30, 20, 14)]
    files = [codings[coding] for coding, _ in parts]
    regions = [region(boxes[box], (20, 30), (0, 0), (20, 30), flip=False) for _, box in parts]
    names = ("box", "resize", "corner", "size", "flip")
    together = Regions(*(np.concatenate([getattr(one, name) for one in regions]) for name in names))
    rendered, pixels = by_native(files, together)
    for i, (data, one) in enumerate(zip(files, regions, strict=True)):
        rendered_alone, alone = by_native([data], one)
        assert rendered[i] == rendered_alone[0]
        assert not rendered[i] or (pixels[i] == alone[0]).all()


def test_tables_of_one_image_are_not_used_for_the_next_one(photo: Image.Image) -> None:
    data = encoded(photo)
    start = data.index(b"\xff\xdb")
    length = 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    without = data[:start] + data[start + length :]
    regions = regions_of(FULL_VIEW, [data, data])
    assert python_refuses(without, regions_of(FULL_VIEW, [data]))
    assert by_native([data, without], regions)[0] == [True, False]


@pytest.mark.parametrize("lost", [1, 2, 3, 40, 4000])
@pytest.mark.parametrize("filler", [b"", bytes(100)], ids=["missing", "zeros"])
def test_a_truncated_file_is_skipped(photo: Image.Image, lost: int, filler: bytes) -> None:
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 1}, {"subsampling": 0}):
        data = encoded(photo, **options)
        regions = regions_of(FULL_VIEW, [data])
        assert python_refuses(data[:-lost] + filler, regions)
        assert by_native([data[:-lost] + filler], regions)[0] == [False]


def test_an_image_with_damage_below_the_crop_is_rendered_and_one_with_damage_in_it_is_skipped(
    photo: Image.Image,
) -> None:
    data = encoded(photo)
    scan, rest = data[: data.index(b"\xff\xda") + 14], data[data.index(b"\xff\xda") + 14 :]
    truncated = scan + rest[: len(rest) // 2] + b"\xff\xd9"
    width, height = photo.size
    top = region((0, 0, width, height // 4), (20, 30), (0, 0), (20, 30), flip=False)
    bottom = region((0, height // 2, width, height // 4), (20, 30), (0, 0), (20, 30), flip=False)
    assert by_native([truncated], top)[0] == [True]
    assert (by_native([truncated], top)[1] == by_native([data], top)[1]).all()
    assert by_native([truncated], bottom)[0] == [False]


def test_what_follows_the_crop_in_its_restart_intervals_is_not_decoded(photo: Image.Image) -> None:
    whole = encoded(photo.resize((320, 64)), restart_marker_rows=1)
    start = whole.index(b"\xff\xda")
    ends = [i for i in range(start, len(whole) - 1) if whole[i] == 0xFF and 0xD0 <= whole[i + 1] <= 0xD9]
    assert len(ends) == 4
    damaged = bytearray(whole)
    for end in ends:
        damaged[end - 40 : end] = bytes(40)
    left = region((0, 0, 100, 64), (32, 32), (0, 0), (32, 32), flip=False)
    done, pixels = by_native([whole, bytes(damaged)], left.repeated(np.array([2])))
    assert done == [True, True]
    assert (pixels[0] == pixels[1]).all()
    assert by_native([bytes(damaged)], region((0, 0, 320, 64), (32, 32), (0, 0), (32, 32), flip=False))[0] == [False]


def test_an_image_smaller_than_recorded_in_its_index_is_skipped(photo: Image.Image) -> None:
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 1}):
        large, small = encoded(photo, **options), encoded(photo.crop((0, 0, 50, 40)), **options)
        assert by_native([small], regions_of(FULL_VIEW, [large]))[0] == [False]
        with pytest.raises(DecodeError, match="smaller than recorded in its index"):
            by_python([small], regions_of(FULL_VIEW, [large]))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch):
    """Return a function that loads a dataset with and without the compiled path: images, or an error message."""

    def load(folder: Path, view: View, use_native: str) -> torch.Tensor | str:
        monkeypatch.setenv("WDS_TOOLS_NATIVE", use_native)
        try:
            with wt.make_loader(folder, batch_size=3, view=view, num_workers=0, seed=3) as loader:
                return torch.cat([batch.image for batch in loader])
        except DecodeError as error:
            return str(error)

    return lambda folder, view: (load(folder, view, "1"), load(folder, view, "0"))


def packed(folder: Path, files: list[bytes]) -> Path:
    """Pack files without checking them."""
    folder.mkdir()
    with wt.ShardWriter(folder / "shard-%06d.tar") as writer:
        for number, data in enumerate(files):
            writer.write({"__key__": f"{number:04d}", "jpg": data, "cls": 0})
    return folder


def test_a_loader_delivers_similar_pixels_with_and_without_the_compiled_path(files, tmp_path, loaded) -> None:
    ours, theirs = loaded(packed(tmp_path / "data", files[:40]), RandomResizedCrop(64, flip=True))
    assert 0 < mean_difference(ours.numpy(), theirs.numpy()) <= 2


def test_a_loader_delivers_identical_pixels_of_images_that_the_compiled_path_skips(
    photo: Image.Image, tmp_path: Path, loaded
) -> None:
    skipped = [encoded(photo.convert("CMYK")), *(with_orientation(photo, orientation) for orientation in range(2, 9))]
    ours, theirs = loaded(packed(tmp_path / "data", skipped), RandomResizedCrop(64, flip=True))
    assert (ours == theirs).all()


@pytest.mark.parametrize("damage", ["truncated", "garbage", "no tables", "a hole"])
def test_a_loader_reports_damage_with_the_same_message_with_and_without_the_compiled_path(
    photo, tmp_path, loaded, damage
) -> None:
    data = encoded(photo)
    scan = data.index(b"\xff\xda") + 14
    files = {
        "truncated": data[: len(data) // 2] + b"\xff\xd9",
        "garbage": data[: scan + 500] + bytes(range(256)) * 9 + data[scan + 2804 :],
        "no tables": data.replace(b"\xff\xdb", b"\xff\xfe"),
        "a hole": data[: scan + 500] + data[scan + 540 :],
    }
    ours, theirs = loaded(packed(tmp_path / "data", [data, files[damage], data]), FULL_VIEW)
    assert isinstance(ours, str)
    assert ours == theirs
    assert "key" in ours


@st.composite
def crops(draw: st.DrawFn) -> tuple[tuple[int, int], str, int, Regions]:
    """Draw the size of an image, its chroma subsampling, MCUs between restart markers, and a region in it."""
    width, height = draw(st.integers(1, 130)), draw(st.integers(1, 100))
    box_w, box_h = draw(st.integers(1, width)), draw(st.integers(1, height))
    box = draw(st.integers(0, width - box_w)), draw(st.integers(0, height - box_h)), box_w, box_h
    resize = draw(st.integers(1 + box_h // 20, 80)), draw(st.integers(1 + box_w // 20, 80))
    size = draw(st.integers(1, resize[0])), draw(st.integers(1, resize[1]))
    corner = draw(st.integers(0, resize[0] - size[0])), draw(st.integers(0, resize[1] - size[1]))
    sampling, restart = draw(st.sampled_from(["L", "4:4:4", "4:2:2", "4:2:0"])), draw(st.sampled_from([0, 1, 2, 3]))
    return (width, height), sampling, restart, region(box, resize, corner, size, draw(st.booleans()))


def test_several_crops_of_an_image_are_those_of_single_calls(files: list[bytes]) -> None:
    views = [RandomResizedCrop(224), RandomResizedCrop((200, 60), flip=True), RandomResizedCrop(64, scale=(0.02, 0.05))]
    regions = [regions_of(view, files, key) for key, view in enumerate(views)]
    outputs = [np.zeros((len(files), 3, *view.shape), np.uint8) for view in views]
    rendered = native.render_jpegs([memoryview(data) for data in files], unknown_sizes(len(files)), regions, outputs)
    for number, output in enumerate(outputs):
        done, expected = by_native(files, regions[number])
        assert rendered[:, number].tolist() == done
        assert (output == expected).all()  # none of these crops is decoded at a reduced size
        assert sum(done) >= 0.9 * len(files)


def test_images_of_different_sizes_are_those_of_single_calls(files: list[bytes]) -> None:
    view = Resize(60)
    regions = regions_of(view, files)
    output = [np.zeros((3, *size), np.uint8) for size in regions.size.tolist()]
    assert len({array.shape for array in output}) > 3
    rendered = native.render_jpegs([memoryview(data) for data in files], unknown_sizes(len(files)), [regions], [output])
    singles = [by_native([data], regions_of(view, [data])) for data in files]
    assert rendered[:, 0].tolist() == [done for (done,), _ in singles]
    assert rendered.mean() >= 0.9
    assert all((got == expected[0]).all() for got, (_, expected) in zip(output, singles, strict=True))


def test_a_loader_uses_the_compiled_path_for_images_of_different_sizes(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = [Resize(60), CenterCrop(40, resize=44)]

    def images() -> list[list[torch.Tensor]]:
        with wt.make_loader(packed, batch_size=100, num_workers=0, fields={"image": wt.Image(view=view)}) as loader:
            return [list(one) for one in next(iter(loader)).image]

    compiled = images()
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    for ours, others in zip(compiled, images(), strict=True):
        differences = [
            mean_difference(one[None].numpy(), other[None].numpy()) for one, other in zip(ours, others, strict=True)
        ]
        assert max(differences) < 4
        assert sum(difference > 0 for difference in differences) > 50


def test_a_crop_that_is_not_resized_is_skipped_and_the_others_are_rendered(photo: Image.Image) -> None:
    data = encoded(photo)
    size = np.array([photo.width]), np.array([photo.height])
    crops = [view.regions(*size, np.zeros((1, view.draws))) for view in (CenterCrop(32), Resize((40, 50)))]
    outputs = [np.zeros((1, 3, 32, 32), np.uint8), np.zeros((1, 3, 40, 50), np.uint8)]
    assert native.render_jpegs([memoryview(data)], unknown_sizes(1), crops, outputs).tolist() == [[False, True]]
    assert not outputs[0].any()
    assert (outputs[1] == by_native([data], crops[1])[1]).all()


@given(crops())
def test_any_region_agrees_with_the_python_path_and_nothing_else_is_written(photo, case) -> None:
    size, sampling, restart, regions = case
    image = photo.resize(size).convert("L" if sampling == "L" else "RGB")
    options = {} if sampling == "L" else {"subsampling": sampling}
    data = encoded(image, quality=90, restart_marker_blocks=restart, **options)
    if (regions.resize == regions.box[:, [3, 2]]).all():
        return
    height, width = regions.size[0].tolist()
    batch = np.full((3, 3, height, width), 0xA5, np.uint8)
    assert native.render_jpegs([memoryview(data)], unknown_sizes(1), [regions], [batch[1:2]]).tolist() == [[True]]
    assert (batch[[0, 2]] == 0xA5).all()
    # The Python path interpolates subsampled chroma and never decodes at a reduced size. In a
    # result of a few pixels this makes a larger difference.
    is_reduced = (regions.box[0, [3, 2]] >= 4 * regions.resize[0]).all()
    bound = 6 if sampling in ("L", "4:4:4") and not is_reduced else 20
    assert mean_difference(batch[1:2], by_python([data], regions)) <= bound


def copied(arrays: list[NDArray[np.generic]], size: tuple[int, int] = (9, 12)) -> tuple[bool, NDArray[np.uint8]]:
    """Copy stored pixels into a batch; return the result of `copy_pixels` and the batch."""
    regions = CenterCrop(size).regions(
        np.full(len(arrays), size[1]), np.full(len(arrays), size[0]), np.zeros((len(arrays), 0))
    )
    out = np.zeros((len(arrays), 3, *size), np.uint8)
    return native.copy_pixels([memoryview(encode_npy(array)) for array in arrays], regions, out), out


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_stored_pixels_are_copied_unchanged() -> None:
    for size in ((9, 12), (1, 1), (64, 33)):
        arrays = list(pixels(4, *size, 3))
        is_copied, out = copied(arrays, size)
        assert is_copied
        assert (out == np.stack(arrays).transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize(
    "odd",
    [
        pixels(12, 9, 3),
        pixels(9, 13, 3),
        pixels(9, 12, 1),
        pixels(9, 12),
        np.asfortranarray(pixels(9, 12, 3)),
        pixels(9, 12, 3).astype(np.float32),
        pixels(9, 12, 3).astype(np.int8),
    ],
    ids=["transposed", "wider", "grey", "flat", "fortran", "float", "signed"],
)
@pytest.mark.parametrize("first", [True, False])
def test_arrays_of_another_shape_dtype_or_memory_order_are_not_copied(odd: NDArray[np.generic], first: bool) -> None:
    arrays = [odd, pixels(9, 12, 3)] if first else [pixels(9, 12, 3), odd]
    is_copied, out = copied(arrays)
    assert not is_copied
    assert not out.any()


def test_an_array_of_the_wrong_length_is_not_copied() -> None:
    data = encode_npy(pixels(9, 12, 3))
    regions = CenterCrop((9, 12)).regions(np.full(2, 12), np.full(2, 9), np.zeros((2, 0)))
    for wrong in (data[:-1], data[:60], b"", data + b"\0"):
        for files in ([data, wrong], [wrong, data]):
            assert not native.copy_pixels(list(map(memoryview, files)), regions, np.zeros((2, 3, 9, 12), np.uint8))


def test_a_loader_delivers_identical_stored_pixels_with_and_without_the_compiled_path(
    few_photos: Path, tmp_path: Path, loaded
) -> None:
    wt.pack(few_photos, tmp_path / "data", images="raw", resize=(48, 64), workers=1)
    for view in (CenterCrop((48, 64)), CenterCrop(32), RandomResizedCrop(20, flip=True)):
        ours, theirs = loaded(tmp_path / "data", view)
        assert (ours == theirs).all()


def with_large_coefficients(image: Image.Image, number: int) -> tuple[bytes, bool]:
    """Return a file whose coefficients are multiplied, by its DC coefficients or its quantization tables.

    Returns:
        The file, and whether a coefficient is far too large for an image with 8 bits.
    """
    rng = np.random.default_rng(number)
    factor = int(rng.choice([1, 2, 4, 16, 100]))
    largest = [0]

    def edit(component: int, blocks: np.ndarray) -> None:
        changed = rng.random(len(blocks)) < 0.3
        blocks[changed, 0] = rng.integers(-1023, 1024, int(changed.sum()))
        largest.append(int(abs(blocks[:, 0]).max()))

    source = encoded(image, quality=int(rng.choice([75, 100])), subsampling=int(rng.choice([0, 2])))
    data = bytearray(recode(library(), source, edit, restart=int(rng.choice([0, 2])), progressive=number % 3 == 0))
    at, steps = -1, []
    while (at := data.find(b"\xff\xdb", at + 1)) >= 0:  # the first element of each quantization table
        data[at + 5] = min(255, data[at + 5] * factor)
        steps.append(data[at + 5])
    return bytes(data), min(steps) * max(largest) >= 8192


@pytest.mark.parametrize("simd", [True, False])
@pytest.mark.torture_except("True")
def test_files_with_coefficients_out_of_range_have_the_samples_of_libjpeg_or_are_left_to_it(
    photo: Image.Image, simd: bool
) -> None:
    image, outcomes = photo.resize((96, 80)), Counter[tuple[bool, bool]]()
    try:
        native.compiled.simd(simd)
        for number in range(60):
            data, is_far_out = with_large_coefficients(image, number)
            planes = native.compiled.decode_jpeg(data, (0, 0, 96, 80), 1)
            for (width, samples), expected in zip(planes or [], decode(library(), data, 1), strict=bool(planes)):
                got = np.frombuffer(samples, np.uint8).reshape(-1, width)
                assert (got == expected.samples[: len(got), :width]).all(), number
            for denominator in (2, 4, 8):
                assert (native.compiled.decode_jpeg(data, (0, 0, 96, 80), denominator) is None) >= is_far_out, number
            outcomes[is_far_out, planes is None] += 1
    finally:
        native.compiled.simd(True)
    assert outcomes[True, False] == 0
    assert min(outcomes[True, True], outcomes[False, False]) > 10


def test_a_loader_delivers_the_pixels_of_libjpeg_for_coefficients_out_of_range(
    photo: Image.Image, tmp_path: Path, loaded
) -> None:
    cases = [with_large_coefficients(photo.resize((96, 80)), number) for number in range(40)]
    ours, theirs = loaded(packed(tmp_path / "data", [data for data, is_far_out in cases if is_far_out]), FULL_VIEW)
    assert len(ours) > 6
    assert (ours == theirs).all()


def test_dc_coefficients_that_grow_from_block_to_block_are_left_to_libjpeg(photo: Image.Image) -> None:
    source = encoded(photo.convert("L").resize((64, 64)), quality=100)  # a restart interval is a row of eight blocks
    for value in (700, 2000, 3000, 4200, 8190, 8200, 16_000, -2000, -8200):
        ramp = np.clip(np.arange(1, 9) * 2000, 0, abs(value)) * np.sign(value)

        def edit(component: int, blocks: np.ndarray, ramp: np.ndarray = ramp) -> None:
            blocks[:, 0] = ramp

        data = recode(library(), source, edit, restart=8)
        planes = native.compiled.decode_jpeg(data, (0, 0, 64, 64), 1)
        assert (planes is None) == (abs(value) > 4096), value
        if planes:
            expected = simplejpeg.decode_jpeg(data, "GRAY").tobytes()
            assert planes == [(64, expected)], value
