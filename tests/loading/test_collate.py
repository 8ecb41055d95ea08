"""Collation: values of samples are stacked, sent in parts, joined, and converted to tensors."""

from typing import NamedTuple

import numpy as np
import preloaded
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.loading.fields.collate import Columns, as_tensors, join_parts, map_tensors, stack_values


class Crops(NamedTuple):
    large: torch.Tensor
    small: torch.Tensor


def test_parts_with_numbers_and_text_are_joined_in_order():
    numbers, words = np.array([1, 2]), ["a", "b"]
    got = join_parts([[None, numbers, words, numbers], [None, np.array([2.5]), ["c"], ["x"]]])
    assert got[0] is None
    assert got[1].tolist() == [1.0, 2.0, 2.5]
    assert got[2] == ["a", "b", "c"]
    assert got[3] == [1, 2, "x"]
    assert all(type(value) is int for value in got[3][:2])


def test_arrays_of_parts_are_joined_if_shape_and_dtype_agree_and_listed_otherwise():
    small, large, floats = np.zeros((2, 3, 4), np.uint8), np.zeros((2, 5, 4), np.uint8), np.zeros((2, 3, 4))
    halves = torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    assert join_parts([[small], [small]])[0].shape == (4, 3, 4)
    assert join_parts([[halves], [halves]])[0].shape == (4, 3, 4)
    for other in (large, floats, halves, list(large), [small[0], large[0]]):
        items = join_parts([[small], [other]])[0]
        assert [item.shape for item in items] == [(3, 4)] * 2 + [tuple(one.shape) for one in other]
        assert items[0].dtype == np.uint8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
def test_tensors_of_one_shape_and_dtype_are_stacked_and_others_stay_a_list(dtype):
    same = [torch.full((2, 3), value, dtype=dtype) for value in (1, 2)]
    assert torch.equal(as_tensors(stack_values(same)), torch.stack(same))
    for others in ([same[0], same[0].float()], [same[0], same[0][:1]]):
        assert all(map(torch.equal, as_tensors(stack_values(others)), others))


@pytest.mark.parametrize(
    "values",
    [["a", "b"], [[1], [2]], [{"a": 1}, {"a": 2}], [None, None], [b"1"], [2**70, 1], [2**63 + 1, 5], [2**64 - 1], []],
)
def test_values_other_than_tensors_and_numbers_stay_a_list(values):
    assert as_tensors(stack_values(values)) == values
    assert as_tensors(join_parts([[stack_values(values)], [stack_values(values)]])[0]) == values * 2


def crops(row):
    return torch.full((3, 4), row), torch.full((2,), row)


CONTAINERS = [
    tuple,
    list,
    lambda pair: Crops(*pair),
    lambda pair: dict(zip("ab", pair, strict=True)),
    lambda pair: {"both": pair, "name": "x"},
]


def leaves(value):
    found = []
    map_tensors(found.append, value)
    return found


@pytest.mark.parametrize("container", CONTAINERS)
@given(parts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_containers_of_tensors_are_stacked_element_by_element_in_any_number_of_parts(container, parts):
    rows = iter(range(sum(parts)))
    made = [[stack_values([container(crops(next(rows))) for _ in range(count)])] for count in parts]
    batch = as_tensors(join_parts(made)[0])
    assert type(batch) is type(container(crops(0)))
    large, small = leaves(batch)
    assert torch.equal(large, torch.stack([crops(row)[0] for row in range(sum(parts))]))
    assert torch.equal(small, torch.stack([crops(row)[1] for row in range(sum(parts))]))


def test_elements_of_containers_may_be_numbers_text_and_tensors_of_different_sizes():
    rows = [(torch.zeros(size), size, str(size)) for size in (1, 2, 3)]
    sizes, numbers, names = as_tensors(stack_values(rows))
    assert [len(one) for one in sizes] == numbers.tolist() == [1, 2, 3]
    assert names == ["1", "2", "3"]


def test_containers_that_differ_stay_a_list_of_samples():
    pair, triple = (torch.zeros(1), torch.zeros(1)), (torch.zeros(1),) * 3
    assert [len(sample) for sample in as_tensors(stack_values([pair, triple]))] == [2, 3]
    parts = join_parts([[stack_values([pair, pair])], [stack_values([triple])], [stack_values([torch.zeros(1)])]])[0]
    assert [len(sample) for sample in as_tensors(parts)] == [2, 2, 3, 1]
    assert type(parts[0]) is tuple


def test_only_containers_with_tensors_become_columns():
    assert isinstance(stack_values([crops(0)]), Columns)
    assert stack_values([(1, 2)]) == [(1, 2)]


def test_map_tensors_reaches_nested_containers():
    value = {"a": [torch.ones(1), "text"], "b": Crops(torch.ones(2), torch.ones(3)), "c": {"none": [1, 2]}}
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert [tensor.sum().item() for tensor in leaves(doubled)] == [2, 4, 6]
    assert type(doubled["b"]) is Crops
    assert doubled["c"] is value["c"]


def two_crops(image):
    return image[:, :16, :16], image[:, :8, :8].float()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("view", [wt.CenterCrop(24), wt.Resize(40)])
@pytest.mark.torture_except("view0-2", "view1-0")
def test_a_transform_that_returns_two_crops_gives_two_tensors(packed, num_workers, view):
    options = {"batch_size": 150, "view": view, "num_workers": num_workers, "transform": two_crops}
    with wt.make_loader(packed, **options) as loader:
        (large, small), labels = next(iter(loader))
    assert (large.shape, large.dtype) == ((150, 3, 16, 16), torch.uint8)
    assert (small.shape, small.dtype) == ((150, 3, 8, 8), torch.float32)
    assert torch.equal(large[:, :, :8, :8].float(), small)
    assert labels.shape == (150,)


FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import wds_tools as wt

if __name__ == "__main__":
    loader = wt.make_loader(sys.argv[1], batch_size=160, view=wt.CenterCrop(24), num_workers=2,
                            subset=range(160),
                            transform=lambda image: {"one": image, "other": image.float()})
    print([batch.image["other"].shape[0] for batch in loader])
"""


def test_several_tensors_per_sample_use_no_file_descriptors(packed):
    run = preloaded.run(["-c", FEW_DESCRIPTORS, packed])
    assert run.stdout == "[160]\n"
