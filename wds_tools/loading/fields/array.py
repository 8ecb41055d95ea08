"""`Array`: values per pixel, such as depth."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from wds_tools.loading.fields.base import check_choice, check_field, check_like, check_pad
from wds_tools.loading.fields.padding import Pad
from wds_tools.loading.fields.pixels import Pixels

Interpolation = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class Array(Pixels):
    """An array of values per pixel, such as depth: a tensor [batch, channels, height, width] in the stored dtype.

    16 bits stay 16 bits.

    Attributes:
        field: Stored field: a PNG such as ``"depth.png"``, with 8 or 16 bits per channel, or an ``npy`` array
            [height, width] or [height, width, channels].
        like: Name of the `Image` whose region, size and flip are used. The array must have the size of that image. None
            (the default) keeps the whole array.
        interpolation: ``"bilinear"``, with antialiasing, or ``"nearest"``. None (the default) is bilinear for floating
            point and uint16, and nearest for all other types. Use ``"nearest"`` for sparse values, such as depth
            with holes: bilinear interpolation would mix them with the values of holes.
        pad: Value of the padding at the right and bottom of smaller arrays, or a `Pad`, so that a batch is one tensor
            [batch, channels, height, width]. None (the default) gives a list if the sizes differ. If the image of
            ``like`` has a ``pad``, a number is required here: the padded size is that of the image.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    interpolation: Interpolation | None = None
    pad: float | Pad | None = None

    target = "mask"

    def __post_init__(self) -> None:
        check_field(self, "'depth.png'")
        check_like(self)
        check_choice(self, "interpolation", (None, "nearest", "bilinear"))
        check_pad(self)

    def is_nearest(self, dtype: np.dtype[Any]) -> bool:
        """Return whether pixels of a dtype are resized by nearest neighbour; otherwise they are interpolated."""
        if self.interpolation is not None:
            return self.interpolation == "nearest"
        return dtype.kind != "f" and dtype != np.uint16
