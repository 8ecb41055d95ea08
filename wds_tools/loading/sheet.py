"""Contact sheets: tiles with captions, in one image file."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from wds_tools.errors import DestinationError, OptionError

_GAP = 4  # pixels between tiles
_CAPTION_HEIGHT = 14
_BACKGROUND_COLOUR = (24, 24, 27)
_TEXT_COLOUR = (228, 228, 231)


def save_sheet(
    images: Sequence[torch.Tensor],
    captions: Sequence[str],
    path: str | os.PathLike[str],
    size: int,
    *,
    columns: int | None = None,
) -> None:
    """Write tiles in a grid, by default with about as many columns as rows.

    Args:
        images: uint8 [3, height, width] each. They are reduced to the size of a tile.
        captions: Text below each tile.
        path: File to write; its extension selects the format.
        size: Width and height of a tile in pixels.
        columns: Number of columns.

    Raises:
        OptionError: The extension is unknown.
        DestinationError: The file cannot be written.
    """
    sheet = _draw(images, captions, size, columns or math.ceil(math.sqrt(len(images))))
    try:
        sheet.save(Path(path))
    except ValueError as error:
        raise OptionError(f"cannot write {os.fspath(path)}: {error}; allowed are .png, .jpg and .webp") from error
    except OSError as error:
        raise DestinationError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def _draw(images: Sequence[torch.Tensor], captions: Sequence[str], size: int, columns: int) -> Image.Image:
    rows = math.ceil(len(images) / columns)
    step_x, step_y = size + _GAP, size + _CAPTION_HEIGHT + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _BACKGROUND_COLOUR)
    draw = ImageDraw.Draw(sheet)
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        tile = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        tile.thumbnail((size, size))
        x, y = _GAP + number % columns * step_x, _GAP + number // columns * step_y
        sheet.paste(tile, (x + (size - tile.width) // 2, y + (size - tile.height) // 2))
        draw.text((x, y + size + 1), caption[: size // 6], fill=_TEXT_COLOUR)
    return sheet
