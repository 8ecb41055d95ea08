"""Batches on a CUDA device. These tests are skipped without one."""

import time

import pytest
import torch

import wds_tools as wt
from wds_tools.loading import autoscale

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
VIEW = wt.RandomResizedCrop(64, flip=True)


def test_batches_on_cuda_equal_those_in_cpu_memory(packed):
    with (
        wt.make_loader(packed, batch_size=32, view=VIEW, shuffle=True, num_workers=2) as host,
        wt.make_loader(packed, batch_size=32, view=VIEW, shuffle=True, num_workers=2, device="cuda") as cuda,
    ):
        for epoch in range(3):
            for (images, labels), (moved, moved_labels) in zip(host, cuda, strict=True):
                assert moved.device.type == moved_labels.device.type == "cuda"
                assert torch.equal(moved.cpu(), images), epoch
                assert torch.equal(moved_labels.cpu(), labels)


def test_a_slot_is_not_reused_before_its_copy_is_complete(packed):
    with wt.make_loader(packed, batch_size=32, view=VIEW, shuffle=True, num_workers=2, device="cuda") as cuda:
        kept = [images for images, _ in cuda]
        cuda.set_epoch(0)
        for before, (images, _) in zip(kept, cuda, strict=True):
            torch.cuda._sleep(50_000_000)  # noqa: SLF001 - delays the stream that uses the batch; not public
            assert torch.equal(before, images)


def test_the_state_counts_delivered_batches_and_not_those_copied_ahead(packed):
    with wt.make_loader(packed, batch_size=32, view=VIEW, shuffle=True, num_workers=2, device="cuda") as cuda:
        for number, _ in enumerate(cuda, 1):
            assert cuda.state_dict()["position"] == number * 32 % (12 * 32)


def test_batch_transform_runs_on_the_device(packed):
    with wt.make_loader(
        packed, batch_size=32, view=VIEW, device="cuda", num_workers=1, batch_transform=lambda x: x.half() / 255
    ) as cuda:
        images, _ = next(iter(cuda))
        assert images.dtype == torch.float16
        assert images.is_cuda


def test_auto_adds_workers_while_slots_are_pinned_and_batches_stay_the_same(packed, monkeypatch):
    monkeypatch.setattr(autoscale, "available_cores", lambda: 4)
    options = {"batch_size": 8, "view": VIEW, "shuffle": True}
    with (
        wt.make_loader(packed, **options, num_workers=2) as host,
        wt.make_loader(packed, **options, num_workers="auto", device="cuda") as cuda,
    ):
        deadline = time.monotonic() + 60
        while cuda.num_workers == 1:
            assert time.monotonic() < deadline
            for (images, _), (moved, _) in zip(host, cuda, strict=True):
                assert torch.equal(moved.cpu(), images)
        for (images, _), (moved, _) in zip(host, cuda, strict=True):
            assert torch.equal(moved.cpu(), images)
