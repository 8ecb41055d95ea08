"""What `wds-tools plan` says agrees with what the loader then does."""

import json

import numpy as np
import pytest
import webdataset
from PIL import Image

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.format.manifest import Manifest, ShardEntry
from wds_tools.inspection.forecast import forecast, order_of, render
from wds_tools.order.quality import measured_quality
from wds_tools.reading.select import Choice
from wds_tools.reading.shardset import ShardSet, open_shards


@pytest.fixture(scope="module")
def shards(packed):
    return open_shards(packed)


@pytest.mark.parametrize("tail", ["drop", "pad", "mask"])
@pytest.mark.parametrize(("batch_size", "world_size"), [(32, 1), (30, 4), (128, 2)])
def test_steps_and_tail_are_those_of_the_loader(packed, shards, tail, batch_size, world_size):
    told = forecast(shards, batch_size=batch_size, world_size=world_size, tail=tail)
    options = {"batch_size": batch_size, "fields": ("__key__",), "num_workers": 0, "shuffle": True, "tail": tail}
    with wt.make_loader(packed, rank=0, world_size=world_size, **options) as loader:
        assert told.steps == len(loader)
        assert told.window_samples == loader.state_dict()["window"]
    delivered = told.steps * told.global_batch
    assert delivered == 400 - told.dropped + told.padded
    assert (told.dropped > 0) <= (tail == "drop")
    assert (told.padded > 0) <= (tail != "drop")


def test_data_that_the_packer_shuffled_has_full_quality_and_it_is_measured(shards):
    told = forecast(shards, batch_size=32)
    assert told.quality == 1.0
    assert told.measured.quality > 0.8
    assert told.window_for_wanted is None


def test_without_a_shuffle_shuffled_data_is_still_mixed_and_says_so(shards):
    told = forecast(shards, batch_size=32, shuffle=False)
    assert told.window_samples == 0
    assert told.measured.quality > 0.6  # of 12 batches, which tell it to a sixth


def imagined(samples_per_shard, shards, sample_bytes=110_000):
    entries = tuple(
        ShardEntry(f"{n}.tar", samples_per_shard, samples_per_shard * sample_bytes, "0" * 32, f"{n}.parquet", 1, "")
        for n in range(shards)
    )
    return ShardSet(Manifest(entries, {"jpg": samples_per_shard * shards}), [], name="imagined")


def test_each_machine_with_a_lane_of_its_own_reads_its_part_only_once():
    large = imagined(9_000, 140)
    two = forecast(large, batch_size=64, world_size=4, ranks_per_node=2)
    assert two.lanes == 2
    assert two.read_twice == 0
    assert two.read_bytes_per_node == pytest.approx(two.bytes / 2, rel=0.01)
    one = forecast(large, batch_size=64, world_size=4)
    assert (one.lanes, one.read_twice, one.read_bytes_per_node) == (1, 0.0, one.bytes)


def tiny_images(folder, classes, per_class):
    """Write a folder of small images of 8 x 8 pixels, no two alike."""
    random = np.random.default_rng(0)
    for number in range(classes):
        (folder / f"{number:02}").mkdir(parents=True)
        for image in range(per_class):
            pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02}" / f"{image:04}.png")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return the same small images twice: packed by us, and in shards of another tool, sorted by class."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_images(folder / "images", 20, 100)
    wt.pack(folder / "images", folder / "packed", shard_bytes="500kB", workers=1)
    (folder / "sorted").mkdir()
    with webdataset.ShardWriter(f"{folder}/sorted/%06d.tar", maxcount=250, verbose=0) as writer:
        for path in sorted((folder / "images").glob("*/*.png")):
            sample = {"__key__": f"{path.parent.name}-{path.stem}", "png": path.read_bytes()}
            writer.write({**sample, "cls": int(path.parent.name)})
    wt.index_shards([f"{folder}/sorted/{{000000..000007}}.tar"])
    return folder


def class_variance(dataset, *, batch_size, epochs):
    """Return the variance of class counts of the loader's batches, against that of a full shuffle."""
    counts = []
    options = {"batch_size": batch_size, "fields": ("label",), "shuffle": True, "num_workers": 0}
    with wt.make_loader(dataset, **options) as loader:
        for _ in range(epochs):
            counts += [np.bincount(batch.label, minlength=20) for batch in loader]
    full = batch_size * 0.05 * 0.95 * (2000 - batch_size) / 1999
    return np.var(counts, axis=0).mean() / full


@pytest.mark.parametrize(("stored", "least"), [("packed", 0.95), ("sorted", 0.9)])
def test_by_default_the_loader_mixes_as_well_as_the_plan_says(tiny, stored, least):
    told = forecast(open_shards(tiny / stored), batch_size=50)
    assert told.measured.quality >= least
    assert told.window_for_wanted is None
    assert 1 / class_variance(tiny / stored, batch_size=50, epochs=20) >= least


def test_where_the_default_window_is_too_small_for_the_batch_the_plan_says_which_is_enough():
    large = imagined(8_000, 50)
    assert forecast(large, batch_size=256).window_for_wanted is None
    told = forecast(large, batch_size=256, world_size=4)
    assert told.quality < 0.75
    enough = forecast(large, batch_size=256, world_size=4, shuffle=told.window_for_wanted)
    assert enough.quality == pytest.approx(0.9, abs=0.001)
    assert enough.window_for_wanted is None
    order = order_of(large, None, seed=0, window=told.window_for_wanted, block=told.block_samples, lanes=1)
    by_class = np.arange(400_000) * 1000 // 400_000
    assert measured_quality(order, by_class, batch=1024) > 0.85  # less at the edges of the epoch


def test_a_choice_of_samples_is_planned_and_its_factors_are_told(shards):
    told = forecast(shards, batch_size=50, choice=Choice(where="label != 'cat'", subset=0.5, class_weights="balanced"))
    assert told.samples == 400
    assert told.epoch_samples == 175
    assert told.steps == 3
    assert told.dropped == 25
    assert told.class_factors["cat"] == 0
    assert sum(told.class_factors.values()) == pytest.approx(7, abs=0.5)
    assert told.measured.shards_full > 5  # a full shuffle of what was chosen, not of the first samples
    assert "epoch    175 samples chosen, a sample of " in render(told)


def test_the_read_rate_is_that_of_the_batches(shards):
    told = forecast(shards, batch_size=50, world_size=2, ranks_per_node=1, step_seconds=0.5)
    assert told.needed_bytes_per_second == pytest.approx(50 * told.bytes / 400 / 0.5)
    assert forecast(shards, batch_size=50).needed_bytes_per_second is None


def test_a_forecast_is_plain_json(shards):
    assert json.loads(json.dumps(forecast(shards, batch_size=8).to_dict()))["steps"] == 50


@pytest.mark.parametrize(
    "options", [{"batch_size": 500}, {"batch_size": 0}, {"batch_size": 8, "world_size": 3, "ranks_per_node": 2}]
)
def test_what_cannot_be_planned_is_refused(shards, options):
    with pytest.raises(OptionError):
        forecast(shards, **options)


def test_ranks_on_two_machines_share_no_block_but_the_order_resumes_anywhere(packed, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    keys = []
    for rank in (0, 1):
        with wt.make_loader(
            packed, batch_size=20, fields=("__key__",), shuffle=True, num_workers=0, rank=rank, world_size=2
        ) as loader:
            keys.append([key for batch in loader for key in batch.key])
            state = loader.state_dict()
    assert state["lanes"] == 2
    assert len(set(keys[0]) | set(keys[1])) == 400
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with wt.make_loader(packed, batch_size=40, fields=("__key__",), shuffle=True, num_workers=0) as loader:
        loader.load_state_dict({**state, "epoch": 0, "position": 0})
        for number, batch in enumerate(loader):
            part = slice(20 * number, 20 * number + 20)
            assert sorted(batch.key) == sorted(keys[0][part] + keys[1][part])
    assert np.size(keys) == 400
