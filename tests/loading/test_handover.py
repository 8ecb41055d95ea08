"""The batch that the training loop receives: a value or a named tuple, after `batch_transform`."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import OptionError

VIEW = wt.RandomResizedCrop(24, flip=True)
CLASSES = 8
FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
CUTMIX, MIXUP = v2.CutMix(num_classes=CLASSES), v2.MixUp(num_classes=CLASSES)
MIXES = {
    "cutmix": CUTMIX,
    "one of two": v2.RandomChoice([v2.Compose([*FLOATS, CUTMIX]), v2.Compose([*FLOATS, MIXUP])]),
    "after others": v2.Compose([*FLOATS, MIXUP]),
    "in a function": lambda images, labels: CUTMIX(images, torch.clone(labels)),
}


def batches(dataset, **options):
    options = {"batch_size": 10, "view": VIEW, "shuffle": True, "num_workers": 0, **options}
    with wt.make_loader(dataset, **options) as loader:
        return list(loader)


@pytest.mark.filterwarnings("ignore:images will come as a list")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("view", [VIEW, None])
@pytest.mark.torture_except("view0-2", "None-0")
def test_a_single_field_name_yields_values_without_a_tuple(few, num_workers, view):
    options = {"num_workers": num_workers, "view": view}
    for images, (images_of,) in zip(
        batches(few, fields="image", **options), batches(few, fields=("image",), **options), strict=True
    ):
        assert len(images) == 10
        assert all(torch.equal(one, other) for one, other in zip(images, images_of, strict=True))
    labels = batches(few, fields="label")[0]
    assert (labels.dtype, labels.shape) == (torch.int64, (10,))


def test_a_single_field_name_with_tail_mask_yields_a_named_tuple(few):
    batch = batches(few, fields="image", tail="mask")[0]
    assert batch._fields == ("image", "valid")


def test_batch_transform_is_applied_to_a_batch_that_is_a_tensor(few):
    (batch, *_) = batches(few, fields="image", batch_transform=lambda images: images.float() / 255)
    assert batch.dtype == torch.float32
    assert batch.max() <= 1


@pytest.mark.parametrize("transform", MIXES.values(), ids=MIXES)
def test_cutmix_and_mixup_of_torchvision_mix_images_and_labels(few, transform):
    plain = batches(few)
    mixed = batches(few, batch_transform=transform)
    for (images, labels), (mixed_images, mixed_labels) in zip(plain, mixed, strict=True):
        assert mixed_images.shape == images.shape
        assert mixed_labels.shape == (10, CLASSES)
        assert torch.allclose(mixed_labels.sum(1), torch.ones(10))
        both = (torch.nn.functional.one_hot(labels, CLASSES) + torch.nn.functional.one_hot(labels.roll(1), CLASSES)) > 0
        assert torch.equal(mixed_labels > 0, both)
    assert not torch.equal(mixed[0].image, mixed[1].image)


def test_cutmix_pastes_regions_of_the_previous_image_as_torchvision_documents(few):
    (images, labels), *_ = batches(few)
    (mixed, mixed_labels), *_ = batches(few, batch_transform=CUTMIX)
    row = int((mixed_labels > 0).sum(1).argmax())
    cut = (mixed != images).any(1)[row]
    assert torch.equal(mixed[row][:, cut], images.roll(1, 0)[row][:, cut])
    assert 0 < cut.float().mean() <= 1 - mixed_labels[row, labels[row]] + 1e-6


@pytest.mark.parametrize("options", [{"fields": ("image", "label", "__key__")}, {"tail": "mask"}])
def test_cutmix_keeps_fields_other_than_images_and_labels(few, options):
    for batch, mixed in zip(batches(few, **options), batches(few, batch_transform=CUTMIX, **options), strict=True):
        assert mixed._fields == batch._fields
        assert mixed.label.shape == (10, CLASSES)
        last, mixed_last = batch[-1], mixed[-1]
        assert torch.equal(last, mixed_last) if isinstance(last, torch.Tensor) else last == mixed_last


def normalised(images, mean=128.0):
    return images - mean


@pytest.mark.parametrize(
    "function",
    [
        normalised,
        partial(normalised, mean=128.0),
        lambda images: images - 128.0,
        v2.Lambda(normalised),  # would change the labels too if it got all fields
        torch.nn.Sequential(v2.Lambda(normalised)),
    ],
)
def test_a_function_of_one_argument_gets_only_the_images(few, function):
    for (images, labels), (changed, same) in zip(batches(few), batches(few, batch_transform=function), strict=True):
        assert torch.equal(changed, images - 128.0)
        assert torch.equal(same, labels)


@pytest.mark.parametrize("argument", ["transform", "batch_transform"])
@pytest.mark.parametrize("made", [lambda module: module, lambda module: torch.compile(module, backend="eager")])
@pytest.mark.torture_except("<lambda>0-batch_transform")
def test_a_function_object_that_is_falsy_is_called(few, made, argument):
    class Halves(torch.nn.Module):
        def forward(self, images):
            return images // 2

        def __bool__(self):
            return False

    assert torch.equal(batches(few, **{argument: made(Halves())})[0].image, batches(few)[0].image // 2)


class Both(torch.nn.Module):
    def forward(self, label, image):
        return label + 1, image.float()


@pytest.mark.parametrize("function", [Both(), Both().forward, lambda label, image: [label + 1, image.float()]])
def test_a_function_of_all_fields_gets_them_in_the_order_of_fields(few, function):
    fields = ("label", "image")
    for batch, changed in zip(
        batches(few, fields=fields), batches(few, fields=fields, batch_transform=function), strict=True
    ):
        assert changed._fields == fields
        assert torch.equal(changed.label, batch.label + 1)
        assert torch.equal(changed.image, batch.image.float())


def test_a_function_of_all_fields_may_return_a_dictionary(few):
    def as_inputs(image, label):
        return {"pixel_values": image / 255, "labels": label}

    for batch, inputs in zip(batches(few), batches(few, batch_transform=as_inputs), strict=True):
        assert list(inputs) == ["pixel_values", "labels"]
        assert torch.equal(inputs["pixel_values"], batch.image / 255)
        assert torch.equal(inputs["labels"], batch.label)


@pytest.mark.parametrize(
    ("fields", "function", "words"),
    [
        (("image",), lambda images, labels: (images, labels), "1 values of a batch, image: missing .* 'labels'"),
        ("image", lambda images, labels: (images, labels), "missing a required argument"),
        (("image", "label", "__key__"), lambda images, labels: (images, labels), "too many positional arguments"),
        (("label", "__key__"), lambda images: images, "has only label, __key__: add 'image'"),
    ],
)
def test_a_function_with_wrong_arguments_is_refused_by_make_loader(few, fields, function, words):
    with pytest.raises(OptionError, match=words):
        wt.make_loader(few, batch_size=8, view=VIEW, fields=fields, batch_transform=function)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda images, labels: images, "returned one Tensor; .* one value for each of image, label"),  # noqa: ARG005
        (lambda images, labels: (images, labels, 3), "returned 3 values"),
    ],
)
def test_a_wrong_return_value_of_a_function_raises_option_error(few, function, words):
    with pytest.raises(OptionError, match=words):
        batches(few, batch_transform=function)


def noisy(images):
    return images + torch.rand(1) + np.random.rand() + random.random()


@pytest.mark.parametrize("transform", [noisy, CUTMIX])
def test_random_numbers_depend_only_on_the_position_and_the_users_generators_are_restored(few, transform):
    options = {"batch_size": 10, "view": VIEW, "shuffle": True, "num_workers": 0, "batch_transform": transform}
    torch.manual_seed(3)
    undisturbed = torch.rand(4)
    torch.manual_seed(3)
    with wt.make_loader(few, **options) as loader:
        batches = list(loader)
        assert torch.equal(torch.rand(4), undisturbed)
        assert not torch.equal(next(iter(loader)).image, batches[0].image)  # the next epoch
        first, state = loader.set_epoch(0), None
        for first, _ in zip(loader, range(3), strict=False):  # noqa: B007
            state = loader.state_dict()
    with wt.make_loader(few, **{**options, "num_workers": 1}) as resumed:
        resumed.load_state_dict(state)
        rest = list(resumed)
    assert torch.equal(first.image, batches[2].image)
    assert len(rest) == len(batches) - 3
    assert all(torch.equal(one.image, other.image) for one, other in zip(rest, batches[3:], strict=True))
    with wt.make_loader(few, **{**options, "seed": 1}) as other:
        assert not torch.equal(next(iter(other)).image, batches[0].image)


def test_a_dataloader_of_the_attributes_of_a_loader_draws_the_same_random_numbers(few):
    options = {"batch_size": 10, "view": VIEW, "shuffle": True, "batch_transform": CUTMIX, "num_workers": 0}
    with wt.make_loader(few, **options) as loader:
        expected = list(loader)
        loader.set_epoch(0)
        parts = DataLoader(
            loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, num_workers=1
        )
        for one, other in zip(parts, expected, strict=True):
            assert torch.equal(one.image, other.image)
            assert torch.equal(one.label, other.label)
