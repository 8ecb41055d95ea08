"""`Loader.stats`, `report` and `ceiling`: the figures add up, and the cause of waiting is the right one."""

import itertools
import json
import os
import pickle
import re
import tarfile
import textwrap
import threading
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch
from bad_server import BadServer, good
from fake_cuda import FakeDriver, Gpu, SlowCopyDriver
from pictures import encode
from PIL import Image
from torch.overrides import TorchFunctionMode

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.loading.pipeline.statistics import Meter

VIEW = wt.RandomResizedCrop(64)
CAUSES = ["storage", "decoding", "transform", "hand_over", "copy", "start", "packing"]


@pytest.fixture
def make(few):
    """Return a function that creates a loader of 40 photographs; all are closed at the end."""
    loaders = []

    def create(dataset=few, **options):
        loaders.append(wt.make_loader(dataset, **{"batch_size": 4, "view": VIEW, "num_workers": 1, **options}))
        return loaders[-1]

    yield create
    for loader in loaders:
        loader.close()


def train(loader, epochs=2, step=0.0):
    for _ in range(epochs):
        for _ in loader:
            time.sleep(step)


def read(loader, **options):
    """Read two epochs, so that workers were started before the last one, and return the figures of the last one."""
    train(loader, **options)
    return loader.stats().epoch


def assert_cause(loader, stats, cause, name):
    """Assert that a cause is the main one, that it has the largest share, and that the sentence names it."""
    assert stats.main_cause == cause == max(CAUSES, key=stats.waits.get), stats
    assert loader.report().startswith(f"{name}: the loop waited "), loader.report()


def slow(seconds):
    def wait(image):
        time.sleep(seconds)
        return image

    return wait


# --- each cause is named ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_slow_storage_is_named(few, make, workers):
    def answer(request):
        if request.path.endswith(".tar"):
            time.sleep(0.7)
        good(request)

    server = BadServer({f"/{path.name}": path.read_bytes() for path in few.iterdir()}, default=answer)
    with server.running():
        loader = make(server.url, num_workers=workers, shuffle=True)
        stats = read(loader, epochs=1)
        assert_cause(loader, stats, "storage", "storage")
        assert "raise read_ahead_bytes=" in loader.report()
        assert stats.fetched.requests > 0 < stats.fetched.fetched_bytes
        assert stats.fetched.cached_blocks == 0 < stats.fetched.blocks
        train(loader, epochs=1)
        assert loader.stats().epoch.fetched.hit_rate == 1


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """Return a packed dataset of 12 large images."""
    folder = tmp_path_factory.mktemp("large")
    noise = np.random.default_rng(0).integers(0, 255, (200, 300, 3), np.uint8)
    image = encode(Image.fromarray(noise).resize((2400, 1600)), "JPEG")
    (folder / "images" / "a").mkdir(parents=True)
    for number in range(12):
        (folder / "images" / "a" / f"{number}.jpg").write_bytes(image)
    wt.pack(folder / "images", folder / "packed", workers=1, images="keep")
    return folder / "packed"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("compiled", ["0", "1"])
@pytest.mark.torture_except("1-2")
def test_slow_decoding_is_named(large, make, monkeypatch, workers, compiled):
    monkeypatch.setenv("WDS_TOOLS_NATIVE", compiled)
    loader = make(large, num_workers=workers, view=wt.CenterCrop(224, resize=256))
    stats = read(loader)
    assert_cause(loader, stats, "decoding", "decoding")
    assert stats.stage_seconds["decode"] > stats.stage_seconds["read"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_slow_transform_is_named(make, workers):
    loader = make(num_workers=workers, transform=slow(0.05))
    assert_cause(loader, read(loader), "transform", "transform")


class SlowCopies(TorchFunctionMode):
    """Delays copies to the device ``meta``, which exists everywhere."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to:
            time.sleep(0.05)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture
def test_a_slow_copy_to_the_device_is_named(make, workers):
    with SlowCopies():
        loader = make(num_workers=workers, device="meta")
        assert_cause(loader, read(loader), "copy", "copy")
    assert "copies to meta are too slow" in loader.report()


class BlockingDriver(FakeDriver):
    def copy(self, tensor):
        time.sleep(self.gpu.copy_seconds)
        return super().copy(tensor)


@pytest.mark.parametrize("driver", [BlockingDriver, SlowCopyDriver])
@pytest.mark.torture_except("SlowCopyDriver")
def test_slow_copies_to_cuda_are_named(make, monkeypatch, driver):
    gpu = Gpu(copy_seconds=0.03)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu.count)
    monkeypatch.setattr("wds_tools.loading.pipeline.pipeline.CudaDriver", lambda device: driver(gpu, device))
    loader = make(device="cuda:0", batch_size=2)
    stats = read(loader)
    assert_cause(loader, stats, "copy", "copy")
    assert "copies to cuda:0 are too slow" in loader.report()
    loader.close()


@pytest.mark.torture
def test_slow_steps_on_cuda_are_not_taken_for_slow_copies(make, monkeypatch):
    gpu = Gpu(copy_seconds=0.005)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu.count)
    monkeypatch.setattr("wds_tools.loading.pipeline.pipeline.CudaDriver", lambda device: SlowCopyDriver(gpu, device))
    loader = make(device="cuda:0")
    for _ in range(2):
        for _ in loader:
            gpu.launch(lambda: time.sleep(0.1), 0.1, device=0)
    stats = loader.stats().epoch
    assert stats.waits["copy"] < stats.step_seconds / 2
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_slow_training_step_is_named(make, workers):
    loader = make(num_workers=workers, batch_size=2, subset=0.3, view=wt.CenterCrop(16, resize=16))
    stats = read(loader, step=0.2)
    assert stats.main_cause == "step"
    assert stats.step_seconds > stats.waited_seconds
    assert re.fullmatch(r"the loop did not wait: the training step takes (9\d|100) % of the time", loader.report())


def test_a_slow_batch_transform_is_named(make):
    loader = make(batch_transform=slow(0.05))
    assert_cause(loader, read(loader), "hand_over", "hand-over")
    assert "batch_transform= runs in the training process" in loader.report()


class SlowToUnpickle:
    """A transform that changes nothing, and delays the start of the worker that receives it."""

    def __setstate__(self, state):
        time.sleep(0.5)

    def __getstate__(self):
        return {"not": "empty"}

    def __call__(self, image):
        return image


def test_slowly_starting_workers_are_named(make):
    loader = make(num_workers=1, multiprocessing_context="forkserver", transform=SlowToUnpickle())
    first = read(loader, epochs=1)
    assert_cause(loader, first, "start", "start of the workers")
    assert read(loader, epochs=1).waits["start"] < first.waits["start"] / 4  # they are running already


@pytest.mark.torture
def test_the_cause_of_a_single_slow_part_is_named_and_not_that_of_most_parts(make, tmp_path):
    """All samples take some time to decode, and one batch of ten waits for its transform."""

    def rarely_slow(image):
        if image[0, 0, 0] % 7 == 0:  # the same samples in each epoch, as the view is fixed
            time.sleep(0.3)
        return image

    loader = make(view=wt.CenterCrop(64, resize=64), transform=rarely_slow)
    stats = read(loader, step=0.02)
    assert_cause(loader, stats, "transform", "transform")


# --- the remedy ---


@pytest.mark.parametrize(
    ("images", "remedy"), [("keep", "or with images='crop-ready' to keep their pixels"), ("crop-ready", "'resize'")]
)
@pytest.mark.torture_except("keep-or with images='crop-ready' to keep their pixels")
def test_images_that_are_far_larger_than_the_view_should_be_packed_again(
    large, make, tmp_path, monkeypatch, images, remedy
):
    monkeypatch.setattr("wds_tools.loading.pipeline.autoscale.available_cores", lambda: 1)
    wt.pack(large.parent / "images", tmp_path / "packed", workers=1, images=images)
    loader = make(tmp_path / "packed", num_workers=1)
    for _ in range(20):  # on a busy machine, another cause than decoding may dominate in a short epoch
        train(loader)
        if remedy in loader.report():
            break
    assert remedy in loader.report(), loader.report()
    assert "1 core is used: the images are far larger than the view" in loader.report()


def test_before_the_first_batch_the_report_has_no_figures(make):
    assert make().report() == "no batch has been received yet: iterate over the loader first"


# --- the figures ---


def image_bytes(dataset):
    total = 0
    for path in dataset.glob("*.tar"):
        with tarfile.open(path) as tar:
            total += sum(member.size for member in tar if member.name.endswith((".jpg", ".png", ".webp")))
    return total


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.torture_except("3")
def test_the_figures_add_up(make, few, workers):
    loader = make(num_workers=workers, shuffle=True)
    begun = time.perf_counter()
    for _ in loader:
        time.sleep(0.01)
    elapsed = time.perf_counter() - begun
    stats = loader.stats().epoch
    assert (stats.epoch, stats.batches, stats.samples, stats.workers) == (0, 10, 40, workers)
    assert list(stats.waits) == CAUSES
    assert sum(stats.waits.values()) == pytest.approx(stats.waited_seconds)
    assert stats.seconds == stats.waited_seconds + stats.step_seconds
    assert stats.seconds <= elapsed
    assert stats.step_seconds >= 0.1
    assert stats.images_per_second == pytest.approx(40 / stats.seconds)
    assert 0 < stats.wait_share < 1
    assert stats.bytes_read == image_bytes(few)
    assert all(stats.stage_seconds[stage] > 0 for stage in ("read", "verify", "decode", "wait", "hand_over"))
    assert stats.fetched.requests == 0


def test_each_epoch_has_its_own_figures_and_since_last_call_covers_several(make):
    loader = make()
    train(loader, epochs=1)
    first = loader.stats()
    assert first.epoch == first.since_last_call
    for number, _ in enumerate(loader):
        if number == 4:
            break
    second = loader.stats()
    assert (second.epoch.epoch, second.epoch.batches, second.since_last_call.batches) == (1, 5, 5)
    train(loader, epochs=2)
    third = loader.stats()
    assert (third.epoch.epoch, third.epoch.batches, third.since_last_call.batches) == (3, 10, 20)
    assert loader.stats().since_last_call.batches == 0
    assert loader.stats().since_last_call.main_cause == "step"  # no time has passed


def test_the_time_between_two_iterations_is_not_counted(make):
    loader = make()
    train(loader, epochs=1)
    before = loader.stats().epoch.seconds
    time.sleep(0.2)
    assert loader.stats().epoch.seconds == before
    for _ in loader:
        break
    time.sleep(0.2)
    assert loader.stats().epoch.step_seconds == 0


@pytest.mark.torture
def test_complete_batches_and_parts_in_progress_are_counted(make):
    waiting = make(transform=slow(0.03))
    stats = read(waiting)
    assert stats.ready_batches < 1
    assert stats.parts_in_progress > 1
    idle = make()
    stats = read(idle, step=0.1)
    assert stats.ready_batches > 1
    assert stats.parts_in_progress < 2


def test_padding_and_replaced_samples_are_counted(make, few_copy):
    loader = make(batch_size=16, tail="pad")
    assert read(loader, epochs=1).samples == 48
    shard = next(few_copy.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[2000:2100] = bytes(100)
    shard.write_bytes(data)
    loader = make(few_copy, batch_size=8, on_error="replace")
    assert read(loader, epochs=1).samples == 40
    assert len(loader.errors) == 1


def test_stats_work_after_an_error_and_after_close(make):
    def fail(image):
        raise ValueError("no")

    loader = make(transform=fail)
    with pytest.raises(ValueError, match="no"):
        train(loader)
    assert loader.stats().epoch.batches == 0
    loader.close()
    assert "no batch" in loader.report()


def test_stats_may_be_read_by_another_thread(make):
    loader, found, ended = make(), [], threading.Event()

    def watch():
        while not ended.is_set():
            found.append(loader.stats().epoch)

    thread = threading.Thread(target=watch)
    thread.start()
    train(loader, epochs=3)
    ended.set()
    thread.join()
    assert all(0 <= stats.batches <= 10 for stats in found)


def test_figures_are_those_of_one_epoch_if_the_next_one_begins_while_they_are_read(make, monkeypatch):
    loader, period, calls = make(), Meter.period, itertools.count()

    def slow_period(meter, begin):
        if next(calls) < 2:  # as if another thread went on meanwhile
            train(loader, epochs=1)
        return period(meter, begin)

    monkeypatch.setattr(Meter, "period", slow_period)
    assert loader.stats().epoch.batches == 10


def test_a_loader_inside_a_transform_does_not_disturb_the_figures(make, few):
    inner = make(few, num_workers=0)

    def load(image):
        next(iter(inner))
        time.sleep(0.01)
        return image

    loader = make(num_workers=0, transform=load)
    stats = read(loader, epochs=1)
    assert stats.main_cause == "transform"
    assert stats.batches == 10
    assert inner.stats().epoch.batches == 1


def test_a_loader_can_be_pickled_before_it_starts(make):
    loader = pickle.loads(pickle.dumps(make()))
    assert read(loader).batches == 10
    loader.close()


# --- output ---


def test_the_figures_are_plain_values_for_json(make):
    loader = make()
    train(loader)
    stats = loader.stats()
    found = json.loads(json.dumps(stats.to_dict()))
    assert set(found) == {"epoch", "since_last_call"}
    assert found["epoch"]["samples"] == 40
    assert found["epoch"]["waits"] == stats.epoch.waits
    assert found["epoch"]["fetched"] == dict.fromkeys(found["epoch"]["fetched"], 0)
    own = {"images_per_second", "wait_share", "main_cause"}
    assert set(found["epoch"]) == {one.name for one in fields(wt.PeriodStats)} | own


def test_the_progress_line_has_position_speed_and_cause(make, capfd):
    loader = make(progress=True, transform=slow(0.05))
    train(loader, epochs=1)
    text = capfd.readouterr().err
    assert "epoch 0: 100%" in text
    assert "10/10" in text
    assert re.search(r" images/s, waits \d+ % \(transform\)", text)
    for _ in loader:
        break
    assert "epoch 1:" in capfd.readouterr().err
    assert len(list(loader)) == 10


def test_the_progress_line_is_shown_on_request_and_on_rank_0_only(make, capfd):
    for options in ({}, {"progress": True, "rank": 1, "world_size": 2}):
        train(make(**options), epochs=1)
        assert capfd.readouterr().err == ""
    train(make(progress=True, rank=0, world_size=2), epochs=1)
    assert "5/5" in capfd.readouterr().err


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_are_written_for_each_epoch_and_period(make, tmp_path):
    path = tmp_path / "stats.jsonl"
    loader = make()
    loader.log_stats(path, seconds=0.1)
    train(loader, epochs=2, step=0.05)
    lines = lines_of(path)
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [0, 1]
    assert [line["batches"] for line in lines if line["kind"] == "epoch"] == [10, 10]
    periods = [line for line in lines if line["kind"] == "period"]
    assert len(periods) > 2
    assert sum(line["batches"] for line in periods) <= 20
    assert {line["rank"] for line in lines} == {0}
    assert abs(lines[-1]["time"] - time.time()) < 100
    for _ in loader:
        break
    assert lines_of(path)[-1]["batches"] == 1  # an epoch that was left


def test_json_lines_of_an_epoch_that_runs_already_begin_with_the_next_batch(make, tmp_path):
    loader = make(rank=1, world_size=2, tail="pad")
    batches = iter(loader)
    next(batches)
    loader.log_stats(tmp_path / "stats.jsonl", seconds=1000)
    for _ in batches:
        pass
    (line,) = lines_of(tmp_path / "stats.jsonl")
    assert (line["rank"], line["kind"], line["batches"]) == (1, "epoch", 5)


def test_a_program_that_ends_within_an_epoch_writes_the_line_of_the_epoch(few, tmp_path):
    program = textwrap.dedent("""
        import sys
        import wds_tools as wt

        view = wt.CenterCrop(16, resize=16)
        loader = wt.make_loader(sys.argv[1], batch_size=4, num_workers=1, view=view, progress=True)
        loader.log_stats(sys.argv[2])
        batches = iter(loader)
        next(batches)
    """)
    done = preloaded.run(["-c", program, few, tmp_path / "stats.jsonl"])
    assert done.returncode == 0
    assert "Exception" not in done.stderr
    assert "1/10" in done.stderr
    assert [line["batches"] for line in lines_of(tmp_path / "stats.jsonl")] == [1]


def test_a_fork_of_the_training_process_writes_no_statistics(make, tmp_path):
    loader = make(num_workers=0)
    loader.log_stats(tmp_path / "stats.jsonl")
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        batches.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not lines_of(tmp_path / "stats.jsonl")
    batches.close()
    assert len(lines_of(tmp_path / "stats.jsonl")) == 1


def test_a_file_that_cannot_be_written_is_reported_at_once_and_later_does_not_end_the_training(make, tmp_path, caplog):
    loader = make()
    with pytest.raises(OSError, match="missing"):
        loader.log_stats(tmp_path / "missing" / "stats.jsonl")
    folder = tmp_path / "folder"
    folder.mkdir()
    loader.log_stats(folder / "stats.jsonl")
    (folder / "stats.jsonl").unlink()
    folder.rmdir()
    train(loader)
    assert caplog.text.count("no more statistics are written") == 1
    with pytest.raises(OptionError, match="seconds=0"):
        loader.log_stats(tmp_path / "stats.jsonl", seconds=0)


# --- the ceiling ---


@pytest.mark.parametrize("workers", [0, 2])
def test_the_ceiling_repeats_the_first_batch_and_changes_nothing(make, workers):
    loader, expected = make(num_workers=workers, shuffle=True), make(num_workers=0, shuffle=True)
    batches = iter(loader)
    received = [next(batches)]
    state, stats = loader.state_dict(), loader.stats().epoch
    ceiling = loader.ceiling(steps=5)
    assert "not measured yet" in str(ceiling)
    repeated = list(ceiling)
    assert len(repeated) == len(ceiling) == 8
    assert all(torch.equal(batch.image, received[0].image) for batch in repeated)
    assert loader.state_dict() == state
    assert loader.stats().epoch == stats
    received += batches
    for batch, other in zip(received, expected, strict=True):
        assert torch.equal(batch.image, other.image)
    assert loader.epoch_proof().ok


def test_the_ceiling_measures_the_loop(make):
    ceiling = make().ceiling(steps=10)
    for _ in ceiling:
        time.sleep(0.02)
    assert 0 < ceiling.images_per_second <= 4 / 0.02
    assert str(ceiling) == f"the training step alone: {ceiling.images_per_second:,.0f} images/s"
    with pytest.raises(OptionError, match="steps=0"):
        make().ceiling(steps=0)


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's protobuf
def test_the_code_of_the_page_runs(packed, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "why-the-gpu-waits.md"
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "photos").symlink_to(packed)
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    exec(compile(code, page.name, "exec"), {"__name__": "page"})
    assert "the training step alone: " in capsys.readouterr().out
    assert lines_of(tmp_path / "stats.jsonl")
    assert list((tmp_path / "runs" / "first").iterdir())
