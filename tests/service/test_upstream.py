"""The cache in front of a bucket: fetched once, verified, and available while the upstream is not."""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import bad_server
import mounts
import pytest
from bad_server import BadServer
from servers import in_thread, program, request
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.options import RemoteOptions
from wds_tools.service import upstream as upstreams
from wds_tools.service.config import ServeOptions
from wds_tools.service.upstream import UpstreamLibrary

SHARD = "shard-000000.tar"
DOWN = bad_server.status(503)


@pytest.fixture
def upstream(packed: Path) -> Iterator[BadServer]:
    server = BadServer({f"/photos/{path.name}": path.read_bytes() for path in packed.iterdir()})
    with server.running():
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


@contextlib.contextmanager
def serving(upstream: BadServer, cache: Path, *, cache_bytes: int | str = "1GB") -> Iterator[str]:
    remote = RemoteOptions.of(cache, cache_bytes)
    with in_thread(upstreams=(f"{upstream.url}/photos",), remote=remote) as url:
        yield url


def fetched(upstream: BadServer, suffix: str = ".tar") -> int:
    return sum(r.span[1] - r.span[0] for r in list(upstream.requests) if r.span and r.path.endswith(suffix))


def content_of(packed: Path, source: str) -> None:
    """Compare all files."""
    for path in packed.iterdir():
        if path.name != "README.md":
            assert request(source, f"/data/photos/{path.name}").body == path.read_bytes()


def test_every_file_is_served_and_fetched_once(upstream: BadServer, packed: Path, cache: Path) -> None:
    size = sum(path.stat().st_size for path in packed.glob("*.tar"))
    with serving(upstream, cache) as url:
        for _ in range(2):
            content_of(packed, url)
        assert fetched(upstream) == size
        text = request(url, "/metrics").body.decode()
    assert "wds_tools_upstream_bytes_total" in text
    with serving(upstream, cache) as url:  # blocks remain over a restart
        content_of(packed, url)
    assert fetched(upstream) == size


def test_ranges_and_conditions_are_those_of_local_files(upstream: BadServer, packed: Path, cache: Path) -> None:
    data = (packed / SHARD).read_bytes()
    with serving(upstream, cache) as url:
        reply = request(url, f"/data/photos/{SHARD}", Range="bytes=1000-250000")
        assert (reply.status, reply.body) == (206, data[1000:250_001])
        assert request(url, f"/data/photos/{SHARD}", If_None_Match=reply.headers["ETag"]).status == 304
        assert request(url, "/data/photos/none.tar").status == 404


def test_clients_that_wait_for_the_same_block_share_one_request(upstream: BadServer, packed: Path, cache: Path) -> None:
    data = (packed / SHARD).read_bytes()
    with serving(upstream, cache) as url, ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: request(url, f"/data/photos/{SHARD}"), range(16)))
    assert all(reply.body == data for reply in replies)
    assert fetched(upstream) == len(data)


def test_processes_that_need_the_same_block_share_one_request(upstream: BadServer, packed: Path, cache: Path) -> None:
    arguments = ["--processes", "2", "--upstream", f"{upstream.url}/photos", "--cache-dir", cache]
    with program(*arguments) as running, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: content_of(packed, running.url), range(3)))
    size = sum(path.stat().st_size for path in packed.glob("*.tar"))
    assert size <= fetched(upstream) <= 1.02 * size


def test_a_flipped_byte_is_fetched_again_once(upstream: BadServer, packed: Path, cache: Path) -> None:
    data = (packed / SHARD).read_bytes()

    def flipped(request: bad_server.Request) -> None:
        start, stop = request.span or (0, 0)
        part = bytearray(data[start:stop])
        part[len(part) // 2] ^= 1
        request.send(206, bytes(part), Content_Range=f"bytes {start}-{stop - 1}/{len(data)}")

    with serving(upstream, cache) as url:
        request(url, f"/data/photos/{SHARD.replace('.tar', '.parquet')}")  # the index
        upstream.answers.append(flipped)
        assert request(url, f"/data/photos/{SHARD}").body == data
        assert fetched(upstream) == 2 * len(data)


def test_a_byte_that_stays_flipped_is_named_and_nothing_is_cached(
    upstream: BadServer, packed: Path, cache: Path
) -> None:
    data = bytearray((packed / SHARD).read_bytes())
    data[len(data) // 2] ^= 1
    upstream.objects[f"/photos/{SHARD}"] = bytes(data)
    with serving(upstream, cache) as url:
        reply = request(url, f"/data/photos/{SHARD}")
    assert reply.status == 500
    assert b"does not match the checksum in its index: it is damaged at the upstream" in reply.body
    assert not any(path.stat().st_size > len(data) for path in cache.glob("*/*"))


def test_while_the_upstream_is_down_hits_are_served_and_misses_are_503(
    upstream: BadServer, packed: Path, cache: Path
) -> None:
    data = (packed / SHARD).read_bytes()
    with serving(upstream, cache) as url:
        assert request(url, f"/data/photos/{SHARD}").body == data
        upstream.answers.extend([DOWN] * 10_000)
        assert request(url, f"/data/photos/{SHARD}").body == data
        reply = request(url, "/data/photos/shard-000001.tar")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
        assert upstream.url.encode() not in reply.body
    with serving(upstream, cache) as url:  # started while it is down
        assert request(url, f"/data/photos/{SHARD}").body == data
        upstream.answers.clear()
        assert request(url, "/data/photos/shard-000001.tar").body == (packed / "shard-000001.tar").read_bytes()


def test_a_new_version_at_the_upstream_is_served(
    upstream: BadServer, packed: Path, few: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "REFRESH_SECONDS", 0.1)
    with serving(upstream, cache) as url:
        content_of(packed, url)
        upstream.objects = {f"/photos/{path.name}": path.read_bytes() for path in few.iterdir()}
        upstream.tag = '"two"'
        new = (few / "manifest.json").read_bytes()
        wait_for(lambda: request(url, "/data/photos/manifest.json").body == new)
        content_of(few, url)


def test_a_shard_that_is_repaired_at_the_upstream_is_served(upstream: BadServer, packed: Path, cache: Path) -> None:
    path = f"/photos/{SHARD}"
    data = upstream.objects[path]
    with serving(upstream, cache) as url:
        upstream.objects[path] = data[:512] + bytes([data[512] ^ 1]) + data[513:]
        assert request(url, f"/data{path}").status == 500
        upstream.objects[path], upstream.tag = data, '"two"'
        assert request(url, f"/data{path}").body == data


def test_a_full_cache_is_passed_through(upstream: BadServer, packed: Path, cache: Path) -> None:
    with serving(upstream, cache, cache_bytes="200kB") as url:
        content_of(packed, url)


ON_A_SMALL_DISK = """
import os, sys, mounts
mounts.enter()
disk, free = sys.argv[1], int(sys.argv[2])
mounts.make_small(disk, 4000)
with open(f"{disk}/other", "wb") as file:
    file.write(bytes(4_096_000 - free))
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.parametrize("free", [0, 3_000_000])
@pytest.mark.torture
def test_a_full_disk_below_the_cache_is_passed_through(
    upstream: BadServer, packed: Path, tmp_path: Path, can_mount: None, free: int
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = ("-c", ON_A_SMALL_DISK, disk, str(free))
    env = {"PYTHONPATH": f"{Path(mounts.__file__).parent}{os.pathsep}{Path(wt.__file__).parents[1]}"}
    arguments = ("--upstream", f"{upstream.url}/photos", "--cache-dir", disk / "cache")
    with program(*arguments, prefix=prefix, env=env) as running:
        for _ in range(2):
            content_of(packed, running.url)
    size = sum(path.stat().st_size for path in packed.glob("*.tar"))
    assert 2 * size - free <= fetched(upstream) <= 2 * size - free // 2
    (warning,) = running.errors.splitlines()
    assert "No space left on device" in warning


def test_the_cache_stays_below_its_limit(upstream: BadServer, packed: Path, cache: Path) -> None:
    limit, sizes, stop = 2_500_000, [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            total = 0
            for path in cache.glob("*/*"):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    total += min(status.st_size, status.st_blocks * 512) if path.name != "url" else 0
            sizes.append(total)

    thread = threading.Thread(target=sample)
    thread.start()
    with serving(upstream, cache, cache_bytes=limit) as url:
        for _ in range(2):
            content_of(packed, url)
    stop.set()
    thread.join()
    assert 0 < max(sizes) <= limit


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.torture)])
def test_a_killed_service_sends_no_wrong_byte_and_stores_none(
    upstream: BadServer, packed: Path, cache: Path, kills: int
) -> None:
    port = 0
    for number in range(kills):
        arguments = ["--upstream", f"{upstream.url}/photos", "--cache-dir", cache, "--cache-bytes", "3MB"]
        with program(*arguments, port=port) as running, ThreadPoolExecutor(4) as pool:
            port = urlsplit(running.url).port or 0

            def read(_: int, url: str = running.url) -> None:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    content_of(packed, url)

            futures = [pool.submit(read, n) for n in range(4)]
            time.sleep(0.02 * (number % 10))
            running.kill()
            for future in futures:
                future.result()
    with serving(upstream, cache) as url:
        content_of(packed, url)


def test_a_small_range_of_a_large_cold_shard_costs_a_few_blocks(cache: Path, tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "photos" / "shard-%06d.tar", verbose=0) as writer:
        for number in range(600):
            writer.write({"__key__": f"{number:03}", "bin": bytes([number % 256]) * 100_000})
    server = BadServer({f"/photos/{path.name}": path.read_bytes() for path in (tmp_path / "photos").iterdir()})
    with server.running(), serving(server, cache) as url:
        for start in (0, 29_000_000):
            before = fetched(server, "")
            assert (
                len(request(url, f"/data/photos/{SHARD}", Range=f"bytes={start}-{start + 1_048_575}").body) == 1 << 20
            )
            assert fetched(server, "") - before <= 8 << 20


def test_the_loader_reads_it(upstream: BadServer, packed: Path, cache: Path) -> None:
    def batches(source: str | Path) -> list[list[str]]:
        options = {"batch_size": 32, "shuffle": True, "fields": ("image", "__key__"), "num_workers": 1}
        with wt.make_loader(source, view=wt.CenterCrop(16, resize=20), **options) as loader:
            return [list(batch.key) for batch in loader]

    with serving(upstream, cache) as url:
        assert batches(f"{url}/data/photos") == batches(packed)


def test_two_upstreams_of_one_name_are_refused() -> None:
    with pytest.raises(OptionError, match="have the same name"):
        UpstreamLibrary(["http://a/x", "http://b/x/"], RemoteOptions.of(), None)  # type: ignore[arg-type]


def test_nothing_to_serve_and_a_path_as_upstream_are_refused() -> None:
    with pytest.raises(OptionError, match="nothing to serve"):
        ServeOptions(roots=()).check()
    with pytest.raises(OptionError, match="is not a URL"):
        ServeOptions(roots=(), upstreams=("photos",)).check()
