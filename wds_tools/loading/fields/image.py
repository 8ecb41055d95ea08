"""`Image`: images, decoded, cropped, resized, and passed to the user's transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import OptionError
from wds_tools.format.jpeg import Box
from wds_tools.images import native
from wds_tools.images.color import HSV, PhotometricDistort
from wds_tools.images.decode import Pixels as Rgb
from wds_tools.images.decode import decode_rgb, decode_unchanged
from wds_tools.images.resize import fill_around, render_region, warp_frame
from wds_tools.images.schedule import AnyView, is_view
from wds_tools.images.views import Frame, Regions
from wds_tools.loading.fields.base import (
    Column,
    Conversion,
    Output,
    tv_tensors,
)
from wds_tools.loading.fields.padding import Pad
from wds_tools.loading.fields.part import ImageFiles, Part
from wds_tools.loading.fields.pixels import Pixels, pixels_of
from wds_tools.loading.fields.user_functions import Transform, call_for_sample, transformed
from wds_tools.order.keyed_random import key_of, uniform

ImageMode = Literal["rgb", "unchanged"]


@dataclass(frozen=True)
class Image(Pixels):
    """An image: a uint8 tensor [batch, 3, height, width], RGB, or a list of tensors if the sizes differ.

    Attributes:
        field: Stored field, such as ``"jpg"`` or ``"left.jpg"``. ``"image"`` (the default) is the image of a sample,
            whatever its type.
        view: Region of the image and its output size: `RandomResizedCrop`, `CenterCrop`, `Resize`, or None for the
            whole image; for detection `Letterbox`, `Mosaic`, `RandomAffine`, `LargeScaleJitter`, `ZoomOut` or
            `RandomIoUCrop`, or a `Blend` or `CopyPaste` of two; a `Schedule` of these by epoch, a `MultiScale` by
            batch; or `Buckets` of several sizes. Or a list of views: the image is decoded once, and the value in the
            batch is a list with one tensor per view. Each view has its own random numbers. A view that shows several
            samples, such as `Mosaic`, cannot be in a list with others.
        mode: ``"rgb"`` (the default), or ``"unchanged"`` for [batch, channels, height, width] with the stored channels
            and dtype: grey, alpha, 16 bits, and ``npy`` arrays [height, width] or [height, width, channels]. Palettes
            are applied. If images of a batch differ in channels or dtype, the value is a list.
        like: Name of another `Image` in the batch: use the same region, size and flip. Both images must have the same
            size.
        color: Random changes of the colours, before ``transform``: an `HSV`, a `PhotometricDistort`, or None.
        transform: Function of one image, a tensor [channels, height, width], called in the worker, or an Albumentations
            transform. Random number generators are seeded for each sample.
        pad: Value of the padding at the right and bottom of smaller images, or a `Pad`, so that a batch is one tensor
            [batch, 3, height, width]. None (the default) gives a list if the sizes differ. If the image of ``like`` has
            a ``pad``, a number is required here: the padded size is that of the image.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "image"
    _: KW_ONLY
    view: AnyView | Sequence[AnyView] | None = None
    mode: ImageMode = "rgb"
    like: str | None = None
    color: HSV | PhotometricDistort | None = None
    transform: Transform | None = None
    pad: float | Pad | None = None

    gives = "region"
    is_image = True
    target = "image"

    def __post_init__(self) -> None:
        self._check("'image', 'jpg' or 'left.jpg'")
        self._check_choice("mode", ("rgb", "unchanged"))
        self._check_function("transform")
        if self.color is not None and not isinstance(self.color, HSV | PhotometricDistort):
            raise OptionError(
                f"wds_tools.Image(color={self.color!r}); allowed are wds_tools.HSV(...), PhotometricDistort(...), None"
            )
        if self.color is not None and self.is_unchanged:
            raise OptionError("wds_tools.Image(color=...) is for mode='rgb', not for mode='unchanged'")
        if self.view is not None and (not self.views or not all(map(is_view, self.views))):
            raise OptionError(
                f"wds_tools.Image(view={self.view!r}); allowed are wds_tools.RandomResizedCrop(...), CenterCrop(...), "
                "Resize(...), Schedule(...), lists of these, Buckets(...), and None"
            )
        if self.view is not None and self.like is not None:
            raise OptionError(
                f"wds_tools.Image(view={self.view!r}, like={self.like!r}): the region comes either from view= or from "
                f"the field {self.like!r}: remove one of them"
            )

    @property
    def is_rgb(self) -> bool:
        return self.transform is None and self.mode == "rgb"

    @property
    def is_unchanged(self) -> bool:
        return self.mode == "unchanged"

    def is_nearest(self, dtype: np.dtype[Any]) -> bool:
        return dtype == np.bool_

    def stored_pixels(self, part: Part) -> list[NDArray[Any]]:
        """Return the stored pixels of each sample, upright: [height, width, channels]."""
        files, pixels = part.image_files(self.field), []
        for i, data in enumerate(files.data):
            mode, orientation, size = files.modes[i], files.orientations[i], files.size(i)
            decode = partial(decode_unchanged, mode=mode, orientation=orientation, size=size)
            with part.naming(i, self.field), stages.DECODE:
                pixels.append(pixels_of(data, decode))
        return pixels

    def shapes(self, column: Column) -> list[tuple[int, ...]] | None:
        """Return channels, height and width for each view."""
        sizes = super().shapes(column)
        return [(3, *size) for size in sizes] if sizes and self.is_rgb else sizes

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the images of n samples.

        Returns:
            For each sample a tensor [channels, height, width], or the return value of the transform; a list of them if
            the column has a list of views.
        """
        images = self.stored_views(part, column) if self.is_unchanged else self._new_images(part, column)
        if column.conversion is not None:
            return column.by_sample([_converted(column.conversion, view) for view in images])
        if self.transform is None:
            return column.by_sample(images)
        with stages.TRANSFORM:
            return column.by_sample(
                [
                    [_transformed(part, column, self.transform, i, index, image) for i, image in enumerate(view)]
                    for index, view in enumerate(images)
                ]
            )

    def load_into(self, part: Part, column: Column, out: Output) -> Any:
        """Return the images of n samples, or None if they were written to ``out``: decoded there, if possible."""
        if out is None or (self.is_unchanged and self.transform is None):
            return super().load_into(part, column, out)
        outputs = [out] if isinstance(out, torch.Tensor) else out
        if column.conversion is not None:
            buffers = [torch.empty(tensor.shape, dtype=torch.uint8) for tensor in outputs]
            self._decoded(part, column, [buffer.numpy() for buffer in buffers])
            with stages.WRITE:
                for buffer, tensor in zip(buffers, outputs, strict=True):
                    column.conversion.write(buffer, tensor)
            return None
        if self.transform is None:
            self._decoded(part, column, [np.asarray(tensor.numpy()) for tensor in outputs])
            return None
        results = self.load(part, column)
        with stages.TRANSFORM:
            for i, result in enumerate(results):
                for value, tensor in zip(result if column.is_list else [result], outputs, strict=True):
                    _write(part, i, value, tensor)
        return None

    def pixels(self, part: Part, column: Column) -> list[list[torch.Tensor]]:
        return [list(views) for views in zip(*self._new_images(part, column), strict=True)]

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        return tv_tensors().Image(value)

    def _new_images(self, part: Part, column: Column) -> list[list[torch.Tensor]]:
        """Decode images to new tensors, uint8 [3, height, width] each, for each view."""
        shapes = [view.shape for view in column.geometry.views_at(part.epoch)] if column.geometry else [None]
        buffers = [np.empty((len(part), 3, *shape), np.uint8) if shape else None for shape in shapes]
        return [[torch.from_numpy(pixels) for pixels in view] for view in self._decoded(part, column, buffers)]

    def _decoded(self, part: Part, column: Column, buffers: Sequence[Rgb | None]) -> list[list[Rgb]]:
        """Decode images to uint8 [3, height, width] each, for each view: into the rows of its buffer, if it has one."""
        regions, sources = part.regions(column.geometry) if column.geometry else [], column.sources(part)
        if column.geometry and column.geometry.source != column.name:
            sources.check_sizes(self.field, *sources.image_sizes(self.field), column.geometry)
        images = render_files(
            sources.image_files(self.field), regions, buffers, lambda i: sources.naming(i, self.field)
        )
        if self.color is not None:
            with stages.TRANSFORM:
                for index, (buffer, view) in enumerate(zip(buffers, images, strict=True)):
                    key: tuple[int | str, ...] = (*column.key, index) if index else column.key
                    u = uniform(key_of("color", part.seed, part.epoch, *key), part.positions, self.color.draws)
                    self.color.change(view if buffer is None else buffer, u)
        return images


def _converted(conversion: Conversion, images: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return uint8 images of one size as floating-point images."""
    memory_format = torch.channels_last if conversion.channels_last else torch.contiguous_format
    pixels = torch.stack(images)
    return list(conversion.write(pixels, torch.empty_like(pixels, dtype=conversion.dtype, memory_format=memory_format)))


def _transformed(part: Part, column: Column, transform: Transform, i: int, view: int, image: torch.Tensor) -> Any:
    """Call the user's transform, with random generators seeded from the position of the sample in the epoch."""
    key: tuple[int | str, ...] = (*column.key, view) if view else column.key
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


def render_files(
    files: ImageFiles,
    regions: list[Regions],
    buffers: Sequence[Rgb | None],
    naming: Callable[[int], AbstractContextManager[None]],
) -> list[list[Rgb]]:
    """Decode image files, and show regions of them.

    Args:
        files: The n files.
        regions: Regions of the n images for each view; none to show the whole images.
        buffers: For each view uint8 [outputs, 3, height, width] to write to, or None if the sizes differ; one None to
            show the whole images.
        naming: Function of the index of a file: a context that adds its sample to a DecodeError.

    Returns:
        For each view the outputs, uint8 [3, height, width].
    """
    outputs: list[list[Any]] = [[None] * len(files.data)]
    if regions:
        outputs = [_arrays(buffer, region) for buffer, region in zip(buffers, regions, strict=True)]
    frames = [_frames(arrays, region) for arrays, region in zip(outputs, regions, strict=False)]
    images = [_placed(arrays, region) for arrays, region in zip(frames, regions, strict=True)] if regions else outputs
    is_decoded = _decode_natively(files, regions, buffers, images)
    for i in np.flatnonzero(~is_decoded.all(axis=1)).tolist():
        missing = np.flatnonzero(~is_decoded[i]).tolist()
        boxes = [regions[view].needed()[i].tolist() for view in missing if regions]
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
            for view, (left, top, width, height) in zip(missing, boxes, strict=True):
                y, x = top - box[1], left - box[0]
                needed = pixels[y : y + height, x : x + width]
                render_region(needed, regions[view], i, (left, top, width, height), images[view][i])
    for of_view, region, drawn in zip(outputs, regions, frames, strict=False):
        if region.frame is not None and (warp := region.frame.warp) is not None:
            for i, output in enumerate(of_view):
                if not output.size:
                    continue
                pixels = np.ascontiguousarray(drawn[i].transpose(1, 2, 0))
                output[...] = warp_frame(pixels, warp, i, region.frame.fill, nearest=False).transpose(2, 0, 1)
        if region.frame is not None and region.frame.shares is not None:
            _blend(of_view, region.frame)
            del of_view[1::2]
    return outputs


def _blend(outputs: list[Rgb], frame: Frame) -> None:
    """Blend each two outputs, or paste the second one on the first one, in place of the first one."""
    assert frame.shares is not None
    masks = frame.pasted.masks if frame.pasted else [None] * len(frame.shares)
    with stages.WRITE:
        for first, second, share, mask in zip(outputs[::2], outputs[1::2], frame.shares.tolist(), masks, strict=True):
            if mask is not None:
                np.copyto(first, second, where=mask)
            elif second.size:
                mixed = np.float32(share) * first + np.float32(1 - share) * second
                first[...] = (mixed + np.float32(0.5)).astype(np.uint8)


def _arrays(buffer: Rgb | None, regions: Regions) -> list[Rgb]:
    """Return an array for each output, uint8 [3, height, width]: the rows of the buffer, or new ones."""
    if buffer is not None:
        if regions.frame is None or regions.frame.shares is None:
            return list(buffer)
        nothing = np.empty((3, 0, 0), np.uint8)  # the second output of a sample without one
        pairs = zip(buffer, regions.frame.shares.tolist(), strict=True)
        return [array for row, share in pairs for array in (row, np.empty_like(row) if share < 1 else nothing)]
    tiles = regions.frame.tiles if regions.frame else 1
    return [np.empty((3, *size), np.uint8) for size in regions.output_size[::tiles].tolist()]


def _frames(outputs: list[Rgb], regions: Regions) -> list[Rgb]:
    """Return the arrays in which the results are placed: the outputs, or frames that are warped to them."""
    if regions.frame is None or regions.frame.warp is None:
        return outputs
    return [np.empty((3, *regions.frame.size), np.uint8) if output.size else output for output in outputs]


def _placed(outputs: list[Rgb], regions: Regions) -> list[Rgb]:
    """Return for each region the part of its output that it has, and fill the rest of the outputs."""
    frame = regions.frame
    if frame is None:
        return outputs
    with stages.WRITE:
        for i, output in enumerate(outputs):
            fill_around(output, regions, i, frame.fill)
    rectangles = enumerate(zip(frame.offset.tolist(), regions.size.tolist(), strict=True))
    return [
        outputs[i // frame.tiles][:, top : top + height, left : left + width]
        for i, ((top, left), (height, width)) in rectangles
    ]


def _union(boxes: list[list[int]]) -> Box | None:
    """Return the smallest box that contains all boxes, None if there are none."""
    if not boxes:
        return None
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, bottom = max(box[0] + box[2] for box in boxes), max(box[1] + box[3] for box in boxes)
    return left, top, right - left, bottom - top


def _decode_natively(
    files: ImageFiles, regions: list[Regions], buffers: Sequence[Rgb | None], images: list[list[Rgb]]
) -> NDArray[np.bool_]:
    """Decode the images that the compiled module supports, and return which ones it decoded: bool [n, views]."""
    is_decoded = np.zeros((len(files.data), len(images)), np.bool_)
    for i, region in enumerate(regions):
        is_decoded[:, i] = ~region.are_visible
    if not regions or not native.is_enabled():
        return is_decoded
    if set(files.kinds) == {"npy"}:
        for i, (region, buffer) in enumerate(zip(regions, buffers, strict=True)):
            is_decoded[:, i] |= buffer is not None and native.copy_pixels(files.data, region, buffer)
        return is_decoded
    upright_jpegs = [
        encoded if kind in ("jpg", "jpeg") and orientation == 1 else None
        for encoded, kind, orientation in zip(files.data, files.kinds, files.orientations, strict=True)
    ]
    nothing = np.empty((3, 1, 1), np.uint8)  # in place of an image without pixels
    shown = [[image if image.size else nothing for image in view] for view in images]
    return is_decoded | native.render_jpegs(upright_jpegs, files.sizes, regions, shown)
