"""The forecast of `wds-tools plan` agrees with the loader."""

import json
import re

import numpy as np
import pytest
import webdataset
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.format.manifest import Manifest, ShardEntry
from wds_tools.inspection.forecast import forecast, format_forecast, order_of
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.quality import measured_quality
from wds_tools.reading.opening import open_shards
from wds_tools.reading.select import Choice
from wds_tools.reading.shardset import ShardSet


@pytest.fixture(scope="module")
def shards(packed):
    return open_shards(packed)


@pytest.mark.parametrize("tail", ["drop", "pad", "mask"])
@pytest.mark.parametrize(("batch_size", "world_size"), [(32, 1), (30, 4), (128, 2)])
@pytest.mark.torture_except("30-4-drop", "30-4-pad", "128-2-mask", "32-1-drop")
def test_steps_and_tail_are_those_of_the_loader(packed, shards, tail, batch_size, world_size):
    found = forecast(shards, batch_size=batch_size, world_size=world_size, tail=tail)
    options = {"batch_size": batch_size, "fields": ("__key__",), "num_workers": 0, "shuffle": True, "tail": tail}
    with wt.make_loader(packed, rank=0, world_size=world_size, **options) as loader:
        assert found.steps == len(loader)
        assert found.window_samples == loader.state_dict()["window"]
    delivered = found.steps * found.global_batch
    assert delivered == 400 - found.dropped + found.padded
    assert (found.dropped > 0) <= (tail == "drop")
    assert (found.padded > 0) <= (tail != "drop")


def test_data_shuffled_by_pack_has_full_expected_quality_and_a_high_measured_one(shards):
    found = forecast(shards, batch_size=32)
    assert found.quality == 1.0
    assert found.measured_quality > 0.8
    assert found.sufficient_window is None


def test_data_shuffled_by_pack_has_a_high_measured_quality_without_a_shuffle(shards):
    found = forecast(shards, batch_size=32, shuffle=False)
    assert found.window_samples == 0
    assert found.measured_quality > 0.6  # 12 batches give it to a sixth


def without_files(samples_per_shard, shards, sample_bytes=110_000):
    """Return a dataset that has a manifest but no shards."""
    entries = tuple(
        ShardEntry(f"{n}.tar", samples_per_shard, samples_per_shard * sample_bytes, "0" * 32, f"{n}.parquet", 1, "")
        for n in range(shards)
    )
    return ShardSet(Manifest(entries, {"jpg": samples_per_shard * shards}), [], name="without files")


@pytest.fixture(scope="module")
def lanes_or_one():
    """Return the forecasts of two machines with a lane for each and of four processes on one machine."""
    large = without_files(9_000, 40)
    return tuple(forecast(large, batch_size=64, world_size=4, ranks_per_node=ranks) for ranks in (2, None))


def test_machines_with_their_own_lanes_read_disjoint_parts(lanes_or_one):
    two, one = lanes_or_one
    assert two.lanes == 2
    assert two.read_twice == 0
    assert two.read_bytes_per_node == pytest.approx(two.bytes / 2, rel=0.01)
    assert (one.lanes, one.read_twice, one.read_bytes_per_node) == (1, 0.0, one.bytes)


def test_machines_with_their_own_lanes_fetch_nothing_in_later_epochs_if_their_cache_holds_their_part(lanes_or_one):
    two, one = lanes_or_one
    assert two.hit_rate_later > 0.999
    text = format_forecast(two)
    assert "about 9,6" in text
    assert "and 100% cache hits, with a cache of 19.8 GB" in text
    assert (one.read_bytes_per_node, one.hit_rate_later) == (one.bytes, 1)


def test_what_is_fetched_in_later_epochs_is_not_counted_for_a_large_dataset():
    two = forecast(without_files(9_000, 500), batch_size=64, world_size=2, ranks_per_node=1)
    assert (two.requests_later_per_node, two.hit_rate_later) == (None, None)
    assert re.search(r"about [\d,]+ requests per machine in the first epoch$", format_forecast(two))


@given(
    samples=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    sample_bytes=st.sampled_from([100_000, 400_000, 1_500_000, 3_000_000]),
    nodes=st.integers(1, 3),
    ranks=st.integers(1, 3),
    batch_size=st.integers(1, 4),
    shuffle=st.sampled_from([False, True, 7]),
    tail=st.sampled_from(["drop", "pad"]),
)
def test_requests_and_hits_are_those_of_a_cache_that_is_simulated_step_by_step(
    samples, sample_bytes, nodes, ranks, batch_size, shuffle, tail
):
    entries = tuple(
        ShardEntry(f"{n}.tar", count, count * sample_bytes, "0" * 32, f"{n}.parquet", 1, "")
        for n, count in enumerate(samples)
    )
    shards = ShardSet(Manifest(entries, {"jpg": sum(samples)}), [], name="without files")
    world = nodes * ranks
    assume(batch_size * world <= sum(samples))
    options = {"batch_size": batch_size, "world_size": world, "ranks_per_node": ranks, "shuffle": shuffle, "tail": tail}
    found = forecast(shards, **options)
    order = order_of(shards, None, seed=0, window=found.window_samples, block=found.block_samples, lanes=nodes)
    needed = [[set(), set()] for _ in range(nodes)]  # blocks of each machine in two epochs
    for epoch in range(2):
        for rank in range(world):
            plan = EpochPlan(order.at(epoch), Cursor(epoch), World(rank, world), batch_size, tail)
            for number in range(len(plan)):
                ids = plan.step(number).ids
                needed[rank // ranks][epoch].update(order.block_of(ids)[1].tolist())
    first = np.mean([len(epochs[0]) for epochs in needed])
    hits = np.mean([len(epochs[1] & epochs[0]) / len(epochs[1]) for epochs in needed])
    # A sample that is dropped leaves out one block at most, and samples of the first batch are one batch at most.
    surplus = found.requests_per_node - 1 - first - min(len(samples), first)
    assert -1 <= surplus <= batch_size * ranks + 2 * found.dropped + 1
    assert found.hit_rate_later == pytest.approx(hits, abs=1e-9 + found.dropped / first)
    assert 0 <= found.requests_later_per_node <= found.requests_per_node


def tiny_images(folder, classes, per_class):
    """Write a folder of distinct images of 8 x 8 pixels."""
    random = np.random.default_rng(0)
    for number in range(classes):
        (folder / f"{number:02}").mkdir(parents=True)
        for image in range(per_class):
            pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02}" / f"{image:04}.png")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return two datasets of small images: packed, and written by webdataset in the order of classes."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_images(folder / "images", 20, 40)
    wt.pack(folder / "images", folder / "packed", shard_bytes="200kB", workers=1)
    (folder / "sorted").mkdir()
    with webdataset.ShardWriter(f"{folder}/sorted/%06d.tar", maxcount=100, verbose=0) as writer:
        for path in sorted((folder / "images").glob("*/*.png")):
            sample = {"__key__": f"{path.parent.name}-{path.stem}", "png": path.read_bytes()}
            writer.write({**sample, "cls": int(path.parent.name)})
    wt.index_shards([f"{folder}/sorted/{{000000..000007}}.tar"])
    return folder


def test_a_choice_of_samples_needs_only_the_blocks_that_contain_them(tiny):
    stored = open_shards(tiny / "sorted")  # the third class is in the first two of eight shards, one block each
    found = forecast(stored, batch_size=4, choice=Choice(where="label == 2"))
    everything = forecast(stored, batch_size=4)
    assert everything.read_bytes_per_node == stored.manifest.bytes
    assert found.read_bytes_per_node == pytest.approx(stored.manifest.bytes * 2 / 8, rel=0.01)
    assert everything.requests_per_node - found.requests_per_node == 12  # a block and an index of six shards


def class_variance(dataset, *, batch_size, epochs):
    """Return the variance of class counts of the loader's batches, divided by that of a full shuffle."""
    counts = []
    options = {"batch_size": batch_size, "fields": ("label",), "shuffle": True, "num_workers": 0}
    with wt.make_loader(dataset, **options) as loader:
        for _ in range(epochs):
            counts += [np.bincount(batch.label, minlength=20) for batch in loader]
    full = batch_size * 0.05 * 0.95 * (800 - batch_size) / 799
    return np.var(counts, axis=0).mean() / full


@pytest.mark.parametrize(("stored", "least"), [("packed", 0.95), ("sorted", 0.9)])
def test_the_default_shuffle_of_the_loader_reaches_the_quality_of_the_forecast(tiny, stored, least):
    found = forecast(open_shards(tiny / stored), batch_size=50)
    assert found.measured_quality >= least
    assert found.sufficient_window is None
    assert 1 / class_variance(tiny / stored, batch_size=50, epochs=8) >= least


def test_if_the_default_window_is_too_small_the_forecast_has_one_that_is_large_enough():
    large = without_files(8_000, 50)
    assert forecast(large, batch_size=256).sufficient_window is None
    found = forecast(large, batch_size=256, world_size=4)
    assert found.quality < 0.75
    enough = forecast(large, batch_size=256, world_size=4, shuffle=found.sufficient_window)
    assert enough.quality == pytest.approx(0.9, abs=0.001)
    assert enough.sufficient_window is None
    order = order_of(large, None, seed=0, window=found.sufficient_window, block=found.block_samples, lanes=1)
    by_class = np.arange(400_000) * 1000 // 400_000
    assert measured_quality(order, by_class, batch=1024) > 0.85  # less at the edges of the epoch


def test_a_forecast_for_a_choice_of_samples_has_the_factors_of_the_classes(shards):
    found = forecast(shards, batch_size=50, choice=Choice(where="label != 'cat'", subset=0.5, class_weights="balanced"))
    assert found.samples == 400
    assert found.epoch_samples == 175
    assert found.steps == 3
    assert found.dropped == 25
    assert found.class_factors["cat"] == 0
    assert sum(found.class_factors.values()) == pytest.approx(7, abs=0.5)
    assert "epoch    175 samples chosen, a sample of " in format_forecast(found)


def test_a_forecast_can_be_converted_to_json(shards):
    assert json.loads(json.dumps(forecast(shards, batch_size=8).to_dict()))["steps"] == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 500}, "a step has 500 samples, but an epoch has only 400"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 8, "world_size": 3, "ranks_per_node": 2}, "world_size must be a multiple of ranks_per_node"),
    ],
)
def test_invalid_options_are_refused(shards, options, message):
    with pytest.raises(OptionError, match=message):
        forecast(shards, **options)


def test_ranks_on_two_machines_deliver_all_samples_in_an_order_that_resumes_on_one_machine(packed, monkeypatch):
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
        del state["xxh3"]  # the state is edited
        loader.load_state_dict({**state, "epoch": 0, "position": 0})
        for number, batch in enumerate(loader):
            part = slice(20 * number, 20 * number + 20)
            assert sorted(batch.key) == sorted(keys[0][part] + keys[1][part])
    assert np.size(keys) == 400
