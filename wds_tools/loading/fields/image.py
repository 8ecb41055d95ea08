"""Values of `Image`: decoded, cropped, resized, and passed to the user's transform."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import OptionError
from wds_tools.format.jpeg import Box
from wds_tools.images import native
from wds_tools.images.decode import Pixels, decode_rgb
from wds_tools.images.resize import render_region
from wds_tools.images.views import Regions
from wds_tools.loading.columns import Column
from wds_tools.loading.fields.pixels import stored_views
from wds_tools.loading.fields.plain import Image, Transform
from wds_tools.loading.part import ImageFiles, Part
from wds_tools.loading.slots import write_values
from wds_tools.loading.user_functions import call_for_sample, transformed
from wds_tools.order.keyed_random import key_of


def load_images(part: Part, column: Column, out: list[torch.Tensor] | None) -> list[Any] | None:
    """Return the images of a part of a batch, or None if they were written to ``out``.

    Args:
        part: The n samples.
        column: The column; its specification is an `Image`.
        out: For each view a tensor [n, ...] to write to, or None.

    Returns:
        For each sample a tensor [channels, height, width], or the return value of the transform; a list of them if the
        column has a list of views.
    """
    assert isinstance(column.spec, Image)
    transform = column.spec.transform
    if column.spec.mode == "unchanged":
        images = stored_views(part, column)
        if transform is None:
            values = column.by_sample(images)
            return None if write_values(values, out if column.is_list or out is None else out[0]) else values
    else:
        decoded = _decode_images(part, column, _pixel_buffers(part, column, out))
        if out is not None and transform is None:
            return None
        images = [[torch.from_numpy(pixels) for pixels in view] for view in decoded]
        if transform is None:
            return column.by_sample(images)
    with stages.TRANSFORM:
        results = [
            [_transformed(part, column, transform, i, number, image) for i, image in enumerate(view)]
            for number, view in enumerate(images)
        ]
        if out is None:
            return column.by_sample(results)
        for view, tensor in zip(results, out, strict=True):
            for i, result in enumerate(view):
                _write(part, i, result, tensor)
    return None


def _pixel_buffers(part: Part, column: Column, out: list[torch.Tensor] | None) -> list[Pixels | None]:
    """Return for each view an array for the pixels, uint8 [n, 3, height, width], or None if their sizes differ."""
    assert isinstance(column.spec, Image)
    if out is not None and column.spec.transform is None:
        return [np.asarray(tensor.numpy()) for tensor in out]
    shapes = [view.shape for view in column.geometry.views_at(part.epoch)] if column.geometry else [None]
    return [np.empty((len(part), 3, *shape), np.uint8) if shape else None for shape in shapes]


def _transformed(part: Part, column: Column, transform: Transform, i: int, number: int, image: torch.Tensor) -> Any:
    """Call the user's transform, with random generators seeded from the position of the sample in the epoch.

    Args:
        part: The samples.
        column: The column.
        transform: The function.
        i: Index of the sample.
        number: Number of the view.
        image: The image.
    """
    key: tuple[int | str, ...] = (*column.key, number) if number else column.key
    seed = key_of("transform", part.seed, part.epoch, int(part.positions[i]), *key)
    return call_for_sample("transform=", part.rows, i, lambda: transformed(transform, image, seed))


def _write(part: Part, i: int, result: Any, out: torch.Tensor) -> None:
    """Write the result of a transform to row ``i`` of a slot."""
    if not isinstance(result, torch.Tensor) or result.shape != out.shape[1:] or result.dtype != out.dtype:
        shard, key = part.rows.shard_and_key(i)
        got = f"{tuple(result.shape)} {result.dtype}" if isinstance(result, torch.Tensor) else type(result)
        raise OptionError(
            f"transform= returned {got}; for the first sample it returned {tuple(out.shape[1:])} {out.dtype}: "
            "it must return the same shape and dtype for every sample",
            shard=shard,
            key=key,
        )
    out[i].copy_(result)


def _decode_images(part: Part, column: Column, buffers: list[Pixels | None]) -> list[list[Pixels]]:
    """Decode images to uint8 [3, height, width] each, for each view; if it has a buffer, into the rows of that."""
    field = column.spec.field
    regions = part.regions(column.geometry) if column.geometry else []
    if column.geometry and column.geometry.source != column.name:
        part.check_sizes(field, *part.image_sizes(field), column.geometry)
    return render_files(part.image_files(field), regions, buffers, lambda i: part.naming(i, field))


def render_files(
    files: ImageFiles,
    regions: list[Regions],
    buffers: list[Pixels | None],
    naming: Callable[[int], AbstractContextManager[None]],
) -> list[list[Pixels]]:
    """Decode image files, and show regions of them.

    Args:
        files: The n files.
        regions: Regions of the n images for each view; none to show the whole images.
        buffers: For each view uint8 [n, 3, height, width] to write to, or None if the sizes differ; one None to show
            the whole images.
        naming: Function of the number of a file: a context that adds its sample to a DecodeError.

    Returns:
        For each view n arrays, uint8 [3, height, width].
    """
    images: list[list[Any]] = [[None] * len(files.data)]
    if regions:
        images = [_arrays(buffer, region) for buffer, region in zip(buffers, regions, strict=True)]
    is_decoded = _decode_natively(files, regions, buffers, images)
    for i in np.flatnonzero(~is_decoded.all(axis=1)).tolist():
        missing = np.flatnonzero(~is_decoded[i]).tolist()
        boxes = [regions[number].needed()[i].tolist() for number in missing if regions]
        box = _union(boxes)
        with naming(i), stages.DECODE:
            pixels = decode_rgb(
                files.data[i],
                kind=files.kinds[i],
                mode=files.modes[i],
                orientation=files.orientations[i],
                box=box,
                size=files.size(i),
            )
        with stages.WRITE:
            if box is None:
                images[0][i] = pixels.transpose(2, 0, 1).copy()
                continue
            for number, (left, top, width, height) in zip(missing, boxes, strict=True):
                y, x = top - box[1], left - box[0]
                needed, view = pixels[y : y + height, x : x + width], images[number]
                view[i] = render_region(needed, regions[number], i, (left, top, width, height), view[i])
    return images


def _arrays(buffer: Pixels | None, regions: Regions) -> list[Pixels]:
    """Return an array for each region, uint8 [3, height, width]: the rows of the buffer, or new ones."""
    return list(buffer) if buffer is not None else [np.empty((3, *size), np.uint8) for size in regions.size.tolist()]


def _union(boxes: list[list[int]]) -> Box | None:
    """Return the smallest box that contains all boxes, None if there are none."""
    if not boxes:
        return None
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, bottom = max(box[0] + box[2] for box in boxes), max(box[1] + box[3] for box in boxes)
    return left, top, right - left, bottom - top


def _decode_natively(
    files: ImageFiles, regions: list[Regions], buffers: list[Pixels | None], images: list[list[Pixels]]
) -> NDArray[np.bool_]:
    """Decode the images that the compiled module supports, and return which ones it decoded: bool [n, views]."""
    is_decoded = np.zeros((len(files.data), len(images)), np.bool_)
    if not regions or not native.is_enabled():
        return is_decoded
    if set(files.kinds) == {"npy"}:
        for number, (region, buffer) in enumerate(zip(regions, buffers, strict=True)):
            is_decoded[:, number] = buffer is not None and native.copy_pixels(files.data, region, buffer)
        return is_decoded
    upright_jpegs = [
        encoded if kind in ("jpg", "jpeg") and orientation == 1 else None
        for encoded, kind, orientation in zip(files.data, files.kinds, files.orientations, strict=True)
    ]
    return native.render_jpegs(upright_jpegs, files.sizes, regions, images)
