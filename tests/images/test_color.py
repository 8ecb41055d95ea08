"""HSV gains, compared with Python's colorsys, pixel by pixel, and with YOLO's tables of 8 bits."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from native_helpers import needs_native
from numpy.typing import NDArray

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.images import native
from wds_tools.images.color import HSV, change_colors

PATHS = [pytest.param("1", marks=needs_native, id="compiled"), pytest.param("0", id="python")]
CHANGES = [(0, 1, 1), (0.015, 1.7, 0.6), (-0.015, 0.3, 1.4), (0.5, 1, 1), (-0.5, 2, 2), (0.2, 0, 0.5), (-0.3, 1.2, 0)]


@pytest.fixture(scope="module")
def pixels() -> NDArray[np.uint8]:
    """Return 640 colours [3, 20, 32]: random ones, greys, and those at the edges of the range."""
    found = np.random.default_rng(4).integers(0, 256, (640, 3), np.uint8)
    found[:60] = found[:60, :1]
    found[60:220] = np.random.default_rng(5).choice([0, 1, 254, 255], (160, 3))
    return np.ascontiguousarray(found.T.reshape(3, 20, 32))


def changed(pixels: NDArray[np.uint8], change: tuple[float, float, float]) -> NDArray[np.uint8]:
    images = np.stack([pixels, pixels])
    change_colors(images, np.array([change, change], np.float32))
    assert (images[0] == images[1]).all()
    return images[0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("change", CHANGES)
def test_colours_are_those_of_colorsys(
    pixels: NDArray[np.uint8], change: tuple[float, float, float], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_NATIVE", path)
    expected = []
    for red, green, blue in (pixels.reshape(3, -1).T / 255).tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        shown = (hue + change[0]) % 1, min(saturation * change[1], 1), min(value * change[2], 1)
        expected.append(colorsys.hsv_to_rgb(*shown))
    difference = changed(pixels, change).reshape(3, -1).T - 255 * np.array(expected)
    assert np.abs(difference).max() <= 0.52  # of 255: rounding


@pytest.mark.parametrize("path", PATHS)
def test_colours_are_near_those_of_the_tables_of_yolo(
    pixels: NDArray[np.uint8], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YOLO rounds hue to two degrees and saturation to 8 bits, before and after its tables."""
    monkeypatch.setenv("WDS_TOOLS_NATIVE", path)
    shift, saturation_gain, value_gain = 0.013, 1.4, 0.8
    expected = []
    for red, green, blue in (pixels.reshape(3, -1).T / 255).tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        hue = int((round(180 * hue) % 180 + 180 * shift) % 180)
        saturation = int(min(round(255 * saturation) * saturation_gain, 255))
        value = int(min(round(255 * value) * value_gain, 255))
        expected.append(colorsys.hsv_to_rgb(hue / 180, saturation / 255, value / 255))
    difference = changed(pixels, (shift, saturation_gain, value_gain)).reshape(3, -1).T - 255 * np.array(expected)
    assert np.abs(difference).mean() < 2.5
    assert np.abs(difference).max() < 16


@needs_native
def test_wrong_arguments_are_errors(pixels: NDArray[np.uint8]) -> None:
    good = np.array([[0, 1, 1]], np.float32)
    for images, changes in (
        (pixels[:, :, :-1], good),
        (pixels.ravel()[1:].copy(), good),
        (pixels, good[:, :2]),
        (pixels, np.array([[0, np.nan, 1]], np.float32)),
        (pixels, np.array([[0.6, 1, 1]], np.float32)),
        (pixels, np.array([[0, 1, 1e9]], np.float32)),
        (pixels, np.array([[0, -1, 1]], np.float32)),
        (bytes(pixels), good),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            native.compiled.change_hsv(images, changes)


@pytest.mark.parametrize("options", [{"h": 0.6}, {"s": -1}, {"v": 2}, {"h": True}, {"s": "much"}])
def test_gains_out_of_range_are_errors(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="allowed are"):
        HSV(**options)


def batches(folder: object, color: HSV | None, **options: object) -> list[NDArray[np.float32]]:
    fields = {"image": wt.Image(view=wt.Letterbox(48), color=color)}
    with wt.make_loader(folder, batch_size=5, fields=fields, **{"num_workers": 0, **options}) as loader:  # type: ignore[arg-type]
        return [batch.image.numpy().astype(np.float32) for batch, _ in zip(loader, range(2), strict=False)]


def test_each_sample_gets_its_own_colours_whatever_loads_it(scenes: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, none, ours = (batches(scenes, color) for color in (None, HSV(0, 0, 0), HSV()))
    assert all((a == b).all() for a, b in zip(plain, none, strict=True))
    ratios = [
        (after.max() / before.max())
        for a, b in zip(ours, plain, strict=True)
        for after, before in zip(a, b, strict=True)
    ]
    assert len({round(float(ratio), 3) for ratio in ratios}) > 5
    assert all((a == b).all() for a, b in zip(ours, batches(scenes, HSV(), num_workers=2), strict=True))
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    in_python = batches(scenes, HSV())
    assert max(np.abs(a - b).mean() for a, b in zip(ours, in_python, strict=True)) < 3


def test_colours_need_an_image_of_8_bits() -> None:
    with pytest.raises(OptionError, match="mode='unchanged'"):
        wt.Image(mode="unchanged", color=HSV())
    with pytest.raises(OptionError, match="HSV"):
        wt.Image(color=0.5)  # type: ignore[arg-type]
