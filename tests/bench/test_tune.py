"""`tune` measures the loader on the user's own dataset."""

import pytest
import torch

import wds_tools as wt
from wds_tools.bench import tune as module
from wds_tools.bench.tune import tune
from wds_tools.errors import DeviceError, NotADatasetError, OptionError

QUICK = {"rounds": 1, "seconds": 0.05, "batch_size": 4}


@pytest.fixture
def three_cores(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 3)


def test_every_number_of_workers_is_measured_in_turn_and_the_call_runs(packed, three_cores, no_leftovers):
    told = []
    found = tune(packed, **{**QUICK, "rounds": 2}, progress=told.append)
    assert list(found.workers) == [0, 1, 2, 3]
    assert list(found.prefetch) == [1, 2, 4]
    for rounds in (*found.workers.values(), *found.prefetch.values()):
        assert [measured.images % 4 for measured in rounds] == [0, 0]
        assert all(measured.cpu_seconds > 0 for measured in rounds)
    assert found.num_workers in (1, 2, 3)
    assert told[0] == "warming up"
    order = [line.partition(":")[2].partition(",")[0] for line in told[1:9]]
    assert order == [f" num_workers={number}" for number in (0, 1, 2, 3)] * 2
    assert found.task.steps == 100

    names = {}
    exec("import wds_tools\n" + found.call(), names)
    with names["loader"] as loader:
        assert (loader.num_workers, loader.prefetch_factor) == (found.num_workers, found.prefetch_factor)
        images, labels = next(iter(loader))
        assert (images.shape, labels.shape) == ((4, 3, 224, 224), (4,))
        assert found.slots == loader._feeding.slots


def test_on_many_cores_a_ladder_is_measured_and_then_what_is_between_its_rungs(packed, monkeypatch):
    measured = []

    def measure(start, workers, seconds):  # a clock that starts no workers: this machine has fewer cores
        measured.append(start.args[1])
        return {"images": 4, "seconds": 1.0, "cpu_seconds": 1.0, "memory_bytes": 1, "first_batch_seconds": 0.1}

    monkeypatch.setattr(module, "available_cores", lambda: 12)
    monkeypatch.setattr(module, "smallest", lambda rounds: 12 if len(rounds) > 3 else 1)
    monkeypatch.setattr(module, "time_batches", measure)
    found = tune(packed, view="small", **QUICK)
    ladder, refined = [0, 1, 2, 3, 4, 6, 8, 12], [0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 12]
    assert measured == [12, *ladder, *refined, 12, 12, 12]
    assert list(found.workers) == refined


def test_pictures_of_one_size_are_taken_as_they_are_and_need_no_labels(photos, three_cores, tmp_path, no_leftovers):
    wt.pack(photos / "cat", tmp_path / "cats", workers=1, images="raw", resize="32x24")
    found = tune(tmp_path / "cats", view="raw", **QUICK)
    assert found.task.view == wt.Resize((24, 32))
    assert found.task.fields == ("image",)
    assert found.task.image_bytes == 3 * 24 * 32
    assert "fields='image'" in found.call()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "odd"}, "view='odd'; allowed are train, eval, small, raw"),
        ({"view": "raw"}, "pictures of one size"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": 0}, "seconds=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 500}, "500 samples per step, the dataset has 400"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(packed, options, said):
    told = []
    with pytest.raises(OptionError, match=said):
        tune(packed, **options, progress=told.append)
    assert told == []


def test_what_is_no_dataset_or_no_device_is_refused_before_anything_starts(packed, tmp_path):
    with pytest.raises(NotADatasetError):
        tune(tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="sees 0 CUDA devices"):
            tune(packed, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_can_go_to_a_device(packed, three_cores):
    assert 'device="cuda"' in tune(packed, device="cuda", **QUICK).call().replace("'", '"')
