"""index, verify, unpack and merge at URLs: the same result as for local folders, in ranges of bounded length."""

from __future__ import annotations

import random
import shutil
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import bad_server
import pyarrow.parquet as pq
import pytest
from bad_server import BadServer
from buckets import Bucketful, each_call_fails_once, empty_s3
from folders import contents

import wds_tools as wt
from wds_tools.errors import DestinationError, ManifestError, NotADatasetError, OptionError, ShardError
from wds_tools.storage import stream, upload
from wds_tools.storage.cache import fetcher
from wds_tools.storage.requests.retry import RetryPolicy

MAX_RANGE = 16 << 20
CHUNK = 30_000


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.fixture(autouse=True)
def new_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    Bucketful.reset()
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "0.3")
    monkeypatch.setattr(upload, "POLICY", RetryPolicy(seconds=0.05, first_seconds=0.001, most_seconds=0.01))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def bare(few: Path, tmp_path: Path) -> Path:
    """Return a folder with only the shards of a dataset."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in few.glob("*.tar"):
        shutil.copy(path, folder)
    return folder


def shard_ranges() -> list[int]:
    return [stop - start for name, start, stop in Bucketful.ranges if name.endswith(".tar")]


# --- index ---


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("pattern", ["*.tar", "shard-{000000..000004}.tar", "shard-00000?.tar"])
def test_index_writes_the_same_files_to_a_url_as_to_a_folder(bare: Path, tmp_path: Path, pattern: str) -> None:
    there = shutil.copytree(bare, tmp_path / "there")
    count = len(list(bare.iterdir()))
    pattern = pattern.replace("000004", f"{count - 1:06d}")
    assert wt.index_shards(f"bucket://{there}/{pattern}") == wt.index_shards(f"{bare}/*.tar")
    assert contents(there) == contents(bare)
    assert "manifest.json" in contents(there)


@pytest.mark.usefixtures("small_chunks")
def test_index_reads_each_byte_of_a_shard_once_in_ranges_of_bounded_length(bare: Path) -> None:
    total = sum(path.stat().st_size for path in bare.iterdir())
    wt.index_shards(f"bucket://{bare}/*.tar")
    assert max(shard_ranges()) <= CHUNK
    assert total <= sum(shard_ranges()) <= 1.05 * total  # images that are longer than a chunk are read in parts


def test_index_again_at_a_url_replaces_indexes_and_keeps_the_classes(few_copy: Path, few: Path) -> None:
    wt.index_shards(f"bucket://{few_copy}/*.tar")
    again, packed = contents(few_copy), contents(few)
    assert again.keys() == packed.keys()
    for name in (name for name in packed if name.endswith(".parquet")):  # with the signatures of the images
        assert pq.read_table(few_copy / name).equals(pq.read_table(few / name))
    assert wt.describe(few_copy).classes == wt.describe(few).classes


def test_an_error_in_the_last_shard_removes_the_new_indexes_at_a_url(bare: Path) -> None:
    before = sorted(contents(bare))
    last = sorted(bare.iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-2000])
    with pytest.raises(ShardError, match=last.name):
        wt.index_shards(f"bucket://{bare}/*.tar")
    assert sorted(contents(bare)) == before


@pytest.mark.parametrize(
    ("pattern", "error", "words"),
    [
        ("bucket://{}/none-*.tar", NotADatasetError, "matches no file"),
        ("bucket://{}/none.tar", NotADatasetError, "does not exist"),
        ("bucket://{}", OptionError, r"name the shards in a folder, such as '.*/\*\.tar'"),
        ("https://host/{}/a.tar", OptionError, "is not writable"),
    ],
)
def test_a_url_that_cannot_be_indexed_is_refused(bare: Path, pattern: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wt.index_shards(pattern.format(bare))


def test_a_file_at_a_url_that_is_not_an_index_is_not_overwritten(bare: Path) -> None:
    (bare / "shard-000001.parquet").write_bytes(b"theirs")
    with pytest.raises(DestinationError, match=r"shard-000001\.parquet exists and is not an index"):
        wt.index_shards(f"bucket://{bare}/*.tar")
    (bare / "shard-000001.parquet").unlink()
    (bare / "manifest.json").write_bytes(b"theirs")
    with pytest.raises(DestinationError, match=r"manifest\.json exists and is not a manifest"):
        wt.index_shards(f"bucket://{bare}/*.tar")


def test_an_empty_shard_at_a_url_is_an_error(bare: Path) -> None:
    (bare / "shard-000000.tar").write_bytes(b"")
    with pytest.raises(ShardError, match="is empty"):
        wt.index_shards(f"bucket://{bare}/*.tar")


# --- verify ---


def damage_of(folder: str | Path) -> tuple[list[Any], dict[str, str]]:
    report = wt.verify(folder)
    unchecked = {name: reason.replace("bucket://", "") for name, reason in report.unchecked.items()}
    return [(one.shard, one.key, one.field, one.offset, one.reason) for one in report.damages], unchecked


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", [0, 1, 5, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(6, 12))])
def test_verify_reports_the_same_damage_at_a_url_as_in_a_folder(few_copy: Path, seed: int) -> None:
    chance = random.Random(seed)
    shard = few_copy / "shard-000001.tar"
    data = bytearray(shard.read_bytes())
    for _ in range(chance.choice([1, 1, 5, 40])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    shard.write_bytes(data)
    local, at_url = damage_of(few_copy), damage_of(f"bucket://{few_copy}")
    assert local[0]
    assert at_url == local


@pytest.mark.usefixtures("small_chunks")
def test_verify_of_a_url_reads_each_byte_once_in_ranges_of_bounded_length(few: Path) -> None:
    report = wt.verify(f"bucket://{few}")
    assert report.ok
    total = sum(path.stat().st_size for path in few.glob("*.tar"))
    assert (report.bytes, sum(shard_ranges())) == (total, total)
    assert max(shard_ranges()) <= CHUNK


def test_a_truncated_and_a_missing_shard_at_a_url_are_damage(packed_copy: Path) -> None:
    shard = packed_copy / "shard-000001.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    (packed_copy / "shard-000002.tar").unlink()
    report = wt.verify(f"bucket://{packed_copy}")
    assert report.damaged_shards == ["shard-000001.tar", "shard-000002.tar"]
    assert "bytes, but its manifest records" in report.damages[0].reason


def test_a_shard_that_fails_in_its_middle_is_unchecked(
    few: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    cat_file = Bucketful.cat_file

    def fail(self: Bucketful, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if path.endswith("shard-000001.tar") and start:
            raise ConnectionResetError("reset")
        return cat_file(self, path, start, end, **options)

    monkeypatch.setattr(Bucketful, "cat_file", fail)
    report = wt.verify(f"bucket://{few}")
    assert (list(report.unchecked), report.damages, report.ok) == (["shard-000001.tar"], [], False)


def test_the_progress_bar_of_verify_reaches_the_end_at_a_url(
    few: Path, capsys: pytest.CaptureFixture[str], small_chunks: None
) -> None:
    wt.verify(f"bucket://{few}", progress=True)
    assert "100%" in capsys.readouterr().err


def test_the_memory_of_verify_and_index_does_not_depend_on_the_length_of_a_shard(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    (tmp_path / "noise").write_bytes(random.Random(0).randbytes(20 << 20))
    with tarfile.open(folder / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(4):
            archive.add(tmp_path / "noise", f"{number}.bin")
    tracemalloc.start()
    try:
        wt.index_shards(f"bucket://{folder}/a.tar")
        assert wt.verify(f"bucket://{folder}").ok
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20  # three chunks, a request, and what the libraries need; the shard has 80 MiB
    assert max(shard_ranges()) <= MAX_RANGE


# --- unpack and merge ---


@pytest.mark.usefixtures("small_chunks")
def test_unpack_writes_the_same_files_from_a_url_as_from_a_folder(few: Path, tmp_path: Path) -> None:
    wt.unpack(few, tmp_path / "a")
    wt.unpack(f"bucket://{few}", tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert max(shard_ranges()) <= CHUNK


def test_merge_of_a_url_and_a_folder_is_that_of_two_folders(packed: Path, few: Path, tmp_path: Path) -> None:
    local = wt.merge([packed, few], tmp_path / "a")
    mixed = wt.merge([f"bucket://{packed}", few], tmp_path / "b")
    assert mixed.manifest == local.manifest
    assert mixed.copied == len(list(packed.glob("*.tar")))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert max(shard_ranges()) <= MAX_RANGE


@pytest.mark.usefixtures("small_chunks")
def test_each_request_of_verify_unpack_and_merge_is_repeated(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "60")
    answer = bad_server.each_request_fails_once(bad_server.status(503), bad_server.reset)
    server = BadServer({f"/{path.name}": path.read_bytes() for path in few.iterdir()}, default=answer)
    with server.running():
        assert wt.verify(server.url).ok
        assert sum(request.path.endswith(".tar") for request in server.requests) >= 2 * len(list(few.glob("*.tar")))
        wt.unpack(server.url, tmp_path / "a")
        wt.unpack(few, tmp_path / "b")
        assert contents(tmp_path / "a") == contents(tmp_path / "b")
        assert wt.merge([server.url], tmp_path / "merged").manifest.samples == 40


@pytest.mark.torture
def test_each_request_of_index_is_repeated(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = each_call_fails_once(monkeypatch, "ls", "cat_file", "put_file")
    assert wt.index_shards(f"bucket://{bare}/*.tar").samples == 40
    assert failed == {"ls", "cat_file", "put_file"}


# --- the size of a manifest ---


@pytest.mark.parametrize("name", ["manifest.json", "shard-000000.parquet"])
def test_a_manifest_or_an_index_at_a_url_that_is_too_large_is_refused_and_not_read_to_its_end(
    few: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "manifest.json":
        limit = (few / name).stat().st_size - 10
    else:
        limit = max((few / name).stat().st_size for name in ("manifest.json", "shard-000001.parquet")) + 10
        shutil.copytree(few, few.parent / "large")
        few = few.parent / "large"
        (few / name).write_bytes(bytes(2 * limit))
    monkeypatch.setattr(fetcher, "MAX_FILE_BYTES", limit)
    with pytest.raises(ManifestError, match=rf"{name} has [0-9,]+ bytes or more; .* has at most"):
        wt.describe(f"bucket://{few}")
    assert [stop - start for found, start, stop in Bucketful.ranges if found == name] == [limit + 1]


def test_a_manifest_that_would_be_replaced_at_a_url_has_a_size_limit(
    few_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MAX_FILE_BYTES", 100)
    with pytest.raises(ManifestError, match=r"manifest\.json has [\d,]+ bytes; .* has at most"):
        wt.pack(few_copy, f"bucket://{few_copy}", kind="webdataset")
    with pytest.raises(DestinationError, match=r"manifest\.json has [\d,]+ bytes; .* has at most"):
        wt.index_shards(f"bucket://{few_copy}/*.tar")
    assert Bucketful.ranges == []


# --- S3 ---


@pytest.mark.torture
def test_index_verify_unpack_and_merge_at_s3(
    moto: str, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wds_tools.storage.requests.client_base import BaseClient

    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    system = empty_s3(moto)
    system.put(f"{bare}/", "bucket/train/", recursive=True)
    ranges: list[tuple[str, int, int]] = []
    read_range = BaseClient.read_range

    def record(self: Any, path: str, start: int, stop: int, *arguments: Any, **options: Any) -> None:
        ranges.append((path, start, stop))
        read_range(self, path, start, stop, *arguments, **options)

    monkeypatch.setattr(BaseClient, "read_range", record)
    options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": moto}}
    result = wt.index_shards("s3://bucket/train/*.tar", storage_options=options)
    assert result == wt.index_shards(f"{bare}/*.tar")
    assert wt.verify("s3://bucket/train", storage_options=options).ok
    assert wt.describe("s3://bucket/train", storage_options=options).samples == 40
    wt.unpack("s3://bucket/train", tmp_path / "files", storage_options=options)
    assert contents(tmp_path / "files")
    merged = wt.merge(["s3://bucket/train"], tmp_path / "merged", storage_options=options)
    assert merged.manifest.samples == 40
    tars = [stop - start for path, start, stop in ranges if path.endswith(".tar")]
    assert max(tars) <= MAX_RANGE
