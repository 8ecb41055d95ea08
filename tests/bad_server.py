"""An HTTP server that misbehaves on purpose: each answer is a function that writes to the connection.

``BadServer.answers`` holds what the next requests get; when it is empty, `good` answers. A request is recorded in
``BadServer.requests``.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import cycle
from pathlib import Path
from typing import Self
from urllib.parse import unquote

PHRASES = {200: "OK", 206: "Partial Content", 302: "Found", 403: "Forbidden", 404: "Not Found", 503: "Unavailable"}

DATE = "Sun, 22 Nov 2026 08:00:00 GMT"  # Azure's client requires a Last-Modified


@dataclass
class Request:
    """A request, and the connection that it came on."""

    server: BadServer
    connection: socket.socket
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    number: int  # of the connection

    @property
    def data(self) -> bytes | None:
        path = self.path.partition("?")[0]
        return self.server.objects.get(path, self.server.objects.get(unquote(path)))  # Google's client quotes slashes

    @property
    def span(self) -> tuple[int, int] | None:
        """Return the requested range, cut at the end of the object."""
        first, _, last = self.headers.get("range", "").removeprefix("bytes=").partition("-")
        if not first:
            return None
        length = len(self.data or b"")
        return int(first), min(int(last) + 1, length) if last else length

    def send(self, status: int, body: bytes = b"", *, length: int | None = None, **headers: str | None) -> None:
        """Send an answer; names of headers are written with _ for -, and None leaves one out."""
        fields = {
            "Content_Length": str(len(body) if length is None else length),
            "ETag": self.server.tag,
            "Last_Modified": DATE,
        }
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in {**fields, **headers}.items() if value]
        head = f"HTTP/1.1 {status} {PHRASES.get(status, 'Status')}\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        self.connection.sendall(head.encode("latin-1") + (b"" if self.method == "HEAD" else body))


Answer = Callable[[Request], None]


class HangUpError(Exception):
    """Close the connection."""


def good(request: Request) -> None:
    """Answer as a correct server does."""
    data, span = request.data, request.span
    if data is None:
        paths = list(request.server.objects)  # a test may change them meanwhile
        if any(path.startswith(f"{request.path.rstrip('/')}/") for path in paths):
            names = (path.rpartition("/")[2] for path in paths)
            page = "".join(f'<a href="{name}">{name}</a>' for name in names)
            return request.send(200, f'<html><a href="../">up</a>{page}</html>'.encode(), Content_Type="text/html")
        return request.send(404, b"<Error><Code>NoSuchKey</Code><Message>The key is missing.</Message></Error>")
    wanted = request.headers.get("if-match")
    if wanted and request.server.tag and wanted != request.server.tag:
        return request.send(412)
    if span is None:
        return request.send(200, data)
    if span[0] >= len(data):
        return request.send(416, Content_Range=f"bytes */{len(data)}")
    return request.send(206, data[slice(*span)], Content_Range=f"bytes {span[0]}-{span[1] - 1}/{len(data)}")


def status(code: int, body: bytes = b"", **headers: str | None) -> Answer:
    """Answer with a status."""
    return lambda request: request.send(code, body, **headers)


def retry_at(seconds: float) -> Answer:
    """Answer 503 with a Retry-After that is a date."""
    return lambda request: request.send(503, Retry_After=formatdate(time.time() + seconds, usegmt=True))


def reset(request: Request) -> None:
    """Close the connection by RST."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise HangUpError


def disconnect(request: Request) -> None:
    """Close the connection without an answer."""
    raise HangUpError


def no_answer(request: Request) -> None:
    """Send nothing until the client gives up."""
    request.server.wait_for_close(request.connection)
    raise HangUpError


def _begin(request: Request) -> bytes:
    data, span = request.data or b"", request.span or (0, len(request.data or b""))
    part = data[slice(*span)]
    fields = {"Content_Range": f"bytes {span[0]}-{span[1] - 1}/{len(data)}"} if request.span else {}
    request.send(206 if request.span else 200, length=len(part), **fields)
    return part


def cut_after(count: int, *, by: Answer = disconnect) -> Answer:
    """Send a correct head and the first bytes of the body, then close the connection, reset it, or stall."""

    def answer(request: Request) -> None:
        request.connection.sendall(_begin(request)[:count])
        by(request)

    return answer


def stall_after(count: int) -> Answer:
    """Send a correct head and the first bytes of the body, then nothing."""
    return cut_after(count, by=no_answer)


def drip(count: int, seconds: float) -> Answer:
    """Send the body in small pieces with pauses."""

    def answer(request: Request) -> None:
        part = _begin(request)
        for start in range(0, len(part), count):
            request.connection.sendall(part[start : start + count])
            time.sleep(seconds)

    return answer


def short_body(request: Request) -> None:
    """Send one byte less than the header announces."""
    cut_after(len((request.data or b"")[slice(*(request.span or (0, None)))]) - 1)(request)


def whole_for_range(request: Request) -> None:
    """Ignore the range."""
    request.send(200, request.data or b"")


def wrong_range(request: Request) -> None:
    """Send the bytes after those that were requested."""
    data, (start, stop) = request.data or b"", request.span or (0, 1)
    request.send(206, data[start + 1 : stop + 1], Content_Range=f"bytes {start + 1}-{stop}/{len(data)}")


def no_content_range(request: Request) -> None:
    """Send the range without its header."""
    request.send(206, (request.data or b"")[slice(*(request.span or (0, 1)))])


def chunked(request: Request) -> None:
    """Send a correct answer in chunks, without Content-Length."""
    data, span = request.data or b"", request.span or (0, len(request.data or b""))
    fields = {"Content_Range": f"bytes {span[0]}-{span[1] - 1}/{len(data)}"} if request.span else {}
    part = data[slice(*span)]
    pieces = [part[start : start + 5000] for start in range(0, len(part), 5000)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    request.send(206 if request.span else 200, body, Content_Length=None, Transfer_Encoding="chunked", **fields)


def html(request: Request) -> None:
    """Send an HTML page, as a login page in between does."""
    request.send(200, b"<!doctype html><html>Log in</html>", Content_Type="text/html; charset=utf-8")


def closing(answer: Answer = good) -> Answer:
    """Answer, then close the connection without announcing it."""

    def close(request: Request) -> None:
        answer(request)
        raise HangUpError

    return close


def announced_close(request: Request) -> None:
    """Answer with ``Connection: close``, then close the connection."""
    data, span = request.data or b"", request.span or (0, len(request.data or b""))
    fields = {"Content_Range": f"bytes {span[0]}-{span[1] - 1}/{len(data)}"} if request.span else {}
    request.send(206 if request.span else 200, data[slice(*span)], Connection="close", **fields)
    raise HangUpError


def redirect(url: str) -> Answer:
    """Redirect to the same path below another URL."""
    return lambda request: request.send(302, Location=f"{url}{request.path}")


def each_request_fails_once(*faults: Answer) -> Answer:
    """Answer the first request for each object and range with one fault after the other, repeated ones as usual."""
    seen, following = set(), cycle(faults)

    def answer(request: Request) -> None:
        name = (request.method, request.path, request.headers.get("range"))
        fails = name not in seen
        seen.add(name)
        (next(following) if fails else good)(request)

    return answer


@dataclass
class BadServer:
    """See the module. ``default`` answers when ``answers`` is empty."""

    objects: dict[str, bytes] = field(default_factory=dict)
    tag: str | None = '"one"'
    answers: deque[Answer] = field(default_factory=deque)
    default: Answer = good
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    @contextmanager
    def running(self, context: ssl.SSLContext | None = None) -> Iterator[BadServer]:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http{'s' * bool(context)}://127.0.0.1:{listener.getsockname()[1]}"
        self._ended = threading.Event()
        threads = [threading.Thread(target=self._accept, args=(listener, context), daemon=True)]
        threads[0].start()
        try:
            yield self
        finally:
            self._ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            threads[0].join(10)

    def wait_for_close(self, connection: socket.socket) -> None:
        """Wait until the client closes the connection, or the server ends."""
        connection.settimeout(0.05)
        while not self._ended.is_set():
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                pass
            except OSError:
                return

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection, context, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, context: ssl.SSLContext | None, number: int) -> None:
        with suppress(OSError, HangUpError):
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context:
                    connection = context.wrap_socket(connection, server_side=True)
                with connection.makefile("rb") as lines:
                    while request := self._receive(connection, lines, number):
                        self.requests.append(request)
                        try:
                            answer = self.answers.popleft()
                        except IndexError:  # not asked for first: another connection may take the last one
                            answer = self.default
                        answer(request)
            finally:
                connection.close()

    def _receive(self, connection: socket.socket, lines, number: int) -> Request | None:
        if lines.peek(1)[:1] == b"\x16":  # a TLS handshake
            return None
        words = lines.readline().decode("latin-1").split()
        if len(words) != 3:
            return None
        headers = {}
        while (line := lines.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Request(self, connection, words[0], words[1], headers, number)


UNLIMITED = 1 << 60  # bytes


class Forwarder:
    """A server at ``address`` that forwards connections to another one; a subclass says how, in `connect`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connect(client)

    def connect(self, client: socket.socket) -> None:
        """Forward a new connection."""
        raise NotImplementedError

    def forward(self, client: socket.socket, limit: int = UNLIMITED) -> None:
        """Forward all bytes in both directions; reset the connection after ``limit`` bytes of the other server."""
        server = socket.create_connection(self._target)
        for source, target, most in ((client, server, UNLIMITED), (server, client, limit)):
            threading.Thread(target=self._copy, args=(source, target, most), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                target.sendall(data[:limit])
                limit -= len(data)
                if limit <= 0:
                    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return


class Tunnel(Forwarder):
    """A proxy for one server that knows ``CONNECT``; ``heads`` are the requests that it got."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("://")[2].partition(":")
        super().__init__(host, int(port))
        self.heads: list[str] = []

    def connect(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        self.heads.append(head.decode("latin-1"))
        client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        self.forward(client)


def certificates(folder: Path, *, host: str = "") -> tuple[Path, ssl.SSLContext]:
    """Return the certificate of an authority for tests, and the TLS settings of a server that it vouches for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key, issuer_key, *extensions) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("authority of the tests"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(9))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(issuer_key, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = certificate(
        "authority of the tests",
        authority_key,
        authority_key,
        (x509.BasicConstraints(ca=True, path_length=None), True),
        (x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False),
    )
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    names = [x509.DNSName(host)] if host else names
    own = certificate(
        "127.0.0.1",
        key,
        authority_key,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    )
    pem, trusted = folder / "server.pem", folder / "authority.pem"
    trusted.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    pem.write_bytes(
        own.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return trusted, context
