"""Calls of `make_loader` as text, ready to paste into a script for a given dataset."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from wds_tools.format.index import NO_LABEL, Index
from wds_tools.format.manifest import Manifest
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.format.sample import IMAGE_FIELDS, shows_mask
from wds_tools.images.framed import Letterbox
from wds_tools.images.views import RandomResizedCrop

IMPORT = "import wds_tools"
USUAL_FIELDS = ("image", "label")
_BATCH_SIZE = 256
_VIEW = RandomResizedCrop(224, flip=True)
_BATCH_SIZE_WITH_OBJECTS = 16
_VIEW_WITH_OBJECTS = Letterbox(640, flip=True)
_OBJECTS = {
    "boxes": "wds_tools.Boxes('json', path='objects.box', format='xyxy', like='image', pad='flat')",
    "classes": "wds_tools.Field('json', path='objects.category', like='boxes', pad='flat')",
}
_MAX_MASKS = 4
_COLOURED = ("panoptic",)  # masks of three channels, by their name
_TAKEN = frozenset(("image", "label", "boxes", "classes", "outlines", "points"))
_SIXTEEN_BITS = ";16"  # suffix of the mode of images with 16 bits per channel, which do not load as RGB


def spell_call(dataset: str, options: Mapping[str, str]) -> str:
    """Return the statement that creates a loader; it needs `IMPORT` before it. Empty options are left out.

    >>> print(spell_call("shards/my photos", {"batch_size": "8"}))
    loader = wds_tools.make_loader(
        'shards/my photos',
        batch_size=8,
    )
    """
    lines = [repr(dataset), *(f"{option}={value}" for option, value in options.items() if value)]
    return "\n".join(["loader = wds_tools.make_loader(", *(f"    {line}," for line in lines), ")"])


def spell(value: Any, module: str = "") -> str:
    """Return a view as source code, without arguments that have their default value.

    >>> from wds_tools.images.views import Resize
    >>> spell(RandomResizedCrop(224, flip=True)), spell(Resize((128, 128)), "wt.")
    ('RandomResizedCrop(224, flip=True)', 'wt.Resize((128, 128))')
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {spell(item, module)}' for key, item in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(spell(item, module) for item in value)}{',' * (len(value) == 1)})"
    if not is_dataclass(value):
        return repr(value)
    arguments = [
        spell(argument, module) if field.default is MISSING else f"{field.name}={spell(argument, module)}"
        for field in fields(value)
        if (argument := getattr(value, field.name)) != field.default
    ]
    return f"{module}{type(value).__name__}({', '.join(arguments)})"


def spell_fields(names: tuple[str, ...]) -> str:
    """Return the value of ``fields=`` as source code, or "" for the usual fields."""
    if names == USUAL_FIELDS:
        return ""
    return repr(names[0]) if len(names) == 1 else repr(names)


def first_call(dataset: str, manifest: Manifest, *, indexes: Iterable[Index] = ()) -> str:
    """Return a call that loads a new dataset: images with labels or objects, or the fields that every sample has."""
    names = _usable_fields(manifest, indexes)
    further = _fields_like_image(manifest) if "image" in names else {}
    size = _batch_size(manifest.samples)
    if further:
        has_objects = "boxes" in further
        view = _VIEW_WITH_OBJECTS if has_objects else _VIEW
        kinds = {"image": f"wds_tools.Image(view={spell(view, 'wds_tools.')})"}
        kinds |= {"label": "wds_tools.Label()"} if "label" in names and not has_objects else {}
        lines = [f"        {name!r}: {kind},\n" for name, kind in (kinds | further).items()]
        size = min(size, _BATCH_SIZE_WITH_OBJECTS) if has_objects else size
        options = {"batch_size": f"{size}", "fields": f"{{\n{''.join(lines)}    }}", "shuffle": "True"}
        return spell_call(dataset, options)
    options = {
        "batch_size": f"{size}",
        "view": spell(_VIEW, "wds_tools.") if "image" in names else "",
        "fields": spell_fields(names),
        "shuffle": "True",
    }
    return spell_call(dataset, options)


def is_coloured_mask(stored: str) -> bool:
    """Return whether a stored mask has three channels, by its name."""
    return stored.startswith(_COLOURED)


def names_of_masks(stored: Iterable[str]) -> dict[str, str]:
    """Return names for stored masks in a batch: name -> stored field, without those that are too many.

    >>> names_of_masks(["mask.png", "label.png", "2.png"])
    {'mask': 'mask.png', 'mask_1': 'label.png', 'mask_2': '2.png'}
    """
    names: dict[str, str] = {}
    for field in list(stored)[:_MAX_MASKS]:
        name = re.sub(r"\W", "_", field.rpartition(".")[0], flags=re.ASCII)
        if name in _TAKEN or name in names or not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_":
            name = f"mask_{len(names)}"
        names[name] = field
    return names


def _fields_like_image(manifest: Manifest) -> dict[str, str]:
    """Return the fields next to the image that all samples have, objects and masks: name in a batch -> its kind."""
    everywhere = [name for name, count in manifest.fields.items() if count == manifest.samples]
    masks = names_of_masks(filter(shows_mask, everywhere))
    kinds = {
        name: f"wds_tools.Array({field!r}, like='image', interpolation='nearest')"
        if is_coloured_mask(field)
        else f"wds_tools.Mask({field!r}, like='image')"
        for name, field in masks.items()
    }
    return (_OBJECTS if CATEGORY_PATH in manifest.field_classes else {}) | kinds


def _usable_fields(manifest: Manifest, indexes: Iterable[Index]) -> tuple[str, ...]:
    """Return fields that every sample has, by manifest and indexes."""
    everywhere = [name for name, count in manifest.fields.items() if count == manifest.samples]
    labels = manifest.label is not None or "cls" in everywhere
    images = sum(manifest.fields.get(name, 0) for name in IMAGE_FIELDS) >= manifest.samples
    decoded, deep = True, False
    for index in indexes:
        labels = labels and bool((index.label != NO_LABEL).all())
        decoded = decoded and bool((index.width > 0).all())
        deep = deep or any(mode.endswith(_SIXTEEN_BITS) for mode in index.mode)
    if images and decoded and not deep:
        return USUAL_FIELDS if labels else ("image",)
    others = [name for name in everywhere if name != "cls" and (decoded or name not in IMAGE_FIELDS)]
    return (*others, *(["label"] if labels else [])) or ("__key__",)


def _batch_size(samples: int) -> int:
    """Return the usual batch size, or for few samples the largest power of two that gives one full batch.

    >>> _batch_size(1_000_000), _batch_size(6), _batch_size(1)
    (256, 4, 1)
    """
    return min(_BATCH_SIZE, 1 << (samples.bit_length() - 1))
