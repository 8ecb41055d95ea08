"""What is written into "Copy as Python": fields with masks and objects next to their image; the loader of a step."""

from __future__ import annotations

import json
from typing import Any

from wds_tools.errors import OptionError
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.format.sample import IMAGE_FIELDS, shows_mask
from wds_tools.images.schedule import views_in
from wds_tools.images.views import chosen_by
from wds_tools.options import parse_shuffle
from wds_tools.packing.snippet import is_coloured_mask, names_of_masks, spell
from wds_tools.service.pages.batches import Question
from wds_tools.service.pages.browse import Opened
from wds_tools.service.pages.described_view import view_of


def fields_of_dataset(opened: Opened) -> dict[str, str]:
    """Return the fields of all samples, as Python by name; nothing if an image and its class are all there is."""
    stored = opened.manifest.fields
    everywhere = [name for name, count in stored.items() if count == opened.manifest.samples]
    has_objects = CATEGORY_PATH in opened.manifest.field_classes and CATEGORY_PATH.partition(":")[0] in everywhere
    masks = {name: is_coloured_mask(name) for name in everywhere if shows_mask(name)}
    view = "wt.Resize(640)" if has_objects else "wt.CenterCrop(224, resize=256)"
    return _fields(opened, f"wt.Image(view={view})", _objects() if has_objects else {}, masks)


def fields_of_sample(opened: Opened, objects: dict[str, Any] | None, masks: list[dict[str, Any]]) -> dict[str, str]:
    """Return the fields of a sample with what is drawn over its image, as Python by name.

    Args:
        opened: The dataset.
        objects: See `wds_tools.service.pages.overlays.objects_view`.
        masks: See `wds_tools.service.pages.overlays.mask_view`; a loader refuses masks of another size.
    """
    fields = _objects() if objects is not None and not objects["unusable"] else {}
    if fields and objects and any(shape["outlines"] for shape in objects["drawn"]):
        fields["outlines"] = 'wt.Polygons(like="boxes")'
    usable = {
        mask["name"]: not mask["numbers"]
        for mask in masks
        if mask["is_known"] and not mask["is_damaged"] and not mask["other_size"]
    }
    return _fields(opened, "wt.Image()", fields, usable)


def _objects() -> dict[str, str]:
    field, _, path = CATEGORY_PATH.partition(":")
    return {
        "boxes": f'wt.Boxes("{field}", path="objects.box", like="image")',
        "classes": f'wt.Field("{field}", path="{path}", like="boxes")',
    }


def _fields(opened: Opened, image: str, objects: dict[str, str], masks: dict[str, bool]) -> dict[str, str]:
    """Return the fields, with masks by the names of their stored fields; whether one has colours is its value."""
    if not (objects or masks) or not any(name in opened.manifest.fields for name in IMAGE_FIELDS):
        return {}
    fields = {"image": image} | ({"label": "wt.Label()"} if opened.manifest.has_labels else {}) | objects
    for name, stored in names_of_masks(masks).items():
        kind, options = ("Array", ', interpolation="nearest"') if masks[stored] else ("Mask", "")
        fields[name] = f'wt.{kind}({json.dumps(stored)}, like="image"{options})'
    return fields


def code_of_step(url: str, opened: Opened, question: Question) -> str:
    """Return code that makes the loader of a step, and goes to the step; empty if its options are not valid."""
    try:
        view, shuffle = view_of(question.view, question.size, question.description), parse_shuffle(question.shuffle)
    except OptionError:
        return ""
    options = f"view={spell(view, 'wt.')}"
    if objects := {name: kind for part in views_in(view) if (by := chosen_by(part)) for kind, name in [by]}:
        field = CATEGORY_PATH.partition(":")[0]
        kinds = {
            "Boxes": f'wt.Boxes("{field}", path="objects.box", like="image")',
            "Polygons": f'wt.Polygons("{field}", like="image")',
        }
        chosen = "".join(f", {json.dumps(name)}: {kinds[kind]}" for name, kind in objects.items())
        options = f'fields={{"image": wt.Image({options}){chosen}}}'
    elif not opened.manifest.has_labels:
        options += ', fields=("image",)'
    step, epoch = question.step, question.epoch
    lines = [
        *(["import itertools", ""] if step else []),
        "import wds_tools as wt",
        "",
        f"loader = wt.make_loader({url!r}, batch_size={question.batch},",
        f"                        {options},",
        f"                        shuffle={shuffle!r}, seed={question.seed})",
        *([f"loader.set_epoch({epoch})"] if epoch else []),
        f"batch = next(itertools.islice(loader, {step}, None))" if step else "batch = next(iter(loader))",
    ]
    if step:
        lines += ["# This reads the steps before it too. Keys, crops and pixels of the step alone:"]
        lines += [f"# loader.explain({step}, epoch={epoch})"]
    return "\n".join([*lines, ""])
