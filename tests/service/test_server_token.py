"""WDS_TOOLS_TOKEN: sent to the server that it is for, and to no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from client_requests import client_of
from servers import program

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import NotADatasetError, OptionError, StoreError
from wds_tools.options import RemoteOptions, server_token
from wds_tools.service.tokens import create_token
from wds_tools.storage.requests.listing import find_object
from wds_tools.storage.requests.retry import RetryPolicy

SECRET = "wdst_sentinel-value"
POLICY = RetryPolicy(seconds=0.2)
pytestmark = pytest.mark.usefixtures("closed_clients")


class Server(ThreadingHTTPServer):
    """A server that keeps the headers of its requests, and may redirect or refuse them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str | None] = []
        self.redirect = ""
        self.status = 200
        self.body = b"hello"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))
        body = self.server.body if self.server.status == 200 else f"no: {self.headers.get('Authorization')}".encode()
        self.send_response(302 if self.server.redirect else self.server.status)
        if self.server.redirect:
            self.send_header("Location", self.server.redirect + self.path)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def read(server: Server, **options: object) -> bytes:
    client = client_of(f"{server.origin}/data/a", options, POLICY)
    try:
        return client.read("manifest.json", most_bytes=1000)
    finally:
        client.close()


def test_the_token_is_sent_to_its_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as ours, running() as other:
        monkeypatch.setenv("WDS_TOOLS_TOKEN", f"http://node9=x {ours.origin}={SECRET}")
        assert read(ours) == read(other) == b"hello"
        assert (ours.seen, other.seen) == ([f"Bearer {SECRET}"], [None])


def test_a_redirect_to_another_server_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as ours, running() as other:
        monkeypatch.setenv("WDS_TOOLS_TOKEN", f"{ours.origin}={SECRET}")
        ours.redirect = other.origin
        assert read(ours) == b"hello"
        assert (ours.seen, other.seen) == ([f"Bearer {SECRET}"], [None])


def test_headers_of_the_options_come_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        monkeypatch.setenv("WDS_TOOLS_TOKEN", f"{server.origin}={SECRET}")
        read(server, headers={"authorization": "Bearer mine"})
        assert server.seen == ["Bearer mine"]


def test_an_error_does_not_contain_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        monkeypatch.setenv("WDS_TOOLS_TOKEN", f"{server.origin}={SECRET}")
        server.status = 403
        with pytest.raises(StoreError) as raised:
            read(server)
        assert SECRET not in str(raised.value)


def test_the_files_of_a_source_are_found_without_the_token_of_another_server(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as ours, running() as other:
        monkeypatch.setenv("WDS_TOOLS_TOKEN", f"{ours.origin}={SECRET}")
        ours.body = other.body = (few / "shard-000000.tar").read_bytes()
        remote = RemoteOptions.of()
        assert find_object(f"{ours.origin}/a.tar", remote).size == len(ours.body)
        assert find_object(f"{other.origin}/a.tar", remote).size == len(ours.body)
        ours.redirect = other.origin
        assert find_object(f"{ours.origin}/a.tar", remote).size == len(ours.body)
        assert (set(ours.seen), set(other.seen)) == ({f"Bearer {SECRET}"}, {None})
        ours.seen.clear()
        mine = RemoteOptions.of(storage_options={"headers": {"authorization": "Bearer mine"}})
        find_object(f"{ours.origin}/a.tar", mine)
        assert set(ours.seen) == {"Bearer mine"}


@pytest.fixture(scope="module")
def service(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Return the URL of a dataset at a service with tokens, and the variable that a client needs."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.json"
    _, secret = create_token(tokens)
    with program(few.parent, "--token-file", tokens) as running:
        yield f"{running.url}/data/packed", f"http://127.0.0.1:1=other {running.url}={secret}"


@pytest.fixture(scope="module")
def unlocked(few: Path) -> Iterator[str]:
    """Return the URL of a service without tokens."""
    with program(few.parent) as running:
        yield running.url


@pytest.mark.parametrize(
    "command",
    [
        "info URL",
        "verify URL",
        "sample URL --out {}/sample.png --count 4",
        "plan URL --batch-size 4",
        "copy URL {}/copy",
        "unpack URL {}/unpacked",
        "pack URL/shard-{{000000..000001}}.tar {}/packed --workers 1",
    ],
    ids=lambda command: command.split()[0],
)
@pytest.mark.torture_except("verify", "plan", "copy", "unpack", "pack")
def test_each_command_sends_the_token(
    service: tuple[str, str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, variable = service
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "1")
    monkeypatch.setenv("WDS_TOOLS_TOKEN", variable)
    with pytest.raises(SystemExit) as end:
        main(command.format(tmp_path).replace("URL", url).split())
    assert end.value.code == 0


@pytest.mark.parametrize("path", ["packed", "datasets/packed", ""])
def test_a_url_of_the_service_that_is_not_that_of_a_dataset_is_corrected(unlocked: str, path: str) -> None:
    place = f"{unlocked}/data/{'packed' if path else 'NAME'}"
    with pytest.raises(NotADatasetError, match=f"; with `wds-tools serve`, it is at {place}$"):
        wt.describe(f"{unlocked}/{path}")


def test_a_service_without_tls_is_found_at_once(unlocked: str) -> None:
    url = unlocked.replace("http:", "https:")
    with pytest.raises(StoreError, match=r"answers without TLS .*1 attempt .*; use http:// in the URL$"):
        wt.describe(f"{url}/data/packed")


def test_a_loader_sends_the_token_from_all_its_processes(
    service: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, variable = service
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "1")
    with pytest.raises(StoreError, match=r"HTTP 401 .*has no token: send") as raised:
        wt.make_loader(url, batch_size=8)
    origin = url.partition("/data")[0]
    assert str(raised.value).endswith(f"; set WDS_TOOLS_TOKEN={origin}=TOKEN")
    monkeypatch.setenv("WDS_TOOLS_TOKEN", "http://node1:8080=wdst_secret")
    with pytest.raises(
        StoreError, match=r"HTTP 401 .*; WDS_TOOLS_TOKEN has one for http://node1:8080 only: "
    ) as raised:
        wt.describe(url)
    assert str(raised.value).endswith(f" only: set WDS_TOOLS_TOKEN={origin}=TOKEN")
    monkeypatch.setenv("WDS_TOOLS_TOKEN", f"{url.partition('/data')[0]}=wdst_revoked")
    with pytest.raises(StoreError, match=rf"HTTP 401 .*was revoked.*; set WDS_TOOLS_TOKEN={origin}=TOKEN"):
        wt.make_loader(url, batch_size=8)
    monkeypatch.setenv("WDS_TOOLS_TOKEN", variable)
    with wt.make_loader(url, batch_size=8, num_workers=1, view=wt.CenterCrop(16, resize=20)) as loader:
        assert sum(len(labels) for _, labels in loader) == 40


@pytest.mark.parametrize("value", [SECRET, f"node1:8080={SECRET}", f"http://h/path={SECRET}", f"ftp://h={SECRET}"])
def test_a_token_without_a_server_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WDS_TOOLS_TOKEN", value)
    with pytest.raises(OptionError, match="is not of the form ORIGIN=TOKEN") as raised:
        server_token("http", "h")
    assert SECRET not in str(raised.value)


def test_scheme_and_port_are_part_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDS_TOOLS_TOKEN", f"https://Node1:8443={SECRET} http://[::1]:80/={SECRET}")
    assert server_token("https", "node1:8443") == SECRET
    assert server_token("http", "[::1]:80") == SECRET
    assert [server_token(*origin) for origin in (("http", "node1:8443"), ("https", "node1"))] == [None, None]
