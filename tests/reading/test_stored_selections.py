"""Selections of large datasets: computed once per machine, stored in the cache, and mapped by all processes."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import wds_tools as wt
from wds_tools.errors import MissingFileError
from wds_tools.format.index import FieldColumns, Index, shard_entry, to_bytes
from wds_tools.format.manifest import ImageStats, Manifest, to_json
from wds_tools.storage.cache.arrays import ArrayCache, Arrays

SHARDS, SAMPLES = 6, 20_000


def write_indexes(folder: Path, *, seed: int) -> Path:
    """Write the manifest and the indexes of a dataset whose shards do not exist."""
    folder.mkdir(exist_ok=True)
    rng, entries = np.random.default_rng(seed), []
    for number in range(SHARDS):
        offset = np.arange(SAMPLES) * 2048 + 1024
        fields = {"jpg": FieldColumns(offset, np.full(SAMPLES, 700), offset.astype(np.uint64))}
        index = Index(
            shard=f"shard-{number}.tar",
            shard_bytes=SAMPLES * 2048 + 1024,
            shard_xxh3=f"{number:032x}",
            keys=[f"{number}{row:09d}" for row in range(SAMPLES)],
            fields=fields,
            label=rng.integers(0, 10, SAMPLES),
            width=rng.integers(100, 300, SAMPLES).astype(np.int32),
            height=rng.integers(100, 300, SAMPLES).astype(np.int32),
            mode=["RGB"] * SAMPLES,
            orientation=np.ones(SAMPLES, np.int8),
            restart=np.zeros(SAMPLES, np.int32),
            mcu_width=np.full(SAMPLES, 16, np.int8),
            mcu_height=np.full(SAMPLES, 16, np.int8),
        )
        data = to_bytes(index)
        entry = shard_entry(
            index.shard, data, samples=SAMPLES, shard_bytes=index.shard_bytes, shard_xxh3=index.shard_xxh3
        )
        (folder / entry.index).write_bytes(data)
        entries.append(entry)
    stats = ImageStats(100, 300, 100, 300)
    manifest = Manifest(tuple(entries), {"jpg": SHARDS * SAMPLES}, label="index", images=stats)
    (folder / "manifest.json").write_text(to_json(manifest))
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_indexes(tmp_path_factory.mktemp("written") / "large", seed=0)


@pytest.fixture
def large(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "large"))


def remove_indexes(folder):
    for path in folder.glob("*.parquet"):
        path.unlink()


def open_loader(folder, **options):
    options = {"fields": ("label",)} | options
    return wt.make_loader(folder, batch_size=64, num_workers=0, shuffle=True, **options)


SELECTIONS = [
    {"where": "width >= 200 and label in (1, 2)"},
    {"where": "key >= '3'"},
    {"class_weights": "balanced"},
    {"subset": 0.3},
    {"subset": np.arange(0, SHARDS * SAMPLES, 3)},
    {"where": "label > 0", "subset": 0.5, "class_weights": {3: 2.0}},
    {"fields": ("image",), "view": wt.Buckets([(64, 64), (48, 64)])},
]


@pytest.mark.parametrize("options", SELECTIONS)
@pytest.mark.torture_except("options0", "options1", "options5")
def test_a_selection_is_stored_and_found_without_the_indexes(large, options):
    with open_loader(large, **options) as first:
        expected = first.state_dict(), len(first)
    remove_indexes(large)
    with open_loader(large, **options) as again:
        found = again.state_dict(), len(again)
    assert found == expected
    with pytest.raises(MissingFileError):
        open_loader(large, where="height == 299")


def test_a_split_is_stored_and_the_same_as_without_a_cache(large, monkeypatch):
    stored = wt.train_test_split(large, 0.25)
    monkeypatch.setenv("WDS_TOOLS_CACHE_BYTES", "1")
    computed = wt.train_test_split(large, 0.25)
    monkeypatch.delenv("WDS_TOOLS_CACHE_BYTES")
    remove_indexes(large)
    for one, two, again in zip(stored, computed, wt.train_test_split(large, 0.25), strict=True):
        assert one.tolist() == two.tolist() == again.tolist()
    with pytest.raises(MissingFileError):
        wt.train_test_split(large, 0.25, stratify=False, where="label == 1")


def test_a_stored_selection_is_not_of_a_dataset_with_other_indexes(large):
    first, _ = wt.train_test_split(large, 0.25)
    write_indexes(large, seed=1)
    second, _ = wt.train_test_split(large, 0.25)
    assert first.tolist() != second.tolist()


def test_a_damaged_stored_selection_is_computed_again(large, tmp_path):
    first, _ = wt.train_test_split(large, 0.25)
    expected = first.tolist()
    blocks = [path for path in (tmp_path / "cache").glob("*/*") if path.name != "url"]
    assert blocks
    for path in blocks:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").replace(path)
    again, _ = wt.train_test_split(large, 0.25)
    assert again.tolist() == expected


def test_arrays_are_computed_by_one_process_and_the_others_wait(tmp_path):
    cache, log = tmp_path / "arrays", tmp_path / "log"

    def compute():
        with log.open("a") as file:
            file.write("computed\n")
        return Arrays({"numbers": np.arange(1000), "none": np.empty(0, np.int8)}, {"text": "ü"})

    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            found = ArrayCache(cache, 10**6).load("what", compute)
            is_right = found.arrays["numbers"].tolist() == list(range(1000)) and found.values == {"text": "ü"}
            os._exit(0 if is_right and not len(found.arrays["none"]) else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert log.read_text() == "computed\n"


def test_the_phases_of_classes_and_the_order_in_buckets_are_stored(large):
    def first_keys(**options):
        with open_loader(large, fields=("label",), **options) as loader:
            loader.reweight(classes={"1": 3.0, "2": 0.0}, where={"height < 200": 0.5})
            return [loader.explain(step).ids.tolist() for step in (0, 500)]

    def orders():
        with open_loader(large, fields=("image",), view=wt.Buckets([(64, 64), (48, 64)])) as loader:
            return len(loader), loader.samples

    options = ({}, {"where": "width >= 200"}, {"class_weights": "balanced"})
    expected = [first_keys(**one) for one in options], orders()
    remove_indexes(large)
    assert ([first_keys(**one) for one in options], orders()) == expected


def test_which_samples_meet_a_condition_is_stored_for_any_factor(large):
    def first_ids(factor):
        with open_loader(large) as loader:
            loader.reweight(where={"height < 200": factor})
            return loader.explain(0).ids.tolist()

    first_ids(0.5)
    remove_indexes(large)
    assert first_ids(0) != first_ids(0.5)
    with pytest.raises(MissingFileError), open_loader(large) as loader:
        loader.reweight(where={"height < 201": 0.5})
