"""`Boxes`: bounding boxes, moved, scaled and mirrored like their image, and clipped to its region."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.images.outlines import image_edges, place_points, uncovered
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column, tv_tensors
from wds_tools.loading.fields.padding import AnyPad, is_number
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, Floats, image_field
from wds_tools.reading.shardset import ShardSet

_MAX_FRACTION = 2.0  # boxes may reach beyond their image, but none is twice as large
BoxFormat = Literal["xywh", "xyxy", "cxcywh"]


@dataclass(frozen=True, slots=True)
class _Shown:
    """The boxes of n images, all in one array: NumPy takes about a microsecond for each array.

    Attributes:
        edges: float32 [k, 4], edges in pixels of what a view shows.
        kept: bool [k], which of them remain.
        ends: int64 [n + 1], where the boxes of each image start and end.
    """

    edges: NDArray[np.float32]
    kept: NDArray[np.bool_]
    ends: NDArray[np.int64]

    def by_output(self, outputs: int) -> list[torch.Tensor]:
        """Return the boxes that remain in each of a number of outputs, which show the same number of images each."""
        remaining = np.concatenate([[0], np.cumsum(self.kept)])[self.ends]
        edges = self.edges[self.kept]
        ends = remaining[:: max(1, (len(remaining) - 1) // max(1, outputs))].tolist()
        return [torch.from_numpy(edges[start:stop]) for start, stop in pairwise(ends)]


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
        format: How the boxes are stored: ``"xywh"`` (left, top, width, height, as in COCO), ``"xyxy"`` (left, top,
            right, bottom) or ``"cxcywh"`` (centre, width, height, as in YOLO). None (the default) is ``"xyxy"`` for
            ``objects.box`` of packed annotations (docs/annotations.md), and ``"xywh"`` for all other paths.
        normalized: Whether the stored numbers are fractions of the width and height of the image. Requires ``like``.
            A number above 2 is an error, as fractions are 0 to 1.
        like: Name of the `Image` whose region, size and flip are used. None (the default) keeps the stored positions.
        min_visible: With ``like``, drop a box if the visible share of its area is at most this number, 0 to 1. The
            default drops boxes of which nothing is visible.
        min_side: With ``like``, drop a box if the width or height of its visible part is at most this number of pixels.
        max_aspect: With ``like``, drop a box if one side of its visible part is longer than this number times the
            other.
        pad: Value of the padding, or a `Pad`, so that each batch is one tensor [batch, boxes, 4]; ``"flat"`` joins the
            boxes of all samples, [all boxes, 4]. None (the default) gives a list if the numbers differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    format: BoxFormat | None = None
    normalized: bool = False
    like: str | None = None
    min_visible: float = 0.0
    min_side: float = 0.0
    max_aspect: float | None = None
    pad: AnyPad = None

    gives = "entries"
    target = "bboxes"

    def __post_init__(self) -> None:
        self._check("'json'")
        self._check_choice("format", ("xywh", "xyxy", "cxcywh", None))
        self._check_choice("normalized", (False, True))
        limits = {"min_visible": (0, 1), "min_side": (0, math.inf), "max_aspect": (1, math.inf)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not (is_number(value) and low <= value <= high):
                most = "" if high == math.inf else f" to {high}"
                raise OptionError(f"wds_tools.Boxes({name}={value!r}); allowed are numbers from {low}{most}")
            if value and self.like is None:
                raise OptionError(f"wds_tools.Boxes({name}={value!r}) requires like= with the name of an image")
        if self.normalized and self.like is None:
            raise OptionError(
                "wds_tools.Boxes(normalized=True) requires like= with the name of an image, whose size is the unit"
            )

    @property
    def _order(self) -> BoxFormat:
        return self.format or ("xyxy" if self._is_of_annotations else "xywh")

    @property
    def _is_of_annotations(self) -> bool:
        return (self.field, self.path) == ("json", "objects.box")

    def opened(self, shards: ShardSet) -> Boxes:
        """Check that boxes without ``format`` at the path of packed annotations are those of packed annotations.

        Raises:
            OptionError: The dataset has no class list of objects.
        """
        if self.format is None and self._is_of_annotations and CATEGORY_PATH not in shards.manifest.field_classes:
            raise OptionError(
                f"wds_tools.Boxes(path={self.path!r}): {shards.name} has no class list for {CATEGORY_PATH!r}, so it "
                "was not packed from annotations, and the order of the numbers is not known: give format='xyxy', "
                "'xywh' or 'cxcywh'"
            )
        return self

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the visible boxes of each sample: float32 [k, 4], edges in pixels; by view if there is a list."""
        return column.by_sample([view.by_output(len(part)) for view in self._shown(part, column)])

    def kept(self, part: Part, column: Column) -> list[list[NDArray[np.bool_]]]:
        return [
            [view.kept[start:stop] for start, stop in pairwise(view.ends.tolist())]
            for view in self._shown(part, column)
        ]

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

    def _shown(self, part: Part, column: Column) -> list[_Shown]:
        """Return for each view the boxes of all sources of a part."""
        return part.once(column.name, lambda: self._found(part, column))

    def _found(self, part: Part, column: Column) -> list[_Shown]:
        stored, rows, counts = self._stored(column.sources(part), image_field(column))
        shown = []
        for regions in column.regions(part):
            clipped, visible = clipped_boxes(stored, regions, rows) if regions else (stored, np.ones(len(stored)))
            if regions and regions.frame and (pasted := regions.frame.pasted):
                self._check_outlines(column.sources(part), counts, pasted.objects)
                clipped, shares = uncovered(clipped, regions, rows)
                visible = visible * shares
            edges = clipped.astype(np.float32)
            width, height = (edges[:, 2:] - edges[:, :2]).T
            kept = np.ones(len(edges), np.bool_)
            if regions:
                kept = (width > self.min_side) & (height > self.min_side) & (visible > self.min_visible)
            if regions and self.max_aspect is not None:
                kept &= (width < self.max_aspect * height) & (height < self.max_aspect * width)
            shown.append(_Shown(edges, kept, np.concatenate([[0], np.cumsum(counts)])))
        return shown

    def _check_outlines(self, part: Part, counts: NDArray[np.int64], objects: Sequence[Sequence[Any]] | None) -> None:
        for i, outlines in enumerate(objects or ()):
            if len(outlines) != counts[i]:
                actual = f"{counts[i]} boxes, but {len(outlines)} objects with outlines"
                raise self.invalid(part, i, actual, "one entry with outlines for each box, even an empty one")

    def in_images(self, part: Part, field: str) -> list[Floats]:
        """Return the boxes of each sample: float64 [k, 4], edges in pixels of a stored image field."""
        stored, _, counts = self._stored(part, field)
        return np.split(stored, np.cumsum(counts)[:-1])

    def _stored(self, part: Part, field: str) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Return all boxes, float64 [k, 4], edges in pixels; the sample of each, int64 [k]; the number in each."""
        boxes, counts = self._joined(part, self.values(part))
        rows = np.repeat(np.arange(len(counts)), counts)
        edges = _edges(boxes, self._order)

        def check(are_valid: NDArray[np.bool_], allowed: str) -> None:
            if not are_valid.all():
                k = int(np.argmin(are_valid))
                i = int(rows[k])
                actual = f"box {k - int(counts[:i].sum())}, {boxes[k].tolist()} ({self._order})"
                raise self.invalid(part, i, actual, allowed)

        are_valid = np.asarray((edges[:, 2:] >= edges[:, :2]).all(axis=1) & np.isfinite(edges).all(axis=1))
        check(are_valid, "finite numbers, and widths and heights of at least 0")
        if self.normalized:
            are_fractions = np.asarray((boxes <= _MAX_FRACTION).all(axis=1))
            check(are_fractions, "fractions of the image, 0 to 1: remove normalized=True if they are pixels")
            sizes = np.stack(part.image_sizes(field), axis=1)
            edges = edges * np.tile(sizes, 2)[rows]
        return edges, rows, counts

    def _joined(self, part: Part, values: list[Any]) -> tuple[Floats, NDArray[np.int64]]:
        """Return the stored numbers of all boxes, float64 [k, 4], and the number of boxes of each sample."""
        if all(isinstance(value, list) for value in values):
            with contextlib.suppress(TypeError, ValueError):  # found below, with the sample
                joined = np.array([*chain.from_iterable(values), [0.0] * 4], np.float64)[:-1]
                if joined.ndim == 2:
                    return joined, np.array([len(value) for value in values], np.int64)
        arrays = []
        for i, value in enumerate(values):
            stored = self.as_array(part, i, value)
            if stored.size and (stored.ndim != 2 or stored.shape[1] != 4):
                raise self.invalid(part, i, f"an array of shape {stored.shape}", "boxes [number of boxes, 4]")
            arrays.append(stored.reshape(-1, 4))
        return np.concatenate([np.empty((0, 4)), *arrays]), np.array([len(array) for array in arrays], np.int64)


def clipped_boxes(edges: Floats, regions: Regions, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return boxes of images as boxes of what a view shows of them, clipped to it, and how much of each is visible.

    Args:
        edges: float64 [k, 4], left, top, right, bottom in pixels of the image.
        regions: Regions of a batch.
        rows: int64 [k], index of the image of each box.

    Returns:
        float64 [k, 4], left, top, right, bottom in pixels of the output; a box outside of it has no area. And
        float64 [k], the visible share of its area. After a rotation it may be more than 1, as a box becomes larger.
    """
    frame, corners = regions.frame, place_points(edges.reshape(-1, 2, 2), regions, rows, mirror_at=0)
    corners.sort(axis=1)  # mirrored edges change places
    if frame is not None and frame.canvas is not None:
        start, stop = np.split(frame.canvas[rows, None], 2, axis=2)
        corners = np.clip(corners, start, stop)
    moved = corners
    if frame is not None:
        start, stop = image_edges(regions, rows)
        moved = np.clip(corners, start[:, None], stop[:, None])
    if frame is not None and frame.warp is not None:
        x, y = moved[:, [0, 1, 0, 1], 0], moved[:, [0, 0, 1, 1], 1]
        around = frame.warp.move(np.stack([x, y], axis=2), rows // frame.tiles, 0)
        moved = np.stack([around.min(axis=1), around.max(axis=1)], axis=1)
    clipped = np.clip(moved, 0, regions.output_size[rows, None, ::-1])
    area, visible = ((ends[:, 1] - ends[:, 0]).prod(axis=1) for ends in (corners, clipped))
    return clipped.reshape(-1, 4), visible / np.maximum(area, 1e-16)


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
