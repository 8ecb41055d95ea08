"""The pixels of a view: resize, cut and flip one picture into its place.

Resizing is torch's, bilinear with antialiasing, on uint8: 0.4 ms for crops of ImageNet photographs to 224 pixels where
Pillow took 1.0, in the same run.
"""

from __future__ import annotations

import numpy as np
import torch

from wds_tools.decode import Pixels
from wds_tools.views import Regions


def render(cut: Pixels, regions: Regions, number: int, out: Pixels | None = None) -> Pixels:
    """Resize, cut and flip what a view shows of one picture.

    Args:
        cut: uint8 [height, width, 3], the pixels of the region's box.
        regions: What becomes of it.
        number: Which of the regions.
        out: uint8 [3, height, width] to write into; a new array without it.

    Returns:
        uint8 [3, height, width].
    """
    resized_h, resized_w = regions.resize[number].tolist()
    if cut.shape[:2] != (resized_h, resized_w):
        cut = _resize(cut, resized_h, resized_w)
    y, x = regions.corner[number].tolist()
    h, w = regions.size[number].tolist()
    cut = cut[y : y + h, x : x + w]
    if regions.flip[number]:
        cut = cut[:, ::-1]
    if out is None:
        out = np.empty((3, h, w), np.uint8)
    out[...] = cut.transpose(2, 0, 1)  # one strided copy flips, reorders and places: 0.045 ms at 224
    return out


def _resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize with antialiasing: uint8 [height, width, 3]."""
    if not pixels.flags.writeable:
        pixels = pixels.copy()  # Pillow's arrays are read-only; torch warns of them
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(image, size=(height, width), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()
