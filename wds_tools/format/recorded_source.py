"""The source that a manifest records: what was packed, and how. Whether two datasets were packed from the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import xxhash

FIRST = "first"
"""Value of a source: number of inputs, of a dataset that has only the first ones of the plan."""

# Values of a source that `differences` names; the digest covers the rest.
_COMPARED = ("kind", "seed", "shard_bytes", "files", "images", "image_bytes", "shuffle", FIRST)
_PACKED_IMAGES = "packed_images"  # value of a source: the images before they were made crop-ready in place
_NOT_COMPILED = " not compiled"


def plan_of(source: dict[str, Any]) -> str:
    """Return the identity of a plan, by the source that a manifest records: 32 hexadecimal digits."""
    values = packed_source(source)
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def crop_ready_source(source: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the source of a dataset, or of its parts, after its images were made crop-ready in place.

    >>> crop_ready_source({"seed": 0, "images": "keep"})
    {'seed': 0, 'images': 'crop-ready', 'packed_images': 'keep'}
    """
    if source is None:
        return None
    if parts := source.get("parts"):
        return {**source, "parts": [crop_ready_source(part) for part in parts]}
    images = source.get("images")
    if images not in (None, "keep") and not str(images).endswith(_NOT_COMPILED):
        return source
    resized = str(images).removesuffix(_NOT_COMPILED) if images not in (None, "keep") else "crop-ready"
    return {**source, "images": resized, _PACKED_IMAGES: images}


def packed_source(source: dict[str, Any]) -> dict[str, Any]:
    """Return the source of a dataset as it was when it was packed, before its images were made crop-ready in place.

    >>> packed_source({"seed": 0, "images": "crop-ready", "packed_images": "keep"})
    {'seed': 0, 'images': 'keep'}
    """
    return _without({**source, "images": source.get(_PACKED_IMAGES, source.get("images"))}, _PACKED_IMAGES)


def are_crop_ready(source: Mapping[str, Any] | None) -> bool:
    """Return whether a dataset was packed so that crops of its JPEGs load fast.

    >>> are_crop_ready({"images": "crop-ready"}), are_crop_ready({"images": "resize 256 quality 90"})
    (True, True)
    >>> are_crop_ready({"images": "keep"}), are_crop_ready({"images": "resize 256 quality 90 not compiled"})
    (False, False)
    """
    parts = (source or {}).get("parts") or [source or {}]
    words = [str(part.get("images", "")).split() for part in parts]
    return all(text[:1] in (["crop-ready"], ["resize"]) and text[-2:] != ["not", "compiled"] for text in words)


def is_beginning(source: dict[str, Any] | None) -> bool:
    """Return whether a dataset of this source has only the first samples of a plan."""
    return FIRST in (source or {})


def begins(old: dict[str, Any] | None, new: dict[str, Any]) -> bool:
    """Return whether a dataset of the source ``old`` has the first samples of the plan of ``new``, but not all."""
    return old is not None and is_beginning(old) and is_source(_without(old, FIRST), _without(new, FIRST))


def has_all(old: dict[str, Any] | None, new: dict[str, Any]) -> bool:
    """Return whether a dataset of the source ``old`` has all samples of ``new``, which may be only the first ones."""
    if not begins(old, new):
        return is_source(old, _without(new, FIRST))
    return bool((old or {})[FIRST] >= new.get(FIRST, math.inf))


def _without(source: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name not in names}


def is_source(old: dict[str, Any] | None, new: dict[str, Any]) -> bool:
    """Return whether a dataset of the source ``old`` was packed from ``new``.

    A dataset whose images were made crop-ready in place counts as packed with both kinds of images.
    """
    if old is None or _PACKED_IMAGES not in old:
        return old == new
    same = _without(old, "images", _PACKED_IMAGES)
    return any(
        new == {**same, **({} if images is None else {"images": images})}
        for images in (old["images"], old[_PACKED_IMAGES])
    )


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the differences between two sources as text for an error message.

    >>> differences({"seed": 0, "digest": "a"}, {"seed": 1, "digest": "b"})
    'seed was 0 and is 1'
    """
    words = [word for word in _COMPARED if old.get(word) != new.get(word)]
    named = [f"{word} was {old.get(word)!r} and is {new.get(word)!r}" for word in words]
    return ", ".join(named) or "paths, sizes, content, classes or the first images of the input differ"
