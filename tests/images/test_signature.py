"""Signatures of images: the hash of imagehash, the same for a JPEG made crop-ready, and similar for copies."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from wds_tools.format.image_header import probe
from wds_tools.format.image_signature import Signature
from wds_tools.images import native
from wds_tools.images.sign import sign, sign_pixels
from wds_tools.packing.transcode import ImageOptions, transcode

COSINE = np.array([[np.cos(np.pi * (2 * x + 1) * u / 64) for x in range(32)] for u in range(8)])


def signature(data: bytes) -> Signature:
    found = sign(data, probe(data))
    assert found is not None
    return found


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def reference_hash(image: Image.Image) -> int:
    """Return the hash as imagehash defines it, in floating point."""
    grid = np.asarray(ImageOps.exif_transpose(image).convert("L").resize((32, 32), Image.Resampling.BOX), float)
    values = (COSINE @ grid @ COSINE.T).ravel()
    return int("".join("1" if value > np.median(values) else "0" for value in values), 2)


def bits(one: int, other: int) -> int:
    return (one ^ other).bit_count()


@pytest.fixture(scope="module")
def files(photos: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[::20]]


def test_the_hash_is_that_of_imagehash_up_to_rounding(files: list[bytes]) -> None:
    distances = [bits(signature(data).phash, reference_hash(Image.open(io.BytesIO(data)))) for data in files]
    assert max(distances) <= 8
    assert np.mean(distances) < 3


def test_a_jpeg_keeps_its_signature_when_it_is_made_crop_ready(files: list[bytes]) -> None:
    for data in files:
        packed = transcode(data, ImageOptions(images="crop-ready"))
        assert packed.signature == signature(data) == signature(packed.data)


def test_only_images_that_are_decoded_anyway_get_a_signature(files: list[bytes]) -> None:
    png = encoded(Image.open(io.BytesIO(files[0])), "PNG")
    for data, options, is_signed in (
        (files[0], ImageOptions(images="keep"), False),
        (png, ImageOptions(images="crop-ready"), False),
        (png, ImageOptions(resize=64), True),
        (png, ImageOptions(images="raw", resize="32x32"), True),
        (np.zeros((40, 60, 3), np.uint8), ImageOptions(images="crop-ready"), True),
    ):
        packed = transcode(data, options)
        assert (packed.signature is not None) == is_signed
        if is_signed:
            assert packed.signature == signature(packed.data)


def test_the_exif_orientation_is_applied(files: list[bytes]) -> None:
    image = Image.open(io.BytesIO(files[1])).convert("RGB")
    for orientation in range(1, 9):
        exif = image.getexif()
        exif[274] = orientation
        turned = encoded(image, quality=95, exif=exif)
        shown = encoded(ImageOps.exif_transpose(Image.open(io.BytesIO(turned))), "PNG")
        assert bits(signature(turned).phash, signature(shown).phash) <= 2, orientation


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1, 3000), (31, 33), (64, 200), (130, 128), (600, 513)])
def test_images_of_every_size_have_a_signature_that_hardly_depends_on_their_type(
    files: list[bytes], size: tuple[int, int]
) -> None:
    image = Image.open(io.BytesIO(files[2])).convert("RGB").resize(size)
    one, other = signature(encoded(image, quality=98, subsampling=0)), signature(encoded(image, "PNG"))
    assert one.brightness == pytest.approx(other.brightness, abs=1)
    assert one.contrast == pytest.approx(other.contrast, abs=2)
    if min(size) > 30:
        assert bits(one.phash, other.phash) <= 4


def test_measures_tell_what_they_are_named_after(files: list[bytes]) -> None:
    image = Image.open(io.BytesIO(files[0])).convert("RGB")
    blank = sign_pixels(np.full((300, 200, 3), 77, np.uint8))
    assert blank == (1 << 63, 77, 0, 0)
    assert sign_pixels(np.zeros((300, 200), np.uint8)).phash == 0
    plain = signature(encoded(image))
    assert signature(encoded(image.point(lambda value: value // 2))).brightness == pytest.approx(
        plain.brightness / 2, abs=1
    )
    blurred = image.filter(ImageFilter.GaussianBlur(min(image.size) / 50))
    assert signature(encoded(blurred)).sharpness < plain.sharpness / 2


def test_copies_have_nearly_the_same_hash_and_other_images_have_not(files: list[bytes]) -> None:
    hashes = [signature(data).phash for data in files]
    for data, one in zip(files, hashes, strict=True):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        small = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
        assert bits(one, signature(encoded(image, quality=30)).phash) <= 6
        assert bits(one, signature(encoded(small)).phash) <= 10
    assert min(bits(one, other) for i, one in enumerate(hashes) for other in hashes[:i]) > 10


def test_what_is_damaged_or_not_supported_has_no_signature(files: list[bytes]) -> None:
    assert sign(files[0][:2000], probe(files[0])) is None
    assert native.sign_jpeg(files[0][:2000], 1) is None
    cmyk = encoded(Image.open(io.BytesIO(files[0])).convert("CMYK"))
    assert native.sign_jpeg(cmyk, 1) is None
    assert bits(signature(cmyk).phash, signature(files[0]).phash) <= 6
    for orientation in (0, 9):
        with pytest.raises(ValueError, match="orientation must be 1 to 8"):
            native.sign_jpeg(files[0], orientation)
    with pytest.raises(ValueError, match="are not 3 x 4"):
        native.compiled.sign_pixels(b"", 3, 4, 1)


def test_16_bits_and_alpha(files: list[bytes]) -> None:
    image = Image.open(io.BytesIO(files[0])).convert("L")
    deep = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    grey = signature(encoded(image, "PNG"))
    assert signature(encoded(deep, "PNG")) == grey
    assert signature(encoded(image.convert("LA"), "PNG")) == grey
