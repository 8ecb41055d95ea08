"""The sample photographs, packed once. `make gpu` uses these fixtures without those of conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenes import write_scenes

import wds_tools as wt

SAMPLE = Path(__file__).parents[1] / "shards" / "sample" / "images"


@pytest.fixture(scope="session")
def photos() -> Path:
    """Return the folder of sample photographs, one folder per class."""
    return SAMPLE


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Return the sample photographs packed into several small shards. Not to be changed: see `packed_copy`."""
    folder = tmp_path_factory.mktemp("packed") / "photos"
    wt.pack(photos, folder, shard_bytes="1MB", workers=1, images="keep")
    return folder


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Return a packed dataset of 40 photographs with masks, depth, boxes, key points and captions."""
    return write_scenes(tmp_path_factory.mktemp("scenes") / "scenes", photos)
