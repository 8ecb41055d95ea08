"""Colours of class numbers, the same in masks and in objects that are drawn over images."""

from __future__ import annotations

import colorsys
from functools import cache

COUNT = 256
_STEP = 0.618034  # of the hue: numbers next to each other have different colours
_IGNORED = 255  # usually marks pixels without a class


@cache
def rgb_of(class_number: int) -> tuple[int, int, int]:
    """Return the colour of a class number, red, green and blue; it repeats every 255 numbers.

    >>> rgb_of(1) == rgb_of(256), rgb_of(1) == rgb_of(2)
    (True, False)
    """
    if index_of(class_number) == _IGNORED:
        return 200, 200, 200
    class_number = index_of(class_number)
    saturation, value = ((0.85, 1.0), (0.55, 1.0), (0.9, 0.75))[class_number // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb(class_number * _STEP % 1, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def index_of(class_number: int) -> int:
    """Return the index of a class number in a palette of 256 colours: 0 for 0, otherwise 1 to 255."""
    return (class_number - 1) % (COUNT - 1) + 1 if class_number else 0


def hex_of(class_number: int) -> str:
    """Return the colour of a class number as HTML writes it.

    >>> hex_of(0)
    '#ff2626'
    """
    return "#{:02x}{:02x}{:02x}".format(*rgb_of(class_number))
