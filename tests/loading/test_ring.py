"""Batch slots in shared memory: lent without a copy, and freed when the last view is deleted."""

import contextlib
import gc
import multiprocessing
from pathlib import Path

import pytest
import torch

from wds_tools.loading.assemble import ImageSpec
from wds_tools.loading.ring import Ring

IMAGES = ImageSpec((3, 4, 5), torch.uint8)


def descriptors():
    """Return the number of open memory files of rings. Other threads may close other descriptors meanwhile."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += "memfd:wds_tools" in str(path.readlink())
    return count


def fill(ring, slot, value):
    ring.images(slot).fill_(value)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_pixels_written_by_another_process_are_visible_with_any_start_method(method):
    ring = Ring(slots=3, rows=2, image_spec=IMAGES)
    process = multiprocessing.get_context(method).Process(target=fill, args=(ring, 1, 77))
    process.start()
    process.join()
    assert (ring.images(1) == 77).all()
    assert not ring.images(0).any()
    assert not ring.images(2).any()


def test_a_lent_slot_is_freed_when_its_last_view_is_deleted():
    ring = Ring(slots=1, rows=2, image_spec=IMAGES)
    images = ring.lend(ring.take())
    view = images[0, 1:, :2]
    del images
    gc.collect()
    assert ring.free == 0  # a view of a part of an image keeps the slot
    del view
    gc.collect()
    assert ring.free == 1


def test_a_lent_tensor_stays_valid_after_its_ring_is_deleted():
    ring = Ring(slots=1, rows=2, image_spec=IMAGES)
    images = ring.lend(ring.take())
    images.fill_(9)
    del ring
    gc.collect()
    assert (images == 9).all()


def test_the_slot_that_was_freed_last_is_used_first():
    ring = Ring(slots=4, rows=1, image_spec=ImageSpec((1,), torch.uint8))
    taken = [ring.take() for _ in range(4)]
    for slot in taken:
        ring.release(slot)
    assert [ring.take() for _ in range(4)] == taken[::-1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64])
def test_slots_hold_any_dtype(dtype):
    ring = Ring(slots=2, rows=3, image_spec=ImageSpec((2, 2), dtype))
    images = ring.images(1)
    assert images.shape == (3, 2, 2)
    assert images.dtype == dtype
    images.fill_(1)
    assert (ring.images(1) == 1).all()
    assert not ring.images(0).any()


def test_a_ring_has_no_name_in_dev_shm_and_closes_its_descriptor():
    gc.collect()  # what other tests left
    before = descriptors()
    ring = Ring(slots=2, rows=2, image_spec=IMAGES)
    assert descriptors() > before
    assert "/memfd:wds_tools" in Path("/proc/self/maps").read_text()
    del ring
    gc.collect()
    assert descriptors() == before
