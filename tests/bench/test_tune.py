"""`tune` measures the loader on the user's own dataset."""

import subprocess
import sys

import pytest
import torch
from terminals import watched

import wds_tools as wt
from wds_tools.bench import tune as module
from wds_tools.bench.tune import tune
from wds_tools.errors import DeviceError, NotADatasetError, OptionError
from wds_tools.loading.pipeline.autoscale import Autoscaler

QUICK = {"rounds": 1, "seconds": 0.02, "batch_size": 4}


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 2)


def test_every_number_of_workers_is_measured_in_alternating_rounds_and_the_call_runs(
    few, two_cores, no_leftovers, monkeypatch
):
    lines, shown = [], watched(monkeypatch)
    found = tune(few, **{**QUICK, "rounds": 2}, progress=lines.append)
    assert "measuring:   0%|          | 0/6 [" in shown.getvalue()
    assert list(found.workers) == [0, 1, 2]
    for rounds in found.workers.values():
        assert [measured.images % 4 for measured in rounds] == [0, 0]
        assert all(measured.cpu_seconds > 0 for measured in rounds)
    assert found.num_workers in (1, 2)
    assert lines[0] == "warming up"
    order = [line.split(":")[1] for line in lines[1:7]]
    assert order == [f" num_workers={number}" for number in (0, 1, 2)] * 2
    assert found.setup.steps == 10

    names = {}
    exec("import wds_tools\n" + found.call(), names)
    with names["loader"] as loader:
        assert loader.num_workers == found.num_workers
        images, labels = next(iter(loader))
        assert (images.shape, labels.shape) == ((4, 3, 224, 224), (4,))
        options = {"batch_size": loader.batch_size, "prefetch_factor": loader.prefetch_factor}
        assert found.slots == Autoscaler.from_options(loader.num_workers, **options).slots


def test_on_many_cores_some_numbers_are_measured_and_then_those_just_below_the_chosen_one(packed, monkeypatch):
    measured = []

    def measure(start, workers, seconds):  # starts no workers: this machine has fewer cores
        measured.append(start.args[1])
        return {"images": 4, "seconds": 1.0, "cpu_seconds": 1.0, "memory_bytes": 1, "first_batch_seconds": 0.1}

    monkeypatch.setattr(module, "available_cores", lambda: 12)
    monkeypatch.setattr(module, "smallest_sufficient", lambda rounds: 12 if len(rounds) > 3 else 1)
    monkeypatch.setattr(module, "time_batches", measure)
    found = tune(packed, view="small", **QUICK)
    first, refined = [0, 1, 2, 3, 4, 6, 8, 12], [0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 12]
    assert measured == [12, *first, *refined]
    assert list(found.workers) == refined


@pytest.mark.torture
def test_the_raw_view_takes_images_of_one_size_and_needs_no_labels(photos, two_cores, tmp_path, no_leftovers):
    wt.pack(photos / "cat", tmp_path / "cats", workers=1, images="raw", resize="32x24")
    # Another process of the program does not count as a worker, for which the measurement would wait.
    with subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE) as other:
        found = tune(tmp_path / "cats", view="raw", **QUICK)
        assert other.poll() is None
        other.communicate(b"\n")
    assert found.setup.view == wt.Resize((24, 32))
    assert found.setup.fields == ("image",)
    assert found.setup.image_bytes == 3 * 24 * 32
    assert "fields='image'" in found.call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "odd"}, "view='odd'; allowed are train, eval, small, raw"),
        ({"view": "raw"}, r"requires a dataset with images of one size, but its images have \d+x\d+ to"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": 0}, "seconds=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 500}, "500 samples per step, but the dataset has 400"),
    ],
)
def test_an_invalid_argument_is_an_error_before_anything_starts(packed, options, message):
    lines = []
    with pytest.raises(OptionError, match=message):
        tune(packed, **options, progress=lines.append)
    assert lines == []


def test_a_missing_dataset_or_device_is_an_error_before_anything_starts(packed, tmp_path):
    with pytest.raises(NotADatasetError):
        tune(tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="sees 0 CUDA devices"):
            tune(packed, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_can_be_copied_to_a_device(packed, two_cores):
    assert 'device="cuda"' in tune(packed, device="cuda", **QUICK).call().replace("'", '"')
