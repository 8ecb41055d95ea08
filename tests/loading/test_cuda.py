"""Batches on a CUDA device. These tests are skipped without one; `test_copier.py` has a model of CUDA instead."""

import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import wds_tools as wt
from wds_tools.loading.pipeline import autoscale, pipeline
from wds_tools.loading.pipeline.cuda import CudaDriver
from wds_tools.loading.samples.batch_steps import SampleKeys

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
VIEW = wt.RandomResizedCrop(64, flip=True)
OPTIONS = {"batch_size": 32, "view": VIEW, "shuffle": True, "num_workers": 2}
CYCLES = 50_000_000  # of the clock of the GPU: about 30 ms


def delay():
    """Let the current stream wait."""
    torch.cuda._sleep(CYCLES)  # noqa: SLF001 - not public


class SlowCopies(CudaDriver):
    """Copies that are executed late."""

    def copy(self, tensor):
        delay()
        return super().copy(tensor)


class NoRegistration(CudaDriver):
    """A machine on which the memory of the ring cannot be registered."""

    def register(self, memory):
        super().register(memory)
        error = super().register(memory)  # CUDA refuses memory that is registered already
        self.unregister(memory)
        return error


def assert_equal_batches(host, cuda, epochs):
    for epoch in range(epochs):
        for (images, labels), (moved, moved_labels) in zip(host, cuda, strict=True):
            assert moved.device.type == moved_labels.device.type == "cuda"
            assert torch.equal(moved.cpu(), images), epoch
            assert torch.equal(moved_labels.cpu(), labels)


@pytest.mark.parametrize(
    "view",
    [wt.Schedule({0: wt.Resize((24, 32)), 1: VIEW}), wt.Buckets([(32, 32), (24, 40)], flip=True)],
    ids=lambda view: type(view).__name__,
)
def test_batches_of_several_sizes_equal_those_in_cpu_memory(packed, view):
    options = {**OPTIONS, "view": view}
    with wt.make_loader(packed, **options) as host, wt.make_loader(packed, **options, device="cuda") as cuda:
        assert_equal_batches(host, cuda, epochs=2)


@pytest.mark.parametrize("options", [{}, {"device_prefetch": 1}, {"device_prefetch": 8}, {"num_workers": 0}])
def test_batches_on_cuda_equal_those_in_cpu_memory(packed, options):
    with (
        wt.make_loader(packed, **OPTIONS) as host,
        wt.make_loader(packed, **{**OPTIONS, "device": "cuda", **options}) as cuda,
    ):
        assert_equal_batches(host, cuda, epochs=3)


@pytest.mark.parametrize("pad", [0, wt.Pad(size=400)])
def test_masks_of_padding_are_made_on_the_device(scenes, pad):
    fields = {
        "image": wt.Image(view=[wt.Resize(120), wt.Resize(60)], pad=pad),
        "boxes": wt.Boxes(path="objects.bbox", pad=-1),
    }
    options = {"batch_size": 8, "num_workers": 2, "fields": fields}
    with wt.make_loader(scenes, **options) as host, wt.make_loader(scenes, **options, device="cuda") as cuda:
        for batch, other in zip(cuda, host, strict=True):
            for value, expected in zip(batch, other, strict=True):
                pairs = zip(value, expected, strict=True) if isinstance(value, list) else [(value, expected)]
                assert all(one.is_cuda and torch.equal(one.cpu(), two) for one, two in pairs)


def test_a_slot_is_not_reused_before_its_copy_is_complete(packed, monkeypatch):
    # With one batch in progress there are five slots for 12 batches, and the stream of the copies is slow.
    monkeypatch.setattr(pipeline, "CudaDriver", SlowCopies)
    options = {**OPTIONS, "num_workers": 1, "prefetch_factor": 1}
    with wt.make_loader(packed, **options) as host, wt.make_loader(packed, **options, device="cuda") as cuda:
        kept = [images for _ in range(2) for images, _ in cuda]
        expected = [images.clone() for _ in range(2) for images, _ in host]
        for images, expected_images in zip(kept, expected, strict=True):
            assert torch.equal(images.cpu(), expected_images)


def test_the_memory_of_a_deleted_batch_is_not_used_again_before_the_loop_has_read_it(packed):
    with wt.make_loader(packed, **OPTIONS) as host, wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
        read = []
        for images, _ in cuda:
            delay()
            read.append(images.clone())
            del images
        for images, (expected, _) in zip(read, host, strict=True):
            assert torch.equal(images.cpu(), expected)


def test_batches_on_a_side_stream_equal_those_in_cpu_memory(packed):
    with wt.make_loader(packed, **OPTIONS) as host, wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
        with torch.cuda.stream(torch.cuda.Stream()):
            assert_equal_batches(host, cuda, epochs=1)
        assert_equal_batches(host, cuda, epochs=1)


def test_a_captured_graph_reads_each_batch(packed):
    with wt.make_loader(packed, **OPTIONS) as host, wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
        batches = iter(cuda)
        fixed, total = next(batches).image.clone(), torch.zeros((), device="cuda", dtype=torch.int64)
        total.copy_(fixed.sum())  # loads the kernels before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total.copy_(fixed.sum())
        totals = []
        for images, _ in batches:
            fixed.copy_(images)
            graph.replay()
            totals.append(total.clone())
        expected = [images.sum() for images, _ in host][1:]
        assert [int(one) for one in totals] == [int(one) for one in expected]


def test_lists_of_images_equal_those_in_cpu_memory(packed):
    options = {"batch_size": 40, "fields": ("image", "label", "__key__"), "num_workers": 2}
    with pytest.warns(UserWarning, match="list of tensors"):
        host, cuda = wt.make_loader(packed, **options), wt.make_loader(packed, **options, device="cuda")
    with host, cuda:
        for (images, labels, keys), (moved, moved_labels, moved_keys) in zip(host, cuda, strict=True):
            assert all(torch.equal(one.cpu(), image) for one, image in zip(moved, images, strict=True))
            assert torch.equal(moved_labels.cpu(), labels)
            assert moved_keys == keys


def test_without_registered_memory_batches_are_equal_and_no_error_is_left(packed, monkeypatch, caplog):
    monkeypatch.setattr(pipeline, "CudaDriver", NoRegistration)
    with wt.make_loader(packed, **OPTIONS) as host, wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
        assert_equal_batches(host, cuda, epochs=2)
    assert sum("batch slots (error" in record.getMessage() for record in caplog.records) == 1
    assert torch.ones(3, device="cuda").sum() == 3


def test_loaders_that_are_deleted_without_close_leave_no_registered_memory(packed):
    with wt.make_loader(packed, **OPTIONS) as host:
        for _ in range(5):
            loader = wt.make_loader(packed, **OPTIONS, device="cuda")
            host.set_epoch(0)
            assert_equal_batches(host, loader, epochs=1)
            del loader
            gc.collect()


def test_a_forked_process_may_delete_the_loader(packed):
    with wt.make_loader(packed, **OPTIONS) as host, wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
        next(iter(cuda))
        child = os.fork()
        if not child:
            status = 100
            try:
                del cuda
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        host.set_epoch(1)
        assert_equal_batches(host, cuda, epochs=1)


def test_cuda_is_not_initialized_before_the_workers_are_forked(packed, tmp_path):
    program = f"""
        import os
        import torch
        import wds_tools as wt

        forks = []
        os.register_at_fork(before=lambda: forks.append(torch.cuda.is_initialized()))
        loader = wt.make_loader({str(packed)!r}, batch_size=32, view=wt.CenterCrop(32), num_workers=2,
                                multiprocessing_context="fork", device="cuda")
        images, _ = next(iter(loader))
        assert images.is_cuda
        assert forks == [False, False], forks
        loader.close()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    folder = str(Path(wt.__file__).parents[1])
    subprocess.run([sys.executable, tmp_path / "program.py"], check=True, env={**os.environ, "PYTHONPATH": folder})


def test_the_loop_does_not_run_far_ahead_of_the_gpu(packed):
    with wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
        ends = []
        for _ in range(2):
            for _ in cuda:
                assert sum(not end.query() for end in ends) <= 2
                delay()
                ends.append(torch.cuda.Event())
                ends[-1].record()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second CUDA device")
def test_a_rank_uses_only_its_own_device(packed, tmp_path):
    program = f"""
        import torch
        import wds_tools as wt

        view = wt.CenterCrop(32)
        with wt.make_loader({str(packed)!r}, batch_size=32, view=view, num_workers=2, device="cuda") as loader:
            for images, _ in loader:
                assert images.device.index == 1
            # torch creates the context of a device when it is first used.
            assert not torch._C._cuda_hasPrimaryContext(0)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    folder = str(Path(wt.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": folder, "LOCAL_RANK": "1"}
    subprocess.run([sys.executable, tmp_path / "program.py"], check=True, env=env)


def test_the_state_counts_delivered_batches_and_not_those_copied_ahead(packed):
    with wt.make_loader(packed, **OPTIONS, device="cuda") as cuda:
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
            assert_equal_batches(host, cuda, epochs=1)
        assert_equal_batches(host, cuda, epochs=1)


def test_steps_of_batch_transform_do_not_wait_for_the_device_and_have_the_pixels_of_the_cpu():
    images = torch.randint(0, 256, (64, 3, 64, 48), dtype=torch.uint8)
    labels, keys = torch.arange(64) % 10, SampleKeys(0, 0, np.arange(64))
    steps = [wt.RandomHorizontalFlip(), wt.ColorJitter(0.4, 0.4, 0.4, 0.1), wt.RandAugment(1, 9)]
    for step in [*steps, wt.MixUp(num_classes=10), wt.CutMix(num_classes=10)]:
        moved, moved_labels = images.cuda(), labels.cuda()
        step.apply(moved, moved_labels, keys, "")  # checks labels
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = step.apply(moved, moved_labels, keys, "")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        expected = step.apply(images, labels, keys, "")
        for after, on_cpu in zip(*((one if step.needs_labels else [one]) for one in (found, expected)), strict=True):
            difference = (after.cpu().float() - on_cpu.float()).abs()
            assert (difference > 1).float().mean() < 0.001  # a warp may take the other of two pixels
