"""Pixels in their stored dtype: `Mask`, `Array` and ``Image(mode="unchanged")``, cropped and resized."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import DecodeError
from wds_tools.format.codecs import sniff, view_npy
from wds_tools.images.decode import decode_stored, decode_unchanged
from wds_tools.images.resize import render_region, select_nearest
from wds_tools.images.views import Regions
from wds_tools.loading.columns import Column
from wds_tools.loading.fields.plain import Array, Image, Mask
from wds_tools.loading.part import Part
from wds_tools.loading.slots import write_values


def load_pixels(part: Part, column: Column, out: torch.Tensor | list[torch.Tensor] | None) -> list[Any] | None:
    """Return the masks or arrays of a part of a batch.

    Args:
        part: The n samples.
        column: The column; its specification is a `Mask` or an `Array`.
        out: Tensor [n, ...] to write to if all values have its shape and dtype, or None; a list with one per view if
            the image has a list of views.

    Returns:
        For each sample a tensor, or a list of tensors if the image has a list of views; None if they were written to
        ``out``.
    """
    values = column.by_sample(stored_views(part, column))
    with stages.WRITE:
        return None if write_values(values, out) else values


def stored_views(part: Part, column: Column) -> list[list[torch.Tensor]]:
    """Return for each view of a column the n values in their stored dtype."""
    spec = column.spec
    assert isinstance(spec, Mask | Array | Image)
    files = part.image_files(spec.field) if isinstance(spec, Image) else None
    stored = []
    for i, data in enumerate(files.data if files else part.data(spec.field)):
        with part.naming(i, spec.field), stages.DECODE:
            header = (files.modes[i], files.orientations[i], files.size(i)) if files else None
            stored.append(_stored_pixels(data, spec, header))
    views = part.regions(column.geometry) if column.geometry else [None]
    if column.geometry:
        sizes = np.array([pixels.shape[:2] for pixels in stored], np.int64)
        part.check_sizes(spec.field, sizes[:, 1], sizes[:, 0], column.geometry)
    with stages.WRITE:
        return [[_value(spec, pixels, regions, i) for i, pixels in enumerate(stored)] for regions in views]


def _stored_pixels(
    data: memoryview, spec: Mask | Array | Image, header: tuple[str, int, tuple[int, int]] | None
) -> NDArray[Any]:
    """Decode a field to [height, width, channels]; a mask has one channel.

    Args:
        data: The encoded file.
        spec: What it is.
        header: Mode, orientation and size of an `Image`.
    """
    pixels: NDArray[Any]
    if sniff(data) == "npy":
        try:
            pixels = view_npy(data)
        except ValueError as error:
            raise DecodeError(f"array cannot be decoded: {error}") from error
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        if pixels.ndim != 3 or 0 in pixels.shape or pixels.dtype.kind not in "biuf":
            raise DecodeError(
                f"an array of shape {pixels.shape} and {pixels.dtype} is not an image; allowed are numbers "
                "[height, width] and [height, width, channels]: read other arrays with wds_tools.Field(...)"
            )
        pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)  # torch has native byte order only
    elif header:
        pixels = decode_unchanged(data, mode=header[0], orientation=header[1], size=header[2])
    else:
        pixels = decode_stored(data)
    if isinstance(spec, Mask) and pixels.shape[2] != 1:
        raise DecodeError(
            f"a mask has one channel, but this image has {pixels.shape[2]}: read it with wds_tools.Array(..., "
            "interpolation='nearest')"
        )
    return pixels


def _value(spec: Mask | Array | Image, pixels: NDArray[Any], regions: Regions | None, i: int) -> torch.Tensor:
    """Return the value of sample ``i``: [height, width] of a mask, [channels, height, width] of an array."""
    shown = _shown(spec, pixels, regions, i)
    shown = shown[:, :, 0] if isinstance(spec, Mask) else shown.transpose(2, 0, 1)
    return torch.from_numpy(np.array(shown, order="C"))


def _shown(spec: Mask | Array | Image, pixels: NDArray[Any], regions: Regions | None, i: int) -> NDArray[Any]:
    """Return the region of sample ``i`` that is used: [height, width, channels]."""
    if regions is None:
        return pixels
    if _is_nearest(spec, pixels.dtype):
        return select_nearest(pixels, regions, i)
    left, top, width, height = regions.needed()[i].tolist()
    part = pixels[top : top + height, left : left + width]
    return render_region(part, regions, i, (left, top, width, height)).transpose(1, 2, 0)


def _is_nearest(spec: Mask | Array | Image, dtype: np.dtype[Any]) -> bool:
    """Return whether pixels are resized by nearest neighbour; otherwise they are interpolated."""
    if isinstance(spec, Image):
        return dtype == np.bool_
    if isinstance(spec, Mask) or spec.interpolation is not None:
        return isinstance(spec, Mask) or spec.interpolation == "nearest"
    return dtype.kind != "f" and dtype != np.uint16
