"""Calls of `make_loader` as text, ready to paste into a script for a given dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from wds_tools.format.index import NO_LABEL, Index
from wds_tools.format.manifest import Manifest
from wds_tools.format.objects import PLACE
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.views import RandomResizedCrop

IMPORT = "import wds_tools"
USUAL_FIELDS = ("image", "label")
_BATCH_SIZE = 256
_VIEW = RandomResizedCrop(224, flip=True)
_BATCH_SIZE_WITH_OBJECTS = 16
_WITH_OBJECTS = """{
        'image': wds_tools.Image(view=wds_tools.Letterbox(640, flip=True)),
        'boxes': wds_tools.Boxes('json', path='objects.box', format='xyxy', like='image', pad='flat'),
        'classes': wds_tools.Field('json', path='objects.category', like='boxes', pad='flat'),
    }"""
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


def spell(view: Any) -> str:
    """Return a view as source code, without arguments that have their default value.

    >>> from wds_tools.images.views import Resize
    >>> spell(RandomResizedCrop(224, flip=True)), spell(Resize((128, 128)))
    ('RandomResizedCrop(224, flip=True)', 'Resize((128, 128))')
    """
    arguments = [
        repr(value) if field.default is MISSING else f"{field.name}={value!r}"
        for field in fields(view)
        if (value := getattr(view, field.name)) != field.default
    ]
    return f"{type(view).__name__}({', '.join(arguments)})"


def spell_fields(names: tuple[str, ...]) -> str:
    """Return the value of ``fields=`` as source code, or "" for the usual fields."""
    if names == USUAL_FIELDS:
        return ""
    return repr(names[0]) if len(names) == 1 else repr(names)


def first_call(dataset: str, manifest: Manifest, *, indexes: Iterable[Index] = ()) -> str:
    """Return a call that loads a new dataset: images with labels or objects, or the fields that every sample has.

    Args:
        dataset: Path or URL of the dataset.
        manifest: Manifest of the dataset.
        indexes: Indexes of its shards. They show whether every ``cls`` is a class number, and whether images can be
            decoded and have 8 bits per channel.
    """
    names = _usable_fields(manifest, indexes)
    if "image" in names and PLACE in manifest.field_classes:
        batch_size = f"{min(_batch_size(manifest.samples), _BATCH_SIZE_WITH_OBJECTS)}"
        return spell_call(dataset, {"batch_size": batch_size, "fields": _WITH_OBJECTS, "shuffle": "True"})
    options = {
        "batch_size": f"{_batch_size(manifest.samples)}",
        "view": f"wds_tools.{spell(_VIEW)}" if "image" in names else "",
        "fields": spell_fields(names),
        "shuffle": "True",
    }
    return spell_call(dataset, options)


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
