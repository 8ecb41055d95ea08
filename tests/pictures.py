"""Images of tests as the bytes of a file, and a folder of images with problems."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageFilter


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """Return an image as Pillow writes it; the options are those of its ``save``."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def some_pictures(photos: Path) -> list[Image.Image]:
    """Return some of the sample photographs, in RGB."""
    return [Image.open(path).convert("RGB") for path in sorted(photos.rglob("*.jpg"))[::15]]


def save_jpeg(path: Path, image: Image.Image, quality: int = 90) -> None:
    """Write an image as ``path`` with the suffix ``.jpg``, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.jpg").write_bytes(encode(image, quality=quality))


def write_problems(folder: Path, pictures: Sequence[Image.Image], *, single: str = "single") -> None:
    """Write ten images of the classes a and b, and images with one problem of each kind.

    Args:
        folder: Where there is a folder for each class.
        pictures: At least 20, see `some_pictures`.
        single: Name of the class with one image.
    """
    for number, image in enumerate(pictures[:10]):
        save_jpeg(folder / "ab"[number % 2] / f"{number}", image)
    save_jpeg(folder / "a" / "copy", pictures[0])
    save_jpeg(folder / "b" / "relabelled", pictures[2])
    save_jpeg(folder / "a" / "similar", pictures[4], quality=40)
    save_jpeg(folder / "a" / "blank", Image.new("RGB", (300, 200), (9, 9, 9)))
    save_jpeg(folder / "a" / "blank2", Image.new("RGB", (300, 200), (200, 9, 9)))
    save_jpeg(folder / "b" / "blurred", pictures[16].filter(ImageFilter.GaussianBlur(8)))
    save_jpeg(folder / "a" / "tiny", pictures[17].resize((20, 15)))
    save_jpeg(folder / "b" / "narrow", pictures[18].resize((1000, 120)))
    save_jpeg(folder / single / "one", pictures[19])
