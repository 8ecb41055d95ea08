"""One process of the service: its socket, its application, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection as PipeConnection
from pathlib import Path

from aiohttp import web

from wds_tools.errors import OptionError
from wds_tools.options import RemoteOptions
from wds_tools.service.access import Gate
from wds_tools.service.access_log import AccessLog
from wds_tools.service.app import background, make_app, rescan
from wds_tools.service.catalogue import Catalogue
from wds_tools.service.config import ServeOptions, Started
from wds_tools.service.connections import Connection, ConnectionTable
from wds_tools.service.data import DataRoutes
from wds_tools.service.libraries import Libraries, ScannedLibrary
from wds_tools.service.listing import ListingRoutes
from wds_tools.service.live import LiveRoutes
from wds_tools.service.local_files import LocalLibrary
from wds_tools.service.metrics import FOLDER_VARIABLE, Metrics
from wds_tools.service.pages.routes import PageRoutes
from wds_tools.service.reports import ReportTable
from wds_tools.service.tokens import TokenChecker
from wds_tools.service.verifications import Verifications

_BACKLOG = 1024
_STOP_SECONDS = 5.0  # in which answers that have begun may end
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


def _libraries(options: ServeOptions, metrics: Metrics) -> Libraries:
    found: list[ScannedLibrary] = []
    if options.roots:
        found.append(LocalLibrary(Catalogue(options.roots), on_cold_read=metrics.cold_reads.inc))
    if options.upstreams:
        from wds_tools.service.upstream import UpstreamLibrary  # noqa: PLC0415 - it loads pyarrow, 60 MB

        found.append(UpstreamLibrary(options.upstreams, options.remote or RemoteOptions.of(), metrics))
    return Libraries(found)


def application(options: ServeOptions, metrics: Metrics) -> tuple[web.Application, Libraries]:
    """Return the application with all routes, and its datasets, which have not been looked for yet."""
    library, limits = _libraries(options, metrics), options.limits
    tokens = TokenChecker(options.token_file) if options.token_file else None
    gate = Gate(limits, host_names=(*options.host_names, options.host), tokens=tokens)
    table = ReportTable(Path(os.environ[FOLDER_VARIABLE]) / "reports" if FOLDER_VARIABLE in os.environ else None)
    cache_folder = (options.remote or RemoteOptions.of()).cache_folder
    verifications = Verifications(cache_folder / "verifications")
    disks = [(root.resolve().name, root) for root in options.roots]
    if options.upstreams:
        disks.append(("cache", cache_folder))
    pages = PageRoutes(library, table, verifications, metrics, disks=disks, has_upstreams=bool(options.upstreams))
    routes = [
        *DataRoutes(library, limits, metrics).routes(),
        *ListingRoutes(library, metrics).routes(),
        *LiveRoutes(table, verifications).routes(),
        *pages.routes(),
    ]
    log = AccessLog(options.access_log) if options.access_log else None
    app = make_app(gate, routes, limits, metrics, log)
    if log is not None:
        app.cleanup_ctx.append(log.run)
    app.cleanup_ctx.append(pages.run)
    background(app, lambda: rescan(library))
    return app, library


async def run(
    options: ServeOptions,
    listener: socket.socket,
    *,
    on_start: Callable[[Started], object],
    parent: PipeConnection | None = None,
) -> None:
    """Run the service in this process until a signal, or until the parent process has ended."""
    loop, limits, metrics = asyncio.get_running_loop(), options.limits, Metrics()
    stop = asyncio.Event()
    if threading.current_thread() is threading.main_thread():  # another thread cannot handle signals
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    if parent is not None:
        loop.add_reader(parent.fileno(), stop.set)  # readable when the parent has ended
    app, library = application(options, metrics)
    await library.scan()
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    connections = ConnectionTable(limits, metrics)
    assert runner.server is not None
    manager = runner.server
    context = options.tls_context()
    server = await loop.create_server(
        lambda: Connection(manager, connections, loop),
        sock=listener,
        backlog=_BACKLOG,
        ssl=context,
        ssl_handshake_timeout=_HANDSHAKE_SECONDS if context else None,
    )
    on_start(Started(options.url(listener.getsockname()[1]), len(library.summaries())))
    try:
        await stop.wait()
    finally:
        server.close()
        manager.pre_shutdown()
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await manager.shutdown(_STOP_SECONDS)
        await runner.cleanup()
        connections.abort_all()
        await asyncio.sleep(0)  # in which the transports close their sockets
        library.close()
