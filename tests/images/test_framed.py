"""Views that place images in a frame: their geometry, and their pixels in both paths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from native_helpers import mean_difference, needs_native, sampled
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from wds_tools.errors import OptionError
from wds_tools.images import native
from wds_tools.images.decode import decode_rgb
from wds_tools.images.framed import Letterbox, place
from wds_tools.images.mosaic import Mosaic
from wds_tools.images.resize import fill_around, render_region
from wds_tools.images.views import Regions, View

SIDES = st.integers(1, 3000)


def regions_of(view: View, width: int, height: int, u: tuple[float, ...] = (0.9, 0.9)) -> Regions:
    return view.regions(np.array([width]), np.array([height]), np.array([u]))


def drawn(regions: Regions, data: bytes, *, compiled: bool) -> NDArray[np.uint8]:
    """Return the output of one image, by the compiled or by the Python path."""
    assert regions.frame is not None
    output = np.full((3, *regions.frame.size), 7, np.uint8)
    fill_around(output, regions, 0, regions.frame.fill)
    (top, left), (height, width) = regions.frame.offset[0], regions.size[0]
    rectangle = output[:, top : top + height, left : left + width]
    box = tuple(regions.needed()[0].tolist())
    if compiled:
        files = [memoryview(data)]
        assert native.render_jpegs(files, np.zeros((1, 2), np.int64), [regions], [[rectangle]]).all()
    else:
        pixels = decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1, box=box)
        render_region(pixels, regions, 0, box, rectangle)
    return output


@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 9]))
def test_what_no_tile_covers_is_filled_and_nothing_else(seed: int, tiles: int) -> None:
    rng = np.random.default_rng(seed)
    width, height = rng.integers(1, 400, (2, 2 * tiles))
    view = Mosaic((48, 64), p=0.7, tiles=tiles)
    regions = view.regions(width, height, rng.random((2, view.draws)))
    assert regions.frame is not None
    for index in range(2):
        expected, output = np.full((3, 48, 64), 114, np.uint8), np.full((3, 48, 64), 7, np.uint8)
        fill_around(output, regions, index, 114)
        for i in range(index * tiles, (index + 1) * tiles):
            (top, left), (rows, columns) = regions.frame.offset[i], regions.size[i]
            expected[:, top : top + rows, left : left + columns] = 7
        assert (output == expected).all()


def resized(data: bytes, height: int, width: int) -> torch.Tensor:
    pixels = torch.from_numpy(decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1)).permute(2, 0, 1)
    return v2.functional.resize(pixels, [height, width], antialias=True)


def by_the_rule_of_yolo(width: int, height: int, target: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the image: the published rule of YOLO's dataset, number by number."""
    ratio = min(target[0] / height, target[1] / width)
    new_width, new_height = min(math.ceil(width * ratio), target[1]), min(math.ceil(height * ratio), target[0])
    left, top = (target[1] - new_width) / 2, (target[0] - new_height) / 2
    return round(left - 0.1), round(top - 0.1), new_width, new_height


@given(SIDES, SIDES, st.sampled_from([(640, 640), (480, 320), (33, 64)]))
def test_a_letterbox_is_where_yolo_puts_it(width: int, height: int, target: tuple[int, int]) -> None:
    found = regions_of(Letterbox(target), width, height)
    assert found.frame is not None
    left, top, new_width, new_height = by_the_rule_of_yolo(width, height, target)
    assert found.resize[0].tolist() == found.size[0].tolist() == [new_height, new_width]
    if min(new_width, new_height) > 1:
        assert found.frame.offset[0].tolist() == [top, left]
    assert found.box[0].tolist() == [0, 0, width, height]


def test_a_small_image_is_not_enlarged_and_the_corner_can_be_chosen() -> None:
    found = regions_of(Letterbox(64, enlarge=False, center=False), 40, 20)
    assert found.frame is not None
    assert (found.size[0].tolist(), found.frame.offset[0].tolist()) == ([20, 40], [0, 0])
    flipped = regions_of(Letterbox(64, enlarge=False, center=False, flip=1, flip_vertical=1), 40, 20)
    assert flipped.frame is not None
    assert flipped.frame.offset[0].tolist() == [44, 24]
    assert flipped.flips[0].tolist() == [True, True]


@needs_native
@pytest.mark.parametrize("sampling", ["444", "420"])
@pytest.mark.parametrize("size", [(640, 640), (96, 128), (193, 100)])
def test_a_letterbox_has_the_pixels_of_torchvision_and_its_filling(
    photo: Image.Image, sampling: str, size: tuple[int, int]
) -> None:
    data = sampled(photo, sampling)
    found = regions_of(Letterbox(size), *photo.size)
    assert found.frame is not None
    (top, left), (height, width) = found.frame.offset[0].tolist(), found.size[0].tolist()
    padding = [left, top, size[1] - width - left, size[0] - height - top]
    expected = v2.functional.pad(resized(data, height, width), padding, fill=114).numpy()
    assert sum(padding) > 0
    for compiled in (True, False):
        ours = drawn(found, data, compiled=compiled)
        assert mean_difference(ours[None], expected[None]) <= 2
        around = np.ones(size, np.bool_)
        around[top : top + height, left : left + width] = False
        assert (ours[:, around] == 114).all()


@needs_native
def test_an_image_that_is_not_resized_has_its_pixels(photo: Image.Image) -> None:
    found = regions_of(Letterbox(400), 385, 400)
    data = sampled(photo.resize((385, 400)), "420")
    whole = decode_rgb(memoryview(data), kind="jpg", mode="RGB", orientation=1).transpose(2, 0, 1)
    for compiled in (True, False):
        assert mean_difference(drawn(found, data, compiled=compiled)[None, :, :, 7:392], whole[None]) < 1


@needs_native
@pytest.mark.parametrize("compiled", [True, False])
def test_both_flips_mirror_the_whole_output(photo: Image.Image, compiled: bool) -> None:
    data = sampled(photo, "444")
    plain = drawn(regions_of(Letterbox((128, 160)), *photo.size), data, compiled=compiled)
    both = drawn(regions_of(Letterbox((128, 160), flip=1, flip_vertical=1), *photo.size), data, compiled=compiled)
    rows = drawn(regions_of(Letterbox((128, 160), flip_vertical=1), *photo.size), data, compiled=compiled)
    # The image is at an odd distance from the edges: half a pixel more is below, and above after the flip.
    assert abs(both[:, ::-1, ::-1].astype(int) - plain).max() == 0
    assert abs(rows[:, ::-1].astype(int) - plain).max() == 0


def shifted(width: int, height: int, resize: tuple[float, float], offset: tuple[float, float]) -> Regions:
    return place(
        np.array([[height, width]]),
        np.array([resize]),
        np.array([offset]),
        (80, 100),
        fill=0,
        flips=np.zeros((1, 2), np.bool_),
    )


@needs_native
@given(
    st.tuples(st.floats(8, 300), st.floats(8, 300)),
    st.tuples(st.floats(-250, 79), st.floats(-250, 99)),
    st.booleans(),
)
def test_any_place_between_pixels_is_drawn_where_it_is(
    waves: Image.Image, resize: tuple[float, float], offset: tuple[float, float], compiled: bool
) -> None:
    """Each pixel has the value of the image at its own centre: the image is a function that is known everywhere."""
    found = shifted(*waves.size, resize, offset)
    assert found.frame is not None
    if not found.are_visible[0]:
        return
    data = sampled(waves, "444")
    output = drawn(found, data, compiled=compiled)[0].astype(float)
    y, x = (np.indices((80, 100)).T + 0.5).T
    v, u = (y - offset[0]) / resize[0], (x - offset[1]) / resize[1]  # 0 to 1 inside the image
    inside = (v >= 0) & (v < 1) & (u >= 0) & (u < 1)
    (top, left), (height, width) = found.frame.offset[0].tolist(), found.size[0].tolist()
    covered = np.zeros((80, 100), np.bool_)
    covered[top : top + height, left : left + width] = True
    assert (covered == inside).all()
    # Filters that are wider than the image is smooth blur it, so the outermost pixels are left out.
    inner = (np.abs(v - 0.5) < 0.5 - 1.5 / resize[0]) & (np.abs(u - 0.5) < 0.5 - 1.5 / resize[1]) & inside
    if min(resize) > 12 and inner.any():
        assert np.abs(output - value_at(u, v))[inner].max() < 8


def value_at(u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(128 + 60 * np.sin(4 * u + 1) + 50 * np.cos(5 * v))


@pytest.fixture(scope="module")
def waves() -> Image.Image:
    """Return a smooth image, whose value is known between pixels too."""
    v, u = np.indices((120, 160)) + 0.5
    grey = value_at(u / 160, v / 120).round().astype(np.uint8)
    return Image.fromarray(np.stack([grey] * 3, axis=2))


@pytest.fixture(scope="module")
def photo(photos) -> Image.Image:  # type: ignore[no-untyped-def]
    """Return a colour photograph."""
    return Image.open(sorted((photos / "coffee").glob("*.jpg"))[0]).convert("RGB")


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": 64, "fill": 256},
        {"size": 64, "fill": 0.5},
        {"size": 64, "flip": 2},
        {"size": 64, "flip_vertical": -1},
        {"size": 64, "center": "left"},
        {"size": 64, "enlarge": 1},
    ],
)
def test_an_invalid_letterbox_is_an_error_with_the_allowed_values(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="allowed are"):
        Letterbox(**options)  # type: ignore[arg-type]
