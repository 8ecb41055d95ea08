"""`HSV`: random changes of hue, saturation and value of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images import native

_PEAKS = np.array([3, 2, 4], np.float32)[:, None, None]  # hues around which red is absent, and green and blue are full


@dataclass(frozen=True)
class HSV:
    """Random gains of hue, saturation and value, as YOLO defines them.

    Each image gets a number from -1 to 1 for each of the three. The hue is shifted by ``h`` times this number, where 1
    is once around the circle of hues; saturation and value are multiplied by 1 plus ``s`` or ``v`` times the number.

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

    def __post_init__(self) -> None:
        for name, most in (("h", 0.5), ("s", 1), ("v", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= most:
                raise OptionError(f"HSV({name}={value!r}); allowed are 0 to {most}")

    @property
    def draws(self) -> int:
        """Number of random numbers per image: 3."""
        return 3

    def changes(self, u: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return shift of the hue, and factors of saturation and value: float32 [n, 3].

        Args:
            u: float64 [n, draws], random numbers in [0, 1).
        """
        return ((2 * u - 1) * [self.h, self.s, self.v] + [0, 1, 1]).astype(np.float32)


def change_colors(images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]], changes: NDArray[np.float32]) -> None:
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
    """Return an image with other colours; the arithmetic is that of color_code.h."""
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
