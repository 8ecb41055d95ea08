"""Annotations drawn on the images of a batch: masks, boxes, outlines and key points with class names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from wds_tools.format.manifest import Manifest
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.format.sample import shows_mask
from wds_tools.inspection import palette
from wds_tools.loading.fields.boxes import Boxes
from wds_tools.loading.fields.keypoints import Keypoints
from wds_tools.loading.fields.pixels import Array, Mask
from wds_tools.loading.fields.plain import Field
from wds_tools.loading.fields.polygons import Polygons

MASK, BOXES, OUTLINES, POINTS, CLASSES = (
    f"shown_{name}" for name in ("mask", "boxes", "outlines", "points", "classes")
)
"""Names of the fields of layers in a batch."""

_MASK_OPACITY = 0.5
_AREA_OPACITY = 0.25
_MAX_OBJECTS = 300  # of an image
_MAX_NAME = 24  # characters
_MAX_MASKS = 4
_FIELD, _, _PATH = CATEGORY_PATH.partition(":")


def layers_of(manifest: Manifest, image: str = "image") -> dict[str, dict[str, Any]]:
    """Return what can be drawn of a dataset: by its name for messages, the fields of a loader next to an image.

    Each layer is loaded by itself, so that a mistake in one does not hide the others.
    """
    layers: dict[str, dict[str, Any]] = {}
    masks = [name for name in manifest.fields if shows_mask(name)]
    for name in masks[:_MAX_MASKS]:
        has_colours = name.startswith("panoptic")
        kind = Array(name, like=image, interpolation="nearest") if has_colours else Mask(name, like=image)
        layers[f"the mask {name}"] = {MASK: kind}
    if CATEGORY_PATH in manifest.field_classes and _FIELD in manifest.fields:
        classes = Field(_FIELD, path=_PATH)
        layers["outlines"] = {OUTLINES: Polygons(_FIELD, like=image), CLASSES: classes}
        boxes = Boxes(_FIELD, path="objects.box", like=image)
        layers["boxes"] = {BOXES: boxes, CLASSES: Field(_FIELD, path=_PATH, like=BOXES)}
        if any("keypoints" in json.loads(text or "{}") for text in manifest.field_classes[CATEGORY_PATH].attributes):
            points = Keypoints(_FIELD, path="objects.keypoints", like=image)
            layers["key points"] = {POINTS: points, CLASSES: classes}
    return layers


def draw(tile: Image.Image, layer: Mapping[str, Any], *, scale: float, names: Sequence[str]) -> None:
    """Draw a layer of a sample on its image."""
    if MASK in layer:
        _draw_mask(tile, np.asarray(layer[MASK]))
        return
    canvas = ImageDraw.Draw(tile, "RGBA")
    class_numbers = np.asarray(layer[CLASSES]).ravel().tolist()[:_MAX_OBJECTS]
    for index, class_number in enumerate(class_numbers):
        colour = palette.rgb_of(int(class_number))
        if BOXES in layer:
            left, top, right, bottom = (np.asarray(layer[BOXES][index]) * scale).tolist()
            canvas.rectangle([left, top, max(left, right - 1), max(top, bottom - 1)], outline=colour)
            name = names[class_number] if 0 <= class_number < len(names) else str(class_number)
            where = max(0, min(left + 2, tile.width - 12)), max(0, min(top, tile.height - 11))
            canvas.text(where, name[:_MAX_NAME], fill=colour, stroke_width=1, stroke_fill=(0, 0, 0))
        elif OUTLINES in layer:
            for outline in layer[OUTLINES][index]:
                corners = [tuple(point) for point in (np.asarray(outline) * scale).tolist()]
                if len(corners) > 1:
                    canvas.polygon(corners, fill=(*colour, round(255 * _AREA_OPACITY)), outline=colour)
        else:
            points = np.asarray(layer[POINTS][index], np.float64)
            for point in points if points.ndim == 2 else ():
                if len(point) == 2 or point[2] > 0:
                    x, y = point[:2] * scale
                    canvas.ellipse([x - 2, y - 2, x + 2, y + 2], fill=colour, outline=(255, 255, 255))


def _draw_mask(tile: Image.Image, mask: Any) -> None:
    """Lay a mask over an image: numbers [height, width] with 0 transparent, or colours [3, height, width]."""
    if mask.ndim == 3 and mask.shape[0] == 3:
        colours, shown = mask.transpose(1, 2, 0).astype(np.uint8), mask.any(axis=0)
    else:
        class_numbers = mask.reshape(mask.shape[-2:]).astype(np.int64)
        table = np.array([palette.rgb_of(class_number) for class_number in range(palette.COUNT)], np.uint8)
        indexes = np.where(class_numbers == 0, 0, (class_numbers - 1) % (palette.COUNT - 1) + 1)
        colours, shown = table[indexes], class_numbers != 0
    opacity = Image.fromarray((shown * round(255 * _MASK_OPACITY)).astype(np.uint8))
    over = Image.fromarray(colours).resize(tile.size, Image.Resampling.NEAREST)
    tile.paste(over, (0, 0), opacity.resize(tile.size, Image.Resampling.NEAREST))
