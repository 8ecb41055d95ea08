"""Annotations that other programs wrote, in `foreign/`, with the images that all of them are about."""

from __future__ import annotations

import shutil
from pathlib import Path

FOREIGN = Path(__file__).parent / "foreign"
SPLIT_OF = {"photo_1.jpg": "train", "photo 3.jpg": "train", "photo_2.jpg": "val", "photo_4.jpg": "val"}


def tree_of(root: Path, annotations: str, place: str) -> Path:
    """Copy annotations, and the images to ``place``, a text with {split} and {name}; return the root."""
    shutil.copytree(FOREIGN / annotations, root, dirs_exist_ok=True)
    for name, split in SPLIT_OF.items():
        path = root / place.format(split=split, name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOREIGN / "images" / name, path)
    return root
