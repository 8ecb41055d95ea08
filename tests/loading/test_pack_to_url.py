"""``make_loader(..., pack_to=URL)``: training while the shards are uploaded, to a server of S3 (moto)."""

import fcntl
import json
import os
import shutil
import signal
import threading
from itertools import islice

import preloaded
import pytest
from buckets import empty_s3
from folders import contents
from ranks import run_ranks
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import OptionError, StoreError
from wds_tools.packing.remote_destination import spool_folder
from wds_tools.storage.lock import lock_file

URL = "s3://bucket/photos"
PACK = {"shard_bytes": "100kB", "images": "keep"}
LOAD = {"batch_size": 4, "fields": ["image", "label", "__key__"], "view": wt.CenterCrop(32, resize=40), "shuffle": True}
pytestmark = pytest.mark.usefixtures("forked_packers", "no_leftovers")


@pytest.fixture
def s3(moto, monkeypatch):
    """Return the file system of an empty server, to which s3:// URLs lead."""
    settings = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return empty_s3(moto)


@pytest.fixture(scope="module")
def source(tmp_path_factory, photos):
    """Return a folder of 40 photographs and a file that is none."""
    folder = tmp_path_factory.mktemp("source") / "photos"
    for path in photos.glob("*/00[0-4].*"):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.parent.name)
    (folder / "cat" / "text.jpg").write_text("not an image")
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory, source):
    """Return the same files, packed by `pack` into a folder."""
    folder = tmp_path_factory.mktemp("packed") / "photos"
    wt.pack(source, folder, workers=1, **PACK)
    return folder


@pytest.fixture(scope="module")
def first_epoch(source, packed):
    """Return the keys of the first epoch in batches of 4."""
    with make(source, packed) as loader:
        return keys_of(loader)


def make(source, location=URL, **options):
    return wt.make_loader(source, pack_to=location, **{**LOAD, "pack": PACK, "num_workers": 0, **options})


def keys_of(loader):
    return [key for batch in loader for key in batch.key]


def objects(s3):
    return {path.removeprefix("bucket/photos/"): s3.cat_file(path) for path in s3.find("bucket/photos")}


@pytest.mark.torture
def test_the_first_epoch_reads_the_shards_from_the_local_cache_as_they_arrive(
    source, packed, first_epoch, s3, tmp_path
):
    with make(source, num_workers=2) as loader:
        assert loader.packing.total == 41
        assert keys_of(loader) == first_epoch
        assert str(loader.epoch_proof()) == "epoch 0: 39 samples, each once"
        assert loader.packing.is_complete
        assert objects(s3) == contents(packed)
        second = keys_of(loader)
        assert loader.fetch_statistics.fetched_bytes < 50_000  # plan, reports and manifest; the shards have 800 kB
        state = loader.state_dict()
    assert not list((tmp_path / "cache" / "spool").iterdir())
    with wt.make_loader(packed, **LOAD, num_workers=0) as loader:
        loader.set_epoch(1)
        assert keys_of(loader) == second
        loader.load_state_dict(state)
        assert loader.epoch == 2


class OtherMachine:
    """A packer on another machine, which uploads a shard when a test calls it. That of the loader waits meanwhile."""

    def __init__(self, source, folder, s3):
        self._source, self._folder, self._s3 = source, folder, s3
        self._lock = lock_file(spool_folder(URL, None) / ".packing" / "lock")

    def pack(self, *numbers):
        for number in numbers:
            wt.pack(self._source, self._folder, workers=1, task=(number, 1000), **PACK)
            shard, work = f"shard-{number:06d}", (".packing/plan.json", ".packing/manifest.json")
            for name in (*work, f"{shard}.parquet", f"{shard}.tar", f".packing/{shard}.json"):
                if (self._folder / name).exists():
                    self._s3.put_file(str(self._folder / name), f"bucket/photos/{name}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # workers that were forked have it too
            os.close(self._lock)
            self._lock = None


PROGRAM = """
import json, os, signal, sys
import wds_tools as wt
source, url, file = sys.argv[1:]
loader = wt.make_loader(source, pack_to=url, pack={"shard_bytes": "100kB", "images": "keep"}, batch_size=4,
    fields=["image", "label", "__key__"], view=wt.CenterCrop(32, resize=40), shuffle=True, num_workers=1)
keys = []
for step, batch in enumerate(loader, 1):
    keys += batch.key
    if step == 3:
        json.dump({"state": loader.state_dict(), "keys": keys}, open(file, "w"))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(source, folder):
    """Run the program; return the state and the keys that it has saved before it was killed."""
    program, file = folder / "train.py", folder / "state.json"
    program.write_text(PROGRAM)
    training = preloaded.Process([str(program), str(source), URL, str(file)])
    assert training.wait() == -signal.SIGKILL, training.stderr
    return json.loads(file.read_text())


def left(source, _folder):
    """Take three steps; return the state and the keys."""
    with make(source) as loader:
        keys = [key for batch in islice(loader, 3) for key in batch.key]
        return {"state": loader.state_dict(), "keys": keys}


@pytest.mark.parametrize("first_part", [left, pytest.param(killed, marks=pytest.mark.torture)])
def test_a_training_continues_on_another_machine(source, packed, first_epoch, s3, tmp_path, first_part):
    with OtherMachine(source, tmp_path / "out", s3) as machine:
        machine.pack(0, 1)
        saved = first_part(source, tmp_path)
        assert len(saved["keys"]) == 12
        with make(source, cache_dir=tmp_path / "new") as loader:
            loader.load_state_dict(saved["state"])
            iterator, received = iter(loader), saved["keys"]
            thread = threading.Thread(target=lambda: received.extend(key for batch in iterator for key in batch.key))
            thread.start()
            wait_for(lambda: len(received) > loader.packing.done - 4)  # all that has arrived
            assert received == first_epoch[: len(received)]
            machine.pack(3)
            machine.pack(2)
            wait_for(lambda: len(received) > loader.packing.done - 4 > 16)
            machine.pack(*range(4, 8))
            machine.__exit__()  # the packer of the loader completes the dataset
            thread.join()
            assert received == first_epoch
            assert len(keys_of(loader)) == 40
    assert objects(s3) == contents(packed)


@pytest.mark.torture
def test_only_the_first_of_all_ranks_packs_to_a_url(source, packed, first_epoch, s3, tmp_path):
    options = {"pack_to": URL, "pack": PACK, "fields": ["__key__"], "cache_bytes": "400kB"}  # half
    ranks = run_ranks(dataset=source, world=2, batch=2, workers=1, machines=True, options=options)
    assert [rank.get("error") for rank in ranks] == [None, None]
    steps = [[*one, *other] for one, other in zip(*(rank["steps"] for rank in ranks), strict=True)]
    assert [key for step in steps for key in step] == first_epoch
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 39 samples, each once"}
    assert [rank["packs"] for rank in ranks] == [True, False]
    assert objects(s3) == contents(packed)


def test_urls_that_cannot_be_packed_to(source, s3):
    with pytest.raises(StoreError, match="bucket or container does not exist"):
        make(source, "s3://none/photos")
    with pytest.raises(OptionError, match="is inside the source"):
        make("s3://bucket/images", "s3://bucket/images/packed")


@pytest.mark.torture
def test_the_url_of_another_dataset_is_refused(source, six_photos, s3):
    wt.pack(six_photos, URL, workers=1, **PACK)
    is_other = pytest.raises(OptionError, match=r"pack_to='s3://bucket/photos' is not the dataset of .*photos")
    with make(source, batch_size=2) as loader, is_other:
        keys_of(loader)
