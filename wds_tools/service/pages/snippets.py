"""The fields of a loader that are written into "Copy as Python": masks and objects next to their image."""

from __future__ import annotations

import json
import keyword
import re
from typing import Any

from wds_tools.format.objects import PLACE
from wds_tools.format.sample import IMAGE_FIELDS, shows_mask
from wds_tools.service.pages.browse import Opened

_COLOURED = ("panoptic",)  # masks of three channels by their name
_MAX_MASKS = 4
_TAKEN = ("image", "label", "boxes", "classes", "outlines", "points")


def fields_of_dataset(opened: Opened) -> dict[str, str]:
    """Return the fields of all samples, as Python by name; nothing if an image and its class are all there is."""
    stored = opened.manifest.fields
    everywhere = [name for name, count in stored.items() if count == opened.manifest.samples]
    has_objects = PLACE in opened.manifest.field_classes and PLACE.partition(":")[0] in everywhere
    masks = {name: name.startswith(_COLOURED) for name in everywhere if shows_mask(name)}
    view = "wt.Resize(640)" if has_objects else "wt.CenterCrop(224, resize=256)"
    return _fields(opened, f"wt.Image(view={view})", _objects() if has_objects else {}, masks)


def fields_of_sample(opened: Opened, objects: dict[str, Any] | None, masks: list[dict[str, Any]]) -> dict[str, str]:
    """Return the fields of a sample with what is drawn over its image, as Python by name.

    Args:
        opened: The dataset.
        objects: See `wds_tools.service.pages.overlays.objects_view`.
        masks: See `wds_tools.service.pages.overlays.mask_view`; a loader refuses those of another size.
    """
    found = _objects() if objects is not None and not objects["unusable"] else {}
    if found and objects and any(one["outlines"] for one in objects["drawn"]):
        found["outlines"] = 'wt.Polygons(like="boxes")'
    usable = {
        one["name"]: not one["numbers"]
        for one in masks
        if one["is_known"] and not one["is_damaged"] and not one["other_size"]
    }
    return _fields(opened, "wt.Image()", found, usable)


def _objects() -> dict[str, str]:
    field, _, path = PLACE.partition(":")
    return {
        "boxes": f'wt.Boxes("{field}", path="objects.box", like="image")',
        "classes": f'wt.Field("{field}", path="{path}", like="boxes")',
    }


def _fields(opened: Opened, image: str, objects: dict[str, str], masks: dict[str, bool]) -> dict[str, str]:
    """Return the fields, with masks by the names of their stored fields; whether one has colours is its value."""
    if not (objects or masks) or not any(name in opened.manifest.fields for name in IMAGE_FIELDS):
        return {}
    fields = {"image": image} | ({"label": "wt.Label()"} if opened.manifest.has_labels else {}) | objects
    for stored, is_coloured in list(masks.items())[:_MAX_MASKS]:
        name = re.sub(r"\W", "_", stored.rpartition(".")[0], flags=re.ASCII)
        if name in _TAKEN or name in fields or not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_":
            name = f"mask_{len(fields)}"
        kind, options = ("Array", ', interpolation="nearest"') if is_coloured else ("Mask", "")
        fields[name] = f'wt.{kind}({json.dumps(stored)}, like="image"{options})'
    return fields
