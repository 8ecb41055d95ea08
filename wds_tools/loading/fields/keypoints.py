"""`Keypoints`: points, moved, scaled and mirrored like their image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch

from wds_tools.errors import OptionError
from wds_tools.format.objects import CATEGORY_PATH, are_pairs, flip_index_of
from wds_tools.images.outlines import image_edges, place_points
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column, tv_tensors
from wds_tools.loading.fields.padding import AnyPad
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.paths import AtPath, Floats, kept_entries
from wds_tools.reading.shardset import ShardSet


@dataclass(frozen=True)
class Keypoints(AtPath):
    """Points in an image: float32 tensors [..., 2 or more]; the first two numbers of a point are x and y in pixels.

    Stacked if all samples of a batch have the same number of points, otherwise a list. With ``like``, points are moved,
    scaled and mirrored like the image. All points are kept, so that their indices keep their meaning: a point outside
    the region has coordinates outside the image. In mirrored images, left and right points are exchanged by
    ``flip_index``; an image that is mirrored in both directions is only rotated, and its points keep their indices.
    As in torchvision, x of a mirrored point is width - 1 - x. A point that a view for detection cuts off, such as one
    outside the tile of a `Mosaic`, is at (-width, -height) of the result.

    Attributes:
        field: Stored field: JSON, or an ``npy`` array.
        path: Names that lead to the points in JSON, see `Boxes`.
        numbers: How many numbers a point has in lists without brackets around each point, such as 3 in COCO (x, y,
            visibility). None (the default) requires a list for each point.
        like: Name of the `Image` whose region, size and flip are used, or of `Boxes`: then the points of boxes that are
            dropped are dropped too, and the first dimension is the objects. None (the default) keeps the stored
            positions.
        flip_index: For each point the index of the point that replaces it in a mirrored image: ``[0, 2, 1]`` for
            nose, left eye and right eye, like ``flip_idx`` of YOLO. In a mirrored image, a left eye looks like a right
            eye. None (the default) takes it from the dataset, for ``objects.keypoints`` with YOLO's ``flip_idx`` or
            with ``left`` and ``right`` in COCO's names; if it is not known, points keep their index. `range` with the
            number of points keeps it in any case.
        pad: Value of the padding, or a `Pad`, so that a batch is one tensor [batch, points, ...]; ``"flat"`` joins the
            points of all samples. None (the default) gives a list if the numbers differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    numbers: int | None = None
    like: str | None = None
    flip_index: Sequence[int] | None = None
    pad: AnyPad = None

    takes = ("region", "entries")
    target = "keypoints"

    def __post_init__(self) -> None:
        self._check("'json'")
        if self.numbers is not None and (not isinstance(self.numbers, int) or self.numbers < 2):
            raise OptionError(f"wds_tools.Keypoints(numbers={self.numbers!r}); allowed are 2 and more, and None")
        if self.flip_index is not None:
            index = tuple(self.flip_index) if isinstance(self.flip_index, Sequence) else ()
            if not index or not are_pairs(index):
                raise OptionError(
                    f"wds_tools.Keypoints(flip_index={self.flip_index!r}); allowed is for each point the index of the "
                    "one that takes its place in a mirrored image, such as [0, 2, 1], and None"
                )
            object.__setattr__(self, "flip_index", index)

    def opened(self, shards: ShardSet) -> Keypoints:
        """Return the specification with the pairs of points that the dataset states; none if datasets contradict."""
        if self.flip_index is not None or (self.field, self.path) != ("json", "objects.keypoints"):
            return self
        lists = [dataset.fields[CATEGORY_PATH] for dataset in shards.class_lists if CATEGORY_PATH in dataset.fields]
        return replace(self, flip_index=flip_index_of(text for class_list in lists for text in class_list.attributes))

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the points of each sample: float32 [..., 2 or more]; by view if there is a list."""
        stored = self._stored(column.sources(part))
        views = []
        for view, regions in enumerate(column.regions(part)):
            moved = [points.copy() for points in stored]
            for i, points in enumerate(moved):
                if regions is not None and points.size:
                    points[..., :2] = _moved(points[..., :2], regions, i)
                    if self.flip_index is not None and regions.are_mirrored[i]:
                        moved[i] = self._exchanged(points, column.sources(part), i)
            if column.has_entries_of:
                kept = kept_entries(self, part, column, view, moved)
                moved = [np.array(rows).reshape(-1, *all_.shape[1:]) for rows, all_ in zip(kept, moved, strict=True)]
            moved = column.joined(part, moved, _joined)
            views.append([torch.from_numpy(points.astype(np.float32)) for points in moved])
        return column.by_sample(views)

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        tensors = tv_tensors()
        if size is None or not hasattr(tensors, "KeyPoints"):  # not in torchvision before 0.23
            return value
        return tensors.KeyPoints(value[..., :2] if value.numel() else value.new_empty((0, 2)), canvas_size=size)

    def check_target(self, name: str, form: str | None) -> None:
        if form != "xy":
            raise OptionError(
                f"sample_transform= does not move the field {name!r}: use "
                "A.Compose([...], keypoint_params=A.KeypointParams(format='xy'))"
            )

    def to_target(self, value: Any, form: str | None, size: tuple[int, int]) -> Any:
        return value.reshape(-1, value.shape[-1]).numpy() if value.ndim > 1 else np.zeros((0, 2), np.float32)

    def from_target(self, value: Any, before: Any, form: str | None, size: tuple[int, int]) -> Any:
        points = torch.as_tensor(np.asarray(value, np.float32))
        return points.reshape(before.shape) if points.numel() == before.numel() else points

    def _exchanged(self, points: Floats, part: Part, i: int) -> Floats:
        if points.shape[-2] != len(self.flip_index or ()):
            index = list(self.flip_index or ())
            raise self.invalid(part, i, f"{points.shape[-2]} points", f"{len(index)}, as in flip_index={index}")
        return points[..., list(self.flip_index or ()), :]

    def _stored(self, part: Part) -> list[Floats]:
        stored = []
        for i, value in enumerate(self.values(part)):
            points = self.as_array(part, i, value)
            if self.numbers is not None and points.ndim:
                count, remainder = divmod(points.shape[-1], self.numbers)
                if remainder:
                    actual = f"an array of shape {points.shape}"
                    raise self.invalid(part, i, actual, f"lists of {self.numbers} numbers for each point (numbers=)")
                points = points.reshape(*points.shape[:-1], count, self.numbers)
            if points.size and (points.ndim < 2 or points.shape[-1] < 2):
                raise self.invalid(part, i, f"an array of shape {points.shape}", "points [..., 2] or [..., 3]")
            stored.append(points)
        return stored


def _moved(points: Floats, regions: Regions, i: int) -> Floats:
    """Return points of an image as points of what a view shows of it."""
    placed, frame = place_points(points, regions, i, mirror_at=-1), regions.frame
    if frame is None:
        return placed
    (start, stop), edges = image_edges(regions, i), place_points(points, regions, i, mirror_at=0)
    is_shown = ((edges >= start - 1) & (edges <= stop + 1)).all(axis=-1, keepdims=True)
    moved = placed if frame.warp is None else frame.warp.move(placed, i // frame.tiles, -1)
    return np.where(is_shown, moved, -regions.output_size[i, ::-1])


def _joined(points: list[Floats]) -> Floats:
    """Return the points of several images as those of one."""
    return np.concatenate([array for array in points if array.size] or points[:1])
