"""The application: the gate in front, and the routes of each module behind it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aiohttp import web

from wds_tools.service.access import ANY_TOKEN, Gate, Route
from wds_tools.service.access_log import AccessLog
from wds_tools.service.answers import add_security_headers, error_answer
from wds_tools.service.catalogue import SCAN_SECONDS
from wds_tools.service.connections import Connection
from wds_tools.service.libraries import Libraries
from wds_tools.service.limits import Limits
from wds_tools.service.metrics import Metrics

_log = logging.getLogger("wds_tools")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    gate: Gate, routes: Sequence[Route], limits: Limits, metrics: Metrics, log: AccessLog | None = None
) -> web.Application:
    """Return the application.

    Args:
        gate: Checks every request first.
        routes: The routes of all modules.
        limits: Sizes of requests.
        metrics: Where requests are counted.
        log: Where requests are logged; None: nowhere.
    """
    access = {route.name: route.access for route in routes}

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        started = time.perf_counter()
        route = request.match_info.route.name or "other"
        response = None
        try:
            with Connection.busy(request.protocol):
                needed = access.get(route, ANY_TOKEN)  # a path without a route does not show that there is none
                response = gate.check(request, needed) or await _answer(request, handler)
                return response
        finally:
            seconds = time.perf_counter() - started
            metrics.count_request(route, response.status if response is not None else 500, seconds)
            if log is not None:
                log.add(request, response, route=route, seconds=seconds)

    app = web.Application(middlewares=[guard], client_max_size=limits.body_bytes)
    app.on_response_prepare.append(add_security_headers)
    for one in routes:
        add = app.router.add_get if one.method == "GET" else app.router.add_post
        add(one.path, one.handler, name=one.name)
    return app


async def _answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Call a route. All errors become JSON, without tracebacks and without parts of the request."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {name: value for name, value in error.headers.items() if name in ("Allow", "Location")}
        return error_answer(error.status, error.reason, headers)
    except ConnectionError:
        raise
    except Exception:
        _log.exception("a request failed")
        return error_answer(500, "an error of the service, which its log shows")


async def rescan(library: Libraries) -> None:
    """Look for new datasets again and again; an error of one scan does not end it."""
    while True:
        await asyncio.sleep(SCAN_SECONDS)
        try:
            await library.scan()
        except Exception:
            _log.exception("the folders cannot be scanned")


def background(app: web.Application, start: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine as long as the application runs."""

    async def context(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.ensure_future(start())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    app.cleanup_ctx.append(context)
