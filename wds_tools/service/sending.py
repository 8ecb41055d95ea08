"""Sends pieces of files: by sendfile where the socket is the kernel's own, otherwise read by a thread.

Each client has to receive a minimum number of bytes in each window of time. Otherwise it is disconnected, because it
could keep a connection and memory forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web

from wds_tools.service.config import Limits
from wds_tools.service.connections import Connection
from wds_tools.service.contents import FilePiece, Piece
from wds_tools.service.responses import SECURITY_HEADERS

_CALL_BYTES = 4 << 20  # of one call of sendfile, so that a fast client does not hold the event loop
_READ_BYTES = 1 << 20
_WRITE_BYTES = 256 << 10
_MORE = getattr(socket, "MSG_MORE", 0)  # the head leaves together with the body, and the client wakes up once
_TRUNCATED = "the file was truncated while it was being sent"


class SlowClientError(ConnectionError):
    """The client received too few bytes for too long."""


class FileResponse(web.StreamResponse):
    """A response with bytes of files. It writes its head itself, which takes a third of aiohttp's time.

    Args:
        headers: Its headers; the headers of every response are added.
    """

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status=status)
        self._fields = headers
        self._is_sent = False
        self.sent_bytes = 0
        """Bytes of the body that were sent, even if the client disconnected before the end."""

    @property
    def prepared(self) -> bool:
        """Whether the head was sent."""
        return self._is_sent

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send the head without a body, for HEAD, unless `send` has sent it already."""
        if not self._is_sent:
            self._is_sent = True
            if request.transport is None:
                raise ConnectionResetError("the client has disconnected")
            request.transport.write(self._head(request))

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: all was sent."""

    def send_at_once(self, request: web.BaseRequest, piece: FilePiece) -> bool:
        """Send head and body as far as the socket accepts them now; return whether that is all.

        Most ranges fit into the buffer of the socket. `send` sends the rest, whose start `sent_bytes` is.

        Raises:
            OSError: The client has disconnected, or the file cannot be read. The head may have been sent.
        """
        transport = request.transport
        if not isinstance(transport, asyncio.WriteTransport) or transport.get_write_buffer_size():
            return False
        plain = Connection.of(request).plain_socket()
        if plain is None:
            return False
        head = self._head(request)
        try:
            sent = plain.send(head, _MORE)
        except (BlockingIOError, InterruptedError):
            return False
        self._is_sent = True
        if sent < len(head):
            transport.write(head[sent:])
            return False
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self.sent_bytes = os.sendfile(plain.fileno(), piece.file.fileno(), piece.offset, piece.count)
            if not self.sent_bytes:
                raise OSError(_TRUNCATED)
        return self.sent_bytes == piece.count

    async def send(self, request: web.BaseRequest, pieces: AsyncIterator[Piece], limits: Limits) -> None:
        """Send head and body, or the rest of them after `send_at_once`.

        Args:
            request: The request.
            pieces: The body, as long as the header Content-Length states, from `sent_bytes` on.
            limits: The minimum speed of the client.

        Raises:
            ConnectionError: The client has disconnected, or is too slow.
            OSError: A file cannot be read; or errors of ``pieces``. The head may have been sent.
        """
        iterator = aiter(pieces)
        piece = await anext(iterator, None)  # an error is raised before the head is sent
        transport = request.transport
        if not isinstance(transport, asyncio.Transport):
            raise ConnectionResetError("the client has disconnected")
        uses_sendfile = Connection.of(request).plain_socket() is not None
        with _Sendfile(transport, limits) if uses_sendfile else contextlib.nullcontext() as sendfile:
            await self.prepare(request)
            if transport.get_write_buffer_size():
                await _drained(request, limits)
            while piece is not None:
                if isinstance(piece, FilePiece) and sendfile:
                    await sendfile.send(piece, self)
                else:
                    async for data in _blocks(piece):
                        transport.write(data)
                        await _drained(request, limits)
                        self.sent_bytes += len(data)
                piece = await anext(iterator, None)

    def _head(self, request: web.BaseRequest) -> bytes:
        self._keep_alive = is_kept = request.keep_alive
        fields = "".join([f"{name}: {value}\r\n" for name, value in self._fields.items()])
        return f"{_first_lines(self.status, is_kept)}{fields}{_last_lines(int(time.time()))}".encode("latin-1")


_FIXED = "".join(f"{name}: {value}\r\n" for name, value in SECURITY_HEADERS.items())


@lru_cache
def _first_lines(status: int, is_kept: bool) -> str:
    connection = "keep-alive" if is_kept else "close"
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: {connection}\r\n"


@lru_cache(maxsize=1)
def _last_lines(seconds: int) -> str:
    return f"Date: {formatdate(seconds, usegmt=True)}\r\n{_FIXED}\r\n"


async def _drained(request: web.BaseRequest, limits: Limits) -> None:
    """Wait until the client has received enough bytes for more to be written."""
    async with asyncio.timeout(limits.window_seconds):
        await request.writer.drain()


async def _blocks(piece: Piece) -> AsyncIterator[memoryview]:
    """Yield a piece in parts, short enough to measure the speed of a client."""
    if isinstance(piece, FilePiece):
        file, offset, count = piece.file, piece.offset, piece.count
        for start in range(offset, offset + count, _READ_BYTES):
            size = min(_READ_BYTES, offset + count - start)
            data = await asyncio.get_running_loop().run_in_executor(None, os.pread, file.fileno(), size, start)
            if len(data) != size:
                raise OSError(_TRUNCATED)
            for part in range(0, size, _WRITE_BYTES):
                yield memoryview(data)[part : part + _WRITE_BYTES]
    else:
        for start in range(0, len(piece), _WRITE_BYTES):
            yield piece[start : start + _WRITE_BYTES]


class _Sendfile:
    """Calls `os.sendfile` whenever the socket of a transport accepts bytes.

    ``loop.sendfile`` does the same, but does not report how far it has come while it waits. This one uses a duplicate
    of the descriptor, because the loop has no callbacks for descriptors of transports.

    Inside a ``with`` block the socket is corked: head and body leave together, and the client wakes up once.
    """

    def __init__(self, transport: asyncio.Transport, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._limits = limits
        self._window_bytes = 0  # that were sent in the current window
        self._socket = -1

    def __enter__(self) -> _Sendfile:
        self._of_transport = self._transport.get_extra_info("socket")
        self._of_transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        self._socket = self._of_transport.fileno()
        self._duplicate: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done: asyncio.Future[None] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._duplicate is not None:
            self._loop.remove_writer(self._duplicate)
            os.close(self._duplicate)
        with contextlib.suppress(OSError):  # the connection was lost
            self._of_transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    async def send(self, piece: FilePiece, response: FileResponse) -> None:
        """Send one piece of a response. Most fit into the buffer of the socket, so that nothing has to wait."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        self._response, self._piece, self._offset, self._left = response, piece, piece.offset, piece.count
        if not self._try():
            await self._wait()

    async def _wait(self) -> None:
        if self._duplicate is None:
            self._socket = self._duplicate = os.dup(self._socket)
            self._timer = self._loop.call_later(self._limits.window_seconds, self._check_speed)
        self._done = self._loop.create_future()
        self._loop.add_writer(self._duplicate, self._continue)
        try:
            await self._done
        finally:
            self._loop.remove_writer(self._duplicate)

    def _continue(self) -> None:
        assert self._done is not None
        if self._done.done():
            return
        try:
            if self._try():
                self._done.set_result(None)
        except OSError as error:
            self._done.set_exception(error)

    def _try(self) -> bool:
        """Send what the socket accepts; return whether the piece is complete."""
        try:
            sent = os.sendfile(self._socket, self._piece.file.fileno(), self._offset, min(self._left, _CALL_BYTES))
        except (BlockingIOError, InterruptedError):
            return False
        if not sent:
            raise OSError(_TRUNCATED)
        self._offset += sent
        self._left -= sent
        self._window_bytes += sent
        self._response.sent_bytes += sent
        return not self._left

    def _check_speed(self) -> None:
        if self._window_bytes < self._limits.window_bytes and self._done is not None and not self._done.done():
            seconds = self._limits.window_seconds
            self._done.set_exception(SlowClientError(f"{self._window_bytes:,} bytes in {seconds:g} s"))
            return
        self._window_bytes = 0
        self._timer = self._loop.call_later(self._limits.window_seconds, self._check_speed)
