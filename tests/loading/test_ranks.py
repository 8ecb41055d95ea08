"""The number of machines, which determines the default number of lanes."""

import logging

import pytest

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.loading import ranks
from wds_tools.loading.ranks import default_lanes
from wds_tools.order.planner import World

ENVIRONMENT = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "MASTER_ADDR", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")


@pytest.fixture(autouse=True)
def environment(monkeypatch, caplog):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "_reported_worlds", set())
    caplog.set_level(logging.INFO, logger="wds_tools")


@pytest.mark.parametrize(
    ("world", "local", "processes", "lanes"),
    [(8, "8", "8", 1), (8, "2", "8", 4), (8, "2", "16", 8), (6, "2", "8", 2), (8, None, None, 1), (1, "1", "1", 1)],
)
def test_the_default_number_of_lanes_is_that_of_the_machines_of_torchrun(world, local, processes, lanes, monkeypatch):
    for name, value in (("LOCAL_WORLD_SIZE", local), ("WORLD_SIZE", processes)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert default_lanes(World(0, world)) == lanes


def messages(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records if "LOCAL_WORLD_SIZE" in record.msg]


def load(packed, *, rank=0, world_size=4, **options):
    options = {"batch_size": 10, "fields": ("__key__",), "num_workers": 0, **options}
    with wt.make_loader(packed, rank=rank, world_size=world_size, **options) as loader:
        next(iter(loader))
        return loader.state_dict()["lanes"]


def test_without_local_world_size_the_assumption_of_one_machine_is_logged_once(packed, caplog):
    assert load(packed) == load(packed) == 1
    ((level, message),) = messages(caplog)
    assert level == "INFO"
    assert "all 4 ranks are assumed to be on one machine" in message
    assert "LOCAL_WORLD_SIZE" in message
    assert "lanes=" in message


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("MASTER_ADDR", "10.0.0.7", "WARNING"),
        ("SLURM_JOB_NUM_NODES", "2", "WARNING"),
        ("SLURM_NNODES", "1", "INFO"),
        ("MASTER_ADDR", "127.0.0.1", "INFO"),
    ],
)
def test_the_assumption_is_a_warning_if_the_environment_indicates_several_machines(
    packed, caplog, monkeypatch, name, value, level
):
    monkeypatch.setenv(name, value)
    load(packed)
    assert [found for found, _ in messages(caplog)] == [level]


def test_a_streaming_dataset_logs_the_assumption_too(packed, caplog):
    wt.StreamingDataset(packed, batch_size=10, fields=("__key__",), rank=0, world_size=2)
    assert len(messages(caplog)) == 1


def test_nothing_is_logged_if_the_lanes_are_known_or_there_is_one_rank(packed, caplog, monkeypatch):
    load(packed, lanes=1)
    load(packed, rank=1)
    load(packed, world_size=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    load(packed)
    assert messages(caplog) == []


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_a_variable_of_torchrun_that_is_not_a_number_is_an_error_and_an_empty_one_is_ignored(
    packed, monkeypatch, variable
):
    options = {"batch_size": 10, "num_workers": "auto", "view": wt.CenterCrop(24)}
    monkeypatch.setenv(variable, "two")
    with pytest.raises(OptionError, match=f"{variable}='two' is not a number"):
        wt.make_loader(packed, **options)
    monkeypatch.setenv(variable, "")
    wt.make_loader(packed, **options).close()
