"""The service over HTTP: files, ranges, access, limits, and clients that read it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import fsspec
import pytest
import webdataset
import xxhash
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import Running, copy_of, in_thread, program, request
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import OptionError, StoreError
from wds_tools.service.access import Route
from wds_tools.service.app import LIBRARY, application
from wds_tools.service.config import Limits, ServeOptions
from wds_tools.service.metrics import Metrics
from wds_tools.service.pages.helpers import HelperError, HelperPool
from wds_tools.service.process import bind
from wds_tools.service.tokens import create_token, revoke_token

SHARD = "shard-000000.tar"
VIEW = wt.CenterCrop(32, resize=40)


@pytest.fixture(scope="module")
def root(few: Path, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two datasets, and files that must not be served."""
    root = tmp_path_factory.mktemp("root")
    copy_of(few, root / "few")
    copy_of(packed, root / "deep er" / "photos")
    (root / "secret.txt").write_text("secret")
    (root / "few" / "other.txt").write_text("secret")
    (root / "few" / "link.tar").symlink_to("/etc/passwd")
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    with program(root) as running:
        yield running


@pytest.fixture(scope="module")
def data(root: Path) -> bytes:
    return (root / "few" / SHARD).read_bytes()


def test_a_dataset_of_the_service_is_resharded(server: Running, root: Path, tmp_path: Path) -> None:
    assert wt.reshard(f"{server.url}/data/few", tmp_path / "new", shard_bytes="100kB").packed == 40
    old, new = (
        {sample["__key__"]: sample["jpg"] for sample in webdataset.WebDataset(tars, shardshuffle=False)}
        for folder in (root / "few", tmp_path / "new")
        if (tars := sorted(map(str, folder.glob("shard-*.tar"))))
    )
    assert sorted(old.values()) == sorted(new.values())


def test_a_file_has_its_bytes_and_the_checksum_of_the_manifest_as_its_etag(server: Running, data: bytes) -> None:
    reply = request(server.url, f"/data/few/{SHARD}")
    assert (reply.status, reply.body) == (200, data)
    assert reply.headers["ETag"] == f'"{xxhash.xxh3_128_hexdigest(data)}"'
    assert reply.headers["Accept-Ranges"] == "bytes"
    assert reply.headers["Content-Type"] == "application/x-tar"
    assert reply.headers["Content-Disposition"] == "attachment"


def test_every_file_of_a_dataset_is_served(server: Running, root: Path) -> None:
    for path in (root / "deep er" / "photos").iterdir():
        if path.name != "README.md":
            reply = request(server.url, f"/data/deep%20er/photos/{path.name}")
            assert (reply.status, reply.body) == (200, path.read_bytes())


@pytest.mark.parametrize(
    ("headers", "status", "part", "content_range"),
    [
        ({"Range": "bytes=100-299"}, 206, slice(100, 300), "bytes 100-299/{}"),
        ({"Range": "bytes=-10"}, 206, slice(-10, None), None),
        ({"Range": "bytes=0-9", "If-Range": "{etag}"}, 206, slice(0, 10), None),
        ({"Range": "bytes=0-9", "If-Range": '"other"'}, 200, slice(None), None),
        ({"Range": "bytes=0-9,20-29"}, 200, slice(None), None),
        ({"Range": "bytes=0-9", "If-Match": "{etag}"}, 206, slice(0, 10), None),
        ({"Range": "bytes=99999999-"}, 416, None, "bytes */{}"),
        ({"If-Match": '"other"', "Range": "bytes=0-9"}, 412, None, None),
    ],
)
def test_range_and_conditional_requests_are_answered(
    server: Running, data: bytes, headers: dict[str, str], status: int, part: slice | None, content_range: str | None
) -> None:
    etag = f'"{xxhash.xxh3_128_hexdigest(data)}"'
    reply = request(server.url, f"/data/few/{SHARD}", **{k: v.format(etag=etag) for k, v in headers.items()})
    assert reply.status == status
    assert reply.headers["ETag"] == etag
    if part is not None:
        assert reply.body == data[part]
    if content_range is not None:
        assert reply.headers["Content-Range"] == content_range.format(len(data))


def test_an_unchanged_file_is_not_sent_again(server: Running, data: bytes) -> None:
    reply = request(server.url, f"/data/few/{SHARD}", If_None_Match=f'"{xxhash.xxh3_128_hexdigest(data)}"')
    assert (reply.status, reply.body) == (304, b"")


def test_head_has_the_headers_of_get_and_no_body(server: Running, data: bytes) -> None:
    reply = request(server.url, f"/data/few/{SHARD}", "HEAD", Range="bytes=0-9")
    assert (reply.status, reply.body, reply.headers["Content-Length"]) == (200, b"", str(len(data)))


def test_a_connection_is_kept_for_many_requests(server: Running, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(server.url).port)) as connection:
        for start in (0, 7, 500):
            head = f"GET /data/few/{SHARD} HTTP/1.1\r\nHost: localhost\r\nRange: bytes={start}-{start + 99}\r\n\r\n"
            connection.sendall(head.encode())
            received = b""
            while len(received.partition(b"\r\n\r\n")[2]) < 100:
                received += connection.recv(4096)
            assert received.partition(b"\r\n\r\n")[2] == data[start : start + 100]


def test_the_catalogue_lists_the_datasets(server: Running, root: Path) -> None:
    found = json.loads(request(server.url, "/api/datasets").body)
    assert [entry["name"] for entry in found["datasets"]] == ["deep er/photos", "few"]
    assert found["problems"] == []
    few = found["datasets"][1]
    assert (few["samples"], few["classes"], few["url"]) == (40, 8, "/data/few/")
    manifest = request(server.url, few["url"] + "manifest.json")
    assert manifest.body == (root / "few" / "manifest.json").read_bytes()
    assert manifest.headers["ETag"] == few["etag"]


def test_a_folder_lists_its_files_as_links(server: Running) -> None:
    reply = request(server.url, "/data/few/")
    assert reply.headers["Content-Type"].startswith("text/html")
    assert b'<a href="shard-000000.tar">' in reply.body
    assert b"other.txt" not in reply.body
    assert b"link.tar" not in reply.body


HOSTILE = [
    "/data/few/other.txt",
    "/data/few/link.tar",
    "/data/few/README.md",
    "/data/secret.txt",
    "/data/few/../secret.txt",
    "/data/few/%2e%2e/secret.txt",
    "/data/few/..%2fsecret.txt",
    "/data/few/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/data/few%2fshard-000000.tar",
    "/data/few/shard-000000.tar%00",
    "/data/few/shard-000000.tar%00.txt",
    "/data/few//shard-000000.tar",
    "/data/./few/shard-000000.tar",
    "/data//etc/passwd",
    "/data/%2fetc/passwd",
    "/data/few/" + "a" * 7000,
    "/data/few/%ff%fe",
    "/data/few/..\\..\\secret.txt",
    "/data/",
    "/data",
    "/data/few",
    "/data/none/",
    "/etc/passwd",
    "/static/../secret.txt",
]


def test_a_path_that_is_not_a_file_of_a_dataset_is_not_found(server: Running) -> None:
    for path in HOSTILE:
        reply = request(server.url, path)
        assert reply.status == 404, path
        assert b"secret" not in reply.body, path
        assert b"root:" not in reply.body, path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.sampled_from(["few", "..", ".", "%2e%2e", "%2f", "%00", "etc", "passwd", "secret.txt", "%5c", ""])
        | st.text(st.characters(codec="utf-8"), max_size=10).map(quote),
        max_size=8,
    )
)
def test_no_path_reaches_a_file_outside_of_the_manifests(server: Running, parts: list[str]) -> None:
    reply = request(server.url, "/data/" + "/".join(parts))
    assert reply.status in (200, 404)
    assert b"secret" not in reply.body
    assert b"root:" not in reply.body
    if reply.status == 200:
        assert parts == ["few", ""]


@pytest.mark.parametrize("path", ["/healthz", "/api/datasets", f"/data/few/{SHARD}", "/data/few/", "/none", "/metrics"])
def test_every_answer_has_the_security_headers(server: Running, path: str) -> None:
    headers = request(server.url, path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"] == "wds-tools"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:8080", "10.0.0.7", socket.gethostname()])
def test_a_name_of_this_machine_is_accepted_as_the_host(server: Running, host: str) -> None:
    assert request(server.url, "/healthz", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b", "["])
def test_another_host_is_refused(server: Running, host: str) -> None:
    assert request(server.url, "/api/datasets", Host=host).status in (400, 421)


def test_a_further_name_is_accepted_if_the_operator_allows_it(root: Path) -> None:
    with in_thread(root, host_names=("data.example",)) as url:
        assert request(url, "/healthz", Host="data.example").status == 200
        assert request(url, "/healthz", Host="other.example").status == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({}, 405),  # no route accepts POST yet
    ],
)
def test_a_page_of_another_site_cannot_post(server: Running, headers: dict[str, str], status: int) -> None:
    assert request(server.url, "/api/datasets", "POST", b"{}", **headers).status == status


def test_long_headers_are_refused(server: Running) -> None:
    assert request(server.url, "/healthz", **{f"X-{n}": "a" * 1000 for n in range(7)}).status == 200
    assert request(server.url, "/healthz", **{f"X-{n}": "a" * 1000 for n in range(9)}).status == 431
    assert request(server.url, "/healthz", X_Long="a" * 20_000).status == 400


def test_metrics_have_no_label_that_a_client_chooses(server: Running) -> None:
    for path in ("/data/nonsense/a.tar", "/nonsense", "/data/few/" + SHARD):
        request(server.url, path)
    text = request(server.url, "/metrics").body.decode()
    assert "nonsense" not in text
    assert 'wds_tools_requests_total{route="other",status="404"}' in text
    assert "wds_tools_datasets 2.0" in text
    sent = [float(line.split()[1]) for line in text.splitlines() if line.startswith("wds_tools_sent_bytes_total ")]
    assert sent[0] > 0


# Readers


def batches(source: str | Path, **options: object) -> list[tuple[list[str], list[int]]]:
    """Return the keys, and a sum of the pixels, of each image of an epoch."""
    with wt.make_loader(
        source, batch_size=16, shuffle=True, fields=("image", "__key__"), view=VIEW, num_workers=1, **options
    ) as loader:
        return [(list(batch.key), batch.image.sum((1, 2, 3)).tolist()) for batch in loader]


def test_the_loader_reads_the_same_batches_as_from_the_folder(server: Running, root: Path) -> None:
    assert batches(f"{server.url}/data/few") == batches(root / "few")


def test_verify_reads_it(server: Running) -> None:
    assert wt.verify(f"{server.url}/data/few").ok


def test_fsspec_reads_and_lists_it(server: Running, data: bytes) -> None:
    system = fsspec.filesystem("http", skip_instance_cache=True)
    url = f"{server.url}/data/few/{SHARD}"
    assert system.cat_file(url, 10, 700) == data[10:700]
    assert system.info(url)["size"] == len(data)
    with system.open(url, block_size=4096) as file:
        file.seek(-100, os.SEEK_END)
        assert file.read() == data[-100:]
    assert url in system.glob(f"{server.url}/data/few/*.tar")


def test_webdataset_reads_it(server: Running, root: Path) -> None:
    shards = sorted(path.name for path in (root / "few").glob("shard-*.tar"))
    reader = f"{sys.executable} -c \"import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen('%s').read())\""
    urls = [f"pipe:{reader % f'{server.url}/data/few/{name}'}" for name in shards]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sum(1 for _ in webdataset.WebDataset(urls, shardshuffle=False)) == 40


# Changes


def test_a_new_dataset_and_a_new_version_of_one_are_found_within_two_scans(
    few: Path, packed: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with in_thread(root, limits=Limits(scan_seconds=0.1)) as url:
        assert request(url, "/data/new/manifest.json").status == 404
        copy_of(few, tmp_path / "ready")
        (tmp_path / "ready").rename(root / "new")
        wait_for(lambda: request(url, "/data/new/manifest.json").status == 200)
        (root / "new").rename(tmp_path / "old")
        copy_of(packed, root / "new")
        manifest = (packed / "manifest.json").read_bytes()
        wait_for(lambda: request(url, "/data/new/manifest.json").body == manifest)
        reply = request(url, "/data/new/manifest.json")
        assert reply.headers["ETag"] == f'"{xxhash.xxh3_128_hexdigest(reply.body)}"'
    assert 2 * Limits().scan_seconds < 5


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (lambda path: path.write_bytes(b"short"), "it has 5 bytes, but its manifest records"),
        (lambda _: None, "it cannot be opened: No such file or directory"),
    ],
    ids=["truncated", "missing"],
)
@pytest.mark.torture_except("truncated")
def test_a_damaged_shard_is_reported_by_the_client_and_no_byte_of_it_is_sent(
    few: Path, tmp_path: Path, damage: Callable[[Path], object], fact: str
) -> None:
    copy_of(few, tmp_path / "few")
    (tmp_path / "few" / SHARD).unlink()
    damage(tmp_path / "few" / SHARD)
    with in_thread(tmp_path) as url:
        reply = request(url, f"/data/few/{SHARD}")
        assert reply.status == 500
        error = json.loads(reply.body)["error"]
        assert fact in error["message"]
        assert error["reason"] == "damaged"
        assert str(tmp_path).encode() not in reply.body
        with pytest.raises(StoreError, match=rf"damaged on the server: {fact}.* 1 attempt .*repair .* on the server"):
            batches(f"{url}/data/few")


@pytest.mark.parametrize("served", [True, False], ids=["service", "folder"])
@pytest.mark.parametrize("begun", [True, False], ids=["after a batch", "before"])
@pytest.mark.torture_except("after a batch-service", "before-folder")
def test_a_dataset_that_is_replaced_under_a_loader_is_reported_as_such(
    few: Path, packed: Path, tmp_path: Path, served: bool, begun: bool
) -> None:
    folder = copy_of(packed, tmp_path / "root" / "set")
    new = copy_of(few, tmp_path / "new")
    with in_thread(tmp_path / "root") as url:
        source = f"{url}/data/set" if served else folder
        with wt.make_loader(
            source, batch_size=16, view=VIEW, num_workers=0, cache_dir=tmp_path / "cache", read_ahead_bytes="100kB"
        ) as loader:
            batches = iter(loader)
            if begun:
                next(batches)
            folder.rename(tmp_path / "old")
            new.rename(folder)  # at once: the service looks for datasets meanwhile
            with pytest.raises(StoreError, match=r"set was replaced by another version of the dataset.*start again"):
                list(batches)


def test_the_files_of_a_removed_dataset_are_closed(few: Path, tmp_path: Path) -> None:
    copy_of(few, tmp_path / "root" / "few")
    with in_thread(tmp_path / "root", limits=Limits(scan_seconds=0.1)) as url:
        assert request(url, f"/data/few/{SHARD}").status == 200
        path = tmp_path / "root" / "few" / SHARD

        def is_open() -> bool:
            links = []
            for link in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(OSError):
                    links.append(str(link.readlink()))
            return any(link.startswith(str(path)) for link in links)

        assert is_open()
        (tmp_path / "root" / "few").rename(tmp_path / "away")
        path = tmp_path / "away" / SHARD
        wait_for(lambda: not is_open())


def test_a_shard_that_was_replaced_or_removed_while_it_was_served_is_noticed(few: Path, tmp_path: Path) -> None:
    folder = copy_of(few, tmp_path / "root" / "few")
    data = (folder / SHARD).read_bytes()

    def put(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(folder / SHARD)

    put(bytes([data[0] ^ 1]) + data[1:])
    with in_thread(tmp_path / "root", limits=Limits(scan_seconds=0.1)) as url:
        assert request(url, f"/data/few/{SHARD}").body != data
        put(data)  # repaired: the manifest is the same
        wait_for(lambda: request(url, f"/data/few/{SHARD}").body == data)
        (folder / SHARD).unlink()
        wait_for(lambda: request(url, f"/data/few/{SHARD}").status == 500)
        assert b"1 problem" in request(url, "/datasets/few?tab=health").body
        put(data)
        assert request(url, f"/data/few/{SHARD}").body == data
        os.truncate(folder / SHARD, 1000)
        wait_for(lambda: b"it has 1,000 bytes" in request(url, "/datasets/few?tab=health").body)


# Tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def application_of(root: Path) -> web.Application:
    """Return the application, which is not started."""
    app = application(ServeOptions(roots=(root,)), Metrics())
    app[LIBRARY].close()
    return app


NO_RUN = "0" * 32  # id of a run that does not exist; test_runs.py has those that do


@pytest.fixture(scope="module")
def routes(root: Path) -> list[tuple[str, str, bool]]:
    """Return method and path of each route, about the dataset few if it is about one; and whether it is."""
    values = {"sample": "0", "field": "jpg", "name": "style.css", "id": NO_RUN}
    found = []
    for route in application_of(root).router.routes():
        assert route.resource
        pattern = route.resource.canonical
        dataset = f"few/{SHARD}" if pattern.startswith("/data/") else "few"
        found.append((route.method, pattern.format(**values, path=dataset), "{path}" in pattern))
    return found


@pytest.fixture(scope="module")
def guarded(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.json"
    _, every = create_token(tokens)
    _, other = create_token(tokens, datasets=["deep*"])
    _, own = create_token(tokens, datasets=["fe*"])

    async def ask(self: HelperPool, message: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self.kind == "batches":  # importing torch takes seconds
            raise HelperError("not started")
        return await original(self, message, payload)

    original = HelperPool.ask
    with pytest.MonkeyPatch.context() as patch, in_thread(root, token_file=tokens) as url:
        patch.setattr(HelperPool, "ask", ask)
        yield Guarded(url, *(f"Bearer {secret}" for secret in (every, other, own)))


class Guarded(NamedTuple):
    """A service with tokens, and headers: for all datasets, for other ones than few, and for few."""

    url: str
    every: str
    other: str
    own: str


def test_every_route_but_the_probe_needs_a_token(guarded: Guarded, routes: list[tuple[str, str, bool]]) -> None:
    paths = {*(path for _, path, _ in routes), "/data/few/", "/data/none/a", "/none", "/api/x"} - {"/healthz"}
    assert len(paths) >= 14
    for path, method in itertools.product(sorted(paths), ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic d3Jvbmc="}):
            reply = request(guarded.url, path, method, **headers)
            assert reply.status == 401, (path, method)
            assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    assert request(guarded.url, "/healthz").body == b"ok\n"


def test_no_route_shows_a_dataset_to_a_token_for_another_one(
    guarded: Guarded, routes: list[tuple[str, str, bool]]
) -> None:
    for method, path, is_about_a_dataset in routes:
        refused = request(guarded.url, path, method, Authorization=guarded.other)
        assert b"few" not in refused.body, path
        for allowed in (guarded.every, guarded.own) if is_about_a_dataset else (guarded.every,):
            status = request(guarded.url, path, method, Authorization=allowed).status
            assert status == 404 if NO_RUN in path else status in (200, 415), path  # 415: a report
        if is_about_a_dataset:
            unknown = request(guarded.url, path.replace("few", "none"), method, Authorization=guarded.other)
            assert (refused.status, refused.body) == (403, unknown.body), path


def test_a_service_with_a_route_that_does_not_declare_what_it_needs_does_not_start(root: Path) -> None:
    app = application_of(root)

    async def show_everything(_request: web.Request) -> web.Response:
        return web.Response(text="everything")

    app.router.add_get("/new", show_everything, name="new")
    with pytest.raises(RuntimeError, match=r"/new.* does not declare what a request needs: add it as a `Route`"):
        asyncio.run(web.AppRunner(app).setup())
    with pytest.raises(TypeError, match="access"):
        Route("GET", "/new", show_everything, "new")  # type: ignore[call-arg]


def test_a_token_shows_only_its_datasets_and_not_whether_others_exist(guarded: Guarded) -> None:
    secret = guarded.own.removeprefix("Bearer ")
    bearer = {"Authorization": guarded.own}
    basic = {"Authorization": "Basic " + base64.b64encode(f"me:{secret}".encode()).decode()}
    for headers in (bearer, basic):
        assert request(guarded.url, f"/data/few/{SHARD}", **headers).status == 200
        assert request(guarded.url, "/data/deep%20er/photos/manifest.json", **headers).status == 403
        assert request(guarded.url, "/data/none/manifest.json", **headers).status == 403
        assert request(guarded.url, "/data/feather/manifest.json", **headers).status == 404
        assert request(guarded.url, "/metrics", **headers).status == 403
        found = json.loads(request(guarded.url, "/api/datasets", **headers).body)
        assert [entry["name"] for entry in found["datasets"]] == ["few"]
    assert request(guarded.url, f"/data/few/{SHARD}?token={secret}").status == 401


def test_a_revoked_token_is_refused_soon(root: Path, tokens: Path) -> None:
    token, secret = create_token(tokens)
    with in_thread(root, token_file=tokens) as url:
        assert request(url, "/api/datasets", Authorization=f"Bearer {secret}").status == 200
        revoke_token(tokens, token.id)
        wait_for(lambda: request(url, "/api/datasets", Authorization=f"Bearer {secret}").status == 401)


def test_the_access_log_names_token_dataset_range_bytes_and_status_and_never_the_token(
    root: Path, large: Path, tokens: Path, data: bytes, tmp_path: Path
) -> None:
    _, secret = create_token(tokens, name="ann")
    _, other = create_token(tokens, name="bob", datasets=["none"])
    path, ann = tmp_path / "access.jsonl", {"Authorization": f"Bearer {secret}"}
    with in_thread(root, large, token_file=tokens, access_log=path) as url:
        request(url, f"/data/few/{SHARD}", Range="bytes=100-299", **ann)
        request(url, f"/data/few/{SHARD}", "HEAD", **ann)
        path.write_bytes(b"")  # as logrotate does with copytruncate
        request(url, f"/data/few/{SHARD}", **ann)
        request(url, f"/data/few/{SHARD}", Authorization=f"Bearer {other}")
        request(url, f"/data/few/{SHARD}", Authorization="Bearer wdst_wrong")
        request(url, f"/data/few/{secret}?token={secret}", Range=secret)
        request(url, "/datasets/deep%20er/photos/samples/3", **ann)
        request(url, "/healthz")
        with connect(url, buffer_bytes=4096) as connection:
            head = f"GET /data/large/{SHARD} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
            connection.sendall(head.encode())
            connection.recv(4096)
        wait_for(lambda: path.read_text().count("\n") == 7)
        text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    found = [tuple(line[key] for key in ("token", "dataset", "file", "status")) for line in lines]
    assert found == [
        ("ann", "few", SHARD, 200),
        ("bob", "few", SHARD, 403),
        (None, "few", SHARD, 401),
        (None, "few", "wdst_***", 401),
        ("ann", "deep er/photos", "samples/3", 200),
        (None, None, None, 200),
        ("ann", "large", SHARD, 200),
    ]
    assert (lines[0]["bytes"], lines[0]["range"], lines[0]["client"]) == (len(data), None, "127.0.0.1")
    assert 4096 < lines[-1]["bytes"] < (large / "large" / SHARD).stat().st_size  # the client went away
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo
    assert secret not in text


def test_an_access_log_that_cannot_be_written_is_named(root: Path) -> None:
    message = "^the access log / cannot be written: Is a directory; name another file$"
    with pytest.raises(OptionError, match=message):
        application(ServeOptions(roots=(root,), access_log=Path("/")), Metrics())


def test_the_access_log_goes_to_standard_output_too_and_counts_ranges(root: Path) -> None:
    with program(root, "--access-log", "-") as running:
        request(running.url, f"/data/few/{SHARD}", Range="bytes=100-299")
        request(running.url, f"/data/few/{SHARD}", "HEAD")
        lines = [json.loads(running.output.readline()) for _ in range(2)]
    assert [(line["method"], line["range"], line["status"], line["bytes"]) for line in lines] == [
        ("GET", "bytes=100-299", 206, 200),
        ("HEAD", None, 200, 0),
    ]


def readable(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.read_bytes()
        return True
    return False


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_another_address_than_loopback_needs_a_token_file(root: Path, host: str) -> None:
    with pytest.raises(OptionError, match="create one with `wds-tools token create --token-file FILE`"):
        ServeOptions(roots=(root,), host=host).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70_000}, "port 70000 is not a TCP port"),
        ({"processes": 0}, "processes=0; allowed"),
        ({"tls_key": Path("key.pem")}, "--tls-key needs --tls-cert"),
        ({"tls_cert": Path("none.pem")}, "are not a certificate"),
        ({"token_file": Path("none.json")}, "none.json does not exist"),
    ],
)
def test_invalid_options_are_refused(root: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ServeOptions(roots=(root,), **options).check()  # type: ignore[arg-type]


def test_a_port_in_use_is_named(root: Path, server: Running) -> None:
    port = urlsplit(server.url).port
    assert port
    message = f"^cannot listen on 127.0.0.1 port {port}: Address already in use; choose another --port or --host$"
    with pytest.raises(OptionError, match=message), bind(ServeOptions(roots=(root,), port=port)):
        pass


# Slow and idle clients


def connect(url: str, *, buffer_bytes: int = 0) -> socket.socket:
    connection = socket.socket()
    if buffer_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    connection.settimeout(30)
    try:
        connection.connect(("127.0.0.1", urlsplit(url).port))
    except OSError:
        connection.close()
        raise
    return connection


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: local"])
def test_a_connection_without_a_complete_request_is_closed(root: Path, sent: bytes) -> None:
    with in_thread(root, limits=Limits(idle_seconds=0.5)) as url:
        started = time.monotonic()
        with connect(url) as connection:
            connection.sendall(sent)
            assert connection.recv(100) == b""
        assert time.monotonic() - started > 0.4


def test_an_idle_connection_is_closed(root: Path) -> None:
    def is_answered_and_closed() -> bool:
        """Return False if a busy machine delayed the request itself for longer than the limit."""
        with connect(url) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(4096).endswith(b"ok\n") and connection.recv(100) == b""
        return False

    with in_thread(root, limits=Limits(idle_seconds=0.5)) as url:
        wait_for(is_answered_and_closed)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 20), b""))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a dataset with a shard that no socket buffer holds."""
    root = tmp_path_factory.mktemp("large")
    with wt.ShardWriter(root / "large" / "shard-%06d.tar", verbose=0) as writer:
        for number in range(24):
            writer.write({"__key__": f"{number:03}", "bin": bytes([number]) * (1 << 20)})
    return root


def test_a_client_that_receives_nothing_is_disconnected(large: Path) -> None:
    limits = Limits(window_seconds=0.5)
    with in_thread(large, limits=limits) as url, connect(url, buffer_bytes=4096) as connection:
        connection.sendall(f"GET /data/large/{SHARD} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_for(lambda: b'cut_connections_total{reason="slow"} 1.0' in request(url, "/metrics").body)
        with pytest.raises(ConnectionResetError):
            read_all(connection)


@pytest.mark.torture
def test_a_slow_client_that_is_fast_enough_gets_everything(large: Path) -> None:
    data = (large / "large" / SHARD).read_bytes()

    def receive_slowly() -> tuple[bytes, float]:
        """Return what a client got that receives 25 MB in a second, and its longest pause."""
        received, longest, last = bytearray(), 0.0, time.monotonic()
        with connect(url, buffer_bytes=1 << 16) as connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(f"GET /data/large/{SHARD} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            while part := connection.recv(1 << 18):
                received += part
                time.sleep(0.01)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return bytes(received).partition(b"\r\n\r\n")[2], longest

    with in_thread(large, limits=Limits(window_seconds=0.5, window_bytes=1 << 16)) as url:
        content, pause = receive_slowly()
        while content != data and pause > 0.4:  # a busy machine has stopped the client for as long as a window
            content, pause = receive_slowly()
    assert content == data


def test_a_range_that_does_not_fit_into_the_buffers_is_complete(large: Path) -> None:
    start, stop = 512 << 10, 4608 << 10
    head = f"GET /data/large/{SHARD} HTTP/1.0\r\nHost: localhost\r\nRange: bytes={start}-{stop - 1}\r\n\r\n"
    with in_thread(large) as url, connect(url, buffer_bytes=4096) as connection:
        connection.sendall(head.encode())
        assert connection.recv(12) == b"HTTP/1.1 206"
        content = read_all(connection).partition(b"\r\n\r\n")[2]
    assert content == (large / "large" / SHARD).read_bytes()[start:stop]


def test_a_client_that_goes_away_is_counted_and_harms_nobody(large: Path) -> None:
    with in_thread(large) as url:
        for _ in range(5):
            with connect(url, buffer_bytes=4096) as connection:
                connection.sendall(f"GET /data/large/{SHARD} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                connection.recv(4096)
        wait_for(lambda: b'cut_connections_total{reason="broken"} 5.0' in request(url, "/metrics").body)
        wait_for(lambda: b"wds_tools_connections 1.0" in request(url, "/metrics").body)


def test_a_new_connection_takes_the_slot_of_the_longest_idle_one(root: Path) -> None:
    with in_thread(root, limits=Limits(connections_per_address=3)) as url, contextlib.ExitStack() as stack:
        connections = []
        for _ in range(4):
            connections.append(stack.enter_context(connect(url)))
            connections[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connections[-1].recv(4096).endswith(b"ok\n")
        with contextlib.suppress(ConnectionResetError):
            assert connections[0].recv(100) == b""
        connections[1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connections[1].recv(4096).endswith(b"ok\n")


def test_a_connection_is_refused_if_all_others_are_busy(large: Path) -> None:
    with in_thread(large, limits=Limits(connections_per_address=2)) as url, contextlib.ExitStack() as stack:
        for _ in range(2):
            busy = stack.enter_context(connect(url, buffer_bytes=4096))
            busy.sendall(f"GET /data/large/{SHARD} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert busy.recv(100)
        with connect(url) as refused, contextlib.suppress(ConnectionResetError):
            assert refused.recv(100) == b""


def test_a_folder_of_images_is_served_with_a_warning_that_names_the_remedy(photos: Path) -> None:
    with program(photos) as running:
        request(running.url, "/healthz")
    (warning,) = running.errors.splitlines()
    assert warning.startswith(f"warning: no dataset was found below {photos}. A dataset is a folder with manifest.json")
    assert "`wds-tools pack IMAGES DATASET`" in warning


# Processes, TLS, the end


def served_by(running: Running) -> list[int]:
    """Return the processes of a service that answer requests."""
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline") for pid in children}
    return [pid for pid, path in lines.items() if readable(path) and b"spawn_main" in path.read_bytes()]


def test_a_process_that_dies_is_started_again_a_stop_is_quiet_and_no_output_or_command_line_has_a_token(
    root: Path, tokens: Path
) -> None:
    _, secret = create_token(tokens)
    with program("--token-file", tokens, "--processes", "2", root) as running:
        served = served_by(running)
        assert len(served) == 2
        os.kill(served[0], signal.SIGKILL)
        assert "ended with code -9: started again" in (message := running.messages.readline())
        for _ in range(20):
            assert request(running.url, "/healthz").status == 200
        wait_for(lambda: set(served_by(running)) - set(served))
        (new,) = set(served_by(running)) - set(served)
        secret_headers = {"Authorization": f"Bearer {secret}"}
        assert request(running.url, f"/data/few/{SHARD}", **secret_headers).status == 200
        replies = [request(running.url, path, **secret_headers) for path in ("/metrics", "/none", "/api/datasets")]
        with socket.create_connection(("127.0.0.1", urlsplit(running.url).port)) as connection:  # a malformed request
            connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {secret}\x00\r\n\r\n".encode())
            replies_of_malformed = connection.recv(4096)
        assert replies_of_malformed.startswith(b"HTTP/1.0 400")
        assert secret.encode() not in replies_of_malformed
        assert not any(secret.encode() in reply.body for reply in replies)
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
        assert not any(secret.encode() in line for line in lines)
        for pid in (running.process.pid, new):  # as Ctrl-C does in a terminal
            with contextlib.suppress(ProcessLookupError):  # the first process may have ended the other one already
                os.kill(pid, signal.SIGINT)
        assert running.end() == (0, "stopped\n", "")
    assert secret not in message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a certificate for 127.0.0.1 with its key, in one file."""
    return make_certificate(tmp_path_factory.mktemp("tls") / "cert.pem")


def make_certificate(path: Path) -> Path:
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    built = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(built.public_bytes(pem) + secret)
    return path


def test_the_loader_reads_over_tls(
    root: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, tokens: Path
) -> None:
    _, secret = create_token(tokens)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with in_thread(root, tls_cert=certificate, token_file=tokens) as url:
        assert url.startswith("https://")
        monkeypatch.setenv("WDS_TOOLS_TOKEN", f"{url}={secret}")
        assert batches(f"{url}/data/few") == batches(root / "few")


def test_a_plain_url_of_a_port_with_tls_is_an_error_at_once(root: Path, certificate: Path) -> None:
    with in_thread(root, tls_cert=certificate) as url:
        plain = f"{url.replace('https:', 'http:')}/data/photos"
        with pytest.raises(StoreError, match=r"the server speaks TLS at this port .*1 attempt.*write https:// instead"):
            wt.describe(plain)


def test_a_client_that_does_not_finish_the_tls_handshake_does_not_block_others(root: Path, certificate: Path) -> None:
    with in_thread(root, tls_cert=certificate) as url, connect(url), connect(url) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        context = ssl.create_default_context(cafile=str(certificate))
        with connect(url) as raw, context.wrap_socket(raw, server_hostname="localhost") as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = connection.recv(4096)
            while not received.endswith(b"ok\n"):
                received += connection.recv(4096)


def test_a_signal_ends_the_service_after_the_answers_that_have_begun(large: Path) -> None:
    data = (large / "large" / SHARD).read_bytes()
    with program(large) as running, connect(running.url, buffer_bytes=1 << 16) as connection:
        connection.sendall(f"GET /data/large/{SHARD} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        received = connection.recv(1 << 16)
        running.process.send_signal(signal.SIGINT)
        while part := connection.recv(1 << 20):
            received += part
        assert received.partition(b"\r\n\r\n")[2] == data
        assert running.end() == (0, "stopped\n", "")


# Kills


class Killer:
    """Kills a server again and again, and starts it on the same port."""

    def __init__(self, root: Path, kills: int, pause_seconds: float) -> None:
        self._root = root
        self._kills = kills
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self.kills = 0

    def __enter__(self) -> Killer:
        self._stack = contextlib.ExitStack()
        self._running = self._stack.enter_context(program(self._root))
        self.url = self._running.url
        self._thread = threading.Thread(target=self._main)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        self._stack.close()

    def wait_for(self, kills: int) -> None:
        """Wait until the server was killed this often."""
        wait_for(lambda: self.kills >= kills)

    def _main(self) -> None:
        port = urlsplit(self.url).port
        assert port is not None
        while self.kills < self._kills and not self._stop.wait(self._pause_seconds):
            self._running.kill()
            self.kills += 1
            self._running = self._stack.enter_context(program(self._root, port=port))


@pytest.mark.torture
@pytest.mark.parametrize("kills", [1, 20])
def test_a_server_that_is_killed_changes_no_batch(kills: int, root: Path, tmp_path: Path) -> None:
    expected = batches(root / "deep er" / "photos")
    with Killer(root, kills, 0.1) as killer:
        found = []
        with wt.make_loader(
            f"{killer.url}/data/deep%20er/photos",
            batch_size=16,
            shuffle=True,
            fields=("image", "__key__"),
            view=VIEW,
            num_workers=1,
            cache_dir=tmp_path / "cache",
            read_ahead_bytes="300kB",
        ) as loader:
            for batch in loader:
                found.append((list(batch.key), batch.image.sum((1, 2, 3)).tolist()))
                killer.wait_for(len(found) * kills // len(expected))
            assert loader.epoch_proof().ok
        assert killer.kills == kills
    assert found == expected
