"""Points and outlines of images as those of what a view shows; outlines as masks. Arithmetic, no pixels are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.images.views import Regions

Floats = NDArray[np.float64]


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
    return moved if frame is None else moved + of_rows(frame.place[:, ::-1])


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
    height, width = regions.output_size[i].tolist()
    frame = regions.frame
    limits = None if frame is None else image_edges(regions, i)

    def of(outline: Floats) -> Floats:
        moved = place_points(outline, regions, i, mirror_at=0)
        if frame is not None and limits is not None:
            moved = clipped_outline(moved, *limits)
            if frame.warp is not None and len(moved):
                moved = frame.warp.move(moved, i // frame.tiles, 0)
        return clipped_outline(moved, (0, 0), (width, height))

    return [[cut for cut in map(of, outlines) if len(cut)] for outlines in objects]


def clipped_outline(points: Floats, start: Sequence[float] | Floats, stop: Sequence[float] | Floats) -> Floats:
    """Return an outline cut off at the edges of a rectangle from x, y to x, y, one edge after the other: [k, 2].

    What is left of an outline that leaves and enters again is joined along the edge, as by Sutherland and Hodgman.
    """
    for axis, limit, sign in ((0, start[0], 1), (0, stop[0], -1), (1, start[1], 1), (1, stop[1], -1)):
        if not len(points):
            break
        depth = sign * (points[:, axis] - limit)  # inside: 0 and more
        if (depth >= 0).all():
            continue
        after, next_depth = np.roll(points, -1, axis=0), np.roll(depth, -1)
        crosses = (depth >= 0) != (next_depth >= 0)
        share = np.divide(depth, depth - next_depth, out=np.zeros_like(depth), where=crosses)
        crossing = points + share[:, None] * (after - points)
        crossing[:, axis] = limit
        both = np.stack([points, crossing], axis=1)  # each point, and where the line to the next one crosses
        points = both[np.stack([depth >= 0, crosses], axis=1)]
    return points


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
        chosen = pasted.chosen[i] if pasted.chosen else None
        for number, k in enumerate(np.flatnonzero(rows == i).tolist()):
            if chosen is not None:
                shares[k] = chosen[number]
                continue
            start, stop = np.floor(boxes[k, :2]).astype(np.int64), np.ceil(boxes[k, 2:]).astype(np.int64)
            part = mask[start[1] : stop[1], start[0] : stop[0]]
            if part.all():
                continue
            outlines = pasted.objects[i][number] if pasted.objects else ()
            whole = filled([one - start for one in outlines], *part.shape) if outlines else np.ones_like(part)
            visible = whole & part
            shares[k] = visible.sum() / max(whole.sum(), 1)
            y, x = (np.flatnonzero(visible.any(axis=axis)) for axis in (1, 0))
            if len(y):
                ends = np.array([[x[0], y[0]], [x[-1] + 1, y[-1] + 1]]) + start
                left[k] = [*np.maximum(boxes[k, :2], ends[0]), *np.minimum(boxes[k, 2:], ends[1])]
    return left, shares


def filled(outlines: Sequence[Floats], height: int, width: int) -> NDArray[np.bool_]:
    """Return which pixels have their centre inside an outline, or inside one of several: bool [height, width].

    A centre is inside if a line from it to the right crosses the outline an odd number of times.

    Args:
        outlines: [points, 2] each, x and y.
        height: Height of the mask.
        width: Width of the mask.
    """
    mask = np.zeros((height, width), np.bool_)
    for outline in outlines:
        points = clipped_outline(outline, (0, 0), (width, height))
        after = np.roll(points, -1, axis=0)
        first, last = (
            np.ceil(select(points[:, 1], after[:, 1]) - 0.5).astype(np.int64) for select in (np.minimum, np.maximum)
        )
        counts = last - first
        edge = np.repeat(np.arange(len(points)), counts)  # of each crossing of an edge and a row
        rows = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
        (x, y), (dx, dy) = points[edge].T, (after - points)[edge].T
        columns = np.clip(np.ceil(x + (rows + 0.5 - y) * dx / dy - 0.5), 0, width).astype(np.int64)
        if not len(rows):
            continue
        top, left, bottom, right = rows.min(), columns.min(), rows.max() + 1, columns.max()
        crossings = np.zeros((bottom - top, right - left + 1), np.uint8)  # odd or even, even if it overflows
        np.add.at(crossings, (rows - top, columns - left), 1)
        mask[top:bottom, left:right] |= (np.cumsum(crossings, axis=1, dtype=np.uint8)[:, :-1] & 1).view(np.bool_)
    return mask
