"""collate_fn=: the user's function makes a batch of the samples, in the order and with the crops of the loader."""

import json
import random
from collections import OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, default_collate

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.loading.pipeline.cuda import copy_to_device

VIEW = wt.RandomResizedCrop(24, flip=True)
FIELDS = {
    "image": wt.Image(view=VIEW),
    "crops": wt.Image("right.jpg", view=[VIEW, wt.Resize((8, 12))]),
    "boxes": wt.Boxes(path="objects.bbox", like="image"),
    "text": wt.Text(),
    "label": wt.Label(),
}


def loader_of(dataset, collate_fn=None, **options):
    options = {"batch_size": 8, "num_workers": 0, "fields": FIELDS, "shuffle": True, **options}
    return wt.make_loader(dataset, collate_fn=collate_fn, **options)


def as_detr(samples):
    """Return a dictionary with padded boxes, and with random numbers."""
    boxes = torch.nn.utils.rnn.pad_sequence([sample.boxes for sample in samples], batch_first=True)
    images = torch.stack([sample.image for sample in samples])
    targets = [{"label": sample.label, "text": sample.text} for sample in samples]
    return {"image": images, "boxes": boxes, "targets": targets, "noise": torch.rand(2) + random.random()}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_collate_fn_gets_the_samples_of_a_batch_as_named_tuples(scenes, num_workers):
    with loader_of(scenes) as plain, loader_of(scenes, list, num_workers=num_workers) as loader:
        for batch, samples in zip(plain, loader, strict=True):
            assert isinstance(samples, list)
            assert samples[0]._fields == tuple(FIELDS)
            for i, sample in enumerate(samples):
                assert torch.equal(sample.image, batch.image[i])
                assert all(torch.equal(crop, crops[i]) for crop, crops in zip(sample.crops, batch.crops, strict=True))
                assert torch.equal(sample.boxes, batch.boxes[i])
                assert (sample.text, sample.label) == (batch.text[i], batch.label[i])
                assert type(sample.label) is int


def test_the_result_of_collate_fn_is_the_batch_and_its_random_numbers_depend_on_the_position(scenes):
    with loader_of(scenes, as_detr) as loader:
        expected = list(loader)
    assert list(expected[0]) == ["image", "boxes", "targets", "noise"]
    assert expected[0]["image"].shape == (8, 3, 24, 24)
    assert expected[0]["boxes"].shape[::2] == (8, 4)
    assert len({batch["noise"][0].item() for batch in expected}) == 5
    with loader_of(scenes, as_detr, num_workers=1) as loader:
        list(islice(loader, 2))
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(scenes, as_detr) as loader:
        loader.load_state_dict(state)
        for batch, other in zip(loader, expected[2:], strict=True):
            assert torch.equal(batch["image"], other["image"])
            assert torch.equal(batch["noise"], other["noise"])
            assert batch["targets"] == other["targets"]


def test_samples_that_are_kept_do_not_change(scenes):
    with loader_of(scenes, list, num_workers=1) as loader:
        kept = [sample.image for _ in range(3) for samples in loader for sample in samples]
        copies = [image.clone() for image in kept]
        list(loader)
        assert all(map(torch.equal, kept, copies))


def test_a_dataloader_of_the_attributes_of_the_loader_makes_the_same_batches(scenes):
    with loader_of(scenes, as_detr) as loader, loader_of(scenes, as_detr) as other:
        parts = {"batch_sampler": other.batch_sampler, "collate_fn": other.collate_fn}
        for batch, same in zip(loader, DataLoader(other.dataset, **parts), strict=True):
            assert torch.equal(batch["image"], same["image"])
            assert torch.equal(batch["noise"], same["noise"])


def test_collate_fn_may_be_that_of_torch_and_a_batch_transform_gets_its_result(scenes):
    fields = {name: FIELDS[name] for name in ("image", "crops", "label")}
    with loader_of(scenes, fields=fields) as loader:
        expected = next(iter(loader))
    options = {"fields": fields, "batch_transform": lambda batch: batch._replace(label=-batch.label)}
    with loader_of(scenes, default_collate, **options) as loader:
        batch = next(iter(loader))
    assert torch.equal(batch.image, expected.image)
    assert torch.equal(batch.label, -expected.label)
    assert all(map(torch.equal, batch.crops, expected.crops))


def test_with_tail_mask_samples_have_valid_and_a_bare_field_gives_values(scenes):
    with loader_of(scenes, list, batch_size=32, tail="mask", fields="label") as loader:
        valid = [sample.valid for samples in loader for sample in samples]
    assert (len(valid), sum(valid), type(valid[0])) == (64, 40, bool)
    with loader_of(scenes, sum, fields="label") as loader:
        assert all(isinstance(total, int) for total in loader)


def test_an_unreadable_sample_is_replaced_before_collate_fn_is_called(scenes, tmp_path):
    import shutil

    shutil.copytree(scenes, tmp_path / "copy")
    path = tmp_path / "copy" / "scenes-000000.tar"
    data = bytearray(path.read_bytes())
    data[data.index(b"0000.jpg") + 3000] ^= 1
    path.write_bytes(data)
    with loader_of(tmp_path / "copy", list, on_error="replace", max_errors=3, num_workers=1) as loader:
        assert [len(samples) for samples in loader] == [8] * 5
        assert len(loader.errors) == 1


def test_an_exception_in_collate_fn_reaches_the_loop_and_steps_are_refused(scenes):
    with loader_of(scenes, lambda samples: samples[99]) as loader:
        with pytest.raises(IndexError):
            next(iter(loader))
        with pytest.raises(IndexError):  # it can be iterated again
            next(iter(loader))
    with pytest.raises(OptionError, match="batch_transform= must be a function of that batch"):
        loader_of(scenes, list, batch_transform=wt.RandomHorizontalFlip())
    with pytest.raises(OptionError, match="collate_fn=7; allowed are functions"):
        loader_of(scenes, 7)


# Batches on a device


class Pair(NamedTuple):
    one: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True)
class Target:
    """A dataclass that checks its values when it is made."""

    size: torch.Tensor
    name: str
    area: torch.Tensor = field(init=False)

    def __post_init__(self):
        assert self.size.tolist() == [3, 4]
        object.__setattr__(self, "area", self.size.prod())


class Encoding(UserDict):
    """As the tokenizers of transformers return: it has a method ``to``, and its values are also attributes."""

    def __init__(self, values, kind):
        super().__init__(values)
        self.kind = kind

    def to(self, device):
        raise AssertionError(device)


class Grouped:
    """As `torch_geometric.data.Batch`: it moves itself."""

    def __init__(self, nodes, device=None):
        self.nodes, self.device = nodes, device

    def to(self, device):
        return Grouped(self.nodes.to(device), device)


CONTAINERS = {
    "mapping": (lambda one: MappingProxyType({"one": one}), lambda value: value["one"]),
    "ordered": (lambda one: OrderedDict(one=one), lambda value: value["one"]),
    "default": (lambda one: defaultdict(list, one=one), lambda value: [value["one"], value["none"]][0]),
    "encoding": (lambda one: Encoding({"one": one}, "fast"), lambda value: {"fast": value["one"]}[value.kind]),
    "pair": (lambda one: Pair(one, "x"), lambda value: value.one),
    "deque": (lambda one: deque([one], maxlen=1), lambda value: value[0]),
    "target": (lambda one: Target(one[:2], "x"), lambda value: value.area),
    "list of targets": (lambda one: [Target(one[:2], "x")], lambda value: value[0].size),
    "grouped": (Grouped, lambda value: value.nodes),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_of_tensors_are_moved_to_the_device_and_keep_their_class(scenes, name):
    make, tensor_of = CONTAINERS[name]
    original = make(torch.tensor([3, 4, 5]))
    with loader_of(scenes, lambda _: {"a": original}, device="meta") as loader:
        moved = next(iter(loader))["a"]
    assert type(moved) is type(original)
    assert tensor_of(moved).device.type == "meta"
    assert tensor_of(original).device.type == "cpu"


class Quantity(np.ndarray):
    """As that of astropy: its method ``to`` converts the unit."""

    def to(self, unit):
        raise AssertionError(unit)


def test_arrays_text_and_containers_without_tensors_are_the_same_on_a_device(scenes):
    size, words = np.array([3, 4]), ["a", {"b": 1}]
    made = {"size": size, "length": size.view(Quantity), "words": words, "one": torch.ones(1)}
    with loader_of(scenes, lambda _: made, device="meta") as loader:
        batch = next(iter(loader))
    assert batch["size"] is size
    assert batch["length"] is made["length"]
    assert batch["words"] is words
    assert batch["one"].device.type == "meta"


def test_a_packed_sequence_is_moved_without_the_tensor_that_must_stay_on_the_cpu(scenes):
    with loader_of(scenes, lambda _: pack_sequence([torch.ones(2), torch.ones(1)]), device="meta") as loader:
        batch = next(iter(loader))
    assert type(batch) is PackedSequence
    assert batch.data.device.type == "meta"
    assert batch.batch_sizes.tolist() == [2, 1]


@pytest.mark.frameworks
@pytest.mark.torture
def test_the_result_of_a_tokenizer_is_moved_to_the_device(scenes):
    from transformers import BatchEncoding

    original = BatchEncoding({"input_ids": torch.ones(2, 3), "length": [3, 3]})
    with loader_of(scenes, lambda _: original, device="meta") as loader:
        batch = next(iter(loader))
    assert type(batch) is BatchEncoding
    assert batch.input_ids.device.type == "meta"
    assert batch["length"] == [3, 3]


class Recorded(torch.Tensor):
    """A tensor that records how it is copied."""

    def to(self, device, non_blocking):
        return device.type, non_blocking


def test_copies_to_mps_are_awaited_because_their_memory_is_freed_at_once():
    values = [torch.ones(1).as_subclass(Recorded)]
    for name, is_asynchronous in {"mps": False, "xpu": True}.items():
        assert copy_to_device(values, torch.device(name)) == [(name, is_asynchronous)]
