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
def packed_few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what `packed` is, of a tenth of the photographs: for tests that read all of them again and again."""
    folder = tmp_path_factory.mktemp("packed_few")
    for path in (*SAMPLE.glob("*/00[0-3].jpg"), *SAMPLE.glob("*/007.png")):
        (folder / "images" / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / "images" / path.parent.name / path.name).symlink_to(path)
    wt.pack(folder / "images", folder / "photos", shard_bytes="150kB", workers=1, images="keep")
    return folder / "photos"


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Return a packed dataset of 40 photographs with masks, depth, boxes, key points and captions."""
    return write_scenes(tmp_path_factory.mktemp("scenes") / "scenes", photos)
