"""Random damage to each file of a dataset: what is loaded is right or an error of ours, and `verify` always notices.

Each case has a number, which a failure names: `_damaged(data, kind, number)` alone gives its bytes again.
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
    """Return case ``number`` of a kind of damage: one flipped bit, the end cut off, or up to 4096 zeros."""
    chance = random.Random(f"{kind} {number}")
    place = chance.randrange(len(data))
    if kind == "cut":
        return data[:place]
    if kind == "flip":
        return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    stop = min(len(data), place + chance.choice([1, 2, 16, 512, 4096]))
    return data[:place] + bytes(stop - place) + data[stop:]


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a dataset of two shards, nine pictures, and 760 classes; in memory where there is a place for that."""
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
    """Return all that a loader gives, and the class names."""
    with wt.make_loader(
        name, batch_size=9, view=wt.Resize((16, 16)), fields=("image", "label", "txt", "__key__"), num_workers=0
    ) as loader:
        (batch,) = loader
        return [np.asarray(batch.image).tobytes(), batch.label.tolist(), batch.txt, batch.key, loader.classes]


def _outcome(work: Callable[[], bool]) -> str:
    """Return how reading ended; anything but the right data or an error of ours is a defect."""
    try:
        return "right" if work() else "SILENT"
    except WdsToolsError:
        return "refused"
    except BaseException as error:  # what it is matters not: it is not ours
        return f"FOREIGN {type(error).__name__}"


def _try(dataset: Path, file: str, kind: str, numbers: range) -> Counter[tuple[str, str]]:
    """Damage a file in many ways, load and verify each time; return how often (loading, verifying) ended how."""
    path, expected = dataset / file, _load(dataset)
    whole, outcomes = path.read_bytes(), Counter[tuple[str, str]]()
    try:
        for number in numbers:
            damaged = _damaged(whole, kind, number)
            path.write_bytes(damaged)
            loaded = _outcome(lambda: _load(dataset) == expected)
            verified = _outcome(lambda same=damaged == whole: wt.verify(dataset, progress=False).ok == same)
            outcomes[loaded, verified] += 1
            assert {loaded, verified} <= {"right", "refused"}, f"{file}, {kind}, case {number}: {loaded}, {verified}"
    finally:
        path.write_bytes(whole)
    return outcomes


def _try_without_manifest(dataset: Path, kind: str, numbers: range) -> Counter[str]:
    """Damage an index that only itself vouches for; return how often loading ended how."""
    path, pattern = dataset / "shard-000001.parquet", f"{dataset}/shard-{{000000..000001}}.tar"
    manifest = dataset / "manifest.json"
    whole, seal, outcomes = path.read_bytes(), manifest.read_bytes(), Counter[str]()
    manifest.unlink()
    try:
        expected = _load(pattern)
        for number in numbers:
            path.write_bytes(_damaged(whole, kind, number))
            outcomes[loaded := _outcome(lambda: _load(pattern) == expected)] += 1
            assert loaded in ("right", "refused"), f"index alone, {kind}, case {number}: {loaded}"
    finally:
        path.write_bytes(whole)
        manifest.write_bytes(seal)
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_never_silent(dataset: Path, file: str, kind: str) -> None:
    outcomes = _try(dataset, file, kind, range(QUICK))
    assert outcomes["refused", "right"] > QUICK / 4  # the loader refuses most; verify finds all


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_an_index_is_never_silent_where_there_is_no_manifest(dataset: Path, kind: str) -> None:
    assert _try_without_manifest(dataset, kind, range(QUICK))["refused"] > QUICK / 4


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", [*FILES, "index alone"])
def test_ten_thousand_damages_of_each_kind_to_each_file_are_never_silent(dataset: Path, file: str, kind: str) -> None:
    alone = file == "index alone"
    outcomes = _try_without_manifest(dataset, kind, range(LONG)) if alone else _try(dataset, file, kind, range(LONG))
    print(f"{file}, {kind}: (loaded, verified) {dict(outcomes)}")  # noqa: T201 - the counts, with `pytest -s`
    assert outcomes.total() == LONG
