"""WDS_TOOLS_TOKEN: sent to the server that it is for, and to no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wds_tools.errors import OptionError, StoreError
from wds_tools.options import server_token
from wds_tools.storage.clients import open_client
from wds_tools.storage.retry import RetryPolicy

SECRET = "wdst_sentinel-value"
POLICY = RetryPolicy(seconds=0.2)


class Server(ThreadingHTTPServer):
    """A server that keeps the headers of its requests, and may redirect or refuse them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str | None] = []
        self.redirect = ""
        self.status = 200

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))
        body = b"hello" if self.server.status == 200 else f"no: {self.headers.get('Authorization')}".encode()
        self.send_response(302 if self.server.redirect else self.server.status)
        if self.server.redirect:
            self.send_header("Location", self.server.redirect + self.path)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def read(server: Server, **options: object) -> bytes:
    client = open_client(f"{server.origin}/data/a", options, POLICY)
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
