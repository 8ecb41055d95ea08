"""The compiled JPEG decoder returns exactly the samples of libjpeg-turbo, or skips a file."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
import turbo
from native_helpers import needs_native
from numpy.typing import NDArray
from torchvision.io import decode_jpeg
from turbo import Coding, Script

from wds_tools.images import native

pytestmark = needs_native

GREY = Coding(space="L", factors=((1, 1),))
COLOUR = Coding()


def compared(photos: Path, first: int, count: int) -> str:
    """Compare generated JPEGs in another process, because an error of libjpeg ends its process."""
    command = [sys.executable, oracle.__file__, native.compiled.__file__, photos, first, count]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.torture)])
def test_generated_jpegs_have_the_samples_of_libjpeg(photos: Path, count: int) -> None:
    assert compared(photos, 0, count).startswith(f"{count} images: ")


@pytest.mark.torture
@pytest.mark.night
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_generated_jpegs_have_the_samples_of_libjpeg(photos: Path) -> None:
    for first in range(1_000_000, 1_100_000, 5000):
        assert compared(photos, first, 5000).startswith("5000 images: ")


@pytest.fixture(scope="module")
def pixels(photos: Path) -> NDArray[np.uint8]:
    """Return a photograph of 60 x 45 pixels."""
    return oracle.content(oracle.read_photos(photos)[:1], 45, 60, random.Random(2))


def is_skipped(data: bytes, width: int = 60, height: int = 45) -> bool:
    return all(native.compiled.decode_jpeg(data, (0, 0, width, height), smaller) is None for smaller in (1, 2, 4, 8))


def encoded(pixels: NDArray[np.generic], coding: Coding) -> bytes:
    return turbo.encode(turbo.library(), pixels, coding)


@pytest.mark.parametrize("coding", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("progressive", [False, True])
def test_arithmetic_coding_12_bits_and_lossless_coding_are_skipped(pixels, coding: Coding, progressive: bool) -> None:
    channels = pixels[..., : len(coding.factors)]
    coding = replace(coding, progressive=progressive)
    assert not is_skipped(encoded(channels, coding))
    assert is_skipped(encoded(channels, replace(coding, arithmetic=True)))
    assert is_skipped(encoded(channels.astype(np.int16) * 16, replace(coding, bits=12)))
    if not progressive:
        flat = replace(coding, lossless=True, factors=((1, 1),) * len(coding.factors))
        assert is_skipped(encoded(channels, flat))


def test_four_components_are_skipped(pixels) -> None:
    four = np.concatenate([pixels, pixels[..., :1]], axis=2)
    for progressive in (False, True):
        coding = Coding(space="CMYK", factors=((1, 1),) * 4, progressive=progressive)
        assert is_skipped(encoded(four, coding))


CODINGS = [GREY, COLOUR, replace(COLOUR, progressive=True), replace(COLOUR, restart=1), replace(GREY, restart=3)]


@pytest.mark.parametrize("coding", CODINGS, ids=["grey", "colour", "progressive", "restart", "grey restart"])
@pytest.mark.parametrize("end", [b"", b"\xff\xd9", bytes(100), b"\xff" * 100], ids=["none", "marker", "zeros", "ones"])
@pytest.mark.torture_except(
    *("none-grey", "none-colour", "none-progressive", "none-restart", "none-grey restart"),
    *("marker-colour", "zeros-progressive", "ones-restart", "marker-grey restart"),
)
def test_a_file_truncated_at_any_byte_is_skipped(pixels, coding: Coding, end: bytes) -> None:
    data = encoded(pixels[..., : len(coding.factors)], coding)
    assert not is_skipped(data)
    assert not is_skipped(data + bytes(100))
    for size in range(len(data) - 2):  # the last two bytes are the end-of-image marker
        assert is_skipped(data[:size] + end)
    assert end == b"\xff\xd9" or is_skipped(data[:-2] + end)


# Each script lacks something: a band, a low bit of a band, a low bit of DC, the AC coefficients of
# components.
INCOMPLETE: list[Script] = [
    [((0,), 0, 0, 0, 0), ((0,), 1, 62, 0, 0)],
    [((0,), 0, 0, 0, 0), ((0,), 1, 63, 0, 1), ((0,), 2, 63, 1, 0)],
    [((0,), 0, 0, 0, 1), ((0,), 1, 63, 0, 0)],
    [((0, 1, 2), 0, 0, 0, 0), ((0,), 1, 63, 0, 0), ((1,), 1, 63, 0, 0)],
    [((0, 1, 2), 0, 0, 0, 0)],
]


@pytest.mark.parametrize("script", INCOMPLETE, ids=str)
def test_an_incomplete_progressive_jpeg_is_skipped(pixels, script: Script) -> None:
    coding = COLOUR if len(script[0][0]) == 3 else GREY
    assert is_skipped(encoded(pixels[..., : len(coding.factors)], replace(coding, script=script)))


def without_scan(data: bytes, number: int) -> bytes:
    """Remove a scan and its tables from a file."""
    starts = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    ends = [*starts[1:], len(data) - 2]
    return data[: starts[number]] + data[ends[number] :]


@pytest.mark.parametrize("script", [None, [((0,), 0, 63, 0, 0), ((1, 2), 0, 63, 0, 0)]], ids=["progressive", "scans"])
def test_a_jpeg_without_one_of_its_scans_is_skipped(pixels, script: Script | None) -> None:
    data = encoded(pixels, replace(COLOUR, script=script, progressive=script is None))
    assert not is_skipped(data)
    for number in range(data.count(b"\xff\xda")):
        assert is_skipped(without_scan(data, number))


@pytest.mark.parametrize(("first", "other"), [((2, 2), (1, 1)), ((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 2), (1, 1))])
def test_every_region_of_an_image_has_the_samples_of_libjpeg(
    pixels, first: tuple[int, int], other: tuple[int, int]
) -> None:
    coding = replace(COLOUR, factors=(first, other, other), restart=2)
    library, data = turbo.library(), encoded(pixels, coding)
    for smaller in (1, 2, 4, 8):
        planes = turbo.decode(library, data, smaller)
        for top in range(0, 45, 4):
            for left in range(0, 60, 3):
                for side in (1, 9):
                    region = left, top, min(side, 60 - left), min(side, 45 - top)
                    oracle.compare(native.compiled, data, region, smaller, planes, (45, 60))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torchvision")
def test_torchvision_decodes_a_transcoded_jpeg_to_the_same_pixels(photos: Path) -> None:
    codings = [replace(COLOUR, progressive=True), replace(COLOUR, factors=((2, 1), (1, 1), (1, 1))), GREY]
    photo = oracle.read_photos(photos)[0]
    files = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[::8]]
    files += [encoded(photo[..., : len(coding.factors)], coding) for coding in codings]
    for data in files:
        transcoded, _ = native.compiled.transcode_jpeg(data, 8, 11, 1 << 26)
        before, after = (
            decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8)) for file in (data, transcoded)
        )
        assert torch.equal(before, after)
