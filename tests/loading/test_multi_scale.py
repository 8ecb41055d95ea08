"""`MultiScale`: a view for each batch, the same on all ranks, and again after a resume."""

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.errors import OptionError

SIZES = [32, 40, 48, 56]
VIEW = wt.MultiScale([wt.Mosaic(side) for side in SIZES])


def loader_of(dataset, view=VIEW, **options):
    fields = {"image": wt.Image(view=view), "mask": wt.Mask("mask.png", like="image"), "key": wt.Key()}
    return wt.make_loader(dataset, **{"batch_size": 4, "num_workers": 0, "shuffle": True, "fields": fields, **options})


def batches(loader, steps=None):
    return [(batch.image.clone(), batch.mask.clone(), batch.key) for batch in islice(loader, steps)]


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(
        a[0].shape == b[0].shape and torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and a[2] == b[2]
        for a, b in zip(ours, theirs, strict=True)
    )


def test_batches_have_several_sizes_again_with_workers_and_after_a_resume(scenes):
    with loader_of(scenes) as loader:
        whole = batches(loader)
        more = batches(loader)
        assert loader.epoch_proof().ok
    sides = [image.shape[-1] for image, _, _ in whole + more]
    assert set(sides) <= set(SIZES)
    assert len(set(sides)) >= 3
    assert all(image.shape[-2:] == mask.shape[-2:] for image, mask, _ in whole)
    assert sides[:10] != sides[10:]
    with loader_of(scenes, num_workers=1) as loader:
        assert equal(batches(loader, 4), whole[:4])
        state = loader.state_dict()
    with loader_of(scenes) as loader:
        loader.load_state_dict(state)
        assert equal(batches(loader), whole[4:])


@pytest.mark.torture
def test_all_ranks_have_the_same_size_in_each_step(scenes):
    with loader_of(scenes) as loader:
        sides = [image.shape[-1] for image, _, _ in batches(loader)]
    for rank in range(2):
        with loader_of(scenes, batch_size=2, rank=rank, world_size=2) as loader:
            assert [image.shape[-1] for image, _, _ in batches(loader)] == sides


def test_the_explanation_has_the_size_of_the_step(scenes):
    with loader_of(scenes) as loader:
        for step, (images, _, _) in enumerate(batches(loader, 4)):
            explained = loader.explain(step)
            assert torch.equal(explained.images("image", 1)[0], images[1])
        state = loader.state_dict()
    with loader_of(scenes) as other:
        other.load_state_dict(state)
        assert str(other.explain(3)) == str(explained)


def test_a_streaming_dataset_has_the_sizes_of_the_loader(scenes):
    fields = {"image": wt.Image(view=VIEW), "mask": wt.Mask("mask.png", like="image"), "key": wt.Key()}
    dataset = wt.StreamingDataset(scenes, batch_size=4, shuffle=True, fields=fields)
    with loader_of(scenes) as loader:
        assert equal(batches(DataLoader(dataset, batch_size=4, collate_fn=dataset.collate_fn)), batches(loader))


def test_a_dataloader_made_from_the_loader_has_its_sizes_and_single_samples_the_first(scenes):
    with loader_of(scenes) as loader:
        whole = batches(loader)
        loader.set_epoch(0)
        parts = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn}
        assert equal(batches(DataLoader(loader.dataset, **parts)), whole)
        assert loader.dataset[5].image.shape == (3, SIZES[0], SIZES[0])


@pytest.mark.torture
def test_a_schedule_may_have_several_scales(scenes):
    view = wt.Schedule({0: VIEW, 1: wt.Letterbox(64)})
    with loader_of(scenes, view, num_workers=1) as loader:
        first, last = batches(loader), batches(loader)
    assert len({image.shape for image, _, _ in first}) > 1
    assert {image.shape for image, _, _ in last} == {(4, 3, 64, 64)}


@pytest.mark.parametrize("views", [[], 5, [64], [wt.Mosaic(64), wt.Letterbox(64)], [wt.Schedule({0: wt.Resize(8)})]])
def test_invalid_views_are_errors(views):
    with pytest.raises(OptionError, match="allowed is"):
        wt.MultiScale(views)


def test_different_numbers_of_views_are_errors(scenes):
    two = wt.MultiScale([wt.Letterbox(8), wt.Letterbox(9)])
    with pytest.raises(OptionError, match="same number"):
        wt.Schedule({0: two, 1: wt.MultiScale([wt.Letterbox(8)])})
    with pytest.raises(OptionError, match="MultiScale"):
        loader_of(scenes, [two, wt.MultiScale([wt.Letterbox(8)] * 3)])
