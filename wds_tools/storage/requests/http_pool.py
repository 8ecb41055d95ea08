"""Connections of the HTTP client: TLS, proxies from the environment, keep-alive, and time limits of a response."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import os
import select
import socket
import ssl
import struct
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from wds_tools.errors import OptionError
from wds_tools.storage.requests.failures import Failure, clean_url
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage.requests.tls_socket import TlsConnection, TlsSocket

_MAX_IDLE = 64  # connections kept per server
_HANDSHAKE_SECONDS = 2.0
_MOST_AT_ONCE = 1 << 20  # bytes that one system call waits for
_WAIT_FOR_ALL = getattr(socket, "MSG_WAITALL", 0)
Origin = tuple[str, str, int]
"""Scheme, host and port of a server."""


def origin_of(url: SplitResult) -> Origin:
    """Return scheme, host and port of a URL."""
    return url.scheme, url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def speaks_tls(origin: Origin) -> bool:
    """Return whether a server completes a TLS handshake, whatever its certificate. Nothing is sent after it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(origin[1:], timeout=_HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=origin[1]),
        ):
            return True
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return False


def basic_auth(user: str, password: str, encoding: str = "utf-8") -> str:
    """Return the value of a header ``Authorization``."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode(encoding)).decode()


class Pool:
    """Connections to any number of servers. Threads may share it, processes may not.

    Proxies come from ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY``. Trusted certificates come from
    ``SSL_CERT_FILE``, ``SSL_CERT_DIR`` or the system, and from ``REQUESTS_CA_BUNDLE`` or ``CURL_CA_BUNDLE``.

    Args:
        policy: Has the time limits.
        trusted: Further trusted certificates, as PEM text.
        verify: Whether certificates are checked.
    """

    def __init__(self, policy: RetryPolicy, *, trusted: str = "", verify: bool = True) -> None:
        self._policy = policy
        self._trusted = trusted
        self._verify = verify
        self._proxies: Mapping[str, str] = urllib.request.getproxies()
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = defaultdict(list)
        self._busy: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def take(self, origin: Origin, *, fresh: bool = False) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was used before."""
        while not fresh:
            with self._lock:
                connection = self._idle[origin].pop() if self._idle[origin] else None
                if connection is None:
                    break
                self._busy.add(connection)
            if _is_open(connection):
                return connection, True
            self.drop(connection)
        connection = self._create(origin)
        with self._lock:
            self._busy.add(connection)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _set_timeout(connection.sock, self._policy.idle_seconds)
        except BaseException:
            self.drop(connection)
            raise
        return connection, False

    def give(self, origin: Origin, connection: http.client.HTTPConnection) -> None:
        """Take back a connection whose last response was read to the end."""
        with self._lock:
            self._busy.discard(connection)
            if not self._closed and len(self._idle[origin]) < _MAX_IDLE:
                self._idle[origin].append(connection)
                return
        connection.close()

    def drop(self, connection: http.client.HTTPConnection) -> None:
        """Close a connection."""
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close all connections; responses that are being read end with an error."""
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
            busy = [connection.sock for connection in self._busy if connection.sock is not None]
        for connection in idle:
            connection.close()
        for sock in busy:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def proxy_of(self, origin: Origin) -> SplitResult | None:
        """Return the URL of the proxy for a server, or None."""
        scheme, host, port = origin
        proxy = self._proxies.get(scheme) or self._proxies.get("all")
        if not proxy or urllib.request.proxy_bypass(f"{host}:{port}"):
            return None
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if url.scheme != "http" or not url.hostname:
            raise OptionError(f"the proxy {clean_url(proxy)} from the environment is not supported; allowed is http://")
        return url

    def _create(self, origin: Origin) -> http.client.HTTPConnection:
        scheme, host, port = origin
        proxy = self.proxy_of(origin)
        address = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        seconds = self._policy.connect_seconds
        if scheme == "http":
            return self._timed(http.client.HTTPConnection(*address, timeout=seconds))
        connection = TlsConnection(*address, timeout=seconds, context=self._tls(), tls_host=host)
        if proxy:
            headers = {"Proxy-Authorization": proxy_auth(proxy)} if proxy.username else {}
            connection.set_tunnel(host, port, headers)
        return self._timed(connection)

    def _timed(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        def respond(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(_Progressing(sock, self._policy), *args, **options)  # type: ignore[arg-type]

        connection.response_class = respond  # type: ignore[assignment]
        return connection

    def _tls(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                self._context = ssl.create_default_context()
                more = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
                paths = ssl.get_default_verify_paths()
                if more:
                    folder = Path(more).is_dir()
                    self._context.load_verify_locations(**{"capath" if folder else "cafile": more})
                elif not paths.cafile and not paths.capath:  # a system without certificates
                    with contextlib.suppress(ImportError):
                        import certifi  # noqa: PLC0415 - only installed where another library needs it

                        self._context.load_verify_locations(cafile=certifi.where())
                if self._trusted:
                    self._context.load_verify_locations(cadata=self._trusted)
                if not self._verify:
                    self._context.check_hostname = False
                    self._context.verify_mode = ssl.CERT_NONE
            return self._context


def proxy_auth(proxy: SplitResult) -> str:
    """Return the value of a header ``Proxy-Authorization``."""
    return basic_auth(unquote(proxy.username or ""), unquote(proxy.password or ""))


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Return whether an idle connection is still open. If it can be read, the server has closed it."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _set_timeout(sock: socket.socket | TlsSocket, seconds: float) -> None:
    """Let the kernel apply the time limit: Python would make a second system call each time, to wait."""
    sock.settimeout(None)
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def head_is_complete(response: http.client.HTTPResponse) -> None:
    """Start the time for the body of a response on a connection of `Pool`."""
    raw = getattr(response.fp, "raw", None)  # a response without a body has no file
    if isinstance(raw, _Progressing):
        raw.restart()


def receive_into(response: http.client.HTTPResponse, buffer: memoryview) -> int:
    """Receive a part of the body of a response that is not chunked; return its length, 0 at the end.

    Many bytes are received with one system call, so that threads seldom wait for the lock of the interpreter.
    """
    buffered = len(response.fp.peek())  # receives something if nothing is buffered
    count: int = response.fp.readinto1(buffer[:buffered])
    return count + response.fp.raw.fill(buffer[count:]) if count < len(buffer) and count else count  # type: ignore[attr-defined]


class _Progressing(io.RawIOBase):
    """The bytes from a socket, with an error when they make no progress.

    The head of a response has to arrive within `RetryPolicy.idle_seconds`. From then on, `RetryPolicy.progress_bytes`
    have to arrive in each such period.
    """

    def __init__(self, sock: socket.socket | TlsSocket, policy: RetryPolicy) -> None:
        super().__init__()
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # keeps the connection open until the response is closed
        self._policy = policy
        self.restart()

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the file that `http.client.HTTPResponse` reads."""
        return io.BufferedReader(self)

    def restart(self) -> None:
        """Start the time again: the head of the response is complete."""
        self._until = time.monotonic() + self._policy.idle_seconds
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive what has arrived, at least one byte; 0 at the end."""
        return self._receive(buffer, 0)

    def fill(self, buffer: memoryview) -> int:
        """Receive a full buffer of at most `_MOST_AT_ONCE` bytes with one system call; fewer bytes after a timeout."""
        return self._receive(buffer[:_MOST_AT_ONCE], _WAIT_FOR_ALL)

    def _receive(self, buffer: Any, flags: int) -> int:
        try:
            count = self._sock.recv_into(buffer, 0, flags)
        except (BlockingIOError, TimeoutError):  # the first: the time limit of the socket itself
            raise Failure(f"no bytes arrived for {self._policy.idle_seconds:g} s") from None
        self._received += count
        if time.monotonic() > self._until:
            if self._received < self._policy.progress_bytes:
                seconds, least = self._policy.idle_seconds, self._policy.progress_bytes
                raise Failure(f"fewer than {least:,} bytes arrived in {seconds:g} s")
            self.restart()
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
