"""The compiled path with hostile files and wrong arguments; its threads, its memory and the GIL."""

from __future__ import annotations

import io
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutants
import numpy as np
import pytest
import simplejpeg
from native_helpers import (
    Pixels,
    by_native,
    encoded,
    needs_native,
    region,
    regions_of,
    sampled,
    unknown_sizes,
)
from PIL import Image, ImageFile

from wds_tools import stages
from wds_tools.errors import DecodeError
from wds_tools.images import native
from wds_tools.images.decode import decode_rgb
from wds_tools.images.resize import render_region
from wds_tools.images.views import RandomResizedCrop, Regions, Resize

pytestmark = needs_native

GEOMETRY = np.array([[0, 0, 64, 48, 24, 32, 0, 0, 0, 0, 0, 64, 48, 64, 48]], np.float64)
SIZES = np.array([[24, 32]], np.int32)


@pytest.fixture(scope="module")
def photo(photos: Path) -> Image.Image:
    """Return a colour photograph."""
    return Image.open(sorted((photos / "coffee").glob("*.jpg"))[0]).convert("RGB")


@pytest.fixture(scope="module")
def files(photos: Path) -> list[bytes]:
    """Return sample photographs that are JPEGs."""
    return [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[::12]]


@pytest.fixture(scope="module")
def seeds(photo: Image.Image) -> list[bytes]:
    """Return small JPEGs of all codings, from which mutants are generated."""
    options = [{}, {"progressive": True}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1}, {"keep_rgb": True}]
    files = []
    for size in ((96, 64), (17, 9), (1, 1), (40, 131)):
        image = photo.resize(size)
        files += [encoded(image.convert(mode), **each) for mode in ("L", "RGB") for each in options]
        files += [sampled(image, sampling) for sampling in ("444", "422", "440", "411")]
        files += [encoded(image.convert("CMYK")), encoded(image, subsampling=0, restart_marker_blocks=1)]
    return files


def test_extreme_numbers_in_a_geometry_are_handled_without_partial_output(photo: Image.Image) -> None:
    data = encoded(photo.resize((64, 48)))
    assert by_native([data], region((0, 0, 64, 48), (24, 32), (0, 0), (24, 32), flip=False))[0] == [True]
    for column in range(15):
        for number in mutants.LIMITS:
            geometry = GEOMETRY.copy()
            geometry[0, column] = number
            rendered, out = mutants.run(native.compiled, [data], [geometry.tolist()], [(24, 32)])
            assert len(rendered) == 1
            assert rendered[0] or not any(out[0])


@pytest.mark.parametrize(
    ("column", "number"),
    [
        (0, -1),
        (0, 1),
        (2, 63),
        (4, 23),
        (5, 31),
        (6, 1),
        (7, 1),
        (4, 23.4),
        (6, -0.6),
        (6, math.nan),
        (8, 4),
        (9, 1),
        (10, -1),
        (11, 0),
        (11, 65),
        (12, 49),
        (13, 63),
        (13, 65),
        (14, 47),
        (14, -1),
    ],
)
def test_an_image_with_an_inconsistent_geometry_is_skipped(photo: Image.Image, column: int, number: float) -> None:
    geometry = GEOMETRY.copy()
    geometry[0, column] = number
    rendered, (out,) = mutants.run(native.compiled, [encoded(photo.resize((64, 48)))], [geometry.tolist()], [(24, 32)])
    assert rendered == b"\0"
    assert not any(out)


def test_a_crop_with_an_inconsistent_geometry_does_not_affect_the_others(photo: Image.Image) -> None:
    data, wrong = encoded(photo.resize((64, 48))), GEOMETRY.copy()
    wrong[0, 0] = -1
    _, (expected,) = mutants.run(native.compiled, [data], [GEOMETRY.tolist()], [(24, 32)])
    crops = [wrong.tolist(), GEOMETRY.tolist(), wrong.tolist()]
    rendered, pixels = mutants.run(native.compiled, [data], crops, [(24, 32)] * 3)
    assert rendered == b"\0\1\0"
    assert pixels[1] == expected
    assert not any(pixels[0] + pixels[2])


def test_a_file_that_is_not_a_contiguous_buffer_is_an_error(photo: Image.Image) -> None:
    out = np.zeros((1, 3, 24, 32), np.uint8)
    for files in ([1], ["text"], [object()], (b"",), b"", None, [memoryview(encoded(photo))[::2]]):
        with pytest.raises((TypeError, ValueError, BufferError)):
            native.compiled.render_jpegs(files, GEOMETRY, [out], SIZES, 10_000, None)


READ_ONLY = np.zeros((1, 3, 24, 32), np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "changes",
    [
        {"geometry": GEOMETRY[:, :14]},
        {"geometry": GEOMETRY[[0, 0]]},
        {"geometry": np.repeat(GEOMETRY, 2, axis=1)[:, ::2]},
        {"geometry": np.zeros(121, np.uint8)[1:]},  # not aligned for floating-point numbers
        {"geometry": None},
        {"outputs": [np.zeros((1, 3, 24, 31), np.uint8)]},
        {"outputs": [np.zeros((2, 3, 24, 32), np.uint8)]},
        {"outputs": [np.zeros((1, 3, 24, 64), np.uint8)[..., ::2]]},
        {"outputs": [READ_ONLY]},
        {"outputs": [bytes(3 * 24 * 32)]},
        {"outputs": [7]},
        {"outputs": []},
        {"outputs": [], "sizes": b""},
        {"outputs": [], "sizes": b"", "geometry": b""},
        {"outputs": None},
        {"outputs": [np.zeros((1, 3, 24, 32), np.uint8)] * 2},
        {"outputs": [np.zeros((1, 3, 24, 32), np.uint8)] * 2, "sizes": np.repeat(SIZES, 2, axis=0)},
        {"sizes": np.array([[0, 32]], np.int32)},
        {"sizes": np.array([[-24, -32]], np.int32)},
        {"sizes": np.array([[1 << 16, 1 << 16]], np.int32)},
        {"sizes": np.array([[(1 << 31) - 1] * 2], np.int32)},
        {"sizes": np.array([[24]], np.int32)},
        {"sizes": np.zeros(9, np.uint8)[1:]},  # not aligned for 32-bit integers
        {"sizes": None},
        {"max_pixels": 0},
        {"max_pixels": -1},
        {"max_pixels": 1 << 63},
        {"timings": np.zeros(3)},
        {"timings": np.zeros(33, np.uint8)[1:]},
        {"timings": 7},
    ],
    ids=str,
)
def test_wrong_arguments_are_errors(photo: Image.Image, changes: dict[str, object]) -> None:
    out = np.zeros((1, 3, 24, 32), np.uint8)
    given = {
        "geometry": GEOMETRY,
        "outputs": [out],
        "sizes": SIZES,
        "max_pixels": 10_000,
        "timings": None,
        **changes,
    }
    with pytest.raises((TypeError, ValueError, BufferError, OverflowError)):
        native.compiled.render_jpegs([encoded(photo)], *given.values())
    assert not out.any()


@pytest.mark.parametrize(
    ("files", "offset", "height", "width"),
    [
        ([bytes(106)], 0, 5, 7),
        ([bytes(105)], 1, 5, 7),
        ([bytes(105)], -1, 5, 7),
        ([bytes(105)], sys.maxsize, 5, 7),
        ([bytes(105)], 0, 7, 7),
        ([bytes(105)], 0, -5, -7),
        ([bytes(105)], 0, (1 << 31) - 1, (1 << 31) - 1),
        ([bytes(105), bytes(105)], 0, 5, 7),
        ([None], 0, 5, 7),
        ([1], 0, 5, 7),
        (None, 0, 5, 7),
        ([bytes(105)], 1 << 63, 5, 7),
    ],
)
def test_wrong_arguments_for_stored_pixels_are_errors(files: object, offset: int, height: int, width: int) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.compiled.copy_pixels(files, offset, bytearray(105), height, width)


@pytest.mark.parametrize(
    ("pixels", "images", "table", "out"),
    [
        (bytes(24), 2, bytes(3 * 256 * 4), bytearray(95)),
        (bytes(24), 2, bytes(3 * 256 * 4), bytearray(100)),
        (bytes(24), 5, bytes(3 * 256 * 4), bytearray(96)),
        (bytes(25), 2, bytes(3 * 256 * 4), bytearray(100)),
        (bytes(24), -2, bytes(3 * 256 * 4), bytearray(96)),
        (bytes(24), 0, bytes(3 * 256 * 4), bytearray(96)),
        (bytes(24), 2, bytes(3 * 256 * 4 - 1), bytearray(96)),
        (bytes(24), 2, bytes(3 * 256), bytearray(24)),
        (bytes(24), 2, b"", bytearray(96)),
        (bytes(24), 2, bytes(3 * 256 * 4), bytes(96)),
        (None, 2, bytes(3 * 256 * 4), bytearray(96)),
        (bytes(24), 1 << 63, bytes(3 * 256 * 4), bytearray(96)),
        (bytes(24), sys.maxsize, bytes(3 * 256 * 4), bytearray(96)),
    ],
)
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_wrong_arguments_for_conversions_are_errors(
    pixels: object, images: int, table: bytes, out: object, *, is_interleaved: bool
) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        native.compiled.convert_pixels(pixels, images, table, out, is_interleaved)


def test_an_empty_batch_is_accepted() -> None:
    assert native.compiled.convert_pixels(b"", 0, bytes(3 * 256 * 4), bytearray(), False) is None
    assert native.compiled.render_jpegs([], b"", [], b"", 10, None) == b""
    assert native.compiled.copy_pixels([], 0, bytearray(), 5, 7) is None


def test_images_above_the_pixel_limit_are_skipped(photo: Image.Image) -> None:
    data, out = encoded(photo.resize((64, 48))), bytearray(3 * 24 * 32)
    assert native.compiled.render_jpegs([data], GEOMETRY, [out], SIZES, 64 * 48, None) == b"\1"
    assert native.compiled.render_jpegs([data], GEOMETRY, [out], SIZES, 64 * 48 - 1, None) == b"\0"


def test_a_small_file_that_claims_a_huge_size_is_skipped(photo: Image.Image) -> None:
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 1}):
        data = bytearray(encoded(photo.resize((64, 48)), **options))
        frame = data.index(b"\xff\xc2" if "progressive" in options else b"\xff\xc0")
        data[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"  # 65500 x 65500
        full_region = region((0, 0, 65_500, 65_500), (24, 32), (0, 0), (24, 32), flip=False)
        assert by_native([bytes(data)], full_region)[0] == [False]


def releases_gil(call: Callable[[], object]) -> bool:
    """Return whether another thread makes progress while this one only repeats a call."""
    switch, turns, stop = sys.getswitchinterval(), [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)  # releases the GIL

    counter = threading.Thread(target=count)
    sys.setswitchinterval(60)  # so that the counter runs only if the call releases the GIL
    counter.start()
    try:
        before = turns[0]
        for _ in range(100):
            call()
            if turns[0] > before:
                return True
    finally:
        stop.set()
        sys.setswitchinterval(switch)
        counter.join()
    return False


def test_a_call_releases_the_gil(photo: Image.Image) -> None:
    files = [encoded(photo.resize((64, 48)))] * 1000
    geometry, out = np.repeat(GEOMETRY, 1000, axis=0), list(np.zeros((1000, 3, 24, 32), np.uint8))
    sizes = np.repeat(SIZES, 1000, axis=0)
    assert releases_gil(lambda: native.compiled.render_jpegs(files, geometry, out, sizes, 10_000, None))
    assert not releases_gil(lambda: sum(range(10_000)))


def test_the_time_of_each_step_is_added_to_its_stage(files: list[bytes]) -> None:
    regions = regions_of(RandomResizedCrop(64), files)
    out, recorder = np.zeros((len(files), 3, 64, 64), np.uint8), stages.Recorder()
    steps = (stages.SLICE, stages.DECODE, stages.RESIZE, stages.WRITE)
    before = [0] * len(steps)
    for _ in range(3):
        with recorder:
            native.render_jpegs(list(map(memoryview, files)), unknown_sizes(len(files)), [regions], [out])
        after = [recorder.elapsed(step) for step in steps]
        assert all(now > then for now, then in zip(after, before, strict=True))
        before = after


def test_concurrent_calls_of_several_threads_return_the_same_pixels(files: list[bytes]) -> None:
    regions = regions_of(RandomResizedCrop(96, flip=True), files)
    _, expected = by_native(files, regions)
    with ThreadPoolExecutor(8) as threads:
        for rendered, out in threads.map(lambda _: by_native(files, regions), range(16)):
            assert all(rendered)
            assert (out == expected).all()


def test_pixels_do_not_depend_on_damaged_images_in_the_same_batch(files: list[bytes], seeds: list[bytes]) -> None:
    regions = regions_of(Resize((30, 40)), files)
    _, expected = by_native(files, regions)
    rng = random.Random(0)
    for i, data in enumerate(files):
        others = [mutants.mutant(seeds, rng) for _ in range(3)]
        mixed = regions_of(Resize((30, 40)), [data] * 4)
        assert (by_native([*others, data], mixed)[1][3] == expected[i]).all()


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.torture)])
def test_no_pixel_depends_on_uninitialized_memory(seeds: list[bytes], tmp_path: Path, count: int) -> None:
    for number, data in enumerate(seeds):
        (tmp_path / f"{number:03}").write_bytes(data)
    command = [sys.executable, "-S", mutants.__file__, native.compiled.__file__, str(tmp_path), "0", str(count)]
    outputs = set()
    for filler in ("0", "85", "170"):  # glibc fills allocated and freed memory with this byte
        environment = {**os.environ, "MALLOC_PERTURB_": filler, "PYTHONMALLOC": "malloc"}
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(outputs) == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_does_not_grow_over_many_batches(files: list[bytes], seeds: list[bytes]) -> None:
    rng = random.Random(0)
    batches = [[mutants.mutant(seeds, rng) for _ in range(8)] + files[:4] for _ in range(100)]
    regions = regions_of(Resize((30, 40)), [seeds[0]] * 8 + files[:4])
    by_native(batches[0], regions)
    before = resident_bytes()
    for batch in batches:
        by_native(batch, regions)
    assert resident_bytes() - before < 16 << 20  # a leak of one image per batch would be 30 MB


def decode_damaged(data: bytes) -> Pixels:
    """Decode a damaged JPEG; lost pixels have any value."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=False)
    except ValueError:  # simplejpeg does not support all samplings of libjpeg
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))


def expected_of(data: bytes, geometry: list[int], regions: Regions) -> Pixels:
    """Return the pixels of the Python path; if it refuses the file, decode it despite the damage."""
    left, top, width, height = geometry[9:13]
    try:
        part = decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1, box=(left, top, width, height))
    except DecodeError:  # damage outside the region; the compiled path skips an image with damage inside
        part = decode_damaged(data)[top : top + height, left : left + width]
        assert part.shape == (height, width, 3)
    return render_region(part, regions, 0, geometry[9:13])


def test_a_mutant_is_skipped_or_has_the_pixels_of_the_python_path(seeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    differences, skipped = [], 0
    for batch, geometries, out in mutants.cases(seeds, 0, 600):
        status, (pixels,) = mutants.run(native.compiled, batch, [geometries], [out])
        skipped += status.count(0)
        images = np.frombuffer(pixels, np.uint8).reshape(-1, 3, *out)
        for i in np.flatnonzero(np.frombuffer(status, np.uint8)).tolist():
            geometry = geometries[i]
            regions = region(tuple(geometry[:4]), geometry[4:6], geometry[6:8], out, flip=bool(geometry[8]))
            if geometry[9:13] == regions.needed()[0].tolist() and geometry[8] < 2 and max(geometry) < 1 << 15:
                expected = expected_of(batch[i], geometry, regions)
                differences.append(abs(images[i].astype(int) - expected).mean())
    assert len(differences) > 120
    assert skipped > 600
    assert np.quantile(differences, 0.98) < 4
    assert max(differences) < 16  # chroma far outside of RGB is clipped here after resizing, in libjpeg before
