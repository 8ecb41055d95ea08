"""What the training loop gets: one value or a named tuple, after `batch_transform`."""

import pytest
import torch

import wds_tools as wt

VIEW = wt.RandomResizedCrop(24, flip=True)


def batches(packed, **options):
    options = {"batch_size": 50, "view": VIEW, "shuffle": True, "num_workers": 0, **options}
    with wt.make_loader(packed, **options) as loader:
        return list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("view", [VIEW, None])
def test_one_field_that_is_not_in_a_list_comes_without_a_tuple(packed, num_workers, view):
    options = {"num_workers": num_workers, "view": view}
    for images, (images_of,) in zip(
        batches(packed, fields="image", **options), batches(packed, fields=("image",), **options), strict=True
    ):
        assert len(images) == 50
        assert all(torch.equal(one, other) for one, other in zip(images, images_of, strict=True))
    labels = batches(packed, fields="label")[0]
    assert (labels.dtype, labels.shape) == (torch.int64, (50,))


def test_one_field_with_a_mask_is_a_named_tuple(packed):
    batch = batches(packed, fields="image", tail="mask")[0]
    assert batch._fields == ("image", "valid")


def test_batch_transform_changes_a_batch_that_is_a_tensor(packed):
    (batch, *_) = batches(packed, fields="image", batch_transform=lambda images: images.float() / 255)
    assert batch.dtype == torch.float32
    assert batch.max() <= 1
