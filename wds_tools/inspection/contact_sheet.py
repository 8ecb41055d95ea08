"""Contact sheet: images from the loader, tiled in one image."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from wds_tools.errors import OptionError
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View
from wds_tools.loading.factory import make_loader
from wds_tools.loading.sheet import save_sheet
from wds_tools.options import RemoteOptions
from wds_tools.reading.shardset import check_fields, open_shards

VIEWS = ("train", "eval", "whole")


def view_named(name: str, size: int) -> View:
    """Return the view for a name: ``train``, ``eval``, or ``whole``, which scales the complete image.

    Raises:
        OptionError: There is no such view.
    """
    if name == "train":
        return RandomResizedCrop(size, flip=True)
    if name == "eval":
        return CenterCrop(size, resize=round(size * 256 / 224))
    if name == "whole":
        return Resize(size)
    raise OptionError(f"view={name!r}; allowed are {', '.join(VIEWS)}")


def contact_sheet(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    view: str = "train",
    size: int = 128,
    count: int = 48,
    seed: int = 0,
    epoch: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Write one image with the first samples of an epoch, as the loader delivers them.

    Args:
        dataset: Folder, URL, manifest or pattern.
        out: File to write; its extension selects the format.
        view: ``train``, ``eval`` or ``whole``.
        size: Width and height of a tile in pixels.
        count: Maximum number of samples.
        seed: Seed of the order, crops and flips.
        epoch: Number of the epoch, from 0.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        Number of samples shown.

    Raises:
        OptionError: An option is invalid.
        DestinationError: The file cannot be written.
    """
    if not 1 <= count <= 1024:
        raise OptionError(f"count={count}; allowed are 1 to 1,024")
    chosen = view_named(view, size)
    manifest = open_shards(dataset, remote=RemoteOptions.of(storage_options=storage_options)).manifest
    check_fields(("image",), manifest.fields)
    fields = ("image", "label") if manifest.has_labels else ("image",)
    count = min(count, manifest.samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # images of different sizes are allowed here
        loader = make_loader(
            dataset,
            batch_size=count,
            view=chosen,
            shuffle=True,
            seed=seed,
            num_workers=0,
            fields=fields,
            storage_options=storage_options,
        )
    with loader:
        loader.set_epoch(epoch)
        batch = next(iter(loader))
        labels = batch.label.tolist() if manifest.has_labels else [None] * count
        save_sheet(list(batch.image), [_caption(label, loader.classes) for label in labels], out, size)
    return count


def _caption(label: int | None, classes: tuple[str, ...]) -> str:
    """Return the name of a class, or its number if it has no name."""
    if label is None:
        return ""
    return classes[label] if 0 <= label < len(classes) else str(label)
