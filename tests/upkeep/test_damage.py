"""Random damage to a dataset: loading gives right data or an error of wds_tools, and `verify` finds it.

Each case has a number, which a failure shows. ``_damaged(data, kind, number)`` reproduces its bytes.
"""

from __future__ import annotations

import io
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from resealed import index_of, rewrite

import wds_tools as wt
from wds_tools.errors import DecodeError, WdsToolsError

CLASSES = [f"species {number:03}" for number in range(760)]
FILES = ("shard-000001.tar", "shard-000001.parquet", "manifest.json")
KINDS = ("flip", "cut", "zeros")
QUICK, LONG = 12, 10_000


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
@pytest.mark.torture_except(
    "shard-000001.tar-flip",
    "shard-000001.tar-cut",
    "shard-000001.parquet-cut",
    "shard-000001.parquet-zeros",
    "manifest.json-flip",
    "manifest.json-cut",
    "manifest.json-zeros",
)
def test_damage_never_gives_wrong_data_and_verify_finds_it(dataset: Path, file: str, kind: str) -> None:
    outcomes = _try(dataset, file, kind, range(QUICK))
    assert outcomes["refused", "right"] > QUICK / 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.torture_except("cut", "zeros")
def test_damage_to_an_index_without_a_manifest_never_gives_wrong_data(dataset: Path, kind: str) -> None:
    assert _try_without_manifest(dataset, kind, range(QUICK))["refused"] > QUICK / 4


IMAGES: dict[str, tuple[str, str, dict[str, Any]]] = {  # Pillow's format and mode, and options of its encoder
    "jpg": ("JPEG", "RGB", {}),
    "progressive.jpg": ("JPEG", "RGB", {"progressive": True}),
    "crop-ready.jpg": ("JPEG", "RGB", {"restart_marker_blocks": 2}),
    "grey.jpg": ("JPEG", "L", {}),
    "cmyk.jpg": ("JPEG", "CMYK", {}),
    "oriented.jpg": ("JPEG", "RGB", {"exif": bytes.fromhex("4d4d002a00000008000101120003000000010006000000000000")}),
    "png": ("PNG", "RGBA", {}),
    "webp": ("WEBP", "RGB", {}),
    "gif": ("GIF", "P", {}),
    "tif": ("TIFF", "RGB", {}),
    "npy": ("", "RGB", {}),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.torture_except("jpg", "crop-ready.jpg", "png", "npy", "oriented.jpg")
def test_an_index_with_another_image_size_never_gives_pixels(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, mode, options = IMAGES[name]
    image, out = Image.open(next(photos.glob("coffee/*.jpg"))).convert(mode).resize((96, 64)), io.BytesIO()
    if kind:
        image.save(out, kind, **options)
    else:
        np.save(out, np.asarray(image))
    with wt.ShardWriter(str(tmp_path / "shard-%06d.tar")) as writer:
        writer.write({"__key__": "one", name.rpartition(".")[2]: out.getvalue(), "cls": 0})
    right = index_of(tmp_path, "shard-000000.tar")
    specs = [wt.Image(view=view) for view in (wt.Resize((20, 30)), [wt.CenterCrop(40), wt.Resize((9, 9))], None)]
    if name != "npy":  # the index has no sizes for unchanged arrays
        specs += [wt.Image(mode="unchanged", view=view) for view in (wt.Resize((20, 30)), None)]
    for column, change in (("width", -17), ("height", 1)):
        rewrite(tmp_path, replace(right, **{column: getattr(right, column) + np.int32(change)}))
        for use_native in "10":
            monkeypatch.setenv("WDS_TOOLS_NATIVE", use_native)
            for spec in specs:
                with (
                    wt.make_loader(tmp_path, batch_size=1, fields={"image": spec}, num_workers=0) as loader,
                    pytest.raises(DecodeError, match=r"but its index records .* rebuild the index") as raised,
                ):
                    next(iter(loader))
                assert raised.value.key == "one"
    rewrite(tmp_path, right)
    with wt.make_loader(tmp_path, batch_size=1, view=wt.Resize((20, 30)), num_workers=0) as loader:
        assert next(iter(loader)).image.shape == (1, 3, 20, 30)


@pytest.mark.torture
@pytest.mark.night
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
