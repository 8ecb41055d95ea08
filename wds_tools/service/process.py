"""One process of the service: its socket, its application, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection as PipeConnection

from aiohttp import web

from wds_tools.errors import OptionError
from wds_tools.service.app import LIBRARY, application
from wds_tools.service.config import ServeOptions, Started
from wds_tools.service.connections import Connection, ConnectionTable
from wds_tools.service.metrics import Metrics

_BACKLOG = 1024
_STOP_SECONDS = 5.0  # in which responses that have begun may end
_HANDSHAKE_SECONDS = 10.0


def bind(options: ServeOptions) -> socket.socket:
    """Return a socket that is bound to the address, and does not listen yet.

    Raises:
        OptionError: The address is unknown or in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if options.processes > 1:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OptionError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}; choose another --port or "
            "--host"
        ) from error
    return listener


async def run(
    options: ServeOptions,
    listener: socket.socket,
    *,
    on_start: Callable[[Started], object],
    parent: PipeConnection | None = None,
) -> None:
    """Run the service in this process until a signal, or until the parent process has ended."""
    loop, metrics = asyncio.get_running_loop(), Metrics()
    stop = asyncio.Event()
    if threading.current_thread() is threading.main_thread():  # another thread cannot handle signals
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, stop.set)
    if parent is not None:
        loop.add_reader(parent.fileno(), stop.set)  # readable when the parent has ended
    app = application(options, metrics)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    connections = ConnectionTable(options.limits, metrics)
    manager = runner.server
    assert manager is not None
    context = options.tls_context()
    server = await loop.create_server(
        lambda: Connection(manager, connections, loop),
        sock=listener,
        backlog=_BACKLOG,
        ssl=context,
        ssl_handshake_timeout=_HANDSHAKE_SECONDS if context else None,
    )
    on_start(Started(options.url(listener.getsockname()[1]), len(app[LIBRARY].summaries())))
    try:
        await stop.wait()
    finally:
        server.close()
        manager.pre_shutdown()
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await manager.shutdown(_STOP_SECONDS)
        connections.abort_all()
        await runner.cleanup()
