"""Calls of `make_loader` as text, ready to paste into a script for a given dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from wds_tools.format.index import NO_LABEL, Index
from wds_tools.format.label_lists import LABELS
from wds_tools.format.manifest import Manifest
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.views import CenterCrop, RandomResizedCrop

IMPORT = "import wds_tools"
USUAL_FIELDS = ("image", "label")
_BATCH_SIZE = 256
_SIDE = 224
_CAPTION = "txt"
_SIXTEEN_BITS = ";16"  # suffix of the mode of images with 16 bits per channel, which do not load as RGB
_HELD_OUT = ("val", "test", "dev")  # prefixes of the names of splits for evaluation


def spell_call(dataset: str, options: Mapping[str, str], *, name: str = "loader") -> str:
    """Return the statement that creates a loader; it needs `IMPORT` before it. Empty options are left out.

    >>> print(spell_call("shards/my photos", {"batch_size": "8"}))
    loader = wds_tools.make_loader(
        'shards/my photos',
        batch_size=8,
    )
    """
    lines = [repr(dataset), *(f"{option}={value}" for option, value in options.items() if value)]
    return "\n".join([f"{name} = wds_tools.make_loader(", *(f"    {line}," for line in lines), ")"])


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


def usual_side(manifests: Iterable[Manifest]) -> int:
    """Return the side of an image in a batch in pixels: 224, or the side of the largest image if that is below 112."""
    known = [images for manifest in manifests if (images := manifest.images)]
    largest = max((min(images.max_width, images.max_height) for images in known), default=_SIDE)
    return _SIDE if 2 * largest >= _SIDE else largest


def first_call(dataset: str, manifest: Manifest, *, side: int, split: str = "", indexes: Iterable[Index] = ()) -> str:
    """Return a call that loads a new dataset: for training, or for evaluation if the name of the split suggests it.

    Args:
        dataset: Path or URL of the dataset.
        manifest: Manifest of the dataset.
        side: Side of an image in pixels, from `usual_side` for all splits.
        split: Name of the split, or "".
        indexes: Indexes of its shards. They show whether every ``cls`` is a class number, and whether images have 8
            bits per channel.
    """
    names, deep = _usable_fields(manifest, indexes)
    several = LABELS in names and "image" in names
    held_out = split.startswith(_HELD_OUT)
    view = f"wds_tools.{spell(_view(side, held_out=held_out))}"
    options = {
        "batch_size": f"{_batch_size(manifest.samples)}",
        "view": view if "image" in names and not (deep or several) else "",
        "fields": _spell_specs(names, view, deep=deep) if deep or several else spell_fields(names),
        "shuffle": "" if held_out else "True",
        "tail": "'mask'" if held_out else "",
    }
    return spell_call(dataset, options, name=_variable(split))


def _spell_specs(names: tuple[str, ...], view: str, *, deep: bool) -> str:
    """Return the value of ``fields=`` as a mapping: for images with all their bits, and for several labels."""
    mode = ", mode='unchanged'" if deep else ""
    specs = {"image": f"wds_tools.Image(view={view}{mode})", "label": "wds_tools.Label()"}
    specs |= {_CAPTION: f"wds_tools.Text({_CAPTION!r})", LABELS: "wds_tools.MultiHot()"}
    values = {name: specs.get(name) or f"wds_tools.Field({name!r})" for name in names}
    return (
        "{" + ", ".join(f"{('labels' if name == LABELS else name)!r}: {value}" for name, value in values.items()) + "}"
    )


def _usable_fields(manifest: Manifest, indexes: Iterable[Index]) -> tuple[tuple[str, ...], bool]:
    """Return fields that every sample has, by manifest and indexes, and whether images have 16 bits per channel."""
    everywhere = [name for name, count in manifest.fields.items() if count == manifest.samples]
    known = sum(manifest.fields.get(name, 0) for name in IMAGE_FIELDS) >= manifest.samples
    labels, deep = manifest.label is not None or "cls" in everywhere, False
    for index in indexes:
        known = known and bool((index.width > 0).all())
        labels = labels and bool((index.label != NO_LABEL).all())
        deep = deep or any(mode.endswith(_SIXTEEN_BITS) for mode in index.mode)
    if known:
        caption = [_CAPTION] if _CAPTION in everywhere else []
        several = [LABELS] if LABELS in everywhere and LABELS in manifest.field_classes else []
        return USUAL_FIELDS if labels else ("image", *several, *caption), deep
    others = [name for name in everywhere if name not in ("cls", *IMAGE_FIELDS)]
    return (*others, *(["label"] if labels else [])) or ("__key__",), False


def _batch_size(samples: int) -> int:
    """Return the usual batch size, or for few samples the largest power of two that gives one full batch.

    >>> _batch_size(1_000_000), _batch_size(6), _batch_size(1)
    (256, 4, 1)
    """
    return min(_BATCH_SIZE, 1 << (samples.bit_length() - 1))


def _view(side: int, *, held_out: bool) -> RandomResizedCrop | CenterCrop:
    return CenterCrop(side, resize=round(side * 256 / 224)) if held_out else RandomResizedCrop(side, flip=True)


def _variable(split: str) -> str:
    """Return a variable name for the loader of a split.

    >>> _variable("train"), _variable("hold-out"), _variable("")
    ('train_loader', 'hold_out_loader', 'loader')
    """
    word = split.replace("-", "_")
    return "_".join([*([word] if word.isidentifier() else []), "loader"])
