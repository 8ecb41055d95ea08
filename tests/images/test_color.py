"""HSV gains compared with Python's colorsys and YOLO's tables of 8 bits; photometric distortion with torchvision."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from native_helpers import needs_native
from numpy.typing import NDArray
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.images import native
from wds_tools.images.color import HSV, PhotometricDistort, change_colors

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
    assert np.abs(difference).max() <= (
        0.54 if path == "1" else 0.501
    )  # of 255: rounding, at most 0.04 of it before the end


@needs_native
@pytest.mark.parametrize("change", CHANGES)
def test_compiled_colours_are_the_same_on_all_processors_and_near_those_of_python(
    change: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(6).integers(0, 256, (3, 89, 211), np.uint8)  # an odd number of pixels
    compiled = changed(pixels, change)
    try:
        native.compiled.simd(False)
        assert (changed(pixels, change) == compiled).all()
    finally:
        native.compiled.simd(True)
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    difference = np.abs(changed(pixels, change).astype(int) - compiled)
    assert difference.max() <= 1
    assert difference.mean() < 0.01


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


@needs_native
def test_blending_with_wrong_arguments_is_an_error(pixels: NDArray[np.uint8]) -> None:
    for image, terms in (
        (pixels.ravel()[1:].copy(), (1, 0, 0)),
        (pixels[:, :0].copy(), (1, 0, 0)),
        (pixels[:, :, :-1], (1, 0, 0)),
        (pixels, (float("nan"), 0, 0)),
        (pixels, (1, float("inf"), 0)),
        (pixels, (1, 0, -1e9)),
        (bytes(pixels), (1, 0, 0)),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            native.compiled.blend_colors(image, *terms)


def of_torchvision(pixels: NDArray[np.uint8], view: PhotometricDistort, u: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return an image as torchvision changes it, with the documented use of the random numbers."""
    names = ("brightness", "contrast", "saturation", "hue")
    params: dict[str, object] = {
        f"{name}_factor": np.interp(u[5 + i], [0, 1], getattr(view, name)) if u[i] < view.p else None
        for i, name in enumerate(names)
    }
    order = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)][int(6 * u[10])]
    params |= {"contrast_before": u[9] < 0.5, "channel_permutation": torch.tensor(order) if u[4] < view.p else None}
    changed: torch.Tensor = v2.RandomPhotometricDistort().transform(torch.from_numpy(pixels), params)
    return changed.numpy()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.torture_except("compiled")
def test_photometric_distortion_is_that_of_torchvision(
    pixels: NDArray[np.uint8], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_NATIVE", path)
    draws = np.random.default_rng(7).random((100, 11))
    for view in (PhotometricDistort(), PhotometricDistort((0, 3), (0, 2), (0, 4), (-0.5, 0.5), p=0.8)):
        images = np.stack([pixels] * len(draws))
        view.change(images, draws)
        for image, u in zip(images, draws, strict=True):
            distance = np.abs(image - of_torchvision(pixels, view, u).astype(np.float32))
            # torchvision rounds the hue down, here it is rounded to the nearest value; later changes enlarge this
            assert distance.max() <= (4 if u[3] < view.p else 1)
            assert distance.mean() < (1.0 if u[3] < view.p else 0.03)


@needs_native
def test_colours_do_not_depend_on_the_instruction_set() -> None:
    draws, results = np.random.default_rng(10).random((6, 11)), []
    for simd in (True, False):
        images = np.random.default_rng(11).integers(0, 256, (6, 3, 300, 301), np.uint8)
        native.compiled.simd(simd)
        try:
            PhotometricDistort(p=1).change(images, draws)
        finally:
            native.compiled.simd(True)
        results.append(images)
    assert (results[0] == results[1]).all()


def test_each_distortion_happens_as_often_as_p_states() -> None:
    draws = np.random.default_rng(8).random((300, 11))
    images = np.random.default_rng(9).integers(0, 256, (300, 3, 4, 4), np.uint8)
    before = images.copy()
    PhotometricDistort(p=0).change(images, draws)
    assert (images == before).all()
    same = (1, 1)
    PhotometricDistort(same, same, same, (0, 0), p=0.6).change(images, draws)
    assert 0.4 < (images != before).any(axis=(1, 2, 3)).mean() < 0.6  # 0.6, of which one in six is the same order
    assert (np.sort(images, axis=1) == np.sort(before, axis=1)).all()


@pytest.mark.parametrize(
    "options", [{"brightness": 0.5}, {"contrast": (2, 1)}, {"saturation": (-1, 1)}, {"hue": (-0.6, 0)}, {"p": 2}]
)
def test_distortions_out_of_range_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="allowed are"):
        PhotometricDistort(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"h": 0.6}, {"s": -1}, {"v": 2}, {"h": True}, {"s": "much"}])
def test_gains_out_of_range_are_errors(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="allowed are"):
        HSV(**options)


def batches(folder: object, color: HSV | PhotometricDistort | None, **options: object) -> list[NDArray[np.float32]]:
    fields = {"image": wt.Image(view=wt.Letterbox(48), color=color)}
    with wt.make_loader(folder, batch_size=5, fields=fields, **{"num_workers": 0, **options}) as loader:  # type: ignore[arg-type]
        return [batch.image.numpy().astype(np.float32) for batch, _ in zip(loader, range(2), strict=False)]


@pytest.mark.parametrize(
    ("nothing", "color"),
    [(HSV(0, 0, 0), HSV()), (PhotometricDistort(p=0), PhotometricDistort(p=0.9))],
    ids=["hsv", "all"],
)
@pytest.mark.torture_except("all")
def test_each_sample_gets_its_own_colours_whatever_loads_it(
    scenes: object, nothing: HSV | PhotometricDistort, color: HSV | PhotometricDistort, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, none, ours = (batches(scenes, one) for one in (None, nothing, color))
    assert all((a == b).all() for a, b in zip(plain, none, strict=True))
    ratios = [
        (after.mean() / before.mean())
        for a, b in zip(ours, plain, strict=True)
        for after, before in zip(a, b, strict=True)
    ]
    assert len({round(float(ratio), 3) for ratio in ratios}) > 5
    assert all((a == b).all() for a, b in zip(ours, batches(scenes, color, num_workers=1), strict=True))
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    in_python = batches(scenes, color)
    assert max(np.abs(a - b).mean() for a, b in zip(ours, in_python, strict=True)) < 3


def test_colours_need_an_image_of_8_bits() -> None:
    with pytest.raises(OptionError, match="mode='unchanged'"):
        wt.Image(mode="unchanged", color=HSV())
    with pytest.raises(OptionError, match="HSV"):
        wt.Image(color=0.5)  # type: ignore[arg-type]
