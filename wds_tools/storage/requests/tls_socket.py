"""TLS over a socket with few system calls: all bytes that have arrived are received at once, not record by record.

An `ssl.SSLSocket` makes two system calls for each record of 16 KiB: docs/decisions/0017 has the comparison.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
from typing import Any

from wds_tools.storage.requests.failures import Failure

_RECEIVED_BYTES = 1 << 18
_PLAIN = b"HTTP/"  # no record of TLS begins with these bytes


class TlsSocket:
    """The part of a socket that `http.client` uses, with TLS. One thread at a time may use it.

    Args:
        sock: Connected socket. It is closed with this one.
        host: Name that the certificate must have.

    Raises:
        Failure: The server answers without TLS.
        ssl.SSLError: The handshake failed.
        OSError: The connection failed.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._buffer = memoryview(bytearray(_RECEIVED_BYTES))
        self._files = 0
        self._closed = False
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send()
                self._receive()
                if self._buffer[: len(_PLAIN)] == _PLAIN:
                    raise Failure("it answers without TLS", retry=False, remedy="use http:// in the URL") from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._send()  # the alert, so that the server can log the reason
                raise
        self._send()

    def sendall(self, data: Any) -> None:
        """Send all bytes."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self._tls.write(view) :]
        self._send()

    def recv_into(self, buffer: memoryview, _count: int = 0, _flags: int = 0) -> int:
        """Receive what has arrived, at least one byte; 0 at the end."""
        count = 0
        while count < len(buffer):
            try:
                got = self._tls.read(len(buffer) - count, buffer[count:])
            except ssl.SSLWantReadError:
                self._send()  # answers to messages of TLS itself
                if count:
                    return count
                self._receive()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # HTTP knows whether more had to come
                return count
            else:
                if not got:
                    return count
                count += int(got)
        return count

    def makefile(self, _mode: str, buffering: int = 0) -> io.RawIOBase:  # noqa: ARG002 - as of a socket
        """Return an unbuffered file. The connection stays open until the file is closed too."""
        self._files += 1
        return _File(self)

    def close(self) -> None:
        """Close the connection when no file of it is open."""
        self._closed = True
        self.release(0)

    def release(self, files: int) -> None:
        """Note that files were closed."""
        self._files -= files
        if self._closed and self._files <= 0:
            self._sock.close()

    def setsockopt(self, *args: Any) -> None:
        """Set an option of the socket."""
        self._sock.setsockopt(*args)

    def settimeout(self, seconds: float | None) -> None:
        """Set the time limit of each call."""
        self._sock.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """End the connection, even while another thread waits for it."""
        self._sock.shutdown(how)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._sock.sendall(self._outgoing.read())

    def _receive(self) -> None:
        count = self._sock.recv_into(self._buffer)
        if count:
            self._incoming.write(self._buffer[:count])
        else:
            self._incoming.write_eof()


class _File(io.RawIOBase):
    """Reads from a `TlsSocket`."""

    def __init__(self, sock: TlsSocket) -> None:
        super().__init__()
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(memoryview(buffer).cast("B"))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._sock.release(1)


class TlsConnection(http.client.HTTPConnection):
    """`http.client.HTTPSConnection` with a `TlsSocket`."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, *args: Any, context: ssl.SSLContext, tls_host: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._context = context
        self._tls_host = tls_host

    def connect(self) -> None:
        """Connect, through the proxy if there is one, and do the TLS handshake."""
        super().connect()
        plain = self.sock
        try:
            self.sock = TlsSocket(plain, self._context, self._tls_host)
        except BaseException:
            plain.close()
            raise
