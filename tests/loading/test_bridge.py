"""A torch DataLoader created from the attributes of a loader makes the batches of the loader."""

import json
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import wds_tools as wt
from wds_tools.errors import ResumeError

VIEW = wt.RandomResizedCrop(24, flip=True)


@pytest.fixture
def make(few):
    loaders = []

    def make(**options):
        options = {"batch_size": 3, "view": VIEW, "shuffle": True, "num_workers": 0, **options}
        loaders.append(wt.make_loader(few, **options))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def as_dataloader(loader, **options):
    """Create the DataLoader that skip_first_batches of Accelerate creates."""
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, **options)


def are_equal(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(are_equal, one, other))
    return one == other


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ("image", "label", "__key__", "json")},
        {"fields": "image"},
        {"fields": "label", "tail": "mask"},
        {"tail": "mask", "transform": torch.negative},
        {"tail": "pad", "rank": 1, "world_size": 3, "subset": 0.5, "batch_transform": lambda images: images / 255},
        {"class_weights": "balanced", "shuffle": False, "view": wt.CenterCrop(16, resize=20)},
    ],
    ids=", ".join,
)
@pytest.mark.torture_except("fields, tail", "tail, transform", "class_weights, shuffle, view")
def test_a_dataloader_of_the_four_attributes_makes_the_batches_of_the_loader(make, options):
    loader, other = make(**options), make(**options)
    for _ in range(2):  # epochs
        batches = list(loader)
        assert len(batches) == len(loader) == len(as_dataloader(other))
        assert are_equal(batches, list(as_dataloader(other)))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.torture_except("fork")
def test_a_dataloader_of_the_four_attributes_may_have_worker_processes(make, context):
    batches = list(as_dataloader(make(), num_workers=2, multiprocessing_context=context))
    assert are_equal(batches, list(make()))


def test_a_loader_and_its_sampler_share_the_epoch_counter(make):
    loader, plain = make(fields="__key__"), make(fields="__key__")
    epochs = [list(plain) for _ in range(4)]
    assert list(as_dataloader(loader)) == epochs[0]
    assert list(loader) == epochs[1]
    assert list(as_dataloader(loader)) == epochs[2]
    loader.set_epoch(1)
    assert list(as_dataloader(loader)) == epochs[1]
    loader.sampler.set_epoch(3)
    assert list(loader) == epochs[3]
    loader.batch_sampler.set_epoch(0)
    assert list(loader) == epochs[0]


def test_a_sampler_continues_from_a_loaded_state(make):
    loader, plain = make(fields="__key__"), make(fields="__key__")
    batches = iter(plain)
    next(batches)
    loader.load_state_dict(plain.state_dict())
    assert list(as_dataloader(loader)) == list(batches)


def test_set_epoch_of_the_sampler_keeps_a_loaded_position(make):
    """Lightning calls it after it has loaded the state, with its own epoch number."""
    plain = make(fields="__key__")
    list(plain)
    batches = iter(plain)
    next(batches)
    loader = make(fields="__key__")
    loader.load_state_dict(plain.state_dict())
    started = iter(loader)
    loader.sampler.set_epoch(0)
    assert list(started) == list(batches)
    started = iter(loader)
    loader.sampler.set_epoch(5)  # between iter() and the first batch, as Lightning does
    plain.set_epoch(5)
    assert list(started) == list(plain)


@pytest.mark.parametrize(("trainer_epoch", "epoch"), [(0, 2), (1, 1), (2, 2)])
def test_a_state_between_two_epochs_continues_or_follows_the_epoch_of_the_trainer(make, trainer_epoch, epoch):
    """Lightning reads a short loader twice in its epoch 0. Then that epoch continues, or another one starts."""
    loader, resumed = make(fields="__key__"), make(fields="__key__")
    loader.sampler.set_epoch(0)
    epochs = [list(loader) for _ in range(2)]
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    epochs.append(list(loader))
    started = iter(resumed)
    resumed.sampler.set_epoch(trainer_epoch)
    assert list(started) == epochs[epoch]
    resumed.sampler.set_epoch(0)  # the same epoch again, as with any sampler
    assert list(resumed) == epochs[0]


def test_there_is_no_state_while_a_dataloader_reads_the_epoch(make):
    loader = make()
    samples = iter(loader.sampler)
    next(samples)
    with pytest.raises(ResumeError, match=r"epoch 0 is read by a torch DataLoader .* loader\.load_state_dict"):
        loader.state_dict()
    next(iter(loader))
    assert loader.state_dict()["epoch"] == 1
    next(iter(loader.sampler))
    loader.set_epoch(4)
    assert loader.state_dict()["epoch"] == 4


def test_the_dataset_has_the_samples_of_an_epoch_in_stored_order(make):
    loader = make(subset=range(10, 20), fields=("image", "label", "__key__"), rank=0, world_size=2)
    assert len(loader.dataset) == loader.samples == 10
    assert loader.dataset[3].key == loader.dataset[-7].key == "000000013"
    assert loader.dataset[3].image.shape == (3, 24, 24)
    assert [sample.key for sample in loader.dataset] == [f"{number:09}" for number in range(10, 20)]
    again = pickle.loads(pickle.dumps(loader.dataset))
    assert are_equal(tuple(again[3]), tuple(loader.dataset[3]))
    batch = next(iter(DataLoader(loader.dataset, batch_size=4)))
    assert batch.image.shape == (4, 3, 24, 24)


def test_the_dataset_has_no_banned_samples_and_the_selected_ones_of_a_mixture(make, few, scenes):
    loader = make(fields="__key__", ban=[3, 5, 39])
    keys = [f"{number:09}" for number in range(40) if number not in (3, 5, 39)]
    assert [loader.dataset[number] for number in range(len(loader.dataset))] == keys
    mixture = wt.Mixture([few, scenes], weights=[1, 1])
    with wt.make_loader(mixture, batch_size=1, where="label == 0", fields="__key__", num_workers=0) as loader:
        delivered = sorted(key for batch in loader for key in batch)
        assert sorted(loader.dataset[number] for number in range(len(loader.dataset))) == delivered


def test_the_sampler_is_a_distributed_sampler_of_this_rank(make):
    loader = make(rank=1, world_size=2)
    assert isinstance(loader.sampler, DistributedSampler)
    assert len(loader.sampler) == 18 == len(list(loader.sampler))


def test_a_dataloader_of_a_loader_with_a_device_warns_that_batches_stay_in_cpu_memory(make):
    loader = make(device="meta")
    with pytest.warns(UserWarning, match=r"cannot put batches on meta: they stay in CPU memory"):
        batches = list(as_dataloader(loader))
    assert are_equal(batches, list(make()))
