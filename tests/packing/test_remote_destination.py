"""Packing to URLs: the same bytes as in a folder despite faults, no partly visible dataset, and a small spool."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import preloaded
import pytest
from buckets import Bucketful
from folders import contents
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, NotADatasetError, OptionError, SourceError, StoreError
from wds_tools.packing import packer, planning, stored_plan
from wds_tools.packing.remote_destination import UPLOADS, spool_folder
from wds_tools.storage import upload
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage.upload import Bucket

REPOSITORY = Path(__file__).parents[2]
# Plan, its manifest and its listing; index, shard and report of five; report of the empty one; skipped files, card,
# manifest.
PUTS = 4 + 3 * 5 + 1 + 3
OPTIONS: dict[str, Any] = {"shard_bytes": 12_000, "workers": 1, "images": "keep"}


def image_bytes(colour: int) -> bytes:
    return encode(Image.new("RGB", (8, 6), (colour % 256, colour // 256 % 256, 77)), "JPEG")


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 15 small images and one bad file: five shards, an empty one, and a line in skipped.jsonl."""
    folder = tmp_path_factory.mktemp("src")
    for number in range(15):
        (folder / "abc"[number % 3]).mkdir(exist_ok=True)
        (folder / "abc"[number % 3] / f"{number:02d}.jpg").write_bytes(image_bytes(number * 99))
    (folder / "a" / "none.jpg").write_bytes(b"not an image" * 20)
    return folder


@pytest.fixture(scope="module")
def whole(src: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files that packing into a folder writes."""
    folder = tmp_path_factory.mktemp("whole") / "dst"
    wt.pack(src, folder, **OPTIONS)
    found = contents(folder)
    assert len([name for name in found if name.endswith(".tar")]) == 5
    return found


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(upload, "POLICY", RetryPolicy(seconds=0.05, first_seconds=0.001, most_seconds=0.01))
    for name, seconds in (("SETTLE", 0.01), ("POLL", 0.01), ("DEAD", 0.3)):
        monkeypatch.setattr(planning, f"{name}_SECONDS", seconds)
    Bucketful.reset()
    yield
    Bucketful.reset()


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Return the folder that serves as the bucket; `url_of` returns its URL."""
    return tmp_path / "bucket"


def url_of(bucket: Path) -> str:
    return f"bucket://{bucket}/train"


def spooled(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "spool").rglob("*") if path.is_file()]


# The same dataset as in a folder


@pytest.mark.parametrize("workers", [1, 2])
def test_the_objects_are_the_files_of_a_local_pack_and_no_spool_is_left(src, bucket, whole, tmp_path, workers):
    report = wt.pack(src, url_of(bucket), **{**OPTIONS, "workers": workers})
    assert contents(bucket / "train") == whole
    assert not (bucket / "train" / ".packing").exists()
    assert report.dst == url_of(bucket)
    assert report.packed == 15
    assert [skip.path for skip in report.skipped] == ["a/none.jpg"]
    assert not list((tmp_path / "cache" / "spool").iterdir())


def test_loader_verify_and_info_read_what_was_packed_to_a_url(src, tmp_path):
    memory = fsspec.filesystem("memory")
    try:
        wt.pack(src, "memory://bucket/train/", **OPTIONS)
        assert wt.verify("memory://bucket/train").damage_count == 0
        assert wt.describe("memory://bucket/train").samples == 15
        with wt.make_loader("memory://bucket/train", batch_size=5, view=wt.Resize((8, 8)), num_workers=0) as loader:
            assert sum(len(images) for images, _ in loader) == 15
    finally:
        memory.rm("/bucket", recursive=True)


def test_a_file_url_is_a_folder(src, whole, tmp_path):
    wt.pack(src, f"file://{tmp_path}/dst", **OPTIONS)
    assert contents(tmp_path / "dst") == whole


def test_each_split_is_a_dataset_at_its_own_url(src, bucket, tmp_path):
    made = wt.pack_splits(src, f"bucket://{bucket}", split={"train": 0.8, "val": 0.2}, **OPTIONS)
    wt.pack_splits(src, tmp_path / "local", split={"train": 0.8, "val": 0.2}, **OPTIONS)
    assert contents(bucket) == contents(tmp_path / "local")
    assert made["val"].dst == f"bucket://{bucket}/val"


# Order of uploads


def test_the_index_precedes_its_shard_the_report_follows_and_the_manifest_is_last(src, bucket):
    wt.pack(src, url_of(bucket), **OPTIONS)
    log = [name for _, name in Bucketful.log]
    assert log[-4:] == ["skipped.jsonl", "README.md", "manifest.json", ".packing"]
    for name in (name for name in log if name.endswith(".tar")):
        stem = name.removesuffix(".tar")
        assert log.index(f"{stem}.parquet") < log.index(name) < log.index(f"{stem}.json")


def test_without_a_manifest_readers_do_not_accept_the_url_as_a_dataset(src, bucket):
    seen = []

    def look(_number: int, _path: str) -> None:
        with pytest.raises(NotADatasetError):
            wt.describe(url_of(bucket))
        seen.append(1)

    Bucketful.fault = staticmethod(look)
    wt.pack(src, url_of(bucket), **OPTIONS)
    assert len(seen) == Bucketful.puts == PUTS


# Disk space on this machine


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.torture_except("2")
def test_packing_waits_for_slow_uploads_and_the_spool_stays_small(photos, bucket, tmp_path, workers):
    spool, peak, stop = tmp_path / "spool", [0], threading.Event()

    def sample() -> None:
        while not stop.is_set():
            with suppress(FileNotFoundError):  # files and folders can disappear meanwhile
                peak[0] = max(peak[0], sum(path.stat().st_size for path in spool.rglob("*shard-*.tar*")))
            time.sleep(0.002)

    Bucketful.seconds = 0.1
    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        report = wt.pack(photos, url_of(bucket), **{**OPTIONS, "shard_bytes": "500kB", "workers": workers}, spool=spool)
    finally:
        stop.set()
        sampler.join()
    assert report.manifest.bytes > 10 * 500_000
    assert 500_000 < peak[0] <= (workers + UPLOADS) * 500_000


# Uploads that fail


@pytest.mark.parametrize("fault", ["fails", "cuts", "dies in the middle"])
def test_failed_uploads_are_retried(src, bucket, whole, fault):
    tries = Counter()

    def fails_twice(_number, path):
        tries[path] += 1
        return fault if tries[path] <= 2 else None

    Bucketful.fault = staticmethod(fails_twice)
    wt.pack(src, url_of(bucket), **OPTIONS)
    assert contents(bucket / "train") == whole


@pytest.mark.parametrize("fault", ["fails", "cuts", "dies in the middle", "forbidden"])
@pytest.mark.parametrize("name", ["shard-000002.tar", "shard-000003.parquet", "shard-000001.json", "manifest.json"])
@pytest.mark.torture_except(
    "shard-000002.tar-fails",
    "shard-000003.parquet-cuts",
    "shard-000001.json-dies in the middle",
    "manifest.json-forbidden",
)
def test_uploads_that_always_fail_are_an_error_with_the_number_of_kept_shards(src, bucket, whole, fault, name):
    Bucketful.fault = staticmethod(
        lambda _, path: fault if path.endswith(name) and not path.endswith(".packing/manifest.json") else None
    )
    with pytest.raises(DestinationError, match=r"shards are finished and kept.*run the same command again") as caught:
        wt.pack(src, url_of(bucket), **OPTIONS)
    assert name in str(caught.value)
    assert url_of(bucket) in str(caught.value)
    attempts = int(re.search(r"(\d+) attempts? in ", str(caught.value))[1])
    assert attempts == 1 if fault == "forbidden" else attempts >= 5
    assert not (bucket / "train" / "manifest.json").exists()
    Bucketful.reset()
    report = wt.pack(src, url_of(bucket), **OPTIONS)
    assert report.kept >= 1
    assert contents(bucket / "train") == whole


@pytest.mark.parametrize("data", [b"", b'{"number": 1, "ent', b"[]", b'{"number": "1"}'])
@pytest.mark.torture_except("", '{"number": "1"}')
def test_a_damaged_report_is_ignored(src, bucket, whole, data, tmp_path):
    stopped_after(4, src, bucket)
    (bucket / "train" / ".packing" / "shard-000001.json").write_bytes(data)
    wt.pack(src, url_of(bucket), **OPTIONS, spool=tmp_path / "elsewhere")
    assert ("put", "shard-000001.tar") in Bucketful.log
    assert contents(bucket / "train") == whole


def test_a_bucket_without_write_access_is_an_error_before_anything_is_packed(src, bucket, tmp_path):
    Bucketful.fault = staticmethod(lambda *_: "forbidden")
    with pytest.raises(DestinationError, match=r"PermissionError: access denied \(1 attempt in .*; 0 of 6 shards"):
        wt.pack(src, url_of(bucket), **OPTIONS)
    assert Bucketful.puts == 1
    assert not spooled(tmp_path)


# Resumed runs


def stopped_after(shards: int, src: Path, bucket: Path, **options: Any) -> None:
    """Leave the bucket in the state of a run that failed after this number of shards."""
    name = f"shard-{shards:06d}.parquet"
    Bucketful.fault = staticmethod(lambda _, path: "forbidden" if path.endswith(name) else None)
    with pytest.raises(DestinationError):
        wt.pack(src, url_of(bucket), **{**OPTIONS, **options})
    Bucketful.reset()


def test_uploaded_shards_are_not_packed_or_uploaded_again(src, bucket, whole):
    stopped_after(4, src, bucket)
    report = wt.pack(src, url_of(bucket), **OPTIONS)
    assert report.kept >= 4
    assert not {f"shard-{number:06d}.tar" for number in range(3)} & {name for _, name in Bucketful.log}
    assert contents(bucket / "train") == whole


def test_another_machine_without_the_spool_can_continue_a_run(src, bucket, whole, tmp_path):
    stopped_after(4, src, bucket)
    reports = len(list((bucket / "train" / ".packing").glob("shard-*.json")))  # a shard may have no samples
    report = wt.pack(src, url_of(bucket), **OPTIONS, spool=tmp_path / "elsewhere")
    assert 3 <= report.kept <= reports
    assert contents(bucket / "train") == whole


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"short")])
@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000001.parquet"])
@pytest.mark.torture_except("shard-000001.tar-unlink", "shard-000001.parquet-<lambda>")
def test_a_deleted_or_truncated_object_is_uploaded_again(src, bucket, whole, damage, name, tmp_path):
    stopped_after(4, src, bucket)
    damage(bucket / "train" / name)
    intact = {path.stem for path in (bucket / "train" / ".packing").glob("shard-*.json")} - {Path(name).stem}
    report = wt.pack(src, url_of(bucket), **OPTIONS, spool=tmp_path / "elsewhere")
    assert 2 <= report.kept <= len(intact)
    assert ("put", name) in Bucketful.log
    assert contents(bucket / "train") == whole


def test_an_object_deleted_during_the_run_is_an_error_and_a_rerun_replaces_it(src, bucket, whole):
    def lose(_number: int, path: str) -> None:
        if path.endswith("shard-000005.json"):
            (bucket / "train" / "shard-000001.tar").unlink()

    Bucketful.fault = staticmethod(lose)
    with pytest.raises(DestinationError, match=r"1 of 5 shards.*are now missing.*shard-000001\.tar.*again"):
        wt.pack(src, url_of(bucket), **OPTIONS)
    assert not (bucket / "train" / "manifest.json").exists()
    Bucketful.reset()
    assert wt.pack(src, url_of(bucket), **OPTIONS).kept == 5
    assert contents(bucket / "train") == whole


def test_leftovers_of_another_pack_in_the_spool_are_removed(src, bucket, whole, tmp_path):
    stopped_after(2, src, bucket, seed=7)
    assert spooled(tmp_path)
    wt.pack(src, url_of(bucket), **OPTIONS, fresh=True)
    assert contents(bucket / "train") == whole
    for path in sorted(bucket.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    stopped_after(2, src, bucket, seed=7)
    for path in sorted(bucket.rglob("*"), reverse=True):  # a user empties the bucket, but not the spool
        path.rmdir() if path.is_dir() else path.unlink()
    wt.pack(src, url_of(bucket), **OPTIONS)
    assert contents(bucket / "train") == whole
    assert not spooled(tmp_path)


# Existing objects


def test_packing_the_same_source_to_the_url_again_changes_nothing(src, bucket):
    wt.pack(src, url_of(bucket), **OPTIONS)
    Bucketful.reset()
    assert wt.pack(src, url_of(bucket), **OPTIONS).kept == 5
    assert not Bucketful.log


def test_packing_again_is_an_error_if_a_shard_of_the_dataset_is_missing(src, bucket):
    wt.pack(src, url_of(bucket), **OPTIONS)
    (bucket / "train" / "shard-000003.tar").unlink()
    with pytest.raises(DestinationError, match=r"shard-000003\.tar.*--fresh"):
        wt.pack(src, url_of(bucket), **OPTIONS)


def test_another_dataset_is_refused_and_with_fresh_its_manifest_is_removed_first(src, bucket, whole):
    wt.pack(src, url_of(bucket), **{**OPTIONS, "seed": 1, "shard_bytes": "1MB"})
    before = contents(bucket)
    with pytest.raises(DestinationError, match=r"holds another dataset.*--fresh"):
        wt.pack(src, url_of(bucket), **OPTIONS)
    assert contents(bucket) == before
    Bucketful.reset()
    wt.pack(src, url_of(bucket), **OPTIONS, fresh=True)
    assert Bucketful.log[0] == ("rm", "manifest.json")
    assert contents(bucket / "train") == whole


def test_an_unfinished_pack_of_something_else_is_refused(src, bucket, whole):
    stopped_after(3, src, bucket)
    with pytest.raises(DestinationError, match=r"unfinished pack of something else.*seed"):
        wt.pack(src, url_of(bucket), **{**OPTIONS, "seed": 1})
    wt.pack(src, url_of(bucket), **OPTIONS)
    assert contents(bucket / "train") == whole


def test_shards_of_another_tool_are_not_overwritten(src, bucket):
    (bucket / "train").mkdir(parents=True)
    (bucket / "train" / "shard-000000.tar").write_bytes(b"theirs")
    with pytest.raises(DestinationError, match=r"already has 1 files.*shard-000000\.tar"):
        wt.pack(src, url_of(bucket), **OPTIONS)
    assert contents(bucket) == {"train/shard-000000.tar": b"theirs"}


def test_other_objects_at_the_url_stay(src, bucket, whole):
    (bucket / "train").mkdir(parents=True)
    (bucket / "train" / "notes.txt").write_bytes(b"mine")
    wt.pack(src, url_of(bucket), **OPTIONS)
    wt.pack(src, url_of(bucket), **OPTIONS, fresh=True)
    assert contents(bucket / "train") == whole | {"notes.txt": b"mine"}


def test_strict_publishes_nothing(src, bucket, tmp_path):
    with pytest.raises(SourceError, match=r"none\.jpg"):
        wt.pack(src, url_of(bucket), **OPTIONS, strict=True)
    assert contents(bucket) == {}
    assert not spooled(tmp_path)


# Invalid URLs


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://host/train", "is not writable"),
        ("zip://a::s3://bucket/x", "is not writable"),
        ("s3://bucket/train-*", "is not the URL of a folder"),
        ("s3://bucket/{a,b}", "is not the URL of a folder"),
        ("s3://", "is not the URL of a folder"),
        ("nonsense://bucket/x", "Protocol not known"),
    ],
)
def test_invalid_urls_are_refused(src, url, why):
    with pytest.raises(OptionError, match=why):
        wt.pack(src, url, **OPTIONS)


@pytest.mark.parametrize("rest", ["host/train?sig=s3cret", "host/tr ain", "host/{a,b}"])
@pytest.mark.parametrize("scheme", ["https", "sftp", "nonsense"])
def test_the_error_for_an_invalid_url_has_no_password(src, scheme, rest):
    with pytest.raises((OptionError, StoreError)) as raised:
        wt.pack(src, f"{scheme}://me:pa55word@{rest}", **OPTIONS)
    assert "pa55word" not in str(raised.value)
    assert "s3cret" not in str(raised.value) or scheme != "https"


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("s3", r"pip install 'wds-tools\[s3\]'"), ("gs", r"pip install 'wds-tools\[gs\]'"), ("oss", "install it")],
)
def test_the_error_of_a_missing_driver_names_the_package_to_install(src, monkeypatch, scheme, words):
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install its driver")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(StoreError, match=words):
        wt.pack(src, f"{scheme}://bucket/train", **OPTIONS)


def test_a_url_that_became_a_path_is_refused(src):
    for broken in (Path("s3://bucket/train"), "s3:/bucket/train"):
        with pytest.raises(OptionError, match="lost a slash"):
            wt.pack(src, broken, **OPTIONS)


def test_a_folder_needs_no_spool(src, tmp_path):
    with pytest.raises(OptionError, match="needs none"):
        wt.pack(src, tmp_path / "dst", **OPTIONS, spool=tmp_path)


def test_a_spool_inside_the_source_is_refused(src):
    with pytest.raises(OptionError, match="is inside the source"):
        wt.pack(src, "memory://x/y", **OPTIONS, spool=src / "a")


# Kills

SCRIPT = """
import sys; sys.path.insert(0, {tests!r})
import wds_tools as wt
from buckets import Bucketful
from wds_tools.storage import upload
from wds_tools.storage.requests.retry import RetryPolicy
upload.POLICY = upload.RetryPolicy(seconds=0.05, first_seconds=0.001, most_seconds=0.01)
def pack(bucket, **options):
    return wt.pack({src!r}, "bucket://" + bucket + "/train", shard_bytes=12_000, images="keep", **options)
"""


def run(script: str, src: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), src=str(src)) + textwrap.dedent(script)
    return preloaded.run(
        ["-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1", **environment},
        imports=preloaded.COMMANDS,
    )


@pytest.mark.parametrize(("when", "step"), [("kill", 4), ("kill", 1), ("kill afterwards", 1)])
@pytest.mark.torture_except("kill-4")
def test_a_rerun_here_or_on_another_machine_recovers_from_a_kill_at_any_upload(tmp_path, when, step):
    src, dst = tmp_path / "src", tmp_path / "dst"
    src.mkdir()
    for number in range(5):  # two shards
        (src / f"{number}.jpg").write_bytes(image_bytes(number))
    wt.pack(src, dst, **OPTIONS)
    whole = contents(dst)
    script = f"""
    import os
    for number in range(1, 100, {step}):
        child = os.fork()
        if not child:
            Bucketful.fault = staticmethod(lambda n, _: {when!r} if n == number else None)
            pack({str(tmp_path)!r} + f"/{{number}}", workers=1)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
    print(number)
    """
    done = run(script, src)
    assert done.returncode == 0, done.stderr
    uploads = 4 + 3 * 2 + 2
    assert uploads < int(done.stdout) <= uploads + step
    for number in range(1, uploads + 1, step):
        bucket = tmp_path / str(number)
        if (bucket / "train" / "manifest.json").exists():
            assert contents(bucket / "train").items() >= whole.items()
        elsewhere = {} if number % (2 * step) == 1 else {"spool": tmp_path / "elsewhere"}
        wt.pack(src, url_of(bucket), **OPTIONS, **elsewhere)
        assert contents(bucket / "train") == whole, f"after a kill at upload {number}"


@pytest.mark.torture
def test_a_rerun_recovers_from_a_kill_of_a_packer_with_workers(src, bucket, whole, tmp_path):
    done = run(
        f"""
        if __name__ == "__main__":
            Bucketful.fault = staticmethod(lambda n, _: "kill" if n == 9 else None)
            pack({str(bucket)!r}, workers=2)
        """,
        src,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (bucket / "train" / "manifest.json").exists()
    assert wt.pack(src, url_of(bucket), **OPTIONS).kept >= 1
    assert contents(bucket / "train") == whole
    assert not spooled(tmp_path)


@pytest.mark.parametrize("slow", ["", ".tar", ".json"])  # any object, a shard, or a report
@pytest.mark.torture_except(".tar")
def test_an_interrupt_ends_uploads_soon_and_a_rerun_continues(src, bucket, whole, tmp_path, slow):
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), src=str(src)) + textwrap.dedent(
        f"""
        from wds_tools.cli import main
        def fault(number, path):
            if number >= 6 and path.endswith({slow!r}) and not Bucketful.seconds:
                print(path, flush=True)
                Bucketful.seconds = 300
        Bucketful.fault = staticmethod(fault)
        main(["pack", {str(src)!r}, {url_of(bucket)!r}, "--shard-bytes", "12000", "--images", "keep"])
        """
    )
    read, write = os.pipe()
    packer = preloaded.Process(["-c", script], stdout=write, imports=preloaded.COMMANDS)
    os.close(write)
    with os.fdopen(read) as lines:
        uploading = Path(lines.readline().strip())
    packer.send_signal(signal.SIGINT)
    assert packer.wait() == 130
    said = packer.stderr
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    assert uploading.is_relative_to(bucket)
    assert not uploading.exists()  # a part takes 0.2 s, an upload five minutes
    assert wt.pack(src, url_of(bucket), **OPTIONS).kept >= 1
    assert contents(bucket / "train") == whole


def test_a_second_packer_on_this_machine_is_refused(src, bucket):
    said = []

    def second(number: int, _path: str) -> None:
        if number == 3:
            with pytest.raises(DestinationError, match=r"another packer is writing into bucket://") as caught:
                wt.pack(src, url_of(bucket), **OPTIONS)
            said.append(caught.value)

    Bucketful.fault = staticmethod(second)
    wt.pack(src, url_of(bucket), **OPTIONS)
    assert said


# Tasks


@pytest.mark.torture
def test_tasks_killed_at_any_upload_and_run_again_write_the_objects_of_one_process(tmp_path):
    src, dst = tmp_path / "src", tmp_path / "dst"
    src.mkdir()
    for number in range(9):  # three shards
        (src / f"{number}.jpg").write_bytes(image_bytes(number))
    wt.pack(src, dst, **OPTIONS)
    script = f"""
    import os
    from wds_tools.packing import planning
    planning.SETTLE_SECONDS = planning.POLL_SECONDS = planning.DEAD_SECONDS = 0.05
    for number in range(1, 100):
        ends = []
        for index in (0, 1):
            child = os.fork()
            if not child:
                Bucketful.fault = staticmethod(lambda n, _: "kill" if n == number else None)
                pack({str(tmp_path)!r} + f"/{{number}}", workers=1, task=(index, 2))
                os._exit(0)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if not any(ends):
            break
    print(number)
    """
    done = run(script, src)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout) - 1
    assert kills == 1 + 4 + 2 * 3  # that it plans, the plan in four objects, and two shards of the first task
    for number in range(1, kills + 1):
        url = url_of(tmp_path / str(number))
        for index in (1, 0):
            assert not wt.pack(src, url, **OPTIONS, task=(index, 2)).complete
        wt.pack(src, url, **OPTIONS, finish=True)
        assert contents(tmp_path / str(number) / "train") == contents(dst), f"after a kill at upload {number}"
    assert not spooled(tmp_path)


def test_each_of_two_tasks_packs_its_shards_once_and_finishing_too_early_names_a_missing_one(src, bucket, whole):
    part = wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2))
    assert [entry.name for entry in part.manifest.shards] == ["shard-000001.tar", "shard-000003.tar"]  # 5 is empty
    with pytest.raises(DestinationError, match=r"3 of 6 shards are missing in bucket://.*such as shard-000000\.tar"):
        wt.pack(src, url_of(bucket), **OPTIONS, finish=True)
    Bucketful.reset()
    assert wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2)).kept == 3
    assert Bucketful.log == []
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))
    assert wt.pack(src, url_of(bucket), **OPTIONS, finish=True).kept == 6
    assert contents(bucket / "train") == whole


def test_a_task_that_fails_removes_nothing_of_another_task(src, bucket, whole, tmp_path):
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))
    before = contents(bucket)
    with pytest.raises(SourceError, match=r"none\.jpg"):
        wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2), strict=True)
    assert contents(bucket) == before
    assert not spooled(tmp_path)
    Bucketful.fault = staticmethod(lambda _, path: "forbidden" if path.endswith("shard-000003.tar") else None)
    with pytest.raises(DestinationError, match=r"run the same command again"):
        wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2))
    assert contents(bucket).items() >= before.items()
    Bucketful.reset()
    wt.pack(src, url_of(bucket), **OPTIONS)
    assert contents(bucket / "train") == whole


def test_shards_of_another_plan_that_a_task_began_at_the_same_moment_are_not_used(src, bucket, whole):
    other = {**OPTIONS, "seed": 1}

    def overtake(number: int, _path: str) -> None:
        if number == 2:  # the upload of the plan, which the other task has not found
            wt.pack(src, url_of(bucket), **other, task=(1, 2))

    Bucketful.fault = staticmethod(overtake)
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))
    Bucketful.reset()
    with pytest.raises(DestinationError, match=r"unfinished pack of something else"):
        wt.pack(src, url_of(bucket), **other, task=(1, 2))
    with pytest.raises(DestinationError, match=r"3 of 6 shards are missing"):
        wt.pack(src, url_of(bucket), **OPTIONS, finish=True)
    wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2))
    wt.pack(src, url_of(bucket), **OPTIONS, finish=True)
    assert contents(bucket / "train") == whole


def test_a_plan_that_another_task_writes_at_the_same_moment_stays_on_azure(bucket, monkeypatch):
    original = Bucketful.put_file

    def put_file(self: Any, lpath: str, rpath: str, delimiter: str = "/", overwrite: bool = True, **more: Any) -> None:
        if not (target := Path(rpath)).exists():
            target.parent.mkdir(parents=True)
            target.write_bytes(b"of another task")
        if not overwrite:
            raise FileExistsError
        original(self, lpath, rpath, **more)

    monkeypatch.setattr(Bucketful, "put_file", put_file)
    Bucket(url_of(bucket)).create(".packing/plan.json", b"of this task")
    assert Bucket(url_of(bucket)).read(".packing/plan.json") == b"of another task"


def test_a_task_whose_plan_was_replaced_at_the_same_moment_ends_with_an_error(src, bucket):
    plan = bucket / "train" / ".packing" / "plan.json"

    def replace(_number: int, path: str) -> None:
        if path.endswith("shard-000000.tar"):
            plan.write_text(json.dumps({**json.loads(plan.read_text()), "seed": 1}))

    Bucketful.fault = staticmethod(replace)
    with pytest.raises(DestinationError, match=r"another packer has started over at bucket://"):
        wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))


def test_a_task_reads_only_the_rows_of_its_shards(src, bucket, whole, monkeypatch):
    monkeypatch.setattr(stored_plan, "_STORED_ROWS", 1)
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 3))
    size = (bucket / "train" / ".packing" / "listing.arrow").stat().st_size
    for index, share in ((1, 0.4), (2, 0.4)):
        Bucketful.reset()
        wt.pack(src, url_of(bucket), **OPTIONS, task=(index, 3))
        read = [stop - start for name, start, stop in Bucketful.ranges if name == "listing.arrow"]
        assert 0 < sum(read) < share * size
    Bucketful.reset()
    wt.pack(src, url_of(bucket), **OPTIONS, finish=True)
    assert not [name for name, _, _ in Bucketful.ranges if name == "listing.arrow"]
    assert contents(bucket / "train") == whole


def test_a_damaged_row_of_a_plan_at_a_url_is_refused(src, bucket):
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))
    rows = bucket / "train" / ".packing" / "listing.arrow"
    data = rows.read_bytes()
    for damaged in (data.replace(b".jpg", b".jpj"), data[:-9] + data[-8:]):
        rows.write_bytes(damaged)
        if len(damaged) == len(data):
            with pytest.raises(DestinationError, match=r"bucket://.* has a damaged \.packing/listing\.arrow"):
                wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2))
    assert not wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2)).complete  # rows of another length: listed again


def overtaken(src: Path, bucket: Path, elsewhere: Path, **options: Any) -> None:
    """Run a task that is stopped before its first shard, until another machine has completed a dataset at the URL."""

    def overtake(_number: int, path: str) -> None:
        if path.endswith("listing.json"):
            Bucketful.reset()
            wt.pack(src, url_of(bucket), **{**OPTIONS, **options}, spool=elsewhere)

    Bucketful.fault = staticmethod(overtake)
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))


def dataset(bucket: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(bucket / "train").items() if not name.startswith(".packing")}


def test_a_task_that_wakes_up_after_another_pack_has_started_over_leaves_its_shards(src, bucket, whole, tmp_path):
    with pytest.raises(DestinationError, match=r"another packer has started over at bucket://"):
        overtaken(src, bucket, tmp_path / "elsewhere", seed=1, fresh=True)
    assert dataset(bucket) != whole
    assert wt.verify(url_of(bucket)).ok


def test_a_task_that_wakes_up_after_the_dataset_is_complete_uploads_nothing(src, bucket, whole, tmp_path):
    overtaken(src, bucket, tmp_path / "elsewhere")
    assert not [name for name in contents(bucket / "train") if name.startswith(".packing/shard-")]
    assert dataset(bucket) == whole


def test_the_same_task_twice_on_this_machine_is_refused(src, bucket):
    said = []

    def second(number: int, _path: str) -> None:
        if number == 2:
            with pytest.raises(DestinationError, match=r"another packer is writing into bucket://") as caught:
                wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))
            said.append(caught.value)

    Bucketful.fault = staticmethod(second)
    wt.pack(src, url_of(bucket), **OPTIONS, task=(0, 2))
    assert said


def test_one_of_the_tasks_that_start_together_lists_the_source_and_the_others_wait(src, bucket, whole, monkeypatch):
    listed = []
    list_inputs = packer.list_inputs

    def list_slowly(*args: Any) -> Any:
        listed.append(args)
        time.sleep(1)  # longer than a dead task is waited for: the object of a living one changes
        return list_inputs(*args)

    monkeypatch.setattr(packer, "list_inputs", list_slowly)
    monkeypatch.setattr(planning, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(planning, "SETTLE_SECONDS", 0.5)
    tasks = [
        threading.Thread(target=wt.pack, args=(src, url_of(bucket)), kwargs={**OPTIONS, "task": (index, 4)})
        for index in range(4)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert len(listed) == 1
    assert not list((bucket / "train" / ".packing").glob("planning-*"))
    wt.pack(src, url_of(bucket), **OPTIONS, finish=True)
    assert contents(bucket / "train") == whole


def test_a_task_that_was_killed_while_it_planned_is_not_waited_for(src, bucket):
    (bucket / "train" / ".packing").mkdir(parents=True)
    (bucket / "train" / ".packing" / "planning-0").write_text("1")
    assert not wt.pack(src, url_of(bucket), **OPTIONS, task=(1, 2)).complete
    assert (bucket / "train" / ".packing" / "listing.json").exists()


# The command


def test_the_command_prints_the_url_of_the_dataset(src, bucket, capsys):
    command = ["pack", str(src), url_of(bucket), "--shard-bytes", "12000", "--images", "keep", "--workers", "1"]
    for words in ("packed 15 images in 5 shards", "is already packed"):
        with pytest.raises(SystemExit) as ended:
            wt_main(command)
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert words in said
        assert f"{url_of(bucket)}/skipped.jsonl lists them with the reasons" in said
        assert f"next: wds-tools info {url_of(bucket)}" in said


def wt_main(command: list[str]) -> None:
    from wds_tools.cli import main

    main(command)


def test_each_url_has_a_spool_of_its_own(tmp_path):
    assert len({spool_folder(url, tmp_path) for url in ("s3://a/train", "s3://a/val", "gs://a/train")}) == 3
    assert spool_folder("s3://a/b", None).parent.name == "spool"


def test_the_files_to_continue_a_run_are_at_the_url(src, bucket):
    stopped_after(2 + UPLOADS, src, bucket)  # another one that was being uploaded may be stopped
    work = bucket / "train" / ".packing"
    assert json.loads((work / "plan.json").read_text())["seed"] == 0
    assert len(list(work.glob("shard-*.json"))) >= 3
