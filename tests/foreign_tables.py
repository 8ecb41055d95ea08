"""The rows of the tables in `tests/foreign/tables`, and what was packed of them, read without wds_tools."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pictures import encode
from PIL import Image
from sources_conformance import stored

import wds_tools as wt

FOREIGN = Path(__file__).parent / "foreign" / "tables"
COUNT = 6
NAMES = ("cat", "dog", "fig")
LABELS = {row: NAMES[row % 3] for row in range(COUNT)}


class Packed(NamedTuple):
    """What a shard has of a row: the name of its class, its class number, caption, and the entries of ``json``."""

    name: str | None
    number: int | None
    caption: str | None
    facts: dict[str, Any]


def colour(row: int) -> tuple[int, int, int]:
    """Return the only colour of the image of a row: that of the script that wrote the files."""
    return row * 40 % 256, 255 - row * 20, row * 7


def png(row: int) -> bytes:
    """Return the image of a row."""
    return encode(Image.new("RGB", (6, 4), colour(row)), "PNG")


def beside_images(folder: Path, name: str | None = None, *, count: int = COUNT) -> Path:
    """Write the images ``0.png``, ``1.png``, ... into a folder, and a table that another program wrote."""
    folder.mkdir(exist_ok=True)
    for row in range(count):
        (folder / f"{row}.png").write_bytes(png(row))
    return Path(shutil.copy(FOREIGN / name, folder)) if name else folder


def packed(src: Any, dst: Path, **options: Any) -> dict[int, Packed]:
    """Pack a source; return what the shards have of each row, which its pixels show."""
    manifest = wt.pack(
        src, dst, images="keep", workers=None if not isinstance(src, (str, Path)) else 1, **options
    ).manifest
    rows = {colour(row): row for row in range(50)}
    found = {}
    for sample in stored(dst):
        data = next(sample[field] for field in ("png", "jpg") if field in sample)
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        row = rows[tuple(pixels[0, 0].tolist())]
        assert pixels.shape[1:] == (6, 3)
        assert np.array_equal(pixels, np.broadcast_to(colour(row), pixels.shape))
        number = int(sample["cls"]) if "cls" in sample else None
        name = manifest.classes[number] if number is not None and manifest.classes else None
        facts = json.loads(sample["json"])
        assert facts.pop("class", None) == name
        facts.pop("path")
        caption = sample["txt"].decode() if "txt" in sample else None
        assert row not in found
        found[row] = Packed(name, number, caption, facts)
    return dict(sorted(found.items()))
