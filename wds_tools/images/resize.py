"""The pixels of a view: resize, cut and flip one picture into its place.

Resizing is torch's, bilinear with antialiasing, on uint8: 0.4 ms for crops of ImageNet photographs to 224 pixels where
Pillow took 1.0, in the same run. But torch's filter cannot begin inside a picture, so what is left of a crop and above
it is resized too. Of thin pictures that is nearly all, and a lot: there Pillow resizes the crop alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from wds_tools.format.codecs import MAX_PIXELS
from wds_tools.images.decode import Pixels
from wds_tools.images.views import Regions

Size = tuple[int, int]

_MOST_SPARE = 1 << 24  # pixels that torch may make beside those of the result: 50 MB


def render(part: Pixels, regions: Regions, number: int, needed: Sequence[int], out: Pixels | None = None) -> Pixels:
    """Resize, cut and flip what a view shows of one picture.

    Args:
        part: uint8 [height, width, 3], the pixels that the result depends on.
        regions: What becomes of the picture.
        number: Which of the regions.
        needed: Where ``part`` lies in the picture: a row of ``regions.needed()``.
        out: uint8 [3, height, width] to write into; a new array without it.

    Returns:
        uint8 [3, height, width].
    """
    box, resized = regions.box[number].tolist(), regions.resize[number].tolist()
    y, x = regions.corner[number].tolist()
    h, w = regions.size[number].tolist()
    if resized != [box[3], box[2]]:
        left, top = needed[0] - box[0], needed[1] - box[1]
        if (y + h) * (x + w) - h * w > _MOST_SPARE:
            scale = box[2] / resized[1], box[3] / resized[0]
            ends = x * scale[0] - left, y * scale[1] - top, (x + w) * scale[0] - left, (y + h) * scale[1] - top
            part = _resize_inside(part, ends, (h, w))
        elif part.shape[:2] != (box[3], box[2]):
            part = _placed(part, left, top)
            # Where the filter lies depends on where the box starts: only what is right of and below the cut is spared.
            part = _resize_start(part, (y + h, x + w), whole=(box[3], box[2]), resized=(resized[0], resized[1]))
            part = part[y : y + h, x : x + w]
        else:
            part = _resize(part, *resized)[y : y + h, x : x + w]
    if regions.flip[number]:
        part = part[:, ::-1]
    if out is None:
        out = np.empty((3, h, w), np.uint8)
    out[...] = part.transpose(2, 0, 1)  # one strided copy flips, reorders and places: 0.045 ms at 224
    return out


def _resize_inside(pixels: Pixels, box: tuple[float, float, float, float], size: Size) -> Pixels:
    """Resize a box, whose edges may lie between pixels, with a filter that also sees what is around it.

    Args:
        pixels: uint8 [height, width, 3].
        box: Left, top, right, bottom.
        size: Height and width of the result.
    """
    height, width = pixels.shape[:2]
    inside = max(box[0], 0.0), max(box[1], 0.0), min(box[2], width), min(box[3], height)  # rounding may leave it
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR, box=inside))


def _placed(part: Pixels, left: int, top: int) -> Pixels:
    """Return the part at its place in the box; what is left of it and above decides nothing, and is not cleared."""
    canvas = np.empty((top + part.shape[0], left + part.shape[1], 3), np.uint8)
    canvas[top:, left:] = part
    return canvas


def _resize_start(pixels: Pixels, size: Size, *, whole: Size, resized: Size) -> Pixels:
    """Return the first rows and columns, at least ``size``, of what a picture of size ``whole`` becomes when resized.

    Args:
        pixels: uint8, the first rows and columns of the picture, as many as that needs.
        size: Height and width.
        whole: Height and width.
        resized: Height and width that it would become.
    """
    height, width = (
        # torch takes equal lengths for nothing to do, whatever the factor is: then one row more is asked for.
        wanted + (wanted == there and before != after)
        for wanted, there, before, after in zip(size, pixels.shape[:2], whole, resized, strict=True)
    )
    return _resize(pixels, height, width, scales=(resized[0] / whole[0], resized[1] / whole[1]))


def _resize(pixels: Pixels, height: int, width: int, scales: tuple[float, float] | None = None) -> Pixels:
    """Resize with antialiasing: uint8 [height, width, 3]; by these factors, if the result is cut off."""
    if scales is None and len(pixels) * width > MAX_PIXELS:  # torch resizes rows first, all of them
        pixels = _resize(pixels, height, pixels.shape[1])
    if not pixels.flags.writeable:
        pixels = pixels.copy()  # Pillow's arrays are read-only; torch warns of them
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.ops.aten._upsample_bilinear2d_aa(  # noqa: SLF001 - what interpolate() calls, which takes no factors
        image, [height, width], False, *(scales or (None, None))
    )
    return resized[0].permute(1, 2, 0).numpy()  # type: ignore[no-any-return]
