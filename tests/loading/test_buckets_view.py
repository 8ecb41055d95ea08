"""`Buckets`: batches of one size each, in every form of ``fields=``, resumable, and the same pixels on any topology."""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import functional

import wds_tools as wt
from wds_tools.errors import OptionError, ResumeError
from wds_tools.inspection.saved_step import SavedStep
from wds_tools.options import RemoteOptions
from wds_tools.reading.select import Choice

SIZES = [(48, 48), (40, 56), (56, 40)]
VIEW = wt.Buckets(SIZES, flip=True)


def make(dataset, **options):
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 0, **options}
    if "fields" not in options:
        options = {"view": VIEW, "fields": ("image", "__key__"), **options}
    return wt.make_loader(dataset, **options)


def copied(loader):
    return [(images.clone(), keys) for images, keys in loader]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for (images, keys), (wanted, wanted_keys) in zip(found, expected, strict=True):
        assert keys == wanted_keys
        assert images.shape == wanted.shape
        assert (images == wanted).all()


def test_each_batch_has_one_of_the_sizes_and_each_sample_comes_once(packed):
    with make(packed, tail="mask") as loader:
        assert loader.samples == 400
        keys, sizes = [], Counter()
        for images, batch_keys, valid in loader:
            sizes[tuple(images.shape[2:])] += 1
            keys += [key for key, ok in zip(batch_keys, valid.tolist(), strict=True) if ok]
        assert loader.epoch_proof().ok
        assert set(sizes) == set(SIZES)
        assert len(set(keys)) == len(keys) == 400
        assert sum(sizes.values()) == len(loader) <= 400 // 8 + len(SIZES)
    with make(packed) as loader:
        dropped = [list(batch.key) for batch in loader]
        assert str(loader.epoch_proof()).endswith("each once")
        assert 400 - 8 * len(dropped) <= len(SIZES) * 7


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "forkserver"}])
@pytest.mark.torture_except("options1")
def test_batches_do_not_depend_on_the_workers(few, options):
    with make(few, batch_size=4, **options) as loader, make(few, batch_size=4) as plain:
        for _ in range(2):
            assert_equal(copied(loader), copied(plain))


def test_pixels_are_those_of_the_largest_centred_region_of_that_shape(packed):
    view = wt.Buckets(SIZES)
    with make(packed, view=view) as loader:
        batch = next(iter(loader))
        samples = loader.explain(0).samples
    height, width = batch.image.shape[2:]
    for sample, got in zip(samples, batch.image, strict=True):
        with make(packed, view=None, batch_size=1, subset=[sample.id]) as whole:
            (stored,) = next(iter(whole)).image
        ratio = width / height
        w = min(stored.shape[2], round(stored.shape[1] * ratio))
        h = min(stored.shape[1], round(stored.shape[2] / ratio))
        top, left = (stored.shape[1] - h) // 2, (stored.shape[2] - w) // 2
        expected = functional.resized_crop(stored, top, left, h, w, [height, width], antialias=True)
        assert (expected.int() - got.int()).abs().float().mean() < 3
        nearest = min(SIZES, key=lambda size: abs(np.log(stored.shape[2] / stored.shape[1] / (size[1] / size[0]))))
        assert nearest == (height, width)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1), st.sampled_from(["center", "random"])
)
def test_regions_lie_in_the_image_and_have_the_shape_of_the_bucket(images, crop):
    view = wt.Buckets([(64, 64), (32, 96), (96, 32)], crop=crop, flip=0.5)
    width, height = np.array(images, np.int64).T
    regions = view.regions(width, height, np.random.default_rng(0).random((len(images), 3)))
    left, top, w, h = regions.box.T
    assert ((left >= 0) & (top >= 0) & (w >= 1) & (h >= 1) & (left + w <= width) & (top + h <= height)).all()
    assert ((w == width) | (h == height)).all()
    assert {tuple(size) for size in regions.size.tolist()} <= set(view.sizes)


def by_key(batches):
    """Return the images of valid rows by key; no key comes twice."""
    rows = [
        (key, image.clone())
        for images, keys, valid in batches
        for key, image, ok in zip(keys, images, valid, strict=True)
        if ok
    ]
    assert len({key for key, _ in rows}) == len(rows)
    return dict(rows)


def test_a_run_resumes_on_other_ranks_with_the_same_pixels(few):
    options = {"tail": "mask", "lanes": 2, "batch_size": 4}
    with make(few, **options) as loader:
        everything = by_key(loader)
    batches, state = [], None
    for world, steps in ((2, 1), (3, 1), (1, 2), (4, None)):
        states = []
        for rank in range(world):
            with make(few, rank=rank, world_size=world, **options) as loader:
                if state:
                    loader.load_state_dict(state)
                batches += [(images.clone(), keys, valid) for images, keys, valid in islice(loader, steps)]
                states.append(json.loads(json.dumps(loader.state_dict())))
        assert all(one == states[0] for one in states)
        state = states[0]
    assert state["epoch"] == 1
    found = by_key(batches)
    assert set(found) == set(everything)
    assert all((found[key] == everything[key]).all() for key in found)


def test_a_resume_with_a_batch_size_that_would_mix_sizes_is_refused(packed):
    with make(packed) as loader:
        list(islice(loader, 3))
        state = loader.state_dict()
    with make(packed, batch_size=4) as loader:
        loader.load_state_dict(state)
        assert all(images.ndim == 4 for images, _ in islice(loader, 6))
    with make(packed, batch_size=6) as loader:
        loader.load_state_dict(state)
        with pytest.raises(OptionError, match=r"batches of 8, at position 24, so batches of 6 would mix sizes"):
            next(iter(loader))
    with make(packed, view=wt.Buckets(SIZES[:2])) as loader, pytest.raises(ResumeError, match="buckets"):
        loader.load_state_dict(state)


def test_a_batch_after_a_ban_has_one_size_and_a_batch_size_that_would_mix_sizes_is_refused(packed):
    """A ban within a group of the first batch size: groups begin at its position, and no longer at multiples of 8."""
    with make(packed, batch_size=8) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for ban in (None, [399]):
        with make(packed, batch_size=4, ban=ban) as loader:
            loader.load_state_dict(state)
            next(iter(loader))
            state = loader.state_dict()
    assert (state["position"], state["bans"][0]["position"]) == (16, 12)
    with make(packed, batch_size=8) as loader:
        loader.load_state_dict(state)
        with pytest.raises(OptionError, match="at position 16, so batches of 8 would mix sizes: use batch_size=4, or"):
            next(iter(loader))
    with make(packed, batch_size=4) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        small = [tuple(images.shape[2:]) for images, _ in islice(batches, 12)]
    with make(packed, batch_size=8) as loader:
        loader.load_state_dict(state)
        large = [tuple(images.shape[2:]) for images, _ in islice(loader, 6)]
    assert [size for size in large for _ in range(2)] == small


def test_masks_boxes_and_functions_have_the_size_of_the_batch(scenes):
    fields = {
        "photo": wt.Image("jpg", view=wt.Buckets(SIZES, crop="random", flip=True)),
        "mask": wt.Mask("mask.png", like="photo"),
        "boxes": wt.Boxes("json", path="objects.bbox", like="photo"),
        "twin": wt.Image("right.jpg", like="photo", transform=lambda image: image.float()),
        "small": wt.Image("jpg", view=wt.Schedule({0: wt.CenterCrop(16, resize=20), 1: wt.CenterCrop(24, resize=30)})),
    }
    with (
        make(scenes, fields=fields, num_workers=1, batch_size=4) as loader,
        make(scenes, fields=fields, batch_size=4) as plain,
    ):
        for epoch in range(2):
            for batch, expected in zip(loader, plain, strict=True):
                size = tuple(batch.photo.shape[2:])
                assert size in SIZES
                assert batch.mask.shape == (4, *size)
                assert batch.twin.shape == (4, 3, *size)
                assert batch.small.shape[2] == (16, 24)[epoch]
                for name in ("photo", "mask", "twin", "small"):
                    assert torch.equal(getattr(batch, name), getattr(expected, name))
                assert all((boxes[:, 2] <= size[1]).all() for boxes in batch.boxes)


def test_a_streaming_dataset_collate_fn_and_the_sampler_have_the_same_batches(few):
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "fields": ("image", "__key__")}
    dataset = wt.StreamingDataset(few, view=VIEW, **options)
    with make(few, batch_size=4) as loader, make(few, batch_size=4, collate_fn=keys_of) as collated:
        expected = copied(loader)
        assert list(collated) == [keys for _, keys in expected]
        loader.set_epoch(0)
        sampled = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
        assert_equal(copied(sampled), expected)
    batches = DataLoader(dataset, batch_size=4, num_workers=1)
    assert_equal([(images, list(keys)) for images, keys in batches], expected)


def keys_of(samples):
    return [sample.key for sample in samples]


def test_a_substitute_has_the_size_of_the_batch(few_copy):
    for shard in sorted(few_copy.glob("*.tar"))[:3]:
        data = bytearray(shard.read_bytes())
        for offset in range(3000, len(data), 40_000):
            data[offset] ^= 1
        shard.write_bytes(data)
    with make(few_copy, batch_size=4, on_error="replace", max_errors=30, num_workers=1) as loader:
        assert all(tuple(images.shape[2:]) in SIZES for images, _ in loader)
        assert len(loader.errors) > 5
        assert loader.epoch_proof().ok


def test_a_banned_sample_is_left_out_and_earlier_batches_stay(packed):
    with make(packed) as loader:
        first = [keys for _, keys in islice(loader, 6)]
        state = loader.state_dict()
        later = [keys for _, keys in loader]
    ban = later[0][:3] + later[7][:2] + first[2]
    with make(packed, ban=ban, tail="mask") as loader:
        loader.load_state_dict(state)
        rest = [key for batch in loader for key, ok in zip(batch.key, batch.valid.tolist(), strict=True) if ok]
        assert loader.epoch_proof().ok
        assert loader.samples == 400 - len(ban)
    head = [key for keys in first for key in keys]
    assert len(rest) == len(set(rest)) == 400 - len(head) - 5
    assert not set(rest) & {*head, *ban}


def test_steps_are_explained_from_the_state(packed, tmp_path):
    with make(packed, rank=1, world_size=2, view=wt.Buckets(SIZES, crop="random", flip=True)) as loader:
        batches = copied(islice(loader, 7))
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        far = loader.explain(1000)
    for step in (0, 6):
        found = SavedStep(file=tmp_path / "state.json", step=step, rank=1).explain(
            str(packed), Choice(), RemoteOptions.of()
        )
        assert [one.key for one in found.samples] == batches[step][1]
        assert all((found.images("image", i)[0] == batches[step][0][i]).all() for i in range(8))
    again = SavedStep(file=tmp_path / "state.json", step=1000).explain(str(packed), Choice(), RemoteOptions.of())
    assert (again.ids == far.ids).all()


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": []},
        {"sizes": [(3, 0)]},
        {"sizes": "224"},
        {"sizes": [(8, 8), (8, 8)]},
        {"sizes": [(8, 8)], "crop": "left"},
        {"sizes": [(8, 8)], "flip": 2},
    ],
)
def test_invalid_buckets_are_an_error(options):
    with pytest.raises(OptionError, match=r"allowed|twice"):
        wt.Buckets(**options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": wt.Image(view=[VIEW, wt.Resize((8, 8))])}, "cannot be one of several views"),
        ({"image": wt.Image("right.jpg", view=VIEW)}, "they are for the image of a sample"),
        ({"a": wt.Image(view=VIEW), "b": wt.Image(view=wt.Buckets([(8, 8)]))}, "several different Buckets"),
    ],
)
def test_buckets_that_the_index_cannot_decide_are_an_error(scenes, fields, message):
    with pytest.raises(OptionError, match=message):
        make(scenes, fields=fields)


def test_batches_that_no_size_can_fill_are_an_error(packed):
    with pytest.raises(OptionError, match=r"batches of one size of Buckets per step, but the dataset has"):
        make(packed, batch_size=250, rank=0, world_size=2)
