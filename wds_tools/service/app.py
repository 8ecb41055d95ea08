"""The application: the gate in front, and the routes of each module behind it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from wds_tools.service.access import ANY_TOKEN, Access, Gate, Route
from wds_tools.service.access_log import AccessLog
from wds_tools.service.api import ApiRoutes
from wds_tools.service.catalogue import Catalogue
from wds_tools.service.config import ServeOptions
from wds_tools.service.connections import Connection
from wds_tools.service.data import DataRoutes
from wds_tools.service.history import RunHistory
from wds_tools.service.libraries import Libraries, ScannedLibrary
from wds_tools.service.local_files import LocalLibrary
from wds_tools.service.metrics import FOLDER_VARIABLE, Metrics
from wds_tools.service.pages.kept_results import KeptResults
from wds_tools.service.pages.routes import PageRoutes
from wds_tools.service.pages.runs import RunRoutes
from wds_tools.service.reports import ReportTable
from wds_tools.service.responses import add_security_headers, error_response
from wds_tools.service.tokens import TokenChecker

LIBRARY = web.AppKey("library", Libraries)
_log = logging.getLogger("wds_tools")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(options: ServeOptions, metrics: Metrics) -> web.Application:
    """Return the application with all routes; its datasets, `LIBRARY`, are looked for when it starts.

    Starting it raises:
        RuntimeError: A route was added without the declaration of what a request needs.
    """
    tokens = TokenChecker(options.token_file) if options.token_file else None
    gate = Gate(options.limits, host_names=(*options.host_names, options.host), tokens=tokens)
    log = AccessLog(options.access_log) if options.access_log else None
    library = _library(options, metrics)
    table = ReportTable(Path(os.environ[FOLDER_VARIABLE]) / "reports" if FOLDER_VARIABLE in os.environ else None)
    history = RunHistory(options.remote.cache_folder)
    kept = KeptResults(options.remote.cache_folder, options.remote.cache_bytes)
    pages = PageRoutes(library, table, metrics, kept, disks=_disks(options), has_upstreams=bool(options.upstreams))
    routes: list[Route] = [
        *DataRoutes(library, options.limits, metrics).routes(),
        *ApiRoutes(library, table, metrics, options.limits).routes(),
        *pages.routes(),
        *RunRoutes(history, pages.render).routes(),
    ]
    access = {route.name: route.access for route in routes}
    app = web.Application(middlewares=[_guard(gate, access, metrics, log)], client_max_size=options.limits.body_bytes)
    app[LIBRARY] = library
    for route in routes:
        add = app.router.add_get if route.method == "GET" else app.router.add_post
        add(route.path, route.handler, name=route.name)

    async def check_routes(app: web.Application) -> None:
        if undeclared := [route for route in app.router.routes() if route.name not in access]:
            raise RuntimeError(f"{undeclared[0]} does not declare what a request needs: add it as a `Route`")

    app.on_startup.append(check_routes)
    app.on_response_prepare.append(add_security_headers)
    app.cleanup_ctx.extend([_scanning(options.limits.scan_seconds), *([log.run] if log else []), pages.run])
    app.cleanup_ctx.append(lambda _app: history.recording(table))
    return app


def _library(options: ServeOptions, metrics: Metrics) -> Libraries:
    libraries: list[ScannedLibrary] = []
    if options.roots:
        libraries.append(LocalLibrary(Catalogue(options.roots), on_cold_read=metrics.cold_reads.inc))
    if options.upstreams:
        from wds_tools.service.upstream import UpstreamLibrary  # noqa: PLC0415 - it loads pyarrow, 60 MB

        libraries.append(UpstreamLibrary(options.upstreams, options.remote, metrics))
    return Libraries(libraries)


def _disks(options: ServeOptions) -> list[tuple[str, Path]]:
    """Return names and paths of the folders whose free space is shown."""
    cache = [("cache", options.remote.cache_folder)] if options.upstreams else []
    return [*((root.resolve().name, root) for root in options.roots), *cache]


def _guard(gate: Gate, access: Mapping[str, Access], metrics: Metrics, log: AccessLog | None) -> Middleware:
    """Return the middleware that every request passes: it is checked, answered, counted and logged."""

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        started = time.perf_counter()
        route = request.match_info.route.name or "other"
        response = None
        connection = Connection.of(request)
        connection.is_busy = True
        try:
            needed = access.get(route, ANY_TOKEN)  # a path without a route does not show that there is none
            response = gate.check(request, needed) or await _respond(request, handler)
            return response
        finally:
            connection.end_request()
            seconds = time.perf_counter() - started
            metrics.count_request(route, response.status if response is not None else 500, seconds)
            if log is not None:
                log.add(request, response, route=route, seconds=seconds)

    return guard


async def _respond(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Call a route. All errors become JSON, without tracebacks and without parts of the request."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {name: value for name, value in error.headers.items() if name in ("Allow", "Location")}
        return error_response(error.status, error.reason, headers)
    except ConnectionError:
        raise
    except Exception:
        _log.exception("a request failed")
        return error_response(500, "an error of the service, which its log shows")


def _scanning(seconds: float) -> Callable[[web.Application], AsyncIterator[None]]:
    """Look for datasets at the start, and then again and again."""

    async def scan_again(library: Libraries) -> None:
        while True:
            await asyncio.sleep(seconds)
            await library.scan()

    async def context(app: web.Application) -> AsyncIterator[None]:
        library = app[LIBRARY]
        await library.scan()
        task = asyncio.ensure_future(scan_again(library))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        library.close()

    return context
