"""`Schedule`: views by epoch, with the same workers, in every form of ``fields=``, and after a resume."""

import json
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.errors import OptionError

SMALL, LARGE = wt.RandomResizedCrop(24, flip=True), wt.RandomResizedCrop((56, 48), scale=(0.5, 1), flip=True)
SCHEDULE = wt.Schedule({2: LARGE, 0: SMALL, 3: wt.CenterCrop(32, resize=40)})
VIEWS = [SMALL, SMALL, LARGE, wt.CenterCrop(32, resize=40)]


def make(dataset, view, **options):
    options = {"batch_size": 16, "shuffle": True, "seed": 5, **options}
    return wt.make_loader(dataset, view=view, **options)


def batches_of(loader, epoch):
    loader.set_epoch(epoch)
    return [(images.clone(), labels) for images, labels in loader]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for value, wanted in zip(one, other, strict=True):
            assert value.shape == wanted.shape
            assert (value == wanted).all()


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "forkserver"}]
)
@pytest.mark.torture_except("options1")
def test_each_epoch_has_its_view_and_the_workers_stay(few, options):
    with make(few, SCHEDULE, **options) as loader:
        found = [[(images.clone(), labels) for images, labels in loader] for _ in range(4)]  # no set_epoch
        assert loader.num_workers == options["num_workers"]
    for epoch, view in enumerate(VIEWS):
        with make(few, view, num_workers=0) as plain:
            assert_equal(found[epoch], batches_of(plain, epoch))


def test_a_resumed_run_gets_the_same_pixels(few):
    with make(few, SCHEDULE, num_workers=0, batch_size=8) as loader:
        expected = [(images.clone(), labels) for _ in range(3) for images, labels in loader]
    taken, state = [], None
    while len(taken) < len(expected):
        with make(few, SCHEDULE, num_workers=1, batch_size=8) as loader:
            if state:
                loader.load_state_dict(state)
            taken += [(images.clone(), labels) for images, labels in islice(loader, 4)]
            state = json.loads(json.dumps(loader.state_dict()))
    assert_equal(taken, expected)


def test_masks_crops_and_functions_follow_the_schedule(scenes):
    schedule = wt.Schedule({0: wt.RandomResizedCrop(20, flip=True), 1: wt.RandomResizedCrop(44, flip=True)})

    def fields(view):
        return {
            "image": wt.Image("jpg", view=[view, wt.Resize((16, 16)), view]),
            "mask": wt.Mask("mask.png", like="image"),
            "boxes": wt.Boxes("json", path="objects.bbox", like="image"),
            "whole": wt.Image("jpg", view=view, transform=lambda image: image.float() / 2),
        }

    with make(scenes, None, fields=fields(schedule), num_workers=1, batch_size=10) as loader:
        found = [list(loader), list(loader)]
    for epoch, size in enumerate((20, 44)):
        with make(scenes, None, fields=fields(schedule.at(epoch)), num_workers=0, batch_size=10) as loader:
            loader.set_epoch(epoch)
            for batch, expected in zip(found[epoch], loader, strict=True):
                assert batch.image[0].shape == (10, 3, size, size)
                for name in ("image", "mask", "boxes"):
                    for value, wanted in zip(getattr(batch, name), getattr(expected, name), strict=True):
                        assert all((one == other).all() for one, other in zip(value, wanted, strict=True))
                assert torch.equal(batch.whole, expected.whole)


def test_a_view_without_a_fixed_size_can_be_part_of_a_schedule(few):
    schedule = wt.Schedule({0: wt.Resize(20), 1: wt.RandomResizedCrop(24)})
    with pytest.warns(UserWarning, match="list of tensors"), make(few, schedule, num_workers=1) as loader:
        first, second = [list(loader), list(loader)]
    assert any(isinstance(images, list) for images, _ in first)
    assert all(images.shape == (16, 3, 24, 24) for images, _ in second)


@pytest.mark.torture
def test_a_streaming_dataset_follows_the_schedule(few):
    dataset = wt.StreamingDataset(few, view=SCHEDULE, batch_size=8, shuffle=True, seed=5)
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    with make(few, SCHEDULE, num_workers=0, batch_size=8) as expected:
        for _ in range(4):
            assert_equal([(images, labels) for images, labels in loader], [tuple(batch) for batch in expected])


def test_explain_shows_the_view_of_the_epoch(few):
    with make(few, SCHEDULE, num_workers=0) as loader:
        batches = [batch for _ in range(4) for batch in loader]
        state = loader.state_dict()
        for step, (images, _) in enumerate(batches):
            found = loader.explain(step)
            assert found.samples[3].crops["image"][0].size == tuple(images.shape[2:])
            assert (found.images("image", 3)[0] == images[3]).all()
    assert json.loads(json.dumps(state["views"])) == state["views"]
    assert state["views"]["image"]["views"][0]["views"]["3"] == {"kind": "CenterCrop", "size": 32, "resize": 40}


@pytest.mark.parametrize(
    "views", [{}, {1: SMALL}, {0: None}, {0: SMALL, -1: LARGE}, {0: SMALL, "3": LARGE}, [SMALL], {0: SCHEDULE}]
)
def test_an_invalid_schedule_is_an_error(views):
    with pytest.raises(OptionError, match=r"allowed is a mapping from epochs to views, with epoch 0"):
        wt.Schedule(views)


def test_every_view_of_a_schedule_is_checked_against_the_images(few):
    with pytest.raises(OptionError, match=r"CenterCrop\(size=2000, resize=None\) needs images of at least 2000x2000"):
        make(few, wt.Schedule({0: SMALL, 7: wt.CenterCrop(2000)}))
