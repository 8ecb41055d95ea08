"""The files of datasets: ``/data/DATASET/FILE``. Names are looked up in the catalogue and in manifests."""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import Mapping
from contextlib import aclosing
from urllib.parse import quote

from aiohttp import hdrs, web

from wds_tools.service.access import NOT_FOUND, TARGET, Route, dataset_after
from wds_tools.service.config import Limits
from wds_tools.service.connections import Connection
from wds_tools.service.contents import PREFIX, Content, DamagedFileError, Library, UnavailableError
from wds_tools.service.metrics import Metrics
from wds_tools.service.ranges import range_response
from wds_tools.service.responses import error_response
from wds_tools.service.sending import FileResponse, SlowClientError
from wds_tools.storage.requests.failures import DAMAGED

_log = logging.getLogger("wds_tools")
_CONDITIONS = (hdrs.IF_MATCH, hdrs.IF_NONE_MATCH, hdrs.IF_RANGE, hdrs.RANGE)
_TYPES = {
    "tar": "application/x-tar",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json",
}


class DataRoutes:
    """Routes for files, and for the list of the files of a dataset.

    Args:
        limits: The minimum speed of clients.
        metrics: Where bytes are counted.
    """

    def __init__(self, library: Library, limits: Limits, metrics: Metrics) -> None:
        self._library = library
        self._limits = limits
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("GET", PREFIX + "{path:.*}", self.get, "data", dataset_after(PREFIX))]

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer GET and HEAD."""
        dataset, file = request[TARGET]
        try:
            return await (self._respond(request, dataset, file) if file else self._list(dataset))
        except DamagedFileError as error:
            _log.warning("%s/%s cannot be sent: %s", dataset, file, error)
            return error_response(500, f"the file is damaged on the server: {error}", reason=DAMAGED)
        except UnavailableError as error:
            return error_response(503, str(error), {"Retry-After": str(error.retry_seconds)})

    async def _respond(self, request: web.Request, dataset: str, file: str) -> web.StreamResponse:
        content = await self._library.open(dataset, file)
        return error_response(404, NOT_FOUND) if content is None else await self._send(request, content, file)

    async def _list(self, dataset: str) -> web.StreamResponse:
        files = await self._library.files(dataset)
        if not files:
            return error_response(404, NOT_FOUND)
        return web.Response(text=_page(dataset, files), content_type="text/html")

    async def _send(self, request: web.Request, content: Content, name: str) -> web.StreamResponse:
        etag = f'"{content.checksum}"'
        conditions: dict[str, str] = {
            key: ", ".join(request.headers.getall(key)) for key in _CONDITIONS if key in request.headers
        }
        answer = range_response(conditions, size=content.size, etag=etag, is_get=request.method == "GET")
        headers = {"ETag": etag, "Accept-Ranges": "bytes"}
        if answer.status == 304:
            return web.Response(status=304, headers=headers)
        if answer.status == 412:
            return error_response(412, "the file has a different ETag: it was replaced", headers)
        if answer.status == 416:
            headers["Content-Range"] = f"bytes */{content.size}"
            return error_response(416, f"the range begins beyond the end: the file has {content.size:,} bytes", headers)
        if answer.status == 206:
            headers["Content-Range"] = f"bytes {answer.start}-{answer.stop - 1}/{content.size}"
        headers["Content-Length"] = str(answer.stop - answer.start)
        headers["Content-Type"] = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        headers["Content-Disposition"] = "attachment"
        response = FileResponse(answer.status, headers)
        if request.method == "GET":
            await self._send_body(request, response, content, answer.start, answer.stop)
        return response

    async def _send_body(
        self, request: web.Request, response: FileResponse, content: Content, start: int, stop: int
    ) -> None:
        """Send head and body. Once the head is sent, an error can only be shown by closing the connection."""
        try:
            piece = content.at_once(start, stop)
            if piece is None or not response.send_at_once(request, piece):
                async with aclosing(content.pieces(start + response.sent_bytes, stop)) as pieces:
                    await response.send(request, pieces, self._limits)
            self._metrics.sent_bytes.inc(stop - start)
        except (TimeoutError, OSError, UnavailableError, DamagedFileError) as error:
            if not response.prepared and not isinstance(error, (ConnectionError, asyncio.TimeoutError)):
                if not isinstance(error, OSError):
                    raise
                _log.warning("a file cannot be read: %s", error.strerror or error)
                raise UnavailableError(f"the file cannot be read: {error.strerror or error}") from None
            reason = "slow" if isinstance(error, (SlowClientError, asyncio.TimeoutError)) else "broken"
            self._metrics.cut_connections.labels(reason).inc()
            if not isinstance(error, (ConnectionError, asyncio.TimeoutError)):
                _log.warning("a file could not be sent to its end: %s", error)
            Connection.of(request).abort()


def _page(dataset: str, files: Mapping[str, int]) -> str:
    """Return a page of links, for clients that search for files by a pattern."""
    title = html.escape(dataset)
    rows = "\n".join(
        f'<li><a href="{html.escape(quote(name))}">{html.escape(name)}</a> {size:,} bytes</li>'
        for name, size in sorted(files.items())
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body><h1>{title}</h1>\n<ul>\n{rows}\n</ul></body></html>\n"
    )
