"""Contact sheet: images from the loader, tiled in one image."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from wds_tools.errors import DestinationError, OptionError
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View
from wds_tools.loading.factory import make_loader
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.reading.shardset import check_fields

VIEWS = ("train", "eval", "whole")
_GAP = 4  # pixels between tiles
_CAPTION_HEIGHT = 14
_BACKGROUND_COLOUR = (24, 24, 27)
_TEXT_COLOUR = (228, 228, 231)


def view_named(name: str, size: int) -> View:
    """Return the view for a name: ``train``, ``eval``, or ``whole``, which scales the complete image."""
    if name == "train":
        return RandomResizedCrop(size, flip=True)
    if name == "eval":
        return CenterCrop(size, resize=round(size * 256 / 224))
    if name == "whole":
        return Resize(size)
    raise OptionError(f"view={name!r}; allowed are {', '.join(VIEWS)}")


def check_count(count: int) -> None:
    """Check the number of samples of a sheet."""
    if not 1 <= count <= 1024:
        raise OptionError(f"count={count}; allowed are 1 to 1,024")


def contact_sheet(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    view: str = "train",
    size: int = 128,
    count: int = 48,
    seed: int = 0,
    epoch: int = 0,
    remote: RemoteOptions | None = None,
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
        remote: How URLs are read; None uses the defaults.

    Returns:
        Number of samples shown.

    Raises:
        OptionError: An option is invalid.
        DestinationError: The file cannot be written.
    """
    check_count(count)
    chosen = view_named(view, size)
    manifest = open_shards(dataset, remote=remote).manifest
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
            storage_options=remote.storage_options if remote else None,
        )
    with loader:
        loader.set_epoch(epoch)
        batch = next(iter(loader))
        labels = batch.label.tolist() if manifest.has_labels else [None] * count
        sheet = _draw(list(batch.image), [_caption(label, loader.classes) for label in labels], size)
    _save(sheet, Path(out))
    return count


def _draw(images: Sequence[torch.Tensor], captions: Sequence[str], size: int) -> Image.Image:
    """Draw tiles in a grid with about as many columns as rows.

    Args:
        images: uint8 [3, height, width] each. They are reduced to the size of a tile.
        captions: Text below each tile.
        size: Width and height of a tile in pixels.
    """
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    step_x, step_y = size + _GAP, size + _CAPTION_HEIGHT + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _BACKGROUND_COLOUR)
    draw = ImageDraw.Draw(sheet)
    for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
        tile = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        tile.thumbnail((size, size))
        x, y = _GAP + index % columns * step_x, _GAP + index // columns * step_y
        sheet.paste(tile, (x + (size - tile.width) // 2, y + (size - tile.height) // 2))
        draw.text((x, y + size + 1), caption[: size // 6], fill=_TEXT_COLOUR)
    return sheet


def _save(sheet: Image.Image, path: Path) -> None:
    try:
        sheet.save(path)
    except ValueError as error:
        raise OptionError(f"cannot write {path}: {error}; allowed are .png, .jpg and .webp") from error
    except OSError as error:
        raise DestinationError(f"cannot write {path}: {error.strerror or error}") from error


def _caption(label: int | None, classes: tuple[str, ...]) -> str:
    """Return the name of a class, or its number if it has no name."""
    if label is None:
        return ""
    return classes[label] if 0 <= label < len(classes) else str(label)
