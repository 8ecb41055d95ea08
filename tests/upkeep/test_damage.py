"""Random damage to a dataset: loading gives right data or an error of wds_tools, and `verify` finds it.

Each case has a number, which a failure shows. ``_damaged(data, kind, number)`` reproduces its bytes.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wds_tools as wt
from wds_tools.errors import WdsToolsError

CLASSES = [f"species {number:03}" for number in range(760)]
FILES = ("shard-000001.tar", "shard-000001.parquet", "manifest.json")
KINDS = ("flip", "cut", "zeros")
QUICK, LONG = 80, 10_000


def _damaged(data: bytes, kind: str, number: int) -> bytes:
    """Return case ``number`` of a kind of damage: one flipped bit, a removed end, or up to 4096 zeros."""
    generator = random.Random(f"{kind} {number}")
    start = generator.randrange(len(data))
    if kind == "cut":
        return data[:start]
    if kind == "flip":
        return data[:start] + bytes([data[start] ^ 1 << generator.randrange(8)]) + data[start + 1 :]
    stop = min(len(data), start + generator.choice([1, 2, 16, 512, 4096]))
    return data[:start] + bytes(stop - start) + data[stop:]


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a dataset of two shards, nine images and 760 classes, in /dev/shm if that is writable."""
    memory = Path("/dev/shm")
    root = memory if os.access(memory, os.W_OK) else tmp_path_factory.getbasetemp()
    folder = root / f"damage-{os.getpid()}"
    paths = sorted(photos.glob("*/*.jpg"), key=lambda path: path.stat().st_size)[:9]
    with wt.ShardWriter(str(folder / "shard-%06d.tar"), maxcount=5, classes=CLASSES) as writer:
        for number, path in enumerate(paths):
            writer.write({"__key__": f"{number}", "jpg": path.read_bytes(), "cls": number * 80, "txt": path.name})
    yield folder
    shutil.rmtree(folder)


def _load(name: Path | str) -> Any:
    """Return the data of a loader's only batch, and the class names."""
    with wt.make_loader(
        name, batch_size=9, view=wt.Resize((16, 16)), fields=("image", "label", "txt", "__key__"), num_workers=0
    ) as loader:
        (batch,) = loader
        return [np.asarray(batch.image).tobytes(), batch.label.tolist(), batch.txt, batch.key, loader.classes]


def _outcome(work: Callable[[], bool]) -> str:
    """Return how reading ended: "right" and "refused" are allowed, other outcomes are bugs."""
    try:
        return "right" if work() else "WRONG WITHOUT ERROR"
    except WdsToolsError:
        return "refused"
    except BaseException as error:
        return f"OTHER ERROR {type(error).__name__}"


def _try(dataset: Path, file: str, kind: str, numbers: range) -> Counter[tuple[str, str]]:
    """Load and verify the dataset with each damage to a file; count the outcomes (loaded, verified)."""
    path, expected = dataset / file, _load(dataset)
    original, outcomes = path.read_bytes(), Counter[tuple[str, str]]()
    try:
        for number in numbers:
            damaged = _damaged(original, kind, number)
            path.write_bytes(damaged)
            loaded = _outcome(lambda: _load(dataset) == expected)
            verified = _outcome(lambda same=damaged == original: wt.verify(dataset, progress=False).ok == same)
            outcomes[loaded, verified] += 1
            assert {loaded, verified} <= {"right", "refused"}, f"{file}, {kind}, case {number}: {loaded}, {verified}"
    finally:
        path.write_bytes(original)
    return outcomes


def _try_without_manifest(dataset: Path, kind: str, numbers: range) -> Counter[str]:
    """Load shards without a manifest, with each damage to an index; count the outcomes."""
    path, pattern = dataset / "shard-000001.parquet", f"{dataset}/shard-{{000000..000001}}.tar"
    manifest = dataset / "manifest.json"
    original, manifest_data, outcomes = path.read_bytes(), manifest.read_bytes(), Counter[str]()
    manifest.unlink()
    try:
        expected = _load(pattern)
        for number in numbers:
            path.write_bytes(_damaged(original, kind, number))
            outcomes[loaded := _outcome(lambda: _load(pattern) == expected)] += 1
            assert loaded in ("right", "refused"), f"index alone, {kind}, case {number}: {loaded}"
    finally:
        path.write_bytes(original)
        manifest.write_bytes(manifest_data)
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", FILES)
def test_damage_never_gives_wrong_data_and_verify_finds_it(dataset: Path, file: str, kind: str) -> None:
    outcomes = _try(dataset, file, kind, range(QUICK))
    assert outcomes["refused", "right"] > QUICK / 4


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_an_index_without_a_manifest_never_gives_wrong_data(dataset: Path, kind: str) -> None:
    assert _try_without_manifest(dataset, kind, range(QUICK))["refused"] > QUICK / 4


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", [*FILES, "index alone"])
def test_ten_thousand_damages_of_each_kind_to_each_file_never_give_wrong_data(
    dataset: Path, file: str, kind: str
) -> None:
    outcomes: Counter[Any]
    if file == "index alone":
        outcomes = _try_without_manifest(dataset, kind, range(LONG))
        refused = outcomes["refused"]
    else:
        outcomes = _try(dataset, file, kind, range(LONG))
        refused = outcomes["refused", "right"]
    print(f"{file}, {kind}: {dict(outcomes)}")  # noqa: T201 - shown by `pytest -s`
    assert refused > LONG / 4
