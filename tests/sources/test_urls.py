"""Sources at URLs: packed as from a local folder, in ranges of bounded length."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_server
import fsspec
import pytest
from bad_server import Answer, BadServer
from buckets import Bucketful, Vault, each_call_fails_once, empty_s3

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, SourceError, StoreError
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples
from wds_tools.sources import files as source_files
from wds_tools.sources.base import SourceStoreError
from wds_tools.sources.detect import open_source
from wds_tools.sources.inputs import Input
from wds_tools.sources.table import fetch
from wds_tools.sources.tree import TreeSource
from wds_tools.storage import stream

OPTIONS: dict[str, Any] = {"shard_bytes": "300kB", "workers": 1, "images": "keep"}
CHUNK = 50_000


@pytest.fixture(autouse=True)
def new_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    Bucketful.reset()
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "0.3")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(source_files, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def bare(few: Path, tmp_path: Path) -> Path:
    """Return a folder of shards without a manifest."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in few.glob("*.tar"):
        shutil.copy(path, folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tar", ".parquet")}


def samples_of(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of a dataset without their keys, sorted by path."""
    shards = open_shards(folder)
    found = []
    for number in range(len(shards.locations)):
        for sample in stored_samples(shards, number):
            fields = {name: bytes(data) for name, data in sample.fields.items()}
            found.append({**fields, "path": json.loads(fields["json"])["path"]})
    return sorted(found, key=lambda sample: sample["path"])


def test_a_folder_of_images_at_a_url_is_packed_as_a_local_one(six_photos: Path, tmp_path: Path) -> None:
    (six_photos / "cat" / "notes.txt").write_text("x")
    (six_photos / ".hidden").mkdir()
    shutil.copy(next((six_photos / "fig").iterdir()), six_photos / ".hidden" / "1.jpg")
    local = wt.pack(six_photos, tmp_path / "local", **OPTIONS)
    at_url = wt.pack(f"bucket://{six_photos}", tmp_path / "remote", **OPTIONS)
    assert (at_url.packed, at_url.skipped) == (local.packed, local.skipped) == (6, local.skipped)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    assert wt.pack(f"bucket://{six_photos}", tmp_path / "remote", **OPTIONS).kept == len(at_url.manifest.shards)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("pattern", ["", "/*.tar", "/shard-{000000..000002}.tar", "/shard-000000.tar"])
@pytest.mark.torture_except("", "/shard-{000000..000002}.tar")
def test_shards_at_a_url_are_packed_with_the_same_samples_as_local_ones(
    bare: Path, tmp_path: Path, pattern: str
) -> None:
    wt.pack(f"{bare}{pattern}", tmp_path / "local", **OPTIONS)
    wt.pack(f"bucket://{bare}{pattern}", tmp_path / "remote", **OPTIONS)
    assert samples_of(tmp_path / "remote") == samples_of(tmp_path / "local")
    assert max(stop - start for _, start, stop in Bucketful.ranges) <= CHUNK


def test_the_order_of_shards_at_a_url_is_kept_by_reshard(few: Path, tmp_path: Path) -> None:
    wt.reshard(few, tmp_path / "local", workers=1)
    wt.reshard(f"bucket://{few}", tmp_path / "remote", workers=1)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    remote, local = (json.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("remote", "local"))
    assert remote["classes"] == local["classes"]


@pytest.mark.usefixtures("small_chunks")
def test_each_byte_of_a_shard_is_read_twice_once_to_list_and_once_to_pack(bare: Path, tmp_path: Path) -> None:
    wt.pack(f"bucket://{bare}", tmp_path / "remote", **{**OPTIONS, "shard_bytes": "1GB"}, kind="webdataset")
    total = sum(path.stat().st_size for path in bare.iterdir())
    assert sum(stop - start for _, start, stop in Bucketful.ranges) <= 2.2 * total


def test_an_archive_of_images_at_a_url_is_packed_as_a_local_one(six_photos: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "photos"), "tar", six_photos)
    for name, url in (("local", f"{tmp_path}/photos.tar"), ("remote", f"bucket://{tmp_path}/photos.tar")):
        assert wt.pack(url, tmp_path / name, **OPTIONS).packed == 6
    assert samples_of(tmp_path / "remote") == samples_of(tmp_path / "local")


@pytest.mark.parametrize("ending", ["", "/*.tar"])
def test_a_first_archive_without_samples_does_not_decide_what_shards_at_a_url_are(
    ending: str, bare: Path, six_photos: Path, tmp_path: Path
) -> None:
    shutil.make_archive(str(bare / "a"), "tar", six_photos, "cat")
    assert open_source(f"bucket://{bare}{ending}").kind == "webdataset"
    assert open_source(bare).kind == "webdataset"


def test_samples_at_a_url_are_appended(few: Path, six_photos: Path, tmp_path: Path) -> None:
    wt.pack(six_photos, tmp_path / "out", **OPTIONS)
    shutil.move(six_photos, tmp_path / "more")
    next((tmp_path / "more" / "cat").iterdir()).unlink()
    for path in (tmp_path / "more" / "cat").rename(tmp_path / "more" / "dog").iterdir():
        path.write_bytes(path.read_bytes() + bytes(1))  # as other images
    report = wt.append(f"bucket://{tmp_path}/more", tmp_path / "out", workers=1, images="keep")
    assert (report.packed, report.manifest.samples) == (2, 8)  # those of fig are in the dataset


def test_the_urls_of_a_table_are_read_with_the_options(six_photos: Path, tmp_path: Path) -> None:
    rows = [f"vault://{path},{path.parent.name}" for path in sorted(six_photos.rglob("*.*"))]
    (tmp_path / "table.csv").write_text("\n".join(["image,label", *rows]) + "\n")
    options = {"vault": {"secret": Vault.SECRET}, "bucket": {}}
    report = wt.pack(tmp_path / "table.csv", f"bucket://{tmp_path}/out", **OPTIONS, storage_options=options)
    assert (report.packed, report.skipped) == (6, ())


@pytest.mark.parametrize("reads", range(1, 13))
@pytest.mark.parametrize("name", ["six_photos", "bare"])
@pytest.mark.torture_except("six_photos-1", "six_photos-9", "bare-2", "bare-6")
def test_storage_that_fails_ends_packing_and_leaves_no_sample_out(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reads: int
) -> None:
    source, out = request.getfixturevalue(name), tmp_path / "out"
    cat_file, failed = Bucketful.cat_file, []

    def fail(self: Bucketful, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if len(Bucketful.ranges) >= reads:
            failed.append(path)
            raise ConnectionResetError("connection reset")
        return cat_file(self, path, start, end)

    monkeypatch.setattr(Bucketful, "cat_file", fail)
    options = {**OPTIONS, "shard_bytes": "100kB"}
    try:
        report = wt.pack(f"bucket://{source}", out, **options)
    except StoreError as error:
        assert "connection reset" in str(error)  # noqa: PT017 - it depends on the number of reads
        assert failed
        monkeypatch.setattr(Bucketful, "cat_file", cat_file)
        report = wt.pack(f"bucket://{source}", out, **options)
    else:
        assert not failed
    assert (report.packed, report.skipped) == ({"six_photos": 6, "bare": 40}[name], ())


FAULTS = (bad_server.status(503), bad_server.reset)


@pytest.fixture
def failing_server() -> Iterator[BadServer]:
    """Return a server whose first answer to each request is HTTP 503 or a reset connection."""
    with BadServer(default=bad_server.each_request_fails_once(*FAULTS)).running() as server:
        yield server


def test_each_request_of_an_archive_is_repeated(
    failing_server: BadServer, six_photos: Path, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "60")
    archive = Path(shutil.make_archive(str(tmp_path / "photos"), "tar", six_photos))
    failing_server.objects["/photos.tar"] = archive.read_bytes()
    report = wt.pack(f"{failing_server.url}/photos.tar", tmp_path / "remote", **OPTIONS)
    assert (report.packed, report.skipped) == (6, ())
    assert {request.method for request in failing_server.requests} == {"HEAD", "GET"}
    wt.pack(archive, tmp_path / "local", **OPTIONS)
    assert samples_of(tmp_path / "remote") == samples_of(tmp_path / "local")


def test_each_request_for_the_images_of_a_table_is_repeated(
    failing_server: BadServer, six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "60")
    failing_server.objects = {f"/{path.name}": path.read_bytes() for path in six_photos.rglob("*.*")}
    rows = [f"{failing_server.url}{path}" for path in failing_server.objects]
    (tmp_path / "table.csv").write_text("\n".join(["image", *rows]) + "\n")
    report = wt.pack(tmp_path / "table.csv", tmp_path / "out", **OPTIONS)
    assert (report.packed, report.skipped) == (len(rows), ())


def test_each_request_for_the_listing_and_the_images_of_a_folder_is_repeated(
    six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "60")
    failed = each_call_fails_once(monkeypatch, "find", "cat_file")
    report = wt.pack(f"bucket://{six_photos}", tmp_path / "out", **OPTIONS)
    assert (report.packed, report.skipped) == (6, ())
    assert failed == {"find", "cat_file"}


@pytest.mark.parametrize("answer", FAULTS)
def test_an_archive_at_a_server_that_keeps_failing_is_a_store_error_that_names_attempts_and_host(
    failing_server: BadServer, tmp_path: Path, answer: Answer
) -> None:
    failing_server.default = answer
    with pytest.raises(StoreError, match=r"photos\.tar cannot be listed: .* \(host 127\.0\.0\.1:\d+, \d+ attempts in "):
        wt.pack(f"{failing_server.url}/photos.tar", tmp_path / "out", **OPTIONS)


def test_images_at_urls_are_not_kept_in_memory() -> None:
    data, count = bytes(4 << 20), 12
    with BadServer({f"/d/{number}.jpg": data for number in range(count)}).running() as server:
        source = TreeSource(f"{server.url}/d", layout="folder")
        tracemalloc.start()
        try:
            for number in range(count):
                assert len(fetch(f"{server.url}/d/{number}.jpg", RemoteOptions.of())) == len(data)
                assert source.read(Input(f"{number}.jpg", len(data), None)).image == data
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert kept < 2 * len(data)


@pytest.mark.parametrize("url", ["/a b.jpg", "/a%20b.jpg", "/a%20b.jpg?X-Signature=1/2%2F3&x=y z#top"])
def test_a_url_of_a_table_may_be_quoted_and_may_have_a_query(url: str) -> None:
    with BadServer({"/d/a b.jpg": b"data"}).running() as server:
        assert fetch(f"{server.url}/d{url}", RemoteOptions.of()) == b"data"
        sent = server.requests[0].path
        assert sent == "/d/a%20b.jpg" + ("?X-Signature=1/2%2F3&x=y%20z" if "?" in url else "")
        with pytest.raises(SourceError, match=r"/d/b\.jpg' does not exist$"):
            fetch(f"{server.url}/d/b.jpg?X-Signature=abc", RemoteOptions.of())
        server.default = bad_server.status(403)
        with pytest.raises(SourceStoreError, match=r"HTTP 403") as caught:
            fetch(f"{server.url}/d/b.jpg?X-Signature=abc", RemoteOptions.of())
        assert "abc" not in str(caught.value)


def test_the_error_of_storage_that_fails_names_the_shards_that_are_kept(
    six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = sorted(six_photos.rglob("*.*"))[-1]
    cat_file = Bucketful.cat_file

    def fail(self: Bucketful, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if path.endswith(f"{last.parent.name}/{last.name}"):
            raise ConnectionResetError("connection reset")
        return cat_file(self, path, start, end)

    monkeypatch.setattr(Bucketful, "cat_file", fail)
    with pytest.raises(StoreError, match=r"connection reset .*; 5 of 6 shards are finished and kept: fix the cause"):
        wt.pack(f"bucket://{six_photos}", tmp_path / "out", **{**OPTIONS, "shard_bytes": 10_240}, shuffle=False)


def test_an_image_that_was_removed_after_the_listing_ends_packing(
    six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = sorted((six_photos / "cat").iterdir())[1]
    cat_file = Bucketful.cat_file

    def lose(self: Bucketful, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        lost.unlink(missing_ok=True)
        return cat_file(self, path, start, end)

    monkeypatch.setattr(Bucketful, "cat_file", lose)
    with pytest.raises(StoreError, match=f"{lost.name} was removed while it was packed"):
        wt.pack(f"bucket://{six_photos}", tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        ("bucket://{}/none", {}, SourceError, "none does not exist or is empty: check the URL"),
        ("bucket://{}/none", {"kind": "folder"}, SourceError, "none does not exist or is empty: check the URL"),
        ("bucket://{}/none.tar", {}, SourceError, "does not exist; check the URL"),
        ("bucket://{}/none-*.tar", {}, SourceError, "contains no tar files"),
        ("bucket://{}", {"kind": "parquet"}, OptionError, "parquet cannot be read from a URL; allowed are folder, tar"),
        ("bucket://{}", {"columns": {"image": "x"}}, OptionError, "which has no columns"),
        ("s3:/bucket/{}/none", {}, SourceError, "lost a slash"),
        ("bucket://{}", {"kind": "webdataset"}, SourceError, "contains no tar files"),
    ],
)
def test_a_url_that_cannot_be_packed_is_refused_with_the_reason(
    six_photos: Path, tmp_path: Path, source: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        wt.pack(source.format(six_photos), tmp_path / "out", **OPTIONS, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", {}),
        ("*.tar", {}),
        ("a.tar", {}),
        ("photos", {"kind": "tar"}),
        ("photos", {"kind": "hdf5"}),
        ("photos", {"columns": {"image": "x"}}),
        ("photos", {"classes": ["dog"]}),
        ("splits", {}),
    ],
)
def test_an_error_about_a_url_has_no_password(
    six_photos: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/me:pa55word@host/a.tar", b"x" * 512)
    for folder in ("photos/cat", "splits/train", "splits/val"):
        files.pipe_file(f"/me:pa55word@host/{folder}/1.jpg", next(six_photos.glob("*/*.jpg")).read_bytes())
    with pytest.raises((LabelError, OptionError, SourceError)) as raised:
        wt.pack(f"memory://me:pa55word@host/{name}", tmp_path / "out", **OPTIONS, **options)
    assert "pa55word" not in str(raised.value)
    assert "memory://host" in str(raised.value)


def test_folders_of_splits_at_a_url_are_not_taken_for_classes(six_photos: Path, tmp_path: Path) -> None:
    (six_photos / "cat").rename(six_photos / "train")
    (six_photos / "fig").rename(six_photos / "val")
    with pytest.raises(SourceError, match=r"one folder per split \(train, val\)"):
        wt.pack(f"bucket://{six_photos}", tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize(("between", "first"), [("-", "train-shard-*.tar"), ("/", "train")])
@pytest.mark.parametrize("scheme", ["", "bucket://"])
@pytest.mark.torture_except("---train-shard-*.tar", "bucket://-/-train")
def test_shards_of_several_splits_are_not_mixed(
    scheme: str, between: str, first: str, bare: Path, tmp_path: Path
) -> None:
    one, *others = sorted(bare.glob("*.tar"))
    for split, paths in (("train", others), ("val", [one])):
        for path in paths:
            place = bare / f"{split}{between}{path.name}"
            place.parent.mkdir(exist_ok=True)
            path.rename(place)
    src = f"{scheme}{bare}"
    with pytest.raises(SourceError, match=rf"pack with --split folders .*, such as '{src}/{re.escape(first)}'"):
        wt.pack(src, tmp_path / "dst", **OPTIONS)
    if between == "-":
        with pytest.raises(SourceError, match=r"contains several splits \(train, val\): pack one at a time"):
            wt.pack(f"{src}/*.tar", tmp_path / "dst", **OPTIONS)
    reports = wt.pack_splits(src, tmp_path / "splits", split="folders", **OPTIONS)
    assert list(reports) == ["train", "val"]
    assert reports["train"].packed == wt.pack(f"{src}/{first}", tmp_path / "train", **OPTIONS).packed


def test_a_destination_inside_the_source_at_a_url_is_refused(six_photos: Path) -> None:
    with pytest.raises(OptionError, match="is inside the source"):
        wt.pack(f"bucket://{six_photos}", f"bucket://{six_photos}/out", **OPTIONS)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("s3://bukcet/raw", None, "bukcet/raw does not exist: there is no bucket 'bukcet'"),
        ("s3://bukcet", "folder", "there is no bucket 'bukcet'"),
        ("s3://bukcet/raw/*.tar", None, "there is no bucket 'bukcet'"),
        ("s3://bucket/rwa", None, "bucket/rwa does not exist or is empty"),
        ("s3://bucket/rwa", "folder", "bucket/rwa does not exist or is empty"),
        ("s3://bucket/notes", None, "contains neither images nor tar files"),
        ("s3://bucket/notes/*.tar", None, "contains no tar files"),
    ],
)
def test_a_misspelled_url_of_s3_is_told_from_one_without_images(
    moto: str, tmp_path: Path, url: str, kind: str | None, words: str
) -> None:
    empty_s3(moto).pipe_file("bucket/notes/a.txt", b"text")
    options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": moto}}
    with pytest.raises(SourceError, match=words):
        wt.pack(url, tmp_path / "out", **OPTIONS, kind=kind, storage_options=options)


def test_worker_processes_pack_from_s3_to_s3(moto: str, bare: Path) -> None:
    system = empty_s3(moto)
    system.put(f"{bare}/", "bucket/raw/", recursive=True)
    options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": moto}}
    many: dict[str, Any] = {**OPTIONS, "workers": 2, "storage_options": options}
    assert wt.pack("s3://bucket/raw/*.tar", "s3://bucket/out", **many).packed == 40
    assert wt.verify("s3://bucket/out", storage_options=options).ok
