"""Images become crop-ready without changing a pixel, or resized, or raw; unusual ones are kept unchanged."""

from __future__ import annotations

import io
import itertools
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
from folders import contents, manifest_of
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode
from PIL import Image
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import DecodeError, DestinationError, OptionError
from wds_tools.format.codecs import view_npy
from wds_tools.format.image_header import ImageInfo, probe
from wds_tools.format.image_signature import COLUMNS
from wds_tools.format.index import from_bytes
from wds_tools.format.jpeg import baseline_frame
from wds_tools.format.recorded_source import are_crop_ready
from wds_tools.images import native
from wds_tools.images.decode import decode_rgb
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View
from wds_tools.order.keyed_random import uniform
from wds_tools.packing.transcode import ImageOptions, parse_size, piece_mcus, transcode

SAMPLES = sorted((Path(__file__).parents[2] / "shards" / "sample" / "images").rglob("*.jpg"))
KEEP, CROP_READY, RAW = (ImageOptions(images=name) for name in ("keep", "crop-ready", "raw"))


def noise(width: int = 131, height: int = 75, mode: str = "RGB") -> Image.Image:
    small = np.random.default_rng(0).integers(0, 256, (height // 4 + 1, width // 4 + 1, len(mode)), np.uint8)
    image = Image.frombytes(mode, (small.shape[1], small.shape[0]), small.tobytes())
    return image.resize((width, height), Image.Resampling.BICUBIC)


def run(*command: str, data: bytes) -> bytes:
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def cjpeg(*options: str, image: Image.Image | None = None) -> bytes:
    image = image or noise()
    return run("cjpeg", *options, data=b"P6 %d %d 255\n" % image.size + image.tobytes())


def shown(data: bytes, info: ImageInfo, box: tuple[int, int, int, int] | None = None) -> np.ndarray:
    return decode_rgb(memoryview(data), kind=info.kind, mode=info.mode, orientation=info.orientation, box=box)


def boxes(info: ImageInfo, position: int) -> list[tuple[int, int, int, int]]:
    """Return the crops that some views take from an image."""
    views: list[View] = [RandomResizedCrop(224), RandomResizedCrop(64, scale=(0.01, 0.1)), CenterCrop(30), Resize(99)]
    found = []
    for view in views:
        u = uniform(7, np.array([position]), view.draws)
        found += view.regions(np.array([info.width]), np.array([info.height]), u).box.tolist()
    middle = info.width // 2, info.height // 2, 1, 1
    return [*map(tuple, found), middle]


def assert_crop_ready(data: bytes, position: int = 0) -> bytes:
    """Transcode an image; the image and several crops must have exactly the pixels of the original."""
    before = probe(data)
    result = transcode(data, CROP_READY)
    assert result.kind == "jpg"
    assert result.info == probe(result.data)
    assert result.info.restart > 0
    facts = [(i.width, i.height, i.mode, i.orientation, i.mcu_width, i.mcu_height) for i in (before, result.info)]
    assert facts[0] == facts[1]
    frame = baseline_frame(result.data)
    assert frame is not None
    assert frame.columns * frame.restart == -(-frame.width // frame.mcu_width)
    whole = shown(data, before)
    assert (shown(result.data, result.info) == whole).all()
    for left, top, width, height in boxes(before, position):
        part = shown(result.data, result.info, (left, top, width, height))
        assert (part == whole[top : top + height, left : left + width]).all()
    return result.data


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.torture)])
def test_every_photo_becomes_crop_ready_without_changing_a_pixel(step: int) -> None:
    before = after = 0
    for position, path in enumerate(SAMPLES[::step]):
        data = path.read_bytes()
        before += len(data)
        after += len(assert_crop_ready(data, position))
    assert after < 1.03 * before  # these have 12 kB and are optimised; larger files become 0.7 % smaller


@pytest.mark.parametrize("sampling", ["1x1", "2x1", "2x2", "1x2", "4x1", "1x4", "4x2", "3x1"])
@pytest.mark.parametrize("coding", [[], ["-progressive"], ["-optimize", "-restart", "3B"]])
@pytest.mark.torture_except(
    *("coding0-1x1", "coding0-2x1", "coding0-2x2", "coding0-1x2", "coding0-4x1", "coding0-1x4", "coding0-3x1"),
    *("coding1-2x2", "coding1-3x1", "coding2-2x2", "coding2-4x2"),
)
def test_unusual_jpegs_become_crop_ready_without_changing_a_pixel(sampling: str, coding: list[str]) -> None:
    assert_crop_ready(cjpeg("-quality", "90", "-sample", sampling, *coding))


def test_jpegs_with_arithmetic_coding_or_four_components_are_kept() -> None:
    for data in (cjpeg("-arithmetic"), encode(noise(mode="CMYK"))):
        assert transcode(data, CROP_READY).data is data


@pytest.mark.parametrize("size", [(131, 75), (64, 64), (17, 300), (8, 8), (1, 1)])
def test_all_modes_become_crop_ready_without_changing_a_pixel(size: tuple[int, int]) -> None:
    assert_crop_ready(encode(noise(*size, "L"), quality=92))
    for options in ({}, {"progressive": True}, {"subsampling": 0}, {"keep_rgb": True}):
        assert_crop_ready(encode(noise(*size), quality=92, **options))


def test_a_jpeg_in_one_scan_per_component_becomes_one_interleaved_scan(tmp_path: Path) -> None:
    (tmp_path / "scans").write_text("0;\n1;\n2;\n")
    data = run("jpegtran", "-scans", str(tmp_path / "scans"), data=encode(noise()))
    assert baseline_frame(data) is None
    assert_crop_ready(data)


def test_an_incomplete_progressive_jpeg_is_kept_because_decoders_smooth_it(tmp_path: Path) -> None:
    (tmp_path / "scans").write_text("0,1,2: 0-0, 0, 0;\n0: 1-2, 0, 2;\n")
    data = run("jpegtran", "-scans", str(tmp_path / "scans"), data=encode(noise()))
    assert transcode(data, CROP_READY).data is data


def test_a_damaged_jpeg_is_kept_unchanged() -> None:
    data = bytearray(encode(noise(300, 300)))
    start = data.index(b"\xff\xda") + 14
    del data[start + 500 : start + 900]
    assert transcode(bytes(data), CROP_READY).data == data


@pytest.mark.parametrize("orientation", [1, 6])
def test_orientation_and_profile_are_kept_and_other_metadata_is_dropped(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "a camera"
    data = encode(noise(), exif=exif, icc_profile=b"p" * 70_000, comment=b"hello")
    with Image.open(io.BytesIO(assert_crop_ready(data))) as image:
        assert dict(image.getexif()) == ({0x0112: 6} if orientation == 6 else {})
        assert image.info["icc_profile"] == b"p" * 70_000
        assert "comment" not in image.info


def test_the_same_image_gives_the_same_bytes() -> None:
    data = encode(noise())
    first = transcode(data, CROP_READY).data
    assert transcode(data, CROP_READY).data == first
    assert transcode(first, CROP_READY).data == first


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_images_of_other_types_are_kept_unchanged(kind: str) -> None:
    data = encode(noise(), kind)
    assert transcode(data, CROP_READY).data is data


def test_keep_returns_the_same_bytes() -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        data = encode(noise(), kind)
        result = transcode(data, KEEP)
        assert result.data is data
        assert result.info == probe(data)


@pytest.fixture
def transcoder_that_writes(monkeypatch: pytest.MonkeyPatch):
    """Return a function that replaces the output of the compiled module."""

    def write(answer: bytes | None) -> None:
        monkeypatch.setattr(native, "transcode_jpeg", lambda *_: None if answer is None else (answer, None))

    return write


def test_the_original_is_kept_if_the_transcoder_returns_nothing_usable(transcoder_that_writes) -> None:
    data = encode(noise())
    for answer in (None, b"", b"text", encode(noise(130, 75)), encode(noise(mode="L")), data):
        transcoder_that_writes(answer)
        assert transcode(data, CROP_READY).data is data, answer


def test_verify_pixels_keeps_the_original_if_a_pixel_differs(transcoder_that_writes) -> None:
    image = noise()
    data = encode(image)
    image.putpixel((70, 40), (255, 255, 255))
    other = encode(image, restart_marker_blocks=3)
    transcoder_that_writes(other)
    assert transcode(data, CROP_READY).data == other  # only the pixels differ
    assert transcode(data, ImageOptions(images="crop-ready", verify_pixels=True)).data is data
    transcoder_that_writes(encode(noise(), restart_marker_blocks=3))
    assert transcode(data, ImageOptions(images="crop-ready", verify_pixels=True)).data == encode(
        noise(), restart_marker_blocks=3
    )


@pytest.mark.parametrize("data", [b"", b"text", encode(noise())[:-2], encode(noise()).replace(b"\x08", b"\x0c", 1)])
def test_bytes_that_are_not_a_complete_image_are_refused_by_every_policy(data: bytes) -> None:
    if len(data) > 1000 and data[-2:] == b"\xff\xd9":
        data = encode(noise())
        position = baseline_frame(data).height_at - 1  # type: ignore[union-attr]
        data = data[:position] + b"\x0c" + data[position + 1 :]  # 12 bits
    for policy in (
        KEEP,
        CROP_READY,
        ImageOptions(resize=32),
        ImageOptions(images="raw"),
    ):
        with pytest.raises(DecodeError):
            transcode(data, policy)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(("size", "expected"), [(50, (87, 50)), ((40, 60), (60, 40)), ((90, 200), (200, 90))])
def test_resize_makes_a_crop_ready_jpeg_of_that_size(kind: str, size: object, expected: tuple[int, int]) -> None:
    data = encode(Image.open(SAMPLES[0]).convert("RGB").resize((131, 75)), kind, quality=95)
    result = transcode(data, ImageOptions(resize=size, quality=95))  # type: ignore[arg-type]
    assert (result.kind, result.info.width, result.info.height) == ("jpg", *expected)
    assert result.info.restart > 0
    theirs = v2.functional.resize(
        torch.from_numpy(shown(data, probe(data)).copy()).permute(2, 0, 1), list(expected[::-1]), antialias=True
    )
    difference = shown(result.data, result.info).astype(int) - theirs.permute(1, 2, 0).numpy()
    assert abs(difference).mean() < 4


def test_a_lower_quality_gives_a_smaller_jpeg() -> None:
    sizes = [len(transcode(encode(noise()), ImageOptions(resize=64, quality=q)).data) for q in (50, 80, 95)]
    assert sizes == sorted(set(sizes))


def test_a_jpeg_that_is_small_enough_is_not_encoded_again() -> None:
    data = encode(noise())
    assert transcode(data, ImageOptions(resize=75)).data == transcode(data, CROP_READY).data
    assert transcode(data, ImageOptions(resize=75, compiled=False)).data is data
    assert transcode(encode(noise(), "PNG"), ImageOptions(resize=75)).kind == "jpg"  # all images have the same type


def test_a_rotated_image_is_resized_after_rotation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(noise(), exif=exif)
    for images in ("resize", "raw"):
        info = transcode(data, ImageOptions(images=images, resize=50)).info  # type: ignore[arg-type]
        assert (info.width, info.height, info.orientation) == (50, 87, 1)


def test_raw_stores_the_pixels() -> None:
    for mode, kind in (("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG")):
        data = encode(noise(mode=mode), kind)
        result = transcode(data, RAW)
        assert result.info == ImageInfo("npy", 131, 75, "RGB", 1)
        assert (view_npy(result.data) == shown(data, probe(data))).all()
        assert (np.load(io.BytesIO(result.data)) == view_npy(result.data)).all()


def test_raw_images_of_one_size_have_the_planned_length() -> None:
    policy = ImageOptions(images="raw", resize=(40, 60))
    data = transcode(encode(noise()), policy).data
    assert len(data) == policy.fixed_bytes == 128 + 40 * 60 * 3
    assert view_npy(data).shape == (40, 60, 3)
    assert ImageOptions(images="raw", resize=40).fixed_bytes is None
    assert ImageOptions(resize=(40, 60)).fixed_bytes is None


@pytest.mark.parametrize("grey", [False, True])
def test_pixel_arrays_are_packed_as_png_or_by_the_policy(grey: bool) -> None:
    pixels = np.asarray(noise(mode="L" if grey else "RGB"))
    for policy in (KEEP, CROP_READY):
        result = transcode(pixels, policy)
        assert result.info == ImageInfo("png", 131, 75, "L" if grey else "RGB", 1)
        assert (np.asarray(Image.open(io.BytesIO(result.data))) == pixels).all()
    raw = view_npy(transcode(pixels, RAW).data)
    assert (raw == (pixels[:, :, None] if grey else pixels)).all()
    assert raw.shape == (75, 131, 3)
    small = transcode(pixels, ImageOptions(resize=50))
    assert (small.kind, small.info.width, small.info.mode) == ("jpg", 87, "L" if grey else "RGB")
    turned = transcode(pixels[::-1], KEEP)  # not contiguous
    assert (np.asarray(Image.open(io.BytesIO(turned.data))) == pixels[::-1]).all()


@pytest.mark.parametrize("shape", [(16, 20), (16, 20, 1), (16, 20, 3), (16, 20, 4)])
def test_pixel_arrays_of_every_accepted_shape_are_packed_by_every_policy(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    colours = np.repeat(pixels.reshape(16, 20, -1)[:, :, :1], 3, 2) if shape[2:] in ((), (1,)) else pixels[:, :, :3]
    stored = np.asarray(Image.open(io.BytesIO(transcode(pixels, KEEP).data)))
    assert (stored == pixels.reshape(stored.shape)).all()
    raw = transcode(pixels, RAW)
    assert (np.load(io.BytesIO(raw.data)) == colours).all()
    small = transcode(pixels, ImageOptions(resize=8))
    assert (small.kind, small.info.width, small.info.height) == ("jpg", 10, 8)


@pytest.mark.parametrize("shape", [(4,), (4, 4, 2), (4, 4, 5), (0, 4), (4, 4, 3, 1)])
def test_an_array_that_is_not_an_image_is_refused(shape: tuple[int, ...]) -> None:
    for policy in (KEEP, RAW):
        with pytest.raises(DecodeError, match=r"is an array of shape \(.*allowed are uint8"):
            transcode(np.zeros(shape, np.uint8), policy)
    with pytest.raises(DecodeError, match="float64"):
        transcode(np.zeros((4, 4, 3)), KEEP)  # type: ignore[arg-type]


@given(st.integers(1, 65_535), st.sampled_from([8, 16, 24, 32]))
def test_a_piece_divides_the_row_and_is_as_close_to_64_pixels_as_possible(width: int, mcu: int) -> None:
    row = -(-width // mcu)
    pieces = piece_mcus(width, mcu)
    assert row % pieces == 0
    assert pieces * mcu >= 16 or pieces == row

    def distance(n: int) -> float:
        return abs(math.log(n * mcu / 64))

    assert all(distance(pieces) <= distance(n) for n in range(-(-16 // mcu), min(row, 64) + 1) if row % n == 0)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600))
def test_the_shorter_side_is_resized_as_by_the_view_and_never_enlarged(width: int, height: int, side: int) -> None:
    result = ImageOptions(resize=side).size_of(height, width)
    if min(width, height) <= side:
        assert result == (height, width)
    else:
        regions = Resize(side).regions(np.array([width]), np.array([height]), np.zeros((1, 0)))
        assert result == tuple(regions.size[0].tolist())


def test_missing_options_are_chosen_from_the_given_ones() -> None:
    def chosen(images: str | None = None, resize: object = None, quality: int | None = None) -> str:
        return str(ImageOptions(images=images, resize=resize, quality=quality))  # type: ignore[arg-type]

    assert chosen("keep") == "keep"
    assert chosen("raw") == "raw"
    assert chosen("raw", "128x96") == chosen("raw", (96, 128)) == "raw 128x96"
    assert chosen() == chosen("crop-ready") == "crop-ready"
    assert chosen(None, 256) == chosen("resize", "256", 90) == "resize 256 quality 90"
    assert chosen(None, 256, 80) == "resize 256 quality 80"


def test_options_that_change_the_bytes_change_the_text() -> None:
    sizes = (64, (64, 64), (64, 32))
    raw = [ImageOptions(images="raw", resize=size) for size in (None, *sizes)]
    resized = [
        ImageOptions(resize=size, quality=quality, compiled=compiled)
        for size, quality, compiled in itertools.product(sizes, [80, 90], [True, False])
    ]
    assert len({str(options) for options in (*raw, *resized)}) == len(raw) + len(resized)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": "best"}, "images='best'; allowed are 'keep', 'crop-ready', 'resize', 'raw'"),
        ({"images": "resize"}, r"images='resize' needs a size: give --resize 256 \(resize=256\)"),
        ({"images": "keep", "resize": 3}, "resize=3 with images='keep'; a size requires 'resize' or 'raw'"),
        ({"images": "raw", "quality": 90}, "quality=90 with images='raw'; allowed are 1 to 100, only with 'resize'"),
        ({"resize": 64, "quality": 101}, "quality=101 with images='resize'"),
        ({"quality": 80, "images": "keep"}, "quality=80"),
        ({"images": "keep", "verify_pixels": True}, "verify_pixels with images='keep'"),
        ({"resize": "big"}, "resize='big'; allowed are pixels of the shorter side, or WIDTHxHEIGHT"),
        ({"resize": 0}, "resize=0"), ({"resize": "64x"}, "resize='64x'"), ({"resize": "1x2x3"}, "resize='1x2x3'"),
        ({"resize": (1, 2.5)}, r"resize=\(1, 2.5\)"), ({"resize": 70_000}, "resize=70000"),
        ({"resize": -5}, "resize=-5"),
        ({"resize": "²"}, "resize='²'"), ({"resize": 2.5}, "resize=2.5"),
    ],
)  # fmt: skip
def test_invalid_and_contradictory_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ImageOptions(**options)  # type: ignore[arg-type]


def test_a_size_is_read_as_width_by_height() -> None:
    assert parse_size("640X480") == (480, 640)
    assert parse_size([480, 640]) == (480, 640)  # type: ignore[arg-type]
    assert parse_size(7) == parse_size("7") == 7


def test_without_the_compiled_module_images_are_kept_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", None)
    kept = ImageOptions(verify_pixels=True)
    assert str(kept) == "keep"
    assert "Until then, JPEGs are kept unchanged" in kept.notice
    resized = ImageOptions(resize=64)
    assert str(resized) == "resize 64 quality 90 not compiled"
    assert "Until then, JPEGs that need no resizing are kept unchanged" in resized.notice
    assert transcode(encode(noise()), resized).info.restart > 0  # Pillow writes the markers
    for images in ("keep", "raw"):
        assert not ImageOptions(images=images).notice
    with pytest.raises(OptionError, match=r"images='crop-ready' cannot be used: the compiled module"):
        ImageOptions(images="crop-ready")


# In a dataset


@pytest.fixture(scope="module")
def crop_ready(few_photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 40 photos packed crop-ready."""
    folder = tmp_path_factory.mktemp("crop") / "ready"
    wt.pack(few_photos, folder, shard_bytes="100kB", workers=1, images="crop-ready")
    return folder


@pytest.mark.filterwarnings("ignore:images will come as a list")
@pytest.mark.parametrize("view", [wt.RandomResizedCrop(64, flip=True), wt.CenterCrop(64, resize=80), wt.Resize(50)])
@pytest.mark.torture_except("view1")
def test_the_loader_returns_the_same_pixels_from_crop_ready_shards(
    few_photos: Path, crop_ready: Path, tmp_path: Path, view: View
) -> None:
    wt.pack(few_photos, tmp_path / "kept", shard_bytes="100kB", workers=1, images="keep")
    batches = []
    for dataset in (tmp_path / "kept", crop_ready):
        with wt.make_loader(dataset, batch_size=8, view=view, shuffle=False, num_workers=0) as loader:
            batches.append([(list(images), labels) for images, labels in loader])
    assert len(batches[0]) == 5
    for one, other in zip(*batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
        assert torch.equal(one[1], other[1])


def test_the_index_marks_crop_ready_images_and_so_does_indexing_again(crop_ready: Path, tmp_path: Path) -> None:
    stats = wt.describe(crop_ready)
    assert stats.crop_ready == stats.fields["jpg"].samples > 30
    for path in crop_ready.glob("*.tar"):
        shutil.copy(path, tmp_path)
    wt.index_shards([f"{tmp_path}/*.tar"])
    for path in crop_ready.glob("*.parquet"):
        again, packed = pq.read_table(tmp_path / path.name), pq.read_table(path)
        assert again.equals(packed.drop_columns(list(COLUMNS)))


@pytest.mark.parametrize(("cores", "workers"), [(3, 1), (1, 2), pytest.param(3, 2, marks=pytest.mark.torture)])
@pytest.mark.torture_except("3-1")
def test_workers_and_threads_change_no_byte_of_crop_ready_shards(
    few_photos: Path, crop_ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr("wds_tools.packing.run.available_cores", lambda: cores)
    options = {"shard_bytes": "100kB", "workers": workers, "images": "crop-ready", "verify_pixels": True}
    wt.pack(few_photos, tmp_path / "dst", **options)  # type: ignore[arg-type]
    assert contents(tmp_path / "dst") == contents(crop_ready)


def test_packing_with_another_policy_into_a_dataset_is_refused(six_photos: Path, tmp_path: Path) -> None:
    src, dst = six_photos, tmp_path / "dst"
    wt.pack(src, dst, images="raw", resize=32, workers=1)
    assert wt.pack(src, dst, images="raw", resize=32, workers=1).kept == 1
    for options, said in (
        ({"images": "keep"}, "images was 'raw 32' and is 'keep'"),
        ({"images": "raw", "resize": 48}, "images was 'raw 32' and is 'raw 48'"),
    ):
        with pytest.raises(DestinationError, match=f"holds another dataset .*{said}"):
            wt.pack(src, dst, workers=1, **options)  # type: ignore[arg-type]


def test_raw_shards_are_read_by_the_loader_and_by_webdataset(few_photos: Path, tmp_path: Path) -> None:
    wt.pack(few_photos, tmp_path / "dst", images="raw", resize="48x32", shard_bytes="100kB", workers=1)
    manifest = manifest_of(tmp_path / "dst")
    assert all(shard.bytes <= 100_000 for shard in manifest.shards)
    assert all(shard.bytes > 90_000 for shard in manifest.shards[:-1])  # the sizes are known before packing
    urls = [str(tmp_path / "dst" / shard.name) for shard in manifest.shards]
    theirs = [sample["npy"] for sample in webdataset.WebDataset(urls, shardshuffle=False).decode()]
    with wt.make_loader(tmp_path / "dst", batch_size=8, view=wt.Resize((32, 48)), num_workers=0, tail="mask") as loader:
        ours = torch.cat([batch[0] for batch in loader])
    assert theirs[0].shape == (32, 48, 3)
    assert (ours[: len(theirs)].numpy() == np.stack(theirs).transpose(0, 3, 1, 2)).all()
    with wt.make_loader(tmp_path / "dst", batch_size=8, view=wt.CenterCrop((20, 30)), num_workers=0) as loader:
        images, _ = next(iter(loader))
    assert (images.numpy() == np.stack(theirs[:8]).transpose(0, 3, 1, 2)[:, :, 6:26, 9:39]).all()


@pytest.mark.torture
def test_the_length_of_resized_shards_is_close_to_shard_bytes(photos: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    wt.pack(photos, dst, resize=64, quality=80, shard_bytes="200kB", workers=1)
    sizes = [shard.bytes for shard in manifest_of(dst).shards]
    assert len(sizes) > 3
    assert 0.8 * 200_000 < np.mean(sizes[:-1]) < 1.1 * 200_000
    assert wt.describe(dst).fields.keys() == {"jpg", "cls", "json"}  # the PNGs became JPEGs
    again = tmp_path / "again"
    wt.pack(photos, again, resize=64, quality=80, shard_bytes="200kB", workers=2)
    assert contents(again) == contents(dst)


def test_an_npy_field_that_is_not_an_image_has_no_image_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "vector", "npy": np.arange(4.0), "cls": 1})
        writer.write({"__key__": "image", "npy": np.zeros((4, 5, 3), np.uint8), "cls": 1})
        writer.write({"__key__": "both", "jpg": encode(noise()), "npy": np.zeros((4, 5, 3), np.uint8), "cls": 1})
    wt.index_shards([str(tmp_path / "a.tar")])
    assert not caplog.records
    index = from_bytes((tmp_path / "a.parquet").read_bytes(), name="a")
    assert (index.width.tolist(), index.height.tolist()) == ([0, 5, 131], [0, 4, 75])
    assert index.mode == ["", "RGB", "RGB"]
    with wt.make_loader(tmp_path, batch_size=3, fields=("npy", "__key__"), num_workers=0) as loader:
        (batch,) = loader
    assert batch.npy[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "ready"),
    [
        (ImageOptions(images="crop-ready"), True),
        (ImageOptions(resize=256), True),
        (ImageOptions(resize=256, compiled=False), False),
        (ImageOptions(images="keep"), False),
        (ImageOptions(images="raw"), False),
    ],
)
def test_a_manifest_shows_whether_images_were_made_crop_ready(options: ImageOptions, ready: bool) -> None:
    source = {"images": str(options)}
    assert are_crop_ready(source) is ready
    assert are_crop_ready({"parts": [{"images": "crop-ready"}, source]}) is ready
    assert not are_crop_ready(None)
