"""Tasks: several workers load parts of a batch, and the batch is the same as without parts."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.loading.pipeline.autoscale import MIN_PART_SAMPLES, parts_per_batch
from wds_tools.loading.pipeline.tasks import split_into_tasks
from wds_tools.order.planner import Step
from wds_tools.order.tally import Tally

FIELDS = ("image", "label", "__key__", "json")


def step_of(samples):
    numbers = np.arange(samples)
    return Step(0, numbers * 7, numbers * 3, np.ones(samples, np.bool_), Tally())


@given(samples=st.integers(1, 600), workers=st.integers(0, 40))
def test_tasks_have_each_sample_once_in_order_and_at_least_the_minimum_size(samples, workers):
    parts = parts_per_batch(samples, workers)
    step = step_of(samples)
    tasks = split_into_tasks(step, step.ids[:, None], slot=3, layouts=None, epoch=5, parts=parts)
    assert parts == len(tasks) <= max(1, workers)
    assert np.array_equal(np.concatenate([task.ids for task in tasks]), step.ids)
    assert np.array_equal(np.concatenate([task.positions for task in tasks]), step.positions)
    assert [task.start for task in tasks] == [0, *np.cumsum([len(task.ids) for task in tasks]).tolist()[:-1]]
    assert {(task.slot, task.epoch) for task in tasks} == {(3, 5)}
    assert parts == 1 or min(len(task.ids) for task in tasks) >= MIN_PART_SAMPLES


def with_pid(image):
    return torch.cat([torch.tensor([os.getpid()]), image.flatten()[:8].long()])


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.torture_except("2")
def test_all_workers_load_parts_of_a_large_batch(packed, num_workers):
    options = {
        "batch_size": 3 * MIN_PART_SAMPLES,
        "view": wt.RandomResizedCrop(32),
        "shuffle": True,
        "transform": with_pid,
    }
    with wt.make_loader(packed, num_workers=num_workers, **options) as loader:
        images = next(iter(loader)).image
        assert len(images[:, 0].unique()) == num_workers
    with wt.make_loader(packed, num_workers=0, **options) as loader:
        assert torch.equal(next(iter(loader)).image[:, 1:], images[:, 1:])


@pytest.mark.filterwarnings("ignore:images will come as a list")
@pytest.mark.parametrize("view", [None, wt.CenterCrop(32, resize=40)])
@pytest.mark.torture_except("view1")
def test_all_fields_are_the_same_with_and_without_parts(packed, view):
    def first(num_workers):
        with wt.make_loader(
            packed, batch_size=2 * MIN_PART_SAMPLES, num_workers=num_workers, view=view, shuffle=True, fields=FIELDS
        ) as loader:
            return next(iter(loader))

    in_parts, whole = first(2), first(0)
    assert in_parts.key == whole.key
    assert in_parts.json == whole.json
    assert torch.equal(in_parts.label, whole.label)
    assert all(torch.equal(a, b) for a, b in zip(in_parts.image, whole.image, strict=True))
