"""Small images, labels and an independent reading of what was packed, for the tests of arrays."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encode
from PIL import Image
from sources_conformance import stored

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.detect import open_source

N = 6
CLASSES = ("cat", "dog", "sea")


def rgb(seed: int = 0) -> np.ndarray:
    """Return uint8 [6, 12, 14, 3]; no two sizes are equal, so that a transposed axis shows."""
    return np.random.default_rng(seed).integers(0, 256, (N, 12, 14, 3), np.uint8)


def grey(seed: int = 0) -> np.ndarray:
    """Return uint8 [6, 12, 14]."""
    return rgb(seed)[..., 0].copy()


def labels() -> np.ndarray:
    """Return class numbers, int64 [6]."""
    return np.array([0, 2, 1, 1, 0, 2])


def ways_of(axes: int) -> list[tuple[int, ...]]:
    """Return the orders of the axes of [N, H, W, C] that are read."""
    return [tuple(range(axes)), (0, 3, 1, 2)]


def encoded() -> list[bytes]:
    """Return the images as JPEGs of different lengths."""
    return [encode(Image.fromarray(image)) for image in rgb()]


@dataclass(frozen=True)
class Packed:
    """What the webdataset library reads from a packed dataset, by the row of the source."""

    samples: list[dict[str, Any]]
    facts: list[dict[str, Any]]
    classes: tuple[str, ...]
    notes: str

    @property
    def labels(self) -> list[int]:
        """Return the class numbers."""
        return [int(sample["cls"]) for sample in self.samples]

    def pixels(self, field: str = "png") -> list[np.ndarray]:
        """Return the pixels of an image field."""
        return [np.asarray(Image.open(io.BytesIO(sample[field]))) for sample in self.samples]

    def check(self, images: Sequence[np.ndarray] | np.ndarray, numbers: np.ndarray | None) -> None:
        """Compare pixels and labels with those of the source."""
        assert [pixels.tolist() for pixels in self.pixels()] == [image.tolist() for image in images]
        if numbers is None:
            assert not any("cls" in sample for sample in self.samples)
        else:
            assert self.labels == numbers.tolist()


def packed(path: Path, folder: Path, name: str = "packed", *, kind: str | None = None, **columns: str) -> Packed:
    """Pack a file and read the result."""
    source = open_source(path, kind=kind, options=SourceOptions(columns=columns))
    notes = "\n".join(source.scan().account.notes)
    manifest = wt.pack(path, folder / name, kind=kind, columns=columns, images="keep", workers=1).manifest
    samples = stored(folder / name)
    facts = [json.loads(sample["json"]) for sample in samples]
    order = sorted(range(len(samples)), key=lambda index: int(facts[index]["path"].partition("#")[2]))
    return Packed([samples[at] for at in order], [facts[at] for at in order], tuple(manifest.classes), notes)


def parts(path: Path, *, kind: str | None = None, **columns: str) -> list[Any]:
    """Return what becomes of each part of a file."""
    return open_source(path, kind=kind, options=SourceOptions(columns=columns)).scan().account.parts


def refusal(path: Path, *, kind: str | None = None, **columns: str) -> str:
    """Return the error with which a file is refused, which is one line."""
    with pytest.raises(SourceError) as caught:
        open_source(path, kind=kind, options=SourceOptions(columns=columns)).scan()
    assert "\n" not in str(caught.value)
    return str(caught.value)
