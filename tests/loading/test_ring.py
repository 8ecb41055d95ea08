"""Batch slots in shared memory: lent without a copy, and freed when the last view is deleted."""

import contextlib
import gc
import multiprocessing
from pathlib import Path

import pytest
import torch

from wds_tools.loading.fields.slots import SlotLayout, TensorSpec
from wds_tools.loading.pipeline.ring import Ring

pytestmark = pytest.mark.usefixtures("quick_collections")
IMAGES = SlotLayout((TensorSpec((3, 4, 5), torch.uint8),))


def descriptors():
    """Return the number of open memory files of rings. Other threads may close other descriptors meanwhile."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += "memfd:wds_tools" in str(path.readlink())
    return count


def fill(ring, slot, value):
    ring.tensors(slot)[0].fill_(value)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_pixels_written_by_a_forked_process_or_one_that_got_the_ring_pickled_are_visible(method):
    ring = Ring(slots=3, rows=2, layouts=[IMAGES])
    process = multiprocessing.get_context(method).Process(target=fill, args=(ring, 1, 77))
    process.start()
    process.join()
    assert (ring.tensors(1)[0] == 77).all()
    assert not ring.tensors(0)[0].any()
    assert not ring.tensors(2)[0].any()


def test_a_lent_slot_is_freed_when_its_last_view_is_deleted():
    ring = Ring(slots=1, rows=2, layouts=[IMAGES])
    (images,) = ring.lend(ring.take())
    view = images[0, 1:, :2]
    del images
    gc.collect()
    assert ring.free == 0  # a view of a part of an image keeps the slot
    del view
    gc.collect()
    assert ring.free == 1


def test_a_slot_with_several_tensors_is_freed_when_the_last_one_is_deleted():
    specs = (TensorSpec((3, 5), torch.uint8), None, TensorSpec((2,), torch.float32), TensorSpec((), torch.int64))
    ring = Ring(slots=1, rows=3, layouts=[SlotLayout(specs)])
    slot = ring.take()
    first, second, third = ring.lend(slot)
    assert [tensor.shape for tensor in (first, second, third)] == [(3, 3, 5), (3, 2), (3,)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in (first, second, third))
    first.fill_(1), second.fill_(2.5), third.fill_(-3)
    assert [tensor.unique().tolist() for tensor in ring.tensors(slot)] == [[1], [2.5], [-3]]
    del first, third
    gc.collect()
    assert ring.free == 0
    del second
    gc.collect()
    assert ring.free == 1


def test_a_lent_tensor_stays_valid_after_its_ring_is_deleted():
    ring = Ring(slots=1, rows=2, layouts=[IMAGES])
    (images,) = ring.lend(ring.take())
    images.fill_(9)
    del ring
    gc.collect()
    assert (images == 9).all()


def test_the_slot_that_was_freed_last_is_used_first():
    ring = Ring(slots=4, rows=1, layouts=[SlotLayout((TensorSpec((1,), torch.uint8),))])
    taken = [ring.take() for _ in range(4)]
    for slot in taken:
        ring.release(slot)
    assert [ring.take() for _ in range(4)] == taken[::-1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64])
def test_slots_hold_any_dtype(dtype):
    ring = Ring(slots=2, rows=3, layouts=[SlotLayout((TensorSpec((2, 2), dtype),))])
    (images,) = ring.tensors(1)
    assert images.shape == (3, 2, 2)
    assert images.dtype == dtype
    images.fill_(1)
    assert (ring.tensors(1)[0] == 1).all()
    assert not ring.tensors(0)[0].any()


def test_a_ring_has_no_name_in_dev_shm_and_closes_its_descriptor():
    gc.collect()  # what other tests left
    before = descriptors()
    ring = Ring(slots=2, rows=2, layouts=[IMAGES])
    assert descriptors() > before
    assert "/memfd:wds_tools" in Path("/proc/self/maps").read_text()
    del ring
    gc.collect()
    assert descriptors() == before
