"""`HSV` and `PhotometricDistort`: random changes of the colours of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images import native

Images = NDArray[np.uint8] | Sequence[NDArray[np.uint8]]
Floats = NDArray[np.float64]

_GREY = np.array([0.2989, 0.587, 0.114], np.float32)  # shares of red, green and blue
_PEAKS = np.array([3, 2, 4], np.float32)[:, None, None]  # hues around which red is absent, and green and blue are full


@dataclass(frozen=True)
class HSV:
    """Random gains of hue, saturation and value, as YOLO defines them.

    For each image, three numbers from -1 to 1 are drawn. The hue is shifted by ``h`` times the first number, where 1
    is a full turn of the hue circle; saturation and value are multiplied by 1 plus ``s`` or ``v`` times their number.

    Attributes:
        h: Largest shift of the hue, 0 to 0.5.
        s: Largest change of the saturation, 0 to 1.
        v: Largest change of the value, 0 to 1.

    Raises:
        OptionError: An attribute is out of range.
    """

    h: float = 0.015
    s: float = 0.7
    v: float = 0.4

    draws = 3

    def __post_init__(self) -> None:
        for name, most in (("h", 0.5), ("s", 1), ("v", 1)):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= most:
                raise OptionError(f"HSV({name}={value!r}); allowed are 0 to {most}")

    def changes(self, u: Floats) -> NDArray[np.float32]:
        """Return shift of the hue, and factors of saturation and value: float32 [n, 3].

        Args:
            u: float64 [n, draws], random numbers in [0, 1).
        """
        return ((2 * u - 1) * [self.h, self.s, self.v] + [0, 1, 1]).astype(np.float32)

    def change(self, images: Images, u: Floats) -> None:
        """Change images in place; see `changes`."""
        change_colors(images, self.changes(u))


@dataclass(frozen=True)
class PhotometricDistort:
    """Random brightness, contrast, saturation and hue, and a random order of the channels, as torchvision defines them.

    Each of the five changes is made with the probability ``p``. The contrast changes before the saturation for half of
    the images, and after the hue for the others.

    Attributes:
        brightness: Smallest and largest factor of the values.
        contrast: Smallest and largest factor of the distance to the mean grey of the image.
        saturation: Smallest and largest factor of the distance to the grey of the pixel.
        hue: Smallest and largest shift of the hue, -0.5 to 0.5, where 1 is a full turn of the hue circle.
        p: Probability of each change.

    Raises:
        OptionError: An attribute is out of range.
    """

    brightness: tuple[float, float] = (0.875, 1.125)
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: tuple[float, float] = (-0.05, 0.05)
    p: float = 0.5

    draws = 11  # whether, and how much, for each change; and when the contrast changes

    def __post_init__(self) -> None:
        for name, least, most in (
            ("brightness", 0, 100),
            ("contrast", 0, 100),
            ("saturation", 0, 100),
            ("hue", -0.5, 0.5),
        ):
            value = getattr(self, name)
            is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
            if not is_pair or not least <= value[0] <= value[1] <= most:
                raise OptionError(
                    f"PhotometricDistort({name}={value!r}); allowed are pairs of numbers from {least} to {most}, the "
                    "smaller one first"
                )
        if not _is_number(self.p) or not 0 <= self.p <= 1:
            raise OptionError(f"PhotometricDistort(p={self.p!r}); allowed are 0 to 1")

    def change(self, images: Images, u: Floats) -> None:
        """Change images in place.

        Args:
            images: n contiguous arrays, uint8 [3, height, width], or one array of them.
            u: float64 [n, draws], random numbers in [0, 1).
        """
        low, high = np.array([self.brightness, self.contrast, self.saturation, self.hue], np.float64).T
        happens, amounts = u[:, :5] < self.p, low + u[:, 5:9] * (high - low)
        orders = list(permutations(range(3)))
        for image, (is_bright, is_contrasted, is_saturated, is_shifted, is_permuted), amount, (when, order) in zip(
            images, happens.tolist(), amounts.tolist(), u[:, 9:].tolist(), strict=True
        ):
            brightness, contrast, saturation, hue = amount
            if is_bright:
                _blend(image, brightness)
            if is_contrasted and when < 0.5:
                _change_contrast(image, contrast)
            if is_saturated:
                _blend(image, saturation, grey=1 - saturation)
            if is_shifted:
                change_colors([image], np.array([[hue, 1, 1]], np.float32))
            if is_contrasted and when >= 0.5:
                _change_contrast(image, contrast)
            if is_permuted:
                image[...] = image[list(orders[int(6 * order)])]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def change_colors(images: Images, changes: NDArray[np.float32]) -> None:
    """Change hue, saturation and value of images in place.

    Args:
        images: n contiguous arrays, uint8 [3, height, width], or one array of them.
        changes: float32 [n, 3], see `HSV.changes`.
    """
    if native.is_enabled() and isinstance(images, np.ndarray):
        native.change_hsv(images, changes)
        return
    for image, change in zip(images, changes, strict=True):
        if native.is_enabled():
            native.change_hsv(image, change[None])
        else:
            image[...] = _changed(image, *change)


def _changed(
    image: NDArray[np.uint8], shift: np.float32, saturation: np.float32, value: np.float32
) -> NDArray[np.uint8]:
    """Return an image with other colours; color_code.h rounds in other places."""
    pixels = image.astype(np.float32)
    red, green, blue = pixels
    high, low = pixels.max(axis=0), pixels.min(axis=0)
    chroma = high - low
    hue = np.select(
        [high == red, high == green],
        [green - blue, 2 * chroma + blue - red],
        4 * chroma + red - green,
    ) / np.maximum(chroma, 1)
    hue = (hue + 6 * shift) % 6
    new_high = np.minimum(high * value, 255)
    new_chroma = new_high * np.minimum(chroma / np.maximum(high, 1) * saturation, 1)
    share = np.abs(hue - _PEAKS)
    share = np.clip(np.stack([share[0] - 1, 2 - share[1], 2 - share[2]]), 0, 1)
    new_pixels: NDArray[np.float32] = new_high - new_chroma + new_chroma * share
    rounded: NDArray[np.uint8] = np.floor(new_pixels + 0.5).astype(np.uint8)
    return rounded


def _change_contrast(image: NDArray[np.uint8], factor: float) -> None:
    _blend(image, factor, (1 - factor) * _blend(image, 1))


def _blend(image: NDArray[np.uint8], gain: float, offset: float = 0, grey: float = 0) -> float:
    """Change an image in place, see `native.blend_colors`; return its new mean grey."""
    if native.is_enabled():
        return native.blend_colors(image, gain, offset, grey)
    base = np.float32(offset) + np.float32(grey) * _greys(image)
    image[...] = np.clip(np.float32(gain) * image + base, 0, 255).astype(np.uint8)
    return float(_greys(image).mean(dtype=np.float64))


def _greys(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    greys: NDArray[np.float32] = np.floor(np.tensordot(_GREY, image.astype(np.float32), 1))
    return greys
