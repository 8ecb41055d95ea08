"""Memory of large tensors is used again, but not before the tensor and all its views are deleted."""

import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.loading.workers import memory as memory_module
from wds_tools.loading.workers.memory import ReusedMemory

SHAPE = (4, 3, 300, 400)


def test_the_memory_of_a_deleted_tensor_is_used_for_one_of_similar_size():
    memory = ReusedMemory()
    tensor = memory.empty(SHAPE, torch.uint8)
    address = tensor.data_ptr()
    view = tensor[1:, ::2].numpy()
    del tensor
    assert memory.empty(SHAPE, torch.uint8).data_ptr() != address  # a view is left
    del view
    addresses = {memory.empty((1, *SHAPE[1:]), torch.float32).data_ptr() for _ in range(3)}
    assert address in addresses
    assert memory.empty((3, *SHAPE), torch.float32).data_ptr() not in addresses  # nothing is large enough


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(("name", "limit"), [("MAX_FREE_BLOCKS", 2), ("MAX_FREE_BYTES", 90_000_000)])
def test_only_a_limited_amount_of_memory_is_kept(monkeypatch, name, limit):
    monkeypatch.setattr(memory_module, name, limit)
    memory = ReusedMemory()
    tensors = [memory.empty((36 << 20,), torch.uint8).fill_(1) for _ in range(6)]
    before = resident_bytes()
    del tensors
    memory.empty((1 << 21,), torch.uint8)
    assert before - resident_bytes() > 100_000_000  # of 226 MB, of which 75 MB are kept


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([torch.uint8, torch.float32]), st.booleans())))
def test_tensors_that_are_kept_do_not_share_memory(requests):
    memory, kept = ReusedMemory(), []
    for number, (rows, dtype, keep) in enumerate(requests):
        tensor = memory.empty((rows, 100, 1000), dtype)
        tensor[...] = number
        if keep:
            kept.append((number, tensor))
    assert all((tensor == number).all() for number, tensor in kept)
