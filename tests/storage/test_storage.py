"""Stores: conformance tests for each kind, requests to URLs, and the block cache."""

import dataclasses
import functools
import http.server
import os
import pickle
import threading
from pathlib import Path

import fsspec
import pytest
import xxhash

from wds_tools.errors import StoreError, TruncatedShardError
from wds_tools.options import RemoteOptions
from wds_tools.storage import Block, Extent, StoredFile, open_store, split_folder, whole_file
from wds_tools.storage.cache import fetcher

CONTENT = bytes(range(256)) * 400
SHARD = StoredFile("a.tar", len(CONTENT), "checksum of a.tar")


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """A file server that supports range requests and records them."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data, requested = path.read_bytes(), self.headers.get("Range")
        self.server.requests.append((path.name, requested))
        if requested and not self.server.ignore_ranges:
            start, _, stop = requested.removeprefix("bytes=").partition("-")
            part = data[int(start) : int(stop) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
            data = part
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self):
        path = Path(self.translate_path(self.path))
        self.send_response(200 if path.is_file() else 404)
        if path.is_file():
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()


@pytest.fixture
def serve():
    """Return a function that serves a folder over HTTP and returns (url, server)."""
    servers = []

    def start(folder):
        handler = functools.partial(RangeHandler, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.requests, server.ignore_ranges = [], False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def remote(tmp_path):
    return RemoteOptions(cache_folder=tmp_path / "blocks", cache_bytes=10**7)


@pytest.fixture(params=["local", "file", "memory", "http"])
def store(request, tmp_path, serve, remote):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.tar").write_bytes(CONTENT)
    (folder / "small.json").write_bytes(b"{}")
    if request.param == "memory":
        memory = fsspec.filesystem("memory")
        memory.pipe({"/data/a.tar": CONTENT, "/data/small.json": b"{}"})
        yield open_store("memory://data", remote=remote)
        memory.rm("/data", recursive=True)
        return
    urls = {"local": str(folder), "file": f"file://{folder}"}
    yield open_store(urls.get(request.param) or serve(folder)[0], remote=remote)


def test_a_store_reads_whole_files(store):
    assert store.read("small.json") == b"{}"


def test_a_missing_file_is_a_file_not_found_error(store):
    with pytest.raises(FileNotFoundError):
        store.read("none.json")


RANGES = [(5000, 6000), (0, 10), (10, 20), (len(CONTENT) - 1, len(CONTENT)), (300, 300), (0, 10)]


def test_a_store_returns_exactly_the_requested_ranges_in_their_order(store):
    found = store.fetch("a.tar", RANGES, total_bytes=len(CONTENT))
    assert [bytes(part) for part in found] == [CONTENT[start:stop] for start, stop in RANGES]


def test_a_store_returns_exactly_the_requested_parts_of_blocks_in_their_order(store):
    blocks = [Block(SHARD, 0, 3000), Block(SHARD, 3000, 9000), Block(SHARD, 9000, len(CONTENT))]
    extents = [
        Extent(block, start, stop)
        for start, stop in RANGES
        for block in blocks
        if block.start <= start and stop <= block.stop
    ]
    for _ in range(2):  # the second time from the cache, if the store has one
        found = store.fetch_extents(extents)
        assert [bytes(part) for part in found] == [CONTENT[start:stop] for start, stop in RANGES]


def test_the_length_of_a_shard_is_checked_without_ranges(store):
    assert store.fetch("a.tar", [], total_bytes=len(CONTENT)) == []
    with pytest.raises(TruncatedShardError):
        store.fetch("a.tar", [], total_bytes=len(CONTENT) - 1)


def test_a_shard_of_another_length_is_a_truncated_shard_error(store):
    with pytest.raises(TruncatedShardError, match=r"102,400 bytes.*102,401"):
        store.fetch("a.tar", [(0, 1)], total_bytes=len(CONTENT) + 1)


def test_the_error_for_a_missing_shard_names_it(store):
    with pytest.raises((StoreError, FileNotFoundError), match=r"b\.tar"):
        store.fetch("b.tar", [(0, 1)], total_bytes=5)


def test_a_store_can_be_pickled(store):
    store.fetch("a.tar", [(0, 1)], total_bytes=len(CONTENT))
    copy = pickle.loads(pickle.dumps(store))
    assert bytes(copy.fetch("a.tar", [(1, 5)], total_bytes=len(CONTENT))[0]) == CONTENT[1:5]


def test_reading_ahead_does_not_change_the_bytes_that_are_read(store):
    block = Block(SHARD, 100, 9000)
    store.read_files_ahead([StoredFile("small.json", 2, "0" * 32)], wait=True)
    store.read_samples_ahead([Extent(block, 200, 300)], dataset_bytes=10**9)
    store.read_ahead([block])
    assert bytes(store.fetch_extents([Extent(block, 200, 300)])[0]) == CONTENT[200:300]
    assert bytes(store.fetch_extents([Extent(block, 100, 9000)])[0]) == CONTENT[100:9000]
    store.release([block])
    assert bytes(store.fetch_extents([Extent(block, 100, 9000)])[0]) == CONTENT[100:9000]


def test_indexes_are_read_by_a_limited_number_of_threads(tmp_path, serve, remote, monkeypatch):
    monkeypatch.setattr(fetcher, "MAX_FILE_THREADS", 3)
    files = []
    for number in range(40):
        content = b"%d" % number
        files.append(StoredFile(f"{number}.parquet", len(content), xxhash.xxh3_128_hexdigest(content)))
        (tmp_path / files[-1].name).write_bytes(content)
    url, server = serve(tmp_path)
    store, before, most = open_store(url, remote=remote), set(threading.enumerate()), 0
    reading = threading.Thread(target=store.read_files_ahead, args=(files,), kwargs={"wait": True})
    start = threading.Thread.start

    def count(thread):
        nonlocal most
        start(thread)
        most = max(most, sum(one.name.endswith("(read_missing)") for one in set(threading.enumerate()) - before))

    monkeypatch.setattr(threading.Thread, "start", count)
    reading.start()
    reading.join()
    assert 1 <= most <= 3
    assert sorted(name for name, _ in server.requests) == sorted(file.name for file in files)


def test_a_block_is_requested_once(tmp_path, serve, remote):
    (tmp_path / "a.tar").write_bytes(CONTENT)
    url, server = serve(tmp_path)
    store, block = open_store(url, remote=remote), Block(SHARD, 1000, 2000)
    for start in (1000, 1500, 1900):
        store.fetch_extents([Extent(block, start, start + 50)])
    assert [requested for _, requested in server.requests] == ["bytes=1000-1999"]


def test_neighbouring_blocks_that_are_read_ahead_share_requests(tmp_path, serve, remote):
    (tmp_path / "a.tar").write_bytes(CONTENT)
    url, server = serve(tmp_path)
    store = open_store(url, remote=remote)
    blocks = [Block(SHARD, start, start + 900) for start in range(0, 100_000, 1000)]
    store.read_ahead(blocks)
    found = store.fetch_extents([Extent(block, block.start, block.stop) for block in blocks])
    assert [bytes(data) for data in found] == [CONTENT[block.start : block.stop] for block in blocks]
    assert len(server.requests) < 80  # 100 without; how many depends on how soon the first requests are sent


def test_a_replaced_shard_is_not_read_from_cached_blocks_of_the_old_one(tmp_path, serve, remote):
    shard = tmp_path / "a.tar"
    shard.write_bytes(CONTENT)
    url, _ = serve(tmp_path)
    old, new = Block(SHARD, 0, 100), Block(StoredFile("a.tar", len(CONTENT), "another checksum"), 0, 100)
    open_store(url, remote=remote).fetch_extents([Extent(old, 0, 100)])
    shard.write_bytes(CONTENT[::-1])
    os.utime(shard, ns=(1, 1))
    again = open_store(url, remote=remote).fetch_extents([Extent(new, 0, 100)])[0]
    assert bytes(again) == CONTENT[::-1][:100]


def test_an_index_is_read_from_the_cache_the_second_time(tmp_path, serve, remote):
    (tmp_path / "index.parquet").write_bytes(CONTENT)
    url, server = serve(tmp_path)
    file = StoredFile("index.parquet", len(CONTENT), "checksum")
    for _ in range(3):
        assert open_store(url, remote=remote).read("index.parquet", file=file) == CONTENT
    assert len(server.requests) == 1


def test_a_dropped_block_is_fetched_again(tmp_path, serve, remote):
    (tmp_path / "a.tar").write_bytes(CONTENT)
    url, server = serve(tmp_path)
    store, block = open_store(url, remote=remote), Block(SHARD, 0, 100)
    store.fetch_extents([Extent(block, 0, 100)])
    assert store.drop_cached([block, whole_file(SHARD)])
    store.fetch_extents([Extent(block, 0, 100)])
    assert len(server.requests) == 2


def test_a_server_that_ignores_ranges_is_an_error(tmp_path, serve, remote):
    (tmp_path / "a.tar").write_bytes(CONTENT)
    url, server = serve(tmp_path)
    server.ignore_ranges = True
    store = open_store(url, remote=remote)
    with pytest.raises(StoreError, match="range requests"):
        store.fetch("a.tar", [(500, 600)], total_bytes=len(CONTENT))


def test_an_unknown_scheme_is_a_store_error_with_the_reason(remote):
    with pytest.raises(StoreError, match=r"Protocol not known|not installed"):
        open_store("nonsense://bucket/x", remote=remote).read("manifest.json")


def test_the_error_for_an_unreachable_server_names_the_url(remote):
    remote = dataclasses.replace(remote, retry_seconds=0.3)
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9/x"):
        open_store("http://127.0.0.1:9/x", remote=remote).read("manifest.json")


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("a/b.tar", ("a", "b.tar")),
        ("/b.tar", ("/", "b.tar")),
        ("b.tar", (".", "b.tar")),
        ("s3://bucket/x/b.tar", ("s3://bucket/x", "b.tar")),
    ],
)
def test_a_path_or_url_is_split_into_folder_and_name(spec, parts):
    assert split_folder(spec) == parts
