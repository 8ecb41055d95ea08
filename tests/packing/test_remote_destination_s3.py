"""Packing to S3 with s3fs, to a moto server in a separate process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
from buckets import empty_s3
from folders import contents
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, NotADatasetError
from wds_tools.packing import planning
from wds_tools.storage.upload import Bucket

REPOSITORY = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"shard_bytes": "1MB", "workers": 1, "images": "keep"}
PART_BYTES = 5 << 20  # the minimum of S3


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the file system of an empty server, to which s3:// URLs lead."""
    settings = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return empty_s3(moto)


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return images of noise for one shard of 13 MB, which is uploaded in parts."""
    folder = tmp_path_factory.mktemp("heavy")
    noise = np.random.default_rng(0)
    for number in range(12):
        pixels = noise.integers(0, 256, (600, 600, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png", compress_level=0)
    return folder


def objects(s3: Any, folder: str = "bucket/train") -> dict[str, bytes]:
    s3.invalidate_cache()
    return {path.removeprefix(f"{folder}/"): s3.cat_file(path) for path in s3.find(folder)}


def test_the_objects_are_the_files_of_a_local_pack_and_every_command_reads_them(few_photos, few, s3):
    options = {"shard_bytes": "300kB", "workers": 1}
    report = wt.pack(few_photos, "s3://bucket/train", **{**options, "workers": 2})
    assert objects(s3) == contents(few)
    assert wt.verify("s3://bucket/train").damage_count == 0
    assert wt.describe("s3://bucket/train").samples == report.packed
    with wt.make_loader("s3://bucket/train", batch_size=10, view=wt.Resize((16, 16)), num_workers=0) as loader:
        assert sum(len(images) for images, _ in loader) == report.packed
    assert wt.pack(few_photos, "s3://bucket/train", **options).kept == len(report.manifest.shards)


@pytest.mark.torture
def test_tasks_that_read_a_bucket_and_write_to_it_write_the_objects_of_one_process(photos, s3, tmp_path):
    few = sorted(photos.rglob("*.jpg"))[:9]
    for photo in few:
        s3.put_file(str(photo), f"bucket/raw/{photo.name}")
    options = {**OPTIONS, "shard_bytes": sum(photo.stat().st_size for photo in few) // 2}
    whole = wt.pack("s3://bucket/raw", tmp_path / "whole", **options)
    assert len(whole.manifest.shards) > 2
    for index in (1, 0):
        wt.pack("s3://bucket/raw", "s3://bucket/train", **options, task=(index, 2))
        assert "manifest.json" not in objects(s3)
    wt.pack("s3://bucket/raw", "s3://bucket/train", **options, finish=True)
    assert objects(s3) == contents(tmp_path / "whole")


def test_an_object_that_another_task_has_created_stays(s3):
    for data in (b"of the first task", b"of the second one"):
        Bucket("s3://bucket/train").create("plan.json", data)
    assert objects(s3) == {"plan.json": b"of the first task"}


@pytest.mark.torture  # test_remote_destination.py does this with another store
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_plans_that_are_written_at_the_same_moment_the_first_one_stays(few_photos, s3, monkeypatch, order):
    for name in ("SETTLE", "POLL", "DEAD"):  # else the second one waits for the first
        monkeypatch.setattr(planning, f"{name}_SECONDS", 0.01)
    both = [{**OPTIONS, "shard_bytes": "400kB", "seed": seed, "task": (seed, 2)} for seed in order]
    create = Bucket.create

    def overtaken(self, name, data):
        monkeypatch.setattr(Bucket, "create", create)
        wt.pack(few_photos, "s3://bucket/train", **both[1])
        create(self, name, data)

    monkeypatch.setattr(Bucket, "create", overtaken)
    with pytest.raises(DestinationError, match=r"holds an unfinished pack of something else \(seed was"):
        wt.pack(few_photos, "s3://bucket/train", **both[0])
    assert not [name for name in objects(s3) if name.startswith(f"shard-{both[0]['seed']:06d}")]
    wt.pack(few_photos, "s3://bucket/train", **{**both[1], "task": both[0]["task"]})
    wt.pack(few_photos, "s3://bucket/train", **{**both[1], "task": None}, finish=True)
    assert wt.verify("s3://bucket/train").damage_count == 0


def test_a_missing_bucket_is_an_error_and_is_not_created(photos, s3):
    with pytest.raises(DestinationError, match=r"specified bucket does not exist.*check that the bucket exists"):
        wt.pack(photos, "s3://none/train", **OPTIONS)
    assert s3.ls("") == ["bucket"]


@pytest.mark.torture
def test_fresh_replaces_another_dataset_and_leaves_other_objects(photos, packed, s3):
    s3.pipe_file("bucket/train/notes.txt", b"mine")
    wt.pack(photos, "s3://bucket/train", **{**OPTIONS, "seed": 1, "shard_bytes": "500kB"})
    wt.pack(photos, "s3://bucket/train", **OPTIONS, fresh=True)
    assert objects(s3) == contents(packed) | {"notes.txt": b"mine"}


@pytest.mark.torture
def test_strict_leaves_no_objects_after_an_error(photos, s3, tmp_path):
    folder = Path(shutil.copytree(photos, tmp_path / "src"))
    cut = next(folder.rglob("*.jpg"))
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(wt.WdsToolsError, match=cut.name):
        wt.pack(folder, "s3://bucket/train", **OPTIONS, strict=True)
    assert objects(s3) == {}


def run(script: str) -> subprocess.CompletedProcess[str]:
    script = "import os, wds_tools as wt\nfrom wds_tools.packing import remote_destination\n" + textwrap.dedent(script)
    return preloaded.run(["-c", script], imports=preloaded.COMMANDS)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.torture
def test_a_rerun_here_or_on_another_machine_recovers_from_a_kill(photos, packed, s3, elsewhere, tmp_path):
    done = run(f"""
        publish_one = remote_destination.BucketDestination._upload_shard
        def publish_some(self, report):
            if report.number == 4:
                os.kill(os.getpid(), 9)
            publish_one(self, report)
        remote_destination.BucketDestination._upload_shard = publish_some
        wt.pack({str(photos)!r}, "s3://bucket/train", **{OPTIONS!r})
    """)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "manifest.json" not in objects(s3)
    with pytest.raises(NotADatasetError):
        wt.describe("s3://bucket/train")
    report = wt.pack(photos, "s3://bucket/train", **OPTIONS, spool=tmp_path / "other" if elsewhere else None)
    assert report.kept >= 2
    assert objects(s3) == contents(packed)


@pytest.mark.torture
def test_a_large_shard_is_uploaded_in_parts_and_a_kill_between_them_leaves_no_object(heavy, s3, tmp_path):
    options = {**OPTIONS, "shard_bytes": "100MB"}
    wt.pack(heavy, tmp_path / "local", **options)
    small_parts = f"""
        import inspect, s3fs
        put = s3fs.S3FileSystem._put_file
        names = [name for name, given in inspect.signature(put).parameters.items() if given.default is not given.empty]
        values = dict(zip(names, put.__defaults__)) | {{"chunksize": {PART_BYTES}}}
        put.__defaults__ = tuple(values.values())
        class Kill:
            def update(self, size):
                if size == {PART_BYTES}: os.kill(os.getpid(), 9)
    """
    pack = f"""
        wt.pack({str(heavy)!r}, "s3://bucket/train", **{options!r})
    """
    done = run(
        small_parts
        + """
        def advance(self, size):
            Kill().update(size)
        remote_destination.BucketDestination._advance = advance
        """
        + pack
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "shard-000000.tar" not in objects(s3)
    assert s3.list_multipart_uploads("bucket")
    done = run(small_parts + pack)
    assert done.returncode == 0, done.stderr
    assert objects(s3) == contents(tmp_path / "local")
    assert s3.info("bucket/train/shard-000000.tar")["ETag"].strip('"').endswith("-3")  # uploaded in three parts
