"""Batches on CUDA devices, with a model of CUDA instead of a GPU (`fake_cuda`). `test_cuda.py` has tests on a GPU."""

import gc
import logging
import multiprocessing
import os
import signal
import time
import weakref

import pytest
import torch
from fake_cuda import FakeDriver, Gpu
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat
from waiting import wait_for
from worker_processes import worker_processes

import wds_tools as wt
from wds_tools.errors import DeviceError, LoaderError
from wds_tools.loading.fields.slots import SlotLayout, TensorSpec
from wds_tools.loading.pipeline import autoscale, pipeline
from wds_tools.loading.pipeline.copier import CudaCopier
from wds_tools.loading.pipeline.ring import Ring

VIEW = wt.RandomResizedCrop(32, flip=True)
SEVERAL_SIZES = [wt.Schedule({0: wt.Resize((24, 32)), 1: VIEW}), wt.Buckets([(32, 32), (24, 40)], flip=True)]
OPTIONS = {"batch_size": 4, "view": VIEW, "shuffle": True, "num_workers": 1}


@pytest.fixture
def gpu(monkeypatch, quick_collections):
    """Return a model of two GPUs that the loader uses. At the end of the test nothing was done wrong with it."""
    gpu = Gpu(count=2)
    monkeypatch.setattr(pipeline, "CudaDriver", lambda device: FakeDriver(gpu, device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu.count)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu.is_initialized)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpu.current)
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield gpu
    assert gpu.mistakes == []
    assert gpu.blocking_copies == []
    # A thread that ends may hold a batch a little longer, and a cycle until it is collected.
    wait_for(lambda: not gpu.registered or (gc.collect() >= 0 and not gpu.registered))


@pytest.fixture(scope="module")
def expected(few):
    """Return the images and labels of two epochs in CPU memory."""
    with wt.make_loader(few, **OPTIONS) as loader:
        return [[(images.clone(), labels.clone()) for images, labels in loader] for _ in range(2)]


def train(loader, gpu, seconds=0.0):
    """Return what training steps read on the device. They are executed late."""
    seen = []
    for images, labels in loader:
        assert loader.device.type == "cuda"
        assert images.fake_device == labels.fake_device == loader.device.index
        device = loader.device.index
        assert gpu.current_streams[device] in images.fake_streams & labels.fake_streams
        gpu.launch(lambda i=images, n=labels: seen.append((i.clone(), n.clone())), seconds, device)
    gpu.synchronize()
    return seen


def assert_equal(seen, expected):
    assert len(seen) == len(expected)
    for (images, labels), (expected_images, expected_labels) in zip(seen, expected, strict=True):
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)


@pytest.mark.parametrize("options", [{}, {"device_prefetch": 1}, {"device_prefetch": 7}, {"num_workers": 0}])
@pytest.mark.torture_except("options0")
def test_batches_on_cuda_equal_those_in_cpu_memory(few, gpu, expected, options):
    with wt.make_loader(few, **{**OPTIONS, "device": "cuda", **options}) as loader:
        for epoch in range(2):
            assert_equal(train(loader, gpu), expected[epoch])


@pytest.mark.parametrize("view", SEVERAL_SIZES, ids=lambda view: type(view).__name__)
@pytest.mark.torture_except("Buckets")
def test_batches_of_several_sizes_use_the_same_slots(few, gpu, view):
    options = {**OPTIONS, "view": view, "prefetch_factor": 1}
    with wt.make_loader(few, **options) as loader:
        wanted = [[(images.clone(), labels.clone()) for images, labels in loader] for _ in range(2)]
    assert len({images.shape for epoch in wanted for images, _ in epoch}) > 1
    with wt.make_loader(few, **options, device="cuda") as loader:
        for epoch in range(2):
            assert_equal(train(loader, gpu), wanted[epoch])


def test_a_slot_is_not_reused_before_its_copy_is_complete(few, gpu, expected):
    # With one batch in progress there are five slots for 10 batches, and no copy is executed before it is waited for.
    with wt.make_loader(few, **{**OPTIONS, "num_workers": 1}, prefetch_factor=1, device="cuda") as loader:
        for epoch in range(2):
            assert_equal(train(loader, gpu), expected[epoch])


@pytest.fixture
def copier(gpu):
    """Return a copier and its ring of two slots, each with one image of four pixels."""
    ring = Ring(slots=2, rows=1, layouts=[SlotLayout((TensorSpec((4,), torch.uint8),))])
    copier = CudaCopier(FakeDriver(gpu, torch.device("cuda", 0)), ring)
    yield copier, ring
    copier.close()


def test_a_slot_is_released_only_after_its_copy(copier):
    copier, ring = copier
    copies = []
    for value in range(2, 8):
        copier.release_copied(at_least_one=not ring.free)
        slot = ring.take()
        ring.tensors(slot)[0].fill_(value)
        copies.append(copier.start([None, torch.tensor([value])], slot))
    copies[-1].done.synchronize()
    for value, copy in enumerate(copies, 2):
        assert copy.values[0].tolist() == [[value] * 4]
        assert copy.values[1].tolist() == [value]


def test_a_slot_whose_copy_failed_may_be_copied_again(copier, gpu):
    copier, ring = copier
    slot = ring.take()
    ring.tensors(slot)[0].fill_(7)
    gpu.fail_copies = 1
    with pytest.raises(torch.OutOfMemoryError):
        copier.start([None], slot)
    copier.release_copied(at_least_one=False)
    assert ring.free == 1
    copy = copier.start([None], slot)
    copier.release_copied(at_least_one=True)
    assert copy.values[0].tolist() == [[7] * 4]
    assert ring.free == 2


def test_batches_may_be_kept(few, gpu, expected):
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        kept = [[(images, labels) for images, labels in loader] for _ in range(2)]
    gpu.synchronize()
    for epoch in range(2):
        assert_equal(kept[epoch], expected[epoch])


def test_a_batch_that_is_dropped_early_is_freed(few, gpu):
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        batches = iter(loader)
        for _ in range(3):
            images = next(batches).image
            reference = weakref.ref(images)
            gpu.synchronize()
            del images
            assert reference() is None
        batches.close()


def test_batches_on_a_side_stream_are_recorded_there(few, gpu, expected):
    with wt.make_loader(few, **OPTIONS, device="cuda:1") as loader:
        driver = FakeDriver(gpu, loader.device)
        with driver.current():
            side = driver.stream()
        with driver.using(side):
            assert_equal(train(loader, gpu), expected[0])
        assert_equal(train(loader, gpu), expected[1])


def test_several_loaders_on_one_gpu(few, gpu, expected):
    with (
        wt.make_loader(few, **OPTIONS, device="cuda") as one,
        wt.make_loader(few, **OPTIONS, device="cuda") as two,
    ):
        seen = list(zip(one, two, strict=True))
    gpu.synchronize()
    for batches in zip(*seen, strict=True):
        assert_equal(batches, expected[0])


def test_after_a_break_the_next_epoch_is_right(few, gpu, expected):
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        for _ in range(3):
            loader.set_epoch(0)
            for number, _ in enumerate(loader):
                if number == 4:
                    break
        assert loader.state_dict()["position"] == 5 * 4
        assert_equal(train(loader, gpu), expected[1])


# Memory


def test_only_slots_in_use_are_pinned(few, gpu):
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        next(iter(loader))
        slot = 4 * 3 * 32 * 32  # bytes, a multiple of the size of a page
        assert set(gpu.registered.values()) == {slot}
        assert gpu.registrations <= 3  # the batch, and two that are copied ahead


def test_all_loaders_of_a_process_share_a_stream_and_so_the_memory_of_the_allocator(few, gpu):
    reserved = set()
    for _ in range(3):
        with wt.make_loader(few, **{**OPTIONS, "num_workers": 0}, device="cuda") as loader:
            train(loader, gpu)
        gc.collect()
        reserved.add(tuple(gpu.reserved.items()))
    assert len(gpu.streams) - len(gpu.default_streams) == 1
    assert len(reserved) == 1


def test_too_little_memory_for_a_batch_that_is_copied_ahead_does_not_end_the_epoch(few, gpu, expected):
    batch_bytes = 4 * 3 * 32 * 32 + 4 * 8
    gpu.memory = 2 * batch_bytes  # the batch of the loop, and one more
    epoch = 0
    while not gpu.refused:  # until workers finished a batch early
        seen = []
        with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
            for images, labels in loader:
                gpu.synchronize()
                seen.append((images.clone(), labels.clone()))
                del images, labels
                time.sleep(0.02 * epoch)
        assert_equal(seen, expected[0])
        epoch += 1
    gpu.memory = batch_bytes - 1
    with (
        wt.make_loader(few, **OPTIONS, device="cuda") as loader,
        pytest.raises(torch.OutOfMemoryError),
    ):
        next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_the_default_device_of_the_program_does_not_matter(scenes, gpu, num_workers):
    fields = {
        "image": wt.Image(view=wt.Resize(40), pad=0, transform=lambda image: image + torch.ones(1, dtype=torch.uint8)),
        "boxes": wt.Boxes(path="objects.bbox", like="image", pad=-1),
        "label": wt.Label(),
    }
    options = {"batch_size": 8, "fields": fields, "multiprocessing_context": "fork"}
    with wt.make_loader(scenes, **options, num_workers=0) as loader:
        wanted = [(batch.image.clone(), batch.boxes, batch.label) for batch in loader]
    torch.set_default_device("meta")
    try:
        with wt.make_loader(scenes, **options, num_workers=num_workers, device="cuda") as loader:
            batches = list(loader)
    finally:
        torch.set_default_device(None)
    gpu.synchronize()
    for batch, values in zip(batches, wanted, strict=True):
        assert all(map(torch.equal, batch, values))


# Memory that stays registered


def test_a_loader_that_is_deleted_without_close_unregisters_its_memory(few, gpu, expected):
    for _ in range(3):
        loader = wt.make_loader(few, **OPTIONS, device="cuda:1")
        batches = iter(loader)
        next(batches)
        assert gpu.registered
        del loader, batches
        gc.collect()
        assert gpu.registered == {}
    with wt.make_loader(few, **OPTIONS, device="cuda:1") as loader:
        assert_equal(train(loader, gpu), expected[0])


def test_a_forked_process_that_deletes_the_loader_does_not_call_cuda(few, gpu):
    loader = wt.make_loader(few, **OPTIONS, device="cuda")
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        status = 100
        try:
            del loader, batches
            gc.collect()
            status = len(gpu.mistakes) + 10 * (not gpu.registered)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()
    assert gpu.registered == {}


def test_memory_is_unregistered_later_if_a_graph_is_captured_meanwhile(few, gpu):
    loader = wt.make_loader(few, **OPTIONS, device="cuda")
    next(iter(loader))
    gpu.capturing.add(0)
    del loader
    gc.collect()
    kept = set(gpu.registered)
    assert kept
    gpu.capturing.clear()
    with wt.make_loader(few, **OPTIONS, device="cuda") as another:
        next(iter(another))
        assert not kept & set(gpu.registered)
    assert gpu.registered == {}


@pytest.mark.parametrize("captured", [0, 1])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.torture_except("0-0", "1-1")
def test_a_batch_that_is_requested_while_a_graph_is_captured_raises_loader_error(few, gpu, expected, captured, before):
    # The current device is 0. A capture forbids allocations on the other devices too.
    with wt.make_loader(few, **OPTIONS, device="cuda:1") as loader:
        batches = iter(loader)
        for _ in range(before):
            next(batches)
        gpu.is_initialized = True
        gpu.capturing.add(captured)
        with pytest.raises(LoaderError, match="while a CUDA graph is captured"):
            next(batches)
        gpu.capturing.clear()
        assert_equal(train(loader, gpu), expected[1])


# CUDA refuses to pin memory


@pytest.mark.parametrize(
    ("error", "can_pin", "cause", "advice"),
    [
        (2, True, "(error 2, out of memory)", "raise its limit, or use fewer workers or a smaller prefetch_factor="),
        (801, True, "(error 801, operation not supported)", "this system does not support pinned memory"),
        (712, False, "(error 712, memory is already registered)", "an earlier error of CUDA"),
    ],
)
@pytest.mark.torture_except("801-True-(error 801, operation not supported)-this system does not support pinned memory")
def test_without_registered_memory_batches_are_still_copied_to_the_device(
    few, gpu, expected, caplog, error, can_pin, cause, advice
):
    gpu.register_error, gpu.can_pin = error, can_pin
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        for epoch in range(2):
            assert_equal(train(loader, gpu), expected[epoch])
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"MB of batch slots {cause}" in warning.getMessage()
    assert advice in warning.getMessage()
    assert gpu.registrations == 1
    assert bool(gpu.blocking_copies) != can_pin
    gpu.blocking_copies.clear()


@pytest.mark.parametrize("view", [None, VIEW])
@pytest.mark.torture_except("view1")
def test_lists_of_images_and_other_fields_are_copied_from_pinned_memory(few, gpu, view):
    options = {"batch_size": 8, "view": view, "fields": ("image", "label", "__key__"), "num_workers": 1}
    with pytest.warns(UserWarning, match="list of tensors") if view is None else pytest.MonkeyPatch.context():
        host = wt.make_loader(few, **options)
    with pytest.warns(UserWarning, match="list of tensors") if view is None else pytest.MonkeyPatch.context():
        cuda = wt.make_loader(few, **options, device="cuda")
    with host, cuda:
        for (images, labels, keys), (moved, moved_labels, moved_keys) in zip(host, cuda, strict=True):
            gpu.synchronize()
            assert all(map(torch.equal, moved, images))
            assert torch.equal(moved_labels, labels)
            assert moved_keys == keys
            if view is None:
                assert isinstance(moved, list)
                assert all(image.fake_device == 0 for image in moved)


# close()


@pytest.mark.parametrize("can_pin", [True, False])
@pytest.mark.torture_except("True")
def test_all_tensors_of_a_slot_are_copied(scenes, gpu, can_pin):
    fields = {
        "image": wt.Image(view=VIEW),
        "boxes": wt.Boxes(path="objects.bbox", like="image"),
        "mask": wt.Mask("mask.png", like="image"),
        "label": wt.Label(),
    }
    options = {"batch_size": 8, "num_workers": 1, "shuffle": True, "fields": fields}
    with wt.make_loader(scenes, **options) as loader:
        expected = [[value if isinstance(value, list) else value.clone() for value in batch] for batch in loader]
    gpu.register_error = 0 if can_pin else 2
    with wt.make_loader(scenes, **options, device="cuda") as loader:
        for batch, (images, boxes, masks, labels) in zip(loader, expected, strict=True):
            gpu.synchronize()
            assert batch.image.fake_device == batch.mask.fake_device == batch.boxes[0].fake_device == 0
            assert torch.equal(batch.image, images)
            assert torch.equal(batch.mask, masks)
            assert torch.equal(batch.label, labels)
            assert all(torch.equal(one, other) for one, other in zip(batch.boxes, boxes, strict=True))


@pytest.mark.parametrize("pad", [0, wt.Pad(size=(340, 340))])
@pytest.mark.torture_except("pad1")
def test_padded_tensors_are_copied(scenes, gpu, pad):
    fields = {
        "image": wt.Image(view=wt.Resize(120), pad=pad),
        "boxes": wt.Boxes(path="objects.bbox", like="image", pad=-1),
        "label": wt.Label(),
    }
    options = {"batch_size": 8, "num_workers": 1, "fields": fields, "tail": "mask"}
    with wt.make_loader(scenes, **options) as host, wt.make_loader(scenes, **options, device="cuda") as cuda:
        for batch, other in zip(cuda, host, strict=True):
            gpu.synchronize()
            assert batch._fields == ("image", "boxes", "label", "image_mask", "boxes_mask", "valid")
            assert batch.image.fake_device == batch.boxes.fake_device == 0
            # The model of CUDA makes the masks before the sizes are copied; test_cuda.py compares them on a GPU.
            names = ("image", "boxes", "label", "valid")
            assert all(torch.equal(getattr(batch, name), getattr(other, name)) for name in names)
            assert (batch.image_mask.shape, batch.boxes_mask.shape) == (other.image_mask.shape, other.boxes_mask.shape)


class Own:
    """An object that moves itself."""

    def __init__(self, values, device="cpu"):
        self.values, self.device = values, device

    def to(self, device):
        return Own(self.values, device)


def test_tensors_that_collate_fn_returns_are_copied(scenes, gpu):
    def collate(samples):
        images = torch.stack([sample.image for sample in samples])
        box = BoundingBoxes(torch.rand(1, 4), format="XYXY", canvas_size=(32, 32))
        elsewhere = torch.empty(3, device="meta")
        keys = [sample.key for sample in samples]
        return {"images": images, "keys": keys, "box": box, "elsewhere": elsewhere, "own": Own(images)}

    fields = {"image": wt.Image(view=VIEW), "key": wt.Key()}
    options = {"batch_size": 8, "num_workers": 1, "shuffle": True, "fields": fields, "collate_fn": collate}
    with wt.make_loader(scenes, **options) as host, wt.make_loader(scenes, **options, device="cuda") as cuda:
        for expected, batch in zip(host, cuda, strict=True):
            gpu.synchronize()
            assert batch["images"].fake_device == 0
            assert torch.equal(batch["images"], expected["images"])
            assert batch["keys"] == expected["keys"]
            assert type(batch["box"]) is BoundingBoxes
            assert (batch["box"].format, batch["box"].canvas_size) == (BoundingBoxFormat.XYXY, (32, 32))
            assert torch.equal(batch["box"], expected["box"])
            assert batch["elsewhere"].device.type == "meta"
            assert batch["own"].device == cuda.device
            # An object that moves itself does so when it is handed over, which waits for the training steps.
            assert gpu.blocking_copies == [None]
            gpu.blocking_copies.clear()
    assert gpu.registrations == 0  # its batches never come from a slot


def test_close_stops_the_workers_and_raises_the_first_error(few, gpu):
    loader = wt.make_loader(few, **OPTIONS, device="cuda")
    next(iter(loader))
    assert worker_processes()
    gpu.sync_error = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        loader.close()
    assert not multiprocessing.active_children()
    assert gpu.registered == {}
    loader.close()


def test_an_error_of_close_does_not_hide_the_error_of_the_iteration(few, gpu):
    loader = wt.make_loader(few, **OPTIONS, device="cuda")
    batches = iter(loader)
    next(batches)
    for worker in worker_processes():
        os.kill(worker.pid, signal.SIGKILL)
    gpu.sync_error = "CUDA error: unknown error"
    with pytest.raises(wt.errors.WorkerError, match="SIGKILL") as caught:
        list(batches)
    assert any("unknown error" in note for note in caught.value.__notes__)
    assert not multiprocessing.active_children()
    assert gpu.registered == {}


# Slots after an error


def test_an_error_that_cuda_does_not_survive_is_a_note_of_the_users_exception(few, gpu):
    def run():
        with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
            next(iter(loader))
            gpu.sticky_error = "CUDA error: device-side assert triggered"
            raise ValueError("of the loop")

    with pytest.raises(ValueError, match="of the loop") as caught:
        run()
    assert any("device-side assert triggered" in note for note in caught.value.__notes__)
    assert not multiprocessing.active_children()
    gpu.registered.clear()  # CUDA does not unregister anything any more


def test_an_error_after_a_loader_was_deleted_is_a_debug_message(few, gpu, caplog):
    caplog.set_level(logging.DEBUG, "wds_tools")
    loader = wt.make_loader(few, **OPTIONS, device="cuda")
    next(iter(loader))
    gpu.sticky_error = "CUDA error: an illegal memory access was encountered"
    del loader
    gc.collect()  # pytest fails if this prints a traceback
    assert "not unregistered: CUDA error: an illegal memory access" in caplog.text
    gpu.registered.clear()


def test_errors_of_copies_do_not_use_up_the_slots(few, gpu, expected):
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        for _ in range(2):
            gpu.fail_copies = 1
            with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
                next(iter(loader))
        loader.set_epoch(0)
        assert_equal(train(loader, gpu), expected[0])


# The device


def test_everything_is_done_on_the_device_of_the_loader(few, gpu, expected):
    with wt.make_loader(few, **OPTIONS, device="cuda:1") as loader:
        assert_equal(train(loader, gpu), expected[0])
    assert gpu.current == 0  # and the current device stays what it was


def test_cuda_without_index_is_the_device_of_the_local_rank(few, gpu, expected, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        assert loader.device == torch.device("cuda", 1)
        assert not gpu.is_initialized
        assert_equal(train(loader, gpu), expected[0])
        assert loader.device == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("count", "local_rank", "set_device", "index"),
    [(2, None, None, 0), (1, "3", None, 0), (4, "3", None, 3), (4, "3", 2, 2), (4, None, 2, 2), (4, "3", 0, 3)],
)
@pytest.mark.torture_except("2-None-None-0", "4-3-2-2", "4-None-2-2")
def test_the_device_depends_on_set_device_and_the_local_rank(
    few, gpu, monkeypatch, count, local_rank, set_device, index
):
    gpu.count = count
    if local_rank:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    loader = wt.make_loader(few, **OPTIONS, device="cuda")
    if set_device is not None:
        gpu.is_initialized, gpu.current = True, set_device
    assert loader.device == torch.device("cuda", index)


def test_a_local_rank_without_a_device_raises_device_error(few, gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    with (
        wt.make_loader(few, **OPTIONS, device="cuda") as loader,
        pytest.raises(DeviceError, match="LOCAL_RANK=2, but torch sees 2 CUDA devices"),
    ):
        next(iter(loader))


def is_frozen(image):
    return image.new_tensor([bool(gc.get_freeze_count())])


def test_cuda_is_not_initialized_before_the_workers_have_started(few, gpu, monkeypatch):
    started = []

    def driver(device):
        assert not gpu.is_initialized
        started.append(len(worker_processes()))
        return FakeDriver(gpu, device)

    monkeypatch.setattr(pipeline, "CudaDriver", driver)
    with wt.make_loader(few, **OPTIONS, device="cuda") as loader:
        repr(loader)
        list(loader)
    assert started == [OPTIONS["num_workers"]]


def test_workers_do_not_collect_objects_of_the_main_process(few):
    with wt.make_loader(few, **{**OPTIONS, "multiprocessing_context": "fork"}, transform=is_frozen) as loader:
        assert next(iter(loader)).image.all()


# How far the loop runs ahead


@pytest.mark.parametrize("device_prefetch", [1, 4])
@pytest.mark.torture_except("4")
def test_at_most_two_steps_are_unfinished_when_a_batch_is_requested(few, gpu, device_prefetch):
    done = []
    with wt.make_loader(few, **OPTIONS, device="cuda", device_prefetch=device_prefetch) as loader:
        for _ in range(2):
            for launched, _ in enumerate(loader):
                assert launched - len(done) <= 2
                gpu.launch(lambda number=launched: done.append(number), 1.0)
            gpu.synchronize()
            done.clear()


def run_epochs(loader, gpu, step_seconds, epochs):
    for _ in range(epochs):
        for _ in loader:
            gpu.launch(lambda: None, step_seconds)


@pytest.mark.torture
def test_auto_adds_no_workers_while_the_gpu_is_busy(few, gpu, monkeypatch):
    # The process does nothing but wait for batches. The GPU always has one.
    monkeypatch.setattr(autoscale, "available_cores", lambda: 4)
    options = {**OPTIONS, "batch_size": 2, "num_workers": "auto"}
    with wt.make_loader(few, **options, device="cuda") as loader:
        run_epochs(loader, gpu, 1.0, epochs=4)
        assert loader.num_workers == 1


def test_auto_adds_workers_while_the_gpu_waits(few, gpu, monkeypatch):
    monkeypatch.setattr(autoscale, "available_cores", lambda: 4)
    options = {**OPTIONS, "batch_size": 2, "num_workers": "auto"}
    gpu.copy_seconds = 1.0
    with wt.make_loader(few, **options, device="cuda") as loader:
        run_epochs(loader, gpu, 0.2, epochs=2)
        assert loader.num_workers > 1


# A batch on the GPU is not withheld


class Gate:
    """A transform that waits, from sample number ``free`` on, until the gate is open."""

    def __init__(self, free):
        self.free = free
        self.started = multiprocessing.Value("i", 0)
        self.opened = multiprocessing.Event()

    def __call__(self, image):
        with self.started.get_lock():
            self.started.value += 1
            is_free = self.started.value <= self.free
        if not is_free:
            assert self.opened.wait(120)
        return image


def test_a_batch_is_handed_over_while_the_next_one_is_not_ready(few, gpu):
    gate = Gate(free=5)  # one sample more, whose shape is found before the first batch
    options = {**OPTIONS, "num_workers": 1, "transform": gate, "multiprocessing_context": "fork"}
    with wt.make_loader(few, **options, device="cuda") as loader:
        batches = iter(loader)
        assert next(batches).image.fake_device == 0  # waits for ever if the second batch is awaited
        gate.opened.set()
        assert len(list(batches)) == 9
