"""`ObjectMasks`: a mask for each object, made of its outlines or run lengths after they were moved like their image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import OptionError, SourceError
from wds_tools.format.objects import name_of, run_lengths
from wds_tools.images.outlines import fill, shown_outlines
from wds_tools.images.resize import select_nearest, warp_frame
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column, tv_tensors
from wds_tools.loading.fields.padding import AnyPad
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, image_field, kept_entries
from wds_tools.loading.fields.polygons import stored_outlines

Masks = NDArray[np.bool_]

_MAX_BYTES = 1 << 30  # of the masks of an image: 10,000 objects of 320 x 320 pixels


@dataclass(frozen=True)
class ObjectMasks(AtPath):
    """A mask for each object, as Mask R-CNN expects them: a list of uint8 tensors [objects, height, width], 0 and 1.

    Outlines are moved, mirrored and clipped first, and then filled: a pixel belongs to an object if its centre is
    inside one of its outlines, as for pycocotools. Masks in run lengths are resized by nearest neighbour.
    A ``sample_transform=`` of torchvision moves the masks, but one of Albumentations does not.

    Attributes:
        field: Stored field: JSON.
        path: Names that lead to the objects in JSON, see `Boxes`. Each object has ``polygons``, a list of outlines
            x, y, x, y, ..., or ``rle``, run lengths as COCO stores them (docs/annotations.md).
        like: Name of the `Image` whose view is used, or of the `Boxes` whose entries remain. Required.
        pad: ``"flat"`` joins the masks of all samples, [all objects, height, width]. None (the default) gives a list.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = "objects"
    like: str | None = None
    pad: AnyPad = None

    takes = ("region", "entries")
    stacks = False

    def __post_init__(self) -> None:
        self._check("'json'")
        if self.like is None:
            raise OptionError("wds_tools.ObjectMasks() requires like= with the name of boxes or of an image")

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the masks of the objects of each sample; by view if there is a list."""
        sources, views = column.sources(part), []
        objects = [self._objects(sources, i, value) for i, value in enumerate(self.values(sources))]
        sizes = np.stack(sources.image_sizes(image_field(column)), axis=1)[:, ::-1]
        for view, regions in enumerate(column.regions(part)):
            kept = kept_entries(self, part, column, view, objects)
            outputs = sizes if regions is None else regions.output_size
            with stages.RESIZE:
                masks = [
                    self._masks(sources, i, of_image, regions, sizes[i].tolist(), outputs[i].tolist())
                    for i, of_image in enumerate(kept)
                ]
            views.append([torch.from_numpy(mask.view(np.uint8)) for mask in column.joined(part, masks, np.concatenate)])
        return column.by_sample(views)

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        return tv_tensors().Mask(value)

    def _objects(self, part: Part, i: int, value: Any) -> list[Mapping[str, Any]]:
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self.invalid(part, i, f"{str(value)[:80]!r}", "a list of objects")
        for index, item in enumerate(value):
            if not item.keys() & {"polygons", "rle"}:
                actual = f"{name_of(item, index)} without outline"
                raise self.invalid(part, i, actual, "objects with 'polygons' or 'rle'")
        return value

    def _masks(
        self,
        part: Part,
        i: int,
        objects: list[Any],
        regions: Regions | None,
        size: tuple[int, int],
        output: tuple[int, int],
    ) -> Masks:
        """Return the masks of objects of image ``i``: bool [objects, height, width].

        Args:
            part: The images.
            i: Index of the image.
            objects: Its objects.
            regions: What a view shows of the images; None for all of them.
            size: Height and width of the image.
            output: Height and width of the masks.
        """
        length = len(objects) * output[0] * output[1]
        if length > _MAX_BYTES:
            actual = f"{len(objects):,} objects, whose masks of {output[1]}x{output[0]} take {length:,} bytes"
            raise self.invalid(part, i, actual, f"{_MAX_BYTES:,} bytes: use a smaller view, or Polygons")
        masks = np.zeros((len(objects), *output), np.bool_)
        stored = stored_outlines(self, part, i, [item.get("polygons", []) for item in objects])
        shown = zip(masks, shown_outlines(stored, regions, i), strict=True)
        pairs = [(mask, outline) for mask, outlines in shown for outline in outlines]
        fill([mask for mask, _ in pairs], [outline for _, outline in pairs])
        for mask, item in zip(masks, objects, strict=True):
            if "polygons" not in item:
                mask[...] = _shown(self._decoded(part, i, item["rle"], size), regions, i)
        if regions and regions.frame and (pasted := regions.frame.pasted) and (shows := regions.shows(i)) is not None:
            masks &= shows
            chosen = pasted.chosen[i] if pasted.chosen else None
            if chosen is not None and len(chosen) == len(masks):  # otherwise only those that are pasted are left
                masks[~chosen] = False
        return masks

    def _decoded(self, part: Part, i: int, rle: Any, size: tuple[int, int]) -> Masks:
        """Return a mask in run lengths as pixels."""
        try:
            counts = run_lengths(rle if isinstance(rle, dict) else {})
        except SourceError as error:
            raise self.invalid(part, i, str(error), "run lengths as COCO stores them") from error
        if tuple(rle["size"]) != tuple(size):
            actual = f"a mask in run lengths of height and width {rle['size']}"
            raise self.invalid(part, i, actual, f"those of the image, {list(size)}")
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size[::-1]).T


def _shown(mask: Masks, regions: Regions | None, i: int) -> Masks:
    """Return what a view shows of the mask of image ``i``, resized by nearest neighbour."""
    if regions is None:
        return mask
    frame = regions.frame
    if frame is None:
        return select_nearest(mask, regions, i)
    output = np.zeros(frame.size, np.bool_)
    (top, left), (height, width) = frame.offset[i].tolist(), regions.size[i].tolist()
    if height and width:
        output[top : top + height, left : left + width] = select_nearest(mask, regions, i)
    if frame.warp is None:
        return output
    return warp_frame(output[..., None], frame.warp, i // frame.tiles, 0, nearest=True)[..., 0]
