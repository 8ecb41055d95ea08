"""Points and outlines of images as those of what a view shows; outlines as masks. Arithmetic, no pixels are read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.images.views import Regions

Floats = NDArray[np.float64]

_OBJECTS = 64  # whose masks are in memory at once


def place_points(points: Floats, regions: Regions, rows: int | NDArray[np.int64], *, mirror_at: int) -> Floats:
    """Return points of images as points of their frames, before these are warped.

    Args:
        points: float64 [..., 2], x and y in pixels of the image; the first dimension is k if ``rows`` is an array.
        regions: Regions of a batch.
        rows: Index of the image in the batch: one, or int64 [k].
        mirror_at: If the region is mirrored, x becomes its width plus this number, minus x. It is -1 for positions of
            pixels, such as torchvision's key points, and 0 for edges between pixels, such as boxes.

    Returns:
        float64 [..., 2], in pixels of the frame.
    """

    def of_rows(values: NDArray[Any]) -> NDArray[Any]:
        """Return an attribute of the regions, [..., 1 or 2], for the points of each row."""
        return values[rows] if isinstance(rows, int) else values[rows].reshape(-1, *[1] * (points.ndim - 2), 2)

    frame, scale = regions.frame, regions.resize[:, ::-1] / regions.box[:, 2:]
    moved: Floats = (points - of_rows(regions.box[:, :2])) * of_rows(scale) - of_rows(regions.corner[:, ::-1])
    flips = regions.flips
    if flips.any():
        moved = np.where(of_rows(flips), of_rows(regions.size[:, ::-1]) + mirror_at - moved, moved)
    return moved if frame is None else moved + of_rows(frame.offset[:, ::-1])


def image_edges(regions: Regions, rows: int | NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return where images are in their frames, before these are warped, cut off where objects are.

    Returns:
        Left and top, and right and bottom: float64 [2] each, or [k, 2] if ``rows`` is an array.
    """
    index = np.atleast_1d(rows)
    box = regions.box[index].astype(np.float64).reshape(-1, 2, 2)
    box[:, 1] += box[:, 0]
    edges = np.sort(place_points(box, regions, index, mirror_at=0), axis=1)
    if regions.frame is not None and regions.frame.canvas is not None:
        start, stop = np.split(regions.frame.canvas[index, None], 2, axis=2)
        edges = np.clip(edges, start, stop)
    return (edges[0, 0], edges[0, 1]) if isinstance(rows, int) else (edges[:, 0], edges[:, 1])


def shown_outlines(objects: list[list[Floats]], regions: Regions | None, i: int) -> list[list[Floats]]:
    """Return the outlines of the objects of image ``i``, [points, 2] each, as outlines of what a view shows of it."""
    if regions is None:
        return objects
    frame, (height, width) = regions.frame, regions.output_size[i].tolist()
    points, ends = _joined([outline for outlines in objects for outline in outlines])
    points = place_points(points, regions, i, mirror_at=0)
    if frame is not None:
        points, ends = clip(points, ends, *image_edges(regions, i))
        if frame.warp is not None:
            points = frame.warp.move(points, i // frame.tiles, 0)
    shown = split_outlines(*clip(points, ends, np.zeros(2), np.array([width, height])))
    ends_of_objects = pairwise([0, *accumulate(map(len, objects))])
    return [[one for one in shown[first:last] if len(one)] for first, last in ends_of_objects]


def _joined(outlines: Sequence[Floats]) -> tuple[Floats, NDArray[np.int64]]:
    """Return the points of all outlines, [points, 2], and where each outline ends."""
    ends = np.cumsum([len(outline) for outline in outlines], dtype=np.int64)
    return np.concatenate([np.empty((0, 2)), *outlines]), ends


def split_outlines(points: Floats, ends: NDArray[np.int64]) -> list[Floats]:
    """Return outlines that are one after the other, [points, 2] each. `np.split` takes 5 times as long."""
    return [points[start:stop] for start, stop in pairwise([0, *ends.tolist()])]


def _next_points(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the outline of each point, and the index of the point after it: int64 [points] each."""
    counts = np.diff(ends, prepend=0)
    owner, following = np.repeat(np.arange(len(ends)), counts), np.arange(1, counts.sum() + 1)
    lasts = ends[counts > 0] - 1
    following[lasts] = (ends - counts)[counts > 0]
    return owner, following


def clip(points: Floats, ends: NDArray[np.int64], start: Floats, stop: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return outlines cut off at the edges of rectangles, one edge after the other.

    What is left of an outline that leaves and enters again is joined along the edge, as by Sutherland and Hodgman.

    Args:
        points: float64 [points, 2], the points of n outlines, one outline after the other.
        ends: int64 [n], where each outline ends.
        start: float64 [2] or [n, 2], left and top of the rectangle, or of that of each outline.
        stop: float64 [2] or [n, 2], right and bottom.

    Returns:
        Points and ends of what is left.
    """
    start, stop = (np.broadcast_to(corner, (len(ends), 2)) for corner in (start, stop))
    for axis, corner, sign in ((0, start, 1), (0, stop, -1), (1, start, 1), (1, stop, -1)):
        owner, following = _next_points(ends)
        limit = corner[owner, axis]
        depth = sign * (points[:, axis] - limit)  # inside: 0 and more
        if (depth >= 0).all():
            continue
        after, next_depth = points[following], depth[following]
        crosses = (depth >= 0) != (next_depth >= 0)
        share = np.divide(depth, depth - next_depth, out=np.zeros_like(depth), where=crosses)
        crossing = points + share[:, None] * (after - points)
        crossing[:, axis] = limit
        remain = np.stack([depth >= 0, crosses], axis=1)  # each point, and where the line to the next one crosses
        points = np.stack([points, crossing], axis=1)[remain]
        ends = np.concatenate([[0], np.cumsum(remain.sum(axis=1))])[ends]
    return points, ends


def uncovered(boxes: Floats, regions: Regions, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return what is left of boxes in outputs on which something is pasted.

    Args:
        boxes: float64 [k, 4], left, top, right and bottom in pixels of the output.
        regions: Regions of a batch.
        rows: int64 [k], index of the image of each box, ascending.

    Returns:
        float64 [k, 4], the boxes around the pixels of objects that are still visible; and float64 [k], their share.
    """
    left, shares = boxes.copy(), np.ones(len(boxes))
    pasted = None if regions.frame is None else regions.frame.pasted
    if pasted is None:
        return left, shares
    for i in np.unique(rows).tolist():
        if (mask := regions.shows(i)) is None:
            continue
        of_image = np.flatnonzero(rows == i)
        if pasted.chosen and (chosen := pasted.chosen[i]) is not None:
            shares[of_image] = chosen[: len(of_image)]
            continue
        start = np.floor(boxes[of_image, :2]).astype(np.int64)
        stop = np.ceil(boxes[of_image, 2:]).astype(np.int64)
        outlines = pasted.objects[i] if pasted.objects else [[]] * len(of_image)
        are_covered = _sums(mask, start, stop) < (stop - start).prod(axis=1)
        for some in _chunks(np.flatnonzero(are_covered)):
            wholes = _masks_in([outlines[index] for index in some], start[some], stop[some])
            for index, whole in zip(some, wholes, strict=True):
                (x0, y0), (x1, y1), k = start[index].tolist(), stop[index].tolist(), of_image[index]
                visible = whole & mask[y0:y1, x0:x1]
                shares[k] = visible.sum() / max(whole.sum(), 1)
                y, x = (np.flatnonzero(visible.any(axis=axis)) for axis in (1, 0))
                if len(y):
                    ends = np.array([[x[0], y[0]], [x[-1] + 1, y[-1] + 1]]) + start[index]
                    left[k] = [*np.maximum(boxes[k, :2], ends[0]), *np.minimum(boxes[k, 2:], ends[1])]
    return left, shares


def _masks_in(
    objects: Sequence[Sequence[Floats]], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> list[NDArray[np.bool_]]:
    """Return the mask of each object in its rectangle from x, y to x, y; all of it for one without outlines."""
    sizes = (stop - start)[:, ::-1].tolist()
    masks = [
        np.zeros(size, np.bool_) if outlines else np.ones(size, np.bool_)
        for outlines, size in zip(objects, sizes, strict=True)
    ]
    of = [index for index, outlines in enumerate(objects) for _ in outlines]
    moved = [outline - start[index] for index, outlines in enumerate(objects) for outline in outlines]
    fill([masks[index] for index in of], moved)
    return masks


def _sums(mask: NDArray[np.bool_], start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many pixels of a mask are in each rectangle from x, y to x, y: int64 [n]."""
    sums = np.zeros((mask.shape[0] + 1, mask.shape[1] + 1), np.int64)
    sums[1:, 1:] = mask.cumsum(axis=0).cumsum(axis=1)
    (left, top), (right, bottom) = start.T, stop.T
    result: NDArray[np.int64] = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return result


def _chunks(indexes: NDArray[np.int64]) -> list[list[int]]:
    """Return numbers in lists of a length at which the masks of so many objects take little memory."""
    return [indexes[start : start + _OBJECTS].tolist() for start in range(0, len(indexes), _OBJECTS)]


def filled(outlines: Sequence[Floats], height: int, width: int) -> NDArray[np.bool_]:
    """Return which pixels have their centre inside an outline, or inside one of several: bool [height, width].

    A centre is inside if a line from it to the right crosses the outline an odd number of times.
    """
    mask = np.zeros((height, width), np.bool_)
    fill([mask] * len(outlines), outlines)
    return mask


def fill(masks: Sequence[NDArray[np.bool_]], outlines: Sequence[Floats]) -> None:
    """Add the pixels inside outlines, see `filled`, to a mask for each outline; masks may be the same."""
    if not outlines:
        return
    sizes = np.array([mask.shape for mask in masks], np.int64)
    points, ends = clip(*_joined(outlines), np.zeros(2), sizes[:, ::-1].astype(np.float64))
    owner, following = _next_points(ends)
    after = points[following]
    first, last = (
        np.ceil(select(points[:, 1], after[:, 1]) - 0.5).astype(np.int64) for select in (np.minimum, np.maximum)
    )
    counts = last - first
    edge = np.repeat(np.arange(len(points)), counts)  # of each crossing of an edge and a row
    rows = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    (x, y), (dx, dy) = points[edge].T, (after - points)[edge].T
    columns = np.clip(np.ceil(x + (rows + 0.5 - y) * dx / dy - 0.5), 0, sizes[owner[edge], 1]).astype(np.int64)
    if not len(rows):
        return
    starts = np.flatnonzero(np.diff(owner[edge], prepend=-1))
    corners = np.stack([rows, columns], axis=1)
    low, high = np.minimum.reduceat(corners, starts), np.maximum.reduceat(corners, starts)
    shapes = high - low + 1
    stops = [*starts[1:].tolist(), len(rows)]
    for (top, left), (height, width), owner_of_part, start, stop in zip(
        low.tolist(), shapes.tolist(), owner[edge[starts]].tolist(), starts.tolist(), stops, strict=True
    ):
        index = (rows[start:stop] - top) * width + columns[start:stop] - left
        crossings = np.bincount(index, minlength=height * width).astype(np.uint8)  # odd or even, even if it overflows
        inside = np.cumsum(crossings.reshape(height, width), axis=1, dtype=np.uint8)[:, :-1] & 1
        masks[owner_of_part][top : top + height, left : left + width - 1] |= inside.view(np.bool_)
