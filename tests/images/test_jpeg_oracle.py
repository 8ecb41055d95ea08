"""Our decoder has the samples of libjpeg-turbo, to the bit, or leaves a file alone."""

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
    """Compare generated JPEGs in a process of its own, which an error of libjpeg ends."""
    command = [sys.executable, oracle.__file__, native._native.__file__, photos, first, count]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_four_hundred_generated_pictures_have_libjpegs_samples(photos: Path) -> None:
    assert compared(photos, 0, 400).startswith("400 images: ")


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_generated_pictures_have_libjpegs_samples(photos: Path) -> None:
    for first in range(1_000_000, 1_100_000, 5000):
        assert compared(photos, first, 5000).startswith("5000 images: ")


@pytest.fixture(scope="module")
def pixels(photos: Path) -> NDArray[np.uint8]:
    """A photograph of 60 x 45 pixels."""
    return oracle.content(oracle.read_photos(photos)[:1], 45, 60, random.Random(2))


def left_alone(data: bytes, width: int = 60, height: int = 45) -> bool:
    return all(native._native.decode_jpeg(data, (0, 0, width, height), smaller) is None for smaller in (1, 2, 4, 8))


def encoded(pixels: NDArray[np.generic], coding: Coding) -> bytes:
    return turbo.encode(turbo.library(), pixels, coding)


@pytest.mark.parametrize("coding", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("progressive", [False, True])
def test_what_is_coded_in_another_way_is_left_alone(pixels, coding: Coding, progressive: bool) -> None:
    shown = pixels[..., : len(coding.factors)]
    coding = replace(coding, progressive=progressive)
    assert not left_alone(encoded(shown, coding))
    assert left_alone(encoded(shown, replace(coding, arithmetic=True)))
    assert left_alone(encoded(shown.astype(np.int16) * 16, replace(coding, bits=12)))
    if not progressive:
        flat = replace(coding, lossless=True, factors=((1, 1),) * len(coding.factors))
        assert left_alone(encoded(shown, flat))


def test_four_components_are_left_alone(pixels) -> None:
    four = np.concatenate([pixels, pixels[..., :1]], axis=2)
    for progressive in (False, True):
        coding = Coding(space="CMYK", factors=((1, 1),) * 4, progressive=progressive)
        assert left_alone(encoded(four, coding))


CODINGS = [GREY, COLOUR, replace(COLOUR, progressive=True), replace(COLOUR, restart=1), replace(GREY, restart=3)]


@pytest.mark.parametrize("coding", CODINGS, ids=["grey", "colour", "progressive", "restart", "grey restart"])
@pytest.mark.parametrize("end", [b"", b"\xff\xd9", bytes(100), b"\xff" * 100], ids=["none", "marker", "zeros", "ones"])
def test_a_file_that_was_cut_anywhere_is_left_alone(pixels, coding: Coding, end: bytes) -> None:
    data = encoded(pixels[..., : len(coding.factors)], coding)
    assert not left_alone(data)
    assert not left_alone(data + bytes(100))
    for size in range(len(data) - 2):  # the last two bytes are the marker of the end
        assert left_alone(data[:size] + end)
    assert end == b"\xff\xd9" or left_alone(data[:-2] + end)


# Each leaves out something: a band, a low bit of one, one of DC, all of a component's AC.
INCOMPLETE: list[Script] = [
    [((0,), 0, 0, 0, 0), ((0,), 1, 62, 0, 0)],
    [((0,), 0, 0, 0, 0), ((0,), 1, 63, 0, 1), ((0,), 2, 63, 1, 0)],
    [((0,), 0, 0, 0, 1), ((0,), 1, 63, 0, 0)],
    [((0, 1, 2), 0, 0, 0, 0), ((0,), 1, 63, 0, 0), ((1,), 1, 63, 0, 0)],
    [((0, 1, 2), 0, 0, 0, 0)],
]


@pytest.mark.parametrize("script", INCOMPLETE, ids=str)
def test_a_progressive_picture_that_lacks_a_part_is_left_alone(pixels, script: Script) -> None:
    coding = COLOUR if len(script[0][0]) == 3 else GREY
    assert left_alone(encoded(pixels[..., : len(coding.factors)], replace(coding, script=script)))


def without_scan(data: bytes, number: int) -> bytes:
    """Take a scan out of a file, with its tables."""
    starts = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    ends = [*starts[1:], len(data) - 2]
    return data[: starts[number]] + data[ends[number] :]


@pytest.mark.parametrize("script", [None, [((0,), 0, 63, 0, 0), ((1, 2), 0, 63, 0, 0)]], ids=["progressive", "scans"])
def test_a_picture_of_which_a_scan_is_lost_is_left_alone(pixels, script: Script | None) -> None:
    data = encoded(pixels, replace(COLOUR, script=script, progressive=script is None))
    assert not left_alone(data)
    for number in range(data.count(b"\xff\xda")):
        assert left_alone(without_scan(data, number))


@pytest.mark.parametrize(("first", "other"), [((2, 2), (1, 1)), ((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 2), (1, 1))])
def test_every_region_of_a_picture_has_its_samples(pixels, first: tuple[int, int], other: tuple[int, int]) -> None:
    coding = replace(COLOUR, factors=(first, other, other), restart=2)
    library, data = turbo.library(), encoded(pixels, coding)
    for smaller in (1, 2, 4, 8):
        planes = turbo.decode(library, data, smaller)
        for top in range(0, 45, 4):
            for left in range(0, 60, 3):
                for side in (1, 9):
                    region = left, top, min(side, 60 - left), min(side, 45 - top)
                    oracle.compare(native._native, data, region, smaller, planes, (45, 60))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torchvision")
def test_torchvision_decodes_what_was_transcoded_to_the_same_pixels(photos: Path) -> None:
    codings = [replace(COLOUR, progressive=True), replace(COLOUR, factors=((2, 1), (1, 1), (1, 1))), GREY]
    shown = oracle.read_photos(photos)[0]
    files = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[::8]]
    files += [encoded(shown[..., : len(coding.factors)], coding) for coding in codings]
    for data in files:
        made = native._native.transcode_jpeg(data, 8, 11, 1 << 26)
        before, after = (decode_jpeg(torch.frombuffer(bytearray(each), dtype=torch.uint8)) for each in (data, made))
        assert torch.equal(before, after)
