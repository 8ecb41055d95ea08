"""Routes for programs: ``/api/datasets``, ``/api/runs``, ``/api/reports``, ``/metrics`` and ``/healthz``."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from aiohttp import web

from wds_tools.reporting import REPORT_PATH
from wds_tools.service.access import ALL_DATASETS, ANY_TOKEN, GRANT, PUBLIC, Route
from wds_tools.service.config import Limits
from wds_tools.service.connections import Connection
from wds_tools.service.contents import PREFIX, Library, Summary
from wds_tools.service.metrics import CONTENT_TYPE, Metrics
from wds_tools.service.reports import InvalidReportError, ReportTable, check_report, packs_of, runs_of, verdict
from wds_tools.service.responses import error_response, json_response


class ApiRoutes:
    """Routes for the catalogue of datasets, for reports of loaders and packers, for metrics and for probes.

    Args:
        limits: The time in which a report has to arrive.
    """

    def __init__(self, library: Library, table: ReportTable, metrics: Metrics, limits: Limits) -> None:
        self._library = library
        self._table = table
        self._metrics = metrics
        self._limits = limits

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/api/datasets", self.get_datasets, "catalogue", ANY_TOKEN),
            Route("GET", "/api/runs", self.get_runs, "runs", ANY_TOKEN),
            Route("POST", REPORT_PATH, self.post_report, "report", ANY_TOKEN),
            Route("GET", "/metrics", self.get_metrics, "metrics", ALL_DATASETS),
            Route("GET", "/healthz", self.get_health, "healthz", PUBLIC),  # probes have no token
        ]

    async def get_datasets(self, request: web.Request) -> web.Response:
        """List the datasets that the token of a request is for."""
        grant = request[GRANT]
        datasets = [_entry(summary) for summary in self._library.summaries() if grant.allows(summary.name)]
        problems = [{"name": name, "problem": text} for name, text in self._library.problems().items()]
        return json_response({"datasets": datasets, "problems": problems if grant.allows_all else []})

    async def get_runs(self, request: web.Request) -> web.Response:
        """Return the runs that a token may see."""
        reports = self._table.visible(request[GRANT])
        runs = runs_of(reports)
        return json_response({"verdict": verdict(runs), "runs": runs, "packs": packs_of(reports)})

    async def post_report(self, request: web.Request) -> web.Response:
        """Accept a report."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return error_response(400, "the report is compressed: send it without Content-Encoding")
        if request.content_type != "application/json":
            return error_response(415, "a report has the Content-Type application/json")
        try:
            async with asyncio.timeout(self._limits.report_seconds):
                body = await request.read()
            self._table.add(request[GRANT].owner, request.remote or "", check_report(body))
        except TimeoutError:
            Connection.of(request).abort()  # otherwise it could send slowly forever
            return error_response(408, f"the report did not arrive within {self._limits.report_seconds:.0f} s")
        except InvalidReportError as error:
            return error_response(400, f"the report is invalid: {error}")
        return web.Response(status=204)

    async def get_metrics(self, _request: web.Request) -> web.Response:
        """Return the metrics; they are about all datasets."""
        self._metrics.datasets.set(len(self._library.summaries()))
        self._metrics.problems.set(len(self._library.problems()))
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def get_health(self, _request: web.Request) -> web.Response:
        """Answer a probe."""
        return web.Response(text="ok\n")


def _entry(summary: Summary) -> dict[str, Any]:
    return {**summary.details, "url": f"{PREFIX}{quote(summary.name)}/", "etag": f'"{summary.version}"'}
