"""`make_loader` and `StreamingDataset` report wrong argument names and types at the call."""

import inspect
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.loading.arguments import DATASET_HINTS, LOADER_HINTS, RULES

BOTH = [wt.make_loader, wt.StreamingDataset]
WRONG = [
    ("batch_size", ["8", 8.0, True, None, 0, -1, torch.tensor(8)]),
    ("view", [v2.Resize(3), 224, "center", wt.Resize]),
    ("seed", ["x", 1.5, None, -1, True]),
    ("shuffle", ["yes", None, 2.5, -3, [1]]),
    ("fields", [[1], [], (), 3, None, {"image"}]),
    ("transform", [3, "flip", [v2.RandomHorizontalFlip()]]),
    ("tail", ["keep", None, True, ["drop"]]),
    ("where", [3, ["width > 3"]]),
    ("subset", ["half", 3, True, [1.5], 0.0]),
    ("lanes", ["2", 0, 1.0]),
    ("cache_dir", [3, b"cache"]),
    ("cache_bytes", [-1, "much", []]),
]
WRONG_FOR_THE_LOADER = [
    ("num_workers", ["4", -1, 2.0, True, "many"]),
    ("prefetch_factor", ["2", 0, None, True]),
    ("batch_transform", [3, "normalise"]),
    ("device", [3.5, [], True]),
    ("device_prefetch", ["2", 0, None, True]),
    ("stall_seconds", [-1, 0, "x", None, float("nan"), True]),
    ("multiprocessing_context", ["thread", 3]),
    ("progress", ["yes", 1]),
]


class ImageDataset(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return i


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


def name_value_pairs(table):
    return [pytest.param(name, value, id=f"{name}={value!r}") for name, values in table for value in values]


@pytest.mark.parametrize("reader", BOTH)
@pytest.mark.parametrize(("name", "value"), name_value_pairs(WRONG))
def test_an_invalid_value_raises_option_error_with_argument_and_value(packed, reader, name, value):
    with pytest.raises(OptionError, match=rf"{name}={re.escape(repr(value))}.*; allowed (is|are) "):
        reader(packed, **{"batch_size": 8, name: value})


@pytest.mark.parametrize(("name", "value"), name_value_pairs(WRONG_FOR_THE_LOADER))
def test_an_invalid_value_of_a_loader_argument_raises_option_error(packed, name, value):
    with pytest.raises(OptionError, match=rf"{name}={re.escape(repr(value))}; allowed are "):
        wt.make_loader(packed, **{"batch_size": 8, name: value})


@pytest.mark.parametrize("reader", BOTH)
def test_an_invalid_rank_or_world_size_is_refused(packed, reader):
    for ranks in ({"rank": "0", "world_size": 1}, {"rank": 0, "world_size": 1.0}, {"rank": True, "world_size": 2}):
        with pytest.raises(OptionError, match=r"rank=|world_size="):
            reader(packed, batch_size=8, **ranks)


@pytest.mark.parametrize("reader", BOTH)
@pytest.mark.parametrize("dataset", [None, 3, b"photos", "", ImageDataset(), Stream(), {"a": "photos"}])
def test_an_invalid_dataset_is_refused_with_the_call_that_packs_it(reader, dataset):
    with pytest.raises(OptionError, match=r"dataset=.*wds_tools\.pack\("):
        reader(dataset, batch_size=8)


@pytest.mark.parametrize("reader", BOTH)
@pytest.mark.parametrize("container", [list, tuple])
def test_a_list_of_datasets_is_refused_with_the_call_of_mixture(packed, reader, container):
    with pytest.raises(OptionError, match=r"several datasets with wds_tools\.Mixture\("):
        reader(container([packed, packed]), batch_size=8)
    with pytest.raises(OptionError, match="dataset=Mixture"):
        reader(wt.Mixture([packed, None], weights=[1, 1]), batch_size=8)


def test_numpy_numbers_and_paths_are_accepted(packed):
    given = {"batch_size": np.int64(8), "seed": np.uint8(3), "shuffle": np.True_, "lanes": np.int32(1)}
    with wt.make_loader(
        Path(packed), **given, num_workers=np.int64(0), stall_seconds=np.float32(9), fields=["label"], cache_dir=None
    ) as loader:
        labels = next(iter(loader)).label
    dataset = wt.StreamingDataset(os.fspath(packed), **given, fields=["label"])
    assert labels.tolist() == next(iter(DataLoader(dataset, batch_size=8))).label.tolist()
    assert type(loader.batch_size) is int


TORCH_ARGUMENTS = {
    "drop_last": "tail='drop'",
    "pin_memory": "device='cuda'",
    "sampler": "subset=",
    "batch_sampler": "subset=",
    "generator": "seed=",
    "persistent_workers": "stay",
    "worker_init_fn": "seeded",
    "workers": "num_workers=",
    "transforms": "transform=",
    "timeout": "stall_seconds=",
    "pin_memory_device": "device=",
    "in_order": "in order",
}


@pytest.mark.parametrize(("name", "hint"), TORCH_ARGUMENTS.items())
def test_the_error_for_an_argument_of_torchs_dataloader_names_the_argument_of_make_loader(packed, name, hint):
    with pytest.raises(TypeError, match=rf"make_loader\(\) has no argument '{name}': .*{hint}"):
        wt.make_loader(packed, batch_size=8, **{name: None})


def test_every_argument_of_torchs_dataloader_exists_or_has_a_hint():
    torchs = set(inspect.signature(DataLoader).parameters)
    assert torchs <= set(LOADER_HINTS) | set(inspect.signature(wt.make_loader).parameters)
    assert torchs <= set(DATASET_HINTS) | set(inspect.signature(wt.StreamingDataset).parameters)


@pytest.mark.parametrize("name", ["num_workers", "collate_fn", "pin_memory", "persistent_workers", "workers"])
def test_streaming_dataset_names_the_dataloader_for_its_arguments(packed, name):
    with pytest.raises(TypeError, match=rf"StreamingDataset\(\) has no argument '{name}': pass it to the DataLoader"):
        wt.StreamingDataset(packed, **{name: 1})


@pytest.mark.parametrize("name", ["device", "batch_transform", "stall_seconds"])
def test_streaming_dataset_names_make_loader_for_its_arguments(packed, name):
    with pytest.raises(TypeError, match=r"it is an argument of make_loader\(\)"):
        wt.StreamingDataset(packed, **{name: 1})


@pytest.mark.parametrize("reader", BOTH)
def test_a_misspelt_argument_gets_the_closest_name_and_an_unknown_one_gets_all(packed, reader):
    with pytest.raises(TypeError, match=r"has no argument 'bacth_size': did you mean 'batch_size'\?"):
        reader(packed, bacth_size=8)
    with pytest.raises(TypeError, match="has no argument 'qqq': it has dataset, batch_size, view"):
        reader(packed, batch_size=8, qqq=1)


@pytest.mark.parametrize("reader", BOTH)
def test_a_second_positional_argument_is_refused(packed, reader):
    with pytest.raises(TypeError, match=r"takes only 'dataset' as a positional argument; .* such as batch_size=8"):
        reader(packed, 8)
    with pytest.raises(TypeError, match="missing a required"):
        reader()


@pytest.mark.parametrize("reader", BOTH)
def test_hints_name_no_existing_argument_and_rules_only_existing_ones(reader):
    hints = LOADER_HINTS if reader is wt.make_loader else DATASET_HINTS
    assert not set(hints) & set(inspect.signature(reader).parameters)
    checked = (*BOTH, wt.Loader.set_epoch, wt.Loader.log_stats, wt.Loader.ceiling)
    existing = {name for one in checked for name in inspect.signature(one).parameters}
    assert set(RULES) <= existing


def setters_and_readers(packed):
    """Return pairs: an object with set_epoch, and the iterable that reads that epoch."""
    options = {"fields": "__key__", "shuffle": True}
    loader = wt.make_loader(packed, batch_size=30, num_workers=0, **options)
    dataset = wt.StreamingDataset(packed, batch_size=30, **options)
    return [(loader, loader), (dataset, DataLoader(dataset, batch_size=30)), (loader.sampler, loader)]


def test_set_epoch_accepts_numpy_integers(packed):
    for setter, reader in setters_and_readers(packed):
        setter.set_epoch(3)
        expected = list(reader)
        setter.set_epoch(np.int64(3))
        assert list(reader) == expected


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1", None, torch.tensor(1)])
def test_set_epoch_refuses_everything_else(packed, epoch):
    for setter, _ in setters_and_readers(packed):
        with pytest.raises(OptionError, match=rf"epoch={re.escape(repr(epoch))}; allowed are whole numbers"):
            setter.set_epoch(epoch)
