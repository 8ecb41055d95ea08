"""Contact sheet: images from the loader, tiled in one image."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from PIL import ImageDraw

from wds_tools.errors import DestinationError, OptionError, SampleError
from wds_tools.format.field_classes import ClassList
from wds_tools.format.manifest import Manifest
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View
from wds_tools.inspection.drawn import draw, layers_of
from wds_tools.inspection.saved_step import SavedStep
from wds_tools.loading.explanation import StepExplanation
from wds_tools.loading.factory import make_loader
from wds_tools.loading.fields.image import Image
from wds_tools.loading.fields.plain import Label
from wds_tools.loading.loader import Loader
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.reading.select import Choice
from wds_tools.reading.shardset import check_fields
from wds_tools.wording import counted

VIEWS = ("train", "eval", "whole")
_GAP = 4  # pixels between tiles
_CAPTION_HEIGHT = 14
_BACKGROUND_COLOUR = (24, 24, 27)
_TEXT_COLOUR = (228, 228, 231)
_log = logging.getLogger("wds_tools")


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
    choice: Choice | None = None,
    remote: RemoteOptions | None = None,
) -> int:
    """Write one image with the first samples of an epoch, as the loader delivers them, and their annotations.

    Raises:
        OptionError: An option is invalid.
        DestinationError: The file cannot be written.
    """
    check_count(count)
    chosen = view_named(view, size)
    manifest = open_shards(dataset, remote=remote).manifest
    check_fields(("image",), manifest.fields)
    options: dict[str, Any] = {
        "batch_size": min(count, manifest.samples),
        "tail": "pad",
        "shuffle": True,
        "seed": seed,
        "num_workers": 0,
        "storage_options": remote.storage_options if remote else None,
        **({"where": choice.where, "subset": choice.subset, "class_weights": choice.class_weights} if choice else {}),
    }
    fields: dict[str, Any] = {"image": Image(view=chosen)}
    with _loader(dataset, {**fields, **({"label": Label()} if manifest.has_labels else {})}, options) as loader:
        loader.set_epoch(epoch)
        batch, shown = next(iter(loader)), min(count, loader.samples)
    labels = batch.label.tolist() if manifest.has_labels else [None] * shown
    images = list(batch.image)[:shown]

    def explain(layer: dict[str, Any]) -> StepExplanation:
        with _loader(dataset, {**fields, **layer}, options) as loader:
            return loader.explain(0, epoch=epoch)

    tiles = _annotated(images, size, manifest, layers_of(manifest), explain)
    _save(_sheet(tiles, [_caption(label, manifest.classes) for label in labels[:shown]], size), Path(out))
    return shown


def sheet_of_step(
    step: SavedStep,
    dataset: str,
    out: str | os.PathLike[str],
    *,
    size: int = 128,
    count: int = 48,
    choice: Choice,
    remote: RemoteOptions,
) -> tuple[int, StepExplanation]:
    """Write one image with the samples of a step of a run, with the first view of the first image of its batches.

    Returns:
        Number of samples shown, and the step.

    Raises:
        OptionError: As for `SavedStep.explain`; or the batches of the run have no images.
        SampleError: A sample cannot be read.
        DestinationError: The file cannot be written.
    """
    check_count(count)
    explained = step.explain(dataset, choice, remote)
    if not explained.image_fields:
        raise OptionError("the batches of this run have no image, so there is nothing to show: use `wds-tools plan`")
    shown, name = explained.part(slice(0, count)), explained.image_fields[0]
    images = [shown.images(name, i)[0] for i in range(len(shown.ids))]

    def explain(layer: dict[str, Any]) -> StepExplanation:
        return step.explain(dataset, choice, remote, layer)

    manifest = open_shards(dataset, remote=remote).manifest
    layers = {} if explained.is_clip(name) else layers_of(manifest, name)
    tiles = _annotated(images, size, manifest, layers, explain)
    _save(_sheet(tiles, [sample.key for sample in shown.samples], size), Path(out))
    return len(tiles), explained


def _annotated(
    images: Sequence[torch.Tensor],
    size: int,
    manifest: Manifest,
    layers: Mapping[str, dict[str, Any]],
    explain: Callable[[dict[str, Any]], StepExplanation],
) -> list[Pillow.Image]:
    """Return images as tiles with their annotations drawn on them.

    A warning names each layer that some samples do not have, and the first of them.
    """
    tiles = []
    for image in images:
        tiles.append(Pillow.fromarray(image.permute(1, 2, 0).contiguous().numpy()))
        tiles[-1].thumbnail((size, size))
    names = manifest.field_classes.get(CATEGORY_PATH, ClassList(())).names
    for name, fields in layers.items():
        step, errors = explain(fields), []
        for i, tile in enumerate(tiles):
            sample = step.part(slice(i, i + 1))  # alone: another sample may not have this layer
            try:
                layer = {field: sample.values(field)[0] for field in fields}
            except SampleError as error:
                errors.append(error)
                continue
            draw(tile, layer, scale=tile.width / images[i].shape[2], names=names)
        if errors:
            _log.warning("%s not drawn on %d of %s: %s", name, len(errors), counted(len(tiles), "image"), errors[0])
    return tiles


def _loader(dataset: str | os.PathLike[str], fields: Mapping[str, Any], options: Mapping[str, Any]) -> Loader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # images of different sizes are allowed here
        return make_loader(dataset, fields=fields, **options)


def _sheet(tiles: Sequence[Pillow.Image], captions: Sequence[str], size: int) -> Pillow.Image:
    """Return tiles in a grid with about as many columns as rows, with a text below each."""
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    step_x, step_y = size + _GAP, size + _CAPTION_HEIGHT + _GAP
    sheet = Pillow.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _BACKGROUND_COLOUR)
    canvas = ImageDraw.Draw(sheet)
    for index, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        x, y = _GAP + index % columns * step_x, _GAP + index // columns * step_y
        sheet.paste(tile, (x + (size - tile.width) // 2, y + (size - tile.height) // 2))
        canvas.text((x, y + size + 1), caption[: size // 6], fill=_TEXT_COLOUR)
    return sheet


def _save(sheet: Pillow.Image, path: Path) -> None:
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
