"""``make_loader(..., pack_to=)``: training while a packer of its own, or another one, writes the shards."""

import fcntl
import hashlib
import json
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import types
from collections import Counter, UserList
from pathlib import Path
from random import Random

import datasets
import preloaded
import pytest
from PIL import Image
from ranks import run_ranks
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import (
    DestinationError,
    LoaderError,
    MissingFieldError,
    MissingSourceError,
    OptionError,
    ResumeError,
    SourceError,
    StoreError,
    WorkerError,
)
from wds_tools.storage.lock import lock_file

PACK = {"shard_bytes": "100kB", "images": "keep"}
LOAD = {"batch_size": 4, "fields": ["image", "label", "__key__"], "view": wt.CenterCrop(32, resize=40), "shuffle": True}
pytestmark = pytest.mark.usefixtures("forked_packers", "no_leftovers")


@pytest.fixture(scope="module")
def source(tmp_path_factory, photos):
    """Return a folder of 40 photographs and two files that are none."""
    folder = tmp_path_factory.mktemp("source") / "photos"
    for path in photos.glob("*/00[0-4].*"):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.parent.name)
    (folder / "cat" / "text.jpg").write_text("not an image")
    (folder / "fig" / "half.jpg").write_bytes(next((folder / "fig").glob("*.jpg")).read_bytes()[:3000])
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory, source):
    """Return the same files, packed by `pack`."""
    folder = tmp_path_factory.mktemp("packed") / "photos"
    wt.pack(source, folder, workers=1, **PACK)
    return folder


@pytest.fixture(scope="module")
def first_epoch(source, packed):
    """Return the keys of the first epoch in batches of 4: of the finished dataset, the order is the same."""
    with make(source, packed) as loader:
        return keys_of(loader)


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def make(source, folder, **options):
    return wt.make_loader(source, pack_to=folder, **{**LOAD, "pack": PACK, "num_workers": 0, **options})


def keys_of(loader):
    return [key for batch in loader for key in batch.key]


def keys_of_plan(packed):
    """Return the keys of all samples in the order of the plan."""
    with wt.make_loader(packed, batch_size=1, fields=["__key__"], num_workers=0) as loader:
        return [key for (keys,) in loader for key in keys]


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class OtherPacker:
    """A packer that shares the work among many tasks, so that a test decides when a shard is finished."""

    def __init__(self, source, folder):
        self._source, self._folder = source, folder
        self._lock = lock_file(folder / ".packing" / "lock", shared=True)

    def pack(self, *numbers):
        for number in numbers:
            wt.pack(self._source, self._folder, workers=1, task=(number, 1000), **PACK)

    def close(self):
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # workers that were forked have it too
            os.close(self._lock)
            self._lock = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def test_the_first_epoch_has_the_order_of_the_plan_and_later_ones_that_of_any_loader(source, packed, tmp_path):
    planned = keys_of_plan(packed)
    assert len(planned) == 40
    with make(source, tmp_path / "out", num_workers=1, tail="mask") as loader:
        assert len(loader) == 11  # of 42 inputs
        first = [(key, valid) for batch in loader for key, valid in zip(batch.key, batch.valid.tolist(), strict=True)]
        assert str(loader.epoch_proof()) == "epoch 0: 40 samples, each once"
        errors = [(error.position, error.key) for error in loader.errors]
        second = keys_of(loader)
        assert loader.packing.is_complete
        state = loader.state_dict()
    assert [key for key, valid in first if valid] == planned
    assert sorted(set(range(42)) - set(map(int, planned))) == [position for position, _ in errors]
    assert all(int(first[position][0]) < position for position, _ in errors)  # a sample before it is in its place
    assert hashes(tmp_path / "out") == hashes(packed)
    with wt.make_loader(packed, **LOAD, tail="mask", num_workers=0) as loader:
        loader.set_epoch(1)
        assert keys_of(loader) == second
        loader.load_state_dict(state)
        assert loader.epoch == 2
        third = loader.explain(3, epoch=0)
        assert [one.key for one in third.samples] == [key for key, _ in first[12:16]]


def test_a_batch_is_loaded_as_soon_as_its_shards_are_finished(source, packed, first_epoch, tmp_path):
    received = []
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0)
        with make(source, tmp_path / "out", num_workers=1) as loader:
            iterator = iter(loader)
            full = loader.packing.done // 4  # batches of the first shard
            received += [key for _ in range(full) for key in next(iterator).key]
            assert received == first_epoch[: full * 4]
            assert 0 < loader.packing.done < 42
            assert "of 42 inputs" in str(loader.packing)
            with pytest.raises(LoaderError, match="are not packed yet"):
                loader.explain(8)
            with pytest.raises(OptionError, match="still being packed"):
                loader.reweight(classes={"cat": 2.0})
            state = loader.state_dict()
            thread = threading.Thread(target=lambda: received.extend(key for batch in iterator for key in batch.key))
            thread.start()
            packer.pack(2)  # not the next one
            time.sleep(0.3)  # the loop may take the third shard only after the second
            assert len(received) == full * 4
            packer.pack(1)
            wait_for(lambda: len(received) > full * 4)
            packer.pack(*range(3, 10))
            packer.close()  # the packer of the loader completes the dataset
            thread.join()
            assert received == first_epoch
            assert loader.stats().epoch.waits["packing"] > 0
            assert len(keys_of(loader)) == 40
    assert hashes(tmp_path / "out") == hashes(packed)
    with wt.make_loader(packed, **LOAD, num_workers=0) as loader:  # the rest of the epoch, in the finished dataset
        loader.load_state_dict(state)
        assert keys_of(loader) == first_epoch[full * 4 :]
        assert loader.epoch == 1


def test_a_training_that_was_killed_continues_at_the_next_batch(source, packed, first_epoch, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    words = [str(program), str(source), str(tmp_path / "out"), str(tmp_path / "state.json")]
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0, 1)
        first = preloaded.Process([*words, "3"])
        assert first.wait() == -signal.SIGKILL, first.stderr
        saved = json.loads((tmp_path / "state.json").read_text())
        wait_for(lambda: not is_running(saved["packer"]))
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert saved["state"]["position"] == 12
    with make(source, tmp_path / "out") as loader:
        loader.load_state_dict(saved["state"])
        rest = keys_of(loader)
        assert str(loader.epoch_proof()).endswith("samples, each once")
    assert saved["keys"] + rest == first_epoch
    assert hashes(tmp_path / "out") == hashes(packed)


PROGRAM = """
import json, os, signal, sys
import wds_tools as wt
source, folder, file, steps = sys.argv[1:]
loader = wt.make_loader(source, pack_to=folder, pack={"shard_bytes": "100kB", "images": "keep"}, batch_size=4,
    fields=["image", "label", "__key__"], view=wt.CenterCrop(32, resize=40), shuffle=True, num_workers=1)
keys = []
if os.path.exists(file):
    saved = json.load(open(file))
    keys = saved["keys"]
    loader.load_state_dict(saved["state"])
for step, batch in enumerate(loader, 1):
    keys += batch.key
    if step == int(steps):
        with open(file + ".new", "w") as out:
            packer = loader.packing and loader.packing.pid
            json.dump({"state": loader.state_dict(), "keys": keys, "packer": packer}, out)
        os.rename(file + ".new", file)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_packer_that_is_killed_is_started_again_once(source, first_epoch, tmp_path, caplog):
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0)
        with make(source, tmp_path / "out") as loader:
            iterator = iter(loader)
            received = list(next(iterator).key)
            os.kill(loader.packing.pid, signal.SIGKILL)
            packer.pack(*range(1, 10))
            received += [key for _ in range(9) for key in next(iterator).key]
            assert received == first_epoch
            assert [record for record in caplog.messages if "was killed by SIGKILL: it is started again" in record]
            os.kill(loader.packing.pid, signal.SIGKILL)
            with pytest.raises(WorkerError, match=r"was killed by SIGKILL, for the second time. Finished shards are"):
                list(iterator)


def test_a_packer_that_writes_nothing_is_an_error_within_stall_seconds(source, tmp_path):
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0)
        with make(source, tmp_path / "out", stall_seconds=0.5) as loader:
            with pytest.raises(WorkerError, match=r"has written nothing to .*out for 0.5 s"):
                keys_of(loader)
            packer.close()
            wait_for((tmp_path / "out" / "manifest.json").exists)  # on a busy machine, shards take longer than 0.5 s
            loader.set_epoch(0)
            assert len(keys_of(loader)) == 40  # an error does not end the loader


@pytest.mark.torture
def test_two_trainings_pack_into_one_folder(source, packed, first_epoch, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    words = [str(program), str(source), str(tmp_path / "out")]
    other = preloaded.Process([*words, str(tmp_path / "state.json"), "10"])  # kills itself at the end of the epoch
    with make(source, tmp_path / "out") as loader:
        assert keys_of(loader) == first_epoch
        assert other.wait() == -signal.SIGKILL, other.stderr
        assert len(keys_of(loader)) == 40
    assert json.loads((tmp_path / "state.json").read_text())["keys"] == first_epoch
    assert hashes(tmp_path / "out") == hashes(packed)


def test_ranks_take_equal_steps_while_rank_0_packs(source, packed, first_epoch, tmp_path):
    options = {"pack_to": str(tmp_path / "out"), "pack": PACK, "fields": ["__key__"]}
    ranks = run_ranks(dataset=source, world=2, batch=2, workers=1, options=options)
    steps = [[*one, *other] for one, other in zip(*(rank["steps"] for rank in ranks), strict=True)]
    assert [key for step in steps for key in step] == first_epoch  # of one rank with batches of 4
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 38 samples, each once"}
    assert ranks[0]["state"] == ranks[1]["state"]
    assert hashes(tmp_path / "out") == hashes(packed)


def test_closing_the_loader_stops_the_packer_and_the_next_iteration_starts_it_again(source, first_epoch, tmp_path):
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0)
        loader = make(source, tmp_path / "out")
        pid = loader.packing.pid
        wait_for(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
        session = Path(f"/proc/{pid}/autogroup")  # absent if the kernel does not group processes by session
        wait_for(lambda: not session.exists() or session.read_text().endswith("nice 6\n"))
        assert is_running(pid)
        loader.close()
        assert not is_running(pid)
    assert keys_of(loader) == first_epoch
    loader.close()


@pytest.mark.torture
def test_ctrl_c_ends_the_packer_with_the_training(source, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("os.kill(os.getpid(), signal.SIGKILL)", "signal.raise_signal(signal.SIGINT)"))
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0, 1)
        training = preloaded.Process([str(program), str(source), str(tmp_path / "out"), str(tmp_path / "state"), "1"])
        assert training.wait() in (1, -signal.SIGINT)
        assert "KeyboardInterrupt" in training.stderr
        pid = json.loads((tmp_path / "state").read_text())["packer"]
        wait_for(lambda: not is_running(pid))


def test_progress_shows_the_packer_and_the_epoch(source, tmp_path, capfd):
    with OtherPacker(source, tmp_path / "out") as packer:
        packer.pack(0)
        with make(source, tmp_path / "out", progress=True) as loader:
            iterator = iter(loader)
            next(iterator)  # not all is packed yet, so the packer is shown
            packer.close()
            assert len(list(iterator)) == 9
    shown = capfd.readouterr().err
    assert "packing: " in shown
    assert "/42 [" in shown  # images
    assert "epoch 0:" in shown
    assert "/10 [" in shown  # batches


@pytest.mark.torture
def test_a_first_shard_of_which_nothing_could_be_packed(source, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(30):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(b"not an image" * 10_000)
    pack = {"shard_bytes": "200kB", "shuffle": False}
    with pytest.raises(SourceError, match="30 files cannot be packed"):
        make(tmp_path / "photos", tmp_path / "none", pack=pack, shuffle=False)
    shutil.copy(next((source / "fig").glob("001.*")), tmp_path / "photos" / "a.jpg")  # the last one
    with make(
        tmp_path / "photos", tmp_path / "out", pack=pack, shuffle=False, batch_size=1, fields=["image"]
    ) as loader:
        assert len([*loader]) == 31
        assert str(loader.epoch_proof()) == "epoch 0: 1 sample, each once"


def table_of(source):
    paths = sorted(source.glob("*/00*.*"))
    rows = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": n % 3} for n, path in enumerate(paths)]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"]))
    return datasets.Dataset.from_list(rows, features=features)


@pytest.mark.parametrize("kind", ["table", pytest.param("stream", marks=pytest.mark.torture)])
def test_objects_of_datasets_are_sources(source, tmp_path, kind):
    items = table_of(source) if kind == "table" else table_of(source).to_iterable_dataset()
    with make(items, tmp_path / "out") as loader:
        assert sorted(Counter(label for batch in loader for label in batch.label.tolist()).values()) == [13, 13, 14]
        assert loader.classes == ("a", "b", "c")
    wt.pack(items, tmp_path / "packed", workers=1, **PACK)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "packed")


@pytest.mark.torture
def test_a_folder_packed_from_an_object_is_used_again_for_the_same_object_only(source, tmp_path):
    table = table_of(source)
    for _ in range(2):
        with make(table, tmp_path / "out") as loader:
            assert len(keys_of(loader)) == 40
    is_other = pytest.raises(OptionError, match=r"is not the dataset of the Dataset")
    with make(table.select(range(30)), tmp_path / "out") as loader, is_other:
        keys_of(loader)


def test_objects_that_another_process_cannot_get(tmp_path, monkeypatch):
    class Local(UserList):
        pass

    with pytest.raises(OptionError, match=r"the Local cannot be sent to the process that packs .*[Cc]an't"):
        make(Local(), tmp_path / "out")
    program = types.ModuleType("program")
    program.Items = type("Items", (UserList,), {"__module__": "program"})
    monkeypatch.setitem(sys.modules, "program", program)
    with pytest.raises(OptionError, match=r"the dataset cannot be sent .*No module named 'program'.*can be imported"):
        make(program.Items(), tmp_path / "out")


@pytest.mark.torture
def test_options_that_need_all_samples_wait_for_the_whole_dataset(source, packed, tmp_path):
    with (
        make(source, tmp_path / "out", where="width > 0", seed=5) as loader,
        wt.make_loader(packed, **LOAD, where="width > 0", seed=5, num_workers=0) as plain,
    ):
        assert keys_of(loader) == keys_of(plain)
        assert loader.packing is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack_to": "memory://photos"}, "another process packs, and it cannot write there"),
        ({"pack_to": "s3://bucket/photos", "pack": {"then": "crop-ready"}}, "rewrites images in place"),
        ({"pack": {"fresh": True}}, "the loader sets this option of pack"),
        ({"pack": {"shuffle": False}}, "needs shards that are packed in random order"),
        ({"pack": {"shard_size": 1}}, "shard_size.* does not have; it has .*shard_bytes"),
        ({"pack_to": None}, "pack_to=, which is missing"),
        ({"pack": {"then": "raw"}}, "allowed are 'crop-ready' and None"),
        ({"pack": {"shard_bytes": "1"}}, "shard_bytes=1 is too small"),
        ({"pack": "keep"}, "allowed are dictionaries of options of wds_tools.pack"),
        ({"dataset": wt.Mixture(["a", "b"], weights=[1, 1])}, "must be one source"),
        ({"dataset": ["a", "b"]}, "must be one source"),
        ({"fields": ["image", "depth.png"]}, "has no field 'depth.png'|depth.png"),
    ],
)
def test_invalid_options(source, tmp_path, options, message):
    options = {"dataset": source, "pack_to": tmp_path / "out", "pack": PACK, **LOAD, **options}
    error = MissingFieldError if "fields" in message or "depth" in message else OptionError
    with pytest.raises(error, match=message):
        wt.make_loader(options.pop("dataset"), **options)


def test_folders_that_cannot_be_packed_into(source, packed, tmp_path):
    with pytest.raises(OptionError, match="is inside the source"):
        make(source, source / "out")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DestinationError, match=r"that pack did not write, such as 'notes.txt'"):
        make(source, tmp_path)
    with pytest.raises(MissingSourceError):
        make(tmp_path / "missing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_another_source_is_refused(source, six_photos, tmp_path):
    shutil.copytree(source, tmp_path / "other")
    wt.pack(six_photos, tmp_path / "out", workers=1, **PACK)
    is_other = pytest.raises(OptionError, match=r"is not the dataset of .*photos: .*files was 6 and is 42")
    with make(source, tmp_path / "out", batch_size=2) as loader, is_other:
        keys_of(loader)
    wt.pack(six_photos, tmp_path / "half", workers=1, task=(0, 2), **PACK)
    with pytest.raises(DestinationError, match="holds an unfinished pack of something else"):
        make(source, tmp_path / "half")


def test_a_complete_dataset_is_used_without_its_source(packed, source, first_epoch, tmp_path):
    shutil.copytree(packed, tmp_path / "out")
    with make(tmp_path / "gone", tmp_path / "out") as loader:
        assert loader.packing is None
        assert keys_of(loader) == first_epoch


@pytest.mark.torture
def test_a_source_that_changes_while_it_is_packed(source, tmp_path):
    shutil.copytree(source, tmp_path / "photos")
    with OtherPacker(tmp_path / "photos", tmp_path / "out") as packer:
        packer.pack(0)
        with make(tmp_path / "photos", tmp_path / "out") as loader:
            iterator = iter(loader)
            next(iterator)
            for path in (tmp_path / "photos" / "fig").glob("*"):
                path.write_bytes(path.read_bytes() + b"more")
            packer.close()
            with pytest.raises(StoreError, match="changed while it was packed: it has more than"):
                list(iterator)


@pytest.mark.torture
def test_a_state_of_another_plan_is_refused(source, packed, six_photos, tmp_path):
    with make(source, packed) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = make(six_photos, tmp_path / "out", batch_size=2)
    with other as loader, pytest.raises(ResumeError, match="plan of the packer"):
        loader.load_state_dict(state)
    other = wt.make_loader(packed, **LOAD, num_workers=0, where="width > 0")
    with other as loader, pytest.raises(ResumeError, match="without where="):
        loader.load_state_dict(state)


def test_images_become_crop_ready_during_later_epochs(source, packed, tmp_path):
    with make(source, tmp_path / "out", pack={**PACK, "then": "crop-ready"}) as loader:
        first = list(loader)
        manifest = tmp_path / "out" / "manifest.json"
        wait_for(lambda: json.loads(manifest.read_text())["source"]["images"] == "crop-ready")
        second = list(loader)
        state = loader.state_dict()
    with wt.make_loader(packed, **LOAD, num_workers=0) as loader:
        loader.set_epoch(1)
        for batch, plain in zip(second, loader, strict=True):
            assert batch.key == plain.key
            assert batch.image.equal(plain.image)
    assert len(first) == 10
    with make(source, tmp_path / "out") as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 2
        assert [one.key for one in loader.explain(0, epoch=0).samples] == first[0].key


@pytest.mark.torture
def test_images_that_are_too_small_for_the_view_are_an_error_as_soon_as_they_are_packed(source, tmp_path):
    shutil.copytree(source, tmp_path / "photos")
    Image.new("RGB", (20, 20)).save(tmp_path / "photos" / "cat" / "small.jpg")
    is_small = pytest.raises(OptionError, match="needs images of at least 32x32")
    with is_small, make(tmp_path / "photos", tmp_path / "out", view=wt.CenterCrop(32)) as loader:
        keys_of(loader)


def test_a_loader_that_has_not_started_can_be_pickled(packed, source, first_epoch):
    with make(source, packed) as loader, pickle.loads(pickle.dumps(loader)) as other:
        assert keys_of(other) == first_epoch


@pytest.mark.torture
def test_a_folder_with_only_the_first_samples_is_continued(source, packed, first_epoch, tmp_path):
    wt.pack(source, tmp_path / "out", workers=1, first=10, **PACK)
    with make(source, tmp_path / "out") as loader:
        assert keys_of(loader) == first_epoch
    assert hashes(tmp_path / "out") == hashes(packed)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(40))
def test_chains_of_kills(source, packed, first_epoch, tmp_path, number):
    random, keys, file = Random(number), [], tmp_path / "state.json"
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    while len(keys) < len(first_epoch):
        words = [str(program), str(source), str(tmp_path / "out"), str(file), str(random.randint(1, 4))]
        training = preloaded.Process(words)
        if random.random() < 0.3:  # at any moment, perhaps before the first batch
            time.sleep(random.uniform(0, 2))
            training.kill()
        assert training.wait() in (0, -signal.SIGKILL), training.stderr
        keys = json.loads(file.read_text())["keys"] if file.exists() else []
    assert keys == first_epoch
    with make(source, tmp_path / "out") as loader:
        loader.load_state_dict(json.loads(file.read_text())["state"])
        assert loader.epoch == 1
        assert len(keys_of(loader)) == 40
    assert hashes(tmp_path / "out") == hashes(packed)
