"""`Mask`: class numbers of pixels."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import DecodeError
from wds_tools.loading.fields.base import FieldSpec, check_field, check_like, check_pad
from wds_tools.loading.fields.padding import Pad
from wds_tools.loading.fields.pixels import Pixels


@dataclass(frozen=True)
class Mask(Pixels):
    """Class numbers of pixels: a tensor [batch, height, width] in the stored dtype, without interpolation.

    A palette image gives its palette indices. Resized by nearest neighbour, exactly as torchvision resizes a
    ``tv_tensors.Mask``.

    Attributes:
        field: Stored field with one channel: a PNG such as ``"mask.png"``, or an ``npy`` array [height, width].
        like: Name of the `Image` whose region, size and flip are used. The mask must have the size of that image. None
            (the default) keeps the whole mask.
        pad: Value of the padding at the right and bottom of smaller masks, or a `Pad`, so that a batch is one tensor
            [batch, height, width]. None (the default) gives a list if the sizes differ. If the image of ``like`` has a
            ``pad``, a number is required here: the padded size is that of the image.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    pad: float | Pad | None = None

    target = "mask"

    def __post_init__(self) -> None:
        check_field(self, "'mask.png'")
        check_like(self)
        check_pad(self)

    def is_nearest(self, dtype: np.dtype[Any]) -> bool:
        """Return True: class numbers cannot be interpolated."""
        return True

    def as_tensor(self, pixels: NDArray[Any]) -> torch.Tensor:
        """Return pixels [height, width, 1] as a value [height, width]."""
        return torch.from_numpy(np.array(pixels[:, :, 0], order="C"))

    def decode(self, data: memoryview) -> NDArray[Any]:
        """Return the stored numbers of a file: [height, width, 1].

        Raises:
            DecodeError: It has several channels.
        """
        pixels = super().decode(data)
        if pixels.shape[2] != 1:
            raise DecodeError(
                f"a mask has one channel, but this image has {pixels.shape[2]}: read it with wds_tools.Array(..., "
                "interpolation='nearest')"
            )
        return pixels

    to_target = FieldSpec.to_target
    from_target = FieldSpec.from_target
