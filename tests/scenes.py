"""A dataset of photographs with masks, depth, boxes, key points and captions, for tests of joint fields."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

import wds_tools as wt


def png(pixels: np.ndarray[Any, Any], palette: bool = False) -> bytes:
    image = Image.fromarray(pixels)
    if palette:
        image.putpalette([value for number in range(256) for value in (number, 255 - number, 7)])
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def scene(path: Path, number: int) -> dict[str, Any]:
    """Return the fields of a sample that are derived from a photograph."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    y, x = np.indices((height, width))
    right = io.BytesIO()
    ImageOps.invert(image).save(right, "JPEG", quality=95)
    boxes = [[width * a / 8, height * a / 10, width / (a + 2), height / (a + 3)] for a in range(number % 7)]
    return {
        "__key__": f"{number:04}",
        "jpg": image,
        "right.jpg": right.getvalue(),
        "mask.png": png(((x // 7 + y // 5 + number) % 200).astype(np.uint8), palette=True),
        "depth.png": png((x * 61 + y * 97 + number).astype(np.uint16)),
        "flow.npy": np.stack([x / width, y / height], axis=2).astype(np.float32),
        "json": {
            "objects": [{"bbox": box, "category": i % 3, "name": f"object {i}"} for i, box in enumerate(boxes)],
            "points": [[width / 3, height / 3, 2], [width - 1, 0, 1], [0, height - 1, 0]],
            "flat": [width / 2, height / 2, 1, 3, 4, 0],
            "captions": [f"photo {number}", "second"],
        },
        "txt": f"a {path.parent.name}",
        "cls": number % 8,
    }


def write_scenes(folder: Path, photos: Path) -> Path:
    """Write 40 samples in several shards."""
    with wt.ShardWriter(str(folder / "scenes-%06d.tar"), maxcount=12) as writer:
        for number, path in enumerate(sorted(photos.glob("*/00[0-4].*"))):
            writer.write(scene(path, number))
    return folder
