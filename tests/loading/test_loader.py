"""make_loader: batches, epochs, order, resume, errors and automatic workers."""

import gc
import io
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import preloaded
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from waiting import wait_for
from worker_processes import worker_processes

import wds_tools as wt
from wds_tools.errors import (
    ChecksumError,
    DecodeError,
    DeviceError,
    LoaderError,
    MissingFieldError,
    OptionError,
    ResumeError,
    TruncatedShardError,
    WorkerError,
)
from wds_tools.loading.pipeline import autoscale

VIEW = wt.RandomResizedCrop(32, flip=True)
KEYS = ("__key__",)


def keys_of(loader):
    return [key for batch in loader for key in batch.key]


@pytest.fixture
def make(few, no_leftovers, quick_collections):
    """Return a function that creates loaders, which are closed at the end of the test."""
    made = []

    def make(dataset=few, **options):
        made.append(wt.make_loader(dataset, **{"batch_size": 3, "num_workers": 0, **options}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    made.clear()
    gc.collect()


def test_a_batch_is_uint8_images_and_int64_labels(make):
    loader = make(view=VIEW, shuffle=True, num_workers=1)
    for images, labels in loader:
        assert images.shape == (3, 3, 32, 32)
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        assert labels.shape == (3,)
        assert labels.dtype == torch.int64
    assert loader.classes[0] == "astronaut"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_one_epoch_has_each_file_of_the_folder_with_its_label(make, few_photos, num_workers):
    loader = make(batch_size=1, fields=("json", "label", "image"), shuffle=True, num_workers=num_workers)
    got = Counter((batch.json[0]["path"], int(batch.label[0])) for batch in loader)
    classes = sorted(path.name for path in few_photos.iterdir())
    files = few_photos.glob("*/*")
    assert got == Counter((str(path.relative_to(few_photos)), classes.index(path.parent.name)) for path in files)


@pytest.mark.filterwarnings("ignore:images will come as a list")
def test_full_images_are_a_list_and_equal_the_files(make, photos):
    for batch in make(view=None, fields=("image", "json"), batch_size=8):
        assert isinstance(batch.image, list)
        for image, about in zip(batch.image, batch.json, strict=True):
            expected = np.asarray(Image.open(photos / about["path"]).convert("RGB")).astype(int)
            assert image.dtype == torch.uint8
            assert abs(image.permute(1, 2, 0).numpy() - expected).mean() <= 2


def test_pixels_do_not_depend_on_the_number_of_workers_or_the_start_method(make):
    def pixels(**options):
        return [batch.image.clone() for batch in make(view=VIEW, shuffle=True, batch_size=10, **options)]

    expected = pixels(num_workers=0)
    for options in (
        {"num_workers": 1},
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 1, "multiprocessing_context": "forkserver"},
    ):
        assert all(torch.equal(a, b) for a, b in zip(pixels(**options), expected, strict=True))


def test_each_iteration_is_the_next_epoch_with_another_order_and_other_crops(make):
    loader = make(view=VIEW, shuffle=True, fields=("__key__", "image"), batch_size=40)
    (first,), (second,) = loader, loader
    assert sorted(first.key) == sorted(second.key)
    assert first.key != second.key
    row = second.key.index(first.key[0])
    assert not torch.equal(first.image[0], second.image[row])
    assert loader.state_dict()["epoch"] == 2


def test_an_iterator_that_is_never_advanced_does_not_count_as_an_epoch(make):
    """Lightning creates such an iterator when it resumes at the end of an epoch."""
    loader, plain = make(fields=KEYS, shuffle=True, num_workers=1), make(fields=KEYS, shuffle=True)
    iter(loader)
    assert keys_of(loader) == keys_of(plain)
    unused = iter(loader)
    assert keys_of(loader) == keys_of(plain)
    assert loader.state_dict() == plain.state_dict()
    loader.load_state_dict(plain.state_dict())
    iter(loader)
    del unused
    assert keys_of(loader) == keys_of(plain)


def test_the_seed_determines_the_order(make):
    first, again, other = (keys_of(make(fields=KEYS, shuffle=True, seed=seed, num_workers=0)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_without_shuffle_samples_are_in_stored_order(make):
    keys = keys_of(make(fields=KEYS, batch_size=10))
    assert keys == sorted(keys)
    assert len(keys) == 40


def test_shuffle_may_be_a_window_in_samples(make):
    assert make(fields=KEYS, shuffle=16).state_dict()["window"] == 16
    with pytest.raises(OptionError, match="window in samples"):
        make(shuffle=-3)


def test_set_epoch_chooses_the_epoch(make):
    loader = make(fields=KEYS, shuffle=True, batch_size=10)
    epochs = [keys_of(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert keys_of(loader) == epochs[1]
    assert keys_of(loader) == epochs[2]


def test_len_is_exact_and_known_before_anything_is_read(make):
    for batch_size, tail, steps in (
        (3, "drop", 13),
        (3, "pad", 14),
        (3, "mask", 14),
        (40, "drop", 1),
        (50, "pad", 1),
    ):
        loader = make(fields=KEYS, batch_size=batch_size, tail=tail, num_workers=0)
        assert len(loader) == steps == len(list(loader))


def test_valid_is_true_once_for_each_sample(make):
    batches = list(make(fields=KEYS, batch_size=6, tail="mask", shuffle=True))
    assert all(len(batch.key) == 6 for batch in batches)
    valid = [key for batch in batches for key, ok in zip(batch.key, batch.valid.tolist(), strict=True) if ok]
    assert len(valid) == len(set(valid)) == 40


@pytest.mark.parametrize("stop", [1, 12, 13])
@pytest.mark.torture_except("12")
def test_resume_continues_at_the_next_sample_with_another_number_of_workers_and_batch_size(make, stop):
    loader = make(fields=("__key__", "image"), view=VIEW, shuffle=True)
    batches = [(batch.key, batch.image.clone()) for batch in loader]
    source = make(fields=("__key__", "image"), view=VIEW, shuffle=True, num_workers=1)
    seen = iter(source)
    for _ in range(stop):
        next(seen)
    state = json.loads(json.dumps(source.state_dict()))
    assert state["position"] == (stop * 3 if stop < 13 else 0)  # prefetched batches do not count

    again = make(fields=("__key__", "image"), view=VIEW, shuffle=True, num_workers=2, batch_size=2)
    again.load_state_dict(state)
    got = [(batch.key, batch.image.clone()) for batch in again]
    if stop == 13:  # the end of an epoch is the start of the next
        expected = [key for batch in loader for key in batch.key]
        assert [key for keys, _ in got for key in keys][:39] == expected
        return
    flat_keys = [key for keys, _ in batches[stop:] for key in keys]
    assert [key for keys, _ in got for key in keys][: len(flat_keys)] == flat_keys
    expected = torch.cat([image for _, image in batches[stop:]])
    assert torch.equal(torch.cat([image for _, image in got])[: len(expected)], expected)


@pytest.mark.torture
def test_resuming_twice_in_one_epoch_loses_and_repeats_nothing(make):
    whole = keys_of(make(fields=KEYS, shuffle=True, batch_size=2))
    got, state = [], None
    for workers, steps in ((0, 3), (2, 4), (1, 100)):
        loader = make(fields=KEYS, shuffle=True, batch_size=2, num_workers=workers)
        if state:
            loader.load_state_dict(state)
        for batch in islice(loader, steps):
            got += batch.key
        state = loader.state_dict()
    assert got == whole


def test_set_epoch_after_a_resume_keeps_the_position_in_that_epoch(make):
    loader = make(fields=KEYS, shuffle=True, batch_size=10)
    whole = keys_of(loader)
    source = make(fields=KEYS, shuffle=True, batch_size=10)
    next(iter(source))
    resumed = make(fields=KEYS, shuffle=True, batch_size=10)
    resumed.load_state_dict(source.state_dict())
    resumed.set_epoch(0)  # as trainers do at the start of an epoch
    assert keys_of(resumed) == whole[10:]


def test_leaving_a_loop_early_does_not_affect_the_next_epoch(make):
    options = {"fields": ("__key__", "image"), "view": VIEW, "shuffle": True}
    loader, steady = make(**options, num_workers=1), make(**options)
    for epoch in range(3):
        for number, _ in enumerate(loader):
            if number == epoch:
                break
        for _ in steady:
            pass
    assert [b.key for b in loader] == [b.key for b in steady]


def test_a_state_of_another_seed_or_dataset_is_refused(make, photos, tmp_path):
    state = make(fields=KEYS, shuffle=True).state_dict()
    with pytest.raises(ResumeError, match="seed 0, the loader has 7"):
        make(fields=KEYS, shuffle=True, seed=7).load_state_dict(state)
    wt.pack(photos / "cat", tmp_path / "cats", workers=1)
    with pytest.raises(ResumeError, match="fingerprint"):
        make(tmp_path / "cats", fields=KEYS, shuffle=True).load_state_dict(state)


def test_batches_that_the_user_keeps_do_not_change(make):
    loader = make(view=VIEW, shuffle=True, num_workers=1)
    kept = [images for images, _ in loader]  # more than there are slots
    loader.set_epoch(0)
    for images, (again, _) in zip(kept, loader, strict=True):
        assert torch.equal(images, again)


def test_a_batch_may_be_changed_in_place(make):
    loader = make(view=VIEW, shuffle=True, num_workers=1)
    for images, _ in loader:
        images.zero_()
    loader.set_epoch(0)
    assert all(images.any() for images, _ in loader)


def test_batches_stay_valid_after_their_loader_is_closed(few, no_leftovers):
    loader = wt.make_loader(few, batch_size=4, view=VIEW, num_workers=2)
    images, _ = next(iter(loader))
    before = images.clone()
    loader.close()
    del loader
    gc.collect()
    assert torch.equal(images, before)


def test_other_fields_are_lists_or_tensors_of_numbers(make):
    batch = next(iter(make(fields=("json", "cls", "__key__"))))
    assert isinstance(batch.json[0], dict)
    assert batch.cls.dtype == torch.int64
    assert all(isinstance(key, str) for key in batch.key)


def test_the_error_for_a_missing_field_lists_the_existing_ones(make):
    with pytest.raises(MissingFieldError, match=r"no 'txt'; it has .*cls.*json"):
        make(fields=("image", "txt"))


def test_transform_is_applied_to_each_sample_and_determines_shape_and_dtype(make):
    loader = make(view=VIEW, transform=lambda image: image[:, :16].float() / 255)
    images, _ = next(iter(loader))
    assert images.shape == (3, 3, 16, 32)
    assert images.dtype == torch.float32
    plain, _ = next(iter(make(view=VIEW)))
    assert torch.equal(images, plain[:, :, :16].float() / 255)


def test_random_transforms_depend_only_on_the_position_in_the_epoch(make):
    import random

    def noisy(image):
        return image.float() + torch.rand(1) + np.random.rand() + random.random()

    def images(workers):
        return torch.cat([images for images, _ in make(view=VIEW, transform=noisy, num_workers=workers)])

    random.seed(5)
    before = torch.get_rng_state(), random.getstate()
    inline = images(0)
    assert torch.equal(torch.get_rng_state(), before[0])  # the user's generators are restored
    assert random.getstate() == before[1]
    assert torch.equal(inline, images(2))
    offsets = inline.amin(dim=(1, 2, 3)) % 1
    assert len(offsets.unique()) > 30


def test_without_workers_torch_uses_one_thread_and_the_users_number_is_restored(make):
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        next(
            iter(make(view=VIEW, num_workers=0, transform=lambda image: seen.append(torch.get_num_threads()) or image))
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(seen[1:]) == {1}  # the first call only finds the shape


def test_transform_may_be_a_torchvision_transform(make):
    images, _ = next(iter(make(view=VIEW, transform=v2.RandomInvert(1.0))))
    plain, _ = next(iter(make(view=VIEW)))
    assert torch.equal(images, 255 - plain)


class FakeAlbumentations:
    """Has the interface of Albumentations: takes an array [height, width, 3] by keyword, returns a dictionary."""

    __module__ = "albumentations.fake"

    def __call__(self, *, image):
        assert image.dtype == np.uint8
        assert image.shape == (32, 32, 3)
        return {"image": image[::-1]}


def test_an_albumentations_transform_gets_an_array_and_its_result_becomes_a_tensor(make):
    images, _ = next(iter(make(view=VIEW, transform=FakeAlbumentations())))
    plain, _ = next(iter(make(view=VIEW)))
    assert torch.equal(images, plain.flip(2))


def test_an_exception_in_a_transform_keeps_its_type_and_names_the_sample(make):
    def fail(image):
        if not image.any():
            return image
        raise KeyError("my own")

    with pytest.raises(KeyError, match="my own") as caught:
        next(iter(make(view=VIEW, transform=fail, num_workers=1)))
    assert "shard-000000.tar" in str(caught.value.__notes__)


def test_a_transform_that_returns_another_shape_raises_option_error(make):
    calls = []

    def changes_shape(image):
        calls.append(1)
        return image[:, : 16 + (len(calls) > 3)]

    with pytest.raises(OptionError, match="same shape and dtype"):
        list(make(view=VIEW, transform=changes_shape, num_workers=0))


def test_batch_transform_runs_on_the_whole_batch(make):
    normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
    images, labels = next(iter(make(view=VIEW, batch_transform=normalise)))
    plain, _ = next(iter(make(view=VIEW)))
    assert torch.allclose(images, plain.float() / 127.5 - 1, atol=1e-5)
    assert labels.dtype == torch.int64


def test_a_mask_has_its_class_numbers(make, photos, tmp_path):
    import webdataset

    out = io.BytesIO()
    mask = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 5)
    mask.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255] + [0] * 759)
    mask.save(out, "PNG")
    jpeg = next((photos / "cat").glob("*.jpg")).read_bytes()
    with webdataset.TarWriter(str(tmp_path / "m-0.tar")) as writer:
        for number in range(4):
            writer.write({"__key__": f"k{number}", "jpg": jpeg, "mask.png": out.getvalue(), "txt": f"text {number}"})
    wt.index_shards([str(tmp_path / "m-0.tar")])
    loader = make(tmp_path, batch_size=4, fields=("image", "mask.png", "txt"), view=VIEW)
    (batch,) = loader
    assert (batch.mask_png[0][0].numpy() == np.asarray(mask)).all()
    assert batch.txt == [f"text {number}" for number in range(4)]


def test_ranks_share_each_step_without_overlap_and_with_equal_steps(make):
    options = {"fields": KEYS, "shuffle": True, "num_workers": 0}
    whole = list(make(**options, batch_size=6))
    parts = [list(make(**options, batch_size=2, rank=r, world_size=3)) for r in range(3)]
    assert {len(part) for part in parts} == {len(whole)}
    for step, batch in enumerate(whole):
        assert [key for part in parts for key in part[step].key] == batch.key


def test_the_rank_is_read_from_the_environment_of_torchrun(make, monkeypatch):
    expected = keys_of(make(fields=KEYS, rank=1, world_size=2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert keys_of(make(fields=KEYS)) == expected
    with pytest.raises(OptionError, match="both"):
        make(rank=1)


def test_a_batch_larger_than_the_dataset_is_refused_with_both_numbers(make):
    with pytest.raises(OptionError, match="1,024 samples per step, but the dataset has 40"):
        make(batch_size=512, rank=0, world_size=2)
    for batch_size in (0, -1):
        with pytest.raises(OptionError, match="batch_size"):
            make(batch_size=batch_size)


def test_a_view_larger_than_the_images_is_refused_with_the_smallest_size(make):
    with pytest.raises(OptionError, match="160"):
        make(view=wt.CenterCrop(480))


def test_an_invalid_view_is_refused(make):
    with pytest.raises(OptionError, match="transform="):
        make(view=v2.CenterCrop(32))


def test_an_unavailable_device_raises_device_error(make):
    count = torch.cuda.device_count()
    with pytest.raises(DeviceError, match=f"sees {count} CUDA devices"):
        make(view=VIEW, device=f"cuda:{count}")
    with pytest.raises(DeviceError, match="not a torch device"):
        make(view=VIEW, device="abacus")


@pytest.mark.parametrize("name", ["mps", "xpu"])
@pytest.mark.torture_except("mps")
def test_an_unavailable_device_of_another_kind_raises_device_error_too(make, monkeypatch, name):
    monkeypatch.setattr(getattr(torch, name), "device_count", lambda: 0)
    with pytest.raises(DeviceError, match=f"sees 0 {name.upper()} devices"):
        make(view=VIEW, device=name)


def test_an_unknown_argument_raises_type_error(packed):
    with pytest.raises(TypeError, match="batchsize"):
        wt.make_loader(packed, batchsize=3)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_flipped_bit_raises_checksum_error_with_shard_key_and_offset(make, few_copy, num_workers):
    path = few_copy / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError) as caught:
        list(make(few_copy, view=VIEW, num_workers=num_workers))
    assert caught.value.shard == "shard-000001.tar"
    assert caught.value.key
    assert abs(caught.value.offset - len(data) // 2) < 50_000


def test_a_truncated_shard_raises_an_error_with_its_name(make, few_copy):
    path = few_copy / "shard-000001.tar"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(TruncatedShardError, match=r"shard-000001\.tar"):
        list(make(few_copy, view=VIEW))


def test_the_error_for_an_undecodable_image_has_its_key(make, tmp_path, photos):
    import webdataset

    jpeg = next((photos / "cat").glob("*.jpg")).read_bytes()
    broken = jpeg[: len(jpeg) // 2] + b"\xff\xd9"  # truncated, with an end marker: detected only by decoding
    with webdataset.TarWriter(str(tmp_path / "b-0.tar")) as writer:
        for number, data in enumerate([jpeg, broken]):
            writer.write({"__key__": f"k{number}", "jpg": data, "cls": "0"})
    wt.index_shards([str(tmp_path / "b-0.tar")])
    with pytest.raises(DecodeError, match="decoded") as caught:
        list(make(tmp_path, batch_size=2, view=VIEW))
    assert caught.value.key == "k1"


def test_a_killed_worker_is_reported_and_the_loader_can_resume(make):
    loader = make(view=VIEW, fields=("__key__", "image"), shuffle=True, batch_size=2, num_workers=1)
    with make(fields=KEYS, shuffle=True, batch_size=2) as other:
        expected = keys_of(other)
    batches = iter(loader)
    got = [key for batch in islice(batches, 3) for key in batch.key]
    os.kill(worker_processes()[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="SIGKILL"):
        got.extend(key for batch in batches for key in batch.key)
    state = loader.state_dict()
    assert state["position"] == len(got)
    loader.load_state_dict(state)
    assert got + keys_of(loader) == expected


@pytest.fixture
def four_workers(monkeypatch):
    """Let "auto" use up to four workers on any machine."""
    monkeypatch.setattr(autoscale, "available_cores", lambda: 4)


def run_until_workers_are_added(loader):
    """Iterate without pauses until a worker is added; return the keys of each epoch."""
    keys, deadline = [], time.monotonic() + 120
    while loader.num_workers == 1:
        keys.append(keys_of(loader))
        assert time.monotonic() < deadline, "no second worker for a loop that only waits"
    return keys


def test_auto_adds_workers_while_the_loop_waits_and_the_batches_stay_the_same(make, packed, four_workers):
    options = {"view": VIEW, "shuffle": True, "batch_size": 8, "fields": ("__key__", "image")}
    grown, fixed = make(packed, num_workers="auto", **options), make(packed, **options)
    assert grown.num_workers == 1
    epochs = run_until_workers_are_added(grown)
    assert 1 < grown.num_workers <= 4
    keys = make(packed, **{**options, "fields": KEYS, "view": None})
    assert epochs == [keys_of(keys) for _ in epochs]
    fixed.set_epoch(len(epochs))
    for one, other in zip(islice(grown, 10), islice(fixed, 10), strict=True):
        assert one.key == other.key
        assert torch.equal(one.image, other.image)


def test_auto_stays_with_one_worker_while_the_loop_is_busy(make, packed, four_workers, monkeypatch):
    started = multiprocessing.Value("i")  # images whose transform has begun
    clock, busy = time.perf_counter, 0.0
    monkeypatch.setattr(
        "wds_tools.loading.pipeline.pipeline.time", SimpleNamespace(perf_counter=lambda: clock() + busy)
    )

    def count(image):
        with started.get_lock():
            started.value += 1
        return image

    loader = make(packed, view=VIEW, num_workers="auto", batch_size=4, prefetch_factor=4, transform=count)
    for number, _ in enumerate(islice(loader, 60)):
        # Let the next batch get ready, however slow the machine is: the only worker begins the second image of the
        # batch after it. (The first call of the transform is for the shape of the images.)
        while started.value < 1 + 4 * (number + 2) + 1:
            time.sleep(0.001)
        busy += 100  # seconds of the training step: whatever the loader waits for a batch that is ready is far less
    assert loader.num_workers == 1


@pytest.mark.torture
def test_auto_keeps_its_number_of_workers_after_a_restart_and_its_state_fits_any_loader(make, packed, four_workers):
    options = {"view": VIEW, "shuffle": True, "batch_size": 8, "fields": KEYS}
    loader = make(packed, num_workers="auto", **options)
    epochs = len(run_until_workers_are_added(loader))
    workers = loader.num_workers
    first = [batch.key for batch in islice(loader, 3)]
    state = loader.state_dict()
    loader.close()
    other, fixed = make(packed, num_workers="auto", **options), make(packed, num_workers=2, **options)
    fixed.set_epoch(epochs)
    for again in (other, loader):
        again.load_state_dict(state)
    assert loader.num_workers == workers
    expected = [batch.key for batch in fixed]
    assert first == expected[:3]
    assert [batch.key for batch in other] == [batch.key for batch in loader] == expected[3:]


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.torture_except("-1")
def test_auto_reports_a_killed_worker_even_if_it_is_not_active_yet(make, four_workers, number):
    loader = make(view=VIEW, num_workers="auto", batch_size=2)
    batches = iter(loader)
    next(batches)
    process = worker_processes()[number]
    os.kill(process.pid, signal.SIGKILL)
    process.join()  # otherwise, the epoch of small images may end before the process does
    with pytest.raises(WorkerError, match=r"worker \d of 4 .* SIGKILL"):
        list(batches)
    assert len(list(loader)) == 20  # with new workers


def test_an_iterator_ends_when_a_newer_one_is_started(make):
    loader = make(fields=KEYS, num_workers=1)
    old = iter(loader)
    next(old)
    new = iter(loader)
    next(new)
    with pytest.raises(LoaderError, match="newer"):
        next(old)
    next(new)


def test_memory_and_file_descriptors_do_not_grow_over_epochs(make):
    loader = make(view=VIEW, shuffle=True, num_workers=1)

    def resources():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096, len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(3):
        list(loader)
    memory, descriptors = resources()
    for _ in range(10):
        list(loader)
    memory_now, descriptors_now = resources()
    assert descriptors_now == descriptors
    assert memory_now - memory < 10e6


def test_a_dataset_can_be_read_from_a_url_and_a_pattern(make, few, tmp_path):
    import fsspec

    expected = [batch.image.clone() for batch in make(view=VIEW, shuffle=True)]
    memory = fsspec.filesystem("memory")
    memory.put(str(few), "/loader", recursive=True)
    try:
        last = len(list(few.glob("*.tar"))) - 1
        for spec in ("memory://loader", f"memory://loader/shard-{{000000..{last:06}}}.tar"):
            got = list(
                make(spec, view=VIEW, shuffle=True, num_workers=1, cache_dir=tmp_path / "blocks", cache_bytes="10MB")
            )
            assert all(torch.equal(a.image, b) for a, b in zip(got, expected, strict=True))
    finally:
        memory.rm("/loader", recursive=True)
    assert list((tmp_path / "blocks").glob("*/*"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_script_that_ends_in_the_middle_of_an_epoch_prints_nothing(few, num_workers):
    script = (
        "import wds_tools as wt\n"
        f"loader = wt.make_loader({str(few)!r}, batch_size=4, num_workers={num_workers}, fields=('label',))\n"
        "batches = iter(loader)\nnext(batches)\n"
    )
    done = preloaded.run(["-c", script])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_repr_shows_the_dataset_and_the_options(make, few):
    text = repr(make(view=wt.CenterCrop(24), num_workers=1))
    assert text == (
        f"Loader({str(few)!r}, samples=40, batch_size=3, steps=13, num_workers=1, device='cpu', "
        "view=CenterCrop(size=24, resize=None))"
    )


@pytest.mark.parametrize(("num_workers", "dtype"), [(0, torch.uint8), (2, torch.float32), (1, torch.bfloat16)])
@pytest.mark.torture
def test_a_transform_that_returns_one_size_gives_a_tensor_for_images_of_any_size(make, num_workers, dtype):
    transform = v2.Compose([v2.RandomCrop(64), v2.ToDtype(dtype, scale=True)])
    for more in ({"view": None}, {"view": wt.Resize(128)}, {"batch_size": 15, "subset": range(35)}):
        options = {"fields": "image", "transform": transform, "num_workers": num_workers, "subset": range(20), **more}
        first, *rest = make(**options)
        assert first.shape == (options.get("batch_size", 3), 3, 64, 64)
        assert first.dtype == dtype
        assert all(isinstance(batch, torch.Tensor) for batch in rest)
        assert all(torch.equal(batch, again) for batch, again in zip([first, *rest], make(**options), strict=True))


@pytest.mark.filterwarnings("ignore:images will come as a list")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_without_a_view_images_of_one_size_are_a_tensor_and_others_a_list(make, tmp_path, num_workers):
    (tmp_path / "in").mkdir()
    for number in range(12):
        side = 20 if number < 9 else 30
        Image.fromarray(np.full((side, 40, 3), number, np.uint8)).save(tmp_path / "in" / f"{number}.png")
    wt.pack(tmp_path / "in", tmp_path / "packed")
    found = Counter()
    for images in make(tmp_path / "packed", view=None, fields="image", batch_size=3, num_workers=num_workers):
        assert isinstance(images, torch.Tensor) == (len({image.shape for image in images}) == 1)
        found += Counter((image.shape[1], int(image[0, 0, 0])) for image in images)
    assert found == Counter((20 if number < 9 else 30, number) for number in range(12))
    single = make(tmp_path / "packed", view=None, fields="image", batch_size=1, num_workers=num_workers)
    assert {tuple(images.shape) for images in single} == {(1, 3, 20, 40), (1, 3, 30, 40)}


def test_workers_go_on_while_a_slow_sample_delays_its_batch(packed, tmp_path):
    """One sample waits until more others were decoded than 2 workers have in progress by default: 2 batches each."""
    options = {"batch_size": 4, "view": wt.CenterCrop(32, resize=40), "fields": ("image", "__key__"), "shuffle": True}
    with wt.make_loader(packed, num_workers=0, **options) as loader:
        batches = [(batch.key, batch.image.clone()) for batch in islice(loader, 15)]
    slow = int(batches[3][1][0].sum())

    def transform(image):
        (tmp_path / str(int(image.sum()))).touch()
        if int(image.sum()) == slow:
            wait_for(lambda: len(list(tmp_path.iterdir())) >= 36)  # the other worker has something to do
        return image

    with wt.make_loader(packed, num_workers=2, transform=transform, **options) as loader:
        for batch, (keys, images) in zip(islice(loader, 15), batches, strict=True):
            assert batch.key == keys
            assert torch.equal(batch.image, images)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_threads_that_request_batches_at_the_same_time_get_each_sample_once(packed: Path, num_workers: int) -> None:
    with wt.make_loader(packed, batch_size=8, fields=("__key__",), num_workers=num_workers) as loader:
        batches = iter(loader)

        def take() -> list[str]:
            return [key for batch in batches for key in batch.key]

        with ThreadPoolExecutor(4) as pool:
            found = [key for keys in pool.map(lambda _: take(), range(4)) for key in keys]
    assert len(found) == len(set(found)) == 400
