"""Resuming: after kill -9, after the dataset grew, with force=True, and in cases that failed in other loaders."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from itertools import islice
from pathlib import Path

import pytest
from native_helpers import needs_native
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.errors import OptionError, ResumeError

KEYS = ("__key__",)


@pytest.fixture
def make():
    """Return a function that creates loaders of keys, which are closed at the end of the test."""
    made = []

    def make_one(dataset, **options):
        options = {"batch_size": 20, "fields": KEYS, "shuffle": True, "num_workers": 0, **options}
        made.append(wt.make_loader(dataset, **options))
        return made[-1]

    yield make_one
    for loader in made:
        loader.close()


def keys_of(loader):
    return [key for batch in loader for key in batch.key]


def _train(dataset, folder, number, pace):
    """Iterate like a training script: write the keys of each step, and save the state atomically every third step."""
    loader = wt.make_loader(dataset, batch_size=5, fields=KEYS, shuffle=True, num_workers=2, tail="mask")
    state_file = Path(folder) / "state.json"
    if state_file.exists():
        loader.load_state_dict(json.loads(state_file.read_text()))
    with (Path(folder) / f"seen-{number}").open("w") as seen:
        start = loader.state_dict()["position"]
        print("from", start, file=seen, flush=True)
        for step, batch in enumerate(loader):
            print(*[key for key, ok in zip(batch.key, batch.valid, strict=True) if ok], file=seen, flush=True)
            if step % 3 == 2:
                temporary = Path(folder) / "state.tmp"
                temporary.write_text(json.dumps(loader.state_dict()))
                temporary.rename(state_file)
            time.sleep(pace)
        print("end", file=seen, flush=True)
    os._exit(0)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.torture)])
def test_kills_in_one_epoch_lose_nothing_and_repeat_only_samples_after_the_last_state(packed, tmp_path, make, kills):
    whole = keys_of(make(packed, tail="mask", batch_size=5, num_workers=0))[:400]
    rng, killed, number = random.Random(7), 0, 0
    covered = 0  # number of samples from the start of the epoch that were delivered without a gap
    while True:
        process = multiprocessing.get_context("fork").Process(target=_train, args=(packed, tmp_path, number, 0.02))
        process.start()
        if killed < kills:
            seen_file = tmp_path / f"seen-{number}"
            steps = rng.randint(4, 10)  # before the kill; the epoch has 80
            while process.is_alive() and (not seen_file.exists() or len(seen_file.read_text().splitlines()) < steps):
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.join(300)
        first, *lines = (tmp_path / f"seen-{number}").read_text().splitlines()
        start = int(first.split()[1])
        got = [key for line in lines if line != "end" for key in line.split()]
        assert got == whole[start : start + len(got)]
        assert covered - 15 <= start <= covered  # the state is saved every third step of 5 samples
        covered = max(covered, start + len(got))
        number += 1
        if lines and lines[-1] == "end":
            break
    assert killed == kills
    assert covered == 400


@pytest.fixture
def growing(packed, tmp_path):
    """Return a folder with the first four shards of a dataset, and a function that adds the others."""
    shards = sorted(packed.glob("*.tar"))
    folder = tmp_path / "growing"
    folder.mkdir()

    def add(shards):
        for shard in shards:
            shutil.copy(shard, folder)
        wt.index_shards([str(folder / "*.tar")])
        return folder

    add(shards[:4])
    return folder, lambda: add(shards[4:])


@pytest.mark.parametrize("options", [{}, {"where": "label != 3", "class_weights": "balanced"}])
@pytest.mark.torture_except("options0")
def test_new_shards_are_used_from_the_next_epoch_on(growing, make, options):
    folder, grow = growing
    epochs = make(folder, **options)
    before = [keys_of(epochs), keys_of(epochs)]
    options["num_workers"] = 1
    loader = make(folder, **options)
    got = [key for batch in islice(loader, 3) for key in batch.key]
    state = loader.state_dict()
    grow()
    grown = make(folder, **options)
    samples = grown.samples
    grown.load_state_dict(state)
    assert grown.samples == epochs.samples < samples
    assert got + keys_of(grown) == before[0]  # the epoch ends as it would have
    assert len(grown) == samples // 20  # the next one has the new samples
    fresh = make(folder, **options)
    list(fresh)
    fresh.set_epoch(1)
    taken, expected = keys_of(grown), keys_of(fresh)
    assert len(taken) == len(expected) == samples // 20 * 20
    assert len(set(taken) - set(before[1])) > 50  # new ones among them
    assert grown.epoch_proof().ok


@pytest.mark.torture
def test_a_state_of_an_epoch_without_the_new_shards_can_be_saved_and_loaded_again(growing, make):
    folder, grow = growing
    before = keys_of(make(folder, num_workers=0))
    loader = make(folder)
    got = [key for batch in islice(loader, 2) for key in batch.key]
    state = loader.state_dict()
    grow()
    for _ in range(2):
        loader = make(folder)
        loader.load_state_dict(json.loads(json.dumps(state)))
        got += [key for batch in islice(loader, 2) for key in batch.key]
        state = loader.state_dict()
    loader = make(folder)
    loader.load_state_dict(state)
    got += keys_of(loader)
    assert got == before
    assert loader.state_dict()["shards"] > state["shards"]


@pytest.mark.torture
def test_weights_change_from_the_epoch_on_that_has_the_new_shards(growing, make):
    folder, grow = growing
    loader = make(folder, num_workers=0)
    list(islice(loader, 2))
    state = loader.state_dict()
    grow()
    grown = make(folder, num_workers=0)
    grown.load_state_dict(state)
    before = grown.state_dict()
    with pytest.raises(OptionError, match="weights can change from epoch 1 on"):
        grown.reweight(where={"label == 0": 0})
    assert grown.state_dict() == before
    keys_of(grown)
    grown.reweight(where={"label == 0": 0})
    state, zeros = grown.state_dict(), set(keys_of(make(folder, num_workers=0, where="label == 0")))
    assert not zeros & set(keys_of(grown))
    shutil.copy(next(folder.glob("*.tar")), folder / "shard-999999.tar")
    wt.index_shards([str(folder / "*.tar")])
    with pytest.raises(ResumeError, match="the state has weights for the dataset"):
        make(folder, num_workers=0).load_state_dict(state)


def test_a_state_from_the_end_of_an_epoch_continues_with_the_new_shards(growing, make):
    folder, grow = growing
    loader = make(folder)
    list(loader)
    state = loader.state_dict()
    grow()
    grown = make(folder)
    grown.load_state_dict(state)
    assert len(keys_of(grown)) == len(grown) * 20 > 200


def test_a_smaller_or_different_dataset_is_refused_unless_forced(growing, make, packed):
    folder, grow = growing
    small = make(folder)
    grow()
    loader = make(folder)
    list(islice(loader, 2))
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="fingerprint"):
        small.load_state_dict(state)
    with pytest.raises(ResumeError, match="force=True"):
        make(folder, seed=3).load_state_dict(state)
    forced = make(folder, seed=3)
    forced.load_state_dict(state, force=True)
    assert keys_of(forced) == keys_of(make(folder, seed=3))[40:]
    with pytest.raises(ResumeError, match="checksum of the state"):
        make(packed).load_state_dict({**state, "position": 900}, force=True)
    del state["xxh3"]
    with pytest.raises(ResumeError, match="position 900 of 400"):
        make(packed).load_state_dict({**state, "position": 900}, force=True)


# Issues that users of other loaders reported, with the number of the issue.


def test_torchdata_1437_a_state_from_the_end_of_an_epoch_starts_the_next_one(packed, make):
    epochs = make(packed, num_workers=0)
    first, second = keys_of(epochs), keys_of(epochs)
    loader = make(packed)
    assert keys_of(loader) == first
    again = make(packed)
    again.load_state_dict(loader.state_dict())
    assert again.state_dict() == loader.state_dict()
    assert keys_of(again) == second


def test_litdata_770_an_epoch_can_be_resumed_several_times(packed, make):
    whole = keys_of(make(packed, num_workers=0))
    got, state = [], None
    for _ in range(5):
        loader = make(packed)
        if state:
            loader.load_state_dict(state)
        got += [key for batch in islice(loader, 4) for key in batch.key]
        state = loader.state_dict()
    assert got == whole


def test_lightning_19335_a_state_does_not_depend_on_the_number_of_workers(packed, make):
    states = []
    for num_workers in (0, 2):
        loader = make(packed, num_workers=num_workers)
        list(islice(loader, 3))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    rest = make(packed, num_workers=0)
    rest.load_state_dict(states[1])
    assert keys_of(rest) == keys_of(make(packed, num_workers=0))[60:]


def test_llm_foundry_1277_prefetched_batches_are_not_in_the_state(packed, make):
    loader = make(packed, num_workers=2, prefetch_factor=4)
    batches = iter(loader)
    for taken in range(1, 6):
        next(batches)
        time.sleep(0.05)  # the workers run ahead
        assert loader.state_dict()["position"] == taken * 20


def test_webdataset_411_a_loop_left_early_does_not_hang_and_the_next_epoch_is_complete(packed, make):
    loader = make(packed, num_workers=2)
    expected = make(packed, num_workers=0)
    for _ in range(3):
        list(islice(loader, 1))
        list(expected)
    assert keys_of(loader) == keys_of(expected)


@pytest.mark.torture
def test_datasets_8669_each_rank_gets_data_even_with_more_ranks_than_shards(packed, make):
    shard = str(min(packed.glob("*.tar")))
    parts = [keys_of(make(shard, rank=rank, world_size=8, batch_size=2)) for rank in range(8)]
    assert len({len(part) for part in parts}) == 1
    assert min(len(part) for part in parts) > 0
    assert len({key for part in parts for key in part}) == sum(map(len, parts))


@pytest.mark.frameworks
def test_accelerate_does_not_change_a_loader(packed, make):
    import accelerate

    loader = make(packed, rank=1, world_size=2, num_workers=0)
    prepared = accelerate.Accelerator(cpu=True).prepare(loader)
    assert prepared is loader
    assert keys_of(prepared) == keys_of(make(packed, rank=1, world_size=2, num_workers=0))


@pytest.mark.torture
def test_a_dataloader_without_set_epoch_yields_each_sample_once_per_epoch(packed):
    """Lightning and Accelerate call set_epoch on their own samplers. StreamingDataset does not need this call."""
    dataset = wt.StreamingDataset(packed, fields=KEYS, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    for _ in range(2):
        assert len({sample.key for sample in loader}) == 400


def test_a_resumed_run_with_another_view_logs_a_warning_that_names_both(packed, make, caplog):
    mosaic = {"image": wt.Image(view=wt.Mosaic(64, tiles=4)), "label": wt.Label()}
    state = json.loads(json.dumps(make(packed, fields=mosaic).state_dict()))
    make(packed, fields=mosaic).load_state_dict(state)
    make(packed, fields={"key": wt.Key()}).load_state_dict(state)
    assert not caplog.records
    other = {"image": wt.Image(view=wt.Mosaic(64, tiles=9))}
    make(packed, fields=other).load_state_dict(state)
    (record,) = caplog.records
    assert """'image' is {"views": [{"kind": "Mosaic", "size": 64}]} in the state""" in record.message
    assert """and {"views": [{"kind": "Mosaic", "size": 64, "tiles": 9}]} in this run""" in record.message


@needs_native
def test_a_resumed_run_whose_pixels_differ_logs_a_warning(packed, make, monkeypatch, caplog):
    loader = make(packed)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert not caplog.records
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    loader.load_state_dict(state)
    assert "with the compiled module of wds_tools, and this run continues without it" in caplog.text
    caplog.clear()
    loader.load_state_dict({name: value for name, value in state.items() if name not in ("compiled", "xxh3")})
    assert not caplog.records
