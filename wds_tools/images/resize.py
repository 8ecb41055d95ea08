"""Crop, resize and flip of one decoded image or array in Python.

torch resizes pixels, bilinear with antialiasing. For crops of ImageNet photographs to 224
pixels that takes 0.4 ms; Pillow took 1.0 ms in the same run. But torch cannot start resizing inside
an image, so the pixels to the left of a crop and above it are resized too. For narrow images that
can be far more than the crop. Pillow, which resizes only the crop, is used then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from wds_tools import stages
from wds_tools.format.image_header import MAX_PIXELS
from wds_tools.images.views import Regions, Warp

Size = tuple[int, int]

_MAX_UNUSED_PIXELS = 1 << 24  # that torch may compute in addition to the result: 50 MB


def render_region(
    part: NDArray[Any], regions: Regions, index: int, needed: Sequence[int], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Resize, crop and flip the region that a view shows of one image, bilinear with antialiasing.

    Args:
        part: [height, width, channels], the pixels that the result depends on. Any dtype of real numbers; types other
            than uint8 are computed in floating point, and integers are rounded.
        regions: Regions of a batch.
        index: Index of the image in the batch.
        needed: Box of ``part`` in the image: a row of ``regions.needed()``.
        out: [channels, height, width] in the dtype of ``part``, to which the result is written; None creates a new
            array.

    Returns:
        [channels, height, width] in the dtype of ``part``.
    """
    dtype = part.dtype
    box, resized = regions.box[index].tolist(), regions.resize[index].tolist()
    y, x = regions.corner[index].tolist()
    h, w = regions.size[index].tolist()
    left, top = needed[0] - box[0], needed[1] - box[1]
    is_between_pixels = regions.resize.dtype.kind == "f"
    if is_between_pixels or resized != [box[3], box[2]]:
        with stages.RESIZE:
            part = part if dtype == np.uint8 else part.astype(_floating_dtype(dtype))
            if is_between_pixels or (y + h) * (x + w) - h * w > _MAX_UNUSED_PIXELS:
                scale = box[2] / resized[1], box[3] / resized[0]
                ends = x * scale[0] - left, y * scale[1] - top, (x + w) * scale[0] - left, (y + h) * scale[1] - top
                part = _resize_inside(part, ends, (h, w))
            elif part.shape[:2] != (box[3], box[2]):
                part = _shift(part, left, top)
                # The filter is aligned to the top left of the box, so only pixels right of and below
                # the crop are saved.
                part = _resize_start(part, (y + h, x + w), full=(box[3], box[2]), resized=(resized[0], resized[1]))
                part = part[y : y + h, x : x + w]
            else:
                part = _resize(part, *resized)[y : y + h, x : x + w]
            part = np.rint(part) if part.dtype != dtype and dtype.kind in "iu" else part
    else:
        part = part[y - top : y - top + h, x - left : x - left + w]  # more was decoded for a frame
    part = flipped(part, regions, index)
    if out is None:
        out = np.empty((part.shape[2], h, w), dtype)
    out[...] = part.transpose(2, 0, 1)  # one strided copy flips and reorders: 0.045 ms for 224x224 pixels
    return out


def _floating_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values are resized: float32 if it is exact for them, otherwise float64."""
    return np.dtype(np.float32 if dtype.itemsize <= 2 or dtype == np.float32 else np.float64)


def select_nearest(pixels: NDArray[Any], regions: Regions, index: int) -> NDArray[Any]:
    """Return the region that a view shows of one image, resized by nearest neighbour, as torchvision resizes masks.

    Args:
        pixels: [height, width, ...], the full image, in any dtype.
        regions: Regions of a batch.
        index: Index of the image in the batch.

    Returns:
        [height, width, ...] in the dtype of ``pixels``.
    """
    left, top, width, height = regions.box[index].tolist()
    lengths, starts = (height, width), (top, left)
    rows, columns = (
        start + _nearest(length, regions.resize[index, axis], regions.corner[index, axis], int(size))
        for axis, (length, start, size) in enumerate(zip(lengths, starts, regions.size[index], strict=True))
    )
    return flipped(pixels[rows[:, None], columns], regions, index)


def flipped(pixels: NDArray[Any], regions: Regions, index: int) -> NDArray[Any]:
    """Return pixels [height, width, ...] mirrored as the region of one image states, as a view of them."""
    columns, rows = regions.flips[index].tolist()
    pixels = pixels[:, ::-1] if columns else pixels
    return pixels[::-1] if rows else pixels


def fill_around(output: NDArray[Any], regions: Regions, index: int, fill: float) -> None:
    """Write a value to the pixels of an output, [channels, height, width], in which none of its results is."""
    frame = regions.frame
    assert frame is not None
    tiles = slice(index * frame.tiles, (index + 1) * frame.tiles)
    start = frame.offset[tiles]
    corners = zip(start.tolist(), (start + regions.size[tiles]).tolist(), strict=True)
    results = sorted((left, right, top, bottom) for (top, left), (bottom, right) in corners if top < bottom)
    ends = {0, output.shape[1], *(end for *_, top, bottom in results for end in (top, bottom))}
    for first, last in pairwise(sorted(ends)):  # rows in which the same results are
        column = 0
        for left, right, top, bottom in [*results, (output.shape[2], 0, first, last)]:
            if top <= first < bottom:
                if column < left:
                    output[:, first:last, column:left] = fill
                column = max(column, right)


def warp_frame(frame: NDArray[Any], warp: Warp, index: int, fill: float, *, nearest: bool) -> NDArray[Any]:
    """Return the output of a frame after rotation, shear and perspective.

    Returns:
        [height, width, channels] in the dtype of the frame.
    """
    height, width = warp.size
    inverse = np.linalg.inv(warp.matrix[index])
    with stages.RESIZE:
        if frame.dtype == np.uint8 and frame.shape[2] == 3 and not nearest:
            coefficients = (inverse / inverse[2, 2]).ravel()[:8].tolist()
            is_affine = coefficients[6:] == [0, 0]
            method = Image.Transform.AFFINE if is_affine else Image.Transform.PERSPECTIVE
            image, color = Image.fromarray(frame), (int(fill),) * 3
            how = (width, height), method, coefficients[:6] if is_affine else coefficients, Image.Resampling.BILINEAR
            output: NDArray[Any] = np.asarray(image.transform(*how, fillcolor=color))
        else:
            y, x = np.indices((height, width)) + 0.5
            source = np.stack([x, y, np.ones_like(x)], axis=2) @ inverse.T
            output = _sampled(frame, source[..., :2] / source[..., 2:], fill, nearest=nearest)
    columns, rows = warp.flips[index].tolist()
    output = output[:, ::-1] if columns else output
    return output[::-1] if rows else output


def _sampled(pixels: NDArray[Any], points: NDArray[np.float64], fill: float, *, nearest: bool) -> NDArray[Any]:
    """Return the values at points (x, y) of an image [height, width, channels], ``fill`` outside of it."""
    size = np.array(pixels.shape[1::-1])
    is_inside = np.asarray(((points >= 0) & (points < size)).all(axis=-1))

    def at(steps: NDArray[np.float64]) -> NDArray[Any]:
        x, y = np.moveaxis(np.clip(steps, 0, size - 1).astype(np.int64), -1, 0)
        return np.asarray(pixels[y, x])

    if nearest:
        values = at(np.floor(points))
    else:
        first = np.floor(points - 0.5)
        share = (points - 0.5 - first)[..., None]
        (x, y), unit = (share[..., 0, :], share[..., 1, :]), np.eye(2)
        upper = at(first) * (1 - x) + at(first + unit[0]) * x
        lower = at(first + unit[1]) * (1 - x) + at(first + 1) * x
        mixed = upper * (1 - y) + lower * y
        values = (np.rint(mixed) if pixels.dtype.kind in "iu" else mixed).astype(pixels.dtype)
    return np.where(is_inside[..., None], values, np.array(fill, pixels.dtype))


def _nearest(
    length: int, resized: np.int64 | np.float64, first: np.int64 | np.float64, count: int
) -> NDArray[np.int64]:
    """Return the input positions of the outputs ``first`` to ``first + count``.

    For whole numbers they are computed in float32 from the edges of pixels, as torch does; otherwise from the centres.
    """
    if isinstance(resized, np.floating):
        positions = np.floor((first + 0.5 + np.arange(count)) * (length / resized)).astype(np.int64)
        return np.asarray(np.clip(positions, 0, length - 1))
    scale = np.float32(length) / np.float32(resized)
    positions = np.floor(np.arange(first, first + count, dtype=np.float32) * scale).astype(np.int64)
    return np.asarray(np.minimum(positions, length - 1))


def _resize_inside(pixels: NDArray[Any], box: tuple[float, float, float, float], size: Size) -> NDArray[Any]:
    """Resize a box whose edges may lie between pixels, with a filter that also uses pixels around the box."""
    height, width = pixels.shape[:2]
    # Edges may be outside the image by half a pixel of the result, or by rounding errors.
    beyond = (-box[0], -box[1], box[2] - width, box[3] - height)
    left, top, right, bottom = (max(0, math.ceil(by - 1e-6)) for by in beyond)
    if left or top or right or bottom:
        pixels = np.pad(pixels, ((top, bottom), (left, right), (0, 0)), mode="edge")
        height, width = pixels.shape[:2]
    inside = max(box[0] + left, 0.0), max(box[1] + top, 0.0), min(box[2] + left, width), min(box[3] + top, height)
    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        return _resize_with_pillow(pixels, inside, size)
    planes = [pixels[:, :, channel].astype(np.float32) for channel in range(pixels.shape[2])]
    resized = np.stack([_resize_with_pillow(plane, inside, size) for plane in planes], axis=2)
    return np.rint(resized).astype(np.uint8) if pixels.dtype == np.uint8 else resized


def _resize_with_pillow(pixels: NDArray[Any], box: tuple[float, float, float, float], size: Size) -> NDArray[Any]:
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR, box=box))


def _shift(part: NDArray[Any], left: int, top: int) -> NDArray[Any]:
    """Add pixels to the left and above, on which the result does not depend."""
    empty = np.empty if part.dtype == np.uint8 else np.zeros  # uninitialized floats may be NaN
    canvas = empty((top + part.shape[0], left + part.shape[1], part.shape[2]), part.dtype)
    canvas[top:, left:] = part
    return canvas


def _resize_start(pixels: NDArray[Any], size: Size, *, full: Size, resized: Size) -> NDArray[Any]:
    """Resize an image, of which only the first rows and columns are given and needed.

    Args:
        pixels: uint8 or floating point [height, width, channels], the first rows and columns of the image.
        size: Height and width of the needed part of the result.
        full: Height and width of the full image.
        resized: Height and width of the full image after resizing.

    Returns:
        [height, width, channels], the first rows and columns of the result, at least ``size``.
    """
    height, width = (
        # torch does not resize if the lengths are equal, whatever the factor. In that case one more
        # row or column is requested.
        needed + (needed == available and before != after)
        for needed, available, before, after in zip(size, pixels.shape[:2], full, resized, strict=True)
    )
    return _resize(pixels, height, width, scales=(resized[0] / full[0], resized[1] / full[1]))


def _resize(pixels: NDArray[Any], height: int, width: int, scales: tuple[float, float] | None = None) -> NDArray[Any]:
    """Resize with antialiasing.

    Args:
        pixels: uint8 or floating point [any height, any width, channels].
        height: Height of the result.
        width: Width of the result.
        scales: Vertical and horizontal factor; by default they follow from the sizes.

    Returns:
        [height, width, channels] in the dtype of ``pixels``.
    """
    # torch resizes all rows horizontally first. If that result would be too large, resize
    # vertically before.
    if scales is None and len(pixels) * width > MAX_PIXELS:
        pixels = _resize(pixels, height, pixels.shape[1])
    if not pixels.flags.writeable:
        pixels = pixels.copy()  # Pillow's arrays are read-only, and torch warns about that
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.ops.aten._upsample_bilinear2d_aa(  # noqa: SLF001 - interpolate() calls it, but takes no factors
        image, [height, width], False, *(scales or (None, None))
    )
    return resized[0].permute(1, 2, 0).numpy()  # type: ignore[no-any-return]
