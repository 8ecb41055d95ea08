"""Steps of `batch_transform`: the pixels of torchvision, with random numbers that belong to the samples."""

from contextlib import suppress
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launches import Launches
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.loading.samples.augment import beta
from wds_tools.loading.samples.batch_steps import BatchSteps, SampleKeys

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VIEW = wt.CenterCrop(32, resize=40)
OPTIONS = {
    "view": VIEW,
    "num_workers": 0,
    "shuffle": True,
    "fields": ("image", "label", "__key__"),
    "subset": list(range(0, 400, 5)),
}
STEPS = [
    wt.RandomHorizontalFlip(),
    wt.ColorJitter(0.4, 0.4, 0.4, 0.1),
    wt.RandAugment(2, 9),
    wt.Normalize(MEAN, STD),
]


def keys_of(count, epoch=0):
    return SampleKeys(0, epoch, np.arange(count) * 7 + 3)


@pytest.fixture(scope="module")
def images(packed):
    with wt.make_loader(packed, batch_size=24, **OPTIONS) as loader:
        return next(iter(loader)).image.clone()


def images_by_key(packed, steps, *, batch_size=16, epochs=1, **options):
    with wt.make_loader(packed, batch_size=batch_size, batch_transform=steps, **OPTIONS, **options) as loader:
        batches = [batch for _ in range(epochs) for batch in loader]
    return [dict(zip(batch.key, batch.image, strict=True)) for batch in batches]


def union(dictionaries):
    return {key: image for dictionary in dictionaries for key, image in dictionary.items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, image in expected.items():
        assert torch.equal(found[key], image), key


@pytest.mark.parametrize("steps", STEPS[:3], ids=repr)
@pytest.mark.torture_except("RandAugment(2, 9)")
def test_a_sample_gets_the_same_augmentation_on_any_number_of_ranks(packed, steps):
    one = union(images_by_key(packed, steps, tail="pad", batch_size=20))
    assert any(not torch.equal(one[key], image) for key, image in union(images_by_key(packed, [], tail="pad")).items())
    ranks = [images_by_key(packed, steps, tail="pad", batch_size=10, rank=rank, world_size=2) for rank in range(2)]
    found = union(ranks[0]) | union(ranks[1])
    assert_equal({key: found[key] for key in one}, one)


def test_epochs_have_different_augmentations_and_a_resumed_run_has_the_same(packed):
    whole = images_by_key(packed, STEPS, epochs=2)
    first, second = (union(whole[: len(whole) // 2]), union(whole[len(whole) // 2 :]))
    common = first.keys() & second.keys()
    assert sum(torch.equal(first[key], second[key]) for key in common) < len(common) / 4
    options = {"batch_size": 16, "batch_transform": STEPS, **OPTIONS}
    with wt.make_loader(packed, **options) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    with wt.make_loader(packed, **options) as loader:
        loader.load_state_dict(state)
        batch = next(iter(loader))
    assert_equal(dict(zip(batch.key, batch.image, strict=True)), whole[3])


@pytest.mark.parametrize("step", [wt.MixUp(num_classes=8), wt.CutMix(num_classes=8)], ids=repr)
def test_mixing_has_the_same_shares_on_any_number_of_ranks_and_other_partners(packed, step):
    def run(steps, size, rank=0, world_size=1):
        options = {**OPTIONS, "batch_size": size, "rank": rank, "world_size": world_size, "batch_transform": steps}
        with wt.make_loader(packed, **options) as loader:
            return [batch for _, batch in zip(range(2), loader, strict=False)]

    def by_key(batches, field):
        return union(dict(zip(batch.key, getattr(batch, field), strict=True)) for batch in batches)

    own = by_key(run([], 20), "label")
    one, two = run(step, 20), [batch for rank in range(2) for batch in run(step, 10, rank, 2)]
    shares = [by_key(batches, "label") for batches in (one, two)]
    assert shares[0].keys() == shares[1].keys() == own.keys()
    mixed = [key for key in own if all((found[key] > 0).sum() == 2 for found in shares)]
    assert len(mixed) > 10
    for key in mixed:
        assert shares[0][key][own[key]] == pytest.approx(float(shares[1][key][own[key]]), abs=1e-6)
    pixels = [by_key(batches, "image") for batches in (one, two)]
    equal = sum(torch.equal(pixels[0][key], pixels[1][key]) for key in own)
    assert len(own) / 2 < equal < len(own)  # the last sample of a rank's batch has another partner


@pytest.mark.parametrize("step", [wt.MixUp(num_classes=8), wt.CutMix(num_classes=8)], ids=repr)
def test_a_resumed_run_mixes_the_same_samples_on_as_many_ranks(packed, step):
    options = {**OPTIONS, "batch_size": 10, "batch_transform": step, "rank": 1, "world_size": 2}
    with wt.make_loader(packed, **options) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        state, expected = loader.state_dict(), next(batches)
    with wt.make_loader(packed, **options) as loader:
        loader.load_state_dict(state)
        found = next(iter(loader))
    assert found.key == expected.key
    assert torch.equal(found.image, expected.image)
    assert torch.equal(found.label, expected.label)


def test_a_dataloader_of_the_four_attributes_makes_the_same_batches(packed):
    with wt.make_loader(packed, batch_size=16, batch_transform=STEPS, **OPTIONS) as loader:
        expected = [batch.image for batch in loader]
        loader.set_epoch(0)
        found = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
        for batch, images in zip(found, expected, strict=True):
            assert torch.equal(batch.image, images)


LAUNCHED = [
    wt.RandomHorizontalFlip(),
    wt.ColorJitter(0.4, 0.4, 0.4),
    wt.ColorJitter(0.4, 0.4, 0.4, 0.1),
    wt.RandAugment(2, 9),
    wt.MixUp(num_classes=1000),
    wt.CutMix(num_classes=1000),
    wt.Normalize(MEAN, STD),
]


@pytest.mark.parametrize("step", LAUNCHED, ids=lambda step: repr(step)[:30])
def test_a_step_is_at_most_60_kernels_and_never_waits_for_the_device(step):
    # The first batch of a run sends constants, and its labels are checked.
    step.apply(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), keys_of(2), "")
    images = torch.empty(256, 3, 224, 224, dtype=torch.uint8, device="meta")
    labels = torch.zeros(256, dtype=torch.int64, device="meta")
    if isinstance(step, wt.Normalize):
        step(images)
    with Launches() as launches:
        step.apply(images, labels, keys_of(256), "")
    assert launches.waits == []
    assert launches.copies <= 1
    assert 1 <= launches.kernels.total() <= 60, launches.kernels


def test_the_number_of_kernels_does_not_depend_on_the_number_of_images():
    counts = {}
    for count in (64, 256):
        images = torch.empty(count, 3, 32, 32, dtype=torch.uint8, device="meta")
        with Launches() as launches:
            BatchSteps(LAUNCHED[:4]).apply(images, None, keys_of(count))
        counts[count] = launches.kernels
    assert counts[64] == counts[256]


DEVICE = torch.zeros(4, 6, device="meta")


@pytest.mark.parametrize(
    ("function", "kernels", "copies", "waits"),
    [
        (lambda: DEVICE.view(-1)[::2].reshape(3, 4).T.expand(2, 4, 3).detach().unsqueeze_(0), 0, 0, 0),
        (lambda: torch.empty_like(DEVICE), 0, 0, 0),
        (lambda: DEVICE.add(1).mul_(2).copy_(DEVICE), 3, 0, 0),
        (lambda: DEVICE.to(torch.float16), 1, 0, 0),
        (lambda: DEVICE.t().contiguous(), 1, 0, 0),
        (lambda: torch.stack([row + 1 for row in DEVICE]), 5, 0, 0),
        (lambda: DEVICE[DEVICE[0].long()], 2, 0, 0),
        (lambda: torch.sort(DEVICE), 1, 0, 0),
        (lambda: functional.adjust_brightness(DEVICE.expand(3, 4, 6), 1.5), 2, 0, 0),
        (lambda: torch.ones(3).to("meta"), 0, 1, 1),
        (lambda: torch.ones(3).to("meta", non_blocking=True), 0, 1, 0),
        (lambda: torch.ones(3).to("meta", torch.float16, non_blocking=True), 0, 1, 0),
        (lambda: DEVICE[0].copy_(torch.ones(6)), 0, 1, 1),
        (lambda: torch.ops.aten.lift_fresh(DEVICE), 0, 1, 1),  # as torch.tensor([1.0, 2.0], device="cuda") does
        (lambda: DEVICE[torch.tensor([1, 2])], 1, 1, 1),
        (lambda: DEVICE * torch.tensor(2.0), 1, 0, 0),
        (lambda: torch.ones(3).mul(2), 0, 0, 0),
    ],
)
def test_the_counter_counts_kernels_copies_and_waits(function, kernels, copies, waits):
    with Launches() as launches:
        function()
    assert (launches.kernels.total(), launches.copies, len(launches.waits)) == (kernels, copies, waits), (
        launches.kernels
    )


@pytest.mark.parametrize("function", [torch.Tensor.item, torch.nonzero, lambda one: one[one > 0], torch.unique])
def test_the_counter_counts_results_that_the_cpu_needs(function):
    with Launches() as launches, suppress(NotImplementedError, RuntimeError):  # `meta` has no values
        function(torch.zeros(1, device="meta"))
    assert launches.waits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_normalize_has_the_values_of_torchvision(images, dtype, channels_last):
    expected = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])(images)
    found = wt.Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)(images)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=1e-6)
    scaled = wt.Normalize(MEAN, STD)(images.float() / 255)
    torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=1e-6)


def test_flips_mirror_about_the_given_share(images):
    flipped = wt.RandomHorizontalFlip(0.5).apply(images, None, keys_of(len(images)), "")
    is_flipped = [torch.equal(after, before.flip(-1)) for after, before in zip(flipped, images, strict=True)]
    is_kept = [torch.equal(after, before) for after, before in zip(flipped, images, strict=True)]
    assert all(a or b for a, b in zip(is_flipped, is_kept, strict=True))
    assert 4 <= sum(is_flipped) <= 20
    assert torch.equal(wt.RandomHorizontalFlip(1).apply(images, None, keys_of(len(images)), ""), images.flip(-1))
    assert torch.equal(wt.RandomHorizontalFlip(0).apply(images, None, keys_of(len(images)), ""), images)


@pytest.mark.parametrize(
    ("name", "function", "amount"),
    [
        ("brightness", functional.adjust_brightness, 1.4),
        ("contrast", functional.adjust_contrast, 0.5),
        ("saturation", functional.adjust_saturation, 1.7),
        ("hue", functional.adjust_hue, 0.2),
    ],
)
def test_color_jitter_has_the_pixels_of_torchvision(images, name, function, amount):
    found = wt.ColorJitter(**{name: (amount, amount)}).apply(images, None, keys_of(len(images)), "")
    assert found.dtype == torch.uint8
    difference = (found.int() - function(images, amount).int()).abs()
    assert difference.max() <= 1
    assert not torch.equal(found, images)


def test_each_image_gets_the_hue_of_torchvision(images):
    corners = torch.tensor(list(product((0.0, 0.5, 1.0), repeat=3))).T[None, :, None]
    many = torch.cat([images.float().flatten(2)[:, :, None] / 255, corners.expand(24, -1, -1, -1)], dim=-1)
    before, keys = many.clone(), keys_of(len(many))
    found = wt.ColorJitter(hue=0.5).apply(many, None, keys, "")
    for image, after, draw in zip(many, found, keys.uniform("", 4)[:, 3], strict=True):
        torch.testing.assert_close(after, functional.adjust_hue(image, draw - 0.5), atol=2e-6, rtol=0)
    assert torch.equal(many, before)


@pytest.mark.parametrize("channels", [1, 4])
def test_color_jitter_takes_grey_images_and_refuses_colours_that_it_does_not_know(channels):
    images = torch.full((2, channels, 3, 3), 100, dtype=torch.uint8)
    assert wt.ColorJitter(0.5).apply(images, None, keys_of(2), "").unique().numel() == 2
    for step in (wt.ColorJitter(0.1, 0.1, 0.1, 0.1), wt.RandAugment()):
        if channels == 1:
            assert step.apply(images, None, keys_of(2), "").shape == images.shape
        else:
            with pytest.raises(OptionError, match="4 channels; allowed are 1 and 3"):
                step.apply(images, None, keys_of(2), "")


def test_color_jitter_draws_within_its_range_for_each_image():
    grey = torch.full((64, 3, 4, 4), 100, dtype=torch.uint8)
    found = wt.ColorJitter(brightness=0.3).apply(grey, None, keys_of(64), "").float().mean((1, 2, 3))
    assert found.min() >= 70
    assert found.max() <= 130
    assert found.std() > 10


def operations_of(keys, rounds):
    """Return the name of torchvision's operation and the sign for each image and round, by the documented draws."""
    space = getattr(v2.RandAugment(), "_AUGMENTATION_SPACE")  # noqa: B009 - torchvision has no public name for it
    draws = [keys.uniform(f" {number}", 2) for number in range(rounds)]
    return [
        [(list(space)[int(14 * row[0])], -1 if row[1] < 0.5 else 1) for row in of_image]
        for of_image in np.stack(draws, axis=1)
    ]


def by_torchvision(image, name, magnitude, sign):
    peer = v2.RandAugment()
    apply, space = (getattr(peer, one) for one in ("_apply_image_or_video_transform", "_AUGMENTATION_SPACE"))
    levels, is_signed = space[name]
    level = levels(31, *image.shape[-2:])
    strength = 0.0 if level is None else float(level[magnitude]) * (sign if is_signed else 1)
    return apply(image, name, strength, interpolation=v2.InterpolationMode.NEAREST, fill={})


# torchvision rounds colours down after other float32 operations: sums in another order, and for autocontrast a division
# by a rounded number. So a value just below a whole number may be at or above it here. The others are exact.
NOT_EXACT = {"Color", "Contrast", "Sharpness", "AutoContrast"}


@pytest.mark.parametrize(
    ("shape", "magnitude"), [((3, 32, 32), 9), ((3, 31, 24), 30), ((1, 32, 32), 16), ((3, 2, 9), 0), ((3, 23, 29), 1)]
)
@pytest.mark.torture_except("shape0-9", "shape2-16")
def test_each_image_of_rand_augment_has_the_pixels_of_torchvision(images, shape, magnitude):
    many = images[:, : shape[0], : shape[1], : shape[2]].repeat(6, 1, 1, 1)
    before, keys, seen, differing = many.clone(), keys_of(len(many)), set(), 0
    found = wt.RandAugment(1, magnitude).apply(many, None, keys, "")
    for image, after, ((name, sign),) in zip(many, found, operations_of(keys, 1), strict=True):
        difference = (after.int() - by_torchvision(image, name, magnitude, sign).int()).abs()
        assert difference.max() <= (name in NOT_EXACT), name
        differing += int(difference.sum())
        seen.add(name)
    assert len(seen) == 14
    assert differing < many.numel() / 20
    assert torch.equal(many, before)


def test_each_operation_of_rand_augment_gets_the_result_of_the_one_before(images):
    many = images.repeat(4, 1, 1, 1)
    keys, compared = keys_of(len(many)), 0
    found = wt.RandAugment(3, 9).apply(many.contiguous(memory_format=torch.channels_last), None, keys, "")
    for image, after, operations in zip(many, found, operations_of(keys, 3), strict=True):
        if not any(name in NOT_EXACT for name, _ in operations):
            expected = image
            for name, sign in operations:
                expected = by_torchvision(expected, name, 9, sign)
            assert torch.equal(after, expected), operations
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rand_augment_of_a_few_images_is_that_of_a_large_batch(images, count):
    whole = wt.RandAugment(2, 9).apply(images, None, keys_of(len(images)), "")
    for start in range(0, len(images) - count + 1, count):
        part = slice(start, start + count)
        keys = SampleKeys(0, 0, keys_of(len(images)).positions[part])
        assert torch.equal(wt.RandAugment(2, 9).apply(images[part], None, keys, ""), whole[part])


def test_rand_augment_gives_each_image_its_own_operations(images):
    same = images[:1].expand(200, -1, -1, -1)
    found = wt.RandAugment(1, 20).apply(same, None, keys_of(200), "")
    assert 15 <= len({image.numpy().tobytes() for image in found}) <= 23  # 14 operations, 9 of them with two signs
    assert found.dtype == torch.uint8


def test_mixup_blends_images_and_labels_by_the_same_share(packed):
    options = {**OPTIONS, "tail": "mask"}
    with wt.make_loader(packed, batch_size=16, **options) as loader:
        plain = next(iter(loader))
    mix = wt.MixUp(num_classes=len(loader.classes), alpha=0.4)
    with wt.make_loader(packed, batch_size=16, batch_transform=mix, **options) as loader:
        batch = next(iter(loader))
    assert batch.label.dtype == torch.float32
    torch.testing.assert_close(batch.label.sum(1), torch.ones(16))
    others = plain.label.roll(-1)
    for row in (plain.label != others).nonzero().flatten().tolist():
        share = batch.label[row, plain.label[row]]
        expected = share * plain.image[row] + (1 - share) * plain.image.roll(-1, 0)[row]
        torch.testing.assert_close(batch.image[row].float(), expected, atol=0.51, rtol=0)
        assert batch.label[row, others[row]] == pytest.approx(1 - float(share), abs=1e-6)


def test_cutmix_replaces_a_rectangle_whose_share_is_that_of_the_label():
    images = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(12, 3, 20, 30)
    mixed, labels = wt.CutMix(num_classes=12).apply(images, torch.arange(12), keys_of(12), "")
    for row in range(12):
        is_own = mixed[row, 0] == row
        assert torch.equal(mixed[row, 0][~is_own], torch.full_like(mixed[row, 0][~is_own], (row + 1) % 12))
        cut = torch.nonzero(~is_own)
        if len(cut):
            top, left = cut.min(0).values
            bottom, right = cut.max(0).values + 1
            assert (bottom - top) * (right - left) == len(cut)
        assert float(labels[row, row]) == pytest.approx(float(is_own.float().mean()), abs=1e-6)
    assert 0.2 < labels.diagonal().mean() < 0.95


@given(alpha=st.floats(0.05, 2), seed=st.integers(0, 2**63 - 1))
def test_shares_have_the_beta_distribution(alpha, seed):
    shares = beta(alpha, SampleKeys(seed, 0, np.arange(4000)), "")
    assert ((shares >= 0) & (shares <= 1)).all()
    assert abs(shares.mean() - 0.5) < 0.05
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.15)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_a_share_is_that_of_the_first_of_64_pairs_of_draws_that_is_accepted(alpha):
    keys = keys_of(500)
    for share, row in zip(beta(alpha, keys, "x"), keys.uniform("x", 128), strict=True):
        powers = row.reshape(64, 2) ** (1 / alpha)
        own, other = next((pair for pair in powers if sum(pair) <= 1), powers[-1])
        assert share == pytest.approx(own / (own + other), rel=1e-12)


def test_a_step_may_be_a_function_and_one_step_needs_no_list(packed):
    with wt.make_loader(
        packed, batch_size=8, batch_transform=[torch.neg, wt.RandomHorizontalFlip(0)], **OPTIONS
    ) as one:
        negative = next(iter(one)).image
    with wt.make_loader(packed, batch_size=8, batch_transform=wt.RandomHorizontalFlip(0), **OPTIONS) as other:
        assert torch.equal(next(iter(other)).image, -negative)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wt.Normalize((0.5,), (0.5, 0.5)), "both need one number per channel"),
        (lambda: wt.Normalize((0.5,), (0.0,)), "must be above 0"),
        (lambda: wt.Normalize((0.5,), (0.5,), dtype=torch.uint8), "floating-point"),
        (lambda: wt.RandomHorizontalFlip(2), "allowed are 0 to 1"),
        (lambda: wt.ColorJitter(brightness=-1), "ColorJitter\\(brightness=-1\\)"),
        (lambda: wt.ColorJitter(contrast="high"), "ColorJitter\\(contrast='high'\\)"),
        (lambda: wt.ColorJitter(hue=0.7), "allowed are 0 to 0.5"),
        (lambda: wt.ColorJitter(hue=(0.1,)), "allowed are 0 to 0.5"),
        (lambda: wt.RandAugment(2, 31), "magnitudes from 0 to 30"),
        (lambda: wt.MixUp(num_classes=0), "1 class or more"),
        (lambda: wt.CutMix(num_classes=3, alpha=0), "alpha above 0"),
    ],
)
def test_invalid_options_are_refused(call, message):
    with pytest.raises(OptionError, match=message):
        call()


def test_steps_that_do_not_fit_the_fields_or_the_images_are_refused(packed):
    with pytest.raises(OptionError, match="needs the field 'label'"):
        wt.make_loader(packed, batch_size=8, fields="image", batch_transform=wt.MixUp(num_classes=8))
    with pytest.raises(OptionError, match="has the step 3"):
        wt.make_loader(packed, batch_size=8, batch_transform=[3])
    with (
        pytest.warns(UserWarning, match="list"),
        wt.make_loader(packed, batch_size=8, num_workers=0, batch_transform=wt.RandomHorizontalFlip()) as loader,
        pytest.raises(OptionError, match="images of one size"),
    ):
        next(iter(loader))
    with (
        wt.make_loader(packed, batch_size=8, batch_transform=wt.Normalize((0.5,), (0.5,)), **OPTIONS) as loader,
        pytest.raises(OptionError, match="1 channels, but the images have 3"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("step", [wt.MixUp, wt.CutMix])
def test_a_label_above_the_number_of_classes_is_an_error_with_the_remedy(packed, step):
    options = {"batch_size": 80, "num_workers": 0, "view": wt.CenterCrop(24)}
    with (
        wt.make_loader(packed, **options, batch_transform=step(num_classes=3)) as loader,
        pytest.raises(OptionError, match=r"has the label 7; allowed are labels from 0 to 2: use num_classes=len"),
    ):
        list(loader)


@pytest.mark.parametrize("step", [wt.RandomHorizontalFlip(), wt.RandAugment(), wt.MixUp(num_classes=8)], ids=repr)
def test_steps_that_would_move_the_image_away_from_its_mask_are_refused(scenes, step):
    mask = {"image": wt.Image(view=VIEW), "mask": wt.Mask("mask.png", like="image"), "label": wt.Label()}
    stereo = {"left": wt.Image("right.jpg", view=VIEW), "image": wt.Image(like="left"), "label": wt.Label()}
    for fields, name in ((mask, "mask"), (stereo, "left")):
        with pytest.raises(OptionError, match=rf"changes the field 'image', but not '{name}'.*sample_transform="):
            wt.make_loader(scenes, batch_size=8, fields=fields, batch_transform=[wt.ColorJitter(0.1), step])
        wt.make_loader(scenes, batch_size=8, fields=fields, batch_transform=wt.ColorJitter(0.1)).close()


@pytest.mark.parametrize(
    ("step", "dtype", "words"),
    [
        (wt.ColorJitter(0.4), np.int16, "ColorJitter: the images are torch.int16"),
        (wt.RandAugment(), np.uint16, "the images are torch.uint16; allowed is uint8"),
        ([wt.Normalize(MEAN, STD), wt.RandAugment()], np.uint8, "torch.float32; allowed is uint8, so this step must"),
    ],
    ids=repr,
)
def test_colour_steps_refuse_pixels_whose_white_they_do_not_know(tmp_path, step, dtype, words):
    with wt.ShardWriter(tmp_path / "arrays" / "s-%06d.tar") as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "npy": np.full((8, 8, 3), 100 + number, dtype)})
    fields = {"image": wt.Image("npy", mode="unchanged")}
    options = {"batch_size": 4, "num_workers": 0, "fields": fields, "batch_transform": step}
    with wt.make_loader(tmp_path / "arrays", **options) as loader, pytest.raises(OptionError, match=words):
        next(iter(loader))
