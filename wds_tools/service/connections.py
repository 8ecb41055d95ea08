"""Connections of the service: their number is limited. For a new one, the one that was idle the longest is closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
import time
from collections.abc import Iterable

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from wds_tools.service.config import Limits
from wds_tools.service.metrics import Metrics
from wds_tools.service.responses import SECURITY_HEADERS, error_response

_silent = logging.getLogger("wds_tools.service.http")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # aiohttp quotes malformed requests in its messages: they may contain tokens


_NO_LINGER = struct.pack("ii", 1, 0)


class ConnectionTable:
    """All open connections of a process.

    Args:
        limits: How many there may be.
        metrics: Where they are counted.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self._open: set[Connection] = set()

    def add(self, connection: Connection) -> bool:
        """Add a connection; return False if there are too many, none of which is idle."""
        same = [peer for peer in self._open if peer.address == connection.address]
        if len(same) >= self.limits.connections_per_address and not self._drop_idle(same):
            return False
        if len(self._open) >= self.limits.connections and not self._drop_idle(self._open):
            return False
        self._open.add(connection)
        self.metrics.connections.inc()
        return True

    def remove(self, connection: Connection) -> None:
        """Remove a connection, if it is in the table."""
        if connection in self._open:
            self._open.remove(connection)
            self.metrics.connections.dec()

    def abort_all(self) -> None:
        """Close all connections at once; a connection with TLS would wait for its client."""
        for connection in self._open:
            connection.abort()

    def _drop_idle(self, connections: Iterable[Connection]) -> bool:
        """Close the connection that has been idle for the longest time; return whether there was one."""
        idle = [connection for connection in connections if not connection.is_busy]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since)
        self.remove(oldest)
        oldest.abort()
        self.metrics.cut_connections.labels("idle").inc()
        return True


class Connection(RequestHandler):
    """One connection. aiohttp closes it if no complete request arrives within the idle time."""

    __slots__ = ("_socket", "_table", "_transport", "address", "idle_since", "is_busy")

    def __init__(self, manager: web.Server, table: ConnectionTable, loop: asyncio.AbstractEventLoop) -> None:
        limits = table.limits
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.idle_seconds,
            access_log=None,  # type: ignore[arg-type]  # None switches it off
            logger=_silent,
            max_line_size=limits.head_bytes,
            max_field_size=limits.head_bytes,
            auto_decompress=False,  # a body may grow a thousandfold, and an invalid one fails inside of aiohttp
            lingering_time=1.0,
        )
        self._table = table
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None  # kept while it closes, other than aiohttp's reference
        self.address = ""
        self.is_busy = False
        self.idle_since = time.monotonic()

    @staticmethod
    def of(request: web.BaseRequest) -> Connection:
        """Return the connection of a request."""
        assert isinstance(request.protocol, Connection)
        return request.protocol

    def end_request(self) -> None:
        """Mark the connection as idle."""
        self.is_busy = False
        self.idle_since = time.monotonic()

    def plain_socket(self) -> socket.socket | None:
        """Return a duplicate of the socket, which stays open with the connection; None with TLS, or without sendfile.

        Its descriptor may be used directly while the transport has nothing to write.
        """
        if self._socket is None and self._transport is not None and not self._transport.is_closing():
            is_plain = sys.platform == "linux" and self._transport.get_extra_info("sslcontext") is None
            self._socket = self._transport.get_extra_info("socket").dup() if is_plain else None
        return self._socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, or close it at once."""
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if transport.get_extra_info("sslcontext") is None:  # with a limit of 0, a TLS transport would wait forever
            transport.set_write_buffer_limits(0)  # drain() then waits until all is sent, as sendfile requires
        if not self._table.add(self):
            self._table.metrics.cut_connections.labels("too_many").inc()
            self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget a connection."""
        self._table.remove(self)
        self._transport = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once. The kernel drops what is buffered, instead of offering it for minutes."""
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002 - it may quote the request
        message: str | None = None,  # noqa: ARG002 - it may quote the request
    ) -> web.StreamResponse:
        """Answer a request that is malformed, or one that failed outside of the application."""
        if request.writer.output_size > 0:
            raise ConnectionError("the head of the response has been sent")
        text = "the request is malformed or too long" if status < 500 else "an error of the service"
        response = error_response(status, text, SECURITY_HEADERS)
        response.force_close()
        return response
