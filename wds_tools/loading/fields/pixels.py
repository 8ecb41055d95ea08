"""`Mask` and `Array`: pixels in their stored dtype, cropped and resized, and what `Image` shares with them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import DecodeError
from wds_tools.format.codecs import view_npy
from wds_tools.format.image_header import sniff
from wds_tools.images.decode import decode_stored
from wds_tools.images.framed import check_fill
from wds_tools.images.resize import render_region, select_nearest, warp_frame
from wds_tools.images.views import Frame, Regions
from wds_tools.loading.fields.base import Column, FieldSpec, tv_tensors
from wds_tools.loading.fields.padding import Pad
from wds_tools.loading.fields.part import Part

Interpolation = Literal["nearest", "bilinear"]


class Pixels(FieldSpec):
    """Base of kinds whose values are tensors of pixels."""

    pad_axes = 2
    fill: int | None = None  # where a view shows nothing of an image; by default the value of the view

    @abstractmethod
    def is_nearest(self, dtype: np.dtype[Any]) -> bool:
        """Return whether pixels of a dtype are resized by nearest neighbour; otherwise they are interpolated."""

    def decode(self, data: memoryview) -> NDArray[Any]:
        """Return the stored pixels of a file: [height, width, channels]."""
        return pixels_of(data, decode_stored)

    def stored_pixels(self, part: Part) -> list[NDArray[Any]]:
        """Return the stored pixels of each sample: [height, width, channels]."""
        pixels = []
        for i, data in enumerate(part.data(self.field)):
            with part.naming(i, self.field), stages.DECODE:
                pixels.append(self.decode(data))
        return pixels

    def as_tensor(self, pixels: NDArray[Any]) -> torch.Tensor:
        """Return pixels [height, width, channels] as a value."""
        return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order="C"))

    def stored_views(self, part: Part, column: Column) -> list[list[torch.Tensor]]:
        """Return for each view of a column the n values in their stored dtype."""
        sources = column.sources(part)
        stored, views = self.stored_pixels(sources), column.regions(part)
        if column.geometry:
            sizes = np.array([pixels.shape[:2] for pixels in stored], np.int64)
            sources.check_sizes(self.field, sizes[:, 1], sizes[:, 0], column.geometry)
            self._check_tiles(sources, stored, column.geometry.tiles_at(part.epoch))
        with stages.WRITE:
            return [[self.as_tensor(pixels) for pixels in self._outputs(stored, regions)] for regions in views]

    def _check_tiles(self, sources: Part, stored: list[NDArray[Any]], tiles: int) -> None:
        """Check that the pixels of all tiles of an image have one type."""
        for i, pixels in enumerate(stored):
            first = stored[i - i % tiles]
            if (pixels.shape[2], pixels.dtype) != (first.shape[2], first.dtype):
                error = DecodeError(
                    f"field {self.field!r} has {pixels.shape[2]} channels of {pixels.dtype}, but that of the sample "
                    f"with which it shares an image has {first.shape[2]} of {first.dtype}"
                )
                raise sources.located(error, i)

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return for each sample a tensor, or a list with one for each view of the image."""
        return column.by_sample(self.stored_views(part, column))

    def shapes(self, column: Column) -> list[tuple[int, ...]] | None:
        """Return height and width for each view."""
        if column.padding is not None:
            views = len(column.geometry.views) if column.geometry else 1
            return [column.padding.size] * views if column.padding.size else None
        if column.geometry is None:
            return None
        shapes = [view.shape for view in column.geometry.views if view.shape is not None]
        return [*shapes] if len(shapes) == len(column.geometry.views) else None

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        return tv_tensors().Mask(value)

    def to_target(self, value: Any, form: str | None, size: tuple[int, int]) -> Any:
        return np.ascontiguousarray(value.permute(1, 2, 0).numpy())

    def from_target(self, value: Any, before: Any, form: str | None, size: tuple[int, int]) -> Any:
        return channels_first(value)

    def _outputs(self, stored: list[NDArray[Any]], regions: Regions | None) -> list[NDArray[Any]]:
        """Return what a view shows of stored pixels: [height, width, channels] for each output."""
        if regions is None:
            return stored
        if regions.frame is None:
            return [self._shown(pixels, regions, i) for i, pixels in enumerate(stored)]
        outputs: list[NDArray[Any]] = []
        for index in range(len(stored) // regions.frame.tiles):
            if regions.frame.shares is None or index % 2 == 0:
                outputs.append(self._output(stored, regions, regions.frame, index))
            elif (shows := regions.shows(index * regions.frame.tiles)) is not None:  # otherwise the first one is shown
                outputs[-1][shows] = self._output(stored, regions, regions.frame, index)[shows]
        return outputs

    def _output(self, stored: list[NDArray[Any]], regions: Regions, frame: Frame, index: int) -> NDArray[Any]:
        """Return one output of a frame: [height, width, channels]."""
        start = index * frame.tiles
        fill = frame.fill if self.fill is None else self.fill
        output = np.full((*frame.size, stored[start].shape[2]), fill, stored[start].dtype)
        for i in range(start, start + frame.tiles):
            (top, left), (height, width) = frame.offset[i].tolist(), regions.size[i].tolist()
            if height and width:
                output[top : top + height, left : left + width] = self._shown(stored[i], regions, i)
        if frame.warp is None:
            return output
        return warp_frame(output, frame.warp, index, fill, nearest=self.is_nearest(output.dtype)).copy()

    def _shown(self, pixels: NDArray[Any], regions: Regions, i: int) -> NDArray[Any]:
        """Return the region of image ``i`` that a view shows: [height, width, channels]."""
        if self.is_nearest(pixels.dtype):
            return select_nearest(pixels, regions, i)
        left, top, width, height = regions.needed()[i].tolist()
        part = pixels[top : top + height, left : left + width]
        return render_region(part, regions, i, (left, top, width, height)).transpose(1, 2, 0)


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
        fill: Value where a view shows nothing of the image, as around the image of a `Letterbox`.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    pad: float | Pad | None = None
    fill: int = 0

    target = "mask"

    def __post_init__(self) -> None:
        self._check("'mask.png'")
        check_fill(self.fill)

    def is_nearest(self, dtype: np.dtype[Any]) -> bool:
        return True

    def as_tensor(self, pixels: NDArray[Any]) -> torch.Tensor:
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
        fill: Value where a view shows nothing of the image, as around the image of a `Letterbox`.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    interpolation: Interpolation | None = None
    pad: float | Pad | None = None
    fill: int = 0

    target = "mask"

    def __post_init__(self) -> None:
        self._check("'depth.png'")
        check_fill(self.fill)
        self._check_choice("interpolation", (None, "nearest", "bilinear"))

    def is_nearest(self, dtype: np.dtype[Any]) -> bool:
        if self.interpolation is not None:
            return self.interpolation == "nearest"
        return dtype.kind != "f" and dtype != np.uint16


def pixels_of(data: memoryview, decode: Callable[[memoryview], NDArray[Any]]) -> NDArray[Any]:
    """Return the pixels of a file [height, width, channels]: those of an array, or as ``decode`` returns them."""
    if sniff(data) != "npy":
        return decode(data)
    try:
        pixels: NDArray[Any] = view_npy(data)
    except ValueError as error:
        raise DecodeError(f"array cannot be decoded: {error}") from error
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or 0 in pixels.shape or pixels.dtype.kind not in "biuf":
        raise DecodeError(
            f"an array of shape {pixels.shape} and {pixels.dtype} is not an image; allowed are numbers "
            "[height, width] and [height, width, channels]: read other arrays with wds_tools.Field(...)"
        )
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)  # torch has native byte order only


def channels_first(value: Any) -> torch.Tensor:
    """Return an image of Albumentations as a tensor [channels, height, width]; it is one already after ToTensorV2."""
    if isinstance(value, torch.Tensor):
        return value
    array = value[:, :, None] if value.ndim == 2 else value
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
