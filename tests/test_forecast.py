"""What `wds-tools plan` says agrees with what the loader then does."""

import json

import numpy as np
import pytest

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.forecast import forecast
from wds_tools.manifest import Manifest, ShardEntry
from wds_tools.shardset import ShardSet, open_shards


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
