"""Calls of `make_loader` as text, to paste: each runs on its dataset as it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from wds_tools.format.index import NO_LABEL, Index
from wds_tools.format.manifest import Manifest
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.views import CenterCrop, RandomResizedCrop

IMPORT = "import wds_tools"
USUAL_FIELDS = ("image", "label")
_BATCH_SIZE = 256
_SIDE = 224
_CAPTION = "txt"
_SIXTEEN_BITS = ";16"  # how the modes of pictures end that come only as stored fields
_HELD_OUT = ("val", "test", "dev")  # how the names of splits for evaluation begin


def spell_call(dataset: str, options: Mapping[str, str], *, name: str = "loader") -> str:
    """Return the statement that makes a loader; it needs `IMPORT` before it. Options without a value are left out.

    >>> print(spell_call("shards/my photos", {"batch_size": "8"}))
    loader = wds_tools.make_loader(
        'shards/my photos',
        batch_size=8,
    )
    """
    lines = [repr(dataset), *(f"{option}={value}" for option, value in options.items() if value)]
    return "\n".join([f"{name} = wds_tools.make_loader(", *(f"    {line}," for line in lines), ")"])


def spell(view: Any) -> str:
    """Return a view as one writes it, without the arguments that have their default value.

    >>> from wds_tools.images.views import Resize
    >>> spell(RandomResizedCrop(224, flip=True)), spell(Resize((128, 128)))
    ('RandomResizedCrop(224, flip=True)', 'Resize((128, 128))')
    """
    words = [
        repr(value) if field.default is MISSING else f"{field.name}={value!r}"
        for field in fields(view)
        if (value := getattr(view, field.name)) != field.default
    ]
    return f"{type(view).__name__}({', '.join(words)})"


def spell_fields(names: tuple[str, ...]) -> str:
    """Return the value of ``fields=``, or nothing for the usual fields."""
    if names == USUAL_FIELDS:
        return ""
    return repr(names[0]) if len(names) == 1 else repr(names)


def usual_side(manifests: Iterable[Manifest]) -> int:
    """Return the usual side of a picture in a batch; where all pictures are less than half as large, their own."""
    known = [images for manifest in manifests if (images := manifest.images)]
    largest = max((min(images.max_width, images.max_height) for images in known), default=_SIDE)
    return _SIDE if 2 * largest >= _SIDE else largest


def first_call(dataset: str, manifest: Manifest, *, side: int, split: str = "", indexes: Iterable[Index] = ()) -> str:
    """Return a call that loads a new dataset: as for training, or as for evaluation where the name of a split says so.

    Args:
        dataset: As one names it.
        manifest: Of the dataset.
        side: From `usual_side`, for all splits.
        split: Name of the split that the dataset is.
        indexes: Of its shards: they tell whether fields are class numbers, and images of 8 bits a channel.
    """
    names = _usable_fields(manifest, indexes)
    held_out = split.startswith(_HELD_OUT)
    options = {
        "batch_size": f"{_batch_size(manifest.samples)}",
        "view": f"wds_tools.{spell(_view(side, held_out=held_out))}" if "image" in names else "",
        "fields": spell_fields(names),
        "shuffle": "" if held_out else "True",
        "tail": "'mask'" if held_out else "",
    }
    return spell_call(dataset, options, name=_variable(split))


def _usable_fields(manifest: Manifest, indexes: Iterable[Index]) -> tuple[str, ...]:
    """Return fields that every sample has, as far as the manifest and the indexes tell."""
    everywhere = [name for name, count in manifest.fields.items() if count == manifest.samples]
    known = sum(manifest.fields.get(name, 0) for name in IMAGE_FIELDS) >= manifest.samples
    labels, deep = "cls" in everywhere, False
    for index in indexes:
        known = known and bool((index.width > 0).all())
        labels = labels and bool((index.label != NO_LABEL).all())
        deep = deep or any(mode.endswith(_SIXTEEN_BITS) for mode in index.mode)
    if known and not deep:
        caption = [_CAPTION] if _CAPTION in everywhere else []
        return USUAL_FIELDS if labels else ("image", *caption)
    unusable = ("cls",) if known else ("cls", *IMAGE_FIELDS)
    others = [name for name in everywhere if name not in unusable]
    return (*others, *(["label"] if labels else [])) or ("__key__",)


def _batch_size(samples: int) -> int:
    """Return the usual size, or for fewer samples the largest power of two of which there is a whole batch.

    >>> _batch_size(1_000_000), _batch_size(6), _batch_size(1)
    (256, 4, 1)
    """
    return min(_BATCH_SIZE, 1 << (samples.bit_length() - 1))


def _view(side: int, *, held_out: bool) -> RandomResizedCrop | CenterCrop:
    return CenterCrop(side, resize=round(side * 256 / 224)) if held_out else RandomResizedCrop(side, flip=True)


def _variable(split: str) -> str:
    """Return a name for the loader of a split.

    >>> _variable("train"), _variable("hold-out"), _variable("")
    ('train_loader', 'hold_out_loader', 'loader')
    """
    word = split.replace("-", "_")
    return "_".join([*([word] if word.isidentifier() else []), "loader"])
