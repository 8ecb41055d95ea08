"""`Boxes`: bounding boxes, moved, scaled and mirrored like their image, and clipped to its region."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column, tv_tensors
from wds_tools.loading.fields.padding import AnyPad
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, Floats, move_points

BoxFormat = Literal["xywh", "xyxy", "cxcywh"]


@dataclass(frozen=True)
class Boxes(AtPath):
    """Bounding boxes: a list of float32 tensors [number of boxes, 4], left, top, right, bottom in pixels.

    They are stacked, float32 [batch, boxes, 4], if all samples of a batch have the same number of boxes.

    With ``like``, boxes are moved, scaled and mirrored like the image, clipped to its region, and dropped if nothing of
    them is left. ``Field(..., like=...)`` drops the same entries of other lists, such as the classes of the boxes.

    Attributes:
        field: Stored field: JSON, or an ``npy`` array [number of boxes, 4].
        path: Names that lead to the boxes in JSON, separated by dots, such as ``"objects.bbox"``. In a list, a name is
            looked up in each of its elements. The default is the whole value.
        format: How they are stored: ``"xywh"`` (left, top, width, height, as in COCO), ``"xyxy"`` (left, top, right,
            bottom) or ``"cxcywh"`` (centre, width, height, as in YOLO).
        normalized: Whether the stored numbers are fractions of the width and height of the image. Requires ``like``.
        like: Name of the `Image` whose region, size and flip are used. None (the default) keeps the stored positions.
        pad: Value of the padding, or a `Pad`, so that each batch is one tensor [batch, boxes, 4]; ``"flat"`` joins the
            boxes of all samples, [all boxes, 4]. None (the default) gives a list if the numbers differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    format: BoxFormat = "xywh"
    normalized: bool = False
    like: str | None = None
    pad: AnyPad = None

    gives = "entries"
    target = "bboxes"

    def __post_init__(self) -> None:
        self._check("'json'")
        self._check_choice("format", ("xywh", "xyxy", "cxcywh"))
        self._check_choice("normalized", (False, True))
        if self.normalized and self.like is None:
            raise OptionError(
                "wds_tools.Boxes(normalized=True) requires like= with the name of an image, whose size is the unit"
            )

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the visible boxes of each sample: float32 [k, 4], edges in pixels; by view if there is a list."""
        moved = self._moved(part, column)
        return column.by_sample(
            [[torch.from_numpy(boxes[_are_visible(column, boxes)]) for boxes in view] for view in moved]
        )

    def kept(self, part: Part, column: Column) -> list[list[NDArray[np.bool_]]]:
        return [[_are_visible(column, boxes) for boxes in view] for view in self._moved(part, column)]

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        return value if size is None else tv_tensors().BoundingBoxes(value, format="XYXY", canvas_size=size)

    def check_target(self, name: str, form: str | None) -> None:
        if not form:
            raise OptionError(
                f"sample_transform= does not move the field {name!r}: use "
                "A.Compose([...], bbox_params=A.BboxParams(format='pascal_voc'))"
            )

    def to_target(self, value: Any, form: str | None, size: tuple[int, int]) -> Any:
        return _as_format(value.numpy().astype(np.float64), form, size)

    def from_target(self, value: Any, before: Any, form: str | None, size: tuple[int, int]) -> Any:
        array = np.asarray(value, np.float64)[:, :4] if len(value) else np.zeros((0, 4))
        return torch.from_numpy(_from_format(array, form, size).astype(np.float32))

    def _moved(self, part: Part, column: Column) -> list[list[NDArray[np.float32]]]:
        """Return for each view all boxes of each sample, clipped to its region: float32 [k, 4], edges in pixels."""
        stored = self._stored(part, column)
        return [
            [(clipped_boxes(edges, view, i) if view else edges).astype(np.float32) for i, edges in enumerate(stored)]
            for view in column.regions(part)
        ]

    def _stored(self, part: Part, column: Column) -> list[Floats]:
        """Return the boxes of each sample in the image: float64 [k, 4], left, top, right, bottom in pixels."""
        boxes = []
        for i, value in enumerate(self.values(part)):
            stored = self.as_array(part, i, value)
            if stored.size and (stored.ndim != 2 or stored.shape[1] != 4):
                raise self.invalid(part, i, f"an array of shape {stored.shape}", "boxes [number of boxes, 4]")
            edges = _edges(stored.reshape(-1, 4), self.format)
            invalid = ~((edges[:, 2:] >= edges[:, :2]).all(axis=1) & np.isfinite(edges).all(axis=1))
            if invalid.any():
                j = int(np.argmax(invalid))
                found = f"box {j}, {stored.reshape(-1, 4)[j].tolist()} ({self.format})"
                raise self.invalid(part, i, found, "finite numbers, and widths and heights of at least 0")
            if self.normalized:
                width, height = (int(sizes[i]) for sizes in part.image_sizes(_image_field(column)))
                edges *= [width, height, width, height]
            boxes.append(edges)
        return boxes


def _image_field(column: Column) -> str:
    """Return the stored field of the image that boxes belong to, which need not have a view."""
    if column.geometry:
        return column.geometry.field
    assert column.like is not None, "required by Boxes(normalized=True)"
    return column.like.spec.field


def clipped_boxes(edges: Floats, regions: Regions, i: int) -> Floats:
    """Return boxes of an image as boxes of the region that a view shows of it, clipped to it.

    Args:
        edges: float64 [k, 4], left, top, right, bottom in pixels of the image.
        regions: Regions of a batch.
        i: Index of the image in the batch.

    Returns:
        float64 [k, 4], left, top, right, bottom in pixels of the result. A box outside the region has no area.
    """
    corners = move_points(edges.reshape(-1, 2, 2), regions, i, mirror_at=0)
    corners = np.clip(corners, 0, regions.size[i, ::-1])
    if regions.flip[i]:
        corners[:, :, 0] = corners[:, ::-1, 0]
    return corners.reshape(-1, 4)


def _are_visible(column: Column, edges: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which boxes have an area; all of them if no region is chosen."""
    if column.geometry is None:
        return np.ones(len(edges), np.bool_)
    return np.asarray((edges[:, 2:] > edges[:, :2]).all(axis=1))


def _edges(boxes: Floats, form: str) -> Floats:
    if form == "xyxy":
        return boxes
    corner, size = boxes[:, :2], boxes[:, 2:]
    start = corner - size / 2 if form == "cxcywh" else corner
    return np.concatenate([start, start + size], axis=1)


def _as_format(edges: NDArray[np.float64], form: str | None, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return boxes [k, 4], which are edges in pixels, in a format of Albumentations."""
    height, width = size
    start, stop = edges[:, :2], edges[:, 2:]
    if form in ("coco", "yolo", "cxcywh"):
        first = start if form == "coco" else (start + stop) / 2
        edges = np.concatenate([first, stop - start], axis=1)
    return edges / [width, height, width, height] if form in ("albumentations", "yolo") else edges


def _from_format(boxes: NDArray[np.float64], form: str | None, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return boxes [k, 4] in a format of Albumentations as edges in pixels."""
    height, width = size
    if form in ("albumentations", "yolo"):
        boxes = boxes * [width, height, width, height]
    return _edges(boxes, {"coco": "xywh", "yolo": "cxcywh", "cxcywh": "cxcywh"}.get(form or "", "xyxy"))
