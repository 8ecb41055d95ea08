"""Stores: conformance tests for each kind, requests to URLs, and the block cache."""

import functools
import http.server
import os
import pickle
import threading
from itertools import pairwise
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.errors import StoreError, TruncatedShardError
from wds_tools.options import RemoteOptions
from wds_tools.storage import open_store, split_folder
from wds_tools.storage.cache import BlockCache
from wds_tools.storage.remote import _join_neighbours

CONTENT = bytes(range(256)) * 400


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
        threading.Thread(target=server.serve_forever, daemon=True).start()
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


def test_a_store_returns_exactly_the_requested_ranges_in_their_order(store):
    ranges = [(5000, 6000), (0, 10), (10, 20), (len(CONTENT) - 1, len(CONTENT)), (300, 300), (0, 10)]
    for _ in range(2):  # the second time from the cache, if the store has one
        found = store.fetch("a.tar", ranges, total_bytes=len(CONTENT))
        assert [bytes(part) for part in found] == [CONTENT[start:stop] for start, stop in ranges]


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
    store.read_ahead("a.tar", [(100, 9000)], total_bytes=len(CONTENT))
    assert bytes(store.fetch("a.tar", [(100, 9000)], total_bytes=len(CONTENT))[0]) == CONTENT[100:9000]


def test_adjacent_blocks_are_requested_together_and_only_once(tmp_path, serve, remote):
    (tmp_path / "a.tar").write_bytes(CONTENT)
    url, server = serve(tmp_path)
    store = open_store(url, remote=remote)
    blocks = [(0, 1000), (1000, 2000), (2000, 3000), (9000, 9500)]
    store.fetch("a.tar", blocks, total_bytes=len(CONTENT))
    assert [requested for _, requested in server.requests] == ["bytes=0-2999", "bytes=9000-9499"]
    store.fetch("a.tar", blocks, total_bytes=len(CONTENT))
    assert len(server.requests) == 2


def test_a_replaced_shard_is_not_read_from_cached_blocks_of_the_old_one(tmp_path, serve, remote):
    shard = tmp_path / "a.tar"
    shard.write_bytes(CONTENT)
    url, _ = serve(tmp_path)
    open_store(url, remote=remote).fetch("a.tar", [(0, 100)], total_bytes=len(CONTENT))
    shard.write_bytes(CONTENT[::-1])
    os.utime(shard, ns=(1, 1))
    again = open_store(url, remote=remote).fetch("a.tar", [(0, 100)], total_bytes=len(CONTENT))[0]
    assert bytes(again) == CONTENT[::-1][:100]


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
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9/x"):
        open_store("http://127.0.0.1:9/x", remote=remote).read("manifest.json")


@settings(max_examples=200)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.lists(st.booleans(), min_size=20, max_size=20))
def test_joined_requests_contain_each_block_once_in_order(sizes, gaps):
    ranges, position = [], 0
    for size, gap in zip(sizes, gaps, strict=False):
        position += 7 if gap else 0
        ranges.append((position, position + size))
        position += size
    joined = list(_join_neighbours(ranges))
    assert [part for request in joined for part in request] == ranges
    assert all(a[1] == b[0] for request in joined for a, b in pairwise(request))


def test_the_cache_returns_a_stored_block(remote):
    blocks = BlockCache(remote)
    blocks.put("a", b"one")
    assert blocks.get("a") == b"one"
    assert blocks.get("b") is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"\0" + b[1:], lambda _: b"", lambda b: b + b"x"])
def test_a_damaged_cached_block_is_missing_and_removed(remote, damage):
    blocks = BlockCache(remote)
    blocks.put("a", b"content" * 100)
    (path,) = remote.cache_folder.glob("*/*")
    path.write_bytes(damage(path.read_bytes()))
    assert blocks.get("a") is None
    assert not path.exists()


def test_the_cache_stays_near_its_limit_and_evicts_the_least_recently_used_block_first(tmp_path):
    limit = 2_000_000
    blocks = BlockCache(RemoteOptions(cache_folder=tmp_path / "blocks", cache_bytes=limit))
    blocks.put("kept", b"k" * 10_000)
    for number in range(300):
        blocks.put(f"block {number}", bytes(20_000))
        assert blocks.get("kept") is not None
    total = sum(path.stat().st_size for path in (tmp_path / "blocks").glob("*/*"))
    assert total <= limit * 1.07
    assert blocks.get("block 299") is not None
    assert blocks.get("block 0") is None


def test_a_cache_that_cannot_be_written_raises_no_error(tmp_path):
    (tmp_path / "blocks").write_text("a file where the folder should be")
    blocks = BlockCache(RemoteOptions(cache_folder=tmp_path / "blocks", cache_bytes=10**6))
    blocks.put("a", b"x")
    assert blocks.get("a") is None


def test_a_block_larger_than_the_cache_is_not_stored(tmp_path):
    blocks = BlockCache(RemoteOptions(cache_folder=tmp_path / "blocks", cache_bytes=1000))
    blocks.put("a", bytes(2000))
    assert not list(tmp_path.glob("blocks/*/*"))


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
