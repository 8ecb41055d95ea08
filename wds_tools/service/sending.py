"""Sends pieces of files: by sendfile where the socket is the kernel's own, otherwise read by a thread.

Each client has to receive a least number of bytes in each window of time. Otherwise it is disconnected, as it would
hold a connection and memory for ever.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from aiohttp import web

from wds_tools.service.contents import FilePiece, Piece
from wds_tools.service.limits import Limits

_CALL_BYTES = 1 << 20  # of one call of sendfile, so that a fast client does not hold the event loop
_READ_BYTES = 1 << 20
_WRITE_BYTES = 256 << 10


class SlowClientError(ConnectionError):
    """The client received too few bytes for too long."""


async def send_pieces(
    request: web.BaseRequest, response: web.StreamResponse, pieces: AsyncIterator[Piece], limits: Limits
) -> int:
    """Send the head and the body of a response; return the bytes of the body.

    Args:
        request: The request.
        response: The response, with its Content-Length.
        pieces: The body.
        limits: The least speed of the client.

    Raises:
        ConnectionError: The client has disconnected, or is too slow.
        OSError: A file cannot be read; or errors of ``pieces``. The head may have been sent.
    """
    sent = 0
    iterator = aiter(pieces)
    piece = await anext(iterator, None)  # an error is raised before the head is sent
    writer = await response.prepare(request)
    transport = request.transport
    if transport is None or writer is None:
        raise ConnectionResetError("the client has disconnected")
    async with asyncio.timeout(limits.window_seconds):
        writer.send_headers()
        await writer.drain()
    uses_sendfile = sys.platform == "linux" and transport.get_extra_info("sslcontext") is None
    with _Sendfile(transport, limits) if uses_sendfile else _nothing() as sendfile:
        while piece is not None:
            if isinstance(piece, FilePiece) and sendfile:
                await sendfile.send(piece)
                sent += piece.count
            else:
                async for data in _blocks(piece):
                    async with asyncio.timeout(limits.window_seconds):
                        await response.write(data)
                        await writer.drain()
                    sent += len(data)
            piece = await anext(iterator, None)
    return sent


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


async def _blocks(piece: Piece) -> AsyncIterator[memoryview]:
    """Yield a piece in parts that are so short that the speed of a client is noticed."""
    if isinstance(piece, FilePiece):
        file, offset, count = piece.file, piece.offset, piece.count
        for start in range(offset, offset + count, _READ_BYTES):
            size = min(_READ_BYTES, offset + count - start)
            data = await asyncio.get_running_loop().run_in_executor(None, os.pread, file.fileno(), size, start)
            if len(data) != size:
                raise OSError("the file was truncated while it was being sent")
            for part in range(0, size, _WRITE_BYTES):
                yield memoryview(data)[part : part + _WRITE_BYTES]
    else:
        for start in range(0, len(piece), _WRITE_BYTES):
            yield piece[start : start + _WRITE_BYTES]


class _Sendfile:
    """Calls `os.sendfile` whenever the socket of a transport accepts bytes.

    ``loop.sendfile`` does the same, but does not report how far it has come while it waits. This one uses a duplicate
    of the descriptor, because the loop has no callbacks for descriptors of transports.
    """

    def __init__(self, transport: asyncio.BaseTransport, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._limits = limits
        self._window_bytes = 0  # that were sent in the current window
        self._socket = -1

    def __enter__(self) -> _Sendfile:
        self._socket = os.dup(self._transport.get_extra_info("socket").fileno())
        self._timer = self._loop.call_later(self._limits.window_seconds, self._check_speed)
        self._done: asyncio.Future[None] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._loop.remove_writer(self._socket)
        os.close(self._socket)

    async def send(self, piece: FilePiece) -> None:
        """Send one piece."""
        self._piece, self._offset, self._left = piece, piece.offset, piece.count
        self._done = self._loop.create_future()
        if not self._try():
            self._loop.add_writer(self._socket, self._continue)
            try:
                await self._done
            finally:
                self._loop.remove_writer(self._socket)

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
            raise OSError("the file was truncated while it was being sent")
        self._offset += sent
        self._left -= sent
        self._window_bytes += sent
        return not self._left

    def _check_speed(self) -> None:
        if self._window_bytes < self._limits.window_bytes and self._done is not None and not self._done.done():
            seconds = self._limits.window_seconds
            self._done.set_exception(SlowClientError(f"{self._window_bytes:,} bytes in {seconds:g} s"))
            return
        self._window_bytes = 0
        self._timer = self._loop.call_later(self._limits.window_seconds, self._check_speed)
